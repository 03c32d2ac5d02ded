//! The cached part of an object: only what the planner needs, because a cluster has many objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::cluster_pools::{is_pool_resource, stable_part};
use super::far_times::clamp_times;
use super::list::ApiResource;
use super::node::parse_node;
use super::owner_references::{controller_owner, parse_metadata};
use super::pod::{has_chosen_node, parse_pod};
use super::queued_workloads::{is_queue_resource, without_templates};
use crate::manifest::{read_job_retries, read_live_objects};
use crate::model::desired::Scale;
use crate::model::ids::{LabelKey, LabelValue, NodeName, TextInterner, WorkloadId, WorkloadKind};
use crate::model::observed::{JobProgress, LiveJob, LiveWorkload, Node, Pod, template_key};
use crate::model::pod::PodTemplate;

/// Metadata that matters only to its author.
const DROPPED_METADATA: [&str; 2] = ["managedFields", "annotations"];

/// A parsed object.
#[derive(Debug)]
pub(super) struct CachedObject {
    pub(super) content: ObjectContent,
    /// Parts that could not be parsed, if there are any.
    pub(super) unread: Option<Box<UnreadParts>>,
    /// Failures of a Job that has not ended.
    pub(super) job: Option<Box<LiveJob>>,
}

/// Parts of an object that could not be parsed.
#[derive(Debug)]
pub(super) struct UnreadParts {
    /// Errors; never empty.
    pub(super) reasons: Vec<String>,
    /// Node of a bound pod, or the node itself.
    pub(super) node: Option<NodeName>,
}

/// A parsed pod.
#[derive(Debug)]
pub(super) struct CachedPod {
    /// The pod, shared with the observations that contain it.
    pub(super) pod: Arc<Pod>,
    pub(super) template: Arc<PodTemplate>,
    /// The direct owner.
    pub(super) owner: Option<WorkloadId>,
}

/// An object with its owner.
#[derive(Debug)]
pub(super) struct OwnerLink {
    pub(super) id: WorkloadId,
    pub(super) owner: WorkloadId,
}

/// The relevant content of an object.
#[derive(Debug)]
pub(super) enum ObjectContent {
    Pod(CachedPod),
    /// An intermediate owner of pods, such as a `ReplicaSet` of a Deployment.
    OwnerLink(Box<OwnerLink>),
    /// A top-level workload and its template.
    Workload(Box<LiveWorkload>, Arc<PodTemplate>),
    Node(Box<Node>),
    /// An object that is parsed together with others.
    Raw(Json),
    /// An irrelevant or unparsable object.
    Ignored,
}

impl UnreadParts {
    /// Returns the first error and the number of others. An object may have any number of them.
    pub(super) fn summary(&self) -> String {
        match &self.reasons[..] {
            [] => String::new(),
            [only] => only.clone(),
            [first, others @ ..] => format!("{first}, and {} more", others.len()),
        }
    }
}

impl CachedObject {
    /// Returns the content of an object that is understood in full.
    ///
    /// # Errors
    /// Returns the reason if a part could not be parsed. A drain must not act on the rest: the
    /// unknown part may forbid it.
    pub(super) fn into_content(self) -> Result<ObjectContent, String> {
        self.unread.map_or(Ok(self.content), |unread| Err(unread.summary()))
    }

    /// Parses an object of a resource type.
    pub(super) fn from_json(resource: ApiResource, mut object: Json) -> Self {
        clamp_times(&mut object);
        match resource.kind {
            "Pod" => Self::from_pod(&object),
            "ReplicaSet" => Self::from_owner(WorkloadKind::ReplicaSet, &object),
            "Job" => {
                let job = live_job(&object).map(Box::new);
                Self { job, ..Self::from_owner(WorkloadKind::Job, &object) }
            }
            "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicationController" | "CronJob" => {
                Self::from_workload(&object)
            }
            "Node" => match parse_node(&object) {
                Ok((node, reasons)) => {
                    let name = Some(node.name.clone());
                    Self::unread(ObjectContent::Node(Box::new(node)), reasons, name)
                }
                Err(why) => Self::unread(ObjectContent::Ignored, vec![why], None),
            },
            _ if is_pool_resource(resource) => {
                Self::readable(ObjectContent::Raw(stable_part(object)))
            }
            _ if is_queue_resource(resource) => {
                let object = strip_metadata(resource, object);
                Self::readable(ObjectContent::Raw(without_templates(object)))
            }
            _ => Self::readable(ObjectContent::Raw(strip_metadata(resource, object))),
        }
    }

    fn readable(content: ObjectContent) -> Self {
        Self { content, unread: None, job: None }
    }

    fn unread(content: ObjectContent, reasons: Vec<String>, node: Option<NodeName>) -> Self {
        let is_unread = !reasons.is_empty();
        let unread = is_unread.then(|| Box::new(UnreadParts { reasons, node }));
        Self { content, unread, job: None }
    }

