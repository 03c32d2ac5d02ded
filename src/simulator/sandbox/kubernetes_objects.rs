//! Converts objects of the world to Kubernetes JSON.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::object::format_time;
use super::pod_template;
use crate::model::ids::{Labels, Namespace, WorkloadId, WorkloadKind};
use crate::model::observed::{Instance, Node, Pod, PodPhase};
use crate::model::pod::{PodTemplate, ResourceList, VolumeSource};
use crate::model::storage::{Claim, ClaimPhase, PersistentVolume, StorageClass};
use crate::model::units::Resources;
use crate::simulator::BudgetStatus;
use crate::simulator::state::WorldBudget;

/// Annotation of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Label with the template hash.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// Characters of the template key in names of pod owners, as in pod names.
const HASH_LENGTH: usize = 8;

/// Kubelet version.
const KUBELET: &str = "v1.33.0-embedded";

/// Returns a deterministic UID of an object.
pub(super) fn uid(kind: &str, namespace: &str, name: &str) -> String {
    let digest = hex::encode(Sha256::digest(format!("{kind}/{namespace}/{name}")));
    format!(
        "{}-{}-5{}-8{}-{}",
        &digest[..8],
        &digest[8..12],
        &digest[13..16],
        &digest[17..20],
        &digest[20..32]
    )
}

pub(super) fn to_amounts(resources: &Resources) -> ResourceList {
    let Resources { cpu, memory, ephemeral_storage, pods, extended } = resources;
    let mut amounts = extended.clone();
    amounts.insert("cpu".into(), cpu.0);
    amounts.insert("memory".into(), memory.0);
    amounts.insert("pods".into(), *pods);
    if ephemeral_storage.0 > 0 {
        amounts.insert("ephemeral-storage".into(), ephemeral_storage.0);
    }
    amounts
}

pub(super) fn node(node: &Node, instance: Option<&Instance>) -> Json {
    let Node {
        name,
        uid,
        // The server manages the versions of the object.
        instance: id,
        labels,
        annotations,
        taints,
        capacity,
        allocatable,
        ready,
        was_ready,
        faults,
        unschedulable,
        created_at,
    } = node;
    let mut taints: Vec<Json> = taints.iter().map(|taint| json!(taint)).collect();
    let mirrors = [(*unschedulable, "unschedulable"), (!*ready, "not-ready")];
    taints.extend(mirrors.into_iter().filter(|(is, _)| *is).map(
        |(_, name)| json!({ "key": format!("node.kubernetes.io/{name}"), "effect": "NoSchedule" }),
    ));
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "",
            "lastHeartbeatTime": format_time(*created_at), "lastTransitionTime": format_time(*created_at)
        })
    };
    let (is_ready, reason) = match (*ready, *was_ready) {
        (true, _) => ("True", "KubeletReady"),
        (false, true) => ("Unknown", "NodeStatusUnknown"),
        (false, false) => ("False", "KubeletNotReady"),
    };
    let mut conditions = vec![condition("Ready", is_ready, reason)];
    conditions.extend(faults.iter().map(|fault| condition(fault.condition(), "False", "Fault")));
    let zone = instance.map_or("", |instance| instance.zone.as_str());
    let provider = id.as_ref().map(|id| format!("aws:///{zone}/{id}"));
    let mut spec = json!({});
    for (key, value, is_set) in [
        ("providerID", json!(provider), provider.is_some()),
        ("taints", json!(taints), !taints.is_empty()),
        ("unschedulable", json!(true), *unschedulable),
    ] {
        if is_set {
            spec[key] = value;
        }
    }
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "uid": uid, "labels": labels, "annotations": annotations,
            "creationTimestamp": format_time(*created_at)
        },
        "spec": spec,
        "status": {
            "capacity": pod_template::quantities(&to_amounts(capacity)),
            "allocatable": pod_template::quantities(&to_amounts(allocatable)),
            "conditions": conditions,
            "addresses": [{ "type": "Hostname", "address": name }],
            "nodeInfo": {
                "kubeletVersion": KUBELET, "kubeProxyVersion": "", "operatingSystem": "linux",
                "architecture": labels.get("kubernetes.io/arch"), "osImage": "", "bootID": "",
                "kernelVersion": "", "machineID": "", "systemUUID": "", "containerRuntimeVersion": ""
            }
        }
    })
}

