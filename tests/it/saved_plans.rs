//! Saved plans: one of each example, and one of each format version, which must stay readable.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fleetwright::plan::canonical;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::binary::{Workspace, parsed};
use crate::golden;

/// Arguments for a new embedded world at a fixed time.
const NEW_WORLD: [&str; 4] = ["--world", "sim:world", "--at", "2026-09-01T10:00:00Z"];

/// Examples with their arguments. Examples without arguments have their own world with a fixed
/// time.
const EXAMPLES: [(&str, &[&str]); 11] = [
    ("cpa", &NEW_WORLD),
    ("eks-workshop", &NEW_WORLD),
    ("fargate", &NEW_WORLD),
    ("hpa", &[]),
    ("keda-cron", &NEW_WORLD),
    ("nodegroups", &[]),
    ("overlays", &NEW_WORLD),
    ("provisioner", &NEW_WORLD),
    ("quickstart", &[]),
    ("teams", &NEW_WORLD),
    ("vpa", &[]),
];

/// Plans of every format version. They are written once and never updated.
const FORMATS: [&str; 7] = [
    "format-1.0.json",
    "format-1.1.json",
    "format-1.2.json",
    "format-1.3.json",
    "format-1.4.json",
    "format-1.5.json",
    "format-1.6.json",
];

/// Formats whose identity covers a part of what `apply` reads.
const PARTIAL_FORMATS: [&str; 6] = [
    "format-1.0.json",
    "format-1.1.json",
    "format-1.2.json",
    "format-1.3.json",
    "format-1.4.json",
    "format-1.5.json",
];

/// Schema of each format version. Schemas of older versions are never updated.
const SCHEMAS: [&str; 7] = [
    "plan-1.0.schema.json",
    "plan-1.1.schema.json",
    "plan-1.2.schema.json",
    "plan-1.3.schema.json",
    "plan-1.4.schema.json",
    "plan-1.5.schema.json",
    "plan.schema.json",
];

