//! Launches that were asked for, and of which it is not known yet what became of them.
//!
//! EC2 launches once for each client token, and shows what it launched only later. A process that dies between
//! call and answer leaves a machine of which nobody has heard; planned without it, the next one launches
//! another. So it is kept what is about to be asked for, one save for all launches of a plan, before the
//! first call. A plan that decides the same for the same address then asks with the same token, and is
//! answered with the same machine, or is told that the token was used (for another subnet or image, which are
//! looked up anew): that one waits too. One that decides anything else waits until EC2 must have shown it.
//!
//! Nothing settles it sooner. The answer to a token is known only to whoever asks with it once more, and where the first
//! call never arrived that launches the machine, which the repository does not ask for any more: it may have been taken
//! back because it was wrong. Lists by tag or token are the lists that lag. Nor does the time run from the moment at
//! which an earlier life asked: it tells that by another clock, and each life may have asked until it died. So a loop
//! that is killed again and again waits [`SHOWN_WITHIN`] from the moment at which the last life reads what was kept, and
//! only where that has something else to launch.
//!
//! Invariant: while the answer to a launch is not known, no other launch is begun than that one again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::kept::later;
use super::view::SHOWN_WITHIN;
use super::work;
use crate::apply::Before;
use crate::fleet::{Observed, tag};
use crate::ids::{Address, PlanId};
use crate::plan::wire::{ResourceChange, ResourceKind};
use crate::plan::{Plan, canonical, change_id};

/// Most launches of which it is remembered what was asked for, one by one.
pub(super) const ROWS_MAX: usize = 1_000;
/// How often a launch is asked for again under the same token. More is of no use, and each puts off the moment
/// at which it counts as not launched.
const TIMES_MAX: u32 = 8;
/// Digits of the digest of what a row decides: what is compared are rows of one address.
const DIGITS: usize = 16;

/// Launches of one plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The plan: with the address it makes the client token.
    pub plan: PlanId,
    /// When EC2 may have heard of them last.
    pub at: Timestamp,
    /// How often they were asked for again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub times: u32,
    /// What each decides, as a digest, by address.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rows: BTreeMap<Address, String>,
    /// Which offering of each is asked for, where that is not the first: those before had no capacity.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub turns: BTreeMap<Address, u32>,
    /// When they were asked for first, where offerings other than the first were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// How many there are beside, of which only that is remembered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Asked {
    /// Forgets what is asked for no more.
    fn retain(&mut self, stays: impl Fn(&Address) -> bool) {
        self.rows.retain(|address, _| stays(address));
        self.turns.retain(|address, _| self.rows.contains_key(address));
    }

    /// Remembers of each only that it is; returns how many there were.
    pub(super) fn forget_rows(&mut self) -> usize {
        self.turns.clear();
        let rows = std::mem::take(&mut self.rows).len();
        self.more = self.more.saturating_add(u32::try_from(rows).unwrap_or(u32::MAX));
        rows
    }
}

/// How launches were asked for before, by address.
pub(super) type Begun = BTreeMap<Address, Before>;

/// Notes that the launches of `plan` are about to be asked for; returns those that were before.
///
/// # Errors
/// When others may be on their way: with the moment at which they count as not launched.
pub(super) fn ask(all: &mut Vec<Asked>, plan: &Plan, now: Timestamp) -> Result<Begun, Timestamp> {
    let mut new = rows(plan);
    let mut begun = Begun::new();
    for asked in all.iter().filter(|asked| asked.times < TIMES_MAX) {
        for (address, row) in &asked.rows {
            if new.get(address) == Some(row) {
                new.remove(address);
                let turn = asked.turns.get(address).copied().unwrap_or(0);
                begun.insert(
                    address.clone(),
                    Before { change: change_id(&asked.plan, address), turn },
                );
            }
        }
    }
    let is_left = |asked: &&Asked| {
        asked.more > 0 || asked.rows.keys().any(|address| !begun.contains_key(address))
    };
    if let Some(left) = all.iter().find(is_left).filter(|_| !new.is_empty()) {
        return Err(later(left.at, SHOWN_WITHIN));
    }
    for asked in all.iter_mut() {
        if asked.rows.keys().any(|address| begun.contains_key(address)) {
            (asked.at, asked.times) = (now, asked.times.saturating_add(1));
        }
    }
    if !new.is_empty() {
        let plan = plan.capacity.plan_id.clone();
        let (rows, more) = if new.len() > ROWS_MAX {
            (BTreeMap::new(), u32::try_from(new.len()).unwrap_or(u32::MAX))
        } else {
            (new, 0)
        };
        let since = Some(now);
        all.push(Asked { plan, at: now, times: 0, rows, turns: BTreeMap::new(), since, more });
    }
    Ok(begun)
}

