//! Ports of the controller besides EC2, Kubernetes and the clock.

use std::future::Future;
use std::sync::Arc;

use super::event::{PlanScope, PodScope, Revision, RevisionError, Signal};
use super::persisted_state::{PersistedState, VerifiedCommit};
use crate::apply::ports::PortError;
use crate::catalog::Catalog;
use crate::model::observed::Observed;
use crate::plan::{Plan, RevalidatedPlan};

/// Makes plans from one revision.
pub trait RevisionPlanner {
    /// Returns the plan from `world`, at the time of that observation.
    fn plan(&self, world: Arc<Observed>, limits: PlanScope) -> impl Future<Output = Plan>;
    /// Plans from `world` for `pods`, and returns the result if it is the approved `plan`.
    fn reproduce(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        pods: PodScope,
    ) -> impl Future<Output = Option<RevalidatedPlan>>;
    /// Plans from `world` for `pods`, and compares the approved `plan` with the result.
    fn revalidate(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        pods: PodScope,
    ) -> impl Future<Output = RevalidatedPlan>;
    /// Returns the catalog, which provides the labels of fallback offerings.
    fn catalog(&self) -> &Catalog;
}

/// The repository.
pub trait RevisionSource {
    /// Planner of a revision.
    type Planner: RevisionPlanner;
    /// Reads the head of the branch. Where commits must be signed, its signatures lead back to
    /// `verified`.
    ///
    /// # Errors
    /// With the reason, if the branch cannot be read, or if the signatures do not count. Earlier
    /// results stay valid.
    fn read_branch(
        &self,
        verified: Option<VerifiedCommit>,
    ) -> impl Future<Output = Result<(Revision, Self::Planner), String>>;
    /// Reads a revision by its commit, wherever the branch is by now.
    ///
    /// # Errors
    /// With [`RevisionError::NotFound`] if the commit certainly does not exist, else with the
    /// reason. Outside Git always, unless the files are unchanged.
    fn read_commit(
        &self,
        commit: &str,
    ) -> impl Future<Output = Result<(Revision, Self::Planner), RevisionError>>;
}

/// Source of signals, and the lease.
pub trait SignalSource {
    /// Waits for the next signal. Cancel-safe: dropping the future loses no signal.
    fn next(&self) -> impl Future<Output = Signal>;
    /// Deletes a message from its queue.
    ///
    /// # Errors
    /// If the queue does not answer. The message then arrives again.
    fn acknowledge(&self, receipt: &str) -> impl Future<Output = Result<(), PortError>>;
    /// Returns true if it is certain that no other replica may write.
    fn may_write(&self) -> bool;
}

/// Stores the persisted state in the cluster.
pub trait StateStore {
    /// Loads the persisted state; the default if there is none.
    ///
    /// # Errors
    /// If the state cannot be read.
    fn load(&self) -> impl Future<Output = Result<PersistedState, PortError>>;
    /// Persists the state.
    ///
    /// # Errors
    /// If the state cannot be written.
    fn save(&self, persisted: &PersistedState) -> impl Future<Output = Result<(), PortError>>;
}
