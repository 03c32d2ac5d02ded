//! Custom resource definitions, generated from the types: structural, as the API server requires.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value as Json, json};

use super::{GROUP, ObjectKind, PlanSpec, PlanStatus, PoolSpec, PoolStatus, VERSION};

const HEADER: &str = "\
# Custom resource definitions, generated from the types in src/controller/resources; a test compares them.
";

/// Column of `kubectl get`.
struct PrinterColumn {
    name: &'static str,
    kind: &'static str,
    path: &'static str,
    /// True to show the column only with `-o wide`.
    is_wide: bool,
}

const fn column(name: &'static str, kind: &'static str, path: &'static str) -> PrinterColumn {
    PrinterColumn { name, kind, path, is_wide: false }
}

const fn wide(name: &'static str, kind: &'static str, path: &'static str) -> PrinterColumn {
    PrinterColumn { is_wide: true, ..column(name, kind, path) }
}

const PLAN_COLUMNS: [PrinterColumn; 8] = [
    column("Current", "boolean", ".status.current"),
    column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
    column("Reason", "string", ".status.conditions[?(@.type==\"Ready\")].reason"),
    column("Plan", "string", ".spec.summary"),
    wide("Commit", "string", ".spec.commit"),
    wide("Health", "string", ".status.health"),
    wide("Message", "string", ".status.conditions[?(@.type==\"Ready\")].message"),
    column("Age", "date", ".metadata.creationTimestamp"),
];

const POOL_COLUMNS: [PrinterColumn; 7] = [
    column("Nodes", "integer", ".status.nodes"),
    column("Planned", "integer", ".status.nodesPlanned"),
    column("Hourly", "string", ".status.hourly"),
    column("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
    column("Reason", "string", ".status.conditions[?(@.type==\"Ready\")].reason"),
    column("Commit", "string", ".status.commit"),
    wide("Message", "string", ".status.conditions[?(@.type==\"Ready\")].message"),
];

/// Returns the definitions of all kinds as YAML documents.
///
/// # Panics
/// Panics if a definition cannot be written as YAML. A test writes all of them.
pub fn definitions() -> String {
    let to_yaml = |kind| serde_saphyr::to_string(&definition(kind)).expect("JSON is YAML");
    let all = ObjectKind::ALL.map(to_yaml);
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
    let column = |PrinterColumn { name, kind, path, is_wide }: &PrinterColumn| {
        json!({
            "name": name, "type": kind, "jsonPath": path, "priority": i32::from(*is_wide)
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