pub(super) fn pod(pod: &Pod, template_spec: &PodTemplate, now: Timestamp) -> Json {
    let mut object = pod_template::template(template_spec, Some(&pod.name));
    object["apiVersion"] = "v1".into();
    object["kind"] = "Pod".into();
    let meta = &mut object["metadata"];
    meta["name"] = json!(pod.name);
    meta["namespace"] = json!(pod.namespace);
    meta["uid"] = json!(pod.uid);
    meta["creationTimestamp"] = format_time(pod.created_at).into();
    if pod.mirror {
        meta["annotations"][MIRROR] = "true".into();
    }
    if let Some(owner) = pod.owner.as_ref().and_then(|owner| pod_owner(owner, &pod.template)) {
        meta["ownerReferences"] = json!([owner.reference()]);
    }
    if template_spec.spec.node_name.is_some() {
        // The author chose the node. A binding leaves no such mark.
        meta["managedFields"] = json!([{
            "manager": "embedded", "operation": "Update", "apiVersion": "v1",
            "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { "f:nodeName": {} } }
        }]);
    }
    set_pod_state(&mut object, pod, now);
    object
}

/// Sets node, phase and deletion mark of a pod.
pub(super) fn set_pod_state(object: &mut Json, pod: &Pod, now: Timestamp) {
    if let Some(node) = &pod.node {
        object["spec"]["nodeName"] = json!(node);
    }
    if pod.terminating && object["metadata"]["deletionTimestamp"].is_null() {
        object["metadata"]["deletionTimestamp"] = format_time(now).into();
        object["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    }
    let (phase, ready) = match pod.phase {
        PodPhase::Pending => ("Pending", false),
        PodPhase::Running => ("Running", true),
        PodPhase::Succeeded => ("Succeeded", false),
        PodPhase::Failed => ("Failed", false),
    };
    let condition =
        |kind: &str, is: bool| json!({ "type": kind, "status": if is { "True" } else { "False" } });
    let scheduled = condition("PodScheduled", pod.node.is_some());
    let granted = pod.granted.iter().map(|(container, amounts)| {
        json!({
            "name": container, "image": "", "imageID": "", "ready": ready, "restartCount": 0,
            "allocatedResources": pod_template::quantities(amounts)
        })
    });
    let granted: Vec<Json> = granted.collect();
    object["status"] = json!({
        "phase": phase, "conditions": [scheduled, condition("Ready", ready)]
    });
    if let Some(at) = pod.ready_at.filter(|_| ready) {
        object["status"]["conditions"][1]["lastTransitionTime"] = format_time(at).into();
    }
    if pod.deletion_cost != 0 {
        object["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"] =
            pod.deletion_cost.to_string().into();
    }
    if let Some(started) = pod.started_at {
        object["status"]["startTime"] = format_time(started).into();
    }
    if !granted.is_empty() {
        object["status"]["containerStatuses"] = granted.into();
    }
}

/// The direct owner of pods with one template.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodOwner {
    pub(super) kind: &'static str,
    pub(super) namespace: Namespace,
    pub(super) name: String,
    /// The owner of this object.
    pub(super) above: Option<WorkloadId>,
}

impl PodOwner {
    fn of_workload(id: &WorkloadId) -> Self {
        let (namespace, name) = (id.namespace.clone(), id.name.to_string());
        Self { kind: id.kind.as_str(), namespace, name, above: None }
    }

    fn reference(&self) -> Json {
        let (namespace, name) = (self.namespace.as_str(), self.name.as_str());
        json!({
            "apiVersion": api_version(self.kind), "kind": self.kind, "name": name,
            "uid": uid(self.kind, namespace, name), "controller": true, "blockOwnerDeletion": true
        })
    }
}

/// Returns the direct owner of pods of a workload: the workload itself, or a `ReplicaSet` or Job of
/// one template.
pub(super) fn pod_owner(owner: &WorkloadId, template: &str) -> Option<PodOwner> {
    let of_template = |kind: &'static str| {
        let hash: String = template.chars().take(HASH_LENGTH).collect();
        (kind, format!("{}-{hash}", owner.name), Some(owner.clone()))
    };
    let (kind, name, above) = match owner.kind {
        WorkloadKind::Deployment | WorkloadKind::Rollout => of_template("ReplicaSet"),
        WorkloadKind::CronJob | WorkloadKind::ScaledJob => of_template("Job"),
        WorkloadKind::StatefulSet
        | WorkloadKind::DaemonSet
        | WorkloadKind::ReplicaSet
        | WorkloadKind::ReplicationController
        | WorkloadKind::Job => (owner.kind.as_str(), owner.name.to_string(), None),
        WorkloadKind::Pod | WorkloadKind::CapacityBuffer => return None,
    };
    Some(PodOwner { kind, namespace: owner.namespace.clone(), name, above })
}

