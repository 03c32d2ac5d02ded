//! Host ports: no two pods of a node bind the same one.
//!
//! Two ports are the same if number and protocol are, and the addresses are or one of them is every
//! address. It does not matter which pod comes first.

use super::super::Verdict;
use super::super::state::{Crowd, EndState, Presence};
use crate::pod::HostPort;

/// What an address that is left out, or all zeros, stands for.
const EVERY_ADDRESS: [&str; 2] = ["", "0.0.0.0"];

/// The protocol of a port that names none.
const TCP: &str = "TCP";

pub(super) fn check(state: &EndState<'_>, verdict: &mut Verdict) {
    if state.crowds.iter().all(|crowd| crowd.shape.host_ports.is_empty()) {
        return;
    }
    for (index, site) in state.sites.iter().enumerate() {
        let bind = |(crowd, _): &(&Crowd, Presence)| !crowd.shape.host_ports.is_empty();
        let here: Vec<_> = state.on(index).filter(bind).collect();
        for (number, (crowd, pods)) in here.iter().enumerate() {
            if let Some(port) = clash(crowd, crowd).filter(|_| pods.all() > 1 && pods.come > 0) {
                let fault = format!(
                    "{} pods of {} are planned here, and each binds host port {port}",
                    pods.all(),
                    crowd.name
                );
                verdict.row("fit/ports", site.row.address, fault);
            }
            for (other, others) in &here[number + 1..] {
                let Some(port) = clash(crowd, other) else { continue };
                if pods.come > 0 || others.come > 0 {
                    let fault = format!(
                        "pods of {} and {} are planned here, and both bind host port {port}",
                        crowd.name, other.name
                    );
                    verdict.row("fit/ports", site.row.address, fault);
                }
            }
        }
    }
}

/// Returns the port, with its protocol, that pods of both bind.
fn clash(one: &Crowd, other: &Crowd) -> Option<String> {
    let ports = one.shape.host_ports.iter();
    let taken = |port: &&HostPort| other.shape.host_ports.iter().any(|held| same(port, held));
    ports.clone().find(taken).map(|port| format!("{}/{}", port.port, protocol(port)))
}

/// Returns the first port that pods of two of `crowds` bind, with both.
pub(in crate::plan::check) fn first_clash<'a>(
    crowds: &[&'a Crowd],
) -> Option<(&'a Crowd, &'a Crowd, String)> {
    crowds.iter().enumerate().find_map(|(number, one)| {
        let mut others = crowds[number + 1..].iter();
        others.find_map(|other| Some((*one, *other, clash(one, other)?)))
    })
}

fn protocol(port: &HostPort) -> &str {
    if port.protocol.is_empty() { TCP } else { &port.protocol }
}

fn same(one: &HostPort, other: &HostPort) -> bool {
    let every = |port: &HostPort| EVERY_ADDRESS.contains(&port.ip.as_str());
    one.port == other.port
        && one.port != 0
        && protocol(one) == protocol(other)
        && (every(one) || every(other) || one.ip == other.ip)
}
