//! The rows of groups: their sizes before and after, as their members come and go.

use std::collections::{BTreeMap, BTreeSet};

use super::Parts;
use super::rows::Rows;
use crate::fleet::Group;
use crate::ids::{Address, GroupName, InstanceId, PoolName};
use crate::manifest::NodeGroup;
use crate::plan::wire::{
    Action, Amount, Change, Condition, ExplainRow, GroupSize, NodeState, PodCounts, Precondition,
    Reason, ResourceChange, ResourceKind,
};
use crate::solve::{BlockReason, KeepReason, RetireReason, live_group, observed_only};

/// What becomes of the members of one group.
#[derive(Default)]
struct Members {
    launched: u32,
    terminated: Vec<InstanceId>,
}

impl Members {
    /// Reads from the rows of nodes what becomes of the members of `pool`.
    fn of(pool: &PoolName, rows: &Rows) -> Self {
        let mut members = Self::default();
        for row in &rows.changes {
            let state = row.change.after.as_ref().or(row.change.before.as_ref());
            if state.and_then(|state| state.pool.as_ref()) != Some(pool) {
                continue;
            }
            members.launched += u32::from(row.change.actions.contains(&Action::Create));
            let gone = row.change.before.as_ref().and_then(|before| before.instance_id.clone());
            let goes = row.change.actions.contains(&Action::Delete);
            members.terminated.extend(gone.filter(|_| goes));
        }
        members
    }
}

/// Adds one row for each group that is declared, and for each that is there.
pub(super) fn add(rows: &mut Rows, parts: &Parts) {
    let mut added = Vec::new();
    let mut known: BTreeSet<&GroupName> = BTreeSet::new();
    for group in parts.desired.node_groups.values() {
        let live = live_group(group, parts.observed);
        known.extend(live.map(|live| &live.name));
        let mut row = declared(group, live, &Members::of(&group.name, rows), parts);
        row.1.drift = live.and_then(|live| moved(group, live));
        added.push(row);
    }
    for live in parts.observed.groups.values().filter(|live| !known.contains(&live.name)) {
        let why = "the repository does not declare it".to_owned();
        added.push(unchanged(live.name.as_str(), &size_of(live), why));
    }
    for (row, explain, condition) in added {
        let address = row.address.clone();
        let precondition = condition.map(|condition| Precondition { address, condition });
        rows.preconditions.extend(precondition);
        rows.changes.push(row);
        rows.explain.push(explain);
    }
    rows.sort();
}

/// Returns in what a group is not as declared. How many members it is to have moves between its
/// bounds by design; the bounds are moved by somebody.
fn moved(group: &NodeGroup, live: &Group) -> Option<RetireReason> {
    let bounds = |min: u32, max: u32| format!("{min} to {max} nodes");
    let (is, declared) = (bounds(live.min, live.max), bounds(group.min, group.max));
    let field = "bounds of the group".to_owned();
    (is != declared).then_some(RetireReason::Drifted { field, is, declared })
}

type Added = (ResourceChange, ExplainRow, Option<Condition>);

fn size_of(live: &Group) -> GroupSize {
    let Group { name, min, max, desired, .. } = live;
    GroupSize { name: Some(name.clone()), min: *min, max: *max, desired: *desired }
}

fn declared(group: &NodeGroup, live: Option<&Group>, members: &Members, parts: &Parts) -> Added {
    let assumed = GroupSize { name: None, min: group.min, max: group.max, desired: 0 };
    let before = live.map_or(assumed, size_of);
    let name = group.name.as_str();
    if let Some(why) = observed_only(group, parts.desired, parts.observed) {
        return unchanged(name, &before, why);
    }
    let gone = u32::try_from(members.terminated.len()).unwrap_or(u32::MAX);
    let desired = before.desired.saturating_add(members.launched).saturating_sub(gone);
    if members.launched == 0 && gone == 0 {
        let reason = Reason::Resize { launch: 0, terminate: Vec::new() };
        return (row(name, (&before, &before), false), explain(name, reason), None);
    }
    let after = GroupSize { desired, ..before.clone() };
    let reason = Reason::Resize { launch: members.launched, terminate: members.terminated.clone() };
    let condition =
        before.name.clone().map(|group| Condition::GroupIs { group, desired: before.desired });
    (row(name, (&before, &after), true), explain(name, reason), condition)
}

fn unchanged(name: &str, size: &GroupSize, why: String) -> Added {
    let by = BlockReason::GroupObserved { why };
    let reason = Reason::Keep { because: KeepReason::Blocked { by } };
    (row(name, (size, size), false), explain(name, reason), None)
}

fn address(name: &str) -> Address {
    format!("{}.{name}", ResourceKind::AutoscalingGroup.as_str()).into()
}

/// The row of a group: it changes where members come and go, be they as many after as before.
fn row(
    name: &str,
    (before, after): (&GroupSize, &GroupSize),
    members_change: bool,
) -> ResourceChange {
    let (action, hint) = if members_change {
        (Action::Update, "update_because_members_change")
    } else {
        (Action::NoOp, "noop_because_size_fits")
    };
    ResourceChange {
        address: address(name),
        kind: ResourceKind::AutoscalingGroup,
        name: name.to_owned(),
        index: None,
        change: Change {
            actions: vec![action],
            before: Some(state(before)),
            after: Some(state(after)),
            after_unknown: BTreeMap::new(),
        },
        action_reason: Some(hint.to_owned()),
    }
}

/// A group as a state: it has no amounts of its own, since its members stand beside it.
fn state(size: &GroupSize) -> NodeState {
    NodeState { group: Some(size.clone()), ..NodeState::nothing() }
}

fn explain(name: &str, reason: Reason) -> ExplainRow {
    ExplainRow {
        address: address(name),
        group: None,
        reason,
        retire_reason: None,
        drift: None,
        estimated: false,
        hourly_before: None,
        hourly_after: None,
        pods: PodCounts::default(),
        pods_before: PodCounts::default(),
        daemons: Amount::default(),
        rejected: Vec::new(),
        overlays: Vec::new(),
        relaxed: Vec::new(),
    }
}
