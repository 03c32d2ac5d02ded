//! Repositories whose settings list who may change them, signed by real keys through real git.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::binary::{CommandResult, Workspace};

const SETTINGS: &str = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: { name: shop }\n\
                        spec:\n  cluster: { name: shop, region: us-east-1 }\n  world: empty\n";
const WORKLOAD: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: { name: web }\nspec:\n  \
                        replicas: 1\n  selector: { matchLabels: { app: web } }\n  template:\n    \
                        metadata: { labels: { app: web } }\n    spec:\n      containers: [{ name: \
                        web, image: web, resources: { requests: { cpu: 1, memory: 1Gi } } }]\n";

/// A repository, and keys beside it.
struct SignedRepository {
    place: Workspace,
    keys: tempfile::TempDir,
}

impl SignedRepository {
    /// Returns an empty one; `None` where there is no git or ssh-keygen to make it with.
    fn new(keys: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        for name in keys {
            let arguments = ["-q", "-t", "ed25519", "-N", "", "-f", name];
            if !ran("ssh-keygen", &arguments, folder.path()) {
                return None;
            }
        }
        let mut place = Workspace::empty();
        let path = std::env::var("PATH").unwrap_or_default();
        place.variables.insert("PATH".to_owned(), path);
        if !ran("git", &["init", "-q", "-b", "main"], place.root()) {
            return None;
        }
        place.write("web.yaml", WORKLOAD);
        Some(Self { place, keys: folder })
    }

    /// Writes the settings, with these keys as signers.
    fn list(&self, names: &[&str]) {
        let signer = |name: &&str| {
            let key = self.keys.path().join(format!("{name}.pub"));
            let key = std::fs::read_to_string(key).expect("a key");
            format!("{{ name: {name}, ssh: \"{}\" }}", key.trim())
        };
        let signers: Vec<String> = names.iter().map(signer).collect();
        let text = format!("{SETTINGS}  signers: [{}]\n", signers.join(", "));
        self.place.write("fleetwright.yaml", &text);
    }

    /// Commits every file, signed by that key, if any.
    fn commit(&self, key: Option<&str>) {
        assert!(ran("git", &["add", "-A"], self.place.root()));
        let path = key.map(|name| self.keys.path().join(name).display().to_string());
        let signing = format!("user.signingkey={}", path.as_deref().unwrap_or_default());
        let sign = if path.is_some() { "-S" } else { "--no-gpg-sign" };
        let who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"];
        let how = ["-c", "gpg.format=ssh", "-c", &signing, "commit", "-q", sign, "-m", "a change"];
        let arguments: Vec<&str> = who.into_iter().chain(how).collect();
        assert!(ran("git", &arguments, self.place.root()), "{arguments:?}");
    }

    fn plan(&self) -> CommandResult {
        self.place.run(&["plan", "--no-color"])
    }

    /// Holds the plan to an error that says why the newest commit, or one before it, does not count.
    fn refused(&self, rule: &str, why: &str) {
        let CommandResult { code, out, err } = self.plan();
        let said = format!("{out}{err}");
        assert!(code == Some(1) && said.contains(why), "{rule}: {code:?}\n{said}");
    }

    fn taken(&self, rule: &str) {
        let CommandResult { code, out, err } = self.plan();
        assert!(code == Some(0) && !out.contains("signed"), "{rule}: {code:?}\n{out}{err}");
    }
}

fn ran(program: &str, arguments: &[&str], folder: &Path) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).env("HOME", folder);
    command.env("GIT_CONFIG_NOSYSTEM", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn only_commits_of_listed_signers_are_planned() {
    let Some(shop) = SignedRepository::new(&["ops", "dev"]) else {
        use std::io::Write as _;
        let _ = std::io::stderr().write_all(b"NOT SHOWN: git or ssh-keygen is not installed\n");
        return;
    };
    shop.list(&["ops"]);
    shop.commit(Some("ops"));
    shop.taken("the first list is signed by one of its signers");

    shop.place.write("web.yaml", &WORKLOAD.replace("replicas: 1", "replicas: 2"));
    shop.refused("files that are in no commit", "the files differ from the commit");
    shop.commit(Some("dev"));
    shop.refused("a key that nobody listed", "does not count: it is not signed by any of ops");

    assert!(ran("git", &["reset", "-q", "--soft", "HEAD~1"], shop.place.root()));
    shop.commit(None);
    shop.refused("no signature", "does not count: it is not signed");

    assert!(ran("git", &["reset", "-q", "--soft", "HEAD~1"], shop.place.root()));
    shop.list(&["ops", "dev"]);
    shop.commit(Some("dev"));
    shop.refused("whoever lists himself", "does not count: it is not signed by any of ops");

    assert!(ran("git", &["reset", "-q", "--soft", "HEAD~1"], shop.place.root()));
    shop.commit(Some("ops"));
    shop.taken("a signer lists another");
    shop.place.write("web.yaml", &WORKLOAD.replace("replicas: 1", "replicas: 3"));
    shop.commit(Some("dev"));
    shop.taken("and that one counts from then on");

    // What was pushed between two signed commits does not count because the last one is signed.
    shop.place.write("web.yaml", &WORKLOAD.replace("replicas: 1", "replicas: 400"));
    shop.commit(None);
    shop.place.write("web.yaml", &WORKLOAD.replace("replicas: 1", "replicas: 401"));
    shop.commit(Some("ops"));
    shop.refused("an unsigned commit in between", "does not count: it is not signed");
}
