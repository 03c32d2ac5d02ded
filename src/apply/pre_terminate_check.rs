//! The last check before a termination: reads the node and its pods directly from the API server.

use crate::apply::ports::{Cluster, NodeAndPods, PortError};
use crate::demand::DoNotDisrupt;
use crate::model::observed::{Node, Pod, SCALE_DOWN_DISABLED_ANNOTATION};

/// Pods with which an instance may be terminated, besides those of DaemonSets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodsLeft {
    /// No pods.
    None,
    /// Pods that are stopping: the grace period of their node has ended.
    Stopping,
}

/// Returns the reason to keep the instance of `observed`, a node that was observed cordoned and
/// with no pods but `left`; `None` if this still holds.
///
/// An observation is seconds old after many terminations, and a watch cache may lag. It misses pods
/// that were bound just before the cordon, or after another client reverted it.
///
/// # Errors
/// If the node or its pods cannot be read.
pub(crate) async fn termination_blocker<K: Cluster>(
    cluster: &K,
    observed: &Node,
    left: PodsLeft,
) -> Result<Option<String>, PortError> {
    Ok(cluster.node(&observed.name).await?.termination_blocker(observed, left))
}

/// Returns the reason to delete no pod of `observed`, a node that was observed cordoned; `None` if it
/// still is.
///
/// # Errors
/// If the node or its pods cannot be read.
pub(super) async fn deletion_blocker<K: Cluster>(
    cluster: &K,
    observed: &Node,
) -> Result<Option<String>, PortError> {
    Ok(cluster.node(&observed.name).await?.node_blocker(observed))
}

/// Returns the reason to stop if another client uncordoned a node after its drain cordon. New pods
/// may arrive at any time, even if the last observation shows none.
pub(super) fn uncordon_reason(node: &Node) -> Option<String> {
    (!node.unschedulable).then(|| format!("node `{}` was uncordoned", node.name))
}

/// Returns true if the owner of the node has disabled its disruption.
pub(super) fn has_do_not_disrupt(node: &Node) -> bool {
    let scale_down_disabled = node.annotations.get(SCALE_DOWN_DISABLED_ANNOTATION);
    DoNotDisrupt::from_annotations(&node.annotations) == DoNotDisrupt::Always
        || scale_down_disabled.is_some_and(|value| value == "true")
}

impl NodeAndPods {
    /// Returns the reason to leave the node alone: it differs from `observed`.
    fn node_blocker(&self, observed: &Node) -> Option<String> {
        let name = &observed.name;
        let Some(node) = self.node.as_ref().filter(|node| node.uid == observed.uid) else {
            return Some(format!("node `{name}` is gone, or another one has its name"));
        };
        if let Some(why) = uncordon_reason(node) {
            return Some(why);
        }
        if has_do_not_disrupt(node) && !has_do_not_disrupt(observed) {
            return Some(format!("node `{name}` has a do-not-disrupt annotation"));
        }
        None
    }

    fn termination_blocker(&self, observed: &Node, left: PodsLeft) -> Option<String> {
        let node_blocker = self.node_blocker(observed);
        if node_blocker.is_some() {
            return node_blocker;
        }
        let may_stay = |pod: &Pod| pod.terminating && left == PodsLeft::Stopping;
        let pod = self.pods.iter().find(|pod| pod.needs_eviction() && !may_stay(pod))?;
        Some(format!(
            "pod `{}/{}` was bound to node `{}` after the cordon",
            pod.namespace, pod.name, observed.name
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::ids::{WorkloadId, WorkloadKind};
    use crate::model::observed::PodPhase;
    use crate::testing::{Scenario, workload_id};

    #[test]
    fn only_a_cordoned_empty_node_may_be_terminated() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        scenario.step(1);
        let observed = &scenario.observed;
        let mut cordoned = observed.nodes.values().next().expect("a node").clone();
        cordoned.unschedulable = true;
        let pod = |owner, phase| {
            let mut pod = observed.pods.first().expect("a pod").as_ref().clone();
            (pod.owner, pod.phase) = (Some(owner), phase);
            Arc::new(pod)
        };
        let daemon = WorkloadId { kind: WorkloadKind::DaemonSet, ..workload_id() };
        let with_change = |change: &dyn Fn(&mut Node)| {
            let mut node = cordoned.clone();
            change(&mut node);
            Some(node)
        };
        let protect = |node: &mut Node| {
            node.annotations.insert("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned());
        };
        for (rule, node, pods, is_allowed) in [
            ("unchanged", with_change(&|_| {}), vec![], true),
            ("a daemon", with_change(&|_| {}), vec![pod(daemon, PodPhase::Running)], true),
            (
                "a finished pod",
                with_change(&|_| {}),
                vec![pod(workload_id(), PodPhase::Succeeded)],
                true,
            ),
            ("a pod", with_change(&|_| {}), vec![pod(workload_id(), PodPhase::Running)], false),
            ("uncordoned", with_change(&|node| node.unschedulable = false), vec![], false),
            ("do-not-disrupt", with_change(&protect), vec![], false),
            ("another node", with_change(&|node| node.uid = "another".into()), vec![], false),
            ("deleted", None, vec![], false),
        ] {
            let why = NodeAndPods { node, pods }.termination_blocker(&cordoned, PodsLeft::None);
            assert_eq!(why.is_none(), is_allowed, "{rule}: {why:?}");
        }
        for (terminating, left, is_allowed) in [
            (true, PodsLeft::None, false),
            (true, PodsLeft::Stopping, true),
            (false, PodsLeft::Stopping, false),
        ] {
            let mut last = pod(workload_id(), PodPhase::Running);
            Arc::make_mut(&mut last).terminating = terminating;
            let read = NodeAndPods { node: Some(cordoned.clone()), pods: vec![last] };
            let why = read.termination_blocker(&cordoned, left);
            assert_eq!(why.is_none(), is_allowed, "{terminating} {left:?}: {why:?}");
        }
    }
}
