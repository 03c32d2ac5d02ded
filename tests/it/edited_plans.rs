//! Plan files that were edited after their approval. The editor recomputes checksum, digest and plan
//! ID, so that only the checks of `apply` are left.

use fleetwright::plan::{Plan, set_identity};

use crate::binary::{CommandResult, Workspace};

const WORLD: [&str; 4] = ["--world", "sim:world", "--at", "2026-09-01T10:00:00Z"];

/// Returns the plan with an edit, as a reader accepts it.
fn resealed(text: &str, edit: impl FnOnce(&mut Plan)) -> String {
    let mut plan = Plan::from_json(text).expect("a plan");
    edit(&mut plan);
    set_identity(&mut plan);
    plan.to_json()
}

fn commit(workspace: &Workspace, message: &str) {
    workspace.git(&["add", "-A", "--", ":!*.json", ":!world"]);
    workspace.git(&["commit", "-q", "-m", message]);
}

/// Creates a repository of an example, with one commit.
fn repository(example: &str) -> Workspace {
    let workspace = Workspace::example(example);
    workspace.git(&["init", "-q", "-b", "main"]);
    commit(&workspace, "base");
    workspace
}

/// Plans into a file, and returns the plan.
fn plan(workspace: &Workspace, file: &str, more: &[&str]) -> Plan {
    let planned = workspace.run(&[&["plan", "--out", file][..], more].concat());
    assert!(workspace.path(file).exists(), "{}{}", planned.out, planned.err);
    Plan::from_json(&workspace.read(file)).expect("a plan")
}

/// Applies a plan file with the approval of this digest.
fn apply(workspace: &Workspace, file: &str, approved: &Plan) -> CommandResult {
    let digest = approved.capacity.digest.as_str();
    workspace.run(&["apply", file, "--approved-digest", digest])
}

fn assert_refused(result: &CommandResult, code: i32, why: &str) {
    let CommandResult { code: found, err, .. } = result;
    assert!(*found == Some(code) && err.contains(why), "{found:?}: {err}");
    assert!(!err.contains("launch done"), "{err}");
}

/// Gives the nodes of the only class of `eks-workshop` user data.
fn write_user_data(workspace: &Workspace, text: &str) {
    let pools = workspace.read("nodepool.yaml");
    let (kept, class) = pools.rsplit_once("kind: EC2NodeClass").expect("a node class");
    let class = class.replacen("spec:\n", &format!("spec:\n  userData: \"{text}\"\n"), 1);
    workspace.write("nodepool.yaml", &format!("{kept}kind: EC2NodeClass{class}"));
}

/// Sets the clock of the embedded world.
fn set_clock(workspace: &Workspace, time: &str) {
    let world = workspace.read("world/world.json");
    let (_, rest) = world.split_once("\"now\": \"").expect("a clock");
    let (now, _) = rest.split_once('"').expect("its end");
    workspace.write("world/world.json", &world.replace(now, time));
}

#[test]
fn plan_file_does_not_choose_the_commit_of_its_nodes() {
    let workspace = repository("eks-workshop");
    let pools = workspace.read("nodepool.yaml");
    // This branch is not merged, and has other user data.
    workspace.git(&["checkout", "-q", "-b", "open"]);
    write_user_data(&workspace, "echo open");
    commit(&workspace, "open");
    let open = plan(&workspace, "open.json", &WORLD);
    workspace.git(&["checkout", "-q", "main"]);
    let approved = plan(&workspace, "plan.json", &WORLD);
    let edited = resealed(&workspace.read("plan.json"), |plan| {
        plan.capacity.base.commit.clone_from(&open.capacity.base.commit);
        plan.capacity.base.tree.clone_from(&open.capacity.base.tree);
    });
    workspace.write("edited.json", &edited);
    assert_refused(
        &apply(&workspace, "edited.json", &approved),
        3,
        "is not in the history of HEAD",
    );

    // An earlier commit of the branch may be applied, but not with other nodes than planned.
    write_user_data(&workspace, "echo before");
    commit(&workspace, "user data");
    let before = plan(&workspace, "before.json", &WORLD);
    workspace.write("nodepool.yaml", &pools);
    commit(&workspace, "no user data");
    let edited = resealed(&workspace.read("plan.json"), |plan| {
        plan.capacity.base.commit.clone_from(&before.capacity.base.commit);
        plan.capacity.base.tree.clone_from(&before.capacity.base.tree);
    });
    workspace.write("edited.json", &edited);
    let result = apply(&workspace, "edited.json", &approved);
    assert_refused(&result, 3, "other settings of its pool or node class");
    let unchanged = apply(&workspace, "plan.json", &approved);
    assert_eq!(unchanged.code, Some(0), "{}", unchanged.err);
}

