//! Competing autoscalers: Karpenter and Cluster Autoscaler, detected by the names and labels of
//! their Deployments.
//!
//! Any tenant can give a Deployment such a name or label. A detection therefore blocks Fleetwright
//! only in the system namespaces, or in the namespaces that the repository declares instead
//! (`spec.autoscalers.namespaces`). Karpenter also counts in any namespace if it may have launched
//! existing nodes, because tenants cannot launch nodes. The rules for group resizers match more
//! names in these namespaces, because a false detection only leaves a group at its size, with the
//! reason. Elsewhere, only a running pod with the image or the executable of Cluster Autoscaler
//! counts.

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
    /// Workload of the autoscaler, as `namespace/name`.
    pub workload: String,
    /// Kind: `karpenter` or `cluster-autoscaler`.
    pub kind: &'static str,
    /// Number of configured replicas; 1 if only pods remain after a scale-down to zero.
    pub running: u32,
}

/// Returns the competing autoscalers of a cluster. It includes autoscalers in the declared
/// `namespaces` (default: the system namespaces), and Karpenter in any namespace if it may have
/// launched nodes.
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

/// Partitions detected autoscalers into competing ones and all others, by namespace and nodes.
pub fn partition_by_namespace<'n>(
    found: Vec<CompetingAutoscaler>,
    nodes: impl IntoIterator<Item = &'n Node>,
    namespaces: Option<&BTreeSet<Namespace>>,
) -> (Vec<CompetingAutoscaler>, Vec<CompetingAutoscaler>) {
    let has_nodes = nodes.into_iter().any(may_be_karpenter_node);
    found.into_iter().partition(|found| {
        is_trusted(&found.workload, namespaces) || (found.kind == KARPENTER && has_nodes)
    })
}

/// Returns a running or declared Cluster Autoscaler that may resize node groups, as
/// `namespace/name`. Without declared namespaces, one of the repository counts in every namespace,
/// and so does a running pod, because two controllers that write one group size undo each other.
/// A Deployment of the cluster counts by its name only where tenants cannot create one.
pub fn group_resizer(observed: &Observed, desired: &Desired) -> Option<String> {
    let namespaces = desired.autoscaler_namespaces.as_ref();
    let mut all = declared_resizers(desired).chain(acting_resizers(observed));
    let is_listed =
        |workload: &String| namespaces.is_none_or(|namespaces| is_in_any(workload, namespaces));
    all.find(is_listed).or_else(|| {
        live_resizers(observed).into_iter().find(|workload| is_trusted(workload, namespaces))
    })
}

/// Returns the Deployments of the cluster that are like Cluster Autoscaler, but do not count as
/// one: tenants may create them, and no pod runs it.
pub fn unproven_resizers(observed: &Observed, desired: &Desired) -> BTreeSet<String> {
    if desired.autoscaler_namespaces.is_some() {
        return BTreeSet::new();
    }
    let counted: BTreeSet<String> =
        declared_resizers(desired).chain(acting_resizers(observed)).collect();
    let mut found = live_resizers(observed);
    found.retain(|workload| !is_trusted(workload, None) && !counted.contains(workload));
    found
}

/// Returns the Deployments of the repository that are Cluster Autoscaler.
fn declared_resizers(desired: &Desired) -> impl Iterator<Item = String> {
    let declared = desired.workloads.values().filter(|workload| {
        let is_resizer = workload.template.cluster_autoscaler.is_some()
            || resizer_kind(&workload.id.name, Some(&workload.template.labels)).is_some();
        let is_deployment = workload.id.kind == WorkloadKind::Deployment;
        is_resizer && is_deployment && workload.scale != Scale::Replicas(0)
    });
    declared.map(|workload| workload.id.to_string())
}

/// Returns the Deployments with a pod of Cluster Autoscaler that is bound to a node, in any phase:
/// a restart must not free the groups for a moment.
fn acting_resizers(observed: &Observed) -> impl Iterator<Item = String> {
    let acts = |pod: &&Arc<Pod>| {
        let template = observed.templates.get(&*pod.template);
        pod.is_active()
            && pod.node.is_some()
            && template.is_some_and(|template| template.cluster_autoscaler.is_some())
    };
    let owners = observed.pods.iter().filter(acts).filter_map(|pod| pod.owner.as_ref());
    owners.filter(|id| id.kind == WorkloadKind::Deployment).map(WorkloadId::to_string)
}

