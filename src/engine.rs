//! The straight line: what the repository asks for, what runs and what can be had → a plan.
//!
//! ```text
//! Desired ─ Demand ─┐
//! Observed ─────────┼─ solve ─ Target ─ diff ─ Plan ─ digest ─ check
//! Catalog ──────────┘
//! ```
//!
//! [`plan`] is a pure function: time, scope and settings are inputs, nothing is read, and the same
//! inputs give the same bytes. What it does not decide: what to read, how to show it, whether it
//! may be applied by whom.

mod cordons;
mod doubles;
mod forecast;
mod modes;
mod pinned;
mod quota;
mod running;
mod scheduled;
mod size;
#[cfg(test)]
mod tests;

pub use forecast::forecast;
pub use pinned::pinned;

use std::collections::BTreeSet;

use jiff::Timestamp;

use running::of_what_runs;

use crate::catalog::Catalog;
use crate::demand::{Decider, Demand, DemandMode, PodGroup};
use crate::fleet::Observed;
use crate::ids::{Address, NodeName};
use crate::lint::lints;
use crate::manifest::{Desired, Problem, Severity};
use crate::plan::wire::{
    Action, Base, Diagnostic, DisruptionBudgetRow, Plan, ResourceChange, ResourceKind,
};
use crate::plan::{Facts, Parts, check, diff, seal};
use crate::solve::{
    Input, Purpose, Settings, Solution, Unplaced, amiss_elsewhere, measure, solve, unresolved,
    with_groups_made_elsewhere, workload_key,
};

/// Rounds in which a limited plan is made again with more nodes left untouched.
const SCOPE_ROUNDS: usize = 4;

/// Everything a plan follows from.
#[derive(Debug, Clone)]
pub struct Inputs<'a> {
    /// What the repository asks for.
    pub desired: &'a Desired,
    /// What runs.
    pub observed: &'a Observed,
    /// What can be had.
    pub catalog: &'a Catalog,
    /// Where files and world come from; its preconditions are filled in.
    pub base: Base,
    /// The moment planned for.
    pub at: Timestamp,
    /// Which of a workload's counts to plan for.
    pub demand: DemandMode,
    /// Whether the moment is one to come: work whose times are known counts by them alone.
    pub is_forecast: bool,
    /// Which rows the plan may change.
    pub scope: Scope,
    /// When a voluntary change is worth it.
    pub settings: Settings,
}

/// Limits of a plan to some rows, and rows to replace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only these addresses may change; empty means all. A prefix such as `ec2_instance.web` means
    /// every row of the pool.
    pub target: Vec<String>,
    /// These addresses may not change.
    pub exclude: Vec<String>,
    /// These addresses are replaced.
    pub replace: Vec<String>,
    /// Of the nodes that are there only these may change; `None`: all of them. With none in it the
    /// plan only adds.
    pub only: Option<BTreeSet<NodeName>>,
    /// Whether only pods count that there are, whatever else the repository asks for.
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

/// Returns the plan.
#[must_use]
pub fn plan(inputs: &Inputs) -> Plan {
    let mut plan = as_measured(inputs, plan_with);
    let warnings = doubles::warnings(inputs.observed);
    if !warnings.is_empty() {
        plan.capacity.diagnostics.extend(warnings);
        plan.capacity.diagnostics.sort();
    }
    plan
}

/// Returns a warning for each autoscaler that may ask for more pods than there is room for.
#[must_use]
pub fn beyond(inputs: &Inputs) -> Vec<Diagnostic> {
    as_measured(inputs, modes::beyond_ceiling)
}

/// Returns what follows from `inputs` with what the world teaches: which nodes are none, groups that only the settings
/// name, and what nodes really offer.
fn as_measured<T>(inputs: &Inputs, follows: impl FnOnce(&Inputs) -> T) -> T {
    let running = inputs.scope.running.then(|| of_what_runs(inputs.desired, inputs.observed));
    let inputs = &match &running {
        Some((desired, observed)) => Inputs { desired, observed, ..inputs.clone() },
        None => inputs.clone(),
    };
    let without_doubles = doubles::without(inputs.observed);
    let inputs = &match &without_doubles {
        Some(observed) => Inputs { observed, ..inputs.clone() },
        None => inputs.clone(),
    };
    let with_groups = with_groups_made_elsewhere(inputs.desired, inputs.observed);
    let inputs = &match &with_groups {
        Some(desired) => Inputs { desired, ..inputs.clone() },
        None => inputs.clone(),
    };
    let measured = measure(inputs.desired, inputs.observed);
    if measured.is_empty() {
        return follows(inputs);
    }
    let catalog = Catalog { measured, ..inputs.catalog.clone() };
    follows(&Inputs { catalog: &catalog, ..inputs.clone() })
}

