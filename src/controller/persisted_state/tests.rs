//! Sliding budgets, launches that count once, and the size limit.

use super::super::inflight_launches::ROWS_MAX;
use super::*;
use crate::controller::persistence::PERSISTED_BYTES_MAX;
use crate::model::observed::Exclusion;
use crate::model::unavailable_offerings::ExclusionLimits;
use crate::plan::wire::PlacementRow;
use crate::testing::controller::at;
use crate::testing::{controller, sample_plan, workload_id, world};

#[test]
fn budget_slides_and_returns_time_of_next_move() {
    let within = SignedDuration::from_secs(60);
    for (times, most, now, left, next) in [
        (vec![], 2, 0, 2, 0),
        (vec![-70, -10], 2, 0, 1, 50),
        (vec![-50, -10], 2, 0, 0, 10),
        (vec![-50, -20, -10], 2, 0, 0, 40),
        (vec![-60], 1, 0, 1, 0),
    ] {
        let found =
            PersistedState::budget_room(times.iter().map(|s| at(*s)), most, within, at(now));
        assert_eq!(found, (left, at(next)), "{times:?} of {most}");
    }
    assert_eq!(PersistedState::budget_room([].into_iter(), 0, within, at(0)), (0, at(60)));
}

#[test]
fn quarantine_doubles_and_ends() {
    let mut state = PersistedState::default();
    let pool = PoolName::from("web");
    state.quarantine(&pool, String::new(), at(0));
    assert!(state.active_quarantine(&pool, at(299)).is_some());
    assert!(state.active_quarantine(&pool, at(300)).is_none());
    state.quarantine(&pool, String::new(), at(310));
    assert!(state.active_quarantine(&pool, at(909)).is_some());
    assert!(state.active_quarantine(&pool, at(910)).is_none());
    assert_eq!(
        ineffective_launches::quarantine_duration(40),
        ineffective_launches::QUARANTINE_FOR_MAX
    );
    state.forget(at(100_000));
    assert!(state.quarantine.is_empty());
}

/// Returns the demand of a plan that launches in pool `web` for pods that wait since then, with no
/// pod on `idle`.
fn demand(since: Option<i64>, idle: &[&str]) -> LaunchDemand {
    LaunchDemand::for_test(&[("web", since.map(at))], idle)
}

#[test]
fn ineffective_launches_quarantine_their_pool() {
    let pool = PoolName::from("web");
    let launched = |n: i64, ready: Option<i64>, helped| LaunchRecord {
        instance: format!("i-{n}").as_str().into(),
        pool: pool.clone(),
        at: at(n),
        ready_at: ready.map(at),
        useful: helped,
        from_start: false,
        passed_over: false,
        launched_for: None,
    };
    let all = ["i-1", "i-2", "i-3"];
    let is_quarantined = |launches: &[LaunchRecord], wanted: &LaunchDemand, now| {
        let mut state = PersistedState { launches: launches.to_vec(), ..PersistedState::default() };
        state.evaluate_launches(wanted, at(now));
        state.active_quarantine(&pool, at(now)).is_some()
    };
    let three = |ready, helped| [1, 2, 3].map(|n| launched(n, ready, helped)).to_vec();
    let ready = three(Some(40), false);
    let waited = demand(Some(0), &all);
    assert!(is_quarantined(&ready, &waited, 85), "Ready beside pending pods");
    assert!(!is_quarantined(&ready, &waited, 84), "pods need a moment");
    assert!(
        !is_quarantined(&ready, &demand(Some(100), &all), 144),
        "these wait since a moment ago"
    );
    assert!(is_quarantined(&ready, &demand(Some(100), &all), 145));
    assert!(
        !is_quarantined(&ready, &demand(None, &all), 2_000),
        "more is launched, and no pod is pending"
    );
    assert!(!is_quarantined(&ready, &demand(Some(0), &[]), 2_000), "the plan places pods on them");
    assert!(
        !is_quarantined(&ready, &LaunchDemand::for_test(&[("jobs", Some(at(0)))], &all), 2_000),
        "of another pool"
    );
    assert!(!is_quarantined(&three(Some(40), true), &waited, 200), "pods came");
    assert!(!is_quarantined(&ready[1..], &waited, 200), "two may be chance");
    assert!(!is_quarantined(&three(None, false), &waited, 800), "still booting");
    assert!(
        is_quarantined(&three(None, false), &demand(None, &[]), 904),
        "never Ready, whatever for"
    );
    let mut state = PersistedState { launches: ready, ..PersistedState::default() };
    state.evaluate_launches(&waited, at(100));
    state.launches.push(launched(401, Some(440), false));
    let waited = demand(Some(0), &["i-401"]);
    state.evaluate_launches(&waited, at(450));
    assert!(state.active_quarantine(&pool, at(450)).is_none(), "tried again");
    state.evaluate_launches(&waited, at(490));
    assert!(state.active_quarantine(&pool, at(1000)).is_some(), "for twice as long");
}

