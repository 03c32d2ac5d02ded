//! Delivery of manifests: sources that are rendered, and objects of Argo CD and Flux that point
//! into the same repository.
//!
//! Converts each of them to the directories to read and the way to render them, or to a reason why
//! that is unknown. It knows the fields of those objects, not the tools. It never guesses: an
//! object whose source, cluster or settings lie outside the tree is unresolved, with the reason.

mod argo;
mod artifact_generator;
mod build_environment;
mod cluster_generator;
mod expression;
mod external;
mod flux;
mod generators;
mod glob;
mod label_selector;
mod source_ignore;
mod sync_policy;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::classify::DeliveryKind;
use super::placeholder::Vars;
use super::repository_layout::{RepositoryLayout, parent_directory};
use super::settings::{is_within, normal_path};
use super::yaml::{YamlNode, YamlValue, to_json};
use crate::model::desired::{
    ExternalSources, Fleet, Layer, Recipe, Release, RenderRequest, Renderer, RepositoryLocation,
    Source, SourceRequests, Tree, Values,
};
use crate::model::ids::Origin;
use crate::model::printable_url::{is_same_printed, printable_url};

pub use argo::IN_CLUSTER;
use artifact_generator::GeneratedArtifact;
pub(super) use artifact_generator::{ReadArtifact, read_artifacts};
pub(super) use cluster_generator::{ClusterSecret, read_cluster_secret};
pub(super) use external::{ChartRepository, HelmChart};
pub(super) use flux::{declares_bootstrap_repository, read_helm_chart};
use glob::{GlobDialect, PathPattern};
pub(crate) use source_ignore::SOURCE_IGNORE;
pub(super) use source_ignore::SourceIgnore;
pub(super) use sync_policy::{NO_POLICY, SyncPolicy, is_left_alone_by_flux};

/// A source or object that delivers manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeliveryObject {
    /// Its source location.
    pub(super) origin: Origin,
    /// Its display name, such as `Application argocd/shop`.
    pub(super) object: String,
    /// The manifests that it delivers, or the reason why they are unknown.
    pub(super) manifest_sets: Vec<Result<ManifestSet, String>>,
    /// The object that delivers it; `None` if it is in the tree itself.
    pub(super) delivered_by: Option<String>,
    /// True for an `ApplicationSet` that makes no application.
    pub(super) makes_nothing: bool,
}

impl DeliveryObject {
    /// Returns whether kustomize builds what it delivers, also from a directory without a
    /// kustomization.
    pub(super) fn is_flux_kustomization(&self) -> bool {
        self.object.starts_with("Kustomization ")
    }

    /// Returns whether its last definition of an object is the one that counts.
    pub(super) fn takes_last_definition(&self) -> bool {
        self.object.starts_with("Application ")
    }
}

/// With its file, because clusters of one repository often have objects of the same name.
impl fmt::Display for DeliveryObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.object, self.origin)
    }
}

/// Manifests that are delivered together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ManifestSet {
    /// The source of the manifests.
    pub(super) content: ManifestContent,
    /// The namespace of objects without one.
    pub(super) namespace: Option<String>,
    /// The namespace of every object, overriding its own.
    pub(super) target_namespace: Option<String>,
    /// Values of placeholders.
    pub(super) vars: Vars,
    /// The cluster that they are delivered to.
    pub(super) cluster: TargetCluster,
    /// What the delivery tool leaves alone.
    pub(super) policy: SyncPolicy,
}

/// The cluster that an object belongs or is delivered to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum TargetCluster {
    /// The cluster of this fleet.
    #[default]
    This,
    /// The cluster of this fleet, by an object that is suspended or skipped. Its files are no
    /// workloads of their own.
    Stopped,
    /// Another cluster, whose manifests are skipped.
    Other,
}

impl TargetCluster {
    /// Returns the target of manifests that are skipped.
    fn skipped(self) -> Self {
        match self {
            Self::This | Self::Stopped => Self::Stopped,
            Self::Other => Self::Other,
        }
    }
}

/// The source of manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ManifestContent {
    /// A tool renders them.
    Rendered(RenderRequest),
    /// Files of the tree.
    Files(FileSelection),
}

/// A selection of files of one directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct FileSelection {
    /// The directory below the root.
    pub(super) path: String,
    /// Includes subdirectories.
    pub(super) recurse: bool,
    /// Pattern of the included names; `None` means every manifest.
    include: Option<PathPattern>,
    /// Pattern of the excluded names.
    exclude: Option<PathPattern>,
    /// Files that mark themselves as not to be delivered, or that the source lacks.
    missing_files: BTreeSet<String>,
    /// Subdirectories that are delivered in another way.
    excluded_directories: BTreeSet<String>,
}

