//! What must survive a restart, and is nowhere in EC2 or Kubernetes by itself.
//!
//! Kept in the cluster, beside the lock of applies; so it is bounded, and everything in it is either a
//! hint (one that is lost costs another try) or something that somebody asked for. Budgets do not
//! depend on it alone: [`Kept::learn`] adds what the instances that are there tell.

mod futile;

pub use futile::Quarantine;
pub(super) use futile::Wanted;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::asked::Asked;
use super::message::Kind;
use super::past::Past;
use super::status::{Breaker, Suspension};
use crate::fleet::{Exclusion, Instance, InstanceState, Observed, tag};
use crate::ids::{Digest, InstanceId, PoolName};
use crate::manifest::Rate;
use crate::plan::{Plan, canonical};

/// Most launches and most removals that are remembered one by one; of others it is remembered when they were.
pub(super) const MOVES_MAX: usize = 400;
/// Most launches that any budget allows: of so many it is known which machines they are, so that none counts twice.
pub(super) const LAUNCHES_MAX: usize = 4_000;
/// Most machines that go which are remembered.
pub(super) const GOING_MAX: usize = 400;
/// Most approvals that are remembered.
const APPROVALS_MAX: usize = 20;
/// Most confirmations that are remembered, the newest: as many removals as a page asks about.
const CONFIRMED_MAX: usize = 200;
/// Most approvals of which the rows are remembered, and most rows of one: a larger plan is approved as it
/// is or not at all.
const APPROVED_ROWS_OF: usize = 3;
const APPROVED_ROWS_MAX: usize = 500;
/// Most offerings that are remembered as sold out.
const SOLD_OUT_MAX: usize = 100;
/// In how many parts launches are told in short where they do not fit: each is one look at the length.
const SHED_PARTS: usize = 8;
/// How long launches and removals are remembered: as long as any budget looks back.
const MOVES_KEPT: SignedDuration = Rate::WITHIN_MAX;
/// For how long a machine that was replaced because a part of it failed counts as broken still: where a new one fails as
/// well, as with an agent that errs, its pool loses no more than its share within such a time.
const REPAIRED_COUNTS: SignedDuration = SignedDuration::from_hours(1);
/// Most machines that are replaced within that time because a part of them failed: each is remembered.
pub(super) const REPAIRED_MAX: usize = 400;
/// How long an approval counts.
const APPROVAL_KEPT: SignedDuration = SignedDuration::from_hours(24);

/// How long an offering is left out that was sold out for the first time, as with Karpenter: what a
/// loop decides it does within seconds.
const SOLD_OUT_FIRST: SignedDuration = SignedDuration::from_mins(3);
/// The longest that one is left out.
const SOLD_OUT_MOST: SignedDuration = SignedDuration::from_hours(1);

/// How far a clock may be off: EC2 refuses whatever is signed by one that is further. What EC2 says of moments it says
/// by its own.
pub(super) const CLOCK_OFF: SignedDuration = SignedDuration::from_mins(5);
/// How far apart the clocks of two lives may be.
const CLOCKS_APART: SignedDuration = SignedDuration::from_secs(CLOCK_OFF.as_secs() * 2);

/// How long a machine has until its node is Ready, as an apply gives it.
pub(super) const READY_WITHIN: SignedDuration = SignedDuration::from_mins(15);
/// What must survive a restart.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Kept {
    /// The commit that plans are made from, where the loop waits for CI.
    pub served: Option<String>,
    /// Until when a newer commit waits for CI.
    pub waits_until: Option<Timestamp>,
    /// The last commit that an apply of CI was done with.
    pub applied: Option<Applied>,
    /// Machines that were launched, the oldest first.
    pub launched: Vec<Launched>,
    /// Machines that were removed because somebody here decided so, the oldest first.
    pub removed: Vec<Removed>,
    /// Launches and removals beside those, of which it is remembered when they were.
    #[serde(skip_serializing_if = "Past::is_empty")]
    pub past: Past,
    /// Breakers that latched.
    pub breakers: Vec<Breaker>,
    /// Nothing new is begun.
    pub suspended: Option<Suspension>,
    /// Approval and windows are passed over.
    pub break_glass: Option<Suspension>,
    /// Digests that were approved.
    pub approved: Vec<Approved>,
    /// Machines of which the removal was confirmed, in the order in which that was said.
    pub confirmed: Vec<InstanceId>,
    /// Machines that were launched before this moment and were of no use are forgiven.
    pub forgiven: Option<Timestamp>,
    /// Pools that launch nothing for a while.
    pub quarantine: BTreeMap<PoolName, Quarantine>,
    /// Offerings that were sold out.
    pub sold_out: Vec<SoldOut>,
    /// Machines that go because of something that nobody here decided.
    pub going: Vec<Leaving>,
    /// Machines that were replaced lately because a part of them failed, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub repaired: Vec<Repaired>,
    /// Launches that were asked for, and of which it is not known what became of them.
    pub asked: Vec<Asked>,
    /// How many entries were left out of what was written, so that it fits.
    #[serde(default, skip_serializing_if = "is_none")]
    pub shed: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_none(shed: &usize) -> bool {
    *shed == 0
}

