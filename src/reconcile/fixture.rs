//! A loop at work, step by step, for tests of what it wants done.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::{Effect, Event, Head, Kind, Message, Signal, Start, State, step};
use crate::fleet::{ClusterIdentity, Instance, Node, Observed, fixture};
use crate::ids::InstanceId;
use crate::manifest::{ControllerSettings, GuardSettings, Mode};
use crate::plan::Plan;
use crate::plan::wire::WaveStep;
use crate::render::fixture as plans;

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).expect("a time")
}

/// Returns a world with two machines of ours, `i-1` and `i-2`, and `i-9` of others, each with a node.
pub(super) fn world(seconds: i64) -> Observed {
    let cluster = ClusterIdentity { name: "c".into(), ..ClusterIdentity::default() };
    let mut world = Observed::empty(cluster, at(seconds));
    let all = [fixture::ours("i-1", "c"), fixture::ours("i-2", "c"), fixture::instance("i-9")];
    for instance in all {
        let id = &instance.id;
        let node = Node {
            uid: format!("uid-of-{id}").as_str().into(),
            instance: Some(id.clone()),
            created_at: at(-8_000),
            ..fixture::node(&format!("node-of-{id}"))
        };
        world.nodes.insert(node.name.clone(), node);
        let launched_at = at(-9_000);
        world.instances.insert(instance.id.clone(), Instance { launched_at, ..instance });
    }
    world
}

/// Returns a plan that has `i-1` go, and keeps the others.
pub(super) fn has_one_go() -> Plan {
    let mut plan = Plan { applyable: true, ..plans::plan() };
    plan.capacity.waves.retain(|wave| wave.step == WaveStep::Retire);
    let wave = plan.capacity.waves.first_mut().expect("some go");
    wave.addresses.truncate(1);
    let address = wave.addresses[0].clone();
    let row = plan.resource_changes.iter_mut().find(|row| row.address == address);
    row.and_then(|row| row.change.before.as_mut()).expect("it is there").instance_id =
        Some("i-1".into());
    plan
}

/// A loop, and what it wants to have done of machines and messages.
pub(super) struct Story(Option<State>);

impl Story {
    /// Returns one that knows its commit and what was kept, and may do everything.
    pub(super) fn begin() -> Self {
        Self::of(Mode::Full)
    }

    /// Returns the same, of a mode.
    pub(super) fn of(mode: Mode) -> Self {
        let cluster = ClusterIdentity { name: "c".into(), ..ClusterIdentity::default() };
        let (identity, mode) = ("a".to_owned(), Some(mode));
        let start = Start { at: at(0), identity, cluster, mode, once: false };
        let mut story = Self(Some(State::new(start)));
        story.lives();
        // The first look was begun before the commit was known.
        for _ in 0..2 {
            story.next(0, Event::World(Arc::new(world(0))));
        }
        story
    }

    /// Has it recall what was kept, and read the branch.
    pub(super) fn lives(&mut self) {
        self.next(0, Event::Recalled(Ok(Box::default())));
        let head = Head {
            commit: "1".to_owned(),
            controller: ControllerSettings::default(),
            guard: GuardSettings::default(),
            rests: BTreeMap::new(),
            problems: 0,
            is_empty: false,
            autoscaler_namespaces: None,
            auto_mode: false,
        };
        self.next(0, Event::Head(Ok(Arc::new(head))));
    }

    pub(super) fn state(&self) -> &State {
        self.0.as_ref().expect("between steps")
    }

    /// Has something be otherwise than it came about.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut State)) {
        change(self.0.as_mut().expect("between steps"));
    }

    pub(super) fn next(&mut self, seconds: i64, event: Event) -> Vec<String> {
        let (state, effects) = step(self.0.take().expect("between steps"), event, at(seconds));
        self.0 = Some(state);
        let told = |effect: &Effect| match effect {
            Effect::Shield { node } => Some(format!("shields {} {}", node.name, node.uid)),
            Effect::Cordon { node, mark: None, .. } => Some(format!("uncordons {}", node.name)),
            Effect::Cordon { node, mark: Some(_), .. } => Some(format!("cordons {}", node.name)),
            Effect::Acknowledge { receipt } => Some(format!("takes off {receipt}")),
            Effect::Evict { instance, .. } => Some(format!("drains {instance}")),
            Effect::End { instance, .. } => Some(format!("ends {instance}")),
            Effect::DeleteNode { node, .. } => Some(format!("removes {}", node.name)),
            Effect::Recall
            | Effect::Save(_)
            | Effect::ReadHead
            | Effect::ReadCommit { .. }
            | Effect::Observe
            | Effect::Plan { .. }
            | Effect::Apply { .. }
            | Effect::Turn { .. }
            | Effect::Interrupt
            | Effect::Nominate { .. }
            | Effect::Wake(_)
            | Effect::Exit => None,
        };
        effects.iter().filter_map(told).collect()
    }

    /// Has what it asked for be planned.
    pub(super) fn planned(&mut self, seconds: i64, plan: Plan) -> Vec<String> {
        let ticket = self.state().planning.as_ref().expect("a plan is being made").ticket;
        let (plan, took) = (Arc::new(plan), SignedDuration::ZERO);
        self.next(seconds, Event::Planned { ticket, plan, took })
    }

    /// Has all that is to be kept be kept.
    pub(super) fn saves(&mut self, seconds: i64) -> Vec<String> {
        let mut done = Vec::new();
        while self.state().saving.is_some() {
            done.extend(self.next(seconds, Event::Saved(Ok(()))));
        }
        done
    }

    /// Has it be told that machines are taken back, by a message of its own each time.
    pub(super) fn told(
        &mut self,
        seconds: i64,
        kind: Kind,
        ids: &[&str],
        within: Option<i64>,
    ) -> Vec<String> {
        let instances = ids.iter().copied().map(InstanceId::from).collect();
        let deadline = within.map(|within| at(seconds + within));
        let receipt = "r".to_owned();
        let message = Message { receipt, kind, instances, deadline, sent: None };
        self.next(seconds, Event::Signal(Signal::Message(message)))
    }
}
