use jiff::SignedDuration;

use super::*;
use crate::controller::{Event, PersistedState, PlanScope, Signal, VerifiedCommit};
use crate::model::desired::Mode;
use crate::plan::wire::WaveStep;
use crate::testing::controller::{ControllerHarness, at, world};
use crate::testing::sample_plan;

/// Moves the branch to a revision that CI applies.
fn read_ci_revision(harness: &mut ControllerHarness, seconds: i64, commit: &str) {
    let revision = harness.state().revisions.served.as_ref().or(harness
        .state()
        .revisions
        .waiting
        .as_ref()
        .map(|w| &w.revision));
    let mut revision = Revision::clone(revision.expect("one is known"));
    revision.commit = commit.to_owned();
    revision.controller.applied_by = AppliedBy::Ci;
    revision.controller.ci_timeout = SignedDuration::from_mins(10);
    harness.step_at(seconds, Event::BranchRead(Ok(Arc::new(revision))));
}

fn lead_with_served(
    harness: &mut ControllerHarness,
    seconds: i64,
    served: &str,
    waits_until: Option<i64>,
) {
    let waits_until = waits_until.map(at);
    let persisted = PersistedState {
        served_commit: Some(served.to_owned()),
        ci_wait_until: waits_until,
        ..PersistedState::default()
    };
    harness.step_at(seconds, Event::Signal(Signal::LeaseGained));
    harness.step_at(seconds, Event::StateLoaded(Ok(Box::new(persisted))));
}

fn served_commit(harness: &ControllerHarness) -> Option<&str> {
    harness.state().revisions.served.as_ref().map(|revision| revision.commit.as_str())
}

#[test]
fn new_leader_keeps_served_revision_and_ci_deadline() {
    let mut harness = ControllerHarness::started();
    // Without the lease it still serves the first, and newer ones wait.
    read_ci_revision(&mut harness, 10, "2");
    read_ci_revision(&mut harness, 20, "3");
    let until = harness
        .state()
        .revisions
        .waiting
        .as_ref()
        .map(|waiting| (waiting.revision.commit.clone(), waiting.serve_without_ci));
    assert_eq!(
        until,
        Some(("3".to_owned(), ServeWithoutCi::After(at(10 + 600)))),
        "since the first that waits"
    );
    // The previous leader had served 3, and a later merge waits longer.
    read_ci_revision(&mut harness, 500, "4");
    lead_with_served(&mut harness, 550, "3", Some(1_100));
    assert_eq!(served_commit(&harness), Some("1"), "what it served itself stands in for 3");
    let fallback =
        harness.state().revisions.required.as_ref().map(|fallback| fallback.commit.clone());
    assert_eq!(fallback.as_deref(), Some("3"));
    let mut read =
        Revision::clone(&harness.state().revisions.waiting.as_ref().expect("it waits").revision);
    read.commit = "3".to_owned();
    let (commit, read) = ("3".to_owned(), Ok(Arc::new(read)));
    harness.step_at(560, Event::CommitRead { commit, read });
    harness.step_at(700, Event::Timer);
    assert_eq!(
        served_commit(&harness),
        Some("3"),
        "it waits for longer than this process had it wait"
    );
    harness.step_at(1_100, Event::Timer);
    assert_eq!(served_commit(&harness), Some("4"));
}

/// Returns a new leader while `3` is served and `4` waits for CI. It has read `4` alone, or `1`
/// before.
fn leader_without_served_revision(knows: bool) -> ControllerHarness {
    let mut harness = ControllerHarness::started();
    read_ci_revision(&mut harness, 10, "4");
    if !knows {
        // A process that has just started.
        harness.modify(|state| (state.revisions.served, state.revisions.required) = (None, None));
    }
    lead_with_served(&mut harness, 20, "3", Some(2_000));
    harness.modify(|state| state.planning.run = None);
    harness
}

/// Answers the read of the fallback revision.
fn answer_read(
    harness: &mut ControllerHarness,
    seconds: i64,
    read: Result<Arc<Revision>, RevisionError>,
) {
    harness.step_at(seconds, Event::CommitRead { commit: "3".to_owned(), read });
}

/// Adds pending pods, and returns the scope of the plan for them.
fn planned_scope(harness: &mut ControllerHarness, seconds: i64) -> Option<PlanScope> {
    harness.modify(|state| state.planning.run = None);
    harness.observe(seconds, world(seconds));
    harness.modify(|state| state.planning.replan_at = at(seconds));
    harness.step_at(seconds, Event::Timer);
    harness.state().planning.run.as_ref().map(|planning| planning.scope.clone())
}

