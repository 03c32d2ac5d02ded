//! Runs the scripts of `scripts/`.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::num::NonZeroUsize;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use crate::script::run_script;

/// Environment variable with the file name of the only script to run.
const ONLY: &str = "SCRIPT";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/scripts")
}

fn names() -> BTreeSet<String> {
    let files = fs::read_dir(directory()).expect("listed");
    let names = files.map(|file| file.expect("listed").file_name().into_string().expect("text"));
    let only = env::var(ONLY).ok();
    names.filter(|name| only.as_ref().is_none_or(|only| only == name)).collect()
}

#[test]
fn scripts_run_as_written() {
    let names = names();
    assert!(!names.is_empty(), "no script in {}", directory().display());
    let next = Mutex::new(names.iter());
    let next_name = || next.lock().expect("no script runs under the lock").next();
    let failed = Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZeroUsize::get) {
            scope.spawn(|| {
                while let Some(name) = next_name() {
                    if catch_unwind(|| run_script(name)).is_err() {
                        failed.lock().expect("no script runs under the lock").insert(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no script runs under the lock");
    assert!(failed.is_empty(), "{} of {} scripts failed: {failed:?}", failed.len(), names.len());
}

#[test]
fn exit_code_script_covers_the_documented_codes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = root.join("docs/src/reference/exit-codes.md");
    let page = fs::read_to_string(page).expect("readable");
    let script = root.join("tests/it/scripts/exit-codes.txt");
    let script = fs::read_to_string(script).expect("readable");
    let table = page.lines().skip_while(|line| !line.starts_with("| exit code |")).skip(2);
    let codes: Vec<&str> =
        table.map_while(|line| line.strip_prefix("| ")?.split(' ').next()).collect();
    assert_eq!(codes.first().zip(codes.last()), Some((&"0", &"130")), "{codes:?}");
    for code in codes {
        let covered = script.lines().any(|line| match line.strip_prefix("run ") {
            Some(run) if code == "0" => !run.contains(" -> "),
            Some(run) => run.ends_with(&format!(" -> {code}")),
            None => false,
        });
        // Code 130 means an interrupt, which a script cannot send.
        assert_eq!(covered, code != "130", "{code}");
    }
}
