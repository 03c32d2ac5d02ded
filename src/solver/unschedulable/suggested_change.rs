//! Suggests the smallest change that would make a pod schedulable.
//!
//! The text names every obstacle of an offering, not only the first. A user who follows the advice
//! should find the pod placed.

use super::super::Input;
use super::super::offer::{Offer, PoolRefusal, WithheldReason};
use super::super::rescue::RescueContext;
use super::super::reserved_pools::{is_reserved_only, reservation_gap};
use super::pool_candidate::PoolCandidate;
use super::{
    OfferObstacle, RejectedOffer, UnschedulableReport, contradiction_remedy, format_amount,
    format_in_one_unit, obstacles, pod_rules,
};
use crate::demand::PodShape;
use crate::model::desired::{EfaInterfaces, Generation, Pool};
use crate::model::ids::{InstanceTypeName, LabelValue, PoolName};
use crate::model::reason::Relaxed;
use crate::model::requirement::key;
use crate::model::similar_name::nearest;
use crate::model::storage::is_attach_resource;
use crate::model::units::{Bytes, MicroUsd, Resources};

/// Command that writes the pools of a cluster to a file.
pub const EXPORT_POOLS: &str = "kubectl get nodepools,ec2nodeclasses --output yaml >pools.yaml";

/// Unschedulable pods of one group.
pub(super) struct UnplacedPods<'a> {
    pub shape: &'a PodShape,
    /// Index of the group.
    pub index: usize,
    pub pods: u32,
    /// Key of their workload.
    pub workload: &'a str,
}

impl UnplacedPods<'_> {
    /// Returns the least number of empty nodes with `room` that hold the pods.
    pub(super) fn nodes_needed(&self, room: &Resources) -> i64 {
        let pods = i64::from(self.pods);
        let mut requests = self.shape.requests.clone();
        // The room of a type outside of its pool states no volume attachments.
        requests.extended.retain(|name, _| room.extended(name) > 0 || !is_attach_resource(name));
        let on_one = requests.copies_in(room, pods).max(1);
        pods.div_euclid(on_one) + i64::from(pods.rem_euclid(on_one) > 0)
    }

    /// Returns the price per hour of these nodes.
    fn nodes_price(&self, room: &Resources, price: MicroUsd) -> MicroUsd {
        MicroUsd(price.0.saturating_mul(self.nodes_needed(room)))
    }

    /// Returns the nodes that the pods need at least, and their price.
    pub(super) fn nodes_text(
        &self,
        room: &Resources,
        kind: &InstanceTypeName,
        price: MicroUsd,
    ) -> String {
        let (nodes, price) = (self.nodes_needed(room), self.nodes_price(room, price).rounded(4));
        match (nodes, self.pods) {
            (1, 1) => format!("1 {kind}, ${price}/h more"),
            (1, _) => format!("at least 1 {kind}, ${price}/h more"),
            // Nodes of several types may need less.
            _ => format!("at least {nodes} nodes if all are {kind}, ${price}/h more"),
        }
    }
}

