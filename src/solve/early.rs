//! The run in which pods come while nodes come up: nobody waits for the last one.
//!
//! kube-scheduler tries pods on what is there, so that those that come first fill the nodes that
//! stand, and nodes without startup taints fill before those that have some. Knows the order in
//! which nodes come to be usable, and nothing of how long that takes.

use std::collections::BTreeMap;

use super::offer::Offer;
use super::play::{Performance, Scene};
use super::rehearse::Stage;
use super::runs::{Coming, Run};
use super::target::Place;
use crate::schedule::{NodeIndex, Scheduler};

/// Returns whether some nodes of a fleet are usable before others: those that stand before new
/// ones, and those without startup taints before those with some.
pub(super) fn is_early(stands: bool, launched: &[usize], offers: &[Offer]) -> bool {
    let mut new = launched.iter().map(|offer| starts_tainted(&offers[*offer]));
    let Some(first) = new.next() else { return false };
    stands || new.any(|other| other != first)
}

fn starts_tainted(offer: &Offer) -> bool {
    !offer.node.startup_taints.is_empty()
}

impl Stage<'_> {
    /// Plays the run of pods that come before the new nodes do; what stands takes what it can,
    /// whatever else is planned for it.
    pub(super) fn play_early(&self, scene: &Scene, run: Run, pending: &[u32]) -> Performance {
        let (blank, _, _) = self.blank(scene.nodes());
        let mut scheduler = run.rules_of(blank.clone());
        let is_new = |place: &Place| matches!(place, Place::Launch(_));
        self.bring(&mut scheduler, scene, |place| !is_new(place));
        scene.seat(&mut scheduler);
        let coming = Coming { pending, leaving: &scene.leaving };
        let queue = run.queue(self.groups, &coming);
        let mut went = Vec::with_capacity(queue.len());
        let queue = place(&mut scheduler, scene, queue, &mut went);
        let starting = self.bring(&mut scheduler, scene, is_new);
        let queue = place(&mut scheduler, scene, queue, &mut went);
        for node in starting {
            scheduler.set_unschedulable(node, false);
        }
        let mut left = BTreeMap::new();
        for group in place(&mut scheduler, scene, queue, &mut went) {
            *left.entry(group).or_insert(0) += 1;
        }
        Performance { went, left }
    }

    /// Adds the nodes of some places with what DaemonSets put on them, and returns those that have
    /// startup taints: they are there, and pods may not use them yet.
    fn bring(
        &self,
        scheduler: &mut Scheduler,
        scene: &Scene,
        which: impl Fn(&Place) -> bool,
    ) -> Vec<NodeIndex> {
        let coming: Vec<_> = scene.cast().filter(|(_, place, _)| which(place)).collect();
        let indices = scheduler.add_nodes(coming.iter().map(|(node, ..)| (*node).clone()));
        let mut starting = Vec::new();
        for ((node, _, offer), index) in coming.into_iter().zip(indices) {
            self.bind_daemons(scheduler, &scene.daemons, (node, index));
            if offer.is_some_and(|offer| starts_tainted(&self.offers[offer])) {
                scheduler.set_unschedulable(index, true);
                starting.push(index);
            }
        }
        starting
    }
}

/// Places what finds a place, tried again as long as that helps, and returns who waits.
pub(super) fn place(
    scheduler: &mut Scheduler,
    scene: &Scene,
    mut queue: Vec<usize>,
    went: &mut Vec<(usize, NodeIndex)>,
) -> Vec<usize> {
    loop {
        let before = queue.len();
        queue.retain(|group| {
            let Some(node) = scheduler.try_schedule(scene.classes[*group], None) else {
                return true;
            };
            // The scene numbers its nodes in an order of its own; others come after them.
            let known = scene.scheduler.node(scheduler.name(node));
            went.push((*group, known.unwrap_or(node)));
            false
        });
        if queue.len() == before {
            return queue;
        }
    }
}
