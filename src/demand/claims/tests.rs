//! Where claims let their pods run, as a table.

use super::*;
use crate::demand::{ShapeContext, pod_shape};
use crate::model::desired::VolumeClaim;
use crate::model::ids::{Labels, Origin};
use crate::model::pod::{Expression, PodTemplate};
use crate::model::requirement::{Operator, label};

fn term(key: &str, values: &[&str]) -> NodeTerm {
    let values = values.iter().map(|value| (*value).into()).collect();
    let expression = Expression { key: key.into(), operator: Operator::In, values };
    NodeTerm { expressions: vec![expression], fields: Vec::new() }
}

fn class(provisioner: &str, waits_for_pod: bool, zones: &[&str]) -> StorageClass {
    let topology = (!zones.is_empty()).then(|| term("topology.ebs.csi.aws.com/zone", zones));
    StorageClass {
        provisioner: provisioner.to_owned(),
        wait_for_first_consumer: waits_for_pod,
        allowed_topologies: topology.into_iter().collect(),
        is_default: false,
        created_at: None,
    }
}

fn volume(terms: Vec<NodeTerm>) -> PersistentVolume {
    let driver = Some(EBS_DRIVER.to_owned());
    PersistentVolume { node_terms: terms, driver, ..PersistentVolume::default() }
}

fn bound(volume: &str) -> Claim {
    Claim { volume_name: Some(volume.to_owned()), phase: ClaimPhase::Bound, ..Claim::default() }
}

fn of_class(class: &str) -> Claim {
    Claim { storage_class: Some(class.to_owned()), ..Claim::default() }
}

/// A cluster with classes of every kind, volumes in zone b and on one node, and claims.
fn world() -> Storage {
    let mut world = Storage::default();
    let classes = [
        ("gp3", class(EBS_DRIVER, true, &[])),
        ("ab", class(EBS_DRIVER, true, &["a", "b"])),
        ("bc", class("kubernetes.io/aws-ebs", true, &["b", "c"])),
        ("only-c", class(EBS_DRIVER, true, &["c"])),
        ("at-once", class(EBS_DRIVER, false, &[])),
        ("at-once-in-a", class(EBS_DRIVER, false, &["a"])),
        ("files", class("efs.csi.aws.com", false, &[])),
        ("by-hand", class(NO_PROVISIONER, true, &[])),
    ];
    world.classes = classes.map(|(name, class)| (name.to_owned(), class)).into();
    world.volumes = [
        ("in-b", volume(vec![term("failure-domain.beta.kubernetes.io/zone", &["b"])])),
        ("local", volume(vec![term(key::HOSTNAME, &["n1"])])),
        ("anywhere", volume(Vec::new())),
        ("nowhere", volume(vec![NodeTerm::default()])),
    ]
    .map(|(name, volume)| (name.to_owned(), volume))
    .into();
    let claims = [
        ("in-b", bound("in-b")),
        ("local", bound("local")),
        ("anywhere", bound("anywhere")),
        ("nowhere", bound("nowhere")),
        ("gone", bound("no-such-volume")),
        ("new", of_class("gp3")),
        ("new-ab", of_class("ab")),
        ("new-at-once", of_class("at-once")),
        ("classless", of_class("no-such-class")),
        ("default", Claim::default()),
        ("lost", Claim { phase: ClaimPhase::Lost, ..bound("in-b") }),
        ("going", Claim { deleting: true, ..bound("in-b") }),
        ("asking", Claim { phase: ClaimPhase::Pending, ..bound("in-b") }),
        ("data-db-1", bound("in-b")),
    ];
    world.claims =
        [("web".into(), claims.map(|(name, claim)| (name.to_owned(), claim)).into())].into();
    world
}

fn shape() -> PodShape {
    pod_shape(&"web".into(), &PodTemplate::default(), &ShapeContext::new(&Desired::default()))
}

fn mounted(desired: &Desired, world: &Storage, sources: &[VolumeSource]) -> PodShape {
    let volumes: Vec<Volume> = sources
        .iter()
        .enumerate()
        .map(|(i, source)| Volume { name: format!("v{i}"), source: source.clone() })
        .collect();
    Claims::new(desired, world).with_volumes(&shape(), &volumes, None)
}

/// Returns which of the zones a, b, c, and of the nodes n1, n2 in zone a, admit the pod.
fn places(shape: &PodShape) -> String {
    let on = |labels: &Labels| shape.nodes.any_of.iter().any(|one| one.matches_labels(labels));
    let zones = ["a", "b", "c"].map(|zone| (zone, [label(key::ZONE, zone)].into()));
    let nodes = ["n1", "n2"].map(|n| (n, [label(key::ZONE, "a"), label(key::HOSTNAME, n)].into()));
    let all = zones.into_iter().chain(nodes).filter(|(_, labels)| on(labels));
    all.map(|(name, _)| name).collect::<Vec<_>>().join(" ")
}

fn claim(name: &str) -> VolumeSource {
    VolumeSource::Claim(name.to_owned())
}

