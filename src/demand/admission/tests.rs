//! Rejections of the API server, and quotas, for declared pods.

use crate::demand::{Demand, DemandMode};
use crate::manifest::read;
use crate::model::desired::{Fleet, Problem, Severity, Tree, TreeFile};
use crate::model::observed::{ClusterIdentity, LiveVertical, Observed, Recommendation, Scaling};

fn problems(text: &str) -> Vec<Problem> {
    problems_with(text, Scaling::default())
}

/// Returns the problems of demand with the recommendations of vertical autoscalers.
fn problems_with(text: &str, scaling: Scaling) -> Vec<Problem> {
    let file = TreeFile { path: "a.yaml".into(), content: Ok(text.as_bytes().into()) };
    let desired = read(&Tree { files: vec![file] }, &Fleet::default());
    assert_eq!(desired.problems, [], "{text}");
    let at = "2026-11-21T12:00:00Z".parse().expect("a time");
    let empty = Observed { scaling, ..Observed::empty(ClusterIdentity::default(), at) };
    Demand::build(&desired, &empty, DemandMode::Live).problems
}

/// Returns the errors for a limit range with one item and a Deployment with one container.
fn rejections(kind: &str, item: &str, resources: &str) -> Vec<String> {
    rejections_of(kind, item, &format!("containers: [{{name: app, resources: {{{resources}}}}}]"))
}

/// Returns the errors for a limit range with one item and a Deployment whose pods have `spec`.
fn rejections_of(kind: &str, item: &str, spec: &str) -> Vec<String> {
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
  selector: {{matchLabels: {{app: api}}}}
  template:
    metadata: {{labels: {{app: api}}}}
    spec: {{{spec}}}
"
    );
    let message_of = |problem: Problem| {
        assert_eq!(problem.severity, Severity::Error);
        assert_eq!(
            (problem.origin.to_string(), &*problem.object),
            ("a.yaml:6".into(), "Deployment web/api")
        );
        let message = problem.message.strip_prefix("the API server refuses its pods: ");
        message.expect("the message names the API server").to_owned()
    };
    problems(&text).into_iter().map(message_of).collect()
}

/// Rule, kind of the limit, limit, resources of the container, and expected rejections.
type LimitRangeCase =
    (&'static str, &'static str, &'static str, &'static str, &'static [&'static str]);

const LIMIT_RANGE_CASES: &[LimitRangeCase] = &[
    ("within", "Container", "min: {cpu: 50m}, max: {cpu: 2}", "requests: {cpu: 1}", &[]),
    (
        "a request below the minimum",
        "Container",
        "min: {cpu: 100m}",
        "requests: {cpu: 50m}",
        &["LimitRange range asks for at least 100m of cpu, and container app requests 50m"],
    ),
    ("the minimum is the default", "Container", "min: {cpu: 100m}", "", &[]),
    (
        "a limit above the maximum",
        "Container",
        "max: {memory: 1Gi}",
        "limits: {memory: 2Gi}",
        &["LimitRange range allows at most 1Gi of memory, and container app is limited to 2Gi"],
    ),
    ("the maximum is the default", "Container", "max: {cpu: 2}", "", &[]),
    (
        "a request above the default limit",
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
        "the maximum ratio",
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
        "no defaults for a pod",
        "Pod",
        "max: {cpu: 2}",
        "requests: {cpu: 1}",
        &["LimitRange range allows at most 2 of cpu, and the pod has no limit"],
    ),
    ("volumes are ignored", "PersistentVolumeClaim", "max: {storage: 1Gi}", "", &[]),
];

#[test]
fn limit_ranges_reject_resources_out_of_range() {
    for (rule, kind, item, resources, expected) in LIMIT_RANGE_CASES {
        assert_eq!(&rejections(kind, item, resources), expected, "{rule}");
    }
}

#[test]
fn pod_level_resources_cover_the_containers() {
    let messages = |resources: &str| -> Vec<String> {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{resources: {{{resources}}},
  containers: [{{name: a, resources: {{requests: {{cpu: 1}}}}}}, {{name: b, resources: {{limits: {{cpu: 1}}}}}}]}}}}"
        );
        problems(&text).into_iter().map(|problem| problem.message).collect()
    };
    assert_eq!(messages("requests: {cpu: 2}"), [""; 0]);
    assert_eq!(
        messages("requests: {cpu: 1500m}, limits: {cpu: 3}"),
        ["the API server refuses its pods: its pod-level request of 1500m of cpu is below the 2 \
          that its containers request"]
    );
    assert!(
        messages("limits: {cpu: 1}")[0].contains("its pod-level limit of 1 of cpu is below the 2")
    );
    assert!(
        messages("limits: {ephemeral-storage: 1Gi}")[0]
            .ends_with("ephemeral-storage is not allowed at pod level")
    );
}

#[test]
fn defaults_of_containers_count_beside_pod_level_resources() {
    let messages = |resources: &str| -> Vec<String> {
        let text = format!(
            "{{apiVersion: v1, kind: LimitRange, metadata: {{name: r}}, spec: {{limits: [{{type: Container,
  defaultRequest: {{cpu: 500m}}, default: {{cpu: 1}}}}]}}}}
