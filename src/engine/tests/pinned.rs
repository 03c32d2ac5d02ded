//! What planning again, pinned to an approved plan, drops and misses.

use super::{inputs_of, plan_of, workshop};
use crate::engine::{Scope, pinned};
use crate::fleet::tag;
use crate::plan::wire::Plan;
use crate::plan::{Pinned, change_id};
use crate::requirement::label;
use crate::story::{Story, requirement};

/// One pod to a node, so that a node more or less is a pod more or less.
fn one_a_node() -> Story {
    Story::new(&["m5.large"], 1500, 1024)
}

fn again(story: &Story, approved: &Plan) -> Pinned {
    pinned(&inputs_of(story), approved)
}

/// Plans for `replicas`, and again once there are to be `later`.
fn then(mut story: Story, replicas: u32, later: u32) -> (Plan, Pinned) {
    story.scale(replicas);
    let approved = plan_of(&story, Scope::default());
    story.scale(later);
    let found = again(&story, &approved);
    (approved, found)
}

#[test]
fn where_nothing_has_changed_everything_is_as_approved() {
    let (approved, found) = then(one_a_node(), 3, 3);
    assert_eq!(found.now.capacity.digest, approved.capacity.digest);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0));
}

#[test]
fn a_launch_whose_pod_is_gone_is_dropped_and_no_other() {
    for (later, dropped) in [(3, 1), (1, 3), (0, 4)] {
        let (approved, found) = then(one_a_node(), 4, later);
        assert_eq!(approved.summary.add, 4);
        assert_eq!((found.dropped.len(), found.missing.as_slice()), (dropped, &[][..]), "{later}");
        let says = |why: &String| why.contains("room on other nodes");
        assert!(found.dropped.values().all(says), "{:?}", found.dropped);
    }
}

#[test]
fn a_pod_that_fits_the_approved_nodes_changes_nothing_and_one_that_does_not_is_missing_a_node() {
    let (approved, fits) = then(workshop(), 5, 6);
    assert_eq!(approved.summary.add, 1);
    assert_eq!((fits.dropped.len(), fits.missing.len()), (0, 0), "{:?}", fits.missing);
    let (_, found) = then(one_a_node(), 2, 4);
    let [first, _] = found.missing.as_slice() else { panic!("two nodes: {:?}", found.missing) };
    assert!(first.starts_with("m5.large ") && first.contains(" of pool default for "), "{first}");
    assert!(found.dropped.is_empty());
}

#[test]
fn a_node_that_vanished_is_missing_unless_the_plan_has_it_go() {
    let mut story = one_a_node();
    story.step(2);
    story.scale(3);
    let approved = plan_of(&story, Scope::default());
    let (name, node) = story.observed.nodes.pop_first().expect("two nodes run");
    story.observed.instances.remove(&node.instance.expect("an instance"));
    story.observed.pods.retain(|pod| pod.node.as_ref() != Some(&name));
    assert_eq!(again(&story, &approved).missing.len(), 1);
    // Without need of it nothing is missing.
    story.scale(2);
    let found = again(&story, &approved);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
}

#[test]
fn a_node_that_the_plan_removes_and_that_is_needed_again_is_missing() {
    let mut story = one_a_node();
    story.step(2);
    story.scale(1);
    let approved = plan_of(&story, Scope::default());
    assert_eq!(approved.summary.destroy, 1);
    assert!(again(&story, &approved).missing.is_empty());
    story.scale(2);
    let found = again(&story, &approved);
    assert_eq!(found.missing.len(), 1);
    let held = found.held.expect("the node that goes would hold the pod");
    assert!(
        held.starts_with("without what it removes, more would be launched: m5.large "),
        "{held}"
    );
}