fn made(class: &str) -> VolumeSource {
    VolumeSource::EphemeralClaim(Some(class.to_owned()))
}

#[test]
fn volumes_narrow_the_nodes_of_their_pods() {
    let everywhere = "a b c n1 n2";
    for (rule, sources, expected) in [
        ("no volume", vec![], everywhere),
        ("a path of the node", vec![VolumeSource::HostPath], everywhere),
        ("bound: where the volume is", vec![claim("in-b")], "b"),
        ("bound to a local volume: its node", vec![claim("local")], "n1"),
        ("bound to a volume without affinity", vec![claim("anywhere")], everywhere),
        ("bound to a volume whose terms match nothing", vec![claim("nowhere")], ""),
        ("not bound: wherever the class makes volumes", vec![claim("new")], everywhere),
        ("not bound: within the class's topologies", vec![claim("new-ab")], "a b n1 n2"),
        ("made for the pod", vec![made("ab")], "a b n1 n2"),
        ("a template without a claim yet", vec![VolumeSource::ClaimTemplate(None)], everywhere),
        ("two volumes: what both allow", vec![made("ab"), made("bc")], "b"),
        ("bound and not bound", vec![claim("in-b"), made("ab")], "b"),
        ("two that have no place in common", vec![claim("in-b"), made("only-c")], ""),
        ("files are anywhere", vec![made("files")], everywhere),
        ("a disk with its zone", vec![VolumeSource::Ebs("aws://c/vol-1".into())], "c"),
    ] {
        let mut world = world();
        world.classes.get_mut("gp3").expect("declared").is_default = true;
        let shape = mounted(&Desired::default(), &world, &sources);
        assert_eq!(places(&shape), expected, "{rule}");
        assert_eq!(shape.unsupported, [], "{rule}");
        let narrowed = expected != everywhere;
        assert_eq!(shape.nodes.without_volumes.is_some(), narrowed, "{rule}");
    }
}

#[test]
fn a_claim_without_a_place_makes_its_pods_wait_and_says_why() {
    for (sources, expected) in [
        (vec![claim("no-such-claim")], VolumeProblem::Missing),
        (vec![claim("going")], VolumeProblem::Deleting),
        (vec![claim("lost")], VolumeProblem::Lost),
        (vec![claim("gone")], VolumeProblem::VolumeGone("no-such-volume".into())),
        (vec![claim("asking")], VolumeProblem::VolumePending("in-b".into())),
        (vec![claim("classless")], VolumeProblem::ClassGone("no-such-class".into())),
        (vec![claim("default")], VolumeProblem::NoDefaultClass),
        (vec![claim("new-at-once")], VolumeProblem::Immediate("at-once".into())),
        (vec![made("at-once")], VolumeProblem::Immediate("at-once".into())),
        (vec![made("by-hand")], VolumeProblem::ByHand),
        (vec![made("")], VolumeProblem::ByHand),
        (vec![VolumeSource::Ebs("vol-1".into())], VolumeProblem::UnknownDisk),
        (vec![VolumeSource::InTree("cinder".into())], VolumeProblem::UnknownDisk),
    ] {
        let mut world = world();
        world.volumes.remove("anywhere");
        let shape = mounted(&Desired::default(), &world, &sources);
        let waits: Vec<&VolumeProblem> =
            shape.volumes.iter().filter_map(|m| m.problem.as_ref()).collect();
        assert_eq!(waits, [&expected]);
        assert_eq!(shape.unsupported, [Unsupported::Volumes], "{expected:?}");
        assert!(
            shape.volumes[0]
                .problem_text()
                .is_some_and(|text| text.contains("web/") || expected == VolumeProblem::UnknownDisk)
        );
    }
}

#[test]
fn a_claim_to_come_is_taken_as_it_is_declared() {
    let mut desired = Desired::default();
    let origin = Origin::new("claims.yaml", 1);
    let mut declare = |name: &str, claim: Claim| {
        let claim = VolumeClaim { origin: origin.clone(), claim };
        desired.claims.insert(("web".into(), name.to_owned()), claim);
    };
    let asks = |volume: &str| Claim { phase: ClaimPhase::Pending, ..bound(volume) };
    declare("asks", asks("declared"));
    declare("kept-for", Claim::default());
    declare("of-class", of_class("mine"));
    declare("at-once-in-a", of_class("at-once-in-a"));
    declare("in-b", of_class("mine"));
    desired.storage_classes.insert("mine".into(), class(EBS_DRIVER, true, &["c"]));
    desired.volumes.insert("declared".into(), volume(vec![term(key::ZONE, &["a"])]));
    let kept = volume(vec![term(key::ZONE, &["c"])]);
    let kept = PersistentVolume { claim: Some("web/kept-for".into()), ..kept };
    desired.volumes.insert("kept".into(), kept);
    for (name, expected, rule) in [
        ("asks", "a n1 n2", "it will be bound to the volume it asks for"),
        ("kept-for", "c", "it will be bound to the volume kept for it"),
        ("of-class", "c", "it will be made by its class"),
        ("at-once-in-a", "a n1 n2", "a class that leaves no choice decides the zone"),
        ("in-b", "b", "what the world has bound is bound"),
    ] {
        let shape = mounted(&desired, &world(), &[claim(name)]);
        assert_eq!((places(&shape).as_str(), shape.unsupported.len()), (expected, 0), "{rule}");
    }
}

