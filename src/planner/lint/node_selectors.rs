//! Lint for pods that ask for a pool, a zone, an architecture or a capacity type that no node has.

use std::collections::BTreeSet;

use crate::catalog::Catalog;
use crate::demand::{Demand, PodGroup};
use crate::model::desired::{Desired, Problem};
use crate::model::ids::{LabelValue, PoolName};
use crate::model::requirement::{LabelSet, Requirements, key};
use crate::model::similar_name::nearest;

/// Labels whose values are checked.
const KEYS: [&str; 4] = [key::NODEPOOL, key::ZONE, key::ARCH, key::CAPACITY_TYPE];

/// Returns a warning for each label of [`KEYS`] whose required values are those of no node.
///
/// A zone that is similar to none may be a Local Zone, and has no warning.
pub(super) fn unknown_values(
    desired: &Desired,
    demand: &Demand,
    catalog: &Catalog,
) -> Vec<Problem> {
    let pools = desired.pools.keys().chain(desired.auto_mode_pools.keys());
    let pools: BTreeSet<&str> = pools.map(PoolName::as_str).collect();
    let groups = demand.groups.iter().filter(|group| group.counts.ceiling > 0);
    let mut found: Vec<Problem> = Vec::new();
    for group in groups {
        let asked = group.shape.nodes.stated().iter().flat_map(Requirements::iter);
        for (label, set) in asked.filter(|(label, _)| KEYS.contains(&label.as_str())) {
            let known = if label.as_str() == key::NODEPOOL {
                pools.clone()
            } else {
                catalog.known_values(label.as_str())
            };
            found.extend(unknown(group, label.as_str(), set, &known));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn unknown(
    group: &PodGroup,
    label: &str,
    set: &LabelSet,
    known: &BTreeSet<&str>,
) -> Option<Problem> {
    let asked = set.values().finite(1).filter(|_| !set.allows_absence() && !known.is_empty())?;
    let first =
        asked.first().filter(|_| !asked.iter().any(|value| known.contains(value.as_str())))?;
    let near = nearest(first.as_str(), known.iter().copied());
    let is_pool = label == key::NODEPOOL;
    if near.is_empty() && !is_pool {
        return None;
    }
    let listed: Vec<&str> = asked.iter().map(LabelValue::as_str).collect();
    let declared = if is_pool {
        "no file that is read declares such a pool"
    } else {
        "no node has that value"
    };
    let hint = if near.is_empty() {
        "name a pool of the repository, or declare this one".to_owned()
    } else {
        format!("did you mean `{}`?", near.join("` or `"))
    };
    let message = format!("its pods ask for {label} `{}`, and {declared}", listed.join("`, `"));
    let object = format!("{} {}", group.workload.kind, group.workload);
    Some(Problem::warning(group.origin.clone()?, object, message).hint(hint))
}
