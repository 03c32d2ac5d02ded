//! Cache of results, keyed by the digest of their inputs.
//!
//! An entry starts with its own digest, so that a truncated or altered entry counts as absent. A
//! failing cache costs only time.

use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// Maximum number of entries, many times the overlays of the largest known repository.
const ENTRIES_MAX: usize = 4_096;

/// Maximum size in bytes.
const BYTES_MAX: u64 = 1 << 30;

#[derive(Debug)]
pub(crate) struct ResultCache {
    directory: PathBuf,
}

impl ResultCache {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(key.trim_start_matches("sha256:"))
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let mut entry = fs::read(self.path(key)).ok()?;
        let end = entry.iter().position(|byte| *byte == b'\n')?;
        let output = entry.split_off(end + 1);
        (entry == format!("{}\n", hex::encode(Sha256::digest(&output))).as_bytes())
            .then_some(output)
    }

    pub(crate) fn put(&self, key: &str, output: &[u8]) {
        if let Err(error) = self.try_put(key, output) {
            tracing::debug!(%error, "result not cached");
        }
    }

    fn try_put(&self, key: &str, output: &[u8]) -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
        file.write_all(format!("{}\n", hex::encode(Sha256::digest(output))).as_bytes())?;
        file.write_all(output)?;
        file.persist(self.path(key))?;
        Ok(())
    }

    /// Removes the oldest entries if there are too many, or if they are too large.
    pub(crate) fn prune(&self) {
        self.prune_to(ENTRIES_MAX, BYTES_MAX);
    }

    fn prune_to(&self, entries_max: usize, bytes_max: u64) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        let age = |entry: fs::DirEntry| {
            let found = entry.metadata().ok()?;
            let changed = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            Some((changed, entry.path(), found.len()))
        };
        let mut all: Vec<_> = entries.flatten().filter_map(age).collect();
        let bytes = |all: &[(_, _, u64)]| all.iter().map(|(.., bytes)| bytes).sum::<u64>();
        if all.len() <= entries_max && bytes(&all) <= bytes_max {
            return;
        }
        all.sort();
        // Pruned to half, so that it happens rarely.
        let mut remaining = (all.len(), bytes(&all));
        for (_, path, bytes) in &all {
            if remaining.0 <= entries_max / 2 && remaining.1 <= bytes_max / 2 {
                break;
            }
            let _ = fs::remove_file(path);
            remaining = (remaining.0 - 1, remaining.1.saturating_sub(*bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prune_removes_oldest_entries() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = ResultCache::new(folder.path().join("c"));
        let keys: Vec<String> = (0..8).map(|n| format!("sha256:{n}")).collect();
        for (at, key) in (0..).zip(&keys) {
            cache.put(key, &[b'x'; 1_000]);
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at);
            let file = fs::File::options().append(true).open(cache.path(key)).expect("cached");
            file.set_modified(time).expect("dated");
        }
        let cached =
            |cache: &ResultCache| keys.iter().filter(|key| cache.get(key).is_some()).count();
        cache.prune_to(8, 100_000);
        assert_eq!(cached(&cache), 8);
        cache.prune_to(8, 6_000);
        assert_eq!((cached(&cache), cache.get(&keys[7]).is_some()), (2, true));
        cache.prune_to(1, 100_000);
        assert_eq!(cached(&cache), 0);
    }
}
