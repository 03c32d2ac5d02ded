//! Builds a plan from the desired state, the observed state and the catalog.
//!
//! ```text
//! Desired ─ Demand ─┐
//! Observed ─────────┼─ solve ─ Target ─ diff ─ Plan ─ digest ─ check
//! Catalog ──────────┘
//! ```
//!
//! [`plan`] is a pure function. Time, scope and settings are inputs, it performs no I/O, and equal
//! inputs give equal bytes. Other modules read the inputs, render the plan and authorize its apply.

mod cluster_autoscalers;
mod cordons;
mod current_plan;
mod demand_scenarios;
mod diagnostics;
mod diff;
mod duplicate_nodes;
mod forecast;
pub mod lint;
mod node_count_fixpoint;
mod quota;
mod repository_amounts;
mod revalidation;
mod rule_budget;
mod running_only;
mod scheduled_actions;
mod stranded_pods;
#[cfg(test)]
mod tests;
mod unmatched_addresses;
mod unmatched_reservations;
mod unproven_instances;

pub use forecast::forecast;
pub use revalidation::{reproduce, revalidate};

use std::borrow::Cow;
use std::collections::BTreeSet;

use jiff::Timestamp;

use diff::{DiffInputs, diff};
use running_only::restrict_to_running;

use crate::catalog::Catalog;
use crate::demand::{Demand, DemandMode};
use crate::model::code::Code;
use crate::model::desired::{Desired, DisruptionBudget, Problem, Severity, UnresolvedPolicy};
use crate::model::ids::{Address, NodeName};
use crate::model::observed::Observed;
use crate::plan::wire::{Action, Base, Diagnostic, DisruptionBudgetRow, Plan, ResourceChange};
use crate::plan::{Facts, set_identity, verify};
use crate::solver::{
    Input, Purpose, Settings, Solution, measured_resources, solve, with_external_groups,
};

/// Maximum number of rounds for a plan with a limited scope. Each round leaves more nodes
/// untouched.
const SCOPE_ROUNDS: usize = 4;

/// All inputs of a plan.
#[derive(Debug, Clone)]
pub struct Inputs<'a> {
    /// Desired state, from the repository.
    pub desired: &'a Desired,
    /// Observed state of the cluster.
    pub observed: &'a Observed,
    /// Instance types, offerings and prices.
    pub catalog: &'a Catalog,
    /// Sources of the files and the observation. The planner adds the preconditions.
    pub base: Base,
    /// Time for which the plan is made.
    pub at: Timestamp,
    /// Planned pod count of autoscaled workloads.
    pub demand: DemandMode,
    /// True if `at` is in the future. The counts of workloads with a known schedule then depend
    /// only on the schedule.
    pub is_forecast: bool,
    /// Rows that the plan may change or must replace.
    pub scope: Scope,
    /// Thresholds for voluntary changes.
    pub settings: Settings,
}

/// Rows that a plan may change, and rows that it must replace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Addresses that may change; empty means all. A prefix such as `ec2_instance.web` covers every
    /// row of the pool.
    pub target_addresses: Vec<String>,
    /// Addresses that must not change.
    pub excluded_addresses: Vec<String>,
    /// Addresses of nodes to replace.
    pub replaced_addresses: Vec<String>,
    /// Existing nodes that may change; `None` means all. With an empty set, the plan only adds
    /// nodes.
    pub changeable_nodes: Option<BTreeSet<NodeName>>,
    /// True if the demand is limited to existing pods, regardless of the repository.
    pub running_pods_only: bool,
    /// True to leave out the fleets of the demand modes and the warnings about the maximum of
    /// autoscalers. With a limited scope, they take up to three more solver calls.
    pub skips_demand_scenarios: bool,
}

impl Scope {
    fn is_limited(&self) -> bool {
        self.changeable_nodes.is_some()
            || self.running_pods_only
            || !self.target_addresses.is_empty()
            || !self.excluded_addresses.is_empty()
    }

