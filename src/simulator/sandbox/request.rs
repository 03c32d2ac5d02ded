//! Parses request paths, queries and bodies.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value as Json;

use super::resource::ServedResource;
use super::status_error::StatusError;
use super::table::IncludedObject;

/// Media type of an apply patch.
pub(super) const APPLY_PATCH_MEDIA: &str = "application/apply-patch+yaml";

/// A request, independent of the transport.
#[derive(Debug, Clone, Default)]
pub(super) struct ApiRequest {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    /// Media type of the body without parameters.
    pub(super) media: String,
    pub(super) accept: String,
    /// Operation name from the AWS target header.
    pub(super) target: String,
    pub(super) body: Vec<u8>,
    /// Arrival time.
    pub(super) at: Timestamp,
}

impl ApiRequest {
    /// Returns a query parameter, or an empty text.
    pub(super) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// Returns whether a query parameter is true.
    pub(super) fn flag(&self, name: &str) -> bool {
        ["true", "1"].contains(&self.parameter(name))
    }

    pub(super) fn is_dry_run(&self) -> bool {
        !self.parameter("dryRun").is_empty()
    }

    /// Returns the object format of table rows, if the client requests a table.
    pub(super) fn table_format(&self) -> Option<IncludedObject> {
        let is_table = self.accept.contains("as=Table") && self.accept.contains("v=v1;");
        is_table.then(|| IncludedObject::parse(self.parameter("includeObject")))
    }

    pub(super) fn is_protobuf(&self) -> bool {
        self.media.contains("protobuf")
    }

    /// Parses the body.
    ///
    /// # Errors
    /// Returns an error if it is not JSON. Other media types are refused by name.
    pub(super) fn json(&self) -> Result<Json, StatusError> {
        if self.is_protobuf() || self.media.contains("cbor") {
            return Err(StatusError::unsupported_media_type(&self.media));
        }
        // Apply patches have a YAML media type, and JSON is valid YAML.
        if self.media.contains("yaml") && self.media != APPLY_PATCH_MEDIA {
            return Err(StatusError::unsupported_media_type(&self.media));
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| StatusError::bad_request(format!("the body is not JSON: {error}")))
    }
}

/// The target of a request path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestTarget<'p> {
    pub(super) resource: &'static ServedResource,
    /// Namespace, or `None` for all namespaces and cluster-scoped resources.
    pub(super) namespace: Option<&'p str>,
    /// Name of an object, or `None` for the collection.
    pub(super) name: Option<&'p str>,
    pub(super) subresource: Option<&'p str>,
}

impl<'p> RequestTarget<'p> {
    /// Parses the path of a collection or an object.
    ///
    /// # Errors
    /// Returns an error if the path is not served.
    pub(super) fn parse(path: &'p str) -> Result<Self, StatusError> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match &parts[..] {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return Err(StatusError::unknown_path()),
        };
        let find = |plural: &str| {
            ServedResource::find(group, version, plural).ok_or_else(StatusError::unknown_path)
        };
        let (resource, namespace, rest) = match rest {
            ["namespaces", namespace, plural, rest @ ..] if find(plural).is_ok() => {
                (find(plural)?, Some(*namespace), rest)
            }
            [plural, rest @ ..] => (find(plural)?, None, rest),
            [] => return Err(StatusError::unknown_path()),
        };
        let (name, subresource) = match rest {
            [] => (None, None),
            [name] => (Some(*name), None),
            [name, subresource] if resource.has_subresource(subresource) => {
                (Some(*name), Some(*subresource))
            }
            [_, "attach" | "exec" | "log" | "portforward"] if resource.kind == "Pod" => {
                return Err(StatusError::no_containers());
            }
            _ => return Err(StatusError::unknown_path()),
        };
        if namespace.is_some() != resource.namespaced && (name.is_some() || namespace.is_some()) {
            return Err(StatusError::unknown_path());
        }
        Ok(Self { resource, namespace, name, subresource })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_parsed_to_targets() {
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
            let found = RequestTarget::parse(path).ok();
            let found = found.map(|t| (t.resource.kind, t.namespace, t.name, t.subresource));
            assert_eq!(found, expected, "{path}");
        }
    }
}
