//! Competing autoscalers: Karpenter and Cluster Autoscaler, detected by the names and labels of their
//! Deployments.
//!
//! Any tenant can give a Deployment such a name or label. Therefore a detection blocks this program
//! only in the system namespaces, or in those that the repository declares instead
//! (`spec.autoscalers.namespaces`). Karpenter also counts in any namespace if there are nodes that it
//! may have launched, because tenants launch no nodes. Group resizers are detected more broadly: the
//! only consequence is that the group is not resized, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use crate::model::desired::{Desired, Scale};
use crate::model::ids::{LabelValue, Labels, Namespace, WorkloadId, WorkloadKind};
use crate::model::observed::{KEY_LABEL, LiveWorkload, Node, Observed, Pod};
use crate::model::pod::PodTemplate;
use crate::model::requirement::key;

/// An autoscaler that launches and removes nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct CompetingAutoscaler {
    /// Its workload, as `namespace/name`.
    pub workload: String,
    /// `karpenter` or `cluster-autoscaler`.
    pub kind: &'static str,
    /// Configured replicas, or remaining pods.
    pub running: u32,
}

/// Returns the competing autoscalers in a cluster: those in the declared `namespaces`, or else in the
/// system namespaces, and Karpenter in any namespace if it may have launched nodes.
#[must_use]
pub fn competing_autoscalers(
    observed: &Observed,
    namespaces: Option<&BTreeSet<Namespace>>,
) -> Vec<CompetingAutoscaler> {
    let Observed { workloads, pods, templates, nodes, .. } = observed;
    partition_by_namespace(
        detect_autoscalers(workloads, pods, templates),
        nodes.values(),
        namespaces,
    )
    .0
}

/// Partitions detected autoscalers into those that compete, by namespace and nodes, and the others.
#[must_use]
pub fn partition_by_namespace<'n>(
    found: Vec<CompetingAutoscaler>,
    nodes: impl IntoIterator<Item = &'n Node>,
    namespaces: Option<&BTreeSet<Namespace>>,
) -> (Vec<CompetingAutoscaler>, Vec<CompetingAutoscaler>) {
    let has_nodes = nodes.into_iter().any(may_be_karpenter_node);
    found.into_iter().partition(|found| {
        let is_home = namespaces.map_or_else(
            || found.is_in_default_namespace(),
            |namespaces| found.is_in_namespaces(namespaces),
        );
        is_home || (found.kind == KARPENTER && has_nodes)
    })
}

/// Returns the Cluster Autoscaler, running or declared, that may resize groups, as `namespace/name`. It
/// counts in any namespace, or only in the declared ones: two writers of one size would fight.
#[must_use]
pub fn group_resizer(observed: &Observed, desired: &Desired) -> Option<String> {
    let declared = desired.workloads.values().filter(|workload| {
        let is_it = resizer_kind(&workload.id.name, Some(&workload.template.labels)).is_some();
        let is_deployment = workload.id.kind == WorkloadKind::Deployment;
        is_it && is_deployment && workload.scale != Scale::Replicas(0)
    });
    let declared = declared.map(|workload| workload.id.to_string());
    let Observed { workloads, pods, templates, .. } = observed;
    let live = running(workloads, pods, templates, resizer_kind).into_iter();
    let mut all = declared.chain(live.map(|found| found.workload));
    let namespaces = desired.autoscaler_namespaces.as_ref();
    all.find(|workload| namespaces.is_none_or(|namespaces| lives_in(workload, namespaces)))
}

/// Returns whether a node has a pool and was launched neither by this program nor by EKS.
fn may_be_karpenter_node(node: &Node) -> bool {
    // Not by the instance's tags: an adopted instance has ours, and Karpenter may still manage it.
    let is_ours = node.labels.contains_key(KEY_LABEL);
    let has_pool = [key::NODEPOOL, key::PROVISIONER].iter().any(|k| node.labels.contains_key(*k));
    has_pool && !is_ours && !node.is_auto_mode() && !node.is_fargate()
}

impl CompetingAutoscaler {
    /// Returns whether it is in a system namespace, where tenants create nothing.
    fn is_in_default_namespace(&self) -> bool {
        self.workload
            .split_once('/')
            .is_some_and(|(namespace, _)| DEFAULT_NAMESPACES.contains(&namespace))
    }

    /// Returns whether it is in one of `namespaces`.
    #[must_use]
    pub fn is_in_namespaces(&self, namespaces: &BTreeSet<Namespace>) -> bool {
        lives_in(&self.workload, namespaces)
    }
}

fn lives_in(workload: &str, namespaces: &BTreeSet<Namespace>) -> bool {
    workload.split_once('/').is_some_and(|(namespace, _)| namespaces.contains(namespace))
}

/// Detects autoscalers by the names and labels of Deployments, in any namespace. Any tenant could have
/// created one: a reason to warn, not to stop.
#[must_use]
pub fn detect_autoscalers(
    workloads: &[LiveWorkload],
    pods: &[Arc<Pod>],
    templates: &BTreeMap<String, Arc<PodTemplate>>,
) -> Vec<CompetingAutoscaler> {
    running(workloads, pods, templates, kind_of)
}

