//! A watch cache of the cluster: serves [`Cluster::objects`] from memory.
//!
//! This module contains the watch protocol and the rules for using the cache. It makes no
//! decisions.
//!
//! Invariants: a resource type is served only after a complete consistent list and while its watch
//! runs. If a watch breaks or is silent for a minute, everything is listed instead, so that a read
//! error never looks like a smaller cluster. Cordons, uncordons and deletions of nodes by this process
//! are awaited; its other writes are not. Reads that decide about a termination bypass the cache
//! ([`Cluster::node`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::kube::Error;
use ::kube::api::WatchParams;
use ::kube::core::{Request, WatchEvent};
use futures_util::TryStreamExt as _;
use serde_json::Value as Json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cached_object::{CachedObject, CachedPod, Interner, ObjectContent};
use super::client::Kubernetes;
use super::cluster_objects::{
    JOBS, NODES, ObjectCache, PODS, REPLICA_SETS, RESOURCES, assemble, object_key,
};
use super::cluster_pools::{LeftOut, POOL_RESOURCES, assemble_pools, is_pool_resource};
use super::list::ApiResource;
use super::port_error;
use super::queued_workloads::{QUEUED, is_admitted};
use crate::apply::ports::{
    Cluster, ClusterObjects, CordonOutcome, EvictOutcome, NodeAndPods, PortError,
};
use crate::model::ids::{NodeName, Uid, WorkloadId, WorkloadKind};
use crate::model::node_annotations::NodeAnnotations;
use crate::model::observed::{ClusterPools, CordonMark, CordonState, Node, Pod, PodPhase};

/// Duration of a watch in seconds. It is shorter than the response timeout, so that the server ends
/// the watch regularly.
const WATCH_SECONDS: u32 = 50;

/// First and longest wait after a failure.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// A watch without events that ends sooner is restarted after a pause. The constants are the first
/// and the longest pause. Once the pauses since the last event exceed the allowed lag, everything
/// is listed again: a running watch does not prove that all events were delivered.
const HEALTHY_WATCH_MIN: Duration = Duration::from_secs(5);
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Retry interval for a resource type that the cluster does not serve.
const NOT_SERVED_RETRY: Duration = Duration::from_mins(5);

/// Maximum lag of resource types behind each other and behind writes of this process.
const LAG_MAX: Duration = Duration::from_secs(1);
/// Poll interval while waiting for lagging caches.
const LAG_POLL: Duration = Duration::from_millis(10);

/// A change that the controller reacts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterChange {
    /// A pod is pending.
    PodPending,
    /// A node was added, removed or changed.
    NodeChanged,
    /// A node pool or node class was added, removed or changed. Its status does not count.
    PoolChanged,
}

/// A watched cluster. Dropping it ends the watches.
#[derive(Debug)]
pub struct WatchedCluster {
    kubernetes: Kubernetes,
    state: Arc<WatchState>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct WatchState {
    cache: Mutex<WatchCache>,
    changes: mpsc::Sender<ClusterChange>,
}

#[derive(Debug, Default)]
struct WatchCache {
    pods: ResourceCache,
    /// Owners of pods that may themselves be owned.
    replica_sets: ResourceCache,
    jobs: ResourceCache,
    nodes: ResourceCache,
    /// All other resource types, by path.
    others: BTreeMap<&'static str, ResourceCache>,
    interner: Interner,
    /// Writes of this process, and detected concurrent writes, that the watch has not shown yet:
    /// node UID, write, and time.
    pending_writes: BTreeMap<NodeName, (Uid, PendingWrite, Instant)>,
    /// Owners that pods name and that are still missing after a while.
    known_missing: BTreeSet<WorkloadId>,
}

/// The cached objects of a resource type.
#[derive(Debug, Default)]
struct ResourceCache {
    objects: ObjectCache,
    /// True while the watch runs and the objects are current.
    is_live: bool,
    /// True once the resource type was listed.
    was_listed: bool,
    /// The reason, if the list of the resource type was left out.
    left_out: Option<LeftOut>,
}

/// A write to a node.
#[derive(Debug)]
enum PendingWrite {
    /// The node was cordoned with the mark, or uncordoned.
    Cordoned(Option<CordonMark>),
    /// Another client changed the node from this cordon state.
    Concurrent(CordonState),
    /// The node was deleted.
    Deleted,
}

impl WatchedCluster {
    /// Starts the watches. Sends changes to `changes`, and drops them while it is full.
    pub fn start(kubernetes: Kubernetes, changes: mpsc::Sender<ClusterChange>) -> Self {
        let state = Arc::new(WatchState { cache: Mutex::default(), changes });
        let mut tasks = JoinSet::new();
        for resource in RESOURCES.into_iter().chain(POOL_RESOURCES) {
            tasks.spawn(run_watch(kubernetes.clone(), Arc::clone(&state), resource));
        }
        Self { kubernetes, state, _tasks: tasks }
    }

