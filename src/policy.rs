//! Judges a plan by policies in Rego, with the conventions of conftest.
//!
//! This module knows the JSON of a plan and Rego; it knows no files, no network and no clock: a
//! policy that asks for one of them does not compile. Rules named `deny`, `violation` and `warn`,
//! alone or with a suffix (`deny_spot`), give messages or objects with a `msg`; `exception` names
//! suffixes that do not count. Invariants: a policy that cannot be evaluated denies, because
//! a broken guard protects nothing; evaluation ends within [`PolicyLimits`]; the same plan and policies give the
//! same checks.
//!
//! Policies written for Terraform's plan JSON work unchanged, in either version of Rego.

#[cfg(feature = "policy")]
mod declarations;
#[cfg(feature = "policy")]
mod engine;
#[cfg(feature = "policy")]
mod rules;
#[cfg(not(feature = "policy"))]
#[path = "policy/no_engine.rs"]
mod rules;
#[cfg(feature = "policy")]
mod test_runner;

use std::time::Duration;

use serde::Serialize;

use crate::plan::Plan;
use crate::plan::wire::{Check, CheckStatus};
#[cfg(not(feature = "policy"))]
pub use rules::run_tests;
#[cfg(feature = "policy")]
pub use test_runner::run_tests;

/// Limits of a policy run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyLimits {
    /// For each rule.
    pub time: Duration,
    /// Bytes that the process may hold while policies run.
    pub memory: u64,
}

impl Default for PolicyLimits {
    fn default() -> Self {
        // A rule over 5,000 nodes takes well under a second; the plan itself some hundred MiB.
        Self { time: Duration::from_secs(10), memory: 2 << 30 }
    }
}

/// A file of policies or of their data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyFile {
    /// Its path, as messages name it.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// Outcome of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TestOutcome {
    /// The test holds.
    Pass,
    /// The test does not hold.
    Fail,
    /// The test could not be evaluated.
    Error(String),
}

/// One test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TestResult {
    /// Package and rule.
    pub name: String,
    /// Outcome.
    pub outcome: TestOutcome,
}

/// Policies, and the data that they may read beside the plan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bundle {
    /// Rego files.
    pub files: Vec<PolicyFile>,
    /// JSON documents, merged at the root of `data`; of the same key, the later one counts.
    pub data: Vec<PolicyFile>,
}

impl Bundle {
    /// Returns whether there are no policies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// Longest message in a plan, in characters.
const MESSAGE_MAX: usize = 2_000;

/// Evaluates each rule of `bundle` over `plan`, without the plan's own checks. Results are sorted by
/// name.
#[must_use]
pub fn evaluate(plan: &Plan, bundle: &Bundle, limits: PolicyLimits) -> Vec<Check> {
    if bundle.is_empty() {
        return Vec::new();
    }
    let input = Plan { checks: Vec::new(), ..plan.clone() }.to_json();
    let mut checks = rules::evaluate(&input, bundle, limits);
    checks.sort_by(|a, b| a.name.cmp(&b.name));
    checks
}

/// Adds the checks to the plan; a denied plan is not applyable.
pub fn attach_checks(plan: &mut Plan, checks: Vec<Check>) {
    plan.checks = checks;
    if is_denied(plan) {
        plan.applyable = false;
    }
}

/// Returns whether a policy denies the plan or could not be evaluated.
#[must_use]
pub fn is_denied(plan: &Plan) -> bool {
    plan.checks.iter().any(|check| check.status.is_denial())
}

fn error_check(name: &str, reason: &str) -> Check {
    let problems = vec![truncate(reason)];
    Check { name: name.to_owned(), status: CheckStatus::Error, problems, ..Check::default() }
}

fn truncate(text: &str) -> String {
    text.chars().take(MESSAGE_MAX).collect()
}

#[cfg(all(test, feature = "policy"))]
mod tests;
