//! Lint for single-node volumes that several pods mount.

use super::warning;
use crate::demand::{Demand, PodGroup, PodVolume, TopologySource};
use crate::model::desired::{Desired, Problem, Workload};
use crate::model::ids::WorkloadId;
use crate::model::pod::{Volume, VolumeSource};
use crate::model::storage::{csi_driver, is_file_system};

/// Access modes that permit several nodes to attach a volume.
const SHARED: [&str; 2] = ["ReadWriteMany", "ReadOnlyMany"];

/// Returns a warning for each workload with several pods that mount the same single-node claim.
///
/// kube-scheduler ignores the restriction to a single node, so pods on other nodes never start.
pub(super) fn shared_claims(desired: &Desired, demand: &Demand) -> Vec<Problem> {
    let mut found = Vec::new();
    for group in demand.groups.iter().filter(|group| group.counts.ceiling > 1) {
        let Some(workload) = desired.workloads.get(&group.workload) else { continue };
        let volumes = workload.template.spec.volumes.iter();
        found.extend(volumes.filter_map(|volume| check_volume(desired, group, workload, volume)));
    }
    found
}

fn check_volume(
    desired: &Desired,
    group: &PodGroup,
    workload: &Workload,
    volume: &Volume,
) -> Option<Problem> {
    let VolumeSource::Claim(name) = &volume.source else { return None };
    let WorkloadId { namespace, kind, .. } = &workload.id;
    let declared = desired.claims.get(&(namespace.clone(), name.clone()))?;
    let modes = &declared.claim.access_modes;
    let is_once = modes.iter().any(|mode| mode == "ReadWriteOnce");
    if !is_once || modes.iter().any(|mode| SHARED.contains(&mode.as_str())) {
        return None;
    }
    let full_name = format!("{namespace}/{name}");
    let mut mounts = group.shape.volumes.iter().filter(|mount| mount.name == full_name);
    if !mounts.any(|mount| is_attached(desired, mount)) {
        return None;
    }
    let message = format!(
        "its pods share the claim `{name}` ({}), which one node attaches at a time: pods on any \
         other node never start",
        declared.origin
    );
    Some(warning(
        &workload.origin,
        &format!("{kind} {}", workload.id),
        message,
        "give each pod a claim of its own (a StatefulSet), or use a volume that many nodes attach",
    ))
}

/// Returns true if a driver attaches the volume to a node. File systems are mounted over the
/// network, and Kubernetes does not restrict their pods to one node.
fn is_attached(desired: &Desired, mount: &PodVolume) -> bool {
    let class = match &mount.cause {
        TopologySource::Class(name) => desired.storage_classes.get(name),
        TopologySource::Bound | TopologySource::Assumed(_) | TopologySource::Disk => None,
    };
    let driver = class.map(|class| csi_driver(&class.provisioner)).or(mount.driver.as_deref());
    driver.is_some_and(|driver| !is_file_system(driver))
}
