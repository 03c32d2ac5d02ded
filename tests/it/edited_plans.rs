//! Plan files that were edited after their approval. The editor recomputes checksum, digest and plan
//! ID, so that only the checks of `apply` are left.

use std::process::Command;

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

pub(crate) fn git(workspace: &Workspace, arguments: &[&str]) {
    let done = Command::new("git")
        .current_dir(workspace.root())
        .args(["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"])
        .args(arguments)
        .output()
        .expect("git runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn commit(workspace: &Workspace, message: &str) {
    git(workspace, &["add", "-A", "--", ":!*.json", ":!world"]);
    git(workspace, &["commit", "-q", "-m", message]);
}

/// Creates a repository of an example, with one commit.
fn repository(example: &str) -> Workspace {
    let workspace = Workspace::example(example);
    git(&workspace, &["init", "-q", "-b", "main"]);
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

#[test]
fn plan_file_does_not_choose_the_commit_of_its_nodes() {
    let workspace = repository("eks-workshop");
    let pools = workspace.read("nodepool.yaml");
    // This branch is not merged, and has other user data.
    git(&workspace, &["checkout", "-q", "-b", "open"]);
    write_user_data(&workspace, "echo open");
    commit(&workspace, "open");
    let open = plan(&workspace, "open.json", &WORLD);
    git(&workspace, &["checkout", "-q", "main"]);
    let approved = plan(&workspace, "plan.json", &WORLD);
    let edited = resealed(&workspace.read("plan.json"), |plan| {
        plan.capacity.base.commit.clone_from(&open.capacity.base.commit);
        plan.capacity.base.tree.clone_from(&open.capacity.base.tree);
    });
    workspace.write("edited.json", &edited);
    assert_refused(&apply(&workspace, "edited.json", &approved), 3, "is not in the history of HEAD");

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
    git(&workspace, &["checkout", "-q", "-b", "open"]);
    write_user_data(&workspace, "echo open");
    commit(&workspace, "open");
    let approved = plan(&workspace, "plan.json", &WORLD);
    git(&workspace, &["checkout", "-q", "main"]);
    git(&workspace, &["merge", "-q", "--squash", "open"]);
    git(&workspace, &["commit", "-q", "-m", "squash"]);
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
