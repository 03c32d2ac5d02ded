//! Nodes that an earlier apply left cordoned, and that this one keeps.

use std::collections::BTreeSet;

use super::Run;
use super::receipt::Step;
use super::work::WaveWork;
use crate::fleet::{CordonedFor, Node, Observed};
use crate::ids::InstanceId;
use crate::port::{Clock, Cloud, Cluster};

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Uncordons the nodes that an apply cordoned which died in their drain, unless they go now: an apply takes back
    /// the cordons of its own drains, and of those before it. Nothing waits for it: what fails stays for the next one.
    pub(super) async fn reopen(&self, waves: &[WaveWork<'_>], observed: &Observed) {
        if !self.settings.alone {
            return;
        }
        let goes: BTreeSet<&InstanceId> = waves.iter().flat_map(|wave| self.going(wave)).collect();
        for node in observed.nodes.values().filter(|node| is_left(node, observed, &goes)) {
            let end = self.ports.cluster.cordon(&node.name, &node.uid, None).await;
            self.say(
                None,
                match end {
                    Ok(()) => Step::Uncordoned { node: node.name.clone() },
                    Err(error) => {
                        Step::Blocked { why: format!("{} stays cordoned: {error}", node.name) }
                    }
                },
            );
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

fn is_left(node: &Node, observed: &Observed, goes: &BTreeSet<&InstanceId>) -> bool {
    let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
    node.unschedulable
        && node.cordoned_for() == Some(CordonedFor::Drain)
        && instance.is_some_and(|instance| {
            let ours = instance.is_ours(&observed.cluster.name) || instance.group.is_some();
            ours && instance.is_active() && !goes.contains(&instance.id)
        })
}
