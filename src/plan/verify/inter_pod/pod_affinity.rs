//! Required affinity: the domain of each arriving pod has a target.
//!
//! kube-scheduler checks required affinity for the topology of each term. It admits the pod to a
//! node whose domain has a pod that *all* terms select. There is one exception for first pods.
//! While no domain has such a pod, a pod that its own terms select may run on any node that has the
//! keys.
//!
//! An arriving pod never excludes others, except that it ends the exception. The pods that can
//! arrive therefore form a closure. It starts with the staying pods and with pods without such
//! terms. Each pod whose domain has a target may follow, and becomes a target itself. Pods outside
//! the closure need the exception. It requires that their workload selects itself and that none of
//! the initial pods is a target. It can be claimed once, since the first pod ends it. Pods without
//! a claim cannot arrive in any order. If a claim is possible in several domains, the domain with
//! the most followers is used. If the pods of two workloads end each other's exception, each is
//! tried first.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Violations;
use super::context::InterPodContext;

/// Maximum number of workloads that are tried as the first claimant before pods are reported.
const FIRST_CLAIMS_MAX: usize = 16;

/// Maximum number of domains that are tried for a claim. A placeable workload never waits in more
/// domains without a target.
const CLAIM_DOMAINS_MAX: usize = 16;

/// The required affinity of one pod set.
struct AffinityNeed {
    pod_set: usize,
    /// Topologies of the terms.
    topologies: BTreeSet<usize>,
    /// The set of pods that all terms select.
    targets: usize,
    /// True if the terms select pods of the set itself.
    selects_itself: bool,
}

/// The required affinity of all pod sets, and the pods that they select.
struct AffinityNeeds {
    all: Vec<AffinityNeed>,
    /// The pod sets in each set of targets.
    sets: Vec<Vec<usize>>,
    /// Pairs of target set and topology in which a pod set counts, by pod set.
    counted: BTreeMap<usize, BTreeSet<(usize, usize)>>,
}

/// Pods that have arrived, as far as required affinity depends on them.
#[derive(Clone, Default)]
struct Arrivals {
    /// Domains with a target, by target set and topology.
    satisfied_domains: BTreeMap<(usize, usize), BTreeSet<usize>>,
    /// Pods that have not arrived: index of the need, and the node.
    waiting: BTreeSet<(usize, usize)>,
}

pub(super) fn check(inter_pod: &mut InterPodContext<'_>, violations: &mut Violations) {
    let needs = AffinityNeeds::new(inter_pod);
    if needs.all.is_empty() {
        return;
    }
    let mut start = Arrivals::default();
    for (pod_set, end_node) in inter_pod.pod_sets_where(|pods| pods.staying > 0) {
        start.arrive(inter_pod, &needs, pod_set, end_node);
    }
    let can_claim: Vec<bool> = needs.all.iter().map(|need| !start.has_targets(need)).collect();
    let need_by_set: BTreeMap<usize, usize> =
        needs.all.iter().enumerate().map(|(index, need)| (need.pod_set, index)).collect();
    for (pod_set, end_node) in inter_pod.pod_sets_where(|pods| pods.arriving > 0) {
        match need_by_set.get(&pod_set) {
            None => start.arrive(inter_pod, &needs, pod_set, end_node),
            Some(need) if lacks_key(inter_pod, &needs.all[*need], end_node, violations) => {}
            Some(need) => drop(start.waiting.insert((*need, end_node))),
        }
    }
    for component in needs.components() {
        let unplaceable =
            needs.unplaceable(inter_pod, &can_claim, start.restricted_to(&needs, &component));
        report(inter_pod, &needs, &unplaceable, violations);
    }
}

fn lacks_key(
    inter_pod: &InterPodContext<'_>,
    need: &AffinityNeed,
    end_node: usize,
    violations: &mut Violations,
) -> bool {
    let lacks = |t: &&usize| inter_pod.topologies.domain(**t, end_node).is_none();
    let Some(topology) = need.topologies.iter().find(lacks) else { return false };
    let fault = format!(
        "{} is placed here, but the node lacks the label {} of its required affinity",
        inter_pod.name(need.pod_set),
        inter_pod.topologies.key(*topology),
    );
    violations.report_row("fit/affinity", inter_pod.state.nodes[end_node].row.address, fault);
    true
}

