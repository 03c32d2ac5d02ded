//! Workloads whose pods differ: the counts on nodes can be dealt out to the parts.
//!
//! A plan says how many pods of a workload a node has, not which. Where volumes of their own bind
//! some pods to some nodes, there must be a way to say which: each pod of a part is on a node that
//! admits it, or on the one it runs on, and no part has more pods than are planned. That is a flow
//! from nodes to parts; if the greatest flow is less than the pods placed, some pod is where it
//! cannot be.

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use super::case::Case;
use super::fit::refusal;
use super::state::{Crowd, CrowdKind, EndState, Site};
use crate::demand::{Part, PodGroup};
use crate::ids::Address;

pub(super) fn check(case: &Case<'_>, state: &EndState<'_>, verdict: &mut Verdict) {
    for crowd in state.crowds.iter().filter(|crowd| crowd.kind == CrowdKind::Placed) {
        let Some(group) = case.groups.get(&crowd.name).filter(|group| !group.parts.is_empty())
        else {
            continue;
        };
        if let Some((site, pods)) = left_over((state, crowd), group, |part, site| {
            room(&group.parts[part], &state.sites[site])
        }) {
            let fault = format!(
                "{} has {pods} pods here and on nodes like this one, and some of them are of no \
                 part of it that may be there",
                crowd.name
            );
            verdict.row("fit/parts", site.row.address, fault);
        }
    }
}

/// Returns the first node that has pods of no part, and how many pods it and nodes like it have.
///
/// `room` tells how many pods of a part a site may have at most.
fn left_over<'a>(
    (state, crowd): (&'a EndState<'a>, &Crowd),
    group: &PodGroup,
    room: impl Fn(usize, usize) -> u32,
) -> Option<(&'a Site<'a>, u32)> {
    let on = crowd.on.iter().map(|(site, pods)| {
        let rooms = (0..group.parts.len()).map(|part| room(part, *site)).collect();
        (&state.sites[*site], pods.all(), rooms)
    });
    Deal::new(group, on).left_over()
}

/// Returns the address of a launch whose stand-ins leave pods without a part, and how many: for
/// each launch of `only` the parts that may be there whichever machine comes.
///
/// Which part a pod is of does not depend on what comes, so that one deal must do for all of them,
/// in whatever combination they come.
pub(super) fn torn<'a>(
    (state, crowd): (&'a EndState<'a>, &Crowd),
    group: &PodGroup,
    only: &BTreeMap<usize, BTreeSet<usize>>,
) -> Option<(&'a Address, u32)> {
    let room = |part: usize, site: usize| match only.get(&site) {
        Some(parts) if parts.contains(&part) => u32::MAX,
        Some(_) => 0,
        None => room(&group.parts[part], &state.sites[site]),
    };
    left_over((state, crowd), group, room).map(|(site, pods)| (site.row.address, pods))
}

/// How many pods of each part are on each kind of node.
struct Deal<'a> {
    /// Nodes that are alike to every part, with the first of them and their pods.
    nodes: Vec<(&'a Site<'a>, u32, Vec<u32>)>,
    /// How many pods of each part have no node yet.
    spare: Vec<u32>,
    /// Pods dealt, by nodes and part.
    dealt: Vec<Vec<u32>>,
}

impl<'a> Deal<'a> {
    fn new(group: &PodGroup, on: impl Iterator<Item = (&'a Site<'a>, u32, Vec<u32>)>) -> Self {
        let mut alike: BTreeMap<Vec<u32>, (&Site<'_>, u32)> = BTreeMap::new();
        let mut nodes = Vec::new();
        for (site, pods, room) in on {
            // Limits of a node's own bind it alone; only nodes without any may be put together.
            if room.iter().all(|most| *most == 0 || *most == u32::MAX) {
                let entry = alike.entry(room).or_insert((site, 0));
                entry.1 = entry.1.saturating_add(pods);
            } else {
                nodes.push((site, pods, room));
            }
        }
        nodes.extend(alike.into_iter().map(|(room, (site, pods))| (site, pods, room)));
        let spare: Vec<u32> = group.parts.iter().map(|part| part.planned).collect();
        let dealt = vec![vec![0; spare.len()]; nodes.len()];
        Self { nodes, spare, dealt }
    }

    /// Deals as many pods as can be dealt; returns the first nodes with pods left, and how many
    /// pods these have in all.
    fn left_over(&mut self) -> Option<(&'a Site<'a>, u32)> {
        for node in 0..self.nodes.len() {
            let (site, pods, _) = self.nodes[node];
            let mut left = pods;
            while left > 0 {
                match self.augment(node, left) {
                    0 => return Some((site, pods)),
                    dealt => left -= dealt,
                }
            }
        }
        None
    }

    /// Finds a part with spare pods, through parts whose pods can be on other nodes instead, and
    /// deals at most `wanted`; returns how many.
    fn augment(&mut self, start: usize, wanted: u32) -> u32 {
        // The node from which each part was reached, and the part from which each node was.
        let mut parts: BTreeMap<usize, usize> = BTreeMap::new();
        let mut nodes: BTreeMap<usize, usize> = BTreeMap::new();
        let mut queue = vec![start];
        let mut next = 0;
        while let Some(node) = queue.get(next).copied() {
            next += 1;
            for part in 0..self.spare.len() {
                let free = self.nodes[node].2[part] > self.dealt[node][part];
                if !free || parts.contains_key(&part) {
                    continue;
                }
                parts.insert(part, node);
                if self.spare[part] > 0 {
                    return self.shift(start, part, wanted, (&parts, &nodes));
                }
                for other in 0..self.nodes.len() {
                    let holds = self.dealt[other][part] > 0;
                    if holds && other != start && !nodes.contains_key(&other) {
                        nodes.insert(other, part);
                        queue.push(other);
                    }
                }
            }
        }
        0
    }

    /// Moves pods along the path found, as many as every step of it allows.
    fn shift(
        &mut self,
        start: usize,
        end: usize,
        wanted: u32,
        (parts, nodes): (&BTreeMap<usize, usize>, &BTreeMap<usize, usize>),
    ) -> u32 {
        let mut steps = Vec::new();
        let (mut part, mut amount) = (end, wanted.min(self.spare[end]));
        loop {
            let node = parts[&part];
            amount = amount.min(self.nodes[node].2[part] - self.dealt[node][part]);
            steps.push((node, part, nodes.get(&node).copied()));
            if node == start {
                break;
            }
            let from = nodes[&node];
            amount = amount.min(self.dealt[node][from]);
            part = from;
        }
        self.spare[end] -= amount;
        for (node, part, from) in steps {
            self.dealt[node][part] += amount;
            if let Some(from) = from.filter(|_| node != start) {
                self.dealt[node][from] -= amount;
            }
        }
        amount
    }
}

/// Returns the most pods of `part` that may be on `site`: without limit where it is admitted, else
/// those that run there.
fn room(part: &Part, site: &Site<'_>) -> u32 {
    if refusal(&part.shape, &site.spot()).is_none() {
        return u32::MAX;
    }
    site.name.and_then(|name| part.running.get(name)).copied().unwrap_or(0)
}

/// Returns the parts of `group` that a spot admits, by their numbers.
pub(super) fn admitted(group: &PodGroup, spot: &super::fit::Spot<'_>) -> BTreeSet<usize> {
    let parts = group.parts.iter().enumerate();
    parts.filter(|(_, part)| refusal(&part.shape, spot).is_none()).map(|(index, _)| index).collect()
}
