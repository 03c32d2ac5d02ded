//! Workloads of Kueue as the API server sends them.

use serde_json::json;

use super::*;
use crate::adapters::kube::cached_object::{CachedObject, ObjectContent};

/// Returns a Workload of Job `train` with four pods and these conditions.
fn workload(conditions: &[(&str, &str)]) -> Json {
    let conditions: Vec<Json> = conditions
        .iter()
        .map(|(kind, message)| json!({ "type": kind, "status": "True", "message": message }))
        .collect();
    json!({
        "metadata": {
            "name": "job-train-1", "namespace": "ml",
            "ownerReferences": [
                { "apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j",
                  "controller": true }
            ]
        },
        "spec": {
            "queueName": "team-a",
            "podSets": [{ "name": "main", "count": 4, "template": { "spec": {} } }]
        },
        "status": {
            "conditions": conditions,
            "admission": {
                "clusterQueue": "gpus",
                "podSetAssignments": [{ "name": "main", "flavors": { "cpu": "spot", "memory": "spot" } }]
            }
        }
    })
}

/// Returns the only Workload after the API server sent `object`, and the flavor `spot`.
fn read(object: &Json) -> Option<QueuedWorkload> {
    let mut queues = Queues::default();
    queues.add_workload(object).expect("readable");
    let toleration = json!({
        "key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5
    });
    let flavor = json!({ "spec": {
        "nodeLabels": { "karpenter.sh/nodepool": "spot" }, "tolerations": [toleration]
    } });
    queues.add_flavor("/spot", &flavor);
    queues.add_check("/prov", &json!({ "spec": { "controllerName": PROVISIONING } }));
    queues.add_check("/budget", &json!({ "spec": { "controllerName": "example.com/budget" } }));
    queues.add_check("/far", &json!({ "spec": { "controllerName": MULTI_KUEUE } }));
    queues.queued().0.pop()
}

/// Returns the number of admitted pods, or the reason why they wait.
fn admission(object: &Json) -> Result<u32, String> {
    match read(object).expect("unfinished").admission {
        QueueAdmission::Admitted { pods, .. } => Ok(pods),
        QueueAdmission::Unknown { because } | QueueAdmission::Waiting { because, .. } => {
            Err(because)
        }
    }
}

#[test]
fn admitted_workload_has_its_flavor_and_owner() {
    let found = read(&workload(&[("Admitted", "")])).expect("unfinished");
    assert_eq!(found.queue, "team-a");
    assert_eq!(found.owner.expect("a Job").to_string(), "ml/train");
    let QueueAdmission::Admitted { pods: 4, flavor } = found.admission else { panic!("admitted") };
    assert_eq!(flavor.node_labels["karpenter.sh/nodepool"].as_str(), "spot");
    assert_eq!(flavor.tolerations[0].key, "spot");
}

#[test]
fn partial_admission_and_reclaimable_pods_count() {
    let with = |count: Json, reclaimable: Json| {
        let mut object = workload(&[("Admitted", "")]);
        object["status"]["admission"]["podSetAssignments"][0]["count"] = count;
        object["status"]["reclaimablePods"] = json!([{ "name": "main", "count": reclaimable }]);
        admission(&object)
    };
    assert_eq!(with(json!(3), json!(0)), Ok(3), "three of four pods");
    assert_eq!(with(json!(3), json!(1)), Ok(2), "one needs no room anymore");
    assert_eq!(with(json!(3), json!(9)), Ok(0));
    assert_eq!(with(json!(1_000_000_000), json!(0)), Ok(1_000_000_000));
}

