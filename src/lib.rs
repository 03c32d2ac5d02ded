//! Node capacity as code: computes the EC2 capacity that the workloads of a Git repository need,
//! shows the difference to what runs as a reviewable plan, and carries the plan out.
//!
//! `src/README.md` is the tour: how a Deployment becomes a launch call, with the file to open at
//! each step. The source stands in these rooms, lowest room first; none imports one below
//! itself in this table (`tests/it/layers.rs` holds it to that).
//!
//! | room | knows | never imports |
//! |---|---|---|
//! | [`model`] | the nouns: quantities, ids, label requirements, pods, storage, pools, desired and observed state | anything of ours |
//! | [`manifest`] | reads the files of a repository into desired state | live state, prices, plans |
//! | [`catalog`] | instance types, what their nodes offer to pods, offerings, prices | manifests, plans |
//! | [`demand`] | how many pods of which shape there will be | the solver, plans |
//! | [`scheduler`] | kube-scheduler as a model: queue, filters, scores | the solver, plans |
//! | [`solver`] | feasibility and cost: which nodes there should be, and where pods go | plans, ports, logging |
//! | [`plan`] | the document: changes, order, wire form, digest, and its independent judge | ports, adapters |
//! | [`planner`] | desired state, observed state and a catalog become a plan, in one pure function | ports, adapters |
//! | [`policy`] | findings of Rego policies over a plan | anything but plans and the nouns |
//! | [`apply`] | the ports (traits), observation, and the executor of an approved plan | adapters, the solver |
//! | [`render`] | views of a plan: text, Markdown, HTML, streams, pull requests | adapters |
//! | [`telemetry`] | logs, traces, histograms | anything but `render` and the nouns |
//! | [`adapters`] | AWS, Kubernetes, Git, GitHub, renderers: SDK types stop here | the controller, the CLI |
//! | [`simulator`] | an embedded EC2 and Kubernetes behind the same ports, and over HTTP | the controller, the CLI |
//! | [`controller`] | the reconcile loop: a pure step, its executor, its status | the server, the CLI |
//! | [`server`] | HTTP: metrics, health, page, webhook | the CLI |
//! | [`cli`] | arguments → settings → one command each; it wires everything | |
//!
//! `testing` is compiled for unit tests only. It has the builders of worlds and plans.

pub mod adapters;
pub mod apply;
pub mod catalog;
pub mod cli;
pub mod controller;
pub mod demand;
pub mod manifest;
pub mod model;
pub mod plan;
pub mod planner;
pub mod policy;
pub mod render;
pub mod scheduler;
pub mod server;
pub mod simulator;
pub mod solver;
pub mod telemetry;
#[cfg(test)]
mod testing;
