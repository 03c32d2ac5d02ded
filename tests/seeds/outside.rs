//! The outside of one replica: the ports of the world, with faults between.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use fleetwright::fleet::{CordonedFor, Instance, Node, Pod, tag};
use fleetwright::ids::{Address, ChangeId, GroupName, InstanceId, NodeName, PlanId, Uid};
use fleetwright::port::{
    Cloud, Cluster, ClusterObjects, CordonOutcome, EvictOutcome, Fate, Holdings, LaunchOutcome,
    LaunchRequest, PortError,
};
use fleetwright::reconcile::{Desk, Head, Kept, Message, Request, Signal, Signals, Source};
use fleetwright::sim::World;
use jiff::{SignedDuration, Timestamp};

use super::files::{Files, Plans};
use super::random::Random;
use super::time::Time;

/// For how long a lease is held that is not renewed, and how long before its end it no longer counts.
pub(crate) const LEASE: SignedDuration = SignedDuration::from_secs(60);
/// See above.
pub(crate) const LEASE_MARGIN: SignedDuration = SignedDuration::from_secs(20);
/// Who has the lease while CI applies.
pub(crate) const APPLY: usize = usize::MAX;
/// How long a message that was taken and not acknowledged is not shown.
const HIDDEN: SignedDuration = SignedDuration::from_secs(30);

/// What goes wrong, in thousandths of calls; all zero where nothing does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Reads that fail.
    pub(crate) reads: u64,
    /// Reads that give a part.
    pub(crate) partial: u64,
    /// Reads of EC2 that are as old as what EC2 shows late.
    pub(crate) stale: u64,
    /// Writes that fail before anything is done.
    pub(crate) writes: u64,
    /// Writes that are done, and whose reply is lost.
    pub(crate) lost: u64,
    /// Writes that never arrive, of which nobody knows that.
    pub(crate) unheard: u64,
    /// How many seconds it takes to plan, and to plan again.
    pub(crate) thinks: u64,
    /// Whether the repository cannot be read.
    pub(crate) git: bool,
    /// Whether nothing of Kubernetes answers.
    pub(crate) kubernetes: bool,
    /// Whether Kubernetes lists no nodes, as if that were all of them.
    pub(crate) nodeless: bool,
}

/// Something that was asked of EC2 or Kubernetes.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// When.
    pub(crate) at: Timestamp,
    /// By which replica.
    pub(crate) replica: usize,
    /// When it began to ask: a process may stop in between.
    pub(crate) began: Timestamp,
    /// Who held the lease then, and until when.
    pub(crate) lease: Option<(usize, Timestamp)>,
    /// When it last began to read Kubernetes and got all of it.
    pub(crate) looked: Option<Timestamp>,
    /// Machines that EC2 had listed by then, to anybody; of launches alone.
    pub(crate) shown: BTreeSet<InstanceId>,
    /// What.
    pub(crate) what: What,
}

/// A machine that is told to end, as it was then.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    /// Which.
    pub(crate) id: InstanceId,
    /// Whether it carries our tags, and whether it ran.
    pub(crate) ours: bool,
    /// See above.
    pub(crate) runs: bool,
    /// Its node, where one has joined.
    pub(crate) node: Option<NodeName>,
    /// How many pods were to leave it.
    pub(crate) left: usize,
    /// Changes of which the machines were Ready.
    pub(crate) ready: BTreeSet<ChangeId>,
    /// Launches of plans that were needed no more when they were about to be carried out.
    pub(crate) dropped: BTreeSet<(PlanId, Address)>,
}

