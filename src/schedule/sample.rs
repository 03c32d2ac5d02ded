//! A smaller cluster that stands for a larger one: one node of every so many of each kind, and
//! as many of the pods.
//!
//! What it can be trusted with: shares. Nodes and pods are thinned alike, so that how full nodes
//! get, how cpu and memory mix on them, and whether a fleet of a few shapes holds the mix, come
//! out as in the whole, to about one part in the number of sampled pods. Nodes are rounded down
//! and pods up, so that the sample is never roomier than the whole.
//!
//! What it cannot be trusted with: numbers. A kind with fewer nodes, or a class with fewer pods,
//! than one in `every` may have none in the sample, so nothing is proven of it; skews, domains to
//! fill and pods that must share a host are counted, not shared out, and bind less tightly in
//! the sample; and a search looks at a share of the nodes that depends on how many there are, so
//! that the sample spreads a little better. A plan rehearsed on a sample has to say so, with
//! [`Sample::every`].

use super::order::nodes_to_find;

/// Tries of a node by a pod that one run of the whole may take: about half a second.
const TRIES_MAX: u64 = 100_000_000;

/// Which part of a cluster stands for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    every: usize,
}

impl Sample {
    /// Returns the largest sample of so many pods on so many nodes that is played in reasonable
    /// time; the whole, where that is.
    ///
    /// The estimate knows that a search ends with a share of the nodes, and takes it that half of
    /// them fit.
    #[must_use]
    pub fn of(pods: usize, nodes: usize) -> Self {
        let wide = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let tries = |every: usize| {
            let nodes = nodes / every;
            let tried = nodes.min(2 * nodes_to_find(nodes));
            wide(pods / every).saturating_mul(wide(tried))
        };
        let every = (1..=nodes.max(1)).find(|every| tries(*every) <= TRIES_MAX);
        Self { every: every.unwrap_or(1) }
    }

    /// Returns the sample of one in `every`; 0 counts as 1.
    #[must_use]
    pub fn one_in(every: usize) -> Self {
        Self { every: every.max(1) }
    }

    /// Returns of how many nodes, or pods, each one of the sample stands.
    #[must_use]
    pub fn every(self) -> usize {
        self.every
    }

    /// Returns whether nothing is left out.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.every == 1
    }

    /// Returns the nodes of the sample, in their order, given the kind of each: what a kind lacks
    /// to a whole `every` is carried over to the next kind, so that all together are rounded down
    /// once. Kinds that are next to each other should be alike.
    #[must_use]
    pub fn nodes<K: Ord>(self, kinds: &[K]) -> Vec<usize> {
        let mut by_kind: Vec<usize> = (0..kinds.len()).collect();
        by_kind.sort_by_key(|node| (&kinds[*node], *node));
        let last_of_each = by_kind.chunks_exact(self.every).filter_map(<[usize]>::last);
        let mut chosen: Vec<usize> = last_of_each.copied().collect();
        chosen.sort_unstable();
        chosen
    }

    /// Returns how many pods of each class are in the sample, given how many there are: all
    /// together are rounded up once. Classes that are next to each other should be alike, such as
    /// those of about the same size.
    #[must_use]
    pub fn pods(self, counts: &[usize]) -> Vec<usize> {
        let mut seen = 0;
        let part = |count: &usize| {
            let before = usize::div_ceil(seen, self.every);
            seen += count;
            seen.div_ceil(self.every) - before
        };
        counts.iter().map(part).collect()
    }
}
