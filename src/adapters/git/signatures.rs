//! Verifies commit signatures.
//!
//! `ssh-keygen` and `gpg` verify signatures, each against the listed keys only and in a separate
//! directory: no key ring, agent, key server or trust setting of the user is involved. Both
//! programs are available wherever Git is, and avoid a second implementation of signature rules.
//!
//! A commit cannot authorize its own signer: the accepted signers come from its parents. The
//! history therefore contains all commits that lead to the commit that was read. Otherwise its
//! parent could have authorized anyone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use git2::{Oid, Repository};

use super::revision;
use crate::adapters::subprocess::{self, RunLimits};
use crate::model::desired::{Signer, SignerKey};

/// Name of the settings file.
const SETTINGS_FILE: &str = "fleetwright.yaml";

/// Maximum number of commits. A plan over more unreviewed commits is not made.
pub(super) const COMMITS_MAX: usize = 500;

/// The commits that are needed to verify a commit.
#[derive(Debug, Clone, Default)]
pub struct SignedHistory {
    /// The commit and its ancestors, nearest first, at most 500.
    pub commits: Vec<SignedCommit>,
}

/// A commit with the data for its verification.
#[derive(Debug, Clone)]
pub struct SignedCommit {
    /// Commit hash in hex.
    pub id: String,
    /// Signature and signed data, or `None` without a signature.
    pub signature: Option<(Vec<u8>, Vec<u8>)>,
    /// Content of the settings file, if it exists.
    pub settings: Option<Arc<[u8]>>,
    /// Parent commits: several for a merge, none for the first commit.
    pub parents: Vec<ParentCommit>,
}

/// A parent commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParentCommit {
    /// The shallow clone does not contain it.
    Absent,
    /// Commit hash, and the settings file if it exists.
    Present(String, Option<Arc<[u8]>>),
}

/// Collects the commits for a verification. `directory` contains the settings file.
pub(super) fn signed_history(
    repository: &Repository,
    commit: Oid,
    directory: &Path,
) -> Option<SignedHistory> {
    let mut settings: BTreeMap<Oid, Option<Arc<[u8]>>> = BTreeMap::new();
    let mut open = VecDeque::from([commit]);
    let mut seen = BTreeSet::from([commit]);
    let mut history = SignedHistory::default();
    while let Some(id) = open.pop_front() {
        if history.commits.len() >= COMMITS_MAX {
            break;
        }
        let object = repository.find_commit(id).ok()?;
        let mut of = |id| {
            let known = settings.entry(id);
            known.or_insert_with(|| settings_at(repository, id, directory)).clone()
        };
        let signature = repository.extract_signature(&id, None).ok();
        let mut parents: Vec<ParentCommit> = Vec::new();
        for parent in object.parent_ids() {
            if repository.find_commit(parent).is_err() {
                parents.push(ParentCommit::Absent);
                continue;
            }
            parents.push(ParentCommit::Present(parent.to_string(), of(parent)));
            if seen.insert(parent) {
                open.push_back(parent);
            }
        }
        if parents.is_empty() && repository.is_shallow() && is_shallow_boundary(repository, id) {
            parents.push(ParentCommit::Absent);
        }
        history.commits.push(SignedCommit {
            id: id.to_string(),
            signature: signature.map(|(signature, signed)| (signature.to_vec(), signed.to_vec())),
            settings: of(id),
            parents,
        });
    }
    Some(history)
}

/// Returns the settings of a commit. A link is followed: its target is what the commit is planned
/// by.
fn settings_at(repository: &Repository, commit: Oid, directory: &Path) -> Option<Arc<[u8]>> {
    let content = revision::file_content(repository, commit, directory, SETTINGS_FILE)?;
    Some(content.into())
}

impl SignedHistory {
    /// Returns whether the clone lacks commits that may list signers.
    pub(super) fn is_truncated(&self) -> bool {
        self.is_shallow() && self.commits.iter().any(|commit| names_signers(&commit.settings))
    }

    /// Returns whether the clone lacks a parent of a commit.
    pub fn is_shallow(&self) -> bool {
        self.commits.iter().any(|commit| commit.parents.contains(&ParentCommit::Absent))
    }
}

/// Returns whether settings may list signers, even if they cannot be read.
pub fn names_signers(settings: &Option<Arc<[u8]>>) -> bool {
    /// Settings key that lists signers.
    const SIGNERS_KEY: &[u8] = b"signers";
    let mut parts = settings.iter().flat_map(|text| text.windows(SIGNERS_KEY.len()));
    parts.any(|part| part == SIGNERS_KEY)
}

