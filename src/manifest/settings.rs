//! `fleetwright.yaml`: the settings of a repository.
//!
//! Defines the file's format and defaults, as does `plans/fleet.schema.json`. An unknown key is an
//! error, because a setting without an effect is worse than none.

mod apply_settings;
mod controller_settings;
mod declared_cluster;
mod field_values;
mod fleet_file;
mod typical_mistakes;

pub(super) use fleet_file::is_fleet_document;
pub use fleet_file::read_fleet;

use crate::model::desired::{Fleet, Source};

/// Resolves `path` against the directory `base`, without `.` and `..`; `None` if it leaves the
/// root.
pub(crate) fn normal_path(base: &str, path: &str) -> Option<String> {
    if path.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns whether plain files at `path` are read: by a source without a renderer, or by the whole
/// tree if there are no sources.
pub fn is_read_directly(fleet: &Fleet, path: &str) -> bool {
    let holds = |source: &Source| {
        source.render.is_none() && (is_within(path, &source.path) || is_within(&source.path, path))
    };
    fleet.sources.is_empty() || fleet.sources.iter().any(holds)
}

/// Returns whether the file `path` is `root` or below it. The empty root contains every file.
pub(crate) fn is_within(path: &str, root: &str) -> bool {
    let rest = path.strip_prefix(root);
    root.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Names of directories with files for tests.
const TESTS: [&str; 3] = ["fixtures", "testdata", "tests"];

/// Returns whether the file at `path` is in a directory for tests. No cluster has its objects.
pub(crate) fn is_for_tests(path: &str) -> bool {
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    directory.split('/').any(|part| TESTS.contains(&part))
}

#[cfg(test)]
mod tests;
