//! Limits on the size of a tree.

/// Limits on input: a repository is untrusted, and memory is finite.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeLimits {
    /// Manifest files, without those that a sparse checkout lacks. The largest known trees have
    /// 20,000.
    pub(crate) files: u64,
    /// Files and directories of any name, counted at each visit.
    pub(crate) entries: u64,
    /// Bytes of one file. A larger file counts as unreadable.
    pub(crate) file_bytes: u64,
    /// Nesting depth of directories. Deeper manifests count as unreadable.
    pub(crate) depth: usize,
    /// Bytes of all manifest files.
    pub(crate) total_bytes: u64,
}

impl TreeLimits {
    /// The limits outside tests.
    pub(crate) const DEFAULT: Self = Self {
        files: 100_000,
        entries: 1_000_000,
        file_bytes: 16 << 20,
        depth: 64,
        total_bytes: 1 << 30,
    };
}
