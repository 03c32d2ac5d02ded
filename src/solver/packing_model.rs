//! The packing problem in numbers: classes of identical pods, classes of identical offers, and bins
//! for existing nodes.
//!
//! Pods with the same requests and the same admission form one class. Offers with the same price
//! and the same room form one offer class. Work is per class, never per pod.

mod admission;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use admission::{AdmissionTable, NodeAdmission, PodAdmissionKey};

use super::existing_node::ExistingNode;
use super::offer::Offer;
use super::offer_admission::OfferAdmission;
use super::topology::{DomainShare, NodeRule, TopologyAssignment, is_within};
use crate::demand::{Daemon, PodGroup};
use crate::model::ids::{Labels, PoolName, workload_key};
use crate::model::requirement::Requirements;
use crate::model::units::{MicroUsd, ResourceName, Resources};

/// Resource amounts: cpu, memory, ephemeral storage, pods, then extended resources.
pub(super) type ResourceVector = Vec<i64>;

/// Identical pods of any number of workloads.
#[derive(Debug, Clone)]
pub(super) struct PodClass {
    /// Requests of one pod.
    pub requests: ResourceVector,
    /// Pairs of group and pod count.
    pub group_counts: Vec<(usize, u32)>,
    /// Required node labels of their domains.
    pub within: Requirements,
    /// Indices of the node rules that apply, each with the side of the class.
    pub rules: Vec<(usize, RuleSide)>,
    /// True if all of these pods must share one node.
    pub is_colocated: bool,
    /// Pairs of class and number of its pods that each pod of this class brings to its node.
    pub companions: Vec<(usize, u32)>,
    /// Index of the admission of these pods.
    pub admission: usize,
    /// Number of planned pods.
    pub planned: u32,
    /// Value of a pod: the minimum cost of its dominant share over all offer classes, in nano-USD
    /// per hour.
    pub value: i128,
}

/// The side of a node rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleSide {
    /// A member of a cap, or a subject of another rule.
    Subject,
    /// A peer of a rule.
    Peer,
}

impl PodClass {
    /// Returns the groups of these pods.
    pub(super) fn groups(&self) -> impl Iterator<Item = usize> {
        self.group_counts.iter().map(|(group, _)| *group)
    }

    /// Returns true if a node may receive these pods without companions.
    pub(super) fn is_independent(&self) -> bool {
        !self.is_colocated && self.companions.is_empty()
    }

    /// Returns true if only room limits the number of these pods on a node.
    pub(super) fn is_unconstrained(&self) -> bool {
        self.rules.is_empty() && self.is_independent()
    }
}

/// Identical offers.
#[derive(Debug, Clone)]
pub(super) struct OfferClass {
    pub price: MicroUsd,
    /// Allocatable amounts of an empty node.
    pub room: ResourceVector,
    pub weight: u32,
    pub pool: PoolName,
    /// True for offers of a capacity reservation, which are limited in number.
    pub is_reserved: bool,
    /// Indices of the offers, in ascending order.
    pub offers: Vec<usize>,
    /// For each pod class, true if the node admits its pods and has room for one. Special hardware
    /// admits only pods that fit on nothing else.
    pub admits: Vec<bool>,
    /// For special hardware: `admits` with the pods that only use the room beside those that need
    /// it. Empty for other nodes.
    admits_beside: Vec<bool>,
    /// For each admission, the weight of unmet preferences, in percent of the pod value.
    pub preference_penalty: Vec<u32>,
}

impl OfferClass {
    /// Returns true if a node admits a pod of a class that has pods in `wanted`.
    pub(super) fn admits_any(&self, wanted: &[u32]) -> bool {
        self.admits.iter().zip(wanted).any(|(admits, pods)| *admits && *pods > 0)
    }

    /// Returns true if an empty node holds a pod of the class, whether it needs special hardware or
    /// not.
    pub(super) fn fits(&self, class: usize) -> bool {
        self.admits_beside.get(class).copied().unwrap_or(self.admits[class])
    }

    /// Returns true if a node holds a pod of the class in place of a node of `other`, which may
    /// hold it beside pods that need its special hardware.
    pub(super) fn holds_in_place_of(&self, other: &Self, class: usize) -> bool {
        self.admits[class] || (!other.admits[class] && other.fits(class) && self.fits(class))
    }
}