fn api_version(kind: &str) -> &'static str {
    match kind {
        "Job" | "CronJob" => "batch/v1",
        "ReplicationController" => "v1",
        "Rollout" => "argoproj.io/v1alpha1",
        "ScaledJob" => "keda.sh/v1alpha1",
        _ => "apps/v1",
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReplicaCounts {
    pub(super) all: u32,
    pub(super) ready: u32,
    /// Pods of the current template.
    pub(super) updated: u32,
}

/// Returns a workload, or the `ReplicaSet` or Job of one of its templates.
pub(super) fn controller(
    maker: &PodOwner,
    replicas: u32,
    count: ReplicaCounts,
    template_key: &str,
    template: &PodTemplate,
) -> Json {
    let PodOwner { kind, namespace, name, above } = maker;
    let mut pods = pod_template::template(template, None);
    let mut selector = json!({ "matchLabels": template.labels });
    if above.is_some() {
        let hash: String = template_key.chars().take(HASH_LENGTH).collect();
        pods["metadata"]["labels"][TEMPLATE_HASH] = hash.as_str().into();
        selector["matchLabels"][TEMPLATE_HASH] = hash.into();
    }
    let mut spec = json!({ "template": pods, "selector": selector, "replicas": replicas });
    let ReplicaCounts { all, ready, updated } = count;
    let mut status = json!({ "observedGeneration": 1, "replicas": all, "readyReplicas": ready });
    match *kind {
        "DaemonSet" => {
            spec["replicas"].take();
            spec["updateStrategy"] = json!({ "type": "RollingUpdate" });
            status = json!({
                "observedGeneration": 1, "desiredNumberScheduled": all, "numberReady": ready,
                "currentNumberScheduled": all, "numberAvailable": ready, "numberMisscheduled": 0,
                "updatedNumberScheduled": updated
            });
        }
        "Job" => {
            spec = json!({ "template": pods, "parallelism": replicas, "completions": replicas });
            status = json!({ "active": all, "ready": ready });
        }
        "ReplicationController" => spec["selector"] = json!(template.labels),
        "StatefulSet" => {
            spec["volumeClaimTemplates"] = pod_template::claim_templates(&template.spec);
            spec["serviceName"] = name.as_str().into();
            spec["updateStrategy"] = json!({ "type": "RollingUpdate" });
            status["availableReplicas"] = ready.into();
            status["currentReplicas"] = all.into();
            status["updatedReplicas"] = updated.into();
        }
        "Deployment" => {
            spec["strategy"] = json!({
                "type": "RollingUpdate",
                "rollingUpdate": { "maxSurge": "25%", "maxUnavailable": "25%" }
            });
            status["availableReplicas"] = ready.into();
            status["updatedReplicas"] = updated.into();
            status["unavailableReplicas"] = all.saturating_sub(ready).into();
            let is_available = ready >= replicas - replicas / 4;
            let available = if is_available { "True" } else { "False" };
            status["conditions"] = json!([{ "type": "Available", "status": available }]);
        }
        _ => status["availableReplicas"] = ready.into(),
    }
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let mut meta = json!({
        "name": name, "namespace": namespace, "uid": uid(kind, namespace.as_str(), name),
        "generation": 1, "labels": template.labels
    });
    if let Some(above) = above {
        meta["ownerReferences"] = json!([PodOwner::of_workload(above).reference()]);
    }
    json!({
        "apiVersion": api_version(kind), "kind": kind, "metadata": meta, "spec": spec,
        "status": status
    })
}

pub(super) fn budget(status: &BudgetStatus) -> Json {
    let BudgetStatus { budget, expected, healthy, allowed } = status;
    let WorldBudget { namespace, name, selector, min_available, max_unavailable } = budget;
    let mut spec = json!({ "selector": pod_template::selector(selector.as_ref()) });
    for (key, amount) in [("minAvailable", min_available), ("maxUnavailable", max_unavailable)] {
        if let Some(amount) = amount {
            // A percentage is a string, and a count is a number.
            spec[key] = amount.parse::<i64>().map_or_else(|_| json!(amount), Json::from);
        }
    }
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {
            "name": name, "namespace": namespace, "generation": 1,
            "uid": uid("PodDisruptionBudget", namespace.as_str(), name)
        },
        "spec": spec,
        "status": {
            "observedGeneration": 1, "disruptionsAllowed": (*allowed).max(0),
            "currentHealthy": healthy, "desiredHealthy": healthy.saturating_sub(*allowed),
            "expectedPods": expected
        }
    })
}

