//! What EC2 was told since the world was written last.
//!
//! Writing a large world takes longer than a launch should; a line at the end of a file does not.
//! Each entry may be told again without harm: a launch has its token, and an instance that is ending
//! goes on ending. So it does not matter whether a journal is older than its world.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::state::State;
use crate::ids::{GroupName, InstanceId};
use crate::port::LaunchRequest;

/// A call that changed EC2.
#[derive(Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "kebab-case")]
pub(super) enum Entry {
    Launch { request: Box<LaunchRequest> },
    Terminate { instance: InstanceId },
    RaiseGroup { group: GroupName, desired: u32 },
    EndMember { instance: InstanceId },
    Tag { instance: InstanceId, tags: BTreeMap<String, String> },
}

fn journal_of(world: &Path) -> PathBuf {
    world.with_extension("journal")
}

/// Adds an entry to the journal of `world`, as one line.
pub(super) fn append(world: &Path, entry: &Entry) -> io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    let mut file = fs::OpenOptions::new().create(true).append(true).open(journal_of(world))?;
    file.write_all(&line)
}

/// Tells the world again what its journal holds; a line that a run did not finish was never
/// answered, and ends the journal.
pub(super) fn replay(world: &Path, state: &mut State) -> io::Result<()> {
    let text = match fs::read(journal_of(world)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let lines = text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    for entry in lines.map_while(|line| serde_json::from_slice(line).ok()) {
        match entry {
            // Only a launch that was answered is in the journal; an answer now is the same one.
            Entry::Launch { request } => drop(state.launch(&request)),
            Entry::Terminate { instance } => state.terminate(&instance),
            Entry::RaiseGroup { group, desired } => drop(state.raise_group(&group, desired)),
            Entry::EndMember { instance } => drop(state.end_member(&instance)),
            Entry::Tag { instance, tags } => drop(state.tag(&instance, &tags)),
        }
    }
    Ok(())
}

/// Empties the journal of a world that was written.
pub(super) fn clear(world: &Path) -> io::Result<()> {
    match fs::remove_file(journal_of(world)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
