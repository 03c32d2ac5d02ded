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

use fleetwright::controller::PersistedState;
use fleetwright::model::ids::{NodeName, Uid};
use fleetwright::model::observed::{Instance, Node};
use fleetwright::simulator::World;
use jiff::{SignedDuration, Timestamp};

use super::random::Random;
use super::repository::SimulatedCommit;
use super::virtual_time::VirtualTime;

/// For how long a lease is held that is not renewed, and how long before its end it no longer counts.
pub(crate) const LEASE: SignedDuration = SignedDuration::from_secs(60);
/// See above.
pub(crate) const LEASE_MARGIN: SignedDuration = SignedDuration::from_secs(20);
/// Who has the lease while CI applies.
pub(crate) const APPLY: usize = usize::MAX;

/// What goes wrong, in thousandths of calls; all zero where nothing does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Reads that fail.
    pub(crate) reads: u64,
    /// Reads that give a part.
    pub(crate) partial: u64,
    /// Reads of EC2 that are as old as what EC2 shows late.
    pub(crate) stale: u64,
    /// Reads after which the pods of Kubernetes stand still for a while, as where a watch says nothing.
    pub(crate) sticks: u64,
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
    /// Reads of commits by their names that fail.
    pub(crate) named: u64,
    /// Whether nothing of Kubernetes answers.
    pub(crate) kubernetes: bool,
    /// Whether Kubernetes lists no nodes, as if that were all of them.
    pub(crate) nodeless: bool,
    /// Reads that do not tell what the images of node classes are.
    pub(crate) images: u64,
}

/// What all replicas share.
pub(crate) struct SharedWorld {
    /// The world.
    pub(crate) world: Rc<World>,
    /// Its time.
    pub(crate) time: Rc<VirtualTime>,
    /// The repository.
    pub(crate) files: RefCell<Rc<SimulatedCommit>>,
    /// Every commit that there ever was.
    pub(crate) commits: RefCell<Vec<Rc<SimulatedCommit>>>,
    /// Those of them that the repository has no more.
    pub(crate) gone: RefCell<BTreeSet<String>>,
    /// What goes wrong.
    pub(crate) faults: Cell<Faults>,
    /// Chance.
    pub(crate) random: RefCell<Random>,
    /// What was asked, in order.
    pub(crate) asked: RefCell<Vec<RecordedCall>>,
    /// How many reads were made.
    pub(crate) reads: Cell<u64>,
    /// What is kept in the cluster.
    pub(crate) kept: RefCell<PersistedState>,
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

/// How old stale reads are.
const STALE: SignedDuration = SignedDuration::from_secs(15);

impl SharedWorld {
    /// Returns what replicas of `world` share.
    #[must_use]
    pub(crate) fn new(world: &Rc<World>, files: &Rc<SimulatedCommit>, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            world: Rc::clone(world),
            time: VirtualTime::of(world),
            files: RefCell::new(Rc::clone(files)),
            commits: RefCell::new(vec![Rc::clone(files)]),
            gone: RefCell::default(),
            faults: Cell::default(),
            random: RefCell::new(Random::new(seed)),
            asked: RefCell::default(),
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
        let ours = view.instances().values().filter(|i| i.is_managed_by(&cluster.name));
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

    /// Has a person cordon a node, or uncordon it, as `kubectl` does: marks are left alone.
    pub(crate) fn person_cordons(&self, node: &NodeName, on: bool) {
        let Some(node) = self.world.observed().nodes.remove(node) else { return };
        let mut of_persons = self.of_persons.borrow_mut();
        of_persons.remove(&node.uid);
        if on && node.cordon_reason().is_none() {
            of_persons.insert(node.uid.clone());
        }
        self.world.update_node(&Node { unschedulable: on, ..node });
    }

    /// Has a person take our mark off a node.
    pub(crate) fn person_takes_mark_off(&self, node: &NodeName) {
        let Some(node) = self.world.observed().nodes.remove(node) else { return };
        self.world.update_node(&Node { annotations: BTreeMap::new(), ..node });
    }

    /// Returns whether a node stands as a person has cordoned it.
    pub(crate) fn is_cordoned_by_person(&self, node: &Node) -> bool {
        node.unschedulable && self.of_persons.borrow().contains(&node.uid)
    }

    fn holds(&self, replica: usize) -> bool {
        let now = self.time.now();
        let certain = |until: Timestamp| now < until.checked_sub(LEASE_MARGIN).unwrap_or(until);
        self.lease.get().is_some_and(|(by, until)| by == replica && certain(until))
    }
}
