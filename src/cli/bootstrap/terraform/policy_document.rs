//! Policies as blocks of the data source `aws_iam_policy_document`.

use serde_json::{Map, Value as Json, json};

/// Returns the block of a policy, which has a list of statements. Actions, resources, principals
/// and values of conditions become lists.
pub(super) fn from_policy(policy: &Json) -> Json {
    let statements = policy["Statement"].as_array().map(Vec::as_slice).unwrap_or_default();
    json!({ "statement": statements.iter().map(statement).collect::<Vec<_>>() })
}

fn statement(statement: &Json) -> Json {
    let mut block = Map::new();
    for (from, to) in [("Sid", "sid"), ("Effect", "effect")] {
        if let Some(value) = statement.get(from) {
            block.insert(to.to_owned(), value.clone());
        }
    }
    for (from, to) in [("Action", "actions"), ("Resource", "resources")] {
        if let Some(value) = statement.get(from) {
            block.insert(to.to_owned(), list(value));
        }
    }
    if let Some(principal) = statement.get("Principal") {
        block.insert("principals".to_owned(), principals(principal));
    }
    if let Some(conditions) = statement.get("Condition").and_then(Json::as_object) {
        let of_test = |(test, values): (&String, &Json)| {
            let rows = values.as_object().into_iter().flatten();
            let row =
                |(key, value)| json!({ "test": test, "variable": key, "values": list(value) });
            rows.map(row).collect::<Vec<_>>()
        };
        let rows: Vec<Json> = conditions.iter().flat_map(of_test).collect();
        block.insert("condition".to_owned(), rows.into());
    }
    Json::Object(block)
}

/// Returns a list as it is, and any other value in a list.
fn list(value: &Json) -> Json {
    if value.is_array() { value.clone() } else { json!([value]) }
}

fn principals(principal: &Json) -> Json {
    match principal.as_object() {
        Some(all) => {
            let row =
                |(kind, ids): (&String, &Json)| json!({ "type": kind, "identifiers": list(ids) });
            all.iter().map(row).collect()
        }
        None => json!([{ "type": "*", "identifiers": list(principal) }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_becomes_a_block_of_lists() {
        let policy = json!({ "Version": "2012-10-17", "Statement": [
            {
                "Sid": "A", "Effect": "Allow", "Action": "sqs:SendMessage", "Resource": ["a", "b"],
                "Principal": { "Service": "events.amazonaws.com" },
                "Condition": { "Bool": { "k": "false" }, "StringEquals": { "l": ["1", "2"] } },
            },
            { "Effect": "Deny", "Action": ["x"], "Principal": "*" },
        ] });
        let expected = json!({ "statement": [
            {
                "sid": "A", "effect": "Allow", "actions": ["sqs:SendMessage"],
                "resources": ["a", "b"],
                "principals": [{ "type": "Service", "identifiers": ["events.amazonaws.com"] }],
                "condition": [
                    { "test": "Bool", "variable": "k", "values": ["false"] },
                    { "test": "StringEquals", "variable": "l", "values": ["1", "2"] },
                ],
            },
            {
                "effect": "Deny", "actions": ["x"],
                "principals": [{ "type": "*", "identifiers": ["*"] }],
            },
        ] });
        assert_eq!(from_policy(&policy), expected);
    }
}
