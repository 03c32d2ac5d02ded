//! Volumes, as far as they bind a pod to a zone.

use super::super::decode::{Field, FieldMap};
use super::super::yaml::YamlNode;
use crate::model::pod::{Volume, VolumeSource};
use crate::model::storage::EBS_IN_TREE;

/// Volume kinds available on every node, shares and disks of a network included: kube-scheduler and
/// Karpenter do not restrict them. Any other kind may be a disk of one zone.
const ANYWHERE: [&str; 19] = [
    "azureFile",
    "cephfs",
    "configMap",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "image",
    "nfs",
    "portworxVolume",
    "projected",
    "quobyte",
    "scaleIO",
    "secret",
    "storageos",
];

/// Reads a list of volumes.
pub(super) fn volumes(field: Option<Field<'_>>) -> Vec<Volume> {
    let Some(field) = field else { return Vec::new() };
    field.items().filter_map(|item| volume(&item.map()?)).collect()
}

fn volume(map: &FieldMap<'_>) -> Option<Volume> {
    let name = map.required("name")?.non_empty_text()?.into_owned();
    Some(Volume { name, source: source(map)? })
}

fn source(map: &FieldMap<'_>) -> Option<VolumeSource> {
    if let Some(claim) = map.get("persistentVolumeClaim") {
        let name = claim.map()?.required("claimName")?.non_empty_text()?.into_owned();
        return Some(VolumeSource::Claim(name));
    }
    if let Some(ephemeral) = map.get("ephemeral") {
        let template = ephemeral.map()?;
        let class = template.required("volumeClaimTemplate").and_then(|f| claim_class(&f));
        return Some(VolumeSource::EphemeralClaim(class));
    }
    // `emptyDir:` without a value is null in YAML, which the API server reads as no volume source.
    if map.get("hostPath").is_some() {
        return Some(VolumeSource::HostPath);
    }
    if map.get("emptyDir").is_some() {
        return Some(VolumeSource::EmptyDir);
    }
    if let Some(disk) = map.get(EBS_IN_TREE) {
        return Some(VolumeSource::Ebs(
            disk.map()?.required("volumeID")?.non_empty_text()?.into_owned(),
        ));
    }
    if let Some(source) = network_disk(map) {
        return Some(source);
    }
    Some(
        zonal_volume_kind(map)
            .map_or(VolumeSource::Other, |kind| VolumeSource::InTree(kind.to_owned())),
    )
}

/// Reads an iSCSI disk or a Ceph block device. kube-scheduler's `VolumeRestrictions` compares them by
/// these names, and permits several pods on one node that only read.
fn network_disk(map: &FieldMap<'_>) -> Option<VolumeSource> {
    let (kind, disk) =
        ["iscsi", "rbd"].into_iter().find_map(|kind| Some((kind, map.get(kind)?)))?;
    let text = |key| disk.node.get(key).and_then(YamlNode::text);
    if text("readOnly") == Some("true") {
        return Some(VolumeSource::Other);
    }
    let name = match kind {
        "iscsi" => text("iqn")?.to_owned(),
        _ => format!("rbd {}/{}", text("pool").unwrap_or("rbd"), text("image")?),
    };
    Some(VolumeSource::NetworkDisk(name))
}

/// Returns the kind of a volume that may be a disk of one zone.
fn zonal_volume_kind<'a>(map: &FieldMap<'a>) -> Option<&'a str> {
    let binds = |(key, value): &(&str, Field<'_>)| match *key {
        "name" => false,
        // A driver without a volume handle creates the volume on the pod's node, as for secrets.
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
