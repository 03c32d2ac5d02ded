//! The snapshot that the loop publishes.

use jiff::{SignedDuration, Timestamp};

use super::away::Away;
use super::state::State;
use super::status::{AwayPhase, PlanNow, RepositoryNow, SourceState, Status, WorldNow};
use super::view::is_waiting;
use crate::fleet::{Instance, Observed};

impl State {
    /// Returns whether the loop has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.exited
    }

    /// Returns when the loop is due by itself.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Timestamp> {
        self.wakes_at
    }

    /// Returns who else makes and removes nodes, in words: while they do the loop only plans.
    #[must_use]
    pub fn rival(&self) -> Option<&str> {
        self.rivals.in_words()
    }

    /// Returns whether something is under way that whoever takes over would have to finish: a plan that is
    /// carried out, or a machine of which pods leave.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let drains = |away: &Away| {
            matches!(away.phase, AwayPhase::Draining | AwayPhase::Ending) && !away.only_waits()
        };
        !self.lanes.is_empty() || self.away.values().any(drains)
    }

    /// Returns whether pods wait for a launch that is on its way: whatever is not needed for that waits.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        let launching = self.lanes.values().any(|lane| lane.launching);
        self.batch.is_some() || self.reaction.is_some() || launching
    }

    /// Returns whether messages are to be received: they may be acted on, it is known what may be done, and there
    /// is room for more. Others come again only after a while, and whoever only plans leaves them to those
    /// who act: somebody else who makes nodes may have the same queue, and one that is received here is neither
    /// seen nor acted on there. While an apply has the lease, which takes none, they are received.
    #[must_use]
    pub fn takes_messages(&self) -> bool {
        let heeds = (self.leader || self.lent) && self.heeds_interruptions();
        heeds && self.head.is_some() && !self.stopping && self.mail.has_room()
    }

    /// Returns what the loop knows, as a plain value.
    #[must_use]
    pub fn status(&self) -> Status {
        let kept = self.kept.as_ref();
        let quarantine = kept.into_iter().flat_map(|kept| &kept.quarantine);
        Status {
            now: self.now,
            started_at: self.start.at,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            identity: self.start.identity.clone(),
            leader: self.leader,
            led_by: self.led_by.clone(),
            lent: self.lent,
            cluster: self.start.cluster.clone(),
            mode: self.mode(),
            suspended: kept.and_then(|kept| kept.suspended.clone()),
            break_glass: kept.and_then(|kept| kept.break_glass.clone()),
            breakers: kept.map(|kept| kept.breakers.clone()).unwrap_or_default(),
            repository: self.repository(),
            world: self.seen.clone().map(|seen| self.aged(seen)),
            plan: self.current.as_ref().map(|current| PlanNow {
                plan: current.plan.clone(),
                since: current.since,
                held: current.held.clone(),
            }),
            applying: self.applying(),
            parts: self.parts(),
            history: self.history.clone(),
            costs: self.costs.all().to_vec(),
            superseded: self.aside.plans.clone(),
            unread: None,
            going: self.going_now(),
            uncordoned: self.uncordons.done().to_vec(),
            sold_out: kept.map(|kept| kept.exclusions(self.now)).unwrap_or_default(),
            quarantined: quarantine
                .filter(|(_, held)| self.now < held.until)
                .map(|(pool, held)| (pool.clone(), (held.why.clone(), held.until)))
                .collect(),
            failing: self.failing.shown(self.now),
            kept: self.kept_now,
            rival: self.rival().map(str::to_owned),
            counters: self.timing.counters.clone(),
            measured: self.timing.measured.clone(),
            wakes_at: self.wakes_at,
        }
    }

    fn repository(&self) -> RepositoryNow {
        let waiting = self.newer.as_ref().map(|(newer, until)| {
            let former = match &self.former {
                Some((former, why)) if self.has_stand_in() => {
                    let why = why.as_ref().map(|why| format!(" ({why})"));
                    format!(
                        "; until commit {former} was read{}, which is served, only pods that there are have machines",
                        why.unwrap_or_default()
                    )
                }
                Some((former, Some(why))) => {
                    format!("; commit {former}, which is served until then, cannot be read: {why}")
                }
                Some((_, None)) | None => String::new(),
            };
            let why = format!("until CI has applied it, or {until:.0}{former}");
            (newer.commit.clone(), why)
        });
        RepositoryNow {
            commit: self.head.as_ref().map(|head| head.commit.clone()),
            stands_in_for: self
                .former
                .as_ref()
                .map(|(former, _)| former.clone())
                .filter(|_| self.has_stand_in()),
            waiting,
            reads: self.git.clone(),
            problems: self.head.as_ref().map_or(0, |head| head.problems),
        }
    }

    /// Returns the snapshot of the world as of now.
    fn aged(&self, mut seen: WorldNow) -> WorldNow {
        let age = self.now.duration_since(seen.taken_at);
        seen.pending_for = seen.pending_for.map(|waited| waited.saturating_add(age));
        seen.age = age;
        seen.reads.clone_from(&self.world_reads);
        seen
    }
}

/// Returns the snapshot of a world, of the moment that it was looked at.
pub(super) fn seen(world: &Observed) -> WorldNow {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let ours = |i: &&Instance| i.is_active() && i.is_ours(&world.cluster.name);
    let active = world.pods.iter().filter(|pod| pod.is_active());
    let waiting = || world.pods.iter().filter(|pod| is_waiting(pod));
    let first = waiting().map(|pod| pod.created_at).min();
    WorldNow {
        taken_at: world.taken_at,
        age: SignedDuration::ZERO,
        sources: world.sources.clone(),
        nodes: count(world.nodes.len()),
        ready: count(world.nodes.values().filter(|node| node.ready).count()),
        instances: count(world.instances.values().filter(ours).count()),
        pods: count(active.count()),
        pending: count(waiting().count()),
        pending_for: first.map(|at| world.taken_at.duration_since(at)),
        reads: SourceState::default(),
    }
}
