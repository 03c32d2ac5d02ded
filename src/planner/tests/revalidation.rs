//! Tests of revalidated plans: dropped launches, missing nodes and blocked removals.

use super::workshop;
use crate::catalog::Offering;
use crate::model::desired::UnresolvedPolicy;
use crate::model::market::CapacityType;
use crate::model::observed::tag;
use crate::model::reason::Alternative;
use crate::model::requirement::label;
use crate::model::units::MicroUsd;
use crate::plan::wire::{Action, AlternativesRow, NodeState, Plan};
use crate::plan::{RevalidatedPlan, change_id};
use crate::planner::{Scope, reproduce, revalidate};
use crate::testing::{Scenario, requirement};

/// Returns a scenario with room for one pod per node, so that nodes and pods change together.
fn one_pod_per_node() -> Scenario {
    Scenario::new(&["m5.large"], 1500, 1024)
}

fn revalidated(scenario: &Scenario, approved: &Plan) -> RevalidatedPlan {
    revalidate(&scenario.inputs(), approved)
}

/// Returns the plan for `replicas`, and its revalidated plan for `later` replicas.
fn plan_then_revalidate(
    mut scenario: Scenario,
    replicas: u32,
    later: u32,
) -> (Plan, RevalidatedPlan) {
    scenario.scale(replicas);
    let approved = scenario.plan();
    scenario.scale(later);
    let found = revalidated(&scenario, &approved);
    (approved, found)
}

#[test]
fn unchanged_inputs_keep_the_approved_plan() {
    let (approved, found) = plan_then_revalidate(one_pod_per_node(), 3, 3);
    assert_eq!(found.current.capacity.digest, approved.capacity.digest);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0));
}

#[test]
fn only_a_whole_plan_is_reproduced_before_its_first_launch() {
    let mut scenario = one_pod_per_node();
    scenario.step(1);
    scenario.instance().tags.insert(tag::CHANGE.into(), "another".into());
    scenario.scale(3);
    let approved = scenario.plan();
    let reproduced = |scenario: &Scenario, approved: &Plan| {
        let found = reproduce(&scenario.inputs(), approved)?;
        assert_eq!(found.current.capacity.digest, approved.capacity.digest);
        Some((found.undeclared, found.withdrawn.len()))
    };
    assert_eq!(reproduced(&scenario, &approved), Some((Vec::new(), 0)));
    let partial = Plan { complete: false, ..approved.clone() };
    assert_eq!(reproduced(&scenario, &partial), None, "its scope is limited");
    scenario.scale(4);
    assert_eq!(reproduced(&scenario, &approved), None, "another pod");
    scenario.scale(3);
    let mut rows = approved.resource_changes.iter();
    let launch = rows.find(|row| row.change.actions == [Action::Create]).expect("a launch");
    let change = change_id(&approved.capacity.plan_id, &launch.address).to_string();
    scenario.instance().tags.insert(tag::CHANGE.into(), change);
    assert_eq!(reproduced(&scenario, &approved), None, "a launch is done");
}

#[test]
fn launches_of_a_reproduced_plan_are_reviewed() {
    let mut scenario = one_pod_per_node();
    scenario.scale(1);
    let mut approved = scenario.plan();
    for row in &mut approved.capacity.explain {
        row.hourly_after = Some(MicroUsd(1));
    }
    let found = reproduce(&scenario.inputs(), &approved).expect("its decisions are the same");
    assert_eq!(found.undeclared.len(), 1, "it states a low price: {:?}", found.undeclared);
}

#[test]
fn only_unneeded_launches_are_dropped() {
    for (later, dropped) in [(3, 1), (1, 3), (0, 4)] {
        let (approved, found) = plan_then_revalidate(one_pod_per_node(), 4, later);
        assert_eq!(approved.summary.add, 4);
        assert_eq!((found.dropped.len(), found.missing.as_slice()), (dropped, &[][..]), "{later}");
        let has_reason = |why: &String| why.contains("no pod needs the node any more");
        assert!(found.dropped.values().all(has_reason), "{:?}", found.dropped);
    }
}

