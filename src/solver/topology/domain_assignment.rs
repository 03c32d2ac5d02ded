//! Assigns the pods of each group to zones or other topology domains.
//!
//! Groups with a spread or anti-affinity come first, then groups that follow others by affinity.
//! Running pods count where they run. Each further pod goes to the allowed domain with the fewest
//! pods. Among equals it goes to one whose nodes have room, else to the cheaper one, else to one with
//! pods of any group. A group that is only excluded from some domains remains free among the others.

mod anchors;
mod free_room;
mod quotas;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::domain_counts::{DomainCounts, PodsByDomain};
use super::inter_pod_terms::{InterPodTerm, TermKind};
use super::{DomainShare, TopologyInput, is_placeable};
use crate::demand::NodeChoice;
use crate::model::ids::{LabelKey, LabelValue, Labels, workload_key};
use crate::model::pod::{Toleration, untolerated};
use crate::model::requirement::{LabelSet, Requirements, ValueSet};
use crate::model::units::{MicroUsd, Resources};
use crate::solver::existing_node::ExistingNode;
use crate::solver::offer::{Offer, admits};
use crate::solver::problem::FollowedPods;
use free_room::{free_resources, only_domain};
use quotas::{fill_evenly, take_quotas};

/// Pods of a group, with the node requirements assigned so far.
struct DomainSlice {
    within: Requirements,
    planned: u32,
}

/// The domains of a key for a group, each with the price of its cheapest node. A domain without a
/// price counts for the spread but cannot receive pods.
type CandidateDomains = BTreeMap<LabelValue, Option<MicroUsd>>;

/// The properties of a pod that decide which offers admit it.
type AdmissionKey<'a> = (Requirements, &'a NodeChoice, &'a [Toleration]);

/// Offers by domain, the cheapest first.
type OffersByDomain = BTreeMap<LabelValue, Vec<usize>>;

/// State of the assignment.
pub(super) struct DomainAssigner<'a> {
    input: TopologyInput<'a>,
    terms: &'a [InterPodTerm],
    /// Terms of each group.
    own: BTreeMap<usize, Vec<usize>>,
    /// Anti-affinity terms that select each group.
    repelled_by: BTreeMap<usize, Vec<usize>>,
    /// Pods by key and domain, both running and assigned.
    domain_counts: DomainCounts,
    /// For each key, the offers that admit pods with the same admission key.
    offered: BTreeMap<LabelKey, BTreeMap<AdmissionKey<'a>, OffersByDomain>>,
    slices: BTreeMap<usize, Vec<DomainSlice>>,
    /// For each group, the pods that the last plan places and that do not run yet, by existing node.
    awaited: Vec<BTreeMap<usize, u32>>,
    /// Free resources of each existing node, less those for the pods assigned so far.
    free: Vec<Resources>,
}

impl<'a> DomainAssigner<'a> {
    pub(super) fn new(input: TopologyInput<'a>, terms: &'a [InterPodTerm]) -> Self {
        let (mut own, mut repelled_by) = (BTreeMap::new(), BTreeMap::new());
        for (index, term) in terms.iter().enumerate() {
            own.entry(term.owner).or_insert_with(Vec::new).push(index);
            for member in term.members.iter().filter(|_| term.kind == TermKind::AntiAffinity) {
                repelled_by.entry(*member).or_insert_with(Vec::new).push(index);
            }
        }
        let domain_counts = DomainCounts::new(input.groups.len(), terms);
        let (offered, slices) = (BTreeMap::new(), BTreeMap::new());
        let awaited = awaited_pods(input);
        let free = free_resources(input, terms, &awaited);
        let mut domains =
            Self { input, terms, own, repelled_by, domain_counts, offered, slices, awaited, free };
        domains.count_running();
        domains
    }