#[test]
fn pods_of_another_launch_make_no_launch_ineffective() {
    let (ids, now) = (["i-0", "i-1", "i-2"], at(400));
    let is_quarantined = |launched_for: Option<&str>| {
        let launch = |id: &&str| LaunchRecord {
            instance: (*id).into(),
            pool: "web".into(),
            at: at(0),
            ready_at: Some(at(60)),
            useful: false,
            from_start: true,
            passed_over: false,
            launched_for: launched_for.map(|digest| vec![digest.to_owned()]),
        };
        let launches = ids.iter().map(launch).collect();
        let mut state = PersistedState { launches, ..PersistedState::default() };
        state.evaluate_launches(&demand(Some(0), &ids), now);
        state.active_quarantine(&"web".into(), now).is_some()
    };
    assert!(is_quarantined(None), "of another process");
    assert!(is_quarantined(Some("pods")), "its own pods wait");
    assert!(!is_quarantined(Some("deleted")), "its own pods are gone");
}

#[test]
fn launches_name_declared_workloads_and_templates_of_others() {
    let mut plan = sample_plan::plan();
    let address = crate::controller::reconcile::launched_rows(&plan)
        .next()
        .expect("a launch")
        .address
        .clone();
    let workload = workload_id();
    let row = |pods| PlacementRow { workload: workload.clone(), address: address.clone(), pods };
    plan.capacity.placements = vec![row(2)];
    let mut demand = plan.capacity.demand.first().expect("a workload").clone();
    demand.workload = workload.clone();
    let origin = crate::model::ids::Origin::new("apps.yaml", 1);
    let mut digests = |template: &str, is_declared: bool| {
        demand.origin = is_declared.then(|| origin.clone());
        plan.capacity.demand = vec![demand.clone()];
        let mut world = controller::world(0);
        let owner = Some(workload.clone());
        let template = template.into();
        let pod = crate::model::observed::Pod { owner, template, ..world::pod("api") };
        world.pods.push(std::sync::Arc::new(pod));
        super::launch_digests(&plan, &world).remove(&address).expect("the launch")
    };
    let (one, other) = (digests("one", false), digests("other", false));
    assert_eq!((one.len(), other.len()), (1, 1));
    assert_ne!(one, other, "a tenant may give the workload other pods");
    assert_eq!(digests("one", true), digests("other", true), "the repository declares it");
}

