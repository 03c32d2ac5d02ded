//! Source locations of rendered objects.
//!
//! kustomize records the file of each object in an annotation, Helm in a comment before each
//! template. Both are hints: an object without one is located at the source itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::repository_layout::{KUSTOMIZATION, join_path};
use super::yaml::{self, YamlNode};
use crate::model::desired::{Recipe, RenderRequest, Tree, TreeFile};
use crate::model::ids::Origin;

/// The annotation in which kustomize records an object's origin.
const ORIGIN_ANNOTATION: &str = "config.kubernetes.io/origin";

/// Prefix of file paths in these records: the tree as the tool sees it.
pub(crate) const STAGED_PREFIX: &str = "../tree/";

/// The comment before each object in Helm's output.
const SOURCE_COMMENT: &str = "# Source: ";

/// Kind, name and line of each object of a file.
type FileObjects = Rc<Vec<(String, String, u32)>>;

/// A file with its objects; `None` if the tree has no such file.
type IndexedFile = Option<(Arc<str>, FileObjects)>;

/// The objects of the files that were looked up.
#[derive(Debug)]
pub(super) struct SourceIndex<'a> {
    tree: &'a Tree,
    files: RefCell<BTreeMap<String, IndexedFile>>,
}

impl<'a> SourceIndex<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        Self { tree, files: RefCell::default() }
    }

    /// Returns the file at `path` with its objects; `None` if the tree has no such file.
    fn file(&self, path: &str) -> IndexedFile {
        let mut files = self.files.borrow_mut();
        if let Some(known) = files.get(path) {
            return known.clone();
        }
        let position = self.tree.files.binary_search_by(|file| (*file.path).cmp(path)).ok();
        let found = position.map(|at| {
            let file = &self.tree.files[at];
            (Arc::clone(&file.path), Rc::new(objects(file)))
        });
        files.insert(path.to_owned(), found.clone());
        found
    }
}

fn objects(file: &TreeFile) -> Vec<(String, String, u32)> {
    let Ok(bytes) = &file.content else { return Vec::new() };
    let Ok(text) = yaml::decode(bytes) else { return Vec::new() };
    let word =
        |node: Option<&YamlNode<'_>>| node.and_then(YamlNode::text).unwrap_or_default().to_owned();
    let object = |root: &YamlNode<'_>| {
        (word(root.get("kind")), word(root.get("metadata").and_then(|m| m.get("name"))), root.line)
    };
    yaml::load(&text).documents.iter().map(|document| object(&document.root)).collect()
}

/// The source locations of the objects of one rendered text.
#[derive(Debug)]
pub(super) struct RenderedOrigins<'a> {
    request: &'a RenderRequest,
    source_index: &'a SourceIndex<'a>,
    /// Lines and paths of Helm's source comments.
    comments: Vec<(u32, String)>,
}

impl<'a> RenderedOrigins<'a> {
    pub(super) fn new(
        request: &'a RenderRequest,
        output: &str,
        source_index: &'a SourceIndex<'a>,
    ) -> Self {
        let mut comments = Vec::new();
        if matches!(request.recipe, Recipe::Helm(_)) {
            for (line, text) in (1_u32..).zip(output.lines()) {
                if let Some(path) = text.strip_prefix(SOURCE_COMMENT) {
                    comments.push((line, path.trim().to_owned()));
                }
            }
        }
        Self { request, source_index, comments }
    }

    /// Returns the source location of the object at `root`.
    pub(super) fn origin_of(&self, root: &YamlNode<'_>) -> Origin {
        let path = match self.request.recipe {
            Recipe::Kustomize(_) => kustomize_path(root),
            Recipe::Helm(_) => self.template(root.line),
        };
        let Some((file, objects)) = path.and_then(|path| self.source_index.file(&path)) else {
            return Origin { file: self.fallback(), line: 0 };
        };
        Origin { file, line: line_of(&objects, root) }
    }

    /// Returns the path of the template that rendered the object at `line`.
    fn template(&self, line: u32) -> Option<String> {
        let before = self.comments.partition_point(|(at, _)| *at < line);
        let (_, source) = self.comments.get(before.checked_sub(1)?)?;
        // The first component is the chart's name, which may differ from the directory's.
        let (_, rest) = source.split_once('/')?;
        let slash = if self.request.path.is_empty() { "" } else { "/" };
        Some(format!("{}{slash}{rest}", self.request.path))
    }

    fn fallback(&self) -> Arc<str> {
        let names = match self.request.recipe {
            Recipe::Kustomize(_) => &KUSTOMIZATION[..],
            Recipe::Helm(_) => &["Chart.yaml"],
        };
        let paths = names.iter().map(|name| join_path(&self.request.path, name));
        let mut found = paths.filter_map(|path| self.source_index.file(&path));
        found.next().map_or_else(|| self.request.path.as_str().into(), |(file, _)| file)
    }

    /// Returns whether Helm rendered the text.
    pub(super) fn is_of_chart(&self) -> bool {
        matches!(self.request.recipe, Recipe::Helm(_))
    }
}

/// Returns an annotation of the object at `root`.
pub(super) fn annotation<'n>(root: &'n YamlNode<'_>, key: &str) -> Option<&'n str> {
    root.get("metadata")?.get("annotations")?.get(key)?.text()
}

fn kustomize_path(root: &YamlNode<'_>) -> Option<String> {
    let note = annotation(root, ORIGIN_ANNOTATION)?;
    let line = |key: &str| note.lines().find_map(|line| line.trim().strip_prefix(key));
    let path = line("path: ").or_else(|| line("configuredIn: "))?.trim();
    Some(path.trim_matches('"').strip_prefix(STAGED_PREFIX)?.to_owned())
}

/// Returns the line of the object in its file, by name, else the only one of its kind, else the one
/// whose name its name contains; 0 if unknown.
fn line_of(objects: &[(String, String, u32)], root: &YamlNode<'_>) -> u32 {
    let text =
        |node: Option<&YamlNode<'_>>| node.and_then(YamlNode::text).unwrap_or_default().to_owned();
    let kind = text(root.get("kind"));
    let name = text(root.get("metadata").and_then(|metadata| metadata.get("name")));
    let of_kind = || objects.iter().filter(|(own, ..)| *own == kind);
    let exact = of_kind().find(|(_, own, _)| *own == name);
    let carried = || of_kind().find(|(_, own, _)| !own.is_empty() && name.contains(own.as_str()));
    let only = || of_kind().next().filter(|_| of_kind().count() == 1);
    exact.or_else(only).or_else(carried).map_or(0, |(.., line)| *line)
}
