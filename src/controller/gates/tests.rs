mod arriving_pods;
mod removals;

use jiff::SignedDuration;

use super::*;
use crate::controller::mass_removal::{FleetBaseline, mass_removal};
use crate::controller::persisted_state::{ApprovalRecord, LaunchRecord, Quarantine, RemovalRecord};
use crate::controller::status::{Breaker, Suspension};
use crate::demand::Decider;
use crate::model::desired::{ControllerSettings, CountOrShare, RateLimit, Window};
use crate::model::observed::{Observed, Pod};
use crate::plan::wire::{Check, Wave, WaveStep};
use crate::testing::controller::revision;
use crate::testing::plan::address;
use crate::testing::{sample_plan, world};

fn now() -> Timestamp {
    "2026-09-01T10:02:00Z".parse().expect("a time")
}

fn ago(seconds: i64) -> Timestamp {
    now().checked_sub(SignedDuration::from_secs(seconds)).expect("a time")
}

/// Inputs of the gates that tests can change.
struct GateScenario {
    is_leader: bool,
    mode: Mode,
    revision: Revision,
    persisted: PersistedState,
    unready: u32,
    unanswered_requests: usize,
    in_progress: BTreeSet<Address>,
    is_removing: bool,
    removal_retry_at: BTreeMap<PoolName, Timestamp>,
    launch_retry_at: BTreeMap<PoolName, Timestamp>,
    removal_planned_since: BTreeMap<InstanceId, Timestamp>,
    last_pod_event: BTreeMap<InstanceId, Timestamp>,
    observed: Observed,
    plan: Plan,
    pods_arriving: Option<PodsArriving>,
    launches_ahead: LaunchesAhead,
}

impl GateScenario {
    /// A leader in mode `full` whose plan has been stable for long.
    fn new() -> Self {
        // Launches `web 9` and `web 10`; replaces `web 1`; replaces `batch 0` and `1` with `2`;
        // retires the empty `web 2`.
        let plan = sample_plan::plan();
        let rows = plan.resource_changes.iter();
        let known = rows.filter_map(|row| row.change.before.as_ref()?.instance_id.clone());
        let all =
            RateLimit { limit: CountOrShare::Share(100_000), window: SignedDuration::from_mins(5) };
        let controller =
            ControllerSettings { mode: Mode::Full, removals: all, ..ControllerSettings::default() };
        let observed = Observed::of_cluster("c", now());
        let mut launches_ahead = LaunchesAhead::default();
        launches_ahead.update(&plan, "c", false, &observed);
        Self {
            is_leader: true,
            mode: Mode::Full,
            revision: Revision { controller, ..revision("c") },
            persisted: PersistedState::default(),
            unready: 0,
            unanswered_requests: 0,
            in_progress: BTreeSet::new(),
            is_removing: false,
            removal_retry_at: BTreeMap::new(),
            launch_retry_at: BTreeMap::new(),
            removal_planned_since: known.clone().map(|id| (id, ago(3600))).collect(),
            last_pod_event: known.map(|id| (id, ago(3600))).collect(),
            observed,
            plan,
            pods_arriving: None,
            launches_ahead,
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut given = Self::new();
        change(&mut given);
        given
    }

    fn context(&self) -> GateContext<'_> {
        GateContext {
            is_leader: self.is_leader,
            mode: self.mode,
            revision: &self.revision,
            persisted: &self.persisted,
            planned: &self.observed,
            observed: &self.observed,
            nodes: 8,
            unready: self.unready,
            unanswered_requests: self.unanswered_requests,
            in_progress: self.in_progress.clone(),
            is_removing: self.is_removing,
            removal_retry_at: self.removal_retry_at.clone(),
            launch_retry_at: self.launch_retry_at.clone(),
            removal_planned_since: &self.removal_planned_since,
            last_pod_event: &self.last_pod_event,
            pods_arriving: self.pods_arriving.clone(),
            launches_ahead: &self.launches_ahead,
            inseparable: None,
            removals_wait_until: None,
        }
    }

