//! What rules between pods mean for the packing: which pods go to which zone, and which may share
//! a node.
//!
//! The packing knows amounts only. Here spreading, affinity, anti-affinity and host ports are
//! turned into amounts: a group becomes *lots*, each with the domains that its pods go to, and
//! rules about one node become [`NodeRule`]s that a filling keeps. This is guidance: what really
//! holds is decided by the rehearsal, which knows every rule in full, and pods that the guidance
//! has no place for are asked of the scheduler itself (`rescue`).
//!
//! A domain is the value of any node label but the hostname. The domains there could be are those
//! of the offers that admit the pods, and of nodes that stand; kube-scheduler counts only those
//! that have nodes, so that it would let a fleet in one zone be, which is not what a spread over
//! zones was written for.

mod domains;
mod relations;
mod tallies;

use std::collections::{BTreeMap, BTreeSet};

use super::offer::Offer;
use super::shares;
use super::standing::Standing;
use crate::demand::PodGroup;
use crate::ids::{LabelKey, Labels, Namespace};
use crate::pod::HostPort;
use crate::requirement::{Requirements, key};
use domains::Domains;
pub(super) use domains::lies_within;
use relations::relations;
pub(super) use relations::{Kind, Relation};

/// For each group, the keys of labels to whose values rules between pods tie its nodes.
pub(super) type Ties = Vec<BTreeSet<LabelKey>>;

/// Returns, for each group, the labels whose values decide about its pods: those of its own required
/// rules, and of the rules of others that speak of it.
pub(super) fn ties(field: Field) -> Ties {
    let mut ties = vec![BTreeSet::new(); field.groups.len()];
    for Relation { carrier, key, members, set: _, kind: _ } in rules_of(field) {
        for group in members.iter().chain([&carrier]) {
            ties[*group].insert(key.clone());
        }
    }
    ties
}

/// Pods of one group that go to the same domains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lot {
    /// The group.
    pub group: usize,
    /// What their nodes' labels have to be, beside what the pods ask for themselves.
    pub within: Requirements,
    /// How many there are.
    pub planned: u32,
}

/// What may share a node; numbers are groups.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeRule {
    /// At most so many pods of these together.
    Cap { members: Vec<usize>, most: u32 },
    /// None of the ones where there is any of the others.
    Apart { ones: Vec<usize>, others: Vec<usize> },
    /// None of the ones unless there is one of the others.
    Near { ones: Vec<usize>, others: Vec<usize> },
}

/// What becomes of all groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Allotment {
    /// The lots, by group; a group without rules is one lot.
    pub lots: Vec<Lot>,
    /// The rules about one node.
    pub rules: Vec<NodeRule>,
    /// Groups whose pods all go to one node, with those that go there with them.
    pub together: Vec<Vec<usize>>,
}

/// What an allotment is made from.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub groups: &'a [PodGroup],
    pub offers: &'a [Offer],
    pub standing: &'a [Standing],
    pub namespaces: &'a BTreeMap<Namespace, Labels>,
    /// How much one node or zone may hold.
    pub shares: shares::Limits<'a>,
}

/// Returns what the pods to place require of each other, and what is required of them together.
fn rules_of(field: Field) -> Vec<Relation> {
    let mut relations = relations(field.groups, field.namespaces);
    if !field.shares.are_none() {
        let sets = relations.iter().map(|relation| relation.set + 1).max().unwrap_or(0);
        relations.extend(field.shares.relations(field, sets));
    }
    relations
}

impl Allotment {
    /// Returns one lot for each group, and no rule.
    pub(super) fn free(groups: &[PodGroup]) -> Self {
        let lots = groups.iter().enumerate().filter(|(_, group)| is_placeable(group));
        let lots = lots.map(|(group, members)| Lot {
            group,
            within: Requirements::default(),
            planned: members.counts.planned,
        });
        Self { lots: lots.collect(), ..Self::default() }
    }

    /// Returns one lot for each group, and of the rules only how many pods no new node may hold
    /// together, whatever the other nodes hold. A spread is none of these: it allows any number as
    /// long as every node has as many.
    pub(super) fn loose(field: Field) -> Self {
        let mut relations = relations(field.groups, field.namespaces);
        relations.retain(|relation| {
            relation.key.as_str() == key::HOSTNAME && matches!(relation.kind, Kind::Apart)
        });
        let (mut rules, _) = node_rules(&relations);
        rules.extend(port_rules(field.groups));
        rules.retain(|rule| matches!(rule, NodeRule::Cap { .. }));
        rules.sort();
        rules.dedup();
        Self { rules, ..Self::free(field.groups) }
    }

    /// Returns where the pods of each group go, and the rules they keep on one node.
    pub(super) fn of(field: Field) -> Self {
        let relations = rules_of(field);
        let ports = port_rules(field.groups);
        if relations.is_empty() && ports.is_empty() {
            return Self::free(field.groups);
        }
        let (on_node, in_domain): (Vec<Relation>, Vec<Relation>) =
            relations.into_iter().partition(|relation| relation.key.as_str() == key::HOSTNAME);
        let (mut rules, together) = node_rules(&on_node);
        rules.extend(ports);
        rules.sort();
        rules.dedup();
        Self { lots: Domains::new(field, &in_domain).lots(), rules, together }
    }
}

/// Returns whether pods of the group are placed at all.
pub(super) fn is_placeable(group: &PodGroup) -> bool {
    group.shape.unsupported.is_empty() && group.counts.planned > 0
}

