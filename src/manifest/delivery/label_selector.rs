//! Label selectors of generators.

use std::collections::BTreeMap;

use super::super::yaml::{YamlNode, YamlValue};
use super::{items_at, node_at, scalar_text, text_at};

/// Returns whether `labels` match a label selector of Kubernetes. An empty selector matches all.
pub(super) fn matches_labels(
    selector: &YamlNode<'_>,
    labels: &BTreeMap<String, String>,
) -> Result<bool, String> {
    if let Some(YamlValue::Map(entries)) =
        node_at(selector, &["matchLabels"]).map(|node| &node.value)
    {
        for entry in entries {
            if labels.get(&*entry.key) != Some(&scalar_text(&entry.value)) {
                return Ok(false);
            }
        }
    }
    for expression in items_at(selector, &["matchExpressions"]) {
        let key = text_at(expression, &["key"]).unwrap_or_default();
        let value = labels.get(key);
        let is_listed = value.is_some_and(|value| {
            items_at(expression, &["values"]).iter().any(|item| scalar_text(item) == *value)
        });
        let matches = match text_at(expression, &["operator"]).unwrap_or_default() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            operator => {
                let operator = super::super::decode::shorten(operator);
                return Err(format!("its selector has the operator `{operator}`"));
            }
        };
        if !matches {
            return Ok(false);
        }
    }
    Ok(true)
}
