//! Defects of pool rules: exclusions, overlays, `minValues`, reservations, static pools.

use super::*;
use crate::model::desired::{Budget, BudgetNodes, NodeOverlay, PriceChange, ReservationTerm};
use crate::model::observed::{Exclusion, Reservation};
use crate::plan::wire::{LaunchReason, Reason, Relaxed};

/// Moves the launch of m5.xlarge into a usable reservation.
fn reserve(plan: &mut Plan, inputs: &mut Inputs) {
    let reservation: Reservation = serde_json::from_value(serde_json::json!({
        "id": "cr-1", "instance_type": "m5.xlarge", "zone": "us-east-1a", "available": 1,
    }))
    .unwrap();
    inputs.observed.reservations.insert("cr-1".into(), reservation);
    let class = inputs.desired.node_classes.values_mut().next().unwrap();
    let id = Some("cr-1".to_owned());
    class.reservations = vec![ReservationTerm { id, ..ReservationTerm::default() }];
    let node = after(plan, "3");
    (node.capacity_type, node.reservation) = (Some(CapacityType::Reserved), Some("cr-1".into()));
    node.labels.extend([label(key::CAPACITY_TYPE, "reserved"), label(key::RESERVATION_ID, "cr-1")]);
    plan.capacity.alternatives.retain(|of| of.address != address("3"));
}

/// Makes the pool static, with a static launch reason.
fn make_static(plan: &mut Plan, inputs: &mut Inputs, declared: u32) {
    pool(inputs).replicas = Some(declared);
    let because = LaunchReason::Static { declared, there: 0 };
    explain(plan, "3").reason = Reason::Launch { because: because.clone() };
    explain(plan, "2").reason = Reason::Launch { because };
}

fn exclude(inputs: &mut Inputs, kind: &str) {
    inputs.observed.exclusions.push(Exclusion {
        instance_type: Some(kind.into()),
        zone: None,
        capacity_type: None,
        until: jiff::Timestamp::MAX,
    });
}

fn budget(nodes: &str, reasons: &[&str]) -> Budget {
    Budget {
        nodes: BudgetNodes::parse(nodes).unwrap(),
        reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
        schedule: None,
        duration: None,
    }
}

/// Returns a budget that is active for two hours from `hours` before the plan's timestamp.
fn nightly(nodes: &str, at: jiff::Timestamp, hours: i8) -> Budget {
    let hour = at.to_zoned(jiff::tz::TimeZone::UTC).hour() - hours;
    let schedule =
        crate::model::desired::Schedule::parse(&format!("0 {} * * *", hour.rem_euclid(24)));
    let duration = Some(jiff::SignedDuration::from_hours(2));
    Budget { schedule: Some(schedule.unwrap()), duration, ..budget(nodes, &[]) }
}

