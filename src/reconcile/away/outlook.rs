//! What the last plan has for pods of machines that go.
//!
//! It is made as if those machines were gone. A launch of it that somebody's word or a safeguard holds back may come at
//! any time, or never; so nobody makes pods leave for it. What passes by itself is no such reason. Of a machine that the
//! plan counts with, since it was made before that was known to go, it tells nothing.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::course::Awaits;
use crate::fleet::Pod;
use crate::ids::{Address, InstanceId, WorkloadId};
use crate::plan::Plan;
use crate::plan::wire::Action;
use crate::reconcile::status::{Held, HeldBy};

/// What becomes of pods that look for another place.
#[derive(Debug, Clone, Default)]
pub(in crate::reconcile) struct Outlook {
    /// Machines without which the plan was made.
    without: BTreeSet<InstanceId>,
    /// What holds the machines back that pods of a workload are to come to.
    held: BTreeMap<WorkloadId, HeldBy>,
    /// Workloads of which pods have no place at all.
    unplaced: BTreeSet<WorkloadId>,
}

impl Outlook {
    /// Returns what `plan` has for them, of which so much is held back, made as if those machines were gone.
    pub(in crate::reconcile) fn of(
        plan: &Plan,
        held: &BTreeMap<Address, HeldBy>,
        without: BTreeSet<InstanceId>,
    ) -> Self {
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
        Self { without, held, unplaced }
    }

    /// Returns what a machine with `pods` on it waits for as of `now`.
    pub(super) fn awaits(&self, machine: &InstanceId, pods: &[&Pod], now: Timestamp) -> Awaits {
        match self.knows(machine) {
            false => Awaits::Plan { since: now },
            true if self.holds(pods).is_some() => Awaits::Word,
            true => Awaits::Launches { since: now },
        }
    }

    /// Returns whether the plan was made as if a machine were gone.
    fn knows(&self, machine: &InstanceId) -> bool {
        self.without.contains(machine)
    }

    /// Returns what holds back what `pods` are to come to, where something does.
    pub(super) fn holds(&self, pods: &[&Pod]) -> Option<&HeldBy> {
        pods.iter().find_map(|pod| self.held.get(pod.owner.as_ref()?))
    }

    /// Returns whether the plan has another place for all of `pods` of a machine.
    pub(super) fn places(&self, machine: &InstanceId, pods: &[&Pod]) -> bool {
        let unplaced =
            |pod: &&Pod| pod.owner.as_ref().is_some_and(|owner| self.unplaced.contains(owner));
        self.knows(machine) && !pods.iter().any(unplaced)
    }

    /// Returns whether nothing is held back.
    pub(in crate::reconcile) fn is_open(&self) -> bool {
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
