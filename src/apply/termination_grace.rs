//! The end of a drain by force, after the termination grace period of a pool.
//!
//! The period begins with the cordon of the node, and an annotation records that time. Pods that are
//! still on the node are deleted early enough to stop within it, past their disruption budgets and
//! do-not-disrupt annotations. An apply that ends earlier leaves the node cordoned, and the drain
//! continues with the next one.
//!
//! Source: karpenter core, `pkg/controllers/node/termination`. Differences: only drifted and expired
//! nodes end by force, and a pod that is deleted late still has two minutes.

use std::collections::BTreeSet;
use std::pin::Pin;

use jiff::{SignedDuration, Timestamp};

use super::Run;
use super::concurrent::run_concurrently;
use super::drain::{CONCURRENT_EVICTIONS_MAX, Retiring};
use super::pre_terminate_check::deletion_blocker;
use super::receipt::Step;
use crate::apply::ports::{Clock, Cloud, Cluster};
use crate::model::ids::Uid;
use crate::model::observed::{Node, Observed, Pod};
use crate::model::saturating_time::later;

/// Grace period of pods that declare none.
const POD_GRACE_DEFAULT: SignedDuration = SignedDuration::from_secs(30);

/// Least grace period of a pod that is deleted late, unless it declares a shorter one.
const LATE_GRACE: SignedDuration = SignedDuration::from_mins(2);

/// Time until the next attempt of the controller, at most, if no other change is in progress.
const NEXT_ATTEMPT: SignedDuration = SignedDuration::from_mins(7);

/// Longest wait of an attempt for an end that is near.
pub(super) const WAIT_FOR_END_MAX: SignedDuration = SignedDuration::from_mins(15);

/// Longest attempt to continue the drain of an earlier apply. Other removals wait for it.
pub(super) const CONTINUED_DRAIN: SignedDuration = SignedDuration::from_mins(1);

/// Time after the period within which a drain may still end. Later it is abandoned, for example if
/// no pod can be deleted.
pub(super) const OVERDUE_MAX: SignedDuration = SignedDuration::from_hours(1);

/// A drain that ends by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ForcedEnd {
    /// End of the termination grace period.
    pub(super) at: Timestamp,
    /// True if an earlier apply began the drain.
    is_continued: bool,
    /// Time of the next deletion of a pod.
    next_deletion: Option<Timestamp>,
    /// Time until which deleted pods may need to stop, as far as this apply knows.
    pods_stop_by: Option<Timestamp>,
}

impl ForcedEnd {
    /// Returns the end of a drain whose period begins at `now`, or began when the annotation of the
    /// node says. A time in the future is wrong, and does not count.
    pub(super) fn new(node: &Node, period: SignedDuration, now: Timestamp) -> Self {
        let before = node.grace_period_began_at().filter(|at| *at <= now);
        let at = later(before.unwrap_or(now), period);
        Self {
            at,
            is_continued: before.is_some(),
            next_deletion: None,
            // An apply that ended may have deleted pods just now.
            pods_stop_by: (at <= now).then(|| later(now, LATE_GRACE)),
        }
    }

    pub(super) fn is_continued(self) -> bool {
        self.is_continued
    }

    /// Returns the time at which a pod is deleted, so that it may stop within the period.
    pub(super) fn deletion_time(self, pod: &Pod, observed: &Observed) -> Timestamp {
        let time = self.at.checked_sub(declared_grace(pod, observed));
        time.unwrap_or(Timestamp::MIN)
    }

    /// Returns the grace period, in seconds, with which to delete a pod now; `None` before its time.
    pub(super) fn deletion_grace(
        self,
        pod: &Pod,
        observed: &Observed,
        now: Timestamp,
    ) -> Option<u32> {
        if now < self.deletion_time(pod, observed) {
            return None;
        }
        let left = self.at.duration_since(now);
        let late = declared_grace(pod, observed).min(LATE_GRACE);
        Some(u32::try_from(left.max(late).as_secs().max(1)).unwrap_or(u32::MAX))
    }

    pub(super) fn note_next_deletion(&mut self, time: Option<Timestamp>) {
        self.next_deletion = time;
    }

