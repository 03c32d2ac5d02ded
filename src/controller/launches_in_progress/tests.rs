use super::*;
use crate::apply::EarlierLaunch;
use crate::controller::reconcile::launched_rows;
use crate::model::market::CapacityType;
use crate::model::observed::{InstanceState, Reservation};
use crate::plan::wire::{ResourceKind, WaveStep};
use crate::testing::controller::at;
use crate::testing::{sample_plan, world};

fn launches() -> Plan {
    sample_plan::plan().only(WaveStep::Launch)
}

fn expected() -> BTreeMap<Address, Instance> {
    expected_instances(&launches(), &PriorAttempts::new(), "c", at(0)).expect("own launches")
}

#[test]
fn launch_counts_as_the_instance_of_its_change() {
    let (plan, all) = (launches(), expected());
    assert_eq!(all.len(), launched_rows(&plan).count());
    for row in launched_rows(&plan) {
        let (instance, after) = (&all[&row.address], row.change.after.as_ref().expect("a launch"));
        let change = change_id(&plan.capacity.plan_id, &row.address).to_string();
        assert_eq!(instance.tags.get(tag::CHANGE), Some(&change));
        assert_eq!(instance.tags.get(tag::KEY), row.index.as_ref(), "no other launch gets its key");
        assert_eq!(Some(&instance.instance_type), after.instance_type.as_ref());
        assert!(instance.is_managed_by("c") && instance.state == InstanceState::Pending);
    }
}

#[test]
fn members_of_groups_are_not_known_in_advance() {
    let mut plan = launches();
    let pool = launched_rows(&plan).next().expect("a launch").pool();
    let group = plan.resource_changes[0].clone();
    plan.resource_changes.push(crate::plan::wire::ResourceChange {
        kind: ResourceKind::AutoscalingGroup,
        name: pool.to_string(),
        ..group
    });
    assert_eq!(expected_instances(&plan, &PriorAttempts::new(), "c", at(0)), None);
}

#[test]
fn answer_replaces_the_planned_offering() {
    let planned = expected().into_values().next().expect("a launch");
    let offering = LaunchedOffering {
        instance_type: "c7g.metal".into(),
        zone: "us-east-1z".into(),
        capacity_type: CapacityType::Spot,
        instead_of: None,
    };
    let answered = answered_instance(planned.clone(), &"i-7".into(), Some(&offering));
    assert_eq!(answered.instance_type, offering.instance_type);
    assert_eq!((&answered.zone, answered.capacity_type), (&offering.zone, CapacityType::Spot));
    assert_eq!(answered.tags, planned.tags);
    assert_eq!(answered_instance(planned.clone(), &planned.id, None), planned);
}

#[test]
fn launch_without_capacity_counts_with_its_next_offering() {
    let plan = launches();
    let row = &plan.capacity.alternatives[0];
    let change = change_id(&"earlier".into(), &row.address);
    let before = EarlierLaunch { change, attempt_index: 1 };
    let previous = PriorAttempts::from([(row.address.clone(), before)]);
    let all = expected_instances(&plan, &previous, "c", at(0)).expect("own launches");
    let (found, alternative) = (&all[&row.address], &row.offerings[0]);
    assert_eq!(found.instance_type, alternative.instance_type);
    assert_eq!((&found.zone, found.capacity_type), (&alternative.zone, alternative.capacity_type));
}

#[test]
fn offering_without_a_reservation_uses_none() {
    let mut planned = expected().into_values().next().expect("a launch");
    planned.reservation = Some("cr-1".into());
    let of = |capacity_type: CapacityType| LaunchedOffering {
        instance_type: planned.instance_type.clone(),
        zone: planned.zone.clone(),
        capacity_type,
        instead_of: None,
    };
    let uses = |offering| with_offering(planned.clone(), Some(&of(offering))).reservation;
    assert_eq!(uses(CapacityType::Reserved), planned.reservation);
    assert_eq!(uses(CapacityType::OnDemand), None);
}

#[test]
fn listed_instance_stands_for_its_request_once() {
    let planned: Vec<Instance> = expected().into_values().collect();
    let mut observed = Observed::of_cluster("c", at(9));
    let listed = Instance { id: "i-7".into(), launched_at: at(5), ..planned[0].clone() };
    let mut node = world::node("n");
    node.instance = Some(listed.id.clone());
    observed = observed.with_instance(listed).with_node(node);
    add_launches_of_plan(&mut observed, &planned);
    let ids: Vec<&InstanceId> = planned.iter().map(|instance| &instance.id).collect();
    assert_eq!(observed.instances.keys().collect::<BTreeSet<_>>(), ids.iter().copied().collect());
    assert_eq!(observed.instances[ids[0]].launched_at, at(5), "as EC2 lists it");
    let node = observed.nodes.values().next().expect("a node");
    assert_eq!(node.instance.as_ref(), Some(ids[0]));
}

#[test]
fn request_uses_its_reservation() {
    let mut planned = expected().into_values().next().expect("a launch");
    planned.reservation = Some("cr-1".into());
    let mut observed = Observed::of_cluster("c", at(9));
    let text =
        r#"{ "id": "cr-1", "instance_type": "m5.large", "zone": "us-east-1a", "available": 1 }"#;
    let reservation: Reservation = serde_json::from_str(text).expect("a reservation");
    observed.reservations.insert("cr-1".into(), reservation);
    add_instances(&mut observed, &[planned.clone(), planned]);
    assert_eq!(observed.reservations.values().next().map(|of| of.available), Some(0));
}
