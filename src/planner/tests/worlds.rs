//! Observations with faults.
//!
//! Each test combines a repository and an observation, and states the rule that the plan must
//! follow. It knows only the inputs and the plan, not the search.

mod mutated_plans;
mod random_worlds;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;

use super::plan_of;
use crate::demand::{Demand, DemandMode};
use crate::model::desired::{
    Consolidation, Horizontal, Pool, Scale, ScaleTarget, Scaler, ScalerRule, Workload,
};
use crate::model::ids::{NodeName, Origin, WorkloadId, WorkloadKind};
use crate::model::observed::{LiveWorkload, Node, Pod, PodPhase, tag};
use crate::model::pod::{Container, ContainerResources, PodSpec, PodTemplate, Taint, TaintEffect};
use crate::model::requirement::label;
use crate::model::units::MicroUsd;
use crate::plan::wire::{DiagnosticSeverity, LaunchReason, Plan, Reason};
use crate::planner::Scope;
use crate::solver::{NodeRef, Solution};
use crate::testing::{Story, requirement};

const TYPES: &str = "node.kubernetes.io/instance-type";

/// Returns a repository with one pool of `types` and no workload, and an empty cluster.
fn bare(types: &[&str]) -> Story {
    let mut story = Story::new(types, 0, 0);
    story.desired.workloads.clear();
    story
}

fn pool(story: &mut Story) -> &mut Pool {
    story.desired.pools.values_mut().next().expect("a story has a pool")
}

fn id(name: &str, kind: WorkloadKind) -> WorkloadId {
    WorkloadId { namespace: "other".into(), name: name.into(), kind }
}

/// Returns a pod of one container that requests `cpu_milli` and `memory_mib`.
fn template(cpu_milli: i64, memory_mib: i64) -> PodTemplate {
    asking(&[("cpu", cpu_milli), ("memory", memory_mib << 20)])
}

