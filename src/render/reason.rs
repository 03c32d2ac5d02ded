//! Reasons in words: the one place that turns a code of the plan into a sentence.
//!
//! Every match is exhaustive, so that a new reason must get words before it compiles. No program
//! parses the words.

use std::collections::BTreeMap;
use std::fmt::Display;

use jiff::SignedDuration;

use super::amount::{count, hourly, list, span};
use super::row::{PlanRow, Symbol, rows};
use crate::model::ids::InstanceId;
use crate::model::reason::drifted_field_text;
use crate::model::units::MicroUsd;
use crate::plan::wire::{
    BlockReason, Change, Condition, Decider, KeepReason, LaunchReason, Reason, Rejection,
    RetireReason, WaveStep,
};
use crate::plan::{Plan, is_incomplete};

/// Most workloads in one sentence.
const WORKLOADS_MAX: usize = 2;

/// Returns the reason of a row with its numbers, on one line.
pub(super) fn reason(reason: &Reason) -> String {
    match reason {
        Reason::Launch { because } => launch(because),
        Reason::Retire { because } => retire(because),
        Reason::Keep { because } => keep(because),
        Reason::Resize { launch, terminate } => resize(*launch, terminate),
    }
}

/// Returns why a plan changes nodes: the pods without room, and the first of the further reasons.
/// `None` for a plan without changes.
pub(crate) fn plan_reason(plan: &Plan) -> Option<String> {
    let rows = rows(plan);
    let changes = rows.iter().filter(|row| row.symbol.is_change());
    let mut pods: BTreeMap<&str, u32> = BTreeMap::new();
    let mut further: Vec<&PlanRow<'_>> = Vec::new();
    for row in changes {
        let added = pods_without_node(row);
        if added.is_empty() {
            further.push(row);
        }
        for (workload, more) in added {
            let sum = pods.entry(workload).or_default();
            *sum = sum.saturating_add(more);
        }
    }
    let growth = (!pods.is_empty()).then(|| no_room(&pods));
    let further = further.split_first().map(|(first, more)| {
        let more = u32::try_from(more.len()).unwrap_or(u32::MAX);
        let more = match more {
            0 => String::new(),
            more => format!(", and {}", count(more, "further change")),
        };
        format!("{}: {}{more}", first.resource.address, row_reason(first))
    });
    let reasons: Vec<String> = growth.into_iter().chain(further).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Returns the pods for which a row launches a node, if it removes none and no removed node ran
/// them.
fn pods_without_node<'a>(row: &PlanRow<'a>) -> Vec<(&'a str, u32)> {
    let Some(explain) = row.explain.filter(|_| row.symbol == Symbol::Launch) else {
        return Vec::new();
    };
    if let Reason::Launch { because: LaunchReason::Demand { pods } } = &explain.reason {
        return pods.iter().map(|(workload, count)| (workload.as_str(), *count)).collect();
    }
    let all = explain.pods.iter().map(|(workload, count)| (workload.as_str(), *count));
    if row.added > 0 && row.added == total(&explain.pods) { all.collect() } else { Vec::new() }
}

/// Returns the reason of a row, with what it shares with the other rows of its batch, and when its
/// drain ends by force.
pub(super) fn row_reason(row: &PlanRow<'_>) -> String {
    with_forced_end(shared_reason(row), &row.resource.change)
}

/// Returns a reason, and when the drain ends by force.
pub(super) fn with_forced_end(because: String, change: &Change) -> String {
    let Some(seconds) = change.termination_grace_seconds else { return because };
    let period = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    format!("{because}; pods left {period:#} after the cordon are deleted")
}

/// Returns true for an instance that stays because its node has not joined, or was deleted.
fn is_without_node(row: &PlanRow<'_>) -> bool {
    let not_ready = Reason::Keep { because: KeepReason::Blocked { by: BlockReason::NotReady } };
    let before = row.resource.change.before.as_ref();
    row.explain.is_some_and(|explain| explain.reason == not_ready)
        && before.is_some_and(|before| before.instance_id.is_some() && before.node.is_none())
}

