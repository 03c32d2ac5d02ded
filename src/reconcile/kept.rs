//! What must survive a restart, and is nowhere in EC2 or Kubernetes by itself.
//!
//! Kept in the cluster, beside the lock of applies; so it is bounded, and everything in it is either a
//! hint (one that is lost costs another try) or something that somebody asked for. Budgets do not
//! depend on it alone: [`Kept::learn`] adds what the instances that are there tell.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::asked::Asked;
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
/// Most approvals and most confirmations that are remembered.
const APPROVALS_MAX: usize = 20;
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
/// How long an approval counts.
const APPROVAL_KEPT: SignedDuration = SignedDuration::from_hours(24);

/// How long an offering is left out that was sold out for the first time, as with Karpenter: what a
/// loop decides it does within seconds.
const SOLD_OUT_FIRST: SignedDuration = SignedDuration::from_mins(3);
/// The longest that one is left out.
const SOLD_OUT_MOST: SignedDuration = SignedDuration::from_hours(1);

/// How long a pool launches nothing whose machines did not help, for the first time, and at most.
const QUARANTINE_FIRST: SignedDuration = SignedDuration::from_mins(5);
const QUARANTINE_MOST: SignedDuration = SignedDuration::from_hours(1);

/// How long a machine has until its node is Ready, as an apply gives it.
pub(super) const READY_WITHIN: SignedDuration = SignedDuration::from_mins(15);
/// How long a node that is Ready may be without the pods that it was launched for.
const USED_WITHIN: SignedDuration = SignedDuration::from_secs(45);
/// How far back machines count that were of no use, and how many of a pool are enough to stop it.
const FUTILE_SPAN: SignedDuration = SignedDuration::from_mins(30);
const FUTILE_MOST: usize = 3;
/// How many of all pools within the time that is remembered latch a breaker.
const FUTILE_LATCH: usize = 10;

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
    /// Machines of which the removal was confirmed.
    pub confirmed: BTreeSet<InstanceId>,
    /// Machines that were launched before this moment and were of no use are forgiven.
    pub forgiven: Option<Timestamp>,
    /// Pools that launch nothing for a while.
    pub quarantine: BTreeMap<PoolName, Quarantine>,
    /// Offerings that were sold out.
    pub sold_out: Vec<SoldOut>,
    /// Machines that go because of something that nobody here decided.
    pub going: Vec<Leaving>,
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
}

impl Launched {
    /// Returns whether it was of no use: Ready for a while and never a pod on it, or never Ready.
    fn is_futile(&self, now: Timestamp) -> bool {
        let since = self.ready_at.map_or(later(self.at, READY_WITHIN), |at| later(at, USED_WITHIN));
        !self.helped && now >= since
    }
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

/// A pool that launches nothing for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    /// Until when.
    pub until: Timestamp,
    /// How often in a row.
    pub times: u32,
    /// Why, with numbers.
    pub why: String,
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
}

