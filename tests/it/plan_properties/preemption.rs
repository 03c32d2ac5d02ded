//! Preemption by unschedulable pods, checked by brute force.

use fleetwright::model::ids::workload_key;
use fleetwright::scheduler::NodeIndex;

use super::proof_case::{PodKind, ProofCase, ScheduledNodes};

impl ProofCase {
    /// Checks that stated victims have a lower priority. If no victims are stated, preemption of
    /// all pods of lower priority must not make room.
    pub(super) fn evictions_are_correct(&self) -> Result<(), String> {
        for row in &self.case_plan.plan.capacity.unschedulable {
            let mut kinds = self.kinds.iter().enumerate();
            let Some((index, kind)) = kinds.find(|(_, kind)| kind.workload == row.workload) else {
                continue;
            };
            let Some(eviction) = &row.eviction else {
                // With several unschedulable workloads, the result depends on the order of
                // preemption, which is unknown.
                if self.case_plan.plan.capacity.unschedulable.len() == 1 && self.can_preempt(index)
                {
                    let message = format!("no eviction is stated for {}", kind.workload);
                    return Err(self.describe_failure(&message));
                }
                continue;
            };
            let priority = kind.shape.priority;
            let has_lower_priority = |other: &PodKind| other.shape.priority < priority;
            let daemon_sets = self.demand.daemons.iter();
            let daemons: Vec<String> = daemon_sets
                .filter(|d| d.shape.priority < priority)
                .map(|d| workload_key(&d.workload))
                .collect();
            for name in eviction.evicts.keys() {
                let mut evicted = self.kinds.iter().filter(|k| workload_key(&k.workload) == *name);
                let has_lower_priority = evicted.any(has_lower_priority) || daemons.contains(name);
                if !kind.shape.preempts || !has_lower_priority {
                    let message = format!(
                        "the priority of {name} is not lower than that of {}",
                        kind.workload
                    );
                    return Err(self.describe_failure(&message));
                }
            }
            if eviction.lets_in == 0 || eviction.lets_in > row.pods || eviction.evicts.is_empty() {
                return Err(self.describe_failure(&format!(
                    "an eviction for {} does not make room for it",
                    kind.workload
                )));
            }
        }
        Ok(())
    }

    /// Returns whether a node fits a pod of the kind after the eviction of all pods of lower
    /// priority. Returns false if the plan does not identify the pods of each node.
    fn can_preempt(&self, index: usize) -> bool {
        let kind = &self.kinds[index];
        let is_plain = self.kinds.iter().enumerate().all(|(other, k)| other == k.group);
        if !kind.shape.preempts || !is_plain || !self.is_supported(index) {
            return false;
        }
        let mut scheduled = self.planned(0, None);
        self.bind_arriving(&mut scheduled);
        let class = scheduled.classes[index];
        let nodes: Vec<NodeIndex> = scheduled.nodes.clone();
        if nodes.iter().any(|node| scheduled.scheduler.fits(class, *node).is_ok()) {
            return false;
        }
        nodes.into_iter().enumerate().any(|(planned_node, node)| {
            let mut victims = Vec::new();
            for (other, candidate) in self.kinds.iter().enumerate() {
                let here = self.planned_nodes[planned_node].staying[other]
                    + self.planned_nodes[planned_node].arriving[candidate.group];
                if candidate.shape.priority < kind.shape.priority {
                    victims.extend((0..here).map(|_| scheduled.classes[other]));
                }
            }
            for class in &victims {
                scheduled.scheduler.unbind(*class, node);
            }
            let fits = !victims.is_empty() && scheduled.scheduler.fits(class, node).is_ok();
            for class in &victims {
                scheduled.scheduler.bind(*class, node);
            }
            fits
        })
    }

    /// Binds the arriving pods to their planned nodes.
    fn bind_arriving(&self, scheduled: &mut ScheduledNodes) {
        for (planned_node, node) in self.planned_nodes.iter().zip(scheduled.nodes.clone()) {
            scheduled.bind(&planned_node.arriving, node);
        }
    }
}
