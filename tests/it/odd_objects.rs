//! Objects with odd but plausible fields, the same for the same seed.
//!
//! A tenant may create most of them, and an API server accepts most of them. The rest tests the
//! readers alone.

mod nodes;
mod pods;
mod requests;
mod workloads;

use serde_json::{Map, Value as Json, json};

#[cfg(feature = "kubernetes")]
pub(crate) use requests::exact_requests;

/// Namespace of the generated objects.
pub(crate) const NAMESPACE: &str = "odd";

/// An object, where it is created, and a status to write afterwards.
#[derive(Debug, Clone)]
pub(crate) struct OddObject {
    /// Path of the collection.
    pub(crate) path: String,
    pub(crate) object: Json,
    pub(crate) status: Option<Json>,
}

/// Returns `count` objects of all kinds. Those that other objects refer to come first.
pub(crate) fn odd_objects(seed: u64, count: usize) -> Vec<OddObject> {
    let mut odd = Odd { state: seed };
    let classes = (0..4).map(|n| nodes::runtime_class(&mut odd, n)).collect::<Vec<_>>();
    let objects = (0..count).map(|n| {
        // Half of them are pods, which tenants create most.
        let generate = if n % 2 == 0 { pods::pod } else { odd.pick(&GENERATORS) };
        let mut made = generate(&mut odd, n);
        made.object["metadata"]["name"] = json!(format!("odd-{n}"));
        if let Some((_, rest)) = made.path.split_once("/namespaces/") {
            let namespace = rest.split('/').next().unwrap_or_default();
            made.object["metadata"]["namespace"] = json!(namespace);
        }
        made
    });
    classes.into_iter().chain(objects.collect::<Vec<_>>()).collect()
}

/// Generates the object of a number.
type Generator = fn(&mut Odd, usize) -> OddObject;

const GENERATORS: [Generator; 20] = [
    workloads::deployment,
    workloads::replica_set,
    workloads::stateful_set,
    workloads::daemon_set,
    workloads::replication_controller,
    workloads::job,
    workloads::cron_job,
    workloads::cron_job,
    workloads::pod_template,
    workloads::horizontal,
    workloads::budget,
    workloads::limit_range,
    nodes::claim,
    nodes::volume,
    nodes::storage_class,
    nodes::priority_class,
    nodes::attachment,
    nodes::csi_node,
    nodes::node,
    nodes::node,
];

/// A generator of odd values (`SplitMix64`).
pub(crate) struct Odd {
    state: u64,
}

impl Odd {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("a small number");
        usize::try_from(self.next() % end).expect("a small number")
    }

    /// Returns true in one of `n` cases.
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Sets a key of `object` in one of `n` cases.
    fn maybe(
        &mut self,
        n: usize,
        object: &mut Json,
        key: &str,
        value: impl FnOnce(&mut Self) -> Json,
    ) {
        if self.one_in(n) {
            object[key] = value(self);
        }
    }

    /// Returns a list of up to `max` values.
    fn list(&mut self, max: usize, value: impl Fn(&mut Self) -> Json) -> Json {
        let count = self.below(max + 1);
        (0..count).map(|_| value(self)).collect()
    }

    fn quantity(&mut self) -> Json {
        json!(self.pick(&QUANTITIES))
    }

    /// Returns a count, usually small.
    fn count(&mut self) -> Json {
        json!(self.pick(&COUNTS))
    }

    /// Returns seconds, usually plausible.
    fn seconds(&mut self) -> Json {
        json!(self.pick(&SECONDS))
    }

    /// Returns a count or a percentage.
    fn count_or_share(&mut self) -> Json {
        self.pick(&[
            json!(0),
            json!(1),
            json!(2_147_483_647),
            json!("0%"),
            json!("1%"),
            json!("100%"),
            json!("250%"),
            json!("007%"),
            json!("99999999%"),
            json!("1"),
            json!(-1),
        ])
    }

    fn label_key(&mut self) -> String {
        self.pick(&LABEL_KEYS).to_owned()
    }

    fn label_value(&mut self) -> String {
        let long = "v".repeat(63);
        let all: Vec<&str> = LABEL_VALUES.iter().copied().chain([long.as_str()]).collect();
        self.pick(&all).to_owned()
    }

    fn labels(&mut self, max: usize) -> Json {
        let count = self.below(max + 1);
        let labels = (0..count).map(|_| (self.label_key(), json!(self.label_value())));
        Json::Object(labels.collect::<Map<_, _>>())
    }

    /// Returns requirements of a label selector.
    fn expressions(&mut self) -> Json {
        self.list(2, |odd| {
            let operator = odd.pick(&["In", "NotIn", "Exists", "DoesNotExist"]);
            let mut expression = json!({ "key": odd.label_key(), "operator": operator });
            if matches!(operator, "In" | "NotIn") {
                expression["values"] = json!([odd.label_value(), odd.label_value()]);
            }
            expression
        })
    }

    fn label_selector(&mut self) -> Json {
        let mut selector = json!({});
        self.maybe(2, &mut selector, "matchLabels", |odd| odd.labels(2));
        self.maybe(3, &mut selector, "matchExpressions", Self::expressions);
        selector
    }

    /// Returns requirements of a node selector, including those with numbers.
    fn node_expressions(&mut self) -> Json {
        self.list(3, |odd| {
            let operator =
                odd.pick(&["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gt", "Lt"]);
            let mut expression = json!({ "key": odd.label_key(), "operator": operator });
            match operator {
                "Gt" | "Lt" => expression["values"] = json!([odd.pick(&BOUNDS)]),
                "In" | "NotIn" => {
                    expression["values"] = json!([odd.label_value(), odd.label_value()]);
                }
                _ => {}
            }
            expression
        })
    }
}

