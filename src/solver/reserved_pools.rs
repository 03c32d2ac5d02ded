//! Pools that launch in capacity reservations alone.
//!
//! Reservations are read from the account. Without one, nothing is wrong with such a pool: it may
//! launch once they are read.

use super::offer::pool_requirements;
use crate::model::desired::{Desired, Pool};
use crate::model::ids::LabelValue;
use crate::model::market::CapacityType;
use crate::model::observed::Observed;
use crate::model::requirement::key;

/// Returns true if a pool allows reserved capacity alone.
pub(super) fn is_reserved_only(pool: &Pool) -> bool {
    let requirements = pool_requirements(pool);
    let admits = |of: CapacityType| {
        let set = requirements.get(key::CAPACITY_TYPE);
        set.is_none_or(|set| set.contains(Some(&LabelValue::from(of.as_str()))))
    };
    admits(CapacityType::Reserved) && !admits(CapacityType::OnDemand) && !admits(CapacityType::Spot)
}

/// Returns true if a pool launches in reservations that its node class selects, and no reservation is
/// known.
pub(super) fn misses_reservation(pool: &Pool, desired: &Desired, observed: &Observed) -> bool {
    let selects = desired.class_of(pool).is_some_and(|class| !class.reservations.is_empty());
    selects && observed.reservations.is_empty() && is_reserved_only(pool)
}

/// Returns why a pool that launches in reservations alone has no offering.
pub(super) fn missing_reservation(
    pool: &Pool,
    desired: &Desired,
    observed: &Observed,
) -> Option<String> {
    let why = if misses_reservation(pool, desired, observed) {
        "no capacity reservation is known, and it launches in reservations alone"
    } else if desired.class_of(pool).is_some_and(|class| class.reservations.is_empty()) {
        "it launches in capacity reservations alone, and its node class selects none"
    } else {
        "it launches in capacity reservations alone, and none that its node class selects exists \
         for its types and zones"
    };
    is_reserved_only(pool).then(|| why.to_owned())
}
