//! Holds the source to its layers: who may import whom, and what the pure part may never touch.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// What each module may import of ours, beside itself. Lower layers come first.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("ids", &[]),
    ("measure", &[]),
    ("units", &["ids"]),
    ("requirement", &["ids"]),
    ("pod", &["ids", "requirement", "units"]),
    ("storage", &["ids", "pod", "units"]),
    ("fargate", &["ids", "units"]),
    ("manifest", &["fargate", "ids", "pod", "requirement", "storage", "units"]),
    ("catalog", &["ids", "manifest", "pod", "requirement", "units"]),
    ("fleet", &["catalog", "fargate", "ids", "pod", "storage", "units"]),
    ("rival", &["fleet", "ids", "manifest", "pod", "requirement"]),
    ("demand", &["fargate", "fleet", "ids", "manifest", "pod", "requirement", "storage", "units"]),
    ("schedule", &["demand", "ids", "pod", "requirement", "storage", "units"]),
    (
        "solve",
        &[
            "catalog",
            "demand",
            "fleet",
            "ids",
            "manifest",
            "pod",
            "requirement",
            "rival",
            "schedule",
            "storage",
            "units",
        ],
    ),
    (
        "plan",
        &[
            "catalog",
            "demand",
            "fargate",
            "fleet",
            "ids",
            "manifest",
            "pod",
            "requirement",
            "rival",
            "solve",
            "storage",
            "units",
        ],
    ),
    ("lint", &["catalog", "demand", "ids", "manifest", "pod", "requirement", "units"]),
    (
        "engine",
        &[
            "catalog",
            "demand",
            "fleet",
            "ids",
            "lint",
            "manifest",
            "plan",
            "requirement",
            "solve",
            "units",
        ],
    ),
    ("render", &["catalog", "ids", "manifest", "plan", "requirement", "units"]),
    ("policy", &["ids", "plan"]),
    ("port", &["catalog", "fargate", "fleet", "ids", "manifest", "pod", "storage", "units"]),
    ("sources", &["ids", "manifest", "port"]),
    ("review", &["apply", "ids", "plan", "policy", "port", "render"]),
    ("github", &["port"]),
    ("observe", &["fleet", "ids", "port"]),
    (
        "apply",
        &[
            "catalog",
            "demand",
            "fleet",
            "ids",
            "observe",
            "plan",
            "pod",
            "port",
            "requirement",
            "units",
        ],
    ),
    (
        "reconcile",
        &[
            "apply", "catalog", "demand", "fleet", "ids", "manifest", "measure", "observe", "plan",
            "pod", "port", "rival", "units",
        ],
    ),
    // Views of what the loop publishes.
    (
        "face",
        &[
            "apply",
            "catalog",
            "fleet",
            "ids",
            "manifest",
            "measure",
            "plan",
            "reconcile",
            "render",
            "units",
        ],
    ),
    ("adopt", &["fleet", "ids", "manifest", "plan", "requirement", "rival"]),
    ("register", &["face", "ids", "port", "reconcile"]),
    ("door", &["ids", "port", "reconcile"]),
    ("web", &[]),
    ("listen", &["door", "face", "ids", "plan", "reconcile", "web"]),
    ("program", &[]),
    ("cache", &["ids"]),
    ("git", &["ids", "manifest", "port", "program"]),
    ("tools", &["cache", "ids", "manifest", "port", "program"]),
    (
        "sim",
        &[
            "catalog",
            "demand",
            "fargate",
            "fleet",
            "ids",
            "manifest",
            "pod",
            "port",
            "requirement",
            "schedule",
            "storage",
            "units",
        ],
    ),
    (
        "serve",
        &[
            "catalog",
            "fleet",
            "ids",
            "manifest",
            "pod",
            "port",
            "requirement",
            "sim",
            "storage",
            "units",
            "web",
        ],
    ),
    ("aws", &["catalog", "fargate", "fleet", "ids", "manifest", "measure", "pod", "port", "units"]),
    ("kube", &["demand", "fleet", "ids", "manifest", "pod", "port", "storage", "units"]),
    ("telemetry", &["render"]),
];

/// The only place that wires; it may import everything.
const WIRES: [&str; 3] = ["cli", "lib", "main"];

/// Modules that decide: no files, no clock, no network, no threads, no logging, no unordered maps.
const PURE: [&str; 18] = [
    "face",
    "ids",
    "units",
    "requirement",
    "pod",
    "storage",
    "fargate",
    "manifest",
    "catalog",
    "fleet",
    "demand",
    "schedule",
    "solve",
    "plan",
    "lint",
    "engine",
    "policy",
    "render",
];

/// The one file of a pure module that may use threads: what it returns does not depend on them.
const ABREAST: &str = "solve/abreast.rs";

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
        // Unit tests may use what they like; they stand last in a file.
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
            // Folders `tests` and `story` hold nothing but unit tests and what they need.
            if !["tests", "story"].contains(&name.as_str()) {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|end| end == "rs")
            && !["tests.rs", "fixture.rs", "story.rs", "build.rs"].contains(&name.as_str())
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
fn every_module_imports_only_what_lies_below_it() {
    let table: BTreeMap<&str, BTreeSet<&str>> = MAY_IMPORT
        .iter()
        .map(|(module, below)| (*module, below.iter().copied().collect()))
        .collect();
    let mut wrong = Vec::new();
    for (module, files) in sources() {
        if WIRES.contains(&module.as_str()) {
            continue;
        }
        let Some(allowed) = table.get(module.as_str()) else {
            wrong.push(format!("src/{module} is in no layer: add it to the table with a reason"));
            continue;
        };
        for (path, code) in files {
            let used = imports(&code).into_iter().filter(|name| *name != module);
            let bad = used.filter(|name| !allowed.contains(name.as_str()) && name != "story");
            wrong.extend(bad.map(|name| format!("src/{}: imports crate::{name}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_pure_part_touches_nothing_outside() {
    let mut wrong = Vec::new();
    for (module, files) in
        sources().into_iter().filter(|(module, _)| PURE.contains(&module.as_str()))
    {
        for (path, code) in files {
            let code: String = code.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
            let may = |name: &str| name == "std::thread" && path == Path::new(ABREAST);
            let bad = IMPURE.iter().filter(|name| code.contains(**name) && !may(name));
            wrong.extend(
                bad.map(|name| format!("src/{}: {module} mentions {name}", path.display())),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_has_no_cycle() {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    let mut waiting: Vec<_> = MAY_IMPORT.to_vec();
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