fn shared_reason(row: &PlanRow<'_>) -> String {
    let Some(explain) = row.explain else { return String::new() };
    if let Reason::Launch { because: LaunchReason::Demand { pods } } = &explain.reason {
        // Only nodes of a batch take pods of removed nodes.
        let planned = if explain.group.is_some() { total(&explain.pods) } else { total(pods) };
        return demand(pods, planned);
    }
    let Reason::Launch { because: LaunchReason::Consolidation { saves_hourly, moves } } =
        &explain.reason
    else {
        return if is_without_node(row) {
            "the instance has no node".to_owned()
        } else {
            reason(&explain.reason)
        };
    };
    if row.added == 0 {
        return reason(&explain.reason);
    }
    if row.added == total(&explain.pods) {
        return no_room(&explain.pods);
    }
    let (added, saves) = (count(row.added, "new pod"), saving(*saves_hourly));
    let moves = count(*moves, "pod");
    // The saving is relative to the fleet with more nodes for the new pods.
    format!("takes {added}, and {moves} of removed nodes: {saves} compared with more nodes")
}

/// Returns the reason of a row. A saving that an earlier row states is not repeated.
pub(super) fn row_reason_once(row: &PlanRow<'_>) -> String {
    let full = row_reason(row);
    match (row.saving_in, full.split_once(": saves ")) {
        (Some(first), Some((what, _))) => format!("{what}; its saving is part of {first}"),
        _ => full,
    }
}

fn total<K>(pods: &BTreeMap<K, u32>) -> u32 {
    pods.values().fold(0_u32, |sum, n| sum.saturating_add(*n))
}

fn no_room<K: Ord + Display>(pods: &BTreeMap<K, u32>) -> String {
    let total = total(pods);
    let verb = if total == 1 { "has" } else { "have" };
    format!("{} {verb} no room: {}", count(total, "pod"), workloads(pods, WORKLOADS_MAX))
}

/// Returns the reason of a node for pods without room. `planned` is the number of all its pods.
fn demand(pods: &BTreeMap<String, u32>, planned: u32) -> String {
    let moved = planned.saturating_sub(total(pods));
    match (pods.is_empty(), moved) {
        (false, 0) => no_room(pods),
        (false, moved) => {
            format!("{}; it also takes {} of removed nodes", no_room(pods), count(moved, "pod"))
        }
        // Only an unsteered plan has such a node.
        (true, 0) => {
            "no pod needs it in the declared order of arrival, but another order does".to_owned()
        }
        (true, moved) => format!("takes {} of removed nodes", count(moved, "pod")),
    }
}

fn launch(reason: &LaunchReason) -> String {
    match reason {
        LaunchReason::Demand { pods } => demand(pods, total(pods)),
        LaunchReason::Consolidation { saves_hourly, moves } => {
            let dearer = if saves_hourly.0 > 0 { "more expensive nodes" } else { "removed nodes" };
            let saves = saving(*saves_hourly);
            format!("takes the pods of {dearer}: {saves}, moves {}", count(*moves, "pod"))
        }
        LaunchReason::Static { declared, there } => {
            let nodes = count(*declared, "node");
            format!("its pool needs {nodes}, and {there} exist")
        }
        LaunchReason::Replacement { of, because } => {
            format!("replaces {of}: {}", retire(because))
        }
    }
}

/// Returns the saving, or the additional cost.
fn saving(price: MicroUsd) -> String {
    if price.0 < 0 {
        return format!("costs {} more", hourly(MicroUsd(price.0.saturating_neg())));
    }
    format!("saves {}", hourly(price))
}

/// Returns the launches and terminations of a group.
fn resize(launch: u32, terminate: &[InstanceId]) -> String {
    let names: Vec<String> = terminate.iter().map(ToString::to_string).collect();
    let grows = format!("grows by {}", count(launch, "node"));
    let removed = count(u32::try_from(names.len()).unwrap_or(u32::MAX), "node");
    let shrinks = format!("terminates {removed} by id: {}", list(&names, WORKLOADS_MAX));
    match (launch, names.is_empty()) {
        (0, true) => "as large as its pods need".to_owned(),
        (_, true) => grows,
        (0, false) => shrinks,
        (_, false) => format!("{grows}; {shrinks}"),
    }
}

