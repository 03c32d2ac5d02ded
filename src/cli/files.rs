//! Files that the user names: reads are bounded, writes are atomic.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::error::CliError;
use super::{Console, Exit};
use crate::adapters::files::{temporary_path, write_atomically};
use crate::plan::{PLAN_BYTES_MAX, Plan, RowSelection, read_plan};

/// Most bytes of a world file: ten times a cluster of 5,000 nodes and 100,000 pods.
pub(super) const WORLD_BYTES_MAX: u64 = 512 << 20;

/// Reads a file of at most `limit` bytes.
pub(super) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, CliError> {
    let failed = |error: io::Error| {
        CliError::new(error).context(format!("cannot read `{}`", path.display()))
    };
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(CliError::text(format!("cannot read `{}`: it is a directory", path.display())));
    }
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= limit) {
        return Ok(bytes);
    }
    let path = path.display();
    Err(CliError::text(format!("cannot read `{path}`: it has more than {limit} bytes")))
}

/// Reads a saved plan; `-` reads stdin.
pub(super) fn saved_plan(path: &Path, console: &mut Console) -> Result<Plan, CliError> {
    let limit = u64::try_from(PLAN_BYTES_MAX).unwrap_or(u64::MAX);
    let bytes = if path.as_os_str() == "-" {
        let read = console.read_input(limit);
        read.map_err(|error| CliError::new(error).context("cannot read stdin".to_owned()))
    } else {
        let hint = "name a file that `fleetwright plan --out FILE` wrote";
        read(path, limit).map_err(|error| error.hint(hint))
    };
    let context = || format!("cannot read plan `{}`", path.display());
    let bytes = bytes.map_err(|error| error.kind(Exit::UnreadablePlan))?;
    read_plan(&bytes).map_err(|error| CliError::from(error).context(context()))
}

/// Saves a plan to the file of `--out`, if given.
pub(super) fn save_plan(
    plan: &Plan,
    out: Option<&Path>,
    rows: RowSelection,
) -> Result<(), CliError> {
    out.map_or(Ok(()), |out| write(out, &plan.to_file_json(rows)))
}

/// Returns an error if a file cannot be written. An existing file stays unchanged.
pub(super) fn writable(path: &Path) -> Result<(), CliError> {
    let failed = |error: io::Error| {
        CliError::new(error).context(format!("cannot write `{}`", path.display()))
    };
    if path.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    if path.exists() {
        return std::fs::OpenOptions::new().append(true).open(path).map(drop).map_err(failed);
    }
    let beside = temporary_path(path);
    File::create_new(&beside).and_then(|_| std::fs::remove_file(&beside)).map_err(failed)
}

/// Writes a file atomically: a concurrent reader sees the old or the new content.
pub(super) fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let failed = |error: io::Error| {
        CliError::new(error).context(format!("cannot write `{}`", path.display()))
    };
    write_atomically(path, text).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_replaces_a_file_and_leaves_no_temporary_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("plan.json");
        write(&path, "old, and longer").expect("written");
        write(&path, "new").expect("written");
        assert_eq!(read(&path, 3).expect("read"), b"new");
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 1);
        for no in ["none/plan.json", "."] {
            assert!(write(&directory.path().join(no), "x").is_err(), "{no}");
            assert!(writable(&directory.path().join(no)).is_err(), "{no}");
        }
        assert!(writable(&path).is_ok() && writable(&directory.path().join("new")).is_ok());
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 1);
        assert!(read(&path, 2).is_err(), "more than the limit is an error, not a part");
        assert!(read(directory.path(), 2).is_err());
    }
}
