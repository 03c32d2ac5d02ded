//! An embedded EC2 and Kubernetes: implements the production ports on a seeded world with a virtual
//! clock.
//!
//! This module contains simple models of instance boot, workload controllers, scheduling and
//! disruption budgets. It has no knowledge of plans. Of pools it only uses the node groups that
//! eksctl creates.
//!
//! Invariants: simulated processes advance only with time. Time passes only in [`Clock::sleep`],
//! [`World::settle`] and [`World::advance_to`]. The same world with the same calls has the same
//! result, byte for byte.
//!
//! A world is stored in `DIR/world.json`: a world file with the additional key `sim`, which readers
//! of world files ignore. It is replaced atomically at every sleep. Concurrent writers never
//! interleave, and the last one wins. EC2 calls since then are in a journal, written before the
//! verb returns, so that a crash keeps its launches. [`World::open`] replays the journal, which is
//! idempotent by client tokens. Kubernetes writes since the last sleep are lost in a crash.
//!
//! Deliberate simplifications: a delivered rollout replaces all old pods at once (no surge; see
//! [`World::roll_out`]), a stateful set does not wait for its ordinals and begins with ordinal 0,
//! jobs never finish, and nothing is preempted.
//!
//! [`Clock::sleep`]: crate::apply::ports::Clock::sleep

mod auto_scaling;
mod call_log;
mod controllers;
mod delivery;
mod disruption_budgets;
mod eksctl;
mod external_changes;
mod fargate;
mod images;
mod instance_lifecycle;
mod journal;
mod ports;
mod rolling_update;
#[cfg(feature = "sandbox")]
pub mod sandbox;
mod scheduling;
mod state;
mod volumes;
mod world_file;

pub use auto_scaling::{DeliveredGroup, LaunchTemplate};
pub use call_log::PortCall;
pub use disruption_budgets::BudgetStatus;
pub use eksctl::eksctl_groups;
pub use external_changes::{WorkloadView, WorldView};
pub use rolling_update::RollingUpdate;
pub use state::{OfferingOutage, ReportedResources};
pub use world_file::SimError;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::demand::PodShape;
use crate::model::desired::DisruptionBudget;
use crate::model::fargate::FargateProfile;
use crate::model::ids::{Labels, Namespace, WorkloadId};
use crate::model::job::JobRetries;
use crate::model::observed::{ClusterIdentity, Observed};
use crate::model::pod::PodTemplate;
use crate::model::storage::Storage;
use state::WorldState;

/// Durations of simulated processes, in virtual time.
pub mod delay {
    use jiff::SignedDuration;

    /// Time from the launch until EC2 reports the instance as running.
    pub const RUNNING: SignedDuration = SignedDuration::from_secs(10);
    /// Time from the launch until the kubelet registers the node.
    pub const REGISTERED: SignedDuration = SignedDuration::from_secs(35);
    /// Time from the launch until the node is Ready.
    pub const READY: SignedDuration = SignedDuration::from_secs(45);
    /// Time from the launch until agents have removed the startup taints.
    pub const INITIALIZED: SignedDuration = SignedDuration::from_secs(50);
    /// Time from the call until an instance is terminated.
    pub const TERMINATED: SignedDuration = SignedDuration::from_secs(20);
    /// Time from the termination of an instance until the cloud node controller removes its node.
    pub const NODE_REMOVED: SignedDuration = SignedDuration::from_secs(30);
    /// Time for which EC2 lists a terminated instance.
    pub const FORGOTTEN: SignedDuration = SignedDuration::from_hours(1);
    /// Time for which a client token is remembered, since the launch.
    pub const TOKEN: SignedDuration = SignedDuration::from_hours(24);
    /// Time from a change of a group until it launches missing members.
    pub const GROUP_ACTS: SignedDuration = SignedDuration::from_secs(5);
    /// Retry interval of a group without capacity.
    pub const GROUP_RETRIES: SignedDuration = SignedDuration::from_mins(5);
    /// Time from a relevant change until the scheduler runs.
    pub const SCHEDULED: SignedDuration = SignedDuration::from_secs(1);
    /// Time from the binding of a pod until it runs.
    pub const POD_RUNNING: SignedDuration = SignedDuration::from_secs(3);
    /// Time from the eviction or deletion of a pod until it has stopped.
    pub const POD_STOPPED: SignedDuration = SignedDuration::from_secs(5);
}

/// Converts a template to the shape of its pods, with the defaults of the repository.
pub type ShapeFn = Rc<dyn Fn(&Namespace, &PodTemplate) -> PodShape>;

/// Initial values of a new world.
#[derive(Debug, Clone)]
pub struct WorldInit {
    /// The identity of the cluster.
    pub cluster: ClusterIdentity,
    /// The initial time.
    pub now: Timestamp,
    /// Seed for tie-breaking and pod names.
    pub seed: u64,
}

