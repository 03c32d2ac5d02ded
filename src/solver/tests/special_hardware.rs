//! Pods that need special hardware, beside pods that do not, where limits allow few nodes.

use std::collections::BTreeMap;

use super::pod_rules::{deployment, scenario};
use crate::model::reason::LaunchReason;
use crate::model::units::MicroUsd;
use crate::testing::{Scenario, requirement};

const SMALL: &str = "containers: [{name: app, resources: {requests: {cpu: 250m, memory: 256Mi}}}]";

/// Returns the rest of a pod with one GPU and this request of CPU.
fn with_gpu(cpu: &str) -> String {
    format!(
        "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}, memory: 1Gi}}, limits: \
         {{nvidia.com/gpu: 1}}}}}}]"
    )
}

/// Returns a repository with the Deployments `gpu` and `small`, and one pool of these types. The
/// pool may have this amount of CPU.
fn limited(gpu: &str, small: &str, types: &[&str], cpu: Option<i64>) -> Scenario {
    let mut scenario = scenario(&[gpu.to_owned(), small.to_owned()]);
    limit(&mut scenario, types, cpu);
    scenario
}

/// Lets the pool have these types, and this amount of CPU.
fn limit(scenario: &mut Scenario, types: &[&str], cpu: Option<i64>) {
    let pool = scenario.pool();
    pool.requirements[0] = requirement("node.kubernetes.io/instance-type", types);
    pool.limits.resources = cpu.into_iter().map(|cpu| ("cpu".into(), cpu)).collect();
}

/// Returns the types of the new nodes, and the placed pods of `gpu` and of `small`.
fn fleet(scenario: &Scenario) -> (Vec<String>, [u32; 2]) {
    let target = scenario.solve().target;
    let launches = target.launches.iter();
    let mut types: Vec<String> =
        launches.map(|launch| launch.node.instance_type.to_string()).collect();
    types.sort_unstable();
    let names: Vec<String> =
        scenario.desired.workloads.keys().map(|id| id.name.to_string()).collect();
    let placed = |name: &str| -> u32 {
        let of_name = target.placements.iter().filter(|(group, _)| names[**group] == name);
        of_name.flat_map(|(_, nodes)| nodes.values()).sum()
    };
    let pods = ["gpu", "small"].map(placed);
    (types, pods)
}

