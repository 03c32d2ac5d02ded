//! What may be launched: every pool × instance type × zone × capacity type, decided in every part.

use std::collections::{BTreeMap, BTreeSet};

use super::standing::Standing;
use super::target::NewNode;
use crate::catalog::{Allocation, Catalog, InstanceType, NodeSettings, Offering, allocation};
use crate::demand::{Daemon, PodShape};
use crate::ids::{LabelKey, LabelValue, Labels, PoolName};
use crate::manifest::{AmiFamily, Desired, Generation, NodeClass, Pool};
use crate::pod::{Taint, Toleration, untolerated};
use crate::requirement::{LabelSet, Requirements, is_well_known, key, label};
use crate::units::{MicroUsd, Resources};

/// Most combinations of custom label values that one offering is split into.
const SPLITS_MAX: usize = 64;

/// A way to get a node: everything is decided but the moment.
#[derive(Debug, Clone)]
pub struct Offer {
    /// What would be launched.
    pub node: NewNode,
    /// Weight of its pool; higher is tried first.
    pub weight: u32,
    /// What DaemonSet pods take of it.
    pub daemons: Resources,
    /// What remains for other pods.
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
}

/// Why a pool can make no nodes at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolRefusal {
    /// It names a node class that is not declared.
    NoNodeClass,
    /// No offering satisfies its requirements.
    NoOffering,
    /// It has a fixed number of nodes, which pods never add to.
    Static,
    /// Fewer distinct values of a key remain possible than it demands.
    TooFewValues {
        /// The key.
        key: LabelKey,
        /// How many it demands.
        demanded: u32,
        /// How many remain.
        remain: usize,
    },
}

/// Every offer of every pool, cheapest first, and the pools that have none.
#[derive(Debug, Clone, Default)]
pub struct Offers {
    /// The offers.
    pub list: Vec<Offer>,
    /// Pools without offers, with the reason.
    pub refusals: BTreeMap<PoolName, PoolRefusal>,
}

impl Offers {
    /// Returns what the pools of `desired` may launch from `catalog`.
    ///
    /// `shapes` are those of the pods to place: where a pool leaves the value of a custom label
    /// open, one offer is made for each value that some pod asks for.
    #[must_use]
    pub fn of<'a>(
        desired: &Desired,
        catalog: &Catalog,
        daemons: &[Daemon],
        shapes: impl IntoIterator<Item = &'a PodShape>,
    ) -> Self {
        let asked = asked_values(shapes);
        let mut offers = Self::default();
        for pool in desired.pools.values() {
            match pool_offers(pool, desired, catalog, &asked) {
                Ok(list) => offers.list.extend(list),
                Err(refusal) => {
                    offers.refusals.insert(pool.name.clone(), refusal);
                }
            }
        }
        for offer in &mut offers.list {
            offer.daemons = daemon_requests(daemons, &offer.node.labels, &offer.node.taints);
            offer.room = offer.node.allocatable.minus(&offer.daemons);
        }
        offers.list.sort_by(|a, b| order(a).cmp(&order(b)));
        offers
    }
}

/// Cheapest first; at the same price reserved before spot before on-demand, as Karpenter prefers.
fn order(offer: &Offer) -> impl Ord + '_ {
    let node = &offer.node;
    let preference = std::cmp::Reverse(node.capacity_type);
    (node.price, preference, &node.instance_type, &node.pool, &node.zone, &node.labels)
}

fn pool_offers(
    pool: &Pool,
    desired: &Desired,
    catalog: &Catalog,
    asked: &BTreeMap<LabelKey, BTreeSet<LabelValue>>,
) -> Result<Vec<Offer>, PoolRefusal> {
    let class = pool.node_class.as_ref().and_then(|name| desired.node_classes.get(name));
    let class = class.ok_or(PoolRefusal::NoNodeClass)?;
    if pool.replicas.is_some() {
        return Err(PoolRefusal::Static);
    }
    let template = Template::of(pool, class, catalog);
    let splits = template.splits(asked);
    let mut offers = Vec::new();
    for kind in catalog.types.values() {
        let labels = template.type_labels(kind);
        if !template.admits(&labels, &kind.labels, &["karpenter.k8s.aws/instance-"]) {
            continue;
        }
        let amounts = allocation(kind, &template.settings);
        for offering in &kind.offerings {
            offers.extend(template.offers(kind, offering, &amounts, &splits));
        }
    }
    check_min_values(pool, &offers)?;
    if offers.is_empty() { Err(PoolRefusal::NoOffering) } else { Ok(offers) }
}

/// What every node of a pool has in common.
struct Template<'a> {
    pool: &'a Pool,
    class: &'a NodeClass,
    settings: NodeSettings,
    requirements: Requirements,
    labels: Labels,
    spec_digest: String,
}

impl<'a> Template<'a> {
    fn of(pool: &'a Pool, class: &'a NodeClass, catalog: &Catalog) -> Self {
        let mut labels = pool.labels.clone();
        labels.extend([
            label(key::NODEPOOL, pool.name.as_str()),
            label(key::NODE_CLASS, class.name.as_str()),
            label(key::REGION, catalog.region.as_str()),
            label("karpenter.sh/registered", "true"),
            label("karpenter.sh/initialized", "true"),
        ]);
        if pool.generation == Generation::V1alpha5 {
            labels.extend([label(key::PROVISIONER, pool.name.as_str())]);
        }
        Self {
            pool,
            class,
            settings: NodeSettings::of(pool, class),
            requirements: pool_requirements(pool),
            labels,
            spec_digest: super::drift::spec_digest(pool, class),
        }
    }

