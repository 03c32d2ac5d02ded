use serde_json::json;

use super::*;
use crate::model::ids::WorkloadKind;
use crate::model::observed::Pod;

fn owned(name: &str, api_version: &str, kind: &str, owner: &str) -> Json {
    json!({
        "metadata": {
            "name": name, "namespace": "web", "uid": name,
            "creationTimestamp": "2026-11-21T09:00:00Z",
            "ownerReferences": [{
                "apiVersion": api_version, "kind": kind, "name": owner, "uid": "u",
                "controller": true
            }]
        },
        "spec": { "containers": [{ "name": "main", "image": "main" }] }
    })
}

fn cached_objects(resource: ApiResource, objects: Vec<Json>) -> ObjectCache {
    let typed = objects.into_iter().map(|mut object| {
        object["apiVersion"] = resource.api_version.into();
        object["kind"] = resource.kind.into();
        (object_key(&object), CachedObject::from_json(resource, object))
    });
    typed.collect()
}

#[test]
fn top_level_workload_owns_the_pod() {
    let cases = [
        ("apps/v1", "ReplicaSet", "api-7f", Some((WorkloadKind::Deployment, "api"))),
        ("apps/v1", "ReplicaSet", "other", Some((WorkloadKind::ReplicaSet, "other"))),
        ("apps/v1", "ReplicaSet", "canary-1", Some((WorkloadKind::Rollout, "c"))),
        ("apps/v1", "ReplicaSet", "custom-1", Some((WorkloadKind::ReplicaSet, "custom-1"))),
        ("batch/v1", "Job", "sync-1", Some((WorkloadKind::CronJob, "sync"))),
        ("batch/v1", "Job", "queue-x", Some((WorkloadKind::ScaledJob, "queue"))),
        ("apps/v1", "StatefulSet", "db", Some((WorkloadKind::StatefulSet, "db"))),
        ("v1", "Node", "ip-10-0-0-1", None),
    ];
    let pod = |(n, case): (usize, &(&str, &str, &str, _))| {
        owned(&format!("pod-{n}"), case.0, case.1, case.2)
    };
    let mut pods = cached_objects(PODS, cases.iter().enumerate().map(pod).collect());
    let sets = vec![
        owned("api-7f", "apps/v1", "Deployment", "api"),
        owned("canary-1", "argoproj.io/v1alpha1", "Rollout", "c"),
        owned("custom-1", "example.com/v1", "Rollout", "c"),
    ];
    let sets = cached_objects(REPLICA_SETS, sets);
    let jobs = vec![
        owned("sync-1", "batch/v1", "CronJob", "sync"),
        owned("queue-x", "keda.sh/v1alpha1", "ScaledJob", "queue"),
    ];
    let jobs = cached_objects(JOBS, jobs);
    let others = [(REPLICA_SETS.path, &sets), (JOBS.path, &jobs)].into();
    let objects = assemble(&mut pods, &others, &BTreeMap::new());
    assert_eq!(objects.pods.len(), cases.len(), "{:?}", objects.unread);
    for (pod, (_, kind, owner, expected)) in objects.pods.iter().zip(cases) {
        let found = pod.owner.as_ref().map(|id| (id.kind, id.name.to_string()));
        let expected = expected.map(|(kind, name)| (kind, name.to_owned()));
        assert_eq!(found, expected, "{kind} {owner}");
    }
}

#[test]
fn observations_share_unchanged_pods() {
    let read = |object: Json, interner: &mut Interner| {
        let mut cache = cached_objects(PODS, vec![object]);
        for cached in cache.values_mut() {
            interner.intern(cached);
        }
        cache
    };
    let mut interner = Interner::default();
    let mut pods = read(owned("a", "apps/v1", "ReplicaSet", "api-7f"), &mut interner);
    pods.append(&mut read(owned("b", "apps/v1", "ReplicaSet", "api-7f"), &mut interner));
    let sets =
        |owner| cached_objects(REPLICA_SETS, vec![owned("api-7f", "apps/v1", "Deployment", owner)]);
    let cached = |pods: &mut ObjectCache, owner| {
        assemble(pods, &[(REPLICA_SETS.path, &sets(owner))].into(), &BTreeMap::new()).pods
    };
    let (first, again) = (cached(&mut pods, "api"), cached(&mut pods, "api"));
    assert!(first.iter().zip(&again).all(|(a, b)| Arc::ptr_eq(a, b)));
    let text = |pod: &Arc<Pod>| pod.namespace.as_str().as_ptr();
    assert_eq!(text(&first[0]), text(&first[1]), "one text, although each was read by itself");
    let template = |pod: &Arc<Pod>| pod.template.as_ptr();
    assert_eq!(template(&first[0]), template(&first[1]), "one key of their template");
    let owner = |pod: &Arc<Pod>| pod.owner.clone().expect("it has one");
    let other = cached(&mut pods, "other");
    assert_eq!((&*owner(&other[0]).name, &*owner(&first[0]).name), ("other", "api"));
}

