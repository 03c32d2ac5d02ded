//! What a tree may have beside plain pools, pods and nodes, by family of rules: each twist adds lines
//! to the case, to one of its pools, workloads and nodes.
//!
//! A family may be chosen, which every tree then has twists of, and of no other. Some are drawn so alone: beside
//! the others, groups, amounts and Jobs show pods that the search leaves over although a dearer fleet would
//! hold them.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::Just;
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, Strategy, Union};

use super::node_groups::groups;
use super::resource_requests::amounts;
use super::volumes::volumes;

/// Most twists of one tree: each makes brute force slower, and what goes wrong harder to read.
const TWISTS_MAX: usize = 2;

/// What is added to a tree. Where it says `{w}` and `{ns}`, a workload writes its name and namespace.
#[derive(Debug, Clone, Default)]
pub(super) struct TreeFeature {
    /// Lines and manifests of the case; of two with one name the first stays.
    pub(super) given: Vec<String>,
    /// Lines of the case after its nodes.
    pub(super) last: Vec<String>,
    pub(super) pool: Option<FeatureLines>,
    pub(super) pods: Option<FeatureLines>,
    pub(super) node: Option<FeatureLines>,
}

/// What is added to one pool, workload or node.
#[derive(Debug, Clone, Default)]
pub(super) struct FeatureLines {
    /// Which one, counted round.
    pub(super) of: usize,
    /// More words of its line; they outdo earlier ones.
    pub(super) words: String,
    /// More lines below it.
    pub(super) body: Vec<String>,
    /// Manifests of their own that go with it.
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

    pub(super) fn given(lines: &[&str]) -> Self {
        let given = lines.iter().map(|line| (*line).to_owned()).collect();
        Self { given, ..Self::default() }
    }

    /// Adds a manifest of the workload that it is about.
    pub(super) fn with_manifest(mut self, text: String) -> Self {
        self.pods.as_mut().expect("it is about a workload").manifests.push(text);
        self
    }

    pub(super) fn and(self, other: Self) -> Self {
        let Self { mut given, mut last, pool, pods, node } = self;
        given.extend(other.given);
        last.extend(other.last);
        let (pool, pods) = (pool.or(other.pool), pods.or(other.pods));
        Self { given, last, pool, pods, node: node.or(other.node) }
    }
}

impl FeatureLines {
    fn new(of: usize, words: &str, body: &[&str]) -> Self {
        let body = body.iter().map(|line| (*line).to_owned()).collect();
        Self { of, words: words.to_owned(), body, manifests: Vec::new() }
    }
}

/// A name, and what draws its twists.
pub(super) type FeatureFamily = (&'static str, fn() -> BoxedStrategy<TreeFeature>);

/// Families that are drawn by themselves.
pub(super) const ALONE: [FeatureFamily; 3] =
    [("amounts", amounts), ("groups", groups), ("jobs", jobs)];

const TOGETHER: [FeatureFamily; 16] = [
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

/// Draws the twists of a tree, of the `chosen` family or of those that are drawn together.
pub(super) fn twists(chosen: Option<&str>) -> BoxedStrategy<Vec<TreeFeature>> {
    let alone = ALONE.into_iter().filter(|_| chosen.is_some());
    let families = TOGETHER.into_iter().chain(alone);
    let families = families.filter(|(name, _)| chosen.is_none_or(|chosen| chosen == *name));
    let all: Vec<BoxedStrategy<TreeFeature>> = families.map(|(_, family)| family()).collect();
    assert!(!all.is_empty(), "PROOF_FAMILY names no family");
    let least = usize::from(chosen.is_some());
    vec(Union::new(all), least..=TWISTS_MAX).boxed()
}

/// One of the workloads, pools or nodes.
pub(super) fn any() -> impl Strategy<Value = usize> {
    0..4_usize
}

/// A twist of one of these words or rules for one workload.
fn rule_of(rules: &'static [&'static str]) -> impl Strategy<Value = TreeFeature> {
    (any(), select(rules)).prop_map(|(of, rule)| TreeFeature::pods(of, "", &[rule]))
}

/// Pools that leave the value of a label open, and pods that ask for one.
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
        "apart disk pods=all",
        "near tier pods=all",
        "spread tier maxSkew=1 pods=all",
    ]);
    (pool, of(pods)).prop_map(|(pool, pods)| pool.and(pods.unwrap_or_default())).boxed()
}

