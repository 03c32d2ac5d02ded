//! Repositories with trusted signers, with real keys and the real git.

use std::path::Path;
use std::process::{Command, Stdio};

use fleetwright::plan::{Plan, set_identity};

use crate::binary::{CommandResult, Workspace};
use crate::missing_tool::not_run;

const SETTINGS: &str = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: { name: shop }\n\
                        spec:\n  cluster: { name: shop, region: us-east-1 }\n  world: empty\n";
const WORKLOAD: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: { name: web }\nspec:\n  \
                        replicas: 1\n  selector: { matchLabels: { app: web } }\n  template:\n    \
                        metadata: { labels: { app: web } }\n    spec:\n      containers: [{ name: \
                        web, image: web, resources: { requests: { cpu: 1, memory: 1Gi } } }]\n";

/// A repository, with keys in another directory.
struct SignedRepository {
    workspace: Workspace,
    keys: tempfile::TempDir,
}

impl SignedRepository {
    /// Creates a repository. Returns `None`, with the reason on stderr, if git or ssh-keygen is not installed.
    fn new(keys: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        for name in keys {
            let arguments = ["-q", "-t", "ed25519", "-N", "", "-f", name];
            if !succeeds("ssh-keygen", &arguments, folder.path()) {
                not_run("ssh-keygen", "ssh-keygen is not installed");
                return None;
            }
        }
        let mut workspace = Workspace::empty();
        let path = std::env::var("PATH").unwrap_or_default();
        workspace.variables.insert("PATH".to_owned(), path);
        if !succeeds("git", &["init", "-q", "-b", "main"], workspace.root()) {
            not_run("git", "git is not installed");
            return None;
        }
        workspace.write("web.yaml", WORKLOAD);
        Some(Self { workspace, keys: folder })
    }

    /// Writes the settings with these keys as trusted signers.
    fn write_signers(&self, names: &[&str]) {
        let signer = |name: &&str| {
            let key = self.keys.path().join(format!("{name}.pub"));
            let key = std::fs::read_to_string(key).expect("a key");
            format!("{{ name: {name}, ssh: \"{}\" }}", key.trim())
        };
        let signers: Vec<String> = names.iter().map(signer).collect();
        let text = format!("{SETTINGS}  signers: [{}]\n", signers.join(", "));
        self.workspace.write("fleetwright.yaml", &text);
    }

    /// Commits all files, signed with the key if one is given.
    fn commit(&self, key: Option<&str>) {
        assert!(succeeds("git", &["add", "-A"], self.workspace.root()));
        let path = key.map(|name| self.keys.path().join(name).display().to_string());
        let signing = format!("user.signingkey={}", path.as_deref().unwrap_or_default());
        let sign = if path.is_some() { "-S" } else { "--no-gpg-sign" };
        let author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
        let signature =
            ["-c", "gpg.format=ssh", "-c", &signing, "commit", "-q", sign, "-m", "a change"];
        let arguments: Vec<&str> = author.into_iter().chain(signature).collect();
        assert!(succeeds("git", &arguments, self.workspace.root()), "{arguments:?}");
    }

    fn plan(&self) -> CommandResult {
        self.workspace.run(&["plan", "--no-color"])
    }

    /// Checks that the plan fails with a reason.
    fn assert_refused(&self, rule: &str, why: &str) {
        let CommandResult { code, out, err } = self.plan();
        let output = format!("{out}{err}");
        assert!(code == Some(1) && output.contains(why), "{rule}: {code:?}\n{output}");
    }

    fn assert_accepted(&self, rule: &str) {
        let CommandResult { code, out, err } = self.plan();
        assert!(code == Some(0) && !out.contains("signed"), "{rule}: {code:?}\n{out}{err}");
    }
}

fn succeeds(program: &str, arguments: &[&str], folder: &Path) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env("HOME", folder);
    command.env("GIT_CONFIG_NOSYSTEM", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn only_commits_of_listed_signers_are_planned() {
    let Some(shop) = SignedRepository::new(&["ops", "dev"]) else { return };
    shop.write_signers(&["ops"]);
    shop.commit(Some("ops"));
    shop.assert_accepted("one of the listed signers signs the first list");

    shop.workspace.write("web.yaml", &WORKLOAD.replace("replicas: 1", "replicas: 2"));
    shop.assert_refused("uncommitted files", "the files differ from the commit");
    shop.commit(Some("dev"));
    shop.assert_refused(
        "a key that is not listed",
        "does not count: it is not signed by any of ops",
    );

    assert!(succeeds("git", &["reset", "-q", "--soft", "HEAD~1"], shop.workspace.root()));
    shop.commit(None);
    shop.assert_refused("no signature", "does not count: it is not signed");

    assert!(succeeds("git", &["reset", "-q", "--soft", "HEAD~1"], shop.workspace.root()));
    shop.write_signers(&["ops", "dev"]);
    shop.commit(Some("dev"));
    shop.assert_refused(
        "a signer who lists their own key",
        "does not count: it is not signed by any of ops",
    );

    assert!(succeeds("git", &["reset", "-q", "--soft", "HEAD~1"], shop.workspace.root()));
    shop.commit(Some("ops"));
    shop.assert_accepted("a trusted signer lists another signer");
    shop.workspace.write("web.yaml", &WORKLOAD.replace("replicas: 1", "replicas: 3"));
    shop.commit(Some("dev"));
    shop.assert_accepted("the new signer is trusted in later commits");

    // A signed commit does not make an earlier unsigned commit valid.
    shop.workspace.write("web.yaml", &WORKLOAD.replace("replicas: 1", "replicas: 400"));
    shop.commit(None);
    shop.workspace.write("web.yaml", &WORKLOAD.replace("replicas: 1", "replicas: 401"));
    shop.commit(Some("ops"));
    shop.assert_refused("an unsigned commit in between", "does not count: it is not signed");
}

/// A plan file does not decide whether its commits are signed, and `--guard-ref` counts in `apply` too.
#[test]
fn edited_plan_of_an_unsigned_commit_is_refused() {
    let Some(shop) = SignedRepository::new(&["ops"]) else { return };
    let world = ["--world", "sim:world", "--at", "2026-09-01T10:00:00Z"];
    shop.write_signers(&["ops"]);
    shop.commit(Some("ops"));
    shop.workspace.write("web.yaml", &WORKLOAD.replace("replicas: 1", "replicas: 2"));
    shop.commit(None);
    let planned = shop.workspace.run(&[&["plan", "--out", "plan.json"][..], &world].concat());
    assert_eq!(planned.code, Some(1), "{}", planned.err);
    let mut plan = Plan::from_json(&shop.workspace.read("plan.json")).expect("a plan");
    (plan.errored, plan.applyable) = (false, true);
    plan.capacity.diagnostics.clear();
    set_identity(&mut plan);
    shop.workspace.write("plan.json", &plan.to_json());
    let apply = ["apply", "plan.json", "--auto-approve"];
    let refused = shop.workspace.run(&apply);
    assert!(
        refused.code == Some(1) && refused.err.contains("does not count: it is not signed"),
        "{refused:?}"
    );
    // An operator who names the commit trusts it.
    let trusting = ["--guard-ref", "HEAD"];
    let plan = [&["plan", "--out", "plan.json"][..], &world, &trusting].concat();
    let planned = shop.workspace.run(&plan);
    assert_eq!(planned.code, Some(0), "{}{}", planned.out, planned.err);
    let applied = shop.workspace.run(&[&apply[..], &trusting].concat());
    assert_eq!(applied.code, Some(0), "{}", applied.err);
}
