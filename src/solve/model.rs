//! The problem in numbers: classes of alike pods, columns of alike offers, bins that are there.
//!
//! Pods that ask for the same and may run on the same nodes are one class; offers that cost the
//! same and hold the same are one column. Work is per class and column, never per pod.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::allot::{Allotment, Lot, NodeRule, lies_within, ports_clash};
use super::offer::{Offer, admits, admits_daemon};
use super::standing::Standing;
use crate::demand::{Daemon, NodeChoice, PodGroup, PodShape};
use crate::ids::{Labels, PoolName};
use crate::pod::{HostPort, Taint, TaintEffect, Toleration};
use crate::requirement::Requirements;
use crate::units::{MicroUsd, ResourceName, Resources};

/// Resources as a plain vector: cpu, memory, ephemeral storage, pods, then extended ones.
pub(super) type Vector = Vec<i64>;

/// Alike pods of any number of workloads.
#[derive(Debug, Clone)]
pub(super) struct Class {
    /// What each pod asks for.
    pub ask: Vector,
    /// How many pods of which group these are.
    pub lots: Vec<(usize, u32)>,
    /// The domains that they go to.
    pub within: Requirements,
    /// The rules about one node that concern them, each with the side that they are on.
    pub rules: Vec<(usize, Side)>,
    /// Whether all of them go to one node.
    pub whole: bool,
    /// Classes of which so many pods go wherever one of these goes.
    pub brings: Vec<(usize, u32)>,
    /// Index of what these pods say about nodes, among the distinct choices.
    pub choice: usize,
    /// How many pods are planned.
    pub planned: u32,
    /// What a pod is worth: the least that its share of any column costs, in nano-USD per hour.
    pub worth: i128,
}

/// The side of a rule that a class is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    /// Its members, or the ones of its two sets.
    Ones,
    /// The others.
    Others,
}

impl Class {
    /// The groups whose pods these are.
    pub(super) fn groups(&self) -> impl Iterator<Item = usize> {
        self.lots.iter().map(|(group, _)| *group)
    }

    /// Returns whether its pods come to a node without others that have to come as well.
    pub(super) fn is_single(&self) -> bool {
        !self.whole && self.brings.is_empty()
    }

    /// Returns whether nothing but room decides how many of its pods a node takes.
    pub(super) fn is_plain(&self) -> bool {
        self.rules.is_empty() && self.is_single()
    }
}

/// Alike offers.
#[derive(Debug, Clone)]
pub(super) struct Column {
    /// Price per hour.
    pub price: MicroUsd,
    /// What a node holds.
    pub room: Vector,
    /// Weight of the pool.
    pub weight: u32,
    /// Pool.
    pub pool: PoolName,
    /// Whether there are only so many (a capacity reservation).
    pub scarce: bool,
    /// Indices of the offers, in their order.
    pub offers: Vec<usize>,
    /// For each class, whether its pods may run there and one of them fits.
    pub takes: Vec<bool>,
    /// For each choice, the weight of what its pods would rather have, in percent of their worth.
    pub unmet: Vec<u32>,
}

/// A node that is there, in numbers.
#[derive(Debug, Clone)]
pub(super) struct Bin {
    /// What is left for pods that are not yet placed on it.
    pub room: Vector,
    /// For each class, whether its pods may run there.
    pub takes: Vec<bool>,
    /// Whether new pods may be placed there.
    pub open: bool,
    /// For each class, how many planned pods run there now.
    pub running: Vec<u32>,
}

/// The problem.
#[derive(Debug)]
pub(super) struct Model {
    pub classes: Vec<Class>,
    pub columns: Vec<Column>,
    /// Columns that no other column beats in everything, cheapest first.
    pub undominated: Vec<usize>,
    pub bins: Vec<Bin>,
    /// What may share a node.
    pub rules: Vec<NodeRule>,
    /// Whether some column leaves a wish of some pod unmet.
    pub has_wishes: bool,
    /// Classes whose pods come with others, the most valuable first.
    pub in_company: Vec<usize>,
    /// For each offer, its column.
    pub of_offer: Vec<usize>,
    /// For each group, the classes of its pods.
    pub of_group: Vec<Vec<usize>>,
    /// Classes from the most valuable pod to the least.
    pub order: Vec<usize>,
}

