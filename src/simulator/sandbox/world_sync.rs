//! Synchronizes a world with the API: applies client writes to the world, and publishes the world
//! in the store.
//!
//! The world is the source of truth for simulated objects: nodes, pods, controllers, budgets and
//! storage. Other objects, such as leases and events, exist only in the store.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value as Json;

use super::aws_api::AwsApi;
use super::declared_objects;
use super::deliveries::DeliveredObjects;
use super::events::Events;
use super::http::RequestHandler;
use super::kube_api::{ApiResponse, KubeApi, NAMESPACES};
use super::kubernetes_objects::{self, PodOwner, ReplicaCounts};
use super::metrics;
use super::node_claim::node_claims;
use super::request::ApiRequest;
use super::store::{ChangeKind, ObjectKey, StoreWrite, Writer};
use super::template_texts::{TemplateTexts, rolling_update, with_revision};
use crate::manifest::{DeclaredObject, read_live_objects};
use crate::model::desired::{Desired, Scale, ScaleTarget, Workload};
use crate::model::ids::{Labels, Namespace, NodeName, WorkloadId, WorkloadKind};
use crate::model::observed::{Node, Pod, PodPhase, template_key};
use crate::model::pod::Taint;
use crate::model::storage::Storage;
use crate::simulator::state::WorldBudget;
use crate::simulator::{World, WorldView};

/// Kinds that the world creates and deletes, apart from nodes and pods.
pub(super) const SIMULATED_KINDS: [&str; 13] = [
    "CSINode",
    "DaemonSet",
    "Deployment",
    "Job",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "PodDisruptionBudget",
    "ReplicaSet",
    "ReplicationController",
    "StatefulSet",
    "StorageClass",
    "VolumeAttachment",
];

/// Prefixes of taints that mirror the node state.
const MIRROR_TAINTS: [&str; 2] =
    ["node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready"];

/// Objects of the world that the store contains.
#[derive(Debug, Default)]
struct SyncedObjects {
    nodes: BTreeMap<NodeName, Node>,
    pods: BTreeMap<ObjectKey, Pod>,
    others: BTreeSet<ObjectKey>,
    /// Delivered workloads that clients have changed since.
    changed: BTreeSet<ObjectKey>,
    events: Events,
}

/// A served world.
pub(super) struct WorldSync {
    pub(super) world: Rc<World>,
    pub(super) aws_api: AwsApi,
    pub(super) api: RefCell<KubeApi>,
    synced: RefCell<SyncedObjects>,
    pub(super) texts: RefCell<TemplateTexts>,
    pub(super) delivered: RefCell<DeliveredObjects>,
    /// Version of the last client write that was applied to the world.
    last_synced: Cell<u64>,
}

impl RequestHandler for WorldSync {
    fn answer(&self, request: &ApiRequest) -> ApiResponse {
        let computed = self.aws_api.respond(request);
        let computed = computed.or_else(|| metrics::respond(&self.world, request));
        let answer = computed.unwrap_or_else(|| self.api.borrow_mut().answer(request));
        if request.method != "GET" {
            self.sync(request.at);
        }
        answer
    }

    fn api(&self) -> Option<&RefCell<KubeApi>> {
        Some(&self.api)
    }
}

impl WorldSync {
    /// Returns a served world to which `objects` are already delivered.
    pub(super) fn new(
        world: Rc<World>,
        aws_api: AwsApi,
        objects: Vec<DeclaredObject>,
        now: Timestamp,
    ) -> Self {
        let sync = Self {
            world,
            aws_api,
            api: RefCell::default(),
            synced: RefCell::default(),
            texts: RefCell::default(),
            delivered: RefCell::new(DeliveredObjects::new(objects)),
            last_synced: Cell::new(0),
        };
        sync.record_delivered_texts();
        sync.store_delivered(&DeliveredObjects::default(), now);
        sync.sync(now);
        sync
    }

    /// Forgets the client changes of a delivered workload.
    pub(super) fn forget_changes(&self, key: &ObjectKey) {
        self.synced.borrow_mut().changed.remove(key);
    }

