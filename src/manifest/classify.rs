//! Classifies a document: an object that is read, a source of unknown size, or not an input.

use std::borrow::Cow;

use super::custom_kinds::{ASSUME, CustomKind, custom_kind};
use super::object_meta::ObjectScope;
use super::yaml::{YamlEntry, YamlNode, YamlValue};
use crate::model::expander_priorities::CONFIG_MAP;
use crate::model::ids::WorkloadKind;
use crate::model::similar_name::most_similar;

use crate::model::desired::{Generation, OTHER_KIND};

/// Kinds of objects that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectKind {
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
    HttpScaler,
    WatermarkScaler,
    /// Parameters of cluster-proportional-autoscaler.
    Parameters,
    /// Priorities of Cluster Autoscaler's expander.
    ExpanderPriorities,
    CapacityBuffer,
    PodTemplate,
    ClaimTemplate,
    DeviceClass,
}

impl ObjectKind {
    /// Returns whether objects of this kind are namespaced.
    pub(super) fn scope(self) -> ObjectScope {
        match self {
            Self::Workload(_)
            | Self::LimitRange
            | Self::ResourceQuota
            | Self::DisruptionBudget
            | Self::PersistentVolumeClaim
            | Self::FargateProfile
            | Self::HorizontalScaler
            | Self::VerticalScaler
            | Self::ExpanderPriorities
            | Self::EventScaler
            | Self::QueueScaler
            | Self::HttpScaler
            | Self::WatermarkScaler
            | Self::Parameters
            | Self::CapacityBuffer
            | Self::ClaimTemplate
            | Self::PodTemplate => ObjectScope::Namespaced,
            Self::Namespace
            | Self::PriorityClass
            | Self::RuntimeClass
            | Self::DeviceClass
            | Self::StorageClass
            | Self::PersistentVolume
            | Self::NodePool(_)
            | Self::NodeClass(_)
            | Self::Provisioner
            | Self::NodeOverlay
            | Self::NodeTemplate
            | Self::ClusterConfig => ObjectScope::Cluster,
        }
    }
}

/// The classification of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DocumentClass {
    /// An object that is read.
    Object(ObjectKind),
    /// An object of Argo CD or Flux that delivers others, with the reason to report if it is not
    /// followed.
    Delivers(DeliveryKind, &'static str),
    /// A list with further objects under `items`.
    List,
    /// A source of workloads of unknown size, with the reason.
    Unresolved(String),
    /// A custom resource whose controller makes pods, with the reason why they are not counted.
    MakesPods(String),
    /// Not an input, with the reason.
    Skipped(String),
    /// A Kubernetes object of a kind that is not an input.
    OtherKind(String),
    /// A custom resource of this kind, whose controller may make pods.
    UnknownKind(String),
    /// A kind, group or version that no API server serves, with a suggestion.
    Unserved { message: String, hint: String },
}

/// Kinds of objects that deliver others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeliveryKind {
    /// Argo CD.
    Application,
    /// Argo CD.
    ApplicationSet,
    /// Flux.
    Kustomization,
    /// Flux.
    HelmRelease,
    /// Flux Operator.
    FluxInstance,
}

/// Group, kind and unresolved reason of the objects that deliver others.
const DELIVERY_KINDS: [(&str, &str, DeliveryKind, &str); 5] = [
    ("argoproj.io", "Application", DeliveryKind::Application, "Argo CD renders it elsewhere"),
    ("argoproj.io", "ApplicationSet", DeliveryKind::ApplicationSet, "Argo CD renders it elsewhere"),
    (
        "helm.toolkit.fluxcd.io",
        "HelmRelease",
        DeliveryKind::HelmRelease,
        "Flux renders its chart elsewhere",
    ),
    (
        "kustomize.toolkit.fluxcd.io",
        "Kustomization",
        DeliveryKind::Kustomization,
        "Flux renders it elsewhere",
    ),
    (
        "fluxcd.controlplane.io",
        "FluxInstance",
        DeliveryKind::FluxInstance,
        "Flux Operator syncs it from elsewhere",
    ),
];

/// A kind, its group, and the versions that are or were served.
struct ServedKind {
    kind: &'static str,
    group: &'static str,
    versions: &'static [&'static str],
    object: fn(&str) -> ObjectKind,
}

const fn served(
    group: &'static str,
    versions: &'static [&'static str],
    kind: &'static str,
    object: fn(&str) -> ObjectKind,
) -> ServedKind {
    ServedKind { kind, group, versions, object }
}

