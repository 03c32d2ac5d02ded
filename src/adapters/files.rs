//! Atomic writes of files.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Writes a file atomically: a concurrent reader sees the old or the new content.
pub(crate) fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    // A device or a pipe (`/dev/stdout`) cannot be replaced by a file.
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return std::fs::write(path, text);
    }
    let temporary = temporary_path(path);
    let written = File::create_new(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is reported.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// Returns a temporary path beside `path` that no other process uses.
pub(crate) fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}
