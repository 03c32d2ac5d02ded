//! Runs the scripts and workflows of `deploy/github` over an embedded world.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value as Json;

use crate::binary::Workspace;
use crate::missing_tool::not_run;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/github")
}

/// Runs the script of the action, with the program under test on the path.
fn run_action(workspace: &Workspace, variables: &[(&str, &str)]) -> Output {
    let program = Path::new(env!("CARGO_BIN_EXE_fleetwright"));
    let own = program.parent().expect("a directory").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("bash")
        .arg(deploy().join("run.sh"))
        .current_dir(workspace.root())
        .env_clear()
        .env("PATH", format!("{own}:{path}"))
        .env("RUNNER_TEMP", workspace.path("temp"))
        .env("GITHUB_OUTPUT", workspace.path("outputs"))
        .env("GITHUB_STEP_SUMMARY", workspace.path("summary.md"))
        .envs(variables.iter().copied())
        .output()
        .expect("bash runs")
}

fn output(workspace: &Workspace, key: &str) -> String {
    let text = workspace.read("outputs");
    let value = text.lines().rev().find_map(|line| line.strip_prefix(&format!("{key}=")));
    value.unwrap_or_default().to_owned()
}

#[test]
fn workflow_steps_plan_apply_and_find_no_drift() {
    let workspace = Workspace::example("eks-workshop");
    let world = ("FLEETWRIGHT_WORLD", "sim:world");
    // Committed files with these names must not be used as plan or receipt.
    workspace.write("plan.json", "{}");
    workspace.write("receipt.json", "{}");
    let planned = run_action(&workspace, &[("FLEETWRIGHT_COMMAND", "plan"), world]);
    let output_text = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(planned.status.success(), "{output_text}{}", String::from_utf8_lossy(&planned.stderr));
    assert!(output_text.contains("::notice file=inflate.yaml,line="), "{output_text}");
    assert_eq!(
        (output(&workspace, "changes"), output(&workspace, "exitcode")),
        ("true".into(), "0".into())
    );
    let text = std::fs::read_to_string(output(&workspace, "text_plan_path"))
        .expect("the text plan exists");
    assert!(text.contains("Plan: "), "{text}");
    assert!(workspace.read("summary.md").starts_with("### Fleetwright plan for `eks-workshop`"));

    let refused = run_action(
        &workspace,
        &[
            ("FLEETWRIGHT_COMMAND", "apply"),
            ("FLEETWRIGHT_APPROVED_DIGEST", &format!("sha256:{:064}", 0)),
        ],
    );
    assert_eq!(refused.status.code(), Some(3));
    assert_eq!(output(&workspace, "exitcode"), "3");
    assert!(output(&workspace, "failure_reason").contains("not the approved one"));
    let digest = output(&workspace, "digest");
    let applied = run_action(
        &workspace,
        &[("FLEETWRIGHT_COMMAND", "apply"), ("FLEETWRIGHT_APPROVED_DIGEST", &digest)],
    );
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    assert!(workspace.read("temp/fleetwright/receipt.json").contains("\"verdict\": \"applied\""));
    let listed = run_action(&workspace, &[("FLEETWRIGHT_COMMAND", "clusters")]);
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    // The script writes every output that the action declares.
    let declared = std::fs::read_to_string(deploy().join("action.yml")).expect("the action");
    let keys = declared.split("steps.run.outputs.").skip(1);
    let keys: Vec<&str> = keys.filter_map(|rest| rest.split_whitespace().next()).collect();
    assert!(keys.len() > 10, "{keys:?}");
    let written = workspace.read("outputs");
    for key in keys {
        let line = format!("{key}=");
        assert!(written.lines().any(|written| written.starts_with(&line)), "{key}");
    }

    let comment = run_action(&workspace, &[("FLEETWRIGHT_COMMAND", "comment")]);
    assert!(comment.status.success(), "{}", String::from_utf8_lossy(&comment.stderr));
    assert!(String::from_utf8_lossy(&comment.stderr).contains(
        "warning: no comment was written: GITHUB_TOKEN is not set. Set it, or print the comment \
         with --dry-run."
    ));
    let other = ("FLEETWRIGHT_COMMENT_CLUSTER", "other");
    let refused = run_action(&workspace, &[("FLEETWRIGHT_COMMAND", "comment"), other]);
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("the plan is of cluster `eks-workshop`, not of `other`"), "{refused}");
    let drift = run_action(&workspace, &[("FLEETWRIGHT_COMMAND", "drift"), world]);
    assert_eq!(drift.status.code(), Some(0), "{}", String::from_utf8_lossy(&drift.stdout));
    assert_eq!(
        run_action(&workspace, &[("FLEETWRIGHT_COMMAND", "x; rm -rf y")]).status.code(),
        Some(1)
    );
}