#[test]
fn squashed_branch_is_applied_by_its_plan() {
    let workspace = repository("eks-workshop");
    workspace.git(&["checkout", "-q", "-b", "open"]);
    write_user_data(&workspace, "echo open");
    commit(&workspace, "open");
    let approved = plan(&workspace, "plan.json", &WORLD);
    workspace.git(&["checkout", "-q", "main"]);
    workspace.git(&["merge", "-q", "--squash", "open"]);
    workspace.git(&["commit", "-q", "-m", "squash"]);
    // The checkout has another change, which is not committed.
    let inflate = workspace.read("inflate.yaml");
    workspace.write("inflate.yaml", &inflate.replace("replicas: 5", "replicas: 40"));
    let applied = apply(&workspace, "plan.json", &approved);
    assert_eq!(applied.code, Some(0), "{}", applied.err);
}

#[test]
fn plan_file_does_not_deny_errors_of_its_inputs() {
    let workspace = repository("eks-workshop");
    workspace.write("broken.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {}\n");
    commit(&workspace, "broken");
    let errored = plan(&workspace, "plan.json", &WORLD);
    assert!(errored.errored, "the repository has an error");
    let edited = resealed(&workspace.read("plan.json"), |plan| {
        (plan.errored, plan.applyable) = (false, true);
        plan.capacity.diagnostics.clear();
    });
    workspace.write("edited.json", &edited);
    let edited = Plan::from_json(&edited).expect("a plan");
    assert_refused(&apply(&workspace, "edited.json", &edited), 1, "inputs of the plan have errors");
}

#[test]
fn plan_id_covers_what_the_digest_does_not() {
    let workspace = repository("eks-workshop");
    let approved = plan(&workspace, "plan.json", &WORLD);
    let id = approved.capacity.plan_id.as_str();
    let pinned = |file: &str| workspace.run(&["apply", file, "--approved-plan", id]);
    let edits: [fn(&mut Plan); 2] = [
        |plan| plan.capacity.pods.unschedulable += 7,
        |plan| {
            let rows = plan.capacity.alternatives.iter_mut();
            let offering = rows.flat_map(|row| &mut row.offerings).next();
            offering.expect("an alternative").hourly = "9.5".parse().expect("a price");
        },
    ];
    for edit in edits {
        let edited = resealed(&workspace.read("plan.json"), edit);
        workspace.write("edited.json", &edited);
        assert_refused(&pinned("edited.json"), 3, "was approved, and this is plan");
        // The editor states the approved ID, and a valid checksum.
        let mut edited = Plan::from_json(&edited).expect("a plan");
        edited.capacity.plan_id.clone_from(&approved.capacity.plan_id);
        workspace.write("edited.json", &edited.to_json());
        assert_refused(&pinned("edited.json"), 9, "it states plan_id");
    }
    let applied = pinned("plan.json");
    assert_eq!(applied.code, Some(0), "{}", applied.err);
    let no_id = workspace.run(&["apply", "plan.json", "--approved-plan", "sha256:00"]);
    assert_refused(&no_id, 1, "is not the ID of a plan");
}

