mod kubelet;
mod node_classes;
mod older_node_classes;
mod template_annotations;
mod unsupported;

use jiff::SignedDuration;

use super::*;
use crate::model::desired::{
    AmiFamily, Consolidation, Expiry, Generation, Identity, ImageTerm, NodeClass, Pool, PoolLimits,
    PoolRequirement, PriceChange, ReservedAmount, describe_selectors,
};
use crate::model::pod::TaintEffect;
use crate::model::requirement::Operator;
use crate::model::units::MicroUsd;

const CLASS: &str = "---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec: {role: r, amiSelectorTerms: [{alias: al2023@latest}], subnetSelectorTerms: [{id: subnet-1}],
  securityGroupSelectorTerms: [{id: sg-1}]}
";

/// Returns a v1 pool with `template` in its node template and `spec` in its specification.
fn v1(template: &str, spec: &str) -> String {
    let requirements =
        if template.contains("requirements:") { "" } else { "      requirements: []\n" };
    format!(
        "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {{name: web}}\nspec:\n  template:\n    \
         spec:\n      nodeClassRef: {{group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}}\n\
         {requirements}{template}{spec}{CLASS}"
    )
}

fn beta(spec: &str) -> String {
    format!(
        "apiVersion: karpenter.sh/v1beta1\nkind: NodePool\nmetadata: {{name: web}}\nspec:\n  \
         template: {{spec: {{nodeClassRef: {{name: default}}, requirements: []}}}}\n{spec}{CLASS}"
    )
}

fn provisioner(spec: &str) -> String {
    format!(
        "apiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nmetadata: {{name: web}}\nspec:\n  \
         providerRef: {{name: default}}\n{spec}---\napiVersion: karpenter.k8s.aws/v1alpha1\n\
         kind: AWSNodeTemplate\nmetadata: {{name: default}}\nspec: {{instanceProfile: p, subnetSelector: {{a: b}}}}\n"
    )
}

fn pool(text: &str) -> Pool {
    clean(text).pools.remove("web").expect("the pool")
}

fn class(text: &str) -> NodeClass {
    clean(text).node_classes.into_values().next().expect("a class")
}

fn requirement_lines(pool: &Pool) -> Vec<String> {
    let of = |r: &PoolRequirement| {
        let values: Vec<&str> =
            r.values.iter().map(crate::model::ids::LabelValue::as_str).collect();
        format!("{} {:?} {}", r.key, r.operator, values.join(","))
    };
    pool.requirements.iter().map(of).collect()
}

#[test]
fn windows_build_follows_the_family() {
    let of = |spec: &str| class(&node_class(spec)).windows_build;
    for (spec, build) in [
        ("  amiSelectorTerms: [{alias: windows2019@latest}]\n", Some("10.0.17763")),
        ("  amiSelectorTerms: [{alias: windows2025@latest}]\n", Some("10.0.26100")),
        // The name of a tag is no family.
        (
            "  amiFamily: Windows2022\n  amiSelectorTerms: [{tags: {os: windows2019}}]\n",
            Some("10.0.20348"),
        ),
        ("  amiFamily: AL2\n  amiSelectorTerms: [{tags: {os: windows2019}}]\n", None),
        ("  amiFamily: Custom\n  amiSelectorTerms: [{alias: windows2022@latest}]\n", None),
    ] {
        assert_eq!(of(spec), build, "{spec}");
    }
}

fn hours(hours: i64) -> SignedDuration {
    SignedDuration::from_hours(hours)
}

#[test]
fn a_v1_pool_takes_the_defaults_of_its_generation() {
    let pool = pool(&v1("", ""));
    assert_eq!(pool.generation, Generation::V1);
    assert_eq!(
        pool.node_class.as_ref().map(crate::model::ids::NodeClassName::as_str),
        Some("default")
    );
    assert_eq!(pool.consolidation, Consolidation::WhenEmptyOrUnderutilized);
    assert_eq!(pool.consolidate_after, Some(SignedDuration::ZERO));
    assert_eq!(pool.expire_after, Expiry::After(hours(720)));
    assert_eq!((pool.weight, pool.replicas), (0, None));
    let budgets: Vec<String> = pool.budgets.iter().map(|b| b.nodes.to_string()).collect();
    assert_eq!(budgets, ["10%"], "as in Karpenter");
    assert!(pool.requirements.is_empty() && pool.limits == PoolLimits::default());
}

