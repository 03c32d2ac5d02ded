//! Others who make and remove nodes by themselves: Karpenter and Cluster Autoscaler, known by what their Deployments
//! are called.
//!
//! A name or a label anybody may give a Deployment of their own. So one stops this program where only those live who
//! keep the cluster, or in the namespaces that the repository declares instead (`spec.autoscalers.namespaces`); and
//! Karpenter wherever it is beside nodes that it has, since no tenant makes nodes. Who may resize a group is believed by
//! less, and without a declaration anywhere: then the group is left alone, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use crate::fleet::{KEY_LABEL, LiveWorkload, Node, Observed, Pod};
use crate::ids::{LabelValue, Labels, Namespace, WorkloadId, WorkloadKind};
use crate::manifest::{Desired, Scale};
use crate::pod::PodTemplate;
use crate::requirement::key;

/// A controller that makes and removes nodes by itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Rival {
    /// Its workload, as `namespace/name`.
    pub workload: String,
    /// `karpenter` or `cluster-autoscaler`.
    pub kind: &'static str,
    /// Replicas that it is set to, or pods of it that are left.
    pub running: u32,
}

/// Returns the controllers in a cluster that make and remove nodes by themselves: of those that are called so, the
/// ones in a namespace of whoever keeps the cluster, or in those that are declared instead (`homes`), and Karpenter
/// wherever nodes are that it may have.
#[must_use]
pub fn rivals(observed: &Observed, homes: Option<&BTreeSet<Namespace>>) -> Vec<Rival> {
    let Observed { workloads, pods, templates, nodes, .. } = observed;
    parted(rivals_among(workloads, pods, templates), nodes.values(), homes).0
}

/// Parts controllers that are called so into those that count as [`rivals`] has it beside such nodes, and the others.
#[must_use]
pub fn parted<'n>(
    found: Vec<Rival>,
    nodes: impl IntoIterator<Item = &'n Node>,
    homes: Option<&BTreeSet<Namespace>>,
) -> (Vec<Rival>, Vec<Rival>) {
    let has_nodes = nodes.into_iter().any(may_be_of_karpenter);
    found.into_iter().partition(|rival| {
        let is_home = homes.map_or_else(|| rival.is_at_home(), |homes| rival.lives_in(homes));
        is_home || (rival.kind == KARPENTER && has_nodes)
    })
}

/// Returns Cluster Autoscaler, or what is called after it, as `namespace/name`, where it runs or is declared and may
/// resize groups: wherever it is, since two that write one number undo each other; or in the declared namespaces alone.
#[must_use]
pub fn resizer(observed: &Observed, desired: &Desired) -> Option<String> {
    let declared = desired.workloads.values().filter(|workload| {
        let is_it = may_resize(&workload.id.name, Some(&workload.template.labels)).is_some();
        let is_deployment = workload.id.kind == WorkloadKind::Deployment;
        is_it && is_deployment && workload.scale != Scale::Replicas(0)
    });
    let declared = declared.map(|workload| workload.id.to_string());
    let Observed { workloads, pods, templates, .. } = observed;
    let live = running(workloads, pods, templates, may_resize).into_iter();
    let mut all = declared.chain(live.map(|rival| rival.workload));
    let homes = desired.autoscaler_namespaces.as_ref();
    all.find(|workload| homes.is_none_or(|homes| lives_in(workload, homes)))
}

/// Returns whether a node is of a pool, and was launched neither by us nor by EKS: who made it is no tenant.
fn may_be_of_karpenter(node: &Node) -> bool {
    // Not by the tags of its machine: one that was adopted carries ours, and Karpenter may come back for it.
    let is_ours = node.labels.contains_key(KEY_LABEL);
    let has_pool = [key::NODEPOOL, key::PROVISIONER].iter().any(|k| node.labels.contains_key(*k));
    has_pool && !is_ours && !node.is_of_auto_mode() && !node.is_fargate()
}

impl Rival {
    /// Returns whether it lives where such controllers are installed, and no tenant makes anything.
    fn is_at_home(&self) -> bool {
        self.workload.split_once('/').is_some_and(|(namespace, _)| HOMES.contains(&namespace))
    }