    /// Returns the pools of the cluster, from the cache if every watch of them runs.
    pub async fn pools(&self) -> ClusterPools {
        let cached = self.state.lock().pools();
        match cached {
            Some(pools) => pools,
            None => self.kubernetes.pools().await,
        }
    }

    /// Returns the cached objects, or `None` if a watch does not run or lags too long.
    async fn cached_objects(&self) -> Option<ClusterObjects> {
        let started = Instant::now();
        loop {
            {
                let mut cache_state = self.state.lock();
                if !cache_state.is_live() {
                    return None;
                }
                cache_state.drop_observed_writes();
                let late = started.elapsed() > LAG_MAX;
                if cache_state.pending_writes.is_empty() {
                    let missing = cache_state.missing_owners();
                    if late || missing.is_subset(&cache_state.known_missing) {
                        cache_state.known_missing = missing;
                        return Some(cache_state.assemble_objects());
                    }
                } else if late {
                    // A concurrent write or a stalled watch: list instead.
                    cache_state.pending_writes.clear();
                    return None;
                }
            }
            tokio::time::sleep(LAG_POLL).await;
        }
    }

    fn record_cordon(&self, node: &Node, outcome: CordonOutcome, mark: Option<CordonMark>) {
        let written = match outcome {
            CordonOutcome::Written => PendingWrite::Cordoned(mark),
            CordonOutcome::Outdated => PendingWrite::Concurrent(node.cordon_state()),
        };
        self.record_write(&node.name, &node.uid, written);
    }

    fn record_write(&self, node: &NodeName, uid: &Uid, written: PendingWrite) {
        let entry = (uid.clone(), written, Instant::now());
        self.state.lock().pending_writes.insert(node.clone(), entry);
    }
}

impl Cluster for WatchedCluster {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        match self.cached_objects().await {
            // Pools are read with the repository, so that an observation never lists them.
            Some(objects) => Ok(ClusterObjects { pools: self.state.lock().pools(), ..objects }),
            None => self.kubernetes.objects().await,
        }
    }

    async fn node(&self, name: &NodeName) -> Result<NodeAndPods, PortError> {
        self.kubernetes.node(name).await
    }

    async fn cordon(&self, node: &Node, mark: CordonMark) -> Result<CordonOutcome, PortError> {
        let outcome = self.kubernetes.cordon(node, mark).await?;
        self.record_cordon(node, outcome, Some(mark));
        Ok(outcome)
    }

    async fn uncordon(&self, node: &Node) -> Result<CordonOutcome, PortError> {
        let outcome = self.kubernetes.uncordon(node).await?;
        self.record_cordon(node, outcome, None);
        Ok(outcome)
    }

    async fn open(&self, node: &Node, annotations: &NodeAnnotations) -> Result<(), PortError> {
        self.kubernetes.open(node, annotations).await
    }

    async fn nominate(&self, pod: &Pod, node: &NodeName) -> Result<(), PortError> {
        self.kubernetes.nominate(pod, node).await
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        self.kubernetes.evict(pod).await
    }

    async fn delete_pod(&self, pod: &Pod, grace_seconds: u32) -> Result<(), PortError> {
        self.kubernetes.delete_pod(pod, grace_seconds).await
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        self.kubernetes.delete_node(node, uid).await?;
        self.record_write(node, uid, PendingWrite::Deleted);
        Ok(())
    }
}

