//! Equal inputs give equal plans, for every order of files and documents.

use std::collections::BTreeMap;

use fleetwright::catalog::Catalog;
use fleetwright::demand::DemandMode;
use fleetwright::manifest::read;
use fleetwright::model::desired::{Fleet, Tree, TreeFile};
use fleetwright::model::market::ZoneSetting;
use fleetwright::model::observed::{ClusterIdentity, Observed};
use fleetwright::plan::wire::{Base, BaseWorld};
use fleetwright::planner::{Inputs, Scope, plan};
use fleetwright::solver::Settings;
use rand::SeedableRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_pcg::Pcg64Mcg;
use serde_json::Value;

/// Number of tested document orders.
const PERMUTATIONS: usize = 1_000;
const SEED: u64 = 7;
const AT: &str = "2026-09-01T10:00:00Z";

/// Available instance types: those of the pools, and one other type.
const TYPES: [&str; 5] = ["c6a.xlarge", "m5.large", "m6a.large", "r6a.large", "t3.small"];

/// A small repository that is sensitive to order: two pools with one common instance type,
/// workloads of equal size, defaults from another file, and an unschedulable pod.
const FILES: [(&str, &str); 5] = [
    ("pools/general.yaml", GENERAL_POOL),
    ("pools/spare.yaml", SPARE_POOL),
    ("apps/web.yaml", WEB_APPS),
    ("apps/jobs.yaml", JOB_APPS),
    ("cluster.yaml", CLUSTER_OBJECTS),
];

const GENERAL_POOL: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: general }
spec:
  limits: { cpu: 64 }
  template:
    spec:
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: default }
      requirements:
      - key: node.kubernetes.io/instance-type
        operator: In
        values: [m6a.large, c6a.xlarge, r6a.large]
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: default }
spec:
  amiSelectorTerms: [{ alias: al2023@latest }]
  role: node
  subnetSelectorTerms: [{ tags: { a: b } }]
  securityGroupSelectorTerms: [{ tags: { a: b } }]
---
apiVersion: v1
kind: LimitRange
metadata: { name: defaults, namespace: shop }
spec:
  limits:
  - { type: Container, defaultRequest: { cpu: 100m, memory: 300Mi } }
";

const SPARE_POOL: &str = "\
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: { name: spare }
spec:
  providerRef: { name: spare }
  labels: { spare: 'true' }
  requirements:
  - { key: node.kubernetes.io/instance-type, operator: In, values: [m6a.large, m5.large] }
---
apiVersion: karpenter.k8s.aws/v1alpha1
kind: AWSNodeTemplate
metadata: { name: spare }
spec: { instanceProfile: p, subnetSelector: { a: b }, securityGroupSelector: { a: b } }
";

const WEB_APPS: &str = "\
apiVersion: v1
kind: Namespace
metadata: { name: shop }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: web, namespace: shop }
spec:
  replicas: 3
  selector: { matchLabels: { app: web } }
  template:
    metadata: { labels: { app: web } }
    spec:
      containers:
      - { name: a, image: a, resources: { requests: { cpu: 500m, memory: 1Gi } } }
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: api, namespace: shop }
spec:
  replicas: 3
  selector: { matchLabels: { app: api } }
  template:
    metadata: { labels: { app: api } }
    spec:
      containers:
      - { name: a, image: a, resources: { requests: { cpu: 500m, memory: 1Gi } } }
";

const JOB_APPS: &str = "\
apiVersion: apps/v1
kind: StatefulSet
metadata: { name: queue, namespace: shop }
spec:
  replicas: 2
  selector: { matchLabels: { app: q } }
  template:
    metadata: { labels: { app: q } }
    spec:
      priorityClassName: high
      containers: [{ name: a, image: a }]
---
apiVersion: v1
kind: Pod
metadata: { name: giant, namespace: shop }
spec:
  containers:
  - { name: a, image: a, resources: { requests: { memory: 900Gi } } }
";

const CLUSTER_OBJECTS: &str = "\
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: { name: high }
value: 1000
---
apiVersion: apps/v1
kind: DaemonSet
metadata: { name: agent, namespace: kube-system }
spec:
  selector: { matchLabels: { app: agent } }
  template:
    metadata: { labels: { app: agent } }
    spec:
      containers:
      - { name: a, image: a, resources: { requests: { cpu: 50m, memory: 64Mi } } }
