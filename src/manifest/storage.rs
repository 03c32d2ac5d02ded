//! Storage classes, persistent volumes and claims.

use super::collector::{Collector, Definition};
use super::decode::{Field, FieldMap};
use super::labels::{LabelOwner, label_key, label_value, selector};
use super::object_meta::ObjectMeta;
use super::pod_spec::{legacy_zone_term, node_terms};
use super::resource_list::non_negative_quantity;
use crate::model::desired::{Severity, VolumeClaim};
use crate::model::pod::{Expression, NodeTerm};
use crate::model::requirement::{Operator, key};
use crate::model::storage::{
    Claim, ClaimPhase, EBS_DRIVER, EBS_IN_TREE, PersistentVolume, StorageClass, ebs_zone,
};
use crate::model::units::Bytes;

const IS_DEFAULT: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

/// Annotation for the class of a claim or volume in objects older than `storageClassName`.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Reads a `StorageClass`.
pub(super) fn storage_class(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let provisioner = root.required("provisioner").and_then(|field| field.non_empty_text());
    let modes = [("WaitForFirstConsumer", true), ("Immediate", false)];
    let waits = root.get("volumeBindingMode").map_or(Some(false), |field| field.choice(&modes));
    let topologies = root
        .get("allowedTopologies")
        .map(|field| field.items().filter_map(|item| allowed_topology(&item)).collect::<Vec<_>>());
    let says_default = |key: &str| meta.annotations.get(key).is_some_and(|text| text == "true");
    let is_default = IS_DEFAULT.into_iter().any(says_default);
    let (Some(provisioner), Some(waits_for_pod)) = (provisioner, waits) else { return };
    let class = StorageClass {
        provisioner: provisioner.into_owned(),
        wait_for_first_consumer: waits_for_pod,
        allowed_topologies: topologies.unwrap_or_default(),
        is_default,
        created_at: None,
    };
    let definition = definition("StorageClass", meta.name.clone(), &meta, root);
    into.insert(
        definition,
        |all| &mut all.desired.storage_classes,
        meta.name,
        class,
        StorageClass::eq,
    );
}

/// Reads a term of `allowedTopologies`. An API server also accepts values that are no label values;
/// no node matches such a term.
fn allowed_topology(field: &Field<'_>) -> Option<NodeTerm> {
    let read = || topology_term(&field.map()?);
    if field.scope.verbatim {
        Some(field.scope.attempt(read).flatten().unwrap_or_default())
    } else {
        read()
    }
}

fn topology_term(map: &FieldMap<'_>) -> Option<NodeTerm> {
    let listed = map.required("matchLabelExpressions")?;
    let expression = |item: Field<'_>| {
        let map = item.map()?;
        let key = label_key(&map.required("key")?, LabelOwner::Node)?;
        let values = map.required("values")?;
        let values = values.items().filter_map(|value| label_value(&value)).collect();
        Some(Expression { key, operator: Operator::In, values })
    };
    let expressions = listed.items().filter_map(expression).collect();
    Some(NodeTerm { expressions, fields: Vec::new() })
}

/// Reads a `PersistentVolume`.
pub(super) fn volume(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let terms = spec.get("nodeAffinity").and_then(|field| {
        let affinity = field.map()?;
        let required = affinity.get("required")?;
        let required = required.map()?;
        Some(node_terms(&required.required("nodeSelectorTerms")?))
    });
    let storage_class = spec
        .get("storageClassName")
        .and_then(|field| Some(field.text()?.into_owned()))
        .or_else(|| meta.annotations.get(CLASS_ANNOTATION).cloned());
    let written = || disk_zone(&spec).or_else(|| legacy_zone_term(&meta.labels));
    let volume = PersistentVolume {
        labels: meta.labels.clone(),
        node_terms: terms.unwrap_or_else(|| written().into_iter().collect()),
        driver: driver(&spec),
        storage_class,
        claim: spec.get("claimRef").and_then(|field| claim_ref(&field.map()?)),
        capacity: spec.get("capacity").and_then(|field| size(&field)),
        access_modes: spec.get("accessModes").map(|field| field.text_list()).unwrap_or_default(),
    };
    let definition = definition("PersistentVolume", meta.name.clone(), &meta, root);
    into.insert(
        definition,
        |all| &mut all.desired.volumes,
        meta.name,
        volume,
        PersistentVolume::eq,
    );
}

/// Returns the storage bytes of a resource list.
fn size(amounts: &Field<'_>) -> Option<i64> {
    let amounts = amounts.map()?;
    let storage = amounts.get("storage")?;
    Some(Bytes::from_quantity(non_negative_quantity(&storage)?).0)
}

/// Returns the CSI driver that attaches a volume.
fn driver(spec: &FieldMap<'_>) -> Option<String> {
    if let Some(csi) = spec.get("csi") {
        return Some(csi.map()?.required("driver")?.non_empty_text()?.into_owned());
    }
    spec.get(EBS_IN_TREE).map(|_| EBS_DRIVER.to_owned())
}

/// Returns the node selector term for the zone in the id of an in-tree EBS volume.
fn disk_zone(spec: &FieldMap<'_>) -> Option<NodeTerm> {
    let disk = spec.get(EBS_IN_TREE)?;
    let disk = disk.map()?;
    let id = disk.required("volumeID")?.non_empty_text()?;
    let values = vec![ebs_zone(&id)?.into()];
    let expression = Expression { key: key::ZONE.into(), operator: Operator::In, values };
    Some(NodeTerm { expressions: vec![expression], fields: Vec::new() })
}

/// Reads the claim that a volume is reserved for.
fn claim_ref(map: &FieldMap<'_>) -> Option<String> {
    let name = map.get("name")?.non_empty_text()?;
    let namespace = map.get("namespace").and_then(|field| field.non_empty_text());
    Some(format!("{}/{name}", namespace.as_deref().unwrap_or("default")))
}

/// Reads a `PersistentVolumeClaim`.
pub(super) fn claim(meta: &ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let text = |key| Some(spec.get(key)?.text()?.into_owned());
    let claim = Claim {
        storage_class: text("storageClassName")
            .or_else(|| meta.annotations.get(CLASS_ANNOTATION).cloned()),
        volume_name: text("volumeName").filter(|name| !name.is_empty()),
        selector: spec.get("selector").and_then(|field| selector(&field)),
        access_modes: spec.get("accessModes").map(|field| field.text_list()).unwrap_or_default(),
        request: spec.get("resources").and_then(|field| size(&field.map()?.get("requests")?)),
        phase: ClaimPhase::Pending,
        deleting: false,
    };
    let claim = VolumeClaim { origin: meta.origin.clone(), claim };
    spec.ignore(&["volumeMode", "dataSource", "dataSourceRef"]);
    spec.ignore(&["volumeAttributesClassName"]);
    spec.finish(Severity::Warning);
    let key = (meta.namespace.clone(), meta.name.clone());
    let full_name = format!("{}/{}", meta.namespace, meta.name);
    let definition = definition("PersistentVolumeClaim", full_name, meta, root);
    let same = |a: &VolumeClaim, b: &VolumeClaim| a.claim == b.claim;
    into.insert(definition, |all| &mut all.desired.claims, key, claim, same);
}

fn definition<'a>(
    kind: &'static str,
    name: String,
    meta: &ObjectMeta,
    root: &'a FieldMap<'a>,
) -> Definition<'a> {
    Definition { kind, name, scope: root.field.scope, origin: meta.origin.clone() }
}