#[test]
fn pool_without_budgets_has_the_default_of_its_generation() {
    let budgets = |text: &str| -> Vec<String> {
        pool(text).budgets.into_iter().map(|budget| budget.nodes.to_string()).collect()
    };
    let stated = "  disruption: {consolidateAfter: 0s, budgets: [{nodes: '2'}]}\n";
    assert_eq!(budgets(&v1("", "")), ["10%"]);
    assert_eq!(budgets(&v1("", "  disruption: {consolidateAfter: 0s}\n")), ["10%"]);
    assert_eq!(budgets(&v1("", stated)), ["2"]);
    assert_eq!(budgets(&v1("", &stated.replace("nodes: '2'", "reasons: [Empty]"))), ["10%"]);
    assert_eq!(budgets(&v1("", &stated.replace("[{nodes: '2'}]", "[]"))), [""; 0], "no limit");
    assert_eq!(budgets(&beta("")), ["10%"]);
    assert_eq!(budgets(&provisioner("")), [""; 0], "Provisioners have no budgets");
}

#[test]
fn every_setting_of_a_v1_pool_is_read() {
    let pool = pool(&v1(
        "      expireAfter: Never
      taints: [{key: a, value: b, effect: NoSchedule}]
      startupTaints: [{key: c, effect: NoExecute}]
      requirements:
      - {key: beta.kubernetes.io/arch, operator: In, values: [amd64], minValues: 1}
      - {key: karpenter.k8s.aws/instance-cpu, operator: Gte, values: ['4']}
    metadata: {labels: {team: a}}
",
        "  weight: 10
  limits: {cpu: 1000, memory: 1000Gi, nodes: 5}
  disruption:
    consolidationPolicy: WhenEmpty
    consolidateAfter: Never
    budgets:
    - {nodes: '5', reasons: [Empty], schedule: '0 9 * * *', duration: 8h}
",
    ));
    assert_eq!(pool.expire_after, Expiry::Never);
    assert_eq!((pool.taints[0].effect, pool.startup_taints[0].effect), {
        (TaintEffect::NoSchedule, TaintEffect::NoExecute)
    });
    assert_eq!(
        requirement_lines(&pool),
        ["kubernetes.io/arch In amd64", "karpenter.k8s.aws/instance-cpu Gte 4",]
    );
    assert_eq!(pool.requirements[0].min_values, Some(1));
    assert_eq!(pool.requirements[1].operator, Operator::Gte);
    assert_eq!(pool.labels["team"].as_str(), "a");
    assert_eq!(pool.weight, 10);
    assert_eq!(pool.limits.resources["cpu"], 1_000_000);
    assert_eq!(pool.limits.nodes, Some(5));
    assert_eq!((pool.consolidation, pool.consolidate_after), (Consolidation::WhenEmpty, None));
    assert_eq!(pool.budgets[0].reasons, ["Empty"]);
    assert_eq!(pool.budgets[0].duration, Some(hours(8)));
}

#[test]
fn a_v1beta1_pool_maps_to_the_same_model() {
    let pool =
        pool(&beta("  disruption: {consolidationPolicy: WhenUnderutilized, expireAfter: 48h}\n"));
    assert_eq!(pool.generation, Generation::V1beta1);
    assert_eq!(pool.consolidation, Consolidation::WhenEmptyOrUnderutilized);
    assert_eq!(pool.expire_after, Expiry::After(hours(48)));
    let kubelet = clean(&beta("").replace(
        "spec: {nodeClassRef",
        "spec: {kubelet: {maxPods: 20, evictionHard: {memory.available: 5%}}, nodeClassRef",
    ));
    let kubelet = kubelet.pools["web"].kubelet.clone().expect("kubelet");
    assert_eq!(kubelet.max_pods, Some(20));
    assert_eq!(kubelet.eviction_hard["memory.available"], ReservedAmount::MilliPercent(5_000));
}

