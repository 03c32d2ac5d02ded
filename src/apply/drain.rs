//! A retire wave: each node is waited for, cordoned, read again, drained, read by itself, terminated, and gone; or
//! left as it was.

use jiff::Timestamp;

use super::eviction_order::{next_to_evict, remaining_attachment};
use super::launch::must_be_evicted;
use super::pre_terminate_check::{has_do_not_disrupt, termination_blocker};
use super::preconditions::has_ended;
use super::receipt::{Outcome, Step};
use super::wave_work::RetireWork;
use super::{Run, deadline_after};
use crate::apply::ports::{Clock, Cloud, Cluster, CordonOutcome, EvictOutcome, PortError};
use crate::demand::is_do_not_disrupt_at;
use crate::model::observed::{CordonReason, Instance, InstanceState, Node, Observed, Pod};
use crate::plan::wire::WaveStep;

/// What holds a cordon up where somebody wrote the node between look and write: the next look tells what.
pub(super) const CHANGED: &str = "the node was changed meanwhile";

/// How far a retirement has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Live replicas are still above the planned ones.
    Waiting,
    /// Cordoned; pods leave.
    Draining,
    /// All pods have left; their volumes are being detached.
    Detaching,
    /// Told to end.
    Ending,
}

/// A retirement under way.
struct Retiring<'w, 'p> {
    work: &'w RetireWork<'p>,
    phase: Phase,
    deadline: Timestamp,
    /// What holds it up, as it was last reported.
    held_by: Option<String>,
}

impl Retiring<'_, '_> {
    fn interrupted(&self) -> Progress {
        match self.phase {
            Phase::Waiting | Phase::Draining | Phase::Detaching => Progress::give_up("interrupted"),
            Phase::Ending => Progress::Ended(Outcome::GivenUp {
                why: "interrupted while the instance was ending".to_owned(),
            }),
        }
    }
}

/// What one step of a retirement came to.
enum Progress {
    /// Nothing; look again later.
    Same,
    /// The next phase began.
    Next(Phase),
    /// It ended, with nothing to take back.
    Ended(Outcome),
    /// It cannot go on; what was begun is to be taken back.
    TakeBack(Outcome),
}

