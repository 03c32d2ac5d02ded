//! Takes back the launches of an exchange whose removals did not start.
//!
//! The instances to remove stay, so their replacements have nothing to do. Invariant: an instance is
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

/// Text of the outcome of a launch that was taken back.
const REVERTED: &str = "its removals did not start, so it was terminated again";

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Terminates the unused instances that this apply launched in exchange for the nodes that stay.
    /// A controller decides in its next plan instead.
    pub(super) async fn revert_launches(&mut self, waves: &[WaveWork<'_>]) {
        if self.settings.opened_by == OpenedBy::Controller || self.settings.is_interrupted() {
            return;
        }
        let Some(observed) = self.observe_with_retries().await else { return };
        if observed.pods.iter().any(|pod| is_pending(pod) && !pod.is_node_bound()) {
            return;
        }
        let mut unused = self.launches_of_removals(waves);
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

    /// Returns the instances that this apply launched in the groups of its removals.
    fn launches_of_removals<'w, 'p>(&self, waves: &'w [WaveWork<'p>]) -> Vec<Booting<'w, 'p>> {
        let mut removed: BTreeSet<&Address> = BTreeSet::new();
        let mut groups: BTreeSet<&str> = BTreeSet::new();
        let mut launches = Vec::new();
        for wave in waves {
            match wave {
                WaveWork::Launch(works) => launches.extend(works),
                WaveWork::Retire(works) => {
                    removed.extend(works.iter().map(|work| work.address));
                    groups.extend(works.iter().filter_map(|work| work.group));
                }
            }
        }
        let outcomes = self.outcomes.borrow();
        let launched = |address: &Address| {
            let mut done = outcomes.iter().filter(|change| {
                change.step == WaveStep::Launch
                    && change.address == *address
                    && change.outcome == Outcome::Done
            });
            done.next().and_then(|change| change.instance_id.clone())
        };
        let is_exchanged = |address: &Address| {
            removed.contains(address)
                || self.groups.get(address).is_some_and(|group| groups.contains(group))
        };
        let deadline = self.deadline(self.settings.bounds.ready);
        let exchanged =
            launches.into_iter().filter(|work| work.group.is_none() && is_exchanged(work.address));
        exchanged
            .filter_map(|work| {
                let instance = launched(work.address)?;
                Some(Booting::new(work, instance, Outcome::Done, deadline))
            })
            .collect()
    }
}
