//! Files that Flux leaves out of its copy of the repository (`.sourceignore`).

use super::super::repository_layout::parent_directory;
use super::super::settings::is_within;
use super::super::yaml;
use super::{GlobDialect, PathPattern};
use crate::model::desired::{Tree, TreeFile, is_external};

/// Name of the files with the rules.
pub(crate) const SOURCE_IGNORE: &str = ".sourceignore";

/// The rules of all `.sourceignore` files of this repository; later ones win.
#[derive(Debug, Default)]
pub(in super::super) struct SourceIgnore {
    rules: Vec<IgnoreRule>,
}

/// A line in the syntax of `.gitignore`.
#[derive(Debug)]
struct IgnoreRule {
    /// The directory of its file.
    directory: String,
    pattern: PathPattern,
    /// The pattern matches the path below `directory`, not a name at any depth.
    is_anchored: bool,
    directories_only: bool,
    /// The rule includes files that an earlier one leaves out.
    takes_in: bool,
}

impl SourceIgnore {
    /// Reads the rules of a tree.
    pub(in super::super) fn from_tree(tree: &Tree) -> Result<Self, String> {
        let is_own = |file: &&TreeFile| {
            !is_external(&file.path) && file.path.rsplit('/').next() == Some(SOURCE_IGNORE)
        };
        let mut files: Vec<&TreeFile> = tree.files.iter().filter(is_own).collect();
        // The rules of a directory come before those of its subdirectories.
        files.sort_by_key(|file| parent_directory(&file.path));
        let mut rules = Vec::new();
        for file in files {
            let unreadable = || format!("its file {} cannot be read", file.path);
            let bytes = file.content.as_ref().map_err(|_| unreadable())?;
            let text = yaml::decode(bytes).map_err(|_| unreadable())?;
            for line in text.lines() {
                rules.extend(IgnoreRule::parse(line, parent_directory(&file.path))?);
            }
        }
        Ok(Self { rules })
    }

    /// Returns whether Flux leaves out the file at `path`.
    pub(in super::super) fn ignores(&self, path: &str) -> bool {
        let last = self.rules.iter().rev().find(|rule| rule.matches(path));
        last.is_some_and(|rule| !rule.takes_in)
    }
}

impl IgnoreRule {
    /// Parses a line; `None` if it has no rule.
    fn parse(line: &str, directory: &str) -> Result<Option<Self>, String> {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let (takes_in, line) = match line.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (directories_only, line) = match line.strip_suffix('/') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let is_anchored = line.contains('/');
        let pattern = PathPattern::new(line.trim_start_matches('/'), GlobDialect::Doublestar)?;
        let directory = directory.to_owned();
        Ok(Some(Self { directory, pattern, is_anchored, directories_only, takes_in }))
    }

    /// Returns whether the rule names the file at `path` or a directory above it.
    fn matches(&self, path: &str) -> bool {
        if !is_within(path, &self.directory) {
            return false;
        }
        let rest = path.strip_prefix(self.directory.as_str()).unwrap_or(path);
        let rest = rest.trim_start_matches('/');
        let above = rest.match_indices('/').map(|(at, _)| &rest[..at]);
        let mut named = above.chain((!self.directories_only).then_some(rest));
        named.any(|path| {
            let name = path.rsplit('/').next().unwrap_or(path);
            self.pattern.matches(if self.is_anchored { path } else { name })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_those_of_gitignore_and_the_last_one_wins() {
        let file = |path: &str, text: &str| TreeFile {
            path: path.into(),
            content: Ok(text.as_bytes().into()),
        };
        let root = "# all\n/*\n!/apps\n!/k8s/\nold/\n*.tmp.yaml\napps/x/*.yaml\n!keep.yaml\n";
        let files = vec![file(".sourceignore", root), file("k8s/.sourceignore", "/a.yaml\n")];
        let read = SourceIgnore::from_tree(&Tree { files }).expect("it is read");
        for (path, expected) in [
            ("top.yaml", true),
            ("other/a.yaml", true),
            ("apps/a.yaml", false),
            ("apps/old/b.yaml", true),
            ("apps/old/keep.yaml", false),
            ("apps/old", false),
            ("apps/a.tmp.yaml", true),
            ("apps/x/a.yaml", true),
            ("apps/x/y/a.yaml", false),
            ("k8s/a.yaml", true),
            ("k8s/b/a.yaml", false),
        ] {
            assert_eq!(read.ignores(path), expected, "{path}");
        }
    }
}
