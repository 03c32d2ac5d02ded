//! Server-side apply: the fields that a manager applies replace its previous fields. A field that
//! another manager also applies, or that has changed since, stays. There are no conflicts: the last
//! apply wins.

use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::kube_api::{ApiResponse, KubeApi};
use super::patch::{SETS, merge_key, strategic};
use super::request::{ApiRequest, RequestTarget};
use super::status_error::StatusError;
use super::store::ObjectKey;

impl KubeApi {
    /// Creates an object from an apply, or applies it to an existing object.
    pub(super) fn apply(
        &mut self,
        target: &RequestTarget<'_>,
        name: &str,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let manager = request.parameter("fieldManager");
        if manager.is_empty() {
            return Err(StatusError::bad_request("fieldManager is required for an apply"));
        }
        let value = check_name(request.json()?, name)?;
        let namespace = target.namespace.unwrap_or_default();
        let part = target.subresource.unwrap_or_default();
        let key = ObjectKey::new(target.resource.kind, namespace, name);
        let stored = self.store.get(&key).map(Arc::clone);
        let answer = match &stored {
            None if target.subresource.is_some() => {
                return Err(StatusError::not_found(target.resource.plural, name));
            }
            None => self.create_object(target, value.clone(), request)?,
            Some(stored) => {
                let mut desired = (**stored).clone();
                let all = self.applied.by_manager(&key, part, &stored["metadata"]["uid"]);
                let (own, other_managers): (Vec<_>, Vec<_>) =
                    all.partition(|(owner, _)| *owner == manager);
                let other_managers: Vec<&Json> =
                    other_managers.into_iter().map(|(_, value)| value).collect();
                if let Some((_, before)) = own.first() {
                    remove_unclaimed(&mut desired, before, Some(&value), &other_managers);
                }
                strategic(&mut desired, value.clone())?;
                self.write(target, &key, stored, desired, request)?
            }
        };
        if !request.is_dry_run() {
            let manager_key = (key, part.to_owned(), manager.to_owned());
            self.applied.insert(manager_key, value, &self.store);
        }
        Ok(answer)
    }
}

/// Checks and sets the name of an applied object.
fn check_name(mut value: Json, name: &str) -> Result<Json, StatusError> {
    let Some(fields) = value.as_object_mut() else {
        return Err(StatusError::bad_request("the body is not an object"));
    };
    let Some(meta) = fields.get_mut("metadata").and_then(Json::as_object_mut) else {
        return Err(StatusError::bad_request("the object has no metadata"));
    };
    if meta.get("name").is_some_and(|own| own != name) {
        return Err(StatusError::bad_request("the name of the object is not that of the path"));
    }
    meta.insert("name".to_owned(), name.into());
    meta.remove("managedFields");
    Ok(value)
}

/// Removes fields of `before` that are missing in `now`, unless `other_managers` apply them or they
/// have changed since.
fn remove_unclaimed(
    object: &mut Json,
    before: &Json,
    now: Option<&Json>,
    other_managers: &[&Json],
) {
    let (Some(stored), Some(before)) = (object.as_object_mut(), before.as_object()) else { return };
    for (name, value) in before {
        let current = now.and_then(|now| now.get(name));
        let other_managers: Vec<&Json> =
            other_managers.iter().filter_map(|other| other.get(name)).collect();
        let is_mine = current.is_none() && other_managers.is_empty();
        let Some(part) = stored.get_mut(name) else { continue };
        match value {
            Json::Object(_) => {
                remove_unclaimed(part, value, current, &other_managers);
                if is_mine && part.as_object().is_some_and(Map::is_empty) {
                    stored.remove(name);
                }
            }
            Json::Array(items) if SETS.contains(&&**name) => {
                let values: Vec<&Json> = current.into_iter().chain(other_managers).collect();
                let is_applied = |item: &Json| {
                    values.iter().any(|s| s.as_array().is_some_and(|all| all.contains(item)))
                };
                if let Some(part) = part.as_array_mut() {
                    part.retain(|item| !items.contains(item) || is_applied(item));
                }
            }
            Json::Array(items) => match merge_key(name, items) {
                Some(by) => {
                    remove_unclaimed_items(part, items, current, &other_managers, by);
                    if is_mine && part.as_array().is_some_and(Vec::is_empty) {
                        stored.remove(name);
                    }
                }
                None if is_mine && part == value => drop(stored.remove(name)),
                None => {}
            },
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {
                if is_mine && part == value {
                    stored.remove(name);
                }
            }
        }
    }
}

