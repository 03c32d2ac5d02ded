//! Messages for pools that cannot launch nodes, or not some of them.

use super::super::offer::{PoolRefusal, WithheldReason};
use crate::model::code::Code;
use crate::model::desired::Problem;
use crate::model::ids::PoolName;
use crate::model::reason::Relaxed;

/// Returns a message that explains why a pool cannot launch nodes.
pub(in super::super) fn refusal_message(pool: &PoolName, refusal: &PoolRefusal) -> String {
    match refusal {
        PoolRefusal::NoNodeClass { description, .. } => description.clone(),
        PoolRefusal::Unreadable { object, field, error } => {
            let why = unreadable_message(object, field, error.as_deref());
            format!("pool {pool} makes no nodes: {why}")
        }
        PoolRefusal::Group { why } => format!("group {pool} is observe-only: {why}"),
        PoolRefusal::NoOffering { pool, cause: Some(cause), origin } => {
            format!("{pool} cannot launch any node: {cause} ({origin})")
        }
        PoolRefusal::NoOffering { pool, cause: None, origin } => format!(
            "{pool} cannot launch any node: no instance type, zone and capacity type satisfies all \
             of its requirements ({origin})"
        ),
        PoolRefusal::TooManyLabels => format!(
            "pods request more combinations of labels left open by pool {pool} than are tried, so \
             some of them may be unschedulable"
        ),
        PoolRefusal::Withheld(why) => {
            format!("pool {pool} makes no nodes now: {}", withheld_message(pool, why))
        }
    }
}

/// Returns what is wrong with a field, and the place of the error that reports it.
fn unreadable_message(object: &str, field: &str, error: Option<&Problem>) -> String {
    let subject = match (field, error) {
        ("", None) => format!("a part of {object}"),
        ("", Some(_)) => object.to_owned(),
        (field, _) => format!("`{field}` of {object}"),
    };
    let Some(Problem { origin, message, .. }) = error else {
        return format!("{subject} is missing or could not be read");
    };
    let start = format!("`{field}` ");
    let message = message.strip_prefix(&start).unwrap_or(message);
    format!("{subject} {message} ({origin})")
}

/// Returns the correction of a field that could not be read.
pub(super) fn unreadable_remedy(object: &str, field: &str, error: Option<&Problem>) -> String {
    let part = if field.is_empty() { object.to_owned() } else { format!("`{field}` of {object}") };
    let Some(Problem { origin, hint, code, .. }) = error else { return format!("correct {part}") };
    match hint {
        Some(hint) if *code == Some(Code::PlaceholderUnresolved) => format!("{hint} ({origin})"),
        Some(_) | None => format!("correct {part} ({origin})"),
    }
}

/// Returns the stable code of a pool refusal.
pub(super) fn refusal_code(refusal: &PoolRefusal) -> Code {
    match refusal {
        PoolRefusal::TooManyLabels => Code::TooManyLabels,
        PoolRefusal::NoNodeClass { .. } => Code::NodeClassMissing,
        PoolRefusal::NoOffering { .. } => Code::NoOffering,
        PoolRefusal::Unreadable { .. } | PoolRefusal::Group { .. } | PoolRefusal::Withheld(_) => {
            Code::PoolUnusable
        }
    }
}

/// Returns the stable code of the reason why an offer is unavailable.
pub(super) fn withheld_code(why: &WithheldReason) -> Code {
    match why {
        WithheldReason::Excluded { .. } => Code::Excluded,
        WithheldReason::ReservationExhausted { .. } => Code::ReservationFull,
        WithheldReason::MinValuesUnmet(_) => Code::MinValues,
        WithheldReason::AboveMaxPrice { .. } => Code::MaxPrice,
    }
}

/// Returns a message that explains why an offer of `pool` is unavailable.
pub(super) fn withheld_message(pool: &PoolName, why: &WithheldReason) -> String {
    match why {
        WithheldReason::Excluded { until } => {
            format!("EC2 recently had insufficient capacity; the next try is at {until}")
        }
        WithheldReason::ReservationExhausted { reservation } => {
            format!("reservation {reservation} has no instance left")
        }
        WithheldReason::MinValuesUnmet(Relaxed { key, demanded, remain }) => {
            format!("pool {pool} demands {demanded} distinct values of {key}, and has {remain}")
        }
        WithheldReason::AboveMaxPrice { price, max_price: most } => {
            format!("spot costs ${price}/h, and group {pool} pays ${most}/h at most")
        }
    }
}
