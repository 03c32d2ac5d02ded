//! `--world`: the world that a command observes.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use super::Exit;
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
    /// Refuses the empty world for a command that reports about a running cluster.
    ///
    /// # Errors
    /// If no cluster is observed: a report about none would look like success.
    pub(super) fn require_cluster(&self, command: &str) -> Result<(), CliError> {
        if *self != Self::Empty {
            return Ok(());
        }
        Err(CliError::text(format!("`{command}` needs a cluster, but world `empty` has none"))
            .kind(Exit::NotApproved)
            .hint("use --world live, or set spec.world in fleetwright.yaml"))
    }

    /// Returns the world that a repository names, with its path resolved below `root`.
    ///
    /// # Errors
    /// If it is outside of `root`, or is no regular file: a repository neither writes to another
    /// place, nor makes a command wait.
    pub(super) fn within(self, root: &Path) -> Result<Self, CliError> {
        let join =
            |path: &Path| if root == Path::new(".") { path.to_owned() } else { root.join(path) };
        let (path, world) = match &self {
            Self::File(path) => (path, Self::File(join(path))),
            Self::Sim(directory) => (directory, Self::Sim(join(directory))),
            Self::Empty | Self::Live => return Ok(self),
        };
        let refused = |why: &str| {
            CliError::text(format!("spec.world of fleetwright.yaml names `{self}`, which {why}"))
                .hint("name a world below the repository, or pass --world yourself")
        };
        let is_plain =
            path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let joined = join(path);
        let existing = joined.ancestors().find_map(|ancestor| ancestor.canonicalize().ok());
        let is_below = match (existing, root.canonicalize()) {
            (Some(existing), Ok(root)) => existing.starts_with(root),
            // Nothing exists yet, so no link leads elsewhere.
            (None, _) | (_, Err(_)) => true,
        };
        if !is_plain || !is_below {
            return Err(refused("is outside of the repository"));
        }
        // Opening a named pipe would wait for its other end.
        let is_odd = |path: &Path| path.metadata().is_ok_and(|found| !found.is_file());
        match &world {
            Self::File(path) if is_odd(path) => Err(refused("is no regular file")),
            Self::Sim(directory) if is_odd(&directory.join(WORLD_FILE)) => {
                let file = path.join(WORLD_FILE);
                Err(refused(&format!("needs `{}` to be a regular file", file.display())))
            }
            Self::Sim(_) | Self::File(_) | Self::Empty | Self::Live => Ok(world),
        }
    }
}

/// The file of an embedded world in its directory.
const WORLD_FILE: &str = "world.json";

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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn within(text: &str, root: &Path) -> Result<WorldChoice, CliError> {
        WorldChoice::parse(text).and_then(|world| world.within(root))
    }

    #[test]
    fn world_of_a_repository_stays_below_it() {
        let tree = tempfile::tempdir().expect("a directory");
        let root = tree.path();
        assert_eq!(within("sim:world", root).ok(), Some(WorldChoice::Sim(root.join("world"))));
        std::fs::write(root.join("w.json"), "{}").expect("written");
        assert_eq!(within("w.json", root).ok(), Some(WorldChoice::File(root.join("w.json"))));
        symlink("/tmp", root.join("out")).expect("a link");
        let sockets =
            std::os::unix::net::UnixListener::bind(root.join("socket")).expect("a socket");
        for world in [
            "sim:/any/where",
            "sim:../beside",
            "sim:out/x",
            "/etc/passwd",
            "../w.json",
            "out/w.json",
            "socket",
        ] {
            assert!(within(world, root).is_err(), "{world}");
        }
        drop(sockets);
        std::fs::create_dir_all(root.join("world/world.json")).expect("made");
        let refused = within("sim:world", root).expect_err("a directory in place of the file");
        assert_eq!(
            refused.to_string(),
            "spec.world of fleetwright.yaml names `sim:world`, which needs `world/world.json` to be \
             a regular file"
        );
    }
}