";

/// Documents of each file, by path.
type DocumentsByFile = BTreeMap<&'static str, Vec<&'static str>>;

fn documents() -> DocumentsByFile {
    FILES.iter().map(|(path, text)| (*path, text.split("---\n").collect())).collect()
}

fn files(documents: &DocumentsByFile) -> Vec<TreeFile> {
    let file = |(path, parts): (&&str, &Vec<&str>)| TreeFile {
        path: (*path).into(),
        content: Ok(parts.join("---\n").into_bytes().into()),
    };
    documents.iter().map(file).collect()
}

/// Constant inputs: the observation and the catalog.
struct FixedInputs {
    observed: Observed,
    catalog: Catalog,
}

impl FixedInputs {
    fn new() -> Self {
        let region = "us-east-1";
        let zones = [("us-east-1a", "use1-az2"), ("us-east-1b", "use1-az4")];
        let zones = zones.map(|(name, id)| ZoneSetting { name: name.into(), id: Some(id.into()) });
        let cluster = ClusterIdentity {
            name: "shop".into(),
            region: region.into(),
            ..ClusterIdentity::default()
        };
        let mut catalog = Catalog::load(&region.into(), &zones).expect("known");
        // With few types, a thousand plans take seconds.
        catalog.types.retain(|name, _| TYPES.contains(&name.as_str()));
        Self { observed: Observed::empty(cluster, AT.parse().expect("a time")), catalog }
    }

    /// Returns the plan for `files` as JSON.
    fn plan(&self, files: Vec<TreeFile>) -> String {
        let desired = read(&Tree { files }, &Fleet::default());
        let world = BaseWorld::new("sim:world", &self.observed);
        let plan = plan(&Inputs {
            desired: &desired,
            observed: &self.observed,
            catalog: &self.catalog,
            base: Base::new(".", "as planned", world, DemandMode::Live),
            at: self.observed.taken_at,
            demand: DemandMode::Live,
            is_forecast: false,
            scope: Scope::default(),
            settings: Settings::default(),
        });
        assert!(!plan.errored, "{:#?}", plan.capacity.diagnostics);
        plan.to_json()
    }
}

/// Returns a plan without the origins of its objects.
fn without_origins(plan: &str) -> Value {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.remove("origin");
                // The checksum covers the origins.
                map.remove("checksum");
                map.values_mut().for_each(strip);
            }
            Value::Array(list) => list.iter_mut().for_each(strip),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut plan = serde_json::from_str(plan).expect("JSON");
    strip(&mut plan);
    plan
}

#[test]
fn file_order_does_not_change_plan_bytes() {
    let world = FixedInputs::new();
    let files = files(&documents());
    let first = world.plan(files.clone());
    assert!(first.contains("\"unschedulable\": 1"), "the largest pod is unschedulable");
    for order in orders(files.len()) {
        let plan = world.plan(order.iter().map(|n| files[*n].clone()).collect());
        assert!(plan == first, "order {order:?}");
    }
}

/// Returns every order of `0..count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    (0..count).fold(vec![Vec::new()], |orders, next| {
        let with_next = |order: &Vec<usize>| {
            let insert = |place| [&order[..place], &[next], &order[place..]].concat();
            (0..=order.len()).map(insert).collect::<Vec<_>>()
        };
        orders.iter().flat_map(with_next).collect()
    })
}

#[test]
fn document_order_does_not_change_decisions() {
    let world = FixedInputs::new();
    let mut parts: Vec<&str> = documents().into_values().flatten().collect();
    let first = without_origins(&world.plan(files(&documents())));
    let mut random = Pcg64Mcg::seed_from_u64(SEED);
    for round in 0..PERMUTATIONS {
        parts.shuffle(&mut random);
        let mut assigned = DocumentsByFile::new();
        for part in &parts {
            let (path, _) = FILES.choose(&mut random).expect("there are files");
            assigned.entry(path).or_default().push(part);
        }
        let mut files = files(&assigned);
        files.shuffle(&mut random);
        let found = without_origins(&world.plan(files));
        assert!(found == first, "order {round}: {assigned:#?}");
    }
}
