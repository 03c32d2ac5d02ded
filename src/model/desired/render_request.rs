//! Requests to render manifests, and their results.
//!
//! A request names a directory and the settings to render it with. The tools, and how they run, are
//! not known here. Invariant: a request holds every input besides the files of the repository, so
//! that equal requests over equal files have equal results.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A directory to render, and how.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RenderRequest {
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
    /// Returns the renderer as `fleetwright.yaml` spells it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Kustomize(_) => "kustomize",
            Self::Helm(_) => "helm",
        }
    }
}

/// Changes that a delivery tool makes to a kustomization.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Layer {
    /// The namespace of every object.
    pub namespace: Option<String>,
    /// Prefix of every name.
    pub name_prefix: String,
    /// Suffix of every name.
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
    /// Whether the chart's own values apply only if `values` names them.
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
    /// The value, as Helm's flags write it, with separators escaped.
    pub value: String,
    /// Whether it is always a string (`--set-string`).
    pub is_text: bool,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// YAML documents.
    pub output: Arc<[u8]>,
    /// The tool with its version, such as `kubectl kustomize v5.8.1`.
    pub tool: String,
    /// SHA-256 over the request and its files: `sha256:` and 64 hex digits.
    pub inputs: String,
    /// The repository files that it was rendered from.
    pub files: Vec<String>,
}

/// The location of the tree in its repository, to recognize sources within the tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RepositoryLocation {
    /// URL of the repository, where it is known.
    pub repository: Option<String>,
    /// Directory of the tree below the root of the repository; empty is the root itself.
    pub path: String,
}

/// Results of rendering, and the location of the tree.
#[derive(Debug, Clone, Default)]
pub struct RenderResults {
    /// Location of the tree.
    pub location: RepositoryLocation,
    /// The result of each request, or why it failed.
    pub results: BTreeMap<RenderRequest, Result<Rendered, String>>,
}
