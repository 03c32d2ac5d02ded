//! What is asked for where only pods that there are count.

use crate::fleet::Observed;
use crate::manifest::{Desired, Scale};

/// Returns the repository without what it asks for beside the pods that run or wait, and the world in which it
/// does not say which pods are to be: those are there, in pools as they are declared. A static pool makes nothing for them.
pub(super) fn of_what_runs(desired: &Desired, observed: &Observed) -> (Desired, Observed) {
    let (mut desired, mut observed) = (desired.clone(), observed.clone());
    desired.workloads.retain(|_, workload| workload.scale == Scale::PerNode);
    desired.scalers.clear();
    desired.pools.retain(|_, pool| pool.replicas.is_none());
    for live in &mut observed.workloads {
        live.delivered = false;
    }
    (desired, observed)
}