impl WatchState {
    fn lock(&self) -> MutexGuard<'_, WatchCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, change: Option<ClusterChange>) {
        if let Some(change) = change {
            // A full channel already has a pending change.
            let _ = self.changes.try_send(change);
        }
    }
}

impl WatchCache {
    fn cache_mut(&mut self, resource: ApiResource) -> &mut ResourceCache {
        match resource.path {
            path if path == PODS.path => &mut self.pods,
            path if path == REPLICA_SETS.path => &mut self.replica_sets,
            path if path == JOBS.path => &mut self.jobs,
            path if path == NODES.path => &mut self.nodes,
            path => self.others.entry(path).or_default(),
        }
    }

    /// Returns the cached pools, or `None` if a watch of them does not run.
    fn pools(&mut self) -> Option<ClusterPools> {
        if !POOL_RESOURCES.into_iter().all(|resource| self.cache_mut(resource).is_live) {
            return None;
        }
        let caches = POOL_RESOURCES.into_iter().filter_map(|resource| {
            let cache = self.others.get(resource.path)?;
            Some((resource, cache.left_out.as_ref().map_or(Ok(&cache.objects), Err)))
        });
        Some(assemble_pools(caches))
    }

    /// Returns whether every resource type but those of pools was listed and is watched.
    fn is_live(&mut self) -> bool {
        RESOURCES.into_iter().all(|resource| self.cache_mut(resource).is_live)
    }

    fn node(&self, name: &NodeName) -> Option<&Node> {
        match &self.nodes.objects.get(&format!("/{name}"))?.content {
            ObjectContent::Node(node) => Some(node),
            ObjectContent::Pod(_)
            | ObjectContent::OwnerLink(_)
            | ObjectContent::Workload(..)
            | ObjectContent::Raw(_)
            | ObjectContent::Ignored => None,
        }
    }

    /// Removes pending writes that the cache shows.
    fn drop_observed_writes(&mut self) {
        let mut written = std::mem::take(&mut self.pending_writes);
        written.retain(|name, (uid, written, _)| {
            let node = self.node(name).filter(|node| node.uid == *uid);
            match (written, node) {
                (PendingWrite::Cordoned(mark), Some(node)) => {
                    node.unschedulable != mark.is_some()
                        || node.cordon_reason() != mark.map(|mark| mark.reason)
                        || node.grace_period_began_at()
                            != mark.and_then(|mark| mark.grace_period_began_at)
                }
                (PendingWrite::Concurrent(before), Some(node)) => node.cordon_state() == *before,
                (PendingWrite::Cordoned(_) | PendingWrite::Concurrent(_), None) => false,
                (PendingWrite::Deleted, node) => node.is_some(),
            }
        });
        self.pending_writes = written;
    }

    fn pods(&self) -> impl Iterator<Item = &CachedPod> {
        self.pods.objects.values().filter_map(|cached| match &cached.content {
            ObjectContent::Pod(pod) => Some(pod),
            ObjectContent::OwnerLink(_)
            | ObjectContent::Workload(..)
            | ObjectContent::Node(_)
            | ObjectContent::Raw(_)
            | ObjectContent::Ignored => None,
        })
    }

    /// Returns owners of pods that are not cached: their watch lags, or they were deleted.
    fn missing_owners(&self) -> BTreeSet<WorkloadId> {
        let mut missing = BTreeSet::new();
        let mut last: Option<&WorkloadId> = None;
        for owner in self.pods().filter_map(|pod| pod.owner.as_ref()) {
            // Pods of one owner are adjacent.
            if last == Some(owner) {
                continue;
            }
            last = Some(owner);
            let cache = if owner.kind == WorkloadKind::ReplicaSet {
                &self.replica_sets
            } else if owner.kind == WorkloadKind::Job {
                &self.jobs
            } else {
                continue;
            };
            if !cache.objects.contains_key(&format!("{}/{}", owner.namespace, owner.name)) {
                missing.insert(owner.clone());
            }
        }
        missing
    }

