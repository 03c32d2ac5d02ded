//! Custom resource definitions, generated from the types: structural, as the API server requires.

use std::fmt::Write as _;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value as Json, json};

use super::{GROUP, ObjectKind, PlanSpec, PlanStatus, PoolSpec, PoolStatus, VERSION};

const HEADER: &str = "\
# Custom resource definitions, generated from the types in src/controller/resources; a test compares them.
";

/// Column of `kubectl get`: title, type, path, and true to show it only with `-o wide`.
type PrinterColumn = (&'static str, &'static str, &'static str, bool);

const PLAN_COLUMNS: [PrinterColumn; 8] = [
    ("Current", "boolean", ".status.current", false),
    ("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status", false),
    ("Reason", "string", ".status.conditions[?(@.type==\"Ready\")].reason", false),
    ("Plan", "string", ".spec.summary", false),
    ("Commit", "string", ".spec.commit", true),
    ("Health", "string", ".status.health", true),
    ("Message", "string", ".status.conditions[?(@.type==\"Ready\")].message", true),
    ("Age", "date", ".metadata.creationTimestamp", false),
];

const POOL_COLUMNS: [PrinterColumn; 7] = [
    ("Nodes", "integer", ".status.nodes", false),
    ("Planned", "integer", ".status.nodesPlanned", false),
    ("Hourly", "string", ".status.hourly", false),
    ("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status", false),
    ("Reason", "string", ".status.conditions[?(@.type==\"Ready\")].reason", false),
    ("Commit", "string", ".status.commit", false),
    ("Message", "string", ".status.conditions[?(@.type==\"Ready\")].message", true),
];

/// Returns the definitions of all kinds as YAML documents.
#[must_use]
pub fn definitions() -> String {
    let all = ObjectKind::ALL.map(|kind| to_yaml(&definition(kind)));
    format!("{HEADER}{}", all.join("---\n"))
}

fn definition(kind: ObjectKind) -> Json {
    let (short, columns, spec, status) = match kind {
        ObjectKind::CapacityPlan => {
            ("cplan", &PLAN_COLUMNS[..], schema::<PlanSpec>(), schema::<PlanStatus>())
        }
        ObjectKind::CapacityPool => {
            ("cpool", &POOL_COLUMNS[..], schema::<PoolSpec>(), schema::<PoolStatus>())
        }
    };
    let column = |(name, kind, path, wide): &PrinterColumn| {
        json!({
            "name": name, "type": kind, "jsonPath": path, "priority": i32::from(*wide)
        })
    };
    let columns: Vec<Json> = columns.iter().map(column).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{GROUP}", kind.plural()) },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.as_str(), "listKind": format!("{}List", kind.as_str()),
                "plural": kind.plural(), "singular": kind.as_str().to_ascii_lowercase(),
                "shortNames": [short], "categories": ["fleetwright"]
            },
            "scope": "Cluster",
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "apiVersion": { "type": "string" },
                        "kind": { "type": "string" },
                        "metadata": { "type": "object" },
                        "spec": spec,
                        "status": status
                    }
                } }
            }]
        }
    })
}

fn schema<T: JsonSchema>() -> Json {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    structural(&mut schema);
    schema
}

/// Reduces a JSON Schema to a structural schema.
fn structural(schema: &mut Json) {
    let Json::Object(object) = schema else { return };
    object.remove("title");
    // The API server does not know unsigned integer formats.
    if object.get("format").and_then(Json::as_str).is_some_and(|format| format.starts_with("uint"))
    {
        object.remove("format");
    }
    nullable(object);
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = object.get_mut(key) {
            structural(inner);
        }
    }
    if let Some(Json::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(structural);
    }
}

/// Optional properties are nullable.
fn nullable(object: &mut Map<String, Json>) {
    let Some(Json::Array(kinds)) = object.get("type") else { return };
    let other = kinds.iter().find(|kind| *kind != "null").cloned();
    let is_nullable = kinds.iter().any(|kind| kind == "null");
    if let Some(kind) = other {
        object.insert("type".to_owned(), kind);
    }
    if is_nullable {
        object.insert("nullable".to_owned(), true.into());
    }
}

/// Returns a value as YAML with a final newline. Strings use JSON quoting.
fn to_yaml(value: &Json) -> String {
    let mut out = String::new();
    write_yaml(&mut out, value, 0);
    out.trim_start_matches('\n').to_owned() + "\n"
}

fn write_yaml(out: &mut String, value: &Json, depth: usize) {
    let pad = "  ".repeat(depth);
    // Writing to a string cannot fail.
    match value {
        Json::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                let _ = write!(out, "\n{pad}{key}:");
                write_yaml(out, value, depth + 1);
            }
        }
        Json::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                write_yaml(&mut inner, item, depth + 1);
                let _ = write!(out, "\n{pad}- {}", inner.trim_start());
            }
        }
        scalar @ (Json::Null
        | Json::Bool(_)
        | Json::Number(_)
        | Json::String(_)
        | Json::Array(_)
        | Json::Object(_)) => {
            let _ = write!(out, " {scalar}");
        }
    }
}