#[test]
fn substitute_launches_and_removes_nothing() {
    for (knows, substitute) in [(true, "1"), (false, "4")] {
        let mut harness = leader_without_served_revision(knows);
        for seconds in [30, 60, 400] {
            answer_read(
                &mut harness,
                seconds,
                Err(RevisionError::Unreadable("no route".to_owned())),
            );
            assert_eq!(served_commit(&harness), Some(substitute), "{seconds}");
            let adds = PlanScope { running_pods_only: true, ..PlanScope::additive() };
            assert_eq!(planned_scope(&mut harness, seconds + 1), Some(adds), "{seconds}");
            assert_eq!(harness.state().mode(), Mode::Additive, "and interruptions are heeded");
            assert!(!harness.state().revisions.is_reading_required, "not at once again");
        }
        let repository = harness.state().status().repository;
        assert_eq!(repository.substitute_for.as_deref(), Some("3"));
        let why = repository.waiting.map(|(_, why)| why).unwrap_or_default();
        assert!(why.contains("commit 3") && why.contains("no route"), "{why}");
        // Its launches start.
        let launches = sample_plan::plan().only(WaveStep::Launch);
        harness.finish_planning(402, launches);
        let waits = |harness: &ControllerHarness| {
            let mut runs = harness.state().applies.runs.values();
            runs.any(|run| run.deferred_start.is_some())
        };
        assert!(waits(&harness), "they are being persisted");
        harness.step_at(800, Event::Timer);
        assert!(harness.state().revisions.is_reading_required, "it is asked for again");
        let mut revision =
            Revision::clone(harness.state().revisions.served.as_ref().expect("one stands in"));
        revision.commit = "3".to_owned();
        answer_read(&mut harness, 801, Ok(Arc::new(revision)));
        assert_eq!(
            (served_commit(&harness), harness.state().revisions.serves_substitute()),
            (Some("3"), false)
        );
        assert!(!waits(&harness), "what waited is planned of the one that is served");
        assert_eq!(
            harness.state().observation.required(),
            harness.state().observation.next_number(),
            "over a look that is begun now"
        );
        assert_eq!(harness.state().mode(), Mode::Full);
        assert_eq!(harness.state().status().repository.substitute_for, None);
    }
}

#[test]
fn verified_commit_is_remembered_until_signers_are_removed() {
    let mut harness = ControllerHarness::started();
    let verified = |harness: &ControllerHarness| {
        let persisted = harness.state().persistence.loaded.as_ref().expect("loaded");
        let text = serde_json::to_string(persisted).expect("JSON");
        let persisted: PersistedState = serde_json::from_str(&text).expect("the same");
        persisted.verified.map(|verified| verified.commit)
    };
    for (seconds, commit, is_signed) in [(10, "2", true), (20, "3", true), (30, "4", false)] {
        let verified_commit = VerifiedCommit { commit: commit.to_owned(), guard_ref: None };
        let mut revision = crate::testing::controller::revision(commit);
        revision.verified = is_signed.then_some(verified_commit);
        harness.step_at(seconds, Event::BranchRead(Ok(Arc::new(revision))));
        assert_eq!(verified(&harness).as_deref(), is_signed.then_some(commit));
    }
}

#[test]
fn commit_with_keys_waits_for_ci_without_deadline() {
    let mut harness = ControllerHarness::started();
    let mut revision = crate::testing::controller::revision("2");
    revision.controller.applied_by = AppliedBy::Ci;
    revision.controller.ci_timeout = SignedDuration::from_mins(10);
    let pem = "MCowBQYDK2VwAyEAK6r6k6xSO+Tf7GsjgOLiOP431kQtIjsjKV0hIVgox0c=";
    let key = crate::model::desired::TrustedKey::from_pem("alice", pem).expect("a key");
    revision.guard.keys = vec![key];
    harness.step_at(10, Event::BranchRead(Ok(Arc::new(revision))));
    harness.step_at(10_000, Event::Timer);
    assert_eq!(served_commit(&harness), Some("1"), "its approvers sign");
    let waiting = harness.state().status().repository.waiting.map(|(_, why)| why);
    assert!(waiting.is_some_and(|why| why.contains("its approvers sign")));
}

#[test]
fn commit_that_changes_the_fleet_does_not_shorten_its_own_wait() {
    let ci_revision = |commit: &str, timeout: i64, fleet: &str| {
        let mut revision = crate::testing::controller::revision(commit);
        revision.controller.applied_by = AppliedBy::Ci;
        revision.controller.ci_timeout = SignedDuration::from_secs(timeout);
        revision.fleet_digest = fleet.to_owned();
        revision
    };
    for (fleet, seconds) in [("grown", 600), ("before", 1)] {
        let before = ci_revision("1", 600, "before");
        let mut harness = ControllerHarness::started_without_mode();
        let persisted = PersistedState {
            served_commit: Some("1".to_owned()),
            rules: Some(ServedRules::of(&before)),
            ..PersistedState::default()
        };
        harness.step_at(1, Event::Signal(Signal::LeaseGained));
        harness.step_at(1, Event::StateLoaded(Ok(Box::new(persisted))));
        harness.step_at(2, Event::BranchRead(Ok(Arc::new(before))));
        harness.step_at(10, Event::BranchRead(Ok(Arc::new(ci_revision("2", 1, fleet)))));
        let waiting =
            harness.state().revisions.waiting.as_ref().map(|waiting| waiting.serve_without_ci);
        assert_eq!(waiting, Some(ServeWithoutCi::After(at(10 + seconds))), "{fleet}");
    }
}

