//! The nearest change that would let a pod be placed, in words.
//!
//! Everything that stands in the way of an offering is named, not the first alone: a reader who does
//! what is advised should find the pod placed.

use super::super::offer::{Offer, Withheld, pool_requirements};
use super::super::target::Relaxed;
use super::{Inquest, Obstacle, obstacles, rules};
use crate::catalog::{CapacityType, InstanceType, NodeSettings, ebs_volumes};
use crate::demand::PodShape;
use crate::ids::Labels;
use crate::manifest::{NodeClass, Pool};
use crate::pod::untolerated;
use crate::requirement::{LabelSet, Requirements, key, label};
use crate::storage::{EBS_DRIVER, attach_resource, is_attach_resource};
use crate::units::{MicroUsd, Resources};

impl Inquest<'_> {
    /// Returns the smallest change that would let the pod be placed, in words.
    pub(super) fn nearest(&self, shape: &PodShape, found: &[(&Offer, Obstacle)]) -> Option<String> {
        if self.input.desired.pools.is_empty() {
            return Some("declare a NodePool: the repository has none".to_owned());
        }
        if let Some(remedy) = limited(found) {
            return Some(remedy);
        }
        if shape.nodes.any_of.is_empty() {
            return Some(no_node(shape));
        }
        let roomy = found.iter().filter(|(offer, _)| shape.requests.fits(&offer.room));
        let by_cost = roomy.min_by_key(|(offer, last)| {
            (obstacles(shape, offer).len(), is_rule(last), offer.node.price)
        });
        let Some((offer, last)) = by_cost else {
            return Some(self.nearest_type(shape));
        };
        let all = obstacles(shape, offer);
        if let (Obstacle::Rule(reason), true) = (last, all.is_empty()) {
            return rules::told(shape, &offer.node.labels, reason).remedy;
        }
        let last = all.is_empty().then_some(last).into_iter();
        let changes: Option<Vec<String>> =
            all.iter().chain(last).map(|obstacle| change(shape, offer, obstacle)).collect();
        Some(format!(
            "{}: {} at ${}/h would hold it",
            changes?.join(", and "),
            offer.node.instance_type,
            offer.node.price.rounded(4)
        ))
    }

    /// The type of the region that would hold the pod, in the pool that has the least against it: the
    /// one that breaks the fewest requirements, and the cheapest of several.
    fn nearest_type(&self, shape: &PodShape) -> String {
        let desired = self.input.desired;
        let mut best: Option<(usize, MicroUsd, String)> = None;
        for pool in desired.pools.values() {
            let class = pool.node_class.as_ref().and_then(|name| desired.node_classes.get(name));
            let Some(class) = class else { continue };
            let in_pool = InPool::of(self, (pool, class), shape);
            let kinds = self.input.catalog.types.values().filter(|kind| !kind.bare_metal);
            for (price, kind) in kinds.filter_map(|kind| Some((in_pool.price(kind)?, kind))) {
                let broken = in_pool.broken(kind);
                let cost = in_pool.changes.len() + broken.len();
                if best.as_ref().is_none_or(|(least, at, _)| (cost, price) < (*least, *at)) {
                    best = Some((cost, price, in_pool.told(kind, price, &broken)));
                }
            }
        }
        best.map_or_else(
            || "lower the requests: no instance type of the region holds such a pod".to_owned(),
            |(_, _, told)| told,
        )
    }
}

fn is_rule(obstacle: &Obstacle) -> bool {
    matches!(obstacle, Obstacle::Rule(_) | Obstacle::Order)
}

/// Returns what helps where an offer is kept back by the limits of its pool alone.
fn limited(found: &[(&Offer, Obstacle)]) -> Option<String> {
    let for_now = found.iter().find(|(_, obstacle)| matches!(obstacle, Obstacle::LimitForNow));
    if let Some((offer, _)) = for_now {
        let node = &offer.node;
        return Some(format!(
            "plan again once this plan is applied: the nodes that go leave room for one {} within \
             the limits of pool {}",
            node.instance_type, node.pool
        ));
    }
    let (offer, _) = found.iter().find(|(_, obstacle)| matches!(obstacle, Obstacle::Limit))?;
    let node = &offer.node;
    Some(format!(
        "raise the limits of pool {} by at least one {} (cpu {}, memory {})",
        node.pool, node.instance_type, node.capacity.cpu, node.capacity.memory
    ))
}

/// Returns what helps a pod that no node could ever meet.
fn no_node(shape: &PodShape) -> String {
    match shape.volumes.as_slice() {
        [_, _, ..] => "let its volumes be in one place, or mount them in different pods".to_owned(),
        _ => "write a term into its node affinity that some node meets".to_owned(),
    }
}