/// An apply of CI, as it left its mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The commit.
    pub commit: String,
    /// When it ended.
    pub at: Timestamp,
    /// Whether everything was done.
    pub whole: bool,
}

/// A machine that was launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launched {
    /// The machine.
    pub instance: InstanceId,
    /// Its pool.
    pub pool: PoolName,
    /// When.
    pub at: Timestamp,
    /// When its node was first seen Ready.
    pub ready_at: Option<Timestamp>,
    /// Whether a pod that is no daemon was ever seen on it.
    pub helped: bool,
    /// Whether it was known before a node of it could have joined: else nobody can say that none did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_start: bool,
    /// Whether pods were seen to wait beside its node, and a plan had more launched for them and none of them on it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passed_over: bool,
}

/// A machine that was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// The machine.
    pub instance: InstanceId,
    /// When; where it is open yet, when it was decided.
    pub at: Timestamp,
    /// Whether a plan is about to remove it, and it is not told to end yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// When by the clock of the life that noted it, where another one counts it later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noted: Option<Timestamp>,
}

/// A machine that was replaced because a part of it failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repaired {
    /// The machine.
    pub instance: InstanceId,
    /// Its pool.
    pub pool: PoolName,
    /// When that was decided.
    pub at: Timestamp,
}

/// A digest that was approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approved {
    /// The digest.
    pub digest: Digest,
    /// Who approved.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// What each change of it decides, as a digest: a plan that makes some of these changes, and no other,
    /// is approved as well.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub rows: BTreeSet<String>,
}

/// An offering that was sold out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoldOut {
    /// Which, and until when it is left out.
    #[serde(flatten)]
    pub exclusion: Exclusion,
    /// For how many seconds.
    pub seconds: i64,
}

/// A machine that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// The machine.
    pub instance: InstanceId,
    /// Why, such as `spot-interruption`.
    pub why: String,
    /// When this was learned.
    pub since: Timestamp,
    /// When it is gone, whatever is done.
    pub deadline: Option<Timestamp>,
    /// Whether it is of a group that we manage, which replaces it by itself once it is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub member: bool,
}

impl Leaving {
    /// Returns whether its end lay ahead when it was told.
    pub(super) fn is_ahead(&self) -> bool {
        self.deadline.is_some_and(|deadline| deadline > self.since)
    }

    /// Returns whether what says so is no more than a reason to look at the machine.
    pub(super) fn is_hint(&self) -> bool {
        self.why == Kind::StateChange.as_str()
    }
}

