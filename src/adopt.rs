//! Taking over nodes that Karpenter left, without replacing them: which, under which names, and who is
//! in the way.
//!
//! This module knows what makes a node ours (three tags of its instance). It refuses to know how tags are written.
//! Invariants: a node is taken over only into the pool that its own label names and that the repository declares; a
//! machine that carries our tags already, or those of another cluster, is left alone; what is left says why; nothing
//! but tags changes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::fleet::{Instance, InstanceState, MadeWith, Node, Observed, tag};
use crate::ids::{Address, InstanceId, LabelValue, NodeName, PoolName, Tags, Uid};
use crate::manifest::Desired;
use crate::plan::canonical;
use crate::requirement::key;
use crate::rival::{KARPENTER, Rival, rivals};

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
        !self.rows.is_empty() && self.rivals.iter().any(|rival| rival.kind == KARPENTER)
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
    Adoption { rows, left, rivals: rivals(observed, desired.autoscaler_namespaces.as_ref()) }
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
        made_with: MadeWith::default(),
        tags: Tags::new(),
        reservation: None,
        group: None,
    })
}