#[test]
fn unplaceable_pods_make_no_launch_ineffective() {
    let mut plan = sample_plan::plan();
    let row =
        crate::controller::reconcile::launched_rows(&plan).next().expect("something is launched");
    let (address, after) = (row.address.clone(), row.change.after.clone());
    let pool = after.and_then(|after| after.pool).expect("of a pool");
    let workload = workload_id();
    let mut world = controller::world(0);
    for seconds in [-9_000, -30, -20] {
        let owner = Some(workload.clone());
        let created_at = at(seconds);
        let name = format!("api{seconds}");
        let pod = crate::model::observed::Pod { owner, created_at, ..world::pod(&name) };
        world.pods.push(std::sync::Arc::new(pod));
    }
    let mut since = |launches: u32, stuck: u32| {
        let placed =
            PlacementRow { workload: workload.clone(), address: address.clone(), pods: launches };
        plan.capacity.placements = vec![placed];
        let row = plan.capacity.unschedulable.first_mut().expect("one is unschedulable");
        (row.workload, row.pods) = (workload.clone(), stuck);
        plan.capacity.unschedulable.truncate(1);
        let demand = LaunchDemand::from_plan(&plan, &world);
        demand.pools.get(&pool).expect("it launches there").values().min().copied()
    };
    assert_eq!(since(3, 0), Some(at(-9_000)), "all of them");
    assert_eq!(since(2, 1), Some(at(-30)), "the first is stuck");
    assert_eq!(since(1, 0), Some(at(-20)), "the plan knows of one");
    assert_eq!(since(3, 3), None, "pods that do not exist yet");
}

#[test]
fn launch_counts_from_the_time_reported_by_ec2() {
    let within = SignedDuration::from_mins(3);
    let left = |state: &PersistedState, now| {
        PersistedState::budget_room(state.launch_times(), 5, within, at(now)).0
    };
    let launched = |at: Timestamp| LaunchRecord {
        instance: format!("i-{:017x}", 4).into(),
        pool: "web".into(),
        at,
        ready_at: None,
        useful: false,
        from_start: true,
        passed_over: false,
        launched_for: None,
    };
    // Five were launched at 0 to 4. The process that recorded the last had a clock four minutes
    // behind.
    let mut state =
        PersistedState { launches: vec![launched(at(-236))], ..PersistedState::default() };
    state.merge_observed(&running(5), at(10));
    assert_eq!((left(&state, 10), left(&state, 183), left(&state, 184)), (0, 0, 1));
    // For unrecorded launches our clock may be ahead.
    assert_eq!((left(&state, 189), left(&state, 190)), (1, 5));
    let mut state = PersistedState::default();
    state.merge_observed(&running(5), at(200));
    assert_eq!((left(&state, 379), left(&state, 380)), (0, 5));
    // A launch recorded by a clock that is ahead counts for longer.
    let mut state =
        PersistedState { launches: vec![launched(at(240))], ..PersistedState::default() };
    state.merge_observed(&running(5), at(10));
    assert_eq!((left(&state, 419), left(&state, 420)), (4, 5));
}

#[test]
fn pending_removal_counts_until_released() {
    let ids = |names: &[&str]| names.iter().copied().map(InstanceId::from).collect();
    let mut state = PersistedState::default();
    state.reserve_removals(&ids(&["i-1", "i-2", "i-3"]), at(0));
    assert!(
        state.has_reserved_removals(&ids(&["i-1", "i-3"]))
            && !state.has_reserved_removals(&ids(&["i-4"]))
    );
    state.record_removals(&ids(&["i-1"]), at(100));
    state.release_removals(&ids(&["i-2"]));
    let counted = |state: &PersistedState| {
        let all = state.removals.iter().map(|r| (r.instance.to_string(), r.at, r.pending));
        all.collect::<Vec<_>>()
    };
    let (one, three) = ("i-1".to_owned(), "i-3".to_owned());
    assert_eq!(counted(&state), [(three.clone(), at(0), true), (one.clone(), at(100), false)]);
    // A process that died may have removed it at any time until now.
    state.take_over(at(900));
    // It has removed the other one, by a clock that may have been behind this one.
    assert_eq!(counted(&state), [(three.clone(), at(900), false), (one.clone(), at(700), false)]);
    // One correction is enough, however many processes die. An earlier process recorded the first
    // removal only now.
    state.take_over(at(1_000));
    assert_eq!(counted(&state), [(three, at(1_000), false), (one, at(700), false)]);
}

