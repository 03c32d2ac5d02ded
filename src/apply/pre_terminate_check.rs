//! The last look before a machine ends: its node by itself, past whatever shows many objects late.

use crate::apply::ports::{Cluster, NodeAndPods, PortError};
use crate::demand::DoNotDisrupt;
use crate::model::observed::{Node, SCALE_DOWN_DISABLED_ANNOTATION};

/// Returns why the machine of `seen`, a node that was seen cordoned and empty, is not to end now; `None` where the node
/// stands so at this moment.
///
/// A look at everything is seconds old by the time that many machines were told to end by it, and one that watches make
/// may lag: what was bound before the cordon, or since somebody took it back, is on no such look.
///
/// # Errors
/// When the node or its pods cannot be read.
pub(crate) async fn termination_blocker<K: Cluster>(
    cluster: &K,
    seen: &Node,
) -> Result<Option<String>, PortError> {
    Ok(cluster.node(&seen.name).await?.termination_blocker(seen))
}

/// Returns whether whoever administers the node wants it to stay.
pub(super) fn has_do_not_disrupt(node: &Node) -> bool {
    let disabled = node.annotations.get(SCALE_DOWN_DISABLED_ANNOTATION);
    DoNotDisrupt::from_annotations(&node.annotations) == DoNotDisrupt::Always
        || disabled.is_some_and(|value| value == "true")
}

impl NodeAndPods {
    fn termination_blocker(&self, seen: &Node) -> Option<String> {
        let name = &seen.name;
        let Some(node) = self.node.as_ref().filter(|node| node.uid == seen.uid) else {
            return Some(format!("node `{name}` is gone, or another one has its name"));
        };
        if !node.unschedulable {
            return Some(format!("somebody uncordoned node `{name}`"));
        }
        if has_do_not_disrupt(node) && !has_do_not_disrupt(seen) {
            return Some(format!("node `{name}` asks not to be disrupted"));
        }
        let pod = self.pods.iter().find(|pod| pod.needs_eviction())?;
        Some(format!("pod `{}/{}` came to node `{name}`", pod.namespace, pod.name))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::ids::{WorkloadId, WorkloadKind};
    use crate::model::observed::PodPhase;
    use crate::testing::{Story, workload_id};

    #[test]
    fn a_machine_ends_only_while_its_node_is_the_one_that_was_seen_and_cordoned_and_empty() {
        let mut story = Story::new(&["m5.large"], 500, 512);
        story.step(1);
        let observed = &story.observed;
        let mut seen = observed.nodes.values().next().expect("a node").clone();
        seen.unschedulable = true;
        let pod = |owner, phase| {
            let mut pod = observed.pods.first().expect("a pod").as_ref().clone();
            (pod.owner, pod.phase) = (Some(owner), phase);
            Arc::new(pod)
        };
        let daemon = WorkloadId { kind: WorkloadKind::DaemonSet, ..workload_id() };
        let changed = |change: &dyn Fn(&mut Node)| {
            let mut node = seen.clone();
            change(&mut node);
            Some(node)
        };
        let pins = |node: &mut Node| {
            node.annotations.insert("karpenter.sh/do-not-disrupt".to_owned(), "true".to_owned());
        };
        for (what, node, pods, goes) in [
            ("as it was seen", changed(&|_| {}), vec![], true),
            ("a daemon", changed(&|_| {}), vec![pod(daemon, PodPhase::Running)], true),
            ("ended", changed(&|_| {}), vec![pod(workload_id(), PodPhase::Succeeded)], true),
            ("a pod", changed(&|_| {}), vec![pod(workload_id(), PodPhase::Running)], false),
            ("uncordoned", changed(&|node| node.unschedulable = false), vec![], false),
            ("pinned", changed(&pins), vec![], false),
            ("another", changed(&|node| node.uid = "another".into()), vec![], false),
            ("gone", None, vec![], false),
        ] {
            let why = NodeAndPods { node, pods }.termination_blocker(&seen);
            assert_eq!(why.is_none(), goes, "{what}: {why:?}");
        }
    }
}
