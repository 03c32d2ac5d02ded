//! Taking over nodes that Karpenter left, without replacing them: which, under which names, and who is
//! in the way.
//!
//! This module knows what makes a node ours (three tags of its instance) and which controllers fight
//! for nodes. A name or a label anybody may give a Deployment of their own: one counts where only those live who
//! keep the cluster, or beside nodes that Karpenter has, since no tenant makes nodes. It refuses to know how tags are written. Invariants: a node is taken over only into the
//! pool that its own label names and that the repository declares; a machine that carries our tags
//! already, or those of another cluster, is left alone; what is left says why; nothing but tags changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;

use crate::fleet::{Instance, InstanceState, KEY_LABEL, LiveWorkload, Node, Observed, Pod, tag};
use crate::ids::{
    Address, InstanceId, LabelValue, NodeName, PoolName, Uid, WorkloadId, WorkloadKind,
};
use crate::manifest::Desired;
use crate::plan::canonical;
use crate::pod::PodTemplate;
use crate::requirement::key;

/// What would be taken over, and what not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Adoption {
    /// Nodes that are taken over, by address.
    pub rows: Vec<AdoptRow>,
    /// Nodes that are not, each with the reason.
    pub left: Vec<LeftRow>,
    /// Controllers that would fight for the nodes.
    pub rivals: Vec<Rival>,
}

/// A node that is taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdoptRow {
    /// Its address from then on.
    pub address: Address,
    /// What happens: `update`, in place.
    pub actions: [&'static str; 1],
    /// Its pool.
    pub pool: PoolName,
    /// Node.
    pub node: NodeName,
    /// UID of the node.
    pub node_uid: Uid,
    /// Instance.
    pub instance: InstanceId,
    /// Tags that the instance gets.
    pub tags: BTreeMap<String, String>,
}

/// A node that is not taken over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeftRow {
    /// Node.
    pub node: NodeName,
    /// Why.
    pub why: String,
}

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

impl Adoption {
    /// Returns the SHA-256 over the rows: what is approved.
    ///
    /// # Panics
    /// Never: rows hold texts alone.
    #[must_use]
    pub fn digest(&self) -> String {
        let digest = canonical::sha256(&self.rows).expect("rows hold texts alone");
        format!("sha256:{digest}")
    }

    /// Returns whether the controller of the nodes that would be taken over runs still.
    #[must_use]
    pub fn is_contested(&self) -> bool {
        !self.rows.is_empty() && self.rivals.iter().any(|rival| rival.kind == "karpenter")
    }
}

/// Returns what may be taken over of what runs.
#[must_use]
pub fn adoption(desired: &Desired, observed: &Observed) -> Adoption {
    let (mut rows, mut left) = (Vec::new(), Vec::new());
    let mut used = keys_in_use(observed);
    let left_behind = observed.left_behind();
    for node in observed.nodes.values().filter(|node| !node.is_fargate()) {
        let candidate = match left_behind.get(&node.name) {
            Some(other) => Candidate::Left(format!("its machine runs as node `{}`", other.name)),
            None => candidate(desired, observed, node),
        };
        match candidate {
            Candidate::Ours => {}
            Candidate::Left(why) => left.push(LeftRow { node: node.name.clone(), why }),
            Candidate::Free(pool, instance) => {
                let key = next_key(used.entry(pool.clone()).or_default());
                rows.push(row(&observed.cluster.name, node, (pool, key, instance)));
            }
        }
    }
    Adoption { rows, left, rivals: rivals(observed) }
}

enum Candidate {
    /// It is ours already, or the member of a group.
    Ours,
    Free(PoolName, InstanceId),
    Left(String),
}

fn candidate(desired: &Desired, observed: &Observed, node: &Node) -> Candidate {
    let left = |why: &str| Candidate::Left(why.to_owned());
    let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
    let cluster = &observed.cluster.name;
    if instance.is_some_and(|instance| instance.is_ours(cluster) || instance.group.is_some()) {
        return Candidate::Ours;
    }
    if node.is_of_auto_mode() {
        return left("EKS Auto Mode keeps it, which no scaling to nothing stops");
    }
    let label = node.labels.get(key::NODEPOOL).or_else(|| node.labels.get(key::PROVISIONER));
    let Some(pool) = label.map(|value| PoolName::from(value.as_str())) else {
        return left("it carries the label of no pool");
    };
    if !desired.pools.contains_key(&pool) {
        return Candidate::Left(format!("its pool `{pool}` is not declared in the repository"));
    }
    let Some(id) = node.instance.clone() else { return left("it names no instance") };
    match instance.and_then(|instance| instance.tags.get(tag::CLUSTER)) {
        Some(other) if other != cluster => {
            Candidate::Left(format!("its instance carries the tag of cluster `{other}`"))
        }
        Some(_) | None => Candidate::Free(pool, id),
    }
}

fn keys_in_use(observed: &Observed) -> BTreeMap<PoolName, BTreeSet<String>> {
    let mut used: BTreeMap<PoolName, BTreeSet<String>> = BTreeMap::new();
    let ours = |instance: &&Instance| instance.is_ours(&observed.cluster.name);
    for instance in observed.instances.values().filter(ours) {
        if let (Some(pool), Some(key)) = (instance.tags.get(tag::POOL), instance.tags.get(tag::KEY))
        {
            used.entry(pool.as_str().into()).or_default().insert(key.clone());
        }
    }
    used
}