    /// Applies client writes to the world, and publishes its state.
    pub(super) fn sync(&self, now: Timestamp) {
        let writes: Vec<StoreWrite> = {
            let api = self.api.borrow();
            let since = api.store.writes_since(self.last_synced.get());
            // Every write is followed by a sync, so that none is dropped from the history before.
            since.into_iter().flatten().filter(|w| w.author == Writer::Client).cloned().collect()
        };
        for write in &writes {
            self.apply_write(write);
        }
        self.publish(now);
        self.last_synced.set(self.api.borrow().store.version());
    }

    fn apply_write(&self, write: &StoreWrite) {
        let StoreWrite { key, change, object, before, .. } = write;
        let new_spec = before.as_ref().is_none_or(|before| before["spec"] != object["spec"]);
        match key.kind {
            "Node" if *change == ChangeKind::Deleted => {
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
                self.world.remove_node_object(&(*key.name).into(), &uid.into());
            }
            "Node" => self.apply_node_write(key, object),
            "Pod" => self.apply_pod_write(write),
            "Namespace" if *change != ChangeKind::Deleted => {
                let labels = Labels::deserialize(&object["metadata"]["labels"]).unwrap_or_default();
                self.world.set_namespace((*key.name).into(), labels);
            }
            "PodDisruptionBudget" if *change == ChangeKind::Deleted => {
                self.world.remove_budget(&key.namespace, &key.name);
            }
            "PodDisruptionBudget" if new_spec => {
                for budget in parse_object(object).disruption_budgets {
                    self.world.set_budget(&budget);
                }
            }
            "StorageClass" | "PersistentVolume" | "PersistentVolumeClaim"
                if *change == ChangeKind::Added =>
            {
                self.world.add_storage(&storage(parse_object(object)));
            }
            kind => {
                let owned = object["metadata"]["ownerReferences"].is_array();
                if let Some(kind) = workload_kind(kind).filter(|_| !owned) {
                    self.synced.borrow_mut().changed.insert(key.clone());
                    if new_spec || *change == ChangeKind::Deleted {
                        self.apply_workload_write(kind, write);
                    }
                } else if let Some(kind) = workload_kind(key.kind)
                    && *change == ChangeKind::Deleted
                {
                    self.world.remove_workload(&workload_id(kind, key));
                }
            }
        }
    }

    fn apply_node_write(&self, key: &ObjectKey, object: &Json) {
        let name = NodeName::from(&*key.name);
        let Some(mut node) = self.world.view().nodes().get(&name).cloned() else { return };
        let meta = &object["metadata"];
        let taints = object["spec"]["taints"].as_array().into_iter().flatten();
        let taints = taints.filter_map(|taint| Taint::deserialize(taint).ok());
        node.taints = taints.filter(|taint| !MIRROR_TAINTS.contains(&taint.key.as_str())).collect();
        node.labels = Labels::deserialize(&meta["labels"]).unwrap_or_default();
        node.annotations = BTreeMap::deserialize(&meta["annotations"]).unwrap_or_default();
        node.unschedulable = object["spec"]["unschedulable"] == true;
        self.world.update_node(&node);
    }

    fn apply_pod_write(&self, write: &StoreWrite) {
        let StoreWrite { key, change, object, before, .. } = write;
        let namespace = Namespace::from(&*key.namespace);
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().into();
        let is_set =
            |object: &Json, pointer: &str| object.pointer(pointer).is_some_and(Json::is_string);
        let set_now = |pointer: &str| {
            is_set(object, pointer) && !before.as_ref().is_some_and(|b| is_set(b, pointer))
        };
        match change {
            ChangeKind::Deleted => self.world.remove_pod(&namespace, &key.name, &uid, true),
            ChangeKind::Added => {
                let owned = object["metadata"]["ownerReferences"].is_array();
                for workload in parse_object(object).workloads.into_values().filter(|_| !owned) {
                    self.world.add_pod(&workload.id, uid.clone(), &workload.template);
                }
            }
            ChangeKind::Modified if set_now("/metadata/deletionTimestamp") => {
                self.world.remove_pod(&namespace, &key.name, &uid, false);
            }
            ChangeKind::Modified if set_now("/spec/nodeName") => {
                let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
                self.world.bind_pod(&namespace, &key.name, &uid, &node.into());
            }
            ChangeKind::Modified => {}
        }
    }

