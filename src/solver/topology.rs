//! Topology rules for the packing: the domains of pods, and the pods that may share a node.
//!
//! The packing works on amounts only. This module translates topology spread, affinity,
//! anti-affinity and host ports. A group becomes one or more [`DomainShare`]s, each with the
//! domains of its pods. Rules within one node become [`NodeRule`]s.
//!
//! The translation is guidance. The scheduling simulation applies every rule in full and decides.
//! For pods that the guidance cannot place, `rescue` asks the simulation directly.
//!
//! A domain is the value of any node label except the hostname. Possible domains are those of the
//! offers that admit the pods, and those of existing nodes. kube-scheduler counts only domains with
//! nodes. It would accept a fleet in one zone, which is not the intent of a spread over zones.

mod domain_assignment;
mod domain_counts;
mod inter_pod_terms;

use std::collections::{BTreeMap, BTreeSet};

use super::existing_node::ExistingNode;
use super::failure_domains;
use super::offer::Offer;
use super::offer_admission::OfferAdmission;
use super::problem::{FollowedPods, HostSpread};
use crate::demand::{Daemon, PodGroup};
use crate::model::ids::{LabelKey, Labels, Namespace};
use crate::model::pod::HostPort;
use crate::model::requirement::{Requirements, key};
use domain_assignment::DomainAssigner;
pub(super) use domain_assignment::is_within;
pub(super) use inter_pod_terms::{InterPodTerm, TermKind};
use inter_pod_terms::{excluded_groups, inter_pod_terms_of};

/// For each group, the label keys that its rules tie to a value.
pub(super) type TiedKeys = Vec<BTreeSet<LabelKey>>;

/// Returns the tied label keys of each group: the topology keys of its required terms, of the terms of
/// other groups that select it, and of the anti-affinity of any running pod that selects it.
pub(super) fn tied_keys(input: TopologyInput, daemons: &[Daemon]) -> TiedKeys {
    let mut tied_keys = vec![BTreeSet::new(); input.groups.len()];
    for InterPodTerm { owner, key, members, member_set: _, kind: _ } in inter_pod_terms(input) {
        for group in members.iter().chain([&owner]) {
            tied_keys[*group].insert(key.clone());
        }
    }
    let running = input.groups.iter().filter(|group| !group.running.is_empty());
    let shapes = running.map(|group| &group.shape).chain(daemons.iter().map(|d| &d.shape));
    let shapes = shapes.chain(input.existing.iter().flat_map(|node| &node.static_pods));
    for (key, members) in excluded_groups(shapes, input.groups, input.namespaces) {
        for group in members.iter() {
            tied_keys[*group].insert(key.clone());
        }
    }
    tied_keys
}

/// Pods of one group with the same domains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DomainShare {
    /// Index of the group.
    pub group: usize,
    /// Required node labels, in addition to the requirements of the pods.
    pub within: Requirements,
    /// Number of planned pods.
    pub planned: u32,
}

/// A rule for the pods of one node. Members are indices of groups.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NodeRule {
    /// At most `max_pods` pods of all members together.
    Cap { members: Vec<usize>, max_pods: u32 },
    /// No subject on a node with a peer.
    AntiAffinity { subjects: Vec<usize>, peers: Vec<usize> },
    /// No subject on a node without a peer.
    Affinity { subjects: Vec<usize>, peers: Vec<usize> },
}

/// The domains and node rules of all groups.
#[derive(Debug, Clone, Default)]
pub(super) struct TopologyAssignment {
    /// The shares, ordered by group. A group without rules has one share.
    pub domain_shares: Vec<DomainShare>,
    pub rules: Vec<NodeRule>,
    /// Sets of groups whose pods must all share one node.
    pub colocated: Vec<Vec<usize>>,
}

#[derive(Clone, Copy)]
pub(super) struct TopologyInput<'a> {
    pub groups: &'a [PodGroup],
    pub offers: &'a [Offer],
    pub admission: &'a OfferAdmission<'a>,
    pub existing: &'a [ExistingNode],
    pub namespaces: &'a BTreeMap<Namespace, Labels>,
    /// Maximum share of pods on one node or in one zone.
    pub failure_domains: failure_domains::FailureDomainLimits<'a>,
    pub followed_pods: FollowedPods,
    pub host_spread: HostSpread,
}