#[test]
fn removal_never_counts_earlier_across_clocks() {
    // The removal was at 1,000 by a right clock: five minutes earlier by the first clock, five
    // minutes later by the last.
    let mut state = PersistedState::default();
    state.record_removals(&["i-1".into()].into(), at(700));
    for (now, at_most) in [(at(720), at(720)), (at(1_310), at(1_300))] {
        state.take_over(now);
        let counted: Vec<Timestamp> = state.removal_times().collect();
        assert_eq!(counted, [at_most]);
        let read: PersistedState =
            serde_json::from_str(&serde_json::to_string(&state).expect("text")).expect("reads");
        assert_eq!(read, state);
    }
}

fn repaired(n: usize) -> RepairRecord {
    let instance = format!("i-{n:017x}").as_str().into();
    RepairRecord { instance, pool: "a-pool-with-a-name".into(), at: at(0) }
}

/// Returns an approval. The last ones have rows and a contingency.
fn approval(n: usize) -> ApprovalRecord {
    let has_rows = n + APPROVALS_WITH_ROWS_MAX >= APPROVALS_MAX;
    let rows = if has_rows { APPROVED_ROWS_MAX } else { 0 };
    ApprovalRecord {
        digest: format!("{n:064x}").into(),
        by: "user@example.com".to_owned(),
        at: at(i64::try_from(n).expect("few")),
        rows: (0..rows).map(|row| format!("{row:020x}")).collect(),
        contingency: has_rows.then(crate::controller::contingency::largest),
    }
}

/// Returns a state with every list at its limit.
fn unavailable_offerings() -> UnavailableOfferings {
    let mut offerings = UnavailableOfferings::default();
    for n in 0..ExclusionLimits::CONTROLLER.entries {
        let offering = Exclusion {
            instance_type: Some(format!("m5.{n}xlarge").as_str().into()),
            zone: Some("us-east-1a".into()),
            capacity_type: None,
            until: at(0),
        };
        offerings.record(offering, at(0), ExclusionLimits::CONTROLLER);
    }
    offerings
}

fn full() -> PersistedState {
    let id = |n: usize| InstanceId::from(format!("i-{n:017x}").as_str());
    let name = |n: usize| format!("a-pool-with-a-name-{n}").as_str().into();
    let time = |n: usize| at(i64::try_from(n).expect("few"));
    let entry = |plan: usize| InDoubtLaunches {
        plan: format!("{plan:064x}").into(),
        at: at(0),
        attempts: 1,
        rows: (0..ROWS_MAX)
            .map(|n| (format!("ec2_instance.pool[\"{n}\"]").into(), format!("{n:016x}")))
            .collect(),
        offerings: BTreeMap::new(),
        since: Some(at(0)),
        unlisted: 0,
    };
    PersistedState {
        launches: (0..MOVES_MAX)
            .map(|n| LaunchRecord {
                instance: id(n),
                pool: name(n % 9),
                at: time(n),
                ready_at: Some(at(9)),
                useful: true,
                from_start: true,
                passed_over: false,
                launched_for: None,
            })
            .collect(),
        removals: (0..MOVES_MAX)
            .map(|n| RemovalRecord {
                instance: id(n),
                at: time(n),
                pending: false,
                first_noted_at: Some(time(n)),
            })
            .collect(),
        approvals: (0..APPROVALS_MAX).map(approval).collect(),
        confirmed_removals: (0..CONFIRMED_MAX).map(id).collect(),
        unavailable_offerings: unavailable_offerings(),
        interruptions: (0..INTERRUPTIONS_MAX)
            .map(|n| InterruptionRecord {
                instance: id(n),
                why: "rebalance-recommendation".to_owned(),
                since: time(n),
                deadline: Some(at(9)),
                member: false,
                announced: Some(Announcement { since: time(n), deadline: at(9) }),
            })
            .collect(),
        repairs: (0..REPAIRS_MAX).map(repaired).collect(),
        in_doubt_launches: vec![entry(1), entry(2)],
        ..PersistedState::default()
    }
}

