//! `approve`: records an approval of a saved plan; and reads approvals for `apply`.

use std::path::{Path, PathBuf};

use super::apply_session::refuse_unapplyable;
use super::error::CliError;
use super::settings::ApproveSettings;
use super::{Console, Exit, files};
use crate::model::desired::TrustedKey;
use crate::plan::{Approval, ApprovalError, Approvals, approve, canonical};
use crate::render::text;

/// Displayed characters of a digest.
const DIGEST_SHOWN: usize = "sha256:".len() + 12;

/// Most bytes of a key file or an approvals file.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(super) fn run(settings: &ApproveSettings, console: &mut Console) -> Result<Exit, CliError> {
    if settings.by.trim().is_empty() {
        return Err(CliError::text("`--by` is empty").hint("name the approver"));
    }
    let plan = files::saved_plan(&settings.plan, console)?;
    // The approver sees the plan first. A plan that cannot be applied is refused.
    console.report_raw(&text(&plan, &console.message_style()));
    refuse_unapplyable(&plan)?;
    let key = settings.key.as_deref().map(private_key).transpose()?;
    let approval =
        approve(&plan, &settings.by, console.now(), key.as_deref()).map_err(|error| {
            CliError::new(error).hint("make one: openssl genpkey -algorithm ed25519 -out key.pem")
        })?;
    let mut all = if settings.out.exists() { read(&settings.out)? } else { Approvals::default() };
    all.approvals.push(approval);
    files::write(&settings.out, &canonical::pretty(&all).map_err(CliError::new)?)?;
    let signed = if key.is_some() { ", signed" } else { "" };
    // The whole digest is in the file.
    let digest: String = plan.capacity.digest.as_str().chars().take(DIGEST_SHOWN).collect();
    let out = settings.out.display();
    console.report(&format!("Approved {digest}{signed}, in {out}."));
    Ok(Exit::Done)
}

/// Returns the approvals of all files.
pub(super) fn gather(files: &[PathBuf]) -> Result<Vec<Approval>, CliError> {
    let mut all = Vec::new();
    for file in files {
        all.extend(read(file)?.approvals);
    }
    Ok(all)
}

/// Returns the public keys of `NAME=FILE` pairs.
pub(super) fn outside_keys(files: &[(String, PathBuf)]) -> Result<Vec<TrustedKey>, CliError> {
    let read = |(name, path): &(String, PathBuf)| {
        TrustedKey::from_pem(name, &text_of(path)?).ok_or_else(|| {
            let path = path.display();
            CliError::text(format!("`{path}` is not an Ed25519 public key"))
                .hint("write it as `openssl pkey -in key.pem -pubout` prints it")
        })
    };
    files.iter().map(read).collect()
}

fn read(path: &Path) -> Result<Approvals, CliError> {
    let text = text_of(path)?;
    serde_json::from_str(&text).map_err(|error| {
        CliError::new(error)
            .context(format!("cannot read approvals `{}`", path.display()))
            .hint("name a file that `fleetwright approve --out FILE` wrote")
    })
}

fn private_key(path: &Path) -> Result<String, CliError> {
    text_of(path).map_err(|error| error.hint("name a private key in PEM"))
}

fn text_of(path: &Path) -> Result<String, CliError> {
    let bytes = files::read(path, FILE_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| {
        // The file may hold a private key: the error repeats no content.
        CliError::text(format!("`{}` is not a text file", path.display()))
    })
}

/// Returns the error of insufficient approvals, with its exit code.
pub(super) fn refused(error: ApprovalError) -> CliError {
    let (kind, hint) = match &error {
        ApprovalError::Missing { .. } => (
            Exit::NotApproved,
            "have it approved: fleetwright approve PLAN --by NAME --key FILE --out FILE, then apply \
             with --approval FILE",
        ),
        ApprovalError::OtherPlan { .. } => {
            (Exit::Stale, "review this plan and have it approved; an approval covers no other")
        }
        ApprovalError::PrivateKey => {
            (Exit::Failed, "make one: openssl genpkey -algorithm ed25519 -out key.pem")
        }
    };
    CliError::new(error).kind(kind).hint(hint)
}
