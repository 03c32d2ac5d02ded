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
    RevisionSource, Signal, SignalSource, StateStore, VerifiedCommit,
};
use fleetwright::model::desired::AppliedBy;
use fleetwright::model::ids::{GroupName, InstanceId, NodeName, Uid};
use fleetwright::model::node_annotations::NodeAnnotations;
use fleetwright::model::observed::{
    CordonMark, Instance, Node, NodeClassField, Pod, UnresolvedTerm,
};
use jiff::{SignedDuration, Timestamp};

use super::recorded_calls::Caller;
use super::{APPLY, CallKind, STALENESS, ServedCommitChange, SharedWorld};
use crate::simulation::invariants::is_applied;
use crate::simulation::repository::{SimulatedCommit, SimulatedPlanner};

/// Time that the delivery of a signal takes.
const SIGNAL_TAKES: SignedDuration = SignedDuration::from_millis(5);

fn rejected(verb: &str) -> PortError {
    PortError { effect: CallEffect::NotApplied, ..failed(verb) }
}

fn failed(verb: &str) -> PortError {
    let reason = "RequestLimitExceeded: try again later".to_owned();
    PortError { verb: verb.to_owned(), reason, effect: CallEffect::Unknown }
}

/// The external ports of one replica.
pub(crate) struct Replica {
    pub(crate) number: usize,
    pub(crate) shared: Rc<SharedWorld>,
    /// Pending pods that the replica was notified of.
    pub(crate) notified_pods: RefCell<BTreeSet<Uid>>,
    /// Start of the last complete read of Kubernetes.
    cluster_read_at: Cell<Option<Timestamp>>,
    /// End of the freeze of the pods, and the objects that are returned until then.
    frozen_pods: RefCell<Option<(Timestamp, ClusterObjects)>>,
    /// Start of the last read of each node.
    node_read_at: RefCell<BTreeMap<NodeName, Timestamp>>,
    /// Instances that EC2 has listed to this process.
    listed_instances: RefCell<BTreeSet<InstanceId>>,
    /// True if the last signal to the replica was that it gained the lease.
    pub(crate) is_leader: Cell<bool>,
    /// Last lease holder that the replica was notified of.
    notified_holder: Cell<Option<usize>>,
    /// True if the replica accepts messages.
    pub(crate) accepts_messages: Cell<bool>,
    /// Pending operator requests.
    pub(crate) requests: RefCell<VecDeque<AuthorizedRequest>>,
    /// True if a shutdown is requested.
    pub(crate) shutdown_requested: Cell<bool>,
}

impl Replica {
    /// Returns the ports of a new process.
    #[must_use]
    pub(crate) fn new(number: usize, shared: &Rc<SharedWorld>) -> Self {
        Self {
            number,
            shared: Rc::clone(shared),
            notified_pods: RefCell::default(),
            cluster_read_at: Cell::default(),
            frozen_pods: RefCell::default(),
            node_read_at: RefCell::default(),
            listed_instances: RefCell::default(),
            is_leader: Cell::default(),
            notified_holder: Cell::default(),
            accepts_messages: Cell::default(),
            requests: RefCell::default(),
            shutdown_requested: Cell::default(),
        }
    }

    fn planner(&self, files: Rc<SimulatedCommit>) -> SimulatedPlanner {
        SimulatedPlanner { files, replica: self.number, shared: Rc::clone(&self.shared) }
    }

    async fn read_call(&self, verb: &str) -> Result<(), PortError> {
        let shared = &self.shared;
        shared.reads.set(shared.reads.get() + 1);
        shared.time.sleep(shared.delay()).await;
        if shared.chance(shared.faults.get().reads) { Err(failed(verb)) } else { Ok(()) }
    }

    /// Replaces the pods by earlier ones while the watch is stalled. Returns whether it is.
    fn freeze_pods(&self, objects: &mut ClusterObjects) -> bool {
        let now = self.shared.time.now();
        let mut stuck = self.frozen_pods.borrow_mut();
        if let Some((_, then)) = stuck.as_ref().filter(|(until, _)| now < *until) {
            objects.pods.clone_from(&then.pods);
            for (key, template) in &then.templates {
                objects.templates.entry(key.clone()).or_insert_with(|| Arc::clone(template));
            }
            return true;
        }
        *stuck = None;
        if objects.unread.is_empty() && self.shared.chance(self.shared.faults.get().frozen_pods) {
            *stuck = Some((now.checked_add(STALENESS).unwrap_or(now), objects.clone()));
        }
        false
    }

