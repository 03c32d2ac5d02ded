//! Controller statuses of three clusters: an empty one, a busy one, and one with all kinds of
//! failures.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use fleetwright::apply::{ApplyStatus, ChangeOutcome, Outcome, Receipt};
use fleetwright::controller::{
    ActionFailure, ApprovedBy, Blocked, BlockedReason, Breaker, CompletedApply, ControllerAction,
    Counter, Counters, InterruptionPhase, InterruptionStatus, Mode, PlanTotals, PublishedPlan,
    RepositoryStatus, SourceState, Status, Suspension, UncordonedNode, WorldStatus,
};
use fleetwright::model::commit::CommitOrigin;
use fleetwright::model::desired::PoolLimits;
use fleetwright::model::ids::Address;
use fleetwright::model::market::CapacityType;
use fleetwright::model::observed::{ClusterIdentity, Completeness, Exclusion};
use fleetwright::model::units::MicroUsd;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{Action, WaveStep};
use fleetwright::telemetry::histogram::{Histograms, Measurement};
use jiff::{SignedDuration, Timestamp};

/// Time of every status.
pub(crate) const NOW: &str = "2026-11-21T12:00:00Z";

/// Hostile text, which must be escaped.
pub(crate) const HOSTILE: &str = "</script><script>alert(1)</script>\" onload=\"x\u{202e}\u{1b}[2J";

/// The served commit.
const COMMIT: &str = "4f2c9a1d5e6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d";

pub(crate) fn now() -> Timestamp {
    NOW.parse().expect("a time")
}

fn minutes_ago(minutes: i64) -> Timestamp {
    now() - SignedDuration::from_mins(minutes)
}

/// Reads a saved plan of `plans/`.
pub(crate) fn saved(name: &str) -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans").join(name);
    let text = fs::read_to_string(path).expect("a plan");
    let mut plan: Plan = serde_json::from_str(&text).expect("a plan");
    plan.capacity.base.commit = Some(COMMIT.to_owned());
    plan
}

fn failures() -> BTreeMap<ControllerAction, ActionFailure> {
    let denied = format!("write record: denied {HOSTILE}");
    let unauthorized = "terminate instance: UnauthorizedOperation";
    BTreeMap::from([
        (ControllerAction::SaveState, failure("", &denied)),
        (ControllerAction::Terminate, failure("i-0a1b2c3d4e5f60718", unauthorized)),
    ])
}

fn failure(of: &str, why: &str) -> ActionFailure {
    let (of, why) = (of.to_owned(), why.to_owned());
    ActionFailure {
        object: of,
        error: why,
        since: minutes_ago(44),
        last: minutes_ago(1),
        count: 19,
    }
}

/// Returns the status of a new process before its first read.
pub(crate) fn starting() -> Status {
    Status {
        now: now(),
        started_at: minutes_ago(1),
        version: "0.1.0".to_owned(),
        identity: "fleetwright-7d9-abcde".to_owned(),
        is_leader: false,
        lease_holder: None,
        is_lease_held_by_apply: false,
        cluster: ClusterIdentity {
            name: "prod-eu1".to_owned(),
            region: "eu-west-1".to_owned(),
            account: "111122223333".to_owned(),
            uid: "00000000-0000-4000-8000-000000000001".to_owned(),
        },
        mode: Mode::Observe,
        suspended: None,
        break_glass: None,
        breakers: Vec::new(),
        repository: RepositoryStatus::default(),
        world: None,
        plan: None,
        in_progress: BTreeMap::new(),
        finished_changes: [].into(),
        history: Vec::new(),
        current_approval: None,
        withheld_repairs: Vec::new(),
        partial_applies: Vec::new(),
        hourly_costs: Vec::new(),
        superseded: Vec::new(),
        history_error: None,
        uncordoned: Vec::new(),
        interrupted: Vec::new(),
        unavailable_offerings: Vec::new(),
        quarantined: BTreeMap::new(),
        failing_actions: BTreeMap::new(),
        persisted_state: fleetwright::controller::PersistedStateSize::default(),
        competing_autoscaler: None,
        counters: Counters::default(),
        durations: Histograms::default(),
        wakes_at: Some(now() + SignedDuration::from_secs(30)),
    }
}

fn read_successfully() -> SourceState {
    SourceState { read_at: Some(minutes_ago(0)), error: None, failures: 0 }
}

