//! A random scenario: commits, faults and crashes; after the last fault the fleet has to converge.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::AuthorizedRequest;
use fleetwright::model::ids::{InstanceId, NodeName};
use fleetwright::model::observed::{UnreadObject, tag};
use fleetwright::model::units::{Bytes, Resources};
use fleetwright::simulator::OfferingOutage;
use jiff::{SignedDuration, Timestamp};

use super::environment::Faults;
use super::harness::{START, Simulation};
use super::operators::Operators;
use super::random_settings::RandomSettings;
use super::repository::Commit;

/// Duration of the faults. The rest of the half hour is for convergence.
const FAULT_PERIOD: SignedDuration = SignedDuration::from_mins(20);
/// Maximum time to converge after the last fault: all waits of an apply, an instance that never
/// joins, and a quarantine.
const CONVERGE_WITHIN: SignedDuration = SignedDuration::from_mins(90);

/// Time for which a controller in observe-only mode is checked.
const OBSERVE_ONLY_PERIOD: SignedDuration = SignedDuration::from_mins(10);

/// The result of a seed.
pub(crate) struct ScenarioOutcome {
    /// Events, one per line.
    pub(crate) lines: Vec<String>,
    /// Violation or missing convergence, if any.
    pub(crate) end: Result<(), String>,
    /// Number of controller steps.
    pub(crate) steps: u64,
    /// Number of launched instances.
    pub(crate) launches: usize,
    /// Number of terminated instances.
    pub(crate) removals: usize,
    pub(crate) minutes: i64,
}

/// Runs the scenario of a seed.
#[must_use]
pub(crate) fn run_seed(seed: u64, catalog: &Rc<Catalog>) -> ScenarioOutcome {
    let mut run = Simulation::new(seed, Commit::default(), catalog);
    let mut lines = Vec::new();
    let begin = run.now();
    let settings = [
        "removals: { most: 100% }, massRemoval: 100%",
        "removals: { most: 1, within: 2m }, massRemoval: 100%",
        "launches: { most: 3, within: 3m }, removals: { most: 50%, within: 3m }, massRemoval: 100%",
        "settle: 5s, removals: { most: 34%, within: 90s }, massRemoval: 100%",
    ];
    let controller = run.random.pick(&settings).copied().unwrap_or_default().to_owned();
    lines.push(controller.clone());
    let seed_settings = RandomSettings::from_seed(seed);
    run.commit(|commit| seed_settings.apply_to(Commit { controller, ..commit }));
    run.add_operators(Operators::new(seed, seed_settings.clone()));
    let mut due = seed_settings.clone();
    if run.random.chance(300) {
        run.start(1);
        lines.push("two replicas".to_owned());
    }
    let end = begin.checked_add(FAULT_PERIOD).unwrap_or(begin);
    let (mut misreported, mut untagged) = (None, None);
    while run.now() < end && run.check().is_ok() {
        let seconds = 5 + run.random.below(100);
        run.advance(SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(60)));
        lines.extend(
            perform_due_actions(&mut run, &mut due).map(|what| format!("{:.0} {what}", run.now())),
        );
        if due.lying_node_at.take_if(|at| run.now().duration_since(begin) >= *at).is_some() {
            misreported = report_little_memory(&run);
            let instance = misreported.as_ref().map(|node| &node.instance);
            lines.push(format!("{:.0} {instance:?} reports a tenth of its memory", run.now()));
        }
        if due.lost_tag_at.take_if(|at| run.now().duration_since(begin) >= *at).is_some() {
            untagged = lose_tag(&run);
            lines.push(format!("{:.0} lost tag: {untagged:?}", run.now()));
        }
        let what = random_event(&mut run);
        lines.push(format!("{:.0} {what}", run.now()));
    }
    run.faults(Faults::default());
    run.shared.world.set_unavailable(Vec::new());
    run.shared.world.set_unread(Vec::new());
    if let Some(node) = misreported {
        run.shared.world.set_reported_by(&node.instance, node.capacity, node.allocatable);
    }
    if let Some((instance, cluster)) = untagged {
        run.shared.world.tag_instance(&instance, tag::CLUSTER, &cluster);
    }
    for replica in 0..2 {
        run.skew(replica, SignedDuration::ZERO);
    }
    lines.push(format!("{:.0} faults end", run.now()));
    let end = converge_at_end(&mut run, &seed_settings);
    lines.push(format!("{:.0} end", run.now()));
    let calls = run.shared.calls.borrow();
    lines.extend(
        calls.iter().map(|call| format!("{:.0} replica {} {:?}", call.at, call.replica, call.kind)),
    );
    drop(calls);
    lines.sort();
    lines.insert(0, format!("settings: {seed_settings}"));
    lines.push(format!(
        "{:#?}",
        run.status().map(|s| (s.interrupted, s.quarantined, s.counters, s.plan.map(|p| p.blocked)))
    ));
    let (launches, removals) = (run.checks.borrow().launches(), run.checks.borrow().removals());
    let minutes = run.now().duration_since(begin).as_mins();
    ScenarioOutcome { lines, end, steps: run.steps.get(), launches, removals, minutes }
}

