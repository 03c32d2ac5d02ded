//! Adopts nodes that Karpenter launched, without replacing them.
//!
//! An instance is managed if it carries three tags. This module selects the nodes, assigns the tag
//! values, and reports competing autoscalers. It does not write tags.
//!
//! Invariants:
//! - The pool of an adopted node is named by the node's label and declared in the repository.
//! - An instance with our tags, or with the tag of another cluster, is skipped.
//! - Every skipped node has a reason.
//! - Adoption changes tags only.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::model::competing_autoscaler::{CompetingAutoscaler, KARPENTER, competing_autoscalers};
use crate::model::desired::Desired;
use crate::model::ids::{Address, InstanceId, LabelValue, NodeName, PoolName, Tags, Uid};
use crate::model::observed::{Instance, InstanceState, LaunchedWith, Node, Observed, tag};
use crate::model::requirement::key;
use crate::plan::canonical;

/// Nodes to adopt, and nodes that are skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Adoption {
    /// Nodes to adopt, by address.
    pub rows: Vec<AdoptRow>,
    /// Nodes that are not adopted, with the reason.
    #[serde(rename = "left")]
    pub skipped: Vec<SkippedNode>,
    /// Autoscalers that would manage the same nodes.
    pub competing_autoscalers: Vec<CompetingAutoscaler>,
}

/// A node to adopt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdoptRow {
    /// Address of the node after adoption.
    pub address: Address,
    /// Action: `update`, in place.
    pub actions: [&'static str; 1],
    /// Pool of the node.
    pub pool: PoolName,
    /// Name of the node.
    pub node: NodeName,
    /// UID of the node.
    pub node_uid: Uid,
    /// Instance of the node.
    pub instance: InstanceId,
    /// Tags to add to the instance.
    pub tags: BTreeMap<String, String>,
}

/// A node that is not adopted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SkippedNode {
    /// Name of the node.
    pub node: NodeName,
    /// Reason for skipping it.
    pub why: String,
}

impl Adoption {
    /// Returns the SHA-256 digest of the rows, which is the approved value.
    ///
    /// # Panics
    /// Never: the rows contain only texts.
    pub fn digest(&self) -> String {
        let digest = canonical::sha256(&self.rows).expect("rows contain only texts");
        format!("sha256:{digest}")
    }

    /// Returns true if nodes are to be adopted while Karpenter is still running.
    pub fn is_contested(&self) -> bool {
        !self.rows.is_empty()
            && self.competing_autoscalers.iter().any(|competing| competing.kind == KARPENTER)
    }
}

/// Selects the running nodes to adopt.
pub fn adoption(desired: &Desired, observed: &Observed) -> Adoption {
    let (mut rows, mut skipped) = (Vec::new(), Vec::new());
    let mut used = keys_in_use(observed);
    let stale = observed.stale_nodes();
    for node in observed.nodes.values().filter(|node| !node.is_fargate()) {
        let candidate = match stale.get(&node.name) {
            Some(other) => {
                Candidate::Skipped(format!("its instance is registered as node `{}`", other.name))
            }
            None => candidate(desired, observed, node),
        };
        match candidate {
            Candidate::Managed => {}
            Candidate::Skipped(why) => skipped.push(SkippedNode { node: node.name.clone(), why }),
            Candidate::Adoptable(pool, instance) => {
                let key = next_key(used.entry(pool.clone()).or_default());
                rows.push(row(&observed.cluster.name, node, pool, &key, instance));
            }
        }
    }
    Adoption {
        rows,
        skipped,
        competing_autoscalers: competing_autoscalers(
            observed,
            desired.autoscaler_namespaces.as_ref(),
        ),
    }
}

enum Candidate {
    /// The node is managed, or a member of an Auto Scaling group.
    Managed,
    Adoptable(PoolName, InstanceId),
    Skipped(String),
}

fn candidate(desired: &Desired, observed: &Observed, node: &Node) -> Candidate {
    let skipped = |why: &str| Candidate::Skipped(why.to_owned());
    let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
    let cluster = &observed.cluster.name;
    if instance.is_some_and(|instance| instance.is_managed_by(cluster) || instance.group.is_some())
    {
        return Candidate::Managed;
    }
    if node.is_auto_mode() {
        return skipped("EKS Auto Mode manages it and cannot be scaled to zero");
    }
    let label = node.labels.get(key::NODEPOOL).or_else(|| node.labels.get(key::PROVISIONER));
    let Some(pool) = label.map(|value| PoolName::from(value.as_str())) else {
        return skipped("it carries the label of no pool");
    };
    if !desired.pools.contains_key(&pool) {
        return Candidate::Skipped(format!("its pool `{pool}` is not declared in the repository"));
    }
    let Some(id) = node.instance.clone() else { return skipped("it names no instance") };
    match instance.and_then(|instance| instance.tags.get(tag::CLUSTER)) {
        Some(other) if other != cluster => {
            Candidate::Skipped(format!("its instance carries the tag of cluster `{other}`"))
        }
        Some(_) | None => Candidate::Adoptable(pool, id),
    }
}

fn keys_in_use(observed: &Observed) -> BTreeMap<PoolName, BTreeSet<String>> {
    let mut used: BTreeMap<PoolName, BTreeSet<String>> = BTreeMap::new();
    let ours = |instance: &&Instance| instance.is_managed_by(&observed.cluster.name);
    for instance in observed.instances.values().filter(ours) {
        if let (Some(pool), Some(key)) = (instance.tags.get(tag::POOL), instance.tags.get(tag::KEY))
        {
            used.entry(pool.as_str().into()).or_default().insert(key.clone());
        }
    }
    used
}

/// Reserves the lowest unused integer, as launches do.
fn next_key(used: &mut BTreeSet<String>) -> String {
    let free = (0..=used.len()).map(|number| number.to_string()).find(|key| !used.contains(key));
    let key = free.expect("one more candidate than keys are used");
    used.insert(key.clone());
    key
}

fn row(cluster: &str, node: &Node, pool: PoolName, key: &str, instance: InstanceId) -> AdoptRow {
    let tags = [(tag::CLUSTER, cluster), (tag::POOL, pool.as_str()), (tag::KEY, key)];
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

/// Returns `observed` after the adoption of `rows`.
pub fn with_adopted_nodes(observed: &Observed, rows: &[AdoptRow]) -> Observed {
    let mut adopted = observed.clone();
    for row in rows {
        let known = adopted.instances.get(&row.instance).cloned();
        let from_node = || {
            observed.nodes.get(&row.node).and_then(|node| instance_from_node(node, &row.instance))
        };
        if let Some(mut instance) = known.or_else(from_node) {
            instance.tags.extend(row.tags.clone());
            adopted.instances.insert(row.instance.clone(), instance);
        }
    }
    adopted
}

/// Returns an instance built from the labels of its node. EC2 lists managed instances only.
fn instance_from_node(node: &Node, id: &InstanceId) -> Option<Instance> {
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
        launched_with: LaunchedWith::default(),
        tags: Tags::new(),
        reservation: None,
        group: None,
    })
}
