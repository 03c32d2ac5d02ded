//! What nodes reported that ran once: a file beside the settings, which `observe --learn` keeps and plans read.

use serde::{Deserialize, Serialize};

use super::model::{Problem, Severity, Tree};
use crate::ids::{InstanceTypeName, Origin, PoolName};
use crate::units::Resources;

/// Name of the file, at the root of the repository.
pub const LEARNED_FILE: &str = "fleetwright.learned.json";

/// The format that this version writes, and the only one that it reads.
const FORMAT: u32 = 1;

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learned {
    /// The version of the format.
    format_version: u32,
    /// By pool, specification and type.
    nodes: Vec<LearnedNode>,
}

/// What nodes of one type offer that were launched by one specification of a pool: the least that any reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedNode {
    /// The pool.
    pub pool: PoolName,
    /// Digest of what its nodes are launched with, as their instances carry it. What is kept of another
    /// specification than the declared one counts for nothing.
    pub spec_digest: String,
    /// The type.
    pub instance_type: InstanceTypeName,
    /// What a node has.
    pub capacity: Resources,
    /// What its pods may use.
    pub allocatable: Resources,
}

impl Learned {
    /// Returns the file that says this, and nothing else.
    #[must_use]
    pub fn of(nodes: Vec<LearnedNode>) -> Self {
        Self { format_version: FORMAT, nodes }
    }
}

/// Reads the file at the root of `tree`; nothing where there is none. One that cannot be read is an error: what nodes
/// offer would be counted otherwise than in the plan before.
pub(super) fn read(tree: &Tree) -> (Vec<LearnedNode>, Option<Problem>) {
    let Some(file) = tree.files.iter().find(|file| &*file.path == LEARNED_FILE) else {
        return (Vec::new(), None);
    };
    let error = |line, message| Problem {
        origin: Origin { file: file.path.clone(), line },
        severity: Severity::Error,
        object: "Learned".to_owned(),
        message,
        hint: Some("remove it; `fleetwright observe --learn` writes another one".to_owned()),
    };
    let bytes = match &file.content {
        Ok(bytes) => bytes,
        Err(why) => return (Vec::new(), Some(error(0, format!("cannot be read: {why}")))),
    };
    match serde_json::from_slice::<Learned>(bytes) {
        Ok(learned) if learned.format_version == FORMAT => (learned.nodes, None),
        Ok(Learned { format_version, .. }) => {
            let message = format!("is of format {format_version}, and this version reads {FORMAT}");
            (Vec::new(), Some(error(1, message)))
        }
        Err(why) => {
            let line = u32::try_from(why.line()).unwrap_or(0);
            (Vec::new(), Some(error(line, format!("is not what `observe` writes: {why}"))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Fleet, TreeFile};

    fn read_from(text: &str) -> (Vec<LearnedNode>, Vec<Problem>) {
        let content = Ok(text.as_bytes().into());
        let files = vec![TreeFile { path: LEARNED_FILE.into(), content }];
        let desired = crate::manifest::read(&Tree { files }, &Fleet::default());
        assert_eq!(desired.skipped, [], "it is no manifest");
        (desired.learned, desired.problems)
    }

    #[test]
    fn what_was_written_is_read_and_what_is_broken_is_an_error_with_its_line() {
        let node = LearnedNode {
            pool: "web".into(),
            spec_digest: "v2:00".to_owned(),
            instance_type: "m5.large".into(),
            capacity: Resources::default(),
            allocatable: Resources { pods: 29, ..Resources::default() },
        };
        let file = Learned::of(vec![node.clone()]);
        let text = crate::plan::canonical::pretty(&file).expect("JSON");
        assert_eq!(read_from(&text), (vec![node], vec![]));
        for (text, line, expected) in [
            (text.replace("\"format_version\": 1", "\"format_version\": 2"), 1, "is of format 2"),
            (text.replace("spec_digest", "digest"), 0, "unknown field `digest`"),
            ("{".to_owned(), 1, "is not what `observe` writes"),
        ] {
            let (nodes, problems) = read_from(&text);
            assert_eq!((nodes, problems.len()), (vec![], 1), "{text}");
            let Problem { origin, severity, message, .. } = &problems[0];
            assert!(message.contains(expected) && *severity == Severity::Error, "{message}");
            assert!(line == 0 || origin.line == line, "{origin}");
        }
    }
}
