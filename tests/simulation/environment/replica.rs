//! The ports of one replica: the world with faults.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use fleetwright::apply::ports::{
    CallEffect, Cloud, CloudInventory, Cluster, ClusterObjects, CordonOutcome, EvictOutcome,
    LaunchOutcome, LaunchRequest, NodeAndPods, PortError,
};
use fleetwright::controller::{
    AuthorizedRequest, InterruptionMessage, PersistedState, Revision, RevisionError,
    RevisionSource, Signal, SignalSource, StateStore,
};
use fleetwright::model::desired::AppliedBy;
use fleetwright::model::ids::{GroupName, InstanceId, NodeName, Uid};
use fleetwright::model::observed::{CordonReason, Node, NodeClassField, Pod, UnresolvedTerm};
use jiff::{SignedDuration, Timestamp};

use super::recorded_calls::Caller;
use super::{APPLY, CallKind, STALE, ServedCommitChange, SharedWorld};
use crate::simulation::invariants::is_applied;
use crate::simulation::repository::{SimulatedCommit, SimulatedPlanner};

/// How long it takes to hear a signal.
const SIGNAL_TAKES: SignedDuration = SignedDuration::from_millis(5);

fn turned_away(verb: &str) -> PortError {
    PortError { effect: CallEffect::NotApplied, ..broken(verb) }
}

fn broken(verb: &str) -> PortError {
    let reason = "RequestLimitExceeded: try again later".to_owned();
    PortError { verb: verb.to_owned(), reason, effect: CallEffect::Unknown }
}

/// The outside as one replica sees it.
pub(crate) struct Replica {
    /// Which.
    pub(crate) number: usize,
    /// What it shares with others.
    pub(crate) shared: Rc<SharedWorld>,
    /// Pods that it was told of.
    pub(crate) told: RefCell<BTreeSet<Uid>>,
    /// When it last began to read Kubernetes and got all of it.
    looked: Cell<Option<Timestamp>>,
    /// Until when it is shown pods of another moment, and those.
    stuck: RefCell<Option<(Timestamp, ClusterObjects)>>,
    /// When it last began to read a node by itself.
    read: RefCell<BTreeMap<NodeName, Timestamp>>,
    /// Machines that EC2 has listed to it.
    shown: RefCell<BTreeSet<InstanceId>>,
    /// Whether it was told that it leads.
    pub(crate) leads: Cell<bool>,
    /// Who it last heard to have the lease.
    holder: Cell<Option<usize>>,
    /// Whether it would receive messages.
    pub(crate) takes: Cell<bool>,
    /// What people ask of it.
    pub(crate) requests: RefCell<VecDeque<AuthorizedRequest>>,
    /// Whether it is to end.
    pub(crate) ends: Cell<bool>,
}

impl Replica {
    /// Returns the outside of a replica that begins.
    #[must_use]
    pub(crate) fn new(number: usize, shared: &Rc<SharedWorld>) -> Self {
        Self {
            number,
            shared: Rc::clone(shared),
            told: RefCell::default(),
            looked: Cell::default(),
            stuck: RefCell::default(),
            read: RefCell::default(),
            shown: RefCell::default(),
            leads: Cell::default(),
            holder: Cell::default(),
            takes: Cell::default(),
            requests: RefCell::default(),
            ends: Cell::default(),
        }
    }

    fn plans(&self, files: Rc<SimulatedCommit>) -> SimulatedPlanner {
        SimulatedPlanner { files, replica: self.number, shared: Rc::clone(&self.shared) }
    }

    async fn reads(&self, verb: &str) -> Result<(), PortError> {
        let shared = &self.shared;
        shared.reads.set(shared.reads.get() + 1);
        shared.time.sleep(shared.delay()).await;
        if shared.chance(shared.faults.get().reads) { Err(broken(verb)) } else { Ok(()) }
    }

    /// Shows pods as they were a while ago, while their watch says nothing; returns whether that is so.
    fn stands_still(&self, objects: &mut ClusterObjects) -> bool {
        let now = self.shared.time.now();
        let mut stuck = self.stuck.borrow_mut();
        if let Some((_, then)) = stuck.as_ref().filter(|(until, _)| now < *until) {
            objects.pods.clone_from(&then.pods);
            for (key, template) in &then.templates {
                objects.templates.entry(key.clone()).or_insert_with(|| Arc::clone(template));
            }
            return true;
        }
        *stuck = None;
        if objects.unread.is_empty() && self.shared.chance(self.shared.faults.get().sticks) {
            *stuck = Some((now.checked_add(STALE).unwrap_or(now), objects.clone()));
        }
        false
    }

