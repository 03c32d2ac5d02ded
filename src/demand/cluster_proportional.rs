//! Replica counts of a cluster-proportional-autoscaler for a number of nodes and cores.

use crate::model::desired::{Ladder, Linear, Proportional, ProportionalMode};
use crate::model::ids::{Labels, NodeName};
use crate::model::observed::{Node, Observed};
use crate::model::requirement::Requirements;
use crate::model::units::MilliCpu;

/// Nodes of a cluster that count for proportional autoscalers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterSize {
    /// All nodes.
    pub nodes: Vec<SizedNode>,
}

/// Size and labels of a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SizedNode {
    /// Labels of the node.
    pub labels: Labels,
    /// Allocatable CPU.
    pub cpu: MilliCpu,
    /// True if the node is Ready and not cordoned.
    pub is_schedulable: bool,
}

impl ClusterSize {
    /// Returns the observed nodes that `stays` selects.
    pub fn from_observed(observed: &Observed, stays: impl Fn(&NodeName) -> bool) -> Self {
        let node = |node: &Node| SizedNode {
            labels: node.labels.clone(),
            cpu: node.allocatable.cpu,
            is_schedulable: node.ready && !node.unschedulable,
        };
        let nodes = observed.nodes.values().filter(|node| stays(&node.name));
        Self { nodes: nodes.map(node).collect() }
    }

    /// Returns the number of counted nodes and their cores, rounded up.
    fn counted_nodes(&self, selector: &Requirements, with_unschedulable: bool) -> (i64, i64) {
        let counts = |node: &&SizedNode| {
            (node.is_schedulable || with_unschedulable) && selector.matches_labels(&node.labels)
        };
        let counted_nodes = self.nodes.iter().filter(counts);
        let (nodes, milli) = counted_nodes
            .fold((0, 0_i64), |(nodes, milli), node| (nodes + 1, milli.saturating_add(node.cpu.0)));
        (nodes, milli.div_euclid(1000) + i64::from(milli.rem_euclid(1000) != 0))
    }
}

/// Returns the replica count for a cluster of this size, and the counted nodes and cores.
pub(super) fn replicas(rule: &Proportional, size: &ClusterSize) -> (u32, i64, i64) {
    let Proportional { nodes: selector, mode } = rule;
    match mode {
        ProportionalMode::Linear(linear) => {
            let (nodes, cores) = size.counted_nodes(selector, linear.include_unschedulable);
            (linear_replicas(linear, nodes, cores), nodes, cores)
        }
        ProportionalMode::Ladder(ladder) => {
            let (nodes, cores) = size.counted_nodes(selector, ladder.include_unschedulable);
            (ladder_replicas(ladder, nodes, cores), nodes, cores)
        }
    }
}

/// Returns the minimum and the maximum replica count; the maximum is `None` if unlimited.
pub(super) fn bounds(rule: &Proportional) -> (u32, Option<u32>) {
    match &rule.mode {
        ProportionalMode::Linear(Linear { min, max, prevent_single_point_of_failure, .. }) => {
            // The second replica is added after the bounds apply, so it may exceed them.
            let most = (*max).max(if *prevent_single_point_of_failure { 2 } else { 0 });
            (*min, (*max != 0).then_some(most))
        }
        ProportionalMode::Ladder(Ladder { cores, nodes, .. }) => {
            let all = || cores.iter().chain(nodes).map(|(_, replicas)| *replicas);
            let least = |steps: &[(i64, u32)]| steps.iter().map(|(_, n)| *n).min().unwrap_or(0);
            (least(cores).max(least(nodes)), all().max())
        }
    }
}

/// Returns the replica count of linear mode.
/// Source: `pkg/autoscaler/controller/linearcontroller`.
fn linear_replicas(linear: &Linear, nodes: i64, cores: i64) -> u32 {
    let share = |amount: i64, per_replica: Option<i64>| {
        // An unset divisor requests one replica.
        let pods = per_replica.map_or(1, |per| {
            let milli = amount.saturating_mul(1000);
            milli.div_euclid(per) + i64::from(milli.rem_euclid(per) != 0)
        });
        let pods = u32::try_from(pods).unwrap_or(u32::MAX).max(linear.min.max(1));
        if linear.max == 0 { pods } else { pods.min(linear.max) }
    };
    let by_cores = share(cores, linear.cores_per_replica_milli);
    let mut by_nodes = share(nodes, linear.nodes_per_replica_milli);
    if linear.prevent_single_point_of_failure && nodes > 1 {
        by_nodes = by_nodes.max(2);
    }
    by_cores.max(by_nodes)
}