fn types(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn gpu_pod_and_small_pods_share_the_only_node_within_a_limit() {
    let plain_and = |special: &[&'static str]| [special, &["m5.large", "m5.xlarge"][..]].concat();
    for (special, cpu, small, expected) in [
        // Plain nodes for the small pods alone would have 16 or 28 CPU, too many beside 48.
        (&["g4dn.12xlarge"][..], 48_000, 60, "g4dn.12xlarge"),
        (&["g4dn.12xlarge"], 48_000, 100, "g4dn.12xlarge"),
        // A g5.xlarge has room for 13 small pods, and 12 CPU of m5 nodes for 45.
        (&["g5.xlarge", "g5.4xlarge"], 16_000, 60, "g5.4xlarge"),
    ] {
        let (gpu, pods) =
            (deployment("gpu", 1, &with_gpu("500m")), deployment("small", small, SMALL));
        let mut scenario = limited(&gpu, &pods, &plain_and(special), Some(cpu));
        assert_eq!(fleet(&scenario), (types(&[expected]), [1, small]), "{small} on {special:?}");
        scenario.apply();
        let next = scenario.plan().summary;
        assert_eq!((next.add, next.destroy), (0, 0), "{small} on {special:?}");
    }
}

#[test]
fn limit_that_is_not_reached_changes_no_fleet() {
    let (gpu, small) = (deployment("gpu", 1, &with_gpu("500m")), deployment("small", 60, SMALL));
    // Only this type has a GPU, and it has room for all pods. No type has room for `huge`.
    let expected = (types(&["g4dn.12xlarge"]), [1, 60]);
    let huge = deployment("huge", 1, &with_gpu("90"));
    for cpu in [None, Some(1_000_000)] {
        let of_types = ["g4dn.12xlarge", "m5.large", "m5.xlarge"];
        let mut scenario = scenario(&[gpu.clone(), small.clone(), huge.clone()]);
        limit(&mut scenario, &of_types, cpu);
        assert_eq!(fleet(&scenario), expected, "{cpu:?}");
    }
}

#[test]
fn drifted_node_with_pods_stays_rather_than_a_pod_without_a_place() {
    // Without the drifted node, 52 CPU are left: a g4dn.12xlarge for `gpu` and most of `small`, and
    // one m5.xlarge. Then `big` has no place.
    let big = "containers: [{name: app, resources: {requests: {cpu: 6, memory: 256Mi}}}]";
    let manifests = [
        deployment("big", 1, big),
        deployment("gpu", 2, &with_gpu("4")),
        deployment("small", 172, SMALL),
    ];
    let all = scenario(&manifests).desired.workloads;
    let mut scenario = scenario(&manifests[..1]);
    scenario.settings.steer = true;
    limit(&mut scenario, &["g4dn.12xlarge", "m5.xlarge", "m5.2xlarge"], Some(60_000));
    scenario.apply();
    scenario.drift();
    scenario.desired.workloads = all;
    let unschedulable = scenario.plan().capacity.unschedulable;
    let mut names = unschedulable.iter().map(|pods| pods.workload.name.to_string());
    assert!(names.all(|name| name != "big"), "{unschedulable:?}");
}

#[test]
fn gpu_pods_come_first_where_a_drifted_node_is_replaced() {
    // Beside the drifted node, 56 of 64 CPU are left. One node has room for all pods.
    let big = "containers: [{name: app, resources: {requests: {cpu: 6, memory: 256Mi}}}]";
    let manifests = [
        deployment("big", 1, big),
        deployment("gpu", 1, &with_gpu("500m")),
        deployment("small", 60, SMALL),
    ];
    let all = scenario(&manifests).desired.workloads;
    let mut scenario = scenario(&manifests[..1]);
    limit(&mut scenario, &["g4dn.12xlarge", "m5.xlarge", "m5.2xlarge"], Some(64_000));
    scenario.apply();
    scenario.drift();
    scenario.desired.workloads = all;
    assert_eq!(fleet(&scenario), (types(&["g4dn.12xlarge"]), [1, 60]));
    let plan = scenario.apply();
    assert_eq!((plan.summary.destroy, plan.capacity.pods.unschedulable), (1, 0));
    let next = scenario.plan().summary;
    assert_eq!((next.add, next.destroy), (0, 0));
}

#[test]
fn higher_priority_of_small_pods_comes_before_gpus_at_a_limit() {
    let of_types = ["g4dn.12xlarge", "m5.2xlarge"];
    let six_cpu = |priority: u32| {
        format!(
            "priority: {priority}, containers: [{{name: app, resources: {{requests: {{cpu: 6, \
             memory: 1Gi}}}}}}]"
        )
    };
    // Five pods of 6 CPU and two of 7 fit on 47.8 CPU, or four and three.
    let (gpu, small) =
        (deployment("gpu", 3, &with_gpu("7")), deployment("small", 5, &six_cpu(1_000)));
    let shared = fleet(&limited(&gpu, &small, &of_types, Some(48_000)));
    assert_eq!(shared, (types(&["g4dn.12xlarge"]), [2, 5]));
    // Beside a pod of 20 CPU, only four of the others fit. Five without it are as many pods for
    // less.
    for priority in [0, 1_000] {
        let (gpu, small) =
            (deployment("gpu", 1, &with_gpu("20")), deployment("small", 5, &six_cpu(priority)));
        let plain = fleet(&limited(&gpu, &small, &of_types, Some(48_000)));
        assert_eq!(plain, (types(&["m5.2xlarge"; 5]), [0, 5]), "{priority}");
    }
}

#[test]
fn gpu_node_that_small_pods_may_fill_first_needs_nominations() {
    // Beside the GPU pod, 7 small pods fit, and 15 on the other node that the limit allows. Without
    // nominations, kube-scheduler may place more of them beside it, before it arrives.
    let (gpu, small) = (deployment("gpu", 1, &with_gpu("14")), deployment("small", 22, SMALL));
    for (steer, expected) in [
        (true, (types(&["g5.4xlarge", "m5.xlarge"]), [1, 22])),
        (false, (types(&["m5.xlarge"; 2]), [0, 22])),
    ] {
        let mut scenario = limited(&gpu, &small, &["g5.4xlarge", "m5.xlarge"], Some(20_000));
        scenario.settings.steer = steer;
        assert_eq!(fleet(&scenario), expected, "steer {steer}");
    }
}

/// Returns the number of new nodes in each zone. Each has a GPU, and small pods beside a GPU pod.
fn shared_gpu_nodes_by_zone(scenario: &Scenario) -> Vec<u32> {
    let solution = scenario.solve();
    let mut zones = BTreeMap::new();
    for launch in &solution.target.launches {
        assert_eq!(launch.node.instance_type.as_str(), "g4dn.xlarge");
        let LaunchReason::Demand { pods } = &launch.reason else { panic!("{:?}", launch.reason) };
        assert_eq!(pods.len(), 2, "{pods:?}");
        *zones.entry(&launch.node.zone).or_insert(0) += 1;
    }
    zones.into_values().collect()
}

#[test]
fn gpu_nodes_with_other_pods_are_balanced_over_zones() {
    // The zone of `near` admits more pods than other zones. Its priority keeps others off its node.
    let near = with_gpu("500m");
    let near = format!(
        "priority: 1000, nodeSelector: {{topology.kubernetes.io/zone: us-east-1a}}, {near}"
    );
    let mut scenario = scenario(&[
        deployment("gpu", 2, &with_gpu("500m")),
        deployment("near", 1, &near),
        deployment("small", 12, SMALL),
    ]);
    limit(&mut scenario, &["g4dn.xlarge", "m5.large"], None);
    assert_eq!(shared_gpu_nodes_by_zone(&scenario), [1, 1, 1]);
}

#[test]
fn spot_gpu_nodes_with_other_pods_share_offerings() {
    let (gpu, small) = (deployment("gpu", 4, &with_gpu("500m")), deployment("small", 16, SMALL));
    let mut scenario = limited(&gpu, &small, &["g4dn.xlarge", "m5.large"], None);
    scenario.pool().requirements[1] = requirement("karpenter.sh/capacity-type", &["spot"]);
    let kinds = scenario.catalog.types.values_mut();
    for (price, offering) in kinds.flat_map(|kind| (30_000..).zip(&mut kind.offerings)) {
        offering.price = Some(MicroUsd(price));
    }
    for (share, expected) in [(None, vec![4]), (Some(50_000), vec![2, 2])] {
        scenario.desired.max_offering_share = share;
        assert_eq!(shared_gpu_nodes_by_zone(&scenario), expected, "{share:?}");
    }
}

#[test]
fn gpu_node_with_other_pods_has_alternatives() {
    let (gpu, small) = (deployment("gpu", 1, &with_gpu("500m")), deployment("small", 60, SMALL));
    let target = limited(&gpu, &small, &["g4dn.12xlarge", "m5.large"], None).solve().target;
    let [launch] = &target.launches[..] else { panic!("one node: {:?}", target.launches) };
    let zones = launch.node.alternatives.iter().map(|other| &other.zone);
    assert!(zones.clone().count() > 0, "{:?}", launch.node);
    assert!(zones.clone().all(|zone| *zone != launch.node.zone), "of the same type alone");
}
