//! What the loop needs of the outside beside EC2, Kubernetes and time.

use std::future::Future;
use std::sync::Arc;

use super::event::{Head, Limits, NoCommit, Signal};
use super::kept::Kept;
use crate::catalog::Catalog;
use crate::fleet::Observed;
use crate::fleet::Pod;
use crate::ids::NodeName;
use crate::plan::{Pinned, Plan};
use crate::port::PortError;

/// Makes plans from one commit.
pub trait Planner {
    /// Returns the plan over `world`, at the moment that it was observed.
    fn plan(&self, world: Arc<Observed>, limits: Limits) -> impl Future<Output = Plan>;
    /// Returns what planning again over `world`, pinned to `plan`, makes of it; where it is `running`, only pods count
    /// that there are.
    fn pinned(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        running: bool,
    ) -> impl Future<Output = Pinned>;
    /// Returns what can be had: it tells the labels of what stands in for a launch.
    fn catalog(&self) -> &Catalog;
}

/// The repository.
pub trait Source {
    /// What makes plans from a commit of it.
    type Planner: Planner;
    /// Reads the branch that is followed.
    ///
    /// # Errors
    /// When it cannot be read, with the reason in words; what was read before stays as it was.
    fn head(&self) -> impl Future<Output = Result<(Head, Self::Planner), String>>;
    /// Reads one commit by the name that a head had, wherever the branch is by now.
    ///
    /// # Errors
    /// When there is no such commit, which it says where that is certain, or when it cannot be read, with the reason in
    /// words; outside of Git always, but where the files are still what they were.
    fn commit(&self, commit: &str)
    -> impl Future<Output = Result<(Head, Self::Planner), NoCommit>>;
}

/// Whatever comes from outside unasked, and the lease.
pub trait Signals {
    /// Waits for the next signal. May be dropped and asked again: no signal is lost by that.
    fn next(&self) -> impl Future<Output = Signal>;
    /// Takes a message off its queue.
    ///
    /// # Errors
    /// When the queue does not answer; then the message comes again.
    fn acknowledge(&self, receipt: &str) -> impl Future<Output = Result<(), PortError>>;
    /// Returns whether it is certain that no other replica may write.
    fn may_write(&self) -> bool;
}

/// What the loop keeps in the cluster beside its nodes, and what it tells the scheduler.
pub trait Desk {
    /// Reads what was kept; nothing where nothing was.
    ///
    /// # Errors
    /// When it cannot be read.
    fn recall(&self) -> impl Future<Output = Result<Kept, PortError>>;
    /// Keeps what is to survive.
    ///
    /// # Errors
    /// When it cannot be written.
    fn save(&self, kept: &Kept) -> impl Future<Output = Result<(), PortError>>;
    /// Sets the node that the scheduler tries first for a pod that waits.
    ///
    /// # Errors
    /// When it cannot be written; then the pod goes wherever the scheduler has it.
    fn nominate(&self, pod: &Pod, node: &NodeName) -> impl Future<Output = Result<(), PortError>>;
}
