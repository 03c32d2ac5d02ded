//! What is kept of one object: no more than the planner needs, since a cluster has many.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::list::Sort;
use super::node::node;
use super::pod::{names_its_node, pod};
use super::workload::{meta_of, owner_of};
use crate::fleet::{LiveWorkload, Node, Pod, template_key};
use crate::ids::{LabelKey, LabelValue, Texts, WorkloadId, WorkloadKind};
use crate::manifest::{Scale, read_live};
use crate::pod::PodTemplate;

/// What of an object only those need who wrote it.
const BALLAST: [&str; 2] = ["managedFields", "annotations"];

/// An object as it was read.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) piece: Piece,
    /// What of it could not be understood.
    pub(super) unread: Box<[String]>,
}

/// A pod as it was read.
#[derive(Debug)]
pub(super) struct SeenPod {
    /// The pod: the same that worlds hold, which were put together of what was read.
    pub(super) pod: Arc<Pod>,
    pub(super) template: Arc<PodTemplate>,
    /// The owner that it names itself.
    pub(super) names: Option<WorkloadId>,
}

/// What is owned, and by what.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: WorkloadId,
    pub(super) owner: WorkloadId,
}

/// What of an object counts.
#[derive(Debug)]
pub(super) enum Piece {
    /// A pod.
    Pod(SeenPod),
    /// Something that owns pods and is owned itself: the owner counts.
    Link(Box<Link>),
    /// A workload that nothing else owns, and its template.
    Workload(Box<LiveWorkload>, Arc<PodTemplate>),
    /// A node.
    Node(Box<Node>),
    /// An object that is read together with others.
    Plain(Json),
    /// One that counts for nothing, or could not be understood.
    Nothing,
}

impl Seen {
    /// Reads an object of a sort.
    pub(super) fn of(sort: Sort, object: Json) -> Self {
        match sort.kind {
            "Pod" => Self::of_pod(&object),
            "ReplicaSet" => Self::of_owner(WorkloadKind::ReplicaSet, &object),
            "Job" => Self::of_owner(WorkloadKind::Job, &object),
            "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicationController" | "CronJob" => {
                Self::of_workload(&object)
            }
            "Node" => match node(&object) {
                Ok(node) => Self::whole(Piece::Node(Box::new(node))),
                Err(why) => Self { piece: Piece::Nothing, unread: [why].into() },
            },
            _ => Self::whole(Piece::Plain(without_ballast(sort, object))),
        }
    }

    fn whole(piece: Piece) -> Self {
        Self { piece, unread: Box::default() }
    }

    fn of_pod(object: &Json) -> Self {
        let mut read = read_live([object]);
        let problems = read.problems.iter();
        let mut unread: Vec<String> =
            problems.map(|p| format!("{}: {}", p.object, p.message)).collect();
        let template = read.workloads.pop_first().map(|(_, found)| found.template);
        let (Some(meta), Some(mut template)) = (meta_of(object), template) else {
            // One that is not there was named as unread.
            return Self { piece: Piece::Nothing, unread: unread.into() };
        };
        let owner = owner_of(&meta);
        without_binding(&mut template, owner.as_ref(), names_its_node(&meta));
        let piece = match pod(object, (template_key(&template), &template)) {
            Ok(pod) => Piece::Pod(SeenPod { pod: Arc::new(pod), template, names: owner }),
            Err(why) => {
                unread.push(why);
                Piece::Nothing
            }
        };
        Self { piece, unread: unread.into() }
    }

    /// Reads something that may be owned by what people write.
    fn of_owner(kind: WorkloadKind, object: &Json) -> Self {
        let meta = meta_of(object);
        let owner = meta.as_ref().and_then(owner_of);
        let named = meta.and_then(|meta| Some((meta.namespace?, meta.name?)));
        let (Some(owner), Some((namespace, name))) = (owner, named) else {
            return Self::of_workload(object);
        };
        let (namespace, name) = (namespace.as_str().into(), name.as_str().into());
        let id = WorkloadId { namespace, name, kind };
        Self::whole(Piece::Link(Box::new(Link { id, owner })))
    }

    fn of_workload(object: &Json) -> Self {
        let mut read = read_live([object]);
        let problems = read.problems.iter();
        let unread = problems.map(|p| format!("{}: {}", p.object, p.message)).collect();
        let Some((id, workload)) = read.workloads.pop_first() else {
            return Self { piece: Piece::Nothing, unread };
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
        // Nothing in a cluster tells reliably which repository delivers a workload; what a plan
        // is compared with does.
        let delivered = false;
        let template = Some(template_key(&workload.template));
        let first_ordinal = workload.first_ordinal;
        let live = LiveWorkload { id, replicas, first_ordinal, delivered, template };
        Self { piece: Piece::Workload(Box::new(live), workload.template), unread }
    }
}

/// What many objects have in common, kept once: a cluster has a hundred times as many pods as templates.
#[derive(Debug, Default)]
pub(super) struct Common {
    templates: BTreeMap<String, Arc<PodTemplate>>,
    texts: Texts,
}

impl Common {
    /// Has an object that was read just now share what it has in common with others.
    pub(super) fn share(&mut self, seen: &mut Seen) {
        match &mut seen.piece {
            Piece::Pod(SeenPod { pod, template, names }) => {
                self.share_template(&pod.template, template);
                let texts = &mut self.texts;
                if let Some(pod) = Arc::get_mut(pod) {
                    pod.namespace.share(texts);
                    pod.node.iter_mut().for_each(|node| node.share(texts));
                    if let Some(owner) = names {
                        owner.namespace.share(texts);
                        texts.share(&mut owner.name);
                    }
                    pod.owner.clone_from(names);
                }
            }
            Piece::Workload(live, template) => {
                if let Some(key) = &live.template {
                    self.share_template(key, template);
                }
            }
            Piece::Node(node) => {
                let labels = std::mem::take(&mut node.labels).into_iter();
                let texts = &mut self.texts;
                let share = |(mut key, mut value): (LabelKey, LabelValue)| {
                    key.share(texts);
                    value.share(texts);
                    (key, value)
                };
                node.labels = labels.map(share).collect();
            }
            Piece::Link(_) | Piece::Plain(_) | Piece::Nothing => {}
        }
    }

    fn share_template(&mut self, key: &str, template: &mut Arc<PodTemplate>) {
        match self.templates.get(key) {
            Some(known) => *template = Arc::clone(known),
            None => drop(self.templates.insert(key.to_owned(), Arc::clone(template))),
        }
    }

    /// Forgets what nobody has any more.
    pub(super) fn forget(&mut self) {
        self.templates.retain(|_, template| Arc::strong_count(template) > 1);
        self.texts.forget();
    }
}

/// Takes out of an object what is large and says nothing here. Annotations of claims and autoscalers
/// count.
fn without_ballast(sort: Sort, mut object: Json) -> Json {
    let says = matches!(sort.kind, "CSINode" | "VolumeAttachment");
    if let Some(Json::Object(meta)) = object.get_mut("metadata") {
        for part in BALLAST.iter().take(if says { 2 } else { 1 }) {
            meta.remove(*part);
        }
    }
    object
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
