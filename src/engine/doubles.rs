//! Nodes that a machine left behind: it runs under another name, and nothing of it is counted twice.

use std::collections::BTreeSet;

use crate::fleet::Observed;
use crate::ids::NodeName;
use crate::plan::wire::Diagnostic;

/// Returns the world without them; `None` where there are none.
pub(super) fn without(observed: &Observed) -> Option<Observed> {
    let left: BTreeSet<NodeName> = observed.left_behind().into_iter().cloned().collect();
    if left.is_empty() {
        return None;
    }
    let mut world = observed.clone();
    world.nodes.retain(|name, _| !left.contains(name));
    Some(world)
}

/// Returns a warning for each of them.
pub(super) fn warnings(observed: &Observed) -> Vec<Diagnostic> {
    observed.left_behind().into_iter().map(|name| warning(observed, name)).collect()
}

fn warning(observed: &Observed, name: &NodeName) -> Diagnostic {
    let machine = observed.nodes.get(name).and_then(|node| node.instance.as_ref());
    let other = machine.and_then(|machine| observed.node_of(machine));
    let machine = machine.map(ToString::to_string).unwrap_or_default();
    let other = other.map(|other| other.name.to_string()).unwrap_or_default();
    let on_it = |pod: &crate::fleet::Pod| pod.node.as_ref() == Some(name) && pod.is_active();
    let pods = observed.pods.iter().filter(|pod| on_it(pod)).count();
    Diagnostic {
        severity: "warning".to_owned(),
        origin: None,
        object: format!("node {name}"),
        message: format!(
            "it is left out, with the {pods} pods that are bound to it: its machine {machine} runs as node {other}"
        ),
        hint: Some(format!(
            "`kubectl delete node {name}` removes it, and its pods come back elsewhere"
        )),
    }
}
