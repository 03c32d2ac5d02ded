//! Stability: a small change of the repository is a small change of the fleet.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::pod_rules::{deployment, scenario};
use crate::catalog::NodeSettings;
use crate::manifest::read;
use crate::model::desired::{
    Budget, BudgetNodes, Consolidation, Fleet, Pool, Scale, Tree, TreeFile,
};
use crate::model::ids::NodeName;
use crate::model::market::alternative_price_max;
use crate::model::observed::UnreadObject;
use crate::model::pod::{Taint, TaintEffect};
use crate::model::reason::{Alternative, BlockReason, KeepReason, LaunchReason, RetireReason};
use crate::model::requirement::{key, label};
use crate::model::units::{Bytes, MicroUsd};
use crate::plan::{drift, has_drift};
use crate::solver::{NewNode, Settings, TargetFleet};
use crate::testing::pods::no_schedule;
use crate::testing::{Scenario, requirement};

const TYPES: [&str; 5] = ["c5.large", "m5.large", "r5.large", "m5.xlarge", "m5.2xlarge"];

/// Number of random fleets.
const CASES: u64 = 24;

#[test]
fn new_deployment_moves_other_pods_only_if_that_pays() {
    let settings = Settings::default();
    for seed in 0..CASES {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut scenario =
            Scenario::new(&TYPES, rng.random_range(100..1_500), rng.random_range(64..4_096));
        scenario.scale(rng.random_range(1..30));
        let first = scenario.solve();
        scenario.carry_out(&first);
        let cpu: u32 = rng.random_range(100..1_500);
        let containers = format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}m, memory: 64Mi}}}}}}]"
        );
        let more = rng.random_range(1..6);
        let text = deployment("more", more, &containers);
        let file = TreeFile { path: "w.yaml".into(), content: Ok(text.into_bytes().into()) };
        let read = read(&Tree { files: vec![file] }, &Fleet::default());
        scenario.desired.workloads.extend(read.workloads);
        let target = scenario.solve().target;
        for (name, retire) in &target.retires {
            let RetireReason::Underutilized { saves_hourly, moves, payback_hours } = retire.reason
            else {
                panic!(
                    "seed {seed}: {name} is retired, and only savings may move running pods: {retire:?}"
                );
            };
            let pays = i64::from(payback_hours) <= settings.horizon_hours;
            // What a batch saves that also makes room for the new pods may be unknown.
            let is_known = saves_hourly.0 > 0 || retire.batch.is_some();
            assert!(pays && is_known, "seed {seed}: {name} {saves_hourly:?} {moves}");
        }
        let demands = target.launches.iter().filter_map(|launch| match &launch.reason {
            LaunchReason::Demand { pods } => Some(pods.values().sum::<u32>()),
            LaunchReason::Consolidation { .. }
            | LaunchReason::Static { .. }
            | LaunchReason::Replacement { .. } => None,
        });
        assert!(demands.sum::<u32>() <= more, "seed {seed}: only new pods have no room");
        let moved = target.retires.len();
        let stays = scenario.observed.nodes.len() - moved;
        assert_eq!(target.keeps.len(), stays, "seed {seed}: each node stays or has a reason to go");
    }
}

/// Maximum price change in tenths of a percent, independent for each offering.
const NOISE: i64 = 20;

#[test]
fn prices_that_move_by_two_percent_move_no_node() {
    for seed in 0..2 * CASES {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut scenario =
            Scenario::new(&TYPES, rng.random_range(100..1_500), rng.random_range(64..4_096));
        scenario.scale(rng.random_range(1..40));
        let first = scenario.solve();
        scenario.carry_out(&first);
        let offerings = scenario.catalog.types.values_mut().flat_map(|kind| &mut kind.offerings);
        for offering in offerings {
            let tenths = 1_000 + rng.random_range(-NOISE..=NOISE);
            offering.price = offering.price.map(|price| MicroUsd(price.0 * tenths / 1_000));
        }
        let again = scenario.solve().target;
        let moved = (again.launches.len(), again.retires.keys().collect::<Vec<_>>());
        assert_eq!(moved, (0, vec![]), "seed {seed}");
    }
}

