//! Replacements that the last plan has for the pods of interrupted instances.
//!
//! The plan treats those instances as gone. A launch that an operator or a safeguard blocks may
//! come at any time, or never, so no pod is evicted for it. A block that ends by itself does not
//! count. A plan made before an interruption was known says nothing about its instance.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::state_machine::EvictionWait;
use crate::controller::status::Blocked;
use crate::model::ids::{Address, InstanceId, WorkloadId, workload_key};
use crate::model::observed::Pod;
use crate::plan::Plan;
use crate::plan::wire::Action;

/// Replacements planned for the pods of interrupted instances.
#[derive(Debug, Clone, Default)]
pub(in crate::controller) struct PlannedReplacements {
    /// Instances that the plan treats as gone.
    without: BTreeSet<InstanceId>,
    /// Blocks on the instances planned for the pods of a workload.
    blocked: BTreeMap<WorkloadId, Blocked>,
    /// Keys of workloads with pods that the plan places on no node.
    without_place: BTreeSet<String>,
}

impl PlannedReplacements {
    /// Returns the replacements in `plan`, given its blocked changes and the instances that it
    /// treats as gone.
    pub(in crate::controller) fn from_plan(
        plan: &Plan,
        blocked: &BTreeMap<Address, Blocked>,
        without: BTreeSet<InstanceId>,
    ) -> Self {
        let blocked_launches = plan.resource_changes.iter().filter_map(|row| {
            let why = blocked.get(&row.address);
            let why = why.filter(|blocked| blocked.reason.prevents_launch_for_long())?;
            row.change.actions.contains(&Action::Create).then_some((&row.address, why))
        });
        let blocked_launches: BTreeMap<_, _> = blocked_launches.collect();
        let placed = plan.capacity.placements.iter().filter_map(|row| {
            blocked_launches.get(&row.address).map(|why| (row.workload.clone(), (*why).clone()))
        });
        let blocked = if blocked_launches.is_empty() { BTreeMap::new() } else { placed.collect() };
        // Cluster Autoscaler may launch nodes for these pods, and no place is certain before it does.
        let served = plan.capacity.cluster_autoscaler.iter().flat_map(|row| row.pods.keys());
        let unschedulable = plan.capacity.unschedulable.iter();
        let unschedulable = unschedulable.map(|row| workload_key(&row.workload));
        let without_place = unschedulable.chain(served.cloned()).collect();
        Self { without, blocked, without_place }
    }

    /// Returns the wait reason of an instance with `pods`, as of `now`.
    pub(super) fn wait_for(
        &self,
        instance: &InstanceId,
        pods: &[&Pod],
        now: Timestamp,
    ) -> EvictionWait {
        match self.is_planned_without(instance) {
            false => EvictionWait::Plan { since: now },
            true if self.block_on(pods).is_some() => EvictionWait::Blocked,
            true => EvictionWait::Launches { since: now },
        }
    }

    /// Returns whether the plan treats an instance as gone.
    fn is_planned_without(&self, instance: &InstanceId) -> bool {
        self.without.contains(instance)
    }

    /// Returns the block on the replacement of `pods`, if any.
    pub(super) fn block_on(&self, pods: &[&Pod]) -> Option<&Blocked> {
        pods.iter().find_map(|pod| self.blocked.get(pod.owner.as_ref()?))
    }

    /// Returns whether the plan places all `pods` of an instance elsewhere.
    pub(super) fn has_places_for(&self, instance: &InstanceId, pods: &[&Pod]) -> bool {
        let lacks_place = |pod: &&Pod| {
            let owner = pod.owner.as_ref();
            owner.is_some_and(|owner| self.without_place.contains(&workload_key(owner)))
        };
        self.is_planned_without(instance) && !pods.iter().any(lacks_place)
    }

    /// Returns whether no replacement is blocked.
    pub(in crate::controller) fn is_unblocked(&self) -> bool {
        self.blocked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wire::AutoscalerGrowthRow;
    use crate::testing::{sample_plan, workload_id, world};

    #[test]
    fn pods_that_cluster_autoscaler_serves_have_no_place_yet() {
        let mut plan = sample_plan::plan();
        let pod = world::pod("api-1").owned_by(&workload_id());
        let has_places = |plan: &Plan| {
            let gone = ["i-1".into()].into();
            PlannedReplacements::from_plan(plan, &BTreeMap::new(), gone)
                .has_places_for(&"i-1".into(), &[&pod])
        };
        assert!(has_places(&plan));
        plan.capacity.cluster_autoscaler.push(AutoscalerGrowthRow {
            address: "autoscaling_group.web".into(),
            autoscaler: "kube-system/cluster-autoscaler".to_owned(),
            nodes: 1,
            maximum: 3,
            hourly: None,
            pods: [(workload_key(&workload_id()), 1)].into(),
            instead: BTreeSet::new(),
        });
        assert!(!has_places(&plan));
    }
}