fn world() -> WorldStatus {
    let complete = |name: &str| (name.to_owned(), Completeness::Complete);
    WorldStatus {
        taken_at: minutes_ago(0),
        age: SignedDuration::ZERO,
        sources: [complete("ec2"), complete("kubernetes")].into(),
        nodes: 0,
        ready: 0,
        instances: 0,
        pods: 0,
        pending: 0,
        pending_for: None,
        reads: read_successfully(),
    }
}

/// Returns a cluster without nodes, pods or changes.
pub(crate) fn empty() -> Status {
    let mut plan = saved("teams.json");
    plan.resource_changes.clear();
    plan.summary = fleetwright::plan::wire::Summary::default();
    let capacity = &mut plan.capacity;
    capacity.explain.clear();
    capacity.waves.clear();
    capacity.placements.clear();
    capacity.demand.clear();
    capacity.alternatives.clear();
    capacity.diagnostics.clear();
    capacity.pods = fleetwright::plan::wire::PodTotals::default();
    capacity.cost.hourly_before = MicroUsd::ZERO;
    capacity.cost.hourly_after = MicroUsd::ZERO;
    capacity.cost.hourly_delta = MicroUsd::ZERO;
    capacity.cost.monthly_delta = MicroUsd::ZERO;
    capacity.cost.lower_bound_hourly = MicroUsd::ZERO;
    capacity.cost.breakdown = fleetwright::plan::wire::CostBreakdown::default();
    Status {
        is_leader: true,
        repository: RepositoryStatus {
            commit: Some(COMMIT.to_owned()),
            reads: read_successfully(),
            ..RepositoryStatus::default()
        },
        world: Some(world()),
        plan: Some(PublishedPlan {
            plan: Arc::new(plan),
            since: minutes_ago(3),
            blocked: BTreeMap::new(),
        }),
        ..starting()
    }
}

fn outcomes(plan: &Plan, outcome: &Outcome) -> Vec<ChangeOutcome> {
    let changes = plan.resource_changes.iter().filter_map(|row| {
        let step = match row.change.actions[..] {
            [Action::Create] => WaveStep::Launch,
            [Action::Delete] => WaveStep::Retire,
            _ => return None,
        };
        let (address, outcome) = (row.address.clone(), outcome.clone());
        Some(ChangeOutcome { address, step, instance_id: None, launched: None, outcome })
    });
    changes.take(8).collect()
}

/// Returns completed applies, with some hours between them.
fn history(plan: &Plan) -> Vec<Arc<CompletedApply>> {
    let step = |n: i64| MicroUsd(12_000_000 + (n * 7_919) % 4_000_000 - n * 150_000);
    let past = |n: i64| {
        let (outcome, verdict) = match n % 5 {
            3 => (
                Outcome::Abandoned {
                    why: "eviction of web/api is blocked by PodDisruptionBudget web/api".to_owned(),
                },
                ApplyStatus::Partly,
            ),
            _ => (Outcome::Done, ApplyStatus::Applied),
        };
        let receipt = Receipt {
            plan_id: format!("{n:064}").into(),
            digest: format!("sha256:{n:016x}{n:048x}").into(),
            outcomes: outcomes(plan, &outcome),
            started_at: minutes_ago(n * 170 + 6),
            finished_at: minutes_ago(n * 170),
            verdict,
        };
        let name = if verdict == ApplyStatus::Applied { "done" } else { "abandoned" };
        let count = u32::try_from(receipt.outcomes.len()).expect("few");
        let refused = (n == 2).then(|| "the world has moved: i-0abc is gone".to_owned());
        Arc::new(CompletedApply {
            plan_id: receipt.plan_id.clone(),
            digest: receipt.digest.clone(),
            commit: format!("{n:040x}"),
            approved: if n % 4 == 1 {
                ApprovedBy::Digest { who: "alice@example.com".to_owned() }
            } else {
                ApprovedBy::Merge
            },
            started_at: receipt.started_at,
            ended_at: receipt.finished_at,
            outcomes: refused.is_none().then(|| (name.to_owned(), count)).into_iter().collect(),
            receipt: refused.is_none().then_some(receipt),
            refused,
            hourly_before: step(n + 1),
            hourly_after: step(n),
            decided: Some(PlanTotals { changes: 7, ..PlanTotals::default() }),
        })
    };
    (1..=12).map(past).collect()
}

