//! Inter-pod rules: a small repository for each, and the resulting fleet.

use std::collections::{BTreeMap, BTreeSet};

use crate::manifest::read;
use crate::model::desired::{Fleet, Tree, TreeFile};
use crate::model::observed::Observed;
use crate::solver::{NodeRef, Solution};
use crate::testing::{Scenario, node_class, pool, requirement};

/// Returns a Deployment of pods of 500m and 512Mi; `spec` is inserted into its pod template.
pub(super) fn deployment(name: &str, replicas: u32, spec: &str) -> String {
    let resources = "resources: {requests: {cpu: 500m, memory: 512Mi}}";
    let spec = spec.replace("$RESOURCES", resources);
    let container = format!("containers: [{{name: app, {resources}}}]");
    let containers = if spec.contains("containers:") { String::new() } else { container + ", " };
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: web}}\n\
         spec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: {name}}}}}\n  template:\n\
         \x20   metadata: {{labels: {{app: {name}}}}}\n    spec: {{{containers}{spec}}}\n"
    )
}

fn spread(of: &str, key: &str, more: &str) -> String {
    format!(
        "topologySpreadConstraints: [{{topologyKey: {key}, whenUnsatisfiable: DoNotSchedule, \
         labelSelector: {{matchLabels: {{app: {of}}}}}, {more}}}]"
    )
}

fn term(kind: &str, of: &str, key: &str) -> String {
    format!(
        "affinity: {{{kind}: {{requiredDuringSchedulingIgnoredDuringExecution: \
         [{{topologyKey: {key}, labelSelector: {{matchLabels: {{app: {of}}}}}}}]}}}}"
    )
}

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

/// Summary of a fleet.
#[derive(Debug, Default, PartialEq, Eq)]
struct FleetSummary {
    /// Pods of each workload on each node, fewest first.
    nodes: BTreeMap<String, Vec<u32>>,
    /// Pods of each workload in each zone, fewest first.
    zones: BTreeMap<String, Vec<u32>>,
    /// Number of unschedulable pods.
    unplaced: u32,
}

pub(super) fn scenario(manifests: &[String]) -> Scenario {
    let mut scenario = Scenario::new(&[], 0, 0);
    let file =
        TreeFile { path: "w.yaml".into(), content: Ok(manifests.concat().into_bytes().into()) };
    let read = read(&Tree { files: vec![file] }, &Fleet::default());
    assert_eq!(read.problems, [], "{manifests:#?}");
    scenario.desired.workloads = read.workloads;
    scenario.desired.claims = read.claims;
    scenario.desired.volumes = read.volumes;
    scenario.desired.storage_classes = read.storage_classes;
    let mut pool = pool();
    pool.requirements = vec![
        requirement("node.kubernetes.io/instance-type", &["m5.large", "m5.xlarge"]),
        requirement("karpenter.sh/capacity-type", &["on-demand"]),
        requirement(ZONE, &["us-east-1a", "us-east-1b", "us-east-1c"]),
    ];
    scenario.desired.pools = [(pool.name.clone(), pool)].into();
    let class = node_class();
    scenario.desired.node_classes = [(class.name.clone(), class)].into();
    scenario
}

fn summary(scenario: &Scenario, solution: &Solution) -> FleetSummary {
    let workloads: Vec<String> =
        scenario.desired.workloads.keys().map(|id| id.name.to_string()).collect();
    let target = &solution.target;
    let zone_of = |node_ref: &NodeRef| match node_ref {
        NodeRef::Launch(index) => target.launches[*index].node.zone.to_string(),
        NodeRef::Existing(name) => zone_in(&scenario.observed, name.as_str()),
    };
    let mut summary = FleetSummary {
        unplaced: target.unschedulable.iter().map(|u| u.pods).sum(),
        ..FleetSummary::default()
    };
    for (group, places) in &target.placements {
        let mut zones: BTreeMap<String, u32> = BTreeMap::new();
        for (node_ref, count) in places {
            *zones.entry(zone_of(node_ref)).or_insert(0) += count;
        }
        let mut nodes: Vec<u32> = places.values().copied().collect();
        let mut zones: Vec<u32> = zones.into_values().collect();
        nodes.sort_unstable();
        zones.sort_unstable();
        summary.nodes.insert(workloads[*group].clone(), nodes);
        summary.zones.insert(workloads[*group].clone(), zones);
    }
    summary
}

