//! A single run of the controller whose state cannot be read.

use super::{copied_quickstart, run_command};
use crate::cli::Exit;

#[test]
fn single_run_ends_if_its_state_cannot_be_read() {
    let tree = copied_quickstart();
    let path = tree.path().join("quickstart");
    let state = path.join("world/controller.json");
    std::fs::create_dir_all(path.join("world")).expect("made");
    let path = path.to_str().expect("UTF-8");
    let run = |why: &str| {
        let ran = run_command(&["run", path, "--once"]);
        assert_eq!(ran.exit, Exit::Failed, "{why}: {}", ran.err);
    };
    assert_eq!(run_command(&["run", path, "--once"]).exit, Exit::Done, "it has no state");
    std::fs::write(&state, "{\"format_version\": \"1.0\"").expect("written");
    run("truncated");
    std::fs::remove_file(&state).expect("removed");
    let made = std::process::Command::new("mkfifo").arg(&state).status();
    assert!(made.expect("mkfifo runs").success());
    run("a named pipe");
}
