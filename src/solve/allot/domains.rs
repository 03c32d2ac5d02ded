//! Which zone, or other domain, the pods of each group go to.
//!
//! Groups are taken in their order: first those that spread or keep apart, then those that follow
//! others. Pods that run count where they run; each further pod goes to the allowed domain that has
//! the fewest, the cheaper one among equals. A group that is only kept away from some domains is
//! left free among the rest.

use std::collections::{BTreeMap, BTreeSet};

use super::relations::{Kind, Relation};
use super::tallies::{Counts, Tallies};
use super::{Field, Lot, is_placeable};
use crate::demand::NodeChoice;
use crate::ids::{LabelKey, LabelValue, Labels};
use crate::pod::{Taint, Toleration, untolerated};
use crate::requirement::{LabelSet, Requirements, ValueSet};
use crate::solve::offer::{Offer, admits};
use crate::solve::standing::Standing;
use crate::units::MicroUsd;

/// A part of a group with what is decided of its domains so far.
type Piece = (Requirements, u32);

/// The domains of a key that pods could go to, each with the price of its cheapest node; those
/// without a price count, but hold none.
type Universe = BTreeMap<LabelValue, Option<MicroUsd>>;

/// What decides which offers admit a pod: the domains that are left, and what it says of nodes.
type Says<'a> = (Requirements, &'a NodeChoice, &'a [Toleration]);

/// Offers by domain, the cheapest first.
type Offered = BTreeMap<LabelValue, Vec<usize>>;

/// Where groups are and go, while it is decided.
pub(super) struct Domains<'a> {
    field: Field<'a>,
    relations: &'a [Relation],
    /// Relations that a group has itself, by group.
    own: BTreeMap<usize, Vec<usize>>,
    /// Relations of others that keep a group away, by group.
    shunned_by: BTreeMap<usize, Vec<usize>>,
    /// Pods by key and domain: those that run and those that were allotted.
    tallies: Tallies,
    /// The offers of each key that pods which say the same may have.
    offered: BTreeMap<LabelKey, BTreeMap<Says<'a>, Offered>>,
    pieces: BTreeMap<usize, Vec<Piece>>,
}

impl<'a> Domains<'a> {
    pub(super) fn new(field: Field<'a>, relations: &'a [Relation]) -> Self {
        let (mut own, mut shunned_by) = (BTreeMap::new(), BTreeMap::new());
        for (index, relation) in relations.iter().enumerate() {
            own.entry(relation.carrier).or_insert_with(Vec::new).push(index);
            for member in relation.members.iter().filter(|_| relation.kind == Kind::Apart) {
                shunned_by.entry(*member).or_insert_with(Vec::new).push(index);
            }
        }
        let tallies = Tallies::new(field.groups.len(), relations);
        let (offered, pieces) = (BTreeMap::new(), BTreeMap::new());
        let mut domains = Self { field, relations, own, shunned_by, tallies, offered, pieces };
        domains.count_running();
        domains
    }

    /// Returns every group's lots.
    pub(super) fn lots(mut self) -> Vec<Lot> {
        let follows = |relation: &usize| self.relations[*relation].kind == Kind::Near;
        let follower = |group: &usize| self.own.get(group).is_some_and(|r| r.iter().any(follows));
        let concerned: BTreeSet<usize> =
            self.own.keys().chain(self.shunned_by.keys()).copied().collect();
        let (followers, leaders): (Vec<usize>, Vec<usize>) =
            concerned.into_iter().partition(follower);
        for group in leaders.into_iter().chain(followers) {
            self.decide(group);
        }
        let groups = self.field.groups.iter().enumerate();
        let mut lots = Vec::new();
        for (group, members) in groups.filter(|(_, group)| is_placeable(group)) {
            let whole = || vec![(Requirements::default(), members.counts.planned)];
            let pieces = self.pieces.remove(&group).unwrap_or_else(whole);
            let lot = |(within, planned)| Lot { group, within, planned };
            lots.extend(pieces.into_iter().filter(|(_, planned)| *planned > 0).map(lot));
        }
        lots
    }

