//! Suggests the smallest change that would make a pod schedulable.
//!
//! The text names every obstacle of an offering, not only the first. A user who follows the advice
//! should find the pod placed.

use super::super::offer::{Offer, PoolRefusal, WithheldReason, pool_requirements};
use super::{OfferObstacle, UnschedulableReport, obstacles, pod_rules};
use crate::catalog::{InstanceType, NodeSettings, ebs_volumes};
use crate::demand::PodShape;
use crate::model::desired::{NodeClass, Pool};
use crate::model::ids::Labels;
use crate::model::market::CapacityType;
use crate::model::pod::untolerated;
use crate::model::reason::Relaxed;
use crate::model::requirement::{LabelSet, Requirements, key, label};
use crate::model::storage::{EBS_DRIVER, attach_resource, is_attach_resource};
use crate::model::units::{MicroUsd, Resources};

impl UnschedulableReport<'_> {
    /// Returns a description of the smallest change that would make the pod schedulable.
    pub(super) fn suggested_change(
        &self,
        shape: &PodShape,
        found: &[(&Offer, OfferObstacle)],
    ) -> Option<String> {
        if self.input.desired.pools.is_empty() {
            return Some("declare a NodePool: the repository has none".to_owned());
        }
        if let Some(remedy) = limit_remedy(found) {
            return Some(remedy);
        }
        if shape.nodes.any_of.is_empty() {
            return Some(no_node_remedy(shape));
        }
        let roomy = found.iter().filter(|(offer, _)| shape.requests.fits(&offer.room));
        let by_cost = roomy.min_by_key(|(offer, last)| {
            (obstacles(shape, offer).len(), is_rule(last), offer.node.price)
        });
        let Some((offer, last)) = by_cost else {
            return Some(self.suggested_type(shape));
        };
        let all = obstacles(shape, offer);
        if let (OfferObstacle::Rule(reason), true) = (last, all.is_empty()) {
            return pod_rules::explain_rule(shape, &offer.node.labels, reason).remedy;
        }
        let last = all.is_empty().then_some(last).into_iter();
        let changes: Option<Vec<String>> = all
            .iter()
            .chain(last)
            .map(|obstacle| obstacle_remedy(shape, offer, obstacle))
            .collect();
        Some(format!(
            "{}: {} at ${}/h would hold it",
            changes?.join(", and "),
            offer.node.instance_type,
            offer.node.price.rounded(4)
        ))
    }

    /// Suggests an instance type of the region for the pod, and the pool with the fewest broken
    /// requirements; the cheapest of several.
    fn suggested_type(&self, shape: &PodShape) -> String {
        let desired = self.input.desired;
        let mut best: Option<(usize, MicroUsd, String)> = None;
        for pool in desired.pools.values() {
            let class = pool.node_class.as_ref().and_then(|name| desired.node_classes.get(name));
            let Some(class) = class.filter(|_| self.pool_remedy(pool).is_none()) else { continue };
            let in_pool = PoolCandidate::new(self, pool, class, shape);
            let kinds = self.input.catalog.types.values().filter(|kind| !kind.bare_metal);
            for (price, kind) in kinds.filter_map(|kind| Some((in_pool.price(kind)?, kind))) {
                let broken = in_pool.unmet_requirements(kind);
                let cost = in_pool.changes.len() + broken.len();
                if best.as_ref().is_none_or(|(least, at, _)| (cost, price) < (*least, *at)) {
                    best = Some((cost, price, in_pool.describe(kind, price, &broken)));
                }
            }
        }
        best.map_or_else(
            || {
                let volume = self.root_volume_remedy(shape);
                let pool = || desired.pools.values().find_map(|pool| self.pool_remedy(pool));
                volume.or_else(pool).unwrap_or_else(|| LOWER_REQUESTS.to_owned())
            },
            |(_, _, text)| text,
        )
    }
}

const LOWER_REQUESTS: &str = "lower the requests: no instance type of the region is large enough";

