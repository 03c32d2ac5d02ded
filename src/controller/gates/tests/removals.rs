//! Which removals are too many at once, and which nodes stay for a moment.

use super::*;
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::model::observed::Node;
use crate::testing::pods::deployment;

#[test]
fn empty_nodes_are_no_mass_removal() {
    let mass = |because: RetireReason| {
        let given = GateScenario::with(|g| {
            g.plan = plan_removing_all();
            g.plan.capacity.explain.iter_mut().for_each(|row| {
                row.reason = Reason::Retire { because: because.clone() };
            });
        });
        mass_removal(&given.plan, &given.context()).is_some()
    };
    assert!(mass(RetireReason::PoolRemoved));
    assert!(!mass(RetireReason::Empty { saves_hourly: crate::model::units::MicroUsd(0) }));
}

/// A scenario in which `web 1` uses the whole removal budget, and the node of `web 2` has no pod.
fn scenario_with_an_empty_node() -> GateScenario {
    GateScenario::with(|g| {
        g.revision.controller.removals.limit = CountOrShare::Count(1);
        let node = Node { instance: Some("i-web2".into()), ..world::node("node-web-2") };
        g.observed = Observed::of_cluster("c", now()).with_node(node);
    })
}

#[test]
fn removal_budget_does_not_count_nodes_without_pods() {
    fn add(given: &mut GateScenario, pod: Pod) {
        given.observed = given.observed.clone().with_pods([pod.on("node-web-2")]);
    }
    fn add_empty_nodes(given: &mut GateScenario, count: usize) {
        for n in 0..count {
            let instance = Some(format!("i-empty{n}").as_str().into());
            let node = Node { instance, ..world::node(&format!("node-empty-{n}")) };
            given.observed = given.observed.clone().with_node(node);
        }
    }
    let cases: [(&str, ScenarioChange, bool); 11] = [
        ("no pod runs there", |_| (), true),
        ("half of the eight nodes run no pod", |g| add_empty_nodes(g, 3), true),
        (
            "more of them run no pod, and the API server may list too few",
            |g| add_empty_nodes(g, 4),
            false,
        ),
        (
            "more of them run no pod, and all may be removed at once",
            |g| {
                g.revision.controller.mass_removal = CountOrShare::Share(100_000);
                add_empty_nodes(g, 7);
            },
            true,
        ),
        (
            "a pod of the node runs there",
            |g| {
                let kind = WorkloadKind::DaemonSet;
                let owner = WorkloadId { kind, ..deployment("kube-system", "cni") };
                add(g, world::pod("cni").owned_by(&owner));
            },
            true,
        ),
        ("a pod runs there", |g| add(g, world::pod("api")), false),
        ("a pod stops there", |g| add(g, Pod { terminating: true, ..world::pod("api") }), false),
        ("the node is unknown", |g| g.observed.nodes.clear(), false),
        (
            "its node is young",
            |g| {
                let node = g.observed.nodes.values_mut().next().expect("one");
                node.created_at = ago(9 * 60);
            },
            false,
        ),
        (
            "another reason",
            |g| {
                let because = RetireReason::PoolRemoved;
                g.plan.explain_mut(&address("2")).reason = Reason::Retire { because };
            },
            false,
        ),
        (
            "a budget of zero",
            |g| g.revision.controller.removals.limit = CountOrShare::Count(0),
            false,
        ),
    ];
    for (what, change, is_allowed) in cases {
        let mut given = scenario_with_an_empty_node();
        change(&mut given);
        assert_eq!(given.allowed().contains(&"web 2".to_owned()), is_allowed, "{what}");
    }
}

#[test]
fn node_with_pods_when_the_plan_was_made_counts() {
    let mut given = scenario_with_an_empty_node();
    let busy = given.observed.clone().with_pods([world::pod("api").on("node-web-2")]);
    let context = GateContext { planned: &busy, ..given.context() };
    let decisions = evaluate_gates(&given.plan, &context, now());
    let is_allowed = |(address, decision): &(Address, GateDecision)| {
        short_name(address) == "web 2" && *decision == GateDecision::Allow
    };
    assert!(!decisions.iter().any(is_allowed), "a pod ran there when the plan was made");
    // One removal for `web 1`, and two for the group of `batch`.
    given.revision.controller.removals.limit = CountOrShare::Count(3);
    let mut allowed = given.allowed();
    allowed.sort();
    assert_eq!(allowed, ALL);
}

/// A plan that removes all of its eight nodes.
pub(super) fn plan_removing_all() -> Plan {
    let mut plan = sample_plan::large(8, 8);
    let addresses = plan.resource_changes.iter().map(|row| row.address.clone()).collect();
    plan.capacity.waves = vec![Wave { step: WaveStep::Retire, addresses }];
    for row in &mut plan.capacity.explain {
        row.reason = Reason::Retire { because: RetireReason::PoolRemoved };
    }
    plan
}