#[test]
fn first_plan_uses_observation_started_after_the_read() {
    let mut harness = ControllerHarness::started();
    let revision = harness.state().revisions.served.clone().expect("one is served");
    for (known, awaited) in [(true, false), (false, true)] {
        harness.modify(|state| {
            state.planning.run = None;
            state.revisions.served = known.then(|| Arc::clone(&revision));
            state.planning.replan_at = at(0);
        });
        harness.step_at(5, Event::BranchRead(Ok(Arc::clone(&revision))));
        let state = harness.state();
        assert_eq!(!state.observation.is_sufficient(), awaited, "{known}");
        assert_eq!(state.planning.run.is_none(), awaited, "{known}");
    }
    harness.observe(6, world(6));
    harness.observe(6, world(6));
    assert!(harness.state().planning.run.is_some());
}

#[test]
fn missing_fallback_revision_serves_the_newest() {
    for knows in [true, false] {
        let mut harness = leader_without_served_revision(knows);
        answer_read(&mut harness, 30, Err(RevisionError::NotFound("not our ref".to_owned())));
        assert_eq!(
            (served_commit(&harness), harness.state().revisions.serves_substitute()),
            (Some("4"), false)
        );
        assert!(harness.state().revisions.waiting.is_none(), "it waits for nothing");
        let persisted = harness
            .state()
            .persistence
            .loaded
            .as_ref()
            .and_then(|persisted| persisted.served_commit.as_deref());
        assert_eq!(persisted, Some("4"));
        assert_eq!(planned_scope(&mut harness, 31), Some(PlanScope::default()));
    }
}

#[test]
fn confirmations_survive_a_substitute() {
    let mut harness = leader_without_served_revision(true);
    harness.modify(|state| {
        state.persistence.loaded.as_mut().expect("recalled").confirmed_removals.push("i-1".into());
    });
    planned_scope(&mut harness, 40);
    harness.finish_planning(41, sample_plan::plan());
    assert!(harness.state().planning.current.is_some());
    assert_eq!(
        harness.state().persistence.loaded.as_ref().expect("recalled").confirmed_removals.len(),
        1
    );
}

#[test]
fn new_leader_keeps_its_revision_if_persisted_or_without_ci() {
    let mut harness = ControllerHarness::started();
    lead_with_served(&mut harness, 10, "of before", None);
    assert_eq!(served_commit(&harness), Some("1"), "a merge is carried out here");
    read_ci_revision(&mut harness, 20, "1");
    lead_with_served(&mut harness, 30, "1", None);
    assert_eq!(
        (served_commit(&harness), harness.state().revisions.waiting.is_none()),
        (Some("1"), true)
    );
}

/// Reads the branch, whose commit reads these pools of the cluster.
fn read_pools(harness: &mut ControllerHarness, seconds: i64, pools: &str) {
    let served = harness.state().revisions.served.as_ref().expect("one is served");
    let mut revision = Revision::clone(served);
    revision.cluster_pools = Some(pools.to_owned());
    harness.step_at(seconds, Event::BranchRead(Ok(Arc::new(revision))));
}

#[test]
fn served_commit_is_read_anew_if_pools_changed_while_a_newer_one_waits() {
    let mut harness = ControllerHarness::started();
    read_pools(&mut harness, 1, "a");
    read_ci_revision(&mut harness, 10, "2");
    assert_eq!(served_commit(&harness), Some("1"));
    let required = |harness: &ControllerHarness| {
        harness.state().revisions.required.as_ref().map(|required| required.commit.clone())
    };
    assert_eq!(required(&harness), None, "the same pools");
    let mut newest =
        Revision::clone(&harness.state().revisions.waiting.as_ref().expect("it waits").revision);
    newest.cluster_pools = Some("b".to_owned());
    harness.step_at(20, Event::BranchRead(Ok(Arc::new(newest))));
    assert_eq!(required(&harness).as_deref(), Some("1"));
    let mut read =
        Revision::clone(harness.state().revisions.served.as_ref().expect("one is served"));
    read.cluster_pools = Some("b".to_owned());
    let (commit, read) = ("1".to_owned(), Ok(Arc::new(read)));
    harness.step_at(21, Event::CommitRead { commit, read });
    let served = harness.state().revisions.served.as_ref().expect("one is served");
    assert_eq!((served.commit.as_str(), served.cluster_pools.as_deref()), ("1", Some("b")));
}
