//! Decisions from declared and observed replicas.

use jiff::SignedDuration;

use crate::demand::{Demand, DemandMode};
use crate::model::desired::{
    Behavior, BufferScaling, Concurrency, CronSchedule, CronTrigger, EventDriven, Fallback,
    FallbackBehavior, Horizontal, LiveReplicas, PauseMode, Scale, ScaleTarget, Scaler, ScalerRule,
    ScalingRules, Schedule, SelectPolicy, Unresolved, Workload,
};
use crate::model::ids::{Origin, WorkloadId, WorkloadKind};
use crate::model::observed::{LiveEvents, LiveScale, PodPhase};
use crate::testing::{Scenario, workload_id};

/// Returns a scenario with one workload of this kind and scale.
fn scenario(kind: WorkloadKind, scale: Scale) -> Scenario {
    let mut scenario = Scenario::new(&["m5.large"], 500, 1);
    let workload = scenario.desired.workloads.remove(&workload_id()).expect("declared");
    let id = WorkloadId { kind, ..workload_id() };
    let workload = Workload { id: id.clone(), scale, ..workload };
    scenario.desired.workloads.insert(id, workload);
    scenario
}

/// Adds an unbound pod of the only workload.
fn pod(scenario: &mut Scenario, phase: PodPhase) {
    let owner = scenario.desired.workloads.keys().next().cloned();
    scenario.bind("n1");
    let pod = scenario.last_pod();
    (pod.owner, pod.node, pod.phase) = (owner, None, phase);
}

fn planned(scenario: &Scenario) -> u32 {
    let demand = Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live);
    demand.groups.iter().map(|group| group.counts.planned).sum()
}

fn nightly(suspended: bool) -> Scale {
    let due = Schedule::parse("0 2 * * *").expect("cron");
    let schedule = CronSchedule { schedule: due, concurrency: Concurrency::Forbid, deadline: None };
    Scale::CronJob { pods: 3, suspended, schedule }
}

#[test]
fn unbound_pods_of_a_run_count_even_if_suspended() {
    for suspended in [false, true] {
        let mut scenario = scenario(WorkloadKind::CronJob, nightly(suspended));
        assert_eq!(planned(&scenario), 0, "nothing is due");
        pod(&mut scenario, PodPhase::Pending);
        pod(&mut scenario, PodPhase::Running);
        assert_eq!(planned(&scenario), 2, "suspended: {suspended}");
    }
    let mut scenario = scenario(WorkloadKind::CronJob, nightly(true));
    scenario.desired.lead_time = SignedDuration::from_hours(24);
    assert_eq!(planned(&scenario), 0, "no further runs");
}

#[test]
fn job_needs_pods_until_its_completions_succeeded() {
    let scale = Scale::Job { pods: 2, completions: Some(10), suspended: false };
    let mut scenario = scenario(WorkloadKind::Job, scale);
    for finished in 0..12_u32 {
        assert_eq!(
            planned(&scenario),
            2.min(10_u32.saturating_sub(finished)),
            "{finished} are done"
        );
        pod(&mut scenario, PodPhase::Succeeded);
    }
}

#[test]
fn pods_of_a_suspended_job_count_while_they_exist() {
    let scale = Scale::Job { pods: 3, completions: Some(3), suspended: true };
    let mut scenario = scenario(WorkloadKind::Job, scale);
    assert_eq!(planned(&scenario), 0);
    pod(&mut scenario, PodPhase::Running);
    pod(&mut scenario, PodPhase::Pending);
    assert_eq!(planned(&scenario), 2, "Kueue has resumed it");
}

#[test]
fn live_number_counts_if_the_delivery_tool_leaves_it_alone() {
    for (rule, live, expected) in [
        (Some(LiveReplicas::Stay), 9, 9),
        (Some(LiveReplicas::Stay), 1, 1),
        (Some(LiveReplicas::MayStay), 9, 9),
        (Some(LiveReplicas::MayStay), 1, 2),
        (Some(LiveReplicas::Stay), 0, 2),
        (None, 9, 2),
    ] {
        let mut scenario = scenario(WorkloadKind::Deployment, Scale::Replicas(2));
        scenario.desired.live_replicas.extend(rule.map(|rule| (workload_id(), rule)));
        for _ in 0..live {
            pod(&mut scenario, PodPhase::Running);
        }
        assert_eq!(planned(&scenario), expected, "{rule:?} {live}");
    }
}

