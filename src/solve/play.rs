//! Planned nodes on a stage, and the model of the scheduler playing one run after another on it.

use std::collections::BTreeMap;

use super::abreast::{Wanted, until_failure};
use super::early::is_early;
use super::layout::Layout;
use super::offer::{Offer, admits_daemon};
use super::rehearse::{Placements, Stage};
use super::runs::{Coming, Events, Leaving, Run, spreads};
use super::target::Place;
use crate::ids::NodeName;
use crate::requirement::{key, label};
use crate::schedule::{ClassIndex, NodeIndex, ScheduleNode, Scheduler};

/// Pods after which a run looks whether it is still wanted.
const LOOK_EVERY: usize = 64;

/// What setting up a node, and seating a pod that stays, come to in pods times nodes tried.
const NODE_WORK: u64 = 300;
const SEAT_WORK: u64 = 30;

/// A scheduler, and the classes of groups and of daemons in it.
pub(super) type Blank = (Scheduler, Vec<ClassIndex>, Vec<ClassIndex>);

/// What one run came to: where pods went, and how many of each group found no place.
pub(super) struct Performance {
    /// Group and node of each pod that came.
    pub went: Vec<(usize, NodeIndex)>,
    /// Pods by group that found no place.
    pub left: BTreeMap<usize, u32>,
}

/// Nodes on stage, before the pending pods come.
pub(super) struct Scene {
    pub scheduler: Scheduler,
    /// The class of each group.
    pub classes: Vec<ClassIndex>,
    /// The class of each daemon.
    pub daemons: Vec<ClassIndex>,
    /// The nodes, by their number.
    nodes: Vec<ScheduleNode>,
    /// What each node is, by its number.
    places: Vec<Place>,
    /// The offer of each new node.
    offers: Vec<usize>,
    pub staying: Placements,
    /// Pods on nodes that go.
    pub leaving: Leaving,
}

/// Which pods come to the stage.
#[derive(Clone, Copy)]
pub(super) struct Cast<'a> {
    /// Pods by group that stay away.
    pub unplaced: &'a BTreeMap<usize, u32>,
    /// The nodes that pods of each group are nominated to, where they are.
    pub guided: Option<&'a Guided>,
}

/// For each group, nodes that its pods are nominated to, one after the other, and to how many.
pub(super) type Guided = BTreeMap<usize, Vec<(NodeIndex, u32)>>;

impl Scene {
    /// Returns the nodes that pods are nominated to who are to come to these places.
    pub(super) fn guided(&self, placements: &Placements) -> Guided {
        let number: BTreeMap<&Place, NodeIndex> =
            self.places.iter().zip(self.scheduler.nodes()).collect();
        let of_group = |(group, places): (&usize, &BTreeMap<Place, u32>)| {
            let stays = self.staying.get(group);
            let comes = |(place, count): (&Place, &u32)| {
                let stay = stays.and_then(|on| on.get(place)).copied().unwrap_or(0);
                (number[place], count.saturating_sub(stay))
            };
            (*group, places.iter().map(comes).filter(|(_, count)| *count > 0).collect())
        };
        placements.iter().map(of_group).collect()
    }

    /// Returns how many nodes there are.
    pub(super) fn nodes(&self) -> usize {
        self.places.len()
    }

    /// Returns the nodes, what they are, and the offer of each new one.
    pub(super) fn cast(&self) -> impl Iterator<Item = (&ScheduleNode, &Place, Option<usize>)> {
        self.nodes.iter().zip(&self.places).map(|(node, place)| match place {
            Place::Launch(index) => (node, place, self.offers.get(*index).copied()),
            Place::Node(_) => (node, place, None),
        })
    }

    /// Binds the pods that stay where they run.
    pub(super) fn seat(&self, scheduler: &mut Scheduler) {
        seat(scheduler, &self.classes, &self.staying);
    }

