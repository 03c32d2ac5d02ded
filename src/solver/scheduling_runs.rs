//! Runs of the placement simulation: arrival orders of pods and scheduler versions.

mod arrival_order;

use std::collections::BTreeSet;

use arrival_order::{ArrivalOrder, SizeResource};
pub(super) use arrival_order::{Arrivals, DrainingPods, draining_pods, has_patient_pods};

use crate::demand::PodGroup;
use crate::model::desired::WorstCase;
use crate::model::ids::NodeName;
use crate::scheduler::{BalanceScoring, Scheduler, TieBreaking};

/// One simulated run: the arrival order of pods and the rules of a scheduler version.
#[derive(Debug, Clone, Copy)]
pub(super) struct SchedulingRun {
    order: ArrivalOrder,
    version: SchedulerVersion,
    /// Number of the tie-breaking sample; 0 for a required run.
    sample: u64,
}

/// Scheduler rules that differ between versions; a cluster may run any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SchedulerVersion {
    /// Kubernetes up to 1.35.
    V135,
    /// Kubernetes 1.36, which changed balance scoring and breaks ties by node order. The node order
    /// is random here, because the names of new nodes are unknown.
    V136,
    /// Kubernetes 1.36 with random ties, as with scheduler extenders.
    V136RandomTies,
}

/// Returns the nodes with pods of planned workloads. Any other node is empty. A pod that moves
/// elsewhere, or that its controller is predicted to delete, still occupies its current node.
pub(super) fn occupied_nodes(groups: &[PodGroup]) -> BTreeSet<&NodeName> {
    let planned = groups.iter().filter(|group| group.counts.planned > 0);
    planned.flat_map(|group| group.running.keys().chain(group.ending.keys())).collect()
}

/// Runs that fail most often come first.
const RUNS: [SchedulingRun; 20] = [
    SchedulingRun {
        order: ArrivalOrder::Declared,
        version: SchedulerVersion::V136RandomTies,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::LargestFirst(SizeResource::Cpu),
        version: SchedulerVersion::V136,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::SmallestFirst(SizeResource::Cpu),
        version: SchedulerVersion::V136,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::LargestFirst(SizeResource::Memory),
        version: SchedulerVersion::V136,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::SmallestFirst(SizeResource::Memory),
        version: SchedulerVersion::V136,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::SmallestFirst(SizeResource::Cpu),
        version: SchedulerVersion::V135,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::SmallestFirst(SizeResource::Memory),
        version: SchedulerVersion::V135,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::LargestFirst(SizeResource::Cpu),
        version: SchedulerVersion::V135,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::LargestFirst(SizeResource::Memory),
        version: SchedulerVersion::V135,
        sample: 0,
    },
    SchedulingRun { order: ArrivalOrder::Declared, version: SchedulerVersion::V135, sample: 0 },
    SchedulingRun {
        order: ArrivalOrder::Shuffled(1),
        version: SchedulerVersion::V136RandomTies,
        sample: 0,
    },
    SchedulingRun { order: ArrivalOrder::Shuffled(2), version: SchedulerVersion::V135, sample: 0 },
    SchedulingRun { order: ArrivalOrder::Declared, version: SchedulerVersion::V136, sample: 0 },
    SchedulingRun { order: ArrivalOrder::Interleaved, version: SchedulerVersion::V136, sample: 0 },
    SchedulingRun { order: ArrivalOrder::Interleaved, version: SchedulerVersion::V135, sample: 0 },
    SchedulingRun { order: ArrivalOrder::Shuffled(3), version: SchedulerVersion::V136, sample: 0 },
    SchedulingRun {
        order: ArrivalOrder::LargestFirst(SizeResource::Cpu),
        version: SchedulerVersion::V136RandomTies,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::SmallestFirst(SizeResource::Cpu),
        version: SchedulerVersion::V136RandomTies,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::LargestFirst(SizeResource::Memory),
        version: SchedulerVersion::V136RandomTies,
        sample: 0,
    },
    SchedulingRun {
        order: ArrivalOrder::SmallestFirst(SizeResource::Memory),
        version: SchedulerVersion::V136RandomTies,
        sample: 0,
    },
];

/// Runs in a likely order, for fleets that hold unlikely orders by contingency only: as declared, and
/// in turn by workload. A large fleet passes the first few.
const LIKELY_RUNS: [SchedulingRun; 5] = [RUNS[0], RUNS[13], RUNS[9], RUNS[14], RUNS[12]];

/// Work limit of all tie-breaking samples in pods times nodes, and their maximum number.
const SAMPLES_WORK: u64 = 20_000_000;
const SAMPLES_MAX: u64 = 120;

/// Seed of the first sampled shuffle.
const FIRST_SHUFFLE: u64 = 10;