/// Returns the launch with another offering, as an apply launches its alternatives.
fn with_offering(scenario: &Scenario, new: &NewNode, offering: &Alternative) -> NewNode {
    let kind = |name| &scenario.catalog.types[name];
    let (old, kind) = (kind(&new.instance_type), kind(&offering.instance_type));
    let desired = &scenario.desired;
    let pool = desired.pools.values().next().expect("a pool");
    let class = desired.node_classes.values().next().expect("a node class");
    let amounts = scenario.catalog.allocation(kind, &NodeSettings::new(pool, class));
    let mut labels = new.labels.clone();
    labels.retain(|key, _| !old.labels.contains_key(key));
    labels.extend(kind.labels.clone());
    labels.extend([
        label(key::INSTANCE_TYPE, offering.instance_type.as_str()),
        label(key::ZONE, offering.zone.as_str()),
    ]);
    NewNode {
        instance_type: offering.instance_type.clone(),
        zone: offering.zone.clone(),
        capacity: amounts.capacity,
        allocatable: amounts.allocatable,
        labels,
        ..new.clone()
    }
}

#[test]
fn spot_alternative_that_ec2_chose_stays() {
    const TYPES: [&str; 6] =
        ["c5.large", "m5.large", "m6i.large", "m5a.large", "m7i.large", "m5.xlarge"];
    let mut chosen = 0;
    for seed in 0..CASES {
        let mut rng = Pcg64::seed_from_u64(seed);
        let (cpu, memory) = (rng.random_range(300..1_500), rng.random_range(64..2_048));
        let mut scenario = Scenario::new(&TYPES, cpu, memory);
        scenario.pool().requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
        scenario.scale(rng.random_range(1..20));
        let offerings = scenario.catalog.types.values_mut().flat_map(|kind| &mut kind.offerings);
        for offering in offerings {
            let price = rng.random_range(40..140);
            offering.price = offering.price.map(|full| MicroUsd(full.0 * price / 300));
        }
        let mut first = scenario.solve();
        for launch in &mut first.target.launches {
            let near = alternative_price_max(launch.node.price);
            let alternatives = launch.node.alternatives.iter().filter(|of| of.hourly <= near);
            let most_expensive = alternatives.max_by_key(|of| of.hourly).cloned();
            if let Some(most_expensive) = most_expensive.filter(|_| rng.random_bool(0.7)) {
                launch.node = with_offering(&scenario, &launch.node, &most_expensive);
                chosen += 1;
            }
        }
        scenario.carry_out(&first);
        let again = scenario.solve().target;
        let moved = (again.launches.len(), again.retires.keys().collect::<Vec<_>>());
        assert_eq!(moved, (0, vec![]), "seed {seed}");
    }
    assert!(chosen > 50, "{chosen}");
}

#[test]
fn half_empty_spot_nodes_are_still_consolidated() {
    let mut scenario = Scenario::new(&["m5.large"], 400, 64);
    scenario.pool().requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
    scenario.scale(8);
    let first = scenario.solve();
    assert_eq!(first.target.launches.len(), 2);
    scenario.carry_out(&first);
    scenario.scale(4);
    scenario.pool().budgets = budgets(&[("100%", &[])]);
    let target = scenario.solve().target;
    assert_eq!((target.launches.len(), target.retires.len()), (0, 1), "{:?}", target.keeps);
}