/// Returns the Deployments of the cluster that are Cluster Autoscaler by a name, an image or an
/// executable.
fn live_resizers(observed: &Observed) -> BTreeSet<String> {
    let Observed { workloads, pods, templates, .. } = observed;
    let named = running_autoscalers(workloads, pods, templates, resizer_kind).into_iter();
    let recognized = workloads.iter().filter(|live| {
        let template = live.template.as_ref().and_then(|key| templates.get(key));
        live.replicas > 0
            && live.id.kind == WorkloadKind::Deployment
            && template.is_some_and(|template| template.cluster_autoscaler.is_some())
    });
    let recognized = recognized.map(|live| live.id.to_string());
    named.map(|found| found.workload).chain(recognized).collect()
}

/// Returns true if a node belongs to a Karpenter pool and was launched neither by Fleetwright nor
/// by EKS.
fn may_be_karpenter_node(node: &Node) -> bool {
    // Instance tags prove nothing: an adopted instance carries Fleetwright's tags, and Karpenter
    // may still manage it.
    let is_ours = node.labels.contains_key(KEY_LABEL);
    let has_pool = [key::NODEPOOL, key::PROVISIONER].iter().any(|k| node.labels.contains_key(*k));
    has_pool && !is_ours && !node.is_auto_mode() && !node.is_fargate()
}

/// Returns true if a workload is in one of the declared `namespaces` (default: the system
/// namespaces), where tenants cannot create objects.
fn is_trusted(workload: &str, namespaces: Option<&BTreeSet<Namespace>>) -> bool {
    let namespace = workload.split_once('/').map(|(namespace, _)| namespace);
    namespace.is_some_and(|namespace| match namespaces {
        Some(namespaces) => namespaces.contains(namespace),
        None => DEFAULT_NAMESPACES.contains(&namespace),
    })
}

/// Returns true if a workload is in a system namespace, where tenants cannot create objects.
pub(super) fn is_in_system_namespace(workload: &WorkloadId) -> bool {
    DEFAULT_NAMESPACES.contains(&workload.namespace.as_str())
}

fn is_in_any(workload: &str, namespaces: &BTreeSet<Namespace>) -> bool {
    workload.split_once('/').is_some_and(|(namespace, _)| namespaces.contains(namespace))
}

/// Detects autoscalers in all namespaces by the names and labels of their Deployments. Any tenant
/// can create a matching Deployment, so a detection justifies a warning but not a stop.
pub fn detect_autoscalers(
    workloads: &[LiveWorkload],
    pods: &[Arc<Pod>],
    templates: &BTreeMap<String, Arc<PodTemplate>>,
) -> Vec<CompetingAutoscaler> {
    running_autoscalers(workloads, pods, templates, kind_of)
}