    /// Waits for a call to be made; fails where it never arrives.
    async fn writes(&self, verb: &str) -> Result<Caller, PortError> {
        let shared = &self.shared;
        let (began, lease) = (shared.time.now(), shared.lease.get());
        let (replica, looked) = (self.number, self.looked.get());
        let by = Caller { replica, began, lease, looked, shown: BTreeSet::new() };
        shared.time.sleep(shared.delay()).await;
        if shared.chance(shared.faults.get().unheard) {
            return Err(broken(verb));
        }
        if shared.chance(shared.faults.get().writes) { Err(turned_away(verb)) } else { Ok(by) }
    }

    /// Notes that an instance is told to end, and when what runs on it was read last.
    fn tells_to_end(&self, by: Caller, id: &InstanceId) -> Caller {
        let ended = self.shared.ended(id);
        let read = ended.node.as_ref().and_then(|node| self.read.borrow().get(node).copied());
        let by = Caller { looked: by.looked.max(read), ..by };
        self.shared.note(&by, CallKind::Terminate(ended));
        by
    }

    /// Waits for the reply; fails where it is lost.
    async fn replies(&self, verb: &str) -> Result<(), PortError> {
        let shared = &self.shared;
        shared.time.sleep(shared.delay()).await;
        if shared.chance(shared.faults.get().lost) { Err(broken(verb)) } else { Ok(()) }
    }
}

impl Cloud for Replica {
    async fn holdings(&self) -> Result<CloudInventory, PortError> {
        self.reads("read account").await?;
        let faults = self.shared.faults.get();
        let mut holdings = self.shared.world.holdings().await?;
        if self.shared.chance(faults.stale)
            && let Some((_, then)) = self.shared.past.borrow().front()
        {
            holdings.instances.clone_from(then);
        }
        if self.shared.chance(faults.partial) {
            holdings.instances.clear();
            holdings.unread.push("the second page was not answered".to_owned());
        }
        if self.shared.chance(faults.images) {
            let unread = |words| UnresolvedTerm {
                part: NodeClassField::Image,
                words,
                reason: "no answer".to_owned(),
            };
            let images = std::mem::take(&mut holdings.resolved.images);
            holdings.resolved.unread = images.into_keys().map(unread).collect();
        }
        let listed = holdings.instances.iter().map(|instance| instance.id.clone());
        self.shown.borrow_mut().extend(listed);
        Ok(holdings)
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        const VERB: &str = "launch instance";
        let by = self.writes(VERB).await?;
        let by = Caller { shown: self.shown.borrow().clone(), ..by };
        let outcome = self.shared.world.launch(request).await?;
        let id = match &outcome {
            LaunchOutcome::Launched(id) => Some(id.clone()),
            LaunchOutcome::InsufficientCapacity { .. } => None,
        };
        self.shared.note(&by, CallKind::Launch(Box::new(request.clone()), id.clone()));
        self.replies(VERB).await?;
        if let Some(id) = id {
            self.shared.note(&by, CallKind::Launched(id));
        }
        Ok(outcome)
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        let by = self.writes("raise group").await?;
        let from = self.shared.world.observed().groups.get(group).map_or(0, |g| g.desired);
        self.shared.note(&by, CallKind::Raise { group: group.clone(), from, to: desired });
        self.shared.world.raise_group(group, desired).await
    }

    async fn terminate_member(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "end member of group";
        let by = self.writes(VERB).await?;
        let by = self.tells_to_end(by, id);
        self.shared.world.terminate_member(id).await?;
        self.replies(VERB).await?;
        self.shared.note(&by, CallKind::Ended(id.clone()));
        Ok(())
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "terminate instance";
        let by = self.writes(VERB).await?;
        let by = self.tells_to_end(by, id);
        self.shared.world.terminate(id).await?;
        self.replies(VERB).await?;
        self.shared.note(&by, CallKind::Ended(id.clone()));
        Ok(())
    }
}

