//! Closed nodes and nominations.

use super::*;
use crate::model::node_annotations::NodeAnnotations;
use crate::model::pod::{NodeInclusion, TopologySpread};

/// Returns a world with two closed nodes of two cores, and pending pods: five small ones of half a
/// core that arrive first, and one of a core and a half.
fn closed_fleet() -> World {
    let world = world();
    for token in ["a", "b"] {
        launch(&world, &LaunchRequest { taints: vec![Taint::opening()], ..request(token) });
    }
    let small = Delivery::default().with(WorkloadKind::Deployment, "a-small", 5, 500);
    deliver(&world, &small);
    settle(&world);
    let both = small.with(WorkloadKind::Deployment, "b-large", 1, 1_500);
    deliver(&world, &both);
    settle(&world);
    world
}

fn pending(world: &World) -> usize {
    let pods = world.observed().pods;
    pods.iter().filter(|pod| pod.node.is_none()).count()
}

fn open_all(world: &World) {
    for node in nodes(world) {
        run(world.open(&node, &NodeAnnotations::new())).expect("known");
    }
    settle(world);
}

#[test]
fn closed_node_takes_no_pod_until_it_is_opened() {
    let world = closed_fleet();
    assert_eq!(pending(&world), 6);
    open_all(&world);
    // The small pods spread over both nodes and leave no room for the large one.
    assert_eq!(pending(&world), 1);
    assert!(pods(&world, "b-large")[0].node.is_none());
}

#[test]
fn nominated_pods_find_their_room_whatever_arrived_first() {
    let world = closed_fleet();
    let [one, two] = <[Node; 2]>::try_from(nodes(&world)).expect("two nodes");
    let nominate =
        |pod: &Pod, node: &Node| run(world.nominate(pod, &node.name)).expect("it exists");
    nominate(&pods(&world, "b-large")[0], &one);
    let small = pods(&world, "a-small");
    nominate(&small[0], &one);
    small[1..].iter().for_each(|pod| nominate(pod, &two));
    settle(&world);
    assert_eq!(pending(&world), 6, "the nodes are closed");
    open_all(&world);
    assert_eq!(pending(&world), 0);
    let large = &pods(&world, "b-large")[0];
    assert_eq!((large.node.as_ref(), large.nominated.as_ref()), (Some(&one.name), None));
    // A nomination of a pod that no longer exists is refused.
    let gone = Pod { uid: "gone".into(), ..Pod::clone(large) };
    assert!(run(world.nominate(&gone, &one.name)).is_err());
}

#[test]
fn reserved_room_is_free_for_nobody_else() {
    let world = closed_fleet();
    let [one, two] = <[Node; 2]>::try_from(nodes(&world)).expect("two nodes");
    run(world.nominate(&pods(&world, "b-large")[0], &one.name)).expect("it exists");
    // Only the node without a nomination opens: the pod keeps its nomination.
    let open = |node: &Node| run(world.open(node, &NodeAnnotations::new())).expect("known");
    open(&two);
    settle(&world);
    open(&one);
    settle(&world);
    assert_eq!(pods(&world, "b-large")[0].node.as_ref(), Some(&one.name));
}

#[test]
fn closed_node_is_a_domain_unless_taints_are_honored() {
    for (policy, before, after) in
        [(NodeInclusion::Ignore, (1, 0), (1, 1)), (NodeInclusion::Honor, (2, 0), (2, 0))]
    {
        let world = fleet(1);
        launch(&world, &LaunchRequest { taints: vec![Taint::opening()], ..request("closed") });
        settle(&world);
        let (closed, open): (Vec<Node>, Vec<Node>) =
            nodes(&world).into_iter().partition(Node::is_closed);
        let spread = TopologySpread {
            node_taints_policy: policy,
            ..topology_spread(key::HOSTNAME, 1, "db")
        };
        let scale = |replicas: u32| {
            let mut template = template("db", 100);
            template.spec.topology_spread = vec![spread.clone()];
            let workload =
                DeliveredWorkload { replicas, first_ordinal: 0, template: Arc::new(template) };
            let workloads = [(id(WorkloadKind::Deployment, "db"), workload)].into();
            deliver(&world, &Delivery { workloads, ..Delivery::default() });
            settle(&world);
        };
        let on = |node: &Node| {
            let pods = pods(&world, "db");
            pods.into_iter().filter(|pod| pod.node.as_ref() == Some(&node.name)).count()
        };
        let placed = || (on(&open[0]), on(&closed[0]));
        scale(2);
        assert_eq!(placed(), before, "{policy:?}, closed");
        run(world.open(&closed[0], &NodeAnnotations::new())).expect("known");
        settle(&world);
        assert_eq!(placed(), after, "{policy:?}, opened");
        scale(4);
        assert_eq!(placed(), (2, 2), "{policy:?}, scaled");
    }
}

#[test]
fn opening_sets_missing_annotations_only() {
    let world = closed_fleet();
    let node = nodes(&world).swap_remove(0);
    let annotated = |team: &str| -> NodeAnnotations {
        [("team".to_owned(), team.to_owned()), (team.to_owned(), String::new())].into()
    };
    for team in ["a", "b"] {
        run(world.open(&node, &annotated(team))).expect("known");
    }
    let found = nodes(&world).swap_remove(0).annotations;
    assert_eq!(found["team"], "a");
    assert_eq!(found.into_keys().collect::<Vec<_>>(), ["a", "b", "team"]);
}
