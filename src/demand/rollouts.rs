//! Room for rolling updates (`spec.demand.rollouts`): placeholder pods that are never created.
//!
//! A rolling update creates up to `maxSurge` pods before it ends old ones. The largest updates
//! count, as many as may happen at once. Any other update that happens instead needs no more room.

use std::cmp::Reverse;

use super::{Counts, Decider, PodGroup};
use crate::model::desired::{Desired, MaxSurge};
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::model::units::Resources;

/// Bytes of memory that count as much as one thousandth of a core: 4 GiB per core, the ratio of
/// general purpose instances.
const BYTES_PER_MILLI_CPU: i64 = (4 << 30) / 1_000;

/// Adds placeholder pods for the largest rolling updates. The counts of all workloads must be
/// known.
pub(super) fn add_headroom(groups: &mut Vec<PodGroup>, desired: &Desired) {
    let at_once = usize::try_from(desired.rollouts).unwrap_or(usize::MAX);
    if at_once == 0 {
        return;
    }
    // In a cluster with pods, a workload without any has nothing to update.
    let has_pods = groups.iter().any(|group| !group.running.is_empty());
    let may_update = |group: &&PodGroup| !has_pods || !group.running.is_empty();
    let updates = groups.iter().filter(may_update).filter_map(|group| surge_pods(group, desired));
    let mut updates: Vec<PodGroup> = updates.collect();
    updates.sort_by_cached_key(|group| (Reverse(size(group)), group.workload.clone()));
    updates.truncate(at_once);
    groups.extend(updates);
}

/// Returns the pods that a rolling update of a workload creates first, less those of an update in
/// progress.
fn surge_pods(group: &PodGroup, desired: &Desired) -> Option<PodGroup> {
    let workload = desired.workloads.get(&group.workload)?;
    let surge = |pods: u32| match workload.max_surge {
        MaxSurge::Pods(count) => count.min(pods),
        MaxSurge::Percent(percent) => {
            let share = (u64::from(pods) * u64::from(percent)).div_ceil(100);
            u32::try_from(share).unwrap_or(u32::MAX)
        }
    };
    let Counts { floor, live, ceiling, planned } = group.counts;
    let running = group.running.values().fold(0, |sum: u32, pods| sum.saturating_add(*pods));
    let in_progress = running.saturating_sub(planned);
    let counts = Counts {
        floor: surge(floor),
        live: surge(live),
        ceiling: surge(ceiling),
        planned: surge(planned).saturating_sub(in_progress),
    };
    let because = format!("a rolling update of {} {}", group.workload.kind, group.workload);
    let mut shape = group.shape.clone();
    let placeholder = std::sync::Arc::make_mut(&mut shape);
    placeholder.priority = placeholder.priority.min(super::capacity_buffer::PRIORITY_MAX);
    (counts.planned > 0).then(|| PodGroup {
        workload: WorkloadId {
            kind: WorkloadKind::CapacityBuffer,
            // No object of Kubernetes has a colon in its name.
            name: format!("rollout:{}", group.workload.name).as_str().into(),
            ..group.workload.clone()
        },
        origin: group.origin.clone(),
        shape,
        counts,
        decided_by: Decider::Buffer { because },
        running: std::collections::BTreeMap::new(),
        partitions: Vec::new(),
    })
}