#[test]
fn what_is_missing_with_and_without_the_nodes_that_go_does_not_hold_them() {
    // One that fits the node that goes, one of another zone, and one that nothing is large enough for: that changes
    // no decision, so that nothing else is looked at.
    for (cpu, is_elsewhere, missing) in [(1500, false, 1), (1500, true, 1), (64_000, false, 0)] {
        let mut story = one_a_node();
        story.step(2);
        story.scale(1);
        let approved = plan_of(&story, Scope::default());
        assert_eq!(approved.summary.destroy, 1);
        let taken: Vec<_> = story.observed.instances.values().map(|one| one.zone.clone()).collect();
        let zones = ["us-east-1a", "us-east-1b", "us-east-1c"];
        let free = zones.into_iter().find(|zone| taken.iter().all(|one| one.to_string() != *zone));
        let other = free.expect("two nodes are in two zones at most");
        let id = crate::ids::WorkloadId { name: "other".into(), ..crate::story::workload_id() };
        let mut workload = story.desired.workloads.values().next().expect("one").clone();
        let template = std::sync::Arc::make_mut(&mut workload.template);
        template.spec.containers[0].resources.requests.insert("cpu".into(), cpu);
        if is_elsewhere {
            template.spec.node_selector.extend([label("topology.kubernetes.io/zone", other)]);
        }
        workload.id = id.clone();
        story.desired.workloads.insert(id, workload);
        let found = again(&story, &approved);
        let fits = cpu == 1500 && !is_elsewhere;
        let got = (found.held.is_some(), found.missing.len());
        assert_eq!(
            got,
            (fits, missing),
            "{cpu} {is_elsewhere}: {:?} {:?}",
            found.held,
            found.missing
        );
    }
}

#[test]
fn a_pod_that_nothing_can_be_launched_for_stops_the_removal_of_the_node_that_would_hold_it() {
    let mut story = one_a_node();
    story.step(2);
    story.scale(1);
    let approved = plan_of(&story, Scope::default());
    assert_eq!(approved.summary.destroy, 1);
    story.scale(2);
    let pool = story.desired.pools.values_mut().next().expect("one pool");
    pool.limits.nodes = Some(1);
    let found = again(&story, &approved);
    let [why] = found.missing.as_slice() else { panic!("one reason: {:?}", found.missing) };
    assert!(why.starts_with("1 more pods have no place than the 0"), "{why}");
    let held = found.held.expect("the node that goes would hold the pod");
    assert!(held.starts_with("1 more pods would have no place"), "{held}");
}

#[test]
fn a_drain_that_an_earlier_run_began_makes_nothing_missing() {
    let mut story = one_a_node();
    story.step(2);
    story.scale(1);
    let approved = plan_of(&story, Scope::default());
    let going = approved.resource_changes.iter().filter_map(|row| {
        let deletes = row.change.actions.contains(&crate::plan::wire::Action::Delete);
        row.change.before.as_ref().filter(|_| deletes)?.node.clone()
    });
    let going: Vec<_> = going.collect();
    let [name] = going.as_slice() else { panic!("one node goes: {going:?}") };
    let node = story.observed.nodes.get_mut(name).expect("it runs");
    node.unschedulable = true;
    node.annotations.insert(crate::fleet::CORDONED_ANNOTATION.into(), "drain".into());
    for evicted in [false, true] {
        if evicted {
            story.observed.pods.retain(|pod| pod.node.as_ref() != Some(name));
        }
        let found = again(&story, &approved);
        assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
    }
}

#[test]
fn a_plan_that_removes_something_is_frozen_while_a_size_is_not_known_and_one_that_does_not_is_not()
{
    let unresolved = || crate::manifest::Unresolved {
        origin: crate::ids::Origin::new("release.yaml", 1),
        object: "HelmRelease web/shop".into(),
        reason: "the chart is not rendered".into(),
    };
    for (planned, stops) in [(1, true), (3, false)] {
        let mut story = one_a_node();
        story.step(2);
        story.scale(planned);
        let approved = plan_of(&story, Scope::default());
        assert_eq!(again(&story, &approved).frozen, None);
        story.desired.unresolved.push(unresolved());
        story.scale(planned.min(2));
        let found = again(&story, &approved);
        let says = found.frozen.as_ref().is_some_and(|why| why.contains("HelmRelease web/shop"));
        assert_eq!(says, stops, "{:?}", found.frozen);
    }
}

