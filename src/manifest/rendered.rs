//! Where the objects of a rendered text were written.
//!
//! kustomize notes the file of each object in an annotation, Helm in a comment before each
//! template. Both are taken as hints: an object that has neither is placed at the source itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::layout::{KUSTOMIZATION, below};
use super::model::{Tree, TreeFile};
use super::order::{Order, Recipe};
use super::yaml::{self, Node};
use crate::ids::Origin;

/// The annotation in which kustomize notes where an object comes from.
const ORIGIN_ANNOTATION: &str = "config.kubernetes.io/origin";

/// What stands before the path of a file in such notes: the tree as the tool sees it.
pub(crate) const STAGED_PREFIX: &str = "../tree/";

/// The comment before each object in the output of Helm.
const SOURCE_COMMENT: &str = "# Source: ";

/// The annotation of objects that Helm makes for a moment, around an installation or a test.
const HOOK_ANNOTATION: &str = "helm.sh/hook";

/// Kind, name and line of each object of a file.
type Objects = Rc<Vec<(String, String, u32)>>;

/// A file with its objects; `None` where the tree has no such file.
type Indexed = Option<(Arc<str>, Objects)>;

/// The objects of the files that were asked for.
#[derive(Debug)]
pub(super) struct Written<'a> {
    tree: &'a Tree,
    files: RefCell<BTreeMap<String, Indexed>>,
}

impl<'a> Written<'a> {
    pub(super) fn of(tree: &'a Tree) -> Self {
        Self { tree, files: RefCell::default() }
    }

    /// Returns the file at `path` with its objects; `None` where the tree has no such file.
    fn file(&self, path: &str) -> Indexed {
        let mut files = self.files.borrow_mut();
        if let Some(known) = files.get(path) {
            return known.clone();
        }
        let place = self.tree.files.binary_search_by(|file| (*file.path).cmp(path)).ok();
        let found = place.map(|at| {
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
    let word = |node: Option<&Node<'_>>| node.and_then(Node::text).unwrap_or_default().to_owned();
    let object = |root: &Node<'_>| {
        (word(root.get("kind")), word(root.get("metadata").and_then(|m| m.get("name"))), root.line)
    };
    yaml::load(&text).documents.iter().map(|document| object(&document.root)).collect()
}

/// The places of the objects of one output.
#[derive(Debug)]
pub(super) struct Places<'a> {
    order: &'a Order,
    written: &'a Written<'a>,
    /// Lines of Helm's comments, with what they say.
    comments: Vec<(u32, String)>,
}

impl<'a> Places<'a> {
    pub(super) fn of(order: &'a Order, output: &str, written: &'a Written<'a>) -> Self {
        let mut comments = Vec::new();
        if matches!(order.recipe, Recipe::Helm(_)) {
            for (line, text) in (1_u32..).zip(output.lines()) {
                if let Some(path) = text.strip_prefix(SOURCE_COMMENT) {
                    comments.push((line, path.trim().to_owned()));
                }
            }
        }
        Self { order, written, comments }
    }

    /// Returns where the object at `root` was written.
    pub(super) fn written(&self, root: &Node<'_>) -> Origin {
        let path = match self.order.recipe {
            Recipe::Kustomize(_) => kustomize_path(root),
            Recipe::Helm(_) => self.template(root.line),
        };
        let Some((file, objects)) = path.and_then(|path| self.written.file(&path)) else {
            return Origin { file: self.fallback(), line: 0 };
        };
        Origin { file, line: line_of(&objects, root) }
    }

    /// Returns the template that the object at `line` comes from.
    fn template(&self, line: u32) -> Option<String> {
        let before = self.comments.partition_point(|(at, _)| *at < line);
        let (_, source) = self.comments.get(before.checked_sub(1)?)?;
        // The first name is the chart's, which the directory need not share.
        let (_, rest) = source.split_once('/')?;
        let slash = if self.order.path.is_empty() { "" } else { "/" };
        Some(format!("{}{slash}{rest}", self.order.path))
    }

    fn fallback(&self) -> Arc<str> {
        let names = match self.order.recipe {
            Recipe::Kustomize(_) => &KUSTOMIZATION[..],
            Recipe::Helm(_) => &["Chart.yaml"],
        };
        let paths = names.iter().map(|name| below(&self.order.path, name));
        let mut found = paths.filter_map(|path| self.written.file(&path));
        found.next().map_or_else(|| self.order.path.as_str().into(), |(file, _)| file)
    }

    /// Returns whether the object is made for a moment only, so that it needs no lasting capacity.
    pub(super) fn is_hook(&self, root: &Node<'_>) -> bool {
        matches!(self.order.recipe, Recipe::Helm(_)) && annotation(root, HOOK_ANNOTATION).is_some()
    }
}

fn annotation<'n>(root: &'n Node<'_>, key: &str) -> Option<&'n str> {
    root.get("metadata")?.get("annotations")?.get(key)?.text()
}

fn kustomize_path(root: &Node<'_>) -> Option<String> {
    let note = annotation(root, ORIGIN_ANNOTATION)?;
    let line = |key: &str| note.lines().find_map(|line| line.trim().strip_prefix(key));
    let path = line("path: ").or_else(|| line("configuredIn: "))?.trim();
    Some(path.trim_matches('"').strip_prefix(STAGED_PREFIX)?.to_owned())
}

/// Returns the line of the object in its file: the only one of its kind, else the one whose name it
/// still carries; 0 where that is not known.
fn line_of(objects: &[(String, String, u32)], root: &Node<'_>) -> u32 {
    let text = |node: Option<&Node<'_>>| node.and_then(Node::text).unwrap_or_default().to_owned();
    let kind = text(root.get("kind"));
    let name = text(root.get("metadata").and_then(|metadata| metadata.get("name")));
    let of_kind = || objects.iter().filter(|(own, ..)| *own == kind);
    let exact = of_kind().find(|(_, own, _)| *own == name);
    let carried = || of_kind().find(|(_, own, _)| !own.is_empty() && name.contains(own.as_str()));
    let only = || of_kind().next().filter(|_| of_kind().count() == 1);
    exact.or_else(only).or_else(carried).map_or(0, |(.., line)| *line)
}
