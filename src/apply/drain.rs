//! A retire wave: waits for replicas, cordons, drains and terminates each node. A retirement that
//! cannot finish is reverted.

use std::pin::Pin;

use jiff::Timestamp;

use super::Run;
use super::concurrent::run_concurrently;
use super::eviction_order::{next_to_evict, remaining_attachment};
use super::launch::must_be_evicted;
use super::pre_terminate_check::{
    PodsLeft, has_do_not_disrupt, termination_blocker, uncordon_reason,
};
use super::receipt::{Outcome, Step};
use super::retirement_state::{RetirementState, UNLISTED, excess_replicas, retirement_state};
use super::termination_grace::{CONTINUED_DRAIN, ForcedEnd, OVERDUE_MAX, WAIT_FOR_END_MAX};
use super::wave_plan::RetireWork;
use crate::apply::ports::{Clock, Cloud, Cluster, CordonOutcome, EvictOutcome, PortError};
use crate::demand::{JobEvictions, is_do_not_disrupt_at};
use crate::model::observed::{
    CordonMark, CordonReason, Instance, InstanceState, Node, Observed, Pod,
};
use crate::model::saturating_time::later;
use crate::plan::wire::WaveStep;

/// Maximum number of nodes that are drained concurrently, and of concurrent evictions on each. API
/// Priority and Fairness queues what exceeds the share of this client.
const CONCURRENT_DRAINS_MAX: usize = 16;
pub(super) const CONCURRENT_EVICTIONS_MAX: usize = 8;

/// Reason if another client wrote the node between observation and cordon. The next observation
/// decides.
pub(super) const NODE_CHANGED: &str = "the node was changed meanwhile";

/// Reason if a node that is removed only while it has no pods has one.
const OCCUPIED: &str = "pods run on the node";

/// Phase of a retirement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Live replicas are above the planned number.
    Waiting,
    /// The node is cordoned, and its pods are being evicted.
    Draining,
    /// All pods have left, and their volumes are being detached.
    Detaching,
    /// The instance is terminating.
    Terminating,
}

/// A retirement in progress.
pub(super) struct Retiring<'w, 'p> {
    pub(super) work: &'w RetireWork<'p>,
    phase: Phase,
    deadline: Timestamp,
    /// Last reported reason for waiting.
    wait_reason: Option<String>,
    /// End of the drain by force, once its node is cordoned.
    pub(super) forced_end: Option<ForcedEnd>,
}

/// The wave of a retirement, at the start of a step.
#[derive(Clone, Copy)]
struct WaveView<'o> {
    /// The observation; `None` if it is incomplete.
    observed: Option<&'o Observed>,
    /// True if the wave has drains that no earlier apply began.
    begins_drains: bool,
}

impl Retiring<'_, '_> {
    fn interrupted(&self) -> DrainStep {
        match self.phase {
            Phase::Waiting if self.work.termination_grace.is_some() => {
                Self::not_begun("interrupted")
            }
            Phase::Draining | Phase::Detaching if self.forced_end.is_some() => {
                self.left_cordoned("interrupted")
            }
            Phase::Waiting | Phase::Draining | Phase::Detaching => {
                DrainStep::abandon("interrupted")
            }
            Phase::Terminating => DrainStep::Ended(Outcome::Abandoned {
                why: "interrupted while the instance was terminating".to_owned(),
            }),
        }
    }

    /// Ends a drain that this apply did not begin. An earlier apply may have begun it, so its cordon
    /// stays.
    fn not_begun(why: &str) -> DrainStep {
        DrainStep::Ended(Outcome::Abandoned { why: why.to_owned() })
    }

    /// Returns true if the drain continues with the next apply.
    fn continues_later(&self, now: Timestamp) -> bool {
        self.forced_end.is_some_and(|end| now < later(end.at, OVERDUE_MAX))
    }

    /// Returns true if an earlier apply began the drain.
    fn is_continued(&self) -> bool {
        self.forced_end.is_some_and(ForcedEnd::is_continued)
    }

