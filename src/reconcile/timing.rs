//! How long things took, by the moments of the events that tell of them.
//!
//! No clock is asked: what looks show is as exact as they are apart, and what an apply tells carries its moment.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::event::{Limits, Ticket};
use super::state::State;
use super::view::is_waiting;
use super::work;
use crate::apply::{Event, Step};
use crate::fleet::{InstanceState, Observed, Pod, tag};
use crate::ids::{InstanceId, Uid};
use crate::measure::{LIFETIME, Measured};

/// Most pods that are timed at once, until they have a node.
const PODS_MAX: usize = 20_000;
/// How long it is looked for the end of a machine that was told to.
const ENDS_WITHIN: SignedDuration = SignedDuration::from_hours(1);

/// What was counted and measured, and what is being.
#[derive(Debug, Clone, Default)]
pub(super) struct Timing {
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) measured: Measured,
    /// When the branch was last asked for.
    pub(super) asked_git_at: Timestamp,
    /// When pods were created that looks have shown waiting for a node.
    waiting: BTreeMap<Uid, Timestamp>,
    /// When the node of a machine was cordoned by the apply that drains it.
    cordoned: BTreeMap<InstanceId, Timestamp>,
    /// Machines that were told to end in the last hour.
    told: BTreeMap<InstanceId, Told>,
}

/// A machine that was told to end.
#[derive(Debug, Clone, Copy)]
struct Told {
    at: Timestamp,
    /// Whether a look has shown that it has.
    ended: bool,
}

impl Timing {
    fn note(&mut self, name: &str, of: &str, since: Timestamp, now: Timestamp) {
        let name = if of.is_empty() { name.to_owned() } else { format!("{name}.{of}") };
        self.measured.note(&name, now.duration_since(since));
    }

    /// Looks which pods have a node by now, and which have begun to wait for one.
    fn look_at_pods(&mut self, observed: &Observed) {
        let at = observed.taken_at;
        let mut waiting = BTreeMap::new();
        for pod in &observed.pods {
            if is_waiting(pod) {
                if waiting.len() < PODS_MAX {
                    waiting.insert(pod.uid.clone(), pod.created_at);
                }
            } else if let Some(created) = self.waited(pod) {
                self.note("bound", "", created, at);
            }
        }
        self.waiting = waiting;
    }

    fn waited(&self, pod: &Pod) -> Option<Timestamp> {
        if self.waiting.is_empty() || pod.node.is_none() {
            return None;
        }
        self.waiting.get(&pod.uid).copied()
    }

    /// Looks which machines have ended that were told to.
    fn look_at_ends(&mut self, observed: &Observed) {
        let at = observed.taken_at;
        for (id, told) in &mut self.told {
            let instance = observed.instances.get(id);
            let gone = instance.is_none_or(|instance| instance.state == InstanceState::Terminated);
            if gone && !told.ended {
                told.ended = true;
                self.measured.note("termination", at.duration_since(told.at));
            }
        }
        self.told.retain(|_, told| at.duration_since(told.at) < ENDS_WITHIN);
        // Of a machine that went otherwise nobody tells that its drain has ended.
        self.cordoned.retain(|id, _| observed.instances.contains_key(id));
    }
}

impl State {
    /// Measures what a whole look shows. Machines that were not Ready before it are `booting`.
    pub(super) fn times_look(&mut self, observed: &Observed, booting: &[InstanceId]) {
        let now = self.now;
        let began = self.looked_at;
        self.timing.note("read", "world", began, now);
        self.timing.look_at_pods(observed);
        self.timing.look_at_ends(observed);
        let launched = self.kept.iter().flat_map(|kept| &kept.launched);
        for launch in launched.filter(|launch| booting.contains(&launch.instance)) {
            if let Some(ready) = launch.ready_at {
                // Who learned of it by looks knows later than it was launched.
                let found = observed.instances.get(&launch.instance);
                let since = found.map_or(launch.at, |found| found.launched_at.min(launch.at));
                self.timing.note("ready", launch.pool.as_str(), since, ready);
            }
        }
    }

    /// Returns machines of which no look has shown a Ready node yet, and which are known since they were launched.
    pub(super) fn booting(&self) -> Vec<InstanceId> {
        let launched = self.kept.iter().flat_map(|kept| &kept.launched);
        let boots = launched.filter(|launch| launch.from_start && launch.ready_at.is_none());
        boots.map(|launch| launch.instance.clone()).collect()
    }

    /// Measures what an apply tells.
    pub(super) fn times_progress(&mut self, ticket: Ticket, event: &Event, why: &str) {
        let Some(lane) = self.lanes.get(&ticket) else { return };
        let row = |event: &Event| {
            let address = event.address.as_ref()?;
            lane.plan.resource_changes.iter().find(|row| row.address == *address)
        };
        let of = || row(event).and_then(work::instance);
        if let Step::Terminating { instance_id } = &event.step {
            let since = self.timing.cordoned.remove(instance_id);
            self.times_end(instance_id, (since, why), event.at);
        } else if matches!(event.step, Step::Cordoned { .. }) {
            let of = of();
            self.timing.cordoned.extend(of.map(|instance| (instance, event.at)));
        } else if matches!(event.step, Step::Uncordoned { .. })
            && let Some(instance) = of()
        {
            self.timing.cordoned.remove(&instance);
        }
    }

