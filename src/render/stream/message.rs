//! The typed lines of a stream, from which the schema is generated.
//!
//! Message types follow Terraform's `-json` where it has them. Readers show `@message` of unknown
//! types, and ignore unknown keys.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;

use crate::model::ids::{Address, Digest, Origin, PlanId};
use crate::plan::canonical;
use crate::plan::wire::{
    AutoscalerGrowthRow, Check, Comparison, DiagnosticSeverity, ResourceChange,
};

/// The version of the stream's messages.
pub const STREAM_VERSION: &str = "1.1";

/// The module name of every line.
const MODULE: &str = "fleetwright.ui";

/// One line of a stream.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StreamLine {
    /// The level of the message.
    #[serde(rename = "@level")]
    pub level: StreamLevel,
    /// The message as text.
    #[serde(rename = "@message")]
    pub text: String,
    /// `fleetwright.ui`.
    #[serde(rename = "@module")]
    pub module: String,
    /// The time: of a plan its timestamp, of an apply the time of the event.
    #[serde(rename = "@timestamp")]
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The message by type.
    #[serde(flatten)]
    pub message: StreamMessage,
}

impl StreamLine {
    /// Returns a line.
    pub fn new(level: StreamLevel, text: String, at: Timestamp, message: StreamMessage) -> Self {
        Self { level, text, module: MODULE.to_owned(), at, message }
    }

    /// Returns the line as JSON, with its line feed.
    pub fn to_json_line(&self) -> String {
        // All numbers are integers and all keys are text, so this cannot fail.
        let json = serde_json::to_value(self).map(|value| value.to_string()).unwrap_or_default();
        // JSON escapes line feeds; terminal controls are escaped as well.
        format!("{}\n", canonical::escape_terminal_controls(&json))
    }
}

/// The level of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StreamLevel {
    /// Normal progress.
    Info,
    /// Needs attention.
    Warn,
    /// An error.
    Error,
}

/// The message of a line.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StreamMessage {
    /// The first line.
    Version {
        /// Version of the program.
        fleetwright: String,
        /// Version of the plan format.
        format_version: String,
        /// Version of these messages.
        ui: String,
    },
    /// A problem.
    Diagnostic {
        /// The problem.
        diagnostic: StreamDiagnostic,
    },
    /// A node that changed outside Git.
    ResourceDrift {
        /// The changed node.
        change: StreamChange,
    },
    /// A comparison with another revision.
    Comparison {
        /// Caused and pending changes.
        comparison: Box<Comparison>,
    },
    /// A planned change of a row.
    PlannedChange {
        /// The row.
        change: StreamChange,
    },
    /// Unschedulable pods of a workload.
    Unschedulable {
        /// Workload.
        workload: String,
        /// Number of pods.
        pods: u32,
        /// Location of the declaration.
        origin: Option<Origin>,
        /// Reasons of rejection.
        reasons: Vec<String>,
        /// The nearest change that would help.
        nearest: Option<String>,
    },
    /// A node group that Cluster Autoscaler scales up.
    ClusterAutoscaler {
        /// The group, with its pods.
        growth: AutoscalerGrowthRow,
    },
    /// A finding of a policy.
    Check {
        /// The finding.
        check: Check,
    },
    /// The summary of a plan or an apply.
    ChangeSummary {
        /// Counts of changes.
        changes: StreamCounts,
        /// Digest of the plan.
        digest: Digest,
        /// Of a plan: whether it may be applied.
        #[serde(skip_serializing_if = "Option::is_none")]
        applyable: Option<bool>,
        /// Of a plan: whether its inputs had errors.
        #[serde(skip_serializing_if = "Option::is_none")]
        errored: Option<bool>,
        /// Of an apply: the plan.
        #[serde(skip_serializing_if = "Option::is_none")]
        plan_id: Option<PlanId>,
        /// Of an apply: `applied`, `partly` or `interrupted`.
        #[serde(skip_serializing_if = "Option::is_none")]
        verdict: Option<String>,
    },
    /// All preconditions hold; the first write follows.
    Checked {
        /// Number of changes that are no longer needed.
        dropped: usize,
    },
    /// A wave of changes starts.
    Wave {
        /// `launch` or `retire`.
        step: String,
        /// Number of changes.
        changes: usize,
    },
    /// A change starts.
    ApplyStart {
        /// The row and the event.
        hook: StreamHook,
    },
    /// A change continues, or waits.
    ApplyProgress {
        /// The row and the event.
        hook: StreamHook,
    },
    /// A change is done, was done already, or is no longer needed.
    ApplyComplete {
        /// The row and the event.
        hook: StreamHook,
    },
    /// A change is not done: skipped, abandoned, or failed.
    ApplyErrored {
        /// The row and the event.
        hook: StreamHook,
    },
}