    /// Returns true if the end by force is too near for the next apply to be in time.
    fn waits_for_end(&self, now: Timestamp) -> bool {
        self.phase == Phase::Draining
            && now < later(self.deadline, WAIT_FOR_END_MAX)
            && self.forced_end.is_some_and(|end| end.is_near(now))
    }

    /// Returns true if the instance may be terminated with these pods on its node.
    fn may_terminate_with(&self, pods: &[&Pod], now: Timestamp) -> bool {
        let ended = self.forced_end.is_some_and(|end| end.has_ended(now));
        ended && pods.iter().all(|pod| pod.terminating)
    }

    /// Ends this attempt of a drain that the next apply continues.
    fn left_cordoned(&self, why: &str) -> DrainStep {
        let at = self.forced_end.map(|end| format!("; pods left at {} are deleted", end.at));
        let why = format!("{why}; the node stays cordoned{}", at.unwrap_or_default());
        DrainStep::Ended(Outcome::Continues { why })
    }
}

/// Result of one step of a retirement.
enum DrainStep {
    /// No change; the next observation decides.
    Same,
    /// The next phase starts.
    Next(Phase),
    /// The retirement has ended, with nothing to revert.
    Ended(Outcome),
    /// The retirement cannot continue, and its cordon must be reverted.
    Revert(Outcome),
}