    fn apply_workload_write(&self, kind: WorkloadKind, write: &StoreWrite) {
        let StoreWrite { key, change, object, before, .. } = write;
        if *change == ChangeKind::Deleted {
            self.synced.borrow_mut().changed.remove(key);
            self.world.remove_workload(&workload_id(kind, key));
            return;
        }
        let before = before.as_ref().map(|before| &before["spec"]);
        let same = |part: &str| before.is_some_and(|before| before[part] == object["spec"][part]);
        for workload in parse_object(object).workloads.into_values() {
            let replicas = replicas(&workload.scale);
            let Workload { id, first_ordinal, template, .. } = &workload;
            let is_known = self.world.view().workload(id).is_some();
            if is_known && same("template") && same("ordinals") {
                self.world.set_replicas(id, replicas);
                continue;
            }
            let written = &object["spec"]["template"];
            let template = with_revision(template, written);
            self.texts.borrow_mut().record(template_key(&template), written);
            match rolling_update(object) {
                Some(update) if is_known && kind == WorkloadKind::Deployment => {
                    self.world.set_replicas(id, replicas);
                    self.world.roll_out(id, &template, update);
                }
                _ => self.world.set_workload(id, replicas, *first_ordinal, &template),
            }
        }
    }

    /// Publishes the state of the world in the store.
    fn publish(&self, now: Timestamp) {
        let (view, mut api, mut synced) =
            (self.world.view(), self.api.borrow_mut(), self.synced.borrow_mut());
        let (texts, delivered) = (self.texts.borrow(), self.delivered.borrow());
        publish_nodes(&view, &self.world, &mut api, &mut synced, now);
        publish_pods(&view, &mut api, &mut synced, &texts, now);
        let mut others = controllers(&view, &texts);
        delivered.complete(&mut others);
        let namespaces = delivered.namespaces();
        others.extend(supporting_objects(&view, namespaces, &self.world.cluster().uid, now, &api));
        others.extend(node_claims(&view));
        others.extend(declared_objects_of(&view, &self.aws_api.desired()));
        for key in synced.others.iter().filter(|key| !others.contains_key(key)) {
            api.store.remove(key, Writer::World);
        }
        synced.others = others.keys().cloned().collect();
        for (key, mut object) in others {
            let stored = api.store.get(&key);
            let since = stored.map(|stored| stored["metadata"]["creationTimestamp"].clone());
            if object["metadata"]["creationTimestamp"].is_null() {
                object["metadata"]["creationTimestamp"] =
                    since.unwrap_or_else(|| super::object::format_time(now).into());
            }
            let generation = stored.map(|stored| stored["metadata"]["generation"].clone());
            if let Some(generation) = generation.filter(Json::is_number) {
                object["metadata"]["generation"] = generation;
            }
            if object["status"]["observedGeneration"].is_number() {
                object["status"]["observedGeneration"] = object["metadata"]["generation"].clone();
            }
            // Client fields are kept. Replicas and status come from the world.
            let is_changed =
                |stored: &&Arc<Json>| is_of_client(stored) || synced.changed.contains(&key);
            if let Some(stored) = stored.filter(is_changed) {
                let mut kept = (**stored).clone();
                for part in ["replicas", "parallelism"] {
                    if !object["spec"][part].is_null() {
                        kept["spec"][part] = object["spec"][part].clone();
                    }
                }
                kept["status"] = object["status"].clone();
                object = kept;
            }
            api.store.upsert(key, object, Writer::World);
        }
        let runs = view.scheduler_runs();
        let unschedulable = synced.events.newly_unschedulable(view.pods(), runs);
        drop(view);
        for (pod, reasons) in self.world.unschedulable_reasons(&unschedulable) {
            synced.events.pod_unschedulable(&pod, &reasons, now);
        }
        if self.last_synced.get() == 0 {
            // The world existed before the sandbox.
            synced.events.discard_recorded();
        }
        synced.events.store(&mut api);
    }
}

