//! Annotations of nodes that opened without them: another client opened them, EC2 or their plan was
//! unknown, or a write with their annotations failed.
//!
//! Invariants: only nodes that Fleetwright launched are annotated. Nothing is written in mode
//! `observe`, or from a partial observation.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::apply::{is_unannotated, opening_annotations};
use crate::controller::event::Effect;
use crate::controller::state::ControllerState;
use crate::model::ids::Uid;
use crate::model::observed::Node;
use crate::model::saturating_time::{doubling_delay, later};

/// Interval between the first two attempts for one node. Each further interval is twice as long.
const FIRST_INTERVAL: SignedDuration = SignedDuration::from_mins(5);
/// Longest interval between two attempts for one node: an admission webhook may refuse the
/// annotations for good.
const INTERVAL_MAX: SignedDuration = SignedDuration::from_hours(1);

/// Attempts to annotate an open node.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnnotationAttempts {
    /// Time of the last one.
    last: Timestamp,
    /// Number of attempts before it.
    earlier: u32,
}

impl AnnotationAttempts {
    fn next_at(self) -> Timestamp {
        later(self.last, doubling_delay(FIRST_INTERVAL, self.earlier, INTERVAL_MAX))
    }
}

impl ControllerState {
    /// Annotates open nodes that lack the annotations of their launch.
    pub(in super::super) fn annotate_nodes(&mut self, effects: &mut Vec<Effect>) {
        let now = self.now;
        let world = self.observation.latest.clone().filter(|seen| seen.is_complete());
        let plan = self.planning.current.as_ref().map(|current| current.plan.clone());
        let (Some(world), Some(plan)) = (world, plan) else { return };
        if plan.capacity.node_annotations.is_empty() || !self.may_act() {
            return;
        }
        let opening = &mut self.opening;
        let lacking = world.nodes.values().filter(|node| is_unannotated(node, &world));
        let lacking: BTreeSet<&Uid> = lacking.map(|node| &node.uid).collect();
        // An observation may be older than the last attempt.
        opening.annotated.retain(|uid, attempts| lacking.contains(uid) || now < attempts.next_at());
        let is_due = |node: &&Node| {
            lacking.contains(&node.uid)
                && !opening.in_progress.contains(&node.uid)
                && !opening.opened_at.contains_key(&node.uid)
                && opening.annotated.get(&node.uid).is_none_or(|attempts| attempts.next_at() <= now)
        };
        let mut nodes: Vec<Node> = world.nodes.values().filter(is_due).cloned().collect();
        let annotations = opening_annotations(&plan, &world, &nodes);
        nodes.retain(|node| annotations.contains_key(&node.uid));
        if nodes.is_empty() {
            return;
        }
        for node in &nodes {
            let before = opening.annotated.get(&node.uid);
            let earlier = before.map_or(0, |attempts| attempts.earlier.saturating_add(1));
            let attempts = AnnotationAttempts { last: now, earlier };
            opening.annotated.insert(node.uid.clone(), attempts);
        }
        effects.push(Effect::OpenNodes { nominations: Vec::new(), nodes, annotations });
    }
}