/// Takes the lowest integer that is unused, as launches do.
fn next_key(used: &mut BTreeSet<String>) -> String {
    let free = (0..=used.len()).map(|number| number.to_string()).find(|key| !used.contains(key));
    let key = free.expect("one more candidate than keys are used");
    used.insert(key.clone());
    key
}

fn row(
    cluster: &str,
    node: &Node,
    (pool, key, instance): (PoolName, String, InstanceId),
) -> AdoptRow {
    let tags = [(tag::CLUSTER, cluster), (tag::POOL, pool.as_str()), (tag::KEY, &key)];
    AdoptRow {
        address: format!("ec2_instance.{pool}[\"{key}\"]").into(),
        actions: ["update"],
        tags: tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        pool,
        node: node.name.clone(),
        node_uid: node.uid.clone(),
        instance,
    }
}

/// Returns the world as it is once `rows` are taken over.
#[must_use]
pub fn adopted(observed: &Observed, rows: &[AdoptRow]) -> Observed {
    let mut world = observed.clone();
    for row in rows {
        let known = world.instances.get(&row.instance).cloned();
        let seen = || observed.nodes.get(&row.node).and_then(|node| of_node(node, &row.instance));
        if let Some(mut instance) = known.or_else(seen) {
            instance.tags.extend(row.tags.clone());
            world.instances.insert(row.instance.clone(), instance);
        }
    }
    world
}

/// Returns an instance as far as its node tells of it: EC2 is asked for ours alone.
fn of_node(node: &Node, id: &InstanceId) -> Option<Instance> {
    let label = |key: &str| node.labels.get(key).map(LabelValue::as_str);
    let capacity_type = serde_json::from_value(label(key::CAPACITY_TYPE)?.into()).ok()?;
    Some(Instance {
        id: id.clone(),
        instance_type: label(key::INSTANCE_TYPE)?.into(),
        zone: label(key::ZONE)?.into(),
        capacity_type,
        state: InstanceState::Running,
        launched_at: node.created_at,
        image: String::new(),
        tags: BTreeMap::new(),
        reservation: None,
        group: None,
    })
}

/// Returns the controllers in a cluster that make and remove nodes by themselves: of those that are called so, the
/// ones in a namespace of whoever keeps the cluster, and Karpenter wherever nodes are that it may have.
#[must_use]
pub fn rivals(observed: &Observed) -> Vec<Rival> {
    let mut found = rivals_among(&observed.workloads, &observed.pods, &observed.templates);
    let has_nodes = observed.nodes.values().any(may_be_of_karpenter);
    found.retain(|rival| rival.is_at_home() || (rival.kind == KARPENTER && has_nodes));
    found
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
}

/// Returns the controllers that are called so, by the names of workloads and the labels of their templates, in
/// whichever namespace. Whoever may make a Deployment may make one of these: enough to tell of, not to stop for.
#[must_use]
pub fn rivals_among(
    workloads: &[LiveWorkload],
    pods: &[Arc<Pod>],
    templates: &BTreeMap<String, Arc<PodTemplate>>,
) -> Vec<Rival> {
    let label = |template: &String| templates.get(template)?.labels.get(NAME_LABEL);
    let kind = |id: &WorkloadId, template: Option<&String>| {
        let label = template.and_then(label).map(LabelValue::as_str);
        (id.kind == WorkloadKind::Deployment).then(|| kind_of(&id.name, label)).flatten()
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

/// The label by which charts say what a workload is, whatever it is called.
const NAME_LABEL: &str = "app.kubernetes.io/name";

/// Namespaces that hold what keeps a cluster: Karpenter's guide takes the first, its older ones the second.
const HOMES: [&str; 3] = ["kube-system", "karpenter", "cluster-autoscaler"];

const KARPENTER: &str = "karpenter";
/// What its Deployment was called before the chart was.
const OLD_KARPENTER: &str = "karpenter-controller";
const CLUSTER_AUTOSCALER: &str = "cluster-autoscaler";
/// What its chart makes of the name of a release, or of a cloud.
const OF_CHART: &str = "-cluster-autoscaler";

/// Returns which controller a Deployment is, by its name or by its label, whole: what watches one (an exporter, a
/// dashboard) is called after it.
fn kind_of(name: &str, label: Option<&str>) -> Option<&'static str> {
    let is_autoscaler = |name: &str| name == CLUSTER_AUTOSCALER || name.ends_with(OF_CHART);
    let mut names = std::iter::once(name).chain(label);
    if names.clone().any(is_autoscaler) {
        return Some(CLUSTER_AUTOSCALER);
    }
    names.any(|name| [KARPENTER, OLD_KARPENTER].contains(&name)).then_some(KARPENTER)
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
            let labels = label.map(|label| (NAME_LABEL.into(), label.into()));
            let template =
                PodTemplate { labels: labels.into_iter().collect(), ..PodTemplate::default() };
            let templates = BTreeMap::from([("t".to_owned(), Arc::new(template))]);
            let found = rivals_among(&[], &[pod(name, WorkloadKind::Deployment)], &templates);
            let found = found.first().map(|rival| (rival.kind, rival.running));
            assert_eq!(found, expected.map(|kind| (kind, 1)), "{name} {label:?}");
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
            let found = rivals(&with(namespace, name, labels));
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
}
