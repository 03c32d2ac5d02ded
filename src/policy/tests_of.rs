//! The tests of policies: rules named `test_…`, which hold or do not.

use serde::Serialize;
use serde_json::Value;

use super::engine::Engine;
use super::{Bundle, Limits};

/// How one test ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TestOutcome {
    /// It holds.
    Pass,
    /// It does not.
    Fail,
    /// It could not be judged.
    Error(String),
}

/// One test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TestResult {
    /// Package and rule.
    pub name: String,
    /// How it ended.
    pub outcome: TestOutcome,
}

/// Runs every test of `bundle`, sorted by name.
///
/// # Errors
/// When a file cannot be read as Rego, with what is wrong with each.
pub fn run_tests(bundle: &Bundle, limits: Limits) -> Result<Vec<TestResult>, Vec<String>> {
    let mut engine = Engine::load(bundle, limits).map_err(|broken| {
        broken
            .into_iter()
            .map(|c| format!("{}: {}", c.name, c.problems.join("; ")))
            .collect::<Vec<_>>()
    })?;
    // A test brings its own input with `with`; without any, it would be undefined.
    engine.set_input("{}").map_err(|reason| vec![reason])?;
    let mut results = Vec::new();
    for (package, found) in engine.packages.clone() {
        for test in found.tests {
            let outcome = match engine.rule(&package, &test) {
                Ok(Value::Bool(true)) => TestOutcome::Pass,
                Ok(_) => TestOutcome::Fail,
                Err(reason) => TestOutcome::Error(reason),
            };
            results.push(TestResult { name: format!("{package}.{test}"), outcome });
        }
    }
    Ok(results)
}