/// What was asked.
#[derive(Clone)]
pub(crate) enum What {
    /// A launch, and the machine that came of it.
    Launch(Box<LaunchRequest>, Option<InstanceId>),
    /// EC2 has said that it launched a machine.
    Launched(InstanceId),
    /// A machine is to end.
    Terminate(Ended),
    /// EC2 has said that a machine ends.
    Ended(InstanceId),
    /// A group is set to a number.
    Raise {
        /// Which.
        group: GroupName,
        /// What it was set to before, and what it is set to.
        from: u32,
        /// See above.
        to: u32,
    },
    /// A node is cordoned, or no longer.
    Cordon {
        /// Which.
        node: NodeName,
        /// Whether it is cordoned.
        on: bool,
        /// Whether its machine is ours.
        ours: bool,
    },
    /// A pod is to leave.
    Evict(Uid),
    /// A message was taken off the queue; and machines of ours that it was about, and that were neither
    /// cordoned then nor in what is kept.
    Acknowledge(String, Vec<InstanceId>),
}

impl std::fmt::Debug for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Launch(request, end) => {
                let (kind, zone) = (&request.instance_type, &request.zone);
                let end = end.as_ref().map_or("nothing", InstanceId::as_str);
                write!(f, "launches {kind} {zone} {}: {end}", request.capacity_type)
            }
            Self::Terminate(Ended { id, left, .. }) => write!(f, "ends {id}, {left} pods left"),
            Self::Ended(id) => write!(f, "knows that {id} ends"),
            Self::Launched(id) => write!(f, "knows that {id} was launched"),
            Self::Raise { group, from, to } => write!(f, "sets {group} from {from} to {to}"),
            Self::Cordon { node, on: true, .. } => write!(f, "cordons {node}"),
            Self::Cordon { node, on: false, .. } => write!(f, "uncordons {node}"),
            Self::Evict(uid) => write!(f, "evicts {uid}"),
            Self::Acknowledge(receipt, _) => write!(f, "acknowledges {receipt}"),
        }
    }
}

/// What all replicas share.
pub(crate) struct Shared {
    /// The world.
    pub(crate) world: Rc<World>,
    /// Its time.
    pub(crate) time: Rc<Time>,
    /// The repository.
    pub(crate) files: RefCell<Rc<Files>>,
    /// Every commit that there ever was.
    pub(crate) commits: RefCell<Vec<Rc<Files>>>,
    /// What goes wrong.
    pub(crate) faults: Cell<Faults>,
    /// Chance.
    pub(crate) random: RefCell<Random>,
    /// What was asked, in order.
    pub(crate) asked: RefCell<Vec<Asked>>,
    /// Launches of plans that were needed no more when they were about to be carried out.
    pub(crate) dropped: RefCell<BTreeSet<(PlanId, Address)>>,
    /// Machines that EC2 has listed, to anybody.
    shown: RefCell<BTreeSet<InstanceId>>,
    /// How many reads were made.
    pub(crate) reads: Cell<u64>,
    /// What is kept in the cluster.
    pub(crate) kept: RefCell<Kept>,
    /// Messages.
    pub(crate) queue: RefCell<Queue>,
    /// Who holds the lease, and until when.
    pub(crate) lease: Cell<Option<(usize, Timestamp)>>,
    /// Until when there is always another signal.
    pub(crate) flood: Cell<Option<Timestamp>>,
    /// Nodes that a person cordoned who found no mark of ours on them, and has not uncordoned since.
    of_persons: RefCell<BTreeSet<Uid>>,
    /// What EC2 showed a while ago, of ours.
    past: RefCell<VecDeque<(Timestamp, Vec<Instance>)>>,
}

/// A queue: messages by receipt, and in the order in which they are shown.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    bodies: BTreeMap<String, (String, Timestamp)>,
    shown: BTreeSet<(Timestamp, String)>,
}

impl Queue {
    /// Puts a message into it, which is shown from `at` on.
    pub(crate) fn put(&mut self, receipt: &str, body: String, at: Timestamp) {
        self.bodies.insert(receipt.to_owned(), (body, at));
        self.shown.insert((at, receipt.to_owned()));
    }

    /// Returns how many messages it holds.
    pub(crate) fn len(&self) -> usize {
        self.bodies.len()
    }

