//! Whether a commit is signed by somebody who may.
//!
//! Signatures are checked by the programs that make them, `ssh-keygen` and `gpg`, each against the
//! listed keys alone and in a folder of its own: no key ring, agent, key server or trust of the
//! user takes part. They are everywhere that Git is, and code of ours would be a second opinion on
//! what a valid signature is. A commit cannot let its own signer in: the lists that count are those
//! of the commits that it was made from. So a proof holds all commits that lead to what was read:
//! of one alone, the commit before it could have let anybody in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use git2::{Oid, Repository};

use crate::manifest::{Signer, SignerKey};
use crate::program::{self, Bounds};

/// Name of the settings in a commit.
const SETTINGS: &str = "fleetwright.yaml";

/// Most commits that are looked at; a plan would not be made over more unreviewed ones at once.
pub(super) const COMMITS_MAX: usize = 500;

/// What a check needs of the commits that lead to what was read.
#[derive(Debug, Clone, Default)]
pub struct Proof {
    /// The commit itself, then those before it, nearest first; at most 500 of them.
    pub commits: Vec<SignedCommit>,
}

/// What a commit brings to be checked.
#[derive(Debug, Clone)]
pub struct SignedCommit {
    /// Its name in hex.
    pub id: String,
    /// Signature and what is signed; `None` for a commit without one.
    pub signature: Option<(Vec<u8>, Vec<u8>)>,
    /// Its settings; `None` where it has none.
    pub settings: Option<Arc<[u8]>>,
    /// The commits that it was made from, all of those of a merge; none for the first commit.
    pub parents: Vec<Parent>,
}

/// A commit that another one was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// The clone is shallow and does not hold it.
    Absent,
    /// It has this name and these settings, or none.
    Present(String, Option<Arc<[u8]>>),
}

/// Takes what a check needs out of `commit` and those before it; `directory` is that of the
/// settings.
pub(super) fn proof(repository: &Repository, commit: Oid, directory: &Path) -> Option<Proof> {
    let path = directory.join(SETTINGS);
    let mut settings: BTreeMap<Oid, Option<Arc<[u8]>>> = BTreeMap::new();
    let mut open = VecDeque::from([commit]);
    let mut seen = BTreeSet::from([commit]);
    let mut proof = Proof::default();
    while let Some(id) = open.pop_front() {
        if proof.commits.len() >= COMMITS_MAX {
            break;
        }
        let object = repository.find_commit(id).ok()?;
        let mut of = |id| {
            let known = settings.entry(id);
            known.or_insert_with(|| settings_of(repository, id, &path)).clone()
        };
        let signature = repository.extract_signature(&id, None).ok();
        let mut parents: Vec<Parent> = Vec::new();
        for parent in object.parent_ids() {
            if repository.find_commit(parent).is_err() {
                parents.push(Parent::Absent);
                continue;
            }
            parents.push(Parent::Present(parent.to_string(), of(parent)));
            if seen.insert(parent) {
                open.push_back(parent);
            }
        }
        if parents.is_empty() && repository.is_shallow() && is_cut(repository, id) {
            parents.push(Parent::Absent);
        }
        proof.commits.push(SignedCommit {
            id: id.to_string(),
            signature: signature.map(|(signature, signed)| (signature.to_vec(), signed.to_vec())),
            settings: of(id),
            parents,
        });
    }
    Some(proof)
}

fn settings_of(repository: &Repository, commit: Oid, path: &Path) -> Option<Arc<[u8]>> {
    let tree = repository.find_commit(commit).ok()?.tree().ok()?;
    let blob = repository.find_blob(tree.get_path(path).ok()?.id()).ok()?;
    Some(blob.content().into())
}

impl Proof {
    /// Returns whether the clone lacks commits that may say whose signatures count.
    pub(super) fn is_cut_short(&self) -> bool {
        let lists = |settings: &Option<Arc<[u8]>>| {
            let mut parts = settings.iter().flat_map(|text| text.windows(SIGNERS.len()));
            parts.any(|part| part == SIGNERS)
        };
        let is_cut = self.commits.iter().any(|commit| commit.parents.contains(&Parent::Absent));
        is_cut && self.commits.iter().any(|commit| lists(&commit.settings))
    }
}

/// The setting that lists signers.
const SIGNERS: &[u8] = b"signers";

