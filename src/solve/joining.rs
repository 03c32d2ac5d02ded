//! Instances as the nodes that they will become, and what instances cost.

use super::standing::{Fate, Leave, Standing, Survey};
use super::target::{BlockReason, KeepReason};
use crate::catalog::{Allocation, CapacityType, NodeSettings, Offering};
use crate::fleet::Instance;
use crate::ids::{Labels, PoolName};
use crate::pod::Taint;
use crate::requirement::{is_well_known, key, label};
use crate::units::{MicroUsd, Resources};

/// What a node costs per hour, and why.
#[derive(Default)]
pub(super) struct Priced {
    pub(super) price: Option<MicroUsd>,
    pub(super) estimated: bool,
    pub(super) overlays: Vec<String>,
}

impl Survey<'_> {
    /// An instance without a node counts as the node it will become, so that a second plan does
    /// not launch another one for the same pods; one that never joined holds nothing.
    pub(super) fn joining(&self, instance: &Instance) -> Option<Standing> {
        let pool = self.pool_of(instance)?;
        let known = self.will_be(instance, &pool);
        let (labels, taints) = known.clone().unwrap_or_default();
        let kind = self.catalog.types.get(&instance.instance_type);
        let amounts = kind.map(|kind| self.catalog.allocation(kind, &self.settings(&pool)));
        let mut amounts = amounts.unwrap_or_default();
        let priced = self.priced(instance, &labels);
        self.overlays.overlaid(&labels, None).extend(&mut amounts);
        let daemons = self.expected_daemons(&labels, &taints);
        let Allocation { capacity, allocatable, .. } = amounts;
        let room = if known.is_some() { allocatable.minus(&daemons) } else { Resources::default() };
        Some(Standing {
            name: instance.id.as_str().into(),
            labels,
            taints,
            startup_taints: Vec::new(),
            capacity,
            allocatable,
            room,
            price: priced.price,
            price_estimated: priced.estimated,
            reservation: instance.reservation.clone(),
            overlays: priced.overlays,
            is_new: false,
            schedulable: known.is_some() && self.is_coming(instance.launched_at),
            fate: Fate::Stays(KeepReason::Blocked { by: BlockReason::NotReady }),
            drift: None,
            leave: Leave::OncePlaced,
            pool: Some(pool),
        })
    }

    /// Returns the labels and taints that the node of an instance will have: those that an offer of
    /// its pool says, with the open labels that its tags say. `None` where the pool makes no such
    /// node any more.
    fn will_be(&self, instance: &Instance, pool: &PoolName) -> Option<(Labels, Vec<Taint>)> {
        let fixed = self.offers.fixed.values().flatten();
        let withheld = self.offers.withheld.iter().map(|(offer, _)| offer);
        let offers = self.offers.list.iter().chain(fixed).chain(withheld);
        let mut offers = offers.chain(&self.offers.unpriced);
        let offer = offers.find(|offer| {
            let node = &offer.node;
            node.pool == *pool
                && node.instance_type == instance.instance_type
                && node.zone == instance.zone
                && node.capacity_type == instance.capacity_type
                && node.reservation == instance.reservation
        })?;
        let mut labels = offer.node.labels.clone();
        let declared = self.circumstances.desired.pools.get(pool)?;
        for requirement in &declared.requirements {
            let key = &requirement.key;
            if !is_well_known(key.as_str()) && !declared.labels.contains_key(key) {
                labels.remove(key);
            }
        }
        labels.extend(instance.open_labels());
        // Every node gets a host name of its own; until then it goes by its instance.
        labels.extend([label(key::HOSTNAME, instance.id.as_str())]);
        Some((labels, offer.node.taints.clone()))
    }

    /// Returns what an instance costs, whose node has, or will have, these labels.
    pub(super) fn priced(&self, instance: &Instance, labels: &Labels) -> Priced {
        if instance.capacity_type == CapacityType::Reserved {
            // It is paid for whether it runs or not.
            return Priced { price: Some(MicroUsd::ZERO), ..Priced::default() };
        }
        let Some(offering) = self.offering(instance) else { return Priced::default() };
        let overlaid = self.overlays.overlaid(labels, offering.price);
        let estimated = offering.is_estimate_for(labels) && overlaid.price == offering.price;
        Priced { price: overlaid.price, estimated, overlays: overlaid.names }
    }

    /// The settings of a pool's nodes; the defaults where it is no longer declared.
    pub(super) fn settings(&self, pool: &PoolName) -> NodeSettings {
        let desired = self.circumstances.desired;
        let pool = desired.pools.get(pool);
        let class = pool.and_then(|pool| desired.node_classes.get(pool.node_class.as_ref()?));
        pool.zip(class).map(|(pool, class)| NodeSettings::of(pool, class)).unwrap_or_default()
    }

    /// Returns as what an instance is sold: where the fleet's zones are others than its own, as its type is on demand
    /// in those, since lists are made by region.
    fn offering(&self, instance: &Instance) -> Option<&Offering> {
        let offerings = &self.catalog.types.get(&instance.instance_type)?.offerings;
        let alike = || offerings.iter().filter(|o| o.capacity_type == instance.capacity_type);
        let listed = |o: &&Offering| o.capacity_type == CapacityType::OnDemand;
        alike().find(|o| o.zone == instance.zone).or_else(|| alike().find(listed))
    }
}
