//! Scenarios with Auto Scaling groups, CI applies, other autoscalers and crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::{AuthorizedRequest, Counter};
use fleetwright::model::ids::{NodeName, Uid};
use fleetwright::model::observed::{Node, tag};
use fleetwright::simulator::{OfferingOutage, ReportedResources};
use jiff::SignedDuration;

use super::environment::{CallKind, Faults};
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, converged, ensure, minutes};
use super::repository::Commit;

/// Scenarios by incident.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    (
        "cluster-autoscaler-9182: an unneeded scale-up of a group is reverted by instance",
        scale_up_reverted,
    ),
    (
        "cluster-autoscaler-10147: a group without capacity is never scaled back",
        group_without_capacity,
    ),
    ("karpenter-6611: a node larger than expected is filled", larger_node),
    (
        "hetzner-53: a lease that expires in a launch leaves no unknown instance",
        lease_expires_in_launch,
    ),
    ("osbuild-composer-4430: a client token is used for one instance only", unique_client_tokens),
    ("packer-1367: an instance is tagged at launch", tagged_at_launch),
    ("cluster-autoscaler-252: a crash loop makes few calls", crash_loop),
    (
        "argo-cd-15058: messages of a competing autoscaler are left alone",
        competing_autoscaler_messages,
    ),
    ("terraform: a stale approved plan is not applied", stale_approval),
    ("during a CI apply only interrupted nodes are cordoned", ci_holds_lease),
    ("a slow plan delays no interruption", slow_plans),
    ("core-903: an oversized fleet scales down in a few slow plans", scales_down_in_few_plans),
    ("a crash after a cordon leaves no needed node cordoned", crash_after_cordon),
    ("an operator's cordon stays", operator_cordon_stays),
    ("a new cordon of an operator after a crash stays", operator_cordons_after_crashed_drain),
    (
        "an operator's cordon stays after the takeover of a crashed drain",
        operator_takes_over_cordon,
    ),
    (
        "an operator's cordon before a drain stays after the drain is abandoned",
        operator_cordons_before_drain,
    ),
];

fn seconds(n: i64) -> SignedDuration {
    SignedDuration::from_secs(n)
}

fn pods_run(run: &Simulation) -> bool {
    run.observed().pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
}

/// Returns a commit whose only capacity is a node group.
fn node_group_commit(kind: &str) -> Commit {
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

fn scale_up_reverted(catalog: &Rc<Catalog>) -> ScenarioResult {
    for kind in ["nodeGroups", "managedNodeGroups"] {
        let mut run = converged(catalog, 80, node_group_commit(kind))?;
        let (before, there) = (uids(&run), members(&run));
        for wait in [3, 10, 40] {
            run.commit(|commit| commit.with("api", 24));
            run.advance(seconds(wait));
            run.commit(|commit| commit.with("api", 4));
            run.advance(minutes(3));
            run.check().map_err(|why| format!("{kind}: {why}"))?;
        }
        run.converge(minutes(60)).map_err(|why| format!("{kind}: {why}"))?;
        let calls = run.shared.calls.borrow();
        let raised =
            calls.iter().filter(|call| matches!(call.kind, CallKind::Raise { .. })).count();
        let ended = calls.iter().filter(|call| matches!(call.kind, CallKind::Terminate(_))).count();
        drop(calls);
        ensure(raised > 1 && ended > 1, || format!("{kind}: {raised} raised, {ended} ended"))?;
        let kept = before.intersection(&uids(&run)).count();
        ensure(members(&run) <= there + 1, || format!("{kind}: {there} became {}", members(&run)))?;
        // Only empty instances are terminated, so pods that ran before the scale-up still run.
        ensure(kept + 1 >= before.len(), || {
            format!("{kind}: {kept} of {} still run", before.len())
        })?;
    }
    Ok(())
}

fn group_without_capacity(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 81, node_group_commit("nodeGroups"))?;
    let before = uids(&run);
    run.shared.world.set_unavailable(vec![OfferingOutage::default()]);
    run.commit(|commit| commit.with("api", 16));
    run.advance(minutes(20));
    run.commit(|commit| commit.with("api", 4));
    run.advance(minutes(20));
    run.check()?;
    let calls = run.shared.calls.borrow();
    let raised = calls.iter().filter(|call| matches!(call.kind, CallKind::Raise { .. })).count();
    drop(calls);
    ensure(raised > 1, || format!("the group was scaled up {raised} times"))?;
    let left = before.intersection(&uids(&run)).count();
    ensure(left + 1 >= before.len(), || format!("{left} of {} pods still run", before.len()))?;
    run.shared.world.set_unavailable(Vec::new());
    run.converge(minutes(90))
}

