//! Integration tests: layers of the source, and scripts that run the real binary.
//!
//! A script is a file of `scripts/`; module `script` documents its language. Tests with generated
//! input or many rounds are Rust modules. `UPDATE_GOLDEN=1 cargo test --test it` updates the golden
//! files (`golden/`, `plans/`) instead of comparing them; review the diff.
//!
//! A test whose tool is missing is skipped, and stderr states the reason. It fails if
//! `FLEETWRIGHT_REQUIRED_TOOLS` names the tool.

mod adopt;
mod binary;
mod bootstrap;
mod browser;
mod conformance;
#[cfg(feature = "cluster")]
mod control_plane;
mod controller_simulation;
mod delivery;
mod deploy;
mod determinism;
mod docs;
mod edited_plans;
#[cfg(feature = "live")]
mod external_sources;
mod followed_repository;
mod fuzz;
mod golden;
mod hostile_input;
#[cfg(unix)]
mod kills;
#[path = "../bench/large.rs"]
mod large;
mod layers;
#[cfg(feature = "live")]
mod list_prices;
#[cfg(feature = "kubernetes")]
mod live;
mod marked_nodes;
mod missing_tool;
#[cfg(feature = "kubernetes")]
mod odd_objects;
mod optimality;
mod outcomes;
mod overlays;
mod permissions;
mod pipelines;
mod plan_page;
mod plan_properties;
mod pre_commit;
mod release_packages;
mod resting_fleets;
mod review;
#[cfg(feature = "sandbox")]
mod sandbox;
mod saved_plans;
mod scheduling_orders;
#[path = "../bench/scheduling_replay.rs"]
mod scheduling_replay;
mod script;
mod scripts;
#[cfg(feature = "sandbox")]
mod served_pages;
mod server;
mod signed_commits;
#[path = "../simulation/mod.rs"]
mod simulation;
mod telemetry;
