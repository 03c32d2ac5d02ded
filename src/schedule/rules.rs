//! What is known of the pods that may come: their classes, and the sets of pods that rules count.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::class::Class;
use super::local::Local;
use super::pods::{Anchor, NamespaceLabels, PodSet};
use super::volumes::Catalogue;
use crate::demand::PodShape;
use crate::ids::WorkloadId;
use crate::units::ResourceName;

/// Classes and sets, and who has to hear of a pod.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) namespaces: NamespaceLabels,
    pub(super) classes: Vec<Class>,
    pub(super) class_index: BTreeMap<(Arc<PodShape>, Option<WorkloadId>, bool), usize>,
    pub(super) locals: Vec<Local>,
    local_index: BTreeMap<Local, usize>,
    /// Extended resources.
    pub(super) columns: Vec<ResourceName>,
    pub(super) volumes: Catalogue,
    pub(super) sets: Vec<Listeners>,
    /// The set and the arena of each counter.
    pub(super) counters: Vec<(usize, usize)>,
    set_list: Vec<PodSet>,
    set_index: BTreeMap<PodSet, usize>,
    sets_at: BTreeMap<Anchor, Vec<usize>>,
    classes_at: BTreeMap<Anchor, Vec<usize>>,
}

/// Who wants to hear of the pods of a set.
#[derive(Debug, Clone, Default)]
pub(super) struct Listeners {
    pub(super) tallies: Vec<usize>,
    pub(super) carriers: Vec<usize>,
    pub(super) counters: Vec<usize>,
}

impl Rules {
    pub(super) fn new(namespaces: NamespaceLabels) -> Self {
        Self {
            namespaces,
            classes: Vec::new(),
            class_index: BTreeMap::new(),
            locals: Vec::new(),
            local_index: BTreeMap::new(),
            columns: Vec::new(),
            volumes: Catalogue::default(),
            sets: Vec::new(),
            counters: Vec::new(),
            set_list: Vec::new(),
            set_index: BTreeMap::new(),
            sets_at: BTreeMap::new(),
            classes_at: BTreeMap::new(),
        }
    }

    pub(super) fn local(&mut self, local: Local) -> usize {
        if let Some(index) = self.local_index.get(&local) {
            return *index;
        }
        self.locals.push(local.clone());
        self.local_index.insert(local, self.locals.len() - 1);
        self.locals.len() - 1
    }

    /// Adds a class that no rule knows of yet, and finds the sets that count its pods.
    pub(super) fn add_class(&mut self, class: Class) -> usize {
        let index = self.classes.len();
        let known = (Arc::clone(&class.shape), class.owner.clone(), class.stopping);
        let anchors = Anchor::of_pod(&class.shape, class.owner.as_ref());
        let near = anchors.iter().filter_map(|anchor| self.sets_at.get(anchor)).flatten().copied();
        let counts = |set: &usize| {
            self.set_list[*set].matches(&class.shape, class.owner.as_ref(), &self.namespaces)
        };
        let mut member_of: Vec<usize> = near.filter(counts).collect();
        member_of.sort_unstable();
        for anchor in anchors {
            self.classes_at.entry(anchor).or_default().push(index);
        }
        self.class_index.insert(known, index);
        self.classes.push(Class { member_of, ..class });
        index
    }

    /// Returns a set, and the classes in it if it is new.
    pub(super) fn set(&mut self, set: PodSet) -> (usize, Vec<usize>) {
        if let Some(index) = self.set_index.get(&set) {
            return (*index, Vec::new());
        }
        let index = self.sets.len();
        let anchor = set.anchor();
        let near = self.classes_at.get(&anchor).into_iter().flatten().copied();
        let inside = |class: &usize| {
            let class = &self.classes[*class];
            set.matches(&class.shape, class.owner.as_ref(), &self.namespaces)
        };
        let members: Vec<usize> = near.filter(inside).collect();
        for class in &members {
            self.classes[*class].member_of.push(index);
        }
        self.sets_at.entry(anchor).or_default().push(index);
        self.set_index.insert(set.clone(), index);
        self.set_list.push(set);
        self.sets.push(Listeners::default());
        (index, members)
    }
}
