use serde_json::json;

use super::*;

#[test]
fn lifted_gates_and_admissions_are_changes() {
    let pod = |gates: Json| {
        let metadata = json!({
            "name": "a", "namespace": "ml", "uid": "u", "creationTimestamp": "2026-11-21T09:00:00Z"
        });
        let containers = json!([{ "name": "main", "image": "main" }]);
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": { "containers": containers, "schedulingGates": gates },
            "status": { "phase": "Pending" }
        });
        CachedObject::from_json(PODS, object)
    };
    let workload = |status: &str| {
        let conditions = json!([{ "type": "Admitted", "status": status }]);
        let metadata = json!({ "name": "w", "namespace": "ml" });
        let object = json!({ "metadata": metadata, "status": { "conditions": conditions } });
        CachedObject::from_json(QUEUED, object)
    };
    let gate = || json!([{ "name": "kueue.x-k8s.io/admission" }]);
    let mut cache = WatchCache::default();
    for (rule, resource, object, change) in [
        ("a new pod", PODS, pod(gate()), true),
        ("the same pod", PODS, pod(gate()), false),
        ("its gate was lifted", PODS, pod(json!([])), true),
        ("a new Workload", QUEUED, workload("False"), false),
        ("it was admitted", QUEUED, workload("True"), true),
        ("it stays admitted", QUEUED, workload("True"), false),
    ] {
        let found = cache.upsert(resource, "ml/a".to_owned(), object);
        assert_eq!(found, change.then_some(ClusterChange::PodPending), "{rule}");
    }
}
