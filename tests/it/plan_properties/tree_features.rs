//! Random features of repositories, by family of rules. A feature adds lines to a case, and to one
//! of its pools, workloads or nodes.
//!
//! If a family is chosen, all features of a repository belong to it. Some families are only tested
//! alone. Combined with others, groups, amounts and Jobs give cases in which the search leaves pods
//! unschedulable although a more expensive fleet would fit them.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::Just;
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, Strategy, Union};

use super::node_groups::groups;
use super::resource_requests::amounts;
use super::volumes::volumes;

/// Maximum number of features of a repository. Each one makes brute force slower and failures
/// harder to read.
const FEATURES_MAX: usize = 2;

/// Additions to a repository. `{w}` and `{ns}` are placeholders for the name and namespace of a
/// workload.
#[derive(Debug, Clone, Default)]
pub(super) struct TreeFeature {
    /// Lines and manifests at the start of the case. The first of several manifests of one object
    /// is kept.
    pub(super) lines: Vec<String>,
    /// Lines of the case after its nodes.
    pub(super) last: Vec<String>,
    pub(super) pool: Option<FeatureLines>,
    pub(super) pods: Option<FeatureLines>,
    pub(super) node: Option<FeatureLines>,
}

/// Additions to one pool, workload or node.
#[derive(Debug, Clone, Default)]
pub(super) struct FeatureLines {
    /// Index of the pool, workload or node, modulo their number.
    pub(super) of: usize,
    /// More words of its line, which override earlier words.
    pub(super) words: String,
    /// More lines below its line.
    pub(super) body: Vec<String>,
    /// Additional manifests.
    pub(super) manifests: Vec<String>,
}

impl TreeFeature {
    pub(super) fn pool(of: usize, words: &str, body: &[&str]) -> Self {
        Self { pool: Some(FeatureLines::new(of, words, body)), ..Self::default() }
    }

    pub(super) fn pods(of: usize, words: &str, body: &[&str]) -> Self {
        Self { pods: Some(FeatureLines::new(of, words, body)), ..Self::default() }
    }

    pub(super) fn node(of: usize, words: &str) -> Self {
        Self { node: Some(FeatureLines::new(of, words, &[])), ..Self::default() }
    }

    pub(super) fn from_lines(lines: &[&str]) -> Self {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        Self { lines, ..Self::default() }
    }

    /// Adds a manifest for the workload of the feature.
    pub(super) fn with_manifest(mut self, text: String) -> Self {
        self.pods.as_mut().expect("the feature is for a workload").manifests.push(text);
        self
    }

    pub(super) fn and(self, other: Self) -> Self {
        let Self { mut lines, mut last, pool, pods, node } = self;
        lines.extend(other.lines);
        last.extend(other.last);
        let (pool, pods) = (pool.or(other.pool), pods.or(other.pods));
        Self { lines, last, pool, pods, node: node.or(other.node) }
    }
}

impl FeatureLines {
    fn new(of: usize, words: &str, body: &[&str]) -> Self {
        let body = body.iter().map(|line| (*line).to_owned()).collect();
        Self { of, words: words.to_owned(), body, manifests: Vec::new() }
    }
}

