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
mod demand_scenarios;
mod diff;
mod duplicate_nodes;
mod forecast;
pub mod lint;
mod node_count_fixpoint;
mod quota;
mod revalidation;
mod rule_budget;
mod running_only;
mod scheduled_actions;
#[cfg(test)]
mod tests;

pub use forecast::forecast;
pub use revalidation::revalidate;

use std::collections::BTreeSet;

use jiff::Timestamp;

use diff::{DiffInputs, diff};
use running_only::restrict_to_running;

use crate::catalog::{Catalog, warning_code};
use crate::demand::{Decider, Demand, DemandMode, PodGroup};
use crate::model::code::Code;
use crate::model::desired::{Desired, Problem, Severity, UnresolvedPolicy};
use crate::model::ids::{Address, NodeName, workload_key};
use crate::model::observed::Observed;
use crate::plan::wire::{
    Action, Base, Diagnostic, DiagnosticSeverity, DisruptionBudgetRow, Plan, ResourceChange,
    ResourceKind,
};
use crate::plan::{Facts, check, set_identity};
use crate::planner::lint::lints;
use crate::solver::{
    Input, Purpose, Settings, Solution, UnschedulablePods, external_group_problems,
    measured_resources, solve, unresolved_selectors, with_external_groups,
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
    pub target: Vec<String>,
    /// Addresses that must not change.
    pub exclude: Vec<String>,
    /// Addresses of nodes to replace.
    pub replace: Vec<String>,
    /// Existing nodes that may change; `None` means all. With an empty set, the plan only adds
    /// nodes.
    pub only: Option<BTreeSet<NodeName>>,
    /// True if the demand is limited to existing pods, regardless of the repository.
    pub running: bool,
}

impl Scope {
    fn is_limited(&self) -> bool {
        self.only.is_some() || self.running || !self.target.is_empty() || !self.exclude.is_empty()
    }

    fn allows(&self, address: &Address) -> bool {
        let covers = |pattern: &String| {
            address.as_str() == pattern || address.as_str().starts_with(&format!("{pattern}["))
        };
        (self.target.is_empty() || self.target.iter().any(covers))
            && !self.exclude.iter().any(covers)
    }
}

/// Returns the plan for `inputs`.
#[must_use]
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
#[must_use]
pub fn ceiling_warnings(inputs: &Inputs) -> Vec<Diagnostic> {
    with_effective_inputs(inputs, demand_scenarios::ceiling_warnings)
}

/// Calls `compute` with inputs that are adjusted to the observation.
///
/// Duplicate nodes are removed, groups declared only in the settings are added, and the catalog
/// gets the allocatable resources reported by nodes. With `scope.running`, the demand is limited to
/// existing pods.
fn with_effective_inputs<T>(inputs: &Inputs, compute: impl FnOnce(&Inputs) -> T) -> T {
    let running =
        inputs.scope.running.then(|| restrict_to_running(inputs.desired, inputs.observed));
    let inputs = &match &running {
        Some((desired, observed)) => Inputs { desired, observed, ..inputs.clone() },
        None => inputs.clone(),
    };
    let deduplicated = duplicate_nodes::removed_from(inputs.observed);
    let inputs = &match &deduplicated {
        Some(observed) => Inputs { observed, ..inputs.clone() },
        None => inputs.clone(),
    };
    let with_groups = with_external_groups(inputs.desired, inputs.observed);
    let inputs = &match &with_groups {
        Some(desired) => Inputs { desired, ..inputs.clone() },
        None => inputs.clone(),
    };
    let measured = measured_resources(inputs.desired, inputs.observed, inputs.catalog);
    if measured.is_empty() {
        return compute(inputs);
    }
    let catalog = Catalog { measured, ..inputs.catalog.clone() };
    compute(&Inputs { catalog: &catalog, ..inputs.clone() })
}

fn plan_effective(inputs: &Inputs) -> Plan {
    let mut demand = node_count_fixpoint::demand(inputs, inputs.observed);
    let (plan, solution) = plan_in_scope(inputs, &demand);
    let oversized = oversize_errors(&demand, &solution);
    if oversized.is_empty() {
        return finish(inputs, &demand, plan);
    }
    // An oversized workload is an input error. Input errors block removals, so plan again.
    demand.problems.extend(oversized);
    let (plan, _) = plan_in_scope(inputs, &demand);
    finish(inputs, &demand, plan)
}