/// Selectors that follow the pod's own labels.
fn keys() -> BoxedStrategy<TreeFeature> {
    rule_of(&[
        "spread hostname maxSkew=1 pods=tier=x matchLabelKeys=app",
        "spread zone maxSkew=1 pods=all matchLabelKeys=app,tier",
        "spread zone maxSkew=1 pods=all matchLabelKeys=unknown",
        "apart hostname pods=tier=x matchLabelKeys=app",
        "apart hostname pods=all mismatchLabelKeys=app",
        "apart zone pods=all mismatchLabelKeys=app namespaceSelector=all",
        "near zone pods=all matchLabelKeys=app",
        "near hostname pods=all matchLabelKeys=app",
        "near zone pods=tier=x mismatchLabelKeys=app",
    ])
    .boxed()
}

/// Fields of nodes.
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

/// Numbers.
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

/// Pods that ask for something else than CPU.
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

/// Containers that run before others, and beside them.
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

/// Pools that ask for a choice.
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

/// Pools with a fixed number of nodes.
fn fixed() -> BoxedStrategy<TreeFeature> {
    (any(), 0..3_u32)
        .prop_map(|(of, count)| TreeFeature::pool(of, &format!("replicas={count}"), &[]))
        .boxed()
}

/// Prices and capacity that the repository says.
fn overlays() -> BoxedStrategy<TreeFeature> {
    let overlay = |spec: &str| {
        let head = "manifest\n  apiVersion: karpenter.sh/v1alpha1\n  kind: NodeOverlay";
        TreeFeature::given(&[&format!(
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

/// Machines that are paid for already.
fn reservations() -> BoxedStrategy<TreeFeature> {
    let kinds = select(vec!["m5.large us-east-1a", "m5.xlarge us-east-1b", "c5.large us-east-1a"]);
    let bought = select(vec!["capacity=reserved", "capacity=reserved,on-demand"]);
    (any(), kinds, 0..3_u32, bought)
        .prop_map(|(of, kind, count, bought)| {
            let line = format!("reservation cr-1 {kind} {count}");
            TreeFeature::given(&[&line]).and(TreeFeature::pool(of, bought, &[]))
        })
        .boxed()
}

/// What EC2 lately had none of.
fn sold_out() -> BoxedStrategy<TreeFeature> {
    select(vec![
        "sold-out m5.large us-east-1a *",
        "sold-out m5.large * *",
        "sold-out * us-east-1b *",
        "sold-out * * spot",
        "sold-out m5.xlarge us-east-1a on-demand",
    ])
    .prop_map(|line| TreeFeature::given(&[line]))
    .boxed()
}

/// What forbids to move pods or nodes.
fn guards() -> BoxedStrategy<TreeFeature> {
    let budget = |spec: &str| {
        let head = "manifest\n  apiVersion: policy/v1\n  kind: PodDisruptionBudget";
        let name = "metadata: { name: guard, namespace: default }";
        TreeFeature::given(&[&format!("{head}\n  {name}\n  spec: {{ {spec} }}")])
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

/// Pods of nodes.
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
    .prop_map(|lines| TreeFeature::given(&[lines]))
    .boxed()
}

/// Who goes before whom, and who may have others evicted.
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

/// Work that ends.
fn jobs() -> BoxedStrategy<TreeFeature> {
    let line = select(vec![&[][..], &["restartPolicy: OnFailure"][..]]);
    (any(), line).prop_map(|(of, body)| TreeFeature::pods(of, "kind=Job", body)).boxed()
}

/// Nodes on their way.
fn nodes() -> BoxedStrategy<TreeFeature> {
    let words = vec!["joining age=1", "not-ready age=1", "taints=level=5:NoExecute"];
    (any(), Union::new(words.into_iter().map(Just)))
        .prop_map(|(of, words)| TreeFeature::node(of, words))
        .boxed()
}
