//! An embedded EC2 and Kubernetes: the ports of production over a seeded world with a virtual clock.
//!
//! This module knows how machines boot, how controllers deliver pods, how a scheduler binds them
//! and how budgets block evictions, each as a small honest model. It knows nothing of plans, and of
//! pools only what eksctl makes of node groups. Invariants: nothing happens without time passing, time passes only in [`Clock::sleep`]
//! (and [`World::settle`]), and the same world with the same calls becomes the same world, byte for
//! byte.
//!
//! A world lives in `DIR/world.json`: a world file like any other, with one more key, `sim`, that
//! readers of world files ignore. It is written at every sleep, whole, by a rename: two writers never
//! interleave, the last one wins. What EC2 was told since is in a journal beside it before the verb
//! returns, so that a run that dies leaves what it launched; [`World::open`] tells EC2 again, which
//! client tokens make harmless. What Kubernetes was told since the last sleep is lost with the run.
//!
//! Simplified, on purpose: a rollout replaces every old pod at once (no surge), a stateful set does
//! not wait for one ordinal before the next and begins with ordinal 0, jobs never finish, and nothing is
//! preempted.
//!
//! [`Clock::sleep`]: crate::port::Clock::sleep

mod budgets;
mod controllers;
mod eksctl;
mod fargate;
mod file;
mod groups;
mod images;
mod journal;
mod ledger;
mod machines;
mod outside;
mod place;
mod ports;
mod state;
mod volumes;

pub use eksctl::eksctl_groups;
pub use file::SimError;
pub use groups::{DeliveredGroup, LaunchTemplate};
pub use ledger::Call;
pub use outside::{Allowance, View, Wanted};
pub use state::{Reported, Unavailable};

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::demand::PodShape;
use crate::fargate::Profile;
use crate::fleet::{ClusterIdentity, Observed};
use crate::ids::{Labels, Namespace, WorkloadId};
use crate::manifest::DisruptionBudget;
use crate::pod::PodTemplate;
use crate::storage::Storage;
use state::State;

/// How long things take, in virtual time.
pub mod delay {
    use jiff::SignedDuration;

    /// From the launch until EC2 calls the instance running.
    pub const RUNNING: SignedDuration = SignedDuration::from_secs(10);
    /// From the launch until the kubelet registers the node.
    pub const REGISTERED: SignedDuration = SignedDuration::from_secs(35);
    /// From the launch until the node is Ready.
    pub const READY: SignedDuration = SignedDuration::from_secs(45);
    /// From the launch until agents have removed the startup taints.
    pub const INITIALIZED: SignedDuration = SignedDuration::from_secs(50);
    /// From the call until a terminated instance is gone.
    pub const TERMINATED: SignedDuration = SignedDuration::from_secs(20);
    /// From the end of an instance until the cloud's node controller removes its node.
    pub const NODE_REMOVED: SignedDuration = SignedDuration::from_secs(30);
    /// How long EC2 shows a terminated instance.
    pub const FORGOTTEN: SignedDuration = SignedDuration::from_hours(1);
    /// How long a client token is remembered, counted from the launch.
    pub const TOKEN: SignedDuration = SignedDuration::from_hours(24);
    /// From what concerns a group until it launches what it lacks.
    pub const GROUP_ACTS: SignedDuration = SignedDuration::from_secs(5);
    /// Between two attempts of a group to launch what cannot be had.
    pub const GROUP_RETRIES: SignedDuration = SignedDuration::from_mins(5);
    /// From something that concerns the scheduler until the scheduler has acted on it.
    pub const SCHEDULED: SignedDuration = SignedDuration::from_secs(1);
    /// From the binding of a pod until it runs.
    pub const POD_RUNNING: SignedDuration = SignedDuration::from_secs(3);
    /// From the eviction or deletion of a pod until it has stopped.
    pub const POD_STOPPED: SignedDuration = SignedDuration::from_secs(5);
}

/// Turns a template into what its pods ask for, with the defaults of the repository.
pub type ShapeOf = Rc<dyn Fn(&Namespace, &PodTemplate) -> PodShape>;

/// What a world that does not exist yet is made from.
#[derive(Debug, Clone)]
pub struct Genesis {
    /// The cluster it is.
    pub cluster: ClusterIdentity,
    /// The moment it begins at.
    pub now: Timestamp,
    /// Decides between equally good nodes, and the names of pods.
    pub seed: u64,
}

