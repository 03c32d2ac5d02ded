//! Runs the jobs of `deploy/gitlab` and the workflow of `deploy/atlantis` over an embedded world.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value as Json;
use tempfile::TempDir;

use crate::binary::Workspace;
use crate::missing_tool::not_run;

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
}

/// A GitLab with one merge request, whose token is of the user `bot`.
struct FakeGitLab {
    address: String,
    /// Method and path of each request, and its body.
    requests: Receiver<(String, Json)>,
}

impl FakeGitLab {
    /// Starts the server, with a note of another user.
    fn start(foreign: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}/api/v4", listener.local_addr().expect("an address"));
        let (sender, requests) = channel();
        let note = |id: usize, author: &str, body: &Json| serde_json::json!({ "id": id, "author": { "username": author }, "body": body });
        let mut notes = vec![note(0, "mallory", &foreign.into())];
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let (line, body) = read_request(&stream);
                let path = line.split(' ').nth(1).unwrap_or_default();
                let last = path.rsplit('/').next().and_then(|id| id.parse::<usize>().ok());
                let reply = match (line.split(' ').next(), last) {
                    (Some("GET"), _) if path.ends_with("/user") => {
                        serde_json::json!({ "username": "bot" })
                    }
                    (Some("GET"), _) => Json::from(notes.clone()),
                    (Some("PUT"), Some(id)) => {
                        notes[id] = note(id, "bot", &body["body"]);
                        Json::Null
                    }
                    (Some("POST"), _) if path.ends_with("/notes") => {
                        notes.push(note(notes.len(), "bot", &body["body"]));
                        Json::Null
                    }
                    _ => Json::Null,
                };
                let text = reply.to_string();
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
                    text.len()
                );
                let _ = sender.send((line, body));
            }
        });
        Self { address, requests }
    }

    /// Returns the writes since the last call.
    fn writes(&self) -> Vec<(String, Json)> {
        self.requests.try_iter().filter(|(line, _)| !line.starts_with("GET")).collect()
    }
}

fn read_request(stream: &TcpStream) -> (String, Json) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a request");
        if line.trim().is_empty() {
            break;
        }
        if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = n.trim().parse().expect("a length");
        }
        if first.is_empty() {
            line.trim_end().trim_end_matches(" HTTP/1.1").clone_into(&mut first);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    (first, serde_json::from_slice(&body).unwrap_or_default())
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
        not_run("jq", "jq is not installed");
    }
    found
}

