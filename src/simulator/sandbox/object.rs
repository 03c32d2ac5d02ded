//! API server processing of objects: metadata, preconditions and validation.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value as Json, json};

use super::resource::ServedResource;
use super::status_error::StatusError;

/// UID prefix of objects that clients created. The world uses another.
pub(super) const UID_PREFIX: &str = "00000000-0000-4000-9000-";

/// Metadata that only the server writes.
const SERVER_OWNED_METADATA: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "name",
    "namespace",
    "resourceVersion",
    "uid",
];

#[derive(Debug)]
pub(super) struct CreationContext<'r> {
    /// A unique number.
    pub(super) number: u64,
    pub(super) now: Timestamp,
    /// Field manager of the request.
    pub(super) manager: &'r str,
}

/// Formats a time as Kubernetes does, in whole seconds.
pub(super) fn format_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns a new object with server-side metadata.
///
/// # Errors
/// Returns an error if kind or namespace differ from the path, or the name is missing.
pub(super) fn create(
    resource: &ServedResource,
    namespace: Option<&str>,
    mut object: Json,
    context: &CreationContext<'_>,
) -> Result<Json, StatusError> {
    check_shape(&object)?;
    let Some(fields) = object.as_object_mut() else {
        return Err(StatusError::bad_request("the body is not an object"));
    };
    for (key, expected) in
        [("kind", resource.kind.to_owned()), ("apiVersion", resource.api_version())]
    {
        let found = fields.entry(key).or_insert_with(|| expected.clone().into());
        if *found != expected {
            return Err(StatusError::bad_request(format!(
                "{key} is {found}, and the path is of {expected}"
            )));
        }
    }
    let meta = fields.entry("metadata").or_insert_with(|| json!({}));
    let meta = meta
        .as_object_mut()
        .ok_or_else(|| StatusError::bad_request("metadata is not an object"))?;
    let given = meta.get("namespace").and_then(Json::as_str).filter(|name| !name.is_empty());
    if given.is_some() && given != namespace {
        return Err(StatusError::bad_request(
            "the namespace of the object is not that of the path",
        ));
    }
    if let Some(namespace) = namespace {
        meta.insert("namespace".to_owned(), namespace.into());
    }
    let named = meta.get("name").and_then(Json::as_str).is_some_and(|name| !name.is_empty());
    if !named {
        let stem = meta.get("generateName").and_then(Json::as_str).unwrap_or_default();
        if stem.is_empty() {
            return Err(StatusError::invalid("metadata.name: Required value".to_owned()));
        }
        let name = format!("{stem}{:05x}", context.number);
        meta.insert("name".to_owned(), name.into());
    }
    meta.insert("uid".to_owned(), format!("{UID_PREFIX}{:012x}", context.number).into());
    meta.insert("creationTimestamp".to_owned(), format_time(context.now).into());
    meta.insert("generation".to_owned(), 1.into());
    meta.remove("deletionTimestamp");
    meta.remove("managedFields");
    if resource.kind == "Pod" {
        new_pod(fields, context);
    } else if resource.has_subresource("status") && resource.kind != "Node" {
        // Only nodes are created with a status.
        fields.insert("status".to_owned(), json!({}));
    }
    if resource.kind == "Namespace" {
        fields.insert("status".to_owned(), json!({ "phase": "Active" }));
    }
    Ok(object)
}

/// Refuses a `spec` or `status` that is not an object, as later code requires.
fn check_shape(object: &Json) -> Result<(), StatusError> {
    for part in ["spec", "status"] {
        let stored = &object[part];
        if !stored.is_null() && !stored.is_object() {
            return Err(StatusError::invalid(format!(
                "{part}: Invalid value: it must be an object"
            )));
        }
    }
    Ok(())
}

