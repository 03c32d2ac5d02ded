//! Approvals as data: who approved which plan, signed by a key.
//!
//! This module knows Ed25519 and the two identities of a plan; it reads no files and no clock.
//! Invariant: an approval holds for one digest and one plan id, so that it covers neither another
//! plan nor a later equal one.

use ed25519_dalek::pkcs8::DecodePrivateKey;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::canonical;
use super::wire::Plan;
use crate::ids::{Digest, PlanId, hex};
use crate::manifest::TrustedKey;

/// Names what is signed, so that a signature of something else is never one of an approval.
const APPROVAL_OF: &str = "fleetwright.dev/approval/1";

/// Approvals as a file holds them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Approvals {
    /// One for each approver.
    pub approvals: Vec<Approval>,
}

/// Somebody's approval of one plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Who says so.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// What is approved.
    pub digest: Digest,
    /// Which plan.
    pub plan_id: PlanId,
    /// Ed25519 signature over all of the above, in hex; absent where nobody signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// Why there is no approval.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApprovalError {
    /// The text is no private key.
    #[error("the key is no Ed25519 private key in PEM (PKCS #8)")]
    PrivateKey,
    /// Too few of the keys have signed.
    #[error("{found} of {needed} approvals: {}", .why.join("; "))]
    Missing {
        /// How many keys have signed this plan.
        found: u32,
        /// How many must have.
        needed: u32,
        /// What is wrong with each approval that does not count.
        why: Vec<String>,
    },
    /// The approval is of another plan.
    #[error("{by} approved {approved}, the plan has {digest}")]
    OtherPlan {
        /// Who approved.
        by: String,
        /// What was approved.
        approved: Digest,
        /// What the plan has.
        digest: Digest,
    },
}

/// What is signed.
#[derive(Serialize)]
struct Signed<'a> {
    of: &'static str,
    by: &'a str,
    at: Timestamp,
    digest: &'a Digest,
    plan_id: &'a PlanId,
}

/// Returns the approval of `plan`, signed where there is a key (PEM, PKCS #8).
///
/// # Errors
/// When the key is none.
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
        approval.signature = Some(hex(&signature.to_bytes()));
    }
    Ok(approval)
}

/// Returns whether enough of `keys` have approved `plan`: each counts once, under however many names.
///
/// Without keys, one approval of this very plan is enough, and more than one cannot be had.
///
/// # Errors
/// When there are too few, or one is of another plan where nobody's signature is asked for.
pub fn verify_approvals(
    plan: &Plan,
    approvals: &[Approval],
    keys: &[TrustedKey],
    needed: u32,
) -> Result<(), ApprovalError> {
    let mut why = Vec::new();
    let mut found = 0;
    let current = |approval: &&Approval| approval.is_of(plan);
    for stale in approvals.iter().filter(|approval| !approval.is_of(plan)) {
        why.push(format!("that of {} is of plan {}", stale.by, stale.plan_id));
    }
    let mut counted: Vec<&VerifyingKey> = Vec::new();
    for TrustedKey { name, key } in keys {
        let signed = approvals.iter().filter(current).any(|approval| approval.is_signed_by(key));
        if !signed {
            why.push(format!("none that {name} signed"));
        } else if !counted.contains(&key) {
            counted.push(key);
            found += 1;
        }
    }
    // Nobody can tell who wrote what is not signed, so it never counts as several.
    if keys.is_empty() && needed <= 1 {
        let other = approvals.iter().find(|approval| !approval.is_of(plan));
        return match (approvals.iter().find(current), other) {
            (Some(_), _) => Ok(()),
            (None, Some(approval)) => Err(ApprovalError::OtherPlan {
                by: approval.by.clone(),
                approved: approval.digest.clone(),
                digest: plan.capacity.digest.clone(),
            }),
            (None, None) => Err(ApprovalError::Missing { found: 0, needed: 1, why }),
        };
    }
    if found >= needed { Ok(()) } else { Err(ApprovalError::Missing { found, needed, why }) }
}

impl Approval {
    /// Returns whether the approval is of this plan, over this world.
    #[must_use]
    pub fn is_of(&self, plan: &Plan) -> bool {
        self.digest == plan.capacity.digest && self.plan_id == plan.capacity.plan_id
    }

    fn message(&self) -> String {
        let Self { by, at, digest, plan_id, signature: _ } = self;
        let signed = Signed { of: APPROVAL_OF, by, at: *at, digest, plan_id };
        canonical::compact(&signed).expect("what is signed holds neither floats nor bytes")
    }

    fn is_signed_by(&self, key: &VerifyingKey) -> bool {
        let signature = self.signature.as_deref().and_then(unhex);
        let signature = signature.and_then(|bytes| Signature::from_slice(&bytes).ok());
        signature.is_some_and(|s| key.verify_strict(self.message().as_bytes(), &s).is_ok())
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::pkcs8::DecodePublicKey as _;

    use super::*;
    use crate::plan::fixture::{plan, sealed};

    // Made with `openssl genpkey -algorithm ed25519` for these tests alone.
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
    fn a_signature_holds_for_one_plan_over_one_world() {
        let plan = plan();
        let approval = approve(&plan, "alice", now(), Some(KEY)).expect("a key");
        let alice = keys(&[("alice", PUBLIC)]);
        assert_eq!(verify_approvals(&plan, std::slice::from_ref(&approval), &alice, 1), Ok(()));
        // The same decisions over a later world are another plan.
        let mut later = plan.clone();
        later.capacity.base.world.taken_at = now();
        let later = sealed(later);
        assert_eq!(later.capacity.digest, plan.capacity.digest);
        assert!(verify_approvals(&later, &[approval], &alice, 1).is_err());
    }

    #[test]
    fn every_part_of_an_approval_is_signed_and_each_key_counts_once() {
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
        assert_eq!(error.to_string(), "1 of 2 approvals: none that bob signed");
    }

    #[test]
    fn without_keys_an_approval_of_this_plan_is_enough_and_one_of_another_is_told_apart() {
        let plan = plan();
        let approval = approve(&plan, "alice", now(), None).expect("no key");
        assert_eq!(verify_approvals(&plan, std::slice::from_ref(&approval), &[], 0), Ok(()));
        let other = Approval { digest: "sha256:0".into(), ..approval };
        let error = verify_approvals(&plan, &[other], &[], 0).expect_err("another");
        assert!(matches!(error, ApprovalError::OtherPlan { .. }));
        assert!(approve(&plan, "a", now(), Some("no key")).is_err());
    }

    #[test]
    fn one_key_under_two_names_counts_once_and_what_nobody_signed_never_counts_as_two() {
        let plan = plan();
        let good = approve(&plan, "alice", now(), Some(KEY)).expect("a key");
        let twice = keys(&[("alice", PUBLIC), ("alice again", PUBLIC)]);
        assert!(verify_approvals(&plan, std::slice::from_ref(&good), &twice, 2).is_err());
        let by = |by: &str| approve(&plan, by, now(), None).expect("no key");
        assert!(verify_approvals(&plan, &[by("a"), by("b")], &[], 2).is_err());
    }
}
