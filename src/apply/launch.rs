//! A launch wave: every instance is asked for first, then all are waited for.

use std::collections::BTreeMap;
use std::pin::Pin;

use jiff::Timestamp;

use super::guard::{carries, is_gone};
use super::many::at_once;
use super::receipt::{Outcome, Step};
use super::stand_in::{Offering, stand_in};
use super::work::LaunchWork;
use super::{Run, Waits, later};
use crate::fleet::{Instance, KEY_LABEL, Node, Observed, Pod, tag};
use crate::ids::InstanceId;
use crate::plan::client_token;
use crate::plan::wire::{NodeState, WaveStep};
use crate::port::{Clock, Cloud, Cluster, Fate, LaunchOutcome, LaunchRequest, PortError};

/// Most launches that are asked for at the same time: about as many as EC2 lets anybody ask for in a row.
const LAUNCHES_AT_ONCE: usize = 8;

/// An instance that is booting.
pub(super) struct Booting<'w, 'p> {
    pub(super) work: &'w LaunchWork<'p>,
    pub(super) instance: InstanceId,
    /// What the change counts as once the node is Ready.
    pub(super) success: Outcome,
    pub(super) deadline: Timestamp,
    /// Whether this apply may have cordoned its node, and how often it was tried in vain to end it.
    pub(super) cordoned: bool,
    pub(super) tries: u32,
}

impl<'w, 'p> Booting<'w, 'p> {
    pub(super) fn new(
        work: &'w LaunchWork<'p>,
        instance: InstanceId,
        success: Outcome,
        deadline: Timestamp,
    ) -> Self {
        Self { work, instance, success, deadline, cordoned: false, tries: 0 }
    }
}

