//! Which nodes a pod may run on, and why not on the others.
//!
//! Filters are of two kinds. Those that look at nothing but the node itself (its labels, taints,
//! ports, room) are in [`Local`], whose verdict is kept until the node changes. Those that look at
//! pods elsewhere are each a [`Bar`]: the number of certain pods in the node's domain must be in
//! a range. A filter to come is one or the other: a method of `Local`, or a bar. Volumes that pods
//! share are neither, and are counted one by one by [`Claims`].
//!
//! Filters run in the order of the default profile; the first that fails gives the reason.
//! Source: `pkg/scheduler/framework/plugins/{nodeports,noderesources,volumerestrictions,
//! nodevolumelimits,volumebinding,podtopologyspread,interpodaffinity}`, `pkg/scheduler/apis/config/v1/default_plugins.go`.

use std::collections::BTreeMap;
use std::fmt;

use super::Scheduler;
use super::class::Class;
use super::load::Short;
use super::local::{CLOSED, Local, Row};
use super::place::{Verdict, View};
use super::topology::{ABSENT, at};
use super::volumes::Claims;
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
    /// A volume is in use by a pod that does not share it.
    VolumeInUse,
    /// The node cannot attach so many volumes.
    TooManyVolumes,
    /// A volume cannot be reached from the node.
    VolumeElsewhere,
    /// A volume is not there yet.
    VolumeNotReady,
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
            Self::VolumeInUse => "volume in use",
            Self::TooManyVolumes => "too many volumes",
            Self::VolumeElsewhere => "volume in another place",
            Self::VolumeNotReady => "volume not there yet",
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

/// What may bar a node because of pods in its domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Spread,
    Affinity,
    AntiAffinity,
    ExistingAntiAffinity,
}

/// A rule about the pods in a domain, with the counts as they are now.
struct Bar<'a> {
    rule: Rule,
    /// The domain of each node.
    of_node: &'a [u32],
    /// The pods of each domain; domains beyond the end have none.
    pods: &'a [u32],
    least: u32,
    most: u32,
    /// Whether nodes without a domain pass.
    absent: bool,
}

impl Bar<'_> {
    #[inline]
    fn passes(&self, node: usize) -> bool {
        let domain = self.of_node[node];
        if domain == ABSENT {
            return self.absent;
        }
        let pods = self.pods.get(at(domain)).copied().unwrap_or(0);
        self.least <= pods && pods <= self.most
    }

    fn obstacle(&self, node: usize) -> Option<Obstacle> {
        let lacks_key = self.of_node[node] == ABSENT;
        let (reason, movable) = match self.rule {
            Rule::Spread if lacks_key => (UnfitReason::SpreadKey, false),
            Rule::Spread => (UnfitReason::Spread, true),
            Rule::Affinity => (UnfitReason::PodAffinity, false),
            Rule::AntiAffinity => (UnfitReason::PodAntiAffinity, true),
            Rule::ExistingAntiAffinity => (UnfitReason::ExistingAntiAffinity, true),
        };
        (!self.passes(node)).then_some(Obstacle { reason, movable })
    }
}

/// One pod at the gate: what it asks for, against the counts as they are now.
pub(super) struct Gate<'a> {
    scheduler: &'a Scheduler,
    versions: &'a [u32],
    local: &'a Local,
    view: &'a View,
    claims: Claims<'a>,
    bars: Vec<Bar<'a>>,
}

impl Scheduler {
    pub(super) fn gate(&self, class: usize) -> Gate<'_> {
        let class = &self.rules.classes[class];
        let local = &self.rules.locals[class.local];
        let claims =
            Claims { mounts: &class.mounts, known: &self.rules.volumes, attached: &self.attached };
        let mut gate = Gate {
            scheduler: self,
            versions: &self.versions,
            local,
            view: &self.ground.views[local.view],
            claims,
            bars: Vec::new(),
        };
        gate.raise_spread(class);
        gate.raise_affinity(class);
        gate
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

impl<'a> Gate<'a> {
    fn raise_spread(&mut self, class: &'a Class) {
        let Scheduler { ground, counters, .. } = self.scheduler;
        for spread in &class.hard_spread {
            let counter = &counters[spread.counter];
            let limit = spread.limit(counter, &ground.arenas[spread.arena]);
            self.bars.push(Bar {
                rule: Rule::Spread,
                of_node: ground.topologies[spread.topology].of_nodes(),
                pods: counter.pods(),
                // Where not one may be added, not even an empty domain passes.
                least: u32::from(limit.is_none()),
                most: limit.unwrap_or(0),
                absent: false,
            });
        }
    }

