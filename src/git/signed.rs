//! Whether a commit is signed by somebody who may.
//!
//! Signatures are checked by the programs that make them, `ssh-keygen` and `gpg`, each against the
//! listed keys alone and in a folder of its own: no key ring, agent, key server or trust of the user
//! takes part. They are everywhere that Git is, and code of ours would be a second opinion on
//! what a valid signature is. Invariant: a commit cannot let its own signer in; the list that counts is
//! that of its first parent, and the first list is taken at its word.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use git2::{Oid, Repository};

use crate::manifest::{Signer, SignerKey};

/// Name of the settings in a commit.
const SETTINGS: &str = "fleetwright.yaml";

/// What a commit brings to be checked.
#[derive(Debug, Clone)]
pub struct Proof {
    /// Signature and what is signed; `None` for a commit without one.
    pub signature: Option<(Vec<u8>, Vec<u8>)>,
    /// The settings of the commit before it.
    pub parent: Parent,
}

/// The settings of the commit before another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// It is the first commit.
    None,
    /// The clone is shallow and does not hold it.
    Absent,
    /// It has these settings, or none.
    Settings(Option<Vec<u8>>),
}

/// Takes what a check needs out of a commit; `directory` is that of the settings.
pub(super) fn proof(repository: &Repository, commit: Oid, directory: &Path) -> Option<Proof> {
    let object = repository.find_commit(commit).ok()?;
    let signature = repository.extract_signature(&commit, None).ok();
    let signature = signature.map(|(signature, signed)| (signature.to_vec(), signed.to_vec()));
    let parent = match (object.parent_count(), object.parent(0)) {
        (0, _) if repository.is_shallow() && is_cut(repository, commit) => Parent::Absent,
        (0, _) => Parent::None,
        (_, Err(_)) => Parent::Absent,
        (_, Ok(parent)) => {
            let entry = parent.tree().ok()?.get_path(&directory.join(SETTINGS)).ok();
            let blob = entry.and_then(|entry| repository.find_blob(entry.id()).ok());
            Parent::Settings(blob.map(|blob| blob.content().to_vec()))
        }
    };
    Some(Proof { signature, parent })
}

/// Returns whether the parents of `commit` were left out of a shallow clone.
fn is_cut(repository: &Repository, commit: Oid) -> bool {
    let shallow = fs::read_to_string(repository.path().join("shallow")).unwrap_or_default();
    shallow.lines().any(|line| line == commit.to_string())
}

impl Proof {
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
    command.current_dir(&own).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    command
}

fn run(mut command: Command, name: &str) -> Result<(bool, String), String> {
    let output = command.output();
    let output =
        output.map_err(|error| format!("`{name}`, which checks it, cannot run: {error}"))?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(name: &str, key: SignerKey) -> Signer {
        Signer { name: name.to_owned(), key }
    }

    fn proof_of(signature: Option<Vec<u8>>, signed: &[u8]) -> Proof {
        let signature = signature.map(|signature| (signature, signed.to_vec()));
        Proof { signature, parent: Parent::None }
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
                return;
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
            return;
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
