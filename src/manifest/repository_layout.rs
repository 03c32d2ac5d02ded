//! The layout of a repository: Helm charts, kustomizations, and the patches that belong to one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::chart_index::{ChartDependency, chart_dependencies};
use super::remote_reference::chart_source;
use super::settings::normal_path;
use super::yaml::{self, YamlFault, YamlNode, YamlValue};
use crate::model::desired::{ExternalSource, Tree, TreeFile};

/// Maximum number of files and directories that a kustomization is followed to; a tool receives no
/// more.
const TRANSITIVE_BASES_MAX: usize = 20_000;

/// File names of a kustomization.
pub(crate) const KUSTOMIZATION: [&str; 3] =
    ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Keys of a kustomization that change neither the number of pods nor their requests.
const HARMLESS_KEYS: &[&str] = &[
    "apiVersion",
    "buildMetadata",
    "commonAnnotations",
    "configMapGenerator",
    "generatorOptions",
    "images",
    "kind",
    "metadata",
    "resources",
    "secretGenerator",
];

/// Texts of a file whose objects may select pods by their labels in a way that affects capacity:
/// affinity, spread, disruption budgets and Fargate profiles.
const POD_SELECTORS: [&str; 4] =
    ["labelSelector", "PodDisruptionBudget", "fargateProfiles", "FargateProfile"];

/// The layout of a repository.
#[derive(Debug, Default)]
pub(super) struct RepositoryLayout {
    /// Directories of Helm templates, each with a trailing `/`.
    templates: BTreeSet<String>,
    /// Directories of charts that render objects, with the path of `Chart.yaml`.
    charts: BTreeMap<String, Arc<str>>,
    /// Kustomizations, by path.
    pub(super) kustomizations: BTreeMap<Arc<str>, KustomizationFile>,
    /// Directories of charts that other charts use from a directory.
    dependencies: BTreeSet<String>,
    /// Directories that kustomizations use as bases.
    bases: BTreeSet<String>,
    /// Patch files, with the kustomization that applies them.
    patches: BTreeMap<String, Arc<str>>,
}

/// The contents of a kustomization file that affect reading.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KustomizationFile {
    /// The keys that change its objects, in the order of the file.
    pub(super) changes: Vec<String>,
    /// True for a component, which only other kustomizations can use.
    pub(super) is_component: bool,
    /// Keys that add labels to pods, and the labels.
    pod_labels: Vec<(String, BTreeSet<String>)>,
    /// Files and directories that it builds on.
    bases: Vec<String>,
    /// The values of `namespace`, `namePrefix` and `nameSuffix`.
    pub(super) renames: BTreeMap<&'static str, String>,
}

/// Returns whether `path` is a kustomization file.
pub(super) fn is_kustomization(path: &str) -> bool {
    KUSTOMIZATION.contains(&file_name(path))
}

