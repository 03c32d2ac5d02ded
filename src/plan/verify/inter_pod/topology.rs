//! Topology keys, their domains, and the domain of each node.

use std::collections::BTreeMap;

use crate::model::ids::{LabelKey, LabelValue};
use crate::model::requirement::key;
use crate::plan::verify::end_state::{EndNode, EndState};

/// The topologies of all keys in use, created on first use.
pub(super) struct Topologies<'a> {
    state: &'a EndState<'a>,
    index: BTreeMap<&'a LabelKey, usize>,
    known: Vec<Topology<'a>>,
}

/// The domains of one topology key.
struct Topology<'a> {
    key: &'a LabelKey,
    /// Label value of each domain.
    names: Vec<&'a str>,
    /// Domain of each node; `None` if the node lacks the label.
    domain_of_node: Vec<Option<usize>>,
}

impl<'a> Topologies<'a> {
    pub(super) fn new(state: &'a EndState<'a>) -> Self {
        Self { state, index: BTreeMap::new(), known: Vec::new() }
    }

    /// Returns the index of the topology of `key`.
    pub(super) fn get(&mut self, key: &'a LabelKey) -> usize {
        let next = self.known.len();
        let index = *self.index.entry(key).or_insert(next);
        if index == next {
            self.known.push(Topology::new(key, &self.state.nodes));
        }
        index
    }

    /// Returns the domain of a node.
    pub(super) fn domain(&self, topology: usize, end_node: usize) -> Option<usize> {
        self.known[topology].domain_of_node[end_node]
    }

    pub(super) fn key(&self, topology: usize) -> &'a LabelKey {
        self.known[topology].key
    }

    /// Returns key and value of a domain as text.
    pub(super) fn describe(&self, topology: usize, domain: usize) -> String {
        let Topology { key, names, .. } = &self.known[topology];
        format!("{key} {}", names[domain])
    }
}

impl<'a> Topology<'a> {
    fn new(key: &'a LabelKey, end_nodes: &'a [EndNode<'a>]) -> Self {
        let (mut domains, mut names) = (BTreeMap::new(), Vec::new());
        let mut domain = |name: &'a str| {
            *domains.entry(name).or_insert_with(|| {
                names.push(name);
                names.len() - 1
            })
        };
        let domain_of_node =
            end_nodes.iter().map(|end_node| value(key, end_node).map(&mut domain)).collect();
        Self { key, names, domain_of_node }
    }
}

/// Returns the value of `key` on a node.
///
/// Every node has a unique host name. For a new node without a host name, the address of its row is
/// used, unless its properties are unknown.
fn value<'a>(key: &LabelKey, end_node: &'a EndNode<'a>) -> Option<&'a str> {
    let stated = end_node.after.labels.get(key).map(LabelValue::as_str);
    let nameless = end_node.name.is_none() && !end_node.unknown && key.as_str() == key::HOSTNAME;
    stated.or_else(|| nameless.then(|| end_node.row.address.as_str()))
}
