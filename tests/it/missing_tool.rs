//! Tests that need a tool which is not installed.

use std::io::Write as _;

/// Environment variable with the tools that must be installed, separated by spaces.
const REQUIRED_TOOLS: &str = "FLEETWRIGHT_REQUIRED_TOOLS";

/// Prints the reason for a skipped test to stderr. Panics if the missing tool is required.
pub(crate) fn not_run(tool: &str, why: &str) {
    let required = std::env::var(REQUIRED_TOOLS).unwrap_or_default();
    refuse_required(tool, why, &required);
    // An error of stderr is ignored.
    let _ = writeln!(std::io::stderr(), "not run: {why}");
}

fn refuse_required(tool: &str, why: &str, required: &str) {
    let is_required = required.split_whitespace().any(|name| name == tool);
    assert!(!is_required, "{REQUIRED_TOOLS} names {tool}: {why}");
}

#[test]
fn missing_tool_that_is_not_required_skips_the_test() {
    refuse_required("helm", "there is no helm", "");
    refuse_required("helm", "there is no helm", "kubectl helm-docs");
}

#[test]
#[should_panic(expected = "FLEETWRIGHT_REQUIRED_TOOLS names helm: there is no helm")]
fn missing_required_tool_fails_the_test() {
    refuse_required("helm", "there is no helm", "kubectl helm");
}
