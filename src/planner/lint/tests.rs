//! Tests of each lint with realistic manifests.

use super::*;
use crate::demand::DemandMode;
use crate::manifest::{read, read_fleet};
use crate::model::desired::{Tree, TreeFile};
use crate::model::observed::{ClusterIdentity, Observed};

fn desired(text: &str) -> Desired {
    let file = TreeFile { path: "a.yaml".into(), content: Ok(text.as_bytes().into()) };
    let tree = Tree { files: vec![file] };
    let desired = read(&tree, &read_fleet(&tree).0);
    assert_eq!(
        (desired.problems.len(), desired.unresolved.len()),
        (0, 0),
        "{:?}",
        desired.problems
    );
    desired
}

fn messages(problems: &[Problem]) -> Vec<String> {
    let line =
        |problem: &Problem| format!("{}: {}: {}", problem.origin, problem.object, problem.message);
    problems.iter().map(line).collect()
}

fn plan_lints(text: &str) -> Vec<String> {
    let desired = desired(text);
    let at = "2026-11-01T00:00:00Z".parse().expect("a time");
    let observed = Observed::empty(ClusterIdentity::default(), at);
    let demand = Demand::build(&desired, &observed, DemandMode::Live);
    let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("the region is embedded");
    messages(&lints(&desired, &demand, &catalog))
}

#[test]
fn pods_without_any_pool_are_a_warning() {
    let at = "2026-11-01T00:00:00Z".parse().expect("a time");
    let observed = Observed::empty(ClusterIdentity::default(), at);
    let missing = |text: &str| {
        let desired = desired(text);
        let demand = Demand::build(&desired, &observed, DemandMode::Live);
        missing_pools(&desired, &demand)
    };
    let pods = deployment("{name: a}", "");
    let found = missing(&pods).expect("a warning");
    assert_eq!(found.origin.file.as_ref(), "a.yaml");
    assert!(found.hint.is_some_and(|hint| hint.contains("kubectl get nodepools")));
    let group = "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {name: default, \
                 region: us-east-1}\nmanagedNodeGroups: [{name: web, instanceType: m5.large}]\n";
    assert_eq!(missing(&format!("{pods}---\n{group}")), None);
    assert_eq!(missing("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"), None);
    let file = TreeFile { path: "a/Chart.yaml".into(), content: Ok(b"name: a".as_slice().into()) };
    let tree = Tree { files: vec![file] };
    let unread = read(&tree, &read_fleet(&tree).0);
    let demand = Demand::build(&unread, &observed, DemandMode::Live);
    let found = missing_pools(&unread, &demand).expect("a warning");
    assert!(found.message.starts_with("no file that is read declares"), "{}", found.message);
}

/// Returns a Deployment `web/api` with these containers and additional pod fields.
fn deployment(containers: &str, rest: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: api, namespace: web}}\nspec:\n  \
         selector: {{matchLabels: {{app: api}}}}\n  template:\n    metadata: {{labels: {{app: api}}}}\n    spec: {{containers: \
         [{containers}]{rest}}}\n"
    )
}

fn container(name: &str, resources: &str) -> String {
    format!("{{name: {name}, image: x, resources: {{{resources}}}}}")
}

#[test]
fn container_without_requests_is_reported() {
    let range = "---\napiVersion: v1\nkind: LimitRange\nmetadata: {name: r, namespace: web}\nspec: \
                 {limits: [{type: Container, defaultRequest: {cpu: 100m}}]}\n";
    for (rule, resources, more, expected) in [
        ("all stated", "requests: {cpu: 1, memory: 1Gi}", "", vec![]),
        ("none stated", "", "", vec!["container without requests: app (cpu, memory)"]),
        ("one of two", "requests: {cpu: 1}", "", vec!["container without requests: app (memory)"]),
        ("given by a limit range", "requests: {memory: 1Gi}", range, vec![]),
        (
            "limits alone",
            "limits: {cpu: 1, memory: 1Gi}",
            "",
            vec!["the limit is also the request, as none is set: cpu of app, memory of app"],
        ),
    ] {
        let text = format!("{}{more}", deployment(&container("app", resources), ""));
        let found = messages(&requests(&desired(&text)));
        let expected: Vec<String> =
            expected.iter().map(|m| format!("a.yaml:1: Deployment web/api: {m}")).collect();
        assert_eq!(found, expected, "{rule}");
    }
}

