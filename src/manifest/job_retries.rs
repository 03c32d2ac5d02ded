//! Reads how many failed pods a Job survives, and whether an evicted pod is one of them.
//!
//! Invariant: an unreadable value counts as the one that survives least, because it decides on
//! evictions.
//!
//! Source: Kubernetes, `pkg/controller/job/pod_failure_policy.go` (the first rule that matches
//! applies) and `pkg/apis/batch/v1/defaults.go`.

use super::decode::{FieldMap, shorten};
use super::yaml::{YamlNode, YamlValue};
use crate::model::desired::Severity;
use crate::model::ids::WorkloadKind;
use crate::model::job::{DEFAULT_BACKOFF_LIMIT, JobRetries, OnEviction};

/// `backoffLimit` of a Job that states only `backoffLimitPerIndex`.
const UNLIMITED: u32 = i32::MAX.unsigned_abs();

/// The limits of a specification.
const LIMITS: [&str; 2] = [LIMIT, LIMIT_PER_INDEX];
const LIMIT: &str = "backoffLimit";
const LIMIT_PER_INDEX: &str = "backoffLimitPerIndex";

/// Exit codes of a container that ends by SIGKILL and by SIGTERM, as at an eviction.
const EVICTED_EXIT_CODES: [&str; 2] = ["137", "143"];

/// Returns the failed pods that the Jobs of a workload survive; `None` if it makes no Jobs.
pub(super) fn read(kind: WorkloadKind, root: &YamlNode<'_>) -> Option<JobRetries> {
    let spec = spec_path(kind)?.iter().try_fold(root, |node, key| node.get(key))?;
    let failures = |key: &str| stated(spec, key).map(|value| limit(value).unwrap_or(0));
    let per_index = failures(LIMIT_PER_INDEX);
    let default = if per_index.is_some() { UNLIMITED } else { DEFAULT_BACKOFF_LIMIT };
    Some(JobRetries {
        backoff_limit: failures(LIMIT).unwrap_or(default),
        per_index,
        on_eviction: on_eviction(spec),
    })
}

/// As [`read`], with a warning for each unreadable limit.
pub(super) fn read_declared(kind: WorkloadKind, root: &FieldMap<'_>) -> Option<JobRetries> {
    let path = spec_path(kind)?;
    let spec = path.iter().try_fold(root.field.node, |node, key| node.get(key))?;
    for key in LIMITS {
        let Some(value) = stated(spec, key).filter(|value| limit(value).is_none()) else {
            continue;
        };
        let found = match value.text() {
            Some(text) => format!("`{}`", shorten(text)),
            None => value.noun().to_owned(),
        };
        let path = path.join(".");
        root.field.scope.report_problem(
            Severity::Warning,
            value.line,
            format!("`{path}.{key}` is {found}, not a whole number from 0, and counts as 0"),
            Some("write a whole number, such as 6".to_owned()),
        );
    }
    read(kind, root.field.node)
}

/// Returns the keys that lead to the specification of a Job; `None` if the workload makes no Jobs.
fn spec_path(kind: WorkloadKind) -> Option<&'static [&'static str]> {
    match kind {
        WorkloadKind::Job => Some(&["spec"]),
        WorkloadKind::CronJob => Some(&["spec", "jobTemplate", "spec"]),
        WorkloadKind::ScaledJob => Some(&["spec", "jobTargetRef"]),
        WorkloadKind::Deployment
        | WorkloadKind::StatefulSet
        | WorkloadKind::DaemonSet
        | WorkloadKind::ReplicaSet
        | WorkloadKind::ReplicationController
        | WorkloadKind::Pod
        | WorkloadKind::Rollout
        | WorkloadKind::CapacityBuffer => None,
    }
}

/// Returns a value that is neither absent nor null.
fn stated<'n, 't>(spec: &'n YamlNode<'t>, key: &str) -> Option<&'n YamlNode<'t>> {
    spec.get(key).filter(|value| !value.is_null())
}

/// Returns a limit; `None` if it is unreadable.
fn limit(value: &YamlNode<'_>) -> Option<u32> {
    value.text()?.parse().ok()
}

/// Returns what the first rule that may match an evicted pod does.
fn on_eviction(spec: &YamlNode<'_>) -> OnEviction {
    let rules = spec.get("podFailurePolicy").and_then(|policy| policy.get("rules"));
    let effect = |rule: &YamlNode<'_>| {
        let action = rule.get("action").and_then(YamlNode::text);
        if is_for_disruptions(rule) {
            return Some(match action {
                Some("Ignore") => OnEviction::Ignored,
                Some("Count") => OnEviction::Counted,
                Some(_) | None => OnEviction::Fatal,
            });
        }
        // An evicted pod may end with any exit code, so none of them is certain to be ignored.
        let may_match = action != Some("Ignore") && may_match_exit_codes(rule);
        may_match.then_some(match action {
            Some("Count") => OnEviction::Counted,
            Some(_) | None => OnEviction::Fatal,
        })
    };
    items(rules).iter().find_map(effect).unwrap_or_default()
}

