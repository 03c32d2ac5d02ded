//! Room for rolling updates (`spec.demand.rollouts`): placeholder pods that are never created.
//!
//! A rolling update creates up to `maxSurge` pods before it ends old ones. The largest updates
//! count, as many as may happen at once, by CPU and memory. Pods of an update in progress need the
//! room, so that it stays.

use std::cmp::Reverse;

use super::{Counts, Decider, PodGroup};
use crate::model::desired::Desired;
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
    let mut updates: Vec<PodGroup> =
        groups.iter().filter_map(|group| surge_pods(group, desired)).collect();
    updates.sort_by_cached_key(|group| (Reverse(size(group)), group.workload.clone()));
    updates.truncate(at_once);
    groups.extend(updates);
    groups.sort_by(|a, b| a.workload.cmp(&b.workload));
}

/// Returns the pods that a rolling update of a workload creates first.
fn surge_pods(group: &PodGroup, desired: &Desired) -> Option<PodGroup> {
    let workload = desired.workloads.get(&group.workload)?;
    // A rolling update creates each pod once.
    let surge = |pods: u32| workload.max_surge.rounded_up(pods).min(pods);
    let Counts { floor, live, ceiling, planned } = group.counts;
    let counts = Counts {
        floor: surge(floor),
        live: surge(live),
        ceiling: surge(ceiling),
        planned: surge(planned),
    };
    let kind = group.workload.kind.as_str();
    let because = format!("room for a rolling update of {kind} {}", group.workload);
    let mut shape = group.shape.clone();
    let placeholder = std::sync::Arc::make_mut(&mut shape);
    placeholder.priority = placeholder.priority.min(super::capacity_buffer::PRIORITY_MAX);
    (counts.planned > 0).then(|| PodGroup {
        workload: WorkloadId {
            kind: WorkloadKind::CapacityBuffer,
            // No object of Kubernetes has a colon in its name.
            name: format!("rollout:{}:{}", kind.to_lowercase(), group.workload.name)
                .as_str()
                .into(),
            ..group.workload.clone()
        },
        origin: group.origin.clone(),
        shape,
        counts,
        decided_by: Decider::Buffer { because },
        running: [].into(),
        ending: [].into(),
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
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::demand::{Demand, DemandMode};
    use crate::manifest::read;
    use crate::model::desired::{Fleet, RolloutShare, Tree, TreeFile};
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
        assert_eq!(one, [("rollout:deployment:half".to_owned(), 3)]);
        let every = headroom(&deployments(9, &all), &observed);
        let expected = ["half", "large", "small"].into_iter().zip([3, 1, 3]);
        let expected = expected.map(|(name, pods)| (format!("rollout:deployment:{name}"), pods));
        assert_eq!(every, expected.collect::<Vec<_>>());
        let more_than_all = [("x", 4, "1", "{rollingUpdate: {maxSurge: 4000000000%}}")];
        assert_eq!(headroom(&deployments(1, &more_than_all), &observed)[0].1, 4);
    }

    #[test]
    fn update_in_progress_removes_no_node_and_takes_no_other_room() {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 64);
        scenario.scale(8);
        scenario.deploy("other", 4, crate::testing::pods::template(1_000, 64));
        for workload in scenario.desired.workloads.values_mut() {
            workload.max_surge = RolloutShare::Pods(2);
        }
        scenario.desired.rollouts = 1;
        let first = scenario.solve();
        scenario.carry_out(&first);
        let before = headroom(&scenario.desired, &scenario.observed);
        assert_eq!((before.len(), before[0].1), (1, 2));
        // Two pods of the new revision run beside the eight old ones, on nodes without pods.
        let used: BTreeSet<_> =
            scenario.observed.pods.iter().filter_map(|pod| pod.node.clone()).collect();
        let all = scenario.observed.nodes.keys().cloned();
        let free: Vec<_> = all.filter(|node| !used.contains(node)).collect();
        assert_eq!(free.len(), 2, "{:?}", scenario.observed.nodes.keys());
        let owner = |pod: &&Arc<crate::model::observed::Pod>| {
            pod.owner.as_ref().is_some_and(|owner| *owner.name != *"other")
        };
        let like = scenario.observed.pods.iter().find(owner).expect("a pod").clone();
        for (number, node) in free.into_iter().enumerate() {
            let mut pod = (*like).clone();
            pod.name = format!("new-{number}").as_str().into();
            pod.node = Some(node);
            scenario.observed.pods.push(Arc::new(pod));
        }
        assert_eq!(headroom(&scenario.desired, &scenario.observed), before);
        let plan = scenario.plan();
        assert_eq!((plan.summary.add, plan.summary.destroy), (0, 0));
    }

    #[test]
    fn commit_with_a_new_workload_has_its_room_at_once() {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 64);
        scenario.scale(2);
        scenario.desired.rollouts = 1;
        scenario.deploy("large", 12, crate::testing::pods::template(1_500, 64));
        for workload in scenario.desired.workloads.values_mut() {
            workload.max_surge = RolloutShare::Percent(25);
        }
        let first = scenario.solve();
        scenario.carry_out(&first);
        let plan = scenario.plan();
        assert_eq!((plan.summary.add, plan.summary.destroy), (0, 0));
    }

    #[test]
    fn objects_of_two_kinds_with_one_name_have_room_each() {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 64);
        scenario.deploy("api", 2, crate::testing::pods::template(1_000, 64));
        let mut all = scenario.desired.workloads.iter();
        let (id, workload) = all.find(|(id, _)| *id.name == *"api").expect("declared");
        let id = WorkloadId { kind: WorkloadKind::Rollout, ..id.clone() };
        let workload = crate::model::desired::Workload { id: id.clone(), ..workload.clone() };
        scenario.desired.workloads.insert(id, workload);
        for workload in scenario.desired.workloads.values_mut() {
            workload.max_surge = RolloutShare::Pods(1);
        }
        scenario.desired.rollouts = 5;
        assert_eq!(scenario.plan().capacity.pods.unschedulable, 0);
        assert_eq!(headroom(&scenario.desired, &scenario.observed).len(), 2);
    }

    #[test]
    fn room_for_an_update_never_displaces_pods() {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 64);
        scenario.scale(3);
        for workload in scenario.desired.workloads.values_mut() {
            workload.max_surge = RolloutShare::Percent(25);
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
