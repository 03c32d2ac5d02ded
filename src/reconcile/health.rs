//! Machines whose nodes are not Ready, or never joined, or are Ready and say that something of them does not work.
//!
//! Invariant: a verdict needs looks that agree for as long as it takes, and no look counts in which
//! Kubernetes shows no node of ours at all where some had joined.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::kept::{Leaving, READY_WITHIN, REPAIRED_MAX, Repaired, later};
use super::state::State;
use crate::fleet::{Fault, Instance, Node, Observed, tag};
use crate::ids::{InstanceId, PoolName};
use crate::manifest::Mode;

/// Share of the nodes of a pool that may be broken for one of them to be replaced, in percent.
const BROKEN_PERCENT: usize = 20;
/// Fewest looks at the world in which a machine is not well before it is taken for broken.
const LOOKS_LEAST: u32 = 10;

/// Why a machine is replaced whose node is not Ready.
pub(super) const NOT_READY: &str = "not-ready";
/// Why a machine ends that no node ever ran on.
pub(super) const NEVER_READY: &str = "never-ready";

/// Returns whether the kubelet of a machine that goes for this reason is gone, so that what runs there may never stop by
/// itself. One of which a part fails is drained like any other.
pub(super) fn is_broken(why: &str) -> bool {
    why == NOT_READY || why == NEVER_READY
}

/// Returns whether it was decided here that a machine goes for this reason, by how its node is.
pub(super) fn is_repair(why: &str) -> bool {
    is_broken(why) || fault_of(why).is_some()
}

fn fault_of(why: &str) -> Option<Fault> {
    Fault::ALL.into_iter().find(|fault| why == fault.reason())
}

/// What is wrong with a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ailment {
    /// Its node is not Ready, or has not joined.
    Unready,
    /// Its node says that something of it does not work.
    Fault(Fault),
}

impl Ailment {
    /// Returns everything that is wrong with a machine whose node is that one.
    fn all(node: Option<&Node>) -> impl Iterator<Item = Self> {
        let ready = node.is_some_and(|node| node.ready);
        let faults = node.into_iter().flat_map(|node| &node.faults);
        (!ready).then_some(Self::Unready).into_iter().chain(faults.copied().map(Self::Fault))
    }

    /// Returns for how long a machine whose node had joined is left with it, where such nodes are replaced after so long.
    fn tolerated(self, repair_after: SignedDuration) -> SignedDuration {
        match self {
            Self::Unready => repair_after,
            Self::Fault(fault) => fault.tolerated().min(repair_after),
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Unready => NOT_READY,
            Self::Fault(fault) => fault.reason(),
        }
    }
}

/// A machine whose node is not well, or has not joined.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unwell {
    since: Timestamp,
    looks: u32,
    joined: bool,
}

impl Unwell {
    fn is_old(&self, age: SignedDuration, now: Timestamp) -> bool {
        now >= later(self.since, age) && self.looks >= LOOKS_LEAST
    }
}

/// Which machines are not well, or were not.
#[derive(Debug, Clone, Default)]
pub(super) struct Health {
    /// Machines whose nodes are not well, by what is wrong.
    pub(super) unwell: BTreeMap<(InstanceId, Ailment), Unwell>,
    /// Machines that a node was seen of.
    pub(super) joined: BTreeSet<InstanceId>,
}

/// How many machines a pool has, and how many of them are broken.
type Sizes = BTreeMap<String, (usize, usize)>;

impl State {
    /// Notes which machines are not Ready, and has those go that are not for too long.
    ///
    /// Ages are counted from when this loop first saw them so, and in looks as well: clocks of EC2 and
    /// of this machine may be hours apart, and either may jump.
    pub(super) fn watch_health(&mut self, world: &Observed) {
        let nodes = world.nodes_by_instance();
        self.health.joined.retain(|id| world.instances.contains_key(id));
        self.health.joined.extend(nodes.keys().map(|id| (*id).clone()));
        let strangers = self.may_have_joined(world);
        let blind =
            is_blind(world, &nodes, |id| self.health.joined.contains(id) || strangers.contains(id));
        if blind {
            // Whatever was seen before, ages begin anew.
            self.count("reads.world.blind", 1);
            self.health.unwell.clear();
        }
        let sizes = self.note_unwell(world, &nodes, &strangers);
        if !blind {
            self.spare_recovered(&nodes);
            if self.acts_on_health() {
                self.judge_unwell(world, &sizes);
            }
        }
    }