fn larger_node(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 82, Commit::default().with("api", 3))?;
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
    // The first pods are planned without an observation of the type, the later ones with it.
    run.commit(|commit| commit.with("api", 6));
    run.converge(minutes(60))?;
    let before = run.instances().len();
    run.commit(|commit| commit.with("api", 16));
    run.converge(minutes(60))?;
    let came = run.instances().len().saturating_sub(before);
    // Two pods of 700m fitted before, now five do.
    ensure(came <= 4, || format!("{came} instances were launched for ten pods"))
}

fn lease_expires_in_launch(catalog: &Rc<Catalog>) -> ScenarioResult {
    for n in 0..6 {
        let mut run = converged(catalog, 300 + n, Commit::default())?;
        run.start(1);
        let asked = run.shared.calls.borrow().len();
        run.commit(|commit| commit.with("api", 12));
        let launches = |run: &Simulation| {
            let calls = run.shared.calls.borrow();
            calls.iter().skip(asked).any(|call| matches!(call.kind, CallKind::Launch(..)))
        };
        run.wait_until(minutes(2), launches);
        run.advance(SignedDuration::from_millis(i64::try_from(n * 50).unwrap_or(0)));
        // The reply arrives at a paused process, which resumes without the lease.
        let leads = run.shared.lease.get().map_or(0, |(by, _)| by);
        run.pause(leads, seconds(150));
        run.advance(minutes(4));
        run.check()?;
        run.converge(minutes(30)).map_err(|why| format!("{n}: {why}"))?;
        let (all, removed) = (run.checks.borrow().launches(), run.checks.borrow().removals());
        let active = run.instances().len();
        ensure(all - removed == active, || {
            format!("{n}: {all} launched, {removed} removed, {active} active")
        })?;
    }
    Ok(())
}

fn unique_client_tokens(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 83, Commit::default().with("api", 8))?;
    run.faults(Faults { lost_replies: 400, ..Faults::default() });
    for _ in 0..6 {
        for instance in run.instances() {
            run.shared.world.reclaim_instance(&instance.id);
        }
        run.advance(minutes(3));
        run.check()?;
    }
    run.faults(Faults::default());
    run.converge(minutes(40))?;
    let calls = run.shared.calls.borrow();
    let mut of: BTreeMap<&str, (String, BTreeSet<&str>)> = BTreeMap::new();
    for call in calls.iter() {
        let CallKind::Launch(request, id) = &call.kind else { continue };
        let asks = format!("{request:?}");
        let (first, instances) =
            of.entry(request.token.as_str()).or_insert((asks.clone(), [].into()));
        ensure(*first == asks, || format!("{first}\nand under the same token\n{asks}"))?;
        instances.extend(id.as_ref().map(fleetwright::model::ids::InstanceId::as_str));
    }
    let many = of.iter().find(|(_, (_, instances))| instances.len() > 1);
    ensure(many.is_none(), || format!("{many:?}"))?;
    ensure(of.len() >= 6, || format!("only {} tokens", of.len()))
}

fn tagged_at_launch(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = Simulation::new(84, Commit::default().with("api", 8), catalog);
    run.faults(Faults { lost_replies: 300, stale: 500, ..Faults::default() });
    for n in 0..240_u32 {
        if n % 60 == 0 {
            run.commit(|commit| commit.with("api", 4 + n / 10));
        }
        run.advance(seconds(1));
        let observed = run.observed();
        let all = [tag::CLUSTER, tag::POOL, tag::KEY, tag::CHANGE];
        let bare =
            observed.instances.values().find(|i| all.iter().any(|key| !i.tags.contains_key(*key)));
        ensure(bare.is_none(), || format!("{bare:?}"))?;
    }
    run.faults(Faults::default());
    run.converge(minutes(40))
}

fn crash_loop(catalog: &Rc<Catalog>) -> ScenarioResult {
    const LIVES: u64 = 60;
    let mut run = converged(catalog, 85, Commit::default().with("api", 8))?;
    let (reads, calls) = (run.shared.reads.get(), run.shared.calls.borrow().len());
    for _ in 0..LIVES {
        run.kill(0);
        run.start(0);
        run.advance(seconds(5));
    }
    run.check()?;
    let reads = run.shared.reads.get() - reads;
    // A start reads the persisted state, EC2 and Kubernetes, and again the calls in progress.
    ensure(reads <= LIVES * 8, || format!("{reads} reads of {LIVES} lives"))?;
    let calls = run.shared.calls.borrow().len() - calls;
    ensure(calls == 0, || format!("{calls} writes"))?;
    run.converge(minutes(20))
}