/// Returns the plan with what `inputs.catalog` says of nodes.
fn plan_with(inputs: &Inputs) -> Plan {
    let mut demand = size::demand(inputs, inputs.observed);
    let (plan, solution) = in_scope(inputs, &demand);
    let oversized = oversized(&demand, &solution);
    if oversized.is_empty() {
        return finish(inputs, &demand, plan);
    }
    // An error of the inputs, found on the way: nothing may be removed because of it.
    demand.problems.extend(oversized);
    let (plan, _) = in_scope(inputs, &demand);
    finish(inputs, &demand, plan)
}

/// Returns the plan that leaves alone what is outside the scope.
fn in_scope(inputs: &Inputs, demand: &Demand) -> (Plan, Solution) {
    let replace = nodes_at(inputs, demand, &inputs.scope.replace);
    let only = inputs.scope.only.as_ref();
    let is_out = |name: &&NodeName| only.is_some_and(|only| !only.contains(*name));
    let mut untouched: Vec<NodeName> =
        inputs.observed.nodes.keys().filter(is_out).cloned().collect();
    let rounds = if only.is_some_and(BTreeSet::is_empty) { 0 } else { SCOPE_ROUNDS };
    for _ in 0..rounds {
        let solution = solve(&input(inputs, demand, &replace, &untouched));
        let plan = put_together(inputs, demand, &solution);
        let known: BTreeSet<NodeName> = untouched.iter().cloned().collect();
        let mut outside = outside_scope(&plan, &inputs.scope);
        // Once what is out of scope stays, the nodes in scope may do without the exchange.
        if outside.is_subset(&known) && left_out_exchange(&plan, &solution) {
            outside.extend(exchanged(&solution));
        }
        if outside.is_subset(&known) {
            return (plan, solution);
        }
        untouched.extend(outside);
    }
    // Each round freezes at least one more node; what is left is a plan that only adds.
    let all: Vec<NodeName> = inputs.observed.nodes.keys().cloned().collect();
    let solution = solve(&input(inputs, demand, &replace, &all));
    (put_together(inputs, demand, &solution), solution)
}

fn input<'a>(
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
        frozen: frozen(inputs, demand),
        replace,
        untouched,
        settings: inputs.settings,
        purpose: Purpose::Plan,
    }
}

/// Returns why nothing may be removed: what is not known is never taken for nothing.
fn frozen(inputs: &Inputs, demand: &Demand) -> Option<String> {
    if has_input_errors(inputs, demand) {
        return Some("the repository has errors".to_owned());
    }
    if !inputs.observed.is_complete() {
        return Some("the world was not read completely".to_owned());
    }
    demand.unresolved.first().map(|source| format!("the size of {} is not known", source.object))
}

/// Returns whether the repository has errors, wherever they were found.
fn has_input_errors(inputs: &Inputs, demand: &Demand) -> bool {
    has_errors(&inputs.desired.problems)
        || has_errors(&demand.problems)
        || !inputs.catalog.overlay_conflicts(inputs.desired).is_empty()
}

fn has_errors(problems: &[Problem]) -> bool {
    problems.iter().any(|problem| problem.severity == Severity::Error)
}

fn put_together(inputs: &Inputs, demand: &Demand, solution: &Solution) -> Plan {
    let scope = &inputs.scope;
    let left_out = |address: &Address| !scope.allows(address);
    let mut plan = diff(Parts {
        desired: inputs.desired,
        observed: inputs.observed,
        demand,
        solution,
        catalog: inputs.catalog,
        base: inputs.base.clone(),
        at: inputs.at,
        errored: has_input_errors(inputs, demand) || !inputs.observed.is_complete(),
        complete: !scope.is_limited(),
        left_out: &left_out,
        diagnostics: diagnostics(inputs, demand, solution),
        rates: inputs.desired.fargate_rates,
    });
    plan.capacity.disruption_budgets = disruption_budgets(inputs.desired);
    plan
}

