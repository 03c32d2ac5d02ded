//! Tests of plans for special and faulty observations.
//!
//! Each test combines a repository with an observation, and checks a rule for the plan. The tests
//! depend only on inputs and plans, not on the search.

mod mutated_plans;
mod random_worlds;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;

use super::changes;
use crate::model::desired::{Consolidation, Horizontal, Scale, ScaleTarget, Scaler, ScalerRule};
use crate::model::ids::{Labels, NodeName, Origin, WorkloadId, WorkloadKind};
use crate::model::observed::{LiveWorkload, Node, Pod, PodPhase, tag};
use crate::model::pod::{PodAffinityTerm, PodTemplate, Selector, Taint, TaintEffect};
use crate::model::requirement::{key, label};
use crate::model::units::MicroUsd;
use crate::plan::wire::{DiagnosticSeverity, LaunchReason, Plan, Reason};
use crate::planner::Scope;
use crate::testing::pods::{affinity_term, deployment, host_port, template, template_requesting};
use crate::testing::world::live_workload;
use crate::testing::{Scenario, requirement};

const TYPES: &str = "node.kubernetes.io/instance-type";

fn id(name: &str, kind: WorkloadKind) -> WorkloadId {
    WorkloadId { kind, ..deployment("other", name) }
}

/// Returns the template, restricted to nodes with the label `type`.
fn on(kind: &str, mut template: PodTemplate) -> PodTemplate {
    template.spec.node_selector = [label("type", kind)].into();
    template
}

fn only_node(scenario: &Scenario) -> NodeName {
    assert_eq!(scenario.observed.nodes.len(), 1, "the scenario has one node");
    scenario.observed.nodes.keys().next().expect("one node").clone()
}

/// Returns a scenario in which Deployment `a` runs with `replicas` pods.
fn running(types: &[&str], replicas: u32, template: PodTemplate) -> Scenario {
    let mut scenario = Scenario::without_workloads(types);
    scenario.deploy("a", replicas, template);
    scenario.apply();
    assert_eq!(changes(&scenario.plan()), (0, 0), "the next plan has no changes");
    scenario
}

fn first_only() -> Scope {
    Scope { target_addresses: vec!["ec2_instance.default[\"0\"]".into()], ..Scope::default() }
}

#[test]
fn running_pod_keeps_its_node_at_the_pool_limit() {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.pool().limits.resources = [("cpu".into(), 2000)].into();
    scenario.deploy("b", 1, template(1000, 100));
    scenario.apply();
    scenario.deploy("a", 2, template(1000, 100));
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (0, 0));
    assert_eq!((plan.capacity.pods.placed, plan.capacity.pods.unschedulable), (1, 2));
    let [row] = plan.capacity.unschedulable.as_slice() else { panic!("one row: {plan:#?}") };
    assert_eq!((&*row.workload.name, row.pods), ("a", 2));
}

#[test]
fn raised_requests_are_planned() {
    let mut scenario = running(&["m5.large"], 10, template(100, 100));
    assert_eq!(scenario.observed.nodes.len(), 1);
    scenario.deploy("a", 10, template(1000, 100));
    let plan = scenario.plan();
    assert_eq!((plan.summary.nodes.after, plan.capacity.pods.placed), (10, 10));
    for row in &plan.capacity.explain {
        assert!(row.pods.values().sum::<u32>() <= 1, "one such pod fits on a node: {row:?}");
    }
}

#[test]
fn long_unready_node_gets_no_pods() {
    let mut scenario = running(&["m5.large"], 1, template(1000, 100));
    scenario.age();
    for node in scenario.observed.nodes.values_mut() {
        node.ready = false;
    }
    scenario.observed.pods.clear();
    let plan = scenario.plan();
    assert_eq!((plan.summary.add, plan.capacity.pods.placed), (1, 1));
}

