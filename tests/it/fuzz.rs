//! Fuzzing of every reader: no input may panic, hang, or give two results.
//!
//! Mutations start from files of this repository and from `fuzz/corpus`, and are deterministic, so
//! that a failure is the same everywhere. A longer run sets `FUZZ_SECONDS`, the time of each target.
//! `FUZZ_SAVE=1` adds the failing input of each target to the corpus as `failed`, and each input with
//! a new outcome while the corpus of its target is small. Every file of the corpus is replayed by a test.

mod targets;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::BoxedStrategy;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use targets::Target;

/// Cases of each target in CI.
const CASES: u32 = 60;

/// Longest time of one case.
const CASE_TIME_MAX: Duration = Duration::from_secs(20);

/// Directory of the corpus; each target has a directory in it.
const CORPUS: &str = "tests/it/fuzz/corpus";

/// Largest size of the corpus of all targets, and of one target, in bytes.
const CORPUS_BYTES_MAX: usize = 300_000;
const TARGET_BYTES_MAX: usize = 25_000;

/// Largest file that is saved because its outcome is new.
const SAVED_BYTES_MAX: usize = 1_500;

/// Texts that readers misread easily: quantities, schedules, placeholders, operators, templates.
const TEXTS: [&str; 28] = [
    "",
    "-1",
    "0",
    "1e999",
    "-0.0000000001Ei",
    "99999999999999999999",
    "1.5.3Gi",
    "1E",
    "0x1f",
    "5%",
    "-5%",
    "101%",
    "+5 * * * *",
    "1,,2 * * * *",
    "*/0 * * * *",
    "TZ=Mars/Base 0 0 31 2 *",
    "@every 1ns",
    "${A",
    "${A:-${B:-${C",
    "$${A}{{ x }}",
    "Gt",
    "DoesNotExist",
    "../../../etc/passwd",
    "a\u{202e}b\u{1b}[31m",
    "2026-02-30T25:61:00Z",
    "9999-12-31T23:59:59Z",
    "i-0123456789abcdef0",
    "sha256:0",
];

/// Runs a target on one input, and returns its outcome.
fn run(target: &Target, input: &[u8]) -> String {
    let began = Instant::now();
    let outcome = (target.run)(input);
    assert!(began.elapsed() < CASE_TIME_MAX, "one case took {:?}", began.elapsed());
    outcome
}

/// Runs a target on mutated inputs.
fn fuzz(target: &Target) {
    let seconds: Option<u64> =
        std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let saves = std::env::var_os("FUZZ_SAVE").is_some();
    let files = saved_inputs(target.name);
    let size = RefCell::new(files.iter().map(Vec::len).sum::<usize>());
    let outcomes: BTreeSet<String> = files.iter().map(|input| run(target, input)).collect();
    let outcomes = RefCell::new(outcomes);
    let inputs = (target.inputs)();
    let checked = |input: Vec<u8>| {
        let end = catch_unwind(AssertUnwindSafe(|| run(target, &input)));
        match end {
            Err(panic) => {
                // The last one is the smallest.
                if saves {
                    save(target.name, "failed", &input);
                }
                resume_unwind(panic);
            }
            Ok(outcome) => {
                let fits = input.len() <= SAVED_BYTES_MAX
                    && *size.borrow() + input.len() <= TARGET_BYTES_MAX;
                if outcomes.borrow_mut().insert(outcome) && saves && fits {
                    *size.borrow_mut() += input.len();
                    let name: String =
                        hex::encode(Sha256::digest(&input)).chars().take(12).collect();
                    save(target.name, &name, &input);
                }
            }
        }
        Ok(())
    };
    let began = Instant::now();
    for seed in 11.. {
        let config = Config {
            cases: CASES,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: None,
            ..Config::default()
        };
        TestRunner::new(config).run(&inputs, checked).expect("no case fails");
        if seconds.is_none_or(|seconds| began.elapsed() >= Duration::from_secs(seconds)) {
            break;
        }
    }
}

/// Returns the files of the corpus of a target.
fn saved_inputs(target: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(root().join(CORPUS).join(target)) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("read")).collect()
}

/// Adds an input to the corpus of a target.
fn save(target: &str, name: &str, input: &[u8]) {
    let directory = root().join(CORPUS).join(target);
    std::fs::create_dir_all(&directory).expect("created");
    std::fs::write(directory.join(name), input).expect("written");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files below a directory with one of these ends, smallest first.
fn corpus(directory: &str, ends: &[&str]) -> Vec<Vec<u8>> {
    let mut open = vec![root().join(directory)];
    let mut paths: Vec<PathBuf> = Vec::new();
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).expect("listed").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if ends.iter().any(|end| path.to_string_lossy().ends_with(end)) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let mut all: Vec<Vec<u8>> =
        paths.iter().map(|path| std::fs::read(path).expect("read")).collect();
    all.sort_by_key(Vec::len);
    all.truncate(40);
    assert!(!all.is_empty(), "{directory}");
    all
}

