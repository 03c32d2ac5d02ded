//! Fixpoint iteration for workloads whose pod count depends on the node count.
//!
//! The iteration starts with a cluster size of zero. Packing is not monotonic: if sizes alternate,
//! the largest size of the cycle counts; without one, each proportional scaler gets an error. The
//! number of rounds is bounded.

use super::rule_budget::limit_pod_rules;
use super::{Inputs, solver_input};
use crate::demand::{ClusterSize, Demand, DemandQuery, SizedNode};
use crate::model::desired::{Problem, Scaler, ScalerRule};
use crate::model::fargate::{COMPUTE_TYPE, FARGATE};
use crate::model::ids::Labels;
use crate::model::observed::Observed;
use crate::model::requirement::{key, label};
use crate::model::units::MilliCpu;
use crate::solver::{Input, NewNode, Purpose, solve};

/// Maximum number of rounds. If a pod requests half of the cores per replica, each round halves the
/// distance. Sixteen rounds then suffice for any real cluster.
pub(super) const ROUNDS: usize = 16;

/// Returns the demand of `inputs` at the fixpoint of plans.
///
/// `world` has the initial nodes: the observed nodes, or no nodes for packing from scratch.
pub(super) fn demand(inputs: &Inputs, world: &Observed) -> Demand {
    fixpoint(inputs, world, Purpose::Plan)
}

/// Returns the demand of `inputs` at the fixpoint of estimates.
pub(super) fn estimated_demand(inputs: &Inputs, world: &Observed) -> Demand {
    fixpoint(inputs, world, Purpose::Estimate)
}

fn fixpoint(inputs: &Inputs, world: &Observed, purpose: Purpose) -> Demand {
    let Inputs { desired, observed, .. } = inputs;
    let demand_for = |size: &ClusterSize| {
        let query = DemandQuery {
            mode: inputs.demand,
            at: inputs.at,
            lead: desired.lead_time,
            size: size.clone(),
            is_forecast: inputs.is_forecast,
            ignores_runs: inputs.base.ignores_runs,
        };
        let mut demand = Demand::for_query(desired, observed, &query);
        limit_pod_rules(&mut demand, &desired.namespaces);
        demand
    };
    let mut size = ClusterSize::default();
    let mut demand = demand_for(&size);
    // Sizes of earlier rounds, with the resulting pod counts.
    let mut seen: Vec<(Vec<u32>, ClusterSize)> = Vec::new();
    for _ in 0..ROUNDS {
        let wanted = Demand::proportional_replicas(desired, &size);
        if wanted.is_empty() {
            return demand;
        }
        let next = size_after_plan(inputs, world, &demand, purpose);
        let now = Demand::proportional_replicas(desired, &next);
        if now == wanted {
            // The pod counts are equal: use the cluster size of this plan.
            return demand_for(&next);
        }
        if let Some(start) = seen.iter().position(|(before, _)| *before == now) {
            // Packing is not monotonic, so sizes may alternate. A size with the most pods of every
            // scaler satisfies the whole cycle. Without such a size there is no fixpoint.
            seen.push((wanted, size));
            let cycle = seen.split_off(start);
            if let Some(size) = largest(&cycle) {
                return demand_for(size);
            }
            demand.problems.extend(divergence_errors(inputs, &next));
            return demand;
        }
        seen.push((wanted, size));
        size = next;
        demand = demand_for(&size);
    }
    demand.problems.extend(divergence_errors(inputs, &size));
    demand
}

/// Returns the size with the maximum number of pods of every scaler, if there is one.
fn largest(cycle: &[(Vec<u32>, ClusterSize)]) -> Option<&ClusterSize> {
    let covers = |most: &[u32], other: &[u32]| most.iter().zip(other).all(|(a, b)| a >= b);
    let found = cycle.iter().find(|(most, _)| cycle.iter().all(|(other, _)| covers(most, other)));
    found.map(|(_, size)| size)
}

/// Returns the retained and launched nodes of a plan for `demand`.
fn size_after_plan(
    inputs: &Inputs,
    world: &Observed,
    demand: &Demand,
    purpose: Purpose,
) -> ClusterSize {
    let packed = if world.nodes.is_empty() { without_running_pods(demand) } else { demand.clone() };
    let inputs = Inputs { observed: world, ..inputs.clone() };
    let solution = solve(&Input { purpose, ..solver_input(&inputs, &packed, &[], &[]) });
    let retired = &solution.target.retires;
    let mut size = ClusterSize::from_observed(world, |name| !retired.contains_key(name));
    let launched = solution.target.launches.iter().map(|launch| {
        let NewNode { labels, allocatable, .. } = &launch.node;
        SizedNode { labels: labels.clone(), cpu: allocatable.cpu, is_schedulable: true }
    });
    size.nodes.extend(launched);
    size.nodes.extend(fargate_nodes(world, demand));
    size
}

/// Returns the nodes of planned Fargate pods that `world` does not have yet. Each pod has its own.
fn fargate_nodes(world: &Observed, demand: &Demand) -> Vec<SizedNode> {
    let labels: Labels =
        [label(COMPUTE_TYPE, FARGATE), label(key::OS, "linux"), label(key::ARCH, "amd64")].into();
    let there = world.nodes.values().filter(|node| node.is_fargate()).count();
    let planned = demand.fargate.iter().flat_map(|pods| {
        let size = pods.size.as_ref().ok().map(|size| MilliCpu(size.cpu_milli));
        let count = usize::try_from(pods.pods_on_fargate()).unwrap_or(usize::MAX);
        size.into_iter().flat_map(move |cpu| std::iter::repeat_n(cpu, count))
    });
    let node = |cpu| SizedNode { labels: labels.clone(), cpu, is_schedulable: true };
    planned.skip(there).map(node).collect()
}

/// Returns the demand without running pods, so that all pods need a placement.
pub(super) fn without_running_pods(demand: &Demand) -> Demand {
    let mut demand = demand.clone();
    for group in &mut demand.groups {
        group.clear_running();
        group.partitions.iter_mut().for_each(|part| part.running.clear());
    }
    demand
}

/// Returns an error for each proportional scaler, for an iteration that did not converge.
fn divergence_errors(inputs: &Inputs, size: &ClusterSize) -> Vec<Problem> {
    let is_proportional = |scaler: &&Scaler| matches!(scaler.rule, ScalerRule::Proportional(_));
    let error =
        |scaler: &Scaler| {
            Problem::error(scaler.origin.clone(), scaler.object.clone(), format!(
            "the number of its pods and the number of nodes do not converge (last: {} nodes)",
            size.nodes.len()
        )).hint("let a pod request less than the cores it is added for, or bound the replicas with \
             `max`")
        };
    inputs.desired.scalers.iter().filter(is_proportional).map(error).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_size_of_a_cycle_satisfies_all_scalers() {
        let sizes = |wants: &[[u32; 2]]| -> Vec<(Vec<u32>, ClusterSize)> {
            wants.iter().map(|want| (want.to_vec(), ClusterSize::default())).collect()
        };
        for (wants, has_largest) in [
            (&[[5, 2], [6, 2]][..], true),
            (&[[6, 3], [5, 3], [6, 2]][..], true),
            (&[[5, 2], [2, 8]][..], false),
        ] {
            assert_eq!(largest(&sizes(wants)).is_some(), has_largest, "{wants:?}");
        }
    }
}
