//! The objects behind `kubectl get capacityplans` and `kubectl get capacitypools`.
//!
//! Each plan has a `CapacityPlan`: its decisions in the spec, and its progress in the status.
//! Conditions follow Flux and kstatus, and `sync` and `health` use the words of Argo CD. Each pool
//! has a `CapacityPool` with the revision it serves. The definitions in
//! `deploy/kubernetes/crds.yaml` are generated from the types here. Invariant: an object stays far
//! below the limit of the API server (about 1.5 MB). Rows beyond [`LISTED_ROWS_MAX`] are counted,
//! and every text is truncated.

mod condition;
mod crd;
mod plan;
mod pool;
mod recorded_plan;

pub use condition::{Condition, ConditionReason};
pub use crd::definitions;
pub use plan::{PlanSpec, PlanStatus, plan_name};
pub use pool::{PoolSpec, PoolStatus};
pub use recorded_plan::{RecordedPlan, parse_recorded_plan};

use serde::Serialize;
use serde_json::Value as Json;

use crate::controller::Status;

/// API group.
pub const GROUP: &str = "fleetwright.dev";
/// API version.
pub const VERSION: &str = "v1alpha1";

/// Maximum number of listed rows per plan. The digest covers all rows.
pub const LISTED_ROWS_MAX: usize = 500;

/// Maximum number of plan objects: the current plan and the newest completed applies. Superseded
/// plans ([`Status::SUPERSEDED_MAX`]) come on top, so that they displace no receipt.
pub const PLAN_OBJECTS_MAX: usize = 20;

/// Maximum length of a text. A condition message may have 32,768 characters, but 500 rows have a
/// text each.
const TEXT_CHARS_MAX: usize = 400;

/// Kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// A plan and its progress.
    CapacityPlan,
    /// A pool and its nodes.
    CapacityPool,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::CapacityPlan, Self::CapacityPool];

    /// Returns the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CapacityPlan => "CapacityPlan",
            Self::CapacityPool => "CapacityPool",
        }
    }

    /// Returns the plural resource name.
    pub fn plural(self) -> &'static str {
        match self {
            Self::CapacityPlan => "capacityplans",
            Self::CapacityPool => "capacitypools",
        }
    }
}

/// Desired state of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusObject {
    /// Kind.
    pub kind: ObjectKind,
    /// Name.
    pub name: String,
    /// Spec; `None` to write only the status of an existing object.
    pub spec: Option<Json>,
    /// Spec for a missing object if `spec` is `None`.
    pub fallback_spec: Option<Json>,
    /// Status. The writer fills in `observedGeneration` of the status and of its conditions.
    pub status: Json,
}

impl StatusObject {
    fn new(
        kind: ObjectKind,
        name: String,
        spec: Option<&impl Serialize>,
        status: &impl Serialize,
    ) -> Self {
        let json = |value: Result<Json, serde_json::Error>| value.expect("plain values are JSON");
        let spec = spec.map(|spec| json(serde_json::to_value(spec)));
        Self { kind, name, spec, fallback_spec: None, status: json(serde_json::to_value(status)) }
    }

    /// Sets the spec to use if the object is missing.
    fn with_fallback_spec(self, brief: Option<&impl Serialize>) -> Self {
        let brief = brief.map(|brief| serde_json::to_value(brief).expect("plain values are JSON"));
        Self { fallback_spec: brief, ..self }
    }
}

/// Returns the objects that represent a status: the current plan, completed and superseded plans,
/// and pools.
pub fn status_objects(status: &Status) -> Vec<StatusObject> {
    let mut objects = plan::plan_objects(status);
    objects.truncate(PLAN_OBJECTS_MAX);
    objects.extend(plan::superseded_objects(status));
    objects.extend(pool::pool_objects(status));
    objects
}

fn truncate_text(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}
