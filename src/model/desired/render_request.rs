//! Requests to render manifests, and their results.
//!
//! A request names a directory and its render settings, independent of the rendering tools.
//! Invariant: a request contains every input except the files of the repository. Equal requests
//! over equal files therefore have equal results.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::ExternalSources;
use crate::model::observed::ClusterPools;

/// A directory to render, with its settings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RenderRequest {
    /// Directory relative to the root; empty means the root.
    pub path: String,
    /// Renderer and its settings.
    pub recipe: Recipe,
}

/// Renderer of a directory, with its settings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recipe {
    /// Kustomization, with a generated kustomization on top.
    Kustomize(Layer),
    /// Helm chart.
    Helm(Release),
}

impl Recipe {
    /// Returns the name of the renderer in `fleetwright.yaml`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Kustomize(_) => "kustomize",
            Self::Helm(_) => "helm",
        }
    }
}

/// Changes that a delivery tool makes to a kustomization.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Layer {
    /// Namespace of every object.
    pub namespace: Option<String>,
    /// Prefix of all object names.
    pub name_prefix: String,
    /// Suffix of all object names.
    pub name_suffix: String,
    /// Directories of kustomize components, relative to the root.
    pub components: Vec<String>,
    /// Patches, each as the JSON of one item of `patches`.
    pub patches: Vec<String>,
    /// Replica counts, by workload name.
    pub replicas: BTreeMap<String, u32>,
    /// Labels of all objects and pods.
    pub labels: Option<CommonLabels>,
    /// True if Flux builds it: files anywhere in the source may be loaded, and a directory without
    /// a kustomization gets one of all its manifests.
    pub is_flux: bool,
}

/// Shows fields that were added later only if they are set: the text is an input of digests in
/// saved plans.
impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            name_prefix,
            name_suffix,
            components,
            patches,
            replicas,
            labels,
            is_flux,
        } = self;
        let mut shown = f.debug_struct("Layer");
        shown
            .field("namespace", namespace)
            .field("name_prefix", name_prefix)
            .field("name_suffix", name_suffix)
            .field("components", components)
            .field("patches", patches)
            .field("replicas", replicas);
        if let Some(labels) = labels {
            shown.field("labels", labels);
        }
        if *is_flux {
            shown.field("is_flux", is_flux);
        }
        shown.finish()
    }
}

/// Labels that a layer adds to all objects and to the templates of pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommonLabels {
    /// Values by key.
    pub pairs: BTreeMap<String, String>,
    /// True if selectors require them, too.
    pub in_selectors: bool,
}

/// A release of a Helm chart.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Release {
    /// Name of the release.
    pub name: String,
    /// Namespace of the release.
    pub namespace: String,
    /// True if the default values of the chart apply only when listed in `values`.
    pub replaces_values: bool,
    /// Values; later entries override earlier ones.
    pub values: Vec<Values>,
    /// Single values that override `values`, in this order.
    pub set: Vec<SetValue>,
    /// True if the values are not checked against the schema of the chart.
    pub skips_schema: bool,
}

/// Shows fields that were added later only if they are set: the text is an input of digests in
/// saved plans.
impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, namespace, replaces_values, values, set, skips_schema } = self;
        let mut shown = f.debug_struct("Release");
        shown
            .field("name", name)
            .field("namespace", namespace)
            .field("replaces_values", replaces_values)
            .field("values", values)
            .field("set", set);
        if *skips_schema {
            shown.field("skips_schema", skips_schema);
        }
        shown.finish()
    }
}

/// Values of a chart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Values {
    /// Path of a file, relative to the root.
    File(String),
    /// Path of a file that may be absent, relative to the root.
    OptionalFile(String),
    /// Inline values, as JSON.
    Text(String),
}

/// A single value of a chart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetValue {
    /// Path of the value, in Helm syntax.
    pub name: String,
    /// Value in the syntax of Helm flags, with separators escaped.
    pub value: String,
    /// True if the value is always a string (`--set-string`).
    pub is_text: bool,
}

/// Result of a render request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Rendered YAML documents.
    pub output: Arc<[u8]>,
    /// Tool and version, such as `kubectl kustomize v5.8.1`.
    pub tool: String,
    /// SHA-256 of the request and its files, as `sha256:` and 64 hex digits.
    pub inputs: String,
    /// Repository files that were rendered.
    pub files: Vec<String>,
}

/// Location of the tree in its repository, used to recognize sources within the tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RepositoryLocation {
    /// URL of the repository, if known.
    pub repository: Option<String>,
    /// Directory of the tree relative to the root of the repository; empty means the root.
    pub path: String,
}

/// Render results, with the location of the tree.
#[derive(Debug, Clone, Default)]
pub struct RenderResults {
    /// Location of the tree.
    pub location: RepositoryLocation,
    /// External sources that the tree may use.
    pub external: ExternalSources,
    /// Result of each request, or the reason of its failure.
    pub results: BTreeMap<RenderRequest, Result<Rendered, String>>,
    /// Pools of the cluster; `None` if they were not read.
    pub pools: Option<Arc<ClusterPools>>,
}