/// What makes pods alike.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ClassKey<'a> {
    requests: &'a Resources,
    saying: Saying<'a>,
    rules: Vec<(usize, Side)>,
    /// The set of groups that go to one node together.
    together: Option<usize>,
}

impl Model {
    /// Returns the problem of placing the placeable pods of `groups`, in the lots of `allotment`.
    pub(super) fn of(groups: &[PodGroup], allotment: &Allotment, supply: Supply) -> Self {
        let names = extended_names(groups);
        let sides = sides(allotment, groups.len());
        let mut keyed: BTreeMap<ClassKey, Vec<&Lot>> = BTreeMap::new();
        for lot in &allotment.lots {
            let key = ClassKey {
                requests: &groups[lot.group].shape.requests,
                saying: Saying::of(groups, lot),
                rules: sides[lot.group].clone(),
                together: allotment.together.iter().position(|set| set.contains(&lot.group)),
            };
            keyed.entry(key).or_default().push(lot);
        }
        let choices = Choices::of(groups, &allotment.lots, supply.daemons);
        let of_key = |(key, lots): (ClassKey, Vec<&Lot>)| Class {
            ask: vector(key.requests, &names),
            planned: lots.iter().map(|lot| lot.planned).fold(0, u32::saturating_add),
            choice: choices.index[&key.saying],
            lots: lots.iter().map(|lot| (lot.group, lot.planned)).collect(),
            within: key.saying.within.clone(),
            rules: key.rules,
            whole: key.together.is_some(),
            brings: Vec::new(),
            worth: 0,
        };
        let mut classes: Vec<Class> = keyed.into_iter().map(of_key).collect();
        bring_along(&mut classes, allotment);
        let columns = columns(supply.offers, &classes, &choices, &names);
        // Pods that ask for the same of the same nodes are worth the same.
        let mut known: BTreeMap<(Vector, usize), i128> = BTreeMap::new();
        for (index, class) in classes.iter_mut().enumerate() {
            let key = (class.ask.clone(), class.choice);
            class.worth = *known.entry(key).or_insert_with(|| worth(index, class, &columns));
        }
        let numbers = Numbers { groups, classes: &classes, choices: &choices, names: &names };
        let bins = supply.standing.iter().map(|node| numbers.bin(node)).collect();
        let mut order: Vec<usize> = (0..classes.len()).collect();
        order.sort_by(|a, b| {
            let key = |i: &usize| (classes[*i].worth, &classes[*i].ask);
            key(b).cmp(&key(a)).then(a.cmp(b))
        });
        let undominated = undominated(&columns);
        let has_wishes = columns.iter().any(|column| column.unmet.iter().any(|unmet| *unmet > 0));
        let mut of_group = vec![Vec::new(); groups.len()];
        for (index, class) in classes.iter().enumerate() {
            class.groups().for_each(|group| of_group[group].push(index));
        }
        let in_company = order.iter().copied().filter(|c| !classes[*c].is_single()).collect();
        let mut of_offer = vec![0; supply.offers.len()];
        for (index, column) in columns.iter().enumerate() {
            column.offers.iter().for_each(|offer| of_offer[*offer] = index);
        }
        let rules = allotment.rules.clone();
        Self {
            classes,
            columns,
            undominated,
            bins,
            rules,
            has_wishes,
            in_company,
            of_offer,
            of_group,
            order,
        }
    }

    /// Returns the class that pods of `group` on a node with these labels belong to.
    pub(super) fn class_of(&self, group: usize, labels: &Labels) -> Option<usize> {
        let classes = self.of_group[group].iter().copied();
        classes.into_iter().find(|class| lies_within(&self.classes[*class].within, labels))
    }

    /// Returns what a node of `column` costs per hour, in nano-USD, with what it costs to go
    /// against the wishes of its pods.
    pub(super) fn outlay(&self, column: usize, pods: &BTreeMap<usize, u32>) -> i128 {
        let column = &self.columns[column];
        let price = i128::from(column.price.0) * 1000;
        if !self.has_wishes {
            return price;
        }
        let cost = |(class, count): (&usize, &u32)| {
            let class = &self.classes[*class];
            class.worth * i128::from(*count) * i128::from(column.unmet[class.choice]) / 100
        };
        price + pods.iter().map(cost).sum::<i128>()
    }

