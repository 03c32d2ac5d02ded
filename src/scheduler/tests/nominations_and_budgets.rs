//! Reserved room, disruption budgets, and default spreading by configuration.

use super::*;
use crate::scheduler::{BalanceScoring, EvictionBudget, Preemption};

fn large(app: &str, priority: i32) -> PodShape {
    PodShape { priority, requests: resources(3000, 100), ..pod(app) }
}

#[test]
fn reserved_room_blocks_pods_of_lower_and_equal_priority() {
    for (nominated, comes, left_alone) in [(5, 0, true), (5, 5, true), (5, 9, false)] {
        let mut cluster = Cluster::new(vec![node("n", "")]);
        let (holder, index) = (cluster.class(&large("holder", nominated)), cluster.index("n"));
        cluster.0.nominate(holder, index);
        let found = cluster.schedule(&large("other", comes));
        assert_eq!(found.is_none(), left_alone, "{comes} against {nominated}");
    }
}

#[test]
fn nominated_pod_takes_its_reserved_room_and_small_pods_fit() {
    let mut cluster = Cluster::new(vec![node("n", "")]);
    let (holder, index) = (cluster.class(&large("holder", 5)), cluster.index("n"));
    cluster.0.nominate(holder, index);
    let small = cluster.class(&PodShape { requests: resources(600, 100), ..pod("small") });
    assert!(cluster.0.schedule(small, None).is_ok());
    assert!(cluster.0.schedule(small, None).is_err(), "the rest is held");
    assert_eq!(cluster.0.schedule(holder, Some(index)), Ok(index));
    assert!(!cluster.0.withdraw_nomination(holder, index), "the nomination is over");
    assert_eq!(cluster.0.pods_on(index).count(), 2);
}

#[test]
fn withdrawn_nomination_frees_the_room() {
    let mut cluster = Cluster::new(vec![node("n", "")]);
    let (holder, index) = (cluster.class(&large("holder", 5)), cluster.index("n"));
    cluster.0.nominate(holder, index);
    assert_eq!(cluster.schedule(&large("other", 0)), None);
    assert!(cluster.0.withdraw_nomination(holder, index));
    assert_eq!(cluster.schedule(&large("other", 0)), Some("n".to_owned()));
}

#[test]
fn freed_room_is_used_after_a_pod_was_unschedulable() {
    let mut cluster = Cluster::new(vec![node("n", "")]);
    cluster.run(&large("a", 0), "n");
    let (class, index) = (cluster.class(&large("b", 0)), cluster.index("n"));
    assert!(cluster.0.try_schedule(class, None).is_none());
    assert!(cluster.0.try_schedule(class, None).is_none());
    let first = cluster.class(&large("a", 0));
    assert!(cluster.0.unbind(first, index));
    assert_eq!(cluster.0.try_schedule(class, None), Some(index));
    assert!(cluster.0.try_schedule(class, None).is_none());
    cluster.0.set_unschedulable(index, false);
    assert!(cluster.0.try_schedule(class, None).is_none());
    let fresh = cluster.0.add_node(node("m", ""));
    assert_eq!(cluster.0.try_schedule(class, None), Some(fresh));
}

fn budget(app: &str, allowed: u32) -> EvictionBudget {
    EvictionBudget { namespace: "default".into(), selector: selector("app", app), allowed }
}

#[test]
fn preemption_respects_budgets_before_priorities() {
    for (budgets, expected) in [
        // Without budgets the lower priority is evicted.
        (vec![], "n1"),
        (vec![budget("a", 1)], "n1"),
        (vec![budget("a", 0)], "n2"),
        // Both violate a budget, so priorities decide.
        (vec![budget("a", 0), budget("b", 0)], "n1"),
        (vec![EvictionBudget { selector: Selector::default(), ..budget("a", 0) }], "n1"),
        (vec![EvictionBudget { namespace: "other".into(), ..budget("a", 0) }], "n1"),
    ] {
        let mut cluster = Cluster::new(vec![node("n1", ""), node("n2", "")]);
        cluster.0 = cluster.0.with_budgets(budgets.clone());
        cluster.run(&large("a", 1), "n1");
        cluster.run(&large("b", 2), "n2");
        let class = cluster.class(&large("new", 9));
        let Preemption { node, .. } = cluster.0.preempt(class).expect("room can be made");
        assert_eq!(cluster.0.name(node).as_str(), expected, "{budgets:?}");
    }
}

#[test]
fn pods_of_an_exhausted_budget_are_restored_first() {
    let one =
        |app: &str, priority| PodShape { priority, requests: resources(2000, 100), ..pod(app) };
    for (allowed, gone) in [(0, "high"), (1, "low")] {
        let mut cluster = Cluster::new(vec![node("n", "")]);
        cluster.0 = cluster.0.with_budgets(vec![budget("low", allowed)]);
        cluster.run(&one("low", 1), "n");
        cluster.run(&one("high", 2), "n");
        let class = cluster.class(&one("new", 9));
        let Preemption { victims, .. } = cluster.0.preempt(class).expect("room can be made");
        let apps: Vec<_> = victims.iter().map(|victim| cluster.0.shape(*victim)).collect();
        let apps: Vec<_> = apps.iter().filter_map(|shape| shape.labels.get("app")).collect();
        assert_eq!(apps, [&gone.into()], "{allowed} may go");
    }
}

#[test]
fn configured_default_constraints_replace_system_defaults() {
    let hard = TopologySpread { selector: None, ..topology_spread(key::ZONE, 1, "") };
    for (default, pods_on_second) in [(vec![], 0), (vec![hard], 2)] {
        // The first node scores higher for every pod, because it is much larger.
        let mut nodes = vec![node("a1", "a"), node("b1", "b")];
        nodes[0].allocatable = Resources { pods: 110, ..resources(400_000, 819_200) };
        let scheduler = Scheduler::new(nodes, &BTreeMap::new(), 1);
        let mut scheduler = scheduler.with_balance(BalanceScoring::Evenness);
        let shape = PodShape { default_spread: Some(default), ..pod("s") };
        let shape = shape.spread_by_default(WorkloadKind::Deployment);
        let class = scheduler.class(&Arc::new(shape), Some(&deployment("default", "s")));
        for _ in 0..4 {
            scheduler.schedule(class, None).expect("there is room");
        }
        let second = scheduler.node(&"b1".into()).expect("it is there");
        assert_eq!(scheduler.pods_on(second).count(), pods_on_second);
    }
}

#[test]
fn evicted_cached_scores_are_recomputed() {
    let mut rows = crate::scheduler::node_local::ScoreCache::default();
    let row = rows.take(0, 2_000_000);
    rows.put_back(0, row);
    let row = rows.take(1, 2_000_000);
    rows.put_back(1, row);
    let mut third = rows.take(2, 2_000_000);
    assert_eq!(third.score(7, 1, || 42), 42, "the row made room was cleared");
    rows.put_back(2, third);
    let mut third = rows.take(2, 2_000_000);
    assert_eq!(third.score(7, 1, || 0), 42, "a cached score is not recomputed");
    assert_eq!(third.score(7, 2, || 0), 0, "a change of the node is seen");
}