#[test]
fn young_node_that_was_ready_before_gets_no_pods() {
    let added = |change: &dyn Fn(&mut Scenario)| {
        let mut scenario = running(&["m5.large"], 1, template(1000, 100));
        for node in scenario.observed.nodes.values_mut() {
            node.ready = false;
        }
        scenario.observed.pods.clear();
        change(&mut scenario);
        scenario.plan().summary.add
    };
    let mark = |scenario: &mut Scenario, taint: Option<Taint>| {
        for instance in scenario.observed.instances.values_mut() {
            instance.tags.insert(tag::CHANGE.to_owned(), "c".to_owned());
        }
        for node in scenario.observed.nodes.values_mut() {
            node.taints.extend(taint.clone());
        }
    };
    assert_eq!(added(&|_| {}), 0, "it starts");
    let fails = |scenario: &mut Scenario| {
        scenario.observed.nodes.values_mut().for_each(|node| node.was_ready = true);
    };
    assert_eq!(added(&fails), 1, "it was Ready before");
    assert_eq!(added(&|scenario| mark(scenario, None)), 1, "it was opened before");
    assert_eq!(added(&|scenario| mark(scenario, Some(Taint::opening()))), 0, "it is closed");
}

#[test]
fn never_joined_instance_gets_no_pods() {
    let mut scenario = running(&["m5.large"], 1, template(1000, 100));
    scenario.age();
    scenario.observed.nodes.clear();
    scenario.observed.pods.clear();
    let plan = scenario.plan();
    assert_eq!((plan.summary.add, plan.capacity.pods.placed), (1, 1));
}

#[test]
fn duplicate_node_is_ignored_with_a_warning() {
    let mut scenario = running(&["m5.large"], 1, template(1000, 100));
    let alone = scenario.plan();
    let pod = Pod::clone(&scenario.observed.pods[0]);
    let node = scenario.observed.nodes[&only_node(&scenario)].clone();
    let instance = node.instance.clone().expect("it has one");
    let earlier = node.created_at - SignedDuration::from_hours(1);
    // The stale node may still be Ready, and its name sorts before or after the current node.
    for (name, ready, created_at) in [
        ("a", false, earlier),
        ("z", false, earlier),
        ("a", true, earlier),
        ("z", false, node.created_at),
    ] {
        let stale_node =
            Node { name: name.into(), uid: name.into(), ready, created_at, ..node.clone() };
        scenario.observed.nodes.insert(name.into(), stale_node);
        let stale_pod = Pod {
            name: "stale".into(),
            uid: "stale".into(),
            node: Some(name.into()),
            ..pod.clone()
        };
        scenario.observed.pods.push(Arc::new(stale_pod));
        assert_eq!(scenario.observed.node_for_instance(&instance), Some(&node), "{name}");
        let plan = scenario.plan();
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
        assert!(warning.message.contains("1 pod on it planned again"), "{warning:?}");
        scenario.observed.nodes.remove(name);
        scenario.observed.pods.pop();
    }
}

#[test]
fn node_of_unlisted_instance_is_retained_with_its_pods() {
    let mut scenario = running(&["m5.large"], 1, template(1000, 100));
    // EC2 lists only managed instances. Instances of Karpenter and undeclared groups are observed
    // only through their nodes.
    scenario.observed.instances.clear();
    let plan = scenario.plan();
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
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.pool().startup_taints = vec![taint.clone()];
    scenario.deploy("a", 1, template(1000, 100));
    scenario.apply();
    scenario.observed.pods.clear();
    for node in scenario.observed.nodes.values_mut() {
        node.taints.push(taint.clone());
        node.ready = false;
    }
    let plan = scenario.plan();
    assert_eq!((changes(&plan), plan.capacity.pods.placed), ((0, 0), 1));
}

#[test]
fn mirror_pod_neither_moves_nor_blocks_a_plan() {
    let mut scenario = running(&["m5.large"], 1, template(1000, 100));
    let node = only_node(&scenario);
    let owner = id("static", WorkloadKind::Pod);
    scenario.run(&owner, &node, &Arc::new(template(100, 10)));
    scenario.last_pod().mirror = true;
    let plan = scenario.plan();
    assert_eq!((changes(&plan), plan.capacity.pods.moved), ((0, 0), 0));
}

#[test]
fn removed_daemon_set_does_not_change_its_nodes() {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.deploy("a", 1, template(1000, 100));
    let daemon = id("agent", WorkloadKind::DaemonSet);
    scenario.declare(daemon.clone(), Scale::PerNode, template(100, 10));
    scenario.apply();
    assert_eq!(changes(&scenario.plan()), (0, 0));
    scenario.desired.workloads.remove(&daemon);
    let live = LiveWorkload { delivered: true, ..live_workload(&daemon, 1) };
    scenario.observed.workloads.push(live);
    assert_eq!(changes(&scenario.plan()), (0, 0));
}

