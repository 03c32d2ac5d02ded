//! Stands in for the policy engine in builds without the feature `policy`: every policy denies.

use super::{Bundle, PolicyLimits, TestResult, error_check};
use crate::plan::wire::Check;

const REASON: &str = "this build has no policy engine; build with the feature `policy`";

/// Returns one check with status `error`, which denies the plan: a policy that is not evaluated allows nothing.
pub(super) fn evaluate(_input: &str, _bundle: &Bundle, _limits: PolicyLimits) -> Vec<Check> {
    vec![error_check("policies", REASON)]
}

/// # Errors
/// Always: there is no engine to run tests.
pub fn run_tests(_bundle: &Bundle, _limits: PolicyLimits) -> Result<Vec<TestResult>, Vec<String>> {
    Err(vec![REASON.to_owned()])
}