#[test]
fn oversized_state_drops_entries_in_documented_order() {
    let state = full();
    // Approvals with rows have a contingency as well.
    let (rows, kept) = (APPROVALS_WITH_ROWS_MAX * APPROVED_ROWS_MAX, APPROVALS_WITH_ROWS_MAX);
    let sizes = |state: &PersistedState| {
        let rows: usize = state.approvals.iter().map(|approval| approval.rows.len()).sum();
        let entries: Vec<_> =
            state.in_doubt_launches.iter().map(|a| (a.rows.len(), a.unlisted)).collect();
        (rows, entries, state.launches.len())
    };
    let whole = (ROWS_MAX, 0);
    let count = (0, u32::try_from(ROWS_MAX).expect("few"));
    assert_eq!(state.fit_within(usize::MAX), state, "what fits stays whole");
    for (less, left, shed) in [
        (1, (rows - APPROVED_ROWS_MAX, vec![whole, whole], MOVES_MAX), APPROVED_ROWS_MAX + 1),
        (85_000, (0, vec![whole, whole], MOVES_MAX - 50), rows + kept + 50),
        (
            195_000,
            (0, vec![count, whole], 0),
            rows + kept + MOVES_MAX + ExclusionLimits::CONTROLLER.entries + ROWS_MAX,
        ),
    ] {
        let fitted = state.fit_within(state.size() - less);
        assert_eq!((sizes(&fitted), fitted.dropped_entries), (left, shed), "{less} bytes less");
        assert_eq!(fitted.launch_times().count(), MOVES_MAX, "budgets count all of them");
    }
    // A larger state is not saved at all.
    let fitted = state.fit_within(PERSISTED_BYTES_MAX);
    assert!(fitted.size() <= PERSISTED_BYTES_MAX, "{}", fitted.size());
    // Announced changes are dropped last.
    let least = state.fit_within(0);
    assert!(least.interruptions.iter().all(|of| of.announced.is_none()));
    assert!(least.size() <= 150 << 10, "{}", least.size());
    assert_eq!((&fitted.interruptions, &fitted.removals), (&state.interruptions, &state.removals));
    assert_eq!(
        (&fitted.repairs, &fitted.confirmed_removals),
        (&state.repairs, &state.confirmed_removals)
    );
}

/// Returns a world with this many instances of ours, launched a second apart.
fn running(count: i64) -> Observed {
    let mut observed = Observed::empty(crate::model::observed::ClusterIdentity::default(), at(0));
    for n in 0..count {
        let ours = world::managed_instance(&format!("i-{n:017x}"), "");
        let instance = Instance { launched_at: at(n), ..ours };
        observed.instances.insert(instance.id.clone(), instance);
    }
    observed
}

#[test]
fn launches_without_stored_ids_count_once() {
    let (observed, mut state) = (running(5_000), PersistedState::default());
    for round in 0..3 {
        state.merge_observed(&observed, at(5_000 + round));
        state.forget(at(5_000 + round));
        assert_eq!(
            (state.launch_times().count(), state.launches.len()),
            (5_000, MOVES_MAX),
            "{round}"
        );
        // A restart does not count them again.
        let text = serde_json::to_string(&state).expect("text");
        assert!(text.len() < 150_000, "{}", text.len());
        state = serde_json::from_str(&text).expect("reads");
    }
    // Later launches count.
    state.merge_observed(&running(5_010), at(5_020));
    state.forget(at(5_020));
    assert_eq!(state.launch_times().count(), 5_010);
}

