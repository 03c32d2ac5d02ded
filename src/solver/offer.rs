//! Launchable offers: every combination of pool, instance type, zone and capacity type, with all
//! details decided.
//!
//! Deliberate differences from Karpenter:
//!
//! * Pools of a higher weight come first, as in Karpenter. Between pools of equal weight the price
//!   decides; Karpenter takes the pool whose name sorts last.
//! * A label that a pool leaves open (`Exists`, `NotIn`, bounds) gets a value that some pod
//!   requests, or the smallest one, or none if it may be absent. Karpenter generates a random
//!   value.
//! * A reservation is used up before other capacity of the pool. Pods that do not fit get other
//!   capacity in the same plan, if the pool allows any. Karpenter delays such pods until the
//!   reserved launch has succeeded, and gives them other capacity in its next round. Here the plan
//!   contains both, and a reserved launch has no alternative: if EC2 refuses it, it fails.
//! * A reserved instance adds no cost: it is paid for whether or not it is used.
//!
//! Source: karpenter core, `pkg/controllers/provisioning/scheduling`, `pkg/utils/nodepool`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::candidate_pools::candidate_pools;
use super::existing_node::ExistingNode;
use super::min_values;
use super::node_template::{NodeTemplate, RequestedLabels};
use super::reserved_pools::{ReservationGap, reservation_gap};
use super::target_fleet::NewNode;
use crate::catalog::Catalog;
use crate::demand::{Daemon, Demand, PodGroup, PodShape};
use crate::model::code::Code;
use crate::model::desired::{Desired, NodeClass, Pool, PoolRequirement, Problem, Severity};
use crate::model::ids::{LabelValue, Labels, Origin, PoolName, ReservationId};
use crate::model::observed::Observed;
use crate::model::pod::{Taint, Toleration, untolerated};
use crate::model::reason::Relaxed;
use crate::model::requirement::{LabelSet, Requirements, key};
use crate::model::units::{Bytes, MicroUsd, Resources};

/// A node that can be launched, with every detail decided except the time.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Node to launch.
    pub node: NewNode,
    /// Weight of the pool; higher weights are tried first.
    pub weight: u32,
    /// Requests of DaemonSet pods.
    pub daemons: Resources,
    /// Resources for other pods, reduced so that enough alternatives hold as much (`minValues`).
    pub room: Resources,
    /// True for special hardware, or bare metal, that pods get only if they need it.
    pub has_special_hardware: bool,
}

impl Offer {
    /// Returns true if `node` has the pool, instance type and capacity type of this offer.
    pub(super) fn is_same_kind_as(&self, node: &ExistingNode) -> bool {
        let labelled = |key: &str, value: &str| {
            node.labels.get(key).is_some_and(|held| held.as_str() == value)
        };
        node.pool.as_ref() == Some(&self.node.pool)
            && labelled(key::INSTANCE_TYPE, self.node.instance_type.as_str())
            && labelled(key::CAPACITY_TYPE, self.node.capacity_type.as_str())
    }

    /// Returns the resources that pods may be planned to use, DaemonSet pods included.
    pub(super) fn planned_capacity(&self) -> Resources {
        self.room.plus(&self.daemons)
    }
}

/// Reason why a pool cannot launch nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolRefusal {
    /// It names a node class that is not declared.
    NoNodeClass {
        /// Pool and node class with their kinds, and the place of the pool.
        description: String,
        /// Correction.
        remedy: String,
    },
    /// A part of the pool or of its node class could not be read.
    Unreadable {
        /// Object, such as `NodePool` or `EC2NodeClass default`.
        object: String,
        /// Field; empty for the object itself.
        field: String,
        /// Error that reports the field, if there is one.
        error: Option<Box<Problem>>,
    },
    /// It is an Auto Scaling group that Fleetwright must not resize.
    Group {
        /// Reason.
        why: String,
    },
    /// No offering satisfies its requirements.
    NoOffering {
        /// Pool with its kind.
        pool: String,
        /// Requirement that no offering satisfies; `None` if only all of them together exclude
        /// each offering.
        cause: Option<String>,
        /// File and line of the pool.
        origin: Origin,
    },
    /// No offering that satisfies its requirements is available now.
    Withheld(WithheldReason),
    /// Pods request more combinations of open labels than offers are made for.
    TooManyLabels,
}

