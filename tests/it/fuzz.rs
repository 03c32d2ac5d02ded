//! Mutated inputs of every reader: none may panic, hang, or give two results.
//!
//! Mutations start from files of this repository and are deterministic, so that a failure is the
//! same everywhere. `FUZZ_CASES` sets the number of cases of each target for a longer run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleetwright::manifest::{kustomization_references, read, read_fleet, read_live_objects};
use fleetwright::model::desired::{Fleet, Tree, TreeFile};
use fleetwright::model::observed::read_world;
use fleetwright::plan::{Approvals, read_plan};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::{Value as Json, json};

/// Cases of each target in CI.
const CASES: u32 = 60;

/// Longest time of one case.
const CASE_TIME_MAX: Duration = Duration::from_secs(20);

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

/// Runs `check` on mutated inputs.
fn fuzz<S: Strategy>(inputs: S, check: impl Fn(S::Value)) {
    let cases = std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok());
    let config = Config {
        cases: cases.unwrap_or(CASES),
        rng_seed: RngSeed::Fixed(11),
        failure_persistence: None,
        ..Config::default()
    };
    let timed = |input| {
        let began = Instant::now();
        check(input);
        assert!(began.elapsed() < CASE_TIME_MAX, "one case took {:?}", began.elapsed());
        Ok(())
    };
    TestRunner::new(config).run(&inputs, timed).expect("no case fails");
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
fn mutated_json(values: Vec<Json>) -> impl Strategy<Value = Json> {
    let changes = prop::collection::vec((any::<Index>(), hostile_value()), 1..5);
    (any::<Index>(), changes).prop_map(move |(which, changes)| {
        let mut value = which.get(&values).clone();
        for (at, new) in changes {
            let all = pointers(&value);
            if let Some(node) = value.pointer_mut(at.get::<String>(&all)) {
                *node = new;
            }
        }
        value
    })
}

/// Cuts, repeats and overwrites parts of one of the files.
fn mutated_bytes(files: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
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
    (any::<Index>(), edits).prop_map(move |(which, edits)| {
        let mut bytes = which.get(&files).clone();
        for (at, removed, new) in edits {
            let from = at.index(bytes.len() + 1);
            let to = (from + removed).min(bytes.len());
            bytes.splice(from..to, new);
        }
        bytes
    })
}

fn tree(path: &str, bytes: &[u8]) -> Tree {
    Tree { files: vec![TreeFile { path: path.into(), content: Ok(Arc::from(bytes)) }] }
}

#[test]
fn mutated_manifests_never_panic() {
    fuzz(mutated_bytes(corpus("examples", &[".yaml", ".yml"])), |bytes| {
        let tree = tree("a.yaml", &bytes);
        let fleet = Fleet::default();
        assert_eq!(format!("{:?}", read(&tree, &fleet)), format!("{:?}", read(&tree, &fleet)));
        let _ = kustomization_references(&bytes);
    });
}

#[test]
fn mutated_settings_never_panic() {
    fuzz(mutated_bytes(corpus("examples", &["fleetwright.yaml"])), |bytes| {
        let (_, problems) = read_fleet(&tree("fleetwright.yaml", &bytes));
        assert!(problems.iter().all(|problem| problem.message.len() < 4_000), "{problems:?}");
    });
}

/// Returns the objects of the examples, as an API server returns them.
fn objects() -> Vec<Json> {
    let files = corpus("examples", &[".yaml"]);
    let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    let documents = files.iter().map(text).collect::<Vec<_>>();
    let documents = documents.iter().flat_map(|text| text.split("\n---\n"));
    let parsed = documents.filter_map(|part| serde_saphyr::from_str::<Json>(part).ok());
    let found: Vec<Json> = parsed.filter(|object| object["kind"].is_string()).collect();
    assert!(found.len() > 20, "{}", found.len());
    found
}

#[test]
fn mutated_live_objects_never_panic() {
    let objects = objects();
    fuzz(mutated_json(objects.clone()), |object| {
        let good = objects.first().expect("one");
        let desired = read_live_objects([&object, good]);
        assert_eq!(format!("{desired:?}"), format!("{:?}", read_live_objects([&object, good])));
    });
}

#[test]
fn mutated_manifests_of_valid_yaml_never_panic() {
    fuzz(mutated_json(objects()), |object| {
        // JSON is YAML.
        let text = object.to_string();
        let _ = read(&tree("a.yaml", text.as_bytes()), &Fleet::default());
    });
}

fn plans() -> Vec<Json> {
    let files = corpus("plans", &[".json"]);
    let parsed = files.iter().filter_map(|bytes| serde_json::from_slice::<Json>(bytes).ok());
    parsed.filter(|plan| plan["format_version"].is_string()).take(4).collect()
}

#[test]
fn mutated_plans_are_refused_or_read() {
    fuzz(mutated_json(plans()), |plan| {
        let text = plan.to_string();
        // The checksum covers every byte that is read, so a changed plan is refused.
        if let Ok(read) = read_plan(text.as_bytes()) {
            let again = read_plan(read.to_json().as_bytes()).expect("read again");
            assert_eq!(again.capacity.plan_id, read.capacity.plan_id);
        }
    });
    fuzz(mutated_bytes(corpus("plans", &["quickstart.json"])), |bytes| {
        let _ = read_plan(&bytes);
    });
}

#[test]
fn mutated_worlds_and_approvals_never_panic() {
    let worlds = corpus("examples", &["world.json"]);
    let parsed = worlds.iter().filter_map(|bytes| serde_json::from_slice(bytes).ok()).collect();
    fuzz(mutated_json(parsed), |world: Json| {
        let _ = read_world(world.to_string().as_bytes());
    });
    let approval = json!({ "approvals": [{
        "by": "ann", "at": "2026-11-26T10:00:00Z", "digest": "sha256:ab", "plan_id": "sha256:cd",
        "signature": "ef",
    }] });
    assert!(serde_json::from_value::<Approvals>(approval.clone()).is_ok());
    fuzz(mutated_json(vec![approval]), |approvals| {
        let _ = serde_json::from_value::<Approvals>(approvals);
    });
}

#[cfg(feature = "page")]
#[test]
fn hostile_webhook_secrets_never_panic() {
    use fleetwright::server::http::WebhookSecrets;
    let secrets = select(TEXTS.to_vec()).prop_map(|text| text.repeat(20));
    fuzz(prop::collection::vec(secrets, 0..4), |lines| {
        let _ = WebhookSecrets::parse(&lines.join("\n"));
    });
}