#[test]
fn mass_removal_counts_unreplaced_nodes() {
    let most = |most: CountOrShare, change: fn(&mut GateScenario)| {
        let given = GateScenario::with(|g| {
            g.revision.controller.mass_removal = most;
            change(g);
        });
        mass_removal(&given.plan, &given.context()).is_some()
    };
    // The plan removes two rows without replacement: too few, whatever the share.
    assert!(!most(CountOrShare::Share(1_000), |_| ()));
    let many = |g: &mut GateScenario| g.plan = plan_removing_all();
    assert!(most(CountOrShare::Share(50_000), many));
    assert!(!most(CountOrShare::Share(100_000), many));
    let approved = |g: &mut GateScenario| {
        g.plan = plan_removing_all();
        let (digest, by) = (g.plan.capacity.digest.clone(), "bob".to_owned());
        g.persisted.approvals.push(ApprovalRecord::new(digest, by, now()));
    };
    assert!(!most(CountOrShare::Share(50_000), approved), "it is approved by digest");
}

#[test]
fn only_a_commit_explains_a_mass_removal() {
    let because = RetireReason::Underutilized {
        saves_hourly: crate::model::units::MicroUsd(0),
        moves: 0,
        payback_hours: 0,
    };
    let pods = |count: usize| -> Vec<Pod> {
        (0..count).map(|n| world::pod(&format!("p{n}")).on("n")).collect()
    };
    let found = |commit: &str, before: Option<u32>, now: usize, reason: RetireReason| {
        let given = GateScenario::with(|g| {
            g.plan = plan_removing_all();
            for row in &mut g.plan.capacity.explain {
                row.reason = Reason::Retire { because: reason.clone() };
            }
            let of = |pods| FleetBaseline { commit: commit.to_owned(), pods, is_delivered: true };
            g.persisted.baseline = before.map(of);
            g.observed = Observed::of_cluster("c", super::now()).with_pods(pods(now));
        });
        mass_removal(&given.plan, &given.context()).expect("it is one").unexplained
    };
    let current = GateScenario::new().revision.commit;
    assert_eq!(found("an earlier one", Some(100), 10, because.clone()), None);
    assert_eq!(found(&current, Some(100), 90, because.clone()), None, "few pods are gone");
    let why = found(&current, Some(100), 10, because.clone()).expect("pods vanished");
    assert!(why.contains("10 of 100 pods are left in the cluster"), "{why}");
    let why = found(&current, None, 10, because).expect("nothing is known");
    assert!(why.contains("no earlier plan"), "{why}");
    let why = found("an earlier one", Some(100), 90, RetireReason::PoolRemoved).expect("a pool");
    assert!(why.contains("pool pool-0 is no longer in the repository"), "{why}");
}

#[test]
fn explained_mass_removal_goes_on_in_parts() {
    let given = |approved: bool| {
        GateScenario::with(|g| {
            g.plan = plan_removing_all();
            g.plan.applyable = true;
            for row in &mut g.plan.capacity.explain {
                row.pods_before.clear();
            }
            let rows = g.plan.resource_changes.iter();
            let known = rows.filter_map(|row| row.change.before.as_ref()?.instance_id.clone());
            g.removal_planned_since = known.map(|id| (id, ago(3600))).collect();
            if approved {
                let (digest, by) = (g.plan.capacity.digest.clone(), "bob".to_owned());
                g.persisted.approvals.push(ApprovalRecord::new(digest, by, now()));
            }
        })
    };
    // Half of the eight nodes.
    assert_eq!(given(false).allowed().len(), 4);
    let all = evaluate_gates(&given(false).plan, &given(false).context(), now());
    let blocked = GateDecision::Block(BlockedReason::MassRemoval { most: 4 });
    assert_eq!(all.iter().filter(|(_, verdict)| *verdict == blocked).count(), 4);
    assert_eq!(given(true).allowed().len(), 8, "its digest is approved");
}

#[test]
fn new_node_without_pods_stays_while_pods_are_pending() {
    let is_removed = |pending: bool, ready: i64, useful: bool| {
        let given = GateScenario::with(|g| {
            g.persisted.launches = vec![LaunchRecord {
                instance: "i-web2".into(),
                pool: "web".into(),
                at: ago(ready + 30),
                ready_at: Some(ago(ready)),
                useful,
                from_start: true,
                passed_over: false,
                launched_for: None,
            }];
            let pod = world::pod("waits");
            let pod = if pending { pod } else { pod.on("node") };
            g.observed = Observed::of_cluster("c", now()).with_pods([pod]);
        });
        given.allowed().contains(&"web 2".to_owned())
    };
    assert!(!is_removed(true, 20, false));
    assert!(is_removed(true, 61, false), "it has been evaluated");
    assert!(is_removed(true, 20, true), "it has had pods");
    assert!(is_removed(false, 20, false), "no pod is pending");
}