/// Maximum number of pods of a workload, because the sandbox holds each pod in memory.
const REPLICAS_MAX: u32 = 10_000;

/// Returns the replicas that a workload asks for, at most [`REPLICAS_MAX`].
fn replicas(scale: &Scale) -> u32 {
    let replicas = match scale {
        Scale::Replicas(replicas) => *replicas,
        Scale::Job { pods, completions, suspended: false } => {
            completions.unwrap_or(u32::MAX).min(*pods)
        }
        Scale::PerNode
        | Scale::Job { suspended: true, .. }
        | Scale::CronJob { .. }
        | Scale::ScaledJob(_)
        | Scale::Buffer(_) => 0,
    };
    replicas.min(REPLICAS_MAX)
}

/// Returns whether a client created the object. UIDs of the world have another prefix.
pub(super) fn is_of_client(object: &Json) -> bool {
    let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
    uid.starts_with(super::object::UID_PREFIX)
}

fn publish_nodes(
    view: &WorldView<'_>,
    world: &World,
    api: &mut KubeApi,
    synced: &mut SyncedObjects,
    now: Timestamp,
) {
    let key = |name: &NodeName| ObjectKey::new("Node", "", name.as_str());
    for (name, node) in synced.nodes.extract_if(.., |name, _| !view.nodes().contains_key(name)) {
        api.store.remove(&key(&name), Writer::World);
        synced.events.node_removed(&node, now);
    }
    for (name, node) in view.nodes() {
        if synced.nodes.get(name) == Some(node) && api.store.get(&key(name)).is_some() {
            continue;
        }
        let instance = node.instance.as_ref().and_then(|id| world.instance(id));
        let object = kubernetes_objects::node(node, instance.as_ref());
        api.store.upsert(key(name), object, Writer::World);
        let before = synced.nodes.insert(name.clone(), node.clone());
        synced.events.node_changed(before.as_ref(), node, now);
    }
}

fn publish_pods(
    view: &WorldView<'_>,
    api: &mut KubeApi,
    synced: &mut SyncedObjects,
    texts: &TemplateTexts,
    now: Timestamp,
) {
    let mut gone: BTreeSet<ObjectKey> = synced.pods.keys().cloned().collect();
    for pod in view.pods() {
        let key = ObjectKey::new("Pod", pod.namespace.as_str(), &pod.name);
        gone.remove(&key);
        let stored = api.store.get(&key);
        if stored.is_some() && synced.pods.get(&key) == Some(pod) {
            continue;
        }
        let Some(template) = view.template(&pod.template) else { continue };
        let same = |stored: &&Arc<Json>| stored["metadata"]["uid"] == pod.uid.as_str();
        let object = if let Some(stored) = stored.filter(same) {
            let mut object = (**stored).clone();
            kubernetes_objects::set_pod_state(&mut object, pod, now);
            object
        } else {
            let mut object = kubernetes_objects::pod(pod, template, now);
            texts.apply(&pod.template, &mut object);
            object
        };
        api.store.upsert(key.clone(), object, Writer::World);
        let before = synced.pods.insert(key, pod.clone());
        synced.events.pod_changed(before.as_ref(), pod, now);
    }
    for key in gone {
        if let Some(pod) = synced.pods.remove(&key) {
            synced.events.pod_removed(&pod);
        }
        api.store.remove(&key, Writer::World);
    }
}