    /// Records the deletion of pods that have at most this many seconds to stop.
    fn record_deletion(&mut self, now: Timestamp, grace_seconds: u32) {
        let stop = later(now, SignedDuration::from_secs(i64::from(grace_seconds)));
        self.pods_stop_by = self.pods_stop_by.max(Some(stop));
    }

    /// Returns a text about a pod that came to the node after the end, past its cordon. It would be
    /// deleted and replaced without end.
    pub(super) fn late_arrival(self, pods: &[&Pod]) -> Option<String> {
        let mut pods = pods.iter();
        let pod = pods.find(|pod| pod.created_at > self.at && !pod.terminating)?;
        let (namespace, name) = (&pod.namespace, &pod.name);
        Some(format!("pod `{namespace}/{name}` tolerates the cordon, and has returned"))
    }

    /// Returns true if the instance may be terminated with pods that are stopping.
    pub(super) fn has_ended(self, now: Timestamp) -> bool {
        now >= self.end()
    }

    /// Returns true if the next deletion, or the end, comes before the next attempt.
    pub(super) fn is_near(self, now: Timestamp) -> bool {
        let within = |time: Timestamp| time.duration_since(now) < NEXT_ATTEMPT;
        self.next_deletion.map_or_else(|| within(self.end()), within)
    }

    /// Returns the time of the termination. Pods that were deleted late have had their time by then.
    fn end(self) -> Timestamp {
        self.pods_stop_by.map_or(self.at, |stop| self.at.max(stop))
    }
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Deletes the pods that could not stop within the termination grace period otherwise. Returns
    /// them.
    pub(super) async fn delete_due(
        &self,
        item: &mut Retiring<'_, '_>,
        node: &Node,
        pods: &[&Pod],
        observed: &Observed,
    ) -> BTreeSet<Uid> {
        let (Some(end), now) = (&mut item.forced_end, self.now()) else { return BTreeSet::new() };
        let running = || pods.iter().filter(|pod| !pod.terminating);
        end.note_next_deletion(running().map(|pod| end.deletion_time(pod, observed)).min());
        let end = *end;
        let due: Vec<(&Pod, u32)> = running()
            .filter_map(|pod| Some((*pod, end.deletion_grace(pod, observed, now)?)))
            .collect();
        let uids: BTreeSet<Uid> = due.iter().map(|(pod, _)| pod.uid.clone()).collect();
        if due.is_empty() {
            return uids;
        }
        let cluster = self.ports.cluster;
        match deletion_blocker(cluster, node).await {
            Ok(None) => {}
            Ok(Some(why)) => {
                self.report_wait(item, why, |why| Step::Waiting { why });
                return uids;
            }
            Err(error) => {
                self.report_wait(item, error.to_string(), |why| Step::Retrying { why });
                return uids;
            }
        }
        let longest_grace = due.iter().map(|(_, grace)| *grace).max().unwrap_or_default();
        let deletions = due.into_iter().map(|(pod, grace)| -> Pin<Box<dyn Future<Output = _>>> {
            Box::pin(async move { (pod, cluster.delete_pod(pod, grace).await) })
        });
        let mut deleted = 0;
        for (pod, result) in run_concurrently(deletions, CONCURRENT_EVICTIONS_MAX).await {
            match result {
                Ok(()) => deleted += 1,
                Err(error) => {
                    let why = format!("pod `{}/{}`: {error}", pod.namespace, pod.name);
                    self.report_wait(item, why, |why| Step::Blocked { why });
                }
            }
        }
        if deleted > 0 {
            if let Some(end) = &mut item.forced_end {
                end.record_deletion(now, longest_grace);
            }
            let step = Step::PodsDeleted { node: node.name.clone(), pods: deleted };
            self.emit(Some(item.work.address), step);
        }
        uids
    }
}

fn declared_grace(pod: &Pod, observed: &Observed) -> SignedDuration {
    let template = observed.templates.get(&*pod.template);
    let declared = template.and_then(|template| template.spec.termination_grace_seconds);
    declared.map_or(POD_GRACE_DEFAULT, SignedDuration::from_secs)
}
