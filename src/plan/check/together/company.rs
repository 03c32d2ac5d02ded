//! Required affinity: each pod that comes finds the pods that it must join.
//!
//! kube-scheduler lets a pod with required affinity into a node if, for the topology of each term,
//! the node's domain has a pod that *all* terms select. One exception makes a beginning possible: while
//! no such pod is in any domain, a pod that its own terms select may go to any node that has the keys.
//!
//! Pods that come never take this permission away from others, except that they end the exception.
//! So what can come is a closure: from the pods that are there and those without such terms, each
//! pod whose domain holds company may follow, and is company itself. Pods that the closure does not
//! reach need the exception: their workload selects itself, none of the pods there at the start is
//! company, and it is claimed once, since the first pod ends it. What is left without a claim could
//! not come in any order. Where a claim may be made in several domains, that one is taken from which
//! most pods follow; where the pods of two workloads end each other's exception, either is tried.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Verdict;
use super::Scene;

/// Workloads tried as the first to claim the exception, before pods are called stranded.
const FIRST_CLAIMS_MAX: usize = 16;

/// Places tried for a claim; no workload that can be placed at all waits in more without company.
const CLAIM_PLACES_MAX: usize = 16;

/// The required affinity of one crowd.
struct Need {
    crowd: usize,
    /// The topologies of its terms.
    topologies: BTreeSet<usize>,
    /// The set of pods that all terms select.
    company: usize,
    /// Whether its own pods are among them.
    itself: bool,
}

/// The needs, and the pods that they ask for.
struct Needs {
    all: Vec<Need>,
    /// The crowds in each set of company.
    sets: Vec<Vec<usize>>,
    /// The pairs of set and topology that a crowd's pods are counted in.
    counted: BTreeMap<usize, BTreeSet<(usize, usize)>>,
}

/// Pods that have come, as far as needs go.
#[derive(Clone, Default)]
struct Arrivals {
    /// The domains that hold company, by set and topology.
    lit: BTreeMap<(usize, usize), BTreeSet<usize>>,
    /// Pods that wait: the need, and the site.
    waiting: BTreeSet<(usize, usize)>,
}

pub(super) fn check(scene: &mut Scene<'_>, verdict: &mut Verdict) {
    let needs = Needs::of(scene);
    if needs.all.is_empty() {
        return;
    }
    let mut start = Arrivals::default();
    for (crowd, site) in scene.pods(|pods| pods.stay > 0) {
        start.arrive(scene, &needs, (crowd, site));
    }
    let free: Vec<bool> = needs.all.iter().map(|need| !start.has_company(need)).collect();
    let of_crowd: BTreeMap<usize, usize> =
        needs.all.iter().enumerate().map(|(index, need)| (need.crowd, index)).collect();
    for (crowd, site) in scene.pods(|pods| pods.come > 0) {
        match of_crowd.get(&crowd) {
            None => start.arrive(scene, &needs, (crowd, site)),
            Some(need) if lacks_key(scene, &needs.all[*need], site, verdict) => {}
            Some(need) => drop(start.waiting.insert((*need, site))),
        }
    }
    for circle in needs.circles() {
        let stranded = needs.stranded(scene, &free, start.of(&needs, &circle));
        report(scene, &needs, &stranded, verdict);
    }
}

fn lacks_key(scene: &Scene<'_>, need: &Need, site: usize, verdict: &mut Verdict) -> bool {
    let lacks = |t: &&usize| scene.topologies.domain(**t, site).is_none();
    let Some(topology) = need.topologies.iter().find(lacks) else { return false };
    let fault = format!(
        "{} comes here, but the node lacks the label {} of its required affinity",
        scene.name(need.crowd),
        scene.topologies.key(*topology),
    );
    verdict.row("fit/affinity", scene.state.sites[site].row.address, fault);
    true
}