    fn take(&mut self, now: Timestamp) -> Option<Message> {
        let (at, receipt) = self.shown.first().filter(|(at, _)| *at <= now)?.clone();
        self.shown.pop_first();
        let (body, shown) = self.bodies.get_mut(&receipt)?;
        let message = Message::read(&receipt, body);
        *shown = at.max(now).checked_add(HIDDEN).unwrap_or(Timestamp::MAX);
        self.shown.insert((*shown, receipt));
        Some(message)
    }

    /// Takes a message off, and returns it.
    fn remove(&mut self, receipt: &str) -> Option<Message> {
        let (body, shown) = self.bodies.remove(receipt)?;
        self.shown.remove(&(shown, receipt.to_owned()));
        Some(Message::read(receipt, &body))
    }
}

/// For how long a node is new to whoever looks every half a minute.
const JOINED: SignedDuration = SignedDuration::from_secs(45);

/// How long it takes to hear a signal.
const SIGNAL_TAKES: SignedDuration = SignedDuration::from_millis(5);

/// How old stale reads are.
const STALE: SignedDuration = SignedDuration::from_secs(15);

impl Shared {
    /// Returns what replicas of `world` share.
    #[must_use]
    pub(crate) fn new(world: &Rc<World>, files: &Rc<Files>, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            world: Rc::clone(world),
            time: Time::of(world),
            files: RefCell::new(Rc::clone(files)),
            commits: RefCell::new(vec![Rc::clone(files)]),
            faults: Cell::default(),
            random: RefCell::new(Random::new(seed)),
            asked: RefCell::default(),
            dropped: RefCell::default(),
            shown: RefCell::default(),
            reads: Cell::default(),
            kept: RefCell::default(),
            queue: RefCell::default(),
            lease: Cell::default(),
            flood: Cell::default(),
            of_persons: RefCell::default(),
            past: RefCell::default(),
        })
    }

    /// Remembers what is shown now, for reads that are late.
    pub(crate) fn photograph(&self) {
        let now = self.time.now();
        let mut past = self.past.borrow_mut();
        let cluster = self.world.cluster();
        let view = self.world.view();
        let ours = view.instances().values().filter(|i| i.is_ours(&cluster.name));
        past.push_back((now, ours.cloned().collect()));
        while past.front().is_some_and(|(at, _)| now.duration_since(*at) > STALE) {
            past.pop_front();
        }
    }

    fn chance(&self, permille: u64) -> bool {
        permille > 0 && self.random.borrow_mut().chance(permille)
    }

    fn delay(&self) -> SignedDuration {
        let millis = 20 + self.random.borrow_mut().below(180);
        SignedDuration::from_millis(i64::try_from(millis).unwrap_or(20))
    }

    fn note(&self, by: &By, what: What) {
        let By { replica, began, lease, looked } = *by;
        let at = self.time.now();
        let shown = match &what {
            What::Launch(..) => self.shown.borrow().clone(),
            What::Launched(_)
            | What::Terminate(_)
            | What::Ended(_)
            | What::Raise { .. }
            | What::Cordon { .. }
            | What::Evict(_)
            | What::Acknowledge(..) => BTreeSet::new(),
        };
        self.asked.borrow_mut().push(Asked { at, replica, began, lease, looked, shown, what });
    }

    /// Returns what is to be known of a machine that is told to end.
    fn ended(&self, id: &InstanceId) -> Ended {
        let observed = self.world.observed();
        let instance = observed.instances.get(id);
        let node = observed.node_of(id);
        let on = |pod: &&Pod| {
            pod.is_active()
                && !pod.mirror
                && node.is_some_and(|n| pod.node.as_ref() == Some(&n.name))
        };
        let ready = observed.nodes.values().filter(|node| node.ready);
        let ready = ready.filter_map(|node| observed.instances.get(node.instance.as_ref()?));
        let ready = ready.filter_map(|i| Some(ChangeId::from(i.tags.get(tag::CHANGE)?.as_str())));
        Ended {
            id: id.clone(),
            ours: instance.is_some_and(|i| i.is_ours(&observed.cluster.name) || i.group.is_some()),
            runs: instance.is_some_and(Instance::is_active),
            node: node.map(|node| node.name.clone()),
            left: observed.pods.iter().filter(on).count(),
            ready: ready.collect(),
            dropped: self.dropped.borrow().clone(),
        }
    }

    /// Has a person cordon a node, or uncordon it, as `kubectl` does: marks are left alone.
    pub(crate) fn person_cordons(&self, node: &NodeName, on: bool) {
        let Some(node) = self.world.observed().nodes.remove(node) else { return };
        let mut of_persons = self.of_persons.borrow_mut();
        of_persons.remove(&node.uid);
        if on && node.cordoned_for().is_none() {
            of_persons.insert(node.uid.clone());
        }
        self.world.change_node(&Node { unschedulable: on, ..node });
    }

    /// Has a person take our mark off a node.
    pub(crate) fn person_takes_mark_off(&self, node: &NodeName) {
        let Some(node) = self.world.observed().nodes.remove(node) else { return };
        self.world.change_node(&Node { annotations: BTreeMap::new(), ..node });
    }

    /// Returns whether a node may be cordoned, or uncordoned: its machine is ours, or of a group that is, and whoever
    /// cordoned it was one of us.
    fn may_cordon(&self, node: &NodeName, on: bool) -> bool {
        let observed = self.world.observed();
        let Some(node) = observed.nodes.get(node) else { return false };
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        let ours = instance.is_some_and(|i| i.is_ours(&observed.cluster.name) || i.group.is_some());
        let of_person = node.unschedulable && self.of_persons.borrow().contains(&node.uid);
        ours && !of_person && (on || !node.unschedulable || node.cordoned_for().is_some())
    }

    /// Returns machines of ours that a message has go, and that are neither cordoned nor in what is kept.
    fn open(&self, message: &Message) -> Vec<InstanceId> {
        if !message.kind.takes_away() {
            return Vec::new();
        }
        let observed = self.world.observed();
        let kept = self.kept.borrow();
        let open = |id: &&InstanceId| {
            let instance = observed.instances.get(*id);
            let ours = instance.is_some_and(|i| i.is_active() && i.is_ours(&observed.cluster.name));
            let node = observed.node_of(id);
            // One that has joined only now is cordoned as soon as it is seen.
            let now = self.time.now();
            let new = |node: &Node| now.duration_since(node.created_at) < JOINED;
            let cordoned = node.is_none_or(|node| node.unschedulable || new(node));
            ours && !(cordoned && kept.going.iter().any(|going| going.instance == **id))
        };
        message.instances.iter().filter(open).cloned().collect()
    }

    fn holds(&self, replica: usize) -> bool {
        let now = self.time.now();
        let certain = |until: Timestamp| now < until.checked_sub(LEASE_MARGIN).unwrap_or(until);
        self.lease.get().is_some_and(|(by, until)| by == replica && certain(until))
    }
}