/// Returns whether the parents of `commit` were left out of a shallow clone.
fn is_cut(repository: &Repository, commit: Oid) -> bool {
    let shallow = fs::read_to_string(repository.path().join("shallow")).unwrap_or_default();
    shallow.lines().any(|line| line == commit.to_string())
}

impl SignedCommit {
    /// Returns the name of the signer, or why the commit is signed by none of `signers`.
    ///
    /// # Errors
    /// With the reason, when there is no signature, no program to check it, or no key that made it.
    pub fn signer<'s>(&self, signers: &'s [Signer]) -> Result<&'s str, String> {
        let (signature, signed) = self.signature.as_ref().ok_or("it is not signed")?;
        let folder = tempfile::Builder::new().prefix("fleetwright-").tempdir();
        let folder = folder.map_err(|error| format!("no private folder can be made: {error}"))?;
        let is_ssh = signature.starts_with(b"-----BEGIN SSH SIGNATURE-----");
        let unwritten = |error: std::io::Error| format!("it cannot be checked: {error}");
        fs::write(folder.path().join("signature"), signature).map_err(unwritten)?;
        fs::write(folder.path().join("signed"), signed).map_err(unwritten)?;
        for (at, signer) in signers.iter().enumerate() {
            let own = folder.path().join(at.to_string());
            fs::create_dir(&own).map_err(unwritten)?;
            let made = match &signer.key {
                SignerKey::Ssh(key) if is_ssh => by_ssh(key, folder.path(), &own)?,
                SignerKey::Gpg(key) if !is_ssh => by_gpg(key, folder.path(), &own)?,
                SignerKey::Ssh(_) | SignerKey::Gpg(_) => false,
            };
            if made {
                return Ok(&signer.name);
            }
        }
        let names: Vec<&str> = signers.iter().map(|signer| signer.name.as_str()).collect();
        Err(format!("its signature is of none of {}", names.join(", ")))
    }
}

/// The name under which a key is listed for one check.
const PRINCIPAL: &str = "signer";

fn by_ssh(key: &str, folder: &Path, own: &Path) -> Result<bool, String> {
    let allowed = own.join("allowed");
    fs::write(&allowed, format!("{PRINCIPAL} namespaces=\"git\" {key}\n"))
        .map_err(|error| format!("it cannot be checked: {error}"))?;
    let signed = fs::File::open(folder.join("signed"))
        .map_err(|error| format!("it cannot be checked: {error}"))?;
    let mut command = program("ssh-keygen", own);
    command.args(["-Y", "verify", "-I", PRINCIPAL, "-n", "git", "-f"]).arg(&allowed);
    command.arg("-s").arg(folder.join("signature")).stdin(signed);
    Ok(run(command, "ssh-keygen")?.0)
}

fn by_gpg(key: &str, folder: &Path, own: &Path) -> Result<bool, String> {
    let file = own.join("key");
    fs::write(&file, key).map_err(|error| format!("it cannot be checked: {error}"))?;
    let gpg = || {
        let mut command = program("gpg", own);
        command.args(["--batch", "--no-tty", "--no-autostart", "--trust-model", "always"]);
        command.arg("--homedir").arg(own);
        command
    };
    let mut import = gpg();
    import.arg("--import").arg(&file);
    if !run(import, "gpg")?.0 {
        return Err("a key under `signers` is not one that gpg can read".to_owned());
    }
    let mut verify = gpg();
    verify.args(["--status-fd", "1", "--verify"]);
    verify.arg(folder.join("signature")).arg(folder.join("signed"));
    let (ok, said) = run(verify, "gpg")?;
    // An expired or revoked key makes a valid signature that is not a good one.
    let says = |word: &str| said.lines().any(|line| line.starts_with(&format!("[GNUPG:] {word} ")));
    Ok(ok && says("GOODSIG") && says("VALIDSIG"))
}

fn program(name: &str, own: &Path) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own: PathBuf = own.into();
    command.env_clear().env("PATH", path).env("HOME", &own).env("LC_ALL", "C");
    command.current_dir(&own).stdin(Stdio::null());
    command
}

/// What one check may use up.
const CHECK: Bounds =
    Bounds { time: Duration::from_secs(10), output_bytes: 1 << 20, memory_bytes: None };

