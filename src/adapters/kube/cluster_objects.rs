//! Lists everything that the planner needs of a cluster.
//!
//! Pods are listed first, then their owners, then nodes. Every owner of a listed pod is therefore
//! found, unless it was deleted since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::kube::Error;
use serde_json::Value as Json;

use super::cached_object::{CachedObject, CachedPod, Interner, ObjectContent, UnreadParts};
use super::client::Kubernetes;
use super::cluster_pools::{LeftOut, is_pool_resource};
use super::list::ApiResource;
use super::owner_references::parse_metadata;
use super::queued_workloads::{CHECKS, FLAVORS, QUEUED, Queues, is_queue_resource, older_version};
use super::resource_slices::SlicePools;
use super::{autoscalers, node, port_error};
use crate::apply::ports::{CallEffect, ClusterObjects, NodeAndPods, PortError};
use crate::manifest::read_live_objects;
use crate::model::expander_priorities::CONFIG_MAP;
use crate::model::ids::{NodeName, WorkloadId};
use crate::model::observed::UnreadObject;
use crate::model::pod::PodTemplate;
use crate::model::storage::{Claim, ClaimPhase, Storage};

const fn resource(
    api_version: &'static str,
    kind: &'static str,
    path: &'static str,
) -> ApiResource {
    ApiResource { api_version, kind, path, name: None }
}

pub(super) const PODS: ApiResource = resource("v1", "Pod", "/api/v1/pods");
pub(super) const REPLICA_SETS: ApiResource =
    resource("apps/v1", "ReplicaSet", "/apis/apps/v1/replicasets");
pub(super) const JOBS: ApiResource = resource("batch/v1", "Job", "/apis/batch/v1/jobs");
pub(super) const NODES: ApiResource = resource("v1", "Node", "/api/v1/nodes");
const STORAGE_CLASSES: ApiResource =
    resource("storage.k8s.io/v1", "StorageClass", "/apis/storage.k8s.io/v1/storageclasses");
const VOLUMES: ApiResource = resource("v1", "PersistentVolume", "/api/v1/persistentvolumes");
const CLAIMS: ApiResource =
    resource("v1", "PersistentVolumeClaim", "/api/v1/persistentvolumeclaims");
const ATTACHMENTS: ApiResource =
    resource("storage.k8s.io/v1", "VolumeAttachment", "/apis/storage.k8s.io/v1/volumeattachments");
const CSI_NODES: ApiResource =
    resource("storage.k8s.io/v1", "CSINode", "/apis/storage.k8s.io/v1/csinodes");

/// Devices of nodes. A cluster before Kubernetes 1.34 does not serve them.
pub(super) const RESOURCE_SLICES: ApiResource =
    resource("resource.k8s.io/v1", "ResourceSlice", "/apis/resource.k8s.io/v1/resourceslices");

const HORIZONTAL: ApiResource = resource(
    "autoscaling/v2",
    "HorizontalPodAutoscaler",
    "/apis/autoscaling/v2/horizontalpodautoscalers",
);
const VERTICAL: ApiResource = resource(
    "autoscaling.k8s.io/v1",
    "VerticalPodAutoscaler",
    "/apis/autoscaling.k8s.io/v1/verticalpodautoscalers",
);

/// The ConfigMaps of Cluster Autoscaler's expander `priority`.
const EXPANDER_PRIORITIES: ApiResource =
    ApiResource { name: Some(CONFIG_MAP), ..resource("v1", "ConfigMap", "/api/v1/configmaps") };

/// All resource types in list order.
pub(super) const RESOURCES: [ApiResource; 21] = [
    PODS,
    REPLICA_SETS,
    JOBS,
    resource("apps/v1", "Deployment", "/apis/apps/v1/deployments"),
    resource("apps/v1", "StatefulSet", "/apis/apps/v1/statefulsets"),
    resource("apps/v1", "DaemonSet", "/apis/apps/v1/daemonsets"),
    resource("v1", "ReplicationController", "/api/v1/replicationcontrollers"),
    resource("batch/v1", "CronJob", "/apis/batch/v1/cronjobs"),
    STORAGE_CLASSES,
    VOLUMES,
    CLAIMS,
    HORIZONTAL,
    VERTICAL,
    EXPANDER_PRIORITIES,
    ATTACHMENTS,
    CSI_NODES,
    RESOURCE_SLICES,
    FLAVORS,
    CHECKS,
    QUEUED,
    NODES,
];

