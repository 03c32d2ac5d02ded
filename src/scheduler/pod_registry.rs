//! Registry of pod classes, and of the pod sets that rules count.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::node_local::NodeLocalFilter;
use super::pod_class::PodClass;
use super::pod_selection::{LookupKey, NamespaceLabels, PodSet};
use super::volumes::VolumeIndex;
use crate::demand::PodShape;
use crate::model::ids::WorkloadId;
use crate::model::units::ResourceName;

/// Pod classes, pod sets, and the counts that depend on each set.
#[derive(Debug, Clone)]
pub(super) struct PodRegistry {
    pub(super) namespaces: NamespaceLabels,
    pub(super) classes: Vec<PodClass>,
    pub(super) class_index: BTreeMap<(Arc<PodShape>, Option<WorkloadId>, bool), usize>,
    pub(super) node_locals: Vec<NodeLocalFilter>,
    node_local_index: BTreeMap<NodeLocalFilter, usize>,
    /// Extended resources.
    pub(super) columns: Vec<ResourceName>,
    pub(super) volumes: VolumeIndex,
    pub(super) sets: Vec<SetSubscribers>,
    /// Set and eligible domains of each spread counter.
    pub(super) spread_counters: Vec<(usize, usize)>,
    set_list: Vec<PodSet>,
    set_index: BTreeMap<PodSet, usize>,
    sets_by_key: BTreeMap<LookupKey, Vec<usize>>,
    classes_by_key: BTreeMap<LookupKey, Vec<usize>>,
}

/// Counts that depend on the pods of a set.
#[derive(Debug, Clone, Default)]
pub(super) struct SetSubscribers {
    pub(super) pod_counts: Vec<usize>,
    pub(super) term_carriers: Vec<usize>,
    pub(super) spread_counters: Vec<usize>,
}

impl PodRegistry {
    pub(super) fn new(namespaces: NamespaceLabels) -> Self {
        Self {
            namespaces,
            classes: Vec::new(),
            class_index: BTreeMap::new(),
            node_locals: Vec::new(),
            node_local_index: BTreeMap::new(),
            columns: Vec::new(),
            volumes: VolumeIndex::default(),
            sets: Vec::new(),
            spread_counters: Vec::new(),
            set_list: Vec::new(),
            set_index: BTreeMap::new(),
            sets_by_key: BTreeMap::new(),
            classes_by_key: BTreeMap::new(),
        }
    }

    pub(super) fn node_local(&mut self, local: NodeLocalFilter) -> usize {
        if let Some(index) = self.node_local_index.get(&local) {
            return *index;
        }
        self.node_locals.push(local.clone());
        self.node_local_index.insert(local, self.node_locals.len() - 1);
        self.node_locals.len() - 1
    }

    /// Adds a new class, and finds the sets that count its pods.
    pub(super) fn add_class(&mut self, class: PodClass) -> usize {
        let index = self.classes.len();
        let known = (Arc::clone(&class.shape), class.owner.clone(), class.stopping);
        let anchors = LookupKey::all_of_pod(&class.shape, class.owner.as_ref());
        let near =
            anchors.iter().filter_map(|anchor| self.sets_by_key.get(anchor)).flatten().copied();
        let counts = |set: &usize| {
            self.set_list[*set].matches(&class.shape, class.owner.as_ref(), &self.namespaces)
        };
        let mut member_of: Vec<usize> = near.filter(counts).collect();
        member_of.sort_unstable();
        for anchor in anchors {
            self.classes_by_key.entry(anchor).or_default().push(index);
        }
        self.class_index.insert(known, index);
        self.classes.push(PodClass { member_of, ..class });
        index
    }

    /// Returns the index of a set, and its classes if it is new.
    pub(super) fn set(&mut self, set: PodSet) -> (usize, Vec<usize>) {
        if let Some(index) = self.set_index.get(&set) {
            return (*index, Vec::new());
        }
        let index = self.sets.len();
        let anchor = set.lookup_key();
        let near = self.classes_by_key.get(&anchor).into_iter().flatten().copied();
        let inside = |class: &usize| {
            let class = &self.classes[*class];
            set.matches(&class.shape, class.owner.as_ref(), &self.namespaces)
        };
        let members: Vec<usize> = near.filter(inside).collect();
        for class in &members {
            self.classes[*class].member_of.push(index);
        }
        self.sets_by_key.entry(anchor).or_default().push(index);
        self.set_index.insert(set.clone(), index);
        self.set_list.push(set);
        self.sets.push(SetSubscribers::default());
        (index, members)
    }
}
