//! Effect of unschedulable pods on other pods: whom kube-scheduler would evict for them, and whose
//! resources they take if they arrive first.
//!
//! An unschedulable pod stays in the scheduler's queue. This module reports the consequences. It
//! moves nothing and decides nothing.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::problem::{Problem, VerifiedFleet};
use super::rescue::RescueContext;
use super::scheduling_runs::planned_pods;
use super::simulation::Simulation;
use super::target_fleet::Contention;
use super::work_budget::WorkBudget;
use crate::demand::PodGroup;
use crate::model::desired::{Desired, DisruptionBudget, pods_to_keep};
use crate::model::ids::workload_key;
use crate::model::pod::Selector;
use crate::scheduler::{EvictionBudget, NamespaceLabels, PodSelector, Preemption};

/// Maximum number of pods of one group for which evictions are computed.
const PODS_MAX: u32 = 256;

/// Pods times nodes above which contention is not computed.
const WORK_MAX: u64 = 500_000;

/// Returns the contention caused by the unschedulable pods of each group.
pub(super) fn contention_by_group(
    simulation: &Simulation,
    fleet: &VerifiedFleet,
    budgets: Vec<EvictionBudget>,
) -> BTreeMap<usize, Contention> {
    let mut contests: BTreeMap<usize, Contention> = BTreeMap::new();
    if fleet.unplaced.is_empty() || is_too_large_for_contention(simulation.problem, fleet) {
        return contests;
    }
    for left in simulation.left_over_by_run(fleet, &mut WorkBudget::unlimited()) {
        record_displaced(simulation.problem, fleet, &left, &mut contests);
    }
    let mut groups: Vec<usize> = fleet.unplaced.keys().copied().collect();
    groups.retain(|group| simulation.problem.groups[*group].shape.preempts);
    groups.sort_by_key(|group| (Reverse(simulation.problem.groups[*group].shape.priority), *group));
    let mut context = RescueContext::new(simulation, fleet).with_budgets(budgets);
    for group in groups {
        let pods = fleet.unplaced[&group].min(PODS_MAX);
        for _ in 0..pods {
            let Some(victims) = context.evict_for(group) else { break };
            if victims.is_empty() {
                continue;
            }
            let contest = contests.entry(group).or_default();
            contest.let_in += 1;
            for victim in victims {
                *contest.evicts.entry(workload_key(victim)).or_insert(0) += 1;
            }
        }
    }
    contests
}

fn is_too_large_for_contention(problem: &Problem, fleet: &VerifiedFleet) -> bool {
    let nodes = u64::try_from(problem.existing.len() + fleet.offers.len());
    planned_pods(problem.groups).saturating_mul(nodes.unwrap_or(u64::MAX)) > WORK_MAX
}

/// Returns a message if contention is not computed completely.
pub(super) fn incomplete_contention_message(
    problem: &Problem,
    fleet: &VerifiedFleet,
) -> Option<String> {
    if fleet.unplaced.values().all(|pods| *pods == 0) {
        return None;
    }
    if is_too_large_for_contention(problem, fleet) {
        return Some(
            "evictions and displacements by unschedulable pods are not computed in a fleet of \
             this size"
                .to_owned(),
        );
    }
    let many =
        |(group, pods): (&usize, &u32)| problem.groups[*group].shape.preempts && *pods > PODS_MAX;
    fleet.unplaced.iter().any(many).then(|| {
        format!("evictions are counted for {PODS_MAX} pods of a workload; there may be more")
    })
}

/// Returns a message for each planned workload that competes with unschedulable ones: kube-scheduler
/// places the pods that arrive first.
pub(super) fn competition_messages(
    groups: &[PodGroup],
    contests: &BTreeMap<usize, Contention>,
) -> Vec<String> {
    let mut refused_by_planned: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (group, contention) in contests {
        for name in contention.displaces.keys() {
            let refused = workload_key(&groups[*group].workload);
            refused_by_planned.entry(name.clone()).or_default().insert(refused);
        }
    }
    let message = |(planned, refused): (String, BTreeSet<String>)| {
        let refused: Vec<String> = refused.into_iter().collect();
        format!(
            "pods of {planned} are planned and pods of {} are unschedulable, but they compete for \
             the same nodes: kube-scheduler places those that arrive first",
            refused.join(", ")
        )
    };
    refused_by_planned.into_iter().map(message).collect()
}

