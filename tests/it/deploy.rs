//! What `deploy/github` runs in CI, run here as it stands there, over an embedded world.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::binary::Workspace;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/github")
}

/// Runs the action's script, with the program under test on the path.
fn step(place: &Workspace, variables: &[(&str, &str)]) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_fleetwright"));
    let own = program.parent().expect("a directory").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("bash")
        .arg(deploy().join("run.sh"))
        .current_dir(place.root())
        .env_clear()
        .env("PATH", format!("{own}:{path}"))
        .env("RUNNER_TEMP", place.path("temp"))
        .env("GITHUB_OUTPUT", place.path("outputs"))
        .env("GITHUB_STEP_SUMMARY", place.path("summary.md"))
        .envs(variables.iter().copied())
        .output()
        .expect("bash runs")
}

fn output(place: &Workspace, key: &str) -> String {
    let text = place.read("outputs");
    let found = text.lines().rev().find_map(|line| line.strip_prefix(&format!("{key}=")));
    found.unwrap_or_default().to_owned()
}

#[test]
fn workflow_steps_plan_apply_and_find_no_drift() {
    let place = Workspace::example("eks-workshop");
    let world = ("FLEETWRIGHT_WORLD", "sim:world");
    // Whatever somebody commits under these names is neither a plan nor a receipt.
    place.write("plan.json", "{}");
    place.write("receipt.json", "{}");
    let planned = step(&place, &[("FLEETWRIGHT_COMMAND", "plan"), world]);
    let said = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(planned.status.success(), "{said}{}", String::from_utf8_lossy(&planned.stderr));
    assert!(said.contains("::notice file=inflate.yaml,line="), "{said}");
    assert_eq!(
        (output(&place, "changes"), output(&place, "exitcode")),
        ("true".into(), "0".into())
    );
    let text = std::fs::read_to_string(output(&place, "text_plan_path")).expect("it is there");
    assert!(text.contains("Plan: "), "{text}");
    assert!(place.read("summary.md").starts_with("### Fleetwright plan for `eks-workshop`"));

    let refused = step(
        &place,
        &[
            ("FLEETWRIGHT_COMMAND", "apply"),
            ("FLEETWRIGHT_APPROVED_DIGEST", &format!("sha256:{:064}", 0)),
        ],
    );
    assert_eq!(refused.status.code(), Some(3));
    assert_eq!(output(&place, "exitcode"), "3");
    assert!(output(&place, "failure_reason").contains("not what was approved"));
    let digest = output(&place, "digest");
    let applied =
        step(&place, &[("FLEETWRIGHT_COMMAND", "apply"), ("FLEETWRIGHT_APPROVED_DIGEST", &digest)]);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    assert!(place.read("temp/fleetwright/receipt.json").contains("\"verdict\": \"applied\""));
    // What the action offers as outputs is what its script writes.
    let offered = std::fs::read_to_string(deploy().join("action.yml")).expect("the action");
    let keys = offered.split("steps.run.outputs.").skip(1);
    let keys: Vec<&str> = keys.filter_map(|rest| rest.split_whitespace().next()).collect();
    assert!(keys.len() > 10, "{keys:?}");
    let written = place.read("outputs");
    for key in keys {
        let line = format!("{key}=");
        assert!(written.lines().any(|written| written.starts_with(&line)), "{key}");
    }

    let told = step(&place, &[("FLEETWRIGHT_COMMAND", "comment")]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    assert!(String::from_utf8_lossy(&told.stderr).contains("GITHUB_TOKEN is not set"));
    let drift = step(&place, &[("FLEETWRIGHT_COMMAND", "drift"), world]);
    assert_eq!(drift.status.code(), Some(0), "{}", String::from_utf8_lossy(&drift.stdout));
    assert_eq!(step(&place, &[("FLEETWRIGHT_COMMAND", "x; rm -rf y")]).status.code(), Some(1));
}

#[test]
fn failed_plan_removes_previous_plan_file() {
    let place = Workspace::example("eks-workshop");
    let world = ("FLEETWRIGHT_WORLD", "sim:world");
    assert!(step(&place, &[("FLEETWRIGHT_COMMAND", "plan"), world]).status.success());
    place.write("fleetwright.yaml", "not: a fleet");
    let bad = [("FLEETWRIGHT_COMMAND", "plan"), ("FLEETWRIGHT_WORLD", "no-such-world")];
    assert_eq!(step(&place, &bad).status.code(), Some(1));
    assert!(!place.path("temp/fleetwright/plan.json").exists());
    let failed = [("FLEETWRIGHT_COMMAND", "failed"), ("FLEETWRIGHT_REASON", "Planning failed")];
    let told = step(&place, &failed);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
}

#[test]
fn policies_and_approvals_are_passed_one_per_line() {
    let place = Workspace::example("eks-workshop");
    place.write("guard/main.rego", "package main\nwarn[msg] { not data.a.b; msg := \"unset\" }\n");
    place.write("data.json", "{\"a\": {\"b\": true}}");
    let policies = [
        ("FLEETWRIGHT_POLICIES", "guard\n"),
        ("FLEETWRIGHT_POLICY_DATA", "data.json\n"),
        ("FLEETWRIGHT_WORLD", "sim:world"),
    ];
    let planned = step(&place, &[&[("FLEETWRIGHT_COMMAND", "plan")][..], &policies].concat());
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));
    assert!(!String::from_utf8_lossy(&planned.stdout).contains("unset"));
    let digest = output(&place, "digest");
    let apply = [("FLEETWRIGHT_COMMAND", "apply"), ("FLEETWRIGHT_APPROVED_DIGEST", &digest)];
    let refused = step(&place, &apply);
    assert_eq!(refused.status.code(), Some(5), "it is not judged by what judged it");
    let missing = [&apply[..], &policies, &[("FLEETWRIGHT_APPROVALS", "none.json")]].concat();
    assert_eq!(step(&place, &missing).status.code(), Some(1), "no such file of approvals");
    let applied = step(&place, &[&apply[..], &policies].concat());
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
}

