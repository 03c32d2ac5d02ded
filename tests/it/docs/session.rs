//! Runs the commands of pages.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::page::{Block, Note};
use super::root;
use super::shown_output::{Extent, find_output, masked, refit};

/// What the commands of the pages read.
const COPIED: &[&str] = &["README.md", "deploy", "examples", "plans", "policies"];

/// Stands for Cargo: a program that is run is the one under test.
const CARGO: &str = "#!/bin/sh
[ \"$1\" != build ] || exit 0
[ \"$1\" = run ] || { echo \"cargo $1 does not run in a test\" >&2; exit 99; }
while [ \"$1\" != -- ]; do shift; done
shift
exec fleetwright \"$@\"
";

/// Numbers of commands, for the line that the test prints.
#[derive(Default)]
pub(super) struct Tally {
    pub ran: usize,
    pub compared: usize,
    pub not_run: BTreeMap<String, usize>,
}

impl Tally {
    pub(super) fn add(&mut self, other: Self) {
        self.ran += other.ran;
        self.compared += other.compared;
        for (why, count) in other.not_run {
            *self.not_run.entry(why).or_default() += count;
        }
    }
}

/// The directory in which the commands of one page run, or those of the tutorial.
pub(super) struct Session {
    scratch: TempDir,
    /// Output of the last block of commands.
    output: Option<String>,
    pub tally: Tally,
    /// What is wrong, each with its place: exit codes and comments.
    pub problems: Vec<String>,
    /// Outputs that differ from the pages.
    pub differences: Vec<String>,
    /// Blocks with the lines that they should have.
    pub replacements: Vec<Replacement>,
}

/// The lines that a block should have.
pub(super) struct Replacement {
    pub page: String,
    /// Number of the first line of the block.
    pub line: usize,
    pub old: String,
    pub new: String,
}

impl Session {
    pub(super) fn new() -> Self {
        // A short name, because long paths are wrapped.
        let scratch = tempfile::Builder::new().prefix("").rand_bytes(3).tempdir_in("/tmp");
        let scratch = scratch.expect("a temporary directory");
        let at = |name: &str| scratch.path().join(name);
        for name in [".bin", ".home", "fleetwright"] {
            fs::create_dir(at(name)).expect("created");
        }
        symlink(env!("CARGO_BIN_EXE_fleetwright"), at(".bin/fleetwright")).expect("linked");
        fs::write(at(".bin/cargo"), CARGO).expect("written");
        fs::set_permissions(at(".bin/cargo"), fs::Permissions::from_mode(0o755)).expect("set");
        let settings = "[user]\nname = Reader\nemail = reader@example.com\n";
        fs::write(at(".home/.gitconfig"), settings).expect("written");
        let start = at("fleetwright");
        fs::write(at(".directory"), start.to_str().expect("UTF-8")).expect("written");
        let session = Self {
            scratch,
            output: None,
            tally: Tally::default(),
            problems: Vec::new(),
            differences: Vec::new(),
            replacements: Vec::new(),
        };
        let from = root().display();
        let copied = COPIED.join(" ");
        let (code, output) = session.bash(&format!(
            "tar -C '{from}' -cf - {copied} | tar -xf -\n\
             git init --quiet --initial-branch main .\ngit add --all\n\
             git commit --quiet --message Copy"
        ));
        assert_eq!(code, 0, "{output}");
        session
    }

    /// Runs commands where the last ones ended. Returns the exit code and the output.
    fn bash(&self, commands: &str) -> (i32, String) {
        let scratch = self.scratch.path();
        let home = scratch.display().to_string();
        let commands = commands.replace("/tmp/", &format!("{home}/"));
        let script = format!(
            "exec 2>&1\ncd \"$(cat '{home}/.directory')\"\n\
             trap 'pwd >\"{home}/.directory\"' EXIT\nset -euo pipefail\n{commands}\n"
        );
        let path = std::env::var("PATH").unwrap_or_default();
        let ended = Command::new("timeout")
            .args(["300", "bash", "-c", &script])
            .env_clear()
            .env("PATH", format!("{home}/.bin:{path}"))
            .env("HOME", scratch.join(".home"))
            .env("TMPDIR", scratch)
            .envs([
                ("GIT_AUTHOR_DATE", "1788256800 +0000"),
                ("GIT_COMMITTER_DATE", "1788256800 +0000"),
            ])
            .stdin(Stdio::null())
            .output()
            .expect("bash runs");
        let output = String::from_utf8_lossy(&ended.stdout).replace(&home, "/tmp");
        (ended.status.code().unwrap_or(-1), output)
    }

    /// Runs the blocks of a page in order, and compares its outputs.
    pub(super) fn visit(&mut self, page: &str, blocks: &[Block]) {
        self.output = None;
        for block in blocks {
            self.visit_block(page, block);
        }
    }

    fn visit_block(&mut self, page: &str, block: &Block) {
        let place = format!("{page}:{}", block.line);
        for note in &block.notes {
            match note {
                Note::Setup(commands) => drop(self.run(&place, commands, 0)),
                Note::File(name) => {
                    let text = &block.text;
                    let command = format!("cat >{name} <<'END OF FILE'\n{text}\nEND OF FILE");
                    self.run(&place, &command, 0);
                }
                Note::OutputOf(commands) => self.output = Some(self.run(&place, commands, 0)),
                Note::NotRun(why) | Note::NotOutput(why) if why.is_empty() => {
                    self.problems.push(format!("{place}: the comment has no reason"));
                }
                Note::NotRun(_) | Note::NotOutput(_) | Note::RunAs(_) | Note::ExitsWith(_) => {}
            }
        }
        match (block.language.as_str(), block.not_run()) {
            ("sh" | "console", Some(why)) => {
                let commands = match block.language.as_str() {
                    "sh" => logical_lines(&block.text).len(),
                    _ => console(&block.text).len(),
                };
                *self.tally.not_run.entry(why.to_owned()).or_default() += commands;
                self.output = None;
            }
            ("sh", None) => self.run_commands(&place, block),
            ("console", None) => self.run_console(page, block),
            ("text", _) => self.compare_text(page, block),
            _ => {}
        }
    }

    /// Runs commands that must end with the code. Returns their output.
    fn run(&mut self, place: &str, commands: &str, expected: i32) -> String {
        let (code, output) = self.bash(commands);
        if code != expected {
            let problem =
                format!("{place}: exit code {code}, not {expected}\n{commands}\n{output}");
            self.problems.push(problem);
        }
        output
    }

    fn run_commands(&mut self, place: &str, block: &Block) {
        let (mut commands, mut code) = (block.text.as_str(), 0);
        for note in &block.notes {
            if let Note::RunAs(replacement) = note {
                commands = replacement;
            } else if let Note::ExitsWith(expected) = note {
                code = *expected;
            }
        }
        self.output = Some(self.run(place, commands, code));
        self.tally.ran += logical_lines(&block.text).len();
    }

    fn run_console(&mut self, page: &str, block: &Block) {
        let place = format!("{page}:{}", block.line);
        let mut fitted = Vec::new();
        for (command, shown) in console(&block.text) {
            let output = self.run(&place, &command, 0);
            self.tally.ran += 1;
            let lines = self.compare(&place, &shown, &output, Extent::Whole);
            fitted.push(format!("$ {command}\n{lines}").trim_end().to_owned());
        }
        self.replace(page, block, fitted.join("\n"));
    }

    fn compare_text(&mut self, page: &str, block: &Block) {
        if block.notes.iter().any(|note| matches!(note, Note::NotOutput(_))) {
            return;
        }
        let place = format!("{page}:{}", block.line);
        let Some(output) = self.output.clone() else {
            self.problems.push(format!("{place}: no command before this `text` block runs"));
            return;
        };
        let fitted = self.compare(&place, &block.text, &output, Extent::Part);
        self.replace(page, block, fitted);
    }

    /// Returns the lines that a block should show.
    fn compare(&mut self, place: &str, shown: &str, output: &str, extent: Extent) -> String {
        self.tally.compared += 1;
        let Err(why) = find_output(&masked(shown), &masked(output), extent) else {
            return shown.trim_end().to_owned();
        };
        self.differences.push(format!("{place}: {why}\n--- the output\n{output}"));
        refit(shown, output, extent)
    }

    fn replace(&mut self, page: &str, block: &Block, new: String) {
        if new != block.text {
            let (page, old) = (page.to_owned(), block.text.clone());
            self.replacements.push(Replacement { page, line: block.line, old, new });
        }
    }
}

/// Returns the commands of a `console` block, each with the output below it.
fn console(text: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.to_owned(), String::new())),
            (None, Some((command, _))) if command.ends_with('\\') => {
                command.push('\n');
                command.push_str(line);
            }
            (None, Some((_, shown))) => {
                shown.push_str(line);
                shown.push('\n');
            }
            (None, None) => panic!("a console block begins with a command: {line}"),
        }
    }
    commands
}

/// Returns the commands of a script, one a line, without comments.
pub(super) fn logical_lines(script: &str) -> Vec<String> {
    let joined = script.replace("\\\n", " ");
    let lines = joined.lines().map(|line| match line.split_once(" #") {
        Some((command, _)) => command.trim().to_owned(),
        None => line.trim().to_owned(),
    });
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}
