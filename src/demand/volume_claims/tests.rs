//! Nodes that claims allow, in tables.

use super::*;
use crate::demand::{ShapeContext, pod_shape};
use crate::model::desired::VolumeClaim;
use crate::model::ids::{Labels, Origin};
use crate::model::pod::{Expression, PodTemplate, Selector};
use crate::model::requirement::{Operator, label};

fn term(key: &str, values: &[&str]) -> NodeTerm {
    let values = values.iter().map(|value| (*value).into()).collect();
    let expression = Expression { key: key.into(), operator: Operator::In, values };
    NodeTerm { expressions: vec![expression], fields: Vec::new() }
}

fn class(provisioner: &str, wait_for_first_consumer: bool, zones: &[&str]) -> StorageClass {
    let topology = (!zones.is_empty()).then(|| term("topology.ebs.csi.aws.com/zone", zones));
    StorageClass {
        provisioner: provisioner.to_owned(),
        wait_for_first_consumer,
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

/// Returns a cluster with classes of every kind, volumes in zone b and on one node, and claims.
fn cluster() -> Storage {
    let mut cluster = Storage::default();
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
    cluster.classes = classes.map(|(name, class)| (name.to_owned(), class)).into();
    cluster.volumes = [
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
    cluster.claims =
        [("web".into(), claims.map(|(name, claim)| (name.to_owned(), claim)).into())].into();
    cluster
}

fn shape() -> PodShape {
    pod_shape(&"web".into(), &PodTemplate::default(), &ShapeContext::new(&Desired::default()))
}

fn mounted(desired: &Desired, cluster: &Storage, sources: &[VolumeSource]) -> PodShape {
    let volumes: Vec<Volume> = sources
        .iter()
        .enumerate()
        .map(|(i, source)| Volume { name: format!("v{i}"), source: source.clone() })
        .collect();
    Claims::new(desired, cluster).with_volumes(&shape(), &volumes, None)
}

/// Returns the zones (a, b, c) and the nodes in zone a (n1, n2) that admit the pod.
fn admitting(shape: &PodShape) -> String {
    let on = |labels: &Labels| shape.nodes.any_of.iter().any(|one| one.matches_labels(labels));
    let zones = ["a", "b", "c"].map(|zone| (zone, [label(key::ZONE, zone)].into()));
    let nodes = ["n1", "n2"].map(|n| (n, [label(key::ZONE, "a"), label(key::HOSTNAME, n)].into()));
    let all = zones.into_iter().chain(nodes).filter(|(_, labels)| on(labels));
    all.map(|(name, _)| name).collect::<Vec<_>>().join(" ")
}

fn claim(name: &str) -> VolumeSource {
    VolumeSource::Claim(name.to_owned())
}

fn provisioned(class: &str) -> VolumeSource {
    VolumeSource::EphemeralClaim(Some(class.to_owned()))
}

#[test]
fn volumes_narrow_the_nodes_of_their_pods() {
    let everywhere = "a b c n1 n2";
    for (rule, sources, expected) in [
        ("no volume", vec![], everywhere),
        ("a host path", vec![VolumeSource::HostPath], everywhere),
        ("bound: where the volume is", vec![claim("in-b")], "b"),
        ("bound to a local volume: its node", vec![claim("local")], "n1"),
        ("bound to a volume without affinity", vec![claim("anywhere")], everywhere),
        ("bound to a volume whose terms match nothing", vec![claim("nowhere")], ""),
        ("not bound: anywhere", vec![claim("new")], everywhere),
        ("not bound: within the class's topologies", vec![claim("new-ab")], "a b n1 n2"),
        ("provisioned for the pod", vec![provisioned("ab")], "a b n1 n2"),
        (
            "a template without an existing claim",
            vec![VolumeSource::ClaimTemplate(None)],
            everywhere,
        ),
        ("two volumes: what both allow", vec![provisioned("ab"), provisioned("bc")], "b"),
        ("bound and not bound", vec![claim("in-b"), provisioned("ab")], "b"),
        ("two without a common topology", vec![claim("in-b"), provisioned("only-c")], ""),
        ("file systems are reachable anywhere", vec![provisioned("files")], everywhere),
        ("a disk with its zone", vec![VolumeSource::Ebs("aws://c/vol-1".into())], "c"),
    ] {
        let mut cluster = cluster();
        cluster.classes.get_mut("gp3").expect("declared").is_default = true;
        let shape = mounted(&Desired::default(), &cluster, &sources);
        assert_eq!(admitting(&shape), expected, "{rule}");
        assert_eq!(shape.unsupported, [], "{rule}");
        let narrowed = expected != everywhere;
        assert_eq!(shape.nodes.without_volumes.is_some(), narrowed, "{rule}");
    }
}

#[test]
fn claim_without_a_topology_blocks_its_pods_with_the_reason() {
    for (sources, expected) in [
        (vec![claim("no-such-claim")], VolumeProblem::Missing),
        (vec![claim("going")], VolumeProblem::Deleting),
        (vec![claim("lost")], VolumeProblem::Lost),
        (vec![claim("gone")], VolumeProblem::VolumeGone("no-such-volume".into())),
        (vec![claim("asking")], VolumeProblem::VolumePending("in-b".into())),
        (vec![claim("classless")], VolumeProblem::ClassGone("no-such-class".into())),
        (vec![claim("default")], VolumeProblem::NoDefaultClass),
        (vec![claim("new-at-once")], VolumeProblem::Immediate("at-once".into())),
        (vec![provisioned("at-once")], VolumeProblem::Immediate("at-once".into())),
        (vec![provisioned("by-hand")], VolumeProblem::ByHand),
        (vec![provisioned("")], VolumeProblem::ByHand),
        (vec![VolumeSource::Ebs("vol-1".into())], VolumeProblem::UnknownDisk),
        (vec![VolumeSource::InTree("cinder".into())], VolumeProblem::UnknownDisk),
    ] {
        let mut cluster = cluster();
        cluster.volumes.remove("anywhere");
        let shape = mounted(&Desired::default(), &cluster, &sources);
        let problems: Vec<&VolumeProblem> =
            shape.volumes.iter().filter_map(|m| m.problem.as_ref()).collect();
        assert_eq!(problems, [&expected]);
        assert_eq!(shape.unsupported, [Unsupported::Volumes], "{expected:?}");
        assert!(
            shape.volumes[0]
                .problem_text()
                .is_some_and(|text| text.contains("web/") || expected == VolumeProblem::UnknownDisk)
        );
    }
}

#[test]
fn declared_claim_counts_as_declared() {
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
    let reserved = volume(vec![term(key::ZONE, &["c"])]);
    let reserved = PersistentVolume { claim: Some("web/kept-for".into()), ..reserved };
    desired.volumes.insert("kept".into(), reserved);
    for (name, expected, rule) in [
        ("asks", "a n1 n2", "the claim binds to the volume it names"),
        ("kept-for", "c", "the claim binds to the volume reserved for it"),
        ("of-class", "c", "the class provisions it"),
        ("at-once-in-a", "a n1 n2", "a class with one zone decides the zone"),
        ("in-b", "b", "an observed binding takes precedence"),
    ] {
        let shape = mounted(&desired, &cluster(), &[claim(name)]);
        assert_eq!((admitting(&shape).as_str(), shape.unsupported.len()), (expected, 0), "{rule}");
    }
}

/// Returns the classes of the cluster, without volumes and claims.
fn only_classes() -> Storage {
    Storage { classes: cluster().classes, ..Storage::default() }
}

/// A static volume: name, size, zone (empty for any), and value of the label `app`.
type StaticVolume = (&'static str, i64, &'static str, &'static str);

/// A claim: name, requested size, and required value of the label `app` (empty for any).
type StaticClaim = (&'static str, i64, &'static str);

/// Returns desired state with static volumes and claims of class `name`, which allow
/// `ReadWriteOnce`.
fn static_volumes(name: &str, volumes: &[StaticVolume], claims: &[StaticClaim]) -> Desired {
    let mut desired = Desired::default();
    for (volume_name, size, zone, app) in volumes {
        let terms = (!zone.is_empty()).then(|| term(key::ZONE, &[zone]));
        let volume = PersistentVolume {
            labels: [label("app", app)].into(),
            node_terms: terms.into_iter().collect(),
            storage_class: Some(name.to_owned()).filter(|name| !name.is_empty()),
            capacity: Some(*size),
            access_modes: vec!["ReadWriteOnce".to_owned()],
            ..PersistentVolume::default()
        };
        desired.volumes.insert((*volume_name).to_owned(), volume);
    }
    for (claim_name, request, app) in claims {
        let selected = |app: &&str| Selector(term("app", &[*app]).expressions);
        let claim = Claim {
            selector: Some(app).filter(|app| !app.is_empty()).map(selected),
            request: Some(*request),
            access_modes: vec!["ReadWriteOnce".to_owned()],
            ..of_class(name)
        };
        let claim = VolumeClaim { origin: Origin::new("claims.yaml", 1), claim };
        desired.claims.insert(("web".into(), (*claim_name).to_owned()), claim);
    }
    desired
}

#[test]
fn claim_takes_a_static_volume_as_the_controller_chooses() {
    // The nodes of claim `x`; `None` if it is unknown which volume it gets.
    type Case =
        (&'static str, &'static [StaticVolume], &'static [StaticClaim], Option<&'static str>);
    let everywhere = "a b c n1 n2";
    let cases: [Case; 12] = [
        ("no volume", &[], &[("x", 1, "")], None),
        ("the only one", &[("v", 1, "b", "s")], &[("x", 1, "")], Some("b")),
        ("without affinity", &[("v", 1, "", "s")], &[("x", 1, "")], Some(everywhere)),
        ("too small", &[("v", 1, "b", "s")], &[("x", 2, "")], None),
        (
            "the selected one of two",
            &[("u", 1, "c", "s"), ("v", 1, "b", "t")],
            &[("x", 1, "t"), ("y", 1, "s")],
            Some("b"),
        ),
        ("none is selected", &[("v", 1, "b", "s")], &[("x", 1, "t")], None),
        ("the smallest", &[("u", 9, "c", "s"), ("v", 2, "b", "s")], &[("x", 1, "")], Some("b")),
        ("either of two", &[("u", 1, "c", "s"), ("v", 1, "b", "s")], &[("x", 1, "")], None),
        (
            "either of two in one zone",
            &[("u", 1, "b", "s"), ("v", 1, "b", "s")],
            &[("x", 1, ""), ("y", 1, "")],
            Some("b"),
        ),
        ("fewer than claims", &[("v", 1, "", "s")], &[("x", 1, ""), ("y", 1, "")], None),
        (
            "another claim may take the smallest",
            &[("u", 9, "c", "s"), ("v", 2, "b", "s")],
            &[("x", 1, ""), ("y", 1, "")],
            None,
        ),
        (
            "the smallest is too small for the other claim",
            &[("u", 9, "c", "s"), ("v", 2, "b", "s")],
            &[("x", 1, ""), ("y", 5, "")],
            Some("b"),
        ),
    ];
    for (rule, volumes, claims, expected) in cases {
        for class in ["", "manual"] {
            let desired = static_volumes(class, volumes, claims);
            let shape = mounted(&desired, &only_classes(), &[claim("x")]);
            let known = shape.volumes[0].problem.is_none().then(|| admitting(&shape));
            assert_eq!(known.as_deref(), expected, "{rule}, class `{class}`");
        }
    }
}

#[test]
fn static_volume_fits_class_modes_and_reservation() {
    type Case = (&'static str, fn(&mut PersistentVolume, &mut Claim), bool);
    let cases: [Case; 7] = [
        ("as it is", |_, _| (), true),
        ("another class", |volume, _| volume.storage_class = Some("fast".to_owned()), false),
        ("no class", |_, claim| claim.storage_class = Some(String::new()), false),
        ("fewer modes", |_, claim| claim.access_modes.push("ReadWriteMany".to_owned()), false),
        ("kept for another", |volume, _| volume.claim = Some("web/y".to_owned()), false),
        ("kept for it", |volume, _| volume.claim = Some("web/x".to_owned()), true),
        (
            "kept for it, of another class",
            |volume, _| {
                volume.claim = Some("web/x".to_owned());
                volume.storage_class = None;
            },
            true,
        ),
    ];
    for (rule, change, expected) in cases {
        for named in [None, Some("v".to_owned())] {
            let mut desired = static_volumes("manual", &[("v", 1, "b", "s")], &[("x", 1, "")]);
            let volume = desired.volumes.get_mut("v").expect("declared");
            let declared = desired.claims.values_mut().next().expect("declared");
            declared.claim.volume_name = named;
            change(volume, &mut declared.claim);
            let shape = mounted(&desired, &only_classes(), &[claim("x")]);
            let fits = shape.volumes[0].problem.is_none() && admitting(&shape) == "b";
            assert_eq!(fits, expected, "{rule}: {:?}", shape.volumes[0]);
        }
    }
}

#[test]
fn delayed_claim_needs_static_volumes_of_one_topology() {
    let zones = |second| [("u", 9, second, "s"), ("v", 2, "b", "s")];
    for (second, is_live, expected) in
        [("b", false, true), ("b", true, true), ("c", false, false), ("c", true, false)]
    {
        let mut desired = static_volumes("by-hand", &zones(second), &[("x", 1, "")]);
        let mut cluster = only_classes();
        if is_live {
            let declared = desired.claims.pop_first().expect("one").1;
            let claims = cluster.claims.entry("web".into()).or_default();
            claims.insert("x".to_owned(), declared.claim);
        }
        let shape = mounted(&desired, &cluster, &[claim("x")]);
        assert_eq!(shape.volumes[0].problem.is_none(), expected, "{second}, {is_live}");
    }
    // A class that provisions volumes may do so in any zone.
    let desired = static_volumes("gp3", &zones("b"), &[("x", 1, "")]);
    let shape = mounted(&desired, &only_classes(), &[claim("x")]);
    assert_eq!(admitting(&shape), "a b c n1 n2");
    // With immediate binding, the existing volume comes first.
    let desired = static_volumes("at-once", &zones("b"), &[("x", 1, "")]);
    let shape = mounted(&desired, &only_classes(), &[claim("x")]);
    assert_eq!((admitting(&shape).as_str(), shape.unsupported.len()), ("b", 0));
}

#[test]
fn youngest_default_class_counts() {
    let created = |at: &str, zone: &str| StorageClass {
        is_default: true,
        created_at: Some(at.parse().expect("a time")),
        ..class(EBS_DRIVER, true, &[zone])
    };
    let mut cluster = Storage::default();
    cluster.classes.insert("old".into(), created("2024-01-01T00:00:00Z", "a"));
    cluster.classes.insert("new".into(), created("2025-01-01T00:00:00Z", "b"));
    let any = [VolumeSource::EphemeralClaim(None)];
    assert_eq!(admitting(&mounted(&Desired::default(), &cluster, &any)), "b");
    let mut desired = Desired::default();
    let newest = StorageClass { is_default: true, ..class(EBS_DRIVER, true, &["c"]) };
    desired.storage_classes.insert("newest".into(), newest);
    assert_eq!(admitting(&mounted(&desired, &cluster, &any)), "c");
}

#[test]
fn unknown_class_is_assumed_to_be_ebs() {
    let shape = mounted(&Desired::default(), &Storage::default(), &[provisioned("gp3")]);
    assert_eq!(shape.volumes[0].cause, TopologySource::Assumed("gp3".into()));
    assert_eq!(shape.volumes[0].driver.as_deref(), Some(EBS_DRIVER));
    assert_eq!((admitting(&shape).as_str(), shape.unsupported.len()), ("a b c n1 n2", 0));
}

#[test]
fn pod_name_selects_the_claim_of_a_stateful_set() {
    let volumes =
        [Volume { name: "data".into(), source: VolumeSource::ClaimTemplate(Some("ab".into())) }];
    let (desired, cluster) = (Desired::default(), cluster());
    let claims = Claims::new(&desired, &cluster);
    let admitting_pod = |pod| admitting(&claims.with_volumes(&shape(), &volumes, Some(pod)));
    assert_eq!(
        (admitting_pod("db-0").as_str(), admitting_pod("db-1").as_str()),
        ("a b n1 n2", "b")
    );
    assert!(claims.has_existing_claim(&"web".into(), &volumes, "db-1"));
    assert!(!claims.has_existing_claim(&"web".into(), &volumes, "db-0"));
}

#[test]
fn adding_the_same_volumes_twice_changes_nothing() {
    let (desired, cluster) = (Desired::default(), cluster());
    let claims = Claims::new(&desired, &cluster);
    let volumes = [Volume { name: "v".into(), source: claim("new-ab") }];
    let once = claims.with_volumes(&shape(), &volumes, None);
    assert_eq!(claims.with_volumes(&once, &volumes, None), once);
    let others = [Volume { name: "v".into(), source: provisioned("only-c") }];
    assert_eq!(admitting(&claims.with_volumes(&once, &others, None)), "c");
    let blocked =
        claims.with_volumes(&shape(), &[Volume { name: "v".into(), source: claim("lost") }], None);
    assert_eq!(
        claims.with_volumes(&blocked, &volumes, None),
        once,
        "no state of other volumes is left"
    );
}

#[test]
fn only_attach_limited_volumes_have_a_driver() {
    let mut cluster = cluster();
    let drivers = |cluster: &Storage| {
        let shape =
            mounted(&Desired::default(), cluster, &[provisioned("bc"), provisioned("files")]);
        let mut drivers: Vec<_> = shape.volumes.into_iter().filter_map(|m| m.driver).collect();
        drivers.sort();
        drivers
    };
    assert_eq!(drivers(&cluster), [EBS_DRIVER]);
    let limits = [("efs.csi.aws.com".to_owned(), 9)].into();
    cluster.attach_limits.insert("n1".into(), limits);
    assert_eq!(drivers(&cluster), [EBS_DRIVER, "efs.csi.aws.com"]);
}

#[test]
fn too_many_alternatives_block_the_pod() {
    let mut cluster = cluster();
    for n in 0..4 {
        let mut many = class(EBS_DRIVER, true, &[]);
        many.allowed_topologies =
            (0..6).map(|v| term(&format!("k{n}"), &[&v.to_string()])).collect();
        cluster.classes.insert(format!("many-{n}"), many);
    }
    let sources: Vec<VolumeSource> = (0..4).map(|n| provisioned(&format!("many-{n}"))).collect();
    let shape = mounted(&Desired::default(), &cluster, &sources);
    assert_eq!(shape.volumes[0].problem, Some(VolumeProblem::TooManyPlaces));
    assert_eq!(shape.unsupported, [Unsupported::Volumes]);
    let twice = [sources[0].clone(), sources[0].clone(), sources[1].clone()];
    assert_eq!(mounted(&Desired::default(), &cluster, &twice).nodes.any_of.len(), 36);
}