#[test]
fn node_without_labels_breaks_no_rule() {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.deploy("a", 1, template(1000, 100));
    scenario.declare(id("agent", WorkloadKind::DaemonSet), Scale::PerNode, template(100, 10));
    scenario.apply();
    let bare = Node { labels: Labels::new(), ..scenario.node().clone() };
    let name: NodeName = "bare".into();
    scenario.observed.nodes.insert(name.clone(), Node { name, instance: None, ..bare });
    let plan = scenario.plan();
    assert!(!plan.errored, "{:?}", plan.capacity.diagnostics);
}

#[test]
fn joining_instance_of_changed_pool_is_valid() {
    let mut scenario = running(&["m5.large"], 1, template(1000, 100));
    scenario.observed.nodes.clear();
    scenario.observed.pods.clear();
    scenario.pool().requirements[0] = requirement(TYPES, &["c5.large"]);
    let plan = scenario.plan();
    assert_eq!((plan.capacity.pods.placed, plan.capacity.pods.unschedulable), (1, 0));
}

#[test]
fn lower_bound_prices_scarce_resources_separately() {
    let mut scenario = Scenario::without_workloads(&["g4dn.xlarge", "x1e.32xlarge"]);
    let gpu = template_requesting(&[("cpu", 100), ("memory", 100 << 20), ("nvidia.com/gpu", 1)]);
    scenario.deploy("gpu", 1, gpu);
    scenario.deploy("plain", 1, template(3000, 100));
    let plan = scenario.plan();
    let cost = &plan.capacity.cost;
    assert_eq!((plan.summary.add, cost.hourly_after), (1, MicroUsd(526_000)));
    assert!(cost.lower_bound_hourly <= cost.hourly_after, "{cost:?}");
    assert!(cost.lower_bound_hourly > MicroUsd(0), "{cost:?}");
}

#[test]
fn target_never_drains_without_its_replacement() {
    let mut drifted = running(&["m5.large"], 2, template(1500, 100));
    drifted.drift();
    let mut halved = running(&["m5.xlarge"], 2, template(1500, 100));
    halved.pool().requirements[0] = requirement(TYPES, &["m5.large"]);
    let mut shared = Scenario::without_workloads(&["m5.xlarge"]);
    shared.deploy("a", 1, template(1500, 100));
    shared.deploy("b", 1, template(1400, 100));
    shared.apply();
    shared.pool().requirements[0] = requirement(TYPES, &["m5.large"]);
    for (case, scenario) in [("drifted", drifted), ("halved", halved), ("shared", shared)] {
        let all = scenario.plan();
        assert!(all.summary.destroy > 0, "{case}: the full plan replaces nodes");
        let plan = scenario.plan_within(first_only());
        let pods = &plan.capacity.pods;
        assert_eq!((pods.placed, pods.unschedulable), (2, 0), "{case}");
        assert!(plan.summary.destroy <= plan.summary.add, "{case}: {:?}", plan.summary);
        assert!(!plan.complete, "{case}: the plan is partial");
    }
}

#[test]
fn spot_node_with_estimated_price_is_launched_once() {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.pool().requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
    scenario.deploy("a", 1, template(1500, 100));
    let first = scenario.apply();
    assert_eq!((changes(&first), first.capacity.cost.estimated), ((1, 0), 1));
    assert_eq!(changes(&scenario.plan()), (0, 0));
}

#[test]
fn succeeded_job_needs_no_capacity() {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    let job = id("migrate", WorkloadKind::Job);
    let scale = Scale::Job { pods: 1, completions: None, suspended: false };
    scenario.declare(job.clone(), scale, template(1500, 100));
    assert_eq!(scenario.plan().summary.add, 1);
    scenario.run(&job, &"gone".into(), &Arc::new(template(1500, 100)));
    Arc::make_mut(&mut scenario.observed.pods[0]).phase = PodPhase::Succeeded;
    assert_eq!(scenario.plan().summary.add, 0);
}

#[test]
fn static_pool_never_grows_with_demand() {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.pool().replicas = Some(1);
    scenario.deploy("a", 3, template(1500, 100));
    assert!(scenario.plan().summary.add <= 1);
}

