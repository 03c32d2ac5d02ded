//! Capacity reservations: each launch into one may use it, there is enough of it, and nothing else
//! stands in.

use std::collections::BTreeMap;

use super::Verdict;
use super::case::{Case, Row};
use crate::catalog::CapacityType;
use crate::fleet::{MatchCriteria, Reservation};
use crate::ids::{LabelValue, ReservationId};
use crate::manifest::ReservationTerm;
use crate::plan::wire::NodeState;
use crate::requirement::key;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    let mut used: BTreeMap<&ReservationId, u32> = BTreeMap::new();
    for row in case.rows.iter().filter(|row| row.deed.creates()) {
        let Some(after) = row.after else { continue };
        let reserved = after.capacity_type == Some(CapacityType::Reserved);
        match &after.reservation {
            Some(id) => {
                *used.entry(id).or_insert(0) += 1;
                launch(case, row, (after, id), verdict);
            }
            None if reserved => {
                verdict.row("reservation/named", row.address, "it names no reservation");
            }
            None => {}
        }
        if after.reservation.is_some() && !reserved {
            verdict.row("reservation/named", row.address, "it is not of reserved capacity");
        }
    }
    for (id, launches) in used {
        let available = case.facts.observed.reservations.get(id).map_or(0, |r| r.available);
        if launches > available {
            let fault = format!("{launches} machines are launched into {id}, it has {available}");
            verdict.plan("reservation/supply", fault);
        }
    }
    for of in &case.plan.capacity.alternatives {
        let into = case.row(&of.address).and_then(|row| row.after?.reservation.as_ref());
        let reserved =
            |offering: &crate::solve::Alternative| offering.capacity_type == CapacityType::Reserved;
        if into.is_some() || of.offerings.iter().any(reserved) {
            let fault = "reserved capacity stands in for nothing, and nothing for it";
            verdict.row("reservation/stand-in", &of.address, fault);
        }
    }
}

/// Holds a launch to a reservation that can be used, of its type and zone, which its class selects.
fn launch(
    case: &Case<'_>,
    row: &Row<'_>,
    (after, id): (&NodeState, &ReservationId),
    verdict: &mut Verdict,
) {
    let Some(reservation) = case.facts.observed.reservations.get(id) else {
        return verdict.row("reservation/known", row.address, format!("nobody saw {id}"));
    };
    if !reservation.is_open(case.plan.timestamp) {
        verdict.row("reservation/known", row.address, format!("{id} cannot be used"));
    }
    let (kind, zone) = (Some(&reservation.instance_type), Some(&reservation.zone));
    if after.instance_type.as_ref() != kind || after.zone.as_ref() != zone {
        verdict.row("reservation/known", row.address, format!("{id} is of another type or zone"));
    }
    if after.labels.get(key::RESERVATION_ID).map(LabelValue::as_str) != Some(id.as_str()) {
        verdict.row("reservation/labels", row.address, format!("its labels do not name {id}"));
    }
    let class = after.pool.as_ref().and_then(|pool| case.class(case.pool(pool)?));
    let terms = class.map(|class| class.reservations.as_slice()).unwrap_or_default();
    if !terms.iter().any(|term| is_selected(term, reservation)) {
        let fault = format!("no term of its node class selects {id}");
        verdict.row("reservation/selected", row.address, fault);
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