/// Removes fields of list elements in the same way, matched by key.
fn remove_unclaimed_items(
    list: &mut Json,
    before: &[Json],
    now: Option<&Json>,
    other_managers: &[&Json],
    by: &str,
) {
    let Some(stored) = list.as_array_mut() else { return };
    stored.retain_mut(|item| {
        let key = item[by].clone();
        let Some(value) = before.iter().find(|item| item[by] == key) else { return true };
        let current = now.and_then(|now| element(now, by, &key));
        let other_managers: Vec<&Json> =
            other_managers.iter().filter_map(|o| element(o, by, &key)).collect();
        if current.is_none() && other_managers.is_empty() {
            return false;
        }
        remove_unclaimed(item, value, current, &other_managers);
        true
    });
}

fn element<'l>(list: &'l Json, by: &str, key: &Json) -> Option<&'l Json> {
    list.as_array()?.iter().find(|item| item[by] == *key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::request::APPLY_PATCH_MEDIA;
    use super::*;

    fn request(manager: &str, body: &Json) -> ApiRequest {
        let query = [("fieldManager", manager), ("force", "true")];
        ApiRequest {
            method: "PATCH".to_owned(),
            path: "/apis/apps/v1/namespaces/default/deployments/web".to_owned(),
            query: query.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            media: APPLY_PATCH_MEDIA.to_owned(),
            body: body.to_string().into_bytes(),
            ..ApiRequest::default()
        }
    }

    fn body(replicas: Option<u32>, containers: &[&str]) -> Json {
        let containers: Vec<Json> =
            containers.iter().map(|name| json!({ "name": name, "image": name })).collect();
        let mut value = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "labels": { "app": "web" } },
            "spec": { "template": { "spec": { "containers": containers } } }
        });
        if let Some(replicas) = replicas {
            value["spec"]["replicas"] = replicas.into();
        }
        value
    }

    fn applied(api: &mut KubeApi, manager: &str, body: &Json) -> Json {
        let ApiResponse::Whole(code, bytes) = api.answer(&request(manager, body)) else { panic!() };
        let answer = serde_json::from_slice(&bytes).expect("JSON");
        assert!((200..300).contains(&code), "{answer}");
        answer
    }

    fn api() -> KubeApi {
        let mut api = KubeApi::default();
        let object = json!({ "metadata": { "name": "default" } });
        api.store.upsert(
            ObjectKey::new("Namespace", "", "default"),
            object,
            super::super::store::Writer::World,
        );
        api
    }

    fn code(api: &mut KubeApi, request: &ApiRequest) -> u16 {
        let ApiResponse::Whole(code, _) = api.answer(request) else { panic!() };
        code
    }

    #[test]
    fn shared_or_changed_fields_stay() {
        let mut api = api();
        applied(&mut api, "kubectl", &body(Some(3), &["main", "proxy"]));
        applied(&mut api, "mesh", &body(Some(3), &["proxy"]));
        let less = applied(&mut api, "kubectl", &body(None, &["main"]));
        assert_eq!(less["spec"]["replicas"], 3, "`mesh` says so too");
        let proxy = &less["spec"]["template"]["spec"]["containers"][1];
        assert_eq!((&proxy["name"], &proxy["image"]), (&json!("proxy"), &json!("proxy")));
        // An autoscaler updates without an apply.
        applied(&mut api, "kubectl", &body(Some(4), &["main"]));
        applied(&mut api, "mesh", &body(None, &["proxy"]));
        let scale = ApiRequest {
            path: "/apis/apps/v1/namespaces/default/deployments/web/scale".to_owned(),
            media: "application/merge-patch+json".to_owned(),
            ..request("hpa", &json!({ "spec": { "replicas": 9 } }))
        };
        assert_eq!(code(&mut api, &scale), 200);
        let scaled = applied(&mut api, "kubectl", &body(None, &["main"]));
        assert_eq!(scaled["spec"]["replicas"], 9);
    }

    #[test]
    fn subresource_fields_are_separate() {
        let mut api = api();
        applied(&mut api, "kubectl", &body(Some(3), &["main"]));
        let path = "/apis/apps/v1/namespaces/default/deployments/web";
        let status = json!({ "metadata": {}, "status": { "replicas": 3 } });
        let of_status =
            ApiRequest { path: format!("{path}/status"), ..request("kubectl", &status) };
        assert_eq!(code(&mut api, &of_status), 200);
        assert_eq!(api.applied.len(), 2);
        let kept = applied(&mut api, "kubectl", &body(Some(3), &["main"]));
        assert_eq!(
            (&kept["spec"]["replicas"], &kept["status"]["replicas"]),
            (&json!(3), &json!(3))
        );
        let delete =
            ApiRequest { method: "DELETE".to_owned(), body: Vec::new(), ..request("", &json!({})) };
        assert_eq!(code(&mut api, &delete), 200);
        applied(&mut api, "mesh", &body(None, &["main"]));
        assert_eq!(api.applied.len(), 1, "fields of the deleted object are dropped");
    }

    #[test]
    fn unapplied_finalizer_is_removed() {
        let mut api = api();
        let with = |finalizers: &[&str]| {
            let mut all = body(None, &["main"]);
            all["metadata"]["finalizers"] = json!(finalizers);
            all
        };
        applied(&mut api, "kubectl", &with(&["a/a", "b/b"]));
        applied(&mut api, "other", &with(&["b/b"]));
        let left = applied(&mut api, "kubectl", &with(&["c/c"]));
        assert_eq!(left["metadata"]["finalizers"], json!(["b/b", "c/c"]));
    }

    #[test]
    fn apply_body_must_be_an_object() {
        let mut api = api();
        for body in [json!([]), json!("x"), json!(1), json!(null), json!({ "metadata": [] })] {
            assert_eq!(code(&mut api, &request("kubectl", &body)), 400, "{body}");
        }
    }

    #[test]
    fn unapplied_fields_of_a_manager_are_removed() {
        let mut api = api();
        let names = |object: &Json| {
            let all = object["spec"]["template"]["spec"]["containers"].as_array().expect("a list");
            all.iter()
                .map(|item| item["name"].as_str().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        let made = applied(&mut api, "kubectl", &body(Some(3), &["main", "log"]));
        assert_eq!((made["spec"]["replicas"].as_u64(), names(&made).len()), (Some(3), 2));
        assert!(made["metadata"]["managedFields"].is_null());
        // Another manager adds a container and a label.
        let mut other = body(None, &["proxy"]);
        other["metadata"]["labels"] = json!({ "mesh": "on" });
        applied(&mut api, "mesh", &other);
        let less = applied(&mut api, "kubectl", &body(None, &["main"]));
        assert_eq!(names(&less), ["main", "proxy"], "no manager owns `log` any more");
        assert_eq!(less["spec"]["replicas"], Json::Null);
        assert_eq!(less["metadata"]["labels"], json!({ "app": "web", "mesh": "on" }));
        assert_eq!(less["metadata"]["uid"], made["metadata"]["uid"]);
        let ApiResponse::Whole(code, _) = api.answer(&request("", &body(None, &[]))) else {
            panic!()
        };
        assert_eq!(code, 400, "who applies must be said");
    }
}
