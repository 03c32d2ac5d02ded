//! What the layout of a repository says about its files: Helm charts, kustomizations, and the
//! patches that only mean something inside one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::fleet::normal_path;
use super::model::{Tree, TreeFile};
use super::yaml::{self, Node, Value};

/// Names of a kustomization file.
const KUSTOMIZATION: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Keys of a kustomization that change neither which pods there are nor what they ask for.
const HARMLESS: &[&str] = &[
    "apiVersion",
    "buildMetadata",
    "commonAnnotations",
    "commonLabels",
    "configMapGenerator",
    "generatorOptions",
    "images",
    "kind",
    "labels",
    "metadata",
    "resources",
    "secretGenerator",
];

/// What the layout says.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Directories of Helm templates, with `/` at their end.
    templates: BTreeSet<String>,
    /// Directories of charts that make objects, with the path of their description.
    charts: BTreeMap<String, Arc<str>>,
    /// Kustomizations, by path.
    pub(super) kustomizations: BTreeMap<Arc<str>, Kustomization>,
    /// Directories that kustomizations are built on.
    bases: BTreeSet<String>,
    /// Files that are patches, with the kustomization that applies them.
    patches: BTreeMap<String, Arc<str>>,
}

/// What a kustomization asks for beyond reading files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Kustomization {
    /// The keys that change what is below it, in the order of the file.
    pub(super) changes: Vec<String>,
    /// Whether it takes charts or resources from elsewhere.
    pub(super) remote: bool,
}

/// Returns whether `path` is that of a kustomization file.
pub(super) fn is_kustomization(path: &str) -> bool {
    KUSTOMIZATION.contains(&file_name(path))
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Returns the directory of `path`; the root is empty.
pub(super) fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

impl Layout {
    /// Looks through the names of `tree`, and into its kustomizations.
    pub(super) fn of(tree: &Tree) -> Self {
        let mut layout = Self::default();
        for file in &tree.files {
            if matches!(file_name(&file.path), "Chart.yaml" | "Chart.yml") {
                let chart = directory(&file.path);
                let slash = if chart.is_empty() { "" } else { "/" };
                layout.templates.insert(format!("{chart}{slash}templates/"));
                if !is_library(file) {
                    layout.charts.insert(chart.to_owned(), Arc::clone(&file.path));
                }
            } else if is_kustomization(&file.path) {
                layout.read_kustomization(file);
            }
        }
        layout
    }

    fn read_kustomization(&mut self, file: &TreeFile) {
        // Files that cannot be read or parsed are reported where every file is read.
        let Ok(bytes) = &file.content else { return };
        let Ok(text) = yaml::decode(bytes) else { return };
        let loaded = yaml::load(&text);
        let Some(document) = loaded.documents.first() else { return };
        let Value::Map(entries) = &document.root.value else { return };
        let mut read = Kustomization::default();
        let base = directory(&file.path);
        for entry in entries {
            match &*entry.key {
                "resources" | "bases" | "components" => {
                    let items = texts(&entry.value);
                    let inside = items.iter().filter_map(|item| normal_path(base, item));
                    self.bases.extend(inside);
                    read.remote |= items.iter().any(|item| is_remote(item));
                    if &*entry.key != "resources" || !items.iter().all(|item| is_file(item)) {
                        read.changes.push(entry.key.to_string());
                    }
                }
                "helmCharts" | "helmChartInflationGenerator" => {
                    read.remote = true;
                    read.changes.push(entry.key.to_string());
                }
                key if HARMLESS.contains(&key) => {}
                _ => read.changes.push(entry.key.to_string()),
            }
            if matches!(&*entry.key, "patches" | "patchesStrategicMerge" | "patchesJson6902") {
                for path in patch_paths(&entry.value) {
                    if let Some(path) = normal_path(base, path) {
                        self.patches.insert(path, Arc::clone(&file.path));
                    }
                }
            }
        }
        self.kustomizations.insert(Arc::clone(&file.path), read);
    }

    /// Returns whether the directory `path` is a chart that makes objects.
    pub(super) fn is_chart(&self, path: &str) -> bool {
        self.charts.contains_key(path)
    }

    /// Returns whether a kustomization elsewhere is built on the directory of the one at `path`.
    pub(super) fn is_base(&self, path: &str) -> bool {
        self.bases.contains(directory(path))
    }

    /// Returns the charts that make objects by themselves: those inside another chart are part of it.
    pub(super) fn charts(&self) -> impl Iterator<Item = (&str, &Arc<str>)> {
        let inner = |chart: &str| {
            let mut above = chart.match_indices("/charts/").map(|(at, _)| &chart[..at]);
            above.any(|outer| self.charts.contains_key(outer))
                || (chart.starts_with("charts/") && self.charts.contains_key(""))
        };
        let all = self.charts.iter().map(|(chart, path)| (chart.as_str(), path));
        all.filter(move |(chart, _)| !inner(chart))
    }

    /// Returns why the file at `path` is no input by its place; `None` where it may be one.
    pub(super) fn excludes(&self, path: &str) -> Option<String> {
        let inside = |templates: &&String| path.starts_with(templates.as_str());
        if self.templates.iter().any(|templates| inside(&templates)) {
            return Some("template of a Helm chart".to_owned());
        }
        self.patches.get(path).map(|by| format!("patch of {by}"))
    }
}

/// Returns whether a chart only lends templates to other charts.
fn is_library(file: &TreeFile) -> bool {
    // What cannot be read or parsed is reported where every file is read, and may make objects.
    let Ok(bytes) = &file.content else { return false };
    let Ok(text) = yaml::decode(bytes) else { return false };
    let loaded = yaml::load(&text);
    let kind = loaded.documents.first().and_then(|document| document.root.get("type"));
    kind.and_then(Node::text) == Some("library")
}

fn texts<'n>(node: &'n Node<'_>) -> Vec<&'n str> {
    let Value::Seq(items) = &node.value else { return Vec::new() };
    items.iter().filter_map(Node::text).collect()
}

/// Returns the files that a list of patches names: as texts, or under `path`.
fn patch_paths<'n>(node: &'n Node<'_>) -> Vec<&'n str> {
    let Value::Seq(items) = &node.value else { return Vec::new() };
    let path = |item: &'n Node<'_>| item.text().or_else(|| item.get("path").and_then(Node::text));
    items.iter().filter_map(path).filter(|path| !path.contains('\n')).collect()
}

fn is_file(item: &str) -> bool {
    !is_remote(item) && [".yaml", ".yml", ".json"].iter().any(|end| item.ends_with(end))
}

fn is_remote(item: &str) -> bool {
    item.contains("://") || item.contains("?ref=") || item.starts_with("github.com/")
}
