//! Plans each tree on one core, on all cores and with the debug build, and compares the plans byte
//! by byte.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use sha2::{Digest, Sha256};

const TREES: [&str; 6] = ["web", "bench", "nodesized", "constrained", "openb_cpu", "dlrm_cpu"];

/// Prints a row for each tree with the digest of its plan and the result of each comparison.
pub(crate) fn rows() -> anyhow::Result<()> {
    let release = PathBuf::from(env!("CARGO_BIN_EXE_fleetwright"));
    let target = release.ancestors().nth(2).unwrap_or(Path::new("target"));
    let debug = target.join("debug/fleetwright");
    println!("{:<12} {:>16} {:>10} {:>10}", "same bytes", "sha256", "one core", "debug");
    for tree in TREES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/trees").join(tree);
        let all = digest(Command::new(&release), &path)?;
        let mut pinned = Command::new("taskset");
        pinned.args(["-c", "0"]).arg(&release);
        let one = digest(pinned, &path)?;
        let debug = if debug.exists() {
            comparison(digest(Command::new(&debug), &path)? == all)
        } else {
            "not built"
        };
        println!("{tree:<12} {all:016x} {:>10} {debug:>10}", comparison(one == all));
    }
    Ok(())
}

fn comparison(is_same: bool) -> &'static str {
    if is_same { "same" } else { "DIFFERENT" }
}

/// Returns the first eight bytes of the digest of the JSON plan that `command` makes for a tree.
fn digest(mut command: Command, tree: &Path) -> anyhow::Result<u64> {
    command.args(["plan", "--world", "empty", "--format", "json", "--at", "2026-11-01T00:00:00Z"]);
    let output = command.arg(tree).stderr(Stdio::null()).output()?;
    anyhow::ensure!(output.status.success(), "planning {} failed", tree.display());
    let digest = Sha256::digest(&output.stdout);
    let (first, _) = digest.split_first_chunk().context("a digest has eight bytes")?;
    Ok(u64::from_be_bytes(*first))
}
