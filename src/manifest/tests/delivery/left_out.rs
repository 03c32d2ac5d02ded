//! Files that a delivery tool has in its directory and does not deliver.

use super::*;

const HERE: &str = "repoURL: 'https://github.com/acme/infra', path: apps";

fn reasons_of(desired: &Desired, path: &str) -> Vec<String> {
    let own = desired.skipped.iter().filter(|skipped| *skipped.origin.file == *path);
    own.map(|skipped| skipped.reason.clone()).collect()
}

fn app(rest: &str) -> String {
    application(&format!("source: {{{HERE}{rest}}}"), OURS)
}

const LEFT_OUT: &str = "left out by its delivery object";

#[test]
fn patterns_of_a_directory_source_cross_directories() {
    for (directory, expected) in [
        (
            "recurse: true, include: '*.yaml'",
            vec!["web/b apps/sub/b.yaml:1", "web/a apps/a.yaml:1"],
        ),
        ("recurse: true, exclude: 'sub*'", vec!["web/a apps/a.yaml:1"]),
        ("recurse: true, exclude: '{x,sub}/*.yaml'", vec!["web/a apps/a.yaml:1"]),
        (
            "recurse: true, exclude: '**/none/*'",
            vec!["web/b apps/sub/b.yaml:1", "web/a apps/a.yaml:1"],
        ),
    ] {
        let scenario = DeliveryScenario::new(&[
            ("app.yaml", &app(&format!(", directory: {{{directory}}}"))),
            ("apps/a.yaml", &pod("a", "")),
            ("apps/sub/b.yaml", &pod("b", "")),
        ]);
        let mut found = workloads(&scenario.read());
        found.sort_by_key(|line| std::cmp::Reverse(line.clone()));
        assert_eq!(found, expected, "{directory}");
    }
}

#[test]
fn excluded_and_marked_files_are_left_out() {
    let root = application("source: {repoURL: 'https://x.y/z', path: apps}", OURS);
    let marked = format!("# +argocd:skip-file-rendering\n{}", pod("c", ""));
    let scenario = DeliveryScenario::new(&[
        ("app.yaml", &app(", directory: {exclude: '{b,root}.yaml'}")),
        ("apps/a.yaml", &pod("a", "")),
        ("apps/b.yaml", &pod("b", "")),
        ("apps/c.yaml", &marked),
        ("apps/root.yaml", &root.replace("name: shop", "name: root")),
    ]);
    let desired = scenario.read();
    assert_eq!(workloads(&desired), ["web/a apps/a.yaml:1"]);
    for path in ["apps/b.yaml", "apps/c.yaml"] {
        assert_eq!(reasons_of(&desired, path), [LEFT_OUT]);
    }
    let found = unresolved(&desired);
    assert!(found.len() == 1 && found[0].contains("root"), "a delivery object stays: {found:?}");
}

#[test]
fn files_that_a_rendered_kustomization_does_not_list_are_left_out() {
    let scenario = DeliveryScenario::new(&[
        ("app.yaml", &app("")),
        ("apps/kustomization.yaml", "resources: [a.yaml]"),
        ("apps/a.yaml", &pod("a", "")),
        ("apps/old.yaml", &pod("old", "")),
        ("apps/sub/c.yaml", &pod("c", "")),
    ]);
    let files = ["apps/kustomization.yaml", "apps/a.yaml"];
    let desired = scenario.rendered("apps", &pod("a", ""), &files).read();
    assert_eq!(reasons_of(&desired, "apps/old.yaml"), [LEFT_OUT]);
    let names: Vec<&str> = desired.workloads.keys().map(|id| &*id.name).collect();
    assert_eq!(names, ["c", "a"], "a directory without a kustomization is read as before");
}

#[test]
fn flux_delivers_neither_json_nor_local_config() {
    let local = pod("local", ", annotations: {config.kubernetes.io/local-config: 'true'}");
    let json = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"j\"}, \
                \"spec\": {\"containers\": [{\"name\": \"c\"}]}}";
    let sync = flux("apps", "  path: apps\n");
    let scenario = DeliveryScenario::new(&[
        ("apps/a.yaml", &pod("a", "")),
        ("apps/local.yaml", &local),
        ("apps/notes.json", json),
        ("flux.yaml", &format!("{REPOSITORY}---\n{sync}")),
    ]);
    let desired = scenario.read();
    let names: Vec<&str> = desired.workloads.keys().map(|id| &*id.name).collect();
    assert_eq!((names, unresolved(&desired)), (vec!["a"], vec![]));
    assert_eq!(reasons_of(&desired, "apps/notes.json"), [LEFT_OUT]);
}

#[test]
fn what_an_application_of_another_cluster_lacks_is_read_here() {
    let theirs = "{name: staging, namespace: web}";
    let source = format!("source: {{{HERE}, directory: {{exclude: prod.yaml}}}}");
    let scenario = DeliveryScenario::new(&[
        ("app.yaml", &application(&source, theirs)),
        ("apps/prod.yaml", &pod("prod", "")),
        ("apps/stage.yaml", &pod("stage", "")),
        ("fleetwright.yaml", &fleet("  delivery: {otherClusters: [staging]}\n")),
    ]);
    assert_eq!(workloads(&scenario.read()), ["default/prod apps/prod.yaml:1"]);
}