    fn allows(&self, address: &Address) -> bool {
        let covers = |pattern: &String| {
            address.as_str() == pattern || address.as_str().starts_with(&format!("{pattern}["))
        };
        (self.target_addresses.is_empty() || self.target_addresses.iter().any(covers))
            && !self.excluded_addresses.iter().any(covers)
    }
}

/// Returns the plan for `inputs`.
pub fn plan(inputs: &Inputs) -> Plan {
    let mut plan = with_effective_inputs(inputs, plan_effective);
    let warnings = duplicate_nodes::warnings(inputs.observed);
    if !warnings.is_empty() {
        plan.capacity.diagnostics.extend(warnings);
        plan.capacity.diagnostics.sort();
    }
    plan
}

/// Returns a warning for each autoscaler whose maximum exceeds the capacity of the pools.
pub fn ceiling_warnings(inputs: &Inputs) -> Vec<Diagnostic> {
    with_effective_inputs(inputs, demand_scenarios::ceiling_warnings)
}

/// Calls `compute` with inputs that are adjusted to the observation.
fn with_effective_inputs<T>(inputs: &Inputs, compute: impl FnOnce(&Inputs) -> T) -> T {
    let EffectiveInputs { desired, observed, catalog } = &EffectiveInputs::new(inputs);
    compute(&Inputs { desired, observed, catalog, ..inputs.clone() })
}

/// Inputs that are adjusted to the observation.
///
/// Duplicate nodes are removed, groups declared only in the settings are added, and the catalog
/// gets the allocatable resources reported by nodes. With `scope.running_pods_only`, the demand is
/// limited to existing pods.
struct EffectiveInputs<'a> {
    desired: Cow<'a, Desired>,
    observed: Cow<'a, Observed>,
    catalog: Cow<'a, Catalog>,
}

impl<'a> EffectiveInputs<'a> {
    fn new(inputs: &Inputs<'a>) -> Self {
        let mut desired = Cow::Borrowed(inputs.desired);
        let mut observed = Cow::Borrowed(inputs.observed);
        let mut catalog = Cow::Borrowed(inputs.catalog);
        if inputs.scope.running_pods_only {
            let (restricted, running) = restrict_to_running(&desired, &observed);
            (desired, observed) = (Cow::Owned(restricted), Cow::Owned(running));
        }
        if let Some(deduplicated) = duplicate_nodes::removed_from(&observed) {
            observed = Cow::Owned(deduplicated);
        }
        if let Some(with_groups) = with_external_groups(&desired, &observed) {
            desired = Cow::Owned(with_groups);
        }
        let measured = measured_resources(&desired, &observed, &catalog);
        if !measured.is_empty() {
            catalog.to_mut().measured = measured;
        }
        Self { desired, observed, catalog }
    }
}

fn plan_effective(inputs: &Inputs) -> Plan {
    let demand = node_count_fixpoint::demand(inputs, inputs.observed);
    let (mut plan, solution) = plan_in_scope(inputs, &demand);
    let oversized = diagnostics::oversize_warnings(&demand, &solution);
    if !oversized.is_empty() {
        plan.capacity.diagnostics.extend(oversized);
        plan.capacity.diagnostics.sort();
    }
    finish(inputs, &demand, plan)
}