/// Returns a namespace. `kube-system` has the UID of the cluster.
pub(super) fn namespace(name: &str, labels: &Labels, uid: &str, since: Timestamp) -> Json {
    let mut labels: BTreeMap<String, String> =
        labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": name, "uid": uid, "labels": labels, "creationTimestamp": format_time(since)
        },
        "spec": { "finalizers": ["kubernetes"] }, "status": { "phase": "Active" }
    })
}

pub(super) fn storage_class(name: &str, class: &StorageClass) -> Json {
    let StorageClass {
        provisioner,
        wait_for_first_consumer: waits_for_pod,
        allowed_topologies,
        is_default,
        created_at,
    } = class;
    let mode = if *waits_for_pod { "WaitForFirstConsumer" } else { "Immediate" };
    let term = |term: &crate::model::pod::NodeTerm| {
        let expressions = term.expressions.iter();
        let expressions = expressions.map(|e| json!({ "key": e.key, "values": e.values }));
        json!({ "matchLabelExpressions": expressions.collect::<Vec<_>>() })
    };
    let mut object = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": { "name": name, "uid": uid("StorageClass", "", name) },
        "provisioner": provisioner, "volumeBindingMode": mode
    });
    if let Some(created) = created_at {
        object["metadata"]["creationTimestamp"] = format_time(*created).into();
    }
    if *is_default {
        object["metadata"]["annotations"] =
            json!({ "storageclass.kubernetes.io/is-default-class": "true" });
    }
    if !allowed_topologies.is_empty() {
        object["allowedTopologies"] = allowed_topologies.iter().map(term).collect();
    }
    object
}