impl PoolRefusal {
    pub(super) fn without_node_class(pool: &Pool, desired: &Desired) -> Self {
        let Pool { name, origin, generation, node_class, .. } = pool;
        let class = match node_class {
            Some(class) => format!("uses {} `{class}`", generation.class_kind()),
            None => format!("names no {}", generation.class_kind()),
        };
        let object = node_class.as_ref().map(|name| format!("{} {name}", generation.class_kind()));
        let mut errors = desired.problems.iter().filter(|one| one.severity == Severity::Error);
        let error = errors.find(|problem| Some(&problem.object) == object.as_ref());
        if let Some(Problem { origin: place, .. }) = error {
            let pool = format!("{} {name}", generation.pool_kind());
            let description = format!("{pool} {class}, which has an error ({place})");
            let remedy = format!("correct {} ({place})", object.unwrap_or_default());
            return Self::NoNodeClass { description, remedy };
        }
        let rest = if node_class.is_some() { ", which is not in this repository" } else { "" };
        let pool = format!("{} {name}", generation.pool_kind());
        let remedy = match node_class {
            Some(class) => format!(
                "add {} `{class}`, or correct the reference of {pool} ({origin})",
                generation.class_kind()
            ),
            None => format!("name a node class in {pool} ({origin})"),
        };
        Self::NoNodeClass { description: format!("{pool} {class}{rest} ({origin})"), remedy }
    }

    /// Returns the refusal of a pool with an invalid field, its own or one of its node class.
    pub(super) fn of_invalid_field(
        pool: &Pool,
        class: &NodeClass,
        desired: &Desired,
    ) -> Option<Self> {
        let (object, declared, field) = match (&pool.unreadable, &class.unreadable) {
            (Some(field), _) => (
                format!("pool {}", pool.name),
                format!("{} {}", pool.generation.pool_kind(), pool.name),
                field,
            ),
            (None, Some(field)) => (
                format!("node class {}", class.name),
                format!("{} {}", class.generation.class_kind(), class.name),
                field,
            ),
            (None, None) => return None,
        };
        // A message about the object itself starts without a field.
        let start = format!("`{field}` ");
        let is_of_field = |message: &str| {
            if field.is_empty() { !message.starts_with('`') } else { message.starts_with(&start) }
        };
        let mut errors = desired.problems.iter().filter(|one| one.severity == Severity::Error);
        let error = errors.find(|one| one.object == declared && is_of_field(&one.message));
        let error = error.map(|error| Box::new(error.clone()));
        Some(Self::Unreadable { object, field: field.clone(), error })
    }

    fn without_offering(pool: &Pool, supply: &OfferInput<'_>) -> Self {
        Self::NoOffering {
            pool: format!("{} {}", pool.generation.pool_kind(), pool.name),
            cause: no_offering_cause(pool, supply),
            origin: pool.origin.clone(),
        }
    }
}

/// Reason why an offer is not available.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum WithheldReason {
    /// EC2 recently had insufficient capacity.
    Excluded {
        /// Time of the next try.
        until: Timestamp,
    },
    /// The capacity reservation is fully used.
    ReservationExhausted {
        /// Capacity reservation.
        reservation: ReservationId,
    },
    /// Too few alternatives for the `minValues` of the pool.
    MinValuesUnmet(Relaxed),
    /// The spot price exceeds the maximum of the group.
    AboveMaxPrice {
        /// Spot price per hour.
        price: MicroUsd,
        /// Maximum price per hour of the group.
        max_price: MicroUsd,
    },
}