impl Kept {
    /// Adds what the instances that are there tell: those of ours that were launched lately, whoever
    /// remembered them. Notes on which a pod that is no daemon runs.
    pub fn learn(&mut self, observed: &Observed, now: Timestamp) {
        let known: BTreeSet<InstanceId> =
            self.launched.iter().map(|launch| launch.instance.clone()).collect();
        let since = earlier(now, MOVES_KEPT);
        let past = self.past.came.known();
        let mut new = Vec::new();
        for instance in observed.instances.values() {
            let ours = instance.is_ours(&observed.cluster.name) && instance.launched_at > since;
            let Some(pool) = instance.tags.get(tag::POOL).filter(|_| ours) else { continue };
            // The clock of EC2 may be another.
            let at = instance.launched_at.min(now);
            let counts = past.contains(&instance.id) || self.past.has_counted_all_of(at);
            if !known.contains(&instance.id) && !counts {
                new.push(Launched {
                    instance: instance.id.clone(),
                    pool: pool.as_str().into(),
                    at,
                    ready_at: None,
                    helped: false,
                    from_start: instance.state == InstanceState::Pending,
                });
            }
        }
        self.launched.extend(new);
        self.launched.sort_by(|a, b| (a.at, &a.instance).cmp(&(b.at, &b.instance)));
        let busy = busy(observed);
        let ready: BTreeSet<&InstanceId> = observed
            .nodes
            .values()
            .filter(|node| node.ready)
            .filter_map(|node| node.instance.as_ref())
            .collect();
        for launch in &mut self.launched {
            let runs = observed.instances.get(&launch.instance).is_some_and(Instance::is_active);
            // One that went before it had its time says nothing about what it was good for.
            let cut = !runs && !launch.is_futile(now);
            launch.helped |= busy.contains(&launch.instance) || cut;
            if launch.ready_at.is_none() && ready.contains(&launch.instance) {
                launch.ready_at = Some(now);
            }
        }
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
        newest(&mut self.approved, APPROVALS_MAX);
        let bare = self.approved.len().saturating_sub(APPROVED_ROWS_OF);
        self.approved.iter_mut().take(bare).for_each(|approval| approval.rows.clear());
        while self.confirmed.len() > APPROVALS_MAX {
            self.confirmed.pop_first();
        }
        let over = |asked: &Option<Suspension>| {
            asked.as_ref().is_some_and(|asked| asked.until.is_some_and(|until| until <= now))
        };
        if over(&self.suspended) {
            self.suspended = None;
        }
        if over(&self.break_glass) {
            self.break_glass = None;
        }
        // A pool that comes out of it is on probation for as long as it was in.
        self.quarantine
            .retain(|_, held| now < later(held.until, quarantine_of(held.times).saturating_mul(2)));
        self.sold_out.retain(|entry| {
            now < later(entry.exclusion.until, SignedDuration::from_secs(entry.seconds))
        });
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
    /// and not asked for again. Removals, machines that go, and what somebody asked for are never left out;
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
        self.removed.extend(new.map(|instance| Removed { instance, at: now, open: true }));
    }

    /// Notes that machines were told to end.
    pub(super) fn remove(&mut self, machines: &BTreeSet<InstanceId>, now: Timestamp) {
        self.reserve(machines, now);
        let told = |removal: &&mut Removed| machines.contains(&removal.instance);
        self.removed.iter_mut().filter(told).for_each(|removal| removal.open = false);
    }

    /// Counts from now on what an earlier life was about to remove: whether and when it did, it did not say.
    pub(super) fn take_over(&mut self, now: Timestamp) {
        for removal in self.removed.iter_mut().filter(|removal| removal.open) {
            (removal.at, removal.open) = (now, false);
        }
    }

    /// Takes back what was counted of machines that were not told to end.
    pub(super) fn release(&mut self, machines: &BTreeSet<InstanceId>) {
        self.removed.retain(|removal| !machines.contains(&removal.instance));
    }

    /// Returns whether machines are counted as removed, or as many of them as are remembered.
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

    /// Judges launches by what they were good for: a pool of which several lately were of no use is to
    /// launch nothing for a while, and many of any pool latch a breaker.
    pub(super) fn judge_launches(&mut self, wanted: &BTreeSet<PoolName>, now: Timestamp) {
        let since = self.forgiven.unwrap_or(Timestamp::MIN);
        let futile = |launch: &&Launched| launch.at > since && launch.is_futile(now);
        let all: Vec<Launched> = self.launched.iter().filter(futile).cloned().collect();
        // Of more than are known one by one nobody knows whether they were of use.
        let launches = self.came().count().min(MOVES_MAX);
        if all.len() >= FUTILE_LATCH && all.len() * 2 > launches {
            let why = format!("{} of {launches} machines were of no use", all.len());
            self.latch(super::allow::LAUNCHES, (why, None), now);
        }
        for pool in wanted {
            let held = self.quarantine.get(pool);
            if held.is_some_and(|held| now < held.until) {
                continue;
            }
            // What led to the last quarantine is not held against the pool again.
            let from = held.map_or(earlier(now, FUTILE_SPAN), |held| held.until);
            // On probation the first failure is one too many.
            let enough = if held.is_some() { 1 } else { FUTILE_MOST };
            let count = all.iter().filter(|l| l.pool == *pool && l.at >= from).count();
            if count >= enough {
                let why = format!("{count} machines of pool {pool} were launched and of no use");
                self.quarantine(pool, why, now);
            }
        }
    }

