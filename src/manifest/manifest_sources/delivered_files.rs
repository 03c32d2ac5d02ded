//! The files that delivery objects deliver, which are not read by themselves.

use std::collections::{BTreeMap, BTreeSet};

use super::super::delivery::{DeliveryObject, ManifestContent, ManifestSet, TargetCluster};
use super::super::repository_layout::{KustomizationFile, RepositoryLayout, parent_directory};
use super::super::settings::is_within;
use super::DeliverySources;
use super::discovery::ContentMarks;
use crate::model::desired::{Layer, Recipe, RenderRequest, RenderResults, TreeFile};

/// Delivery objects and their target clusters, by delivered path.
type DeliveriesByPath<'a> = BTreeMap<String, Vec<(&'a DeliveryObject, TargetCluster)>>;

/// The files that delivery objects deliver.
pub(super) struct DeliveredFiles<'a> {
    /// Single files.
    files: DeliveriesByPath<'a>,
    /// Directories of kustomizations, without their subdirectories.
    directories: DeliveriesByPath<'a>,
    /// Manifest sets given by directory and pattern.
    manifest_sets: Vec<(&'a DeliveryObject, &'a ManifestSet)>,
    /// Directories of rendered kustomizations. Files that they do not list are not delivered.
    rendered_directories: BTreeSet<String>,
    /// Directories with a kustomization that Flux generated, and directories that generators exclude.
    left_out: BTreeSet<&'a str>,
    /// Directories that are delivered as a whole.
    generated: Vec<((&'a DeliveryObject, TargetCluster), &'a str)>,
    /// Overlays of other clusters, with the delivered one of this cluster beside each.
    other_overlays: BTreeMap<&'a str, &'a str>,
}

impl<'a> DeliveredFiles<'a> {
    pub(super) fn new(
        sources: &'a DeliverySources,
        renderings: &'a RenderResults,
        layout: &'a RepositoryLayout,
    ) -> Self {
        let mut delivered = Self {
            files: DeliveriesByPath::new(),
            directories: DeliveriesByPath::new(),
            manifest_sets: Vec::new(),
            rendered_directories: BTreeSet::new(),
            left_out: sources.excluded_directories.iter().map(String::as_str).collect(),
            generated: Vec::new(),
            other_overlays: BTreeMap::new(),
        };
        for (delivery, manifest_set) in sources.manifest_sets() {
            let ManifestContent::Rendered(request) = &manifest_set.content else {
                delivered.manifest_sets.push((delivery, manifest_set));
                continue;
            };
            let by = (delivery, manifest_set.cluster);
            match (renderings.results.get(request), &request.recipe) {
                (Some(Ok(rendered)), recipe) => {
                    for file in &rendered.files {
                        delivered.files.entry(file.clone()).or_default().push(by);
                    }
                    if let Recipe::Kustomize(layer) = recipe {
                        delivered.add_rendered(request, layer, layout);
                    }
                }
                (_, Recipe::Helm(_)) => delivered.manifest_sets.push((delivery, manifest_set)),
                // Flux generates a kustomization of the whole directory.
                (_, Recipe::Kustomize(layer))
                    if layer.is_flux && layout.kustomization_in(&request.path).is_none() =>
                {
                    delivered.generated.push((by, &request.path));
                }
                // The inputs of a kustomization are not workloads of their own, even if rendering
                // fails.
                (_, Recipe::Kustomize(layer)) => {
                    let tops = layer.components.iter().chain([&request.path]).cloned();
                    for path in layout.transitive_bases(tops) {
                        let is_directory = layout.kustomization_in(&path).is_some();
                        let all = if is_directory {
                            &mut delivered.directories
                        } else {
                            &mut delivered.files
                        };
                        all.entry(path).or_default().push(by);
                    }
                }
            }
        }
        if !sources.deliveries.is_empty() {
            delivered.other_overlays = delivered.find_other_overlays(layout);
        }
        delivered
    }

    fn add_rendered(
        &mut self,
        request: &'a RenderRequest,
        layer: &Layer,
        layout: &RepositoryLayout,
    ) {
        if layout.kustomization_in(&request.path).is_none() {
            self.left_out.insert(&request.path);
        }
        let tops = layer.components.iter().chain([&request.path]).cloned();
        let reached = layout.transitive_bases(tops).into_iter();
        self.rendered_directories
            .extend(reached.filter(|path| layout.kustomization_in(path).is_some()));
    }

    /// Returns whether a delivery object has the file in its directory but does not deliver it. A file
    /// with a delivery object stays readable: it is often applied by hand. So does a file whose
    /// `source` in the settings names what is left out.
    pub(super) fn leaves_out(&self, file: &TreeFile, source: &str) -> bool {
        let Ok(bytes) = &file.content else { return false };
        let is_named = !source.is_empty()
            && (*file.path == *source || self.is_below_left_out(&format!("{source}/")));
        !is_named && self.is_left_out(&file.path) && !ContentMarks::from_bytes(bytes).delivers
    }

