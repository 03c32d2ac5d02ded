//! Node overlays: prices and resources that a repository declares instead of the cloud's.
//!
//! For each field, the overlay with the highest weight that matches a node's labels wins. Source:
//! karpenter core, `pkg/controllers/nodeoverlay`. One deliberate difference: if two overlays of
//! equal weight disagree about an offering, both are reported as errors of the repository, and
//! neither is applied to that offering. Karpenter marks them not Ready. Two overlays with the same
//! value do not disagree.

use std::collections::{BTreeMap, BTreeSet};

use super::instance_type::{InstanceType, Offering};
use super::node_resource::Allocation;
use super::types::Catalog;
use crate::model::code::Code;
use crate::model::desired::{Desired, NodeOverlay, Pool, PriceChange, Problem};
use crate::model::ids::{LabelValue, Labels};
use crate::model::requirement::{LabelSet, Requirements, key, label};
use crate::model::units::{Bytes, MicroUsd, ResourceName};

/// The overlays of a repository, highest weight first.
#[derive(Debug, Default)]
pub struct Overlays<'a>(Vec<(&'a NodeOverlay, Requirements)>);

/// The result of applying overlays to one offering.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OverlaidOffering {
    /// Price per hour; `None` if unknown.
    pub price: Option<MicroUsd>,
    /// Extended resources to set, by name.
    pub capacity: BTreeMap<ResourceName, i64>,
    /// Names of the overlays that were applied.
    pub names: Vec<String>,
}

impl OverlaidOffering {
    /// Sets the extended resources in capacity and allocatable. Huge pages are subtracted from
    /// memory.
    pub fn extend(&self, allocation: &mut Allocation) {
        let pages =
            self.capacity.iter().filter(|(name, _)| name.as_str().starts_with("hugepages-"));
        for (name, bytes) in pages {
            let more = bytes.saturating_sub(allocation.capacity.extended(name));
            let memory = &mut allocation.allocatable.memory;
            *memory = Bytes(memory.0.saturating_sub(more).max(0));
        }
        for resources in [&mut allocation.capacity, &mut allocation.allocatable] {
            resources.extended.extend(self.capacity.iter().map(|(name, n)| (name.clone(), *n)));
            resources.extended.retain(|_, amount| *amount != 0);
        }
    }
}

impl<'a> Overlays<'a> {
    /// Returns the overlays of `desired`.
    pub fn from_desired(desired: &'a Desired) -> Self {
        let mut list: Vec<_> =
            desired.overlays.values().map(|overlay| (overlay, requirements(overlay))).collect();
        list.sort_by_key(|(overlay, _)| (std::cmp::Reverse(overlay.weight), &overlay.name));
        Self(list)
    }

    /// Applies the overlays to an offering that costs `price`, and whose nodes have `labels`.
    pub fn apply(&self, labels: &Labels, price: Option<MicroUsd>) -> OverlaidOffering {
        let mut overlaid = OverlaidOffering { price, ..OverlaidOffering::default() };
        let matching: Vec<&NodeOverlay> = self.matching(labels).collect();
        let mut names = BTreeSet::new();
        let prices = matching.iter().filter_map(|o| Some((*o, o.price?)));
        if let Some((overlay, change)) = winning_value(prices) {
            overlaid.price = changed_price(price, change);
            names.insert(overlay.name.clone());
        }
        let resources: BTreeSet<&ResourceName> =
            matching.iter().flat_map(|overlay| overlay.capacity.keys()).collect();
        for resource in resources {
            let amounts = matching.iter().filter_map(|o| Some((*o, *o.capacity.get(resource)?)));
            if let Some((overlay, amount)) = winning_value(amounts) {
                overlaid.capacity.insert(resource.clone(), amount);
                names.insert(overlay.name.clone());
            }
        }
        overlaid.names = names.into_iter().collect();
        overlaid
    }

    fn matching(&self, labels: &Labels) -> impl Iterator<Item = &'a NodeOverlay> {
        let matching =
            self.0.iter().filter(|(_, requirements)| requirements.matches_labels(labels));
        matching.map(|(overlay, _)| *overlay)
    }
}