const SERVED: [ServedKind; 38] = [
    served("apps", &["v1", "v1beta2", "v1beta1"], "Deployment", |_| deployment()),
    served("extensions", &["v1beta1"], "Deployment", |_| deployment()),
    served("apps", &["v1", "v1beta2", "v1beta1"], "StatefulSet", |_| {
        ObjectKind::Workload(WorkloadKind::StatefulSet)
    }),
    served("apps", &["v1", "v1beta2"], "DaemonSet", |_| daemon_set()),
    served("extensions", &["v1beta1"], "DaemonSet", |_| daemon_set()),
    served("apps", &["v1", "v1beta2"], "ReplicaSet", |_| replica_set()),
    served("extensions", &["v1beta1"], "ReplicaSet", |_| replica_set()),
    served("", &["v1"], "ReplicationController", |_| {
        ObjectKind::Workload(WorkloadKind::ReplicationController)
    }),
    served("batch", &["v1", "v1beta1"], "Job", |_| ObjectKind::Workload(WorkloadKind::Job)),
    served("batch", &["v1", "v1beta1", "v2alpha1"], "CronJob", |_| {
        ObjectKind::Workload(WorkloadKind::CronJob)
    }),
    served("", &["v1"], "Pod", |_| ObjectKind::Workload(WorkloadKind::Pod)),
    served("", &["v1"], "Namespace", |_| ObjectKind::Namespace),
    served("", &["v1"], "LimitRange", |_| ObjectKind::LimitRange),
    served("", &["v1"], "ResourceQuota", |_| ObjectKind::ResourceQuota),
    served("", &["v1"], "PersistentVolume", |_| ObjectKind::PersistentVolume),
    served("", &["v1"], "PersistentVolumeClaim", |_| ObjectKind::PersistentVolumeClaim),
    served("scheduling.k8s.io", &["v1", "v1beta1", "v1alpha1"], "PriorityClass", |_| {
        ObjectKind::PriorityClass
    }),
    served("node.k8s.io", &["v1", "v1beta1", "v1alpha1"], "RuntimeClass", |_| {
        ObjectKind::RuntimeClass
    }),
    served("policy", &["v1", "v1beta1"], "PodDisruptionBudget", |_| ObjectKind::DisruptionBudget),
    served("storage.k8s.io", &["v1", "v1beta1"], "StorageClass", |_| ObjectKind::StorageClass),
    served("karpenter.sh", &["v1", "v1beta1"], "NodePool", |v| ObjectKind::NodePool(generation(v))),
    served("karpenter.k8s.aws", &["v1", "v1beta1"], "EC2NodeClass", |v| {
        ObjectKind::NodeClass(generation(v))
    }),
    served("karpenter.sh", &["v1alpha5"], "Provisioner", |_| ObjectKind::Provisioner),
    served("karpenter.sh", &["v1alpha1"], "NodeOverlay", |_| ObjectKind::NodeOverlay),
    served("karpenter.k8s.aws", &["v1alpha1"], "AWSNodeTemplate", |_| ObjectKind::NodeTemplate),
    served("eksctl.io", &["v1alpha5"], "ClusterConfig", |_| ObjectKind::ClusterConfig),
    served("eks.services.k8s.aws", &["v1alpha1"], "FargateProfile", |_| ObjectKind::FargateProfile),
    served("autoscaling", &["v2", "v1", "v2beta2", "v2beta1"], "HorizontalPodAutoscaler", |_| {
        ObjectKind::HorizontalScaler
    }),
    served("autoscaling.k8s.io", &["v1", "v1beta2", "v1beta1"], "VerticalPodAutoscaler", |_| {
        ObjectKind::VerticalScaler
    }),
    served("keda.sh", &["v1alpha1"], "ScaledObject", |_| ObjectKind::EventScaler),
    served("keda.sh", &["v1alpha1"], "ScaledJob", |_| ObjectKind::QueueScaler),
    served("http.keda.sh", &["v1alpha1"], "HTTPScaledObject", |_| ObjectKind::HttpScaler),
    served("datadoghq.com", &["v1alpha1"], "WatermarkPodAutoscaler", |_| {
        ObjectKind::WatermarkScaler
    }),
    served("argoproj.io", &["v1alpha1"], "Rollout", |_| {
        ObjectKind::Workload(WorkloadKind::Rollout)
    }),
    served("autoscaling.x-k8s.io", &["v1beta1", "v1alpha1"], "CapacityBuffer", |_| {
        ObjectKind::CapacityBuffer
    }),
    served("", &["v1"], "PodTemplate", |_| ObjectKind::PodTemplate),
    served("resource.k8s.io", &DEVICE_VERSIONS, "ResourceClaimTemplate", |_| {
        ObjectKind::ClaimTemplate
    }),
    served("resource.k8s.io", &DEVICE_VERSIONS, "DeviceClass", |_| ObjectKind::DeviceClass),
];