/// Returns the running Deployments that `kind_of` recognizes by name and labels.
fn running(
    workloads: &[LiveWorkload],
    pods: &[Arc<Pod>],
    templates: &BTreeMap<String, Arc<PodTemplate>>,
    kind_of: fn(&str, Option<&Labels>) -> Option<&'static str>,
) -> Vec<CompetingAutoscaler> {
    let kind = |id: &WorkloadId, template: Option<&String>| {
        let template = template.and_then(|template| templates.get(template));
        let labels = template.map(|template| &template.labels);
        (id.kind == WorkloadKind::Deployment).then(|| kind_of(&id.name, labels)).flatten()
    };
    let mut found: BTreeMap<&WorkloadId, (&'static str, u32)> = BTreeMap::new();
    for live in workloads {
        if let Some(kind) = kind(&live.id, live.template.as_ref()) {
            found.insert(&live.id, (kind, live.replicas));
        }
    }
    // A controller that was scaled to zero acts until its last pod has terminated.
    for pod in pods.iter().filter(|pod| pod.is_active()) {
        let Some(owner) = &pod.owner else { continue };
        if let Some((_, running)) = found.get_mut(owner) {
            *running = (*running).max(1);
        } else if let Some(kind) = kind(owner, Some(&pod.template)) {
            found.insert(owner, (kind, 1));
        }
    }
    let running = found.into_iter().filter(|(_, (_, running))| *running > 0);
    running
        .map(|(id, (kind, running))| CompetingAutoscaler {
            workload: id.to_string(),
            kind,
            running,
        })
        .collect()
}

/// Labels with which charts and older manifests name an application.
const NAME_LABELS: [&str; 3] = ["app.kubernetes.io/name", "app", "k8s-app"];

/// System namespaces: Karpenter's guide uses the first, older guides the second.
const DEFAULT_NAMESPACES: [&str; 3] = ["kube-system", "karpenter", "cluster-autoscaler"];

/// Name of Karpenter.
pub const KARPENTER: &str = "karpenter";
/// Name of Karpenter's Deployment in old charts.
const OLD_KARPENTER: &str = "karpenter-controller";
/// Name of Cluster Autoscaler.
pub const CLUSTER_AUTOSCALER: &str = "cluster-autoscaler";
/// Suffix that its chart appends to the name of a release or cloud.
const CHART_SUFFIX: &str = "-cluster-autoscaler";

/// Returns the autoscaler that a Deployment is, by its whole name or label: exporters and dashboards
/// have longer names.
#[must_use]
pub fn kind_of(name: &str, labels: Option<&Labels>) -> Option<&'static str> {
    let is_autoscaler = |name: &str| name == CLUSTER_AUTOSCALER || name.ends_with(CHART_SUFFIX);
    let mut names = candidate_names(name, labels);
    if names.clone().any(is_autoscaler) {
        return Some(CLUSTER_AUTOSCALER);
    }
    names.any(|name| [KARPENTER, OLD_KARPENTER].contains(&name)).then_some(KARPENTER)
}

/// Returns whether a Deployment may be Cluster Autoscaler: kOps and others append a cloud or cluster
/// name. For an exporter, the only cost is that a group is not resized, with the reason.
fn resizer_kind(name: &str, labels: Option<&Labels>) -> Option<&'static str> {
    candidate_names(name, labels)
        .any(|name| name.contains(CLUSTER_AUTOSCALER))
        .then_some(CLUSTER_AUTOSCALER)
}

