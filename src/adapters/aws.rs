//! EC2 adapter: implements the port [`Cloud`](crate::apply::ports::Cloud) for a real account.
//!
//! This module contains the AWS calls, the parsing of their responses, and the user data with which
//! an instance joins its cluster. SDK types stay inside this module. The callers decide every part
//! of a launch.
//!
//! Invariants: resources without the tag of this cluster are neither listed nor changed. Every list
//! is read to its last page. Each call first takes a token of its own rate limit, so that a
//! throttled account is not throttled further. User data is written to the launch template only.

mod auto_scaling;
mod call_timing;
mod client;
mod cloud;
mod cluster_bootstrap;
mod dry_run;
mod errors;
mod group_templates;
mod image;
mod instance;
mod instance_profile;
mod instance_types;
mod launch;
mod launch_context;
mod launch_template;
mod launch_template_gc;
mod market;
mod market_cache;
mod network;
mod node_class_resolution;
mod offerings;
mod placement_group;
mod preflight;
mod price_list;
mod rate_limiter;
mod reservations;
mod resolution_cache;
mod service_quotas;
mod sqs;
mod user_data;
mod zone_check;

pub use client::Aws;
pub use cluster_bootstrap::ClusterBootstrap;
pub use errors::AwsError;
pub use instance_profile::ProfileGcResult;
pub use launch_context::LaunchContext;
pub use launch_template_gc::TemplateGcResult;
pub use market_cache::MarketAnswers;
pub use node_class_resolution::mark_unresolved;
pub use preflight::{NodeRole, Preflight};
pub use rate_limiter::{CallBudget, call_budgets};
pub use sqs::{MESSAGES_MAX, QueueMessage};
pub use user_data::{BootstrapConfig, ClusterEndpoint};
