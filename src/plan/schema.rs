//! The JSON Schema of a plan, as published in `plans/plan.schema.json`.
//!
//! The schema follows from the types of the wire form. Invariant: the file in the repository equals
//! the result of [`plan_schema`]. After a change of the wire form, `UPDATE_GOLDEN=1 cargo test
//! --lib plan::schema` regenerates it.

use schemars::generate::SchemaSettings;

use super::canonical;
use super::wire::{FORMAT_VERSION, Plan};

/// Returns the JSON Schema (2020-12) of a plan, canonical, as in its file.
///
/// It describes the input of readers: optional keys are not required, and keys of newer minor
/// versions are allowed.
pub fn plan_schema() -> String {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Plan>();
    // Each version of the format has its own schema, so a cached schema is never the wrong one.
    let id = format!("https://fleetwright.dev/plan-{FORMAT_VERSION}.schema.json");
    schema.insert("$id".to_owned(), id.into());
    write(&schema)
}

fn write(schema: &schemars::Schema) -> String {
    canonical::pretty(schema).expect("the bounds in the wire form's schema are integers")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use serde_json::Value;

    use super::*;
    use crate::testing::valid_plan::plan;

    fn valid(value: &Value) -> bool {
        let schema: Value = serde_json::from_str(&plan_schema()).unwrap();
        jsonschema::draft202012::new(&schema).unwrap().is_valid(value)
    }

    #[test]
    fn schema_file_matches_the_types() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/plan.schema.json");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, plan_schema()).unwrap();
        }
        let file = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            file == plan_schema(),
            "plans/plan.schema.json is not the schema of the wire form; \
             run UPDATE_GOLDEN=1 cargo test --lib plan::schema"
        );
    }

    #[test]
    fn schema_accepts_plans_and_keys_of_newer_minors() {
        let mut value: Value = serde_json::from_str(&plan().to_json()).unwrap();
        assert!(valid(&value));
        value["capacity"]["novelty"] = true.into();
        assert!(valid(&value));
    }

    #[test]
    fn schema_rejects_invalid_plans() {
        let good: Value = serde_json::from_str(&plan().to_json()).unwrap();
        for change in [
            |value: &mut Value| drop(value["capacity"].as_object_mut().unwrap().remove("digest")),
            |value: &mut Value| value["capacity"]["cost"]["hourly_after"] = 0.5.into(),
            |value: &mut Value| {
                value["resource_changes"][0]["change"]["actions"][0] = "read".into();
            },
            |value: &mut Value| value["summary"]["add"] = "1".into(),
            |value: &mut Value| value["summary"]["add"] = (-1).into(),
            |value: &mut Value| value["timestamp"] = 7.into(),
        ] {
            let mut value = good.clone();
            change(&mut value);
            assert!(!valid(&value), "{value}");
        }
    }
}
