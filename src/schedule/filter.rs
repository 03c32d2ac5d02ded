//! Which nodes a pod may run on, and why not on the others.
//!
//! Filters run in the order of the default profile; the first that fails gives the reason.
//! Source: `pkg/scheduler/framework/plugins/{nodeports,noderesources,podtopologyspread,
//! interpodaffinity}`, `pkg/scheduler/apis/config/v1/default_plugins.go`.

use std::collections::BTreeMap;
use std::fmt;

use super::Scheduler;
use super::class::{Affinity, Class};
use super::load::Short;
use super::place::{Verdict, View};
use super::spread::Spread;
use super::topology::{Carriers, Tally};
use crate::units::ResourceName;

/// Why a node does not fit a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnfitReason {
    /// The node is cordoned.
    Unschedulable,
    /// The pod names another node.
    NodeName,
    /// The node has a taint that the pod does not tolerate.
    Taint,
    /// Node selector or required node affinity does not hold.
    NodeAffinity,
    /// A host port is in use.
    HostPorts,
    /// The node runs as many pods as it may.
    TooManyPods,
    /// Too little of a resource is free.
    Insufficient(ResourceName),
    /// The node lacks the topology key of a spread constraint that forbids.
    SpreadKey,
    /// A spread constraint would be broken.
    Spread,
    /// No pod that required affinity asks for is in the node's domain.
    PodAffinity,
    /// A pod that required anti-affinity excludes is in the node's domain.
    PodAntiAffinity,
    /// A pod in the node's domain excludes this one by its own required anti-affinity.
    ExistingAntiAffinity,
}

impl fmt::Display for UnfitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unschedulable => "cordoned",
            Self::NodeName => "not the node it names",
            Self::Taint => "taint not tolerated",
            Self::NodeAffinity => "node affinity not met",
            Self::HostPorts => "host port in use",
            Self::TooManyPods => "too many pods",
            Self::Insufficient(resource) => return write!(f, "insufficient {resource}"),
            Self::SpreadKey => "topology key of spread constraint missing",
            Self::Spread => "spread constraint not met",
            Self::PodAffinity => "pod affinity not met",
            Self::PodAntiAffinity => "pod anti-affinity not met",
            Self::ExistingAntiAffinity => "pod anti-affinity of a running pod",
        })
    }
}