fn competing_autoscaler_messages(catalog: &Rc<Catalog>) -> ScenarioResult {
    let objects = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: { name: karpenter, namespace: kube-system }\n\
                   spec:\n  replicas: 1\n  selector: { matchLabels: { app: k } }\n  template:\n    metadata: \
                   { labels: { app: k } }\n    spec:\n      containers:\n      - { name: main, image: x, \
                   resources: { requests: { cpu: 100m, memory: 128Mi } } }\n";
    let commit = Commit { objects: objects.to_owned(), ..Commit::default().with("api", 8) };
    let mut run = converged(catalog, 86, commit)?;
    run.advance(minutes(2));
    let is_detected =
        |run: &Simulation| run.status().is_some_and(|status| status.competing_autoscaler.is_some());
    ensure(is_detected(&run), || "the competing autoscaler was not detected".to_owned())?;
    let before = run.shared.calls.borrow().len();
    let interrupted =
        run.instances().first().map(|instance| instance.id.clone()).ok_or("no instance")?;
    run.send_interruption_warning(&interrupted);
    let detail = r#"{"instance-id":"i-0f00000000000000f","instance-action":"terminate"}"#;
    run.send_message("EC2 Spot Instance Interruption Warning", "aws.ec2", detail);
    run.advance(minutes(2));
    run.shared.world.reclaim_instance(&interrupted);
    run.advance(minutes(3));
    run.check()?;
    let calls = run.shared.calls.borrow().len() - before;
    ensure(calls == 0, || format!("{calls} writes beside another autoscaler"))?;
    let left = run.shared.queue.borrow().len();
    ensure(left == 2, || format!("{left} of two messages are left"))?;
    run.commit(|commit| Commit { objects: String::new(), ..commit });
    run.converge(minutes(20))
}

fn stale_approval(catalog: &Rc<Catalog>) -> ScenarioResult {
    let controller = "approval: digest, removals: { most: 100% }, massRemoval: 100%".to_owned();
    let commit = Commit { controller, ..Commit::default() };
    let mut run = Simulation::new(87, commit.with("api", 4), catalog);
    run.advance(minutes(2));
    let plan = |run: &Simulation| run.status().and_then(|status| status.plan).ok_or("no plan");
    let digest = plan(&run)?.digest().clone();
    run.commit(|commit| commit.with("api", 16));
    run.advance(minutes(2));
    run.send_request(
        0,
        AuthorizedRequest::Approve { digest: digest.clone(), by: "alice".to_owned() },
    );
    run.advance(minutes(5));
    run.check()?;
    ensure(run.instances().is_empty(), || "a stale plan was applied".to_owned())?;
    let now = plan(&run)?.digest().clone();
    ensure(now != digest, || "the plan is the same".to_owned())?;
    run.send_request(0, AuthorizedRequest::Approve { digest: now, by: "alice".to_owned() });
    run.converge(minutes(20))
}

fn ci_holds_lease(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 88, Commit::default().with("api", 10))?;
    let instances = run.instances();
    let [interrupted, retired, ..] = &instances[..] else {
        return Err("too few instances".to_owned());
    };
    let before = run.shared.calls.borrow().len();
    run.give_lease_to_ci(minutes(4));
    run.advance(seconds(5));
    run.send_interruption_warning(&interrupted.id);
    // The retirement is hours away, so it is left to the next leader.
    let start = run.now().checked_add(SignedDuration::from_hours(6)).map_err(|e| e.to_string())?;
    let detail = format!(
        r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","startTime":"{start:.0}","affectedEntities":[{{"entityValue":"{}"}}]}}"#,
        retired.id
    );
    run.send_message("AWS Health Event", "aws.health", &detail);
    let cordoned = |run: &Simulation| {
        run.observed().node_for_instance(&interrupted.id).is_some_and(|n| n.unschedulable)
    };
    ensure(run.wait_until(seconds(5), cordoned), || {
        "the node was not cordoned within 5 seconds".to_owned()
    })?;
    run.advance(seconds(100));
    run.check()?;
    let all: Vec<String> = run
        .shared
        .calls
        .borrow()
        .iter()
        .skip(before)
        .map(|call| format!("{:?}", call.kind))
        .collect();
    ensure(all.len() == 1, || format!("during a CI apply: {all:?}"))?;
    let left = run.shared.queue.borrow().len();
    ensure(left == 2, || format!("{left} of two messages are left to the next leader"))?;
    // The next leader may be another replica.
    run.kill(0);
    run.start(1);
    run.shared.world.reclaim_instance(&interrupted.id);
    run.converge(minutes(40))?;
    let gone = run.instances().iter().all(|instance| instance.id != retired.id);
    ensure(gone, || "the retiring instance is still active".to_owned())
}

