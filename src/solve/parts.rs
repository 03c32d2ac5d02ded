//! Workloads whose pods are not all alike, taken apart and put together again.
//!
//! The solver knows groups of alike pods only. A workload whose pods are bound to different places
//! by their volumes goes in as several groups and comes out as one. On the way in, volumes of a pod's
//! own become resources that it asks for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::attach;
use super::target::{Place, Rejection, Unplaced};
use crate::demand::{Counts, Demand, Part, PodGroup, PodShape};

/// Demand in which all pods of a group are alike.
pub(super) struct Apart {
    /// The demand.
    pub demand: Demand,
    /// For each of its groups, the group that it is part of.
    pub whole: Vec<usize>,
}

impl Apart {
    /// Takes the workloads of `demand` apart.
    pub(super) fn of(demand: &Demand) -> Self {
        let (mut groups, mut whole) = (Vec::with_capacity(demand.groups.len()), Vec::new());
        for (index, group) in demand.groups.iter().enumerate() {
            if group.parts.is_empty() {
                groups.push(PodGroup { shape: counted(&group.shape), ..group.clone() });
            } else {
                groups.extend(group.parts.iter().map(|part| alone(group, part)));
            }
            whole.resize(groups.len(), index);
        }
        let daemons = demand.daemons.clone();
        Self { demand: Demand { groups, daemons, ..Demand::default() }, whole }
    }

    /// Returns where the pods of each whole group are.
    pub(super) fn placements(
        &self,
        of_parts: BTreeMap<usize, BTreeMap<Place, u32>>,
    ) -> BTreeMap<usize, BTreeMap<Place, u32>> {
        let mut placements: BTreeMap<usize, BTreeMap<Place, u32>> = BTreeMap::new();
        for (part, places) in of_parts {
            let all = placements.entry(self.whole[part]).or_default();
            for (place, count) in places {
                *all.entry(place).or_insert(0) += count;
            }
        }
        placements
    }

    /// Returns what keeps pods off other nodes by whole group; the first part speaks for all.
    pub(super) fn elsewhere(
        &self,
        of_parts: BTreeMap<usize, Vec<Rejection>>,
    ) -> BTreeMap<usize, Vec<Rejection>> {
        let mut elsewhere = BTreeMap::new();
        for (part, reasons) in of_parts {
            elsewhere.entry(self.whole[part]).or_insert(reasons);
        }
        elsewhere
    }

    /// Returns what has no place by whole group; the part with most such pods says why.
    pub(super) fn unplaced(&self, of_parts: Vec<Unplaced>) -> Vec<Unplaced> {
        let mut unplaced: BTreeMap<usize, Vec<Unplaced>> = BTreeMap::new();
        for part in of_parts {
            unplaced.entry(self.whole[part.group]).or_default().push(part);
        }
        let joined = |(group, parts): (usize, Vec<Unplaced>)| {
            let pods = parts.iter().map(|part| part.pods).sum();
            let worst = parts.into_iter().reduce(|a, b| if b.pods > a.pods { b } else { a });
            worst.map(|worst| Unplaced { group, pods, ..worst })
        };
        unplaced.into_iter().filter_map(joined).collect()
    }
}

/// Returns a group of these pods alone.
fn alone(group: &PodGroup, part: &Part) -> PodGroup {
    let Part { shape, planned, running } = part.clone();
    let counts = Counts { floor: planned, live: planned, ceiling: planned, planned };
    PodGroup { shape: counted(&shape), counts, running, parts: Vec::new(), ..group.clone() }
}

/// Returns the shape with its own volumes among its requests.
fn counted(shape: &Arc<PodShape>) -> Arc<PodShape> {
    match attach::requests(shape) {
        Some(requests) => Arc::new(PodShape { requests, ..(**shape).clone() }),
        None => Arc::clone(shape),
    }
}
