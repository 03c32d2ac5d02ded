//! The identities that follow from what a plan decides, and what else must not be altered of it.
//!
//! The chain is: [`digest`] (what is approved) → [`plan_id`] (that, made of one commit over one world,
//! judged by these policies, until then: what is applied at most once) → [`change_id`] (one row of it,
//! a tag of what it launches) → [`client_token`] (one attempt, at most one instance). Each is a SHA-256
//! over canonical JSON.
//!
//! The digest says what is done; the identity also holds what says whether it may be done, when and
//! where: an approval signs both. What follows from other parts of a plan (its totals) is worked out
//! again instead, see [`totals`]. Invariant: nothing that `apply` obeys is outside of these three.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use super::canonical::sha256;
use super::digest::{digest, is_whole};
use super::wire::{
    Action, Base, Guard, JudgedBy, NodeTotals, Plan, Reason, ResourceChange, ResourceKind, Summary,
};
use crate::ids::{Address, ChangeId, Digest, PlanId};
use crate::solve::KeepReason;

/// Names what is hashed, so that no hash of one kind is ever one of another.
const PLAN_ID_OF: &str = "fleetwright.dev/plan/1";
const WHOLE_PLAN_ID_OF: &str = "fleetwright.dev/plan/2";
const CHANGE_ID_OF: &str = "fleetwright.dev/change/1";
const CLIENT_TOKEN_OF: &str = "fleetwright.dev/attempt/1";

/// What the files of a plan came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source<'a> {
    /// A commit, with nothing changed beside it.
    Commit(&'a str),
    /// A tree, by the hash of its paths and contents: no commit says what was read.
    Tree(&'a str),
}

impl<'a> Source<'a> {
    /// Returns the commit of `base`, or its tree where there is no commit or where the work tree
    /// differs from it.
    #[must_use]
    pub fn of(base: &'a Base) -> Self {
        match &base.commit {
            Some(commit) if !base.dirty => Self::Commit(commit),
            Some(_) | None => Self::Tree(&base.tree),
        }
    }
}

/// Returns the identity of one plan over one world, 64 hex digits: what is applied at most once.
///
/// The same decisions made from another commit, or over a world observed at another time, are
/// another plan, because they may be carried out once more. `digest` is that of the plan's contents;
/// what the plan states of itself is not read.
#[must_use]
pub fn plan_id(plan: &Plan, digest: &Digest) -> PlanId {
    let base = &plan.capacity.base;
    let (source, taken_at) = (Source::of(base), base.world.taken_at);
    if is_whole(plan) { whole(plan, digest, source) } else { bare(digest, source, taken_at) }
}

/// The identity as the formats 1.0 and 1.1 have it.
fn bare(digest: &Digest, source: Source<'_>, taken_at: Timestamp) -> PlanId {
    #[derive(Serialize)]
    struct Parts<'a> {
        of: &'static str,
        digest: &'a Digest,
        source: Source<'a>,
        taken_at: Timestamp,
    }
    hash(&Parts { of: PLAN_ID_OF, digest, source, taken_at }).into()
}

fn whole(plan: &Plan, digest: &Digest, source: Source<'_>) -> PlanId {
    #[derive(Serialize)]
    struct Parts<'a> {
        of: &'static str,
        digest: &'a Digest,
        source: Source<'a>,
        taken_at: Timestamp,
        expires_at: Timestamp,
        applyable: bool,
        errored: bool,
        /// Where files, guard and world are found.
        path: &'a str,
        world: &'a str,
        guard: Option<&'a Guard>,
        judged_by: &'a [JudgedBy],
        checks: Vec<(&'a str, &'a str)>,
    }
    let base = &plan.capacity.base;
    hash(&Parts {
        of: WHOLE_PLAN_ID_OF,
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
    })
    .into()
}

/// Gives `plan` the digest and the identity of its own contents.
pub fn seal(plan: &mut Plan) {
    plan.capacity.digest = digest(plan);
    plan.capacity.plan_id = plan_id(plan, &plan.capacity.digest);
}

/// Returns the totals over the rows of `plan`, worked out again.
#[must_use]
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
        .filter(|row| matches!(&row.reason, Reason::Keep { because: KeepReason::Blocked { .. } }))
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

/// Returns the identity of the change at `address`, 64 hex digits; instances carry it as a tag.
#[must_use]
pub fn change_id(plan_id: &PlanId, address: &Address) -> ChangeId {
    #[derive(Serialize)]
    struct Parts<'a> {
        of: &'static str,
        plan_id: &'a PlanId,
        address: &'a Address,
    }
    hash(&Parts { of: CHANGE_ID_OF, plan_id, address }).into()
}

/// Returns the client token of the `attempt`-th launch of a change: 64 ASCII characters, the most
/// that EC2 accepts.
///
/// The same token never launches a second instance; the attempt rises only after a terminal
/// outcome was seen.
#[must_use]
pub fn client_token(change_id: &ChangeId, attempt: u32) -> String {
    #[derive(Serialize)]
    struct Parts<'a> {
        of: &'static str,
        change_id: &'a ChangeId,
        attempt: u32,
    }
    hash(&Parts { of: CLIENT_TOKEN_OF, change_id, attempt })
}

/// Returns the SHA-256 of the canonical JSON of `value`, as 64 hex digits.
pub(super) fn hash<T: Serialize>(value: &T) -> String {
    sha256(value).expect("what is hashed holds neither floats nor bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixture::{address, plan};
    use crate::plan::wire::Check;

    #[test]
    fn whatever_says_whether_when_and_where_changes_the_identity_and_not_the_digest() {
        type Edit = (&'static str, fn(&mut Plan));
        let edits: [Edit; 12] = [
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
            ("what they say", |p| p.checks.push(Check::default())),
            ("guard", |p| {
                let (revision, commit) = ("main".to_owned(), None);
                p.capacity.base.guard = Some(Guard { revision, commit, changed: false });
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
    fn totals_are_those_that_the_plan_states() {
        assert_eq!(totals(&plan()), plan().summary);
    }

    #[test]
    fn identities_depend_on_each_of_their_parts() {
        let taken_at = Timestamp::UNIX_EPOCH;
        let ids = [
            bare(&"d".into(), Source::Commit("c"), taken_at),
            bare(&"e".into(), Source::Commit("c"), taken_at),
            bare(&"d".into(), Source::Commit("b"), taken_at),
            bare(&"d".into(), Source::Tree("c"), taken_at),
            bare(&"d".into(), Source::Commit("c"), Timestamp::MAX),
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
    fn the_chain_of_identities_never_changes_between_releases() {
        // If these move, approvals and tags of every cluster out there are void: raise the number in
        // the `…_OF` constant instead, and keep reading the old one.
        let id = bare(&"sha256:00".into(), Source::Commit("4f2c9a1"), Timestamp::UNIX_EPOCH);
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