/// Returns the workloads, and their `ReplicaSet`s and Jobs.
fn controllers(view: &WorldView<'_>, texts: &TemplateTexts) -> BTreeMap<ObjectKey, Json> {
    let mut counts: BTreeMap<(WorkloadId, String), ReplicaCounts> = BTreeMap::new();
    for pod in view.pods().filter(|pod| pod.is_active()) {
        let Some(owner) = &pod.owner else { continue };
        let count = counts.entry((owner.clone(), pod.template.to_string())).or_default();
        count.all += 1;
        count.ready += u32::from(pod.phase == PodPhase::Running);
    }
    let mut out = BTreeMap::new();
    let mut totals: BTreeMap<&WorkloadId, (ReplicaCounts, &String)> = BTreeMap::new();
    for ((owner, template), count) in &counts {
        let (total, _) = totals.entry(owner).or_insert((ReplicaCounts::default(), template));
        total.all += count.all;
        total.ready += count.ready;
        if let Some(owner_object) = kubernetes_objects::pod_owner(owner, template)
            .filter(|owner_object| owner_object.above.is_some())
        {
            let counts = (count.all, ReplicaCounts { updated: count.all, ..*count });
            insert_controller(view, texts, &owner_object, counts, template, &mut out);
        }
    }
    for workload in view.workloads() {
        let total = totals.get(workload.id).copied();
        let mut count = total.map(|(count, _)| count).unwrap_or_default();
        let template = workload.template.or(total.map(|(_, template)| template.as_str()));
        let Some(template) = template else { continue };
        count.updated = count.all;
        if workload.is_rolling {
            let current = counts.get(&(workload.id.clone(), template.to_owned()));
            count.updated = current.map_or(0, |current| current.all);
        }
        let own = PodOwner {
            kind: workload.id.kind.as_str(),
            namespace: workload.id.namespace.clone(),
            name: workload.id.name.to_string(),
            above: None,
        };
        if SIMULATED_KINDS.contains(&own.kind) {
            let counts = (workload.replicas, count);
            insert_controller(view, texts, &own, counts, template, &mut out);
            let key = ObjectKey::new(own.kind, own.namespace.as_str(), &own.name);
            if let Some(object) = out.get_mut(&key).filter(|_| workload.first_ordinal > 0) {
                object["spec"]["ordinals"]["start"] = workload.first_ordinal.into();
            }
            if let Some((object, job)) = out.get_mut(&key).zip(view.job(workload.id)) {
                object["spec"]["backoffLimit"] = job.retries.backoff_limit.into();
                object["status"]["failed"] = job.failed.into();
            }
        }
    }
    out
}

fn insert_controller(
    view: &WorldView<'_>,
    texts: &TemplateTexts,
    owner: &PodOwner,
    (replicas, count): (u32, ReplicaCounts),
    template: &str,
    into: &mut BTreeMap<ObjectKey, Json>,
) {
    let Some(of_pods) = view.template(template) else { return };
    let mut object = kubernetes_objects::controller(owner, replicas, count, template, of_pods);
    texts.apply(template, &mut object["spec"]["template"]);
    into.insert(ObjectKey::new(owner.kind, owner.namespace.as_str(), &owner.name), object);
}

/// Returns namespaces, budgets and storage.
fn supporting_objects<'n>(
    view: &WorldView<'_>,
    delivered_to: impl Iterator<Item = &'n str>,
    cluster_uid: &str,
    now: Timestamp,
    api: &KubeApi,
) -> BTreeMap<ObjectKey, Json> {
    let mut out = BTreeMap::new();
    let mut namespaces: BTreeMap<&str, Labels> =
        NAMESPACES.into_iter().map(|name| (name, Labels::new())).collect();
    namespaces.extend(delivered_to.map(|name| (name, Labels::new())));
    namespaces.extend(view.workloads().map(|w| (w.id.namespace.as_str(), Labels::new())));
    namespaces.extend(view.namespaces().iter().map(|(n, labels)| (n.as_str(), labels.clone())));
    for (name, labels) in namespaces {
        let key = ObjectKey::new("Namespace", "", name);
        let uid = if name == "kube-system" {
            cluster_uid.to_owned()
        } else {
            kubernetes_objects::uid("Namespace", "", name)
        };
        let since =
            api.store.get(&key).and_then(|stored| stored["metadata"]["creationTimestamp"].as_str());
        let since = since.and_then(|since| since.parse().ok()).unwrap_or(now);
        out.insert(key, kubernetes_objects::namespace(name, &labels, &uid, since));
    }
    for status in view.budgets() {
        let WorldBudget { namespace, name, .. } = &status.budget;
        let key = ObjectKey::new("PodDisruptionBudget", namespace.as_str(), name);
        out.insert(key, kubernetes_objects::budget(&status));
    }
    insert_storage(view, &mut out);
    out
}

