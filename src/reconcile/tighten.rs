//! What a plan is limited to that is made again without what is held back.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::event::Limits;
use super::kept::later;
use super::status::Held;
use super::work::retired;
use crate::ids::{Address, NodeName};
use crate::plan::Plan;
use crate::plan::wire::ResourceChange;

/// What is over by then is waited for.
const SOON: SignedDuration = SignedDuration::from_mins(1);

/// Returns the limits under which a plan leaves out what is held back; `None` where they are as tight
/// already.
pub(super) fn tightened(
    plan: &Plan,
    limits: &Limits,
    held: &[(Address, Held)],
    now: Timestamp,
) -> Option<Limits> {
    let rows: BTreeMap<&Address, &ResourceChange> =
        plan.resource_changes.iter().map(|row| (&row.address, row)).collect();
    let for_good: BTreeSet<&Address> =
        held.iter().filter(|(_, held)| lasts(held, now)).map(|(address, _)| address).collect();
    let held: BTreeSet<&Address> = held.iter().map(|(address, _)| address).collect();
    let stands =
        |address: &Address| rows.get(address).is_some_and(|row| row.change.before.is_some());
    let mut next = limits.clone();
    // Of what stands, what may go now is all that may change: a plan without the rest would look for
    // others to go in its place.
    if held.iter().any(|address| stands(address)) {
        let free = retired(plan).filter(|row| !held.contains(&row.address));
        let free: BTreeSet<NodeName> = free.filter_map(node).collect();
        next.only = Some(match &limits.only {
            Some(only) => free.intersection(only).cloned().collect(),
            None => free,
        });
    }
    let replaces = replaces(plan, &for_good);
    let coming = held.into_iter().filter(|address| !stands(address) && !replaces.contains(address));
    next.exclude.extend(coming.cloned());
    next.exclude.sort();
    next.exclude.dedup();
    (next != *limits).then_some(next)
}

/// Returns the rows of exchanges of which a row is held back for good. What comes in the place of something that stays does
/// not come; whatever else would come at the same address is for pods that wait, and nothing holds that back.
fn replaces<'p>(plan: &'p Plan, for_good: &BTreeSet<&Address>) -> BTreeSet<&'p Address> {
    let explained = plan.capacity.explain.iter();
    let groups: BTreeMap<&Address, &str> =
        explained.filter_map(|row| Some((&row.address, row.group.as_deref()?))).collect();
    let stay: BTreeSet<&str> = for_good.iter().filter_map(|of| groups.get(of).copied()).collect();
    groups
        .into_iter()
        .filter(|(_, group)| stay.contains(group))
        .map(|(address, _)| address)
        .collect()
}

/// Returns whether a removal may be held back for as long as nobody says otherwise, or for hours: what passes soon by itself
/// is waited for, so that nothing is launched which it would spare.
fn lasts(held: &Held, now: Timestamp) -> bool {
    match held {
        Held::Mode { .. }
        | Held::NotConfirmed { .. }
        | Held::Breaker { .. }
        | Held::MassUnready { .. }
        | Held::RemovalBudget { .. } => true,
        Held::Settling { until } | Held::Resting { until } | Held::BackingOff { until } => {
            *until > later(now, SOON)
        }
        Held::NotLeader
        | Held::Suspended { .. }
        | Held::NotApplyable { .. }
        | Held::Window { .. }
        | Held::NotApproved { .. }
        | Held::LaunchBudget { .. }
        | Held::Quarantined { .. }
        | Held::Together { .. }
        | Held::Unheard { .. }
        | Held::UnderWay => false,
    }
}

/// Returns the node of a row, by the name it stands under: the machine's while no node has joined.
fn node(row: &ResourceChange) -> Option<NodeName> {
    let before = row.change.before.as_ref()?;
    let of_instance = || before.instance_id.as_ref().map(|id| NodeName::from(id.as_str()));
    before.node.clone().or_else(of_instance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_that_waits_for_hours_keeps_no_pod_waiting_and_one_that_waits_for_a_minute_may() {
        let now: Timestamp = "2026-11-01T10:00:00Z".parse().expect("a moment");
        for (minutes, expected) in [(0, false), (1, false), (2, true), (600, true)] {
            let until = later(now, SignedDuration::from_mins(minutes));
            let waits =
                [Held::Settling { until }, Held::Resting { until }, Held::BackingOff { until }];
            for held in waits {
                assert_eq!(lasts(&held, now), expected, "{held:?}");
            }
        }
        assert!(lasts(&Held::MassUnready { unready: 3, nodes: 4 }, now));
        assert!(!lasts(&Held::UnderWay, now));
    }
}
