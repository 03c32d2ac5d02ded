//! Deterministic simulation of the controller. It runs production code over the embedded world in
//! one thread, with virtual time and random faults.
//!
//! `cargo test --profile ci --test simulation` runs 2,000 seeds of 30 simulated
//! minutes. `-- --replay SEED` runs one seed and prints its events. A seed gives the same run on each
//! computer.

pub(crate) mod bursts;
pub(crate) mod clock_skew;
pub(crate) mod controller_modes;
pub(crate) mod crashes;
pub(crate) mod edge_cases;
pub(crate) mod empty_nodes;
pub(crate) mod environment;
pub(crate) mod external_actors;
pub(crate) mod fleet_lifecycle;
pub(crate) mod harness;
pub(crate) mod idle_capacity;
pub(crate) mod image_rollout;
pub(crate) mod incidents;
pub(crate) mod invariants;
pub(crate) mod jobs;
pub(crate) mod launches_beside_applies;
pub(crate) mod lost_nodes;
pub(crate) mod maintenance;
pub(crate) mod operators;
pub(crate) mod random;
pub(crate) mod random_scenario;
pub(crate) mod random_settings;
pub(crate) mod removed_declarations;
pub(crate) mod repository;
pub(crate) mod virtual_time;