/// An existing node.
#[derive(Debug, Clone)]
pub(super) struct Bin {
    /// Room for pods that are not placed on it yet.
    pub room: ResourceVector,
    /// For each pod class, true if the node admits its pods.
    pub admits: Vec<bool>,
    /// True if the node may receive new pods.
    pub schedulable: bool,
    /// For each pod class, the number of planned pods that run on the node.
    pub running: Vec<u32>,
    /// Further planned pods of the node ([`ExistingNode::planned_pods`]), by pod class.
    pub planned: BTreeMap<usize, u32>,
}

/// The packing problem.
#[derive(Debug)]
pub(super) struct PackingModel {
    pub classes: Vec<PodClass>,
    pub offer_classes: Vec<OfferClass>,
    /// Offer classes that no other class dominates, the cheapest first.
    pub undominated: Vec<usize>,
    pub bins: Vec<Bin>,
    pub rules: Vec<NodeRule>,
    /// True if some offer class leaves a preference of some pod unmet.
    pub has_preferences: bool,
    /// Pod classes with companions, the most valuable first.
    pub with_companions: Vec<usize>,
    /// For each offer, its offer class.
    pub class_of_offer: Vec<usize>,
    /// For each group, its pod classes.
    pub classes_of_group: Vec<Vec<usize>>,
    /// Pod classes, the most valuable first.
    pub by_value: Vec<usize>,
}

/// Pods with the same key form one class.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ClassKey<'a> {
    requests: &'a Resources,
    admission_key: PodAdmissionKey<'a>,
    rules: Vec<(usize, RuleSide)>,
    /// The set of groups that must share one node.
    together: Option<usize>,
}

impl PackingModel {
    /// Returns the problem of placing the supported pods of `groups` in their assigned domains.
    pub(super) fn new(
        groups: &[PodGroup],
        assignment: &TopologyAssignment,
        supply: PackingSupply,
    ) -> Self {
        let names = extended_names(groups);
        let admissions = AdmissionTable::new(groups, &assignment.domain_shares, supply);
        let mut classes = pod_classes(groups, assignment, &admissions, &names);
        link_companions(&mut classes, assignment);
        let offer_classes = offer_classes(supply.offers, &classes, &admissions, &names);
        // Pods with the same requests and the same admission have the same value.
        let mut values: BTreeMap<(ResourceVector, usize), i128> = BTreeMap::new();
        for (index, class) in classes.iter_mut().enumerate() {
            let key = (class.requests.clone(), class.admission);
            class.value =
                *values.entry(key).or_insert_with(|| pod_value(index, class, &offer_classes));
        }
        let builder =
            BinBuilder { groups, classes: &classes, admissions: &admissions, names: &names };
        let bins = supply.existing.iter().map(|node| builder.bin(node)).collect();
        let mut by_value: Vec<usize> = (0..classes.len()).collect();
        by_value.sort_by(|a, b| {
            let key = |i: &usize| (classes[*i].value, &classes[*i].requests);
            key(b).cmp(&key(a)).then(a.cmp(b))
        });
        let undominated = undominated(&offer_classes);
        let has_preferences = offer_classes
            .iter()
            .any(|offer_class| offer_class.preference_penalty.iter().any(|unmet| *unmet > 0));
        let mut classes_of_group = vec![Vec::new(); groups.len()];
        for (index, class) in classes.iter().enumerate() {
            class.groups().for_each(|group| classes_of_group[group].push(index));
        }
        let with_companions =
            by_value.iter().copied().filter(|c| !classes[*c].is_independent()).collect();
        let mut class_of_offer = vec![0; supply.offers.len()];
        for (index, offer_class) in offer_classes.iter().enumerate() {
            offer_class.offers.iter().for_each(|offer| class_of_offer[*offer] = index);
        }
        let rules = assignment.rules.clone();
        Self {
            classes,
            offer_classes,
            undominated,
            bins,
            rules,
            has_preferences,
            with_companions,
            class_of_offer,
            classes_of_group,
            by_value,
        }
    }

    /// Returns the class of a pod of `group` on a node with these labels.
    pub(super) fn pod_class_of(&self, group: usize, labels: &Labels) -> Option<usize> {
        let classes = self.classes_of_group[group].iter().copied();
        classes.into_iter().find(|class| is_within(&self.classes[*class].within, labels))
    }

    /// Returns the price of a node per hour, in nano-USD, plus the penalty for unmet preferences of
    /// its pods.
    pub(super) fn effective_cost(&self, offer_class: usize, pods: &BTreeMap<usize, u32>) -> i128 {
        let offer_class = &self.offer_classes[offer_class];
        let price = i128::from(offer_class.price.0) * 1000;
        if !self.has_preferences {
            return price;
        }
        let cost = |(class, count): (&usize, &u32)| {
            let class = &self.classes[*class];
            class.value
                * i128::from(*count)
                * i128::from(offer_class.preference_penalty[class.admission])
                / 100
        };
        price + pods.iter().map(cost).sum::<i128>()
    }

