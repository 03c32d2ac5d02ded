//! Pools of more than one processor architecture, and pods that do not say which one they run on.
//!
//! What an image was built for stands in its registry, which nobody asks here. The cheaper
//! architecture is taken, and an image without a build for it ends in `exec format error`.

use std::collections::BTreeSet;

use super::warning;
use crate::catalog::Catalog;
use crate::demand::{Demand, PodGroup};
use crate::ids::LabelValue;
use crate::manifest::{Desired, Pool, Problem};
use crate::pod::untolerated;
use crate::requirement::{Requirements, key};

/// Returns a warning for each pool that sells several architectures to pods which leave it open.
pub(super) fn left_open(desired: &Desired, demand: &Demand, catalog: &Catalog) -> Vec<Problem> {
    let groups = demand.groups.iter().filter(|group| group.counts.ceiling > 0);
    let groups: Vec<&PodGroup> = groups.filter(|group| group.origin.is_some()).collect();
    let of_pool = |pool| verdict(pool, &groups, catalog);
    desired.pools.values().filter_map(of_pool).collect()
}

fn verdict(pool: &Pool, groups: &[&PodGroup], catalog: &Catalog) -> Option<Problem> {
    let sold = sold(pool, catalog);
    if sold.len() < 2 {
        return None;
    }
    let mut open = groups.iter().filter(|group| leaves_open(group, pool));
    let first = open.next()?;
    let others = match open.count() {
        0 => String::new(),
        1 => " and one other workload".to_owned(),
        n => format!(" and {n} other workloads"),
    };
    let names: Vec<&str> = sold.iter().map(|value| value.as_str()).collect();
    let message = format!(
        "has nodes of {}, and {} {}{others} may run on either: the cheaper is taken, and nobody \
         looked at what the images were built for",
        names.join(" and "),
        first.workload.kind,
        first.workload,
    );
    let hint = "name kubernetes.io/arch in the pool's requirements, or in the pods' nodeSelector \
                (both, where the images have both)";
    Some(warning(&pool.origin, &format!("NodePool {}", pool.name), message, hint))
}

/// Returns the architectures of the types that the requirements of a pool admit.
fn sold<'c>(pool: &Pool, catalog: &'c Catalog) -> BTreeSet<&'c LabelValue> {
    let kinds = catalog.of_pool(pool);
    kinds.filter_map(|kind| kind.labels.get(key::ARCH)).collect()
}

/// Returns whether the pods of a workload may be on nodes of the pool, whichever architecture.
fn leaves_open(group: &PodGroup, pool: &Pool) -> bool {
    let shape = &group.shape;
    let is_open = |wanted: &Requirements| {
        wanted.iter().all(|(name, set)| match pool.labels.get(name) {
            // Whoever names architectures has looked, be it both of them.
            _ if name.as_str() == key::ARCH => false,
            Some(value) => set.contains(Some(value)),
            None => true,
        })
    };
    untolerated(&pool.taints, &shape.tolerations).is_none()
        && shape.nodes.stated().iter().any(is_open)
}
