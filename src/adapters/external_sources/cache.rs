//! Content of external sources, in files named by their digest.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::adapters::subprocess;

/// Maximum bytes of one source.
pub(super) const SOURCE_BYTES_MAX: u64 = 128 << 20;

/// Maximum bytes of the cache after an update.
const CACHE_BYTES_MAX: u64 = 4 << 30;

/// A content-addressed cache.
#[derive(Debug, Clone)]
pub struct SourceCache {
    directory: PathBuf,
}

impl SourceCache {
    /// Returns the cache in `directory`.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Returns the cache in the XDG cache directory; `None` for a user without a home directory.
    pub fn from_environment() -> Option<Self> {
        Some(Self::new(subprocess::cache_directory()?.join("sources")))
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.directory.join(digest.trim_start_matches("sha256:"))
    }

    /// Returns the content of `digest`.
    ///
    /// # Errors
    /// Returns the reason if the content is absent, or if its digest is another one.
    pub fn get(&self, digest: &str) -> Result<Vec<u8>, String> {
        let absent = || "is not in the cache; run `fleetwright sources update --check`".to_owned();
        let file = match fs::File::open(self.path(digest)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(absent()),
            Err(error) => return Err(format!("cannot be read from the cache: {error}")),
        };
        let mut content = Vec::new();
        let read = file.take(SOURCE_BYTES_MAX.saturating_add(1)).read_to_end(&mut content);
        read.map_err(|error| format!("cannot be read from the cache: {error}"))?;
        if content_digest(&content) == digest {
            return Ok(content);
        }
        Err("is refused: its content in the cache is not that of the lock file; run `fleetwright \
             sources update --check` to download it again"
            .to_owned())
    }

    /// Stores `content`, and returns its digest.
    ///
    /// # Errors
    /// Returns an error if the cache cannot be written.
    pub fn put(&self, content: &[u8]) -> io::Result<String> {
        let digest = content_digest(content);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(self.path(&digest))?;
        Ok(digest)
    }

    /// Removes the oldest content that `used` does not name, while the cache is too large.
    pub fn prune(&self, used: &[&str]) {
        self.prune_to(used, CACHE_BYTES_MAX);
    }

    fn prune_to(&self, used: &[&str], bytes_max: u64) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        let found = |entry: fs::DirEntry| {
            let metadata = entry.metadata().ok()?;
            let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            Some((written, entry.path(), metadata.len()))
        };
        let mut all: Vec<_> = entries.flatten().filter_map(found).collect();
        all.sort();
        let mut bytes: u64 = all.iter().map(|(.., bytes)| bytes).sum();
        let used: Vec<PathBuf> = used.iter().map(|digest| self.path(digest)).collect();
        for (_, path, length) in all {
            if bytes <= bytes_max {
                return;
            }
            if !used.contains(&path) && fs::remove_file(&path).is_ok() {
                bytes = bytes.saturating_sub(length);
            }
        }
    }
}

/// Returns the SHA-256 of `content`, as in the lock file.
pub(super) fn content_digest(content: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn altered_content_is_refused_and_used_content_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = SourceCache::new(folder.path().join("sources"));
        let digest = cache.put(b"chart").expect("stored");
        assert_eq!(cache.get(&digest), Ok(b"chart".to_vec()));
        let other = cache.put(b"other").expect("stored");
        fs::write(cache.path(&digest), "chars").expect("altered");
        let refused = cache.get(&digest).expect_err("altered");
        assert!(refused.contains("is refused") && !refused.contains("sha256"), "{refused}");
        let absent = cache.get(&content_digest(b"none")).expect_err("absent");
        assert!(absent.contains("sources update --check"), "{absent}");
        cache.prune_to(&[&digest], 5);
        assert!(cache.get(&other).expect_err("removed").contains("not in the cache"));
        assert!(cache.get(&digest).expect_err("altered").contains("is refused"), "it is used");
    }
}
