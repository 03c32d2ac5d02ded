//! The solver on the fleets of the source documents.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::demand::DemandMode;
use crate::fleet::{ClusterIdentity, Instance, InstanceState, Node, Pod, PodPhase, tag};
use crate::ids::{InstanceId, WorkloadId, WorkloadKind};
use crate::manifest::{
    AmiFamily, Consolidation, Expiry, Generation, KubeletSettings, NodeClass, Pool, PoolLimits,
    PoolRequirement, Scale, Workload,
};
use crate::pod::{Container, ContainerResources, PodSpec, PodTemplate};
use crate::requirement::{Operator, label};

const NOW: &str = "2026-11-01T00:00:00Z";

/// A repository with one pool and one workload, and the world that its plans lead to.
struct Story {
    desired: Desired,
    observed: Observed,
    catalog: Catalog,
    launched: u32,
}

impl Story {
    fn new(types: &[&str], cpu: i64, memory_mib: i64) -> Self {
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
        let origin = crate::ids::Origin::new("inflate.yaml", 1);
        let workload = Workload { id: id.clone(), origin, scale: Scale::Replicas(0), template };
        desired.workloads.insert(id, workload);
        let cluster = ClusterIdentity {
            name: "c".into(),
            region: "us-east-1".into(),
            ..ClusterIdentity::default()
        };
        let observed = Observed::empty(cluster, NOW.parse().expect("a time"));
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("the region is embedded");
        Self { desired, observed, catalog, launched: 0 }
    }

    fn scale(&mut self, replicas: u32) {
        let workload = self.desired.workloads.get_mut(&workload_id()).expect("declared");
        workload.scale = Scale::Replicas(replicas);
    }

    fn solve(&self) -> Solution {
        let demand = Demand::build(&self.desired, &self.observed, DemandMode::Live);
        solve(&Input {
            desired: &self.desired,
            demand: &demand,
            observed: &self.observed,
            catalog: &self.catalog,
            at: NOW.parse().expect("a time"),
            frozen: None,
            replace: &[],
            untouched: &[],
            settings: Settings::default(),
        })
    }

    /// Makes the world what the solution says.
    fn carry_out(&mut self, solution: &Solution) {
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
                Place::Node(name) => name.clone(),
                Place::Launch(index) => names[*index].clone(),
            };
            for _ in 0..*count {
                self.bind(node.clone());
            }
        }
    }

    fn launch(&mut self, new: &NewNode) -> NodeName {
        self.launched += 1;
        let id = InstanceId::from(format!("i-{:04}", self.launched));
        let tags =
            [(tag::CLUSTER, "c"), (tag::POOL, new.pool.as_str()), (tag::SPEC, &new.spec_digest)];
        let instance = Instance {
            id: id.clone(),
            instance_type: new.instance_type.clone(),
            zone: new.zone.clone(),
            capacity_type: new.capacity_type,
            state: InstanceState::Running,
            launched_at: self.observed.taken_at,
            image: new.image.clone(),
            tags: tags.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        };
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
            unschedulable: false,
            created_at: self.observed.taken_at,
        };
        self.observed.instances.insert(id, instance);
        self.observed.nodes.insert(name.clone(), node);
        name
    }

    fn bind(&mut self, node: NodeName) {
        let number = self.observed.pods.len();
        self.observed.pods.push(Pod {
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
        });
    }

    /// Scales, plans, carries out, and plans again; returns the types that run and their price.
    fn step(&mut self, replicas: u32) -> (Vec<String>, MicroUsd) {
        self.scale(replicas);
        let solution = self.solve();
        assert_eq!(solution.target.unplaced, [], "{replicas} pods have a place");
        self.carry_out(&solution);
        let again = self.solve();
        assert!(again.target.launches.is_empty(), "{replicas}: {:?}", again.target.launches);
        assert!(again.target.retires.is_empty(), "{replicas}: {:?}", again.target.retires);
        let mut types: Vec<String> =
            self.observed.instances.values().map(|i| i.instance_type.to_string()).collect();
        types.sort();
        (types, again.target.packed)
    }
}

