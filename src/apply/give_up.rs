//! Machines that are not Ready in time: each is ended, unless somebody may be using it.
//!
//! A node that joined may become Ready at any moment. So no pod may come to it before the look by which it is judged,
//! and that look is one for all of them: each reads the whole world.

use super::Run;
use super::guard::carries;
use super::launch::{Booting, is_movable};
use super::receipt::{Outcome, Step};
use super::rest::in_the_way;
use super::retire::CHANGED;
use crate::fleet::{CordonedFor, Node, Observed};
use crate::port::{Clock, Cloud, Cluster, CordonOutcome, PortError};

/// What came of an attempt to end a machine.
enum Attempt {
    /// It goes on: it was cordoned, or no node of it ever joined.
    On,
    /// Nothing yet, for a reason that may pass.
    Again(String),
    /// It is left as it was, and why.
    Leave(String),
    /// It was told to end.
    Ended,
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Gives up machines that `seen` shows not to be Ready in time; returns those that are to be tried again.
    pub(super) async fn give_up<'w, 'p>(
        &mut self,
        overdue: Vec<Booting<'w, 'p>>,
        seen: Option<Observed>,
    ) -> Vec<Booting<'w, 'p>> {
        let mut seen = match seen {
            Some(seen) => Some(seen),
            None => self.look_again().await,
        };
        let (mut going, mut again, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for mut item in overdue {
            match self.keep_pods_from(&mut item, seen.as_ref()).await {
                Attempt::On => going.push(item),
                Attempt::Again(why) => again.push((item, why)),
                Attempt::Leave(why) => left.push((item, why)),
                Attempt::Ended => {}
            }
        }
        // Whoever was cordoned just now is judged by what is seen after that.
        if going.iter().any(|item| item.cordoned) {
            seen = self.look_again().await;
        }
        for item in going {
            match self.end_unused(&item, seen.as_ref()).await {
                Attempt::On => {}
                Attempt::Again(why) => again.push((item, why)),
                Attempt::Leave(why) => left.push((item, why)),
                Attempt::Ended => self.given_up(&item, "it was terminated"),
            }
        }
        let (tries, mut waiting) = (self.settings.bounds.tries, Vec::new());
        for (mut item, why) in again {
            item.tries += 1;
            if item.tries < tries {
                waiting.push(item);
            } else {
                left.push((item, format!("{why}; it was left")));
            }
        }
        self.leave(left).await;
        waiting
    }

    /// Has no pod come to the node of a machine any more, where one has joined.
    async fn keep_pods_from(&self, item: &mut Booting<'_, '_>, seen: Option<&Observed>) -> Attempt {
        let node = match unused(item, seen) {
            Err(why) => return Attempt::Leave(why),
            Ok(node) => node.filter(|node| !node.unschedulable),
        };
        let Some(node) = node else { return Attempt::On };
        match self.ports.cluster.cordon(node, Some(CordonedFor::Drain)).await {
            Ok(CordonOutcome::Written) => {
                item.cordoned = true;
                self.say(Some(item.work.address), Step::Cordoned { node: node.name.clone() });
                Attempt::On
            }
            Ok(CordonOutcome::Outdated) => Attempt::Again(CHANGED.to_owned()),
            Err(error) => {
                // Of one that is lost nobody knows whether it was done.
                item.cordoned |= error.is_transient();
                failed(&error)
            }
        }
    }

    /// Ends a machine to which no pod comes and on which, as `seen` shows, none is.
    async fn end_unused(&self, item: &Booting<'_, '_>, seen: Option<&Observed>) -> Attempt {
        match unused(item, seen) {
            Err(why) => Attempt::Leave(why),
            Ok(Some(node)) if !node.unschedulable => {
                Attempt::Again("pods may come to its node".to_owned())
            }
            Ok(Some(node)) => match in_the_way(self.ports.cluster, node).await {
                Ok(None) => self.end(item).await,
                Ok(Some(why)) => Attempt::Again(why),
                Err(error) => failed(&error),
            },
            Ok(None) => self.end(item).await,
        }
    }

    async fn end(&self, item: &Booting<'_, '_>) -> Attempt {
        match self.ports.cloud.terminate(&item.instance).await {
            Ok(()) => Attempt::Ended,
            Err(error) => failed(&error),
        }
    }

    /// Leaves machines as they were, with their nodes uncordoned.
    pub(super) async fn leave(&mut self, left: Vec<(Booting<'_, '_>, String)>) {
        let cordoned = left.iter().filter(|(item, _)| item.cordoned);
        let cordoned: Vec<_> =
            cordoned.map(|(item, _)| (item.work.address, &item.instance)).collect();
        let still = self.take_back(&cordoned).await;
        for (item, why) in &left {
            match still.get(&item.instance) {
                None => self.given_up(item, why),
                Some(problem) => {
                    self.given_up(item, &format!("{why}; its node is still cordoned: {problem}"));
                }
            }
        }
    }

    pub(super) fn given_up(&self, item: &Booting<'_, '_>, why: &str) {
        let bound = self.settings.bounds.ready;
        let why = if self.now() < item.deadline {
            why.to_owned()
        } else {
            format!("the node was not Ready within {bound:#}; {why}")
        };
        self.booted(item, Outcome::GivenUp { why });
    }
}

/// Decides what a failed call means: a reason that may pass has it tried again.
fn failed(error: &PortError) -> Attempt {
    let why = error.to_string();
    if error.is_transient() { Attempt::Again(why) } else { Attempt::Leave(why) }
}

/// Returns the node of a machine that nobody uses, where one has joined.
///
/// # Errors
/// With the reason to leave it, where there is one.
fn unused<'o>(
    item: &Booting<'_, '_>,
    seen: Option<&'o Observed>,
) -> Result<Option<&'o Node>, String> {
    let Some(seen) = seen else {
        return Err("the live state cannot be read, and it was left".to_owned());
    };
    let Some(instance) = seen.instances.get(&item.instance) else {
        return Err("EC2 does not show the instance".to_owned());
    };
    if !carries(instance, &item.work.change_id) {
        return Err("it does not carry the tag of its change, and was left".to_owned());
    }
    // A look that shows no node at all, and pods on some, shows nothing of any.
    if seen.nodes.is_empty() && seen.pods.iter().any(|pod| pod.node.is_some()) {
        return Err("Kubernetes shows pods on nodes and no node, and it was left".to_owned());
    }
    let node = seen.node_of(&item.instance);
    if node.is_some_and(|node| seen.pods.iter().any(|pod| is_movable(pod, node))) {
        return Err("it holds pods and was left".to_owned());
    }
    Ok(node)
}