fn disruption_budgets(desired: &Desired) -> Vec<DisruptionBudgetRow> {
    let row = |budget: &crate::manifest::DisruptionBudget| DisruptionBudgetRow {
        namespace: budget.namespace.to_string(),
        name: budget.name.clone(),
        origin: budget.origin.clone(),
        min_available: budget.min_available.clone(),
        max_unavailable: budget.max_unavailable.clone(),
    };
    desired.disruption_budgets.iter().map(row).collect()
}

/// Nodes that the plan would remove although they are outside the scope.
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

/// Returns whether a launch that takes the pods of a node that goes was left out of the plan.
fn left_out_exchange(plan: &Plan, solution: &Solution) -> bool {
    let launches = &solution.target.launches;
    let planned = usize::try_from(plan.summary.add).unwrap_or(usize::MAX);
    planned < launches.len() && launches.iter().any(|launch| launch.batch.is_some())
}

/// Returns the nodes that go because launches take their pods.
fn exchanged(solution: &Solution) -> impl Iterator<Item = NodeName> {
    let retires = solution.target.retires.iter();
    retires.filter(|(_, retire)| retire.batch.is_some()).map(|(name, _)| name.clone())
}

/// Returns the nodes that stand at `addresses`, found in a plan that changes nothing.
fn nodes_at(inputs: &Inputs, demand: &Demand, addresses: &[String]) -> Vec<NodeName> {
    if addresses.is_empty() {
        return Vec::new();
    }
    let all: Vec<NodeName> = inputs.observed.nodes.keys().cloned().collect();
    let plan = put_together(inputs, demand, &solve(&input(inputs, demand, &[], &all)));
    let named = |row: &&ResourceChange| addresses.iter().any(|a| a == row.address.as_str());
    let node = |row: &ResourceChange| row.change.before.as_ref()?.node.clone();
    plan.resource_changes.iter().filter(named).filter_map(node).collect()
}

/// Returns a warning for each address of the scope that no row of `plan` has: most likely a slip, and
/// a plan that did not do what was asked for must say so.
fn unmatched(inputs: &Inputs, plan: &Plan) -> Vec<Diagnostic> {
    let Scope { target, exclude, replace, only: _, running: _ } = &inputs.scope;
    let has = |pattern: &String| {
        let scope = Scope { target: vec![pattern.clone()], ..Scope::default() };
        plan.resource_changes.iter().any(|row| scope.allows(&row.address))
    };
    let stands = |address: &String| {
        let rows = plan.resource_changes.iter();
        rows.filter(|row| row.change.before.is_some()).any(|row| address == row.address.as_str())
    };
    // A pool without a node, and without need of one, is no slip.
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
    let missing = replace.iter().filter(|address| !stands(address));
    found.extend(
        missing.map(|address| (address, "is to be replaced, and no node has this address")),
    );
    let warning = |(address, what): (&String, &str)| Diagnostic {
        severity: "warning".to_owned(),
        origin: None,
        object: address.clone(),
        message: what.to_owned(),
        hint: None,
    };
    found.into_iter().map(warning).collect()
}

fn diagnostics(inputs: &Inputs, demand: &Demand, solution: &Solution) -> Vec<Diagnostic> {
    let problem = |problem: &Problem| {
        let severity = match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        Diagnostic {
            severity: severity.to_owned(),
            origin: Some(problem.origin.clone()),
            object: problem.object.clone(),
            message: problem.message.clone(),
            hint: problem.hint.clone(),
        }
    };
    let note = |severity: &str, message: &String| Diagnostic {
        severity: severity.to_owned(),
        origin: None,
        object: String::new(),
        message: message.clone(),
        hint: None,
    };
    let mut found = inputs.catalog.unknown_types(inputs.desired);
    found.extend(inputs.catalog.unequal_types(inputs.desired));
    found.extend(inputs.catalog.overlay_conflicts(inputs.desired));
    found.extend(inputs.catalog.unpriced_licences(inputs.desired));
    found.extend(lints(inputs.desired, demand, inputs.catalog));
    found.extend(amiss_elsewhere(inputs.desired, inputs.observed));
    found.extend(unresolved(inputs.desired, inputs.observed));
    let problems = inputs.desired.problems.iter().chain(&demand.problems).chain(&found);
    let mut list: Vec<Diagnostic> = problems.map(problem).collect();
    list.extend(inputs.catalog.warnings.iter().map(|text| note("note", text)));
    list.extend(strangers(demand));
    list.extend(solution.refusals.iter().map(|text| note("warning", text)));
    list.sort();
    list.dedup();
    list
}

