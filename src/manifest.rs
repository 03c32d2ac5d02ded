//! Reads the files of a repository into the typed [`Desired`](crate::model::desired::Desired) state.
//!
//! This module knows YAML, the Kubernetes objects that determine capacity, and the generations of
//! Karpenter's API. It knows nothing of live state, prices or plans.
//!
//! Invariants:
//! - Every object has its file and line.
//! - Nothing is dropped silently (each input becomes an object, a `Skipped` with its reason, an
//!   `Unresolved` or a `Problem`).
//! - The result does not depend on the order of files or documents.
//!
//! ```
//! use fleetwright::manifest::read;
//! use fleetwright::model::desired::{Fleet, Tree, TreeFile};
//! let text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: api}, spec: {replicas: 3,
//!   selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}},
//!   spec: {containers: [{name: app, resources: {requests: {cpu: 500m}}}]}}}}";
//! let file = TreeFile { path: "api.yaml".into(), content: Ok(text.as_bytes().into()) };
//! let desired = read(&Tree { files: vec![file] }, &Fleet::default());
//! assert!(desired.problems.is_empty() && desired.workloads.len() == 1);
//! ```

mod api_server_rules;
mod assumed_pods;
mod autoscaling;
mod chart_index;
mod classify;
mod cluster_alternatives;
mod cluster_directories;
mod cluster_objects;
mod cluster_pools;
mod collector;
mod cron;
mod custom_kinds;
mod declared_objects;
mod decode;
mod delivery;
mod device_claims;
mod eksctl;
mod exclusive_overlays;
mod hooks;
mod job_retries;
mod karpenter;
mod labels;
mod learned_nodes;
mod live_objects;
mod manifest_sources;
mod manifest_text;
mod namespace_limits;
mod object_meta;
mod placeholder;
mod pod_spec;
pub mod ports;
mod reference_check;
mod region_prices;
mod remote_reference;
pub mod render_rounds;
mod rendered_origins;
mod repository_layout;
mod resource_list;
mod settings;
mod source_area;
mod source_lock;
mod storage;
mod tree_reader;
mod workload;
mod yaml;

#[cfg(doc)]
#[doc = include_str!("adr/0001-yaml.md")]
pub mod adr_0001 {}

#[cfg(doc)]
#[doc = include_str!("adr/0020-external-sources.md")]
pub mod adr_0020 {}

#[cfg(doc)]
#[doc = include_str!("adr/0022-cluster-pools.md")]
pub mod adr_0022 {}

pub use chart_index::{
    ChartDependency, ChartVersion, chart_dependencies, chart_versions, is_exact_version,
    newest_in_range,
};
pub(crate) use cluster_alternatives::named;
pub use cluster_alternatives::{
    Alternatives, AlternativesKind, OverlayEvidence, cluster_alternatives, shared_example,
};
pub use cluster_directories::cluster_directories;
pub use declared_objects::{DeclaredObject, declared_objects};
pub use delivery::IN_CLUSTER;
pub(crate) use delivery::{SOURCE_IGNORE, release_name};
pub use live_objects::{read_job_retries, read_live_objects};
pub use manifest_sources::{candidate_paths, render_requests, source_requests};
pub use manifest_text::use_settings_of;
pub(crate) use manifest_text::{is_object, json_documents};
pub use region_prices::read_region_prices;
pub use remote_reference::{RemoteReference, dependency_source, parse_remote_reference};
pub(crate) use rendered_origins::STAGED_PREFIX;
pub(crate) use repository_layout::KUSTOMIZATION;
pub use repository_layout::{
    InflatedChart, KustomizationReferences, kustomization_references, stays_inside_repository,
};
pub(crate) use settings::{is_for_tests, is_within, normal_path};
pub use settings::{is_read_directly, read_fleet};
pub use source_lock::read_source_lock;
pub use tree_reader::{read, read_with_renderings};
pub(crate) use yaml::yaml_to_json;

#[cfg(test)]
mod tests;