#[test]
fn spread_over_missing_zones_is_reported() {
    let app = container("app", "requests: {cpu: 1, memory: 1Gi}");
    let spread = |more: &str, when: &str| {
        let rest = format!(
            ", topologySpreadConstraints: [{{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, \
             whenUnsatisfiable: {when}, labelSelector: {{matchLabels: {{app: api}}}}{more}}}]"
        );
        deployment(&app, &rest)
    };
    let pool = |zones: &str| {
        format!(
            "---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {{name: p}}\nspec: \
             {{template: \
             {{spec: {{nodeClassRef: {{group: karpenter.k8s.aws, kind: EC2NodeClass, name: c}}, \
             requirements: [{{key: topology.kubernetes.io/zone, operator: In, values: [{zones}]}}]}}}}}}\n---\n\
             apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {{name: c}}\nspec: \
             {{role: r, amiSelectorTerms: [{{alias: al2023@latest}}], subnetSelectorTerms: [{{id: \
             subnet-1}}], securityGroupSelectorTerms: [{{id: sg-1}}]}}\n"
        )
    };
    let (one, two) = (pool("us-east-1a"), pool("us-east-1a, us-east-1b"));
    let hard = "DoNotSchedule";
    for (rule, text, pools, expected) in [
        ("two zones", spread("", hard), &two, None),
        ("one zone", spread("", hard), &one, Some("is to be spread over zones, and pools have 1")),
        ("a preference", spread("", "ScheduleAnyway"), &one, None),
        (
            "more zones than available",
            spread(", minDomains: 3", hard),
            &two,
            Some("is to be spread over 3 zones, and pools have 2: us-east-1a, us-east-1b"),
        ),
    ] {
        let found = plan_lints(&format!("{text}{pools}"));
        let found: Vec<&String> = found.iter().filter(|m| m.contains("spread")).collect();
        assert_eq!(found.len(), usize::from(expected.is_some()), "{rule}: {found:?}");
        let expected = expected.unwrap_or_default();
        assert!(
            found
                .iter()
                .all(|m| m.starts_with("a.yaml:1: Deployment web/api: ") && m.contains(expected)),
            "{rule}: {found:?}"
        );
    }
}

#[test]
fn utilization_without_requests_is_reported() {
    let scaler = |resource: &str, target: &str| {
        format!(
            "---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {{name: \
             api, \
             namespace: web}}\nspec: {{scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: \
             api}}, maxReplicas: 5, metrics: [{{type: Resource, resource: {{name: {resource}, target: \
             {target}}}}}]}}\n"
        )
    };
    let share = "{type: Utilization, averageUtilization: 50}";
    let amount = "{type: AverageValue, averageValue: 100m}";
    let (bare, cpu) = ("", "requests: {cpu: 1}");
    for (rule, first, second, target, expected) in [
        ("all request it", cpu, cpu, scaler("cpu", share), false),
        ("one container does not", cpu, bare, scaler("cpu", share), true),
        ("a limit replaces the request", cpu, "limits: {cpu: 1}", scaler("cpu", share), false),
        ("an amount needs no request", bare, bare, scaler("cpu", amount), false),
        ("another resource", cpu, cpu, scaler("memory", share), true),
    ] {
        let both = format!("{}, {}", container("app", first), container("side", second));
        let found = plan_lints(&format!("{}{target}", deployment(&both, "")));
        let found = found.iter().any(|m| {
            m.starts_with("a.yaml:") && m.contains("HorizontalPodAutoscaler web/api: measures")
        });
        assert_eq!(found, expected, "{rule}");
    }
}

#[test]
fn shared_single_node_volume_is_reported() {
    let claim = |modes: &str| {
        format!(
            "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data, namespace: \
             web}}\nspec: {{accessModes: [{modes}], resources: {{requests: {{storage: 1Gi}}}}}}\n"
        )
    };
    let of_class = |provisioner: &str| {
        format!(
            "---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: c, \
             annotations: {{storageclass.kubernetes.io/is-default-class: 'true'}}}}\nprovisioner: \
             {provisioner}\nvolumeBindingMode: WaitForFirstConsumer\n{}",
            claim("ReadWriteOnce")
        )
    };
    let existing = |source: &str| {
        let claim = claim("ReadWriteOnce").replace("spec: {", "spec: {storageClassName: '', ");
        format!(
            "{claim}---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: v}}\nspec: \
             {{accessModes: [ReadWriteOnce], capacity: {{storage: 1Gi}}, {source}}}\n"
        )
    };
    let asks = container("app", "requests: {cpu: 1, memory: 1Gi}");
    let mount = ", volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]";
    let pods = |n: u32| {
        deployment(&asks, mount).replace("  selector: ", &format!("  replicas: {n}\n  selector: "))
    };
    for (rule, tree, expected) in [
        ("two pods, one node", pods(2) + &claim("ReadWriteOnce"), 1),
        ("one pod", pods(1) + &claim("ReadWriteOnce"), 0),
        ("many nodes", pods(2) + &claim("ReadWriteMany"), 0),
        ("either", pods(2) + &claim("ReadWriteOnce, ReadWriteMany"), 0),
        ("a single pod, which the scheduler enforces", pods(2) + &claim("ReadWriteOncePod"), 0),
        ("a file system of a class", pods(2) + &of_class("efs.csi.aws.com"), 0),
        ("an attached volume of a class", pods(2) + &of_class("pd.csi.storage.gke.io"), 1),
        ("a static file system", pods(2) + &existing("nfs: {server: a, path: /}"), 0),
        ("a static CSI file system", pods(2) + &existing("csi: {driver: efs.csi.aws.com}"), 0),
        ("a static disk", pods(2) + &existing("csi: {driver: ebs.csi.aws.com}"), 1),
        (
            "a static volume that does not exist",
            pods(2) + &claim("ReadWriteOnce").replace("spec: {", "spec: {storageClassName: '', "),
            0,
        ),
    ] {
        let found = plan_lints(&tree);
        let found: Vec<_> = found.iter().filter(|line| line.contains("share the claim")).collect();
        assert_eq!(found.len(), expected, "{rule}: {found:?}");
    }
}