#[test]
fn only_pods_beyond_approved_nodes_are_missing() {
    let (approved, fits) = plan_then_revalidate(workshop(), 5, 6);
    assert_eq!(approved.summary.add, 1);
    assert_eq!((fits.dropped.len(), fits.missing.len()), (0, 0), "{:?}", fits.missing);
    let (_, found) = plan_then_revalidate(one_pod_per_node(), 2, 4);
    let [first, _] = found.missing.as_slice() else { panic!("two nodes: {:?}", found.missing) };
    assert!(first.starts_with("m5.large ") && first.contains(" of pool default for "), "{first}");
    assert!(found.dropped.is_empty());
}

#[test]
fn vanished_node_is_missing_if_still_needed() {
    let mut scenario = one_pod_per_node();
    scenario.step(2);
    scenario.scale(3);
    let approved = scenario.plan();
    let (name, node) = scenario.observed.nodes.pop_first().expect("two running nodes");
    scenario.observed.instances.remove(&node.instance.expect("a node with an instance"));
    scenario.observed.pods.retain(|pod| pod.node.as_ref() != Some(&name));
    assert_eq!(revalidated(&scenario, &approved).missing.len(), 1);
    // Without demand for the node, nothing is missing.
    scenario.scale(2);
    let found = revalidated(&scenario, &approved);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
}

#[test]
fn needed_node_blocks_its_removal() {
    let mut scenario = one_pod_per_node();
    scenario.step(2);
    scenario.scale(1);
    let approved = scenario.plan();
    assert_eq!(approved.summary.destroy, 1);
    assert!(revalidated(&scenario, &approved).missing.is_empty());
    scenario.scale(2);
    let found = revalidated(&scenario, &approved);
    assert_eq!(found.missing.len(), 1);
    let reason = found.blocked_removal.expect("the removed node has room for the pod");
    assert!(
        reason.starts_with(
            "without the nodes that it removes, more launches would be needed: \
                          m5.large "
        ),
        "{reason}"
    );
    // Its node is Ready, so the instance may run although EC2 does not list it.
    let mut rows = approved.resource_changes.iter();
    let removed = rows.find(|row| row.change.actions.contains(&Action::Delete));
    let removed = removed.and_then(|row| row.change.before.as_ref()?.instance_id.clone());
    scenario.observed.instances.remove(&removed.expect("a removed instance"));
    assert!(revalidated(&scenario, &approved).blocked_removal.is_some());
}