/// Returns a note for each workload that runs and is no longer declared, and one for all that the
/// repository never declared.
fn strangers(demand: &Demand) -> Vec<Diagnostic> {
    let note = |object: String, message: String| Diagnostic {
        severity: "note".to_owned(),
        origin: None,
        object,
        message,
        hint: None,
    };
    let going = |group: &PodGroup| {
        let pods: u32 = group.running.values().sum();
        let message =
            format!("is no longer in the repository: its {pods} pods are going, and get no room");
        note(format!("{} {}", group.workload.kind, group.workload), message)
    };
    let removed = demand.groups.iter().filter(|group| group.decided_by == Decider::Removed);
    let mut notes: Vec<Diagnostic> = removed.map(going).collect();
    let alone = demand.groups.iter().filter(|group| group.decided_by == Decider::World);
    let alone: Vec<&PodGroup> = alone.collect();
    let pods = alone.iter().fold(0_u32, |pods, group| pods.saturating_add(group.counts.planned));
    let named = alone.iter().take(STRANGERS_NAMED).map(|group| workload_key(&group.workload));
    let mut named: Vec<String> = named.collect();
    if let Some(more) = alone.len().checked_sub(STRANGERS_NAMED).filter(|more| *more > 0) {
        named.push(format!("and {more} more"));
    }
    let named = named.join(", ");
    match alone.len() {
        0 => {}
        1 => notes.push(note(
            named,
            format!(
                "runs, and the repository does not declare it: its {pods} pods keep their room"
            ),
        )),
        n => notes.push(note(
            String::new(),
            format!(
                "{n} workloads run that the repository does not declare ({named}): their {pods} \
                 pods keep their room"
            ),
        )),
    }
    notes
}

/// Most undeclared workloads that a plan's note names; all of them have rows in its demand.
const STRANGERS_NAMED: usize = 10;

/// Adds identity, and the verdict of the independent judge: a plan that fails it is never applied.
fn finish(inputs: &Inputs, demand: &Demand, mut plan: Plan) -> Plan {
    plan.capacity.diagnostics.extend(unmatched(inputs, &plan));
    let (modes, found) = modes::rows(inputs, demand, &plan);
    plan.capacity.modes = modes;
    plan.capacity.diagnostics.extend(found);
    plan.capacity.diagnostics.extend(quota::beyond(inputs, &plan));
    plan.capacity.diagnostics.extend(cordons::stale(inputs, &plan));
    plan.capacity.diagnostics.sort();
    seal(&mut plan);
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
        plan.capacity.diagnostics.extend(violations.iter().map(|violation| Diagnostic {
            severity: "error".to_owned(),
            origin: None,
            object: violation.address.as_ref().map(ToString::to_string).unwrap_or_default(),
            message: format!("the plan breaks rule {}: {}", violation.rule, violation.message),
            hint: Some(
                "this is a defect of fleetwright; please report it with the plan".to_owned(),
            ),
        }));
        seal(&mut plan);
    }
    plan
}

/// Returns an error for each workload that a vertical autoscaler makes larger than any node that it may
/// run on: its pods would be evicted, and never come back.
fn oversized(demand: &Demand, solution: &Solution) -> Vec<Problem> {
    let error = |unplaced: &Unplaced| {
        let workload = &demand.groups[unplaced.group].workload;
        let sizing = demand.sizings.get(workload).filter(|sizing| sizing.applied)?;
        let size = unplaced.oversize.as_ref()?;
        Some(Problem {
            origin: sizing.origin.clone(),
            severity: Severity::Error,
            object: sizing.autoscaler.clone(),
            message: format!(
                "makes the pods of {workload} larger than any node they may run on ({}): {size}",
                sizing.because
            ),
            hint: Some("bound it with maxAllowed, or let a pool have larger types".to_owned()),
        })
    };
    solution.target.unplaced.iter().filter_map(error).collect()
}
