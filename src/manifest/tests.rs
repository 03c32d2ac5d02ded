//! Small trees, each for one rule.

mod cluster;
mod cluster_pools;
mod custom_kinds;
mod delivery;
mod files;
mod node_groups;
mod pods;
mod pools;
mod scaling;
mod workloads;

use super::*;
use crate::model::code::Code;
use crate::model::desired::{Desired, Fleet, Problem, Severity, Tree, TreeFile, Unresolved};
use crate::model::ids::{Namespace, WorkloadId, WorkloadKind};
use crate::model::pod::PodSpec;

/// Returns a tree of these files.
fn tree(files: &[(&str, &str)]) -> Tree {
    let file = |(path, text): &(&str, &str)| TreeFile {
        path: (*path).into(),
        content: Ok(text.as_bytes().into()),
    };
    Tree { files: files.iter().map(file).collect() }
}

fn read_files(files: &[(&str, &str)]) -> Desired {
    read(&tree(files), &Fleet::default())
}

fn read_text(text: &str) -> Desired {
    read_files(&[("a.yaml", text)])
}

/// Returns the problems as lines: `error a.yaml:3: Pod default/x: message; hint`.
fn lines(desired: &Desired) -> Vec<String> {
    desired.problems.iter().map(line).collect()
}

fn line(problem: &Problem) -> String {
    let Problem { origin, severity, object, message, hint, code: _, other: _ } = problem;
    let severity = match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let object = if object.is_empty() { String::new() } else { format!("{object}: ") };
    let hint = hint.as_ref().map_or(String::new(), |hint| format!("; {hint}"));
    format!("{severity} {origin}: {object}{message}{hint}")
}

/// Reads a text that must have no problems, besides warnings of removed API versions.
fn clean(text: &str) -> Desired {
    let desired = read_text(text);
    let is_other = |problem: &&Problem| problem.code != Some(Code::RemovedVersion);
    let others: Vec<String> = desired.problems.iter().filter(is_other).map(line).collect();
    assert_eq!(others, [""; 0], "{text}");
    desired
}

/// Returns the only problem of a text.
fn problem(text: &str) -> String {
    let desired = read_text(text);
    assert_eq!(desired.problems.len(), 1, "{text}\n{:#?}", lines(&desired));
    line(&desired.problems[0])
}

fn reasons(desired: &Desired) -> Vec<String> {
    desired.skipped.iter().map(|s| format!("{}: {}", s.origin, s.reason)).collect()
}

fn unresolved(desired: &Desired) -> Vec<String> {
    let line_of = |u: &Unresolved| format!("{}: {}: {}", u.origin, u.object, u.reason);
    desired.unresolved.iter().map(line_of).collect()
}

/// Returns a pod with `rest` in its specification beside one container.
fn pod(rest: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  \
         containers: [{{name: c}}]\n{rest}"
    )
}

fn pod_spec(desired: &Desired) -> &PodSpec {
    let workload = desired.workloads.values().next().expect("a workload");
    &workload.template.spec
}

fn id(kind: WorkloadKind, namespace: &str, name: &str) -> WorkloadId {
    WorkloadId { namespace: Namespace::from(namespace), name: name.into(), kind }
}
