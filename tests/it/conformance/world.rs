//! Observed nodes and pods, and the observation after an apply.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright::catalog::{Catalog, InstanceType, NodeSettings, allocation};
use fleetwright::model::desired::{Desired, Pool, Scale};
use fleetwright::model::ids::{InstanceId, Labels, NodeName, Tags, WorkloadId, WorkloadKind};
use fleetwright::model::market::CapacityType;
use fleetwright::model::observed::{
    Exclusion, Group, Instance, InstanceState, LaunchedWith, LiveWorkload, Membership, Node,
    Observed, Pod, PodPhase, tag,
};
use fleetwright::model::pod::{PodTemplate, Taint, TaintEffect};
use fleetwright::model::requirement::label;
use fleetwright::model::storage::EBS_DRIVER;
use fleetwright::model::units::{Bytes, MilliCpu, Quantity, Resources};
use fleetwright::plan::wire::{Amount, NodeState, Plan, ResourceKind};
use jiff::SignedDuration;

use super::case_input::CLUSTER;
use super::case_line::{CaseLine, pairs};

/// Default age of nodes, in minutes.
const AGE_MINUTES: i64 = 60;

/// Options of a line of a node.
const NODE_OPTIONS: [&str; 9] =
    ["pool", "capacity", "labels", "taints", "annotations", "holds", "granted", "age", "member"];

/// Adds the node of a line, with its pods.
pub(super) fn add_node(
    world: &mut Observed,
    line: &CaseLine,
    desired: &Desired,
    catalog: &Catalog,
) -> Result<(), String> {
    line.only(&NODE_OPTIONS)?;
    let (name, kind, zone) = (line.word(1)?, line.word(2)?, line.word(3)?);
    let pool = line.option("pool").unwrap_or("default");
    let member = line.option("member");
    let is_foreign = line.has("foreign") || member.is_some();
    let pool = member.unwrap_or(pool);
    let declared = desired.pools.get(pool).filter(|_| !is_foreign || member.is_some());
    let class = declared.and_then(|pool| desired.node_classes.get(pool.node_class.as_ref()?));
    let settings = declared.zip(class).map(|(pool, class)| NodeSettings::new(pool, class));
    let capacity_type = capacity_type(line)?;
    let found = catalog.get(&kind.into()).ok_or_else(|| format!("there is no type {kind}"))?;
    let mut amounts = allocation(found, &settings.unwrap_or_default());
    if line.has("without-devices") {
        amounts.capacity.extended.clear();
        amounts.allocatable.extended.clear();
    }
    let age = line.option("age").map_or(Ok(AGE_MINUTES), str::parse);
    let created_at =
        world.taken_at - SignedDuration::from_mins(age.map_err(|_| "age is in minutes")?);
    let id = InstanceId::from(format!("i-{name}"));
    let instance = Instance {
        reservation: None,
        id: id.clone(),
        instance_type: kind.into(),
        zone: zone.into(),
        capacity_type,
        state: InstanceState::Running,
        launched_at: created_at,
        image: class.map(|class| class.image.clone()).unwrap_or_default(),
        launched_with: LaunchedWith::default(),
        tags: if is_foreign { Tags::new() } else { tags(world, pool).into() },
        group: member.map(membership),
    };
    let mut labels = labels(line, found, &instance, catalog)?;
    add_labels(&mut labels, line, declared, pool, is_foreign);
    world.instances.insert(id.clone(), instance);
    if line.has("joining") {
        return Ok(());
    }
    let mut taints = declared.map(|pool| pool.taints.clone()).unwrap_or_default();
    taints.extend(line.option("taints").map(taints_of).transpose()?.unwrap_or_default());
    let annotations = line.option("annotations").map(|text| pairs(text, '=')).unwrap_or_default();
    let node = Node {
        name: name.into(),
        uid: name.into(),
        instance: Some(id),
        labels,
        annotations: annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        taints,
        capacity: amounts.capacity,
        allocatable: amounts.allocatable,
        ready: !line.has("not-ready"),
        faults: [].into(),
        was_ready: false,
        unschedulable: line.has("cordoned"),
        created_at,
    };
    world.nodes.insert(name.into(), node);
    bind_pods(world, line, desired)
}