fn slow_plans(catalog: &Rc<Catalog>) -> ScenarioResult {
    let commit = Commit { budget: Some("50%".to_owned()), ..Commit::default().with("api", 12) };
    let mut run = converged(catalog, 89, commit)?;
    run.faults(Faults { planning_seconds: 20, ..Faults::default() });
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let drains = |run: &Simulation| run.observed().nodes.values().any(|node| node.unschedulable);
    ensure(run.wait_until(minutes(15), drains), || "nothing is drained".to_owned())?;
    for n in 0..4_i64 {
        run.advance(seconds(7 * n));
        let schedulable_instance = |run: &Simulation| {
            let observed = run.observed();
            let mut instances = run.instances().into_iter().map(|instance| instance.id);
            instances.find(|id| {
                observed.node_for_instance(id).is_some_and(|node| node.ready && !node.unschedulable)
            })
        };
        let Some(interrupted) = schedulable_instance(&run) else { continue };
        run.send_interruption_warning(&interrupted);
        let cordoned = |run: &Simulation| {
            run.observed().node_for_instance(&interrupted).is_none_or(|n| n.unschedulable)
        };
        let soon = run.wait_until(seconds(5), cordoned);
        run.check()?;
        ensure(soon, || format!("{n}: the node was not cordoned within 5 seconds"))?;
        run.advance(seconds(110));
        run.shared.world.reclaim_instance(&interrupted);
    }
    run.faults(Faults::default());
    run.converge(minutes(60))?;
    ensure(pods_run(&run), || "pods are pending".to_owned())
}

fn scales_down_in_few_plans(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 96, Commit::default().with("api", 60))?;
    let before = run.instances().len();
    let made = |run: &Simulation| {
        run.status().map_or(0, |status| status.counters.get(&Counter::PlansMade))
    };
    // Karpenter allows itself one minute for a consolidation decision over many nodes.
    run.faults(Faults { planning_seconds: 60, ..Faults::default() });
    let plans = made(&run);
    run.commit(|commit| commit.with("api", 16));
    // The plan has no saving left.
    run.converge(minutes(40))?;
    let (after, plans) = (run.instances().len(), made(&run) - plans);
    ensure(after * 2 <= before, || format!("{before} instances became {after}"))?;
    ensure(plans <= 25, || format!("{plans} plans were made"))
}

fn cordoned(run: &Simulation) -> Vec<Node> {
    run.observed().nodes.values().filter(|node| node.unschedulable).cloned().collect()
}

/// Advances the time until the last recorded call is a cordon.
fn until_cordoned(run: &mut Simulation) -> ScenarioResult {
    for _ in 0..30_000 {
        let last = run.shared.calls.borrow().last().map(|call| call.kind.clone());
        if matches!(last, Some(CallKind::Cordon { on: true, .. })) {
            return Ok(());
        }
        run.advance(SignedDuration::from_millis(20));
    }
    Err("nothing was cordoned".to_owned())
}

fn crash_after_cordon(catalog: &Rc<Catalog>) -> ScenarioResult {
    for (n, wait) in [(0, 0), (1, 30), (2, 300)] {
        let mut run = converged(catalog, 92 + n, Commit::default())?;
        let before: BTreeSet<_> = run.instances().into_iter().map(|instance| instance.id).collect();
        run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
        until_cordoned(&mut run)?;
        run.kill(0);
        run.advance(seconds(wait));
        run.commit(|commit| Commit { image: "al2023@v20260901".to_owned(), ..commit });
        run.start(0);
        run.converge(minutes(30)).map_err(|why| format!("after {wait} s: {why}"))?;
        let after: BTreeSet<_> = run.instances().into_iter().map(|instance| instance.id).collect();
        ensure(before == after, || format!("{before:?} became {after:?}"))?;
        let status = run.status().ok_or("no replica runs")?;
        let uncordoned = status.counters.get(&Counter::NodesUncordoned);
        ensure(uncordoned >= 1, || "no node was uncordoned".to_owned())?;
    }
    Ok(())
}

