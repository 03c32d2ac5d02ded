use super::*;
use crate::model::pod::{
    Expression, HostPort, NodeInclusion, Selector, TaintEffect, TolerationOperator, VolumeSource,
    WhenUnsatisfiable,
};
use crate::model::requirement::Operator;

fn container(resources: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - name: c\n    \
         resources: {{{resources}}}\n"
    )
}

fn expression(key: &str, operator: Operator, values: &[&str]) -> Expression {
    let values = values.iter().map(|value| (*value).into()).collect();
    Expression { key: key.into(), operator, values }
}

#[test]
fn requests_are_read_as_kubernetes_reads_quantities() {
    for (name, written, expected) in [
        ("cpu", "200m", 200),
        ("cpu", "\"2\"", 2_000),
        ("cpu", "3", 3_000),
        ("cpu", "0.15", 150),
        ("cpu", ".5", 500),
        ("cpu", "1e3", 1_000_000),
        ("cpu", "999.999", 999_999),
        ("cpu", "0.0001", 1),
        ("memory", "180Mi", 188_743_680),
        ("memory", "256M", 256_000_000),
        ("memory", "2.5G", 2_500_000_000),
        ("memory", "1.5Gi", 1_610_612_736),
        ("memory", "1_000", 1_000),
        ("memory", "010", 8),
        ("ephemeral-storage", "1.1", 2),
        ("memory", "~", 0),
    ] {
        let desired = clean(&container(&format!("requests: {{{name}: {written}}}")));
        let requests = &pod_spec(&desired).containers[0].resources.requests;
        assert_eq!(requests[name], expected, "{name} {written}");
    }
}

#[test]
fn resources_that_the_api_server_rejects_are_errors() {
    let at = "spec.containers[0].resources";
    for (resources, expected) in [
        (
            "requests: {memory: 2G1}",
            format!("`{at}.requests.memory` is `2G1`, not a quantity; write 2Gi or 2G"),
        ),
        ("requests: {cpu: -1}", format!("`{at}.requests.cpu` is -1, below zero")),
        (
            "requests: {cpu: true}",
            format!("`{at}.requests.cpu` is `true` (a boolean), not a quantity"),
        ),
        (
            "requests: {cpu: 2}, limits: {cpu: 500m}",
            format!(
                "`{at}` requests 2000m of cpu, more than the limit of 500m; raise the limit, or \
                 lower the request"
            ),
        ),
        (
            "requests: {mem: 1Gi}",
            format!(
                "`{at}.requests.mem` is an amount of `mem`, which is not a resource; extended \
                 resources carry a domain, such as nvidia.com/gpu"
            ),
        ),
        (
            "requests: {memroy: 1Gi}",
            format!(
                "`{at}.requests.memroy` is an amount of `memroy`, which is not a resource; did you \
                 mean `memory`?"
            ),
        ),
        (
            "requests: {nvidia.com/gpu: 1}",
            format!(
                "`{at}` requests 1 of nvidia.com/gpu without a limit; nvidia.com/gpu cannot be \
                 overcommitted: give it the same limit"
            ),
        ),
        (
            "requests: {hugepages-2Mi: 2Mi}, limits: {hugepages-2Mi: 4Mi}",
            format!(
                "`{at}` requests 2097152 of hugepages-2Mi with a limit of 4194304; hugepages-2Mi \
                 cannot be overcommitted: request and limit must be equal"
            ),
        ),
    ] {
        let expected = format!("error a.yaml:7: Pod default/p: {expected}");
        assert_eq!(problem(&container(resources)), expected);
    }
    clean(&container("limits: {nvidia.com/gpu: 1, cpu: 1}, requests: {cpu: 1}, claims: []"));
}

