//! Scenarios of the fleet lifecycle: unlisted nodes, drift, expiry, buffers, forecasts.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::AuthorizedRequest;
use fleetwright::model::ids::InstanceId;
use fleetwright::model::observed::Node;
use fleetwright::model::pod::{Taint, TaintEffect};
use fleetwright::model::units::Bytes;
use fleetwright::simulator::{OfferingOutage, ReportedResources};
use jiff::SignedDuration;

use super::environment::Faults;
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, is, minutes, settled};
use super::repository::Commit;

/// The stories, by the incident that each retells.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("argo-cd-18480: unlisted nodes after a restart are not removed", nodes_not_listed),
    ("argo-cd-18480: an empty render removes nothing", empty_render),
    ("karpenter-2386: a renamed pool is replaced instance by instance", pool_renamed),
    ("cluster-autoscaler-6795: instances that never join remove no healthy node", bad_image),
    (
        "cluster-autoscaler-6795: instances that never join are terminated across restarts",
        never_joins_restarts,
    ),
    ("karpenter-8707: without launch capacity no serving node is removed", nothing_to_launch),
    ("karpenter-8923: one unavailable type leaves the others usable", one_type_sold_out),
    ("karpenter-6211: external node changes are no drift", others_change_nodes),
    ("karpenter-4156: instances deleted by a janitor are replaced", janitor),
    ("karpenter-1959: a node smaller than expected is replaced a bounded number of times", less),
    ("karpenter-1293: a converged fleet does not flap", no_ping_pong),
    ("karpenter chaos test, emptiness: replicas change while every node is tainted", chaos_empty),
    ("core-3176: pods that live for a second leave nothing stuck", blink),
    ("kaito-1300: stale reads launch nothing twice", lagging_reads),
    ("kubernetes-59848: a start with stale observations", old_start),
    ("karpenter-1166: a crash during a drain leaves a schedulable node", dies_draining),
    ("budgets: removals before a crash count after it", budget_outlives_crash),
    ("budgets: empty nodes of a commit with zero replicas are removed at once", zero_is_zero),
    ("approval: approved changes are applied and blocked changes are not", approved_in_part),
    ("do-not-disrupt: a do-not-disrupt pod keeps its node only", pinned),
    ("buffers: buffer capacity is ready before its pods", buffer),
    ("lead: scheduled capacity is ready before its time", lead),
];

pub(super) fn pods_run(run: &Simulation) -> bool {
    run.observed().pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
}

pub(super) fn first(run: &Simulation) -> Result<InstanceId, String> {
    run.machines().first().map(|machine| machine.id.clone()).ok_or_else(|| "no machine".to_owned())
}

fn nodes_not_listed(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 40, Commit::default().with("api", 12))?;
    let before = run.machines().len();
    run.kill(0);
    run.faults(Faults { nodeless: true, ..Faults::default() });
    run.start(0);
    run.pass(minutes(45));
    run.well()?;
    is(run.checks.borrow().removals() == 0, || "machines went".to_owned())?;
    run.faults(Faults::default());
    run.comes_to_rest(minutes(30))?;
    let after = run.machines().len();
    is(after == before, || format!("{before} machines became {after}"))
}

fn empty_render(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 41, Commit::default().with("api", 4))?;
    let before = run.machines().len();
    // Neither the tool that delivers nor the loop is given anything.
    run.commit(|commit| Commit { replicas: [].into(), pool: None, ..commit });
    run.pass(minutes(40));
    run.well()?;
    is(run.machines().len() == before, || "machines went".to_owned())?;
    run.commit(|_| Commit::default());
    run.comes_to_rest(minutes(40))
}