fn operator_cordon_stays(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = converged(catalog, 95, Commit::default().with("api", 8))?;
    let node = run.observed().nodes.values().next().cloned().ok_or("no node")?;
    run.shared.set_operator_cordon(&node.name, true);
    run.kill(0);
    run.start(0);
    run.advance(minutes(20));
    run.commit(|commit| commit.with("api", 12));
    run.advance(minutes(20));
    run.check()?;
    let found: Vec<_> = cordoned(&run).into_iter().map(|node| node.name).collect();
    ensure(found.contains(&node.name), || format!("{found:?} are cordoned"))
}

/// Returns a run whose process crashed right after it cordoned a node for a drain, and that node.
/// The branch no longer asks for the drain.
fn crash_in_drain(catalog: &Rc<Catalog>, seed: u64) -> Result<(Simulation, NodeName), String> {
    let mut run = converged(catalog, seed, Commit::default())?;
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    until_cordoned(&mut run)?;
    run.kill(0);
    run.advance(seconds(1));
    run.commit(|commit| Commit { image: "al2023@v20260901".to_owned(), ..commit });
    let node = cordoned(&run).into_iter().find(|node| node.cordon_reason().is_some());
    let node = node.ok_or("no node is cordoned")?;
    Ok((run, node.name))
}

fn stays_cordoned(run: &mut Simulation, node: &NodeName) -> ScenarioResult {
    run.advance(minutes(20));
    run.check()?;
    let found = run.observed().nodes.remove(node).ok_or("the node was removed")?;
    ensure(found.unschedulable, || format!("{node} takes pods again"))?;
    ensure(found.cordon_reason().is_none(), || format!("{node} carries our mark"))?;
    run.shared.set_operator_cordon(node, false);
    run.converge(minutes(30))
}

fn operator_cordons_after_crashed_drain(catalog: &Rc<Catalog>) -> ScenarioResult {
    let (mut run, node) = crash_in_drain(catalog, 97)?;
    run.shared.set_operator_cordon(&node, false);
    run.start(0);
    // The controller removes its mark once it observes that the node is schedulable.
    run.advance(minutes(2));
    run.shared.set_operator_cordon(&node, true);
    run.kill(0);
    run.start(0);
    stays_cordoned(&mut run, &node)
}

fn operator_takes_over_cordon(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut interleavings = 0;
    for n in 0..24 {
        let (mut run, node) = crash_in_drain(catalog, 98)?;
        run.start(0);
        let uncordons = |run: &Simulation| {
            let last = run.shared.calls.borrow().last().map(|call| call.kind.clone());
            matches!(last, Some(CallKind::Cordon { on: false, .. }))
        };
        run.advance(SignedDuration::from_millis(150 * n));
        if uncordons(&run) || run.observed().nodes.get(&node).is_none_or(|n| !n.unschedulable) {
            break;
        }
        interleavings += 1;
        run.shared.remove_cordon_mark(&node);
        run.shared.set_operator_cordon(&node, true);
        stays_cordoned(&mut run, &node).map_err(|why| format!("{n}: {why}"))?;
    }
    ensure(interleavings > 0, || "the node was uncordoned too soon".to_owned())
}

fn operator_cordons_before_drain(catalog: &Rc<Catalog>) -> ScenarioResult {
    // The budget allows no eviction, so the drain is abandoned.
    let commit = Commit { budget: Some("100%".to_owned()), ..Commit::default().with("api", 8) };
    for n in 0..6 {
        let mut run = converged(catalog, 99, commit.clone())?;
        let instance = run.instances().first().map(|instance| instance.id.clone());
        let instance = instance.ok_or("no instance")?;
        let node = run.observed().node_for_instance(&instance).map(|node| node.name.clone());
        let node = node.ok_or("no node")?;
        let detail = format!(
            r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{{"entityValue":"{instance}"}}]}}"#
        );
        run.send_message("AWS Health Event", "aws.health", &detail);
        run.advance(SignedDuration::from_millis(50 * n));
        if run.observed().nodes[&node].unschedulable {
            return ensure(n > 0, || "the node was cordoned too soon".to_owned());
        }
        run.shared.set_operator_cordon(&node, true);
        run.advance(minutes(40));
        run.check().map_err(|why| format!("{n}: {why}"))?;
        let found = run.observed().nodes.remove(&node);
        let keeps = found.is_none_or(|node| node.unschedulable && node.cordon_reason().is_none());
        ensure(keeps, || format!("{n}: {node} takes pods again, or carries our mark"))?;
    }
    Ok(())
}
