//! The patches of Kubernetes: merge (RFC 7386), JSON (RFC 6902) and strategic merge.

use serde_json::{Map, Value as Json};

use super::refusal::Refusal;

/// Applies a patch of a media type to an object.
///
/// # Errors
/// When the type is not known, or the patch does not fit.
pub(super) fn patched(media: &str, object: &Json, patch: Json) -> Result<Json, Refusal> {
    let mut object = object.clone();
    match media {
        "application/merge-patch+json" => merge(&mut object, patch),
        "application/strategic-merge-patch+json" => strategic(&mut object, patch)?,
        "application/json-patch+json" => {
            let Json::Array(steps) = patch else {
                return Err(Refusal::bad("a JSON patch is a list of steps"));
            };
            for step in &steps {
                apply(&mut object, step)?;
            }
        }
        other => return Err(Refusal::media(other)),
    }
    Ok(object)
}

/// Applies a merge patch: null removes, objects merge, anything else replaces.
pub(super) fn merge(target: &mut Json, patch: Json) {
    let Json::Object(patch) = patch else {
        *target = patch;
        return;
    };
    let fields = fields_of(target);
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(&key);
        } else {
            merge(fields.entry(key).or_insert(Json::Null), value);
        }
    }
}

/// Returns the fields of an object; of anything else, it becomes one first.
fn fields_of(target: &mut Json) -> &mut Map<String, Json> {
    if !target.is_object() {
        *target = Json::Object(Map::new());
    }
    target.as_object_mut().expect("made one just now")
}

/// Returns the key by which elements of a list are the same; `None` where a list is one value.
///
/// Source: `patchMergeKey` of the types of `k8s.io/api`.
pub(super) fn merge_key(list: &str, items: &[Json]) -> Option<&'static str> {
    Some(match list {
        // Those of a Service have none of a container.
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

/// Applies a strategic merge patch: as a merge patch, but that lists of objects merge by a key.
///
/// # Errors
/// When a directive is not known, or an element of such a list has no key.
pub(super) fn strategic(target: &mut Json, patch: Json) -> Result<(), Refusal> {
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
        Some(other) => return Err(Refusal::bad(format!("unknown directive $patch: {other}"))),
    }
    let retained = patch.remove("$retainKeys");
    let fields = fields_of(target);
    if let Some(Json::Array(retained)) = retained {
        fields.retain(|key, _| retained.iter().any(|kept| kept == key));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().cloned().unwrap_or_default();
            if let Some(Json::Array(items)) = fields.get_mut(list) {
                items.retain(|item| !gone.contains(item));
            }
        } else if key.starts_with("$setElementOrder/") {
            // An order is a wish; elements stay where they are.
        } else if value.is_null() {
            fields.remove(&key);
        } else {
            strategic_field(fields, &key, value)?;
        }
    }
    Ok(())
}

fn strategic_field(fields: &mut Map<String, Json>, key: &str, value: Json) -> Result<(), Refusal> {
    let held = fields.entry(key).or_insert(Json::Null);
    match value {
        Json::Object(_) => strategic(held, value),
        Json::Array(items) => match merge_key(key, &items) {
            Some(by) if items.iter().all(Json::is_object) => merge_list(held, items, by),
            Some(_) | None => {
                if SETS.contains(&key)
                    && let Json::Array(had) = held
                {
                    had.extend(
                        items.into_iter().filter(|item| !had.contains(item)).collect::<Vec<_>>(),
                    );
                } else {
                    *held = Json::Array(items);
                }
                Ok(())
            }
        },
        plain @ (Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_)) => {
            *held = plain;
            Ok(())
        }
    }
}

fn merge_list(held: &mut Json, items: Vec<Json>, by: &str) -> Result<(), Refusal> {
    if items.iter().any(|item| item["$patch"] == "replace") {
        let kept = items.into_iter().filter(|item| item.get("$patch").is_none());
        *held = Json::Array(kept.collect());
        return Ok(());
    }
    if !held.is_array() {
        *held = Json::Array(Vec::new());
    }
    let list = held.as_array_mut().expect("made one just now");
    for item in items {
        let Some(key) = item.get(by).filter(|key| !key.is_null()).cloned() else {
            return Err(Refusal::bad(format!("an element of a list lacks its key `{by}`")));
        };
        let at = list.iter().position(|held| held.get(by) == Some(&key));
        if item["$patch"] == "delete" {
            if let Some(at) = at {
                list.remove(at);
            }
        } else if let Some(at) = at {
            strategic(&mut list[at], item)?;
        } else {
            let mut made = Json::Null;
            strategic(&mut made, item)?;
            list.push(made);
        }
    }
    Ok(())
}

