//! Fargate: profiles, sizes and prices.
//!
//! The types follow the fields of EKS, so that profiles from manifests and from clusters have the
//! same representation. This module matches profiles to pods, and rounds requests up to Fargate
//! sizes. It models no nodes, because Fargate runs each pod on separate capacity, which is not
//! planned. Invariant: a size covers the requests plus Fargate's overhead.
//!
//! Sources: EKS User Guide, "Define which Pods use Fargate when launched" and "Understand Fargate
//! Pod configuration details".

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::model::ids::{LabelValue, Labels, Origin};
use crate::model::units::{MicroUsd, Resources};

/// Label of Fargate nodes, and annotation by which pods opt in or out.
pub const COMPUTE_TYPE: &str = "eks.amazonaws.com/compute-type";
/// Value of [`COMPUTE_TYPE`] on Fargate nodes.
pub const FARGATE: &str = "fargate";
/// Value of [`COMPUTE_TYPE`] on EKS Auto Mode nodes.
pub const AUTO: &str = "auto";
/// Value of [`COMPUTE_TYPE`] that runs a pod on EC2 even if a Fargate profile matches.
pub const EC2: &str = "ec2";
/// Label by which a pod selects one of the matching profiles.
pub const PROFILE: &str = "eks.amazonaws.com/fargate-profile";
/// Scheduler name that EKS assigns to pods with a matching profile.
pub const SCHEDULER: &str = "fargate-scheduler";
/// Prefix of the names of Fargate nodes.
pub const NODE_PREFIX: &str = "fargate-";

/// Maximum number of selectors per profile.
pub const SELECTORS_MAX: usize = 5;
/// Maximum number of labels per selector.
pub const SELECTOR_LABELS_MAX: usize = 5;

/// Memory in MiB that Fargate adds to pod requests for kubelet, kube-proxy and containerd.
const OVERHEAD_MIB: i64 = 256;
const MIB: i64 = 1 << 20;
/// Maximum ephemeral storage of a pod, in bytes.
pub const EPHEMERAL_STORAGE_MAX: i64 = 175 << 30;

/// A Fargate profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FargateProfile {
    /// Name.
    pub name: String,
    /// Origin of the declaration; `None` for a profile that was only observed.
    #[serde(skip)]
    pub origin: Option<Origin>,
    /// Selectors. A pod runs on Fargate if any selector matches it.
    pub selectors: Vec<ProfileSelector>,
}

/// Selector by namespace and labels, which must all match. In patterns, `*` matches any characters
/// and `?` exactly one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProfileSelector {
    /// Namespace pattern.
    pub namespace: String,
    /// Patterns of label keys and values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl FargateProfile {
    /// Returns true if a selector matches pods of `namespace` with `labels`.
    pub fn selects(&self, namespace: &str, labels: &Labels) -> bool {
        self.selectors.iter().any(|selector| selector.matches(namespace, labels))
    }
}

impl ProfileSelector {
    fn matches(&self, namespace: &str, labels: &Labels) -> bool {
        let has = |(key, value): (&String, &String)| {
            labels.iter().any(|(k, v)| {
                matches_pattern(key, k.as_str()) && matches_pattern(value, v.as_str())
            })
        };
        matches_pattern(&self.namespace, namespace) && self.labels.iter().all(has)
    }
}

/// Returns true if `text` matches `pattern`. `*` matches any characters, and `?` exactly one.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    // `matched[n]` is true if the processed part of the pattern matches the first `n` characters.
    let text: Vec<char> = text.chars().collect();
    let mut matched = vec![false; text.len() + 1];
    matched[0] = true;
    for wanted in pattern {
        let before = matched.clone();
        for end in 0..=text.len() {
            matched[end] = match wanted {
                '*' => before[end] || end > 0 && matched[end - 1],
                _ => end > 0 && before[end - 1] && (wanted == '?' || wanted == text[end - 1]),
            };
        }
    }
    matched[text.len()]
}