    /// Returns the number of resources of a vector.
    pub(super) fn resource_count(&self) -> usize {
        self.classes.first().map_or(0, |class| class.requests.len())
    }

    /// Returns the work of trying a class with its rules on a node.
    pub(super) fn work_of(&self, class: usize) -> u64 {
        u64::try_from(self.classes[class].rules.len())
            .map_or(u64::MAX, |rules| rules.saturating_add(1))
    }

    /// Returns how many pods of `class` fit into `free`, at most `limit`.
    pub(super) fn copies(&self, class: usize, free: &[i64], limit: u32) -> u32 {
        copies(&self.classes[class].requests, free, limit)
    }
}

/// Returns how many copies of `request` fit into `free`, at most `limit`.
#[inline]
pub(super) fn copies(request: &[i64], free: &[i64], limit: u32) -> u32 {
    if limit == 1 {
        return u32::from(has_room(request, free));
    }
    let mut fits = i64::from(limit);
    for (requested, free) in request.iter().zip(free) {
        if *requested > 0 {
            fits = fits.min((*free).max(0) / requested);
        }
    }
    u32::try_from(fits).unwrap_or(limit)
}

/// Returns true if `request` fits into `free`.
#[inline]
pub(super) fn has_room(request: &[i64], free: &[i64]) -> bool {
    request.iter().zip(free).all(|(requested, free)| *requested <= 0 || requested <= free)
}

/// Subtracts `count` times `request` from `free`.
pub(super) fn subtract(free: &mut [i64], request: &[i64], count: u32) {
    for (free, requested) in free.iter_mut().zip(request) {
        *free = free.saturating_sub(requested.saturating_mul(i64::from(count)));
    }
}

/// Offers, existing nodes and daemons of the problem.
#[derive(Clone, Copy)]
pub(super) struct PackingSupply<'a> {
    pub offers: &'a [Offer],
    /// Admission of the groups to the offers.
    pub admission: &'a OfferAdmission<'a>,
    pub existing: &'a [ExistingNode],
    pub daemons: &'a [Daemon],
}

/// Returns the classes of pods, without companions and values.
fn pod_classes(
    groups: &[PodGroup],
    assignment: &TopologyAssignment,
    admissions: &AdmissionTable,
    names: &[ResourceName],
) -> Vec<PodClass> {
    let sides = rule_sides(assignment, groups.len());
    let mut keyed: BTreeMap<ClassKey, Vec<&DomainShare>> = BTreeMap::new();
    for domain_share in &assignment.domain_shares {
        let key = ClassKey {
            requests: &groups[domain_share.group].shape.requests,
            admission_key: PodAdmissionKey::new(groups, domain_share),
            rules: sides[domain_share.group].clone(),
            together: assignment.colocated.iter().position(|set| set.contains(&domain_share.group)),
        };
        keyed.entry(key).or_default().push(domain_share);
    }
    let of_key = |(key, shares): (ClassKey, Vec<&DomainShare>)| PodClass {
        requests: resource_vector(key.requests, names),
        planned: shares
            .iter()
            .map(|domain_share| domain_share.planned)
            .fold(0, u32::saturating_add),
        admission: admissions.index_of(&key.admission_key),
        group_counts: shares
            .iter()
            .map(|domain_share| (domain_share.group, domain_share.planned))
            .collect(),
        within: key.admission_key.within.clone(),
        rules: key.rules,
        is_colocated: key.together.is_some(),
        companions: Vec::new(),
        value: 0,
    };
    keyed.into_iter().map(of_key).collect()
}

/// Returns the rules of each group, with the side of the group.
fn rule_sides(assignment: &TopologyAssignment, groups: usize) -> Vec<Vec<(usize, RuleSide)>> {
    let mut sides = vec![Vec::new(); groups];
    for (index, rule) in assignment.rules.iter().enumerate() {
        let (subjects, peers) = match rule {
            NodeRule::Cap { members, .. } => (members, &Vec::new()),
            NodeRule::AntiAffinity { subjects, peers } | NodeRule::Affinity { subjects, peers } => {
                (subjects, peers)
            }
        };
        for group in subjects {
            sides[*group].push((index, RuleSide::Subject));
        }
        for group in peers {
            sides[*group].push((index, RuleSide::Peer));
        }
    }
    sides
}

