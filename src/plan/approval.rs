//! Approvals as data: the approver, the plan, and a signature.
//!
//! This module handles Ed25519 and the two identities of a plan. It reads no files and no clock.
//! Invariant: an approval is valid for one digest and one plan id, so it covers neither another
//! plan nor a later equal one.

use ed25519_dalek::pkcs8::DecodePrivateKey;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::canonical;
use super::wire::Plan;
use crate::model::desired::TrustedKey;
use crate::model::ids::{Digest, PlanId};

/// Domain separation: a signature of any other message is never a valid approval.
const APPROVAL_DOMAIN: &str = "fleetwright.dev/approval/1";

/// The approvals in one file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Approvals {
    /// One entry for each approver.
    pub approvals: Vec<Approval>,
}

/// One approver's approval of one plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Name of the approver.
    pub by: String,
    /// Time of the approval.
    pub at: Timestamp,
    /// Digest of the approved plan.
    pub digest: Digest,
    /// Id of the approved plan.
    pub plan_id: PlanId,
    /// Ed25519 signature over all fields above, in hex; absent for an unsigned approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// Reasons why an approval is missing or invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApprovalError {
    /// The text is not a private key.
    #[error("the key is not an Ed25519 private key in PEM (PKCS #8)")]
    PrivateKey,
    /// Too few of the keys have signed.
    #[error("{found} of {needed} approvals: {}", .why.join("; "))]
    Missing {
        /// Number of keys that signed this plan.
        found: u32,
        /// Number of keys that must sign it.
        needed: u32,
        /// Reasons: stale approvals, and keys without a valid signature.
        why: Vec<String>,
    },
    /// The approval is for another plan.
    #[error("{by} approved {approved}, the plan has {digest}")]
    OtherPlan {
        /// Name of the approver.
        by: String,
        /// Digest of the approved plan.
        approved: Digest,
        /// Digest of this plan.
        digest: Digest,
    },
}

#[derive(Serialize)]
struct SignedMessage<'a> {
    #[serde(rename = "of")]
    domain: &'static str,
    by: &'a str,
    at: Timestamp,
    digest: &'a Digest,
    plan_id: &'a PlanId,
}

/// Returns an approval of `plan`, signed if `key` is given (PEM, PKCS #8).
///
/// # Errors
/// If `key` is not a private key.
pub fn approve(
    plan: &Plan,
    by: &str,
    at: Timestamp,
    key: Option<&str>,
) -> Result<Approval, ApprovalError> {
    let (digest, plan_id) = (plan.capacity.digest.clone(), plan.capacity.plan_id.clone());
    let mut approval = Approval { by: by.to_owned(), at, digest, plan_id, signature: None };
    if let Some(pem) = key {
        let key = SigningKey::from_pkcs8_pem(pem).map_err(|_| ApprovalError::PrivateKey)?;
        let signature = key.sign(approval.message().as_bytes());
        approval.signature = Some(hex::encode(signature.to_bytes()));
    }
    Ok(approval)
}

/// Checks that enough of `keys` have approved `plan`. A key with several names counts once.
///
/// Without keys, one approval of this plan suffices, and its name is marked: nothing proves who
/// approved. A requirement of two or more approvals then fails. Returns the names of the approvers
/// that count.
///
/// # Errors
/// If there are too few approvals, or if no key is required and the approval is for another plan.
pub fn verify_approvals(
    plan: &Plan,
    approvals: &[Approval],
    keys: &[TrustedKey],
    needed: u32,
) -> Result<Vec<String>, ApprovalError> {
    let mut why = Vec::new();
    let mut names = Vec::new();
    let current = |approval: &&Approval| approval.covers(plan);
    for stale in approvals.iter().filter(|approval| !approval.covers(plan)) {
        why.push(format!("the approval of {} is for plan {}", stale.by, stale.plan_id));
    }
    let mut counted: Vec<&VerifyingKey> = Vec::new();
    for TrustedKey { name, key } in keys {
        // The name is a part of the signed message: a key approves only for its own name.
        let (own, foreign): (Vec<&Approval>, Vec<&Approval>) = approvals
            .iter()
            .filter(current)
            .filter(|approval| approval.is_signed_by(key))
            .partition(|approval| approval.by == *name);
        if own.is_empty() {
            why.extend(foreign.iter().map(|approval| {
                format!("the approval of {} is signed with the key of {name}", approval.by)
            }));
            why.extend(missing_signature(plan, approvals, name));
        } else if !counted.contains(&key) {
            counted.push(key);
            names.push(name.clone());
        }
    }
    // Unsigned approvals have no verifiable author, so they never count as several.
    if keys.is_empty() && needed <= 1 {
        let other = approvals.iter().find(|approval| !approval.covers(plan));
        let mark = |approval: &Approval| match approval.signature {
            None => "unsigned",
            Some(_) => "signature not verified",
        };
        return match (approvals.iter().find(current), other) {
            (Some(approval), _) => Ok(vec![format!("{} ({})", approval.by, mark(approval))]),
            (None, Some(approval)) => Err(ApprovalError::OtherPlan {
                by: approval.by.clone(),
                approved: approval.digest.clone(),
                digest: plan.capacity.digest.clone(),
            }),
            (None, None) => Err(ApprovalError::Missing { found: 0, needed: 1, why }),
        };
    }
    let found = u32::try_from(names.len()).unwrap_or(u32::MAX);
    if found >= needed { Ok(names) } else { Err(ApprovalError::Missing { found, needed, why }) }
}

