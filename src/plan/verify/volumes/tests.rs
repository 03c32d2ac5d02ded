//! Tests of the volume rules, with a valid plan and planted defects.

use std::sync::Arc;

use super::*;
use crate::demand::{Claims, PodShape, Unsupported};
use crate::model::desired::{Scale, VolumeClaim, Workload};
use crate::model::ids::Origin;
use crate::model::pod::{PodSpec, PodTemplate, Selector};
use crate::model::requirement::label;
use crate::model::storage::Storage;
use crate::plan::verify::verify;
use crate::plan::wire::Plan;
use crate::testing::pods::one_of;
use crate::testing::valid_plan::{Inputs, inputs, plan, workload};

const ZONE: &str = "us-east-1a";

fn in_zone(zone: &str) -> PersistentVolume {
    let expressions = vec![one_of("topology.ebs.csi.aws.com/zone", &[zone])];
    PersistentVolume {
        node_terms: vec![NodeTerm { expressions, fields: Vec::new() }],
        driver: Some(EBS_DRIVER.to_owned()),
        ..PersistentVolume::default()
    }
}

fn bound() -> Claim {
    let volume_name = Some("pv".to_owned());
    Claim { volume_name, phase: ClaimPhase::Bound, ..Claim::default() }
}

fn claim(inputs: &mut Inputs) -> &mut Claim {
    let claims = inputs.observed.storage.claims.get_mut("shop").expect("one namespace");
    claims.get_mut("data").expect("one claim")
}

/// Adds volumes to `shop/batch`, in the repository and in the demand.
fn add_volumes(inputs: &mut Inputs, sources: Vec<VolumeSource>) {
    add_volumes_to(inputs, "batch", sources);
}

fn add_volumes_to(inputs: &mut Inputs, name: &str, sources: Vec<VolumeSource>) {
    let volume = |(n, source)| Volume { name: format!("v{n}"), source };
    let volumes: Vec<Volume> = sources.into_iter().enumerate().map(volume).collect();
    let spec = PodSpec { volumes: volumes.clone(), ..PodSpec::default() };
    let id = workload(name);
    let planned = Workload::new(
        id.clone(),
        Origin::new("shop.yaml", 1),
        Scale::Replicas(3),
        Arc::new(PodTemplate { spec, ..PodTemplate::default() }),
    );
    inputs.desired.workloads.insert(id.clone(), planned);
    let claims = Claims::new(&inputs.desired, &inputs.observed.storage);
    let groups = inputs.demand.groups.iter_mut();
    for group in groups.filter(|group| group.workload == id) {
        group.shape = Arc::new(claims.with_volumes(&group.shape, &volumes, None));
    }
}

fn shape(inputs: &mut Inputs) -> &mut PodShape {
    let id = workload("batch");
    let group = inputs.demand.groups.iter_mut().find(|group| group.workload == id);
    Arc::make_mut(&mut group.expect("in the demand").shape)
}

/// Returns inputs with a bound claim in the zone of the nodes. The arriving pods use the claim.
fn valid_inputs() -> Inputs {
    let mut inputs = inputs();
    for kind in inputs.catalog.types.values_mut() {
        kind.ebs_attachments = Some((28, true));
    }
    inputs.observed.storage.volumes.insert("pv".to_owned(), in_zone(ZONE));
    let claims = [("data".to_owned(), bound())].into();
    inputs.observed.storage.claims.insert("shop".into(), claims);
    add_volumes(&mut inputs, vec![VolumeSource::Claim("data".to_owned())]);
    inputs
}

/// Returns the volume rules that the plan breaks.
fn violated_rules(inputs: &Inputs) -> BTreeSet<&'static str> {
    let all = verify(&plan(), &inputs.facts());
    all.iter().map(|violation| violation.rule).filter(|rule| rule.starts_with("volumes/")).collect()
}

#[test]
fn valid_plan_breaks_no_volume_rule() {
    assert_eq!(violated_rules(&valid_inputs()), BTreeSet::new());
    assert_eq!(violated_rules(&inputs()), BTreeSet::new());
}

/// A defect: a description, the rule that reports it, and a function that plants it.
type Defect = (&'static str, &'static str, fn(&mut Inputs));

