//! Splits workloads with different pod variants into groups, and merges their results.
//!
//! The solver handles groups of identical pods only. Volumes can bind the pods of one workload to
//! different domains. Such a workload enters the solver as several groups and leaves it as one. The
//! split also adds a pod's own volumes to its requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::attach_limits;
use super::target_fleet::{NodeRef, UnschedulablePods};
use crate::demand::{Counts, Demand, PodGroup, PodShape, ReplicaPartition};

/// Demand whose groups have identical pods.
pub(super) struct SplitDemand {
    pub demand: Demand,
    /// For each of its groups, the original group.
    pub group_of: Vec<usize>,
}

impl SplitDemand {
    /// Splits the groups of `demand` by pod variant.
    pub(super) fn new(demand: &Demand) -> Self {
        let (mut groups, mut whole) = (Vec::with_capacity(demand.groups.len()), Vec::new());
        for (index, group) in demand.groups.iter().enumerate() {
            if group.partitions.is_empty() {
                groups
                    .push(PodGroup { shape: with_volume_requests(&group.shape), ..group.clone() });
            } else {
                groups.extend(group.partitions.iter().map(|part| variant_group(group, part)));
            }
            whole.resize(groups.len(), index);
        }
        let daemons = demand.daemons.clone();
        Self { demand: Demand { groups, daemons, ..Demand::default() }, group_of: whole }
    }

    /// Returns the placements by original group.
    pub(super) fn merge_placements(
        &self,
        of_parts: BTreeMap<usize, BTreeMap<NodeRef, u32>>,
    ) -> BTreeMap<usize, BTreeMap<NodeRef, u32>> {
        let mut placements: BTreeMap<usize, BTreeMap<NodeRef, u32>> = BTreeMap::new();
        for (part, nodes) in of_parts {
            let all = placements.entry(self.group_of[part]).or_default();
            for (node_ref, count) in nodes {
                *all.entry(node_ref).or_insert(0) += count;
            }
        }
        placements
    }

    /// Returns the unschedulable pods by original group. The variant with the most such pods gives
    /// the reason.
    pub(super) fn merge_unschedulable(
        &self,
        of_parts: Vec<UnschedulablePods>,
    ) -> Vec<UnschedulablePods> {
        let mut unplaced: BTreeMap<usize, Vec<UnschedulablePods>> = BTreeMap::new();
        for part in of_parts {
            unplaced.entry(self.group_of[part.group]).or_default().push(part);
        }
        let joined = |(group, parts): (usize, Vec<UnschedulablePods>)| {
            let pods = parts.iter().map(|part| part.pods).sum();
            let worst = parts.into_iter().reduce(|a, b| if b.pods > a.pods { b } else { a });
            worst.map(|worst| UnschedulablePods { group, pods, ..worst })
        };
        unplaced.into_iter().filter_map(joined).collect()
    }
}

/// Returns a group with the pods of one variant.
fn variant_group(group: &PodGroup, part: &ReplicaPartition) -> PodGroup {
    let ReplicaPartition { shape, planned, running } = part.clone();
    let counts = Counts { floor: planned, live: planned, ceiling: planned, planned };
    PodGroup {
        shape: with_volume_requests(&shape),
        counts,
        running,
        ending: [].into(),
        partitions: Vec::new(),
        ..group.clone()
    }
}

/// Returns the shape with its own volumes added to its requests.
fn with_volume_requests(shape: &Arc<PodShape>) -> Arc<PodShape> {
    match attach_limits::requests_with_volumes(shape) {
        Some(requests) => Arc::new(PodShape { requests, ..(**shape).clone() }),
        None => Arc::clone(shape),
    }
}
