//! Canonical form and digests of specifications.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::super::placeholder::{self, Vars};
use super::super::yaml::{Scalar, YamlNode, YamlValue, resolve};

/// Returns the SHA-256 of `text`, in hex.
pub(in super::super) fn sha256(text: &str) -> Arc<str> {
    hex::encode(Sha256::digest(text)).into()
}

/// Returns `node` as JSON with sorted keys, without its entries named in `skip`.
///
/// Placeholders with a value are replaced.
pub(in super::super) fn canonical(node: &YamlNode<'_>, vars: &Vars, skip: &[&str]) -> String {
    let mut out = String::new();
    write_node(node, vars, skip, ListOrder::Counts, &mut out);
    out
}

/// Returns the SHA-256 of the canonical form of each entry of a map, without those named in `skip`.
/// Null entries are treated as absent. The order of a list has no meaning, as in the hash of
/// Karpenter.
pub(in super::super) fn digests(
    node: &YamlNode<'_>,
    vars: &Vars,
    skip: &[&str],
) -> BTreeMap<String, Arc<str>> {
    let YamlValue::Map(entries) = &node.value else { return BTreeMap::new() };
    let stated = entries.iter().filter(|entry| !skip.contains(&&*entry.key));
    let stated = stated.filter(|entry| !entry.value.is_null());
    let digest = |value: &YamlNode<'_>| {
        let mut out = String::new();
        write_node(value, vars, &[], ListOrder::Ignored, &mut out);
        sha256(&out)
    };
    stated.map(|entry| (entry.key.to_string(), digest(&entry.value))).collect()
}

/// Whether the order of the items of a list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListOrder {
    Counts,
    Ignored,
}

fn write_node(node: &YamlNode<'_>, vars: &Vars, skip: &[&str], order: ListOrder, out: &mut String) {
    match &node.value {
        YamlValue::Plain(text) => {
            let text = placeholder::substitute(text, vars).text;
            match resolve(&text) {
                Scalar::Null => out.push_str("null"),
                Scalar::Bool(value) => out.push_str(if value { "true" } else { "false" }),
                Scalar::Int(int) => out.push_str(&int.to_string()),
                Scalar::Number(number) => out.push_str(number),
                Scalar::Text(text) => write_text(text, out),
            }
        }
        YamlValue::Quoted(text) => write_text(&placeholder::substitute(text, vars).text, out),
        YamlValue::Seq(items) => {
            let text = |item: &YamlNode<'_>| {
                let mut text = String::new();
                write_node(item, vars, &[], order, &mut text);
                text
            };
            let mut items: Vec<String> = items.iter().map(text).collect();
            if order == ListOrder::Ignored {
                items.sort();
            }
            out.push('[');
            out.push_str(&items.join(","));
            out.push(']');
        }
        YamlValue::Map(entries) => {
            let mut sorted: Vec<_> =
                entries.iter().filter(|entry| !skip.contains(&&*entry.key)).collect();
            sorted.sort_by(|a, b| a.key.cmp(&b.key));
            out.push('{');
            for (index, entry) in sorted.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_text(&entry.key, out);
                out.push(':');
                write_node(&entry.value, vars, &[], order, out);
            }
            out.push('}');
        }
        YamlValue::Tagged(tag, inner) => {
            write_text(tag, out);
            write_node(inner, vars, &[], order, out);
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}