const DEFECTS: [Defect; 10] = [
    ("the volume is in another zone", "volumes/place", |inputs| {
        inputs.observed.storage.volumes.insert("pv".to_owned(), in_zone("us-east-1b"));
    }),
    ("the volume is local to a node", "volumes/place", |inputs| {
        let volume = inputs.observed.storage.volumes.get_mut("pv").expect("there");
        volume.node_terms[0].expressions[0].key = key::HOSTNAME.into();
    }),
    ("the demand has no node that reaches the volume", "volumes/place", |inputs| {
        shape(inputs).volumes[0].nodes.clear();
    }),
    ("the demand lacks the volume", "volumes/place", |inputs| {
        inputs.observed.storage.volumes.insert("pv".to_owned(), in_zone("us-east-1b"));
        shape(inputs).volumes.clear();
    }),
    ("the class provisions volumes in another zone", "volumes/place", |inputs| {
        let class = StorageClass {
            provisioner: "kubernetes.io/aws-ebs".to_owned(),
            wait_for_first_consumer: true,
            allowed_topologies: in_zone("us-east-1b").node_terms,
            is_default: true,
            created_at: None,
        };
        inputs.desired.storage_classes.insert("zonal".to_owned(), class);
        *claim(inputs) = Claim::default();
    }),
    ("the claim is being deleted", "volumes/ready", |inputs| claim(inputs).deleting = true),
    ("the volume is lost", "volumes/ready", |inputs| claim(inputs).phase = ClaimPhase::Lost),
    ("the claim does not exist", "volumes/ready", |inputs| {
        inputs.observed.storage.claims.clear();
    }),
    ("the claim is for one pod", "volumes/one-pod", |inputs| {
        claim(inputs).access_modes = vec!["ReadWriteOncePod".to_owned()];
    }),
    ("a node has more volumes than its attach limit", "volumes/attach", |inputs| {
        let class = StorageClass {
            provisioner: EBS_DRIVER.to_owned(),
            wait_for_first_consumer: true,
            allowed_topologies: Vec::new(),
            is_default: true,
            created_at: None,
        };
        inputs.desired.storage_classes.insert("gp3".to_owned(), class);
        add_volumes(inputs, vec![VolumeSource::EphemeralClaim(None); 28]);
    }),
];

#[test]
fn every_planted_defect_is_found() {
    for (what, rule, plant) in DEFECTS {
        let mut inputs = valid_inputs();
        plant(&mut inputs);
        assert!(violated_rules(&inputs).contains(rule), "{what}: {:?}", violated_rules(&inputs));
    }
}

#[test]
fn declared_claim_needs_a_static_volume_that_it_may_take() {
    let class = |provisioner: &str| StorageClass {
        provisioner: provisioner.to_owned(),
        wait_for_first_consumer: false,
        allowed_topologies: Vec::new(),
        is_default: false,
        created_at: None,
    };
    let elsewhere = "us-east-1b";
    let place = Some("volumes/place");
    for (rule, class_name, zones, expected) in [
        ("it is reachable", "", vec![("files", ZONE)], None),
        ("one of two is", "", vec![("files", ZONE), ("files", elsewhere)], None),
        ("none is", "", vec![("files", elsewhere)], place),
        ("the selected one is not", "", vec![("other", ZONE), ("files", elsewhere)], place),
        ("none is, of a class", "manual", vec![("files", elsewhere)], place),
        ("the class may provision one", "at-once", vec![("files", elsewhere)], None),
    ] {
        let mut inputs = valid_inputs();
        inputs.observed.storage = Storage::default();
        let classes = [("manual", NO_PROVISIONER), ("at-once", EBS_DRIVER)];
        let classes = classes.map(|(name, provisioner)| (name.to_owned(), class(provisioner)));
        inputs.desired.storage_classes.extend(classes);
        for (index, (app, zone)) in zones.into_iter().enumerate() {
            let volume = PersistentVolume {
                labels: [label("app", app)].into(),
                storage_class: Some(class_name.to_owned()),
                ..in_zone(zone)
            };
            inputs.desired.volumes.insert(format!("v{index}"), volume);
        }
        let selector = Selector(vec![one_of("app", &["files"])]);
        let claim = Claim {
            storage_class: Some(class_name.to_owned()),
            selector: Some(selector),
            ..Claim::default()
        };
        let declared = VolumeClaim { origin: Origin::new("shop.yaml", 1), claim };
        inputs.desired.claims.insert(("shop".into(), "data".to_owned()), declared);
        let found = violated_rules(&inputs);
        assert_eq!(found.into_iter().next(), expected, "{rule}");
    }
}

#[test]
fn unscheduled_pods_need_no_usable_volume() {
    let mut inputs = valid_inputs();
    add_volumes(&mut inputs, vec![VolumeSource::EphemeralClaim(Some("gone".to_owned()))]);
    assert_eq!(violated_rules(&inputs), BTreeSet::new(), "the class is unknown");
    shape(&mut inputs).unsupported = vec![Unsupported::Volumes];
    let found = verify(&plan(), &inputs.facts());
    assert!(found.iter().any(|violation| violation.rule == "fit/unsupported"));
}

#[test]
fn pods_sharing_an_unprovisioned_volume_need_one_zone() {
    let mut inputs = valid_inputs();
    let class = StorageClass {
        provisioner: EBS_DRIVER.to_owned(),
        wait_for_first_consumer: true,
        allowed_topologies: Vec::new(),
        is_default: true,
        created_at: None,
    };
    inputs.desired.storage_classes.insert("gp3".to_owned(), class);
    *claim(&mut inputs) = Claim::default();
    for name in ["api", "batch"] {
        add_volumes_to(&mut inputs, name, vec![VolumeSource::Claim("data".to_owned())]);
    }
    let crosses_zones = |plan: &Plan| {
        let all = verify(plan, &inputs.facts());
        all.iter().any(|violation| violation.rule == "volumes/zone")
    };
    let mut plan = plan();
    assert!(!crosses_zones(&plan));
    // All pods of `api` stay in the other zone.
    let launch =
        plan.resource_changes.iter_mut().find(|row| row.address.to_string().contains("\"3\""));
    let after = launch.and_then(|row| row.change.after.as_mut()).expect("it is launched");
    after.labels.extend([label(key::ZONE, "us-east-1b")]);
    assert!(crosses_zones(&plan));
}