    /// Returns how many pods of `class` fit into `free`, at most `limit`.
    pub(super) fn copies(&self, class: usize, free: &[i64], limit: u32) -> u32 {
        copies(&self.classes[class].ask, free, limit)
    }
}

/// Returns how many times `ask` fits into `free`, at most `limit`.
pub(super) fn copies(ask: &[i64], free: &[i64], limit: u32) -> u32 {
    let mut fits = i64::from(limit);
    for (asked, free) in ask.iter().zip(free) {
        if *asked > 0 {
            fits = fits.min((*free).max(0) / asked);
        }
    }
    u32::try_from(fits).unwrap_or(limit)
}

/// Returns whether `ask` fits into `free`.
fn has_room(ask: &[i64], free: &[i64]) -> bool {
    ask.iter().zip(free).all(|(asked, free)| *asked <= 0 || asked <= free)
}

/// Takes `count` times `ask` from `free`.
pub(super) fn take(free: &mut [i64], ask: &[i64], count: u32) {
    for (free, asked) in free.iter_mut().zip(ask) {
        *free = free.saturating_sub(asked.saturating_mul(i64::from(count)));
    }
}

/// What there is and can be had.
#[derive(Clone, Copy)]
pub(super) struct Supply<'a> {
    pub offers: &'a [Offer],
    pub standing: &'a [Standing],
    pub daemons: &'a [Daemon],
}

/// Returns, for each group, the rules that concern it.
fn sides(allotment: &Allotment, groups: usize) -> Vec<Vec<(usize, Side)>> {
    let mut sides = vec![Vec::new(); groups];
    for (index, rule) in allotment.rules.iter().enumerate() {
        let (ones, others) = match rule {
            NodeRule::Cap { members, .. } => (members, &Vec::new()),
            NodeRule::Apart { ones, others } | NodeRule::Near { ones, others } => (ones, others),
        };
        for group in ones {
            sides[*group].push((index, Side::Ones));
        }
        for group in others {
            sides[*group].push((index, Side::Others));
        }
    }
    sides
}