impl DrainStep {
    fn abandon(why: impl Into<String>) -> Self {
        Self::Revert(Outcome::Abandoned { why: why.into() })
    }
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Retires every node of the wave. A blocked node does not delay the others. If `blocker` is
    /// set, no retirement starts.
    pub(super) async fn retire_wave(&mut self, retires: &[RetireWork<'_>], blocker: Option<&str>) {
        let deadline = self.deadline(self.settings.bounds.replicas);
        let remaining = self.remaining_members(retires).await;
        let mut retirements = Vec::new();
        for work in retires {
            match self.skip_outcome(work, blocker) {
                Some(outcome) => self.finish_retirement(work, outcome),
                None => {
                    retirements.push(Retiring {
                        work,
                        phase: Phase::Waiting,
                        deadline,
                        wait_reason: None,
                        forced_end: None,
                    });
                }
            }
        }
        while !retirements.is_empty() {
            let observed = self.observe_complete().await;
            if observed.is_none() {
                self.emit(None, Step::Unreadable);
            }
            let run = &*self;
            let wave = WaveView {
                observed: observed.as_ref(),
                begins_drains: retirements.iter().any(|item| !item.is_continued()),
            };
            let steps = retirements.into_iter().map(|item| -> Pin<Box<dyn Future<Output = _>>> {
                Box::pin(async move {
                    let before = item.phase;
                    let item = run.step(item, wave).await?;
                    Some((item.phase != before, item))
                })
            });
            let steps = run_concurrently(steps, CONCURRENT_DRAINS_MAX).await;
            let phase_changed = steps.iter().flatten().any(|(changed, _)| *changed);
            retirements = steps.into_iter().flatten().map(|(_, item)| item).collect();
            // Observe newly cordoned nodes at once: a drain needs an observation after the cordon.
            if !phase_changed && !retirements.is_empty() {
                self.emit(None, Step::InProgress { left: retirements.len() });
                self.pause().await;
            }
        }
        self.check_remaining_members(&remaining).await;
    }

    /// Returns the outcome of a change that must not start, if any.
    pub(super) fn skip_outcome(
        &self,
        work: &RetireWork<'_>,
        blocker: Option<&str>,
    ) -> Option<Outcome> {
        if let Some(why) = self.exceptions.dropped.get(work.address) {
            return Some(Outcome::Dropped { why: why.clone() });
        }
        if let Some(why) = blocker {
            return Some(Outcome::Skipped { why: why.to_owned() });
        }
        let failed = |change: &&super::ChangeOutcome| {
            change.step == WaveStep::Launch && !change.outcome.is_settled()
        };
        // Without a group, the pods of a node may be planned onto any new node.
        let is_related = |change: &&super::ChangeOutcome| {
            change.address == *work.address
                || work.group.is_none()
                || self.groups.get(&change.address).copied() == work.group
        };
        let outcomes = self.outcomes.borrow();
        let cause = outcomes.iter().filter(failed).rfind(is_related)?;
        let why = match &cause.outcome {
            Outcome::Skipped { why } => why.clone(),
            Outcome::Done
            | Outcome::AlreadyDone
            | Outcome::Dropped { .. }
            | Outcome::Abandoned { .. }
            | Outcome::Continues { .. }
            | Outcome::Failed { .. } => format!("`{}` did not become Ready", cause.address),
        };
        Some(Outcome::Skipped { why })
    }

    fn finish_retirement(&self, work: &RetireWork<'_>, outcome: Outcome) {
        self.finish(work.address, WaveStep::Retire, Some(work.instance), outcome);
    }

    /// Runs one step; returns the retirement if it continues.
    async fn step<'w, 'p>(
        &self,
        mut item: Retiring<'w, 'p>,
        wave: WaveView<'_>,
    ) -> Option<Retiring<'w, 'p>> {
        let progress = match wave.observed {
            _ if self.settings.is_interrupted() => item.interrupted(),
            None => DrainStep::Same,
            Some(observed) => match item.phase {
                Phase::Waiting => self.wait_for_replicas(&mut item, observed).await,
                Phase::Draining | Phase::Detaching => self.drain(&mut item, observed).await,
                Phase::Terminating => self.await_termination(&mut item, observed).await,
            },
        };
        let now = self.now();
        // A continued drain does not end before the others of its wave: no apply could follow.
        let may_stay = item.waits_for_end(now) || item.is_continued() && wave.begins_drains;
        let is_overdue = now >= item.deadline && !may_stay;
        let progress = if is_overdue && matches!(progress, DrainStep::Same) {
            self.timed_out(&item)
        } else {
            progress
        };
        match progress {
            DrainStep::Same => return Some(item),
            DrainStep::Next(phase) => {
                item.deadline = later(now, self.timeout_of(&item, phase));
                (item.phase, item.wait_reason) = (phase, None);
                return Some(item);
            }
            DrainStep::Ended(outcome) => self.finish_retirement(item.work, outcome),
            DrainStep::Revert(outcome) => {
                let work = item.work;
                let failed = self.uncordon_instances(&[(work.address, work.instance)]).await;
                let outcome = match failed.get(work.instance) {
                    Some(problem) => still_cordoned(outcome, problem),
                    None => outcome,
                };
                self.finish_retirement(work, outcome);
            }
        }
        None
    }

    fn timeout_of(&self, item: &Retiring<'_, '_>, phase: Phase) -> jiff::SignedDuration {
        let bounds = &self.settings.bounds;
        match phase {
            Phase::Waiting => bounds.replicas,
            Phase::Draining if item.is_continued() => bounds.drain.min(CONTINUED_DRAIN),
            Phase::Draining => bounds.drain,
            Phase::Detaching => bounds.detach,
            Phase::Terminating => bounds.gone,
        }
    }

    fn timed_out(&self, item: &Retiring<'_, '_>) -> DrainStep {
        let bound = self.timeout_of(item, item.phase);
        let wait_reason =
            item.wait_reason.clone().unwrap_or_else(|| "the live state was not read".to_owned());
        let why = format!("not done within {bound:#}: {wait_reason}");
        match item.phase {
            Phase::Waiting if item.work.termination_grace.is_some() => Retiring::not_begun(&why),
            Phase::Draining | Phase::Detaching if item.continues_later(self.now()) => {
                item.left_cordoned(&why)
            }
            Phase::Waiting | Phase::Draining | Phase::Detaching => DrainStep::abandon(why),
            Phase::Terminating => DrainStep::Ended(Outcome::Abandoned { why }),
        }
    }

    /// Reports the reason for waiting, once per reason.
    pub(super) fn report_wait(
        &self,
        item: &mut Retiring<'_, '_>,
        why: String,
        step: impl Fn(String) -> Step,
    ) {
        if item.wait_reason.as_ref() != Some(&why) {
            self.emit(Some(item.work.address), step(why.clone()));
            item.wait_reason = Some(why);
        }
    }

    /// Waits for live replicas, then cordons.
    async fn wait_for_replicas(
        &self,
        item: &mut Retiring<'_, '_>,
        observed: &Observed,
    ) -> DrainStep {
        let work = item.work;
        let instance = match retirement_state(work, observed) {
            RetirementState::Absent => return DrainStep::Ended(Outcome::AlreadyDone),
            RetirementState::Terminating => return DrainStep::Next(Phase::Terminating),
            RetirementState::Changed(why) => return DrainStep::abandon(why),
            RetirementState::Approved(instance) => instance,
        };
        let node = observed.node_for_instance(&instance.id);
        if node.is_some_and(|node| self.is_occupied(work, node, observed)) {
            return DrainStep::abandon(OCCUPIED);
        }
        if let Some(why) = excess_replicas(work, observed) {
            self.report_wait(item, why, |why| Step::Waiting { why });
            return DrainStep::Same;
        }
        let Some(node) = node else { return DrainStep::Next(Phase::Draining) };
        let now = self.now();
        // Another client's cordon has its own reason, so it gets no mark and is never reverted. Its
        // drain has no time to begin at.
        let ours = node.cordon_reason() == Some(CordonReason::Drain);
        let period = work.termination_grace.filter(|_| !node.unschedulable || ours);
        item.forced_end = period.map(|period| ForcedEnd::new(node, period, now));
        let lacks_time = period.is_some() && !item.is_continued();
        if !node.unschedulable || lacks_time {
            let grace_period_began_at = period.map(|_| now);
            let mark = CordonMark { reason: CordonReason::Drain, grace_period_began_at };
            match self.ports.cluster.cordon(node, mark).await {
                Ok(CordonOutcome::Written) => {
                    self.emit(Some(work.address), Step::Cordoned { node: node.name.clone() });
                }
                Ok(CordonOutcome::Outdated) => {
                    item.wait_reason = Some(NODE_CHANGED.to_owned());
                    return DrainStep::Same;
                }
                Err(error) => return self.failed_call(item, &error),
            }
        }
        DrainStep::Next(Phase::Draining)
    }

    /// Returns true if the instance is removed only while its node has no pods, and it has one.
    fn is_occupied(&self, work: &RetireWork<'_>, node: &Node, observed: &Observed) -> bool {
        self.settings.only_if_empty.contains(work.instance)
            && observed.pods.iter().any(|pod| must_be_evicted(pod, node))
    }

    /// Evicts pods, and terminates the instance once none is left. It uses an observation that is
    /// newer than the cordon.
    async fn drain(&self, item: &mut Retiring<'_, '_>, observed: &Observed) -> DrainStep {
        let instance = match retirement_state(item.work, observed) {
            RetirementState::Absent | RetirementState::Terminating => {
                return DrainStep::Next(Phase::Terminating);
            }
            RetirementState::Changed(why) => return DrainStep::abandon(why),
            RetirementState::Approved(instance) => instance,
        };
        match observed.node_for_instance(&instance.id) {
            Some(node) => self.drain_node(item, node, observed).await,
            None => self.terminate_drained(item).await,
        }
    }

    async fn drain_node(
        &self,
        item: &mut Retiring<'_, '_>,
        node: &Node,
        observed: &Observed,
    ) -> DrainStep {
        let (end, now) = (item.forced_end, self.now());
        let pods: Vec<&Pod> = observed
            .pods
            .iter()
            .map(|pod| &**pod)
            .filter(|pod| must_be_evicted(pod, node))
            .collect();
        let occupied = self.is_occupied(item.work, node, observed).then(|| OCCUPIED.to_owned());
        let why = occupied
            .or_else(|| drain_refusal(node, observed, now, end))
            .or_else(|| uncordon_reason(node))
            .or_else(|| end.and_then(|end| end.late_arrival(&pods)));
        if let Some(why) = why {
            return DrainStep::abandon(why);
        }
        if !pods.is_empty() && !item.may_terminate_with(&pods, now) {
            let due = self.delete_due(item, node, &pods, observed).await;
            let mut next = next_to_evict(pods, observed);
            next.retain(|pod| !due.contains(&pod.uid));
            self.evict(item, node, &next, observed).await;
            return DrainStep::Same;
        }
        let has_ended = end.is_some_and(|end| end.has_ended(now));
        if !has_ended && let Some(volume) = remaining_attachment(node, observed) {
            if item.phase != Phase::Detaching {
                return DrainStep::Next(Phase::Detaching);
            }
            // A volume that its driver does not detach must not keep the instance.
            if now < item.deadline {
                let why = format!("volume {volume} is still attached");
                self.report_wait(item, why, |why| Step::Waiting { why });
                return DrainStep::Same;
            }
        }
        let pods_left = if has_ended { PodsLeft::Stopping } else { PodsLeft::None };
        match termination_blocker(self.ports.cluster, node, pods_left).await {
            Ok(None) => self.terminate_drained(item).await,
            // The next observation decides.
            Ok(Some(why)) => {
                self.report_wait(item, why, |why| Step::Waiting { why });
                DrainStep::Same
            }
            Err(error) => self.failed_call(item, &error),
        }
    }

    async fn terminate_drained(&self, item: &mut Retiring<'_, '_>) -> DrainStep {
        let work = item.work;
        let terminated = match work.group_name {
            // Name the instance: with a lower desired size, Auto Scaling would choose one.
            Some(_) => self.ports.cloud.terminate_member(work.instance).await,
            None => self.ports.cloud.terminate(work.instance).await,
        };
        match terminated {
            Ok(()) => {
                let instance_id = work.instance.clone();
                self.emit(Some(work.address), Step::Terminating { instance_id });
                DrainStep::Next(Phase::Terminating)
            }
            Err(error) => self.failed_call(item, &error),
        }
    }

    async fn evict(
        &self,
        item: &mut Retiring<'_, '_>,
        node: &Node,
        pods: &[&Pod],
        observed: &Observed,
    ) {
        let (cluster, now) = (self.ports.cluster, self.now());
        let jobs = JobEvictions::of_read_jobs(observed);
        let refusal = |pod: &Pod| eviction_refusal(pod, observed, &jobs, now);
        // Without an end by force, such a pod has ended the drain.
        let (protected, pods): (Vec<&Pod>, Vec<&Pod>) =
            pods.iter().copied().partition(|pod| refusal(pod).is_some());
        let running = pods.iter().copied().filter(|pod| !pod.terminating);
        let evictions = running.map(|pod| -> Pin<Box<dyn Future<Output = _>>> {
            Box::pin(async move { (pod, cluster.evict(pod).await) })
        });
        let (mut evicted, mut blocked_by) = (0, None);
        for (pod, outcome) in run_concurrently(evictions, CONCURRENT_EVICTIONS_MAX).await {
            let pod_text = || format!("pod `{}/{}`", pod.namespace, pod.name);
            match outcome {
                Ok(EvictOutcome::Evicted) => evicted += 1,
                Ok(EvictOutcome::Blocked { budget }) => {
                    blocked_by = blocked_by.or_else(|| {
                        Some(format!(
                            "eviction of {} is blocked by PodDisruptionBudget `{budget}`",
                            pod_text()
                        ))
                    });
                }
                Err(error) => {
                    blocked_by = blocked_by.or_else(|| Some(format!("{}: {error}", pod_text())));
                }
            }
        }
        if evicted > 0 {
            let step = Step::Evicted { node: node.name.clone(), pods: evicted };
            self.emit(Some(item.work.address), step);
        }
        match blocked_by {
            Some(why) => self.report_wait(item, why, |why| Step::Blocked { why }),
            None => match protected.first().and_then(|pod| refusal(pod)) {
                Some(why) => self.report_wait(item, why, |why| Step::Blocked { why }),
                None if pods.is_empty() => {}
                None => item.wait_reason = Some(format!("pods still stopping: {}", pods.len())),
            },
        }
    }

    /// Waits until EC2 reports the instance as terminated, then deletes its node.
    async fn await_termination(
        &self,
        item: &mut Retiring<'_, '_>,
        observed: &Observed,
    ) -> DrainStep {
        let work = item.work;
        let ended = |i: &Instance| i.state == InstanceState::Terminated;
        if !observed.instances.get(work.instance).is_none_or(ended) {
            item.wait_reason = Some("EC2 is still terminating the instance".to_owned());
            return DrainStep::Same;
        }
        if observed.may_run_unlisted(work.instance) {
            item.wait_reason = Some(UNLISTED.to_owned());
            return DrainStep::Same;
        }
        // Delete only the approved node. Another node of the instance is unknown to the plan.
        let is_approved = |node: &&Node| {
            node.instance.as_ref() == Some(work.instance)
                && Some(&node.uid) == work.node.node_uid.as_ref()
        };
        let Some(node) = observed.nodes.values().find(is_approved) else {
            return DrainStep::Ended(Outcome::Done);
        };
        match self.ports.cluster.delete_node(&node.name, &node.uid).await {
            Ok(()) => DrainStep::Ended(Outcome::Done),
            Err(error) => self.failed_call(item, &error),
        }
    }

    /// Handles a failed call: a transient error is retried, any other error ends the retirement.
    fn failed_call(&self, item: &mut Retiring<'_, '_>, error: &PortError) -> DrainStep {
        let why = error.to_string();
        if error.is_transient() {
            self.report_wait(item, why, |why| Step::Retrying { why });
            return DrainStep::Same;
        }
        match item.phase {
            Phase::Waiting | Phase::Draining | Phase::Detaching => {
                DrainStep::Revert(Outcome::Failed { why })
            }
            Phase::Terminating => DrainStep::Ended(Outcome::Failed { why }),
        }
    }
}

/// Adds the reason for a remaining cordon to an outcome.
fn still_cordoned(outcome: Outcome, problem: &str) -> Outcome {
    let add = |why: String| format!("{why}; the node is still cordoned: {problem}");
    match outcome {
        Outcome::Abandoned { why } => Outcome::Abandoned { why: add(why) },
        Outcome::Failed { why } => Outcome::Failed { why: add(why) },
        Outcome::Continues { .. }
        | Outcome::Done
        | Outcome::AlreadyDone
        | Outcome::Dropped { .. }
        | Outcome::Skipped { .. } => outcome,
    }
}

/// Returns the reason why the node must not be drained, if any. A drain that ends by force waits for
/// pods that must not be evicted.
fn drain_refusal(
    node: &Node,
    observed: &Observed,
    now: Timestamp,
    forced_end: Option<ForcedEnd>,
) -> Option<String> {
    if has_do_not_disrupt(node) {
        return Some(format!("node `{}` has a do-not-disrupt annotation", node.name));
    }
    if forced_end.is_some() {
        return None;
    }
    let jobs = JobEvictions::of_read_jobs(observed);
    let mut pods = observed.pods.iter().filter(|pod| must_be_evicted(pod, node));
    pods.find_map(|pod| eviction_refusal(pod, observed, &jobs, now))
}

/// Returns the reason why a running pod must not be evicted now, if any. Jobs that were not read were
/// judged by the plan.
fn eviction_refusal(
    pod: &Pod,
    observed: &Observed,
    jobs: &JobEvictions<'_>,
    now: Timestamp,
) -> Option<String> {
    if pod.terminating {
        return None;
    }
    let Pod { namespace, name, .. } = pod;
    if is_do_not_disrupt_at(pod, observed, now) {
        return Some(format!("pod `{namespace}/{name}` must not be disrupted now"));
    }
    let refusal = jobs.refusal(pod)?;
    Some(format!("pod `{namespace}/{name}` must not be evicted: {refusal}"))
}