/// Counts, most of them valid.
const COUNTS: [i64; 20] = [
    0,
    1,
    1,
    1,
    2,
    2,
    2,
    3,
    3,
    5,
    7,
    7,
    10,
    100,
    100,
    1_000,
    99_999,
    2_147_483_647,
    2_147_483_646,
    -1,
];

/// Seconds, most of them valid.
const SECONDS: [i64; 16] = [
    0,
    1,
    1,
    10,
    30,
    30,
    60,
    600,
    3_600,
    86_400,
    999_999,
    2_147_483_646,
    2_147_483_647,
    2_147_483_648,
    i64::MAX,
    -1,
];

/// Quantities in every syntax, most of them valid.
const QUANTITIES: [&str; 36] = [
    "0",
    "1",
    "100m",
    "250m",
    "1n",
    "1u",
    "999999999n",
    "1e3",
    "1E3",
    "12e-2",
    "0.5",
    ".5",
    "5.",
    "+1",
    "007",
    "1.5Gi",
    "128974848",
    "129e6",
    "129M",
    "123Mi",
    "1Ki",
    "3k",
    "2T",
    "1P",
    "8E",
    "7Ei",
    "9Ei",
    "1e18",
    "1e30",
    "9223372036854775807",
    "9223372036854775808",
    "0.0000000001",
    "1e-12",
    "-1",
    "-0",
    "100m",
];

/// Values of numeric operators. The API server checks that there is one.
const BOUNDS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "+1",
    "0005",
    "abc",
    "",
    "1.5",
    "1e3",
    "9223372036854775807",
    "9223372036854775808",
    "99999999999999999999",
    "0x10",
    " 3",
];

/// Keys of labels, most of them valid.
const LABEL_KEYS: [&str; 20] = [
    "a",
    "A.b-C_d",
    "app",
    "example.com/x",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "beta.kubernetes.io/arch",
    "node.kubernetes.io/instance-type",
    "karpenter.sh/nodepool",
    "karpenter.sh/capacity-type",
    "karpenter.k8s.aws/instance-cpu",
    "fleetwright.dev/key",
    "0",
    "true",
    "eks.amazonaws.com/compute-type",
    "topology.kubernetes.io/region",
    "x_Y.z",
    "node-role.kubernetes.io/control-plane",
];

/// Values of labels, most of them valid.
const LABEL_VALUES: [&str; 18] = [
    "",
    "a",
    "0",
    "-",
    "true",
    "null",
    "1e3",
    "0x10",
    "1_000",
    "A.b-C_d",
    "us-east-1a",
    "amd64",
    "spot",
    "m5.large",
    "fargate",
    "v.1",
    "007",
    "not a label value!",
];
