//! The search for delivery objects, in files and in the output of other delivery objects.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use super::super::classify::{DeliveryKind, DocumentClass, classify};
use super::super::delivery::{
    ChartRepository, ClusterSecret, ConfigMapData, DeliveryContext, DeliveryObject, GeneratorUsage,
    GitRepository, HelmChart, ManifestContent, ManifestSet, ObjectLocation, ReadArtifact,
    ReferenceKey, ReferencedObjects, SourceIgnore, TargetCluster, declared_manifest_set,
    declares_bootstrap_repository, read_artifacts, read_cluster_secret, read_helm_chart,
};
use super::super::manifest_text::{ManifestText, parse_documents};
use super::super::object_meta::{ObjectScope, display_name};
use super::super::placeholder::{Vars, substitute};
use super::super::tree_reader::open_value;
use super::super::yaml::{self, YamlNode, YamlValue};
use super::delivered_files::may_contain;
use super::{DeliverySources, SourceContext, VisitedText, display_directory};
use crate::model::desired::{TAG_RANGE_PREFIX, TreeFile};

/// Label or annotation of an object in which Flux replaces no placeholders.
const SUBSTITUTE_MARK: &str = "kustomize.toolkit.fluxcd.io/substitute";

const DOCUMENT_START: &str = "\n---";

/// Contents of a file that matter to the search.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ContentMarks {
    /// The file may contain a delivery object or a repository.
    pub(super) delivers: bool,
    /// The file may contain values for a delivery object.
    config: bool,
    /// Argo CD does not deliver the file from a directory.
    skipped: bool,
}

/// Text of a file that Argo CD does not deliver from a directory.
const SKIP_MARK: &str = "+argocd:skip-file-rendering";

impl ContentMarks {
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let Ok(text) = yaml::decode(bytes) else { return Self::default() };
        Self {
            delivers: ["argoproj.io/", ".fluxcd.io/", "fluxcd.controlplane.io/"]
                .iter()
                .any(|mark| text.contains(mark)),
            config: text.contains("ConfigMap"),
            skipped: text.contains(SKIP_MARK),
        }
    }

    fn any(self) -> bool {
        self.delivers || self.config || self.skipped
    }
}

/// Objects that delivery objects refer to, collected in one scan.
#[derive(Default)]
struct ReferenceIndex {
    repositories: ReferencedObjects<GitRepository>,
    helm_repositories: ReferencedObjects<ChartRepository>,
    oci_repositories: ReferencedObjects<ChartRepository>,
    helm_charts: ReferencedObjects<HelmChart>,
    artifacts: ReferencedObjects<ReadArtifact>,
    cluster_secrets: Vec<ClusterSecret>,
    config_maps: ReferencedObjects<ConfigMapData>,
}

