//! The wire form of a forecast: the fleet that is needed, phase by phase.
//!
//! Its JSON Schema is `plans/forecast.schema.json`; `UPDATE_SCHEMA=1 cargo test --lib plan::forecast`
//! writes it again.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};

use super::canonical;
use super::wire::Diagnostic;
use crate::ids::{InstanceTypeName, Origin};
use crate::units::MicroUsd;

/// The version of the form that this program writes.
pub const FORECAST_VERSION: &str = "1.0";

/// Where the schema is published.
const SCHEMA_ID: &str = "https://fleetwright.dev/forecast.schema.json";

/// The fleet that is needed from one moment to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Forecast {
    /// Version of the form, `major.minor`.
    pub format_version: String,
    /// The cluster's name.
    pub cluster: String,
    /// When it begins.
    pub from: Timestamp,
    /// When it ends.
    pub to: Timestamp,
    /// How long before it is needed capacity is there, in seconds.
    pub lead_seconds: i64,
    /// Whether there is more than is looked at: then the phases end before `to`, and the total is
    /// that of the phases that there are.
    pub is_cut: bool,
    /// The phases, one after the other without a gap.
    pub phases: Vec<Phase>,
    /// What the clock does without changing the fleet: windows of disruption budgets and of applies.
    pub events: Vec<Event>,
    /// Price of all phases together.
    pub total: MicroUsd,
    /// Workloads whose size is not known: what they need comes on top.
    pub unresolved: Vec<String>,
    /// What a reader should know of the inputs.
    #[serde(default)]
    pub diagnostics: Vec<Diagnostic>,
}

/// A time in which the same fleet is needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Phase {
    /// When it begins.
    pub from: Timestamp,
    /// When it ends.
    pub to: Timestamp,
    /// Pods planned, DaemonSet pods excluded.
    pub pods: u32,
    /// Pods without a place.
    pub unschedulable: u32,
    /// Nodes.
    pub nodes: u32,
    /// Nodes by instance type.
    pub types: BTreeMap<InstanceTypeName, u32>,
    /// Their CPU, in thousandths of a core.
    pub cpu_milli: i64,
    /// Their memory, in bytes.
    pub memory_bytes: i64,
    /// Price per hour.
    pub hourly: MicroUsd,
    /// Price of the phase.
    pub cost: MicroUsd,
    /// What brought it about; empty for the first one.
    pub because: Vec<Event>,
}

/// Something that the clock does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// The object, such as `ScaledObject web/api`.
    pub object: String,
    /// File and line.
    pub origin: Origin,
    /// What happens.
    pub what: String,
}

/// Returns the JSON Schema (2020-12) of a forecast, canonical, as its file holds it.
///
/// # Panics
/// Never: the bounds in the schema are integers.
#[must_use]
pub fn forecast_schema() -> String {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Forecast>();
    schema.insert("$id".to_owned(), SCHEMA_ID.into());
    canonical::pretty(&schema).expect("the bounds in the schema are integers")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_file_in_the_repository_is_the_schema_of_the_types() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/forecast.schema.json");
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            fs::write(&path, forecast_schema()).expect("written");
        }
        let file = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            file == forecast_schema(),
            "plans/forecast.schema.json is not the schema of the forecast; run UPDATE_SCHEMA=1 \
             cargo test --lib plan::forecast"
        );
    }
}
