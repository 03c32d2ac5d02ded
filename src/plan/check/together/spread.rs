//! Topology spread constraints that forbid.
//!
//! kube-scheduler lets a pod into a domain if the pods counted there, the pod itself if it counts,
//! are at most `maxSkew` above the least count of any domain; the least is 0 while there are fewer
//! domains than `minDomains`. It asks once, when the pod is bound: later pods of others may raise a
//! domain, and pods that go may lower another, so a state in which the constraint does not hold may
//! be right. Let `M` be the least count of a constraint at the end.
//!
//! **Criterion.** From the pods that come, strike out, again and again, each pod whose constraints
//! all hold against `M`: in the pod's domain they count, of the pods that are there already and of
//! those not struck out, at most `M + maxSkew`. A pod that carries no constraint is struck out at
//! once. What cannot be struck out is a violation. For one workload with one constraint that means:
//! it comes to a domain that then has more than `M + maxSkew` pods.
//!
//! **No plan made by placements of kube-scheduler breaks it.** While pods come, no count falls and
//! no domain appears, so the least count at any moment is at most `M`. Were some pods left over, look
//! at the one of them that was bound last. All others left over were bound by then, so what its
//! constraints counted was at least what the criterion counts; and they held, so it was at most
//! `maxSkew` above the least count of the moment, hence at most `M + maxSkew`. Then the pod would have
//! been struck out.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Verdict;
use super::eligible::Electorate;
use super::{Scene, hard_spread};
use crate::pod::TopologySpread;

/// One constraint of one crowd.
struct Rule<'a> {
    crowd: usize,
    constraint: &'a TopologySpread,
    topology: usize,
    /// The crowds whose pods count.
    members: Vec<usize>,
    /// The sites that count, among those known to the electorate.
    eligible: usize,
    /// The pods counted in each domain that has any; those struck out no longer.
    counts: BTreeMap<usize, u32>,
    /// The most pods that a domain may have: the least count at the end and the skew.
    most: u32,
}

pub(super) fn check(scene: &mut Scene<'_>, verdict: &mut Verdict) {
    let mut electorate = Electorate::of(scene.state);
    let (state, mut rules) = (scene.state, Vec::new());
    // Many crowds count the same pods in the same domains.
    let mut counted: BTreeMap<_, BTreeMap<usize, u32>> = BTreeMap::new();
    for (index, crowd) in state.crowds.iter().enumerate() {
        if crowd.on.values().all(|pods| pods.come == 0) {
            continue;
        }
        for constraint in hard_spread(crowd) {
            let topology = scene.topologies.get(&constraint.topology_key);
            let selection = scene.census.of_spread(constraint, &crowd.shape);
            let members = scene.census.members(selection).to_vec();
            let eligible = electorate.get(crowd, constraint, &mut scene.topologies);
            let counts = BTreeMap::new();
            let mut rule =
                Rule { crowd: index, constraint, topology, members, eligible, counts, most: 0 };
            let same = counted.entry((selection, topology, eligible));
            rule.counts = same.or_insert_with(|| rule.count(scene, &electorate)).clone();
            rule.most = rule.most(&electorate);
            rules.push(rule);
        }
    }
    let mut crowded = false;
    for rule in &rules {
        for domain in rule.domains(scene, verdict) {
            crowded |= rule.exceeds(domain);
        }
    }
    if crowded {
        let left = strike_out(scene, &electorate, &mut rules);
        report(scene, &rules, &left, verdict);
    }
}

