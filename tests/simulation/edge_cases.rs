//! Scenarios without external faults: signal floods, reused names, do-not-disrupt periods.

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::InstanceId;
use fleetwright::simulator::OfferingOutage;
use jiff::SignedDuration;

use super::environment::{CallKind, Faults};
use super::harness::Simulation;
use super::incidents::{ScenarioFn, ScenarioResult, is, minutes, settled};
use super::repository::Commit;

/// The stories, by the incident that each retells.
pub(crate) const ALL: &[(&str, ScenarioFn)] = &[
    ("core-2077: a flood of signals delays neither running nor due work", flood),
    ("do-not-disrupt: a do-not-disrupt duration is honored", pinned_for),
    ("consolidateAfter: a node stays for its consolidateAfter period", rests),
    ("karpenter-2734: a reused node name belongs to another instance", same_name),
    ("karpenter-9175: a rejected launch blocks no other launch", turned_away),
    ("karpenter-oci-97: a crash between two offerings of one launch", dies_between),
    ("karpenter-5373: an image rolls out once within the budget across restarts", rolls),
];

fn turned_away(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 76, Commit::default())?;
    run.faults(Faults { writes: 1_000, ..Faults::default() });
    run.commit(|commit| commit.with("api", 12));
    // Five calls with five seconds in between are the end of an apply.
    run.pass(SignedDuration::from_secs(40));
    run.well()?;
    run.faults(Faults::default());
    // It is another plan, of which nothing was asked for before.
    run.commit(|commit| commit.with("api", 14));
    let asked = run.now();
    let serves = |run: &Simulation| {
        let observed = run.observed();
        observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some()).count() >= 16
    };
    let soon = run.until(minutes(4), serves);
    run.well()?;
    let took = run.now().duration_since(asked).as_secs();
    // A minute until nodes are Ready; two more were waited for what might have been heard.
    is(soon && took <= 110, || format!("it took {took} s"))?;
    run.comes_to_rest(minutes(20))
}

fn dies_between(catalog: &Rc<Catalog>) -> ScenarioResult {
    for n in 0..12_i32 {
        let mut run = settled(catalog, 77, Commit::default())?;
        let before = run.machines().len();
        let types = ["m5.large", "c5.large"].map(|kind| OfferingOutage {
            instance_type: Some(kind.into()),
            ..OfferingOutage::default()
        });
        run.shared.world.set_unavailable(types.into());
        let asked = run.shared.asked.borrow().len();
        run.commit(|commit| commit.with("api", 10));
        let launches = |run: &Simulation| {
            let calls = run.shared.asked.borrow();
            calls.iter().skip(asked).filter(|a| matches!(a.what, CallKind::Launch(..))).count()
        };
        run.until(minutes(2), |run| launches(run) > 0);
        // Between the answer to the first offering and that to the next ones, at one moment after the other.
        run.pass(SignedDuration::from_millis(i64::from(n * 60)));
        run.kill(0);
        // By the time it comes back there is capacity again.
        run.shared.world.set_unavailable(Vec::new());
        run.start(0);
        run.comes_to_rest(minutes(30)).map_err(|why| format!("{n}: {why}"))?;
        let (all, there) = (run.checks.borrow().launches(), run.machines().len());
        let went = run.checks.borrow().removals();
        is(all - went == there && all <= before + 4, || {
            format!("{n}: {all} launched, {went} removed, {before} machines became {there}")
        })?;
    }
    Ok(())
}

fn flood(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 70, Commit::default().with("api", 8))?;
    let taken = run.machines().first().map(|machine| machine.id.clone()).ok_or("no machine")?;
    run.commit(|commit| commit.with("api", 14));
    run.warn(&taken);
    for _ in 0..10 {
        run.flood(SignedDuration::from_secs(10));
        // Who holds the lease renews it in between.
        run.pass(SignedDuration::from_secs(1));
        run.well()?;
    }
    let observed = run.observed();
    let waiting = observed.pods.iter().filter(|p| p.is_active() && p.node.is_none()).count();
    is(waiting == 0, || format!("{waiting} pods wait after 110 s of it"))?;
    let node = observed.node_for_instance(&taken).map(|node| node.name.clone());
    let left = observed.pods.iter().filter(|p| p.is_active() && node.is_some() && p.node == node);
    let left = left.count();
    is(left == 0, || format!("{left} pods are left on a machine that is taken back"))?;
    run.shared.world.reclaim_instance(&taken);
    run.comes_to_rest(minutes(20))
}

fn of_image<'r>(run: &'r Simulation, image: &'r str) -> impl Iterator<Item = InstanceId> + 'r {
    run.machines().into_iter().filter(move |i| i.image.contains(image)).map(|machine| machine.id)
}