/// Returns the overlay of highest weight and its value, unless another of equal weight disagrees.
fn winning_value<'a, T: PartialEq>(
    mut values: impl Iterator<Item = (&'a NodeOverlay, T)>,
) -> Option<(&'a NodeOverlay, T)> {
    let (first, value) = values.next()?;
    let agree = values.take_while(|(o, _)| o.weight == first.weight).all(|(_, v)| v == value);
    agree.then_some((first, value))
}

fn changed_price(price: Option<MicroUsd>, change: PriceChange) -> Option<MicroUsd> {
    let changed = match change {
        PriceChange::To(price) => return Some(price),
        PriceChange::By(amount) => price? + amount,
        PriceChange::ByMilliPercent(share) => {
            let price = price?.0;
            MicroUsd(price.saturating_add(price.saturating_mul(share) / 100_000))
        }
    };
    Some(changed.max(MicroUsd::ZERO))
}

fn requirements(overlay: &NodeOverlay) -> Requirements {
    let sets = overlay.requirements.iter().map(|requirement| {
        let values: Vec<&str> = requirement.values.iter().map(LabelValue::as_str).collect();
        let set = LabelSet::from_operator(requirement.operator, &values);
        (requirement.key.clone(), set.unwrap_or_else(|_| LabelSet::all().complement()))
    });
    sets.collect()
}

impl Catalog {
    /// Applies the overlays of `desired` to an offering for nodes of `pool`.
    pub fn apply_overlays(
        &self,
        desired: &Desired,
        pool: &Pool,
        kind: &InstanceType,
        offering: &Offering,
    ) -> OverlaidOffering {
        let labels = self.labels(pool, kind, offering);
        Overlays::from_desired(desired).apply(&labels, offering.price)
    }

    /// Returns two errors for each pair of overlays of equal weight that disagree about an offering
    /// that some pool may use.
    pub fn overlay_conflicts(&self, desired: &Desired) -> Vec<Problem> {
        let overlays = Overlays::from_desired(desired);
        let mut problems = Vec::new();
        for (at, (first, requirements)) in overlays.0.iter().enumerate() {
            for (second, also) in &overlays.0[at + 1..] {
                let both = requirements.and(also);
                let Some(what) = disagreement(first, second) else { continue };
                if both.conflict().is_none() && self.has_node(desired, &both) {
                    problems.push(conflict(first, second, &what));
                    problems.push(conflict(second, first, &what));
                }
            }
        }
        problems
    }

    /// Returns whether a node of some pool could meet `requirements`.
    fn has_node(&self, desired: &Desired, requirements: &Requirements) -> bool {
        desired.pools.values().any(|pool| {
            let mut kinds = self.types.values();
            kinds.any(|kind| {
                let mut offerings = kind.offerings.iter();
                offerings.any(|o| requirements.matches_labels(&self.labels(pool, kind, o)))
            })
        })
    }

    fn labels(&self, pool: &Pool, kind: &InstanceType, offering: &Offering) -> Labels {
        let mut labels = pool.labels.clone();
        labels.extend(kind.labels.clone());
        labels.extend([
            label(key::NODEPOOL, pool.name.as_str()),
            label(key::REGION, self.region.as_str()),
            label(key::ZONE, offering.zone.as_str()),
            label(key::ZONE_ID, offering.zone_id.as_str()),
            label(key::CAPACITY_TYPE, offering.capacity_type.as_str()),
        ]);
        labels
    }
}

/// Returns the field that two overlays of equal weight set to different values.
fn disagreement(a: &NodeOverlay, b: &NodeOverlay) -> Option<String> {
    if a.weight != b.weight {
        return None;
    }
    if a.price.is_some() && b.price.is_some() && a.price != b.price {
        return Some("the price".to_owned());
    }
    let other = |name: &ResourceName, n: &i64| b.capacity.get(name).is_some_and(|m| m != n);
    a.capacity.iter().find(|(name, n)| other(name, n)).map(|(name, _)| format!("`{name}`"))
}

