//! Worlds with nodes and pods: synthetic ones, and the world after the apply of a plan.

use std::collections::BTreeMap;

use fleetwright::catalog::{Catalog, NodeSettings, allocation};
use fleetwright::model::desired::{Desired, Fleet};
use fleetwright::model::ids::{NodeName, WorkloadId, workload_key};
use fleetwright::model::market::CapacityType;
use fleetwright::model::observed::{
    ClusterIdentity, Instance, InstanceState, LaunchedWith, Node, Observed, Pod, PodPhase, tag,
};
use fleetwright::model::requirement::label;
use fleetwright::model::units::{Bytes, MilliCpu, Resources};
use fleetwright::plan::Plan;
use fleetwright::plan::wire::{Amount, NodeState};
use jiff::SignedDuration;

pub(crate) fn empty(fleet: &Fleet) -> anyhow::Result<Observed> {
    let cluster = ClusterIdentity {
        name: fleet.cluster.name.clone(),
        region: fleet.cluster.region.to_string(),
        ..ClusterIdentity::default()
    };
    Ok(Observed::empty(cluster, "2026-11-01T00:00:00Z".parse()?))
}

/// Adds a node of a pool with an age of one hour.
pub(crate) fn add_node(
    world: &mut Observed,
    desired: &Desired,
    catalog: &Catalog,
    pool: &str,
    kind: &str,
    zone: &str,
) -> NodeName {
    let number = world.nodes.len();
    let name = format!("node-{number:05}");
    let declared = &desired.pools[pool];
    let class = declared.node_class.as_ref().and_then(|class| desired.node_classes.get(class));
    let settings = class.map(|class| NodeSettings::new(declared, class)).unwrap_or_default();
    let found = catalog.get(&kind.into()).expect("a type of the catalog");
    let amounts = allocation(found, &settings);
    let mut labels = found.labels.clone();
    labels.extend([
        label("topology.kubernetes.io/zone", zone),
        label("topology.kubernetes.io/region", catalog.region.as_str()),
        label("karpenter.sh/capacity-type", "on-demand"),
        label("karpenter.sh/nodepool", pool),
    ]);
    let created_at = world.taken_at - SignedDuration::from_hours(1);
    let cluster = world.cluster.name.clone();
    let tags = [(tag::CLUSTER, cluster), (tag::POOL, pool.into()), (tag::KEY, number.to_string())];
    let instance = Instance {
        reservation: None,
        id: format!("i-{name}").into(),
        instance_type: kind.into(),
        zone: zone.into(),
        capacity_type: CapacityType::OnDemand,
        state: InstanceState::Running,
        launched_at: created_at,
        image: class.map(|class| class.image.clone()).unwrap_or_default(),
        launched_with: LaunchedWith::default(),
        tags: tags.map(|(key, value)| (key.to_owned(), value)).into(),
        group: None,
    };
    let node = Node {
        name: name.as_str().into(),
        uid: name.as_str().into(),
        instance: None,
        labels,
        annotations: BTreeMap::new(),
        taints: declared.taints.clone(),
        capacity: amounts.capacity,
        allocatable: amounts.allocatable,
        ready: true,
        faults: [].into(),
        was_ready: false,
        unschedulable: false,
        created_at,
    };
    join(world, instance, node)
}

fn join(world: &mut Observed, instance: Instance, mut node: Node) -> NodeName {
    let name = node.name.clone();
    node.labels.extend([label("kubernetes.io/hostname", name.as_str())]);
    node.instance = Some(instance.id.clone());
    world.instances.insert(instance.id.clone(), instance);
    world.nodes.insert(name.clone(), node);
    name
}

