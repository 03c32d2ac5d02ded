//! Identities derived from the decisions of a plan, and protection of its other fields.
//!
//! The chain is: [`digest`] (the approved value) → [`plan_id`] (the digest with commit,
//! observation, policies and expiry; a repeated apply launches nothing twice) → [`change_id`] (one
//! row, a tag on its instance) → [`client_token`] (one attempt, at most one instance). Each is a
//! SHA-256 over canonical JSON.
//!
//! The digest covers the actions. The identity also covers every other field that `apply` reads: the
//! repository, the flags, the expiry, and what the second planning compares. An approval signs
//! both. Derived parts such as totals are recomputed instead, see [`totals`]. Invariant: digest,
//! identity or recomputation protects every field that `apply` reads.

mod applied_inputs;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use super::blocked::is_blocked;
use super::canonical::hash;
use super::digest::{digest, has_complete_digest};
use super::wire::{
    Action, AlternativesRow, Base, Contingency, JudgedBy, NodeTotals, Plan, ResourceChange,
    ResourceKind, Summary, TrustedRevision,
};
use crate::model::ids::{Address, ChangeId, Digest, PlanId};
use applied_inputs::AppliedInputs;

/// Domain separation: hashes of different kinds never coincide.
const PLAN_ID_DOMAIN: &str = "fleetwright.dev/plan/1";
const PLAN_ID_DOMAIN_V2: &str = "fleetwright.dev/plan/2";
const PLAN_ID_DOMAIN_V3: &str = "fleetwright.dev/plan/3";
const PLAN_ID_DOMAIN_V4: &str = "fleetwright.dev/plan/4";
const CHANGE_ID_DOMAIN: &str = "fleetwright.dev/change/1";
const CLIENT_TOKEN_DOMAIN: &str = "fleetwright.dev/attempt/1";

/// Format versions whose identity omits a part of the fields that `apply` reads.
const PARTIAL_IDENTITY_VERSIONS: [&str; 6] = ["1.0", "1.1", "1.2", "1.3", "1.4", "1.5"];

/// Format version whose identity omits the prices and the order of alternatives alone.
const VERSION_WITHOUT_ALTERNATIVES: &str = "1.5";

/// Returns whether digest and identity of `plan` together cover all fields that `apply` reads.
///
/// Plans of older formats can be read and rendered, but neither approved nor applied.
pub fn has_complete_identity(plan: &Plan) -> bool {
    !PARTIAL_IDENTITY_VERSIONS.contains(&plan.format_version.as_str())
}

/// Source of the files of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanSource<'a> {
    /// A commit with a clean work tree.
    Commit(&'a str),
    /// A tree, by the hash of its paths and contents, where no commit identifies the files.
    Tree(&'a str),
}

impl<'a> PlanSource<'a> {
    /// Returns the commit of `base`, or its tree where there is no commit or the work tree is
    /// dirty.
    pub fn from_base(base: &'a Base) -> Self {
        match &base.commit {
            Some(commit) if !base.dirty => Self::Commit(commit),
            Some(_) | None => Self::Tree(&base.tree),
        }
    }
}

/// Returns the identity of one plan over one observation, 64 hex digits. It is applied at most
/// once.
///
/// Equal decisions from another commit or over a later observation have another identity, since
/// they may be applied once more. `digest` is the digest of the plan's contents. The stated
/// identity is not read.
pub fn plan_id(plan: &Plan, digest: &Digest) -> PlanId {
    let base = &plan.capacity.base;
    let (source, taken_at) = (PlanSource::from_base(base), base.world.taken_at);
    if has_complete_identity(plan) {
        plan_id_v4(plan, digest)
    } else if plan.format_version == VERSION_WITHOUT_ALTERNATIVES {
        plan_id_v3(plan, digest)
    } else if has_complete_digest(plan) {
        plan_id_v2(plan, digest, source)
    } else {
        plan_id_v1(digest, source, taken_at)
    }
}

/// Identity in formats 1.0 and 1.1.
fn plan_id_v1(digest: &Digest, source: PlanSource<'_>, taken_at: Timestamp) -> PlanId {
    #[derive(Serialize)]
    struct HashInput<'a> {
        #[serde(rename = "of")]
        domain: &'static str,
        digest: &'a Digest,
        source: PlanSource<'a>,
        taken_at: Timestamp,
    }
    hash(&HashInput { domain: PLAN_ID_DOMAIN, digest, source, taken_at }).into()
}

