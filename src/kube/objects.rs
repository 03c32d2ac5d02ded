//! Everything the planner needs of a cluster, read in one go.
//!
//! Pods are read first, then what owns them, then nodes: whatever a pod names was there when the pod
//! was, so that it is found unless it is gone by now.

use std::sync::Arc;

use ::kube::Error;
use serde_json::Value as Json;

use super::client::Kubernetes;
use super::list::Sort;
use super::node;
use super::pod::{names_its_node, pod};
use super::scaling;
use super::workload::{Owners, meta_of, owner_of};
use crate::fleet::{LiveWorkload, Pod, template_key};
use crate::ids::{WorkloadId, WorkloadKind};
use crate::manifest::{Desired, Scale, read_live};
use crate::pod::PodTemplate;
use crate::port::ClusterObjects;
use crate::storage::{ClaimPhase, Storage};

const fn sort(api_version: &'static str, kind: &'static str, path: &'static str) -> Sort {
    Sort { api_version, kind, path }
}

const PODS: Sort = sort("v1", "Pod", "/api/v1/pods");
const NODES: Sort = sort("v1", "Node", "/api/v1/nodes");
const REPLICA_SETS: Sort = sort("apps/v1", "ReplicaSet", "/apis/apps/v1/replicasets");
const JOBS: Sort = sort("batch/v1", "Job", "/apis/batch/v1/jobs");
const WORKLOADS: [Sort; 5] = [
    sort("apps/v1", "Deployment", "/apis/apps/v1/deployments"),
    sort("apps/v1", "StatefulSet", "/apis/apps/v1/statefulsets"),
    sort("apps/v1", "DaemonSet", "/apis/apps/v1/daemonsets"),
    sort("v1", "ReplicationController", "/api/v1/replicationcontrollers"),
    sort("batch/v1", "CronJob", "/apis/batch/v1/cronjobs"),
];
const STORAGE_CLASSES: Sort =
    sort("storage.k8s.io/v1", "StorageClass", "/apis/storage.k8s.io/v1/storageclasses");
const VOLUMES: Sort = sort("v1", "PersistentVolume", "/api/v1/persistentvolumes");
const CLAIMS: Sort = sort("v1", "PersistentVolumeClaim", "/api/v1/persistentvolumeclaims");
const ATTACHMENTS: Sort =
    sort("storage.k8s.io/v1", "VolumeAttachment", "/apis/storage.k8s.io/v1/volumeattachments");
const CSI_NODES: Sort = sort("storage.k8s.io/v1", "CSINode", "/apis/storage.k8s.io/v1/csinodes");

const HORIZONTAL: Sort = sort(
    "autoscaling/v2",
    "HorizontalPodAutoscaler",
    "/apis/autoscaling/v2/horizontalpodautoscalers",
);
const VERTICAL: Sort = sort(
    "autoscaling.k8s.io/v1",
    "VerticalPodAutoscaler",
    "/apis/autoscaling.k8s.io/v1/verticalpodautoscalers",
);

/// Annotation of a claim that is bound on both sides.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

impl Kubernetes {
    /// Reads nodes, pods, workloads and storage.
    ///
    /// # Errors
    /// When any list cannot be read to its end. An object that cannot be understood is named in
    /// [`ClusterObjects::unread`].
    pub(super) async fn read_objects(&self) -> Result<ClusterObjects, Error> {
        let mut read = Read::default();
        self.each(PODS, &mut |page| read.pods(page)).await?;
        for (kind, sort) in [(WorkloadKind::ReplicaSet, REPLICA_SETS), (WorkloadKind::Job, JOBS)] {
            let objects = self.all(sort).await?;
            for object in &objects {
                read.owners.note(kind, object);
            }
            read.workloads(&objects);
        }
        for sort in WORKLOADS {
            read.workloads(&self.all(sort).await?);
        }
        let mut storage = Vec::new();
        for sort in [STORAGE_CLASSES, VOLUMES, CLAIMS] {
            storage.extend(self.all(sort).await?);
        }
        read.storage(&storage);
        for object in &self.all(HORIZONTAL).await? {
            match scaling::horizontal(object) {
                Ok(found) => read.into.scaling.horizontal.extend(found),
                Err(why) => read.into.unread.push(why),
            }
        }
        for object in &self.all_if_served(VERTICAL).await? {
            match scaling::vertical(object) {
                Ok(found) => read.into.scaling.vertical.extend(found),
                Err(why) => read.into.unread.push(why),
            }
        }
        for object in &self.all(ATTACHMENTS).await? {
            // One whose volume is written into it is none of a claim.
            if let Some((node, volume)) = node::attachment(object) {
                read.into.storage.attached.entry(node).or_default().insert(volume);
            }
        }
        for object in &self.all(CSI_NODES).await? {
            match node::attach_limits(object) {
                Ok((name, limits)) => {
                    read.into.storage.attach_limits.insert(name, limits);
                }
                Err(why) => read.into.unread.push(why),
            }
        }
        for object in &self.all(NODES).await? {
            match node::node(object) {
                Ok(node) => read.into.nodes.push(node),
                Err(why) => read.into.unread.push(why),
            }
        }
        Ok(read.finish())
    }
}

