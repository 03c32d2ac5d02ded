//! Room that a `CapacityBuffer` keeps: pods that nobody makes, of the shape of those to come.

use super::{Counts, Decider, DemandMode, PodGroup};
use crate::model::desired::{BufferScaling, Desired, Scale};
use crate::model::ids::WorkloadKind;
use crate::model::units::{ResourceName, Resources};

/// The highest priority of room that is kept: anything real goes first, and room is still provided.
const PRIORITY_MAX: i32 = -10;

/// Gives every buffer its counts, now that those of all other workloads are known.
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
        let of = target.map(|group| group.counts).unwrap_or_default();
        let requests = &groups[index].shape.requests;
        let (counts, because) = buffer_counts(scaling, of, requests);
        let group = &mut groups[index];
        let shape = std::sync::Arc::make_mut(&mut group.shape);
        shape.priority = shape.priority.min(PRIORITY_MAX);
        group.counts = counts;
        group.counts.planned = counts.for_mode(mode);
        group.decided_by = Decider::Buffer { because };
        // Nothing of it runs: no pod is ever made of it.
        group.running.clear();
    }
}

/// Returns the counts of a buffer for a workload of `of` pods.
fn buffer_counts(scaling: &BufferScaling, of: Counts, requests: &Resources) -> (Counts, String) {
    let BufferScaling { replicas, percentage, limits, target } = scaling;
    let fits = |name: &ResourceName, limit: i64| {
        let asked = match name.as_str() {
            "cpu" => requests.cpu.0,
            "memory" => requests.memory.0,
            "ephemeral-storage" => requests.ephemeral_storage.0,
            _ => requests.extended(name),
        };
        // What its pods do not ask for does not limit them.
        (asked > 0).then(|| u32::try_from(limit.max(0) / asked).unwrap_or(u32::MAX))
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
    let said = match (replicas, percentage, target) {
        (None, None, _) => "as many as its limits hold".to_owned(),
        (Some(n), None, _) => format!("{n} pods"),
        (None, Some(percent), Some(target)) => format!("{percent}% of {target}"),
        (Some(n), Some(percent), Some(target)) => format!("{n} pods or {percent}% of {target}"),
        (_, Some(_), None) => "a share of no workload".to_owned(),
    };
    let because = match most {
        Some(most) if most <= count(of.live) => format!("{said}; its limits hold {most}"),
        Some(_) | None => said,
    };
    let [floor, live, ceiling] = [of.floor, of.live, of.ceiling].map(count);
    (Counts { floor, live, ceiling, planned: live }, because)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::{Bytes, MilliCpu};

    #[test]
    fn room_is_the_larger_of_number_and_share_within_the_limits() {
        let requests =
            Resources { cpu: MilliCpu(500), memory: Bytes::gib(1), ..Resources::default() };
        let of = Counts { floor: 2, live: 9, ceiling: 20, planned: 9 };
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
            let (counts, _) = buffer_counts(&scaling, of, &requests);
            assert_eq!([counts.floor, counts.live, counts.ceiling], expected, "{rule}");
        }
    }
}