/// A problem of a plan, or the error of an apply.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StreamDiagnostic {
    /// `error`, `warning`, `note` or `drift`.
    pub severity: DiagnosticSeverity,
    /// The problem.
    pub summary: String,
    /// The remedy.
    pub detail: Option<String>,
    /// File and line.
    pub range: Option<Origin>,
    /// Stable code of its class, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The exit code, if the problem ends the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
}

/// The resource of a row, in the terms of Terraform.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StreamResource {
    /// Address.
    pub addr: Address,
    /// Address, repeated.
    pub resource: Address,
    /// Name of the pool.
    pub resource_name: String,
    /// `ec2_instance`, `kubernetes_node` or `autoscaling_group`.
    pub resource_type: String,
    /// Key within the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_key: Option<String>,
}

impl StreamResource {
    /// Returns the resource of a row.
    pub fn from_row(row: &ResourceChange) -> Self {
        Self {
            addr: row.address.clone(),
            resource: row.address.clone(),
            resource_name: row.name.clone(),
            resource_type: row.kind.as_str().to_owned(),
            resource_key: row.index.clone(),
        }
    }
}

/// A change of a row.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StreamChange {
    /// The resource.
    pub resource: StreamResource,
    /// `create`, `delete`, `replace`, `update` or `noop`.
    pub action: String,
    /// A reason code of an open set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// An event about a row.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct StreamHook {
    /// The resource; absent if the event concerns the whole apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<StreamResource>,
    /// `create` or `delete`, if the event concerns one half of a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The event, of an open set: `launched`, `ready`, `cordoned`, `blocked`, `finished`, …
    pub event: String,
    /// Details of the event, such as `instance_id`, `node`, `outcome` or `why`.
    pub detail: BTreeMap<String, Value>,
    /// Whole seconds since the apply began.
    pub elapsed_seconds: i64,
}

/// Counts of changes.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
pub struct StreamCounts {
    /// Launched nodes.
    pub add: usize,
    /// Rows changed in place.
    pub change: usize,
    /// Imported rows; always zero.
    pub import: usize,
    /// Terminated nodes.
    pub remove: usize,
    /// Of a plan: replacements included above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace: Option<usize>,
    /// Of a plan: blocked rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<usize>,
    /// Of an apply: changes that are not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<usize>,
    /// Of an apply: changes that are no longer needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<usize>,
    /// The operation that is counted.
    pub operation: StreamOperation,
}

/// The operation of a summary.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StreamOperation {
    /// A plan.
    #[default]
    Plan,
    /// An apply.
    Apply,
}

/// Returns the JSON Schema (2020-12) of one line, canonical, as `plans/stream.schema.json` holds it.
pub fn stream_schema() -> String {
    let mut schema =
        SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<StreamLine>();
    let id = format!("https://fleetwright.dev/stream-{STREAM_VERSION}.schema.json");
    schema.insert("$id".to_owned(), id.into());
    write(&schema)
}

fn write(schema: &schemars::Schema) -> String {
    canonical::pretty(schema).expect("the bounds in the schema of lines are integers")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::render::stream;
    use crate::testing::sample_plan::{hostile, plan};

    #[test]
    fn published_schema_matches_the_types() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/stream.schema.json");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, stream_schema()).expect("written");
        }
        let file = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            file == stream_schema(),
            "plans/stream.schema.json is not the schema of the lines; \
             run UPDATE_GOLDEN=1 cargo test --lib stream::message"
        );
    }

    #[test]
    fn plan_lines_match_the_schema() {
        let schema: Value = serde_json::from_str(&stream_schema()).expect("JSON");
        let schema = jsonschema::draft202012::new(&schema).expect("a schema");
        for plan in [plan(), hostile("\u{1b}[31m\n</script>")] {
            for line in stream(&plan).lines() {
                let line: Value = serde_json::from_str(line).expect("an object");
                assert!(schema.is_valid(&line), "{line}");
            }
        }
        let wrong = serde_json::json!({ "type": "wave", "@level": "info", "@message": "m",
            "@module": "m", "@timestamp": "t", "step": "launch", "changes": "three" });
        assert!(!schema.is_valid(&wrong));
    }
}
