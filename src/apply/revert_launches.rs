//! Terminates the unused launches of a batch whose removals did not finish.
//!
//! The nodes to remove stay, so their replacements have nothing to do. Invariants:
//! - An instance is terminated only if its node was observed without pods after its cordon, and no
//!   pod waits for a node.
//! - A launch stays if its planned places are needed without the unfinished removals of the batch:
//!   for new pods, which may not exist yet, or for pods of nodes that were removed.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::launch::Booting;
use super::launch_timeout::is_unused;
use super::nomination::waits_for_node;
use super::receipt::{ChangeOutcome, Outcome};
use super::replacement_batches::{Progress, needed_launches};
use super::retirement_state::has_ended;
use super::wave_plan::{RetireWork, WaveWork};
use super::{OpenedBy, Run};
use crate::apply::ports::{Clock, Cloud, Cluster};
use crate::model::ids::Address;
use crate::model::observed::Observed;
use crate::plan::wire::WaveStep;

/// Text of the outcome of a terminated launch.
const REVERTED: &str = "its removals did not finish, so the unused instance was terminated";

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Terminates the unused instances of a batch that were launched for nodes that stay. A
    /// controller decides in its next plan instead.
    ///
    /// A launch does not stay for removals of later batches. Its replacement launches nothing more,
    /// and these removals are skipped, because a launch of their group was terminated.
    pub(super) async fn revert_launches(
        &mut self,
        waves: &[WaveWork<'_>],
        batch: RangeInclusive<usize>,
    ) {
        let batch = &waves[batch];
        if self.settings.opened_by == OpenedBy::Controller || self.settings.is_interrupted() {
            return;
        }
        let mut staying = self.unfinished_removals(batch);
        if staying.is_empty() {
            return;
        }
        let Some(observed) = self.observe_with_retries().await else { return };
        if observed.pods.iter().any(|pod| waits_for_node(pod, &observed) && !pod.is_node_bound()) {
            return;
        }
        staying.retain(|work| !has_ended(work, &observed));
        let mut unused = self.launches_for(batch, &staying);
        unused.retain(|item| is_unused(item, &observed));
        unused = self.without_needed(waves, unused, &observed);
        let taken: BTreeSet<&Address> = unused.iter().map(|item| item.work.address).collect();
        self.outcomes
            .borrow_mut()
            .retain(|change| change.step != WaveStep::Launch || !taken.contains(&change.address));
        let mut observation = Some(observed);
        while !unused.is_empty() {
            unused = self.terminate_launched(unused, observation.take(), REVERTED).await;
            if !unused.is_empty() {
                self.pause().await;
            }
        }
    }

    /// Returns the unused launches of a batch that are not needed without its unfinished removals.
    fn without_needed<'w, 'p>(
        &self,
        waves: &[WaveWork<'_>],
        mut unused: Vec<Booting<'w, 'p>>,
        observed: &Observed,
    ) -> Vec<Booting<'w, 'p>> {
        let outcomes = self.outcomes.borrow();
        let launched = outcomes.iter().filter(|change| {
            let is_launched = change.instance_id.is_some() && change.outcome.is_settled();
            change.step == WaveStep::Launch && is_launched
        });
        let retires = waves.iter().flat_map(WaveWork::retires);
        let removed = retires.filter(|work| has_ended(work, observed));
        let progress = Progress {
            launched: launched.map(|change| &change.address).collect(),
            unused: unused.iter().map(|item| item.work.address).collect(),
            removed: removed.map(|work| work.address).collect(),
        };
        let needed = needed_launches(self.plan, waves, &progress);
        unused.retain(|item| !needed.contains(item.work.address));
        unused
    }

    /// Returns the outcome of a step, if it has ended.
    fn ended(&self, address: &Address, step: WaveStep) -> Option<ChangeOutcome> {
        let outcomes = self.outcomes.borrow();
        outcomes.iter().find(|change| change.step == step && change.address == *address).cloned()
    }

    /// Returns the removals of a batch that did not finish. A drain that the next apply continues
    /// retains the launches of its group.
    fn unfinished_removals<'w, 'p>(&self, batch: &'w [WaveWork<'p>]) -> Vec<&'w RetireWork<'p>> {
        let (mut unfinished, mut continued) = (Vec::new(), BTreeSet::new());
        for wave in batch {
            let WaveWork::Retire(works) = wave else { continue };
            for work in works {
                let ended = self.ended(work.address, WaveStep::Retire);
                match ended.map(|change| change.outcome) {
                    Some(Outcome::Continues { .. }) => continued.extend(work.group),
                    Some(outcome) if !outcome.is_settled() => unfinished.push(work),
                    Some(_) | None => {}
                }
            }
        }
        unfinished.retain(|work| work.group.is_none_or(|group| !continued.contains(group)));
        unfinished
    }

    /// Returns the instances that the plan launched for these removals.
    fn launches_for<'w, 'p>(
        &self,
        batch: &'w [WaveWork<'p>],
        removals: &[&RetireWork<'_>],
    ) -> Vec<Booting<'w, 'p>> {
        let is_for = |address: &Address| {
            let group = self.groups.get(address).copied();
            removals
                .iter()
                .any(|work| work.address == address || work.group.is_some() && work.group == group)
        };
        let deadline = self.deadline(self.settings.bounds.ready);
        let mut launched = Vec::new();
        for wave in batch {
            let WaveWork::Launch(works) = wave else { continue };
            for work in works.iter().filter(|work| work.group.is_none() && is_for(work.address)) {
                let ended = self.ended(work.address, WaveStep::Launch);
                let Some(ChangeOutcome { instance_id: Some(instance), outcome, .. }) = ended else {
                    continue;
                };
                if matches!(outcome, Outcome::Done | Outcome::AlreadyDone) {
                    launched.push(Booting::new(work, instance, Outcome::Done, deadline));
                }
            }
        }
        launched
    }
}
