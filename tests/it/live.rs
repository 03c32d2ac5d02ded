//! Tests of the adapters against real services: kube-apiserver with etcd, and moto as EC2.
//! `KUBEBUILDER_ASSETS` names a directory with both Kubernetes binaries.
//!
//! Without these programs, the tests are skipped and stderr states the reason. `CONTRIBUTING.md`
//! describes the installation.

#[cfg(feature = "aws")]
mod account;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod adoption;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod api_faults;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod apply_faults;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod bootstrap;
#[cfg(feature = "cluster")]
mod broken_watches;
mod burst;
mod cluster;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod cluster_pools;
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
#[cfg(feature = "cluster")]
mod group_templates;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod image_rollout;
mod install;
#[cfg(feature = "cluster")]
mod instance_profiles;
#[cfg(feature = "cluster")]
mod kubelets;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod large_cluster;
#[cfg(feature = "aws")]
mod moto;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod observation_calls;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod odd_objects;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod offerings;
#[cfg(feature = "cluster")]
mod proxy;
#[cfg(feature = "cluster")]
mod proxy_additions;
#[cfg(feature = "sandbox")]
mod sandbox_api;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod spot_launches;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod sqs_queue;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod standing_fleet;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod watches;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod zones;

/// Prints a measurement to stderr.
#[cfg(feature = "cluster")]
fn measured(what: &str) {
    use std::io::Write as _;
    // An error of stderr is ignored.
    let _ = writeln!(std::io::stderr(), "measured: {what}");
}

/// Returns the size of a test from an environment variable. `FLEETWRIGHT_BURSTS=200` gives the
/// measurements of the book.
#[cfg(all(feature = "cluster", feature = "sandbox"))]
fn size(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