/// Returns the path of `name` in `directory`; the root is empty.
pub(crate) fn join_path(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Returns the directory of `path`; the root is empty.
pub(super) fn parent_directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

impl RepositoryLayout {
    /// Reads the file names of `tree` and its kustomizations.
    pub(super) fn from_tree(tree: &Tree) -> Self {
        let mut layout = Self::default();
        for file in &tree.files {
            if matches!(file_name(&file.path), "Chart.yaml" | "Chart.yml") {
                let chart = parent_directory(&file.path);
                layout.dependencies.extend(local_dependencies(file));
                let slash = if chart.is_empty() { "" } else { "/" };
                layout.templates.insert(format!("{chart}{slash}templates/"));
                if !is_library(file) {
                    layout.charts.insert(chart.to_owned(), Arc::clone(&file.path));
                }
            } else if is_kustomization(&file.path) {
                layout.read_kustomization(file);
            } else if file_name(&file.path) == "requirements.yaml" {
                layout.dependencies.extend(local_dependencies(file));
            }
        }
        layout.add_label_changes(tree);
        layout
    }

    /// Adds the keys that label pods to the changes of their kustomizations, if a file may select
    /// pods by one of these labels.
    fn add_label_changes(&mut self, tree: &Tree) {
        if self.kustomizations.values().all(|file| file.pod_labels.is_empty()) {
            return;
        }
        let text = |file: &TreeFile| {
            let text = yaml::decode(file.content.as_ref().ok()?).ok()?;
            let selects = POD_SELECTORS.iter().any(|mark| text.contains(mark));
            selects.then(|| text.into_owned())
        };
        let selecting = tree.files.iter().filter(|file| !is_kustomization(&file.path));
        let selecting: Vec<String> = selecting.filter_map(text).collect();
        for file in self.kustomizations.values_mut() {
            for (key, labels) in std::mem::take(&mut file.pod_labels) {
                let is_used =
                    |label: &String| selecting.iter().any(|text| text.contains(label.as_str()));
                if labels.iter().any(is_used) {
                    file.changes.push(key);
                }
            }
        }
    }

    fn read_kustomization(&mut self, file: &TreeFile) {
        // Unreadable files are reported where every file is read.
        let Ok(bytes) = &file.content else { return };
        let Ok(text) = yaml::decode(bytes) else { return };
        let loaded = yaml::load(&text);
        let Some(document) = loaded.documents.first() else { return };
        let YamlValue::Map(entries) = &document.root.value else { return };
        let mut read = KustomizationFile::default();
        let base = parent_directory(&file.path);
        for entry in entries {
            let key = kustomization_key(&entry.key).unwrap_or(&*entry.key);
            let rename = ["namespace", "namePrefix", "nameSuffix"].into_iter().find(|k| *k == key);
            if let (Some(key), Some(text)) = (rename, entry.value.text()) {
                read.renames.insert(key, text.to_owned());
            }
            match key {
                "resources" | "bases" | "components" => {
                    let items = scalar_texts(&entry.value);
                    let inside = items.iter().filter_map(|item| normal_path(base, item));
                    read.bases.extend(inside);
                    if key != "resources" || !items.iter().all(|item| is_file(item)) {
                        read.changes.push(entry.key.to_string());
                    }
                }
                "kind" => read.is_component = is_component(&entry.value),
                "commonLabels" | "labels" => {
                    let labels = pod_labels(&entry.value);
                    read.pod_labels.push((entry.key.to_string(), labels));
                }
                key if HARMLESS_KEYS.contains(&key) => {}
                _ => read.changes.push(entry.key.to_string()),
            }
            if matches!(key, "patches" | "patchesStrategicMerge" | "patchesJson6902") {
                for path in patch_paths(&entry.value) {
                    if let Some(path) = normal_path(base, path) {
                        self.patches.insert(path, Arc::clone(&file.path));
                    }
                }
            }
        }
        self.bases.extend(read.bases.iter().cloned());
        self.kustomizations.insert(Arc::clone(&file.path), read);
    }

    /// Returns all files and directories that the kustomizations in `directories` build on,
    /// directly or indirectly, themselves included.
    pub(super) fn transitive_bases(
        &self,
        directories: impl IntoIterator<Item = String>,
    ) -> BTreeSet<String> {
        let mut open: Vec<String> = directories.into_iter().collect();
        let mut reached = BTreeSet::new();
        while let Some(path) = open.pop() {
            if reached.len() >= TRANSITIVE_BASES_MAX || reached.contains(&path) {
                continue;
            }
            open.extend(self.kustomization_in(&path).into_iter().flat_map(|k| k.bases.clone()));
            reached.insert(path);
        }
        reached
    }

    /// Returns the kustomization in `directory`.
    pub(super) fn kustomization_in(&self, directory: &str) -> Option<&KustomizationFile> {
        self.kustomization_entry(directory).map(|(_, file)| file)
    }

    /// Returns the path of the kustomization in `directory`.
    pub(super) fn kustomization_path(&self, directory: &str) -> Option<&str> {
        self.kustomization_entry(directory).map(|(path, _)| path)
    }

    fn kustomization_entry(&self, directory: &str) -> Option<(&str, &KustomizationFile)> {
        let mut paths = KUSTOMIZATION.iter().map(|name| join_path(directory, name));
        let found = paths.find_map(|path| self.kustomizations.get_key_value(path.as_str()));
        found.map(|(path, file)| (&**path, file))
    }

    /// Returns the kustomization in the nearest directory of the file at `path` that has one.
    pub(super) fn kustomization_above(&self, path: &str) -> Option<&KustomizationFile> {
        let mut above = std::iter::successors(Some(parent_directory(path)), |directory| {
            (!directory.is_empty()).then(|| parent_directory(directory))
        });
        above.find_map(|directory| self.kustomization_in(directory))
    }

    /// Returns whether the directory `path` is a chart that renders objects.
    pub(super) fn is_chart(&self, path: &str) -> bool {
        self.charts.contains_key(path)
    }

    /// Returns whether another chart uses the one in the directory `path`.
    pub(super) fn is_dependency(&self, path: &str) -> bool {
        self.dependencies.contains(path)
    }

    /// Returns whether another kustomization builds on the directory of the one at `path`.
    pub(super) fn is_base(&self, path: &str) -> bool {
        self.bases.contains(parent_directory(path))
    }

    /// Returns the charts that render objects by themselves, without subcharts.
    pub(super) fn charts(&self) -> impl Iterator<Item = (&str, &Arc<str>)> {
        let inner = |chart: &str| {
            let mut above = chart.match_indices("/charts/").map(|(at, _)| &chart[..at]);
            above.any(|outer| self.charts.contains_key(outer))
                || (chart.starts_with("charts/") && self.charts.contains_key(""))
        };
        let all = self.charts.iter().map(|(chart, path)| (chart.as_str(), path));
        all.filter(move |(chart, _)| !inner(chart))
    }

    /// Returns the reason why the file at `path` is not an input; `None` if it may be one.
    pub(super) fn exclusion_reason(&self, path: &str) -> Option<String> {
        let inside = |templates: &&String| path.starts_with(templates.as_str());
        if self.templates.iter().any(|templates| inside(&templates)) {
            return Some("template of a Helm chart".to_owned());
        }
        if self.kustomization_above(path).is_some_and(|of| of.is_component) {
            return Some("part of a kustomize component".to_owned());
        }
        self.patches.get(path).map(|by| format!("patch of {by}"))
    }
}

fn is_component(kind: &YamlNode<'_>) -> bool {
    kind.text() == Some("Component")
}

/// Returns the labels that a value of `commonLabels` or `labels` adds to pods.
fn pod_labels(value: &YamlNode<'_>) -> BTreeSet<String> {
    let keys = |node: &YamlNode<'_>| match &node.value {
        YamlValue::Map(entries) => entries.iter().map(|entry| entry.key.to_string()).collect(),
        YamlValue::Plain(_) | YamlValue::Quoted(_) | YamlValue::Seq(_) | YamlValue::Tagged(..) => {
            Vec::new()
        }
    };
    let YamlValue::Seq(items) = &value.value else { return keys(value).into_iter().collect() };
    let reaches_pods = |item: &&YamlNode<'_>| {
        let states = |key| json_fields(item, key).any(|node| node.text() == Some("true"));
        let names_fields = json_fields(item, "fields").next().is_some();
        states("includeSelectors") || states("includeTemplates") || names_fields
    };
    let pairs = items.iter().filter(reaches_pods).flat_map(|item| json_fields(item, "pairs"));
    pairs.flat_map(keys).collect()
}

