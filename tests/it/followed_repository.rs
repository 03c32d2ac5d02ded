//! Changes of a repository while a controller over an embedded world follows it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::binary::Workspace;

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A controller that only plans, at 600 times the real speed.
struct RunningController {
    process: Child,
    /// The lines of its stderr.
    lines: Receiver<String>,
}

impl RunningController {
    fn start(workspace: &Workspace) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
            .args(["run", ".", "--mode", "observe", "--speed", "600"])
            .current_dir(workspace.root())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program");
        let read = BufReader::new(process.stderr.take().expect("piped")).lines();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in read.map_while(Result::ok) {
                // The test may have ended.
                let _ = sender.send(line);
            }
        });
        Self { process, lines }
    }

    /// Waits for a line with `text`.
    fn wait_for(&self, text: &str) {
        let until = Instant::now() + TIMEOUT;
        let mut seen = String::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no line has `{text}`:\n{seen}"));
            if line.contains(text) {
                return;
            }
            seen.push_str(&line);
            seen.push('\n');
        }
    }
}

impl Drop for RunningController {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn commit_that_names_another_cluster_is_not_served() {
    let workspace = Workspace::example("quickstart");
    let controller = RunningController::start(&workspace);
    controller.wait_for("serving ");
    let settings = workspace.read("fleetwright.yaml");
    let renamed = settings.replace("    name: quickstart", "    name: other");
    assert_ne!(renamed, settings);
    workspace.write("fleetwright.yaml", &renamed);
    controller.wait_for(
        "the repository names cluster `other` in `us-east-1`, but this controller manages \
         `quickstart`",
    );
}
