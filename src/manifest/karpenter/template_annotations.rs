//! Annotations in the template of a pool.

use super::super::decode::{Field, shorten};
use super::super::labels::is_qualified_name;
use crate::model::node_annotations::{NodeAnnotations, is_reserved_annotation};

/// Annotation of Karpenter that protects the nodes of a pool.
const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";

/// Maximum size of keys and values. The API server stores 256 KiB of annotations for a node, and
/// further clients annotate it.
const BYTES_MAX: usize = 64 << 10;

/// Number of reserved annotations that a warning names.
const NAMED_MAX: usize = 3;

/// The annotations of a template, by their effect.
pub(super) struct TemplateAnnotations {
    /// Annotations that new nodes get.
    pub(super) of_nodes: NodeAnnotations,
    /// True if no node of the pool is disrupted.
    pub(super) do_not_disrupt: bool,
}

/// Reads the annotations of a template. Reserved annotations are reported, and no node gets them.
pub(super) fn template_annotations(field: Option<Field<'_>>) -> TemplateAnnotations {
    let mut found = TemplateAnnotations { of_nodes: NodeAnnotations::new(), do_not_disrupt: false };
    let Some(field) = field else { return found };
    let Some(map) = field.map() else { return found };
    let mut reserved = Vec::new();
    for (key, value) in map.entries() {
        let Some(text) = value.text() else { continue };
        if key == DO_NOT_DISRUPT && text == "true" {
            found.do_not_disrupt = true;
        } else if is_reserved_annotation(key) {
            reserved.push(key);
        } else if is_qualified_name(&key.to_ascii_lowercase()) {
            found.of_nodes.insert(key.to_owned(), text.into_owned());
        } else {
            value.error(
                format_args!("has the annotation key `{}`, which is not valid", shorten(key)),
                "write it as name or domain/name".to_owned(),
            );
        }
    }
    if !reserved.is_empty() {
        let named: Vec<_> = reserved.into_iter().take(NAMED_MAX).map(shorten).collect();
        field.warn(format_args!("is set on no node: {}", named.join(", ")), None);
    }
    let bytes: usize = found.of_nodes.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > BYTES_MAX {
        field.error(
            format_args!("has {bytes} bytes, more than {BYTES_MAX}"),
            "shorten the values".to_owned(),
        );
    }
    found
}
