//! Required anti-affinity, both ways: of the pods that come against those that are there, and of
//! those that are there against the pods that come.
//!
//! kube-scheduler refuses a domain to a pod if the pod's own terms select a pod in it, or a pod in it
//! has terms that select the pod. So of two pods in one domain of which a term of one selects the
//! other, the later one would have been refused, whichever it is: such a pair is a violation as soon
//! as one of the two comes. A node without the topology key is in no domain, and keeps nobody out.

use super::super::Verdict;
use super::super::state::Presence;
use super::Scene;
use crate::pod::PodAffinityTerm;

pub(super) fn check(scene: &mut Scene<'_>, verdict: &mut Verdict) {
    let state = scene.state;
    for (carrier, crowd) in state.crowds.iter().enumerate() {
        for term in crowd.shape.anti_affinity.required.iter().filter(|_| !crowd.on.is_empty()) {
            judge(scene, carrier, term, verdict);
        }
    }
}

fn judge<'a>(
    scene: &mut Scene<'a>,
    carrier: usize,
    term: &'a PodAffinityTerm,
    verdict: &mut Verdict,
) {
    let topology = scene.topologies.get(&term.topology_key);
    let members = scene.term(carrier, term);
    let itself = members.binary_search(&carrier).is_ok();
    let selected = scene.tally(&members, topology);
    for (domain, ours) in scene.tally(&[carrier], topology) {
        let theirs = selected.get(&domain).copied().unwrap_or_default();
        if !excludes(ours, theirs, itself) {
            continue;
        }
        let all: Vec<usize> = [carrier].into_iter().chain(members.iter().copied()).collect();
        let Some((site, comes)) = scene.comer(&all, topology, domain) else { continue };
        let with = if comes == carrier {
            met(scene, &members, (topology, domain), carrier)
        } else {
            carrier
        };
        let fault = format!(
            "{} comes to {}, where {} is; required anti-affinity of {} over {} keeps them apart",
            scene.name(comes),
            scene.topologies.describe(topology, domain),
            if with == comes { "another of its pods" } else { scene.name(with) },
            scene.name(carrier),
            term.topology_key,
        );
        verdict.row("fit/anti-affinity", scene.state.sites[site].row.address, fault);
    }
}

/// Returns whether there is a pair of carrier and selected pod of which one comes. Where the term
/// selects its carriers (`itself`), they are counted among the selected.
fn excludes(carriers: Presence, selected: Presence, itself: bool) -> bool {
    let others = u32::from(itself);
    (carriers.come > 0 && selected.all() > others) || (carriers.stay > 0 && selected.come > 0)
}

/// Returns one of `members` with pods in the domain, other than `carrier` if there is one.
fn met(
    scene: &Scene<'_>,
    members: &[usize],
    (topology, domain): (usize, usize),
    carrier: usize,
) -> usize {
    let here = |member: &&usize| {
        let mut sites = scene.state.crowds[**member].on.keys();
        sites.any(|site| scene.topologies.domain(topology, *site) == Some(domain))
    };
    members.iter().filter(|member| **member != carrier).find(here).copied().unwrap_or(carrier)
}
