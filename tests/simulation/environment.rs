//! The environment that replicas share, and its faults.

mod queue;
mod recorded_calls;
mod replica;

pub(crate) use queue::Queue;
pub(crate) use recorded_calls::{CallKind, RecordedCall, ServedCommitChange, TerminatedInstance};
pub(crate) use replica::Replica;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use fleetwright::controller::PersistedState;
use fleetwright::model::ids::{NodeName, Uid};
use fleetwright::model::observed::{Instance, Node, Observed};
use fleetwright::plan::Plan;
use fleetwright::simulator::World;
use jiff::{SignedDuration, Timestamp};

use super::random::Random;
use super::repository::SimulatedCommit;
use super::virtual_time::VirtualTime;

/// Duration of an unrenewed lease.
pub(crate) const LEASE: SignedDuration = SignedDuration::from_secs(60);
/// Time before its end from which a lease no longer permits writes.
pub(crate) const LEASE_MARGIN: SignedDuration = SignedDuration::from_secs(20);
/// Replica number of the CI apply as lease holder.
pub(crate) const APPLY: usize = usize::MAX;

/// Injected faults, in thousandths of the calls unless stated otherwise. All are zero without
/// faults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Reads that fail.
    pub(crate) reads: u64,
    /// Reads that return only a part.
    pub(crate) partial: u64,
    /// Reads of EC2 that return the instances of [`STALENESS`] ago.
    pub(crate) stale: u64,
    /// Reads after which the pods are frozen for a while, like a stalled watch.
    pub(crate) frozen_pods: u64,
    /// Writes that fail before they take effect.
    pub(crate) writes: u64,
    /// Writes that take effect but lose their reply.
    pub(crate) lost_replies: u64,
    /// Writes that are lost on the way, with an unknown effect for the caller.
    pub(crate) lost_calls: u64,
    /// Seconds that planning takes, and planning again.
    pub(crate) planning_seconds: u64,
    /// Seconds that a launch waits before EC2 takes it, as under a rate limit.
    pub(crate) launch_seconds: u64,
    /// True if the repository cannot be read.
    pub(crate) repository_down: bool,
    /// Reads of a commit by name that fail.
    pub(crate) commits_by_name: u64,
    /// True if no call to Kubernetes succeeds.
    pub(crate) kubernetes_down: bool,
    /// True if Kubernetes lists no nodes and reports the list as complete.
    pub(crate) lists_no_nodes: bool,
    /// Reads that leave the images of the node classes unresolved.
    pub(crate) unresolved_images: u64,
}

/// The moment at which the process is killed. Each write has two: before it takes effect, and after
/// that but before its reply.
#[derive(Debug, Default)]
pub(crate) struct KillPoint {
    /// Number of moments to pass before.
    passes: Cell<Option<u64>>,
    is_reached: Cell<bool>,
}

impl KillPoint {
    /// Kills the process at a later moment.
    pub(crate) fn set(&self, passes: Option<u64>) {
        self.passes.set(passes);
    }

    /// Returns whether the process has to be killed now, once.
    pub(crate) fn take(&self) -> bool {
        self.is_reached.take()
    }

    /// Passes a moment. Never returns if the process is killed at it.
    async fn pass(&self) {
        match self.passes.get() {
            None => {}
            Some(0) => {
                self.passes.set(None);
                self.is_reached.set(true);
                std::future::pending::<()>().await;
            }
            Some(more) => self.passes.set(Some(more - 1)),
        }
    }
}

/// A function that receives each plan of the whole fleet, and the observation that it was made from.
pub(crate) type PlanObserver = Box<dyn FnMut(&Arc<Observed>, &Plan)>;