/// Returns the running Deployments for which `kind_of` returns a kind.
fn running_autoscalers(
    workloads: &[LiveWorkload],
    pods: &[Arc<Pod>],
    templates: &BTreeMap<String, Arc<PodTemplate>>,
    kind_of: fn(&str, Option<&Labels>) -> Option<&'static str>,
) -> Vec<CompetingAutoscaler> {
    let kind = |id: &WorkloadId, template: Option<&str>| {
        let template = template.and_then(|template| templates.get(template));
        let labels = template.map(|template| &template.labels);
        (id.kind == WorkloadKind::Deployment).then(|| kind_of(&id.name, labels)).flatten()
    };
    let mut found: BTreeMap<&WorkloadId, (&'static str, u32)> = BTreeMap::new();
    for live in workloads {
        if let Some(kind) = kind(&live.id, live.template.as_deref()) {
            found.insert(&live.id, (kind, live.replicas));
        }
    }
    // A controller that was scaled to zero acts until its last pod has terminated.
    for pod in pods.iter().filter(|pod| pod.is_active()) {
        let Some(owner) = &pod.owner else { continue };
        if let Some((_, running)) = found.get_mut(owner) {
            *running = (*running).max(1);
        } else if let Some(kind) = kind(owner, Some(&*pod.template)) {
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

/// Labels that hold the application name in charts and older manifests.
const NAME_LABELS: [&str; 3] = ["app.kubernetes.io/name", "app", "k8s-app"];

/// System namespaces: Karpenter's current guide uses `kube-system`, older guides use `karpenter`.
const DEFAULT_NAMESPACES: [&str; 3] = ["kube-system", "karpenter", "cluster-autoscaler"];

/// Application name of Karpenter.
pub const KARPENTER: &str = "karpenter";
/// Name of Karpenter's Deployment in old charts.
const OLD_KARPENTER: &str = "karpenter-controller";
/// Application name of Cluster Autoscaler.
pub const CLUSTER_AUTOSCALER: &str = "cluster-autoscaler";
/// Suffix of the Deployment name in the chart of Cluster Autoscaler, after the release or cloud
/// name.
const CHART_SUFFIX: &str = "-cluster-autoscaler";

/// Returns the autoscaler kind of a Deployment, or `None`. It compares whole names and labels,
/// because exporters and dashboards have longer names.
pub fn kind_of(name: &str, labels: Option<&Labels>) -> Option<&'static str> {
    let is_autoscaler = |name: &str| name == CLUSTER_AUTOSCALER || name.ends_with(CHART_SUFFIX);
    let mut names = candidate_names(name, labels);
    if names.clone().any(is_autoscaler) {
        return Some(CLUSTER_AUTOSCALER);
    }
    names.any(|name| [KARPENTER, OLD_KARPENTER].contains(&name)).then_some(KARPENTER)
}

/// Returns the kind of a Deployment that may be Cluster Autoscaler. It matches any name that
/// contains `cluster-autoscaler`, because kOps and others append a cloud or cluster name. For a
/// matching exporter, the only cost is a group that is not resized.
pub(super) fn resizer_kind(name: &str, labels: Option<&Labels>) -> Option<&'static str> {
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
    use crate::model::observed::PodPhase;
    use crate::testing::pods::deployment;
    use crate::testing::world::{self, live_workload};

    fn pod(name: &str, kind: WorkloadKind) -> Arc<Pod> {
        let owner = WorkloadId { kind, ..deployment("n", name) };
        Arc::new(world::pod(&format!("{name}-1")).owned_by(&owner))
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

    /// Returns a cluster with a running Deployment and a single node that has `labels`.
    fn cluster_with(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Observed {
        let mut observed = crate::testing::Scenario::new(&["m5.large"], 100, 128).observed;
        observed.nodes.clear();
        let mut made = Pod::clone(&pod(name, WorkloadKind::Deployment));
        made.owner.as_mut().expect("a pod with an owner").namespace = namespace.into();
        observed.pods.push(Arc::new(made));
        let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        observed.with_node(Node { labels, ..world::node("n") })
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
            // Tenants cannot launch nodes, so Karpenter must be running.
            ("platform", "karpenter", &[pool], true),
            ("platform", "cluster-autoscaler", &[pool], false),
        ] {
            let found = competing_autoscalers(&cluster_with(namespace, name, labels), None);
            assert_eq!(found.len(), usize::from(expected), "{namespace}/{name} {labels:?}");
        }
    }

    #[test]
    fn autoscaler_competes_until_its_last_pod_terminated() {
        let pod = pod("karpenter", WorkloadKind::Deployment);
        let ending = Arc::new(Pod { terminating: true, ..Pod::clone(&pod) });
        let id = pod.owner.clone().expect("a pod with an owner");
        let stopped = live_workload(&id, 0);
        for (pods, expected) in [(vec![pod], 1), (vec![ending], 0), (vec![], 0)] {
            let found = detect_autoscalers(std::slice::from_ref(&stopped), &pods, &BTreeMap::new());
            assert_eq!(found.len(), expected, "{pods:?}");
        }
    }

    #[test]
    fn only_declared_namespaces_count() {
        let namespaces = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
        let karpenter = cluster_with("infra", "karpenter", &[("karpenter.sh/nodepool", "web")]);
        let autoscaler = cluster_with("infra", "cluster-autoscaler", &[]);
        for (names, counts) in [(&["infra"][..], 1), (&["kube-system", "infra"], 1), (&[], 0)] {
            let namespaces: BTreeSet<Namespace> = namespaces(names);
            let tenants = cluster_with("infra", "karpenter", &[]);
            assert_eq!(
                competing_autoscalers(&tenants, Some(&namespaces)).len(),
                counts,
                "{names:?}"
            );
            assert_eq!(
                competing_autoscalers(&karpenter, Some(&namespaces)).len(),
                1,
                "its nodes prove that it runs"
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
        assert_eq!(competing_autoscalers(&autoscaler, None), []);
        assert_eq!(group_resizer(&karpenter, &Desired::default()), None);
        let with_suffix = cluster_with("kube-system", "cluster-autoscaler-aws", &[]);
        assert!(group_resizer(&with_suffix, &Desired::default()).is_some());
        assert_eq!(competing_autoscalers(&with_suffix, Some(&namespaces(&["kube-system"]))), []);
    }

    type PodChange = fn(&mut Pod);

    /// Returns a cluster with a Deployment of a tenant. Its pod is changed by `change`.
    fn tenant_cluster(name: &str, change: PodChange) -> Observed {
        let mut observed = cluster_with("shop", name, &[]);
        let pod = Arc::make_mut(observed.pods.last_mut().expect("a pod"));
        (pod.node, pod.template) = (Some("n".into()), "autoscaler".into());
        change(pod);
        let flags = Some(Box::default());
        let template = PodTemplate { cluster_autoscaler: flags, ..PodTemplate::default() };
        observed.templates.insert("autoscaler".to_owned(), Arc::new(template));
        let owner = observed.pods.last().and_then(|pod| pod.owner.clone()).expect("an owner");
        observed.workloads.push(live_workload(&owner, 1));
        observed
    }

    #[test]
    fn tenant_stops_no_group_by_a_name_or_a_label() {
        let (named, plain) = ("my-cluster-autoscaler", "nodes");
        let ways: [(&str, PodChange, bool, bool); 6] = [
            (named, |_| {}, true, false),
            (plain, |_| {}, true, false),
            (named, |pod| pod.phase = PodPhase::Pending, true, false),
            (named, |pod| pod.node = None, false, true),
            (named, |pod| pod.template = "another".into(), false, true),
            (plain, |pod| pod.terminating = true, false, false),
        ];
        for (name, change, counts, warns) in ways {
            let observed = tenant_cluster(name, change);
            let found = group_resizer(&observed, &Desired::default());
            let workload = format!("shop/{name}");
            assert_eq!(found, counts.then(|| workload.clone()), "{:?}", observed.pods.last());
            let unproven = unproven_resizers(&observed, &Desired::default());
            assert_eq!(unproven.contains(&workload), warns, "{:?}", observed.pods.last());
            // Declared namespaces are the only ones that count.
            let namespaces = Some(["kube-system".into()].into());
            let desired = Desired { autoscaler_namespaces: namespaces, ..Desired::default() };
            assert_eq!(group_resizer(&observed, &desired), None);
            assert_eq!(unproven_resizers(&observed, &desired), BTreeSet::new());
        }
    }

    #[test]
    fn autoscaler_of_the_repository_counts_before_its_pod_runs() {
        let id = WorkloadId { namespace: "infra".into(), ..deployment("n", "cluster-autoscaler") };
        let mut scenario = crate::testing::Scenario::new(&["m5.large"], 100, 128);
        let mut declared = scenario.desired.workloads.values().next().expect("one").clone();
        (declared.id, declared.scale) = (id.clone(), Scale::Replicas(1));
        scenario.desired.workloads.insert(id, declared);
        let found = group_resizer(&scenario.observed, &scenario.desired);
        assert_eq!(found.as_deref(), Some("infra/cluster-autoscaler"));
    }
}
