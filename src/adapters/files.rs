//! Atomic writes of files, and bounded reads.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
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

/// Reads a regular file of at most `limit` bytes. Links are not followed, and a named pipe is not
/// opened, because that would wait for its other end.
///
/// # Errors
/// Fails if the file is of another kind, is larger, or cannot be read.
pub(crate) fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    if !path.symlink_metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= limit) {
        return Ok(bytes);
    }
    Err(io::Error::other(format!("it has more than {limit} bytes")))
}

/// Returns a temporary path beside `path` that no other process uses.
pub(crate) fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_bounded_size_are_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("file"), "four").expect("written");
        assert_eq!(read_regular(&path("file"), 4).expect("read"), b"four");
        assert!(read_regular(&path("file"), 3).is_err(), "it is larger");
        std::os::unix::fs::symlink(path("file"), path("link")).expect("linked");
        let made = std::process::Command::new("mkfifo").arg(path("pipe")).status();
        assert!(made.expect("mkfifo runs").success());
        for name in ["link", "pipe", "."] {
            let refused = read_regular(&path(name), 4).expect_err(name);
            assert_eq!(refused.to_string(), "it is no regular file", "{name}");
        }
        let absent = read_regular(&path("absent"), 4).expect_err("it is absent");
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
