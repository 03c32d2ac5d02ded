//! Checks the layers of the source: which modules import which, and what pure modules never use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The rooms, each with the rooms that it may import. Lower rooms come first; `src/lib.rs` describes
/// each room.
const ROOMS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("manifest", &["model"]),
    ("catalog", &["model"]),
    ("demand", &["model"]),
    ("scheduler", &["demand", "model"]),
    ("solver", &["catalog", "demand", "model", "scheduler"]),
    ("plan", &["catalog", "demand", "model"]),
    ("planner", &["catalog", "demand", "manifest", "model", "plan", "solver"]),
    ("policy", &["model", "plan"]),
    ("apply", &["catalog", "demand", "model", "plan"]),
    ("render", &["apply", "catalog", "model", "plan", "policy"]),
    ("telemetry", &["render"]),
    ("adapters", &["apply", "catalog", "demand", "manifest", "model", "telemetry"]),
    ("simulator", &["adapters", "apply", "catalog", "demand", "manifest", "model", "scheduler"]),
    (
        "controller",
        &[
            "adapters",
            "apply",
            "catalog",
            "demand",
            "model",
            "plan",
            "render",
            "simulator",
            "telemetry",
        ],
    ),
    (
        "server",
        &["adapters", "apply", "catalog", "controller", "model", "plan", "render", "telemetry"],
    ),
];

/// Modules that may import everything.
const UNRESTRICTED: [&str; 4] = ["cli", "lib", "main", "testing"];

/// Modules that decide: no files, no clock, no network, no threads, no logging, no unordered maps.
const PURE: [&str; 9] =
    ["model", "manifest", "catalog", "demand", "scheduler", "solver", "plan", "planner", "policy"];

/// The one file of a pure module that may use threads: what it returns does not depend on them.
const PARALLEL: &str = "solver/parallel.rs";

/// What a pure module never mentions.
const IMPURE: [&str; 14] = [
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::env::",
    "SystemTime",
    "Instant::",
    "Timestamp::now",
    "Zoned::now",
    "HashMap",
    "HashSet",
    "tokio",
    "tracing",
    "git2",
];

/// Source files of a module, without the test modules that stand in files of their own.
fn sources() -> BTreeMap<String, Vec<(PathBuf, String)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    let mut modules: BTreeMap<String, Vec<(PathBuf, String)>> = BTreeMap::new();
    for path in files {
        let below = path.strip_prefix(&root).expect("below src").to_path_buf();
        let first = below.components().next().expect("a name").as_os_str().to_string_lossy();
        let module = first.trim_end_matches(".rs").to_owned();
        let text = fs::read_to_string(&path).expect("source is readable");
        // Unit tests are not restricted; they come last in a file.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
        modules.entry(module).or_default().push((below, code));
    }
    modules
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("source is readable") {
        let path = entry.expect("source is readable").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            // Folders `tests` and `testing` hold unit tests and their fixtures only.
            if !["tests", "testing"].contains(&name.as_str()) {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|end| end == "rs")
            && !["tests.rs", "fixture.rs", "build.rs"].contains(&name.as_str())
        {
            files.push(path);
        }
    }
}

/// The modules that a text names after `crate::`, comments left out.
fn imports(code: &str) -> BTreeSet<String> {
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let named = lines.flat_map(|line| line.split("crate::").skip(1).map(str::to_owned));
    let name = |rest: String| {
        rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>()
    };
    named.map(name).filter(|name| !name.is_empty()).collect()
}

#[test]
fn modules_import_only_lower_modules() {
    let table: BTreeMap<&str, BTreeSet<&str>> =
        ROOMS.iter().map(|(module, below)| (*module, below.iter().copied().collect())).collect();
    let mut wrong = Vec::new();
    for (module, files) in sources() {
        if UNRESTRICTED.contains(&module.as_str()) {
            continue;
        }
        let Some(allowed) = table.get(module.as_str()) else {
            wrong.push(format!("src/{module} is in no layer: add it to the table with a reason"));
            continue;
        };
        for (path, code) in files {
            let used = imports(&code).into_iter().filter(|name| *name != module);
            let bad = used.filter(|name| !allowed.contains(name.as_str()) && name != "testing");
            wrong.extend(bad.map(|name| format!("src/{}: imports crate::{name}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_modules_have_no_side_effects() {
    let mut wrong = Vec::new();
    for (module, files) in
        sources().into_iter().filter(|(module, _)| PURE.contains(&module.as_str()))
    {
        for (path, code) in files {
            let code: String = code.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
            let may = |name: &str| name == "std::thread" && path == Path::new(PARALLEL);
            let bad = IMPURE.iter().filter(|name| code.contains(**name) && !may(name));
            wrong.extend(
                bad.map(|name| format!("src/{}: {module} mentions {name}", path.display())),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn module_table_has_no_cycle() {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    let mut waiting: Vec<_> = ROOMS.to_vec();
    while !waiting.is_empty() {
        let before = waiting.len();
        waiting.retain(|(module, below)| {
            let ready = below.iter().all(|name| known.contains(name));
            if ready {
                known.insert(module);
            }
            !ready
        });
        assert!(
            waiting.len() < before,
            "a cycle among {:?}",
            waiting.iter().map(|(m, _)| m).collect::<Vec<_>>()
        );
    }
}

#[test]
fn tour_and_recipes_name_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut missing = Vec::new();
    for (page, base) in [("src/README.md", "src"), (".github/CONTRIBUTING.md", "")] {
        let text = fs::read_to_string(root.join(page)).expect("the page is readable");
        let quoted = text.split('`').skip(1).step_by(2);
        let paths: Vec<&str> = quoted
            .filter(|quoted| quoted.contains('/') && !quoted.contains([' ', '*', '~', '=']))
            .collect();
        assert!(paths.len() >= 5, "{page} names {paths:?}");
        let exists =
            |path: &&str| [base, ""].iter().any(|base| root.join(base).join(path).exists());
        missing.extend(
            paths.iter().filter(|path| !exists(path)).map(|path| format!("{page}: {path}")),
        );
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
