//! Independent verification of plans: recomputes the claims of a plan from the inputs, with code of
//! its own.
//!
//! It accepts plans from any source. The planner runs it on every plan before it returns the plan.
//! It depends on the wire form and the inputs, and neither on the solver nor on the diff. Therefore
//! their defects cannot repeat here. It shares only vocabulary with them: requirements, taints,
//! resource vectors and reasons. Invariant: a violation is a defect of the plan, never a judgment
//! of its quality. A plan without violations can be applied as it stands.
//!
//! Each file below has the rules of one concern. A new rule of Kubernetes needs one file and one
//! line in [`verify`].

mod admission;
mod alternatives;
mod approved;
mod autoscaler_growth;
mod budgets;
mod conditions;
mod context;
mod contingency;
mod cost;
mod devices;
mod end_state;
mod failure_domains;
mod fargate;
mod fit;
mod groups;
mod identity;
mod inter_pod;
mod launches;
mod limits;
mod observed;
mod ownership;
mod part_assignment;
mod reservations;
mod rows;
mod spot_offerings;
mod static_pools;
#[cfg(test)]
mod tests;
mod totals;
mod volumes;
mod waves;

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::catalog::{Allocation, Catalog, InstanceType, NodeSettings};
use crate::demand::Demand;
use crate::model::desired::Desired;
use crate::model::ids::Address;
use crate::model::observed::Observed;
use crate::model::units::Resources;

use super::wire::Plan;
pub use approved::{LaunchReview, review_launches};
use context::CheckContext;
use end_state::EndState;

/// Inputs that a plan is verified against.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Desired state, from the repository.
    pub desired: &'a Desired,
    /// Pods to place.
    pub demand: &'a Demand,
    /// Observed state of the cluster.
    pub observed: &'a Observed,
    /// Instance types, offerings and prices.
    pub catalog: &'a Catalog,
    /// The catalog's rule for the resources of a node, from its type and settings.
    pub allocation: fn(&InstanceType, &NodeSettings) -> Allocation,
}

/// A rule that a plan breaks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Stable name of the rule: concern and name, such as `fit/resources`.
    pub rule: &'static str,
    /// Row that breaks the rule; `None` for the plan as a whole.
    pub address: Option<Address>,
    /// The stated and the actual value.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => write!(f, "{}: {address}: {}", self.rule, self.message),
            None => write!(f, "{}: {}", self.rule, self.message),
        }
    }
}

/// Returns every rule that `plan` breaks, in the order of concerns.
pub fn verify(plan: &Plan, facts: &Facts<'_>) -> Vec<Violation> {
    let context = CheckContext::new(plan, facts);
    let state = EndState::new(&context);
    let mut violations = Violations(Vec::new());
    identity::check(&context, &mut violations);
    rows::check(&context, &mut violations);
    observed::check(&context, &mut violations);
    ownership::check(&context, &mut violations);
    budgets::check(&context, &mut violations);
    launches::check(&context, &mut violations);
    alternatives::check(&context, &state, &mut violations);
    reservations::check(&context, &mut violations);
    static_pools::check(&context, &mut violations);
    groups::check(&context, &mut violations);
    autoscaler_growth::check(&context, &mut violations);
    limits::check(&context, &mut violations);
    contingency::check(&context, &mut violations);
    failure_domains::check(&context, &mut violations);
    spot_offerings::check(&context, &mut violations);
    fit::check(&context, &state, &mut violations);
    devices::check(&context, &state, &mut violations);
    volumes::check(&context, &state, &mut violations);
    totals::check(&context, &mut violations);
    fargate::check(&context, &mut violations);
    cost::check(&context, &mut violations);
    waves::check(&context, &mut violations);
    conditions::check(&context, &mut violations);
    violations.0
}

/// Violations found so far.
struct Violations(Vec<Violation>);

impl Violations {
    /// Adds a violation of the plan as a whole.
    fn report_plan(&mut self, rule: &'static str, message: impl Into<String>) {
        self.0.push(Violation { rule, address: None, message: message.into() });
    }

    /// Adds a violation of one row.
    fn report_row(&mut self, rule: &'static str, address: &Address, message: impl Into<String>) {
        self.0.push(Violation { rule, address: Some(address.clone()), message: message.into() });
    }

    /// Adds a violation of the plan unless the stated value equals the actual one.
    fn require_equal<T: PartialEq + Serialize>(
        &mut self,
        rule: &'static str,
        field: &str,
        stated: &T,
        actual: &T,
    ) {
        if stated != actual {
            let (stated, actual) = (words(stated), words(actual));
            self.report_plan(rule, format!("{field} is stated as {stated}, but is {actual}"));
        }
    }

    /// Adds a violation of a row unless the stated value equals the actual one.
    fn require_row_equal<T: PartialEq + Serialize>(
        &mut self,
        rule: &'static str,
        address: &Address,
        field: &str,
        stated: &T,
        actual: &T,
    ) {
        if stated != actual {
            let (stated, actual) = (words(stated), words(actual));
            self.report_row(
                rule,
                address,
                format!("{field} is stated as {stated}, but is {actual}"),
            );
        }
    }

    /// Adds a violation of a row unless the stated resources equal the actual ones.
    fn require_row_amounts(
        &mut self,
        rule: &'static str,
        address: &Address,
        field: &str,
        stated: &Resources,
        actual: &Resources,
    ) {
        if stated != actual {
            self.report_row(
                rule,
                address,
                format!("{field} is stated as {stated}, but is {actual}"),
            );
        }
    }
}

/// Returns a value as text for messages: strings as they are, null as `nothing`, anything else as
/// JSON.
fn words<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::Null) => "nothing".to_owned(),
        Ok(Value::String(text)) => text,
        Ok(value) => value.to_string(),
        Err(error) => format!("unspeakable ({error})"),
    }
}
