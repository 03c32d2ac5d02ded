//! The objects that `kubectl get capacityplans` and `kubectl get capacitypools` show.
//!
//! A `CapacityPlan` for each plan: what it decides in its spec, what came of it in its status, with
//! conditions in the words that Flux and kstatus use and the sync and health words of Argo CD. A
//! `CapacityPool` for each pool, with the commit it serves. Their definitions follow from the types
//! here; `deploy/kubernetes/crds.yaml` holds them. Invariant: an object is far smaller than what the
//! API server stores (about 1.5 MB), whatever the size of the plan: rows beyond [`ROWS_MAX`] are
//! counted, and every text is cut.

mod condition;
mod definition;
mod plan;
mod pool;
mod told;

pub use condition::Condition;
pub use definition::definitions;
pub use plan::{PlanSpec, PlanStatus, plan_name};
pub use pool::{PoolSpec, PoolStatus};
pub use told::{Told, told};

use serde::Serialize;
use serde_json::Value as Json;

use crate::reconcile::Status;

/// Group of the API.
pub const GROUP: &str = "fleetwright.dev";
/// Its version.
pub const VERSION: &str = "v1alpha1";

/// Most rows of a plan that its object lists; the digest stands for all of them.
pub const ROWS_MAX: usize = 500;

/// Most objects of plans that are kept: the current one, and the newest that were carried out. The few that were
/// superseded before ([`Status::SUPERSEDED_MAX`]) come on top, so that they crowd out no receipt.
pub const PLANS_MAX: usize = 20;

/// Most characters of a text; a message of a condition may have 32,768, but 500 rows have one each.
const TEXT_MAX: usize = 400;

/// The kinds of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// What is decided, and what came of it.
    CapacityPlan,
    /// What a pool comes to.
    CapacityPool,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::CapacityPlan, Self::CapacityPool];

    /// Returns the kind as manifests spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CapacityPlan => "CapacityPlan",
            Self::CapacityPool => "CapacityPool",
        }
    }

    /// Returns the name of its collection.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::CapacityPlan => "capacityplans",
            Self::CapacityPool => "capacitypools",
        }
    }
}

/// An object as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Kind.
    pub kind: ObjectKind,
    /// Name.
    pub name: String,
    /// What is decided; absent where the object is there or is not needed: only its status follows.
    pub spec: Option<Json>,
    /// What is decided, in short: for an object that is not there, where `spec` is absent.
    pub brief: Option<Json>,
    /// What came of it. Its `observedGeneration`, and those of its conditions, are for whoever writes
    /// it to fill in.
    pub status: Json,
}

impl Object {
    fn new(
        kind: ObjectKind,
        name: String,
        spec: Option<&impl Serialize>,
        status: &impl Serialize,
    ) -> Self {
        let json = |value: Result<Json, serde_json::Error>| value.expect("plain values are JSON");
        let spec = spec.map(|spec| json(serde_json::to_value(spec)));
        Self { kind, name, spec, brief: None, status: json(serde_json::to_value(status)) }
    }

    /// Returns the same, which is made with `brief` where it is not there.
    fn made_with(self, brief: Option<&impl Serialize>) -> Self {
        let brief = brief.map(|brief| serde_json::to_value(brief).expect("plain values are JSON"));
        Self { brief, ..self }
    }
}

/// Returns the objects that say what the loop knows: the current plan, those that were carried out or superseded,
/// and the pools.
#[must_use]
pub fn objects(status: &Status) -> Vec<Object> {
    let mut objects = plan::objects(status);
    objects.truncate(PLANS_MAX);
    objects.extend(plan::superseded(status));
    objects.extend(pool::objects(status));
    objects
}

/// Returns a text that is short enough.
fn short(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}
