//! The rows of a plan in review order: destructive changes first.

use std::collections::BTreeMap;

use super::text_page::{StyledText, Tone};
use crate::model::ids::Address;
use crate::model::units::MicroUsd;
use crate::plan::wire::{
    Action, ExplainRow, LaunchReason, Reason, ResourceChange, ResourceKind, RetireReason,
};
use crate::plan::{Plan, is_blocked};

/// The change of a row, in listing order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Symbol {
    Terminate,
    /// The old node is terminated before the new one is launched.
    TerminateFirst,
    /// The new node is launched before the old one is terminated.
    LaunchFirst,
    Update,
    Launch,
    Blocked,
    Keep,
}

impl Symbol {
    pub(super) const ALL: [Self; 7] = [
        Self::Terminate,
        Self::TerminateFirst,
        Self::LaunchFirst,
        Self::Update,
        Self::Launch,
        Self::Blocked,
        Self::Keep,
    ];

    fn from_change(change: &ResourceChange, explain: Option<&ExplainRow>) -> Self {
        let kind = change.kind;
        let actions = &change.change.actions;
        let at = |action| actions.iter().position(|a| *a == action);
        let is_node = kind != ResourceKind::AutoscalingGroup;
        match (at(Action::Delete), at(Action::Create)) {
            (Some(delete), Some(create)) if delete < create => Self::TerminateFirst,
            (Some(_), Some(_)) => Self::LaunchFirst,
            (Some(_), None) => Self::Terminate,
            (None, Some(_)) => Self::Launch,
            (None, None) if at(Action::Update).is_some() => Self::Update,
            (None, None) if is_node && explain.is_some_and(is_blocked) => Self::Blocked,
            (None, None) => Self::Keep,
        }
    }

    /// Returns the symbol of Terraform.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Terminate => "-",
            Self::TerminateFirst => "-/+",
            Self::LaunchFirst => "+/-",
            Self::Update => "~",
            Self::Launch => "+",
            Self::Blocked => "!",
            Self::Keep => "=",
        }
    }

    /// Returns the meaning of the symbol.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Terminate => "terminate",
            Self::TerminateFirst => "terminate, then launch",
            Self::LaunchFirst => "launch, then terminate",
            Self::Update => "update in place",
            Self::Launch => "launch",
            Self::Blocked => "blocked, stays",
            Self::Keep => "stays",
        }
    }

    /// Returns the word for counts of such rows.
    pub(super) fn verb(self) -> &'static str {
        match self {
            Self::Terminate => "terminate",
            Self::TerminateFirst | Self::LaunchFirst => "replace",
            Self::Update => "update",
            Self::Launch => "launch",
            Self::Blocked => "blocked",
            Self::Keep => "unchanged",
        }
    }

    pub(super) fn tone(self) -> Tone {
        match self {
            Self::Terminate => Tone::Delete,
            Self::TerminateFirst | Self::LaunchFirst => Tone::Replace,
            Self::Update => Tone::Change,
            Self::Launch => Tone::Create,
            Self::Blocked => Tone::Warning,
            Self::Keep => Tone::Faint,
        }
    }

    pub(super) fn span(self) -> StyledText {
        StyledText::new(self.as_str(), self.tone())
    }

    /// Returns whether the row changes.
    pub(super) fn is_change(self) -> bool {
        !matches!(self, Self::Blocked | Self::Keep)
    }
}

/// A row with its reason.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanRow<'a> {
    pub(super) symbol: Symbol,
    pub(super) resource: &'a ResourceChange,
    pub(super) explain: Option<&'a ExplainRow>,
    /// Number of its planned pods beyond those that run on the removed nodes of its batch.
    pub(super) added: u32,
    /// The earlier row of its batch that states the saving of the whole batch.
    pub(super) saving_in: Option<&'a Address>,
}

/// Returns every row of the plan: destructive ones first, then by name and key.
pub(super) fn rows(plan: &Plan) -> Vec<PlanRow<'_>> {
    let explains: BTreeMap<&Address, &ExplainRow> =
        plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
    let mut rows: Vec<PlanRow<'_>> = Vec::new();
    for resource in &plan.resource_changes {
        let explain = explains.get(&resource.address).copied();
        let symbol = Symbol::from_change(resource, explain);
        rows.push(PlanRow { symbol, resource, explain, added: 0, saving_in: None });
    }
    rows.sort_by(|a, b| order(a).cmp(&order(b)));
    join_batches(&mut rows);
    rows
}

