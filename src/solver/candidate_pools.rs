//! Pools that may launch nodes for some pod, where there are many pools.
//!
//! An offer takes about 2 kB, and a pool has thousands. A repository with a pool for each team
//! would need gigabytes for offers that no pod can use. With more than [`FEW_POOLS`] pools, two
//! kinds of pools make no offers:
//!
//! * pools whose taints or labels no pod admits;
//! * pools that differ from an earlier pool in nothing that a pod can see. At equal prices, the
//!   solver takes the pool whose name sorts first.
//!
//! Pools with nodes, limits that differ, a fixed size or settings of their own always make offers.

use std::collections::BTreeSet;

use super::offer::{OfferInput, declared_requirements, pool_requirements};
use crate::demand::PodShape;
use crate::model::desired::{AutoModePool, Pool, PoolLimits};
use crate::model::ids::{LabelKey, LabelValue, Origin, PoolName};
use crate::model::observed::tag;
use crate::model::pod::{Taint, untolerated};
use crate::model::requirement::{LabelSet, Requirements, is_well_known, key, label};

/// Number of pools up to which every pool makes offers.
const FEW_POOLS: usize = 32;

/// Prefix of the labels that EKS sets.
const EKS_LABELS: &str = "eks.amazonaws.com/";

/// Returns the pools that make offers, in order of their names.
pub(super) fn candidate_pools<'a>(supply: &OfferInput<'a>, shapes: &[&PodShape]) -> Vec<&'a Pool> {
    let all = supply.desired.pools.values();
    if supply.desired.pools.len() <= FEW_POOLS {
        return all.collect();
    }
    let existing = existing_pools(supply);
    let is_special = |pool: &Pool| {
        existing.contains(pool.name.as_str())
            || pool.replicas.is_some()
            || supply.desired.node_groups.contains_key(&pool.name)
    };
    let visible = VisibleLabels::from_shapes(shapes);
    let may_share = supply.desired.overlays.is_empty();
    let mut candidates: Vec<&Pool> = Vec::new();
    let mut kinds: Vec<Pool> = Vec::new();
    for pool in all {
        if is_special(pool) {
            candidates.push(pool);
            continue;
        }
        if !shapes.iter().any(|shape| may_run(shape, pool, supply)) {
            continue;
        }
        let is_plain = pool.limits == PoolLimits::default()
            && !supply.desired.failure_domains.contains_key(&pool.name);
        if may_share && is_plain {
            let kind = visible.kind_of(pool);
            if kinds.contains(&kind) {
                continue;
            }
            kinds.push(kind);
        }
        candidates.push(pool);
    }
    candidates
}

/// Returns the names of pools that have nodes or instances.
fn existing_pools<'a>(supply: &OfferInput<'a>) -> BTreeSet<&'a str> {
    let keys = [key::NODEPOOL, key::PROVISIONER];
    let nodes = supply.observed.nodes.values();
    let labels = nodes.flat_map(|node| keys.iter().filter_map(|key| node.labels.get(*key)));
    let instances = supply.observed.instances.values();
    let tags = instances.filter_map(|instance| instance.tags.get(tag::POOL));
    labels.map(LabelValue::as_str).chain(tags.map(String::as_str)).collect()
}

/// Returns whether a pod may run on some node of the pool, as far as taints and labels of the pool
/// itself decide it.
fn may_run(shape: &PodShape, pool: &Pool, supply: &OfferInput<'_>) -> bool {
    let own = [
        label(key::NODEPOOL, pool.name.as_str()),
        label(key::REGION, supply.catalog.region.as_str()),
    ];
    let declared = pool_requirements(pool).and(&Requirements::from_labels(&own.into()));
    may_run_on(shape, &declared, &pool.taints, is_custom)
}

/// Returns whether a pod may run on a node with these taints and declared requirements, which has
/// labels of custom keys only if they are declared.
fn may_run_on(
    shape: &PodShape,
    declared: &Requirements,
    taints: &[Taint],
    is_custom: fn(&LabelKey) -> bool,
) -> bool {
    if untolerated(taints, &shape.tolerations).is_some() {
        return false;
    }
    shape.nodes.any_of.iter().any(|alternative| {
        let lacks = |(key, set): (&LabelKey, &LabelSet)| {
            is_custom(key) && declared.get(key.as_str()).is_none() && !set.allows_absence()
        };
        !alternative.iter().any(lacks) && declared.and(alternative).conflict().is_none()
    })
}

