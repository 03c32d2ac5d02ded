//! The rules between pods: host ports, anti-affinity, affinity and spreading, in the state that a
//! plan ends in.
//!
//! kube-scheduler keeps each of these rules at the moment at which it binds a pod, and never again:
//! what runs may break them. So a state is judged by what comes. The plan's nodes are taken with the
//! pods that stay on them, the DaemonSet pods and the static pods; the plan then claims that the
//! pods that come could be bound one after the other, in some order. A violation says that no order
//! exists. Every rule below follows from that by an argument of its own, given in its file:
//!
//! * `ports`, `apart`: two pods that exclude each other stay excluded whichever of them comes later,
//!   so the order does not matter. Pairs of pods that are both there already are not judged.
//! * `company`: pods that must join others can come only after those; what can come is a closure.
//! * `spread`: counts only grow while pods come, so the least count at the end bounds the least
//!   count at every moment before.
//!
//! Semantics are those of the Kubernetes documentation (assigning pods to nodes, topology spread
//! constraints). Namespaces have the labels that the repository declares, and their name.
//!
//! What is refused: quality, since a state that could be spread better need not be; and the interplay
//! of rules. Each is judged by itself: a state passes if affinity could be kept in one order and
//! spreading in another, though no order keeps both.

mod apart;
mod company;
mod eligible;
mod ports;
mod selection;
mod spread;
#[cfg(test)]
mod tests;
mod topology;

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use super::case::Case;
use super::state::{Crowd, EndState, Presence};
use crate::ids::LabelKey;
use crate::pod::{PodAffinityTerm, TopologySpread, WhenUnsatisfiable};
pub(super) use ports::first_clash;
use selection::Census;
use topology::Topologies;

/// Pods by domain of one topology.
type Tally = BTreeMap<usize, Presence>;

/// What the rules share: who is meant by whom, and which site is in which domain.
struct Scene<'a> {
    state: &'a EndState<'a>,
    census: Census<'a>,
    topologies: Topologies<'a>,
}

pub(super) fn check(case: &Case<'_>, state: &EndState<'_>, verdict: &mut Verdict) {
    ports::check(state, verdict);
    if state.crowds.iter().all(|crowd| required_keys(crowd).next().is_none()) {
        return;
    }
    let mut scene = Scene {
        state,
        census: Census::of(&state.crowds, &case.facts.desired.namespaces),
        topologies: Topologies::of(state),
    };
    apart::check(&mut scene, verdict);
    company::check(&mut scene, verdict);
    spread::check(&mut scene, verdict);
}

/// Returns the topology keys of all rules that `crowd` carries.
fn required_keys(crowd: &Crowd) -> impl Iterator<Item = &LabelKey> {
    let terms = crowd.shape.affinity.required.iter().chain(&crowd.shape.anti_affinity.required);
    terms.map(|term| &term.topology_key).chain(hard_spread(crowd).map(|rule| &rule.topology_key))
}

/// Returns the spread constraints of `crowd` that forbid.
fn hard_spread(crowd: &Crowd) -> impl Iterator<Item = &TopologySpread> {
    let hard = |rule: &&TopologySpread| rule.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule;
    crowd.shape.spread.iter().filter(hard)
}

/// Returns the topology keys that rules between pods tie each crowd to, by its index: those of the
/// rules that it carries, and of those that are about it.
///
/// A node with such a pod cannot be exchanged for one with another value of the key without a new
/// look at all the others.
pub(super) fn ties<'a>(case: &Case<'_>, state: &'a EndState<'_>) -> Vec<BTreeSet<&'a LabelKey>> {
    let crowds = &state.crowds;
    let mut ties: Vec<BTreeSet<&LabelKey>> =
        crowds.iter().map(|crowd| required_keys(crowd).collect()).collect();
    if ties.iter().all(BTreeSet::is_empty) {
        return ties;
    }
    let mut census = Census::of(crowds, &case.facts.desired.namespaces);
    for crowd in crowds {
        // Of pods to be near to, one counts only where every term means it.
        let near = &crowd.shape.affinity.required;
        let mut company: Option<BTreeSet<usize>> = None;
        for term in near {
            let selection = census.of_term(term, &crowd.shape);
            let members: BTreeSet<usize> = census.members(selection).iter().copied().collect();
            company = Some(company.map_or(members.clone(), |all| &all & &members));
        }
        for member in company.into_iter().flatten() {
            ties[member].extend(near.iter().map(|term| &term.topology_key));
        }
        let apart = crowd.shape.anti_affinity.required.iter();
        let apart = apart.map(|term| (census.of_term(term, &crowd.shape), &term.topology_key));
        let mut meant: Vec<(Option<usize>, &LabelKey)> = apart.collect();
        let rules = hard_spread(crowd);
        meant.extend(rules.map(|rule| (census.of_spread(rule, &crowd.shape), &rule.topology_key)));
        for (selection, key) in meant {
            census.members(selection).iter().for_each(|member| ties[*member].extend([key]));
        }
    }
    ties
}

impl Scene<'_> {
    /// Counts the pods of `members` in each domain of `topology`.
    fn tally(&self, members: &[usize], topology: usize) -> Tally {
        let mut tally = Tally::new();
        for member in members {
            for (site, presence) in &self.state.crowds[*member].on {
                if let Some(domain) = self.topologies.domain(topology, *site) {
                    tally.entry(domain).or_default().add(*presence);
                }
            }
        }
        tally
    }

    /// Returns the first site in `domain` to which pods of one of `crowds` come, with the crowd.
    fn comer(&self, crowds: &[usize], topology: usize, domain: usize) -> Option<(usize, usize)> {
        let here = |site: usize| self.topologies.domain(topology, site) == Some(domain);
        crowds.iter().find_map(|crowd| {
            let on = &self.state.crowds[*crowd].on;
            let mut comes = on.iter().filter(|(site, pods)| pods.come > 0 && here(**site));
            comes.next().map(|(site, _)| (*site, *crowd))
        })
    }

    /// Returns crowd and site of all pods of which `which` holds.
    fn pods(&self, which: fn(&Presence) -> bool) -> Vec<(usize, usize)> {
        let crowds = self.state.crowds.iter().enumerate();
        crowds
            .flat_map(|(index, crowd)| {
                let on = crowd.on.iter().filter(move |(_, pods)| which(pods));
                on.map(move |(site, _)| (index, *site))
            })
            .collect()
    }

    /// Returns the crowds that one of the required terms of a pod means.
    fn term(&mut self, crowd: usize, term: &PodAffinityTerm) -> Vec<usize> {
        let shape = &self.state.crowds[crowd].shape;
        let selection = self.census.of_term(term, shape);
        self.census.members(selection).to_vec()
    }

    fn name(&self, crowd: usize) -> &str {
        &self.state.crowds[crowd].name
    }
}
