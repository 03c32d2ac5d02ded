//! Ports of the reader: the files of a repository, and the tools that render manifests.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::desired::{ExternalSource, RenderRequest, Rendered};

/// The files of a repository at one revision, manifests or not.
pub trait RepositoryFiles {
    /// Returns the path of every file below the root, ascending.
    fn paths(&self) -> &BTreeSet<String>;
    /// Returns the content of a file.
    ///
    /// # Errors
    /// With the reason, which does not repeat the path.
    fn content(&self, path: &str) -> Result<Arc<[u8]>, String>;
    /// Returns whether a file differs from that of the commit.
    fn is_changed(&self, path: &str) -> bool;
    /// Returns the directory that contains the files of an external source.
    ///
    /// # Errors
    /// With the reason why it is not available, and the remedy.
    fn external_directory(&self, source: &ExternalSource) -> Result<String, String>;
}

/// Tools that render manifests.
pub trait ManifestRenderer {
    /// Renders directories of a repository; one result for each request, in their order.
    fn render(
        &self,
        repo: &(dyn RepositoryFiles + Sync),
        requests: &[RenderRequest],
    ) -> Vec<Result<Rendered, String>>;
}