/// Sampled orders, for each version in turn. Each shuffle has another seed.
const SAMPLED_ORDERS: [ArrivalOrder; 9] = [
    ArrivalOrder::SmallestFirst(SizeResource::Memory),
    ArrivalOrder::LargestFirst(SizeResource::Cpu),
    ArrivalOrder::SmallestFirst(SizeResource::Cpu),
    ArrivalOrder::Shuffled(0),
    ArrivalOrder::LargestFirst(SizeResource::Memory),
    ArrivalOrder::Interleaved,
    ArrivalOrder::Shuffled(0),
    ArrivalOrder::Declared,
    ArrivalOrder::Shuffled(0),
];

/// Additional run for staggered node readiness.
const STAGGERED_RUNS: [SchedulingRun; 1] = [SchedulingRun {
    order: ArrivalOrder::AsNodesBecomeReady,
    version: SchedulerVersion::V136RandomTies,
    sample: 0,
}];

/// Additional runs for pods of a higher priority that never preempt. Pods that are created earlier
/// are bound before them, whatever their priority.
const PATIENT_RUNS: [SchedulingRun; 2] = [
    SchedulingRun {
        order: ArrivalOrder::PatientLast,
        version: SchedulerVersion::V136RandomTies,
        sample: 0,
    },
    SchedulingRun { order: ArrivalOrder::PatientLast, version: SchedulerVersion::V135, sample: 0 },
];

/// Orders of arrival that a fleet has to place all pods in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CoveredOrders {
    /// All of them.
    All,
    /// Those of a delivery tool and of controllers.
    Likely,
    /// The likely ones in which the priority of pods decides.
    LikelyByPriority,
    /// Only as declared, with one version of the scheduler.
    Declared,
}

impl CoveredOrders {
    /// Returns true if a fleet has to pass the run.
    pub(super) fn covers(self, run: &SchedulingRun) -> bool {
        let is_declared = run.order == ArrivalOrder::Declared;
        let is_by_priority = is_declared || run.order == ArrivalOrder::Interleaved;
        match self {
            Self::All => true,
            Self::Likely => is_by_priority || run.order == ArrivalOrder::PatientLast,
            Self::LikelyByPriority => is_by_priority,
            Self::Declared => {
                is_declared && run.version == SchedulerVersion::V136RandomTies && run.sample == 0
            }
        }
    }
}

/// Additional runs for drains.
const DRAIN_RUNS: [SchedulingRun; 2] = [
    SchedulingRun {
        order: ArrivalOrder::Drained,
        version: SchedulerVersion::V136RandomTies,
        sample: 0,
    },
    SchedulingRun { order: ArrivalOrder::Drained, version: SchedulerVersion::V135, sample: 0 },
];

/// Number of runs by maximum work in pods times nodes. In a small fleet a single pod decides, and a
/// run is cheap.
const RUNS_BY_WORK: [(u64, usize); 2] = [(5_000_000, RUNS.len()), (20_000_000, 5)];

/// Minimum number of runs for any fleet.
const RUNS_MIN: usize = 3;

/// Events that happen while pods arrive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Events {
    /// Some nodes are drained.
    pub has_drains: bool,
    /// Some nodes become ready later than others.
    pub has_staggered_readiness: bool,
    /// Some pods have a higher priority and never preempt.
    pub has_patient_pods: bool,
}

impl Events {
    /// All nodes are ready, none is drained, and the priority decides.
    pub(super) const NONE: Self =
        Self { has_drains: false, has_staggered_readiness: false, has_patient_pods: false };
}

/// Returns the runs for this number of pods and nodes. The largest fleets skip the runs with
/// events.
pub(super) fn required_runs(
    pods: u64,
    nodes: usize,
    events: Events,
    worst_case: WorstCase,
) -> Vec<SchedulingRun> {
    let work = pods.saturating_mul(u64::try_from(nodes).unwrap_or(u64::MAX));
    let made = RUNS_BY_WORK.iter().find(|(most, _)| work <= *most).map(|(_, made)| *made);
    let drains = if events.has_drains && made.is_some() { &DRAIN_RUNS[..] } else { &[] };
    let early =
        if events.has_staggered_readiness && made.is_some() { &STAGGERED_RUNS[..] } else { &[] };
    let runs = match worst_case {
        WorstCase::Capacity => &RUNS[..],
        WorstCase::Contingency => &LIKELY_RUNS[..],
    };
    let patient = if events.has_patient_pods && made.is_some() { &PATIENT_RUNS[..] } else { &[] };
    let runs = runs.iter().take(made.unwrap_or(RUNS_MIN));
    runs.chain(patient).chain(early).chain(drains).copied().collect()
}