fn zone_in(observed: &Observed, node: &str) -> String {
    observed.nodes[node].labels[ZONE].to_string()
}

fn plan(manifests: &[String]) -> FleetSummary {
    let scenario = scenario(manifests);
    summary(&scenario, &scenario.solve())
}

#[test]
fn zone_spread_places_pods_in_each_zone() {
    let fleet = plan(&[deployment("a", 4, &spread("a", ZONE, "maxSkew: 1"))]);
    assert_eq!((fleet.zones["a"].as_slice(), fleet.unplaced), (&[1, 1, 2][..], 0));
}

#[test]
fn zone_spread_of_several_workloads_needs_nodes_in_each_zone() {
    for steer in [false, true] {
        let rule = |app: &str| spread(app, ZONE, "maxSkew: 1");
        let mut scenario =
            scenario(&[deployment("a", 4, &rule("a")), deployment("b", 5, &rule("b"))]);
        scenario.settings.steer = steer;
        let plan = scenario.plan();
        let launches = plan.resource_changes.iter().filter_map(|row| row.change.after.as_ref());
        let zones: BTreeSet<_> = launches.filter_map(|after| after.zone.clone()).collect();
        assert_eq!((zones.len(), plan.capacity.pods.unschedulable), (3, 0), "steer {steer}");
        scenario.apply();
        let next = scenario.plan().summary;
        assert_eq!((next.add, next.destroy), (0, 0), "steer {steer}");
    }
}

/// Returns the rules of pods that must be near pods of `b` and spread over zones.
fn near_b_and_spread(of: &str, skew: &str) -> String {
    format!("{}, {}", term("podAffinity", "b", ZONE), spread(of, ZONE, skew))
}

/// Each of these pods fills a node.
const LARGE: &str = "containers: [{name: app, resources: {requests: {cpu: 3}}}]";

#[test]
fn affinity_and_spread_over_zones_need_the_selected_pods_in_each_zone() {
    for steer in [false, true] {
        // `a0` needs two zones, and `c` one: neither may bring all pods of `b` there.
        let mut scenario = scenario(&[
            deployment("a", 6, &near_b_and_spread("a", "maxSkew: 1")),
            deployment("a0", 4, &near_b_and_spread("a0", "maxSkew: 2")),
            deployment("b", 3, LARGE),
            deployment("c", 1, &term("podAffinity", "b", ZONE)),
        ]);
        scenario.settings.steer = steer;
        let fleet = summary(&scenario, &scenario.solve());
        assert_eq!((fleet.zones["a"].as_slice(), fleet.unplaced), (&[2, 2, 2][..], 0), "{steer}");
        assert_eq!(fleet.nodes["b"].len(), 3);
    }
}

#[test]
fn arriving_pods_complete_the_zones_of_a_standing_fleet() {
    let manifests = |a: u32, b: u32| {
        let rules = near_b_and_spread("a", "maxSkew: 1");
        // `d` has nodes in all zones.
        let rest =
            [deployment("b", b, LARGE), deployment("d", 3, &spread("d", ZONE, "maxSkew: 1"))];
        [vec![deployment("a", a, &rules)], rest.to_vec()].concat()
    };
    let mut before = scenario(&manifests(2, 2));
    before.apply();
    let mut after = scenario(&manifests(6, 3));
    after.observed = before.observed.clone();
    let fleet = summary(&after, &after.solve());
    assert_eq!((fleet.zones["a"].as_slice(), fleet.unplaced), (&[2, 2, 2][..], 0));
}

