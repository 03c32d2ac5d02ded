//! Filters: the nodes that a pod may run on, and the reasons against other nodes.
//!
//! There are two kinds of filters. Filters on the node alone (labels, taints, ports, free
//! resources) are in [`NodeLocalFilter`], whose result is cached until the node changes. Filters on
//! other pods are [`DomainFilter`]s: the number of certain pods in the node's domain must be in a
//! range. Shared volumes are neither, and are counted by [`VolumeFilter`].
//!
//! Filters run in the order of the default profile, and the first that fails gives the reason.
//! Source: `pkg/scheduler/framework/plugins/{nodeports,noderesources,volumerestrictions,
//! nodevolumelimits,volumebinding,podtopologyspread,interpodaffinity}`,
//! `pkg/scheduler/apis/config/v1/default_plugins.go`.

use std::collections::BTreeMap;

use super::Scheduler;
use super::node_local::{EXCLUDED, NodeLocalFilter, ScoreRow, UNFIT};
use super::node_usage::{ShortResource, Shortage};
use super::node_view::{NodeMatch, NodeViews};
use super::pod_class::PodClass;
use super::topology::{ABSENT, to_index};
use super::unfit::{FilterFailure, Unfit, UnfitReason};
use super::volumes::VolumeFilter;

/// Rule about the pods in the domain of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DomainRule {
    Spread,
    Affinity,
    AntiAffinity,
    ExistingAntiAffinity,
}

/// A rule about the pods in a domain, with the current counts.
struct DomainFilter<'a> {
    rule: DomainRule,
    /// Domain of each node.
    of_node: &'a [u32],
    /// Number of pods of each domain; domains beyond the end have none.
    pods: &'a [u32],
    least: u32,
    most: u32,
    /// True if nodes without a domain pass.
    passes_without_domain: bool,
}

impl DomainFilter<'_> {
    #[inline]
    fn passes(&self, node: usize) -> bool {
        let domain = self.of_node[node];
        if domain == ABSENT {
            return self.passes_without_domain;
        }
        let pods = self.pods.get(to_index(domain)).copied().unwrap_or(0);
        self.least <= pods && pods <= self.most
    }

    fn failure(&self, node: usize) -> Option<FilterFailure> {
        let lacks_key = self.of_node[node] == ABSENT;
        let (reason, movable) = match self.rule {
            DomainRule::Spread if lacks_key => (UnfitReason::SpreadKey, false),
            DomainRule::Spread => (UnfitReason::Spread, true),
            DomainRule::Affinity => (UnfitReason::PodAffinity, false),
            DomainRule::AntiAffinity => (UnfitReason::PodAntiAffinity, true),
            DomainRule::ExistingAntiAffinity => (UnfitReason::ExistingAntiAffinity, true),
        };
        (!self.passes(node)).then_some(FilterFailure { reason, evictable: movable })
    }
}

/// All filters of one pod with the current counts.
pub(super) struct PodFilter<'a> {
    scheduler: &'a Scheduler,
    versions: &'a [u32],
    node_local: &'a NodeLocalFilter,
    view: &'a NodeViews,
    volumes: VolumeFilter<'a>,
    domains: Vec<DomainFilter<'a>>,
}

impl Scheduler {
    pub(super) fn pod_filter(&self, class: usize) -> PodFilter<'_> {
        let class = &self.registry.classes[class];
        let local = &self.registry.node_locals[class.node_local];
        let claims = VolumeFilter {
            mounts: &class.volumes,
            index: &self.registry.volumes,
            attached: &self.attached_volumes,
        };
        let mut filter = PodFilter {
            scheduler: self,
            versions: &self.versions,
            node_local: local,
            view: &self.nodes.views[local.views],
            volumes: claims,
            domains: Vec::new(),
        };
        filter.add_spread(class);
        filter.add_affinity(class);
        filter
    }

    /// Counts the reasons why no node fits.
    pub(super) fn explain(&self, class: usize) -> Unfit {
        let filter = self.pod_filter(class);
        let nodes = self.order.nodes();
        let mut reasons = BTreeMap::new();
        for reason in nodes.iter().flat_map(|node| filter.reasons(*node)) {
            *reasons.entry(reason).or_insert(0) += 1;
        }
        Unfit { nodes: nodes.len(), reasons }
    }
}

impl<'a> PodFilter<'a> {
    fn add_spread(&mut self, class: &'a PodClass) {
        let Scheduler { nodes: ground, spread_counters: counters, .. } = self.scheduler;
        for spread in &class.hard_spread {
            let counter = &counters[spread.counter];
            let limit = spread.limit(counter, &ground.eligible_domains[spread.eligible_domains]);
            self.domains.push(DomainFilter {
                rule: DomainRule::Spread,
                of_node: ground.topologies[spread.topology].domain_of_nodes(),
                pods: counter.pods(),
                // If no pod may be added, even an empty domain fails.
                least: u32::from(limit.is_none()),
                most: limit.unwrap_or(0),
                passes_without_domain: false,
            });
        }
    }

