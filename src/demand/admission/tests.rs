//! Repositories, and what the API server would say of their pods.

use crate::demand::{Demand, DemandMode};
use crate::manifest::read;
use crate::model::desired::{Fleet, Problem, Severity, Tree, TreeFile};
use crate::model::observed::{ClusterIdentity, Observed};

fn problems(text: &str) -> Vec<Problem> {
    let file = TreeFile { path: "a.yaml".into(), content: Ok(text.as_bytes().into()) };
    let desired = read(&Tree { files: vec![file] }, &Fleet::default());
    assert_eq!(desired.problems, [], "{text}");
    let at = "2026-11-21T12:00:00Z".parse().expect("a time");
    let nothing = Observed::empty(ClusterIdentity::default(), at);
    Demand::build(&desired, &nothing, DemandMode::Live).problems
}

/// A limit range with one item, and a deployment of one container beside a small one.
fn refused(kind: &str, item: &str, resources: &str) -> Vec<String> {
    let text = format!(
        "apiVersion: v1
kind: LimitRange
metadata: {{name: range, namespace: web}}
spec: {{limits: [{{type: {kind}, {item}}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: api, namespace: web}}
spec:
  template:
    spec:
      containers:
      - name: app
        resources: {{{resources}}}
"
    );
    let shown = |problem: Problem| {
        assert_eq!(problem.severity, Severity::Error);
        assert_eq!(
            (problem.origin.to_string(), &*problem.object),
            ("a.yaml:6".into(), "Deployment web/api")
        );
        let message = problem.message.strip_prefix("the API server refuses its pods: ");
        message.expect("says who refuses").to_owned()
    };
    problems(&text).into_iter().map(shown).collect()
}

#[test]
fn limit_ranges_refuse_what_is_out_of_their_range() {
    for (rule, kind, item, resources, expected) in [
        ("within", "Container", "min: {cpu: 50m}, max: {cpu: 2}", "requests: {cpu: 1}", &[][..]),
        (
            "a request below the least",
            "Container",
            "min: {cpu: 100m}",
            "requests: {cpu: 50m}",
            &["LimitRange range asks for at least 100m of cpu, and container app requests 50m"],
        ),
        ("the least is given to who states nothing", "Container", "min: {cpu: 100m}", "", &[]),
        (
            "a limit above the most",
            "Container",
            "max: {memory: 1Gi}",
            "limits: {memory: 2Gi}",
            &["LimitRange range allows at most 1Gi of memory, and container app is limited to 2Gi"],
        ),
        ("the most is given to who states nothing", "Container", "max: {cpu: 2}", "", &[]),
        (
            "a request above the limit that it is given",
            "Container",
            "default: {cpu: 500m}, max: {cpu: 2}",
            "requests: {cpu: 1}",
            &["container app requests 1 of cpu, more than the limit of 500m that a LimitRange \
                 gives it"],
        ),
        (
            "limit and request too far apart",
            "Container",
            "maxLimitRequestRatio: {cpu: '1.5'}",
            "requests: {cpu: 1}, limits: {cpu: 1600m}",
            &["LimitRange range allows a limit of at most 1500m times the request of cpu, and \
                 container app is limited to 1600m and requests 1"],
        ),
        (
            "as far apart as may be",
            "Container",
            "maxLimitRequestRatio: {cpu: '1.5'}",
            "requests: {cpu: 1}, limits: {cpu: 1500m}",
            &[],
        ),
        (
            "a ratio needs both",
            "Container",
            "maxLimitRequestRatio: {cpu: 2}",
            "requests: {cpu: 1}",
            &["LimitRange range allows a limit of at most 2 times the request of cpu, and \
                 container app has no limit"],
        ),
        (
            "a pod as a whole",
            "Pod",
            "max: {cpu: 2}, min: {memory: 1Gi}",
            "limits: {cpu: 3}",
            &[
                "LimitRange range asks for at least 1Gi of memory, and the pod requests none",
                "LimitRange range allows at most 2 of cpu, and the pod is limited to 3",
            ],
        ),
        (
            "nothing is given to a pod as a whole",
            "Pod",
            "max: {cpu: 2}",
            "requests: {cpu: 1}",
            &["LimitRange range allows at most 2 of cpu, and the pod has no limit"],
        ),
        ("volumes are another matter", "PersistentVolumeClaim", "max: {storage: 1Gi}", "", &[]),
    ] {
        assert_eq!(refused(kind, item, resources), expected, "{rule}");
    }
}

#[test]
fn what_a_pod_states_as_a_whole_covers_its_containers() {
    let of = |resources: &str| -> Vec<String> {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{resources: {{{resources}}},
  containers: [{{name: a, resources: {{requests: {{cpu: 1}}}}}}, {{name: b, resources: {{limits: {{cpu: 1}}}}}}]}}}}"
        );
        problems(&text).into_iter().map(|problem| problem.message).collect()
    };
    assert_eq!(of("requests: {cpu: 2}"), [""; 0]);
    assert_eq!(
        of("requests: {cpu: 1500m}, limits: {cpu: 3}"),
        ["the API server refuses its pods: its pod-level request of 1500m of cpu is below the 2 \
          that its containers request"]
    );
    assert!(of("limits: {cpu: 1}")[0].contains("its pod-level limit of 1 of cpu is below the 2"));
    assert!(
        of("limits: {ephemeral-storage: 1Gi}")[0]
            .ends_with("ephemeral-storage is stated for the pod as a whole")
    );
}

