//! A launch wave: requests all instances, then waits until their nodes are Ready.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;

use jiff::Timestamp;

use super::concurrent::run_concurrently;
use super::fallback::{Offering, fallback_node};
use super::opening::{ClosedNodes, closed_node};
use super::preconditions::is_launched_by;
use super::receipt::{ChangeOutcome, LaunchedOffering, Outcome, Step};
use super::wave_plan::LaunchWork;
use super::{LaunchWait, Run};
use crate::apply::ports::{
    CallEffect, Clock, Cloud, Cluster, LaunchOffering, LaunchOutcome, LaunchRequest,
    LaunchedInstance, PortError,
};
use crate::model::ids::InstanceId;
use crate::model::node_annotations::annotations_digest;
use crate::model::observed::{Instance, KEY_LABEL, Node, Observed, Pod, tag};
use crate::model::pod::Taint;
use crate::model::saturating_time::later;
use crate::plan::wire::{NodeState, WaveStep};
use crate::plan::{WithdrawnOffering, client_token};

/// Maximum number of concurrent launch requests. EC2 accepts bursts of 50.
const CONCURRENT_LAUNCHES_MAX: usize = 16;

const UNREPEATABLE: &str = "the catalog lacks the offerings of its earlier request; plan again once \
                            EC2 lists the instance";

const UNRECORDED: &str = "every offering of its next request is withdrawn, and an earlier run may \
                          have made this request; plan again";

/// A launched instance that is not Ready yet.
pub(super) struct Booting<'w, 'p> {
    pub(super) work: &'w LaunchWork<'p>,
    pub(super) instance: InstanceId,
    /// Offering of the instance, if EC2 named it or an observation shows it.
    pub(super) launched: Option<LaunchedOffering>,
    /// Outcome of the change once the node is Ready.
    pub(super) success: Outcome,
    pub(super) deadline: Timestamp,
    /// True if this apply may have cordoned the node.
    pub(super) cordoned: bool,
    /// Number of failed attempts to terminate the instance.
    pub(super) tries: u32,
}

impl<'w, 'p> Booting<'w, 'p> {
    pub(super) fn new(
        work: &'w LaunchWork<'p>,
        instance: InstanceId,
        success: Outcome,
        deadline: Timestamp,
    ) -> Self {
        Self { work, instance, launched: None, success, deadline, cordoned: false, tries: 0 }
    }

    /// Notes the observed offering of a launched instance if EC2 did not name it.
    fn note_offering(&mut self, observed: Option<&Observed>) {
        if self.launched.is_none() && self.work.group.is_none() {
            let found = observed.and_then(|world| world.instances.get(&self.instance));
            self.launched = found.map(|found| self.work.launched(&Offering::of_instance(found)));
        }
    }
}

/// Reasons why no request of a launch has succeeded so far.
#[derive(Default)]
struct LaunchFailure {
    /// True if an offering was not requested.
    has_withdrawn: bool,
    /// Reason of the last request without capacity.
    without_capacity: Option<String>,
}

impl LaunchFailure {
    fn into_text(self) -> String {
        match (self.without_capacity, self.has_withdrawn) {
            (Some(reason), _) => {
                format!("no approved offering has capacity; the last: {reason}")
            }
            (None, true) => "every remaining offering is withdrawn".to_owned(),
            (None, false) => "no offering is approved".to_owned(),
        }
    }
}

