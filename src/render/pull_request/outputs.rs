//! The outputs of a job: one `key=value` per line, in the format of `$GITHUB_OUTPUT`.

use crate::plan::Plan;
use crate::plan::wire::Summary;
use crate::render::is_errored_by_rules;

/// Returns the outputs of a plan; every value is a number, a word or a hash on one line.
pub fn outputs(plan: &Plan) -> String {
    let Summary { add, change, destroy, blocked, destructive, .. } = plan.summary;
    let capacity = &plan.capacity;
    let changes = add + change + destroy > 0;
    let failure = if is_errored_by_rules(plan) {
        "plan-breaks-rules"
    } else if plan.errored {
        "inputs-errored"
    } else if crate::policy::is_denied(plan) {
        "policy-denied"
    } else if changes && !plan.applyable {
        "world-cannot-change"
    } else {
        ""
    };
    let rows = [
        ("changes", changes.to_string()),
        ("to_add", add.to_string()),
        ("to_change", change.to_string()),
        ("to_destroy", destroy.to_string()),
        ("blocked", blocked.to_string()),
        ("destructive", destructive.to_string()),
        ("digest", one_line(capacity.digest.as_str())),
        ("plan_id", one_line(capacity.plan_id.as_str())),
        ("expires_at", capacity.expires_at.to_string()),
        ("applyable", plan.applyable.to_string()),
        ("approval_required", (changes && plan.applyable).to_string()),
        ("unschedulable", capacity.pods.unschedulable.to_string()),
        ("served_by_cluster_autoscaler", capacity.pods.served_by_cluster_autoscaler.to_string()),
        ("cost_delta_monthly", capacity.cost.monthly_delta.to_string()),
        ("failure_reason", failure.to_owned()),
    ];
    rows.iter().map(|(key, value)| format!("{key}={value}\n")).collect::<Vec<_>>().concat()
}

/// Keeps the characters of a hash: a line feed would start another output.
fn one_line(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == ':').collect()
}