/// Performs an operator action that is due. Returns a description.
fn perform_due_actions(run: &mut Simulation, due: &mut RandomSettings) -> Option<String> {
    let begin: Timestamp = START.parse().ok()?;
    let passed = run.now().duration_since(begin);
    let until = |minutes| run.now().checked_add(SignedDuration::from_mins(minutes)).ok();
    let (reason, by) = ("random".to_owned(), "bob".to_owned());
    if let Some((mode, _)) = due.mode.take_if(|(_, at)| passed >= *at) {
        run.commit(|commit| Commit { mode, ..commit });
        return Some(format!("mode {mode}"));
    }
    if due.suspends_at.take_if(|at| passed >= *at).is_some() {
        run.send_request(0, AuthorizedRequest::Suspend { reason, until: None, by });
        return Some("suspended".to_owned());
    }
    if due.unread_pod_at.take_if(|at| passed >= *at).is_some() {
        return Some(hide_pod(run));
    }
    due.break_glass_at.take_if(|at| passed >= *at)?;
    run.send_request(0, AuthorizedRequest::BreakGlass { reason, until: until(3)?, by });
    Some("break-glass for 3 minutes".to_owned())
}

/// Lets clients misunderstand the first running pod.
fn hide_pod(run: &Simulation) -> String {
    let pods = run.observed().pods;
    let found = pods.iter().find_map(|pod| Some((pod, pod.node.clone()?)));
    let Some((pod, node)) = found else { return "nothing".to_owned() };
    let object = format!("Pod {}/{}", pod.namespace, pod.name);
    let event = format!("{object} on {node} becomes unreadable");
    let (reason, nodes) = ("an unknown field".to_owned(), [node].into());
    run.shared.world.set_unread(vec![UnreadObject { object, reason, nodes, hides_requests: true }]);
    event
}

/// Removes the tag of the cluster from the instance of the last Ready node. Returns both.
fn lose_tag(run: &Simulation) -> Option<(InstanceId, String)> {
    let observed = run.observed();
    let mut ready = observed.nodes.values().filter(|node| node.ready);
    let instance = ready.next_back()?.instance.clone()?;
    let cluster = run.shared.world.untag_instance(&instance, tag::CLUSTER)?;
    Some((instance, cluster))
}

/// A node whose kubelet reports too little, with what it reported before.
struct MisreportedNode {
    instance: InstanceId,
    capacity: Resources,
    allocatable: Resources,
}

/// Lets the first Ready node with a running pod report a tenth of its memory.
fn report_little_memory(run: &Simulation) -> Option<MisreportedNode> {
    let observed = run.observed();
    let is_busy = |name: &NodeName| {
        observed.pods.iter().any(|pod| pod.node.as_ref() == Some(name) && !pod.is_node_bound())
    };
    let node = observed.nodes.values().find(|node| node.ready && is_busy(&node.name))?;
    let instance = node.instance.clone()?;
    let tenth = |of: &Resources| Resources { memory: Bytes(of.memory.0 / 10), ..of.clone() };
    let (capacity, allocatable) = (node.capacity.clone(), node.allocatable.clone());
    run.shared.world.set_reported_by(&instance, tenth(&capacity), tenth(&allocatable));
    Some(MisreportedNode { instance, capacity, allocatable })
}