/// Applies one step of a JSON patch.
fn apply(object: &mut Json, step: &Json) -> Result<(), Refusal> {
    let text = |key: &str| {
        let found = step.get(key).and_then(Json::as_str);
        found.ok_or_else(|| Refusal::bad(format!("a step of a JSON patch lacks `{key}`")))
    };
    let value = || {
        let found = step.get("value").cloned();
        found.ok_or_else(|| Refusal::bad("a step of a JSON patch lacks `value`"))
    };
    let path = text("path")?;
    match text("op")? {
        "add" => put(object, path, value()?, false),
        "replace" => put(object, path, value()?, true),
        "remove" => take(object, path).map(|_| ()),
        "copy" => {
            let found = object.pointer(text("from")?).cloned();
            put(object, path, found.ok_or_else(|| nothing_at(path))?, false)
        }
        "move" => {
            let found = take(object, text("from")?)?;
            put(object, path, found, false)
        }
        "test" => {
            let same = object.pointer(path) == Some(&value()?);
            let failed = || Refusal::invalid(format!("testing path {path} failed"));
            same.then_some(()).ok_or_else(failed)
        }
        other => Err(Refusal::bad(format!("unknown step `{other}` of a JSON patch"))),
    }
}

fn nothing_at(path: &str) -> Refusal {
    Refusal::invalid(format!("there is nothing at {path}"))
}

/// Splits a pointer into that of the parent, and the last key.
fn parent(path: &str) -> Option<(&str, String)> {
    let (parent, key) = path.rsplit_once('/')?;
    Some((parent, key.replace("~1", "/").replace("~0", "~")))
}

fn put(object: &mut Json, path: &str, value: Json, replaces: bool) -> Result<(), Refusal> {
    let Some((above, key)) = parent(path) else {
        *object = value;
        return Ok(());
    };
    let above = object.pointer_mut(above).ok_or_else(|| nothing_at(path))?;
    if let Json::Object(fields) = above {
        if replaces && !fields.contains_key(&key) {
            return Err(nothing_at(path));
        }
        fields.insert(key, value);
        return Ok(());
    }
    let items = above.as_array_mut().ok_or_else(|| nothing_at(path))?;
    if key == "-" && !replaces {
        items.push(value);
        return Ok(());
    }
    let at: usize = key.parse().map_err(|_| nothing_at(path))?;
    if replaces && at < items.len() {
        items[at] = value;
    } else if !replaces && at <= items.len() {
        items.insert(at, value);
    } else {
        return Err(nothing_at(path));
    }
    Ok(())
}

fn take(object: &mut Json, path: &str) -> Result<Json, Refusal> {
    let (above, key) = parent(path).ok_or_else(|| nothing_at(path))?;
    let above = object.pointer_mut(above).ok_or_else(|| nothing_at(path))?;
    if let Json::Object(fields) = above {
        return fields.remove(&key).ok_or_else(|| nothing_at(path));
    }
    let items = above.as_array_mut().ok_or_else(|| nothing_at(path))?;
    let at = key.parse().ok().filter(|at| *at < items.len());
    Ok(items.remove(at.ok_or_else(|| nothing_at(path))?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MERGE: &str = "application/merge-patch+json";
    const STRATEGIC: &str = "application/strategic-merge-patch+json";
    const STEPS: &str = "application/json-patch+json";

    #[test]
    fn each_kind_of_patch_does_what_its_specification_says() {
        let object = json!({
            "metadata": { "labels": { "a": "1", "b": "2" }, "finalizers": ["x"] },
            "spec": { "containers": [{ "name": "api", "image": "1" }, { "name": "log" }],
                      "taints": [{ "key": "a", "effect": "NoSchedule" }] }
        });
        let at = |media, patch, pointer: &str| {
            let done = patched(media, &object, patch).expect("it fits");
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
    fn a_patch_that_does_not_fit_is_refused() {
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
            let refused = patched(media, &object, patch.clone()).expect_err("it does not fit");
            assert_eq!(refused.code, code, "{patch}");
        }
    }
}