#[test]
fn failed_plan_removes_previous_plan_file() {
    let workspace = Workspace::example("eks-workshop");
    let world = ("FLEETWRIGHT_WORLD", "sim:world");
    assert!(run_action(&workspace, &[("FLEETWRIGHT_COMMAND", "plan"), world]).status.success());
    workspace.write("fleetwright.yaml", "not: a fleet");
    let bad = [("FLEETWRIGHT_COMMAND", "plan"), ("FLEETWRIGHT_WORLD", "no-such-world")];
    assert_eq!(run_action(&workspace, &bad).status.code(), Some(1));
    assert!(!workspace.path("temp/fleetwright/plan.json").exists());
    let failed = [("FLEETWRIGHT_COMMAND", "failed"), ("FLEETWRIGHT_REASON", "Planning failed")];
    let comment = run_action(&workspace, &failed);
    assert!(comment.status.success(), "{}", String::from_utf8_lossy(&comment.stderr));
}

#[test]
fn policies_and_approvals_are_passed_one_per_line() {
    let workspace = Workspace::example("eks-workshop");
    workspace
        .write("guard/main.rego", "package main\nwarn[msg] { not data.a.b; msg := \"unset\" }\n");
    workspace.write("data.json", "{\"a\": {\"b\": true}}");
    let policies = [
        ("FLEETWRIGHT_POLICIES", "guard\n"),
        ("FLEETWRIGHT_POLICY_DATA", "data.json\n"),
        ("FLEETWRIGHT_WORLD", "sim:world"),
    ];
    let planned =
        run_action(&workspace, &[&[("FLEETWRIGHT_COMMAND", "plan")][..], &policies].concat());
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));
    assert!(!String::from_utf8_lossy(&planned.stdout).contains("unset"));
    let digest = output(&workspace, "digest");
    let apply = [("FLEETWRIGHT_COMMAND", "apply"), ("FLEETWRIGHT_APPROVED_DIGEST", &digest)];
    let refused = run_action(&workspace, &apply);
    assert_eq!(refused.status.code(), Some(5), "the policies of the plan are missing");
    let missing = [&apply[..], &policies, &[("FLEETWRIGHT_APPROVALS", "none.json")]].concat();
    assert_eq!(
        run_action(&workspace, &missing).status.code(),
        Some(1),
        "the approvals file is missing"
    );
    let applied = run_action(&workspace, &[&apply[..], &policies].concat());
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
}

