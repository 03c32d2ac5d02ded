//! Requested launches whose result is not known yet.
//!
//! EC2 launches once per client token, and shows the instance only later. A process that dies
//! between call and answer leaves an unknown instance; a plan made without it would launch another
//! one. So the launches of a plan are persisted before the first call, with one save for all. A
//! plan with the same decision for the same address repeats the token. EC2 then returns the same
//! instance, or reports that the token was used (for another subnet or image, which are looked up
//! again): that launch waits too. A launch with any other decision waits until EC2 must have shown
//! the earlier instance.
//!
//! Nothing resolves the doubt sooner. Only a repeated request returns the answer to a token. If the
//! first call never arrived, the repeat launches an instance that the repository no longer
//! requests, perhaps because it was wrong. Lists by tag or token are the lists that lag. The wait
//! does not start when an earlier process sent the request: its clock may differ, and it may have
//! sent requests until it died. A controller that is killed repeatedly waits
//! [`EC2_VISIBILITY_MAX`] from the time at which the last process reads the persisted state, and
//! only if it has something else to launch.
//!
//! Invariant: while the result of a launch is unknown and this process does not await its answer, no
//! other launch begins than that one again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::launches_in_progress::CurrentRequests;
use super::planning_snapshot::EC2_VISIBILITY_MAX;
use super::reconcile;
use crate::apply::EarlierLaunch;
use crate::model::ids::{Address, ChangeId, PlanId};
use crate::model::observed::{Observed, tag};
use crate::model::saturating_time::later;
use crate::plan::wire::{ResourceChange, ResourceKind};
use crate::plan::{Plan, canonical, change_id};

/// Most launches whose decisions are stored one by one.
pub(super) const ROWS_MAX: usize = 1_000;
/// Most repeats of a launch under the same token. More is of no use, and each repeat delays the
/// time at which it counts as not launched.
const ATTEMPTS_MAX: u32 = 8;
/// Stored digits of a change digest: only changes of one address are compared.
const DIGEST_LENGTH: usize = 16;

/// Requested launches of one plan whose results are unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InDoubtLaunches {
    /// The plan: with the address it determines the client token.
    pub plan: PlanId,
    /// Latest time at which EC2 may have received a request.
    pub at: Timestamp,
    /// Number of repeated requests.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// Digest of each decision, by address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rows: BTreeMap<Address, String>,
    /// Index of the requested offering where it is not the first: the earlier ones had no capacity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub offerings: BTreeMap<Address, u32>,
    /// First request; it matters where other offerings than the first were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Number of further launches whose decisions are not stored.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unlisted: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl InDoubtLaunches {
    fn retain(&mut self, keep: impl Fn(&Address) -> bool) {
        self.rows.retain(|address, _| keep(address));
        self.offerings.retain(|address, _| self.rows.contains_key(address));
    }

    /// Keeps only the number of the launches; returns how many decisions were dropped.
    pub(super) fn forget_rows(&mut self) -> usize {
        self.offerings.clear();
        let rows = std::mem::take(&mut self.rows).len();
        self.unlisted = self.unlisted.saturating_add(u32::try_from(rows).unwrap_or(u32::MAX));
        rows
    }
}

/// Earlier requests of launches, by address.
pub(super) type PriorAttempts = BTreeMap<Address, EarlierLaunch>;

