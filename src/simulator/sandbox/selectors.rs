//! Label and field selectors of lists and watches.

use serde_json::Value as Json;

use super::resource::ServedResource;
use super::status_error::StatusError;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ObjectSelector {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

/// A field selector such as `status.phase!=Running`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    path: String,
    value: String,
    /// True for `=`, false for `!=`.
    must_equal: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelRequirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl ObjectSelector {
    /// Parses both selectors of a query.
    ///
    /// # Errors
    /// Returns an error if a selector is invalid or a field is not supported.
    pub(super) fn parse(
        resource: &ServedResource,
        labels: &str,
        fields: &str,
    ) -> Result<Self, StatusError> {
        let labels =
            clauses(labels).into_iter().map(parse_requirement).collect::<Result<_, _>>()?;
        let fields = clauses(fields).into_iter().map(|clause| parse_field(resource, clause));
        Ok(Self { labels, fields: fields.collect::<Result<_, _>>()? })
    }

    /// Parses the `selector` of an object with `matchLabels` and `matchExpressions`.
    ///
    /// Returns `None` for an absent selector, which selects nothing.
    pub(super) fn from_label_selector(selector: &Json) -> Option<Self> {
        let selector = selector.as_object()?;
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let mut labels: Vec<LabelRequirement> = Vec::new();
        for (key, value) in
            selector.get("matchLabels").and_then(Json::as_object).into_iter().flatten()
        {
            labels.push(LabelRequirement::In(key.clone(), vec![text(value)]));
        }
        for requirement in
            selector.get("matchExpressions").and_then(Json::as_array).into_iter().flatten()
        {
            let values = requirement["values"].as_array().into_iter().flatten().map(text).collect();
            let key = text(&requirement["key"]);
            labels.push(match requirement["operator"].as_str()? {
                "In" => LabelRequirement::In(key, values),
                "NotIn" => LabelRequirement::NotIn(key, values),
                "Exists" => LabelRequirement::Exists(key),
                "DoesNotExist" => LabelRequirement::Absent(key),
                _ => return None,
            });
        }
        Some(Self { labels, fields: Vec::new() })
    }

    pub(super) fn matches(&self, object: &Json) -> bool {
        let label = |key: &str| object["metadata"]["labels"].get(key).and_then(Json::as_str);
        self.labels.iter().all(|requirement| match requirement {
            LabelRequirement::In(key, values) => {
                label(key).is_some_and(|v| values.iter().any(|w| w == v))
            }
            LabelRequirement::NotIn(key, values) => {
                !label(key).is_some_and(|v| values.iter().any(|w| w == v))
            }
            LabelRequirement::Exists(key) => label(key).is_some(),
            LabelRequirement::Absent(key) => label(key).is_none(),
        }) && self.fields.iter().all(|field| {
            let is_equal = value_at(object, &field.path) == *field.value;
            is_equal == field.must_equal
        })
    }
}

/// Splits a selector at commas outside parentheses.
fn clauses(text: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut out) = (0_u32, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                out.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    out.push(&text[begin..]);
    out.retain(|clause| !clause.trim().is_empty());
    out
}

fn parse_requirement(clause: &str) -> Result<LabelRequirement, StatusError> {
    let clause = clause.trim();
    let one = |key: &str, value: &str| (key.trim().to_owned(), vec![value.trim().to_owned()]);
    if let Some((key, value)) = clause.split_once("!=") {
        let (key, values) = one(key, value);
        return Ok(LabelRequirement::NotIn(key, values));
    }
    if let Some((key, value)) = clause.split_once("==").or_else(|| clause.split_once('=')) {
        let (key, values) = one(key, value);
        return Ok(LabelRequirement::In(key, values));
    }
    if let Some(inner) = clause.strip_suffix(')') {
        let read = || {
            let (head, values) = inner.split_once('(')?;
            let (key, operator) = head.trim().rsplit_once(' ')?;
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            match operator {
                "in" => Some(LabelRequirement::In(key.trim().to_owned(), values)),
                "notin" => Some(LabelRequirement::NotIn(key.trim().to_owned(), values)),
                _ => None,
            }
        };
        return read().ok_or_else(|| {
            StatusError::bad_request(format!("unable to parse requirement: {clause}"))
        });
    }
    match clause.strip_prefix('!') {
        Some(key) => Ok(LabelRequirement::Absent(key.trim().to_owned())),
        None if clause.contains(' ') => {
            Err(StatusError::bad_request(format!("unable to parse requirement: {clause}")))
        }
        None => Ok(LabelRequirement::Exists(clause.to_owned())),
    }
}

fn parse_field(resource: &ServedResource, clause: &str) -> Result<FieldRequirement, StatusError> {
    let parts = clause.split_once("!=").map(|(key, value)| (key, value, false));
    let parts = parts.or_else(|| {
        let (key, value) = clause.split_once("==").or_else(|| clause.split_once('='))?;
        Some((key, value, true))
    });
    let Some((key, value, must_equal)) = parts else {
        return Err(StatusError::bad_request(format!("invalid field selector: {clause}")));
    };
    let key = key.trim();
    if !fields_of(resource.kind).contains(&key)
        && !["metadata.name", "metadata.namespace"].contains(&key)
    {
        return Err(StatusError::bad_request(format!("field label not supported: {key}")));
    }
    Ok(FieldRequirement { path: key.to_owned(), value: value.trim().to_owned(), must_equal })
}

/// Returns the selectable fields of a kind, apart from name and namespace.
fn fields_of(kind: &str) -> &'static [&'static str] {
    match kind {
        "Pod" => &[
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
        ],
        "Node" => &["spec.unschedulable"],
        "Namespace" => &["status.phase"],
        "Event" => &[
            "involvedObject.apiVersion",
            "involvedObject.fieldPath",
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.resourceVersion",
            "involvedObject.uid",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        "Job" => &["status.successful"],
        "ReplicaSet" | "ReplicationController" => &["status.replicas"],
        _ => &[],
    }
}

/// Returns the field at a path as text. A missing field is empty, and a missing flag is false.
fn value_at(object: &Json, path: &str) -> String {
    let found = path.split('.').try_fold(object, |value, key| value.get(key));
    match found {
        Some(Json::String(text)) => text.clone(),
        Some(Json::Bool(flag)) => flag.to_string(),
        Some(Json::Number(number)) => number.to_string(),
        None | Some(Json::Null | Json::Array(_) | Json::Object(_)) => {
            let flag = ["spec.unschedulable", "spec.hostNetwork"].contains(&path);
            if flag { "false".to_owned() } else { String::new() }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_follow_kubernetes() {
        let pod = json!({
            "metadata": { "name": "a", "namespace": "web", "labels": { "app": "api", "tier": "x" } },
            "spec": { "nodeName": "n1" }, "status": { "phase": "Running" }
        });
        let covers = |labels: &str, fields: &str| {
            ObjectSelector::parse(ServedResource::of_kind("Pod"), labels, fields)
                .expect("readable")
                .matches(&pod)
        };
        for (labels, fields, expected) in [
            ("", "", true),
            ("app=api", "", true),
            ("app==api,tier!=y", "", true),
            ("app in (api, web),tier", "", true),
            ("app notin (api,web)", "", false),
            ("other notin (a)", "", true),
            ("!app", "", false),
            ("!other", "", true),
            ("", "spec.nodeName=n1,status.phase!=Failed", true),
            ("", "spec.nodeName=", false),
            ("", "spec.hostNetwork=false", true),
            ("", "metadata.namespace=shop", false),
        ] {
            assert_eq!(covers(labels, fields), expected, "{labels} {fields}");
        }
    }

    #[test]
    fn unsupported_selectors_are_refused() {
        let read =
            |labels, fields| ObjectSelector::parse(ServedResource::of_kind("Pod"), labels, fields);
        for (labels, fields) in [("a near (b)", ""), ("a b", ""), ("", "spec.image=x"), ("", "x")] {
            assert_eq!(read(labels, fields).expect_err("refused").code, 400, "{labels} {fields}");
        }
    }

    #[test]
    fn absent_selector_matches_nothing() {
        let pod = json!({ "metadata": { "labels": { "app": "api" } } });
        let of = |selector: Json| ObjectSelector::from_label_selector(&selector);
        assert_eq!(of(Json::Null), None);
        assert!(of(json!({})).expect("everything").matches(&pod));
        let not = json!({ "matchExpressions": [{ "key": "app", "operator": "DoesNotExist" }] });
        assert!(!of(not).expect("readable").matches(&pod));
    }
}