/// Returns whether a shallow clone omits the parents of `commit`.
fn is_shallow_boundary(repository: &Repository, commit: Oid) -> bool {
    let shallow = fs::read_to_string(repository.path().join("shallow")).unwrap_or_default();
    shallow.lines().any(|line| line == commit.to_string())
}

impl SignedCommit {
    /// Returns the name of the signer.
    ///
    /// # Errors
    /// Returns the reason if there is no signature, no program to verify it, or no matching key.
    pub fn verify_signer<'s>(&self, signers: &'s [Signer]) -> Result<&'s str, String> {
        let (signature, signed) = self.signature.as_ref().ok_or("it is not signed")?;
        let folder = tempfile::Builder::new().prefix("fleetwright-").tempdir();
        let folder =
            folder.map_err(|error| format!("cannot create a temporary directory: {error}"))?;
        let is_ssh = signature.starts_with(b"-----BEGIN SSH SIGNATURE-----");
        let unwritten = |error: std::io::Error| format!("it cannot be checked: {error}");
        fs::write(folder.path().join("signature"), signature).map_err(unwritten)?;
        fs::write(folder.path().join("signed"), signed).map_err(unwritten)?;
        for (at, signer) in signers.iter().enumerate() {
            let own = folder.path().join(at.to_string());
            fs::create_dir(&own).map_err(unwritten)?;
            let matches = match &signer.key {
                SignerKey::Ssh(key) if is_ssh => verify_ssh(key, folder.path(), &own)?,
                SignerKey::Gpg(key) if !is_ssh => verify_gpg(key, folder.path(), &own)?,
                SignerKey::Ssh(_) | SignerKey::Gpg(_) => false,
            };
            if matches {
                return Ok(&signer.name);
            }
        }
        let names: Vec<&str> = signers.iter().map(|signer| signer.name.as_str()).collect();
        Err(format!("it is not signed by any of {}", names.join(", ")))
    }
}

/// Principal name of a key during one verification.
const PRINCIPAL: &str = "signer";

fn verify_ssh(key: &str, folder: &Path, own: &Path) -> Result<bool, String> {
    let allowed = own.join("allowed");
    fs::write(&allowed, format!("{PRINCIPAL} namespaces=\"git\" {key}\n"))
        .map_err(|error| format!("it cannot be checked: {error}"))?;
    let signed = fs::File::open(folder.join("signed"))
        .map_err(|error| format!("it cannot be checked: {error}"))?;
    let mut command = isolated_command("ssh-keygen", own);
    command.args(["-Y", "verify", "-I", PRINCIPAL, "-n", "git", "-f"]).arg(&allowed);
    command.arg("-s").arg(folder.join("signature")).stdin(signed);
    Ok(run_verifier(command, "ssh-keygen")?.0)
}

fn verify_gpg(key: &str, folder: &Path, own: &Path) -> Result<bool, String> {
    let file = own.join("key");
    fs::write(&file, key).map_err(|error| format!("it cannot be checked: {error}"))?;
    let gpg = || {
        let mut command = isolated_command("gpg", own);
        command.args(["--batch", "--no-tty", "--no-autostart", "--trust-model", "always"]);
        command.arg("--homedir").arg(own);
        command
    };
    let mut import = gpg();
    import.arg("--import").arg(&file);
    if !run_verifier(import, "gpg")?.0 {
        return Err("gpg cannot read a key under `signers`".to_owned());
    }
    let mut verify = gpg();
    verify.args(["--status-fd", "1", "--verify"]);
    verify.arg(folder.join("signature")).arg(folder.join("signed"));
    let (succeeded, output_text) = run_verifier(verify, "gpg")?;
    // An expired or revoked key makes a valid signature that is not good.
    let has_status =
        |word: &str| output_text.lines().any(|line| line.starts_with(&format!("[GNUPG:] {word} ")));
    Ok(succeeded && has_status("GOODSIG") && has_status("VALIDSIG"))
}

fn isolated_command(name: &str, own: &Path) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own: PathBuf = own.into();
    command.env_clear().env("PATH", path).env("HOME", &own).env("LC_ALL", "C");
    command.current_dir(&own).stdin(Stdio::null());
    command
}

const CHECK_LIMITS: RunLimits = RunLimits {
    time: Duration::from_secs(10),
    output_bytes: 1 << 20,
    memory_bytes: None,
    file_bytes: None,
};

