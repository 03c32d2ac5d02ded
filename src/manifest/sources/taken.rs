//! Which files somebody delivers, so that they are not read by themselves.

use std::collections::BTreeMap;

use super::super::delivery::{Content, Delivery, Parcel, Whose};
use super::super::fleet::is_below;
use super::super::layout::{Layout, directory};
use super::super::order::{Order, Recipe, Renderings};
use super::Sources;

/// Deliveries by the path that they take, with the cluster that they take it to.
type By<'a> = BTreeMap<String, Vec<(&'a Delivery, Whose)>>;

/// The files that somebody delivers.
pub(super) struct Taken<'a> {
    /// Single files.
    files: By<'a>,
    /// Directories of kustomizations without those below them.
    directories: By<'a>,
    /// Directories and patterns.
    parcels: Vec<(&'a Delivery, &'a Parcel)>,
}

impl<'a> Taken<'a> {
    pub(super) fn of(sources: &'a Sources, renderings: &'a Renderings, layout: &'a Layout) -> Self {
        let mut taken = Self { files: By::new(), directories: By::new(), parcels: Vec::new() };
        for (delivery, parcel) in sources.parcels() {
            let Content::Rendered(order) = &parcel.content else {
                taken.parcels.push((delivery, parcel));
                continue;
            };
            let by = (delivery, parcel.whose);
            match (renderings.done.get(order), &order.recipe) {
                (Some(Ok(rendered)), _) => {
                    for file in &rendered.files {
                        taken.files.entry(file.clone()).or_default().push(by);
                    }
                }
                (_, Recipe::Helm(_)) => taken.parcels.push((delivery, parcel)),
                // What it is made of is no workload of its own, whatever became of the whole.
                (_, Recipe::Kustomize(layer)) => {
                    let tops = layer.components.iter().chain([&order.path]).cloned();
                    for path in layout.reach(tops) {
                        let is_directory = layout.kustomization_in(&path).is_some();
                        let all =
                            if is_directory { &mut taken.directories } else { &mut taken.files };
                        all.entry(path).or_default().push(by);
                    }
                }
            }
        }
        taken
    }

    /// Returns the cluster to which `path` is delivered by something that is declared elsewhere:
    /// what declares a deliverer stays known, also where that one delivers itself.
    pub(super) fn holds(&self, path: &str) -> Option<Whose> {
        let files = self.files.get(path).into_iter().flatten();
        let directories = self.directories.get(directory(path)).into_iter().flatten();
        let parcels = self.parcels.iter().filter(|(_, parcel)| covers(parcel, path));
        let parcels = parcels.map(|(by, parcel)| (*by, parcel.whose));
        let all = files.chain(directories).copied().chain(parcels);
        let elsewhere = all.filter(|(by, _)| *by.origin.file != *path);
        elsewhere.map(|(_, whose)| whose).min()
    }
}

/// Returns whether the file at `path` is part of a parcel whose files are not known one by one.
pub(super) fn covers(parcel: &Parcel, path: &str) -> bool {
    match &parcel.content {
        Content::Files(files) => files.holds(path),
        Content::Rendered(Order { path: root, recipe: Recipe::Helm(_) }) => is_below(path, root),
        Content::Rendered(Order { path: root, recipe: Recipe::Kustomize(_) }) => {
            directory(path) == root
        }
    }
}