/// A quota, and a deployment of four pods of one core with a limit of two, of class `high`.
fn quota(spec: &str) -> Vec<String> {
    let text = format!(
        "apiVersion: v1
kind: ResourceQuota
metadata: {{name: quota, namespace: web}}
spec: {spec}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {{name: high}}
value: 5
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: api, namespace: web}}
spec:
  replicas: 4
  template:
    spec:
      priorityClassName: high
      containers:
      - name: app
        resources: {{requests: {{cpu: 1, nvidia.com/gpu: 1}}, limits: {{cpu: 2, nvidia.com/gpu: 1}}}}
"
    );
    let shown = |problem: Problem| {
        assert_eq!(problem.severity, Severity::Warning);
        assert_eq!(
            (problem.origin.to_string(), &*problem.object),
            ("a.yaml:1".into(), "ResourceQuota web/quota")
        );
        problem.message
    };
    problems(&text).into_iter().map(shown).collect()
}

#[test]
fn quotas_warn_where_the_planned_pods_come_to_more() {
    let over = |key: &str, most: &str, asked: &str| {
        format!(
            "allows {key} of {most}, and the planned pods of namespace web come to {asked}: the \
             API server will refuse some of them"
        )
    };
    for (rule, spec, expected) in [
        ("as much as there may be", "{hard: {cpu: 4, pods: 4, limits.cpu: 8}}", vec![]),
        ("requests", "{hard: {requests.cpu: 3500m}}", vec![over("requests.cpu", "3500m", "4")]),
        ("a plain name means requests", "{hard: {cpu: 3}}", vec![over("cpu", "3", "4")]),
        ("limits", "{hard: {limits.cpu: 7}}", vec![over("limits.cpu", "7", "8")]),
        ("pods", "{hard: {pods: 3}}", vec![over("pods", "3", "4")]),
        (
            "extended resources",
            "{hard: {requests.nvidia.com/gpu: 3}}",
            vec![over("requests.nvidia.com/gpu", "3", "4")],
        ),
        (
            "other objects",
            "{hard: {services: 0, requests.storage: 0, count/jobs.batch: 0}}",
            vec![],
        ),
        ("pods of no quality", "{hard: {pods: 0}, scopes: [BestEffort]}", vec![]),
        (
            "pods of some quality",
            "{hard: {pods: 0}, scopes: [NotBestEffort]}",
            vec![over("pods", "0", "4")],
        ),
        (
            "another class",
            "{hard: {pods: 0}, scopeSelector: {matchExpressions: [{scopeName: PriorityClass, \
             operator: In, values: [low]}]}}",
            vec![],
        ),
        (
            "this class",
            "{hard: {pods: 0}, scopeSelector: {matchExpressions: [{scopeName: PriorityClass, \
             operator: In, values: [high]}]}}",
            vec![over("pods", "0", "4")],
        ),
        (
            "a scope that cannot be told",
            "{hard: {pods: 0}, scopes: [Terminating]}",
            vec!["is not held against the plan: scope Terminating is not understood".to_owned()],
        ),
    ] {
        assert_eq!(quota(spec), expected, "{rule}");
    }
}