fn run_verifier(mut command: Command, name: &str) -> Result<(bool, String), String> {
    let output = subprocess::run(&mut command, &CHECK_LIMITS);
    let output = output.map_err(|failure| format!("`{name}`, which checks it, {failure}"))?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(name: &str, key: SignerKey) -> Signer {
        Signer { name: name.to_owned(), key }
    }

    fn signed_commit(signature: Option<Vec<u8>>, signed: &[u8]) -> SignedCommit {
        let signature = signature.map(|signature| (signature, signed.to_vec()));
        SignedCommit { id: String::new(), signature, settings: None, parents: Vec::new() }
    }

    /// Reports a skipped test on the real stderr, which test runners do not capture.
    fn report_skipped(program: &str) {
        use std::io::Write;
        let text = format!("NOT SHOWN: `{program}` is not installed, so no signature is checked\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn succeeds(program: &str, arguments: &[&str], folder: &Path) -> bool {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env("GNUPGHOME", folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    #[test]
    fn unsigned_commit_is_refused() {
        let signers = [signer("a", SignerKey::Ssh("ssh-ed25519 AAAA".to_owned()))];
        assert_eq!(
            signed_commit(None, b"x").verify_signer(&signers),
            Err("it is not signed".to_owned())
        );
    }

    #[test]
    fn ssh_signature_is_bound_to_key_text_and_namespace() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        for name in ["one", "two"] {
            let matches =
                succeeds("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", name], at);
            if !matches {
                // Without the program every signature is refused, and the test checks that instead.
                let key = SignerKey::Ssh("ssh-ed25519 AAAA".to_owned());
                let signature = b"-----BEGIN SSH SIGNATURE-----".to_vec();
                let signers = [signer("a", key)];
                assert!(signed_commit(Some(signature), b"x").verify_signer(&signers).is_err());
                return report_skipped("ssh-keygen");
            }
        }
        fs::write(at.join("text"), "tree 1\n").expect("written");
        let signed_for = |purpose: &str| {
            let _ = fs::remove_file(at.join("text.sig"));
            assert!(succeeds(
                "ssh-keygen",
                &["-Y", "sign", "-f", "one", "-n", purpose, "text"],
                at
            ));
            fs::read(at.join("text.sig")).expect("signed")
        };
        let key = |name: &str| {
            let text = fs::read_to_string(at.join(format!("{name}.pub"))).expect("a key");
            signer(name, SignerKey::Ssh(text.trim().to_owned()))
        };
        let good = signed_commit(Some(signed_for("git")), b"tree 1\n");
        let both = [key("two"), key("one")];
        assert_eq!(good.verify_signer(&both), Ok("one"));
        let other = [key("two")];
        assert_eq!(good.verify_signer(&other), Err("it is not signed by any of two".to_owned()));
        assert!(signed_commit(Some(signed_for("git")), b"tree 2\n").verify_signer(&both).is_err());
        assert!(signed_commit(Some(signed_for("file")), b"tree 1\n").verify_signer(&both).is_err());
    }

    #[test]
    fn gpg_signature_is_bound_to_key_and_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let key = |name: &str| {
            let batch = ["--batch", "--passphrase", "", "--quick-gen-key", name, "ed25519", "sign"];
            succeeds("gpg", &batch, at).then(|| {
                let file = format!("{name}.asc");
                assert!(succeeds(
                    "gpg",
                    &["--batch", "--armor", "-o", &file, "--export", name],
                    at
                ));
                let text = fs::read_to_string(at.join(file)).expect("a key");
                signer(name, SignerKey::Gpg(text))
            })
        };
        let (Some(one), Some(two)) = (key("one"), key("two")) else {
            let key = signer("a", SignerKey::Gpg("none".to_owned()));
            assert!(
                signed_commit(Some(b"-----BEGIN PGP SIGNATURE-----".to_vec()), b"x")
                    .verify_signer(&[key])
                    .is_err()
            );
            return report_skipped("gpg");
        };
        fs::write(at.join("text"), "tree 1\n").expect("written");
        let sign = ["--batch", "--local-user", "one", "--armor", "--detach-sign", "text"];
        assert!(succeeds("gpg", &sign, at));
        let signature = fs::read(at.join("text.asc")).expect("signed");
        let good = signed_commit(Some(signature.clone()), b"tree 1\n");
        let only_two = [two.clone()];
        assert!(good.verify_signer(&only_two).is_err());
        let both = [two, one];
        assert_eq!(good.verify_signer(&both), Ok("one"));
        assert!(signed_commit(Some(signature), b"tree 2\n").verify_signer(&both).is_err());
        succeeds("gpgconf", &["--kill", "all"], at);
    }
}