    /// Returns the shares of all groups.
    pub(super) fn assign(mut self) -> Vec<DomainShare> {
        let follows = |term: &usize| self.terms[*term].kind == TermKind::Affinity;
        let follower = |group: &usize| self.own.get(group).is_some_and(|r| r.iter().any(follows));
        let concerned: BTreeSet<usize> =
            self.own.keys().chain(self.repelled_by.keys()).copied().collect();
        let (mut followers, mut leaders): (Vec<usize>, Vec<usize>) =
            concerned.into_iter().partition(follower);
        leaders.sort_by_cached_key(|group| !self.names_domains(*group));
        // The pods that others follow go to one domain, unless a spread needs them in more.
        followers.sort_by_cached_key(|group| Reverse(self.followed_domains(*group)));
        for group in leaders.into_iter().chain(followers) {
            self.assign_group(group);
        }
        let groups = self.input.groups.iter().enumerate();
        let mut shares = Vec::new();
        for (group, members) in groups.filter(|(_, group)| is_placeable(group)) {
            let whole = || vec![DomainSlice::unrestricted(members.counts.planned)];
            let slices = self.slices.remove(&group).unwrap_or_else(whole);
            let share = |DomainSlice { within, planned }| DomainShare { group, within, planned };
            shares.extend(slices.into_iter().filter(|slice| slice.planned > 0).map(share));
        }
        shares
    }

    /// Counts the running planned pods, by every topology key.
    fn count_running(&mut self) {
        let terms = self.terms;
        let keys: BTreeSet<&LabelKey> = terms.iter().map(|r| &r.key).collect();
        for key in keys {
            for group in 0..self.input.groups.len() {
                for (domain, pods) in self.running(group, key, &Requirements::default()) {
                    self.domain_counts.add(group, key, &domain, pods);
                }
                let members = Some(&self.input.groups[group]).filter(|group| is_placeable(group));
                if let Some(domain) = members.and_then(|group| only_domain(&group.shape, key)) {
                    self.domain_counts.serve(key, &domain);
                }
            }
        }
    }

    /// Returns the planned pods of a group that run on nodes within `scope`, by domain. Pods that do
    /// not run yet, and that the last plan places on these nodes, count as running.
    fn running(&self, group: usize, key: &LabelKey, scope: &Requirements) -> PodsByDomain {
        let awaited = &self.awaited[group];
        let group = &self.input.groups[group];
        let mut left = group.counts.planned;
        let mut counts = PodsByDomain::new();
        let mut add = |node: &ExistingNode, pods: u32| {
            let domain = node.labels.get(key).filter(|_| scope.matches_labels(&node.labels));
            let here = pods.min(left);
            if let Some(domain) = domain.filter(|_| here > 0) {
                left -= here;
                *counts.entry(domain.clone()).or_insert(0) += here;
            }
        };
        if !group.running.is_empty() {
            for node in self.input.existing {
                add(node, group.running.get(&node.name).copied().unwrap_or(0));
            }
        }
        for (node, pods) in awaited {
            add(&self.input.existing[*node], *pods);
        }
        counts
    }

    /// Returns the planned pods of a group that run on nodes without the key, where its terms allow
    /// that. The first count is for nodes that stay, the second for removable nodes.
    fn running_keyless(&self, task: &AssignmentTask, scope: &Requirements) -> (u32, u32) {
        let group = &self.input.groups[task.group];
        let (mut staying, mut removable) = (0, 0);
        if !task.allows_keyless() || group.running.is_empty() {
            return (staying, removable);
        }
        let keyless = |node: &&ExistingNode| {
            !node.labels.contains_key(&task.key) && scope.matches_labels(&node.labels)
        };
        for node in self.input.existing.iter().filter(keyless) {
            let here = group.running.get(&node.name).copied().unwrap_or(0);
            let sum = if node.may_be_retained() { &mut removable } else { &mut staying };
            *sum += here;
        }
        (staying, removable)
    }