#[test]
fn unused_interned_values_are_dropped() {
    let mut interner = Interner::default();
    let mut pods = cached_objects(PODS, vec![owned("a", "apps/v1", "ReplicaSet", "api-7f")]);
    for cached in pods.values_mut() {
        interner.intern(cached);
    }
    interner.drop_unused();
    let is_interned = |interner: &Interner| format!("{interner:?}").contains("api-7f");
    assert!(is_interned(&interner));
    drop(pods);
    interner.drop_unused();
    assert!(!is_interned(&interner), "{interner:?}");
}

#[test]
fn unreadable_object_concerns_its_own_nodes_only() {
    let pod = |name: &str, node: Option<&str>, grace: &Json| {
        let mut pod = owned(name, "apps/v1", "ReplicaSet", "api");
        pod["spec"]["nodeName"] = node.into();
        pod["spec"]["terminationGracePeriodSeconds"] = grace.clone();
        pod["status"] = json!({ "phase": "Running" });
        pod
    };
    let (good, bad) = (&json!(-1), &json!("soon"));
    let mut pods = cached_objects(
        PODS,
        vec![pod("fine", Some("n1"), good), pod("bound", Some("n2"), bad), pod("new", None, bad)],
    );
    let horizontal = cached_objects(
        HORIZONTAL,
        vec![json!({ "metadata": { "name": "api", "namespace": "web" }, "spec": 7 })],
    );
    let objects = assemble(&mut pods, &[(HORIZONTAL.path, &horizontal)].into(), &BTreeMap::new());
    assert_eq!(objects.unread, [""; 0], "the list is complete");
    let found: Vec<(&str, Vec<&str>, bool)> = objects
        .unread_objects
        .iter()
        .map(|unread| {
            let nodes = unread.nodes.iter().map(NodeName::as_str).collect();
            (unread.object.as_str(), nodes, unread.hides_requests)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("HorizontalPodAutoscaler web/api", vec!["n1", "n2"], false),
            ("Pod web/bound", vec!["n2"], true),
            ("Pod web/new", vec![], true),
        ]
    );
    let summary = &objects.unread_objects[1].reason;
    assert!(summary.contains("terminationGracePeriodSeconds"), "{summary}");
    // Its annotations are unknown as well, so no drain may evict it.
    let bound = pods.remove("web/bound").expect("it is cached");
    assert!(bound.into_content().is_err_and(|why| why == *summary));
    assert!(pods.remove("web/fine").expect("it is cached").into_content().is_ok());
    let names: Vec<&str> = objects.pods.iter().map(|pod| &*pod.name).collect();
    assert_eq!(names, ["bound", "fine"], "no node is planned for a pending unreadable pod");
}

#[test]
fn devices_that_may_not_be_listed_are_unread() {
    let unread = |claims: Json, left_out: Option<&LeftOut>| {
        let mut pod = owned("a", "apps/v1", "StatefulSet", "db");
        pod["spec"]["resourceClaims"] = claims;
        let left_out = left_out.map(|why| (RESOURCE_SLICES.path, why.clone()));
        let left_out = left_out.into_iter().collect();
        assemble(&mut cached_objects(PODS, vec![pod]), &BTreeMap::new(), &left_out).unread
    };
    let claims = || json!([{ "name": "gpu", "resourceClaimTemplateName": "one" }]);
    let forbidden = LeftOut::Forbidden("resourceslices is forbidden".to_owned());
    assert_eq!(unread(json!([]), Some(&forbidden)), [""; 0], "no pod claims devices");
    assert_eq!(unread(claims(), None), [""; 0]);
    assert_eq!(unread(claims(), Some(&LeftOut::NotServed)), [""; 0]);
    let [found] = &unread(claims(), Some(&forbidden))[..] else { panic!("one list") };
    assert!(found.contains("resourceslices is forbidden"), "{found}");
}

