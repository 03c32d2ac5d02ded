//! The pools and node classes that launches need, as of the plan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::user_data::ClusterEndpoint;
use crate::model::desired::{Desired, NodeClass};
use crate::model::ids::{NodeClassName, PoolName};
use crate::model::observed::Hardware;

/// Launch settings by pool, and the lookups made for them so far.
#[derive(Debug)]
pub struct LaunchContext {
    pub(super) endpoint: ClusterEndpoint,
    /// Kubernetes version, such as `1.33`.
    pub(super) kubernetes_version: String,
    classes: BTreeMap<PoolName, NodeClass>,
    pub(super) lookups: Mutex<LaunchLookups>,
    /// Held during a lookup.
    pub(super) lookup_lock: tokio::sync::Mutex<()>,
    /// Locks of launch templates by name, each held during the creation of its template.
    template_locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// Lookups that only launches need. Lookups that also determine drift are in
/// [`super::resolution_cache::ResolutionCache`].
#[derive(Debug, Default, Clone)]
pub(super) struct LaunchLookups {
    /// Images of single kinds of hardware with the time of the lookup. Used if the images of the
    /// whole class cannot be resolved.
    pub(super) images: BTreeMap<(NodeClassName, Hardware), (Instant, String)>,
    pub(super) profiles: BTreeMap<NodeClassName, String>,
    /// IDs of placement groups with the time of the lookup.
    pub(super) placement_groups: BTreeMap<NodeClassName, (Instant, String)>,
    /// Existing launch templates, with the time of the last launch of this process.
    pub(super) templates: BTreeMap<String, Option<Instant>>,
}

impl LaunchContext {
    /// Returns the launch settings of `desired` for instances that join the cluster at `endpoint`.
    pub fn new(desired: &Desired, endpoint: ClusterEndpoint, kubernetes_version: &str) -> Self {
        let class = |pool: &crate::model::desired::Pool| {
            let mut class = desired.node_classes.get(pool.node_class.as_ref()?)?.clone();
            // Older generations keep kubelet settings in the pool.
            if let Some(kubelet) = &pool.kubelet {
                class.kubelet.clone_from(kubelet);
            }
            Some(class)
        };
        let classes = desired.pools.iter();
        Self {
            endpoint,
            kubernetes_version: kubernetes_version.to_owned(),
            classes: classes
                .filter_map(|(name, pool)| Some((name.clone(), class(pool)?)))
                .collect(),
            lookups: Mutex::default(),
            lookup_lock: tokio::sync::Mutex::default(),
            template_locks: Mutex::default(),
        }
    }

    /// Copies the known launch templates of `before`. A template is named by its content and stays
    /// valid. All other lookups are repeated.
    pub(super) fn inherit_templates(&self, before: &Self) {
        let templates =
            before.read_lookups(|known| Some(known.templates.clone())).unwrap_or_default();
        self.update_lookups(|known| known.templates.extend(templates));
    }

    /// Forgets launch templates that do not exist, so that the next launch creates them.
    pub(super) fn forget_templates<'n>(&self, names: impl IntoIterator<Item = &'n str>) {
        self.update_lookups(|known| {
            for name in names {
                known.templates.remove(name);
            }
        });
    }

    /// Returns true if a launch template is known to exist, and records that a launch uses it.
    pub(super) fn uses_template(&self, name: &str) -> bool {
        let mut known = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        let used = known.templates.get_mut(name);
        used.map(|at| *at = Some(Instant::now())).is_some()
    }

    /// Returns the lock of the launch template with this name.
    pub(super) fn template_lock(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.template_locks.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(name.to_owned()).or_default())
    }

    pub(super) fn node_classes(&self) -> impl Iterator<Item = &NodeClass> {
        self.classes.values()
    }

    pub(super) fn node_class(&self, pool: &str) -> Option<&NodeClass> {
        self.classes.get(pool)
    }

    /// Returns the result of `read` on the lookups.
    pub(super) fn read_lookups<T>(
        &self,
        read: impl FnOnce(&LaunchLookups) -> Option<T>,
    ) -> Option<T> {
        read(&self.lookups.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the lookups.
    pub(super) fn update_lookups(&self, update: impl FnOnce(&mut LaunchLookups)) {
        update(&mut self.lookups.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
