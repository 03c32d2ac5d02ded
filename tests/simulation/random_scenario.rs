//! A random scenario: commits, faults and crashes; after the last fault the fleet has to converge.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::AuthorizedRequest;
use fleetwright::model::ids::InstanceId;
use fleetwright::simulator::OfferingOutage;
use jiff::{SignedDuration, Timestamp};

use super::environment::Faults;
use super::harness::{BEGIN, Simulation};
use super::operators::Operators;
use super::random_settings::RandomSettings;
use super::repository::Commit;

/// How long things go wrong: the half hour of a run, but for what it takes to come to rest.
const STORM: SignedDuration = SignedDuration::from_mins(20);
/// How long it may take to come to rest once nothing goes wrong: every wait of an apply, an instance that
/// never joins, and a quarantine.
const REST: SignedDuration = SignedDuration::from_mins(90);

/// How long a loop is watched that only looks on.
const OBSERVED: SignedDuration = SignedDuration::from_mins(10);

/// What came of a seed.
pub(crate) struct ScenarioOutcome {
    /// What happened, a line each.
    pub(crate) lines: Vec<String>,
    /// What was wrong, where something was.
    pub(crate) end: Result<(), String>,
    /// Steps that were taken.
    pub(crate) steps: u64,
    /// Machines that were launched.
    pub(crate) launches: usize,
    /// Machines that were told to end.
    pub(crate) removals: usize,
    /// Simulated minutes.
    pub(crate) minutes: i64,
}

/// Runs the story of a seed.
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
    let drawn = RandomSettings::of(seed);
    run.commit(|commit| drawn.on(Commit { controller, ..commit }));
    run.beside(Operators::new(seed, drawn.clone()));
    let mut due = drawn.clone();
    if run.random.chance(300) {
        run.start(1);
        lines.push("two replicas".to_owned());
    }
    let end = begin.checked_add(STORM).unwrap_or(begin);
    while run.now() < end && run.well().is_ok() {
        let seconds = 5 + run.random.below(100);
        run.pass(SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(60)));
        lines.extend(said(&mut run, &mut due).map(|what| format!("{:.0} {what}", run.now())));
        let what = happen(&mut run);
        lines.push(format!("{:.0} {what}", run.now()));
    }
    run.faults(Faults::default());
    run.shared.world.set_unavailable(Vec::new());
    for replica in 0..2 {
        run.skew(replica, SignedDuration::ZERO);
    }
    lines.push(format!("{:.0} all is mended", run.now()));
    let end = ends(&mut run, &drawn);
    lines.push(format!("{:.0} at rest", run.now()));
    let calls = run.shared.asked.borrow();
    lines.extend(
        calls.iter().map(|call| format!("{:.0} replica {} {:?}", call.at, call.replica, call.what)),
    );
    drop(calls);
    lines.sort();
    lines.insert(0, format!("drawn: {drawn}"));
    lines.push(format!(
        "{:#?}",
        run.status().map(|s| (s.terminating, s.quarantined, s.counters, s.plan.map(|p| p.blocked)))
    ));
    let (launches, removals) = (run.checks.borrow().launches(), run.checks.borrow().removals());
    let minutes = run.now().duration_since(begin).as_mins();
    ScenarioOutcome { lines, end, steps: run.steps.get(), launches, removals, minutes }
}

/// Has people say what is due by now of what was drawn.
fn said(run: &mut Simulation, due: &mut RandomSettings) -> Option<String> {
    let begin: Timestamp = BEGIN.parse().ok()?;
    let passed = run.now().duration_since(begin);
    let until = |minutes| run.now().checked_add(SignedDuration::from_mins(minutes)).ok();
    let (reason, by) = ("drawn".to_owned(), "bob".to_owned());
    if let Some((mode, _)) = due.mode.take_if(|(_, at)| passed >= *at) {
        run.commit(|commit| Commit { mode, ..commit });
        return Some(format!("mode {mode}"));
    }
    if due.suspends.take_if(|at| passed >= *at).is_some() {
        run.ask(0, AuthorizedRequest::Suspend { reason, until: None, by });
        return Some("suspended".to_owned());
    }
    due.breaks_glass.take_if(|at| passed >= *at)?;
    run.ask(0, AuthorizedRequest::BreakGlass { reason, until: until(3)?, by });
    Some("the glass is broken for 3 minutes".to_owned())
}

/// Has those come to rest that may, once all is mended; in another mode than `full` what that has to bring about comes
/// first, and then the mode is `full` again.
fn ends(run: &mut Simulation, drawn: &RandomSettings) -> Result<(), String> {
    run.with_people(|people, _| people.hurry());
    let placed = |run: &Simulation| {
        run.observed().pods.iter().all(|pod| !pod.is_active() || pod.node.is_some())
    };
    match drawn.mode.map(|(mode, _)| mode) {
        // That nothing is done is checked at every step.
        Some("observe") => run.pass(OBSERVED),
        Some("additive") if !run.until(REST, placed) => {
            run.well()?;
            return Err("pods wait in mode additive".to_owned());
        }
        Some(_) | None => {}
    }
    if drawn.mode.is_some() {
        run.commit(|commit| Commit { mode: "full", ..commit });
    }
    run.comes_to_rest(REST)
}

