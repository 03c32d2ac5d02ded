//! Result of planning again for an approved plan.

use std::collections::BTreeMap;

use super::wire::Plan;
use crate::model::ids::{Address, InstanceTypeName, ZoneName};
use crate::model::market::CapacityType;
use crate::model::units::MicroUsd;

/// An approved plan compared with the current demand.
#[derive(Debug, Clone)]
pub struct RevalidatedPlan {
    /// The plan for the current inputs. It is advisory.
    pub current: Plan,
    /// Approved launches that are no longer needed, with the reason.
    pub dropped: BTreeMap<Address, String>,
    /// Demand that exceeds the approved nodes, in words.
    pub missing: Vec<String>,
    /// Reason why the cluster still needs nodes that the approved plan removes. Demand that these
    /// nodes cannot serve does not count.
    pub blocked_removal: Option<String>,
    /// Launches that the files declare otherwise than the plan, or that the catalog does not permit
    /// now, in words.
    pub undeclared: Vec<String>,
    /// Offerings of launches that must not be requested now. Each launch has one that remains.
    pub withdrawn: BTreeMap<Address, Vec<WithdrawnOffering>>,
    /// Price per hour of the fleet after the approved changes, at current prices.
    pub hourly_after: MicroUsd,
    /// Policies that deny the approved plan with current numbers, in words.
    pub denied: Vec<String>,
    /// Reason why all removals of the approved plan are blocked now.
    pub frozen: Option<String>,
}

/// An offering of an approved launch that is gone, or dearer than was approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WithdrawnOffering {
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Zone.
    pub zone: ZoneName,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Reason, in words.
    pub why: String,
}

impl RevalidatedPlan {
    /// Creates the result for an approved plan that applies unchanged.
    pub fn as_approved(now: Plan) -> Self {
        let hourly_after = now.capacity.cost.hourly_after;
        Self {
            current: now,
            dropped: BTreeMap::new(),
            missing: Vec::new(),
            blocked_removal: None,
            undeclared: Vec::new(),
            withdrawn: BTreeMap::new(),
            hourly_after,
            denied: Vec::new(),
            frozen: None,
        }
    }

    /// Returns the reason why no node may be removed now, even if no pod needs it.
    pub fn removal_freeze(&self) -> Option<String> {
        let errors = || self.current.errored.then(|| "its inputs have errors now".to_owned());
        let undeclared = || self.undeclared.first().cloned();
        self.frozen.clone().or_else(errors).or_else(undeclared)
    }

    /// Returns the approved plan with the numbers that neither digest nor plan ID cover, as they are
    /// now. Policies judge these: a plan file does not state its own price.
    pub fn with_current_numbers(&self, approved: &Plan) -> Plan {
        let mut plan = approved.clone();
        let now = &self.current.capacity;
        let capacity = &mut plan.capacity;
        capacity.cost.clone_from(&now.cost);
        let delta = self.hourly_after - now.cost.hourly_before;
        capacity.cost.hourly_after = self.hourly_after;
        capacity.cost.hourly_delta = delta;
        capacity.cost.monthly_delta = delta.per_month();
        if let Some(list) = &mut capacity.cost.list {
            list.hourly_after += self.hourly_after - now.cost.hourly_after;
        }
        capacity.unresolved.clone_from(&now.unresolved);
        capacity.disruption_budgets.clone_from(&now.disruption_budgets);
        capacity.demand.clone_from(&now.demand);
        capacity.daemons.clone_from(&now.daemons);
        capacity.diagnostics.clone_from(&now.diagnostics);
        plan
    }
}