    /// Has a pool launch nothing for a while, for longer each time in a row.
    pub(super) fn quarantine(&mut self, pool: &PoolName, why: String, now: Timestamp) {
        let times = self.quarantine.get(pool).map_or(0, |held| held.times.saturating_add(1));
        let until = later(now, quarantine_of(times));
        self.quarantine.insert(pool.clone(), Quarantine { until, times, why });
    }

    /// Returns the quarantine of a pool that holds at `now`.
    pub(super) fn quarantined(&self, pool: &PoolName, now: Timestamp) -> Option<&Quarantine> {
        self.quarantine.get(pool).filter(|held| now < held.until)
    }

    /// Latches a breaker; returns whether it was open.
    pub(super) fn latch(
        &mut self,
        name: &str,
        (why, removes): (String, Option<u32>),
        now: Timestamp,
    ) -> bool {
        if self.breakers.iter().any(|breaker| breaker.name == name) {
            return false;
        }
        self.breakers.push(Breaker { name: name.to_owned(), since: now, why, removes });
        true
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

fn quarantine_of(times: u32) -> SignedDuration {
    let doubled = 1_i32.checked_shl(times.min(20)).unwrap_or(i32::MAX);
    QUARANTINE_FIRST.checked_mul(doubled).map_or(QUARANTINE_MOST, |d| d.min(QUARANTINE_MOST))
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

/// Returns the moment `span` after `at`, or the last one there is.
pub(super) fn later(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.checked_add(span).unwrap_or(Timestamp::MAX)
}

/// Returns the moment `span` before `at`, or the first one there is.
pub(super) fn earlier(at: Timestamp, span: SignedDuration) -> Timestamp {
    at.checked_sub(span).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::super::asked::ROWS_MAX;
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("a time")
    }

    #[test]
    fn a_budget_slides_and_says_when_the_next_may_come() {
        let within = SignedDuration::from_secs(60);
        for (moments, most, now, left, next) in [
            (vec![], 2, 0, 2, 0),
            (vec![-70, -10], 2, 0, 1, 50),
            (vec![-50, -10], 2, 0, 0, 10),
            (vec![-50, -20, -10], 2, 0, 0, 40),
            (vec![-60], 1, 0, 1, 0),
        ] {
            let found = Kept::room(moments.iter().map(|s| at(*s)), most, within, at(now));
            assert_eq!(found, (left, at(next)), "{moments:?} of {most}");
        }
        assert_eq!(Kept::room([].into_iter(), 0, within, at(0)), (0, at(60)));
    }

    #[test]
    fn what_is_sold_out_again_is_left_out_for_longer_and_what_rests_is_forgotten() {
        let kind = |kind: &str| Exclusion {
            instance_type: Some(kind.into()),
            zone: None,
            capacity_type: None,
            until: Timestamp::MIN,
        };
        let mut kept = Kept::default();
        kept.note_sold_out(kind("a"), at(0));
        assert_eq!((kept.exclusions(at(179)).len(), kept.exclusions(at(180)).len()), (1, 0));
        kept.note_sold_out(kind("a"), at(200));
        assert_eq!((kept.exclusions(at(559)).len(), kept.exclusions(at(560)).len()), (1, 0));
        kept.forget(at(560 + 360));
        assert_eq!(kept.sold_out, []);
    }

    #[test]
    fn a_quarantine_doubles_and_ends() {
        let mut kept = Kept::default();
        let pool = PoolName::from("web");
        kept.quarantine(&pool, String::new(), at(0));
        assert!(kept.quarantined(&pool, at(299)).is_some());
        assert!(kept.quarantined(&pool, at(300)).is_none());
        kept.quarantine(&pool, String::new(), at(310));
        assert!(kept.quarantined(&pool, at(909)).is_some());
        assert!(kept.quarantined(&pool, at(910)).is_none());
        assert_eq!(quarantine_of(40), QUARANTINE_MOST);
        kept.forget(at(100_000));
        assert!(kept.quarantine.is_empty());
    }

    #[test]
    fn a_pool_whose_machines_are_of_no_use_launches_nothing_for_a_while() {
        let pool = PoolName::from("web");
        let wanted = [pool.clone()].into();
        let launched = |n: i64, ready: Option<i64>, helped| Launched {
            instance: format!("i-{n}").as_str().into(),
            pool: pool.clone(),
            at: at(n),
            ready_at: ready.map(at),
            helped,
            from_start: false,
        };
        let held = |launches: &[Launched], now| {
            let mut kept = Kept { launched: launches.to_vec(), ..Kept::default() };
            kept.judge_launches(&wanted, at(now));
            kept.quarantined(&pool, at(now)).is_some()
        };
        let three = |ready, helped| [1, 2, 3].map(|n| launched(n, ready, helped)).to_vec();
        assert!(held(&three(Some(40), false), 85), "Ready, and nobody came");
        assert!(!held(&three(Some(40), false), 84), "pods need a moment");
        assert!(!held(&three(Some(40), true), 200), "pods came");
        assert!(!held(&three(Some(40), false)[1..], 200), "two may be chance");
        assert!(!held(&three(None, false), 800), "still booting");
        assert!(held(&three(None, false), 904), "never Ready");
        let mut kept = Kept { launched: three(Some(40), false), ..Kept::default() };
        kept.judge_launches(&wanted, at(100));
        kept.launched.push(launched(401, Some(440), false));
        kept.judge_launches(&wanted, at(450));
        assert!(kept.quarantined(&pool, at(450)).is_none(), "tried again");
        kept.judge_launches(&wanted, at(490));
        assert!(kept.quarantined(&pool, at(1000)).is_some(), "for twice as long");
    }

    #[test]
    fn what_is_about_to_go_counts_before_it_goes_and_no_longer_where_it_stays() {
        let ids = |names: &[&str]| names.iter().copied().map(InstanceId::from).collect();
        let mut kept = Kept::default();
        kept.reserve(&ids(&["i-1", "i-2", "i-3"]), at(0));
        assert!(kept.has_reserved(&ids(&["i-1", "i-3"])) && !kept.has_reserved(&ids(&["i-4"])));
        kept.remove(&ids(&["i-1"]), at(100));
        kept.release(&ids(&["i-2"]));
        let counted = |kept: &Kept| {
            let all = kept.removed.iter().map(|r| (r.instance.to_string(), r.at, r.open));
            all.collect::<Vec<_>>()
        };
        let (one, three) = ("i-1".to_owned(), "i-3".to_owned());
        assert_eq!(counted(&kept), [(three.clone(), at(0), true), (one.clone(), at(100), false)]);
        // A process that died may have removed it at any moment until now.
        kept.take_over(at(900));
        assert_eq!(counted(&kept), [(three, at(900), false), (one, at(100), false)]);
    }

    /// Returns what is kept where every list is as long as it can be.
    fn full() -> Kept {
        let id = |n: usize| InstanceId::from(format!("i-{n:017x}").as_str());
        let name = |n: usize| format!("a-pool-with-a-name-{n}").as_str().into();
        let moment = |n: usize| at(i64::try_from(n).expect("few"));
        let asked = |plan: usize| Asked {
            plan: format!("{plan:064x}").into(),
            at: at(0),
            times: 1,
            rows: (0..ROWS_MAX)
                .map(|n| (format!("ec2_instance.pool[\"{n}\"]").into(), format!("{n:016x}")))
                .collect(),
            turns: BTreeMap::new(),
            since: Some(at(0)),
            more: 0,
        };
        Kept {
            launched: (0..MOVES_MAX)
                .map(|n| Launched {
                    instance: id(n),
                    pool: name(n % 9),
                    at: moment(n),
                    ready_at: Some(at(9)),
                    helped: true,
                    from_start: true,
                })
                .collect(),
            removed: (0..MOVES_MAX)
                .map(|n| Removed { instance: id(n), at: moment(n), open: true })
                .collect(),
            approved: (0..APPROVALS_MAX)
                .map(|n| Approved {
                    digest: format!("{n:064x}").into(),
                    by: "somebody@example.com".to_owned(),
                    at: moment(n),
                    rows: (0..if n + APPROVED_ROWS_OF < APPROVALS_MAX {
                        0
                    } else {
                        APPROVED_ROWS_MAX
                    })
                        .map(|row| format!("{row:020x}"))
                        .collect(),
                })
                .collect(),
            confirmed: (0..APPROVALS_MAX).map(id).collect(),
            sold_out: (0..SOLD_OUT_MAX)
                .map(|n| SoldOut {
                    exclusion: Exclusion {
                        instance_type: Some(format!("m5.{n}xlarge").as_str().into()),
                        zone: Some("us-east-1a".into()),
                        capacity_type: None,
                        until: at(9),
                    },
                    seconds: 360,
                })
                .collect(),
            going: (0..GOING_MAX)
                .map(|n| Leaving {
                    instance: id(n),
                    why: "rebalance-recommendation".to_owned(),
                    since: moment(n),
                    deadline: Some(at(9)),
                })
                .collect(),
            asked: vec![asked(1), asked(2)],
            ..Kept::default()
        }
    }

    #[test]
    fn what_does_not_fit_is_left_out_in_a_stated_order_and_counted() {
        let kept = full();
        let rows = APPROVED_ROWS_OF * APPROVED_ROWS_MAX;
        let sizes = |kept: &Kept| {
            let rows: usize = kept.approved.iter().map(|approval| approval.rows.len()).sum();
            let asked: Vec<_> = kept.asked.iter().map(|a| (a.rows.len(), a.more)).collect();
            (rows, asked, kept.launched.len())
        };
        let whole = (ROWS_MAX, 0);
        let count = (0, u32::try_from(ROWS_MAX).expect("few"));
        assert_eq!(kept.fitted(usize::MAX), kept, "what fits stays whole");
        for (less, left, shed) in [
            (1, (rows - APPROVED_ROWS_MAX, vec![whole, whole], MOVES_MAX), APPROVED_ROWS_MAX),
            (40_000, (0, vec![whole, whole], MOVES_MAX - 50), rows + 50),
            (150_000, (0, vec![count, whole], 0), rows + MOVES_MAX + SOLD_OUT_MAX + ROWS_MAX),
        ] {
            let fitted = kept.fitted(kept.size() - less);
            assert_eq!((sizes(&fitted), fitted.shed), (left, shed), "{less} bytes less");
            assert_eq!(fitted.came().count(), MOVES_MAX, "budgets count all of them");
        }
        // The API server takes 256 KiB of annotations, and others have some.
        let fitted = kept.fitted(100 << 10);
        assert!(fitted.size() <= 100 << 10, "{}", fitted.size());
        assert_eq!((&fitted.going, &fitted.removed), (&kept.going, &kept.removed));
    }

    /// Returns a world with so many machines of ours, launched a second apart.
    fn running(count: i64) -> Observed {
        let mut observed = Observed::empty(crate::fleet::ClusterIdentity::default(), at(0));
        for n in 0..count {
            let instance = Instance {
                id: format!("i-{n:017x}").into(),
                instance_type: "m5.large".into(),
                zone: "us-east-1a".into(),
                capacity_type: crate::catalog::CapacityType::Spot,
                state: InstanceState::Running,
                launched_at: at(n),
                image: String::new(),
                tags: [(tag::CLUSTER, ""), (tag::POOL, "web"), (tag::KEY, "0")]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
                reservation: None,
                group: None,
            };
            observed.instances.insert(instance.id.clone(), instance);
        }
        observed
    }

    #[test]
    fn more_launches_than_have_names_count_once_however_often_they_are_seen() {
        let (observed, mut kept) = (running(5_000), Kept::default());
        for look in 0..3 {
            kept.learn(&observed, at(5_000 + look));
            kept.forget(at(5_000 + look));
            assert_eq!((kept.came().count(), kept.launched.len()), (5_000, MOVES_MAX), "{look}");
            // Nor does a restart have them count anew.
            let text = serde_json::to_string(&kept).expect("text");
            assert!(text.len() < 150_000, "{}", text.len());
            kept = serde_json::from_str(&text).expect("reads");
        }
        // What is launched after them counts.
        kept.learn(&running(5_010), at(5_020));
        kept.forget(at(5_020));
        assert_eq!(kept.came().count(), 5_010);
    }

    #[test]
    fn machines_of_no_use_latch_the_breaker_in_fleets_of_any_size() {
        let pool = PoolName::from("web");
        for (helped, futile, latches) in [
            (9, 10, true),
            (10, 10, false),
            (0, 9, false),
            (900, 250, true),
            // As long as half of those that are known one by one were of use.
            (900, 200, false),
        ] {
            let launch = |n: i64, helped| Launched {
                instance: format!("i-{n}").as_str().into(),
                pool: pool.clone(),
                at: at(n),
                ready_at: Some(at(n)),
                helped,
                from_start: false,
            };
            let all = (0..helped + futile).map(|n| launch(n, n < helped)).collect();
            let (mut kept, now) = (Kept { launched: all, ..Kept::default() }, at(2_000));
            kept.forget(now);
            kept.judge_launches(&BTreeSet::new(), now);
            assert_eq!(kept.breakers.len(), usize::from(latches), "{futile} of {helped} more");
        }
    }

    #[test]
    fn a_launch_counts_once_however_often_it_is_seen_and_however_many_there_are() {
        let (observed, mut kept) = (running(1_500), Kept::default());
        for look in 0..3 {
            kept.learn(&observed, at(1_500 + look));
            kept.forget(at(1_500 + look));
            assert_eq!((kept.came().count(), kept.launched.len()), (1_500, MOVES_MAX), "{look}");
        }
        let within = SignedDuration::from_mins(10);
        // 600 s hold as many, but for those that are counted with later ones of their minute.
        let (left, _) = Kept::room(kept.came(), 1_000, within, at(1_502));
        assert!((340..=402).contains(&left), "{left}");
        // What is about to go is known one by one, and what went is counted.
        let ids =
            |from: usize| (from..from + 300).map(|n| InstanceId::from(format!("i-{n}"))).collect();
        kept.reserve(&ids(0), at(1_600));
        assert_eq!((kept.open_left(), kept.has_reserved(&ids(0))), (100, true));
        kept.remove(&ids(0), at(1_601));
        kept.reserve(&ids(300), at(1_602));
        kept.forget(at(1_602));
        assert_eq!((kept.removed.len(), kept.went().count()), (MOVES_MAX, 600));
        assert!(kept.has_reserved(&ids(300)));
        let read: Kept =
            serde_json::from_str(&serde_json::to_string(&kept).expect("text")).expect("reads");
        assert_eq!(read, kept);
    }

    #[test]
    fn what_is_kept_is_bounded_and_reads_back() {
        let mut kept = Kept::default();
        for n in 0..1_000 {
            let instance = InstanceId::from(format!("i-{n}"));
            kept.removed.push(Removed { instance: instance.clone(), at: at(n), open: false });
            kept.launched.push(Launched {
                instance,
                pool: "web".into(),
                at: at(n),
                ready_at: None,
                helped: true,
                from_start: false,
            });
        }
        kept.forget(at(1_000));
        assert_eq!((kept.removed.len(), kept.launched.len()), (MOVES_MAX, MOVES_MAX));
        let text = serde_json::to_string(&kept).expect("text keys");
        // The API server takes 256 KiB of annotations.
        assert!(text.len() < 100_000, "{}", text.len());
        assert_eq!(serde_json::from_str::<Kept>(&text).expect("reads"), kept);
        assert_eq!(serde_json::from_str::<Kept>("{}").expect("reads"), Kept::default());
    }
}
