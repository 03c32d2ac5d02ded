//! End-to-end tests of capacity reservations. Each plan is verified.

use super::pools::{apply_and_check, cores, launched, reasons};
use super::*;
use crate::model::desired::ReservationTerm;
use crate::model::ids::{LabelValue, Origin};
use crate::model::observed::{Completeness, Reservation};
use crate::model::requirement::key;
use crate::solver::unmatched_reservations;
use crate::testing::requirement;

fn reserved(available: u32, capacity_types: &[&str]) -> Scenario {
    let mut scenario = cores(&["m5.large"], 3);
    let pool = scenario.pool();
    pool.requirements.pop();
    pool.requirements.push(requirement(key::CAPACITY_TYPE, capacity_types));
    let class = scenario.node_class();
    let tags = [("team".to_owned(), "*".to_owned())].into();
    class.reservations = vec![ReservationTerm { tags, ..ReservationTerm::default() }];
    let reservation: Reservation = serde_json::from_value(serde_json::json!({
        "id": "cr-1", "instance_type": "m5.large", "zone": "us-east-1a", "available": available,
        "tags": { "team": "shop" },
    }))
    .expect("a reservation");
    scenario.observed.reservations.insert(reservation.id.clone(), reservation);
    scenario
}

#[test]
fn reservation_is_used_before_other_capacity() {
    let mut scenario = reserved(2, &["reserved", "on-demand"]);
    let plan = scenario.plan();
    let count = |capacity_type: &str| {
        let value = LabelValue::from(capacity_type);
        launched(&plan).iter().filter(|n| n.labels.get(key::CAPACITY_TYPE) == Some(&value)).count()
    };
    assert_eq!((count("reserved"), count("on-demand")), (2, 1));
    let node = launched(&plan).into_iter().find(|node| node.reservation.is_some());
    let node = node.expect("a reserved instance");
    assert_eq!(node.labels[key::RESERVATION_ID].as_str(), "cr-1");
    assert_eq!(plan.capacity.cost.hourly_after, MicroUsd(96_000), "reserved instances add no cost");
    let purchased = plan.capacity.explain.iter().find(|row| row.hourly_after != Some(MicroUsd(0)));
    let rejected = &purchased.expect("a purchased instance").rejected;
    assert!(
        rejected.iter().any(|r| r.reason == "reservation-full"),
        "the plan reports the rejection: {rejected:?}"
    );
    apply_and_check(&mut scenario);
}

#[test]
fn full_reservation_leaves_pods_unschedulable() {
    let mut scenario = reserved(2, &["reserved"]);
    let plan = scenario.plan();
    assert_eq!((changes(&plan), plan.capacity.pods.unschedulable), ((2, 0), 1));
    assert_eq!(reasons(&plan), [("reservation-full", 1)]);
    scenario.carry_out(&scenario.solve());
    let plan = scenario.plan();
    assert_eq!((changes(&plan), reasons(&plan)[0]), ((0, 0), ("reservation-full", 1)));
}

#[test]
fn unselected_or_unusable_reservation_is_ignored() {
    let changes_of_reservation: [fn(&mut Scenario); 4] = [
        |s| s.desired.node_classes.values_mut().for_each(|c| c.reservations.clear()),
        |s| s.observed.reservations.values_mut().for_each(|r| r.tags.clear()),
        |s| {
            let now = s.observed.taken_at;
            s.observed.reservations.values_mut().for_each(|r| r.ends_at = Some(now));
        },
        |s| s.observed.reservations.values_mut().for_each(|r| r.zone = "us-east-1z".into()),
    ];
    for change in changes_of_reservation {
        let mut scenario = reserved(3, &["reserved", "on-demand"]);
        change(&mut scenario);
        assert!(launched(&scenario.plan()).iter().all(|node| node.reservation.is_none()));
    }
}

#[test]
fn unmatched_selector_states_the_price_of_other_capacity() {
    let warnings = |scenario: &Scenario| -> Vec<Diagnostic> {
        let all = scenario.plan().capacity.diagnostics.into_iter();
        all.filter(|found| found.object.starts_with("EC2NodeClass")).collect()
    };
    let mistyped = ReservationTerm { id: Some("cr-2".to_owned()), ..ReservationTerm::default() };
    let mut scenario = reserved(2, &["reserved", "on-demand"]);
    assert_eq!(warnings(&scenario), [], "the selector matches");
    scenario.node_class().reservations = vec![mistyped];
    let found = warnings(&scenario);
    let [found] = &found[..] else { panic!("one warning: {found:?}") };
    assert_eq!(found.severity, DiagnosticSeverity::Warning);
    assert_eq!(found.origin, Some(Origin::new("pool.yaml", 20)));
    assert_eq!(
        found.message,
        "id cr-2 of `capacityReservationSelectorTerms` matches no capacity reservation, and 3 new \
         nodes of pool default outside of reservations cost 0.288000 USD per hour"
    );
    // Without any reservation, only an account that was read proves that there is none.
    scenario.observed.reservations.clear();
    assert_eq!(warnings(&scenario), []);
    scenario.observed.cluster.account = "123456789012".to_owned();
    assert_eq!(warnings(&scenario).len(), 1);
    let partial = Completeness::Partial { reason: "a reservation is unreadable".to_owned() };
    scenario.observed.sources.insert("ec2".to_owned(), partial);
    assert!(unmatched_reservations(&scenario.desired, &scenario.observed).is_empty());
}

#[test]
fn pool_without_a_choice_names_the_unmatched_selector() {
    let mut scenario = reserved(3, &["reserved"]);
    let mistyped = ReservationTerm { id: Some("cr-2".to_owned()), ..ReservationTerm::default() };
    scenario.node_class().reservations.push(mistyped.clone());
    let messages = |scenario: &Scenario| -> Vec<String> {
        let all = scenario.plan().capacity.diagnostics.into_iter();
        all.map(|found| found.message).filter(|text| text.contains("cr-2")).collect()
    };
    let expected = "id cr-2 of `capacityReservationSelectorTerms` matches no capacity reservation, \
                    and pool default cannot launch in it";
    assert_eq!(messages(&scenario), [expected]);
    // The pool launches nothing, and the reason of its pods names the selector.
    scenario.node_class().reservations = vec![mistyped];
    let plan = scenario.plan();
    assert_eq!((changes(&plan), plan.capacity.pods.unschedulable), ((0, 0), 3));
    assert_eq!(reasons(&plan)[0].0, "no-offering");
    let refusals = messages(&scenario);
    let [refusal] = &refusals[..] else { panic!("the refusal of the pool: {refusals:?}") };
    assert!(refusal.contains("launches in capacity reservations alone"), "{refusal}");
    assert_eq!(plan.capacity.unschedulable[0].reasons[0].detail, *refusal);
}