/// Returns why no approval of `name` counts. Approvals of another plan are reported elsewhere.
fn missing_signature(plan: &Plan, approvals: &[Approval], name: &str) -> Option<String> {
    let mut own = approvals.iter().filter(|approval| approval.by == name).peekable();
    if own.peek().is_none() {
        return Some(format!("{name} has not approved"));
    }
    let current = own.find(|approval| approval.covers(plan))?;
    Some(match current.signature {
        None => format!("the approval of {name} is not signed (approve with --key)"),
        Some(_) => format!(
            "the approval of {name} was changed, or is signed with another key than the trusted one"
        ),
    })
}

impl Approval {
    /// Returns whether the approval is for this plan over this observation.
    pub fn covers(&self, plan: &Plan) -> bool {
        self.digest == plan.capacity.digest && self.plan_id == plan.capacity.plan_id
    }

    fn message(&self) -> String {
        let Self { by, at, digest, plan_id, signature: _ } = self;
        let signed = SignedMessage { domain: APPROVAL_DOMAIN, by, at: *at, digest, plan_id };
        canonical::compact(&signed).expect("the signed message has no floats and no raw bytes")
    }

    fn is_signed_by(&self, key: &VerifyingKey) -> bool {
        let signature = self.signature.as_deref().and_then(|text| hex::decode(text).ok());
        let signature = signature.and_then(|bytes| Signature::from_slice(&bytes).ok());
        signature.is_some_and(|s| key.verify_strict(self.message().as_bytes(), &s).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::pkcs8::DecodePublicKey as _;

    use super::*;
    use crate::testing::valid_plan::plan;

    // Generated with `openssl genpkey -algorithm ed25519` for these tests only.
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIK/4G/Uy9j/MdgNTqsL87S2C9aY3QHlUQ+Yza5lbWlxw\n-----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "MCowBQYDK2VwAyEAK6r6k6xSO+Tf7GsjgOLiOP431kQtIjsjKV0hIVgox0c=";
    const OTHER: &str = "MCowBQYDK2VwAyEAdcUVHfwf8dViuJgpuFDWzMzvk65AlKF+KazP3EWUcIQ=";

    fn keys(keys: &[(&str, &str)]) -> Vec<TrustedKey> {
        let key = |(name, key): &(&str, &str)| {
            let pem = format!("-----BEGIN PUBLIC KEY-----\n{key}\n-----END PUBLIC KEY-----\n");
            let key = VerifyingKey::from_public_key_pem(&pem).expect("a key");
            TrustedKey { name: (*name).into(), key }
        };
        keys.iter().map(key).collect()
    }

    fn now() -> Timestamp {
        "2026-09-01T10:00:00Z".parse().expect("a time")
    }

    #[test]
    fn signature_is_valid_for_one_plan_and_observation() {
        let plan = plan();
        let approval = approve(&plan, "alice", now(), Some(KEY)).expect("a key");
        let alice = keys(&[("alice", PUBLIC)]);
        assert_eq!(
            verify_approvals(&plan, std::slice::from_ref(&approval), &alice, 1),
            Ok(vec!["alice".to_owned()])
        );
        // Equal decisions over a later observation have another plan id.
        let mut later = plan.clone();
        later.capacity.base.world.taken_at = now();
        let later = later.with_identity();
        assert_eq!(later.capacity.digest, plan.capacity.digest);
        assert!(verify_approvals(&later, &[approval], &alice, 1).is_err());
    }

    #[test]
    fn every_field_is_signed_and_each_key_counts_once() {
        let plan = plan();
        let good = approve(&plan, "alice", now(), Some(KEY)).expect("a key");
        let forged = [
            Approval { by: "bob".into(), ..good.clone() },
            Approval { at: Timestamp::UNIX_EPOCH, ..good.clone() },
            Approval { signature: None, ..good.clone() },
            Approval { signature: Some("zz".into()), ..good.clone() },
        ];
        let alice = keys(&[("alice", PUBLIC)]);
        for approval in forged {
            assert!(verify_approvals(&plan, &[approval], &alice, 1).is_err());
        }
        let both = keys(&[("alice", PUBLIC), ("bob", OTHER)]);
        let error = verify_approvals(&plan, &[good.clone(), good], &both, 2).expect_err("one key");
        assert_eq!(error.to_string(), "1 of 2 approvals: bob has not approved");
    }

    #[test]
    fn causes_of_a_missing_signature_differ() {
        let plan = plan();
        let alice = keys(&[("alice", PUBLIC)]);
        let good = approve(&plan, "alice", now(), Some(KEY)).expect("a key");
        let because = |approvals: &[Approval], keys: &[TrustedKey]| {
            verify_approvals(&plan, approvals, keys, 1).expect_err("missing").to_string()
        };
        let unsigned = Approval { signature: None, ..good.clone() };
        let changed = Approval { at: Timestamp::UNIX_EPOCH, ..good.clone() };
        let stale = Approval { plan_id: "other".into(), ..good.clone() };
        for (approvals, cause) in [
            (&[][..], "alice has not approved"),
            (&[unsigned], "the approval of alice is not signed (approve with --key)"),
            (&[changed], "the approval of alice was changed, or is signed with another key"),
            (&[stale], "the approval of alice is for plan other"),
        ] {
            let error = because(approvals, &alice);
            assert!(error.starts_with(&format!("0 of 1 approvals: {cause}")), "{error}");
            assert!(!error.contains(';'), "one cause: {error}");
        }
        let other_key = because(&[good], &keys(&[("alice", OTHER)]));
        assert!(
            other_key.contains("is signed with another key than the trusted one"),
            "{other_key}"
        );
    }

    #[test]
    fn without_keys_one_approval_of_this_plan_suffices() {
        let plan = plan();
        let approval = approve(&plan, "alice", now(), None).expect("no key");
        assert_eq!(
            verify_approvals(&plan, std::slice::from_ref(&approval), &[], 0),
            Ok(vec!["alice (unsigned)".to_owned()])
        );
        let signature = Some("00".repeat(64));
        let forged = Approval { signature, ..approval.clone() };
        let marked = vec!["alice (signature not verified)".to_owned()];
        assert_eq!(verify_approvals(&plan, &[forged], &[], 0), Ok(marked));
        let other = Approval { digest: "sha256:0".into(), ..approval };
        let error = verify_approvals(&plan, &[other], &[], 0).expect_err("another");
        assert!(matches!(error, ApprovalError::OtherPlan { .. }));
        assert!(approve(&plan, "a", now(), Some("no key")).is_err());
    }

    #[test]
    fn key_approves_only_for_its_own_name() {
        let plan = plan();
        let foreign = approve(&plan, "bob", now(), Some(KEY)).expect("a key");
        let error = verify_approvals(&plan, &[foreign], &keys(&[("alice", PUBLIC)]), 1)
            .expect_err("the key is that of alice")
            .to_string();
        assert!(error.contains("the approval of bob is signed with the key of alice"), "{error}");
    }

    #[test]
    fn unsigned_approvals_never_count_as_two() {
        let plan = plan();
        let good = approve(&plan, "alice", now(), Some(KEY)).expect("a key");
        let twice = keys(&[("alice", PUBLIC), ("alice again", PUBLIC)]);
        assert!(verify_approvals(&plan, std::slice::from_ref(&good), &twice, 2).is_err());
        let by = |by: &str| approve(&plan, by, now(), None).expect("no key");
        assert!(verify_approvals(&plan, &[by("a"), by("b")], &[], 2).is_err());
    }
}