    fn assign_group(&mut self, group: usize) {
        if self.slices.contains_key(&group) || !is_placeable(&self.input.groups[group]) {
            return;
        }
        let of = |list: Option<&Vec<usize>>| list.into_iter().flatten().copied().collect();
        let (own, repelling): (Vec<usize>, Vec<usize>) =
            (of(self.own.get(&group)), of(self.repelled_by.get(&group)));
        let keys: BTreeSet<LabelKey> =
            own.iter().chain(&repelling).map(|r| self.terms[*r].key.clone()).collect();
        let mut slices = vec![DomainSlice::unrestricted(self.input.groups[group].counts.planned)];
        for key in keys {
            let on_key = |list: &[usize]| -> Vec<&'a InterPodTerm> {
                let here = list.iter().map(|term| &self.terms[*term]);
                here.filter(|term| term.key == key).collect()
            };
            let task =
                AssignmentTask { group, own: on_key(&own), repelling: on_key(&repelling), key };
            let mut quotas = self.quotas(&task, &slices);
            let mut decided = Vec::new();
            for slice in slices {
                decided.extend(self.split(&task, slice, &mut quotas));
            }
            slices = decided;
        }
        self.take_room(group, &slices);
        self.slices.insert(group, slices);
    }

    /// Assigns the pods of one slice to domains of one key, those with a quota first.
    fn split(
        &mut self,
        task: &AssignmentTask<'a>,
        slice: DomainSlice,
        quotas: &mut PodsByDomain,
    ) -> Vec<DomainSlice> {
        let DomainSlice { within: scope, planned } = slice;
        let running = self.running(task.group, &task.key, &scope);
        let candidate_domains = self.candidate_domains(task, &scope);
        let free = self.free_domains(task, &candidate_domains);
        if task.is_free() {
            let mut open = label_in(free.keys());
            if task.allows_keyless() {
                open = open.union(&LabelSet::absent());
            }
            let within = narrowed_to_set(&scope, &task.key, &open);
            return vec![DomainSlice { within, planned }];
        }
        let free = self.narrow_to_affinity(task, free);
        let mut placed = running.clone();
        let (staying, removable) = self.running_keyless(task, &scope);
        let mut left = planned.saturating_sub(running.values().sum::<u32>() + staying);
        let mut limits = self.limits(task, &candidate_domains);
        left = take_quotas(quotas, left, &mut limits, &mut placed);
        let free = self.ranked(task, &scope, free, left);
        left = fill_evenly(free, left, &mut limits, &mut placed);
        // If not all pods can move, their node stays, and so do they.
        let mut returning = if left > 0 { removable.saturating_sub(left) } else { 0 };
        for (domain, count) in placed.iter_mut().rev() {
            let new = *count - running.get(domain).copied().unwrap_or(0);
            let removed = new.min(returning);
            *count -= removed;
            left += removed;
            returning -= removed;
        }
        left += staying.min(planned);
        for (domain, count) in &placed {
            let new = count - running.get(domain).copied().unwrap_or(0);
            self.domain_counts.add(task.group, &task.key, domain, new);
        }
        let mut slices: Vec<DomainSlice> = placed
            .into_iter()
            .map(|(domain, planned)| DomainSlice {
                within: narrowed(&scope, &task.key, [&domain]),
                planned,
            })
            .collect();
        if left > 0 {
            let keyless = task.allows_keyless();
            let rest = if keyless { LabelSet::absent() } else { label_in([]) };
            let within = narrowed_to_set(&scope, &task.key, &rest);
            slices.push(DomainSlice { within, planned: left });
        }
        slices
    }

    /// Returns the domains of the key that may receive pods of the group, or that count for its
    /// spread.
    fn candidate_domains(
        &mut self,
        task: &AssignmentTask,
        scope: &Requirements,
    ) -> CandidateDomains {
        let TopologyInput { groups, offers, admission, .. } = self.input;
        let shape = &groups[task.group].shape;
        let admission_key = (scope.clone(), &shape.nodes, shape.tolerations.as_slice());
        let of_key = self.offered.entry(task.key.clone()).or_default();
        let offered = of_key.entry(admission_key).or_insert_with(|| {
            let admitted = offers.iter().enumerate().zip(admission.of_group(task.group));
            let admitted = admitted.filter(|(_, admitted)| **admitted).map(|(offer, _)| offer);
            let in_scope = admitted.filter(|(_, offer)| scope.matches_labels(&offer.node.labels));
            offers_by_domain(in_scope, &task.key)
        });
        let mut candidate_domains = CandidateDomains::new();
        for (domain, cheapest_first) in offered {
            let fits = |offer: &&usize| shape.requests.fits(&offers[**offer].room);
            if let Some(offer) = cheapest_first.iter().find(fits) {
                candidate_domains.insert(domain.clone(), Some(offers[*offer].node.price));
            }
        }
        for node in self.input.existing {
            let Some(domain) = node.labels.get(&task.key) else { continue };
            let eligibility = NodeEligibility {
                is_selected: shape.nodes.any_of.iter().any(|a| a.matches_labels(&node.labels)),
                is_tolerated: untolerated(&node.taints, &shape.tolerations).is_none(),
            };
            let roomy = node.schedulable && shape.requests.fits(&node.room);
            if eligibility.admits() && roomy && scope.matches_labels(&node.labels) {
                candidate_domains
                    .entry(domain.clone())
                    .or_insert(None)
                    .get_or_insert(MicroUsd::ZERO);
            } else if task.counts_node(&eligibility) {
                candidate_domains.entry(domain.clone()).or_insert(None);
            }
        }
        candidate_domains
    }

    /// Returns the domains that may receive pods of the group, each with the price of its cheapest
    /// node.
    fn free_domains(
        &self,
        task: &AssignmentTask,
        candidate_domains: &CandidateDomains,
    ) -> BTreeMap<LabelValue, MicroUsd> {
        let priced = candidate_domains
            .iter()
            .filter_map(|(domain, price)| Some((domain.clone(), (*price)?)));
        priced.filter(|(domain, _)| self.is_open(task, domain)).collect()
    }

    /// Returns true if no anti-affinity excludes the group from the domain.
    fn is_open(&self, task: &AssignmentTask, domain: &LabelValue) -> bool {
        let of_group = |group: usize| self.domain_counts.of_group(group, &task.key, domain);
        let avoids = |term: &InterPodTerm| {
            let own = if term.members.contains(&task.group) { of_group(task.group) } else { 0 };
            self.domain_counts.of_set(term.member_set, &task.key, domain) > own
        };
        let repels = |term: &&InterPodTerm| term.owner != task.group && of_group(term.owner) > 0;
        !task.of_kind(TermKind::AntiAffinity).any(avoids) && !task.repelling.iter().any(repels)
    }

    /// Narrows the domains to those that satisfy the affinity of the group.
    ///
    /// If no domain has a selected pod yet, one domain is chosen. The selected groups that are
    /// still unassigned go there too. A group that may not be in one domain gets several domains.
    fn narrow_to_affinity(
        &mut self,
        task: &AssignmentTask<'a>,
        mut free: BTreeMap<LabelValue, MicroUsd>,
    ) -> BTreeMap<LabelValue, MicroUsd> {
        let followed: Vec<&InterPodTerm> = task.of_kind(TermKind::Affinity).collect();
        for term in followed {
            let selects_itself = term.members.contains(&task.group);
            if self.input.followed_pods == FollowedPods::Spread && !selects_itself {
                self.anchor(task, term, &free);
            }
            let has_pods = |domain: &LabelValue| {
                self.domain_counts.of_set(term.member_set, &task.key, domain) > 0
            };
            if free.keys().any(has_pods) {
                free.retain(|domain, _| has_pods(domain));
                continue;
            }
            let pending: Vec<usize> = term
                .members
                .iter()
                .copied()
                .filter(|g| *g != task.group && self.is_undecided(*g))
                .collect();
            if pending.is_empty() && !selects_itself {
                return BTreeMap::new();
            }
            // Prefer the domain that admits most of the selected groups.
            let excluded = |domain: &LabelValue| {
                pending.iter().filter(|other| !self.may_run(**other, &task.key, domain)).count()
            };
            let best = free.iter().min_by_key(|(d, price)| (excluded(d), **price, (*d).clone()));
            let Some((domain, price)) = best.map(|(d, p)| (d.clone(), *p)) else { break };
            for other in pending {
                if self.may_run(other, &task.key, &domain) {
                    self.pin(other, &task.key, &domain);
                }
            }
            free = [(domain, price)].into();
        }
        free
    }

    /// Returns true if some existing or offered node of the domain admits pods of the group.
    fn may_run(&self, group: usize, key: &LabelKey, domain: &LabelValue) -> bool {
        let shape = &self.input.groups[group].shape;
        let is_there = |labels: &Labels| labels.get(key) == Some(domain);
        let mut offered = self.input.offers.iter().zip(self.input.admission.of_group(group));
        let mut existing = self.input.existing.iter();
        offered.any(|(offer, admitted)| *admitted && is_there(&offer.node.labels))
            || existing
                .any(|node| is_there(&node.labels) && admits(shape, &node.labels, &node.taints))
    }

    fn is_undecided(&self, group: usize) -> bool {
        is_placeable(&self.input.groups[group])
            && !self.slices.contains_key(&group)
            && self.own.get(&group).is_none_or(|own| {
                own.iter().all(|term| self.terms[*term].kind == TermKind::Affinity)
            })
    }

    /// Assigns all pods of a group to one domain.
    fn pin(&mut self, group: usize, key: &LabelKey, domain: &LabelValue) {
        let planned = self.input.groups[group].counts.planned;
        let within = narrowed(&Requirements::default(), key, [domain]);
        self.slices.insert(group, vec![DomainSlice { within, planned }]);
        self.domain_counts.clear(group, key);
        self.domain_counts.add(group, key, domain, planned);
    }

    /// Returns the limits on the number of pods per domain.
    fn limits(
        &self,
        task: &AssignmentTask,
        candidate_domains: &CandidateDomains,
    ) -> Vec<DomainLimit> {
        let spread = task.own.iter().filter_map(|term| {
            let rule = match term.kind {
                TermKind::Spread { max_skew, min_domains, .. } => {
                    LimitRule::Skew { max_skew, min_domains }
                }
                TermKind::AntiAffinity if term.members.contains(&task.group) => LimitRule::One,
                TermKind::AntiAffinity | TermKind::Affinity => return None,
            };
            let sum =
                |domain: &LabelValue| self.domain_counts.of_set(term.member_set, &task.key, domain);
            let pods: PodsByDomain =
                candidate_domains.keys().map(|domain| (domain.clone(), sum(domain))).collect();
            Some(DomainLimit { rule, pods, counts_itself: term.members.contains(&task.group) })
        });
        spread.collect()
    }
}

