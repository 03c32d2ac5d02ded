//! Pools that may launch in capacity reservations, and the reservations that their node classes
//! select.
//!
//! Reservations are read from the account. Before they are read, nothing is wrong with a pool that
//! launches in reservations alone. Once they are read, a selector without a match is most likely a
//! typing error. Karpenter then offers no reserved capacity: a pool that allows other capacity
//! launches that, and any other pool launches nothing.

use super::offer::pool_requirements;
use crate::model::desired::{Desired, Generation, NodeClass, Pool, ReservationTerm};
use crate::model::ids::{LabelValue, PoolName};
use crate::model::market::CapacityType;
use crate::model::observed::{MatchCriteria, Observed, Reservation};
use crate::model::requirement::key;

/// Reason why a pool that launches in reservations alone has no offering.
pub(super) enum ReservationGap {
    /// Its node class selects no reservation.
    NotSelected,
    /// The reservations of the account were not read.
    NotRead,
    /// No reservation matches the selectors of its node class.
    Unmatched {
        /// The selectors, such as `id cr-1`.
        selectors: String,
        /// Field of the selectors, with the node class, its file and line.
        place: String,
    },
    /// Reservations match, but none for its types and zones is open.
    Unusable,
}

impl ReservationGap {
    /// Returns the reason as a clause about the pool.
    pub(super) fn cause(&self) -> String {
        match self {
            Self::NotSelected => {
                "it launches in capacity reservations alone, and its node class selects none"
                    .to_owned()
            }
            Self::NotRead => {
                "no capacity reservation is known, and it launches in reservations alone".to_owned()
            }
            Self::Unmatched { selectors, place } => format!(
                "it launches in capacity reservations alone, and {place} matches none: {selectors}"
            ),
            Self::Unusable => "it launches in capacity reservations alone, and none that its node \
                               class selects exists for its types and zones"
                .to_owned(),
        }
    }

    /// Returns the correction; `None` if the requirements of the pool have to change. `pool` is the
    /// pool with its kind and place.
    pub(super) fn remedy(&self, pool: &str) -> Option<String> {
        match self {
            Self::NotRead => {
                Some(format!("plan with --world live, which reads the reservations of {pool}"))
            }
            Self::Unmatched { place, .. } => {
                Some(format!("correct {place}, or let {pool} use other capacity"))
            }
            Self::NotSelected | Self::Unusable => None,
        }
    }
}

/// Selectors of a node class that match no capacity reservation of the account.
pub struct UnmatchedReservations<'a> {
    /// The node class.
    pub class: &'a NodeClass,
    /// Field of the selectors.
    pub field: &'static str,
    /// The selectors, such as `id cr-1`.
    pub selectors: String,
    /// Pools of the class that may launch in these reservations.
    pub pools: Vec<&'a PoolName>,
}

/// Returns the selectors without a match that cost a pool its reserved capacity. A pool that can
/// launch nothing without them has an explanation of its own.
pub fn unmatched_reservations<'a>(
    desired: &'a Desired,
    observed: &Observed,
) -> Vec<UnmatchedReservations<'a>> {
    if !are_read(observed) {
        return Vec::new();
    }
    let of_class = |class: &'a NodeClass| {
        let unmatched = unmatched_terms(class, observed);
        if unmatched.is_empty() {
            return None;
        }
        let has_match = unmatched.len() < class.reservations.len();
        let is_concerned = |pool: &&Pool| {
            pool.node_class.as_ref() == Some(&class.name)
                && allows(pool, CapacityType::Reserved)
                && (has_match || !is_reserved_only(pool))
        };
        let pools: Vec<&PoolName> =
            desired.pools.values().filter(is_concerned).map(|pool| &pool.name).collect();
        (!pools.is_empty()).then(|| UnmatchedReservations {
            class,
            field: selector_field(class),
            selectors: descriptions(&unmatched),
            pools,
        })
    };
    desired.node_classes.values().filter_map(of_class).collect()
}

/// Returns true if a pool allows reserved capacity alone.
pub(super) fn is_reserved_only(pool: &Pool) -> bool {
    allows(pool, CapacityType::Reserved)
        && !allows(pool, CapacityType::OnDemand)
        && !allows(pool, CapacityType::Spot)
}

/// Returns why a pool that launches in reservations alone has no offering; `None` for other pools.
pub(super) fn reservation_gap(
    pool: &Pool,
    desired: &Desired,
    observed: &Observed,
) -> Option<ReservationGap> {
    if !is_reserved_only(pool) {
        return None;
    }
    let class = desired.class_of(pool).filter(|class| !class.reservations.is_empty());
    let Some(class) = class else { return Some(ReservationGap::NotSelected) };
    if !are_read(observed) {
        return Some(ReservationGap::NotRead);
    }
    let unmatched = unmatched_terms(class, observed);
    if unmatched.len() < class.reservations.len() {
        return Some(ReservationGap::Unusable);
    }
    let (field, kind) = (selector_field(class), class.generation.class_kind());
    Some(ReservationGap::Unmatched {
        selectors: descriptions(&unmatched),
        place: format!("`{field}` of {kind} {} ({})", class.name, class.origin),
    })
}

/// Returns true if `reservation` meets all conditions of `term`.
pub(super) fn selects(term: &ReservationTerm, reservation: &Reservation) -> bool {
    let ReservationTerm { id, tags, owner, targeted } = term;
    let is_targeted = reservation.match_criteria == MatchCriteria::Targeted;
    let tagged = |(key, value): (&String, &String)| {
        reservation.tags.get(key).is_some_and(|held| value == "*" || held == value)
    };
    id.as_ref().is_none_or(|id| id == reservation.id.as_str())
        && owner.as_ref().is_none_or(|owner| *owner == reservation.owner)
        && targeted.is_none_or(|targeted| targeted == is_targeted)
        && tags.iter().all(tagged)
}

fn allows(pool: &Pool, capacity_type: CapacityType) -> bool {
    let requirements = pool_requirements(pool);
    let set = requirements.get(key::CAPACITY_TYPE);
    set.is_none_or(|set| set.contains(Some(&LabelValue::from(capacity_type.as_str()))))
}

/// Returns true if the reservations are known completely. A world without an account may state
/// reservations, but its empty list proves nothing about an account.
fn are_read(observed: &Observed) -> bool {
    observed.has_ec2() && !(observed.cluster.account.is_empty() && observed.reservations.is_empty())
}

/// Returns the selectors of a node class that match no reservation.
fn unmatched_terms<'c>(class: &'c NodeClass, observed: &Observed) -> Vec<&'c ReservationTerm> {
    let is_unmatched =
        |term: &&ReservationTerm| !observed.reservations.values().any(|found| selects(term, found));
    class.reservations.iter().filter(is_unmatched).collect()
}

fn descriptions(terms: &[&ReservationTerm]) -> String {
    let all: Vec<String> = terms.iter().map(|term| term.description()).collect();
    all.join(", or ")
}

/// Returns the field of a node class that selects reservations.
fn selector_field(class: &NodeClass) -> &'static str {
    match class.generation {
        Generation::Eksctl => "capacityReservation",
        Generation::V1alpha5 | Generation::V1beta1 | Generation::V1 => {
            "capacityReservationSelectorTerms"
        }
    }
}
