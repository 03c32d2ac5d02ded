//! Results of earlier runs, by the digest of everything that decided them.
//!
//! An entry says what its own digest is, so that one that was cut off or altered counts as absent.
//! A cache that cannot be read or written costs time and nothing else.

use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// Most entries that are kept; twice the overlays of the largest repository known to us, many times.
const ENTRIES_MAX: usize = 4_096;

/// A directory of results.
#[derive(Debug)]
pub(super) struct Cache {
    directory: PathBuf,
}

impl Cache {
    pub(super) fn in_directory(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.directory.join(key.trim_start_matches("sha256:"))
    }

    /// Returns the result kept under `key`.
    pub(super) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let mut entry = fs::read(self.path(key)).ok()?;
        let end = entry.iter().position(|byte| *byte == b'\n')?;
        let output = entry.split_off(end + 1);
        (entry == format!("{}\n", hex(&output)).as_bytes()).then_some(output)
    }

    /// Keeps a result under `key`.
    pub(super) fn put(&self, key: &str, output: &[u8]) {
        if let Err(error) = self.try_put(key, output) {
            tracing::debug!(%error, "a rendering cannot be kept");
        }
    }

    fn try_put(&self, key: &str, output: &[u8]) -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
        file.write_all(format!("{}\n", hex(output)).as_bytes())?;
        file.write_all(output)?;
        file.persist(self.path(key))?;
        Ok(())
    }

    /// Removes the oldest entries where there are too many.
    pub(super) fn prune(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        let age = |entry: fs::DirEntry| {
            let changed = entry.metadata().and_then(|found| found.modified());
            (changed.unwrap_or(SystemTime::UNIX_EPOCH), entry.path())
        };
        let mut all: Vec<_> = entries.flatten().map(age).collect();
        if all.len() <= ENTRIES_MAX {
            return;
        }
        all.sort();
        for (_, path) in &all[..all.len() - ENTRIES_MAX / 2] {
            let _ = fs::remove_file(path);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}
