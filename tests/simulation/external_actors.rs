//! Scenarios with Auto Scaling groups, CI applies, other autoscalers and crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::AuthorizedRequest;
use fleetwright::model::ids::{NodeName, Uid};
use fleetwright::model::observed::{Node, tag};
use fleetwright::simulator::{OfferingOutage, ReportedResources};
use jiff::SignedDuration;

use super::environment::{CallKind, Faults};
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, is, minutes, settled};
use super::repository::Commit;

/// The stories, by the incident that each retells.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    (
        "cluster-autoscaler-9182: a group that was scaled up in vain shrinks by instance",
        raised_in_vain,
    ),
    ("cluster-autoscaler-10147: a group without capacity is never scaled back", group_gets_nothing),
    ("karpenter-6611: a node larger than expected is filled", more),
    ("hetzner-53: a lease that expires in a launch leaves no unknown instance", lease_runs_out),
    ("osbuild-composer-4430: a client token is used for one instance only", tokens),
    ("packer-1367: an instance is tagged at launch", tagged_at_once),
    ("cluster-autoscaler-252: a crash loop makes few calls", crash_loop),
    ("argo-cd-15058: messages of a competing autoscaler are left alone", rival),
    ("terraform: a stale approved plan is not applied", stale_approval),
    (
        "while CI applies, what EC2 takes back is cordoned, and nothing else is done",
        ci_has_the_lease,
    ),
    ("a slow plan delays no interruption", slow_plans),
    (
        "core-903: a fleet that is too large shrinks in a few plans, however long each takes",
        shrinks_at_once,
    ),
    (
        "a death between a cordon and its evictions leaves no node cordoned that is needed",
        dies_after_cordon,
    ),
    ("an operator's cordon stays", person_cordons),
    (
        "what a person uncordons after a death, and cordons again, stays cordoned",
        person_cordons_what_a_drain_left,
    ),
    (
        "a person who takes over the cordon of a drain that died keeps it, whatever is being written",
        person_takes_a_cordon_over,
    ),
    (
        "a person who cordons what is about to be drained keeps the cordon once the drain is given up",
        person_cordons_what_is_drained,
    ),
];

fn seconds(n: i64) -> SignedDuration {
    SignedDuration::from_secs(n)
}

fn pods_run(run: &Simulation) -> bool {
    run.observed().pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
}

/// Returns a commit of which a node group is the only capacity.
fn grouped(kind: &str) -> Commit {
    let groups = format!(
        "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {{ name: test, region: us-east-1, \
         version: \"1.33\" }}\n{kind}:\n- {{ name: web, instanceType: m5.large, minSize: 1, maxSize: 20, \
         availabilityZones: [us-east-1a, us-east-1b] }}\n"
    );
    let fleet = "  groups: { web: { manage: true } }\n".to_owned();
    Commit { groups, fleet, pool: None, ..Commit::default() }
}

fn uids(run: &Simulation) -> BTreeSet<Uid> {
    let observed = run.observed();
    let placed = observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some());
    placed.map(|pod| pod.uid.clone()).collect()
}

fn members(run: &Simulation) -> usize {
    run.observed().instances.values().filter(|i| i.is_active() && i.group.is_some()).count()
}

fn raised_in_vain(catalog: &Rc<Catalog>) -> ScenarioResult {
    for kind in ["nodeGroups", "managedNodeGroups"] {
        let mut run = settled(catalog, 80, grouped(kind))?;
        let (before, there) = (uids(&run), members(&run));
        for wait in [3, 10, 40] {
            run.commit(|commit| commit.with("api", 24));
            run.pass(seconds(wait));
            run.commit(|commit| commit.with("api", 4));
            run.pass(minutes(3));
            run.well().map_err(|why| format!("{kind}: {why}"))?;
        }
        run.comes_to_rest(minutes(60)).map_err(|why| format!("{kind}: {why}"))?;
        let calls = run.shared.asked.borrow();
        let raised =
            calls.iter().filter(|call| matches!(call.what, CallKind::Raise { .. })).count();
        let ended = calls.iter().filter(|call| matches!(call.what, CallKind::Terminate(_))).count();
        drop(calls);
        is(raised > 1 && ended > 1, || format!("{kind}: {raised} raised, {ended} ended"))?;
        let kept = before.intersection(&uids(&run)).count();
        is(members(&run) <= there + 1, || format!("{kind}: {there} became {}", members(&run)))?;
        // Whatever goes is empty: whoever ran before the group was raised still does.
        is(kept + 1 >= before.len(), || format!("{kind}: {kept} of {} still run", before.len()))?;
    }
    Ok(())
}