impl Cluster for Replica {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        let began = self.shared.time.now();
        self.reads("read cluster").await?;
        let faults = self.shared.faults.get();
        if faults.kubernetes {
            return Err(broken("read cluster"));
        }
        let mut objects = self.shared.world.objects().await?;
        if self.shared.chance(faults.partial) {
            objects.pods.clear();
            objects.unread.push("pods were not answered".to_owned());
        }
        if faults.nodeless {
            objects.nodes.clear();
        }
        let stands_still = self.stands_still(&mut objects);
        if objects.unread.is_empty() && !stands_still {
            self.looked.set(Some(began));
        }
        Ok(objects)
    }

    async fn node(&self, name: &NodeName) -> Result<NodeAndPods, PortError> {
        let began = self.shared.time.now();
        self.reads("read node").await?;
        if self.shared.faults.get().kubernetes {
            return Err(broken("read node"));
        }
        let now = self.shared.world.node(name).await?;
        self.read.borrow_mut().insert(name.clone(), began);
        Ok(now)
    }

    async fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonReason>,
    ) -> Result<CordonOutcome, PortError> {
        let by = self.writes("cordon node").await?;
        if self.shared.faults.get().kubernetes {
            return Err(broken("cordon node"));
        }
        let ours = self.shared.may_cordon(&node.name, mark.is_some());
        let outcome = self.shared.world.cordon(node, mark).await?;
        if outcome == CordonOutcome::Written {
            let what = CallKind::Cordon { node: node.name.clone(), on: mark.is_some(), ours };
            self.shared.note(&by, what);
        }
        self.replies("cordon node").await?;
        Ok(outcome)
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        let by = self.writes("evict pod").await?;
        if self.shared.faults.get().kubernetes {
            return Err(broken("evict pod"));
        }
        self.shared.note(&by, CallKind::Evict(pod.uid.clone()));
        let outcome = self.shared.world.evict(pod).await?;
        self.replies("evict pod").await?;
        Ok(outcome)
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        self.writes("delete node").await?;
        self.shared.world.delete_node(node, uid).await
    }
}

impl RevisionSource for Replica {
    type Planner = SimulatedPlanner;

    async fn read_branch(&self) -> Result<(Revision, SimulatedPlanner), String> {
        self.shared.time.sleep(self.shared.delay()).await;
        if self.shared.faults.get().git {
            return Err("could not resolve host: git.example.com".to_owned());
        }
        let files = Rc::clone(&self.shared.files.borrow());
        Ok((files.head(), self.plans(files)))
    }

    async fn read_commit(
        &self,
        commit: &str,
    ) -> Result<(Revision, SimulatedPlanner), RevisionError> {
        self.shared.time.sleep(self.shared.delay()).await;
        let faults = self.shared.faults.get();
        if faults.git || faults.named > 0 && self.shared.chance(faults.named) {
            let why = "could not resolve host: git.example.com".to_owned();
            return Err(RevisionError::Unreadable(why));
        }
        let past = self.shared.commits.borrow();
        let gone = self.shared.gone.borrow();
        let files = past.iter().find(|files| files.name == commit && !gone.contains(commit));
        let files =
            files.ok_or_else(|| RevisionError::NotFound(format!("there is no commit {commit}")))?;
        let files = Rc::clone(files);
        Ok((files.head(), self.plans(files)))
    }
}

impl StateStore for Replica {
    async fn load(&self) -> Result<PersistedState, PortError> {
        self.reads("read record").await?;
        Ok(self.shared.kept.borrow().clone())
    }

    async fn save(&self, kept: &PersistedState) -> Result<(), PortError> {
        let by = self.writes("write record").await?;
        if !self.may_write() {
            return Err(broken("write record"));
        }
        // What CI writes is CI's.
        self.serves(&by, kept);
        let applied = self.shared.kept.borrow().ci_apply.clone();
        *self.shared.kept.borrow_mut() = PersistedState { ci_apply: applied, ..kept.clone() };
        self.replies("write record").await
    }

    async fn nominate(&self, pod: &Pod, _node: &NodeName) -> Result<(), PortError> {
        let by = self.writes("nominate pod").await?;
        self.shared.note(&by, CallKind::Nominate(pod.uid.clone()));
        self.replies("nominate pod").await
    }
}