/// Who asks, and what is known of them.
struct By {
    replica: usize,
    began: Timestamp,
    lease: Option<(usize, Timestamp)>,
    looked: Option<Timestamp>,
}

fn turned_away(verb: &str) -> PortError {
    PortError { fate: Fate::TurnedAway, ..broken(verb) }
}

fn broken(verb: &str) -> PortError {
    let reason = "RequestLimitExceeded: try again later".to_owned();
    PortError { verb: verb.to_owned(), reason, fate: Fate::Unknown }
}

/// The outside as one replica sees it.
pub(crate) struct Replica {
    /// Which.
    pub(crate) number: usize,
    /// What it shares with others.
    pub(crate) shared: Rc<Shared>,
    /// Pods that it was told of.
    pub(crate) told: RefCell<BTreeSet<Uid>>,
    /// When it last began to read Kubernetes and got all of it.
    looked: Cell<Option<Timestamp>>,
    /// Whether it was told that it leads.
    pub(crate) leads: Cell<bool>,
    /// Whether it would receive messages.
    pub(crate) takes: Cell<bool>,
    /// What people ask of it.
    pub(crate) requests: RefCell<VecDeque<Request>>,
    /// Whether it is to end.
    pub(crate) ends: Cell<bool>,
}

impl Replica {
    /// Returns the outside of a replica that begins.
    #[must_use]
    pub(crate) fn new(number: usize, shared: &Rc<Shared>) -> Self {
        Self {
            number,
            shared: Rc::clone(shared),
            told: RefCell::default(),
            looked: Cell::default(),
            leads: Cell::default(),
            takes: Cell::default(),
            requests: RefCell::default(),
            ends: Cell::default(),
        }
    }

