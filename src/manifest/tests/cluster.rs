use super::*;
use crate::model::desired::{DeviceAmount, DeviceRequest, LimitScope, PriorityClass};
use crate::model::pod::{Selector, TaintEffect};
use crate::model::requirement::{Operator, label};

#[test]
fn classes_and_namespaces_are_kept() {
    let desired = clean(
        "apiVersion: v1
kind: Namespace
metadata: {name: web, labels: {team: a}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: gold}
value: 1000
globalDefault: true
preemptionPolicy: Never
---
apiVersion: node.k8s.io/v1beta1
kind: RuntimeClass
metadata: {name: kata}
handler: kata
overhead: {podFixed: {cpu: 250m, memory: 120Mi}}
scheduling: {nodeSelector: {beta.kubernetes.io/os: linux}, tolerations: [{operator: Exists}]}
---
apiVersion: node.k8s.io/v1alpha1
kind: RuntimeClass
metadata: {name: old}
spec: {runtimeHandler: x, overhead: {podFixed: {cpu: 1}}}
",
    );
    assert_eq!(desired.namespaces["web"]["team"].as_str(), "a");
    let gold = PriorityClass { value: 1000, is_default: true, preempts: false };
    assert_eq!(desired.priority_classes["gold"], gold);
    let kata = &desired.runtime_classes["kata"];
    assert_eq!((kata.overhead["cpu"], kata.overhead["memory"]), (250, 125_829_120));
    assert_eq!(kata.node_selector["kubernetes.io/os"].as_str(), "linux");
    assert_eq!(kata.tolerations.len(), 1);
    assert_eq!(desired.runtime_classes["old"].overhead["cpu"], 1_000);
}

#[test]
fn limit_ranges_have_the_api_servers_defaults() {
    let desired = clean(
        "apiVersion: v1
kind: LimitRange
metadata: {name: b, namespace: web}
spec:
  limits:
  - {type: Pod, max: {cpu: 9}}
  - {type: Container, max: {cpu: 2}, min: {memory: 1Mi}, default: {memory: 4Mi}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: a, namespace: web}
spec: {limits: [{type: Container, defaultRequest: {cpu: 100m}, min: {cpu: 50m}}]}
",
    );
    let [first, of_pods, second] = &desired.limit_ranges["web"][..] else { panic!("three items") };
    assert_eq!((of_pods.scope, of_pods.max["cpu"], &*of_pods.range), (LimitScope::Pod, 9_000, "b"));
    assert!(of_pods.default_limit.is_empty() && of_pods.default_request.is_empty());
    assert_eq!(first.default_request["cpu"], 100, "ranges are ordered by name");
    assert!(first.default_limit.is_empty());
    assert_eq!((second.default_limit["cpu"], second.default_limit["memory"]), (2_000, 4 << 20));
    assert_eq!((second.default_request["cpu"], second.default_request["memory"]), (2_000, 4 << 20));
}

#[test]
fn an_empty_pdb_selector_depends_on_the_version() {
    let budget = |version: &str, spec: &str| {
        let text = format!(
            "apiVersion: policy/{version}\nkind: PodDisruptionBudget\nmetadata: {{name: b}}\n\
             spec: {{{spec}}}"
        );
        clean(&text).disruption_budgets.remove(0)
    };
    assert_eq!(budget("v1", "selector: {}, minAvailable: 1").selector, Some(Selector::default()));
    assert_eq!(budget("v1beta1", "selector: {}, minAvailable: 1").selector, None);
    assert_eq!(budget("v1", "minAvailable: 1").selector, None);
    let share = budget("v1", "selector: {matchLabels: {a: b}}, maxUnavailable: 30%");
    assert_eq!(share.max_unavailable.as_deref(), Some("30%"));
    assert_eq!(share.selector.map(|s| s.0.len()), Some(1));
    let both = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b}\n\
                spec: {minAvailable: 1, maxUnavailable: 1}";
    assert!(problem(both).contains("has both `minAvailable` and `maxUnavailable`"));
}