impl UnschedulableReport<'_> {
    /// Returns a description of the smallest change that would make the pods schedulable.
    pub(super) fn suggested_change(
        &self,
        unplaced: &UnplacedPods,
        rejected: &[RejectedOffer],
        context: &mut RescueContext,
    ) -> Option<String> {
        let shape = unplaced.shape;
        if self.input.desired.pools.is_empty() {
            return Some(format!(
                "declare a NodePool: the repository has none; `{EXPORT_POOLS}` exports those of a cluster"
            ));
        }
        if let Some(remedy) = self.limit_remedy(unplaced, rejected, context) {
            return Some(remedy);
        }
        if shape.nodes.any_of.is_empty() {
            return Some(no_node_remedy(shape));
        }
        let roomy = rejected.iter().filter(|r| shape.requests.fits(&r.offer.room));
        let by_cost = roomy.min_by_key(|r| {
            let changes = obstacles(shape, r.offer).len() + usize::from(r.hidden.is_some());
            let price = unplaced.nodes_price(&r.offer.room, r.offer.node.price);
            (changes, is_rule(&r.obstacle), price)
        });
        let Some(best) = by_cost else {
            return Some(self.suggested_type(unplaced));
        };
        let RejectedOffer { at, offer, obstacle: last, hidden } = best;
        let all = obstacles(shape, offer);
        if let (OfferObstacle::Rule(reason), true) = (last, all.is_empty()) {
            return pod_rules::explain_rule(shape, &offer.node.labels, reason).remedy;
        }
        let last = if all.is_empty() { Some(last) } else { hidden.as_ref() };
        let remedy = |obstacle: &OfferObstacle| match (obstacle, at) {
            (OfferObstacle::Limit, Some(at)) => {
                Some(self.raised_limit(unplaced, offer, *at, context))
            }
            (OfferObstacle::Label { key, values: Some(values), .. }, _) => self
                .corrected_value(key, values, &offer.node.pool)
                .or_else(|| obstacle_remedy(shape, offer, obstacle)),
            (OfferObstacle::StaticPool, _) => Some(self.static_pool_remedy(&offer.node.pool)),
            _ => obstacle_remedy(shape, offer, obstacle),
        };
        let changes: Option<Vec<String>> = all.iter().chain(last).map(remedy).collect();
        let node = &offer.node;
        let nodes = unplaced.nodes_text(&offer.room, &node.instance_type, node.price);
        Some(format!("{}: {nodes}", changes?.join(", and ")))
    }

    /// Returns the correction of a pod that asks for the name of another pool, or for zones that the
    /// cluster does not have. No change of the pool helps there.
    fn corrected_value(
        &self,
        label: &str,
        asked: &[LabelValue],
        pool: &PoolName,
    ) -> Option<String> {
        let known: Vec<&str> = match label {
            key::NODEPOOL => self.input.desired.pools.keys().map(PoolName::as_str).collect(),
            key::ZONE => self.input.catalog.known_values(label).into_iter().collect(),
            _ => return None,
        };
        let is_known = asked.iter().any(|value| known.contains(&value.as_str()));
        let first = asked.first()?.as_str();
        let values: Vec<&str> = asked.iter().map(LabelValue::as_str).collect();
        let values = values.join(", ");
        let near = nearest(first, known.iter().copied());
        match (label == key::NODEPOOL, is_known) {
            (true, true) => {
                Some(format!("name pool {pool} in {label}, or remove the requirement {values}"))
            }
            (false, true) => None,
            (_, false) if !near.is_empty() => {
                Some(format!("write {} in place of {label} {first}", near.join(" or ")))
            }
            // A source that is not read may declare the pool.
            (true, false) if !self.input.desired.unresolved.is_empty() => None,
            (true, false) => {
                Some(format!("name an existing pool in {label}: there is none of {values}"))
            }
            (false, false) => {
                Some(format!("name a zone of the cluster in {label}: there is none of {values}"))
            }
        }
    }

    /// Returns the remedy if only the limits of its pool block an offer.
    fn limit_remedy(
        &self,
        unplaced: &UnplacedPods,
        rejected: &[RejectedOffer],
        context: &mut RescueContext,
    ) -> Option<String> {
        let for_now =
            rejected.iter().find(|r| matches!(r.obstacle, OfferObstacle::LimitUntilApplied));
        if let Some(RejectedOffer { offer, .. }) = for_now {
            let node = &offer.node;
            return Some(format!(
                "plan again once this plan is applied: the retired nodes leave room for one {} \
                 within the limits of pool {}",
                node.instance_type, node.pool
            ));
        }
        let limited = rejected.iter().filter(|r| matches!(r.obstacle, OfferObstacle::Limit));
        let price = |r: &&RejectedOffer| unplaced.nodes_price(&r.offer.room, r.offer.node.price);
        let limited = limited.min_by_key(price)?;
        let (offer, at) = (limited.offer, limited.at?);
        let node = &offer.node;
        if let Some(pods) = self.occupants.names(&node.pool, unplaced.workload) {
            // A higher limit alone may be used up by the same pods.
            let pool = self.pool_text(&node.pool);
            let nominate = ", nominate pods (spec.controller.steer)";
            let nominate = if self.input.settings.steer { "" } else { nominate };
            return Some(format!(
                "keep the pods of {pods} off {pool} by a taint or node affinity{nominate}, or \
                 raise its limits for all of them"
            ));
        }
        let mut changes = vec![self.raised_limit(unplaced, offer, at, context)];
        // The limits are checked before the rules between pods, so they may hide one.
        let rule = context.refusal(unplaced.index, at).into_iter().next();
        let remedy = |reason| pod_rules::explain_rule(unplaced.shape, &node.labels, &reason).remedy;
        changes.extend(rule.and_then(remedy));
        let nodes = unplaced.nodes_text(&offer.room, &node.instance_type, node.price);
        Some(format!("{}: {nodes}", changes.join(", and ")))
    }

    /// Returns the advice to raise the limits of the offer's pool, with the missing amounts.
    fn raised_limit(
        &self,
        unplaced: &UnplacedPods,
        offer: &Offer,
        at: usize,
        context: &RescueContext,
    ) -> String {
        let name = &offer.node.pool;
        let lacking = context.limit_shortfall(at, unplaced.nodes_needed(&offer.room));
        let nodes = lacking.iter().find(|(resource, _)| resource == "nodes").map(|(_, n)| *n);
        let pool = self.pool_text(name);
        if let (Some(group), Some(by)) = (self.input.desired.node_groups.get(name), nodes) {
            let now = self.pool_limits(name).nodes.map(i64::from).unwrap_or_default();
            let least = now.saturating_add(by);
            return if i64::from(group.max) >= least {
                format!(
                    "raise the maximum of the Auto Scaling group of {pool} from {now} to {least}"
                )
            } else {
                format!("raise maxSize of {pool} from {now} to {least}")
            };
        }
        let amounts = lacking.iter().map(|(name, n)| limit_text(name, *n));
        let amounts: Vec<String> = amounts.collect();
        format!("raise the limits of {pool} by {}", amounts.join(", "))
    }

    /// Returns the advice to enlarge a pool with a fixed number of nodes.
    fn static_pool_remedy(&self, name: &PoolName) -> String {
        let pool = self.input.desired.pools.get(name);
        let sizes = pool.and_then(|pool| pool.replicas.zip(pool.limits.nodes));
        match sizes {
            Some((replicas, limit)) if limit < replicas => {
                format!("raise `limits.nodes` of pool {name} above {limit}")
            }
            Some((replicas, limit)) if limit == replicas => {
                format!("raise `replicas` and `limits.nodes` of pool {name}")
            }
            Some(_) | None => format!("raise `replicas` of pool {name}"),
        }
    }

    /// Returns a pool with its kind and its place in the repository.
    pub(super) fn pool_text(&self, name: &PoolName) -> String {
        match self.input.desired.pools.get(name) {
            Some(Pool { generation, origin, .. }) => {
                format!("{} {name} ({origin})", generation.pool_kind())
            }
            None => format!("pool {name}"),
        }
    }

    /// Suggests an instance type of the region for the pod, and the pool with the fewest broken
    /// requirements; the cheapest of several.
    fn suggested_type(&self, unplaced: &UnplacedPods) -> String {
        let (desired, shape) = (self.input.desired, unplaced.shape);
        let mut best: Option<(usize, MicroUsd, String)> = None;
        for pool in desired.pools.values() {
            let class = pool.node_class.as_ref().and_then(|name| desired.node_classes.get(name));
            let Some(class) = class.filter(|_| self.pool_remedy(pool).is_none()) else { continue };
            let in_pool = PoolCandidate::new(self, pool, class, unplaced);
            let found = match desired.node_groups.get(&pool.name) {
                Some(group) => in_pool.group_change(group),
                None => in_pool.type_change(),
            };
            if let Some((cost, price, text)) = found
                && best.as_ref().is_none_or(|(least, at, _)| (cost, price) < (*least, *at))
            {
                best = Some((cost, price, text));
            }
        }
        best.map_or_else(
            || {
                let efa = self.efa_remedy(shape);
                let volume = || self.root_volume_remedy(shape);
                let pool = || desired.pools.values().find_map(|pool| self.pool_remedy(pool));
                let known = efa.or_else(volume).or_else(pool);
                known.unwrap_or_else(|| self.lowered_requests(unplaced))
            },
            |(_, _, text)| text,
        )
    }
}