    /// Counts the planned pods that run, by every key that some relation speaks of.
    fn count_running(&mut self) {
        let relations = self.relations;
        let keys: BTreeSet<&LabelKey> = relations.iter().map(|r| &r.key).collect();
        for key in keys {
            for group in 0..self.field.groups.len() {
                for (domain, pods) in self.running(group, key, &Requirements::default()) {
                    self.tallies.add(group, key, &domain, pods);
                }
            }
        }
    }

    /// Returns the planned pods of a group that run on nodes within `scope`, by domain.
    fn running(&self, group: usize, key: &LabelKey, scope: &Requirements) -> Counts {
        let group = &self.field.groups[group];
        let mut left = group.counts.planned;
        let mut counts = Counts::new();
        if group.running.is_empty() {
            return counts;
        }
        for node in self.field.standing.iter().filter(|node| scope.match_labels(&node.labels)) {
            let Some(domain) = node.labels.get(key) else { continue };
            let here = group.running.get(&node.name).copied().unwrap_or(0).min(left);
            if here > 0 {
                left -= here;
                *counts.entry(domain.clone()).or_insert(0) += here;
            }
        }
        counts
    }

    /// Returns how many planned pods of a group run where they are in no domain of the key and may be:
    /// on nodes that stay, and on those that may go.
    fn running_keyless(&self, task: &Task, scope: &Requirements) -> (u32, u32) {
        let group = &self.field.groups[task.group];
        let (mut stay, mut may_go) = (0, 0);
        if !task.allows_keyless() || group.running.is_empty() {
            return (stay, may_go);
        }
        let keyless = |node: &&Standing| {
            !node.labels.contains_key(&task.key) && scope.match_labels(&node.labels)
        };
        for node in self.field.standing.iter().filter(keyless) {
            let here = group.running.get(&node.name).copied().unwrap_or(0);
            let sum = if node.may_stay_after_all() { &mut may_go } else { &mut stay };
            *sum += here;
        }
        (stay, may_go)
    }