#[test]
fn published_devices_are_resources_of_their_node() {
    let node = json!({
        "metadata": { "name": "n", "uid": "u", "creationTimestamp": "2026-11-21T09:00:00Z" },
        "spec": {}, "status": { "allocatable": { "cpu": "4", "memory": "1Gi", "pods": "9" } }
    });
    let slice = json!({
        "metadata": { "name": "n-gpu" },
        "spec": {
            "driver": "neuron.aws.com", "nodeName": "n",
            "pool": { "name": "n", "generation": 1, "resourceSliceCount": 1 },
            "devices": [{ "name": "neuron-0" }, { "name": "neuron-1" }]
        }
    });
    let broken = json!({ "metadata": { "name": "odd" }, "spec": { "nodeName": "n" } });
    let nodes = cached_objects(NODES, vec![node]);
    let slices = cached_objects(RESOURCE_SLICES, vec![slice, broken]);
    let others = [(NODES.path, &nodes), (RESOURCE_SLICES.path, &slices)].into();
    let objects = assemble(&mut ObjectCache::new(), &others, &BTreeMap::new());
    assert_eq!(objects.nodes[0].allocatable.extended["aws.amazon.com/neuron"], 2);
    let [odd] = &objects.unread_objects[..] else { panic!("{:?}", objects.unread_objects) };
    assert_eq!((odd.object.as_str(), odd.nodes.len()), ("ResourceSlice odd", 1));
}

#[test]
fn workloads_of_kueue_are_unknown_unless_they_are_listed() {
    let read = |others: &[(&str, &ObjectCache)], left_out: BTreeMap<&str, LeftOut>| {
        let others = others.iter().copied().collect();
        assemble(&mut ObjectCache::new(), &others, &left_out)
    };
    let forbidden = || LeftOut::Forbidden("workloads is forbidden".to_owned());
    assert_eq!(read(&[], [(QUEUED.path, forbidden())].into()).scaling.queued, None);
    assert_eq!(read(&[], [(QUEUED.path, LeftOut::NotServed)].into()).scaling.queued, None);
    let none = cached_objects(QUEUED, Vec::new());
    assert_eq!(read(&[(QUEUED.path, &none)], BTreeMap::new()).scaling.queued, Some(Vec::new()));
    let metadata = json!({ "name": "odd", "namespace": "ml" });
    let odd = json!({ "metadata": metadata, "spec": { "podSets": 7 } });
    let odd = cached_objects(QUEUED, vec![odd]);
    let objects = read(&[(QUEUED.path, &odd)], BTreeMap::new());
    assert_eq!(objects.unread_objects[0].object, "Workload ml/odd");
}

#[test]
fn workload_of_a_job_belongs_to_its_cron_job() {
    let jobs = cached_objects(JOBS, vec![owned("train-2911", "batch/v1", "CronJob", "train")]);
    let mut queued = owned("job-train-2911", "batch/v1", "Job", "train-2911");
    queued["spec"] = json!({ "queueName": "team-a" });
    let queued = cached_objects(QUEUED, vec![queued]);
    let others = [(JOBS.path, &jobs), (QUEUED.path, &queued)].into();
    let objects = assemble(&mut ObjectCache::new(), &others, &BTreeMap::new());
    let queued = objects.scaling.queued.expect("read");
    let owner = queued[0].owner.as_ref().expect("a CronJob");
    assert_eq!((owner.kind, &*owner.name), (WorkloadKind::CronJob, "train"));
}

#[test]
fn unread_queues_matter_once_a_pod_waits_for_kueue() {
    let unread = |gates: Json, why: LeftOut| {
        let mut pod = owned("a", "apps/v1", "StatefulSet", "db");
        pod["spec"]["schedulingGates"] = gates;
        let left_out = [(QUEUED.path, why)].into();
        assemble(&mut cached_objects(PODS, vec![pod]), &BTreeMap::new(), &left_out).unread
    };
    let gate = || json!([{ "name": "kueue.x-k8s.io/admission" }]);
    let forbidden = || LeftOut::Forbidden("workloads is forbidden".to_owned());
    assert_eq!(unread(json!([]), forbidden()), [""; 0]);
    let [found] = &unread(gate(), forbidden())[..] else { panic!("one list") };
    assert!(found.contains("workloads is forbidden"), "{found}");
    let [found] = &unread(gate(), LeftOut::NotServed)[..] else { panic!("one list") };
    assert!(found.contains("no known version of Kueue"), "{found}");
}
