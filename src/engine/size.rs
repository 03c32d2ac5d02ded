//! The loop between pods and nodes, where the number of pods follows that of the nodes.
//!
//! Invariant: the loop begins without a node and only follows what the nodes of the plan ask for, so
//! that what it comes to rest at is the least that does; its rounds are bounded.

use super::{Inputs, input};
use crate::demand::{Asked, ClusterSize, Demand, SizedNode};
use crate::manifest::{Problem, Scaler, ScalerRule, Severity};
use crate::solve::{NewNode, Solution, solve};

/// Rounds of the loop. Where a pod asks for half of what a further one is added for, each round
/// halves the distance: sixteen leave nothing of any real cluster.
const ROUNDS: usize = 16;

/// Returns the demand of `inputs`, with what follows the nodes brought to rest.
pub(super) fn demand(inputs: &Inputs) -> Demand {
    let Inputs { desired, observed, .. } = inputs;
    let of = |size: &ClusterSize| {
        let asked = Asked {
            mode: inputs.demand,
            at: inputs.at,
            lead: desired.lead,
            size: size.clone(),
            is_forecast: inputs.is_forecast,
        };
        Demand::asked(desired, observed, &asked)
    };
    let mut size = ClusterSize::default();
    let mut demand = of(&size);
    // Every size met so far, with what it asks for.
    let mut met: Vec<(Vec<u32>, ClusterSize)> = Vec::new();
    for _ in 0..ROUNDS {
        let wanted = Demand::following(desired, &size);
        if wanted.is_empty() {
            return demand;
        }
        let next = size_after(inputs, &solve(&input(inputs, &demand, &[], &[])));
        let now = Demand::following(desired, &next);
        if now == wanted {
            // The same pods; what is said of the nodes is now what the plan has.
            return of(&next);
        }
        if let Some(begins) = met.iter().position(|(before, _)| *before == now) {
            // Packing is not even: sizes may ask for each other in turn. The largest holds all.
            met.push((wanted, size));
            let largest = met.split_off(begins).into_iter().max_by(|a, b| a.0.cmp(&b.0));
            return largest.map_or(demand, |(_, size)| of(&size));
        }
        met.push((wanted, size));
        size = next;
        demand = of(&size);
    }
    demand.problems.extend(chases(inputs, &size));
    demand
}

/// Returns the nodes that there will be.
fn size_after(inputs: &Inputs, solution: &Solution) -> ClusterSize {
    let gone = &solution.target.retires;
    let mut size = ClusterSize::of(inputs.observed, |name| !gone.contains_key(name));
    let launched = solution.target.launches.iter().map(|launch| {
        let NewNode { labels, allocatable, .. } = &launch.node;
        SizedNode { labels: labels.clone(), cpu: allocatable.cpu, is_schedulable: true }
    });
    size.nodes.extend(launched);
    size
}

/// Returns an error for each scaler of which the loop found no end.
fn chases(inputs: &Inputs, size: &ClusterSize) -> Vec<Problem> {
    let is_one = |scaler: &&Scaler| matches!(scaler.rule, ScalerRule::Proportional(_));
    let error = |scaler: &Scaler| Problem {
        origin: scaler.origin.clone(),
        severity: Severity::Error,
        object: scaler.object.clone(),
        message: format!(
            "its pods and the nodes they need chase each other: after {ROUNDS} rounds there are \
             {} nodes, and they ask for more pods still",
            size.nodes.len()
        ),
        hint: Some(
            "let a pod ask for less than what it is added for, or bound them with `max`".to_owned(),
        ),
    };
    inputs.desired.scalers.iter().filter(is_one).map(error).collect()
}