#[test]
fn a_provisioner_has_its_webhooks_defaults() {
    let defaults = [
        "karpenter.sh/capacity-type In on-demand",
        "kubernetes.io/os In linux",
        "kubernetes.io/arch In amd64",
    ];
    let c_m_r = [
        "karpenter.k8s.aws/instance-category In c,m,r",
        "karpenter.k8s.aws/instance-generation Gt 2",
    ];
    let bare = pool(&provisioner(""));
    assert_eq!(requirement_lines(&bare), [&defaults[..], &c_m_r].concat());
    assert_eq!((bare.expire_after, bare.weight), (Expiry::Never, 0));
    let of_types = pool(&provisioner(
        "  requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [c5.large]}]\n",
    ));
    let stated = ["node.kubernetes.io/instance-type In c5.large"];
    assert_eq!(requirement_lines(&of_types), [&stated[..], &defaults].concat());
    let labelled = pool(&provisioner("  labels: {karpenter.sh/capacity-type: spot}\n"));
    assert!(!requirement_lines(&labelled).iter().any(|r| r.contains("capacity-type")));
}

#[test]
fn provisioner_ttls_become_disruption_settings() {
    let after = |seconds| Some(SignedDuration::from_secs(seconds));
    for (spec, expected) in [
        ("", (Consolidation::WhenEmpty, None)),
        ("  ttlSecondsAfterEmpty: 30\n", (Consolidation::WhenEmpty, after(30))),
        ("  consolidation: {enabled: true}\n", (Consolidation::WhenEmptyOrUnderutilized, after(0))),
        (
            "  consolidation: {enabled: false}\n  ttlSecondsAfterEmpty: 5\n",
            (Consolidation::WhenEmpty, after(5)),
        ),
    ] {
        let pool = pool(&provisioner(spec));
        assert_eq!((pool.consolidation, pool.consolidate_after), expected, "{spec}");
    }
    let both = provisioner("  ttlSecondsAfterEmpty: 30\n  consolidation: {enabled: true}\n");
    assert!(
        problem(&both).contains("`spec.ttlSecondsAfterEmpty` excludes `consolidation.enabled`")
    );
    let rest = pool(&provisioner(
        "  ttlSecondsUntilExpired: 3600\n  limits: {resources: {cpu: 10}}\n  weight: 3\n  \
         kubeletConfiguration: {podsPerCore: 4}\n",
    ));
    assert_eq!(rest.expire_after, Expiry::After(hours(1)));
    assert_eq!((rest.limits.resources["cpu"], rest.weight), (10_000, 3));
    assert_eq!(rest.kubelet.and_then(|k| k.pods_per_core), Some(4));
}

#[test]
fn karpenter_rejections_are_errors_with_their_line() {
    let requirement = |text: &str| v1(&format!("      requirements: [{text}]\n"), "");
    for (text, expected) in [
        (
            requirement("{key: a, operator: Equals, values: [b]}"),
            "error a.yaml:8: NodePool web: `spec.template.spec.requirements[0].operator` is `Equals`",
        ),
        (
            requirement("{key: karpenter.sh/x, operator: Exists}"),
            "the label `karpenter.sh/x`, which",
        ),
        (
            requirement("{key: karpenter.k8s.aws/instance-categorie, operator: In, values: [m]}"),
            "which pools may not set; did you mean `karpenter.k8s.aws/instance-category`?",
        ),
        (requirement("{key: karpenter.sh/nodepool, operator: Exists}"), "which pools may not set"),
        (requirement("{key: kubernetes.io/hostname, operator: Exists}"), "which pools may not set"),
        (
            requirement("{key: a, operator: Gt, values: ['1', '2']}"),
            "exactly one integer, not [1, 2]",
        ),
        (requirement("{key: a, operator: Lt, values: ['-1']}"), "not a label value"),
        (
            requirement("{key: a, operator: In, values: [b], minValues: 2}"),
            "asks for 2 distinct values",
        ),
        (requirement("{key: a, operator: Exists, minValues: 51}"), "is 51, above 50"),
        (v1("    metadata: {labels: {karpenter.sh/x: z}}\n", ""), "which pools may not set"),
        (
            v1("", "  disruption: {consolidateAfter: 0s, budget: []}\n"),
            "error a.yaml:9: NodePool web: unknown field `budget` in `spec.disruption`; did you mean \
             `budgets`?",
        ),
        (
            v1("", "  limit: {cpu: 8}\n"),
            "error a.yaml:9: NodePool web: unknown field `limit` in `spec`",
        ),
        (
            v1("", "  flavor: x\n"),
            "warning a.yaml:9: NodePool web: unknown field `flavor` in `spec`",
        ),
        (
            v1("", "").replace("kind: EC2NodeClass, name", "kind: NodeClass, name"),
            "is `NodeClass`, a node class that is not supported",
        ),
        (
            v1("", "").replace("group: karpenter.k8s.aws", "group: example.com"),
            "is `example.com`, whose node classes are not supported",
        ),
        (
            v1("", "").replace("EC2NodeClass, name: default", "EC2NodeClass, name: defualt"),
            "error a.yaml:1: NodePool web: refers to the EC2NodeClass `defualt`, which is not in the \
             repository; did you mean `default`?",
        ),
        (provisioner("  provider: {instanceProfile: x}\n"), "states the provider inline"),
    ] {
        let found = problem(&text);
        assert!(found.contains(expected), "{text}\n{found}");
    }
}