pub(super) fn volume(name: &str, volume: &PersistentVolume) -> Json {
    let PersistentVolume {
        labels,
        node_terms,
        driver,
        storage_class,
        claim,
        capacity,
        access_modes,
    } = volume;
    let mut spec = json!({});
    if let Some(bytes) = capacity {
        spec["capacity"] = json!({ "storage": bytes.to_string() });
    }
    if !access_modes.is_empty() {
        spec["accessModes"] = json!(access_modes);
    }
    if !node_terms.is_empty() {
        let terms: Vec<Json> = node_terms.iter().map(pod_template::node_term).collect();
        spec["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": terms } });
    }
    if let Some(driver) = driver {
        spec["csi"] = json!({ "driver": driver, "volumeHandle": name });
    }
    if let Some(class) = storage_class {
        spec["storageClassName"] = class.as_str().into();
    }
    if let Some((namespace, claim)) = claim.as_ref().and_then(|claim| claim.split_once('/')) {
        spec["claimRef"] = json!({
            "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim
        });
    }
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": name, "uid": uid("PersistentVolume", "", name), "labels": labels
        },
        "spec": spec,
        "status": { "phase": if claim.is_some() { "Bound" } else { "Available" } }
    })
}

pub(super) fn claim(namespace: &Namespace, name: &str, claim: &Claim) -> Json {
    let Claim { storage_class, volume_name, selector, access_modes, phase, deleting: _, request } =
        claim;
    let mut spec = json!({});
    if selector.is_some() {
        spec["selector"] = pod_template::selector(selector.as_ref());
    }
    if !access_modes.is_empty() {
        spec["accessModes"] = json!(access_modes);
    }
    if let Some(bytes) = request {
        spec["resources"] = json!({ "requests": { "storage": bytes.to_string() } });
    }
    if let Some(class) = storage_class {
        spec["storageClassName"] = class.as_str().into();
    }
    if let Some(volume) = volume_name {
        spec["volumeName"] = volume.as_str().into();
    }
    let (phase, bound) = match phase {
        ClaimPhase::Pending => ("Pending", false),
        ClaimPhase::Bound => ("Bound", true),
        ClaimPhase::Lost => ("Lost", true),
    };
    let mut object = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name, "namespace": namespace,
            "uid": uid("PersistentVolumeClaim", namespace.as_str(), name)
        },
        "spec": spec, "status": { "phase": phase }
    });
    if bound {
        object["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes" });
    }
    object
}

/// Returns a `CSINode` with attach limits.
pub(super) fn csi_node(name: &str, limits: &BTreeMap<String, u32>) -> Json {
    let drivers = limits.iter().map(|(driver, count)| {
        json!({ "name": driver, "nodeID": name, "allocatable": { "count": count } })
    });
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": { "name": name, "uid": uid("CSINode", "", name) },
        "spec": { "drivers": drivers.collect::<Vec<_>>() }
    })
}

/// Returns a volume attachment.
pub(super) fn attachment(volume: &str, driver: &str, node: &str) -> Json {
    let name = format!("csi-{}", uid("VolumeAttachment", node, volume));
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": { "name": name, "uid": uid("VolumeAttachment", node, volume) },
        "spec": {
            "attacher": driver, "nodeName": node, "source": { "persistentVolumeName": volume }
        },
        "status": { "attached": true }
    })
}

/// Returns the names of the claims of a pod.
pub(super) fn claims_of<'p>(
    template_spec: &'p PodTemplate,
    pod: &'p Pod,
) -> impl Iterator<Item = String> + 'p {
    template_spec.spec.volumes.iter().filter_map(move |volume| match &volume.source {
        VolumeSource::Claim(claim) => Some(claim.clone()),
        VolumeSource::ClaimTemplate(_) => Some(format!("{}-{}", volume.name, pod.name)),
        VolumeSource::EphemeralClaim(_)
        | VolumeSource::HostPath
        | VolumeSource::EmptyDir
        | VolumeSource::Ebs(_)
        | VolumeSource::NetworkDisk(_)
        | VolumeSource::InTree(_)
        | VolumeSource::Other => None,
    })
}
