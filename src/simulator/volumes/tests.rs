//! Claims are created, bound and retained as in a cluster.

use std::sync::Arc;

use jiff::SignedDuration;

use crate::apply::ports::Cluster;
use crate::model::ids::WorkloadKind;
use crate::model::observed::{Observed, PodPhase};
use crate::model::pod::{PodTemplate, Selector, Volume, VolumeSource};
use crate::model::requirement::{key, label};
use crate::model::storage::{
    Claim, ClaimPhase, EBS_DRIVER, PersistentVolume, Storage, StorageClass, attach_resource,
};
use crate::simulator::{DeliveredWorkload, Delivery, World};
use crate::testing::pods::one_of;
use crate::testing::simulator::{id, launch, pods, request_with, run, template, world};

fn settle(world: &World) {
    world.settle(SignedDuration::from_mins(10)).expect("in memory");
}

/// Returns a world with a Ready node of two cores in each zone.
fn fleet(zones: &[&str]) -> World {
    let world = world();
    for (n, zone) in zones.iter().enumerate() {
        let labels = [label(key::ZONE, zone), label(key::INSTANCE_TYPE, "m5.large")].into();
        launch(&world, &request_with(&format!("token-{n}"), |offering| offering.labels = labels));
    }
    settle(&world);
    world
}

fn storage_class(waits_for_pod: bool) -> StorageClass {
    StorageClass {
        provisioner: EBS_DRIVER.to_owned(),
        wait_for_first_consumer: waits_for_pod,
        allowed_topologies: Vec::new(),
        is_default: true,
        created_at: None,
    }
}

fn with_volume(cpu: i64, source: VolumeSource) -> Arc<PodTemplate> {
    let mut template = template("db", cpu);
    template.spec.volumes = vec![Volume { name: "data".into(), source }];
    Arc::new(template)
}

/// Delivers one workload with a volume.
fn deliver(
    world: &World,
    kind: WorkloadKind,
    replicas: u32,
    template: Arc<PodTemplate>,
    storage: Storage,
) {
    let mut delivery = Delivery { storage, ..Delivery::default() };
    delivery
        .workloads
        .insert(id(kind, "db"), DeliveredWorkload { replicas, first_ordinal: 0, template });
    world.deliver(&delivery).expect("in memory");
    settle(world);
}

fn storage(waits_for_pod: bool, claims: &[(&str, Claim)]) -> Storage {
    let claims = claims.iter().map(|(name, claim)| ((*name).to_owned(), claim.clone())).collect();
    Storage {
        classes: [("gp3".to_owned(), storage_class(waits_for_pod))].into(),
        claims: [("web".into(), claims)].into(),
        ..Storage::default()
    }
}

/// Returns the zone of the volume of a claim.
fn claim_zone(observed: &Observed, claim: &str) -> Option<String> {
    let claim = observed.storage.claim(&"web".into(), claim)?;
    assert_eq!(claim.phase == ClaimPhase::Bound, claim.volume_name.is_some());
    let volume = &observed.storage.volumes[claim.volume_name.as_ref()?];
    Some(volume.node_terms[0].expressions[0].values[0].to_string())
}

fn zone_of_pod(world: &World, name: &str) -> Option<String> {
    let pod = pods(world, "db").into_iter().find(|pod| &*pod.name == name)?;
    let node = world.observed().nodes.remove(&pod.node?)?;
    Some(node.labels[key::ZONE].to_string())
}

#[test]
fn stateful_set_claims_are_bound_and_retained() {
    let world = fleet(&["eu-west-1a", "eu-west-1b"]);
    // Each pod fills a node, so that there is one in each zone.
    let template = with_volume(1500, VolumeSource::ClaimTemplate(None));
    deliver(&world, WorkloadKind::StatefulSet, 2, template, storage(true, &[]));
    let first = world.observed();
    for n in 0..2 {
        let zone = claim_zone(&first, &format!("data-db-{n}"));
        assert!(zone.is_some() && zone == zone_of_pod(&world, &format!("db-{n}")), "{zone:?}");
    }
    // After the move, each pod returns to its volume, although other nodes are free.
    for pod in pods(&world, "db") {
        run(world.evict(&pod)).expect("no budget");
    }
    settle(&world);
    let second = world.observed();
    assert_eq!(second.storage, first.storage);
    for n in 0..2 {
        let name = format!("db-{n}");
        assert_eq!(
            zone_of_pod(&world, &name),
            claim_zone(&first, &format!("data-{name}")),
            "{name}"
        );
    }
}

#[test]
fn claim_with_named_volume_is_bound_on_delivery() {
    let world = fleet(&["eu-west-1a"]);
    let claim = Claim { volume_name: Some("disk".to_owned()), ..Claim::default() };
    let mut storage = storage(true, &[("one", claim)]);
    storage.volumes.insert("disk".to_owned(), PersistentVolume::default());
    let delivery = Delivery { storage, ..Delivery::default() };
    world.deliver(&delivery).expect("in memory");
    // Time stands still between the delivery and the next plan of an apply.
    let observed = world.observed();
    let claim = observed.storage.claim(&"web".into(), "one").expect("delivered");
    assert_eq!(claim.phase, ClaimPhase::Bound);
}

