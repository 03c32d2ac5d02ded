//! Hooks: Jobs and pods that a delivery tool runs around a sync.

/// A hook of a delivery tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// Application, release or namespace whose sync runs the hook.
    pub delivered_by: String,
    /// Phase of the sync.
    pub phase: HookPhase,
    /// Sync wave or weight. The tool waits for each of them.
    pub order: i32,
    /// Name that separates hooks of equal order; empty if they run at the same time.
    pub name: String,
}

/// Phase in which a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HookPhase {
    /// Before the objects of the sync are applied.
    Before,
    /// After the objects of the sync are healthy.
    After,
    /// Not in a successful sync, such as `SyncFail`, `Skip` or a test.
    Never,
}