impl UnschedulableReport<'_> {
    /// Returns the correction of a pool that can launch no node at all. Other instance types would
    /// not help there.
    fn pool_remedy(&self, pool: &Pool) -> Option<String> {
        match self.offers.refusals.get(&pool.name)? {
            PoolRefusal::NoNodeClass { remedy, .. } => Some(remedy.clone()),
            PoolRefusal::NoOffering { pool, cause: Some(_), origin } => {
                Some(format!("correct the requirements of {pool} ({origin})"))
            }
            PoolRefusal::NoOffering { cause: None, .. }
            | PoolRefusal::Unreadable { .. }
            | PoolRefusal::Group { .. }
            | PoolRefusal::TooManyLabels
            | PoolRefusal::Withheld(_) => None,
        }
    }

    /// Returns the advice to enlarge the root volume, if ephemeral storage is all that the nodes
    /// lack.
    fn root_volume_remedy(&self, shape: &PodShape) -> Option<String> {
        let requested = shape.requests.ephemeral_storage;
        let is_only_storage = |offer: &&Offer| {
            let short = shape.requests.exceeding(&offer.room);
            short.len() == 1 && short.iter().all(|name| name == EPHEMERAL_STORAGE)
        };
        let nodes = self.offers.list.iter().filter(is_only_storage);
        let offer = nodes.max_by_key(|offer| offer.room.ephemeral_storage)?;
        let pool = self.input.desired.pools.get(&offer.node.pool)?;
        let class = pool.node_class.as_ref()?;
        Some(format!(
            "enlarge the root volume in {} `{class}` (blockDeviceMappings), or lower the request: \
             the pod requests {requested} of ephemeral storage, and nodes of {} {} have {}",
            pool.generation.class_kind(),
            pool.generation.pool_kind(),
            pool.name,
            offer.room.ephemeral_storage
        ))
    }
}

/// Name of the resource that the root volume provides.
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

fn is_rule(obstacle: &OfferObstacle) -> bool {
    matches!(obstacle, OfferObstacle::Rule(_) | OfferObstacle::LeftOver)
}

/// Returns the remedy if only the limits of its pool block an offer.
fn limit_remedy(found: &[(&Offer, OfferObstacle)]) -> Option<String> {
    let for_now =
        found.iter().find(|(_, obstacle)| matches!(obstacle, OfferObstacle::LimitUntilApplied));
    if let Some((offer, _)) = for_now {
        let node = &offer.node;
        return Some(format!(
            "plan again once this plan is applied: the retired nodes leave room for one {} within \
             the limits of pool {}",
            node.instance_type, node.pool
        ));
    }
    let (offer, _) = found.iter().find(|(_, obstacle)| matches!(obstacle, OfferObstacle::Limit))?;
    let node = &offer.node;
    Some(format!(
        "raise the limits of pool {} by at least one {} (cpu {}, memory {})",
        node.pool, node.instance_type, node.capacity.cpu, node.capacity.memory
    ))
}

/// Returns the remedy for a pod that no node could ever fit.
fn no_node_remedy(shape: &PodShape) -> String {
    match shape.volumes.as_slice() {
        [_, _, ..] => {
            "make its volumes reachable from one node, or mount them in different pods".to_owned()
        }
        _ => "write a term into its node affinity that some node meets".to_owned(),
    }
}

