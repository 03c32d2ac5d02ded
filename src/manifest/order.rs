//! What tools are to make manifests of, and what they made.
//!
//! Knows which directory is rendered and with which settings; knows neither the tools nor how they
//! are run. Invariant: an order holds everything beside the files of the repository that decides
//! what comes out of it, so that equal orders over equal files have equal results.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A directory to render, and how.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Order {
    /// The directory below the root; empty is the root itself.
    pub path: String,
    /// How.
    pub recipe: Recipe,
}

/// How a directory is rendered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recipe {
    /// As a kustomization, with a further one on top of it.
    Kustomize(Layer),
    /// As a Helm chart.
    Helm(Release),
}

impl Recipe {
    /// Returns what makes manifests by this recipe, as `fleetwright.yaml` spells it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Kustomize(_) => "kustomize",
            Self::Helm(_) => "helm",
        }
    }
}

/// What is put on top of a kustomization by whoever delivers it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Layer {
    /// The namespace of every object.
    pub namespace: Option<String>,
    /// What stands before every name.
    pub name_prefix: String,
    /// What stands after every name.
    pub name_suffix: String,
    /// Directories of components, below the root.
    pub components: Vec<String>,
    /// Patches, each as JSON of one item of `patches`.
    pub patches: Vec<String>,
    /// Replicas by the name of the workload.
    pub replicas: BTreeMap<String, u32>,
}

/// A release of a Helm chart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Release {
    /// Name of the release.
    pub name: String,
    /// Namespace of the release.
    pub namespace: String,
    /// Whether those of the chart itself count only where `values` names them.
    pub replaces_values: bool,
    /// Values, later ones over earlier ones.
    pub values: Vec<Values>,
    /// Single values over all of those, in this order.
    pub set: Vec<SetValue>,
}

/// Values of a chart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Values {
    /// A file below the root.
    File(String),
    /// A file below the root that may be absent.
    OptionalFile(String),
    /// JSON.
    Text(String),
}

/// A single value of a chart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetValue {
    /// Path of the value, as Helm writes it.
    pub name: String,
    /// The value, as Helm's flags write it: what would begin another value is escaped.
    pub value: String,
    /// Whether it is a text, whatever it looks like.
    pub is_text: bool,
}

/// What a tool made of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// YAML documents.
    pub output: Arc<[u8]>,
    /// The tool with its version, such as `kubectl kustomize v5.8.1`.
    pub tool: String,
    /// SHA-256 over order and files that it was made from: `sha256:` and 64 hex digits.
    pub inputs: String,
    /// The files of the repository that it was made from.
    pub files: Vec<String>,
}

/// Where the tree stands in its repository: what tells sources inside it from those elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Home {
    /// URL of the repository, where it is known.
    pub repository: Option<String>,
    /// Directory of the tree below the root of the repository; empty is the root itself.
    pub below: String,
}

/// What is known beside the files of a tree when it is read.
#[derive(Debug, Clone, Default)]
pub struct Renderings {
    /// Where the tree stands.
    pub home: Home,
    /// What became of each order: its result, or why there is none.
    pub done: BTreeMap<Order, Result<Rendered, String>>,
}