/// Turns rules whose domain is a node into what a filling keeps.
///
/// A new node has no pods, so that under a spread constraint it may get as many as the skew allows;
/// more are possible where every eligible node has some, which only the rehearsal can tell.
fn node_rules(relations: &[Relation]) -> (Vec<NodeRule>, Vec<Vec<usize>>) {
    let (mut rules, mut together) = (Vec::new(), Sets::default());
    for relation in relations {
        let carrier = relation.carrier;
        let itself = relation.members.contains(&carrier);
        let others: Vec<usize> =
            relation.members.iter().copied().filter(|member| *member != carrier).collect();
        match &relation.kind {
            Kind::Spread { max_skew, .. } if itself => {
                let members = relation.members.to_vec();
                rules.push(NodeRule::Cap { members, most: *max_skew });
            }
            Kind::Spread { .. } => {}
            Kind::Apart => {
                if itself {
                    rules.push(NodeRule::Cap { members: vec![carrier], most: 1 });
                }
                if !others.is_empty() {
                    rules.push(NodeRule::Apart { ones: vec![carrier], others });
                }
            }
            Kind::Near if itself => {
                // Whoever is only followed has other places as well.
                let follows = |other: &usize| {
                    let back = |r: &Relation| r.carrier == *other && r.members.contains(&carrier);
                    relations.iter().any(|r| r.kind == Kind::Near && back(r))
                };
                let (tied, others) = others.into_iter().partition::<Vec<_>, _>(follows);
                together.join(carrier, &tied);
                if !others.is_empty() {
                    rules.push(NodeRule::Near { ones: vec![carrier], others });
                }
            }
            Kind::Near => rules.push(NodeRule::Near { ones: vec![carrier], others }),
        }
    }
    (joined_caps(rules), together.into_sets())
}

/// Joins the pairs of a set of groups that all keep apart from each other, and each from itself, to
/// one cap.
fn joined_caps(rules: Vec<NodeRule>) -> Vec<NodeRule> {
    let mut sets: BTreeMap<Vec<usize>, BTreeSet<usize>> = BTreeMap::new();
    for rule in &rules {
        if let NodeRule::Apart { ones, others } = rule {
            let mut all = [ones.as_slice(), others].concat();
            all.sort_unstable();
            sets.entry(all).or_default().extend(ones);
        }
    }
    let alone = |member: &usize| {
        let is_alone = |rule: &NodeRule| matches!(rule, NodeRule::Cap { members, most: 1 } if *members == [*member]);
        rules.iter().any(is_alone)
    };
    sets.retain(|all, carriers| all.iter().all(|m| carriers.contains(m) && alone(m)));
    let caps = sets.keys().map(|members| NodeRule::Cap { members: members.clone(), most: 1 });
    let caps: Vec<NodeRule> = caps.collect();
    let covered = |rule: &NodeRule| match rule {
        NodeRule::Apart { ones, others } => {
            let mut all = [ones.as_slice(), others].concat();
            all.sort_unstable();
            sets.contains_key(&all)
        }
        NodeRule::Cap { .. } | NodeRule::Near { .. } => false,
    };
    rules.into_iter().filter(|rule| !covered(rule)).chain(caps).collect()
}

/// Host ports: pods that bind the same port of a node keep apart.
fn port_rules(groups: &[PodGroup]) -> Vec<NodeRule> {
    let mut by_port: BTreeMap<(u16, &str), BTreeMap<&str, Vec<usize>>> = BTreeMap::new();
    for (index, group) in groups.iter().enumerate().filter(|(_, group)| is_placeable(group)) {
        for port in &group.shape.host_ports {
            let by_ip = by_port.entry((port.port, port.protocol.as_str())).or_default();
            by_ip.entry(address(port)).or_default().push(index);
        }
    }
    let mut rules = Vec::new();
    for mut by_ip in by_port.into_values() {
        let everywhere = by_ip.remove("").unwrap_or_default();
        for groups in by_ip.values().chain([&everywhere]).filter(|groups| !groups.is_empty()) {
            let mut members = groups.clone();
            members.dedup();
            rules.push(NodeRule::Cap { members, most: 1 });
        }
        for ones in by_ip.into_values().filter(|_| !everywhere.is_empty()) {
            rules.push(NodeRule::Apart { ones, others: everywhere.clone() });
        }
    }
    rules
}

/// The address that a host port binds; none means every one.
fn address(port: &HostPort) -> &str {
    if port.ip == "0.0.0.0" { "" } else { &port.ip }
}

/// Returns whether two host ports cannot both be bound on one node.
pub(super) fn ports_clash(a: &HostPort, b: &HostPort) -> bool {
    let (one, other) = (address(a), address(b));
    a.port == b.port
        && a.protocol == b.protocol
        && (one == other || one.is_empty() || other.is_empty())
}

/// Disjoint sets of groups.
#[derive(Default)]
struct Sets(Vec<BTreeSet<usize>>);

impl Sets {
    fn join(&mut self, one: usize, others: &[usize]) {
        let mut all: BTreeSet<usize> = others.iter().copied().chain([one]).collect();
        let (touched, apart): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.0).into_iter().partition(|set| !set.is_disjoint(&all));
        all.extend(touched.into_iter().flatten());
        self.0 = apart;
        self.0.push(all);
    }

    fn into_sets(self) -> Vec<Vec<usize>> {
        let mut sets: Vec<Vec<usize>> =
            self.0.into_iter().map(|set| set.into_iter().collect()).collect();
        sets.sort();
        sets
    }
}
