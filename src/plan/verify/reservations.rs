//! Capacity reservations: launches use open reservations of sufficient capacity, and have no
//! alternatives.

use std::collections::BTreeMap;

use super::Violations;
use super::context::{CheckContext, CheckedRow};
use crate::model::desired::ReservationTerm;
use crate::model::ids::{LabelValue, ReservationId};
use crate::model::market::CapacityType;
use crate::model::observed::{MatchCriteria, Reservation};
use crate::model::requirement::key;
use crate::plan::wire::NodeState;

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    let mut used: BTreeMap<&ReservationId, u32> = BTreeMap::new();
    for row in context.rows.iter().filter(|row| row.action.creates()) {
        let Some(after) = row.after else { continue };
        let reserved = after.capacity_type == Some(CapacityType::Reserved);
        match &after.reservation {
            Some(id) => {
                *used.entry(id).or_insert(0) += 1;
                launch(context, row, after, id, violations);
            }
            None if reserved => {
                violations.report_row("reservation/named", row.address, "it names no reservation");
            }
            None => {}
        }
        if after.reservation.is_some() && !reserved {
            violations.report_row(
                "reservation/named",
                row.address,
                "it is not of reserved capacity",
            );
        }
    }
    for (id, launches) in used {
        let available = context.facts.observed.reservations.get(id).map_or(0, |r| r.available);
        if launches > available {
            let fault = format!("{launches} instances are launched into {id}, it has {available}");
            violations.report_plan("reservation/supply", fault);
        }
    }
    for of in &context.plan.capacity.alternatives {
        let into = context.row(&of.address).and_then(|row| row.after?.reservation.as_ref());
        let reserved = |offering: &crate::model::reason::Alternative| {
            offering.capacity_type == CapacityType::Reserved
        };
        if into.is_some() || of.offerings.iter().any(reserved) {
            let fault = "reserved capacity neither has alternatives nor is one";
            violations.report_row("reservation/stand-in", &of.address, fault);
        }
    }
}

/// Checks that a launch uses an open reservation of its type and zone, which its node class
/// selects.
fn launch(
    context: &CheckContext<'_>,
    row: &CheckedRow<'_>,
    after: &NodeState,
    id: &ReservationId,
    violations: &mut Violations,
) {
    let Some(reservation) = context.facts.observed.reservations.get(id) else {
        return violations.report_row(
            "reservation/known",
            row.address,
            format!("{id} was not observed"),
        );
    };
    if !reservation.is_open(context.plan.timestamp) {
        violations.report_row("reservation/known", row.address, format!("{id} cannot be used"));
    }
    let (kind, zone) = (Some(&reservation.instance_type), Some(&reservation.zone));
    if after.instance_type.as_ref() != kind || after.zone.as_ref() != zone {
        violations.report_row(
            "reservation/known",
            row.address,
            format!("{id} is of another type or zone"),
        );
    }
    if after.labels.get(key::RESERVATION_ID).map(LabelValue::as_str) != Some(id.as_str()) {
        violations.report_row(
            "reservation/labels",
            row.address,
            format!("its labels do not name {id}"),
        );
    }
    let class = after.pool.as_ref().and_then(|pool| context.class(context.pool(pool)?));
    let terms = class.map(|class| class.reservations.as_slice()).unwrap_or_default();
    if !terms.iter().any(|term| is_selected(term, reservation)) {
        let fault = format!("no term of its node class selects {id}");
        violations.report_row("reservation/selected", row.address, fault);
    }
}

fn is_selected(term: &ReservationTerm, reservation: &Reservation) -> bool {
    let targeted = reservation.match_criteria == MatchCriteria::Targeted;
    let mut holds = term.targeted.is_none_or(|wanted| wanted == targeted);
    holds &= term.id.as_deref().is_none_or(|id| id == reservation.id.as_str());
    holds &= term.owner.as_ref().is_none_or(|owner| *owner == reservation.owner);
    for (key, value) in &term.tags {
        holds &= reservation.tags.get(key).is_some_and(|held| value == "*" || held == value);
    }
    holds
}
