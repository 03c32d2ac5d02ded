//! Stateful sets whose claims are bound apart, and claims that not every pod can have.

use super::*;
use crate::demand::{Counts, Decider, DemandMode};
use crate::model::desired::{Desired, Scale, Severity, VolumeClaim, Workload};
use crate::model::ids::{Origin, WorkloadId};
use crate::model::observed::{ClusterIdentity, Observed, PodPhase};
use crate::model::pod::{Expression, NodeTerm, PodSpec};
use crate::model::requirement::{Operator, key, label};
use crate::model::storage::{Claim, ClaimPhase, PersistentVolume, StorageClass};

fn id(kind: WorkloadKind, name: &str) -> WorkloadId {
    WorkloadId { namespace: "web".into(), name: name.into(), kind }
}

fn desired(workloads: &[(WorkloadKind, &str, u32, VolumeSource)]) -> Desired {
    let mut desired = Desired::default();
    for (kind, name, replicas, source) in workloads {
        let volume = Volume { name: "data".into(), source: source.clone() };
        let spec = PodSpec { volumes: vec![volume], ..PodSpec::default() };
        let id = id(*kind, name);
        let workload = Workload {
            id: id.clone(),
            origin: Origin::new("app.yaml", 1),
            scale: Scale::Replicas(*replicas),
            template: Arc::new(PodTemplate { spec, ..PodTemplate::default() }),
            first_ordinal: 0,
        };
        desired.workloads.insert(id, workload);
    }
    desired
}

/// A world with a class that waits for pods, and a claim bound in each zone named.
fn world(claims: &[(&str, &str)]) -> Observed {
    let at = "2026-11-21T12:00:00Z".parse().expect("valid");
    let mut world = Observed::empty(ClusterIdentity::default(), at);
    let class = StorageClass {
        provisioner: "ebs.csi.aws.com".to_owned(),
        wait_for_first_consumer: true,
        allowed_topologies: Vec::new(),
        is_default: true,
        created_at: None,
    };
    world.storage.classes.insert("gp3".to_owned(), class);
    for (name, zone) in claims {
        let values = vec![(*zone).into()];
        let zonal = Expression { key: key::ZONE.into(), operator: Operator::In, values };
        let terms = vec![NodeTerm { expressions: vec![zonal], fields: Vec::new() }];
        let volume = PersistentVolume { node_terms: terms, ..PersistentVolume::default() };
        world.storage.volumes.insert(format!("pv-{name}"), volume);
        let claim = Claim {
            volume_name: Some(format!("pv-{name}")),
            phase: ClaimPhase::Bound,
            ..Claim::default()
        };
        let claims = world.storage.claims.entry("web".into()).or_default();
        claims.insert((*name).to_owned(), claim);
    }
    world
}

fn run(world: &mut Observed, owner: &WorkloadId, name: &str, node: &str) {
    let template = Arc::new(PodTemplate::default());
    world.templates.insert("t".to_owned(), template);
    world.pods.push(Arc::new(Pod {
        namespace: "web".into(),
        name: name.into(),
        uid: name.into(),
        owner: Some(owner.clone()),
        template: "t".to_owned(),
        node: Some(node.into()),
        phase: PodPhase::Running,
        created_at: world.taken_at,
        terminating: false,
        mirror: false,
        started_at: None,
        granted: BTreeMap::new(),
    }));
}

/// Returns, for each part, the zones of a, b, c that it may be in, its count, and where it runs.
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
            let waits = if part.shape.unsupported.is_empty() { "" } else { "!" };
            (format!("{}{waits}", zones(&part.shape)), part.planned, running)
        })
        .collect();
    parts.sort();
    parts
}

fn group(desired: &Desired, world: &Observed, name: &str) -> PodGroup {
    let demand = Demand::build(desired, world, DemandMode::Live);
    let found = demand.groups.into_iter().find(|group| &*group.workload.name == name);
    let group = found.expect("the group is there");
    let sum: u32 = group.as_parts().iter().map(|part| part.planned).sum();
    assert_eq!(sum, group.counts.planned, "parts add up");
    group
}