#[test]
fn misconfigured_autoscalers_are_reported() {
    let vertical = |target: &str, policy: &str| {
        format!(
            "---\napiVersion: autoscaling.k8s.io/v1\nkind: VerticalPodAutoscaler\nmetadata: \
             {{name: v, \
             namespace: web}}\nspec: {{targetRef: {{apiVersion: apps/v1, kind: Deployment, name: \
             {target}}}, resourcePolicy: {{containerPolicies: [{{containerName: app{policy}}}]}}}}\n"
        )
    };
    let daemon = "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: agent, namespace: \
                  web}\nspec: \
                  {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: \
                  a, image: x, resources: {requests: {cpu: 1}}}]}}}\n---\napiVersion: \
                  autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: h, namespace: \
                  web}\nspec: {maxReplicas: 4, scaleTargetRef: {apiVersion: apps/v1, kind: DaemonSet, \
                  name: agent}}\n";
    let api = deployment(&container("app", "requests: {cpu: 1, memory: 1Gi}"), "");
    let crossed = ", minAllowed: {cpu: 2}, maxAllowed: {cpu: 1}";
    for (rule, text, expected) in [
        ("as intended", format!("{api}{}", vertical("api", "")), None),
        (
            "no such target",
            format!("{api}{}", vertical("gone", "")),
            Some("web/gone, which is not"),
        ),
        (
            "minimum above maximum",
            format!("{api}{}", vertical("api", crossed)),
            Some("minAllowed is above maxAllowed for cpu"),
        ),
        ("a pod on each node", daemon.to_owned(), Some("which runs one pod per node")),
    ] {
        let found = plan_lints(&text);
        assert_eq!(found.len(), usize::from(expected.is_some()), "{rule}: {found:?}");
        assert!(
            found.iter().all(|message| message.contains(expected.unwrap_or_default())),
            "{found:?}"
        );
    }
}

#[test]
fn timed_toleration_of_pool_taint_is_reported() {
    let pool = "---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: gpu}\nspec: \
                {template: {spec: {nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: \
                c}, requirements: [], taints: [{key: team, value: a, effect: NoExecute}]}}}\n---\n\
                apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {name: c}\nspec: \
                {role: nodes, amiSelectorTerms: [{alias: al2023@latest}], subnetSelectorTerms: [{tags: {a: \
                b}}], securityGroupSelectorTerms: [{tags: {a: b}}]}\n";
    let resources = "requests: {cpu: 1, memory: 1Gi}";
    let unlimited = "{key: team, operator: Exists}";
    let limited = "{key: team, operator: Exists, effect: NoExecute, tolerationSeconds: 300}";
    for (rule, tolerations, expected) in [
        ("none", String::new(), 0),
        ("without a limit", unlimited.to_owned(), 0),
        ("for a limited time", limited.to_owned(), 1),
        ("the first one decides", format!("{unlimited}, {limited}"), 0),
    ] {
        let rest = format!(", tolerations: [{tolerations}]");
        let text = deployment(&container("app", resources), &rest) + pool;
        let found = plan_lints(&text);
        let found: Vec<&String> = found.iter().filter(|m| m.contains("for 300 s only")).collect();
        assert_eq!(found.len(), expected, "{rule}: {found:?}");
        assert!(found.iter().all(|m| m.contains("team=a:NoExecute of pool gpu")), "{found:?}");
    }
}

