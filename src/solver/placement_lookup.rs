//! Converts the pod counts by class of a layout to placements by group. Pods of one class are
//! interchangeable.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::problem::{Placements, Problem, VerifiedFleet};
use super::target_fleet::NodeRef;

impl Problem<'_> {
    /// Returns the layout as a fleet, without simulation.
    pub(super) fn as_packed(&self, layout: &Layout) -> VerifiedFleet {
        let offers = self.choose_offers(layout);
        let unplaced = self.left_over_by_group(layout, &self.staying_pods(layout));
        let placements = self.placements_of(layout, &unplaced);
        VerifiedFleet { layout: layout.clone(), offers, placements, unplaced }
    }

    /// Returns the placements of the layout, except for the unschedulable pods.
    pub(super) fn placements_of(
        &self,
        layout: &Layout,
        unplaced: &BTreeMap<usize, u32>,
    ) -> Placements {
        let mut free = self.class_slots(layout);
        let mut placements = Placements::new();
        for (class, slots) in self.model.classes.iter().zip(&mut free) {
            let mut wanted = class.group_counts.clone();
            for (group, count) in &mut wanted {
                *count = count.saturating_sub(unplaced.get(group).copied().unwrap_or(0));
            }
            // Running pods stay where they are; the others take any slot.
            for (group, wanted) in &mut wanted {
                let running = &self.groups[*group].running;
                let here = |node_ref: &NodeRef| match node_ref {
                    NodeRef::Existing(name) => running.get(name).copied().unwrap_or(0),
                    NodeRef::Launch(_) => 0,
                };
                if !running.is_empty() {
                    let nodes = placements.entry(*group).or_default();
                    for (node_ref, room) in slots.iter_mut() {
                        assign(nodes, node_ref, wanted, room, here(node_ref));
                    }
                }
            }
            let mut slots = slots.iter_mut().peekable();
            for (group, wanted) in &mut wanted {
                let nodes = placements.entry(*group).or_default();
                while let Some((node_ref, room)) = slots.peek_mut().filter(|_| *wanted > 0) {
                    assign(nodes, node_ref, wanted, room, u32::MAX);
                    if *room == 0 {
                        slots.next();
                    }
                }
            }
        }
        placements
    }

    /// Returns the nodes of each class with the number of its pods.
    fn class_slots(&self, layout: &Layout) -> Vec<Vec<(NodeRef, u32)>> {
        let mut slots = vec![Vec::new(); self.model.classes.len()];
        for (node, on) in self.existing.iter().zip(&layout.pods_on) {
            for (class, count) in on {
                slots[*class].push((NodeRef::Existing(node.name.clone()), *count));
            }
        }
        for (index, node) in layout.packing.new_nodes.iter().enumerate() {
            for (class, count) in &node.pods {
                slots[*class].push((NodeRef::Launch(index), *count));
            }
        }
        slots
    }
}

/// Assigns as many pods to a node as are wanted, fit the slot, and `most` allows.
fn assign(
    nodes: &mut BTreeMap<NodeRef, u32>,
    node_ref: &NodeRef,
    wanted: &mut u32,
    room: &mut u32,
    most: u32,
) {
    let count = (*wanted).min(*room).min(most);
    if count > 0 {
        *nodes.entry(node_ref.clone()).or_insert(0) += count;
        *room -= count;
        *wanted -= count;
    }
}