/// Returns whether a pod may run on some node of a pool of EKS Auto Mode. Labels of its instance
/// types have keys of EKS.
pub(super) fn may_run_in_auto_mode(shape: &PodShape, name: &PoolName, pool: &AutoModePool) -> bool {
    let own = [label(key::NODEPOOL, name.as_str())];
    let declared = declared_requirements(&pool.labels, &pool.requirements)
        .and(&Requirements::from_labels(&own.into()));
    may_run_on(shape, &declared, &pool.taints, |key| {
        let name = key.as_str();
        !name.starts_with(EKS_LABELS) && (is_custom(key) || name.starts_with(key::INSTANCE_PREFIX))
    })
}

/// Returns whether only pools set labels of this key.
fn is_custom(key: &LabelKey) -> bool {
    let name = key.as_str();
    let domain = name.split_once('/').map_or("", |(domain, _)| domain);
    !is_well_known(name) && !domain.ends_with("kubernetes.io") && !domain.contains("karpenter")
}

/// Labels that some pod selects, prefers or spreads over.
struct VisibleLabels(BTreeSet<LabelKey>);

impl VisibleLabels {
    fn from_shapes(shapes: &[&PodShape]) -> Self {
        let mut keys = BTreeSet::new();
        for shape in shapes {
            let preferred = shape.nodes.preferred.iter().map(|(_, requirements)| requirements);
            let selected = shape.nodes.any_of.iter().chain(preferred);
            keys.extend(
                selected.flat_map(|requirements| requirements.iter().map(|(k, _)| k.clone())),
            );
            keys.extend(shape.spread.iter().map(|rule| rule.topology_key.clone()));
            for affinity in [&shape.affinity, &shape.anti_affinity] {
                let preferred = affinity.preferred.iter().map(|(_, term)| term);
                let terms = affinity.required.iter().chain(preferred);
                keys.extend(terms.map(|term| term.topology_key.clone()));
            }
        }
        Self(keys)
    }

    /// Returns the pool without everything that no pod can see: its name, unless pods select it,
    /// and custom labels that no pod names.
    fn kind_of(&self, pool: &Pool) -> Pool {
        let is_visible = |key: &LabelKey| !is_custom(key) || self.0.contains(key);
        let mut kind = pool.clone();
        if !self.0.contains(&LabelKey::from(key::NODEPOOL)) {
            kind.name = "".into();
        }
        kind.origin = Origin::new("", 0);
        kind.labels.retain(|key, _| is_visible(key));
        kind.requirements.retain(|requirement| is_visible(&requirement.key));
        kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pod::TaintEffect;
    use crate::testing::Scenario;

    /// Returns the names of pools that make offers, of 40 pools like that of the scenario after
    /// `edit`.
    fn candidates(scenario: &mut Scenario, edit: impl Fn(usize, &mut Pool)) -> Vec<String> {
        let first = scenario.pool().clone();
        for index in 0..40 {
            let mut pool =
                Pool { name: format!("team-{index:02}").as_str().into(), ..first.clone() };
            edit(index, &mut pool);
            scenario.desired.pools.insert(pool.name.clone(), pool);
        }
        let demand = scenario.demand();
        let shapes: Vec<&PodShape> = demand.groups.iter().map(|group| &*group.shape).collect();
        let supply = OfferInput {
            desired: &scenario.desired,
            catalog: &scenario.catalog,
            observed: &scenario.observed,
            at: jiff::Timestamp::UNIX_EPOCH,
        };
        candidate_pools(&supply, &shapes).iter().map(|pool| pool.name.to_string()).collect()
    }

    fn scenario() -> Scenario {
        let mut scenario = Scenario::new(&["m5.large"], 500, 1024);
        scenario.scale(3);
        scenario
    }

    #[test]
    fn pools_that_no_pod_tolerates_make_no_offers() {
        let taint = |index: usize, pool: &mut Pool| {
            let value = format!("t{index}");
            let (key, effect) = ("team".to_owned(), TaintEffect::NoSchedule);
            pool.taints.push(Taint { key: key.into(), value: value.into(), effect });
        };
        assert_eq!(candidates(&mut scenario(), taint), ["default"]);
    }

    #[test]
    fn equal_pools_make_offers_once_unless_pods_see_a_difference() {
        let labeled = |index: usize, pool: &mut Pool| {
            pool.labels.extend([label("team", &format!("t{index}"))]);
        };
        assert_eq!(candidates(&mut scenario(), labeled), ["default"]);
        let weighted = |index: usize, pool: &mut Pool| {
            pool.weight = u32::from(index == 7);
        };
        assert_eq!(candidates(&mut scenario(), weighted), ["default", "team-07"]);
        let mut selecting = scenario();
        selecting.template().spec.node_selector.extend([label("team", "t5")]);
        assert_eq!(candidates(&mut selecting, labeled), ["team-05"]);
        let limited = |_: usize, pool: &mut Pool| pool.limits.nodes = Some(3);
        assert_eq!(candidates(&mut scenario(), limited).len(), 41, "each limit counts");
    }
}
