//! Lint for pools with several processor architectures and pods that select none.
//!
//! Only image registries record the architectures of an image, and Fleetwright does not query them.
//! The planner uses the cheaper architecture. An image without a build for it fails with `exec
//! format error`.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::warning;
use crate::catalog::Catalog;
use crate::demand::{Daemon, Demand, PodGroup};
use crate::model::desired::{Desired, Pool, Problem};
use crate::model::ids::LabelValue;
use crate::model::observed::{ClusterIdentity, Observed};
use crate::model::pod::untolerated;
use crate::model::requirement::{LabelSet, Requirements, key};
use crate::solver::{OfferInput, groups_on_several_architectures};

/// Returns a warning for each pool that offers several architectures to pods without an
/// architecture requirement.
pub(super) fn open_architectures(
    desired: &Desired,
    demand: &Demand,
    catalog: &Catalog,
) -> Vec<Problem> {
    let groups = demand.groups.iter().filter(|group| group.counts.ceiling > 0);
    let groups: Vec<&PodGroup> = groups.filter(|group| group.origin.is_some()).collect();
    // What runs does not change which nodes a pool may launch.
    let observed = Observed::empty(ClusterIdentity::default(), Timestamp::UNIX_EPOCH);
    let at = observed.taken_at;
    let supply = OfferInput { desired, catalog, observed: &observed, at };
    let of_pool = |pool| check_pool(pool, &groups, &supply, &demand.daemons);
    desired.pools.values().filter_map(of_pool).collect()
}

fn check_pool(
    pool: &Pool,
    groups: &[&PodGroup],
    supply: &OfferInput,
    daemons: &[Daemon],
) -> Option<Problem> {
    let architectures = pool_architectures(pool, supply.catalog);
    if architectures.len() < 2 {
        return None;
    }
    let open: Vec<&PodGroup> =
        groups.iter().copied().filter(|group| allows_any_architecture(group, pool)).collect();
    let open = groups_on_several_architectures(supply, pool, daemons, open);
    let mut open = open.into_iter();
    let first = open.next()?;
    let others = match open.count() {
        0 => String::new(),
        1 => " and one other workload".to_owned(),
        n => format!(" and {n} other workloads"),
    };
    let names: Vec<&str> = architectures.iter().map(|value| value.as_str()).collect();
    let message = format!(
        "has nodes of {}, and {} {}{others} may run on either: the cheaper one is used, and the \
         architectures of the images are not checked",
        names.join(" and "),
        first.workload.kind,
        first.workload,
    );
    let hint = "name kubernetes.io/arch in the pool's requirements, or in the pods' nodeSelector \
                (both, where the images have both)";
    Some(warning(&pool.origin, &format!("NodePool {}", pool.name), message, hint))
}

/// Returns the architectures of the instance types that a pool admits.
fn pool_architectures<'c>(pool: &Pool, catalog: &'c Catalog) -> BTreeSet<&'c LabelValue> {
    let kinds = catalog.types_for_pool(pool);
    kinds.filter_map(|kind| kind.labels.get(key::ARCH)).collect()
}

/// Returns true if pods of the group may run on the pool and do not constrain the architecture.
fn allows_any_architecture(group: &PodGroup, pool: &Pool) -> bool {
    let shape = &group.shape;
    let is_open = |wanted: &Requirements| {
        wanted.iter().all(|(name, set)| match pool.labels.get(name) {
            // A requirement on the architecture is deliberate, even if it permits several.
            _ if name.as_str() == key::ARCH => false,
            Some(value) => set.contains(Some(value)),
            None if name.as_str() == key::NODEPOOL => {
                set.contains(Some(&pool.name.as_str().into()))
            }
            None => pool.requirements.iter().filter(|own| own.key == *name).all(|own| {
                let values: Vec<&str> = own.values.iter().map(LabelValue::as_str).collect();
                let allowed = LabelSet::from_operator(own.operator, &values);
                allowed.is_ok_and(|allowed| !allowed.intersect(set).is_empty())
            }),
        })
    };
    untolerated(&pool.taints, &shape.tolerations).is_none()
        && shape.nodes.stated().iter().any(is_open)
}
