//! Host ports: no two pods of a node bind the same host port.
//!
//! Two ports clash if number and protocol are equal, and the addresses are equal or one of them is
//! the wildcard. The order of arrival is irrelevant.

use super::super::Violations;
use super::super::end_state::{EndState, PodSet, Presence};
use crate::model::pod::HostPort;

/// Spellings of the wildcard address.
const WILDCARD_ADDRESSES: [&str; 2] = ["", "0.0.0.0"];

/// Default protocol.
const TCP: &str = "TCP";

pub(super) fn check(state: &EndState<'_>, violations: &mut Violations) {
    if state.pod_sets.iter().all(|pod_set| pod_set.shape.host_ports.is_empty()) {
        return;
    }
    for (index, end_node) in state.nodes.iter().enumerate() {
        let bind = |(pod_set, _): &(&PodSet, Presence)| !pod_set.shape.host_ports.is_empty();
        let here: Vec<_> = state.pods_on(index).filter(bind).collect();
        for (number, (pod_set, pods)) in here.iter().enumerate() {
            if let Some(port) =
                clash(pod_set, pod_set).filter(|_| pods.all() > 1 && pods.arriving > 0)
            {
                let fault = format!(
                    "{} pods of {} are planned here, and each binds host port {port}",
                    pods.all(),
                    pod_set.name
                );
                violations.report_row("fit/ports", end_node.row.address, fault);
            }
            for (other, others) in &here[number + 1..] {
                let Some(port) = clash(pod_set, other) else { continue };
                if pods.arriving > 0 || others.arriving > 0 {
                    let fault = format!(
                        "pods of {} and {} are planned here, and both bind host port {port}",
                        pod_set.name, other.name
                    );
                    violations.report_row("fit/ports", end_node.row.address, fault);
                }
            }
        }
    }
}

/// Returns the port, with its protocol, that pods of both sets bind.
fn clash(one: &PodSet, other: &PodSet) -> Option<String> {
    let ports = one.shape.host_ports.iter();
    let taken = |port: &&HostPort| other.shape.host_ports.iter().any(|held| same(port, held));
    ports.clone().find(taken).map(|port| format!("{}/{}", port.port, protocol(port)))
}

/// Returns the first port that pods of two of the sets bind, with both sets.
pub(in crate::plan::verify) fn first_clash<'a>(
    pod_sets: &[&'a PodSet],
) -> Option<(&'a PodSet, &'a PodSet, String)> {
    pod_sets.iter().enumerate().find_map(|(number, one)| {
        let mut others = pod_sets[number + 1..].iter();
        others.find_map(|other| Some((*one, *other, clash(one, other)?)))
    })
}

fn protocol(port: &HostPort) -> &str {
    if port.protocol.is_empty() { TCP } else { &port.protocol }
}

fn same(one: &HostPort, other: &HostPort) -> bool {
    let every = |port: &HostPort| WILDCARD_ADDRESSES.contains(&port.ip.as_str());
    one.port == other.port
        && one.port != 0
        && protocol(one) == protocol(other)
        && (every(one) || every(other) || one.ip == other.ip)
}
