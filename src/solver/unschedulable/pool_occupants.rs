//! Pods on the nodes of a pool that other pools admit as well: they take the room that a limited
//! pool has for pods with no other place.

use std::collections::{BTreeMap, BTreeSet};

use super::super::problem::{Problem, VerifiedFleet};
use super::super::target_fleet::NodeRef;
use crate::model::ids::{PoolName, workload_key};

/// Maximum number of workloads in a text.
const NAMES_MAX: usize = 3;

/// Number of planned pods on the nodes of each pool that other pools admit, by workload.
#[derive(Debug, Default)]
pub(in crate::solver) struct PoolOccupants(BTreeMap<PoolName, BTreeMap<String, u32>>);

impl PoolOccupants {
    /// Returns the occupants of a fleet with unschedulable pods.
    pub(in crate::solver) fn of_fleet(problem: &Problem, fleet: &VerifiedFleet) -> Self {
        let mut pods: BTreeMap<PoolName, BTreeMap<String, u32>> = BTreeMap::new();
        if fleet.unplaced.is_empty() {
            return Self(pods);
        }
        let existing: BTreeMap<_, _> =
            problem.existing.iter().map(|node| (&node.name, node.pool.as_ref())).collect();
        for (group, places) in &fleet.placements {
            let offers = problem.offers.iter().zip(problem.admission.of_group(*group));
            let admitting: BTreeSet<&PoolName> =
                offers.filter(|(_, admits)| **admits).map(|(offer, _)| &offer.node.pool).collect();
            let is_admitted_beside =
                |pool: &PoolName| admitting.iter().any(|admitting| *admitting != pool);
            for (node, count) in places.iter().filter(|(_, count)| **count > 0) {
                let pool = match node {
                    NodeRef::Existing(name) => existing.get(name).copied().flatten(),
                    NodeRef::Launch(index) => {
                        fleet.offers.get(*index).map(|offer| &problem.offers[*offer].node.pool)
                    }
                };
                if let Some(pool) = pool.filter(|pool| is_admitted_beside(pool)) {
                    let workload = workload_key(&problem.groups[*group].workload);
                    *pods.entry(pool.clone()).or_default().entry(workload).or_insert(0) += count;
                }
            }
        }
        Self(pods)
    }

    /// Returns the other workloads on the nodes of the pool, each with its pods. `None` without
    /// any.
    pub(super) fn text(&self, pool: &PoolName, workload: &str) -> Option<String> {
        self.list(pool, workload, |name, pods| format!("{name} x{pods}"))
    }

    /// Returns the names of the other workloads on the nodes of the pool.
    pub(super) fn names(&self, pool: &PoolName, workload: &str) -> Option<String> {
        self.list(pool, workload, |name, _| name.to_owned())
    }

    fn list(
        &self,
        pool: &PoolName,
        workload: &str,
        text: impl Fn(&str, u32) -> String,
    ) -> Option<String> {
        let others = self.0.get(pool)?.iter().filter(|(name, _)| *name != workload);
        let mut list: Vec<String> = others.map(|(name, pods)| text(name, *pods)).collect();
        let more = list.len().saturating_sub(NAMES_MAX);
        list.truncate(NAMES_MAX);
        if more > 0 {
            list.push(format!("{more} more"));
        }
        (!list.is_empty()).then(|| list.join(", "))
    }
}
