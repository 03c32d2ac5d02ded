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
    write_node(node, vars, skip, &mut out);
    out
}

/// Returns the SHA-256 of the canonical form of each entry of a map, without those named in `skip`.
/// Null entries are treated as absent.
pub(in super::super) fn digests(
    node: &YamlNode<'_>,
    vars: &Vars,
    skip: &[&str],
) -> BTreeMap<String, Arc<str>> {
    let YamlValue::Map(entries) = &node.value else { return BTreeMap::new() };
    let stated = entries.iter().filter(|entry| !skip.contains(&&*entry.key));
    let stated = stated.filter(|entry| !entry.value.is_null());
    stated.map(|e| (e.key.to_string(), sha256(&canonical(&e.value, vars, &[])))).collect()
}

fn write_node(node: &YamlNode<'_>, vars: &Vars, skip: &[&str], out: &mut String) {
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
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_node(item, vars, &[], out);
            }
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
                write_node(&entry.value, vars, &[], out);
            }
            out.push('}');
        }
        YamlValue::Tagged(tag, inner) => {
            write_text(tag, out);
            write_node(inner, vars, &[], out);
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}
