//! Rounds a fractional solution for very many pods on many nodes of few offerings.
//!
//! The fractional solution sets the number of nodes of each offering and its share of each class.
//! The nodes of an offering share its pods evenly. Pods are placed in descending size, each on the
//! node with the most room of its dominant resource. The last pods are small, so the nodes end up
//! nearly full. Pods without room remain for the next strategy.

use std::collections::{BTreeMap, BTreeSet};

use super::column_generation::FractionalSolution;
use super::empty_pattern::copies;
use super::float_conversion::{floor_to_i64, to_f64};
use super::purchase::Purchase;
use super::{BinPackingProblem, Pattern};

/// Maximum nodes tried for a pod, the nodes with the most room first.
const NODES_TRIED: usize = 32;

/// Returns the whole nodes of the fractional solution, filled evenly.
pub(super) fn round_fractional_solution(
    problem: &BinPackingProblem,
    wanted: &[u32],
    fractional: &FractionalSolution,
) -> Purchase {
    let mut purchase = Purchase::empty(wanted);
    let count = |nodes: &f64| usize::try_from(floor_to_i64(nodes + 1e-6)).unwrap_or(0);
    let counts: Vec<usize> = fractional.nodes.iter().map(count).collect();
    let quotas = quotas(problem, wanted, fractional, &counts);
    for (offering, quota) in quotas.iter().enumerate().filter(|(offering, _)| counts[*offering] > 0)
    {
        let mut nodes = UniformNodes::new(problem, offering, counts[offering]);
        nodes.distribute(quota);
        for pods in nodes.pods {
            purchase.buy(&Pattern { offering, pods: pods.into_iter().collect() }, 1);
        }
    }
    purchase
}

/// Returns the pods of each class for each offering.
fn quotas(
    problem: &BinPackingProblem,
    wanted: &[u32],
    fractional: &FractionalSolution,
    counts: &[usize],
) -> Vec<Vec<u32>> {
    let mut quotas = vec![vec![0; wanted.len()]; problem.offerings.len()];
    for (class, wanted) in wanted.iter().enumerate() {
        let usable = |(offering, _): &&(usize, f64)| {
            counts[*offering] > 0 && problem.offerings[*offering].admits[class]
        };
        let shares: Vec<&(usize, f64)> = fractional.shares[class].iter().filter(usable).collect();
        let all: f64 = shares.iter().map(|(_, share)| share).sum();
        let (mut given, mut share_so_far) = (0, 0.0);
        for (offering, share) in shares {
            share_so_far += share / all;
            let upto = floor_to_i64(f64::from(*wanted) * share_so_far + 0.5);
            let upto = u32::try_from(upto).unwrap_or(u32::MAX).min(*wanted);
            quotas[*offering][class] = upto - given;
            given = upto;
        }
    }
    quotas
}

/// Nodes of one offering.
struct UniformNodes<'a> {
    problem: &'a BinPackingProblem,
    offering: usize,
    room: Vec<Vec<i64>>,
    pods: Vec<BTreeMap<usize, u32>>,
    /// For each resource, the nodes ordered by remaining room.
    ranks: Vec<BTreeSet<(i64, usize)>>,
}

impl<'a> UniformNodes<'a> {
    fn new(problem: &'a BinPackingProblem, offering: usize, count: usize) -> Self {
        let room = &problem.offerings[offering].room;
        let rank = |room: &i64| (0..count).map(|node| (*room, node)).collect();
        Self {
            problem,
            offering,
            ranks: room.iter().map(rank).collect(),
            room: vec![room.clone(); count],
            pods: vec![BTreeMap::new(); count],
        }
    }

    fn distribute(&mut self, quota: &[u32]) {
        let sized = |class: usize| (self.dominant(class), class);
        let classes = (0..quota.len()).filter(|class| quota[*class] > 0).map(sized);
        let mut order: Vec<((f64, usize), usize)> = classes.collect();
        order.sort_by(|((a, _), x), ((b, _), y)| b.total_cmp(a).then(x.cmp(y)));
        for ((_, resource), class) in order {
            for _ in 0..quota[class] {
                if !self.place(class, resource) {
                    break;
                }
            }
        }
    }

    /// Returns the largest share of a node that a pod takes, and its resource.
    fn dominant(&self, class: usize) -> (f64, usize) {
        let (offering, demand) =
            (&self.problem.offerings[self.offering], &self.problem.classes[class]);
        let share = |(request, room): (&i64, &i64)| to_f64(*request) / to_f64((*room).max(1));
        let shares = demand.requests.iter().zip(&offering.room).map(share).zip(0..);
        shares.fold((0.0, 0), |best, this| if this.0 > best.0 { this } else { best })
    }

    /// Places one pod on the node with the most room of `resource`. Returns false if no node has
    /// room.
    fn place(&mut self, class: usize, resource: usize) -> bool {
        let request = &self.problem.classes[class].requests;
        let fits = |node: &usize| {
            copies(request, &self.room[*node], 1) == 1 && self.is_within_caps(*node, class)
        };
        let most_left = self.ranks[resource].iter().rev().map(|(_, node)| *node);
        let Some(node) = most_left.take(NODES_TRIED).find(fits) else { return false };
        for (resource, request) in request.iter().enumerate().filter(|(_, request)| **request > 0) {
            let room = &mut self.room[node][resource];
            self.ranks[resource].remove(&(*room, node));
            *room -= request;
            self.ranks[resource].insert((*room, node));
        }
        *self.pods[node].entry(class).or_insert(0) += 1;
        true
    }

    fn is_within_caps(&self, node: usize, class: usize) -> bool {
        self.problem.caps_of_class[class].iter().all(|cap| {
            let cap = &self.problem.caps[*cap];
            let here = cap.members.iter().filter_map(|member| self.pods[node].get(member));
            here.sum::<u32>() < cap.max_pods
        })
    }
}
