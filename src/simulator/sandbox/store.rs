//! Versioned object store with a write history.
//!
//! One counter numbers all writes, like the etcd revision. The history is bounded. Clients that
//! request older versions get an error and list again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value as Json;
use tokio::sync::watch;

/// Maximum number of writes in the history.
const HISTORY_MAX: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectKey {
    /// Kind. It is unique among the served resource types.
    pub(super) kind: &'static str,
    /// Namespace. Empty for cluster-scoped objects.
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}

impl ObjectKey {
    pub(super) fn new(kind: &'static str, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

/// The author of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// A client of the API.
    Client,
    /// The world.
    World,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

#[derive(Debug, Clone)]
pub(super) struct StoreWrite {
    pub(super) version: u64,
    pub(super) key: ObjectKey,
    pub(super) change: ChangeKind,
    pub(super) object: Arc<Json>,
    pub(super) before: Option<Arc<Json>>,
    pub(super) author: Writer,
}

#[derive(Debug)]
pub(super) struct ObjectStore {
    objects: BTreeMap<ObjectKey, Arc<Json>>,
    version: u64,
    history: VecDeque<StoreWrite>,
    history_max: usize,
    changed: watch::Sender<u64>,
}

impl Default for ObjectStore {
    fn default() -> Self {
        Self::with_history(HISTORY_MAX)
    }
}

impl ObjectStore {
    pub(super) fn with_history(history_max: usize) -> Self {
        Self {
            objects: BTreeMap::new(),
            version: 1,
            history: VecDeque::new(),
            history_max,
            changed: watch::Sender::new(1),
        }
    }

    /// Returns the version of the last write.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Returns a receiver of the version of each write.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<Json>> {
        self.objects.get(key)
    }

    /// Returns the objects of a kind in one or all namespaces, by namespace and name.
    pub(super) fn list<'s>(
        &'s self,
        kind: &'static str,
        namespace: Option<&'s str>,
    ) -> impl Iterator<Item = (&'s ObjectKey, &'s Arc<Json>)> + 's {
        let first = ObjectKey::new(kind, namespace.unwrap_or_default(), "");
        let of = move |key: &ObjectKey| {
            key.kind == kind && namespace.is_none_or(|namespace| *key.namespace == *namespace)
        };
        self.objects.range(first..).take_while(move |(key, _)| of(key))
    }

    /// Writes an object and returns it with its new version. An unchanged object keeps its version.
    pub(super) fn upsert(&mut self, key: ObjectKey, mut object: Json, author: Writer) -> Arc<Json> {
        let before = self.objects.get(&key).cloned();
        if let Some(before) = &before {
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            if **before == object {
                return Arc::clone(before);
            }
        }
        let change = if before.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        let object = self.numbered(object);
        self.objects.insert(key.clone(), Arc::clone(&object));
        self.remember(key, change, Arc::clone(&object), before, author);
        object
    }

    /// Removes an object and returns it with the version of its deletion.
    pub(super) fn remove(&mut self, key: &ObjectKey, author: Writer) -> Option<Arc<Json>> {
        let before = self.objects.remove(key)?;
        let object = self.numbered((*before).clone());
        self.remember(key.clone(), ChangeKind::Deleted, Arc::clone(&object), Some(before), author);
        Some(object)
    }

    /// Returns the writes after `version`, or `None` if the history does not contain all of them.
    pub(super) fn writes_since(&self, version: u64) -> Option<impl Iterator<Item = &StoreWrite>> {
        let oldest = self.history.front().map_or(self.version + 1, |write| write.version);
        if version + 1 < oldest {
            return None;
        }
        let first = self.history.partition_point(|write| write.version <= version);
        Some(self.history.iter().skip(first))
    }

    fn numbered(&mut self, mut object: Json) -> Arc<Json> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        Arc::new(object)
    }

    fn remember(
        &mut self,
        key: ObjectKey,
        change: ChangeKind,
        object: Arc<Json>,
        before: Option<Arc<Json>>,
        author: Writer,
    ) {
        let write = StoreWrite { version: self.version, key, change, object, before, author };
        self.history.push_back(write);
        if self.history.len() > self.history_max {
            self.history.pop_front();
        }
        self.changed.send_replace(self.version);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn history_is_bounded_and_never_partial() {
        let mut store = ObjectStore::with_history(2);
        let begin = store.version();
        for n in 0..3 {
            store.upsert(ObjectKey::new("Node", "", &format!("n{n}")), json!({}), Writer::World);
        }
        assert!(store.writes_since(begin).is_none(), "the first write is forgotten");
        assert_eq!(store.writes_since(begin + 1).expect("known").count(), 2);
        assert_eq!(store.writes_since(begin + 3).expect("known").count(), 0);
        assert_eq!(ObjectStore::default().writes_since(1).expect("nothing was written").count(), 0);
    }

    #[test]
    fn unchanged_write_keeps_version() {
        let (mut store, key) = (ObjectStore::default(), ObjectKey::new("Node", "", "n"));
        let first = store.upsert(key.clone(), json!({ "spec": 1 }), Writer::World);
        let again = store.upsert(key.clone(), json!({ "spec": 1 }), Writer::World);
        assert_eq!(first, again);
        let other = store.upsert(key.clone(), json!({ "spec": 2 }), Writer::World);
        assert_ne!(first["metadata"]["resourceVersion"], other["metadata"]["resourceVersion"]);
        let gone = store.remove(&key, Writer::World).expect("it was there");
        assert_ne!(gone["metadata"]["resourceVersion"], other["metadata"]["resourceVersion"]);
    }
}