    /// Adds the affinity filters. Pods that all terms select must be in the node's domain of every
    /// term. The first pod of a group that selects itself needs only the keys; otherwise it could
    /// never run.
    fn add_affinity(&mut self, class: &'a PodClass) {
        let Scheduler {
            registry: rules,
            nodes: ground,
            pod_counts: tallies,
            term_carriers: carriers,
            ..
        } = self.scheduler;
        let of_node = |topology: usize| ground.topologies[topology].domain_of_nodes();
        let none = |rule, topology, pods| DomainFilter {
            rule,
            of_node: of_node(topology),
            pods,
            least: 0,
            most: 0,
            passes_without_domain: true,
        };
        if let Some(affinity) = &class.affinity {
            let counted = affinity.tallies.iter().any(|counts| tallies[*counts].total > 0);
            let first = affinity.selects_itself && !counted;
            self.domains.extend(affinity.tallies.iter().map(|counts| DomainFilter {
                rule: DomainRule::Affinity,
                of_node: of_node(tallies[*counts].topology),
                pods: tallies[*counts].counts(),
                least: u32::from(!first),
                most: u32::MAX,
                passes_without_domain: false,
            }));
        }
        let avoided = class.avoided.iter().map(|counts| &tallies[*counts]);
        let avoided = avoided.filter(|counts| counts.total > 0);
        self.domains.extend(
            avoided.map(|counts| none(DomainRule::AntiAffinity, counts.topology, counts.counts())),
        );
        let selecting = class.member_of.iter().flat_map(|set| &rules.sets[*set].term_carriers);
        let repelling = selecting.map(|index| &carriers[*index]).filter(|c| c.repelling > 0);
        self.domains.extend(
            repelling.map(|c| none(DomainRule::ExistingAntiAffinity, c.topology, c.repels())),
        );
    }

    /// Returns the resource score of `node`; [`UNFIT`] or [`EXCLUDED`] if it fails a filter.
    #[inline]
    pub(super) fn score(&self, row: &mut ScoreRow, node: usize) -> i32 {
        if !self.domains.iter().all(|domain| domain.passes(node)) {
            return EXCLUDED;
        }
        let score = row.score(node, self.versions[node], || {
            let Scheduler { usage: loads, balance, .. } = self.scheduler;
            self.node_local.score(node, self.view, &loads[node], *balance)
        });
        if score == UNFIT || self.volumes_pass(node) { score } else { EXCLUDED }
    }

    /// Returns true if the pod may run on `node`.
    pub(super) fn passes(&self, node: usize) -> bool {
        let Scheduler { nodes: ground, usage: loads, .. } = self.scheduler;
        ground.present[node]
            && self.node_local.passes(node, self.view, &loads[node])
            && self.volumes_pass(node)
            && self.domains.iter().all(|domain| domain.passes(node))
    }

    #[inline]
    fn volumes_pass(&self, node: usize) -> bool {
        self.volumes.passes(node, &self.scheduler.nodes.nodes[node].allocatable)
    }

    /// Returns the reasons of the first filter that fails.
    pub(super) fn reasons(&self, node: usize) -> Vec<UnfitReason> {
        self.failures(node).into_iter().map(|obstacle| obstacle.reason).collect()
    }

    /// Returns the failures of the first filter that fails on `node`.
    pub(super) fn failures(&self, node: usize) -> Vec<FilterFailure> {
        let fixed = match self.view.node(node).node_match {
            NodeMatch::Fits if self.scheduler.nodes.present[node] => None,
            NodeMatch::Fits | NodeMatch::Cordoned => Some(UnfitReason::Unschedulable),
            NodeMatch::OtherNodeName => Some(UnfitReason::NodeName),
            NodeMatch::Tainted => Some(UnfitReason::Taint),
            NodeMatch::AffinityMismatch => Some(UnfitReason::NodeAffinity),
        };
        // Volume readiness is checked before any node.
        let fixed = fixed.filter(|_| !self.volumes.mounts.is_waiting);
        if let Some(reason) = fixed {
            return vec![FilterFailure { reason, evictable: false }];
        }
        let load = &self.scheduler.usage[node];
        if !load.has_free_ports(&self.node_local.ports) {
            return vec![FilterFailure { reason: UnfitReason::HostPorts, evictable: true }];
        }
        let short = load.shortages(&self.node_local.request);
        if !short.is_empty() {
            let obstacle = |short: Shortage| FilterFailure {
                reason: self.shortage_reason(short.resource),
                evictable: short.fits_empty_node,
            };
            return short.into_iter().map(obstacle).collect();
        }
        let allocatable = &self.scheduler.nodes.nodes[node].allocatable;
        let volume =
            self.volumes.failure(node, allocatable).or_else(|| self.volume_elsewhere(node));
        volume
            .or_else(|| self.domains.iter().find_map(|domain| domain.failure(node)))
            .into_iter()
            .collect()
    }

    fn volume_elsewhere(&self, node: usize) -> Option<FilterFailure> {
        let reason = UnfitReason::VolumeElsewhere;
        (!self.view.node(node).volumes_reachable)
            .then_some(FilterFailure { reason, evictable: false })
    }

    fn shortage_reason(&self, short: ShortResource) -> UnfitReason {
        UnfitReason::Insufficient(match short {
            ShortResource::Pods => return UnfitReason::TooManyPods,
            ShortResource::Cpu => "cpu".into(),
            ShortResource::Memory => "memory".into(),
            ShortResource::Storage => "ephemeral-storage".into(),
            ShortResource::Column(column) => self.scheduler.registry.columns[column].clone(),
        })
    }
}