    /// Measures that a machine was told to end, whose pods were asked to leave since then; and for how long it ran.
    pub(super) fn times_end(
        &mut self,
        instance: &InstanceId,
        (since, why): (Option<Timestamp>, &str),
        at: Timestamp,
    ) {
        // Who is told again was told before.
        if self.timing.told.contains_key(instance) {
            return;
        }
        if let Some(since) = since {
            self.timing.note("drain", why, since, at);
        }
        self.timing.told.insert(instance.clone(), Told { at, ended: false });
        self.times_life(instance, at);
    }

    /// Measures for how long a machine ran that ended by itself, as one did that was told to.
    pub(super) fn times_end_by_itself(&mut self, instance: &InstanceId) {
        if !self.timing.told.contains_key(instance) {
            self.times_life(instance, self.now);
        }
    }

    fn times_life(&mut self, instance: &InstanceId, at: Timestamp) {
        let found = self.world.as_ref().and_then(|world| world.instances.get(instance));
        let Some(found) = found else { return };
        // Members of groups are of no pool of ours.
        let pool = found.tags.get(tag::POOL).map_or("", String::as_str);
        let ran = at.duration_since(found.launched_at);
        self.timing.measured.note(&format!("{LIFETIME}{pool}"), ran);
    }

    /// Measures something that began then and ends now.
    pub(super) fn times(&mut self, name: &str, of: &str, since: Timestamp) {
        self.timing.note(name, of, since, self.now);
    }

    /// Notes how long making a plan of such limits took.
    pub(super) fn times_plan(&mut self, limits: &Limits, took: SignedDuration) {
        self.count("plans.made", 1);
        self.count("plan_millis", u64::try_from(took.as_millis()).unwrap_or(0));
        let adds = limits.only.as_ref().is_some_and(BTreeSet::is_empty);
        let scope = if adds { "adds" } else { "all" };
        self.timing.measured.note(&format!("plan.{scope}"), took);
    }

