//! Saved plans: one of each example and of each version of the format, readable for ever.

use std::fs;
use std::path::Path;

use fleetwright::plan::canonical;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::binary::Workspace;
use crate::golden;

/// A new embedded world, as of a fixed moment.
const NEW_WORLD: [&str; 4] = ["--world", "sim:world", "--at", "2026-09-01T10:00:00Z"];

/// Examples, and what each is planned over; the quickstart has a world, with a time, of its own.
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

/// Plans of every version of the format there was; they are written once and never again.
const FORMATS: [&str; 3] = ["format-1.0.json", "format-1.1.json", "format-1.2.json"];

/// The schema of each of them: that of an older version is never written again either.
const SCHEMAS: [&str; 3] = ["plan-1.0.schema.json", "plan-1.1.schema.json", "plan.schema.json"];

fn plans(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the plan of an example, as `plan --out` saves it.
fn plan_of(example: &str, world: &[&str]) -> String {
    let mut place = Workspace::example(example);
    let tools = crate::overlays::stand_ins().display().to_string();
    place.variables.insert("PATH".to_owned(), tools);
    let ran = place.run(&[&["plan", "--out", "plan.json"], world].concat());
    assert_eq!(ran.code, Some(0), "{example}: {}", ran.err);
    let plan = place.read("plan.json");
    assert!(!plan.contains(&place.root().display().to_string()), "{example} names its directory");
    plan
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Returns a plan that adds, removes, keeps, and leaves a pod out: a row of every kind.
fn plan_with_everything() -> String {
    let place = Workspace::example("provisioner");
    let applied = place.run(&[&["apply", ".", "--auto-approve"][..], &NEW_WORLD].concat());
    assert_eq!(applied.code, Some(0), "{}", applied.err);
    let inflate = place.read("inflate.yaml");
    let more = inflate.replace("name: inflate\n", "name: giant\n").replace("\"1\"", "\"64\"");
    place.write("giant.yaml", &more.replace("replicas: 12", "replicas: 1"));
    place.write("inflate.yaml", &inflate.replace("replicas: 12", "replicas: 5"));
    let planned = place.run(&["plan", "--world", "sim:world", "--out", "plan.json"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    place.read("plan.json")
}

#[test]
fn saved_example_plans_are_current() {
    let wrong: Vec<String> = EXAMPLES
        .iter()
        .filter_map(|(example, world)| {
            golden::hold(&format!("plans/{example}.json"), &plan_of(example, world)).err()
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
fn saved_plans_are_valid_and_round_trip_byte_for_byte() {
    let schema = parsed(&plans("plan.schema.json"));
    let schema = jsonschema::validator_for(&schema).expect("the schema is one");
    let place = Workspace::empty();
    let examples = EXAMPLES.iter().map(|(example, _)| format!("{example}.json"));
    for name in examples.chain(FORMATS.map(str::to_owned)) {
        let text = plans(&name);
        let errors: Vec<String> =
            schema.iter_errors(&parsed(&text)).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {}", errors.join("\n"));
        place.write("plan.json", &text);
        let shown = place.run(&["show", "plan.json"]);
        assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""), "{name}");
        let last = shown.out.lines().last().unwrap_or_default();
        assert!(last.starts_with("Plan: ") || last.starts_with("No changes. "), "{name}: {last}");
        let again = place.run(&["show", "plan.json", "--format", "json"]);
        assert_eq!((again.code, again.out), (Some(0), text), "{name}");
    }
}

#[test]
fn format_plan_has_each_row_kind() {
    let newest = FORMATS[FORMATS.len() - 1];
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans").join(newest);
    if !path.exists() {
        golden::hold(&format!("plans/{newest}"), &plan_with_everything()).expect("written");
    }
    for format in FORMATS {
        has_everything(&parsed(&plans(format)));
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

fn has_everything(plan: &Value) {
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
    let place = Workspace::empty();
    // As the description of the format has it: over everything else in canonical spelling.
    plan.as_object_mut().expect("an object").remove("checksum");
    let spelled = canonical::pretty(&plan).expect("no floats");
    let digits: Vec<String> =
        Sha256::digest(spelled).iter().map(|byte| format!("{byte:02x}")).collect();
    let digits = digits.concat();
    plan["checksum"] = format!("sha256:{digits}").into();
    place.write("plan.json", &plan.to_string());
    let newer = place.run(&["show", "plan.json"]);
    assert_eq!(newer.code, Some(0), "{}", newer.err);

    plan["format_version"] = "2.0".into();
    place.write("plan.json", &plan.to_string());
    let major = place.run(&["show", "plan.json"]);
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
        let place = Workspace::empty();
        let mut plan = parsed(&plans(FORMATS[FORMATS.len() - 1]));
        edit(&mut plan);
        place.write("plan.json", &plan.to_string());
        for command in [
            &["show", "plan.json"][..],
            &["explain", "inflate", "--plan", "plan.json"],
            &["apply", "plan.json", "--auto-approve"],
        ] {
            let ran = place.run(command);
            assert_eq!((ran.code, ran.out.as_str()), (Some(9), ""), "{name}: {}", ran.err);
            assert!(ran.err.contains("was altered") && ran.err.contains("hint:"), "{}", ran.err);
        }
        assert!(!place.path("world").exists(), "{name}: nothing was made");
    }
}

#[test]
fn plans_with_incomplete_digest_are_only_shown() {
    for format in &FORMATS[..2] {
        let place = Workspace::empty();
        place.write("plan.json", &plans(format));
        for command in [
            &["apply", "plan.json", "--auto-approve"][..],
            &["approve", "plan.json", "--by", "a", "--out", "a.json"],
        ] {
            let ran = place.run(command);
            assert_eq!(ran.code, Some(9), "{format}: {}", ran.err);
            assert!(ran.err.contains("digest does not cover all of its changes"), "{}", ran.err);
        }
        assert!(!place.path("world").exists() && !place.path("a.json").exists());
    }
}

#[test]
fn refused_apply_creates_no_world() {
    let place = Workspace::example("provisioner");
    let planned = place.run(&[&["plan", "--out", "plan.json"][..], &NEW_WORLD].concat());
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    fs::remove_dir_all(place.path("world")).expect("the plan made one");
    let digest = format!("sha256:{:064}", 0);
    let other = ["apply", "plan.json", "--auto-approve", "--approved-digest", digest.as_str()];
    let ran = place.run(&other);
    assert_eq!(ran.code, Some(3), "{}", ran.err);
    assert!(!place.path("world").exists());
}
