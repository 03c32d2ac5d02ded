//! Runs the jobs of `deploy/gitlab` and the workflow of `deploy/atlantis` over an embedded world.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value as Json;
use tempfile::TempDir;

use crate::binary::Workspace;

const MARKER: &str = "<!-- fleetwright 5 -->";

/// Stands for curl: records arguments and input. Answers with the user 3 and the files `page-N`.
const CURL: &str = "#!/bin/sh
here=$(dirname \"$0\")
echo \"$*\" >\"$here/arguments\"
for last; do :; done
case \" $* \" in
  *' --data '*) cat >\"$here/input\" ;;
  *'/user ') echo '{\"id\": 3}' ;;
  *) cat \"$here/page-${last##*page=}\" 2>/dev/null || echo '[]' ;;
esac
";

/// A repository with a commit and a change, and a directory for programs.
struct Repository {
    checkout: Workspace,
    programs: TempDir,
    base: String,
}

impl Repository {
    fn new() -> Self {
        let checkout = Workspace::example("quickstart");
        let programs = tempfile::tempdir().expect("a directory");
        let curl = programs.path().join("curl");
        fs::write(&curl, CURL).expect("written");
        fs::set_permissions(&curl, fs::Permissions::from_mode(0o755)).expect("set");
        let mut repository = Self { checkout, programs, base: String::new() };
        repository.bash("git init --quiet --initial-branch main . && git add --all && git commit --quiet -m Base");
        let base = repository.bash("git rev-parse HEAD");
        repository.base.push_str(base.trim());
        repository
            .bash("git update-ref refs/remotes/origin/main HEAD && git switch --quiet -c more");
        repository.bash(
            "sed -i 's/replicas: 12/replicas: 18/' apps/shop.yaml && git commit --quiet -am More",
        );
        repository
    }

    fn command(&self, script: &str, variables: &BTreeMap<&str, String>) -> Output {
        let program = Path::new(env!("CARGO_BIN_EXE_fleetwright")).parent().expect("a directory");
        let path = std::env::var("PATH").unwrap_or_default();
        let own = self.programs.path().display();
        Command::new("bash")
            .args(["-eo", "pipefail", "-c", script])
            .current_dir(self.checkout.root())
            .env_clear()
            .env("PATH", format!("{own}:{}:{path}", program.display()))
            .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "Test")))
            .envs(
                ["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "test@example.com")),
            )
            .envs(variables)
            .stdin(Stdio::null())
            .output()
            .expect("bash runs")
    }

    fn bash(&self, script: &str) -> String {
        let ended = self.command(script, &BTreeMap::new());
        assert!(ended.status.success(), "{script}: {}", text(&ended));
        String::from_utf8(ended.stdout).expect("UTF-8")
    }

    /// Runs a script that must end with the code. Returns its output.
    fn expect(&self, code: i32, script: &str, variables: &BTreeMap<&str, String>) -> String {
        let ended = self.command(script, variables);
        assert_eq!(ended.status.code(), Some(code), "{script}\n{}", text(&ended));
        text(&ended)
    }

    /// Runs the job that writes the note, where the API lists these pages of notes. Returns method
    /// and address, and the text of the note.
    fn note(&self, variables: &BTreeMap<&str, String>, pages: [&str; 2]) -> (String, String) {
        for (number, notes) in (1..).zip(pages) {
            let page = self.programs.path().join(format!("page-{number}"));
            fs::write(page, notes).expect("written");
        }
        self.expect(0, &gitlab_script("capacity-note"), variables);
        let read = |name: &str| fs::read_to_string(self.programs.path().join(name)).expect(name);
        let input: Json = serde_json::from_str(&read("input")).expect("JSON");
        (read("arguments"), input["body"].as_str().expect("text").to_owned())
    }
}

fn text(ended: &Output) -> String {
    [&ended.stdout, &ended.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

fn yaml(path: &str) -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path);
    serde_saphyr::from_str(&fs::read_to_string(path).expect("readable")).expect("YAML")
}

/// Returns a value of a job, or of the job that it extends.
fn job_value<'a>(jobs: &'a Json, name: &str, key: &str) -> &'a Json {
    let job = &jobs[name];
    match job["extends"].as_str() {
        Some(parent) if job[key].is_null() => job_value(jobs, parent, key),
        _ => &job[key],
    }
}

/// Returns the script that GitLab runs for a job.
fn gitlab_script(name: &str) -> String {
    let jobs = yaml("gitlab/capacity.gitlab-ci.yml");
    let parts = ["before_script", "script"].map(|key| job_value(&jobs, name, key).clone());
    let lines = parts.iter().filter_map(Json::as_array).flatten();
    lines.map(|line| line.as_str().expect("text")).collect::<Vec<_>>().join("\n")
}

fn has_jq() -> bool {
    let found =
        Command::new("jq").arg("--version").output().is_ok_and(|ended| ended.status.success());
    if !found {
        let _ = std::io::stderr().write_all(b"not run: jq is not installed\n");
    }
    found
}

