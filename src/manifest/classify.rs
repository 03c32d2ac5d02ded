//! What a document is: an object of ours, a source of unknown size, or no input.

use super::meta::Place;
use super::yaml::{Node, Value};
use crate::ids::WorkloadKind;

use super::pool::Generation;

/// Objects that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    Workload(WorkloadKind),
    Namespace,
    PriorityClass,
    RuntimeClass,
    LimitRange,
    ResourceQuota,
    DisruptionBudget,
    StorageClass,
    PersistentVolume,
    PersistentVolumeClaim,
    NodePool(Generation),
    NodeClass(Generation),
    Provisioner,
    NodeOverlay,
    NodeTemplate,
    ClusterConfig,
    FargateProfile,
    HorizontalScaler,
    VerticalScaler,
    EventScaler,
    QueueScaler,
    /// Parameters of cluster-proportional-autoscaler.
    Parameters,
    CapacityBuffer,
    PodTemplate,
}

impl Object {
    /// Returns whether such objects live in a namespace.
    pub(super) fn place(self) -> Place {
        match self {
            Self::Workload(_)
            | Self::LimitRange
            | Self::ResourceQuota
            | Self::DisruptionBudget
            | Self::PersistentVolumeClaim
            | Self::FargateProfile
            | Self::HorizontalScaler
            | Self::VerticalScaler
            | Self::EventScaler
            | Self::QueueScaler
            | Self::Parameters
            | Self::CapacityBuffer
            | Self::PodTemplate => Place::Namespaced,
            Self::Namespace
            | Self::PriorityClass
            | Self::RuntimeClass
            | Self::StorageClass
            | Self::PersistentVolume
            | Self::NodePool(_)
            | Self::NodeClass(_)
            | Self::Provisioner
            | Self::NodeOverlay
            | Self::NodeTemplate
            | Self::ClusterConfig => Place::Cluster,
        }
    }
}

/// What a document is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Class {
    /// An object that is read.
    Object(Object),
    /// An object that delivers others, with the reason why its pods are not known unless it is
    /// followed.
    Delivers(Deliverer, &'static str),
    /// Further objects, under `items`.
    List,
    /// A source of workloads whose size is not known, with the reason.
    Unresolved(String),
    /// No input of ours, with the reason.
    Skipped(String),
    /// A Kubernetes object that is no input of ours, by its kind.
    Foreign(String),
    /// An object of ours in a version that no API server serves, with what to write.
    Unserved { message: String, hint: String },
}

/// Objects that deliver others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deliverer {
    /// Of Argo CD.
    Application,
    /// Of Argo CD.
    ApplicationSet,
    /// Of Flux.
    Kustomization,
    /// Of Flux.
    HelmRelease,
}

/// The objects that deliver others.
const DELIVERERS: [(&str, &str, Deliverer, &str); 4] = [
    ("argoproj.io", "Application", Deliverer::Application, "Argo CD renders it elsewhere"),
    ("argoproj.io", "ApplicationSet", Deliverer::ApplicationSet, "Argo CD renders it elsewhere"),
    (
        "helm.toolkit.fluxcd.io",
        "HelmRelease",
        Deliverer::HelmRelease,
        "Flux renders its chart elsewhere",
    ),
    (
        "kustomize.toolkit.fluxcd.io",
        "Kustomization",
        Deliverer::Kustomization,
        "Flux renders it elsewhere",
    ),
];

/// A kind, the group it belongs to, and the versions that are or were served.
struct Served {
    kind: &'static str,
    group: &'static str,
    versions: &'static [&'static str],
    object: fn(&str) -> Object,
}

const fn served(
    group: &'static str,
    versions: &'static [&'static str],
    kind: &'static str,
    object: fn(&str) -> Object,
) -> Served {
    Served { kind, group, versions, object }
}

