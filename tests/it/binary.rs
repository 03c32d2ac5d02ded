//! Runs the program under test, in temporary directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Output and exit code of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct CommandResult {
    /// Exit code; `None` if a signal terminated the program.
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A temporary directory of one test. It is removed on drop.
#[derive(Debug)]
pub(crate) struct Workspace {
    directory: TempDir,
    /// Environment variables of every run.
    pub(crate) variables: BTreeMap<String, String>,
}

impl Workspace {
    /// Creates an empty workspace.
    pub(crate) fn empty() -> Self {
        let directory = tempfile::tempdir().expect("a directory for the test");
        Self { directory, variables: BTreeMap::new() }
    }

    /// Creates a workspace with a copy of `examples/NAME`.
    pub(crate) fn example(name: &str) -> Self {
        let workspace = Self::empty();
        workspace.copy_example(name);
        workspace
    }

    /// Copies `examples/NAME` into the directory.
    pub(crate) fn copy_example(&self, name: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
        copy_directory(&from, self.directory.path());
    }

    /// Returns the path of `name` in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the path of the directory.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file, and creates its parent directories.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("created");
        fs::write(path, text).expect("written");
    }

    /// Returns the text of a file.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Runs Git in the directory, which must succeed.
    pub(crate) fn git(&self, arguments: &[&str]) {
        let done = Command::new("git")
            .current_dir(self.root())
            .args(["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"])
            .args(arguments)
            .output()
            .expect("git runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// Runs the program in the directory, without a terminal and with a clean environment.
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

pub(crate) fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("created");
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let entry = entry.expect("examples are readable");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}
