//! Node capacity as code: computes the EC2 capacity that the workloads of a Git repository need,
//! shows the difference to what runs as a reviewable plan, and carries the plan out.
//!
//! Modules are layers; none imports one below itself in this list's order:
//! quantities and ids; requirements, pods and storage; manifests, demand, catalogue, fleet; schedule and
//! solve; plan; policy and render; ports and what drives them; adapters; the command line.

pub mod adopt;
pub mod apply;
#[cfg(feature = "aws")]
pub mod aws;
mod cache;
pub mod catalog;
pub mod cli;
pub mod demand;
pub mod door;
pub mod engine;
pub mod face;
pub mod fargate;
pub mod fleet;
pub mod git;
#[cfg(feature = "live")]
pub mod github;
pub mod ids;
#[cfg(feature = "kubernetes")]
pub mod kube;
pub mod lint;
#[cfg(feature = "page")]
pub mod listen;
pub mod manifest;
pub mod measure;
pub mod observe;
pub mod plan;
pub mod pod;
pub mod policy;
pub mod port;
mod program;
pub mod reconcile;
pub mod register;
pub mod render;
pub mod requirement;
pub mod review;
pub mod rival;
pub mod schedule;
#[cfg(feature = "sandbox")]
pub mod serve;
pub mod sim;
pub mod solve;
pub mod sources;
pub mod storage;
#[cfg(test)]
mod story;
pub mod telemetry;
pub mod tools;
pub mod units;
#[cfg(feature = "page")]
mod web;