fn template() -> VolumeSource {
    VolumeSource::ClaimTemplate(None)
}

#[test]
fn ordinals_whose_claims_are_bound_in_different_zones_are_parts() {
    let mut world = world(&[("data-db-0", "a"), ("data-db-1", "b"), ("data-db-2", "a")]);
    let db = id(WorkloadKind::StatefulSet, "db");
    for (ordinal, node) in [(0, "n1"), (1, "n2"), (2, "n1"), (4, "n3")] {
        run(&mut world, &db, &format!("db-{ordinal}"), node);
    }
    let desired = desired(&[(WorkloadKind::StatefulSet, "db", 4, template())]);
    let group = group(&desired, &world, "db");
    let expected = [
        ("a".to_owned(), 2, vec!["n1:2".to_owned()]),
        ("abc".to_owned(), 1, vec![]),
        ("b".to_owned(), 1, vec!["n2:1".to_owned()]),
    ];
    assert_eq!(parts(&group), expected, "db-4 goes, and db-3 has no claim yet");
    assert_eq!(group.running.values().sum::<u32>(), 4, "the group as a whole runs all of them");
}

#[test]
fn pods_that_are_alike_are_no_parts() {
    let stateful = |replicas| desired(&[(WorkloadKind::StatefulSet, "db", replicas, template())]);
    let fresh = group(&stateful(3), &world(&[]), "db");
    assert_eq!((fresh.partitions.len(), parts(&fresh)), (0, vec![("abc".to_owned(), 3, vec![])]));
    let together = world(&[("data-db-0", "b"), ("data-db-1", "b")]);
    let together = group(&stateful(2), &together, "db");
    assert_eq!(
        (together.partitions.len(), parts(&together)),
        (0, vec![("b".to_owned(), 2, vec![])])
    );
}

#[test]
fn ordinals_begin_where_the_set_says() {
    let mut desired = desired(&[(WorkloadKind::StatefulSet, "db", 1, template())]);
    let db = id(WorkloadKind::StatefulSet, "db");
    desired.workloads.get_mut(&db).expect("declared").first_ordinal = 5;
    let world = world(&[("data-db-0", "a"), ("data-db-5", "c")]);
    assert_eq!(parts(&group(&desired, &world, "db")), [("c".to_owned(), 1, vec![])]);
}

#[test]
fn pods_that_only_the_world_knows_keep_the_zones_of_their_claims() {
    let mut world = world(&[("data-db-0", "a"), ("data-db-1", "b")]);
    let db = id(WorkloadKind::StatefulSet, "db");
    for (name, node) in [("db-0", "n1"), ("db-1", "n2")] {
        run(&mut world, &db, name, node);
        let source = VolumeSource::Claim(format!("data-{name}"));
        let spec =
            PodSpec { volumes: vec![Volume { name: "data".into(), source }], ..PodSpec::default() };
        let template = Arc::new(PodTemplate { spec, ..PodTemplate::default() });
        world.templates.insert(name.to_owned(), template);
        let pod = world.pods.last_mut().expect("just added");
        Arc::make_mut(pod).template = name.to_owned();
    }
    let group = group(&Desired::default(), &world, "db");
    let expected = [
        ("a".to_owned(), 1, vec!["n1:1".to_owned()]),
        ("b".to_owned(), 1, vec!["n2:1".to_owned()]),
    ];
    assert_eq!(parts(&group), expected);
    let own =
        |part: &ReplicaPartition| part.shape.volumes.iter().all(|m| m.sharing == Sharing::Own);
    assert!(group.partitions.iter().all(own), "each claim has one user");
}

fn one_pod_claim(world: &mut Observed, name: &str) {
    let claim = Claim { access_modes: vec!["ReadWriteOncePod".to_owned()], ..Claim::default() };
    world.storage.claims.entry("web".into()).or_default().insert(name.to_owned(), claim);
}

