//! The tables of the settings page, which come from the JSON Schema of `fleetwright.yaml`.
//!
//! The test compares each row with the schema. `UPDATE_GOLDEN=1` writes the rows anew; headings and
//! text between the tables are written by hand.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use super::read;
use crate::golden;

const PAGE: &str = "docs/src/reference/fleetwright-yaml.md";
const SCHEMA: &str = "plans/fleet.schema.json";
const HEAD: &str = "| key | type | default | example | meaning |";

/// Definitions with a type of their own in the tables.
const NAMED_TYPES: &[(&str, &str)] = &[
    ("filled", "text"),
    ("path", "path"),
    ("duration", "duration"),
    ("time", "duration, not zero"),
    ("limit", "percentage"),
    ("nodeCountOrPercent", "number or percentage"),
];

/// The schema, and the rows of the tables by key.
struct Reference {
    schema: Json,
    rows: BTreeMap<String, String>,
    /// Keys without description or example, and examples that the schema refuses.
    problems: Vec<String>,
}

impl Reference {
    fn from_schema() -> Self {
        let schema: Json = serde_json::from_str(&read(SCHEMA)).expect("JSON");
        let mut reference =
            Self { schema: schema.clone(), rows: BTreeMap::new(), problems: Vec::new() };
        reference.add_properties("", &schema);
        reference
    }

    fn definition(&self, schema: &Json) -> Option<(String, Json)> {
        // In draft-07, a reference with a description beside it stands below `allOf`.
        let reference = schema["$ref"].as_str().or(schema["allOf"][0]["$ref"].as_str())?;
        let name = reference.strip_prefix("#/definitions/")?;
        Some((name.to_owned(), self.schema["definitions"][name].clone()))
    }

    /// Returns a schema with the members of the definition that it refers to.
    fn resolved(&self, schema: &Json) -> Json {
        let mut members = Map::new();
        if let Some((_, definition)) = self.definition(schema) {
            members.extend(self.resolved(&definition).as_object().into_iter().flatten().map(owned));
        }
        members.extend(schema.as_object().into_iter().flatten().map(owned));
        Json::Object(members)
    }

    fn add_properties(&mut self, path: &str, schema: &Json) {
        let schema = self.resolved(schema);
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (key, member) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            self.add_row(&path, member, required.contains(&Json::from(key.as_str())));
            self.add_properties(&path, member);
        }
        let items = self.resolved(&schema["items"]);
        if items["properties"].is_object() {
            self.add_properties(&format!("{path}[]"), &items);
        }
        let named = &schema["additionalProperties"];
        if named["properties"].is_object() {
            self.add_properties(&format!("{path}.NAME"), named);
        }
    }

    fn add_row(&mut self, path: &str, schema: &Json, is_required: bool) {
        let resolved = self.resolved(schema);
        let kind = self.type_name(schema);
        // The section of a map describes it.
        if resolved["properties"].is_object() {
            return;
        }
        let has_rows = resolved["additionalProperties"]["properties"].is_object()
            || self.resolved(&resolved["items"])["properties"].is_object();
        let description = resolved["description"].as_str();
        let Some(description) = description.or(resolved["const"].as_str().map(|_| "")) else {
            if !has_rows {
                self.problems.push(format!("{path}: no description"));
            }
            return;
        };
        let example = resolved["examples"][0].clone();
        if example.is_null() && !has_rows && resolved["const"].is_null() {
            self.problems.push(format!("{path}: no example"));
        }
        self.check_example(path, schema, &example);
        let (meaning, stated) = without_default(description);
        let default = match resolved.get("default") {
            None => stated.unwrap_or_default(),
            Some(default) => code(default),
        };
        let mut meaning = vec![meaning];
        meaning.extend(is_required.then(|| "Required.".to_owned()));
        meaning.extend((resolved["deprecated"] == true).then(|| "Deprecated.".to_owned()));
        let meaning = meaning.join(" ");
        let row = [format!("`{path}`"), kind, default, code(&example), meaning.trim().to_owned()];
        self.rows.insert(path.to_owned(), format!("| {} |", row.join(" | ")));
    }

    /// Checks an example against its part of the schema.
    fn check_example(&mut self, path: &str, schema: &Json, example: &Json) {
        if example.is_null() {
            return;
        }
        let mut part = schema.clone();
        part["definitions"] = self.schema["definitions"].clone();
        let validator = jsonschema::validator_for(&part).expect("a part of the schema");
        if let Err(error) = validator.validate(example) {
            self.problems.push(format!("{path}: example {example}: {error}"));
        }
    }

    fn type_name(&self, schema: &Json) -> String {
        let definition = self.definition(schema);
        let named =
            definition.and_then(|(name, _)| NAMED_TYPES.iter().find(|(known, _)| *known == name));
        if let Some((_, name)) = named {
            return (*name).to_owned();
        }
        let resolved = self.resolved(schema);
        if let Some(values) = resolved["enum"].as_array() {
            let values = values.iter().filter(|value| !value.is_null()).map(code);
            return values.collect::<Vec<_>>().join(" or ");
        }
        if resolved["const"].is_string() {
            return code(&resolved["const"]);
        }
        if let Some(choices) = resolved["oneOf"].as_array().filter(|_| resolved["type"].is_null()) {
            let names = choices.iter().filter(|choice| choice["type"] != "null");
            let names = names.map(|choice| match choice["type"].as_str() {
                Some("array") => "list".to_owned(),
                _ => self.type_name(choice),
            });
            return names.collect::<Vec<_>>().join(" or ");
        }
        let types = &resolved["type"];
        let types: Vec<&str> = match types.as_array() {
            Some(types) => types.iter().filter_map(Json::as_str).collect(),
            None => types.as_str().into_iter().collect(),
        };
        let mut names: Vec<String> = types
            .into_iter()
            .filter(|name| *name != "null")
            .map(|name| match name {
                "string" => "text".to_owned(),
                "integer" | "number" => "number".to_owned(),
                "boolean" => "`true` or `false`".to_owned(),
                "object" => "map".to_owned(),
                "array" => format!("list of {}", plural(&self.type_name(&resolved["items"]))),
                other => panic!("type {other}"),
            })
            .collect();
        names.sort();
        names.join(" or ")
    }
}