/// Returns, for each group, the pods that the last plan places and that do not run yet, by existing
/// node. Groups of one workload share its pods, each on the nodes that admit it.
fn awaited_pods(input: TopologyInput) -> Vec<BTreeMap<usize, u32>> {
    let TopologyInput { groups, existing, .. } = input;
    let mut awaited = vec![BTreeMap::new(); groups.len()];
    if existing.iter().all(|node| node.planned_pods.is_empty()) {
        return awaited;
    }
    let mut of_workload: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate() {
        of_workload.entry(workload_key(&group.workload)).or_default().push(index);
    }
    let pending = groups.iter().map(|group| {
        let running: u32 = group.running.values().sum();
        group.counts.planned.saturating_sub(running)
    });
    let mut pending: Vec<u32> = pending.collect();
    for (index, node) in existing.iter().enumerate() {
        for (workload, planned) in &node.planned_pods {
            let Some(of_workload) = of_workload.get(workload) else { continue };
            let on = |group: &usize| groups[*group].running.get(&node.name).copied().unwrap_or(0);
            let running: u32 = of_workload.iter().map(on).sum();
            let mut left = planned.saturating_sub(running);
            for group in of_workload {
                let shape = &groups[*group].shape;
                let count = left.min(pending[*group]);
                if count > 0 && admits(shape, &node.labels, &node.taints) {
                    left -= count;
                    pending[*group] -= count;
                    awaited[*group].insert(index, count);
                }
            }
        }
    }
    awaited
}

