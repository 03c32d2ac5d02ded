//! StatefulSets whose claims are bound in different zones, and claims that one pod can use.

use super::*;
use crate::demand::{Decider, DemandMode};
use crate::model::desired::{Desired, Scale, Severity, VolumeClaim, Workload};
use crate::model::ids::{Origin, WorkloadId};
use crate::model::observed::{ClusterIdentity, Observed};
use crate::model::pod::{NodeTerm, PodSpec};
use crate::model::requirement::{key, label};
use crate::model::storage::{Claim, ClaimPhase, PersistentVolume, StorageClass};
use crate::testing::pods::{deployment, one_of, pod_group};
use crate::testing::world::pod;

fn id(kind: WorkloadKind, name: &str) -> WorkloadId {
    WorkloadId { kind, ..deployment("web", name) }
}

fn desired(workloads: &[(WorkloadKind, &str, u32, VolumeSource)]) -> Desired {
    let mut desired = Desired::default();
    for (kind, name, replicas, source) in workloads {
        let volume = Volume { name: "data".into(), source: source.clone() };
        let spec = PodSpec { volumes: vec![volume], ..PodSpec::default() };
        let id = id(*kind, name);
        let workload = Workload::new(
            id.clone(),
            Origin::new("app.yaml", 1),
            Scale::Replicas(*replicas),
            Arc::new(PodTemplate { spec, ..PodTemplate::default() }),
        );
        desired.workloads.insert(id, workload);
    }
    desired
}

/// Returns a cluster with a `WaitForFirstConsumer` class, and a claim bound in each given zone.
fn cluster(claims: &[(&str, &str)]) -> Observed {
    let at = "2026-11-21T12:00:00Z".parse().expect("valid");
    let mut cluster = Observed::empty(ClusterIdentity::default(), at);
    let class = StorageClass {
        provisioner: "ebs.csi.aws.com".to_owned(),
        wait_for_first_consumer: true,
        allowed_topologies: Vec::new(),
        is_default: true,
        created_at: None,
    };
    cluster.storage.classes.insert("gp3".to_owned(), class);
    for (name, zone) in claims {
        let zonal = one_of(key::ZONE, &[zone]);
        let terms = vec![NodeTerm { expressions: vec![zonal], fields: Vec::new() }];
        let volume = PersistentVolume { node_terms: terms, ..PersistentVolume::default() };
        cluster.storage.volumes.insert(format!("pv-{name}"), volume);
        let claim = Claim {
            volume_name: Some(format!("pv-{name}")),
            phase: ClaimPhase::Bound,
            ..Claim::default()
        };
        let claims = cluster.storage.claims.entry("web".into()).or_default();
        claims.insert((*name).to_owned(), claim);
    }
    cluster
}

fn run(cluster: &mut Observed, owner: &WorkloadId, name: &str, node: &str) {
    let template = Arc::new(PodTemplate::default());
    cluster.templates.insert("t".to_owned(), template);
    cluster.pods.push(Arc::new(pod(name).owned_by(owner).on(node)));
}

/// Returns the zones of each partition (a, b, c), its count and its nodes. A blocked partition is
/// marked by `!`.
fn parts(group: &PodGroup) -> Vec<(String, u32, Vec<String>)> {
    let zones = |shape: &PodShape| {
        let on = |zone: &&str| {
            let labels = [label(key::ZONE, zone)].into();
            shape.nodes.any_of.iter().any(|one| one.matches_labels(&labels))
        };
        ["a", "b", "c"].into_iter().filter(on).collect::<String>()
    };
    let mut parts: Vec<_> = group
        .as_parts()
        .into_iter()
        .map(|part| {
            let running = part.running.iter().map(|(node, n)| format!("{node}:{n}")).collect();
            let blocked = if part.shape.unsupported.is_empty() { "" } else { "!" };
            (format!("{}{blocked}", zones(&part.shape)), part.planned, running)
        })
        .collect();
    parts.sort();
    parts
}