#[test]
fn spread_follows_few_pods_into_as_many_zones() {
    let both = near_b_and_spread("a", "maxSkew: 2");
    // `c` has nodes in all three zones.
    let fleet = plan(&[
        deployment("a", 4, &both),
        deployment("b", 2, LARGE),
        deployment("c", 3, &spread("c", ZONE, "maxSkew: 1")),
    ]);
    assert_eq!((fleet.zones["a"].as_slice(), fleet.unplaced), (&[2, 2][..], 0));
    assert_eq!(fleet.zones["b"], [1, 1]);
}

/// Returns a Deployment of two pods that fill a node each, in two of the three zones.
fn two_large_pods() -> String {
    let zones = format!("{{key: {ZONE}, operator: In, values: [us-east-1b, us-east-1c]}}");
    let affinity = format!(
        "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: \
         {{nodeSelectorTerms: [{{matchExpressions: [{zones}]}}]}}}}}}"
    );
    deployment("large", 2, &format!("{LARGE}, {affinity}, {}", spread("large", ZONE, "maxSkew: 1")))
}

#[test]
fn spread_pods_need_no_node_while_equal_zones_have_room() {
    let mut before = scenario(&[two_large_pods()]);
    before.apply();
    assert_eq!(before.observed.nodes.len(), 2);
    for steer in [false, true] {
        for (replicas, launches) in [(1, 0), (2, 0), (3, 1)] {
            let rule = spread("small", ZONE, "maxSkew: 1");
            let mut after = scenario(&[two_large_pods(), deployment("small", replicas, &rule)]);
            after.observed = before.observed.clone();
            after.settings.steer = steer;
            let solution = after.solve();
            let fleet = summary(&after, &solution);
            let found = (solution.target.launches.len(), fleet.unplaced);
            assert_eq!(found, (launches, 0), "{replicas} pods, steer {steer}");
            assert!(fleet.zones["small"].iter().all(|pods| *pods == 1), "{fleet:?}");
        }
    }
}

#[test]
fn spread_pods_share_the_zones_that_get_nodes_for_other_pods() {
    // The names decide which workload is assigned first if no rule does.
    for name in ["a", "small"] {
        let small = deployment(name, 1, &spread(name, ZONE, "maxSkew: 1"));
        let launches = |other: String| scenario(&[small.clone(), other]).solve().target.launches;
        assert_eq!(launches(two_large_pods()).len(), 2, "{name}");
        let one_zone = format!("{LARGE}, nodeSelector: {{{ZONE}: us-east-1c}}");
        assert_eq!(launches(deployment("large", 1, &one_zone)).len(), 1, "{name}");
    }
}

#[test]
fn a_pool_limit_gives_its_room_to_the_most_pods() {
    let small = "containers: [{name: app, resources: {requests: {cpu: 300m, memory: 128Mi}}}]";
    let mut scenario = scenario(&[deployment("large", 1, LARGE), deployment("small", 10, small)]);
    let pool = scenario.pool();
    pool.requirements[0] = requirement("node.kubernetes.io/instance-type", &["m5.xlarge"]);
    pool.limits.resources = [("cpu".into(), 4_000)].into();
    let solution = scenario.solve();
    let fleet = summary(&scenario, &solution);
    assert_eq!((fleet.nodes["small"].as_slice(), fleet.unplaced), (&[10][..], 1));
    scenario.carry_out(&solution);
    let next = scenario.solve().target;
    assert!(next.launches.is_empty() && next.retires.is_empty());
}

#[test]
fn a_pool_limit_gives_its_room_to_the_highest_priority_first() {
    let large = "priority: 1000, containers: [{name: app, resources: {requests: {cpu: 20, memory: \
                 100Gi}, limits: {nvidia.com/gpu: 4}}}]";
    let small = "containers: [{name: app, resources: {requests: {cpu: 250m, memory: 512Mi}}}]";
    // The small pods alone would fill cheaper nodes, within the look-ahead and beyond it.
    for pods in [60, 100] {
        let mut scenario =
            scenario(&[deployment("large", 1, large), deployment("small", pods, small)]);
        let pool = scenario.pool();
        let types = ["g4dn.12xlarge", "m5.large"];
        pool.requirements[0] = requirement("node.kubernetes.io/instance-type", &types);
        pool.limits.resources = [("cpu".into(), 48_000)].into();
        let fleet = summary(&scenario, &scenario.solve());
        let placed = (fleet.nodes["large"].as_slice(), fleet.nodes["small"].as_slice());
        assert_eq!((placed, fleet.unplaced), ((&[1][..], &[pods][..]), 0));
    }
}

