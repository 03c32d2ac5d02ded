//! The cluster as watches show it: what [`Cluster::objects`] reads is at hand.
//!
//! This module knows how watches begin, go on and break, and when what they show may be used. It decides
//! nothing. Invariants: a sort of objects is shown only after it was listed whole, by a consistent read,
//! and only while its watch runs; a watch that breaks, or says nothing for a minute, has everything listed
//! instead, so that what cannot be read is an error and never a smaller cluster; what this process wrote
//! is waited for. By what a machine ends is read past all of this ([`Cluster::node`]).

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

use super::client::Kubernetes;
use super::list::Sort;
use super::objects::{SORTS, Shelf, assemble, may_be_absent, place};
use super::piece::{Common, Piece, Seen, SeenPod};
use super::port_error;
use crate::fleet::{Cordon, CordonedFor, Node, Pod, PodPhase};
use crate::ids::{NodeName, Uid, WorkloadId, WorkloadKind};
use crate::port::{Cluster, ClusterObjects, CordonOutcome, EvictOutcome, NodeNow, PortError};

/// How long one watch lasts, in seconds: less than the longest wait for an answer, so that the server
/// ends it and not a timeout.
const WATCH_SECONDS: u32 = 50;

/// The first wait after a failure, and the longest.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MOST: Duration = Duration::from_secs(30);

/// A watch that ended sooner without a word is not begun again at once: the first pause, and the longest. Once the
/// pauses since the last word are longer together than sorts may lag, everything is listed anew before it is shown:
/// that a watch has begun says nothing of whether it has told all that came since.
const LASTED: Duration = Duration::from_secs(5);
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MOST: Duration = Duration::from_secs(10);

/// How often a sort is asked for again that the cluster does not serve.
const ABSENT_EVERY: Duration = Duration::from_mins(5);

/// How long sorts may lag behind each other, and behind what was written here.
const LAG_MAX: Duration = Duration::from_secs(1);
/// Between two looks at what lags.
const LAG_POLL: Duration = Duration::from_millis(10);

/// What owns pods and is owned itself, in the order of their sorts behind that of pods.
const OWNERS: [WorkloadKind; 2] = [WorkloadKind::ReplicaSet, WorkloadKind::Job];

/// Something that somebody should look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// A pod waits for a node.
    PodWaits,
    /// A node came, went or changed.
    NodeChanged,
}

/// A cluster that is watched, until this is dropped.
#[derive(Debug)]
pub struct Watched {
    kubernetes: Kubernetes,
    shown: Arc<Shown>,
    _tasks: JoinSet<()>,
}

/// What watches show.
#[derive(Debug)]
struct Shown {
    inner: Mutex<Inner>,
    news: mpsc::Sender<News>,
}

#[derive(Debug, Default)]
struct Inner {
    shelves: Vec<Shelf>,
    /// Whether the watch of a sort runs.
    live: Vec<bool>,
    common: Common,
    /// What was written here, or by others as we learned, and is not shown yet: the node's UID, what, and when.
    written: BTreeMap<NodeName, (Uid, Written, Instant)>,
    /// Owners that pods name and that are not there, even after a while.
    absent: BTreeSet<WorkloadId>,
}

/// What was written of a node.
#[derive(Debug)]
enum Written {
    /// It is cordoned for that, or not cordoned.
    Cordoned(Option<CordonedFor>),
    /// Somebody else changed how it stands, which was so.
    ByOthers(Cordon),
    /// It is gone.
    Gone,
}

impl Watched {
    /// Begins to watch; `news` is told what somebody should look at, and nothing where it is full.
    #[must_use]
    pub fn start(kubernetes: Kubernetes, news: mpsc::Sender<News>) -> Self {
        let inner = Inner {
            shelves: SORTS.iter().map(|_| Shelf::new()).collect(),
            live: vec![false; SORTS.len()],
            ..Inner::default()
        };
        let shown = Arc::new(Shown { inner: Mutex::new(inner), news });
        let mut tasks = JoinSet::new();
        for (n, sort) in SORTS.into_iter().enumerate() {
            tasks.spawn(follow(kubernetes.clone(), Arc::clone(&shown), (n, sort)));
        }
        Self { kubernetes, shown, _tasks: tasks }
    }

    /// Returns what watches show, unless one of them does not run or lags for too long.
    async fn at_hand(&self) -> Option<ClusterObjects> {
        let begun = Instant::now();
        loop {
            {
                let mut inner = self.shown.lock();
                if !inner.live.iter().all(|live| *live) {
                    return None;
                }
                inner.forget_what_is_shown();
                let late = begun.elapsed() > LAG_MAX;
                if inner.written.is_empty() {
                    let missing = inner.missing_owners();
                    if late || missing.is_subset(&inner.absent) {
                        inner.absent = missing;
                        return Some(inner.objects());
                    }
                } else if late {
                    // Somebody else wrote in between, or the watch stands still: a list tells.
                    inner.written.clear();
                    return None;
                }
            }
            tokio::time::sleep(LAG_POLL).await;
        }
    }