/// Registers the launches of `plan` before they are requested; returns those requested before.
/// Launches that this process requests now (`current`) are not in doubt: the plan counts them.
///
/// # Errors
/// Returns the time at which other launches in doubt count as not launched, while there are any.
pub(super) fn register_launches(
    all: &mut Vec<InDoubtLaunches>,
    plan: &Plan,
    current: &CurrentRequests,
    now: Timestamp,
) -> Result<PriorAttempts, Timestamp> {
    let mut new = launch_digests(plan);
    let mut repeated = PriorAttempts::new();
    for entry in all.iter().filter(|entry| entry.attempts < ATTEMPTS_MAX) {
        for (address, row) in &entry.rows {
            if new.get(address) == Some(row) && !current.addresses.contains(address) {
                new.remove(address);
                let attempt = entry.offerings.get(address).copied().unwrap_or(0);
                repeated.insert(
                    address.clone(),
                    EarlierLaunch {
                        change: change_id(&entry.plan, address),
                        attempt_index: attempt,
                    },
                );
            }
        }
    }
    let is_unmatched = |entry: &&InDoubtLaunches| {
        let is_awaited =
            |address| repeated.contains_key(address) || current.addresses.contains(address);
        (entry.unlisted > 0 && !current.plans.contains(&entry.plan))
            || entry.rows.keys().any(|address| !is_awaited(address))
    };
    if let Some(left) = all.iter().find(is_unmatched).filter(|_| !new.is_empty()) {
        return Err(later(left.at, EC2_VISIBILITY_MAX));
    }
    for entry in all.iter_mut() {
        if entry.rows.keys().any(|address| repeated.contains_key(address)) {
            (entry.at, entry.attempts) = (now, entry.attempts.saturating_add(1));
        }
    }
    if !new.is_empty() {
        let plan = plan.capacity.plan_id.clone();
        let (rows, unlisted) = if new.len() > ROWS_MAX {
            (BTreeMap::new(), u32::try_from(new.len()).unwrap_or(u32::MAX))
        } else {
            (new, 0)
        };
        let since = Some(now);
        all.push(InDoubtLaunches {
            plan,
            at: now,
            attempts: 0,
            rows,
            offerings: BTreeMap::new(),
            since,
            unlisted,
        });
    }
    Ok(repeated)
}

/// Returns whether the launches of `plan` are registered.
pub(super) fn has_registered(all: &[InDoubtLaunches], plan: &Plan) -> bool {
    let is_unlisted =
        |entry: &InDoubtLaunches| entry.unlisted > 0 && entry.plan == plan.capacity.plan_id;
    all.iter().any(is_unlisted)
        || launch_digests(plan)
            .iter()
            .all(|(address, row)| all.iter().any(|entry| entry.rows.get(address) == Some(row)))
}

/// Records that another offering of a launch is about to be requested.
pub(super) fn record_attempt(all: &mut [InDoubtLaunches], address: &Address, attempt: u32) {
    for entry in all.iter_mut().filter(|entry| entry.rows.contains_key(address)) {
        entry.offerings.insert(address.clone(), attempt);
    }
}

/// Returns whether the request of an offering is recorded, or the launch is not stored by itself.
pub(super) fn has_recorded_attempt(
    all: &[InDoubtLaunches],
    address: &Address,
    attempt: u32,
) -> bool {
    let mut entries = all.iter().filter(|entry| entry.rows.contains_key(address));
    entries.all(|entry| entry.offerings.get(address).is_some_and(|stored| *stored >= attempt))
}

/// Returns since when launches with fallback offerings are in doubt. Offerings found unavailable since
/// then are ignored until those launches are answered: a plan that used them would decide
/// differently and could not repeat the requests. Launches that this process requests now are not
/// repeated.
pub(super) fn fallback_since(
    all: &[InDoubtLaunches],
    current: &CurrentRequests,
) -> Option<Timestamp> {
    let falls_back = |entry: &&InDoubtLaunches| {
        entry.offerings.keys().any(|address| !current.addresses.contains(address))
    };
    all.iter().filter(falls_back).filter_map(|entry| entry.since).min()
}

/// Forgets a launch that was answered.
pub(super) fn forget_answered(all: &mut Vec<InDoubtLaunches>, address: &Address) {
    for entry in all.iter_mut() {
        entry.retain(|other| other != address);
    }
    all.retain(|entry| entry.unlisted > 0 || !entry.rows.is_empty());
}

