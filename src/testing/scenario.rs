//! A repository, and the world that its plans lead to, for tests of the whole pipeline.

use std::sync::Arc;

use jiff::SignedDuration;

use super::desired::{node_class, pool, requirement};
use super::plan::base;
use super::{pods, world};
use crate::catalog::Catalog;
use crate::demand::{Demand, DemandMode};
use crate::model::desired::{Desired, NodeClass, Pool, Scale, Workload};
use crate::model::ids::{InstanceId, NodeName, Origin, WorkloadId, WorkloadKind};
use crate::model::observed::{
    ClusterIdentity, Hardware, Instance, LaunchedWith, Node, Observed, Pod, tag,
};
use crate::model::pod::PodTemplate;
use crate::model::requirement::label;
use crate::model::units::MicroUsd;
use crate::plan::Plan;
use crate::plan::wire::{Diagnostic, DiagnosticSeverity};
use crate::planner::{self, Inputs, Scope};
use crate::solver::{
    Input, NewNode, NodeRef, Purpose, Settings, Solution, measured_resources, solve,
};

const NOW: &str = "2026-11-01T00:00:00Z";

/// A repository with one pool and one workload, and the world that its plans lead to.
pub(crate) struct Scenario {
    pub(crate) desired: Desired,
    pub(crate) observed: Observed,
    pub(crate) catalog: Catalog,
    pub(crate) launched: u32,
    pub(crate) settings: Settings,
}

impl Scenario {
    pub(crate) fn new(types: &[&str], cpu: i64, memory_mib: i64) -> Self {
        let mut desired = Desired::default();
        let class = node_class();
        desired.node_classes.insert(class.name.clone(), class);
        let mut pool = pool();
        pool.requirements.push(requirement("node.kubernetes.io/instance-type", types));
        pool.requirements.push(requirement("karpenter.sh/capacity-type", &["on-demand"]));
        desired.pools.insert(pool.name.clone(), pool);
        let mut template = pods::template(cpu, memory_mib);
        template.spec.node_selector = [label("type", "karpenter")].into();
        let cluster = ClusterIdentity {
            name: "c".into(),
            region: "us-east-1".into(),
            ..ClusterIdentity::default()
        };
        let observed = Observed::empty(cluster, NOW.parse().expect("a time"));
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("the region is embedded");
        let settings = Settings::default();
        let mut scenario = Self { desired, observed, catalog, launched: 0, settings };
        scenario.declare(workload_id(), Scale::Replicas(0), template);
        scenario
    }

    /// Returns a scenario with an empty cluster, one pool of `types` and no workload.
    pub(crate) fn without_workloads(types: &[&str]) -> Self {
        let mut scenario = Self::new(types, 0, 0);
        scenario.desired.workloads.clear();
        scenario
    }

    /// Returns the first pool.
    pub(crate) fn pool(&mut self) -> &mut Pool {
        self.desired.pools.values_mut().next().expect("a scenario with a pool")
    }

    /// Returns the first node.
    pub(crate) fn node(&mut self) -> &mut Node {
        self.observed.nodes.values_mut().next().expect("a node")
    }

    /// Returns the node class.
    pub(crate) fn node_class(&mut self) -> &mut NodeClass {
        self.desired.node_classes.values_mut().next().expect("a node class")
    }

    /// Returns the first instance.
    pub(crate) fn instance(&mut self) -> &mut Instance {
        self.observed.instances.values_mut().next().expect("an instance")
    }

    /// Returns the pod that was bound last.
    pub(crate) fn last_pod(&mut self) -> &mut Pod {
        Arc::make_mut(self.observed.pods.last_mut().expect("a pod"))
    }

    /// Returns the pod template of the first workload.
    pub(crate) fn template(&mut self) -> &mut PodTemplate {
        let workload = self.desired.workloads.values_mut().next().expect("a workload");
        Arc::make_mut(&mut workload.template)
    }

    /// Declares a workload, or changes it.
    pub(crate) fn declare(&mut self, id: WorkloadId, scale: Scale, template: PodTemplate) {
        let (origin, template) = (Origin::new("app.yaml", 1), Arc::new(template));
        let workload = Workload::new(id.clone(), origin, scale, template);
        self.desired.workloads.insert(id, workload);
    }