#[test]
fn a_claim_for_one_pod_goes_to_one_pod_and_the_others_wait() {
    let mut world = world(&[]);
    one_pod_claim(&mut world, "one");
    let uses = || VolumeSource::Claim("one".to_owned());
    let desired = desired(&[
        (WorkloadKind::Deployment, "a", 1, uses()),
        (WorkloadKind::Deployment, "b", 3, uses()),
    ]);
    let all = |world: &Observed| ["a", "b"].map(|name| parts(&group(&desired, world, name)));
    let waiting = |pods| ("abc!".to_owned(), pods, vec![]);
    let free = [vec![("abc".to_owned(), 1, vec![])], vec![waiting(3)]];
    assert_eq!(all(&world), free, "the first by name");
    run(&mut world, &id(WorkloadKind::Deployment, "b"), "b-x", "n1");
    let held = vec![("abc".to_owned(), 1, vec!["n1:1".to_owned()]), waiting(2)];
    assert_eq!(all(&world), [vec![waiting(1)], held], "the one that has it");
}

#[test]
fn a_claim_with_one_user_is_its_own() {
    let mut world = world(&[]);
    one_pod_claim(&mut world, "one");
    let uses = VolumeSource::Claim("one".to_owned());
    let single = desired(&[(WorkloadKind::Deployment, "a", 1, uses.clone())]);
    let sharing = |desired: &Desired| group(desired, &world, "a").shape.volumes[0].sharing;
    assert_eq!(sharing(&single), Sharing::Own);
    let daemon = desired(&[
        (WorkloadKind::Deployment, "a", 1, VolumeSource::Claim("x".to_owned())),
        (WorkloadKind::Deployment, "b", 1, VolumeSource::Claim("x".to_owned())),
    ]);
    assert_eq!(sharing(&daemon), Sharing::Shared);
}

#[test]
fn what_is_missing_or_assumed_is_said_with_its_place() {
    let mut desired = desired(&[
        (WorkloadKind::Deployment, "a", 1, VolumeSource::Claim("nowhere".to_owned())),
        (WorkloadKind::StatefulSet, "db", 1, VolumeSource::ClaimTemplate(Some("gp3".to_owned()))),
    ]);
    let origin = Origin::new("claims.yaml", 1);
    let claim = VolumeClaim { origin, claim: Claim::default() };
    desired.claims.insert(("web".into(), "unused".to_owned()), claim);
    let mut empty = world(&[]);
    empty.storage.classes.clear();
    let demand = Demand::build(&desired, &empty, DemandMode::Live);
    let told: Vec<_> = demand.problems.iter().map(|p| (p.severity, p.message.as_str())).collect();
    let missing = "claim web/nowhere is neither in the repository nor in the world: its pods have \
                   no place yet";
    let assumed = "claim web/data-* is of storage class gp3, which is declared nowhere; its volumes \
                   are taken for EBS volumes that follow their pods";
    assert_eq!(told, [(Severity::Warning, missing), (Severity::Warning, assumed)]);
    assert!(demand.problems.iter().all(|p| p.origin.file.as_ref() == "app.yaml"));
}

#[test]
fn the_parts_of_a_workload_on_its_way_out_are_not_told_apart() {
    let mut group = PodGroup {
        workload: id(WorkloadKind::StatefulSet, "db"),
        origin: None,
        shape: group(&desired(&[(WorkloadKind::Deployment, "a", 1, template())]), &world(&[]), "a")
            .shape,
        counts: Counts::default(),
        decided_by: Decider::Removed,
        running: [("n1".into(), 2)].into(),
        partitions: Vec::new(),
    };
    let part =
        ReplicaPartition { shape: Arc::clone(&group.shape), planned: 0, running: BTreeMap::new() };
    group.set_partitions(vec![part.clone(), part]);
    assert_eq!(group.partitions, []);
}