#[test]
fn alternatives_of_all_launches_fit_the_pool_limit() {
    let mut scenario = Scenario::new(&["m5.large", "m6i.large", "r5.large"], 1_500, 64);
    scenario.pool().requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
    for offering in scenario.catalog.types.values_mut().flat_map(|kind| &mut kind.offerings) {
        offering.price = Some(MicroUsd(90_000));
    }
    let r5 = scenario.catalog.types.get_mut("r5.large").expect("a type");
    r5.offerings.iter_mut().for_each(|offering| offering.price = Some(MicroUsd(95_000)));
    scenario.scale(4);
    let largest = |scenario: &Scenario| -> Vec<usize> {
        let launches = scenario.solve().target.launches;
        let is_large = |of: &&Alternative| of.instance_type.as_str() == "r5.large";
        launches.iter().map(|l| l.node.alternatives.iter().filter(is_large).count()).collect()
    };
    // Four launches of 8 GiB leave 8 GiB, which is enough for one `r5.large` only.
    scenario.pool().limits.resources = [("memory".into(), Bytes::gib(40).0)].into();
    assert_eq!(largest(&scenario), [0; 4]);
    scenario.pool().limits.resources = [("memory".into(), Bytes::gib(64).0)].into();
    assert!(largest(&scenario).iter().all(|count| *count > 0));
}

fn budgets(written: &[(&str, &[&str])]) -> Vec<Budget> {
    let budget = |(nodes, reasons): &(&str, &[&str])| Budget {
        nodes: BudgetNodes::parse(nodes).expect("a budget"),
        reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
        schedule: None,
        duration: None,
    };
    written.iter().map(budget).collect()
}

/// Returns a fleet with one pod on each node and these pool budgets.
fn full(nodes: u32, written: &[(&str, &[&str])]) -> Scenario {
    let mut scenario = Scenario::new(&["m5.large"], 1_500, 64);
    scenario.scale(nodes);
    let first = scenario.solve();
    assert_eq!(first.target.launches.len(), usize::try_from(nodes).expect("a few"));
    scenario.carry_out(&first);
    scenario.pool().budgets = budgets(written);
    scenario
}

/// Returns the number of nodes that a budget retains.
fn kept_by_budget(target: &TargetFleet) -> usize {
    let blocked = KeepReason::Blocked { by: BlockReason::Budget };
    target.keeps.values().filter(|keep| **keep == blocked).count()
}

/// Returns the numbers of retired and budget-blocked nodes when all pods leave twelve nodes.
fn emptied(written: &[(&str, &[&str])]) -> (usize, usize) {
    let mut scenario = full(12, written);
    scenario.scale(0);
    let target = scenario.solve().target;
    (target.retires.len(), kept_by_budget(&target))
}

#[test]
fn needed_nodes_are_not_reported_as_budget_blocked() {
    for written in [("10%", &[][..]), ("1", &[]), ("3", &["Underutilized"])] {
        let target = full(20, &[written]).solve().target;
        assert_eq!((target.retires.len(), kept_by_budget(&target)), (0, 0), "{written:?}");
        let needed = |keep: &&KeepReason| {
            matches!(keep, KeepReason::Needed { pods: 1, within_budget: true })
        };
        assert_eq!(target.keeps.values().filter(needed).count(), 20, "{written:?}");
    }
}

#[test]
fn needed_nodes_state_whether_a_budget_bounds_their_changes() {
    for (written, is_bounded) in
        [(("100%", &[][..]), false), (("1", &[]), true), (("1", &["Empty"]), false)]
    {
        let target = full(4, &[written]).solve().target;
        let needed = KeepReason::Needed { pods: 1, within_budget: is_bounded };
        let keeps: Vec<&KeepReason> = target.keeps.values().collect();
        assert_eq!(keeps, [&needed; 4], "{written:?}");
    }
}

#[test]
fn budget_is_the_reason_of_an_unneeded_node_in_a_fleet_that_moves_no_pods() {
    // A fleet built anew would save less than the minimum share of the fleet's price.
    let mut scenario = full(40, &[("1", &[])]);
    scenario.scale(38);
    let target = scenario.solve().target;
    assert_eq!((target.retires.len(), kept_by_budget(&target)), (1, 1), "{:?}", target.keeps);
}