/// Versions of `resource.k8s.io` with device classes. Classic DRA, in earlier ones, has none.
const DEVICE_VERSIONS: [&str; 4] = ["v1", "v1beta2", "v1beta1", "v1alpha3"];

fn deployment() -> ObjectKind {
    ObjectKind::Workload(WorkloadKind::Deployment)
}

fn daemon_set() -> ObjectKind {
    ObjectKind::Workload(WorkloadKind::DaemonSet)
}

fn replica_set() -> ObjectKind {
    ObjectKind::Workload(WorkloadKind::ReplicaSet)
}

fn generation(version: &str) -> Generation {
    if version == "v1" { Generation::V1 } else { Generation::V1beta1 }
}

/// Built-in API groups without a domain.
const BUILT_IN: [&str; 6] = ["", "apps", "batch", "extensions", "autoscaling", "policy"];

/// Classifies the document with this root.
pub(super) fn classify(root: &YamlNode<'_>) -> DocumentClass {
    match &root.value {
        YamlValue::Map(_) => {}
        YamlValue::Seq(_) => return skipped("list at top level"),
        YamlValue::Plain(_) if root.is_null() => return skipped("empty document"),
        YamlValue::Plain(_) | YamlValue::Quoted(_) => return skipped("text at top level"),
        YamlValue::Tagged(..) => return skipped("tagged value at top level"),
    }
    let text = |key| root.get(key).and_then(YamlNode::text).filter(|text| !text.is_empty());
    let Some(kind) = text("kind") else { return skipped("no kind") };
    if kind.contains("{{") {
        return skipped("templated");
    }
    let Some(api_version) = text("apiVersion") else {
        // Helm values and the input of other tools may have a `kind` too, but no name.
        return match SERVED.iter().find(|served| has_name(root) && served.kind == kind) {
            Some(served) => unserved(kind, "no apiVersion", served),
            None => skipped("no apiVersion"),
        };
    };
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if !group.contains('.') && !BUILT_IN.contains(&group) {
        // The API server has no such group, so a typo would remove a workload or a pool.
        let near = most_similar(group, &BUILT_IN);
        let meant = SERVED.iter().find(|served| served.kind == kind && Some(served.group) == near);
        if let Some(served) = meant.filter(|_| has_name(root)) {
            return unserved(kind, &self::api_version(group, version), served);
        }
        return DocumentClass::Skipped(format!(
            "apiVersion {}",
            super::decode::shorten(api_version)
        ));
    }
    classify_kubernetes(root, group, version, kind)
}

fn classify_kubernetes(
    root: &YamlNode<'_>,
    group: &str,
    version: &str,
    kind: &str,
) -> DocumentClass {
    let of_kind = || SERVED.iter().filter(|served| served.kind == kind);
    if let Some(served) = of_kind().find(|served| served.group == group) {
        if !served.versions.contains(&version) {
            return unserved(kind, &api_version(group, version), served);
        }
        let object = (served.object)(version);
        let encrypted = root.get("sops").is_some();
        return if encrypted {
            DocumentClass::Unresolved(ENCRYPTED.into())
        } else {
            DocumentClass::Object(object)
        };
    }
    if group.is_empty() && kind == "ConfigMap" {
        let name = root.get("metadata").and_then(|meta| meta.get("name")?.text());
        if name == Some(CONFIG_MAP) {
            return DocumentClass::Object(ObjectKind::ExpanderPriorities);
        }
        if has_scaling_parameters(root) {
            return DocumentClass::Object(ObjectKind::Parameters);
        }
    }
    let built_in = BUILT_IN.contains(&group) || group.ends_with(".k8s.io");
    if let Some(served) = of_kind().next().filter(|_| built_in) {
        return unserved(kind, &api_version(group, version), served);
    }
    let delivers =
        |(of, name, ..): &&(&str, &str, DeliveryKind, &str)| *of == group && *name == kind;
    if let Some((_, _, delivery_kind, reason)) = DELIVERY_KINDS.iter().find(delivers) {
        return DocumentClass::Delivers(*delivery_kind, reason);
    }
    if (group, kind) == ("helm.cattle.io", "HelmChart") {
        return DocumentClass::Unresolved("its chart is rendered elsewhere".to_owned());
    }
    if (group, kind) == ("fluxcd.controlplane.io", "ResourceSet") && makes_objects(root) {
        return DocumentClass::Unresolved(
            "Flux Operator makes objects of its templates".to_owned(),
        );
    }
    if let Some(unknown) = unknown_kind(root, group, kind) {
        return unknown;
    }
    let of_custom_kind = custom_kind(root, group, kind);
    let makes_pods = of_custom_kind == CustomKind::MakesPods;
    if root.get("sops").is_some() && !makes_pods {
        return DocumentClass::Skipped(ENCRYPTED.to_owned());
    }
    let is_list = kind == "List" || kind.strip_suffix("List").is_some_and(|of| !of.is_empty());
    if is_list && root.get("items").is_some() {
        return DocumentClass::List;
    }
    let is_custom = group.contains('.') && !built_in;
    let has_template = has_pods(root) || is_custom && has_pod_template(root, kind);
    let shown_kind = super::decode::shorten(kind);
    if has_template || makes_pods {
        let reason = format!("the controller of kind {shown_kind} makes its pods; {ASSUME}");
        return DocumentClass::MakesPods(reason);
    }
    let is_named = has_name(root) && !is_not_run(kind);
    if is_custom && is_named && of_custom_kind == CustomKind::Unknown {
        return DocumentClass::UnknownKind(shown_kind.to_string());
    }
    DocumentClass::OtherKind(format!("{OTHER_KIND}{shown_kind}"))
}