fn plan_id_v4(plan: &Plan, digest: &Digest) -> PlanId {
    #[derive(Serialize)]
    struct HashInput<'a> {
        #[serde(rename = "of")]
        domain: &'static str,
        digest: &'a Digest,
        applied: AppliedInputs<'a>,
        /// Prices and order, which the digest leaves out. Both decide what is requested first.
        alternatives: &'a [AlternativesRow],
    }
    let applied = AppliedInputs::from_plan(plan);
    let alternatives = plan.capacity.alternatives.as_slice();
    hash(&HashInput { domain: PLAN_ID_DOMAIN_V4, digest, applied, alternatives }).into()
}

/// Identity in format 1.5.
fn plan_id_v3(plan: &Plan, digest: &Digest) -> PlanId {
    #[derive(Serialize)]
    struct HashInput<'a> {
        #[serde(rename = "of")]
        domain: &'static str,
        digest: &'a Digest,
        applied: AppliedInputs<'a>,
    }
    let applied = AppliedInputs::from_plan(plan);
    hash(&HashInput { domain: PLAN_ID_DOMAIN_V3, digest, applied }).into()
}

/// Identity in formats 1.2 to 1.4.
fn plan_id_v2(plan: &Plan, digest: &Digest, source: PlanSource<'_>) -> PlanId {
    #[derive(Serialize)]
    struct HashInput<'a> {
        #[serde(rename = "of")]
        domain: &'static str,
        digest: &'a Digest,
        source: PlanSource<'a>,
        taken_at: Timestamp,
        expires_at: Timestamp,
        applyable: bool,
        errored: bool,
        path: &'a str,
        world: &'a str,
        guard: Option<&'a TrustedRevision>,
        judged_by: &'a [JudgedBy],
        checks: Vec<(&'a str, &'a str)>,
        /// Prices and pods, which the digest leaves out.
        #[serde(skip_serializing_if = "Option::is_none")]
        contingency: Option<&'a Contingency>,
    }
    let base = &plan.capacity.base;
    hash(&HashInput {
        domain: PLAN_ID_DOMAIN_V2,
        digest,
        source,
        taken_at: base.world.taken_at,
        expires_at: plan.capacity.expires_at,
        applyable: plan.applyable,
        errored: plan.errored,
        path: &base.path,
        world: &base.world.name,
        guard: base.guard.as_ref(),
        judged_by: &base.judged_by,
        checks: plan.checks.iter().map(|c| (c.name.as_str(), c.status.as_str())).collect(),
        contingency: plan.capacity.placement.contingency.as_ref(),
    })
    .into()
}

/// Sets digest and identity of `plan` from its contents.
pub fn set_identity(plan: &mut Plan) {
    plan.capacity.digest = digest(plan);
    plan.capacity.plan_id = plan_id(plan, &plan.capacity.digest);
}