fn group(desired: &Desired, cluster: &Observed, name: &str) -> PodGroup {
    let demand = Demand::build(desired, cluster, DemandMode::Live);
    let found = demand.groups.into_iter().find(|group| &*group.workload.name == name);
    let group = found.expect("the group is there");
    let sum: u32 = group.as_parts().iter().map(|part| part.planned).sum();
    assert_eq!(sum, group.counts.planned, "counts of the partitions add up");
    group
}

fn template() -> VolumeSource {
    VolumeSource::ClaimTemplate(None)
}

#[test]
fn claims_in_different_zones_split_a_stateful_set() {
    let mut cluster = cluster(&[("data-db-0", "a"), ("data-db-1", "b"), ("data-db-2", "a")]);
    let db = id(WorkloadKind::StatefulSet, "db");
    for (ordinal, node) in [(0, "n1"), (1, "n2"), (2, "n1"), (4, "n3")] {
        run(&mut cluster, &db, &format!("db-{ordinal}"), node);
    }
    let desired = desired(&[(WorkloadKind::StatefulSet, "db", 4, template())]);
    let group = group(&desired, &cluster, "db");
    let expected = [
        ("a".to_owned(), 2, vec!["n1:2".to_owned()]),
        ("abc".to_owned(), 1, vec![]),
        ("b".to_owned(), 1, vec!["n2:1".to_owned()]),
    ];
    assert_eq!(parts(&group), expected, "db-4 is removed, and db-3 has no claim yet");
    assert_eq!(group.running.values().sum::<u32>(), 4, "the group counts all running pods");
}

#[test]
fn equal_pods_make_no_partitions() {
    let stateful = |replicas| desired(&[(WorkloadKind::StatefulSet, "db", replicas, template())]);
    let fresh = group(&stateful(3), &cluster(&[]), "db");
    assert_eq!((fresh.partitions.len(), parts(&fresh)), (0, vec![("abc".to_owned(), 3, vec![])]));
    let together = cluster(&[("data-db-0", "b"), ("data-db-1", "b")]);
    let together = group(&stateful(2), &together, "db");
    assert_eq!(
        (together.partitions.len(), parts(&together)),
        (0, vec![("b".to_owned(), 2, vec![])])
    );
}

#[test]
fn ordinals_start_at_the_declared_ordinal() {
    let mut desired = desired(&[(WorkloadKind::StatefulSet, "db", 1, template())]);
    let db = id(WorkloadKind::StatefulSet, "db");
    desired.workloads.get_mut(&db).expect("declared").first_ordinal = 5;
    let cluster = cluster(&[("data-db-0", "a"), ("data-db-5", "c")]);
    assert_eq!(parts(&group(&desired, &cluster, "db")), [("c".to_owned(), 1, vec![])]);
}

#[test]
fn undeclared_pods_keep_the_zones_of_their_claims() {
    let mut cluster = cluster(&[("data-db-0", "a"), ("data-db-1", "b")]);
    let db = id(WorkloadKind::StatefulSet, "db");
    for (name, node) in [("db-0", "n1"), ("db-1", "n2")] {
        run(&mut cluster, &db, name, node);
        let source = VolumeSource::Claim(format!("data-{name}"));
        let spec =
            PodSpec { volumes: vec![Volume { name: "data".into(), source }], ..PodSpec::default() };
        let template = Arc::new(PodTemplate { spec, ..PodTemplate::default() });
        cluster.templates.insert(name.to_owned(), template);
        let pod = cluster.pods.last_mut().expect("just added");
        Arc::make_mut(pod).template = name.into();
    }
    let group = group(&Desired::default(), &cluster, "db");
    let expected = [
        ("a".to_owned(), 1, vec!["n1:1".to_owned()]),
        ("b".to_owned(), 1, vec!["n2:1".to_owned()]),
    ];
    assert_eq!(parts(&group), expected);
    let own =
        |part: &ReplicaPartition| part.shape.volumes.iter().all(|m| m.sharing == Sharing::Own);
    assert!(group.partitions.iter().all(own), "each claim has one user");
}