/// Returns the reason to remove a node.
pub(super) fn retire(reason: &RetireReason) -> String {
    match reason {
        RetireReason::Empty { saves_hourly } => {
            format!("no pods left but those of DaemonSets: {}", saving(*saves_hourly))
        }
        // The batch also makes room for more pods, so that the saving of the removal is unknown.
        RetireReason::Underutilized { saves_hourly: MicroUsd(..=0), moves: 0, .. } => {
            "no planned pod needs it; pods that still run there are evicted".to_owned()
        }
        RetireReason::Underutilized { saves_hourly: MicroUsd(..=0), moves, .. } => {
            let moves = count(*moves, "pod");
            format!("its pods move to nodes that new pods need as well: moves {moves}")
        }
        RetireReason::Underutilized { saves_hourly, moves: 0, payback_hours: _ } => format!(
            "no planned pod needs it: {}; pods that still run there are evicted",
            saving(*saves_hourly)
        ),
        RetireReason::Underutilized { saves_hourly, moves, payback_hours } => format!(
            "its pods move to other nodes: {}, moves {}, pays back in {payback_hours} h",
            saving(*saves_hourly),
            count(*moves, "pod")
        ),
        RetireReason::Surplus { declared, there } => {
            let nodes = count(*declared, "node");
            format!("its pool may have {nodes}, and {there} exist")
        }
        RetireReason::PoolRemoved => "its pool is no longer declared".to_owned(),
        RetireReason::Drifted { field, is, declared } => {
            format!("drifted: {}", drifted_field_text(field, is, declared))
        }
        RetireReason::Expired { age_hours, limit_hours } => {
            format!("{age_hours} h old, its pool allows {limit_hours} h")
        }
        RetireReason::Requested => "requested with --replace".to_owned(),
    }
}

fn keep(reason: &KeepReason) -> String {
    match reason {
        KeepReason::Needed { pods: 0, within_budget: _ } => {
            "no planned pod needs it, and no removal was found that leaves every pod a node"
                .to_owned()
        }
        KeepReason::Needed { pods, within_budget } => {
            let bound =
                if *within_budget { " within the disruption budget of its pool" } else { "" };
            format!("needed by {}; no cheaper replacement was found{bound}", count(*pods, "pod"))
        }
        KeepReason::NeededForRescheduling { pods } => format!(
            "needed by {}: without it, more pods would stay pending if all were created again",
            count(*pods, "pod")
        ),
        KeepReason::NotWorthMoving { saves_hourly, needed_hourly, moves, nodes } => {
            let replacing = nodes.map(|nodes| format!("replacing {} ", count(nodes, "node")));
            let share = if nodes.is_some() { ", a share of the fleet's price" } else { "" };
            format!(
                "not worth moving {}: {}saves {}, would have to save {}{share}",
                count(*moves, "pod"),
                replacing.unwrap_or_default(),
                hourly(*saves_hourly),
                hourly(*needed_hourly)
            )
        }
        KeepReason::Blocked { by } => block(by),
        KeepReason::NotOurs => "not managed by Fleetwright".to_owned(),
    }
}

fn block(reason: &BlockReason) -> String {
    match reason {
        BlockReason::DoNotDisrupt => "annotated karpenter.sh/do-not-disrupt".to_owned(),
        BlockReason::ScaleDownDisabled => {
            "the node is annotated cluster-autoscaler.kubernetes.io/scale-down-disabled".to_owned()
        }
        BlockReason::PinnedPod { workload } => format!("a pod of {workload} may not be moved"),
        BlockReason::PolicyWhenEmpty => "its pool removes only empty nodes".to_owned(),
        BlockReason::ConsolidationDisabled => "its pool never consolidates".to_owned(),
        BlockReason::ConsolidateAfter { seconds } => {
            let seconds = i64::try_from(*seconds).unwrap_or(i64::MAX);
            let after = span(SignedDuration::from_secs(seconds));
            format!(
                "it is younger than {after}, which its pool waits before it consolidates a node"
            )
        }
        BlockReason::Unknown { what } => format!("incomplete information: {what}"),
        BlockReason::NoOtherPlace => "its pods would be unschedulable".to_owned(),
        BlockReason::UnsupportedPod { workload, feature } => {
            format!("a pod of {workload} uses {feature}, whose placement is not planned")
        }
        BlockReason::TagsLost { instance, missing } => {
            format!("instance {instance} runs without the tags {missing}")
        }
        BlockReason::NotReady => "the node is not Ready".to_owned(),
        BlockReason::NotTargeted => "left out by --target or --exclude".to_owned(),
        BlockReason::Budget | BlockReason::BudgetZero => {
            "a disruption budget of its pool allows no removal now".to_owned()
        }
        BlockReason::ProtectedPod { workload, budget } => {
            format!("disruption budget {budget} never lets a pod of {workload} be evicted")
        }
        BlockReason::JobMightFail { job, why } => format!("{job} {why}"),
        BlockReason::StaticPool => "its pool has a fixed number of nodes".to_owned(),
        BlockReason::GroupMinimum { minimum } => {
            format!("its group has at least {}", count(*minimum, "node"))
        }
        BlockReason::GroupObserved { why } => format!("its group is observe-only: {why}"),
        BlockReason::InTurn => {
            "another node of its pool, which has a fixed number, is replaced first".to_owned()
        }
        BlockReason::NodeLimit { limit } => {
            format!("replacing it needs one node more than its pool's limit of {limit}")
        }
        BlockReason::PoolLimits { limits } => {
            format!("replacing it needs more than the limits of its pool allow: {limits}")
        }
    }
}

