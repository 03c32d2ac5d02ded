//! An independent judge of plans: recomputes what a plan claims, from the inputs, with its own code.
//!
//! It judges any plan, however it was made, and runs on every plan before it leaves the engine. It
//! knows the wire form and the inputs, and refuses to know the solver and the diff: a mistake there
//! must not repeat itself here. Of their modules it shares only vocabulary (requirements, taints,
//! resource vectors, reasons). Invariant: a violation is a defect of the plan, never a judgement on
//! its quality; a plan without violations can be carried out as it stands.
//!
//! Each file below holds the rules of one concern; a rule of Kubernetes that comes later is one more
//! file and one more line in [`check`].

mod alternatives;
mod budgets;
mod case;
mod conditions;
mod cost;
mod failures;
mod fargate;
mod fit;
mod fixed;
mod groups;
mod identity;
mod launches;
mod limits;
mod observed;
mod ownership;
mod parts;
mod reservations;
mod rows;
mod state;
#[cfg(test)]
mod tests;
mod together;
mod totals;
mod volumes;
mod waves;

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::catalog::{Allocation, Catalog, InstanceType, NodeSettings};
use crate::demand::Demand;
use crate::fleet::Observed;
use crate::ids::Address;
use crate::manifest::Desired;
use crate::units::Resources;

use super::wire::Plan;
use case::Case;
use state::EndState;

/// What a plan follows from.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// What the repository asks for.
    pub desired: &'a Desired,
    /// The pods to place.
    pub demand: &'a Demand,
    /// What runs.
    pub observed: &'a Observed,
    /// What can be launched.
    pub catalog: &'a Catalog,
    /// The catalogue's rule from a type and its settings to what pods may use.
    pub allocation: fn(&InstanceType, &NodeSettings) -> Allocation,
}

/// A rule that a plan breaks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The rule: concern and name, such as `fit/resources`; stable.
    pub rule: &'static str,
    /// The row that breaks it; `None` where the plan as a whole does.
    pub address: Option<Address>,
    /// What is stated and what holds.
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

/// Returns every rule that `plan` breaks, in the order of concerns; none means the plan holds.
#[must_use]
pub fn check(plan: &Plan, facts: &Facts<'_>) -> Vec<Violation> {
    let case = Case::new(plan, facts);
    let state = EndState::of(&case);
    let mut verdict = Verdict(Vec::new());
    identity::check(&case, &mut verdict);
    rows::check(&case, &mut verdict);
    observed::check(&case, &mut verdict);
    ownership::check(&case, &mut verdict);
    budgets::check(&case, &mut verdict);
    launches::check(&case, &mut verdict);
    alternatives::check(&case, &state, &mut verdict);
    reservations::check(&case, &mut verdict);
    fixed::check(&case, &mut verdict);
    groups::check(&case, &mut verdict);
    limits::check(&case, &mut verdict);
    failures::check(&case, &mut verdict);
    fit::check(&case, &state, &mut verdict);
    volumes::check(&case, &state, &mut verdict);
    totals::check(&case, &mut verdict);
    fargate::check(&case, &mut verdict);
    cost::check(&case, &mut verdict);
    waves::check(&case, &mut verdict);
    conditions::check(&case, &mut verdict);
    verdict.0
}

/// The violations found so far.
struct Verdict(Vec<Violation>);

impl Verdict {
    /// Adds a violation of the plan as a whole.
    fn plan(&mut self, rule: &'static str, message: impl Into<String>) {
        self.0.push(Violation { rule, address: None, message: message.into() });
    }

    /// Adds a violation of one row.
    fn row(&mut self, rule: &'static str, address: &Address, message: impl Into<String>) {
        self.0.push(Violation { rule, address: Some(address.clone()), message: message.into() });
    }

    /// Adds a violation of the plan unless what it states is what holds.
    fn equal<T: PartialEq + Serialize>(
        &mut self,
        rule: &'static str,
        what: &str,
        stated: &T,
        holds: &T,
    ) {
        if stated != holds {
            let (stated, holds) = (words(stated), words(holds));
            self.plan(rule, format!("{what} is stated as {stated}, but is {holds}"));
        }
    }

    /// Adds a violation of a row unless what it states is what holds.
    fn row_equal<T: PartialEq + Serialize>(
        &mut self,
        rule: &'static str,
        address: &Address,
        (what, stated, holds): (&str, &T, &T),
    ) {
        if stated != holds {
            let (stated, holds) = (words(stated), words(holds));
            self.row(rule, address, format!("{what} is stated as {stated}, but is {holds}"));
        }
    }

    /// Adds a violation of a row unless it has the amounts that it states.
    fn row_amounts(
        &mut self,
        rule: &'static str,
        address: &Address,
        (what, stated, holds): (&str, &Resources, &Resources),
    ) {
        if stated != holds {
            self.row(rule, address, format!("{what} is stated as {stated}, but is {holds}"));
        }
    }
}

/// Returns a value as a reader of plans knows it: a text as it is, what is absent as nothing, and
/// anything larger as JSON.
fn words<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::Null) => "nothing".to_owned(),
        Ok(Value::String(text)) => text,
        Ok(value) => value.to_string(),
        Err(error) => format!("unspeakable ({error})"),
    }
}
