//! Tests that unknown is not empty.

use super::*;
use crate::apply::ports::CallEffect;
use crate::model::ids::WorkloadKind;
use crate::model::observed::{Instance, KEY_LABEL, tag, write_world};
use crate::simulator::{Delivery, World};
use crate::testing::apply::FaultyPorts;
use crate::testing::simulator::{cluster, launch, request, run, world};

fn failed(verb: &str) -> PortError {
    PortError { verb: verb.into(), reason: "connection reset".into(), effect: CallEffect::Unknown }
}

/// Returns a world with one node and two pods.
fn small_world() -> World {
    let world = world();
    let mut request = request("a");
    request.offerings[0].labels.insert(KEY_LABEL.into(), "0".into());
    request.tags.insert(tag::KEY.into(), "0".into());
    launch(&world, &request);
    world
        .deliver(&Delivery::default().with(WorkloadKind::Deployment, "api", 2, 100))
        .expect("kept in memory");
    world.settle(jiff::SignedDuration::from_mins(5)).expect("kept in memory");
    world
}

fn observe_through(faulty: &FaultyPorts<'_>) -> Observed {
    run(observe(faulty, faulty, faulty.world, cluster()))
}

#[test]
fn node_without_reported_resources_is_a_starting_instance() {
    for (ready, has_pods, is_observed) in
        [(false, false, false), (true, false, true), (false, true, true)]
    {
        let world = small_world();
        let faulty = FaultyPorts::without_fault(&world);
        faulty.edit_objects.set(match (ready, has_pods) {
            (false, false) => |objects| {
                clear_report(objects, false);
                objects.pods.clear();
                Ok(())
            },
            (true, _) => |objects| {
                clear_report(objects, true);
                Ok(())
            },
            (false, true) => |objects| {
                clear_report(objects, false);
                Ok(())
            },
        });
        let observed = observe_through(&faulty);
        assert_eq!(!observed.nodes.is_empty(), is_observed, "{ready} {has_pods}");
        assert_eq!(observed.instances.len(), 1);
    }
}

fn clear_report(objects: &mut ClusterObjects, ready: bool) {
    for node in &mut objects.nodes {
        (node.capacity, node.allocatable) = (Resources::default(), Resources::default());
        node.ready = ready;
    }
}

#[test]
fn complete_reads_match_the_world() {
    let world = small_world();
    let faulty = FaultyPorts::without_fault(&world);
    let observed = observe_through(&faulty);
    assert!(observed.is_complete());
    assert_eq!(write_world(&observed), write_world(&faulty.world.observed()));
    assert_eq!((observed.nodes.len(), observed.pods.len()), (1, 2));
}

#[test]
fn failed_read_is_marked_and_the_other_is_kept() {
    let world = small_world();
    let faulty = FaultyPorts::without_fault(&world);
    faulty.edit_inventory.set(|_| Err(failed("read account")));
    let observed = observe_through(&faulty);
    assert!(!observed.is_complete());
    let reason = "read account failed: connection reset".to_owned();
    assert_eq!(observed.sources[EC2], Completeness::Failed { reason });
    assert_eq!(observed.sources[KUBERNETES], Completeness::Complete);
    assert_eq!(observed.nodes.len(), 1);
    faulty.edit_objects.set(|_| Err(failed("read cluster")));
    let observed = observe_through(&faulty);
    assert!(matches!(observed.sources[KUBERNETES], Completeness::Failed { .. }));
}

#[test]
fn contradictory_reads_are_partial() {
    let world = small_world();
    let faulty = FaultyPorts::without_fault(&world);
    faulty.edit_inventory.set(|inventory| {
        inventory.instances.pop();
        Ok(())
    });
    faulty.edit_found.set(|found| {
        found.clear();
        Ok(())
    });
    faulty.edit_objects.set(|objects| {
        objects.templates.clear();
        Ok(())
    });
    let observed = observe_through(&faulty);
    for source in [EC2, KUBERNETES] {
        assert!(matches!(observed.sources[source], Completeness::Partial { .. }), "{source}");
    }
}

fn names(observed: &Observed) -> Vec<&str> {
    observed.unread.iter().map(|unread| unread.object.as_str()).collect()
}

/// Returns a world with two nodes.
fn world_of_two_nodes() -> World {
    let world = small_world();
    let mut request = request("b");
    request.offerings[0].labels.insert(KEY_LABEL.into(), "1".into());
    request.tags.insert(tag::KEY.into(), "1".into());
    launch(&world, &request);
    world.settle(jiff::SignedDuration::from_mins(5)).expect("kept in memory");
    world
}

#[test]
fn node_whose_instance_lost_its_tags_is_named_alone() {
    for lost in [1, 2] {
        let world = world_of_two_nodes();
        let nodes = world.observed().nodes;
        for node in nodes.values().take(lost) {
            let id = node.instance.as_ref().expect("an instance");
            world.untag_instance(id, tag::CLUSTER).expect("a tag");
        }
        let observed = observe_through(&FaultyPorts::without_fault(&world));
        assert!(observed.is_complete(), "{:?}", observed.sources);
        let expected = nodes.keys().take(lost).map(|name| format!("Node {name}"));
        assert_eq!(names(&observed), expected.collect::<Vec<_>>());
        let unread = &observed.unread[0];
        assert!(unread.reason.contains("without the tags fleetwright"), "{unread:?}");
        assert!(!unread.hides_requests, "it takes pods");
        assert_eq!(observed.instances.len(), 2, "EC2 shows it by ID");
    }
}

#[test]
fn instance_newer_than_the_list_is_found_by_id() {
    let world = small_world();
    let faulty = FaultyPorts::without_fault(&world);
    let complete = observe_through(&faulty);
    faulty.edit_inventory.set(|inventory| {
        inventory.instances.clear();
        Ok(())
    });
    assert_eq!(observe_through(&faulty), complete);
    faulty.edit_found.set(|_| Err(failed("find instances")));
    assert!(!observe_through(&faulty).is_complete(), "a failed read is no empty one");
}

#[test]
fn read_is_partial_if_ec2_disowns_every_node() {
    type Edit = fn(&mut Vec<Instance>) -> Result<(), PortError>;
    let unknown: Edit = |found| {
        found.clear();
        Ok(())
    };
    let of_another_cluster: Edit = |found| {
        for instance in found {
            instance.tags.insert(tag::CLUSTER.to_owned(), "other".to_owned());
        }
        Ok(())
    };
    for edit in [unknown, of_another_cluster] {
        let world = world_of_two_nodes();
        let faulty = FaultyPorts::without_fault(&world);
        faulty.edit_found.set(edit);
        faulty.edit_inventory.set(|inventory| {
            inventory.instances.truncate(1);
            Ok(())
        });
        let observed = observe_through(&faulty);
        assert!(observed.is_complete(), "one node is ours: {:?}", observed.sources);
        assert_eq!(names(&observed).len(), 1);
        faulty.edit_inventory.set(|inventory| {
            inventory.instances.clear();
            Ok(())
        });
        let observed = observe_through(&faulty);
        assert!(matches!(observed.sources[EC2], Completeness::Partial { .. }));
        assert!(observed.unread.is_empty());
    }
}