/// Returns the profile for pods of `namespace` with `labels`. A profile named by the pods applies
/// only if it matches. Otherwise the first match by name applies. EKS picks any of several matches.
pub fn select_profile<'a>(
    profiles: impl IntoIterator<Item = &'a FargateProfile>,
    namespace: &str,
    labels: &Labels,
) -> Option<&'a FargateProfile> {
    let named = labels.get(PROFILE).map(LabelValue::as_str);
    let mut matching: Vec<&FargateProfile> = profiles
        .into_iter()
        .filter(|profile| named.is_none_or(|name| profile.name == name))
        .filter(|profile| profile.selects(namespace, labels))
        .collect();
    matching.sort_by(|a, b| a.name.cmp(&b.name));
    matching.first().copied()
}

/// A pod size that Fargate offers.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct FargateSize {
    /// CPU in thousandths of a vCPU.
    pub cpu_milli: i64,
    /// Memory in MiB. Price lists call 1024 MiB a GB.
    pub memory_mib: i64,
}

/// Memory sizes for one CPU size: minimum, maximum and step, in MiB.
struct FargateSizeRow {
    cpu_milli: i64,
    least: i64,
    most: i64,
    step: i64,
}

const fn row(cpu_milli: i64, least: i64, most: i64, step: i64) -> FargateSizeRow {
    FargateSizeRow { cpu_milli, least: least * 1024, most: most * 1024, step: step * 1024 }
}

const SIZES: [FargateSizeRow; 8] = [
    FargateSizeRow { cpu_milli: 250, least: 512, most: 512, step: 512 },
    row(250, 1, 2, 1),
    row(500, 1, 4, 1),
    row(1_000, 2, 8, 1),
    row(2_000, 4, 16, 1),
    row(4_000, 8, 30, 1),
    row(8_000, 16, 60, 4),
    row(16_000, 32, 120, 8),
];

/// Largest size.
pub const LARGEST: FargateSize = FargateSize { cpu_milli: 16_000, memory_mib: 120 * 1024 };

impl FargateSize {
    /// Returns the smallest size for `requests` plus Fargate's overhead. Returns `None` if they
    /// exceed the largest size.
    pub fn smallest_for(requests: &Resources) -> Option<Self> {
        let cpu = requests.cpu.0;
        let mib = requests.memory.0 / MIB + i64::from(requests.memory.0 % MIB > 0);
        let memory = mib.saturating_add(OVERHEAD_MIB);
        let fits = |row: &&FargateSizeRow| cpu <= row.cpu_milli && memory <= row.most;
        let row = SIZES.iter().find(fits)?;
        let above = (memory - row.least).max(0);
        let steps = above / row.step + i64::from(above % row.step > 0);
        Some(Self { cpu_milli: row.cpu_milli, memory_mib: row.least + steps * row.step })
    }

    /// Returns the hourly price of the size, rounded to the nearest micro-USD.
    pub fn price(self, rates: Rates) -> MicroUsd {
        let share = |amount: i64, rate: MicroUsd, whole: i64| {
            (amount.saturating_mul(rate.0).saturating_add(whole / 2)) / whole
        };
        MicroUsd(share(self.cpu_milli, rates.vcpu_hour, 1000).saturating_add(share(
            self.memory_mib,
            rates.gb_hour,
            1024,
        )))
    }
}