    fn assemble_objects(&mut self) -> ClusterObjects {
        // Values of deleted objects are no longer used.
        self.interner.drop_unused();
        let Self { pods, replica_sets, jobs, nodes, others, .. } = self;
        let left_out =
            others.iter().filter_map(|(path, cache)| Some((*path, cache.left_out.clone()?)));
        let left_out: BTreeMap<&str, LeftOut> = left_out.collect();
        let others = others.iter().filter(|(_, cache)| cache.left_out.is_none());
        let others = others.map(|(path, cache)| (*path, &cache.objects));
        let mut caches: BTreeMap<&str, &ObjectCache> = others.collect();
        caches.insert(REPLICA_SETS.path, &replica_sets.objects);
        caches.insert(JOBS.path, &jobs.objects);
        caches.insert(NODES.path, &nodes.objects);
        assemble(&mut pods.objects, &caches, &left_out)
    }

    /// Stores an object and returns the change, if any.
    fn upsert(
        &mut self,
        resource: ApiResource,
        key: String,
        mut cached: CachedObject,
    ) -> Option<ClusterChange> {
        self.interner.intern(&mut cached);
        let cache = &mut self.cache_mut(resource).objects;
        let before = cache.get(&key).map(|cached| &cached.content);
        let change = match (&cached.content, before) {
            (ObjectContent::Pod(CachedPod { pod, .. }), before) if is_pending_pod(pod) => {
                match before {
                    // A pod whose scheduling gates were lifted has another template.
                    Some(ObjectContent::Pod(CachedPod { pod: previous, .. }))
                        if previous.uid == pod.uid
                            && previous.template == pod.template
                            && is_pending_pod(previous) =>
                    {
                        None
                    }
                    _ => Some(ClusterChange::PodPending),
                }
            }
            (ObjectContent::Node(node), Some(ObjectContent::Node(previous)))
                if node == previous =>
            {
                None
            }
            (ObjectContent::Node(_), _) => Some(ClusterChange::NodeChanged),
            (ObjectContent::Raw(object), Some(ObjectContent::Raw(previous)))
                if object == previous =>
            {
                None
            }
            (ObjectContent::Raw(_), _) if is_pool_resource(resource) => {
                Some(ClusterChange::PoolChanged)
            }
            // Its pods may start now.
            (ObjectContent::Raw(object), previous)
                if resource.path == QUEUED.path
                    && is_admitted(object)
                    && !matches!(previous, Some(ObjectContent::Raw(old)) if is_admitted(old)) =>
            {
                Some(ClusterChange::PodPending)
            }
            _ => None,
        };
        cache.insert(key, cached);
        change
    }
}

/// Returns whether two lists have the same pools.
fn has_same_pools(before: &ObjectCache, after: &ObjectCache) -> bool {
    fn objects(cache: &ObjectCache) -> impl Iterator<Item = (&String, Option<&Json>)> {
        cache.iter().map(|(key, cached)| match &cached.content {
            ObjectContent::Raw(object) => (key, Some(object)),
            ObjectContent::Pod(_)
            | ObjectContent::OwnerLink(_)
            | ObjectContent::Workload(..)
            | ObjectContent::Node(_)
            | ObjectContent::Ignored => (key, None),
        })
    }
    objects(before).eq(objects(after))
}

/// Returns whether a pod is pending.
fn is_pending_pod(pod: &Pod) -> bool {
    pod.node.is_none() && !pod.terminating && pod.phase == PodPhase::Pending
}

enum WatchEnd {
    /// The resource version is too old.
    Expired,
    /// It restarted too often without events, so that missed events are possible.
    Stale,
    /// The resource type is not served, or may not be listed.
    LeftOut,
}

/// Delays of one watch. They grow with each use.
struct WatchDelays {
    /// Wait after a failure.
    retry: Duration,
    /// Pause after a watch without events.
    pause: Duration,
}