const PRIORITIES_DENIED: &str = "cannot list the priorities of Cluster Autoscaler, so its expander \
     is not predicted; apply deploy/kubernetes/rbac.yaml";

/// Annotation of a claim that is bound on both sides.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// Objects of one resource type, by namespace and name.
pub(super) type ObjectCache = BTreeMap<String, CachedObject>;

/// Returns the cache key of an object.
pub(super) fn object_key(object: &Json) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
    format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"))
}

/// Returns whether a list that fails with this HTTP status is left out: the types that a cluster may
/// not serve, and those that a user may not be permitted to list, which are the priorities of Cluster
/// Autoscaler, devices, pools and the objects of Kueue.
fn is_left_out(resource: ApiResource, status: u16) -> bool {
    match status {
        403 => {
            [EXPANDER_PRIORITIES.path, RESOURCE_SLICES.path].contains(&resource.path)
                || is_pool_resource(resource)
                || is_queue_resource(resource)
        }
        404 => {
            [VERTICAL.path, RESOURCE_SLICES.path].contains(&resource.path)
                || is_pool_resource(resource)
                || is_queue_resource(resource)
        }
        _ => false,
    }
}

impl Kubernetes {
    /// Reads nodes, pods, workloads, storage and pools.
    ///
    /// # Errors
    /// Returns an error if any list but those of pools cannot be read to its end. An object that
    /// cannot be parsed is named in [`ClusterObjects::unread`].
    pub(super) async fn list_cluster_objects(&self) -> Result<ClusterObjects, Error> {
        let mut interner = Interner::default();
        let mut share = |cached: &mut CachedObject| interner.intern(cached);
        let mut pods = self.list_objects(PODS, &mut share).await?.0;
        let (mut others, mut left_out) = (Vec::new(), BTreeMap::new());
        for resource in RESOURCES.into_iter().filter(|resource| resource.path != PODS.path) {
            let (_, cache, version) = self.list_served(resource, &mut share).await?;
            match version {
                Ok(_) => others.push((resource.path, cache)),
                Err(why) => drop(left_out.insert(resource.path, why)),
            }
        }
        let others = others.iter().map(|(path, cache)| (*path, cache)).collect();
        let pools = Some(self.pools().await);
        Ok(ClusterObjects { pools, ..assemble(&mut pods, &others, &left_out) })
    }

    /// Reads a node and then its pods. On a cordoned node, no later pod is missed.
    ///
    /// # Errors
    /// Returns an error if an object cannot be read or parsed.
    pub(super) async fn read_node(&self, name: &NodeName) -> Result<NodeAndPods, PortError> {
        let nodes = self.list_matching(NODES, &format!("metadata.name={name}")).await?;
        let pods = self.list_matching(PODS, &format!("spec.nodeName={name}")).await?;
        let node = nodes.into_iter().find_map(|content| {
            let ObjectContent::Node(node) = content else { return None };
            Some(*node)
        });
        let pods = pods.into_iter().filter_map(|content| {
            let ObjectContent::Pod(CachedPod { mut pod, owner, .. }) = content else { return None };
            Arc::make_mut(&mut pod).owner = owner;
            Some(pod)
        });
        Ok(NodeAndPods { node, pods: pods.collect() })
    }

    /// Lists the objects of a resource type that match a field selector.
    async fn list_matching(
        &self,
        resource: ApiResource,
        fields: &str,
    ) -> Result<Vec<ObjectContent>, PortError> {
        const VERB: &str = "read node";
        let mut read: Vec<CachedObject> = Vec::new();
        let mut receive = |page: Option<Vec<Json>>| match page {
            Some(page) => read
                .extend(page.into_iter().map(|object| CachedObject::from_json(resource, object))),
            None => read.clear(),
        };
        let end = self.list_pages(resource, Some(fields), &mut receive).await;
        end.map_err(|error| port_error(VERB, &error))?;
        let content = read.into_iter().map(CachedObject::into_content).collect::<Result<_, _>>();
        content.map_err(|reason| PortError {
            verb: VERB.to_owned(),
            reason,
            effect: CallEffect::NotApplied,
        })
    }

