//! Reviews of plans: shipped policies, approvals, refusals with their exit codes, comparisons, and
//! secrets.

use std::path::Path;

use crate::binary::{Workspace, parsed};

const WORLD: [&str; 4] = ["--world", "sim:world", "--at", "2026-09-01T10:00:00Z"];

/// Private keys, generated for these tests only.
const ALICE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIK/4G/Uy9j/MdgNTqsL87S2C9aY3QHlUQ+Yza5lbWlxw\n-----END PRIVATE KEY-----\n";
const ALICE_PUBLIC: &str = "MCowBQYDK2VwAyEAK6r6k6xSO+Tf7GsjgOLiOP431kQtIjsjKV0hIVgox0c=";
const CAROL_PUBLIC: &str = "MCowBQYDK2VwAyEAdcUVHfwf8dViuJgpuFDWzMzvk65AlKF+KazP3EWUcIQ=";
const BOB: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIGuo2nWHYaOvSPQ/uJqqTZQBi0XVw3zDdtO4BGSiBQC0\n-----END PRIVATE KEY-----\n";

fn policies() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("policies").display().to_string()
}

/// Returns a workspace with the saved plan of an example over a new embedded world.
fn planned(example: &str) -> Workspace {
    let workspace = Workspace::example(example);
    let result = workspace.run(&[&["plan", "--out", "plan.json"], &WORLD[..]].concat());
    assert_eq!(result.code, Some(0), "{}", result.err);
    workspace
}

/// Lists the key of alice in the settings. Returns the settings without the key.
fn require_signature(workspace: &Workspace) -> String {
    let fleet = workspace.read("fleetwright.yaml");
    let guard = format!("{fleet}  apply: {{ keys: [{{ name: alice, key: {ALICE_PUBLIC} }}] }}\n");
    workspace.write("fleetwright.yaml", &guard);
    fleet
}

/// Makes the workspace a repository with one commit.
fn commit_base(workspace: &Workspace) {
    workspace.git(&["init", "-q", "-b", "main"]);
    workspace.git(&["add", "-A"]);
    workspace.git(&["commit", "-q", "-m", "base"]);
}

#[test]
fn shipped_guard_rails_pass_their_tests() {
    let workspace = Workspace::empty();
    let result = workspace.run(&["policy", "test", &policies()]);
    assert_eq!(result.code, Some(0), "{}{}", result.out, result.err);
    for name in ["budget", "blast_radius", "unresolved", "allowed", "spot", "node_age"] {
        assert!(result.out.contains(&format!("pass   guardrails.{name}.test_")), "{}", result.out);
    }
    for name in ["single_zone", "destructive", "disruption", "format"] {
        assert!(result.out.contains(&format!("pass   guardrails.{name}.test_")), "{}", result.out);
    }
    assert!(result.out.contains("0 failed"), "{}", result.out);
}

