//! Workloads that run more pods than are planned, and share a pod class with other workloads.
//!
//! Packing counts pods by class. By class alone, the surplus pods of one workload would take the
//! places of another workload, and running pods of that one would be planned on other nodes.

use std::collections::BTreeMap;

use super::existing_node::ExistingNode;
use super::packing_model::PackingModel;

/// Pod classes of several groups, in which a group runs more pods than are planned.
pub(super) struct SurplusPods {
    classes: BTreeMap<usize, ClassMembers>,
}

/// The groups of a class, in its order.
struct ClassMembers {
    /// Number of planned pods of each group.
    planned: Vec<u32>,
    /// For each existing node: pairs of group position and running pods.
    running: BTreeMap<usize, Vec<(usize, u32)>>,
}

impl SurplusPods {
    /// Returns the classes, from the running pods of each group: pairs of existing node and number.
    pub(super) fn new(
        model: &PackingModel,
        existing: &[ExistingNode],
        running_pods: &[Vec<(usize, u32)>],
    ) -> Self {
        let mut classes = BTreeMap::new();
        for (index, class) in model.classes.iter().enumerate() {
            let runs_surplus = |(group, planned): &(usize, u32)| {
                let running = running_pods[*group].iter().map(|(_, count)| *count);
                running.fold(0, u32::saturating_add) > *planned
            };
            if class.group_counts.len() < 2 || !class.group_counts.iter().any(runs_surplus) {
                continue;
            }
            let mut running: BTreeMap<usize, Vec<(usize, u32)>> = BTreeMap::new();
            for (position, (group, _)) in class.group_counts.iter().enumerate() {
                for (node, count) in &running_pods[*group] {
                    if model.pod_class_of(*group, &existing[*node].labels) == Some(index) {
                        running.entry(*node).or_default().push((position, *count));
                    }
                }
            }
            let planned = class.group_counts.iter().map(|(_, planned)| *planned).collect();
            classes.insert(index, ClassMembers { planned, running });
        }
        Self { classes }
    }

    /// Returns the places of all groups. No place is taken yet.
    pub(super) fn places(&self) -> PlacesOfGroups<'_> {
        let left = self.classes.iter().map(|(class, members)| (*class, members.planned.clone()));
        PlacesOfGroups { surplus: self, left: left.collect() }
    }
}

/// The places of each group in its class that no staying pod has taken.
pub(super) struct PlacesOfGroups<'a> {
    surplus: &'a SurplusPods,
    left: BTreeMap<usize, Vec<u32>>,
}

impl PlacesOfGroups<'_> {
    /// Returns the number of pods of a class that may stay on a node, of `running` pods.
    pub(super) fn limit(&self, class: usize, node: usize, running: u32) -> u32 {
        let (Some(members), Some(left)) = (self.surplus.classes.get(&class), self.left.get(&class))
        else {
            return running;
        };
        let here = members.running.get(&node).into_iter().flatten();
        let may_stay = here.map(|(position, count)| left[*position].min(*count)).sum();
        running.min(may_stay)
    }

    /// Takes the places of `count` pods that stay on a node. Groups are served in the order of the
    /// class.
    pub(super) fn take(&mut self, class: usize, node: usize, count: u32) {
        let (Some(members), Some(left)) =
            (self.surplus.classes.get(&class), self.left.get_mut(&class))
        else {
            return;
        };
        let mut count = count;
        for (position, running) in members.running.get(&node).into_iter().flatten() {
            let taken = left[*position].min(*running).min(count);
            left[*position] -= taken;
            count -= taken;
        }
    }
}
