//! Canonical JSON: equal values give equal bytes, on every computer and in every release.
//!
//! This module handles any JSON and is independent of plans. Keys are sorted by code point, numbers
//! are integers, and strings carry only the escapes that JSON requires. There are two spellings.
//! [`compact`] has no white space and is used for hashes. [`pretty`] indents by two spaces, ends in
//! a line feed and is used for files. Invariant: every float is an error. This includes whole
//! numbers, and NaN, which other writers turn into `null`.
//!
//! ```
//! use std::collections::BTreeMap;
//! use fleetwright::plan::canonical;
//! let value = BTreeMap::from([("b", vec![1, 2]), ("a", vec![])]);
//! assert_eq!(canonical::compact(&value).unwrap(), r#"{"a":[],"b":[1,2]}"#);
//! assert!(canonical::compact(&0.5).is_err());
//! ```

mod writer;

use std::fmt::Write as _;

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use writer::{Spelling, to_text};

/// Spaces for each level of [`pretty`].
const INDENT: usize = 2;

/// Reasons why a value has no canonical form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CanonicalError {
    /// A float, which other writers may print differently.
    #[error("{0} is a float; use an integer or a decimal text")]
    Float(String),
    /// Raw bytes, which JSON does not have.
    #[error("raw bytes have no canonical form; use text")]
    Bytes,
    /// An integer beyond 64 bits.
    #[error("{0} does not fit into 64 bits")]
    Wide(String),
    /// An object key that is neither a string nor an integer.
    #[error("a key of an object is neither text nor an integer")]
    Key,
    /// A key that occurs twice in one object.
    #[error("key `{0}` occurs twice in one object")]
    DuplicateKey(String),
    /// The value's own serializer failed.
    #[error("{0}")]
    Refused(String),
}

/// Returns `value` as canonical JSON without white space.
///
/// # Errors
/// If the value holds a float or raw bytes, or keys that clash or are neither strings nor integers.
pub fn compact<T: Serialize + ?Sized>(value: &T) -> Result<String, CanonicalError> {
    to_text(value, Spelling::Compact)
}

/// Returns the SHA-256 of [`compact`], as 64 hex digits.
///
/// # Errors
/// As [`compact`].
pub fn sha256<T: Serialize + ?Sized>(value: &T) -> Result<String, CanonicalError> {
    Ok(hex::encode(Sha256::digest(compact(value)?.as_bytes())))
}

/// Returns [`sha256`] of a value that has a canonical form.
pub(super) fn hash<T: Serialize + ?Sized>(value: &T) -> String {
    sha256(value).expect("hashed values have no floats and no raw bytes")
}

/// Returns the first `digits` of [`sha256`] of a value that has a canonical form: a part of a plan,
/// or a text.
pub(crate) fn short_digest<T: Serialize + ?Sized>(value: &T, digits: usize) -> String {
    let mut digest = hash(value);
    digest.truncate(digits);
    digest
}

/// Returns `value` as canonical JSON with two spaces for each level and a final line feed.
///
/// Users read it in terminals, and CI systems log it. Terminal control characters and
/// [`COMMAND_MARK`] are therefore escaped; the escapes read back as the same value.
///
/// # Errors
/// If the value holds a float or raw bytes, or keys that clash or are neither strings nor integers.
pub fn pretty<T: Serialize + ?Sized>(value: &T) -> Result<String, CanonicalError> {
    let mut text = escape_commands(to_text(value, Spelling::Pretty)?);
    text.push('\n');
    Ok(text)
}

/// Characters with which commands of CI systems begin, such as `##[command]` of GitHub and
/// `##vso[command]` of Azure Pipelines. They run anywhere in a line of a log.
pub const COMMAND_MARK: &str = "##";

/// Returns JSON without [`COMMAND_MARK`]. It occurs only in strings, so the JSON reads back as the
/// same value.
fn escape_commands(json: String) -> String {
    if json.contains(COMMAND_MARK) { json.replace(COMMAND_MARK, "#\\u0023") } else { json }
}

/// Returns whether a terminal interprets `c` instead of printing it: C1 controls, bidirectional
/// overrides, line and paragraph separators. JSON itself escapes C0 controls.
pub fn is_terminal_control(c: char) -> bool {
    matches!(c,
        '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}')
}