    /// Returns whether it lives in one of those namespaces.
    #[must_use]
    pub fn lives_in(&self, homes: &BTreeSet<Namespace>) -> bool {
        lives_in(&self.workload, homes)
    }
}

fn lives_in(workload: &str, homes: &BTreeSet<Namespace>) -> bool {
    workload.split_once('/').is_some_and(|(namespace, _)| homes.contains(namespace))
}

/// Returns the controllers that are called so, by the names of workloads and the labels of their templates, in
/// whichever namespace. Whoever may make a Deployment may make one of these: enough to tell of, not to stop for.
#[must_use]
pub fn rivals_among(
    workloads: &[LiveWorkload],
    pods: &[Arc<Pod>],
    templates: &BTreeMap<String, Arc<PodTemplate>>,
) -> Vec<Rival> {
    running(workloads, pods, templates, kind_of)
}

/// Returns the Deployments that run and are one of something by their name and the labels of their templates.
fn running(
    workloads: &[LiveWorkload],
    pods: &[Arc<Pod>],
    templates: &BTreeMap<String, Arc<PodTemplate>>,
    kind_of: fn(&str, Option<&Labels>) -> Option<&'static str>,
) -> Vec<Rival> {
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
    // A controller that was scaled to nothing acts until its last pod has gone.
    for pod in pods.iter().filter(|pod| pod.is_active()) {
        let Some(owner) = &pod.owner else { continue };
        if let Some((_, running)) = found.get_mut(owner) {
            *running = (*running).max(1);
        } else if let Some(kind) = kind(owner, Some(&pod.template)) {
            found.insert(owner, (kind, 1));
        }
    }
    let running = found.into_iter().filter(|(_, (_, running))| *running > 0);
    running.map(|(id, (kind, running))| Rival { workload: id.to_string(), kind, running }).collect()
}

/// The labels by which charts, and manifests older than the first of these, say what a workload is, whatever it is
/// called.
const NAME_LABELS: [&str; 3] = ["app.kubernetes.io/name", "app", "k8s-app"];

/// Namespaces that hold what keeps a cluster: Karpenter's guide takes the first, its older ones the second.
const HOMES: [&str; 3] = ["kube-system", "karpenter", "cluster-autoscaler"];

/// What Karpenter is called.
pub const KARPENTER: &str = "karpenter";
/// What its Deployment was called before the chart was.
const OLD_KARPENTER: &str = "karpenter-controller";
/// What Cluster Autoscaler is called.
pub const CLUSTER_AUTOSCALER: &str = "cluster-autoscaler";
/// What its chart makes of the name of a release, or of a cloud.
const OF_CHART: &str = "-cluster-autoscaler";

/// Returns which controller a Deployment is, by its name or by a label of its pods, whole: what watches one (an exporter, a
/// dashboard) is called after it.
#[must_use]
pub fn kind_of(name: &str, labels: Option<&Labels>) -> Option<&'static str> {
    let is_autoscaler = |name: &str| name == CLUSTER_AUTOSCALER || name.ends_with(OF_CHART);
    let mut names = names(name, labels);
    if names.clone().any(is_autoscaler) {
        return Some(CLUSTER_AUTOSCALER);
    }
    names.any(|name| [KARPENTER, OLD_KARPENTER].contains(&name)).then_some(KARPENTER)
}

/// Returns whether a Deployment is Cluster Autoscaler for all that its name tells: kOps and others put a cloud or a
/// cluster behind it. That it is an exporter costs a group that is left alone, with the reason.
fn may_resize(name: &str, labels: Option<&Labels>) -> Option<&'static str> {
    names(name, labels).any(|name| name.contains(CLUSTER_AUTOSCALER)).then_some(CLUSTER_AUTOSCALER)
}

