//! The objects of a world as Kubernetes writes them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::object::time;
use super::template;
use crate::fleet::{Instance, Node, Pod, PodPhase};
use crate::ids::{Labels, Namespace, WorkloadId, WorkloadKind, hex};
use crate::pod::{Amounts, PodTemplate, VolumeSource};
use crate::sim::Allowance;
use crate::storage::{Claim, ClaimPhase, PersistentVolume, StorageClass};
use crate::units::Resources;

/// Annotation of a pod that a kubelet made from a file of its node.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Label by which a controller knows the pods of one template.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// Characters of a template's key that the name of what owns its pods shows, as the world's pods do.
const HASH_LENGTH: usize = 8;

/// Version of the kubelets of the world.
const KUBELET: &str = "v1.33.0-embedded";

/// Returns a UID that tells an object from all others of the world, and is always the same.
pub(super) fn uid(kind: &str, namespace: &str, name: &str) -> String {
    let digest = hex(&Sha256::digest(format!("{kind}/{namespace}/{name}")));
    format!(
        "{}-{}-5{}-8{}-{}",
        &digest[..8],
        &digest[8..12],
        &digest[13..16],
        &digest[17..20],
        &digest[20..32]
    )
}

/// Returns amounts by the names that Kubernetes gives them.
fn to_amounts(resources: &Resources) -> Amounts {
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

/// Returns a node.
pub(super) fn node(node: &Node, instance: Option<&Instance>) -> Json {
    let Node {
        name,
        uid,
        // Whoever serves the object counts its versions.
        instance: id,
        labels,
        annotations,
        taints,
        capacity,
        allocatable,
        ready,
        faults,
        unschedulable,
        created_at,
    } = node;
    let mut taints: Vec<Json> = taints.iter().map(|taint| json!(taint)).collect();
    let mirrors = [(*unschedulable, "unschedulable"), (!*ready, "not-ready")];
    taints.extend(mirrors.into_iter().filter(|(is, _)| *is).map(
        |(_, name)| json!({ "key": format!("node.kubernetes.io/{name}"), "effect": "NoSchedule" }),
    ));
    let condition = |kind: &str, is: bool, reason: &str| {
        json!({
            "type": kind, "status": if is { "True" } else { "False" }, "reason": reason, "message": "",
            "lastHeartbeatTime": time(*created_at), "lastTransitionTime": time(*created_at)
        })
    };
    let says = if *ready { "KubeletReady" } else { "KubeletNotReady" };
    let mut conditions = vec![condition("Ready", *ready, says)];
    conditions.extend(faults.iter().map(|fault| condition(fault.condition(), false, "Fault")));
    let zone = instance.map_or("", |instance| instance.zone.as_str());
    let provider = id.as_ref().map(|id| format!("aws:///{zone}/{id}"));
    let mut spec = json!({});
    for (key, value, says) in [
        ("providerID", json!(provider), provider.is_some()),
        ("taints", json!(taints), !taints.is_empty()),
        ("unschedulable", json!(true), *unschedulable),
    ] {
        if says {
            spec[key] = value;
        }
    }
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "uid": uid, "labels": labels, "annotations": annotations,
            "creationTimestamp": time(*created_at)
        },
        "spec": spec,
        "status": {
            "capacity": template::quantities(&to_amounts(capacity)),
            "allocatable": template::quantities(&to_amounts(allocatable)),
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

/// Returns a pod that is made from `template`.
pub(super) fn pod(pod: &Pod, made_from: &PodTemplate, now: Timestamp) -> Json {
    let mut object = template::template(made_from, Some(&pod.name));
    object["apiVersion"] = "v1".into();
    object["kind"] = "Pod".into();
    let meta = &mut object["metadata"];
    meta["name"] = json!(pod.name);
    meta["namespace"] = json!(pod.namespace);
    meta["uid"] = json!(pod.uid);
    meta["creationTimestamp"] = time(pod.created_at).into();
    if pod.mirror {
        meta["annotations"][MIRROR] = "true".into();
    }
    if let Some(owner) = pod.owner.as_ref().and_then(|owner| made_by(owner, &pod.template)) {
        meta["ownerReferences"] = json!([owner.reference()]);
    }
    if made_from.spec.node_name.is_some() {
        // Its maker chose the node; a binding leaves no such mark.
        meta["managedFields"] = json!([{
            "manager": "embedded", "operation": "Update", "apiVersion": "v1",
            "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { "f:nodeName": {} } }
        }]);
    }
    set_state(&mut object, pod, now);
    object
}

/// Sets what becomes of a pod: its node, its phase, and whether it is to go.
pub(super) fn set_state(object: &mut Json, pod: &Pod, now: Timestamp) {
    if let Some(node) = &pod.node {
        object["spec"]["nodeName"] = json!(node);
    }
    if pod.terminating && object["metadata"]["deletionTimestamp"].is_null() {
        object["metadata"]["deletionTimestamp"] = time(now).into();
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
            "allocatedResources": template::quantities(amounts)
        })
    });
    let granted: Vec<Json> = granted.collect();
    object["status"] = json!({
        "phase": phase, "conditions": [scheduled, condition("Ready", ready)]
    });
    if let Some(started) = pod.started_at {
        object["status"]["startTime"] = time(started).into();
    }
    if !granted.is_empty() {
        object["status"]["containerStatuses"] = granted.into();
    }
}