#[test]
fn only_pods_that_fit_a_removed_node_block_its_removal() {
    // A pod that fits the retiring node, a pod of another zone, and a pod too large for every
    // instance type. The last pod changes no decision, so no further checks are made.
    for (cpu, is_elsewhere, missing) in [(1500, false, 1), (1500, true, 1), (64_000, false, 0)] {
        let mut scenario = one_pod_per_node();
        scenario.step(2);
        scenario.scale(1);
        let approved = scenario.plan();
        assert_eq!(approved.summary.destroy, 1);
        let used_zones: Vec<_> =
            scenario.observed.instances.values().map(|instance| instance.zone.clone()).collect();
        let zones = ["us-east-1a", "us-east-1b", "us-east-1c"];
        let unused =
            zones.into_iter().find(|zone| used_zones.iter().all(|used| used.to_string() != *zone));
        let other = unused.expect("two nodes use at most two zones");
        let id =
            crate::model::ids::WorkloadId { name: "other".into(), ..crate::testing::workload_id() };
        let mut workload =
            scenario.desired.workloads.values().next().expect("one workload").clone();
        let template = std::sync::Arc::make_mut(&mut workload.template);
        template.spec.containers[0].resources.requests.insert("cpu".into(), cpu);
        if is_elsewhere {
            template.spec.node_selector.extend([label("topology.kubernetes.io/zone", other)]);
        }
        workload.id = id.clone();
        scenario.desired.workloads.insert(id, workload);
        let found = revalidated(&scenario, &approved);
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
fn pods_that_no_node_holds_make_no_plan_stale() {
    // The decisions of the current plan differ, so that all checks are made.
    for (replicas, later, dropped) in [(4, 3, 1), (1, 0, 0)] {
        let mut scenario = one_pod_per_node();
        scenario.step(2);
        scenario.scale(replicas);
        let approved = scenario.plan();
        let id =
            crate::model::ids::WorkloadId { name: "other".into(), ..crate::testing::workload_id() };
        let mut workload =
            scenario.desired.workloads.values().next().expect("one workload").clone();
        let template = std::sync::Arc::make_mut(&mut workload.template);
        template.spec.node_selector.extend([label("nowhere", "x")]);
        workload.id = id.clone();
        scenario.scale(later);
        scenario.desired.workloads.insert(id, workload);
        let found = revalidated(&scenario, &approved);
        assert_eq!(found.missing, [""; 0], "{replicas}");
        assert_eq!(found.blocked_removal, None, "{replicas}");
        assert_eq!(found.dropped.len(), dropped, "{replicas}: {:?}", found.dropped);
    }
}

#[test]
fn unlaunchable_pod_blocks_removal_of_its_node() {
    let mut scenario = one_pod_per_node();
    scenario.step(2);
    scenario.scale(1);
    let approved = scenario.plan();
    assert_eq!(approved.summary.destroy, 1);
    scenario.scale(2);
    let pool = scenario.pool();
    pool.limits.nodes = Some(1);
    let found = revalidated(&scenario, &approved);
    let [reason] = found.missing.as_slice() else { panic!("one reason: {:?}", found.missing) };
    assert!(reason.starts_with("1 more pod would be unschedulable"), "{reason}");
    let reason = found.blocked_removal.expect("the removed node has room for the pod");
    assert!(reason.starts_with("1 more pod would be unschedulable"), "{reason}");
}

#[test]
fn resumed_drain_has_no_missing_launches() {
    let mut scenario = one_pod_per_node();
    scenario.step(2);
    scenario.scale(1);
    let approved = scenario.plan();
    let removed = approved.resource_changes.iter().filter_map(|row| {
        let deletes = row.change.actions.contains(&Action::Delete);
        row.change.before.as_ref().filter(|_| deletes)?.node.clone()
    });
    let removed: Vec<_> = removed.collect();
    let [name] = removed.as_slice() else { panic!("expected one removal: {removed:?}") };
    let node = scenario.observed.nodes.get_mut(name).expect("a running node");
    node.unschedulable = true;
    node.annotations.insert(crate::model::observed::CORDONED_ANNOTATION.into(), "drain".into());
    for evicted in [false, true] {
        if evicted {
            scenario.observed.pods.retain(|pod| pod.node.as_ref() != Some(name));
        }
        let found = revalidated(&scenario, &approved);
        assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
    }
}

#[test]
fn unknown_size_freezes_only_plans_with_removals() {
    let unresolved = || crate::model::desired::Unresolved {
        origin: crate::model::ids::Origin::new("release.yaml", 1),
        object: "HelmRelease web/shop".into(),
        reason: "the chart is not rendered".into(),
    };
    for (planned, is_frozen) in [(1, true), (3, false)] {
        let mut scenario = one_pod_per_node();
        scenario.step(2);
        scenario.scale(planned);
        let approved = scenario.plan();
        assert_eq!(revalidated(&scenario, &approved).frozen, None);
        scenario.desired.unresolved_policy = UnresolvedPolicy::Hold;
        scenario.desired.unresolved.push(unresolved());
        scenario.scale(planned.min(2));
        let found = revalidated(&scenario, &approved);
        let has_reason =
            found.frozen.as_ref().is_some_and(|why| why.contains("HelmRelease web/shop"));
        assert_eq!(has_reason, is_frozen, "{:?}", found.frozen);
    }
}

#[test]
fn period_that_the_pool_does_not_declare_is_refused() {
    let mut scenario = one_pod_per_node();
    scenario.step(1);
    scenario.pool().termination_grace_period = Some(jiff::SignedDuration::from_hours(1));
    scenario.pool().labels.extend([label("team", "b")]);
    let approved = scenario.plan();
    for (seconds, is_refused) in [(3_600, false), (0, true)] {
        let mut plan = approved.clone();
        let rows = plan.resource_changes.iter_mut();
        let changes = rows.filter_map(|row| row.change.termination_grace_seconds.as_mut());
        assert_eq!(changes.map(|stated| *stated = seconds).count(), 1);
        plan.capacity.digest = crate::plan::digest(&plan);
        let frozen = revalidated(&scenario, &plan).frozen;
        let why = frozen.is_some_and(|why| why.contains("another terminationGracePeriod"));
        assert_eq!(why, is_refused, "{seconds}");
    }
}

#[test]
fn partial_plan_drops_no_launches_for_omitted_nodes() {
    let mut scenario = Scenario::new(&["m5.large", "m5.xlarge"], 1500, 1024);
    let small = requirement("node.kubernetes.io/instance-type", &["m5.large"]);
    let pool = scenario.pool();
    pool.requirements.push(small);
    scenario.scale(4);
    let rows = scenario.plan().resource_changes;
    let target = rows.iter().take(3).map(|row| row.address.to_string()).collect();
    let approved = scenario.plan_within(Scope { target_addresses: target, ..Scope::default() });
    assert_eq!((approved.complete, approved.summary.add), (false, 3));
    // A node of twice the size has room for the fourth pod and one of the approved pods.
    let pool = scenario.pool();
    pool.requirements.pop();
    let found = revalidated(&scenario, &approved);
    assert!(found.dropped.is_empty(), "{:?}", found.dropped);
}

#[test]
fn fleet_too_large_for_trials_drops_no_launches() {
    let mut scenario = one_pod_per_node();
    scenario.scale(4);
    let mut approved = scenario.plan();
    scenario.scale(3);
    assert_eq!(revalidated(&scenario, &approved).dropped.len(), 1);
    approved.capacity.pods.total = 1_000_000;
    assert!(revalidated(&scenario, &approved).dropped.is_empty());
}

#[test]
fn earlier_launches_are_neither_missing_nor_dropped() {
    let mut scenario = one_pod_per_node();
    scenario.scale(3);
    let approved = scenario.plan();
    let launches = scenario.solve().target.launches;
    let name = scenario.launch(&launches[0].node);
    let id = scenario.observed.nodes[&name].instance.clone().expect("a node with an instance");
    let change =
        change_id(&approved.capacity.plan_id, &approved.resource_changes[0].address).to_string();
    let instance = scenario.observed.instances.get_mut(&id).expect("launched");
    instance.tags.insert(tag::CHANGE.into(), change);
    let found = revalidated(&scenario, &approved);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
    // This also applies while the instance boots.
    let booted = scenario.observed.clone();
    scenario.observed.nodes.remove(&name);
    let found = revalidated(&scenario, &approved);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
    scenario.observed = booted;
    scenario.scale(0);
    assert_eq!(
        revalidated(&scenario, &approved).dropped.len(),
        2,
        "a later plan removes the launched instance"
    );
}

#[test]
fn rows_omitted_by_a_partial_plan_are_not_missing() {
    let mut scenario = one_pod_per_node();
    scenario.scale(3);
    let address = scenario.plan().resource_changes[0].address.to_string();
    let approved =
        scenario.plan_within(Scope { target_addresses: vec![address], ..Scope::default() });
    assert!(!approved.complete);
    assert!(revalidated(&scenario, &approved).missing.is_empty());
}

#[test]
fn unknown_size_drops_no_launches() {
    let mut scenario = one_pod_per_node();
    scenario.scale(3);
    let approved = scenario.plan();
    scenario.scale(1);
    assert_eq!(revalidated(&scenario, &approved).dropped.len(), 2);
    scenario.desired.unresolved_policy = UnresolvedPolicy::Hold;
    scenario.desired.unresolved.push(crate::model::desired::Unresolved {
        origin: crate::model::ids::Origin::new("release.yaml", 1),
        object: "HelmRelease web/shop".into(),
        reason: "the chart is not rendered".into(),
    });
    assert!(revalidated(&scenario, &approved).dropped.is_empty());
}

#[test]
fn replacement_is_never_dropped() {
    let mut scenario = workshop();
    scenario.step(5);
    scenario.scale(1);
    let approved = scenario.plan();
    assert_eq!(approved.summary.replace, 1);
    scenario.scale(0);
    let found = revalidated(&scenario, &approved);
    assert_eq!((found.dropped.len(), found.missing.len()), (0, 0), "{found:?}");
}

/// Changes every new node of a plan.
fn after(plan: &mut Plan, edit: fn(&mut NodeState)) {
    let rows = plan.resource_changes.iter_mut();
    rows.filter_map(|row| row.change.after.as_mut()).for_each(edit);
}

/// Sets the only alternative of the first row.
fn alternative(plan: &mut Plan, kind: &str, capacity_type: CapacityType) {
    let address = plan.resource_changes[0].address.clone();
    let offering = Alternative {
        instance_type: kind.into(),
        zone: "us-east-1a".into(),
        capacity_type,
        hourly: MicroUsd(1),
    };
    plan.capacity.alternatives = vec![AlternativesRow { address, offerings: vec![offering] }];
}

#[test]
fn edited_launches_that_the_pool_does_not_admit_are_refused() {
    let mut scenario = one_pod_per_node();
    scenario.scale(2);
    let approved = scenario.plan();
    assert_eq!(revalidated(&scenario, &approved).undeclared, Vec::<String>::new());
    let refused = |edit: fn(&mut Plan)| {
        let mut edited = approved.clone();
        edit(&mut edited);
        revalidated(&scenario, &edited).undeclared.join("; ")
    };
    for (expected, text) in [
        ("the catalog does not have this type", {
            refused(|p| after(p, |state| state.instance_type = Some("nosuch.large".into())))
        }),
        ("requires node.kubernetes.io/instance-type", {
            refused(|p| after(p, |state| state.instance_type = Some("p5.48xlarge".into())))
        }),
        ("requires karpenter.sh/capacity-type", {
            refused(|p| after(p, |state| state.capacity_type = Some(CapacityType::Spot)))
        }),
        ("the catalog does not offer it there", {
            refused(|p| {
                after(p, |state| state.zone = Some("us-east-1z".into()));
                p.capacity.alternatives.clear();
            })
        }),
        ("a pool that is not declared", {
            refused(|p| {
                after(p, |state| (state.pool, state.spec_digest) = (Some("x".into()), None));
            })
        }),
        ("was planned with other settings of its pool", {
            refused(|p| {
                let annotations = [("team".to_owned(), "b".to_owned())].into();
                p.capacity.node_annotations.insert("default".into(), annotations);
                p.capacity.digest = crate::plan::digest(p);
            })
        }),
        ("as an alternative: the catalog does not have this type", {
            refused(|p| alternative(p, "nosuch.large", CapacityType::OnDemand))
        }),
        ("p5.48xlarge in us-east-1a as an alternative: pool default requires", {
            refused(|p| alternative(p, "p5.48xlarge", CapacityType::OnDemand))
        }),
        ("as an alternative: pool default requires karpenter.sh/capacity-type", {
            refused(|p| alternative(p, "m5.large", CapacityType::Spot))
        }),
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn launches_without_a_present_price_are_refused() {
    let mut scenario = one_pod_per_node();
    scenario.scale(1);
    let approved = scenario.plan();
    for kind in scenario.catalog.types.values_mut() {
        kind.offerings.iter_mut().for_each(|offering| offering.price = None);
    }
    let found = revalidated(&scenario, &approved).undeclared.join("; ");
    assert!(found.contains("its price is not known"), "{found}");
}

/// Changes the offerings of a type in the catalog.
fn offerings(scenario: &mut Scenario, kind: &str, edit: impl FnMut(&mut Vec<Offering>)) {
    let kind = scenario.catalog.types.get_mut(kind).expect("a type of the catalog");
    std::iter::once(&mut kind.offerings).for_each(edit);
}

#[test]
fn offerings_that_are_gone_or_dearer_are_withdrawn() {
    let mut scenario = Scenario::new(&["m5.large", "m5a.large"], 1500, 1024);
    scenario.scale(1);
    let approved = scenario.plan();
    let row = approved.resource_changes.iter().find_map(|row| row.change.after.as_ref());
    let planned = row.and_then(|after| after.instance_type.clone()).expect("a launch");
    let planned = planned.as_str();
    let all = &approved.capacity.alternatives[0].offerings;
    let other = all.iter().find(|of| of.instance_type.as_str() != planned);
    let other = other.expect("an alternative of the other type").instance_type.clone();
    let other = other.as_str();
    let withdrawn = |scenario: &Scenario| {
        let found = revalidated(scenario, &approved);
        let texts = found.withdrawn.values().flatten();
        let texts: Vec<_> = texts.map(|of| format!("{}: {}", of.instance_type, of.why)).collect();
        (found.undeclared.join("; "), texts.join("; "))
    };
    assert_eq!(withdrawn(&scenario), Default::default());
    let market = scenario.catalog.clone();
    let double = |all: &mut Vec<Offering>| {
        for price in all.iter_mut().filter_map(|offering| offering.price.as_mut()) {
            *price = *price + *price;
        }
    };
    // An alternative that is gone does not refuse the plan, and one that is dearer is not launched.
    offerings(&mut scenario, other, Vec::clear);
    let (refused, texts) = withdrawn(&scenario);
    assert!(refused.is_empty() && texts.contains("the catalog does not offer it there"), "{texts}");
    assert!(!texts.contains(planned), "{texts}");
    scenario.catalog = market.clone();
    offerings(&mut scenario, other, double);
    let (refused, texts) = withdrawn(&scenario);
    assert!(refused.is_empty() && texts.contains("per hour now, and at most $"), "{texts}");
    // The alternatives stand for a planned offering that is gone.
    scenario.catalog = market;
    offerings(&mut scenario, planned, Vec::clear);
    let (refused, texts) = withdrawn(&scenario);
    assert!(refused.is_empty() && texts.contains(planned), "{texts}");
    assert!(!texts.contains(other), "{texts}");
    // Policies judge the price of the dearest node that may be launched instead.
    let found = revalidated(&scenario, &approved);
    let remaining = all.iter().filter(|of| of.instance_type.as_str() != planned);
    assert_eq!(Some(found.hourly_after), remaining.map(|of| of.hourly).max());
    // Without an offering that remains, nothing can be launched.
    offerings(&mut scenario, other, double);
    let (refused, _) = withdrawn(&scenario);
    assert!(refused.contains("the catalog does not offer it there"), "{refused}");
}

#[test]
fn launch_without_a_stated_price_is_refused() {
    let mut scenario = one_pod_per_node();
    scenario.scale(1);
    let mut approved = scenario.plan();
    for row in &mut approved.capacity.explain {
        row.hourly_after = None;
    }
    let found = revalidated(&scenario, &approved).undeclared.join("; ");
    assert!(found.contains("the plan states no price for it"), "{found}");
}

#[test]
fn price_of_a_withdrawn_offering_is_that_of_its_dearest_alternative() {
    let mut scenario = Scenario::new(&["m5.large", "m5.2xlarge", "m5.4xlarge"], 1500, 1024);
    scenario.pool().requirements[0].min_values = Some(2);
    scenario.scale(1);
    let approved = scenario.plan();
    offerings(&mut scenario, "m5.large", |all| {
        for price in all.iter_mut().filter_map(|offering| offering.price.as_mut()) {
            *price = *price + *price;
        }
    });
    let found = revalidated(&scenario, &approved);
    assert_eq!(found.current.capacity.digest, approved.capacity.digest, "still the cheapest");
    let offerings = approved.capacity.alternatives[0].offerings.iter();
    let remaining = offerings.filter(|of| of.instance_type.as_str() != "m5.large");
    assert_eq!(Some(found.hourly_after), remaining.map(|of| of.hourly).max());
    assert!(reproduce(&scenario.inputs(), &approved).is_none());
}

#[test]
fn alternatives_of_min_values_have_an_upper_price() {
    let mut scenario = Scenario::new(&["m5.large", "m5.4xlarge"], 1500, 1024);
    scenario.pool().requirements[0].min_values = Some(2);
    scenario.scale(1);
    let approved = scenario.plan();
    let refused = |scenario: &Scenario| revalidated(scenario, &approved).undeclared.join("; ");
    assert_eq!(refused(&scenario), "", "an alternative may cost more than the row");
    offerings(&mut scenario, "m5.4xlarge", |all| {
        for price in all.iter_mut().filter_map(|offering| offering.price.as_mut()) {
            *price = *price + *price;
        }
    });
    let text = refused(&scenario);
    assert!(text.contains("demands 2 values, and its offerings that remain have 1"), "{text}");
}