impl Progress {
    fn give_up(why: impl Into<String>) -> Self {
        Self::TakeBack(Outcome::GivenUp { why: why.into() })
    }
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Retires every node of the wave; one that is held up holds up no other. None is where more
    /// is needed by now than was approved.
    pub(super) async fn retire_wave(&mut self, retires: &[RetireWork<'_>], outgrown: Option<&str>) {
        let deadline = self.deadline(self.settings.bounds.replicas);
        let others = self.remaining_members(retires).await;
        let mut under_way = Vec::new();
        for work in retires {
            let outgrown = outgrown.map(|missing| Outcome::Skipped {
                why: format!("by now it is not as approved: {missing}"),
            });
            match self.obstacle(work).or(outgrown) {
                Some(outcome) => self.retired(work, outcome),
                None => {
                    under_way.push(Retiring {
                        work,
                        phase: Phase::Waiting,
                        deadline,
                        held_by: None,
                    });
                }
            }
        }
        while !under_way.is_empty() {
            let observed = self.observe_complete().await;
            if observed.is_none() {
                self.emit(None, Step::Unreadable);
            }
            let mut left = Vec::new();
            let mut moved = false;
            for mut item in under_way {
                let before = item.phase;
                if self.step(&mut item, observed.as_ref()).await {
                    moved |= item.phase != before;
                    left.push(item);
                }
            }
            under_way = left;
            // Whoever was cordoned just now is read again at once: that is what cordoning is for.
            if !moved && !under_way.is_empty() {
                self.emit(None, Step::Going { left: under_way.len() });
                self.pause().await;
            }
        }
        self.check_remaining_members(&others).await;
    }

    /// Returns how the change ends without being begun, if it does.
    fn obstacle(&self, work: &RetireWork<'_>) -> Option<Outcome> {
        if let Some(why) = self.dropped.get(work.address) {
            return Some(Outcome::Dropped { why: why.clone() });
        }
        let failed = |change: &&super::ChangeOutcome| {
            change.step == WaveStep::Launch && !change.outcome.is_settled()
        };
        // Pods of a node that no group names may have been counted on any new node.
        let concerns = |change: &&super::ChangeOutcome| {
            change.address == *work.address
                || work.group.is_none()
                || self.groups.get(&change.address).copied() == work.group
        };
        let outcomes = self.outcomes.borrow();
        let cause = outcomes.iter().filter(failed).find(concerns)?;
        Some(Outcome::Skipped { why: format!("`{}` did not become Ready", cause.address) })
    }

    fn retired(&mut self, work: &RetireWork<'_>, outcome: Outcome) {
        self.finish(work.address, WaveStep::Retire, Some(work.instance), outcome);
    }

    /// Takes one step; returns whether the retirement goes on.
    async fn step(&mut self, item: &mut Retiring<'_, '_>, observed: Option<&Observed>) -> bool {
        let progress = match observed {
            _ if self.settings.is_interrupted() => item.interrupted(),
            None => Progress::Same,
            Some(observed) => match item.phase {
                Phase::Waiting => self.wait_for_replicas(item, observed).await,
                Phase::Draining | Phase::Detaching => self.drain(item, observed).await,
                Phase::Ending => self.await_end(item, observed).await,
            },
        };
        let overdue = self.now() >= item.deadline;
        let progress = if overdue && matches!(progress, Progress::Same) {
            self.overdue(item)
        } else {
            progress
        };
        match progress {
            Progress::Same => return true,
            Progress::Next(phase) => {
                item.deadline = deadline_after(self.now(), self.bound_of(phase));
                (item.phase, item.held_by) = (phase, None);
                return true;
            }
            Progress::Ended(outcome) => self.retired(item.work, outcome),
            Progress::TakeBack(outcome) => {
                let work = item.work;
                let left = self.uncordon_instances(&[(work.address, work.instance)]).await;
                let outcome = match left.get(work.instance) {
                    Some(problem) => still_cordoned(outcome, problem),
                    None => outcome,
                };
                self.retired(work, outcome);
            }
        }
        false
    }

    fn bound_of(&self, phase: Phase) -> jiff::SignedDuration {
        let bounds = &self.settings.bounds;
        match phase {
            Phase::Waiting => bounds.replicas,
            Phase::Draining => bounds.drain,
            Phase::Detaching => bounds.detach,
            Phase::Ending => bounds.gone,
        }
    }

    fn overdue(&self, item: &Retiring<'_, '_>) -> Progress {
        let bound = self.bound_of(item.phase);
        let held_by = item.held_by.clone().unwrap_or_else(|| "the world was not read".to_owned());
        let why = format!("not done within {bound:#}: {held_by}");
        match item.phase {
            Phase::Waiting | Phase::Draining | Phase::Detaching => Progress::give_up(why),
            Phase::Ending => Progress::Ended(Outcome::GivenUp { why }),
        }
    }

    /// Reports what holds a retirement up, once for each obstacle.
    fn hold(&mut self, item: &mut Retiring<'_, '_>, why: String, step: impl Fn(String) -> Step) {
        if item.held_by.as_ref() != Some(&why) {
            self.emit(Some(item.work.address), step(why.clone()));
            item.held_by = Some(why);
        }
    }

    /// Waits for live replicas, then cordons.
    async fn wait_for_replicas(
        &mut self,
        item: &mut Retiring<'_, '_>,
        observed: &Observed,
    ) -> Progress {
        let work = item.work;
        let instance = match standing(work, observed) {
            Standing::Gone => return Progress::Ended(Outcome::AlreadyDone),
            Standing::Ending => return Progress::Next(Phase::Ending),
            Standing::Other(why) => return Progress::give_up(why),
            Standing::There(instance) => instance,
        };
        if let Some(why) = too_many(work, observed) {
            self.hold(item, why, |why| Step::Waiting { why });
            return Progress::Same;
        }
        let Some(node) = observed.node_for_instance(&instance.id) else {
            return Progress::Next(Phase::Draining);
        };
        // Who else cordoned it had a reason: their mark is not ours to remove.
        if !node.unschedulable {
            let mark = Some(CordonReason::Drain);
            match self.ports.cluster.cordon(node, mark).await {
                Ok(CordonOutcome::Written) => {
                    self.emit(Some(work.address), Step::Cordoned { node: node.name.clone() });
                }
                Ok(CordonOutcome::Outdated) => {
                    item.held_by = Some(CHANGED.to_owned());
                    return Progress::Same;
                }
                Err(error) => return self.failed_call(item, &error),
            }
        }
        Progress::Next(Phase::Draining)
    }

    /// Evicts what must leave; terminates once nothing is left. Works on a look that is younger than
    /// the cordon.
    async fn drain(&mut self, item: &mut Retiring<'_, '_>, observed: &Observed) -> Progress {
        let work = item.work;
        let instance = match standing(work, observed) {
            Standing::Gone | Standing::Ending => return Progress::Next(Phase::Ending),
            Standing::Other(why) => return Progress::give_up(why),
            Standing::There(instance) => instance,
        };
        if let Some(node) = observed.node_for_instance(&instance.id) {
            if let Some(why) = untouchable(node, observed, self.now()).or_else(|| reopened(node)) {
                return Progress::give_up(why);
            }
            let pods =
                observed.pods.iter().map(|pod| &**pod).filter(|pod| must_be_evicted(pod, node));
            let pods = next_to_evict(pods.collect(), observed);
            if !pods.is_empty() {
                self.evict(item, node, &pods).await;
                return Progress::Same;
            }
            if let Some(volume) = remaining_attachment(node, observed) {
                match item.phase {
                    Phase::Waiting | Phase::Draining | Phase::Ending => {
                        return Progress::Next(Phase::Detaching);
                    }
                    // A volume that its driver does not let go is no reason to keep a machine.
                    Phase::Detaching if self.now() < item.deadline => {
                        let why = format!("volume {volume} is still attached");
                        self.hold(item, why, |why| Step::Waiting { why });
                        return Progress::Same;
                    }
                    Phase::Detaching => {}
                }
            }
        }
        if let Some(node) = observed.node_for_instance(&instance.id) {
            match termination_blocker(self.ports.cluster, node).await {
                Ok(None) => {}
                // What the next look shows decides.
                Ok(Some(why)) => {
                    self.hold(item, why, |why| Step::Waiting { why });
                    return Progress::Same;
                }
                Err(error) => return self.failed_call(item, &error),
            }
        }
        let ended = match work.member_of {
            // Never by number: Auto Scaling would choose who goes.
            Some(_) => self.ports.cloud.terminate_member(work.instance).await,
            None => self.ports.cloud.terminate(work.instance).await,
        };
        match ended {
            Ok(()) => {
                let instance_id = work.instance.clone();
                self.emit(Some(work.address), Step::Terminating { instance_id });
                Progress::Next(Phase::Ending)
            }
            Err(error) => self.failed_call(item, &error),
        }
    }

    async fn evict(&mut self, item: &mut Retiring<'_, '_>, node: &Node, pods: &[&Pod]) {
        let (mut evicted, mut held) = (0, None);
        for pod in pods.iter().filter(|pod| !pod.terminating) {
            let who = format!("pod `{}/{}`", pod.namespace, pod.name);
            match self.ports.cluster.evict(pod).await {
                Ok(EvictOutcome::Evicted) => evicted += 1,
                Ok(EvictOutcome::Blocked { budget }) => {
                    held = held.or(Some(format!("{who} is held by the budget `{budget}`")));
                }
                Err(error) => held = held.or(Some(format!("{who}: {error}"))),
            }
        }
        if evicted > 0 {
            let step = Step::Evicted { node: node.name.clone(), pods: evicted };
            self.emit(Some(item.work.address), step);
        }
        match held {
            Some(why) => self.hold(item, why, |why| Step::Blocked { why }),
            None => item.held_by = Some(format!("{} pods are still stopping", pods.len())),
        }
    }

    /// Waits until EC2 says that the instance is gone, then removes its node.
    async fn await_end(&mut self, item: &mut Retiring<'_, '_>, observed: &Observed) -> Progress {
        let work = item.work;
        let ended = |i: &Instance| i.state == InstanceState::Terminated;
        if !observed.instances.get(work.instance).is_none_or(ended) {
            item.held_by = Some("EC2 is still ending the instance".to_owned());
            return Progress::Same;
        }
        // Only the node that was approved goes: another one of that machine is not known to us.
        let approved = |node: &&Node| {
            node.instance.as_ref() == Some(work.instance)
                && Some(&node.uid) == work.node.node_uid.as_ref()
        };
        let Some(node) = observed.nodes.values().find(approved) else {
            return Progress::Ended(Outcome::Done);
        };
        match self.ports.cluster.delete_node(&node.name, &node.uid).await {
            Ok(()) => Progress::Ended(Outcome::Done),
            Err(error) => self.failed_call(item, &error),
        }
    }

    /// Decides what a failed call means: a reason that may pass holds up, another one ends.
    fn failed_call(&mut self, item: &mut Retiring<'_, '_>, error: &PortError) -> Progress {
        let why = error.to_string();
        if error.is_transient() {
            self.hold(item, why, |why| Step::Retrying { why });
            return Progress::Same;
        }
        match item.phase {
            Phase::Waiting | Phase::Draining | Phase::Detaching => {
                Progress::TakeBack(Outcome::Failed { why })
            }
            Phase::Ending => Progress::Ended(Outcome::Failed { why }),
        }
    }
}

/// Adds to an outcome that its node could not be uncordoned.
fn still_cordoned(outcome: Outcome, problem: &str) -> Outcome {
    let add = |why: String| format!("{why}; the node is still cordoned: {problem}");
    match outcome {
        Outcome::GivenUp { why } => Outcome::GivenUp { why: add(why) },
        Outcome::Failed { why } => Outcome::Failed { why: add(why) },
        Outcome::Done
        | Outcome::AlreadyDone
        | Outcome::Dropped { .. }
        | Outcome::Skipped { .. } => outcome,
    }
}

/// What there is of a node that is to go.
enum Standing<'o> {
    /// Neither instance nor node.
    Gone,
    /// The instance is ending, or has left its node behind.
    Ending,
    /// Both are as approved.
    There(&'o Instance),
    /// Something else than what was approved, and what.
    Other(String),
}

fn standing<'o>(work: &RetireWork<'_>, observed: &'o Observed) -> Standing<'o> {
    let node = observed.node_for_instance(work.instance);
    let Some(instance) = observed.instances.get(work.instance) else {
        return if node.is_none() { Standing::Gone } else { Standing::Ending };
    };
    let ended = instance.state == InstanceState::Terminated;
    if ended && node.is_none() {
        return Standing::Gone;
    }
    if has_ended(instance) {
        return Standing::Ending;
    }
    let of = instance.group.as_ref().map(|of| &of.name);
    let is_member = of.is_some() && of == work.member_of;
    if !instance.is_managed_by(&observed.cluster.name) && !is_member {
        return Standing::Other("the instance no longer carries our tags".to_owned());
    }
    match (node.map(|node| &node.uid), &work.node.node_uid) {
        (found, expected) if found == expected.as_ref() => Standing::There(instance),
        (Some(found), _) => Standing::Other(format!("the node is another one now, UID {found}")),
        (None, _) => Standing::Other("the node is no longer registered".to_owned()),
    }
}

/// Returns which workload still has more replicas than planned, if one has.
fn too_many(work: &RetireWork<'_>, observed: &Observed) -> Option<String> {
    work.at_most.iter().find_map(|(id, most)| {
        let replicas = observed.workloads.iter().find(|live| live.id == **id)?.replicas;
        (replicas > *most).then(|| {
            format!("{} `{id}` has {replicas} replicas, the plan counts on {most}", id.kind)
        })
    })
}

/// Returns that somebody has uncordoned a node that was cordoned to be drained: pods come to it again, whatever the
/// last look shows, and whoever did it wants them to.
fn reopened(node: &Node) -> Option<String> {
    (!node.unschedulable).then(|| format!("somebody uncordoned node `{}`", node.name))
}

/// Returns what forbids to drain the node, if something does.
fn untouchable(node: &Node, observed: &Observed, now: Timestamp) -> Option<String> {
    if has_do_not_disrupt(node) {
        return Some(format!("node `{}` asks not to be disrupted", node.name));
    }
    let pinned = |pod: &Pod| {
        must_be_evicted(pod, node) && !pod.terminating && is_do_not_disrupt_at(pod, observed, now)
    };
    let pod = observed.pods.iter().find(|pod| pinned(pod))?;
    Some(format!("pod `{}/{}` asks not to be moved", pod.namespace, pod.name))
}
