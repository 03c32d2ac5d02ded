//! Checks references between objects.

use super::decode::ProblemCollector;
use crate::model::code::Code;
use crate::model::desired::{Desired, Generation, Pool, Problem, Severity, Workload};
use crate::model::ids::NodeClassName;
use crate::model::similar_name::most_similar;

/// Priority classes that every cluster has.
const BUILT_IN_PRIORITIES: [&str; 2] = ["system-cluster-critical", "system-node-critical"];

/// Reports every reference to a missing object.
pub(super) fn check(desired: &Desired, report: &ProblemCollector) {
    for pool in desired.pools.values() {
        check_pool(pool, desired, report);
    }
    for workload in desired.workloads.values() {
        check_workload(workload, desired, report);
    }
}

fn check_pool(pool: &Pool, desired: &Desired, report: &ProblemCollector) {
    let Some(class) = &pool.node_class else { return };
    if desired.node_classes.contains_key(class) {
        return;
    }
    let (kind, class_kind) = match pool.generation {
        Generation::V1alpha5 => ("Provisioner", "AWSNodeTemplate"),
        Generation::V1beta1 | Generation::V1 => ("NodePool", "EC2NodeClass"),
        // Pool and node class are read from one object.
        Generation::Eksctl => return,
    };
    // The reader has reported why it cannot be read.
    let object = format!("{class_kind} {class}");
    if report.has_error_of(&object) {
        return;
    }
    let names: Vec<&str> = desired.node_classes.keys().map(NodeClassName::as_str).collect();
    let place = if pool.origin.is_in_cluster() { "cluster" } else { "repository" };
    let hint = most_similar(class.as_str(), &names).map_or_else(
        || format!("add the {class_kind} `{class}` to the {place}"),
        |name| format!("did you mean `{name}`?"),
    );
    report.add(
        Problem::error(
            pool.origin.clone(),
            format!("{kind} {}", pool.name),
            format!("refers to the {class_kind} `{class}`, which is not in the {place}"),
        )
        .hint(hint)
        .code(Code::NodeClassMissing),
    );
}

fn check_workload(workload: &Workload, desired: &Desired, report: &ProblemCollector) {
    let spec = &workload.template.spec;
    let note = |severity, message: String, hint: String| {
        report.add(
            Problem::new(
                severity,
                workload.origin.clone(),
                format!("{} {}", workload.id.kind, workload.id),
                message,
            )
            .hint(hint)
            .code(Code::ReferenceMissing),
        );
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
    most_similar(name, known).map_or_else(
        || format!("add the {kind} `{name}` to the repository"),
        |name| format!("did you mean `{name}`?"),
    )
}