/// Returns the required terms of the groups and the terms for failure domains.
fn inter_pod_terms(input: TopologyInput) -> Vec<InterPodTerm> {
    let mut terms = inter_pod_terms_of(input.groups, input.namespaces);
    if input.host_spread == HostSpread::Even {
        allow_even_nodes(&mut terms, input.groups);
    }
    if !input.failure_domains.is_empty() {
        let sets = terms.iter().map(|term| term.member_set + 1).max().unwrap_or(0);
        terms.extend(input.failure_domains.spread_terms(input, sets));
    }
    terms
}

/// Raises the skew over hostnames to the pods of one node if the fewest nodes fill evenly. On one
/// node alone any number of pods is even, which is not the intent of a spread. Two nodes are the
/// minimum.
fn allow_even_nodes(terms: &mut [InterPodTerm], groups: &[PodGroup]) {
    for term in terms.iter_mut().filter(|term| term.key.as_str() == key::HOSTNAME) {
        if let TermKind::Spread { max_skew, min_domains, .. } = &mut term.kind {
            let planned = |member: &usize| groups[*member].counts.planned;
            let pods = term.members.iter().map(planned).fold(0, u32::saturating_add);
            *max_skew = (*max_skew).max(pods.div_ceil((*min_domains).max(2)));
        }
    }
}

impl TopologyAssignment {
    /// Returns one share per group and no rule.
    pub(super) fn unconstrained(groups: &[PodGroup]) -> Self {
        let shares = groups.iter().enumerate().filter(|(_, group)| is_placeable(group));
        let shares = shares.map(|(group, members)| DomainShare {
            group,
            within: Requirements::default(),
            planned: members.counts.planned,
        });
        Self { domain_shares: shares.collect(), ..Self::default() }
    }

    /// Returns one share per group, and only the caps of a new node that hold independently of
    /// other nodes. A topology spread is no such cap: it allows any number of pods if every node
    /// has as many.
    pub(super) fn caps_only(input: TopologyInput) -> Self {
        let mut terms = inter_pod_terms_of(input.groups, input.namespaces);
        terms.retain(|term| {
            term.key.as_str() == key::HOSTNAME && matches!(term.kind, TermKind::AntiAffinity)
        });
        let (mut rules, _) = node_rules(&terms);
        rules.extend(host_port_rules(input.groups));
        rules.retain(|rule| matches!(rule, NodeRule::Cap { .. }));
        rules.sort();
        rules.dedup();
        Self { rules, ..Self::unconstrained(input.groups) }
    }

    /// Assigns the pods of each group to domains and collects the node rules.
    pub(super) fn new(input: TopologyInput) -> Self {
        let terms = inter_pod_terms(input);
        let ports = host_port_rules(input.groups);
        if terms.is_empty() && ports.is_empty() {
            return Self::unconstrained(input.groups);
        }
        let (on_node, in_domain): (Vec<InterPodTerm>, Vec<InterPodTerm>) =
            terms.into_iter().partition(|term| term.key.as_str() == key::HOSTNAME);
        let (mut rules, together) = node_rules(&on_node);
        rules.extend(ports);
        rules.sort();
        rules.dedup();
        Self {
            domain_shares: DomainAssigner::new(input, &in_domain).assign(),
            rules,
            colocated: together,
        }
    }
}

/// Returns true if the group has pods to place and the solver supports them.
pub(super) fn is_placeable(group: &PodGroup) -> bool {
    group.shape.unsupported.is_empty() && group.counts.planned > 0
}

