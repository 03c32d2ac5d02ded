//! Which launches take the pods of which nodes that go: rows that belong together.

use std::collections::BTreeMap;

use super::rehearse::Placements;
use super::standing::{Fate, Standing};
use super::target::{Launch, LaunchReason, Place, RetireReason};
use crate::demand::PodGroup;
use crate::ids::NodeName;
use crate::units::MicroUsd;

/// Nodes that go and nodes that come because of them.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    /// What it saves per hour; below zero where it also makes room for more pods.
    pub saves: MicroUsd,
    /// Running pods that it moves.
    pub moves: u32,
    /// A node of it that goes whatever it saves, and why.
    pub leaving: Option<(NodeName, RetireReason)>,
}

/// The exchanges of a target.
#[derive(Debug, Default)]
pub(super) struct Exchanges {
    /// The exchanges, in the order of the first node that goes.
    pub list: Vec<Exchange>,
    /// Exchange of each standing node that goes, where it belongs to one.
    pub of_node: BTreeMap<usize, usize>,
    /// Exchange of each launch, where it belongs to one.
    pub of_launch: BTreeMap<usize, usize>,
}

/// What exchanges are worked out from.
pub(super) struct Changes<'a> {
    pub standing: &'a [Standing],
    pub kept: &'a [bool],
    pub groups: &'a [PodGroup],
    pub placements: &'a Placements,
    pub launches: &'a [Launch],
}

impl Changes<'_> {
    /// Joins every node that goes with the launches on which pods of its workloads are placed.
    pub(super) fn exchanges(&self) -> Exchanges {
        let nodes = self.standing.len();
        let mut sets: Vec<usize> = (0..nodes + self.launches.len()).collect();
        for (index, node) in self.leavers() {
            for group in self.moved_groups(&node.name) {
                for launch in self.launches_of(group) {
                    join(&mut sets, index, nodes + launch);
                }
            }
            for (launch, _) in self.replacements_of(node) {
                join(&mut sets, index, nodes + launch);
            }
        }
        let mut exchanges = Exchanges::default();
        let mut known: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, node) in self.leavers() {
            let root = find(&sets, index);
            let launches: Vec<usize> =
                (0..self.launches.len()).filter(|l| find(&sets, nodes + l) == root).collect();
            if launches.is_empty() {
                continue;
            }
            let exchange = *known.entry(root).or_insert_with(|| {
                let at = exchanges.list.len();
                let price: MicroUsd = launches.iter().map(|l| self.launches[*l].node.price).sum();
                exchanges.of_launch.extend(launches.iter().map(|launch| (*launch, at)));
                exchanges.list.push(Exchange { saves: -price, moves: 0, leaving: None });
                at
            });
            exchanges.of_node.insert(index, exchange);
            let exchange = &mut exchanges.list[exchange];
            exchange.saves += node.price.unwrap_or_default();
            if let (Fate::Leaves(reason), None) = (&node.fate, &exchange.leaving) {
                exchange.leaving = Some((node.name.clone(), reason.clone()));
            }
        }
        for (index, exchange) in exchanges.list.iter_mut().enumerate() {
            let of = |(node, of): (&usize, &usize)| (*of == index).then_some(*node);
            let nodes: Vec<usize> = exchanges.of_node.iter().filter_map(of).collect();
            exchange.moves = self.moved(&nodes);
        }
        exchanges
    }

    /// Returns how many running pods move when these nodes go: those that are planned at all, and
    /// do not stay on nodes that are kept.
    pub(super) fn moved(&self, nodes: &[usize]) -> u32 {
        let names: Vec<&NodeName> = nodes.iter().map(|node| &self.standing[*node].name).collect();
        let of_group = |(index, group): (usize, &PodGroup)| -> u32 {
            let here: u32 = names.iter().filter_map(|name| group.running.get(*name)).sum();
            let places = self.placements.get(&index).into_iter().flatten();
            let stays = places.map(|(place, count)| match place {
                Place::Node(name) => group.running.get(name).copied().unwrap_or(0).min(*count),
                Place::Launch(_) => 0,
            });
            here.min(group.counts.planned.saturating_sub(stays.sum()))
        };
        self.groups.iter().enumerate().map(of_group).sum()
    }

    fn leavers(&self) -> impl Iterator<Item = (usize, &Standing)> {
        self.standing.iter().enumerate().filter(|(index, _)| !self.kept[*index])
    }

    /// Groups that run on the node and stay planned, by index.
    fn moved_groups(&self, name: &NodeName) -> impl Iterator<Item = usize> {
        let here = |group: &PodGroup| group.counts.planned > 0 && group.running.contains_key(name);
        self.groups.iter().enumerate().filter(move |(_, group)| here(group)).map(|(index, _)| index)
    }

    fn launches_of(&self, group: usize) -> impl Iterator<Item = usize> {
        let places = self.placements.get(&group).into_iter().flat_map(BTreeMap::keys);
        // Pools of a fixed size launch whatever pods do: what goes is not exchanged for their nodes.
        places.filter_map(|place| match place {
            Place::Launch(index) => Some(*index).filter(|i| !self.launches[*i].is_fixed()),
            Place::Node(_) => None,
        })
    }

    /// Launches that were decided on to replace this very node.
    fn replacements_of(&self, node: &Standing) -> impl Iterator<Item = (usize, &Launch)> {
        let launches = self.launches.iter().enumerate();
        launches.filter(|(_, launch)| match &launch.reason {
            LaunchReason::Replacement { of, .. } => of.as_str() == node.name.as_str(),
            LaunchReason::Demand { .. }
            | LaunchReason::Consolidation { .. }
            | LaunchReason::Static { .. } => false,
        })
    }
}

fn find(sets: &[usize], mut element: usize) -> usize {
    while sets[element] != element {
        element = sets[element];
    }
    element
}

fn join(sets: &mut [usize], a: usize, b: usize) {
    let (a, b) = (find(sets, a), find(sets, b));
    sets[a.max(b)] = a.min(b);
}
