//! The files that delivery objects deliver, which are not read by themselves.

use std::collections::BTreeMap;

use super::super::delivery::{DeliveryObject, ManifestContent, ManifestSet, TargetCluster};
use super::super::repository_layout::{RepositoryLayout, parent_directory};
use super::super::settings::is_within;
use super::DeliverySources;
use crate::model::desired::{Recipe, RenderRequest, RenderResults};

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
    /// Directories that are delivered as a whole.
    generated: Vec<((&'a DeliveryObject, TargetCluster), &'a str)>,
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
            generated: Vec::new(),
        };
        for (delivery, manifest_set) in sources.manifest_sets() {
            let ManifestContent::Rendered(request) = &manifest_set.content else {
                delivered.manifest_sets.push((delivery, manifest_set));
                continue;
            };
            let by = (delivery, manifest_set.cluster);
            match (renderings.results.get(request), &request.recipe) {
                (Some(Ok(rendered)), _) => {
                    for file in &rendered.files {
                        delivered.files.entry(file.clone()).or_default().push(by);
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
        delivered
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