    async fn reads(&self, verb: &str) -> Result<(), PortError> {
        let shared = &self.shared;
        shared.reads.set(shared.reads.get() + 1);
        shared.time.sleep(shared.delay()).await;
        if shared.chance(shared.faults.get().reads) { Err(broken(verb)) } else { Ok(()) }
    }

    /// Waits for a call to be made; fails where it never arrives.
    async fn writes(&self, verb: &str) -> Result<By, PortError> {
        let shared = &self.shared;
        let (began, lease) = (shared.time.now(), shared.lease.get());
        let by = By { replica: self.number, began, lease, looked: self.looked.get() };
        shared.time.sleep(shared.delay()).await;
        if shared.chance(shared.faults.get().unheard) {
            return Err(broken(verb));
        }
        if shared.chance(shared.faults.get().writes) { Err(turned_away(verb)) } else { Ok(by) }
    }

    /// Waits for the reply; fails where it is lost.
    async fn replies(&self, verb: &str) -> Result<(), PortError> {
        let shared = &self.shared;
        shared.time.sleep(shared.delay()).await;
        if shared.chance(shared.faults.get().lost) { Err(broken(verb)) } else { Ok(()) }
    }
}

impl Cloud for Replica {
    async fn holdings(&self) -> Result<Holdings, PortError> {
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
        let listed = holdings.instances.iter().map(|instance| instance.id.clone());
        self.shared.shown.borrow_mut().extend(listed);
        Ok(holdings)
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        const VERB: &str = "launch instance";
        let by = self.writes(VERB).await?;
        let outcome = self.shared.world.launch(request).await?;
        let id = match &outcome {
            LaunchOutcome::Launched(id) => Some(id.clone()),
            LaunchOutcome::InsufficientCapacity { .. } => None,
        };
        self.shared.note(&by, What::Launch(Box::new(request.clone()), id.clone()));
        self.replies(VERB).await?;
        if let Some(id) = id {
            self.shared.note(&by, What::Launched(id));
        }
        Ok(outcome)
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        let by = self.writes("raise group").await?;
        let from = self.shared.world.observed().groups.get(group).map_or(0, |g| g.desired);
        self.shared.note(&by, What::Raise { group: group.clone(), from, to: desired });
        self.shared.world.raise_group(group, desired).await
    }

    async fn end_member(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "end member of group";
        let by = self.writes(VERB).await?;
        self.shared.note(&by, What::Terminate(self.shared.ended(id)));
        self.shared.world.end_member(id).await?;
        self.replies(VERB).await?;
        self.shared.note(&by, What::Ended(id.clone()));
        Ok(())
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "terminate instance";
        let by = self.writes(VERB).await?;
        self.shared.note(&by, What::Terminate(self.shared.ended(id)));
        self.shared.world.terminate(id).await?;
        self.replies(VERB).await?;
        self.shared.note(&by, What::Ended(id.clone()));
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
        if objects.unread.is_empty() {
            self.looked.set(Some(began));
        }
        Ok(objects)
    }