/// Waits for convergence after the faults. In another mode than `full`, it first checks the effect
/// of that mode and then returns to `full`.
fn converge_at_end(run: &mut Simulation, seed_settings: &RandomSettings) -> Result<(), String> {
    run.with_operators(|operators, _| operators.act_on_all());
    let placed = |run: &Simulation| {
        run.observed().pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
    };
    match seed_settings.mode.map(|(mode, _)| mode) {
        // Each step checks that the controller writes nothing.
        Some("observe") => run.advance(OBSERVE_ONLY_PERIOD),
        Some("additive") if !run.wait_until(CONVERGE_WITHIN, placed) => {
            run.check()?;
            return Err("pods are pending in mode additive".to_owned());
        }
        Some(_) | None => {}
    }
    if seed_settings.mode.is_some() {
        run.commit(|commit| Commit { mode: "full", ..commit });
    }
    run.converge(CONVERGE_WITHIN)
}

fn random_event(run: &mut Simulation) -> String {
    match run.random.below(18) {
        12..=16 => random_fleet_event(run),
        0..=2 => {
            let names = ["api", "jobs"];
            let name = run.random.pick(&names).copied().unwrap_or("api");
            let replicas = u32::try_from(run.random.below(16)).unwrap_or(0);
            run.commit(|commit| commit.with(name, replicas));
            format!("{name} has {replicas} replicas")
        }
        3 => {
            let faults = random_faults(run);
            run.faults(faults);
            format!("{faults:?}")
        }
        4 => {
            run.faults(Faults::default());
            "no faults".to_owned()
        }
        5 => {
            run.kill(0);
            let seconds = 1 + run.random.below(60);
            run.advance(SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(1)));
            run.start(0);
            format!("killed, and started after {seconds} s")
        }
        6 => with_random_instance(run, |run, id| {
            run.send_interruption_warning(id);
            run.advance(SignedDuration::from_secs(115));
            run.shared.world.reclaim_instance(id);
            format!("{id} was interrupted with a warning")
        }),
        7 => with_random_instance(run, |run, id| {
            run.shared.world.reclaim_instance(id);
            format!("{id} was interrupted without a warning")
        }),
        // Several broken nodes at once block removals until an operator acts.
        8 if run.kubelet_stopped => "nothing".to_owned(),
        8 => with_random_instance(run, |run, id| {
            run.kubelet_stopped = true;
            run.shared.world.stop_kubelet(id);
            format!("the kubelet of {id} stopped")
        }),
        9 => {
            let types = ["m5.large", "m5.xlarge", "c5.large", "r5.large"];
            let kind = run.random.pick(&types).copied().unwrap_or("m5.large");
            let instance_type = Some(kind.into());
            run.shared.world.set_unavailable(vec![OfferingOutage {
                instance_type,
                ..OfferingOutage::default()
            }]);
            format!("{kind} is unavailable")
        }
        10 => {
            // EC2 rejects requests whose signature is off by more than five minutes.
            let minutes = i64::try_from(run.random.below(11)).unwrap_or(0) - 5;
            run.skew(0, SignedDuration::from_mins(minutes));
            format!("the clock offset is {minutes} minutes")
        }
        _ => {
            let seconds = i64::try_from(30 + run.random.below(90)).unwrap_or(30);
            run.pause(0, SignedDuration::from_secs(seconds));
            format!("replica 0 is paused for {seconds} s")
        }
    }
}