/// Returns the tie-breaking samples for this number of pods and nodes: at least `least`, whatever
/// the work. A contingency covers all of them.
pub(super) fn tie_break_samples(
    pods: u64,
    nodes: usize,
    least: u64,
    worst_case: WorstCase,
) -> Vec<SchedulingRun> {
    if worst_case == WorstCase::Contingency {
        return Vec::new();
    }
    let work = pods.saturating_mul(u64::try_from(nodes).unwrap_or(u64::MAX)).max(1);
    let rules = [SchedulerVersion::V136, SchedulerVersion::V135, SchedulerVersion::V136RandomTies];
    let rules = rules.into_iter().flat_map(|rules| [rules; SAMPLED_ORDERS.len()]).cycle();
    let orders = SAMPLED_ORDERS.into_iter().cycle();
    let samples = 1..=(SAMPLES_WORK / work).clamp(least, SAMPLES_MAX);
    let run = |(sample, (order, rules))| {
        let order = if order == ArrivalOrder::Shuffled(0) {
            ArrivalOrder::Shuffled(FIRST_SHUFFLE + sample)
        } else {
            order
        };
        SchedulingRun { order, version: rules, sample }
    };
    samples.zip(orders.zip(rules)).map(run).collect()
}

pub(super) fn planned_pods(groups: &[PodGroup]) -> u64 {
    groups.iter().map(|group| u64::from(group.counts.planned)).fold(0, u64::saturating_add)
}

impl SchedulingRun {
    /// Returns `scheduler` with the rules and the seed of this run.
    pub(super) fn configure(self, scheduler: Scheduler) -> Scheduler {
        let scheduler = scheduler.with_seed(self.seed());
        match self.version {
            SchedulerVersion::V135 => scheduler.with_balance(BalanceScoring::Evenness),
            SchedulerVersion::V136RandomTies => scheduler.with_balance(BalanceScoring::Improvement),
            SchedulerVersion::V136 => scheduler
                .with_balance(BalanceScoring::Improvement)
                .with_ties(TieBreaking::HeapOrder)
                .with_nodes_shuffled(self.seed()),
        }
    }

    /// Returns the random seed, which is different for each run.
    fn seed(self) -> u64 {
        let order = match self.order {
            ArrivalOrder::Declared => 0,
            ArrivalOrder::LargestFirst(SizeResource::Cpu) => 1,
            ArrivalOrder::SmallestFirst(SizeResource::Cpu) => 2,
            ArrivalOrder::Shuffled(seed) => 2 + seed,
            ArrivalOrder::Drained => 5,
            ArrivalOrder::AsNodesBecomeReady => 6,
            ArrivalOrder::LargestFirst(SizeResource::Memory) => 7,
            ArrivalOrder::SmallestFirst(SizeResource::Memory) => 8,
            ArrivalOrder::Interleaved => 9,
            ArrivalOrder::PatientLast => 10,
        };
        let run = match self.version {
            SchedulerVersion::V136RandomTies => 2 * order,
            SchedulerVersion::V135 => 2 * order + 1,
            SchedulerVersion::V136 => 1_000 + order,
        };
        10_000 * self.sample + run
    }

    fn name(self) -> String {
        let order = match self.order {
            ArrivalOrder::Declared => "declared".to_owned(),
            ArrivalOrder::LargestFirst(SizeResource::Cpu) => "most-cpu-first".to_owned(),
            ArrivalOrder::SmallestFirst(SizeResource::Cpu) => "least-cpu-first".to_owned(),
            ArrivalOrder::LargestFirst(SizeResource::Memory) => "most-memory-first".to_owned(),
            ArrivalOrder::SmallestFirst(SizeResource::Memory) => "least-memory-first".to_owned(),
            ArrivalOrder::Interleaved => "interleaved".to_owned(),
            ArrivalOrder::Shuffled(seed) => format!("shuffled-{seed}"),
            ArrivalOrder::Drained => "drained".to_owned(),
            ArrivalOrder::AsNodesBecomeReady => "as-nodes-come-up".to_owned(),
            ArrivalOrder::PatientLast => "never-preempting-last".to_owned(),
        };
        let version = match self.version {
            SchedulerVersion::V135 => "1.35",
            SchedulerVersion::V136 => "1.36",
            SchedulerVersion::V136RandomTies => "1.36, ties drawn",
        };
        format!("{order} (kube-scheduler {version})")
    }

    /// Returns the arriving pods by group in arrival order.
    pub(super) fn queue(self, groups: &[PodGroup], arrivals: &Arrivals) -> Vec<usize> {
        self.order.queue(groups, arrivals)
    }

    pub(super) fn is_staggered(self) -> bool {
        self.order == ArrivalOrder::AsNodesBecomeReady
    }