/// Returns a plan that leaves nodes outside the scope untouched.
fn plan_in_scope(inputs: &Inputs, demand: &Demand) -> (Plan, Solution) {
    let replace = nodes_at_addresses(inputs, demand, &inputs.scope.replace);
    let only = inputs.scope.only.as_ref();
    let is_outside = |name: &&NodeName| only.is_some_and(|only| !only.contains(*name));
    let mut untouched: Vec<NodeName> =
        inputs.observed.nodes.keys().filter(is_outside).cloned().collect();
    let rounds = if only.is_some_and(BTreeSet::is_empty) { 0 } else { SCOPE_ROUNDS };
    for _ in 0..rounds {
        let solution = solve(&solver_input(inputs, demand, &replace, &untouched));
        let plan = assemble_plan(inputs, demand, &solution);
        let known: BTreeSet<NodeName> = untouched.iter().cloned().collect();
        let mut outside = outside_scope(&plan, &inputs.scope);
        // Nodes in scope may not need a replacement once nodes outside the scope are retained.
        if outside.is_subset(&known) && excludes_replacement(&plan, &solution) {
            outside.extend(replaced_nodes(&solution));
        }
        if outside.is_subset(&known) {
            return (plan, solution);
        }
        untouched.extend(outside);
    }
    // Each round freezes at least one more node. The fallback is a plan that only adds nodes.
    let all: Vec<NodeName> = inputs.observed.nodes.keys().cloned().collect();
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
        diagnostics: diagnostics(inputs, demand, solution),
        rates: inputs.desired.fargate_rates,
    });
    plan.capacity.disruption_budgets = disruption_budgets(inputs.desired);
    plan
}

