//! What an API server does to an object on its way in: names, times, numbers, and what may not change.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value as Json, json};

use super::refusal::Refusal;
use super::resource::Resource;

/// What the UIDs of objects that clients create begin with; the world's own begin otherwise.
pub(super) const UID_PREFIX: &str = "00000000-0000-4000-9000-";

/// Metadata that only the server writes.
const SERVERS_OWN: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "name",
    "namespace",
    "resourceVersion",
    "uid",
];

/// Circumstances of a creation.
#[derive(Debug)]
pub(super) struct Made<'r> {
    /// A number that no other object has.
    pub(super) number: u64,
    pub(super) now: Timestamp,
    /// Who writes.
    pub(super) manager: &'r str,
}

/// Returns a moment as Kubernetes writes it, in whole seconds.
pub(super) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns an object that a client creates, with what the server adds.
///
/// # Errors
/// When it is of another kind or namespace than the path, or has no name.
pub(super) fn new(
    resource: &Resource,
    namespace: Option<&str>,
    mut object: Json,
    made: &Made<'_>,
) -> Result<Json, Refusal> {
    shaped(&object)?;
    let Some(fields) = object.as_object_mut() else {
        return Err(Refusal::bad("the body is no object"));
    };
    for (key, expected) in
        [("kind", resource.kind.to_owned()), ("apiVersion", resource.api_version())]
    {
        let found = fields.entry(key).or_insert_with(|| expected.clone().into());
        if *found != expected {
            return Err(Refusal::bad(format!("{key} is {found}, and the path is of {expected}")));
        }
    }
    let meta = fields.entry("metadata").or_insert_with(|| json!({}));
    let meta = meta.as_object_mut().ok_or_else(|| Refusal::bad("metadata is no object"))?;
    let given = meta.get("namespace").and_then(Json::as_str).filter(|name| !name.is_empty());
    if given.is_some() && given != namespace {
        return Err(Refusal::bad("the namespace of the object is not that of the path"));
    }
    if let Some(namespace) = namespace {
        meta.insert("namespace".to_owned(), namespace.into());
    }
    let named = meta.get("name").and_then(Json::as_str).is_some_and(|name| !name.is_empty());
    if !named {
        let stem = meta.get("generateName").and_then(Json::as_str).unwrap_or_default();
        if stem.is_empty() {
            return Err(Refusal::invalid("metadata.name: Required value".to_owned()));
        }
        let name = format!("{stem}{:05x}", made.number);
        meta.insert("name".to_owned(), name.into());
    }
    meta.insert("uid".to_owned(), format!("{UID_PREFIX}{:012x}", made.number).into());
    meta.insert("creationTimestamp".to_owned(), time(made.now).into());
    meta.insert("generation".to_owned(), 1.into());
    meta.remove("deletionTimestamp");
    meta.remove("managedFields");
    if resource.kind == "Pod" {
        new_pod(fields, made);
    } else if resource.has("status") && resource.kind != "Node" {
        // Nodes alone are created with the state that they report.
        fields.insert("status".to_owned(), json!({}));
    }
    if resource.kind == "Namespace" {
        fields.insert("status".to_owned(), json!({ "phase": "Active" }));
    }
    Ok(object)
}

/// Refuses an object whose parts are none: whoever writes into them relies on that.
fn shaped(object: &Json) -> Result<(), Refusal> {
    for part in ["spec", "status"] {
        let held = &object[part];
        if !held.is_null() && !held.is_object() {
            return Err(Refusal::invalid(format!("{part}: Invalid value: it must be an object")));
        }
    }
    Ok(())
}

fn new_pod(fields: &mut Map<String, Json>, made: &Made<'_>) {
    fields.insert("status".to_owned(), json!({ "phase": "Pending" }));
    let spec = fields.entry("spec").or_insert_with(|| json!({}));
    if spec["schedulerName"].is_null() {
        spec["schedulerName"] = "default-scheduler".into();
    }
    // A pod whose maker chose its node is told by this from one that was bound.
    let set = spec.as_object().into_iter().flat_map(Map::keys);
    let set: Map<String, Json> = set.map(|key| (format!("f:{key}"), json!({}))).collect();
    let manager = if made.manager.is_empty() { "unknown" } else { made.manager };
    fields["metadata"]["managedFields"] = json!([{
        "manager": manager, "operation": "Update", "apiVersion": "v1", "time": time(made.now),
        "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": set }
    }]);
}