#[test]
fn batch_that_costs_more_states_no_saving_and_only_pods_without_a_node() {
    let pods = |pool: &str, cpu: u32| {
        format!(
            "nodeSelector: {{type: {pool}}}, containers: [{{name: app, resources: {{requests: \
             {{cpu: {cpu}m, memory: 64Mi}}}}}}]"
        )
    };
    let small = [deployment("a", 1, &pods("g", 500)), deployment("b", 1, &pods("h", 500))];
    let large = [deployment("c", 7, &pods("g", 1_000)), deployment("d", 7, &pods("h", 1_000))];
    let mut scenario = scenario(&small);
    let mut first = scenario.pool().clone();
    first.requirements[0] =
        requirement("node.kubernetes.io/instance-type", &["m5.large", "m5.2xlarge"]);
    let named = |name: &str| {
        let pool =
            Pool { name: name.into(), labels: [label("type", name)].into(), ..first.clone() };
        (pool.name.clone(), pool)
    };
    scenario.desired.pools = ["g", "h"].map(named).into();
    let solution = scenario.solve();
    scenario.carry_out(&solution);
    let file = TreeFile { path: "l.yaml".into(), content: Ok(large.concat().into_bytes().into()) };
    let read = read(&Tree { files: vec![file] }, &Fleet::default());
    scenario.desired.workloads.extend(read.workloads);
    let target = scenario.solve().target;
    let moved =
        RetireReason::Underutilized { saves_hourly: MicroUsd::ZERO, moves: 1, payback_hours: 0 };
    let retires: Vec<&RetireReason> = target.retires.values().map(|of| &of.reason).collect();
    assert_eq!(retires, [&moved; 2]);
    let launches: Vec<&LaunchReason> = target.launches.iter().map(|of| &of.reason).collect();
    assert_eq!(launches.len(), 2, "{launches:?}");
    for name in ["c", "d"] {
        let pods = [(format!("web/Deployment/{name}"), 7)].into();
        assert!(launches.contains(&&LaunchReason::Demand { pods }), "{launches:?}");
    }
}

#[test]
fn needed_nodes_stay_and_the_budget_blocks_other_removals() {
    let mut scenario = full(12, &[("2", &[])]);
    scenario.scale(5);
    let target = scenario.solve().target;
    let stay = target.retires.len() + kept_by_budget(&target);
    assert_eq!((target.retires.len(), stay), (2, 7), "{:?}", target.keeps);
}

#[test]
fn plans_under_a_budget_continue_until_nothing_is_left() {
    let mut scenario = full(8, &[("3", &[])]);
    scenario.scale(1);
    let mut gone = Vec::new();
    while gone.last() != Some(&0) && gone.len() < 9 {
        let solution = scenario.solve();
        assert!(solution.target.launches.is_empty(), "{gone:?}");
        gone.push(solution.target.retires.len());
        let waits = scenario.observed.nodes.len() - 1 - solution.target.retires.len();
        assert_eq!(kept_by_budget(&solution.target), waits, "{gone:?}");
        scenario.carry_out(&solution);
    }
    assert_eq!(gone, [3, 3, 1, 0]);
}

#[test]
fn plan_removes_as_many_nodes_as_pool_budgets_allow() {
    let thrift: &[&str] = &["Underutilized", "Drifted"];
    for (budgets, expected) in [
        (&[][..], (12, 0)),
        (&[("100%", &[][..])], (12, 0)),
        (&[("3", &[])], (3, 9)),
        (&[("20%", &[])], (3, 9)),
        (&[("20%", &[]), ("1", &["Empty"])], (1, 11)),
        (&[("0", thrift)], (12, 0)),
        (&[("0", &["Empty"])], (0, 12)),
    ] {
        assert_eq!(emptied(budgets), expected, "{budgets:?}");
    }
}

#[test]
fn large_fleet_gets_cheaper_node_by_node_within_a_small_budget() {
    let mut scenario = full(160, &[("1", &[])]);
    scenario.pool().requirements[0] =
        requirement("node.kubernetes.io/instance-type", &["c5.large", "m5.large"]);
    let target = scenario.solve().target;
    assert_eq!((target.retires.len(), target.launches.len()), (1, 1));
}