/// Returns workloads with their pod counts, largest first.
pub(super) fn workloads<K: Ord + Display>(pods: &BTreeMap<K, u32>, most: usize) -> String {
    let mut rows: Vec<_> = pods.iter().collect();
    rows.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), *name));
    let rows: Vec<String> = rows.into_iter().map(|(name, n)| format!("{name} x{n}")).collect();
    list(&rows, most)
}

/// Returns a rejection in words, with its count and detail.
pub(super) fn rejection(rejection: &Rejection) -> String {
    let Rejection { reason, detail, count } = rejection;
    // The code is older than the words.
    let words = match reason.as_str() {
        "dearer" => "more expensive".to_owned(),
        reason => reason.replace('-', " "),
    };
    if detail.is_empty() {
        format!("{count} {words}")
    } else {
        format!("{count} {words} ({detail})")
    }
}

/// Returns a cause of unschedulable pods: its count, code and detail.
pub(super) fn cause(rejection: &Rejection) -> String {
    let Rejection { reason, detail, count } = rejection;
    let count = if *count == 0 { String::new() } else { format!("{count} ") };
    format!("{count}[{reason}] {detail}").trim_end().to_owned()
}

/// Returns the source of a replica count in a plan.
pub(super) fn decider(decider: &Decider, plan: &Plan) -> String {
    match decider {
        Decider::Git => "the repository".to_owned(),
        Decider::World if is_incomplete(plan) => {
            "the cluster, as it is not in the files that could be read".to_owned()
        }
        Decider::World => "the cluster, as the repository does not declare it".to_owned(),
        Decider::Removed => "its removal from the repository".to_owned(),
        Decider::Schedule { because } if because.is_empty() => "its schedule".to_owned(),
        Decider::Schedule { because } => format!("its schedule ({because})"),
        Decider::Autoscaler { autoscaler, origin, because, next: _ } => {
            format!("{autoscaler} at {origin} ({because})")
        }
        Decider::Buffer { because } => format!("spare capacity ({because})"),
    }
}

/// Returns a condition that must hold when a change is applied.
pub(super) fn condition(condition: &Condition) -> String {
    match condition {
        Condition::InstanceIs { instance_id, node_uid: Some(uid) } => {
            format!("instance {instance_id} exists, and its node has UID {uid}")
        }
        Condition::InstanceIs { instance_id, node_uid: None } => {
            format!("instance {instance_id} exists")
        }
        Condition::GroupIs { group, desired } => {
            format!("group {group} has a desired size of {desired}")
        }
        Condition::KeyUnused { pool, key } => {
            format!("no instance of pool {pool} has key {key}")
        }
        Condition::ReplicasAtMost { workload, replicas: 0 } => {
            format!("{workload} runs no replicas")
        }
        Condition::ReplicasAtMost { workload, replicas } => {
            format!("{workload} runs at most {}", count(*replicas, "replica"))
        }
    }
}