const SERVED: [Served; 34] = [
    served("apps", &["v1", "v1beta2", "v1beta1"], "Deployment", |_| deployment()),
    served("extensions", &["v1beta1"], "Deployment", |_| deployment()),
    served("apps", &["v1", "v1beta2", "v1beta1"], "StatefulSet", |_| {
        Object::Workload(WorkloadKind::StatefulSet)
    }),
    served("apps", &["v1", "v1beta2"], "DaemonSet", |_| daemon_set()),
    served("extensions", &["v1beta1"], "DaemonSet", |_| daemon_set()),
    served("apps", &["v1", "v1beta2"], "ReplicaSet", |_| replica_set()),
    served("extensions", &["v1beta1"], "ReplicaSet", |_| replica_set()),
    served("", &["v1"], "ReplicationController", |_| {
        Object::Workload(WorkloadKind::ReplicationController)
    }),
    served("batch", &["v1", "v1beta1"], "Job", |_| Object::Workload(WorkloadKind::Job)),
    served("batch", &["v1", "v1beta1", "v2alpha1"], "CronJob", |_| {
        Object::Workload(WorkloadKind::CronJob)
    }),
    served("", &["v1"], "Pod", |_| Object::Workload(WorkloadKind::Pod)),
    served("", &["v1"], "Namespace", |_| Object::Namespace),
    served("", &["v1"], "LimitRange", |_| Object::LimitRange),
    served("", &["v1"], "ResourceQuota", |_| Object::ResourceQuota),
    served("", &["v1"], "PersistentVolume", |_| Object::PersistentVolume),
    served("", &["v1"], "PersistentVolumeClaim", |_| Object::PersistentVolumeClaim),
    served("scheduling.k8s.io", &["v1", "v1beta1", "v1alpha1"], "PriorityClass", |_| {
        Object::PriorityClass
    }),
    served("node.k8s.io", &["v1", "v1beta1", "v1alpha1"], "RuntimeClass", |_| Object::RuntimeClass),
    served("policy", &["v1", "v1beta1"], "PodDisruptionBudget", |_| Object::DisruptionBudget),
    served("storage.k8s.io", &["v1", "v1beta1"], "StorageClass", |_| Object::StorageClass),
    served("karpenter.sh", &["v1", "v1beta1"], "NodePool", |v| Object::NodePool(generation(v))),
    served("karpenter.k8s.aws", &["v1", "v1beta1"], "EC2NodeClass", |v| {
        Object::NodeClass(generation(v))
    }),
    served("karpenter.sh", &["v1alpha5"], "Provisioner", |_| Object::Provisioner),
    served("karpenter.sh", &["v1alpha1"], "NodeOverlay", |_| Object::NodeOverlay),
    served("karpenter.k8s.aws", &["v1alpha1"], "AWSNodeTemplate", |_| Object::NodeTemplate),
    served("eksctl.io", &["v1alpha5"], "ClusterConfig", |_| Object::ClusterConfig),
    served("eks.services.k8s.aws", &["v1alpha1"], "FargateProfile", |_| Object::FargateProfile),
    served("autoscaling", &["v2", "v1", "v2beta2", "v2beta1"], "HorizontalPodAutoscaler", |_| {
        Object::HorizontalScaler
    }),
    served("autoscaling.k8s.io", &["v1", "v1beta2", "v1beta1"], "VerticalPodAutoscaler", |_| {
        Object::VerticalScaler
    }),
    served("keda.sh", &["v1alpha1"], "ScaledObject", |_| Object::EventScaler),
    served("keda.sh", &["v1alpha1"], "ScaledJob", |_| Object::QueueScaler),
    served("argoproj.io", &["v1alpha1"], "Rollout", |_| Object::Workload(WorkloadKind::Rollout)),
    served("autoscaling.x-k8s.io", &["v1beta1", "v1alpha1"], "CapacityBuffer", |_| {
        Object::CapacityBuffer
    }),
    served("", &["v1"], "PodTemplate", |_| Object::PodTemplate),
];

fn deployment() -> Object {
    Object::Workload(WorkloadKind::Deployment)
}

fn daemon_set() -> Object {
    Object::Workload(WorkloadKind::DaemonSet)
}

fn replica_set() -> Object {
    Object::Workload(WorkloadKind::ReplicaSet)
}

fn generation(version: &str) -> Generation {
    if version == "v1" { Generation::V1 } else { Generation::V1beta1 }
}

/// Objects whose pods are made elsewhere, so that their size is not known here.
const UNRESOLVED: [(&str, &str, &str); 2] = [
    ("helm.cattle.io", "HelmChart", "its chart is rendered elsewhere"),
    ("serving.knative.dev", "Service", "Knative decides how many pods there are"),
];

/// Groups of Kubernetes itself that carry no domain.
const BUILT_IN: [&str; 6] = ["", "apps", "batch", "extensions", "autoscaling", "policy"];

