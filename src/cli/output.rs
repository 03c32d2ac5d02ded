//! Documents for programs, as JSON or YAML.

use serde::Serialize;

use super::error::CliError;
use crate::plan::canonical;

/// The format of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DocumentFormat {
    Json,
    Yaml,
}

/// Returns a value as a document.
pub(super) fn document<T: Serialize + ?Sized>(
    value: &T,
    format: DocumentFormat,
) -> Result<String, CliError> {
    from_json(canonical::pretty(value).map_err(CliError::new)?, format)
}

/// Returns a JSON document in another format.
pub(super) fn from_json(json: String, format: DocumentFormat) -> Result<String, CliError> {
    match format {
        DocumentFormat::Json => Ok(json),
        DocumentFormat::Yaml => {
            let value: serde_json::Value = serde_json::from_str(&json).map_err(CliError::new)?;
            serde_saphyr::to_string(&escaped(value)).map_err(CliError::new)
        }
    }
}

/// Returns a value with escapes for the terminal control characters of keys and strings: YAML
/// would write them raw.
fn escaped(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::String(text) => Value::String(escaped_text(text)),
        Value::Array(items) => Value::Array(items.into_iter().map(escaped).collect()),
        Value::Object(entries) => {
            let entries = entries.into_iter();
            Value::Object(entries.map(|(key, item)| (escaped_text(key), escaped(item))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

fn escaped_text(text: String) -> String {
    if !text.contains(canonical::is_terminal_control) {
        return text;
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if canonical::is_terminal_control(c) {
            // As `render::escape` does, which also changes characters that are harmless here.
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample_plan;

    #[test]
    fn yaml_has_the_values_of_json() {
        let json = sample_plan::plan().sealed().to_json();
        let yaml = from_json(json.clone(), DocumentFormat::Yaml).expect("written");
        let read: serde_json::Value = serde_saphyr::from_str(&yaml).expect("YAML");
        assert_eq!(read, serde_json::from_str::<serde_json::Value>(&json).expect("JSON"));
        assert!(yaml.contains("format_version: "), "{yaml}");
    }

    #[test]
    fn yaml_escapes_terminal_controls_of_keys_and_strings() {
        let hostile = "a\u{202e}b\nc\u{9b}d";
        let value = serde_json::json!({
            "k\u{2066}": hostile,
            "list": [{ "nested": "e\u{2066}f" }],
            "plain": "g\nh",
        });
        let yaml = from_json(value.to_string(), DocumentFormat::Yaml).expect("written");
        assert!(!yaml.contains(canonical::is_terminal_control), "{yaml:?}");
        for shown in ["u{2066}", "u{202e}", "u{9b}"] {
            assert!(yaml.contains(shown), "{shown}: {yaml}");
        }
    }
}
