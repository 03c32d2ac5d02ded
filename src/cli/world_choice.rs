//! `--world`: the world that a command observes.

use std::fmt;
use std::path::{Path, PathBuf};

use super::error::CliError;

/// The world that a command observes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WorldChoice {
    /// An empty world.
    Empty,
    /// The live cluster.
    Live,
    /// A saved observation.
    File(PathBuf),
    /// The embedded world of a directory.
    Sim(PathBuf),
}

impl WorldChoice {
    /// Parses the syntax of `--world`, `fleetwright.yaml` and plans.
    pub(super) fn parse(text: &str) -> Result<Self, CliError> {
        let named = |path: &str| {
            if path.is_empty() {
                return Err(CliError::text(format!("`{text}` is not a world"))
                    .hint("write live, empty, the name of a world file, or sim:DIRECTORY"));
            }
            Ok(PathBuf::from(path))
        };
        match text.split_once(':') {
            Some(("sim", directory)) => Ok(Self::Sim(named(directory)?)),
            Some(("file", path)) => Ok(Self::File(named(path)?)),
            _ if text == "empty" => Ok(Self::Empty),
            _ if text == "live" => Ok(Self::Live),
            _ => Ok(Self::File(named(text)?)),
        }
    }
}

impl WorldChoice {
    /// Returns the world with its relative path resolved against `root`.
    pub(super) fn relative_to(self, root: &Path) -> Self {
        let join = |path: PathBuf| if root == Path::new(".") { path } else { root.join(path) };
        match self {
            Self::File(path) => Self::File(join(path)),
            Self::Sim(directory) => Self::Sim(join(directory)),
            Self::Empty | Self::Live => self,
        }
    }
}

impl fmt::Display for WorldChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("empty"),
            Self::Live => f.write_str("live"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Sim(directory) => write!(f, "sim:{}", directory.display()),
        }
    }
}