/// Groups whose kinds are all known, with those that are not inputs. An unknown kind is a typo, and
/// skipping it would remove a pool.
const KNOWN_GROUPS: [(&str, &[&str]); 3] = [
    ("karpenter.sh", &["Machine", "NodeClaim"]),
    ("karpenter.k8s.aws", &[]),
    ("fleetwright.dev", &["CapacityPlan", "CapacityPool", "Fleet"]),
];

/// Returns the error of an object in a group that does not have its kind, and of one whose group is
/// a likely typo of such a group.
fn unknown_kind(root: &YamlNode<'_>, group: &str, kind: &str) -> Option<DocumentClass> {
    let groups: Vec<&str> = KNOWN_GROUPS.iter().map(|(group, _)| *group).collect();
    let meant = most_similar(group, &groups)?;
    let (_, others) = KNOWN_GROUPS.iter().find(|(known, _)| *known == meant)?;
    let served = SERVED.iter().filter(|served| served.group == meant).map(|served| served.kind);
    let kinds: Vec<&str> = served.chain(others.iter().copied()).collect();
    let item = kind.strip_suffix("List").unwrap_or(kind);
    let is_known = kinds.contains(&kind) || kinds.contains(&item) && root.get("items").is_some();
    let (shown_group, shown_kind) = (super::decode::shorten(group), super::decode::shorten(kind));
    let (message, hint) = match (group == meant, is_known) {
        (true, false) => {
            let Some(near) = most_similar(kind, &kinds) else {
                // A later version of the group may have it.
                let reason = format!("kind {shown_kind} of {group} is not known to this version");
                return Some(DocumentClass::Unresolved(reason));
            };
            (
                format!("has kind `{shown_kind}`, which {group} does not have"),
                format!("did you mean `{near}`?"),
            )
        }
        (false, true) => (
            format!("has the API group `{shown_group}`, which no API server serves"),
            format!("did you mean `{meant}`?"),
        ),
        (true, true) | (false, false) => return None,
    };
    Some(DocumentClass::Unserved { message, hint })
}

fn has_name(root: &YamlNode<'_>) -> bool {
    root.get("metadata").is_some_and(|metadata| {
        metadata.get("name").is_some() || metadata.get("generateName").is_some()
    })
}

const ENCRYPTED: &str = "encrypted with SOPS";

/// Returns whether a `ResourceSet` of Flux Operator has templates of objects.
fn makes_objects(root: &YamlNode<'_>) -> bool {
    let has_any = |key| {
        let found = root.get("spec").and_then(|spec| spec.get(key));
        found.is_some_and(|node| match &node.value {
            YamlValue::Seq(items) => !items.is_empty(),
            YamlValue::Plain(_)
            | YamlValue::Quoted(_)
            | YamlValue::Map(_)
            | YamlValue::Tagged(..) => node.text() != Some("") && !node.is_null(),
        })
    };
    ["resources", "resourcesTemplate"].into_iter().any(has_any)
}

/// Returns whether a ConfigMap holds parameters of cluster-proportional-autoscaler.
fn has_scaling_parameters(root: &YamlNode<'_>) -> bool {
    let data = root.get("data");
    ["linear", "ladder"].iter().any(|key| data.and_then(|data| data.get(key)).is_some())
}