/// Returns what would take an obstacle away.
fn change(shape: &PodShape, offer: &Offer, obstacle: &Obstacle) -> Option<String> {
    let pool = &offer.node.pool;
    Some(match obstacle {
        Obstacle::Taint(taint) => format!("tolerate taint {taint}"),
        Obstacle::Label { key, asked } if key == key::HOSTNAME => {
            format!("drop the wish for the node {asked}, which is not there or has no room")
        }
        Obstacle::Label { key, asked } => {
            format!("let pool {pool} make nodes with {key} {asked}, or drop the wish")
        }
        Obstacle::Volume { place } => format!("let pool {pool} make nodes there, since {place}"),
        Obstacle::Fixed => format!("raise `replicas` of pool {pool}"),
        Obstacle::Withheld(Withheld::Excluded { until }) => format!("wait until {until}"),
        Obstacle::Withheld(Withheld::TooFewValues(Relaxed { key, .. })) => {
            format!("lower minValues of {key} in pool {pool}")
        }
        Obstacle::Withheld(Withheld::TooDear { price, .. }) => {
            format!("raise maxPrice of group {pool} to ${price}")
        }
        Obstacle::Reservation(id) | Obstacle::Withheld(Withheld::UsedUp { reservation: id }) => {
            format!("enlarge reservation {id}, or let the pool use other capacity")
        }
        Obstacle::Rule(reason) => rules::told(shape, &offer.node.labels, reason).remedy?,
        Obstacle::NoTerm
        | Obstacle::TooSmall { .. }
        | Obstacle::Limit
        | Obstacle::LimitForNow
        | Obstacle::Order => return None,
    })
}

/// What a pod would find in a pool that made larger nodes.
struct InPool<'a> {
    pool: &'a Pool,
    class: &'a NodeClass,
    shape: &'a PodShape,
    requirements: Requirements,
    /// What its DaemonSets take of a node, as far as its offers tell.
    daemons: Resources,
    inquest: &'a Inquest<'a>,
    settings: NodeSettings,
    /// What has to change beside the type.
    changes: Vec<String>,
}

impl<'a> InPool<'a> {
    fn of(
        inquest: &'a Inquest<'_>,
        (pool, class): (&'a Pool, &'a NodeClass),
        shape: &'a PodShape,
    ) -> Self {
        let offer = inquest.offers.list.iter().find(|offer| offer.node.pool == pool.name);
        let daemons = offer.map(|offer| offer.daemons.clone()).unwrap_or_default();
        let mut changes = Vec::new();
        if let Some(taint) = untolerated(&pool.taints, &shape.tolerations) {
            changes
                .push(format!("tolerate taint {}={}:{:?}", taint.key, taint.value, taint.effect));
        }
        let requirements = pool_requirements(pool);
        let mut own = pool.labels.clone();
        own.extend([label(key::NODEPOOL, pool.name.as_str())]);
        let of_pool = |key: &str, set: &LabelSet| {
            let met = match own.get(key) {
                Some(value) => set.contains(Some(value)),
                None => requirements.get(key).is_none_or(|held| !held.intersect(set).is_empty()),
            };
            (!met).then(|| format!("drop its wish for {key} {set}"))
        };
        let wishes = shape.nodes.any_of.first().into_iter().flat_map(Requirements::iter);
        changes.extend(wishes.filter_map(|(key, set)| of_pool(key.as_str(), set)));
        let settings = NodeSettings::of(pool, class);
        Self { pool, class, shape, requirements, daemons, inquest, settings, changes }
    }

    /// Returns what a type costs on demand that holds the pod; `None` where none of it would.
    fn price(&self, kind: &InstanceType) -> Option<MicroUsd> {
        let Self { shape, settings, .. } = self;
        let room = self.inquest.input.catalog.allocation(kind, settings).allocatable;
        let room = room.minus(&self.daemons);
        let mut requests = shape.requests.clone();
        let volumes = requests.extended(&attach_resource(EBS_DRIVER));
        requests.extended.retain(|name, _| !is_attach_resource(name));
        let attaches = i64::from(ebs_volumes(kind, self.class.volumes()));
        if volumes > attaches || !requests.fits(&room) || !self.admits(&kind.labels) {
            return None;
        }
        let on_demand = kind.offerings.iter().filter(|o| o.capacity_type == CapacityType::OnDemand);
        on_demand.filter_map(|offering| offering.price).min()
    }

    /// Returns whether the pod's wishes leave it nodes with these labels of a type.
    fn admits(&self, labels: &Labels) -> bool {
        let meets = |alternative: &Requirements| {
            let mut wishes = alternative.iter();
            wishes.all(|(key, set)| labels.get(key).is_none_or(|value| set.contains(Some(value))))
        };
        self.shape.nodes.any_of.iter().any(meets)
    }

    /// Returns the requirements of the pool that a type does not meet.
    fn broken(&self, kind: &InstanceType) -> Vec<String> {
        let of_type = self.requirements.iter().filter_map(|(key, set)| {
            let value = kind.labels.get(key)?;
            (!set.contains(Some(value))).then(|| format!("{key} {value}, not {set}"))
        });
        of_type.collect()
    }

    fn told(&self, kind: &InstanceType, price: MicroUsd, broken: &[String]) -> String {
        let why =
            if broken.is_empty() { String::new() } else { format!(" ({})", broken.join("; ")) };
        let (pool, name, price) = (&self.pool.name, &kind.name, price.rounded(4));
        let mut changes = vec![format!("let pool {pool} use {name}{why}")];
        changes.extend(self.changes.iter().cloned());
        format!("{}: ${price}/h on demand", changes.join(", and "))
    }
}
