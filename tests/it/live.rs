//! The adapters against the real thing: a kube-apiserver over etcd where `KUBEBUILDER_ASSETS` names a
//! folder with both binaries, and moto as EC2.
//!
//! Neither can be had from the registry of crates, so that a machine without them runs none of this and
//! says so on stderr. The contributing notes tell where to get them.

#[cfg(feature = "aws")]
mod account;
#[cfg(feature = "cluster")]
mod added;
#[cfg(feature = "cluster")]
mod broken;
mod burst;
mod cluster;
#[cfg(feature = "cluster")]
mod crash;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod embedded;
#[cfg(feature = "cluster")]
mod faults;
mod install;
#[cfg(feature = "cluster")]
mod journey;
#[cfg(feature = "cluster")]
mod kubelets;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod large;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod looped;
#[cfg(feature = "aws")]
mod moto;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod offered;
mod plane;
#[cfg(feature = "cluster")]
mod proxy;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod queued;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod rolled;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod scale;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod scene;
#[cfg(feature = "sandbox")]
mod served;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod standing;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod stormy;
#[cfg(all(feature = "cluster", feature = "sandbox"))]
mod watched;

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