#[test]
fn spread_over_zones_and_types_shares_nodes() {
    let rules = "topologySpreadConstraints: [{topologyKey: topology.kubernetes.io/zone, maxSkew: 1, \
                 whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: a}}}, \
                 {topologyKey: node.kubernetes.io/instance-type, maxSkew: 2, \
                 whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: a}}}]";
    for types in [["m5.large", "m5.xlarge", "m5.2xlarge"], ["c5.large", "m5.large", "m6i.large"]] {
        let mut scenario = scenario(&[deployment("a", 6, rules)]);
        scenario.pool().requirements[0] = requirement("node.kubernetes.io/instance-type", &types);
        let plan = scenario.plan();
        let nodes = plan.resource_changes.iter().filter_map(|row| row.change.after.as_ref());
        let kinds: BTreeSet<_> = nodes.clone().map(|node| node.instance_type.clone()).collect();
        let zones: BTreeSet<_> = nodes.clone().map(|node| node.zone.clone()).collect();
        assert_eq!((nodes.count(), kinds.len(), zones.len()), (3, 3, 3), "{types:?}");
        assert_eq!(plan.capacity.pods.unschedulable, 0);
        assert!(plan.capacity.explain.iter().all(|row| !row.pods.is_empty()), "no node is idle");
        scenario.apply();
        let next = scenario.plan().summary;
        assert_eq!((next.add, next.destroy), (0, 0), "{types:?}");
    }
}

#[test]
fn too_few_domains_keep_the_minimum_at_zero() {
    let fleet = plan(&[deployment("a", 4, &spread("a", ZONE, "maxSkew: 1, minDomains: 4"))]);
    assert_eq!((fleet.zones["a"].as_slice(), fleet.unplaced), (&[1, 1, 1][..], 1));
}

#[test]
fn hostname_spread_fills_new_nodes_evenly() {
    // An m5.large holds three of these pods.
    for (pods, skew, expected) in [(9, 1, &[3, 3, 3][..]), (8, 2, &[2, 3, 3]), (4, 1, &[2, 2])] {
        let rule = spread("a", HOST, &format!("maxSkew: {skew}"));
        let mut scenario = scenario(&[deployment("a", pods, &rule)]);
        let fleet = summary(&scenario, &scenario.solve());
        assert_eq!((fleet.nodes["a"].as_slice(), fleet.unplaced), (expected, 0));
        scenario.apply();
        let next = scenario.plan().summary;
        assert_eq!((next.add, next.destroy), (0, 0), "{pods} pods");
    }
}

#[test]
fn steered_hostname_spread_fills_new_nodes_up_to_the_skew() {
    let mut scenario = scenario(&[deployment("a", 4, &spread("a", HOST, "maxSkew: 1"))]);
    scenario.settings.steer = true;
    let fleet = summary(&scenario, &scenario.solve());
    assert_eq!((fleet.nodes["a"].as_slice(), fleet.unplaced), (&[1, 1, 1, 1][..], 0));
}

#[test]
fn hostname_spread_gets_a_second_node() {
    for (pods, expected) in [(1, &[1][..]), (2, &[1, 1]), (3, &[1, 2])] {
        let fleet = plan(&[deployment("a", pods, &spread("a", HOST, "maxSkew: 1"))]);
        assert_eq!((fleet.nodes["a"].as_slice(), fleet.unplaced), (expected, 0), "{pods} pods");
    }
    let fleet = plan(&[deployment("a", 9, &spread("a", HOST, "maxSkew: 1, minDomains: 5"))]);
    assert_eq!((fleet.nodes["a"].as_slice(), fleet.unplaced), (&[1, 2, 2, 2, 2][..], 0));
}

