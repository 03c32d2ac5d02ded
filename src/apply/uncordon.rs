//! Reverts cordons of this apply, and of an earlier apply that crashed.

use std::collections::{BTreeMap, BTreeSet};

use super::Run;
use super::drain::NODE_CHANGED;
use super::receipt::Step;
use super::wave_plan::WaveWork;
use crate::apply::ports::{Clock, Cloud, Cluster, CordonOutcome};
use crate::model::ids::{Address, InstanceId};
use crate::model::observed::{CordonReason, Node};
use crate::plan::{StaleCordon, stale_cordons};

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Uncordons the nodes of instances that this apply cordoned and keeps. Nodes with an
    /// interruption cordon are left to the controller. Returns the instances with failures, each
    /// with the reason.
    pub(super) async fn uncordon_instances(
        &self,
        cordoned: &[(&Address, &InstanceId)],
    ) -> BTreeMap<InstanceId, String> {
        let unread_error = || "the node could not be read".to_owned();
        let mut failures: BTreeMap<&InstanceId, (&Address, String)> =
            cordoned.iter().map(|(address, id)| (*id, (*address, unread_error()))).collect();
        for attempt in 0..self.settings.bounds.tries {
            if failures.is_empty() {
                break;
            }
            if attempt > 0 {
                for (address, problem) in
                    failures.values().filter(|(_, problem)| problem != NODE_CHANGED)
                {
                    self.emit(Some(address), Step::Retrying { why: problem.clone() });
                }
                self.pause().await;
            }
            let observation = self.observe().await;
            for (id, (address, _)) in std::mem::take(&mut failures) {
                // An instance may have several nodes, and the preferred one may have changed.
                let is_its_node = |node: &&Node| node.instance.as_ref() == Some(id);
                let nodes: Vec<&Node> = observation.nodes.values().filter(is_its_node).collect();
                if nodes.is_empty() && !observation.is_complete() {
                    failures.insert(id, (address, unread_error()));
                }
                for node in nodes {
                    if let Err(problem) = self.uncordon_drained(address, node).await {
                        failures.insert(id, (address, problem));
                    }
                }
            }
        }
        failures.into_iter().map(|(id, (_, problem))| (id.clone(), problem)).collect()
    }

    /// Uncordons a node that an apply cordoned for a drain.
    async fn uncordon_drained(&self, address: &Address, node: &Node) -> Result<(), String> {
        if node.cordon_reason() != Some(CordonReason::Drain) {
            return Ok(());
        }
        match self.ports.cluster.uncordon(node).await {
            Ok(CordonOutcome::Written) => {
                if node.unschedulable {
                    let step = Step::Uncordoned { node: node.name.clone() };
                    self.emit(Some(address), step);
                }
                Ok(())
            }
            Ok(CordonOutcome::Outdated) => Err(NODE_CHANGED.to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Reverts the drain cordons of an apply that has ended, for nodes that this plan keeps. It
    /// also removes the annotation from nodes that another client uncordoned. A failure is left to
    /// the next apply.
    pub(super) async fn uncordon_stale(&mut self, waves: &[WaveWork<'_>]) {
        if !self.settings.is_exclusive {
            return;
        }
        let retiring: BTreeSet<InstanceId> =
            waves.iter().flat_map(|wave| self.retired_instances(wave)).cloned().collect();
        for _ in 0..self.settings.bounds.tries {
            let Some(observation) = self.observation.take() else { return };
            let (mut has_written, mut is_outdated) = (false, false);
            let stale = stale_cordons(self.plan, &observation, &retiring);
            for cordon in stale.iter().filter(|cordon| cordon.can_uncordon_in_apply()) {
                if self.settings.is_interrupted() {
                    break;
                }
                has_written = true;
                is_outdated |= self.uncordon(cordon).await == Some(CordonOutcome::Outdated);
            }
            // After a write, or a lost reply, the observation is outdated.
            self.observation = Some(observation).filter(|_| !has_written);
            if !is_outdated {
                return;
            }
            self.observation = self.observe_with_retries().await;
        }
    }

    async fn uncordon(&self, cordon: &StaleCordon<'_>) -> Option<CordonOutcome> {
        let StaleCordon { node, .. } = cordon;
        match self.ports.cluster.uncordon(node).await {
            Ok(outcome) => {
                if outcome == CordonOutcome::Written && node.unschedulable {
                    self.emit(None, Step::Uncordoned { node: node.name.clone() });
                }
                Some(outcome)
            }
            Err(error) => {
                let why = format!("cannot remove the stale cordon of {}: {error}", node.name);
                self.emit(None, Step::NodeWriteFailed { why });
                None
            }
        }
    }

    /// Returns the instances that a wave terminates.
    fn retired_instances<'w>(
        &'w self,
        wave: &'w WaveWork<'_>,
    ) -> impl Iterator<Item = &'w InstanceId> {
        let retires = match wave {
            WaveWork::Launch(_) => &[][..],
            WaveWork::Retire(retires) => retires,
        };
        let is_needed = |address| !self.exceptions.dropped.contains_key(address);
        retires.iter().filter(move |work| is_needed(work.address)).map(|work| work.instance)
    }
}
