//! Everything the planner needs of a cluster, read in one go.
//!
//! Pods are read first, then what owns them, then nodes: whatever a pod names was there when the pod
//! was, so that it is found unless it is gone by now.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::kube::Error;
use serde_json::Value as Json;

use super::client::Kubernetes;
use super::list::Sort;
use super::node;
use super::piece::{Common, Piece, Seen, SeenPod};
use super::port_error;
use super::scaling;
use super::workload::meta_of;
use crate::ids::{NodeName, WorkloadId};
use crate::manifest::read_live;
use crate::pod::PodTemplate;
use crate::port::{ClusterObjects, Fate, NodeNow, PortError};
use crate::storage::{ClaimPhase, Storage};

const fn sort(api_version: &'static str, kind: &'static str, path: &'static str) -> Sort {
    Sort { api_version, kind, path }
}

pub(super) const PODS: Sort = sort("v1", "Pod", "/api/v1/pods");
const NODES: Sort = sort("v1", "Node", "/api/v1/nodes");
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

/// Every sort, in the order in which they are listed.
pub(super) const SORTS: [Sort; 16] = [
    PODS,
    sort("apps/v1", "ReplicaSet", "/apis/apps/v1/replicasets"),
    sort("batch/v1", "Job", "/apis/batch/v1/jobs"),
    sort("apps/v1", "Deployment", "/apis/apps/v1/deployments"),
    sort("apps/v1", "StatefulSet", "/apis/apps/v1/statefulsets"),
    sort("apps/v1", "DaemonSet", "/apis/apps/v1/daemonsets"),
    sort("v1", "ReplicationController", "/api/v1/replicationcontrollers"),
    sort("batch/v1", "CronJob", "/apis/batch/v1/cronjobs"),
    STORAGE_CLASSES,
    VOLUMES,
    CLAIMS,
    HORIZONTAL,
    VERTICAL,
    ATTACHMENTS,
    CSI_NODES,
    NODES,
];

/// Annotation of a claim that is bound on both sides.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// Objects of one sort, by namespace and name.
pub(super) type Shelf = BTreeMap<String, Seen>;

/// Returns the place of an object on its shelf.
pub(super) fn place(object: &Json) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Json::as_str).unwrap_or_default();
    format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"))
}

/// Returns whether a cluster may not serve a sort at all.
pub(super) fn may_be_absent(sort: Sort) -> bool {
    sort.path == VERTICAL.path
}

impl Kubernetes {
    /// Reads nodes, pods, workloads and storage.
    ///
    /// # Errors
    /// When any list cannot be read to its end. An object that cannot be understood is named in
    /// [`ClusterObjects::unread`].
    pub(super) async fn read_objects(&self) -> Result<ClusterObjects, Error> {
        let mut common = Common::default();
        let mut share = |seen: &mut Seen| common.share(seen);
        let mut pods = self.shelf(PODS, &mut share).await?.0;
        let mut others = Vec::new();
        for sort in SORTS.into_iter().skip(1) {
            others.push(self.shelf(sort, &mut share).await?.0);
        }
        Ok(assemble(&mut pods, &others))
    }

    /// Reads a node, and then what is on it: of a node that is cordoned nothing that comes later is missing.
    ///
    /// # Errors
    /// When one of them cannot be read, or not be understood.
    pub(super) async fn read_node(&self, name: &NodeName) -> Result<NodeNow, PortError> {
        let nodes = self.pieces(NODES, &format!("metadata.name={name}")).await?;
        let pods = self.pieces(PODS, &format!("spec.nodeName={name}")).await?;
        let node = nodes.into_iter().find_map(|piece| {
            let Piece::Node(node) = piece else { return None };
            Some(*node)
        });
        let pods = pods.into_iter().filter_map(|piece| {
            let Piece::Pod(SeenPod { mut pod, names, .. }) = piece else { return None };
            Arc::make_mut(&mut pod).owner = names;
            Some(pod)
        });
        Ok(NodeNow { node, pods: pods.collect() })
    }

    /// Reads the objects of a sort that a selector of `fields` lets through.
    async fn pieces(&self, sort: Sort, fields: &str) -> Result<Vec<Piece>, PortError> {
        const VERB: &str = "read node";
        let mut read: Vec<Seen> = Vec::new();
        let mut take = |page: Option<Vec<Json>>| match page {
            Some(page) => read.extend(page.into_iter().map(|object| Seen::of(sort, object))),
            None => read.clear(),
        };
        let end = self.each(sort, Some(fields), &mut take).await;
        end.map_err(|error| port_error(VERB, &error))?;
        if let Some(why) = read.iter().find_map(|seen| seen.unread.first()) {
            let (verb, reason) = (VERB.to_owned(), why.clone());
            return Err(PortError { verb, reason, fate: Fate::TurnedAway });
        }
        Ok(read.into_iter().map(|seen| seen.piece).collect())
    }