#[test]
fn a_plan_of_a_part_drops_nothing_for_nodes_that_it_left_out() {
    let mut story = Story::new(&["m5.large", "m5.xlarge"], 1500, 1024);
    let small = requirement("node.kubernetes.io/instance-type", &["m5.large"]);
    let pool = story.desired.pools.values_mut().next().expect("one pool");
    pool.requirements.push(small);
    story.scale(4);
    let rows = plan_of(&story, Scope::default()).resource_changes;
    let target = rows.iter().take(3).map(|row| row.address.to_string()).collect();
    let approved = plan_of(&story, Scope { target, ..Scope::default() });
    assert_eq!((approved.complete, approved.summary.add), (false, 3));
    // A node of twice the size would hold the fourth pod and one of the approved.
    let pool = story.desired.pools.values_mut().next().expect("one pool");
    pool.requirements.pop();
    let found = again(&story, &approved);
    assert!(found.dropped.is_empty(), "{:?}", found.dropped);
}

#[test]
fn a_fleet_too_large_to_look_at_twice_drops_nothing_and_one_like_any_other_does() {
    let mut story = one_a_node();
    story.scale(4);
    let mut approved = plan_of(&story, Scope::default());
    story.scale(3);
    assert_eq!(again(&story, &approved).dropped.len(), 1);
    approved.capacity.pods.total = 1_000_000;
    assert!(again(&story, &approved).dropped.is_empty());
}

#[test]
fn what_an_earlier_run_launched_is_neither_missing_nor_dropped() {
    let mut story = one_a_node();
    story.scale(3);
    let approved = plan_of(&story, Scope::default());
    let launches = story.solve().target.launches;
    let name = story.launch(&launches[0].node);
    let id = story.observed.nodes[&name].instance.clone().expect("an instance");
    let change =
        change_id(&approved.capacity.plan_id, &approved.resource_changes[0].address).to_string();
    let instance = story.observed.instances.get_mut(&id).expect("launched");
    instance.tags.insert(tag::CHANGE.into(), change);
    let found = again(&story, &approved);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
    // Nor is it while it boots.
    let booted = story.observed.clone();
    story.observed.nodes.remove(&name);
    let found = again(&story, &approved);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
    story.observed = booted;
    story.scale(0);
    assert_eq!(
        again(&story, &approved).dropped.len(),
        2,
        "the launched one stays for a later plan"
    );
}

#[test]
fn what_a_plan_of_a_part_left_out_is_not_missing() {
    let mut story = one_a_node();
    story.scale(3);
    let address = plan_of(&story, Scope::default()).resource_changes[0].address.to_string();
    let approved = plan_of(&story, Scope { target: vec![address], ..Scope::default() });
    assert!(!approved.complete);
    assert!(again(&story, &approved).missing.is_empty());
}

#[test]
fn nothing_is_dropped_while_the_size_of_something_is_not_known() {
    let mut story = one_a_node();
    story.scale(3);
    let approved = plan_of(&story, Scope::default());
    story.scale(1);
    assert_eq!(again(&story, &approved).dropped.len(), 2);
    story.desired.unresolved.push(crate::manifest::Unresolved {
        origin: crate::ids::Origin::new("release.yaml", 1),
        object: "HelmRelease web/shop".into(),
        reason: "the chart is not rendered".into(),
    });
    assert!(again(&story, &approved).dropped.is_empty());
}

#[test]
fn a_replacement_is_never_dropped_since_the_node_that_goes_would_stay() {
    let mut story = workshop();
    story.step(5);
    story.scale(1);
    let approved = plan_of(&story, Scope::default());
    assert_eq!(approved.summary.replace, 1);
    story.scale(0);
    let found = again(&story, &approved);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
}