fn pool_renamed(catalog: &Rc<Catalog>) -> ScenarioResult {
    let slow = "removals: { most: 1, within: 2m }, massRemoval: 100%".to_owned();
    let commit = Commit { controller: slow, ..Commit::default().with("api", 12) };
    let mut run = settled(catalog, 42, commit)?;
    let old: Vec<InstanceId> = run.machines().iter().map(|machine| machine.id.clone()).collect();
    run.commit(|commit| Commit { pool: Some("next".to_owned()), ..commit });
    run.comes_to_rest(minutes(180))?;
    let left = run.machines().iter().filter(|machine| old.contains(&machine.id)).count();
    is(left == 0, || format!("{left} machines of the old pool are left"))
}

fn bad_image(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 43, Commit::default().with("api", 8))?;
    let healthy: Vec<InstanceId> =
        run.machines().iter().map(|machine| machine.id.clone()).collect();
    run.commit(|commit| commit.with("jobs", 10));
    for _ in 0..360 {
        run.pass(SignedDuration::from_secs(10));
        // Whatever is launched boots, and its kubelet never speaks.
        for machine in run.machines().iter().filter(|machine| !healthy.contains(&machine.id)) {
            run.shared.world.stop_kubelet(&machine.id);
        }
    }
    run.well()?;
    let left = run.machines();
    let left = healthy.iter().filter(|id| left.iter().any(|machine| machine.id == **id)).count();
    is(left == healthy.len(), || format!("{left} of {} healthy ones are left", healthy.len()))?;
    let most = run.checks.borrow().most_launches(minutes(30));
    is(most <= 14, || format!("{most} machines within half an hour"))?;
    // So many were of no use that somebody has to say that they may be tried again.
    run.ask(
        0,
        AuthorizedRequest::Reset {
            breaker: "launches-do-not-help".to_owned(),
            digest: None,
            by: "bob".to_owned(),
        },
    );
    run.comes_to_rest(minutes(120))
}

fn never_joins_restarts(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(44, Commit::default(), catalog);
    run.until(minutes(5), |run| !run.machines().is_empty());
    let silent: Vec<InstanceId> = run.machines().iter().map(|machine| machine.id.clone()).collect();
    for id in &silent {
        run.shared.world.stop_kubelet(id);
    }
    run.pass(minutes(2));
    run.kill(0);
    run.start(0);
    run.comes_to_rest(minutes(60))?;
    let left = run.machines().iter().filter(|machine| silent.contains(&machine.id)).count();
    is(left == 0, || format!("{left} machines that never joined are left"))
}

fn nothing_to_launch(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { template: "expireAfter: 30m".to_owned(), ..Commit::default() };
    let mut run = settled(catalog, 45, commit.with("api", 8))?;
    let before = run.machines().len();
    run.shared.world.set_unavailable(vec![OfferingOutage::default()]);
    // Both a time that is over and another image ask for new instances.
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.pass(minutes(60));
    run.well()?;
    is(run.machines().len() == before, || "machines went".to_owned())?;
    is(pods_run(&run), || "pods wait".to_owned())?;
    run.shared.world.set_unavailable(Vec::new());
    // Machines go on growing old: that all is in order at one moment is enough.
    run.commit(|commit| Commit { template: String::new(), ..commit });
    run.comes_to_rest(minutes(180))
}

fn one_type_sold_out(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(46, Commit::default().with("api", 12), catalog);
    let c5 = OfferingOutage { instance_type: Some("c5.large".into()), ..OfferingOutage::default() };
    let m5 = OfferingOutage { instance_type: Some("m5.large".into()), ..OfferingOutage::default() };
    run.shared.world.set_unavailable(vec![c5, m5]);
    let soon = run.until(minutes(5), |run| !run.machines().is_empty() && pods_run(run));
    run.well()?;
    is(soon, || "pods wait for what is sold out".to_owned())?;
    run.shared.world.set_unavailable(Vec::new());
    run.comes_to_rest(minutes(90))
}

fn others_change_nodes(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 47, Commit::default().with("api", 8))?;
    let nodes: Vec<Node> = run.shared.world.view().nodes().values().cloned().collect();
    for mut node in nodes {
        node.labels.insert("security.example.com/scanned".into(), "true".into());
        node.annotations.insert("security.example.com/at".to_owned(), "noon".to_owned());
        run.shared.world.update_node(&node);
    }
    let before = run.shared.asked.borrow().len();
    run.pass(minutes(20));
    run.well()?;
    let calls = run.shared.asked.borrow().len() - before;
    is(calls == 0, || format!("{calls} writes"))
}