pub(super) const DEFECTS: &[Defect] = &[
    ("launch/excluded", "a type with insufficient capacity", |_, i| exclude(i, "m5.xlarge")),
    ("alternatives/excluded", "an alternative with insufficient capacity", |_, i| {
        exclude(i, "m5.large");
    }),
    ("budgets/removed", "more nodes than a budget allows", |_, i| {
        let reasons: &[&str] = &["Empty", "Underutilized"];
        pool(i).budgets = vec![budget("100%", reasons), budget("0", reasons)];
    }),
    ("budgets/removed", "two nodes with a budget of one", |_, i| {
        pool(i).budgets = vec![budget("1", &[])];
    }),
    ("budgets/removed", "two nodes of three with a budget of 25%, which is rounded up", |_, i| {
        pool(i).budgets = vec![budget("25%", &[])];
    }),
    ("budgets/removed", "one node for a reason with a budget of zero", |_, i| {
        pool(i).budgets = vec![budget("100%", &["Drifted"]), budget("0", &["Empty"])];
    }),
    ("budgets/removed", "two nodes with a budget of two while one node is not Ready", |_, i| {
        pool(i).budgets = vec![budget("2", &[])];
        i.observed.nodes.values_mut().next().unwrap().ready = false;
    }),
    (
        "budgets/removed",
        "more nodes than a budget that is active at the plan's timestamp allows",
        |p, i| {
            pool(i).budgets = vec![nightly("1", p.timestamp, 0)];
        },
    ),
    ("launch/unreadable", "a pool that was not read completely", |_, i| {
        pool(i).unreadable = Some("spec".to_owned());
    }),
    ("launch/open-labels", "an open label that is not stored as a tag", |p, _| {
        after(p, "3").labels.extend([label("zoo", "a")]);
    }),
    ("launch/open-labels", "a label of the pool stored as a tag", |p, _| {
        after(p, "3").open_labels.push("team".into());
    }),
    ("launch/overlays", "an overlay that was not applied", |_, i| {
        let overlay = NodeOverlay {
            name: "fuse".to_owned(),
            origin: Origin::new("overlay.yaml", 1),
            weight: 0,
            requirements: Vec::new(),
            price: None,
            capacity: [("example.com/fuse".into(), 1)].into(),
        };
        i.desired.overlays.insert(overlay.name.clone(), overlay);
    }),
    ("cost/price", "a price without the overlay", |_, i| {
        let overlay = NodeOverlay {
            name: "deal".to_owned(),
            origin: Origin::new("overlay.yaml", 1),
            weight: 0,
            requirements: Vec::new(),
            price: Some(PriceChange::To(MicroUsd(1))),
            capacity: [].into(),
        };
        i.desired.overlays.insert(overlay.name.clone(), overlay);
    }),
    ("launch/min-values", "too few instance types", |_, i| {
        pool(i).requirements[0].min_values = Some(4);
    }),
    ("launch/min-values", "a stated shortage that does not exist", |p, _| {
        let key = key::INSTANCE_TYPE.into();
        explain(p, "3").relaxed.push(Relaxed { key, demanded: 2, remain: 1 });
    }),
    ("reservation/named", "reserved capacity without a reservation", |p, _| {
        after(p, "3").capacity_type = Some(CapacityType::Reserved);
    }),
    ("reservation/named", "a reservation for on-demand capacity", |p, i| {
        reserve(p, i);
        after(p, "3").capacity_type = Some(CapacityType::OnDemand);
    }),
    ("reservation/known", "an unobserved reservation", |p, i| {
        reserve(p, i);
        i.observed.reservations.clear();
    }),
    ("reservation/known", "a reservation of another type", |p, i| {
        reserve(p, i);
        after(p, "3").instance_type = Some("m5.large".into());
    }),
    ("reservation/known", "a reservation that has ended", |p, i| {
        reserve(p, i);
        i.observed.reservations.values_mut().for_each(|r| r.ends_at = Some(p.timestamp));
    }),
    ("reservation/labels", "labels that do not name the reservation", |p, i| {
        reserve(p, i);
        after(p, "3").labels.remove(key::RESERVATION_ID);
    }),
    ("reservation/selected", "a reservation that the class does not select", |p, i| {
        reserve(p, i);
        i.desired.node_classes.values_mut().for_each(|class| class.reservations.clear());
    }),
    ("reservation/supply", "more instances than the reservation has available", |p, i| {
        reserve(p, i);
        i.observed.reservations.values_mut().for_each(|r| r.available = 0);
    }),
    ("reservation/stand-in", "alternatives of reserved capacity", |p, i| {
        let alternatives = p.capacity.alternatives.clone();
        reserve(p, i);
        p.capacity.alternatives = alternatives;
    }),
    ("static/reason", "a launch for pods in a static pool", |_, i| {
        pool(i).replicas = Some(9);
    }),
    ("static/reason", "a static launch reason in another pool", |p, i| {
        make_static(p, i, 3);
        pool(i).replicas = None;
    }),
    ("static/count", "one node more than declared", |p, i| make_static(p, i, 2)),
    ("static/count", "a surplus that does not exist", |p, i| {
        make_static(p, i, 9);
        let because = RetireReason::Surplus { declared: 9, there: 3 };
        explain(p, "1").reason = Reason::Retire { because };
    }),
    ("static/in-turn", "two nodes replaced at once", |p, i| {
        make_static(p, i, 3);
        row(p, "0").change.actions = vec![Action::Create, Action::Delete];
    }),
];

#[test]
fn inactive_and_unrelated_budgets_are_ignored() {
    let plan = plan();
    let at = plan.timestamp;
    for budgets in [
        vec![budget("2", &[])],
        vec![budget("50%", &[])],
        vec![budget("0", &["Drifted"])],
        vec![nightly("0", at, 2)],
        vec![nightly("0", at, -1)],
        vec![nightly("2", at, 1)],
    ] {
        let mut inputs = inputs();
        pool(&mut inputs).budgets.clone_from(&budgets);
        assert_eq!(verify(&plan, &inputs.facts()), [], "{budgets:?}");
    }
}

#[test]
fn launch_into_reservation_breaks_no_reservation_rule() {
    let (mut plan, mut inputs) = (plan(), inputs());
    reserve(&mut plan, &mut inputs);
    let found = verify(&plan.with_identity(), &inputs.facts());
    assert!(found.iter().all(|v| !v.rule.starts_with("reservation/")), "{found:?}");
}