/// Recomputes the totals over the rows of `plan`.
pub fn totals(plan: &Plan) -> Summary {
    let rows = plan.resource_changes.iter();
    let nodes: Vec<&ResourceChange> =
        rows.filter(|row| row.kind != ResourceKind::AutoscalingGroup).collect();
    let count = |holds: &dyn Fn(&ResourceChange) -> bool| {
        u32::try_from(nodes.iter().filter(|row| holds(row)).count()).unwrap_or(u32::MAX)
    };
    let has = |row: &ResourceChange, action| row.change.actions.contains(&action);
    let rows = plan.resource_changes.iter().filter(|row| has(row, Action::Update));
    let (add, destroy) = (count(&|r| has(r, Action::Create)), count(&|r| has(r, Action::Delete)));
    let blocked: BTreeSet<&Address> = plan
        .capacity
        .explain
        .iter()
        .filter(|row| is_blocked(row))
        .map(|row| &row.address)
        .collect();
    Summary {
        add,
        change: u32::try_from(rows.count()).unwrap_or(u32::MAX),
        destroy,
        replace: count(&|r| has(r, Action::Create) && has(r, Action::Delete)),
        blocked: count(&|r| blocked.contains(&r.address)),
        destructive: destroy > 0,
        nodes: NodeTotals {
            before: count(&|r| r.change.before.is_some()),
            launch: add,
            terminate: destroy,
            after: count(&|r| r.change.after.is_some()),
        },
    }
}

/// Returns the identity of the change at `address`, 64 hex digits. Instances carry it as a tag.
pub fn change_id(plan_id: &PlanId, address: &Address) -> ChangeId {
    #[derive(Serialize)]
    struct HashInput<'a> {
        #[serde(rename = "of")]
        domain: &'static str,
        plan_id: &'a PlanId,
        address: &'a Address,
    }
    hash(&HashInput { domain: CHANGE_ID_DOMAIN, plan_id, address }).into()
}

