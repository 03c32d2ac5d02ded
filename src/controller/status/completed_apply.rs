//! Completed applies: approval, totals and receipt.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::apply::Receipt;
use crate::model::ids::{Digest, PlanId};
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::{Action, PodTotals, Summary};

/// A completed apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CompletedApply {
    /// The plan.
    pub plan_id: PlanId,
    /// Digest of its decisions.
    pub digest: Digest,
    /// The commit of the plan.
    pub commit: String,
    /// Approval of the plan.
    pub approved: ApprovedBy,
    /// Start.
    pub started_at: Timestamp,
    /// End.
    pub ended_at: Timestamp,
    /// The receipt; absent if the apply was refused before its first write.
    pub receipt: Option<Receipt>,
    /// Reason of the refusal.
    pub refused: Option<String>,
    /// Outcomes by name (`done`, `already-done`, `dropped`, `skipped`, `abandoned`, `continues`,
    /// `failed`).
    pub outcomes: BTreeMap<String, u32>,
    /// Planned price per hour before the apply.
    pub hourly_before: MicroUsd,
    /// Planned price per hour after the apply.
    pub hourly_after: MicroUsd,
    /// Totals of the plan; absent if unknown.
    pub decided: Option<PlanTotals>,
}

/// Totals of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PlanTotals {
    /// The repository, without credentials.
    pub repository: Option<String>,
    /// Numbers of changes and nodes.
    pub summary: Summary,
    /// Rows that change something.
    pub changes: u32,
    /// Numbers of pods.
    pub pods: PodTotals,
    /// Workloads with unschedulable pods.
    pub unschedulable: u32,
    /// Monthly cost difference.
    pub monthly_delta: MicroUsd,
}

impl PlanTotals {
    fn from_plan(plan: &Plan) -> Self {
        let capacity = &plan.capacity;
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let changes = plan
            .resource_changes
            .iter()
            .filter(|row| row.change.actions.iter().any(|action| *action != Action::NoOp));
        Self {
            repository: capacity.base.repository.clone(),
            summary: plan.summary,
            changes: count(changes.count()),
            pods: capacity.pods,
            unschedulable: count(capacity.unschedulable.len()),
            monthly_delta: capacity.cost.monthly_delta,
        }
    }
}

impl CompletedApply {
    /// Returns the record of an apply that starts now.
    pub(in crate::controller) fn started(
        plan: &Plan,
        commit: &str,
        approved: ApprovedBy,
        now: Timestamp,
    ) -> Self {
        let cost = &plan.capacity.cost;
        Self {
            plan_id: plan.capacity.plan_id.clone(),
            digest: plan.capacity.digest.clone(),
            commit: commit.to_owned(),
            approved,
            started_at: now,
            ended_at: now,
            receipt: None,
            refused: None,
            outcomes: BTreeMap::new(),
            hourly_before: cost.hourly_before,
            hourly_after: cost.hourly_after,
            decided: Some(PlanTotals::from_plan(plan)),
        }
    }
}

/// Approval of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum ApprovedBy {
    /// The merge of its commit.
    Merge,
    /// An operator who approved its digest.
    Digest {
        /// The operator.
        who: String,
    },
    /// The policies: none denies or warns.
    Policy,
    /// The contingency of an approved plan that was applied.
    Contingency {
        /// Digest of that plan.
        digest: Digest,
        /// The operator who approved it.
        who: String,
    },
    /// A break-glass: the plan has no approval.
    BreakGlass {
        /// The operator.
        who: String,
        /// Reason.
        reason: String,
    },
    /// Unknown, for example from an older record.
    Unknown,
}
