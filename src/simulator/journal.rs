//! Journal of EC2 calls since the last write of the world.
//!
//! Writing a large world takes longer than a launch should. Appending a line does not. Entries are
//! idempotent: a launch has its token, and a terminating instance keeps terminating. A journal may
//! therefore be older than its world.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::state::WorldState;
use super::world_file::WORLD_BYTES_MAX;
use crate::adapters::files::read_regular;
use crate::apply::ports::LaunchRequest;
use crate::model::ids::{GroupName, InstanceId};

/// A writing EC2 call.
#[derive(Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "kebab-case")]
pub(super) enum JournalEntry {
    Launch { request: Box<LaunchRequest> },
    Terminate { instance: InstanceId },
    RaiseGroup { group: GroupName, desired: u32 },
    EndMember { instance: InstanceId },
    Tag { instance: InstanceId, tags: BTreeMap<String, String> },
}

fn journal_path(world: &Path) -> PathBuf {
    world.with_extension("journal")
}

/// Adds an entry to the journal of `world`, as one line.
pub(super) fn append(world: &Path, entry: &JournalEntry) -> io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    let path = journal_path(world);
    // A link would lead elsewhere, and a named pipe would wait for its other end.
    if path.symlink_metadata().is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other(format!("`{}` is no regular file", path.display())));
    }
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(&line)
}

/// Replays the journal on the world. An incomplete line belongs to a call that never returned, and
/// ends the journal.
pub(super) fn replay(world: &Path, state: &mut WorldState) -> io::Result<()> {
    let path = journal_path(world);
    let text = match read_regular(&path, WORLD_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(io::Error::new(error.kind(), format!("`{}`: {error}", path.display())));
        }
    };
    let lines = text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    for entry in lines.map_while(|line| serde_json::from_slice(line).ok()) {
        match entry {
            // The journal contains only successful launches. The result is the same now.
            JournalEntry::Launch { request } => drop(state.launch(&request)),
            JournalEntry::Terminate { instance } => state.terminate(&instance),
            JournalEntry::RaiseGroup { group, desired } => drop(state.raise_group(&group, desired)),
            JournalEntry::EndMember { instance } => drop(state.terminate_member(&instance)),
            JournalEntry::Tag { instance, tags } => drop(state.tag(&instance, &tags)),
        }
    }
    Ok(())
}

/// Removes the journal after the world was written.
pub(super) fn clear(world: &Path) -> io::Result<()> {
    match fs::remove_file(journal_path(world)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