#[test]
fn full_node_of_other_pods_caps_a_hostname_spread() {
    let full = "containers: [{name: app, resources: {requests: {cpu: 3500m}}}]";
    let rule = spread("a", HOST, "maxSkew: 1");
    let fleet = plan(&[deployment("a", 6, &rule), deployment("b", 1, full)]);
    assert_eq!((fleet.nodes["a"].as_slice(), fleet.unplaced), (&[1; 6][..], 0));
}

#[test]
fn running_nodes_of_a_hostname_spread_are_consolidated() {
    let one_each = spread("a", HOST, "maxSkew: 1, minDomains: 9");
    let mut scenario = scenario(&[deployment("a", 9, &one_each)]);
    scenario.apply();
    let spread = self::scenario(&[deployment("a", 9, &spread("a", HOST, "maxSkew: 1"))]);
    scenario.desired.workloads = spread.desired.workloads;
    let plan = scenario.plan();
    assert_eq!((plan.summary.add, plan.summary.destroy), (0, 6));
    scenario.apply();
    assert_eq!(scenario.plan().summary.destroy, 0);
}

#[test]
fn a_spread_without_a_selector_spreads_nothing() {
    let rule = format!(
        "topologySpreadConstraints: [{{topologyKey: {HOST}, whenUnsatisfiable: DoNotSchedule, maxSkew: 1}}]"
    );
    assert_eq!(plan(&[deployment("a", 2, &rule)]).nodes["a"], [2]);
}

#[test]
fn pods_with_anti_affinity_share_no_node_and_no_zone() {
    let fleet = plan(&[deployment("a", 3, &term("podAntiAffinity", "a", HOST))]);
    assert_eq!((fleet.nodes["a"].as_slice(), fleet.unplaced), (&[1, 1, 1][..], 0));
    let fleet = plan(&[deployment("a", 4, &term("podAntiAffinity", "a", ZONE))]);
    assert_eq!((fleet.zones["a"].as_slice(), fleet.unplaced), (&[1, 1, 1][..], 1));
}

#[test]
fn lower_bound_is_that_of_new_nodes() {
    let mut before = Scenario::new(&["m5.large"], 500, 512);
    before.step(2);
    let [node] = before.observed.instances.values().collect::<Vec<_>>()[..] else { panic!("one") };
    let price = before.catalog.types[&node.instance_type].offerings.iter();
    let price = price.filter_map(|offering| offering.price).max().expect("priced");
    let apart = scenario(&[deployment("a", 2, &term("podAntiAffinity", "a", HOST))]);
    let apart = apart.desired.workloads.into_values().next().expect("declared");
    before.desired.workloads.values_mut().for_each(|of| of.template = apart.template.clone());
    let target = before.solve().target;
    assert!(
        target.launches.is_empty() && target.unschedulable.is_empty(),
        "both run where they ran"
    );
    // The rule is newer than the pods, which share a node. New nodes would have to obey it.
    assert_eq!(target.lower_bound, price + price);
}

#[test]
fn anti_affinity_applies_in_both_directions() {
    for key in [HOST, ZONE] {
        let repelled = deployment("a", 2, "");
        let repelling = deployment("b", 2, &term("podAntiAffinity", "a", key));
        let scenario = scenario(&[repelled, repelling]);
        let solution = scenario.solve();
        let places: Vec<BTreeSet<String>> = solution
            .target
            .placements
            .values()
            .map(|on| {
                let domain = |node_ref: &NodeRef| match node_ref {
                    NodeRef::Launch(index) if key == ZONE => {
                        solution.target.launches[*index].node.zone.to_string()
                    }
                    NodeRef::Launch(index) => index.to_string(),
                    NodeRef::Existing(name) => name.to_string(),
                };
                on.keys().map(domain).collect()
            })
            .collect();
        assert_eq!(solution.target.unschedulable.len(), 0, "{key}");
        assert!(places[0].is_disjoint(&places[1]), "{key}: {places:?}");
    }
}