    /// Returns the allowed rows, as `pool key`.
    fn allowed(&self) -> Vec<String> {
        let decisions = evaluate_gates(&self.plan, &self.context(), now()).into_iter();
        let go = decisions.filter(|(_, decision)| *decision == GateDecision::Allow);
        go.map(|(address, _)| short_name(&address)).collect()
    }

    fn blocked_reason(&self, row: &str) -> BlockedReason {
        let all = evaluate_gates(&self.plan, &self.context(), now());
        let found = all.into_iter().find(|(address, _)| short_name(address) == row);
        match found.expect("a change of the plan").1 {
            GateDecision::Block(held) => held,
            GateDecision::Allow => panic!("{row} is allowed"),
        }
    }
}

fn short_name(address: &Address) -> String {
    let text = address.as_str().trim_start_matches("ec2_instance.");
    text.replace("[\"", " ").replace("\"]", "")
}

const ALL: [&str; 7] = ["batch 0", "batch 1", "batch 2", "web 1", "web 10", "web 2", "web 9"];
const LAUNCHES: [&str; 2] = ["web 10", "web 9"];

fn suspension(until: Option<Timestamp>) -> Suspension {
    let (reason, by) = ("a migration".to_owned(), "alice".to_owned());
    Suspension { reason, until, since: ago(60), by }
}

fn launched(n: usize) -> Vec<LaunchRecord> {
    let one = |n: usize| LaunchRecord {
        instance: format!("i-{n}").as_str().into(),
        pool: "web".into(),
        at: ago(60),
        ready_at: None,
        useful: true,
        from_start: false,
        passed_over: false,
        launched_for: None,
    };
    (0..n).map(one).collect()
}

fn removed(n: usize) -> Vec<RemovalRecord> {
    let one = |n: usize| {
        let instance = format!("i-{n}").as_str().into();
        RemovalRecord { instance, at: ago(60), pending: false, first_noted_at: None }
    };
    (0..n).map(one).collect()
}