    /// Notes how long the step took that led to this state, by the clock of whoever took it.
    pub(super) fn took_step(&mut self, took: SignedDuration) {
        self.timing.measured.note("step", took);
        self.count("step_micros", u64::try_from(took.as_micros()).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::apply::{Receipt, Verdict};
    use crate::fleet::fixture::pod;
    use crate::ids::Address;
    use crate::plan::Plan;
    use crate::plan::wire::WaveStep;
    use crate::reconcile::event::Ending;
    use crate::reconcile::fixture::{Story, at, has_one_go, world};
    use crate::reconcile::{Event as Heard, Kept, Kind, Launched, Message, Signal};
    use crate::render::fixture;

    /// Returns how often something was measured, and how long it took in all.
    fn measured(story: &Story, name: &str) -> (u64, Duration) {
        let all = story.state().status().measured;
        let found = all.iter().find(|(known, _)| *known == name);
        let found = found.map(|(_, all)| (all.count(), Duration::from_micros(all.micros)));
        found.unwrap_or_default()
    }

    fn once(seconds: u64) -> (u64, Duration) {
        (1, Duration::from_secs(seconds))
    }

    /// Returns a loop that leads.
    fn leads() -> Story {
        let mut story = Story::begin();
        story.next(1, Heard::Signal(Signal::Gained));
        story.lives();
        story
    }

    fn looks(story: &mut Story, seconds: i64, world: Observed) {
        story.next(seconds, Heard::World(Arc::new(Observed { taken_at: at(seconds), ..world })));
    }

    #[test]
    fn pods_are_timed_until_a_look_shows_them_on_a_node_and_others_are_not() {
        let mut story = leads();
        let with = |node: Option<&str>| {
            let mut world = world(0);
            let waits = Pod { created_at: at(-3), node: node.map(Into::into), ..pod("waits") };
            let never = Pod { node: Some("n".into()), ..pod("never-waited") };
            world.pods = vec![Arc::new(waits), Arc::new(never)];
            world
        };
        looks(&mut story, 2, with(None));
        assert_eq!(measured(&story, "bound"), (0, Duration::ZERO));
        looks(&mut story, 9, with(Some("n")));
        looks(&mut story, 14, with(Some("n")));
        assert_eq!(measured(&story, "bound"), once(12));
    }

    #[test]
    fn machines_are_timed_from_their_launch_to_the_look_that_shows_their_node_ready() {
        let mut story = leads();
        let launch = |instance: &str, from_start| Launched {
            instance: instance.into(),
            pool: "web".into(),
            // Another process launched it.
            at: at(-5),
            ready_at: None,
            helped: false,
            from_start,
            passed_over: false,
        };
        story.change(|state| {
            // Of one of them an earlier life may have seen it.
            let launched = vec![launch("i-1", true), launch("i-2", false)];
            state.kept = Some(Kept { launched, ..Kept::default() });
        });
        for seconds in [4, 9] {
            let mut shows = world(seconds);
            shows.instances.get_mut("i-1").expect("it is there").launched_at = at(-20);
            looks(&mut story, seconds, shows);
        }
        assert_eq!(measured(&story, "ready.web"), once(24));
    }

    /// Returns a loop that carries out a plan by which `i-1` goes.
    fn removes() -> (Story, Ticket, Address) {
        let mut story = leads();
        story.change(|state| {
            let head = Arc::make_mut(state.head.as_mut().expect("read"));
            head.controller.settle = SignedDuration::ZERO;
        });
        looks(&mut story, 2, world(2));
        story.planned(2, has_one_go());
        if story.state().lanes.is_empty() {
            story.planned(3, has_one_go());
        }
        story.saves(4);
        let ticket = *story.state().lanes.keys().next().expect("it is carried out");
        (story, ticket, has_one_go().capacity.waves[0].addresses[0].clone())
    }

    #[test]
    fn drains_and_terminations_are_timed_by_the_moments_that_their_apply_tells() {
        let (mut story, ticket, address) = removes();
        let tells = |story: &mut Story, seconds, step| {
            let event = Event { at: at(seconds), address: Some(address.clone()), step };
            // It is heard of later.
            story.next(seconds + 1, Heard::Progress { ticket, event });
        };
        tells(&mut story, 10, Step::Cordoned { node: "n".into() });
        tells(&mut story, 40, Step::Terminating { instance_id: "i-1".into() });
        let plan = has_one_go();
        let all = story.state().status().measured;
        let drains: Vec<_> = all.iter().filter(|(name, _)| name.starts_with("drain.")).collect();
        let [(_, drain)] = drains[..] else { panic!("{drains:?}") };
        assert_eq!((drain.count(), drain.micros), (1, 30_000_000), "{plan:?}");
        // It ran since long before.
        assert_eq!(measured(&story, "lifetime.web").0, 1);
        let mut ends = world(70);
        ends.instances.get_mut("i-1").expect("it is there").state = InstanceState::Terminated;
        looks(&mut story, 70, ends);
        assert_eq!(measured(&story, "termination"), once(30));
        let began = story.state().lanes[&ticket].past.started_at;
        let receipt = Receipt {
            plan_id: plan.capacity.plan_id,
            digest: plan.capacity.digest,
            outcomes: Vec::new(),
            started_at: at(3),
            finished_at: at(75),
            verdict: Verdict::Applied,
        };
        story.next(75, Heard::Applied { ticket, end: Ok(Box::new(receipt)) });
        let took = at(75).duration_since(began).unsigned_abs();
        assert_eq!(measured(&story, "apply.applied"), (1, took));
    }

    #[test]
    fn what_is_read_planned_told_and_launched_is_timed() {
        let mut story = leads();
        story.next(2, Heard::Signal(Signal::PodPending));
        let message = Message {
            receipt: "r".to_owned(),
            kind: Kind::Rebalance,
            instances: Vec::new(),
            deadline: None,
            sent: Some(at(-5)),
        };
        story.next(3, Heard::Signal(Signal::Message(message)));
        assert_eq!(measured(&story, "message.rebalance"), once(8));
        let ((reads, took), began) = (measured(&story, "read.world"), story.state().looked_at);
        assert!(began < at(4));
        looks(&mut story, 4, world(4));
        let took = took + at(4).duration_since(began).unsigned_abs();
        assert_eq!(measured(&story, "read.world"), (reads + 1, took));
        let mut launches = Plan { applyable: true, ..fixture::plan() };
        launches.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
        story.planned(6, launches.clone());
        if story.state().planning.is_some() {
            story.planned(6, launches);
        }
        assert_eq!(measured(&story, "reaction"), once(4));
        assert!(measured(&story, "plan.all").0 > 0);
        story.change(|state| state.took_step(SignedDuration::from_millis(3)));
        assert_eq!(measured(&story, "step").1, Duration::from_millis(3));
    }

    #[test]
    fn a_machine_that_ec2_takes_and_that_is_told_again_to_end_is_timed_once() {
        let mut story = leads();
        looks(&mut story, 2, world(2));
        story.told(3, Kind::SpotInterruption, &["i-1"], Some(120));
        for seconds in [10, 11] {
            let end = Ok(Ending::Told);
            let does = story.next(seconds, Heard::Ended { instance: "i-1".into(), end });
            assert_eq!(does, [""; 0], "it was told just now");
        }
        let mut ends = world(20);
        ends.instances.get_mut("i-1").expect("it is there").state = InstanceState::Terminated;
        looks(&mut story, 20, ends);
        assert_eq!(measured(&story, "termination"), once(10));
        assert_eq!(measured(&story, "lifetime.web").0, 1);
    }
}