    async fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonedFor>,
    ) -> Result<CordonOutcome, PortError> {
        let by = self.writes("cordon node").await?;
        if self.shared.faults.get().kubernetes {
            return Err(broken("cordon node"));
        }
        let ours = self.shared.may_cordon(&node.name, mark.is_some());
        let outcome = self.shared.world.cordon(node, mark).await?;
        if outcome == CordonOutcome::Written {
            let what = What::Cordon { node: node.name.clone(), on: mark.is_some(), ours };
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
        self.shared.note(&by, What::Evict(pod.uid.clone()));
        let outcome = self.shared.world.evict(pod).await?;
        self.replies("evict pod").await?;
        Ok(outcome)
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        self.writes("delete node").await?;
        self.shared.world.delete_node(node, uid).await
    }
}

impl Source for Replica {
    type Planner = Plans;

    async fn head(&self) -> Result<(Head, Plans), String> {
        self.shared.time.sleep(self.shared.delay()).await;
        if self.shared.faults.get().git {
            return Err("could not resolve host: git.example.com".to_owned());
        }
        let files = Rc::clone(&self.shared.files.borrow());
        Ok((files.head(), Plans { files, shared: Rc::clone(&self.shared) }))
    }

    async fn commit(&self, commit: &str) -> Result<(Head, Plans), String> {
        self.shared.time.sleep(self.shared.delay()).await;
        if self.shared.faults.get().git {
            return Err("could not resolve host: git.example.com".to_owned());
        }
        let past = self.shared.commits.borrow();
        let files = past.iter().find(|files| files.name == commit);
        let files = files.ok_or_else(|| format!("there is no commit {commit}"))?;
        let (files, shared) = (Rc::clone(files), Rc::clone(&self.shared));
        Ok((files.head(), Plans { files, shared }))
    }
}

impl Desk for Replica {
    async fn recall(&self) -> Result<Kept, PortError> {
        self.reads("read record").await?;
        Ok(self.shared.kept.borrow().clone())
    }

    async fn save(&self, kept: &Kept) -> Result<(), PortError> {
        self.writes("write record").await?;
        if !self.may_write() {
            return Err(broken("write record"));
        }
        // What CI writes is CI's.
        let applied = self.shared.kept.borrow().applied.clone();
        *self.shared.kept.borrow_mut() = Kept { applied, ..kept.clone() };
        self.replies("write record").await
    }

    async fn nominate(&self, _pod: &Pod, _node: &NodeName) -> Result<(), PortError> {
        self.writes("nominate pod").await.map(|_| ())
    }
}

impl Signals for Replica {
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
        self.shared.note(&by, What::Acknowledge(receipt.to_owned(), open));
        self.replies("acknowledge message").await
    }

    fn may_write(&self) -> bool {
        self.shared.holds(self.number)
    }
}

impl Replica {
    fn signal(&self) -> Option<Signal> {
        if self.ends.take() {
            return Some(Signal::Shutdown);
        }
        let holds = self.may_write();
        if holds != self.leads.get() {
            self.leads.set(holds);
            let holder = self.shared.lease.get().map(|(by, _)| format!("replica-{by}"));
            return Some(if holds {
                Signal::Gained
            } else {
                let to_apply = self.shared.lease.get().is_some_and(|(by, _)| by == APPLY);
                Signal::Lost { holder, to_apply }
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
        shared.world.pass(now.checked_add(SIGNAL_TAKES).unwrap_or(now));
        let n = shared.random.borrow_mut().next();
        Some(match n % 4 {
            0 => Signal::PodPending,
            1 => Signal::WorldChanged,
            2 => Signal::Pushed,
            _ => {
                let body = format!(
                    r#"{{"detail-type":"EC2 Instance State-change Notification","source":"aws.ec2","time":"{now:.0}","detail":{{"instance-id":"i-f{n:016x}","state":"terminated"}}}}"#
                );
                Signal::Message(Message::read(&format!("flood-{n:x}"), &body))
            }
        })
    }

    fn message(&self) -> Option<Message> {
        let now = self.shared.time.now();
        self.shared.queue.borrow_mut().take(now)
    }
}