/// Returns the directories of the charts that a chart uses by their path.
fn local_dependencies(file: &TreeFile) -> Vec<String> {
    let Ok(bytes) = &file.content else { return Vec::new() };
    let chart = parent_directory(&file.path);
    let path = |dependency: ChartDependency| {
        normal_path(chart, dependency.repository.strip_prefix("file://")?)
    };
    chart_dependencies(bytes, None).into_iter().filter_map(path).collect()
}

/// Returns whether a chart only provides templates to other charts.
fn is_library(file: &TreeFile) -> bool {
    // An unreadable file is reported where every file is read, and may render objects.
    let Ok(bytes) = &file.content else { return false };
    let Ok(text) = yaml::decode(bytes) else { return false };
    let loaded = yaml::load(&text);
    let kind = loaded.documents.first().and_then(|document| document.root.get("type"));
    kind.and_then(YamlNode::text) == Some("library")
}

fn scalar_texts<'n>(node: &'n YamlNode<'_>) -> Vec<&'n str> {
    let YamlValue::Seq(items) = &node.value else { return Vec::new() };
    items.iter().filter_map(YamlNode::text).collect()
}

/// Keys of a kustomization. Kustomize refuses any other.
const KUSTOMIZATION_KEYS: [&str; 34] = [
    "apiVersion",
    "bases",
    "buildMetadata",
    "commonAnnotations",
    "commonLabels",
    "components",
    "configMapGenerator",
    "configurations",
    "crds",
    "generatorOptions",
    "generators",
    "helmChartInflationGenerator",
    "helmCharts",
    "helmGlobals",
    "images",
    "imageTags",
    "kind",
    "labels",
    "metadata",
    "namePrefix",
    "nameSuffix",
    "namespace",
    "openapi",
    "patches",
    "patchesJson6902",
    "patchesStrategicMerge",
    "replacements",
    "replicas",
    "resources",
    "secretGenerator",
    "sortOptions",
    "transformers",
    "validators",
    "vars",
];