/// Returns whether it is kept that the launches of `plan` are asked for.
pub(super) fn has_asked(all: &[Asked], plan: &Plan) -> bool {
    let whole = |asked: &Asked| asked.more > 0 && asked.plan == plan.capacity.plan_id;
    all.iter().any(whole)
        || rows(plan)
            .iter()
            .all(|(address, row)| all.iter().any(|asked| asked.rows.get(address) == Some(row)))
}

/// Notes that another offering of a launch is about to be asked for.
pub(super) fn turned(all: &mut [Asked], address: &Address, turn: u32) {
    for asked in all.iter_mut().filter(|asked| asked.rows.contains_key(address)) {
        asked.turns.insert(address.clone(), turn);
    }
}

/// Returns whether it is kept that an offering of a launch is asked for, or that the launch is one of too many to
/// remember each.
pub(super) fn has_turned(all: &[Asked], address: &Address, turn: u32) -> bool {
    let mut of = all.iter().filter(|asked| asked.rows.contains_key(address));
    of.all(|asked| asked.turns.get(address).is_some_and(|kept| *kept >= turn))
}

/// Returns since when launches are awaited of which other offerings than the first were asked for. What was found
/// sold out since then does not count until they are answered: a plan that counted with it would decide
/// something else, and could not ask for them again.
pub(super) fn turning_since(all: &[Asked]) -> Option<Timestamp> {
    all.iter().filter(|asked| !asked.turns.is_empty()).filter_map(|asked| asked.since).min()
}

/// Forgets a launch that was answered.
pub(super) fn answered(all: &mut Vec<Asked>, address: &Address) {
    for asked in all.iter_mut() {
        asked.retain(|other| other != address);
    }
    all.retain(|asked| asked.more > 0 || !asked.rows.is_empty());
}

/// Forgets what was asked for in an apply that has ended, but for what nobody has heard of since.
pub(super) fn ended(
    all: &mut Vec<Asked>,
    plan: &Plan,
    unheard: &BTreeSet<Address>,
    now: Timestamp,
) {
    let of_plan = rows(plan);
    for asked in all.iter_mut() {
        let mine = asked.plan == plan.capacity.plan_id;
        asked.more = if mine && unheard.is_empty() { 0 } else { asked.more };
        asked.retain(|address| unheard.contains(address) || !of_plan.contains_key(address));
        if mine || asked.rows.keys().any(|address| unheard.contains(address)) {
            asked.at = now;
        }
    }
    all.retain(|asked| asked.more > 0 || !asked.rows.is_empty());
}

/// Forgets launches of which the machine is shown, however it fares.
pub(super) fn shown(all: &mut Vec<Asked>, observed: &Observed) {
    if all.is_empty() {
        return;
    }
    let tags = observed.instances.values().filter_map(|instance| instance.tags.get(tag::CHANGE));
    let changes: BTreeSet<&str> = tags.map(String::as_str).collect();
    for asked in all.iter_mut() {
        let plan = asked.plan.clone();
        asked.retain(|address| !changes.contains(change_id(&plan, address).as_str()));
    }
    all.retain(|asked| asked.more > 0 || !asked.rows.is_empty());
}

/// Counts from now on what nobody has heard of when the calls of its apply are over.
pub(super) fn heard_last(all: &mut [Asked], unheard: &BTreeSet<Address>, now: Timestamp) {
    for asked in all.iter_mut() {
        if asked.rows.keys().any(|address| unheard.contains(address)) {
            asked.at = now;
        }
    }
}

/// Forgets what would be shown by now, but for what is being asked for, `launching`. That goes by address: what
/// is asked for again is carried out for another plan than the one that asked first.
pub(super) fn forget(all: &mut Vec<Asked>, launching: &BTreeSet<Address>, now: Timestamp) {
    let is_going = |asked: &Asked| {
        asked.rows.keys().any(|address| launching.contains(address))
            || asked.more > 0 && !launching.is_empty()
    };
    all.retain(|asked| now < later(asked.at, SHOWN_WITHIN) || is_going(asked));
}

/// Counts from now on what an earlier life was about to ask for: whether and when it did, it did not say.
pub(super) fn take_over(all: &mut [Asked], now: Timestamp) {
    for asked in all {
        asked.at = now;
    }
}

