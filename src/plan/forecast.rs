//! Wire form of a forecast: the required fleet, phase by phase.
//!
//! Its JSON Schema is `plans/forecast.schema.json`. `UPDATE_GOLDEN=1 cargo test --lib
//! plan::forecast` regenerates the file.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};

use super::canonical;
use super::wire::Diagnostic;
use crate::model::ids::{InstanceTypeName, Origin};
use crate::model::units::MicroUsd;

/// Format version that this program writes.
pub const FORECAST_VERSION: &str = "1.0";

/// Required fleet over a period.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Forecast {
    /// Format version, `major.minor`.
    pub format_version: String,
    /// Cluster name.
    pub cluster: String,
    /// Start of the forecast.
    pub from: Timestamp,
    /// End of the forecast.
    pub to: Timestamp,
    /// Lead time in seconds: capacity is ready this long before it is needed.
    pub lead_seconds: i64,
    /// True if the forecast is cut short. The phases then end before `to`, and the total covers
    /// only these phases.
    pub is_cut: bool,
    /// Consecutive phases without gaps.
    pub phases: Vec<Phase>,
    /// Scheduled events that do not change the fleet: windows of disruption budgets and of applies.
    pub events: Vec<ForecastEvent>,
    /// Cost of all phases.
    pub total: MicroUsd,
    /// Workloads of unknown size, whose demand is not included.
    pub unresolved: Vec<String>,
    /// Problems and notes about the inputs.
    #[serde(default)]
    pub diagnostics: Vec<Diagnostic>,
}

/// A period during which the required fleet is constant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Phase {
    /// Start of the phase.
    pub from: Timestamp,
    /// End of the phase.
    pub to: Timestamp,
    /// Number of planned pods, without DaemonSet pods.
    pub pods: u32,
    /// Number of unschedulable pods.
    pub unschedulable: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Number of nodes by instance type.
    pub types: BTreeMap<InstanceTypeName, u32>,
    /// CPU of the nodes, in thousandths of a core.
    pub cpu_milli: i64,
    /// Memory of the nodes, in bytes.
    pub memory_bytes: i64,
    /// Price per hour.
    pub hourly: MicroUsd,
    /// Cost of the phase.
    pub cost: MicroUsd,
    /// Events that start the phase; empty for the first phase.
    pub because: Vec<ForecastEvent>,
}

/// A scheduled event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct ForecastEvent {
    /// Time of the event.
    pub at: Timestamp,
    /// The object, such as `ScaledObject web/api`.
    pub object: String,
    /// File and line.
    pub origin: Origin,
    /// Effect of the event.
    pub what: String,
}

/// Returns the JSON Schema (2020-12) of a forecast, canonical, as in its file.
///
/// # Panics
/// Never: the bounds in the schema are integers.
pub fn forecast_schema() -> String {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Forecast>();
    let id = format!("https://fleetwright.dev/forecast-{FORECAST_VERSION}.schema.json");
    schema.insert("$id".to_owned(), id.into());
    canonical::pretty(&schema).expect("the bounds in the schema are integers")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn schema_file_matches_the_types() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/forecast.schema.json");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, forecast_schema()).expect("written");
        }
        let file = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            file == forecast_schema(),
            "plans/forecast.schema.json is not the schema of the forecast; run UPDATE_GOLDEN=1 \
             cargo test --lib plan::forecast"
        );
    }
}
