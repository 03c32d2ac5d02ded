//! Topology keys, their domains, and which site is in which of them.

use std::collections::BTreeMap;

use crate::ids::{LabelKey, LabelValue};
use crate::plan::check::state::{EndState, Site};
use crate::requirement::key;

/// The topologies asked for so far.
pub(super) struct Topologies<'a> {
    state: &'a EndState<'a>,
    index: BTreeMap<&'a LabelKey, usize>,
    known: Vec<Topology<'a>>,
}

/// The domains of one key.
struct Topology<'a> {
    key: &'a LabelKey,
    /// What each domain is called.
    names: Vec<&'a str>,
    /// The domain of each site; `None` where it lacks the label.
    of_site: Vec<Option<usize>>,
}

impl<'a> Topologies<'a> {
    pub(super) fn of(state: &'a EndState<'a>) -> Self {
        Self { state, index: BTreeMap::new(), known: Vec::new() }
    }

    /// Returns the topology of `key`.
    pub(super) fn get(&mut self, key: &'a LabelKey) -> usize {
        let next = self.known.len();
        let index = *self.index.entry(key).or_insert(next);
        if index == next {
            self.known.push(Topology::new(key, &self.state.sites));
        }
        index
    }

    /// Returns the domain that `site` is in.
    pub(super) fn domain(&self, topology: usize, site: usize) -> Option<usize> {
        self.known[topology].of_site[site]
    }

    pub(super) fn key(&self, topology: usize) -> &'a LabelKey {
        self.known[topology].key
    }

    /// Returns the domain in words: key and value.
    pub(super) fn describe(&self, topology: usize, domain: usize) -> String {
        let Topology { key, names, .. } = &self.known[topology];
        format!("{key} {}", names[domain])
    }
}

impl<'a> Topology<'a> {
    fn new(key: &'a LabelKey, sites: &'a [Site<'a>]) -> Self {
        let (mut domains, mut names) = (BTreeMap::new(), Vec::new());
        let mut domain = |name: &'a str| {
            *domains.entry(name).or_insert_with(|| {
                names.push(name);
                names.len() - 1
            })
        };
        let of_site = sites.iter().map(|site| value(key, site).map(&mut domain)).collect();
        Self { key, names, of_site }
    }
}

/// Returns the value of `key` on `site`. Every node gets a host name of its own; one that is still
/// to come goes by its address until it has one, unless nothing is known of it.
fn value<'a>(key: &LabelKey, site: &'a Site<'a>) -> Option<&'a str> {
    let stated = site.after.labels.get(key).map(LabelValue::as_str);
    let nameless = site.name.is_none() && !site.unknown && key.as_str() == key::HOSTNAME;
    stated.or_else(|| nameless.then(|| site.row.address.as_str()))
}