fn plans(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the saved plan of an example.
fn plan_of(example: &str, world: &[&str]) -> String {
    let mut workspace = Workspace::example(example);
    let tools = crate::overlays::fake_tools().display().to_string();
    workspace.variables.insert("PATH".to_owned(), tools);
    let result = workspace.run(&[&["plan", "--out", "plan.json"], world].concat());
    assert_eq!(result.code, Some(0), "{example}: {}", result.err);
    let plan = workspace.read("plan.json");
    assert!(
        !plan.contains(&workspace.root().display().to_string()),
        "{example} names its directory"
    );
    plan
}

/// Returns a plan with every kind of row: launched, removed and retained nodes, and an
/// unschedulable pod.
fn plan_with_every_row_kind() -> String {
    let workspace = Workspace::example("provisioner");
    let applied = workspace.run(&[&["apply", ".", "--auto-approve"][..], &NEW_WORLD].concat());
    assert_eq!(applied.code, Some(0), "{}", applied.err);
    let inflate = workspace.read("inflate.yaml");
    let more = inflate.replace("name: inflate\n", "name: giant\n").replace("\"1\"", "\"64\"");
    workspace.write("giant.yaml", &more.replace("replicas: 12", "replicas: 1"));
    workspace.write("inflate.yaml", &inflate.replace("replicas: 12", "replicas: 5"));
    let planned = workspace.run(&["plan", "--world", "sim:world", "--steer", "--out", "plan.json"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    workspace.read("plan.json")
}

#[test]
fn saved_example_plans_are_current() {
    let failures: Vec<String> = EXAMPLES
        .iter()
        .filter_map(|(example, world)| {
            golden::hold(&format!("plans/{example}.json"), &plan_of(example, world)).err()
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn each_example_has_a_saved_plan() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut found: Vec<String> = fs::read_dir(directory)
        .expect("listed")
        .map(|entry| entry.expect("listed"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("names are text"))
        .collect();
    found.sort();
    assert_eq!(found, EXAMPLES.map(|(example, _)| example));
}

#[test]
fn saved_plans_are_valid_and_shown_with_derived_sections() {
    let schema = parsed(&plans("plan.schema.json"));
    let schema = jsonschema::validator_for(&schema).expect("a valid schema");
    let workspace = Workspace::empty();
    let examples = EXAMPLES.iter().map(|(example, _)| format!("{example}.json"));
    for name in examples.chain(FORMATS.map(str::to_owned)) {
        let text = plans(&name);
        let errors: Vec<String> =
            schema.iter_errors(&parsed(&text)).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {}", errors.join("\n"));
        workspace.write("plan.json", &text);
        let shown = workspace.run(&["show", "plan.json"]);
        assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""), "{name}");
        let last = shown.out.lines().last().unwrap_or_default();
        let starts = ["Plan: ", "Plan (incomplete): ", "No changes. "];
        assert!(starts.iter().any(|start| last.starts_with(start)), "{name}: {last}");
        let output = workspace.run(&["show", "plan.json", "--format", "json"]);
        assert_eq!(output.code, Some(0), "{name}: {}", output.err);
        let errors: Vec<String> =
            schema.iter_errors(&parsed(&output.out)).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {}", errors.join("\n"));
        assert_eq!(
            without_derived_sections(&output.out),
            without_derived_sections(&text),
            "{name}"
        );
        workspace.write("output.json", &output.out);
        let again = workspace.run(&["show", "output.json", "--format", "json"]);
        assert_eq!((again.code, again.out), (Some(0), output.out), "{name}");
    }
}

/// Returns the canonical text of a plan without the sections that only outputs have. The checksum
/// covers them, so it is left out as well.
fn without_derived_sections(plan: &str) -> String {
    let mut plan = parsed(plan);
    let sections = plan.as_object_mut().expect("an object");
    for section in ["checksum", "planned_values", "prior_state"] {
        sections.remove(section);
    }
    for rows in ["resource_changes", "resource_drift"] {
        for row in plan[rows].as_array_mut().expect("rows") {
            let row = row.as_object_mut().expect("a row");
            row.remove("mode");
            row.remove("provider_name");
        }
    }
    canonical::pretty(&plan).expect("no floats")
}

#[test]
fn each_schema_has_its_own_id() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
    let mut files_by_id: BTreeMap<String, String> = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("listed") {
        let name = entry.expect("listed").file_name().into_string().expect("names are text");
        if name.ends_with(".schema.json") {
            let id = parsed(&plans(&name))["$id"].as_str().expect("an `$id`").to_owned();
            let other = files_by_id.insert(id.clone(), name.clone());
            assert_eq!(other, None, "{name} has the `$id` {id}, too");
        }
    }
    for (format, schema) in FORMATS.iter().zip(SCHEMAS) {
        let version = format.trim_start_matches("format-").trim_end_matches(".json");
        let id = format!("https://fleetwright.dev/plan-{version}.schema.json");
        assert_eq!(files_by_id.get(&id).map(String::as_str), Some(schema));
    }
}

#[test]
fn format_plan_has_each_row_kind() {
    let newest = FORMATS[FORMATS.len() - 1];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans").join(newest);
    if !path.exists() {
        golden::hold(&format!("plans/{newest}"), &plan_with_every_row_kind()).expect("written");
    }
    for format in FORMATS {
        assert_every_row_kind(&parsed(&plans(format)));
    }
}

#[test]
fn format_plans_match_their_schema_and_later_ones() {
    for (index, format) in FORMATS.iter().enumerate() {
        let plan = parsed(&plans(format));
        let version = plan["format_version"].as_str().expect("text");
        assert_eq!(*format, format!("format-{version}.json"));
        for schema in &SCHEMAS[index..] {
            let validator = jsonschema::validator_for(&parsed(&plans(schema))).expect("a schema");
            let errors: Vec<String> =
                validator.iter_errors(&plan).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{format} by {schema}: {}", errors.join("\n"));
        }
    }
}

fn assert_every_row_kind(plan: &Value) {
    let actions: Vec<String> = plan["resource_changes"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| row["change"]["actions"].to_string())
        .collect();
    for action in [r#"["create"]"#, r#"["delete"]"#, r#"["no-op"]"#] {
        assert!(actions.iter().any(|found| found == action), "{action} among {actions:?}");
    }
    for list in ["unschedulable", "waves", "alternatives", "placements", "demand", "explain"] {
        assert_ne!(plan["capacity"][list], json!([]), "{list}");
    }
}

#[test]
fn newer_minor_version_is_read_and_newer_major_is_rejected() {
    let mut plan = parsed(&plans(FORMATS[FORMATS.len() - 1]));
    plan["format_version"] = "1.7".into();
    plan["resource_changes"][0]["colour"] = "blue".into();
    plan["capacity"]["weather"] = json!({ "rain": [1, 2] });
    plan["capacity"]["base"]["world"]["mood"] = Value::Null;
    let workspace = Workspace::empty();
    // The checksum covers the rest of the file in canonical spelling.
    plan.as_object_mut().expect("an object").remove("checksum");
    let spelled = canonical::pretty(&plan).expect("no floats");
    let digits: Vec<String> =
        Sha256::digest(spelled).iter().map(|byte| format!("{byte:02x}")).collect();
    let digits = digits.concat();
    plan["checksum"] = format!("sha256:{digits}").into();
    workspace.write("plan.json", &plan.to_string());
    let newer = workspace.run(&["show", "plan.json"]);
    assert_eq!(newer.code, Some(0), "{}", newer.err);

    plan["format_version"] = "2.0".into();
    workspace.write("plan.json", &plan.to_string());
    let major = workspace.run(&["show", "plan.json"]);
    assert_eq!((major.code, major.out.as_str()), (Some(9), ""));
    assert!(major.err.contains("format 2.0") && major.err.contains("hint:"), "{}", major.err);
}

/// An edit of a plan.
type DocumentEdit = fn(&mut Value);

#[test]
fn altered_plan_is_rejected_by_each_command() {
    let edits: [(&str, DocumentEdit); 9] = [
        ("totals", |plan| {
            for count in ["add", "change", "destroy"] {
                plan["summary"][count] = 0.into();
            }
        }),
        ("errors", |plan| plan["errored"] = true.into()),
        ("expiry", |plan| plan["capacity"]["expires_at"] = "2099-01-01T00:00:00Z".into()),
        ("key", |plan| {
            let rows = plan["resource_changes"].as_array_mut().expect("rows").iter_mut();
            let mut rows = rows.filter(|row| row["change"]["before"].is_null());
            rows.next().expect("a launch")["index"] = "77".into();
        }),
        ("allocatable", |plan| {
            let rows = plan["resource_changes"].as_array_mut().expect("rows").iter_mut();
            let mut rows = rows.filter(|row| row["change"]["before"].is_null());
            let row = rows.next().expect("a launch");
            row["change"]["after"]["allocatable"]["cpu_milli"] = 99_000.into();
        }),
        ("digest", |plan| plan["capacity"]["digest"] = format!("sha256:{:064}", 0).into()),
        ("decision", |plan| {
            let rows = plan["resource_changes"].as_array_mut().expect("rows").iter_mut();
            let mut changes = rows.map(|row| &mut row["change"]);
            let launch = changes.find(|change| change["before"].is_null()).expect("a launch");
            launch["after"]["instance_type"] = "m5.24xlarge".into();
        }),
        ("commit", |plan| plan["capacity"]["base"]["commit"] = "4f2c9a1".into()),
        ("world", |plan| {
            plan["capacity"]["base"]["world"]["taken_at"] = "2026-09-02T10:00:00Z".into();
        }),
    ];
    for (name, edit) in edits {
        let workspace = Workspace::empty();
        let mut plan = parsed(&plans(FORMATS[FORMATS.len() - 1]));
        edit(&mut plan);
        workspace.write("plan.json", &plan.to_string());
        for command in [
            &["show", "plan.json"][..],
            &["explain", "inflate", "--plan", "plan.json"],
            &["apply", "plan.json", "--auto-approve"],
        ] {
            let result = workspace.run(command);
            assert_eq!((result.code, result.out.as_str()), (Some(9), ""), "{name}: {}", result.err);
            assert!(
                result.err.contains("was altered") && result.err.contains("hint:"),
                "{}",
                result.err
            );
        }
        assert!(!workspace.path("world").exists(), "{name}: no world is created");
    }
}

#[test]
fn plans_with_incomplete_identity_are_only_shown() {
    for format in PARTIAL_FORMATS {
        let workspace = Workspace::empty();
        workspace.write("plan.json", &plans(format));
        for command in [
            &["apply", "plan.json", "--auto-approve"][..],
            &["approve", "plan.json", "--by", "a", "--out", "a.json"],
        ] {
            let result = workspace.run(command);
            assert_eq!(result.code, Some(9), "{format}: {}", result.err);
            assert!(
                result.err.contains("identity does not cover everything that apply reads"),
                "{}",
                result.err
            );
        }
        assert!(!workspace.path("world").exists() && !workspace.path("a.json").exists());
    }
}

#[test]
fn refused_apply_creates_no_world() {
    let workspace = Workspace::example("provisioner");
    let planned = workspace.run(&[&["plan", "--out", "plan.json"][..], &NEW_WORLD].concat());
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    assert!(!workspace.path("world").exists(), "a plan creates no world");
    let digest = format!("sha256:{:064}", 0);
    let other = ["apply", "plan.json", "--auto-approve", "--approved-digest", digest.as_str()];
    let result = workspace.run(&other);
    assert_eq!(result.code, Some(3), "{}", result.err);
    assert!(!workspace.path("world").exists());
}