#[test]
fn when_empty_consolidation_keeps_nodes_with_pods() {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.pool().consolidation = Consolidation::WhenEmpty;
    scenario.deploy("a", 6, template(600, 100));
    scenario.apply();
    assert_eq!(scenario.observed.nodes.len(), 2);
    scenario.deploy("a", 3, template(600, 100));
    assert_eq!(changes(&scenario.plan()), (0, 0));
    scenario.deploy("a", 0, template(600, 100));
    assert_eq!(changes(&scenario.plan()), (0, 2));
}

#[test]
fn declared_count_of_autoscaled_workload_is_ignored() {
    let mut scenario = running(&["m5.large"], 6, template(600, 100));
    scenario.deploy("a", 1, template(600, 100));
    assert_eq!(
        scenario.plan().summary.destroy,
        1,
        "without an autoscaler, the declared count applies"
    );
    scenario.desired.scalers.push(autoscaler_of_a());
    assert_eq!(changes(&scenario.plan()), (0, 0));
}

/// Returns an autoscaler of Deployment `a` with one to ten pods.
fn autoscaler_of_a() -> Scaler {
    Scaler {
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
    }
}

#[test]
fn skipped_demand_scenarios_change_no_decision() {
    let mut scenario = running(&["m5.large"], 6, template(600, 100));
    // Room for three nodes, and so for nine pods.
    scenario.pool().limits.resources = [("cpu".into(), 6000)].into();
    scenario.desired.scalers.push(autoscaler_of_a());
    scenario.deploy("b", 3, template(600, 100));
    let additive_plan = |skips_demand_scenarios| {
        let changeable_nodes = Some(BTreeSet::new());
        let scope = Scope { changeable_nodes, skips_demand_scenarios, ..Scope::default() };
        scenario.plan_within(scope)
    };
    let scenarios = |plan: &Plan| {
        let warnings = plan.capacity.diagnostics.iter();
        let warnings = warnings.filter(|row| row.message.starts_with("may scale to 10 pods"));
        (plan.capacity.modes.len(), warnings.count())
    };
    let (whole, short) = (additive_plan(false), additive_plan(true));
    assert_eq!(scenarios(&whole), (3, 1));
    assert_eq!(scenarios(&short), (0, 0));
    assert_eq!(changes(&short), (1, 0));
    assert_eq!(short.capacity.digest, whole.capacity.digest);
}

#[test]
fn oversized_pod_does_not_block_other_pods() {
    let oversized = || template_requesting(&[("cpu", i64::MAX), ("memory", i64::MAX)]);
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.deploy("oversized", 3, oversized());
    scenario.deploy("a", 1, template(100, 100));
    let plan = scenario.plan();
    assert_eq!((plan.capacity.pods.placed, plan.capacity.pods.unschedulable), (1, 3));
    assert_eq!(plan.summary.add, 1);

    let mut scenario = running(&["m5.large"], 3, template(100, 100));
    scenario.deploy("a", 3, oversized());
    assert_eq!(scenario.plan().capacity.pods.unschedulable, 3);

    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    scenario.declare(id("agent", WorkloadKind::DaemonSet), Scale::PerNode, oversized());
    scenario.deploy("a", 3, template(100, 100));
    assert_eq!((scenario.plan().summary.add, scenario.plan().capacity.pods.unschedulable), (1, 0));
}

#[test]
fn only_the_pool_of_highest_weight_is_used_if_sufficient() {
    for (cpu, replicas) in [(300, 5), (400, 9), (700, 7), (450, 11), (900, 5)] {
        let mut scenario = Scenario::without_workloads(&["m5.large", "m5.xlarge"]);
        let mut light = scenario.pool().clone();
        scenario.pool().weight = 10;
        light.name = "light".into();
        light.requirements[0] = requirement(TYPES, &["c5.large", "c5.xlarge", "t3.medium"]);
        scenario.desired.pools.insert(light.name.clone(), light);
        scenario.deploy("a", replicas, template(cpu, 100));
        scenario.deploy("b", replicas / 2, template(cpu * 2, 1500));
        scenario.deploy("c", replicas / 2, template(100, 2500));
        let plan = scenario.plan();
        assert!(plan.summary.add > 0 && plan.capacity.pods.unschedulable == 0, "{cpu} {replicas}");
        for row in &plan.resource_changes {
            assert_eq!(row.name, "default", "{cpu} {replicas}: {}", row.address);
        }
    }
}

