//! Adapters implement the ports for the real systems: AWS, Kubernetes, Git, code review platforms, manifest
//! renderers and child processes.
//!
//! Types of SDKs and clients stay inside this module.

#[cfg(feature = "aws")]
pub mod aws;
pub(crate) mod cache;
pub mod external_sources;
pub(crate) mod files;
#[cfg(feature = "live")]
pub mod forges;
pub mod git;
#[cfg(feature = "page")]
pub(crate) mod http;
#[cfg(feature = "kubernetes")]
pub mod kube;
pub mod renderers;
pub(crate) mod subprocess;
#[cfg(feature = "cluster")]
pub mod system_clock;