impl Kept {
    /// Adds what the instances that are there tell: those of ours that were launched lately, whoever
    /// remembered them, and when by the clock of EC2, where whoever did had one that was behind. Notes on which a pod
    /// that is no daemon runs.
    pub fn learn(&mut self, observed: &Observed, now: Timestamp) {
        let known: BTreeSet<InstanceId> =
            self.launched.iter().map(|launch| launch.instance.clone()).collect();
        let since = earlier(now, MOVES_KEPT);
        let past = self.past.came.known();
        let mut new = Vec::new();
        for instance in observed.instances.values() {
            let ours = instance.is_ours(&observed.cluster.name) && instance.launched_at > since;
            let Some(pool) = instance.tags.get(tag::POOL).filter(|_| ours) else { continue };
            let told = instance.launched_at.min(now);
            let counts = past.contains(&instance.id) || self.past.has_counted_all_of(told);
            // By a clock that is ahead it was longer ago than it is.
            let at = later(told, CLOCK_OFF).min(now);
            if !known.contains(&instance.id) && !counts {
                new.push(Launched {
                    instance: instance.id.clone(),
                    pool: pool.as_str().into(),
                    at,
                    ready_at: None,
                    helped: false,
                    from_start: instance.state == InstanceState::Pending,
                    passed_over: false,
                });
            }
        }
        self.launched.extend(new);
        let busy = busy(observed);
        let ready: BTreeSet<&InstanceId> = observed
            .nodes
            .values()
            .filter(|node| node.ready)
            .filter_map(|node| node.instance.as_ref())
            .collect();
        for launch in &mut self.launched {
            let found = observed.instances.get(&launch.instance);
            // A moment that is still to come is not counted towards: it would be another one with each look.
            let told = found.map(|instance| instance.launched_at).filter(|told| *told <= now);
            launch.at = told.map_or(launch.at, |told| launch.at.max(told));
            let runs = found.is_some_and(Instance::is_active);
            // One that went before it had its time says nothing about what it was good for.
            let cut = !runs && !launch.is_futile(now);
            launch.helped |= busy.contains(&launch.instance) || cut;
            if launch.ready_at.is_none() && ready.contains(&launch.instance) {
                launch.ready_at = Some(now);
            }
        }
        self.launched.sort_by(|a, b| (a.at, &a.instance).cmp(&(b.at, &b.instance)));
    }

    /// Forgets what has run out, and what is more than is kept.
    pub fn forget(&mut self, now: Timestamp) {
        let since = earlier(now, MOVES_KEPT);
        self.launched.retain(|launch| launch.at > since);
        self.removed.retain(|removal| removal.at > since);
        self.approved.retain(|approval| approval.at > earlier(now, APPROVAL_KEPT));
        self.past.forget(since, now);
        self.tell_launches_in_short(self.launched.len().saturating_sub(MOVES_MAX));
        // What a plan is about to remove may be left as it was.
        let more = self.removed.len().saturating_sub(MOVES_MAX);
        for removal in self.removed.extract_if(.., |removal| !removal.open).take(more) {
            self.past.went.add(removal.at, None);
        }
        self.repaired.retain(|repaired| now < later(repaired.at, REPAIRED_COUNTS));
        newest(&mut self.approved, APPROVALS_MAX);
        let bare = self.approved.len().saturating_sub(APPROVED_ROWS_OF);
        self.approved.iter_mut().take(bare).for_each(|approval| approval.rows.clear());
        newest(&mut self.confirmed, CONFIRMED_MAX);
        let over = |asked: &Option<Suspension>| {
            asked.as_ref().is_some_and(|asked| asked.until.is_some_and(|until| until <= now))
        };
        if over(&self.suspended) {
            self.suspended = None;
        }
        self.mend_glass(now);
        // A pool that comes out of it is on probation for as long as it was in.
        self.quarantine.retain(|_, held| {
            now < later(held.until, futile::rests_for(held.times).saturating_mul(2))
        });
        self.sold_out.retain(|entry| {
            now < later(entry.exclusion.until, SignedDuration::from_secs(entry.seconds))
        });
    }

    /// Ends the passing over of approval once its time is over; what has no end has none to pass over for.
    pub(super) fn mend_glass(&mut self, now: Timestamp) {
        let holds = |asked: &mut Suspension| asked.until.is_some_and(|until| now < until);
        self.break_glass.take_if(|asked| !holds(asked));
    }

    /// Remembers of so many launches only when they were, and which machines: of the oldest that helped first,
    /// since nothing more is to be said of those.
    fn tell_launches_in_short(&mut self, mut count: usize) {
        for settled in [true, false] {
            let of = |launch: &mut Launched| !settled || launch.helped;
            let told: Vec<Launched> = self.launched.extract_if(.., of).take(count).collect();
            count -= told.len();
            for Launched { instance, at, .. } in told {
                self.past.launched(at, &instance);
            }
        }
    }

    /// Returns when machines were launched.
    pub(super) fn came(&self) -> impl Iterator<Item = Timestamp> {
        self.launched.iter().map(|launch| launch.at).chain(self.past.came.moments())
    }

    /// Returns when machines were removed, or were about to be.
    pub(super) fn went(&self) -> impl Iterator<Item = Timestamp> {
        self.removed.iter().map(|removal| removal.at).chain(self.past.went.moments())
    }