#[test]
fn pods_with_affinity_share_a_zone_or_a_node() {
    let fleet = plan(&[deployment("a", 9, &term("podAffinity", "a", ZONE))]);
    assert_eq!((fleet.zones["a"].as_slice(), fleet.unplaced), (&[9][..], 0));
    let fleet = plan(&[deployment("a", 5, &term("podAffinity", "a", HOST))]);
    assert_eq!((fleet.nodes["a"].as_slice(), fleet.unplaced), (&[5][..], 0));
    let fleet = plan(&[deployment("a", 9, &term("podAffinity", "a", HOST))]);
    assert_eq!(
        (fleet.nodes["a"].as_slice(), fleet.unplaced),
        (&[7][..], 2),
        "an m5.xlarge holds 7"
    );
}

#[test]
fn affinity_follows_other_pods_and_fails_without_them() {
    let fleet =
        plan(&[deployment("a", 4, &term("podAffinity", "b", ZONE)), deployment("b", 2, "")]);
    assert_eq!((fleet.zones["a"].len(), fleet.unplaced), (1, 0), "{fleet:?}");
    let fleet =
        plan(&[deployment("a", 4, &term("podAffinity", "b", HOST)), deployment("b", 1, "")]);
    assert_eq!((fleet.nodes["a"].as_slice(), fleet.unplaced), (&[4][..], 0));
    let fleet = plan(&[deployment("a", 2, &term("podAffinity", "ghost", ZONE))]);
    assert_eq!((fleet.nodes.len(), fleet.unplaced), (0, 2), "{fleet:?}");
}

#[test]
fn a_host_port_is_bound_once_on_a_node() {
    let port = |ip: &str| {
        let port = format!("{{containerPort: 80, hostPort: 80, hostIP: {ip}}}");
        format!("containers: [{{name: app, $RESOURCES, ports: [{port}]}}]")
    };
    let fleet = plan(&[deployment("a", 3, &port("0.0.0.0"))]);
    assert_eq!((fleet.nodes["a"].as_slice(), fleet.unplaced), (&[1, 1, 1][..], 0));
    let fleet =
        plan(&[deployment("a", 1, &port("10.0.0.1")), deployment("b", 1, &port("10.0.0.2"))]);
    assert_eq!(fleet.unplaced, 0);
    let scenario =
        scenario(&[deployment("a", 1, &port("10.0.0.1")), deployment("b", 1, &port("10.0.0.2"))]);
    assert_eq!(scenario.solve().target.launches.len(), 1, "other addresses do not clash");
}

#[test]
fn preference_is_followed_up_to_the_cost_of_its_weight() {
    let wish = |zone: &str, weight: u32| {
        format!(
            "affinity: {{nodeAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: \
             [{{weight: {weight}, preference: {{matchExpressions: \
             [{{key: {zone}, operator: In, values: [us-east-1c, r5.large]}}]}}}}]}}}}"
        )
    };
    let launched = |spec: &str| {
        let mut scenario = scenario(&[deployment("a", 3, spec)]);
        let pool = scenario.pool();
        pool.requirements[0] =
            requirement("node.kubernetes.io/instance-type", &["m5.large", "r5.large"]);
        let solution = scenario.solve();
        let node = &solution.target.launches[0].node;
        (node.zone.to_string(), node.instance_type.to_string())
    };
    assert_eq!(launched(&wish(ZONE, 1)).0, "us-east-1c", "another zone costs nothing");
    let kind = "node.kubernetes.io/instance-type";
    // The pods' share of the cheaper node is 7.5 cents; the other one costs 3 cents more.
    assert_eq!(launched(&wish(kind, 100)).1, "r5.large");
    assert_eq!(launched(&wish(kind, 10)).1, "m5.large");
}

#[test]
fn rules_over_several_keys_hold_together() {
    let rules =
        format!("{}, {}", spread("a", ZONE, "maxSkew: 1"), term("podAntiAffinity", "a", HOST));
    let fleet = plan(&[deployment("a", 7, &rules)]);
    assert_eq!(fleet.zones["a"], [2, 2, 3]);
    assert_eq!(fleet.nodes["a"], [1; 7]);
}

