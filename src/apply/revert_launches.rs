//! Terminates the unused launches of a batch whose removals did not finish.
//!
//! The nodes to remove stay, so their replacements have nothing to do. Invariant: an instance is
//! terminated only if its node was observed without pods after its cordon, and no pod is pending.

use std::collections::BTreeSet;

use super::launch::Booting;
use super::launch_timeout::is_unused;
use super::nomination::is_pending;
use super::receipt::Outcome;
use super::wave_plan::WaveWork;
use super::{OpenedBy, Run};
use crate::apply::ports::{Clock, Cloud, Cluster};
use crate::model::ids::Address;
use crate::plan::wire::WaveStep;

/// Text of the outcome of a terminated launch.
const REVERTED: &str = "its removals did not finish, so the unused instance was terminated";

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Terminates the unused instances of a batch that were launched for nodes that stay. A
    /// controller decides in its next plan instead.
    pub(super) async fn revert_launches(&mut self, batch: &[WaveWork<'_>]) {
        if self.settings.opened_by == OpenedBy::Controller || self.settings.is_interrupted() {
            return;
        }
        let mut unused = self.launches_of_staying(batch);
        if unused.is_empty() {
            return;
        }
        let Some(observed) = self.observe_with_retries().await else { return };
        if observed.pods.iter().any(|pod| is_pending(pod) && !pod.is_node_bound()) {
            return;
        }
        unused.retain(|item| is_unused(item, &observed));
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

    /// Returns the instances that the plan launched in the groups of the removals that did not finish.
    /// A drain that the next apply continues retains its replacements.
    fn launches_of_staying<'w, 'p>(&self, batch: &'w [WaveWork<'p>]) -> Vec<Booting<'w, 'p>> {
        let outcomes = self.outcomes.borrow();
        let outcome_of = |address: &Address, step: WaveStep| {
            outcomes.iter().find(|change| change.step == step && change.address == *address)
        };
        let (mut staying, mut groups) = (BTreeSet::new(), BTreeSet::new());
        let (mut launches, mut continued) = (Vec::new(), BTreeSet::new());
        for wave in batch {
            match wave {
                WaveWork::Launch(works) => launches.extend(works),
                WaveWork::Retire(works) => {
                    for work in works {
                        let outcome = outcome_of(work.address, WaveStep::Retire);
                        let outcome = outcome.map(|change| &change.outcome);
                        if matches!(outcome, Some(Outcome::Continues { .. })) {
                            continued.extend(work.group);
                        } else if outcome.is_some_and(|outcome| !outcome.is_settled()) {
                            staying.insert(work.address);
                            groups.extend(work.group);
                        }
                    }
                }
            }
        }
        let is_for_staying = |address: &Address| {
            let group = self.groups.get(address);
            staying.contains(address)
                || group.is_some_and(|group| groups.contains(group) && !continued.contains(group))
        };
        let deadline = self.deadline(self.settings.bounds.ready);
        let candidates = launches
            .into_iter()
            .filter(|work| work.group.is_none() && is_for_staying(work.address));
        candidates
            .filter_map(|work| {
                let launched = outcome_of(work.address, WaveStep::Launch)?;
                let is_there = matches!(launched.outcome, Outcome::Done | Outcome::AlreadyDone);
                let instance = launched.instance_id.clone().filter(|_| is_there)?;
                Some(Booting::new(work, instance, Outcome::Done, deadline))
            })
            .collect()
    }
}