#[test]
fn an_hpa_does_not_scale_a_target_without_replicas() {
    let of = |replicas: u32, live: Option<u32>| {
        let mut scenario = scenario(WorkloadKind::Deployment, Scale::Replicas(replicas));
        let WorkloadId { namespace, name, kind } = workload_id();
        scenario.desired.scalers = vec![Scaler {
            object: "HorizontalPodAutoscaler other/inflate".to_owned(),
            origin: Origin::new("a.yaml", 9),
            namespace,
            name: "inflate".to_owned(),
            targets: vec![ScaleTarget { kind: kind.as_str().to_owned(), name: name.to_string() }],
            rule: ScalerRule::Horizontal(Horizontal {
                min: 3,
                max: 9,
                metrics: Vec::new(),
                behavior: None,
            }),
        }];
        for _ in 0..live.unwrap_or(0) {
            pod(&mut scenario, PodPhase::Running);
        }
        planned(&scenario)
    };
    assert_eq!((of(0, None), of(1, None), of(0, Some(4))), (0, 3, 4));
}

#[test]
fn unreadable_workload_is_resolved_by_an_autoscaler_alone() {
    let mut scenario = scenario(WorkloadKind::Deployment, Scale::Replicas(0));
    let unresolved = Unresolved {
        origin: Origin::new("a.yaml", 1),
        object: "Rollout web/api".to_owned(),
        reason: "its pods are made from a `workloadRef`".to_owned(),
    };
    scenario.desired.unresolved.push(unresolved);
    let open = |scenario: &Scenario| {
        Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live).unresolved.len()
    };
    assert_eq!(open(&scenario), 1);
    let (kind, name) = ("Rollout".to_owned(), "api".to_owned());
    let target = ScaleTarget { kind: kind.clone(), name: name.clone() };
    let scale = LiveScale { namespace: "web".into(), kind, name, replicas: 3 };
    scenario.observed.scaling.scales.push(scale);
    assert_eq!(open(&scenario), 1, "the repository may have changed its number just now");
    let rule = Horizontal { min: 1, max: 5, metrics: Vec::new(), behavior: None };
    for (rule, expected) in
        [(ScalerRule::Unknown("x".to_owned()), 1), (ScalerRule::Horizontal(rule), 0)]
    {
        scenario.desired.scalers = vec![Scaler {
            object: "HorizontalPodAutoscaler web/api".to_owned(),
            origin: Origin::new("a.yaml", 9),
            namespace: "web".into(),
            name: "api".to_owned(),
            targets: vec![target.clone()],
            rule,
        }];
        let problems =
            Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live).unresolved;
        assert_eq!(problems.len(), expected);
    }
}

#[test]
fn oversized_buffer_is_unresolved() {
    for (replicas, expected) in [(1_000_000, 0), (u32::MAX, 1)] {
        let scaling = BufferScaling {
            replicas: Some(replicas),
            percentage: None,
            limits: [].into(),
            target: None,
        };
        let scenario = scenario(WorkloadKind::CapacityBuffer, Scale::Buffer(scaling));
        let demand = Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live);
        assert_eq!((demand.unresolved.len(), demand.groups.len()), (expected, 1 - expected));
    }
}