impl FileSelection {
    /// Returns whether the selection contains the file at `path`.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.reaches(path) && self.selects(path)
    }

    /// Returns whether the tool finds the file at `path` but does not deliver it.
    pub(super) fn leaves_out(&self, path: &str) -> bool {
        self.reaches(path) && !self.selects(path)
    }

    fn reaches(&self, path: &str) -> bool {
        is_within(path, &self.path)
            && (self.recurse || parent_directory(path) == self.path)
            && !self.excluded_directories.iter().any(|but| is_within(path, but))
    }

    fn selects(&self, path: &str) -> bool {
        let rest = path.strip_prefix(&self.path).unwrap_or(path).trim_start_matches('/');
        self.include.as_ref().is_none_or(|pattern| pattern.matches(rest))
            && !self.exclude.as_ref().is_some_and(|pattern| pattern.matches(rest))
            && !self.missing_files.contains(path)
    }
}

/// The cluster and namespace of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectLocation<'a> {
    pub(super) cluster: TargetCluster,
    pub(super) namespace: &'a str,
}

/// Text values of a `ConfigMap`, by key.
pub(super) type ConfigMapData = BTreeMap<String, String>;

/// A `GitRepository`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GitRepository {
    pub(super) url: String,
    /// The revision that it follows.
    pub(super) revision: String,
    /// The reason why its files differ from those of the repository.
    pub(super) changed: Option<&'static str>,
}

/// Key of an object that delivery objects refer to: its cluster, namespace and name.
pub(super) type ReferenceKey = (TargetCluster, String, String);

/// Objects that delivery objects refer to; `None` for contradicting definitions.
pub(super) type ReferencedObjects<T> = BTreeMap<ReferenceKey, Option<T>>;

/// Directories that Argo CD delivers, by destination.
pub(super) type Destinations = BTreeMap<String, BTreeSet<String>>;

/// Maximum bytes of text that all generators of a tree may produce together; far more than an API
/// server stores in applications.
const GENERATED_BYTES_MAX: usize = 64 << 20;

/// Maximum number of times that generators may scan the whole tree.
const TREE_SCANS_MAX: usize = 1_000;

/// Resources that generators have used, against their limits.
#[derive(Debug, Default)]
pub(super) struct GeneratorUsage {
    bytes: Cell<usize>,
    scans: Cell<usize>,
}

impl GeneratorUsage {
    /// Adds `bytes` of generated text, within the limit.
    fn add_text(&self, bytes: usize) -> Result<(), String> {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        if self.bytes.get() <= GENERATED_BYTES_MAX {
            return Ok(());
        }
        Err(format!("generators of this tree generate more than {GENERATED_BYTES_MAX} bytes"))
    }

    /// Adds a scan of the tree, within the limit.
    fn add_scan(&self) -> Result<(), String> {
        self.scans.set(self.scans.get().saturating_add(1));
        if self.scans.get() <= TREE_SCANS_MAX {
            return Ok(());
        }
        Err(format!("generators of this tree scan it more than {TREE_SCANS_MAX} times"))
    }
}

/// The context in which delivery objects are resolved.
#[derive(Debug)]
pub(super) struct DeliveryContext<'a> {
    pub(super) tree: &'a Tree,
    pub(super) layout: &'a RepositoryLayout,
    pub(super) fleet: &'a Fleet,
    pub(super) home: &'a RepositoryLocation,
    /// `GitRepository` objects.
    pub(super) repositories: ReferencedObjects<GitRepository>,
    /// True if a file of the tree may declare the repository from which Flux delivers itself.
    pub(super) declares_bootstrap_repository: bool,
    /// `HelmRepository` objects.
    pub(super) helm_repositories: ReferencedObjects<ChartRepository>,
    /// `OCIRepository` objects.
    pub(super) oci_repositories: ReferencedObjects<ChartRepository>,
    /// `HelmChart` objects.
    pub(super) helm_charts: ReferencedObjects<HelmChart>,
    /// Artifacts of `ArtifactGenerator` objects.
    pub(super) artifacts: ReferencedObjects<ReadArtifact>,
    /// Cluster Secrets of Argo CD.
    pub(super) cluster_secrets: Vec<ClusterSecret>,
    /// `ConfigMap` objects.
    pub(super) config_maps: ReferencedObjects<ConfigMapData>,
    /// External sources that the tree may use.
    pub(super) external: &'a ExternalSources,
    /// External sources that delivery objects request.
    pub(super) requested: RefCell<SourceRequests>,
    /// Destinations of Argo CD that the settings do not list.
    pub(super) destinations: RefCell<Destinations>,
    /// Directories that generators exclude.
    pub(super) excluded_directories: RefCell<BTreeSet<String>>,
    /// Files that mark themselves as not to be delivered by Argo CD.
    pub(super) skipped_files: BTreeSet<&'a str>,
    /// Files that Flux leaves out of its sources, or the reason why they are unknown.
    pub(super) source_ignore: Result<SourceIgnore, String>,
    /// True if the last `ApplicationSet` makes no application.
    pub(super) makes_nothing: Cell<bool>,
    /// Resources that generators have used.
    pub(super) usage: GeneratorUsage,
}

