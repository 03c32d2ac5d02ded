//! Why pools make no nodes, or not these, in words.

use super::super::offer::{PoolRefusal, Withheld};
use super::super::target::Relaxed;
use crate::ids::PoolName;

/// Returns why a pool can make no nodes, in words.
pub(in super::super) fn refusal_text(pool: &PoolName, refusal: &PoolRefusal) -> String {
    match refusal {
        PoolRefusal::NoNodeClass => format!("pool {pool} has no node class"),
        PoolRefusal::Unreadable { what, field } => {
            let part = if field.is_empty() { "a part".to_owned() } else { format!("`{field}`") };
            format!("pool {pool} makes no nodes: {part} of {what} could not be read")
        }
        PoolRefusal::Group { why } => format!("group {pool} is only observed: {why}"),
        PoolRefusal::NoOffering => format!("no offering satisfies the requirements of pool {pool}"),
        PoolRefusal::TooManyLabels => format!(
            "pods ask for more combinations of labels that pool {pool} leaves open than are looked at, \
             so that some of them may have no place"
        ),
        PoolRefusal::Withheld(why) => {
            format!("pool {pool} makes no nodes now: {}", withheld_text(pool, why))
        }
    }
}

/// Returns the code of what a pool says beside its offers.
pub(super) fn refusal_code(refusal: &PoolRefusal) -> &'static str {
    match refusal {
        PoolRefusal::TooManyLabels => "too-many-labels",
        PoolRefusal::NoNodeClass
        | PoolRefusal::Unreadable { .. }
        | PoolRefusal::Group { .. }
        | PoolRefusal::NoOffering
        | PoolRefusal::Withheld(_) => "pool-unusable",
    }
}

/// Returns the code of a reason why an offer is not made.
pub(super) fn code(why: &Withheld) -> &'static str {
    match why {
        Withheld::Excluded { .. } => "excluded",
        Withheld::UsedUp { .. } => "reservation-full",
        Withheld::TooFewValues(_) => "min-values",
        Withheld::TooDear { .. } => "max-price",
    }
}

/// Returns why an offer of `pool` is not made, in words.
pub(super) fn withheld_text(pool: &PoolName, why: &Withheld) -> String {
    match why {
        Withheld::Excluded { until } => {
            format!("EC2 had no such capacity lately, which is tried again from {until} on")
        }
        Withheld::UsedUp { reservation } => {
            format!("reservation {reservation} has no machine left")
        }
        Withheld::TooFewValues(Relaxed { key, demanded, remain }) => {
            format!("pool {pool} demands {demanded} distinct values of {key}, and has {remain}")
        }
        Withheld::TooDear { price, most } => {
            format!("spot costs ${price}/h, and group {pool} pays ${most}/h at most")
        }
    }
}