/// Returns whether a rule matches the condition `DisruptionTarget`, which evicted pods have.
fn is_for_disruptions(rule: &YamlNode<'_>) -> bool {
    items(rule.get("onPodConditions")).iter().any(|pattern| {
        let text = |key: &str| pattern.get(key).and_then(YamlNode::text);
        text("type") == Some("DisruptionTarget") && text("status").is_none_or(|is| is == "True")
    })
}

/// Returns whether a rule matches containers that end by a signal.
fn may_match_exit_codes(rule: &YamlNode<'_>) -> bool {
    let Some(codes) = rule.get("onExitCodes") else { return false };
    let values = items(codes.get("values"));
    let is_listed = |code: &&str| values.iter().any(|value| value.text() == Some(*code));
    let listed = EVICTED_EXIT_CODES.iter().filter(|code| is_listed(code)).count();
    match codes.get("operator").and_then(YamlNode::text) {
        Some("In") => listed > 0,
        Some(_) | None => listed < EVICTED_EXIT_CODES.len(),
    }
}

/// Returns the items of a sequence; none of any other value.
fn items<'n, 't>(node: Option<&'n YamlNode<'t>>) -> &'n [YamlNode<'t>] {
    let Some(YamlValue::Seq(items)) = node.map(|node| &node.value) else { return &[] };
    items
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::manifest::read_job_retries;

    fn read_spec(spec: &Json) -> JobRetries {
        read_job_retries(&json!({ "kind": "Job", "spec": spec })).expect("a Job")
    }

    #[test]
    fn limits_have_the_defaults_of_kubernetes() {
        for (spec, backoff_limit, per_index) in [
            (json!({}), 6, None),
            (json!({ "backoffLimit": null }), 6, None),
            (json!({ "backoffLimit": 0 }), 0, None),
            (json!({ "backoffLimit": 12 }), 12, None),
            (json!({ "backoffLimit": "${LIMIT}" }), 0, None),
            (json!({ "backoffLimit": -1 }), 0, None),
            (json!({ "backoffLimit": [6] }), 0, None),
            (json!({ "backoffLimitPerIndex": 2 }), UNLIMITED, Some(2)),
            (json!({ "backoffLimitPerIndex": 2, "backoffLimit": 9 }), 9, Some(2)),
        ] {
            let expected =
                JobRetries { backoff_limit, per_index, on_eviction: OnEviction::Counted };
            assert_eq!(read_spec(&spec), expected, "{spec}");
        }
        let other = json!({ "kind": "Job", "metadata": { "name": "a" } });
        assert_eq!(read_job_retries(&other), None, "without a specification");
    }

    #[test]
    fn first_rule_that_may_match_an_evicted_pod_decides() {
        let disrupted = |action: &str| {
            let pattern = json!([{ "type": "DisruptionTarget" }]);
            json!({ "action": action, "onPodConditions": pattern })
        };
        let when = |status: &str| {
            let pattern = json!([{ "type": "DisruptionTarget", "status": status }]);
            json!({ "action": "Ignore", "onPodConditions": pattern })
        };
        let exits = |action: &str, operator: &str, values: Json| {
            let codes = json!({ "operator": operator, "values": values });
            json!({ "action": action, "onExitCodes": codes })
        };
        let broken = json!({ "action": "FailJob", "onPodConditions": [{ "type": "ConfigIssue" }] });
        for (rules, expected) in [
            (json!(null), OnEviction::Counted),
            (json!("none"), OnEviction::Counted),
            (json!([disrupted("Ignore")]), OnEviction::Ignored),
            (json!([disrupted("Count")]), OnEviction::Counted),
            (json!([disrupted("FailJob")]), OnEviction::Fatal),
            (json!([disrupted("FailIndex")]), OnEviction::Fatal),
            (json!([when("True")]), OnEviction::Ignored),
            (json!([when("False")]), OnEviction::Counted),
            (json!([broken.clone(), disrupted("Ignore")]), OnEviction::Ignored),
            (json!([broken]), OnEviction::Counted),
            (
                json!([exits("FailJob", "In", json!([42])), disrupted("Ignore")]),
                OnEviction::Ignored,
            ),
            (json!([exits("FailJob", "In", json!([143])), disrupted("Ignore")]), OnEviction::Fatal),
            (json!([exits("FailJob", "NotIn", json!([42]))]), OnEviction::Fatal),
            (json!([exits("FailJob", "NotIn", json!([137, 143]))]), OnEviction::Counted),
            (
                json!([exits("Count", "NotIn", json!([42])), disrupted("Ignore")]),
                OnEviction::Counted,
            ),
            (json!([exits("Ignore", "In", json!([137, 143]))]), OnEviction::Counted),
            (json!([disrupted("Ignore"), disrupted("FailJob")]), OnEviction::Ignored),
        ] {
            let spec = json!({ "podFailurePolicy": { "rules": rules } });
            assert_eq!(read_spec(&spec).on_eviction, expected, "{rules}");
        }
    }
}