/// Returns the requests of all pods of a group, in thousandths of a core.
fn size(group: &PodGroup) -> i128 {
    let Resources { cpu, memory, .. } = &group.shape.requests;
    let pod = i128::from(cpu.0) + i128::from(memory.0 / BYTES_PER_MILLI_CPU);
    pod * i128::from(group.counts.planned)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::demand::{Demand, DemandMode};
    use crate::manifest::read;
    use crate::model::desired::{Fleet, Tree, TreeFile};
    use crate::model::observed::Observed;
    use crate::testing::Scenario;

    /// Returns the planned placeholder pods by workload.
    fn headroom(desired: &Desired, observed: &Observed) -> Vec<(String, u32)> {
        let demand = Demand::build(desired, observed, DemandMode::Live);
        let placeholders = demand
            .groups
            .iter()
            .filter(|group| group.workload.kind == WorkloadKind::CapacityBuffer);
        placeholders.map(|group| (group.workload.name.to_string(), group.counts.planned)).collect()
    }

    /// Returns Deployments with these replicas, CPU requests and update strategies.
    fn deployments(rollouts: u32, all: &[(&str, u32, &str, &str)]) -> Desired {
        let one = |(name, replicas, cpu, strategy): &(&str, u32, &str, &str)| {
            format!(
                "---
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: {name}, namespace: web }}
spec:
  replicas: {replicas}
  strategy: {strategy}
  selector: {{ matchLabels: {{ app: {name} }} }}
  template:
    metadata: {{ labels: {{ app: {name} }} }}
    spec: {{ containers: [{{ name: main, image: app, resources: {{ requests: {{ cpu: {cpu} }} }} }}] }}
"
            )
        };
        let text: String = all.iter().map(one).collect();
        let content = Ok(Arc::from(text.into_bytes()));
        let files = vec![TreeFile { path: "app.yaml".into(), content }];
        let mut fleet = Fleet::default();
        fleet.demand.rollouts = rollouts;
        let desired = read(&Tree { files }, &fleet);
        assert_eq!(desired.problems, []);
        desired
    }

    #[test]
    fn largest_updates_have_room_and_none_by_default() {
        let observed = Scenario::without_workloads(&["m5.large"]).observed;
        let all = [
            ("small", 10, "100m", "{}"),
            ("large", 4, "2", "{rollingUpdate: {maxSurge: 1}}"),
            ("half", 5, "1", "{rollingUpdate: {maxSurge: 50%}}"),
            ("in-place", 50, "4", "{rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}"),
            ("recreated", 50, "4", "{type: Recreate}"),
        ];
        assert_eq!(headroom(&deployments(0, &all), &observed), []);
        let one = headroom(&deployments(1, &all), &observed);
        assert_eq!(one, [("rollout:half".to_owned(), 3)]);
        let every = headroom(&deployments(9, &all), &observed);
        let expected = [("rollout:half", 3), ("rollout:large", 1), ("rollout:small", 3)];
        assert_eq!(every, expected.map(|(name, pods)| (name.to_owned(), pods)));
    }

    #[test]
    fn pods_of_an_update_in_progress_take_its_room() {
        let mut scenario = Scenario::new(&["m5.4xlarge"], 500, 64);
        scenario.scale(8);
        for workload in scenario.desired.workloads.values_mut() {
            workload.max_surge = MaxSurge::Pods(4);
        }
        let first = scenario.solve();
        scenario.carry_out(&first);
        // This larger workload does not run.
        scenario.deploy("waiting", 9, crate::testing::pods::template(900, 64));
        scenario.desired.rollouts = 1;
        let running = scenario.observed.pods[0].owner.clone().expect("an owner");
        let expected = |pods| vec![(format!("rollout:{}", running.name), pods)];
        assert_eq!(headroom(&scenario.desired, &scenario.observed), expected(4));
        // Three pods of the new revision run beside the eight old ones.
        for number in 0..3 {
            let mut pod = (**scenario.observed.pods.last().expect("a pod")).clone();
            pod.name = format!("new-{number}").as_str().into();
            scenario.observed.pods.push(Arc::new(pod));
        }
        assert_eq!(headroom(&scenario.desired, &scenario.observed), expected(1));
    }

    #[test]
    fn room_for_an_update_never_displaces_pods() {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 64);
        scenario.scale(3);
        for workload in scenario.desired.workloads.values_mut() {
            workload.max_surge = MaxSurge::Percent(25);
        }
        assert_eq!(scenario.plan().summary.add, 3);
        scenario.desired.rollouts = 1;
        let plan = scenario.plan();
        assert_eq!((plan.summary.add, plan.capacity.pods.unschedulable), (4, 0));
        // The limit of the pool leaves no room: the pods are placed, and the update is not.
        scenario.pool().limits.nodes = Some(3);
        let plan = scenario.plan();
        assert_eq!((plan.summary.add, plan.capacity.pods.unschedulable), (3, 1));
        let solved = scenario.solve();
        scenario.carry_out(&solved);
        assert_eq!(scenario.plan().summary.add, 0);
    }
}