    /// Waits until a call takes effect. Fails if it is lost or rejected.
    async fn write_call(&self, verb: &str) -> Result<Caller, PortError> {
        let shared = &self.shared;
        let (began, lease) = (shared.time.now(), shared.lease.get());
        let (replica, cluster_read_at) = (self.number, self.cluster_read_at.get());
        let by =
            Caller { replica, began, lease, cluster_read_at, listed_instances: BTreeSet::new() };
        shared.time.sleep(shared.delay()).await;
        if shared.chance(shared.faults.get().lost_calls) {
            return Err(failed(verb));
        }
        if shared.chance(shared.faults.get().writes) {
            return Err(rejected(verb));
        }
        shared.kill.pass().await;
        Ok(by)
    }

    /// Records the termination of an instance, and the time of the last read of its pods.
    fn record_termination(&self, by: Caller, id: &InstanceId) -> Caller {
        let ended = self.shared.ended(id);
        let read =
            ended.node.as_ref().and_then(|node| self.node_read_at.borrow().get(node).copied());
        let by = Caller { cluster_read_at: by.cluster_read_at.max(read), ..by };
        self.shared.note(&by, CallKind::Terminate(ended));
        by
    }

    /// Waits for the reply. Fails if it is lost.
    async fn reply(&self, verb: &str) -> Result<(), PortError> {
        let shared = &self.shared;
        shared.kill.pass().await;
        shared.time.sleep(shared.delay()).await;
        if shared.chance(shared.faults.get().lost_replies) { Err(failed(verb)) } else { Ok(()) }
    }
}

impl Cloud for Replica {
    async fn inventory(&self) -> Result<CloudInventory, PortError> {
        self.read_call("read account").await?;
        let faults = self.shared.faults.get();
        let mut inventory = self.shared.world.inventory().await?;
        if self.shared.chance(faults.stale)
            && let Some((_, then)) = self.shared.stale_instances.borrow().front()
        {
            inventory.instances.clone_from(then);
        }
        if self.shared.chance(faults.partial) {
            inventory.instances.clear();
            inventory.unread.push("the second page was not answered".to_owned());
        }
        if self.shared.chance(faults.unresolved_images) {
            let unread = |words| UnresolvedTerm {
                part: NodeClassField::Image,
                words,
                reason: "no answer".to_owned(),
            };
            let images = std::mem::take(&mut inventory.resolved.images);
            inventory.resolved.unread = images.into_keys().map(unread).collect();
        }
        let listed = inventory.instances.iter().map(|instance| instance.id.clone());
        self.listed_instances.borrow_mut().extend(listed);
        Ok(inventory)
    }

    async fn find_instances(&self, ids: &BTreeSet<InstanceId>) -> Result<Vec<Instance>, PortError> {
        self.read_call("find instances").await?;
        let found = self.shared.world.find_instances(ids).await?;
        self.listed_instances.borrow_mut().extend(found.iter().map(|found| found.id.clone()));
        Ok(found)
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        const VERB: &str = "launch instance";
        let by = self.write_call(VERB).await?;
        let wait = i64::try_from(self.shared.faults.get().launch_seconds).unwrap_or(0);
        self.shared.time.sleep(SignedDuration::from_secs(wait)).await;
        let by = Caller { listed_instances: self.listed_instances.borrow().clone(), ..by };
        let outcome = self.shared.world.launch(request).await?;
        let id = match &outcome {
            LaunchOutcome::Launched(launched) => Some(launched.id.clone()),
            LaunchOutcome::InsufficientCapacity { .. } => None,
        };
        self.shared.note(&by, CallKind::Launch(Box::new(request.clone()), id.clone()));
        self.reply(VERB).await?;
        if let Some(id) = id {
            self.shared.note(&by, CallKind::Launched(id));
        }
        Ok(outcome)
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        let by = self.write_call("raise group").await?;
        let from = self.shared.world.observed().groups.get(group).map_or(0, |g| g.desired);
        self.shared.note(&by, CallKind::Raise { group: group.clone(), from, to: desired });
        self.shared.world.raise_group(group, desired).await?;
        self.shared.kill.pass().await;
        Ok(())
    }

    async fn terminate_member(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "end member of group";
        let by = self.write_call(VERB).await?;
        let by = self.record_termination(by, id);
        self.shared.world.terminate_member(id).await?;
        self.reply(VERB).await?;
        self.shared.note(&by, CallKind::Ended(id.clone()));
        Ok(())
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "terminate instance";
        let by = self.write_call(VERB).await?;
        let by = self.record_termination(by, id);
        self.shared.world.terminate(id).await?;
        self.reply(VERB).await?;
        self.shared.note(&by, CallKind::Ended(id.clone()));
        Ok(())
    }
}

