//! Network interfaces and placement groups of a node class limit the types of its pools.

use crate::model::desired::{NetworkInterface, PlacementGroupSelector};
use crate::solver::{OfferInput, pool_problems};
use crate::testing::Scenario;

#[test]
fn declared_adapters_have_room_for_pods_on_types_that_have_them() {
    let launches = |adapters: i32, requested: i64, types: &[&str]| {
        let mut scenario = Scenario::new(types, 500, 256);
        let container = &mut scenario.template().spec.containers[0];
        if requested > 0 {
            container.resources.requests.insert("vpc.amazonaws.com/efa".into(), requested);
        }
        let class = scenario.node_class();
        let interface = |(device, efa_only)| NetworkInterface { card: 0, device, efa_only };
        let all = (1..=adapters).map(|device| (device, true));
        let all = [(0, false)].into_iter().chain(all).map(interface);
        class.instance_settings.network_interfaces = all.collect();
        class.efa = class.instance_settings.efa_interfaces();
        scenario.scale(2);
        scenario.solve().target.launches.len()
    };
    for (rule, adapters, requested, types, nodes) in [
        ("each pod has a node with its adapter", 1, 1, &["c5n.18xlarge"][..], 2),
        ("no adapter", 0, 1, &["c5n.18xlarge"], 0),
        ("no type has the adapter", 1, 1, &["m5.large"], 0),
        ("pods without adapters", 1, 0, &["m5.large"], 0),
        ("pods without adapters", 0, 0, &["m5.large"], 1),
        ("the type has one adapter", 2, 1, &["c5n.18xlarge"], 0),
        ("the class has one adapter", 1, 2, &["c6in.32xlarge"], 0),
    ] {
        assert_eq!(launches(adapters, requested, types), nodes, "{rule}: {types:?}");
    }
}

#[test]
fn types_of_a_placement_group_are_in_each_kind_of_group() {
    let problem = |types: &[&str]| {
        let mut scenario = Scenario::new(types, 500, 256);
        let group = PlacementGroupSelector::Name("web".to_owned());
        scenario.node_class().instance_settings.placement_group = Some(group);
        scenario.scale(1);
        let Scenario { desired, catalog, observed, .. } = &scenario;
        let supply = OfferInput { desired, catalog, observed, at: observed.taken_at };
        let launches = scenario.solve().target.launches;
        let launched = launches.first().map(|launch| launch.node.instance_type.to_string());
        let problems = pool_problems(&supply, &scenario.demand());
        (launched, problems.first().map(|problem| problem.message.clone()))
    };
    assert_eq!(problem(&["t3.large", "m5.large"]), (Some("m5.large".to_owned()), None));
    let (launched, message) = problem(&["t3.large"]);
    assert_eq!(launched, None);
    let message = message.expect("a problem");
    assert!(message.contains("can be in each kind of placement group"), "{message}");
}

#[test]
fn pool_without_types_for_its_network_interfaces_is_a_problem() {
    let mut scenario = Scenario::new(&["m5.large"], 500, 256);
    let class = scenario.node_class();
    class.instance_settings.network_interfaces =
        vec![NetworkInterface { card: 3, device: 0, efa_only: false }];
    scenario.scale(1);
    let Scenario { desired, catalog, observed, .. } = &scenario;
    let supply = OfferInput { desired, catalog, observed, at: observed.taken_at };
    let problems = pool_problems(&supply, &scenario.demand());
    assert_eq!(problems.len(), 1, "{problems:#?}");
    let expected = "none of its instance types has the `networkInterfaces` or the `ipPrefixCount` \
                    of node class default";
    assert!(problems[0].message.ends_with(expected), "{}", problems[0].message);
}