#[test]
fn only_scheduling_fields_of_a_pod_are_read() {
    let desired = clean(&pod("  initContainers:
  - {name: i, restartPolicy: Always, command: [secret]}
  - {name: j, env: [{name: A, value: secret}], image: secret}
  overhead: {cpu: 10m}
  resources: {requests: {cpu: 1}}
  runtimeClassName: ''
  priority: -5
  nodeName: n1
  schedulerName: other
  terminationGracePeriodSeconds: 0
  schedulingGates: [{name: g}]
  resourceClaims: [{name: r, resourceClaimName: x}, {name: t, resourceClaimTemplateName: z}]
  serviceAccountName: secret
  securityContext: {runAsUser: 0}"));
    let spec = pod_spec(&desired);
    let sidecars: Vec<bool> = spec.init_containers.iter().map(|c| c.sidecar).collect();
    assert_eq!(sidecars, [true, false]);
    assert_eq!(spec.overhead["cpu"], 10);
    assert_eq!(spec.resources.as_ref().map(|r| r.requests["cpu"]), Some(1_000));
    assert_eq!(spec.runtime_class_name, None, "an empty name names none");
    assert_eq!((spec.priority, spec.termination_grace_seconds), (Some(-5), Some(0)));
    assert_eq!(spec.node_name.as_deref(), Some("n1"));
    assert_eq!(spec.scheduler_name.as_deref(), Some("other"));
    assert_eq!(spec.scheduling_gates, ["g"]);
    assert_eq!(spec.resource_claims, ["r", "t"]);
    assert_eq!(spec.resource_claim_templates, [("t".to_owned(), "z".to_owned())].into());
    assert!(!format!("{:?}", desired.workloads).contains("secret"));
}

#[test]
fn only_annotations_that_affect_capacity_are_read() {
    let desired = clean(
        "apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: {app: web}
  annotations:
    karpenter.sh/do-not-disrupt: 'true'
    cluster-autoscaler.kubernetes.io/safe-to-evict: 'false'
    eks.amazonaws.com/compute-type: ec2
    vault.example.com/token: secret
    notkarpenter.sh/x: secret
spec: {containers: [{name: c}]}",
    );
    let template = &desired.workloads.values().next().expect("one").template;
    assert_eq!(
        template.annotations.keys().collect::<Vec<_>>(),
        [
            "cluster-autoscaler.kubernetes.io/safe-to-evict",
            "eks.amazonaws.com/compute-type",
            "karpenter.sh/do-not-disrupt"
        ]
    );
    assert_eq!(template.labels["app"].as_str(), "web");
}

#[test]
fn node_selection_uses_current_label_names() {
    let desired = clean(&pod("  nodeSelector: {beta.kubernetes.io/arch: arm64, team: a}
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions:
          - {key: failure-domain.beta.kubernetes.io/zone, operator: In, values: [a, b]}
          - {key: cores, operator: Gt, values: ['4']}
          - {key: gpu, operator: DoesNotExist}
        - matchFields: [{key: metadata.name, operator: In, values: [n1]}]
      preferredDuringSchedulingIgnoredDuringExecution:
      - {weight: 7, preference: {matchExpressions: [{key: x, operator: Exists}]}}"));
    let spec = pod_spec(&desired);
    let labels: Vec<String> = spec.node_selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(labels, ["kubernetes.io/arch=arm64", "team=a"]);
    let terms = spec.node_affinity.required.as_ref().expect("required");
    assert_eq!(
        terms[0].expressions,
        [
            expression("topology.kubernetes.io/zone", Operator::In, &["a", "b"]),
            expression("cores", Operator::Gt, &["4"]),
            expression("gpu", Operator::DoesNotExist, &[]),
        ]
    );
    assert_eq!(terms[1].fields, [expression("metadata.name", Operator::In, &["n1"])]);
    let (weight, term) = &spec.node_affinity.preferred[0];
    assert_eq!((*weight, &term.expressions[0]), (7, &expression("x", Operator::Exists, &[])));
}

#[test]
fn pod_affinity_and_spread_are_read_with_their_defaults() {
    let desired = clean(&pod("  affinity:
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: db}}, namespaces: [web]}
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: failure-domain.beta.kubernetes.io/zone
          labelSelector: {matchExpressions: [{key: app, operator: NotIn, values: [x]}]}
          namespaceSelector: {}
          matchLabelKeys: [pod-template-hash]
  topologySpreadConstraints:
  - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule,
     minDomains: 3, labelSelector: {matchLabels: {app: web}}}
  - {maxSkew: 2, topologyKey: rack, whenUnsatisfiable: ScheduleAnyway, nodeTaintsPolicy: Honor}"));
    let spec = pod_spec(&desired);
    let near = &spec.pod_affinity.required[0];
    assert_eq!(near.selector, Some(Selector(vec![expression("app", Operator::In, &["db"])])));
    assert_eq!((near.namespaces.len(), &near.namespace_selector), (1, &None));
    let (weight, far) = &spec.pod_anti_affinity.preferred[0];
    assert_eq!((*weight, far.topology_key.as_str()), (100, "topology.kubernetes.io/zone"));
    assert_eq!(far.namespace_selector, Some(Selector::default()));
    assert_eq!(far.match_label_keys.len(), 1);
    let [hard, soft] = &spec.topology_spread[..] else { panic!("two constraints") };
    assert_eq!(hard.when_unsatisfiable, WhenUnsatisfiable::DoNotSchedule);
    assert_eq!((hard.max_skew, hard.min_domains), (1, Some(3)));
    assert_eq!(hard.node_affinity_policy, NodeInclusion::Honor);
    assert_eq!(hard.node_taints_policy, NodeInclusion::Ignore);
    assert_eq!((soft.node_taints_policy, &soft.selector), (NodeInclusion::Honor, &None));
}

#[test]
fn tolerations_take_their_defaults() {
    let desired = clean(&pod("  tolerations:
  - {operator: Exists}
  - {key: a, value: b, effect: NoSchedule}
  - {key: c, operator: Exists, effect: NoExecute, tolerationSeconds: 30}"));
    let tolerations = &pod_spec(&desired).tolerations;
    assert_eq!(tolerations[0].operator, TolerationOperator::Exists);
    assert_eq!(tolerations[1].operator, TolerationOperator::Equal);
    assert_eq!(tolerations[1].effect, Some(TaintEffect::NoSchedule));
    assert_eq!(tolerations[2].seconds, Some(30));
}

#[test]
fn volumes_are_classified_by_their_binding() {
    let desired = clean(&format!(
        "{}\n---\n{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: data}}, spec: {{}}}}",
        pod("  volumes:
  - {name: a, persistentVolumeClaim: {claimName: data}}
  - {name: b, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: gp3}}}}
  - {name: c, hostPath: {path: /}}
  - {name: d, emptyDir: {}}
  - {name: e, configMap: {name: x}}
  - {name: f, awsElasticBlockStore: {volumeID: vol-1}}
  - {name: g, csi: {driver: secrets-store.csi.k8s.io}}
  - {name: h, csi: {driver: ebs.csi.aws.com, volumeHandle: vol-2}}
  - {name: i, madeUpDisk: {id: x}}
  - {name: j, nfs: {server: x, path: /}, azureDisk: }
  - {name: k}
  - {name: l, fc: {lun: 1}}
  - {name: m, iscsi: {iqn: iqn.2001-04.com.example:a, lun: 0}}
  - {name: ceph, rbd: {image: data, monitors: [a]}}
  - {name: read, rbd: {image: data, readOnly: true}}")
    ));
    let sources: Vec<_> = pod_spec(&desired).volumes.iter().map(|v| v.source.clone()).collect();
    assert_eq!(
        sources,
        [
            VolumeSource::Claim("data".to_owned()),
            VolumeSource::EphemeralClaim(Some("gp3".to_owned())),
            VolumeSource::HostPath,
            VolumeSource::EmptyDir,
            VolumeSource::Other,
            VolumeSource::Ebs("vol-1".to_owned()),
            VolumeSource::Other,
            VolumeSource::InTree("csi".to_owned()),
            VolumeSource::InTree("madeUpDisk".to_owned()),
            VolumeSource::Other,
            VolumeSource::Other,
            VolumeSource::Other,
            VolumeSource::NetworkDisk("iqn.2001-04.com.example:a".to_owned()),
            VolumeSource::NetworkDisk("rbd rbd/data".to_owned()),
            VolumeSource::Other,
        ]
    );
}

#[test]
fn a_partly_unreadable_pod_is_unresolved() {
    for (rest, field) in [
        (
            "  volumes: [{name: a, persistentVolumeClaim: {claimName: '${CLAIM}'}}]",
            "spec.volumes[0].persistentVolumeClaim.claimName",
        ),
        (
            "  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
             [{topologyKey: '${KEY}'}]}}",
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].\
             topologyKey",
        ),
        ("  topologySpreadConstraints: 3", "spec.topologySpreadConstraints"),
        ("  nodeSelector: {a: 3}", "spec.nodeSelector.a"),
        ("  tolerationz: []", "spec.tolerationz"),
    ] {
        let desired = read_text(&pod(rest));
        assert!(!desired.problems.is_empty(), "{rest}");
        assert!(desired.workloads.is_empty(), "{rest}");
        let expected = format!("a.yaml:1: Pod default/p: its `{field}` could not be read");
        assert_eq!(unresolved(&desired), [expected], "{rest}");
    }
    let unknown = read_text(&pod("  flavour: []"));
    assert_eq!((unknown.workloads.len(), unknown.problems.len()), (1, 1), "a warning only");
}