#[test]
fn budgets_hold_when_the_plan_is_applied() {
    let workspace = Workspace::example("quickstart");
    let world = workspace.read("world/world.json");
    for file in ["platform/memory.yaml", "platform/nodepool.yaml"] {
        let pools = workspace.read(file);
        // Ten minutes after the plan, nothing may be removed for an hour.
        let budgets = "budgets: [{ nodes: \"100%\" }, { nodes: \"0\", schedule: \"10 9 * * *\", \
                       duration: 1h }], consolidationPolicy";
        workspace.write(file, &pools.replace("consolidationPolicy", budgets));
    }
    workspace.git(&["init", "-q", "-b", "main"]);
    commit(&workspace, "budgets");
    let approved = plan(&workspace, "plan.json", &[]);
    assert!(approved.summary.destroy > 0, "a node is removed");
    set_clock(&workspace, "2026-11-01T09:15:00Z");
    assert_refused(&apply(&workspace, "plan.json", &approved), 3, "allow 0 removals now");
    // A plan for the time after the hour is not for now.
    let future = plan(&workspace, "future.json", &["--at", "2026-11-01T11:00:00Z"]);
    assert!(future.summary.destroy > 0, "a node is removed");
    assert_refused(&apply(&workspace, "future.json", &future), 3, "it is for 2026-11-01T11:00:00Z");
    workspace.write("world/world.json", &world);
    let applied = apply(&workspace, "plan.json", &approved);
    assert_eq!(applied.code, Some(0), "{}", applied.err);
}

#[test]
fn plan_file_does_not_extend_its_life() {
    let workspace = repository("eks-workshop");
    let approved = plan(&workspace, "plan.json", &WORLD);
    let edited = resealed(&workspace.read("plan.json"), |plan| {
        plan.capacity.expires_at = "2099-01-01T00:00:00Z".parse().expect("a time");
    });
    workspace.write("edited.json", &edited);
    let applied = apply(&workspace, "plan.json", &approved);
    assert_eq!(applied.code, Some(0), "{}", applied.err);
    set_clock(&workspace, "2026-09-03T10:00:00Z");
    assert_refused(&apply(&workspace, "edited.json", &approved), 11, "expired at");
    let edited = resealed(&workspace.read("plan.json"), |plan| {
        plan.timestamp = "2099-01-01T00:00:00Z".parse().expect("a time");
        plan.capacity.expires_at = "2099-01-01T12:00:00Z".parse().expect("a time");
    });
    workspace.write("edited.json", &edited);
    assert_refused(&apply(&workspace, "edited.json", &approved), 3, "it is for 2099");
}

#[test]
fn policies_judge_no_number_of_the_plan_file() {
    let workspace = repository("eks-workshop");
    let policy = "package main\nimport rego.v1\ndeny contains \"too expensive\" if \
                  to_number(input.capacity.cost.hourly_after) > 0.01\n";
    workspace.write("guard/main.rego", policy);
    let fleet = workspace.read("fleetwright.yaml");
    workspace.write("fleetwright.yaml", &(fleet + "  policies: [guard]\n"));
    commit(&workspace, "policy");
    let denied = plan(&workspace, "plan.json", &WORLD);
    assert!(!denied.checks.is_empty(), "the policy denies");
    for (file, is_equal) in [("equal.json", true), ("other.json", false)] {
        let edited = resealed(&workspace.read("plan.json"), |plan| {
            plan.checks.clear();
            plan.applyable = true;
            plan.capacity.cost.hourly_after = "0.001".parse().expect("a price");
            // With another digest, the price of the launched nodes is computed.
            plan.complete = is_equal;
        });
        workspace.write(file, &edited);
        let edited = Plan::from_json(&edited).expect("a plan");
        assert_refused(&apply(&workspace, file, &edited), 6, "too expensive");
    }
}