/// What a delivery tool brings the world to: everything that the repository declares.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// Workloads; one that was delivered before and is missing here goes.
    pub workloads: BTreeMap<WorkloadId, DeliveredWorkload>,
    /// Disruption budgets.
    pub budgets: Vec<DisruptionBudget>,
    /// Labels of namespaces.
    pub namespaces: BTreeMap<Namespace, Labels>,
    /// Storage classes, volumes and claims; what is bound already stays bound.
    pub storage: Storage,
    /// Node groups; those that the world has stay.
    pub groups: Vec<DeliveredGroup>,
    /// Fargate profiles; those that the world has stay.
    pub fargate_profiles: BTreeMap<String, Profile>,
}

/// One workload of a [`Delivery`]; its id tells its kind, and with that its controller.
#[derive(Debug, Clone)]
pub struct DeliveredWorkload {
    /// How many pods it wants; a `DaemonSet` has one on each node that admits it instead.
    pub replicas: u32,
    /// The number of the first pod of a `StatefulSet`.
    pub first_ordinal: u32,
    /// What its pods are made from.
    pub template: Arc<PodTemplate>,
}

/// A simulated world.
pub struct World {
    state: RefCell<State>,
    /// Where the world is kept; `None`: nowhere.
    path: Option<PathBuf>,
    /// A write that failed where no error could be returned; the next verb reports it.
    unsaved: RefCell<Option<SimError>>,
    ledger: RefCell<Vec<Call>>,
}

impl World {
    /// Opens the world of `dir`; where there is none, makes an empty one and writes it.
    ///
    /// An existing world keeps its own cluster, time and seed. A world file without the key `sim`
    /// (one that `observe` wrote) is taken as the state to begin from.
    ///
    /// # Errors
    /// When the file cannot be read or written, is broken, or is of a newer major version.
    pub fn open(dir: &Path, genesis: &Genesis, shape_of: ShapeOf) -> Result<Self, SimError> {
        let path = dir.join(file::NAME);
        let found = file::load(&path, genesis, &shape_of)?;
        let absent = found.is_none();
        let state = found.unwrap_or_else(|| State::new(genesis, shape_of));
        let world = Self::of(state, Some(path));
        if absent {
            world.save()?;
        }
        Ok(world)
    }

    /// Whether there is a world in `dir`.
    #[must_use]
    pub fn is_kept_in(dir: &Path) -> bool {
        dir.join(file::NAME).exists()
    }

    /// Makes a world that is kept nowhere.
    #[must_use]
    pub fn in_memory(genesis: &Genesis, shape_of: ShapeOf) -> Self {
        Self::of(State::new(genesis, shape_of), None)
    }

    fn of(state: State, path: Option<PathBuf>) -> Self {
        Self {
            state: RefCell::new(state),
            path,
            unsaved: RefCell::new(None),
            ledger: RefCell::new(Vec::new()),
        }
    }

    /// Returns the cluster that the world is.
    #[must_use]
    pub fn cluster(&self) -> ClusterIdentity {
        self.state.borrow().cluster.clone()
    }

    /// Returns everything in the world, instances that are not ours included.
    #[must_use]
    pub fn observed(&self) -> Observed {
        self.state.borrow().observed()
    }

    /// Makes the world's workloads equal to the repository's, as controllers would: pods appear
    /// without a node, or go; nothing is bound before time passes.
    ///
    /// # Errors
    /// When the world cannot be written.
    pub fn deliver(&self, delivery: &Delivery) -> Result<(), SimError> {
        self.state.borrow_mut().deliver(delivery);
        self.save()
    }

    /// Lets time pass until nothing more is about to happen by itself, at most `limit`.
    ///
    /// # Errors
    /// When the world cannot be written.
    pub fn settle(&self, limit: SignedDuration) -> Result<(), SimError> {
        self.state.borrow_mut().settle(limit);
        self.save()
    }

    /// Sets the offerings that have no capacity now; written with the next sleep.
    pub fn set_unavailable(&self, offerings: Vec<Unavailable>) {
        self.state.borrow_mut().unavailable = offerings;
    }

    /// Sets what nodes that register from now on report, where it is not what their launch expected;
    /// written with the next sleep.
    pub fn set_reported(&self, reported: Vec<Reported>) {
        self.state.borrow_mut().reported = reported;
    }

    /// Returns the writing calls made through the ports since the world was opened, in order.
    #[must_use]
    pub fn ledger(&self) -> Vec<Call> {
        self.ledger.borrow().clone()
    }

    /// Writes the world to its file, if it has one.
    ///
    /// # Errors
    /// When the file cannot be written, now or at an earlier sleep.
    pub fn save(&self) -> Result<(), SimError> {
        let Some(path) = &self.path else { return Ok(()) };
        let written = file::store(path, &self.state.borrow());
        // A later write that succeeded holds all that an earlier one failed to write.
        self.unsaved.take();
        written
    }
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
