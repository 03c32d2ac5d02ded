//! Sizes of clones. A clone that outgrows its first fetch is replaced by a new one.
//!
//! Git would remove old commits only by a garbage collection, which takes as long as a new clone of
//! a few commits, and keeps objects for two weeks.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Name prefix of the directory in which a clone is renewed.
pub(super) const RENEWAL_PREFIX: &str = "renewal-";

/// Growth that is always allowed, in bytes.
const GROWTH_BYTES: u64 = 64 << 20;

/// Maximum number of packs. Each fetch adds one, and each one slows down reads.
const PACKS_MAX: usize = 200;

/// Age of a directory that an interrupted renewal has left.
const RENEWAL_TIME_MAX: Duration = Duration::from_hours(1);

/// File in a clone with its bytes and depth after the deepest fetch.
const RECORD: &str = "fleetwright-size";

/// Size of a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct CloneSize {
    bytes: u64,
    packs: usize,
}

impl CloneSize {
    /// Measures the packs of a clone. Loose objects are few, because fetches unpack only small ones.
    fn measure(clone: &Path) -> Self {
        let mut size = Self::default();
        let Ok(files) = fs::read_dir(clone.join("objects/pack")) else { return size };
        for file in files.flatten() {
            size.bytes = size.bytes.saturating_add(file.metadata().map_or(0, |found| found.len()));
            size.packs += usize::from(file.path().extension().is_some_and(|end| end == "pack"));
        }
        size
    }

    fn outgrows(self, first: u64) -> bool {
        self.packs > PACKS_MAX || self.bytes > first.saturating_mul(2).saturating_add(GROWTH_BYTES)
    }
}

/// Returns bytes and depth of the deepest fetch.
fn recorded(clone: &Path) -> (u64, usize) {
    let text = fs::read_to_string(clone.join(RECORD)).unwrap_or_default();
    let mut words = text.split_whitespace();
    let bytes = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let depth = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    (bytes, depth)
}

/// Records the size after a fetch, if none was as deep.
pub(super) fn record(clone: &Path, depth: usize) {
    if recorded(clone).1 < depth {
        let bytes = CloneSize::measure(clone).bytes;
        // Without a record, the clone is only renewed earlier.
        let _ = fs::write(clone.join(RECORD), format!("{bytes} {depth}\n"));
    }
}

/// Returns the depth of a new clone that is to replace `clone`; `None` if it has not outgrown its
/// first fetch.
pub(super) fn renewal_depth(clone: &Path, depth: usize) -> Option<usize> {
    let (first, deepest) = recorded(clone);
    CloneSize::measure(clone).outgrows(first).then(|| depth.max(deepest))
}

/// Removes directories of interrupted renewals.
pub(super) fn remove_stale_renewals(cache: &Path) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let is_renewal = entry.file_name().to_string_lossy().starts_with(RENEWAL_PREFIX);
        let changed = entry.metadata().and_then(|found| found.modified()).ok();
        let age = changed.and_then(|at| at.elapsed().ok());
        if is_renewal && age.is_some_and(|age| age > RENEWAL_TIME_MAX) {
            // The next run tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clone_may_double_and_grow_a_little() {
        let size = |bytes, packs| CloneSize { bytes, packs };
        assert!(!size(GROWTH_BYTES, 1).outgrows(0));
        assert!(size(GROWTH_BYTES + 1, 1).outgrows(0));
        assert!(!size(2_000 << 20, 1).outgrows(1_000 << 20));
        assert!(size(3_000 << 20, 1).outgrows(1_000 << 20));
        assert!(size(1, PACKS_MAX + 1).outgrows(1_000));
    }
}
