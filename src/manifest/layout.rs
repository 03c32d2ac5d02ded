//! What the layout of a repository says about its files: Helm charts, kustomizations, and the
//! patches that only mean something inside one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::fleet::normal_path;
use super::model::{Tree, TreeFile};
use super::yaml::{self, Node, Value};

/// Most files and directories that one kustomization is followed to; a tool would not be given
/// more.
const REACH_MAX: usize = 20_000;

/// Names of a kustomization file.
pub(crate) const KUSTOMIZATION: [&str; 3] =
    ["kustomization.yaml", "kustomization.yml", "Kustomization"];

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
    /// What it is built on: files, and directories with a kustomization of their own.
    built_on: Vec<String>,
}

/// Returns whether `path` is that of a kustomization file.
pub(super) fn is_kustomization(path: &str) -> bool {
    KUSTOMIZATION.contains(&file_name(path))
}

/// Returns the path of `name` in `directory`; the root is empty.
pub(crate) fn below(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
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
                    read.built_on.extend(inside);
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
        self.bases.extend(read.built_on.iter().cloned());
        self.kustomizations.insert(Arc::clone(&file.path), read);
    }

    /// Returns what the kustomizations in `directories` are built on, by way of others as well:
    /// files, and directories, themselves included.
    pub(super) fn reach(&self, directories: impl IntoIterator<Item = String>) -> BTreeSet<String> {
        let mut open: Vec<String> = directories.into_iter().collect();
        let mut reached = BTreeSet::new();
        while let Some(path) = open.pop() {
            if reached.len() >= REACH_MAX || reached.contains(&path) {
                continue;
            }
            open.extend(self.kustomization_in(&path).into_iter().flat_map(|k| k.built_on.clone()));
            reached.insert(path);
        }
        reached
    }

    /// Returns the kustomization in `directory`.
    pub(super) fn kustomization_in(&self, directory: &str) -> Option<&Kustomization> {
        let mut paths = KUSTOMIZATION.iter().map(|name| below(directory, name));
        paths.find_map(|path| self.kustomizations.get(path.as_str()))
    }

    /// Returns whether the directory `path` is a chart that makes objects.
    pub(super) fn is_chart(&self, path: &str) -> bool {
        self.charts.contains_key(path)
    }

    /// Returns whether a kustomization elsewhere is built on the directory of the one at `path`.
    pub(super) fn is_base(&self, path: &str) -> bool {
        self.bases.contains(directory(path))
    }

    /// Returns the charts that make objects by themselves: those inside another chart are part of
    /// it.
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

/// What a kustomization loads, as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loads {
    /// Files and directories, of which a directory may lie anywhere.
    pub built_on: Vec<String>,
    /// What comes from elsewhere: URLs, repositories, charts.
    pub remote: Vec<String>,
}

/// Keys whose values are files or directories to build on.
const BUILDS_ON: [&str; 6] =
    ["resources", "bases", "components", "generators", "transformers", "validators"];

/// Keys whose values name files, and the keys of the items that do; none means the item itself.
const FILES: [(&str, &[&str]); 9] = [
    ("configMapGenerator", &["files", "env", "envs"]),
    ("configurations", &[]),
    ("crds", &[]),
    ("openapi", &["path"]),
    ("patches", &["path"]),
    ("patchesJson6902", &["path"]),
    ("patchesStrategicMerge", &[]),
    ("replacements", &["path"]),
    ("secretGenerator", &["files", "env", "envs"]),
];

/// Returns what a kustomization file loads; nothing where it cannot be parsed.
#[must_use]
pub fn loads(bytes: &[u8]) -> Loads {
    let mut found = Loads::default();
    let Ok(text) = yaml::decode(bytes) else { return found };
    let loaded = yaml::load(&text);
    for document in &loaded.documents {
        let Value::Map(entries) = &document.root.value else { continue };
        for entry in entries {
            let key = &*entry.key;
            if matches!(key, "helmCharts" | "helmChartInflationGenerator") {
                found.remote.push(key.to_owned());
            } else if BUILDS_ON.contains(&key) {
                found.built_on.extend(texts(&entry.value).into_iter().map(str::to_owned));
            } else if let Some((_, keys)) = FILES.iter().find(|(known, _)| *known == key) {
                let named = named_files(&entry.value, keys);
                found.remote.extend(named.into_iter().filter(|path| is_remote(path)));
            }
        }
    }
    // Inline objects are no paths.
    found.built_on.retain(|item| !item.contains('\n'));
    let (remote, built_on) = found.built_on.into_iter().partition(|item| is_remote(item));
    found.built_on = built_on;
    found.remote.extend::<Vec<String>>(remote);
    found
}

fn named_files(node: &Node<'_>, keys: &[&str]) -> Vec<String> {
    let items = match &node.value {
        Value::Seq(items) => items.iter().collect(),
        Value::Plain(_) | Value::Quoted(_) | Value::Map(_) | Value::Tagged(..) => vec![node],
    };
    let own = |item: &Node<'_>| match &item.value {
        Value::Seq(_) => texts(item).into_iter().map(str::to_owned).collect(),
        Value::Plain(_) | Value::Quoted(_) | Value::Map(_) | Value::Tagged(..) => {
            item.text().map(str::to_owned).into_iter().collect::<Vec<_>>()
        }
    };
    let of_item = |item: &&Node<'_>| -> Vec<String> {
        if keys.is_empty() {
            return own(item);
        }
        keys.iter().filter_map(|key| item.get(key)).flat_map(own).collect()
    };
    items.iter().flat_map(of_item).filter(|path| !path.contains('\n')).collect()
}

fn is_file(item: &str) -> bool {
    !is_remote(item) && [".yaml", ".yml", ".json"].iter().any(|end| item.ends_with(end))
}

/// Returns whether kustomize would fetch `item`: a URL, or what it takes for a Git repository.
fn is_remote(item: &str) -> bool {
    let item = item.to_ascii_lowercase();
    let starts = ["github.com/", "github.com:", "git::", "git@", "gh:", "org-"];
    let marks = ["://", "?ref=", "&ref=", "?version=", ".git/", "_git/"];
    let is_repository = item.rsplit_once('.').is_some_and(|(_, end)| end == "git");
    is_repository
        || marks.iter().any(|mark| item.contains(mark))
        || starts.iter().any(|start| item.starts_with(start))
}
