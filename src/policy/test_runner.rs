//! Runs the tests of policies: rules named `test_…`.

use serde_json::Value;

use super::engine::Engine;
use super::{Bundle, PolicyLimits, TestOutcome, TestResult};

/// Runs every test of `bundle`, sorted by name.
///
/// # Errors
/// When a file is not valid Rego, with the error of each such file.
pub fn run_tests(bundle: &Bundle, limits: PolicyLimits) -> Result<Vec<TestResult>, Vec<String>> {
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
