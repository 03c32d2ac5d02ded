//! Sources of delivery objects outside of the repository.

use super::super::remote_reference::git_source;
use super::super::settings::{is_within, normal_path};
use super::{DeliveryContext, GeneratedArtifact};
use crate::model::desired::ExternalSource;

/// The place of a source's files in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SourceRoot {
    /// This repository.
    Own,
    /// The directory of an external source.
    External(String),
    /// An artifact that is copied from another source.
    Artifact { of: Box<SourceRoot>, artifact: GeneratedArtifact },
}

/// A `HelmRepository` or `OCIRepository`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct ChartRepository {
    pub(in super::super) url: String,
    /// Tag, range or digest of an `OCIRepository`; empty for a `HelmRepository`.
    pub(in super::super) version: String,
}

/// A `HelmChart`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct HelmChart {
    pub(in super::super) chart: String,
    pub(in super::super) version: String,
    pub(in super::super) source_kind: String,
    pub(in super::super) source_name: String,
    /// Values files, and whether they may be absent.
    pub(in super::super) values_files: Vec<String>,
    pub(in super::super) ignores_missing: bool,
}

impl DeliveryContext<'_> {
    /// Returns the directory of an external source, and records that it is requested.
    pub(super) fn external_directory(&self, source: ExternalSource) -> Result<String, String> {
        let directory = self.external.directory(&source);
        self.requested.borrow_mut().insert(source);
        directory
    }

    /// Returns the root of the Git repository `url` at `revision`.
    pub(super) fn git_root(&self, url: &str, revision: &str) -> Result<SourceRoot, String> {
        if self.is_own_repository(url)? {
            self.check_revision(revision)?;
            return Ok(SourceRoot::Own);
        }
        self.external_directory(git_source(url, revision)).map(SourceRoot::External)
    }

    /// Returns the path in the tree of the directory `path` of a source.
    pub(super) fn directory_in(&self, root: &SourceRoot, path: &str) -> Result<String, String> {
        match root {
            SourceRoot::Own => self.local_directory(path),
            SourceRoot::External(directory) => {
                self.existing_directory(path_in_source(directory, path)?)
            }
            SourceRoot::Artifact { of, artifact } => {
                self.directory_in(of, &artifact.source_path(path)?)
            }
        }
    }

    /// Returns the path in the tree of the file `path` of a source.
    pub(super) fn file_in(&self, root: &SourceRoot, path: &str) -> Result<String, String> {
        match root {
            SourceRoot::Own => self.local_file(path),
            SourceRoot::External(directory) => path_in_source(directory, path),
            SourceRoot::Artifact { of, artifact } => self.file_in(of, &artifact.source_path(path)?),
        }
    }
}

/// Returns the path of `path` in the directory of an external source.
fn path_in_source(directory: &str, path: &str) -> Result<String, String> {
    let inside = normal_path(directory, path.trim_start_matches('/'));
    let inside = inside.filter(|inside| is_within(inside, directory));
    inside.ok_or_else(|| {
        let path = super::super::decode::shorten(path);
        format!("its path `{path}` is outside of its source")
    })
}