fn group_gets_nothing(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 81, grouped("nodeGroups"))?;
    let before = uids(&run);
    run.shared.world.set_unavailable(vec![OfferingOutage::default()]);
    run.commit(|commit| commit.with("api", 16));
    run.pass(minutes(20));
    run.commit(|commit| commit.with("api", 4));
    run.pass(minutes(20));
    run.well()?;
    let calls = run.shared.asked.borrow();
    let raised = calls.iter().filter(|call| matches!(call.what, CallKind::Raise { .. })).count();
    drop(calls);
    is(raised > 1, || format!("it was raised {raised} times"))?;
    let left = before.intersection(&uids(&run)).count();
    is(left + 1 >= before.len(), || format!("{left} of {} pods still run", before.len()))?;
    run.shared.world.set_unavailable(Vec::new());
    run.comes_to_rest(minutes(90))
}

fn more(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 82, Commit::default().with("api", 3))?;
    let observed = run.observed();
    let kinds = observed.nodes.values().filter_map(|node| {
        let instance = observed.instances.get(node.instance.as_ref()?)?;
        let (mut capacity, mut allocatable) = (node.capacity.clone(), node.allocatable.clone());
        capacity.cpu.0 *= 2;
        allocatable.cpu.0 *= 2;
        Some(ReportedResources {
            instance_type: instance.instance_type.clone(),
            capacity,
            allocatable,
        })
    });
    run.shared.world.set_reported(kinds.collect());
    // Before the first of them is seen nothing is known; what comes after counts with it.
    run.commit(|commit| commit.with("api", 6));
    run.comes_to_rest(minutes(60))?;
    let before = run.machines().len();
    run.commit(|commit| commit.with("api", 16));
    run.comes_to_rest(minutes(60))?;
    let came = run.machines().len().saturating_sub(before);
    // Five pods of 700m have room where two had before.
    is(came <= 4, || format!("{came} machines came for ten pods"))
}

fn lease_runs_out(catalog: &Rc<Catalog>) -> ScenarioResult {
    for n in 0..6 {
        let mut run = settled(catalog, 300 + n, Commit::default())?;
        run.start(1);
        let asked = run.shared.asked.borrow().len();
        run.commit(|commit| commit.with("api", 12));
        let launches = |run: &Simulation| {
            let calls = run.shared.asked.borrow();
            calls.iter().skip(asked).any(|call| matches!(call.what, CallKind::Launch(..)))
        };
        run.until(minutes(2), launches);
        run.pass(SignedDuration::from_millis(i64::try_from(n * 50).unwrap_or(0)));
        // The answer comes to a process that does not run, and wakes up without the lease.
        let leads = run.shared.lease.get().map_or(0, |(by, _)| by);
        run.pause(leads, seconds(150));
        run.pass(minutes(4));
        run.well()?;
        run.comes_to_rest(minutes(30)).map_err(|why| format!("{n}: {why}"))?;
        let (all, went) = (run.checks.borrow().launches(), run.checks.borrow().removals());
        let there = run.machines().len();
        is(all - went == there, || format!("{n}: {all} launched, {went} removed, {there} known"))?;
    }
    Ok(())
}

fn tokens(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 83, Commit::default().with("api", 8))?;
    run.faults(Faults { lost: 400, ..Faults::default() });
    for _ in 0..6 {
        for machine in run.machines() {
            run.shared.world.reclaim_instance(&machine.id);
        }
        run.pass(minutes(3));
        run.well()?;
    }
    run.faults(Faults::default());
    run.comes_to_rest(minutes(40))?;
    let calls = run.shared.asked.borrow();
    let mut of: BTreeMap<&str, (String, BTreeSet<&str>)> = BTreeMap::new();
    for call in calls.iter() {
        let CallKind::Launch(request, id) = &call.what else { continue };
        let asks = format!("{request:?}");
        let (first, machines) =
            of.entry(request.token.as_str()).or_insert((asks.clone(), [].into()));
        is(*first == asks, || format!("{first}\nand under the same token\n{asks}"))?;
        machines.extend(id.as_ref().map(fleetwright::model::ids::InstanceId::as_str));
    }
    let many = of.iter().find(|(_, (_, machines))| machines.len() > 1);
    is(many.is_none(), || format!("{many:?}"))?;
    is(of.len() >= 6, || format!("only {} tokens", of.len()))
}