    /// Declares a Deployment, or changes it.
    pub(crate) fn deploy(&mut self, name: &str, replicas: u32, template: PodTemplate) {
        let id = WorkloadId { name: name.into(), ..workload_id() };
        self.declare(id, Scale::Replicas(replicas), template);
    }

    pub(crate) fn scale(&mut self, replicas: u32) {
        let workload = self.desired.workloads.get_mut(&workload_id()).expect("declared");
        workload.scale = Scale::Replicas(replicas);
    }

    pub(crate) fn demand(&self) -> Demand {
        Demand::build(&self.desired, &self.observed, DemandMode::Live)
    }

    pub(crate) fn solve(&self) -> Solution {
        self.with_input(solve)
    }

    /// Returns the result of `use_input` for the input of the solver.
    pub(crate) fn with_input<T>(&self, use_input: impl FnOnce(&Input) -> T) -> T {
        let demand = self.demand();
        let measured = measured_resources(&self.desired, &self.observed, &self.catalog);
        let catalog = Catalog { measured, ..self.catalog.clone() };
        use_input(&Input {
            desired: &self.desired,
            demand: &demand,
            observed: &self.observed,
            catalog: &catalog,
            at: NOW.parse().expect("a time"),
            frozen: None,
            replace: &[],
            untouched: &[],
            needed: &[],
            settings: self.settings,
            purpose: Purpose::Plan,
        })
    }