/// Returns what each launch of a plan decides, as a digest: its row, and what may stand in for it. Members that
/// a group makes are none: a group is raised to a number, however often.
fn rows(plan: &Plan) -> BTreeMap<Address, String> {
    let grouped: BTreeSet<&str> = plan
        .resource_changes
        .iter()
        .filter(|row| row.kind == ResourceKind::AutoscalingGroup)
        .map(|row| row.name.as_str())
        .collect();
    let mut stands_in: BTreeMap<&Address, Vec<_>> = BTreeMap::new();
    for row in &plan.capacity.alternatives {
        stands_in.entry(&row.address).or_default().push(&row.offerings);
    }
    let own = |row: &&ResourceChange| {
        let pool = row.change.after.as_ref().and_then(|after| after.pool.as_ref());
        !pool.is_some_and(|pool| grouped.contains(pool.as_str()))
    };
    let digest = |row: &ResourceChange| {
        let decides = (&row.address, &row.change, stands_in.get(&row.address));
        let digest = canonical::sha256(&decides).unwrap_or_default();
        digest.chars().take(DIGITS).collect()
    };
    let own = work::launched(plan).filter(own);
    own.map(|row| (row.address.clone(), digest(row))).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::wire::WaveStep;
    use crate::reconcile::fixture::{Story, at as story_at, world as fixture_world};
    use crate::reconcile::{Event, Held, Signal};
    use crate::render::fixture;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("a time")
    }

    /// Returns a plan that decides what the other does, made later.
    fn anew(plan: &Plan, name: &str) -> Plan {
        let mut plan = plan.clone();
        plan.capacity.plan_id = name.into();
        plan
    }

    /// Returns a plan whose first launch decides something else.
    fn otherwise(plan: &Plan) -> Plan {
        let mut plan = anew(plan, "otherwise");
        let first = rows(&plan).into_keys().next().expect("a launch");
        let row = plan.resource_changes.iter_mut().find(|row| row.address == first);
        let after = row.and_then(|row| row.change.after.as_mut()).expect("a node");
        after.zone = Some("us-east-1z".into());
        plan
    }

    #[test]
    fn what_was_asked_for_is_asked_for_again_as_the_same_change_and_anything_else_waits() {
        let (plan, mut all) = (fixture::plan(), Vec::new());
        assert!(!has_asked(&all, &plan));
        assert_eq!(ask(&mut all, &plan, at(0)), Ok(Begun::new()), "nothing was asked for before");
        assert!(has_asked(&all, &plan) && !has_asked(&all, &otherwise(&plan)));
        take_over(&mut all, at(10));
        let expected: Begun = rows(&plan)
            .into_keys()
            .map(|address| {
                let change = change_id(&plan.capacity.plan_id, &address);
                (address, Before { change, turn: 0 })
            })
            .collect();
        assert!(expected.len() > 2);
        assert_eq!(ask(&mut all, &anew(&plan, "later"), at(20)), Ok(expected.clone()));
        let until = later(at(20), SHOWN_WITHIN);
        assert_eq!(ask(&mut all, &otherwise(&plan), at(30)), Err(until));
        // A part of it is nothing new.
        let mut part = anew(&plan, "part");
        let first = expected.keys().next().expect("some").clone();
        part.capacity.waves.iter_mut().for_each(|wave| wave.addresses.retain(|a| *a != first));
        assert_eq!(ask(&mut all, &part, at(40)).map(|begun| begun.len()), Ok(expected.len() - 1));
        // Not for ever: by then nobody knows what is asked for.
        for n in 2..TIMES_MAX {
            assert!(ask(&mut all, &plan, at(40 + i64::from(n))).is_ok());
        }
        assert!(ask(&mut all, &plan, at(60)).is_err());
        let end = later(all[0].at, SHOWN_WITHIN);
        forget(&mut all, &[first].into(), end);
        assert_eq!(all.len(), 1, "it is being asked for, by whichever plan");
        forget(&mut all, &BTreeSet::new(), end);
        assert_eq!(ask(&mut all, &otherwise(&plan), end), Ok(Begun::new()));
    }

    #[test]
    fn which_offering_was_asked_for_last_is_kept_until_there_is_an_answer() {
        let (plan, mut all) = (fixture::plan(), Vec::new());
        assert!(ask(&mut all, &plan, at(7)).is_ok());
        let mut addresses = rows(&plan).into_keys();
        let (first, second) =
            (addresses.next().expect("a launch"), addresses.next().expect("another"));
        assert_eq!((has_turned(&all, &first, 1), turning_since(&all)), (false, None));
        turned(&mut all, &first, 1);
        turned(&mut all, &first, 2);
        let kept: Vec<Asked> =
            serde_json::from_str(&serde_json::to_string(&all).expect("text")).expect("reads");
        assert_eq!(kept, all);
        assert!(has_turned(&kept, &first, 2) && !has_turned(&kept, &second, 1));
        take_over(&mut all, at(90));
        assert_eq!(turning_since(&all), Some(at(7)), "not since the process began anew");
        let begun = ask(&mut all, &anew(&plan, "later"), at(91)).expect("the same");
        assert_eq!((begun[&first].turn, begun[&second].turn), (2, 0));
        answered(&mut all, &first);
        assert_eq!(turning_since(&all), None);
        assert!(has_turned(&all, &first, 3), "nobody awaits it");
    }

    #[test]
    fn an_answer_or_the_end_of_an_apply_settles_what_was_asked_for_but_for_what_was_not_heard_of() {
        let (plan, mut all) = (fixture::plan(), Vec::new());
        assert!(ask(&mut all, &plan, at(0)).is_ok());
        let addresses: Vec<Address> = rows(&plan).into_keys().collect();
        answered(&mut all, &addresses[0]);
        assert_eq!(all[0].rows.len(), addresses.len() - 1);
        ended(&mut all, &plan, &[addresses[1].clone()].into(), at(50));
        assert_eq!(all[0].rows.keys().collect::<Vec<_>>(), [&addresses[1]]);
        assert_eq!(all[0].at, at(50), "until then it may have been heard");
        ended(&mut all, &plan, &BTreeSet::new(), at(60));
        assert_eq!(all, []);
        // Of what is too much to remember it is remembered that it is.
        let mut all = vec![Asked { more: 9, ..of(&plan) }];
        assert_eq!(ask(&mut all, &plan, at(1)), Err(later(at(0), SHOWN_WITHIN)));
        ended(&mut all, &plan, &BTreeSet::new(), at(60));
        assert_eq!(all, []);
    }

    #[test]
    fn a_plan_that_waits_for_what_nobody_has_heard_of_says_so() {
        let mut story = Story::begin();
        story.next(1, Event::Signal(Signal::Gained));
        story.lives();
        story.next(2, Event::World(Arc::new(fixture_world(2))));
        let plan = fixture::plan();
        story.change(|state| {
            let kept = state.kept.as_mut().expect("recalled");
            kept.asked.push(Asked { more: 1, at: story_at(2), ..of(&otherwise(&plan)) });
        });
        let mut launches = Plan { applyable: true, ..plan };
        launches.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
        for _ in 0..2 {
            story.planned(3, launches.clone());
        }
        let held = story.state().status().plan.expect("planned").held;
        let until = later(story_at(2), SHOWN_WITHIN);
        assert!(!held.is_empty() && story.state().lanes.is_empty(), "{held:?}");
        assert!(held.values().all(|by| by.why == Held::Unheard { until }), "{held:?}");
    }

    #[test]
    fn a_machine_that_was_shown_is_awaited_by_a_look_that_is_older() {
        let mut story = Story::begin();
        story.next(1, Event::Signal(Signal::Gained));
        story.lives();
        let plan = fixture::plan();
        let (plan_id, address) = (plan.capacity.plan_id.clone(), Address::from("ec2_instance.web"));
        story.change(|state| {
            let rows = [(address.clone(), "decides".to_owned())].into();
            let kept = state.kept.as_mut().expect("recalled");
            kept.asked.push(Asked { rows, at: story_at(2), ..of(&plan) });
        });
        let mut shows = fixture_world(2);
        let mut young = crate::fleet::fixture::ours("i-young", "c");
        young.launched_at = story_at(0);
        young.tags.insert(tag::CHANGE.to_owned(), change_id(&plan_id, &address).to_string());
        shows.instances.insert(young.id.clone(), young);
        story.change(|state| state.planning = None);
        story.next(3, Event::World(Arc::new(shows.clone())));
        let state = story.state();
        assert!(state.kept.as_ref().expect("recalled").asked.is_empty(), "it is shown");
        assert!(state.planning.is_some(), "it is counted with");
        // That it was shown more than once says nothing of a look that is late.
        story.change(|state| state.planning = None);
        story.next(7, Event::World(Arc::new(shows.clone())));
        story.change(|state| state.planning = None);
        story.next(9, Event::World(Arc::new(fixture_world(9))));
        assert!(story.state().planning.is_none(), "nobody plans without it");
        story.next(15, Event::World(Arc::new(Observed { taken_at: story_at(15), ..shows })));
        story.change(|state| state.replan_at = story_at(16));
        story.next(16, Event::Timer);
        assert!(story.state().planning.is_some());
    }

    fn of(plan: &Plan) -> Asked {
        let plan = plan.capacity.plan_id.clone();
        let (rows, turns) = (BTreeMap::new(), BTreeMap::new());
        Asked { plan, at: at(0), times: 0, rows, turns, since: None, more: 0 }
    }
}