/// Name of a family, and the strategy for its features.
pub(super) type FeatureFamily = (&'static str, fn() -> BoxedStrategy<TreeFeature>);

/// Families that are only tested alone.
pub(super) const SEPARATE_FAMILIES: [FeatureFamily; 3] =
    [("amounts", amounts), ("groups", groups), ("jobs", jobs)];

const COMBINED_FAMILIES: [FeatureFamily; 16] = [
    ("volumes", volumes),
    ("labels", labels),
    ("keys", keys),
    ("fields", fields),
    ("bounds", bounds),
    ("shortages", shortages),
    ("containers", containers),
    ("variety", variety),
    ("fixed", fixed),
    ("overlays", overlays),
    ("reservations", reservations),
    ("sold-out", sold_out),
    ("guards", guards),
    ("daemons", daemons),
    ("priorities", priorities),
    ("nodes", nodes),
];

/// Returns a strategy for the features of a repository, from the `chosen` family or from all
/// combined families.
pub(super) fn features(chosen: Option<&str>) -> BoxedStrategy<Vec<TreeFeature>> {
    let alone = SEPARATE_FAMILIES.into_iter().filter(|_| chosen.is_some());
    let families = COMBINED_FAMILIES.into_iter().chain(alone);
    let families = families.filter(|(name, _)| chosen.is_none_or(|chosen| chosen == *name));
    let all: Vec<BoxedStrategy<TreeFeature>> = families.map(|(_, family)| family()).collect();
    assert!(!all.is_empty(), "PROOF_FAMILY does not name a family");
    let least = usize::from(chosen.is_some());
    vec(Union::new(all), least..=FEATURES_MAX).boxed()
}

/// Returns the index of a workload, pool or node.
pub(super) fn any() -> impl Strategy<Value = usize> {
    0..4_usize
}

/// Returns a feature that adds one of these rules to one workload.
fn rule_of(rules: &'static [&'static str]) -> impl Strategy<Value = TreeFeature> {
    (any(), select(rules)).prop_map(|(of, rule)| TreeFeature::pods(of, "", &[rule]))
}

/// Pools with open labels, and pods that select their values.
fn labels() -> BoxedStrategy<TreeFeature> {
    let pool = (
        any(),
        select(vec![
            "disk In ssd,hdd",
            "disk Exists",
            "disk NotIn hdd",
            "disk DoesNotExist",
            "tier In 1,5",
        ]),
    );
    let pool = pool.prop_map(|(of, line)| TreeFeature::pool(of, "", &[line]));
    let pods = rule_of(&[
        "needs disk In hdd",
        "needs disk In ssd,hdd",
        "needs disk NotIn ssd",
        "needs disk Exists",
        "needs tier Gt 2",
        "needs tier In 1,7",
        "prefers 10 disk In hdd",
        "nodeSelector: { disk: hdd }",
        "anti-affinity disk pods=all",
        "affinity tier pods=all",
        "spread tier maxSkew=1 pods=all",
    ]);
    (pool, of(pods)).prop_map(|(pool, pods)| pool.and(pods.unwrap_or_default())).boxed()
}

/// Selectors with `matchLabelKeys` and `mismatchLabelKeys`.
fn keys() -> BoxedStrategy<TreeFeature> {
    rule_of(&[
        "spread hostname maxSkew=1 pods=tier=x matchLabelKeys=app",
        "spread zone maxSkew=1 pods=all matchLabelKeys=app,tier",
        "spread zone maxSkew=1 pods=all matchLabelKeys=unknown",
        "anti-affinity hostname pods=tier=x matchLabelKeys=app",
        "anti-affinity hostname pods=all mismatchLabelKeys=app",
        "anti-affinity zone pods=all mismatchLabelKeys=app namespaceSelector=all",
        "affinity zone pods=all matchLabelKeys=app",
        "affinity hostname pods=all matchLabelKeys=app",
        "affinity zone pods=tier=x mismatchLabelKeys=app",
    ])
    .boxed()
}

/// Node affinity to fields of nodes.
fn fields() -> BoxedStrategy<TreeFeature> {
    rule_of(&[
        "needs field metadata.name In n0",
        "needs field metadata.name In n1 and zone In us-east-1a",
        "needs field metadata.name NotIn n0",
        "needs field metadata.name In nowhere",
        "prefers 10 field metadata.name In n0",
    ])
    .boxed()
}

/// Numeric comparisons of labels and taints.
fn bounds() -> BoxedStrategy<TreeFeature> {
    let pods = rule_of(&[
        "needs cpu Gt 2",
        "needs cpu Lt 4",
        "needs cpu Gt 3 and zone In us-east-1a",
        "needs karpenter.k8s.aws/instance-memory Gt 8000",
        "prefers 10 cpu Gt 2",
        "tolerates level Gt 3",
        "tolerates level Lt 9:NoSchedule",
        "tolerates level Gt 7",
    ]);
    let pool = (
        any(),
        select(vec![
            ("taints=level=5:NoSchedule", ""),
            ("taints=level=5:NoExecute", ""),
            ("", "cpu Gt 2"),
            ("", "cpu Lt 4"),
        ]),
    );
    let pool = pool.prop_map(|(of, (words, line))| {
        let body: &[&str] = if line.is_empty() { &[] } else { &[line] };
        TreeFeature::pool(of, words, body)
    });
    (pods, of(pool)).prop_map(|(pods, pool)| pods.and(pool.unwrap_or_default())).boxed()
}

