//! Rules between pods in the state after a plan: host ports, anti-affinity, affinity and topology
//! spread.
//!
//! kube-scheduler enforces these rules only when it binds a pod, so running pods may break them.
//! Verification therefore considers the arriving pods. The nodes start with their staying pods,
//! DaemonSet pods and static pods. A plan asserts that the arriving pods can be bound in some
//! order. A violation states that no such order exists. Each module derives its rule from this
//! definition:
//!
//! * `host_ports`, `pod_anti_affinity`: two pods exclude each other in both orders of arrival, so
//!   the order is irrelevant. Pairs of staying pods are not checked.
//! * `pod_affinity`: pods with required affinity can arrive only after their targets, so the pods
//!   that can arrive form a closure.
//! * `spread`: counts only grow while pods arrive, so the minimum count at the end bounds the
//!   minimum count at every earlier moment.
//!
//! The semantics are those of the Kubernetes documentation (assigning pods to nodes, topology
//! spread constraints). Namespaces have their declared labels and the label of their name.
//!
//! Two properties are not checked. The first is quality: a state with an uneven but allowed spread
//! is valid. The second is the interaction of rules. A state passes if affinity holds in one order
//! and spread in another, even if no order satisfies both.

mod context;
mod eligible_nodes;
mod host_ports;
mod pod_affinity;
mod pod_anti_affinity;
mod pod_index;
mod spread;
#[cfg(test)]
mod tests;
mod topology;

use std::collections::BTreeSet;

use super::Violations;
use super::context::CheckContext;
use super::end_state::{EndState, PodSetKind};
use crate::model::ids::LabelKey;
use crate::model::pod::PodAffinityTerm;
use context::{InterPodContext, required_keys, required_spread};
pub(super) use host_ports::first_clash;
use pod_index::PodIndex;
use topology::Topologies;

pub(super) fn check(context: &CheckContext<'_>, state: &EndState<'_>, violations: &mut Violations) {
    host_ports::check(state, violations);
    if state.pod_sets.iter().all(|pod_set| required_keys(pod_set).next().is_none()) {
        return;
    }
    let mut inter_pod = InterPodContext {
        state,
        pod_index: PodIndex::new(&state.pod_sets, &context.facts.desired.namespaces),
        topologies: Topologies::new(state),
    };
    pod_anti_affinity::check(&mut inter_pod, violations);
    pod_affinity::check(&mut inter_pod, violations);
    spread::check(&mut inter_pod, violations);
}

/// Returns the topology keys that inter-pod rules bind each pod set to, by its index. These are the
/// keys of rules that the set carries, and of rules that select it. Affinity and spread bind other
/// pods only if the plan can place the pods that carry them. Anti-affinity of any pod does.
///
/// If a node with such a pod is replaced by a node with another value of the key, all other nodes
/// must be checked again.
pub(super) fn bound_topology_keys<'a>(
    context: &CheckContext<'_>,
    state: &'a EndState<'_>,
) -> Vec<BTreeSet<&'a LabelKey>> {
    let pod_sets = &state.pod_sets;
    let mut bound_keys: Vec<BTreeSet<&LabelKey>> =
        pod_sets.iter().map(|pod_set| required_keys(pod_set).collect()).collect();
    if bound_keys.iter().all(BTreeSet::is_empty) {
        return bound_keys;
    }
    let mut pod_index = PodIndex::new(pod_sets, &context.facts.desired.namespaces);
    for pod_set in pod_sets {
        let exists = !pod_set.by_node.is_empty();
        let is_placed =
            exists && pod_set.kind == PodSetKind::Placed && pod_set.shape.unsupported.is_empty();
        // An affinity target must match every term.
        let affinity_terms = pod_set.shape.affinity.required.iter().filter(|_| is_placed);
        let affinity_terms: Vec<&PodAffinityTerm> = affinity_terms.collect();
        let mut targets: Option<BTreeSet<usize>> = None;
        for term in &affinity_terms {
            let selection = pod_index.select_term(term, &pod_set.shape);
            let members: BTreeSet<usize> = pod_index.members(selection).iter().copied().collect();
            targets = Some(targets.map_or(members.clone(), |all| &all & &members));
        }
        for member in targets.into_iter().flatten() {
            bound_keys[member].extend(affinity_terms.iter().map(|term| &term.topology_key));
        }
        let anti_affinity_terms = pod_set.shape.anti_affinity.required.iter().filter(|_| exists);
        let anti_affinity_terms = anti_affinity_terms
            .map(|term| (pod_index.select_term(term, &pod_set.shape), &term.topology_key));
        let mut selections: Vec<(Option<usize>, &LabelKey)> = anti_affinity_terms.collect();
        let rules = required_spread(pod_set).filter(|_| is_placed);
        selections.extend(
            rules.map(|rule| (pod_index.select_spread(rule, &pod_set.shape), &rule.topology_key)),
        );
        for (selection, key) in selections {
            pod_index
                .members(selection)
                .iter()
                .for_each(|member| bound_keys[*member].extend([key]));
        }
    }
    bound_keys
}