/// Returns the key that kustomize reads as `key`; `None` if there is none. Kustomize reads `Resources`
/// as `resources`, because Go compares the keys of JSON objects without case.
fn kustomization_key(key: &str) -> Option<&'static str> {
    KUSTOMIZATION_KEYS.into_iter().find(|known| is_same_json_key(key, known))
}

/// Compares keys as Go does when it decodes JSON: by Unicode simple folding, to which two letters
/// outside of ASCII belong.
fn is_same_json_key(key: &str, ascii: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key.chars().map(fold).eq(ascii.chars().map(fold))
}

/// Returns all values whose keys Go reads as `key`.
fn json_fields<'n, 't>(
    node: &'n YamlNode<'t>,
    key: &'n str,
) -> impl Iterator<Item = &'n YamlNode<'t>> + use<'n, 't> {
    let entries = match &node.value {
        YamlValue::Map(entries) => entries.as_slice(),
        YamlValue::Plain(_) | YamlValue::Quoted(_) | YamlValue::Seq(_) | YamlValue::Tagged(..) => {
            &[]
        }
    };
    entries.iter().filter(move |entry| is_same_json_key(&entry.key, key)).map(|entry| &entry.value)
}

/// Returns the files in a list of patches: as strings, or under `path`.
fn patch_paths<'n>(node: &'n YamlNode<'_>) -> Vec<&'n str> {
    let YamlValue::Seq(items) = &node.value else { return Vec::new() };
    let path = |item: &'n YamlNode<'_>| {
        item.text().or_else(|| json_fields(item, "path").find_map(YamlNode::text))
    };
    items.iter().filter_map(path).filter(|path| !path.contains('\n')).collect()
}

/// The files that a kustomization loads, as written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KustomizationReferences {
    /// Files and directories to build on. A directory may be anywhere.
    pub bases: Vec<String>,
    /// URLs and remote repositories.
    pub remote: Vec<String>,
    /// The reason that the references are not all known: the file cannot be parsed, or it has a key
    /// that kustomize does not know.
    pub unknown: Option<String>,
    /// Charts that kustomize renders with Helm.
    pub charts: Vec<InflatedChart>,
    /// Reason why kustomize cannot render its charts from files.
    pub unsupported: Option<&'static str>,
    /// True for a component, which only other kustomizations can use.
    pub is_component: bool,
}

