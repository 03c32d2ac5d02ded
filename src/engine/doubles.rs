//! Nodes that a machine left behind: it runs under another name, and nothing of it is counted twice.

use std::collections::BTreeSet;

use crate::fleet::{Node, Observed, Pod};
use crate::ids::NodeName;
use crate::plan::wire::Diagnostic;

/// Returns the world without them; `None` where there are none.
pub(super) fn without(observed: &Observed) -> Option<Observed> {
    let left: BTreeSet<NodeName> = observed.left_behind().into_keys().cloned().collect();
    if left.is_empty() {
        return None;
    }
    let mut world = observed.clone();
    world.nodes.retain(|name, _| !left.contains(name));
    Some(world)
}

/// Returns a warning for each of them.
pub(super) fn warnings(observed: &Observed) -> Vec<Diagnostic> {
    let left = observed.left_behind().into_iter();
    left.map(|(name, other)| warning(observed, (name, other))).collect()
}

fn warning(observed: &Observed, (name, other): (&NodeName, &Node)) -> Diagnostic {
    let machine = other.instance.as_ref().map(ToString::to_string).unwrap_or_default();
    let on_it = |pod: &Pod| pod.node.as_ref() == Some(name) && pod.has_to_leave();
    let pods = observed.pods.iter().filter(|pod| on_it(pod)).count();
    Diagnostic {
        severity: "warning".to_owned(),
        origin: None,
        object: format!("node {name}"),
        message: format!(
            "it counts for nothing, and its {pods} pods are planned for anew: its machine {machine} runs as node {}",
            other.name
        ),
        hint: Some(format!("`kubectl delete node {name}` removes it and what is bound to it")),
    }
}