    /// Returns where the pods are after a run, those that stay among them.
    pub(super) fn placements(&self, performance: &Performance) -> Placements {
        let mut went = performance.went.clone();
        went.sort_unstable();
        let mut placements = self.staying.clone();
        for alike in went.chunk_by(|a, b| a == b) {
            let (group, node) = alike[0];
            let count = u32::try_from(alike.len()).unwrap_or(u32::MAX);
            let place = self.places[node.number()].clone();
            *placements.entry(group).or_default().entry(place).or_insert(0) += count;
        }
        placements
    }

    /// Returns what happens while the pods come.
    fn events_of(&self, offers: &[Offer]) -> Events {
        let stands = self.offers.len() < self.nodes.len();
        Events { drained: !self.leaving.is_empty(), early: is_early(stands, &self.offers, offers) }
    }
}

/// Binds pods to the nodes that they stay on.
fn seat(scheduler: &mut Scheduler, classes: &[ClassIndex], staying: &Placements) {
    for (group, places) in staying {
        for (place, count) in places {
            let Place::Node(name) = place else { continue };
            let node = scheduler.node(name).expect("every kept node is on stage");
            (0..*count).for_each(|_| scheduler.bind(classes[*group], node));
        }
    }
}

/// The pods that come, by group, and where they are nominated to.
struct Pods<'a> {
    pending: &'a [u32],
    guided: Option<&'a Guided>,
}

/// Takes the next node that a pod is nominated to.
fn next(nodes: &mut Vec<(NodeIndex, u32)>) -> Option<NodeIndex> {
    let (node, count) = nodes.last_mut()?;
    let next = *node;
    *count -= 1;
    if *count == 0 {
        nodes.pop();
    }
    Some(next)
}