impl AffinityNeeds {
    fn new(inter_pod: &mut InterPodContext<'_>) -> Self {
        let (state, mut index) = (inter_pod.state, BTreeMap::new());
        let mut needs = Self { all: Vec::new(), sets: Vec::new(), counted: BTreeMap::new() };
        for (pod_set, carrier) in state.pod_sets.iter().enumerate() {
            let terms = &carrier.shape.affinity.required;
            if terms.is_empty() || carrier.by_node.values().all(|pods| pods.arriving == 0) {
                continue;
            }
            let mut members: Option<BTreeSet<usize>> = None;
            for term in terms {
                let these: BTreeSet<usize> =
                    inter_pod.selected_by(pod_set, term).into_iter().collect();
                members = Some(members.map_or(these.clone(), |all| &all & &these));
            }
            let members: Vec<usize> = members.into_iter().flatten().collect();
            let topologies = terms.iter().map(|term| inter_pod.topologies.get(&term.topology_key));
            let selects_itself = members.binary_search(&pod_set).is_ok();
            let targets = *index.entry(members.clone()).or_insert_with(|| {
                needs.sets.push(members);
                needs.sets.len() - 1
            });
            needs.all.push(AffinityNeed {
                pod_set,
                topologies: topologies.collect(),
                targets,
                selects_itself,
            });
        }
        for need in &needs.all {
            for member in &needs.sets[need.targets] {
                let counted = needs.counted.entry(*member).or_default();
                counted.extend(need.topologies.iter().map(|topology| (need.targets, *topology)));
            }
        }
        needs
    }

    /// Returns the connected components of the needs. Two needs are connected if pods of one may be
    /// targets of the other.
    fn components(&self) -> Vec<Vec<usize>> {
        let need_by_set: BTreeMap<usize, usize> =
            self.all.iter().enumerate().map(|(index, need)| (need.pod_set, index)).collect();
        let mut neighbors: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.all.len()];
        for (index, need) in self.all.iter().enumerate() {
            for other in
                self.sets[need.targets].iter().filter_map(|pod_set| need_by_set.get(pod_set))
            {
                neighbors[index].insert(*other);
                neighbors[*other].insert(index);
            }
        }
        let (mut components, mut seen) = (Vec::new(), vec![false; self.all.len()]);
        for start in 0..self.all.len() {
            let mut component = Vec::new();
            let mut next = vec![start];
            while let Some(need) = next.pop() {
                if !std::mem::replace(&mut seen[need], true) {
                    component.push(need);
                    next.extend(&neighbors[need]);
                }
            }
            components.extend((!component.is_empty()).then_some(component));
        }
        components
    }

    /// Returns the pods that cannot arrive, for every choice of the first claimant.
    fn unplaceable(
        &self,
        inter_pod: &InterPodContext<'_>,
        can_claim: &[bool],
        mut start: Arrivals,
    ) -> BTreeSet<(usize, usize)> {
        start.admit_satisfied(inter_pod, self);
        let left = self.resolve_claims(inter_pod, can_claim, start.clone(), None);
        let waiting: BTreeSet<usize> = left.iter().map(|(need, _)| *need).collect();
        let is_placeable = waiting.iter().take(FIRST_CLAIMS_MAX).any(|first| {
            self.resolve_claims(inter_pod, can_claim, start.clone(), Some(*first)).is_empty()
        });
        if is_placeable { BTreeSet::new() } else { left }
    }

    /// Grants the exception to workloads, to `first` before all others, until no claim is possible.
    fn resolve_claims(
        &self,
        inter_pod: &InterPodContext<'_>,
        can_claim: &[bool],
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
                let is_possible =
                    can_claim[need] && self.all[need].selects_itself && !claimed.contains(&need);
                if is_possible && !claimed.iter().any(|other| self.exclude_each_other(need, *other))
                {
                    self.claim(inter_pod, &mut arrivals, need);
                    claimed.push(need);
                }
            }
            arrivals.admit_satisfied(inter_pod, self);
            if claimed.len() == before {
                return arrivals.waiting;
            }
        }
    }

    /// Returns whether the first pod of each need ends the exception of the other.
    fn exclude_each_other(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.all[one], &self.all[other]);
        let counts =
            |need: &AffinityNeed, pod_set| self.sets[need.targets].binary_search(&pod_set).is_ok();
        counts(one, other.pod_set) && counts(other, one.pod_set)
    }

    /// Admits a first pod of `need`, in the domain with the most followers.
    fn claim(&self, inter_pod: &InterPodContext<'_>, arrivals: &mut Arrivals, need: usize) {
        let pod_set = self.all[need].pod_set;
        let mut end_nodes: BTreeMap<Vec<Option<usize>>, usize> = BTreeMap::new();
        for (_, end_node) in arrivals.waiting.range((need, 0)..=(need, usize::MAX)) {
            let domains = self.all[need].topologies.iter();
            let domains = domains.map(|topology| inter_pod.topologies.domain(*topology, *end_node));
            end_nodes.entry(domains.collect()).or_insert(*end_node);
        }
        let left = |end_node: &usize| {
            let mut trial = arrivals.clone();
            trial.arrive(inter_pod, self, pod_set, *end_node);
            trial.admit_satisfied(inter_pod, self);
            trial.waiting.len()
        };
        let best = match end_nodes.len() {
            0 | 1 => end_nodes.into_values().next(),
            _ => end_nodes.into_values().take(CLAIM_DOMAINS_MAX).min_by_key(left),
        };
        if let Some(end_node) = best {
            arrivals.arrive(inter_pod, self, pod_set, end_node);
            arrivals.waiting.remove(&(need, end_node));
        }
    }
}