#[test]
fn node_with_running_pods_names_the_rule_that_keeps_it() {
    let budget: &[(&str, &[&str])] = &[("0", &["Underutilized"])];
    for (written, when_empty, by, with_pods) in [
        (budget, false, BlockReason::Budget, BlockReason::BudgetZero),
        (&[], true, BlockReason::PolicyWhenEmpty, BlockReason::PolicyWhenEmpty),
    ] {
        let mut scenario = full(3, written);
        if when_empty {
            scenario.pool().consolidation = Consolidation::WhenEmpty;
        }
        // The two unschedulable pods of the plan still run.
        scenario.scale(1);
        let target = scenario.solve().target;
        assert!(target.retires.is_empty(), "{:?}", target.retires);
        let kept = |by: &BlockReason| {
            let blocked = KeepReason::Blocked { by: by.clone() };
            target.keeps.values().filter(|keep| **keep == blocked).count()
        };
        let all = if by == with_pods { (3, 3) } else { (2, 1) };
        assert_eq!((kept(&by), kept(&with_pods)), all, "{:?}", target.keeps);
    }
}

#[test]
fn taint_set_by_hand_moves_no_running_pod_and_admits_no_new_one() {
    for (effect, stays) in [(TaintEffect::NoSchedule, true), (TaintEffect::NoExecute, false)] {
        let mut scenario = Scenario::new(&["m5.large"], 900, 512);
        scenario.step(2);
        let taint = Taint { effect, ..no_schedule("ops", "x") };
        scenario.node().taints.push(taint);
        let tainted = scenario.node().name.clone();
        let plan = scenario.plan();
        assert_eq!(plan.summary.destroy == 0, stays, "{effect:?}: {:?}", plan.summary);
        if !stays {
            continue;
        }
        assert_eq!(plan.summary.add, 0);
        assert!(has_drift(&drift(&plan)));
        scenario.scale(3);
        let target = scenario.solve().target;
        assert_eq!(target.launches.len(), 1, "the third pod needs another node");
        assert!(target.keeps.contains_key(&tainted), "{:?}", target.retires);
    }
}

#[test]
fn unread_object_holds_only_its_own_node() {
    for hides_requests in [true, false] {
        let mut scenario = Scenario::new(&["m5.large"], 1_500, 512);
        scenario.step(3);
        let names: Vec<NodeName> = scenario.observed.nodes.keys().cloned().collect();
        let held = names[0].clone();
        scenario.observed.unread.push(UnreadObject {
            object: "Pod shop/odd".to_owned(),
            reason: "its grace period is negative".to_owned(),
            nodes: [held.clone()].into(),
            hides_requests,
        });
        scenario.scale(0);
        let target = scenario.solve().target;
        let kept: Vec<&NodeName> = target.keeps.keys().collect();
        assert_eq!(kept, [&held], "the others are removed");
        let KeepReason::Blocked { by: BlockReason::Unknown { what } } = &target.keeps[&held] else {
            panic!("{:?}", target.keeps)
        };
        assert!(what.contains("shop/odd"), "{what}");
        // A pod may be placed on it only if its free capacity is known.
        scenario.observed.pods.clear();
        scenario.scale(3);
        let target = scenario.solve().target;
        assert_eq!(target.launches.len(), usize::from(hides_requests));
        let diagnostics = scenario.plan().capacity.diagnostics;
        assert!(diagnostics.iter().any(|of| of.object == "Pod shop/odd"), "{diagnostics:?}");
    }
}

/// The new nodes of a limited pool could hold all pods, but only if kube-scheduler placed the
/// large ones first.
#[test]
fn rollout_within_a_limit_leaves_no_pod_without_node() {
    let containers = |cpu: u32| {
        format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}m, memory: 64Mi}}}}}}]"
        )
    };
    let manifests = [deployment("a", 5, &containers(1_500)), deployment("b", 15, &containers(600))];
    let mut scenario = scenario(&manifests);
    scenario.pool().requirements[0] =
        requirement("node.kubernetes.io/instance-type", &["m5.large"]);
    assert_eq!(scenario.apply().summary.add, 20, "any order places one pod on each node");
    scenario.drift();
    scenario.pool().limits.nodes = Some(30);
    let plan = scenario.plan();
    let pods = plan.capacity.pods;
    assert_eq!((pods.placed, pods.unschedulable), (20, 0));
    assert!(plan.summary.add <= 10, "{:?}", plan.summary);
    assert!(plan.summary.destroy > 0, "{:?}", plan.summary);
}