/// A chart that kustomize renders with Helm (`helmCharts`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InflatedChart {
    /// The source of the chart; `None` if the chart is in the directory.
    pub source: Option<ExternalSource>,
    /// Directory in which kustomize expects the chart, relative to the kustomization.
    pub directory: String,
}

/// Reads `helmCharts` and `helmGlobals`.
///
/// kustomize compares keys without case.
fn inflated_charts(charts: &YamlNode<'_>, root: &YamlNode<'_>) -> Vec<InflatedChart> {
    let text = |node: &YamlNode<'_>, key: &'static str| {
        json_fields(node, key).last().and_then(YamlNode::text).unwrap_or_default().to_owned()
    };
    let home = json_fields(root, "helmGlobals").last().map(|globals| text(globals, "chartHome"));
    let home = home.filter(|home| !home.is_empty()).unwrap_or_else(|| "charts".to_owned());
    let YamlValue::Seq(items) = &charts.value else { return Vec::new() };
    let chart = |item: &YamlNode<'_>| {
        let (name, version, repo) = (text(item, "name"), text(item, "version"), text(item, "repo"));
        if repo.is_empty() {
            return InflatedChart { source: None, directory: format!("{home}/{name}") };
        }
        // kustomize separates the versions of a downloaded chart.
        let directory = if version.is_empty() {
            format!("{home}/{name}")
        } else {
            format!("{home}/{name}-{version}/{name}")
        };
        let source = chart_source(&repo, &name, &version);
        InflatedChart { source: Some(source), directory }
    };
    items.iter().map(chart).collect()
}

/// Maximum characters of an unknown key in a message.
const KEY_CHARS_MAX: usize = 60;

/// Keys whose values are files or directories to build on.
const BUILDS_ON: [&str; 6] =
    ["resources", "bases", "components", "generators", "transformers", "validators"];

/// Keys whose values name files, and the item keys that do; none means the item itself.
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

/// Returns the files that a kustomization loads.
pub fn kustomization_references(bytes: &[u8]) -> KustomizationReferences {
    let mut found = KustomizationReferences::default();
    let text = match yaml::decode(bytes) {
        Ok(text) => text,
        Err(fault) => {
            found.unknown = Some(format!("cannot be parsed: it {fault}"));
            return found;
        }
    };
    let loaded = yaml::load(&text);
    found.unknown = loaded.fault.as_ref().map(|fault| {
        let YamlFault { line, message, .. } = fault;
        format!("cannot be parsed: line {line}: {message}")
    });
    for document in &loaded.documents {
        let YamlValue::Map(entries) = &document.root.value else { continue };
        for entry in entries {
            let Some(key) = kustomization_key(&entry.key) else {
                let key: String = entry.key.chars().take(KEY_CHARS_MAX).collect();
                found
                    .unknown
                    .get_or_insert(format!("has the key `{key}`, which kustomize does not know"));
                continue;
            };
            if key == "kind" {
                found.is_component = is_component(&entry.value);
            } else if key == "helmCharts" {
                found.charts.extend(inflated_charts(&entry.value, &document.root));
            } else if key == "helmChartInflationGenerator" {
                found.unsupported = Some("helmChartInflationGenerator; write it as helmCharts");
            } else if BUILDS_ON.contains(&key) {
                found.bases.extend(scalar_texts(&entry.value).into_iter().map(str::to_owned));
            } else if let Some((_, keys)) = FILES.iter().find(|(known, _)| *known == key) {
                let named = named_files(&entry.value, keys);
                found.remote.extend(named.into_iter().filter(|path| is_remote(path)));
            }
        }
    }
    // Inline objects are not paths.
    found.bases.retain(|item| !item.contains('\n'));
    let (remote, bases) = found.bases.into_iter().partition(|item| is_remote(item));
    found.bases = bases;
    found.remote.extend::<Vec<String>>(remote);
    found
}