#[test]
fn host_ports_are_declared_or_implied_by_host_network() {
    let ports = |network: &str| {
        let desired = clean(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{{network}containers: [{{name: c, \
             ports: [{{containerPort: 80}}, {{containerPort: 53, hostPort: 53, protocol: UDP, \
             hostIP: 10.0.0.1, name: dns}}]}}]}}"
        ));
        pod_spec(&desired).containers[0].host_ports.clone()
    };
    let of = |port, protocol: &str, ip: &str| HostPort {
        port,
        protocol: protocol.to_owned(),
        ip: ip.to_owned(),
    };
    assert_eq!(ports(""), [of(53, "UDP", "10.0.0.1")]);
    assert_eq!(ports("hostNetwork: true, "), [of(80, "TCP", ""), of(53, "UDP", "10.0.0.1")]);
    assert_eq!(ports("hostNetwork: yes, ").len(), 2, "YAML 1.1 words are booleans");
}

#[test]
fn pod_problems_have_their_path() {
    let affinity = |expression: &str| {
        format!(
            "  affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: \
             {{nodeSelectorTerms: [{{matchExpressions: [{expression}]}}]}}}}}}"
        )
    };
    for (rest, expected) in [
        (affinity("{key: a, operator: in, values: [b]}"), "is `in`, not one of In, NotIn, Exists"),
        (affinity("{key: a, operator: In}"), "operator In needs at least one value"),
        (affinity("{key: a, operator: Exists, values: [b]}"), "operator Exists takes no values"),
        (affinity("{key: a, operator: Gt, values: [x]}"), "Gt takes exactly one integer, not [x]"),
        (affinity("{key: a, operator: Gte, values: ['1']}"), "is `Gte`, not one of"),
        (
            affinity("{key: a, operator: In, values: [1]}"),
            "is `1` (a number), not a string; quote it",
        ),
        (affinity("{key: 'a b', operator: Exists}"), "the label key `a b`, which is not valid"),
        ("  nodeSelector: {a: true}".to_owned(), "`spec.nodeSelector.a` is `true` (a boolean)"),
        ("  nodeSelector: {a: 'x y'}".to_owned(), "is `x y`, not a label value"),
        (
            "  nodeSelector: {beta.kubernetes.io/os: linux, kubernetes.io/os: windows}".to_owned(),
            "says `windows`, but another name of the same label says `linux`",
        ),
        ("  tolerations: [{key: a, effect: NoScheduled}]".to_owned(), "write NoSchedule"),
        ("  tolerations: [{value: a}]".to_owned(), "has no key, which only operator Exists"),
        ("  tolerations: [{key: a, operator: Exists, value: b}]".to_owned(), "has a value, which"),
        ("  tolerations: [{key: a, operator: Gt, value: b}]".to_owned(), "not an integer"),
        ("  tolerations: [{key: a, tolerationSeconds: 3}]".to_owned(), "only effect NoExecute"),
        (
            "  topologySpreadConstraints: [{maxSkew: 0, topologyKey: a, \
             whenUnsatisfiable: DoNotSchedule}]"
                .to_owned(),
            "`spec.topologySpreadConstraints[0].maxSkew` is 0, below 1",
        ),
        (
            "  topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, minDomains: 2, \
             whenUnsatisfiable: ScheduleAnyway}]"
                .to_owned(),
            "has `minDomains`, which only DoNotSchedule takes",
        ),
        (
            "  hostNetwork: 'true'".to_owned(),
            "is the string `true`, not a boolean; write true without",
        ),
        ("  nodeselector: {a: b}".to_owned(), "did you mean `nodeSelector`?"),
        ("  priorityClassName: gold".to_owned(), "the PriorityClass `gold`, which is not in"),
        ("  runtimeClassName: gvisor".to_owned(), "the RuntimeClass `gvisor`, which is not in"),
    ] {
        let found = problem(&pod(&rest));
        assert!(found.contains(expected), "{rest}\n{found}");
    }
    clean(&pod("  priorityClassName: system-node-critical"));
    let empty = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: []}";
    assert!(problem(empty).ends_with("`spec.containers` lists no container"));
}

