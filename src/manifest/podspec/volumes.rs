//! Volumes, as far as they bind a pod to a place.

use super::super::decode::{Field, Map};
use crate::pod::{Volume, VolumeSource};
use crate::storage::EBS_IN_TREE;

/// Kinds of volumes that every node can give. Shares over the network are among them: they have no
/// zone. A kind that is not here may be a disk of one zone.
const ANYWHERE: [&str; 13] = [
    "azureFile",
    "cephfs",
    "configMap",
    "downwardAPI",
    "emptyDir",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "image",
    "nfs",
    "projected",
    "quobyte",
    "secret",
];

/// Reads a list of volumes.
pub(super) fn volumes(field: Option<Field<'_>>) -> Vec<Volume> {
    let Some(field) = field else { return Vec::new() };
    field.items().filter_map(|item| volume(&item.map()?)).collect()
}

fn volume(map: &Map<'_>) -> Option<Volume> {
    let name = map.need("name")?.filled()?.into_owned();
    Some(Volume { name, source: source(map)? })
}

fn source(map: &Map<'_>) -> Option<VolumeSource> {
    if let Some(claim) = map.get("persistentVolumeClaim") {
        let name = claim.map()?.need("claimName")?.filled()?.into_owned();
        return Some(VolumeSource::Claim(name));
    }
    if let Some(ephemeral) = map.get("ephemeral") {
        let template = ephemeral.map()?;
        let class = template.need("volumeClaimTemplate").and_then(|f| claim_class(&f));
        return Some(VolumeSource::EphemeralClaim(class));
    }
    // `emptyDir:` without a value is null in YAML, and means no volume source to the API server.
    if map.get("hostPath").is_some() {
        return Some(VolumeSource::HostPath);
    }
    if map.get("emptyDir").is_some() {
        return Some(VolumeSource::EmptyDir);
    }
    if let Some(disk) = map.get(EBS_IN_TREE) {
        return Some(VolumeSource::Ebs(disk.map()?.need("volumeID")?.filled()?.into_owned()));
    }
    Some(own_disk(map).map_or(VolumeSource::Other, |kind| VolumeSource::InTree(kind.to_owned())))
}

/// Returns the kind of a volume that may be a disk of one place.
fn own_disk<'a>(map: &Map<'a>) -> Option<&'a str> {
    let binds = |(key, value): &(&str, Field<'_>)| match *key {
        "name" => false,
        // A driver without a volume of its own makes one wherever the pod is, as for secrets.
        "csi" => value.node.get("volumeHandle").is_some(),
        kind => !value.node.is_null() && !ANYWHERE.contains(&kind),
    };
    map.entries().find(binds).map(|(kind, _)| kind)
}

/// Reads the storage class of a claim or claim template; `None` means the default class.
pub(in super::super) fn claim_class(field: &Field<'_>) -> Option<String> {
    let claim = field.map()?;
    let spec = claim.get("spec")?;
    let spec = spec.map()?;
    Some(spec.get("storageClassName")?.text()?.into_owned())
}