impl Replica {
    /// Cordons a node with `mark`, or uncordons it if there is none.
    async fn write_cordon(
        &self,
        verb: &str,
        node: &Node,
        mark: Option<CordonMark>,
    ) -> Result<CordonOutcome, PortError> {
        let by = self.write_call(verb).await?;
        if self.shared.faults.get().kubernetes_down {
            return Err(failed(verb));
        }
        let ours = self.shared.may_cordon(&node.name, mark.is_some());
        let outcome = match mark {
            Some(mark) => self.shared.world.cordon(node, mark).await?,
            None => self.shared.world.uncordon(node).await?,
        };
        if outcome == CordonOutcome::Written {
            let kind = CallKind::Cordon { node: node.name.clone(), on: mark.is_some(), ours };
            self.shared.note(&by, kind);
        }
        self.reply(verb).await?;
        Ok(outcome)
    }
}

impl Cluster for Replica {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        let began = self.shared.time.now();
        self.read_call("read cluster").await?;
        let faults = self.shared.faults.get();
        if faults.kubernetes_down {
            return Err(failed("read cluster"));
        }
        let mut objects = self.shared.world.objects().await?;
        if self.shared.chance(faults.partial) {
            objects.pods.clear();
            objects.unread.push("pods were not answered".to_owned());
        }
        if faults.lists_no_nodes {
            objects.nodes.clear();
        }
        let is_frozen = self.freeze_pods(&mut objects);
        if objects.unread.is_empty() && !is_frozen {
            self.cluster_read_at.set(Some(began));
        }
        Ok(objects)
    }

    async fn node(&self, name: &NodeName) -> Result<NodeAndPods, PortError> {
        let began = self.shared.time.now();
        self.read_call("read node").await?;
        if self.shared.faults.get().kubernetes_down {
            return Err(failed("read node"));
        }
        let now = self.shared.world.node(name).await?;
        self.node_read_at.borrow_mut().insert(name.clone(), began);
        Ok(now)
    }

    async fn cordon(&self, node: &Node, mark: CordonMark) -> Result<CordonOutcome, PortError> {
        self.write_cordon("cordon node", node, Some(mark)).await
    }

    async fn uncordon(&self, node: &Node) -> Result<CordonOutcome, PortError> {
        self.write_cordon("uncordon node", node, None).await
    }

    async fn open(&self, node: &Node, annotations: &NodeAnnotations) -> Result<(), PortError> {
        const VERB: &str = "open node";
        let by = self.write_call(VERB).await?;
        if self.shared.faults.get().kubernetes_down {
            return Err(failed(VERB));
        }
        self.shared.note(&by, CallKind::Open(node.name.clone()));
        self.shared.world.open(node, annotations).await?;
        self.reply(VERB).await
    }

    async fn nominate(&self, pod: &Pod, node: &NodeName) -> Result<(), PortError> {
        let by = self.write_call("nominate pod").await?;
        self.shared.note(&by, CallKind::Nominate(pod.uid.clone(), node.clone()));
        self.shared.world.nominate(pod, node).await?;
        self.reply("nominate pod").await
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        let by = self.write_call("evict pod").await?;
        if self.shared.faults.get().kubernetes_down {
            return Err(failed("evict pod"));
        }
        self.shared.note(&by, CallKind::Evict(pod.uid.clone(), pod.node.clone()));
        let outcome = self.shared.world.evict(pod).await?;
        self.reply("evict pod").await?;
        Ok(outcome)
    }

    async fn delete_pod(&self, pod: &Pod, grace_seconds: u32) -> Result<(), PortError> {
        const VERB: &str = "delete pod";
        let by = self.write_call(VERB).await?;
        if self.shared.faults.get().kubernetes_down {
            return Err(failed(VERB));
        }
        self.shared.note(&by, CallKind::DeletePod(pod.uid.clone(), pod.node.clone()));
        self.shared.world.delete_pod(pod, grace_seconds).await?;
        self.reply(VERB).await
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        self.write_call("delete node").await?;
        self.shared.world.delete_node(node, uid).await?;
        self.shared.kill.pass().await;
        Ok(())
    }
}

impl RevisionSource for Replica {
    type Planner = SimulatedPlanner;

    async fn read_branch(
        &self,
        _verified: Option<VerifiedCommit>,
    ) -> Result<(Revision, SimulatedPlanner), String> {
        self.shared.time.sleep(self.shared.delay()).await;
        if self.shared.faults.get().repository_down {
            return Err("could not resolve host: git.example.com".to_owned());
        }
        let files = Rc::clone(&self.shared.files.borrow());
        Ok((files.revision(), self.planner(files)))
    }