impl Rule<'_> {
    /// Counts all pods on sites that count, by domain.
    fn count(&self, scene: &Scene<'_>, electorate: &Electorate<'_>) -> BTreeMap<usize, u32> {
        let sites = &electorate.known[self.eligible].sites;
        let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
        for member in &self.members {
            for (site, pods) in scene.state.crowds[*member].on.iter().filter(|(s, _)| sites[**s]) {
                if let Some(domain) = scene.topologies.domain(self.topology, *site) {
                    let count = counts.entry(domain).or_default();
                    *count = count.saturating_add(pods.all());
                }
            }
        }
        counts
    }

    /// Returns whether more pods are counted in `domain` than it may have.
    fn exceeds(&self, domain: usize) -> bool {
        self.counts.get(&domain).is_some_and(|pods| *pods > self.most)
    }

    /// Returns the most pods that a domain may have.
    fn most(&self, electorate: &Electorate<'_>) -> u32 {
        let whole = |number: i32| u32::try_from(number).unwrap_or(0);
        let domains = electorate.known[self.eligible].domains.get(&self.topology).copied();
        let domains = domains.unwrap_or(0);
        let wanted = usize::try_from(self.constraint.min_domains.unwrap_or(1)).unwrap_or(0);
        let least = self.counts.values().copied().min().unwrap_or(0);
        let least = if domains < wanted || self.counts.len() < domains { 0 } else { least };
        least.saturating_add(whole(self.constraint.max_skew))
    }

    /// Returns the domains that pods of the crowd come to, and names the sites that are in none.
    fn domains(&self, scene: &Scene<'_>, verdict: &mut Verdict) -> BTreeSet<usize> {
        let mut domains = BTreeSet::new();
        let on = scene.state.crowds[self.crowd].on.iter().filter(|(_, pods)| pods.come > 0);
        for (site, _) in on {
            if let Some(domain) = scene.topologies.domain(self.topology, *site) {
                domains.insert(domain);
                continue;
            }
            let fault = format!(
                "{} comes here, but the node lacks the label {} of its spread constraint",
                scene.name(self.crowd),
                self.constraint.topology_key,
            );
            verdict.row("fit/spread", scene.state.sites[*site].row.address, fault);
        }
        domains
    }
}

/// Strikes out the pods that could have come last, again and again; returns crowd and site of those
/// that are left.
fn strike_out(
    scene: &Scene<'_>,
    electorate: &Electorate<'_>,
    rules: &mut [Rule<'_>],
) -> BTreeSet<(usize, usize)> {
    let (mut carried, mut counting) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
    for (index, rule) in rules.iter().enumerate() {
        carried.entry(rule.crowd).or_default().push(index);
        for member in &rule.members {
            counting.entry(*member).or_default().push(index);
        }
    }
    let mut left: BTreeSet<(usize, usize)> = scene.pods(|pods| pods.come > 0).into_iter().collect();
    loop {
        let holds = |(crowd, site): &&(usize, usize)| {
            carried.get(crowd).into_iter().flatten().all(|rule| {
                let domain = scene.topologies.domain(rules[*rule].topology, *site);
                domain.is_none_or(|domain| !rules[*rule].exceeds(domain))
            })
        };
        let last: Vec<(usize, usize)> = left.iter().filter(holds).copied().collect();
        if last.is_empty() {
            return left;
        }
        for (crowd, site) in last {
            left.remove(&(crowd, site));
            let come = scene.state.crowds[crowd].on.get(&site).map_or(0, |pods| pods.come);
            for rule in counting.get(&crowd).into_iter().flatten() {
                let rule = &mut rules[*rule];
                let domain = scene.topologies.domain(rule.topology, site);
                let counts = electorate.known[rule.eligible].sites[site];
                if let Some(count) = domain.filter(|_| counts).and_then(|d| rule.counts.get_mut(&d))
                {
                    *count = count.saturating_sub(come);
                }
            }
        }
    }
}

/// Names each constraint once for each domain in which pods are left that it forbids.
fn report(
    scene: &Scene<'_>,
    rules: &[Rule<'_>],
    left: &BTreeSet<(usize, usize)>,
    verdict: &mut Verdict,
) {
    for rule in rules {
        let mut named = BTreeSet::new();
        for (_, site) in left.range((rule.crowd, 0)..=(rule.crowd, usize::MAX)) {
            let domain = scene.topologies.domain(rule.topology, *site);
            let Some(domain) = domain.filter(|domain| rule.exceeds(*domain)) else { continue };
            if !named.insert(domain) {
                continue;
            }
            let fault = format!(
                "{} comes to {}, which then has {} of the pods that its spread constraint counts; \
                 with maxSkew {} no domain may have more than {}",
                scene.name(rule.crowd),
                scene.topologies.describe(rule.topology, domain),
                rule.counts.get(&domain).copied().unwrap_or(0),
                rule.constraint.max_skew,
                rule.most,
            );
            verdict.row("fit/spread", scene.state.sites[*site].row.address, fault);
        }
    }
}