    /// Returns the inputs of the planner, with an unlimited scope.
    pub(crate) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            desired: &self.desired,
            observed: &self.observed,
            catalog: &self.catalog,
            base: base(&self.observed),
            at: self.observed.taken_at,
            demand: DemandMode::Live,
            is_forecast: false,
            scope: Scope::default(),
            settings: self.settings,
        }
    }

    /// Returns the plan, which has no errors.
    pub(crate) fn plan(&self) -> Plan {
        self.plan_within(Scope::default())
    }

    /// Returns the plan of a limited scope, which has no errors.
    pub(crate) fn plan_within(&self, scope: Scope) -> Plan {
        let plan = planner::plan(&Inputs { scope, ..self.inputs() });
        let is_error = |d: &&Diagnostic| d.severity == DiagnosticSeverity::Error;
        let errors: Vec<&Diagnostic> = plan.capacity.diagnostics.iter().filter(is_error).collect();
        assert!(errors.is_empty(), "{errors:#?}");
        plan
    }

    /// Applies the solution to the world: removes and launches nodes, and binds all pods again.
    pub(crate) fn carry_out(&mut self, solution: &Solution) {
        let demand = self.demand();
        for name in solution.target.retires.keys() {
            let node = self.observed.nodes.remove(name).expect("the node exists");
            self.observed.instances.remove(&node.instance.expect("a node has an instance"));
        }
        let launches = &solution.target.launches;
        let names: Vec<NodeName> = launches.iter().map(|l| self.launch(&l.node)).collect();
        self.observed.pods.clear();
        for (group, places) in &solution.target.placements {
            let owner = &demand.groups[*group].workload;
            // Placeholder pods are never created.
            if owner.kind == WorkloadKind::CapacityBuffer {
                continue;
            }
            for (place, count) in places {
                let node = match place {
                    NodeRef::Existing(name) => name,
                    NodeRef::Launch(index) => &names[*index],
                };
                (0..*count).for_each(|_| self.run_declared(owner, node));
            }
        }
        let agent =
            WorkloadId { name: "agent".into(), kind: WorkloadKind::DaemonSet, ..workload_id() };
        if self.desired.workloads.contains_key(&agent) {
            let untainted = self.observed.nodes.values().filter(|node| node.taints.is_empty());
            for node in untainted.map(|node| node.name.clone()).collect::<Vec<_>>() {
                self.run_declared(&agent, &node);
            }
        }
    }

    /// Plans, applies the plan, and returns it.
    pub(crate) fn apply(&mut self) -> Plan {
        let plan = self.plan();
        self.carry_out(&self.solve());
        plan
    }

    pub(crate) fn launch(&mut self, new: &NewNode) -> NodeName {
        self.launched += 1;
        let id = InstanceId::from(format!("i-{:04}", self.launched));
        let instances = self.observed.instances.values();
        let used: Vec<u32> = instances.filter_map(|i| i.tags.get(tag::KEY)?.parse().ok()).collect();
        let most = u32::try_from(used.len()).expect("a small fleet");
        let free = (0..=most).find(|n| !used.contains(n)).expect("one more than are used");
        let key = free.to_string();
        let labels = new
            .open_labels
            .iter()
            .map(|key| (format!("{}{key}", tag::LABEL_PREFIX), new.labels[key].to_string()));
        let hardware = Hardware::from_labels(&new.labels);
        let image = self.observed.resolved.image(&new.image, hardware).cloned();
        let mut instance = Instance {
            instance_type: new.instance_type.clone(),
            zone: new.zone.clone(),
            capacity_type: new.capacity_type,
            launched_at: self.observed.taken_at,
            image: new.image.clone(),
            launched_with: LaunchedWith { image, ..LaunchedWith::default() },
            tags: labels.collect(),
            reservation: new.reservation.clone(),
            ..world::instance(id.as_str())
        };
        instance = instance.with_tags(&[
            (tag::CLUSTER, "c"),
            (tag::POOL, new.pool.as_str()),
            (tag::KEY, key.as_str()),
            (tag::SPEC, &new.spec_digest),
        ]);
        if let Some(id) = &new.reservation {
            let held = self.observed.reservations.get_mut(id).expect("the reservation exists");
            held.available -= 1;
        }
        let name = NodeName::from(format!("n{}", self.launched));
        let node = Node {
            instance: Some(id.clone()),
            labels: new.labels.clone(),
            taints: new.taints.clone(),
            capacity: new.capacity.clone(),
            allocatable: new.allocatable.clone(),
            created_at: self.observed.taken_at,
            ..world::node(name.as_str())
        };
        self.observed.instances.insert(id, instance);
        self.observed.nodes.insert(name.clone(), node);
        name
    }

    /// Runs a pod of a declared workload on a node.
    fn run_declared(&mut self, owner: &WorkloadId, node: &NodeName) {
        let template = self.desired.workloads.get(owner).map(|w| Arc::clone(&w.template));
        self.run(owner, node, &template.expect("declared"));
    }

    /// Runs a pod of any workload on a node.
    pub(crate) fn run(&mut self, owner: &WorkloadId, node: &NodeName, template: &Arc<PodTemplate>) {
        self.observed.templates.insert(owner.to_string(), Arc::clone(template));
        self.bind_pod(owner, node.as_str());
    }

    /// Binds a pod of the first workload to a node. The world does not have its template.
    pub(crate) fn bind(&mut self, node: &str) {
        self.bind_pod(&workload_id(), node);
    }

    fn bind_pod(&mut self, owner: &WorkloadId, node: &str) {
        let number = self.observed.pods.len();
        self.observed.pods.push(Arc::new(Pod {
            uid: format!("uid-{number}").as_str().into(),
            template: owner.to_string().into(),
            created_at: self.observed.taken_at,
            ..world::pod(&format!("{}-{number}", owner.name)).owned_by(owner).on(node)
        }));
    }

    /// Changes the specification of every instance.
    pub(crate) fn drift(&mut self) {
        for instance in self.observed.instances.values_mut() {
            instance.tags.insert(tag::SPEC.into(), format!("v2:{}", "0".repeat(176)));
        }
    }

    /// Moves the creation of all nodes and instances to three days ago.
    pub(crate) fn age(&mut self) {
        let old = self.observed.taken_at - SignedDuration::from_hours(72);
        self.observed.nodes.values_mut().for_each(|node| node.created_at = old);
        self.observed.instances.values_mut().for_each(|instance| instance.launched_at = old);
    }

    /// Scales, plans and applies, and asserts that the next plan is empty. Returns the sorted
    /// instance types and the packed price.
    pub(crate) fn step(&mut self, replicas: u32) -> (Vec<String>, MicroUsd) {
        self.scale(replicas);
        let solution = self.solve();
        assert_eq!(solution.target.unschedulable, [], "{replicas} pods are placed");
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

/// Returns the workload of [`Scenario::new`].
pub(crate) fn workload_id() -> WorkloadId {
    pods::deployment("other", "inflate")
}