impl Stage<'_> {
    /// Returns what happens on a scene while the pods come.
    pub(super) fn events(&self, scene: &Scene) -> Events {
        if self.eventful { scene.events_of(self.offers) } else { Events::NONE }
    }

    /// Returns where the packing of a layout has the pods of each group.
    pub(super) fn guided(&self, layout: &Layout, scene: &Scene) -> Guided {
        let unplaced = self.unplaced(layout, &scene.staying);
        scene.guided(&self.places_of(layout, &unplaced))
    }

    /// Plays the runs up to the first that leaves pods over, which is the last then.
    pub(super) fn play_all(&self, scene: &Scene, runs: &[Run], cast: Cast) -> Vec<Performance> {
        let pending = self.pending(scene, cast.unplaced);
        let one = |index: usize, wanted: &Wanted| {
            let pods = Pods { pending: &pending, guided: cast.guided };
            self.play(scene, runs[index], &pods, &|| wanted.is_wanted())
        };
        let played = until_failure((runs.len(), self.workers), one, |run| !run.left.is_empty());
        let pods: u64 = pending.iter().map(|count| u64::from(*count)).sum();
        let tries = pods.saturating_mul(u64::try_from(scene.nodes()).unwrap_or(u64::MAX));
        self.count_work(tries.saturating_mul(u64::try_from(played.len()).unwrap_or(u64::MAX)));
        played
    }

    /// Plays one run.
    pub(super) fn play_one(&self, scene: &Scene, run: Run, cast: Cast) -> Performance {
        let mut played = self.play_all(scene, &[run], cast);
        played.pop().expect("one run was played")
    }

    /// The pods by group that come to the stage.
    fn pending(&self, scene: &Scene, unplaced: &BTreeMap<usize, u32>) -> Vec<u32> {
        let groups = self.groups.iter().enumerate();
        let pending = groups.map(|(index, group)| {
            if !group.shape.unsupported.is_empty() {
                return 0;
            }
            let staying: u32 =
                scene.staying.get(&index).into_iter().flat_map(BTreeMap::values).sum();
            let without = unplaced.get(&index).copied().unwrap_or(0);
            group.counts.planned.saturating_sub(staying + without)
        });
        pending.collect()
    }

    fn play(
        &self,
        scene: &Scene,
        run: Run,
        pods: &Pods,
        is_wanted: &dyn Fn() -> bool,
    ) -> Performance {
        if run.is_early() && pods.guided.is_none() {
            return self.play_early(scene, run, pods.pending);
        }
        if run.is_drained() && pods.guided.is_none() {
            return self.play_drained(scene, run, pods.pending);
        }
        let scheduler = scene.scheduler.clone();
        let mut scheduler = run.rules_of(scheduler);
        let coming = Coming { pending: pods.pending, leaving: &scene.leaving };
        let queue = run.queue(self.groups, &coming);
        let mut guided = pods.guided.cloned().unwrap_or_default();
        let (mut went, mut left) = (Vec::with_capacity(queue.len()), BTreeMap::new());
        for pods in queue.chunks(LOOK_EVERY) {
            if !is_wanted() {
                return Performance { went, left };
            }
            for group in pods.iter().copied() {
                let nominated = guided.get_mut(&group).and_then(next);
                match scheduler.try_schedule(scene.classes[group], nominated) {
                    Some(node) => went.push((group, node)),
                    None => *left.entry(group).or_insert(0) += 1,
                }
            }
        }
        let mut performance = Performance { went, left };
        self.retry(scene, &mut scheduler, &mut performance);
        performance
    }

    /// Tries pods that found no place again as long as that helps: a pod that came after them may
    /// be what they waited for, as the scheduler does when one is bound.
    fn retry(&self, scene: &Scene, scheduler: &mut Scheduler, performance: &mut Performance) {
        let waits = |group: &usize| {
            let shape = &self.groups[*group].shape;
            !shape.affinity.required.is_empty() || !shape.spread.is_empty()
        };
        let Performance { went, left } = performance;
        loop {
            let waiting: Vec<usize> = left.keys().copied().filter(waits).collect();
            let mut helped = false;
            for group in waiting {
                while let Some(count) = left.get_mut(&group) {
                    let node = scheduler.try_schedule(scene.classes[group], None);
                    let Some(node) = node else { break };
                    went.push((group, node));
                    helped = true;
                    *count -= 1;
                    if *count == 0 {
                        left.remove(&group);
                    }
                }
            }
            if !helped {
                return;
            }
        }
    }

    /// Returns a scheduler for so many nodes that knows the classes of all groups and daemons.
    pub(super) fn blank(&self, nodes: usize) -> &Blank {
        if spreads(self.groups.len(), nodes) {
            self.spreading.get_or_init(|| self.make_blank(true))
        } else {
            self.plain.get_or_init(|| self.make_blank(false))
        }
    }

    fn make_blank(&self, spreads: bool) -> Blank {
        let mut scheduler = Scheduler::new(Vec::new(), self.namespaces, 0);
        // Default spreading is by owner: without one there is none.
        let mut class =
            |shape, workload| scheduler.class(shape, Some(workload).filter(|_| spreads));
        let groups = self.groups.iter().map(|g| class(&g.shape, &g.workload)).collect();
        let daemons = self.daemons.iter().map(|d| class(&d.shape, &d.workload)).collect();
        (scheduler, groups, daemons)
    }

    /// Sets the scene: nodes, what DaemonSets put on them, and the pods that stay where they run.
    pub(super) fn scene(&self, layout: &Layout, offers: &[usize]) -> Scene {
        let (mut nodes, mut places) = (Vec::new(), Vec::new());
        for (node, _) in self.ground.standing.iter().zip(&layout.kept).filter(|(_, kept)| **kept) {
            let daemons = super::offer::daemon_requests(self.daemons, &node.labels, &node.taints);
            nodes.push(ScheduleNode {
                name: node.name.clone(),
                labels: node.labels.clone(),
                taints: node.taints.clone(),
                allocatable: node.room.plus(&daemons),
                unschedulable: !node.schedulable,
            });
            places.push(Place::Node(node.name.clone()));
        }
        for (index, offer) in offers.iter().enumerate() {
            nodes.push(self.new_node(*offer, index));
            places.push(Place::Launch(index));
        }
        let (mut scheduler, classes, daemons) = self.blank(nodes.len()).clone();
        let indices = scheduler.add_nodes(nodes.iter().cloned());
        for (node, index) in nodes.iter().zip(&indices) {
            self.bind_daemons(&mut scheduler, &daemons, (node, *index));
        }
        let staying = self.staying(layout);
        let seated: u64 = staying.values().flat_map(BTreeMap::values).map(|n| u64::from(*n)).sum();
        let nodes_set = u64::try_from(nodes.len()).unwrap_or(u64::MAX);
        self.count_set_up(nodes_set.saturating_mul(NODE_WORK) + seated.saturating_mul(SEAT_WORK));
        let leaving = self.leaving(layout);
        let offers = offers.to_vec();
        seat(&mut scheduler, &classes, &staying);
        Scene { scheduler, classes, daemons, nodes, places, offers, staying, leaving }
    }

    /// Returns the node that a launch becomes.
    pub(super) fn new_node(&self, offer: usize, index: usize) -> ScheduleNode {
        let offer = &self.offers[offer];
        let node = &offer.node;
        let name = format!("launch/{index}");
        let mut labels = node.labels.clone();
        labels.extend([label(key::HOSTNAME, &name)]);
        ScheduleNode {
            name: name.as_str().into(),
            labels,
            taints: node.taints.clone(),
            // The room knows what the node attaches as well, and what others must hold for it.
            allocatable: offer.planned(),
            unschedulable: false,
        }
    }

    /// Binds the pods that DaemonSets put on a node.
    pub(super) fn bind_daemons(
        &self,
        scheduler: &mut Scheduler,
        classes: &[ClassIndex],
        (node, index): (&ScheduleNode, NodeIndex),
    ) {
        for (daemon, class) in self.daemons.iter().zip(classes) {
            if admits_daemon(daemon, &node.labels, &node.taints) {
                scheduler.bind(*class, index);
            }
        }
    }

    /// Returns for each group the standing nodes that run pods of it, with how many.
    fn running(&self) -> &[Vec<(usize, u32)>] {
        self.running.get_or_init(|| {
            let standing = self.ground.standing.iter().enumerate();
            let by_name: BTreeMap<&NodeName, usize> =
                standing.map(|(index, node)| (&node.name, index)).collect();
            let on = |(name, count): (&NodeName, &u32)| Some((*by_name.get(name)?, *count));
            self.groups.iter().map(|group| group.running.iter().filter_map(on).collect()).collect()
        })
    }

    /// Returns the nodes that go, with the pods that run there.
    fn leaving(&self, layout: &Layout) -> Leaving {
        let mut leaving: BTreeMap<usize, Vec<(usize, u32)>> = BTreeMap::new();
        for (group, runs_on) in self.running().iter().enumerate() {
            for (node, count) in runs_on {
                if !layout.kept[*node] && !self.ground.standing[*node].is_new {
                    leaving.entry(*node).or_default().push((group, *count));
                }
            }
        }
        leaving.into_iter().collect()
    }

    /// Returns the pods that stay where they run, by group: those that the layout keeps there.
    pub(super) fn staying(&self, layout: &Layout) -> Placements {
        let nodes = (0..layout.kept.len()).filter(|node| layout.kept[*node]);
        let mut rank = vec![usize::MAX; layout.kept.len()];
        for (at, node) in self.ground.in_fill_order(nodes).into_iter().enumerate() {
            rank[node] = at;
        }
        let mut seats = layout.staying.clone();
        let mut staying = Placements::new();
        for (index, (group, runs_on)) in self.groups.iter().zip(self.running()).enumerate() {
            let mut wanted = group.counts.planned;
            let mut nodes: Vec<&(usize, u32)> =
                runs_on.iter().filter(|(node, _)| rank[*node] < usize::MAX).collect();
            nodes.sort_unstable_by_key(|(node, _)| rank[*node]);
            for (node, running) in nodes {
                let (name, labels) = {
                    let node = &self.ground.standing[*node];
                    (&node.name, &node.labels)
                };
                let mut count = (*running).min(wanted);
                if let Some(class) = self.ground.model.class_of(index, labels) {
                    // Pods of no class stay unconditionally: nothing is known about their rules.
                    let seats = seats[*node].entry(class).or_insert(0);
                    count = count.min(*seats);
                    *seats -= count;
                }
                wanted -= count;
                if count > 0 {
                    staying.entry(index).or_default().insert(Place::Node(name.clone()), count);
                }
            }
        }
        staying
    }
}