/// Every offer of every pool, cheapest first, and unavailable offers.
#[derive(Debug, Clone, Default)]
pub struct Offers {
    /// Available offers.
    pub list: Vec<Offer>,
    /// Offers of pools with a fixed number of nodes, cheapest first. Pods never add such nodes.
    pub static_pools: BTreeMap<PoolName, Vec<Offer>>,
    /// Unavailable offers, with the reason.
    pub withheld: Vec<(Offer, WithheldReason)>,
    /// Offers without a known price. They are never launched now, but may have been launched
    /// earlier. Their price field has no meaning.
    pub(super) unpriced: Vec<Offer>,
    /// Pools without offers, or with an incomplete list of offers, with the reason.
    pub refusals: BTreeMap<PoolName, PoolRefusal>,
    /// Number of pools without offers because no pod can run on their nodes, or an equal pool has
    /// them.
    pub(super) skipped_pools: usize,
}

/// Inputs of offers.
pub struct OfferInput<'a> {
    /// What the repository declares.
    pub desired: &'a Desired,
    /// Instance types, prices and offerings of EC2.
    pub catalog: &'a Catalog,
    /// Observed state, including capacity reservations and recent insufficient capacity.
    pub observed: &'a Observed,
    /// The moment planned for.
    pub at: Timestamp,
}

/// Available and unavailable offers of a pool.
#[derive(Default)]
pub(super) struct PoolOffers {
    pub offers: Vec<Offer>,
    pub withheld: Vec<(Offer, WithheldReason)>,
    pub unpriced: Vec<Offer>,
    /// True if pods request more combinations of custom labels than offers are made for.
    pub is_truncated: bool,
}

impl Offers {
    /// Returns the offers of all pools.
    ///
    /// `shapes` are the pods to place. If a pool leaves the value of a custom label open, one offer
    /// is made for each value that some pod requests.
    pub fn new<'a>(
        supply: &OfferInput,
        daemons: &[Daemon],
        shapes: impl IntoIterator<Item = &'a PodShape>,
    ) -> Self {
        let shapes: Vec<&PodShape> = shapes.into_iter().collect();
        let asked = RequestedLabels::from_shapes(shapes.iter().copied());
        let mut offers = Self::default();
        let candidates = candidate_pools(supply, &shapes);
        offers.skipped_pools = supply.desired.pools.len() - candidates.len();
        for pool in candidates {
            let template = match NodeTemplate::new(pool, supply) {
                Ok(template) => template,
                Err(refusal) => {
                    offers.refusals.insert(pool.name.clone(), refusal);
                    continue;
                }
            };
            let mut stock = template.pool_offers(&asked, daemons);
            min_values::enforce_min_values(
                pool,
                supply.desired.min_values_policy,
                &shapes,
                &mut stock,
            );
            offers.add(pool, stock, supply);
        }
        offers.list.sort_by(|a, b| preference_key(a).cmp(&preference_key(b)));
        offers
    }

    /// Returns every offer, unavailable ones included.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Offer> {
        let fixed = self.static_pools.values_mut().flatten();
        let withheld = self.withheld.iter_mut().map(|(offer, _)| offer);
        self.list.iter_mut().chain(fixed).chain(withheld).chain(&mut self.unpriced)
    }

    fn add(&mut self, pool: &Pool, mut stock: PoolOffers, supply: &OfferInput<'_>) {
        if stock.is_truncated {
            self.refusals.insert(pool.name.clone(), PoolRefusal::TooManyLabels);
        }
        if stock.offers.is_empty() {
            let why = stock.withheld.iter().map(|(_, why)| why).min();
            let refusal = why.map_or_else(
                || PoolRefusal::without_offering(pool, supply),
                |why| PoolRefusal::Withheld(why.clone()),
            );
            self.refusals.insert(pool.name.clone(), refusal);
        }
        self.withheld.append(&mut stock.withheld);
        self.unpriced.append(&mut stock.unpriced);
        if pool.replicas.is_some() {
            stock.offers.sort_by(|a, b| preference_key(a).cmp(&preference_key(b)));
            self.static_pools.insert(pool.name.clone(), stock.offers);
        } else {
            self.list.append(&mut stock.offers);
        }
    }
}

/// Returns the sort key: cheapest first; at equal price reserved, then spot, then on-demand, as
/// Karpenter prefers.
fn preference_key(offer: &Offer) -> impl Ord + '_ {
    let node = &offer.node;
    let preference = std::cmp::Reverse(node.capacity_type);
    let identity = (&node.instance_type, &node.pool, &node.zone, &node.labels);
    (node.price, preference, identity, &node.reservation)
}

