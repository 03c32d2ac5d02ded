//! A world and the API over it: what clients write is told to the world, and what becomes of it is
//! written to the store.
//!
//! The world is the truth of everything that it plays: nodes, pods, their controllers, budgets and
//! storage. What it does not know, such as leases and events, is the store's alone.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value as Json;

use super::account::Account;
use super::api::{Answer, Api, NAMESPACES};
use super::declared;
use super::http::Service;
use super::request::Request;
use super::shown::{self, Count, Maker};
use super::store::{Author, Change, Key, Write};
use crate::fleet::{Node, Pod, PodPhase};
use crate::ids::{Labels, Namespace, NodeName, WorkloadId, WorkloadKind};
use crate::manifest::{Desired, Scale, ScaleTarget, read_live};
use crate::pod::Taint;
use crate::sim::{View, World};
use crate::storage::Storage;

/// Kinds whose objects the world makes and takes away, beside nodes and pods.
const PLAYED: [&str; 13] = [
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

/// What begins the keys of taints that only mirror the state of a node.
const MIRRORS: [&str; 2] = ["node.kubernetes.io/unschedulable", "node.kubernetes.io/not-ready"];

/// What of the world the store shows already.
#[derive(Debug, Default)]
struct Shown {
    nodes: BTreeMap<NodeName, Node>,
    pods: BTreeMap<Key, Pod>,
    others: BTreeSet<Key>,
}

/// A world that is served.
pub(super) struct Joined {
    pub(super) world: Rc<World>,
    account: Account,
    api: RefCell<Api>,
    shown: RefCell<Shown>,
    /// The last write of a client that the world was told of.
    told: Cell<u64>,
}

impl Service for Joined {
    fn answer(&self, request: &Request) -> Answer {
        let of_account = self.account.answer(request);
        let answer = of_account.unwrap_or_else(|| self.api.borrow_mut().answer(request));
        if request.method != "GET" {
            self.turn(request.at);
        }
        answer
    }

    fn api(&self) -> Option<&RefCell<Api>> {
        Some(&self.api)
    }
}

impl Joined {
    /// Joins a world with an API that shows it.
    pub(super) fn new(world: Rc<World>, account: Account, now: Timestamp) -> Self {
        let joined = Self {
            world,
            account,
            api: RefCell::default(),
            shown: RefCell::default(),
            told: Cell::new(0),
        };
        joined.turn(now);
        joined
    }

    /// Takes over what the repository says now.
    pub(super) fn follow(&self, desired: Rc<Desired>, now: Timestamp) {
        self.account.follow(desired);
        self.turn(now);
    }

    /// Tells the world what clients wrote, and shows what it is now.
    pub(super) fn turn(&self, now: Timestamp) {
        let news: Vec<Write> = {
            let api = self.api.borrow();
            let since = api.store.since(self.told.get());
            // Each write is followed by a turn, so that none is forgotten before it was told.
            since.into_iter().flatten().filter(|w| w.author == Author::Client).cloned().collect()
        };
        for write in &news {
            self.tell(write);
        }
        self.show(now);
        self.told.set(self.api.borrow().store.version());
    }

    fn tell(&self, write: &Write) {
        let Write { key, change, object, before, .. } = write;
        let new_spec = before.as_ref().is_none_or(|before| before["spec"] != object["spec"]);
        match key.kind {
            "Node" if *change == Change::Deleted => {
                let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
                self.world.forget_node(&(*key.name).into(), &uid.into());
            }
            "Node" => self.tell_node(key, object),
            "Pod" => self.tell_pod(write),
            "Namespace" if *change != Change::Deleted => {
                let labels = Labels::deserialize(&object["metadata"]["labels"]).unwrap_or_default();
                self.world.set_namespace((*key.name).into(), labels);
            }
            "PodDisruptionBudget" if *change == Change::Deleted => {
                self.world.drop_budget(&key.namespace, &key.name);
            }
            "PodDisruptionBudget" if new_spec => {
                for budget in understood(object).disruption_budgets {
                    self.world.set_budget(&budget);
                }
            }
            "StorageClass" | "PersistentVolume" | "PersistentVolumeClaim"
                if *change == Change::Added =>
            {
                self.world.add_storage(&storage(understood(object)));
            }
            kind => {
                let owned = object["metadata"]["ownerReferences"].is_array();
                if let Some(kind) = workload_kind(kind).filter(|_| !owned && new_spec) {
                    self.tell_workload(kind, write);
                } else if let Some(kind) = workload_kind(key.kind)
                    && *change == Change::Deleted
                {
                    self.world.drop_workload(&id(kind, key));
                }
            }
        }
    }

    fn tell_node(&self, key: &Key, object: &Json) {
        let name = NodeName::from(&*key.name);
        let Some(mut node) = self.world.view().nodes().get(&name).cloned() else { return };
        let meta = &object["metadata"];
        let taints = object["spec"]["taints"].as_array().into_iter().flatten();
        let taints = taints.filter_map(|taint| Taint::deserialize(taint).ok());
        node.taints = taints.filter(|taint| !MIRRORS.contains(&taint.key.as_str())).collect();
        node.labels = Labels::deserialize(&meta["labels"]).unwrap_or_default();
        node.annotations = BTreeMap::deserialize(&meta["annotations"]).unwrap_or_default();
        node.unschedulable = object["spec"]["unschedulable"] == true;
        self.world.change_node(&node);
    }

    fn tell_pod(&self, write: &Write) {
        let Write { key, change, object, before, .. } = write;
        let namespace = Namespace::from(&*key.namespace);
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().into();
        let is_set =
            |object: &Json, pointer: &str| object.pointer(pointer).is_some_and(Json::is_string);
        let set_now = |pointer: &str| {
            is_set(object, pointer) && !before.as_ref().is_some_and(|b| is_set(b, pointer))
        };
        match change {
            Change::Deleted => self.world.remove_pod(&namespace, &key.name, &uid, true),
            Change::Added => {
                let owned = object["metadata"]["ownerReferences"].is_array();
                for workload in understood(object).workloads.into_values().filter(|_| !owned) {
                    self.world.add_pod(&workload.id, uid.clone(), &workload.template);
                }
            }
            Change::Modified if set_now("/metadata/deletionTimestamp") => {
                self.world.remove_pod(&namespace, &key.name, &uid, false);
            }
            Change::Modified if set_now("/spec/nodeName") => {
                let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
                self.world.bind_pod(&namespace, &key.name, &uid, &node.into());
            }
            Change::Modified => {}
        }
    }

    fn tell_workload(&self, kind: WorkloadKind, write: &Write) {
        if write.change == Change::Deleted {
            self.world.drop_workload(&id(kind, &write.key));
            return;
        }
        for workload in understood(&write.object).workloads.into_values() {
            let replicas = match &workload.scale {
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
            let counts = (replicas, workload.first_ordinal);
            self.world.set_workload(&workload.id, counts, &workload.template);
        }
    }

    /// Writes what the world is now to the store.
    fn show(&self, now: Timestamp) {
        let (view, mut api, mut shown) =
            (self.world.view(), self.api.borrow_mut(), self.shown.borrow_mut());
        show_nodes(&view, &self.world, &mut api, &mut shown);
        show_pods(&view, &mut api, &mut shown, now);
        let mut others = controllers(&view);
        others.extend(beside(&view, (&self.world.cluster().uid, now), &api));
        others.extend(declared(&view, &self.account.desired()));
        for key in shown.others.iter().filter(|key| !others.contains_key(key)) {
            api.store.remove(key, Author::World);
        }
        shown.others = others.keys().cloned().collect();
        for (key, mut object) in others {
            let held = api.store.get(&key);
            let since = held.map(|held| held["metadata"]["creationTimestamp"].clone());
            if object["metadata"]["creationTimestamp"].is_null() {
                object["metadata"]["creationTimestamp"] =
                    since.unwrap_or_else(|| super::object::time(now).into());
            }
            // What a client wrote is kept; the world says how many, and how it goes.
            if let Some(held) = held.filter(|held| is_of_client(held)) {
                let mut kept = (**held).clone();
                for part in ["replicas", "parallelism"] {
                    if !object["spec"][part].is_null() {
                        kept["spec"][part] = object["spec"][part].clone();
                    }
                }
                kept["status"] = object["status"].clone();
                object = kept;
            }
            api.store.put(key, object, Author::World);
        }
    }
}

/// Returns whether a client made the object: the world's own UIDs are of another form.
fn is_of_client(object: &Json) -> bool {
    let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
    uid.starts_with(super::object::UID_PREFIX)
}

fn show_nodes(view: &View<'_>, world: &World, api: &mut Api, shown: &mut Shown) {
    let key = |name: &NodeName| Key::new("Node", "", name.as_str());
    for (name, _) in shown.nodes.extract_if(.., |name, _| !view.nodes().contains_key(name)) {
        api.store.remove(&key(&name), Author::World);
    }
    for (name, node) in view.nodes() {
        if shown.nodes.get(name) == Some(node) && api.store.get(&key(name)).is_some() {
            continue;
        }
        let instance = node.instance.as_ref().and_then(|id| world.instance(id));
        let object = shown::node(node, instance.as_ref());
        api.store.put(key(name), object, Author::World);
        shown.nodes.insert(name.clone(), node.clone());
    }
}

fn show_pods(view: &View<'_>, api: &mut Api, shown: &mut Shown, now: Timestamp) {
    let mut gone: BTreeSet<Key> = shown.pods.keys().cloned().collect();
    for pod in view.pods() {
        let key = Key::new("Pod", pod.namespace.as_str(), &pod.name);
        gone.remove(&key);
        let held = api.store.get(&key);
        if held.is_some() && shown.pods.get(&key) == Some(pod) {
            continue;
        }
        let Some(template) = view.template(&pod.template) else { continue };
        let same = |held: &&Arc<Json>| held["metadata"]["uid"] == pod.uid.as_str();
        let object = match held.filter(same) {
            Some(held) => {
                let mut object = (**held).clone();
                shown::set_state(&mut object, pod, now);
                object
            }
            None => shown::pod(pod, template, now),
        };
        api.store.put(key.clone(), object, Author::World);
        shown.pods.insert(key, pod.clone());
    }
    for key in gone {
        shown.pods.remove(&key);
        api.store.remove(&key, Author::World);
    }
}

/// Returns the controllers of pods: the workloads, and what they make of each template.
fn controllers(view: &View<'_>) -> BTreeMap<Key, Json> {
    let mut counts: BTreeMap<(WorkloadId, String), Count> = BTreeMap::new();
    for pod in view.pods().filter(|pod| pod.is_active()) {
        let Some(owner) = &pod.owner else { continue };
        let count = counts.entry((owner.clone(), pod.template.clone())).or_default();
        count.all += 1;
        count.ready += u32::from(pod.phase == PodPhase::Running);
    }
    let mut out = BTreeMap::new();
    let mut totals: BTreeMap<&WorkloadId, (Count, &String)> = BTreeMap::new();
    for ((owner, template), count) in &counts {
        let (total, _) = totals.entry(owner).or_insert((Count::default(), template));
        total.all += count.all;
        total.ready += count.ready;
        if let Some(maker) = shown::made_by(owner, template).filter(|maker| maker.above.is_some()) {
            show_controller(view, &maker, (count.all, *count), template, &mut out);
        }
    }
    for workload in view.workloads() {
        let total = totals.get(workload.id).copied();
        let count = total.map(|(count, _)| count).unwrap_or_default();
        let template = workload.template.or(total.map(|(_, template)| template.as_str()));
        let Some(template) = template else { continue };
        let own = Maker {
            kind: workload.id.kind.as_str(),
            namespace: workload.id.namespace.clone(),
            name: workload.id.name.to_string(),
            above: None,
        };
        if PLAYED.contains(&own.kind) {
            show_controller(view, &own, (workload.replicas, count), template, &mut out);
            let key = Key::new(own.kind, own.namespace.as_str(), &own.name);
            if let Some(object) = out.get_mut(&key).filter(|_| workload.first_ordinal > 0) {
                object["spec"]["ordinals"]["start"] = workload.first_ordinal.into();
            }
        }
    }
    out
}

fn show_controller(
    view: &View<'_>,
    maker: &Maker,
    (replicas, count): (u32, Count),
    template: &str,
    into: &mut BTreeMap<Key, Json>,
) {
    if let Some(made_from) = view.template(template) {
        let key = Key::new(maker.kind, maker.namespace.as_str(), &maker.name);
        into.insert(key, shown::controller(maker, replicas, count, (template, made_from)));
    }
}

/// Returns namespaces, budgets and storage.
fn beside(view: &View<'_>, (cluster, now): (&str, Timestamp), api: &Api) -> BTreeMap<Key, Json> {
    let mut out = BTreeMap::new();
    let mut namespaces: BTreeMap<&str, Labels> =
        NAMESPACES.into_iter().map(|name| (name, Labels::new())).collect();
    namespaces.extend(view.workloads().map(|w| (w.id.namespace.as_str(), Labels::new())));
    namespaces.extend(view.namespaces().iter().map(|(n, labels)| (n.as_str(), labels.clone())));
    for (name, labels) in namespaces {
        let key = Key::new("Namespace", "", name);
        let uid = if name == "kube-system" {
            cluster.to_owned()
        } else {
            shown::uid("Namespace", "", name)
        };
        let since =
            api.store.get(&key).and_then(|held| held["metadata"]["creationTimestamp"].as_str());
        let since = since.and_then(|since| since.parse().ok()).unwrap_or(now);
        out.insert(key, shown::namespace(name, &labels, &uid, since));
    }
    for budget in view.budgets() {
        let key = Key::new("PodDisruptionBudget", budget.namespace.as_str(), &budget.name);
        out.insert(key, shown::budget(&budget));
    }
    show_storage(view, &mut out);
    out
}

/// Returns what the repository declares and the world does not play.
fn declared(view: &View<'_>, desired: &Desired) -> BTreeMap<Key, Json> {
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
        if let Some(object) = declared::horizontal(scaler, replicas) {
            let (kind, namespace) = ("HorizontalPodAutoscaler", scaler.namespace.as_str());
            out.insert(Key::new(kind, namespace, &scaler.name), object);
        }
    }
    for (id, workload) in &desired.workloads {
        if let Some(object) = declared::cron_job(id, workload) {
            out.insert(Key::new("CronJob", id.namespace.as_str(), &id.name), object);
        }
    }
    out
}

fn show_storage(view: &View<'_>, out: &mut BTreeMap<Key, Json>) {
    let Storage { classes, volumes, claims, attach_limits, attached: _ } = view.storage();
    for (name, class) in classes {
        out.insert(Key::new("StorageClass", "", name), shown::storage_class(name, class));
    }
    for (name, volume) in volumes {
        out.insert(Key::new("PersistentVolume", "", name), shown::volume(name, volume));
    }
    for (namespace, claims) in claims {
        for (name, claim) in claims {
            let key = Key::new("PersistentVolumeClaim", namespace.as_str(), name);
            out.insert(key, shown::claim(namespace, name, claim));
        }
    }
    for (node, limits) in attach_limits {
        out.insert(Key::new("CSINode", "", node.as_str()), shown::csi_node(node.as_str(), limits));
    }
    if volumes.is_empty() {
        return;
    }
    for pod in view.pods() {
        let (Some(node), Some(template)) = (&pod.node, view.template(&pod.template)) else {
            continue;
        };
        for claim in shown::claims_of(template, pod) {
            let claim = view.storage().claim(&pod.namespace, &claim);
            let Some(name) = claim.and_then(|claim| claim.volume_name.as_ref()) else { continue };
            let driver = volumes.get(name).and_then(|volume| volume.driver.as_deref());
            let object = shown::attachment(name, driver.unwrap_or_default(), node.as_str());
            let key = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            out.insert(Key::new("VolumeAttachment", "", &key), object);
        }
    }
}

/// Reads what a client wrote; what cannot be read is said, and not played.
fn understood(object: &Json) -> Desired {
    let read = read_live([object]);
    for problem in &read.problems {
        tracing::warn!(object = %problem.object, message = %problem.message, "not played");
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

fn workload_kind(kind: &str) -> Option<WorkloadKind> {
    use WorkloadKind::{
        DaemonSet, Deployment, Job, ReplicaSet, ReplicationController, StatefulSet,
    };
    [DaemonSet, Deployment, Job, ReplicaSet, ReplicationController, StatefulSet]
        .into_iter()
        .find(|known| known.as_str() == kind)
}

fn id(kind: WorkloadKind, key: &Key) -> WorkloadId {
    WorkloadId { namespace: (*key.namespace).into(), name: Arc::clone(&key.name), kind }
}