#[test]
fn labels_reach_policies_and_denials_state_the_reason() {
    let workspace = Workspace::example("eks-workshop");
    let guard = "package main\nimport rego.v1\ndeny contains \"no label\" if not \"big\" in \
                 data.fleetwright.labels\n";
    workspace.write("guard/main.rego", guard);
    let both = [("FLEETWRIGHT_POLICIES", "guard"), ("FLEETWRIGHT_WORLD", "sim:world")];
    let plan = |labels: &'static str| {
        let more = [("FLEETWRIGHT_COMMAND", "plan"), ("FLEETWRIGHT_LABELS", labels)];
        run_action(&workspace, &[&more[..], &both].concat())
    };
    assert_eq!(plan("[]").status.code(), Some(6));
    // Labels set no other data of policies.
    for odd in ["[\"big\"], \"hourly_max\": 9", "{}", "[1]", "[\"big\"", "[] []"] {
        let refused = plan(odd);
        assert_eq!(refused.status.code(), Some(1), "{odd}");
    }
    let big = "[\n  \"big\",\n  \"a \\\"b\"\n]";
    assert_eq!(plan(big).status.code(), Some(0));
    let (digest, id) = (output(&workspace, "digest"), output(&workspace, "plan_id"));
    let apply = |digest: &str, id: &str, labels: &str| {
        let more = [("FLEETWRIGHT_COMMAND", "apply"), ("FLEETWRIGHT_APPROVED_DIGEST", digest)];
        let pinned = [("FLEETWRIGHT_APPROVED_PLAN", id), ("FLEETWRIGHT_LABELS", labels)];
        run_action(&workspace, &[&more[..], &pinned, &both].concat())
    };
    // A file of the plan job does not count.
    let without = apply(&digest, &id, "");
    assert!(!without.status.success());
    assert_eq!(apply(&format!("sha256:{:064}", 0), &id, big).status.code(), Some(3));
    let why = output(&workspace, "failure_reason");
    assert_eq!(why, "the plan is stale, or is not the approved one");
    assert_eq!(apply(&digest, &"0".repeat(64), big).status.code(), Some(3));
    let file = "temp/fleetwright/labels.json";
    workspace.write(file, "{\"fleetwright\": {\"hourly_max\": 9, \"labels\": [\"big\"]}}");
    let applied = apply(&digest, &id, big);
    assert!(!workspace.read(file).contains("hourly_max"), "the file is written anew");
    assert!(applied.status.success(), "{}", String::from_utf8_lossy(&applied.stderr));
    assert_eq!(output(&workspace, "failure_reason"), "");
}

#[test]
fn role_is_assumed_with_job_identity_and_private_token() {
    let workspace = Workspace::empty();
    let script = deploy().join("identity.sh").display().to_string();
    workspace.write("bin/aws", "#!/bin/sh\necho \"$AWS_ROLE_ARN $*\" >> \"$RUNNER_TEMP/called\"\n");
    let aws = workspace.path("bin/aws");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(aws, mode).expect("executable");
    workspace.write("temp/x", "");
    let exports = format!(
        "export RUNNER_TEMP='{0}/temp' GITHUB_ENV='{0}/env' FLEETWRIGHT_ROLE=arn:r \
         FLEETWRIGHT_REGION=eu-west-1 FLEETWRIGHT_CLUSTER=prod; ",
        workspace.root().display()
    );
    let request =
        "export ACTIONS_ID_TOKEN_REQUEST_URL='https://x?a=b' ACTIONS_ID_TOKEN_REQUEST_TOKEN=t; ";
    let curl = "#!/bin/sh\nfor last; do :; done\n[ \"$last\" = 'https://x?a=b&audience=sts.amazonaws.com' ]\n\
                echo '{\"value\": \"jwt\"}'\n";
    let run = format!("{exports}bash '{script}'");
    assert!(!run_with_fake(&workspace, &run, "curl", curl).status.success(), "no permission");
    let run = format!("{exports}{request}bash '{script}'");
    let refused = run_with_fake(&workspace, &run, "curl", "#!/bin/sh\nexit 22\n");
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&refused.stdout).contains("::error::GitHub issued no OIDC token")
    );
    let ran = run_with_fake(&workspace, &run, "curl", curl);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(workspace.read("temp/fleetwright-identity"), "jwt\n");
    let mode = std::fs::metadata(workspace.path("temp/fleetwright-identity")).expect("a file");
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o077, 0);
    assert!(workspace.read("env").contains("AWS_ROLE_ARN=arn:r\n"));
    assert!(workspace.read("temp/called").contains("arn:r eks update-kubeconfig --name prod"));
}

