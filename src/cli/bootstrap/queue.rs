//! The interruption queue and its rules, from the template `deploy/aws/queue.yaml`.

use serde_json::{Map, Value as Json, json};

use crate::cli::error::CliError;
use crate::manifest::yaml_to_json;

const QUEUE: &str = include_str!("../../../deploy/aws/queue.yaml");

/// Identifier of the queue itself in the template.
pub(super) const QUEUE_ID: &str = "Queue";

/// Returns the resources of the queue as `CloudFormation` declares them, by identifier. References
/// to the parameter `Name` are `queue`.
///
/// # Errors
/// Fails if the template has no resources, which a test excludes.
pub(super) fn resources(queue: &str) -> Result<Map<String, Json>, CliError> {
    let template = yaml_to_json(QUEUE).unwrap_or_default();
    let Some(resources) = template["Resources"].as_object() else {
        return Err(CliError::text("deploy/aws/queue.yaml declares no resources"));
    };
    let name = json!({ "Ref": "Name" });
    let filled = |reference: &Json| (*reference == name).then(|| Json::from(queue));
    let filled = |(id, one): (&String, &Json)| (id.clone(), map_references(one, &filled));
    Ok(resources.iter().map(filled).collect())
}

/// Returns a value with each reference replaced for which `replace` returns a value. A reference is
/// an object with the only key `Ref` or `Fn::GetAtt`.
pub(super) fn map_references(value: &Json, replace: &impl Fn(&Json) -> Option<Json>) -> Json {
    match value {
        Json::Object(entries) => {
            let is_reference = entries.len() == 1
                && entries.keys().all(|key| ["Ref", "Fn::GetAtt"].contains(&key.as_str()));
            if is_reference {
                return replace(value).unwrap_or_else(|| value.clone());
            }
            let entry =
                |(key, item): (&String, &Json)| (key.clone(), map_references(item, replace));
            Json::Object(entries.iter().map(entry).collect())
        }
        Json::Array(items) => items.iter().map(|item| map_references(item, replace)).collect(),
        Json::String(_) | Json::Null | Json::Bool(_) | Json::Number(_) => value.clone(),
    }
}
