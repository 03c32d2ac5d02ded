//! What runs, and what is known of it, against what the repository says.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::demand::{Demand, DemandMode};
use crate::model::desired::{
    BufferScaling, Concurrency, CronSchedule, EventDriven, Fallback, Horizontal, PauseMode, Scale,
    ScaleTarget, Scaler, ScalerRule, Schedule, Unresolved, Workload,
};
use crate::model::ids::{Origin, WorkloadId, WorkloadKind};
use crate::model::observed::{LiveEvents, LiveScale, PodPhase};
use crate::testing::{Story, workload_id};

/// A story whose only workload is of this kind and scale.
fn story(kind: WorkloadKind, scale: Scale) -> Story {
    let mut story = Story::new(&["m5.large"], 500, 1);
    let workload = story.desired.workloads.remove(&workload_id()).expect("declared");
    let id = WorkloadId { kind, ..workload_id() };
    let workload = Workload { id: id.clone(), scale, ..workload };
    story.desired.workloads.insert(id, workload);
    story
}

/// Adds a pod of the only workload, unbound.
fn pod(story: &mut Story, phase: PodPhase) {
    let owner = story.desired.workloads.keys().next().cloned();
    story.bind("n1".into());
    let pod = Arc::make_mut(story.observed.pods.last_mut().expect("bound"));
    (pod.owner, pod.node, pod.phase) = (owner, None, phase);
}

fn planned(story: &Story) -> u32 {
    let demand = Demand::build(&story.desired, &story.observed, DemandMode::Live);
    demand.groups.iter().map(|group| group.counts.planned).sum()
}

fn nightly(suspended: bool) -> Scale {
    let due = Schedule::parse("0 2 * * *").expect("cron");
    let schedule = CronSchedule { schedule: due, concurrency: Concurrency::Forbid, deadline: None };
    Scale::CronJob { pods: 3, suspended, schedule }
}

#[test]
fn pods_of_a_run_count_before_they_are_bound_and_when_their_schedule_is_suspended() {
    for suspended in [false, true] {
        let mut story = story(WorkloadKind::CronJob, nightly(suspended));
        assert_eq!(planned(&story), 0, "nothing is due");
        pod(&mut story, PodPhase::Pending);
        pod(&mut story, PodPhase::Running);
        assert_eq!(planned(&story), 2, "suspended: {suspended}");
    }
    let mut story = story(WorkloadKind::CronJob, nightly(true));
    story.desired.lead_time = SignedDuration::from_hours(24);
    assert_eq!(planned(&story), 0, "no further runs");
}

#[test]
fn a_job_keeps_its_pods_until_all_of_its_completions_are_had() {
    let scale = Scale::Job { pods: 2, completions: Some(10), suspended: false };
    let mut story = story(WorkloadKind::Job, scale);
    for finished in 0..12_u32 {
        assert_eq!(planned(&story), 2.min(10_u32.saturating_sub(finished)), "{finished} are done");
        pod(&mut story, PodPhase::Succeeded);
    }
}

#[test]
fn what_could_not_be_read_stays_unresolved_unless_an_autoscaler_owns_its_number() {
    let mut story = story(WorkloadKind::Deployment, Scale::Replicas(0));
    let unresolved = Unresolved {
        origin: Origin::new("a.yaml", 1),
        object: "Rollout web/api".to_owned(),
        reason: "its pods are made from a `workloadRef`".to_owned(),
    };
    story.desired.unresolved.push(unresolved);
    let open = |story: &Story| {
        Demand::build(&story.desired, &story.observed, DemandMode::Live).unresolved.len()
    };
    assert_eq!(open(&story), 1);
    let (kind, name) = ("Rollout".to_owned(), "api".to_owned());
    let target = ScaleTarget { kind: kind.clone(), name: name.clone() };
    let scale = LiveScale { namespace: "web".into(), kind, name, replicas: 3 };
    story.observed.scaling.scales.push(scale);
    assert_eq!(open(&story), 1, "the repository may have changed its number just now");
    let rule = Horizontal { min: 1, max: 5, metrics: Vec::new(), behavior: None };
    for (rule, expected) in
        [(ScalerRule::Unknown("x".to_owned()), 1), (ScalerRule::Horizontal(rule), 0)]
    {
        story.desired.scalers = vec![Scaler {
            object: "HorizontalPodAutoscaler web/api".to_owned(),
            origin: Origin::new("a.yaml", 9),
            namespace: "web".into(),
            name: "api".to_owned(),
            targets: vec![target.clone()],
            rule,
        }];
        let problems = Demand::build(&story.desired, &story.observed, DemandMode::Live).unresolved;
        assert_eq!(problems.len(), expected);
    }
}

#[test]
fn a_buffer_of_absurd_size_is_named_and_takes_no_memory() {
    for (replicas, expected) in [(1_000_000, 0), (u32::MAX, 1)] {
        let scaling = BufferScaling {
            replicas: Some(replicas),
            percentage: None,
            limits: [].into(),
            target: None,
        };
        let story = story(WorkloadKind::CapacityBuffer, Scale::Buffer(scaling));
        let demand = Demand::build(&story.desired, &story.observed, DemandMode::Live);
        assert_eq!((demand.unresolved.len(), demand.groups.len()), (expected, 1 - expected));
    }
}

#[test]
fn a_trigger_that_cannot_be_read_has_its_fallback_within_the_bounds() {
    let of = |fallback: Option<u32>, in_fallback: bool| {
        let mut story = story(WorkloadKind::Deployment, Scale::Replicas(1));
        let WorkloadId { namespace, name, kind } = workload_id();
        let rule = EventDriven {
            min: 1,
            max: 10,
            idle: None,
            polling: SignedDuration::from_secs(30),
            cooldown: SignedDuration::from_secs(300),
            stabilization: SignedDuration::from_secs(300),
            fallback: fallback.map(|replicas| Fallback { replicas }),
            crons: Vec::new(),
            triggers: vec!["aws-sqs-queue".to_owned()],
            has_formula: false,
            paused: PauseMode::No,
            is_forced: false,
        };
        story.desired.scalers = vec![Scaler {
            object: "ScaledObject other/inflate".to_owned(),
            origin: Origin::new("a.yaml", 9),
            namespace: namespace.clone(),
            name: "inflate".to_owned(),
            targets: vec![ScaleTarget { kind: kind.as_str().to_owned(), name: name.to_string() }],
            rule: ScalerRule::EventDriven(rule),
        }];
        story.observed.scaling.event_driven = vec![LiveEvents {
            namespace,
            name: "inflate".to_owned(),
            in_fallback,
            wanted_jobs: None,
            pending_jobs: None,
        }];
        planned(&story)
    };
    for (fallback, in_fallback, expected) in
        [(None, true, 1), (Some(6), false, 1), (Some(6), true, 6), (Some(60), true, 10)]
    {
        assert_eq!(of(fallback, in_fallback), expected, "{fallback:?}, in fallback: {in_fallback}");
    }
}