impl Needs {
    fn of(scene: &mut Scene<'_>) -> Self {
        let (state, mut index) = (scene.state, BTreeMap::new());
        let mut needs = Self { all: Vec::new(), sets: Vec::new(), counted: BTreeMap::new() };
        for (crowd, carrier) in state.crowds.iter().enumerate() {
            let terms = &carrier.shape.affinity.required;
            if terms.is_empty() || carrier.on.values().all(|pods| pods.come == 0) {
                continue;
            }
            let mut members: Option<BTreeSet<usize>> = None;
            for term in terms {
                let these: BTreeSet<usize> = scene.term(crowd, term).into_iter().collect();
                members = Some(members.map_or(these.clone(), |all| &all & &these));
            }
            let members: Vec<usize> = members.into_iter().flatten().collect();
            let topologies = terms.iter().map(|term| scene.topologies.get(&term.topology_key));
            let itself = members.binary_search(&crowd).is_ok();
            let company = *index.entry(members.clone()).or_insert_with(|| {
                needs.sets.push(members);
                needs.sets.len() - 1
            });
            needs.all.push(Need { crowd, topologies: topologies.collect(), company, itself });
        }
        for need in &needs.all {
            for member in &needs.sets[need.company] {
                let counted = needs.counted.entry(*member).or_default();
                counted.extend(need.topologies.iter().map(|topology| (need.company, *topology)));
            }
        }
        needs
    }

    /// Returns the needs in circles: those of which the pods of one may be company of another.
    fn circles(&self) -> Vec<Vec<usize>> {
        let of_crowd: BTreeMap<usize, usize> =
            self.all.iter().enumerate().map(|(index, need)| (need.crowd, index)).collect();
        let mut around: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.all.len()];
        for (index, need) in self.all.iter().enumerate() {
            for other in self.sets[need.company].iter().filter_map(|crowd| of_crowd.get(crowd)) {
                around[index].insert(*other);
                around[*other].insert(index);
            }
        }
        let (mut circles, mut seen) = (Vec::new(), vec![false; self.all.len()]);
        for start in 0..self.all.len() {
            let mut circle = Vec::new();
            let mut next = vec![start];
            while let Some(need) = next.pop() {
                if !std::mem::replace(&mut seen[need], true) {
                    circle.push(need);
                    next.extend(&around[need]);
                }
            }
            circles.extend((!circle.is_empty()).then_some(circle));
        }
        circles
    }

    /// Returns the pods that cannot come, whoever claims the exception first.
    fn stranded(
        &self,
        scene: &Scene<'_>,
        free: &[bool],
        mut start: Arrivals,
    ) -> BTreeSet<(usize, usize)> {
        start.follow(scene, self);
        let left = self.settle(scene, free, start.clone(), None);
        let waiting: BTreeSet<usize> = left.iter().map(|(need, _)| *need).collect();
        let saved = waiting
            .iter()
            .take(FIRST_CLAIMS_MAX)
            .any(|first| self.settle(scene, free, start.clone(), Some(*first)).is_empty());
        if saved { BTreeSet::new() } else { left }
    }

    /// Lets workloads claim the exception, `first` before all others, until nobody can.
    fn settle(
        &self,
        scene: &Scene<'_>,
        free: &[bool],
        mut arrivals: Arrivals,
        first: Option<usize>,
    ) -> BTreeSet<(usize, usize)> {
        let mut claimed: Vec<usize> = Vec::new();
        loop {
            let before = claimed.len();
            let waiting = arrivals.waiting.iter().map(|(need, _)| *need);
            let waiting: BTreeSet<usize> = waiting.collect();
            let mut order: Vec<usize> = waiting.into_iter().collect();
            order.sort_by_key(|need| Some(*need) != first);
            for need in order {
                let may = free[need] && self.all[need].itself && !claimed.contains(&need);
                if may && !claimed.iter().any(|other| self.exclude_each_other(need, *other)) {
                    self.claim(scene, &mut arrivals, need);
                    claimed.push(need);
                }
            }
            arrivals.follow(scene, self);
            if claimed.len() == before {
                return arrivals.waiting;
            }
        }
    }

    /// Returns whether the first pod of either ends the exception of the other.
    fn exclude_each_other(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.all[one], &self.all[other]);
        let counts = |need: &Need, crowd| self.sets[need.company].binary_search(&crowd).is_ok();
        counts(one, other.crowd) && counts(other, one.crowd)
    }

    /// Lets a first pod of `need` come, where it helps most.
    fn claim(&self, scene: &Scene<'_>, arrivals: &mut Arrivals, need: usize) {
        let crowd = self.all[need].crowd;
        let mut sites: BTreeMap<Vec<Option<usize>>, usize> = BTreeMap::new();
        for (_, site) in arrivals.waiting.range((need, 0)..=(need, usize::MAX)) {
            let domains = self.all[need].topologies.iter();
            let domains = domains.map(|topology| scene.topologies.domain(*topology, *site));
            sites.entry(domains.collect()).or_insert(*site);
        }
        let left = |site: &usize| {
            let mut trial = arrivals.clone();
            trial.arrive(scene, self, (crowd, *site));
            trial.follow(scene, self);
            trial.waiting.len()
        };
        let best = match sites.len() {
            0 | 1 => sites.into_values().next(),
            _ => sites.into_values().take(CLAIM_PLACES_MAX).min_by_key(left),
        };
        if let Some(site) = best {
            arrivals.arrive(scene, self, (crowd, site));
            arrivals.waiting.remove(&(need, site));
        }
    }
}

