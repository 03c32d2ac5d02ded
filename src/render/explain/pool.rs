//! Explanations of pools: the nodes that a plan has in a pool, its limits, and the pods that none
//! of its nodes hold.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::amount::{hourly, memory};
use super::super::detail::WORKLOADS_MAX;
use super::super::findings::write_unschedulable;
use super::super::problems::{ProblemLine, write_line};
use super::super::reason::{rejection, row_reason};
use super::super::row::{PlanRow, rows};
use super::super::table::pods;
use super::super::text_page::{StyledText, TableColumn, TextPage, Tone, plain};
use super::state_of;
use crate::model::desired::{Desired, Pool, PoolLimits};
use crate::model::ids::{LabelValue, PoolName};
use crate::model::similar_name::nearest;
use crate::model::units::{MicroUsd, MilliCpu};
use crate::plan::Plan;
use crate::plan::wire::{Change, Diagnostic, NodeState, ResourceKind, UnschedulableRow};

/// Words before the `/` that name a pool.
const POOL_KINDS: [&str; 4] = ["nodepool", "provisioner", "nodegroup", "pool"];

/// The rows of a plan about one pool.
#[derive(Debug)]
pub struct PoolExplanation<'a> {
    plan: &'a Plan,
    name: &'a str,
    /// The declaration; `None` if the repository of the plan cannot be read.
    declared: Option<&'a Pool>,
    /// The limits, with the maximum size of a group.
    limits: PoolLimits,
    rows: Vec<PlanRow<'a>>,
    unschedulable: Vec<&'a UnschedulableRow>,
}

/// Finds the pool that `query` names as `nodepool/NAME` or `NAME`.
pub(super) fn explain_pool<'a>(
    plan: &'a Plan,
    desired: Option<&'a Desired>,
    query: &str,
) -> Option<PoolExplanation<'a>> {
    let name = match query.split_once('/') {
        None => query,
        Some((kind, name)) if POOL_KINDS.iter().any(|known| kind.eq_ignore_ascii_case(known)) => {
            name
        }
        Some(_) => return None,
    };
    let known = pool_names(plan, desired);
    let name = known.get(name)?;
    let declared = desired.and_then(|desired| desired.pools.get(*name));
    let mut limits = declared.map(|pool| pool.limits.clone()).unwrap_or_default();
    if let Some(group) = desired.and_then(|desired| desired.node_groups.get(*name)) {
        limits.nodes = Some(group.max);
    }
    let rows = rows(plan).into_iter().filter(|row| pool_of(row) == Some(*name)).collect();
    let others: Vec<&str> = known.iter().copied().filter(|other| other != name).collect();
    let unschedulable = plan.capacity.unschedulable.iter();
    let unschedulable = unschedulable.filter(|row| !is_about_others(row, &others)).collect();
    Some(PoolExplanation { plan, name, declared, limits, rows, unschedulable })
}

/// Returns the names of all pools that the plan or the repository has.
fn pool_names<'a>(plan: &'a Plan, desired: Option<&'a Desired>) -> BTreeSet<&'a str> {
    let declared = desired.into_iter().flat_map(|desired| desired.pools.keys());
    let states = plan.resource_changes.iter().flat_map(|row| {
        let Change { before, after, .. } = &row.change;
        before.iter().chain(after).filter_map(|state| state.pool.as_ref())
    });
    declared.chain(states).map(PoolName::as_str).collect()
}

/// Returns the pools whose name is similar to `query`, as `nodepool/NAME`.
pub(super) fn similar_names(plan: &Plan, desired: Option<&Desired>, query: &str) -> Vec<String> {
    let (prefix, name) = query.split_once('/').unwrap_or(("nodepool", query));
    if !POOL_KINDS.iter().any(|known| prefix.eq_ignore_ascii_case(known)) {
        return Vec::new();
    }
    let alike = nearest(name, pool_names(plan, desired));
    alike.into_iter().map(|name| format!("nodepool/{name}")).collect()
}

fn pool_of<'a>(row: &PlanRow<'a>) -> Option<&'a str> {
    let Change { before, after, .. } = &row.resource.change;
    after.as_ref().or(before.as_ref())?.pool.as_ref().map(PoolName::as_str)
}

/// Returns whether all reasons of the row name other pools.
fn is_about_others(row: &UnschedulableRow, others: &[&str]) -> bool {
    let names_other = |detail: &str| {
        let mut words = detail.split_whitespace();
        words.any(|word| others.contains(&word.trim_end_matches([',', ';', ':'])))
    };
    !row.reasons.is_empty() && row.reasons.iter().all(|reason| names_other(&reason.detail))
}

const ROW_COLUMNS: [TableColumn; 6] = [
    TableColumn::left("", 3),
    TableColumn::left("node", 44),
    TableColumn::right("pods"),
    TableColumn::left("type", 20),
    TableColumn::left("zone", 20),
    TableColumn::last("why"),
];