fn workload_id() -> WorkloadId {
    WorkloadId { namespace: "other".into(), name: "inflate".into(), kind: WorkloadKind::Deployment }
}

fn requirement(key: &str, values: &[&str]) -> PoolRequirement {
    let values = values.iter().map(|v| (*v).into()).collect();
    PoolRequirement { key: key.into(), operator: Operator::In, values, min_values: None }
}

fn pool() -> Pool {
    Pool {
        name: "default".into(),
        origin: crate::ids::Origin::new("pool.yaml", 1),
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
        termination_grace: None,
    }
}

fn node_class() -> NodeClass {
    NodeClass {
        name: "default".into(),
        origin: crate::ids::Origin::new("pool.yaml", 20),
        generation: Generation::V1beta1,
        ami_family: AmiFamily::Al2023,
        image: "al2023@latest".into(),
        kubelet: KubeletSettings::default(),
        ephemeral_storage: None,
        instance_store_raid0: false,
        user_data_digest: None,
        tags: BTreeMap::new(),
        spec_digest: "x".into(),
    }
}

#[test]
fn the_workshop_walk_is_never_dearer_than_karpenters() {
    let mut story = Story::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], 0, 1024);
    assert_eq!(story.step(5), (vec!["m5.large".into()], MicroUsd(96_000)));
    assert!(story.step(12).1 <= MicroUsd(2 * 96_000));
    assert!(story.step(5).1 <= MicroUsd(96_000));
    assert_eq!(story.step(1), (vec!["c5.large".into()], MicroUsd(85_000)));
    assert_eq!(story.step(0), (vec![], MicroUsd(0)));
}

#[test]
fn the_provisioner_walk_is_never_dearer_than_karpenters() {
    let mut story = Story::new(&["c5.large", "m5.large", "m5.xlarge"], 1000, 0);
    assert!(story.step(12).1 <= MicroUsd(4 * 192_000));
    assert!(story.step(5).1 <= MicroUsd(2 * 192_000));
    assert_eq!(story.step(1), (vec!["c5.large".into()], MicroUsd(85_000)));
}

#[test]
fn limits_are_reached_but_never_exceeded() {
    let mut story = Story::new(&["m5.xlarge"], 1000, 0);
    story.scale(9);
    let pool = story.desired.pools.values_mut().next().expect("a pool");
    pool.limits.resources = [("cpu".into(), 8_000)].into();
    let target = story.solve().target;
    assert_eq!(target.launches.len(), 2);
    assert_eq!(target.unplaced[0].pods, 3);
    assert_eq!(target.unplaced[0].rejections[0].reason, "limit-reached");
    assert!(
        target.unplaced[0].nearest.as_ref().is_some_and(|n| n.contains("limits of pool default"))
    );
}

#[test]
fn a_pod_too_large_names_the_resource_and_a_type_that_would_hold_it() {
    let mut story = Story::new(&["m5.large"], 100, 40 * 1024);
    story.scale(1);
    let unplaced = &story.solve().target.unplaced[0];
    assert_eq!(unplaced.rejections[0].reason, "too-small");
    assert!(unplaced.rejections[0].detail.contains("memory: needs 40Gi"), "{unplaced:?}");
    let nearest = unplaced.nearest.as_deref().unwrap_or_default();
    assert!(nearest.starts_with("let pool default use "), "{nearest}");
}

#[test]
fn new_nodes_spread_over_zones_of_the_same_price() {
    let mut story = Story::new(&["m5.large"], 1000, 0);
    story.scale(6);
    let target = story.solve().target;
    let zones: std::collections::BTreeSet<_> =
        target.launches.iter().map(|l| &l.node.zone).collect();
    assert!(zones.len() >= 3, "{zones:?}");
}

#[test]
fn the_bound_never_exceeds_the_packing() {
    for replicas in [1, 2, 3, 5, 8, 13, 21, 100, 1000] {
        let mut story = Story::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], 333, 700);
        story.scale(replicas);
        let target = story.solve().target;
        assert!(
            target.lower_bound <= target.packed,
            "{replicas}: {} > {}",
            target.lower_bound,
            target.packed
        );
        assert!(target.lower_bound > MicroUsd::ZERO);
    }
}
