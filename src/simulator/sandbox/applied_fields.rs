//! The last applied object of each manager.
//!
//! It determines field ownership and is stored beside the objects. Objects have no `managedFields`.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::store::{ObjectKey, ObjectStore};

/// The last applied object of each manager.
#[derive(Debug, Default)]
pub(super) struct AppliedFields(BTreeMap<ManagerKey, (Json, Json)>);

/// Object, subresource (or empty) and manager. The value contains the UID of the object, because a
/// new object of the same name is unrelated.
pub(super) type ManagerKey = (ObjectKey, String, String);

impl AppliedFields {
    /// Returns the applied objects of all managers for an object and subresource.
    pub(super) fn by_manager<'a>(
        &'a self,
        key: &'a ObjectKey,
        part: &'a str,
        uid: &'a Json,
    ) -> impl Iterator<Item = (&'a str, &'a Json)> {
        let first = (key.clone(), part.to_owned(), String::new());
        let here = move |(of, of_part, _): &ManagerKey| of == key && of_part == part;
        let value = self.0.range(first..).take_while(move |(manager_key, _)| here(manager_key));
        value
            .filter(move |(_, (of, _))| of == uid)
            .map(|((.., manager), (_, value))| (&**manager, value))
    }

    /// Returns the number of applied objects.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Stores an applied object and removes those of deleted objects.
    pub(super) fn insert(&mut self, manager_key: ManagerKey, value: Json, store: &ObjectStore) {
        let uid = store.get(&manager_key.0).map(|now| now["metadata"]["uid"].clone());
        if let Some(uid) = uid {
            self.0.insert(manager_key, (uid, value));
        }
        self.0.retain(|(key, ..), (uid, _)| {
            store.get(key).is_some_and(|now| now["metadata"]["uid"] == *uid)
        });
    }
}