    fn note(&self, node: &NodeName, uid: &Uid, written: Written) {
        let entry = (uid.clone(), written, Instant::now());
        self.shown.lock().written.insert(node.clone(), entry);
    }
}

impl Cluster for Watched {
    async fn objects(&self) -> Result<ClusterObjects, PortError> {
        match self.at_hand().await {
            Some(objects) => Ok(objects),
            None => self.kubernetes.objects().await,
        }
    }

    async fn node(&self, name: &NodeName) -> Result<NodeNow, PortError> {
        self.kubernetes.node(name).await
    }

    async fn cordon(
        &self,
        node: &Node,
        mark: Option<CordonedFor>,
    ) -> Result<CordonOutcome, PortError> {
        let outcome = self.kubernetes.cordon(node, mark).await?;
        let written = match outcome {
            CordonOutcome::Written => Written::Cordoned(mark),
            CordonOutcome::Outdated => Written::ByOthers(node.cordon()),
        };
        self.note(&node.name, &node.uid, written);
        Ok(outcome)
    }

    async fn evict(&self, pod: &Pod) -> Result<EvictOutcome, PortError> {
        self.kubernetes.evict(pod).await
    }

    async fn delete_node(&self, node: &NodeName, uid: &Uid) -> Result<(), PortError> {
        self.kubernetes.delete_node(node, uid).await?;
        self.note(node, uid, Written::Gone);
        Ok(())
    }
}

impl Shown {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, news: Option<News>) {
        if let Some(news) = news {
            // Where it is full somebody is told already.
            let _ = self.news.try_send(news);
        }
    }
}

impl Inner {
    fn node(&self, name: &NodeName) -> Option<&Node> {
        let rack = self.shelves.last()?;
        match &rack.get(&format!("/{name}"))?.piece {
            Piece::Node(node) => Some(node),
            Piece::Pod(_)
            | Piece::Link(_)
            | Piece::Workload(..)
            | Piece::Plain(_)
            | Piece::Nothing => None,
        }
    }

    /// Forgets what was written here as far as it is shown.
    fn forget_what_is_shown(&mut self) {
        let mut written = std::mem::take(&mut self.written);
        written.retain(|name, (uid, written, _)| {
            let node = self.node(name).filter(|node| node.uid == *uid);
            match (written, node) {
                (Written::Cordoned(mark), Some(node)) => {
                    node.unschedulable != mark.is_some() || node.cordoned_for() != *mark
                }
                (Written::ByOthers(before), Some(node)) => node.cordon() == *before,
                (Written::Cordoned(_) | Written::ByOthers(_), None) => false,
                (Written::Gone, node) => node.is_some(),
            }
        });
        self.written = written;
    }

    fn pods(&self) -> impl Iterator<Item = &SeenPod> {
        let seen = self.shelves.first().into_iter().flat_map(Shelf::values);
        seen.filter_map(|seen| match &seen.piece {
            Piece::Pod(pod) => Some(pod),
            Piece::Link(_)
            | Piece::Workload(..)
            | Piece::Node(_)
            | Piece::Plain(_)
            | Piece::Nothing => None,
        })
    }

    /// Returns what pods name as their owner and is not shown: its watch lags, or it is gone.
    fn missing_owners(&self) -> BTreeSet<WorkloadId> {
        let rack_of = |kind: WorkloadKind| {
            let place = OWNERS.iter().position(|owner| *owner == kind)?;
            self.shelves.get(place + 1)
        };
        let mut missing = BTreeSet::new();
        let mut last: Option<&WorkloadId> = None;
        for owner in self.pods().filter_map(|pod| pod.names.as_ref()) {
            // Pods of one owner lie side by side.
            if last == Some(owner) {
                continue;
            }
            last = Some(owner);
            let Some(rack) = rack_of(owner.kind) else { continue };
            if !rack.contains_key(&format!("{}/{}", owner.namespace, owner.name)) {
                missing.insert(owner.clone());
            }
        }
        missing
    }

    fn objects(&mut self) -> ClusterObjects {
        // Nobody has those any more whose last pod is gone.
        self.common.forget();
        match self.shelves.split_first_mut() {
            Some((pods, others)) => assemble(pods, &*others),
            None => ClusterObjects::default(),
        }
    }

