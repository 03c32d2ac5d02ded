//! Suggests the smallest change that would make a pod schedulable.
//!
//! The text names every obstacle of an offering, not only the first. A user who follows the advice
//! should find the pod placed.

use super::super::Input;
use super::super::offer::{Offer, PoolRefusal, WithheldReason, pool_requirements};
use super::super::rescue::RescueContext;
use super::super::reserved_pools::{is_reserved_only, reservation_gap};
use super::pool_candidate::PoolCandidate;
use super::pool_refusals::unreadable_remedy;
use super::raised_limits::LimitNeed;
use super::{
    OfferObstacle, RejectedOffer, UnschedulableReport, contradiction_remedy, format_in_one_unit,
    obstacles, pod_rules,
};
use crate::demand::PodShape;
use crate::model::desired::{EfaInterfaces, Generation, NodeClass, Pool};
use crate::model::ids::{InstanceTypeName, LabelValue, PoolName};
use crate::model::reason::Relaxed;
use crate::model::requirement::{is_well_known, key};
use crate::model::similar_name::nearest;
use crate::model::storage::is_attach_resource;
use crate::model::units::{MicroUsd, Resources};

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
    pub(super) fn nodes_price(&self, room: &Resources, price: MicroUsd) -> MicroUsd {
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
    /// Returns a description of the smallest change that would make the pods schedulable, and the
    /// nodes that only limits of a pool forbid.
    pub(super) fn suggested_change(
        &self,
        unplaced: &UnplacedPods,
        rejected: &[RejectedOffer],
        context: &mut RescueContext,
    ) -> (Option<String>, Option<LimitNeed>) {
        match self.limit_remedy(unplaced, rejected, context) {
            Some((remedy, need)) => (Some(remedy), need),
            None => (self.change_besides_limits(unplaced, rejected, context), None),
        }
    }

    /// Returns the change for pods that more than limits blocks.
    fn change_besides_limits(
        &self,
        unplaced: &UnplacedPods,
        rejected: &[RejectedOffer],
        context: &RescueContext,
    ) -> Option<String> {
        let shape = unplaced.shape;
        if self.input.desired.pools.is_empty() {
            return Some(format!(
                "declare a NodePool: the repository has none; `{EXPORT_POOLS}` exports those of a cluster"
            ));
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
        self.change_for_offer(unplaced, best, context)
    }

    /// Returns the changes that let the pods run on nodes of an offer, with their price.
    fn change_for_offer(
        &self,
        unplaced: &UnplacedPods,
        best: &RejectedOffer,
        context: &RescueContext,
    ) -> Option<String> {
        let shape = unplaced.shape;
        let RejectedOffer { at, offer, obstacle: last, hidden } = best;
        let all = obstacles(shape, offer);
        if let (OfferObstacle::Rule(reason), true) = (last, all.is_empty()) {
            return pod_rules::explain_rule(shape, &offer.node.labels, reason).remedy;
        }
        let last = if all.is_empty() { Some(last) } else { hidden.as_ref() };
        let (node, needed) = (&offer.node, unplaced.nodes_needed(&offer.room));
        let remedy = |obstacle: &OfferObstacle| match (obstacle, at) {
            (OfferObstacle::Limit, Some(at)) => {
                let lacking = context.limit_shortfall(&[(*at, needed)]);
                Some(self.raised_limit(&node.pool, &lacking))
            }
            (OfferObstacle::Label { .. }, _) => self
                .corrected_label(obstacle, &node.pool)
                .or_else(|| self.image_remedy(obstacle, &node.pool))
                .or_else(|| obstacle_remedy(shape, offer, obstacle)),
            (OfferObstacle::StaticPool, _) => Some(self.static_pool_remedy(&node.pool)),
            _ => obstacle_remedy(shape, offer, obstacle),
        };
        let chosen: Vec<&OfferObstacle> = all.iter().chain(last).collect();
        let nodes = unplaced.nodes_text(&offer.room, &node.instance_type, node.price);
        let of_instance: Vec<(&str, &str)> = chosen
            .iter()
            .filter_map(|obstacle| self.instance_label(obstacle, &node.pool))
            .collect();
        let text = |changes: Option<Vec<String>>| Some(changes?.join(", and "));
        let changes = || text(chosen.iter().copied().map(&remedy).collect());
        if of_instance.is_empty() {
            return Some(format!("{}: {nodes}", changes()?));
        }
        // The price is that of a node without these labels.
        let is_of_type = of_instance.iter().all(|(key, _)| self.is_of_type(key));
        let named = if is_of_type && hidden.is_none() && at.is_some() {
            self.named_type(unplaced, &node.pool, &chosen)
        } else {
            None
        };
        let Some(named) = named else {
            let plural = if of_instance.len() > 1 { "s" } else { "" };
            return Some(format!("{}: {nodes} without the requirement{plural}", changes()?));
        };
        let removal = |obstacle: &OfferObstacle| match self.instance_label(obstacle, &node.pool) {
            Some((key, asked)) => Some(format!("remove the requirement {key} {asked}")),
            None => remedy(obstacle),
        };
        let without = text(chosen.iter().copied().map(removal).collect())?;
        Some(format!("{named}; or {without}: {nodes}"))
    }

    /// Returns key and values of a requirement for a property of instances. Nodes with the property
    /// have another price than nodes of the offer. Corrections of the pod are no such requirement.
    fn instance_label<'o>(
        &self,
        obstacle: &'o OfferObstacle,
        pool: &PoolName,
    ) -> Option<(&'o str, &'o str)> {
        let OfferObstacle::Label { key, asked, .. } = obstacle else { return None };
        let is_of_pool = [key::NODEPOOL, key::PROVISIONER].contains(&key.as_str());
        let is_of_instance = is_well_known(key) && !is_of_pool;
        let is_corrected = || self.corrected_label(obstacle, pool).is_some();
        (is_of_instance && !is_corrected()).then_some((key.as_str(), asked.as_str()))
    }

    /// Returns true for a label that the instance type decides.
    pub(super) fn is_of_type(&self, label: &str) -> bool {
        let mut kinds = self.input.catalog.types.values();
        label != key::OS && kinds.any(|kind| kind.labels.contains_key(label))
    }

    /// Returns the edits of the pool for the cheapest type with the labels that the pod asks for.
    /// `None` if they leave one of the obstacles.
    fn named_type(
        &self,
        unplaced: &UnplacedPods,
        name: &PoolName,
        obstacles: &[&OfferObstacle],
    ) -> Option<String> {
        let desired = self.input.desired;
        let pool = desired.pools.get(name)?;
        let class = desired.class_of(pool)?;
        if desired.node_groups.contains_key(name) {
            return None;
        }
        let candidate = PoolCandidate::new(self, pool, class, unplaced);
        let removes_all = obstacles.iter().all(|obstacle| candidate.removes(obstacle));
        if removes_all { candidate.requirement_change() } else { None }
    }

    /// Returns the advice for pods that ask for another operating system: the image of the nodes
    /// decides it.
    fn image_remedy(&self, obstacle: &OfferObstacle, name: &PoolName) -> Option<String> {
        let OfferObstacle::Label { key, asked, values } = obstacle else { return None };
        if ![key::OS, key::WINDOWS_BUILD].contains(&key.as_str()) {
            return None;
        }
        let desired = self.input.desired;
        let pool = desired.pools.get(name)?;
        let class = desired.class_of(pool)?;
        let owner = match pool.generation {
            Generation::Eksctl => self.pool_text(name),
            Generation::V1alpha5 | Generation::V1beta1 | Generation::V1 => {
                format!("{} {} ({})", pool.generation.class_kind(), class.name, class.origin)
            }
        };
        let image = format!("choose an amiFamily or image alias with {key} {asked} in {owner}");
        let requirements = pool_requirements(pool);
        let is_excluded = requirements
            .get(key)
            .zip(values.as_ref())
            .is_some_and(|(set, values)| !values.iter().any(|value| set.contains(Some(value))));
        let change = if is_excluded {
            format!("let pool {name} make nodes with {key} {asked}, and {image}")
        } else {
            image
        };
        Some(format!("{change}, or remove the requirement"))
    }

    /// Returns the correction of a pod; see [`Self::corrected_value`].
    fn corrected_label(&self, obstacle: &OfferObstacle, pool: &PoolName) -> Option<String> {
        let OfferObstacle::Label { key, values: Some(values), .. } = obstacle else { return None };
        self.corrected_value(key, values, pool)
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
            PoolRefusal::Unreadable { object, field, error } => {
                Some(unreadable_remedy(object, field, error.as_deref()))
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
        let has_adapters = |class: &NodeClass| match class.efa {
            EfaInterfaces::All => true,
            EfaInterfaces::Declared(adapters) => adapters.all > 0,
            EfaInterfaces::Reported | EfaInterfaces::Absent => false,
        };
        let is_missing = shape.requests.extended(&EFA.into()) > 0 && !classes.any(has_adapters);
        is_missing.then(|| {
            "add `networkInterfaces` of type `efa-only` to the node class of a pool, or run these \
             pods in a node group of eksctl with `efaEnabled: true`: no other node gets an EFA \
             interface"
                .to_owned()
        })
    }

    /// Returns the advice to lower the requests, with the changes that the pod needs besides.
    fn lowered_requests(&self, unplaced: &UnplacedPods) -> String {
        let desired = self.input.desired;
        let besides = desired.pools.values().filter_map(|pool| {
            let class = desired.node_classes.get(pool.node_class.as_ref()?)?;
            Some(PoolCandidate::new(self, pool, class, unplaced).all_changes())
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
pub(super) const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

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