    fn type_labels(&self, kind: &InstanceType) -> Labels {
        let mut labels = self.labels.clone();
        labels.extend(kind.labels.iter().map(|(k, v)| (k.clone(), v.clone())));
        if self.class.ami_family == AmiFamily::Windows {
            labels.extend([label(key::OS, "windows")]);
        }
        labels
    }

    /// Returns whether every requirement whose label is already decided is met: one that is in
    /// `labels`, or that only a type could have had.
    fn admits(&self, labels: &Labels, own: &Labels, prefixes: &[&str]) -> bool {
        self.requirements.iter().all(|(key, set)| {
            let decided = own.contains_key(key)
                || self.labels.contains_key(key)
                || prefixes.iter().any(|prefix| key.as_str().starts_with(prefix));
            !decided || set.contains(labels.get(key))
        })
    }

    /// Returns the combinations of custom labels that its nodes can have, given what pods ask for.
    ///
    /// A label whose value the pool decides has one state. One that the pool leaves open is split:
    /// each value some pod asks for, and one further state for the rest.
    fn splits(&self, asked: &BTreeMap<LabelKey, BTreeSet<LabelValue>>) -> Vec<Labels> {
        let open = self
            .requirements
            .iter()
            .filter(|(key, _)| !is_well_known(key.as_str()) && !self.labels.contains_key(*key));
        let mut splits = vec![Labels::new()];
        for (key, set) in open {
            let states = open_states(set, asked.get(key));
            let combine = |base: &Labels, state: &Option<LabelValue>| {
                let mut labels = base.clone();
                labels.extend(state.iter().map(|value| (key.clone(), value.clone())));
                labels
            };
            splits = splits
                .iter()
                .flat_map(|base| states.iter().map(move |state| combine(base, state)))
                .take(SPLITS_MAX)
                .collect();
        }
        splits
    }

    fn offers(
        &self,
        kind: &'a InstanceType,
        offering: &'a Offering,
        amounts: &Allocation,
        splits: &[Labels],
    ) -> Vec<Offer> {
        let Some(price) = offering.price else { return Vec::new() };
        let mut labels = self.type_labels(kind);
        let own: Labels = [
            label(key::ZONE, offering.zone.as_str()),
            label(key::ZONE_ID, offering.zone_id.as_str()),
            label(key::CAPACITY_TYPE, offering.capacity_type.as_str()),
        ]
        .into();
        labels.extend(own.clone());
        if !self.admits(&labels, &own, &[]) {
            return Vec::new();
        }
        let with = |split: &Labels| {
            let mut labels = labels.clone();
            labels.extend(split.iter().map(|(k, v)| (k.clone(), v.clone())));
            self.offer(kind, offering, amounts, (price, labels))
        };
        splits.iter().map(with).collect()
    }

    fn offer(
        &self,
        kind: &InstanceType,
        offering: &Offering,
        amounts: &Allocation,
        (price, labels): (MicroUsd, Labels),
    ) -> Offer {
        let node = NewNode {
            pool: self.pool.name.clone(),
            node_class: self.class.name.clone(),
            instance_type: kind.name.clone(),
            zone: offering.zone.clone(),
            zone_id: offering.zone_id.clone(),
            capacity_type: offering.capacity_type,
            image: self.class.image.clone(),
            labels,
            taints: self.pool.taints.clone(),
            startup_taints: self.pool.startup_taints.clone(),
            capacity: amounts.capacity.clone(),
            allocatable: amounts.allocatable.clone(),
            price,
            price_estimated: offering.estimated,
            spec_digest: self.spec_digest.clone(),
            alternatives: Vec::new(),
        };
        let weight = self.pool.weight;
        let exotic = kind.bare_metal || kind.has_accelerator;
        Offer { node, weight, daemons: Resources::default(), room: Resources::default(), exotic }
    }
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

/// The states to make offers for, of a label that the pool leaves open.
fn open_states(set: &LabelSet, asked: Option<&BTreeSet<LabelValue>>) -> Vec<Option<LabelValue>> {
    let wanted = asked.into_iter().flatten().filter(|value| set.values().contains(value));
    let mut states: Vec<Option<LabelValue>> = wanted.cloned().map(Some).collect();
    if set.allows_absence() {
        states.push(None);
    } else if states.is_empty() {
        states.extend(set.values().any().map(Some));
    }
    states
}

/// Returns, for every label key that a pod's choice of nodes names, the values it could ask for.
fn asked_values<'a>(
    shapes: impl IntoIterator<Item = &'a PodShape>,
) -> BTreeMap<LabelKey, BTreeSet<LabelValue>> {
    let mut asked: BTreeMap<LabelKey, BTreeSet<LabelValue>> = BTreeMap::new();
    let alternatives = shapes.into_iter().flat_map(|shape| &shape.nodes.any_of);
    for (key, set) in alternatives.flat_map(Requirements::iter) {
        if is_well_known(key.as_str()) || asked.get(key).is_some_and(|held| held.len() > SPLITS_MAX)
        {
            continue;
        }
        let values =
            set.values().finite(64).unwrap_or_else(|| set.values().any().into_iter().collect());
        asked.entry(key.clone()).or_default().extend(values);
    }
    asked
}

fn check_min_values(pool: &Pool, offers: &[Offer]) -> Result<(), PoolRefusal> {
    for requirement in &pool.requirements {
        let Some(demanded) = requirement.min_values else { continue };
        let values = offers.iter().filter_map(|offer| offer.node.labels.get(&requirement.key));
        let remain = values.collect::<BTreeSet<_>>().len();
        if usize::try_from(demanded).is_ok_and(|demanded| remain < demanded) {
            return Err(PoolRefusal::TooFewValues {
                key: requirement.key.clone(),
                demanded,
                remain,
            });
        }
    }
    Ok(())
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