/// Runs `script` with `program` as the program `name` on the path.
fn run_with_fake(workspace: &Workspace, script: &str, name: &str, program: &str) -> Output {
    workspace.write(&format!("bin/{name}"), program);
    let bin = workspace.path("bin");
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

/// Returns the script of the step that contains a text.
fn step_script(workflow: &str, part: &str) -> String {
    let before = workflow.split_once(part).expect("a step").0;
    let begin = before.rfind("run: |\n").expect("a script") + "run: |\n".len();
    let lines = workflow[begin..].lines().take_while(|line| line.starts_with("          "));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn environment_without_reviewers_stops_apply() {
    let script = step_script(&workflow("apply"), "environments/capacity");
    let workspace = Workspace::empty();
    for (answer, code) in
        [("echo 2", 0), ("echo 0", 1), ("echo", 1), ("echo 'Not Found'", 1), ("echo 2; exit 1", 1)]
    {
        let gh = format!("#!/bin/sh\n{answer}\n");
        let ran = run_with_fake(&workspace, &script, "gh", &gh);
        assert_eq!(ran.status.code(), Some(code), "{answer}");
    }
}

#[test]
fn clusters_are_listed_and_odd_names_rejected() {
    let workspace = Workspace::empty();
    let eu = "metadata: {name: prod}\nspec: {cluster: {name: eu, region: eu-west-1}}\n";
    workspace.write("clusters/prod-eu1/fleetwright.yaml", eu);
    workspace.write("clusters/prod-us1/fleetwright.yaml", "metadata: {name: prod-us1}\n");
    workspace.write("examples/lab/fleetwright.yaml", "metadata: {name: lab}\n");
    let list = [("FLEETWRIGHT_COMMAND", "clusters"), ("FLEETWRIGHT_PATH", "clusters")];
    let listed = run_action(&workspace, &list);
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let rows = "[{\"name\":\"eu\",\"path\":\"clusters/prod-eu1\",\"region\":\"eu-west-1\"},\
                {\"name\":\"prod-us1\",\"path\":\"clusters/prod-us1\",\"region\":\"us-east-1\"}]";
    assert_eq!(output(&workspace, "clusters"), rows);
    let odd = "metadata: {name: \"us\\n::add-mask::x\"}\n";
    workspace.write("clusters/prod-us1/fleetwright.yaml", odd);
    workspace.write("outputs", "");
    assert_eq!(run_action(&workspace, &list).status.code(), Some(1));
    assert_eq!(workspace.read("outputs"), "");
}

#[test]
fn live_clusters_need_a_read_role_each() {
    let found = Command::new("jq").arg("--version").output();
    if !found.is_ok_and(|ended| ended.status.success()) {
        not_run("jq", "jq is not installed");
        return;
    }
    let script = step_script(&workflow("plan-clusters"), "--argjson roles");
    let check = |roles: &str| {
        let ran = Command::new("bash")
            .args(["-e", "-c", &script])
            .env("CLUSTERS", "[{\"name\": \"eu\"}, {\"name\": \"us\"}]")
            .env("ROLES", roles)
            .output()
            .expect("bash runs");
        (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    let error =
        |names: &str| format!("::error::add {names} to the variable FLEETWRIGHT_READ_ROLES\n");
    assert_eq!(check("{\"eu\": \"arn:1\", \"us\": \"arn:2\"}"), (Some(0), String::new()));
    assert_eq!(check("{\"eu\": \"arn:1\"}"), (Some(1), error("us")));
    assert_eq!(check(""), (Some(1), error("eu, us")));
}

#[test]
fn jobs_of_a_cluster_use_its_names_alone() {
    let path = deploy().join("workflows/plan-clusters.yml");
    let text = std::fs::read_to_string(path).expect("a workflow");
    let workflow: Json = serde_saphyr::from_str(&text).expect("YAML");
    for job in ["plan", "comment"] {
        let job = &workflow["jobs"][job];
        let rows = "${{ fromJSON(needs.clusters.outputs.clusters) }}";
        assert_eq!(job["strategy"]["matrix"]["include"], rows);
        assert_eq!(job["strategy"]["fail-fast"], false);
        for step in job["steps"].as_array().expect("steps") {
            let with = &step["with"];
            match with["command"].as_str() {
                Some("plan") => assert_eq!(with["path"], "${{ matrix.path }}"),
                Some(_) => assert_eq!(with["comment-cluster"], "${{ matrix.name }}"),
                None => {
                    let name = with["name"].as_str().unwrap_or("fleetwright");
                    assert!(["fleetwright", "capacity-plan-${{ matrix.name }}"].contains(&name));
                }
            }
            // Names of clusters are evaluated in no script.
            assert!(step["run"].is_null(), "{step}");
        }
    }
}

#[test]
fn binary_with_other_checksum_is_rejected() {
    let workspace = Workspace::empty();
    workspace.write("program/fleetwright", "#!/bin/sh\n");
    let take_with = |sha256: &str, path: &str| {
        Command::new("bash")
            .arg(deploy().join("install.sh"))
            .env_clear()
            .env("PATH", path)
            .env("FLEETWRIGHT_PROGRAM", workspace.path("program/fleetwright"))
            .env("FLEETWRIGHT_SHA256", sha256)
            .env("RUNNER_TEMP", workspace.path("temp"))
            .env("GITHUB_PATH", workspace.path("paths"))
            .output()
            .expect("bash runs")
    };
    let take = |sha256: &str| take_with(sha256, "/usr/bin:/bin");
    assert_eq!(take(&"0".repeat(64)).status.code(), Some(1));
    assert!(!take("").status.success());
    assert!(!workspace.path("paths").exists());
    let own = "a8076d3d28d21e02012b20eaf7dbf75409a6277134439025f282e368e3305abf";
    assert!(take(own).status.success());
    assert!(workspace.read("paths").trim_end().ends_with("/fleetwright-bin"));
    assert!(workspace.path("temp/fleetwright-bin/fleetwright").exists());
    // A binary on the PATH would run instead, so it is the one that is checked.
    workspace.write("own/fleetwright", "#!/bin/sh\n# another one\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(workspace.path("own/fleetwright"), mode).expect("executable");
    let path = format!("{}:/usr/bin:/bin", workspace.path("own").display());
    let refused = take_with(own, &path);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stdout).contains("own/fleetwright differs"));
    assert!(take_with("", &path).status.success(), "no checksum is given");
}

fn workflow(name: &str) -> String {
    let path = deploy().join(format!("workflows/{name}.yml"));
    std::fs::read_to_string(path).expect("a workflow")
}

/// Returns each job with its permissions.
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
            "plan-clusters",
            vec![
                build.clone(),
                ("clusters", vec![read]),
                ("plan", vec![read, identity]),
                ("planned", vec!["nothing"]),
                comment(&[]),
            ],
        ),
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
        let actual = permissions(&text);
        let actual: Vec<(&str, Vec<&str>)> = actual
            .iter()
            .map(|(job, granted)| (job.as_str(), granted.iter().map(String::as_str).collect()))
            .collect();
        assert_eq!(actual, expected, "{name}");
        // Only the environment with reviewers provides the role with write access.
        let writes = text.matches("FLEETWRIGHT_WRITE_ROLE").count();
        assert_eq!(writes, usize::from(name == "apply"), "{name}");
        if let Some((before, after)) = text.split_once("FLEETWRIGHT_WRITE_ROLE") {
            assert!(before.contains("environment: capacity") && after.contains("  comment:"));
        }
        // Compilation runs in the job without permissions.
        let jobs = text.split_once("\njobs:\n").expect("jobs").1;
        assert_eq!(jobs.matches("cargo ").count(), 1, "{name}");
    }
}