fn tagged_at_once(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(84, Commit::default().with("api", 8), catalog);
    run.faults(Faults { lost: 300, stale: 500, ..Faults::default() });
    for n in 0..240_u32 {
        if n % 60 == 0 {
            run.commit(|commit| commit.with("api", 4 + n / 10));
        }
        run.pass(seconds(1));
        let observed = run.observed();
        let all = [tag::CLUSTER, tag::POOL, tag::KEY, tag::CHANGE];
        let bare =
            observed.instances.values().find(|i| all.iter().any(|key| !i.tags.contains_key(*key)));
        is(bare.is_none(), || format!("{bare:?}"))?;
    }
    run.faults(Faults::default());
    run.comes_to_rest(minutes(40))
}

fn crash_loop(catalog: &Rc<Catalog>) -> ScenarioResult {
    const LIVES: u64 = 60;
    let mut run = settled(catalog, 85, Commit::default().with("api", 8))?;
    let (reads, calls) = (run.shared.reads.get(), run.shared.asked.borrow().len());
    for _ in 0..LIVES {
        run.kill(0);
        run.start(0);
        run.pass(seconds(5));
    }
    run.well()?;
    let reads = run.shared.reads.get() - reads;
    // What is kept, EC2 and Kubernetes, and once more of what is under way.
    is(reads <= LIVES * 8, || format!("{reads} reads of {LIVES} lives"))?;
    let calls = run.shared.asked.borrow().len() - calls;
    is(calls == 0, || format!("{calls} writes"))?;
    run.comes_to_rest(minutes(20))
}

fn rival(catalog: &Rc<Catalog>) -> ScenarioResult {
    let objects = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: { name: karpenter, namespace: kube-system }\n\
                   spec:\n  replicas: 1\n  selector: { matchLabels: { app: k } }\n  template:\n    metadata: \
                   { labels: { app: k } }\n    spec:\n      containers:\n      - { name: main, image: x, \
                   resources: { requests: { cpu: 100m, memory: 128Mi } } }\n";
    let commit = Commit { objects: objects.to_owned(), ..Commit::default().with("api", 8) };
    let mut run = settled(catalog, 86, commit)?;
    run.pass(minutes(2));
    let heard =
        |run: &Simulation| run.status().is_some_and(|status| status.competing_autoscaler.is_some());
    is(heard(&run), || "nobody noticed who else makes nodes".to_owned())?;
    let before = run.shared.asked.borrow().len();
    let taken = run.machines().first().map(|machine| machine.id.clone()).ok_or("no machine")?;
    run.warn(&taken);
    let detail = r#"{"instance-id":"i-0f00000000000000f","instance-action":"terminate"}"#;
    run.message("EC2 Spot Instance Interruption Warning", "aws.ec2", detail);
    run.pass(minutes(2));
    run.shared.world.reclaim_instance(&taken);
    run.pass(minutes(3));
    run.well()?;
    let calls = run.shared.asked.borrow().len() - before;
    is(calls == 0, || format!("{calls} writes beside another autoscaler"))?;
    let left = run.shared.queue.borrow().len();
    is(left == 2, || format!("{left} of two messages are left to the other"))?;
    run.commit(|commit| Commit { objects: String::new(), ..commit });
    run.comes_to_rest(minutes(20))
}

fn stale_approval(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "approval: digest, removals: { most: 100% }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default() };
    let mut run = Simulation::new(87, commit.with("api", 4), catalog);
    run.pass(minutes(2));
    let plan =
        |run: &Simulation| run.status().and_then(|status| status.plan).ok_or("there is no plan");
    let digest = plan(&run)?.digest().clone();
    run.commit(|commit| commit.with("api", 16));
    run.pass(minutes(2));
    run.ask(0, AuthorizedRequest::Approve { digest: digest.clone(), by: "alice".to_owned() });
    run.pass(minutes(5));
    run.well()?;
    is(run.machines().is_empty(), || "what was approved is not what is needed now".to_owned())?;
    let now = plan(&run)?.digest().clone();
    is(now != digest, || "the plan is the same".to_owned())?;
    run.ask(0, AuthorizedRequest::Approve { digest: now, by: "alice".to_owned() });
    run.comes_to_rest(minutes(20))
}