fn pinned_for(catalog: &Rc<Catalog>) -> ScenarioResult {
    let annotations = "karpenter.sh/do-not-disrupt: 10m".to_owned();
    let commit = Commit { annotations, ..Commit::default().with("api", 8).with("jobs", 0) };
    let mut run = Simulation::new(71, commit, catalog);
    let placed = |run: &Simulation| {
        let observed = run.observed();
        observed.pods.len() == 8 && observed.pods.iter().all(|pod| pod.node.is_some())
    };
    is(run.until(minutes(10), placed), || "pods wait".to_owned())?;
    let since = run.now();
    let old: Vec<InstanceId> = of_image(&run, "v20260901").collect();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    run.pass(minutes(8));
    run.well()?;
    let left = of_image(&run, "v20260901").filter(|id| old.contains(id)).count();
    is(left == old.len(), || format!("{left} of {} are left after 8 minutes", old.len()))?;
    is(of_image(&run, "v20261001").count() == 0, || "launched for nothing".to_owned())?;
    let rolled = run.until(minutes(40), |run| of_image(run, "v20260901").count() == 0);
    run.well()?;
    let took = run.now().duration_since(since).as_mins();
    is(rolled, || format!("of the old image some are left after {took} minutes"))?;
    is(took >= 10, || format!("it took {took} minutes"))?;
    run.comes_to_rest(minutes(20))
}

fn rests(catalog: &Rc<Catalog>) -> ScenarioResult {
    let disruption = "disruption: { consolidateAfter: 10m }".to_owned();
    let commit = Commit { disruption, ..Commit::default().with("api", 20) };
    let mut run = settled(catalog, 72, commit)?;
    let before = run.machines().len();
    run.commit(|commit| commit.with("api", 2));
    run.pass(minutes(9));
    run.well()?;
    let left = run.machines().len();
    is(left == before, || format!("{left} of {before} machines are left after 9 minutes"))?;
    let status = run.status().and_then(|status| status.plan).ok_or("no plan")?;
    let waits = status
        .blocked
        .values()
        .any(|held| held.message.contains("within consolidateAfter of the pool"));
    is(waits, || format!("nothing says what is waited for: {:?}", status.blocked))?;
    // A process that begins has seen nobody leave, and waits anew.
    run.kill(0);
    run.start(0);
    run.pass(minutes(8));
    run.well()?;
    is(run.machines().len() == before, || "machines went after a restart".to_owned())?;
    run.comes_to_rest(minutes(40))?;
    is(run.machines().len() < before, || "no machine went".to_owned())
}

fn same_name(catalog: &Rc<Catalog>) -> ScenarioResult {
    let mut run = settled(catalog, 73, Commit::default().with("api", 8))?;
    let taken = run.machines().first().map(|machine| machine.id.clone()).ok_or("no machine")?;
    let name =
        run.observed().node_for_instance(&taken).map(|node| node.name.clone()).ok_or("no node")?;
    // Nodes are named by their address, and the next instance is given the one that is free again.
    run.warn(&taken);
    run.pass(minutes(1));
    run.shared.world.reclaim_instance(&taken);
    let free = run.until(minutes(10), |run| !run.observed().nodes.contains_key(&name));
    is(free, || "the node of what was taken back is a ghost".to_owned())?;
    run.shared.world.set_next_node_name(name.clone());
    run.commit(|commit| commit.with("api", 14));
    run.comes_to_rest(minutes(30))?;
    let observed = run.observed();
    let node = observed.nodes.get(&name).ok_or("no node has the name again")?;
    is(node.instance.as_ref() != Some(&taken), || "it is the old machine's".to_owned())?;
    // Nobody is left running without a node, and the one that has the name stays.
    run.pass(minutes(30));
    run.well()?;
    let there = run.observed().nodes.get(&name).map(|node| node.uid.clone());
    is(there == observed.nodes.get(&name).map(|node| node.uid.clone()), || "it went".to_owned())
}

fn rolls(catalog: &Rc<Catalog>) -> ScenarioResult {
    let slow = "removals: { most: 2, within: 3m }, massRemoval: 100%".to_owned();
    let commit = Commit {
        controller: slow,
        budget: Some("75%".to_owned()),
        ..Commit::default().with("api", 16)
    };
    let mut run = settled(catalog, 75, commit)?;
    let before = run.machines().len();
    run.commit(|commit| Commit { image: "al2023@v20261001".to_owned(), ..commit });
    let begun = run.now();
    for n in 0..40 {
        run.pass(minutes(1));
        run.well()?;
        let observed = run.observed();
        let up = observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some()).count();
        is(up >= 12, || format!("{up} pods are up in minute {n}"))?;
        if n == 7 {
            run.kill(0);
            run.start(0);
        }
        if of_image(&run, "v20260901").count() == 0 {
            break;
        }
    }
    let left = of_image(&run, "v20260901").count();
    is(left == 0, || format!("{left} of {before} are of the old image"))?;
    let took = run.now().duration_since(begun).as_mins();
    let least = i64::try_from(before).unwrap_or(0) / 2 * 3 - 6;
    is(took >= least, || format!("{before} machines went within {took} minutes"))?;
    run.comes_to_rest(minutes(20))?;
    let launched = run.checks.borrow().launches();
    run.pass(minutes(60));
    run.well()?;
    is(run.checks.borrow().launches() == launched, || "something drifts again".to_owned())
}
