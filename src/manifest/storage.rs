//! Storage classes, persistent volumes and claims.

use super::amounts::amount;
use super::collect::{Collected, Named};
use super::decode::{Field, Map};
use super::labels::{Of, label_key, label_value};
use super::meta::Meta;
use super::model::{Severity, VolumeClaim};
use super::podspec::{legacy_zone_term, node_terms};
use crate::pod::{Expression, NodeTerm};
use crate::requirement::{Operator, key};
use crate::storage::{
    Claim, ClaimPhase, EBS_DRIVER, EBS_IN_TREE, PersistentVolume, StorageClass, ebs_zone,
};
use crate::units::Bytes;

const IS_DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// Names the class of a claim in objects older than `storageClassName`.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Reads a `StorageClass`.
pub(super) fn storage_class(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let provisioner = root.need("provisioner").and_then(|field| field.filled());
    let modes = [("WaitForFirstConsumer", true), ("Immediate", false)];
    let waits = root.get("volumeBindingMode").map_or(Some(false), |field| field.choice(&modes));
    let topologies = root.get("allowedTopologies").map(|field| {
        field.items().filter_map(|item| topology_term(&item.map()?)).collect::<Vec<_>>()
    });
    let says_default = |key: &str| meta.annotations.get(key).is_some_and(|text| text == "true");
    let is_default = IS_DEFAULT.into_iter().any(says_default);
    let (Some(provisioner), Some(waits_for_pod)) = (provisioner, waits) else { return };
    let class = StorageClass {
        provisioner: provisioner.into_owned(),
        waits_for_pod,
        allowed_topologies: topologies.unwrap_or_default(),
        is_default,
        created_at: None,
    };
    let named = named("StorageClass", meta.name.clone(), &meta, root);
    into.insert(
        named,
        |all| &mut all.desired.storage_classes,
        (meta.name, class),
        StorageClass::eq,
    );
}

fn topology_term(map: &Map<'_>) -> Option<NodeTerm> {
    let listed = map.need("matchLabelExpressions")?;
    let expression = |item: Field<'_>| {
        let map = item.map()?;
        let key = label_key(&map.need("key")?, Of::Node)?;
        let values = map.need("values")?;
        let values = values.items().filter_map(|value| label_value(&value)).collect();
        Some(Expression { key, operator: Operator::In, values })
    };
    let expressions = listed.items().filter_map(expression).collect();
    Some(NodeTerm { expressions, fields: Vec::new() })
}

/// Reads a `PersistentVolume`.
pub(super) fn volume(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let Some(spec) = root.need("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let terms = spec.get("nodeAffinity").and_then(|field| {
        let affinity = field.map()?;
        let required = affinity.get("required")?;
        let required = required.map()?;
        Some(node_terms(&required.need("nodeSelectorTerms")?))
    });
    let storage_class =
        spec.get("storageClassName").and_then(|field| Some(field.text()?.into_owned()));
    let written = || disk_zone(&spec).or_else(|| legacy_zone_term(&meta.labels));
    let volume = PersistentVolume {
        node_terms: terms.unwrap_or_else(|| written().into_iter().collect()),
        driver: driver(&spec),
        storage_class,
        claim: spec.get("claimRef").and_then(|field| claim_ref(&field.map()?)),
        capacity: spec.get("capacity").and_then(|field| size(&field)),
        access_modes: spec.get("accessModes").map(|field| field.texts()).unwrap_or_default(),
    };
    let named = named("PersistentVolume", meta.name.clone(), &meta, root);
    into.insert(named, |all| &mut all.desired.volumes, (meta.name, volume), PersistentVolume::eq);
}

/// Returns the bytes that a list of amounts says of storage.
fn size(amounts: &Field<'_>) -> Option<i64> {
    let amounts = amounts.map()?;
    let storage = amounts.get("storage")?;
    Some(Bytes::from_quantity(amount(&storage)?).0)
}

/// Returns the CSI driver that attaches a volume.
fn driver(spec: &Map<'_>) -> Option<String> {
    if let Some(csi) = spec.get("csi") {
        return Some(csi.map()?.need("driver")?.filled()?.into_owned());
    }
    spec.get(EBS_IN_TREE).map(|_| EBS_DRIVER.to_owned())
}

/// Returns the term that stands for the zone in the id of a built-in EBS volume.
fn disk_zone(spec: &Map<'_>) -> Option<NodeTerm> {
    let disk = spec.get(EBS_IN_TREE)?;
    let disk = disk.map()?;
    let id = disk.need("volumeID")?.filled()?;
    let values = vec![ebs_zone(&id)?.into()];
    let expression = Expression { key: key::ZONE.into(), operator: Operator::In, values };
    Some(NodeTerm { expressions: vec![expression], fields: Vec::new() })
}

/// Reads which claim a volume is kept for.
fn claim_ref(map: &Map<'_>) -> Option<String> {
    let name = map.get("name")?.filled()?;
    let namespace = map.get("namespace").and_then(|field| field.filled());
    Some(format!("{}/{name}", namespace.as_deref().unwrap_or("default")))
}

/// Reads a `PersistentVolumeClaim`.
pub(super) fn claim(meta: &Meta, root: &Map<'_>, into: &mut Collected) {
    let Some(spec) = root.need("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let text = |key| Some(spec.get(key)?.text()?.into_owned());
    let claim = Claim {
        storage_class: text("storageClassName")
            .or_else(|| meta.annotations.get(CLASS_ANNOTATION).cloned()),
        volume_name: text("volumeName").filter(|name| !name.is_empty()),
        access_modes: spec.get("accessModes").map(|field| field.texts()).unwrap_or_default(),
        request: spec.get("resources").and_then(|field| size(&field.map()?.get("requests")?)),
        phase: ClaimPhase::Pending,
        deleting: false,
    };
    let claim = VolumeClaim { origin: meta.origin.clone(), claim };
    spec.ignore(&["selector", "volumeMode", "dataSource", "dataSourceRef"]);
    spec.ignore(&["volumeAttributesClassName"]);
    spec.finish(Severity::Warning);
    let key = (meta.namespace.clone(), meta.name.clone());
    let full_name = format!("{}/{}", meta.namespace, meta.name);
    let named = named("PersistentVolumeClaim", full_name, meta, root);
    let same = |a: &VolumeClaim, b: &VolumeClaim| a.claim == b.claim;
    into.insert(named, |all| &mut all.desired.claims, (key, claim), same);
}

fn named<'a>(sort: &'static str, name: String, meta: &Meta, root: &'a Map<'a>) -> Named<'a> {
    Named { sort, name, scope: root.field.scope, origin: meta.origin.clone() }
}