/// Returns the requirements of a pool, including its labels.
pub fn pool_requirements(pool: &Pool) -> Requirements {
    declared_requirements(&pool.labels, &pool.requirements)
}

/// Returns the requirements of nodes with these declared labels and requirements.
pub(super) fn declared_requirements(labels: &Labels, declared: &[PoolRequirement]) -> Requirements {
    let mut requirements = Requirements::from_labels(labels);
    for requirement in declared {
        let values: Vec<&str> = requirement.values.iter().map(LabelValue::as_str).collect();
        // A requirement that passed validation by mistake must not widen the pool, so it admits
        // nothing.
        let set = LabelSet::from_operator(requirement.operator, &values)
            .unwrap_or_else(|_| LabelSet::all().complement());
        requirements.add(requirement.key.clone(), &set);
    }
    requirements
}

/// Returns true if a node with these labels and taints admits pods of `shape`, apart from free
/// resources.
pub fn admits(shape: &PodShape, labels: &Labels, taints: &[Taint]) -> bool {
    untolerated(taints, &shape.tolerations).is_none()
        && shape.nodes.any_of.iter().any(|alternative| alternative.matches_labels(labels))
}

/// Taints that the DaemonSet controller adds tolerations for.
const DAEMON_TOLERATES: [&str; 6] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/unschedulable",
];

/// Returns true if a DaemonSet runs a pod on a node with these labels and taints.
pub(super) fn admits_daemon(daemon: &Daemon, labels: &Labels, taints: &[Taint]) -> bool {
    let own = |key: &&str| Toleration {
        key: (*key).to_owned(),
        operator: crate::model::pod::TolerationOperator::Exists,
        ..Toleration::default()
    };
    let tolerations: Vec<Toleration> =
        daemon.shape.tolerations.iter().cloned().chain(DAEMON_TOLERATES.iter().map(own)).collect();
    let choice = &daemon.shape.nodes.any_of;
    untolerated(taints, &tolerations).is_none() && choice.iter().any(|a| a.matches_labels(labels))
}

/// Returns true if a DaemonSet runs a pod on a node with these labels, taints and allocatable
/// resources. A pod that requests more than the empty node has stays Pending there for good, and
/// takes no room.
pub fn runs_daemon(
    daemon: &Daemon,
    labels: &Labels,
    taints: &[Taint],
    allocatable: &Resources,
) -> bool {
    daemon.shape.requests.fits(allocatable) && admits_daemon(daemon, labels, taints)
}

/// Returns the total requests of the DaemonSet pods that run on a node with these labels, taints
/// and allocatable resources.
pub fn daemon_requests(
    daemons: &[Daemon],
    labels: &Labels,
    taints: &[Taint],
    allocatable: &Resources,
) -> Resources {
    let here = daemons.iter().filter(|daemon| runs_daemon(daemon, labels, taints, allocatable));
    here.fold(Resources::default(), |sum, daemon| sum.plus(&daemon.shape.requests))
}

/// Returns those of `groups` whose pods fit on offers of `pool` of several architectures.
pub fn groups_on_several_architectures<'g>(
    supply: &OfferInput,
    pool: &Pool,
    daemons: &[Daemon],
    mut groups: Vec<&'g PodGroup>,
) -> Vec<&'g PodGroup> {
    let Ok(template) = NodeTemplate::new(pool, supply) else { return Vec::new() };
    if groups.is_empty() {
        return groups;
    }
    let asked = RequestedLabels::from_shapes(groups.iter().map(|group| &*group.shape));
    let PoolOffers { offers, unpriced, .. } = template.pool_offers(&asked, daemons);
    let all: Vec<&Offer> = offers.iter().chain(&unpriced).collect();
    groups.retain(|group| {
        let shape = &group.shape;
        let hosts = all.iter().filter(|offer| {
            let NewNode { labels, taints, .. } = &offer.node;
            shape.requests.fits(&offer.room) && admits(shape, labels, taints)
        });
        let found: BTreeSet<_> =
            hosts.filter_map(|offer| offer.node.labels.get(key::ARCH)).collect();
        found.len() > 1
    });
    groups
}

