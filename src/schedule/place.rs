//! What labels, taints and cordons of nodes alone decide, worked out once for each wish of pods.
//!
//! Source: `pkg/scheduler/framework/plugins/{nodeunschedulable,nodename,nodeaffinity,tainttoleration}`.

use super::ScheduleNode;
use crate::demand::NodeChoice;
use crate::pod::{Taint, TaintEffect, Toleration, untolerated};
use crate::requirement::Requirements;

/// The taint that stands for a cordon.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// What does not change while pods come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fits,
    Cordoned,
    OtherNode,
    Tainted,
    NotChosen,
}

/// One node as pods of one wish see it.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeView {
    pub(super) verdict: Verdict,
    /// Whether node selector and required affinity hold.
    pub(super) chosen: bool,
    /// Whether the pods' volumes can be reached from it as well.
    pub(super) reachable: bool,
    /// Whether every taint that forbids is tolerated.
    pub(super) tolerated: bool,
    /// Sum of the weights of the preferred terms that hold.
    pub(super) wish: i64,
    /// Taints that discourage and are not tolerated.
    pub(super) discouraged: i64,
}

/// All nodes as pods with this choice of nodes and these tolerations see them.
#[derive(Debug, Clone)]
pub(super) struct View {
    choice: NodeChoice,
    tolerations: Vec<Toleration>,
    nodes: Vec<NodeView>,
    /// Whether some node was ever discouraged; otherwise taints score all nodes alike.
    pub(super) discourages: bool,
}

impl View {
    pub(super) fn new(choice: &NodeChoice, tolerations: &[Toleration]) -> Self {
        Self {
            choice: choice.clone(),
            tolerations: tolerations.to_vec(),
            nodes: Vec::new(),
            discourages: false,
        }
    }

    /// Adds the next node, or judges the one at `index` anew.
    pub(super) fn judge(&mut self, index: usize, node: &ScheduleNode) {
        let view = self.look(node);
        self.discourages |= view.discouraged > 0;
        match self.nodes.get_mut(index) {
            Some(held) => *held = view,
            None => self.nodes.push(view),
        }
    }

    pub(super) fn node(&self, index: usize) -> &NodeView {
        &self.nodes[index]
    }

    /// Returns whether the pods prefer some nodes.
    pub(super) fn wishes(&self) -> bool {
        !self.choice.preferred.is_empty()
    }

    fn look(&self, node: &ScheduleNode) -> NodeView {
        let NodeChoice { any_of, preferred, name, without_volumes: _ } = &self.choice;
        let cordon = cordon();
        let cordoned = node.unschedulable && !self.tolerations.iter().any(|t| t.tolerates(&cordon));
        let other = name.as_ref().is_some_and(|name| name.as_str() != node.name.as_str());
        let taints = taints(node);
        let tolerated = untolerated(&taints, &self.tolerations).is_none();
        let holds = |terms: &Requirements| terms.match_labels(&node.labels);
        let chosen = !other && self.choice.stated().iter().any(holds);
        let reachable = any_of.iter().any(holds);
        // A preferred term without expressions stands for nothing and adds nothing.
        let held = preferred
            .iter()
            .filter(|(_, term)| !term.is_unconstrained() && term.match_labels(&node.labels));
        NodeView {
            verdict: match (cordoned, other, tolerated, chosen) {
                (true, ..) => Verdict::Cordoned,
                (_, true, ..) => Verdict::OtherNode,
                (_, _, false, _) => Verdict::Tainted,
                (_, _, _, false) => Verdict::NotChosen,
                (false, false, true, true) => Verdict::Fits,
            },
            chosen,
            reachable,
            tolerated,
            wish: held.map(|(weight, _)| i64::from(*weight)).sum(),
            discouraged: discouraging(&taints, &self.tolerations),
        }
    }
}

/// Returns the taint that a cordon mirrors.
fn cordon() -> Taint {
    Taint { key: UNSCHEDULABLE.into(), value: "".into(), effect: TaintEffect::NoSchedule }
}

/// Returns the taints of `node`, with the one that mirrors a cordon.
fn taints(node: &ScheduleNode) -> Vec<Taint> {
    let mirrored = node.taints.iter().any(|taint| taint.key.as_str() == UNSCHEDULABLE);
    let cordon = (node.unschedulable && !mirrored).then(cordon);
    node.taints.iter().cloned().chain(cordon).collect()
}

/// Counts the taints of effect `PreferNoSchedule` that are not tolerated.
fn discouraging(taints: &[Taint], tolerations: &[Toleration]) -> i64 {
    let soft = taints.iter().filter(|taint| taint.effect == TaintEffect::PreferNoSchedule);
    let bad = soft.filter(|taint| !tolerations.iter().any(|t| t.tolerates(taint)));
    bad.map(|_| 1).sum()
}
