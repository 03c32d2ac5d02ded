//! The sources of a tree's manifests: plain files, and files that Argo CD, Flux or a renderer
//! delivers.
//!
//! Delivery objects are found in files and in the output of other delivery objects; the search
//! repeats until it finds nothing new. A delivered file is read only through its delivery object:
//! its patches and bases are not workloads of their own. A source that cannot be followed to its
//! end is unresolved.

mod delivered_files;
mod discovery;
mod unresolved_sources;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::cluster_alternatives::Alternatives;
use super::decode::{DEFAULT_NAMESPACES, NamespaceRules};
use super::delivery::{DeliveryObject, Destinations, ManifestContent, ManifestSet, TargetCluster};
use super::exclusive_overlays::exclusive_overlays;
use super::manifest_text::{FileFormat, ManifestText, sorted_by_path};
use super::rendered_origins::{RenderedOrigins, SourceIndex};
use super::repository_layout::RepositoryLayout;
use super::source_area::{SourceArea, area_of, source_areas};
use super::yaml::{self, YamlNode, YamlValue};
use crate::model::desired::{
    Fleet, RenderRequest, RenderResults, Rendered, SourceRequests, Tree, TreeFile, is_external,
    is_settings_file,
};
use crate::model::ids::Namespace;
use delivered_files::DeliveredFiles;

/// Maximum number of rounds in which delivery objects may lead to further ones.
const ROUNDS_MAX: usize = 12;

/// Maximum number of render requests of one tree; twenty times the overlays of the largest known
/// repository.
const RENDER_REQUESTS_MAX: usize = 10_000;

/// Maximum length of a text that may be a path.
const PATH_BYTES_MAX: usize = 1_024;

/// Returns the render requests that `tree` needs, sorted, without those that `renderings` has
/// answered. Their results may lead to more requests.
pub fn render_requests(
    tree: &Tree,
    fleet: &Fleet,
    renderings: &RenderResults,
) -> Vec<RenderRequest> {
    let tree = &*sorted_by_path(tree);
    let (layout, areas) = (RepositoryLayout::from_tree(tree), source_areas(fleet));
    let sources =
        DeliverySources::discover(&SourceContext::new(tree, fleet, &layout, &areas, renderings));
    let render_requests: BTreeSet<&RenderRequest> = sources.render_requests().collect();
    let open =
        render_requests.into_iter().filter(|request| !renderings.results.contains_key(request));
    // Requests beyond the maximum are not run, and are reported as unresolved.
    open.take(RENDER_REQUESTS_MAX.saturating_sub(renderings.results.len())).cloned().collect()
}

/// Returns the external sources that the delivery objects of `tree` request.
pub fn source_requests(tree: &Tree, fleet: &Fleet, renderings: &RenderResults) -> SourceRequests {
    let tree = &*sorted_by_path(tree);
    let (layout, areas) = (RepositoryLayout::from_tree(tree), source_areas(fleet));
    DeliverySources::discover(&SourceContext::new(tree, fleet, &layout, &areas, renderings))
        .requested
}