fn new_pod(fields: &mut Map<String, Json>, context: &CreationContext<'_>) {
    fields.insert("status".to_owned(), json!({ "phase": "Pending" }));
    let spec = fields.entry("spec").or_insert_with(|| json!({}));
    if spec["schedulerName"].is_null() {
        spec["schedulerName"] = "default-scheduler".into();
    }
    // This mark distinguishes a node that the author chose from a binding.
    let set = spec.as_object().into_iter().flat_map(Map::keys);
    let set: Map<String, Json> = set.map(|key| (format!("f:{key}"), json!({}))).collect();
    let manager = if context.manager.is_empty() { "unknown" } else { context.manager };
    fields["metadata"]["managedFields"] = json!([{
        "manager": manager, "operation": "Update", "apiVersion": "v1", "time": format_time(context.now),
        "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": set }
    }]);
}

/// Refuses a write if UID or resource version differ from the request.
pub(super) fn check_unchanged(
    resource: &ServedResource,
    stored: &Json,
    desired: &Json,
) -> Result<(), StatusError> {
    let name = stored["metadata"]["name"].as_str().unwrap_or_default();
    for key in ["uid", "resourceVersion"] {
        let (actual, expected) = (&stored["metadata"][key], &desired["metadata"][key]);
        if expected.as_str().is_some_and(|expected| !expected.is_empty()) && actual != expected {
            let why = if key == "uid" {
                format!(
                    "Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"
                )
            } else {
                "the object has been modified; please apply your changes to the latest version and \
                 try again"
                    .to_owned()
            };
            return Err(StatusError::conflict(resource.plural, name, &why));
        }
    }
    Ok(())
}

/// Refuses a deletion if a precondition fails.
pub(super) fn check_preconditions(stored: &Json, preconditions: &Json) -> Result<(), StatusError> {
    let resource = ServedResource::of_kind(stored["kind"].as_str().unwrap_or("Pod"));
    check_unchanged(resource, stored, &json!({ "metadata": preconditions }))
}

/// Returns an updated object. Server-owned metadata and status stay.
pub(super) fn apply_update(
    resource: &ServedResource,
    stored: &Json,
    mut desired: Json,
) -> Result<Json, StatusError> {
    if !desired["metadata"].is_object() {
        return Err(StatusError::bad_request("the object has no metadata"));
    }
    check_shape(&desired)?;
    desired["kind"] = stored["kind"].clone();
    desired["apiVersion"] = stored["apiVersion"].clone();
    for key in SERVER_OWNED_METADATA {
        let own = stored["metadata"].get(key).cloned();
        let meta = desired["metadata"].as_object_mut().expect("looked at just now");
        match own {
            Some(own) => meta.insert(key.to_owned(), own),
            None => meta.remove(key),
        };
    }
    if resource.has_subresource("status") {
        desired["status"] = stored["status"].clone();
    }
    if desired["spec"] != stored["spec"] {
        let generation = stored["metadata"]["generation"].as_i64().unwrap_or(0);
        desired["metadata"]["generation"] = generation.saturating_add(1).into();
    }
    Ok(desired)
}

pub(super) fn with_status(stored: &Json, desired: &Json) -> Result<Json, StatusError> {
    check_shape(desired)?;
    let mut after = stored.clone();
    after["status"] = desired["status"].clone();
    Ok(after)
}

pub(super) fn with_scale(stored: &Json, desired: &Json) -> Result<Json, StatusError> {
    let replicas = desired["spec"]["replicas"].as_u64();
    let replicas = replicas.ok_or_else(|| {
        StatusError::invalid("spec.replicas: must be a number, and not below 0".to_owned())
    })?;
    let mut after = stored.clone();
    after["spec"]["replicas"] = replicas.into();
    let generation = stored["metadata"]["generation"].as_i64().unwrap_or(0);
    if after != *stored {
        after["metadata"]["generation"] = generation.saturating_add(1).into();
    }
    Ok(after)
}

/// Returns the `Scale` of an object.
pub(super) fn to_scale(object: &Arc<Json>) -> Json {
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

/// Returns whether a deleted object has no finalizers left.
pub(super) fn is_ready_to_remove(object: &Json) -> bool {
    let meta = &object["metadata"];
    let free = meta["finalizers"].as_array().is_none_or(Vec::is_empty);
    !meta["deletionTimestamp"].is_null() && free && object["kind"] != "Pod"
}

/// Returns a success `Status`.
pub(super) fn success() -> Json {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" })
}