#[test]
fn output_of_conftest_is_limited() {
    let mut workspace = Workspace::empty();
    workspace.write("guard/main.rego", "package main\ntest_sum {\n  1 + 1 == 2\n}\n");
    workspace.write("bin/conftest", "#!/bin/sh\nyes | head -c 70000000\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(workspace.path("bin/conftest"), mode).expect("executable");
    let path = std::env::var("PATH").expect("a path");
    let path = format!("{}:{path}", workspace.path("bin").display());
    workspace.variables.insert("PATH".to_owned(), path);
    let result = workspace.run(&["policy", "test", "guard"]);
    assert_eq!(result.code, Some(1), "{}{}", result.out, result.err);
    assert!(result.out.contains("1 passed, 0 failed"), "{}", result.out);
    assert!(result.out.contains("conftest writes more than 67108864 bytes"), "{}", result.out);
}

#[test]
fn policy_denial_exits_with_6() {
    let workspace = planned("eks-workshop");
    workspace.write(
        "guard/main.rego",
        "package main\ndeny[msg] {\n  input.summary.add > 0\n  msg := \"no more nodes\"\n}\n",
    );
    let plan = workspace.run(&[&["plan", "--policy", "guard"], &WORLD[..]].concat());
    assert_eq!(plan.code, Some(6), "{}", plan.err);
    assert!(plan.out.contains("Denied by policy: main.deny") && plan.out.contains("no more nodes"));
    for format in ["markdown", "html", "github", "json"] {
        let view = workspace
            .run(&[&["plan", "--policy", "guard", "--format", format], &WORLD[..]].concat());
        assert!(view.out.contains("no more nodes"), "{format}");
    }
    let apply = workspace.run(&["apply", "plan.json", "--auto-approve", "--policy", "guard"]);
    assert_eq!(apply.code, Some(6), "{}", apply.err);
}

#[test]
fn configured_keys_require_signed_approvals() {
    let workspace = Workspace::example("eks-workshop");
    require_signature(&workspace);
    let result = workspace.run(&[&["plan", "--out", "plan.json"], &WORLD[..]].concat());
    assert_eq!(result.code, Some(0), "{}", result.err);
    let digest = parsed(&workspace.read("plan.json"))["capacity"]["digest"].to_string();
    workspace.write("alice.pem", ALICE);
    workspace.write("bob.pem", BOB);
    for refused in [&["--auto-approve"][..], &["--approved-digest", digest.trim_matches('"')]] {
        let result = workspace.run(&[&["apply", "plan.json"], refused].concat());
        assert_eq!(result.code, Some(5), "{}", result.err);
        assert!(
            result.err.contains("alice has not approved") && result.err.contains("hint:"),
            "{}",
            result.err
        );
    }
    // A key counts only for the name under which it is listed.
    for (by, key, file, code) in [
        ("alice", "bob.pem", "forged.json", 5),
        ("bob", "alice.pem", "renamed.json", 5),
        ("alice", "alice.pem", "alice.json", 0),
    ] {
        let approve = ["approve", "plan.json", "--by", by, "--key", key, "--out", file];
        let result = workspace.run(&approve);
        assert_eq!(result.code, Some(0), "{}", result.err);
        let result =
            workspace.run(&["apply", "plan.json", "--approval", file, "--receipt", "receipt.json"]);
        assert_eq!(result.code, Some(code), "{by} {key}: {}", result.err);
    }
    assert_eq!(parsed(&workspace.read("receipt.json"))["verdict"], "applied");
    let view = workspace.run(&[
        "comment",
        "--plan",
        "plan.json",
        "--receipt",
        "receipt.json",
        "--dry-run",
    ]);
    assert!(view.out.contains("### ✅ Applied"), "{}{}", view.out, view.err);
}

#[test]
fn apply_needs_the_policies_that_judged_the_plan() {
    let workspace = Workspace::example("eks-workshop");
    workspace.write("guard/main.rego", "package main\nwarn[msg] {\n  msg := \"look\"\n}\n");
    let plan = ["plan", "--out", "plan.json", "--policy", "guard"];
    let result = workspace.run(&[&plan[..], &WORLD[..]].concat());
    assert_eq!(result.code, Some(0), "{}", result.err);
    let without = workspace.run(&["apply", "plan.json", "--auto-approve"]);
    assert_eq!(without.code, Some(5), "{}", without.err);
    assert!(without.err.contains("judged by `guard/main.rego`"), "{}", without.err);
    workspace.write("other/main.rego", "package main\nwarn[msg] {\n  false\n  msg := \"\"\n}\n");
    let other = workspace.run(&["apply", "plan.json", "--auto-approve", "--policy", "other"]);
    assert_eq!(other.code, Some(5), "{}", other.err);
    let with = workspace.run(&["apply", "plan.json", "--auto-approve", "--policy", "guard"]);
    assert_eq!(with.code, Some(0), "{}", with.err);
}

#[test]
fn removed_denial_in_plan_file_is_detected() {
    let workspace = Workspace::example("eks-workshop");
    workspace.write("guard/main.rego", "package main\ndeny[msg] {\n  msg := \"no\"\n}\n");
    let plan = ["plan", "--out", "plan.json", "--policy", "guard"];
    assert_eq!(workspace.run(&[&plan[..], &WORLD[..]].concat()).code, Some(6));
    let denied = workspace.run(&["apply", "plan.json", "--auto-approve"]);
    assert_eq!(denied.code, Some(6), "{}", denied.err);
    let mut plan = parsed(&workspace.read("plan.json"));
    plan["checks"] = serde_json::json!([]);
    plan["applyable"] = true.into();
    workspace.write("plan.json", &plan.to_string());
    assert_eq!(workspace.run(&["apply", "plan.json", "--auto-approve"]).code, Some(9));
}

#[test]
fn unreadable_guard_settings_stop_everything() {
    let workspace = Workspace::example("eks-workshop");
    let fleet = workspace.read("fleetwright.yaml");
    workspace.write("fleetwright.yaml", &format!("{fleet}  apply: {{ kays: [] }}\n"));
    commit_base(&workspace);
    workspace.write("fleetwright.yaml", &fleet);
    let plan = ["plan", "--guard-ref", "main", "--out", "plan.json"];
    let result = workspace.run(&[&plan[..], &WORLD[..]].concat());
    assert_eq!(result.code, Some(1), "{}", result.err);
    assert!(
        result.err.contains("fleetwright.yaml:") && result.err.contains("kays"),
        "{}",
        result.err
    );
}

#[test]
fn commit_plan_uses_guard_of_that_commit() {
    let workspace = Workspace::example("eks-workshop");
    let fleet = require_signature(&workspace);
    commit_base(&workspace);
    let result = workspace.run(&[&["plan", "--out", "plan.json"], &WORLD[..]].concat());
    assert_eq!(result.code, Some(0), "{}", result.err);
    workspace.write("fleetwright.yaml", &fleet);
    for command in [
        &["apply", "plan.json", "--auto-approve"][..],
        &[&["apply", ".", "--ref", "main", "--auto-approve"], &WORLD[..]].concat(),
    ] {
        let result = workspace.run(command);
        assert_eq!(result.code, Some(5), "{command:?}: {}", result.err);
        assert!(result.err.contains("alice has not approved"), "{}", result.err);
    }
}

#[test]
fn apply_uses_the_guard_recorded_in_the_plan() {
    let workspace = Workspace::example("eks-workshop");
    let fleet = require_signature(&workspace);
    commit_base(&workspace);
    // The change removes the keys.
    workspace.write("fleetwright.yaml", &fleet);
    workspace.git(&["commit", "-q", "-a", "-m", "loosen"]);
    let plan = ["plan", "--compare", "HEAD~1", "--out", "plan.json"];
    let result = workspace.run(&[&plan[..], &WORLD[..]].concat());
    assert_eq!(result.code, Some(0), "{}", result.err);
    let result = workspace.run(&["apply", "plan.json", "--auto-approve"]);
    assert_eq!(result.code, Some(5), "{}", result.err);
}

#[test]
fn plan_file_does_not_choose_its_guard() {
    let workspace = Workspace::example("eks-workshop");
    let fleet = require_signature(&workspace);
    commit_base(&workspace);
    // A branch in the same clone lists another key, and its plan is saved.
    workspace.git(&["checkout", "-q", "-b", "other"]);
    workspace.write("fleetwright.yaml", &fleet);
    workspace.git(&["commit", "-q", "-a", "-m", "loosen"]);
    for more in [&[][..], &["--guard-ref", "other"]] {
        let plan = ["plan", "--out", "plan.json"];
        let result = workspace.run(&[&plan[..], &WORLD[..], more].concat());
        assert_eq!(result.code, Some(0), "{}", result.err);
        workspace.git(&["checkout", "-q", "main"]);
        let result = workspace.run(&["apply", "plan.json", "--auto-approve"]);
        assert_eq!(result.code, Some(5), "{}", result.err);
        assert!(result.err.contains("alice has not approved"), "{}", result.err);
        workspace.git(&["checkout", "-q", "other"]);
    }
    // Keys from outside of the repository replace those in it.
    workspace.write("bob.pub", ALICE_PUBLIC);
    let apply = ["apply", "plan.json", "--auto-approve"];
    let with_key = workspace.run(&[&apply[..], &["--key", "bob=bob.pub"]].concat());
    assert_eq!(with_key.code, Some(5), "{}", with_key.err);
    assert!(with_key.err.contains("bob has not approved"), "{}", with_key.err);
    // All keys of the command line must approve. The commit does not lower their number.
    workspace.write("bob.pem", ALICE);
    let bob = ["--by", "bob", "--key", "bob.pem", "--out", "bob.json"];
    let approved = workspace.run(&[&["approve", "plan.json"][..], &bob].concat());
    assert_eq!(approved.code, Some(0), "{}", approved.err);
    workspace.write("carol.pub", CAROL_PUBLIC);
    let keys = ["--key", "bob=bob.pub", "--key", "carol=carol.pub", "--approval", "bob.json"];
    let few = workspace.run(&[&["apply", "plan.json"][..], &keys].concat());
    assert!(few.code == Some(5) && few.err.contains("carol has not approved"), "{}", few.err);
    let unknown = ["apply", "plan.json", "--approvals", "1"];
    assert_eq!(workspace.run(&unknown).code, Some(1), "it needs keys");
    let enough = workspace.run(&[&["apply", "plan.json", "--approvals", "1"][..], &keys].concat());
    assert!(!enough.err.contains("has not approved"), "{}", enough.err);
    // A plan of another place is refused, whatever it says about itself.
    let elsewhere = Workspace::example("eks-workshop");
    elsewhere.write("plan.json", &workspace.read("plan.json"));
    let result = elsewhere.run(&["apply", "plan.json", "--auto-approve"]);
    assert_eq!(result.code, Some(10), "{}", result.err);
}

#[test]
fn windows_use_the_clock_of_the_world() {
    let workspace = Workspace::example("eks-workshop");
    let fleet = workspace.read("fleetwright.yaml");
    let window = "  apply: { windows: [{ from: \"10:00\", to: \"10:01\" }] }\n";
    workspace.write("fleetwright.yaml", &(fleet + window));
    let arguments =
        ["plan", "--out", "plan.json", "--world", "sim:world", "--at", "2026-09-01T10:00:40Z"];
    assert_eq!(workspace.run(&arguments).code, Some(0));
    let first = workspace.run(&["apply", "plan.json", "--auto-approve"]);
    assert_eq!(first.code, Some(0), "{}", first.err);
    let inflate = workspace.read("inflate.yaml");
    workspace.write("inflate.yaml", &inflate.replace("replicas: 5", "replicas: 40"));
    assert_eq!(workspace.run(&arguments).code, Some(0));
    assert!(workspace.read("plan.json").contains("\"timestamp\": \"2026-09-01T10:00:40Z\""));
    let late = workspace.run(&["apply", "plan.json", "--auto-approve"]);
    assert_eq!(late.code, Some(8), "{}", late.err);
}

#[test]
fn pull_request_label_permits_removals() {
    let workspace = Workspace::example("quickstart");
    let policies = policies();
    let plan = ["plan", "--policy", &policies, "--format", "json"];
    let without = workspace.run(&plan);
    assert_eq!(without.code, Some(6), "{}", without.err);
    assert!(without.out.contains("add the label capacity:remove"), "{}", without.out);
    workspace.write("labels.json", "{\"fleetwright\": {\"labels\": [\"capacity:remove\"]}}");
    let with = workspace.run(&[&plan[..], &["--policy-data", "labels.json"]].concat());
    assert_eq!(with.code, Some(0), "{}{}", with.out, with.err);
}

#[test]
fn guard_rails_without_limits_or_policies_deny() {
    let workspace = planned("eks-workshop");
    for file in ["allowed", "blast_radius", "budget", "spot", "node_age"] {
        let name = format!("{file}.rego");
        let text = std::fs::read_to_string(Path::new(&policies()).join(&name)).expect("ships");
        workspace.write(&format!("rails/{name}"), &text);
    }
    let result = workspace.run(&[&["plan", "--policy", "rails"], &WORLD[..]].concat());
    assert_eq!(result.code, Some(6), "{}", result.err);
    for limit in ["families", "regions", "hourly_max", "nodes_removed_max", "spot_percent_max"] {
        assert!(
            result.out.contains(&format!("data.fleetwright.{limit} is not set")),
            "{}",
            result.out
        );
    }
    workspace.write("none/data.json", "{}");
    let none = workspace.run(&[&["plan", "--policy", "none"], &WORLD[..]].concat());
    assert_eq!(none.code, Some(1), "{}", none.err);
    assert!(none.err.contains("contains no policy"), "{}", none.err);
}

#[test]
fn receipt_is_required_and_belongs_to_its_plan() {
    let workspace = planned("eks-workshop");
    let apply = ["apply", "plan.json", "--auto-approve", "--receipt"];
    let unwritable = workspace.run(&[&apply[..], &["none/receipt.json"]].concat());
    assert_eq!(unwritable.code, Some(1), "{}", unwritable.err);
    assert!(!unwritable.err.contains("launched"), "{}", unwritable.err);
    let result = workspace.run(&[&apply[..], &["receipt.json"]].concat());
    assert_eq!(result.code, Some(0), "{}", result.err);
    let comment = ["comment", "--receipt", "receipt.json", "--dry-run", "--plan"];
    assert_eq!(workspace.run(&[&comment[..], &["plan.json"]].concat()).code, Some(0));
    let inflate = workspace.read("inflate.yaml");
    workspace.write("inflate.yaml", &inflate.replace("replicas: 5", "replicas: 40"));
    let later = workspace.run(&["plan", "--world", "sim:world", "--out", "later.json"]);
    assert_eq!(later.code, Some(0), "{}", later.err);
    let other = workspace.run(&[&comment[..], &["later.json"]].concat());
    assert_eq!(other.code, Some(1), "{}", other.out);
    assert!(other.err.contains("is of plan"), "{}", other.err);
    let escape = ["comment", "--plan", "plan.json", "--status", "../issues/1/labels?x="];
    let escaped = workspace.run(&escape);
    assert!(escaped.code == Some(1) && escaped.err.contains("is not a commit"), "{}", escaped.err);
    let of_cluster =
        |name| workspace.run(&["comment", "--plan", "plan.json", "--dry-run", "--cluster", name]);
    assert_eq!(of_cluster("eks-workshop").code, Some(0));
    let other = of_cluster("prod-us1");
    let message = "the plan is of cluster `eks-workshop`, not of `prod-us1`";
    assert!(other.code == Some(1) && other.err.contains(message), "{}", other.err);
    let unnamed = of_cluster("a\nb");
    assert!(unnamed.code == Some(1) && unnamed.err.contains("is not the name of a cluster"));
}

#[test]
fn approver_sees_the_plan_and_is_named() {
    let workspace = planned("eks-workshop");
    let approve = |plan: &str, by: &str| {
        workspace.run(&["approve", plan, "--by", by, "--out", "approvals.json"])
    };
    assert_eq!(approve("plan.json", " ").code, Some(1));
    let result = approve("plan.json", "alice");
    assert!(result.code == Some(0) && result.err.contains("\nPlan: "), "{}", result.err);
    let result = workspace.run(&["plan", "--world", "empty", "--out", "empty.json"]);
    assert_eq!(result.code, Some(0), "{}", result.err);
    assert_eq!(
        approve("empty.json", "alice").code,
        Some(5),
        "a plan over no cluster cannot be approved"
    );
    let comment_for = |approvals: &[&str]| {
        let comment = ["comment", "--plan", "plan.json", "--dry-run"];
        workspace.run(&[&comment[..], approvals].concat()).out
    };
    assert!(comment_for(&[]).contains("approved ✗"));
    assert!(comment_for(&["--approval", "approvals.json"]).contains("approved ✓"));
    // With keys, an unsigned approval does not count.
    require_signature(&workspace);
    let arguments = [&["plan", "--out", "plan.json"], &WORLD[..]].concat();
    assert_eq!(workspace.run(&arguments).code, Some(0));
    assert_eq!(approve("plan.json", "alice").code, Some(0));
    assert!(comment_for(&["--approval", "approvals.json"]).contains("approved ✗"));
}

#[test]
fn policies_are_loaded_from_repository_urls() {
    let workspace = Workspace::example("eks-workshop");
    workspace
        .write("fleetwright.yaml", &(workspace.read("fleetwright.yaml") + "  policies: [guard]\n"));
    workspace.write("guard/main.rego", "package main\nwarn[msg] {\n  msg := \"from afar\"\n}\n");
    commit_base(&workspace);
    let url = format!("file://{}", workspace.root().display());
    let mut here = Workspace::empty();
    let path = std::env::var("PATH").expect("a path");
    here.variables.insert("PATH".to_owned(), path);
    let result = here.run(&["plan", &url, "--world", "empty", "--at", "2026-09-01T10:00:00Z"]);
    assert_eq!(result.code, Some(0), "{}", result.err);
    assert!(result.out.contains("from afar"), "{}", result.out);
}

#[test]
fn comparison_separates_new_changes_and_uses_base_guard() {
    let workspace = Workspace::example("eks-workshop");
    workspace
        .write("guard/main.rego", "package main\nwarn[msg] {\n  msg := \"seen by the base\"\n}\n");
    workspace
        .write("fleetwright.yaml", &(workspace.read("fleetwright.yaml") + "  policies: [guard]\n"));
    commit_base(&workspace);
    // The change removes the policy and raises the number of pods.
    workspace.write("guard/main.rego", "package main\nwarn[msg] {\n  false\n  msg := \"\"\n}\n");
    let inflate = workspace.read("inflate.yaml");
    workspace.write("inflate.yaml", &inflate.replace("replicas: 5", "replicas: 40"));
    workspace.git(&["add", "-A"]);
    workspace.git(&["commit", "-q", "-m", "more"]);
    let arguments = [&["plan", "--compare", "HEAD~1", "--out", "plan.json"], &WORLD[..]].concat();
    let result = workspace.run(&arguments);
    assert_eq!(result.code, Some(0), "{}", result.err);
    let plan = parsed(&workspace.read("plan.json"));
    let found = &plan["capacity"]["comparison"];
    assert_ne!(found["caused"], serde_json::json!([]), "{found}");
    assert_eq!(found["workloads"][0]["after"], 40, "{found}");
    assert_eq!(plan["capacity"]["base"]["guard"]["changed"], true);
    assert_eq!(plan["checks"][0]["problems"][0], "seen by the base");
    let comment = workspace.run(&["comment", "--plan", "plan.json", "--dry-run"]).out;
    let (caused, pending) =
        (comment.find("Caused by this change"), comment.find("Already planned on "));
    assert!(caused.is_some() && caused < pending, "{comment}");
}

#[test]
fn plans_are_compared_and_drift_is_reported() {
    let workspace = planned("eks-workshop");
    let same = workspace.run(&["diff", "plan.json", "plan.json", "--detailed-exitcode"]);
    assert_eq!(same.code, Some(0), "{}", same.err);
    assert!(same.out.contains("The same plan"), "{}", same.out);
    let result =
        workspace.run(&["plan", "--demand", "ceiling", "--world", "empty", "--out", "other.json"]);
    assert_eq!(result.code, Some(0), "{}", result.err);
    let drift = workspace.run(&[&["drift", "--format", "json"], &WORLD[..]].concat());
    assert_eq!(drift.code, Some(0), "{}", drift.err);
    workspace.write("drift.json", &drift.out);
    let apply = workspace.run(&["apply", "drift.json", "--auto-approve"]);
    let report = parsed(&drift.out);
    assert_eq!(
        (report["applyable"].as_bool(), &report["resource_changes"]),
        (Some(false), &serde_json::json!([]))
    );
    assert!(!apply.err.contains("launched i-"), "{}", apply.err);
}

#[test]
fn views_have_the_markers_of_terraform_tools() {
    let workspace = planned("eks-workshop");
    // The form that Atlantis and tfcmt parse.
    let is_summary = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).is_some_and(|word| word.parse::<u32>().is_ok());
        line.starts_with("Plan: ")
            && number(1)
            && number(4)
            && number(7)
            && line.ends_with(" to destroy.")
    };
    for options in [
        &[][..],
        &["--concise"],
        &["--summary"],
        &["--format", "markdown"],
        &["--format", "github"],
    ] {
        let view = workspace.run(&[&["show", "plan.json"], options].concat());
        let last = view.out.lines().last().unwrap_or_default();
        assert!(is_summary(last), "{options:?}: {last}");
    }
}

