//! Search over all sequences of single placements.

use std::collections::BTreeSet;

use fleetwright::model::ids::workload_key;

use super::proof_case::{PlannedNode, ProofCase, ScheduledNodes};

impl ProofCase {
    /// Checks that retained nodes keep their running pods, and that the other pods can be placed
    /// one by one.
    pub(super) fn is_reachable_by_single_steps(&self) -> Result<(), String> {
        for planned_node in &self.planned_nodes {
            self.check_staying_pods(planned_node)?;
        }
        let mut scheduled = self.planned(0, None);
        let kinds = self.arriving();
        let on =
            self.planned_nodes.iter().map(|planned_node| planned_node.arriving.clone()).collect();
        let group = self.kinds.iter().map(|kind| kind.group).collect();
        if (PlacementSearch { scheduled: &mut scheduled, group, seen: BTreeSet::new() })
            .reaches(&mut (on, kinds))
        {
            return Ok(());
        }
        Err(self.describe_failure("no sequence of single placements reaches the planned placement"))
    }

    fn check_staying_pods(&self, planned_node: &PlannedNode) -> Result<(), String> {
        let mut explain = self.case_plan.plan.capacity.explain.iter();
        let explain = explain.find(|explain| explain.address == planned_node.address);
        for group in &self.demand.groups {
            let here = explain.and_then(|row| row.pods.get(workload_key(&group.workload).as_str()));
            let ran = group.running.get(&planned_node.node.name).copied().unwrap_or(0);
            if here.copied().unwrap_or(0) < ran {
                let (name, node) = (&group.workload, &planned_node.node.name);
                return Err(
                    self.describe_failure(&format!("{name} is moved off the retained node {node}"))
                );
            }
        }
        Ok(())
    }
}

/// Number of remaining pods of each group by node, and of each kind.
type RemainingPods = (Vec<Vec<u32>>, Vec<u32>);

/// Search for a sequence of single placements that the filters of the scheduler allow.
struct PlacementSearch<'a> {
    scheduled: &'a mut ScheduledNodes,
    /// Group of each kind.
    group: Vec<usize>,
    seen: BTreeSet<RemainingPods>,
}

impl PlacementSearch<'_> {
    /// Returns whether some sequence places all pods of `left`.
    fn reaches(&mut self, left: &mut RemainingPods) -> bool {
        if left.0.iter().flatten().all(|count| *count == 0) {
            return true;
        }
        if !self.seen.insert(left.clone()) {
            return false;
        }
        for node in 0..left.0.len() {
            for kind in 0..left.1.len() {
                let (class, index) = (self.scheduled.classes[kind], self.scheduled.nodes[node]);
                let group = self.group[kind];
                let none = left.0[node][group] == 0 || left.1[kind] == 0;
                if none || self.scheduled.scheduler.fits(class, index).is_err() {
                    continue;
                }
                self.scheduled.scheduler.bind(class, index);
                left.0[node][group] -= 1;
                left.1[kind] -= 1;
                if self.reaches(left) {
                    return true;
                }
                left.0[node][group] += 1;
                left.1[kind] += 1;
                self.scheduled.scheduler.unbind(class, index);
            }
        }
        false
    }
}
