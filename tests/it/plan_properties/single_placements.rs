//! Single placements, in every sequence.

use std::collections::BTreeSet;

use fleetwright::model::ids::workload_key;

use super::proof_case::{PlannedNode, ProofCase, ScheduledNodes};

impl ProofCase {
    /// No running pod is moved off a node that stays, and the others can be placed one by one.
    pub(super) fn is_reached_by_single_steps(&self) -> Result<(), String> {
        for seat in &self.seats {
            self.moves_nothing_off(seat)?;
        }
        let mut scene = self.planned(0, None);
        let kinds = self.coming();
        let on = self.seats.iter().map(|seat| seat.coming.clone()).collect();
        let group = self.kinds.iter().map(|kind| kind.group).collect();
        if (PlacementSearch { scene: &mut scene, group, seen: BTreeSet::new() })
            .reaches(&mut (on, kinds))
        {
            return Ok(());
        }
        Err(self.story("no sequence of single placements leads where the plan has the pods"))
    }

    fn moves_nothing_off(&self, seat: &PlannedNode) -> Result<(), String> {
        let mut explain = self.made.plan.capacity.explain.iter();
        let explain = explain.find(|explain| explain.address == seat.address);
        for group in &self.demand.groups {
            let here = explain.and_then(|row| row.pods.get(workload_key(&group.workload).as_str()));
            let ran = group.running.get(&seat.node.name).copied().unwrap_or(0);
            if here.copied().unwrap_or(0) < ran {
                let (name, node) = (&group.workload, &seat.node.name);
                return Err(self.story(&format!("{name} is moved off {node}, which stays")));
            }
        }
        Ok(())
    }
}

/// The pods to place: of each group on each node, and of each kind.
type RemainingPods = (Vec<Vec<u32>>, Vec<u32>);

/// The search for a sequence of single placements, each of which the scheduler's filters allow.
struct PlacementSearch<'a> {
    scene: &'a mut ScheduledNodes,
    /// The group of each kind.
    group: Vec<usize>,
    seen: BTreeSet<RemainingPods>,
}

impl PlacementSearch<'_> {
    /// Returns whether some sequence places all that is `left`.
    fn reaches(&mut self, left: &mut RemainingPods) -> bool {
        if left.0.iter().flatten().all(|count| *count == 0) {
            return true;
        }
        if !self.seen.insert(left.clone()) {
            return false;
        }
        for node in 0..left.0.len() {
            for kind in 0..left.1.len() {
                let (class, index) = (self.scene.classes[kind], self.scene.nodes[node]);
                let group = self.group[kind];
                let none = left.0[node][group] == 0 || left.1[kind] == 0;
                if none || self.scene.scheduler.fits(class, index).is_err() {
                    continue;
                }
                self.scene.scheduler.bind(class, index);
                left.0[node][group] -= 1;
                left.1[kind] -= 1;
                if self.reaches(left) {
                    return true;
                }
                left.0[node][group] += 1;
                left.1[kind] += 1;
                self.scene.scheduler.unbind(class, index);
            }
        }
        false
    }
}
