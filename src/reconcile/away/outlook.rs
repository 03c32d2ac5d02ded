//! What the plan of everything has for pods of machines that go.
//!
//! It is made as if those machines were gone. A launch of it that somebody's word or a safeguard holds back may come at
//! any time, or never; so nobody makes pods leave for it. What passes by itself is no such reason.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleet::Pod;
use crate::ids::WorkloadId;
use crate::plan::wire::Action;
use crate::reconcile::state::Current;
use crate::reconcile::status::{Held, HeldBy};

/// What becomes of pods that look for another place.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    /// Whether there is no plan yet: nobody knows what is held back.
    pub(super) is_unknown: bool,
    /// Whether the plan needs nothing more, and all that was launched is there.
    pub(super) replaced: bool,
    /// What holds the machines back that pods of a workload are to come to.
    held: BTreeMap<WorkloadId, HeldBy>,
    /// Workloads of which pods have no place at all.
    unplaced: BTreeSet<WorkloadId>,
}

impl Outlook {
    pub(super) fn of(current: Option<&Current>, replaced: bool) -> Self {
        let Some(Current { plan, held, .. }) = current else {
            return Self { is_unknown: true, ..Self::default() };
        };
        let comes = plan.resource_changes.iter().filter_map(|row| {
            let why = held.get(&row.address).filter(|held| stays(&held.why))?;
            row.change.actions.contains(&Action::Create).then_some((&row.address, why))
        });
        let comes: BTreeMap<_, _> = comes.collect();
        let placed = plan.capacity.placements.iter().filter_map(|row| {
            comes.get(&row.address).map(|why| (row.workload.clone(), (*why).clone()))
        });
        let held = if comes.is_empty() { BTreeMap::new() } else { placed.collect() };
        let unplaced = plan.capacity.unschedulable.iter().map(|row| row.workload.clone()).collect();
        Self { is_unknown: false, replaced, held, unplaced }
    }

    /// Returns what holds back what `pods` are to come to, where something does.
    pub(super) fn holds(&self, pods: &[&Pod]) -> Option<&HeldBy> {
        pods.iter().find_map(|pod| self.held.get(pod.owner.as_ref()?))
    }

    /// Returns whether all of `pods` have another place.
    pub(super) fn is_replaced(&self, pods: &[&Pod]) -> bool {
        let unplaced =
            |pod: &&Pod| pod.owner.as_ref().is_some_and(|owner| self.unplaced.contains(owner));
        self.replaced && !pods.iter().any(unplaced)
    }

    /// Returns whether nothing is held back.
    pub(super) fn is_open(&self) -> bool {
        self.held.is_empty()
    }
}

/// Returns whether what holds a launch back stays until somebody or something else ends it. What is about removals that
/// it goes together with is no word on the launch, and may itself wait until machines that go are gone.
fn stays(held: &Held) -> bool {
    match held {
        Held::NotLeader
        | Held::Mode { .. }
        | Held::Suspended { .. }
        | Held::NotApplyable { .. }
        | Held::Window { .. }
        | Held::NotApproved { .. }
        | Held::Breaker { .. }
        | Held::LaunchBudget { most: 0, .. }
        | Held::Quarantined { .. } => true,
        Held::NotConfirmed { .. }
        | Held::LaunchBudget { .. }
        | Held::RemovalBudget { .. }
        | Held::MassUnready { .. }
        | Held::Settling { .. }
        | Held::Resting { .. }
        | Held::Together { .. }
        | Held::BackingOff { .. }
        | Held::Unheard { .. }
        | Held::UnderWay => false,
    }
}