    fn decide(&mut self, group: usize) {
        if self.pieces.contains_key(&group) || !is_placeable(&self.field.groups[group]) {
            return;
        }
        let of = |list: Option<&Vec<usize>>| list.into_iter().flatten().copied().collect();
        let (own, shunned): (Vec<usize>, Vec<usize>) =
            (of(self.own.get(&group)), of(self.shunned_by.get(&group)));
        let keys: BTreeSet<LabelKey> =
            own.iter().chain(&shunned).map(|r| self.relations[*r].key.clone()).collect();
        let mut pieces = vec![(Requirements::default(), self.field.groups[group].counts.planned)];
        for key in keys {
            let on_key = |list: &[usize]| -> Vec<&'a Relation> {
                let here = list.iter().map(|relation| &self.relations[*relation]);
                here.filter(|relation| relation.key == key).collect()
            };
            let task = Task { group, own: on_key(&own), shunned: on_key(&shunned), key };
            let mut decided = Vec::new();
            for piece in pieces {
                decided.extend(self.split(&task, piece));
            }
            pieces = decided;
        }
        self.pieces.insert(group, pieces);
    }

    /// Gives the pods of one piece their domains of one key.
    fn split(&mut self, task: &Task<'a>, (scope, planned): Piece) -> Vec<Piece> {
        let running = self.running(task.group, &task.key, &scope);
        let universe = self.universe(task, &scope);
        let free: BTreeMap<LabelValue, MicroUsd> = universe
            .iter()
            .filter_map(|(domain, price)| Some((domain.clone(), (*price)?)))
            .filter(|(domain, _)| self.is_open(task, domain))
            .collect();
        if task.is_free() {
            let mut open = known(free.keys());
            if task.allows_keyless() {
                open = open.union(&LabelSet::absent());
            }
            return vec![(with(&scope, &task.key, &open), planned)];
        }
        let free = self.near(task, free);
        let mut placed = running.clone();
        let (stay, may_go) = self.running_keyless(task, &scope);
        let mut left = planned.saturating_sub(running.values().sum::<u32>() + stay);
        let mut levels = self.levels(task, &universe);
        while left > 0 {
            let allowed = free.iter().filter(|(domain, _)| levels.iter().all(|l| l.allow(domain)));
            let next = allowed.min_by_key(|(domain, price)| {
                (levels.iter().map(|l| l.of(domain)).sum::<u32>(), **price, (*domain).clone())
            });
            let Some((domain, _)) = next else { break };
            for level in &mut levels {
                level.add(domain);
            }
            *placed.entry(domain.clone()).or_insert(0) += 1;
            left -= 1;
        }
        // Where not all of them can go, their node stays, and then they stay too.
        let mut back = if left > 0 { may_go.saturating_sub(left) } else { 0 };
        for (domain, count) in placed.iter_mut().rev() {
            let new = *count - running.get(domain).copied().unwrap_or(0);
            let taken = new.min(back);
            *count -= taken;
            left += taken;
            back -= taken;
        }
        left += stay.min(planned);
        for (domain, count) in &placed {
            let new = count - running.get(domain).copied().unwrap_or(0);
            self.tallies.add(task.group, &task.key, domain, new);
        }
        let mut pieces: Vec<Piece> = placed
            .into_iter()
            .map(|(domain, count)| (narrowed(&scope, &task.key, [&domain]), count))
            .collect();
        if left > 0 {
            let keyless = task.allows_keyless();
            let rest = if keyless { LabelSet::absent() } else { known([]) };
            pieces.push((with(&scope, &task.key, &rest), left));
        }
        pieces
    }

    /// Returns the domains of the key that the pods of the group could go to, or that count.
    fn universe(&mut self, task: &Task, scope: &Requirements) -> Universe {
        let Field { groups, offers, .. } = self.field;
        let shape = &groups[task.group].shape;
        let says = (scope.clone(), &shape.nodes, shape.tolerations.as_slice());
        let of_key = self.offered.entry(task.key.clone()).or_default();
        let offered = of_key.entry(says).or_insert_with(|| {
            let admits = |labels: &Labels, taints: &[Taint]| {
                scope.match_labels(labels) && admits(shape, labels, taints)
            };
            offered(offers, &task.key, admits)
        });
        let mut universe = Universe::new();
        for (domain, cheapest_first) in offered {
            let fits = |offer: &&usize| shape.requests.fits(&offers[**offer].room);
            if let Some(offer) = cheapest_first.iter().find(fits) {
                universe.insert(domain.clone(), Some(offers[*offer].node.price));
            }
        }
        for node in self.field.standing {
            let Some(domain) = node.labels.get(&task.key) else { continue };
            let chosen = shape.nodes.any_of.iter().any(|a| a.match_labels(&node.labels));
            let tolerated = untolerated(&node.taints, &shape.tolerations).is_none();
            let roomy = node.schedulable && shape.requests.fits(&node.room);
            if chosen && tolerated && roomy && scope.match_labels(&node.labels) {
                universe.entry(domain.clone()).or_insert(None).get_or_insert(MicroUsd::ZERO);
            } else if task.counts_node(chosen, tolerated) {
                universe.entry(domain.clone()).or_insert(None);
            }
        }
        universe
    }

    /// Returns whether nothing that keeps apart stands between the group and the domain.
    fn is_open(&self, task: &Task, domain: &LabelValue) -> bool {
        let of_group = |group: usize| self.tallies.of_group(group, &task.key, domain);
        let avoids = |relation: &Relation| {
            let own = if relation.members.contains(&task.group) { of_group(task.group) } else { 0 };
            self.tallies.of_set(relation.set, &task.key, domain) > own
        };
        let shuns =
            |relation: &&Relation| relation.carrier != task.group && of_group(relation.carrier) > 0;
        !task.of_kind(Kind::Apart).any(avoids) && !task.shunned.iter().any(shuns)
    }

    /// Leaves the domains in which what the group follows is, or will be.
    ///
    /// Where it is nowhere yet, one domain is chosen for the group and for whatever of that may
    /// still go anywhere.
    fn near(
        &mut self,
        task: &Task<'a>,
        mut free: BTreeMap<LabelValue, MicroUsd>,
    ) -> BTreeMap<LabelValue, MicroUsd> {
        let followed: Vec<&Relation> = task.of_kind(Kind::Near).collect();
        for relation in followed {
            let has_pods =
                |domain: &LabelValue| self.tallies.of_set(relation.set, &task.key, domain) > 0;
            if free.keys().any(has_pods) {
                free.retain(|domain, _| has_pods(domain));
                continue;
            }
            let itself = relation.members.contains(&task.group);
            let pending: Vec<usize> = relation
                .members
                .iter()
                .copied()
                .filter(|g| *g != task.group && self.is_undecided(*g))
                .collect();
            if pending.is_empty() && !itself {
                return BTreeMap::new();
            }
            // Where those that are followed may run, as many of them as may.
            let kept_out = |domain: &LabelValue| {
                pending.iter().filter(|other| !self.may_run(**other, &task.key, domain)).count()
            };
            let best = free.iter().min_by_key(|(d, price)| (kept_out(d), **price, (*d).clone()));
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

    /// Returns whether some node of the domain, standing or offered, admits pods of the group.
    fn may_run(&self, group: usize, key: &LabelKey, domain: &LabelValue) -> bool {
        let shape = &self.field.groups[group].shape;
        let is_there = |labels: &Labels| labels.get(key) == Some(domain);
        let offered =
            self.field.offers.iter().map(|offer| (&offer.node.labels, &offer.node.taints));
        let standing = self.field.standing.iter().map(|node| (&node.labels, &node.taints));
        offered
            .chain(standing)
            .any(|(labels, taints)| is_there(labels) && admits(shape, labels, taints))
    }

    fn is_undecided(&self, group: usize) -> bool {
        is_placeable(&self.field.groups[group])
            && !self.pieces.contains_key(&group)
            && self.own.get(&group).is_none_or(|own| {
                own.iter().all(|relation| self.relations[*relation].kind == Kind::Near)
            })
    }

    /// Sends all pods of a group to one domain.
    fn pin(&mut self, group: usize, key: &LabelKey, domain: &LabelValue) {
        let planned = self.field.groups[group].counts.planned;
        let within = narrowed(&Requirements::default(), key, [domain]);
        self.pieces.insert(group, vec![(within, planned)]);
        self.tallies.clear(group, key);
        self.tallies.add(group, key, domain, planned);
    }

    /// Returns what limits the number of pods in each domain.
    fn levels(&self, task: &Task, universe: &Universe) -> Vec<Level> {
        let spread = task.own.iter().filter_map(|relation| {
            let rule = match relation.kind {
                Kind::Spread { max_skew, min_domains, .. } => Limit::Skew { max_skew, min_domains },
                Kind::Apart if relation.members.contains(&task.group) => Limit::One,
                Kind::Apart | Kind::Near => return None,
            };
            let sum = |domain: &LabelValue| self.tallies.of_set(relation.set, &task.key, domain);
            let pods: Counts =
                universe.keys().map(|domain| (domain.clone(), sum(domain))).collect();
            Some(Level { rule, pods, counts_itself: relation.members.contains(&task.group) })
        });
        spread.collect()
    }
}

/// One group and one key.
struct Task<'a> {
    group: usize,
    key: LabelKey,
    /// Relations of the group itself.
    own: Vec<&'a Relation>,
    /// Relations of others that keep it away.
    shunned: Vec<&'a Relation>,
}

