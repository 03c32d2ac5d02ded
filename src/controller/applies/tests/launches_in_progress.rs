//! Plans beside a wave of launches.

use super::*;
use crate::model::observed::{Observed, tag};
use crate::plan::change_id;
use crate::testing::plan::address;
use crate::testing::world::pod;

/// Observes another pending pod; returns the observation that is planned over, if any.
fn observe_pod(harness: &mut ControllerHarness, seconds: i64, name: &str) -> Option<Observed> {
    harness.modify(|state| state.planning.run = None);
    harness.observe(seconds, world(seconds).with_pods([pod(name)]));
    let run = harness.state().planning.run.as_ref()?;
    assert_eq!(run.scope.changeable_nodes, Some(BTreeSet::new()), "it launches only");
    Some(Observed::clone(&run.input.world))
}

fn launches() -> Vec<Address> {
    reconcile::launched_rows(&launch_plan()).map(|row| row.address.clone()).collect()
}

/// Returns the changes that the instances of an observation carry, with the ids of those that EC2
/// has named.
fn changes(world: &Observed) -> BTreeMap<&str, &str> {
    let instances = world.instances.values();
    let tagged = instances.filter_map(|i| Some((i.tags.get(tag::CHANGE)?.as_str(), i.id.as_str())));
    tagged.collect()
}

#[test]
fn plan_beside_a_wave_counts_each_launch_once() {
    let (mut harness, ticket) = controller_applying();
    let all = launches();
    let planned = observe_pod(&mut harness, 10, "a").expect("planned beside the wave");
    assert_eq!(changes(&planned).len(), all.len());
    assert!(planned.planned_pods.len() >= all.len(), "each with the pods planned for it");
    let launched = Step::Launched { instance_id: "i-new".into(), offering: None };
    report_step(&mut harness, 11, ticket, Some(&all[0]), launched);
    let refused = Step::Finished {
        step: WaveStep::Launch,
        outcome: Outcome::Failed { why: "no capacity".to_owned() },
    };
    report_step(&mut harness, 12, ticket, Some(&all[1]), refused);
    let planned = observe_pod(&mut harness, 13, "b").expect("planned again");
    assert_eq!(changes(&planned).len(), all.len() - 1, "a refused launch is no capacity");
    assert!(changes(&planned).values().any(|id| *id == "i-new"), "{:?}", changes(&planned));
}

#[test]
fn nothing_is_planned_beside_a_wave_without_new_pods() {
    let (mut harness, _) = controller_applying();
    assert!(observe_pod(&mut harness, 10, "a").is_some());
    assert!(observe_pod(&mut harness, 20, "a").is_none(), "the same pod");
    assert!(observe_pod(&mut harness, 21, "b").is_some());
}

#[test]
fn launch_in_doubt_blocks_those_beside_its_wave() {
    for is_lost in [false, true] {
        let (mut harness, ticket) = controller_applying();
        let all = launches();
        if is_lost {
            report_step(&mut harness, 10, ticket, Some(&all[0]), Step::Unanswered);
            let outcome = Outcome::Failed { why: "no answer".to_owned() };
            let failed = Step::Finished { step: WaveStep::Launch, outcome };
            report_step(&mut harness, 11, ticket, Some(&all[0]), failed);
        }
        assert!(observe_pod(&mut harness, 12, "a").is_some());
        let mut other = replanned_launches();
        let address = Address::from("ec2_instance.web[\"77\"]");
        let row = other.resource_changes.iter_mut().find(|row| row.address == all[0]);
        row.expect("a launch").address = address.clone();
        other.capacity.waves.iter_mut().for_each(|wave| wave.addresses = vec![address.clone()]);
        harness.finish_planning(13, other);
        assert_eq!(harness.state().applies.runs.len(), if is_lost { 1 } else { 2 }, "{is_lost}");
    }
}

#[test]
fn launches_in_progress_cover_no_interruption() {
    let (mut harness, _) = controller_applying();
    assert!(observe_pod(&mut harness, 10, "a").is_some());
    let mut nothing = launch_plan();
    nothing.capacity.waves.clear();
    nothing.resource_changes.clear();
    harness.finish_planning(11, nothing);
    assert!(harness.state().planning.settled_version.is_some(), "nothing is left to do");
    assert_eq!(harness.state().planning.covered_version, None, "its launches may fail");
}

#[test]
fn plan_beside_a_wave_counts_the_last_requested_offering() {
    let (mut harness, ticket) = controller_applying();
    let address = launch_plan().capacity.alternatives[0].address.clone();
    let request = |address: &Address| ControllerEvent::OfferingAttemptRequested {
        ticket,
        address: address.clone(),
        attempt: 1,
    };
    harness.step_at(10, request(&address));
    let planned = observe_pod(&mut harness, 11, "a").expect("planned beside the wave");
    let change = change_id(&launch_plan().capacity.plan_id, &address).to_string();
    let mut instances = planned.instances.values();
    let found = instances.find(|instance| instance.tags.get(tag::CHANGE) == Some(&change));
    let found = found.expect("it counts");
    let alternative = &launch_plan().capacity.alternatives[0].offerings[0];
    assert_eq!(found.instance_type, alternative.instance_type);
    assert_eq!((&found.zone, found.capacity_type), (&alternative.zone, alternative.capacity_type));
}

#[test]
fn plan_beside_a_wave_counts_instances_of_earlier_runs() {
    let (mut harness, ticket) = controller_applying();
    let all = launches();
    report_step(&mut harness, 10, ticket, Some(&all[0]), Step::Found { instance_id: "i-7".into() });
    let planned = observe_pod(&mut harness, 11, "a").expect("planned beside the wave");
    assert_eq!(changes(&planned).len(), all.len());
    assert!(changes(&planned).values().any(|id| *id == "i-7"), "{:?}", changes(&planned));
}

const API: &str = "web/Deployment/api";

#[test]
fn pods_of_unanswered_launches_arrive() {
    let (mut harness, ticket) = controller_applying();
    let arriving = |harness: &ControllerHarness| {
        let arriving = harness.state().pods_arriving()?;
        arriving.workloads.get(API).copied()
    };
    assert_eq!(arriving(&harness), Some(36));
    for address in launches() {
        let outcome = Outcome::Failed { why: "no capacity".to_owned() };
        let refused = Step::Finished { step: WaveStep::Launch, outcome };
        report_step(&mut harness, 10, ticket, Some(&address), refused);
    }
    assert_eq!(arriving(&harness), None, "none of them launches a node");
}

#[test]
fn failed_launch_ends_the_wait_of_its_pods() {
    let (mut harness, ticket) = controller_applying();
    let launched = Step::Launched { instance_id: "i-new".into(), offering: None };
    report_step(&mut harness, 10, ticket, Some(&address("9")), launched);
    let planning = &harness.state().planning;
    assert_eq!(planning.launched_demand.get(API), Some(&36));
    assert!(planning.unplaced_since.is_empty(), "no order of arrival has room for ml/train");
    let failed = ChangeOutcome {
        address: address("10"),
        step: WaveStep::Launch,
        instance_id: None,
        launched: None,
        outcome: Outcome::Failed { why: "no capacity".to_owned() },
    };
    finish_apply_with(&mut harness, 20, ticket, vec![failed]);
    assert_eq!(harness.state().planning.launched_demand.get(API), None);
}
