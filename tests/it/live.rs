//! The adapters against the real thing: a kube-apiserver over etcd where `KUBEBUILDER_ASSETS` names a
//! folder with both binaries, and moto as EC2.
//!
//! Neither can be had from the registry of crates, so that a machine without them runs none of this and
//! says so on stderr. The contributing notes tell where to get them.

#[cfg(feature = "aws")]
mod account;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod api_faults;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod apply_faults;
#[cfg(feature = "cluster")]
mod broken_watches;
mod burst;
mod cluster;
mod control_plane;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod controller;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod controller_fixture;
#[cfg(feature = "cluster")]
mod crash;
#[cfg(feature = "cluster")]
mod end_to_end;
#[cfg(feature = "cluster")]
mod faults;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod image_rollout;
mod install;
#[cfg(feature = "cluster")]
mod kubelets;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod large_cluster;
#[cfg(feature = "aws")]
mod moto;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod observation_calls;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod offerings;
#[cfg(feature = "cluster")]
mod proxy;
#[cfg(feature = "cluster")]
mod proxy_additions;
#[cfg(feature = "sandbox")]
mod sandbox_api;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod sqs_queue;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod standing_fleet;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod watches;

/// Says on stderr what is not shown here, and why: a test that did nothing must not look like one.
fn not_run(why: &str) {
    use std::io::Write as _;
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "not run: {why}");
}

/// Says what was measured, for whoever runs it by hand.
#[cfg(feature = "cluster")]
fn measured(what: &str) {
    use std::io::Write as _;
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "measured: {what}");
}

/// Returns how large a test is to be: `FLEETWRIGHT_BURSTS=200` measures what the README tells.
#[cfg(all(feature = "cluster", feature = "sandbox"))]
fn size(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