impl<'a> Task<'a> {
    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &'a Relation> {
        self.own.iter().copied().filter(move |relation| relation.kind == kind)
    }

    /// Returns whether the group is kept out of domains, but neither spread nor drawn to any.
    fn is_free(&self) -> bool {
        let keeps_away = |relation: &&Relation| {
            relation.kind == Kind::Apart && !relation.members.contains(&self.group)
        };
        self.own.iter().all(keeps_away)
    }

    /// Returns whether nodes without the key are open to the pods: they are in no domain, so that
    /// nothing keeps apart there, and nothing can be near or spread.
    fn allows_keyless(&self) -> bool {
        self.own.iter().all(|relation| relation.kind == Kind::Apart)
    }

    /// Returns whether a node that cannot take the pods still counts as a domain.
    fn counts_node(&self, chosen: bool, tolerated: bool) -> bool {
        self.own.iter().any(|relation| match relation.kind {
            Kind::Spread { honors_affinity, honors_taints, .. } => {
                (chosen || !honors_affinity) && (tolerated || !honors_taints)
            }
            Kind::Near | Kind::Apart => false,
        })
    }
}

/// Returns the offers of each domain of `key` that are admitted, the cheapest first.
fn offered(
    offers: &[Offer],
    key: &LabelKey,
    admits: impl Fn(&Labels, &[Taint]) -> bool,
) -> Offered {
    let mut offered = Offered::new();
    for (index, offer) in offers.iter().enumerate() {
        let Some(domain) = offer.node.labels.get(key) else { continue };
        if admits(&offer.node.labels, &offer.node.taints) {
            offered.entry(domain.clone()).or_default().push(index);
        }
    }
    for list in offered.values_mut() {
        list.sort_by_key(|offer| offers[*offer].node.price);
    }
    offered
}