#[test]
fn values_that_karpenter_rejects_are_errors() {
    for (text, expected) in [
        (v1("", "  weight: 101\n"), "`spec.weight` is 101, above 100"),
        (v1("", "  weight: 0\n"), "`spec.weight` is 0, below 1"),
        (v1("", "  replicas: 3\n  weight: 5\n"), "conflicts with `replicas`"),
        (v1("", "  replicas: 3\n  limits: {nodes: 2}\n"), "is 3, above `limits.nodes` 2"),
        (
            v1("", "  replicas: 3\n  limits: {cpu: 5}\n"),
            "limits resources of a pool with `replicas`",
        ),
        (v1("      expireAfter: 30d\n", ""), "is `30d`, not a duration; write it as 30s"),
        (
            v1(
                "      taints: [{key: a, effect: NoSchedule}]\n      startupTaints: [{key: a, effect: NoSchedule}]\n",
                "",
            ),
            "has two taints with key `a` and effect NoSchedule",
        ),
        (
            v1("", "  disruption: {consolidateAfter: 0s, budgets: [{nodes: 101%}]}\n"),
            "is `101%`, neither a number",
        ),
        (
            v1(
                "",
                "  disruption: {consolidateAfter: 0s, budgets: [{nodes: '1', schedule: '@daily'}]}\n",
            ),
            "both or neither",
        ),
        (
            v1(
                "",
                "  disruption: {consolidateAfter: 0s, budgets: [{nodes: '1', reasons: [Emtpy]}]}\n",
            ),
            "write Empty",
        ),
        (
            v1("", "  disruption: {consolidateAfter: 0s, consolidationPolicy: Never}\n"),
            "is `Never`, not one of WhenEmpty",
        ),
        (
            v1(
                "",
                "  disruption: {consolidateAfter: 0s, consolidationPolicy: WhenUnderutilized}\n",
            ),
            "warning a.yaml:9",
        ),
        (v1("", "  limits: {cpu: lots}\n"), "`spec.limits.cpu` is `lots`, not a quantity"),
    ] {
        let found = problem(&text);
        assert!(found.contains(expected), "{text}\n{found}");
    }
}

#[test]
fn a_termination_grace_period_is_read() {
    let text = |grace: &str| v1(&format!("      terminationGracePeriod: {grace}\n"), "");
    let read = read_text(&text("1h30m"));
    assert_eq!(read.pools["web"].termination_grace_period, Some(SignedDuration::from_mins(90)));
    assert_eq!(lines(&read), Vec::<String>::new());
    assert_eq!(read_text(&v1("", "")).pools["web"].termination_grace_period, None);
    assert!(problem(&text("soon")).contains("is `soon`, not a duration"));
    // Karpenter has no `Never` here.
    assert!(problem(&text("Never")).contains("is `Never`, not a duration"));
}

#[test]
fn an_eks_auto_mode_pool_is_ignored_with_a_warning() {
    let of_eks = "{group: eks.amazonaws.com, kind: NodeClass, name: default}";
    let text =
        v1("      requirements: [{key: eks.amazonaws.com/instance-cpu, operator: Near}]\n", "")
            .replace("{group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}", of_eks);
    let read = read_text(&text);
    assert!(read.pools.is_empty() && read.auto_mode_pools.is_empty());
    let known = read_text(&text.replace("operator: Near", "operator: Exists"));
    assert_eq!(known.auto_mode_pools["web"].requirements.len(), 1);
    assert_eq!(lines(&known), lines(&read));
    assert_eq!(
        lines(&read),
        [
            "warning a.yaml:5: NodePool web: `spec` belongs to EKS Auto Mode, which manages the nodes of this pool: the pool is ignored"
        ]
    );
}