/// Returns every text of a YAML file that may be a path, as written. `KEY=PATH` gives both.
pub fn candidate_paths(bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(text) = yaml::decode(bytes) else { return found };
    let loaded = yaml::load(&text);
    let mut open: Vec<&YamlNode<'_>> = loaded.documents.iter().map(|doc| &doc.root).collect();
    while let Some(node) = open.pop() {
        match &node.value {
            YamlValue::Map(entries) => open.extend(entries.iter().map(|entry| &entry.value)),
            YamlValue::Seq(items) => open.extend(items),
            YamlValue::Tagged(_, inner) => open.push(inner),
            YamlValue::Plain(text) | YamlValue::Quoted(text) => {
                if text.is_empty() || text.len() > PATH_BYTES_MAX || text.contains('\n') {
                    continue;
                }
                found.push(text.to_string());
                found.extend(text.split_once('=').map(|(_, path)| path.to_owned()));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// A manifest of the tree, or the reason why it is not read by itself.
pub(super) enum VisitedText<'a> {
    Manifest(ManifestText<'a>),
    /// The manifest is for another cluster, or of a stopped object, with the reason. It may still
    /// contain delivery objects for this one.
    OtherCluster(ManifestText<'a>, &'static str),
    Excluded(&'a TreeFile, &'static str),
}

/// All delivery objects of a tree.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DeliverySources {
    deliveries: Vec<DeliveryObject>,
    /// External sources that they request.
    requested: SourceRequests,
    /// Destinations of Argo CD that the settings do not list.
    destinations: Destinations,
    /// Directories that generators exclude.
    excluded_directories: BTreeSet<String>,
}

/// The inputs of the search for delivery objects and of the reading after it.
#[derive(Debug)]
pub(super) struct SourceContext<'a> {
    pub(super) tree: &'a Tree,
    pub(super) fleet: &'a Fleet,
    pub(super) layout: &'a RepositoryLayout,
    pub(super) areas: &'a [SourceArea],
    pub(super) renderings: &'a RenderResults,
    source_index: SourceIndex<'a>,
}

impl<'a> SourceContext<'a> {
    pub(super) fn new(
        tree: &'a Tree,
        fleet: &'a Fleet,
        layout: &'a RepositoryLayout,
        areas: &'a [SourceArea],
        renderings: &'a RenderResults,
    ) -> Self {
        Self { tree, fleet, layout, areas, renderings, source_index: SourceIndex::new(tree) }
    }
}

impl DeliverySources {
    /// Follows delivery objects as far as the renderings allow.
    pub(super) fn discover(context: &SourceContext<'_>) -> Self {
        let (stated, marked) = (context.declared_sources(), context.marked_files());
        let mut sources = Self { deliveries: stated.clone(), ..Self::default() };
        if !marked.values().any(|marks| marks.delivers) && stated.is_empty() {
            return sources;
        }
        for _ in 0..ROUNDS_MAX {
            let mut next = context.delivery_objects(&sources, &marked);
            next.deliveries.splice(..0, stated.iter().cloned());
            if next == sources {
                break;
            }
            sources = next;
        }
        sources
    }

    /// Returns whether the delivery object `object` is followed, or already reported as unresolved.
    pub(super) fn is_followed(&self, object: &str) -> bool {
        self.deliveries.iter().any(|delivery| delivery.object == object)
    }

    /// Returns the destinations of Argo CD that the settings do not list.
    pub(super) fn destinations(&self) -> &Destinations {
        &self.destinations
    }

    /// Returns overlays that exclude each other, and that nothing renders.
    pub(super) fn exclusive_overlays(&self, context: &SourceContext<'_>) -> Vec<Alternatives> {
        let SourceContext { tree, layout, areas, renderings, .. } = context;
        let delivered = DeliveredFiles::new(self, renderings, layout);
        let is_open = |path: &str| {
            !is_external(path)
                && area_of(areas, path).is_some_and(|area| !area.rendered)
                && delivered.cluster_of(path).is_none()
                && delivered.other_overlay(path).is_none()
        };
        exclusive_overlays(tree, layout, &is_open)
    }

    /// Returns the namespaces of the delivery objects that do not remove what Git no longer has.
    pub(super) fn retaining_namespaces(&self) -> BTreeSet<Namespace> {
        let retaining = self.manifest_sets().filter(|(_, set)| set.policy.retains);
        let target = |set: &ManifestSet| {
            set.target_namespace.as_deref().or(set.namespace.as_deref()).map(Namespace::from)
        };
        retaining.filter_map(|(_, set)| target(set)).collect()
    }

    fn manifest_sets(&self) -> impl Iterator<Item = (&DeliveryObject, &ManifestSet)> {
        self.deliveries.iter().flat_map(|delivery| {
            delivery
                .manifest_sets
                .iter()
                .flatten()
                .map(move |manifest_set| (delivery, manifest_set))
        })
    }

    fn render_requests(&self) -> impl Iterator<Item = &RenderRequest> {
        let own = self
            .manifest_sets()
            .filter(|(_, manifest_set)| manifest_set.cluster == TargetCluster::This);
        own.filter_map(|(_, manifest_set)| match &manifest_set.content {
            ManifestContent::Rendered(request) => Some(request),
            ManifestContent::Files(_) => None,
        })
    }

    /// Visits every manifest: plain files first, then delivered ones.
    pub(super) fn visit_manifests(
        &self,
        context: &SourceContext<'_>,
        take: &mut dyn FnMut(VisitedText<'_>),
    ) {
        let SourceContext { tree, areas, renderings, .. } = context;
        let delivered = DeliveredFiles::new(self, renderings, context.layout);
        for file in &tree.files {
            // Delivery objects deliver the files of external sources.
            if is_external(&file.path) {
                continue;
            }
            let Some(area) = area_of(areas, &file.path) else { continue };
            // An unreadable file is an error regardless of its name: it may be a directory.
            let format = match (&file.content, FileFormat::from_path(&file.path)) {
                (Err(_), format) => format.unwrap_or(FileFormat::Yaml),
                (Ok(_), Some(format)) => format,
                (Ok(_), None) => continue,
            };
            if is_settings_file(&file.path) {
                continue;
            }
            if area.rendered && file.content.is_ok() {
                take(VisitedText::Excluded(file, "part of a source that is rendered"));
                continue;
            }
            let mut manifest = ManifestText::from_file(file, format, &area.vars);
            manifest.namespaces.default =
                area.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACES.default);
            match delivered.cluster_of(&file.path).filter(|_| file.content.is_ok()) {
                None if file.content.is_ok() && delivered.other_overlay(&file.path).is_some() => {
                    take(VisitedText::Excluded(file, "overlay of another cluster"));
                }
                None if delivered.leaves_out(file, &area.path) => {
                    take(VisitedText::Excluded(file, "left out by its delivery object"));
                }
                None => take(VisitedText::Manifest(manifest)),
                Some(TargetCluster::This) => {
                    take(VisitedText::Excluded(file, "delivered, not read by itself"));
                }
                Some(TargetCluster::Stopped) => {
                    let reason = "delivered by an object that is suspended or skipped";
                    take(VisitedText::OtherCluster(manifest, reason));
                }
                Some(TargetCluster::Other) => {
                    take(VisitedText::OtherCluster(manifest, "delivered to another cluster"));
                }
            }
        }
        for (delivery, manifest_set) in
            self.manifest_sets().filter(|(_, p)| p.cluster == TargetCluster::This)
        {
            visit_delivered(context, delivery, manifest_set, take);
        }
    }
}

/// Returns a directory for display; the root is `.`.
fn display_directory(directory: &str) -> &str {
    if directory.is_empty() { "." } else { directory }
}

/// Visits the manifests of one set.
fn visit_delivered(
    context: &SourceContext<'_>,
    delivery: &DeliveryObject,
    manifest_set: &ManifestSet,
    take: &mut dyn FnMut(VisitedText<'_>),
) {
    let SourceContext { tree, layout, renderings, source_index, .. } = context;
    let namespaces = NamespaceRules {
        default: manifest_set.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACES.default),
        target: manifest_set.target_namespace.as_deref(),
    };
    let (delivered_by, policy) = (Some(delivery), &manifest_set.policy);
    match &manifest_set.content {
        ManifestContent::Files(files) => {
            let inside = tree.files.iter().filter(|file| files.contains(&file.path));
            for file in inside.filter(|file| layout.exclusion_reason(&file.path).is_none()) {
                let Some(format) = FileFormat::from_path(&file.path) else { continue };
                let plain = ManifestText::from_file(file, format, &manifest_set.vars);
                take(VisitedText::Manifest(ManifestText {
                    namespaces,
                    delivered_by,
                    policy,
                    ..plain
                }));
            }
        }
        ManifestContent::Rendered(request) => {
            let Some(Ok(Rendered { output, .. })) = renderings.results.get(request) else { return };
            let text = String::from_utf8_lossy(output);
            let origins = RenderedOrigins::new(request, &text, source_index);
            let path =
                format!("{} ({})", display_directory(&request.path), request.recipe.as_str());
            let file = TreeFile { path: path.into(), content: Ok(Arc::clone(output)) };
            let plain = ManifestText::from_file(&file, FileFormat::Yaml, &manifest_set.vars);
            take(VisitedText::Manifest(ManifestText {
                namespaces,
                delivered_by,
                origins: Some(&origins),
                policy,
                ..plain
            }));
        }
    }
}
