//! Reviews: policies that ship, approvals, refusals with their codes, comparisons, and what no view
//! may show.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::binary::Place;

const WORLD: [&str; 4] = ["--world", "sim:world", "--at", "2026-09-01T10:00:00Z"];

/// The private keys were made for these tests alone.
const ALICE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIK/4G/Uy9j/MdgNTqsL87S2C9aY3QHlUQ+Yza5lbWlxw\n-----END PRIVATE KEY-----\n";
const ALICE_PUBLIC: &str = "MCowBQYDK2VwAyEAK6r6k6xSO+Tf7GsjgOLiOP431kQtIjsjKV0hIVgox0c=";
const BOB: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIGuo2nWHYaOvSPQ/uJqqTZQBi0XVw3zDdtO4BGSiBQC0\n-----END PRIVATE KEY-----\n";

fn policies() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("policies").display().to_string()
}

/// Returns a place with a plan of an example, saved over a new embedded world.
fn planned(example: &str) -> Place {
    let place = Place::example(example);
    let ran = place.run(&[&["plan", "--out", "plan.json"], &WORLD[..]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    place
}

#[test]
fn the_guard_rails_that_ship_pass_their_own_tests() {
    let place = Place::empty();
    let ran = place.run(&["policy", "test", &policies()]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    for name in ["budget", "blast_radius", "unresolved", "allowed", "spot", "node_age"] {
        assert!(ran.out.contains(&format!("pass   guardrails.{name}.test_")), "{}", ran.out);
    }
    for name in ["single_zone", "destructive", "disruption", "format"] {
        assert!(ran.out.contains(&format!("pass   guardrails.{name}.test_")), "{}", ran.out);
    }
    assert!(ran.out.contains("0 failed"), "{}", ran.out);
}

#[test]
fn a_policy_that_denies_ends_with_6_and_so_does_an_apply_of_a_file_without_its_findings() {
    let place = planned("eks-workshop");
    place.write(
        "guard/main.rego",
        "package main\ndeny[msg] {\n  input.summary.add > 0\n  msg := \"no more nodes\"\n}\n",
    );
    let plan = place.run(&[&["plan", "--policy", "guard"], &WORLD[..]].concat());
    assert_eq!(plan.code, Some(6), "{}", plan.err);
    assert!(plan.out.contains("Denied by policy: main.deny") && plan.out.contains("no more nodes"));
    for format in ["markdown", "html", "github", "json"] {
        let shown =
            place.run(&[&["plan", "--policy", "guard", "--format", format], &WORLD[..]].concat());
        assert!(shown.out.contains("no more nodes"), "{format}");
    }
    let apply = place.run(&["apply", "plan.json", "--auto-approve", "--policy", "guard"]);
    assert_eq!(apply.code, Some(6), "{}", apply.err);
}

#[test]
fn with_keys_nothing_but_their_signatures_approves() {
    let place = Place::example("eks-workshop");
    let fleet = place.read("fleetwright.yaml");
    let guard = format!("{fleet}  apply: {{ keys: [{{ name: alice, key: {ALICE_PUBLIC} }}] }}\n");
    place.write("fleetwright.yaml", &guard);
    let ran = place.run(&[&["plan", "--out", "plan.json"], &WORLD[..]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let digest = parsed(&place.read("plan.json"))["capacity"]["digest"].to_string();
    place.write("alice.pem", ALICE);
    place.write("bob.pem", BOB);
    for refused in [&["--auto-approve"][..], &["--approved-digest", digest.trim_matches('"')]] {
        let ran = place.run(&[&["apply", "plan.json"], refused].concat());
        assert_eq!(ran.code, Some(5), "{}", ran.err);
        assert!(
            ran.err.contains("none that alice signed") && ran.err.contains("hint:"),
            "{}",
            ran.err
        );
    }
    for (key, file, code) in [("bob.pem", "bob.json", 5), ("alice.pem", "alice.json", 0)] {
        let approve = ["approve", "plan.json", "--by", "somebody", "--key", key, "--out", file];
        let ran = place.run(&approve);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let ran =
            place.run(&["apply", "plan.json", "--approval", file, "--receipt", "receipt.json"]);
        assert_eq!(ran.code, Some(code), "{key}: {}", ran.err);
    }
    assert_eq!(parsed(&place.read("receipt.json"))["verdict"], "applied");
    let shown =
        place.run(&["comment", "--plan", "plan.json", "--receipt", "receipt.json", "--dry-run"]);
    assert!(shown.out.contains("### ✅ Applied"), "{}{}", shown.out, shown.err);
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

fn git(place: &Place, arguments: &[&str]) {
    let done = Command::new("git")
        .current_dir(place.root())
        .args(["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"])
        .args(arguments)
        .output()
        .expect("git runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn what_a_change_causes_is_told_from_what_was_pending_anyway_and_the_base_guards_it() {
    let place = Place::example("eks-workshop");
    place.write("guard/main.rego", "package main\nwarn[msg] {\n  msg := \"seen by the base\"\n}\n");
    place.write("fleetwright.yaml", &(place.read("fleetwright.yaml") + "  policies: [guard]\n"));
    git(&place, &["init", "-q", "-b", "main"]);
    git(&place, &["add", "-A"]);
    git(&place, &["commit", "-q", "-m", "base"]);
    // The change takes the policy away, and asks for more pods.
    place.write("guard/main.rego", "package main\nwarn[msg] {\n  false\n  msg := \"\"\n}\n");
    let inflate = place.read("inflate.yaml");
    place.write("inflate.yaml", &inflate.replace("replicas: 5", "replicas: 40"));
    git(&place, &["add", "-A"]);
    git(&place, &["commit", "-q", "-m", "more"]);
    let arguments = [&["plan", "--compare", "HEAD~1", "--out", "plan.json"], &WORLD[..]].concat();
    let ran = place.run(&arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let plan = parsed(&place.read("plan.json"));
    let found = &plan["capacity"]["comparison"];
    assert_ne!(found["caused"], serde_json::json!([]), "{found}");
    assert_eq!(found["workloads"][0]["after"], 40, "{found}");
    assert_eq!(plan["capacity"]["base"]["guard"]["changed"], true);
    assert_eq!(plan["checks"][0]["problems"][0], "seen by the base");
    let comment = place.run(&["comment", "--plan", "plan.json", "--dry-run"]).out;
    let (caused, pending) = (comment.find("Caused by this change"), comment.find("Pending anyway"));
    assert!(caused.is_some() && caused < pending, "{comment}");
}

#[test]
fn two_plans_are_compared_and_drift_is_a_report() {
    let place = planned("eks-workshop");
    let same = place.run(&["diff", "plan.json", "plan.json", "--detailed-exitcode"]);
    assert_eq!(same.code, Some(0), "{}", same.err);
    assert!(same.out.contains("The same plan"), "{}", same.out);
    let ran =
        place.run(&["plan", "--demand", "ceiling", "--world", "empty", "--out", "other.json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let drift = place.run(&[&["drift", "--format", "json"], &WORLD[..]].concat());
    assert_eq!(drift.code, Some(0), "{}", drift.err);
    place.write("drift.json", &drift.out);
    let apply = place.run(&["apply", "drift.json", "--auto-approve"]);
    let report = parsed(&drift.out);
    assert_eq!(
        (report["applyable"].as_bool(), &report["resource_changes"]),
        (Some(false), &serde_json::json!([]))
    );
    assert!(!apply.err.contains("launched i-"), "{}", apply.err);
}

#[test]
fn what_tools_for_terraform_look_for_is_in_every_view() {
    let place = planned("eks-workshop");
    // As Atlantis and tfcmt have it.
    let is_summary = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).is_some_and(|word| word.parse::<u32>().is_ok());
        line.starts_with("Plan: ")
            && number(1)
            && number(4)
            && number(7)
            && line.ends_with(" to destroy.")
    };
    for view in [
        &[][..],
        &["--concise"],
        &["--summary"],
        &["--format", "markdown"],
        &["--format", "github"],
    ] {
        let shown = place.run(&[&["show", "plan.json"], view].concat());
        let last = shown.out.lines().last().unwrap_or_default();
        assert!(is_summary(last), "{view:?}: {last}");
    }
}

#[test]
fn a_secret_of_the_repository_is_in_no_view_and_no_error() {
    let place = Place::example("eks-workshop");
    let secret = "planted-canary-7f3a";
    let workload = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: leaky\n  annotations: {{ a: {secret} }}\nspec:\n  \
         replicas: 2\n  selector: {{ matchLabels: {{ app: leaky }} }}\n  template:\n    metadata:\n      labels: {{ app: leaky }}\n      \
         annotations: {{ b: {secret} }}\n    spec:\n      containers:\n      - name: c\n        image: c\n        env: [{{ name: TOKEN, value: {secret} }}]\n        \
         resources: {{ requests: {{ cpu: 500m, memory: 1Gi }} }}\n"
    );
    place.write("leaky.yaml", &workload);
    place.write(
        "secret.yaml",
        &format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{ name: s }}\nstringData: {{ a: {secret} }}\n"
        ),
    );
    let planned = place.run(&[&["plan", "-v", "--out", "plan.json"], &WORLD[..]].concat());
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    let mut seen = planned.out + &planned.err + &place.read("plan.json");
    for format in ["text", "json", "markdown", "html", "github"] {
        let ran = place.run(&["show", "plan.json", "--format", format]);
        seen += &(ran.out + &ran.err);
    }
    seen += &place.run(&["show", "plan.json", "--json"]).out;
    seen += &place.run(&["explain", "leaky", "--plan", "plan.json"]).out;
    let applied = place.run(&["apply", "plan.json", "--auto-approve"]);
    seen += &(applied.out + &applied.err);
    assert!(seen.contains("leaky") && !seen.contains(secret));
}