fn hostile_value() -> impl Strategy<Value = Json> {
    let others = vec![
        Json::Null,
        json!([]),
        json!({}),
        json!(-1),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1e300),
        json!(true),
        json!([[[[[[[[]]]]]]]]),
        json!("x".repeat(70_000)),
    ];
    prop_oneof![select(TEXTS.to_vec()).prop_map(|text| json!(text)), select(others)]
}

/// Returns all nodes of a value as JSON pointers.
fn pointers(value: &Json) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), value)];
    while let Some((path, value)) = open.pop() {
        let escape = |key: &str| key.replace('~', "~0").replace('/', "~1");
        match value {
            Json::Object(map) => {
                let below =
                    map.iter().map(|(key, value)| (format!("{path}/{}", escape(key)), value));
                open.extend(below);
            }
            Json::Array(items) => {
                let below = items.iter().enumerate();
                open.extend(below.map(|(at, value)| (format!("{path}/{at}"), value)));
            }
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
        }
        found.push(path);
    }
    found
}

/// Replaces nodes of one of the values by hostile ones.
fn mutated_json(values: Vec<Json>) -> BoxedStrategy<Vec<u8>> {
    let changes = prop::collection::vec((any::<Index>(), hostile_value()), 1..5);
    let mutated = (any::<Index>(), changes).prop_map(move |(which, changes)| {
        let mut value = which.get(&values).clone();
        for (at, new) in changes {
            let all = pointers(&value);
            if let Some(node) = value.pointer_mut(at.get::<String>(&all)) {
                *node = new;
            }
        }
        value.to_string().into_bytes()
    });
    mutated.boxed()
}

/// Cuts, repeats and overwrites parts of one of the files.
fn mutated_bytes(files: Vec<Vec<u8>>) -> BoxedStrategy<Vec<u8>> {
    let text = prop_oneof![
        select(TEXTS.to_vec()).prop_map(|text| text.as_bytes().to_vec()),
        select(vec![
            "\n- ", "---\n", "&a ", "*a", "<<: *a", "!!str ", "{", "]", "\"", "|\n", "\0",
            "\u{feff}"
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 1..6),
    ];
    let edits = prop::collection::vec((any::<Index>(), 0_usize..12, text), 1..8);
    let mutated = (any::<Index>(), edits).prop_map(move |(which, edits)| {
        let mut bytes = which.get(&files).clone();
        for (at, removed, new) in edits {
            let from = at.index(bytes.len() + 1);
            let to = (from + removed).min(bytes.len());
            bytes.splice(from..to, new);
        }
        bytes
    });
    mutated.boxed()
}

macro_rules! fuzzed {
    ($($test:ident => $target:expr;)*) => {
        $(
            #[test]
            fn $test() {
                fuzz(&$target);
            }
        )*
    };
}

fuzzed! {
    mutated_manifests_never_panic => targets::MANIFESTS;
    mutated_settings_never_panic => targets::SETTINGS;
    mutated_live_objects_never_panic => targets::LIVE_OBJECTS;
    mutated_quantities_never_panic => targets::QUANTITIES;
    mutated_schedules_never_panic => targets::SCHEDULES;
    mutated_placeholders_never_panic => targets::PLACEHOLDERS;
    mutated_plans_are_refused_or_read => targets::PLANS;
    mutated_worlds_never_panic => targets::WORLDS;
    mutated_approvals_never_panic => targets::APPROVALS;
}

#[cfg(feature = "page")]
fuzzed! {
    mutated_webhooks_never_panic => targets::WEBHOOKS;
}

#[test]
fn every_input_of_the_corpus_is_replayed() {
    let mut size = 0;
    for target in targets::all() {
        let inputs = saved_inputs(target.name);
        assert!(inputs.len() >= 5, "{} has {} inputs", target.name, inputs.len());
        for input in &inputs {
            run(&target, input);
            size += input.len();
        }
    }
    assert!(size <= CORPUS_BYTES_MAX, "the corpus has {size} bytes");
    let mut names: BTreeSet<&str> = targets::all().iter().map(|target| target.name).collect();
    // Without the page, its target is left out.
    names.insert("webhooks");
    for entry in std::fs::read_dir(root().join(CORPUS)).expect("listed").flatten() {
        let name = entry.file_name().into_string().expect("text");
        assert!(names.contains(name.as_str()), "{name} is the corpus of no target");
    }
}