/// What was read so far.
#[derive(Default)]
struct Read {
    into: ClusterObjects,
    owners: Owners,
}

impl Read {
    /// Takes a page of pods; `None` begins anew.
    fn pods(&mut self, page: Option<Vec<Json>>) {
        let Some(page) = page else {
            self.into.pods.clear();
            self.into.templates.clear();
            self.into.unread.clear();
            return;
        };
        let mut templates = self.understood(&page).workloads;
        for object in &page {
            let Some(meta) = meta_of(object) else { continue };
            let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) else { continue };
            let id = WorkloadId {
                namespace: namespace.as_str().into(),
                name: name.as_str().into(),
                kind: WorkloadKind::Pod,
            };
            // One that is not there was named as unread.
            let Some(mut template) = templates.remove(&id).map(|found| found.template) else {
                continue;
            };
            let owner = owner_of(&meta);
            without_binding(&mut template, owner.as_ref(), names_its_node(&meta));
            let key = self.keep(&template);
            match pod(object, (key, &template)) {
                Ok(pod) => self.into.pods.push(pod),
                Err(why) => self.into.unread.push(why),
            }
        }
    }

    /// Reads objects, and notes which of them cannot be understood.
    fn understood(&mut self, objects: &[Json]) -> Desired {
        let read = read_live(objects);
        let unread = read.problems.iter().map(|p| format!("{}: {}", p.object, p.message));
        self.into.unread.extend(unread);
        read
    }

    /// Keeps a template, and returns its key.
    fn keep(&mut self, template: &Arc<PodTemplate>) -> String {
        let key = template_key(template);
        self.into.templates.entry(key.clone()).or_insert_with(|| Arc::clone(template));
        key
    }

    /// Takes workloads that nothing else owns.
    fn workloads(&mut self, objects: &[Json]) {
        for (id, workload) in self.understood(objects).workloads {
            if self.owners.is_owned(&id) {
                continue;
            }
            let replicas = match workload.scale {
                Scale::Replicas(n) => n,
                Scale::Job { pods, suspended: false, .. } => pods,
                Scale::Job { suspended: true, .. }
                | Scale::PerNode
                | Scale::CronJob { .. }
                | Scale::ScaledJob(_)
                | Scale::Buffer(_) => 0,
            };
            let template = Some(self.keep(&workload.template));
            // Nothing in a cluster tells reliably which repository delivers a workload; what a plan
            // is compared with does.
            let delivered = false;
            self.into.workloads.push(LiveWorkload {
                id,
                replicas,
                first_ordinal: workload.first_ordinal,
                delivered,
                template,
            });
        }
    }

    /// Takes classes, volumes and claims.
    fn storage(&mut self, objects: &[Json]) {
        let read = self.understood(objects);
        let mut storage =
            Storage { classes: read.storage_classes, volumes: read.volumes, ..Storage::default() };
        for ((namespace, name), declared) in read.claims {
            storage.claims.entry(namespace).or_default().insert(name, declared.claim);
        }
        for object in objects {
            let (Some(meta), Some(kind)) = (meta_of(object), object.get("kind")) else { continue };
            let Some(name) = meta.name else { continue };
            if kind == STORAGE_CLASSES.kind
                && let Some(class) = storage.classes.get_mut(&name)
            {
                class.created_at = meta.creation_timestamp.as_ref().map(|time| time.0);
            }
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            let claims = storage.claims.get_mut(namespace).filter(|_| kind == CLAIMS.kind);
            if let Some(claim) = claims.and_then(|claims| claims.get_mut(&name)) {
                let bound =
                    meta.annotations.as_ref().is_some_and(|a| a.contains_key(BIND_COMPLETED));
                let lost = object.pointer("/status/phase").is_some_and(|phase| phase == "Lost");
                claim.phase = match (lost, bound) {
                    (true, _) => ClaimPhase::Lost,
                    (false, true) => ClaimPhase::Bound,
                    (false, false) => ClaimPhase::Pending,
                };
                claim.deleting = meta.deletion_timestamp.is_some();
            }
        }
        self.into.storage = storage;
    }

    fn finish(self) -> ClusterObjects {
        let Self { mut into, owners } = self;
        let above = |pod: &mut Pod| pod.owner = pod.owner.take().map(|owner| owners.top(owner));
        into.pods.iter_mut().for_each(above);
        into
    }
}

/// Takes out of a template what a scheduler or a controller wrote for this one pod: the node that it
/// was bound to, and the node that a `DaemonSet` made it for.
fn without_binding(template: &mut Arc<PodTemplate>, owner: Option<&WorkloadId>, chosen: bool) {
    let of_daemon = owner.is_some_and(|owner| owner.kind == WorkloadKind::DaemonSet);
    let template = Arc::make_mut(template);
    if !chosen {
        template.spec.node_name = None;
    }
    if of_daemon && let Some(terms) = &mut template.spec.node_affinity.required {
        for term in &mut *terms {
            term.fields.clear();
        }
        terms.dedup();
        if terms.iter().all(|term| term.expressions.is_empty()) {
            template.spec.node_affinity.required = None;
        }
    }
}
