//! Custom resources: which make plans incomplete, which are named, and what `assume` decides.

use super::*;
use crate::model::desired::{FLEET_FILE, Scale};

const FLEET: &str = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {name: t}\nspec:\n  \
                     cluster: {name: t, region: us-east-1, zones: [us-east-1a]}\n";

#[test]
fn custom_objects_whose_controllers_make_pods_are_unresolved() {
    let pods = "{spec: {containers: [{name: c, image: x}]}}";
    let object = |version: &str, kind: &str, spec: &str| {
        read_text(&format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}"
        ))
    };
    for (version, kind, spec, expected) in [
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            format!("{{replicas: 2, leaderWorkerTemplate: {{size: 4, workerTemplate: {pods}}}}}"),
            1,
        ),
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            format!(
                "{{replicatedJobs: [{{replicas: 2, template: {{spec: {{parallelism: 2, \
                 template: {pods}}}}}}}]}}"
            ),
            1,
        ),
        (
            "ray.io/v1",
            "RayCluster",
            format!(
                "{{headGroupSpec: {{template: {pods}}}, \
                 workerGroupSpecs: [{{replicas: 3, template: {pods}}}]}}"
            ),
            1,
        ),
        ("example.com/v1", "Sandbox", format!("{{template: {pods}}}"), 1),
        ("example.com/v1", "SandboxTemplate", format!("{{template: {pods}}}"), 0),
        ("ray.io/v1", "RayCluster", format!("{{headGroupSpec: {{template: {pods}}}}}"), 1),
        ("kafka.strimzi.io/v1", "KafkaNodePool", "{replicas: 3}".to_owned(), 1),
        ("kafka.strimzi.io/v1", "KafkaTopic", "{partitions: 3}".to_owned(), 0),
        ("monitoring.coreos.com/v1", "Prometheus", "{}".to_owned(), 1),
        ("opentelemetry.io/v1beta1", "OpenTelemetryCollector", "{mode: sidecar}".to_owned(), 0),
        ("sparkoperator.k8s.io/v1beta2", "SparkApplication", "{driver: {}}".to_owned(), 1),
        (
            "trainer.kubeflow.org/v1",
            "TrainingRuntime",
            format!("{{parts: [{{replicas: 1, template: {pods}}}]}}"),
            0,
        ),
        (
            "kyverno.io/v1",
            "ClusterPolicy",
            format!("{{rules: [{{replicas: 1, template: {pods}}}]}}"),
            0,
        ),
        (
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            format!("{{parts: [{{replicas: 1, template: {pods}}}]}}"),
            0,
        ),
        (
            "example.com/v1",
            "Database",
            "{replicas: 1, podTemplate: {spec: {containers: [{name: c, resources: {}}]}}}"
                .to_owned(),
            1,
        ),
    ] {
        let desired = object(version, kind, &spec);
        assert_eq!(unresolved(&desired).len(), expected, "{kind}: {:?}", unresolved(&desired));
    }
}

#[test]
fn custom_objects_of_unknown_kinds_are_named() {
    let object = |version: &str, kind: &str| {
        format!("---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{}}\n")
    };
    let text = [
        object("example.com/v1", "Foo"),
        object("example.com/v1", "Bar"),
        object("a.example.com/v1", "Foo"),
        object("cert-manager.io/v1", "Certificate"),
        object("monitoring.coreos.com/v1", "ServiceMonitor"),
        object("db.services.k8s.aws/v1", "Table"),
        object("example.com/v1", "FooClass"),
    ]
    .concat();
    let desired = read_text(&text);
    assert_eq!(unresolved(&desired), [""; 0]);
    let expected = "a.yaml:2: 3 objects of kinds that are not read: 2 Foo, 1 Bar. Pods that their \
                    controllers make are not counted";
    assert!(problem(&text).contains(expected), "{}", problem(&text));
    let named = |kind: &str| desired.skipped.iter().any(|skipped| skipped.reason == kind);
    assert!(named("custom kind Foo") && named("kind Certificate") && named("kind FooClass"));
}

/// Reads `files` with a source at `db` that has these assumed pods, next to the path `apps`.
fn read_assuming(pods: u32, files: &[(&str, &str)]) -> Desired {
    let settings = format!(
        "{FLEET}  sources:\n  - {{path: apps}}\n  - {{path: db, assume: {{pods: {pods}, cpu: 2, \
         memory: 4Gi}}}}\n"
    );
    let settings = (FLEET_FILE, settings.as_str());
    let all = [files, &[("apps/b.yaml", "a: 1"), ("db/b.yaml", "a: 1"), settings]].concat();
    let tree = tree(&all);
    let (fleet, problems) = read_fleet(&tree);
    assert_eq!(problems, []);
    read(&tree, &fleet)
}

#[test]
fn assumed_pods_replace_custom_objects() {
    let object = |version: &str, kind: &str| {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n")
    };
    let (maker, unknown) = (object("ray.io/v1", "RayCluster"), object("example.com/v1", "Foo"));
    for text in [&maker, &unknown] {
        let desired = read_assuming(3, &[("db/a.yaml", text)]);
        assert_eq!((unresolved(&desired), lines(&desired)), (vec![], vec![]), "{text}");
        let scales: Vec<&Scale> = desired.assumed.iter().map(|one| &one.scale).collect();
        assert_eq!(scales, [&Scale::Replicas(3)], "{text}");
    }
    let none = read_assuming(0, &[("db/a.yaml", &maker)]);
    assert_eq!((none.assumed.len(), none.unresolved.len(), lines(&none)), (0, 0, vec![]));
    let elsewhere = read_assuming(3, &[("apps/a.yaml", &maker)]);
    assert_eq!((elsewhere.assumed.len(), elsewhere.unresolved.len()), (0, 1));
    let [problem] = &lines(&elsewhere)[..] else { panic!("{:?}", lines(&elsewhere)) };
    assert!(problem.contains("source db: states `assume`, which has no effect"), "{problem}");
}
