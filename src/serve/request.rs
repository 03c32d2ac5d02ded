//! What is asked for: the path of a request, its query and its body.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value as Json;

use super::refusal::Refusal;
use super::resource::Resource;
use super::table::Included;

/// A request, whatever carried it.
#[derive(Debug, Clone, Default)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    /// Type of the body, without parameters.
    pub(super) media: String,
    pub(super) accept: String,
    /// The operation, where a header names it.
    pub(super) target: String,
    pub(super) body: Vec<u8>,
    /// When it arrived.
    pub(super) at: Timestamp,
}

impl Request {
    /// Returns a parameter of the query; empty where it is not given.
    pub(super) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Returns whether a parameter says yes.
    pub(super) fn flag(&self, name: &str) -> bool {
        ["true", "1"].contains(&self.parameter(name))
    }

    /// Returns whether nothing is to be kept.
    pub(super) fn is_dry(&self) -> bool {
        !self.parameter("dryRun").is_empty()
    }

    /// Returns what rows for people are to hold, where those are wanted.
    pub(super) fn table(&self) -> Option<Included> {
        let wanted = self.accept.contains("as=Table") && self.accept.contains("v=v1;");
        wanted.then(|| Included::read(self.parameter("includeObject")))
    }

    pub(super) fn is_protobuf(&self) -> bool {
        self.media.contains("protobuf")
    }

    /// Reads the body.
    ///
    /// # Errors
    /// When it is no JSON; bodies of other types are refused by their name.
    pub(super) fn json(&self) -> Result<Json, Refusal> {
        if self.is_protobuf() || self.media.contains("cbor") {
            return Err(Refusal::media(&self.media));
        }
        // What is applied goes by that name, and JSON is YAML.
        if self.media.contains("yaml") && self.media != super::apply::MEDIA {
            return Err(Refusal::media(&self.media));
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| Refusal::bad(format!("the body is no JSON: {error}")))
    }
}

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target<'p> {
    pub(super) resource: &'static Resource,
    /// Namespace; `None`: all of them, or the sort has none.
    pub(super) namespace: Option<&'p str>,
    /// Name of one object; `None`: the collection.
    pub(super) name: Option<&'p str>,
    pub(super) subresource: Option<&'p str>,
}

impl<'p> Target<'p> {
    /// Reads the path of a sort, a collection or an object.
    ///
    /// # Errors
    /// When nothing is served there.
    pub(super) fn parse(path: &'p str) -> Result<Self, Refusal> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match &parts[..] {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(Refusal::no_path()),
        };
        let find =
            |plural: &str| Resource::find(group, version, plural).ok_or_else(Refusal::no_path);
        let (resource, namespace, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..] if find(plural).is_ok() => {
                (find(plural)?, Some(*namespace), rest)
            }
            [plural, rest @ ..] => (find(plural)?, None, rest),
            [] => return Err(Refusal::no_path()),
        };
        let (name, subresource) = match rest {
            [] => (None, None),
            [name] => (Some(*name), None),
            [name, subresource] if resource.has(subresource) => (Some(*name), Some(*subresource)),
            _ => return Err(Refusal::no_path()),
        };
        if namespace.is_some() != resource.namespaced && (name.is_some() || namespace.is_some()) {
            return Err(Refusal::no_path());
        }
        Ok(Self { resource, namespace, name, subresource })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_a_collection_an_object_or_a_part_of_it() {
        for (path, expected) in [
            ("/api/v1/pods", Some(("Pod", None, None, None))),
            ("/api/v1/namespaces/web/pods", Some(("Pod", Some("web"), None, None))),
            ("/api/v1/namespaces/web/pods/a", Some(("Pod", Some("web"), Some("a"), None))),
            (
                "/api/v1/namespaces/web/pods/a/eviction",
                Some(("Pod", Some("web"), Some("a"), Some("eviction"))),
            ),
            ("/api/v1/namespaces/web", Some(("Namespace", None, Some("web"), None))),
            (
                "/api/v1/namespaces/web/status",
                Some(("Namespace", None, Some("web"), Some("status"))),
            ),
            ("/api/v1/nodes/n1", Some(("Node", None, Some("n1"), None))),
            ("/apis/apps/v1/deployments", Some(("Deployment", None, None, None))),
            ("/apis/apps/v1/nodes", None),
            ("/api/v1/pods/a", None),
            ("/api/v1/namespaces/web/nodes/n1", None),
            ("/api/v1/nodes/n1/eviction", None),
            ("/api/v1", None),
            ("/", None),
        ] {
            let found = Target::parse(path).ok();
            let found = found.map(|t| (t.resource.kind, t.namespace, t.name, t.subresource));
            assert_eq!(found, expected, "{path}");
        }
    }
}