fn janitor(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 48, Commit::default().with("api", 12))?;
    for machine in run.machines() {
        run.shared.world.reclaim_instance(&machine.id);
    }
    let back = run.until(minutes(6), |run| !run.machines().is_empty() && pods_run(run));
    run.well()?;
    is(back, || "what was taken is not back within 6 minutes".to_owned())?;
    run.comes_to_rest(minutes(30))
}

fn less(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 49, Commit::default().with("api", 3))?;
    let before = run.checks.borrow().launches();
    let observed = run.observed();
    let kinds = observed.nodes.values().filter_map(|node| {
        let instance = observed.instances.get(node.instance.as_ref()?)?;
        let (mut capacity, mut allocatable) = (node.capacity.clone(), node.allocatable.clone());
        capacity.memory = Bytes(capacity.memory.0 * 3 / 10);
        allocatable.memory = Bytes(allocatable.memory.0 * 3 / 10);
        Some(ReportedResources {
            instance_type: instance.instance_type.clone(),
            capacity,
            allocatable,
        })
    });
    run.shared.world.set_reported(kinds.collect());
    run.commit(|commit| commit.with("api", 9));
    run.comes_to_rest(minutes(60))?;
    let launched = run.checks.borrow().launches() - before;
    is(launched <= 8, || format!("{launched} machines for six pods"))
}

fn no_ping_pong(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 50, Commit::default().with("api", 9).with("jobs", 7))?;
    for replicas in [5, 9, 7] {
        run.commit(|commit| commit.with("api", replicas));
        run.comes_to_rest(minutes(40))?;
        let before = run.shared.asked.borrow().len();
        run.pass(minutes(60));
        run.well()?;
        let calls = run.shared.asked.borrow().len() - before;
        is(calls == 0, || format!("{calls} writes within an hour of rest, at {replicas}"))?;
    }
    Ok(())
}

fn chaos_empty(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(51, Commit::default().with("api", 1).with("jobs", 0), catalog);
    for second in 0..600_u32 {
        run.pass(SignedDuration::from_secs(1));
        if second % 60 == 30 {
            run.commit(|commit| commit.with("api", 1 + (second / 60) % 3));
        }
        let nodes: Vec<Node> = run.shared.world.view().nodes().values().cloned().collect();
        for mut node in nodes.into_iter().filter(|node| node.taints.is_empty()) {
            let (key, effect) = ("chaos".into(), TaintEffect::NoExecute);
            node.taints.push(Taint { key, value: "true".into(), effect });
            run.shared.world.update_node(&node);
        }
    }
    run.well()?;
    let launched = run.checks.borrow().most_launches(minutes(5));
    // Karpenter's own test allows 35.
    is(launched <= 5, || format!("{launched} machines within 5 minutes"))
}

fn blink(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 52, Commit::default().with("api", 4))?;
    for n in 0..6_u32 {
        run.commit(|commit| commit.with("api", 12));
        run.pass(SignedDuration::from_millis(700));
        run.commit(|commit| commit.with("api", 4 + n % 2));
        let nodes: Vec<Node> = run.shared.world.view().nodes().values().cloned().collect();
        if let Some(node) = nodes.first() {
            run.shared.world.remove_node_object(&node.name, &node.uid);
        }
        run.pass(SignedDuration::from_secs(40));
        run.well()?;
    }
    run.comes_to_rest(minutes(60))
}

fn lagging_reads(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(53, Commit::default(), catalog);
    run.faults(Faults { stale: 900, ..Faults::default() });
    for n in 0..4_u32 {
        run.commit(|commit| commit.with("api", 4 + 4 * n));
        run.pass(SignedDuration::from_secs(50));
        run.well()?;
    }
    let most = run.checks.borrow().launches();
    is(most <= 12, || format!("{most} machines were launched for 18 pods"))?;
    run.faults(Faults::default());
    run.comes_to_rest(minutes(40))
}