/// Adds the labels of the pool or group, and the labels of the line.
fn add_labels(
    labels: &mut Labels,
    line: &CaseLine,
    declared: Option<&Pool>,
    pool: &str,
    is_foreign: bool,
) {
    if line.option("member").is_some() {
        labels.retain(|key, _| !key.as_str().starts_with("karpenter."));
    } else if !is_foreign {
        labels.extend([label("karpenter.sh/nodepool", pool)]);
    }
    labels.extend(declared.map(|pool| pool.labels.clone()).unwrap_or_default());
    labels.extend(line.option("labels").map(labels_of).unwrap_or_default());
}

/// Returns the capacity type of a line.
fn capacity_type(line: &CaseLine) -> Result<CapacityType, String> {
    match line.option("capacity") {
        None | Some("on-demand") => Ok(CapacityType::OnDemand),
        Some("spot") => Ok(CapacityType::Spot),
        Some(other) => Err(format!("`{other}` is not a capacity type")),
    }
}

/// Returns the labels of a node, without the labels of its pool.
fn labels(
    line: &CaseLine,
    kind: &InstanceType,
    instance: &Instance,
    catalog: &Catalog,
) -> Result<Labels, String> {
    let mut labels = kind.labels.clone();
    labels.extend([
        label("kubernetes.io/hostname", line.word(1)?),
        label("topology.kubernetes.io/zone", instance.zone.as_str()),
        label("topology.kubernetes.io/region", catalog.region.as_str()),
        label("karpenter.sh/capacity-type", instance.capacity_type.as_str()),
    ]);
    Ok(labels)
}

/// Binds the pods of option `holds` to the node of the line.
fn bind_pods(world: &mut Observed, line: &CaseLine, desired: &Desired) -> Result<(), String> {
    let node = line.word(1)?.into();
    for (owner, count) in line.option("holds").map(|text| pairs(text, ':')).unwrap_or_default() {
        let count = if count.is_empty() { Ok(1) } else { count.parse::<u32>() };
        let count = count.map_err(|_| "write holds=NAME:COUNT")?;
        let of = |id: &&WorkloadId| &*id.name == owner;
        let owner = desired.workloads.keys().find(of).ok_or(format!("no workload {owner}"))?;
        for _ in 0..count {
            bind(world, owner, &desired.workloads[owner].template, &node);
        }
    }
    for (owner, cpu) in line.option("granted").map(|text| pairs(text, ':')).unwrap_or_default() {
        let cpu: Quantity = cpu.parse().map_err(|_| "write granted=NAME:CPU")?;
        set_granted_cpu(world, owner, &node, cpu.ceil_milli());
    }
    Ok(())
}

/// Changes the granted CPU request of the pods of `owner` on `node`.
fn set_granted_cpu(world: &mut Observed, owner: &str, node: &NodeName, cpu_milli: i64) {
    let of = |id: &WorkloadId| &*id.name == owner;
    let here = |pod: &Pod| pod.node.as_ref() == Some(node) && pod.owner.as_ref().is_some_and(of);
    for pod in world.pods.iter_mut().filter(|pod| here(pod)) {
        let pod = Arc::make_mut(pod);
        pod.granted = [("app".to_owned(), [("cpu".into(), cpu_milli)].into())].into();
        let id = pod.owner.clone().expect("the filter selects pods with an owner");
        let template = Some(pod.template.to_string());
        if world.workloads.iter().all(|live| live.id != id) {
            world.workloads.push(LiveWorkload {
                id,
                replicas: 1,
                first_ordinal: 0,
                delivered: true,
                template,
                job: None,
            });
        }
    }
}