fn run(mut command: Command, name: &str) -> Result<(bool, String), String> {
    let ended = program::run(&mut command, &CHECK);
    let ended = ended.map_err(|failure| format!("`{name}`, which checks it, {failure}"))?;
    Ok((ended.status.success(), String::from_utf8_lossy(&ended.output).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(name: &str, key: SignerKey) -> Signer {
        Signer { name: name.to_owned(), key }
    }

    fn proof_of(signature: Option<Vec<u8>>, signed: &[u8]) -> SignedCommit {
        let signature = signature.map(|signature| (signature, signed.to_vec()));
        SignedCommit { id: String::new(), signature, settings: None, parents: Vec::new() }
    }

    /// Says on the real stderr, which no test runner keeps back, what a test could not show.
    fn not_shown(program: &str) {
        use std::io::Write;
        let text = format!("NOT SHOWN: `{program}` is not installed, so no signature is checked\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    fn ran(program: &str, arguments: &[&str], folder: &Path) -> bool {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env("GNUPGHOME", folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    #[test]
    fn a_commit_without_signature_is_signed_by_nobody() {
        let signers = [signer("a", SignerKey::Ssh("ssh-ed25519 AAAA".to_owned()))];
        assert_eq!(proof_of(None, b"x").signer(&signers), Err("it is not signed".to_owned()));
    }

    #[test]
    fn a_signature_of_ssh_counts_for_its_key_its_text_and_its_purpose_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        for name in ["one", "two"] {
            let made = ran("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", name], at);
            if !made {
                // Without the program every signature is refused, which is what is shown then.
                let key = SignerKey::Ssh("ssh-ed25519 AAAA".to_owned());
                let signature = b"-----BEGIN SSH SIGNATURE-----".to_vec();
                let signers = [signer("a", key)];
                assert!(proof_of(Some(signature), b"x").signer(&signers).is_err());
                return not_shown("ssh-keygen");
            }
        }
        fs::write(at.join("text"), "tree 1\n").expect("written");
        let signed_for = |purpose: &str| {
            let _ = fs::remove_file(at.join("text.sig"));
            assert!(ran("ssh-keygen", &["-Y", "sign", "-f", "one", "-n", purpose, "text"], at));
            fs::read(at.join("text.sig")).expect("signed")
        };
        let key = |name: &str| {
            let text = fs::read_to_string(at.join(format!("{name}.pub"))).expect("a key");
            signer(name, SignerKey::Ssh(text.trim().to_owned()))
        };
        let good = proof_of(Some(signed_for("git")), b"tree 1\n");
        let both = [key("two"), key("one")];
        assert_eq!(good.signer(&both), Ok("one"));
        let other = [key("two")];
        assert_eq!(good.signer(&other), Err("its signature is of none of two".to_owned()));
        assert!(proof_of(Some(signed_for("git")), b"tree 2\n").signer(&both).is_err());
        assert!(proof_of(Some(signed_for("file")), b"tree 1\n").signer(&both).is_err());
    }

    #[test]
    fn a_signature_of_gnupg_counts_for_its_key_and_its_text_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let key = |name: &str| {
            let batch = ["--batch", "--passphrase", "", "--quick-gen-key", name, "ed25519", "sign"];
            ran("gpg", &batch, at).then(|| {
                let file = format!("{name}.asc");
                assert!(ran("gpg", &["--batch", "--armor", "-o", &file, "--export", name], at));
                let text = fs::read_to_string(at.join(file)).expect("a key");
                signer(name, SignerKey::Gpg(text))
            })
        };
        let (Some(one), Some(two)) = (key("one"), key("two")) else {
            let key = signer("a", SignerKey::Gpg("none".to_owned()));
            assert!(
                proof_of(Some(b"-----BEGIN PGP SIGNATURE-----".to_vec()), b"x")
                    .signer(&[key])
                    .is_err()
            );
            return not_shown("gpg");
        };
        fs::write(at.join("text"), "tree 1\n").expect("written");
        let sign = ["--batch", "--local-user", "one", "--armor", "--detach-sign", "text"];
        assert!(ran("gpg", &sign, at));
        let signature = fs::read(at.join("text.asc")).expect("signed");
        let good = proof_of(Some(signature.clone()), b"tree 1\n");
        let only_two = [two.clone()];
        assert!(good.signer(&only_two).is_err());
        let both = [two, one];
        assert_eq!(good.signer(&both), Ok("one"));
        assert!(proof_of(Some(signature), b"tree 2\n").signer(&both).is_err());
        ran("gpgconf", &["--kill", "all"], at);
    }
}
