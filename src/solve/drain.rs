//! The run of a drain: pods come while the nodes that they leave still stand.
//!
//! A node that goes is cordoned, its pods are evicted, and those that take their place look for one
//! at once: the old node counts as a domain still, and affinity still sees the pods that are
//! stopping. What finds no place then is tried again once the nodes are gone. Knows what stands
//! during a drain; not how long one takes, nor what holds it up.

use std::collections::BTreeMap;

use super::early::place;
use super::play::{Performance, Scene};
use super::rehearse::Stage;
use super::runs::{Coming, Run};
use crate::schedule::{NodeIndex, ScheduleNode, Scheduler};

impl Stage<'_> {
    /// Plays the run of pods that come by eviction, after those that ran nowhere.
    pub(super) fn play_drained(&self, scene: &Scene, run: Run, pending: &[u32]) -> Performance {
        let mut scheduler = run.rules_of(scene.scheduler.clone());
        let leaving = self.stop(&mut scheduler, scene);
        let coming = Coming { pending, leaving: &scene.leaving };
        let queue = run.queue(self.groups, &coming);
        let mut went = Vec::with_capacity(queue.len());
        let mut waiting = place(&mut scheduler, scene, queue, &mut went);
        // Who tolerates every taint may have gone to a node that goes, and has to leave it again.
        let stays = |node: NodeIndex| node.number() < scene.nodes();
        waiting.extend(went.iter().filter(|(_, node)| !stays(*node)).map(|(group, _)| *group));
        went.retain(|(_, node)| stays(*node));
        for node in leaving {
            scheduler.remove_node(node);
        }
        let mut left = BTreeMap::new();
        for group in place(&mut scheduler, scene, waiting, &mut went) {
            *left.entry(group).or_insert(0) += 1;
        }
        Performance { went, left }
    }

    /// Adds the nodes that go, cordoned, with the pods that stop on them.
    fn stop(&self, scheduler: &mut Scheduler, scene: &Scene) -> Vec<NodeIndex> {
        let standing = self.ground.standing;
        let node = |index: usize| ScheduleNode {
            name: standing[index].name.clone(),
            labels: standing[index].labels.clone(),
            taints: standing[index].taints.clone(),
            allocatable: standing[index].allocatable.clone(),
            unschedulable: true,
        };
        let nodes: Vec<ScheduleNode> = scene.leaving.iter().map(|(i, _)| node(*i)).collect();
        let indices = scheduler.add_nodes(nodes);
        for ((_, pods), index) in scene.leaving.iter().zip(&indices) {
            for (group, count) in pods {
                let class = scheduler.class_that_stops(scene.classes[*group]);
                (0..*count).for_each(|_| scheduler.bind(class, *index));
            }
        }
        indices
    }
}