fn labels_of(text: &str) -> Labels {
    pairs(text, '=').into_iter().map(|(key, value)| label(key, value)).collect()
}

fn taints_of(text: &str) -> Result<Vec<Taint>, String> {
    let one = |taint: &str| {
        let (pair, effect) = taint.rsplit_once(':')?;
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let effect = match effect {
            "NoSchedule" => TaintEffect::NoSchedule,
            "NoExecute" => TaintEffect::NoExecute,
            "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
            _ => return None,
        };
        Some(Taint { key: key.into(), value: value.into(), effect })
    };
    text.split(',').map(|taint| one(taint).ok_or(format!("`{taint}` is not a taint"))).collect()
}

/// Returns the tags of another managed instance.
fn tags(world: &Observed, pool: &str) -> BTreeMap<String, String> {
    let of_pool = |i: &&Instance| i.tags.get(tag::POOL).is_some_and(|name| name == pool);
    let key = world.instances.values().filter(of_pool).count().to_string();
    let tags = [(tag::CLUSTER, CLUSTER), (tag::POOL, pool), (tag::KEY, key.as_str())];
    tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn bind(world: &mut Observed, owner: &WorkloadId, template: &Arc<PodTemplate>, node: &NodeName) {
    let key = owner.to_string();
    world.templates.insert(key.clone(), template.clone());
    // Names of removed pods are not reused.
    let number = world.pods.iter().filter_map(|pod| pod.uid.as_str().strip_prefix("uid-"));
    let number = number.filter_map(|n| n.parse::<usize>().ok()).max().map_or(0, |last| last + 1);
    // Pods of a StatefulSet have ordinals, which are reused.
    let is_taken = |name: &str| {
        let of = |pod: &Pod| pod.owner.as_ref() == Some(owner);
        world.pods.iter().any(|pod| of(pod) && &*pod.name == name)
    };
    let mut ordinals = (0..).map(|ordinal| format!("{}-{ordinal}", owner.name));
    let is_set = owner.kind == WorkloadKind::StatefulSet;
    let ordinal = if is_set { ordinals.find(|name| !is_taken(name)) } else { None };
    let name = ordinal.unwrap_or_else(|| format!("{}-{number}", owner.name));
    world.pods.push(Arc::new(Pod {
        namespace: owner.namespace.clone(),
        name: name.as_str().into(),
        uid: format!("uid-{number}").into(),
        owner: Some(owner.clone()),
        template: key.into(),
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

/// Adds an Auto Scaling group: `group NAME desired=3 min=1 max=5`. `types` lists its instance
/// types, `tags` adds tags, and `suspended` names a suspended process.
pub(super) fn add_group(world: &mut Observed, line: &CaseLine) -> Result<(), String> {
    line.only(&["desired", "min", "max", "types", "tags", "suspended"])?;
    let name = line.word(1)?;
    let number = |key: &str, default: u32| {
        line.option(key)
            .map_or(Ok(default), |text| text.parse().map_err(|_| format!("{key} is a number")))
    };
    let own = [("alpha.eksctl.io/cluster-name", CLUSTER), ("alpha.eksctl.io/nodegroup-name", name)];
    let more = line.option("tags").map(|text| pairs(text, '=')).unwrap_or_default();
    let tags = own.into_iter().chain(more);
    let group = Group {
        name: asg(name).as_str().into(),
        min: number("min", 0)?,
        max: number("max", 10)?,
        desired: number("desired", 0)?,
        types: line
            .option("types")
            .into_iter()
            .flat_map(|t| t.split(','))
            .map(Into::into)
            .collect(),
        zones: Vec::new(),
        tags: tags.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        mix: None,
        suspended: line.option("suspended").map(str::to_owned).into_iter().collect(),
        schedules: Vec::new(),
        schedules_unread: None,
        node_group: None,
        template_unread: None,
    };
    world.groups.insert(group.name.clone(), group);
    Ok(())
}

fn asg(name: &str) -> String {
    format!("asg-{name}")
}

fn membership(name: &str) -> Membership {
    Membership {
        name: asg(name).as_str().into(),
        lifecycle: "InService".to_owned(),
        protected: false,
    }
}

/// Adds a reservation: `reservation ID TYPE ZONE COUNT`.
pub(super) fn add_reservation(world: &mut Observed, line: &CaseLine) -> Result<(), String> {
    let reservation = serde_json::json!({
        "id": line.word(1)?,
        "instance_type": line.word(2)?,
        "zone": line.word(3)?,
        "available": line.count(4)?,
        "tags": { "team": "shop" },
    });
    let reservation = serde_json::from_value(reservation).map_err(|error| error.to_string())?;
    world.reservations.insert(line.word(1)?.into(), reservation);
    Ok(())
}

/// Excludes an offering for one hour because its capacity is insufficient: `insufficient-capacity
/// TYPE ZONE CAPACITY`. `*` means any.
pub(super) fn exclude_offering(world: &mut Observed, line: &CaseLine) -> Result<(), String> {
    let part = |index| line.word(index).map(|word| Some(word).filter(|word| *word != "*"));
    let capacity_type = match part(3)? {
        None => None,
        Some("on-demand") => Some(CapacityType::OnDemand),
        Some("spot") => Some(CapacityType::Spot),
        Some(other) => return Err(format!("`{other}` is not a capacity type")),
    };
    world.exclusions.push(Exclusion {
        instance_type: part(1)?.map(Into::into),
        zone: part(2)?.map(Into::into),
        capacity_type,
        until: world.taken_at + SignedDuration::from_hours(1),
    });
    Ok(())
}

/// Sets the attach limit for EBS volumes of a node: `attaches NODE COUNT`.
pub(super) fn set_attach_limit(world: &mut Observed, line: &CaseLine) -> Result<(), String> {
    let limits = [(EBS_DRIVER.to_owned(), line.count(2)?)].into();
    world.storage.attach_limits.insert(line.word(1)?.into(), limits);
    Ok(())
}

/// Returns the observation after an apply of `plan`, with every placed pod on its node.
pub(super) fn after_apply(world: &Observed, plan: &Plan, desired: &Desired) -> Observed {
    let mut after = world.clone();
    let mut node_by_address: BTreeMap<&str, NodeName> = BTreeMap::new();
    for row in &plan.resource_changes {
        if row.kind == ResourceKind::AutoscalingGroup {
            let size = row.change.after.as_ref().and_then(|state| state.group.as_ref());
            let live = size.and_then(|size| after.groups.get_mut(size.name.as_ref()?));
            if let Some((live, size)) = live.zip(size) {
                live.desired = size.desired;
            }
            continue;
        }
        let (before, now) = (&row.change.before, &row.change.after);
        if let (Some(gone), true) = (before, before != now) {
            gone.node.as_ref().map(|name| after.nodes.remove(name));
            gone.instance_id.as_ref().map(|id| after.instances.remove(id));
        }
        let name = match now {
            None => continue,
            Some(state) if before == now => state.node.clone(),
            Some(state) => {
                let pool = state.pool.as_ref().map(ToString::to_string).unwrap_or_default();
                let member = desired.node_groups.contains_key(pool.as_str());
                let name = launch(&mut after, state, row.index.as_deref());
                if member && !world.groups.is_empty() {
                    join_group(&mut after, &name, &pool);
                }
                Some(name)
            }
        };
        node_by_address.extend(name.map(|name| (row.address.as_str(), name)));
    }
    after.pods.retain(|pod| {
        let daemon = pod.owner.as_ref().is_some_and(|o| o.kind == WorkloadKind::DaemonSet);
        daemon && pod.node.as_ref().is_some_and(|node| after.nodes.contains_key(node))
    });
    let known: Vec<(WorkloadId, Arc<PodTemplate>)> = templates(world, desired);
    for row in &plan.capacity.explain {
        let Some(node) = node_by_address.get(row.address.as_str()) else { continue };
        for (key, count) in &row.pods {
            let owner = known
                .iter()
                .find(|(id, _)| fleetwright::model::ids::workload_key(id) == key.as_str());
            let (owner, template) = owner.expect("a planned pod has a workload");
            let stays =
                |pod: &Pod| pod.owner.as_ref() == Some(owner) && pod.node.as_ref() == Some(node);
            let count = usize::try_from(*count).expect("few pods");
            let staying = world.pods.iter().filter(|pod| stays(pod)).take(count).cloned();
            let staying: Vec<Arc<Pod>> = staying.collect();
            let arriving = count - staying.len();
            after.pods.extend(staying);
            (0..arriving).for_each(|_| bind(&mut after, owner, template, node));
        }
    }
    after
}

/// Adds a new node to a group. Members of groups have no fleetwright tags.
fn join_group(world: &mut Observed, name: &NodeName, pool: &str) {
    let id = world.nodes[name].instance.clone().expect("a new node has an instance");
    let instance = world.instances.get_mut(&id).expect("the instance exists");
    instance.tags.clear();
    instance.group = Some(membership(pool));
}

/// Returns the pod template of each workload.
fn templates(world: &Observed, desired: &Desired) -> Vec<(WorkloadId, Arc<PodTemplate>)> {
    let declared = desired.workloads.values().filter(|w| w.scale != Scale::PerNode);
    let declared = declared.map(|workload| (workload.id.clone(), workload.template.clone()));
    let live = world
        .pods
        .iter()
        .filter_map(|pod| Some((pod.owner.clone()?, world.templates.get(&*pod.template)?.clone())));
    declared.chain(live).collect()
}

/// Adds the instance and the Ready node of a row.
fn launch(world: &mut Observed, state: &NodeState, index: Option<&str>) -> NodeName {
    let taken = |n: &usize| world.instances.contains_key(format!("i-new{n}").as_str());
    let number = (0..=world.instances.len()).find(|n| !taken(n));
    let number = number.expect("a free number exists");
    let (id, name) = (format!("i-new{number}"), format!("new{number}"));
    let pool = state.pool.as_ref().map(ToString::to_string).unwrap_or_default();
    let digest = state.spec_digest.clone().unwrap_or_default();
    let tags = [
        (tag::CLUSTER, CLUSTER),
        (tag::POOL, &pool),
        (tag::KEY, index.unwrap_or_default()),
        (tag::SPEC, &digest),
    ];
    let instance = Instance {
        reservation: state.reservation.clone(),
        id: id.as_str().into(),
        instance_type: state.instance_type.clone().expect("a launch has a type"),
        zone: state.zone.clone().unwrap_or_else(|| "us-east-1a".into()),
        capacity_type: state.capacity_type.expect("a launch has a capacity type"),
        state: InstanceState::Running,
        launched_at: world.taken_at,
        image: state.image.clone().unwrap_or_default(),
        launched_with: LaunchedWith::default(),
        tags: tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        group: None,
    };
    if let Some(id) = &state.reservation {
        let reservation = world.reservations.get_mut(id).expect("the reservation exists");
        reservation.available -= 1;
    }
    let mut labels = state.labels.clone();
    labels.extend([label("kubernetes.io/hostname", &name)]);
    let node = Node {
        name: name.as_str().into(),
        uid: name.as_str().into(),
        instance: Some(id.as_str().into()),
        labels,
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
    world.instances.insert(id.into(), instance);
    world.nodes.insert(name.as_str().into(), node);
    name.into()
}

/// Converts amounts of the wire form to resources.
pub(crate) fn resources(amount: &Amount) -> Resources {
    Resources {
        cpu: MilliCpu(amount.cpu_milli),
        memory: Bytes(amount.memory_bytes),
        ephemeral_storage: Bytes(amount.ephemeral_storage_bytes),
        pods: amount.pods,
        extended: amount.extended.iter().map(|(k, n)| (k.as_str().into(), *n)).collect(),
    }
}
