//! Judges a plan by policies in Rego, with the conventions of conftest.
//!
//! This module knows the JSON of a plan and Rego; it knows no files, no network and no clock: a
//! policy that asks for one of them does not compile. Rules named `deny`, `violation` and `warn`,
//! alone or with a suffix (`deny_spot`), give messages or objects with a `msg`; `exception` names
//! suffixes that do not count. Invariants: what cannot be judged denies, since a guard that is
//! broken guards nothing; evaluation ends within [`Limits`]; the same plan and policies give the
//! same checks.
//!
//! Policies written for Terraform's plan JSON work unchanged, in either version of Rego.

mod engine;
mod read;
mod tests_of;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::ids::Origin;
use crate::plan::Plan;
use crate::plan::wire::{Check, Finding};
use engine::Engine;
use read::Package;
pub use read::PolicyFile;
pub use tests_of::{TestOutcome, TestResult, run_tests};

/// How much a run of policies may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For each rule.
    pub time: Duration,
    /// Bytes that the process may hold while policies run.
    pub memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        // A rule over 5,000 nodes takes well under a second; the plan itself some hundred MiB.
        Self { time: Duration::from_secs(10), memory: 2 << 30 }
    }
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
    /// Returns whether there is nothing to judge by.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}

/// Most findings of one rule that a plan keeps.
const FINDINGS_MAX: usize = 100;
/// Longest message that a plan keeps, in characters.
const MESSAGE_MAX: usize = 2_000;

/// Returns what each rule of `bundle` says of `plan`, sorted by name.
///
/// The plan is judged as it is without any checks.
#[must_use]
pub fn evaluate(plan: &Plan, bundle: &Bundle, limits: Limits) -> Vec<Check> {
    if bundle.is_empty() {
        return Vec::new();
    }
    let input = Plan { checks: Vec::new(), ..plan.clone() }.to_json();
    let mut checks = match Engine::load(bundle, limits) {
        Err(broken) => broken,
        Ok(mut engine) => {
            let packages = std::mem::take(&mut engine.packages);
            match engine.set_input(&input) {
                Err(reason) => vec![broken_check("policies", &reason)],
                Ok(()) => judge(&mut engine, &packages),
            }
        }
    };
    checks.sort_by(|a, b| a.name.cmp(&b.name));
    checks
}

/// Applies the verdict of the checks: a plan that is denied is not applyable.
pub fn attach(plan: &mut Plan, checks: Vec<Check>) {
    plan.checks = checks;
    if is_denied(plan) {
        plan.applyable = false;
    }
}

/// Returns whether a policy denies the plan, or could not judge it.
#[must_use]
pub fn is_denied(plan: &Plan) -> bool {
    plan.checks.iter().any(|check| matches!(check.status.as_str(), "fail" | "error"))
}

fn judge(engine: &mut Engine, packages: &BTreeMap<String, Package>) -> Vec<Check> {
    let mut checks = Vec::new();
    for (name, package) in packages {
        let exceptions =
            if package.has_exceptions { exceptions(engine, name) } else { Ok(Vec::new()) };
        for rule in &package.rules {
            let check = match &exceptions {
                Err(reason) => broken_check(&format!("{name}.{rule}"), reason),
                Ok(exceptions) => check_of(engine, name, rule, exceptions),
            };
            checks.push(check);
        }
    }
    checks
}

/// Returns the suffixes that the package excepts, in sets of names: `exception[rules]`.
fn exceptions(engine: &mut Engine, package: &str) -> Result<Vec<String>, String> {
    let value = engine.rule(package, "exception")?;
    let mut names = Vec::new();
    gather_texts(&value, &mut names);
    Ok(names)
}

fn gather_texts(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::String(text) => into.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| gather_texts(item, into)),
        Value::Object(map) => map.values().for_each(|item| gather_texts(item, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn check_of(engine: &mut Engine, package: &str, rule: &str, exceptions: &[String]) -> Check {
    let name = format!("{package}.{rule}");
    let (severity, suffix) = rule.split_once('_').unwrap_or((rule, ""));
    let found = match engine.rule(package, rule) {
        Ok(value) => findings(&value),
        Err(reason) => return broken_check(&name, &reason),
    };
    let severity = Some(severity.to_owned());
    if found.is_empty() {
        return Check { name, status: "pass".to_owned(), severity, ..Check::default() };
    }
    let problems: Vec<String> = found.iter().map(|finding| finding.message.clone()).collect();
    // `deny` and `deny_` alone are excepted by the empty name, as conftest has it.
    if exceptions.iter().any(|excepted| excepted == suffix) {
        let exceptions = problems;
        return Check { name, status: "pass".to_owned(), severity, exceptions, ..Check::default() };
    }
    let status = if severity.as_deref() == Some("warn") { "warn" } else { "fail" };
    Check {
        name,
        status: status.to_owned(),
        problems,
        severity,
        findings: found,
        ..Check::default()
    }
}

fn broken_check(name: &str, reason: &str) -> Check {
    let problems = vec![cut(reason)];
    Check { name: name.to_owned(), status: "error".to_owned(), problems, ..Check::default() }
}

/// Reads the value of a rule: a set of messages or objects, or one of them alone.
fn findings(value: &Value) -> Vec<Finding> {
    let mut found: Vec<Finding> = match value {
        Value::Array(items) => items.iter().filter_map(finding).collect(),
        Value::Null | Value::Bool(false) => Vec::new(),
        // `deny if { … }` without a message.
        other @ (Value::Bool(true) | Value::String(_) | Value::Number(_) | Value::Object(_)) => {
            finding(other).into_iter().collect()
        }
    };
    found.sort();
    if let Some(rest) = found.len().checked_sub(FINDINGS_MAX).filter(|rest| *rest > 0) {
        found.truncate(FINDINGS_MAX);
        found.push(plain(format!("{rest} more findings of this rule")));
    }
    found
}

fn plain(message: String) -> Finding {
    Finding { message, address: None, origin: None, metadata: BTreeMap::new() }
}

fn finding(value: &Value) -> Option<Finding> {
    match value {
        Value::String(text) => Some(plain(cut(text))),
        Value::Bool(true) => Some(plain("the rule holds, and gives no message".to_owned())),
        Value::Object(map) => {
            let text = |key: &str| map.get(key).and_then(Value::as_str);
            let message = text("msg").unwrap_or("the rule holds, and gives no `msg`");
            let known = ["msg", "address", "_loc"];
            let rest = map.iter().filter(|(key, _)| !known.contains(&key.as_str()));
            let shown = |value: &Value| value.as_str().map_or_else(|| cut(&value.to_string()), cut);
            Some(Finding {
                message: cut(message),
                address: text("address").map(Into::into),
                origin: map.get("_loc").and_then(location),
                metadata: rest.take(20).map(|(key, value)| (cut(key), shown(value))).collect(),
            })
        }
        Value::Null | Value::Bool(false) | Value::Number(_) | Value::Array(_) => None,
    }
}

fn location(value: &Value) -> Option<Origin> {
    let file = value.get("file")?.as_str()?;
    let line = value.get("line").and_then(Value::as_u64).unwrap_or(0);
    Some(Origin::new(file, u32::try_from(line).unwrap_or(0)))
}

fn cut(text: &str) -> String {
    text.chars().take(MESSAGE_MAX).collect()
}

#[cfg(test)]
mod tests;
