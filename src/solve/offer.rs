//! What may be launched: every pool × instance type × zone × capacity type, decided in every part.
//!
//! Where this differs from Karpenter on purpose:
//!
//! * Pools of a higher weight come first, as there. Between pools of one weight the price decides;
//!   Karpenter takes the one whose name is later, whatever it costs.
//! * A label that a pool leaves open (`Exists`, `NotIn`, bounds) gets a value that some pod asks
//!   for, or the least one, or none where it may be absent; Karpenter makes up a random one.
//! * A reservation is used up before other capacity of the pool is, and what does not fit it gets
//!   other capacity in the same plan, if the pool allows any; Karpenter puts such pods off until it
//!   has seen the reserved launch succeed, and gives them other capacity in its next round. Here
//!   the plan says both, and a reserved launch has no stand-in: if EC2 refuses it, it fails.
//! * A reserved machine costs nothing more: it is paid for whether or not it is used.
//!
//! Source: karpenter core, `pkg/controllers/provisioning/scheduling`, `pkg/utils/nodepool`.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::standing::Standing;
use super::target::{NewNode, Relaxed};
use super::template::{Asked, Template};
use super::variety;
use crate::catalog::Catalog;
use crate::demand::{Daemon, PodShape};
use crate::fleet::Observed;
use crate::ids::{LabelValue, Labels, PoolName, ReservationId};
use crate::manifest::{Desired, Pool};
use crate::pod::{Taint, Toleration, untolerated};
use crate::requirement::{LabelSet, Requirements, key};
use crate::units::{MicroUsd, Resources};

/// A way to get a node: everything is decided but the moment.
#[derive(Debug, Clone)]
pub struct Offer {
    /// What would be launched.
    pub node: NewNode,
    /// Weight of its pool; higher is tried first.
    pub weight: u32,
    /// What DaemonSet pods take of it.
    pub daemons: Resources,
    /// What remains for other pods, so that enough others hold as much (`minValues`).
    pub room: Resources,
    /// Whether it has hardware (or the lack of a hypervisor) that pods do not get unless they need
    /// it.
    pub exotic: bool,
}

impl Offer {
    /// Returns whether `node` is of this offer's pool, type and capacity type.
    pub(super) fn is_like(&self, node: &Standing) -> bool {
        let labelled = |key: &str, value: &str| {
            node.labels.get(key).is_some_and(|held| held.as_str() == value)
        };
        node.pool.as_ref() == Some(&self.node.pool)
            && labelled(key::INSTANCE_TYPE, self.node.instance_type.as_str())
            && labelled(key::CAPACITY_TYPE, self.node.capacity_type.as_str())
    }

    /// Returns what pods are planned to use of the node at most, DaemonSet pods included.
    pub(super) fn planned(&self) -> Resources {
        self.room.plus(&self.daemons)
    }
}

/// Why a pool can make no nodes at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolRefusal {
    /// It names a node class that is not declared.
    NoNodeClass,
    /// A part of it, or of its node class, could not be read.
    Unreadable {
        /// What, such as `NodePool` or `EC2NodeClass default`.
        what: String,
        /// The field; empty for the object itself.
        field: String,
    },
    /// It is a group that makes no nodes for us.
    Group {
        /// Why.
        why: String,
    },
    /// No offering satisfies its requirements.
    NoOffering,
    /// Nothing that satisfies its requirements can be had now.
    Withheld(Withheld),
    /// Pods ask for more combinations of labels that it leaves open than offers are made for.
    TooManyLabels,
}

/// Why an offer that a pool could make is not made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Withheld {
    /// EC2 had none lately.
    Excluded {
        /// When it may be tried again.
        until: Timestamp,
    },
    /// The reservation has nothing left.
    UsedUp {
        /// The reservation.
        reservation: ReservationId,
    },
    /// Too few others could stand in for it.
    TooFewValues(Relaxed),
    /// Spot costs more than the group pays at most.
    TooDear {
        /// What it costs an hour.
        price: MicroUsd,
        /// What the group pays at most.
        most: MicroUsd,
    },
}

/// Every offer of every pool, cheapest first, and what is not offered.
#[derive(Debug, Clone, Default)]
pub struct Offers {
    /// The offers.
    pub list: Vec<Offer>,
    /// Offers of pools with a fixed number of nodes, cheapest first: pods add none of them.
    pub fixed: BTreeMap<PoolName, Vec<Offer>>,
    /// Offers that are not made now, and why.
    pub withheld: Vec<(Offer, Withheld)>,
    /// What is never launched, since its price is not known, and may yet have been, when it was: the
    /// prices of these say nothing.
    pub(super) unpriced: Vec<Offer>,
    /// Pools without offers, with the reason, and those that make not every offer.
    pub refusals: BTreeMap<PoolName, PoolRefusal>,
}

/// What offers follow from.
pub struct Supply<'a> {
    /// What the repository declares.
    pub desired: &'a Desired,
    /// What EC2 sells.
    pub catalog: &'a Catalog,
    /// What EC2 has reserved for us, or lately had not.
    pub observed: &'a Observed,
    /// The moment planned for.
    pub at: Timestamp,
}

