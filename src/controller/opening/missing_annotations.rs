//! Annotations of nodes that opened without them: another client opened them, or their plan was
//! unknown.
//!
//! Invariants: only nodes that Fleetwright launched are annotated. Nothing is written in mode
//! `observe`, or from a partial observation.

use jiff::SignedDuration;

use crate::apply::{is_unannotated, opening_annotations};
use crate::controller::event::Effect;
use crate::controller::state::ControllerState;
use crate::model::observed::Node;
use crate::model::saturating_time::later;

/// Interval between two attempts for one node.
const RETRY_INTERVAL: SignedDuration = SignedDuration::from_mins(5);

impl ControllerState {
    /// Annotates open nodes that lack the annotations of their launch.
    pub(in super::super) fn annotate_nodes(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now;
        self.opening.annotated_at.retain(|_, at| now < later(*at, RETRY_INTERVAL));
        let world = self.observation.latest.clone().filter(|seen| seen.is_complete());
        let plan = self.planning.current.as_ref().map(|current| current.plan.clone());
        let (Some(world), Some(plan)) = (world, plan) else { return };
        if plan.capacity.node_annotations.is_empty() || !self.may_act() {
            return;
        }
        let opening = &self.opening;
        let is_due = |node: &&Node| {
            is_unannotated(node, &world)
                && !opening.in_progress.contains(&node.uid)
                && !opening.opened_at.contains_key(&node.uid)
                && !opening.annotated_at.contains_key(&node.uid)
        };
        let mut nodes: Vec<Node> = world.nodes.values().filter(is_due).cloned().collect();
        let annotations = opening_annotations(&plan, &world, &nodes);
        nodes.retain(|node| annotations.contains_key(&node.uid));
        if nodes.is_empty() {
            return;
        }
        self.opening.annotated_at.extend(nodes.iter().map(|node| (node.uid.clone(), now)));
        effects.push(Effect::OpenNodes { nominations: Vec::new(), nodes, annotations });
    }
}