/// Sets the companions of each class. The first class of a set that shares one node brings the
/// others. The first peer of an affinity rule brings the subjects.
fn link_companions(classes: &mut [PodClass], assignment: &TopologyAssignment) {
    let of = |classes: &[PodClass], groups: &[usize]| -> Vec<usize> {
        let here = |class: &PodClass| class.groups().any(|group| groups.contains(&group));
        (0..classes.len()).filter(|class| here(&classes[*class])).collect()
    };
    for set in &assignment.colocated {
        if let [first, rest @ ..] = of(classes, set).as_slice() {
            classes[*first].companions = rest.iter().map(|c| (*c, classes[*c].planned)).collect();
        }
    }
    for rule in &assignment.rules {
        let NodeRule::Affinity { subjects, peers } = rule else { continue };
        let hosts = of(classes, peers);
        for class in of(classes, subjects) {
            let same = |host: &&usize| classes[**host].within == classes[class].within;
            let host = hosts.iter().find(same).or(hosts.first());
            let Some(host) = host.copied().filter(|host| *host != class) else { continue };
            let share = classes[class].planned.div_ceil(classes[host].planned.max(1));
            classes[host].companions.push((class, share));
        }
    }
}

fn extended_names(groups: &[PodGroup]) -> Vec<ResourceName> {
    let mut names: Vec<ResourceName> =
        groups.iter().flat_map(|group| group.shape.requests.extended.keys().cloned()).collect();
    names.sort();
    names.dedup();
    names
}

fn resource_vector(resources: &Resources, names: &[ResourceName]) -> ResourceVector {
    let plain =
        [resources.cpu.0, resources.memory.0, resources.ephemeral_storage.0, resources.pods];
    plain.into_iter().chain(names.iter().map(|name| resources.extended(name))).collect()
}

/// Groups the offers that no pod class distinguishes.
fn offer_classes(
    offers: &[Offer],
    classes: &[PodClass],
    admissions: &AdmissionTable,
    names: &[ResourceName],
) -> Vec<OfferClass> {
    let is_spot = |offer: &Offer| offer.node.capacity_type.is_spot();
    let spot_prices_known = offers.iter().any(|o| is_spot(o) && !o.node.price_estimated);
    let mut keyed: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (index, offer) in offers.iter().enumerate() {
        let node = &offer.node;
        let room = resource_vector(&offer.room, names);
        let NodeAdmission { admitted, unmet } = admissions.of_offer(index, node);
        // At the same price, Spot comes before on-demand: its unknown price is at most that. Where EC2
        // tells Spot prices, an offering without one is probably not sold, and comes after.
        let comes_first = is_spot(offer) && !(spot_prices_known && node.price_estimated);
        let capacity_type = (Reverse(comes_first), node.capacity_type);
        let kind = (&node.instance_type, capacity_type, &node.reservation);
        let key = (node.price, room, &node.pool, kind, (admitted, unmet));
        keyed.entry(key).or_default().push(index);
    }
    let mut offer_classes: Vec<OfferClass> = keyed
        .into_iter()
        .map(|((price, room, pool, (_, _, reservation), (admitted, unmet)), members)| {
            let fits =
                |class: &PodClass| admitted[class.admission] && has_room(&class.requests, &room);
            OfferClass {
                price,
                weight: offers[members[0]].weight,
                pool: pool.clone(),
                is_reserved: reservation.is_some(),
                admits: classes.iter().map(fits).collect(),
                admits_beside: Vec::new(),
                offers: members,
                preference_penalty: unmet,
                room,
            }
        })
        .collect();
    reserve_exotic(&mut offer_classes, offers);
    offer_classes
}

/// Reserves nodes with accelerators and bare metal for pods that fit on nothing else.
fn reserve_exotic(offer_classes: &mut [OfferClass], offers: &[Offer]) {
    let is_exotic = |offer_class: &OfferClass| offers[offer_class.offers[0]].has_special_hardware;
    let classes = offer_classes.first().map_or(0, |offer_class| offer_class.admits.len());
    for offer_class in offer_classes.iter_mut().filter(|c| is_exotic(c)) {
        offer_class.admits_beside.clone_from(&offer_class.admits);
    }
    for class in 0..classes {
        if offer_classes
            .iter()
            .any(|offer_class| offer_class.admits[class] && !is_exotic(offer_class))
        {
            offer_classes.iter_mut().filter(|c| is_exotic(c)).for_each(|c| c.admits[class] = false);
        }
    }
}

