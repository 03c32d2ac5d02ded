//! How many nominated pods end up on their nodes.

use std::collections::BTreeMap;

use super::counters::{Counter, Counters};
use crate::apply::AcceptedNominations;
use crate::apply::ports::PortError;
use crate::model::ids::{NodeName, Uid};
use crate::model::observed::{Observed, Pod};

impl AcceptedNominations {
    /// Counts how many nominated pods were bound to their nominated node.
    pub(super) fn record_bindings(&mut self, world: &Observed, counters: &mut Counters) {
        if self.0.is_empty() {
            return;
        }
        let pods: BTreeMap<&Uid, &Pod> = world.pods.iter().map(|pod| (&pod.uid, &**pod)).collect();
        self.0.retain(|uid, nominated| {
            let counter = match pods.get(uid).map(|pod| &pod.node) {
                Some(None) => return true,
                Some(Some(node)) if node == nominated => Counter::NominationsHonored,
                Some(Some(_)) | None => Counter::NominationsDropped,
            };
            counters.count(counter);
            false
        });
    }

    /// Records the answer to a nomination.
    pub(super) fn record_answer(
        &mut self,
        pod: Uid,
        node: NodeName,
        answer: &Result<(), PortError>,
        counters: &mut Counters,
    ) {
        counters.count(Counter::NominationsMade);
        if answer.is_ok() {
            self.0.insert(pod, node);
        } else {
            // kube-scheduler places the pod like any other.
            counters.count_error("kubernetes");
            counters.count(Counter::NominationsRefused);
        }
    }
}

#[cfg(test)]
mod tests;