/// Returns declared objects that the world does not simulate.
fn declared_objects_of(view: &WorldView<'_>, desired: &Desired) -> BTreeMap<ObjectKey, Json> {
    let mut out = BTreeMap::new();
    for scaler in &desired.scalers {
        let replicas = |target: &ScaleTarget| {
            let of = |id: &WorkloadId| {
                id.namespace == scaler.namespace
                    && id.kind.as_str() == target.kind
                    && *id.name == *target.name
            };
            view.workloads().find(|workload| of(workload.id)).map(|workload| workload.replicas)
        };
        if let Some(object) = declared_objects::horizontal(scaler, replicas) {
            let (kind, namespace) = ("HorizontalPodAutoscaler", scaler.namespace.as_str());
            out.insert(ObjectKey::new(kind, namespace, &scaler.name), object);
        }
    }
    for (id, workload) in &desired.workloads {
        if let Some(object) = declared_objects::cron_job(id, workload) {
            out.insert(ObjectKey::new("CronJob", id.namespace.as_str(), &id.name), object);
        }
    }
    out
}

fn insert_storage(view: &WorldView<'_>, out: &mut BTreeMap<ObjectKey, Json>) {
    let Storage { classes, volumes, claims, attach_limits, attached: _ } = view.storage();
    for (name, class) in classes {
        out.insert(
            ObjectKey::new("StorageClass", "", name),
            kubernetes_objects::storage_class(name, class),
        );
    }
    for (name, volume) in volumes {
        out.insert(
            ObjectKey::new("PersistentVolume", "", name),
            kubernetes_objects::volume(name, volume),
        );
    }
    for (namespace, claims) in claims {
        for (name, claim) in claims {
            let key = ObjectKey::new("PersistentVolumeClaim", namespace.as_str(), name);
            out.insert(key, kubernetes_objects::claim(namespace, name, claim));
        }
    }
    for (node, limits) in attach_limits {
        out.insert(
            ObjectKey::new("CSINode", "", node.as_str()),
            kubernetes_objects::csi_node(node.as_str(), limits),
        );
    }
    if volumes.is_empty() {
        return;
    }
    for pod in view.pods() {
        let (Some(node), Some(template)) = (&pod.node, view.template(&pod.template)) else {
            continue;
        };
        for claim in kubernetes_objects::claims_of(template, pod) {
            let claim = view.storage().claim(&pod.namespace, &claim);
            let Some(name) = claim.and_then(|claim| claim.volume_name.as_ref()) else { continue };
            let driver = volumes.get(name).and_then(|volume| volume.driver.as_deref());
            let object =
                kubernetes_objects::attachment(name, driver.unwrap_or_default(), node.as_str());
            let key = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            out.insert(ObjectKey::new("VolumeAttachment", "", &key), object);
        }
    }
}

/// Parses a client object. Unreadable parts are logged and not simulated.
pub(super) fn parse_object(object: &Json) -> Desired {
    let read = read_live_objects([object]);
    for problem in &read.problems {
        tracing::warn!(object = %problem.object, message = %problem.message, "object part not simulated");
    }
    read
}

fn storage(read: Desired) -> Storage {
    let mut storage =
        Storage { classes: read.storage_classes, volumes: read.volumes, ..Storage::default() };
    for ((namespace, name), declared) in read.claims {
        storage.claims.entry(namespace).or_default().insert(name, declared.claim);
    }
    storage
}

pub(super) fn workload_kind(kind: &str) -> Option<WorkloadKind> {
    use WorkloadKind::{
        DaemonSet, Deployment, Job, ReplicaSet, ReplicationController, StatefulSet,
    };
    [DaemonSet, Deployment, Job, ReplicaSet, ReplicationController, StatefulSet]
        .into_iter()
        .find(|known| known.as_str() == kind)
}

fn workload_id(kind: WorkloadKind, key: &ObjectKey) -> WorkloadId {
    WorkloadId { namespace: (*key.namespace).into(), name: Arc::clone(&key.name), kind }
}