fn asking(amounts: &[(&str, i64)]) -> PodTemplate {
    let requests = amounts.iter().map(|(name, amount)| ((*name).into(), *amount)).collect();
    let resources = ContainerResources { requests, ..ContainerResources::default() };
    let container = Container { name: "app".into(), resources, ..Container::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    PodTemplate { spec, ..PodTemplate::default() }
}

/// Returns the template restricted to nodes of one `type`.
fn on(kind: &str, mut template: PodTemplate) -> PodTemplate {
    template.spec.node_selector = [label("type", kind)].into();
    template
}

fn declare(story: &mut Story, id: WorkloadId, scale: Scale, template: PodTemplate) {
    let template = Arc::new(template);
    let origin = Origin::new("app.yaml", 1);
    let workload = Workload { id: id.clone(), origin, scale, template, first_ordinal: 0 };
    story.desired.workloads.insert(id, workload);
}

fn deploy(story: &mut Story, name: &str, replicas: u32, template: PodTemplate) {
    declare(story, id(name, WorkloadKind::Deployment), Scale::Replicas(replicas), template);
}

/// Adds a running pod of `owner` to `node`.
fn bind(story: &mut Story, owner: &WorkloadId, node: &NodeName, template: &Arc<PodTemplate>) {
    let number = story.observed.pods.len();
    story.observed.templates.insert(owner.to_string(), template.clone());
    story.observed.pods.push(Arc::new(Pod {
        namespace: owner.namespace.clone(),
        name: format!("{}-{number}", owner.name).into(),
        uid: format!("uid-{number}").as_str().into(),
        owner: Some(owner.clone()),
        template: owner.to_string(),
        node: Some(node.clone()),
        phase: PodPhase::Running,
        created_at: story.observed.taken_at,
        terminating: false,
        mirror: false,
        started_at: None,
        granted: [].into(),
    }));
}

fn only_node(story: &Story) -> NodeName {
    assert_eq!(story.observed.nodes.len(), 1, "the story runs on one node");
    story.observed.nodes.keys().next().expect("one node").clone()
}

/// Applies `solution` for any number of workloads.
fn carry_out(story: &mut Story, demand: &Demand, solution: &Solution) {
    for name in solution.target.retires.keys() {
        let node = story.observed.nodes.remove(name).expect("a node that is there");
        story.observed.instances.remove(&node.instance.expect("an instance"));
    }
    let launches = &solution.target.launches;
    let names: Vec<NodeName> = launches.iter().map(|l| story.launch(&l.node)).collect();
    story.observed.pods.clear();
    for (group, places) in &solution.target.placements {
        let owner = demand.groups[*group].workload.clone();
        let template = story.desired.workloads[&owner].template.clone();
        for (place, count) in places {
            let node = match place {
                NodeRef::Existing(name) => name.clone(),
                NodeRef::Launch(index) => names[*index].clone(),
            };
            for _ in 0..*count {
                bind(story, &owner, &node, &template);
            }
        }
    }
    let daemons = id("agent", WorkloadKind::DaemonSet);
    let Some(template) = story.desired.workloads.get(&daemons).map(|w| w.template.clone()) else {
        return;
    };
    let bare = story.observed.nodes.values().filter(|n| n.taints.is_empty());
    for node in bare.map(|n| n.name.clone()).collect::<Vec<_>>() {
        bind(story, &daemons, &node, &template);
    }
}

/// Plans, applies the plan, and returns it.
fn settle(story: &mut Story) -> Plan {
    let plan = whole(story);
    let demand = Demand::build(&story.desired, &story.observed, DemandMode::Live);
    let solution = story.solve();
    carry_out(story, &demand, &solution);
    plan
}

fn whole(story: &Story) -> Plan {
    plan_of(story, Scope::default())
}

fn changes(plan: &Plan) -> (u32, u32) {
    (plan.summary.add, plan.summary.destroy)
}

/// Returns a cluster in which deployment `a` runs with `replicas` pods.
fn running(types: &[&str], replicas: u32, template: PodTemplate) -> Story {
    let mut story = bare(types);
    deploy(&mut story, "a", replicas, template);
    settle(&mut story);
    assert_eq!(changes(&whole(&story)), (0, 0), "the world is settled");
    story
}

/// Changes the spec digest of every instance.
fn drift(story: &mut Story) {
    for instance in story.observed.instances.values_mut() {
        instance.tags.insert(tag::SPEC.into(), format!("v2:{}", "0".repeat(176)));
    }
}

/// Moves the creation of all nodes and instances to three days ago.
fn age(story: &mut Story) {
    let old = story.observed.taken_at - SignedDuration::from_hours(72);
    for node in story.observed.nodes.values_mut() {
        node.created_at = old;
    }
    for instance in story.observed.instances.values_mut() {
        instance.launched_at = old;
    }
}

fn first_only() -> Scope {
    Scope { target: vec!["ec2_instance.default[\"0\"]".into()], ..Scope::default() }
}

#[test]
fn running_pod_keeps_its_node_at_the_pool_limit() {
    let mut story = bare(&["m5.large"]);
    pool(&mut story).limits.resources = [("cpu".into(), 2000)].into();
    deploy(&mut story, "b", 1, template(1000, 100));
    settle(&mut story);
    deploy(&mut story, "a", 2, template(1000, 100));
    let plan = whole(&story);
    assert_eq!(changes(&plan), (0, 0));
    assert_eq!((plan.capacity.pods.placed, plan.capacity.pods.unschedulable), (1, 2));
    let [row] = plan.capacity.unschedulable.as_slice() else { panic!("one row: {plan:#?}") };
    assert_eq!((&*row.workload.name, row.pods), ("a", 2));
}

#[test]
fn raised_requests_are_planned() {
    let mut story = running(&["m5.large"], 10, template(100, 100));
    assert_eq!(story.observed.nodes.len(), 1);
    deploy(&mut story, "a", 10, template(1000, 100));
    let plan = whole(&story);
    assert_eq!((plan.summary.nodes.after, plan.capacity.pods.placed), (10, 10));
    for row in &plan.capacity.explain {
        assert!(row.pods.values().sum::<u32>() <= 1, "one such pod fits a node: {row:?}");
    }
}

#[test]
fn node_unready_for_long_holds_no_pods() {
    let mut story = running(&["m5.large"], 1, template(1000, 100));
    age(&mut story);
    for node in story.observed.nodes.values_mut() {
        node.ready = false;
    }
    story.observed.pods.clear();
    let plan = whole(&story);
    assert_eq!((plan.summary.add, plan.capacity.pods.placed), (1, 1));
}

#[test]
fn instance_that_never_joined_holds_no_pods() {
    let mut story = running(&["m5.large"], 1, template(1000, 100));
    age(&mut story);
    story.observed.nodes.clear();
    story.observed.pods.clear();
    let plan = whole(&story);
    assert_eq!((plan.summary.add, plan.capacity.pods.placed), (1, 1));
}

#[test]
fn duplicate_node_is_ignored_with_a_warning() {
    let mut story = running(&["m5.large"], 1, template(1000, 100));
    let alone = whole(&story);
    let pod = Pod::clone(&story.observed.pods[0]);
    let node = story.observed.nodes[&only_node(&story)].clone();
    let instance = node.instance.clone().expect("it has one");
    let earlier = node.created_at - SignedDuration::from_hours(1);
    // It was Ready once, and sorts before or after the other node by name.
    for (name, ready, created_at) in [
        ("a", false, earlier),
        ("z", false, earlier),
        ("a", true, earlier),
        ("z", false, node.created_at),
    ] {
        let left = Node { name: name.into(), uid: name.into(), ready, created_at, ..node.clone() };
        story.observed.nodes.insert(name.into(), left);
        let ghost = Pod {
            name: "ghost".into(),
            uid: "ghost".into(),
            node: Some(name.into()),
            ..pod.clone()
        };
        story.observed.pods.push(Arc::new(ghost));
        assert_eq!(story.observed.node_for_instance(&instance), Some(&node), "{name}");
        let plan = whole(&story);
        assert_eq!(plan.resource_changes, alone.resource_changes, "{name}");
        let diagnostics = &plan.capacity.diagnostics;
        let warnings: Vec<_> =
            diagnostics.iter().filter(|d| d.severity != DiagnosticSeverity::Note).collect();
        let [warning] = &warnings[..] else { panic!("{diagnostics:?}") };
        assert_eq!(
            (warning.severity.as_str(), &*warning.object),
            ("warning", &*format!("node {name}"))
        );
        assert!(!plan.errored && warning.message.contains(node.name.as_str()), "{warning:?}");
        assert!(warning.message.contains("its 1 pods are planned again"), "{warning:?}");
        story.observed.nodes.remove(name);
        story.observed.pods.pop();
    }
}

#[test]
fn node_of_unlisted_instance_is_retained_with_its_pods() {
    let mut story = running(&["m5.large"], 1, template(1000, 100));
    // Only our own instances are listed. Those of Karpenter and of undeclared groups are known
    // through their nodes alone.
    story.observed.instances.clear();
    let plan = whole(&story);
    assert!(!plan.errored && plan.applyable, "{:?}", plan.capacity.diagnostics);
    assert_eq!((changes(&plan), plan.capacity.pods.placed), ((0, 0), 1));
    let rows = plan.resource_changes.iter();
    let found: Vec<_> = rows.map(|row| (row.address.as_str(), &row.change.before)).collect();
    let [("kubernetes_node.n1", Some(before))] = &found[..] else { panic!("{found:?}") };
    assert_eq!(before.instance_id, Some("i-0001".into()));
}

#[test]
fn present_startup_taint_does_not_repel_pods() {
    let taint = Taint {
        key: "node.cilium.io/agent-not-ready".into(),
        value: "".into(),
        effect: TaintEffect::NoExecute,
    };
    let mut story = bare(&["m5.large"]);
    pool(&mut story).startup_taints = vec![taint.clone()];
    deploy(&mut story, "a", 1, template(1000, 100));
    settle(&mut story);
    story.observed.pods.clear();
    for node in story.observed.nodes.values_mut() {
        node.taints.push(taint.clone());
        node.ready = false;
    }
    let plan = whole(&story);
    assert_eq!((changes(&plan), plan.capacity.pods.placed), ((0, 0), 1));
}

#[test]
fn mirror_pod_neither_moves_nor_blocks_a_plan() {
    let mut story = running(&["m5.large"], 1, template(1000, 100));
    let node = only_node(&story);
    let owner = id("static", WorkloadKind::Pod);
    bind(&mut story, &owner, &node, &Arc::new(template(100, 10)));
    Arc::make_mut(story.observed.pods.last_mut().expect("just bound")).mirror = true;
    let plan = whole(&story);
    assert_eq!((changes(&plan), plan.capacity.pods.moved), ((0, 0), 0));
}

#[test]
fn removed_daemon_set_does_not_change_its_nodes() {
    let mut story = bare(&["m5.large"]);
    deploy(&mut story, "a", 1, template(1000, 100));
    let daemon = id("agent", WorkloadKind::DaemonSet);
    declare(&mut story, daemon.clone(), Scale::PerNode, template(100, 10));
    settle(&mut story);
    assert_eq!(changes(&whole(&story)), (0, 0));
    story.desired.workloads.remove(&daemon);
    story.observed.workloads.push(LiveWorkload {
        id: daemon,
        replicas: 1,
        first_ordinal: 0,
        delivered: true,
        template: None,
    });
    assert_eq!(changes(&whole(&story)), (0, 0));
}

#[test]
fn joining_instance_of_changed_pool_is_valid() {
    let mut story = running(&["m5.large"], 1, template(1000, 100));
    story.observed.nodes.clear();
    story.observed.pods.clear();
    pool(&mut story).requirements[0] = requirement(TYPES, &["c5.large"]);
    let plan = whole(&story);
    assert_eq!((plan.capacity.pods.placed, plan.capacity.pods.unschedulable), (1, 0));
}

#[test]
fn bound_prices_scarce_resources_separately() {
    let mut story = bare(&["g4dn.xlarge", "x1e.32xlarge"]);
    let gpu = asking(&[("cpu", 100), ("memory", 100 << 20), ("nvidia.com/gpu", 1)]);
    deploy(&mut story, "gpu", 1, gpu);
    deploy(&mut story, "plain", 1, template(3000, 100));
    let plan = whole(&story);
    let cost = &plan.capacity.cost;
    assert_eq!((plan.summary.add, cost.hourly_after), (1, MicroUsd(526_000)));
    assert!(cost.lower_bound_hourly <= cost.hourly_after, "{cost:?}");
    assert!(cost.lower_bound_hourly > MicroUsd(0), "{cost:?}");
}

#[test]
fn target_never_drains_without_its_replacement() {
    let mut drifted = running(&["m5.large"], 2, template(1500, 100));
    drift(&mut drifted);
    let mut halved = running(&["m5.xlarge"], 2, template(1500, 100));
    pool(&mut halved).requirements[0] = requirement(TYPES, &["m5.large"]);
    let mut shared = bare(&["m5.xlarge"]);
    deploy(&mut shared, "a", 1, template(1500, 100));
    deploy(&mut shared, "b", 1, template(1400, 100));
    settle(&mut shared);
    pool(&mut shared).requirements[0] = requirement(TYPES, &["m5.large"]);
    for (case, story) in [("drifted", drifted), ("halved", halved), ("shared", shared)] {
        let all = whole(&story);
        assert!(all.summary.destroy > 0, "{case}: there is something to exchange");
        let plan = plan_of(&story, first_only());
        let pods = &plan.capacity.pods;
        assert_eq!((pods.placed, pods.unschedulable), (2, 0), "{case}");
        assert!(plan.summary.destroy <= plan.summary.add, "{case}: {:?}", plan.summary);
        assert!(!plan.complete, "{case}: the plan says that it is partial");
    }
}

#[test]
fn spot_node_with_estimated_price_is_launched_once() {
    let mut story = bare(&["m5.large"]);
    pool(&mut story).requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
    deploy(&mut story, "a", 1, template(1500, 100));
    let first = settle(&mut story);
    assert_eq!((changes(&first), first.capacity.cost.estimated), ((1, 0), 1));
    assert_eq!(changes(&whole(&story)), (0, 0));
}

#[test]
fn succeeded_job_needs_no_capacity() {
    let mut story = bare(&["m5.large"]);
    let job = id("migrate", WorkloadKind::Job);
    let scale = Scale::Job { pods: 1, completions: None, suspended: false };
    declare(&mut story, job.clone(), scale, template(1500, 100));
    assert_eq!(whole(&story).summary.add, 1);
    bind(&mut story, &job, &"gone".into(), &Arc::new(template(1500, 100)));
    Arc::make_mut(&mut story.observed.pods[0]).phase = PodPhase::Succeeded;
    assert_eq!(whole(&story).summary.add, 0);
}

#[test]
fn static_pool_never_grows_with_demand() {
    let mut story = bare(&["m5.large"]);
    pool(&mut story).replicas = Some(1);
    deploy(&mut story, "a", 3, template(1500, 100));
    assert!(whole(&story).summary.add <= 1);
}

#[test]
fn when_empty_consolidation_keeps_nodes_with_pods() {
    let mut story = bare(&["m5.large"]);
    pool(&mut story).consolidation = Consolidation::WhenEmpty;
    deploy(&mut story, "a", 6, template(600, 100));
    settle(&mut story);
    assert_eq!(story.observed.nodes.len(), 2);
    deploy(&mut story, "a", 3, template(600, 100));
    assert_eq!(changes(&whole(&story)), (0, 0));
    deploy(&mut story, "a", 0, template(600, 100));
    assert_eq!(changes(&whole(&story)), (0, 2));
}

#[test]
fn git_count_of_autoscaled_workload_drains_nothing() {
    let mut story = running(&["m5.large"], 6, template(600, 100));
    deploy(&mut story, "a", 1, template(600, 100));
    assert_eq!(whole(&story).summary.destroy, 1, "without an autoscaler Git decides");
    story.desired.scalers.push(Scaler {
        origin: Origin::new("hpa.yaml", 1),
        object: "HorizontalPodAutoscaler other/a".into(),
        namespace: "other".into(),
        name: "a".into(),
        targets: vec![ScaleTarget { kind: "Deployment".into(), name: "a".into() }],
        rule: ScalerRule::Horizontal(Horizontal {
            min: 1,
            max: 10,
            metrics: Vec::new(),
            behavior: None,
        }),
    });
    assert_eq!(changes(&whole(&story)), (0, 0));
}

#[test]
fn absurdly_large_pod_is_unschedulable_rest_is_planned() {
    let absurd = || asking(&[("cpu", i64::MAX), ("memory", i64::MAX)]);
    let mut story = bare(&["m5.large"]);
    deploy(&mut story, "absurd", 3, absurd());
    deploy(&mut story, "a", 1, template(100, 100));
    let plan = whole(&story);
    assert_eq!((plan.capacity.pods.placed, plan.capacity.pods.unschedulable), (1, 3));
    assert_eq!(plan.summary.add, 1);

    let mut story = running(&["m5.large"], 3, template(100, 100));
    deploy(&mut story, "a", 3, absurd());
    assert_eq!(whole(&story).capacity.pods.unschedulable, 3);

    let mut story = bare(&["m5.large"]);
    declare(&mut story, id("agent", WorkloadKind::DaemonSet), Scale::PerNode, absurd());
    deploy(&mut story, "a", 3, template(100, 100));
    assert_eq!((whole(&story).summary.add, whole(&story).capacity.pods.unschedulable), (0, 3));
}

#[test]
fn heavier_pool_is_used_alone_while_it_suffices() {
    for (cpu, replicas) in [(300, 5), (400, 9), (700, 7), (450, 11), (900, 5)] {
        let mut story = bare(&["m5.large", "m5.xlarge"]);
        let mut light = pool(&mut story).clone();
        pool(&mut story).weight = 10;
        light.name = "light".into();
        light.requirements[0] = requirement(TYPES, &["c5.large", "c5.xlarge", "t3.medium"]);
        story.desired.pools.insert(light.name.clone(), light);
        deploy(&mut story, "a", replicas, template(cpu, 100));
        deploy(&mut story, "b", replicas / 2, template(cpu * 2, 1500));
        deploy(&mut story, "c", replicas / 2, template(100, 2500));
        let plan = whole(&story);
        assert!(plan.summary.add > 0 && plan.capacity.pods.unschedulable == 0, "{cpu} {replicas}");
        for row in &plan.resource_changes {
            assert_eq!(row.name, "default", "{cpu} {replicas}: {}", row.address);
        }
    }
}

#[test]
fn empty_instance_without_price_is_drained() {
    let mut story = running(&["m5.large"], 1, template(1500, 100));
    deploy(&mut story, "a", 0, template(1500, 100));
    for instance in story.observed.instances.values_mut() {
        instance.zone = "us-east-1-atl-1a".into();
        instance.instance_type = "zz.large".into();
    }
    let plan = whole(&story);
    assert_eq!((changes(&plan), plan.capacity.cost.unpriced), ((0, 1), 1));
}

#[test]
fn new_demand_is_the_launch_reason_beside_replacements() {
    let mut story = bare(&["m5.large"]);
    let mut other = pool(&mut story).clone();
    other.name = "other".into();
    other.labels = [label("type", "other")].into();
    story.desired.pools.insert(other.name.clone(), other);
    deploy(&mut story, "a", 1, on("karpenter", template(1500, 100)));
    settle(&mut story);
    drift(&mut story);
    deploy(&mut story, "new", 1, on("other", template(1500, 100)));
    let plan = whole(&story);
    assert_eq!(changes(&plan), (2, 1));
    let rows = plan.capacity.explain.iter();
    let [row] = *rows.filter(|e| e.pods.contains_key("other/Deployment/new")).collect::<Vec<_>>()
    else {
        panic!("one node holds the new pod: {plan:#?}")
    };
    let demand = matches!(row.reason, Reason::Launch { because: LaunchReason::Demand { .. } });
    assert!(demand, "{:?}", row.reason);
}

#[test]
fn replacement_works_with_gaps_in_keys() {
    let mut story = running(&["m5.large"], 1, template(1500, 100));
    for instance in story.observed.instances.values_mut() {
        instance.tags.insert(tag::KEY.into(), "2".into());
    }
    drift(&mut story);
    let plan = whole(&story);
    assert!(plan.applyable);
    assert_eq!((changes(&plan), plan.summary.nodes.after), ((1, 1), 1));
}