const STORAGE: &str = "apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: gp3
  annotations: {storageclass.kubernetes.io/is-default-class: 'true'}
provisioner: ebs.csi.aws.com
volumeBindingMode: WaitForFirstConsumer
allowedTopologies:
- matchLabelExpressions: [{key: topology.ebs.csi.aws.com/zone, values: [us-east-1a]}]
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: new}
spec:
  csi: {driver: ebs.csi.aws.com, volumeHandle: vol-1}
  storageClassName: gp3
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}
---
apiVersion: v1
kind: PersistentVolume
metadata:
  name: old
  labels: {failure-domain.beta.kubernetes.io/zone: a__b}
  annotations: {volume.beta.kubernetes.io/storage-class: manual}
spec: {}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  awsElasticBlockStore: {volumeID: aws://us-east-1b/vol-7}
  claimRef: {name: c, namespace: web}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: c, namespace: web}
spec:
  storageClassName: ''
  volumeName: new
  accessModes: [ReadWriteOnce]
  selector:
    matchLabels: {app: files}
    matchExpressions: [{key: tier, operator: NotIn, values: [old]}]
";

#[test]
fn storage_is_kept_with_its_topology() {
    let desired = clean(STORAGE);
    let class = &desired.storage_classes["gp3"];
    assert!(class.wait_for_first_consumer && class.is_default);
    let zone = &class.allowed_topologies[0].expressions[0];
    assert_eq!((zone.key.as_str(), zone.operator), ("topology.kubernetes.io/zone", Operator::In));
    assert_eq!(desired.volumes["new"].driver.as_deref(), Some("ebs.csi.aws.com"));
    assert_eq!(desired.volumes["new"].node_terms.len(), 1);
    assert_eq!(desired.volumes["old"].node_terms[0].expressions[0].values.len(), 2);
    let disk = &desired.volumes["disk"];
    assert_eq!(disk.driver.as_deref(), Some("ebs.csi.aws.com"), "the built-in driver is gone");
    assert_eq!(disk.node_terms[0].expressions[0].values[0].as_str(), "us-east-1b");
    assert_eq!(disk.claim.as_deref(), Some("web/c"));
    let old = &desired.volumes["old"];
    assert_eq!((old.labels.len(), old.class(), disk.class()), (1, "manual", ""));
    let claim = &desired.claims.values().next().expect("one").claim;
    let selector = claim.selector.as_ref().expect("stated");
    for (labels, expected) in [
        (vec![label("app", "files")], true),
        (vec![label("app", "files"), label("tier", "old")], false),
        (vec![label("tier", "new")], false),
    ] {
        assert_eq!(selector.matches(&labels.into_iter().collect()), expected);
    }
    assert_eq!(
        claim.storage_class.as_deref(),
        Some(""),
        "an empty class is no class, not the default"
    );
    assert_eq!(claim.volume_name.as_deref(), Some("new"));
}

#[test]
fn autoscalers_name_their_workload() {
    let desired = clean(
        "apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: h, namespace: web}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: db}, maxReplicas: 3}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: s}
spec: {scaleTargetRef: {name: api}, minReplicaCount: 1, triggers: [{type: cpu, metadata: {value: '60'}}]}
---
apiVersion: autoscaling.k8s.io/v1
kind: VerticalPodAutoscaler
metadata: {name: v}
spec: {targetRef: {kind: Deployment, name: api}}
",
    );
    let scalers = desired.scalers.iter();
    let mut scalers: Vec<String> =
        scalers.map(|a| format!("{} -> {}", a.object, a.targets[0])).collect();
    scalers
        .extend(desired.vertical_scalers.iter().map(|v| format!("{} -> {}", v.object, v.target)));
    assert_eq!(
        scalers,
        [
            "HorizontalPodAutoscaler web/h -> StatefulSet db",
            "ScaledObject default/s -> Deployment api",
            "VerticalPodAutoscaler default/v -> Deployment api",
        ]
    );
}