/// Says which pods come along with which: the rest of a set that shares one node with the first of
/// it, and those that must be near others with the first of these.
fn bring_along(classes: &mut [Class], allotment: &Allotment) {
    let of = |classes: &[Class], groups: &[usize]| -> Vec<usize> {
        let here = |class: &Class| class.groups().any(|group| groups.contains(&group));
        (0..classes.len()).filter(|class| here(&classes[*class])).collect()
    };
    for set in &allotment.together {
        if let [first, rest @ ..] = of(classes, set).as_slice() {
            classes[*first].brings = rest.iter().map(|c| (*c, classes[*c].planned)).collect();
        }
    }
    for rule in &allotment.rules {
        let NodeRule::Near { ones, others } = rule else { continue };
        let hosts = of(classes, others);
        for class in of(classes, ones) {
            let same = |host: &&usize| classes[**host].within == classes[class].within;
            let host = hosts.iter().find(same).or(hosts.first());
            let Some(host) = host.copied().filter(|host| *host != class) else { continue };
            let share = classes[class].planned.div_ceil(classes[host].planned.max(1));
            classes[host].brings.push((class, share));
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

fn vector(resources: &Resources, names: &[ResourceName]) -> Vector {
    let plain =
        [resources.cpu.0, resources.memory.0, resources.ephemeral_storage.0, resources.pods];
    plain.into_iter().chain(names.iter().map(|name| resources.extended(name))).collect()
}

/// What pods say about nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Saying<'a> {
    nodes: &'a NodeChoice,
    tolerations: &'a [Toleration],
    ports: &'a [HostPort],
    within: &'a Requirements,
}

impl<'a> Saying<'a> {
    fn of(groups: &'a [PodGroup], lot: &'a Lot) -> Self {
        let shape: &PodShape = &groups[lot.group].shape;
        let (nodes, tolerations) = (&shape.nodes, shape.tolerations.as_slice());
        Self { nodes, tolerations, ports: &shape.host_ports, within: &lot.within }
    }
}

/// The distinct things that pods say about nodes, each with a shape that says it. Whether a node
/// admits a pod is worked out once for each of them.
struct Choices<'a> {
    index: BTreeMap<Saying<'a>, usize>,
    shapes: Vec<(&'a PodShape, &'a Requirements)>,
    daemons: &'a [Daemon],
}

/// What a node is to each choice.
struct Verdicts {
    admitted: Vec<bool>,
    /// Percent of a pod's worth that its unmet wishes weigh.
    unmet: Vec<u32>,
}

impl<'a> Choices<'a> {
    fn of(groups: &'a [PodGroup], lots: &'a [Lot], daemons: &'a [Daemon]) -> Self {
        let mut choices = Self { index: BTreeMap::new(), shapes: Vec::new(), daemons };
        for lot in lots {
            if let Entry::Vacant(vacant) = choices.index.entry(Saying::of(groups, lot)) {
                vacant.insert(choices.shapes.len());
                choices.shapes.push((&groups[lot.group].shape, &lot.within));
            }
        }
        choices
    }

    /// Returns what a node with these labels and taints is to each choice.
    fn verdicts(&self, labels: &Labels, taints: &[Taint]) -> Verdicts {
        let binds = |daemon: &&Daemon| !daemon.shape.host_ports.is_empty();
        let here = self.daemons.iter().filter(binds).filter(|d| admits_daemon(d, labels, taints));
        let taken: Vec<&HostPort> = here.flat_map(|daemon| &daemon.shape.host_ports).collect();
        let admitted = |(shape, within): &(&PodShape, &Requirements)| {
            let clash = |port: &HostPort| taken.iter().any(|taken| ports_clash(port, taken));
            lies_within(within, labels)
                && admits(shape, labels, taints)
                && !shape.host_ports.iter().any(clash)
        };
        let unmet = |(shape, _): &(&PodShape, &Requirements)| unmet(shape, labels, taints);
        Verdicts {
            admitted: self.shapes.iter().map(admitted).collect(),
            unmet: self.shapes.iter().map(unmet).collect(),
        }
    }
}

/// Percent of a pod's worth that it costs to put it on such a node against its wishes.
///
/// A wish of weight 1 to 100 is worth as many percent of what the pod costs, each wish alone: one
/// that no node meets must not hide the others. A `PreferNoSchedule` taint that is not tolerated
/// weighs 100.
fn unmet(shape: &PodShape, labels: &Labels, taints: &[Taint]) -> u32 {
    let wishes = shape.nodes.preferred.iter();
    let unmet = wishes.filter(|(_, wish)| !wish.match_labels(labels));
    let weights = unmet.map(|(weight, _)| u32::try_from(*weight).unwrap_or(0));
    let weight = weights.fold(0, u32::saturating_add);
    let soft = taints.iter().filter(|taint| taint.effect == TaintEffect::PreferNoSchedule);
    let borne = |taint: &&Taint| shape.tolerations.iter().any(|t| t.tolerates(taint));
    let shunned = soft.into_iter().any(|taint| !borne(&taint));
    weight.saturating_add(if shunned { 100 } else { 0 })
}

/// Groups offers that no class tells apart.
fn columns(
    offers: &[Offer],
    classes: &[Class],
    choices: &Choices,
    names: &[ResourceName],
) -> Vec<Column> {
    let mut keyed: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (index, offer) in offers.iter().enumerate() {
        let node = &offer.node;
        let room = vector(&offer.room, names);
        let Verdicts { admitted, unmet } = choices.verdicts(&node.labels, &node.taints);
        let kind = (&node.instance_type, node.capacity_type, &node.reservation);
        let key = (node.price, room, &node.pool, kind, (admitted, unmet));
        keyed.entry(key).or_default().push(index);
    }
    let mut columns: Vec<Column> = keyed
        .into_iter()
        .map(|((price, room, pool, (_, _, reservation), (admitted, unmet)), members)| {
            let fits = |class: &Class| admitted[class.choice] && has_room(&class.ask, &room);
            Column {
                price,
                weight: offers[members[0]].weight,
                pool: pool.clone(),
                scarce: reservation.is_some(),
                takes: classes.iter().map(fits).collect(),
                offers: members,
                unmet,
                room,
            }
        })
        .collect();
    reserve_exotic(&mut columns, offers);
    columns
}

/// Keeps machines with accelerators, and bare metal, for pods that fit on nothing else.
fn reserve_exotic(columns: &mut [Column], offers: &[Offer]) {
    let is_exotic = |column: &Column| offers[column.offers[0]].exotic;
    let classes = columns.first().map_or(0, |column| column.takes.len());
    for class in 0..classes {
        if columns.iter().any(|column| column.takes[class] && !is_exotic(column)) {
            columns.iter_mut().filter(|c| is_exotic(c)).for_each(|c| c.takes[class] = false);
        }
    }
}

/// The least that the dominant share of one pod costs on any column that takes it.
fn worth(index: usize, class: &Class, columns: &[Column]) -> i128 {
    let share = |column: &Column| {
        let parts = class.ask.iter().zip(&column.room).filter(|(asked, _)| **asked > 0);
        let price = i128::from(column.price.0) * 1000;
        parts.map(|(asked, room)| price * i128::from(*asked) / i128::from((*room).max(1))).max()
    };
    let takes = |column: &&Column| column.takes[index];
    // What there is only so much of says little about what the rest will cost.
    let plenty = columns.iter().filter(takes).filter(|column| !column.scarce).filter_map(share);
    plenty.min().or_else(|| columns.iter().filter(takes).filter_map(share).min()).unwrap_or(0)
}

/// What is needed to put a standing node in numbers.
struct Numbers<'a> {
    groups: &'a [PodGroup],
    classes: &'a [Class],
    choices: &'a Choices<'a>,
    names: &'a [ResourceName],
}