fn add_single_pod_claim(cluster: &mut Observed, name: &str) {
    let claim = Claim { access_modes: vec!["ReadWriteOncePod".to_owned()], ..Claim::default() };
    cluster.storage.claims.entry("web".into()).or_default().insert(name.to_owned(), claim);
}

#[test]
fn single_pod_claim_blocks_all_other_pods() {
    let mut cluster = cluster(&[]);
    add_single_pod_claim(&mut cluster, "one");
    let uses = || VolumeSource::Claim("one".to_owned());
    let desired = desired(&[
        (WorkloadKind::Deployment, "a", 1, uses()),
        (WorkloadKind::Deployment, "b", 3, uses()),
    ]);
    let all = |cluster: &Observed| ["a", "b"].map(|name| parts(&group(&desired, cluster, name)));
    let blocked = |pods| ("abc!".to_owned(), pods, vec![]);
    let free = [vec![("abc".to_owned(), 1, vec![])], vec![blocked(3)]];
    assert_eq!(all(&cluster), free, "the first workload by name gets the claim");
    run(&mut cluster, &id(WorkloadKind::Deployment, "b"), "b-x", "n1");
    let running = vec![("abc".to_owned(), 1, vec!["n1:1".to_owned()]), blocked(2)];
    assert_eq!(all(&cluster), [vec![blocked(1)], running], "the running pod keeps the claim");
}

#[test]
fn claim_with_one_user_is_exclusive() {
    let mut cluster = cluster(&[]);
    add_single_pod_claim(&mut cluster, "one");
    let uses = VolumeSource::Claim("one".to_owned());
    let single = desired(&[(WorkloadKind::Deployment, "a", 1, uses.clone())]);
    let sharing = |desired: &Desired| group(desired, &cluster, "a").shape.volumes[0].sharing;
    assert_eq!(sharing(&single), Sharing::Own);
    let daemon = desired(&[
        (WorkloadKind::Deployment, "a", 1, VolumeSource::Claim("x".to_owned())),
        (WorkloadKind::Deployment, "b", 1, VolumeSource::Claim("x".to_owned())),
    ]);
    assert_eq!(sharing(&daemon), Sharing::Shared);
}

#[test]
fn missing_claims_and_assumed_classes_are_reported() {
    let mut desired = desired(&[
        (WorkloadKind::Deployment, "a", 1, VolumeSource::Claim("nowhere".to_owned())),
        (WorkloadKind::StatefulSet, "db", 1, VolumeSource::ClaimTemplate(Some("gp3".to_owned()))),
    ]);
    let origin = Origin::new("claims.yaml", 1);
    let claim = VolumeClaim { origin, claim: Claim::default() };
    desired.claims.insert(("web".into(), "unused".to_owned()), claim);
    let mut empty = cluster(&[]);
    empty.storage.classes.clear();
    let demand = Demand::build(&desired, &empty, DemandMode::Live);
    let reported: Vec<_> =
        demand.problems.iter().map(|p| (p.severity, p.message.as_str())).collect();
    let missing = "claim web/nowhere is neither in the repository nor in the world: its pods are \
                   unschedulable";
    let assumed = "claim web/data-* is of storage class gp3, which is declared nowhere; its \
                   volumes are taken for EBS volumes that follow their pods";
    assert_eq!(reported, [(Severity::Warning, missing), (Severity::Warning, assumed)]);
    assert!(demand.problems.iter().all(|p| p.origin.file.as_ref() == "app.yaml"));
}

#[test]
fn removed_workload_has_no_partitions() {
    let desired = desired(&[(WorkloadKind::Deployment, "a", 1, template())]);
    let shape = PodShape::clone(&group(&desired, &cluster(&[]), "a").shape);
    let mut group = PodGroup {
        decided_by: Decider::Removed,
        running: [("n1".into(), 2)].into(),
        ..pod_group(id(WorkloadKind::StatefulSet, "db"), shape, 0)
    };
    let part =
        ReplicaPartition { shape: Arc::clone(&group.shape), planned: 0, running: BTreeMap::new() };
    group.set_partitions(vec![part.clone(), part]);
    assert_eq!(group.partitions, []);
}