/// Returns whether the object declares pods as a controller does: a pod template at the usual path
/// with a number of pods or a schedule. A template alone declares no pods; other objects use it.
fn has_pods(root: &YamlNode<'_>) -> bool {
    let path = |keys: &[&str]| keys.iter().try_fold(root, |node, key| node.get(key)).is_some();
    let counts = ["replicas", "parallelism", "completions", "selector"];
    path(&["spec", "template", "spec", "containers"])
        && counts.iter().any(|count| path(&["spec", *count]))
        || path(&["spec", "jobTemplate", "spec", "template", "spec", "containers"])
            && path(&["spec", "schedule"])
}

/// Ends of the names of kinds whose pod templates other objects use.
const NOT_RUN: [&str; 7] =
    ["Template", "Runtime", "Policy", "Definition", "Composition", "Class", "Profile"];

fn is_not_run(kind: &str) -> bool {
    NOT_RUN.iter().any(|end| kind.ends_with(end))
}

/// Returns whether a custom object has a pod template at any depth of its specification. Operators
/// make pods of such templates: as many as a field states, one, or one on each node.
fn has_pod_template(root: &YamlNode<'_>, kind: &str) -> bool {
    let Some(spec) = root.get("spec").filter(|_| !is_not_run(kind)) else { return false };
    let mut open = vec![spec];
    while let Some(node) = open.pop() {
        match &node.value {
            YamlValue::Map(entries) => {
                let is_template = |entry: &YamlEntry<'_>| {
                    let key = entry.key.to_ascii_lowercase();
                    (key.ends_with("template") || key.ends_with("templatespec"))
                        && has_containers(&entry.value)
                };
                if entries.iter().any(is_template) {
                    return true;
                }
                open.extend(entries.iter().map(|entry| &entry.value));
            }
            YamlValue::Seq(items) => open.extend(items),
            YamlValue::Plain(_) | YamlValue::Quoted(_) | YamlValue::Tagged(..) => {}
        }
    }
    false
}

/// Returns whether a pod template lists containers with a name, and an image or resources.
fn has_containers(template: &YamlNode<'_>) -> bool {
    let containers = template.get("spec").and_then(|spec| spec.get("containers"));
    let Some(YamlValue::Seq(items)) = containers.map(|containers| &containers.value) else {
        return false;
    };
    let has = |item: &YamlNode<'_>, key| item.get(key).is_some();
    let is_container =
        |item: &YamlNode<'_>| has(item, "name") && (has(item, "image") || has(item, "resources"));
    !items.is_empty() && items.iter().all(is_container)
}

/// Returns an item of a list. As in kubectl, an item without kind and version has those of a list
/// such as `DeploymentList`.
pub(super) fn list_item<'i, 't>(
    list: &YamlNode<'t>,
    item: &'i YamlNode<'t>,
) -> Cow<'i, YamlNode<'t>> {
    let text = |key| list.get(key).and_then(YamlNode::text);
    let kind = text("kind").and_then(|kind| kind.strip_suffix("List"));
    let (Some(kind), Some(version)) = (kind.filter(|kind| !kind.is_empty()), text("apiVersion"))
    else {
        return Cow::Borrowed(item);
    };
    let has_type = item.get("kind").is_some() || item.get("apiVersion").is_some();
    let YamlValue::Map(entries) = &item.value else { return Cow::Borrowed(item) };
    if has_type {
        return Cow::Borrowed(item);
    }
    let line = item.line;
    let entry = |key: &'static str, text: &str| YamlEntry {
        key: key.into(),
        line,
        value: YamlNode { line, value: YamlValue::Quoted(text.to_owned().into()) },
    };
    let mut entries = entries.clone();
    entries.extend([entry("apiVersion", version), entry("kind", kind)]);
    Cow::Owned(YamlNode { line, value: YamlValue::Map(entries) })
}

fn skipped(reason: &str) -> DocumentClass {
    DocumentClass::Skipped(reason.to_owned())
}

fn api_version(group: &str, version: &str) -> String {
    let joined = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    format!("apiVersion `{}`", super::decode::shorten(&joined))
}

fn unserved(kind: &str, found: &str, served: &ServedKind) -> DocumentClass {
    let today = served.versions.first().copied().unwrap_or("v1");
    let right = if served.group.is_empty() {
        today.to_owned()
    } else {
        format!("{}/{today}", served.group)
    };
    DocumentClass::Unserved {
        message: format!("has {found}, in which kind {kind} is not served"),
        hint: format!("write apiVersion: {right}"),
    }
}