    /// Reads the objects of a sort, each of which `share` has share what it has in common with others, and the version of
    /// the collection; none where it is not served and need not be.
    pub(super) async fn shelf(
        &self,
        sort: Sort,
        share: &mut (dyn FnMut(&mut Seen) + Send),
    ) -> Result<(Shelf, Option<String>), Error> {
        let mut read: Vec<(String, Seen)> = Vec::new();
        let mut take = |page: Option<Vec<Json>>| match page {
            Some(page) => read.extend(page.into_iter().map(|object| {
                let place = place(&object);
                let mut seen = Seen::of(sort, object);
                share(&mut seen);
                (place, seen)
            })),
            None => read.clear(),
        };
        match self.each(sort, None, &mut take).await {
            // A map that is made of all at once takes half the room of one that grew in order.
            Ok(version) => Ok((read.into_iter().collect(), Some(version))),
            Err(Error::Api(status)) if status.code == 404 && may_be_absent(sort) => {
                Ok((Shelf::new(), None))
            }
            Err(error) => Err(error),
        }
    }
}

/// Puts together what lies on the shelves: of pods, and of the other [`SORTS`] in their order.
pub(super) fn assemble<'s>(
    pods: &mut Shelf,
    others: impl IntoIterator<Item = &'s Shelf>,
) -> ClusterObjects {
    let mut read = Read::default();
    read.into.unread.extend(pods.values().flat_map(|seen| seen.unread.iter().cloned()));
    let mut storage: Vec<&Json> = Vec::new();
    for (sort, shelf) in SORTS.iter().skip(1).zip(others) {
        for seen in shelf.values() {
            read.into.unread.extend(seen.unread.iter().cloned());
            match &seen.piece {
                Piece::Link(link) => {
                    read.above.insert(&link.id, &link.owner);
                }
                Piece::Workload(live, template) => {
                    read.keep(live.template.as_deref().unwrap_or_default(), template);
                    read.into.workloads.push((**live).clone());
                }
                Piece::Node(node) => read.into.nodes.push((**node).clone()),
                Piece::Plain(object) => match sort.path {
                    path if path == HORIZONTAL.path => read.horizontal(object),
                    path if path == VERTICAL.path => read.vertical(object),
                    path if path == ATTACHMENTS.path => read.attachment(object),
                    path if path == CSI_NODES.path => read.limits(object),
                    _ => storage.push(object),
                },
                Piece::Pod(_) | Piece::Nothing => {}
            }
        }
    }
    read.storage(&storage);
    for seen in pods.values_mut() {
        read.pod(seen);
    }
    read.into
}

/// What was put together so far.
#[derive(Default)]
struct Read<'s> {
    into: ClusterObjects,
    /// Owners of what owns pods: `ReplicaSet`s of Deployments, Jobs of `CronJob`s.
    above: BTreeMap<&'s WorkloadId, &'s WorkloadId>,
}