impl<'a> PoolExplanation<'a> {
    /// Returns the nodes of the pool, before or after the plan.
    fn nodes(&self, state: fn(&Change) -> Option<&NodeState>) -> Vec<&'a NodeState> {
        let nodes =
            self.rows.iter().filter(|row| row.resource.kind != ResourceKind::AutoscalingGroup);
        nodes.filter_map(|row| state(&row.resource.change)).collect()
    }

    fn prices(&self) -> (MicroUsd, MicroUsd) {
        let sum = |of: fn(&crate::plan::wire::ExplainRow) -> Option<MicroUsd>| {
            let prices = self.rows.iter().filter_map(|row| of(row.explain?));
            prices.fold(MicroUsd::ZERO, |sum, price| MicroUsd(sum.0.saturating_add(price.0)))
        };
        (sum(|row| row.hourly_before), sum(|row| row.hourly_after))
    }

    /// Returns each limit with its use after the plan.
    fn limit_texts(&self) -> Vec<String> {
        let after = self.nodes(|change| change.after.as_ref());
        let sum = |of: fn(&NodeState) -> i64| {
            after.iter().map(|state| of(state)).fold(0, i64::saturating_add)
        };
        let of_resource = |(name, limit): (&str, i64)| match name {
            "cpu" => {
                let used = MilliCpu(sum(|state| state.capacity.cpu_milli));
                format!("cpu {used} of {}", MilliCpu(limit))
            }
            "memory" => {
                let used = memory(sum(|state| state.capacity.memory_bytes));
                format!("memory {used} of {}", memory(limit))
            }
            other => format!("{other} at most {limit}"),
        };
        let resources = self.limits.resources.iter().map(|(name, n)| (name.as_str(), *n));
        let nodes = self.limits.nodes.map(|most| format!("nodes {} of {most}", after.len()));
        resources.map(of_resource).chain(nodes).collect()
    }

    fn requirements(&self) -> Vec<String> {
        let requirements = self.declared.into_iter().flat_map(|pool| &pool.requirements);
        let text = requirements.map(|requirement| {
            let values: Vec<&str> = requirement.values.iter().map(LabelValue::as_str).collect();
            format!("{} {:?} {}", requirement.key, requirement.operator, values.join(", "))
        });
        text.map(|text| text.trim_end().to_owned()).collect()
    }

    fn diagnostics(&self) -> Vec<&'a Diagnostic> {
        let is_own = |found: &&Diagnostic| {
            found.object.split_whitespace().last().is_some_and(|name| name == self.name)
        };
        self.plan.capacity.diagnostics.iter().filter(is_own).collect()
    }

    pub(super) fn write(&self, page: &mut TextPage) {
        let kind = self.declared.map_or("pool", |pool| pool.generation.pool_kind());
        let origin = self.declared.map_or_else(String::new, |pool| format!("  {}", pool.origin));
        page.line([
            StyledText::new(&format!("{kind} {}", self.name), Tone::Strong),
            StyledText::new(&origin, Tone::Faint),
        ]);
        let before = self.nodes(|change| change.before.as_ref()).len();
        let after = self.nodes(|change| change.after.as_ref()).len();
        let (was, will) = self.prices();
        page.text(format!("  nodes {before} -> {after}, {} -> {}", hourly(was), hourly(will)));
        for text in self.requirements() {
            page.text(format!("  launches nodes with {text}"));
        }
        let limits = self.limit_texts();
        page.text(match (self.declared, limits.is_empty()) {
            (None, _) => "  limits: not known, because the planned files cannot be read".to_owned(),
            (Some(_), true) => "  limits: none".to_owned(),
            (Some(_), false) => format!("  limits, after this plan: {}", limits.join(", ")),
        });
        for found in self.diagnostics() {
            write_line(page, &ProblemLine::from(found));
        }
        if !self.rows.is_empty() {
            page.gap();
            let cells: Vec<_> = self.rows.iter().map(row_cells).collect();
            page.table(&ROW_COLUMNS, &cells);
        }
        for text in self.not_taken() {
            page.text(format!("     rejected: {text}"));
        }
        if !self.unschedulable.is_empty() {
            page.gap();
            page.text("Unschedulable pods that this pool cannot hold:");
            for row in &self.unschedulable {
                write_unschedulable(page, self.plan, &[row]);
            }
        }
    }

    /// Returns the rejected options of its launches.
    fn not_taken(&self) -> BTreeSet<String> {
        let launches = self.rows.iter().filter_map(|row| row.explain);
        let rejected = launches.flat_map(|explain| &explain.rejected).map(rejection);
        rejected.take(WORKLOADS_MAX).collect()
    }

    pub(super) fn json(&self) -> Value {
        let Self { name, declared, limits, rows, unschedulable, .. } = self;
        let rows: Vec<Value> =
            rows.iter().map(|row| json!({ "row": row.resource, "explain": row.explain })).collect();
        json!({
            "pool": name,
            "kind": declared.map(|pool| pool.generation.pool_kind()),
            "origin": declared.map(|pool| &pool.origin),
            "limits": { "resources": limits.resources, "nodes": limits.nodes },
            "requirements": self.requirements(),
            "rows": rows,
            "diagnostics": self.diagnostics(),
            "unschedulable": unschedulable,
        })
    }
}

fn row_cells(row: &PlanRow<'_>) -> Vec<StyledText> {
    let state = state_of(row.resource);
    let kind = state.and_then(|state| state.instance_type.as_ref().map(ToString::to_string));
    let zone = state.and_then(|state| state.zone.as_ref().map(ToString::to_string));
    vec![
        row.symbol.span(),
        plain(row.resource.address.as_str()),
        plain(pods(row).to_string()),
        plain(kind.unwrap_or_default()),
        plain(zone.unwrap_or_default()),
        plain(row_reason(row)),
    ]
}