#[test]
fn impossible_values_are_errors_only_without_possible_ones() {
    let requirement = |values: &str| {
        let text = format!(
            "      requirements: [{{key: karpenter.sh/capacity-type, operator: In, values: [{values}]}}]\n"
        );
        read_text(&v1(&text, ""))
    };
    let none = requirement("sopt, dedicated");
    assert!(line(&none.problems[0]).starts_with("error a.yaml:8"), "{:?}", none.problems);
    assert!(
        line(&none.problems[0]).contains("lists `sopt`, which no node has; values are on-demand")
    );
    assert!(none.pools["web"].unreadable.is_some());
    let some = requirement("spot, sopt");
    assert!(line(&some.problems[0]).starts_with("warning a.yaml:8"), "{:?}", some.problems);
    assert_eq!(some.pools["web"].unreadable, None);
}

#[test]
fn a_pool_or_class_with_an_error_is_marked_unreadable() {
    let bad = v1("      requirements: [{key: a, operator: Gt, values: ['1', '2']}]\n", "");
    let pool = read_text(&bad).pools.remove("web").expect("kept, so that its nodes are known");
    assert_eq!(pool.unreadable.as_deref(), Some("spec.template.spec.requirements[0]"));
    let bad = v1("      taints: [{key: a, effect: Never}]\n", "");
    assert!(read_text(&bad).pools["web"].unreadable.is_some());
    let bad = node_class(&format!("{ALIAS}  kubelet: {{maxPods: many}}\n"));
    assert!(read_text(&bad).node_classes["c"].unreadable.is_some());
}

#[test]
fn an_overlay_is_read_whole_or_not_at_all() {
    let overlay = |spec: &str| {
        format!(
            "apiVersion: karpenter.sh/v1alpha1\nkind: NodeOverlay\nmetadata: {{name: deal}}\nspec:\n  \
             requirements:\n  - {{key: karpenter.sh/nodepool, operator: In, values: [web]}}\n{spec}"
        )
    };
    let read = clean(&overlay("  weight: 7\n  price: '0.05'\n  capacity: {example.com/fuse: 2}\n"));
    let deal = &read.overlays["deal"];
    assert_eq!((deal.weight, deal.price), (7, Some(PriceChange::To(MicroUsd(50_000)))));
    assert_eq!(deal.capacity["example.com/fuse"], 2);
    assert_eq!(deal.requirements[0].key.as_str(), "karpenter.sh/nodepool");
    for (spec, expected) in [
        (
            "  price: cheap\n",
            "error a.yaml:7: NodeOverlay deal: `spec.price` is `cheap`, not a price",
        ),
        ("  price: '1'\n  priceAdjustment: -1%\n", "conflicts with `price`"),
        ("  priceAdjustment: 10%\n", "is `10%`, not an adjustment; write dollars or a share"),
        ("  capacity: {cpu: 2}\n", "sets `cpu`, which follows from the instance type"),
        ("  weight: 10001\n", "is 10001, above 10000"),
    ] {
        let text = overlay(spec);
        let found = problem(&text);
        assert!(found.contains(expected), "{spec}\n{found}");
        assert!(read_text(&text).overlays.is_empty(), "{spec}");
    }
    let twice = format!("{}---\n{}", overlay("  price: '1'\n"), overlay("  price: '2'\n"));
    assert!(problem(&twice).contains("is defined differently at a.yaml:1"));
}

