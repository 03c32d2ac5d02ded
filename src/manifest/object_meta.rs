//! The identity of an object: kind, namespace, name.

use std::collections::BTreeMap;

use super::decode::{FieldMap, NamespaceRules, shorten};
use super::labels::{LabelOwner, labels};
use super::placeholder::{Vars, known_values, substitute};
use super::yaml::YamlNode;
use crate::model::ids::{Labels, Namespace, Origin, PLACE_MARK};

/// The fields of `metadata`.
#[derive(Debug)]
pub(super) struct ObjectMeta {
    pub(super) name: String,
    pub(super) namespace: Namespace,
    pub(super) labels: Labels,
    /// Annotations with literal string values.
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) origin: Origin,
}

/// The scope of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ObjectScope {
    Namespaced,
    Cluster,
}

/// Returns the name of an object for messages, as far as it is known before reading. Placeholders with
/// a value are replaced, so that objects of one template have different names.
pub(super) fn display_name(
    kind: &str,
    root: &YamlNode<'_>,
    object_scope: ObjectScope,
    lives_in: NamespaceRules<'_>,
    vars: &Vars,
) -> String {
    let metadata = root.get("metadata");
    let known = known_values(vars);
    let part = |key| {
        let text = metadata.and_then(|m| m.get(key)).and_then(YamlNode::text)?;
        Some(substitute(text, &known).text)
    };
    let name = part("name").or_else(|| part("generateName")).unwrap_or("(no name)".into());
    let (kind, name) = (shorten(kind), shorten(&name));
    match object_scope {
        ObjectScope::Cluster => format!("{kind} {name}"),
        ObjectScope::Namespaced => {
            let namespace = part("namespace").filter(|text| !text.is_empty());
            format!("{kind} {}/{name}", shorten(lives_in.resolve(namespace.as_deref())))
        }
    }
}

/// Reads `metadata`; `None` after reporting a missing name.
pub(super) fn object_meta(root: &FieldMap<'_>) -> Option<ObjectMeta> {
    let scope = root.field.scope;
    let origin = root.field.origin();
    let field = root.required("metadata")?;
    let map = field.map()?;
    let namespace = match map.get("namespace") {
        Some(field) => Some(field.text()?).filter(|text| !text.is_empty()),
        None => None,
    };
    let name = match (map.get("name"), map.get("generateName")) {
        (Some(name), _) => name.non_empty_text()?.into_owned(),
        // The API server generates such a name. This one is the same on every run and unique in the
        // repository: no name has the mark before the place.
        (None, Some(prefix)) => {
            let (prefix, line) = (prefix.non_empty_text()?, root.field.node.line);
            format!("{prefix}{PLACE_MARK}{}:{line}", scope.file)
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
    Some(ObjectMeta {
        name,
        namespace: Namespace::from(scope.namespaces.resolve(namespace.as_deref())),
        labels: map.get("labels").map(|f| labels(&f, LabelOwner::Object)).unwrap_or_default(),
        annotations: map.get("annotations").map(plain).unwrap_or_default(),
        origin,
    })
}
