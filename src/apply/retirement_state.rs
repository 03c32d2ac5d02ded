//! Observed state of a node to retire, compared with the approved one.

use super::wave_plan::RetireWork;
use crate::model::observed::{Instance, InstanceState, Observed};
use crate::model::plural::count;

/// Reasons to keep an instance that EC2 does not show as ours.
const TAGS_LOST: &str =
    "the instance lost the tags of Fleetwright; restore them, or terminate it by hand";
pub(super) const UNLISTED: &str = "EC2 does not list the instance, which may run; its node stays";

/// Observed state of a node to retire.
pub(super) enum RetirementState<'o> {
    /// The instance no longer runs, and its node does not exist.
    Absent,
    /// The instance is terminating, or only its node exists.
    Terminating,
    /// Instance and node are as approved.
    Approved(&'o Instance),
    /// The instance or the node differs from the approved one, with the reason.
    Changed(String),
}

/// Compares a node to retire with the approved one.
pub(super) fn retirement_state<'o>(
    work: &RetireWork<'_>,
    observed: &'o Observed,
) -> RetirementState<'o> {
    let node = observed.node_for_instance(work.instance);
    let Some(instance) = observed.instances.get(work.instance) else {
        return match node {
            None => RetirementState::Absent,
            Some(_) if observed.may_run_unlisted(work.instance) => {
                RetirementState::Changed(UNLISTED.to_owned())
            }
            Some(_) => RetirementState::Terminating,
        };
    };
    let ended = instance.state == InstanceState::Terminated;
    if ended && node.is_none() {
        return RetirementState::Absent;
    }
    if instance.has_ended() {
        return RetirementState::Terminating;
    }
    let group = instance.group.as_ref().map(|group| &group.name);
    let is_member = group.is_some() && group == work.group_name;
    if !instance.is_managed_by(&observed.cluster.name) && !is_member {
        return RetirementState::Changed(TAGS_LOST.to_owned());
    }
    match (node.map(|node| &node.uid), &work.node.node_uid) {
        (found, expected) if found == expected.as_ref() => RetirementState::Approved(instance),
        (Some(found), _) => {
            RetirementState::Changed(format!("the node is another one now, UID {found}"))
        }
        (None, _) => RetirementState::Changed("the node is no longer registered".to_owned()),
    }
}

/// Returns true if the instance of a node to retire has ended, or is terminating.
pub(super) fn has_ended(work: &RetireWork<'_>, observed: &Observed) -> bool {
    match retirement_state(work, observed) {
        RetirementState::Absent | RetirementState::Terminating => true,
        RetirementState::Approved(_) | RetirementState::Changed(_) => false,
    }
}

/// Returns a text about a workload with more replicas than planned, if any.
pub(super) fn excess_replicas(work: &RetireWork<'_>, observed: &Observed) -> Option<String> {
    work.max_replicas.iter().find_map(|(id, most)| {
        let replicas = observed.workloads.iter().find(|live| live.id == **id)?.replicas;
        (replicas > *most).then(|| {
            let replicas = count(replicas, "replica");
            format!("{} `{id}` has {replicas}, the plan counts on {most}", id.kind)
        })
    })
}
