use super::*;
use crate::controller::gates::{self, GateDecision, evaluate_gates, may_still_start};
use crate::controller::launches_ahead::LaunchesAhead;
use crate::controller::{ApprovedBy, BlockedReason, Event, PersistedState, Revision, Signal};
use crate::model::desired::{ApprovalRule, Mode, Window};
use crate::model::ids::InstanceId;
use crate::model::observed::Node;
use crate::model::pod::Taint;
use crate::model::reason::Alternative;
use crate::plan::wire::PlacementRow;
use crate::testing::controller::{ControllerHarness, at, revision, world};
use crate::testing::plan::{instance_address, node_state};
use crate::testing::pods::deployment;
use crate::testing::world::{node, pod};

const PRICE: MicroUsd = MicroUsd(100_000);
const MINUTE: i64 = 60;

/// Key of a node, its pods by workload, and its price in millionths of a dollar.
type PlannedNode<'a> = (&'a str, &'a [(&'a str, u32)], i64);

/// Returns a plan that launches nodes of pool `web`, each for some pods of workloads in namespace
/// `web`, at this price.
fn plan_launching(nodes: &[PlannedNode<'_>]) -> Plan {
    let rows = nodes.iter().map(|(key, pods, price)| {
        let reason = Reason::Launch { because: LaunchReason::Demand { pods: BTreeMap::new() } };
        let name = |name: &str| workload_key(&deployment("web", name)).as_str().into();
        let explain = ExplainRow {
            hourly_after: Some(MicroUsd(*price)),
            pods: pods.iter().map(|(workload, count)| (name(workload), *count)).collect(),
            ..ExplainRow::new(instance_address("web", key), reason)
        };
        let after = node_state("web", "m5.large", ("eu-west-1a", "euw1-az2"));
        (ResourceChange::launch("web", key, after), explain)
    });
    let addresses: Vec<Address> =
        nodes.iter().map(|(key, ..)| instance_address("web", key)).collect();
    let mut plan = Plan::unchanged(&world(0))
        .with_explained_rows(rows)
        .with_wave(WaveStep::Launch, addresses.clone());
    let placed = nodes.iter().zip(addresses).flat_map(|((_, pods, _), address)| {
        pods.iter().map(move |(name, count)| PlacementRow {
            workload: deployment("web", name),
            address: address.clone(),
            pods: *count,
        })
    });
    plan.capacity.placements = placed.collect();
    plan.with_identity()
}

/// Returns a plan for pods of `api` and `shop`, with a contingency of two nodes.
fn approved_plan() -> Plan {
    let mut plan = plan_launching(&[("0", &[("api", 20), ("shop", 5)], PRICE.0)]);
    let pool = PoolContingency {
        pool: "web".into(),
        nodes: 2,
        hourly: PRICE.times(2),
        node_hourly: PRICE,
        instance_types: vec!["m5.large".into()],
    };
    let (nodes, hourly, pods) = (pool.nodes, pool.hourly, 2);
    let contingency = Contingency { nodes, hourly, pods, pools: vec![pool] };
    plan.capacity.placement.contingency = Some(contingency);
    plan.with_identity()
}

/// A leader that applied the approved plan a minute ago. Three pods of `api` are pending.
struct Situation {
    revision: Revision,
    persisted: PersistedState,
    observed: Observed,
    now: Timestamp,
}

impl Situation {
    fn before_apply() -> Self {
        let mut revision = revision("c");
        revision.controller.approval = ApprovalRule::Digest;
        let mut persisted = PersistedState::default();
        let digest = approved_plan().capacity.digest;
        persisted.approvals.push(ApprovalRecord::new(digest, "alice".to_owned(), at(0)));
        let observed = world(0).with_pods(pending("api", 3));
        Self { revision, persisted, observed, now: at(2 * MINUTE) }
    }

    fn new() -> Self {
        let mut situation = Self::before_apply();
        situation.apply(MINUTE);
        situation
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut situation = Self::new();
        change(&mut situation);
        situation
    }

    /// Applies the approved plan.
    fn apply(&mut self, seconds: i64) {
        let plan = approved_plan();
        self.persisted.start_contingency(&plan, &self.revision.commit, at(seconds));
    }

    fn check<T>(&self, check: impl FnOnce(&GateContext<'_>) -> T) -> T {
        let nothing = BTreeMap::new();
        check(&GateContext {
            is_leader: true,
            mode: Mode::Full,
            revision: &self.revision,
            persisted: &self.persisted,
            planned: &self.observed,
            observed: &self.observed,
            nodes: 20,
            unready: 0,
            unanswered_requests: 0,
            in_progress: BTreeSet::new(),
            is_removing: false,
            removal_retry_at: BTreeMap::new(),
            launch_retry_at: BTreeMap::new(),
            removal_planned_since: &nothing,
            last_pod_event: &nothing,
            pods_arriving: None,
            launches_ahead: &LaunchesAhead::default(),
            inseparable: None,
            removals_wait_until: None,
        })
    }

    /// Returns the number of launches that may start.
    fn allowed(&self, plan: &Plan) -> usize {
        let decisions = self.check(|context| evaluate_gates(plan, context, self.now));
        decisions.iter().filter(|(_, decision)| *decision == GateDecision::Allow).count()
    }

    /// Uses the contingency for a plan.
    fn take(&mut self, plan: &Plan) -> ContingencyUse {
        let cover = self.check(|context| cover(plan, context, self.now)).expect("it is covered");
        self.persisted.use_contingency(&cover).expect("it is stored")
    }
}

fn pending(workload: &str, count: u32) -> impl Iterator<Item = crate::model::observed::Pod> {
    let workload = deployment("web", workload);
    (0..count).map(move |n| {
        let mut pod = pod(&format!("{}-{n}", workload.name));
        pod.owner = Some(workload.clone());
        pod
    })
}

/// Returns a plan with one further node for two pods of `api`.
fn further_node() -> Plan {
    plan_launching(&[("1", &[("api", 2)], PRICE.0)])
}

#[test]
fn approved_contingency_covers_a_node_for_pending_pods() {
    let situation = Situation::new();
    let plan = further_node();
    assert_eq!(situation.allowed(&plan), 1);
    let approved = situation.check(|context| gates::approval(&plan, context, situation.now));
    let (digest, who) = (approved_plan().capacity.digest, "alice".to_owned());
    assert_eq!(approved, Some(ApprovedBy::Contingency { digest, who }));
}

#[test]
fn plan_without_an_applied_contingency_needs_an_approval() {
    let plan = further_node();
    assert_eq!(Situation::before_apply().allowed(&plan), 0, "approved, but not applied");
    // Applied without an approval by digest: by its merge, by policies, or in a break-glass.
    let mut unapproved = Situation::before_apply();
    unapproved.persisted.approvals.clear();
    unapproved.apply(MINUTE);
    assert_eq!(unapproved.allowed(&plan), 0);
    // The plan that was approved has no contingency.
    let mut without = Situation::before_apply();
    let bare = plan_launching(&[("0", &[("api", 20)], PRICE.0)]);
    without.persisted.approvals[0].digest = bare.capacity.digest.clone();
    without.persisted.start_contingency(&bare, "c", at(MINUTE));
    assert_eq!(without.allowed(&plan), 0);
}

#[test]
fn contingency_serves_pending_pods_of_approved_workloads() {
    let situation = Situation::new();
    let launching = |pods: &[(&str, u32)]| plan_launching(&[("1", pods, PRICE.0)]);
    assert_eq!(situation.allowed(&launching(&[("api", 3)])), 1);
    assert_eq!(situation.allowed(&launching(&[("api", 4)])), 0, "three are pending");
    assert_eq!(situation.allowed(&launching(&[("shop", 1)])), 0, "none is pending");
    assert_eq!(situation.allowed(&launching(&[])), 0, "for no pod");
    let other =
        Situation::with(|s| s.observed.pods.extend(world(0).with_pods(pending("x", 1)).pods));
    assert_eq!(other.allowed(&launching(&[("x", 1)])), 0, "the approved plan has no pod of x");
    assert_eq!(other.allowed(&launching(&[("api", 1), ("x", 1)])), 0);
    // Two nodes cannot be for the same pods.
    let twice = plan_launching(&[("1", &[("api", 2)], 1), ("2", &[("api", 2)], 1)]);
    assert_eq!(situation.allowed(&twice), 1);
}

#[test]
fn contingency_is_limited_in_pool_nodes_and_price() {
    let situation = Situation::with(|s| {
        s.observed = world(0).with_pods(pending("api", 9));
    });
    let cheap = |key: &'static str| (key, &[("api", 1)][..], PRICE.0);
    assert_eq!(situation.allowed(&plan_launching(&[cheap("1"), cheap("2")])), 2);
    assert_eq!(situation.allowed(&plan_launching(&[cheap("1"), cheap("2"), cheap("3")])), 2);
    let dearer = plan_launching(&[("1", &[("api", 1)], PRICE.0 + 1)]);
    assert_eq!(situation.allowed(&dearer), 0);
    let mut elsewhere = further_node();
    let row = elsewhere.row_mut(&instance_address("web", "1"));
    row.change.after.as_mut().expect("a launch").pool = Some("batch".into());
    assert_eq!(situation.allowed(&elsewhere.with_identity()), 0, "another pool");
    // A node whose price is not known.
    let mut unpriced = further_node();
    unpriced.explain_mut(&instance_address("web", "1")).hourly_after = None;
    assert_eq!(situation.allowed(&unpriced.with_identity()), 0);
}

#[test]
fn contingency_covers_neither_replacements_nor_removals() {
    let situation = Situation::new();
    let mut grouped = further_node();
    grouped.explain_mut(&instance_address("web", "1")).group = Some("consolidation-1".to_owned());
    assert_eq!(situation.allowed(&grouped.with_identity()), 0);
    let mut saving = further_node();
    saving.explain_mut(&instance_address("web", "1")).reason =
        Reason::Launch { because: LaunchReason::Consolidation { saves_hourly: PRICE, moves: 1 } };
    assert_eq!(situation.allowed(&saving.with_identity()), 0);
    let mut removing = further_node();
    removing = removing.with_wave(WaveStep::Retire, [instance_address("web", "1")]).with_identity();
    assert_eq!(situation.allowed(&removing), 0);
    // A removal beside it stays blocked, and the launch is planned again without it.
    let state = node_state("web", "m5.large", ("eu-west-1a", "euw1-az2"));
    let gone = ResourceChange::removal("web", "7", state.running_as("i-7", "n-7", "u-7"));
    let beside = further_node()
        .with_rows([gone])
        .with_wave(WaveStep::Retire, [instance_address("web", "7")])
        .with_identity();
    assert_eq!(situation.allowed(&beside), 1);
    assert_eq!(situation.check(|context| gates::approval(&beside, context, situation.now)), None);
}

#[test]
fn dearer_fallback_offerings_are_dropped_before_the_launch() {
    let offering = |price: i64| Alternative {
        instance_type: format!("m5.{price}").as_str().into(),
        zone: "eu-west-1a".into(),
        capacity_type: crate::model::market::CapacityType::OnDemand,
        hourly: MicroUsd(price),
    };
    let mut plan = plan_launching(&[("1", &[("api", 2)], 80_000)]);
    let address = instance_address("web", "1");
    plan.capacity.alternatives = vec![crate::plan::wire::AlternativesRow {
        address: address.clone(),
        offerings: vec![offering(90_000), offering(PRICE.0 + 1)],
    }];
    let plan = plan.with_identity();
    let mut situation = Situation::new();
    let cover = situation.check(|context| cover(&plan, context, situation.now)).expect("covered");
    assert_eq!(cover.launches[&address].1, MicroUsd(90_000), "the highest price that may come");
    let kept = cover.without_dearer_offerings(&plan);
    assert_eq!(kept.capacity.alternatives[0].offerings, [offering(90_000)]);
    assert_ne!(kept.capacity.digest, plan.capacity.digest, "it is another decision");
    situation.persisted.use_contingency(&cover);
    let left = situation.persisted.approvals[0].contingency.as_ref().expect("stored");
    assert_eq!(left.hourly, PRICE.times(2) - MicroUsd(90_000));
}

#[test]
fn used_contingency_is_not_refunded() {
    let mut situation = Situation::new();
    for _ in 0..2 {
        assert_eq!(situation.allowed(&further_node()), 1);
        situation.take(&further_node());
    }
    assert_eq!(situation.allowed(&further_node()), 0);
    // Neither a second apply of the plan nor a second approval before it adds anything.
    situation.apply(90);
    assert_eq!(situation.allowed(&further_node()), 0);
    let mut twice = Situation::before_apply();
    let again = ApprovalRecord::new(approved_plan().capacity.digest, "bob".to_owned(), at(1));
    twice.persisted.approvals.push(again);
    twice.apply(MINUTE);
    twice.take(&further_node());
    twice.take(&further_node());
    twice.apply(90);
    assert_eq!(twice.allowed(&further_node()), 0);
}

#[test]
fn contingency_ends_with_its_hour_commit_or_approval() {
    let late = |seconds: i64| Situation::with(|s| s.now = at(seconds)).allowed(&further_node());
    assert_eq!([MINUTE + 3_599, MINUTE + 3_600].map(late), [1, 0]);
    // The clock was set back by far.
    let early = Situation::with(|s| s.now = at(MINUTE - 601));
    assert_eq!(early.allowed(&further_node()), 0);
    let committed = Situation::with(|s| s.revision.commit = "d".to_owned());
    assert_eq!(committed.allowed(&further_node()), 0);
    let forgotten = Situation::with(|s| s.persisted.approvals.clear());
    assert_eq!(forgotten.allowed(&further_node()), 0);
}

#[test]
fn contingency_waits_until_the_planned_nodes_are_open() {
    let launch = |ready_at| LaunchRecord {
        instance: InstanceId::from("i-1"),
        pool: "web".into(),
        at: at(70),
        ready_at,
        useful: false,
        from_start: true,
        passed_over: false,
        launched_for: None,
    };
    let starting = Situation::with(|s| s.persisted.launches = vec![launch(None)]);
    assert_eq!(starting.allowed(&further_node()), 0);
    let ready = Situation::with(|s| s.persisted.launches = vec![launch(Some(at(100)))]);
    assert_eq!(ready.allowed(&further_node()), 1);
    let failed = Situation::with(|s| {
        s.persisted.launches = vec![launch(None)];
        s.now = at(70 + 15 * MINUTE);
    });
    assert_eq!(failed.allowed(&further_node()), 1, "it never becomes Ready");
    let closed = Situation::with(|s| {
        let taints = vec![Taint::opening()];
        s.observed = s.observed.clone().with_node(Node { taints, ..node("n") });
    });
    assert_eq!(closed.allowed(&further_node()), 0);
}

#[test]
fn other_gates_apply_to_a_contingency() {
    let closed = Situation::with(|s| {
        let zone = jiff::tz::TimeZone::UTC;
        s.revision.guard.windows = vec![Window { days: Vec::new(), from: 0, to: 1, zone }];
    });
    assert_eq!(closed.allowed(&further_node()), 0, "outside the windows");
    let budget = Situation::with(|s| {
        s.revision.controller.launches.limit = crate::model::desired::CountOrShare::Count(0);
    });
    assert_eq!(budget.allowed(&further_node()), 0, "no launch budget");
    let latched = Situation::with(|s| {
        s.persisted.latch(gates::INEFFECTIVE_LAUNCHES_BREAKER, "x".to_owned(), None, at(0));
    });
    assert_eq!(latched.allowed(&further_node()), 0, "a latched breaker");
}

#[test]
fn launch_that_used_a_contingency_may_still_start_until_it_ends() {
    let mut situation = Situation::new();
    let plan = further_node();
    situation.take(&plan);
    let used = situation.take(&plan);
    let may = |situation: &Situation, used: Option<&ContingencyUse>| {
        situation.check(|context| may_still_start(&plan, used, context, situation.now))
    };
    assert!(may(&situation, Some(&used)), "nothing is left, and it counts itself");
    assert!(!may(&situation, None));
    situation.revision.commit = "d".to_owned();
    assert!(!may(&situation, Some(&used)));
    situation.revision.commit = "c".to_owned();
    situation.persisted.approvals.clear();
    assert!(!may(&situation, Some(&used)));
}

/// Returns a leader with this persisted state, whose plans need an approval by digest, and that has
/// made this plan.
fn controller(persisted: PersistedState, plan: &Plan) -> ControllerHarness {
    let mut harness = ControllerHarness::started();
    harness.step_at(1, Event::Signal(Signal::LeaseGained));
    harness.step_at(2, Event::StateLoaded(Ok(Box::new(persisted))));
    harness.edit_revision(|revision| {
        revision.controller.approval = ApprovalRule::Digest;
        revision.commit = "c".to_owned();
    });
    let waiting = || world(3).with_pods(pending("api", 3));
    harness.observe(3, waiting());
    for seconds in [3, 4] {
        if harness.state().planning_ticket().is_some() {
            harness.finish_planning(seconds, plan.clone());
        }
    }
    harness
}

/// Returns what is left of the contingency in a state.
fn left(persisted: &PersistedState) -> (u32, u32) {
    let contingency = persisted.approvals[0].contingency.as_ref().expect("it is stored");
    (contingency.pools["web"].nodes, contingency.uses)
}

/// Returns the state after the approved plan was applied.
fn applied_state() -> PersistedState {
    let mut situation = Situation::before_apply();
    situation.apply(0);
    situation.persisted
}

#[test]
fn use_is_persisted_before_the_launch() {
    let mut harness = controller(applied_state(), &further_node());
    let run = harness.state().applies.runs.values().next().expect("it is approved").clone();
    assert!(matches!(run.record.approved, ApprovedBy::Contingency { .. }));
    let used = run.contingency.expect("it uses the contingency");
    assert!(run.deferred_start.is_some(), "it waits for the write");
    let saved = harness.state().persistence.saved.clone().expect("loaded");
    assert!(!saved.has_counted_use(&used) && left(&saved) == (2, 0));
    harness.finish_saving(5);
    let saved = harness.state().persistence.saved.clone().expect("saved");
    assert!(saved.has_counted_use(&used));
    assert_eq!(left(&saved), (1, 1));
    let run = harness.state().applies.runs.values().next().expect("it goes on");
    assert!(run.deferred_start.is_none(), "it starts");
    // The process dies between the write and the launch: what it used stays used.
    let mut persisted = saved;
    for uses in [2, 2] {
        let mut harness = controller(persisted, &further_node());
        harness.finish_saving(6);
        persisted = harness.state().persistence.loaded.clone().expect("loaded");
        assert_eq!(left(&persisted), (0, uses));
    }
}

#[test]
fn launch_under_a_contingency_has_no_contingency_of_its_own() {
    let mut further = further_node();
    further.capacity.placement.contingency = approved_plan().capacity.placement.contingency;
    let further = further.with_identity();
    let mut harness = controller(applied_state(), &further);
    harness.finish_saving(5);
    let persisted = harness.state().persistence.loaded.clone().expect("loaded");
    assert_eq!((persisted.approvals.len(), left(&persisted)), (1, (1, 1)));
}

#[test]
fn apply_of_an_approved_plan_starts_its_contingency() {
    let plan = approved_plan();
    let mut persisted = PersistedState::default();
    let digest = plan.capacity.digest.clone();
    persisted.approvals.push(ApprovalRecord::new(digest, "alice".to_owned(), at(0)));
    let mut harness = controller(persisted, &plan);
    harness.finish_saving(5);
    let saved = harness.state().persistence.saved.clone().expect("saved");
    let contingency = saved.approvals[0].contingency.as_ref().expect("it is stored");
    assert_eq!(contingency.applied.as_ref().map(|applied| applied.commit.as_str()), Some("c"));
    assert_eq!(left(&saved), (2, 0));
}

#[test]
fn contingency_does_not_approve_a_plan_for_other_pods() {
    let plan = plan_launching(&[("1", &[("other", 1)], 1)]);
    let harness = controller(applied_state(), &plan);
    let current = harness.state().planning.current.as_ref().expect("a plan");
    let blocked: Vec<&BlockedReason> = current.blocked.values().map(|by| &by.reason).collect();
    assert!(matches!(blocked[..], [BlockedReason::NotApproved { .. }]), "{blocked:?}");
    assert!(harness.state().applies.runs.is_empty());
}
