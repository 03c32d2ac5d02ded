//! The interruption queue and its rules as resources of Terraform.

use serde_json::{Value as Json, json};

use super::super::queue::{QUEUE_ID, map_references};
use super::super::setup::Setup;
use super::{ACCOUNT, Blocks, policy_document};

/// Address of the queue.
pub(super) const QUEUE: &str = "aws_sqs_queue.interruptions";

/// Type of the rules.
const RULE: &str = "aws_cloudwatch_event_rule";

/// End of the identifiers of rules in the template.
const RULE_SUFFIX: &str = "Rule";

/// Adds the resources that `deploy/aws/queue.yaml` declares, with the same properties.
pub(super) fn add(setup: &Setup, data: &mut Blocks, resources: &mut Blocks) {
    for (id, resource) in &setup.queue {
        let resource = map_references(resource, &reference);
        let properties = &resource["Properties"];
        match resource["Type"].as_str() {
            Some("AWS::SQS::Queue") => {
                let block = json!({
                    "name": properties["QueueName"],
                    "message_retention_seconds": properties["MessageRetentionPeriod"],
                    "sqs_managed_sse_enabled": properties["SqsManagedSseEnabled"],
                });
                resources.add("aws_sqs_queue", "interruptions", block);
            }
            Some("AWS::SQS::QueuePolicy") => {
                let document = policy_document::from_policy(&properties["PolicyDocument"]);
                data.add("aws_iam_policy_document", "queue", document);
                let block = json!({
                    "queue_url": format!("${{{QUEUE}.url}}"),
                    "policy": "${data.aws_iam_policy_document.queue.json}",
                });
                resources.add("aws_sqs_queue_policy", "interruptions", block);
            }
            Some("AWS::Events::Rule") => add_rule(id, properties, resources),
            // A test compares the types in the template with these.
            _ => {}
        }
    }
}

fn add_rule(id: &str, properties: &Json, resources: &mut Blocks) {
    let name = rule_name(id);
    let rule = json!({ "event_pattern": properties["EventPattern"].to_string() });
    let targets = properties["Targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    for target in targets {
        let block = json!({
            "rule": format!("${{{RULE}.{name}.name}}"),
            "target_id": target["Id"],
            "arn": target["Arn"],
        });
        resources.add("aws_cloudwatch_event_target", name.clone(), block);
    }
    resources.add(RULE, name, rule);
}

/// Returns the expression of Terraform for a reference within the template of the queue.
fn reference(reference: &Json) -> Option<Json> {
    let url = json!({ "Ref": QUEUE_ID });
    let arn = json!({ "Fn::GetAtt": [QUEUE_ID, "Arn"] });
    let account = json!({ "Ref": "AWS::AccountId" });
    if *reference == url {
        Some(format!("${{{QUEUE}.url}}").into())
    } else if *reference == arn {
        Some(format!("${{{QUEUE}.arn}}").into())
    } else if *reference == account {
        Some(ACCOUNT.account.into())
    } else {
        let id = reference["Fn::GetAtt"][0].as_str().filter(|id| id.ends_with(RULE_SUFFIX))?;
        Some(format!("${{{RULE}.{}.arn}}", rule_name(id)).into())
    }
}

/// Returns the name of the rule that the template of the queue calls `id`.
fn rule_name(id: &str) -> String {
    snake_case(id.trim_end_matches(RULE_SUFFIX))
}

/// Returns `InstanceEvents` as `instance_events`.
fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
