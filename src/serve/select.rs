//! Selectors of lists and watches: by labels, and by the few fields that each sort offers.

use serde_json::Value as Json;

use super::refusal::Refusal;
use super::resource::Resource;

/// What an object must be to be in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selection {
    labels: Vec<Wish>,
    /// Fields by path, the value wanted, and whether it must be that one or must not.
    fields: Vec<(String, String, bool)>,
}

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wish {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

impl Selection {
    /// Reads both selectors as queries write them.
    ///
    /// # Errors
    /// When one cannot be read, or names a field that objects of the sort cannot be selected by.
    pub(super) fn read(resource: &Resource, labels: &str, fields: &str) -> Result<Self, Refusal> {
        let labels = clauses(labels).into_iter().map(wish).collect::<Result<_, _>>()?;
        let fields = clauses(fields).into_iter().map(|clause| field(resource, clause));
        Ok(Self { labels, fields: fields.collect::<Result<_, _>>()? })
    }

    /// Reads the `selector` of an object: `matchLabels` and `matchExpressions`.
    ///
    /// `None` where there is none, which selects nothing.
    pub(super) fn of_object(selector: &Json) -> Option<Self> {
        let selector = selector.as_object()?;
        let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
        let mut labels: Vec<Wish> = Vec::new();
        for (key, value) in
            selector.get("matchLabels").and_then(Json::as_object).into_iter().flatten()
        {
            labels.push(Wish::In(key.clone(), vec![text(value)]));
        }
        for wish in selector.get("matchExpressions").and_then(Json::as_array).into_iter().flatten()
        {
            let values = wish["values"].as_array().into_iter().flatten().map(text).collect();
            let key = text(&wish["key"]);
            labels.push(match wish["operator"].as_str()? {
                "In" => Wish::In(key, values),
                "NotIn" => Wish::NotIn(key, values),
                "Exists" => Wish::Exists(key),
                "DoesNotExist" => Wish::Absent(key),
                _ => return None,
            });
        }
        Some(Self { labels, fields: Vec::new() })
    }

    /// Returns whether an object is meant.
    pub(super) fn covers(&self, object: &Json) -> bool {
        let label = |key: &str| object["metadata"]["labels"].get(key).and_then(Json::as_str);
        self.labels.iter().all(|wish| match wish {
            Wish::In(key, values) => label(key).is_some_and(|v| values.iter().any(|w| w == v)),
            Wish::NotIn(key, values) => !label(key).is_some_and(|v| values.iter().any(|w| w == v)),
            Wish::Exists(key) => label(key).is_some(),
            Wish::Absent(key) => label(key).is_none(),
        }) && self.fields.iter().all(|(path, value, is)| (value_at(object, path) == *value) == *is)
    }
}

/// Splits a selector at its commas, but those within brackets.
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

fn wish(clause: &str) -> Result<Wish, Refusal> {
    let clause = clause.trim();
    let one = |key: &str, value: &str| (key.trim().to_owned(), vec![value.trim().to_owned()]);
    if let Some((key, value)) = clause.split_once("!=") {
        let (key, values) = one(key, value);
        return Ok(Wish::NotIn(key, values));
    }
    if let Some((key, value)) = clause.split_once("==").or_else(|| clause.split_once('=')) {
        let (key, values) = one(key, value);
        return Ok(Wish::In(key, values));
    }
    if let Some(inner) = clause.strip_suffix(')') {
        let read = || {
            let (head, values) = inner.split_once('(')?;
            let (key, operator) = head.trim().rsplit_once(' ')?;
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            match operator {
                "in" => Some(Wish::In(key.trim().to_owned(), values)),
                "notin" => Some(Wish::NotIn(key.trim().to_owned(), values)),
                _ => None,
            }
        };
        return read()
            .ok_or_else(|| Refusal::bad(format!("unable to parse requirement: {clause}")));
    }
    match clause.strip_prefix('!') {
        Some(key) => Ok(Wish::Absent(key.trim().to_owned())),
        None if clause.contains(' ') => {
            Err(Refusal::bad(format!("unable to parse requirement: {clause}")))
        }
        None => Ok(Wish::Exists(clause.to_owned())),
    }
}

fn field(resource: &Resource, clause: &str) -> Result<(String, String, bool), Refusal> {
    let parts = clause.split_once("!=").map(|(key, value)| (key, value, false));
    let parts = parts.or_else(|| {
        let (key, value) = clause.split_once("==").or_else(|| clause.split_once('='))?;
        Some((key, value, true))
    });
    let Some((key, value, is)) = parts else {
        return Err(Refusal::bad(format!("invalid field selector: {clause}")));
    };
    let key = key.trim();
    if !fields_of(resource.kind).contains(&key)
        && !["metadata.name", "metadata.namespace"].contains(&key)
    {
        return Err(Refusal::bad(format!("field label not supported: {key}")));
    }
    Ok((key.to_owned(), value.trim().to_owned(), is))
}

/// Returns the fields by which objects of a kind can be selected, beside name and namespace.
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

/// Returns the field at a path as text; what is not there is empty, or false where it is a flag.
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
    fn labels_and_fields_select_as_kubernetes_documents() {
        let pod = json!({
            "metadata": { "name": "a", "namespace": "web", "labels": { "app": "api", "tier": "x" } },
            "spec": { "nodeName": "n1" }, "status": { "phase": "Running" }
        });
        let covers = |labels: &str, fields: &str| {
            Selection::read(Resource::of_kind("Pod"), labels, fields)
                .expect("readable")
                .covers(&pod)
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
    fn what_cannot_be_selected_by_is_refused_and_never_passed_over() {
        let read = |labels, fields| Selection::read(Resource::of_kind("Pod"), labels, fields);
        for (labels, fields) in [("a near (b)", ""), ("a b", ""), ("", "spec.image=x"), ("", "x")] {
            assert_eq!(read(labels, fields).expect_err("refused").code, 400, "{labels} {fields}");
        }
    }

    #[test]
    fn a_selector_of_an_object_that_is_absent_selects_nothing() {
        let pod = json!({ "metadata": { "labels": { "app": "api" } } });
        let of = |selector: Json| Selection::of_object(&selector);
        assert_eq!(of(Json::Null), None);
        assert!(of(json!({})).expect("everything").covers(&pod));
        let not = json!({ "matchExpressions": [{ "key": "app", "operator": "DoesNotExist" }] });
        assert!(!of(not).expect("readable").covers(&pod));
    }
}