/// Returns random faults.
fn random_faults(run: &mut Simulation) -> Faults {
    Faults {
        reads: run.random.below(400),
        partial: run.random.below(400),
        stale: run.random.below(500),
        frozen_pods: run.random.below(200),
        writes: run.random.below(400),
        lost_replies: run.random.below(400),
        lost_calls: run.random.below(300),
        launch_seconds: if run.random.chance(400) { run.random.below(8) } else { 0 },
        planning_seconds: if run.random.chance(300) { run.random.below(15) } else { 0 },
        repository_down: run.random.chance(200),
        kubernetes_down: run.random.chance(100),
        lists_no_nodes: run.random.chance(50),
        unresolved_images: if run.random.chance(200) { 1_000 } else { 0 },
        commits_by_name: if run.random.chance(100) { 1_000 } else { 0 },
    }
}

/// Triggers a random event other than a fault.
fn random_fleet_event(run: &mut Simulation) -> String {
    match run.random.below(10) {
        9 => {
            let images = run.observed().resolved.images.into_keys().collect::<Vec<_>>();
            let Some(image) = run.random.pick(&images) else { return "nothing".to_owned() };
            run.release_image(image);
            format!("a new image is released for {image}")
        }
        0 => {
            let images = ["al2023@v20260901", "al2023@v20261001"];
            let image = run.random.pick(&images).copied().unwrap_or("al2023@v20261001");
            run.commit(|commit| Commit { image: image.to_owned(), ..commit });
            format!("the image is {image}")
        }
        1 => {
            for n in 0..50 {
                let detail = format!(r#"{{"instance-id":"i-f{n:016x}","state":"shutting-down"}}"#);
                run.send_message("EC2 Instance State-change Notification", "aws.ec2", &detail);
            }
            "foreign instances terminate".to_owned()
        }
        2 => with_random_instance(run, |run, id| {
            let detail = format!(r#"{{"instance-id":"{id}","state":"stopped"}}"#);
            run.send_message("EC2 Instance State-change Notification", "aws.ec2", &detail);
            run.send_message("EC2 Instance State-change Notification", "aws.ec2", &detail);
            format!("a premature stop message for {id}")
        }),
        3 => with_random_instance(run, |run, id| {
            let detail = format!(
                r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{{"entityValue":"{id}"}}]}}"#
            );
            run.send_message("AWS Health Event", "aws.health", &detail);
            format!("{id} has a scheduled retirement")
        }),
        4 => {
            let nodes: Vec<_> = run.shared.world.view().nodes().values().cloned().collect();
            let Some(node) = run.random.pick(&nodes).cloned() else { return "nothing".to_owned() };
            run.shared.world.remove_node_object(&node.name, &node.uid);
            format!("node {} is deleted externally", node.name)
        }
        5 => {
            let until = run.now().checked_add(SignedDuration::from_mins(3)).ok();
            let (reason, by) = ("a migration".to_owned(), "alice".to_owned());
            run.send_request(0, AuthorizedRequest::Suspend { reason, until, by });
            "suspended for 3 minutes".to_owned()
        }
        6 => random_operator_cordon(run, true),
        7 => random_operator_cordon(run, false),
        _ => {
            let least = [None, Some("50%".to_owned()), Some("1".to_owned())];
            let budget = run.random.pick(&least).cloned().flatten();
            let event = format!("the disruption budget is {budget:?}");
            run.commit(|commit| Commit { budget, ..commit });
            event
        }
    }
}

/// Cordons or uncordons a random node as an operator.
fn random_operator_cordon(run: &mut Simulation, cordons: bool) -> String {
    let nodes = run.observed().nodes.into_values();
    let names = nodes.filter(|node| node.unschedulable != cordons).map(|node| node.name);
    let names: Vec<_> = names.collect();
    let Some(name) = run.random.pick(&names) else { return "nothing".to_owned() };
    run.shared.set_operator_cordon(name, cordons);
    format!("an operator {} {name}", if cordons { "cordons" } else { "uncordons" })
}

fn with_random_instance(
    run: &mut Simulation,
    what: impl FnOnce(&mut Simulation, &InstanceId) -> String,
) -> String {
    let instances = run.instances();
    match run.random.pick(&instances).map(|instance| instance.id.clone()) {
        Some(id) => what(run, &id),
        None => "nothing".to_owned(),
    }
}