impl SourceContext<'_> {
    fn delivery_context<'m>(
        &'m self,
        index: ReferenceIndex,
        marked: &BTreeMap<&'m str, ContentMarks>,
    ) -> DeliveryContext<'m> {
        let skipped = marked.iter().filter(|(_, marks)| marks.skipped).map(|(path, _)| *path);
        DeliveryContext {
            tree: self.tree,
            layout: self.layout,
            fleet: self.fleet,
            home: &self.renderings.location,
            repositories: index.repositories,
            declares_bootstrap_repository: declares_bootstrap_repository(self.tree),
            helm_repositories: index.helm_repositories,
            oci_repositories: index.oci_repositories,
            helm_charts: index.helm_charts,
            artifacts: index.artifacts,
            cluster_secrets: index.cluster_secrets,
            external: &self.renderings.external,
            requested: RefCell::default(),
            destinations: RefCell::default(),
            excluded_directories: RefCell::default(),
            skipped_files: skipped.collect(),
            source_ignore: SourceIgnore::from_tree(self.tree),
            makes_nothing: Cell::default(),
            config_maps: index.config_maps,
            usage: GeneratorUsage::default(),
        }
    }

    /// Returns the sources of the settings that need rendering.
    pub(super) fn declared_sources(&self) -> Vec<DeliveryObject> {
        let stated = self.fleet.sources.iter().zip(self.areas).filter_map(|(source, area)| {
            let manifest_set = declared_manifest_set(source, &area.vars)?;
            let object = format!("source {}", display_directory(&source.path));
            let origin = source.origin.clone();
            Some(DeliveryObject {
                origin,
                object,
                manifest_sets: vec![Ok(manifest_set)],
                delivered_by: None,
                makes_nothing: false,
            })
        });
        stated.collect()
    }

    /// Returns the files that the search must read.
    pub(super) fn marked_files(&self) -> BTreeMap<&str, ContentMarks> {
        let marks = |file: &TreeFile| match &file.content {
            Ok(bytes) => ContentMarks::from_bytes(bytes),
            Err(_) => ContentMarks::default(),
        };
        let all = self.tree.files.iter().map(|file| (&*file.path, marks(file)));
        all.filter(|(_, marks)| marks.any()).collect()
    }

    /// Returns the delivery objects in all manifests known through `sources`.
    pub(super) fn delivery_objects(
        &self,
        sources: &DeliverySources,
        marked: &BTreeMap<&str, ContentMarks>,
    ) -> DeliverySources {
        let mut index = ReferenceIndex::default();
        self.visit_objects(sources, marked, &mut |_, root, location| index.object(root, location));
        let delivery_context = self.delivery_context(index, marked);
        let mut found: Vec<DeliveryObject> = Vec::new();
        self.visit_objects(sources, marked, &mut |manifest, root, location| {
            let DocumentClass::Delivers(delivery_kind, _) = classify(root) else { return };
            let manifest_sets = match open_value(root, manifest.vars) {
                Some(reason) => vec![Err(reason)],
                None => delivery_context.manifest_sets_of(delivery_kind, root, location),
            };
            found.push(DeliveryObject {
                origin: manifest.origin(root),
                object: delivery_name(delivery_kind, root, manifest),
                manifest_sets,
                delivered_by: manifest.delivered_by.map(|by| by.object.clone()),
                makes_nothing: delivery_context.makes_nothing.take(),
            });
        });
        // An object that delivers itself appears twice: in its file and in its own output.
        let again: BTreeSet<String> =
            found.iter().filter(|d| d.delivered_by.is_some()).map(|d| d.object.clone()).collect();
        let delivers_itself = |delivery: &DeliveryObject| {
            let own = delivery.manifest_sets.iter().flatten();
            let mut contains =
                own.map(|manifest_set| self.delivers_path(manifest_set, &delivery.origin.file));
            delivery.delivered_by.is_none()
                && again.contains(&delivery.object)
                && contains.any(|found| found)
        };
        found.retain(|delivery| !delivers_itself(delivery));
        found.sort_by(|a, b| (&a.origin, &a.object).cmp(&(&b.origin, &b.object)));
        found.dedup_by(|a, b| a.object == b.object && a.manifest_sets == b.manifest_sets);
        DeliverySources {
            deliveries: found,
            requested: delivery_context.requested.into_inner(),
            destinations: delivery_context.destinations.into_inner(),
            excluded_directories: delivery_context.excluded_directories.into_inner(),
        }
    }

    fn delivers_path(&self, manifest_set: &ManifestSet, path: &str) -> bool {
        match &manifest_set.content {
            ManifestContent::Files(files) => files.contains(path),
            ManifestContent::Rendered(request) => match self.renderings.results.get(request) {
                Some(Ok(rendered)) => rendered.files.iter().any(|file| file == path),
                Some(Err(_)) | None => may_contain(manifest_set, path),
            },
        }
    }

    /// Visits every object of the marked manifests.
    fn visit_objects(
        &self,
        sources: &DeliverySources,
        marked: &BTreeMap<&str, ContentMarks>,
        take: ObjectVisitor<'_>,
    ) {
        let mut visit = |visit: VisitedText<'_>| {
            let (manifest, cluster) = match visit {
                VisitedText::Manifest(manifest) => (manifest, TargetCluster::This),
                VisitedText::OtherCluster(manifest, _) => (manifest, TargetCluster::Other),
                VisitedText::Excluded(..) => return,
            };
            let Ok(bytes) = &manifest.file.content else { return };
            let is_marked = match manifest.origins {
                None => marked.contains_key(&*manifest.file.path),
                Some(_) => ContentMarks::from_bytes(bytes).any(),
            };
            if !is_marked
                || (manifest.origins.is_none()
                    && self.layout.exclusion_reason(&manifest.file.path).is_some())
            {
                return;
            }
            let Ok(text) = yaml::decode(bytes) else { return };
            // As Flux does before it applies objects. A text that is no YAML afterwards stays as it is.
            let is_delivered =
                manifest.delivered_by.is_some_and(|by| by.object.starts_with("Kustomization "));
            let substituted = substitute_documents(&text, manifest.vars);
            let is_used = is_delivered && is_yaml(&substituted);
            let text: &str = if is_used { &substituted } else { &text };
            parse_documents(manifest.format, text, manifest.vars, |loaded| {
                let mut open: Vec<&YamlNode<'_>> =
                    loaded.documents.iter().rev().map(|doc| &doc.root).collect();
                while let Some(root) = open.pop() {
                    if let (DocumentClass::List, Some(YamlValue::Seq(items))) =
                        (classify(root), root.get("items").map(|items| &items.value))
                    {
                        open.extend(items);
                        continue;
                    }
                    let own = root.get("metadata").and_then(|m| m.get("namespace"));
                    let own = own.and_then(YamlNode::text).filter(|text| !text.is_empty());
                    let namespace = manifest.namespaces.resolve(own);
                    take(manifest, root, ObjectLocation { cluster, namespace });
                }
            });
        };
        sources.visit_manifests(self, &mut visit);
    }
}