fn happen(run: &mut Simulation) -> String {
    match run.random.below(18) {
        12..=16 => more(run),
        0..=2 => {
            let names = ["api", "jobs"];
            let name = run.random.pick(&names).copied().unwrap_or("api");
            let replicas = u32::try_from(run.random.below(16)).unwrap_or(0);
            run.commit(|commit| commit.with(name, replicas));
            format!("{name} is to have {replicas} replicas")
        }
        3 => {
            let faults = drawn(run);
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
            run.pass(SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(1)));
            run.start(0);
            format!("killed, and started after {seconds} s")
        }
        6 => with_machine(run, |run, id| {
            run.warn(id);
            run.pass(SignedDuration::from_secs(115));
            run.shared.world.reclaim_instance(id);
            format!("{id} was taken back after its warning")
        }),
        7 => with_machine(run, |run, id| {
            run.shared.world.reclaim_instance(id);
            format!("{id} was taken back without a warning")
        }),
        // More of them broken at once wait for a person, and rightly so.
        8 if run.silenced => "nothing".to_owned(),
        8 => with_machine(run, |run, id| {
            run.silenced = true;
            run.shared.world.stop_kubelet(id);
            format!("{id} fell silent")
        }),
        9 => {
            let types = ["m5.large", "m5.xlarge", "c5.large", "r5.large"];
            let kind = run.random.pick(&types).copied().unwrap_or("m5.large");
            let instance_type = Some(kind.into());
            run.shared.world.set_unavailable(vec![OfferingOutage {
                instance_type,
                ..OfferingOutage::default()
            }]);
            format!("{kind} is sold out")
        }
        10 => {
            // EC2 refuses requests that are signed by a clock more than five minutes off.
            let minutes = i64::try_from(run.random.below(11)).unwrap_or(0) - 5;
            run.skew(0, SignedDuration::from_mins(minutes));
            format!("the clock is {minutes} minutes off")
        }
        _ => {
            let seconds = i64::try_from(30 + run.random.below(90)).unwrap_or(30);
            run.pause(0, SignedDuration::from_secs(seconds));
            format!("replica 0 does not run for {seconds} s")
        }
    }
}

/// Draws what goes wrong from now on.
fn drawn(run: &mut Simulation) -> Faults {
    Faults {
        reads: run.random.below(400),
        partial: run.random.below(400),
        stale: run.random.below(500),
        sticks: run.random.below(200),
        writes: run.random.below(400),
        lost: run.random.below(400),
        unheard: run.random.below(300),
        thinks: if run.random.chance(300) { run.random.below(15) } else { 0 },
        git: run.random.chance(200),
        kubernetes: run.random.chance(100),
        nodeless: run.random.chance(50),
        images: if run.random.chance(200) { 1_000 } else { 0 },
        named: if run.random.chance(100) { 1_000 } else { 0 },
    }
}

/// What happens to fleets beside what breaks them.
fn more(run: &mut Simulation) -> String {
    match run.random.below(10) {
        9 => {
            let images = run.observed().resolved.images.into_keys().collect::<Vec<_>>();
            let Some(image) = run.random.pick(&images) else { return "nothing".to_owned() };
            run.release_image(image);
            format!("a new image is released behind {image}")
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
                run.message("EC2 Instance State-change Notification", "aws.ec2", &detail);
            }
            "machines of others end".to_owned()
        }
        2 => with_machine(run, |run, id| {
            let detail = format!(r#"{{"instance-id":"{id}","state":"stopped"}}"#);
            run.message("EC2 Instance State-change Notification", "aws.ec2", &detail);
            run.message("EC2 Instance State-change Notification", "aws.ec2", &detail);
            format!("{id} is said to have stopped, and has not")
        }),
        3 => with_machine(run, |run, id| {
            let detail = format!(
                r#"{{"service":"EC2","eventTypeCategory":"scheduledChange","affectedEntities":[{{"entityValue":"{id}"}}]}}"#
            );
            run.message("AWS Health Event", "aws.health", &detail);
            format!("{id} is to be retired")
        }),
        4 => {
            let nodes: Vec<_> = run.shared.world.view().nodes().values().cloned().collect();
            let Some(node) = run.random.pick(&nodes).cloned() else { return "nothing".to_owned() };
            run.shared.world.remove_node_object(&node.name, &node.uid);
            format!("somebody deletes node {}", node.name)
        }
        5 => {
            let until = run.now().checked_add(SignedDuration::from_mins(3)).ok();
            let (reason, by) = ("a migration".to_owned(), "alice".to_owned());
            run.ask(0, AuthorizedRequest::Suspend { reason, until, by });
            "suspended for 3 minutes".to_owned()
        }
        6 => a_person(run, true),
        7 => a_person(run, false),
        _ => {
            let least = [None, Some("50%".to_owned()), Some("1".to_owned())];
            let budget = run.random.pick(&least).cloned().flatten();
            let told = format!("the budget of disruptions is {budget:?}");
            run.commit(|commit| Commit { budget, ..commit });
            told
        }
    }
}

/// Has a person cordon a node that takes pods, or uncordon one that does not, whoever had cordoned it.
fn a_person(run: &mut Simulation, cordons: bool) -> String {
    let nodes = run.observed().nodes.into_values();
    let names = nodes.filter(|node| node.unschedulable != cordons).map(|node| node.name);
    let names: Vec<_> = names.collect();
    let Some(name) = run.random.pick(&names) else { return "nothing".to_owned() };
    run.shared.person_cordons(name, cordons);
    format!("a person {} {name}", if cordons { "cordons" } else { "uncordons" })
}

fn with_machine(
    run: &mut Simulation,
    what: impl FnOnce(&mut Simulation, &InstanceId) -> String,
) -> String {
    let machines = run.machines();
    match run.random.pick(&machines).map(|machine| machine.id.clone()) {
        Some(id) => what(run, &id),
        None => "nothing".to_owned(),
    }
}
