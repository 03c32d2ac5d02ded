//! References between objects: what is named must be there.

use super::decode::{Report, nearest};
use super::model::{Desired, Problem, Severity, Workload};
use super::pool::{Generation, Pool};
use crate::ids::NodeClassName;

/// Priority classes that every cluster has.
const BUILT_IN_PRIORITIES: [&str; 2] = ["system-cluster-critical", "system-node-critical"];

/// Notes every reference to an object that is not there.
pub(super) fn check(desired: &Desired, report: &Report) {
    for pool in desired.pools.values() {
        check_pool(pool, desired, report);
    }
    for workload in desired.workloads.values() {
        check_workload(workload, desired, report);
    }
}

fn check_pool(pool: &Pool, desired: &Desired, report: &Report) {
    let Some(class) = &pool.node_class else { return };
    if desired.node_classes.contains_key(class) {
        return;
    }
    let (kind, class_kind) = match pool.generation {
        Generation::V1alpha5 => ("Provisioner", "AWSNodeTemplate"),
        Generation::V1beta1 | Generation::V1 => ("NodePool", "EC2NodeClass"),
        // Both are read from one object.
        Generation::Eksctl => return,
    };
    let names: Vec<&str> = desired.node_classes.keys().map(NodeClassName::as_str).collect();
    let hint = nearest(class.as_str(), &names).map_or_else(
        || format!("add the {class_kind} `{class}` to the repository"),
        |name| format!("did you mean `{name}`?"),
    );
    report.add(Problem {
        origin: pool.origin.clone(),
        severity: Severity::Error,
        object: format!("{kind} {}", pool.name),
        message: format!("refers to the {class_kind} `{class}`, which is not in the repository"),
        hint: Some(hint),
    });
}

fn check_workload(workload: &Workload, desired: &Desired, report: &Report) {
    let spec = &workload.template.spec;
    let note = |severity, message: String, hint: String| {
        report.add(Problem {
            origin: workload.origin.clone(),
            severity,
            object: format!("{} {}", workload.id.kind, workload.id),
            message,
            hint: Some(hint),
        });
    };
    if let Some(name) = &spec.priority_class_name
        && !BUILT_IN_PRIORITIES.contains(&name.as_str())
        && !desired.priority_classes.contains_key(name)
    {
        let known: Vec<&str> = desired.priority_classes.keys().map(String::as_str).collect();
        note(Severity::Error, missing("PriorityClass", name), hint("PriorityClass", name, &known));
    }
    if let Some(name) = &spec.runtime_class_name
        && !desired.runtime_classes.contains_key(name)
    {
        let known: Vec<&str> = desired.runtime_classes.keys().map(String::as_str).collect();
        note(Severity::Error, missing("RuntimeClass", name), hint("RuntimeClass", name, &known));
    }
}

fn missing(kind: &str, name: &str) -> String {
    format!("refers to the {kind} `{name}`, which is not in the repository")
}

fn hint(kind: &str, name: &str, known: &[&str]) -> String {
    nearest(name, known).map_or_else(
        || format!("add the {kind} `{name}` to the repository"),
        |name| format!("did you mean `{name}`?"),
    )
}