/// Returns a message about DaemonSet pods that kube-scheduler preempts where pods of higher
/// priority arrive last.
pub(super) fn preempted_daemons_message(
    simulation: &Simulation,
    fleet: &VerifiedFleet,
) -> Option<String> {
    let problem = simulation.problem;
    let lowest = problem.daemons.iter().map(|daemon| daemon.shape.priority).min()?;
    let could_preempt = |group: &PodGroup| group.shape.preempts && group.shape.priority > lowest;
    if !problem.groups.iter().any(could_preempt) || is_too_large_for_contention(problem, fleet) {
        return None;
    }
    let preempted = preempted_daemons(simulation, fleet);
    let (by, daemons): (BTreeSet<_>, BTreeSet<_>) = preempted.into_iter().unzip();
    if daemons.is_empty() {
        return None;
    }
    let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(", ");
    Some(format!(
        "kube-scheduler may preempt pods of {} for pods of {} if those arrive last: give the \
         DaemonSet a higher priority",
        list(daemons),
        list(by)
    ))
}

/// Returns workloads whose pods preempt DaemonSet pods if pods arrive by ascending priority,
/// each with the DaemonSet.
fn preempted_daemons(simulation: &Simulation, fleet: &VerifiedFleet) -> Vec<(String, String)> {
    let state = simulation.initial_state(&fleet.layout, &fleet.offers);
    let groups = simulation.problem.groups;
    let pending = simulation.pending_pods(&state, &fleet.unplaced);
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|group| groups[*group].shape.priority);
    let mut scheduler = state.scheduler;
    let mut preempted = Vec::new();
    for group in order {
        let class = state.classes[group];
        for _ in 0..pending[group] {
            if scheduler.try_schedule(class, None).is_some() || !groups[group].shape.preempts {
                continue;
            }
            let Some(Preemption { node, victims }) = scheduler.preempt(class) else { break };
            for victim in &victims {
                scheduler.unbind(*victim, node);
                let daemon = state.fixed.daemons.iter().position(|daemon| daemon == victim);
                preempted.extend(daemon.map(|daemon| {
                    let name = workload_key(&simulation.problem.daemons[daemon].workload);
                    (workload_key(&groups[group].workload), name)
                }));
            }
            scheduler.bind(class, node);
        }
    }
    preempted
}

/// Records the pods that become pending in a run where unschedulable pods arrive first.
fn record_displaced(
    problem: &Problem,
    fleet: &VerifiedFleet,
    left: &BTreeMap<usize, u32>,
    contests: &mut BTreeMap<usize, Contention>,
) {
    let of = |counts: &BTreeMap<usize, u32>, group: &usize| counts.get(group).copied().unwrap_or(0);
    let waits = left.iter().filter_map(|(group, pods)| {
        let more = pods.saturating_sub(of(&fleet.unplaced, group));
        (more > 0).then(|| (workload_key(&problem.groups[*group].workload), more))
    });
    let waits: Vec<(String, u32)> = waits.collect();
    for (group, pods) in &fleet.unplaced {
        if of(left, group) < *pods && !waits.is_empty() {
            let contest = contests.entry(*group).or_default();
            for (name, more) in &waits {
                let most = contest.displaces.entry(name.clone()).or_insert(0);
                *most = (*most).max(*more);
            }
        }
    }
}

/// Returns the disruption budgets of the repository with the disruptions allowed now, as the
/// disruption controller computes them.
pub(super) fn eviction_budgets(desired: &Desired, groups: &[PodGroup]) -> Vec<EvictionBudget> {
    let namespaces = NamespaceLabels::new(&desired.namespaces);
    let allowed = |budget: &DisruptionBudget, selector: &Selector| {
        let DisruptionBudget { namespace, min_available, max_unavailable, .. } = budget;
        let protects = PodSelector::from_budget(&EvictionBudget {
            namespace: namespace.clone(),
            selector: selector.clone(),
            allowed: 0,
        });
        let protects = |group: &&PodGroup| {
            protects.as_ref().is_some_and(|own| own.matches(&group.shape, &namespaces))
        };
        let (mut wanted, mut healthy) = (0_i64, 0_i64);
        for group in groups.iter().filter(protects) {
            wanted += i64::from(group.counts.planned);
            healthy += group.running.values().map(|pods| i64::from(*pods)).sum::<i64>();
        }
        let keep = pods_to_keep(min_available.as_deref(), max_unavailable.as_deref(), wanted);
        keep.map_or(0, |keep| u32::try_from(healthy - keep).unwrap_or(0))
    };
    let budget = |budget: &DisruptionBudget| {
        let selector = budget.selector.clone()?;
        let allowed = allowed(budget, &selector);
        Some(EvictionBudget { namespace: budget.namespace.clone(), selector, allowed })
    };
    desired.disruption_budgets.iter().filter_map(budget).collect()
}