impl SignalSource for Replica {
    async fn next(&self) -> Signal {
        std::future::poll_fn(|_| match self.signal() {
            Some(signal) => std::task::Poll::Ready(signal),
            None => std::task::Poll::Pending,
        })
        .await
    }

    async fn acknowledge(&self, receipt: &str) -> Result<(), PortError> {
        let by = self.writes("acknowledge message").await?;
        let message = self.shared.queue.borrow_mut().remove(receipt);
        let open = message.map(|message| self.shared.open(&message)).unwrap_or_default();
        self.shared.note(&by, CallKind::Acknowledge(receipt.to_owned(), open));
        self.replies("acknowledge message").await
    }

    fn may_write(&self) -> bool {
        self.shared.holds(self.number)
    }
}

impl Replica {
    /// Notes that another commit is kept as the one that is served, where CI carries out merges.
    fn serves(&self, by: &Caller, kept: &PersistedState) {
        let merged_by = self.shared.files.borrow().fleet.controller.applied_by;
        if merged_by != AppliedBy::Ci {
            return;
        }
        let before = self.shared.kept.borrow();
        let changed =
            before.served_commit.as_ref().zip(kept.served_commit.as_ref()).filter(|(a, b)| a != b);
        let Some((from, to)) = changed.map(|(from, to)| (from.clone(), to.clone())) else { return };
        let applied = is_applied(&before, &to);
        let glass = before.break_glass.is_some() || kept.break_glass.is_some();
        drop(before);
        let gone = self.shared.gone.borrow().contains(&from);
        self.shared
            .note(by, CallKind::Serves(ServedCommitChange { from, to, applied, glass, gone }));
    }

    fn signal(&self) -> Option<Signal> {
        if self.ends.take() {
            return Some(Signal::Shutdown);
        }
        let holds = self.may_write();
        // Who does not hold it hears of each who does.
        let holder = self.shared.lease.get().map(|(by, _)| by);
        let other = !holds && holder.is_some() && self.holder.get() != holder;
        self.holder.set(holder.or(self.holder.get()));
        if holds != self.leads.get() || other {
            self.leads.set(holds);
            let holder = self.shared.lease.get().map(|(by, _)| format!("replica-{by}"));
            return Some(if holds {
                Signal::LeaseGained
            } else {
                let to_apply = self.shared.lease.get().is_some_and(|(by, _)| by == APPLY);
                Signal::LeaseLost { holder, to_apply }
            });
        }
        if let Some(request) = self.requests.borrow_mut().pop_front() {
            return Some(Signal::Request(request));
        }
        if self.takes.get()
            && let Some(message) = self.message()
        {
            return Some(Signal::Message(message));
        }
        let view = self.shared.world.view();
        let waits = |pod: &&Pod| pod.is_active() && pod.node.is_none();
        let mut told = self.told.borrow_mut();
        let new = view.pods().filter(waits).find(|pod| !told.contains(&pod.uid));
        if let Some(pod) = new {
            told.insert(pod.uid.clone());
            return Some(Signal::PodPending);
        }
        drop((told, view));
        self.flooded()
    }

    /// Returns a signal that says nothing, where there is a flood of them. To take it takes time.
    fn flooded(&self) -> Option<Signal> {
        let (shared, now) = (&self.shared, self.shared.time.now());
        shared.flood.get().filter(|until| now < *until)?;
        shared.world.advance_to(now.checked_add(SIGNAL_TAKES).unwrap_or(now));
        let n = shared.random.borrow_mut().next();
        Some(match n % 4 {
            0 => Signal::PodPending,
            1 => Signal::WorldChanged,
            2 => Signal::RepositoryChanged,
            _ => {
                let body = format!(
                    r#"{{"detail-type":"EC2 Instance State-change Notification","source":"aws.ec2","time":"{now:.0}","detail":{{"instance-id":"i-f{n:016x}","state":"terminated"}}}}"#
                );
                Signal::Message(InterruptionMessage::read(&format!("flood-{n:x}"), &body))
            }
        })
    }

    fn message(&self) -> Option<InterruptionMessage> {
        let now = self.shared.time.now();
        self.shared.queue.borrow_mut().take(now)
    }
}