#[test]
fn gitlab_jobs_plan_note_and_apply_the_approved_digest() {
    if !has_jq() {
        return;
    }
    let repository = Repository::new();
    let mut variables: BTreeMap<&str, String> = [
        ("CI_API_V4_URL", "https://gitlab.example.com/api/v4"),
        ("CI_PROJECT_ID", "5"),
        ("CI_MERGE_REQUEST_IID", "7"),
        ("CI_PIPELINE_URL", "https://gitlab.example.com/pipelines/1"),
        ("FLEETWRIGHT_NOTE_TOKEN", "token"),
        ("FLEETWRIGHT_WORLD", "sim:world"),
        ("FLEETWRIGHT_BASE", repository.base.as_str()),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into();
    let (arguments, body) = repository.note(&variables, ["[]"; 2]);
    assert!(
        arguments.contains("--request POST") && body.contains("Planning failed"),
        "{arguments}"
    );

    let shown = repository.expect(0, &gitlab_script("capacity-plan"), &variables);
    assert!(shown.contains("Plan: 1 to add"), "{shown}");
    let (arguments, body) = repository.note(&variables, ["[]"; 2]);
    assert!(arguments.ends_with("/projects/5/merge_requests/7/notes\n"), "{arguments}");
    assert!(
        body.contains("Caused by this change") && body.ends_with(&format!("{MARKER}\n")),
        "{body}"
    );
    let note = |id, author, body: &str| {
        serde_json::json!([{ "id": id, "author": { "id": author }, "body": body }]).to_string()
    };
    let (foreign, own) = (note(8, 4, MARKER), note(9, 3, MARKER));
    let (arguments, _) = repository.note(&variables, [&foreign, &note(1, 3, "x")]);
    assert!(arguments.contains("--request POST"), "a note of another user: {arguments}");
    let (arguments, _) = repository.note(&variables, [&foreign, &own]);
    assert!(
        arguments.contains("--request PUT") && arguments.ends_with("/notes/9\n"),
        "{arguments}"
    );

    repository.expect(0, &gitlab_script("capacity-plan-merged"), &variables);
    let digest = repository.checkout.read("capacity/plan.env");
    let digest = digest.trim().strip_prefix("FLEETWRIGHT_DIGEST=").expect("the digest").to_owned();
    let apply = gitlab_script("capacity-apply");
    variables.insert("FLEETWRIGHT_DIGEST", format!("sha256:{:064}", 0));
    repository.expect(3, &apply, &variables);
    variables.insert("FLEETWRIGHT_DIGEST", digest);
    let applied = repository.expect(0, &apply, &variables);
    assert!(applied.contains("Apply complete!"), "{applied}");
    assert!(repository.checkout.read("capacity/receipt.json").contains("\"verdict\": \"applied\""));
    repository.expect(0, &gitlab_script("capacity-drift"), &variables);
}

/// A merge request pipeline runs the file of its branch.
#[test]
fn gitlab_jobs_of_merge_requests_have_the_read_role() {
    let jobs = yaml("gitlab/capacity.gitlab-ci.yml");
    let names =
        ["plan", "note", "plan-merged", "apply", "drift"].map(|name| format!("capacity-{name}"));
    let visible = jobs.as_object().expect("jobs").keys().filter(|name| !name.starts_with('.'));
    assert!(
        visible.eq({
            let mut names = names.to_vec();
            names.sort();
            names
        }
        .iter())
    );
    for name in &names {
        let rules = job_value(&jobs, name, "rules").to_string();
        let role = job_value(&jobs, name, "variables")["FLEETWRIGHT_ROLE"].as_str();
        let expected = match name.as_str() {
            "capacity-apply" => Some("$FLEETWRIGHT_WRITE_ROLE"),
            "capacity-note" => None,
            _ => Some("$FLEETWRIGHT_READ_ROLE"),
        };
        assert_eq!(role, expected, "{name}");
        assert_eq!(
            rules.contains("CI_DEFAULT_BRANCH"),
            ["capacity-apply", "capacity-plan-merged"].contains(&name.as_str())
        );
        if rules.contains("CI_DEFAULT_BRANCH") || name == "capacity-plan" {
            let has_base = rules.contains("FLEETWRIGHT_BASE") || name == "capacity-apply";
            assert!(has_base, "{name}: {rules}");
        }
    }
    let apply = &jobs["capacity-apply"];
    assert_eq!(
        (&apply["rules"][0]["when"], &apply["environment"]["name"]),
        (&"manual".into(), &"capacity".into())
    );
}

#[test]
fn atlantis_workflow_plans_and_applies() {
    let repository = Repository::new();
    let config = yaml("atlantis/repos.yaml");
    let repo = &config["repos"][0];
    assert_eq!(repo["allow_custom_workflows"], false);
    let workflow = &config["workflows"][repo["workflow"].as_str().expect("a name")];
    let plan_file = repository.programs.path().join("capacity.tfplan");
    let mut variables: BTreeMap<&str, String> = [
        ("BASE_BRANCH_NAME", "main".to_owned()),
        ("FLEETWRIGHT_WORLD", "sim:world".to_owned()),
        ("PLANFILE", plan_file.display().to_string()),
    ]
    .into();
    let mut run = |stage: &str| {
        let mut shown = String::new();
        for step in workflow[stage]["steps"].as_array().expect("steps") {
            if let Some(command) = step["env"]["command"].as_str() {
                assert_eq!(step["env"]["name"], "FLEETWRIGHT_BASE");
                let value = repository.expect(0, command, &variables).trim().to_owned();
                variables.insert("FLEETWRIGHT_BASE", value);
            } else {
                let script = step["run"].as_str().expect("a command");
                shown = repository.expect(0, script, &variables);
            }
        }
        shown
    };
    assert!(run("plan").contains("Plan: 1 to add, 0 to change, 2 to destroy."));
    assert!(run("apply").contains("Apply complete!"));
    assert!(run("plan").contains("Plan: 0 to add, 0 to change, 0 to destroy."));
    let project = yaml("atlantis/atlantis.yaml");
    assert_eq!((&project["version"], &project["projects"][0]["dir"]), (&3.into(), &".".into()));
}
