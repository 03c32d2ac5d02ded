//! Checks the layers of the source: the imports between modules, and the purity of pure modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The top-level modules, each with the modules that it may import. Lower modules come first.
/// `src/lib.rs` describes them.
const MODULES: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("manifest", &["model"]),
    ("catalog", &["model"]),
    ("demand", &["model"]),
    ("scheduler", &["demand", "model"]),
    ("solver", &["catalog", "demand", "model", "scheduler"]),
    ("plan", &["catalog", "demand", "model"]),
    ("planner", &["catalog", "demand", "model", "plan", "scheduler", "solver"]),
    ("policy", &["model", "plan"]),
    ("apply", &["catalog", "demand", "model", "plan"]),
    ("render", &["apply", "catalog", "model", "plan", "policy"]),
    ("telemetry", &["model", "render"]),
    ("adapters", &["apply", "catalog", "demand", "manifest", "model", "telemetry"]),
    ("simulator", &["adapters", "apply", "catalog", "demand", "manifest", "model", "scheduler"]),
    (
        "controller",
        &["adapters", "apply", "catalog", "model", "plan", "render", "simulator", "telemetry"],
    ),
    ("server", &["adapters", "apply", "controller", "model", "plan", "render", "telemetry"]),
];

/// Modules that may import all others.
const UNRESTRICTED: [&str; 4] = ["cli", "lib", "main", "testing"];

/// Modules that make decisions. They use no files, clock, network, threads, logging or unordered
/// maps.
const PURE: [&str; 10] = [
    "model",
    "manifest",
    "catalog",
    "demand",
    "scheduler",
    "solver",
    "plan",
    "planner",
    "policy",
    "render",
];

/// Pure parts of other modules: the decisions of the controller, and views of the status, as paths
/// below `src`.
const PURE_PARTS: [&str; 3] = ["controller", "server/metrics", "server/page"];

/// Parts of the controller that run the decisions: they call ports, verify tokens or write logs.
const IMPURE_PARTS: [&str; 5] = [
    "controller/authorization",
    "controller/executor",
    "controller/runtime",
    "controller/status_writer",
    "controller/tracing_spans",
];

/// The only file of a pure module that may use threads. Its results do not depend on them.
const PARALLEL: &str = "solver/parallel.rs";

/// Names that pure modules must not use.
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
    "tracing::",
    "git2",
];

/// Returns the source files of each module, without separate test files.
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
        // Unit tests are not restricted. They are at the end of a file.
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
            // Directories `tests` and `testing` contain only unit tests and their builders.
            if !["tests", "testing"].contains(&name.as_str()) {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|end| end == "rs")
            && !["tests.rs", "build.rs"].contains(&name.as_str())
        {
            files.push(path);
        }
    }
}

/// Returns the top-level modules that the code of a file names: after `crate::`, in a group
/// `crate::{…}`, or after as many `super::` as lead to the root. Comments do not count.
fn imports(path: &Path, code: &str) -> BTreeSet<String> {
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let depth = path.with_extension("").components().count();
    let roots = ["crate::".to_owned(), "super::".repeat(depth)];
    let rests = roots.iter().flat_map(|root| code.split(root.as_str()).skip(1));
    rests.flat_map(first_names).filter(|name| !name.is_empty()).collect()
}

/// Returns the names that a path or a group of paths begins with.
fn first_names(rest: &str) -> Vec<String> {
    let first = |path: &str| {
        let is_name = |c: &char| c.is_ascii_lowercase() || *c == '_';
        path.trim_start().chars().take_while(is_name).collect::<String>()
    };
    let Some(group) = rest.strip_prefix('{') else { return vec![first(rest)] };
    let mut depth = 0;
    let top_level_comma = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        depth < 0 || (depth == 0 && c == ',')
    };
    let mut names: Vec<String> = Vec::new();
    let mut ended = false;
    for part in group.split_inclusive(top_level_comma) {
        if ended {
            break;
        }
        names.push(first(part));
        ended = !part.ends_with(',');
    }
    names
}

#[test]
fn imports_are_found_in_every_spelling() {
    let find = |path: &str, code: &str| {
        let names: Vec<String> = imports(Path::new(path), code).into_iter().collect();
        names.join(" ")
    };
    assert_eq!(find("plan/wire.rs", "use crate::solver::Input;"), "solver");
    assert_eq!(
        find("plan.rs", "use crate::{apply::{A, B}, solver::Input};\nfn f() {}"),
        "apply solver"
    );
    assert_eq!(find("plan/wire.rs", "let x = super::super::solver::solve();"), "solver");
    assert_eq!(find("plan/wire/row.rs", "use super::super::cost::Cost;"), "");
    assert_eq!(find("plan.rs", "// crate::solver is above"), "");
}

#[test]
fn modules_import_only_lower_modules() {
    let table: BTreeMap<&str, BTreeSet<&str>> =
        MODULES.iter().map(|(module, below)| (*module, below.iter().copied().collect())).collect();
    let mut wrong = Vec::new();
    for (module, files) in sources() {
        if UNRESTRICTED.contains(&module.as_str()) {
            continue;
        }
        let Some(allowed) = table.get(module.as_str()) else {
            wrong.push(format!(
                "src/{module} is not in the table of modules: add it with its imports"
            ));
            continue;
        };
        for (path, code) in files {
            let used = imports(&path, &code).into_iter().filter(|name| *name != module);
            let bad = used.filter(|name| !allowed.contains(name.as_str()) && name != "testing");
            wrong.extend(bad.map(|name| format!("src/{}: imports crate::{name}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn table_allows_only_imports_that_are_used() {
    let sources = sources();
    let used = |module: &str| -> BTreeSet<String> {
        let files = sources.get(module).into_iter().flatten();
        files.flat_map(|(path, code)| imports(path, code)).collect()
    };
    let mut unused = Vec::new();
    for (module, allowed) in MODULES {
        let used = used(module);
        let unneeded = allowed.iter().filter(|name| !used.contains(**name));
        unused.extend(unneeded.map(|name| format!("{module} does not import {name}")));
    }
    assert!(unused.is_empty(), "{}", unused.join("\n"));
}

#[test]
fn documentation_lists_the_modules_in_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let text = fs::read_to_string(root).expect("readable");
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | [`")?.split('`').next());
    let rows: Vec<&str> = rows.collect();
    let expected: Vec<&str> = MODULES.iter().map(|(module, _)| *module).chain(["cli"]).collect();
    assert_eq!(rows, expected);
    assert!(rows.len() < 20, "{} rooms", rows.len());
}

#[test]
fn pure_modules_have_no_side_effects() {
    let mut wrong = Vec::new();
    for (module, files) in sources() {
        let is_pure = |path: &Path| {
            // The root of a module declares its parts.
            let is_root = path.components().count() == 1;
            let path = path.with_extension("");
            let is_in = |parts: &[&str]| parts.iter().any(|part| path.starts_with(part));
            PURE.contains(&module.as_str())
                || (!is_root && is_in(&PURE_PARTS) && !is_in(&IMPURE_PARTS))
        };
        for (path, code) in files.into_iter().filter(|(path, _)| is_pure(path)) {
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
    let mut waiting: Vec<_> = MODULES.to_vec();
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
