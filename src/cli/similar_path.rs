//! Suggests an existing directory for a misspelled path.

use std::path::{Component, Path, PathBuf};

use crate::model::similar_name::most_similar;

/// Most entries of a directory that are compared.
const ENTRIES_MAX: usize = 10_000;

/// Returns an existing directory whose path differs from the missing `path` by a few letters.
pub(super) fn find(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    for part in path.components() {
        let next = found.join(part);
        found = match part {
            Component::Normal(name) if !next.is_dir() => {
                let name = name.to_str()?;
                let here = if found.as_os_str().is_empty() { Path::new(".") } else { &found };
                let similar = similar_name(here, name)?;
                found.join(similar)
            }
            Component::Prefix(_)
            | Component::RootDir
            | Component::CurDir
            | Component::ParentDir
            | Component::Normal(_) => next,
        };
    }
    (found != path).then_some(found)
}

/// Returns the most similar name of a directory in `directory`; of equals the first by name.
fn similar_name(directory: &Path, name: &str) -> Option<String> {
    let entries = std::fs::read_dir(directory).ok()?.take(ENTRIES_MAX).filter_map(Result::ok);
    let directories = entries.filter(|entry| entry.path().is_dir());
    let names = directories.filter_map(|entry| entry.file_name().to_str().map(str::to_owned));
    let names: Vec<String> = names.collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    most_similar(name, &names).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_parts_are_corrected() {
        let root = tempfile::tempdir().expect("a directory");
        for name in ["examples/quickstart", "examples/teams", "clusters"] {
            std::fs::create_dir_all(root.path().join(name)).expect("made");
        }
        std::fs::write(root.path().join("examples/quickstar"), "").expect("a file is no directory");
        let found = |path: &str| find(&root.path().join(path));
        let expected = Some(root.path().join("examples/quickstart"));
        for path in ["examples/quikstart", "exmaples/quickstart", "example/quickstrt"] {
            assert_eq!(found(path), expected, "{path}");
        }
        for path in ["examples/other", "examples/quickstart", "examples/quikstart/more", "x"] {
            assert_eq!(found(path), None, "{path}");
        }
    }
}