/// Returns what the document with this root is.
pub(super) fn classify(root: &Node<'_>) -> Class {
    match &root.value {
        Value::Map(_) => {}
        Value::Seq(_) => return skipped("list at top level"),
        Value::Plain(_) if root.is_null() => return skipped("empty document"),
        Value::Plain(_) | Value::Quoted(_) => return skipped("text at top level"),
        Value::Tagged(..) => return skipped("tagged value at top level"),
    }
    let text = |key| root.get(key).and_then(Node::text).filter(|text| !text.is_empty());
    let Some(kind) = text("kind") else { return skipped("no kind") };
    if kind.contains("{{") {
        return skipped("templated");
    }
    let Some(api_version) = text("apiVersion") else {
        return match SERVED.iter().find(|served| served.kind == kind) {
            Some(served) => unserved(kind, "no apiVersion", served),
            None => skipped("no apiVersion"),
        };
    };
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if !group.contains('.') && !BUILT_IN.contains(&group) {
        return Class::Skipped(format!("apiVersion {}", super::decode::shorten(api_version)));
    }
    classify_kubernetes(root, group, version, kind)
}

fn classify_kubernetes(root: &Node<'_>, group: &str, version: &str, kind: &str) -> Class {
    let of_kind = || SERVED.iter().filter(|served| served.kind == kind);
    if let Some(served) = of_kind().find(|served| served.group == group) {
        if !served.versions.contains(&version) {
            return unserved(kind, &api_version(group, version), served);
        }
        let object = (served.object)(version);
        let encrypted = root.get("sops").is_some();
        return if encrypted { Class::Unresolved(ENCRYPTED.into()) } else { Class::Object(object) };
    }
    if group.is_empty() && kind == "ConfigMap" && scales(root) {
        return Class::Object(Object::Parameters);
    }
    let built_in = BUILT_IN.contains(&group) || group.ends_with(".k8s.io");
    if let Some(served) = of_kind().next().filter(|_| built_in) {
        return unserved(kind, &api_version(group, version), served);
    }
    let delivers = |(of, name, ..): &&(&str, &str, Deliverer, &str)| *of == group && *name == kind;
    if let Some((_, _, deliverer, reason)) = DELIVERERS.iter().find(delivers) {
        return Class::Delivers(*deliverer, reason);
    }
    let known = |(of, name, _): &&(&str, &str, &str)| *of == group && *name == kind;
    if let Some((_, _, reason)) = UNRESOLVED.iter().find(known) {
        return Class::Unresolved((*reason).to_owned());
    }
    if root.get("sops").is_some() {
        return Class::Skipped(ENCRYPTED.to_owned());
    }
    let is_list = kind == "List" || kind.strip_suffix("List").is_some_and(|of| !of.is_empty());
    if is_list && root.get("items").is_some() {
        return Class::List;
    }
    if has_pods(root) {
        return Class::Unresolved(format!(
            "kind {} is not understood",
            super::decode::shorten(kind)
        ));
    }
    Class::Foreign(format!("kind {}", super::decode::shorten(kind)))
}

const ENCRYPTED: &str = "encrypted with SOPS";

/// Returns whether a ConfigMap holds parameters of cluster-proportional-autoscaler.
fn scales(root: &Node<'_>) -> bool {
    let data = root.get("data");
    ["linear", "ladder"].iter().any(|key| data.and_then(|data| data.get(key)).is_some())
}

/// Returns whether the object holds a pod template where controllers keep theirs.
fn has_pods(root: &Node<'_>) -> bool {
    let path = |keys: &[&str]| keys.iter().try_fold(root, |node, key| node.get(key)).is_some();
    path(&["spec", "template", "spec", "containers"])
        || path(&["spec", "jobTemplate", "spec", "template", "spec", "containers"])
}

fn skipped(reason: &str) -> Class {
    Class::Skipped(reason.to_owned())
}

fn api_version(group: &str, version: &str) -> String {
    let joined = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    format!("apiVersion `{}`", super::decode::shorten(&joined))
}

fn unserved(kind: &str, found: &str, served: &Served) -> Class {
    let today = served.versions.first().copied().unwrap_or("v1");
    let right = if served.group.is_empty() {
        today.to_owned()
    } else {
        format!("{}/{today}", served.group)
    };
    Class::Unserved {
        message: format!("has {found}, in which kind {kind} is not served"),
        hint: format!("write apiVersion: {right}"),
    }
}