    /// Returns how many more machines may be about to go at the same time.
    pub(super) fn open_left(&self) -> u32 {
        let open = self.removed.iter().filter(|removal| removal.open).count();
        u32::try_from(MOVES_MAX.saturating_sub(open)).unwrap_or(0)
    }

    /// Returns what is written of it, in at most `most` bytes as long as that is possible: without what is cheapest
    /// to be without, in this order. Rows of approvals, the oldest approval first: then its plan is approved as
    /// it is or not at all. What is known of single launches, those first that helped, the oldest first: budgets
    /// count them all the same, and the machines that are there tell of them again. What was sold out: that is
    /// asked for once more. What launches decide that were asked for, the oldest first: they are waited for then,
    /// and not asked for again. Removals, machines that go, repairs, and what somebody asked for are never left out;
    /// whoever writes looks whether it fits ([`Kept::size`]).
    #[must_use]
    pub fn fitted(&self, most: usize) -> Self {
        let mut kept = self.clone();
        kept.shed = 0;
        let mut size = kept.size();
        for n in 0..kept.approved.len() {
            if size <= most {
                return kept;
            }
            kept.shed += std::mem::take(&mut kept.approved[n].rows).len();
            size = kept.size();
        }
        while size > most && !kept.launched.is_empty() {
            let part = kept.launched.len().div_ceil(SHED_PARTS);
            kept.shed += part;
            kept.tell_launches_in_short(part);
            size = kept.size();
        }
        if size > most {
            kept.shed += std::mem::take(&mut kept.sold_out).len();
            size = kept.size();
        }
        for n in 0..kept.asked.len() {
            if size <= most {
                return kept;
            }
            kept.shed += kept.asked[n].forget_rows();
            size = kept.size();
        }
        kept
    }

    /// Returns its length as text, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        serde_json::to_string(self).map_or(usize::MAX, |text| text.len())
    }

    /// Notes what a plan decides whose digest is approved, so that a part of it is approved as well.
    pub(super) fn note_approved(&mut self, plan: &Plan) {
        let digest = &plan.capacity.digest;
        let newest = self.approved.iter_mut().rev().take(APPROVED_ROWS_OF);
        for approval in newest.filter(|a| a.digest == *digest && a.rows.is_empty()) {
            approval.rows = rows_of(plan).collect();
            if approval.rows.len() > APPROVED_ROWS_MAX {
                approval.rows.clear();
            }
        }
    }

    /// Counts machines as removed which a plan is about to remove: what is counted late is not counted by a
    /// process that dies in between.
    pub(super) fn reserve(&mut self, machines: &BTreeSet<InstanceId>, now: Timestamp) {
        self.removed.retain(|removal| !machines.contains(&removal.instance));
        let new = machines.iter().cloned();
        let open = |instance| Removed { instance, at: now, open: true, noted: None };
        self.removed.extend(new.map(open));
    }

    /// Notes that machines were told to end.
    pub(super) fn remove(&mut self, machines: &BTreeSet<InstanceId>, now: Timestamp) {
        self.reserve(machines, now);
        let told = |removal: &&mut Removed| machines.contains(&removal.instance);
        self.removed.iter_mut().filter(told).for_each(|removal| removal.open = false);
    }

    /// Counts from now on what an earlier life was about to remove: whether and when it did, it did not say; and what
    /// it did remove as if its clock had been as far behind as may be. Each life does so anew, by what was noted first:
    /// the moment that the one before made of it was none later than its own.
    pub(super) fn take_over(&mut self, now: Timestamp) {
        for removal in &mut self.removed {
            if removal.open {
                (removal.at, removal.open) = (now, false);
            } else {
                let noted = *removal.noted.get_or_insert(removal.at);
                removal.at = removal.at.max(later(noted, CLOCKS_APART).min(now));
            }
        }
    }

    /// Takes back what was counted of machines that were not told to end.
    pub(super) fn release(&mut self, machines: &BTreeSet<InstanceId>) {
        self.removed.retain(|removal| !machines.contains(&removal.instance));
    }

    /// Returns whether all of those machines are counted as removed, or as about to be.
    pub(super) fn has_reserved(&self, machines: &BTreeSet<InstanceId>) -> bool {
        let counted = self.removed.iter().filter(|removal| machines.contains(&removal.instance));
        counted.count() >= machines.len()
    }

    /// Returns when the next machine may be launched (or removed) where `most` may be within a time,
    /// and how many more may be now.
    pub(super) fn room(
        moments: impl Iterator<Item = Timestamp>,
        most: u32,
        within: SignedDuration,
        now: Timestamp,
    ) -> (u32, Timestamp) {
        let since = earlier(now, within);
        let mut recent: Vec<Timestamp> = moments.filter(|at| *at > since).collect();
        recent.sort_unstable();
        let used = u32::try_from(recent.len()).unwrap_or(u32::MAX);
        let left = most.saturating_sub(used);
        // The one whose end frees the next place.
        let over = usize::try_from(used.saturating_sub(most)).unwrap_or(usize::MAX);
        // Where none may ever go, there is nothing to wait for but another setting.
        let free = if left == 0 { later(now, within) } else { now };
        let next = recent.get(over).map_or(free, |at| later(*at, within));
        (left, next)
    }

    /// Notes an offering that was sold out; one that is remembered still is left out twice as long.
    pub fn note_sold_out(&mut self, exclusion: Exclusion, now: Timestamp) {
        let same = |entry: &SoldOut| {
            Exclusion { until: exclusion.until, ..entry.exclusion.clone() } == exclusion
        };
        let before = self.sold_out.iter().position(same).map(|at| self.sold_out.remove(at));
        let seconds = before.map_or(SOLD_OUT_FIRST.as_secs(), |b| b.seconds.saturating_mul(2));
        let seconds = seconds.min(SOLD_OUT_MOST.as_secs());
        let until = later(now, SignedDuration::from_secs(seconds));
        self.sold_out.push(SoldOut { exclusion: Exclusion { until, ..exclusion }, seconds });
        newest(&mut self.sold_out, SOLD_OUT_MAX);
    }

    /// Returns what is left out at `now` because it was sold out.
    #[must_use]
    pub fn exclusions(&self, now: Timestamp) -> Vec<Exclusion> {
        self.exclusions_before(Timestamp::MAX, now)
    }

    /// Returns what of that was found sold out before `moment`.
    pub(super) fn exclusions_before(&self, moment: Timestamp, now: Timestamp) -> Vec<Exclusion> {
        let noted = |entry: &&SoldOut| {
            earlier(entry.exclusion.until, SignedDuration::from_secs(entry.seconds)) < moment
        };
        let all = self.sold_out.iter().filter(noted).map(|entry| &entry.exclusion);
        all.filter(|exclusion| now < exclusion.until).cloned().collect()
    }
}