    /// Puts an object on its shelf; returns what is new about it.
    fn put(&mut self, n: usize, place: String, mut seen: Seen) -> Option<News> {
        self.common.share(&mut seen);
        let rack = self.shelves.get_mut(n)?;
        let before = rack.get(&place).map(|seen| &seen.piece);
        let news = match (&seen.piece, before) {
            (Piece::Pod(SeenPod { pod, .. }), before) if waits(pod) => match before {
                Some(Piece::Pod(SeenPod { pod: known, .. }))
                    if known.uid == pod.uid && waits(known) =>
                {
                    None
                }
                _ => Some(News::PodWaits),
            },
            (Piece::Node(node), Some(Piece::Node(known))) if node == known => None,
            (Piece::Node(_), _) => Some(News::NodeChanged),
            _ => None,
        };
        rack.insert(place, seen);
        news
    }
}

/// Returns whether a pod waits for a node.
fn waits(pod: &Pod) -> bool {
    pod.node.is_none() && !pod.terminating && pod.phase == PodPhase::Pending
}

/// How a watch ended.
enum Ended {
    /// The version that it would go on from is too old.
    Expired,
    /// It was begun again too often, without a word, for anybody to know what it has told.
    Behind,
    /// The sort is not served.
    Absent,
}

/// Watches a sort for as long as it is polled.
async fn follow(kubernetes: Kubernetes, shown: Arc<Shown>, (n, sort): (usize, Sort)) {
    let mut wait = RETRY_FIRST;
    let mut pause = PAUSE_FIRST;
    loop {
        match once(&kubernetes, &shown, (n, sort), (&mut wait, &mut pause)).await {
            Ok(Ended::Behind) => {}
            // What is shown is old until the sort was listed anew.
            Ok(Ended::Expired) => {
                shown.set_live(n, false);
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY_MOST);
            }
            Ok(Ended::Absent) => tokio::time::sleep(ABSENT_EVERY).await,
            Err(error) => {
                let error = port_error(&format!("watch {}", sort.path), &error);
                tracing::warn!(%error, "a watch broke; everything is listed until it runs again");
                shown.set_live(n, false);
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY_MOST);
            }
        }
    }
}

impl Shown {
    fn set_live(&self, n: usize, is_live: bool) {
        if let Some(live) = self.lock().live.get_mut(n) {
            *live = is_live;
        }
    }
}

/// Lists a sort, and watches it from there until that breaks.
async fn once(
    kubernetes: &Kubernetes,
    shown: &Shown,
    (n, sort): (usize, Sort),
    (wait, pause): (&mut Duration, &mut Duration),
) -> Result<Ended, Error> {
    let share = &mut |seen: &mut Seen| shown.lock().common.share(seen);
    let (shelf, version) = kubernetes.shelf(sort, share).await?;
    if let Some(place) = shown.lock().shelves.get_mut(n) {
        *place = shelf;
    }
    shown.set_live(n, true);
    let Some(mut version) = version else {
        debug_assert!(may_be_absent(sort));
        return Ok(Ended::Absent);
    };
    let request = Request::new(sort.path);
    let params = WatchParams::default().timeout(WATCH_SECONDS);
    let mut paused = Duration::ZERO;
    loop {
        let begun = Instant::now();
        let mut is_heard = false;
        let asked = request.watch(&params, &version).map_err(Error::BuildRequest)?;
        let mut events = match kubernetes.client.request_events::<Json>(asked).await {
            Ok(events) => std::pin::pin!(events),
            Err(Error::Api(status)) if status.code == 410 => return Ok(Ended::Expired),
            Err(error) => return Err(error),
        };
        while let Some(event) = events.try_next().await? {
            *wait = RETRY_FIRST;
            is_heard = true;
            let (object, goes) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => return Ok(Ended::Expired),
                WatchEvent::Error(status) => return Err(Error::Api(status)),
            };
            let told = object.pointer("/metadata/resourceVersion").and_then(Json::as_str);
            told.unwrap_or_default().clone_into(&mut version);
            shown.take((n, sort), object, goes);
        }
        if is_heard || begun.elapsed() >= LASTED {
            *pause = PAUSE_FIRST;
            paused = Duration::ZERO;
            continue;
        }
        paused += *pause;
        let is_behind = paused > LAG_MAX;
        if is_behind {
            shown.set_live(n, false);
        }
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSE_MOST);
        if is_behind {
            return Ok(Ended::Behind);
        }
    }
}

impl Shown {
    /// Takes what a watch tells.
    fn take(&self, (n, sort): (usize, Sort), mut object: Json, goes: bool) {
        let place = place(&object);
        let news = if goes {
            let gone = self.lock().shelves.get_mut(n).and_then(|shelf| shelf.remove(&place));
            let is_node = gone.is_some_and(|seen| matches!(seen.piece, Piece::Node(_)));
            is_node.then_some(News::NodeChanged)
        } else {
            sort.name(&mut object);
            let seen = Seen::of(sort, object);
            self.lock().put(n, place, seen)
        };
        self.tell(news);
    }
}
