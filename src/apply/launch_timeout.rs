//! Termination of launched instances that are not used: they are not Ready in time, or the removals
//! that they were launched for did not finish.
//!
//! A registered node may become Ready at any time. It is cordoned first, and the next observation
//! decides. One observation serves all nodes, because it reads the whole cluster.

use super::Run;
use super::drain::NODE_CHANGED;
use super::launch::{Booting, must_be_evicted};
use super::pre_terminate_check::{PodsLeft, termination_blocker};
use super::preconditions::is_launched_by;
use super::receipt::{Outcome, Step};
use crate::apply::ports::{Clock, Cloud, Cluster, CordonOutcome, PortError};
use crate::model::observed::{CordonReason, Node, Observed};

enum TimeoutStep {
    /// The node was cordoned, or never registered.
    Continue,
    /// No effect, for a transient reason.
    Retry(String),
    /// The instance is kept, with the reason.
    Keep(String),
    /// The instance was terminated.
    Terminated,
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Terminates launched instances unless pods use them. `terminated` is the reason in the outcome
    /// of those that were terminated. Returns the instances to retry.
    pub(super) async fn terminate_launched<'w, 'p>(
        &mut self,
        launched: Vec<Booting<'w, 'p>>,
        observation: Option<Observed>,
        terminated: &str,
    ) -> Vec<Booting<'w, 'p>> {
        let mut observation = match observation {
            Some(observation) => Some(observation),
            None => self.observe_with_retries().await,
        };
        let (mut unused, mut retries, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for mut item in launched {
            match self.cordon_overdue(&mut item, observation.as_ref()).await {
                TimeoutStep::Continue => unused.push(item),
                TimeoutStep::Retry(why) => retries.push((item, why)),
                TimeoutStep::Keep(why) => kept.push((item, why)),
                TimeoutStep::Terminated => {}
            }
        }
        // Observe newly cordoned nodes again after the cordon.
        if unused.iter().any(|item| item.cordoned) {
            observation = self.observe_with_retries().await;
        }
        for item in unused {
            match self.terminate_unused(&item, observation.as_ref()).await {
                TimeoutStep::Continue => {}
                TimeoutStep::Retry(why) => retries.push((item, why)),
                TimeoutStep::Keep(why) => kept.push((item, why)),
                TimeoutStep::Terminated => self.finish_abandoned(&item, terminated),
            }
        }
        let (tries, mut waiting) = (self.settings.bounds.tries, Vec::new());
        for (mut item, why) in retries {
            item.tries += 1;
            if item.tries < tries {
                waiting.push(item);
            } else {
                kept.push((item, format!("{why}; the instance was kept")));
            }
        }
        self.keep_instances(kept).await;
        waiting
    }

    /// Cordons the node of an instance, if one is registered.
    async fn cordon_overdue(
        &self,
        item: &mut Booting<'_, '_>,
        observation: Option<&Observed>,
    ) -> TimeoutStep {
        let node = match unused_node(item, observation) {
            Err(why) => return TimeoutStep::Keep(why),
            Ok(node) => node.filter(|node| !node.unschedulable),
        };
        let Some(node) = node else { return TimeoutStep::Continue };
        let mark = CordonReason::Drain.into();
        match self.ports.cluster.cordon(node, mark).await {
            Ok(CordonOutcome::Written) => {
                item.cordoned = true;
                self.emit(Some(item.work.address), Step::Cordoned { node: node.name.clone() });
                TimeoutStep::Continue
            }
            Ok(CordonOutcome::Outdated) => TimeoutStep::Retry(NODE_CHANGED.to_owned()),
            Err(error) => {
                // After a lost reply, the node may be cordoned.
                item.cordoned |= error.is_transient();
                failed(&error)
            }
        }
    }

    /// Terminates a cordoned instance without pods in `observation`.
    async fn terminate_unused(
        &self,
        item: &Booting<'_, '_>,
        observation: Option<&Observed>,
    ) -> TimeoutStep {
        match unused_node(item, observation) {
            Err(why) => TimeoutStep::Keep(why),
            Ok(Some(node)) if !node.unschedulable => {
                TimeoutStep::Retry("its node is not cordoned".to_owned())
            }
            Ok(Some(node)) => {
                match termination_blocker(self.ports.cluster, node, PodsLeft::None).await {
                    Ok(None) => self.terminate(item).await,
                    Ok(Some(why)) => TimeoutStep::Retry(why),
                    Err(error) => failed(&error),
                }
            }
            Ok(None) => self.terminate(item).await,
        }
    }

    async fn terminate(&self, item: &Booting<'_, '_>) -> TimeoutStep {
        match self.ports.cloud.terminate(&item.instance).await {
            Ok(()) => TimeoutStep::Terminated,
            Err(error) => failed(&error),
        }
    }

    /// Keeps instances and uncordons their nodes.
    pub(super) async fn keep_instances(&mut self, kept: Vec<(Booting<'_, '_>, String)>) {
        let cordoned = kept.iter().filter(|(item, _)| item.cordoned);
        let cordoned: Vec<_> =
            cordoned.map(|(item, _)| (item.work.address, &item.instance)).collect();
        let failures = self.uncordon_instances(&cordoned).await;
        for (item, why) in &kept {
            match failures.get(&item.instance) {
                None => self.finish_abandoned(item, why),
                Some(problem) => {
                    self.finish_abandoned(
                        item,
                        &format!("{why}; its node is still cordoned: {problem}"),
                    );
                }
            }
        }
    }

    pub(super) fn finish_abandoned(&self, item: &Booting<'_, '_>, why: &str) {
        let bound = self.settings.bounds.ready;
        let why = if self.now() < item.deadline {
            why.to_owned()
        } else {
            format!("the node was not Ready within {bound:#}; {why}")
        };
        self.finish_launch(item, Outcome::Abandoned { why });
    }
}

/// Returns the step after an error: a transient error is retried, any other keeps the instance.
fn failed(error: &PortError) -> TimeoutStep {
    let why = error.to_string();
    if error.is_transient() { TimeoutStep::Retry(why) } else { TimeoutStep::Keep(why) }
}

/// Returns true if `observed` shows that no pod uses the instance.
pub(super) fn is_unused(item: &Booting<'_, '_>, observed: &Observed) -> bool {
    unused_node(item, Some(observed)).is_ok()
}

/// Returns the registered node of an unused instance, if any.
///
/// # Errors
/// If the instance must be kept, with the reason.
fn unused_node<'o>(
    item: &Booting<'_, '_>,
    observation: Option<&'o Observed>,
) -> Result<Option<&'o Node>, String> {
    let Some(observation) = observation else {
        return Err("the live state cannot be read; the instance was kept".to_owned());
    };
    let Some(instance) = observation.instances.get(&item.instance) else {
        return Err("EC2 does not show the instance".to_owned());
    };
    if !is_launched_by(instance, &item.work.change_id) {
        return Err("it does not carry the tag of its change; it was kept".to_owned());
    }
    // An observation with bound pods but no nodes is inconsistent.
    if observation.nodes.is_empty() && observation.pods.iter().any(|pod| pod.node.is_some()) {
        return Err("Kubernetes shows pods on nodes and no node; the instance was kept".to_owned());
    }
    let node = observation.node_for_instance(&item.instance);
    if node.is_some_and(|node| observation.pods.iter().any(|pod| must_be_evicted(pod, node))) {
        return Err("it runs pods; the instance was kept".to_owned());
    }
    Ok(node)
}