#[test]
fn empty_instance_without_price_is_drained() {
    let mut scenario = running(&["m5.large"], 1, template(1500, 100));
    scenario.deploy("a", 0, template(1500, 100));
    for instance in scenario.observed.instances.values_mut() {
        instance.zone = "us-east-1-atl-1a".into();
        instance.instance_type = "zz.large".into();
    }
    let plan = scenario.plan();
    assert_eq!((changes(&plan), plan.capacity.cost.unpriced), ((0, 1), 1));
}

#[test]
fn launch_for_new_demand_has_demand_reason() {
    let mut scenario = Scenario::without_workloads(&["m5.large"]);
    let mut other = scenario.pool().clone();
    other.name = "other".into();
    other.labels = [label("type", "other")].into();
    scenario.desired.pools.insert(other.name.clone(), other);
    scenario.deploy("a", 1, on("karpenter", template(1500, 100)));
    scenario.apply();
    scenario.drift();
    scenario.deploy("new", 1, on("other", template(1500, 100)));
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (2, 1));
    let rows = plan.capacity.explain.iter();
    let [row] = *rows.filter(|e| e.pods.contains_key("other/Deployment/new")).collect::<Vec<_>>()
    else {
        panic!("one node has the new pod: {plan:#?}")
    };
    let demand = matches!(row.reason, Reason::Launch { because: LaunchReason::Demand { .. } });
    assert!(demand, "{:?}", row.reason);
}

#[test]
fn replacement_works_with_gaps_in_keys() {
    let mut scenario = running(&["m5.large"], 1, template(1500, 100));
    for instance in scenario.observed.instances.values_mut() {
        instance.tags.insert(tag::KEY.into(), "2".into());
    }
    scenario.drift();
    let plan = scenario.plan();
    assert!(plan.applyable);
    assert_eq!((changes(&plan), plan.summary.nodes.after), ((1, 1), 1));
}

/// Runs a static pod on the only node of the scenario.
fn run_static_pod(scenario: &mut Scenario, template: PodTemplate) {
    let node = only_node(scenario);
    scenario.run(&id("static", WorkloadKind::Pod), &node, &Arc::new(template));
    let pod = scenario.last_pod();
    (pod.mirror, pod.owner) = (true, None);
}

#[test]
fn host_port_of_a_static_pod_is_taken() {
    let binding = |mut template: PodTemplate| {
        template.spec.containers[0].host_ports = vec![host_port(9100, "TCP", "")];
        template
    };
    let mut scenario = running(&["m5.large"], 1, template(500, 100));
    run_static_pod(&mut scenario, binding(template(10, 10)));
    scenario.deploy("b", 1, binding(template(100, 10)));
    let plan = scenario.plan();
    assert_eq!((changes(&plan).0, plan.capacity.pods.unschedulable), (1, 0));
}

/// A static pod takes one of the places for pods, and not two.
#[test]
fn static_pod_takes_one_place_of_its_node() {
    let mut scenario = running(&["m5.large"], 1, template(100, 10));
    run_static_pod(&mut scenario, template(10, 10));
    let pods = scenario.observed.pods.len() + 1;
    scenario.node().allocatable.pods = i64::try_from(pods).expect("few pods");
    scenario.deploy("b", 1, template(100, 10));
    assert_eq!(changes(&scenario.plan()), (0, 0));
}

#[test]
fn anti_affinity_of_static_pods_binds_alternatives_to_a_zone() {
    let mut scenario = running(&["m5.large", "m6i.large"], 1, template(500, 100));
    let labels = [label("app", "b")].into();
    scenario.deploy("b", 1, PodTemplate { labels, ..template(100, 10) });
    let term = affinity_term(key::ZONE, "b");
    let mut alone = template(10, 10);
    alone.spec.pod_anti_affinity.required =
        vec![PodAffinityTerm { namespace_selector: Some(Selector::default()), ..term }];
    run_static_pod(&mut scenario, alone);
    let plan = scenario.plan();
    assert_eq!((changes(&plan).0, plan.capacity.pods.unschedulable), (1, 0));
    let offerings = plan.capacity.alternatives.iter().flat_map(|row| &row.offerings);
    let zones: BTreeSet<_> = offerings.map(|offering| &offering.zone).collect();
    assert_eq!(zones.len(), 1, "{zones:?}");
}
