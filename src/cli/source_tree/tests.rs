//! Tests of settings in a directory of a repository that is read as a whole.

use std::fs;
use std::path::Path;

use git2::{IndexAddOption, Signature};

use super::{SourceSettings, read, read_changed};
use crate::cli::Exit;
use crate::cli::tests::run_command;

fn write(root: &Path, path: &str, text: &str) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().expect("a directory")).expect("made");
    fs::write(file, text).expect("written");
}

fn commit(root: &Path) {
    let repository = git2::Repository::init(root).expect("a repository");
    let mut index = repository.index().expect("an index");
    index.add_all(["*"], IndexAddOption::DEFAULT, None).expect("added");
    index.write().expect("written");
    let tree = index.write_tree().expect("a tree");
    let tree = repository.find_tree(tree).expect("a tree");
    let author = Signature::now("a", "a@example.com").expect("an author");
    let head = repository.head().ok().and_then(|head| head.peel_to_commit().ok());
    let parents: Vec<&git2::Commit<'_>> = head.iter().collect();
    repository.commit(Some("HEAD"), &author, &author, "m", &tree, &parents).expect("committed");
}

fn settings(cluster: &str, more: &str) -> String {
    format!(
        "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {{name: {cluster}}}\nspec:\n  cluster: \
         {{name: {cluster}, region: us-east-1}}\n{more}"
    )
}

fn delivered(cluster: &str) -> String {
    format!(
        "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {{name: apps, \
         namespace: flux-system}}\nspec:\n  path: ./apps/{cluster}\n  sourceRef: {{kind: GitRepository, \
         name: flux-system}}\n"
    )
}

fn workload(name: &str, replicas: u32) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: \
         {replicas}\n  selector: {{matchLabels: {{app: x}}}}\n  template:\n    metadata: {{labels: {{app: \
         x}}}}\n    spec: {{containers: [{{name: app, image: x, resources: {{requests: {{cpu: 500m, memory: \
         1Gi}}}}}}]}}\n"
    )
}

/// Returns a repository with two clusters whose workloads are beside their directories.
fn repository() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    for (cluster, replicas) in [("prod", 3), ("staging", 7)] {
        let sources =
            format!("  wholeRepository: true\n  sources: [{{path: clusters/{cluster}}}]\n");
        write(root, &format!("clusters/{cluster}/fleetwright.yaml"), &settings(cluster, &sources));
        write(root, &format!("clusters/{cluster}/apps.yaml"), &delivered(cluster));
        write(root, &format!("apps/{cluster}/api.yaml"), &workload("api", replicas));
    }
    // Settings at the root do not count for a directory with its own.
    write(root, "fleetwright.yaml", &settings("root", ""));
    directory
}

fn committed() -> tempfile::TempDir {
    let directory = repository();
    commit(directory.path());
    directory
}

/// Returns name of the cluster, directory, and number of unschedulable pods of a plan.
fn planned(arguments: &[&str]) -> (String, String, u64) {
    let ran = run_command(&[&["plan", "--format", "json"], arguments].concat());
    assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
    let plan: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    let base = &plan["capacity"]["base"];
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    (
        text(&base["world"]["cluster"]["name"]),
        text(&base["directory"]),
        plan["capacity"]["pods"]["unschedulable"].as_u64().expect("a number"),
    )
}

#[test]
fn directory_may_read_the_whole_repository() {
    let repository = committed();
    let path =
        |cluster: &str| repository.path().join("clusters").join(cluster).display().to_string();
    let expected = |cluster: &str, pods| (cluster.to_owned(), format!("clusters/{cluster}"), pods);
    assert_eq!(planned(&[&path("prod")]), expected("prod", 3));
    assert_eq!(planned(&[&path("staging")]), expected("staging", 7));
    assert_eq!(planned(&[&path("prod"), "--ref", "HEAD"]), expected("prod", 3));

    // A commit is read as it was, also where the directory is gone.
    fs::remove_dir_all(repository.path().join("clusters")).expect("removed");
    assert_eq!(planned(&[&path("prod"), "--ref", "HEAD"]), expected("prod", 3));
}

#[test]
fn changed_commits_and_all_work_trees_are_read() {
    let repository = committed();
    let path = repository.path().join("clusters/prod");
    let at_head = SourceSettings { path: path.clone(), revision: Some("HEAD".to_owned()) };
    let known = read(&at_head).expect("read").base;
    assert!(read_changed(&at_head, &known).expect("read").is_none());

    let work_tree = SourceSettings { path, revision: None };
    let clean = read(&work_tree).expect("read").base;
    assert!(!clean.dirty && clean.commit == known.commit);
    assert!(read_changed(&work_tree, &clean).expect("read").is_some());

    write(repository.path(), "apps/prod/api.yaml", &workload("api", 4));
    commit(repository.path());
    let changed = read_changed(&at_head, &known).expect("read").expect("a new commit");
    assert!(changed.is_whole_repository && changed.base.tree != known.tree);
    assert_eq!(changed.base, read(&at_head).expect("read").base);
}

#[test]
fn plan_of_one_cluster_is_not_applied_to_another() {
    for has_commit in [true, false] {
        let repository = repository();
        git2::Repository::init(repository.path()).expect("a repository");
        if has_commit {
            commit(repository.path());
        }
        let path =
            |cluster: &str| repository.path().join("clusters").join(cluster).display().to_string();
        let outside = tempfile::tempdir().expect("a directory");
        let world = format!("sim:{}", outside.path().join("world").display());
        let file = outside.path().join("p.json").display().to_string();
        let ran = run_command(&["plan", &path("prod"), "--world", &world, "--out", &file]);
        assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
        let ran = run_command(&["apply", &file, "--auto-approve", "--path", &path("staging")]);
        assert_eq!(ran.exit, Exit::OtherCluster, "{has_commit}: {}{}", ran.out, ran.err);
    }
}

#[test]
fn ignored_settings_do_not_read_the_whole_repository() {
    let repository = committed();
    write(repository.path(), ".gitignore", "rendered/\n");
    let sources = "  wholeRepository: true\n  sources: [{path: apps}]\n";
    write(repository.path(), "rendered/prod/fleetwright.yaml", &settings("prod", sources));
    let path = repository.path().join("rendered/prod").display().to_string();
    let ran = run_command(&["plan", &path]);
    assert_ne!(ran.exit, Exit::Done, "{}", ran.out);
    let expected = "does not hold the settings of `rendered/prod`";
    assert!(ran.err.contains(expected), "{}", ran.err);
}

#[test]
fn directory_without_the_setting_reads_nothing_above_it() {
    let repository = committed();
    write(repository.path(), "clusters/prod/fleetwright.yaml", &settings("prod", ""));
    let path = repository.path().join("clusters/prod").display().to_string();
    let ran = run_command(&["plan", &path]);
    let expected = "its path `./apps/prod` is outside the directory that is read";
    assert!(ran.out.contains(expected), "{}{}", ran.out, ran.err);
}

#[test]
fn new_settings_in_a_directory_read_the_whole_repository() {
    let repository = committed();
    let file = repository.path().join("clusters/prod/fleetwright.yaml");
    fs::remove_file(&file).expect("removed");
    let path = repository.path().join("clusters/prod").display().to_string();
    let ran = run_command(&["init", &path, "--region", "us-east-1"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert_eq!(planned(&[&path]), ("prod".to_owned(), "clusters/prod".to_owned(), 3));
}
