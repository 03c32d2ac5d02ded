//! The identity of an object: kind, namespace, name.

use std::collections::BTreeMap;

use super::decode::{Map, Namespaces, shorten};
use super::labels::{Of, labels};
use super::yaml::Node;
use crate::ids::{Labels, Namespace, Origin};

/// What `metadata` says.
#[derive(Debug)]
pub(super) struct Meta {
    pub(super) name: String,
    pub(super) namespace: Namespace,
    pub(super) labels: Labels,
    /// Annotations whose values are texts without unresolved parts.
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) origin: Origin,
}

/// Whether objects of a kind live in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Namespaced,
    Cluster,
}

/// Returns the name of an object for messages, as far as it can be told before reading it.
pub(super) fn shown(kind: &str, root: &Node<'_>, place: Place, lives_in: Namespaces<'_>) -> String {
    let metadata = root.get("metadata");
    let part = |key| metadata.and_then(|m| m.get(key)).and_then(Node::text);
    let name = part("name").or_else(|| part("generateName")).unwrap_or("(no name)");
    let (kind, name) = (shorten(kind), shorten(name));
    match place {
        Place::Cluster => format!("{kind} {name}"),
        Place::Namespaced => {
            let namespace = part("namespace").filter(|text| !text.is_empty());
            format!("{kind} {}/{name}", shorten(lives_in.of(namespace)))
        }
    }
}

/// Reads `metadata`; `None` where the object has no name, which is then noted.
pub(super) fn meta(root: &Map<'_>) -> Option<Meta> {
    let scope = root.field.scope;
    let origin = root.field.origin();
    let field = root.need("metadata")?;
    let map = field.map()?;
    let namespace = match map.get("namespace") {
        Some(field) => Some(field.text()?).filter(|text| !text.is_empty()),
        None => None,
    };
    let name = match (map.get("name"), map.get("generateName")) {
        (Some(name), _) => name.filled()?.into_owned(),
        // The API server makes such a name up. This one is the same on every run, and no other
        // object of the repository can have it.
        (None, Some(prefix)) => {
            format!("{}{}:{}", prefix.filled()?, scope.file, root.field.node.line)
        }
        (None, None) => {
            field.error("has neither `name` nor `generateName`", None);
            return None;
        }
    };
    let plain = |field: super::decode::Field<'_>| {
        let read = |(key, value): (&str, super::decode::Field<'_>)| {
            Some((key.to_owned(), value.node.text()?.to_owned()))
        };
        field.map().map(|map| map.entries().filter_map(read).collect()).unwrap_or_default()
    };
    Some(Meta {
        name,
        namespace: Namespace::from(scope.namespaces.of(namespace.as_deref())),
        labels: map.get("labels").map(|f| labels(&f, Of::Object)).unwrap_or_default(),
        annotations: map.get("annotations").map(plain).unwrap_or_default(),
        origin,
    })
}
