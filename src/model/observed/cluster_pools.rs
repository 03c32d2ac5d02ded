//! Node pools and node classes that the API server holds.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};

/// Prefix of the annotations that change how an object is read.
const READ_ANNOTATIONS: &str = "fleetwright.dev/";

/// Karpenter's objects in the cluster. A kind that the API server does not serve has none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClusterPools {
    /// The objects, in order of kind and name.
    pub objects: Vec<PoolObject>,
    /// Kinds that could not be read, with the reason. They may have objects.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unread: BTreeMap<String, String>,
}

/// An object without its status and without the metadata that the API server adds, so that only a
/// change of its specification changes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolObject {
    /// API group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name, and annotations that change how the object is read.
    pub metadata: PoolMetadata,
    /// Specification.
    #[serde(default)]
    pub spec: Json,
}

/// The metadata of a [`PoolObject`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolMetadata {
    /// Name.
    pub name: String,
    /// Annotations of Fleetwright.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Time from which the API server deletes the object, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
}

impl PoolObject {
    /// Returns the stable part of an object as the API server returns it.
    ///
    /// # Errors
    /// With the reason, if the object has no kind or no name.
    pub fn from_json(object: &Json) -> Result<Self, String> {
        let mut read = Self::deserialize(object).map_err(|error| error.to_string())?;
        read.metadata.annotations.retain(|key, _| key.starts_with(READ_ANNOTATIONS));
        Ok(read)
    }

    fn key(&self) -> (&str, &str) {
        (&self.kind, &self.metadata.name)
    }

    /// Returns true if the API server deletes the object.
    pub fn is_being_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the object as a manifest.
    ///
    /// # Panics
    /// Never, because all its maps have text keys.
    pub fn to_manifest(&self) -> Json {
        serde_json::to_value(self).expect("an object has text keys only")
    }
}

impl ClusterPools {
    /// Returns pools with their objects in order.
    pub fn new(objects: Vec<PoolObject>, unread: BTreeMap<String, String>) -> Self {
        let mut pools = Self { objects, unread };
        pools.objects.sort_by(|a, b| a.key().cmp(&b.key()));
        pools
    }

    /// Returns the digest of the objects. It does not change with their status.
    ///
    /// # Panics
    /// Never, because all maps of the objects have text keys.
    pub fn digest(&self) -> String {
        let mut objects: Vec<&PoolObject> = self.objects.iter().collect();
        // A file may have them in any order.
        objects.sort_by_key(|object| object.key());
        let json = serde_json::to_vec(&objects).expect("objects have text keys only");
        format!("sha256:{}", hex::encode(Sha256::digest(json)))
    }

    /// Returns the reason why the pools are not known completely; `None` if they are.
    pub fn unread_reason(&self) -> Option<String> {
        let reasons: BTreeSet<String> =
            self.unread.iter().map(|(kind, why)| format!("{kind}: {why}")).collect();
        let reasons: Vec<String> = reasons.into_iter().collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn served() -> Json {
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool",
            "metadata": {
                "name": "web", "uid": "u", "resourceVersion": "7", "generation": 3,
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": { "a": "b" },
                "managedFields": [{ "manager": "terraform" }],
                "annotations": { "fleetwright.dev/x": "1", "karpenter.sh/nodepool-hash": "9" }
            },
            "spec": { "weight": 5 },
            "status": { "conditions": [] }
        })
    }

    fn digest(object: &Json) -> String {
        let object = PoolObject::from_json(object).expect("an object");
        ClusterPools::new(vec![object], BTreeMap::new()).digest()
    }

    #[test]
    fn digest_changes_with_the_specification_only() {
        let first = served();
        let mut other = first.clone();
        other["status"] = json!({ "resources": { "nodes": "12" } });
        other["metadata"]["resourceVersion"] = json!("8");
        other["metadata"]["annotations"]["karpenter.sh/nodepool-hash"] = json!("10");
        assert_eq!(digest(&first), digest(&other));
        for (at, value) in [
            ("/spec/weight", json!(6)),
            ("/metadata/name", json!("webs")),
            ("/metadata/annotations/fleetwright.dev~1x", json!("2")),
        ] {
            let mut changed = first.clone();
            *changed.pointer_mut(at).expect("a field") = value;
            assert_ne!(digest(&first), digest(&changed), "{at}");
        }
        other["metadata"]["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
        assert_ne!(digest(&first), digest(&other), "a deleted pool");
    }

    #[test]
    fn digest_does_not_depend_on_the_order_of_the_list() {
        let object = |name: &str| {
            let mut object = served();
            object["metadata"]["name"] = json!(name);
            PoolObject::from_json(&object).expect("an object")
        };
        let listed = |names: [&str; 2]| {
            ClusterPools { objects: names.map(object).to_vec(), ..ClusterPools::default() }.digest()
        };
        assert_eq!(listed(["a", "b"]), listed(["b", "a"]));
    }

    #[test]
    fn object_without_a_name_is_an_error() {
        let nameless = json!({ "apiVersion": "v", "kind": "NodePool", "metadata": {} });
        assert!(PoolObject::from_json(&nameless).is_err_and(|why| why.contains("name")));
    }
}