#[test]
fn workflow_actions_are_pinned_with_minimal_permissions() {
    for name in ["plan", "plan-clusters", "apply", "drift"] {
        let path = deploy().join(format!("workflows/{name}.yml"));
        let text = std::fs::read_to_string(&path).expect("a workflow");
        assert!(text.contains("\npermissions: {}\n"), "{name}: no permission applies to all jobs");
        assert!(
            !text.contains("pull_request_target") && !text.contains("contents: write"),
            "{name}"
        );
        assert_pinned(name, &text);
    }
}

/// Checks that a workflow pins every action by commit.
fn assert_pinned(name: &str, text: &str) {
    let lines = text.lines().map(|line| line.trim_start().trim_start_matches("- "));
    // A workflow of this repository has the commit of its caller.
    let uses = lines.filter_map(|line| line.strip_prefix("uses: "));
    for uses in uses.filter(|uses| !uses.starts_with("./.github/workflows/")) {
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
fn ci_checks_dependencies_and_fuzzes_readers() {
    let text = file(".github/workflows/ci.yml");
    assert!(text.contains("cargo-deny\" --all-features --config .cargo/deny.toml check\n"));
    let fuzz = text.split_once("\n  fuzz:\n").expect("a job").1;
    assert!(fuzz.contains("FUZZ_SECONDS: 60") && fuzz.contains("--test it -- fuzz::\n"));
    let deny = file(".cargo/deny.toml");
    for rule in ["unknown-registry", "unknown-git", "multiple-versions", "yanked"] {
        assert!(deny.contains(&format!("\n{rule} = \"deny\"\n")), "{rule}");
    }
}

#[test]
fn release_is_built_without_publish_rights_and_matches_chart() {
    let text = file(".github/workflows/release.yml");
    assert_pinned("release", &text);
    assert!(text.contains("\npermissions: {}\n"), "no permission applies to all jobs");
    let actual = permissions(&text);
    let (read, attests) = ("contents: read", ["attestations: write", "id-token: write"]);
    let expected = [
        ("check", vec!["actions: read", read]),
        ("build", vec![attests[0], read, attests[1]]),
        ("publish", vec!["contents: write", "packages: write"]),
        ("index", vec![attests[0], attests[1], "packages: read"]),
    ];
    let granted = |all: &[(String, Vec<String>)]| {
        let row = |(job, granted): &(String, Vec<String>)| (job.clone(), granted.join(", "));
        all.iter().map(row).collect::<Vec<_>>()
    };
    let wanted = |all: &[(&str, Vec<&str>)]| {
        let row = |(job, granted): &(&str, Vec<&str>)| ((*job).to_owned(), granted.join(", "));
        all.iter().map(row).collect::<Vec<_>>()
    };
    assert_eq!(granted(&actual), wanted(&expected));
    let (_, publish) = text.split_once("\n  publish:\n").expect("a job");
    assert!(publish.contains("\n    environment: release\n"), "a reviewer approves it");
    for name in ["build", "ci", "codeql", "scorecard"] {
        assert_pinned(name, &file(&format!(".github/workflows/{name}.yml")));
    }
    assert!(!publish.contains("docker buildx build") && !publish.contains("cargo "));
    // The builder: compilation has no identity, and what has an identity runs no code of the
    // repository.
    let builder = file(".github/workflows/build.yml");
    assert!(builder.contains("\npermissions: {}\n"), "no permission applies to all jobs");
    let expected = [("linux", vec![read]), ("macos", vec![read]), ("attest", attests.to_vec())];
    assert_eq!(granted(&permissions(&builder)), wanted(&expected));
    let (_, attest) = builder.split_once("\n  attest:\n").expect("a job");
    assert!(!attest.contains("actions/checkout") && !attest.contains("cargo "));
    // The chart has the version of the program and the repository of the image.
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
