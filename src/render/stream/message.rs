//! The lines of a stream, typed: what is written is what the schema says.
//!
//! The types of messages are those of Terraform's `-json` where it has one. Readers show `@message`
//! for types that they do not know, and ignore keys that they do not know.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;

use crate::ids::{Address, Digest, Origin, PlanId};
use crate::plan::canonical;
use crate::plan::wire::{Check, Comparison, ResourceChange};

/// The version of the stream's messages.
pub const STREAM_VERSION: &str = "1.1";

/// Where the schema is published.
const SCHEMA_ID: &str = "https://fleetwright.dev/stream.schema.json";

/// What every line names as its origin.
const MODULE: &str = "fleetwright.ui";

/// One line of a stream.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Line {
    /// How much it matters.
    #[serde(rename = "@level")]
    pub level: Level,
    /// The line for a person.
    #[serde(rename = "@message")]
    pub text: String,
    /// `fleetwright.ui`.
    #[serde(rename = "@module")]
    pub module: String,
    /// Of a plan the moment that it was made for; of an apply the moment of the event.
    #[serde(rename = "@timestamp")]
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// What it says.
    #[serde(flatten)]
    pub message: Message,
}

impl Line {
    /// Returns a line.
    #[must_use]
    pub fn new(level: Level, text: String, at: Timestamp, message: Message) -> Self {
        Self { level, text, module: MODULE.to_owned(), at, message }
    }

    /// Returns the line as it is written, its line feed included.
    #[must_use]
    pub fn written(&self) -> String {
        // Numbers here are integers, and keys are text.
        let json = serde_json::to_value(self).map(|value| value.to_string()).unwrap_or_default();
        // A line feed never stands in a line, and nothing in it is obeyed by a terminal.
        format!("{}\n", canonical::shown(&json))
    }
}

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// It went as it should.
    Info,
    /// Somebody should look.
    Warn,
    /// It went wrong.
    Error,
}

/// What a line says.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// The first line.
    Version {
        /// Version of the program.
        fleetwright: String,
        /// Version of the plan's format.
        format_version: String,
        /// Version of these messages.
        ui: String,
    },
    /// A problem.
    Diagnostic {
        /// The problem.
        diagnostic: Problem,
    },
    /// A node moved outside Git.
    ResourceDrift {
        /// What moved.
        change: Planned,
    },
    /// What one revision changes against another.
    Comparison {
        /// What it causes, and what was pending without it.
        comparison: Box<Comparison>,
    },
    /// A row of the plan that changes something.
    PlannedChange {
        /// The row.
        change: Planned,
    },
    /// Pods have no place.
    Unschedulable {
        /// Workload.
        workload: String,
        /// How many pods.
        pods: u32,
        /// Where it is declared.
        origin: Option<Origin>,
        /// Why.
        reasons: Vec<String>,
        /// The nearest change that would help.
        nearest: Option<String>,
    },
    /// A policy has something to say.
    Check {
        /// The finding.
        check: Check,
    },
    /// What the plan changes, or the apply changed.
    ChangeSummary {
        /// Counts.
        changes: Counts,
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
    /// What the plan relies on holds; the first write comes next.
    Checked {
        /// How many changes are no longer needed.
        dropped: usize,
    },
    /// A wave of changes begins.
    Wave {
        /// `launch` or `retire`.
        step: String,
        /// How many changes.
        changes: usize,
    },
    /// A change begins.
    ApplyStart {
        /// Which, and what happened.
        hook: Hook,
    },
    /// A change goes on, or waits.
    ApplyProgress {
        /// Which, and what happened.
        hook: Hook,
    },
    /// A change is done, was done already, or is no longer needed.
    ApplyComplete {
        /// Which, and what happened.
        hook: Hook,
    },
    /// A change is not done: skipped, given up, or failed.
    ApplyErrored {
        /// Which, and what happened.
        hook: Hook,
    },
}

/// A problem of a plan, or why there was no apply.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Problem {
    /// `error`, `warning`, `note` or `drift`.
    pub severity: String,
    /// What is wrong.
    pub summary: String,
    /// What to do.
    pub detail: Option<String>,
    /// Where.
    pub range: Option<Origin>,
    /// How the program ends because of it, where it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
}

/// What a row is about, as Terraform names it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Resource {
    /// Address.
    pub addr: Address,
    /// Address, once more.
    pub resource: Address,
    /// Name: that of the pool.
    pub resource_name: String,
    /// `ec2_instance`, `kubernetes_node` or `autoscaling_group`.
    pub resource_type: String,
    /// Key within the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_key: Option<String>,
}

impl Resource {
    /// Returns what a row is about.
    #[must_use]
    pub fn of(row: &ResourceChange) -> Self {
        Self {
            addr: row.address.clone(),
            resource: row.address.clone(),
            resource_name: row.name.clone(),
            resource_type: row.kind.as_str().to_owned(),
            resource_key: row.index.clone(),
        }
    }
}

/// A row of a plan.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Planned {
    /// What it is about.
    pub resource: Resource,
    /// `create`, `delete`, `replace`, `update` or `noop`.
    pub action: String,
    /// A hint, of an open set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Something that happened to a row.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Hook {
    /// What it is about; absent where the apply as a whole is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<Resource>,
    /// `create` or `delete`, where the event is of one half of a row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// What happened, of an open set: `launched`, `ready`, `cordoned`, `blocked`, `finished`, …
    pub event: String,
    /// What belongs to the event, such as `instance_id`, `node`, `outcome` or `why`.
    pub detail: BTreeMap<String, Value>,
    /// Whole seconds since the apply began.
    pub elapsed_seconds: i64,
}

/// How much changes.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
pub struct Counts {
    /// Nodes launched.
    pub add: usize,
    /// Rows changed in place.
    pub change: usize,
    /// Nothing is ever imported.
    pub import: usize,
    /// Nodes terminated.
    pub remove: usize,
    /// Of a plan: replacements among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace: Option<usize>,
    /// Of a plan: rows that something keeps from changing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<usize>,
    /// Of an apply: changes that are not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<usize>,
    /// Of an apply: changes that are no longer needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<usize>,
    /// What the counts are of.
    pub operation: Operation,
}

/// What a summary is of.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A plan.
    #[default]
    Plan,
    /// An apply.
    Apply,
}

/// Returns the JSON Schema (2020-12) of one line, canonical, as `plans/stream.schema.json` holds it.
#[must_use]
pub fn stream_schema() -> String {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<Line>();
    schema.insert("$id".to_owned(), SCHEMA_ID.into());
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
    use crate::render::fixture::{hostile, plan};
    use crate::render::stream;

    #[test]
    fn the_file_in_the_repository_is_the_schema_of_the_lines() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/stream.schema.json");
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            fs::write(&path, stream_schema()).expect("written");
        }
        let file = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            file == stream_schema(),
            "plans/stream.schema.json is not the schema of the lines; \
             run UPDATE_SCHEMA=1 cargo test --lib stream::message"
        );
    }

    #[test]
    fn every_line_of_a_plan_is_one_that_the_schema_describes() {
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
