//! API server behavior that clients rely on.

use serde_json::{Value as Json, json};

use super::kube_api::{ApiResponse, KubeApi};
use super::object;
use super::request::ApiRequest;
use super::store::{ObjectKey, ObjectStore, Writer};

fn request(method: &str, path: &str, body: &Json) -> ApiRequest {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    ApiRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        query: crate::adapters::http::parse_form(query),
        media: "application/merge-patch+json".to_owned(),
        body: if body.is_null() { Vec::new() } else { body.to_string().into_bytes() },
        ..ApiRequest::default()
    }
}

/// Sends a request and returns status and body.
fn ask(api: &mut KubeApi, method: &str, path: &str, body: &Json) -> (u16, Json) {
    match api.answer(&request(method, path, body)) {
        ApiResponse::Whole(code, bytes) => (code, serde_json::from_slice(&bytes).expect("JSON")),
        ApiResponse::Watch(_) => panic!("{path} is watched"),
    }
}

fn get(api: &mut KubeApi, path: &str) -> (u16, Json) {
    ask(api, "GET", path, &Json::Null)
}

fn api() -> KubeApi {
    let mut api = KubeApi::default();
    for name in ["default", "web"] {
        api.store.upsert(ObjectKey::new("Namespace", "", name), json!({}), Writer::World);
    }
    api
}

const PODS: &str = "/api/v1/namespaces/web/pods";

