//! A repository and the world that its plans lead to, for tests of whole lines.

mod rehearsal;

pub(crate) use rehearsal::Rehearsal;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::demand::{Demand, DemandMode};
use crate::model::desired::{
    AmiFamily, Consolidation, Desired, Expiry, Generation, KubeletSettings, NodeClass, Pool,
    PoolLimits, PoolRequirement, Scale, Workload,
};
use crate::model::ids::{InstanceId, NodeName, WorkloadId, WorkloadKind};
use crate::model::observed::{
    ClusterIdentity, Hardware, Instance, InstanceState, LaunchedWith, Node, Observed, Pod,
    PodPhase, tag,
};
use crate::model::pod::{Container, ContainerResources, PodSpec, PodTemplate};
use crate::model::requirement::{Operator, label};
use crate::model::units::MicroUsd;
use crate::solver::{
    Input, NewNode, NodeRef, Purpose, Settings, Solution, measured_resources, solve,
};

pub(crate) const NOW: &str = "2026-11-01T00:00:00Z";

/// A repository with one pool and one workload, and the world that its plans lead to.
pub(crate) struct Story {
    pub(crate) desired: Desired,
    pub(crate) observed: Observed,
    pub(crate) catalog: Catalog,
    pub(crate) launched: u32,
    pub(crate) settings: Settings,
}

impl Story {
    pub(crate) fn new(types: &[&str], cpu: i64, memory_mib: i64) -> Self {
        let mut desired = Desired::default();
        let class = node_class();
        desired.node_classes.insert(class.name.clone(), class);
        let mut pool = pool();
        pool.requirements.push(requirement("node.kubernetes.io/instance-type", types));
        pool.requirements.push(requirement("karpenter.sh/capacity-type", &["on-demand"]));
        desired.pools.insert(pool.name.clone(), pool);
        let requests = [("cpu".into(), cpu), ("memory".into(), memory_mib << 20)].into();
        let resources = ContainerResources { requests, ..ContainerResources::default() };
        let container = Container { name: "app".into(), resources, ..Container::default() };
        let spec = PodSpec {
            containers: vec![container],
            node_selector: [label("type", "karpenter")].into(),
            ..PodSpec::default()
        };
        let id = workload_id();
        let template = Arc::new(PodTemplate { spec, ..PodTemplate::default() });
        let origin = crate::model::ids::Origin::new("inflate.yaml", 1);
        let scale = Scale::Replicas(0);
        let workload = Workload { id: id.clone(), origin, scale, template, first_ordinal: 0 };
        desired.workloads.insert(id, workload);
        let cluster = ClusterIdentity {
            name: "c".into(),
            region: "us-east-1".into(),
            ..ClusterIdentity::default()
        };
        let observed = Observed::empty(cluster, NOW.parse().expect("a time"));
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("the region is embedded");
        Self { desired, observed, catalog, launched: 0, settings: Settings::default() }
    }

    pub(crate) fn scale(&mut self, replicas: u32) {
        let workload = self.desired.workloads.get_mut(&workload_id()).expect("declared");
        workload.scale = Scale::Replicas(replicas);
    }

    pub(crate) fn solve(&self) -> Solution {
        let demand = Demand::build(&self.desired, &self.observed, DemandMode::Live);
        let measured = measured_resources(&self.desired, &self.observed);
        let catalog = Catalog { measured, ..self.catalog.clone() };
        solve(&Input {
            desired: &self.desired,
            demand: &demand,
            observed: &self.observed,
            catalog: &catalog,
            at: NOW.parse().expect("a time"),
            frozen: None,
            replace: &[],
            untouched: &[],
            settings: self.settings,
            purpose: Purpose::Plan,
        })
    }

    /// Makes the world what the solution says.
    pub(crate) fn carry_out(&mut self, solution: &Solution) {
        for name in solution.target.retires.keys() {
            let node = self.observed.nodes.remove(name).expect("a node that is there");
            self.observed.instances.remove(&node.instance.expect("an instance"));
        }
        let mut names = Vec::new();
        for launch in &solution.target.launches {
            names.push(self.launch(&launch.node));
        }
        self.observed.pods.clear();
        let template = self.desired.workloads[&workload_id()].template.clone();
        self.observed.templates.insert("t".into(), template);
        for (place, count) in solution.target.placements.values().flatten() {
            let node = match place {
                NodeRef::Existing(name) => name.clone(),
                NodeRef::Launch(index) => names[*index].clone(),
            };
            for _ in 0..*count {
                self.bind(node.clone());
            }
        }
    }