/// Pods that request other resources than CPU.
fn shortages() -> BoxedStrategy<TreeFeature> {
    let pods = (
        any(),
        select(vec![
            "memory=2Gi",
            "memory=3500Mi",
            "memory=7Gi",
            "memory=14Gi",
            "ephemeral-storage=8Gi",
            "ephemeral-storage=16Gi",
            "ephemeral-storage=30Gi",
        ]),
    );
    let pods = pods.prop_map(|(of, words)| TreeFeature::pods(of, words, &[]));
    let devices = (any(), any()).prop_map(|(of, pool)| {
        let pods = TreeFeature::pods(of, "nvidia.com/gpu=1", &[]);
        pods.and(TreeFeature::pool(pool, "types=m5.large,g4dn.xlarge", &[]))
    });
    Union::new(vec![pods.boxed(), devices.boxed()]).boxed()
}

/// Init containers and sidecars.
fn containers() -> BoxedStrategy<TreeFeature> {
    let one = |cpu: &str, policy: &str| {
        format!("{{ name: i{cpu}, image: i, {policy}resources: {{ requests: {{ cpu: {cpu} }} }} }}")
    };
    let always = "restartPolicy: Always, ";
    let all = [
        one("500m", ""),
        one("1700m", ""),
        one("200m", always),
        format!("{}, {}", one("900m", ""), one("100m", always)),
        format!("{}, {}", one("100m", always), one("900m", "")),
    ];
    let chosen = (any(), select(all.map(|list| format!("initContainers: [{list}]")).to_vec()));
    chosen.prop_map(|(of, line)| TreeFeature::pods(of, "", &[&line])).boxed()
}

/// Pools with `minValues`.
fn variety() -> BoxedStrategy<TreeFeature> {
    let chosen = (
        any(),
        select(vec![
            ("types=c5.large,m5.large", "type Exists minValues 2"),
            ("types=c5.large,m5.large,m5.xlarge", "type Exists minValues 2"),
            ("types=c5.large,m5.xlarge", "family Exists minValues 2"),
            ("types=m5.large,m5.xlarge", "cpu Exists minValues 2"),
        ]),
    );
    chosen.prop_map(|(of, (words, line))| TreeFeature::pool(of, words, &[line])).boxed()
}

/// Static pools.
fn fixed() -> BoxedStrategy<TreeFeature> {
    (any(), 0..3_u32)
        .prop_map(|(of, count)| TreeFeature::pool(of, &format!("replicas={count}"), &[]))
        .boxed()
}

/// Node overlays of prices and capacity.
fn overlays() -> BoxedStrategy<TreeFeature> {
    let overlay = |spec: &str| {
        let head = "manifest\n  apiVersion: karpenter.sh/v1alpha1\n  kind: NodeOverlay";
        TreeFeature::from_lines(&[&format!(
            "{head}\n  metadata: {{ name: over }}\n  spec: {{ {spec} }}"
        )])
    };
    let of_type = "requirements: [{ key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }]";
    let price = select(vec!["price: \"0.01\"", "price: \"9\"", "priceAdjustment: \"-50%\""]);
    let price = price.prop_map(move |price| overlay(&format!("{of_type}, {price}")));
    let capacity = any().prop_map(move |of| {
        let capacity = "capacity: { example.com/fuse: 2 }";
        let all = overlay(&format!("{of_type}, {capacity}"));
        all.and(TreeFeature::pods(of, "example.com/fuse=1", &[]))
    });
    Union::new(vec![price.boxed(), capacity.boxed()]).boxed()
}