    /// Lists a resource type, or its older version if the cluster serves that one only. Returns the
    /// type that was listed, and the result of [`Self::list_objects`].
    pub(super) async fn list_served(
        &self,
        resource: ApiResource,
        share: &mut (dyn FnMut(&mut CachedObject) + Send),
    ) -> Result<(ApiResource, ObjectCache, Result<String, LeftOut>), Error> {
        let (cache, version) = self.list_objects(resource, &mut *share).await?;
        let older = older_version(resource).filter(|_| version == Err(LeftOut::NotServed));
        let Some(older) = older else { return Ok((resource, cache, version)) };
        let (cache, version) = self.list_objects(older, share).await?;
        Ok((older, cache, version))
    }

    /// Lists the objects of a resource type, each interned by `share`, with the version of the
    /// collection. Returns an empty list, and the reason, if it is left out.
    pub(super) async fn list_objects(
        &self,
        resource: ApiResource,
        share: &mut (dyn FnMut(&mut CachedObject) + Send),
    ) -> Result<(ObjectCache, Result<String, LeftOut>), Error> {
        let mut read: Vec<(String, CachedObject)> = Vec::new();
        let mut receive = |page: Option<Vec<Json>>| match page {
            Some(page) => read.extend(page.into_iter().map(|object| {
                let key = object_key(&object);
                let mut cached = CachedObject::from_json(resource, object);
                share(&mut cached);
                (key, cached)
            })),
            None => read.clear(),
        };
        match self.list_pages(resource, resource.fields().as_deref(), &mut receive).await {
            // A map collected at once takes half the memory of a map that grew in order.
            Ok(version) => Ok((read.into_iter().collect(), Ok(version))),
            Err(Error::Api(status)) if is_left_out(resource, status.code) => {
                if status.code == 404 {
                    return Ok((ObjectCache::new(), Err(LeftOut::NotServed)));
                }
                let reason = status.message.clone();
                // The readers of pools and devices report it where they are needed.
                if resource.path == EXPANDER_PRIORITIES.path {
                    tracing::warn!(reason, "{PRIORITIES_DENIED}");
                }
                Ok((ObjectCache::new(), Err(LeftOut::Forbidden(reason))))
            }
            Err(error) => Err(error),
        }
    }
}

/// Combines the cached pods and the caches of other [`RESOURCES`], by path, without those left out.
/// `left_out` has the reasons for these.
pub(super) fn assemble(
    pods: &mut ObjectCache,
    others: &BTreeMap<&str, &ObjectCache>,
    left_out: &BTreeMap<&str, LeftOut>,
) -> ClusterObjects {
    let mut read = ClusterAssembly::default();
    let lists_priorities = others.contains_key(EXPANDER_PRIORITIES.path);
    read.objects.scaling.expander_priorities = lists_priorities.then(BTreeMap::new);
    let mut storage: Vec<&Json> = Vec::new();
    for resource in RESOURCES {
        for (key, cached) in others.get(resource.path).copied().into_iter().flatten() {
            match &cached.unread {
                Some(unread) if matches!(cached.content, ObjectContent::Node(_)) => {
                    read.add_unread_node(key, unread);
                }
                Some(unread) => read.add_unread(resource, key, &unread.summary()),
                None => {}
            }
            read.objects.jobs.extend(cached.job.as_deref().cloned());
            match &cached.content {
                ObjectContent::OwnerLink(link) => {
                    read.owners.insert(&link.id, &link.owner);
                }
                ObjectContent::Workload(live, template) => {
                    read.add_template(live.template.as_deref().unwrap_or_default(), template);
                    read.objects.workloads.push((**live).clone());
                }
                ObjectContent::Node(node) => read.objects.nodes.push((**node).clone()),
                ObjectContent::Raw(object) => match resource.path {
                    path if path == HORIZONTAL.path => read.add_horizontal(object),
                    path if path == VERTICAL.path => read.add_vertical(object),
                    path if path == EXPANDER_PRIORITIES.path => read.add_priorities(object),
                    path if path == ATTACHMENTS.path => read.add_attachment(object),
                    path if path == CSI_NODES.path => read.add_limits(key, object),
                    path if path == RESOURCE_SLICES.path => read.add_slice(key, object),
                    path if path == QUEUED.path => read.add_queued(key, object),
                    path if path == FLAVORS.path => read.queues.add_flavor(key, object),
                    path if path == CHECKS.path => read.queues.add_check(key, object),
                    _ => storage.push(object),
                },
                ObjectContent::Pod(_) | ObjectContent::Ignored => {}
            }
        }
    }
    for (key, cached) in pods {
        read.add_pod(key, cached);
    }
    read.add_devices(left_out.get(RESOURCE_SLICES.path));
    if others.contains_key(QUEUED.path) {
        read.add_queues();
    } else if let Some(why) = left_out.get(QUEUED.path) {
        read.add_unread_queues(why);
    }
    read.add_storage(&storage);
    read.find_nodes_of_unread_objects();
    read.objects
}

