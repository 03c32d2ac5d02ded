//! The scheduler model alone, for the diverse pod mix on existing nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleetwright::demand::{NodeChoice, PodShape};
use fleetwright::model::ids::{Labels, WorkloadId, WorkloadKind};
use fleetwright::model::pod::{
    Expression, NodeInclusion, PodAffinity, PodAffinityTerm, Selector, TopologySpread,
    WhenUnsatisfiable,
};
use fleetwright::model::requirement::{Operator, Requirements, key, label};
use fleetwright::model::units::{Bytes, MilliCpu, Resources};
use fleetwright::scheduler::{ClassIndex, ScheduleNode, Scheduler};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

use crate::diverse_pods::{Pod, Rule, pods};

/// Number of pods, and of the nodes that Karpenter plans for them.
const SIZES: [(usize, usize); 3] = [(1_000, 200), (5_000, 1_000), (10_000, 2_000)];
const RUNS: usize = 5;

/// The order of the pods, and whether they have an owner and thus default spreading.
struct SchedulerVariant {
    name: &'static str,
    is_shuffled: bool,
    has_owner: bool,
}

const VARIANTS: [SchedulerVariant; 3] = [
    SchedulerVariant { name: "as declared", is_shuffled: false, has_owner: false },
    SchedulerVariant { name: "shuffled", is_shuffled: true, has_owner: false },
    SchedulerVariant { name: "shuffled, default spreading", is_shuffled: true, has_owner: true },
];

/// Prints a row for each size, order and owner setting.
pub(crate) fn rows() {
    println!(
        "{:<28} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "scheduler model",
        "pods",
        "nodes",
        "unplaced",
        "classes",
        "clone",
        "run",
        "tries/pod",
        "ns/try"
    );
    for (count, nodes) in SIZES {
        for variant in &VARIANTS {
            row(variant, count, nodes);
        }
    }
}

fn row(variant: &SchedulerVariant, count: usize, nodes: usize) {
    let mut mix = pods(count, 42);
    if variant.is_shuffled {
        mix.shuffle(&mut Pcg64::seed_from_u64(1));
    }
    let begun = cpu_time();
    let mut scheduler = Scheduler::new((0..nodes).map(node).collect(), &BTreeMap::new(), 1);
    let classes: Vec<ClassIndex> =
        mix.iter().map(|pod| class(&mut scheduler, pod, variant.has_owner)).collect();
    let prepared = cpu_time().saturating_sub(begun);
    let (mut clones, mut runs, mut unplaced, mut tries) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..RUNS {
        let begun = cpu_time();
        let mut scheduler = scheduler.clone();
        clones.push(cpu_time().saturating_sub(begun));
        let begun = cpu_time();
        let left = classes.iter().filter(|class| scheduler.try_schedule(**class, None).is_none());
        unplaced = left.count();
        tries = scheduler.tries();
        runs.push(cpu_time().saturating_sub(begun));
    }
    clones.sort();
    runs.sort();
    let run = runs[RUNS / 2];
    println!(
        "{:<28} {:>7} {:>7} {:>8} {:>9.2} {:>9.2} {:>9.2} {:>9} {:>9.1}",
        variant.name,
        count,
        nodes,
        unplaced,
        prepared.as_secs_f64() * 1e3,
        clones[RUNS / 2].as_secs_f64() * 1e3,
        run.as_secs_f64() * 1e3,
        tries / u64::try_from(count).expect("small"),
        run.as_secs_f64() * 1e9 / f64::from(u32::try_from(tries).expect("fewer than four billion")),
    );
}

/// Returns the CPU time of this thread, which other processes do not affect.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|n| n.parse().ok());
    nanos.map_or_else(wall_time, Duration::from_nanos)
}

/// Returns the time since the first call, if the system does not report CPU time.
fn wall_time() -> Duration {
    static BEGUN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    BEGUN.elapsed()
}

/// Returns a node with about half as much again as five pods request, in one of three zones.
fn node(index: usize) -> ScheduleNode {
    let name = format!("node-{index}");
    let labels = [
        label(key::HOSTNAME, &name),
        label(key::ZONE, ["test-zone-1", "test-zone-2", "test-zone-3"][index % 3]),
    ];
    ScheduleNode {
        name: name.as_str().into(),
        labels: labels.into(),
        taints: Vec::new(),
        allocatable: Resources {
            cpu: MilliCpu(6_000),
            memory: Bytes::gib(12),
            pods: 60,
            ..Resources::default()
        },
        unschedulable: false,
    }
}

fn selects(key: &str, value: &str) -> Selector {
    let values = vec![value.into()];
    Selector(vec![Expression { key: key.into(), operator: Operator::In, values }])
}

fn spread(topology_key: &str, value: &str) -> TopologySpread {
    TopologySpread {
        max_skew: 1,
        topology_key: topology_key.into(),
        when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
        selector: Some(selects("my-label", value)),
        match_label_keys: Vec::new(),
        min_domains: None,
        node_affinity_policy: NodeInclusion::Honor,
        node_taints_policy: NodeInclusion::Ignore,
    }
}

fn term(topology_key: &str, name: &str, value: &str) -> PodAffinity {
    let term = PodAffinityTerm {
        selector: Some(selects(name, value)),
        topology_key: topology_key.into(),
        namespaces: Vec::new(),
        namespace_selector: None,
        match_label_keys: Vec::new(),
        mismatch_label_keys: Vec::new(),
    };
    PodAffinity { required: vec![term], preferred: Vec::new() }
}

fn class(scheduler: &mut Scheduler, pod: &Pod, has_owner: bool) -> ClassIndex {
    let labelled = |key: &str, value: &str| -> Labels { [label(key, value)].into() };
    let (mut spreads, mut affinity, mut anti_affinity) = (vec![], None, None);
    let labels = match pod.rule {
        Rule::Plain(value) => labelled("my-label", value),
        Rule::ZoneSpread(value, of) => {
            spreads.push(spread(key::ZONE, of));
            labelled("my-label", value)
        }
        Rule::HostSpread(value, of) => {
            spreads.push(spread(key::HOSTNAME, of));
            labelled("my-label", value)
        }
        Rule::ZoneAffinity(value) => {
            affinity = Some(term(key::ZONE, "my-affininity", value));
            labelled("my-affininity", value)
        }
        Rule::HostAntiAffinity => {
            anti_affinity = Some(term(key::HOSTNAME, "app", "nginx"));
            labelled("app", "nginx")
        }
    };
    let shape = PodShape {
        namespace: "default".into(),
        labels,
        requests: Resources {
            cpu: MilliCpu(pod.cpu),
            memory: Bytes::mib(pod.memory),
            pods: 1,
            ..Resources::default()
        },
        presumed: Resources::default(),
        nodes: NodeChoice { any_of: vec![Requirements::default()], ..NodeChoice::default() },
        tolerations: vec![],
        host_ports: vec![],
        spread: spreads,
        affinity: affinity.unwrap_or_default(),
        anti_affinity: anti_affinity.unwrap_or_default(),
        volumes: vec![],
        priority: 0,
        preempts: true,
        do_not_disrupt: false,
        unsupported: vec![],
        default_spread: None,
    };
    let owner = WorkloadId {
        namespace: "default".into(),
        name: format!("{:?}-{}-{}", pod.rule, pod.cpu, pod.memory).into(),
        kind: WorkloadKind::Deployment,
    };
    scheduler.class(&Arc::new(shape), has_owner.then_some(&owner))
}