/// What a look at a booting instance says.
enum Verdict {
    Ready,
    Ended,
    Booting,
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Launches every instance of the wave that is not there yet, and waits until all are Ready.
    pub(super) async fn launch_wave(&mut self, launches: &[LaunchWork<'_>]) {
        let observed = match self.seen.take().filter(Observed::is_complete) {
            Some(seen) => Some(seen),
            None => self.look_again().await,
        };
        let own = launches.iter().filter(|work| work.group.is_none());
        let (run, seen) = (&*self, observed.as_ref());
        let works =
            own.map(|work| -> Pin<Box<dyn Future<Output = _>>> { Box::pin(run.begin(work, seen)) });
        let begun = at_once(works, LAUNCHES_AT_ONCE).await;
        let mut booting: Vec<Booting<'_, '_>> = begun.into_iter().flatten().collect();
        booting.extend(self.grow(launches, observed.as_ref()).await);
        match self.settings.waits {
            Waits::UntilReady => self.await_ready(booting).await,
            Waits::UntilLaunched => {
                for item in &booting {
                    self.booted(item, item.success.clone());
                }
            }
        }
    }

    /// Finds the instance of a change, or launches it; `None` where the change has ended with that.
    async fn begin<'w, 'p>(
        &self,
        work: &'w LaunchWork<'p>,
        observed: Option<&Observed>,
    ) -> Option<Booting<'w, 'p>> {
        let bound = self.settings.bounds.ready;
        let ended = match (self.dropped.get(work.address), observed) {
            (Some(why), _) => Outcome::Dropped { why: why.clone() },
            (None, None) => Outcome::Failed { why: "the live state cannot be read".to_owned() },
            (None, Some(_)) if self.settings.is_interrupted() => {
                Outcome::Skipped { why: "interrupted".to_owned() }
            }
            (None, Some(observed)) => {
                let ours = |i: &&Instance| carries(i, &work.change_id);
                let (gone, there): (Vec<_>, Vec<_>) =
                    observed.instances.values().filter(ours).partition(|i| is_gone(i));
                if let Some(found) = there.first() {
                    let instance = found.id.clone();
                    self.say(Some(work.address), Step::Found { instance_id: instance.clone() });
                    let deadline = later(found.launched_at, bound);
                    return Some(Booting::new(work, instance, Outcome::AlreadyDone, deadline));
                }
                match self.launch(work, gone.len()).await {
                    Ok(instance) => {
                        let deadline = self.deadline(bound);
                        return Some(Booting::new(work, instance, Outcome::Done, deadline));
                    }
                    Err(why) => Outcome::Failed { why },
                }
            }
        };
        self.finish(work.address, WaveStep::Launch, None, ended);
        None
    }

    /// Launches the first offering that has capacity. `ended` instances of the change were seen:
    /// each was the terminal outcome of a round of attempts.
    ///
    /// The attempt numbers the offerings of each round, so that a run that died and comes again
    /// asks with the same token for the same thing.
    async fn launch(&self, work: &LaunchWork<'_>, ended: usize) -> Result<InstanceId, String> {
        let mut none_left = "no offering is approved".to_owned();
        for (turn, offering) in work.offerings.iter().enumerate().skip(work.turn) {
            let Some(node) = self.node_of(work, offering, turn) else { continue };
            if turn > work.turn {
                self.keep_turn(work, turn).await?;
            }
            let attempt = ended.saturating_mul(work.offerings.len()).saturating_add(turn);
            let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
            let request = self.request(work, offering, &node, attempt);
            let outcome = self.launch_with_retries(work, &request).await;
            let Offering { instance_type, zone, capacity_type } = offering.clone();
            match outcome.map_err(|error| error.to_string())? {
                LaunchOutcome::Launched(instance_id) => {
                    let id = instance_id.clone();
                    let step = Step::Launched { instance_id, instance_type, zone, capacity_type };
                    self.say(Some(work.address), step);
                    return Ok(id);
                }
                LaunchOutcome::InsufficientCapacity { reason } => {
                    let step = Step::NoCapacity { instance_type, zone, capacity_type };
                    self.say(Some(work.address), step);
                    none_left = format!("no approved offering has capacity; the last: {reason}");
                }
            }
        }
        Err(none_left)
    }

    /// Keeps that the offering `turn` is about to be asked for.
    async fn keep_turn(&self, work: &LaunchWork<'_>, turn: usize) -> Result<(), String> {
        let Some(turns) = self.settings.turns else { return Ok(()) };
        if self.settings.is_interrupted() {
            return Err("interrupted before the next offering was asked for".to_owned());
        }
        turns.keep(work.address, u32::try_from(turn).unwrap_or(u32::MAX)).await
    }

    /// Returns the node that an offering makes: the planned one, or one that stands in.
    fn node_of(
        &self,
        work: &LaunchWork<'_>,
        offering: &Offering,
        turn: usize,
    ) -> Option<NodeState> {
        if turn == 0 {
            return Some(work.node.clone());
        }
        stand_in(work.node, offering, self.settings.catalog?)
    }

    fn request(
        &self,
        work: &LaunchWork<'_>,
        offering: &Offering,
        node: &NodeState,
        attempt: u32,
    ) -> LaunchRequest {
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
        for key in &node.open_labels {
            let name = format!("{}{key}", tag::LABEL_PREFIX);
            let value = node.labels.get(key).filter(|_| name.len() <= tag::KEY_CHARS_MAX);
            tags.extend(value.map(|value| (name, value.to_string())));
        }
        let mut labels = node.labels.clone();
        labels.insert(KEY_LABEL.into(), work.key.into());
        LaunchRequest {
            token: client_token(&work.change_id, attempt),
            instance_type: offering.instance_type.clone(),
            zone: offering.zone.clone(),
            capacity_type: offering.capacity_type,
            reservation: node.reservation.clone(),
            image: work.image.to_owned(),
            tags,
            labels,
            taints: node.taints.clone(),
            startup_taints: node.startup_taints.clone(),
            capacity: (&node.capacity).into(),
            allocatable: (&node.allocatable).into(),
        }
    }

    /// Makes the call again while it fails for a reason that may pass: the token is the same, so
    /// that a reply that was lost costs nothing.
    async fn launch_with_retries(
        &self,
        work: &LaunchWork<'_>,
        request: &LaunchRequest,
    ) -> Result<LaunchOutcome, PortError> {
        let mut tries = 1;
        loop {
            let outcome = self.ports.cloud.launch(request).await;
            if outcome.as_ref().is_err_and(|error| error.fate == Fate::Unknown) {
                self.say(Some(work.address), Step::Unanswered);
            }
            match outcome {
                Err(error) if error.is_transient() && tries < self.settings.bounds.tries => {
                    let why = error.to_string();
                    self.say(Some(work.address), Step::Retrying { why });
                    tries += 1;
                    self.pause().await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn await_ready(&mut self, mut booting: Vec<Booting<'_, '_>>) {
        while !booting.is_empty() {
            let observed = self.look_whole().await;
            let (mut waiting, mut overdue, mut left) = (Vec::new(), Vec::new(), Vec::new());
            let mut late = Vec::new();
            for item in booting {
                let verdict =
                    observed.as_ref().map_or(Verdict::Booting, |world| judge(&item, world));
                match verdict {
                    Verdict::Ready if item.cordoned => late.push(item),
                    Verdict::Ready => self.ready(&item, observed.as_ref()),
                    Verdict::Ended => {
                        let why = "the instance ended before its node was Ready".to_owned();
                        self.booted(&item, Outcome::Failed { why });
                    }
                    Verdict::Booting if self.settings.is_interrupted() => {
                        left.push((item, "interrupted while the node was booting".to_owned()));
                    }
                    Verdict::Booting if self.now() >= item.deadline => overdue.push(item),
                    Verdict::Booting => waiting.push(item),
                }
            }
            self.leave(left).await;
            self.admit_late(late, observed.as_ref()).await;
            if !overdue.is_empty() {
                waiting.extend(self.give_up(overdue, observed).await);
            }
            booting = waiting;
            if !booting.is_empty() {
                self.say(None, Step::Going { left: booting.len() });
                self.pause().await;
            }
        }
    }

    /// Has machines take pods that became Ready after all when they were being given up.
    async fn admit_late(&mut self, late: Vec<Booting<'_, '_>>, observed: Option<&Observed>) {
        let cordoned: Vec<_> =
            late.iter().map(|item| (item.work.address, &item.instance)).collect();
        let still = self.take_back(&cordoned).await;
        for item in &late {
            match still.get(&item.instance) {
                None => self.ready(item, observed),
                Some(problem) => {
                    self.given_up(item, &format!("its node is still cordoned: {problem}"));
                }
            }
        }
    }

    fn ready(&mut self, item: &Booting<'_, '_>, observed: Option<&Observed>) {
        if let Some(node) = observed.and_then(|world| world.node_of(&item.instance)) {
            self.say(Some(item.work.address), Step::Ready { node: node.name.clone() });
        }
        self.booted(item, item.success.clone());
    }

    pub(super) fn booted(&self, item: &Booting<'_, '_>, outcome: Outcome) {
        self.finish(item.work.address, WaveStep::Launch, Some(&item.instance), outcome);
    }
}

/// Returns whether the pod is on the node, and has to leave it before it goes.
pub(super) fn is_movable(pod: &Pod, node: &Node) -> bool {
    pod.node.as_ref() == Some(&node.name) && pod.has_to_leave()
}

/// Judges a booting instance. A node counts as Ready once it has lost its startup taints, because
/// no pod can use it before.
fn judge(item: &Booting<'_, '_>, observed: &Observed) -> Verdict {
    // An instance that is not listed is not known to have ended: describe calls lag behind.
    if observed.instances.get(&item.instance).is_some_and(is_gone) {
        return Verdict::Ended;
    }
    let startup_taints = &item.work.node.startup_taints;
    let initialized =
        |node: &Node| node.ready && !node.taints.iter().any(|t| startup_taints.contains(t));
    let ready = observed.node_of(&item.instance).is_some_and(initialized);
    if ready { Verdict::Ready } else { Verdict::Booting }
}