/// Returns a plan that leaves nodes outside the scope untouched.
fn plan_in_scope(inputs: &Inputs, demand: &Demand) -> (Plan, Solution) {
    let replace = nodes_at_addresses(inputs, demand, &inputs.scope.replaced_addresses);
    let changeable = inputs.scope.changeable_nodes.as_ref();
    let is_outside = |name: &&NodeName| changeable.is_some_and(|nodes| !nodes.contains(*name));
    let mut untouched: Vec<NodeName> =
        inputs.observed.nodes.keys().filter(is_outside).cloned().collect();
    let rounds = if changeable.is_some_and(BTreeSet::is_empty) { 0 } else { SCOPE_ROUNDS };
    let mut needed: Vec<NodeName> = Vec::new();
    for _ in 0..rounds {
        let input = Input { needed: &needed, ..solver_input(inputs, demand, &replace, &untouched) };
        let solution = solve(&input);
        let plan = assemble_plan(inputs, demand, &solution);
        let known: BTreeSet<NodeName> = untouched.iter().cloned().collect();
        let mut outside = outside_scope(&plan, &inputs.scope);
        // Nodes in scope may not need a replacement once nodes outside the scope are retained.
        if outside.is_subset(&known) && excludes_replacement(&plan, &solution) {
            outside.extend(replaced_nodes(&solution));
        }
        let stranding = stranded_pods::nodes_that_strand(&plan, demand);
        if outside.is_subset(&known) && stranding.is_empty() {
            return (plan, solution);
        }
        untouched.extend(outside);
        needed.extend(stranding);
    }
    // Each round freezes at least one more node. The first fallback is a plan that removes no node
    // to save cost, and the second one that only adds nodes.
    let all: Vec<NodeName> = inputs.observed.nodes.keys().cloned().collect();
    let input = Input { needed: &all, ..solver_input(inputs, demand, &replace, &untouched) };
    let solution = solve(&input);
    let plan = assemble_plan(inputs, demand, &solution);
    let known: BTreeSet<NodeName> = untouched.iter().cloned().collect();
    let outside = outside_scope(&plan, &inputs.scope);
    if outside.is_subset(&known) && !excludes_replacement(&plan, &solution) {
        return (plan, solution);
    }
    let solution = solve(&solver_input(inputs, demand, &replace, &all));
    (assemble_plan(inputs, demand, &solution), solution)
}

fn solver_input<'a>(
    inputs: &'a Inputs,
    demand: &'a Demand,
    replace: &'a [NodeName],
    untouched: &'a [NodeName],
) -> Input<'a> {
    Input {
        desired: inputs.desired,
        demand,
        observed: inputs.observed,
        catalog: inputs.catalog,
        at: inputs.at,
        frozen: freeze_reason(inputs, demand),
        replace,
        untouched,
        needed: &[],
        settings: inputs.settings,
        purpose: Purpose::Plan,
    }
}

/// Returns the reason that blocks all removals, if any. An unknown size is never treated as zero.
fn freeze_reason(inputs: &Inputs, demand: &Demand) -> Option<String> {
    if has_input_errors(inputs, demand) {
        return Some("the repository has errors".to_owned());
    }
    if !inputs.observed.is_complete() {
        return Some("the cluster was not observed completely".to_owned());
    }
    let source = demand.unresolved.first()?;
    match inputs.desired.unresolved_policy {
        UnresolvedPolicy::Hold => Some(format!("the size of {} is not known", source.object)),
        UnresolvedPolicy::Running | UnresolvedPolicy::Ignore => None,
    }
}

fn has_input_errors(inputs: &Inputs, demand: &Demand) -> bool {
    has_errors(&inputs.desired.problems)
        || has_errors(&demand.problems)
        || !inputs.catalog.overlay_conflicts(inputs.desired).is_empty()
}

fn has_errors(problems: &[Problem]) -> bool {
    problems.iter().any(|problem| problem.severity == Severity::Error)
}

fn assemble_plan(inputs: &Inputs, demand: &Demand, solution: &Solution) -> Plan {
    let scope = &inputs.scope;
    let is_excluded = |address: &Address| !scope.allows(address);
    let mut plan = diff(DiffInputs {
        desired: inputs.desired,
        observed: inputs.observed,
        demand,
        solution,
        catalog: inputs.catalog,
        base: inputs.base.clone(),
        at: inputs.at,
        errored: has_input_errors(inputs, demand) || !inputs.observed.is_complete(),
        complete: !scope.is_limited(),
        is_excluded: &is_excluded,
        diagnostics: diagnostics::of_inputs(inputs, demand, solution),
        rates: inputs.desired.fargate_rates,
    });
    plan.capacity.disruption_budgets = disruption_budgets(inputs.desired);
    plan
}

