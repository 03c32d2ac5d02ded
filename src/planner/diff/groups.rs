//! Rows of Auto Scaling groups: sizes before and after the launches and terminations of members.

use std::collections::{BTreeMap, BTreeSet};

use super::DiffInputs;
use super::rows::PlanRows;
use crate::model::desired::NodeGroup;
use crate::model::ids::{Address, GroupName, InstanceId, PoolName};
use crate::model::observed::Group;
use crate::model::reason::{BlockReason, KeepReason, RetireReason};
use crate::plan::wire::{
    Action, AutoscalerGrowthRow, Change, Condition, ExplainRow, GroupSize, NodeState, Precondition,
    Reason, ResourceChange, ResourceKind,
};
use crate::solver::{GroupGrowth, live_group, observe_only_reason};

/// Launches and terminations of the members of a group.
#[derive(Default)]
struct MemberChanges {
    launched: u32,
    terminated: Vec<InstanceId>,
}

impl MemberChanges {
    /// Collects the changes of the members of `pool` from the node rows.
    fn from_rows(pool: &PoolName, rows: &PlanRows) -> Self {
        let mut members = Self::default();
        for row in &rows.changes {
            let state = row.change.after.as_ref().or(row.change.before.as_ref());
            if state.and_then(|state| state.pool.as_ref()) != Some(pool) {
                continue;
            }
            members.launched += u32::from(row.change.actions.contains(&Action::Create));
            let instance = row.change.before.as_ref().and_then(|before| before.instance_id.clone());
            let terminates = row.change.actions.contains(&Action::Delete);
            members.terminated.extend(instance.filter(|_| terminates));
        }
        members
    }
}

/// Adds a row for each declared group, and for each undeclared observed group.
pub(super) fn add(rows: &mut PlanRows, inputs: &DiffInputs) {
    let mut added = Vec::new();
    let mut known: BTreeSet<&GroupName> = BTreeSet::new();
    for group in inputs.desired.node_groups.values() {
        let live = live_group(group, inputs.observed);
        known.extend(live.map(|live| &live.name));
        let mut row =
            declared_row(group, live, &MemberChanges::from_rows(&group.name, rows), inputs);
        row.1.drift = live.and_then(|live| bounds_drift(group, live));
        added.push(row);
    }
    for live in inputs.observed.groups.values().filter(|live| !known.contains(&live.name)) {
        let why = "the repository does not declare it".to_owned();
        added.push(unchanged_row(live.name.as_str(), &size_of(live), why));
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

/// Returns the rows of the groups that Cluster Autoscaler scales up.
pub(super) fn growth_rows(growths: &[GroupGrowth]) -> Vec<AutoscalerGrowthRow> {
    let row = |growth: &GroupGrowth| AutoscalerGrowthRow {
        address: address(&growth.group),
        autoscaler: growth.autoscaler.clone(),
        nodes: growth.nodes,
        maximum: growth.maximum,
        hourly: growth.hourly,
        pods: growth.pods.clone(),
        instead: growth.instead.iter().map(|group| address(group)).collect(),
    };
    growths.iter().map(row).collect()
}

/// Returns the drift of the bounds of a group. Only manual changes modify the bounds, whereas the
/// desired size varies by design.
fn bounds_drift(group: &NodeGroup, live: &Group) -> Option<RetireReason> {
    let bounds = |min: u32, max: u32| format!("{min} to {max} nodes");
    let (is, declared) = (bounds(live.min, live.max), bounds(group.min, group.max));
    let field = "bounds of the group".to_owned();
    (is != declared).then_some(RetireReason::Drifted { field, is, declared })
}

type GroupRow = (ResourceChange, ExplainRow, Option<Condition>);

fn size_of(live: &Group) -> GroupSize {
    let Group { name, min, max, desired, .. } = live;
    GroupSize { name: Some(name.clone()), min: *min, max: *max, desired: *desired }
}

fn declared_row(
    group: &NodeGroup,
    live: Option<&Group>,
    members: &MemberChanges,
    inputs: &DiffInputs,
) -> GroupRow {
    let assumed = GroupSize { name: None, min: group.min, max: group.max, desired: 0 };
    let before = live.map_or(assumed, size_of);
    let name = group.name.as_str();
    if let Some(why) = observe_only_reason(group, inputs.desired, inputs.observed) {
        return unchanged_row(name, &before, why);
    }
    let terminated = u32::try_from(members.terminated.len()).unwrap_or(u32::MAX);
    let desired = before.desired.saturating_add(members.launched).saturating_sub(terminated);
    if members.launched == 0 && terminated == 0 {
        let reason = Reason::Resize { launch: 0, terminate: Vec::new() };
        return (row(name, &before, &before, false), ExplainRow::new(address(name), reason), None);
    }
    let after = GroupSize { desired, ..before.clone() };
    let reason = Reason::Resize { launch: members.launched, terminate: members.terminated.clone() };
    let condition =
        before.name.clone().map(|group| Condition::GroupIs { group, desired: before.desired });
    (row(name, &before, &after, true), ExplainRow::new(address(name), reason), condition)
}

fn unchanged_row(name: &str, size: &GroupSize, why: String) -> GroupRow {
    let by = BlockReason::GroupObserved { why };
    let reason = Reason::Keep { because: KeepReason::Blocked { by } };
    (row(name, size, size, false), ExplainRow::new(address(name), reason), None)
}

fn address(name: &str) -> Address {
    format!("{}.{name}", ResourceKind::AutoscalingGroup.as_str()).into()
}

/// Returns the row of a group. Launched or terminated members count as a change even if the size
/// remains equal.
fn row(name: &str, before: &GroupSize, after: &GroupSize, members_change: bool) -> ResourceChange {
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
        mode: None,
        provider_name: None,
        change: Change {
            actions: vec![action],
            before: Some(state(before)),
            after: Some(state(after)),
            after_unknown: BTreeMap::new(),
            termination_grace_seconds: None,
        },
        action_reason: Some(hint.to_owned()),
    }
}

/// Returns the state of a group. Amounts are in the rows of its members.
fn state(size: &GroupSize) -> NodeState {
    NodeState { group: Some(size.clone()), ..NodeState::empty() }
}
