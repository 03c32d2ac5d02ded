//! The loop between pods and nodes, where the number of pods follows that of the nodes.
//!
//! Invariant: the loop begins without a node and only follows what the nodes of the plan ask for, so
//! that what it comes to rest at is the least that does; its rounds are bounded.

use super::{Inputs, input};
use crate::demand::{Asked, ClusterSize, Demand, SizedNode};
use crate::fleet::Observed;
use crate::manifest::{Problem, Scaler, ScalerRule, Severity};
use crate::solve::{NewNode, solve};

/// Rounds of the loop. Where a pod asks for half of what a further one is added for, each round
/// halves the distance: sixteen leave nothing of any real cluster.
pub(super) const ROUNDS: usize = 16;

/// Returns the demand of `inputs`, with what follows the nodes brought to rest; `stands` is the world
/// whose nodes count: the one observed, or the same without nodes where packing begins with none.
pub(super) fn demand(inputs: &Inputs, stands: &Observed) -> Demand {
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
        let next = size_after(inputs, stands, &demand);
        let now = Demand::following(desired, &next);
        if now == wanted {
            // The same pods; what is said of the nodes is now what the plan has.
            return of(&next);
        }
        if let Some(begins) = met.iter().position(|(before, _)| *before == now) {
            // Packing is not even: sizes may ask for each other in turn. One that asks for the most
            // of each holds all; where none does, there is no end.
            met.push((wanted, size));
            let cycle = met.split_off(begins);
            if let Some(size) = largest(&cycle) {
                return of(size);
            }
            demand.problems.extend(chases(inputs, &next));
            return demand;
        }
        met.push((wanted, size));
        size = next;
        demand = of(&size);
    }
    demand.problems.extend(chases(inputs, &size));
    demand
}

/// Returns the size that asks for at least as many pods of each scaler as every other one.
fn largest(cycle: &[(Vec<u32>, ClusterSize)]) -> Option<&ClusterSize> {
    let holds = |most: &[u32], other: &[u32]| most.iter().zip(other).all(|(a, b)| a >= b);
    let found = cycle.iter().find(|(most, _)| cycle.iter().all(|(other, _)| holds(most, other)));
    found.map(|(_, size)| size)
}

/// Returns the nodes that there will be of those that stand, and those that come.
fn size_after(inputs: &Inputs, stands: &Observed, demand: &Demand) -> ClusterSize {
    let packed = if stands.nodes.is_empty() { nowhere(demand) } else { demand.clone() };
    let inputs = Inputs { observed: stands, ..inputs.clone() };
    let solution = solve(&input(&inputs, &packed, &[], &[]));
    let gone = &solution.target.retires;
    let mut size = ClusterSize::of(stands, |name| !gone.contains_key(name));
    let launched = solution.target.launches.iter().map(|launch| {
        let NewNode { labels, allocatable, .. } = &launch.node;
        SizedNode { labels: labels.clone(), cpu: allocatable.cpu, is_schedulable: true }
    });
    size.nodes.extend(launched);
    size
}

/// Returns the demand without a word of where its pods run.
pub(super) fn nowhere(demand: &Demand) -> Demand {
    let mut demand = demand.clone();
    for group in &mut demand.groups {
        group.running.clear();
        group.parts.iter_mut().for_each(|part| part.running.clear());
    }
    demand
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_sizes_that_ask_for_each_other_one_that_asks_for_the_most_of_each_holds_all() {
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
