//! Evaluates Rego policies over a plan, with the conventions of conftest.
//!
//! Policies have no access to files, the network or the clock; a policy that uses them cannot be
//! evaluated. Rules named `deny`, `violation` and `warn`, also with a suffix (`deny_spot`), return
//! messages or objects with a `msg`. `exception` returns suffixes of rules to except. Invariants: a
//! policy that cannot be evaluated denies, because a broken guard protects nothing. The same plan and
//! policies give the same checks.
//!
//! The engine compares [`PolicyLimits`] between the steps of a rule, and no step has a limit: one
//! `replace` can take all memory. `cli/policy_process.rs` therefore runs it in a process of its own.
//!
//! Policies for Terraform's plan JSON work unchanged, in both versions of Rego.

#[cfg(feature = "policy")]
mod call_graph;
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

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::plan::wire::{Check, CheckStatus};
pub use rules::load_errors;
#[cfg(not(feature = "policy"))]
pub use rules::run_tests;
#[cfg(feature = "policy")]
pub use test_runner::run_tests;

/// Limits of a policy run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyLimits {
    /// Time limit of each rule.
    pub time: Duration,
    /// Memory limit of the process while policies run, in bytes.
    pub memory: u64,
}

impl Default for PolicyLimits {
    fn default() -> Self {
        // A rule over 5,000 nodes takes less than a second, and their plan a few hundred MiB.
        Self { time: Duration::from_secs(10), memory: 2 << 30 }
    }
}

/// A policy file or data file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PolicyFile {
    /// Path, used in messages.
    pub path: String,
    /// Content.
    pub text: String,
}

/// Outcome of a policy test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestOutcome {
    /// The test passed.
    Pass,
    /// The test failed.
    Fail,
    /// The test could not be evaluated, with the reason.
    Error(String),
}

/// Result of a policy test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestResult {
    /// Name, as package and rule.
    pub name: String,
    /// Outcome.
    pub outcome: TestOutcome,
}

/// Policies, and data that they read in addition to the plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bundle {
    /// Rego files.
    pub files: Vec<PolicyFile>,
    /// JSON documents, merged at the root of `data`. Later values override earlier ones with the
    /// same key.
    pub data: Vec<PolicyFile>,
}

impl Bundle {
    /// Returns true if there are no policies.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// Maximum length of a message in a plan, in characters.
const MESSAGE_MAX: usize = 2_000;

/// Returns the input of policies: the plan as JSON, without its checks.
pub fn input(plan: &Plan) -> String {
    Plan { checks: Vec::new(), ..plan.clone() }.to_output_json()
}

/// Evaluates each rule of `bundle` over `input`. The results are sorted by name.
pub fn evaluate(input: &str, bundle: &Bundle, limits: PolicyLimits) -> Vec<Check> {
    if bundle.is_empty() {
        return Vec::new();
    }
    let mut checks = rules::evaluate(input, bundle, limits);
    checks.sort_by(|a, b| a.name.cmp(&b.name));
    checks
}

/// Replaces the checks of the plan. A denied plan becomes not applyable.
pub fn attach_checks(plan: &mut Plan, checks: Vec<Check>) {
    plan.checks = checks;
    if is_denied(plan) {
        plan.applyable = false;
    }
}

/// Returns true if a policy denies the plan or could not be evaluated.
pub fn is_denied(plan: &Plan) -> bool {
    plan.checks.iter().any(|check| check.status.is_denial())
}

/// Returns the check of a policy that cannot be evaluated. It denies the plan.
pub fn error_check(name: &str, reason: &str) -> Check {
    let problems = vec![truncate(reason)];
    Check { name: name.to_owned(), status: CheckStatus::Error, problems, ..Check::default() }
}

fn truncate(text: &str) -> String {
    text.chars().take(MESSAGE_MAX).collect()
}

#[cfg(all(test, feature = "policy"))]
mod tests;