/// One group and one topology key.
struct AssignmentTask<'a> {
    group: usize,
    key: LabelKey,
    /// Terms of the group.
    own: Vec<&'a InterPodTerm>,
    /// Anti-affinity terms of other groups that select it.
    repelling: Vec<&'a InterPodTerm>,
}

impl<'a> AssignmentTask<'a> {
    fn of_kind(&self, kind: TermKind) -> impl Iterator<Item = &'a InterPodTerm> {
        self.own.iter().copied().filter(move |term| term.kind == kind)
    }

    /// Returns true if the group is only excluded from domains, and neither spread nor attracted.
    fn is_free(&self) -> bool {
        let is_repelling = |term: &&InterPodTerm| {
            term.kind == TermKind::AntiAffinity && !term.members.contains(&self.group)
        };
        self.own.iter().all(is_repelling)
    }

    /// Returns true if nodes without the key may receive the pods. Such nodes are in no domain.
    /// Anti-affinity does not apply there, and affinity or spread cannot be satisfied.
    fn allows_keyless(&self) -> bool {
        self.own.iter().all(|term| term.kind == TermKind::AntiAffinity)
    }

    /// Returns true if a node that cannot hold the pods still counts as a domain.
    fn counts_node(&self, node: &NodeEligibility) -> bool {
        self.own.iter().any(|term| match term.kind {
            TermKind::Spread { honors_affinity, honors_taints, .. } => {
                (node.is_selected || !honors_affinity) && (node.is_tolerated || !honors_taints)
            }
            TermKind::Affinity | TermKind::AntiAffinity => false,
        })
    }
}

