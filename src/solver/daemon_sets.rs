//! Room that the pods of DaemonSets take, on existing and on new nodes.
//!
//! Running pods keep their place. kube-scheduler evicts them for the pod of a DaemonSet only if
//! that pod has a higher priority and preempts. Any other pod of a DaemonSet that finds no room
//! beside them stays Pending. A repository, or one pod in the cluster, may name a DaemonSet of any
//! size. It must not make running pods look unplaced.

use std::collections::BTreeMap;

use super::existing_node::{ExistingNode, ExistingNodeBuilder};
use super::offer::{Offer, Offers, PoolOffers, admits, admits_daemon, runs_daemon};
use crate::demand::{Daemon, PodGroup};
use crate::model::ids::{NodeName, workload_key};
use crate::model::observed::Node;
use crate::model::pod::Taint;
use crate::model::units::Resources;

/// Running pods of one workload on a node, without those that the workload may lose.
pub(super) struct RunningHere<'a> {
    group: &'a PodGroup,
    pods: u32,
}

/// Returns the running pods of each node that stay planned, wherever a shrinking workload loses
/// its surplus pods.
pub(super) fn running_by_node(groups: &[PodGroup]) -> BTreeMap<&NodeName, Vec<RunningHere<'_>>> {
    let mut by_node: BTreeMap<&NodeName, Vec<RunningHere<'_>>> = BTreeMap::new();
    for group in groups {
        let surplus = group.active().saturating_sub(group.counts.planned);
        for (node, pods) in &group.running {
            let pods = pods.saturating_sub(surplus);
            if pods > 0 {
                by_node.entry(node).or_default().push(RunningHere { group, pods });
            }
        }
    }
    by_node
}

impl ExistingNodeBuilder<'_> {
    /// Returns whether a pod runs on the node with devices that the node does not report: it claims
    /// them, and the `ResourceSlice` objects of the node are not served or not complete.
    pub(super) fn runs_unreported_devices(&self, node: &Node) -> bool {
        let reported = &node.allocatable.extended;
        let mut running = self.running.get(&node.name).into_iter().flatten();
        running.any(|RunningHere { group, .. }| {
            group.shape.requests.extended.keys().any(|name| !reported.contains_key(name))
        })
    }

    /// Returns the resources of a node for other pods than those of DaemonSets and static pods: at
    /// least the requests of its running pods, unless DaemonSet pods of a higher priority evict
    /// them, or they exceed the node by themselves.
    pub(super) fn room_beside_daemons(
        &self,
        node: &Node,
        taints: &[Taint],
        usable: &Resources,
    ) -> Resources {
        let fixed = self.static_pods.get(&node.name);
        let beside_static =
            fixed.map_or_else(|| usable.clone(), |fixed| usable.minus(&fixed.requests));
        let daemons = self.input.demand.daemons.iter();
        let daemons: Vec<&Daemon> = daemons
            .filter(|daemon| runs_daemon(daemon, &node.labels, taints, &node.allocatable))
            .collect();
        let room = daemons
            .iter()
            .fold(beside_static.clone(), |room, daemon| room.minus(&daemon.shape.requests));
        // Pods that the node no longer admits, or that may clash with a host port, do not stay.
        let stays = |here: &&RunningHere| {
            let shape = &here.group.shape;
            shape.host_ports.is_empty() && admits(shape, &node.labels, taints)
        };
        let running = self.running.get(&node.name).into_iter().flatten().filter(stays);
        let (mut requested, mut lowest) = (Resources::default(), i32::MAX);
        for RunningHere { group, pods } in running {
            requested = requested.plus(&group.shape.requests.times(i64::from(*pods)));
            lowest = lowest.min(group.shape.priority);
        }
        if requested.fits(&room) {
            return room;
        }
        let held = |daemon: &Daemon| {
            let bound = fixed.and_then(|fixed| fixed.daemons.get(&daemon.workload));
            let bound = bound.cloned().unwrap_or_default();
            let evicts = daemon.shape.preempts && daemon.shape.priority > lowest;
            if evicts { bound.at_least(&daemon.shape.requests) } else { bound }
        };
        let beside_held =
            daemons.iter().fold(beside_static, |room, daemon| room.minus(&held(daemon)));
        if requested.fits(&beside_held) { room.at_least(&requested) } else { room }
    }
}

/// Excludes the types of a pool that are too small for one of its DaemonSets, as Karpenter does. A
/// DaemonSet that fits on none of its types excludes none: its pods stay Pending on each of them.
pub(super) fn exclude_small_types(stock: &mut PoolOffers, daemons: &[Daemon]) {
    let PoolOffers { offers, withheld, unpriced, .. } = stock;
    let mut all: Vec<&mut Offer> = offers
        .iter_mut()
        .chain(withheld.iter_mut().map(|(offer, _)| offer))
        .chain(unpriced.iter_mut())
        .collect();
    for daemon in daemons {
        if !all.iter().any(|offer| runs(daemon, offer)) {
            continue;
        }
        for offer in &mut all {
            if is_too_small(daemon, offer) {
                offer.room = Resources::default();
            }
        }
    }
}

fn runs(daemon: &Daemon, offer: &Offer) -> bool {
    runs_daemon(daemon, &offer.node.labels, &offer.node.taints, &offer.node.allocatable)
}

fn is_too_small(daemon: &Daemon, offer: &Offer) -> bool {
    !daemon.shape.requests.fits(&offer.node.allocatable)
        && admits_daemon(daemon, &offer.node.labels, &offer.node.taints)
}

/// Returns a message for each DaemonSet that requests more than any node that admits it has.
pub(super) fn oversized_messages(
    daemons: &[Daemon],
    offers: &Offers,
    existing: &[ExistingNode],
) -> Vec<String> {
    let message = |daemon: &Daemon| {
        let fixed = offers.static_pools.values().flatten();
        let withheld = offers.withheld.iter().map(|(offer, _)| offer);
        let all = offers.list.iter().chain(fixed).chain(withheld).chain(&offers.unpriced);
        let offered = all.map(|o| (&o.node.labels, &o.node.taints, &o.node.allocatable));
        let nodes = existing.iter().map(|n| (&n.labels, &n.taints, &n.allocatable));
        let mut lacking: Option<Vec<String>> = None;
        for (labels, taints, allocatable) in offered.chain(nodes) {
            if !admits_daemon(daemon, labels, taints) {
                continue;
            }
            let short = daemon.shape.requests.exceeding(allocatable);
            if short.is_empty() {
                return None;
            }
            lacking = Some(match lacking {
                Some(lacking) => lacking.into_iter().filter(|name| short.contains(name)).collect(),
                None => short,
            });
        }
        let lacking = lacking?;
        let resources =
            if lacking.is_empty() { "resources".to_owned() } else { lacking.join(", ") };
        Some(format!(
            "{} requests more {resources} than any node that admits it has: its pods stay Pending, \
             and no node is planned or removed for them",
            workload_key(&daemon.workload)
        ))
    };
    daemons.iter().filter_map(message).collect()
}