/// Fills in what the rows of one batch say about each other.
fn join_batches(rows: &mut [PlanRow<'_>]) {
    // Running pods of the removed nodes, by batch and workload.
    let mut running: BTreeMap<&str, BTreeMap<&str, u32>> = BTreeMap::new();
    for row in rows.iter() {
        let Some((explain, group)) = batch(row) else { continue };
        if row.resource.change.actions.contains(&Action::Delete) {
            let pods = running.entry(group).or_default();
            for (workload, count) in &explain.pods_before {
                *pods.entry(workload.as_str()).or_insert(0) += count;
            }
        }
    }
    let mut savings: BTreeMap<(&str, MicroUsd, u32), &Address> = BTreeMap::new();
    for row in rows.iter_mut() {
        let Some((explain, group)) = batch(row) else { continue };
        // A plan of an older format has no pods before.
        if let Some(running) = running.get_mut(group).filter(|running| !running.is_empty()) {
            row.added = explain.pods.iter().fold(0, |sum: u32, (workload, count)| {
                let moves = running.get_mut(workload.as_str());
                let taken = moves.as_deref().copied().unwrap_or(0).min(*count);
                if let Some(left) = moves {
                    *left -= taken;
                }
                sum.saturating_add(count - taken)
            });
        }
        if let Some((saves, moves)) = joint_saving(&explain.reason) {
            let first = *savings.entry((group, saves, moves)).or_insert(&row.resource.address);
            row.saving_in = Some(first).filter(|first| **first != row.resource.address);
        }
    }
}

fn batch<'a>(row: &PlanRow<'a>) -> Option<(&'a ExplainRow, &'a str)> {
    let explain = row.explain?;
    Some((explain, explain.group.as_deref()?))
}

/// Returns the saving and the moves of the batch that a reason states.
fn joint_saving(reason: &Reason) -> Option<(MicroUsd, u32)> {
    match reason {
        Reason::Launch { because: LaunchReason::Consolidation { saves_hourly, moves } }
        | Reason::Retire { because: RetireReason::Underutilized { saves_hourly, moves, .. } } => {
            Some((*saves_hourly, *moves))
        }
        Reason::Launch { .. }
        | Reason::Retire { .. }
        | Reason::Keep { .. }
        | Reason::Resize { .. } => None,
    }
}

/// Numeric keys sort as numbers, so that `10` comes after `9`.
fn order<'a>(row: &PlanRow<'a>) -> (Symbol, ResourceKind, &'a str, Option<u64>, &'a Address) {
    let ResourceChange { address, kind, name, index, .. } = row.resource;
    let number = index.as_deref().and_then(|index| index.parse::<u64>().ok());
    (row.symbol, *kind, name.as_str(), number, address)
}

/// Returns the number of pods that ran on the node, without those of `DaemonSets`.
pub(super) fn pods_before(row: &PlanRow<'_>) -> u32 {
    row.explain.map_or(0, |e| e.pods_before.values().fold(0_u32, |n, p| n.saturating_add(*p)))
}

/// Returns what happens to the pods on the nodes that a plan removes.
pub(super) fn displaced_text(plan: &Plan, rows: &[PlanRow<'_>]) -> String {
    let moved = plan.capacity.pods.moved;
    let is_removed = |row: &&PlanRow<'_>| {
        matches!(row.symbol, Symbol::Terminate | Symbol::TerminateFirst | Symbol::LaunchFirst)
    };
    let there = rows.iter().filter(is_removed).map(pods_before);
    // A pod that runs there and moves nowhere belongs to a workload that now needs fewer pods.
    let ending = there.fold(0_u32, u32::saturating_add).saturating_sub(moved);
    let text = |n: u32, one: &str, many: &str| match n {
        0 => None,
        1 => Some(format!("1 running pod {one}")),
        n => Some(format!("{n} running pods {many}")),
    };
    let parts =
        [text(moved, "moves", "move"), text(ending, "is no longer needed", "are no longer needed")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "no running pods move".to_owned() } else { parts.join(", ") }
}

/// Returns how many rows have the symbol.
pub(super) fn count(rows: &[PlanRow<'_>], symbol: Symbol) -> u32 {
    let n = rows.iter().filter(|row| row.symbol == symbol).count();
    u32::try_from(n).unwrap_or(u32::MAX)
}
