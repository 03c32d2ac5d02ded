//! Evaluation of the conventional rules `deny`, `violation`, `warn` and `exception`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::declarations::Package;
use super::engine::Engine;
use super::{Bundle, PolicyLimits, error_check, truncate};
use crate::model::ids::Origin;
use crate::plan::wire::{Check, CheckSeverity, CheckStatus, Finding};

/// Maximum number of findings of one rule in a plan.
pub(super) const FINDINGS_MAX: usize = 100;

/// Evaluates each rule of `bundle` over the plan `input` (JSON), and returns its check.
pub(super) fn evaluate(input: &str, bundle: &Bundle, limits: PolicyLimits) -> Vec<Check> {
    let mut engine = match Engine::load(bundle, limits) {
        Ok(engine) => engine,
        Err(broken) => return broken,
    };
    let packages = std::mem::take(&mut engine.packages);
    match engine.set_input(input) {
        Err(reason) => vec![error_check("policies", &reason)],
        Ok(()) => evaluate_packages(&mut engine, &packages),
    }
}

/// Returns the errors of loading the policies and data of `bundle`, each with its file.
pub fn load_errors(bundle: &Bundle, limits: PolicyLimits) -> Vec<(String, String)> {
    if bundle.is_empty() {
        return Vec::new();
    }
    match Engine::load(bundle, limits) {
        Ok(_) => Vec::new(),
        Err(broken) => {
            broken.into_iter().map(|check| (check.name, check.problems.join("; "))).collect()
        }
    }
}

fn evaluate_packages(engine: &mut Engine, packages: &BTreeMap<String, Package>) -> Vec<Check> {
    let mut checks = Vec::new();
    for (name, package) in packages {
        let exceptions =
            if package.has_exceptions { read_exceptions(engine, name) } else { Ok(Vec::new()) };
        for rule in &package.rules {
            let check = match &exceptions {
                Err(reason) => error_check(&format!("{name}.{rule}"), reason),
                Ok(exceptions) => check_rule(engine, name, rule, exceptions),
            };
            checks.push(check);
        }
    }
    checks
}

/// Returns the rule suffixes in `exception[rules]` of the package.
fn read_exceptions(engine: &mut Engine, package: &str) -> Result<Vec<String>, String> {
    let value = engine.rule(package, "exception")?;
    let mut names = Vec::new();
    collect_strings(&value, &mut names);
    Ok(names)
}

fn collect_strings(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::String(text) => into.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| collect_strings(item, into)),
        Value::Object(map) => map.values().for_each(|item| collect_strings(item, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn check_rule(engine: &mut Engine, package: &str, rule: &str, exceptions: &[String]) -> Check {
    let name = format!("{package}.{rule}");
    let (severity, suffix) = rule.split_once('_').unwrap_or((rule, ""));
    let found = match engine.rule(package, rule) {
        Ok(value) => match findings(&value) {
            Ok(found) => found,
            Err(reason) => return error_check(&name, &reason),
        },
        Err(reason) => return error_check(&name, &reason),
    };
    let severity = Some(CheckSeverity::from(severity.to_owned()));
    if found.is_empty() {
        return Check { name, status: CheckStatus::Pass, severity, ..Check::default() };
    }
    let problems: Vec<String> = found.iter().map(|finding| finding.message.clone()).collect();
    // An empty suffix excepts `deny` and `deny_`, as in conftest.
    if exceptions.iter().any(|excepted| excepted == suffix) {
        let exceptions = problems;
        return Check { name, status: CheckStatus::Pass, severity, exceptions, ..Check::default() };
    }
    let warns = severity == Some(CheckSeverity::Warn);
    Check {
        name,
        status: if warns { CheckStatus::Warn } else { CheckStatus::Fail },
        problems,
        severity,
        findings: found,
        ..Check::default()
    }
}

/// Returns the findings in the value of a rule: a set of messages or objects, or a single one.
///
/// # Errors
/// If a value is neither: a rule that reports something else guards nothing.
fn findings(value: &Value) -> Result<Vec<Finding>, String> {
    let mut found: Vec<Finding> = match value {
        Value::Array(items) => items.iter().map(finding).collect::<Result<_, _>>()?,
        Value::Null | Value::Bool(false) => Vec::new(),
        // `deny if { … }` without a message.
        Value::Bool(true) => {
            vec![message_only("the rule holds, and gives no message".to_owned())]
        }
        other @ (Value::String(_) | Value::Number(_) | Value::Object(_)) => vec![finding(other)?],
    };
    found.sort();
    if let Some(rest) = found.len().checked_sub(FINDINGS_MAX).filter(|rest| *rest > 0) {
        found.truncate(FINDINGS_MAX);
        found.push(message_only(format!("{rest} more findings of this rule")));
    }
    Ok(found)
}

fn message_only(message: String) -> Finding {
    Finding { message, address: None, origin: None, metadata: BTreeMap::new() }
}

fn finding(value: &Value) -> Result<Finding, String> {
    match value {
        Value::String(text) => Ok(message_only(truncate(text))),
        Value::Object(map) => {
            let text = |key: &str| map.get(key).and_then(Value::as_str);
            let message = text("msg").unwrap_or("the rule holds, and gives no `msg`");
            let known = ["msg", "address", "_loc"];
            let rest = map.iter().filter(|(key, _)| !known.contains(&key.as_str()));
            let shown = |value: &Value| {
                value.as_str().map_or_else(|| truncate(&value.to_string()), truncate)
            };
            Ok(Finding {
                message: truncate(message),
                address: text("address").map(Into::into),
                origin: map.get("_loc").and_then(location),
                metadata: rest.take(20).map(|(key, value)| (truncate(key), shown(value))).collect(),
            })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => Err(format!(
            "it reports {}, which is neither a message nor an object with `msg`",
            truncate(&value.to_string())
        )),
    }
}

fn location(value: &Value) -> Option<Origin> {
    let file = value.get("file")?.as_str()?;
    let line = value.get("line").and_then(Value::as_u64).unwrap_or(0);
    Some(Origin::new(file, u32::try_from(line).unwrap_or(0)))
}