impl Arrivals {
    /// Returns the arrivals of one component. Arrivals of other components do not affect it.
    fn restricted_to(&self, needs: &AffinityNeeds, component: &[usize]) -> Self {
        let mut part = Self::default();
        for need in component {
            let targets = needs.all[*need].targets;
            let satisfied_domains =
                self.satisfied_domains.range((targets, 0)..=(targets, usize::MAX));
            part.satisfied_domains
                .extend(satisfied_domains.map(|(place, domains)| (*place, domains.clone())));
            part.waiting.extend(self.waiting.range((*need, 0)..=(*need, usize::MAX)));
        }
        part
    }

    /// Records that pods of a pod set have arrived on a node.
    fn arrive(
        &mut self,
        inter_pod: &InterPodContext<'_>,
        needs: &AffinityNeeds,
        pod_set: usize,
        end_node: usize,
    ) {
        for (set, topology) in needs.counted.get(&pod_set).into_iter().flatten() {
            if let Some(domain) = inter_pod.topologies.domain(*topology, end_node) {
                self.satisfied_domains.entry((*set, *topology)).or_default().insert(domain);
            }
        }
    }

    /// Returns whether any domain has a target of `need`.
    fn has_targets(&self, need: &AffinityNeed) -> bool {
        let mut topologies = need.topologies.iter();
        topologies.any(|topology| self.satisfied_domains.contains_key(&(need.targets, *topology)))
    }

    /// Admits all pods whose domains have targets, until no more follow.
    fn admit_satisfied(&mut self, inter_pod: &InterPodContext<'_>, needs: &AffinityNeeds) {
        loop {
            let joins = |(index, end_node): &&(usize, usize)| {
                let need = &needs.all[*index];
                need.topologies.iter().all(|topology| {
                    let domain = inter_pod.topologies.domain(*topology, *end_node);
                    let satisfied_domains = self.satisfied_domains.get(&(need.targets, *topology));
                    domain.zip(satisfied_domains).is_some_and(|(domain, satisfied_domains)| {
                        satisfied_domains.contains(&domain)
                    })
                })
            };
            let comes: Vec<(usize, usize)> = self.waiting.iter().filter(joins).copied().collect();
            if comes.is_empty() {
                return;
            }
            for (need, end_node) in comes {
                self.waiting.remove(&(need, end_node));
                self.arrive(inter_pod, needs, needs.all[need].pod_set, end_node);
            }
        }
    }
}

/// Reports each pod set once for each set of domains that it cannot arrive in.
fn report(
    inter_pod: &InterPodContext<'_>,
    needs: &AffinityNeeds,
    unplaceable: &BTreeSet<(usize, usize)>,
    violations: &mut Violations,
) {
    let mut named = BTreeSet::new();
    for (index, end_node) in unplaceable {
        let need = &needs.all[*index];
        let domain = |topology: &usize| {
            Some((*topology, inter_pod.topologies.domain(*topology, *end_node)?))
        };
        let domains: Vec<(usize, usize)> = need.topologies.iter().filter_map(domain).collect();
        if !named.insert((*index, domains.clone())) {
            continue;
        }
        let places: Vec<String> =
            domains.iter().map(|(t, domain)| inter_pod.topologies.describe(*t, *domain)).collect();
        let fault = format!(
            "{} is placed in {}, where no pod that its required affinity selects runs or can \
             start first",
            inter_pod.name(need.pod_set),
            places.join(" and "),
        );
        violations.report_row("fit/affinity", inter_pod.state.nodes[*end_node].row.address, fault);
    }
}