    pub(super) fn is_drain(self) -> bool {
        self.order == ArrivalOrder::Drained
    }
}

/// Workloads times nodes up to which default spreading is simulated. It scores each workload
/// separately on each node.
const DEFAULT_SPREAD_WORK_MAX: usize = 4_000_000;

pub(super) fn simulates_default_spread(groups: usize, nodes: usize) -> bool {
    groups.saturating_mul(nodes) <= DEFAULT_SPREAD_WORK_MAX
}

/// Returns the names of the runs required for a plan of this size.
pub(super) fn required_run_names(
    groups: &[PodGroup],
    nodes: usize,
    events: Events,
    worst_case: WorstCase,
) -> Vec<String> {
    names(&required_runs(planned_pods(groups), nodes, events, worst_case), groups, nodes)
}

/// Returns the names of runs over this number of nodes.
pub(super) fn names(runs: &[SchedulingRun], groups: &[PodGroup], nodes: usize) -> Vec<String> {
    let suffix = if simulates_default_spread(groups.len(), nodes) {
        ""
    } else {
        ", without default spreading"
    };
    let sample = |run: &SchedulingRun| match run.sample {
        0 => String::new(),
        sample => format!(", draw {sample}"),
    };
    runs.iter().map(|run| format!("{}{}{suffix}", run.name(), sample(run))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::{Demand, DemandMode};
    use crate::testing::Scenario;

    #[test]
    fn samples_have_distinct_seeds_and_are_bounded_by_work() {
        let seeds =
            |runs: &[SchedulingRun]| runs.iter().map(|run| run.seed()).collect::<BTreeSet<u64>>();
        let events =
            Events { has_drains: true, has_staggered_readiness: true, has_patient_pods: true };
        let all = [
            required_runs(100, 10, events, WorstCase::Capacity),
            tie_break_samples(100, 10, 0, WorstCase::Capacity),
        ]
        .concat();
        assert_eq!(all.len(), RUNS.len() + 5 + usize::try_from(SAMPLES_MAX).expect("small"));
        assert_eq!(seeds(&all).len(), all.len());
        let samples_of =
            |pods, nodes, least| tie_break_samples(pods, nodes, least, WorstCase::Capacity);
        let orders = |samples: &[SchedulingRun]| {
            samples.iter().map(|run| run.name()).collect::<BTreeSet<_>>()
        };
        assert_eq!(samples_of(2_000, 1_000, 0).len(), 10);
        assert_eq!(orders(&samples_of(2_000, 1_000, 0)).len(), 10);
        assert!(samples_of(100_000, 1_000, 0).is_empty());
        assert_eq!(samples_of(100_000, 1_000, 4).len(), 4);
    }

    #[test]
    fn contingency_leaves_out_unlikely_orders_and_samples() {
        let events =
            Events { has_drains: true, has_staggered_readiness: true, has_patient_pods: true };
        let names = |worst_case| -> BTreeSet<String> {
            let runs = required_runs(100, 10, events, worst_case);
            let names: BTreeSet<String> = runs.iter().map(|run| run.name()).collect();
            assert_eq!(names.len(), runs.len(), "no run comes twice");
            names
        };
        let (likely, all) = (names(WorstCase::Contingency), names(WorstCase::Capacity));
        let left_out: Vec<&String> = all.difference(&likely).collect();
        assert!(likely.is_subset(&all));
        let by_size_or_chance =
            |name: &&String| name.contains("-first") || name.contains("shuffled");
        assert_eq!(left_out.len(), 15);
        assert!(left_out.iter().all(by_size_or_chance), "{left_out:?}");
        // The few runs of a large fleet are of different orders.
        let few = required_runs(1_000_000, 1_000, Events::NONE, WorstCase::Contingency);
        let orders: Vec<ArrivalOrder> = few.iter().map(|run| run.order).collect();
        let expected = [ArrivalOrder::Declared, ArrivalOrder::Interleaved, ArrivalOrder::Declared];
        assert_eq!(orders, expected);
        assert!(tie_break_samples(100, 10, 0, WorstCase::Contingency).is_empty());
    }

    #[test]
    fn node_is_occupied_only_by_pods_of_planned_workloads() {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 1_024);
        scenario.step(1);
        let nodes: Vec<NodeName> = scenario.observed.nodes.keys().cloned().collect();
        assert_eq!(nodes.len(), 1);
        for (replicas, expected) in [(2, nodes), (0, Vec::new())] {
            scenario.scale(replicas);
            let demand = Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live);
            let found: Vec<NodeName> =
                occupied_nodes(&demand.groups).into_iter().cloned().collect();
            assert_eq!(found, expected, "{replicas} planned");
        }
    }
}