fn conflict(of: &NodeOverlay, with: &NodeOverlay, what: &str) -> Problem {
    Problem::error(
        of.origin.clone(),
        format!("NodeOverlay {}", of.name),
        format!(
            "sets {what} of instance types for which NodeOverlay {} ({}) of the same weight {} \
             sets another",
            with.name, with.origin, of.weight
        ),
    )
    .hint("give one of them a higher `spec.weight`")
    .code(Code::OverlayConflict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::Origin;
    use crate::testing::{pool, requirement};

    fn overlay(name: &str, weight: u32, family: &str, price: Option<PriceChange>) -> NodeOverlay {
        NodeOverlay {
            name: name.to_owned(),
            origin: Origin::new("overlays.yaml", weight),
            weight,
            requirements: vec![requirement("karpenter.k8s.aws/instance-family", &[family])],
            price,
            capacity: [].into(),
        }
    }

    fn desired(overlays: Vec<NodeOverlay>) -> Desired {
        let mut desired = Desired::default();
        let pool = pool();
        desired.pools.insert(pool.name.clone(), pool);
        desired.overlays = overlays.into_iter().map(|o| (o.name.clone(), o)).collect();
        desired
    }

    fn m5() -> Labels {
        [label("karpenter.k8s.aws/instance-family", "m5")].into()
    }

    #[test]
    fn price_changes_are_absolute_or_relative_and_never_negative() {
        let hundred = Some(MicroUsd(100));
        for (from, change, expected) in [
            (hundred, PriceChange::To(MicroUsd(7)), Some(7)),
            (None, PriceChange::To(MicroUsd(7)), Some(7)),
            (hundred, PriceChange::By(MicroUsd(-30)), Some(70)),
            (hundred, PriceChange::By(MicroUsd(-130)), Some(0)),
            (hundred, PriceChange::ByMilliPercent(-15_000), Some(85)),
            (hundred, PriceChange::ByMilliPercent(10_000), Some(110)),
            (None, PriceChange::ByMilliPercent(10_000), None),
        ] {
            assert_eq!(changed_price(from, change), expected.map(MicroUsd), "{from:?} {change:?}");
        }
    }

    #[test]
    fn the_highest_matching_weight_wins_per_field() {
        let mut heavy = overlay("heavy", 10, "m5", None);
        heavy.capacity = [("example.com/fuse".into(), 2)].into();
        let mut light = overlay("light", 1, "m5", Some(PriceChange::To(MicroUsd(5))));
        light.capacity = [("example.com/fuse".into(), 1), ("example.com/gpu".into(), 4)].into();
        let other = overlay("other", 99, "c5", Some(PriceChange::To(MicroUsd(9))));
        let desired = desired(vec![heavy, light, other]);
        let overlaid = Overlays::from_desired(&desired).apply(&m5(), Some(MicroUsd(100)));
        assert_eq!(overlaid.price, Some(MicroUsd(5)));
        let expected = [("example.com/fuse".into(), 2), ("example.com/gpu".into(), 4)];
        assert_eq!(overlaid.capacity, expected.into());
        assert_eq!(overlaid.names, ["heavy", "light"]);
    }

    #[test]
    fn conflicting_overlays_of_equal_weight_are_both_errors() {
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("the region is embedded");
        let price = |price| Some(PriceChange::To(MicroUsd(price)));
        let desired = |second: NodeOverlay| desired(vec![overlay("a", 3, "m5", price(5)), second]);
        let both = desired(overlay("b", 3, "m5", price(6)));
        let problems = catalog.overlay_conflicts(&both);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert_eq!(problems[0].object, "NodeOverlay a");
        assert!(problems[0].message.contains("NodeOverlay b (overlays.yaml:3)"), "{problems:?}");
        let overlaid = Overlays::from_desired(&both).apply(&m5(), Some(MicroUsd(100)));
        assert_eq!(overlaid.price, Some(MicroUsd(100)));
        for (name, second) in [
            ("another weight", overlay("b", 4, "m5", price(6))),
            ("another family", overlay("b", 3, "c5", price(6))),
            ("the same price", overlay("b", 3, "m5", price(5))),
        ] {
            assert_eq!(catalog.overlay_conflicts(&desired(second)), [], "{name}");
        }
    }
}