#[test]
fn secrets_appear_in_no_view_or_error() {
    let workspace = Workspace::example("eks-workshop");
    let secret = "planted-canary-7f3a";
    let workload = format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: leaky\n  annotations: {{ a: {secret} }}\nspec:\n  \
         replicas: 2\n  selector: {{ matchLabels: {{ app: leaky }} }}\n  template:\n    metadata:\n      labels: {{ app: leaky }}\n      \
         annotations: {{ b: {secret} }}\n    spec:\n      containers:\n      - name: c\n        image: c\n        env: [{{ name: TOKEN, value: {secret} }}]\n        \
         resources: {{ requests: {{ cpu: 500m, memory: 1Gi }} }}\n"
    );
    workspace.write("leaky.yaml", &workload);
    workspace.write(
        "secret.yaml",
        &format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{ name: s }}\nstringData: {{ a: {secret} }}\n"
        ),
    );
    let planned = workspace.run(&[&["plan", "-v", "--out", "plan.json"], &WORLD[..]].concat());
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    let mut seen = planned.out + &planned.err + &workspace.read("plan.json");
    for format in ["text", "json", "markdown", "html", "github"] {
        let result = workspace.run(&["show", "plan.json", "--format", format]);
        seen += &(result.out + &result.err);
    }
    seen += &workspace.run(&["show", "plan.json", "--json"]).out;
    seen += &workspace.run(&["explain", "leaky", "--plan", "plan.json"]).out;
    let applied = workspace.run(&["apply", "plan.json", "--auto-approve"]);
    seen += &(applied.out + &applied.err);
    assert!(seen.contains("leaky") && !seen.contains(secret));
}