fn pod(name: &str, node: Option<&str>) -> Json {
    let mut pod = json!({
        "metadata": { "name": name, "labels": { "app": "api" } },
        "spec": { "containers": [{ "name": "api" }] }
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

fn set_running(api: &mut KubeApi, name: &str) {
    let status = json!({ "status": {
        "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }]
    } });
    assert_eq!(ask(api, "PATCH", &format!("{PODS}/{name}/status"), &status).0, 200);
}

#[test]
fn list_pages_share_a_snapshot() {
    let mut api = api();
    for name in ["a", "b", "c"] {
        ask(&mut api, "POST", PODS, &pod(name, None));
    }
    let (_, first) = get(&mut api, &format!("{PODS}?limit=2"));
    assert_eq!(first["items"].as_array().map(Vec::len), Some(2));
    assert_eq!(first["metadata"]["remainingItemCount"], 1);
    ask(&mut api, "DELETE", &format!("{PODS}/c"), &Json::Null);
    let token = first["metadata"]["continue"].as_str().expect("a token").to_owned();
    let (_, second) = get(&mut api, &format!("{PODS}?limit=2&continue={token}"));
    assert_eq!(second["items"][0]["metadata"]["name"], "c", "as it was when the list began");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert!(second["metadata"]["continue"].is_null());
    for _ in 0..20 {
        get(&mut api, "/api/v1/namespaces?limit=1");
    }
    let (code, gone) = get(&mut api, &format!("{PODS}?limit=2&continue={token}"));
    assert_eq!((code, &gone["reason"]), (410, &json!("Expired")));
}

#[test]
fn stale_writes_conflict() {
    let mut api = api();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let (code, made) = ask(&mut api, "POST", leases, &json!({ "metadata": { "name": "lock" } }));
    assert_eq!(code, 201);
    assert_eq!(ask(&mut api, "POST", leases, &made).0, 409, "there is one already");
    let mut mine = made.clone();
    mine["spec"] = json!({ "holderIdentity": "me" });
    let path = format!("{leases}/lock");
    assert_eq!(ask(&mut api, "PUT", &path, &mine).0, 200);
    mine["spec"] = json!({ "holderIdentity": "you" });
    let (code, refused) = ask(&mut api, "PUT", &path, &mine);
    assert_eq!((code, &refused["reason"]), (409, &json!("Conflict")));
    assert_eq!(get(&mut api, &path).1["spec"]["holderIdentity"], "me");
    let other = json!({ "metadata": { "uid": "another" }, "spec": {} });
    assert_eq!(ask(&mut api, "PATCH", &path, &other).0, 409, "another object of that name");
    let other = json!({ "preconditions": { "uid": "another" } });
    assert_eq!(ask(&mut api, "DELETE", &path, &other).0, 409);
}

#[test]
fn status_is_written_only_by_its_subresource() {
    let mut api = api();
    let path = "/apis/apps/v1/namespaces/web/deployments";
    let made = json!({
        "metadata": { "name": "api" }, "spec": { "replicas": 1 }, "status": { "replicas": 9 }
    });
    let (_, made) = ask(&mut api, "POST", path, &made);
    assert_eq!(made["status"], json!({}));
    let one = format!("{path}/api");
    let wish = json!({ "spec": { "replicas": 2 }, "status": { "replicas": 9 } });
    let (_, patched) = ask(&mut api, "PATCH", &one, &wish);
    assert_eq!((&patched["status"], &patched["metadata"]["generation"]), (&json!({}), &json!(2)));
    let wish = json!({ "spec": { "replicas": 7 }, "status": { "replicas": 2 } });
    let (_, patched) = ask(&mut api, "PATCH", &format!("{one}/status"), &wish);
    assert_eq!(
        (&patched["spec"]["replicas"], &patched["status"]["replicas"]),
        (&json!(2), &json!(2))
    );
    let (_, scale) =
        ask(&mut api, "PATCH", &format!("{one}/scale"), &json!({ "spec": { "replicas": 5 } }));
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(5)));
    assert_eq!(get(&mut api, &one).1["spec"]["replicas"], 5);
    let dry = ask(&mut api, "DELETE", &format!("{one}?dryRun=All"), &Json::Null);
    assert_eq!((dry.0, get(&mut api, &one).0), (200, 200), "a dry run changes nothing");
}

#[test]
fn bound_pod_is_stopped_before_deletion() {
    let mut api = api();
    ask(&mut api, "POST", PODS, &pod("waits", None));
    ask(&mut api, "POST", PODS, &pod("runs", Some("n1")));
    ask(&mut api, "DELETE", &format!("{PODS}/waits"), &Json::Null);
    assert_eq!(get(&mut api, &format!("{PODS}/waits")).0, 404);
    ask(&mut api, "DELETE", &format!("{PODS}/runs"), &Json::Null);
    let (_, marked) = get(&mut api, &format!("{PODS}/runs"));
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let at_once = json!({ "gracePeriodSeconds": 0 });
    ask(&mut api, "DELETE", &format!("{PODS}/runs"), &at_once);
    assert_eq!(get(&mut api, &format!("{PODS}/runs")).0, 404);
}

#[test]
fn finalizer_delays_deletion() {
    let mut api = api();
    let node = json!({ "metadata": { "name": "n1", "finalizers": ["own"] } });
    ask(&mut api, "POST", "/api/v1/nodes", &node);
    ask(&mut api, "DELETE", "/api/v1/nodes/n1", &Json::Null);
    assert_eq!(get(&mut api, "/api/v1/nodes/n1").0, 200);
    let free = json!({ "metadata": { "finalizers": null } });
    assert_eq!(ask(&mut api, "PATCH", "/api/v1/nodes/n1", &free).0, 200);
    assert_eq!(get(&mut api, "/api/v1/nodes/n1").0, 404);
}

#[test]
fn evictions_follow_the_budget() {
    let mut api = api();
    let budgets = "/apis/policy/v1/namespaces/web/poddisruptionbudgets";
    let budget = json!({
        "metadata": { "name": "api" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "api" } } }
    });
    ask(&mut api, "POST", budgets, &budget);
    let status =
        json!({ "status": { "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1 } });
    ask(&mut api, "PATCH", &format!("{budgets}/api/status"), &status);
    for name in ["a", "b", "c"] {
        ask(&mut api, "POST", PODS, &pod(name, Some("n1")));
    }
    set_running(&mut api, "a");
    set_running(&mut api, "b");
    let mut evict = |name: &str| {
        let eviction = json!({ "metadata": { "name": name } });
        ask(&mut api, "POST", &format!("{PODS}/{name}/eviction"), &eviction)
    };
    assert_eq!(evict("a").0, 201);
    let (code, blocked) = evict("b");
    assert_eq!(code, 429, "{blocked}");
    assert_eq!(blocked["details"]["causes"][0]["reason"], "DisruptionBudget");
    assert_eq!(evict("c").0, 201, "a pod that does not run can always be evicted");
    assert_eq!(evict("d").0, 404);
}

#[test]
fn pod_with_two_budgets_cannot_be_evicted() {
    let mut api = api();
    for name in ["one", "two"] {
        let budget = json!({ "metadata": { "name": name }, "spec": { "selector": {} } });
        ask(&mut api, "POST", "/apis/policy/v1/namespaces/web/poddisruptionbudgets", &budget);
    }
    ask(&mut api, "POST", PODS, &pod("a", Some("n1")));
    set_running(&mut api, "a");
    assert_eq!(ask(&mut api, "POST", &format!("{PODS}/a/eviction"), &json!({})).0, 500);
}

#[test]
fn pod_is_bound_once() {
    let mut api = api();
    ask(&mut api, "POST", PODS, &pod("a", None));
    let binding = json!({ "target": { "kind": "Node", "name": "n1" } });
    assert_eq!(ask(&mut api, "POST", &format!("{PODS}/a/binding"), &binding).0, 201);
    assert_eq!(ask(&mut api, "POST", &format!("{PODS}/a/binding"), &binding).0, 409);
    let (_, on_node) = get(&mut api, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1");
    assert_eq!(on_node["items"].as_array().map(Vec::len), Some(1));
}

#[test]
fn invalid_requests_are_refused() {
    let mut api = api();
    let named = json!({ "metadata": { "name": "a" } });
    for (method, path, body, code) in [
        ("GET", "/apis/none/v1/things", Json::Null, 404),
        ("GET", "/api/v1/namespaces/web/pods/none", Json::Null, 404),
        ("POST", "/api/v1/namespaces/none/pods", named.clone(), 404),
        ("POST", "/api/v1/pods", named.clone(), 405),
        ("POST", PODS, json!({}), 422),
        ("POST", PODS, json!([]), 400),
        ("POST", PODS, json!({ "kind": "Node", "metadata": { "name": "a" } }), 400),
        ("POST", PODS, json!({ "metadata": { "name": "a", "namespace": "shop" } }), 400),
        ("GET", "/api/v1/pods?labelSelector=a+near+b", Json::Null, 400),
        ("PUT", PODS, named, 405),
        ("GET", "/api/v1/pods?watch=1&resourceVersion=new", Json::Null, 400),
    ] {
        let (got, refused) = ask(&mut api, method, path, &body);
        assert_eq!(got, code, "{method} {path}: {refused}");
        assert_eq!(refused["kind"], "Status");
    }
}

#[test]
fn watch_follows_selection_and_detects_lost_history() {
    let mut api = KubeApi::default();
    api.store = ObjectStore::with_history(4);
    api.store.upsert(ObjectKey::new("Namespace", "", "web"), json!({}), Writer::World);
    ask(&mut api, "POST", PODS, &pod("a", None));
    let from = api.store.version();
    let path = format!("/api/v1/pods?watch=1&labelSelector=app%3Dapi&resourceVersion={from}");
    let ApiResponse::Watch(mut watch) = api.answer(&request("GET", &path, &Json::Null)) else {
        panic!("no watch")
    };
    let mut events = |api: &KubeApi| -> Option<Vec<(String, String)>> {
        let read = |line: hyper::body::Bytes| {
            let event: Json = serde_json::from_slice(&line).expect("JSON");
            let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
            (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
        };
        Some(watch.pending_events(api)?.into_iter().map(read).collect())
    };
    let event = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
    ask(&mut api, "POST", PODS, &pod("b", None));
    assert_eq!(events(&api), Some(vec![event("ADDED", "b")]));
    let relabel = |app: &str| json!({ "metadata": { "labels": { "app": app } } });
    ask(&mut api, "PATCH", &format!("{PODS}/a"), &relabel("web"));
    ask(&mut api, "PATCH", &format!("{PODS}/a"), &relabel("shop"));
    assert_eq!(events(&api), Some(vec![event("DELETED", "a")]), "it left, and is no longer ours");
    ask(&mut api, "PATCH", &format!("{PODS}/a"), &relabel("api"));
    ask(&mut api, "DELETE", &format!("{PODS}/b"), &Json::Null);
    assert_eq!(events(&api), Some(vec![event("ADDED", "a"), event("DELETED", "b")]));
    for n in 0..5 {
        ask(&mut api, "PATCH", &format!("{PODS}/a"), &relabel(&n.to_string()));
    }
    assert_eq!(events(&api), None, "more happened than is remembered");
}

#[test]
fn times_have_whole_seconds() {
    let at = "2026-11-21T12:00:00.75Z".parse().expect("a time");
    assert_eq!(object::format_time(at), "2026-11-21T12:00:00Z");
}

#[test]
fn malformed_writes_never_break_objects() {
    let mut api = api();
    let deployments = "/apis/apps/v1/namespaces/web/deployments";
    let budgets = "/apis/policy/v1/namespaces/web/poddisruptionbudgets";
    ask(&mut api, "POST", PODS, &pod("a", Some("n1")));
    set_running(&mut api, "a");
    let allows = json!({
        "metadata": { "name": "a" }, "spec": { "selector": {} },
        "status": { "disruptionsAllowed": 1, "disruptedPods": "x" }
    });
    ask(&mut api, "POST", budgets, &allows);
    ask(&mut api, "PATCH", &format!("{budgets}/a/status"), &allows);
    ask(&mut api, "POST", deployments, &json!({ "metadata": { "name": "a" }, "spec": {} }));
    assert_eq!(ask(&mut api, "POST", &format!("{PODS}/a/eviction"), &json!({})).0, 201);
    let odd = [
        json!([]),
        json!("x"),
        json!(1),
        json!({ "metadata": [] }),
        json!({ "metadata": { "name": "a", "labels": 1, "ownerReferences": 1, "finalizers": 1 } }),
        json!({ "metadata": { "name": "b" }, "spec": "x" }),
        json!({ "metadata": { "name": "a" }, "spec": [], "status": 1 }),
        json!({ "metadata": { "name": "c" }, "spec": { "replicas": "x", "containers": 1 } }),
        json!({ "status": { "conditions": 1, "disruptedPods": 1 }, "target": [], "deleteOptions": 1 }),
    ];
    let media = [
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/json-patch+json",
        super::request::APPLY_PATCH_MEDIA,
    ];
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let paths: Vec<String> = [PODS, deployments, budgets, "/api/v1/nodes"]
        .iter()
        .flat_map(|all| {
            ["", "/a", "/a/status", "/a/scale", "/a/eviction", "/a/binding"]
                .map(|part| format!("{all}{part}"))
        })
        .chain([reviews.to_owned()])
        .collect();
    for path in &paths {
        for body in &odd {
            for (method, media) in
                media.iter().flat_map(|m| ["POST", "PUT", "PATCH", "DELETE"].map(|v| (v, m)))
            {
                let query = format!(
                    "{path}?fieldManager=me&dryRun={}",
                    if method == "DELETE" { "All" } else { "" }
                );
                let mut asked = request(method, &query, body);
                asked.media = (*media).to_owned();
                let ApiResponse::Whole(code, _) = api.answer(&asked) else { panic!("{path}") };
                assert!((200..500).contains(&code), "{method} {path} {media} {body}: {code}");
            }
        }
    }
    for kind in ["Pod", "Deployment", "PodDisruptionBudget", "Node"] {
        for (key, object) in api.store.list(kind, None) {
            for part in ["metadata", "spec", "status"] {
                assert!(
                    object[part].is_object() || object[part].is_null(),
                    "{key:?} {part} {object}"
                );
            }
        }
    }
}

#[test]
fn table_rows_include_requested_object() {
    let mut api = api();
    ask(&mut api, "POST", PODS, &pod("a", Some("n1")));
    let mut object = |included: &str| {
        let path = format!("{PODS}?includeObject={included}");
        let mut asked = request("GET", &path, &Json::Null);
        asked.accept = "application/json;as=Table;v=v1;g=meta.k8s.io".to_owned();
        let ApiResponse::Whole(200, bytes) = api.answer(&asked) else { panic!("{included}") };
        let table: Json = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(table["rows"][0]["cells"][0], "a");
        table["rows"][0]["object"].clone()
    };
    // `kubectl get --sort-by` needs the whole object.
    assert_eq!(object("Object")["spec"]["nodeName"], "n1");
    assert_eq!(object("None"), Json::Null);
    let partial = object("");
    assert_eq!((&partial["metadata"]["name"], &partial["spec"]), (&json!("a"), &Json::Null));
}

#[test]
fn protobuf_is_refused_except_for_reviews() {
    let mut api = api();
    let mut sent = |path: &str| {
        let mut asked = request("POST", path, &Json::Null);
        asked.media = "application/vnd.kubernetes.protobuf".to_owned();
        asked.body = b"k8s\0".to_vec();
        let ApiResponse::Whole(code, bytes) = api.answer(&asked) else { panic!("{path}") };
        (code, serde_json::from_slice::<Json>(&bytes).expect("JSON"))
    };
    let (code, review) = sent("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
    assert_eq!((code, &review["status"]["allowed"]), (201, &json!(true)));
    assert_eq!(review["kind"], "SelfSubjectAccessReview");
    let (code, refused) = sent(PODS);
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(code == 415 && message.contains("kubectl apply -f -"), "{message}");
}

#[test]
fn declared_and_computed_kinds_are_read_only() {
    use super::resource::RESOURCES;
    let mut api = api();
    let read_only: Vec<_> = RESOURCES.iter().filter(|resource| !resource.is_writable()).collect();
    assert_eq!(read_only.len(), 5, "{read_only:?}");
    for resource in read_only {
        let namespace = if resource.namespaced { "namespaces/web/" } else { "" };
        let path = format!("/apis/{}/{namespace}{}", resource.api_version(), resource.plural);
        let object = json!({ "metadata": { "name": "a" } });
        let key = ObjectKey::new(resource.kind, if resource.namespaced { "web" } else { "" }, "a");
        api.store.upsert(key, object.clone(), Writer::World);
        for (method, path) in [
            ("POST", path.clone()),
            ("DELETE", path.clone()),
            ("PUT", format!("{path}/a")),
            ("PATCH", format!("{path}/a")),
            ("DELETE", format!("{path}/a")),
        ] {
            let (code, answer) = ask(&mut api, method, &path, &object);
            assert_eq!(code, 405, "{method} {path}: {answer}");
        }
        assert_eq!(get(&mut api, &format!("{path}/a")).0, 200, "{path}");
    }
}

#[test]
fn containers_are_refused_with_a_reason() {
    let mut api = api();
    ask(&mut api, "POST", PODS, &pod("a", None));
    for part in ["attach", "exec", "log", "portforward"] {
        let (code, answer) = get(&mut api, &format!("{PODS}/a/{part}"));
        assert!(code == 400 && answer["message"].to_string().contains("no containers"), "{answer}");
    }
}