fn ci_has_the_lease(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 88, Commit::default().with("api", 10))?;
    let machines = run.machines();
    let [taken, retired, ..] = &machines[..] else { return Err("too few machines".to_owned()) };
    let before = run.shared.asked.borrow().len();
    run.lend(minutes(4));
    run.pass(seconds(5));
    run.warn(&taken.id);
    // This one has hours, and whoever leads then will see to it.
    let start = run.now().checked_add(SignedDuration::from_hours(6)).map_err(|e| e.to_string())?;
    let detail = format!(
        r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","startTime":"{start:.0}","affectedEntities":[{{"entityValue":"{}"}}]}}"#,
        retired.id
    );
    run.message("AWS Health Event", "aws.health", &detail);
    let cordoned = |run: &Simulation| {
        run.observed().node_for_instance(&taken.id).is_some_and(|n| n.unschedulable)
    };
    is(run.until(seconds(5), cordoned), || "it is not cordoned within 5 seconds".to_owned())?;
    run.pass(seconds(100));
    run.well()?;
    let all: Vec<String> = run
        .shared
        .asked
        .borrow()
        .iter()
        .skip(before)
        .map(|call| format!("{:?}", call.what))
        .collect();
    is(all.len() == 1, || format!("beside an apply: {all:?}"))?;
    let left = run.shared.queue.borrow().len();
    is(left == 2, || format!("{left} of two messages are left to who leads next"))?;
    // Whoever leads then need not be the same.
    run.kill(0);
    run.start(1);
    run.shared.world.reclaim_instance(&taken.id);
    run.comes_to_rest(minutes(40))?;
    let gone = run.machines().iter().all(|machine| machine.id != retired.id);
    is(gone, || "what is to be retired still runs".to_owned())
}

fn slow_plans(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("50%".to_owned()), ..Commit::default().with("api", 12) };
    let mut run = settled(catalog, 89, commit)?;
    run.faults(Faults { thinks: 20, ..Faults::default() });
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let drains = |run: &Simulation| run.observed().nodes.values().any(|node| node.unschedulable);
    is(run.until(minutes(15), drains), || "nothing is drained".to_owned())?;
    for n in 0..4_i64 {
        run.pass(seconds(7 * n));
        let serves = |run: &Simulation| {
            let observed = run.observed();
            let mut machines = run.machines().into_iter().map(|machine| machine.id);
            machines.find(|id| {
                observed.node_for_instance(id).is_some_and(|node| node.ready && !node.unschedulable)
            })
        };
        let Some(taken) = serves(&run) else { continue };
        run.warn(&taken);
        let cordoned = |run: &Simulation| {
            run.observed().node_for_instance(&taken).is_none_or(|n| n.unschedulable)
        };
        let soon = run.until(seconds(5), cordoned);
        run.well()?;
        is(soon, || format!("{n}: it was not cordoned within 5 seconds"))?;
        run.pass(seconds(110));
        run.shared.world.reclaim_instance(&taken);
    }
    run.faults(Faults::default());
    run.comes_to_rest(minutes(60))?;
    is(pods_run(&run), || "pods wait".to_owned())
}

fn shrinks_at_once(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 96, Commit::default().with("api", 60))?;
    let before = run.machines().len();
    let made = |run: &Simulation| run.status().map_or(0, |status| status.counters["plans.made"]);
    // As long as Karpenter gives itself for a choice among many nodes.
    run.faults(Faults { thinks: 60, ..Faults::default() });
    let plans = made(&run);
    run.commit(|commit| commit.with("api", 16));
    // Nothing is left that another plan would save.
    run.comes_to_rest(minutes(40))?;
    let (after, plans) = (run.machines().len(), made(&run) - plans);
    is(after * 2 <= before, || format!("{before} machines became {after}"))?;
    is(plans <= 25, || format!("{plans} plans were made"))
}

/// Returns the nodes that are cordoned.
fn cordoned(run: &Simulation) -> Vec<Node> {
    run.observed().nodes.values().filter(|node| node.unschedulable).cloned().collect()
}

/// Lets time pass until a node has just been cordoned, and nothing else was done of it.
fn until_cordoned(run: &mut Simulation) -> ScenarioResult {
    for _ in 0..30_000 {
        let last = run.shared.asked.borrow().last().map(|call| call.what.clone());
        if matches!(last, Some(CallKind::Cordon { on: true, .. })) {
            return Ok(());
        }
        run.pass(SignedDuration::from_millis(20));
    }
    Err("nothing was cordoned".to_owned())
}

fn dies_after_cordon(catalog: &Rc<Catalog>) -> ScenarioResult {
    for (n, wait) in [(0, 0), (1, 30), (2, 300)] {
        let mut run = settled(catalog, 92 + n, Commit::default())?;
        let before: BTreeSet<_> = run.machines().into_iter().map(|machine| machine.id).collect();
        run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
        until_cordoned(&mut run)?;
        run.kill(0);
        run.pass(seconds(wait));
        run.commit(|commit| Commit { image: "al2023@v20260901".to_owned(), ..commit });
        run.start(0);
        run.comes_to_rest(minutes(30)).map_err(|why| format!("after {wait} s: {why}"))?;
        let after: BTreeSet<_> = run.machines().into_iter().map(|machine| machine.id).collect();
        is(before == after, || format!("{before:?} became {after:?}"))?;
        let status = run.status().ok_or("nobody lives")?;
        let uncordoned = status.counters.get("nodes.uncordoned").copied();
        is(uncordoned >= Some(1), || "no node was uncordoned".to_owned())?;
    }
    Ok(())
}