#[test]
fn values_that_no_node_has_are_reported() {
    let pool = "---\napiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nmetadata: {name: default}\n\
                spec: {provider: {instanceProfile: x}}\n";
    let app = container("app", "requests: {cpu: 1, memory: 1Gi}");
    let found = |selector: &str| {
        let pods = deployment(&app, &format!(", nodeSelector: {{{selector}}}"));
        let text =
            format!("{pods}{pool}").replace("provider: {instanceProfile: x}", "provider: {}");
        let file = TreeFile { path: "a.yaml".into(), content: Ok(text.as_bytes().into()) };
        let tree = Tree { files: vec![file] };
        let desired = read(&tree, &read_fleet(&tree).0);
        let at = "2026-11-01T00:00:00Z".parse().expect("a time");
        let observed = Observed::empty(ClusterIdentity::default(), at);
        let demand = Demand::build(&desired, &observed, DemandMode::Live);
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("the region is embedded");
        let all = node_selectors::unknown_values(&desired, &demand, &catalog);
        let line =
            |p: Problem| format!("{}: {}; {}", p.origin, p.message, p.hint.unwrap_or_default());
        all.into_iter().map(line).collect::<Vec<_>>().join("\n")
    };
    for (selector, expected) in [
        (
            "karpenter.sh/nodepool: defualt",
            "a.yaml:1: its pods ask for karpenter.sh/nodepool `defualt`, and no file that is read \
             declares such a pool; did you mean `default`?",
        ),
        (
            "karpenter.sh/nodepool: gpu",
            "a.yaml:1: its pods ask for karpenter.sh/nodepool `gpu`, and no file that is read \
             declares such a pool; name a pool of the repository, or declare this one",
        ),
        (
            "topology.kubernetes.io/zone: us-east-1z",
            "a.yaml:1: its pods ask for topology.kubernetes.io/zone `us-east-1z`, and no node has that \
             value; did you mean `us-east-1a` or `us-east-1b` or `us-east-1c`?",
        ),
        ("topology.kubernetes.io/zone: us-east-1-bos-1a", ""),
        ("topology.kubernetes.io/zone: us-east-1b", ""),
        ("karpenter.sh/nodepool: default", ""),
    ] {
        assert_eq!(found(selector), expected, "{selector}");
    }
}

#[test]
fn mixed_architectures_without_selector_are_reported() {
    let pool = |requirements: &str| {
        format!(
            "---\napiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {{name: team1}}\nspec:\n  \
             template:\n    metadata: {{labels: {{team: one}}}}\n    spec:\n      nodeClassRef: \
             {{group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}}\n      requirements: \
             [{requirements}]\n---\napiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: \
             {{name: default}}\nspec: {{amiSelectorTerms: [{{alias: al2023@latest}}], role: r, \
             subnetSelectorTerms: [{{tags: {{a: b}}}}], securityGroupSelectorTerms: [{{tags: {{a: \
             b}}}}]}}\n"
        )
    };
    let arch = |operator: &str, values: &str| {
        format!("{{key: kubernetes.io/arch, operator: {operator}, values: [{values}]}}")
    };
    let family = "{key: karpenter.k8s.aws/instance-family, operator: In, values: [m5]}";
    let gpu = "{key: karpenter.k8s.aws/instance-gpu-name, operator: In, values: [t4, l4]}";
    let both = arch("In", "amd64, arm64");
    let mixed = "{key: karpenter.k8s.aws/instance-family, operator: In, values: [m5, m6g]}";
    let of_family =
        |name: &str| format!(", nodeSelector: {{karpenter.k8s.aws/instance-family: {name}}}");
    let named = [
        "a.yaml:10: NodePool team1: has nodes of amd64 and arm64, and Deployment web/api \
                  may run on either: the cheaper one is used, and the architectures of the images are not checked",
    ];
    for (rule, requirements, pods, expected) in [
        ("the pool names both", both.as_str(), "", &named[..]),
        ("the pool names none", "", "", &named[..]),
        ("the pool names one", &arch("In", "arm64"), "", &[]),
        ("its types are of one", family, "", &[]),
        ("its GPUs are of one", gpu, "", &[]),
        ("the pods choose", &both, ", nodeSelector: {kubernetes.io/arch: amd64}", &[]),
        ("the pods are elsewhere", &both, ", nodeSelector: {team: two}", &[]),
        ("other pool", &both, ", nodeSelector: {karpenter.sh/nodepool: team2}", &[]),
        ("this pool", &both, ", nodeSelector: {karpenter.sh/nodepool: team1}", &named[..]),
        ("other family", &format!("{both}, {mixed}"), &of_family("c7g"), &[]),
        ("its family", &format!("{both}, {mixed}"), &of_family("m5"), &[]),
        ("a label of no pool", &both, ", nodeSelector: {intent: apps}", &[]),
    ] {
        let app = container("app", "requests: {cpu: 1, memory: 1Gi}");
        let mut found = plan_lints(&format!("{}{}", deployment(&app, pods), pool(requirements)));
        found.retain(|line| line.contains("has nodes of"));
        assert_eq!(found, expected, "{rule}");
    }
}