/// What stands right above pods of one template.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Maker {
    pub(super) kind: &'static str,
    pub(super) namespace: Namespace,
    pub(super) name: String,
    /// What owns it in turn.
    pub(super) above: Option<WorkloadId>,
}

impl Maker {
    fn reference(&self) -> Json {
        let (namespace, name) = (self.namespace.as_str(), self.name.as_str());
        json!({
            "apiVersion": api_version(self.kind), "kind": self.kind, "name": name,
            "uid": uid(self.kind, namespace, name), "controller": true, "blockOwnerDeletion": true
        })
    }
}

/// Returns what makes the pods of a workload: itself, or a `ReplicaSet` or Job of one template.
pub(super) fn made_by(owner: &WorkloadId, template: &str) -> Option<Maker> {
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
    Some(Maker { kind, namespace: owner.namespace.clone(), name, above })
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

/// How many pods a controller has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) all: u32,
    pub(super) ready: u32,
}

/// Returns a controller of pods: a workload, or what a workload makes of one template.
pub(super) fn controller(
    maker: &Maker,
    replicas: u32,
    count: Count,
    (key, made_from): (&str, &PodTemplate),
) -> Json {
    let Maker { kind, namespace, name, above } = maker;
    let mut pods = template::template(made_from, None);
    let mut selector = json!({ "matchLabels": made_from.labels });
    if above.is_some() {
        let hash: String = key.chars().take(HASH_LENGTH).collect();
        pods["metadata"]["labels"][TEMPLATE_HASH] = hash.as_str().into();
        selector["matchLabels"][TEMPLATE_HASH] = hash.into();
    }
    let mut spec = json!({ "template": pods, "selector": selector, "replicas": replicas });
    let Count { all, ready } = count;
    let mut status = json!({ "observedGeneration": 1, "replicas": all, "readyReplicas": ready });
    match *kind {
        "DaemonSet" => {
            spec["replicas"].take();
            status = json!({
                "observedGeneration": 1, "desiredNumberScheduled": all, "numberReady": ready,
                "currentNumberScheduled": all, "numberAvailable": ready, "numberMisscheduled": 0,
                "updatedNumberScheduled": all
            });
        }
        "Job" => {
            spec = json!({ "template": pods, "parallelism": replicas, "completions": replicas });
            status = json!({ "active": all, "ready": ready });
        }
        "ReplicationController" => spec["selector"] = json!(made_from.labels),
        "StatefulSet" => {
            spec["volumeClaimTemplates"] = template::claim_templates(&made_from.spec);
            spec["serviceName"] = name.as_str().into();
            status["currentReplicas"] = all.into();
            status["updatedReplicas"] = all.into();
        }
        _ => {
            status["availableReplicas"] = ready.into();
            status["updatedReplicas"] = all.into();
        }
    }
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let mut meta = json!({
        "name": name, "namespace": namespace, "uid": uid(kind, namespace.as_str(), name),
        "generation": 1, "labels": made_from.labels
    });
    if let Some(above) = above {
        let top = Maker {
            kind: above.kind.as_str(),
            namespace: above.namespace.clone(),
            name: above.name.to_string(),
            above: None,
        };
        meta["ownerReferences"] = json!([top.reference()]);
    }
    json!({
        "apiVersion": api_version(kind), "kind": kind, "metadata": meta, "spec": spec,
        "status": status
    })
}

