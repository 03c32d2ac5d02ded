//! Whom kube-scheduler evicts for pods that a plan leaves out, by trying everybody.

use fleetwright::model::ids::workload_key;
use fleetwright::scheduler::NodeIndex;

use super::proof_case::{PodKind, ProofCase, ScheduledNodes};

impl ProofCase {
    /// Where pods are left out, those who are said to be evicted are less important, and nobody is
    /// said to be only where the eviction of all who are lets none of the pods in.
    pub(super) fn says_who_is_evicted(&self) -> Result<(), String> {
        for row in &self.made.plan.capacity.unschedulable {
            let mut kinds = self.kinds.iter().enumerate();
            let Some((index, kind)) = kinds.find(|(_, kind)| kind.workload == row.workload) else {
                continue;
            };
            let Some(eviction) = &row.eviction else {
                // What others had evicted before is theirs, and an order of documents nobody knows.
                if self.made.plan.capacity.unschedulable.len() == 1 && self.is_let_in(index) {
                    let why = format!("nobody is said to be evicted for {}", kind.workload);
                    return Err(self.story(&why));
                }
                continue;
            };
            let priority = kind.shape.priority;
            let is_less = |other: &PodKind| other.shape.priority < priority;
            let of_daemons = self.demand.daemons.iter();
            let daemons: Vec<String> = of_daemons
                .filter(|d| d.shape.priority < priority)
                .map(|d| workload_key(&d.workload))
                .collect();
            for name in eviction.evicts.keys() {
                let mut victims = self.kinds.iter().filter(|k| workload_key(&k.workload) == *name);
                let is_less = victims.any(is_less) || daemons.contains(name);
                if !kind.shape.preempts || !is_less {
                    let why = format!("{name} is no less important than {}", kind.workload);
                    return Err(self.story(&why));
                }
            }
            if eviction.lets_in == 0 || eviction.lets_in > row.pods || eviction.evicts.is_empty() {
                return Err(
                    self.story(&format!("an eviction for {} lets nobody in", kind.workload))
                );
            }
        }
        Ok(())
    }

    /// Returns whether some node lets a pod of the kind in once everybody less important has left it;
    /// not where the plan does not tell which pods of a workload are where.
    fn is_let_in(&self, index: usize) -> bool {
        let kind = &self.kinds[index];
        let is_plain = self.kinds.iter().enumerate().all(|(other, k)| other == k.group);
        if !kind.shape.preempts || !is_plain || !self.is_supported(index) {
            return false;
        }
        let mut scene = self.planned(0, None);
        self.fill(&mut scene);
        let class = scene.classes[index];
        let nodes: Vec<NodeIndex> = scene.nodes.clone();
        if nodes.iter().any(|node| scene.scheduler.fits(class, *node).is_ok()) {
            return false;
        }
        nodes.into_iter().enumerate().any(|(seat, node)| {
            let mut gone = Vec::new();
            for (other, less) in self.kinds.iter().enumerate() {
                let here = self.seats[seat].staying[other] + self.seats[seat].coming[less.group];
                if less.shape.priority < kind.shape.priority {
                    gone.extend((0..here).map(|_| scene.classes[other]));
                }
            }
            for class in &gone {
                scene.scheduler.unbind(*class, node);
            }
            let fits = !gone.is_empty() && scene.scheduler.fits(class, node).is_ok();
            for class in &gone {
                scene.scheduler.bind(*class, node);
            }
            fits
        })
    }

    /// Puts the pods that come where the plan has them.
    fn fill(&self, scene: &mut ScheduledNodes) {
        for (seat, node) in self.seats.iter().zip(scene.nodes.clone()) {
            scene.bind(&seat.coming, node);
        }
    }
}