/// Returns whether a kustomization in `directory` cannot name a file outside of the repository.
///
/// Without its load restrictor, kustomize reads every file that a kustomization names. So each text
/// of the file counts, wherever it is: a text that could be a path to the outside, or an absolute
/// one, is none that stays inside. Generators and transformers have further files, and count as
/// outside.
pub fn stays_inside_repository(bytes: &[u8], directory: &str) -> bool {
    let Ok(text) = yaml::decode(bytes) else { return false };
    let loaded = yaml::load(&text);
    if loaded.fault.is_some() {
        return false;
    }
    let inside = |text: &str| {
        // Inline patches have absolute paths of fields; no file has a name with two lines.
        let relative =
            |path| if text.contains('\n') { str::trim_start_matches(path, '/') } else { path };
        let parts = [Some(text), text.split_once('=').map(|(_, path)| path)];
        let mut paths = parts.into_iter().flatten().map(relative);
        paths.all(|path| normal_path(directory, path).is_some())
    };
    let plugins = ["generators", "transformers", "validators"];
    let mut open: Vec<&YamlNode<'_>> = loaded.documents.iter().map(|doc| &doc.root).collect();
    while let Some(node) = open.pop() {
        match &node.value {
            YamlValue::Map(entries) => {
                let keys = entries.iter().filter_map(|entry| kustomization_key(&entry.key));
                if keys.into_iter().any(|key| plugins.contains(&key)) {
                    return false;
                }
                open.extend(entries.iter().map(|entry| &entry.value));
            }
            YamlValue::Seq(items) => open.extend(items),
            YamlValue::Tagged(_, inner) => open.push(inner),
            YamlValue::Plain(text) | YamlValue::Quoted(text) => {
                if !inside(text) {
                    return false;
                }
            }
        }
    }
    true
}

fn named_files(node: &YamlNode<'_>, keys: &[&str]) -> Vec<String> {
    let items = match &node.value {
        YamlValue::Seq(items) => items.iter().collect(),
        YamlValue::Plain(_) | YamlValue::Quoted(_) | YamlValue::Map(_) | YamlValue::Tagged(..) => {
            vec![node]
        }
    };
    let own = |item: &YamlNode<'_>| match &item.value {
        YamlValue::Seq(_) => scalar_texts(item).into_iter().map(str::to_owned).collect(),
        YamlValue::Plain(_) | YamlValue::Quoted(_) | YamlValue::Map(_) | YamlValue::Tagged(..) => {
            item.text().map(str::to_owned).into_iter().collect::<Vec<_>>()
        }
    };
    let of_item = |item: &&YamlNode<'_>| -> Vec<String> {
        // Old kustomizations list patches as files.
        if keys.is_empty() || item.text().is_some() {
            return own(item);
        }
        keys.iter().flat_map(|key| json_fields(item, key)).flat_map(own).collect()
    };
    items.iter().flat_map(of_item).filter(|path| !path.contains('\n')).collect()
}

fn is_file(item: &str) -> bool {
    !is_remote(item) && [".yaml", ".yml", ".json"].iter().any(|end| item.ends_with(end))
}

/// Returns whether kustomize would fetch `item`: a URL, or a text that it recognizes as a Git
/// repository.
fn is_remote(item: &str) -> bool {
    let item = item.to_ascii_lowercase();
    let starts = ["github.com/", "github.com:", "git::", "git@", "gh:", "org-"];
    let marks = ["://", "?ref=", "&ref=", "?version=", ".git/", "_git/"];
    let is_repository = item.rsplit_once('.').is_some_and(|(_, end)| end == "git");
    is_repository
        || marks.iter().any(|mark| item.contains(mark))
        || starts.iter().any(|start| item.starts_with(start))
}
