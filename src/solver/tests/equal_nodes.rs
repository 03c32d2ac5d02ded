//! Nodes that stay instead of equal new ones.

use std::collections::BTreeSet;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::pod_rules::{deployment, scenario};
use crate::manifest::read;
use crate::model::desired::{Budget, BudgetNodes, Fleet, Tree, TreeFile};
use crate::model::ids::NodeName;
use crate::model::reason::RetireReason;
use crate::model::requirement::key;
use crate::testing::{Scenario, requirement};

const ZONES: [&str; 3] = ["us-east-1a", "us-east-1b", "us-east-1c"];

/// Number of drawn fleets.
const CASES: u64 = 40;

/// Returns a Deployment whose pods request this much CPU, in one zone if it is named.
fn pods(name: &str, replicas: u32, cpu: u32, zone: Option<&str>) -> String {
    let zone = zone.map(|zone| format!(", nodeSelector: {{topology.kubernetes.io/zone: {zone}}}"));
    let requests = format!("resources: {{requests: {{cpu: {cpu}m, memory: 64Mi}}}}");
    let spec = format!("containers: [{{name: app, {requests}}}]{}", zone.unwrap_or_default());
    deployment(name, replicas, &spec)
}

/// Returns a scenario without limits of disruption.
fn free_scenario(manifests: &[String], types: &[&str]) -> Scenario {
    let mut scenario = scenario(manifests);
    scenario.pool().requirements[0] = requirement(key::INSTANCE_TYPE, types);
    scenario.pool().budgets = vec![Budget {
        nodes: BudgetNodes::parse("100%").expect("a budget"),
        reasons: Vec::new(),
        schedule: None,
        duration: None,
    }];
    scenario
}

/// The search places large pods first. They take the room of pods that can only run in one zone, and
/// three new nodes would hold the same pods for less than a fourth beside those that stand.
#[test]
fn ready_nodes_are_not_replaced_by_equal_ones() {
    let mut manifests = vec![pods("large", 3, 3_900, None)];
    manifests.extend(ZONES.map(|zone| pods(&format!("in-{zone}"), 1, 3_000, Some(zone))));
    for (steer, running) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
        let mut scenario = free_scenario(&manifests, &["m5.2xlarge"]);
        scenario.settings.steer = true;
        let first = scenario.apply();
        assert_eq!((first.summary.add, first.capacity.pods.unschedulable), (3, 0));
        scenario.settings.steer = steer;
        let all = std::mem::take(&mut scenario.observed.pods);
        let of_zone = |name: &str| name.contains("us-east-1a");
        let stay = all.into_iter().filter(|pod| of_zone(&pod.name)).take(running);
        scenario.observed.pods = stay.collect();
        assert_eq!(scenario.observed.pods.len(), running);
        let plan = scenario.plan();
        assert_eq!(plan.summary.destroy, 0, "steer {steer}, {running} running: {:?}", plan.summary);
        assert_eq!(plan.capacity.pods.unschedulable, 0);
        if steer {
            assert_eq!(plan.summary.add, 0, "{running} running: {:?}", plan.summary);
        }
    }
}

fn drawn_manifests(random: &mut Pcg64, prefix: &str) -> Vec<String> {
    let workloads = random.random_range(1..6);
    let one = |number| {
        let zone = ZONES.get(random.random_range(0..6)).copied();
        let cpu = random.random_range(2..40) * 100;
        pods(&format!("{prefix}{number}"), random.random_range(1..5), cpu, zone)
    };
    (0..workloads).map(one).collect()
}

/// Nodes lose their pods, as after a failure of their zone or a rollout, and further workloads come.
#[test]
fn no_drawn_plan_replaces_an_empty_node_by_an_equal_one() {
    let (mut emptied, mut launched, mut removed) = (0, 0, 0);
    for seed in 0..CASES {
        let mut random = Pcg64::seed_from_u64(seed);
        let manifests = drawn_manifests(&mut random, "a");
        let mut scenario = free_scenario(&manifests, &["m5.large", "m5.xlarge", "m5.2xlarge"]);
        scenario.settings.steer = seed % 4 != 3;
        scenario.apply();
        let lost: BTreeSet<NodeName> =
            scenario.observed.nodes.keys().filter(|_| random.random_bool(0.6)).cloned().collect();
        emptied += lost.len();
        scenario.observed.pods.retain(|pod| pod.node.as_ref().is_none_or(|on| !lost.contains(on)));
        if random.random_bool(0.5) {
            let text = drawn_manifests(&mut random, "b").concat();
            let file = TreeFile { path: "b.yaml".into(), content: Ok(text.into_bytes().into()) };
            let read = read(&Tree { files: vec![file] }, &Fleet::default());
            scenario.desired.workloads.extend(read.workloads);
        }
        // The judge of the plan finds no defect either.
        scenario.plan();
        let target = scenario.solve().target;
        launched += target.launches.len();
        for (name, retire) in &target.retires {
            removed += 1;
            let node = &scenario.observed.nodes[name];
            let label = |key: &str| node.labels.get(key).map(|value| value.as_str());
            let is_equal = target.launches.iter().any(|launch| {
                label(key::INSTANCE_TYPE) == Some(launch.node.instance_type.as_str())
                    && label(key::ZONE) == Some(launch.node.zone.as_str())
            });
            let is_empty = matches!(retire.reason, RetireReason::Empty { .. });
            assert!(!(is_empty && is_equal), "seed {seed}: {name} is replaced by an equal node");
        }
    }
    assert!(emptied > 40 && launched > 20 && removed > 5, "{emptied} {launched} {removed}");
}
