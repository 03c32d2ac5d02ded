//! Pods that an admission plugin of Kubernetes refuses because of another object: their priority
//! class or their runtime class.
//!
//! As with limit ranges, an error is reported and the demand is unchanged.

use super::shape::{class_priority, default_class};
use crate::model::code::Code;
use crate::model::desired::{Desired, Problem, RuntimeClass, Workload};
use crate::model::pod::PodSpec;

/// Returns an error for each plugin that refuses the pods of `workload`.
pub(super) fn refusals(workload: &Workload, desired: &Desired) -> Vec<Problem> {
    let spec = &workload.template.spec;
    let found = [priority_refusal(spec, desired), runtime_refusal(spec, desired)];
    let problem = |(message, hint): (String, &str)| {
        Problem::error(
            workload.origin.clone(),
            format!("{} {}", workload.id.kind, workload.id),
            format!("the API server refuses its pods: {message}"),
        )
        .hint(hint)
        .code(Code::AdmissionRejected)
    };
    found.into_iter().flatten().map(problem).collect()
}

/// Compares the priority of a pod with that of its class. A class that is not declared may be in the
/// cluster, and so may a default class. Source: `k8s.io/kubernetes/plugin/pkg/admission/priority`, `admitPod`.
fn priority_refusal(spec: &PodSpec, desired: &Desired) -> Option<(String, &'static str)> {
    let stated = spec.priority?;
    let classes = &desired.priority_classes;
    let (source, computed) = if let Some(name) = &spec.priority_class_name {
        (format!("PriorityClass `{name}`"), class_priority(classes, name)?)
    } else {
        let (name, class) = default_class(classes)?;
        (format!("the default PriorityClass `{name}`"), class.value)
    };
    (stated != computed).then(|| {
        let message = format!("`priority` is {stated}, but {source} has {computed}");
        (message, "remove `priority`, and name a PriorityClass in `priorityClassName`")
    })
}

/// Compares the node selector of a pod with that of its runtime class.
/// Source: `k8s.io/kubernetes/plugin/pkg/admission/runtimeclass`, `setScheduling`.
fn runtime_refusal(spec: &PodSpec, desired: &Desired) -> Option<(String, &'static str)> {
    let name = spec.runtime_class_name.as_ref()?;
    let RuntimeClass { node_selector, .. } = desired.runtime_classes.get(name)?;
    let (key, own, value) = node_selector.iter().find_map(|(key, value)| {
        let own = spec.node_selector.get(key)?;
        (own != value).then_some((key, own, value))
    })?;
    let message = format!(
        "`nodeSelector` has {key} `{own}`, but RuntimeClass `{name}` selects nodes with `{value}`"
    );
    Some((message, "remove the label from the `nodeSelector` of the pods"))
}

#[cfg(test)]
mod tests {
    use super::super::{Demand, DemandMode};
    use crate::manifest::read;
    use crate::model::desired::{Fleet, Tree, TreeFile};
    use crate::model::observed::{ClusterIdentity, Observed};

    const CLASSES: &str = "
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: high}, value: 1000}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: kata}, handler: kata,
  scheduling: {nodeSelector: {team: a}}}";

    const DEFAULT: &str = "
---
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: usual}, value: 5,
  globalDefault: true}";

    /// Returns the error messages for a pod with `spec` beside these classes.
    fn refusals(classes: &str, spec: &str) -> Vec<String> {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, \
             spec: {{containers: [{{name: c}}], {spec}}}}}{classes}"
        );
        let file = TreeFile { path: "a.yaml".into(), content: Ok(text.as_bytes().into()) };
        let desired = read(&Tree { files: vec![file] }, &Fleet::default());
        assert_eq!(desired.problems, [], "{text}");
        let at = "2026-11-21T12:00:00Z".parse().expect("a time");
        let empty = Observed::empty(ClusterIdentity::default(), at);
        let problems = Demand::build(&desired, &empty, DemandMode::Live).problems;
        problems.into_iter().map(|problem| problem.message).collect()
    }

    #[test]
    fn priority_that_differs_from_its_class_is_refused() {
        let both = format!("{CLASSES}{DEFAULT}");
        for (classes, spec, part) in [
            (CLASSES, "priority: 100", None),
            (CLASSES, "priority: 0", None),
            (CLASSES, "priority: 100, priorityClassName: high", Some("`high` has 1000")),
            (CLASSES, "priority: 1000, priorityClassName: high", None),
            (CLASSES, "priority: 2000001000, priorityClassName: system-node-critical", None),
            (&*both, "priority: 5", None),
            (&*both, "priority: 0", Some("the default PriorityClass `usual` has 5")),
        ] {
            let found = refusals(classes, spec);
            let refusals = found.iter().filter(|text| text.contains("refuses its pods"));
            match part {
                None => assert_eq!(refusals.count(), 0, "{spec}: {found:?}"),
                Some(part) => {
                    assert!(found.iter().any(|text| text.contains(part)), "{spec}: {found:?}");
                }
            }
        }
    }

    #[test]
    fn node_selector_against_its_runtime_class_is_refused() {
        let with = |team: &str| {
            refusals(CLASSES, &format!("runtimeClassName: kata, nodeSelector: {{team: {team}}}"))
        };
        assert_eq!(with("a"), [""; 0]);
        assert!(with("b").iter().any(|text| text.contains("RuntimeClass `kata` selects")));
    }
}