/// Returns the minimum cost of the dominant share of one pod, over all offer classes that admit it.
fn pod_value(index: usize, class: &PodClass, offer_classes: &[OfferClass]) -> i128 {
    let share = |offer_class: &OfferClass| {
        let parts =
            class.requests.iter().zip(&offer_class.room).filter(|(requested, _)| **requested > 0);
        let price = i128::from(offer_class.price.0) * 1000;
        parts
            .map(|(requested, room)| price * i128::from(*requested) / i128::from((*room).max(1)))
            .max()
    };
    let takes = |offer_class: &&OfferClass| offer_class.admits[index];
    // Prices of reservations say little about the price of further nodes.
    let plenty = offer_classes
        .iter()
        .filter(takes)
        .filter(|offer_class| !offer_class.is_reserved)
        .filter_map(share);
    plenty.min().or_else(|| offer_classes.iter().filter(takes).filter_map(share).min()).unwrap_or(0)
}

/// Context for converting existing nodes to bins.
struct BinBuilder<'a> {
    groups: &'a [PodGroup],
    classes: &'a [PodClass],
    admissions: &'a AdmissionTable<'a>,
    names: &'a [ResourceName],
}

impl BinBuilder<'_> {
    fn bin(&self, node: &ExistingNode) -> Bin {
        let here = |group: &PodGroup| {
            let count = group.running.get(&node.name).copied().unwrap_or(0);
            count.min(group.counts.planned)
        };
        let mut room = resource_vector(&node.room, self.names);
        for group in self.groups.iter().filter(|g| !g.shape.unsupported.is_empty()) {
            // Unsupported pods stay on their nodes.
            subtract(&mut room, &resource_vector(&group.shape.requests, self.names), here(group));
        }
        let admitted = self.admissions.of_existing(node).admitted;
        let takes = |class: &PodClass| admitted[class.admission];
        let running = |class: &PodClass| {
            let inside = is_within(&class.within, &node.labels);
            class.groups().filter(|_| inside).map(|g| here(&self.groups[g])).sum()
        };
        Bin {
            room,
            schedulable: node.schedulable,
            admits: self.classes.iter().map(takes).collect(),
            running: self.classes.iter().map(running).collect(),
            planned: self.planned_on(node),
        }
    }

    /// Returns the planned pods of the node that do not run there yet.
    fn planned_on(&self, node: &ExistingNode) -> BTreeMap<usize, u32> {
        let mut planned = BTreeMap::new();
        if node.planned_pods.is_empty() {
            return planned;
        }
        let mut left = node.planned_pods.clone();
        for (index, class) in self.classes.iter().enumerate() {
            if !is_within(&class.within, &node.labels) {
                continue;
            }
            for group in class.groups().map(|group| &self.groups[group]) {
                let Some(wanted) = left.get_mut(&workload_key(&group.workload)) else { continue };
                let running = group.running.get(&node.name).copied().unwrap_or(0);
                let count = (*wanted).min(group.counts.planned);
                *wanted -= count;
                if count > running {
                    *planned.entry(index).or_insert(0) += count - running;
                }
            }
        }
        planned
    }
}

/// Returns the undominated offer classes. Another class of the same pool dominates a class if it
/// costs no more, has no less of any resource and admits all its pods.
fn undominated(offer_classes: &[OfferClass]) -> Vec<usize> {
    let beats = |a: usize, b: usize| {
        let (x, y) = (&offer_classes[a], &offer_classes[b]);
        let holds = || x.room.iter().zip(&y.room).all(|(x, y)| x >= y);
        let covers = || {
            x.preference_penalty.iter().zip(&y.preference_penalty).all(|(x, y)| x <= y)
                && x.admits.iter().zip(&y.admits).all(|(x, y)| *x || !*y)
        };
        let equal = || {
            x.price == y.price
                && x.room == y.room
                && x.admits == y.admits
                && x.preference_penalty == y.preference_penalty
        };
        // A reservation is limited, so it dominates nothing. The cheap comparisons come first.
        let may = !x.is_reserved && x.price <= y.price && x.pool == y.pool;
        may && holds() && covers() && (a < b || !equal())
    };
    let useful = |i: &usize| offer_classes[*i].admits.contains(&true);
    let candidates: Vec<usize> = (0..offer_classes.len()).filter(useful).collect();
    // Only an offer class that costs no more can dominate, and the classes are sorted by price.
    let mut undominated: Vec<usize> = Vec::new();
    for candidate in candidates.iter().copied() {
        let same_price = candidates.iter().copied().filter(|other| {
            *other > candidate && offer_classes[*other].price == offer_classes[candidate].price
        });
        if !undominated.iter().copied().chain(same_price).any(|other| beats(other, candidate)) {
            undominated.push(candidate);
        }
    }
    undominated
}