impl DeliveryContext<'_> {
    /// Returns the manifests that the object at `root` delivers.
    pub(super) fn manifest_sets_of(
        &self,
        delivery_kind: DeliveryKind,
        root: &YamlNode<'_>,
        location: ObjectLocation<'_>,
    ) -> Vec<Result<ManifestSet, String>> {
        match delivery_kind {
            DeliveryKind::Application => self.application(root, location.cluster),
            DeliveryKind::ApplicationSet => self.application_set(root, location.cluster),
            DeliveryKind::Kustomization => self.kustomization(root, location),
            DeliveryKind::HelmRelease => self.helm_release(root, location),
            DeliveryKind::FluxInstance => self.flux_instance(root, location.cluster),
        }
    }

    /// Returns the manifests in the directory `path` that another cluster or a stopped object
    /// receives, in enough detail to skip them here.
    fn skipped_set(&self, path: String, cluster: TargetCluster) -> ManifestSet {
        let content = if self.has_chart(&path) {
            ManifestContent::Rendered(RenderRequest {
                path,
                recipe: Recipe::Helm(Release::default()),
            })
        } else if self.has_kustomization(&path) {
            ManifestContent::Rendered(RenderRequest {
                path,
                recipe: Recipe::Kustomize(Layer::default()),
            })
        } else {
            ManifestContent::Files(FileSelection { path, ..FileSelection::default() })
        };
        ManifestSet {
            content,
            namespace: None,
            target_namespace: None,
            vars: Vars::new(),
            cluster: cluster.skipped(),
            policy: SyncPolicy::default(),
        }
    }

    /// Returns the cluster that the settings list as `name`; `None` if they do not list it.
    fn cluster_by_name(&self, name: &str) -> Option<TargetCluster> {
        let delivery = &self.fleet.delivery;
        // Messages print server URLs without credentials, and settings may list them so.
        let lists = |list: &[String]| list.iter().any(|item| is_same_printed(item, name));
        if name == self.fleet.cluster.name || lists(&delivery.clusters) {
            return Some(TargetCluster::This);
        }
        lists(&delivery.other_clusters).then_some(TargetCluster::Other)
    }

    /// Converts a values file's path in the repository to a path in the tree.
    fn local_file(&self, file: &str) -> Result<String, String> {
        let outside = || format!("values file {file} is outside the directory that is read");
        let normal = normal_path("", file.trim_start_matches('/')).ok_or_else(outside)?;
        let below = &self.home.path;
        let rest = normal.strip_prefix(below.as_str()).filter(|_| is_within(&normal, below));
        Ok(rest.ok_or_else(outside)?.trim_start_matches('/').to_owned())
    }

    /// Converts a directory's path in the repository to a path in the tree.
    fn local_directory(&self, path: &str) -> Result<String, String> {
        let outside = || format!("its path `{path}` is outside the directory that is read");
        let normal = normal_path("", path.trim_start_matches('/')).ok_or_else(outside)?;
        let below = &self.home.path;
        if below.is_empty() {
            return self.existing_directory(normal);
        }
        let rest = normal.strip_prefix(below.as_str()).filter(|_| is_within(&normal, below));
        self.existing_directory(rest.ok_or_else(outside)?.trim_start_matches('/').to_owned())
    }

    fn existing_directory(&self, path: String) -> Result<String, String> {
        if self.tree.files.iter().any(|file| is_within(&file.path, &path)) {
            return Ok(path);
        }
        Err(format!(
            "there are no manifests at its path `{path}`, in YAML or JSON; Jsonnet is not rendered"
        ))
    }

    /// Returns whether `url` is this repository.
    fn is_own_repository(&self, url: &str) -> Result<bool, String> {
        let own = self.fleet.delivery.repositories.iter().chain(&self.home.repository);
        if own.into_iter().any(|known| same_repository(known, url)) {
            return Ok(true);
        }
        if self.home.repository.is_some() || !self.fleet.delivery.repositories.is_empty() {
            return Ok(false);
        }
        Err(format!(
            "it is unknown whether {} is this repository; list its URL under \
             `delivery.repositories` in fleetwright.yaml",
            super::decode::shorten(&printable_url(url))
        ))
    }

    /// Checks that `url` is this repository.
    fn check_repository(&self, url: &str) -> Result<(), String> {
        if self.is_own_repository(url)? {
            return Ok(());
        }
        Err(format!(
            "its source {} is another repository",
            super::decode::shorten(&printable_url(url))
        ))
    }

    /// Checks that `revision` is the one that is read.
    fn check_revision(&self, revision: &str) -> Result<(), String> {
        // Without a revision, the source follows HEAD.
        let revision = if revision.is_empty() { "HEAD" } else { revision };
        let usual = ["main", "master"];
        let own = &self.fleet.delivery.revisions;
        let known =
            if own.is_empty() { usual.contains(&revision) } else { contains_text(own, revision) };
        if known || revision == "HEAD" {
            return Ok(());
        }
        Err(format!(
            "it follows revision `{}`, which may differ from the revision that is read; list it \
             under `delivery.revisions` in fleetwright.yaml if they are the same",
            super::decode::shorten(revision)
        ))
    }

    fn has_kustomization(&self, path: &str) -> bool {
        self.layout.kustomization_in(path).is_some()
    }

    fn has_chart(&self, path: &str) -> bool {
        self.layout.is_chart(path)
    }
}