fn old_start(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 54, Commit::default())?;
    run.faults(Faults { stale: 900, ..Faults::default() });
    run.pass(SignedDuration::from_secs(20));
    for n in 0..5_u32 {
        let replicas = if n % 2 == 0 { 12 } else { 4 };
        run.commit(|commit| commit.with("api", replicas));
        run.pass(SignedDuration::from_secs(70));
        run.kill(0);
        run.start(0);
        run.pass(SignedDuration::from_secs(60));
        run.well()?;
    }
    run.faults(Faults::default());
    run.comes_to_rest(minutes(40))
}

fn dies_draining(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("7".to_owned()), ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 55, commit)?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let drains = |run: &Simulation| run.observed().nodes.values().any(|node| node.unschedulable);
    is(run.until(minutes(10), drains), || "nothing is drained".to_owned())?;
    run.kill(0);
    run.pass(minutes(20));
    is(pods_run(&run), || "pods do not serve without a controller".to_owned())?;
    run.start(0);
    // The budget lets one pod go at a time, and the roll comes to its end.
    run.comes_to_rest(minutes(180))
}

fn budget_outlives_crash(catalog: &Rc<Catalog>) -> ScenarioResult {
    // That no more go than may, whenever the process dies, is asserted after every step.
    for n in 0..14 {
        let controller = "removals: { most: 1, within: 10m }, massRemoval: 100%".to_owned();
        let commit = Commit { controller, ..Commit::default().with("api", 16) };
        let mut run = settled(catalog, 200 + n, commit)?;
        run.commit(|commit| commit.with("api", 0));
        let before = run.checks.borrow().removals();
        let went = |run: &Simulation| run.checks.borrow().removals() > before;
        is(run.until(minutes(15), went), || "nothing goes".to_owned())?;
        run.pass(SignedDuration::from_millis(i64::try_from(40 * n).unwrap_or(0)));
        run.kill(0);
        run.pass(SignedDuration::from_secs(5));
        run.start(0);
        run.pass(minutes(8));
        run.well().map_err(|why| format!("died {} ms after the call: {why}", 40 * n))?;
    }
    Ok(())
}

fn zero_is_zero(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { controller: "removals: { most: 100% }".to_owned(), ..Commit::default() };
    let mut run = settled(catalog, 56, commit.with("api", 40))?;
    let before = run.machines().len();
    is(before >= 5, || format!("only {before} machines"))?;
    run.commit(|commit| commit.with("api", 0).with("jobs", 0));
    run.comes_to_rest(minutes(30))?;
    is(run.machines().is_empty(), || "machines are left".to_owned())?;
    let status = run.status().ok_or("nobody lives")?;
    is(status.breakers.is_empty(), || format!("{:?}", status.breakers))
}

fn approved_in_part(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "approval: digest, removals: { most: 1, within: 5m }, massRemoval: 100%";
    let commit = Commit { controller: controller.to_owned(), ..Commit::default() };
    let mut run = Simulation::new(57, commit.with("api", 16), catalog);
    let approve = |run: &mut Simulation| {
        run.pass(minutes(2));
        let status = run.status().ok_or("nobody lives")?;
        let digest = status.plan.ok_or("there is no plan")?.digest().clone();
        run.ask(0, AuthorizedRequest::Approve { digest, by: "alice".to_owned() });
        Ok::<(), String>(())
    };
    run.pass(minutes(3));
    is(run.machines().is_empty(), || "nobody approved it".to_owned())?;
    approve(&mut run)?;
    run.comes_to_rest(minutes(10))?;
    run.commit(|commit| commit.with("api", 0).with("jobs", 0));
    run.pass(minutes(10));
    let before = run.machines().len();
    is(before >= 4, || format!("only {before} machines"))?;
    // Only one of the instances may go at a time; the others stay, and go under the same approval.
    approve(&mut run)?;
    let went = run.until(minutes(5), |run| run.machines().len() < before);
    run.well()?;
    is(went, || "what was approved does not begin, for what is held back".to_owned())?;
    run.comes_to_rest(minutes(90))
}