/// Returns what a Deployment is called, by its name and by the labels of its pods.
fn names<'a>(
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
            phase: crate::fleet::PodPhase::Running,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            terminating: false,
            mirror: false,
            started_at: None,
            granted: BTreeMap::new(),
        })
    }

    #[test]
    fn another_controller_is_known_by_its_name_or_its_label_however_it_was_installed() {
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
                let found = rivals_among(&[], &[pod(name, WorkloadKind::Deployment)], &templates);
                let found = found.first().map(|rival| (rival.kind, rival.running));
                assert_eq!(found, expected.map(|kind| (kind, 1)), "{name} {key} {label:?}");
            }
        }
        let agent = pod("karpenter", WorkloadKind::DaemonSet);
        assert_eq!(rivals_among(&[], &[agent], &BTreeMap::new()), []);
    }

    /// Returns a cluster with a Deployment `name` that runs in `namespace`, and its only node with `labels`.
    fn with(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Observed {
        let mut observed = crate::story::Story::new(&["m5.large"], 100, 128).observed;
        observed.nodes.clear();
        let mut made = Pod::clone(&pod(name, WorkloadKind::Deployment));
        made.owner.as_mut().expect("an owner").namespace = namespace.into();
        observed.pods.push(Arc::new(made));
        let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let node = Node { labels, ..crate::fleet::fixture::node("n") };
        observed.nodes.insert("n".into(), node);
        observed
    }

    #[test]
    fn a_deployment_of_a_tenant_is_no_autoscaler_by_its_name() {
        let (pool, ours) = (("karpenter.sh/nodepool", "web"), ("fleetwright.dev/key", "0"));
        let auto = ("eks.amazonaws.com/compute-type", "auto");
        for (namespace, name, labels, expected) in [
            ("kube-system", "karpenter", &[][..], true),
            ("karpenter", "karpenter", &[], true),
            ("kube-system", "cluster-autoscaler", &[], true),
            ("shop", "karpenter", &[], false),
            ("shop", "karpenter", &[pool, ours], false),
            ("shop", "karpenter", &[pool, auto], false),
            // A tenant makes no nodes: whoever did runs somewhere.
            ("platform", "karpenter", &[pool], true),
            ("platform", "cluster-autoscaler", &[pool], false),
        ] {
            let found = rivals(&with(namespace, name, labels), None);
            assert_eq!(found.len(), usize::from(expected), "{namespace}/{name} {labels:?}");
        }
    }

    #[test]
    fn a_controller_acts_until_its_last_pod_has_gone() {
        let pod = pod("karpenter", WorkloadKind::Deployment);
        let ending = Arc::new(Pod { terminating: true, ..Pod::clone(&pod) });
        let id = pod.owner.clone().expect("an owner");
        let stopped =
            LiveWorkload { id, replicas: 0, first_ordinal: 0, delivered: false, template: None };
        for (pods, expected) in [(vec![pod], 1), (vec![ending], 0), (vec![], 0)] {
            let found = rivals_among(std::slice::from_ref(&stopped), &pods, &BTreeMap::new());
            assert_eq!(found.len(), expected, "{pods:?}");
        }
    }

    #[test]
    fn where_it_is_declared_who_lives_where_nobody_else_counts() {
        let homes = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
        let karpenter = with("infra", "karpenter", &[("karpenter.sh/nodepool", "web")]);
        let autoscaler = with("infra", "cluster-autoscaler", &[]);
        for (names, counts) in [(&["infra"][..], 1), (&["kube-system", "infra"], 1), (&[], 0)] {
            let homes: BTreeSet<Namespace> = homes(names);
            let tenants = with("infra", "karpenter", &[]);
            assert_eq!(rivals(&tenants, Some(&homes)).len(), counts, "{names:?}");
            assert_eq!(
                rivals(&karpenter, Some(&homes)).len(),
                1,
                "whose nodes are there runs somewhere"
            );
            assert_eq!(rivals(&autoscaler, Some(&homes)).len(), counts, "{names:?}");
            let desired = Desired { autoscaler_namespaces: Some(homes), ..Desired::default() };
            let resizes = resizer(&autoscaler, &desired);
            assert_eq!(resizes.as_deref(), (counts > 0).then_some("infra/cluster-autoscaler"));
        }
        // Where nothing is declared it stops nobody, and a group is left to it all the same.
        assert_eq!(rivals(&autoscaler, None), []);
        assert!(resizer(&autoscaler, &Desired::default()).is_some());
        assert_eq!(resizer(&karpenter, &Desired::default()), None);
        let called_after = with("infra", "cluster-autoscaler-aws", &[]);
        assert!(resizer(&called_after, &Desired::default()).is_some());
        assert_eq!(rivals(&called_after, Some(&homes(&["infra"]))), []);
    }
}