/// Adds running pods of a workload on a node.
pub(crate) fn bind(
    world: &mut Observed,
    desired: &Desired,
    owner: &WorkloadId,
    node: &NodeName,
    count: usize,
) {
    let key = owner.to_string();
    let template = std::sync::Arc::from(key.as_str());
    world.templates.insert(key, desired.workloads[owner].template.clone());
    for _ in 0..count {
        let number = world.pods.len();
        world.pods.push(std::sync::Arc::new(Pod {
            namespace: owner.namespace.clone(),
            name: format!("{}-{number}", owner.name).into(),
            uid: format!("uid-{number}").into(),
            owner: Some(owner.clone()),
            template: std::sync::Arc::clone(&template),
            node: Some(node.clone()),
            nominated: None,
            phase: PodPhase::Running,
            created_at: world.taken_at,
            terminating: false,
            mirror: false,
            started_at: None,
            ready_at: None,
            deletion_cost: 0,
            granted: [].into(),
        }));
    }
}

/// Returns the world after the apply of `plan`, with each placed pod on its node.
pub(crate) fn carried_out(world: &Observed, plan: &Plan, desired: &Desired) -> Observed {
    let mut after = Observed { pods: Vec::new(), ..world.clone() };
    let mut at: BTreeMap<&str, NodeName> = BTreeMap::new();
    for row in &plan.resource_changes {
        let (before, now) = (&row.change.before, &row.change.after);
        if let (Some(gone), true) = (before, before != now) {
            gone.node.as_ref().map(|name| after.nodes.remove(name));
            gone.instance_id.as_ref().map(|id| after.instances.remove(id));
        }
        let name = match now {
            None => continue,
            Some(state) if before == now => state.node.clone(),
            Some(state) => Some(launch(&mut after, state, row.index.as_deref())),
        };
        at.extend(name.map(|name| (row.address.as_str(), name)));
    }
    let known: BTreeMap<String, &WorkloadId> =
        desired.workloads.keys().map(|id| (workload_key(id), id)).collect();
    for row in &plan.capacity.explain {
        let Some(node) = at.get(row.address.as_str()) else { continue };
        for (key, count) in &row.pods {
            let count = usize::try_from(*count).expect("few pods");
            bind(&mut after, desired, known[key.as_str()], node, count);
        }
    }
    after
}

/// Adds the Ready instance of a row.
fn launch(world: &mut Observed, state: &NodeState, index: Option<&str>) -> NodeName {
    let is_used = |n: &usize| world.instances.contains_key(format!("i-new-{n}").as_str());
    let first = world.instances.len();
    // Of n + 1 numbers, n instances leave one free.
    let number = (0..=first).rev().find(|n| !is_used(n)).expect("a number is free");
    let pool = state.pool.as_ref().map(ToString::to_string).unwrap_or_default();
    let tags = [
        (tag::CLUSTER, world.cluster.name.clone()),
        (tag::POOL, pool),
        (tag::KEY, index.unwrap_or_default().to_owned()),
        (tag::SPEC, state.spec_digest.clone().unwrap_or_default()),
    ];
    let instance = Instance {
        reservation: None,
        id: format!("i-new-{number}").into(),
        instance_type: state.instance_type.clone().expect("a launch has a type"),
        zone: state.zone.clone().expect("a launch has a zone"),
        capacity_type: state.capacity_type.expect("a launch has a capacity type"),
        state: InstanceState::Running,
        launched_at: world.taken_at,
        image: state.image.clone().unwrap_or_default(),
        launched_with: LaunchedWith::default(),
        tags: tags.map(|(key, value)| (key.to_owned(), value)).into(),
        group: None,
    };
    let name = format!("new-{number}");
    let node = Node {
        name: name.as_str().into(),
        uid: name.as_str().into(),
        instance: None,
        labels: state.labels.clone(),
        annotations: BTreeMap::new(),
        taints: state.taints.clone(),
        capacity: resources(&state.capacity),
        allocatable: resources(&state.allocatable),
        ready: true,
        faults: [].into(),
        was_ready: false,
        unschedulable: false,
        created_at: world.taken_at,
    };
    join(world, instance, node)
}

/// Converts amounts of the wire form.
fn resources(amount: &Amount) -> Resources {
    Resources {
        cpu: MilliCpu(amount.cpu_milli),
        memory: Bytes(amount.memory_bytes),
        ephemeral_storage: Bytes(amount.ephemeral_storage_bytes),
        pods: amount.pods,
        extended: amount.extended.iter().map(|(k, n)| (k.as_str().into(), *n)).collect(),
    }
}