#[derive(Default)]
struct ClusterAssembly<'s> {
    objects: ClusterObjects,
    /// Owners of intermediate owners: of Deployments' `ReplicaSet`s, and of `CronJob`s' Jobs.
    owners: BTreeMap<&'s WorkloadId, &'s WorkloadId>,
    /// Devices that drivers publish.
    slices: SlicePools,
    /// Slices that cannot be parsed, and name no node.
    unread_slices: Vec<String>,
    /// Objects of Kueue.
    queues: Queues,
}

impl ClusterAssembly<'_> {
    fn add_template(&mut self, key: &str, template: &Arc<PodTemplate>) {
        if !self.objects.templates.contains_key(key) {
            self.objects.templates.insert(key.to_owned(), Arc::clone(template));
        }
    }

    /// Adds an object that could not be parsed. An object without a namespace makes the list
    /// incomplete, because it may concern every node.
    fn add_unread(&mut self, resource: ApiResource, key: &str, reason: &str) {
        let object = format!("{} {}", resource.kind, key.trim_start_matches('/'));
        let reason = reason.strip_prefix(&format!("{object}: ")).unwrap_or(reason);
        if key.starts_with('/') {
            self.objects.unread.push(format!("{object}: {reason}"));
            return;
        }
        let (reason, nodes) = (reason.to_owned(), BTreeSet::new());
        let unread = UnreadObject { object, reason, nodes, hides_requests: false };
        self.objects.unread_objects.push(unread);
    }

    /// Adds a node with parts that could not be parsed. It stays, and no pods are planned for it.
    fn add_unread_node(&mut self, key: &str, unread: &UnreadParts) {
        self.objects.unread_objects.push(UnreadObject {
            object: format!("Node {}", key.trim_start_matches('/')),
            reason: unread.summary(),
            nodes: unread.node.iter().cloned().collect(),
            hides_requests: true,
        });
    }

    /// Adds the nodes with pods of its namespace to each unread object that is not a pod. It may
    /// change the number or the size of these pods.
    fn find_nodes_of_unread_objects(&mut self) {
        let ClusterObjects { pods, unread_objects, .. } = &mut self.objects;
        for unread in unread_objects.iter_mut().filter(|unread| !unread.hides_requests) {
            let name = unread.object.split_once(' ').map_or("", |(_, name)| name);
            let namespace = name.split_once('/').map_or("", |(namespace, _)| namespace);
            let here = pods.iter().filter(|pod| pod.namespace.as_str() == namespace);
            unread.nodes.extend(here.filter_map(|pod| pod.node.clone()));
        }
    }

    /// Adds a pod with its top-level owner. An owner of an unknown kind ends the chain. A pod with an
    /// unread part keeps its place; without a node, no node is planned for it.
    fn add_pod(&mut self, key: &str, cached: &mut CachedObject) {
        if let Some(unread) = &cached.unread {
            self.objects.unread_objects.push(UnreadObject {
                object: format!("Pod {key}"),
                reason: unread.summary(),
                nodes: unread.node.iter().cloned().collect(),
                hides_requests: true,
            });
            if unread.node.is_none() {
                return;
            }
        }
        let ObjectContent::Pod(CachedPod { pod, template, owner }) = &mut cached.content else {
            return;
        };
        self.add_template(&pod.template, template);
        let top = owner.as_ref().map(|owner| self.owners.get(owner).copied().unwrap_or(owner));
        if pod.owner.as_ref() != top {
            // Earlier observations keep their copy.
            Arc::make_mut(pod).owner = top.cloned();
        }
        self.objects.pods.push(Arc::clone(pod));
    }

    fn add_horizontal(&mut self, object: &Json) {
        match autoscalers::parse_horizontal(object) {
            Ok(found) => self.objects.scaling.horizontal.extend(found),
            Err(why) => self.add_unread(HORIZONTAL, &object_key(object), &why),
        }
    }

    fn add_vertical(&mut self, object: &Json) {
        match autoscalers::parse_vertical(object) {
            Ok(found) => self.objects.scaling.vertical.extend(found),
            Err(why) => self.add_unread(VERTICAL, &object_key(object), &why),
        }
    }

    fn add_priorities(&mut self, object: &Json) {
        let found = read_live_objects([object]).expander_priorities;
        self.objects.scaling.expander_priorities.get_or_insert_default().extend(found);
    }

    fn add_attachment(&mut self, object: &Json) {
        // An attachment with an inline volume belongs to no claim.
        if let Some((node, volume)) = node::parse_attachment(object) {
            self.objects.storage.attached.entry(node).or_default().insert(volume);
        }
    }

    fn add_limits(&mut self, key: &str, object: &Json) {
        match node::parse_attach_limits(object) {
            Ok((name, limits)) => {
                self.objects.storage.attach_limits.insert(name, limits);
            }
            Err(reason) => {
                let name = key.trim_start_matches('/');
                self.objects.unread_objects.push(UnreadObject {
                    object: format!("{} {name}", CSI_NODES.kind),
                    reason,
                    nodes: [name.into()].into(),
                    hides_requests: true,
                });
            }
        }
    }

    fn add_queued(&mut self, key: &str, object: &Json) {
        if let Err(why) = self.queues.add_workload(object) {
            self.add_unread(QUEUED, key, &why);
        }
    }

    /// Adds the Workloads of Kueue, each with the top-level owner of its pods.
    fn add_queues(&mut self) {
        let (mut queued, unread) = self.queues.queued();
        for found in &mut queued {
            let top = found.owner.as_ref().and_then(|owner| self.owners.get(owner).copied());
            if let Some(top) = top {
                found.owner = Some(top.clone());
            }
        }
        for workload in unread {
            self.add_unread(QUEUED, &workload.key, &workload.reason);
        }
        self.objects.scaling.queued = Some(queued);
    }

    /// Makes the list incomplete if a pod waits for Kueue, and its Workloads were not listed: whether
    /// the pod may start is not known.
    fn add_unread_queues(&mut self, left_out: &LeftOut) {
        let mut templates = self.objects.templates.values();
        let is_of_kueue = |gate: &String| gate.starts_with("kueue.x-k8s.io/");
        if !templates.any(|template| template.spec.scheduling_gates.iter().any(is_of_kueue)) {
            return;
        }
        let why = match left_out {
            LeftOut::NotServed => {
                "no known version of Kueue is served; pods wait for it, so update Kueue".to_owned()
            }
            LeftOut::Forbidden(reason) => {
                format!("{reason}; pods wait for Kueue, so apply deploy/kubernetes/rbac.yaml")
            }
        };
        self.objects.unread.push(format!("{}: {why}", QUEUED.path));
    }

    /// Adds published devices. A slice that cannot be parsed concerns its node, or every node.
    fn add_slice(&mut self, key: &str, object: &Json) {
        let Err((reason, node)) = self.slices.add(object) else { return };
        let object = format!("{} {}", RESOURCE_SLICES.kind, key.trim_start_matches('/'));
        let Some(node) = node else {
            self.unread_slices.push(format!("{object}: {reason}"));
            return;
        };
        let nodes = [node].into();
        let unread = UnreadObject { object, reason, nodes, hides_requests: true };
        self.objects.unread_objects.push(unread);
    }

    /// Adds the published devices to the nodes. If a pod claims devices, and they may not be listed
    /// or cannot be parsed, the list is incomplete: nodes may have devices that are not known.
    fn add_devices(&mut self, left_out: Option<&LeftOut>) {
        self.slices.add_to(&mut self.objects.nodes);
        let mut templates = self.objects.templates.values();
        if !templates.any(|template| !template.spec.resource_claims.is_empty()) {
            return;
        }
        self.objects.unread.append(&mut self.unread_slices);
        if let Some(LeftOut::Forbidden(reason)) = left_out {
            let unread = format!(
                "{}: {reason}; pods claim devices, so apply deploy/kubernetes/rbac.yaml",
                RESOURCE_SLICES.path
            );
            self.objects.unread.push(unread);
        }
    }

    /// Adds storage classes, volumes and claims.
    fn add_storage(&mut self, objects: &[&Json]) {
        let read = read_live_objects(objects.iter().copied());
        let mut unread: BTreeMap<&str, &str> = BTreeMap::new();
        for problem in &read.problems {
            unread.entry(&problem.object).or_insert(&problem.message);
        }
        let storage: &mut Storage = &mut self.objects.storage;
        (storage.classes, storage.volumes) = (read.storage_classes, read.volumes);
        for ((namespace, name), declared) in read.claims {
            storage.claims.entry(namespace).or_default().insert(name, declared.claim);
        }
        for object in objects {
            let (Some(meta), Some(kind)) = (parse_metadata(object), object.get("kind")) else {
                continue;
            };
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
        for (object, reason) in unread {
            self.add_unread_storage(object, reason);
        }
    }

    /// Adds a claim, volume or class that could not be parsed, and removes it: pods with its claims
    /// fit nowhere. It concerns the nodes with pods of the namespaces of these claims.
    fn add_unread_storage(&mut self, object: &str, reason: &str) {
        let (kind, name) = object.split_once(' ').unwrap_or((object, ""));
        if let (Some((namespace, claim)), true) = (name.split_once('/'), kind == CLAIMS.kind) {
            let claims = self.objects.storage.claims.get_mut(namespace);
            claims.and_then(|claims| claims.remove(claim));
            self.add_unread(CLAIMS, name, reason);
            return;
        }
        let storage = &mut self.objects.storage;
        let is_volume = kind == VOLUMES.kind;
        let volume = if is_volume { storage.volumes.remove(name) } else { None };
        if !is_volume {
            storage.classes.remove(name);
        }
        let reserved = volume.and_then(|volume| volume.claim);
        let mut namespaces: BTreeSet<&str> = BTreeSet::new();
        namespaces.extend(reserved.iter().filter_map(|claim| Some(claim.split_once('/')?.0)));
        for (namespace, claims) in &storage.claims {
            let uses = |claim: &Claim| {
                if is_volume {
                    claim.volume_name.as_deref() == Some(name)
                } else {
                    claim.storage_class.as_deref().is_none_or(|class| class == name)
                }
            };
            namespaces.extend(claims.values().any(uses).then_some(namespace.as_str()));
        }
        let pods = self.objects.pods.iter();
        let concerned = pods.filter(|pod| namespaces.contains(pod.namespace.as_str()));
        let nodes = concerned.filter_map(|pod| pod.node.clone()).collect();
        let (object, reason) = (object.to_owned(), reason.to_owned());
        let unread = UnreadObject { object, reason, nodes, hides_requests: false };
        self.objects.unread_objects.push(unread);
    }
}

#[cfg(test)]
mod tests;