    /// Pods that all terms select must be in the node's domain of every term. The first pod of a
    /// group that selects itself needs only the keys; otherwise it could never run.
    fn raise_affinity(&mut self, class: &'a Class) {
        let Scheduler { rules, ground, tallies, carriers, .. } = self.scheduler;
        let of_node = |topology: usize| ground.topologies[topology].of_nodes();
        let none = |rule, topology, pods| Bar {
            rule,
            of_node: of_node(topology),
            pods,
            least: 0,
            most: 0,
            absent: true,
        };
        if let Some(affinity) = &class.affinity {
            let counted = affinity.tallies.iter().any(|tally| tallies[*tally].total > 0);
            let first = affinity.selects_itself && !counted;
            self.bars.extend(affinity.tallies.iter().map(|tally| Bar {
                rule: Rule::Affinity,
                of_node: of_node(tallies[*tally].topology),
                pods: tallies[*tally].counts(),
                least: u32::from(!first),
                most: u32::MAX,
                absent: false,
            }));
        }
        let avoided = class.avoids.iter().map(|tally| &tallies[*tally]);
        let avoided = avoided.filter(|tally| tally.total > 0);
        self.bars
            .extend(avoided.map(|tally| none(Rule::AntiAffinity, tally.topology, tally.counts())));
        let heard = class.member_of.iter().flat_map(|set| &rules.sets[*set].carriers);
        let repelling = heard.map(|index| &carriers[*index]).filter(|c| c.repelling > 0);
        self.bars
            .extend(repelling.map(|c| none(Rule::ExistingAntiAffinity, c.topology, c.repels())));
    }

    /// Returns the resource score of `node`, or [`CLOSED`] if the pod may not run there.
    #[inline]
    pub(super) fn score(&self, row: &mut Row, node: usize) -> i32 {
        if !self.bars.iter().all(|bar| bar.passes(node)) {
            return CLOSED;
        }
        let score = row.score(node, self.versions[node], || {
            let Scheduler { loads, balance, .. } = self.scheduler;
            self.local.score(node, self.view, &loads[node], *balance)
        });
        if score != CLOSED && self.mounts_pass(node) { score } else { CLOSED }
    }

    /// Returns whether the pod may run on `node`.
    pub(super) fn passes(&self, node: usize) -> bool {
        let Scheduler { ground, loads, .. } = self.scheduler;
        ground.present[node]
            && self.local.lets_in(node, self.view, &loads[node])
            && self.mounts_pass(node)
            && self.bars.iter().all(|bar| bar.passes(node))
    }

    #[inline]
    fn mounts_pass(&self, node: usize) -> bool {
        self.claims.pass(node, &self.scheduler.ground.nodes[node].allocatable)
    }

    /// Returns the reasons of the first filter that fails.
    pub(super) fn reasons(&self, node: usize) -> Vec<UnfitReason> {
        self.obstacles(node).into_iter().map(|obstacle| obstacle.reason).collect()
    }

    /// Returns what the first filter that fails finds on `node`.
    pub(super) fn obstacles(&self, node: usize) -> Vec<Obstacle> {
        let fixed = match self.view.node(node).verdict {
            Verdict::Fits if self.scheduler.ground.present[node] => None,
            Verdict::Fits | Verdict::Cordoned => Some(UnfitReason::Unschedulable),
            Verdict::OtherNode => Some(UnfitReason::NodeName),
            Verdict::Tainted => Some(UnfitReason::Taint),
            Verdict::NotChosen => Some(UnfitReason::NodeAffinity),
        };
        // Whether volumes are there is found out before any node is looked at.
        let fixed = fixed.filter(|_| !self.claims.mounts.waits);
        if let Some(reason) = fixed {
            return vec![Obstacle { reason, movable: false }];
        }
        let load = &self.scheduler.loads[node];
        if !load.has_ports(&self.local.ports) {
            return vec![Obstacle { reason: UnfitReason::HostPorts, movable: true }];
        }
        let short = load.shortages(&self.local.request);
        if !short.is_empty() {
            let obstacle = |(short, movable)| Obstacle { reason: self.short(short), movable };
            return short.into_iter().map(obstacle).collect();
        }
        let allocatable = &self.scheduler.ground.nodes[node].allocatable;
        let volume = self.claims.obstacle(node, allocatable).or_else(|| self.elsewhere(node));
        volume.or_else(|| self.bars.iter().find_map(|bar| bar.obstacle(node))).into_iter().collect()
    }

    fn elsewhere(&self, node: usize) -> Option<Obstacle> {
        let reason = UnfitReason::VolumeElsewhere;
        (!self.view.node(node).reachable).then_some(Obstacle { reason, movable: false })
    }

    fn short(&self, short: Short) -> UnfitReason {
        UnfitReason::Insufficient(match short {
            Short::Pods => return UnfitReason::TooManyPods,
            Short::Cpu => "cpu".into(),
            Short::Memory => "memory".into(),
            Short::Storage => "ephemeral-storage".into(),
            Short::Column(column) => self.scheduler.rules.columns[column].clone(),
        })
    }
}