#[test]
fn ineffective_launches_latch_breaker_at_any_fleet_size() {
    let pool = PoolName::from("web");
    for (helped, ineffective, latches) in [
        (9, 10, true),
        (10, 10, false),
        (0, 9, false),
        (900, 250, true),
        // At least half of the stored launches were useful.
        (900, 200, false),
    ] {
        let launch = |n: i64, helped| LaunchRecord {
            instance: format!("i-{n}").as_str().into(),
            pool: pool.clone(),
            at: at(n),
            ready_at: Some(at(n)),
            useful: helped,
            from_start: false,
            passed_over: !helped,
            launched_for: None,
        };
        let all = (0..helped + ineffective).map(|n| launch(n, n < helped)).collect();
        let (mut state, now) =
            (PersistedState { launches: all, ..PersistedState::default() }, at(2_000));
        state.forget(now);
        state.evaluate_launches(&LaunchDemand::default(), now);
        assert_eq!(state.breakers.len(), usize::from(latches), "{ineffective} of {helped} more");
    }
}

#[test]
fn observed_launch_counts_once() {
    let (observed, mut state) = (running(1_500), PersistedState::default());
    for round in 0..3 {
        state.merge_observed(&observed, at(1_500 + round));
        state.forget(at(1_500 + round));
        assert_eq!(
            (state.launch_times().count(), state.launches.len()),
            (1_500, MOVES_MAX),
            "{round}"
        );
    }
    let within = SignedDuration::from_mins(10);
    // 600 s hold that many, and 300 more: they are unrecorded, and our clock may be ahead. Some are
    // counted with later ones of their minute.
    let (left, _) = PersistedState::budget_room(state.launch_times(), 1_000, within, at(1_502));
    assert!((40..=103).contains(&left), "{left}");
    // Pending removals are stored one by one, and carried-out ones are counted.
    let ids =
        |from: usize| (from..from + 300).map(|n| InstanceId::from(format!("i-{n}"))).collect();
    state.reserve_removals(&ids(0), at(1_600));
    assert_eq!((state.pending_removal_room(), state.has_reserved_removals(&ids(0))), (100, true));
    state.record_removals(&ids(0), at(1_601));
    state.reserve_removals(&ids(300), at(1_602));
    state.forget(at(1_602));
    assert_eq!((state.removals.len(), state.removal_times().count()), (MOVES_MAX, 600));
    assert!(state.has_reserved_removals(&ids(300)));
    let read: PersistedState =
        serde_json::from_str(&serde_json::to_string(&state).expect("text")).expect("reads");
    assert_eq!(read, state);
}

#[test]
fn persisted_state_is_bounded_and_round_trips() {
    let mut state = PersistedState::default();
    for n in 0..1_000 {
        let instance = InstanceId::from(format!("i-{n}"));
        let removal = RemovalRecord {
            instance: instance.clone(),
            at: at(n),
            pending: false,
            first_noted_at: None,
        };
        state.removals.push(removal);
        state.launches.push(LaunchRecord {
            instance,
            pool: "web".into(),
            at: at(n),
            ready_at: None,
            useful: true,
            from_start: false,
            passed_over: false,
            launched_for: None,
        });
    }
    state.forget(at(1_000));
    assert_eq!((state.removals.len(), state.launches.len()), (MOVES_MAX, MOVES_MAX));
    let text = serde_json::to_string(&state).expect("text keys");
    // The API server accepts 256 KiB of annotations, shared with others.
    assert!(text.len() < 100_000, "{}", text.len());
    assert_eq!(serde_json::from_str::<PersistedState>(&text).expect("reads"), state);
    assert_eq!(
        serde_json::from_str::<PersistedState>("{}").expect("reads"),
        PersistedState::default()
    );
}

#[test]
fn newest_confirmations_are_retained() {
    let id = |n: usize| InstanceId::from(format!("i-{:017x}", 1_000 - n).as_str());
    let confirmed = (0..CONFIRMED_MAX + 3).map(id).collect();
    let mut state = PersistedState { confirmed_removals: confirmed, ..PersistedState::default() };
    state.forget(at(0));
    assert_eq!(state.confirmed_removals, (3..CONFIRMED_MAX + 3).map(id).collect::<Vec<_>>());
}