    fn from_pod(object: &Json) -> Self {
        let mut read = read_live_objects([object]);
        let problems = read.problems.iter();
        let mut unread: Vec<String> = problems.map(|p| p.message.clone()).collect();
        let node = object.pointer("/spec/nodeName").and_then(Json::as_str).map(NodeName::from);
        let template = read.workloads.pop_first().map(|(_, found)| found.template);
        // A bound pod keeps its place, although its requests are unknown.
        let template = template.or_else(|| node.is_some().then(Arc::<PodTemplate>::default));
        let (Some(meta), Some(mut template)) = (parse_metadata(object), template) else {
            // A missing template was reported as unread.
            return Self::unread(ObjectContent::Ignored, unread, node);
        };
        let owner = controller_owner(&meta);
        strip_binding(&mut template, owner.as_ref(), has_chosen_node(&meta));
        let content = match parse_pod(object, template_key(&template), &template) {
            Ok((pod, reasons)) => {
                unread.extend(reasons);
                ObjectContent::Pod(CachedPod { pod: Arc::new(pod), template, owner })
            }
            Err(why) => {
                unread.push(why);
                ObjectContent::Ignored
            }
        };
        Self::unread(content, unread, node)
    }

    /// Parses an object that may be owned by a workload.
    fn from_owner(kind: WorkloadKind, object: &Json) -> Self {
        let meta = parse_metadata(object);
        let owner = meta.as_ref().and_then(controller_owner);
        let named = meta.and_then(|meta| Some((meta.namespace?, meta.name?)));
        let (Some(owner), Some((namespace, name))) = (owner, named) else {
            return Self::from_workload(object);
        };
        let (namespace, name) = (namespace.as_str().into(), name.as_str().into());
        let id = WorkloadId { namespace, name, kind };
        Self::readable(ObjectContent::OwnerLink(Box::new(OwnerLink { id, owner })))
    }

    fn from_workload(object: &Json) -> Self {
        let mut read = read_live_objects([object]);
        let problems = read.problems.iter();
        let unread = problems.map(|p| p.message.clone()).collect();
        let Some((id, workload)) = read.workloads.pop_first() else {
            return Self::unread(ObjectContent::Ignored, unread, None);
        };
        let replicas = match workload.scale {
            Scale::Replicas(n) => n,
            Scale::Job { pods, suspended: false, .. } => pods,
            Scale::Job { suspended: true, .. }
            | Scale::PerNode
            | Scale::CronJob { .. }
            | Scale::ScaledJob(_)
            | Scale::Buffer(_) => 0,
        };
        // The cluster does not reliably reveal which repository delivers a workload. The comparison
        // with the plan does.
        let delivered = false;
        let template = Some(template_key(&workload.template));
        let first_ordinal = workload.first_ordinal;
        let job = (id.kind == WorkloadKind::Job).then(|| job_progress(object)).flatten();
        let live = LiveWorkload { id, replicas, first_ordinal, delivered, template, job };
        let content = ObjectContent::Workload(Box::new(live), workload.template);
        Self::unread(content, unread, None)
    }
}

/// Returns the progress of a Job; `None` before it starts. An unreadable part counts as no progress,
/// so that the Job keeps its capacity.
fn job_progress(object: &Json) -> Option<JobProgress> {
    let status = object.get("status")?;
    let succeeded = status.get("succeeded").and_then(Json::as_u64).unwrap_or(0);
    let mut conditions = status.get("conditions").and_then(Json::as_array).into_iter().flatten();
    let ended = conditions.any(|condition| {
        let text = |key: &str| condition.get(key).and_then(Json::as_str);
        matches!(text("type"), Some("Complete" | "Failed")) && text("status") == Some("True")
    });
    Some(JobProgress { succeeded: u32::try_from(succeeded).unwrap_or(u32::MAX), ended })
}

/// Returns the failures of a Job that has not ended, and those that it survives. The status first
/// lists a failed pod by its UID, and counts it once the pod may be deleted.
fn live_job(object: &Json) -> Option<LiveJob> {
    let meta = parse_metadata(object)?;
    let (namespace, name) = (meta.namespace?.as_str().into(), meta.name?.as_str().into());
    let id = WorkloadId { namespace, name, kind: WorkloadKind::Job };
    if job_progress(object).is_some_and(|job| job.ended) {
        return None;
    }
    let counted = match object.pointer("/status/failed") {
        None | Some(Json::Null) => 0,
        // An unreadable count must not allow an eviction.
        Some(count) => count.as_u64().unwrap_or(u64::MAX),
    };
    let listed = object.pointer("/status/uncountedTerminatedPods/failed").and_then(Json::as_array);
    let listed = listed.map_or(0, |pods| u64::try_from(pods.len()).unwrap_or(u64::MAX));
    let failed = u32::try_from(counted.saturating_add(listed)).unwrap_or(u32::MAX);
    Some(LiveJob { id, retries: read_job_retries(object)?, failed })
}

/// Shared values of many objects. A cluster has about a hundred times as many pods as templates.
#[derive(Debug, Default)]
pub(super) struct Interner {
    templates: BTreeMap<String, Arc<PodTemplate>>,
    texts: TextInterner,
}

