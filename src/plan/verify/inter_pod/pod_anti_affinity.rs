//! Required anti-affinity in both directions: of arriving pods to present pods, and of present pods
//! to arriving pods.
//!
//! kube-scheduler excludes a domain if the terms of the new pod select a pod in it. It also
//! excludes a domain if a pod in it has terms that select the new pod. Two pods in one domain
//! conflict if a term of either selects the other: kube-scheduler would refuse the later pod. Such
//! a pair is a violation if at least one of the two pods arrives. A node without the topology key
//! is in no domain and excludes no pod.

use super::super::Violations;
use super::super::end_state::Presence;
use super::context::InterPodContext;
use crate::model::pod::PodAffinityTerm;

pub(super) fn check(inter_pod: &mut InterPodContext<'_>, violations: &mut Violations) {
    let state = inter_pod.state;
    for (carrier, pod_set) in state.pod_sets.iter().enumerate() {
        for term in
            pod_set.shape.anti_affinity.required.iter().filter(|_| !pod_set.by_node.is_empty())
        {
            check_term(inter_pod, carrier, term, violations);
        }
    }
}

fn check_term<'a>(
    inter_pod: &mut InterPodContext<'a>,
    carrier: usize,
    term: &'a PodAffinityTerm,
    violations: &mut Violations,
) {
    let topology = inter_pod.topologies.get(&term.topology_key);
    let members = inter_pod.selected_by(carrier, term);
    let selects_itself = members.binary_search(&carrier).is_ok();
    let selected = inter_pod.count_by_domain(&members, topology);
    for (domain, ours) in inter_pod.count_by_domain(&[carrier], topology) {
        let theirs = selected.get(&domain).copied().unwrap_or_default();
        if !excludes(ours, theirs, selects_itself) {
            continue;
        }
        let all: Vec<usize> = [carrier].into_iter().chain(members.iter().copied()).collect();
        let Some((end_node, comes)) = inter_pod.first_arrival(&all, topology, domain) else {
            continue;
        };
        let with = if comes == carrier {
            conflicting_set(inter_pod, &members, topology, domain, carrier)
        } else {
            carrier
        };
        let fault = format!(
            "{} is placed in {}, where {} runs; required anti-affinity of {} over {} forbids that",
            inter_pod.name(comes),
            inter_pod.topologies.describe(topology, domain),
            if with == comes { "another of its pods" } else { inter_pod.name(with) },
            inter_pod.name(carrier),
            term.topology_key,
        );
        violations.report_row(
            "fit/anti-affinity",
            inter_pod.state.nodes[end_node].row.address,
            fault,
        );
    }
}

/// Returns whether a carrier of the term and a selected pod share the domain and at least one
/// arrives. If the term selects its carriers (`selects_itself`), the selected pods include them.
fn excludes(carriers: Presence, selected: Presence, selects_itself: bool) -> bool {
    let others = u32::from(selects_itself);
    (carriers.arriving > 0 && selected.all() > others)
        || (carriers.staying > 0 && selected.arriving > 0)
}

/// Returns a pod set of `members` with pods in the domain, preferably not `carrier`.
fn conflicting_set(
    inter_pod: &InterPodContext<'_>,
    members: &[usize],
    topology: usize,
    domain: usize,
    carrier: usize,
) -> usize {
    let here = |member: &&usize| {
        let mut end_nodes = inter_pod.state.pod_sets[**member].by_node.keys();
        end_nodes.any(|end_node| inter_pod.topologies.domain(topology, *end_node) == Some(domain))
    };
    members.iter().filter(|member| **member != carrier).find(here).copied().unwrap_or(carrier)
}