/// Advice of last resort.
const LOWER_REQUESTS: &str = "lower the requests: no instance type of the region is large enough";

impl UnschedulableReport<'_> {
    /// Returns the correction of a pool that can launch no node at all. Other instance types would
    /// not help there.
    fn pool_remedy(&self, pool: &Pool) -> Option<String> {
        match self.offers.refusals.get(&pool.name)? {
            PoolRefusal::NoNodeClass { remedy, .. } => Some(remedy.clone()),
            PoolRefusal::Group { .. } if is_reserved_only(pool) => {
                let pool = self.pool_text(&pool.name);
                Some(format!("resize {pool} by hand, within its capacity reservation"))
            }
            PoolRefusal::NoOffering { pool: name, cause: Some(_), origin } => {
                let reservations = self.reservation_remedy(pool);
                let requirements = || format!("correct the requirements of {name} ({origin})");
                Some(reservations.unwrap_or_else(requirements))
            }
            PoolRefusal::Unreadable { object, field } if field.is_empty() => {
                Some(format!("correct {object}"))
            }
            PoolRefusal::Unreadable { object, field } => {
                Some(format!("correct `{field}` of {object}"))
            }
            PoolRefusal::NoOffering { cause: None, .. }
            | PoolRefusal::Group { .. }
            | PoolRefusal::TooManyLabels
            | PoolRefusal::Withheld(_) => None,
        }
    }

    /// Returns the correction of a pool that lacks only a capacity reservation.
    fn reservation_remedy(&self, pool: &Pool) -> Option<String> {
        let Input { desired, observed, catalog, .. } = *self.input;
        if catalog.unmet_requirement(pool, desired.class_of(pool)).is_some() {
            return None;
        }
        reservation_gap(pool, desired, observed)?.remedy(&self.pool_text(&pool.name))
    }

    /// Returns the advice for pods that request elastic fabric adapters, which no pool has.
    fn efa_remedy(&self, shape: &PodShape) -> Option<String> {
        let mut classes = self.input.desired.node_classes.values();
        let is_missing = shape.requests.extended(&EFA.into()) > 0
            && !classes.any(|class| class.efa == EfaInterfaces::All);
        is_missing.then(|| {
            "run these pods in a node group of eksctl with `efaEnabled: true`: nodes that \
             Fleetwright launches itself have no EFA interface"
                .to_owned()
        })
    }

    /// Returns the advice to lower the requests, with the changes that the pod needs besides.
    fn lowered_requests(&self, unplaced: &UnplacedPods) -> String {
        let desired = self.input.desired;
        let besides = desired.pools.values().filter_map(|pool| {
            let class = desired.node_classes.get(pool.node_class.as_ref()?)?;
            Some(PoolCandidate::new(self, pool, class, unplaced).changes)
        });
        match besides.min_by_key(Vec::len) {
            Some(changes) if !changes.is_empty() => {
                format!("{LOWER_REQUESTS}; then also {}", changes.join(", and "))
            }
            _ => LOWER_REQUESTS.to_owned(),
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
        let amounts = [requested.0, offer.room.ephemeral_storage.0];
        let [requested, has] = format_in_one_unit(EPHEMERAL_STORAGE, amounts);
        let (owner, field) = match pool.generation {
            Generation::Eksctl => (pool.generation.pool_kind(), "volumeSize"),
            Generation::V1alpha5 | Generation::V1beta1 | Generation::V1 => {
                (pool.generation.class_kind(), "blockDeviceMappings")
            }
        };
        let mut text = format!(
            "enlarge the root volume in {owner} `{class}` ({field}), or lower the request: the pod \
             requests {requested} of ephemeral storage, and nodes of {} {} have {has}",
            pool.generation.pool_kind(),
            pool.name,
        );
        let besides = obstacles(shape, offer);
        let besides = besides.iter().filter_map(|found| obstacle_remedy(shape, offer, found));
        let besides: Vec<String> = besides.collect();
        if !besides.is_empty() {
            text = format!("{text}; then also {}", besides.join(", and "));
        }
        Some(text)
    }
}

/// Resource of elastic fabric adapters.
const EFA: &str = "vpc.amazonaws.com/efa";

/// Name of the resource that the root volume provides.
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// Returns an amount of a limit, rounded up to whole cores and gibibytes.
pub(super) fn limit_text(name: &str, amount: i64) -> String {
    let unit = match name {
        "cpu" => 1_000,
        "memory" | EPHEMERAL_STORAGE => Bytes::GIB,
        _ => 1,
    };
    let units = amount.div_euclid(unit) + i64::from(amount.rem_euclid(unit) > 0);
    format!("{name} {}", format_amount(name, units.saturating_mul(unit)))
}

fn is_rule(obstacle: &OfferObstacle) -> bool {
    matches!(obstacle, OfferObstacle::Rule(_) | OfferObstacle::LeftOver)
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
        OfferObstacle::Label { key, asked, .. } if key == key::HOSTNAME => {
            format!("remove the requirement for node {asked}, which does not exist or has no room")
        }
        OfferObstacle::Label { key, asked, .. } => {
            format!("let pool {pool} make nodes with {key} {asked}, or remove the requirement")
        }
        OfferObstacle::Contradiction { key } => contradiction_remedy(key),
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
