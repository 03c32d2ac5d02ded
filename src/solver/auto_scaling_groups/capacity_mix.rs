//! Groups that mix on-demand and spot: the price of their next member, and the capacity type of each
//! planned one.

use std::collections::{BTreeMap, BTreeSet};

use super::{live_group, member_count, members};
use crate::catalog::{Catalog, InstanceType, Offering, Overlays};
use crate::model::desired::{Desired, NodeGroup};
use crate::model::ids::{InstanceId, InstanceTypeName, Labels, NodeName};
use crate::model::market::{CapacityMix, CapacityType};
use crate::model::observed::Observed;
use crate::model::units::MicroUsd;
use crate::solver::Input;
use crate::solver::target_fleet::{Launch, NewNode, Retire};

/// Returns the mix of a group: that of the observed group, else the declared one.
pub(in crate::solver) fn mix_of(group: &NodeGroup, observed: &Observed) -> Option<CapacityMix> {
    live_group(group, observed).and_then(|live| live.mix).or(group.mix)
}

/// Returns the price of the next member of a group, averaged over all nodes that it may still add,
/// from its prices on demand and as spot.
pub(in crate::solver) fn average_price(
    group: &NodeGroup,
    mix: CapacityMix,
    observed: &Observed,
    prices: [MicroUsd; 2],
) -> MicroUsd {
    let there = size(group, observed);
    let live = live_group(group, observed);
    let most = live.map_or(group.max, |live| live.max).max(there.saturating_add(1));
    let count = most - there;
    MicroUsd(price_of_next(mix, there, count, prices).0 / i64::from(count))
}

/// Returns the number of members of a group that exist.
fn size(group: &NodeGroup, observed: &Observed) -> u32 {
    live_group(group, observed).map_or(0, |live| member_count(observed, &live.name))
}

/// Returns the price of the next `count` members of a group with `there` members, from the prices of
/// one member on demand and as spot.
fn price_of_next(mix: CapacityMix, there: u32, count: u32, prices: [MicroUsd; 2]) -> MicroUsd {
    let size = there.saturating_add(count);
    let on_demand = i64::from(mix.on_demand(size).saturating_sub(mix.on_demand(there)));
    let [dear, cheap] = prices;
    dear.times(on_demand) + cheap.times(i64::from(count) - on_demand)
}

/// Returns the price of the next `count` members of a mixed group; `None` if it is not mixed, or its
/// spot price is unknown.
pub(super) fn growth_price(
    input: &Input,
    group: &NodeGroup,
    node: &NewNode,
    count: u32,
) -> Option<MicroUsd> {
    let Input { desired, observed, catalog, .. } = *input;
    let mix = mix_of(group, observed).filter(|mix| mix.is_mixed())?;
    let overlays = Overlays::from_desired(desired);
    let dearest = |of| dearest_price(group, catalog, (node, of), &overlays);
    let on_demand = dearest(CapacityType::OnDemand)?.price;
    let spot = dearest(CapacityType::Spot)?.price;
    Some(price_of_next(mix, size(group, observed), count, [on_demand, spot]))
}

/// Price per hour of a purchase option.
#[derive(Debug, Clone, Copy)]
pub(in crate::solver) struct OptionPrice {
    pub(in crate::solver) price: MicroUsd,
    pub(in crate::solver) is_estimate: bool,
}

/// Returns the price of the dearest type that a group may launch as its next member, the node
/// `node` bought as `of`. `None` if no price is known, or each spot price is above the maximum
/// price of the group. Auto Scaling chooses the type.
pub(in crate::solver) fn dearest_price(
    group: &NodeGroup,
    catalog: &Catalog,
    (node, of): (&NewNode, CapacityType),
    overlays: &Overlays<'_>,
) -> Option<OptionPrice> {
    let names: BTreeSet<&InstanceTypeName> = group.types.iter().collect();
    let price_of = |name: &&InstanceTypeName| {
        let kind = catalog.types.get(*name)?;
        let offering = offering(kind, node, of)?;
        // A node of several types lacks the labels of each one.
        let mut labels = if names.len() > 1 { kind.labels.clone() } else { Labels::default() };
        labels.extend(node.labels.iter().map(|(key, value)| (key.clone(), value.clone())));
        let is_too_dear = of == CapacityType::Spot
            && offering.price.zip(group.max_spot_price).is_some_and(|(is, most)| is > most);
        price(offering, &labels, overlays).filter(|_| offering.estimated || !is_too_dear)
    };
    let prices: Vec<OptionPrice> = names.iter().filter_map(price_of).collect();
    let dearest = prices.iter().map(|one| one.price).max()?;
    let is_estimate = prices.iter().any(|one| one.price == dearest && one.is_estimate);
    Some(OptionPrice { price: dearest, is_estimate })
}

fn offering<'k>(kind: &'k InstanceType, node: &NewNode, of: CapacityType) -> Option<&'k Offering> {
    kind.offerings
        .iter()
        .find(|offering| offering.zone == node.zone && offering.capacity_type == of)
}

fn price(offering: &Offering, labels: &Labels, overlays: &Overlays<'_>) -> Option<OptionPrice> {
    let price = overlays.apply(labels, Some(offering.price?)).price?;
    let is_estimate = offering.is_estimate_for(labels) && Some(price) == offering.price;
    Some(OptionPrice { price, is_estimate })
}

/// Sets the capacity type and the price of each new member of a mixed group. Auto Scaling launches
/// the missing on-demand members first.
pub fn assign_capacity_types(
    desired: &Desired,
    observed: &Observed,
    catalog: &Catalog,
    launches: &mut [Launch],
    retires: &BTreeMap<NodeName, Retire>,
) {
    let overlays = Overlays::from_desired(desired);
    let retired: BTreeSet<&InstanceId> =
        retires.keys().filter_map(|name| observed.nodes.get(name)?.instance.as_ref()).collect();
    for group in desired.node_groups.values() {
        let Some(mix) = mix_of(group, observed).filter(|mix| mix.is_mixed()) else { continue };
        let live = live_group(group, observed).into_iter();
        let stays = live.flat_map(|live| members(observed, &live.name));
        let stays: Vec<CapacityType> = stays
            .filter(|member| !retired.contains(&member.id))
            .map(|member| member.capacity_type)
            .collect();
        let mut new: Vec<&mut NewNode> = launches
            .iter_mut()
            .map(|launch| &mut launch.node)
            .filter(|node| node.pool == group.name)
            .collect();
        let size = u32::try_from(stays.len() + new.len()).unwrap_or(u32::MAX);
        let spots = stays.iter().filter(|of| **of == CapacityType::Spot).count();
        let on_demand = u32::try_from(stays.len() - spots).unwrap_or(u32::MAX);
        let missing = mix.on_demand(size).saturating_sub(on_demand);
        let missing = usize::try_from(missing).unwrap_or(usize::MAX);
        for (index, node) in new.iter_mut().enumerate() {
            let dearest = |of| dearest_price(group, catalog, (&**node, of), &overlays);
            let spot = dearest(CapacityType::Spot).filter(|_| index >= missing);
            let on_demand = || Some((CapacityType::OnDemand, dearest(CapacityType::OnDemand)?));
            let bought = spot.map(|spot| (CapacityType::Spot, spot)).or_else(on_demand);
            if let Some((capacity_type, OptionPrice { price, is_estimate })) = bought {
                node.capacity_type = capacity_type;
                (node.price, node.price_estimated) = (price, is_estimate);
            }
        }
    }
}