    async fn read_commit(
        &self,
        commit: &str,
    ) -> Result<(Revision, SimulatedPlanner), RevisionError> {
        self.shared.time.sleep(self.shared.delay()).await;
        let faults = self.shared.faults.get();
        if faults.repository_down
            || faults.commits_by_name > 0 && self.shared.chance(faults.commits_by_name)
        {
            let why = "could not resolve host: git.example.com".to_owned();
            return Err(RevisionError::Unreadable(why));
        }
        let past = self.shared.commits.borrow();
        let gone = self.shared.deleted_commits.borrow();
        let files = past.iter().find(|files| files.name == commit && !gone.contains(commit));
        let files =
            files.ok_or_else(|| RevisionError::NotFound(format!("there is no commit {commit}")))?;
        let files = Rc::clone(files);
        Ok((files.revision(), self.planner(files)))
    }
}

impl StateStore for Replica {
    async fn load(&self) -> Result<PersistedState, PortError> {
        self.read_call("read record").await?;
        Ok(self.shared.persisted_state.borrow().clone())
    }

    async fn save(&self, persisted_state: &PersistedState) -> Result<(), PortError> {
        let by = self.write_call("write record").await?;
        if !self.may_write() {
            return Err(failed("write record"));
        }
        // Only CI writes its receipt.
        self.record_served_commit(&by, persisted_state);
        let applied = self.shared.persisted_state.borrow().ci_apply.clone();
        *self.shared.persisted_state.borrow_mut() =
            PersistedState { ci_apply: applied, ..persisted_state.clone() };
        self.reply("write record").await
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
        let by = self.write_call("acknowledge message").await?;
        let message = self.shared.queue.borrow_mut().remove(receipt);
        let open = message
            .map(|message| self.shared.unhandled_instances(&by, &message))
            .unwrap_or_default();
        self.shared.note(&by, CallKind::Acknowledge(receipt.to_owned(), open));
        self.reply("acknowledge message").await
    }

    fn may_write(&self) -> bool {
        self.shared.holds(self.number)
    }
}

impl Replica {
    /// Records a change of the served commit if CI applies merges.
    fn record_served_commit(&self, by: &Caller, persisted_state: &PersistedState) {
        let merged_by = self.shared.files.borrow().fleet.controller.applied_by;
        if merged_by != AppliedBy::Ci {
            return;
        }
        let before = self.shared.persisted_state.borrow();
        let changed = before
            .served_commit
            .as_ref()
            .zip(persisted_state.served_commit.as_ref())
            .filter(|(a, b)| a != b);
        let Some((from, to)) = changed.map(|(from, to)| (from.clone(), to.clone())) else { return };
        let applied = is_applied(&before, &to);
        let break_glass = before.break_glass.is_some() || persisted_state.break_glass.is_some();
        drop(before);
        let gone = self.shared.deleted_commits.borrow().contains(&from);
        self.shared.note(
            by,
            CallKind::Serves(ServedCommitChange { from, to, applied, break_glass, gone }),
        );
    }

    fn signal(&self) -> Option<Signal> {
        if self.shutdown_requested.take() {
            return Some(Signal::Shutdown);
        }
        let holds = self.may_write();
        // A standby is notified of each new holder.
        let holder = self.shared.lease.get().map(|(by, _)| by);
        let is_new_holder = !holds && holder.is_some() && self.notified_holder.get() != holder;
        self.notified_holder.set(holder.or(self.notified_holder.get()));
        if holds != self.is_leader.get() || is_new_holder {
            self.is_leader.set(holds);
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
        if self.accepts_messages.get()
            && let Some(message) = self.message()
        {
            return Some(Signal::Message(message));
        }
        let view = self.shared.world.view();
        let waits = |pod: &&Pod| pod.is_active() && pod.node.is_none();
        let mut notified_pods = self.notified_pods.borrow_mut();
        let new = view.pods().filter(waits).find(|pod| !notified_pods.contains(&pod.uid));
        if let Some(pod) = new {
            notified_pods.insert(pod.uid.clone());
            return Some(Signal::PodPending);
        }
        drop((notified_pods, view));
        self.flood_signal()
    }

    /// Returns a signal without content during a flood. Its delivery takes time.
    fn flood_signal(&self) -> Option<Signal> {
        let (shared, now) = (&self.shared, self.shared.time.now());
        shared.flood_until.get().filter(|until| now < *until)?;
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