/// Converts terms with the hostname as topology key to node rules.
///
/// A new node has no pods, so a spread constraint allows it as many as the maximum skew. More are
/// possible where every eligible node has some. [`HostSpread::Even`] packs for that, and the
/// scheduling simulation decides.
fn node_rules(terms: &[InterPodTerm]) -> (Vec<NodeRule>, Vec<Vec<usize>>) {
    let (mut rules, mut together) = (Vec::new(), DisjointSets::default());
    for term in terms {
        let owner = term.owner;
        let includes_owner = term.members.contains(&owner);
        let peers: Vec<usize> =
            term.members.iter().copied().filter(|member| *member != owner).collect();
        match &term.kind {
            TermKind::Spread { max_skew, .. } if includes_owner => {
                let members = term.members.to_vec();
                rules.push(NodeRule::Cap { members, max_pods: *max_skew });
            }
            TermKind::Spread { .. } => {}
            TermKind::AntiAffinity => {
                if includes_owner {
                    rules.push(NodeRule::Cap { members: vec![owner], max_pods: 1 });
                }
                if !peers.is_empty() {
                    rules.push(NodeRule::AntiAffinity { subjects: vec![owner], peers });
                }
            }
            TermKind::Affinity if includes_owner => {
                // A group that is only followed may also run on other nodes.
                let follows = |other: &usize| {
                    let back = |r: &InterPodTerm| r.owner == *other && r.members.contains(&owner);
                    terms.iter().any(|r| r.kind == TermKind::Affinity && back(r))
                };
                let (tied, peers) = peers.into_iter().partition::<Vec<_>, _>(follows);
                together.join(owner, &tied);
                if !peers.is_empty() {
                    rules.push(NodeRule::Affinity { subjects: vec![owner], peers });
                }
            }
            TermKind::Affinity => rules.push(NodeRule::Affinity { subjects: vec![owner], peers }),
        }
    }
    (merge_into_caps(rules), together.into_sets())
}

/// Merges pairwise anti-affinity to one cap, for sets of groups that all exclude each other and
/// themselves.
fn merge_into_caps(rules: Vec<NodeRule>) -> Vec<NodeRule> {
    let mut sets: BTreeMap<Vec<usize>, BTreeSet<usize>> = BTreeMap::new();
    for rule in &rules {
        if let NodeRule::AntiAffinity { subjects, peers } = rule {
            let mut all = [subjects.as_slice(), peers].concat();
            all.sort_unstable();
            sets.entry(all).or_default().extend(subjects);
        }
    }
    let alone = |member: &usize| {
        let is_alone = |rule: &NodeRule| matches!(rule, NodeRule::Cap { members, max_pods: 1 } if *members == [*member]);
        rules.iter().any(is_alone)
    };
    sets.retain(|all, owners| all.iter().all(|m| owners.contains(m) && alone(m)));
    let caps = sets.keys().map(|members| NodeRule::Cap { members: members.clone(), max_pods: 1 });
    let caps: Vec<NodeRule> = caps.collect();
    let covered = |rule: &NodeRule| match rule {
        NodeRule::AntiAffinity { subjects, peers } => {
            let mut all = [subjects.as_slice(), peers].concat();
            all.sort_unstable();
            sets.contains_key(&all)
        }
        NodeRule::Cap { .. } | NodeRule::Affinity { .. } => false,
    };
    rules.into_iter().filter(|rule| !covered(rule)).chain(caps).collect()
}

/// Returns the rules for host ports: pods with the same host port exclude each other.
fn host_port_rules(groups: &[PodGroup]) -> Vec<NodeRule> {
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
            rules.push(NodeRule::Cap { members, max_pods: 1 });
        }
        for subjects in by_ip.into_values().filter(|_| !everywhere.is_empty()) {
            rules.push(NodeRule::AntiAffinity { subjects, peers: everywhere.clone() });
        }
    }
    rules
}

/// Returns the address that a host port binds, or an empty string for all addresses.
fn address(port: &HostPort) -> &str {
    if port.ip == "0.0.0.0" { "" } else { &port.ip }
}

/// Returns true if two host ports cannot both be bound on one node.
pub(super) fn host_ports_conflict(a: &HostPort, b: &HostPort) -> bool {
    let (one, other) = (address(a), address(b));
    a.port == b.port
        && a.protocol == b.protocol
        && (one == other || one.is_empty() || other.is_empty())
}

/// Disjoint sets of groups.
#[derive(Default)]
struct DisjointSets(Vec<BTreeSet<usize>>);

impl DisjointSets {
    fn join(&mut self, one: usize, peers: &[usize]) {
        let mut all: BTreeSet<usize> = peers.iter().copied().chain([one]).collect();
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
