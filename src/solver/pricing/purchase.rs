//! A list of bought nodes, and the pods that remain without a node.

use super::empty_pattern::copies;
use super::{BinPackingProblem, NodeOffering, Pattern};

/// Bought nodes and remaining pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::solver) struct Purchase {
    /// Pairs of pattern and number of nodes.
    pub nodes: Vec<(Pattern, u32)>,
    /// Remaining pods by class.
    pub left: Vec<u32>,
}

impl Purchase {
    /// Returns a purchase without nodes for `wanted` pods by class.
    pub(super) fn empty(wanted: &[u32]) -> Self {
        Self { nodes: Vec::new(), left: wanted.to_vec() }
    }

    /// Returns the price per hour in micro-USD.
    pub(super) fn price(&self, problem: &BinPackingProblem) -> i64 {
        self.nodes
            .iter()
            .map(|(node, count)| {
                problem.offerings[node.offering].price.saturating_mul(i64::from(*count))
            })
            .fold(0, i64::saturating_add)
    }

    /// Returns the number of remaining pods.
    pub(super) fn left_over(&self) -> u64 {
        self.left.iter().map(|count| u64::from(*count)).sum()
    }

    /// Buys up to `most` nodes while the remaining pods fill the pattern. If they never do, it buys
    /// one node with a part of the pattern. Returns true if it buys a node.
    pub(super) fn buy(&mut self, node: &Pattern, most: u32) -> bool {
        let fits = |(class, count): &(usize, u32)| self.left[*class] / (*count).max(1);
        let whole = node.pods.iter().map(fits).min().unwrap_or(0).min(most);
        let (node, count) = if whole > 0 {
            (node.clone(), whole)
        } else {
            let some = node.pods.iter().map(|(class, n)| (*class, (*n).min(self.left[*class])));
            let pods: Vec<(usize, u32)> = some.filter(|(_, count)| *count > 0).collect();
            (Pattern { offering: node.offering, pods }, most.min(1))
        };
        if node.pods.is_empty() || count == 0 {
            return false;
        }
        for (class, pods) in &node.pods {
            self.left[*class] -= pods * count;
        }
        self.nodes.push((node, count));
        true
    }

    /// Appends a purchase for the remaining pods.
    pub(super) fn extend(&mut self, rest: Self) {
        self.nodes.extend(rest.nodes);
        self.left = rest.left;
    }

    /// Changes each node to the cheapest offering that holds its pods.
    pub(super) fn downsize(&mut self, problem: &BinPackingProblem) {
        let mut by_price: Vec<usize> = (0..problem.offerings.len()).collect();
        by_price.sort_by_key(|offering| (problem.offerings[*offering].price, *offering));
        for (node, _) in &mut self.nodes {
            let holds =
                |offering: &&usize| holds(problem, &problem.offerings[**offering], &node.pods);
            node.offering = by_price.iter().find(holds).copied().unwrap_or(node.offering);
        }
    }
}

/// Returns true if one node of an offering may hold these pods, caps included.
pub(super) fn holds(
    problem: &BinPackingProblem,
    offering: &NodeOffering,
    pods: &[(usize, u32)],
) -> bool {
    let mut pods_by_cap = vec![0_u32; problem.caps.len()];
    let is_within = |(class, count): &(usize, u32)| {
        problem.caps_of_class[*class].iter().all(|cap| {
            pods_by_cap[*cap] = pods_by_cap[*cap].saturating_add(*count);
            pods_by_cap[*cap] <= problem.caps[*cap].max_pods
        })
    };
    has_room(problem, offering, pods) && pods.iter().all(is_within)
}

/// Returns true if one node of an offering admits these pods and has room for them.
fn has_room(problem: &BinPackingProblem, offering: &NodeOffering, pods: &[(usize, u32)]) -> bool {
    let mut room = offering.room.clone();
    pods.iter().all(|(class, count)| {
        let request = &problem.classes[*class].requests;
        let fits = offering.admits[*class] && copies(request, &room, *count) == *count;
        for (room, request) in room.iter_mut().zip(request) {
            *room = room.saturating_sub(request.saturating_mul(i64::from(*count)));
        }
        fits
    })
}