enum BootState {
    Ready,
    Ended,
    Booting,
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Launches every missing instance of the wave, and waits until their nodes are Ready. If
    /// `blocker` is set, no instance is launched and no group is raised, and only instances of an
    /// earlier run are awaited.
    pub(super) async fn launch_wave(&mut self, launches: &[LaunchWork<'_>], blocker: Option<&str>) {
        let observed = match self.observation.take().filter(Observed::is_complete) {
            Some(observation) => Some(observation),
            None => self.observe_with_retries().await,
        };
        let without_group = launches.iter().filter(|work| work.group.is_none());
        let (run, observation) = (&*self, observed.as_ref());
        let unfinished = self.unfinished_replacements();
        let works = without_group.map(|work| -> Pin<Box<dyn Future<Output = _>>> {
            let group = run.groups.get(work.address);
            let stopped = group.and_then(|group| unfinished.get(group)).map(String::as_str);
            Box::pin(run.find_or_launch(work, observation, blocker.or(stopped)))
        });
        let launched = run_concurrently(works, CONCURRENT_LAUNCHES_MAX).await;
        let mut booting: Vec<Booting<'_, '_>> = launched.into_iter().flatten().collect();
        booting.extend(self.raise_groups(launches, observed.as_ref(), blocker).await);
        match self.settings.launch_wait {
            LaunchWait::UntilReady => self.await_ready(booting).await,
            LaunchWait::UntilLaunched => {
                for item in &booting {
                    self.finish_launch(item, item.success.clone());
                }
            }
        }
    }

    /// Returns the replacement groups with an earlier batch that did not finish, each with the reason
    /// to launch nothing more.
    fn unfinished_replacements(&self) -> BTreeMap<&str, String> {
        let outcomes = self.outcomes.borrow();
        let unfinished = outcomes.iter().filter(|change| !change.outcome.is_settled());
        let of_group = unfinished.filter_map(|change| {
            let why = format!("`{}` of an earlier batch did not finish", change.address);
            Some((*self.groups.get(&change.address)?, why))
        });
        of_group.collect()
    }

    /// Finds the instance of a change, or launches it unless there is a `blocker`. Returns `None` if
    /// the change has ended.
    async fn find_or_launch<'w, 'p>(
        &self,
        work: &'w LaunchWork<'p>,
        observed: Option<&Observed>,
        blocker: Option<&str>,
    ) -> Option<Booting<'w, 'p>> {
        let bound = self.settings.bounds.ready;
        let outcome = match (self.exceptions.dropped.get(work.address), observed) {
            (Some(why), _) => Outcome::Dropped { why: why.clone() },
            (None, None) => Outcome::Failed { why: "the live state cannot be read".to_owned() },
            (None, Some(_)) if self.settings.is_interrupted() => {
                Outcome::Skipped { why: "interrupted".to_owned() }
            }
            (None, Some(observed)) => {
                let is_own = |i: &&Instance| is_launched_by(i, &work.change_id);
                let (ended, active): (Vec<_>, Vec<_>) =
                    observed.instances.values().filter(is_own).partition(|i| i.has_ended());
                if let Some(found) = active.first() {
                    let instance = found.id.clone();
                    self.emit(Some(work.address), Step::Found { instance_id: instance.clone() });
                    let deadline = later(found.launched_at, bound);
                    let launched = Some(work.launched(&Offering::of_instance(found)));
                    let item = Booting::new(work, instance, Outcome::AlreadyDone, deadline);
                    return Some(Booting { launched, ..item });
                }
                match blocker {
                    Some(why) => Outcome::Skipped { why: why.to_owned() },
                    None => match self.launch(work, ended.len()).await {
                        Ok((instance, launched)) => {
                            let deadline = self.deadline(bound);
                            let item = Booting::new(work, instance, Outcome::Done, deadline);
                            return Some(Booting { launched, ..item });
                        }
                        Err(why) => Outcome::Failed { why },
                    },
                }
            }
        };
        self.finish(work.address, WaveStep::Launch, None, outcome);
        None
    }

    /// Requests the approved offerings until EC2 launches one. Each of the `ended` instances of the
    /// change completed one round of requests.
    ///
    /// The attempt number counts the requests of all rounds. After a crash, the next run repeats the
    /// same request with the same token.
    async fn launch(
        &self,
        work: &LaunchWork<'_>,
        ended: usize,
    ) -> Result<(InstanceId, Option<LaunchedOffering>), String> {
        let mut failure = LaunchFailure::default();
        for (attempt_index, offerings) in work.attempts.iter().enumerate().skip(work.attempt_index)
        {
            // EC2 may have started an instance for a recorded request. Only the same request
            // returns it, and a request with another token would launch a second one.
            let is_repeated = attempt_index == work.attempt_index
                && self.settings.earlier_launches.contains_key(work.address);
            let all = offerings.iter().enumerate();
            let remaining = all.filter(|(_, one)| is_repeated || !self.is_withdrawn(work, one));
            let remaining: Vec<(usize, &Offering)> = remaining.collect();
            failure.has_withdrawn |= remaining.len() < offerings.len();
            let nodes = remaining.iter().filter_map(|&(index, offering)| {
                Some((offering, self.node_of(work, offering, attempt_index == 0 && index == 0)?))
            });
            let nodes: Vec<(&Offering, NodeState)> = nodes.collect();
            if nodes.is_empty() {
                if is_repeated {
                    return Err(UNREPEATABLE.to_owned());
                }
                // Without a record, an earlier run may have made this request.
                if remaining.is_empty() && self.settings.offering_attempts.is_none() {
                    return Err(UNRECORDED.to_owned());
                }
                continue;
            }
            if attempt_index > work.attempt_index {
                self.record_attempt(work, attempt_index).await?;
            }
            let attempt = ended.saturating_mul(work.attempts.len()).saturating_add(attempt_index);
            let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
            let request = self.request(work, &nodes, attempt);
            let outcome = self.launch_with_retries(work, &request).await;
            match outcome.map_err(|error| error.to_string())? {
                LaunchOutcome::Launched(LaunchedInstance { id, offering, unavailable }) => {
                    for (offering, _) in unavailable.iter().filter_map(|index| nodes.get(*index)) {
                        self.report_unavailable(work, offering);
                    }
                    let chosen = offering.and_then(|index| nodes.get(index));
                    let launched = chosen.map(|(offering, _)| work.launched(offering));
                    let step =
                        Step::Launched { instance_id: id.clone(), offering: launched.clone() };
                    self.emit(Some(work.address), step);
                    return Ok((id, launched));
                }
                LaunchOutcome::InsufficientCapacity { reason } => {
                    for (offering, _) in &nodes {
                        self.report_unavailable(work, offering);
                    }
                    failure.without_capacity = Some(reason);
                }
            }
        }
        Err(failure.into_text())
    }

    /// Returns true if an offering must not be requested any more, and reports it.
    fn is_withdrawn(&self, work: &LaunchWork<'_>, offering: &Offering) -> bool {
        let Offering { instance_type, zone, capacity_type } = offering;
        let mut withdrawn = self.exceptions.withdrawn.get(work.address).into_iter().flatten();
        let found = withdrawn.find(|one| {
            (&one.instance_type, &one.zone, &one.capacity_type)
                == (instance_type, zone, capacity_type)
        });
        let Some(WithdrawnOffering { why, .. }) = found else { return false };
        let Offering { instance_type, zone, capacity_type } = offering.clone();
        let why = why.clone();
        let step = Step::Withdrawn { instance_type, zone, capacity_type, why };
        self.emit(Some(work.address), step);
        true
    }

    fn report_unavailable(&self, work: &LaunchWork<'_>, offering: &Offering) {
        let Offering { instance_type, zone, capacity_type } = offering.clone();
        self.emit(
            Some(work.address),
            Step::InsufficientCapacity { instance_type, zone, capacity_type },
        );
    }

    async fn record_attempt(
        &self,
        work: &LaunchWork<'_>,
        attempt_index: usize,
    ) -> Result<(), String> {
        let Some(attempts) = self.settings.offering_attempts else { return Ok(()) };
        if self.settings.is_interrupted() {
            return Err("interrupted before the next offering was requested".to_owned());
        }
        attempts.record(work.address, u32::try_from(attempt_index).unwrap_or(u32::MAX)).await
    }

    /// Returns the node of an offering: the planned node, or a fallback.
    fn node_of(
        &self,
        work: &LaunchWork<'_>,
        offering: &Offering,
        is_planned: bool,
    ) -> Option<NodeState> {
        if is_planned {
            return Some(work.node.clone());
        }
        fallback_node(work.node, offering, self.settings.catalog?)
    }

    /// Returns the request for one of these nodes, the preferred node first.
    fn request(
        &self,
        work: &LaunchWork<'_>,
        nodes: &[(&Offering, NodeState)],
        attempt: u32,
    ) -> LaunchRequest {
        let (offering, node) = &nodes[0];
        let mut tags: BTreeMap<String, String> = [
            (tag::CLUSTER, self.settings.cluster.name.as_str()),
            (tag::POOL, work.pool.as_str()),
            (tag::KEY, work.key),
            (tag::CHANGE, work.change_id.as_str()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        if let Some(digest) = &node.spec_digest {
            tags.insert(tag::SPEC.to_owned(), digest.clone());
        }
        if let Some(annotations) = self.plan.capacity.node_annotations.get(work.pool) {
            tags.insert(tag::ANNOTATIONS.to_owned(), annotations_digest(annotations));
        }
        for key in &node.open_labels {
            let name = format!("{}{key}", tag::LABEL_PREFIX);
            let value = node.labels.get(key).filter(|_| name.len() <= tag::KEY_CHARS_MAX);
            tags.extend(value.map(|value| (name, value.to_string())));
        }
        let request_offering = |(offering, node): &(&Offering, NodeState)| {
            let mut labels = node.labels.clone();
            labels.insert(KEY_LABEL.into(), work.key.into());
            LaunchOffering {
                instance_type: offering.instance_type.clone(),
                zone: offering.zone.clone(),
                labels,
                capacity: (&node.capacity).into(),
                allocatable: (&node.allocatable).into(),
            }
        };
        LaunchRequest {
            token: client_token(&work.change_id, attempt),
            offerings: nodes.iter().map(request_offering).collect(),
            capacity_type: offering.capacity_type,
            reservation: node.reservation.clone(),
            image: work.image.to_owned(),
            tags,
            // The node is closed until the nodes of its batch open together.
            taints: node.taints.iter().cloned().chain([Taint::opening()]).collect(),
            startup_taints: node.startup_taints.clone(),
        }
    }

    /// Launches with retries of transient errors. The token stays the same, so a lost reply never
    /// causes a second launch.
    async fn launch_with_retries(
        &self,
        work: &LaunchWork<'_>,
        request: &LaunchRequest,
    ) -> Result<LaunchOutcome, PortError> {
        let mut tries = 1;
        loop {
            let outcome = self.ports.cloud.launch(request).await;
            if outcome.as_ref().is_err_and(|error| error.effect == CallEffect::Unknown) {
                self.emit(Some(work.address), Step::Unanswered);
            }
            match outcome {
                Err(error) if error.is_transient() && tries < self.settings.bounds.tries => {
                    let why = error.to_string();
                    self.emit(Some(work.address), Step::Retrying { why });
                    tries += 1;
                    self.pause().await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn await_ready(&mut self, mut booting: Vec<Booting<'_, '_>>) {
        let mut closed = ClosedNodes::default();
        let mut is_decided = false;
        while !booting.is_empty() || !closed.is_empty() {
            let observed = self.observe_complete().await;
            let (mut waiting, mut overdue, mut interrupted) = (Vec::new(), Vec::new(), Vec::new());
            let (mut late, mut unopened) = (Vec::new(), 0);
            if let Some(world) = &observed {
                let is_ready = |item: &_| matches!(boot_state(item, world), BootState::Ready);
                booting.extend(closed.take_changed(world, is_ready));
            }
            for mut item in booting {
                item.note_offering(observed.as_ref());
                let state =
                    observed.as_ref().map_or(BootState::Booting, |world| boot_state(&item, world));
                match state {
                    BootState::Ready if item.cordoned => late.push(item),
                    BootState::Ready => match closed_node(&item, observed.as_ref()) {
                        // The next observation shows whether the controller has opened it.
                        Some(_) if self.waits_for_controller(&item) => {
                            unopened += 1;
                            waiting.push(item);
                        }
                        Some(node) => closed.add(item, node.clone()),
                        None => self.ready(&item, observed.as_ref()),
                    },
                    BootState::Ended => {
                        let why = "the instance ended before its node was Ready".to_owned();
                        self.finish_launch(&item, Outcome::Failed { why });
                    }
                    BootState::Booting if self.settings.is_interrupted() => {
                        interrupted
                            .push((item, "interrupted while the node was booting".to_owned()));
                    }
                    BootState::Booting if self.now() >= item.deadline => overdue.push(item),
                    BootState::Booting => waiting.push(item),
                }
            }
            let are_all_closed = unopened > 0 && unopened == waiting.len() && overdue.is_empty();
            if let Some(world) = observed.as_ref().filter(|_| are_all_closed && !is_decided) {
                is_decided = true;
                waiting = self.decide_removals(waiting, world).await;
            }
            self.open_due(&mut closed, &waiting, observed.as_ref()).await;
            self.keep_instances(interrupted).await;
            waiting.extend(self.uncordon_late(late, observed.as_ref()).await);
            if !overdue.is_empty() {
                waiting
                    .extend(self.terminate_launched(overdue, observed, "it was terminated").await);
            }
            booting = waiting;
            let left = booting.len() + closed.len();
            if left > 0 {
                self.emit(None, Step::InProgress { left });
                self.pause().await;
            }
        }
    }

    /// Decides whether removals follow the launches, whose nodes are Ready and wait to be opened by
    /// the controller. If so, returns these launches. Otherwise they end, and their nodes stay
    /// closed for the next plan.
    async fn decide_removals<'w, 'p>(
        &mut self,
        waiting: Vec<Booting<'w, 'p>>,
        observed: &Observed,
    ) -> Vec<Booting<'w, 'p>> {
        let launched: BTreeSet<InstanceId> = {
            let outcomes = self.outcomes.borrow();
            let ended = outcomes.iter().filter(|change| change.step == WaveStep::Launch);
            let ended = ended.filter_map(|change| change.instance_id.clone());
            waiting.iter().map(|item| item.instance.clone()).chain(ended).collect()
        };
        let replan = self.settings.replan;
        let why = replan.call_off(&launched, observed).await;
        // Let the lease renewal run: the lease may have expired while the planner ran.
        self.ports.clock.yield_now().await;
        if why.is_none() {
            self.emit(None, Step::Checked { dropped: 0 });
            return waiting;
        }
        self.called_off = why;
        for item in &waiting {
            self.ready(item, Some(observed));
        }
        Vec::new()
    }

    /// Uncordons nodes that became Ready after their timeout. Returns those that are still closed.
    async fn uncordon_late<'w, 'p>(
        &mut self,
        late: Vec<Booting<'w, 'p>>,
        observed: Option<&Observed>,
    ) -> Vec<Booting<'w, 'p>> {
        let cordoned: Vec<_> =
            late.iter().map(|item| (item.work.address, &item.instance)).collect();
        let failures = self.uncordon_instances(&cordoned).await;
        let mut closed = Vec::new();
        for item in late {
            match failures.get(&item.instance) {
                None if closed_node(&item, observed).is_some() => {
                    closed.push(Booting { cordoned: false, ..item });
                }
                None => self.ready(&item, observed),
                Some(problem) => {
                    self.finish_abandoned(&item, &format!("its node is still cordoned: {problem}"));
                }
            }
        }
        closed
    }

    pub(super) fn ready(&mut self, item: &Booting<'_, '_>, observed: Option<&Observed>) {
        if let Some(node) = observed.and_then(|world| world.node_for_instance(&item.instance)) {
            self.emit(Some(item.work.address), Step::Ready { node: node.name.clone() });
        }
        self.finish_launch(item, item.success.clone());
    }

    pub(super) fn finish_launch(&self, item: &Booting<'_, '_>, outcome: Outcome) {
        let Booting { work, instance, launched, .. } = item;
        self.record_outcome(ChangeOutcome {
            address: work.address.clone(),
            step: WaveStep::Launch,
            instance_id: Some(instance.clone()),
            launched: launched.clone(),
            outcome,
        });
    }
}

/// Returns true if the pod must be evicted from the node before termination.
pub(super) fn must_be_evicted(pod: &Pod, node: &Node) -> bool {
    pod.node.as_ref() == Some(&node.name) && pod.needs_eviction()
}

/// Returns the state of a booting instance. A node counts as Ready once its startup taints are
/// removed, because pods cannot run on it before. It may still be closed.
fn boot_state(item: &Booting<'_, '_>, observed: &Observed) -> BootState {
    // A missing instance may still exist, because EC2's responses may lag.
    if observed.instances.get(&item.instance).is_some_and(Instance::has_ended) {
        return BootState::Ended;
    }
    let startup_taints = &item.work.node.startup_taints;
    let initialized =
        |node: &Node| node.ready && !node.taints.iter().any(|t| startup_taints.contains(t));
    let ready = observed.node_for_instance(&item.instance).is_some_and(initialized);
    if ready { BootState::Ready } else { BootState::Booting }
}