/// Returns the client token of launch attempt `attempt` of a change: 64 ASCII characters, the most
/// that EC2 accepts.
///
/// One token never launches a second instance. The attempt is incremented only after a terminal
/// outcome is observed.
pub fn client_token(change_id: &ChangeId, attempt: u32) -> String {
    #[derive(Serialize)]
    struct HashInput<'a> {
        #[serde(rename = "of")]
        domain: &'static str,
        change_id: &'a ChangeId,
        attempt: u32,
    }
    hash(&HashInput { domain: CLIENT_TOKEN_DOMAIN, change_id, attempt })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::UnresolvedPolicy;
    use crate::model::units::MicroUsd;
    use crate::plan::wire::{Check, Decider, DemandMode, PodCounts};
    use crate::testing::plan::address;
    use crate::testing::valid_plan::plan;

    #[test]
    fn flags_expiry_and_location_change_identity_not_digest() {
        type PlanEdit = (&'static str, fn(&mut Plan));
        let edits: [PlanEdit; 27] = [
            ("nothing", |_| {}),
            ("applyable", |p| p.applyable = !p.applyable),
            ("errored", |p| p.errored = !p.errored),
            ("expiry", |p| p.capacity.expires_at = Timestamp::MAX),
            ("path", |p| p.capacity.base.path.push('x')),
            ("world", |p| p.capacity.base.world.name.push('x')),
            ("world taken at", |p| p.capacity.base.world.taken_at = Timestamp::MAX),
            ("commit", |p| p.capacity.base.commit = Some("beef".to_owned())),
            ("dirty", |p| p.capacity.base.dirty = true),
            ("policies", |p| {
                let file = JudgedBy { path: "a.rego".to_owned(), sha256: "0".repeat(64) };
                p.capacity.base.judged_by.push(file);
            }),
            ("results of policies", |p| p.checks.push(Check::default())),
            ("repository", |p| p.capacity.base.repository = Some("https://h/o/r".to_owned())),
            ("directory", |p| p.capacity.base.directory = Some("clusters/dev".to_owned())),
            ("tree", |p| p.capacity.base.tree.push('0')),
            ("demand mode", |p| p.capacity.base.demand = DemandMode::Ceiling),
            ("treatment of unread sources", |p| {
                p.capacity.base.unresolved = Some(UnresolvedPolicy::Ignore);
            }),
            ("runs of CronJobs", |p| p.capacity.base.ignores_runs = true),
            ("time", |p| p.timestamp = Timestamp::MAX),
            ("unschedulable pods", |p| p.capacity.pods.unschedulable += 98),
            ("orders", |p| p.capacity.placement.orders.push("x".to_owned())),
            ("pods on a node", |p| {
                p.capacity.explain.iter_mut().for_each(|row| row.pods = PodCounts::default());
            }),
            ("price", |p| {
                let rows = p.capacity.explain.iter_mut();
                rows.for_each(|row| row.hourly_after = Some(MicroUsd::ZERO));
            }),
            ("price of an alternative", |p| {
                p.capacity.alternatives[0].offerings[0].hourly = MicroUsd(1);
            }),
            ("order of alternatives", |p| p.capacity.alternatives[0].offerings.reverse()),
            ("an earlier format", |p| p.format_version = VERSION_WITHOUT_ALTERNATIVES.to_owned()),
            ("decider", |p| p.capacity.demand[0].decided_by = Decider::Removed),
            ("guard", |p| {
                let (revision, commit) = ("main".to_owned(), None);
                p.capacity.base.guard = Some(TrustedRevision { revision, commit, changed: false });
            }),
        ];
        let mut seen = BTreeSet::new();
        for (name, edit) in edits {
            let mut other = plan();
            edit(&mut other);
            assert_eq!(digest(&other), plan().capacity.digest, "{name}");
            assert!(seen.insert(plan_id(&other, &plan().capacity.digest)), "{name}");
        }
    }

    #[test]
    fn format_1_5_omits_the_prices_of_alternatives() {
        let id = |hourly| {
            let mut old = Plan { format_version: "1.5".to_owned(), ..plan() };
            old.capacity.alternatives[0].offerings[0].hourly = MicroUsd(hourly);
            assert!(!has_complete_identity(&old));
            plan_id(&old, &digest(&old))
        };
        assert_eq!(id(1), id(2));
    }

    #[test]
    fn recomputed_totals_equal_stated_totals() {
        assert_eq!(totals(&plan()), plan().summary);
    }

    #[test]
    fn identities_depend_on_each_input() {
        let taken_at = Timestamp::UNIX_EPOCH;
        let ids = [
            plan_id_v1(&"d".into(), PlanSource::Commit("c"), taken_at),
            plan_id_v1(&"e".into(), PlanSource::Commit("c"), taken_at),
            plan_id_v1(&"d".into(), PlanSource::Commit("b"), taken_at),
            plan_id_v1(&"d".into(), PlanSource::Tree("c"), taken_at),
            plan_id_v1(&"d".into(), PlanSource::Commit("c"), Timestamp::MAX),
        ];
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        let changes = [
            change_id(&ids[0], &address("0")),
            change_id(&ids[0], &address("1")),
            change_id(&ids[1], &address("0")),
        ];
        assert_eq!(changes.iter().collect::<BTreeSet<_>>().len(), changes.len());
        let tokens = [
            client_token(&changes[0], 0),
            client_token(&changes[0], 1),
            client_token(&changes[1], 0),
        ];
        assert_eq!(tokens.iter().collect::<BTreeSet<_>>().len(), tokens.len());
        assert!(tokens.iter().all(|token| token.len() == 64 && token.is_ascii()));
    }

    #[test]
    fn identity_chain_is_stable_between_releases() {
        // A change of these values voids the approvals and tags of every cluster. Raise the number
        // in the `…_DOMAIN` constant instead, and keep reading the old one.
        let id =
            plan_id_v1(&"sha256:00".into(), PlanSource::Commit("4f2c9a1"), Timestamp::UNIX_EPOCH);
        assert_eq!(id.as_str(), "99c347c3f40a99c2172576d005b11374201b298c52d00b7cbf75dd77079bd25a");
        let change = change_id(&id, &address("3"));
        assert_eq!(
            change.as_str(),
            "dc2ef22472f0c061c00b6b35374ec2172866a943c83c6e96b12f3168e448e320"
        );
        assert_eq!(
            client_token(&change, 0),
            "ea5339d11bb89cec83696c197a4d5a8bde1cd54bfca978da30717517e307e3aa"
        );
    }
}
