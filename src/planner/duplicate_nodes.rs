//! Duplicate nodes: stale Node objects of instances that registered again under another name.

use std::collections::BTreeSet;

use crate::model::code::Code;
use crate::model::ids::NodeName;
use crate::model::observed::{Node, Observed, Pod};
use crate::model::plural::count;
use crate::plan::wire::Diagnostic;

/// Returns the observation without duplicate nodes; `None` if there are none.
pub(super) fn removed_from(observed: &Observed) -> Option<Observed> {
    let duplicates: BTreeSet<NodeName> = observed.stale_nodes().into_keys().cloned().collect();
    if duplicates.is_empty() {
        return None;
    }
    let mut world = observed.clone();
    world.nodes.retain(|name, _| !duplicates.contains(name));
    Some(world)
}

/// Returns a warning for each duplicate node.
pub(super) fn warnings(observed: &Observed) -> Vec<Diagnostic> {
    let duplicates = observed.stale_nodes().into_iter();
    duplicates.map(|(name, current)| warning(observed, name, current)).collect()
}

fn warning(observed: &Observed, name: &NodeName, current: &Node) -> Diagnostic {
    let instance = current.instance.as_ref().map(ToString::to_string).unwrap_or_default();
    let is_on_node = |pod: &Pod| pod.node.as_ref() == Some(name) && pod.needs_eviction();
    let pods = observed.pods.iter().filter(|pod| is_on_node(pod));
    let pods = count(pods.count(), "pod");
    Diagnostic::warning(
        format!("node {name}"),
        format!(
            "it is ignored, with {pods} on it planned again: its instance {instance} is registered \
             as node {}",
            current.name
        ),
    )
    .hint(format!("`kubectl delete node {name}` removes it and what is bound to it"))
    .code(Code::DuplicateNode)
}