impl Arrivals {
    /// Returns what concerns the needs of one circle: nothing that comes for others changes it.
    fn of(&self, needs: &Needs, circle: &[usize]) -> Self {
        let mut part = Self::default();
        for need in circle {
            let company = needs.all[*need].company;
            let lit = self.lit.range((company, 0)..=(company, usize::MAX));
            part.lit.extend(lit.map(|(place, domains)| (*place, domains.clone())));
            part.waiting.extend(self.waiting.range((*need, 0)..=(*need, usize::MAX)));
        }
        part
    }

    /// Counts pods of `crowd` that are on `site`.
    fn arrive(&mut self, scene: &Scene<'_>, needs: &Needs, (crowd, site): (usize, usize)) {
        for (set, topology) in needs.counted.get(&crowd).into_iter().flatten() {
            if let Some(domain) = scene.topologies.domain(*topology, site) {
                self.lit.entry((*set, *topology)).or_default().insert(domain);
            }
        }
    }

    /// Returns whether company of `need` is anywhere.
    fn has_company(&self, need: &Need) -> bool {
        let mut topologies = need.topologies.iter();
        topologies.any(|topology| self.lit.contains_key(&(need.company, *topology)))
    }

    /// Lets everybody come whose domains hold company, until nobody else can.
    fn follow(&mut self, scene: &Scene<'_>, needs: &Needs) {
        loop {
            let joins = |(index, site): &&(usize, usize)| {
                let need = &needs.all[*index];
                need.topologies.iter().all(|topology| {
                    let domain = scene.topologies.domain(*topology, *site);
                    let lit = self.lit.get(&(need.company, *topology));
                    domain.zip(lit).is_some_and(|(domain, lit)| lit.contains(&domain))
                })
            };
            let comes: Vec<(usize, usize)> = self.waiting.iter().filter(joins).copied().collect();
            if comes.is_empty() {
                return;
            }
            for (need, site) in comes {
                self.waiting.remove(&(need, site));
                self.arrive(scene, needs, (needs.all[need].crowd, site));
            }
        }
    }
}

/// Names each crowd once for each set of domains that it cannot come to.
fn report(
    scene: &Scene<'_>,
    needs: &Needs,
    stranded: &BTreeSet<(usize, usize)>,
    verdict: &mut Verdict,
) {
    let mut named = BTreeSet::new();
    for (index, site) in stranded {
        let need = &needs.all[*index];
        let domain =
            |topology: &usize| Some((*topology, scene.topologies.domain(*topology, *site)?));
        let domains: Vec<(usize, usize)> = need.topologies.iter().filter_map(domain).collect();
        if !named.insert((*index, domains.clone())) {
            continue;
        }
        let places: Vec<String> =
            domains.iter().map(|(t, domain)| scene.topologies.describe(*t, *domain)).collect();
        let fault = format!(
            "{} comes to {}, where no pod that its required affinity asks for is or can come before it",
            scene.name(need.crowd),
            places.join(" and "),
        );
        verdict.row("fit/affinity", scene.state.sites[*site].row.address, fault);
    }
}