fn owned((key, value): (&String, &Json)) -> (String, Json) {
    (key.clone(), value.clone())
}

/// Returns the name for several values of a type.
fn plural(name: &str) -> String {
    match name {
        "text" | "path" | "map" | "number" => format!("{name}s"),
        other => other.to_owned(),
    }
}

/// Returns a value as YAML, within one line.
fn yaml(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::String(text) if text.contains(':') && !text.contains("//") => format!("\"{text}\""),
        Json::String(text) => text.clone(),
        Json::Array(items) => {
            format!("[{}]", items.iter().map(yaml).collect::<Vec<_>>().join(", "))
        }
        Json::Object(members) => {
            let members = members.iter().map(|(key, value)| format!("{key}: {}", yaml(value)));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        Json::Bool(_) | Json::Number(_) => value.to_string(),
    }
}

fn code(value: &Json) -> String {
    match yaml(value) {
        text if text.is_empty() => text,
        text => format!("`{text}`"),
    }
}

/// Returns a description without its sentence `Default: …`, and what that sentence states.
fn without_default(description: &str) -> (String, Option<String>) {
    let Some((before, rest)) = description.split_once("Default: ") else {
        return (description.to_owned(), None);
    };
    let (default, after) = rest.split_once('.').unwrap_or((rest, ""));
    let text = format!("{} {}", before.trim(), after.trim());
    (text.trim().to_owned(), Some(default.to_owned()))
}

/// Returns the key of a row of a table.
fn row_key(line: &str) -> Option<&str> {
    line.strip_prefix("| `")?.split('`').next()
}

/// Returns the page with the rows of the reference.
fn updated(page: &str, rows: &BTreeMap<String, String>) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in page.lines() {
        match row_key(line).map(|key| rows.get(key)) {
            Some(Some(row)) => lines.push(row.clone()),
            Some(None) => {}
            None if line.starts_with("| key |") => lines.push(HEAD.to_owned()),
            None if line.starts_with("|---") => lines.push("|---|---|---|---|---|".to_owned()),
            None => lines.push(line.to_owned()),
        }
    }
    for (key, row) in rows {
        if lines.iter().any(|line| row_key(line) == Some(key)) {
            continue;
        }
        // Below the last row of the same map.
        let parent = key.rsplit_once('.').map_or("", |(parent, _)| parent);
        let place =
            lines.iter().rposition(|line| row_key(line).is_some_and(|key| key.starts_with(parent)));
        let place = place.unwrap_or_else(|| panic!("{PAGE} needs a table for {key}"));
        lines.insert(place + 1, row.clone());
    }
    lines.join("\n") + "\n"
}

#[test]
fn settings_page_has_the_rows_of_the_schema() {
    let reference = Reference::from_schema();
    assert!(reference.rows.len() > 70, "{} rows", reference.rows.len());
    assert!(reference.problems.is_empty(), "{}", reference.problems.join("\n"));
    let page = read(PAGE);
    let expected = updated(&page, &reference.rows);
    golden::hold(PAGE, &expected).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn missing_and_outdated_rows_are_written() {
    let rows = [("spec.a.b", "| `spec.a.b` | new |"), ("spec.a.c", "| `spec.a.c` | added |")];
    let rows = rows.map(|(key, row)| (key.to_owned(), row.to_owned())).into();
    let page = "Text.\n\n| `spec.a.b` | old |\n| `spec.a.gone` | old |\n\nEnd.\n";
    let expected = "Text.\n\n| `spec.a.b` | new |\n| `spec.a.c` | added |\n\nEnd.\n";
    assert_eq!(updated(page, &rows), expected);
    assert_eq!(
        without_default("One. Default: two. Three."),
        ("One. Three.".to_owned(), Some("two".to_owned()))
    );
}