impl Interner {
    /// Replaces the values of a newly parsed object with shared ones.
    pub(super) fn intern(&mut self, cached: &mut CachedObject) {
        match &mut cached.content {
            ObjectContent::Pod(CachedPod { pod, template, owner }) => {
                self.intern_template(&pod.template, template);
                let texts = &mut self.texts;
                if let Some(pod) = Arc::get_mut(pod) {
                    pod.namespace.share(texts);
                    texts.share(&mut pod.template);
                    pod.node.iter_mut().for_each(|node| node.share(texts));
                    if let Some(owner) = owner {
                        owner.namespace.share(texts);
                        texts.share(&mut owner.name);
                    }
                    pod.owner.clone_from(owner);
                }
            }
            ObjectContent::Workload(live, template) => {
                if let Some(key) = &live.template {
                    self.intern_template(key, template);
                }
            }
            ObjectContent::Node(node) => {
                let labels = std::mem::take(&mut node.labels).into_iter();
                let texts = &mut self.texts;
                let share = |(mut key, mut value): (LabelKey, LabelValue)| {
                    key.share(texts);
                    value.share(texts);
                    (key, value)
                };
                node.labels = labels.map(share).collect();
            }
            ObjectContent::OwnerLink(_) | ObjectContent::Raw(_) | ObjectContent::Ignored => {}
        }
    }

    fn intern_template(&mut self, key: &str, template: &mut Arc<PodTemplate>) {
        match self.templates.get(key) {
            Some(known) => *template = Arc::clone(known),
            None => drop(self.templates.insert(key.to_owned(), Arc::clone(template))),
        }
    }

    /// Drops values that no object uses anymore.
    pub(super) fn drop_unused(&mut self) {
        self.templates.retain(|_, template| Arc::strong_count(template) > 1);
        self.texts.drop_unused();
    }
}

/// Removes large irrelevant metadata. Annotations of claims and autoscalers are kept.
fn strip_metadata(resource: ApiResource, mut object: Json) -> Json {
    let has_irrelevant_annotations =
        matches!(resource.kind, "CSINode" | "VolumeAttachment" | "ResourceSlice" | "Workload");
    if let Some(Json::Object(meta)) = object.get_mut("metadata") {
        for part in DROPPED_METADATA.iter().take(if has_irrelevant_annotations { 2 } else { 1 }) {
            meta.remove(*part);
        }
    }
    object
}

/// Removes fields that a scheduler or controller set for one pod: its bound node, and the node for
/// which a `DaemonSet` created it.
fn strip_binding(template: &mut Arc<PodTemplate>, owner: Option<&WorkloadId>, chosen: bool) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::cluster_objects::JOBS;
    use super::*;

    #[test]
    fn job_status_states_its_progress() {
        let progress = |status: Json| {
            let object = json!({
                "apiVersion": "batch/v1", "kind": "Job",
                "metadata": { "name": "a", "namespace": "web" },
                "spec": { "template": { "spec": {
                    "restartPolicy": "Never", "containers": [{ "name": "main", "image": "main" }]
                } } },
                "status": status
            });
            let content = CachedObject::from_json(JOBS, object).content;
            let ObjectContent::Workload(live, _) = content else { panic!("{content:?}") };
            live.job
        };
        let condition = |kind: &str, status: &str| json!([{ "type": kind, "status": status }]);
        for (status, succeeded, ended) in [
            (json!({}), 0, false),
            (json!({ "active": 1, "succeeded": 2 }), 2, false),
            (json!({ "succeeded": 3, "conditions": condition("Complete", "True") }), 3, true),
            (json!({ "failed": 1, "conditions": condition("Failed", "True") }), 0, true),
            (json!({ "conditions": condition("Failed", "False") }), 0, false),
            (json!({ "conditions": condition("Suspended", "True") }), 0, false),
        ] {
            let expected = Some(JobProgress { succeeded, ended });
            assert_eq!(progress(status.clone()), expected, "{status}");
        }
    }

    #[test]
    fn failures_of_a_job_count_until_it_ends() {
        let owners = json!([{
            "apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "u",
            "controller": true
        }]);
        for (status, expected) in [
            (json!({}), Some(0)),
            (json!({ "failed": 3 }), Some(3)),
            (json!({ "failed": 3, "uncountedTerminatedPods": { "failed": ["a", "b"] } }), Some(5)),
            (json!({ "failed": "many" }), Some(u32::MAX)),
            (json!({ "failed": 7, "conditions": [{ "type": "Failed", "status": "True" }] }), None),
        ] {
            for owners in [json!(null), owners.clone()] {
                let object = json!({
                    "apiVersion": "batch/v1", "kind": "Job",
                    "metadata": { "name": "a", "namespace": "web", "ownerReferences": owners },
                    "spec": { "backoffLimit": 4, "template": { "spec": {
                        "restartPolicy": "Never", "containers": [{ "name": "main", "image": "main" }]
                    } } },
                    "status": status
                });
                let job = CachedObject::from_json(JOBS, object).job;
                let failed = job.as_ref().map(|job| job.failed);
                assert_eq!(failed, expected, "{status} {owners}");
                let limits = job.iter().map(|job| job.retries.backoff_limit);
                assert!(limits.eq(expected.map(|_| 4_u32)), "{status}");
            }
        }
    }
}