#[test]
fn terms_select_reservations_by_id_tags_owner_or_criteria() {
    let terms = |terms: &str| {
        node_class(&format!("{ALIAS}  capacityReservationSelectorTerms: [{terms}]\n"))
    };
    let read = class(&terms(
        "{id: cr-1}, {tags: {team: '*'}, ownerID: '123456789012', instanceMatchCriteria: targeted}",
    ));
    let [by_id, by_tags] = read.reservations.as_slice() else { panic!("{read:?}") };
    assert_eq!(by_id.id.as_deref(), Some("cr-1"));
    assert_eq!((by_tags.tags["team"].as_str(), by_tags.targeted), ("*", Some(true)));
    assert_eq!(by_tags.owner.as_deref(), Some("123456789012"));
    assert_eq!(read.spec_digests, class(&terms("{id: cr-2}")).spec_digests, "no node drifts");
    for (text, expected) in [
        ("{id: cr-1, ownerID: '123456789012'}", "has an `id`, which excludes other conditions"),
        ("{}", "selects every reservation"),
        ("{instanceMatchCriteria: closed}", "is `closed`, not one of open, targeted"),
    ] {
        let found = lines(&read_text(&terms(text))).join("\n");
        assert!(found.contains(expected), "{text}\n{found}");
    }
}

#[test]
fn a_provisioner_and_a_pool_of_one_name_conflict() {
    let text = format!("{}---\n{}", v1("", ""), provisioner(""));
    let desired = read_text(&text);
    let messages: Vec<&str> = desired.problems.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(
        messages,
        ["is defined differently at a.yaml:1", "is defined differently at a.yaml:10"]
    );
    assert_eq!(desired.problems[0].object, "Provisioner web");
    assert_eq!(desired.problems[1].object, "AWSNodeTemplate default");
}

fn node_class(spec: &str) -> String {
    format!(
        "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {{name: c}}\nspec:\n  \
         role: r\n{spec}{SELECTORS}"
    )
}

const SELECTORS: &str =
    "  subnetSelectorTerms: [{id: subnet-1}]\n  securityGroupSelectorTerms: [{id: sg-1}]\n";
const ALIAS: &str = "  amiSelectorTerms: [{alias: bottlerocket@v1.2}]\n";

#[test]
fn a_node_class_keeps_capacity_settings() {
    let text = node_class(&format!(
        "{ALIAS}  kubelet: {{maxPods: 110, kubeReserved: {{cpu: 200m}}, evictionHard: \
         {{memory.available: 100Mi, nodefs.available: 7.5%}}}}\n  instanceStorePolicy: RAID0\n  \
         userData: secret\n  tags: {{team: a}}\n  blockDeviceMappings:\n  - {{deviceName: /dev/xvda, \
         ebs: {{volumeSize: 4Gi}}}}\n  - {{deviceName: /dev/xvdb, ebs: {{volumeSize: 50Gi}}}}\n"
    ));
    let class = class(&text);
    assert_eq!(
        (class.ami_family, class.image.as_str()),
        (AmiFamily::Bottlerocket, "bottlerocket@v1.2")
    );
    assert_eq!(class.kubelet.max_pods, Some(110));
    assert_eq!(class.kubelet.kube_reserved["cpu"], 200);
    assert_eq!(class.kubelet.eviction_hard["memory.available"], ReservedAmount::Bytes(100 << 20));
    assert_eq!(
        class.kubelet.eviction_hard["nodefs.available"],
        ReservedAmount::MilliPercent(7_500)
    );
    assert!(class.instance_store_raid0);
    assert_eq!(class.ephemeral_storage, Some(50 << 30), "the device of the family");
    assert_eq!(class.tags["team"], "a");
    assert_eq!(
        class.user_data_digest.as_deref(),
        Some("2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b")
    );
    assert!(!format!("{class:?}").contains("secret"));
}

#[test]
fn user_data_is_never_quoted() {
    // Braces are ordinary in a shell script, as in `docker inspect -f`.
    let script = "'docker inspect -f {{.Id}} secret ${TOKEN}'";
    for user_data in [script, "[secret]", "{a: secret}"] {
        let text = node_class(&format!("{ALIAS}  userData: {user_data}\n"));
        let desired = read_text(&text);
        let problems = format!("{:?}", desired.problems);
        assert!(!problems.contains("secret") && !problems.contains("TOKEN"), "{problems}");
        let is_script = user_data == script;
        assert_eq!(desired.problems.is_empty(), is_script, "{problems}");
    }
}