/// The packing has no place for some pods that the scheduler model places on a new node.
#[test]
fn limited_rollout_costs_no_more_than_the_fleet_before() {
    let container = |cpu: u32, memory: u32| {
        format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}m, memory: {memory}Mi}}}}}}]"
        )
    };
    let rule = |key: &str, app: &str, more: &str| {
        format!("topologyKey: {key}, labelSelector: {{matchLabels: {{app: {app}}}}}{more}")
    };
    let spread = rule("topology.kubernetes.io/zone", "a", ", maxSkew: 3");
    let spread =
        format!("topologySpreadConstraints: [{{whenUnsatisfiable: DoNotSchedule, {spread}}}]");
    let together = rule(key::HOSTNAME, "b", "");
    let together = format!(
        "affinity: {{podAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [{{{together}}}]}}}}"
    );
    let mut scenario = scenario(&[
        deployment("a", 3, &format!("{}, {spread}", container(450, 2_000))),
        deployment("b", 2, &format!("{}, {together}", container(1_500, 512))),
    ]);
    scenario.pool().requirements[0] =
        requirement("node.kubernetes.io/instance-type", &["m5.large"]);
    scenario.pool().limits.nodes = Some(6);
    scenario.settings.steer = true;
    let before = scenario.apply().capacity.cost.hourly_after;
    assert_eq!(before, MicroUsd(4 * 96_000));
    let workloads = scenario.desired.workloads.values_mut();
    workloads.for_each(|workload| workload.scale = Scale::Replicas(3));
    scenario.drift();
    let plan = scenario.plan();
    let pods = plan.capacity.pods;
    assert_eq!((pods.placed, pods.unschedulable), (5, 1));
    assert!(plan.summary.destroy > 0, "{:?}", plan.summary);
    assert_eq!(plan.capacity.cost.hourly_after, before);
}

#[test]
fn node_that_reports_too_little_changes_no_other_node() {
    let mut scenario = Scenario::new(&["m5.large"], 1_500, 512);
    scenario.step(3);
    let honest = scenario.solve().target;
    assert_eq!((honest.launches.len(), honest.retires.len()), (0, 0));
    let liar = scenario.node().name.clone();
    scenario.node().allocatable.memory = Bytes::mib(200);
    scenario.scale(5);
    let target = scenario.solve().target;
    assert!(target.unschedulable.is_empty(), "the type is as large as ever");
    assert!(target.retires.is_empty(), "{:?}", target.retires);
    let KeepReason::Blocked { by: BlockReason::Unknown { what } } = &target.keeps[&liar] else {
        panic!("{:?}", target.keeps)
    };
    assert!(what.contains("far less"), "{what}");
}

#[test]
fn surplus_pods_take_no_places_of_other_workloads() {
    for seed in 0..CASES {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut scenario = Scenario::new(&["m5.2xlarge", "m5.xlarge", "r5.xlarge"], 200, 512);
        scenario.settings.steer = rng.random_bool(0.5);
        // No saving moves a pod.
        scenario.settings.minimum_fleet_saving_milli_percent = 100_000;
        scenario.scale(0);
        let template = scenario.template().clone();
        let names = ["a", "b", "c", "d", "e", "f"];
        let replicas = names.map(|name| {
            let count = rng.random_range(2..40);
            scenario.deploy(name, count, template.clone());
            count
        });
        let first = scenario.solve();
        scenario.carry_out(&first);
        // Git asks for fewer pods of every second workload. Their pods still run.
        for (name, count) in names.iter().zip(replicas).step_by(2) {
            scenario.deploy(name, (count / 3).max(1), template.clone());
        }
        // The verification refuses another node for a pod whose own node stays.
        assert!(!scenario.plan().errored, "seed {seed}");
    }
}