/// Returns the change that removes an obstacle.
fn obstacle_remedy(shape: &PodShape, offer: &Offer, obstacle: &OfferObstacle) -> Option<String> {
    let pool = &offer.node.pool;
    Some(match obstacle {
        OfferObstacle::Taint(taint) => format!("tolerate taint {taint}"),
        OfferObstacle::Label { key, asked } if key == key::HOSTNAME => {
            format!("remove the requirement for node {asked}, which does not exist or has no room")
        }
        OfferObstacle::Label { key, asked } => {
            format!("let pool {pool} make nodes with {key} {asked}, or remove the requirement")
        }
        OfferObstacle::Volume { place } => {
            format!("let pool {pool} launch nodes there: {place}")
        }
        OfferObstacle::StaticPool => format!("raise `replicas` of pool {pool}"),
        OfferObstacle::Withheld(WithheldReason::Excluded { until }) => {
            format!("wait until {until}")
        }
        OfferObstacle::Withheld(WithheldReason::MinValuesUnmet(Relaxed { key, .. })) => {
            format!("lower minValues of {key} in pool {pool}")
        }
        OfferObstacle::Withheld(WithheldReason::AboveMaxPrice { price, .. }) => {
            format!("raise maxPrice of group {pool} to ${price}")
        }
        OfferObstacle::Reservation(id)
        | OfferObstacle::Withheld(WithheldReason::ReservationExhausted { reservation: id }) => {
            format!("enlarge reservation {id}, or let the pool use other capacity")
        }
        OfferObstacle::Rule(reason) => {
            pod_rules::explain_rule(shape, &offer.node.labels, reason).remedy?
        }
        OfferObstacle::NoTerm
        | OfferObstacle::TooSmall { .. }
        | OfferObstacle::Limit
        | OfferObstacle::LimitUntilApplied
        | OfferObstacle::LeftOver => return None,
    })
}

/// A pool as a candidate for a pod, if the pool allowed other instance types.
struct PoolCandidate<'a> {
    pool: &'a Pool,
    class: &'a NodeClass,
    shape: &'a PodShape,
    requirements: Requirements,
    /// Requests of its DaemonSets, as far as its offers show.
    daemons: Resources,
    report: &'a UnschedulableReport<'a>,
    settings: NodeSettings,
    /// Necessary changes apart from the instance type.
    changes: Vec<String>,
}

impl<'a> PoolCandidate<'a> {
    fn new(
        report: &'a UnschedulableReport<'_>,
        pool: &'a Pool,
        class: &'a NodeClass,
        shape: &'a PodShape,
    ) -> Self {
        let offer = report.offers.list.iter().find(|offer| offer.node.pool == pool.name);
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
            (!met).then(|| format!("remove its requirement {key} {set}"))
        };
        let wishes = shape.nodes.any_of.first().into_iter().flat_map(Requirements::iter);
        changes.extend(wishes.filter_map(|(key, set)| of_pool(key.as_str(), set)));
        let settings = NodeSettings::new(pool, class);
        Self { pool, class, shape, requirements, daemons, report, settings, changes }
    }

    /// Returns the on-demand price of a type that holds the pod; `None` if the type does not.
    fn price(&self, kind: &InstanceType) -> Option<MicroUsd> {
        let Self { shape, settings, .. } = self;
        let room = self.report.input.catalog.allocation(kind, settings).allocatable;
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

    /// Returns true if the pod's node selector allows these labels of a type.
    fn admits(&self, labels: &Labels) -> bool {
        let meets = |alternative: &Requirements| {
            let mut wishes = alternative.iter();
            wishes.all(|(key, set)| labels.get(key).is_none_or(|value| set.contains(Some(value))))
        };
        self.shape.nodes.any_of.iter().any(meets)
    }

    /// Returns the requirements of the pool that a type does not meet.
    fn unmet_requirements(&self, kind: &InstanceType) -> Vec<String> {
        let of_type = self.requirements.iter().filter_map(|(key, set)| {
            let value = kind.labels.get(key)?;
            (!set.contains(Some(value))).then(|| format!("{key} {value}, not {set}"))
        });
        of_type.collect()
    }

    fn describe(&self, kind: &InstanceType, price: MicroUsd, broken: &[String]) -> String {
        let why =
            if broken.is_empty() { String::new() } else { format!(" ({})", broken.join("; ")) };
        let (pool, name, price) = (&self.pool.name, &kind.name, price.rounded(4));
        let mut changes = vec![format!("let pool {pool} use {name}{why}")];
        changes.extend(self.changes.iter().cloned());
        format!("{}: ${price}/h on demand", changes.join(", and "))
    }
}