/// A limit on the pods of one domain, with how many there are.
struct Level {
    rule: Limit,
    pods: Counts,
    counts_itself: bool,
}

enum Limit {
    /// At most so many above the least, which is 0 while there are too few domains.
    Skew { max_skew: u32, min_domains: u32 },
    /// One pod.
    One,
}

impl Level {
    fn of(&self, domain: &LabelValue) -> u32 {
        self.pods.get(domain).copied().unwrap_or(0)
    }

    fn allow(&self, domain: &LabelValue) -> bool {
        match self.rule {
            Limit::One => self.of(domain) == 0,
            Limit::Skew { max_skew, min_domains } => {
                let enough = u32::try_from(self.pods.len()).is_ok_and(|n| n >= min_domains);
                let least = if enough { self.pods.values().min().copied().unwrap_or(0) } else { 0 };
                self.of(domain) + u32::from(self.counts_itself) <= least + max_skew
            }
        }
    }

    fn add(&mut self, domain: &LabelValue) {
        if self.counts_itself {
            *self.pods.entry(domain.clone()).or_insert(0) += 1;
        }
    }
}

/// Returns `scope` with `key` narrowed to these values; to none, where there are none.
fn narrowed<'a>(
    scope: &Requirements,
    key: &LabelKey,
    values: impl IntoIterator<Item = &'a LabelValue>,
) -> Requirements {
    with(scope, key, &known(values))
}

/// Returns `scope` with `key` narrowed to `set`.
fn with(scope: &Requirements, key: &LabelKey, set: &LabelSet) -> Requirements {
    let mut within = scope.clone();
    within.add(key.clone(), set);
    within
}

/// Returns the state of a label that has one of these values.
fn known<'a>(values: impl IntoIterator<Item = &'a LabelValue>) -> LabelSet {
    LabelSet::present(ValueSet::of(values.into_iter().map(LabelValue::as_str)))
}

/// Returns whether a node with these labels lies within.
pub(in crate::solve) fn lies_within(within: &Requirements, labels: &Labels) -> bool {
    within.is_unconstrained() || within.match_labels(labels)
}
