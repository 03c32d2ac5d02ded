//! Replacement of the policy engine in builds without the feature `policy`. Every policy denies.

use super::{Bundle, PolicyLimits, TestResult, error_check};
use crate::plan::wire::Check;

const REASON: &str = "this build has no policy engine; build with the feature `policy`";

/// Returns a check with status `error`, which denies the plan. A policy that is not evaluated must
/// not allow anything.
pub(super) fn evaluate(_input: &str, _bundle: &Bundle, _limits: PolicyLimits) -> Vec<Check> {
    vec![error_check("policies", REASON)]
}

/// Returns no errors: without an engine, policies are not loaded.
pub fn load_errors(_bundle: &Bundle, _limits: PolicyLimits) -> Vec<(String, String)> {
    Vec::new()
}

/// Returns an error instead of test results.
///
/// # Errors
/// Always, because the build has no policy engine.
pub fn run_tests(_bundle: &Bundle, _limits: PolicyLimits) -> Result<Vec<TestResult>, Vec<String>> {
    Err(vec![REASON.to_owned()])
}