#[test]
fn labels_reach_policies_and_denials_state_the_reason() {
    let place = Workspace::example("eks-workshop");
    let guard = "package main\nimport rego.v1\ndeny contains \"no label\" if not \"big\" in \
                 data.fleetwright.labels\n";
    place.write("guard/main.rego", guard);
    let both = [("FLEETWRIGHT_POLICIES", "guard"), ("FLEETWRIGHT_WORLD", "sim:world")];
    let plan = |labels: &'static str| {
        let more = [("FLEETWRIGHT_COMMAND", "plan"), ("FLEETWRIGHT_LABELS", labels)];
        step(&place, &[&more[..], &both].concat())
    };
    assert_eq!(plan("[]").status.code(), Some(6));
    assert_eq!(plan("[\"big\", \"a b\"]").status.code(), Some(0));
    let digest = output(&place, "digest");
    let apply = |digest: &str| {
        let more = [("FLEETWRIGHT_COMMAND", "apply"), ("FLEETWRIGHT_APPROVED_DIGEST", digest)];
        step(&place, &[&more[..], &both].concat())
    };
    assert_eq!(apply(&format!("sha256:{:064}", 0)).status.code(), Some(3));
    let why = output(&place, "failure_reason");
    assert_eq!(why, "the world or the plan is not what was approved any more");
    let applied = apply(&digest);
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    assert_eq!(output(&place, "failure_reason"), "");
}

#[test]
fn role_is_assumed_with_job_identity_and_private_token() {
    let place = Workspace::empty();
    let script = deploy().join("identity.sh").display().to_string();
    place.write("bin/aws", "#!/bin/sh\necho \"$AWS_ROLE_ARN $*\" >> \"$RUNNER_TEMP/called\"\n");
    let aws = place.path("bin/aws");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(aws, mode).expect("executable");
    place.write("temp/x", "");
    let exports = format!(
        "export RUNNER_TEMP='{0}/temp' GITHUB_ENV='{0}/env' FLEETWRIGHT_ROLE=arn:r \
         FLEETWRIGHT_REGION=eu-west-1 FLEETWRIGHT_CLUSTER=prod; ",
        place.root().display()
    );
    let asks =
        "export ACTIONS_ID_TOKEN_REQUEST_URL='https://x?a=b' ACTIONS_ID_TOKEN_REQUEST_TOKEN=t; ";
    let curl = "#!/bin/sh\nfor last; do :; done\n[ \"$last\" = 'https://x?a=b&audience=sts.amazonaws.com' ]\n\
                echo '{\"value\": \"jwt\"}'\n";
    let run = format!("{exports}bash '{script}'");
    assert!(!with_stand_in(&place, &run, "curl", curl).status.success(), "no permission");
    let run = format!("{exports}{asks}bash '{script}'");
    let refused = with_stand_in(&place, &run, "curl", "#!/bin/sh\nexit 22\n");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stdout).contains("::error::GitHub gave no identity"));
    let ran = with_stand_in(&place, &run, "curl", curl);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(place.read("temp/fleetwright-identity"), "jwt\n");
    let mode = std::fs::metadata(place.path("temp/fleetwright-identity")).expect("a file");
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o077, 0);
    assert!(place.read("env").contains("AWS_ROLE_ARN=arn:r\n"));
    assert!(place.read("temp/called").contains("arn:r eks update-kubeconfig --name prod"));
}