#[test]
fn rules_between_pods_that_the_api_server_refuses_are_errors() {
    let spread = |rule: &str| {
        format!("{{topologyKey: zone, whenUnsatisfiable: DoNotSchedule, maxSkew: 1{rule}}}")
    };
    let spreads =
        |rules: &[String]| pod(&format!("  topologySpreadConstraints: [{}]", rules.join(", ")));
    let term = |keys: &str| {
        pod(&format!(
            "  affinity: {{podAntiAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: \
             [{{topologyKey: zone{keys}}}]}}}}"
        ))
    };
    let soft = spread("").replace("DoNotSchedule", "ScheduleAnyway");
    let selected = ", labelSelector: {matchLabels: {a: b}}, matchLabelKeys: [c]";
    for accepted in [spreads(&[spread(""), soft]), spreads(&[spread(selected)]), term(selected)] {
        assert_eq!(clean(&accepted).workloads.len(), 1);
    }
    for (text, part) in [
        (
            spreads(&[spread(""), spread(", labelSelector: {matchLabels: {a: b}}")]),
            "keep one of the two",
        ),
        (
            spreads(&[spread(", matchLabelKeys: [c]")]),
            "has `matchLabelKeys` without a `labelSelector`",
        ),
        (term(", matchLabelKeys: [c]"), "has `matchLabelKeys` without a `labelSelector`"),
        (term(", mismatchLabelKeys: [c]"), "has `mismatchLabelKeys` without a `labelSelector`"),
    ] {
        let found = problem(&text);
        assert!(found.starts_with("error ") && found.contains(part), "{found}");
    }
}
