//! The texts of a tree that are read as manifests: files, and rendered output.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::decode::{DEFAULT_NAMESPACES, NamespaceRules};
use super::delivery::{DeliveryObject, NO_POLICY, SyncPolicy};
use super::placeholder::{self, Vars};
use super::rendered_origins::RenderedOrigins;
use super::repository_layout::is_kustomization;
use super::yaml::{self, YamlNode, YamlStream};
use crate::model::desired::{Tree, TreeFile, is_settings_file};
use crate::model::ids::Origin;

/// The format of a file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileFormat {
    Yaml,
    Json,
}

impl FileFormat {
    pub(super) fn from_path(path: &str) -> Option<Self> {
        let ends = |ending: &str| {
            let start = path.len().saturating_sub(ending.len());
            path.get(start..).is_some_and(|end| end.eq_ignore_ascii_case(ending))
        };
        if ends(".yaml") || ends(".yml") || is_kustomization(path) {
            return Some(Self::Yaml);
        }
        ends(".json").then_some(Self::Json)
    }
}

/// A manifest text, with the settings of its delivery object.
#[derive(Debug, Clone, Copy)]
pub(super) struct ManifestText<'a> {
    pub(super) file: &'a TreeFile,
    pub(super) format: FileFormat,
    pub(super) vars: &'a Vars,
    pub(super) namespaces: NamespaceRules<'a>,
    /// The object that delivers it, such as an Argo CD Application.
    pub(super) delivered_by: Option<&'a DeliveryObject>,
    /// Source locations of its objects if a tool rendered it.
    pub(super) origins: Option<&'a RenderedOrigins<'a>>,
    /// What the delivery tool leaves alone.
    pub(super) policy: &'a SyncPolicy,
}

impl<'a> ManifestText<'a> {
    /// Returns the manifest of a plain file.
    pub(super) fn from_file(file: &'a TreeFile, format: FileFormat, vars: &'a Vars) -> Self {
        Self {
            file,
            format,
            vars,
            namespaces: DEFAULT_NAMESPACES,
            delivered_by: None,
            origins: None,
            policy: &NO_POLICY,
        }
    }

    /// Returns the source location of the object at `root`.
    pub(super) fn origin(&self, root: &YamlNode<'_>) -> Origin {
        match self.origins {
            Some(origins) => origins.origin_of(root),
            None => Origin { file: Arc::clone(&self.file.path), line: root.line },
        }
    }
}

/// Parses a text as leniently as Kubernetes tools do, and passes the result to `take`.
pub(super) fn parse_documents<R>(
    format: FileFormat,
    text: &str,
    vars: &Vars,
    take: impl FnOnce(YamlStream<'_>) -> R,
) -> R {
    let loaded = yaml::load(text);
    if loaded.fault.is_none() {
        return take(loaded);
    }
    // The parser may fail at a placeholder where YAML allows none, as in `[${ZONE}]`, at an escape
    // that only JSON allows, or at indentation that only YAML 1.2 rejects.
    let replaced = match format {
        FileFormat::Json => yaml::join_surrogates(text),
        FileFormat::Yaml => match placeholder::substitute(text, vars).text {
            Cow::Owned(replaced) => Some(replaced),
            Cow::Borrowed(_) => None,
        },
    };
    let (text, loaded) = match &replaced {
        Some(replaced) => (replaced.as_str(), yaml::load(replaced)),
        None => (text, loaded),
    };
    let indented = loaded.fault.as_ref().and_then(|_| yaml::indent_continuations(text));
    match indented.as_deref().map(yaml::load) {
        Some(indented) if indented.fault.is_none() => take(indented),
        Some(_) | None => take(loaded),
    }
}

/// Returns the documents of a file as JSON, as far as they can be parsed.
pub(crate) fn json_documents(file: &TreeFile) -> Vec<Json> {
    let (Some(format), Ok(bytes)) = (FileFormat::from_path(&file.path), &file.content) else {
        return Vec::new();
    };
    let Ok(text) = yaml::decode(bytes) else { return Vec::new() };
    if format == FileFormat::Json && !text.contains("\"apiVersion\"") {
        return Vec::new();
    }
    parse_documents(format, &text, &Vars::new(), |loaded| {
        loaded.documents.iter().map(|document| yaml::to_json(&document.root)).collect()
    })
}

/// Returns whether a document is a Kubernetes object, as its fields `apiVersion` and `kind` show.
/// Encrypted and templated fields do not count.
pub(crate) fn is_object(document: &Json) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-');
    let is_stated = |key| {
        let text = document.get(key).and_then(Json::as_str);
        text.is_some_and(|text| !text.is_empty() && text.chars().all(is_plain))
    };
    is_stated("apiVersion") && is_stated("kind")
}

/// Makes the settings files of `near` those of `whole`, in which `near` is the directory `directory`.
/// Returns false if `whole` has other settings there: it leaves files out, or is another repository.
pub fn use_settings_of(near: &Tree, whole: &mut Tree, directory: &str) -> bool {
    let moved = |path: &str| path.strip_prefix(directory)?.strip_prefix('/').map(str::to_owned);
    let is_moved = |file: &TreeFile| moved(&file.path).is_some_and(|name| is_settings_file(&name));
    let content = |file: &TreeFile, name: &str| (name.to_owned(), file.content.clone());
    let there: BTreeMap<_, _> = whole
        .files
        .iter()
        .filter(|file| is_moved(file))
        .filter_map(|file| Some(content(file, &moved(&file.path)?)))
        .collect();
    let own = near.files.iter().filter(|file| is_settings_file(&file.path));
    let is_same = there == own.clone().map(|file| content(file, &file.path)).collect();
    whole.files.retain(|file| !is_settings_file(&file.path) && !is_moved(file));
    whole.files.extend(own.cloned());
    is_same
}

/// Returns the tree with its files sorted by path, as readers expect.
pub(super) fn sorted_by_path(tree: &Tree) -> Cow<'_, Tree> {
    if tree.files.is_sorted_by(|a, b| a.path <= b.path) {
        return Cow::Borrowed(tree);
    }
    let mut tree = tree.clone();
    tree.files.sort_by(|a, b| a.path.cmp(&b.path));
    Cow::Owned(tree)
}
