//! `kill -9` of the program at many moments of its run: nothing is lost, and nothing is doubled.
//!
//! `FLEETWRIGHT_KILLS` sets the number of kills of each command. The kills at each write of an apply
//! and of a controller are in the unit tests of applies and in the simulation, which are stricter.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::binary::Workspace;

/// Kills of each command in CI.
const KILLS: u32 = 25;

const AT: &str = "2026-11-01T09:00:00Z";

fn kills() -> u32 {
    let text = std::env::var("FLEETWRIGHT_KILLS").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(KILLS)
}

/// Starts the program, and kills it after `delay`. Returns true if it had not ended before.
fn kill_after(workspace: &Workspace, arguments: &[&str], delay: Duration) -> bool {
    let mut process = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
        .args(arguments)
        .current_dir(workspace.root())
        .env_clear()
        .env("HOME", workspace.root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    std::thread::sleep(delay);
    let runs = process.try_wait().expect("a process").is_none();
    // It sends SIGKILL. A process that has ended is no error.
    let _ = process.kill();
    process.wait().expect("a process");
    runs
}

/// Returns how long a command takes.
fn duration_of(workspace: &Workspace, arguments: &[&str]) -> Duration {
    let began = Instant::now();
    let ran = workspace.run(arguments);
    assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.err);
    began.elapsed()
}

#[test]
fn killed_plan_leaves_the_old_or_the_new_file() {
    let workspace = Workspace::example("quickstart");
    let plan = ["plan", "--out", "plan.json", "--at", AT];
    duration_of(&workspace, &["plan", "--out", "plan.json", "--at", "2026-11-01T09:05:00Z"]);
    let old = workspace.read("plan.json");
    // Other tests slow some runs down. After the shortest time, most runs have not ended.
    let whole = (0..3).map(|_| duration_of(&workspace, &plan)).min().expect("three runs");
    let new = workspace.read("plan.json");
    let world = workspace.read("world/world.json");
    let (kills, mut interrupted) = (kills(), 0);
    for n in 0..kills {
        fs::write(workspace.path("plan.json"), &old).expect("written");
        interrupted += u32::from(kill_after(&workspace, &plan, whole * n / kills));
        let left = workspace.read("plan.json");
        assert!(left == old || left == new, "kill {n} leaves {} bytes", left.len());
        assert!(workspace.read("world/world.json") == world, "a plan changes no world");
    }
    // A file that a killed process leaves is not part of the next plan.
    workspace.write(".plan.json.7.tmp", "{");
    assert!(interrupted > kills / 5, "{interrupted} of {kills} were interrupted");
    duration_of(&workspace, &plan);
    assert!(workspace.read("plan.json") == new, "the same plan");
}

#[test]
fn killed_apply_is_completed_by_the_next_one() {
    let fresh = || {
        let workspace = Workspace::example("quickstart");
        duration_of(&workspace, &["plan", "--out", "plan.json"]);
        workspace
    };
    let apply = ["apply", "plan.json", "--auto-approve"];
    let first = fresh();
    let whole = duration_of(&first, &apply);
    let instances = |workspace: &Workspace| {
        let text = workspace.read("world/world.json");
        let world: serde_json::Value = serde_json::from_str(&text).expect("a whole file");
        let all = world["instances"].as_object().expect("instances").values();
        let mut active: Vec<String> = all
            .filter(|instance| instance["state"] == "running")
            .map(|instance| instance["instance_type"].to_string())
            .collect();
        active.sort();
        active
    };
    let wanted = instances(&first);
    // Each process of an apply that is killed three times gets a bit further.
    let rounds = kills() / 8;
    for round in 0..rounds {
        let workspace = fresh();
        for n in 0..3 {
            kill_after(&workspace, &apply, whole * (3 * round + n + 1) / (3 * rounds + 1));
        }
        let ran = workspace.run(&apply);
        assert_eq!(ran.code, Some(0), "round {round}: {}{}", ran.out, ran.err);
        assert_eq!(instances(&workspace), wanted, "round {round}");
    }
}