#[test]
fn claim_is_bound_to_the_smallest_static_volume_that_it_selects() {
    let world = fleet(&["eu-west-1a"]);
    let selector = Selector(vec![one_of("app", &["files"])]);
    let claim = Claim {
        storage_class: Some(String::new()),
        selector: Some(selector),
        request: Some(2),
        ..Claim::default()
    };
    let mut storage = storage(true, &[("one", claim)]);
    let volume = |app: &str, size: i64| PersistentVolume {
        labels: [label("app", app)].into(),
        capacity: Some(size),
        ..PersistentVolume::default()
    };
    let volumes = [("a", "files", 1), ("b", "other", 2), ("c", "files", 4), ("d", "files", 3)];
    let volumes = volumes.map(|(name, app, size)| (name.to_owned(), volume(app, size)));
    storage.volumes.extend(volumes);
    world.deliver(&Delivery { storage, ..Delivery::default() }).expect("in memory");
    let observed = world.observed();
    let claim = observed.storage.claim(&"web".into(), "one").expect("delivered");
    assert_eq!(claim.volume_name.as_deref(), Some("d"));
}

#[test]
fn pod_with_volume_in_full_zone_stays_pending() {
    let world = fleet(&["eu-west-1a", "eu-west-1b"]);
    let template = with_volume(1500, VolumeSource::Claim("one".to_owned()));
    let claims = [("one", Claim::default())];
    deliver(&world, WorkloadKind::Deployment, 2, template, storage(true, &claims));
    let waiting = pods(&world, "db").into_iter().filter(|pod| pod.node.is_none());
    assert_eq!(waiting.count(), 1, "the claim was bound with the first pod");
}

#[test]
fn immediate_claim_is_bound_at_once() {
    let world = fleet(&["eu-west-1b"]);
    let template = with_volume(100, VolumeSource::Claim("one".to_owned()));
    let claims = [("one", Claim::default()), ("asks", Claim::default())];
    let mut storage = storage(false, &claims);
    let kept =
        PersistentVolume { claim: Some("web/asks".to_owned()), ..PersistentVolume::default() };
    storage.volumes.insert("kept".to_owned(), kept);
    deliver(&world, WorkloadKind::Deployment, 1, template, storage);
    let observed = world.observed();
    assert_eq!(claim_zone(&observed, "one").as_deref(), Some("eu-west-1b"));
    let asks = observed.storage.claim(&"web".into(), "asks").expect("delivered");
    assert_eq!(asks.volume_name.as_deref(), Some("kept"));
    assert_eq!(pods(&world, "db")[0].phase, PodPhase::Running);
}

#[test]
fn read_write_once_pod_claim_admits_one_pod() {
    let world = fleet(&["eu-west-1a", "eu-west-1a"]);
    let template = with_volume(100, VolumeSource::Claim("one".to_owned()));
    let one = Claim { access_modes: vec!["ReadWriteOncePod".to_owned()], ..Claim::default() };
    deliver(&world, WorkloadKind::Deployment, 3, template, storage(true, &[("one", one)]));
    let running = pods(&world, "db").into_iter().filter(|pod| pod.phase == PodPhase::Running);
    assert_eq!(running.count(), 1);
}

#[test]
fn attach_limits_are_registered_with_volumes() {
    let world = fleet(&["eu-west-1a"]);
    assert!(world.observed().storage.is_empty());
    let template = with_volume(1, VolumeSource::EphemeralClaim(None));
    deliver(&world, WorkloadKind::Deployment, 27, template, storage(true, &[]));
    let observed = world.observed();
    let limits: Vec<_> = observed.storage.attach_limits.values().collect();
    assert_eq!(limits, [&[(EBS_DRIVER.to_owned(), 25)].into()]);
    let running = pods(&world, "db").into_iter().filter(|pod| pod.phase == PodPhase::Running);
    assert_eq!(running.count(), 25, "of 27 pods, on a node with room for 29");
    let is_listed = observed
        .nodes
        .values()
        .any(|node| node.allocatable.extended.contains_key(&attach_resource(EBS_DRIVER)));
    assert!(!is_listed, "node allocatable has no volumes");
}

#[test]
fn bindings_survive_delivery_and_file() {
    let world = fleet(&["eu-west-1a"]);
    let template = with_volume(100, VolumeSource::ClaimTemplate(None));
    let deliver_again = || {
        let template = Arc::clone(&template);
        deliver(&world, WorkloadKind::StatefulSet, 1, template, storage(true, &[]));
        world.observed().storage
    };
    let first = deliver_again();
    assert_eq!(deliver_again(), first);
    let bytes = crate::model::observed::write_world(&world.observed());
    let read = crate::model::observed::read_world(&bytes).expect("own file");
    assert_eq!(read.storage, first);
}