impl DomainSlice {
    fn unrestricted(planned: u32) -> Self {
        Self { within: Requirements::default(), planned }
    }
}

/// The rules of a pod that a node meets.
struct NodeEligibility {
    /// The node selector and the node affinity of the pod select the node.
    is_selected: bool,
    /// The pod tolerates all taints of the node.
    is_tolerated: bool,
}

impl NodeEligibility {
    fn admits(&self) -> bool {
        self.is_selected && self.is_tolerated
    }
}

/// Returns the offers of each domain of `key`, the cheapest first.
fn offers_by_domain<'o>(
    offers: impl Iterator<Item = (usize, &'o Offer)>,
    key: &LabelKey,
) -> OffersByDomain {
    let mut offered: BTreeMap<&LabelValue, Vec<(MicroUsd, usize)>> = BTreeMap::new();
    for (index, offer) in offers {
        let Some(domain) = offer.node.labels.get(key) else { continue };
        offered.entry(domain).or_default().push((offer.node.price, index));
    }
    let cheapest_first = |mut list: Vec<(MicroUsd, usize)>| {
        list.sort_unstable();
        list.into_iter().map(|(_, offer)| offer).collect()
    };
    offered.into_iter().map(|(domain, list)| (domain.clone(), cheapest_first(list))).collect()
}

/// A limit on the pods per domain, with the current counts.
struct DomainLimit {
    rule: LimitRule,
    pods: PodsByDomain,
    counts_itself: bool,
}

enum LimitRule {
    /// At most `max_skew` above the minimum, which is 0 with fewer than `min_domains` domains.
    Skew { max_skew: u32, min_domains: u32 },
    /// At most one pod.
    One,
}

impl DomainLimit {
    fn count_in(&self, domain: &LabelValue) -> u32 {
        self.pods.get(domain).copied().unwrap_or(0)
    }

    fn allow(&self, domain: &LabelValue) -> bool {
        match self.rule {
            LimitRule::One => self.count_in(domain) == 0,
            LimitRule::Skew { max_skew, min_domains } => {
                let enough = u32::try_from(self.pods.len()).is_ok_and(|n| n >= min_domains);
                let least = if enough { self.pods.values().min().copied().unwrap_or(0) } else { 0 };
                self.count_in(domain) + u32::from(self.counts_itself) <= least + max_skew
            }
        }
    }

    fn add(&mut self, domain: &LabelValue) {
        if self.counts_itself {
            *self.pods.entry(domain.clone()).or_insert(0) += 1;
        }
    }
}

/// Returns `scope` with `key` restricted to these values. No values mean that no node matches.
fn narrowed<'a>(
    scope: &Requirements,
    key: &LabelKey,
    values: impl IntoIterator<Item = &'a LabelValue>,
) -> Requirements {
    narrowed_to_set(scope, key, &label_in(values))
}

/// Returns `scope` with `key` restricted to `set`.
fn narrowed_to_set(scope: &Requirements, key: &LabelKey, set: &LabelSet) -> Requirements {
    let mut within = scope.clone();
    within.add(key.clone(), set);
    within
}

/// Returns the set of labels with one of these values.
fn label_in<'a>(values: impl IntoIterator<Item = &'a LabelValue>) -> LabelSet {
    LabelSet::present(ValueSet::from_values(values.into_iter().map(LabelValue::as_str)))
}

/// Returns true if the labels match the requirements.
pub(in crate::solver) fn is_within(within: &Requirements, labels: &Labels) -> bool {
    within.is_unconstrained() || within.matches_labels(labels)
}