/// Returns the manifests of a source of `fleetwright.yaml`; `None` if it has plain manifests.
pub(super) fn declared_manifest_set(source: &Source, vars: &Vars) -> Option<ManifestSet> {
    let renderer = source.render?;
    let recipe = match renderer {
        Renderer::Kustomize => Recipe::Kustomize(Layer::default()),
        Renderer::Helm => Recipe::Helm(Release {
            name: source.release.clone().unwrap_or_else(|| release_name(&source.path)),
            namespace: source.namespace.clone().unwrap_or_else(|| "default".to_owned()),
            values: source.values.iter().cloned().map(Values::File).collect(),
            ..Release::default()
        }),
    };
    Some(ManifestSet {
        content: ManifestContent::Rendered(RenderRequest { path: source.path.clone(), recipe }),
        namespace: source.namespace.clone(),
        target_namespace: None,
        vars: vars.clone(),
        cluster: TargetCluster::This,
        policy: SyncPolicy::default(),
    })
}

fn contains_text(list: &[String], text: &str) -> bool {
    list.iter().any(|item| item == text)
}

/// Returns the usual release name of a chart in `path`: the directory's name.
pub(crate) fn release_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let letter = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let name: String = name.to_ascii_lowercase().chars().map(letter).take(53).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "release".to_owned() } else { name.to_owned() }
}

/// Returns whether two URLs name the same repository, ignoring scheme, user and query.
fn same_repository(a: &str, b: &str) -> bool {
    fn plain(url: &str) -> String {
        let url = url.split(['?', '#']).next().unwrap_or_default();
        let rest = match url.split_once("://") {
            Some((_, rest)) => rest.to_owned(),
            // `git@host:path` is short for `ssh://git@host/path`.
            None => url.replacen(':', "/", 1),
        };
        let (host, path) = rest.split_once('/').unwrap_or((&rest, ""));
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let host = host.split(':').next().unwrap_or_default();
        let path = path.trim_matches('/');
        let path = path.strip_suffix(".git").unwrap_or(path);
        format!("{}/{path}", host.to_ascii_lowercase())
    }
    plain(a) == plain(b)
}

/// Returns the node at `path` below `node`.
fn node_at<'n, 't>(node: &'n YamlNode<'t>, path: &[&str]) -> Option<&'n YamlNode<'t>> {
    path.iter().try_fold(node, |node, key| node.get(key)).filter(|node| !node.is_null())
}

/// Returns the items of the list at `path` below `node`.
fn items_at<'n, 't>(node: &'n YamlNode<'t>, path: &[&str]) -> &'n [YamlNode<'t>] {
    match node_at(node, path).map(|node| &node.value) {
        Some(YamlValue::Seq(items)) => items,
        Some(_) | None => &[],
    }
}

/// Returns the non-empty text at `path` below `node`.
fn text_at<'n>(node: &'n YamlNode<'_>, path: &[&str]) -> Option<&'n str> {
    node_at(node, path)?.text().filter(|text| !text.is_empty())
}

/// Returns the string form of a scalar, for fields that allow only strings.
fn scalar_text(node: &YamlNode<'_>) -> String {
    let json = to_json(node);
    json.as_str().map_or_else(|| json.to_string(), str::to_owned)
}

fn flag_at(node: &YamlNode<'_>, path: &[&str]) -> bool {
    text_at(node, path) == Some("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generators_of_a_tree_share_a_limit() {
        let usage = GeneratorUsage::default();
        assert_eq!(
            (usage.add_text(GENERATED_BYTES_MAX), usage.add_text(1).is_err()),
            (Ok(()), true)
        );
        assert!(usage.add_text(usize::MAX).is_err(), "it does not begin anew");
        assert!((0..TREE_SCANS_MAX).all(|_| usage.add_scan().is_ok()) && usage.add_scan().is_err());
    }
}