#[test]
fn a_class_digest_changes_only_with_its_meaning() {
    let digest = |spec: &str| class(&node_class(spec)).spec_digests;
    let first = digest(&format!("{ALIAS}  tags: {{a: b, c: 'd'}}\n"));
    assert_eq!(first, digest(&format!("  tags: {{c: d, a: \"b\"}}\n{ALIAS}")));
    assert_ne!(first, digest(&format!("{ALIAS}  tags: {{a: b, c: e}}\n")));
    let data = digest(&format!("{ALIAS}  userData: x\n"));
    assert_ne!(data, digest(&format!("{ALIAS}  userData: z\n")));
    let metadata = |options: &str| digest(&format!("{ALIAS}  metadataOptions: {options}\n"));
    let exported = "{httpEndpoint: enabled, httpProtocolIPv6: disabled, \
                    httpPutResponseHopLimit: 1, httpTokens: required}";
    assert_eq!(digest(ALIAS), metadata(exported), "the API server fills in the defaults");
    assert_eq!(digest(ALIAS), metadata("{httpTokens: required}"));
    assert_ne!(digest(ALIAS), metadata("{httpPutResponseHopLimit: 2}"));
    let devices = |first: &str, second: &str| {
        let device = |name: &str| format!("{{deviceName: {name}, ebs: {{volumeSize: 9Gi}}}}");
        digest(&format!("{ALIAS}  blockDeviceMappings: [{}, {}]\n", device(first), device(second)))
    };
    for (a, b, field) in [
        ("1024Gi", "1Ti", "blockDeviceMappings: [{deviceName: /dev/xvda, ebs: {volumeSize: X}}]"),
        ("1000m", "1", "kubelet: {kubeReserved: {cpu: X}}"),
        ("'1'", "1", "kubelet: {systemReserved: {cpu: X}}"),
        ("1024Mi", "1Gi", "kubelet: {evictionHard: {memory.available: X}}"),
    ] {
        let of = |amount: &str| digest(&format!("{ALIAS}  {}\n", field.replace('X', amount)));
        assert_eq!(of(a), of(b), "{field}");
        assert_ne!(of(a), of("3Gi"), "{field}");
    }
    assert_ne!(
        digest(&format!("{ALIAS}  tags: {{volumeSize: 1024Gi}}\n")),
        digest(&format!("{ALIAS}  tags: {{volumeSize: 1Ti}}\n")),
        "a tag is no quantity"
    );
    assert_eq!(devices("/dev/xvda", "/dev/xvdb"), devices("/dev/xvdb", "/dev/xvda"));
    assert_ne!(devices("/dev/xvda", "/dev/xvdb"), devices("/dev/xvda", "/dev/xvdc"));
}

#[test]
fn the_kubelet_volume_is_chosen_as_in_karpenter() {
    let devices = "  blockDeviceMappings:\n  - {deviceName: /dev/xvda, ebs: {volumeSize: 1Gi}}\n  \
                   - {deviceName: /dev/xvdc, ebs: {volumeSize: 2Gi}}\n";
    for (family, extra, expected) in [
        ("AL2023", "", Some(1 << 30)),
        ("Custom", "", Some(2 << 30)),
        ("Bottlerocket", "", None),
        ("AL2", "  - {deviceName: x, rootVolume: true, ebs: {volumeSize: 3Gi}}\n", Some(3 << 30)),
    ] {
        let text = node_class(&format!(
            "  amiFamily: {family}\n  amiSelectorTerms: [{{id: ami-1}}]\n{devices}{extra}"
        ));
        assert_eq!(class(&text).ephemeral_storage, expected, "{family}");
    }
}

#[test]
fn an_annotation_enables_prefix_delegation() {
    let annotated = |value: &str| {
        let annotations = format!("annotations: {{fleetwright.dev/prefix-delegation: {value}}}");
        node_class(ALIAS)
            .replace("metadata: {name: c}", &format!("metadata: {{name: c, {annotations}}}"))
    };
    assert!(annotated("x").contains("prefix-delegation"), "the class has its metadata in one line");
    assert!(!class(&node_class(ALIAS)).prefix_delegation);
    assert!(class(&annotated("'true'")).prefix_delegation);
    assert!(!class(&annotated("'false'")).prefix_delegation);
    assert_eq!(
        problem(&annotated("'yes'")),
        "error a.yaml:1: EC2NodeClass c: annotation `fleetwright.dev/prefix-delegation` is `yes`; \
         write \"true\" or \"false\""
    );
}