#[test]
fn improved_fleet_still_passes_every_order() {
    let large = |cpu: &str| {
        format!(
            "containers: [{{name: app, resources: {{requests: {{cpu: {cpu}, memory: 100Mi}}}}}}]"
        )
    };
    let manifests = [deployment("a", 1, &large("1500m")), deployment("b", 2, &large("600m"))];
    let mut scenario = scenario(&manifests);
    let pool = scenario.pool();
    pool.requirements[0] = requirement("node.kubernetes.io/instance-type", &["m5.large"]);
    let target = scenario.solve().target;
    // On two nodes the smaller pods, if they come first, take one each.
    assert_eq!((target.launches.len(), target.unschedulable.len()), (3, 0));
}

/// Returns a StatefulSet of three pods that spread over zones. Their volumes are in three zones.
pub(super) fn zonal_database() -> String {
    let rule = "topologySpreadConstraints: [{topologyKey: topology.kubernetes.io/zone, \
                whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: db}}, \
                maxSkew: 1}]";
    let set = "---\napiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: db, namespace: \
                    web}\nspec:\n  replicas: 3\n  serviceName: db\n  selector: {matchLabels: {app: \
                    db}}\n  template:\n    metadata: {labels: {app: db}}\n    spec: {containers: \
                    [{name: app, resources: {requests: {cpu: 3, memory: 1Gi}}}], RULE}\n  \
                    volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: \
                    [ReadWriteOnce], storageClassName: gp3, resources: {requests: {storage: \
                    1Gi}}}}]\n";
    let zones = ["us-east-1a", "us-east-1b", "us-east-1c"].iter().enumerate();
    let volumes = zones.map(|(ordinal, zone)| {
        let spec = "accessModes: [ReadWriteOnce], storageClassName: gp3";
        format!(
            "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data-db-{ordinal}, \
             namespace: web}}\nspec: {{{spec}, volumeName: pv{ordinal}, resources: {{requests: \
             {{storage: 1Gi}}}}}}\n---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: \
             pv{ordinal}}}\nspec: {{{spec}, capacity: {{storage: 1Gi}}, csi: {{driver: \
             ebs.csi.aws.com, volumeHandle: v{ordinal}}}, claimRef: {{namespace: web, name: \
             data-db-{ordinal}}}, nodeAffinity: {{required: {{nodeSelectorTerms: \
             [{{matchExpressions: [{{key: {ZONE}, operator: In, values: [{zone}]}}]}}]}}}}}}\n"
        )
    });
    [set.replace("RULE", rule)].into_iter().chain(volumes).collect::<Vec<_>>().concat()
}

#[test]
fn pods_with_volumes_in_several_zones_are_explained_together() {
    let large =
        deployment("large", 2, "containers: [{name: app, resources: {requests: {cpu: 3}}}]");
    let plan = scenario(&[zonal_database(), large]).plan();
    let row = plan.capacity.demand.iter().find(|row| &*row.workload.name == "db");
    let row = row.expect("the StatefulSet");
    let zones = ["a", "b", "c"].map(|zone| {
        format!("1 of 3 pods: claim web/data-* is bound to a volume in zone us-east-1{zone}")
    });
    assert_eq!(row.rules[1..], zones);
    // Each pod has a node of its own.
    let others: u32 = row.elsewhere.iter().map(|reason| reason.count).sum();
    assert_eq!(others, plan.summary.add - 3, "{:?}", row.elsewhere);
}

#[test]
fn limits_are_raised_for_all_pods_of_a_stateful_set() {
    let mut scenario = scenario(&[zonal_database()]);
    scenario.pool().limits.resources = [("cpu".into(), 2_000)].into();
    let target = scenario.solve().target;
    let [unplaced] = target.unschedulable.as_slice() else { panic!("one workload") };
    let fix = "raise the limits of NodePool default (pool.yaml:1) by cpu 10: at most 3 m5.xlarge, \
               $0.5760/h more";
    assert_eq!((unplaced.pods, unplaced.suggested_change.as_deref()), (3, Some(fix)));
    scenario.pool().limits.resources = [("cpu".into(), 12_000)].into();
    assert!(scenario.solve().target.unschedulable.is_empty());
}
