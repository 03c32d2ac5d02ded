//! Volumes that one node attaches at a time, in the hands of several pods.

use super::warning;
use crate::demand::Demand;
use crate::ids::WorkloadId;
use crate::manifest::{Desired, Problem, Workload};
use crate::pod::{Volume, VolumeSource};

/// Modes in which several nodes attach a volume.
const SHARED: [&str; 2] = ["ReadWriteMany", "ReadOnlyMany"];

/// Returns a warning for each workload of several pods that mount one claim which only one node
/// attaches: kube-scheduler does not look at that, and pods on any other node never start.
pub(super) fn shared(desired: &Desired, demand: &Demand) -> Vec<Problem> {
    let mut found = Vec::new();
    for group in demand.groups.iter().filter(|group| group.counts.ceiling > 1) {
        let Some(workload) = desired.workloads.get(&group.workload) else { continue };
        let volumes = workload.template.spec.volumes.iter();
        found.extend(volumes.filter_map(|volume| verdict(desired, workload, volume)));
    }
    found
}

fn verdict(desired: &Desired, workload: &Workload, volume: &Volume) -> Option<Problem> {
    let VolumeSource::Claim(name) = &volume.source else { return None };
    let WorkloadId { namespace, kind, .. } = &workload.id;
    let declared = desired.claims.get(&(namespace.clone(), name.clone()))?;
    let modes = &declared.claim.access_modes;
    let is_once = modes.iter().any(|mode| mode == "ReadWriteOnce");
    if !is_once || modes.iter().any(|mode| SHARED.contains(&mode.as_str())) {
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