/// Runs `script` with `program` in place of a program on the path.
fn with_stand_in(place: &Workspace, script: &str, name: &str, program: &str) -> Output {
    place.write(&format!("bin/{name}"), program);
    let bin = place.path("bin");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bin.join(name), mode).expect("executable");
    Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("GITHUB_REPOSITORY", "acme/fleet")
        .output()
        .expect("bash runs")
}

#[test]
fn environment_without_reviewers_stops_apply() {
    let text = workflow("apply");
    let after = text.split_once("environments/capacity").expect("a check").0;
    let begin = after.rfind("run: |\n").expect("a script") + "run: |\n".len();
    let script: Vec<&str> =
        text[begin..].lines().take_while(|line| line.starts_with("          ")).collect();
    let place = Workspace::empty();
    for (answer, code) in
        [("echo 2", 0), ("echo 0", 1), ("echo", 1), ("echo 'Not Found'", 1), ("echo 2; exit 1", 1)]
    {
        let gh = format!("#!/bin/sh\n{answer}\n");
        let ran = with_stand_in(&place, &script.join("\n"), "gh", &gh);
        assert_eq!(ran.status.code(), Some(code), "{answer}");
    }
}

#[test]
fn binary_with_other_checksum_is_rejected() {
    let place = Workspace::empty();
    place.write("program/fleetwright", "#!/bin/sh\n");
    let take = |sha256: &str| {
        Command::new("bash")
            .arg(deploy().join("take.sh"))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("FLEETWRIGHT_PROGRAM", place.path("program/fleetwright"))
            .env("FLEETWRIGHT_SHA256", sha256)
            .env("RUNNER_TEMP", place.path("temp"))
            .env("GITHUB_PATH", place.path("paths"))
            .output()
            .expect("bash runs")
    };
    assert_eq!(take(&"0".repeat(64)).status.code(), Some(1));
    assert!(!take("").status.success());
    assert!(!place.path("paths").exists());
    let own = "a8076d3d28d21e02012b20eaf7dbf75409a6277134439025f282e368e3305abf";
    assert!(take(own).status.success());
    assert!(place.read("paths").trim_end().ends_with("/fleetwright-bin"));
    assert!(place.path("temp/fleetwright-bin/fleetwright").exists());
}

fn workflow(name: &str) -> String {
    let path = deploy().join(format!("workflows/{name}.yml"));
    std::fs::read_to_string(path).expect("a workflow")
}

/// Returns each job with exactly what it may.
fn permissions(text: &str) -> Vec<(String, Vec<String>)> {
    let mut jobs: Vec<(String, Vec<String>)> = Vec::new();
    let mut within = false;
    for line in text.split_once("\njobs:\n").expect("jobs").1.lines() {
        let indent = line.len() - line.trim_start().len();
        if indent == 2 && line.ends_with(':') {
            jobs.push((line.trim().trim_end_matches(':').to_owned(), Vec::new()));
        }
        let job = jobs.last_mut().expect("a job");
        within = line == "    permissions:" || (within && indent == 6);
        if line == "    permissions: {}" {
            job.1.push("nothing".to_owned());
        } else if within && indent == 6 {
            job.1.push(line.trim().to_owned());
        }
    }
    jobs
}

