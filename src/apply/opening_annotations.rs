//! Annotations that nodes get when they are opened, or later if another client opened them.
//!
//! Invariant: a node gets only the annotations of its launch. A later commit may not be approved,
//! and its annotations make the node drift.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::ids::{PoolName, Uid};
use crate::model::node_annotations::{ANNOTATED, NodeAnnotations, annotations_digest, marked};
use crate::model::observed::{KEY_LABEL, Node, Observed, tag};
use crate::plan::Plan;

/// Annotations that nodes get when they are opened, by the UID of the node.
pub type OpeningAnnotations = BTreeMap<Uid, Arc<NodeAnnotations>>;

/// Returns the annotations of nodes that this plan launched, each with its pool.
pub(super) fn annotations_of_launches<'a>(
    plan: &Plan,
    nodes: impl Iterator<Item = (&'a Node, &'a PoolName)>,
) -> OpeningAnnotations {
    let annotated = nodes.filter_map(|(node, pool)| {
        let annotations = plan.capacity.node_annotations.get(pool)?;
        Some((node.uid.clone(), Arc::new(marked(annotations))))
    });
    annotated.collect()
}

/// Returns the annotations of nodes that any apply launched: those of their pool in the plan, if
/// the instances have the tag with their digest.
pub(crate) fn opening_annotations(
    plan: &Plan,
    world: &Observed,
    nodes: &[Node],
) -> OpeningAnnotations {
    let declared = plan.capacity.node_annotations.iter();
    let declared: BTreeMap<&str, (String, Arc<NodeAnnotations>)> = declared
        .map(|(pool, all)| (pool.as_str(), (annotations_digest(all), Arc::new(marked(all)))))
        .collect();
    let annotated = nodes.iter().filter_map(|node| {
        let tags = &world.instances.get(node.instance.as_ref()?)?.tags;
        let (digest, annotations) = declared.get(tags.get(tag::POOL)?.as_str())?;
        (tags.get(tag::ANNOTATIONS)? == digest).then(|| (node.uid.clone(), Arc::clone(annotations)))
    });
    annotated.collect()
}

/// Returns true for an open node of ours that was launched with annotations and does not have them.
pub(crate) fn is_unannotated(node: &Node, world: &Observed) -> bool {
    let instance = node.instance.as_ref().and_then(|id| world.instances.get(id));
    let is_launched_with_annotations = instance.is_some_and(|instance| {
        instance.is_managed_by(&world.cluster.name) && instance.tags.contains_key(tag::ANNOTATIONS)
    });
    let is_open = node.ready && !node.is_closed() && node.labels.contains_key(KEY_LABEL);
    is_open && is_launched_with_annotations && !node.annotations.contains_key(ANNOTATED)
}