/// Returns a plan over 180 nodes that launches one and removes twelve.
fn busy_plan() -> Plan {
    let mut plan = crate::large::sized(180, 12).expect("a plan");
    let first = saved("quickstart.json");
    for row in &first.resource_changes {
        if row.change.actions == [Action::Create] {
            plan.resource_changes.push(row.clone());
            let why = first.capacity.explain.iter().filter(|why| why.address == row.address);
            plan.capacity.explain.extend(why.cloned());
        }
    }
    plan.summary.add = 1;
    plan.summary.nodes.launch = 1;
    plan.summary.nodes.after += 1;
    let cost = &mut plan.capacity.cost;
    cost.hourly_delta = MicroUsd(cost.hourly_after.0 - cost.hourly_before.0);
    cost.monthly_delta = cost.hourly_delta.per_month();
    plan
}

/// Returns the counters of the busy cluster.
fn busy_counters() -> Counters {
    [
        (Counter::RepositoryReadsDone, 340),
        (Counter::ClusterReadsDone, 2_100),
        (Counter::PlansMade, 410),
        (Counter::PlansChanged, 38),
        (Counter::ReconcilesApplied, 30),
        (Counter::ReconcilesPartlyApplied, 2),
        (Counter::LaunchesDone, 61),
        (Counter::LaunchesInsufficientCapacity, 3),
        (Counter::Terminations("empty".to_owned()), 40),
        (Counter::Terminations("spot".to_owned()), 2),
        (Counter::EvictionsDone, 512),
        (Counter::Messages("spot-interruption"), 2),
        (Counter::MessagesAcknowledged, 2),
    ]
    .into_iter()
    .collect()
}

fn blocked_by_budget(address: &Address) -> (Address, Blocked) {
    let reason = BlockedReason::RemovalBudget {
        most: 4,
        within: SignedDuration::from_mins(10),
        next: now() + SignedDuration::from_mins(7),
    };
    let message =
        "4 instances were terminated within 10m, the maximum; the next removal may start at 12:07"
            .to_owned();
    (address.clone(), Blocked { reason, message })
}

/// Returns a cluster of 180 nodes, with a plan that launches and removes.
pub(crate) fn busy() -> Status {
    let plan = busy_plan();
    let removals: Vec<Address> = plan
        .resource_changes
        .iter()
        .filter(|row| row.change.actions == [Action::Delete])
        .map(|row| row.address.clone())
        .collect();
    let blocked = removals.iter().skip(4).map(blocked_by_budget).collect();
    let plan_id = plan.capacity.plan_id.clone();
    let limits = plan.capacity.cost.breakdown.by_pool.first().map(|row| {
        let resources = [("cpu".into(), 2_000_000)].into();
        (row.name.as_str().into(), PoolLimits { resources, nodes: Some(250) })
    });
    Status {
        mode: Mode::Full,
        repository: RepositoryStatus {
            commit: Some(COMMIT.to_owned()),
            origin: Some(CommitOrigin { author: "Ann <b>".to_owned(), pull_request: Some(12) }),
            pool_limits: limits.into_iter().collect(),
            reads: read_successfully(),
            ..RepositoryStatus::default()
        },
        finished_changes: removals.iter().take(1).cloned().collect(),
        world: Some(WorldStatus {
            nodes: 180,
            ready: 179,
            instances: 180,
            pods: 1_411,
            pending: 3,
            pending_for: Some(SignedDuration::from_secs(12)),
            ..world()
        }),
        in_progress: BTreeMap::from([(
            plan_id,
            (removals.into_iter().take(4).collect(), minutes_ago(2)),
        )]),
        history: history(&plan),
        uncordoned: vec![UncordonedNode {
            node: "ip-10-0-1-12.eu-west-1.compute.internal".into(),
            instance: "i-0123456789abcdef1".into(),
            at: minutes_ago(25),
        }],
        interrupted: vec![InterruptionStatus {
            instance: "i-0123456789abcdef0".into(),
            node: Some("ip-10-0-3-17.eu-west-1.compute.internal".into()),
            reason: "spot-interruption".to_owned(),
            since: minutes_ago(1),
            deadline: Some(now() + SignedDuration::from_secs(70)),
            phase: InterruptionPhase::Draining,
            replacement_blocked: None,
        }],
        unavailable_offerings: vec![Exclusion {
            instance_type: Some("m7g.large".into()),
            zone: Some("eu-west-1a".into()),
            capacity_type: Some(CapacityType::Spot),
            until: now() + SignedDuration::from_mins(9),
        }],
        plan: Some(PublishedPlan { plan: Arc::new(plan), since: minutes_ago(4), blocked }),
        counters: busy_counters(),
        durations: histograms(),
        started_at: minutes_ago(60 * 40),
        ..empty()
    }
}

