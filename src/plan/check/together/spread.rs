//! Topology spread constraints that forbid.
//!
//! kube-scheduler lets a pod into a domain if the pods counted there, the pod itself if it counts,
//! are at most `maxSkew` above the least count of any domain; the least is 0 while there are fewer
//! domains than `minDomains`. It asks once, when the pod is bound: later pods of others may raise a
//! domain, and pods that go may lower another, so a state in which the constraint does not hold may
//! be right. Let `s` be the pods counted in a domain that are there already, `M` the least count at
//! the end, and call the pods that come and carry constraints over the topology *carriers*.
//!
//! **Criterion.** Take the carriers that come to one domain, and strike out, again and again, all of
//! a workload for each of whose constraints over the topology the pods that are there already and the
//! carriers not yet struck out, as far as the constraint counts them, are at most `M + maxSkew`. What cannot be struck out is a
//! violation. (For one workload alone: `s` and its pods there are more than `M + maxSkew`.)
//!
//! **No plan made by placements of kube-scheduler breaks it.** Pods only come, so no count falls and
//! the least count at any moment is at most `M`. Were some carriers left over, look at that pod of
//! theirs which was bound last. At that moment all others of them were bound, so each constraint of
//! the pod counted at least `s` and all of them that it counts, and still held: these are at most
//! the least count then plus `maxSkew`, hence at most `M + maxSkew`. Then its workload would have
//! been struck out. Pods without a constraint over the topology may all come later, and are not counted.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Verdict;
use super::eligible::Electorate;
use super::{Presence, Scene, hard_spread};
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
    /// The most pods that a domain may have: the least count at the end and the skew.
    most: u32,
}

pub(super) fn check(scene: &mut Scene<'_>, verdict: &mut Verdict) {
    let mut electorate = Electorate::of(scene.state);
    let (mut rules, mut crowded) = (Vec::new(), BTreeSet::new());
    let state = scene.state;
    for (index, crowd) in state.crowds.iter().enumerate() {
        if crowd.on.values().all(|pods| pods.come == 0) {
            continue;
        }
        for constraint in hard_spread(crowd) {
            let topology = scene.topologies.get(&constraint.topology_key);
            let selection = scene.census.of_spread(constraint, &crowd.shape);
            let members = scene.census.members(selection).to_vec();
            let eligible = electorate.get(crowd, constraint, &mut scene.topologies);
            let mut rule = Rule { crowd: index, constraint, topology, members, eligible, most: 0 };
            let counts = rule.counts(scene, &electorate);
            rule.most = rule.most(&counts, &electorate);
            for domain in rule.domains(scene, verdict) {
                if counts.get(&domain).is_some_and(|pods| pods.all() > rule.most) {
                    crowded.insert((topology, domain));
                }
            }
            rules.push(rule);
        }
    }
    for (topology, domain) in crowded {
        judge(scene, &electorate, &rules, (topology, domain), verdict);
    }
}

impl Rule<'_> {
    /// Counts the pods on sites that count, by domain.
    fn counts(&self, scene: &Scene<'_>, electorate: &Electorate<'_>) -> BTreeMap<usize, Presence> {
        let sites = &electorate.known[self.eligible].sites;
        let mut counts: BTreeMap<usize, Presence> = BTreeMap::new();
        for member in &self.members {
            for (site, pods) in scene.state.crowds[*member].on.iter().filter(|(s, _)| sites[**s]) {
                if let Some(domain) = scene.topologies.domain(self.topology, *site) {
                    counts.entry(domain).or_default().add(*pods);
                }
            }
        }
        counts
    }

    /// Returns the most pods that a domain may have, given the counts at the end.
    fn most(&self, counts: &BTreeMap<usize, Presence>, electorate: &Electorate<'_>) -> u32 {
        let whole = |number: i32| u32::try_from(number).unwrap_or(0);
        let domains = electorate.known[self.eligible].domains.get(&self.topology).copied();
        let domains = domains.unwrap_or(0);
        let wanted = usize::try_from(self.constraint.min_domains.unwrap_or(1)).unwrap_or(0);
        let least = counts.values().map(|pods| pods.all()).min().unwrap_or(0);
        let least = if domains < wanted || counts.len() < domains { 0 } else { least };
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

    /// Counts the pods of `crowd` that this rule counts in `domain`.
    fn pods(
        &self,
        scene: &Scene<'_>,
        electorate: &Electorate<'_>,
        (crowd, domain): (usize, usize),
    ) -> Presence {
        let sites = &electorate.known[self.eligible].sites;
        let mut sum = Presence::default();
        for (site, pods) in scene.state.crowds[crowd].on.iter().filter(|(s, _)| sites[**s]) {
            if scene.topologies.domain(self.topology, *site) == Some(domain) {
                sum.add(*pods);
            }
        }
        sum
    }
}

/// Strikes out the carriers that could have come to `domain`, and names those that are left.
fn judge(
    scene: &Scene<'_>,
    electorate: &Electorate<'_>,
    rules: &[Rule<'_>],
    (topology, domain): (usize, usize),
    verdict: &mut Verdict,
) {
    let comes = |crowd: usize| scene.comer(&[crowd], topology, domain).is_some();
    let rules: Vec<&Rule<'_>> =
        rules.iter().filter(|rule| rule.topology == topology && comes(rule.crowd)).collect();
    let mut left: BTreeSet<usize> = rules.iter().map(|rule| rule.crowd).collect();
    // What each rule counts: pods that are there, and those of carriers that are left.
    let mut counts: Vec<u32> = Vec::new();
    let mut counting: BTreeMap<usize, Vec<(usize, u32)>> = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        let mut count = 0_u32;
        for member in &rule.members {
            let pods = rule.pods(scene, electorate, (*member, domain));
            count = count.saturating_add(pods.stay);
            if left.contains(member) {
                count = count.saturating_add(pods.come);
                counting.entry(*member).or_default().push((index, pods.come));
            }
        }
        counts.push(count);
    }
    loop {
        let over = |(rule, count): (&&Rule<'_>, &u32)| (*count > rule.most).then_some(rule.crowd);
        let kept: BTreeSet<usize> = rules.iter().zip(&counts).filter_map(over).collect();
        let struck: Vec<usize> = left.difference(&kept).copied().collect();
        if struck.is_empty() {
            break;
        }
        for crowd in struck {
            left.remove(&crowd);
            for (rule, pods) in counting.get(&crowd).into_iter().flatten() {
                counts[*rule] = counts[*rule].saturating_sub(*pods);
            }
        }
    }
    for (rule, count) in rules.iter().zip(counts).filter(|(rule, _)| left.contains(&rule.crowd)) {
        if count > rule.most {
            report(scene, rule, (domain, count), verdict);
        }
    }
}

fn report(
    scene: &Scene<'_>,
    rule: &Rule<'_>,
    (domain, count): (usize, u32),
    verdict: &mut Verdict,
) {
    let Some((site, _)) = scene.comer(&[rule.crowd], rule.topology, domain) else { return };
    let fault = format!(
        "{} comes to {}, which then has {count} of the pods that its spread constraint counts; \
         with maxSkew {} no domain may have more than {}",
        scene.name(rule.crowd),
        scene.topologies.describe(rule.topology, domain),
        rule.constraint.max_skew,
        rule.most,
    );
    verdict.row("fit/spread", scene.state.sites[site].row.address, fault);
}