fn disruption_budgets(desired: &Desired) -> Vec<DisruptionBudgetRow> {
    let row = |budget: &crate::model::desired::DisruptionBudget| DisruptionBudgetRow {
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
    let name = |row: &ResourceChange| {
        let before = row.change.before.as_ref()?;
        before.node.clone().or_else(|| Some(before.instance_id.as_ref()?.as_str().into()))
    };
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

/// Returns a warning for each address of the scope without a matching row, which is most likely a
/// typing error.
fn unmatched_address_warnings(inputs: &Inputs, plan: &Plan) -> Vec<Diagnostic> {
    let Scope { target, exclude, replace, only: _, running: _ } = &inputs.scope;
    let has = |pattern: &String| {
        let scope = Scope { target: vec![pattern.clone()], ..Scope::default() };
        plan.resource_changes.iter().any(|row| scope.allows(&row.address))
    };
    let has_node = |address: &String| {
        let rows = plan.resource_changes.iter();
        rows.filter(|row| row.change.before.is_some()).any(|row| address == row.address.as_str())
    };
    // A pool without nodes is a valid target even if it needs no launch.
    let is_pool = |pattern: &String| {
        let kind = format!("{}.", ResourceKind::Ec2Instance.as_str());
        pattern.strip_prefix(&kind).is_some_and(|name| inputs.desired.pools.contains_key(name))
    };
    let lists = [
        (target, "is targeted, and no row has this address"),
        (exclude, "is excluded, and no row has this address"),
    ];
    let mut found = Vec::new();
    for (patterns, what) in lists {
        let missing = patterns.iter().filter(|pattern| !has(pattern) && !is_pool(pattern));
        found.extend(missing.map(|pattern| (pattern, what)));
    }
    let missing = replace.iter().filter(|address| !has_node(address));
    found.extend(
        missing.map(|address| (address, "is to be replaced, and no node has this address")),
    );
    let warning = |(address, what): (&String, &str)| {
        Diagnostic::warning(address.clone(), what).code(Code::AddressUnknown)
    };
    found.into_iter().map(warning).collect()
}

fn diagnostics(inputs: &Inputs, demand: &Demand, solution: &Solution) -> Vec<Diagnostic> {
    let problem = |problem: &Problem| {
        let severity = match problem.severity {
            Severity::Error => DiagnosticSeverity::Error,
            Severity::Warning => DiagnosticSeverity::Warning,
        };
        Diagnostic::new(severity, problem.object.clone(), problem.message.clone())
            .origin(problem.origin.clone())
            .maybe_hint(problem.hint.clone())
            .code(problem.code)
    };
    let refusal = |message: &String| Diagnostic::warning("", message.clone());
    let mut found = inputs.catalog.unknown_type_warnings(inputs.desired);
    found.extend(inputs.catalog.unequal_type_warnings(inputs.desired));
    found.extend(inputs.catalog.overlay_conflicts(inputs.desired));
    found.extend(inputs.catalog.windows_price_warnings(inputs.desired));
    found.extend(lints(inputs.desired, demand, inputs.catalog));
    found.extend(external_group_problems(inputs.desired, inputs.observed));
    found.extend(unresolved_selectors(inputs.desired, inputs.observed));
    let problems = inputs.desired.problems.iter().chain(&demand.problems).chain(&found);
    let mut list: Vec<Diagnostic> = problems.map(problem).collect();
    let catalog_note = |text: &String| Diagnostic::note("", text.clone()).code(warning_code(text));
    list.extend(inputs.catalog.warnings.iter().map(catalog_note));
    list.extend(undeclared_workloads(demand, demand.declarations_read(inputs.desired)));
    list.extend(cluster_autoscalers::warnings(inputs.desired, inputs.observed));
    list.extend(solution.refusals.iter().map(refusal));
    list.sort();
    list.dedup();
    list
}

/// Returns a note for each running workload that was removed from the repository, and one note for
/// all workloads that are not declared. `is_certain` is false if a part of the repository was not
/// read.
fn undeclared_workloads(demand: &Demand, is_certain: bool) -> Vec<Diagnostic> {
    let note = |object: String, message: String| Diagnostic::note(object, message);
    let removed_workload = |group: &PodGroup| {
        let pods: u32 = group.running.values().sum();
        let message = format!(
            "is no longer in the repository: its {pods} pods are terminating and get no \
                     capacity"
        );
        note(format!("{} {}", group.workload.kind, group.workload), message)
    };
    let removed = demand.groups.iter().filter(|group| group.decided_by == Decider::Removed);
    let mut notes: Vec<Diagnostic> = removed.map(removed_workload).collect();
    let undeclared = demand.groups.iter().filter(|group| group.decided_by == Decider::World);
    let undeclared: Vec<&PodGroup> = undeclared.collect();
    let pods =
        undeclared.iter().fold(0_u32, |pods, group| pods.saturating_add(group.counts.planned));
    let named =
        undeclared.iter().take(UNDECLARED_NAMED_MAX).map(|group| workload_key(&group.workload));
    let mut named: Vec<String> = named.collect();
    if let Some(more) = undeclared.len().checked_sub(UNDECLARED_NAMED_MAX).filter(|more| *more > 0)
    {
        named.push(format!("and {more} more"));
    }
    let named = named.join(", ");
    match (undeclared.len(), is_certain) {
        (0, _) => {}
        (1, true) => notes.push(note(
            named,
            format!(
                "runs although the repository does not declare it: its {pods} pods keep their \
                 capacity"
            ),
        )),
        (1, false) => notes.push(note(
            named,
            format!(
                "runs, and is not in the files that could be read: its {pods} pods keep their \
                 capacity"
            ),
        )),
        (n, true) => notes.push(note(
            String::new(),
            format!(
                "{n} workloads run although the repository does not declare them ({named}): their \
                 {pods} pods keep their capacity"
            ),
        )),
        (n, false) => notes.push(note(
            String::new(),
            format!(
                "{n} workloads run, and are not in the files that could be read ({named}): their \
                 {pods} pods keep their capacity"
            ),
        )),
    }
    notes
}

/// Maximum number of workloads listed in the note on undeclared workloads. The demand of the plan
/// has a row for each of them.
const UNDECLARED_NAMED_MAX: usize = 10;

/// Maximum number of unread objects with a warning of their own.
const UNREAD_NAMED_MAX: usize = 20;

/// Returns a warning for each object of the cluster that could not be understood.
fn unread_object_warnings(observed: &Observed) -> Vec<Diagnostic> {
    let warning = |object: String, message: String| {
        Diagnostic::warning(object, message).code(Code::ObjectUnreadable)
    };
    let named = observed.unread.iter().take(UNREAD_NAMED_MAX).map(|unread| {
        let kept = match unread.nodes.len() {
            0 => "no node is planned for it".to_owned(),
            1 => "its node is kept".to_owned(),
            nodes => format!("{nodes} nodes with its pods are kept"),
        };
        warning(unread.object.clone(), format!("{}: {kept}", unread.reason))
    });
    let more = observed.unread.len().saturating_sub(UNREAD_NAMED_MAX);
    let others = (more > 0).then(|| {
        warning(String::new(), format!("{more} more objects of the cluster could not be read"))
    });
    named.chain(others).collect()
}

/// Adds warnings, identity and the result of verification. A plan that fails verification is not
/// applyable.
fn finish(inputs: &Inputs, demand: &Demand, mut plan: Plan) -> Plan {
    plan.capacity.diagnostics.extend(unmatched_address_warnings(inputs, &plan));
    let (modes, warnings) = demand_scenarios::rows(inputs, demand, &plan);
    plan.capacity.modes = modes;
    plan.capacity.diagnostics.extend(warnings);
    plan.capacity.diagnostics.extend(quota::quota_warnings(inputs, &plan));
    plan.capacity.diagnostics.extend(cordons::stale_cordon_warnings(inputs, &plan));
    plan.capacity.diagnostics.extend(unread_object_warnings(inputs.observed));
    plan.capacity.diagnostics.sort();
    set_identity(&mut plan);
    let facts = Facts {
        desired: inputs.desired,
        demand,
        observed: inputs.observed,
        catalog: inputs.catalog,
        allocation: crate::catalog::allocation,
    };
    let violations = check(&plan, &facts);
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

/// Returns an error for each workload that a vertical autoscaler sizes beyond its largest permitted
/// node. Its pods would be evicted and become unschedulable.
fn oversize_errors(demand: &Demand, solution: &Solution) -> Vec<Problem> {
    let error = |unplaced: &UnschedulablePods| {
        let workload = &demand.groups[unplaced.group].workload;
        let sizing = demand.sizings.get(workload).filter(|sizing| sizing.applied)?;
        let size = unplaced.oversize.as_ref()?;
        Some(Problem::error(sizing.origin.clone(), sizing.autoscaler.clone(), format!(
                "makes the pods of {workload} larger than any node they may run on ({}): {size}",
                sizing.because
            )).hint("bound it with maxAllowed, or let a pool have larger types").code(Code::TooSmall))
    };
    solution.target.unschedulable.iter().filter_map(error).collect()
}