/// State that all replicas share.
pub(crate) struct SharedWorld {
    pub(crate) world: Rc<World>,
    pub(crate) time: Rc<VirtualTime>,
    /// Commit at the head of the branch.
    pub(crate) files: RefCell<Rc<SimulatedCommit>>,
    /// All commits, including earlier ones.
    pub(crate) commits: RefCell<Vec<Rc<SimulatedCommit>>>,
    /// Names of the commits that the repository no longer has.
    pub(crate) deleted_commits: RefCell<BTreeSet<String>>,
    pub(crate) faults: Cell<Faults>,
    pub(crate) random: RefCell<Random>,
    /// Recorded calls, in order.
    pub(crate) calls: RefCell<Vec<RecordedCall>>,
    /// Number of reads.
    pub(crate) reads: Cell<u64>,
    /// State that the controller persists in the cluster.
    pub(crate) persisted_state: RefCell<PersistedState>,
    pub(crate) queue: RefCell<Queue>,
    /// Holder of the lease, and the end of the lease.
    pub(crate) lease: Cell<Option<(usize, Timestamp)>>,
    /// End of the signal flood.
    pub(crate) flood_until: Cell<Option<Timestamp>>,
    pub(crate) plan_observer: RefCell<Option<PlanObserver>>,
    /// Where the process is killed, if at all.
    pub(crate) kill: KillPoint,
    /// Nodes without our cordon mark that an operator cordoned and has not uncordoned since.
    operator_cordons: RefCell<BTreeSet<Uid>>,
    /// Time at which an operator uncordoned a node.
    operator_uncordons: RefCell<BTreeMap<NodeName, Timestamp>>,
    /// Managed instances as EC2 showed them over the last [`STALENESS`].
    stale_instances: RefCell<VecDeque<(Timestamp, Vec<Instance>)>>,
}

/// Age of stale reads.
const STALENESS: SignedDuration = SignedDuration::from_secs(15);

impl SharedWorld {
    #[must_use]
    pub(crate) fn new(world: &Rc<World>, files: &Rc<SimulatedCommit>, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            world: Rc::clone(world),
            time: VirtualTime::new(world),
            files: RefCell::new(Rc::clone(files)),
            commits: RefCell::new(vec![Rc::clone(files)]),
            deleted_commits: RefCell::default(),
            faults: Cell::default(),
            random: RefCell::new(Random::new(seed)),
            calls: RefCell::default(),
            reads: Cell::default(),
            persisted_state: RefCell::default(),
            queue: RefCell::default(),
            lease: Cell::default(),
            flood_until: Cell::default(),
            plan_observer: RefCell::default(),
            kill: KillPoint::default(),
            operator_cordons: RefCell::default(),
            operator_uncordons: RefCell::default(),
            stale_instances: RefCell::default(),
        })
    }

    /// Records the managed instances for later stale reads.
    pub(crate) fn record_stale_instances(&self) {
        let now = self.time.now();
        let mut past = self.stale_instances.borrow_mut();
        let cluster = self.world.cluster();
        let view = self.world.view();
        let ours = view.instances().values().filter(|i| i.is_managed_by(&cluster.name));
        past.push_back((now, ours.cloned().collect()));
        while past.front().is_some_and(|(at, _)| now.duration_since(*at) > STALENESS) {
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

    /// Cordons or uncordons a node as an operator does with `kubectl`, without a change of its
    /// annotations.
    pub(crate) fn set_operator_cordon(&self, node: &NodeName, on: bool) {
        let Some(node) = self.world.observed().nodes.remove(node) else { return };
        let mut operator_cordons = self.operator_cordons.borrow_mut();
        operator_cordons.remove(&node.uid);
        if on && node.cordon_reason().is_none() {
            operator_cordons.insert(node.uid.clone());
        }
        if !on {
            let now = self.time.now();
            self.operator_uncordons.borrow_mut().insert(node.name.clone(), now);
        }
        self.world.update_node(&Node { unschedulable: on, ..node });
    }

    /// Removes our cordon mark from a node, as an operator would.
    pub(crate) fn remove_cordon_mark(&self, node: &NodeName) {
        let Some(node) = self.world.observed().nodes.remove(node) else { return };
        self.world.update_node(&Node { annotations: BTreeMap::new(), ..node });
    }

    /// Returns whether a node is cordoned by an operator.
    pub(crate) fn is_cordoned_by_operator(&self, node: &Node) -> bool {
        node.unschedulable && self.operator_cordons.borrow().contains(&node.uid)
    }

    fn holds(&self, replica: usize) -> bool {
        let now = self.time.now();
        let certain = |until: Timestamp| now < until.checked_sub(LEASE_MARGIN).unwrap_or(until);
        self.lease.get().is_some_and(|(by, until)| by == replica && certain(until))
    }
}