/// Watches a resource type until the future is dropped.
async fn run_watch(kubernetes: Kubernetes, state: Arc<WatchState>, resource: ApiResource) {
    let mut delays = WatchDelays { retry: RETRY_FIRST, pause: PAUSE_FIRST };
    loop {
        match list_and_watch(&kubernetes, &state, resource, &mut delays).await {
            Ok(WatchEnd::Stale) => {}
            // The cache is stale until the resource type is listed again.
            Ok(WatchEnd::Expired) => {
                state.set_live(resource, false);
                tokio::time::sleep(delays.retry).await;
                delays.retry = (delays.retry * 2).min(RETRY_MAX);
            }
            Ok(WatchEnd::LeftOut) => tokio::time::sleep(NOT_SERVED_RETRY).await,
            Err(error) => {
                let error = port_error(&format!("watch {}", resource.path), &error);
                tracing::warn!(%error, "watch failed; the type is listed until it recovers");
                state.set_live(resource, false);
                tokio::time::sleep(delays.retry).await;
                delays.retry = (delays.retry * 2).min(RETRY_MAX);
            }
        }
    }
}

impl WatchState {
    fn set_live(&self, resource: ApiResource, is_live: bool) {
        self.lock().cache_mut(resource).is_live = is_live;
    }
}

/// Lists a resource type and watches it until the watch ends.
async fn list_and_watch(
    kubernetes: &Kubernetes,
    state: &WatchState,
    resource: ApiResource,
    delays: &mut WatchDelays,
) -> Result<WatchEnd, Error> {
    let share = &mut |cached: &mut CachedObject| state.lock().interner.intern(cached);
    let (served, cache, version) = kubernetes.list_served(resource, share).await?;
    {
        let mut caches = state.lock();
        let current = caches.cache_mut(resource);
        let left_out = version.as_ref().err().cloned();
        let is_changed = is_pool_resource(resource)
            && current.was_listed
            && (current.left_out != left_out || !has_same_pools(&current.objects, &cache));
        (current.objects, current.left_out) = (cache, left_out);
        (current.is_live, current.was_listed) = (true, true);
        drop(caches);
        state.notify(is_changed.then_some(ClusterChange::PoolChanged));
    }
    let Ok(mut version) = version else { return Ok(WatchEnd::LeftOut) };
    let request = Request::new(served.path);
    let params = WatchParams { field_selector: resource.fields(), ..WatchParams::default() };
    let params = params.timeout(WATCH_SECONDS);
    let mut paused = Duration::ZERO;
    loop {
        let started = Instant::now();
        let mut has_events = false;
        let http_request = request.watch(&params, &version).map_err(Error::BuildRequest)?;
        let mut events = match kubernetes.client.request_events::<Json>(http_request).await {
            Ok(events) => std::pin::pin!(events),
            Err(Error::Api(status)) if status.code == 410 => return Ok(WatchEnd::Expired),
            Err(error) => return Err(error),
        };
        while let Some(event) = events.try_next().await? {
            delays.retry = RETRY_FIRST;
            has_events = true;
            let (object, is_deleted) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => return Ok(WatchEnd::Expired),
                WatchEvent::Error(status) => return Err(Error::Api(status)),
            };
            let version_text = object.pointer("/metadata/resourceVersion").and_then(Json::as_str);
            version_text.unwrap_or_default().clone_into(&mut version);
            state.apply_event(resource, object, is_deleted);
        }
        if has_events || started.elapsed() >= HEALTHY_WATCH_MIN {
            delays.pause = PAUSE_FIRST;
            paused = Duration::ZERO;
            continue;
        }
        paused += delays.pause;
        let is_behind = paused > LAG_MAX;
        if is_behind {
            state.set_live(resource, false);
        }
        tokio::time::sleep(delays.pause).await;
        delays.pause = (delays.pause * 2).min(PAUSE_MAX);
        if is_behind {
            return Ok(WatchEnd::Stale);
        }
    }
}

impl WatchState {
    fn apply_event(&self, resource: ApiResource, mut object: Json, is_deleted: bool) {
        let key = object_key(&object);
        let change = if is_deleted {
            let removed = self.lock().cache_mut(resource).objects.remove(&key);
            let is_node =
                removed.is_some_and(|cached| matches!(cached.content, ObjectContent::Node(_)));
            let is_pool = is_pool_resource(resource).then_some(ClusterChange::PoolChanged);
            is_node.then_some(ClusterChange::NodeChanged).or(is_pool)
        } else {
            resource.set_type_meta(&mut object);
            let cached = CachedObject::from_json(resource, object);
            self.lock().upsert(resource, key, cached)
        };
        self.notify(change);
    }
}

#[cfg(test)]
mod tests;