/// Returns JSON with escapes for terminal control characters and [`COMMAND_MARK`]. They occur only in
/// strings, so the JSON reads back as the same value.
pub fn escape_terminal_controls(json: &str) -> String {
    if !json.contains(is_terminal_control) {
        return escape_commands(json.to_owned());
    }
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if is_terminal_control(c) {
            // Writing to a `String` cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    escape_commands(out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn compact_form_sorts_keys_without_white_space() {
        #[derive(Serialize)]
        struct Shape {
            z: u8,
            a: Option<i64>,
            m: BTreeMap<i32, &'static str>,
        }
        let value = Shape { z: 1, a: None, m: [(10, "x"), (9, "y")].into() };
        assert_eq!(compact(&value).unwrap(), r#"{"a":null,"m":{"10":"x","9":"y"},"z":1}"#);
    }

    #[test]
    fn terminal_controls_are_escaped_in_files() {
        let value = json!({"a": "x\u{202e}y\u{9b}"});
        let text = pretty(&value).unwrap();
        assert_eq!(text, "{\n  \"a\": \"x\\u202ey\\u009b\"\n}\n");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn commands_of_ci_systems_are_escaped_in_files() {
        let value = json!({"a\\##[x]": "##vso[task.x]y ###[z]"});
        for text in [pretty(&value).unwrap(), escape_terminal_controls(&value.to_string())] {
            assert!(!text.contains("##"), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
        assert_eq!(compact("##").unwrap(), r###""##""###, "digests do not change");
    }

    #[test]
    fn pretty_form_indents_by_two_and_ends_in_line_feed() {
        let value = json!({"b": [], "a": [1, {"c": {}}]});
        let expected =
            "{\n  \"a\": [\n    1,\n    {\n      \"c\": {}\n    }\n  ],\n  \"b\": []\n}\n";
        assert_eq!(pretty(&value).unwrap(), expected);
    }

    #[test]
    fn strings_have_only_required_escapes() {
        let text = "\u{0}\u{8}\t\n\u{c}\r\u{1f}\"\\/é\u{7f}\u{2028}😀";
        let expected = "\"\\u0000\\b\\t\\n\\f\\r\\u001f\\\"\\\\/é\u{7f}\u{2028}😀\"";
        assert_eq!(compact(text).unwrap(), expected);
    }

    #[test]
    fn float_is_an_error_everywhere() {
        for (value, shown) in [(1.0, "1"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
            assert_eq!(compact(&vec![Some(value)]), Err(CanonicalError::Float(shown.to_owned())));
        }
        assert!(pretty(&json!({"a": [{"b": 0.5}]})).is_err());
        assert_eq!(compact(&0.5_f32), Err(CanonicalError::Float("0.5".to_owned())));
    }

    #[test]
    fn short_digest_begins_the_full_one() {
        let full = sha256("web").unwrap();
        assert_eq!(short_digest("web", 12), full[..12]);
        assert_ne!(short_digest("web", 12), short_digest("api", 12));
    }

    #[test]
    fn inexact_json_is_an_error() {
        struct Raw;
        impl Serialize for Raw {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(b"x")
            }
        }
        #[derive(Serialize)]
        struct Twice {
            a: u8,
            #[serde(flatten)]
            rest: BTreeMap<&'static str, u8>,
        }
        assert_eq!(compact(&Raw), Err(CanonicalError::Bytes));
        assert_eq!(compact(&BTreeMap::from([((1, 2), 3)])), Err(CanonicalError::Key));
        let twice = Twice { a: 1, rest: [("a", 2)].into() };
        assert_eq!(compact(&twice), Err(CanonicalError::DuplicateKey("a".to_owned())));
        assert_eq!(compact(&u64::MAX).unwrap(), "18446744073709551615");
        let wide = i128::from(u64::MAX) + 1;
        assert_eq!(compact(&wide), Err(CanonicalError::Wide(wide.to_string())));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn both_spellings_parse_to_the_same_value(value in any_json()) {
            for text in [compact(&value).unwrap(), pretty(&value).unwrap()] {
                prop_assert_eq!(&serde_json::from_str::<Value>(&text).unwrap(), &value);
            }
        }

        #[test]
        fn rewriting_changes_no_byte(value in any_json()) {
            let text = compact(&value).unwrap();
            prop_assert_eq!(&compact(&serde_json::from_str::<Value>(&text).unwrap()).unwrap(), &text);
        }
    }
}
