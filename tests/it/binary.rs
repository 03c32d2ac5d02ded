//! The program under test, and the directories it runs in.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// What a run wrote, and the code it ended with.
#[derive(Debug, Clone, Default)]
pub(crate) struct CommandResult {
    /// Exit code; `None` where a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A directory of its own for one test, removed with it.
#[derive(Debug)]
pub(crate) struct Workspace {
    directory: TempDir,
    /// Variables of the environment of every run.
    pub(crate) variables: BTreeMap<String, String>,
}

impl Workspace {
    /// Returns an empty directory.
    pub(crate) fn empty() -> Self {
        let directory = tempfile::tempdir().expect("a directory for the test");
        Self { directory, variables: BTreeMap::new() }
    }

    /// Returns a copy of `examples/NAME`.
    pub(crate) fn example(name: &str) -> Self {
        let place = Self::empty();
        place.take(name);
        place
    }

    /// Copies `examples/NAME` into the directory.
    pub(crate) fn take(&self, name: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
        copy(&from, self.directory.path());
    }

    /// Returns the path of `name` in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the directory, as text that no output may repeat.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file, and the directories it is in.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("created");
        fs::write(path, text).expect("written");
    }

    /// Returns the text of a file.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Runs the program in the directory, off a terminal, with the environment of nobody.
    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> CommandResult {
        let output = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
            .args(arguments)
            .current_dir(self.root())
            .env_clear()
            .env("HOME", self.root())
            .envs(&self.variables)
            .stdin(Stdio::null())
            .output()
            .expect("the program starts");
        CommandResult {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).expect("stdout is text"),
            err: String::from_utf8(output.stderr).expect("stderr is text"),
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("created");
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.expect("examples are readable");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}
