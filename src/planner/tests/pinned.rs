//! Planning again for an approved plan: dropped launches and missing nodes.

use super::{inputs_of, plan_of, workshop};
use crate::model::observed::tag;
use crate::model::requirement::label;
use crate::plan::wire::Plan;
use crate::plan::{PinnedPlan, change_id};
use crate::planner::{Scope, plan_pinned};
use crate::testing::{Story, requirement};

/// Returns a story in which each node holds one pod, so that nodes and pods change together.
fn one_a_node() -> Story {
    Story::new(&["m5.large"], 1500, 1024)
}

fn again(story: &Story, approved: &Plan) -> PinnedPlan {
    plan_pinned(&inputs_of(story), approved)
}

/// Plans for `replicas`, and again for `later` replicas.
fn then(mut story: Story, replicas: u32, later: u32) -> (Plan, PinnedPlan) {
    story.scale(replicas);
    let approved = plan_of(&story, Scope::default());
    story.scale(later);
    let found = again(&story, &approved);
    (approved, found)
}

#[test]
fn unchanged_inputs_keep_the_approved_plan() {
    let (approved, found) = then(one_a_node(), 3, 3);
    assert_eq!(found.current.capacity.digest, approved.capacity.digest);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0));
}

#[test]
fn only_unneeded_launches_are_dropped() {
    for (later, dropped) in [(3, 1), (1, 3), (0, 4)] {
        let (approved, found) = then(one_a_node(), 4, later);
        assert_eq!(approved.summary.add, 4);
        assert_eq!((found.dropped.len(), found.missing.as_slice()), (dropped, &[][..]), "{later}");
        let says = |why: &String| why.contains("now fit on other nodes");
        assert!(found.dropped.values().all(says), "{:?}", found.dropped);
    }
}

#[test]
fn only_pods_beyond_approved_nodes_are_missing() {
    let (approved, fits) = then(workshop(), 5, 6);
    assert_eq!(approved.summary.add, 1);
    assert_eq!((fits.dropped.len(), fits.missing.len()), (0, 0), "{:?}", fits.missing);
    let (_, found) = then(one_a_node(), 2, 4);
    let [first, _] = found.missing.as_slice() else { panic!("two nodes: {:?}", found.missing) };
    assert!(first.starts_with("m5.large ") && first.contains(" of pool default for "), "{first}");
    assert!(found.dropped.is_empty());
}

#[test]
fn vanished_node_is_missing_if_still_needed() {
    let mut story = one_a_node();
    story.step(2);
    story.scale(3);
    let approved = plan_of(&story, Scope::default());
    let (name, node) = story.observed.nodes.pop_first().expect("two nodes run");
    story.observed.instances.remove(&node.instance.expect("an instance"));
    story.observed.pods.retain(|pod| pod.node.as_ref() != Some(&name));
    assert_eq!(again(&story, &approved).missing.len(), 1);
    // Nothing is missing if the node is not needed.
    story.scale(2);
    let found = again(&story, &approved);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
}

#[test]
fn needed_node_blocks_its_removal() {
    let mut story = one_a_node();
    story.step(2);
    story.scale(1);
    let approved = plan_of(&story, Scope::default());
    assert_eq!(approved.summary.destroy, 1);
    assert!(again(&story, &approved).missing.is_empty());
    story.scale(2);
    let found = again(&story, &approved);
    assert_eq!(found.missing.len(), 1);
    let held = found.blocked_removal.expect("the removed node would hold the pod");
    assert!(
        held.starts_with(
            "without the nodes that it removes, more launches would be needed: \
                          m5.large "
        ),
        "{held}"
    );
}

#[test]
fn demand_missing_either_way_does_not_block_removals() {
    // A pod that fits the retiring node, one of another zone, and one that is too large for every
    // type. The last changes no decision, so nothing else is computed.
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
        let id =
            crate::model::ids::WorkloadId { name: "other".into(), ..crate::testing::workload_id() };
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
        let got = (found.blocked_removal.is_some(), found.missing.len());
        assert_eq!(
            got,
            (fits, missing),
            "{cpu} {is_elsewhere}: {:?} {:?}",
            found.blocked_removal,
            found.missing
        );
    }
}

#[test]
fn unlaunchable_pod_blocks_removal_of_its_node() {
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
    assert!(why.starts_with("1 more pods are unschedulable than the 0"), "{why}");
    let held = found.blocked_removal.expect("the removed node would hold the pod");
    assert!(held.starts_with("1 more pods would be unschedulable"), "{held}");
}

#[test]
fn resumed_drain_makes_nothing_missing() {
    let mut story = one_a_node();
    story.step(2);
    story.scale(1);
    let approved = plan_of(&story, Scope::default());
    let going = approved.resource_changes.iter().filter_map(|row| {
        let deletes = row.change.actions.contains(&crate::plan::wire::Action::Delete);
        row.change.before.as_ref().filter(|_| deletes)?.node.clone()
    });
    let going: Vec<_> = going.collect();
    let [name] = going.as_slice() else { panic!("expected one removal: {going:?}") };
    let node = story.observed.nodes.get_mut(name).expect("it runs");
    node.unschedulable = true;
    node.annotations.insert(crate::model::observed::CORDONED_ANNOTATION.into(), "drain".into());
    for evicted in [false, true] {
        if evicted {
            story.observed.pods.retain(|pod| pod.node.as_ref() != Some(name));
        }
        let found = again(&story, &approved);
        assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
    }
}

#[test]
fn unknown_size_freezes_plans_with_removals_only() {
    let unresolved = || crate::model::desired::Unresolved {
        origin: crate::model::ids::Origin::new("release.yaml", 1),
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
fn partial_plan_drops_nothing_for_omitted_nodes() {
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
fn fleet_too_large_for_trials_drops_nothing() {
    let mut story = one_a_node();
    story.scale(4);
    let mut approved = plan_of(&story, Scope::default());
    story.scale(3);
    assert_eq!(again(&story, &approved).dropped.len(), 1);
    approved.capacity.pods.total = 1_000_000;
    assert!(again(&story, &approved).dropped.is_empty());
}

#[test]
fn earlier_launches_are_neither_missing_nor_dropped() {
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
    // The same holds while it boots.
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
fn rows_omitted_by_a_partial_plan_are_not_missing() {
    let mut story = one_a_node();
    story.scale(3);
    let address = plan_of(&story, Scope::default()).resource_changes[0].address.to_string();
    let approved = plan_of(&story, Scope { target: vec![address], ..Scope::default() });
    assert!(!approved.complete);
    assert!(again(&story, &approved).missing.is_empty());
}

#[test]
fn unknown_size_drops_nothing() {
    let mut story = one_a_node();
    story.scale(3);
    let approved = plan_of(&story, Scope::default());
    story.scale(1);
    assert_eq!(again(&story, &approved).dropped.len(), 2);
    story.desired.unresolved.push(crate::model::desired::Unresolved {
        origin: crate::model::ids::Origin::new("release.yaml", 1),
        object: "HelmRelease web/shop".into(),
        reason: "the chart is not rendered".into(),
    });
    assert!(again(&story, &approved).dropped.is_empty());
}

#[test]
fn replacement_is_never_dropped() {
    let mut story = workshop();
    story.step(5);
    story.scale(1);
    let approved = plan_of(&story, Scope::default());
    assert_eq!(approved.summary.replace, 1);
    story.scale(0);
    let found = again(&story, &approved);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
}