/// Returns some measured durations.
fn histograms() -> Histograms {
    let mut histograms = Histograms::default();
    let pool = || "general".to_owned();
    let (service, method) = ("ec2".to_owned(), "RunInstances".to_owned());
    for (measurement, millis) in [
        (Measurement::Step, 1),
        (Measurement::Plan { scope: "all" }, 340),
        (Measurement::NodeReady { pool: pool() }, 42_000),
        (Measurement::AwsCall { service, method, result: "done" }, 1_300),
        (Measurement::NodeLifetime { pool: pool() }, 86_400_000),
    ] {
        histograms.note(measurement, std::time::Duration::from_millis(millis));
    }
    histograms
}

fn failed_reads(error: &str, failures: u32) -> SourceState {
    SourceState {
        read_at: Some(minutes_ago(47)),
        error: Some((error.to_owned(), minutes_ago(44))),
        failures,
    }
}

/// Makes an observation old and partial.
fn fail_observation(world: &mut WorldStatus) {
    world.taken_at = minutes_ago(47);
    world.age = SignedDuration::from_mins(47);
    world.reads = failed_reads("ec2: RequestLimitExceeded", 9);
    let failed = Completeness::Failed { reason: "RequestLimitExceeded".to_owned() };
    world.sources.insert("ec2".to_owned(), failed);
    (world.ready, world.pending) = (121, 214);
    world.pending_for = Some(SignedDuration::from_mins(31));
}

/// Returns an unreadable cluster with all kinds of blocked changes and hostile names.
pub(crate) fn failing() -> Status {
    let mut plan = saved("quickstart.json");
    plan.errored = true;
    plan.applyable = false;
    let blocked = |address: &Address| {
        let why = BlockedReason::NotApplyable { why: "its inputs have errors".to_owned() };
        (
            address.clone(),
            Blocked { reason: why, message: format!("its inputs have errors: {HOSTILE}") },
        )
    };
    let blocked = plan.resource_changes.iter().map(|row| blocked(&row.address)).collect();
    let mut failing = Status {
        mode: Mode::Full,
        is_leader: false,
        lease_holder: Some("fleetwright-7d9-zzzzz".to_owned()),
        suspended: Some(Suspension {
            reason: format!("the market is closed {HOSTILE}"),
            until: Some(now() + SignedDuration::from_hours(2)),
            since: minutes_ago(90),
            by: "bob@example.com".to_owned(),
        }),
        break_glass: Some(Suspension {
            reason: "incident 4711".to_owned(),
            until: Some(now() + SignedDuration::from_mins(20)),
            since: minutes_ago(10),
            by: "carol@example.com".to_owned(),
        }),
        breakers: vec![Breaker {
            name: "ineffective-launches".to_owned(),
            since: minutes_ago(33),
            why: "12 of 12 instances launched within 15m did not become Ready".to_owned(),
            removes: None,
        }],
        plan: Some(PublishedPlan { plan: Arc::new(plan), since: minutes_ago(47), blocked }),
        quarantined: BTreeMap::from([(
            "general".into(),
            (
                "5 nodes launched, and the pods are still pending".to_owned(),
                now() + SignedDuration::from_mins(12),
            ),
        )]),
        failing_actions: failures(),
        counters: [
            (Counter::Errors("repository".to_owned()), 44),
            (Counter::RepositoryReadsFailed, 44),
        ]
        .into_iter()
        .collect(),
        ..busy()
    };
    failing.repository.waiting = Some((
        "1111111111111111111111111111111111111111".to_owned(),
        "CI has not applied it yet".to_owned(),
    ));
    failing.repository.reads = failed_reads(&format!("cannot fetch: {HOSTILE}"), 44);
    failing.repository.problems = 3;
    failing.world.iter_mut().for_each(fail_observation);
    failing
}
