//! Test runner for policies. Tests are rules named `test_…`.

use serde_json::Value;

use super::engine::Engine;
use super::{Bundle, PolicyLimits, TestOutcome, TestResult};

/// Runs all tests of `bundle`. The results are sorted by name.
///
/// # Errors
/// When a policy or data file is invalid, with the error of each such file.
pub fn run_tests(bundle: &Bundle, limits: PolicyLimits) -> Result<Vec<TestResult>, Vec<String>> {
    let mut engine = Engine::load(bundle, limits).map_err(|broken| {
        broken
            .into_iter()
            .map(|c| format!("{}: {}", c.name, c.problems.join("; ")))
            .collect::<Vec<_>>()
    })?;
    // Tests set their own input by `with`. Without the empty input, `input` would be undefined.
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