#[test]
fn disabled_directions_bound_cron_windows() {
    use SelectPolicy::{Disabled, Max};
    let rules =
        |select| ScalingRules { window: None, select, policies: Vec::new(), tolerance_milli: None };
    let closed =
        |up: SelectPolicy, down: SelectPolicy| Some(Behavior { up: rules(up), down: rules(down) });
    let counts = |paused: PauseMode, behavior: Option<Behavior>, window: &str, live: u32| {
        let mut scenario = scenario(WorkloadKind::Deployment, Scale::Replicas(1));
        let WorkloadId { namespace, name, kind } = workload_id();
        let schedule = |text: &str| Schedule::parse(text).expect("cron");
        let (start, end) = window.split_once('-').expect("two hours");
        let cron = CronTrigger {
            origin: Origin::new("a.yaml", 1),
            start: schedule(&format!("0 {start} * * *")),
            end: schedule(&format!("0 {end} * * *")),
            desired: 5,
        };
        let rule = EventDriven {
            min: 1,
            max: 10,
            idle: None,
            polling: SignedDuration::from_secs(30),
            cooldown: SignedDuration::from_secs(300),
            stabilization: SignedDuration::from_secs(300),
            behavior,
            fallback: None,
            crons: vec![cron],
            triggers: Vec::new(),
            has_formula: false,
            paused,
            is_forced: false,
        };
        scenario.desired.scalers = vec![Scaler {
            object: "ScaledObject other/inflate".to_owned(),
            origin: Origin::new("a.yaml", 9),
            namespace,
            name: "inflate".to_owned(),
            targets: vec![ScaleTarget { kind: kind.as_str().to_owned(), name: name.to_string() }],
            rule: ScalerRule::EventDriven(rule),
        }];
        for _ in 0..live {
            pod(&mut scenario, PodPhase::Running);
        }
        scenario.observed.taken_at = "2026-11-28T09:00:00Z".parse().expect("a time");
        let demand = Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live);
        let counts = demand.groups[0].counts;
        [counts.floor, counts.live, counts.ceiling]
    };
    for (rule, paused, behavior, window, live, expected) in [
        ("open, inside", PauseMode::No, None, "8-10", 0, [5, 5, 5]),
        ("open, outside", PauseMode::No, None, "6-7", 0, [1, 1, 5]),
        ("scale-out paused", PauseMode::ScaleOut, None, "8-10", 0, [1, 1, 1]),
        ("scale-out paused, 3 run", PauseMode::ScaleOut, None, "8-10", 3, [1, 3, 3]),
        ("up disabled", PauseMode::No, closed(Disabled, Max), "8-10", 2, [1, 2, 2]),
        ("down disabled, outside", PauseMode::No, closed(Max, Disabled), "6-7", 0, [5, 5, 5]),
        ("down disabled, 3 run", PauseMode::No, closed(Max, Disabled), "6-7", 3, [3, 3, 5]),
        ("scale-in paused, outside", PauseMode::ScaleIn, None, "6-7", 0, [5, 5, 5]),
    ] {
        assert_eq!(counts(paused, behavior, window, live), expected, "{rule}");
    }
}

#[test]
fn fallback_of_an_unreadable_trigger_respects_the_bounds() {
    let planned_with = |fallback: Option<u32>, in_fallback: bool| {
        let mut scenario = scenario(WorkloadKind::Deployment, Scale::Replicas(1));
        let WorkloadId { namespace, name, kind } = workload_id();
        let rule = EventDriven {
            min: 1,
            max: 10,
            idle: None,
            polling: SignedDuration::from_secs(30),
            cooldown: SignedDuration::from_secs(300),
            stabilization: SignedDuration::from_secs(300),
            behavior: None,
            fallback: fallback
                .map(|replicas| Fallback { replicas, behavior: FallbackBehavior::Static }),
            crons: Vec::new(),
            triggers: vec!["aws-sqs-queue".to_owned()],
            has_formula: false,
            paused: PauseMode::No,
            is_forced: false,
        };
        scenario.desired.scalers = vec![Scaler {
            object: "ScaledObject other/inflate".to_owned(),
            origin: Origin::new("a.yaml", 9),
            namespace: namespace.clone(),
            name: "inflate".to_owned(),
            targets: vec![ScaleTarget { kind: kind.as_str().to_owned(), name: name.to_string() }],
            rule: ScalerRule::EventDriven(rule),
        }];
        scenario.observed.scaling.event_driven = vec![LiveEvents {
            namespace,
            name: "inflate".to_owned(),
            in_fallback,
            wanted_jobs: None,
            pending_jobs: None,
        }];
        planned(&scenario)
    };
    for (fallback, in_fallback, expected) in
        [(None, true, 1), (Some(6), false, 1), (Some(6), true, 6), (Some(60), true, 10)]
    {
        assert_eq!(
            planned_with(fallback, in_fallback),
            expected,
            "{fallback:?}, in fallback: {in_fallback}"
        );
    }
}
