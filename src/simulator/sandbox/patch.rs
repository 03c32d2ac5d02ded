//! The patches of Kubernetes: merge (RFC 7386), JSON (RFC 6902) and strategic merge.

use serde_json::{Map, Value as Json};

use super::status_error::StatusError;

/// Applies a patch of a media type to an object.
///
/// # Errors
/// Returns an error if the media type is unknown or the patch does not apply.
pub(super) fn apply_patch(media: &str, object: &Json, patch: Json) -> Result<Json, StatusError> {
    let mut object = object.clone();
    match media {
        "application/merge-patch+json" => json_patch::merge(&mut object, &patch),
        "application/strategic-merge-patch+json" => strategic(&mut object, patch)?,
        "application/json-patch+json" => {
            let patch: json_patch::Patch = serde_json::from_value(patch)
                .map_err(|error| StatusError::bad_request(format!("JSON patch: {error}")))?;
            json_patch::patch(&mut object, &patch)
                .map_err(|error| StatusError::invalid(format!("JSON patch: {error}")))?;
        }
        other => return Err(StatusError::unsupported_media_type(other)),
    }
    Ok(object)
}

/// Returns the fields of `target`. Other values are first replaced by an empty object.
fn ensure_object(target: &mut Json) -> &mut Map<String, Json> {
    if !target.is_object() {
        *target = Json::Object(Map::new());
    }
    target.as_object_mut().expect("made one just now")
}

/// Returns the merge key of a list, or `None` for an atomic list.
///
/// Source: `patchMergeKey` of the types of `k8s.io/api`.
pub(super) fn merge_key(list: &str, items: &[Json]) -> Option<&'static str> {
    Some(match list {
        // Service ports have no container port.
        "ports" if items.iter().any(|item| item["containerPort"].is_null()) => "port",
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "env"
        | "volumes"
        | "imagePullSecrets"
        | "secrets"
        | "resourceClaims"
        | "schedulingGates" => "name",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "ports" => "containerPort",
        "hostAliases" | "podIPs" => "ip",
        "conditions" | "addresses" => "type",
        "ownerReferences" => "uid",
        "topologySpreadConstraints" => "topologyKey",
        _ => return None,
    })
}

/// Lists of plain values that merge as sets.
pub(super) const SETS: [&str; 1] = ["finalizers"];

/// Applies a strategic merge patch: a merge patch in which lists of objects merge by key.
///
/// # Errors
/// Returns an error if a directive is unknown or a list element has no key.
pub(super) fn strategic(target: &mut Json, patch: Json) -> Result<(), StatusError> {
    let Json::Object(mut patch) = patch else {
        *target = patch;
        return Ok(());
    };
    match patch.remove("$patch").as_ref().and_then(Json::as_str) {
        Some("replace") => {
            *target = Json::Object(patch);
            return Ok(());
        }
        Some("delete") => {
            *target = Json::Object(Map::new());
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => {
            return Err(StatusError::bad_request(format!("unknown directive $patch: {other}")));
        }
    }
    let retained = patch.remove("$retainKeys");
    let fields = ensure_object(target);
    if let Some(Json::Array(retained)) = retained {
        fields.retain(|key, _| retained.iter().any(|retained_items| retained_items == key));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let removed = value.as_array().cloned().unwrap_or_default();
            if let Some(Json::Array(items)) = fields.get_mut(list) {
                items.retain(|item| !removed.contains(item));
            }
        } else if key.starts_with("$setElementOrder/") {
            // The order is optional. Elements keep their positions.
        } else if value.is_null() {
            fields.remove(&key);
        } else {
            strategic_field(fields, &key, value)?;
        }
    }
    Ok(())
}

fn strategic_field(
    fields: &mut Map<String, Json>,
    key: &str,
    value: Json,
) -> Result<(), StatusError> {
    let stored = fields.entry(key).or_insert(Json::Null);
    match value {
        Json::Object(_) => strategic(stored, value),
        Json::Array(items) => match merge_key(key, &items) {
            Some(by) if items.iter().all(Json::is_object) => merge_list(stored, items, by),
            Some(_) | None => {
                if SETS.contains(&key)
                    && let Json::Array(had) = stored
                {
                    had.extend(
                        items.into_iter().filter(|item| !had.contains(item)).collect::<Vec<_>>(),
                    );
                } else {
                    *stored = Json::Array(items);
                }
                Ok(())
            }
        },
        plain @ (Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_)) => {
            *stored = plain;
            Ok(())
        }
    }
}

