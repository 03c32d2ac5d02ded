//! Objects by name, each with the version it was written at, and what was written lately.
//!
//! One counter numbers every write, as etcd's revision does. The past is kept for a bounded number of
//! writes; whoever asks for what is older is told so, and begins anew.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value as Json;
use tokio::sync::watch;

/// Most writes that are remembered for watches.
const HISTORY_MAX: usize = 10_000;

/// What tells an object from all others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Kind; no two sorts that are served share one.
    pub(super) kind: &'static str,
    /// Namespace; empty for what has none.
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
}

impl Key {
    pub(super) fn new(kind: &'static str, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

/// Who wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Author {
    /// A client of the API.
    Client,
    /// The world, whose objects these are.
    World,
}

/// What became of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Added,
    Modified,
    Deleted,
}

/// A write.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub(super) version: u64,
    pub(super) key: Key,
    pub(super) change: Change,
    pub(super) object: Arc<Json>,
    pub(super) before: Option<Arc<Json>>,
    pub(super) author: Author,
}

/// Every object.
#[derive(Debug)]
pub(super) struct Store {
    objects: BTreeMap<Key, Arc<Json>>,
    version: u64,
    history: VecDeque<Write>,
    history_max: usize,
    changed: watch::Sender<u64>,
}

impl Default for Store {
    fn default() -> Self {
        Self::remembering(HISTORY_MAX)
    }
}

impl Store {
    /// Returns a store that remembers so many writes.
    pub(super) fn remembering(history_max: usize) -> Self {
        Self {
            objects: BTreeMap::new(),
            version: 1,
            history: VecDeque::new(),
            history_max,
            changed: watch::Sender::new(1),
        }
    }

    /// Returns the number of the last write.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Returns what is told the number of each write.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Json>> {
        self.objects.get(key)
    }

    /// Returns the objects of a kind, in all namespaces or in one, by namespace and name.
    pub(super) fn list<'s>(
        &'s self,
        kind: &'static str,
        namespace: Option<&'s str>,
    ) -> impl Iterator<Item = (&'s Key, &'s Arc<Json>)> + 's {
        let first = Key::new(kind, namespace.unwrap_or_default(), "");
        let of = move |key: &Key| {
            key.kind == kind && namespace.is_none_or(|namespace| *key.namespace == *namespace)
        };
        self.objects.range(first..).take_while(move |(key, _)| of(key))
    }

    /// Writes an object, and returns it with its new version; one that would not change is left.
    pub(super) fn put(&mut self, key: Key, mut object: Json, author: Author) -> Arc<Json> {
        let before = self.objects.get(&key).cloned();
        if let Some(before) = &before {
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            if **before == object {
                return Arc::clone(before);
            }
        }
        let change = if before.is_some() { Change::Modified } else { Change::Added };
        let object = self.numbered(object);
        self.objects.insert(key.clone(), Arc::clone(&object));
        self.remember(key, change, (Arc::clone(&object), before), author);
        object
    }

    /// Removes an object, and returns it as it was, with the version of its end.
    pub(super) fn remove(&mut self, key: &Key, author: Author) -> Option<Arc<Json>> {
        let before = self.objects.remove(key)?;
        let object = self.numbered((*before).clone());
        self.remember(key.clone(), Change::Deleted, (Arc::clone(&object), Some(before)), author);
        Some(object)
    }

    /// Returns the writes after one of that number; `None` where not all of them are remembered.
    pub(super) fn since(&self, version: u64) -> Option<impl Iterator<Item = &Write>> {
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
        key: Key,
        change: Change,
        (object, before): (Arc<Json>, Option<Arc<Json>>),
        author: Author,
    ) {
        let write = Write { version: self.version, key, change, object, before, author };
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
    fn the_past_is_kept_for_a_bounded_number_of_writes_and_never_told_in_part() {
        let mut store = Store::remembering(2);
        let begin = store.version();
        for n in 0..3 {
            store.put(Key::new("Node", "", &format!("n{n}")), json!({}), Author::World);
        }
        assert!(store.since(begin).is_none(), "the first write is forgotten");
        assert_eq!(store.since(begin + 1).expect("known").count(), 2);
        assert_eq!(store.since(begin + 3).expect("known").count(), 0);
        assert_eq!(Store::default().since(1).expect("nothing was written").count(), 0);
    }

    #[test]
    fn what_does_not_change_gets_no_version() {
        let (mut store, key) = (Store::default(), Key::new("Node", "", "n"));
        let first = store.put(key.clone(), json!({ "spec": 1 }), Author::World);
        let again = store.put(key.clone(), json!({ "spec": 1 }), Author::World);
        assert_eq!(first, again);
        let other = store.put(key.clone(), json!({ "spec": 2 }), Author::World);
        assert_ne!(first["metadata"]["resourceVersion"], other["metadata"]["resourceVersion"]);
        let gone = store.remove(&key, Author::World).expect("it was there");
        assert_ne!(gone["metadata"]["resourceVersion"], other["metadata"]["resourceVersion"]);
    }
}