fn pinned(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit {
        annotations: "karpenter.sh/do-not-disrupt: 'true'".to_owned(),
        ..Commit::default().with("api", 1).with("jobs", 12)
    };
    let mut run = settled(catalog, 62, commit)?;
    let node_of_api = |run: &Simulation| {
        let observed = run.observed();
        let pod = observed.pods.iter().find(|pod| pod.is_active() && pod.name.starts_with("api"));
        pod.and_then(|pod| pod.node.clone())
    };
    let before = node_of_api(&run).ok_or("api has no node")?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.pass(minutes(60));
    run.well()?;
    is(node_of_api(&run) == Some(before.clone()), || "the pod was moved".to_owned())?;
    let observed = run.observed();
    let old = |node: &&Node| {
        let id = node.instance.as_ref();
        id.and_then(|id| observed.instances.get(id)).is_some_and(|i| i.image.contains("v20260901"))
    };
    let old: Vec<_> = observed.nodes.values().filter(old).map(|node| node.name.clone()).collect();
    is(old == [before], || format!("of the old image are {old:?}"))?;
    // Nor is its node left cordoned in between.
    is(observed.nodes.values().all(|node| !node.unschedulable), || "a node is cordoned".to_owned())
}

fn buffer(catalog: &Rc<Catalog>) -> ScenarioResult {
    let objects = "---\napiVersion: autoscaling.x-k8s.io/v1beta1\nkind: CapacityBuffer\nmetadata: { name: \
                   room, namespace: web }\nspec:\n  scalableRef: { apiGroup: apps, kind: Deployment, \
                   name: api }\n  replicas: 6\n";
    let mut run = settled(catalog, 63, Commit::default())?;
    run.commit(|commit| Commit { objects: objects.to_owned(), ..commit });
    run.comes_to_rest(minutes(20))?;
    let room: i64 = run.observed().nodes.values().map(|node| node.allocatable.cpu.0).sum();
    is(room >= 12 * 700, || format!("there is room for {room} thousandths of a core"))?;
    // Pods find their place before any instance is launched for them.
    run.commit(|commit| commit.with("api", 8));
    let soon = run.until(SignedDuration::from_secs(20), |run| {
        run.observed().pods.iter().filter(|pod| pod.is_active()).count() >= 10 && pods_run(run)
    });
    run.well()?;
    is(soon, || "pods wait although room was kept free".to_owned())?;
    run.comes_to_rest(minutes(20))
}

fn lead(catalog: &Rc<Catalog>) -> ScenarioResult {
    // It begins at noon; KEDA has eight replicas from 12:40 to 13:20.
    let objects = "---\napiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: { name: jobs, \
                   namespace: web }\nspec:\n  scaleTargetRef: { name: jobs }\n  minReplicaCount: 2\n  \
                   maxReplicaCount: 12\n  triggers:\n  - type: cron\n    metadata: { timezone: UTC, \
                   start: 40 12 * * *, end: 20 13 * * *, desiredReplicas: \"12\" }\n";
    let commit = Commit {
        objects: objects.to_owned(),
        fleet: "  demand: { lead: 10m }\n".to_owned(),
        ..Commit::default()
    };
    let mut run = settled(catalog, 64, commit)?;
    let before = run.machines().len();
    run.until(minutes(60), |run| run.now().to_string().as_str() >= "2026-11-21T12:29");
    is(run.machines().len() == before, || "machines came too early".to_owned())?;
    let come = run.until(minutes(8), |run| {
        let nodes = run.observed().nodes;
        run.machines().len() > before && nodes.len() > before && nodes.values().all(|n| n.ready)
    });
    run.well()?;
    is(come, || "machines are not there before their time".to_owned())
}