/// Capacity reservations.
fn reservations() -> BoxedStrategy<TreeFeature> {
    let kinds = select(vec!["m5.large us-east-1a", "m5.xlarge us-east-1b", "c5.large us-east-1a"]);
    let bought = select(vec!["capacity=reserved", "capacity=reserved,on-demand"]);
    (any(), kinds, 0..3_u32, bought)
        .prop_map(|(of, kind, count, bought)| {
            let line = format!("reservation cr-1 {kind} {count}");
            TreeFeature::from_lines(&[&line]).and(TreeFeature::pool(of, bought, &[]))
        })
        .boxed()
}

/// Offerings with insufficient capacity.
fn sold_out() -> BoxedStrategy<TreeFeature> {
    select(vec![
        "insufficient-capacity m5.large us-east-1a *",
        "insufficient-capacity m5.large * *",
        "insufficient-capacity * us-east-1b *",
        "insufficient-capacity * * spot",
        "insufficient-capacity m5.xlarge us-east-1a on-demand",
    ])
    .prop_map(|line| TreeFeature::from_lines(&[line]))
    .boxed()
}

/// Rules that block disruption of pods or nodes.
fn guards() -> BoxedStrategy<TreeFeature> {
    let budget = |spec: &str| {
        let head = "manifest\n  apiVersion: policy/v1\n  kind: PodDisruptionBudget";
        let name = "metadata: { name: guard, namespace: default }";
        TreeFeature::from_lines(&[&format!("{head}\n  {name}\n  spec: {{ {spec} }}")])
    };
    let of_pods = select(vec![
        "maxUnavailable: 0, selector: { matchLabels: { app: w0 } }",
        "minAvailable: 1, selector: { matchLabels: { app: w0 } }",
        "maxUnavailable: 1, selector: {}",
    ]);
    let of_pods = of_pods.prop_map(budget);
    let pinned = any()
        .prop_map(|of| TreeFeature::pods(of, "annotations=karpenter.sh/do-not-disrupt=true", &[]));
    let node =
        any().prop_map(|of| TreeFeature::node(of, "annotations=karpenter.sh/do-not-disrupt=true"));
    let policy = (any(), select(vec!["policy=WhenEmpty", "after=Never"]));
    let policy = policy.prop_map(|(of, words)| TreeFeature::pool(of, words, &[]));
    Union::new(vec![of_pods.boxed(), pinned.boxed(), node.boxed(), policy.boxed()]).boxed()
}

/// DaemonSets.
fn daemons() -> BoxedStrategy<TreeFeature> {
    select(vec![
        "daemon log cpu=50m\n  needs type In m5.xlarge",
        "daemon log cpu=150m\n  tolerates team",
        "daemon log cpu=150m\n  nodeSelector: { disk: ssd }",
        "daemon log cpu=50m\n  needs capacity In spot",
        "daemon log cpu=50m labels=tier=x",
        "daemon log cpu=50m\n  containers: [{ name: a, image: a, ports: [{ containerPort: 80, \
         hostPort: 80 }] }]",
    ])
    .prop_map(|lines| TreeFeature::from_lines(&[lines]))
    .boxed()
}

/// Priorities and preemption.
fn priorities() -> BoxedStrategy<TreeFeature> {
    let chosen = (
        any(),
        select(vec![
            ("priority=100", &[][..]),
            ("priority=100", &["preemptionPolicy: Never"][..]),
            ("priority=-100", &[][..]),
            ("", &["priorityClassName: system-cluster-critical"][..]),
        ]),
    );
    chosen.prop_map(|(of, (words, body))| TreeFeature::pods(of, words, body)).boxed()
}

/// Jobs.
fn jobs() -> BoxedStrategy<TreeFeature> {
    let line = select(vec![&[][..], &["restartPolicy: OnFailure"][..]]);
    (any(), line).prop_map(|(of, body)| TreeFeature::pods(of, "kind=Job", body)).boxed()
}

/// Joining, unready and tainted nodes.
fn nodes() -> BoxedStrategy<TreeFeature> {
    let words = vec!["joining age=1", "not-ready age=1", "taints=level=5:NoExecute"];
    (any(), Union::new(words.into_iter().map(Just)))
        .prop_map(|(of, words)| TreeFeature::node(of, words))
        .boxed()
}