    /// Returns whether a machine had a node once, as far as this life or the record knows.
    pub(super) fn had_joined(&self, id: &InstanceId) -> bool {
        let launched = self.kept.iter().flat_map(|kept| &kept.launched);
        let ready =
            |launch: &super::kept::Launched| launch.instance == *id && launch.ready_at.is_some();
        self.health.joined.contains(id) || launched.into_iter().any(ready)
    }

    /// Returns the machines of which nobody can say that they never joined: those whose begin the record
    /// does not tell, and those that it has seen Ready.
    fn may_have_joined(&self, world: &Observed) -> BTreeSet<InstanceId> {
        let launched = self.kept.iter().flat_map(|kept| &kept.launched);
        let never = launched.filter(|launch| launch.from_start && launch.ready_at.is_none());
        let never: BTreeSet<&InstanceId> = never.map(|launch| &launch.instance).collect();
        world.instances.keys().filter(|id| !never.contains(id)).cloned().collect()
    }

    fn note_unwell(
        &mut self,
        world: &Observed,
        nodes: &BTreeMap<&InstanceId, &Node>,
        strangers: &BTreeSet<InstanceId>,
    ) -> Sizes {
        let now = self.now;
        let mut unwell: BTreeMap<(InstanceId, Ailment), Unwell> = BTreeMap::new();
        let mut sizes = Sizes::new();
        let repair_after = self.head.as_ref().and_then(|head| head.controller.repair_after);
        let counts_after = |ailment: Ailment| {
            repair_after.map_or(READY_WITHIN, |after| ailment.tolerated(after).min(READY_WITHIN))
        };
        // Where nobody repairs what had joined, a part that fails says nothing.
        let counts = |ailment: &Ailment| repair_after.is_some() || *ailment == Ailment::Unready;
        for instance in world.instances.values().filter(|i| is_ours(i, world)) {
            let size = sizes.entry(pool_of(instance).to_owned()).or_default();
            size.0 += 1;
            // One whose node was deleted is broken at most, like all that many things break at once.
            let joined =
                self.health.joined.contains(&instance.id) || strangers.contains(&instance.id);
            let mut broken = false;
            for ailment in Ailment::all(nodes.get(&instance.id).copied()).filter(counts) {
                let key = (instance.id.clone(), ailment);
                let before = self.health.unwell.get(&key).filter(|before| before.joined == joined);
                let since = before.map_or(now, |before| before.since.min(now));
                let looks = before.map_or(0, |before| before.looks).saturating_add(1);
                let found = Unwell { since, looks, joined };
                broken |= joined && found.is_old(counts_after(ailment), now);
                unwell.insert(key, found);
            }
            size.1 += usize::from(broken);
        }
        self.health.unwell = unwell;
        sizes
    }

    /// Leaves machines as they are of which what was wrong has passed before their pods were asked to leave.
    fn spare_recovered(&mut self, nodes: &BTreeMap<&InstanceId, &Node>) {
        let now = self.now;
        for (id, away) in &mut self.away {
            let fault = fault_of(&away.leaving.why);
            let is_well = |node: &&Node| {
                node.ready && fault.is_none_or(|fault| !node.faults.contains(&fault))
            };
            if is_repair(&away.leaving.why) && nodes.get(id).is_some_and(is_well) {
                away.is_spared(now);
            }
        }
    }