/// What a pool can make, and what of it not now.
#[derive(Default)]
pub(super) struct Stock {
    pub offers: Vec<Offer>,
    pub withheld: Vec<(Offer, Withheld)>,
    pub unpriced: Vec<Offer>,
    /// Whether pods ask for more combinations of custom labels than offers are made for.
    pub is_cut: bool,
}

impl Offers {
    /// Returns what the pools of `supply` may launch.
    ///
    /// `shapes` are those of the pods to place: where a pool leaves the value of a custom label
    /// open, one offer is made for each value that some pod asks for.
    #[must_use]
    pub fn of<'a>(
        supply: &Supply,
        daemons: &[Daemon],
        shapes: impl IntoIterator<Item = &'a PodShape>,
    ) -> Self {
        let shapes: Vec<&PodShape> = shapes.into_iter().collect();
        let asked = Asked::of(shapes.iter().copied());
        let mut offers = Self::default();
        for pool in supply.desired.pools.values() {
            let template = match Template::of(pool, supply) {
                Ok(template) => template,
                Err(refusal) => {
                    offers.refusals.insert(pool.name.clone(), refusal);
                    continue;
                }
            };
            let mut stock = template.stock(&asked, daemons);
            variety::hold(pool, supply.desired.min_values_policy, &shapes, &mut stock);
            offers.add(pool, stock);
        }
        offers.list.sort_by(|a, b| order(a).cmp(&order(b)));
        offers
    }

    /// Returns every offer, those included that are not made now.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Offer> {
        let fixed = self.fixed.values_mut().flatten();
        let withheld = self.withheld.iter_mut().map(|(offer, _)| offer);
        self.list.iter_mut().chain(fixed).chain(withheld).chain(&mut self.unpriced)
    }

    fn add(&mut self, pool: &Pool, mut stock: Stock) {
        if stock.is_cut {
            self.refusals.insert(pool.name.clone(), PoolRefusal::TooManyLabels);
        }
        if stock.offers.is_empty() {
            let why = stock.withheld.iter().map(|(_, why)| why).min();
            let refusal = why.map_or(PoolRefusal::NoOffering, |w| PoolRefusal::Withheld(w.clone()));
            self.refusals.insert(pool.name.clone(), refusal);
        }
        self.withheld.append(&mut stock.withheld);
        self.unpriced.append(&mut stock.unpriced);
        if pool.replicas.is_some() {
            stock.offers.sort_by(|a, b| order(a).cmp(&order(b)));
            self.fixed.insert(pool.name.clone(), stock.offers);
        } else {
            self.list.append(&mut stock.offers);
        }
    }
}

/// Cheapest first; at the same price reserved before spot before on-demand, as Karpenter prefers.
fn order(offer: &Offer) -> impl Ord + '_ {
    let node = &offer.node;
    let preference = std::cmp::Reverse(node.capacity_type);
    let what = (&node.instance_type, &node.pool, &node.zone, &node.labels);
    (node.price, preference, what, &node.reservation)
}

/// Returns the requirements of a pool, its labels included.
#[must_use]
pub fn pool_requirements(pool: &Pool) -> Requirements {
    let mut requirements = Requirements::from_labels(&pool.labels);
    for requirement in &pool.requirements {
        let values: Vec<&str> = requirement.values.iter().map(LabelValue::as_str).collect();
        // A requirement that slipped past validation must not widen the pool: it admits nothing.
        let set = LabelSet::from_operator(requirement.operator, &values)
            .unwrap_or_else(|_| LabelSet::all().complement());
        requirements.add(requirement.key.clone(), &set);
    }
    requirements
}

/// Returns whether a node with these labels and taints admits pods of `shape`, room aside.
#[must_use]
pub fn admits(shape: &PodShape, labels: &Labels, taints: &[Taint]) -> bool {
    untolerated(taints, &shape.tolerations).is_none()
        && shape.nodes.any_of.iter().any(|alternative| alternative.match_labels(labels))
}

/// Taints that the DaemonSet controller makes its pods tolerate.
const DAEMON_TOLERATES: [&str; 6] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/unschedulable",
];

/// Returns whether a DaemonSet puts a pod on a node with these labels and taints.
#[must_use]
pub fn admits_daemon(daemon: &Daemon, labels: &Labels, taints: &[Taint]) -> bool {
    let own = |key: &&str| Toleration {
        key: (*key).to_owned(),
        operator: crate::pod::TolerationOperator::Exists,
        ..Toleration::default()
    };
    let tolerations: Vec<Toleration> =
        daemon.shape.tolerations.iter().cloned().chain(DAEMON_TOLERATES.iter().map(own)).collect();
    let choice = &daemon.shape.nodes.any_of;
    untolerated(taints, &tolerations).is_none() && choice.iter().any(|a| a.match_labels(labels))
}

/// Returns what the DaemonSet pods of a node with these labels and taints ask for.
#[must_use]
pub fn daemon_requests(daemons: &[Daemon], labels: &Labels, taints: &[Taint]) -> Resources {
    let here = daemons.iter().filter(|daemon| admits_daemon(daemon, labels, taints));
    here.fold(Resources::default(), |sum, daemon| sum.plus(&daemon.shape.requests))
}