/// Returns the name of a Deployment, and the application names in its pod labels.
fn candidate_names<'a>(
    name: &'a str,
    labels: Option<&'a Labels>,
) -> impl Iterator<Item = &'a str> + Clone + 'a {
    let labels = NAME_LABELS.iter().filter_map(move |key| labels?.get(*key));
    std::iter::once(name).chain(labels.map(LabelValue::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, kind: WorkloadKind) -> Arc<Pod> {
        Arc::new(Pod {
            namespace: "n".into(),
            name: format!("{name}-1").into(),
            uid: "u".into(),
            owner: Some(WorkloadId { namespace: "n".into(), kind, name: name.into() }),
            template: "t".to_owned(),
            node: None,
            phase: crate::model::observed::PodPhase::Running,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            terminating: false,
            mirror: false,
            started_at: None,
            granted: BTreeMap::new(),
        })
    }

    #[test]
    fn autoscaler_is_detected_by_name_or_label() {
        let (karpenter, autoscaler) = (Some("karpenter"), Some("cluster-autoscaler"));
        for (name, label, expected) in [
            ("karpenter", None, karpenter),
            ("karpenter-controller", None, karpenter),
            ("prod-karpenter", Some("karpenter"), karpenter),
            ("nodes", Some("karpenter"), karpenter),
            ("karpenter-exporter", None, None),
            ("karpenter-dashboard", Some("karpenter-dashboard"), None),
            ("cluster-autoscaler-exporter", None, None),
            ("cluster-autoscaler", None, autoscaler),
            ("ca-aws-cluster-autoscaler", None, autoscaler),
            ("nodes", Some("aws-cluster-autoscaler"), autoscaler),
            ("cluster-proportional-autoscaler", None, None),
            ("notkarpenter", None, None),
            ("web", Some("web"), None),
        ] {
            for key in NAME_LABELS {
                let labels = label.map(|label| (key.into(), label.into()));
                let template =
                    PodTemplate { labels: labels.into_iter().collect(), ..PodTemplate::default() };
                let templates = BTreeMap::from([("t".to_owned(), Arc::new(template))]);
                let found =
                    detect_autoscalers(&[], &[pod(name, WorkloadKind::Deployment)], &templates);
                let found = found.first().map(|found| (found.kind, found.running));
                assert_eq!(found, expected.map(|kind| (kind, 1)), "{name} {key} {label:?}");
            }
        }
        let agent = pod("karpenter", WorkloadKind::DaemonSet);
        assert_eq!(detect_autoscalers(&[], &[agent], &BTreeMap::new()), []);
    }

    /// Returns a cluster with a Deployment `name` that runs in `namespace`, and its only node with `labels`.
    fn with(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Observed {
        let mut observed = crate::testing::Story::new(&["m5.large"], 100, 128).observed;
        observed.nodes.clear();
        let mut made = Pod::clone(&pod(name, WorkloadKind::Deployment));
        made.owner.as_mut().expect("an owner").namespace = namespace.into();
        observed.pods.push(Arc::new(made));
        let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let node = Node { labels, ..crate::model::observed::fixture::node("n") };
        observed.nodes.insert("n".into(), node);
        observed
    }

    #[test]
    fn tenant_deployment_is_not_an_autoscaler() {
        let (pool, ours) = (("karpenter.sh/nodepool", "web"), ("fleetwright.dev/key", "0"));
        let auto = ("eks.amazonaws.com/compute-type", "auto");
        for (namespace, name, labels, expected) in [
            ("kube-system", "karpenter", &[][..], true),
            ("karpenter", "karpenter", &[], true),
            ("kube-system", "cluster-autoscaler", &[], true),
            ("shop", "karpenter", &[], false),
            ("shop", "karpenter", &[pool, ours], false),
            ("shop", "karpenter", &[pool, auto], false),
            // Tenants launch no nodes, so Karpenter must run somewhere.
            ("platform", "karpenter", &[pool], true),
            ("platform", "cluster-autoscaler", &[pool], false),
        ] {
            let found = competing_autoscalers(&with(namespace, name, labels), None);
            assert_eq!(found.len(), usize::from(expected), "{namespace}/{name} {labels:?}");
        }
    }

    #[test]
    fn autoscaler_competes_until_its_last_pod_terminated() {
        let pod = pod("karpenter", WorkloadKind::Deployment);
        let ending = Arc::new(Pod { terminating: true, ..Pod::clone(&pod) });
        let id = pod.owner.clone().expect("an owner");
        let stopped =
            LiveWorkload { id, replicas: 0, first_ordinal: 0, delivered: false, template: None };
        for (pods, expected) in [(vec![pod], 1), (vec![ending], 0), (vec![], 0)] {
            let found = detect_autoscalers(std::slice::from_ref(&stopped), &pods, &BTreeMap::new());
            assert_eq!(found.len(), expected, "{pods:?}");
        }
    }

    #[test]
    fn only_declared_namespaces_count() {
        let namespaces = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
        let karpenter = with("infra", "karpenter", &[("karpenter.sh/nodepool", "web")]);
        let autoscaler = with("infra", "cluster-autoscaler", &[]);
        for (names, counts) in [(&["infra"][..], 1), (&["kube-system", "infra"], 1), (&[], 0)] {
            let namespaces: BTreeSet<Namespace> = namespaces(names);
            let tenants = with("infra", "karpenter", &[]);
            assert_eq!(
                competing_autoscalers(&tenants, Some(&namespaces)).len(),
                counts,
                "{names:?}"
            );
            assert_eq!(
                competing_autoscalers(&karpenter, Some(&namespaces)).len(),
                1,
                "its nodes exist, so it runs"
            );
            assert_eq!(
                competing_autoscalers(&autoscaler, Some(&namespaces)).len(),
                counts,
                "{names:?}"
            );
            let desired = Desired { autoscaler_namespaces: Some(namespaces), ..Desired::default() };
            let resizes = group_resizer(&autoscaler, &desired);
            assert_eq!(resizes.as_deref(), (counts > 0).then_some("infra/cluster-autoscaler"));
        }
        // Without a declaration it does not compete, yet its group is not resized.
        assert_eq!(competing_autoscalers(&autoscaler, None), []);
        assert!(group_resizer(&autoscaler, &Desired::default()).is_some());
        assert_eq!(group_resizer(&karpenter, &Desired::default()), None);
        let called_after = with("infra", "cluster-autoscaler-aws", &[]);
        assert!(group_resizer(&called_after, &Desired::default()).is_some());
        assert_eq!(competing_autoscalers(&called_after, Some(&namespaces(&["infra"]))), []);
    }
}
