//! Version 1 of `HorizontalPodAutoscaler`, which older clients use. The store has version 2.
//!
//! Version 1 has the target CPU utilization alone. A write in version 1 keeps the other metrics and
//! the behavior of the stored object.

use serde_json::{Value as Json, json};

use super::kube_api::{ApiResponse, KubeApi};
use super::patch::apply_patch;
use super::request::{APPLY_PATCH_MEDIA, ApiRequest, RequestTarget};
use super::resource::ServedResource;
use super::status_error::StatusError;
use super::store::ObjectKey;

const KIND: &str = "HorizontalPodAutoscaler";
const TARGET_CPU: &str = "targetCPUUtilizationPercentage";
/// Default target of the API server for an autoscaler without metrics.
const DEFAULT_PERCENT: i64 = 80;

impl KubeApi {
    /// Handles a request for version 1 by one for version 2.
    pub(super) fn handle_autoscaler_v1(
        &mut self,
        target: &RequestTarget<'_>,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let path = request.path.replacen("/autoscaling/v1/", "/autoscaling/v2/", 1);
        let mut inner = ApiRequest { path, ..request.clone() };
        let key = target.name.map(|name| {
            ObjectKey::new(target.resource.kind, target.namespace.unwrap_or_default(), name)
        });
        let stored = key.and_then(|key| self.store.get(&key).cloned());
        match (request.method.as_str(), &stored) {
            ("PATCH", Some(before)) if request.media != APPLY_PATCH_MEDIA => {
                let after = apply_patch(&request.media, &to_v1(before), request.json()?)?;
                "PUT".clone_into(&mut inner.method);
                "application/json".clone_into(&mut inner.media);
                inner.body = to_v2(after, Some(before)).to_string().into_bytes();
            }
            ("POST" | "PUT" | "PATCH", _) => {
                let body = to_v2(request.json()?, stored.as_deref());
                inner.body = body.to_string().into_bytes();
            }
            _ => {}
        }
        match self.handle(&inner)? {
            ApiResponse::Whole(code, body) => {
                let document: Json = serde_json::from_slice(&body).expect("answers are JSON");
                Ok(ApiResponse::json(code, &answer_in_v1(document)))
            }
            ApiResponse::Watch(mut watch) => {
                watch.resource = target.resource;
                Ok(ApiResponse::Watch(watch))
            }
        }
    }
}

/// Returns an object as a resource type shows it.
pub(super) fn in_version_of(resource: &ServedResource, object: &Json) -> Json {
    if resource.is_older_version() { to_v1(object) } else { object.clone() }
}

fn answer_in_v1(mut document: Json) -> Json {
    const LIST: &str = "HorizontalPodAutoscalerList";
    if document["kind"] == KIND {
        return to_v1(&document);
    }
    if document["kind"] == LIST {
        document["apiVersion"] = "autoscaling/v1".into();
    }
    for item in list_mut(&mut document, "items") {
        *item = to_v1(item);
    }
    // Rows have an object only if the client asks for it.
    let rows = list_mut(&mut document, "rows").filter_map(|row| row.get_mut("object"));
    for object in rows.filter(|object| object["kind"] == KIND) {
        *object = to_v1(object);
    }
    document
}

fn list_mut<'a>(document: &'a mut Json, key: &str) -> impl Iterator<Item = &'a mut Json> {
    document.get_mut(key).and_then(Json::as_array_mut).into_iter().flatten()
}

/// Returns whether a metric is the target CPU utilization of pods.
fn is_cpu_target(metric: &Json) -> bool {
    metric["type"] == "Resource"
        && metric["resource"]["name"] == "cpu"
        && metric["resource"]["target"]["averageUtilization"].is_number()
}

fn to_v1(object: &Json) -> Json {
    let mut object = object.clone();
    object["apiVersion"] = "autoscaling/v1".into();
    if let Some(spec) = object.get_mut("spec").and_then(Json::as_object_mut) {
        let metrics = spec.remove("metrics");
        let mut metrics = metrics.iter().filter_map(Json::as_array).flatten();
        let cpu = metrics.find(|metric| is_cpu_target(metric));
        let percent = cpu.map(|cpu| cpu["resource"]["target"]["averageUtilization"].clone());
        spec.extend(percent.map(|percent| (TARGET_CPU.to_owned(), percent)));
        spec.remove("behavior");
    }
    if let Some(status) = object.get_mut("status").and_then(Json::as_object_mut) {
        status.remove("conditions");
        status.remove("currentMetrics");
    }
    object
}

/// Returns an object of version 1 in version 2, with what only the stored object has.
fn to_v2(mut object: Json, stored: Option<&Json>) -> Json {
    if object["apiVersion"] == "autoscaling/v1" {
        object["apiVersion"] = "autoscaling/v2".into();
    }
    let kept = stored.map(|stored| &stored["spec"]);
    let Some(spec) = object.get_mut("spec").and_then(Json::as_object_mut) else { return object };
    let percent = spec.remove(TARGET_CPU).filter(|percent| !percent.is_null());
    let others = kept.and_then(|kept| kept["metrics"].as_array()).into_iter().flatten();
    let mut metrics: Vec<Json> = others.filter(|metric| !is_cpu_target(metric)).cloned().collect();
    let default = metrics.is_empty().then(|| DEFAULT_PERCENT.into());
    metrics.extend(percent.or(default).map(|percent| {
        let target = json!({ "type": "Utilization", "averageUtilization": percent });
        json!({ "type": "Resource", "resource": { "name": "cpu", "target": target } })
    }));
    spec.insert("metrics".to_owned(), metrics.into());
    if let Some(behavior) = kept.map(|kept| &kept["behavior"]).filter(|kept| kept.is_object()) {
        spec.insert("behavior".to_owned(), behavior.clone());
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_in_version_1_keep_the_rest_of_version_2() {
        let cpu = |percent: i64| {
            json!({ "type": "Resource", "resource": { "name": "cpu",
                "target": { "type": "Utilization", "averageUtilization": percent } } })
        };
        let queue = json!({ "type": "External", "external": { "metric": { "name": "queue" } } });
        let behavior = json!({ "scaleDown": { "selectPolicy": "Disabled" } });
        let stored = json!({
            "apiVersion": "autoscaling/v2", "kind": KIND,
            "spec": { "maxReplicas": 9, "metrics": [cpu(50), queue], "behavior": behavior },
            "status": { "currentReplicas": 2, "conditions": [] },
        });
        let mut old = to_v1(&stored);
        assert_eq!(old["spec"], json!({ "maxReplicas": 9, TARGET_CPU: 50 }));
        assert_eq!(old["status"], json!({ "currentReplicas": 2 }));
        old["spec"][TARGET_CPU] = 70.into();
        let new = to_v2(old.clone(), Some(&stored));
        let expected =
            json!({ "maxReplicas": 9, "metrics": [queue, cpu(70)], "behavior": behavior });
        assert_eq!((&new["apiVersion"], &new["spec"]), (&json!("autoscaling/v2"), &expected));
        // Without any metric, the API server sets its default.
        old["spec"][TARGET_CPU] = Json::Null;
        assert_eq!(to_v2(old.clone(), Some(&stored))["spec"]["metrics"], json!([queue]));
        assert_eq!(to_v2(old, None)["spec"]["metrics"], json!([cpu(80)]));
        for odd in [json!(null), json!([]), json!({ "spec": 3 }), json!({ "spec": [] })] {
            assert_eq!(to_v2(odd.clone(), None), odd);
        }
    }
}