fn merge_list(stored: &mut Json, items: Vec<Json>, by: &str) -> Result<(), StatusError> {
    if items.iter().any(|item| item["$patch"] == "replace") {
        let retained_items = items.into_iter().filter(|item| item.get("$patch").is_none());
        *stored = Json::Array(retained_items.collect());
        return Ok(());
    }
    if !stored.is_array() {
        *stored = Json::Array(Vec::new());
    }
    let list = stored.as_array_mut().expect("made one just now");
    for item in items {
        let Some(key) = item.get(by).filter(|key| !key.is_null()).cloned() else {
            return Err(StatusError::bad_request(format!(
                "an element of a list lacks its key `{by}`"
            )));
        };
        let at = list.iter().position(|stored| stored.get(by) == Some(&key));
        if item["$patch"] == "delete" {
            if let Some(at) = at {
                list.remove(at);
            }
        } else if let Some(at) = at {
            strategic(&mut list[at], item)?;
        } else {
            let mut created = Json::Null;
            strategic(&mut created, item)?;
            list.push(created);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MERGE: &str = "application/merge-patch+json";
    const STRATEGIC: &str = "application/strategic-merge-patch+json";
    const STEPS: &str = "application/json-patch+json";

    #[test]
    fn patch_types_follow_their_specifications() {
        let object = json!({
            "metadata": { "labels": { "a": "1", "b": "2" }, "finalizers": ["x"] },
            "spec": { "containers": [{ "name": "api", "image": "1" }, { "name": "log" }],
                      "taints": [{ "key": "a", "effect": "NoSchedule" }] }
        });
        let at = |media, patch, pointer: &str| {
            let done = apply_patch(media, &object, patch).expect("it fits");
            done.pointer(pointer).cloned().unwrap_or_default()
        };
        for (media, patch, pointer, expected) in [
            (
                MERGE,
                json!({"metadata": {"labels": {"a": null}}}),
                "/metadata/labels",
                json!({"b": "2"}),
            ),
            (MERGE, json!({"spec": {"containers": []}}), "/spec/containers", json!([])),
            (
                STRATEGIC,
                json!({"spec": {"containers": [{"name": "api", "image": "2"}]}}),
                "/spec/containers",
                json!([{"name": "api", "image": "2"}, {"name": "log"}]),
            ),
            (
                STRATEGIC,
                json!({"spec": {"containers": [{"name": "log", "$patch": "delete"}]}}),
                "/spec/containers",
                json!([{"name": "api", "image": "1"}]),
            ),
            (STRATEGIC, json!({"spec": {"taints": []}}), "/spec/taints", json!([])),
            (
                STRATEGIC,
                json!({"metadata": {"finalizers": ["y"]}}),
                "/metadata/finalizers",
                json!(["x", "y"]),
            ),
            (
                STRATEGIC,
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}),
                "/metadata/finalizers",
                json!([]),
            ),
            (
                STRATEGIC,
                json!({"metadata": {"labels": {"$patch": "replace", "c": "3"}}}),
                "/metadata/labels",
                json!({"c": "3"}),
            ),
            (
                STEPS,
                json!([{"op": "test", "path": "/metadata/labels/a", "value": "1"},
                       {"op": "replace", "path": "/metadata/labels/a", "value": "9"},
                       {"op": "add", "path": "/spec/taints/-", "value": {"key": "b"}},
                       {"op": "remove", "path": "/spec/taints/0"},
                       {"op": "move", "from": "/metadata/labels/b", "path": "/metadata/labels/x~1y"}]),
                "",
                json!({
                    "metadata": { "labels": { "a": "9", "x/y": "2" }, "finalizers": ["x"] },
                    "spec": { "containers": [{ "name": "api", "image": "1" }, { "name": "log" }],
                              "taints": [{ "key": "b" }] }
                }),
            ),
        ] {
            assert_eq!(at(media, patch.clone(), pointer), expected, "{media} {patch}");
        }
    }

    #[test]
    fn inapplicable_patch_is_refused() {
        let object = json!({ "a": [1] });
        for (media, patch, code) in [
            ("application/apply-patch+yaml", json!({}), 415),
            (STEPS, json!({}), 400),
            (STEPS, json!([{"op": "test", "path": "/a/0", "value": 2}]), 422),
            (STEPS, json!([{"op": "remove", "path": "/a/1"}]), 422),
            (STEPS, json!([{"op": "replace", "path": "/b", "value": 1}]), 422),
            (STEPS, json!([{"op": "swap", "path": "/b"}]), 400),
            (STRATEGIC, json!({"containers": [{"image": "1"}]}), 400),
        ] {
            let refused = apply_patch(media, &object, patch.clone()).expect_err("it does not fit");
            assert_eq!(refused.code, code, "{patch}");
        }
    }
}
