//! Inputs limited to existing pods.

use crate::model::desired::{Desired, Scale};
use crate::model::observed::Observed;

/// Returns inputs whose demand consists only of running and pending pods.
///
/// The desired state excludes static pools, scalers, and all workloads except DaemonSets. The
/// observation marks no workload as delivered, so its current pods count.
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