    /// Returns whether a directory above `path` is left out.
    fn is_below_left_out(&self, path: &str) -> bool {
        path.match_indices('/').any(|(at, _)| self.left_out.contains(&path[..at]))
    }

    pub(super) fn is_left_out(&self, path: &str) -> bool {
        let by_selection = || {
            // What another cluster does not get may be delivered here.
            let own = self.manifest_sets.iter().map(|(_, manifest_set)| manifest_set);
            let mut own = own.filter(|set| set.cluster == TargetCluster::This);
            own.any(|manifest_set| match &manifest_set.content {
                ManifestContent::Files(files) => files.leaves_out(path),
                ManifestContent::Rendered(_) => false,
            })
        };
        self.rendered_directories.contains(parent_directory(path))
            || self.is_below_left_out(path)
            || by_selection()
    }

    /// Returns the overlays that nothing delivers and that build on a base of a delivered overlay in
    /// the same directory. The delivered one is that of this cluster.
    fn find_other_overlays(&self, layout: &'a RepositoryLayout) -> BTreeMap<&'a str, &'a str> {
        let is_overlay = |path: &str, file: &KustomizationFile| {
            !file.is_component && !layout.is_base(path) && path.split('/').count() > 2
        };
        let overlays = layout.kustomizations.iter().filter(|(path, file)| is_overlay(path, file));
        let overlays = overlays.map(|(path, _)| (parent_directory(path), self.cluster_of(path)));
        let (delivered, open): (Vec<_>, Vec<_>) =
            overlays.partition(|(_, cluster)| *cluster == Some(TargetCluster::This));
        let mut by_base: BTreeMap<(&str, String), &str> = BTreeMap::new();
        for (directory, _) in delivered {
            for base in bases_elsewhere(layout, directory) {
                by_base.entry((parent_directory(directory), base)).or_insert(directory);
            }
        }
        let open = open.into_iter().filter(|(_, cluster)| cluster.is_none());
        let other = open.filter_map(|(directory, _)| {
            let parent = parent_directory(directory);
            let mut bases = bases_elsewhere(layout, directory).into_iter();
            let beside = bases.find_map(|base| by_base.get(&(parent, base)))?;
            Some((directory, *beside))
        });
        other.collect()
    }

    /// Returns the overlay of another cluster that has the file at `path`, with the delivered overlay
    /// beside it.
    pub(super) fn other_overlay(&self, path: &str) -> Option<(&'a str, &'a str)> {
        let mut above = path.match_indices('/').map(|(at, _)| &path[..at]);
        let found = above.find_map(|directory| self.other_overlays.get_key_value(directory));
        found.map(|(overlay, beside)| (*overlay, *beside))
    }

    /// Returns the cluster to which another file's delivery object delivers `path`. A delivery
    /// object's own file stays readable, even if it delivers itself.
    pub(super) fn cluster_of(&self, path: &str) -> Option<TargetCluster> {
        let files = self.files.get(path).into_iter().flatten();
        let directories = self.directories.get(parent_directory(path)).into_iter().flatten();
        let manifest_sets =
            self.manifest_sets.iter().filter(|(_, manifest_set)| may_contain(manifest_set, path));
        let manifest_sets = manifest_sets.map(|(by, manifest_set)| (*by, manifest_set.cluster));
        let generated = self.generated.iter().filter(|(_, root)| is_within(path, root));
        let generated = generated.map(|(by, _)| *by);
        let all = files.chain(directories).copied().chain(manifest_sets).chain(generated);
        let elsewhere = all.filter(|(by, _)| *by.origin.file != *path);
        elsewhere.map(|(_, cluster)| cluster).min()
    }
}

/// Returns the directories of bases outside of the overlay in `directory`, without components.
fn bases_elsewhere(layout: &RepositoryLayout, directory: &str) -> Vec<String> {
    let all = layout.transitive_bases([directory.to_owned()]).into_iter();
    let is_base = |path: &str| layout.kustomization_in(path).is_some_and(|base| !base.is_component);
    all.filter(|path| !is_within(path, directory) && is_base(path)).collect()
}

/// Returns whether the file at `path` may belong to a set whose files are not known one by one.
pub(super) fn may_contain(manifest_set: &ManifestSet, path: &str) -> bool {
    match &manifest_set.content {
        ManifestContent::Files(files) => files.contains(path),
        ManifestContent::Rendered(RenderRequest { path: root, recipe: Recipe::Helm(_) }) => {
            is_within(path, root)
        }
        ManifestContent::Rendered(RenderRequest { path: root, recipe: Recipe::Kustomize(_) }) => {
            parent_directory(path) == root
        }
    }
}