#[test]
fn workload_waits_until_it_is_admitted() {
    let reserved = [("QuotaReserved", "")];
    let checks = |name: &str, state: &str| {
        let mut object = workload(&reserved);
        object["status"]["admissionChecks"] = json!([{ "name": name, "state": state }]);
        object
    };
    let mut quota = workload(&[]);
    quota["status"] = json!({ "conditions": [
        { "type": "QuotaReserved", "status": "False", "message": "insufficient quota for cpu" }
    ] });
    let mut inactive = workload(&[("Admitted", "")]);
    inactive["spec"]["active"] = json!(false);
    let mut several = workload(&[("Admitted", "")]);
    several["status"]["admission"]["podSetAssignments"] =
        json!([{ "name": "a", "flavors": { "cpu": "spot" } }, { "name": "b" }]);
    let mut unknown = workload(&[("Admitted", "")]);
    unknown["status"]["admission"]["podSetAssignments"][0]["flavors"] = json!({ "cpu": "gone" });
    for (object, reason) in [
        (quota, "insufficient quota for cpu"),
        (workload(&[("Evicted", "preempted"), ("Admitted", "")]), "preempted"),
        (inactive, "it is not active"),
        (checks("budget", "Ready"), "its queue is about to admit it"),
        (checks("budget", "Pending"), "it waits for its admission checks: budget"),
        (checks("prov", "Pending"), "admission check prov waits for a ProvisioningRequest"),
        (several, "its pods have several ResourceFlavors, and count once they start"),
        (unknown, "its ResourceFlavor gone was not read"),
    ] {
        assert_eq!(admission(&object), Err(reason.to_owned()));
    }
    assert_eq!(read(&workload(&[("Finished", ""), ("Admitted", "")])), None);
}

#[test]
fn pods_that_multikueue_runs_elsewhere_need_no_node() {
    let mut checked = workload(&[("Admitted", "")]);
    checked["status"]["admissionChecks"] = json!([{ "name": "far", "state": "Ready" }]);
    let mut placed = workload(&[("Admitted", "")]);
    placed["status"]["clusterName"] = json!("worker-1");
    for object in [checked, placed] {
        assert_eq!(admission(&object), Err("it runs in another cluster".to_owned()));
    }
    let mut ready = workload(&[("Admitted", "")]);
    ready["status"]["admissionChecks"] = json!([{ "name": "budget", "state": "Ready" }]);
    assert_eq!(admission(&ready), Ok(4));
}

#[test]
fn workload_with_an_unread_flavor_or_check_is_unread() {
    let unread = |object: &Json| {
        let mut queues = Queues::default();
        queues.add_workload(object).expect("readable");
        queues.add_flavor("/spot", &json!({ "spec": { "tolerations": 7 } }));
        let (queued, unread) = queues.queued();
        let [UnreadWorkload { key, reason }] = &unread[..] else { panic!("{unread:?}") };
        let because = reason.clone();
        assert_eq!(queued[0].admission, QueueAdmission::Unknown { because });
        assert_eq!(key, "ml/job-train-1");
        reason.clone()
    };
    let mut object = workload(&[("Admitted", "")]);
    let broken = unread(&object);
    assert!(broken.starts_with("its ResourceFlavor spot was not read: "), "{broken}");
    object["status"]["admissionChecks"] = json!([{ "name": "gone", "state": "Ready" }]);
    assert_eq!(unread(&object), "its AdmissionCheck gone was not read");
}

#[test]
fn older_version_is_read_in_place_of_an_unserved_one() {
    let older = older_version(QUEUED).expect("v1beta1");
    assert_eq!(older.path, "/apis/kueue.x-k8s.io/v1beta1/workloads");
    assert!(is_queue_resource(older) && older_version(older).is_none());
}

#[test]
fn hostile_workloads_are_named_or_shortened() {
    let mut queues = Queues::default();
    for (path, value) in [("podSets", json!([{ "count": -1 }])), ("queueName", json!(7))] {
        let mut object = workload(&[]);
        object["spec"][path] = value;
        assert!(queues.add_workload(&object).is_err(), "{path}");
    }
    let message = "x".repeat(30_000);
    let long = workload(&[("Evicted", &message)]);
    assert!(admission(&long).is_err_and(|why| why.chars().count() <= MESSAGE_CHARS_MAX + 1));
}

#[test]
fn cached_workload_has_no_pod_templates() {
    let object = workload(&[("Admitted", "")]);
    let content = CachedObject::from_json(QUEUED, object).content;
    let ObjectContent::Raw(object) = content else { panic!("{content:?}") };
    assert!(object.pointer("/spec/podSets/0/count").is_some());
    assert!(object.pointer("/spec/podSets/0/template").is_none());
    assert!(is_admitted(&object));
}