#[test]
fn fargate_profiles_are_read_as_eksctl_and_ack_write_them() {
    let desired = clean(
        "apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: any, region: us-east-1}
vpc: {id: vpc-1}
fargateProfiles:
- name: web
  podExecutionRoleARN: arn:aws:iam::1:role/x
  selectors: [{namespace: web, labels: {tier: 'f*', on: 'true'}}, {namespace: 'prod-?'}]
---
apiVersion: eks.services.k8s.aws/v1alpha1
kind: FargateProfile
metadata: {name: karpenter}
spec: {name: karpenter, clusterName: any, selectors: [{namespace: karpenter}]}
",
    );
    let names: Vec<&str> = desired.fargate_profiles.keys().map(String::as_str).collect();
    assert_eq!(names, ["karpenter", "web"]);
    let web = &desired.fargate_profiles["web"];
    assert_eq!(web.selectors.len(), 2);
    assert_eq!(web.selectors[0].labels["tier"], "f*");
    assert_eq!(web.origin.as_ref().map(|origin| origin.line), Some(6));
}

#[test]
fn invalid_fargate_profiles_are_reported_with_their_line() {
    for (profile, expected) in [
        (
            "{name: eks-web, selectors: [{namespace: web}]}",
            "names that begin with eks- are reserved by EKS",
        ),
        ("{name: web, selectors: []}", "lists no selector"),
        ("{name: web}", "has no `selectors`"),
        ("{name: web, selectors: [{labels: {a: b}}]}", "has no `namespace`"),
        ("{name: web, selectors: [{namespce: web, namespace: web}]}", "unknown field `namespce`"),
        ("{selectors: [{namespace: web}]}", "has no `name`"),
        (
            "{name: web, selectors: [{namespace: a}, {namespace: b}, {namespace: c}, {namespace: d}, {namespace: e}, {namespace: f}]}",
            "lists 6 selectors; a profile has at most 5",
        ),
    ] {
        let text = format!(
            "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {{name: c}}\n\
             fargateProfiles:\n- {profile}\n"
        );
        let problems = read_text(&text).problems;
        let found = problems.iter().find(|problem| problem.message.contains(expected));
        assert_eq!(found.map(|problem| problem.origin.line), Some(5), "{profile}: {problems:?}");
    }
}

fn config(groups: &str) -> String {
    format!(
        "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {{name: c}}\n{groups}\n"
    )
}

#[test]
fn sizes_of_node_groups_follow_eksctls_defaults() {
    for (kind, sizes, expected) in [
        ("nodeGroups", "", (2, 2, None)),
        ("nodeGroups", ", desiredCapacity: 3", (3, 3, Some(3))),
        ("nodeGroups", ", minSize: 1, maxSize: 5", (1, 5, None)),
        ("nodeGroups", ", minSize: 4", (4, 4, None)),
        ("nodeGroups", ", minSize: 0, maxSize: 0", (0, 0, None)),
        ("managedNodeGroups", ", minSize: 0, maxSize: 0", (0, 1, None)),
        ("managedNodeGroups", ", minSize: 1, desiredCapacity: 2, maxSize: 9", (1, 9, Some(2))),
    ] {
        let desired = clean(&config(&format!("{kind}: [{{name: web{sizes}}}]")));
        let group = &desired.node_groups["web"];
        assert_eq!((group.min, group.max, group.desired), expected, "{kind}{sizes}");
        assert_eq!(desired.pools["web"].limits.nodes, Some(expected.1));
    }
}