#[test]
fn workflow_jobs_have_minimal_permissions() {
    let (read, write) = ("contents: read", ["pull-requests: write", "statuses: write"]);
    let identity = "id-token: write";
    let build = ("build", vec!["nothing"]);
    let comment = |more: &[&'static str]| ("comment", [more, &write[..]].concat());
    for (name, expected) in [
        ("plan", vec![build.clone(), ("plan", vec![read, identity]), comment(&[])]),
        (
            "apply",
            vec![
                build.clone(),
                ("plan", vec![read, identity, "pull-requests: read"]),
                ("protected", vec!["actions: read", read]),
                ("apply", vec![read, identity]),
                comment(&[read]),
            ],
        ),
        ("drift", vec![build, ("drift", vec![read, identity])]),
    ] {
        let text = workflow(name);
        let found = permissions(&text);
        let found: Vec<(&str, Vec<&str>)> = found
            .iter()
            .map(|(job, may)| (job.as_str(), may.iter().map(String::as_str).collect()))
            .collect();
        assert_eq!(found, expected, "{name}");
        // The role that writes is asked for in the environment with reviewers alone.
        let writes = text.matches("FLEETWRIGHT_WRITE_ROLE").count();
        assert_eq!(writes, usize::from(name == "apply"), "{name}");
        if let Some((before, after)) = text.split_once("FLEETWRIGHT_WRITE_ROLE") {
            assert!(before.contains("environment: capacity") && after.contains("  comment:"));
        }
        // What is compiled is compiled where nothing is granted.
        let jobs = text.split_once("\njobs:\n").expect("jobs").1;
        assert_eq!(jobs.matches("cargo ").count(), 1, "{name}");
    }
}

#[test]
fn workflow_actions_are_pinned_with_minimal_permissions() {
    for name in ["plan", "apply", "drift"] {
        let path = deploy().join(format!("workflows/{name}.yml"));
        let text = std::fs::read_to_string(&path).expect("a workflow");
        assert!(text.contains("\npermissions: {}\n"), "{name}: nothing is granted to all jobs");
        assert!(
            !text.contains("pull_request_target") && !text.contains("contents: write"),
            "{name}"
        );
        is_pinned(name, &text);
    }
}

/// Checks that whatever a workflow uses of others is named by its commit.
fn is_pinned(name: &str, text: &str) {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("- "));
    for uses in lines.filter_map(|line| line.strip_prefix("uses: ")) {
        let pin = uses.split(['@', ' ']).nth(1).unwrap_or_default();
        let is_commit = pin.len() == 40 && pin.chars().all(|c| c.is_ascii_hexdigit());
        assert!(is_commit, "{name}: {uses}");
    }
}

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn release_is_built_without_publish_rights_and_matches_chart() {
    let text = file(".github/workflows/release.yml");
    is_pinned("release", &text);
    assert!(text.contains("\npermissions: {}\n"), "nothing is granted to all jobs");
    let found = permissions(&text);
    let (read, write) = ("contents: read", "contents: write");
    let publishes = ["attestations: write", write, "id-token: write", "packages: write"];
    let expected = [
        ("check", vec!["actions: read", read]),
        ("build", vec![read]),
        ("publish", publishes.to_vec()),
    ];
    let found: Vec<(&str, Vec<&str>)> = found
        .iter()
        .map(|(job, may)| (job.as_str(), may.iter().map(String::as_str).collect()))
        .collect();
    assert_eq!(found, expected);
    let (_, publish) = text.split_once("\n  publish:\n").expect("a job");
    assert!(!publish.contains("docker buildx build") && !publish.contains("cargo "));
    // What the tag must be, and where the image goes.
    let version = env!("CARGO_PKG_VERSION");
    let chart = file("deploy/helm/fleetwright/Chart.yaml");
    for key in ["version", "appVersion"] {
        let line = format!("{key}: {version}");
        assert!(chart.lines().any(|own| own == line), "{line}");
    }
    let source = env!("CARGO_PKG_REPOSITORY");
    let of_host = source.strip_prefix("https://github.com/").expect("a repository of GitHub");
    let values = file("deploy/helm/fleetwright/values.yaml");
    assert!(values.contains(&format!("\n  repository: ghcr.io/{of_host}\n")), "{of_host}");
}