    pub(crate) fn launch(&mut self, new: &NewNode) -> NodeName {
        self.launched += 1;
        let id = InstanceId::from(format!("i-{:04}", self.launched));
        let instances = self.observed.instances.values();
        let used: Vec<u32> = instances.filter_map(|i| i.tags.get(tag::KEY)?.parse().ok()).collect();
        let most = u32::try_from(used.len()).expect("a small fleet");
        let free = (0..=most).find(|n| !used.contains(n)).expect("one more than are used");
        let key = free.to_string();
        let tags = [
            (tag::CLUSTER, "c"),
            (tag::POOL, new.pool.as_str()),
            (tag::KEY, key.as_str()),
            (tag::SPEC, &new.spec_digest),
        ];
        let instance = Instance {
            id: id.clone(),
            instance_type: new.instance_type.clone(),
            zone: new.zone.clone(),
            capacity_type: new.capacity_type,
            state: InstanceState::Running,
            launched_at: self.observed.taken_at,
            image: new.image.clone(),
            launched_with: LaunchedWith {
                image: self
                    .observed
                    .resolved
                    .image(&new.image, Hardware::from_labels(&new.labels))
                    .cloned(),
                ..LaunchedWith::default()
            },
            tags: tags
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into_iter()
                .chain(new.open_labels.iter().map(|key| {
                    (format!("{}{key}", tag::LABEL_PREFIX), new.labels[key].to_string())
                }))
                .collect(),
            reservation: new.reservation.clone(),
            group: None,
        };
        if let Some(id) = &new.reservation {
            let held = self.observed.reservations.get_mut(id).expect("a reservation that is there");
            held.available -= 1;
        }
        let name = NodeName::from(format!("n{}", self.launched));
        let node = Node {
            name: name.clone(),
            uid: name.as_str().into(),
            instance: Some(id.clone()),
            labels: new.labels.clone(),
            annotations: BTreeMap::new(),
            taints: new.taints.clone(),
            capacity: new.capacity.clone(),
            allocatable: new.allocatable.clone(),
            ready: true,
            faults: [].into(),
            unschedulable: false,
            created_at: self.observed.taken_at,
        };
        self.observed.instances.insert(id, instance);
        self.observed.nodes.insert(name.clone(), node);
        name
    }

    pub(crate) fn bind(&mut self, node: NodeName) {
        let number = self.observed.pods.len();
        self.observed.pods.push(Arc::new(Pod {
            namespace: "other".into(),
            name: format!("inflate-{number}").into(),
            uid: format!("uid-{number}").as_str().into(),
            owner: Some(workload_id()),
            template: "t".into(),
            node: Some(node),
            phase: PodPhase::Running,
            created_at: self.observed.taken_at,
            terminating: false,
            mirror: false,
            started_at: None,
            granted: [].into(),
        }));
    }

    /// Scales, plans, carries out, and plans again; returns the types that run and their price.
    pub(crate) fn step(&mut self, replicas: u32) -> (Vec<String>, MicroUsd) {
        self.scale(replicas);
        let solution = self.solve();
        assert_eq!(solution.target.unschedulable, [], "{replicas} pods have a place");
        self.carry_out(&solution);
        let again = self.solve();
        assert!(again.target.launches.is_empty(), "{replicas}: {:?}", again.target.launches);
        assert!(again.target.retires.is_empty(), "{replicas}: {:?}", again.target.retires);
        let mut types: Vec<String> =
            self.observed.instances.values().map(|i| i.instance_type.to_string()).collect();
        types.sort();
        (types, again.target.packed_price)
    }
}

pub(crate) fn workload_id() -> WorkloadId {
    WorkloadId { namespace: "other".into(), name: "inflate".into(), kind: WorkloadKind::Deployment }
}

pub(crate) fn requirement(key: &str, values: &[&str]) -> PoolRequirement {
    let values = values.iter().map(|v| (*v).into()).collect();
    PoolRequirement { key: key.into(), operator: Operator::In, values, min_values: None }
}

pub(crate) fn pool() -> Pool {
    Pool {
        name: "default".into(),
        origin: crate::model::ids::Origin::new("pool.yaml", 1),
        generation: Generation::V1beta1,
        node_class: Some("default".into()),
        labels: [label("type", "karpenter")].into(),
        annotations: BTreeMap::new(),
        requirements: Vec::new(),
        taints: Vec::new(),
        startup_taints: Vec::new(),
        kubelet: None,
        limits: PoolLimits::default(),
        weight: 0,
        replicas: None,
        consolidation: Consolidation::WhenEmptyOrUnderutilized,
        consolidate_after: Some(jiff::SignedDuration::ZERO),
        budgets: Vec::new(),
        expire_after: Expiry::Never,
        unreadable: None,
    }
}

pub(crate) fn node_class() -> NodeClass {
    NodeClass {
        name: "default".into(),
        origin: crate::model::ids::Origin::new("pool.yaml", 20),
        generation: Generation::V1beta1,
        ami_family: AmiFamily::Al2023,
        image: "al2023@latest".into(),
        kubelet: KubeletSettings::default(),
        ephemeral_storage: None,
        instance_store_raid0: false,
        reservations: Vec::new(),
        prefix_delegation: false,
        user_data_digest: None,
        tags: BTreeMap::new(),
        instance_settings: crate::model::desired::InstanceSettings::default(),
        spec_digests: std::sync::Arc::new([("userData".to_owned(), "x".into())].into()),
        unreadable: None,
    }
}