#[test]
fn a_node_group_is_a_pool_of_one_shape() {
    let desired = clean(&config(
        "managedNodeGroups:
- name: web
  instanceTypes: [m5.large, m5a.large]
  spot: true
  labels: {role: web}
  taints: [{key: dedicated, value: web, effect: NoSchedule}]
  availabilityZones: [us-east-1a]
  volumeSize: 100
  maxPodsPerNode: 20
nodeGroups:
- name: old
  taints: {dedicated: 'old:NoExecute'}
  kubeletExtraConfig: {kubeReserved: {cpu: 300m}}
  iam: {withAddonPolicies: {autoScaler: true}}",
    ));
    let (web, old) = (&desired.pools["web"], &desired.pools["old"]);
    let label = |name: &str| web.labels.get(name).map(ToString::to_string).unwrap_or_default();
    assert_eq!(label("role"), "web");
    assert_eq!(label("eks.amazonaws.com/nodegroup"), "web");
    assert_eq!(label("eks.amazonaws.com/capacityType"), "SPOT");
    assert_eq!(web.taints[0].effect, TaintEffect::NoSchedule);
    let class = &desired.node_classes["web"];
    assert_eq!((class.ephemeral_storage, class.kubelet.max_pods), (Some(100 << 30), Some(20)));
    assert_eq!(old.taints[0].effect, TaintEffect::NoExecute);
    assert_eq!(
        desired.node_classes["old"].kubelet.kube_reserved.values().copied().max(),
        Some(300)
    );
    let tags: Vec<&str> = desired.node_groups["old"].tags.keys().map(String::as_str).collect();
    assert_eq!(tags, ["k8s.io/cluster-autoscaler/c", "k8s.io/cluster-autoscaler/enabled"]);
    assert_eq!(desired.node_groups["old"].tags["k8s.io/cluster-autoscaler/c"], "owned");
    assert!(!desired.node_groups["web"].manage, "the settings do not hand it over");
}

#[test]
fn families_are_read_in_any_case_and_a_taint_may_be_an_effect() {
    use crate::model::desired::AmiFamily::{Al2023, Bottlerocket, Ubuntu, Windows};
    for (name, image, family) in [
        ("amazonlinux2023", "AmazonLinux2023", Al2023),
        ("BottlerocketFips", "BottlerocketFips", Bottlerocket),
        ("ubuntupro2604", "UbuntuPro2604", Ubuntu),
        ("WindowsServer2025CoreContainer", "WindowsServer2025CoreContainer", Windows),
    ] {
        let group = format!("{{name: web, amiFamily: {name}, taints: {{only: NoSchedule}}}}");
        let desired = clean(&config(&format!("managedNodeGroups: [{group}]")));
        let class = &desired.node_classes["web"];
        assert_eq!((class.image.as_str(), class.ami_family), (image, family));
        let taint = &desired.pools["web"].taints[0];
        assert_eq!((taint.value.as_str(), taint.effect), ("", TaintEffect::NoSchedule));
    }
}

#[test]
fn types_of_a_managed_group_are_stated_once() {
    let group = "{name: web, instanceType: m5.large, instanceTypes: [m5.xlarge]}";
    let problems = read_text(&config(&format!("managedNodeGroups: [{group}]"))).problems;
    assert!(problems[0].message.contains("has both `instanceType` m5.large and `instanceTypes`"));
}

#[test]
fn invalid_node_groups_are_reported_with_their_line() {
    for (group, expected) in [
        ("{name: web, minSize: 3, maxSize: 2}", "has at least 3 and at most 2 nodes"),
        ("{name: web, minSize: 1, maxSize: 2, desiredCapacity: 3}", "which is not from 1 to 2"),
        ("{name: web, taints: {a: b}}", "is `b`, which is neither value:Effect nor an effect"),
        ("{name: web, instanceSelector: {vCPUs: 2}}", "not supported yet"),
        ("{name: web, minsize: 3}", "unknown field `minsize`"),
        (
            "{name: web, instanceType: m5.large, instancesDistribution: {instanceTypes: [m5.large]}}",
            "conflicts with `instancesDistribution`",
        ),
        ("{name: web, launchTemplate: {id: lt-1}}", "may name the instance type"),
        (
            "{name: web, overrideBootstrapCommand: 'spec: {kubelet: {config: {maxPods: 4}}}'}",
            "sets `maxPods` and is not read",
        ),
        (
            "{name: web, tags: {k8s.io/cluster-autoscaler/node-template/taint/a: x}}",
            "says `x` without an effect",
        ),
    ] {
        let problems = read_text(&config(&format!("nodeGroups:\n- {group}"))).problems;
        let found = problems.iter().find(|problem| problem.message.contains(expected));
        assert_eq!(found.map(|problem| problem.origin.line), Some(5), "{group}: {problems:?}");
    }
}

