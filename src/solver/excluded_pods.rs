//! Pods excluded from placement: kube-scheduler does not place them, or not yet, or by features
//! that a plan cannot predict. They are counted and reported with the necessary change.

use std::collections::BTreeMap;

use super::Input;
use super::candidate_pools::may_run_in_auto_mode;
use crate::demand::{PodGroup, PodShape, PodVolume, Unsupported, VolumeProblem, claim_problem};
use crate::model::code::Code;
use crate::model::ids::WorkloadId;
use crate::model::pod::PodSpec;
use crate::model::reason::Rejection;

/// Returns the reason why pods of `group` are excluded, and the change that would include them.
/// `queue_reasons` states why Kueue holds pods, by workload.
pub(super) fn exclusion_reason(
    feature: Unsupported,
    group: &PodGroup,
    input: &Input,
    queue_reasons: &BTreeMap<WorkloadId, String>,
    offerings: u32,
) -> (Rejection, Option<String>) {
    let nothing = PodSpec::default();
    let workload = input.desired.workloads.get(&group.workload);
    let spec = workload.map_or(&nothing, |workload| &workload.template.spec);
    let (reason, detail, nearest) = match feature {
        Unsupported::Volumes => {
            let waits = group.shape.volumes.iter().find_map(PodVolume::problem_text);
            let why = || "the location of its volumes is unknown".to_owned();
            let is_disk = |volume: &PodVolume| volume.problem == Some(VolumeProblem::UnknownDisk);
            let has_disk = group.shape.volumes.iter().find(|volume| volume.problem.is_some());
            let remedy = has_disk.is_some_and(is_disk).then_some(
                "declare the disk as a PersistentVolume with its zone in nodeAffinity, and use it \
                 by a claim",
            );
            (Code::VolumeNotReady, waits.unwrap_or_else(why), remedy)
        }
        Unsupported::OtherScheduler => (
            Code::OtherScheduler,
            format!(
                "{} schedules the pod, and only default-scheduler is simulated",
                spec.scheduler_name.as_deref().unwrap_or("another scheduler")
            ),
            Some("remove schedulerName, or declare its nodes in a separate pool"),
        ),
        Unsupported::SchedulingGates => {
            let (detail, nearest) =
                gate_reason(queue_reasons.get(&group.workload), &spec.scheduling_gates);
            (Code::Gated, detail, Some(nearest))
        }
        Unsupported::ResourceClaims => (
            Code::ResourceClaims,
            claim_problem(input.desired, &group.workload.namespace, spec)
                .unwrap_or_else(|| "the pod claims devices that are not known".to_owned()),
            Some("claim a number of whole devices of a known class by a ResourceClaimTemplate"),
        ),
        Unsupported::TooManyPodRules => (
            Code::TooManyPodRules,
            "its rules about other pods select more workloads than one plan considers for its \
             namespace, so it is not placed in time"
                .to_owned(),
            Some("select fewer workloads in podAffinity and podAntiAffinity"),
        ),
        Unsupported::NodeName => {
            let name = group.shape.nodes.name.as_deref().unwrap_or_default();
            let why = if input.observed.nodes.contains_key(name) {
                "which has no room for it"
            } else {
                "which does not exist, and new nodes get other names"
            };
            (
                Code::NamesItsNode,
                format!("the pod names node {name}, {why}"),
                Some("remove nodeName, and select nodes by labels"),
            )
        }
    };
    let rejection = Rejection { reason: reason.to_string(), detail, count: offerings };
    (rejection, nearest.map(str::to_owned))
}

/// Returns why pods with scheduling gates need no node, and what to do about it.
fn gate_reason(of_queue: Option<&String>, gates: &[String]) -> (String, &'static str) {
    match of_queue {
        Some(why) => {
            (why.clone(), "wait for its queue: until Kueue admits it, the pod needs no node")
        }
        None => (
            format!("the pod waits for its scheduling gates: {}", list(gates)),
            "remove the gates: until they are removed, the pod needs no node",
        ),
    }
}

/// Returns the reason for pods that a pool of EKS Auto Mode may run; `None` if no such pool admits
/// them.
pub(super) fn auto_mode_reason(
    shape: &PodShape,
    input: &Input,
    offerings: u32,
) -> Option<Rejection> {
    let mut pools = input.desired.auto_mode_pools.iter();
    let (name, _) = pools.find(|(name, pool)| may_run_in_auto_mode(shape, name, pool))?;
    Some(Rejection {
        reason: Code::EksAutoMode.to_string(),
        detail: format!(
            "NodePool {name} of EKS Auto Mode may run the pod, and its nodes are not planned"
        ),
        count: offerings,
    })
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "unnamed".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::model::pod::PodSpec;
    use crate::testing::{Scenario, workload_id};

    /// Returns the number, reason, detail and suggested change of two pods with a changed spec.
    fn excluded_with(change: impl Fn(&mut PodSpec)) -> (u32, String, String, Option<String>) {
        let mut scenario = Scenario::new(&["m5.large"], 500, 1);
        scenario.scale(2);
        let workload = scenario.desired.workloads.get_mut(&workload_id()).expect("declared");
        change(&mut Arc::make_mut(&mut workload.template).spec);
        let target = scenario.solve().target;
        assert!(target.launches.is_empty() && target.placements.is_empty());
        let [unplaced] = target.unschedulable.try_into().expect("one workload");
        let rejection = unplaced.rejections.into_iter().next().expect("a reason");
        (unplaced.pods, rejection.reason, rejection.detail, unplaced.suggested_change)
    }

    #[test]
    fn excluded_pods_are_counted_with_their_own_reason() {
        type Case = (&'static str, fn(&mut PodSpec), &'static str);
        let cases: [Case; 4] = [
            (
                "other-scheduler",
                |spec| spec.scheduler_name = Some("volcano".to_owned()),
                "volcano schedules the pod, and only default-scheduler is simulated",
            ),
            (
                "gated",
                |spec| spec.scheduling_gates = vec!["quota".to_owned(), "net".to_owned()],
                "the pod waits for its scheduling gates: quota, net",
            ),
            (
                "resource-claims",
                |spec| spec.resource_claims = vec!["gpu".to_owned()],
                "claim gpu names a ResourceClaim, whose devices several pods may share",
            ),
            (
                "names-its-node",
                |spec| spec.node_name = Some("n7".to_owned()),
                "the pod names node n7, which does not exist, and new nodes get other names",
            ),
        ];
        for (reason, change, detail) in cases {
            let (pods, found, found_detail, nearest) = excluded_with(change);
            assert_eq!((pods, found.as_str(), found_detail.as_str()), (2, reason, detail));
            assert!(nearest.is_some(), "{reason}: something would help");
        }
    }
}