/// Returns the replica count of ladder mode.
/// Source: `pkg/autoscaler/controller/laddercontroller`.
fn ladder_replicas(ladder: &Ladder, nodes: i64, cores: i64) -> u32 {
    let step = |steps: &[(i64, u32)], amount: i64| {
        let reached = steps.iter().take_while(|(from, _)| *from <= amount).last();
        reached.or(steps.first()).map_or(0, |(_, replicas)| *replicas)
    };
    step(&ladder.cores, cores).max(step(&ladder.nodes, nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(nodes: usize, milli: i64) -> ClusterSize {
        let share = milli / i64::try_from(nodes.max(1)).expect("few");
        let node =
            |_| SizedNode { labels: Labels::new(), cpu: MilliCpu(share), is_schedulable: true };
        ClusterSize { nodes: (0..nodes).map(node).collect() }
    }

    fn linear(cores: Option<i64>, nodes: Option<i64>, min: u32, max: u32) -> Linear {
        Linear {
            cores_per_replica_milli: cores,
            nodes_per_replica_milli: nodes,
            min,
            max,
            prevent_single_point_of_failure: false,
            include_unschedulable: false,
        }
    }

    fn count(mode: ProportionalMode, size: &ClusterSize) -> u32 {
        replicas(&Proportional { nodes: Requirements::default(), mode }, size).0
    }

    #[test]
    fn linear_mode_uses_the_larger_of_cores_and_nodes() {
        let replicas_for = |linear| count(ProportionalMode::Linear(linear), &size(4, 13_000));
        assert_eq!(replicas_for(linear(Some(2_000), Some(1_000), 1, 0)), 7);
        assert_eq!(
            replicas_for(linear(None, Some(2_000), 1, 0)),
            2,
            "an unset divisor requests one replica"
        );
        assert_eq!(replicas_for(linear(Some(2_000), None, 1, 3)), 3);
        assert_eq!(replicas_for(linear(Some(100_000), None, 5, 0)), 5);
    }

    #[test]
    fn second_replica_may_exceed_the_bounds() {
        let linear =
            Linear { prevent_single_point_of_failure: true, ..linear(Some(4_000), None, 1, 1) };
        let replicas_for =
            |nodes| count(ProportionalMode::Linear(linear.clone()), &size(nodes, 2_000));
        assert_eq!((replicas_for(1), replicas_for(2)), (1, 2));
    }

    #[test]
    fn ladder_mode_uses_the_last_step_reached() {
        let ladder = Ladder {
            cores: vec![(1, 1), (64, 3), (512, 5), (1024, 7)],
            nodes: vec![(1, 1), (2, 2)],
            include_unschedulable: false,
        };
        let replicas_for =
            |nodes, milli| count(ProportionalMode::Ladder(ladder.clone()), &size(nodes, milli));
        assert_eq!(replicas_for(100, 400_000), 3);
        assert_eq!(replicas_for(0, 0), 1, "below the first step, the first value counts");
        assert_eq!(replicas_for(100, 1_200_000), 7);
    }

    #[test]
    fn only_schedulable_nodes_with_the_labels_count() {
        let mut size = size(4, 8_000);
        size.nodes[0].is_schedulable = false;
        size.nodes[1].labels = [crate::model::requirement::label("pool", "a")].into();
        let rule = |labels: Labels| Proportional {
            nodes: Requirements::from_labels(&labels),
            mode: ProportionalMode::Linear(linear(None, Some(1_000), 1, 0)),
        };
        let all = rule(Labels::new());
        let labeled = rule([crate::model::requirement::label("pool", "a")].into());
        assert_eq!((replicas(&all, &size).0, replicas(&labeled, &size).0), (3, 1));
    }
}
