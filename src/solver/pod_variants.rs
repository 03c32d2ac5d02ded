//! Splits workloads with different pod variants into groups, and merges their results.
//!
//! The solver handles groups of identical pods only. Volumes can bind the pods of one workload to
//! different domains. Such a workload enters the solver as several groups and leaves it as one. The
//! split also adds a pod's own volumes to its requests.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::attach_limits;
use super::target_fleet::{NodeRef, UnschedulablePods};
use super::unschedulable::REASONS_MAX;
use crate::demand::{Counts, Demand, PodGroup, PodShape, ReplicaPartition};
use crate::model::reason::Rejection;

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
    /// the suggested change.
    pub(super) fn merge_unschedulable(
        &self,
        of_parts: Vec<UnschedulablePods>,
    ) -> Vec<UnschedulablePods> {
        let mut unplaced: BTreeMap<usize, Vec<UnschedulablePods>> = BTreeMap::new();
        for part in of_parts {
            unplaced.entry(self.group_of[part.group]).or_default().push(part);
        }
        let joined = |(group, mut parts): (usize, Vec<UnschedulablePods>)| {
            let pods = parts.iter().map(|part| part.pods).sum();
            parts.sort_by_key(|part| Reverse(part.pods));
            let rejections = joined_rejections(&parts, pods);
            let worst = parts.into_iter().next();
            worst.map(|worst| UnschedulablePods { group, pods, rejections, ..worst })
        };
        unplaced.into_iter().filter_map(joined).collect()
    }
}

/// Returns the rejections of all variants of a workload, those of the most pods first. If they differ,
/// each states its number of pods: the volume of a `StatefulSet` is that of one pod.
fn joined_rejections(parts: &[UnschedulablePods], pods: u32) -> Vec<Rejection> {
    let mut distinct: Vec<(&Rejection, u32)> = Vec::new();
    for part in parts {
        for rejection in &part.rejections {
            match distinct.iter_mut().find(|(known, _)| *known == rejection) {
                Some((_, of_pods)) => *of_pods += part.pods,
                None => distinct.push((rejection, part.pods)),
            }
        }
    }
    distinct.sort_by_key(|(_, of_pods)| Reverse(*of_pods));
    distinct.truncate(REASONS_MAX);
    let stated = |(rejection, of_pods): (&Rejection, u32)| {
        let Rejection { reason, detail, count } = rejection.clone();
        let detail =
            if of_pods == pods { detail } else { format!("{detail} ({of_pods} of {pods} pods)") };
        Rejection { reason, detail, count }
    };
    distinct.into_iter().map(stated).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::solver::target_fleet::Contention;

    #[test]
    fn each_pod_of_a_stateful_set_states_its_reason() {
        let rejection = |detail: &str| Rejection {
            reason: "volume-elsewhere".to_owned(),
            detail: detail.to_owned(),
            count: 4,
        };
        let part = |group, pods, details: &[&str]| UnschedulablePods {
            group,
            pods,
            rejections: details.iter().map(|detail| rejection(detail)).collect(),
            offerings: 9,
            suggested_change: Some(format!("change {group}")),
            contention: Contention::default(),
            oversize: None,
        };
        let split = SplitDemand { demand: Demand::default(), group_of: vec![0, 0, 0, 1, 1] };
        let merged = split.merge_unschedulable(vec![
            part(0, 1, &["data-0 is in zone a", "common"]),
            part(1, 2, &["data-1 is in zone b", "common"]),
            part(3, 1, &["common"]),
            part(4, 1, &["common"]),
        ]);
        let [set, equal] = &merged[..] else { panic!("{merged:?}") };
        let details =
            |row: &UnschedulablePods| row.rejections.iter().map(|r| r.detail.clone()).collect();
        let expected: Vec<String> =
            ["common", "data-1 is in zone b (2 of 3 pods)", "data-0 is in zone a (1 of 3 pods)"]
                .map(str::to_owned)
                .into();
        let found: Vec<String> = details(set);
        assert_eq!((set.pods, found), (3, expected));
        assert_eq!(set.suggested_change.as_deref(), Some("change 1"));
        let found: Vec<String> = details(equal);
        assert_eq!((equal.pods, found), (2, vec!["common".to_owned()]));
    }
}