/// Returns an error for each pool whose requirements no offering satisfies, and a warning for each
/// workload that requests more disk than the nodes of any pool have.
pub fn pool_problems(supply: &OfferInput, demand: &Demand) -> Vec<Problem> {
    let (mut problems, mut largest) = (Vec::new(), None::<(Bytes, &Pool)>);
    // A type that is not known may be newer than the catalog. It has a warning of its own.
    let unknown = supply.catalog.unknown_type_warnings(supply.desired);
    let has_unknown_type = |pool: &Pool| unknown.iter().any(|found| found.origin == pool.origin);
    for pool in supply.desired.pools.values() {
        let Ok(template) = NodeTemplate::new(pool, supply) else { continue };
        let stock = template.pool_offers(&RequestedLabels::default(), &[]);
        let withheld = stock.withheld.iter().map(|(offer, _)| offer);
        let disks = stock.offers.iter().chain(withheld).chain(&stock.unpriced);
        match disks.map(|offer| offer.node.allocatable.ephemeral_storage).max() {
            None if has_unknown_type(pool) => {}
            None => problems.push(unusable_pool(pool, supply)),
            Some(disk) if largest.is_none_or(|(most, _)| disk > most) => {
                largest = Some((disk, pool));
            }
            Some(_) => {}
        }
    }
    let Some((disk, pool)) = largest else { return problems };
    let groups = demand.groups.iter().filter(|group| group.counts.planned > 0);
    problems.extend(groups.filter_map(|group| disk_problem(group, disk, pool, supply.desired)));
    problems
}

/// Returns why no offering satisfies the requirements of a pool; `None` if only all of them together
/// exclude each offering.
fn no_offering_cause(pool: &Pool, supply: &OfferInput<'_>) -> Option<String> {
    let OfferInput { desired, catalog, observed, .. } = *supply;
    let unmet = catalog.unmet_requirement(pool, desired.class_of(pool));
    unmet.or_else(|| Some(reservation_gap(pool, desired, observed)?.cause()))
}

fn unusable_pool(pool: &Pool, supply: &OfferInput<'_>) -> Problem {
    let OfferInput { desired, catalog, observed, .. } = *supply;
    let (origin, object) =
        (pool.origin.clone(), format!("{} {}", pool.generation.pool_kind(), pool.name));
    let is_unknown = catalog.unmet_requirement(pool, desired.class_of(pool)).is_none()
        && matches!(reservation_gap(pool, desired, observed), Some(ReservationGap::NotRead));
    if is_unknown {
        let message = "launches in capacity reservations alone, which are read from the account: \
                       none is known here";
        let hint = "plan with --world live to use them";
        return Problem::warning(origin, object, message).hint(hint).code(Code::NoOffering);
    }
    let cause = no_offering_cause(pool, supply).unwrap_or_else(|| {
        "no instance type, zone and capacity type satisfies all of its requirements".to_owned()
    });
    let message = format!("cannot launch any node: {cause}");
    Problem::error(origin, object, message).code(Code::NoOffering)
}

fn disk_problem(group: &PodGroup, disk: Bytes, pool: &Pool, desired: &Desired) -> Option<Problem> {
    let requested = group.shape.requests.ephemeral_storage;
    let origin = group.origin.clone().filter(|_| requested > disk)?;
    let object = format!("{} {}", group.workload.kind, group.workload);
    let message = format!(
        "requests {requested} of ephemeral storage, and nodes of pool {} have {disk}, the most of \
         all pools",
        pool.name
    );
    let class = pool.node_class.as_ref().and_then(|name| desired.node_classes.get(name));
    let hint = class.map(|class| {
        let kind = pool.generation.class_kind();
        format!("raise volumeSize of the root volume of {kind} {} ({})", class.name, class.origin)
    });
    Some(Problem::warning(origin, object, message).maybe_hint(hint).code(Code::TooSmall))
}