fn person_cordons(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 95, Commit::default().with("api", 8))?;
    let node = run.observed().nodes.values().next().cloned().ok_or("no node")?;
    run.shared.person_cordons(&node.name, true);
    run.kill(0);
    run.start(0);
    run.pass(minutes(20));
    run.commit(|commit| commit.with("api", 12));
    run.pass(minutes(20));
    run.well()?;
    let found: Vec<_> = cordoned(&run).into_iter().map(|node| node.name).collect();
    is(found.contains(&node.name), || format!("{found:?} are cordoned"))
}

/// Returns a run in which a process died right after it cordoned a node to drain it, and what stands cordoned; the
/// branch asks for no drain any more.
fn dies_in_a_drain(catalog: &Rc<Catalog>, seed: u64) -> Result<(Simulation, NodeName), String> {
    let mut run = settled(catalog, seed, Commit::default())?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    until_cordoned(&mut run)?;
    run.kill(0);
    run.pass(seconds(1));
    run.commit(|commit| Commit { image: "al2023@v20260901".to_owned(), ..commit });
    let node = cordoned(&run).into_iter().find(|node| node.cordon_reason().is_some());
    let node = node.ok_or("nothing stands cordoned")?;
    Ok((run, node.name))
}

fn stays_cordoned(run: &mut Simulation, node: &NodeName) -> ScenarioResult {
    run.pass(minutes(20));
    run.well()?;
    let found = run.observed().nodes.remove(node).ok_or("it went")?;
    is(found.unschedulable, || format!("{node} takes pods again"))?;
    is(found.cordon_reason().is_none(), || format!("{node} carries our mark"))?;
    run.shared.person_cordons(node, false);
    run.comes_to_rest(minutes(30))
}

fn person_cordons_what_a_drain_left(catalog: &Rc<Catalog>) -> ScenarioResult {
    let (mut run, node) = dies_in_a_drain(catalog, 97)?;
    run.shared.person_cordons(&node, false);
    run.start(0);
    // Whoever has seen that it takes pods takes the mark off.
    run.pass(minutes(2));
    run.shared.person_cordons(&node, true);
    run.kill(0);
    run.start(0);
    stays_cordoned(&mut run, &node)
}

fn person_takes_a_cordon_over(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut beside = 0;
    for n in 0..24 {
        let (mut run, node) = dies_in_a_drain(catalog, 98)?;
        run.start(0);
        let uncordons = |run: &Simulation| {
            let last = run.shared.asked.borrow().last().map(|call| call.what.clone());
            matches!(last, Some(CallKind::Cordon { on: false, .. }))
        };
        run.pass(SignedDuration::from_millis(150 * n));
        if uncordons(&run) || run.observed().nodes.get(&node).is_none_or(|n| !n.unschedulable) {
            break;
        }
        beside += 1;
        run.shared.person_takes_mark_off(&node);
        run.shared.person_cordons(&node, true);
        stays_cordoned(&mut run, &node).map_err(|why| format!("{n}: {why}"))?;
    }
    is(beside > 0, || "it was uncordoned too soon".to_owned())
}

fn person_cordons_what_is_drained(catalog: &Rc<Catalog>) -> ScenarioResult {
    // No pod of it may leave, so that the drain is given up.
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    for n in 0..6 {
        let mut run = settled(catalog, 99, commit.clone())?;
        let machine = run.machines().first().map(|machine| machine.id.clone());
        let machine = machine.ok_or("no machine")?;
        let node = run.observed().node_for_instance(&machine).map(|node| node.name.clone());
        let node = node.ok_or("no node")?;
        let detail = format!(
            r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{{"entityValue":"{machine}"}}]}}"#
        );
        run.message("AWS Health Event", "aws.health", &detail);
        run.pass(SignedDuration::from_millis(50 * n));
        if run.observed().nodes[&node].unschedulable {
            return is(n > 0, || "it was cordoned too soon".to_owned());
        }
        run.shared.person_cordons(&node, true);
        run.pass(minutes(40));
        run.well().map_err(|why| format!("{n}: {why}"))?;
        let found = run.observed().nodes.remove(&node);
        let keeps = found.is_none_or(|node| node.unschedulable && node.cordon_reason().is_none());
        is(keeps, || format!("{n}: {node} takes pods again, or carries our mark"))?;
    }
    Ok(())
}
