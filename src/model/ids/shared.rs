//! Copy-on-write ordered maps.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::{IntoIter, Iter};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

/// A copy-on-write map, ordered by key. A node, its plan row and its successive observations share
/// one copy until one of them changes.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent, bound(deserialize = "K: Deserialize<'de> + Ord, V: Deserialize<'de>"))]
pub struct Shared<K, V>(Arc<BTreeMap<K, V>>);

impl<K, V> Shared<K, V> {
    /// Returns an empty map.
    pub fn new() -> Self {
        Self(Arc::new(BTreeMap::new()))
    }

    /// Returns true if the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K, V> Default for Shared<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Clone for Shared<K, V> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, V> Deref for Shared<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<K: Clone, V: Clone> DerefMut for Shared<K, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

impl<K, V> From<BTreeMap<K, V>> for Shared<K, V> {
    fn from(map: BTreeMap<K, V>) -> Self {
        Self(Arc::new(map))
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for Shared<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        BTreeMap::from(entries).into()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for Shared<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        entries.into_iter().collect::<BTreeMap<K, V>>().into()
    }
}

impl<K: Clone, V: Clone> IntoIterator for Shared<K, V> {
    type Item = (K, V);
    type IntoIter = IntoIter<K, V>;

    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.0).into_iter()
    }
}

impl<'m, K, V> IntoIterator for &'m Shared<K, V> {
    type Item = (&'m K, &'m V);
    type IntoIter = Iter<'m, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for Shared<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        Arc::make_mut(&mut self.0).extend(entries);
    }
}

impl<K: JsonSchema, V: JsonSchema> JsonSchema for Shared<K, V> {
    fn schema_name() -> Cow<'static, str> {
        BTreeMap::<K, V>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<K, V>::json_schema(generator)
    }

    fn inline_schema() -> bool {
        BTreeMap::<K, V>::inline_schema()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changing_a_copy_leaves_others_unchanged() {
        let first: Shared<&str, u8> = [("b", 2), ("a", 1)].into();
        let mut second = first.clone();
        assert!(std::ptr::eq(&raw const *first, &raw const *second), "both share one map");
        second.insert("c", 3);
        assert_eq!(first.into_iter().collect::<Vec<_>>(), [("a", 1), ("b", 2)]);
        assert_eq!(second.len(), 3);
    }
}