/// Forgets the launches of an ended apply, except those without an answer.
pub(super) fn forget_apply(
    all: &mut Vec<InDoubtLaunches>,
    plan: &Plan,
    unanswered: &BTreeSet<Address>,
    now: Timestamp,
) {
    let of_plan = launch_digests(plan);
    for entry in all.iter_mut() {
        let mine = entry.plan == plan.capacity.plan_id;
        entry.unlisted = if mine && unanswered.is_empty() { 0 } else { entry.unlisted };
        entry.retain(|address| unanswered.contains(address) || !of_plan.contains_key(address));
        if mine || entry.rows.keys().any(|address| unanswered.contains(address)) {
            entry.at = now;
        }
    }
    all.retain(|entry| entry.unlisted > 0 || !entry.rows.is_empty());
}

/// Forgets launches whose instances are observed, in any state.
pub(super) fn forget_observed(all: &mut Vec<InDoubtLaunches>, observed: &Observed) {
    if all.is_empty() {
        return;
    }
    let tags = observed.instances.values().filter_map(|instance| instance.tags.get(tag::CHANGE));
    let changes: BTreeSet<&str> = tags.map(String::as_str).collect();
    for entry in all.iter_mut() {
        let plan = entry.plan.clone();
        entry.retain(|address| !changes.contains(change_id(&plan, address).as_str()));
    }
    all.retain(|entry| entry.unlisted > 0 || !entry.rows.is_empty());
}

/// Tags the instances of `repeated` launches as those of the plan that repeats them. A planner
/// derives the change IDs of a plan from its ID, and would count these launches as not made.
pub(super) fn tag_repeated_launches(world: &mut Observed, plan: &PlanId, repeated: &PriorAttempts) {
    let by_earlier_change: BTreeMap<&str, ChangeId> = repeated
        .iter()
        .map(|(address, launch)| (launch.change.as_str(), change_id(plan, address)))
        .collect();
    for instance in world.instances.values_mut() {
        let earlier = instance.tags.get(tag::CHANGE);
        let change = earlier.and_then(|earlier| by_earlier_change.get(earlier.as_str()));
        if let Some(change) = change {
            instance.tags.insert(tag::CHANGE.to_owned(), change.to_string());
        }
    }
}

/// Restarts the wait for unanswered launches at the last call of their apply.
pub(super) fn restart_wait(
    all: &mut [InDoubtLaunches],
    unanswered: &BTreeSet<Address>,
    now: Timestamp,
) {
    for entry in all.iter_mut() {
        if entry.rows.keys().any(|address| unanswered.contains(address)) {
            entry.at = now;
        }
    }
}

/// Forgets launches that EC2 would show by now, except those in progress (`launching`). Addresses
/// decide: a repeated launch runs under another plan than the first request.
pub(super) fn forget(
    all: &mut Vec<InDoubtLaunches>,
    launching: &BTreeSet<Address>,
    now: Timestamp,
) {
    let is_in_progress = |entry: &InDoubtLaunches| {
        entry.rows.keys().any(|address| launching.contains(address))
            || entry.unlisted > 0 && !launching.is_empty()
    };
    all.retain(|entry| now < later(entry.at, EC2_VISIBILITY_MAX) || is_in_progress(entry));
}

/// Restarts the wait for requests that an earlier process was about to send: whether and when it
/// sent them is unknown.
pub(super) fn take_over(all: &mut [InDoubtLaunches], now: Timestamp) {
    for entry in all {
        entry.at = now;
    }
}