/// Callback for an object: its manifest, its root and its location.
type ObjectVisitor<'t> = &'t mut dyn FnMut(ManifestText<'_>, &YamlNode<'_>, ObjectLocation<'_>);

impl ReferenceIndex {
    /// Records an object that delivery objects may refer to.
    fn object(&mut self, root: &YamlNode<'_>, location: ObjectLocation<'_>) {
        let text = |node: Option<&YamlNode<'_>>| node.and_then(YamlNode::text).map(str::to_owned);
        let kind = text(root.get("kind")).unwrap_or_default();
        let Some(name) = text(root.get("metadata").and_then(|m| m.get("name"))) else { return };
        let key = (location.cluster, location.namespace.to_owned(), name);
        match &*kind {
            "GitRepository" => {
                if let Some(repository) = read_git_repository(root) {
                    insert_unless_ambiguous(&mut self.repositories, key, repository);
                }
            }
            // Flux Operator makes a source of its `sync`, named as the namespace.
            "FluxInstance" => {
                let (cluster, namespace, _) = key;
                let sync = root.get("spec").and_then(|spec| spec.get("sync"));
                let Some((name, repository)) = sync.and_then(|sync| flux_sync(sync, &namespace))
                else {
                    return;
                };
                insert_unless_ambiguous(
                    &mut self.repositories,
                    (cluster, namespace, name),
                    repository,
                );
            }
            "HelmRepository" | "OCIRepository" => {
                let Some(repository) = read_chart_repository(root) else { return };
                let all = if kind == "HelmRepository" {
                    &mut self.helm_repositories
                } else {
                    &mut self.oci_repositories
                };
                insert_unless_ambiguous(all, key, repository);
            }
            "Secret" => self.cluster_secrets.extend(read_cluster_secret(root)),
            // k3s has an object of this kind, too.
            "HelmChart" if is_flux(root) => {
                if let Some(chart) = root.get("spec").and_then(read_helm_chart) {
                    insert_unless_ambiguous(&mut self.helm_charts, key, chart);
                }
            }
            "ArtifactGenerator" => {
                let (cluster, namespace, _) = key;
                for (name, artifact) in read_artifacts(root) {
                    let key = (cluster, namespace.clone(), name);
                    insert_unless_ambiguous(&mut self.artifacts, key, artifact);
                }
            }
            "ConfigMap" => {
                let Some(YamlValue::Map(entries)) = root.get("data").map(|data| &data.value) else {
                    return;
                };
                let pair = |entry: &yaml::YamlEntry<'_>| {
                    Some((entry.key.to_string(), entry.value.text()?.to_owned()))
                };
                insert_unless_ambiguous(
                    &mut self.config_maps,
                    key,
                    entries.iter().filter_map(pair).collect(),
                );
            }
            _ => {}
        }
    }
}

/// Returns the text with placeholders replaced, but for documents that Flux leaves as they are.
fn substitute_documents(text: &str, vars: &Vars) -> String {
    let is_disabled = |document: &str| {
        let mut marks = document.lines().filter(|line| line.contains(SUBSTITUTE_MARK));
        marks.any(|line| line.contains("disabled"))
    };
    let replaced = |document| match document {
        document if is_disabled(document) => Cow::Borrowed(document),
        document => substitute(document, vars).text,
    };
    text.split(DOCUMENT_START).map(replaced).collect::<Vec<_>>().join(DOCUMENT_START)
}