/// Returns a disruption budget with what it allows now.
pub(super) fn budget(budget: &Allowance) -> Json {
    let Allowance {
        namespace,
        name,
        selector,
        min_available,
        max_unavailable,
        expected,
        healthy,
        allowed,
    } = budget;
    let mut spec = json!({ "selector": template::selector(selector.as_ref()) });
    for (key, amount) in [("minAvailable", min_available), ("maxUnavailable", max_unavailable)] {
        if let Some(amount) = amount {
            // A share is text, and a count a number.
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

/// Returns a namespace; `kube-system` has the UID of the cluster.
pub(super) fn namespace(name: &str, labels: &Labels, uid: &str, since: Timestamp) -> Json {
    let mut labels: BTreeMap<String, String> =
        labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": name, "uid": uid, "labels": labels, "creationTimestamp": time(since)
        },
        "spec": { "finalizers": ["kubernetes"] }, "status": { "phase": "Active" }
    })
}

/// Returns a storage class.
pub(super) fn storage_class(name: &str, class: &StorageClass) -> Json {
    let StorageClass { provisioner, waits_for_pod, allowed_topologies, is_default, created_at } =
        class;
    let mode = if *waits_for_pod { "WaitForFirstConsumer" } else { "Immediate" };
    let term = |term: &crate::pod::NodeTerm| {
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
        object["metadata"]["creationTimestamp"] = time(*created).into();
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

/// Returns a volume.
pub(super) fn volume(name: &str, volume: &PersistentVolume) -> Json {
    let PersistentVolume { node_terms, driver, storage_class, claim, capacity, access_modes } =
        volume;
    let mut spec = json!({});
    if let Some(bytes) = capacity {
        spec["capacity"] = json!({ "storage": bytes.to_string() });
    }
    if !access_modes.is_empty() {
        spec["accessModes"] = json!(access_modes);
    }
    if !node_terms.is_empty() {
        let terms: Vec<Json> = node_terms.iter().map(template::node_term).collect();
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
        "metadata": { "name": name, "uid": uid("PersistentVolume", "", name) },
        "spec": spec,
        "status": { "phase": if claim.is_some() { "Bound" } else { "Available" } }
    })
}

/// Returns a claim.
pub(super) fn claim(namespace: &Namespace, name: &str, claim: &Claim) -> Json {
    let Claim { storage_class, volume_name, access_modes, phase, deleting: _, request } = claim;
    let mut spec = json!({});
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

/// Returns what a node can attach.
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

/// Returns a volume that is attached to a node.
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

/// Returns the names of the claims that a pod uses.
pub(super) fn claims_of<'p>(
    made_from: &'p PodTemplate,
    pod: &'p Pod,
) -> impl Iterator<Item = String> + 'p {
    made_from.spec.volumes.iter().filter_map(move |volume| match &volume.source {
        VolumeSource::Claim(claim) => Some(claim.clone()),
        VolumeSource::ClaimTemplate(_) => Some(format!("{}-{}", volume.name, pod.name)),
        VolumeSource::EphemeralClaim(_)
        | VolumeSource::HostPath
        | VolumeSource::EmptyDir
        | VolumeSource::Ebs(_)
        | VolumeSource::InTree(_)
        | VolumeSource::Other => None,
    })
}