/// The objects that a delivery tool applies: everything that the repository declares.
#[derive(Debug, Clone, Default)]
pub struct Delivery {
    /// Workloads. A delivered workload that is missing here is deleted.
    pub workloads: BTreeMap<WorkloadId, DeliveredWorkload>,
    /// Failed pods that Jobs survive. Evictions of a Job that is missing here have no effect on it.
    pub job_retries: BTreeMap<WorkloadId, JobRetries>,
    /// Workloads that are not deleted if they are missing here.
    pub retained: BTreeSet<WorkloadId>,
    /// Namespaces in which no workload is deleted.
    pub retaining_namespaces: BTreeSet<Namespace>,
    /// Disruption budgets.
    pub budgets: Vec<DisruptionBudget>,
    /// Labels of namespaces.
    pub namespaces: BTreeMap<Namespace, Labels>,
    /// Storage classes, volumes and claims. Existing bindings stay.
    pub storage: Storage,
    /// Node groups. Existing groups stay.
    pub groups: Vec<DeliveredGroup>,
    /// Fargate profiles. Existing profiles stay.
    pub fargate_profiles: BTreeMap<String, FargateProfile>,
}

/// A workload of a [`Delivery`]. The kind in its ID determines its controller.
#[derive(Debug, Clone)]
pub struct DeliveredWorkload {
    /// Desired replicas. A `DaemonSet` has one pod on each admitting node instead.
    pub replicas: u32,
    /// The first ordinal of a `StatefulSet`.
    pub first_ordinal: u32,
    /// The pod template.
    pub template: Arc<PodTemplate>,
}

/// A simulated world.
pub struct World {
    state: RefCell<WorldState>,
    /// Path of the world file, or `None` for a world in memory.
    path: Option<PathBuf>,
    /// A failed write that no caller could receive. The next verb reports it.
    save_error: RefCell<Option<SimError>>,
    calls: RefCell<Vec<PortCall>>,
}

impl World {
    /// Opens the world of `dir`. A missing world is created and written.
    ///
    /// An existing world keeps its cluster, time and seed. A world file without the key `sim`, as
    /// written by `observe`, becomes the initial state.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or written, is invalid, or has a newer major
    /// version.
    pub fn open(dir: &Path, genesis: &WorldInit, pod_shape: ShapeFn) -> Result<Self, SimError> {
        let path = dir.join(world_file::NAME);
        let found = world_file::load(&path, genesis, &pod_shape)?;
        let absent = found.is_none();
        let state = found.unwrap_or_else(|| WorldState::new(genesis, pod_shape));
        let world = Self::from_state(state, Some(path));
        if absent {
            world.save()?;
        }
        Ok(world)
    }

    /// Returns whether `dir` contains a world.
    pub fn exists_in(dir: &Path) -> bool {
        dir.join(world_file::NAME).exists()
    }

    /// Creates a world in memory.
    pub fn in_memory(genesis: &WorldInit, pod_shape: ShapeFn) -> Self {
        Self::from_state(WorldState::new(genesis, pod_shape), None)
    }

    fn from_state(state: WorldState, path: Option<PathBuf>) -> Self {
        Self {
            state: RefCell::new(state),
            path,
            save_error: RefCell::new(None),
            calls: RefCell::new(Vec::new()),
        }
    }

    /// Returns the identity of the cluster.
    pub fn cluster(&self) -> ClusterIdentity {
        self.state.borrow().cluster.clone()
    }

    /// Returns everything in the world, including foreign instances.
    pub fn observed(&self) -> Observed {
        self.state.borrow().observed()
    }

    /// Makes the workloads of the world equal to those of the repository, as controllers would.
    /// Pods are created pending, or deleted. Nothing is bound before time passes.
    ///
    /// # Errors
    /// Returns an error if the world cannot be written.
    pub fn deliver(&self, delivery: &Delivery) -> Result<(), SimError> {
        self.state.borrow_mut().deliver(delivery);
        self.save()
    }

    /// Creates the missing node groups, as eksctl does: lets time pass until their members have
    /// joined, at most `limit`. Without a missing group, nothing happens.
    ///
    /// # Errors
    /// Returns an error if the world cannot be written.
    pub fn create_groups(
        &self,
        groups: &[DeliveredGroup],
        limit: SignedDuration,
    ) -> Result<(), SimError> {
        let missing = self.state.borrow().missing_groups(groups);
        if !missing.is_empty() {
            self.state.borrow_mut().deliver_groups(&missing);
            self.settle(limit)?;
        }
        Ok(())
    }

    /// Lets time pass until no event is due, at most `limit`.
    ///
    /// # Errors
    /// Returns an error if the world cannot be written.
    pub fn settle(&self, limit: SignedDuration) -> Result<(), SimError> {
        self.state.borrow_mut().settle(limit);
        self.save()
    }

    /// Sets the offerings without capacity. They are saved with the next sleep.
    pub fn set_unavailable(&self, offerings: Vec<OfferingOutage>) {
        self.state.borrow_mut().unavailable = offerings;
    }

    /// Sets the resources that new nodes report, if they differ from the expected ones. They are
    /// saved with the next sleep.
    pub fn set_reported(&self, reported: Vec<ReportedResources>) {
        self.state.borrow_mut().reported = reported;
    }

    /// Returns the writing calls through the ports since the world was opened, in order.
    pub fn calls(&self) -> Vec<PortCall> {
        self.calls.borrow().clone()
    }

    /// Writes the world to its file, if it has one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, now or at an earlier sleep.
    pub fn save(&self) -> Result<(), SimError> {
        let Some(path) = &self.path else { return Ok(()) };
        let written = world_file::store(path, &self.state.borrow());
        // A successful write includes everything that an earlier one failed to write.
        self.save_error.take();
        written
    }
}

#[cfg(test)]
mod tests;
