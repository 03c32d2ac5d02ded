//! Measurements of earlier nodes, in a file beside the settings. `observe --learn` writes the file,
//! and plans read it.

use crate::model::desired::{
    LEARNED_FILE, LEARNED_FORMAT, LearnedNode, LearnedNodes, Problem, Tree,
};
use crate::model::ids::Origin;

/// Reads the file at the root of `tree`; empty if there is none.
///
/// An unreadable file is an error, because allocatable would differ from the previous plan.
pub(super) fn read(tree: &Tree) -> (Vec<LearnedNode>, Option<Problem>) {
    let Some(file) = tree.files.iter().find(|file| &*file.path == LEARNED_FILE) else {
        return (Vec::new(), None);
    };
    let error = |line, message| {
        Problem::error(Origin { file: file.path.clone(), line }, "Learned", message)
            .hint("remove it; `fleetwright observe --learn` writes another one")
    };
    let bytes = match &file.content {
        Ok(bytes) => bytes,
        Err(why) => return (Vec::new(), Some(error(0, format!("cannot be read: {why}")))),
    };
    match serde_json::from_slice::<LearnedNodes>(bytes) {
        Ok(learned) if learned.format_version == LEARNED_FORMAT => (learned.nodes, None),
        Ok(LearnedNodes { format_version, .. }) => {
            let message =
                format!("has format {format_version}, but this version reads {LEARNED_FORMAT}");
            (Vec::new(), Some(error(1, message)))
        }
        Err(why) => {
            let line = u32::try_from(why.line()).unwrap_or(0);
            (Vec::new(), Some(error(line, format!("is not a file that `observe` writes: {why}"))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::{Fleet, Severity, TreeFile};
    use crate::model::units::Resources;

    fn read_from(text: &str) -> (Vec<LearnedNode>, Vec<Problem>) {
        let content = Ok(text.as_bytes().into());
        let files = vec![TreeFile { path: LEARNED_FILE.into(), content }];
        let desired = crate::manifest::read(&Tree { files }, &Fleet::default());
        assert_eq!(desired.skipped, [], "it is no manifest");
        (desired.learned_nodes, desired.problems)
    }

    #[test]
    fn a_written_file_is_read_and_a_broken_one_is_an_error() {
        let node = LearnedNode {
            pool: "web".into(),
            spec_digest: "v2:00".to_owned(),
            instance_type: "m5.large".into(),
            capacity: Resources::default(),
            allocatable: Resources { pods: 29, ..Resources::default() },
        };
        let file = LearnedNodes::new(vec![node.clone()]);
        let text = crate::plan::canonical::pretty(&file).expect("JSON");
        assert_eq!(read_from(&text), (vec![node], vec![]));
        for (text, line, expected) in [
            (text.replace("\"format_version\": 1", "\"format_version\": 2"), 1, "has format 2"),
            (text.replace("spec_digest", "digest"), 0, "unknown field `digest`"),
            ("{".to_owned(), 1, "is not a file that `observe` writes"),
        ] {
            let (nodes, problems) = read_from(&text);
            assert_eq!((nodes, problems.len()), (vec![], 1), "{text}");
            let Problem { origin, severity, message, .. } = &problems[0];
            assert!(message.contains(expected) && *severity == Severity::Error, "{message}");
            assert!(line == 0 || origin.line == line, "{origin}");
        }
    }
}