impl Numbers<'_> {
    fn bin(&self, node: &Standing) -> Bin {
        let here = |group: &PodGroup| {
            let count = group.running.get(&node.name).copied().unwrap_or(0);
            count.min(group.counts.planned)
        };
        let mut room = vector(&node.room, self.names);
        for group in self.groups.iter().filter(|g| !g.shape.unsupported.is_empty()) {
            // Such pods stay where they are.
            take(&mut room, &vector(&group.shape.requests, self.names), here(group));
        }
        let admitted = self.choices.verdicts(&node.labels, &node.taints).admitted;
        let takes = |class: &Class| admitted[class.choice];
        let running = |class: &Class| {
            let inside = lies_within(&class.within, &node.labels);
            class.groups().filter(|_| inside).map(|g| here(&self.groups[g])).sum()
        };
        Bin {
            room,
            open: node.schedulable,
            takes: self.classes.iter().map(takes).collect(),
            running: self.classes.iter().map(running).collect(),
        }
    }
}

/// Returns the columns worth opening: a column goes if another of the same pool costs no more,
/// holds no less in any resource, and takes every class it takes.
fn undominated(columns: &[Column]) -> Vec<usize> {
    let beats = |a: usize, b: usize| {
        let (x, y) = (&columns[a], &columns[b]);
        let holds = || x.room.iter().zip(&y.room).all(|(x, y)| x >= y);
        let covers = || {
            x.unmet.iter().zip(&y.unmet).all(|(x, y)| x <= y)
                && x.takes.iter().zip(&y.takes).all(|(x, y)| *x || !*y)
        };
        let equal =
            || x.price == y.price && x.room == y.room && x.takes == y.takes && x.unmet == y.unmet;
        // What there is only so much of leaves room for others; what is quick to see comes first.
        let may = !x.scarce && x.price <= y.price && x.pool == y.pool;
        may && holds() && covers() && (a < b || !equal())
    };
    let useful = |i: &usize| columns[*i].takes.contains(&true);
    let candidates: Vec<usize> = (0..columns.len()).filter(useful).collect();
    // Only a column that costs no more can beat another, and columns are sorted by price.
    let mut kept: Vec<usize> = Vec::new();
    for candidate in candidates.iter().copied() {
        let same_price = candidates.iter().copied().filter(|other| {
            *other > candidate && columns[*other].price == columns[candidate].price
        });
        if !kept.iter().copied().chain(same_price).any(|other| beats(other, candidate)) {
            kept.push(candidate);
        }
    }
    kept
}
