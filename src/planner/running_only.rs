//! Inputs that are limited to pods that exist.

use crate::model::desired::{Desired, Scale};
use crate::model::observed::Observed;

/// Returns inputs whose demand is the running and pending pods alone.
///
/// Workloads other than DaemonSets, scalers and static pools are left out of the desired state. The
/// observation marks no workload as delivered, so its pods count as they are.
pub(super) fn restrict_to_running(desired: &Desired, observed: &Observed) -> (Desired, Observed) {
    let (mut desired, mut observed) = (desired.clone(), observed.clone());
    desired.workloads.retain(|_, workload| workload.scale == Scale::PerNode);
    desired.scalers.clear();
    desired.pools.retain(|_, pool| pool.replicas.is_none());
    for live in &mut observed.workloads {
        live.delivered = false;
    }
    (desired, observed)
}
