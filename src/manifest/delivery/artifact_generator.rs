//! `ArtifactGenerator` of Flux: artifacts that are copied from directories of one source.
//!
//! An artifact is read in place, at the directory of its source that has the same layout.
//! Source of the fields: <https://fluxcd.io/flux/components/source/artifactgenerators/>.

use super::super::settings::{is_within, normal_path};
use super::super::yaml::YamlNode;
use super::{items_at, node_at, text_at};

/// An artifact with the layout of one directory of its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct GeneratedArtifact {
    kind: String,
    namespace: Option<String>,
    name: String,
    /// Directory of the source that has the layout of the artifact.
    root: String,
    /// Directories of the artifact that are copied. An empty path is the whole artifact.
    copied: Vec<String>,
}

/// An artifact, or the reason why it cannot be read in place.
pub(in super::super) type ReadArtifact = Result<GeneratedArtifact, String>;

impl GeneratedArtifact {
    /// Returns kind, namespace and name of its source. Without a namespace, it is that of the
    /// generator.
    pub(super) fn source(&self) -> (&str, Option<&str>, &str) {
        (&self.kind, self.namespace.as_deref(), &self.name)
    }

    /// Converts a path of the artifact to a path of its source.
    ///
    /// # Errors
    /// Returns an error if the path is not copied.
    pub(super) fn source_path(&self, path: &str) -> Result<String, String> {
        let inside = normal_path("", path.trim_start_matches('/'));
        let inside = inside.filter(|path| self.copied.iter().any(|all| is_within(path, all)));
        let inside = inside.ok_or_else(|| {
            let path = super::super::decode::shorten(path);
            format!("its path `{path}` is not part of its artifact")
        })?;
        Ok(join(&self.root, &inside))
    }
}

/// Reads the artifacts of an `ArtifactGenerator`, by name.
pub(in super::super) fn read_artifacts(root: &YamlNode<'_>) -> Vec<(String, ReadArtifact)> {
    let Some(spec) = node_at(root, &["spec"]) else { return Vec::new() };
    let sources = items_at(spec, &["sources"]);
    let artifact = |item: &YamlNode<'_>| {
        Some((text_at(item, &["name"])?.to_owned(), read_artifact(item, sources)))
    };
    items_at(spec, &["artifacts"]).iter().filter_map(artifact).collect()
}

fn read_artifact(item: &YamlNode<'_>, sources: &[YamlNode<'_>]) -> ReadArtifact {
    let mut first: Option<CopiedDirectory> = None;
    let mut copied = Vec::new();
    for copy in items_at(item, &["copy"]) {
        let directory = read_copy(copy)?;
        copied.push(directory.target.clone());
        let first = first.get_or_insert_with(|| directory.clone());
        if (&first.alias, &first.root) != (&directory.alias, &directory.root) {
            return Err("its artifact is copied from several directories".to_owned());
        }
    }
    let CopiedDirectory { alias, root, target: _ } = first.ok_or("its artifact copies nothing")?;
    let is_alias = |source: &&YamlNode<'_>| text_at(source, &["alias"]) == Some(&alias);
    let source = sources.iter().find(is_alias);
    let source = source.ok_or_else(|| format!("its artifact has no source `{alias}`"))?;
    let kind = text_at(source, &["kind"]).unwrap_or_default();
    if !["GitRepository", "OCIRepository"].contains(&kind) {
        return Err(format!("its artifact is copied from a {kind}, which is not supported"));
    }
    let text = |key| text_at(source, &[key]).map(str::to_owned);
    Ok(GeneratedArtifact {
        kind: kind.to_owned(),
        namespace: text("namespace"),
        name: text("name").unwrap_or_default(),
        root,
        copied,
    })
}

/// A directory that an artifact copies.
#[derive(Clone)]
struct CopiedDirectory {
    /// Alias of the source.
    alias: String,
    /// Directory of the source with the layout of the artifact.
    root: String,
    /// Directory of the artifact.
    target: String,
}

fn read_copy(copy: &YamlNode<'_>) -> Result<CopiedDirectory, String> {
    let text = |key| text_at(copy, &[key]).unwrap_or_default();
    let shown = super::super::decode::shorten(text("from"));
    let unsupported = || format!("its artifact copies `{shown}` in a way that is not supported");
    if !items_at(copy, &["exclude"]).is_empty() || text("strategy") == "Merge" {
        return Err(unsupported());
    }
    let from = text("from").strip_prefix('@').and_then(|from| from.split_once('/'));
    let (alias, from) = from.ok_or_else(unsupported)?;
    let from = from.strip_suffix("**").ok_or_else(unsupported)?;
    let to = text("to").strip_prefix("@artifact/").ok_or_else(unsupported)?;
    if !(to.is_empty() || to.ends_with('/')) || !(from.is_empty() || from.ends_with('/')) {
        return Err(unsupported());
    }
    let directory = |path: &str| normal_path("", path.trim_end_matches('/'));
    let (from, to) = directory(from).zip(directory(to)).ok_or_else(unsupported)?;
    let root = match from.strip_suffix(&to) {
        Some(root) if to.is_empty() || root.is_empty() || root.ends_with('/') => root,
        Some(_) | None => {
            return Err(format!("its artifact moves `{shown}` to another path"));
        }
    };
    let root = root.trim_end_matches('/').to_owned();
    Ok(CopiedDirectory { alias: alias.to_owned(), root, target: to })
}

fn join(directory: &str, path: &str) -> String {
    match (directory, path) {
        ("", path) => path.to_owned(),
        (directory, "") => directory.to_owned(),
        (directory, path) => format!("{directory}/{path}"),
    }
}
