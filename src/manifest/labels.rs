//! Labels, selectors and expressions over labels.

use super::api_server_rules::is_subdomain;
use super::decode::{Field, FieldMap, shorten};
use crate::model::desired::Severity;
use crate::model::ids::{LabelKey, LabelValue, Labels};
use crate::model::pod::{Expression, Selector};
use crate::model::requirement::{LabelSet, Operator, normalize_key};
use crate::model::similar_name::most_similar;

/// Maximum length of the name part of a label key, and of a label value.
const NAME_MAX: usize = 63;

/// Maximum length of a label key's prefix.
const PREFIX_MAX: usize = 253;

/// Operators of label selectors.
const SELECTOR_OPERATORS: &[Operator] =
    &[Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist];

/// Operators of node selector terms.
pub(super) const NODE_OPERATORS: &[Operator] = &[
    Operator::In,
    Operator::NotIn,
    Operator::Exists,
    Operator::DoesNotExist,
    Operator::Gt,
    Operator::Lt,
];

/// The kind of object that labels belong to. Deprecated node keys are replaced by current ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LabelOwner {
    /// Labels of pods and other objects.
    Object,
    /// Labels of nodes.
    Node,
}

impl LabelOwner {
    /// Returns the current name of `key`.
    pub(super) fn key(self, key: &str) -> LabelKey {
        match self {
            Self::Object => key.into(),
            Self::Node => normalize_key(key).into(),
        }
    }
}

/// Reads a mapping of labels.
pub(super) fn labels(field: &Field<'_>, owner: LabelOwner) -> Labels {
    let mut labels = Labels::new();
    let Some(map) = field.map() else { return labels };
    for (key, value) in map.entries() {
        let Some(text) = label_value(&value) else { continue };
        check_key(&value, key);
        let existing = labels.insert(owner.key(key), text.clone());
        if let Some(existing) = existing.filter(|existing| *existing != text) {
            value.error(
                format_args!("says `{text}`, but another name of the same label says `{existing}`"),
                "deprecated and current keys of a label must agree".to_owned(),
            );
        }
    }
    labels
}

/// Reads the value of a label.
pub(super) fn label_value(field: &Field<'_>) -> Option<LabelValue> {
    let text = field.text()?;
    if text.len() > NAME_MAX || !(text.is_empty() || is_name(&text)) {
        field.error(
            format_args!("is `{}`, not a label value", shorten(&text)),
            "use at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
                .to_owned(),
        );
        return None;
    }
    Some(LabelValue::from(&*text))
}

/// Reads the key of a label.
pub(super) fn label_key(field: &Field<'_>, owner: LabelOwner) -> Option<LabelKey> {
    let text = field.non_empty_text()?;
    check_key(field, &text);
    Some(owner.key(&text))
}

/// Reads a list of label keys.
pub(super) fn label_keys(field: Option<Field<'_>>, owner: LabelOwner) -> Vec<LabelKey> {
    let Some(field) = field else { return Vec::new() };
    field.items().filter_map(|item| label_key(&item, owner)).collect()
}

/// Returns true for a name with an optional domain, as keys of labels and annotations are.
pub(super) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(p, n)| (Some(p), n));
    let prefix_ok = prefix.is_none_or(|p| p.len() <= PREFIX_MAX && is_subdomain(p));
    prefix_ok && name.len() <= NAME_MAX && is_name(name)
}

fn check_key(field: &Field<'_>, key: &str) {
    if !is_qualified_name(key) {
        let hint = "write it as name or domain/name".to_owned();
        field.error(format_args!("has the label key `{}`, which is not valid", shorten(key)), hint);
    }
}

/// Returns whether `text` is letters, digits, `-`, `_` and `.`, with a letter or digit at both
/// ends.
fn is_name(text: &str) -> bool {
    let outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    outer(bytes.first())
        && outer(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Reads a label selector (`matchLabels` and `matchExpressions`).
pub(super) fn selector(field: &Field<'_>) -> Option<Selector> {
    let map = field.map()?;
    let mut expressions: Vec<Expression> = Vec::new();
    if let Some(exact) = map.get("matchLabels") {
        let exact = labels(&exact, LabelOwner::Object);
        expressions.extend(exact.into_iter().map(|(key, value)| Expression {
            key,
            operator: Operator::In,
            values: vec![value],
        }));
    }
    if let Some(listed) = map.get("matchExpressions") {
        expressions.extend(
            listed
                .items()
                .filter_map(|item| expression(&item, LabelOwner::Object, SELECTOR_OPERATORS)),
        );
    }
    map.finish(Severity::Warning);
    Some(Selector(expressions))
}

/// Reads `{key, operator, values}`, with one of the `allowed` operators.
pub(super) fn expression(
    field: &Field<'_>,
    owner: LabelOwner,
    allowed: &[Operator],
) -> Option<Expression> {
    let map = field.map()?;
    let parsed = expression_of(&map, owner, allowed);
    map.finish(Severity::Warning);
    parsed
}

/// Reads key, operator and values from a mapping that may have further keys.
pub(super) fn expression_of(
    map: &FieldMap<'_>,
    owner: LabelOwner,
    allowed: &[Operator],
) -> Option<Expression> {
    let key = map.required("key");
    let operator = map.required("operator");
    let values = map.get("values");
    let key = key.and_then(|key| label_key(&key, owner));
    let operator = operator.and_then(|field| operator_of(&field, allowed));
    let before = values.map_or(0, |field| field.items().count());
    let values: Vec<LabelValue> = match &values {
        Some(field) => field.items().filter_map(|item| label_value(&item)).collect(),
        None => Vec::new(),
    };
    let (key, operator) = (key?, operator?);
    if values.len() != before {
        return None;
    }
    let texts: Vec<&str> = values.iter().map(LabelValue::as_str).collect();
    if let Err(error) = LabelSet::from_operator(operator, &texts) {
        let listed = texts.join(", ");
        map.field.error(format_args!("for `{key}`: {error}, not [{}]", shorten(&listed)), None);
        return None;
    }
    Some(Expression { key, operator, values })
}

fn operator_of(field: &Field<'_>, allowed: &[Operator]) -> Option<Operator> {
    let text = field.text()?;
    if let Some(operator) = Operator::from_name(&text).filter(|known| allowed.contains(known)) {
        return Some(operator);
    }
    let known = Operator::ALL.iter().filter(|(_, operator)| allowed.contains(operator));
    let names: Vec<&str> = known.map(|(name, _)| *name).collect();
    field.error(
        format_args!("is `{}`, not one of {}", shorten(&text), names.join(", ")),
        most_similar(&text, &names).map(|name| format!("write {name}")),
    );
    None
}
