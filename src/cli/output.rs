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
            let mut escapes = Escapes::new(&json);
            let value = escapes.take_out(value);
            let yaml = serde_saphyr::to_string(&value).map_err(CliError::new)?;
            Ok(escapes.put_back(&yaml))
        }
    }
}

/// Keys and strings with terminal control characters or commands of CI systems: YAML would write
/// them raw.
///
/// A word stands for each of them while the YAML is written. A JSON string with escapes then
/// replaces the word; it is also YAML and reads back as the same text.
struct Escapes {
    word: String,
    literals: Vec<String>,
}

impl Escapes {
    /// Returns an empty list, with a word that does not occur in `json`.
    fn new(json: &str) -> Self {
        let mut word = "escaped".to_owned();
        while json.contains(&word) {
            word.push('x');
        }
        Self { word, literals: Vec::new() }
    }

    /// Returns a value without terminal control characters and commands.
    fn take_out(&mut self, value: serde_json::Value) -> serde_json::Value {
        use serde_json::Value;
        match value {
            Value::String(text) => Value::String(self.take_out_text(text)),
            Value::Array(items) => {
                Value::Array(items.into_iter().map(|item| self.take_out(item)).collect())
            }
            Value::Object(entries) => {
                let entries = entries.into_iter();
                let entries =
                    entries.map(|(key, item)| (self.take_out_text(key), self.take_out(item)));
                Value::Object(entries.collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }

    fn take_out_text(&mut self, text: String) -> String {
        let is_plain = !text.contains(canonical::is_terminal_control);
        if is_plain && !text.contains(canonical::COMMAND_MARK) {
            return text;
        }
        let literal = serde_json::Value::String(text).to_string();
        self.literals.push(canonical::escape_terminal_controls(&literal));
        self.placeholder(self.literals.len() - 1)
    }

    /// Digits of a fixed number, so that no placeholder is the beginning of another.
    fn placeholder(&self, index: usize) -> String {
        format!("{}{index:020}z", self.word)
    }

    fn put_back(&self, yaml: &str) -> String {
        let mut parts = yaml.split(&self.word);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (index, rest) = part.split_once('z').unwrap_or((part, ""));
            let literal = index.parse::<usize>().ok().and_then(|index| self.literals.get(index));
            out.push_str(literal.map_or("", String::as_str));
            out.push_str(rest);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use saphyr_parser::{Event, Parser, ScalarStyle};
    use serde_json::Value;

    use super::*;
    use crate::testing::sample_plan;

    /// Reads YAML with a parser that has no code in common with the writer.
    fn read(yaml: &str) -> Value {
        let events = Parser::new_from_str(yaml).map(|event| event.expect("YAML").0);
        let mut events = events.filter(|event| {
            !matches!(
                event,
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing
            )
        });
        let first = events.next().expect("a node");
        read_node(first, &mut events)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "every other event is an error or a node")]
    fn read_node<'e>(event: Event<'e>, rest: &mut impl Iterator<Item = Event<'e>>) -> Value {
        match event {
            Event::Scalar(text, ScalarStyle::Plain, ..) => {
                serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned()))
            }
            Event::Scalar(text, ..) => Value::String(text.into_owned()),
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match rest.next().expect("an end") {
                        Event::SequenceEnd => return Value::Array(items),
                        item => items.push(read_node(item, rest)),
                    }
                }
            }
            Event::MappingStart(..) => {
                let mut entries = serde_json::Map::new();
                loop {
                    let key = match rest.next().expect("an end") {
                        Event::MappingEnd => return Value::Object(entries),
                        Event::Scalar(key, ..) => key.into_owned(),
                        other => panic!("not a key: {other:?}"),
                    };
                    let value = rest.next().expect("a value");
                    entries.insert(key, read_node(value, rest));
                }
            }
            other => panic!("unexpected: {other:?}"),
        }
    }

    #[test]
    fn yaml_has_the_values_of_json() {
        let json = sample_plan::plan().with_identity().to_json();
        let yaml = from_json(json.clone(), DocumentFormat::Yaml).expect("written");
        assert_eq!(read(&yaml), serde_json::from_str::<Value>(&json).expect("JSON"));
        assert!(yaml.contains("format_version: "), "{yaml}");
    }

    #[test]
    fn yaml_escapes_terminal_controls_and_keeps_the_text() {
        let value = serde_json::json!({
            "k\u{2066}": "a\u{202e}b\nc\u{9b}d \"x\" \\ y: # z",
            "list": [{ "nested": "e\u{2066}f" }, "escaped00000000000000000000z", "\u{1f600}\u{200f}"],
            "plain": "g\nh",
            "##[set-env name=A]": ["##vso[task.x]y", "### title"],
            "numbers": ["1", "true", "null", 2, "2026-01-01", "a: b", "- c", ""],
        });
        let yaml = from_json(value.to_string(), DocumentFormat::Yaml).expect("written");
        assert!(!yaml.contains(canonical::is_terminal_control), "{yaml:?}");
        assert!(!yaml.contains("##"), "{yaml}");
        for shown in ["\\u2066", "\\u202e", "\\u009b"] {
            assert!(yaml.contains(shown), "{shown}: {yaml}");
        }
        assert_eq!(read(&yaml), value, "{yaml}");
    }
}
