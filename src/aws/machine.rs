//! What launches need of the repository: pools and node classes as the plan was made from.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::boot::Endpoint;
use crate::fleet::Hardware;
use crate::ids::{NodeClassName, PoolName};
use crate::manifest::{Desired, NodeClass};

/// How machines are set up, by pool, and what was looked up for them so far.
#[derive(Debug)]
pub struct Machines {
    pub(super) endpoint: Endpoint,
    /// Version of Kubernetes, such as `1.33`.
    pub(super) kubernetes: String,
    classes: BTreeMap<PoolName, NodeClass>,
    pub(super) known: Mutex<Known>,
    /// Held by whoever looks something up, or makes a template.
    pub(super) looking: tokio::sync::Mutex<()>,
}

/// What was looked up for launches alone; what nodes are held to afterwards is among [`super::resolve::Answers`].
#[derive(Debug, Default, Clone)]
pub(super) struct Known {
    /// Images of single kinds of hardware, and when they were looked up, where not all of a class could be.
    pub(super) images: BTreeMap<(NodeClassName, Hardware), (Instant, String)>,
    pub(super) profiles: BTreeMap<NodeClassName, String>,
    /// Launch templates that are there, and when one was last launched from.
    pub(super) templates: BTreeMap<String, Instant>,
}

impl Machines {
    /// Returns what `desired` says of machines that join the cluster at `endpoint`.
    #[must_use]
    pub fn of(desired: &Desired, endpoint: Endpoint, kubernetes: &str) -> Self {
        let class = |pool: &crate::manifest::Pool| {
            let mut class = desired.node_classes.get(pool.node_class.as_ref()?)?.clone();
            // Generations that keep kubelet settings in the pool.
            if let Some(kubelet) = &pool.kubelet {
                class.kubelet.clone_from(kubelet);
            }
            Some(class)
        };
        let classes = desired.pools.iter();
        Self {
            endpoint,
            kubernetes: kubernetes.to_owned(),
            classes: classes
                .filter_map(|(name, pool)| Some((name.clone(), class(pool)?)))
                .collect(),
            known: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// Takes over which launch templates are there: they are named by what they hold. Everything else is looked up anew.
    pub(super) fn inherit(&self, before: &Self) {
        let templates = before.recall(|known| Some(known.templates.clone())).unwrap_or_default();
        self.keep(|known| known.templates.extend(templates));
    }

    /// Returns the node classes of the pools.
    pub(super) fn classes(&self) -> impl Iterator<Item = &NodeClass> {
        self.classes.values()
    }

    /// Returns the node class of a pool.
    pub(super) fn class(&self, pool: &str) -> Option<&NodeClass> {
        self.classes.get(pool)
    }

    /// Returns what `look` finds among what was looked up.
    pub(super) fn recall<T>(&self, look: impl FnOnce(&Known) -> Option<T>) -> Option<T> {
        look(&self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps something that was looked up.
    pub(super) fn keep(&self, put: impl FnOnce(&mut Known)) {
        put(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