/// Returns the actions of a wave.
pub(super) fn wave(step: WaveStep) -> &'static str {
    match step {
        WaveStep::Launch => "launch, and wait until Ready",
        WaveStep::Retire => "cordon, drain, terminate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::reason::DriftedField;
    use crate::model::units::MicroUsd;

    #[test]
    fn pods_of_removed_nodes_do_not_count_as_pods_without_room() {
        let pods = BTreeMap::from([("web/a".to_owned(), 2)]);
        assert_eq!(demand(&pods, 2), "2 pods have no room: web/a x2");
        let mixed = "2 pods have no room: web/a x2; it also takes 1 pod of removed nodes";
        assert_eq!(demand(&pods, 3), mixed);
        assert_eq!(demand(&BTreeMap::new(), 1), "takes 1 pod of removed nodes");
        let other = "no pod needs it in the declared order of arrival, but another order does";
        assert_eq!(demand(&BTreeMap::new(), 0), other);
    }

    #[test]
    fn reasons_include_their_numbers() {
        let saves_hourly = MicroUsd(96_000);
        let pods = BTreeMap::from([("web/a".into(), 1), ("web/b".into(), 3), ("x/c".into(), 1)]);
        let because = Box::new(RetireReason::Expired { age_hours: 30, limit_hours: 24 });
        for (text, expected) in [
            (
                launch(&LaunchReason::Demand { pods }),
                "5 pods have no room: web/b x3, web/a x1 and 1 more",
            ),
            (
                launch(&LaunchReason::Consolidation { saves_hourly, moves: 1 }),
                "takes the pods of more expensive nodes: saves $0.0960/h, moves 1 pod",
            ),
            (
                launch(&LaunchReason::Replacement { of: "a.b".into(), because }),
                "replaces a.b: 30 h old, its pool allows 24 h",
            ),
            (
                retire(&RetireReason::Underutilized { saves_hourly, moves: 2, payback_hours: 3 }),
                "its pods move to other nodes: saves $0.0960/h, moves 2 pods, pays back in 3 h",
            ),
            (
                retire(&RetireReason::Underutilized { saves_hourly, moves: 0, payback_hours: 0 }),
                "no planned pod needs it: saves $0.0960/h; pods that still run there are evicted",
            ),
            (
                retire(&RetireReason::Underutilized {
                    saves_hourly: MicroUsd::ZERO,
                    moves: 1,
                    payback_hours: 0,
                }),
                "its pods move to nodes that new pods need as well: moves 1 pod",
            ),
            (
                retire(&RetireReason::Underutilized {
                    saves_hourly: MicroUsd::ZERO,
                    moves: 0,
                    payback_hours: 0,
                }),
                "no planned pod needs it; pods that still run there are evicted",
            ),
            (
                retire(
                    &DriftedField::changed_after_launch(
                        "amiSelectorTerms of node class default".to_owned(),
                    )
                    .into(),
                ),
                "drifted: amiSelectorTerms of node class default changed after the launch",
            ),
            (
                rejection(&Rejection {
                    reason: "too-small".into(),
                    detail: "memory: needs 96Gi, largest has 61Gi".into(),
                    count: 212,
                }),
                "212 too small (memory: needs 96Gi, largest has 61Gi)",
            ),
        ] {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn reasons_of_retained_nodes_include_their_numbers() {
        let (saves_hourly, needed_hourly) = (MicroUsd(96_000), MicroUsd(100_000));
        for (text, expected) in [
            (
                keep(&KeepReason::Needed { pods: 1, within_budget: false }),
                "needed by 1 pod; no cheaper replacement was found",
            ),
            (
                keep(&KeepReason::Needed { pods: 44, within_budget: true }),
                "needed by 44 pods; no cheaper replacement was found within the disruption budget \
                 of its pool",
            ),
            (
                keep(&KeepReason::NotWorthMoving {
                    saves_hourly,
                    needed_hourly,
                    moves: 9,
                    nodes: None,
                }),
                "not worth moving 9 pods: saves $0.0960/h, would have to save $0.1000/h",
            ),
            (
                keep(&KeepReason::NotWorthMoving {
                    saves_hourly,
                    needed_hourly,
                    moves: 9,
                    nodes: Some(2),
                }),
                "not worth moving 9 pods: replacing 2 nodes saves $0.0960/h, would have to save \
                 $0.1000/h, a share of the fleet's price",
            ),
        ] {
            assert_eq!(text, expected);
        }
    }
}
