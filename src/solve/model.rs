//! The problem in numbers: classes of alike pods, columns of alike offers, bins that are there.
//!
//! Pods that ask for the same and may run on the same nodes are one class; offers that cost the
//! same and hold the same are one column. Work is per class and column, never per pod.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::offer::{Offer, admits};
use super::standing::Standing;
use crate::demand::{NodeChoice, PodGroup, PodShape};
use crate::ids::{Labels, PoolName};
use crate::pod::{Taint, Toleration};
use crate::units::{MicroUsd, ResourceName, Resources};

/// Resources as a plain vector: cpu, memory, ephemeral storage, pods, then extended ones.
pub(super) type Vector = Vec<i64>;

/// Alike pods of any number of workloads.
#[derive(Debug, Clone)]
pub(super) struct Class {
    /// What each pod asks for.
    pub ask: Vector,
    /// The groups whose pods these are.
    pub groups: Vec<usize>,
    /// Index of what these pods say about nodes, among the distinct choices.
    pub choice: usize,
    /// How many pods are planned.
    pub planned: u32,
    /// What a pod is worth: the least that its share of any column costs, in nano-USD per hour.
    pub worth: i128,
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
    /// Indices of the offers, in their order.
    pub offers: Vec<usize>,
    /// For each class, whether its pods may run there and one of them fits.
    pub takes: Vec<bool>,
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
    /// Classes from the most valuable pod to the least.
    pub order: Vec<usize>,
}

/// What makes pods alike.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ClassKey<'a> {
    requests: &'a Resources,
    nodes: &'a NodeChoice,
    tolerations: &'a [Toleration],
}

impl Model {
    /// Returns the problem of placing the placeable pods of `groups`.
    pub(super) fn of(groups: &[PodGroup], offers: &[Offer], standing: &[Standing]) -> Self {
        let names = extended_names(groups);
        let placeable = |(_, group): &(usize, &PodGroup)| {
            group.shape.unsupported.is_empty() && group.counts.planned > 0
        };
        let mut keyed: BTreeMap<ClassKey, Vec<usize>> = BTreeMap::new();
        for (index, group) in groups.iter().enumerate().filter(placeable) {
            let shape = &group.shape;
            let (requests, nodes, tolerations) =
                (&shape.requests, &shape.nodes, &shape.tolerations);
            keyed.entry(ClassKey { requests, nodes, tolerations }).or_default().push(index);
        }
        let members: Vec<Vec<usize>> = keyed.into_values().collect();
        let choices = Choices::of(groups, &members);
        let mut classes: Vec<Class> = members
            .into_iter()
            .map(|members| Class {
                ask: vector(&groups[members[0]].shape.requests, &names),
                planned: members
                    .iter()
                    .map(|g| groups[*g].counts.planned)
                    .fold(0, u32::saturating_add),
                choice: choices.index_of(&groups[members[0]]),
                groups: members,
                worth: 0,
            })
            .collect();
        let columns = columns(offers, &classes, &choices, &names);
        for (index, class) in classes.iter_mut().enumerate() {
            class.worth = worth(index, class, &columns);
        }
        let numbers = Numbers { groups, classes: &classes, choices: &choices, names: &names };
        let bins = standing.iter().map(|node| numbers.bin(node)).collect();
        let mut order: Vec<usize> = (0..classes.len()).collect();
        order.sort_by(|a, b| {
            let key = |i: &usize| (classes[*i].worth, &classes[*i].ask);
            key(b).cmp(&key(a)).then(a.cmp(b))
        });
        let undominated = undominated(&columns);
        Self { classes, columns, undominated, bins, order }
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

/// Takes `count` times `ask` from `free`.
pub(super) fn take(free: &mut [i64], ask: &[i64], count: u32) {
    for (free, asked) in free.iter_mut().zip(ask) {
        *free = free.saturating_sub(asked.saturating_mul(i64::from(count)));
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

/// The distinct things that pods say about nodes, each with a group that says it. Whether a node
/// admits a pod is worked out once for each of them.
struct Choices<'a> {
    index: BTreeMap<(&'a NodeChoice, &'a [Toleration]), usize>,
    shapes: Vec<&'a PodShape>,
}

impl<'a> Choices<'a> {
    fn of(groups: &'a [PodGroup], classes: &[Vec<usize>]) -> Self {
        let mut choices = Self { index: BTreeMap::new(), shapes: Vec::new() };
        for members in classes {
            let shape: &PodShape = &groups[members[0]].shape;
            let key = (&shape.nodes, shape.tolerations.as_slice());
            if let Entry::Vacant(vacant) = choices.index.entry(key) {
                vacant.insert(choices.shapes.len());
                choices.shapes.push(shape);
            }
        }
        choices
    }

    fn index_of(&self, group: &PodGroup) -> usize {
        self.index[&(&group.shape.nodes, group.shape.tolerations.as_slice())]
    }

    /// Returns, for each choice, whether a node with these labels and taints is admitted.
    fn verdicts(&self, labels: &Labels, taints: &[Taint]) -> Vec<bool> {
        self.shapes.iter().map(|shape| admits(shape, labels, taints)).collect()
    }
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
        let (room, admitted) =
            (vector(&offer.room, names), choices.verdicts(&node.labels, &node.taints));
        let key = (node.price, room, &node.pool, &node.instance_type, node.capacity_type, admitted);
        keyed.entry(key).or_default().push(index);
    }
    let mut columns: Vec<Column> = keyed
        .into_iter()
        .map(|((price, room, pool, _, _, admitted), members)| {
            let fits = |class: &Class| admitted[class.choice] && copies(&class.ask, &room, 1) == 1;
            Column {
                price,
                weight: offers[members[0]].weight,
                pool: pool.clone(),
                takes: classes.iter().map(fits).collect(),
                offers: members,
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
    columns.iter().filter(|column| column.takes[index]).filter_map(share).min().unwrap_or(0)
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
        let verdicts = self.choices.verdicts(&node.labels, &node.taints);
        let takes = |class: &Class| verdicts[class.choice];
        let running = |class: &Class| class.groups.iter().map(|g| here(&self.groups[*g])).sum();
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
        let covers = x.takes.iter().zip(&y.takes).all(|(x, y)| *x || !*y);
        let holds = x.room.iter().zip(&y.room).all(|(x, y)| x >= y);
        let equal = x.price == y.price && x.room == y.room && x.takes == y.takes;
        x.pool == y.pool && x.price <= y.price && holds && covers && (!equal || a < b)
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