#[test]
fn a_group_and_a_node_class_of_one_name_conflict() {
    let class = "\n---\napiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\n\
                 metadata: { name: web }\nspec:\n  role: r\n  \
                 amiFamily: AL2023\n  amiSelectorTerms: [{ id: ami-1 }]\n  \
                 subnetSelectorTerms: [{ id: subnet-1 }]\n  securityGroupSelectorTerms: [{ id: sg-1 }]\n";
    let text = format!("{}{class}", config("nodeGroups:\n- { name: web, instanceType: m5.large }"));
    let problems = read_text(&text).problems;
    let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].starts_with("has the name of a pool or node class"), "{messages:?}");
}

#[test]
fn second_default_priority_class_is_an_error() {
    let class = |name: &str, is_default: bool| {
        format!(
            "---\n{{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {{name: {name}}}, \
             value: 5, globalDefault: {is_default}}}\n"
        )
    };
    let found = problem(&[class("a", true), class("b", true)].concat());
    assert!(found.contains("is the default PriorityClass beside `a`"), "{found}");
    clean(&[class("a", true), class("b", false), class("a", true)].concat());
}

/// Returns the requests of the template `web/t` in this version.
fn device_requests(version: &str, requests: &str) -> Vec<DeviceRequest> {
    let desired = clean(&format!(
        "apiVersion: resource.k8s.io/{version}
kind: ResourceClaimTemplate
metadata: {{name: t, namespace: web}}
spec: {{metadata: {{labels: {{a: b}}}}, spec: {{devices: {{requests: [{requests}], config: []}}}}}}"
    ));
    desired.claim_templates[&("web".into(), "t".to_owned())].requests.clone()
}

#[test]
fn device_requests_have_the_api_servers_defaults() {
    let request = |amount| DeviceRequest {
        name: "gpu".to_owned(),
        class: "gpu.nvidia.com".to_owned(),
        selectors: Vec::new(),
        amount,
    };
    let (exactly, unplanned) = (DeviceAmount::Exactly, DeviceAmount::Unplanned);
    for version in ["v1", "v1beta2"] {
        for (fields, expected) in [
            ("", exactly(1)),
            (", count: 3", exactly(3)),
            (", allocationMode: ExactCount, count: 2, tolerations: []", exactly(2)),
            (", allocationMode: All", unplanned("allocationMode: All")),
            (", adminAccess: true", unplanned("adminAccess")),
            (", capacity: {requests: {memory: 1Gi}}", unplanned("capacity")),
        ] {
            let text =
                format!("{{name: gpu, exactly: {{deviceClassName: gpu.nvidia.com{fields}}}}}");
            assert_eq!(device_requests(version, &text), [request(expected)], "{version} {text}");
        }
    }
    let flat = "{name: gpu, deviceClassName: gpu.nvidia.com, count: 2}";
    assert_eq!(device_requests("v1beta1", flat), [request(exactly(2))]);
    let listed = "{name: gpu, firstAvailable: [{name: a, deviceClassName: b}]}";
    let [found] = &device_requests("v1", listed)[..] else { panic!("one request") };
    assert_eq!(found.amount, unplanned("firstAvailable"));
}

#[test]
fn selectors_and_constraints_of_devices_are_read() {
    let desired = clean(
        "apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: big}
spec: {selectors: [{cel: {expression: device.driver == 'gpu.nvidia.com'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t, namespace: web}
spec:
  spec:
    devices:
      requests:
        - name: gpu
          exactly: {deviceClassName: big, selectors: [{cel: {expression: 'true'}}, {other: {}}]}
      constraints: [{requests: [gpu], matchAttribute: gpu.nvidia.com/pcieRoot}]",
    );
    assert_eq!(desired.device_classes["big"], ["device.driver == 'gpu.nvidia.com'"]);
    let claim = &desired.claim_templates[&("web".into(), "t".to_owned())];
    assert!(claim.is_constrained);
    assert_eq!(claim.requests[0].selectors, ["true", ""]);
}