type ScenarioChange = fn(&mut GateScenario);
/// Name, change of the scenario, and the rows that stay allowed.
type GateCase = (&'static str, ScenarioChange, &'static [&'static str]);

/// Gates of every change, or of every removal.
const PLAN_CASES: &[GateCase] = &[
    ("another replica leads", |g| g.is_leader = false, &[]),
    ("mode observe", |g| g.mode = Mode::Observe, &[]),
    ("mode additive", |g| g.mode = Mode::Additive, &LAUNCHES),
    ("errors", |g| g.plan.errored = true, &[]),
    ("not applyable", |g| g.plan.applyable = false, &[]),
    ("suspended", |g| g.persisted.suspended = Some(suspension(None)), &[]),
    ("a commit that declares nothing", |g| g.revision.is_empty = true, &LAUNCHES),
    ("by digest", |g| g.revision.controller.approval = ApprovalRule::Digest, &[]),
    ("one removal at a time", |g| g.is_removing = true, &LAUNCHES),
    (
        "backing off from removals of a pool",
        |g| {
            g.removal_retry_at.insert("web".into(), ago(-5));
        },
        &["batch 0", "batch 1", "batch 2", "web 10", "web 9"],
    ),
    (
        "backing off from launches of a pool",
        |g| {
            g.launch_retry_at.insert("web".into(), ago(-5));
        },
        &["batch 0", "batch 1", "batch 2", "web 2"],
    ),
    (
        "backoff of another pool",
        |g| {
            g.launch_retry_at.insert("gpu".into(), ago(-5));
            g.removal_retry_at.insert("gpu".into(), ago(-5));
            g.removal_retry_at.insert("web".into(), now());
        },
        &ALL,
    ),
    ("three unready nodes", |g| g.unready = 3, &ALL),
    ("four of eight nodes unready", |g| g.unready = 4, &LAUNCHES),
];

/// Gates of one row and its group.
const ROW_CASES: &[GateCase] = &[
    (
        "a row in progress blocks its group",
        |g| {
            g.in_progress.insert("ec2_instance.batch[\"0\"]".into());
        },
        &["web 1", "web 10", "web 2", "web 9"],
    ),
    (
        "a pool that requires confirmations",
        |g| {
            g.revision.controller.confirm_pools.insert("batch".into());
        },
        &["web 1", "web 10", "web 2", "web 9"],
    ),
    (
        "planned too recently",
        |g| {
            g.removal_planned_since.insert("i-web2".into(), ago(10));
        },
        &["batch 0", "batch 1", "batch 2", "web 1", "web 10", "web 9"],
    ),
    (
        "a recent pod event within consolidateAfter",
        |g| {
            g.revision.consolidate_after.insert("batch".into(), SignedDuration::from_mins(5));
            g.last_pod_event.insert("i-batch1".into(), ago(299));
        },
        &["web 1", "web 10", "web 2", "web 9"],
    ),
    (
        "no pod event within consolidateAfter",
        |g| {
            g.revision.consolidate_after.insert("batch".into(), SignedDuration::from_mins(5));
            g.last_pod_event.insert("i-batch1".into(), ago(300));
        },
        &ALL,
    ),
    (
        "drift ignores consolidateAfter",
        |g| {
            g.revision.consolidate_after.insert("web".into(), SignedDuration::from_mins(5));
            g.last_pod_event.insert("i-web1".into(), ago(1));
            let mut rows = g.plan.capacity.explain.iter_mut();
            let row =
                rows.find(|row| short_name(&row.address) == "web 1").expect("web 1 is replaced");
            let [field, is, declared] = ["image", "a", "b"].map(ToOwned::to_owned);
            row.retire_reason = Some(RetireReason::Drifted { field, is, declared });
        },
        &ALL,
    ),
    (
        "a longer consolidateAfter",
        |g| {
            g.revision.consolidate_after.insert("batch".into(), SignedDuration::from_hours(2));
        },
        &["web 1", "web 10", "web 2", "web 9"],
    ),
];

/// Breakers, quarantines and budgets.
const BUDGET_CASES: &[GateCase] = &[
    (
        "the mass-removal breaker",
        |g| {
            g.persisted.latch(MASS_REMOVAL_BREAKER, String::new(), None, now());
        },
        &LAUNCHES,
    ),
    (
        "the launch breaker allows pure removals",
        |g| {
            let (name, why) = (super::INEFFECTIVE_LAUNCHES_BREAKER.to_owned(), String::new());
            g.persisted.breakers.push(Breaker { name, since: now(), why, removes: None });
        },
        &["web 2"],
    ),
    (
        "a quarantined pool",
        |g| {
            let held = Quarantine { until: ago(-60), times: 0, why: String::new() };
            g.persisted.quarantine.insert("web".into(), held);
        },
        &["batch 0", "batch 1", "batch 2", "web 2"],
    ),
    (
        "room for one launch",
        |g| {
            g.revision.controller.launches.limit = CountOrShare::Count(4);
            g.persisted.launches = launched(3);
        },
        &["web 10", "web 2"],
    ),
    (
        "room for two removals",
        |g| {
            g.revision.controller.removals.limit = CountOrShare::Count(3);
            g.persisted.removals = removed(1);
        },
        &["web 1", "web 10", "web 2", "web 9"],
    ),
    (
        "a group larger than the budget waits",
        |g| g.revision.controller.removals.limit = CountOrShare::Count(1),
        &["web 1", "web 10", "web 9"],
    ),
    (
        "standalone removals take budget last",
        |g| {
            g.revision.controller.removals.limit = CountOrShare::Count(2);
            let of = |key: &str| Address::from(format!("ec2_instance.web[\"{key}\"]"));
            g.plan.capacity.waves.iter_mut().for_each(|w| w.addresses.retain(|a| *a != of("1")));
            let mut rows = g.plan.capacity.explain.iter_mut();
            let row = rows.find(|row| row.address == of("2")).expect("a row");
            row.pods_before.insert("web/Deployment/api".into(), 1);
        },
        &["batch 0", "batch 1", "batch 2", "web 10", "web 9"],
    ),
];

#[test]
fn each_gate_blocks_exactly_its_changes() {
    assert_eq!(GateScenario::new().allowed(), ALL);
    for (name, change, go) in [PLAN_CASES, ROW_CASES, BUDGET_CASES].concat() {
        let mut found = GateScenario::with(change).allowed();
        found.sort();
        let mut wanted: Vec<String> = go.iter().map(|row| (*row).to_owned()).collect();
        wanted.sort();
        assert_eq!(found, wanted, "{name}");
    }
}

#[test]
fn closed_window_blocks_all_until_the_next_opening() {
    let zone = jiff::tz::TimeZone::UTC;
    let closed = Window { days: Vec::new(), from: 12 * 60, to: 13 * 60, zone };
    let outside = GateScenario::with(|g| g.revision.guard.windows.push(closed));
    assert_eq!(outside.allowed(), [""; 0]);
    let opens = "2026-09-01T12:00:00Z".parse().ok();
    assert_eq!(outside.blocked_reason("web 9"), BlockedReason::OutsideWindow { opens });
}

#[test]
fn break_glass_bypasses_approval_and_windows_only() {
    let during_break_glass = |change: fn(&mut GateScenario)| {
        GateScenario::with(|g| {
            g.revision.controller.approval = ApprovalRule::Digest;
            g.revision.guard.windows.push(Window {
                days: Vec::new(),
                from: 0,
                to: 1,
                zone: jiff::tz::TimeZone::UTC,
            });
            g.persisted.break_glass = Some(suspension(Some(ago(-600))));
            change(g);
        })
    };
    assert_eq!(during_break_glass(|_| ()).allowed(), ALL);
    assert_eq!(during_break_glass(|g| g.unready = 5).allowed(), LAUNCHES);
    assert_eq!(during_break_glass(|g| g.plan.applyable = false).allowed(), [""; 0]);
    assert_eq!(during_break_glass(|g| g.is_leader = false).allowed(), [""; 0]);
    assert_eq!(
        during_break_glass(|g| g.persisted.suspended = Some(suspension(None))).allowed(),
        [""; 0]
    );
}

#[test]
fn break_glass_keeps_all_gates_except_approval() {
    for (name, change, go) in [PLAN_CASES, ROW_CASES, BUDGET_CASES].concat() {
        let broken = |g: &mut GateScenario| {
            change(g);
            g.persisted.break_glass = Some(suspension(Some(ago(-600))));
        };
        let mut found = GateScenario::with(broken).allowed();
        found.sort();
        let of_approval = name == "by digest";
        let mut wanted = if of_approval { ALL.to_vec() } else { go.to_vec() };
        wanted.sort_unstable();
        assert_eq!(found, wanted, "{name}");
    }
    let removes = |broken: bool| {
        let given = GateScenario::with(|g| {
            g.plan = removals::plan_removing_all();
            g.persisted.break_glass = broken.then(|| suspension(Some(ago(-600))));
        });
        mass_removal(&given.plan, &given.context())
    };
    assert!(
        removes(false).is_some_and(|mass| Some(mass) == removes(true)),
        "it is not approved by digest"
    );
}

#[test]
fn approval_follows_the_rule_of_the_repository() {
    let rule = |rule, change: fn(&mut GateScenario)| {
        let given = GateScenario::with(|g| {
            g.revision.controller.approval = rule;
            change(g);
        });
        approval(&given.plan, &given.context(), now())
    };
    let approve = |g: &mut GateScenario| {
        let (digest, by) = (g.plan.capacity.digest.clone(), "bob".to_owned());
        g.persisted.approvals.push(ApprovalRecord::new(digest, by, now()));
    };
    let warns = |g: &mut GateScenario| {
        g.plan.checks =
            vec![Check { name: "p".into(), status: CheckStatus::Warn, ..Check::default() }];
    };
    let bob = Some(ApprovedBy::Digest { who: "bob".to_owned() });
    assert_eq!(rule(ApprovalRule::Merge, |_| ()), Some(ApprovedBy::Merge));
    assert_eq!(rule(ApprovalRule::Digest, |_| ()), None);
    assert_eq!(rule(ApprovalRule::Digest, approve), bob);
    assert_eq!(rule(ApprovalRule::Policy, |_| ()), Some(ApprovedBy::Policy));
    assert_eq!(rule(ApprovalRule::Policy, warns), None);
    let other = |g: &mut GateScenario| {
        let (digest, by) = (format!("sha256:{}", "0".repeat(64)), "bob".to_owned());
        g.persisted.approvals.push(ApprovalRecord::new(digest.into(), by, now()));
    };
    assert_eq!(rule(ApprovalRule::Digest, other), None, "another plan was approved");
}

#[test]
fn subset_of_an_approved_plan_is_approved() {
    let of = |change: fn(&mut Plan)| {
        let given = GateScenario::with(|g| {
            g.revision.controller.approval = ApprovalRule::Digest;
            let (digest, by) = (g.plan.capacity.digest.clone(), "bob".to_owned());
            g.persisted.approvals.push(ApprovalRecord::new(digest, by, now()));
            g.persisted.record_approved_rows(&g.plan);
            // Without the blocked changes the plan has another digest.
            g.plan.capacity.digest = format!("sha256:{}", "1".repeat(64)).into();
            change(&mut g.plan);
        });
        approval(&given.plan, &given.context(), now())
    };
    let bob = Some(ApprovedBy::Digest { who: "bob".to_owned() });
    let only_web2 = |plan: &mut Plan| {
        plan.capacity.waves.retain(|wave| wave.step == WaveStep::Retire);
        plan.capacity.waves.iter_mut().for_each(|wave| {
            wave.addresses.retain(|address| short_name(address) == "web 2");
        });
    };
    assert_eq!(of(|_| ()), bob);
    assert_eq!(of(only_web2), bob);
    let dearer = |plan: &mut Plan| {
        let after = plan.row_mut(&address("9")).change.after.as_mut().expect("a launch");
        after.instance_type = Some("m5.24xlarge".into());
    };
    assert_eq!(of(dearer), None, "a change outside the approved plan");
    assert_eq!(of(|plan| plan.capacity.waves.clear()), None, "nothing is no part");
}

#[test]
fn approved_changes_do_not_wait_for_unapproved_ones() {
    let mut given = GateScenario::with(|g| {
        g.revision.controller.approval = ApprovalRule::Digest;
        let (digest, by) = (g.plan.capacity.digest.clone(), "bob".to_owned());
        g.persisted.approvals.push(ApprovalRecord::new(digest, by, now()));
        g.persisted.record_approved_rows(&g.plan);
        g.plan.capacity.digest = format!("sha256:{}", "1".repeat(64)).into();
        let after = g.plan.row_mut(&address("9")).change.after.as_mut().expect("a launch");
        after.instance_type = Some("m5.24xlarge".into());
    });
    let others: Vec<&str> = ALL.iter().copied().filter(|row| *row != "web 9").collect();
    assert_eq!(given.allowed(), others);
    let digest = given.plan.capacity.digest.clone();
    assert_eq!(given.blocked_reason("web 9"), BlockedReason::NotApproved { digest });
    given.persisted.approvals.clear();
    assert_eq!(given.allowed(), [""; 0]);
}

#[test]
fn launch_waits_for_pods_that_only_the_repository_has() {
    let scenario = |pods: &[Pod], is_new: bool| {
        GateScenario::with(|g| {
            for row in &mut g.plan.capacity.demand {
                row.decided_by = Decider::Git;
            }
            g.observed = Observed::of_cluster("c", now()).with_pods(pods.iter().cloned());
            let (plan, observed) = (g.plan.clone(), g.observed.clone());
            g.launches_ahead = LaunchesAhead::default();
            g.launches_ahead.update(&plan, "a", !is_new, &observed);
        })
    };
    let is_blocked = |given: &GateScenario, row: &str| {
        let all = evaluate_gates(&given.plan, &given.context(), now());
        let found = all.into_iter().find(|(address, _)| short_name(address) == row);
        found.expect("a row").1 == GateDecision::Block(BlockedReason::PodsMissing)
    };
    let missing = scenario(&[], false);
    assert!(is_blocked(&missing, "web 9") && is_blocked(&missing, "web 10"));
    assert!(!is_blocked(&missing, "web 1"), "a replacement has running pods");
    let new = scenario(&[], true);
    assert!(!is_blocked(&new, "web 9"), "the commit adds the pods");
    let pending: Vec<Pod> = missing
        .plan
        .capacity
        .demand
        .iter()
        .map(|row| world::pod(&row.workload.name).owned_by(&row.workload))
        .collect();
    assert!(!is_blocked(&scenario(&pending, false), "web 9"), "its pods are pending");
}

#[test]
fn group_that_adds_nodes_for_missing_pods_waits_for_them() {
    let decision = |moved: u32, launches: bool| {
        let mut given = GateScenario::new();
        for row in &mut given.plan.capacity.demand {
            row.decided_by = Decider::Git;
        }
        // `web 9` and `web 10` take the pods of `web 2` and further pods.
        for row in &mut given.plan.capacity.explain {
            let joins = ["web 2", "web 9"].contains(&short_name(&row.address).as_str())
                || launches && short_name(&row.address) == "web 10";
            row.group = joins.then(|| "consolidation-9".into()).or(row.group.take());
            if short_name(&row.address) == "web 2" {
                row.pods_before.extend([("web/Deployment/api".into(), moved)]);
            }
        }
        let (plan, observed) = (given.plan.clone(), given.observed.clone());
        given.launches_ahead = LaunchesAhead::default();
        given.launches_ahead.update(&plan, "a", true, &observed);
        let all = evaluate_gates(&given.plan, &given.context(), now());
        let found = all.into_iter().find(|(address, _)| short_name(address) == "web 9");
        found.expect("a row").1 == GateDecision::Block(BlockedReason::PodsMissing)
    };
    assert!(decision(6, true), "6 of 12 pods are missing");
    assert!(!decision(12, true), "all pods run on the removed node");
    assert!(!decision(6, false), "one node replaces another one");
}

#[test]
fn blocked_launch_blocks_dependent_removals() {
    let quarantined = |moves: bool| {
        GateScenario::with(|given| {
            let held = Quarantine { until: ago(-60), times: 0, why: String::new() };
            given.persisted.quarantine.insert("web".into(), held);
            let mut rows = given.plan.capacity.explain.iter_mut();
            let row = rows.find(|row| short_name(&row.address) == "web 2").expect("it is removed");
            row.pods_before.extend(moves.then(|| ("shop/Deployment/api".into(), 1)));
        })
    };
    assert!(quarantined(false).allowed().contains(&"web 2".to_owned()), "it has no pods");
    let held = quarantined(true).blocked_reason("web 2");
    assert!(matches!(held, BlockedReason::GroupBlocked { .. }), "{held:?}");
}

#[test]
fn unanswered_launches_use_the_launch_budget() {
    let limit = CountOrShare::Count(10);
    let with = |requests| {
        GateScenario::with(|given| {
            let window = SignedDuration::from_mins(5);
            given.revision.controller.launches = RateLimit { limit, window };
            given.unanswered_requests = requests;
        })
    };
    let launches = |given: GateScenario| {
        LAUNCHES.iter().filter(|row| given.allowed().iter().any(|allowed| allowed == *row)).count()
    };
    assert_eq!([0, 10].map(|requests| launches(with(requests))), [2, 0]);
    assert!(matches!(with(10).blocked_reason("web 9"), BlockedReason::LaunchBudget { .. }));
}