/// Returns a digest of each launch of a plan: its row, its alternatives and the price that decides
/// which of them are requested together. Members that a group
/// creates are excluded: setting the size of a group is repeatable.
fn launch_digests(plan: &Plan) -> BTreeMap<Address, String> {
    let mut alternatives: BTreeMap<&Address, Vec<_>> = BTreeMap::new();
    for row in &plan.capacity.alternatives {
        alternatives.entry(&row.address).or_default().push(&row.offerings);
    }
    let explained = plan.capacity.explain.iter();
    let prices: BTreeMap<&Address, _> =
        explained.map(|row| (&row.address, row.hourly_after)).collect();
    let digest = |row: &ResourceChange| {
        let alternatives = alternatives.get(&row.address);
        let price = alternatives.and_then(|_| prices.get(&row.address));
        let decides = (&row.address, &row.change, alternatives, price);
        canonical::short_digest(&decides, DIGEST_LENGTH)
    };
    own_launches(plan).map(|row| (row.address.clone(), digest(row))).collect()
}

/// Returns the launches of a plan, except of members that a group launches.
pub(super) fn own_launches(plan: &Plan) -> impl Iterator<Item = &ResourceChange> {
    let groups = plan.resource_changes.iter();
    let groups = groups.filter(|row| row.kind == ResourceKind::AutoscalingGroup);
    let grouped: BTreeSet<&str> = groups.map(|row| row.name.as_str()).collect();
    reconcile::launched_rows(plan).filter(move |row| {
        let pool = row.change.after.as_ref().and_then(|after| after.pool.as_ref());
        !pool.is_some_and(|pool| grouped.contains(pool.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::{BlockedReason, Event};
    use crate::plan::wire::WaveStep;
    use crate::testing::controller::{self, ControllerHarness, at};
    use crate::testing::sample_plan;

    /// Registers the launches of a plan while no other apply requests launches.
    fn register(
        all: &mut Vec<InDoubtLaunches>,
        plan: &Plan,
        now: Timestamp,
    ) -> Result<PriorAttempts, Timestamp> {
        register_launches(all, plan, &CurrentRequests::default(), now)
    }

    /// Returns a later plan with the same decisions.
    fn replanned(plan: &Plan, name: &str) -> Plan {
        let mut plan = plan.clone();
        plan.capacity.plan_id = name.into();
        plan
    }

    /// Returns a plan whose first launch decides something else.
    fn with_other_decision(plan: &Plan) -> Plan {
        let mut plan = replanned(plan, "otherwise");
        let first = launch_digests(&plan).into_keys().next().expect("a launch");
        let after = plan.row_mut(&first).change.after.as_mut().expect("a node");
        after.zone = Some("us-east-1z".into());
        plan
    }

    #[test]
    fn same_launch_repeats_its_token_and_any_other_waits() {
        let (plan, mut all) = (sample_plan::plan(), Vec::new());
        assert!(!has_registered(&all, &plan));
        assert_eq!(
            register(&mut all, &plan, at(0)),
            Ok(PriorAttempts::new()),
            "nothing was requested before"
        );
        assert!(has_registered(&all, &plan) && !has_registered(&all, &with_other_decision(&plan)));
        take_over(&mut all, at(10));
        let expected: PriorAttempts = launch_digests(&plan)
            .into_keys()
            .map(|address| {
                let change = change_id(&plan.capacity.plan_id, &address);
                (address, EarlierLaunch { change, attempt_index: 0 })
            })
            .collect();
        assert!(expected.len() > 2);
        assert_eq!(register(&mut all, &replanned(&plan, "later"), at(20)), Ok(expected.clone()));
        let until = later(at(20), EC2_VISIBILITY_MAX);
        assert_eq!(register(&mut all, &with_other_decision(&plan), at(30)), Err(until));
        // A part of the plan is nothing new.
        let mut part = replanned(&plan, "part");
        let first = expected.keys().next().expect("some").clone();
        part.capacity.waves.iter_mut().for_each(|wave| wave.addresses.retain(|a| *a != first));
        assert_eq!(
            register(&mut all, &part, at(40)).map(|repeated| repeated.len()),
            Ok(expected.len() - 1)
        );
        // Not forever: by then the requests are no longer identified.
        for n in 2..ATTEMPTS_MAX {
            assert!(register(&mut all, &plan, at(40 + i64::from(n))).is_ok());
        }
        assert!(register(&mut all, &plan, at(60)).is_err());
        let end = later(all[0].at, EC2_VISIBILITY_MAX);
        forget(&mut all, &[first].into(), end);
        assert_eq!(all.len(), 1, "it is in progress, by whichever plan");
        forget(&mut all, &BTreeSet::new(), end);
        assert_eq!(register(&mut all, &with_other_decision(&plan), end), Ok(PriorAttempts::new()));
    }

    #[test]
    fn launches_that_this_process_requests_are_not_in_doubt() {
        let (plan, mut all) = (sample_plan::plan(), Vec::new());
        assert!(register(&mut all, &plan, at(0)).is_ok());
        let mut other = replanned(&plan, "other");
        let first = launch_digests(&plan).into_keys().next().expect("a launch");
        other.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
        other.row_mut(&first).address = "ec2_instance.web[\"77\"]".into();
        other.capacity.waves[0].addresses = vec!["ec2_instance.web[\"77\"]".into()];
        let mut current = CurrentRequests {
            addresses: all[0].rows.keys().cloned().collect(),
            plans: [plan.capacity.plan_id.clone()].into(),
        };
        let beside = |current: &CurrentRequests, all: &[InDoubtLaunches]| {
            register_launches(&mut all.to_vec(), &other, current, at(1)).is_ok()
        };
        assert!(beside(&current, &all));
        let many = [InDoubtLaunches { unlisted: 9, ..in_doubt(&plan) }];
        assert!(beside(&current, &many), "too many to list");
        record_attempt(&mut all, &first, 1);
        assert_eq!(fallback_since(&all, &current), None, "the plan repeats none of them");
        current.addresses.remove(&first);
        current.plans.clear();
        assert!(!beside(&current, &all), "its request failed without an answer");
        assert!(!beside(&current, &many));
        assert_eq!(fallback_since(&all, &current), Some(at(0)));
    }

    #[test]
    fn last_requested_offering_is_stored_until_answered() {
        let (plan, mut all) = (sample_plan::plan(), Vec::new());
        assert!(register(&mut all, &plan, at(7)).is_ok());
        let mut addresses = launch_digests(&plan).into_keys();
        let (first, second) =
            (addresses.next().expect("a launch"), addresses.next().expect("another"));
        assert_eq!(
            (
                has_recorded_attempt(&all, &first, 1),
                fallback_since(&all, &CurrentRequests::default())
            ),
            (false, None)
        );
        record_attempt(&mut all, &first, 1);
        record_attempt(&mut all, &first, 2);
        let stored: Vec<InDoubtLaunches> =
            serde_json::from_str(&serde_json::to_string(&all).expect("text")).expect("reads");
        assert_eq!(stored, all);
        assert!(
            has_recorded_attempt(&stored, &first, 2) && !has_recorded_attempt(&stored, &second, 1)
        );
        take_over(&mut all, at(90));
        assert_eq!(
            fallback_since(&all, &CurrentRequests::default()),
            Some(at(7)),
            "not since the process restarted"
        );
        let repeated = register(&mut all, &replanned(&plan, "later"), at(91)).expect("the same");
        assert_eq!((repeated[&first].attempt_index, repeated[&second].attempt_index), (2, 0));
        forget_answered(&mut all, &first);
        assert_eq!(fallback_since(&all, &CurrentRequests::default()), None);
        assert!(has_recorded_attempt(&all, &first, 3), "it is not awaited");
    }

    #[test]
    fn answer_or_end_of_apply_clears_all_but_unanswered() {
        let (plan, mut all) = (sample_plan::plan(), Vec::new());
        assert!(register(&mut all, &plan, at(0)).is_ok());
        let addresses: Vec<Address> = launch_digests(&plan).into_keys().collect();
        forget_answered(&mut all, &addresses[0]);
        assert_eq!(all[0].rows.len(), addresses.len() - 1);
        forget_apply(&mut all, &plan, &[addresses[1].clone()].into(), at(50));
        assert_eq!(all[0].rows.keys().collect::<Vec<_>>(), [&addresses[1]]);
        assert_eq!(all[0].at, at(50), "EC2 may have received it until then");
        forget_apply(&mut all, &plan, &BTreeSet::new(), at(60));
        assert_eq!(all, []);
        // Of too many launches only their number is stored.
        let mut all = vec![InDoubtLaunches { unlisted: 9, ..in_doubt(&plan) }];
        assert_eq!(register(&mut all, &plan, at(1)), Err(later(at(0), EC2_VISIBILITY_MAX)));
        forget_apply(&mut all, &plan, &BTreeSet::new(), at(60));
        assert_eq!(all, []);
    }

    #[test]
    fn plan_that_waits_for_launches_in_doubt_reports_it() {
        let mut harness = ControllerHarness::leading();
        harness.observe(2, controller::world(2));
        let plan = sample_plan::plan();
        harness.modify(|state| {
            let persisted = state.persistence.loaded.as_mut().expect("recalled");
            persisted.in_doubt_launches.push(InDoubtLaunches {
                unlisted: 1,
                at: at(2),
                ..in_doubt(&with_other_decision(&plan))
            });
        });
        let mut launches = Plan { applyable: true, ..plan };
        launches.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
        for _ in 0..2 {
            harness.finish_planning(3, launches.clone());
        }
        let blocked = harness.state().status().plan.expect("planned").blocked;
        let until = later(at(2), EC2_VISIBILITY_MAX);
        assert!(!blocked.is_empty() && harness.state().applies.runs.is_empty(), "{blocked:?}");
        assert!(
            blocked.values().all(|by| by.reason == BlockedReason::LaunchInDoubt { until }),
            "{blocked:?}"
        );
    }

    #[test]
    fn shown_instance_is_awaited_in_older_observations() {
        let mut harness = ControllerHarness::leading();
        let plan = sample_plan::plan();
        let (plan_id, address) = (plan.capacity.plan_id.clone(), Address::from("ec2_instance.web"));
        harness.modify(|state| {
            let rows = [(address.clone(), "decides".to_owned())].into();
            let persisted = state.persistence.loaded.as_mut().expect("recalled");
            persisted.in_doubt_launches.push(InDoubtLaunches {
                rows,
                at: at(2),
                ..in_doubt(&plan)
            });
        });
        let mut shows = controller::world(2);
        let mut young = crate::testing::world::managed_instance("i-young", "c");
        young.launched_at = at(0);
        young.tags.insert(tag::CHANGE.to_owned(), change_id(&plan_id, &address).to_string());
        shows.instances.insert(young.id.clone(), young);
        harness.modify(|state| state.planning.run = None);
        harness.observe(3, shows.clone());
        let state = harness.state();
        assert!(
            state.persistence.loaded.as_ref().expect("recalled").in_doubt_launches.is_empty(),
            "it is shown"
        );
        assert!(state.planning.run.is_some(), "the plan counts it");
        // Two observations that show it do not outweigh a late one.
        harness.modify(|state| state.planning.run = None);
        harness.observe(7, shows.clone());
        harness.modify(|state| state.planning.run = None);
        harness.observe(9, controller::world(9));
        assert!(harness.state().planning.run.is_none(), "no plan is made without it");
        harness.observe(15, Observed { taken_at: at(15), ..shows });
        harness.modify(|state| state.planning.replan_at = at(16));
        harness.step_at(16, Event::Timer);
        assert!(harness.state().planning.run.is_some());
    }

    fn in_doubt(plan: &Plan) -> InDoubtLaunches {
        let plan = plan.capacity.plan_id.clone();
        let (rows, turns) = (BTreeMap::new(), BTreeMap::new());
        InDoubtLaunches {
            plan,
            at: at(0),
            attempts: 0,
            rows,
            offerings: turns,
            since: None,
            unlisted: 0,
        }
    }
}