impl Read<'_> {
    /// Keeps a template by its key.
    fn keep(&mut self, key: &str, template: &Arc<PodTemplate>) {
        if !self.into.templates.contains_key(key) {
            self.into.templates.insert(key.to_owned(), Arc::clone(template));
        }
    }

    /// Takes a pod, owned by what is at the top. An owner of a kind that is not known ends the chain: what is below it is
    /// the top.
    fn pod(&mut self, seen: &mut Seen) {
        let Piece::Pod(SeenPod { pod, template, names }) = &mut seen.piece else { return };
        self.keep(&pod.template, template);
        let top = names.as_ref().map(|owner| self.above.get(owner).copied().unwrap_or(owner));
        if pod.owner.as_ref() != top {
            // Worlds that have it already keep what they have.
            Arc::make_mut(pod).owner = top.cloned();
        }
        self.into.pods.push(Arc::clone(pod));
    }

    fn horizontal(&mut self, object: &Json) {
        match scaling::horizontal(object) {
            Ok(found) => self.into.scaling.horizontal.extend(found),
            Err(why) => self.into.unread.push(why),
        }
    }

    fn vertical(&mut self, object: &Json) {
        match scaling::vertical(object) {
            Ok(found) => self.into.scaling.vertical.extend(found),
            Err(why) => self.into.unread.push(why),
        }
    }

    fn attachment(&mut self, object: &Json) {
        // One whose volume is written into it is none of a claim.
        if let Some((node, volume)) = node::attachment(object) {
            self.into.storage.attached.entry(node).or_default().insert(volume);
        }
    }

    fn limits(&mut self, object: &Json) {
        match node::attach_limits(object) {
            Ok((name, limits)) => {
                self.into.storage.attach_limits.insert(name, limits);
            }
            Err(why) => self.into.unread.push(why),
        }
    }

    /// Takes classes, volumes and claims.
    fn storage(&mut self, objects: &[&Json]) {
        let read = read_live(objects.iter().copied());
        let unread = read.problems.iter().map(|p| format!("{}: {}", p.object, p.message));
        self.into.unread.extend(unread);
        let storage: &mut Storage = &mut self.into.storage;
        (storage.classes, storage.volumes) = (read.storage_classes, read.volumes);
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
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fleet::Pod;
    use crate::ids::WorkloadKind;

    fn owned(name: &str, api_version: &str, kind: &str, owner: &str) -> Json {
        json!({
            "metadata": {
                "name": name, "namespace": "web", "uid": name,
                "creationTimestamp": "2026-11-21T09:00:00Z",
                "ownerReferences": [{
                    "apiVersion": api_version, "kind": kind, "name": owner, "uid": "u",
                    "controller": true
                }]
            },
            "spec": { "containers": [{ "name": "main", "image": "main" }] }
        })
    }

    fn shelved(sort: Sort, objects: Vec<Json>) -> Shelf {
        let typed = objects.into_iter().map(|mut object| {
            object["apiVersion"] = sort.api_version.into();
            object["kind"] = sort.kind.into();
            (place(&object), Seen::of(sort, object))
        });
        typed.collect()
    }

    #[test]
    fn the_top_of_the_chain_owns_the_pod() {
        let cases = [
            ("apps/v1", "ReplicaSet", "api-7f", Some((WorkloadKind::Deployment, "api"))),
            ("apps/v1", "ReplicaSet", "other", Some((WorkloadKind::ReplicaSet, "other"))),
            ("apps/v1", "ReplicaSet", "canary-1", Some((WorkloadKind::ReplicaSet, "canary-1"))),
            ("batch/v1", "Job", "sync-1", Some((WorkloadKind::CronJob, "sync"))),
            ("apps/v1", "StatefulSet", "db", Some((WorkloadKind::StatefulSet, "db"))),
            ("v1", "Node", "ip-10-0-0-1", None),
        ];
        let mut others: Vec<Shelf> = SORTS.iter().skip(1).map(|_| Shelf::new()).collect();
        let pod = |(n, case): (usize, &(&str, &str, &str, _))| {
            owned(&format!("pod-{n}"), case.0, case.1, case.2)
        };
        let mut pods = shelved(PODS, cases.iter().enumerate().map(pod).collect());
        let sets = vec![
            owned("api-7f", "apps/v1", "Deployment", "api"),
            owned("canary-1", "argoproj.io/v1", "Rollout", "c"),
        ];
        others[0] = shelved(SORTS[1], sets);
        others[1] = shelved(SORTS[2], vec![owned("sync-1", "batch/v1", "CronJob", "sync")]);
        let objects = assemble(&mut pods, &others);
        assert_eq!(objects.pods.len(), cases.len(), "{:?}", objects.unread);
        for (pod, (_, kind, owner, expected)) in objects.pods.iter().zip(cases) {
            let found = pod.owner.as_ref().map(|id| (id.kind, id.name.to_string()));
            let expected = expected.map(|(kind, name)| (kind, name.to_owned()));
            assert_eq!(found, expected, "{kind} {owner}");
        }
    }

    #[test]
    fn worlds_share_pods_until_something_about_them_changes() {
        let read = |object: Json, common: &mut Common| {
            let mut shelf = shelved(PODS, vec![object]);
            for seen in shelf.values_mut() {
                common.share(seen);
            }
            shelf
        };
        let mut common = Common::default();
        let mut pods = read(owned("a", "apps/v1", "ReplicaSet", "api-7f"), &mut common);
        pods.append(&mut read(owned("b", "apps/v1", "ReplicaSet", "api-7f"), &mut common));
        let sets = |owner| shelved(SORTS[1], vec![owned("api-7f", "apps/v1", "Deployment", owner)]);
        let seen = |pods: &mut Shelf, owner| assemble(pods, &[sets(owner)]).pods;
        let (first, again) = (seen(&mut pods, "api"), seen(&mut pods, "api"));
        assert!(first.iter().zip(&again).all(|(a, b)| Arc::ptr_eq(a, b)));
        let text = |pod: &Arc<Pod>| pod.namespace.as_str().as_ptr();
        assert_eq!(text(&first[0]), text(&first[1]), "one text, although each was read by itself");
        let owner = |pod: &Arc<Pod>| pod.owner.clone().expect("it has one");
        let other = seen(&mut pods, "other");
        assert_eq!((&*owner(&other[0]).name, &*owner(&first[0]).name), ("other", "api"));
    }

    #[test]
    fn what_nobody_has_any_more_is_forgotten() {
        let mut common = Common::default();
        let mut pods = shelved(PODS, vec![owned("a", "apps/v1", "ReplicaSet", "api-7f")]);
        for seen in pods.values_mut() {
            common.share(seen);
        }
        common.forget();
        let held = |common: &Common| format!("{common:?}").contains("api-7f");
        assert!(held(&common));
        drop(pods);
        common.forget();
        assert!(!held(&common), "{common:?}");
    }
}