/// Returns what each change of a plan decides, as a short digest.
pub(super) fn rows_of(plan: &Plan) -> impl Iterator<Item = String> {
    let changes: BTreeSet<_> =
        plan.capacity.waves.iter().flat_map(|wave| &wave.addresses).collect();
    let rows = plan.resource_changes.iter().filter(move |row| changes.contains(&row.address));
    rows.map(|row| {
        let digest = canonical::sha256(&(&row.address, &row.change)).unwrap_or_default();
        digest.trim_start_matches("sha256:").chars().take(20).collect()
    })
}

/// Returns the instances on whose nodes a pod is that does not belong to the node.
fn busy(observed: &Observed) -> BTreeSet<InstanceId> {
    let nodes: BTreeSet<_> = observed
        .pods
        .iter()
        .filter(|pod| pod.is_active() && !pod.belongs_to_node())
        .filter_map(|pod| pod.node.as_ref())
        .collect();
    let nodes = observed.nodes.values().filter(|node| nodes.contains(&node.name));
    nodes.filter_map(|node| node.instance.clone()).collect()
}

fn newest<T>(list: &mut Vec<T>, most: usize) {
    if let Some(more) = list.len().checked_sub(most) {
        list.drain(..more);
    }
}

/// Returns `first`, doubled so many times, and `most` at the most.
pub(super) fn doubled(first: SignedDuration, times: u32, most: SignedDuration) -> SignedDuration {
    let factor = 1_i32.checked_shl(times.min(20)).unwrap_or(i32::MAX);
    first.checked_mul(factor).map_or(most, |wait| wait.min(most))
}

/// Returns the moment `span` after `at`, or the last one there is.
pub(super) fn later(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// Returns the moment `span` before `at`, or the first one there is.
pub(super) fn earlier(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.checked_sub(span).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests;