/// Fargate prices as declared in `fleetwright.yaml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Rates {
    /// Hourly price of one vCPU.
    pub vcpu_hour: MicroUsd,
    /// Hourly price of one GB of memory.
    pub gb_hour: MicroUsd,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::requirement::label;
    use crate::model::units::{Bytes, MilliCpu};

    fn size(cpu_milli: i64, memory_mib: i64) -> Option<(i64, i64)> {
        let memory = Bytes(memory_mib * MIB);
        let requests = Resources { cpu: MilliCpu(cpu_milli), memory, ..Resources::default() };
        FargateSize::smallest_for(&requests).map(|size| (size.cpu_milli, size.memory_mib))
    }

    #[test]
    fn request_is_rounded_up_to_smallest_size_with_overhead() {
        for (rule, request, expected) in [
            ("no requests", (0, 0), Some((250, 512))),
            ("1 vCPU and 1 GiB", (1_000, 1_024), Some((1_000, 2 * 1_024))),
            ("the overhead exceeds the row", (1_000, 8 * 1_024), Some((2_000, 9 * 1_024))),
            ("0.25 and 1.8 GiB", (250, 1_843), Some((500, 3 * 1_024))),
            ("exactly the maximum of a row", (250, 1_792), Some((250, 2 * 1_024))),
            ("the smallest size", (250, 256), Some((250, 512))),
            ("one MiB more", (250, 257), Some((250, 1_024))),
            ("steps of 4 GB", (3_000, 30 * 1_024), Some((8_000, 32 * 1_024))),
            ("steps of 8 GB", (9_000, 33 * 1_024), Some((16_000, 40 * 1_024))),
            ("the largest", (16_000, 120 * 1_024 - 256), Some((16_000, 120 * 1_024))),
            ("larger than all sizes", (16_000, 120 * 1_024), None),
            ("more CPU than all sizes", (16_001, 1), None),
        ] {
            assert_eq!(size(request.0, request.1), expected, "{rule}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_smaller_size_holds_the_request(cpu in 0_i64..17_000, mib in 0_i64..125_000) {
            let all = SIZES.iter().flat_map(|row| {
                let size = |n: i64| (row.cpu_milli, row.least + n * row.step);
                (0..).map(size).take_while(|(_, memory)| *memory <= row.most)
            });
            let holds = |(c, m): &(i64, i64)| *c >= cpu && *m >= mib + OVERHEAD_MIB;
            proptest::prop_assert_eq!(size(cpu, mib), all.filter(holds).min());
        }
    }

    #[test]
    fn price_is_sum_of_cpu_and_memory() {
        let rates = Rates { vcpu_hour: MicroUsd(40_480), gb_hour: MicroUsd(4_445) };
        let price = |cpu_milli, memory_mib| FargateSize { cpu_milli, memory_mib }.price(rates).0;
        assert_eq!(price(1_000, 2_048), 49_370);
        assert_eq!(price(250, 512), 10_120 + 2_223);
    }

    #[test]
    fn profile_selects_pods_matching_any_selector() {
        let selector = |namespace: &str, labels: &[(&str, &str)]| ProfileSelector {
            namespace: namespace.to_owned(),
            labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        };
        let pod = [label("app", "web"), label("tier", "front")].into();
        for (rule, selectors, namespace, expected) in [
            ("the namespace", vec![selector("shop", &[])], "shop", true),
            ("another namespace", vec![selector("shop", &[])], "shops", false),
            (
                "all labels",
                vec![selector("shop", &[("app", "web"), ("tier", "front")])],
                "shop",
                true,
            ),
            (
                "one label differs",
                vec![selector("shop", &[("app", "web"), ("tier", "x")])],
                "shop",
                false,
            ),
            ("any selector", vec![selector("a", &[]), selector("shop", &[])], "shop", true),
            ("no selector", vec![], "shop", false),
            ("any characters", vec![selector("prod-*", &[])], "prod-eu-1", true),
            ("no characters", vec![selector("prod*", &[])], "prod", true),
            ("in between", vec![selector("p*d-*1", &[])], "prod-eu-1", true),
            ("one character", vec![selector("sho?", &[])], "shop", true),
            ("exactly one character", vec![selector("shop?", &[])], "shop", false),
            ("values of labels", vec![selector("*", &[("app", "w?b")])], "x", true),
            ("keys of labels", vec![selector("*", &[("a*", "web")])], "x", true),
        ] {
            let profile = FargateProfile { name: "p".into(), origin: None, selectors };
            assert_eq!(profile.selects(namespace, &pod), expected, "{rule}");
        }
    }

    #[test]
    fn profile_named_by_pod_must_still_match() {
        let profile = |name: &str, namespace: &str| FargateProfile {
            name: name.to_owned(),
            origin: None,
            selectors: vec![ProfileSelector { namespace: namespace.to_owned(), labels: [].into() }],
        };
        let profiles = [profile("b", "shop"), profile("a", "*"), profile("c", "other")];
        let chosen = |labels: &Labels| {
            select_profile(&profiles, "shop", labels).map(|profile| profile.name.as_str())
        };
        assert_eq!(chosen(&Labels::new()), Some("a"));
        assert_eq!(chosen(&[label(PROFILE, "b")].into()), Some("b"));
        assert_eq!(chosen(&[label(PROFILE, "c")].into()), None);
        assert_eq!(chosen(&[label(PROFILE, "none")].into()), None);
    }
}