#[test]
fn gitlab_jobs_plan_note_and_apply_the_approved_digest() {
    if !has_jq() {
        return;
    }
    let repository = Repository::new();
    // Another user may copy the first line of a note.
    let gitlab = FakeGitLab::start("<!-- fleetwright v1 {\"cluster\":\"quickstart\"} -->\n");
    let mut variables: BTreeMap<&str, String> = [
        ("CI_API_V4_URL", gitlab.address.as_str()),
        ("CI_PROJECT_PATH", "acme/fleet"),
        ("CI_COMMIT_SHA", "4f2c9a1"),
        ("CI_MERGE_REQUEST_IID", "7"),
        ("FLEETWRIGHT_NOTE_TOKEN", "token"),
        ("FLEETWRIGHT_WORLD", "sim:world"),
        ("FLEETWRIGHT_BASE", repository.base.as_str()),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into();
    let note = || {
        repository.expect(0, &gitlab_script("capacity-note"), &variables);
        let writes = gitlab.writes();
        let [(status, state), (line, body)] = &writes[..] else { panic!("{writes:?}") };
        assert_eq!(status, "POST /api/v4/projects/acme%2Ffleet/statuses/4f2c9a1");
        let text = |value: &Json| value.as_str().expect("text").to_owned();
        (text(&state["state"]), line.clone(), text(&body["body"]))
    };
    let notes = "/api/v4/projects/acme%2Ffleet/merge_requests/7/notes";
    let (state, line, body) = note();
    assert_eq!((state.as_str(), line), ("failed", format!("POST {notes}")));
    assert!(body.contains("Planning failed"), "{body}");

    let shown = repository.expect(0, &gitlab_script("capacity-plan"), &variables);
    assert!(shown.contains("Plan: 1 to add"), "{shown}");
    let (state, line, body) = note();
    assert_eq!((state.as_str(), line), ("success", format!("PUT {notes}/1")));
    assert!(body.contains("Caused by this change"), "{body}");
    let unchanged = repository.expect(0, &gitlab_script("capacity-note"), &variables);
    assert!(unchanged.contains("The comment is up to date."), "{unchanged}");
    // One of several clusters has a commit status of its own.
    gitlab.writes();
    let named = "GITLAB_TOKEN=token fleetwright comment --host gitlab --plan capacity/plan.json \
                 --status 4f2c9a1 --cluster quickstart";
    repository.expect(0, named, &variables);
    let writes = gitlab.writes();
    let [(_, status)] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!(status["name"], "fleetwright/plan/quickstart");

    repository.expect(0, &gitlab_script("capacity-plan-merged"), &variables);
    let outputs = repository.checkout.read("capacity/plan.env");
    let output = |name: &str| {
        let mut values = outputs.lines().filter_map(|line| line.strip_prefix(name));
        values.next().expect("an output").to_owned()
    };
    let (digest, id) = (output("FLEETWRIGHT_DIGEST="), output("FLEETWRIGHT_PLAN_ID="));
    variables.insert("FLEETWRIGHT_PLAN_ID", id);
    let apply = gitlab_script("capacity-apply");
    variables.insert("FLEETWRIGHT_DIGEST", format!("sha256:{:064}", 0));
    repository.expect(3, &apply, &variables);
    variables.insert("FLEETWRIGHT_DIGEST", digest);
    let id = variables.insert("FLEETWRIGHT_PLAN_ID", "0".repeat(64)).expect("an ID");
    repository.expect(3, &apply, &variables);
    variables.insert("FLEETWRIGHT_PLAN_ID", id);
    let applied = repository.expect(0, &apply, &variables);
    assert!(applied.contains("Apply complete!"), "{applied}");
    assert!(repository.checkout.read("capacity/receipt.json").contains("\"verdict\": \"applied\""));
    repository.expect(0, &gitlab_script("capacity-drift"), &variables);
}

/// Runs the job of the page for many clusters, for one of them.
#[test]
fn gitlab_matrix_has_a_status_and_a_note_per_cluster() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/how-to/many-clusters.md");
    let page = fs::read_to_string(page).expect("readable");
    let mut blocks = page.split("```yaml\n").filter_map(|block| block.split("```").next());
    let block = blocks.find(|block| block.starts_with("capacity-plans:")).expect("a job");
    let jobs: Json = serde_saphyr::from_str(block).expect("YAML");
    let lines = jobs["capacity-plans"]["script"].as_array().expect("lines").iter();
    let script = lines.map(|line| line.as_str().expect("text")).collect::<Vec<_>>().join("\n");
    let repository = Repository::new();
    repository.bash(
        "mkdir -p clusters/quickstart && git ls-tree --name-only HEAD | \
         xargs -I{} git mv {} clusters/quickstart/ && git commit --quiet -m Move",
    );
    let gitlab = FakeGitLab::start("Hello");
    let mut variables: BTreeMap<&str, String> = [
        ("CI_API_V4_URL", gitlab.address.as_str()),
        ("CI_PROJECT_PATH", "acme/fleet"),
        ("CI_COMMIT_SHA", "4f2c9a1"),
        ("CI_MERGE_REQUEST_IID", "7"),
        ("CI_MERGE_REQUEST_DIFF_BASE_SHA", "HEAD"),
        ("FLEETWRIGHT_NOTE_TOKEN", "token"),
        ("FLEETWRIGHT_CLUSTER", "quickstart"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into();
    let notes = "/api/v4/projects/acme%2Ffleet/merge_requests/7/notes";
    for (world, code, state, line, part) in [
        ("empty", 0, "success", format!("POST {notes}"), "Fleetwright plan for `quickstart`"),
        ("none.json", 1, "failed", format!("PUT {notes}/1"), "`quickstart`: Planning failed"),
    ] {
        variables.insert("FLEETWRIGHT_WORLD", world.to_owned());
        repository.expect(code, &script, &variables);
        let writes = gitlab.writes();
        let [(_, status), (write, body)] = &writes[..] else { panic!("{writes:?}") };
        assert_eq!(
            (&status["name"], &status["state"]),
            (&"fleetwright/plan/quickstart".into(), &state.into())
        );
        assert_eq!(*write, line);
        assert!(body["body"].as_str().expect("text").contains(part), "{body}");
    }
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
