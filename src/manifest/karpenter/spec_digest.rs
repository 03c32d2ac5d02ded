//! Canonical form and digests of specifications.

use std::collections::BTreeMap;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::super::placeholder::{self, Vars};
use super::super::yaml::{Scalar, YamlNode, YamlValue, resolve};
use crate::model::units::Quantity;

/// Returns the SHA-256 of `text`, in hex.
pub(in super::super) fn sha256(text: &str) -> Arc<str> {
    hex::encode(Sha256::digest(text)).into()
}

/// Returns `node` as JSON with sorted keys, without its entries named in `skip`.
///
/// Placeholders with a value are replaced.
pub(in super::super) fn canonical(node: &YamlNode<'_>, vars: &Vars, skip: &[&str]) -> String {
    let form = Form { vars, order: ListOrder::Counts, amounts: Amounts::None };
    let mut out = String::new();
    form.write(node, skip, &mut out);
    out
}

/// Returns the SHA-256 of the canonical form of each entry of a map, without those named in `skip`.
/// Null entries are treated as absent. The order of a list has no meaning, as in the hash of
/// Karpenter. Quantities are compared by value.
pub(in super::super) fn digests(
    node: &YamlNode<'_>,
    vars: &Vars,
    skip: &[&str],
) -> BTreeMap<String, Arc<str>> {
    let YamlValue::Map(entries) = &node.value else { return BTreeMap::new() };
    let stated = entries.iter().filter(|entry| !skip.contains(&&*entry.key));
    let stated = stated.filter(|entry| !entry.value.is_null());
    let digest = |key: &str, value: &YamlNode<'_>| {
        let has_amounts = FIELDS_WITH_AMOUNTS.contains(&key);
        let amounts = if has_amounts { Amounts::Named } else { Amounts::None };
        let mut out = String::new();
        Form { vars, order: ListOrder::Ignored, amounts }.write(value, &[], &mut out);
        sha256(&out)
    };
    stated.map(|entry| (entry.key.to_string(), digest(&entry.key, &entry.value))).collect()
}

/// Whether the order of the items of a list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListOrder {
    Counts,
    Ignored,
}

/// Fields of a node class that contain quantities.
const FIELDS_WITH_AMOUNTS: [&str; 2] = ["blockDeviceMappings", "kubelet"];

/// Keys of a quantity, or of a mapping of quantities.
const AMOUNT_KEYS: [&str; 5] =
    ["evictionHard", "evictionSoft", "kubeReserved", "systemReserved", "volumeSize"];

/// Which values are quantities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Amounts {
    None,
    /// Those below a key of [`AMOUNT_KEYS`].
    Named,
    All,
}

/// How a value is written.
#[derive(Debug, Clone, Copy)]
struct Form<'a> {
    vars: &'a Vars,
    order: ListOrder,
    amounts: Amounts,
}

impl Form<'_> {
    fn write(self, node: &YamlNode<'_>, skip: &[&str], out: &mut String) {
        match &node.value {
            YamlValue::Plain(text) => {
                let text = placeholder::substitute(text, self.vars).text;
                match (self.amount(&text), resolve(&text)) {
                    (Some(amount), _) => write_text(&amount, out),
                    (None, Scalar::Null) => out.push_str("null"),
                    (None, Scalar::Bool(value)) => {
                        out.push_str(if value { "true" } else { "false" });
                    }
                    (None, Scalar::Int(int)) => out.push_str(&int.to_string()),
                    (None, Scalar::Number(number)) => out.push_str(number),
                    (None, Scalar::Text(text)) => write_text(text, out),
                }
            }
            YamlValue::Quoted(text) => {
                let text = placeholder::substitute(text, self.vars).text;
                write_text(self.amount(&text).as_deref().unwrap_or(&text), out);
            }
            YamlValue::Seq(items) => {
                let text = |item: &YamlNode<'_>| {
                    let mut text = String::new();
                    self.write(item, &[], &mut text);
                    text
                };
                let mut items: Vec<String> = items.iter().map(text).collect();
                if self.order == ListOrder::Ignored {
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
                    self.below(&entry.key).write(&entry.value, &[], out);
                }
                out.push('}');
            }
            YamlValue::Tagged(tag, inner) => {
                write_text(tag, out);
                self.write(inner, &[], out);
            }
        }
    }

    /// Returns the form of the value of `key`.
    fn below(self, key: &str) -> Self {
        let is_amount = self.amounts == Amounts::Named && AMOUNT_KEYS.contains(&key);
        Self { amounts: if is_amount { Amounts::All } else { self.amounts }, ..self }
    }

    /// Returns the text of a quantity, which is the same for equal quantities. A share such as `5%` is
    /// none.
    fn amount(self, text: &str) -> Option<String> {
        if self.amounts != Amounts::All {
            return None;
        }
        text.replace('_', "").parse().ok().map(Quantity::canonical)
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}