#[test]
fn the_youngest_default_class_counts() {
    let created = |at: &str, zone: &str| StorageClass {
        is_default: true,
        created_at: Some(at.parse().expect("a time")),
        ..class(EBS_DRIVER, true, &[zone])
    };
    let mut world = Storage::default();
    world.classes.insert("old".into(), created("2024-01-01T00:00:00Z", "a"));
    world.classes.insert("new".into(), created("2025-01-01T00:00:00Z", "b"));
    let any = [VolumeSource::EphemeralClaim(None)];
    assert_eq!(places(&mounted(&Desired::default(), &world, &any)), "b");
    let mut desired = Desired::default();
    let newest = StorageClass { is_default: true, ..class(EBS_DRIVER, true, &["c"]) };
    desired.storage_classes.insert("newest".into(), newest);
    assert_eq!(places(&mounted(&desired, &world, &any)), "c");
}

#[test]
fn where_no_class_is_known_one_is_assumed_and_said_so() {
    let shape = mounted(&Desired::default(), &Storage::default(), &[made("gp3")]);
    assert_eq!(shape.volumes[0].cause, TopologySource::Assumed("gp3".into()));
    assert_eq!(shape.volumes[0].driver.as_deref(), Some(EBS_DRIVER));
    assert_eq!((places(&shape).as_str(), shape.unsupported.len()), ("a b c n1 n2", 0));
}

#[test]
fn the_claims_of_a_stateful_set_are_told_by_the_names_of_its_pods() {
    let volumes =
        [Volume { name: "data".into(), source: VolumeSource::ClaimTemplate(Some("ab".into())) }];
    let (desired, world) = (Desired::default(), world());
    let claims = Claims::new(&desired, &world);
    let of = |pod| places(&claims.with_volumes(&shape(), &volumes, Some(pod)));
    assert_eq!((of("db-0").as_str(), of("db-1").as_str()), ("a b n1 n2", "b"));
    assert!(claims.has_existing_claim(&"web".into(), &volumes, "db-1"));
    assert!(!claims.has_existing_claim(&"web".into(), &volumes, "db-0"));
}

#[test]
fn volumes_put_in_twice_are_put_in_once() {
    let (desired, world) = (Desired::default(), world());
    let claims = Claims::new(&desired, &world);
    let volumes = [Volume { name: "v".into(), source: claim("new-ab") }];
    let once = claims.with_volumes(&shape(), &volumes, None);
    assert_eq!(claims.with_volumes(&once, &volumes, None), once);
    let others = [Volume { name: "v".into(), source: made("only-c") }];
    assert_eq!(places(&claims.with_volumes(&once, &others, None)), "c");
    let waits =
        claims.with_volumes(&shape(), &[Volume { name: "v".into(), source: claim("lost") }], None);
    assert_eq!(claims.with_volumes(&waits, &volumes, None), once, "and nothing is left of others");
}

#[test]
fn only_volumes_that_nodes_count_have_a_driver() {
    let mut world = world();
    let drivers = |world: &Storage| {
        let shape = mounted(&Desired::default(), world, &[made("bc"), made("files")]);
        let mut drivers: Vec<_> = shape.volumes.into_iter().filter_map(|m| m.driver).collect();
        drivers.sort();
        drivers
    };
    assert_eq!(drivers(&world), [EBS_DRIVER]);
    let limits = [("efs.csi.aws.com".to_owned(), 9)].into();
    world.attach_limits.insert("n1".into(), limits);
    assert_eq!(drivers(&world), [EBS_DRIVER, "efs.csi.aws.com"]);
}

#[test]
fn too_many_combinations_are_not_looked_at() {
    let mut world = world();
    for n in 0..4 {
        let mut many = class(EBS_DRIVER, true, &[]);
        many.allowed_topologies =
            (0..6).map(|v| term(&format!("k{n}"), &[&v.to_string()])).collect();
        world.classes.insert(format!("many-{n}"), many);
    }
    let sources: Vec<VolumeSource> = (0..4).map(|n| made(&format!("many-{n}"))).collect();
    let shape = mounted(&Desired::default(), &world, &sources);
    assert_eq!(shape.volumes[0].problem, Some(VolumeProblem::TooManyPlaces));
    assert_eq!(shape.unsupported, [Unsupported::Volumes]);
    let twice = [sources[0].clone(), sources[0].clone(), sources[1].clone()];
    assert_eq!(mounted(&Desired::default(), &world, &twice).nodes.any_of.len(), 36);
}
