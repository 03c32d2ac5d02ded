//! Filters on labels, taints and cordons, computed once for each node choice and tolerations of
//! pods.
//!
//! Source:
//! `pkg/scheduler/framework/plugins/{nodeunschedulable,nodename,nodeaffinity,tainttoleration}`.

use super::ScheduleNode;
use crate::demand::NodeChoice;
use crate::model::pod::{Taint, TaintEffect, Toleration, untolerated};
use crate::model::requirement::Requirements;

/// The taint that mirrors a cordon.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Result of the filters that do not depend on other pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeMatch {
    Fits,
    Cordoned,
    OtherNodeName,
    Tainted,
    AffinityMismatch,
}

/// One node as seen by pods with one node choice.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeView {
    pub(super) node_match: NodeMatch,
    /// True if node selector and required affinity match.
    pub(super) affinity_matches: bool,
    /// True if the pods' volumes are reachable from it as well.
    pub(super) volumes_reachable: bool,
    /// True if every `NoSchedule` and `NoExecute` taint is tolerated.
    pub(super) tolerated: bool,
    /// Sum of the weights of the matching preferred terms.
    pub(super) preferred_weight: i64,
    /// Number of `PreferNoSchedule` taints that are not tolerated.
    pub(super) prefer_no_schedule: i64,
}

/// All nodes as seen by pods with one node choice and these tolerations.
#[derive(Debug, Clone)]
pub(super) struct NodeViews {
    choice: NodeChoice,
    tolerations: Vec<Toleration>,
    nodes: Vec<NodeView>,
    /// True if any node ever had such a `PreferNoSchedule` taint; otherwise taints score all nodes
    /// equally.
    pub(super) has_prefer_no_schedule: bool,
}

impl NodeViews {
    pub(super) fn new(choice: &NodeChoice, tolerations: &[Toleration]) -> Self {
        Self {
            choice: choice.clone(),
            tolerations: tolerations.to_vec(),
            nodes: Vec::new(),
            has_prefer_no_schedule: false,
        }
    }

    /// Adds the next node, or updates the one at `index`.
    pub(super) fn update(&mut self, index: usize, node: &ScheduleNode) {
        let view = self.view_of(node);
        self.has_prefer_no_schedule |= view.prefer_no_schedule > 0;
        match self.nodes.get_mut(index) {
            Some(matching) => *matching = view,
            None => self.nodes.push(view),
        }
    }

    pub(super) fn node(&self, index: usize) -> &NodeView {
        &self.nodes[index]
    }

    pub(super) fn has_preferences(&self) -> bool {
        !self.choice.preferred.is_empty()
    }

    fn view_of(&self, node: &ScheduleNode) -> NodeView {
        let NodeChoice { any_of, preferred, name, without_volumes: _ } = &self.choice;
        let cordon = cordon_taint();
        let cordoned = node.unschedulable && !self.tolerations.iter().any(|t| t.tolerates(&cordon));
        let other = name.as_ref().is_some_and(|name| name.as_str() != node.name.as_str());
        let taints = taints(node);
        let tolerated = untolerated(&taints, &self.tolerations).is_none();
        let holds = |terms: &Requirements| terms.matches_labels(&node.labels);
        let chosen = !other && self.choice.stated().iter().any(holds);
        let reachable = any_of.iter().any(holds);
        // A preferred term without expressions matches nothing.
        let matching = preferred
            .iter()
            .filter(|(_, term)| !term.is_unconstrained() && term.matches_labels(&node.labels));
        NodeView {
            node_match: match (cordoned, other, tolerated, chosen) {
                (true, ..) => NodeMatch::Cordoned,
                (_, true, ..) => NodeMatch::OtherNodeName,
                (_, _, false, _) => NodeMatch::Tainted,
                (_, _, _, false) => NodeMatch::AffinityMismatch,
                (false, false, true, true) => NodeMatch::Fits,
            },
            affinity_matches: chosen,
            volumes_reachable: reachable,
            tolerated,
            preferred_weight: matching.map(|(weight, _)| i64::from(*weight)).sum(),
            prefer_no_schedule: untolerated_prefer_no_schedule(&taints, &self.tolerations),
        }
    }
}

fn cordon_taint() -> Taint {
    Taint { key: UNSCHEDULABLE.into(), value: "".into(), effect: TaintEffect::NoSchedule }
}

/// Returns the taints of `node`, including the one that mirrors a cordon.
fn taints(node: &ScheduleNode) -> Vec<Taint> {
    let mirrored = node.taints.iter().any(|taint| taint.key.as_str() == UNSCHEDULABLE);
    let cordon = (node.unschedulable && !mirrored).then(cordon_taint);
    node.taints.iter().cloned().chain(cordon).collect()
}

fn untolerated_prefer_no_schedule(taints: &[Taint], tolerations: &[Toleration]) -> i64 {
    let soft = taints.iter().filter(|taint| taint.effect == TaintEffect::PreferNoSchedule);
    let bad = soft.filter(|taint| !tolerations.iter().any(|t| t.tolerates(taint)));
    bad.map(|_| 1).sum()
}
