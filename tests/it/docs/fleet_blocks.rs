//! The `fleetwright.yaml` blocks of the pages, validated against its JSON Schema.

use serde_json::{Value as Json, json};

use super::{pages_below, read};

const SCHEMA: &str = "plans/fleet.schema.json";

/// Returns the YAML blocks of a page, without their indentation in lists.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for line in page.lines() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        open = match open {
            None if text == "```yaml" => Some((indent, String::new())),
            None => None,
            Some((_, block)) if text.starts_with("```") => {
                blocks.push(block);
                None
            }
            Some((by, mut block)) => {
                block.push_str(line.get(by.min(indent)..).unwrap_or_default());
                block.push('\n');
                Some((by, block))
            }
        };
    }
    blocks
}

/// Returns a block as a whole `fleetwright.yaml`, or `None` if it is another file. A part is
/// completed with the required settings.
fn as_fleet(block: &str) -> Option<Json> {
    let mut fleet: Json = serde_saphyr::from_str(block).expect("YAML");
    if fleet["kind"].as_str().unwrap_or("Fleet") != "Fleet" || !fleet["spec"].is_object() {
        return None;
    }
    let required = json!({
        "apiVersion": "fleetwright.dev/v1", "kind": "Fleet", "metadata": { "name": "x" },
    });
    for (key, value) in required.as_object().expect("an object") {
        if fleet[key].is_null() {
            fleet[key] = value.clone();
        }
    }
    if fleet["spec"]["cluster"].is_null() {
        fleet["spec"]["cluster"] = json!({ "name": "x", "region": "us-east-1" });
    }
    Some(fleet)
}

#[test]
fn fleet_blocks_of_the_pages_match_the_schema() {
    let schema: Json = serde_json::from_str(&read(SCHEMA)).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let (mut checked, mut wrong) = (0, Vec::new());
    for page in pages_below("docs/src").into_iter().chain(["README.md".to_owned()]) {
        for fleet in blocks(&read(&page)).iter().filter_map(|block| as_fleet(block)) {
            checked += 1;
            let errors = validator.iter_errors(&fleet);
            wrong.extend(errors.map(|error| format!("{page}: {}: {error}", error.instance_path())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked >= 10, "{checked} blocks");
}

#[test]
fn misspelled_key_in_a_block_is_found() {
    let schema: Json = serde_json::from_str(&read(SCHEMA)).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let page = "1. Text:\n\n   ```yaml\n   spec:\n     demmand: { lead: 10m }\n   ```\n";
    let fleet = blocks(page).iter().find_map(|block| as_fleet(block)).expect("a block");
    assert!(!validator.is_valid(&fleet));
    assert_eq!(as_fleet("kind: NodePool\nspec: {}\n"), None);
    assert_eq!(as_fleet("include:\n- local: a.yml\n"), None);
}
