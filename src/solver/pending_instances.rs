//! Pending instances as the nodes that they become, and prices of instances.

use std::collections::BTreeMap;

use super::existing_node::{ExistingNode, ExistingNodeBuilder};
use super::node_disposition::{NodeDisposition, RetireCondition};
use crate::catalog::{Allocation, NodeSettings, Offering};
use crate::model::ids::{Labels, PoolName};
use crate::model::market::CapacityType;
use crate::model::observed::Instance;
use crate::model::pod::Taint;
use crate::model::reason::{BlockReason, KeepReason};
use crate::model::requirement::{is_well_known, key, label};
use crate::model::units::{MicroUsd, Resources};

/// Price of a node per hour, with its origin.
#[derive(Default)]
pub(super) struct NodePrice {
    pub(super) price: Option<MicroUsd>,
    pub(super) estimated: bool,
    pub(super) overlays: Vec<String>,
}

impl ExistingNodeBuilder<'_> {
    /// Returns an instance without a node as its expected node, so that the next plan does not
    /// launch another instance for the same pods. An instance that never joined holds no pods.
    pub(super) fn expected_node(&self, instance: &Instance) -> Option<ExistingNode> {
        let pool = self.pool_of(instance)?;
        let known = self.expected_labels(instance, &pool);
        let (labels, taints) = known.clone().unwrap_or_default();
        let kind = self.catalog.types.get(&instance.instance_type);
        let amounts = kind.map(|kind| self.catalog.allocation(kind, &self.node_settings(&pool)));
        let mut amounts = amounts.unwrap_or_default();
        let priced = self.node_price(instance, &labels);
        self.overlays.apply(&labels, None).extend(&mut amounts);
        let Allocation { capacity, allocatable, .. } = amounts;
        let daemons = &self.input.demand.daemons;
        let daemons = super::offer::daemon_requests(daemons, &labels, &taints, &allocatable);
        let room = if known.is_some() { allocatable.minus(&daemons) } else { Resources::default() };
        Some(ExistingNode {
            name: instance.id.as_str().into(),
            labels,
            taints,
            startup_taints: Vec::new(),
            capacity,
            allocatable,
            room,
            static_pods: Vec::new(),
            price: priced.price,
            price_estimated: priced.estimated,
            reservation: instance.reservation.clone(),
            overlays: priced.overlays,
            is_planned: false,
            schedulable: known.is_some() && self.is_starting(instance.launched_at),
            disposition: NodeDisposition::Keep(KeepReason::Blocked { by: BlockReason::NotReady }),
            due: None,
            differences: Vec::new(),
            retire_condition: RetireCondition::OncePodsPlaced,
            planned_pods: self.planned_pods(instance),
            pool: Some(pool),
        })
    }

    /// Returns the pods that the last plan places on an instance.
    pub(super) fn planned_pods(&self, instance: &Instance) -> BTreeMap<String, u32> {
        self.observed.planned_pods.get(&instance.id).cloned().unwrap_or_default()
    }

    /// Returns the expected labels and taints of an instance's node: those of an offer of its pool,
    /// with open labels from tags. `None` if the pool no longer offers such a node.
    fn expected_labels(
        &self,
        instance: &Instance,
        pool: &PoolName,
    ) -> Option<(Labels, Vec<Taint>)> {
        let fixed = self.offers.static_pools.values().flatten();
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
        let declared = self.input.desired.pools.get(pool)?;
        for requirement in &declared.requirements {
            let key = &requirement.key;
            if !is_well_known(key.as_str()) && !declared.labels.contains_key(key) {
                labels.remove(key);
            }
        }
        labels.extend(instance.open_labels());
        // The host name is unknown until the node joins; the instance id stands for it.
        labels.extend([label(key::HOSTNAME, instance.id.as_str())]);
        Some((labels, offer.node.taints.clone()))
    }

    /// Returns the price of an instance whose node has, or will have, these labels.
    pub(super) fn node_price(&self, instance: &Instance, labels: &Labels) -> NodePrice {
        if instance.capacity_type == CapacityType::Reserved {
            // A reservation is paid for whether it is used or not.
            return NodePrice { price: Some(MicroUsd::ZERO), ..NodePrice::default() };
        }
        let Some(offering) = self.offering(instance) else { return NodePrice::default() };
        let overlaid = self.overlays.apply(labels, offering.price);
        let estimated = offering.is_estimate_for(labels) && overlaid.price == offering.price;
        NodePrice { price: overlaid.price, estimated, overlays: overlaid.names }
    }

    /// Returns the node settings of a pool; the defaults if the pool is no longer declared.
    pub(super) fn node_settings(&self, pool: &PoolName) -> NodeSettings {
        let desired = self.input.desired;
        let pool = desired.pools.get(pool);
        let class = pool.and_then(|pool| desired.node_classes.get(pool.node_class.as_ref()?));
        pool.zip(class).map(|(pool, class)| NodeSettings::new(pool, class)).unwrap_or_default()
    }

    /// Returns the offering of an instance. If the catalog does not list its zone, the on-demand
    /// offering of another zone applies, since prices are listed by region.
    fn offering(&self, instance: &Instance) -> Option<&Offering> {
        let offerings = &self.catalog.types.get(&instance.instance_type)?.offerings;
        let alike = || offerings.iter().filter(|o| o.capacity_type == instance.capacity_type);
        let listed = |o: &&Offering| o.capacity_type == CapacityType::OnDemand;
        // Local Zones have prices of their own.
        let is_regional = !instance.zone.is_edge_of(&self.catalog.region);
        let elsewhere = || alike().find(listed).filter(|_| is_regional);
        alike().find(|o| o.zone == instance.zone).or_else(elsewhere)
    }
}