/// Returns name and content of the Git repository that Flux Operator syncs from.
fn flux_sync(sync: &YamlNode<'_>, namespace: &str) -> Option<(String, GitRepository)> {
    let text = |key: &str| sync.get(key)?.text().filter(|text| !text.is_empty());
    if text("kind") != Some("GitRepository") {
        return None;
    }
    let revision = text("ref").unwrap_or("master");
    let revision = revision.strip_prefix("refs/heads/").unwrap_or(revision).to_owned();
    let repository = GitRepository { url: text("url")?.to_owned(), revision, changed: None };
    Some((text("name").unwrap_or(namespace).to_owned(), repository))
}

fn is_yaml(text: &str) -> bool {
    let loaded = yaml::load(text);
    loaded.fault.is_none() && loaded.documents.iter().all(|document| document.faults.is_empty())
}

/// Inserts an object. Of two contradicting definitions, neither counts.
fn insert_unless_ambiguous<T: PartialEq>(
    all: &mut ReferencedObjects<T>,
    key: ReferenceKey,
    object: T,
) {
    let known = all.entry(key);
    let object = Some(object);
    known
        .and_modify(|known| *known = known.take().filter(|known| object.as_ref() == Some(known)))
        .or_insert(object);
}

fn is_flux(root: &YamlNode<'_>) -> bool {
    let version = root.get("apiVersion").and_then(YamlNode::text).unwrap_or_default();
    version.contains("toolkit.fluxcd.io/")
}

/// Reads a `HelmRepository` or `OCIRepository`. The most exact version wins, as in Flux.
fn read_chart_repository(root: &YamlNode<'_>) -> Option<ChartRepository> {
    let spec = root.get("spec")?;
    let own = |key: &str| spec.get("ref")?.get(key)?.text().filter(|text| !text.is_empty());
    let version = ["digest", "semver", "tag"].into_iter().find_map(own).unwrap_or_default();
    let url = spec.get("url")?.text()?.to_owned();
    let is_registry = spec.get("ref").is_some() || text_is(root, "kind", "OCIRepository");
    let version = if version.is_empty() && is_registry { "latest" } else { version };
    Some(ChartRepository { url, version: version.to_owned() })
}

fn text_is(node: &YamlNode<'_>, key: &str, expected: &str) -> bool {
    node.get(key).and_then(YamlNode::text) == Some(expected)
}

/// Reads a `GitRepository`. The most exact revision wins, as in Flux.
fn read_git_repository(root: &YamlNode<'_>) -> Option<GitRepository> {
    let spec = root.get("spec")?;
    let url = spec.get("url")?.text()?.to_owned();
    let own = |key: &str| {
        let text = spec.get("ref")?.get(key)?.text()?;
        Some(text).filter(|text| !text.is_empty())
    };
    let exact = || ["commit", "name"].into_iter().find_map(own).map(str::to_owned);
    let range = || own("semver").map(|range| format!("{TAG_RANGE_PREFIX}{range}"));
    let named = || ["tag", "branch"].into_iter().find_map(own).map(str::to_owned);
    // Without a revision, Flux follows `master`, not the host's default branch.
    let revision = exact().or_else(range).or_else(named).unwrap_or_else(|| "master".to_owned());
    let revision = revision.strip_prefix("refs/heads/").unwrap_or(&revision);
    let is_stated = |key: &str| spec.get(key).is_some_and(|node| !node.is_null());
    let changed = match (is_stated("ignore"), is_stated("include")) {
        (true, _) => Some("leaves files out (`ignore`)"),
        (_, true) => Some("takes files of others in (`include`)"),
        (false, false) => None,
    };
    Some(GitRepository { url, revision: revision.to_owned(), changed })
}

fn delivery_name(
    delivery_kind: DeliveryKind,
    root: &YamlNode<'_>,
    manifest: ManifestText<'_>,
) -> String {
    let kind = match delivery_kind {
        DeliveryKind::Application => "Application",
        DeliveryKind::ApplicationSet => "ApplicationSet",
        DeliveryKind::Kustomization => "Kustomization",
        DeliveryKind::HelmRelease => "HelmRelease",
        DeliveryKind::FluxInstance => "FluxInstance",
    };
    display_name(kind, root, ObjectScope::Namespaced, manifest.namespaces, manifest.vars)
}