---
{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{resources: {{{resources}}},
  containers: [{{name: a}}, {{name: b, resources: {{requests: {{cpu: 100m}}}}}}]}}}}"
        );
        problems(&text).into_iter().map(|problem| problem.message).collect()
    };
    assert_eq!(messages("requests: {cpu: 600m}"), [""; 0]);
    let below = |request: &str| {
        format!(
            "the API server refuses its pods: its pod-level request of {request} of cpu is below the \
             600m that its containers request with the defaults of a LimitRange"
        )
    };
    assert_eq!(messages("requests: {cpu: 300m}"), [below("300m")]);
    // The API server derives the request from the containers before a LimitRange fills them.
    assert_eq!(messages("limits: {cpu: 2}"), [below("100m")]);
    let limited = messages("requests: {cpu: 600m}, limits: {cpu: 800m}");
    assert_eq!(limited.len(), 2, "{limited:?}");
    assert!(
        limited[0].ends_with(
            "its pod-level limit of 800m of cpu is below the limit of 1 of container a with the \
             defaults of a LimitRange"
        ),
        "{limited:?}"
    );
}

/// Returns the warnings for a quota and a Deployment of class `high`: four pods that request one
/// core, with a limit of two.
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
  selector: {{matchLabels: {{app: api}}}}
  template:
    metadata: {{labels: {{app: api}}}}
    spec:
      priorityClassName: high
      containers:
      - name: app
        resources: {{requests: {{cpu: 1, nvidia.com/gpu: 1}}, limits: {{cpu: 2, nvidia.com/gpu: 1}}}}
"
    );
    let message_of = |problem: Problem| {
        assert_eq!(problem.severity, Severity::Warning);
        assert_eq!(
            (problem.origin.to_string(), &*problem.object),
            ("a.yaml:1".into(), "ResourceQuota web/quota")
        );
        problem.message
    };
    problems(&text).into_iter().map(message_of).collect()
}

#[test]
fn exceeded_quotas_cause_warnings() {
    let over = |key: &str, most: &str, asked: &str| {
        format!(
            "allows {key} of {most}, and the planned pods of namespace web need {asked}: the \
             API server will reject some of them"
        )
    };
    for (rule, spec, expected) in [
        ("within the quota", "{hard: {cpu: 4, pods: 4, limits.cpu: 8}}", vec![]),
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
        ("pods with QoS class BestEffort", "{hard: {pods: 0}, scopes: [BestEffort]}", vec![]),
        (
            "an amount that each container must state",
            "{hard: {requests.memory: 4Gi, memory: 4Gi, limits.cpu: 9, limits.memory: 4Gi}}",
            vec![
                "requires limits.memory, requests.memory of each container, which container app \
                 of Deployment web/api does not state: the API server will reject its pods"
                    .to_owned(),
            ],
        ),
        (
            "such an amount, in the quota of other pods",
            "{hard: {limits.memory: 4Gi}, scopes: [BestEffort]}",
            vec![],
        ),
        (
            "pods with another QoS class",
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
            "an unknown scope",
            "{hard: {pods: 0}, scopes: [Terminating]}",
            vec!["not checked: scope Terminating is not supported".to_owned()],
        ),
    ] {
        assert_eq!(quota(spec), expected, "{rule}");
    }
}

#[test]
fn limits_of_a_pod_apply_to_its_pod_level_requests() {
    let of = |pod_level: &str| {
        let spec = format!("resources: {{{pod_level}}}, containers: [{{name: app}}]");
        rejections_of("Pod", "min: {cpu: 500m}", &spec)
    };
    assert_eq!(of("requests: {cpu: 2}"), [""; 0]);
    assert_eq!(of("limits: {cpu: 2}"), [""; 0], "the limit is the request");
    let refused = of("requests: {cpu: 200m}");
    assert!(refused.len() == 1 && refused[0].ends_with("the pod requests 200m"), "{refused:?}");
}

#[test]
fn quotas_count_pods_after_a_vertical_autoscaler() {
    let text = "apiVersion: v1
kind: ResourceQuota
metadata: {name: quota, namespace: web}
spec: {hard: {requests.memory: 1Gi, limits.cpu: 4}}
---
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: api, namespace: web}
spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: api}, updatePolicy: {updateMode: Recreate}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec: {containers: [{name: app, resources: {requests: {cpu: 1}, limits: {cpu: 1}}}]}
";
    let quota = |scaling| {
        let all = problems_with(text, scaling).into_iter();
        let of_quota = all.filter(|problem| problem.object.starts_with("ResourceQuota"));
        of_quota.map(|problem| problem.message).collect::<Vec<_>>().join("; ")
    };
    let template = quota(Scaling::default());
    assert!(template.contains("requires requests.memory of each container"), "{template}");
    // The autoscaler adds the missing request, and its limit keeps its ratio to the request.
    let target = [("cpu".into(), 2_000), ("memory".into(), 128 << 20)].into();
    let containers =
        [("app".into(), Recommendation { target, ..Recommendation::default() })].into();
    let recommended = LiveVertical { namespace: "web".into(), name: "api".into(), containers };
    let sized = quota(Scaling { vertical: vec![recommended], ..Scaling::default() });
    assert!(sized.contains("limits.cpu of 4") && sized.contains(" need 8"), "{sized}");
    assert!(!sized.contains("requires"), "{sized}");
}
