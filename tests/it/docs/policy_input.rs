//! The table of the policy input, which comes from the JSON Schema of plans.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::read;
use super::tables::{Tables, hold, table};

const PAGE: &str = "docs/src/reference/policy-input.md";
const SCHEMA: &str = "plans/plan.schema.json";

/// Keys that the input of policies does not have.
const LEFT_OUT: &[&str] = &["checks", "checksum", "unchanged"];

/// Keys with the members of another key.
const SAME: &[(&str, &str)] = &[
    ("resource_drift[]", "resource_changes[]"),
    ("resource_changes[].change.before", "resource_changes[].change.after"),
];

/// Sections of the table: the beginning of their keys, and the number of names in a key at most.
const SECTIONS: &[(&str, usize)] = &[
    ("resource_changes", 4),
    ("summary", 3),
    ("planned_values", 3),
    ("prior_state", 3),
    ("capacity", 3),
];

struct Input {
    schema: Json,
    rows: BTreeMap<&'static str, Vec<[String; 3]>>,
}

impl Input {
    /// Returns a schema with the members of its definition, without the choice of null.
    fn resolved(&self, schema: &Json) -> Json {
        let choices = schema["anyOf"].as_array();
        let choice = choices.and_then(|all| all.iter().find(|choice| choice["type"] != "null"));
        let reference = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/"));
        match (choice, reference) {
            (Some(choice), _) => self.resolved(choice),
            (None, Some(name)) => self.resolved(&self.schema["$defs"][name]),
            (None, None) => schema.clone(),
        }
    }

    fn type_name(&self, schema: &Json) -> String {
        let resolved = self.resolved(schema);
        let values = resolved["enum"].as_array().cloned().or_else(|| {
            let choices = resolved["oneOf"].as_array()?;
            choices.iter().map(|choice| choice.get("const").cloned()).collect()
        });
        if let Some(values) = values {
            let values = values.iter().filter_map(Json::as_str).map(|value| format!("`{value}`"));
            return values.collect::<Vec<_>>().join(", ");
        }
        let kinds = resolved["type"].as_array();
        let kind = kinds.and_then(|kinds| kinds.iter().find(|kind| *kind != "null"));
        let kind = kind.unwrap_or(&resolved["type"]).as_str();
        match kind {
            Some("array") => "list".to_owned(),
            Some("integer") => "number".to_owned(),
            Some(kind) => kind.to_owned(),
            None => "any".to_owned(),
        }
    }

    fn add(&mut self, path: &str, schema: &Json) {
        let resolved = self.resolved(schema);
        for (key, member) in resolved["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let top = path.split(['.', '[']).next().unwrap_or_default();
            let section = SECTIONS.iter().find(|(name, _)| *name == top);
            let (section, names) = section.copied().unwrap_or(("top level", 1));
            if LEFT_OUT.contains(&path.as_str()) || path.split('.').count() > names {
                continue;
            }
            let target = self.resolved(member);
            let description = member["description"].as_str().or(target["description"].as_str());
            let is_list = target["items"].is_object();
            let inner = if is_list { format!("{path}[]") } else { path.clone() };
            let same = SAME.iter().find(|(name, _)| *name == inner);
            let mut meaning =
                description.unwrap_or_else(|| panic!("{path} has no description")).to_owned();
            if let Some((_, other)) = same {
                meaning = format!("{meaning} Keys as in `{other}`.");
            }
            let section = if path == top { "top level" } else { section };
            let row = [format!("`input.{path}`"), self.type_name(member), meaning];
            self.rows.entry(section).or_default().push(row);
            if same.is_none() {
                self.add(&inner, if is_list { &target["items"] } else { &target });
            }
        }
    }
}

#[test]
fn policy_input_comes_from_the_schema() {
    let schema: Json = serde_json::from_str(&read(SCHEMA)).expect("JSON");
    let mut input = Input { schema: schema.clone(), rows: BTreeMap::new() };
    input.add("", &schema);
    let tables: Tables = input
        .rows
        .iter()
        .map(|(section, rows)| ((*section).to_owned(), table(["key", "type", "meaning"], rows)))
        .collect();
    hold(PAGE, &tables);
}