/// Refuses a write to an object that is another, or has changed, since the client looked.
pub(super) fn same(resource: &Resource, held: &Json, asked: &Json) -> Result<(), Refusal> {
    let name = held["metadata"]["name"].as_str().unwrap_or_default();
    for key in ["uid", "resourceVersion"] {
        let (is, wanted) = (&held["metadata"][key], &asked["metadata"][key]);
        if wanted.as_str().is_some_and(|wanted| !wanted.is_empty()) && is != wanted {
            let why = if key == "uid" {
                format!(
                    "Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}"
                )
            } else {
                "the object has been modified; please apply your changes to the latest version and \
                 try again"
                    .to_owned()
            };
            return Err(Refusal::conflict(resource.plural, name, &why));
        }
    }
    Ok(())
}

/// Refuses a deletion of an object that is another, or has changed.
pub(super) fn meets(held: &Json, preconditions: &Json) -> Result<(), Refusal> {
    let resource = Resource::of_kind(held["kind"].as_str().unwrap_or("Pod"));
    same(resource, held, &json!({ "metadata": preconditions }))
}

/// Returns an object as an update leaves it: what only the server writes, and the state, stay.
pub(super) fn updated(resource: &Resource, held: &Json, mut asked: Json) -> Result<Json, Refusal> {
    if !asked["metadata"].is_object() {
        return Err(Refusal::bad("the object has no metadata"));
    }
    shaped(&asked)?;
    asked["kind"] = held["kind"].clone();
    asked["apiVersion"] = held["apiVersion"].clone();
    for key in SERVERS_OWN {
        let own = held["metadata"].get(key).cloned();
        let meta = asked["metadata"].as_object_mut().expect("looked at just now");
        match own {
            Some(own) => meta.insert(key.to_owned(), own),
            None => meta.remove(key),
        };
    }
    if resource.has("status") {
        asked["status"] = held["status"].clone();
    }
    if asked["spec"] != held["spec"] {
        let generation = held["metadata"]["generation"].as_i64().unwrap_or(0);
        asked["metadata"]["generation"] = generation.saturating_add(1).into();
    }
    Ok(asked)
}

/// Returns an object with the state that a write of its state asks for.
pub(super) fn with_status(held: &Json, asked: &Json) -> Result<Json, Refusal> {
    shaped(asked)?;
    let mut after = held.clone();
    after["status"] = asked["status"].clone();
    Ok(after)
}

/// Returns an object with the number of replicas that a write of its scale asks for.
pub(super) fn with_scale(held: &Json, asked: &Json) -> Result<Json, Refusal> {
    let replicas = asked["spec"]["replicas"].as_u64();
    let replicas = replicas.ok_or_else(|| {
        Refusal::invalid("spec.replicas: must be a number, and not below 0".to_owned())
    })?;
    let mut after = held.clone();
    after["spec"]["replicas"] = replicas.into();
    let generation = held["metadata"]["generation"].as_i64().unwrap_or(0);
    if after != *held {
        after["metadata"]["generation"] = generation.saturating_add(1).into();
    }
    Ok(after)
}

/// Returns how many replicas an object wants and has, as `kubectl scale` reads it.
pub(super) fn scale(object: &Arc<Json>) -> Json {
    let meta = &object["metadata"];
    let labels = object["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten();
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    let selector: Vec<String> = labels.map(|(k, v)| format!("{k}={}", text(v))).collect();
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "creationTimestamp": meta["creationTimestamp"]
        },
        "spec": { "replicas": object["spec"]["replicas"].as_u64().unwrap_or(1) },
        "status": {
            "replicas": object["status"]["replicas"].as_u64().unwrap_or(0),
            "selector": selector.join(",")
        }
    })
}

/// Returns whether an object that is to go is held back by nothing any more.
pub(super) fn is_released(object: &Json) -> bool {
    let meta = &object["metadata"];
    let free = meta["finalizers"].as_array().is_none_or(Vec::is_empty);
    !meta["deletionTimestamp"].is_null() && free && object["kind"] != "Pod"
}

/// Returns that a request was carried out.
pub(super) fn success() -> Json {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" })
}
