//! The diverse pod mix as a repository, planned from an empty world.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use fleetwright::catalog::{Catalog, SyntheticType};
use fleetwright::model::units::MicroUsd;
use fleetwright::plan::wire::DiagnosticSeverity;

use crate::diverse_pods::{Pod, Rule, pods};
use crate::{RUNS, median, run};

/// Number of pods, and the pods per second that Karpenter's scheduler planned on two cores. See
/// [`KARPENTER_NOTE`].
const SIZES: [(usize, u32); 3] = [(1_000, 376), (5_000, 380), (10_000, 280)];

/// Where and when the numbers of Karpenter were measured.
const KARPENTER_NOTE: &str =
    "* pods/s of Karpenter's `Solve` (v1.13) on another host, by 2026-11-21: not of this run";

const ZONES: [&str; 3] = ["test-zone-1", "test-zone-2", "test-zone-3"];
const TYPES: i64 = 400;

const FLEET: &str = "apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: mix }
spec:
  cluster: { name: mix, region: us-east-1, zones: [test-zone-1, test-zone-2, test-zone-3] }
";

const POOL: &str = "apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: mix }
spec:
  template:
    spec:
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: mix }
      requirements:
        - { key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand] }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: mix }
spec:
  amiSelectorTerms: [{ alias: al2023@latest }]
  role: mix
  subnetSelectorTerms: [{ tags: { a: b } }]
  securityGroupSelectorTerms: [{ tags: { a: b } }]
  kubelet:
    kubeReserved: { cpu: 100m, memory: 10Mi }
    evictionHard: { memory.available: 0Mi }
";

/// Prints a row for each size with the median time of the planner.
pub(crate) fn rows() -> anyhow::Result<()> {
    println!(
        "{:<28} {:>7} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9} {:>10} {:>7}",
        "diverse mix, whole plan",
        "pods",
        "groups",
        "nodes",
        "unplaced",
        "plan",
        "judge",
        "pods/s",
        "Karpenter*",
        "errors"
    );
    for (count, karpenter) in SIZES {
        row(count, karpenter)?;
    }
    println!("{KARPENTER_NOTE}");
    Ok(())
}

fn row(count: usize, karpenter: u32) -> anyhow::Result<()> {
    let root = tempfile::tempdir()?;
    let groups = write_tree(root.path(), &pods(count, 42))?;
    let catalog = catalog();
    let (mut times, mut last) = (BTreeMap::new(), None);
    for _ in 0..RUNS {
        last = Some(run(root.path(), Some(&catalog), &mut times)?);
    }
    let plan = last.expect("at least one run");
    let mut plans = times["plan"].clone();
    plans.sort();
    let seconds = plans[RUNS / 2].as_secs_f64();
    let pods = &plan.capacity.pods;
    println!(
        "{:<28} {:>7} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9.0} {:>10} {:>7}",
        "",
        pods.total,
        groups,
        plan.summary.nodes.after,
        pods.unschedulable,
        median(&mut times, "plan"),
        median(&mut times, "judge"),
        f64::from(u32::try_from(count)?) / seconds,
        karpenter,
        plan.capacity
            .diagnostics
            .iter()
            .filter(|d| d.severity == DiagnosticSeverity::Error)
            .count(),
    );
    Ok(())
}

/// Writes one Deployment for each group of equal pods. Returns the number of Deployments.
pub(crate) fn write_tree(root: &Path, pods: &[Pod]) -> anyhow::Result<usize> {
    let mut groups: BTreeMap<Pod, usize> = BTreeMap::new();
    for pod in pods {
        *groups.entry(*pod).or_default() += 1;
    }
    let mut text = String::new();
    for (index, (pod, replicas)) in groups.iter().enumerate() {
        write_deployment(&mut text, index, pod, *replicas)?;
    }
    std::fs::write(root.join("fleetwright.yaml"), FLEET)?;
    std::fs::write(root.join("pool.yaml"), POOL)?;
    std::fs::write(root.join("pods.yaml"), text)?;
    Ok(groups.len())
}

fn write_deployment(
    text: &mut String,
    index: usize,
    pod: &Pod,
    replicas: usize,
) -> anyhow::Result<()> {
    let spread = |key: &str, value: &str| {
        format!(
            "      topologySpreadConstraints: [{{ maxSkew: 1, topologyKey: {key}, \
             whenUnsatisfiable: DoNotSchedule, \
             labelSelector: {{ matchLabels: {{ my-label: {value} }} }} }}]\n"
        )
    };
    let affinity = |kind: &str, label: &str, value: &str, key: &str| {
        format!(
            "      affinity: {{ {kind}: {{ requiredDuringSchedulingIgnoredDuringExecution: \
             [{{ topologyKey: {key}, \
             labelSelector: {{ matchLabels: {{ {label}: {value} }} }} }}] }} }}\n"
        )
    };
    let (zone, host) = ("topology.kubernetes.io/zone", "kubernetes.io/hostname");
    let (label, value, rule) = match pod.rule {
        Rule::Plain(value) => ("my-label", value, String::new()),
        Rule::ZoneSpread(value, of) => ("my-label", value, spread(zone, of)),
        Rule::HostSpread(value, of) => ("my-label", value, spread(host, of)),
        Rule::ZoneAffinity(value) => {
            ("my-affininity", value, affinity("podAffinity", "my-affininity", value, zone))
        }
        Rule::HostAntiAffinity => {
            ("app", "nginx", affinity("podAntiAffinity", "app", "nginx", host))
        }
    };
    write!(
        text,
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: mix-{index}, namespace: default }}\n\
         spec:\n  replicas: {replicas}\n  selector: {{ matchLabels: {{ {label}: {value} }} }}\n  template:\n    \
         metadata: {{ labels: {{ {label}: {value} }} }}\n    spec:\n{rule}      containers:\n        \
         - name: app\n          image: app\n          resources: {{ requests: {{ cpu: {}m, memory: {}Mi }} }}\n",
        pod.cpu, pod.memory
    )?;
    Ok(())
}

/// Returns the types of Karpenter's fake provider. Type n has n vCPU, 2n GiB and room for 10n pods,
/// at one price for spot in two zones and on-demand in three. The listed memory includes the share
/// that a virtual instance loses, so that 2n GiB remain.
pub(crate) fn catalog() -> Catalog {
    let names: Vec<String> = (1..=TYPES).map(|n| format!("fake{n}.it")).collect();
    let types: Vec<SyntheticType<'_>> = names
        .iter()
        .zip(1..=TYPES)
        .map(|(name, n)| {
            let price = MicroUsd(100_000 * n + 214_748 * n);
            SyntheticType {
                enis: 1,
                ips_per_eni: 10 * n - 1,
                spot_price: Some(price),
                spot_zones: Some(&ZONES[..2]),
                ..SyntheticType::new(name, n, 2048 * n * 1000 / 925 + 1, price)
            }
        })
        .collect();
    Catalog::synthetic("us-east-1", &ZONES, &types)
}