/// Why no node fits a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// How many nodes there are.
    pub nodes: usize,
    /// How many nodes each reason ruled out; a node short of two resources is in two of them.
    pub reasons: BTreeMap<UnfitReason, u32>,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0/{} nodes", self.nodes)?;
        for (index, (reason, nodes)) in self.reasons.iter().enumerate() {
            write!(f, "{} {nodes} {reason}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

/// A reason that holds on a node, and whether evicting pods from that node might help.
pub(super) struct Obstacle {
    pub(super) reason: UnfitReason,
    pub(super) movable: bool,
}

/// One pod at the gate: what it asks for, against the counts as they are now.
pub(super) struct Gate<'a> {
    scheduler: &'a Scheduler,
    class: &'a Class,
    view: &'a View,
    /// The spread constraints that forbid, each with the most pods that a domain may have.
    limits: Vec<(&'a Spread, Option<usize>)>,
    /// Those who carry anti-affinity against the pod.
    repelled_by: Vec<&'a Carriers>,
    /// Whether the pod is the first of a group whose members want each other's company.
    first_of_its_kind: bool,
}

impl Scheduler {
    pub(super) fn gate(&self, class: usize) -> Gate<'_> {
        let class = &self.classes[class];
        let limit = |spread: &usize| (&self.spreads[*spread], self.spreads[*spread].limit());
        let sets = class.member_of.iter().map(|set| &self.sets[*set]);
        let carriers = sets.flat_map(|set| &set.carriers).map(|index| &self.carriers[*index]);
        Gate {
            scheduler: self,
            class,
            view: &self.views[class.view],
            limits: class.hard_spread.iter().map(limit).collect(),
            repelled_by: carriers.filter(|carriers| carriers.repelling > 0).collect(),
            first_of_its_kind: class.affinity.as_ref().is_some_and(|affinity| {
                let counted = |tally: &usize| self.tallies[*tally].total > 0;
                affinity.selects_itself && !affinity.tallies.iter().any(counted)
            }),
        }
    }

    /// Counts why none of the nodes fits.
    pub(super) fn explain(&self, class: usize) -> Unfit {
        let gate = self.gate(class);
        let nodes = self.order.nodes();
        let mut reasons = BTreeMap::new();
        for reason in nodes.iter().flat_map(|node| gate.reasons(*node)) {
            *reasons.entry(reason).or_insert(0) += 1;
        }
        Unfit { nodes: nodes.len(), reasons }
    }
}

impl Gate<'_> {
    /// Returns whether the pod may run on `node`.
    pub(super) fn passes(&self, node: usize) -> bool {
        let load = &self.scheduler.loads[node];
        self.scheduler.present[node]
            && self.view.node(node).verdict == Verdict::Fits
            && load.has_room(&self.class.request)
            && load.has_ports(&self.class.ports)
            && self.spread_obstacle(node).is_none()
            && self.affinity_obstacle(node).is_none()
    }

    /// Returns the reasons of the first filter that fails.
    pub(super) fn reasons(&self, node: usize) -> Vec<UnfitReason> {
        self.obstacles(node).into_iter().map(|obstacle| obstacle.reason).collect()
    }

    /// Returns what the first filter that fails finds on `node`.
    pub(super) fn obstacles(&self, node: usize) -> Vec<Obstacle> {
        let fixed = match self.view.node(node).verdict {
            Verdict::Fits if self.scheduler.present[node] => None,
            Verdict::Fits | Verdict::Cordoned => Some(UnfitReason::Unschedulable),
            Verdict::OtherNode => Some(UnfitReason::NodeName),
            Verdict::Tainted => Some(UnfitReason::Taint),
            Verdict::NotChosen => Some(UnfitReason::NodeAffinity),
        };
        if let Some(reason) = fixed {
            return vec![Obstacle { reason, movable: false }];
        }
        let load = &self.scheduler.loads[node];
        if !load.has_ports(&self.class.ports) {
            return vec![Obstacle { reason: UnfitReason::HostPorts, movable: true }];
        }
        let short = load.shortages(&self.class.request);
        if !short.is_empty() {
            let obstacle = |(short, movable)| Obstacle { reason: self.short(short), movable };
            return short.into_iter().map(obstacle).collect();
        }
        let spread = self.spread_obstacle(node);
        spread.or_else(|| self.affinity_obstacle(node)).into_iter().collect()
    }

    fn short(&self, short: Short) -> UnfitReason {
        UnfitReason::Insufficient(match short {
            Short::Pods => return UnfitReason::TooManyPods,
            Short::Cpu => "cpu".into(),
            Short::Memory => "memory".into(),
            Short::Storage => "ephemeral-storage".into(),
            Short::Column(column) => self.scheduler.columns[column].clone(),
        })
    }

    fn spread_obstacle(&self, node: usize) -> Option<Obstacle> {
        for (spread, limit) in &self.limits {
            let topology = &self.scheduler.topologies[spread.topology];
            let Some(domain) = topology.domain(node) else {
                return Some(Obstacle { reason: UnfitReason::SpreadKey, movable: false });
            };
            if limit.is_none_or(|limit| spread.pods(domain) > limit) {
                return Some(Obstacle { reason: UnfitReason::Spread, movable: true });
            }
        }
        None
    }

    fn affinity_obstacle(&self, node: usize) -> Option<Obstacle> {
        let Class { affinity, avoids, .. } = self.class;
        if affinity.as_ref().is_some_and(|affinity| !self.has_company(affinity, node)) {
            return Some(Obstacle { reason: UnfitReason::PodAffinity, movable: false });
        }
        let domain = |topology: usize| self.scheduler.topologies[topology].domain(node);
        let tallies = avoids.iter().map(|tally| &self.scheduler.tallies[*tally]);
        let met = |tally: &Tally| domain(tally.topology).is_some_and(|d| tally.count(d) > 0);
        if tallies.into_iter().any(met) {
            return Some(Obstacle { reason: UnfitReason::PodAntiAffinity, movable: true });
        }
        let repels = |c: &&Carriers| domain(c.topology).is_some_and(|domain| c.repels(domain));
        let repelled = self.repelled_by.iter().any(repels);
        repelled.then_some(Obstacle { reason: UnfitReason::ExistingAntiAffinity, movable: true })
    }

    /// Returns whether pods that all terms select are in the node's domain of every term. The
    /// first pod of a group that selects itself needs only the keys; otherwise it could never run.
    fn has_company(&self, affinity: &Affinity, node: usize) -> bool {
        let Scheduler { topologies, tallies, .. } = self.scheduler;
        let tallies = affinity.tallies.iter().map(|tally| &tallies[*tally]);
        tallies.into_iter().all(|tally| {
            let domain = topologies[tally.topology].domain(node);
            domain.is_some_and(|domain| self.first_of_its_kind || tally.count(domain) > 0)
        })
    }
}