    fn judge_unwell(&mut self, world: &Observed, sizes: &Sizes) {
        let now = self.now;
        let gone = |id: &InstanceId| !world.instances.get(id).is_some_and(Instance::is_active);
        let mut gone_of: BTreeMap<PoolName, usize> = BTreeMap::new();
        let repaired = self.kept.iter().flat_map(|kept| &kept.repaired);
        for machine in repaired.filter(|machine| gone(&machine.instance)) {
            *gone_of.entry(machine.pool.clone()).or_default() += 1;
        }
        let repair_after = self.head.as_ref().and_then(|head| head.controller.repair_after);
        for ((id, ailment), found) in self.health.unwell.clone() {
            let pool = world.instances.get(&id).map(pool_of);
            let (all, bad) = pool.and_then(|pool| sizes.get(pool)).copied().unwrap_or((1, 1));
            // Many at once are broken by something that a new machine does not mend.
            let most = (all * BROKEN_PERCENT).div_ceil(100);
            let replaced = pool.and_then(|pool| gone_of.get(pool)).copied().unwrap_or(0);
            let few = match ailment {
                Ailment::Unready => bad <= most,
                // What works in part may go only where anything may.
                Ailment::Fault(_) => bad + replaced <= most && self.mode() == Mode::Full,
            };
            if !found.joined && found.is_old(READY_WITHIN, now) {
                self.has_to_go(id, NEVER_READY);
            } else if found.joined
                && few
                && repair_after.is_some_and(|after| found.is_old(ailment.tolerated(after), now))
            {
                if let (Ailment::Fault(_), Some(pool)) = (ailment, pool)
                    && !self.notes_repair(&id, pool)
                {
                    continue;
                }
                self.has_to_go(id, ailment.reason());
            }
        }
    }

    /// Notes that a machine is replaced because a part of it fails; returns whether there was room for it, or it was
    /// noted before.
    fn notes_repair(&mut self, id: &InstanceId, pool: &str) -> bool {
        let now = self.now;
        let Some(kept) = &mut self.kept else { return false };
        if kept.repaired.iter().any(|machine| machine.instance == *id) {
            return true;
        }
        let room = kept.repaired.len() < REPAIRED_MAX;
        if room {
            kept.repaired.push(Repaired { instance: id.clone(), pool: pool.into(), at: now });
        }
        room
    }

    fn acts_on_health(&self) -> bool {
        let suspended = self.kept.as_ref().is_none_or(|kept| kept.suspended.is_some());
        self.leader && self.mode() != Mode::Observe && !suspended
    }

    fn has_to_go(&mut self, instance: InstanceId, why: &str) {
        let busy = self.lanes.values().any(|lane| lane.removes_machine(&instance));
        if busy || self.away.contains_key(&instance) {
            return;
        }
        let (why, since) = (why.to_owned(), self.now);
        let leaving = Leaving { instance, why, since, deadline: None, member: false };
        self.goes(leaving, self.looks);
    }
}

fn is_ours(instance: &Instance, world: &Observed) -> bool {
    instance.is_active() && instance.is_ours(&world.cluster.name)
}

fn pool_of(instance: &Instance) -> &str {
    instance.tags.get(tag::POOL).map_or("", String::as_str)
}

/// Returns whether a look cannot be right: it shows no node of ours, where machines of ours run that had
/// joined, or pods that sit on nodes which it does not show.
fn is_blind(
    world: &Observed,
    nodes: &BTreeMap<&InstanceId, &Node>,
    had_joined: impl Fn(&InstanceId) -> bool,
) -> bool {
    let ours = || world.instances.values().filter(|i| is_ours(i, world));
    if ours().any(|instance| nodes.contains_key(&instance.id)) {
        return false;
    }
    let lost = |pod: &crate::fleet::Pod| {
        pod.is_active() && pod.node.as_ref().is_some_and(|node| !world.nodes.contains_key(node))
    };
    ours().any(|i| had_joined(&i.id))
        || (ours().next().is_some() && world.pods.iter().any(|pod| lost(pod)))
}

#[cfg(test)]
mod tests;
