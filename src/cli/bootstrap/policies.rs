//! The IAM policies and trust policies of `deploy/aws`, and their placeholders.

use serde_json::{Map, Value as Json};

use crate::cli::error::CliError;

pub(super) const ADOPT: &str = include_str!("../../../deploy/aws/adopt.json");
pub(super) const APPLY: &str = include_str!("../../../deploy/aws/apply.json");
pub(super) const CONTROLLER: &str = include_str!("../../../deploy/aws/controller.json");
pub(super) const INSTANCE_PROFILES: &str =
    include_str!("../../../deploy/aws/instance-profiles.json");
pub(super) const PLAN: &str = include_str!("../../../deploy/aws/plan.json");
pub(super) const TRUST_GITHUB_APPLY: &str =
    include_str!("../../../deploy/aws/trust-github-apply.json");
pub(super) const TRUST_GITHUB_PLAN: &str =
    include_str!("../../../deploy/aws/trust-github-plan.json");
pub(super) const TRUST_GITLAB_APPLY: &str =
    include_str!("../../../deploy/aws/trust-gitlab-apply.json");
pub(super) const TRUST_GITLAB_PLAN: &str =
    include_str!("../../../deploy/aws/trust-gitlab-plan.json");
pub(super) const TRUST_IRSA: &str = include_str!("../../../deploy/aws/trust-irsa.json");
pub(super) const TRUST_NODE: &str = include_str!("../../../deploy/aws/trust-node.json");
pub(super) const TRUST_POD_IDENTITY: &str =
    include_str!("../../../deploy/aws/trust-pod-identity.json");

/// Values of an account in the syntax of a template, which only its deployment knows.
pub(super) struct AccountSyntax {
    pub(super) account: &'static str,
    pub(super) partition: &'static str,
    pub(super) region: &'static str,
}

impl AccountSyntax {
    /// Returns a text with the values of the account in this syntax. Policies are written for the
    /// partition `aws`.
    pub(super) fn replace(&self, text: &str) -> String {
        text.replace("arn:aws:", &format!("arn:{}:", self.partition))
            .replace("${ACCOUNT}", self.account)
            .replace("${REGION}", self.region)
    }
}

/// Returns an embedded policy with `values` in place of its placeholders. `${ACCOUNT}` and
/// `${REGION}` stay, for the syntax of a template.
///
/// # Errors
/// Fails if the file is not JSON, which a test excludes.
pub(super) fn policy(text: &str, values: &[(&str, &str)]) -> Result<Json, CliError> {
    let policy: Json = serde_json::from_str(text).map_err(CliError::new)?;
    let fill = |text: &str| {
        let filled = |text: String, (name, value): &(&str, &str)| {
            text.replace(&format!("${{{name}}}"), value)
        };
        values.iter().fold(text.to_owned(), filled)
    };
    Ok(map_keys(map_texts(policy, &|text| Json::String(fill(text))), &fill))
}

/// Returns a document with each text replaced by a value.
pub(super) fn map_texts(document: Json, replace: &impl Fn(&str) -> Json) -> Json {
    match document {
        Json::String(text) => replace(&text),
        Json::Array(items) => items.into_iter().map(|item| map_texts(item, replace)).collect(),
        Json::Object(entries) => {
            let entries = entries.into_iter();
            Json::Object(entries.map(|(key, item)| (key, map_texts(item, replace))).collect())
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => document,
    }
}

fn map_keys(document: Json, replace: &impl Fn(&str) -> String) -> Json {
    match document {
        Json::Array(items) => items.into_iter().map(|item| map_keys(item, replace)).collect(),
        Json::Object(entries) => {
            let entry = |(key, item): (String, Json)| (replace(&key), map_keys(item, replace));
            Json::Object(entries.into_iter().map(entry).collect::<Map<_, _>>())
        }
        Json::String(_) | Json::Null | Json::Bool(_) | Json::Number(_) => document,
    }
}
