//! Cordons that are taken back: those of this apply, and those of one before it that died.

use std::collections::{BTreeMap, BTreeSet};

use super::Run;
use super::drain::CHANGED;
use super::receipt::Step;
use super::wave_work::WaveWork;
use crate::apply::ports::{Clock, Cloud, Cluster, CordonOutcome};
use crate::model::ids::{Address, InstanceId};
use crate::model::observed::{CordonReason, Node};
use crate::plan::{StaleCordon, stale_cordons};

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Uncordons the nodes of machines that this apply had cordoned and leaves as they were; one whose machine goes by
    /// itself is left to the loop. Returns those of which it could not, each with the reason.
    pub(super) async fn uncordon_instances(
        &self,
        cordoned: &[(&Address, &InstanceId)],
    ) -> BTreeMap<InstanceId, String> {
        let unread = || "the node could not be read".to_owned();
        let mut left: BTreeMap<&InstanceId, (&Address, String)> =
            cordoned.iter().map(|(address, id)| (*id, (*address, unread()))).collect();
        for attempt in 0..self.settings.bounds.tries {
            if left.is_empty() {
                break;
            }
            if attempt > 0 {
                for (address, problem) in left.values().filter(|(_, problem)| problem != CHANGED) {
                    self.emit(Some(address), Step::Retrying { why: problem.clone() });
                }
                self.pause().await;
            }
            let seen = self.observe().await;
            for (id, (address, _)) in std::mem::take(&mut left) {
                // Of several nodes of one machine another may be taken for its node by now.
                let of_it = |node: &&Node| node.instance.as_ref() == Some(id);
                let nodes: Vec<&Node> = seen.nodes.values().filter(of_it).collect();
                if nodes.is_empty() && !seen.is_complete() {
                    left.insert(id, (address, unread()));
                }
                for node in nodes {
                    if let Err(problem) = self.uncordon_drained(address, node).await {
                        left.insert(id, (address, problem));
                    }
                }
            }
        }
        left.into_iter().map(|(id, (_, problem))| (id.clone(), problem)).collect()
    }

    /// Uncordons a node that is cordoned for a drain of an apply.
    async fn uncordon_drained(&self, address: &Address, node: &Node) -> Result<(), String> {
        if node.cordon_reason() != Some(CordonReason::Drain) {
            return Ok(());
        }
        match self.ports.cluster.cordon(node, None).await {
            Ok(CordonOutcome::Written) => {
                if node.unschedulable {
                    let step = Step::Uncordoned { node: node.name.clone() };
                    self.emit(Some(address), step);
                }
                Ok(())
            }
            Ok(CordonOutcome::Outdated) => Err(CHANGED.to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Takes back the cordons of drains that ended with the apply that had begun them, of nodes that do not go now, and
    /// takes our mark off those that somebody else has uncordoned. What fails stays for the next apply: nothing waits
    /// for it.
    pub(super) async fn uncordon_stale(&mut self, waves: &[WaveWork<'_>]) {
        if !self.settings.is_exclusive {
            return;
        }
        let goes: BTreeSet<InstanceId> =
            waves.iter().flat_map(|wave| self.going(wave)).cloned().collect();
        for _ in 0..self.settings.bounds.tries {
            let Some(seen) = self.seen.take() else { return };
            let (mut tried, mut outdated) = (false, false);
            let stale = stale_cordons(self.plan, &seen, &goes);
            for cordon in stale.iter().filter(|cordon| cordon.can_uncordon_in_apply()) {
                if self.settings.is_interrupted() {
                    break;
                }
                tried = true;
                outdated |= self.uncordon(cordon).await == Some(CordonOutcome::Outdated);
            }
            // Once something was written, or may have been where no answer came, it no longer shows what is there.
            self.seen = Some(seen).filter(|_| !tried);
            if !outdated {
                return;
            }
            self.seen = self.observe_with_retries().await;
        }
    }

    async fn uncordon(&self, cordon: &StaleCordon<'_>) -> Option<CordonOutcome> {
        let StaleCordon { node, .. } = cordon;
        match self.ports.cluster.cordon(node, None).await {
            Ok(outcome) => {
                if outcome == CordonOutcome::Written && node.unschedulable {
                    self.emit(None, Step::Uncordoned { node: node.name.clone() });
                }
                Some(outcome)
            }
            Err(error) => {
                let why =
                    format!("the mark of a drain that is over stays on {}: {error}", node.name);
                self.emit(None, Step::Blocked { why });
                None
            }
        }
    }

    /// Returns the machines that a wave ends.
    fn going<'w>(&'w self, wave: &'w WaveWork<'_>) -> impl Iterator<Item = &'w InstanceId> {
        let retires = match wave {
            WaveWork::Launch(_) => &[][..],
            WaveWork::Retire(retires) => retires,
        };
        let needed = |address| !self.dropped.contains_key(address);
        retires.iter().filter(move |work| needed(work.address)).map(|work| work.instance)
    }
}
