//! Capacity that a `CapacityBuffer` reserves: placeholder pods that are never created.

use super::{Counts, Decider, DemandMode, PodGroup};
use crate::model::desired::{BufferScaling, Desired, Scale};
use crate::model::ids::WorkloadKind;
use crate::model::plural;
use crate::model::units::{ResourceName, Resources};

/// Maximum priority of placeholder pods. All real pods are placed first, and nodes are still
/// launched for placeholders.
pub(super) const PRIORITY_MAX: i32 = -10;

/// Sets the counts of every buffer. The counts of all other workloads must be known.
pub(super) fn set_buffer_counts(groups: &mut [PodGroup], desired: &Desired, mode: DemandMode) {
    for index in 0..groups.len() {
        if groups[index].workload.kind != WorkloadKind::CapacityBuffer {
            continue;
        }
        let workload = desired.workloads.get(&groups[index].workload);
        let Some(Scale::Buffer(scaling)) = workload.map(|workload| &workload.scale) else {
            continue;
        };
        let target = scaling.target.as_ref().and_then(|target| {
            groups.iter().find(|group| {
                let id = &group.workload;
                id.namespace == groups[index].workload.namespace
                    && id.kind.as_str() == target.kind
                    && *id.name == *target.name
            })
        });
        let target_counts = target.map(|group| group.counts).unwrap_or_default();
        let requests = &groups[index].shape.requests;
        let (counts, because) = buffer_counts(scaling, target_counts, requests);
        let group = &mut groups[index];
        let shape = std::sync::Arc::make_mut(&mut group.shape);
        shape.priority = shape.priority.min(PRIORITY_MAX);
        group.counts = counts;
        group.counts.planned = counts.for_mode(mode);
        group.decided_by = Decider::Buffer { because };
        // Placeholder pods never run.
        group.clear_running();
    }
}

/// Returns the counts of a buffer for a workload with `target_counts`, and their explanation.
fn buffer_counts(
    scaling: &BufferScaling,
    target_counts: Counts,
    requests: &Resources,
) -> (Counts, String) {
    let BufferScaling { replicas, percentage, limits, target } = scaling;
    let fits = |name: &ResourceName, limit: i64| {
        let requested = match name.as_str() {
            "cpu" => requests.cpu.0,
            "memory" => requests.memory.0,
            "ephemeral-storage" => requests.ephemeral_storage.0,
            _ => requests.extended(name),
        };
        // A limit on a resource that the pods do not request has no effect.
        (requested > 0).then(|| u32::try_from(limit.max(0) / requested).unwrap_or(u32::MAX))
    };
    let most = limits.iter().filter_map(|(name, limit)| fits(name, *limit)).min();
    let count = |pods: u32| {
        let share = percentage.map(|percent| {
            let part = u64::from(pods) * u64::from(percent);
            u32::try_from(part.div_ceil(100)).unwrap_or(u32::MAX)
        });
        let wanted = (*replicas).max(share).or(most).unwrap_or(0);
        most.map_or(wanted, |most| wanted.min(most))
    };
    let size = match (replicas, percentage, target) {
        (None, None, _) => "as many as its limits hold".to_owned(),
        (Some(n), None, _) => plural::count(n, "pod"),
        (None, Some(percent), Some(target)) => format!("{percent}% of {target}"),
        (Some(n), Some(percent), Some(target)) => {
            format!("{} or {percent}% of {target}", plural::count(n, "pod"))
        }
        (_, Some(_), None) => "a share of no workload".to_owned(),
    };
    let because = match most {
        Some(most) if most <= count(target_counts.live) => {
            format!("{size}; its limits hold {most}")
        }
        Some(_) | None => size,
    };
    let [floor, live, ceiling] =
        [target_counts.floor, target_counts.live, target_counts.ceiling].map(count);
    (Counts { floor, live, ceiling, planned: live }, because)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::{Bytes, MilliCpu};

    #[test]
    fn buffer_is_the_larger_of_count_and_share_within_limits() {
        let requests =
            Resources { cpu: MilliCpu(500), memory: Bytes::gib(1), ..Resources::default() };
        let target_counts = Counts { floor: 2, live: 9, ceiling: 20, planned: 9 };
        for (rule, replicas, percentage, cpu, expected) in [
            ("a number", Some(3), None, None, [3, 3, 3]),
            ("a share, rounded up", None, Some(10), None, [1, 1, 2]),
            ("the larger one", Some(2), Some(50), None, [2, 5, 10]),
            ("limits cut", Some(3), None, Some(1_200), [2, 2, 2]),
            ("limits alone", None, None, Some(4_000), [8, 8, 8]),
            ("nothing", None, None, None, [0, 0, 0]),
        ] {
            let limits = cpu.into_iter().map(|cpu| ("cpu".into(), cpu)).collect();
            let scaling = BufferScaling { replicas, percentage, limits, target: None };
            let (counts, _) = buffer_counts(&scaling, target_counts, &requests);
            assert_eq!([counts.floor, counts.live, counts.ceiling], expected, "{rule}");
        }
    }
}