fn disruption_budgets(desired: &Desired) -> Vec<DisruptionBudgetRow> {
    let row = |budget: &DisruptionBudget| DisruptionBudgetRow {
        namespace: budget.namespace.to_string(),
        name: budget.name.clone(),
        origin: budget.origin.clone(),
        min_available: budget.min_available.clone(),
        max_unavailable: budget.max_unavailable.clone(),
    };
    desired.disruption_budgets.iter().map(row).collect()
}

/// Returns the nodes outside the scope that the plan would remove.
fn outside_scope(plan: &Plan, scope: &Scope) -> BTreeSet<NodeName> {
    let removed = |row: &&ResourceChange| {
        row.change.actions.contains(&Action::Delete) && !scope.allows(&row.address)
    };
    let name = |row: &ResourceChange| row.change.before.as_ref()?.name_or_instance_id();
    plan.resource_changes.iter().filter(removed).filter_map(name).collect()
}

/// Returns true if the plan excludes a launch that replaces existing nodes.
fn excludes_replacement(plan: &Plan, solution: &Solution) -> bool {
    let launches = &solution.target.launches;
    let planned = usize::try_from(plan.summary.add).unwrap_or(usize::MAX);
    planned < launches.len() && launches.iter().any(|launch| launch.batch.is_some())
}

/// Returns the retired nodes of batches. Their pods move to the launches of the batch.
fn replaced_nodes(solution: &Solution) -> impl Iterator<Item = NodeName> {
    let retires = solution.target.retires.iter();
    retires.filter(|(_, retire)| retire.batch.is_some()).map(|(name, _)| name.clone())
}

/// Returns the nodes at `addresses`, which are resolved with a plan that retains all nodes.
fn nodes_at_addresses(inputs: &Inputs, demand: &Demand, addresses: &[String]) -> Vec<NodeName> {
    if addresses.is_empty() {
        return Vec::new();
    }
    let all: Vec<NodeName> = inputs.observed.nodes.keys().cloned().collect();
    let plan = assemble_plan(inputs, demand, &solve(&solver_input(inputs, demand, &[], &all)));
    let named = |row: &&ResourceChange| addresses.iter().any(|a| a == row.address.as_str());
    let node = |row: &ResourceChange| row.change.before.as_ref()?.node.clone();
    plan.resource_changes.iter().filter(named).filter_map(node).collect()
}

/// Adds warnings, identity and the result of verification. A plan that fails verification is not
/// applyable.
fn finish(inputs: &Inputs, demand: &Demand, mut plan: Plan) -> Plan {
    plan.capacity.diagnostics.extend(unmatched_addresses::diagnostics(inputs, &plan));
    plan.capacity.diagnostics.extend(unmatched_reservations::warnings(inputs, &plan));
    if !inputs.scope.skips_demand_scenarios {
        let (modes, warnings) = demand_scenarios::rows(inputs, demand, &plan);
        plan.capacity.modes = modes;
        plan.capacity.diagnostics.extend(warnings);
    }
    plan.capacity.diagnostics.extend(quota::quota_warnings(inputs, &plan));
    plan.capacity.diagnostics.extend(cordons::stale_cordon_warnings(inputs, &plan));
    plan.capacity.diagnostics.extend(diagnostics::unread_object_warnings(inputs.observed));
    plan.capacity.diagnostics.sort();
    set_identity(&mut plan);
    let facts = Facts {
        desired: inputs.desired,
        demand,
        observed: inputs.observed,
        catalog: inputs.catalog,
        allocation: crate::catalog::allocation,
    };
    let violations = verify(&plan, &facts);
    if !violations.is_empty() {
        plan.errored = true;
        plan.applyable = false;
        plan.capacity.diagnostics.extend(violations.iter().map(|violation| {
            Diagnostic::error(
                violation.address.as_ref().map(ToString::to_string).unwrap_or_default(),
                format!("the plan breaks rule {}: {}", violation.rule, violation.message),
            )
            .hint("this is a defect of fleetwright; please report it with the plan")
            .code(Code::PlanRuleBroken)
        }));
        set_identity(&mut plan);
    }
    plan
}
