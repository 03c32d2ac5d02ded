//! What generators of an `ApplicationSet` make, and how much.

use super::*;

/// A set with these generators, whose applications lie at `path` and go to `cluster`.
fn set(generators: &str, path: &str, cluster: &str) -> String {
    format!(
        "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {{name: all, namespace: \
         argocd}}\nspec:\n  generators: {generators}\n  template:\n    metadata: {{name: x}}\n    spec:\n      \
         destination: {{name: '{cluster}', namespace: web}}\n      source: {{repoURL: '{HERE}', path: \
         '{path}'}}\n"
    )
}

fn list(elements: &str) -> String {
    format!("{{list: {{elements: [{elements}]}}}}")
}

#[test]
fn a_matrix_fills_its_second_generator_in_with_each_row_of_the_first() {
    let git =
        format!("{{git: {{repoURL: '{HERE}', directories: [{{path: 'apps/{{{{env}}}}/*'}}]}}}}");
    for (rule, second, path, expected) in [
        ("a template", git, "{{path}}", vec!["web/a", "web/b"]),
        (
            "a list with parameters",
            list("{at: 'apps/{{env}}/x'}"),
            "{{at}}",
            vec!["web/a", "web/b"],
        ),
        ("as it is", list("{at: x}"), "apps/{{env}}/{{at}}", vec!["web/a", "web/b"]),
    ] {
        let first = list("{env: prod}, {env: eu}");
        let text =
            set(&format!("[{{matrix: {{generators: [{first}, {second}]}}}}]"), path, "in-cluster");
        let story = Story::new(&[
            ("apps/eu/x/pod.yaml", &pod("b", "")),
            ("apps/prod/x/pod.yaml", &pod("a", "")),
            ("set.yaml", &text),
        ]);
        let desired = story.read();
        let names: Vec<String> =
            desired.workloads.keys().map(|id| format!("{}/{}", id.namespace, id.name)).collect();
        assert_eq!(
            (names, unresolved(&desired)),
            (expected.iter().map(|n| (*n).to_owned()).collect(), vec![]),
            "{rule}"
        );
    }
}

#[test]
fn what_a_generator_leaves_open_or_changes_by_itself_is_unresolved() {
    let open = list("{at: 'apps/{{what}}'}");
    let own = "{list: {elements: [{at: apps}], template: {spec: {project: x}}}}";
    let plain = list("{at: apps}");
    for (generators, expected) in [
        (format!("[{open}]"), "a template itself"),
        (format!("[{{matrix: {{generators: [{open}, {plain}]}}}}]"), "a template itself"),
        (format!("[{{matrix: {{generators: [{plain}, {open}]}}}}]"), "needs `what`"),
        (format!("[{own}]"), "a template of its own"),
        (format!("[{{matrix: {{generators: [{plain}, {own}]}}}}]"), "a template of its own"),
        (
            format!("[{{matrix: {{generators: [{plain}, {plain}], template: {{a: b}}}}}}]"),
            "a template of its own",
        ),
        (format!("[{{matrix: {{generators: [{plain}]}}}}]"), "does not have two"),
    ] {
        let text = set(&generators, "{{at}}", "in-cluster");
        let story = Story::new(&[("apps/pod.yaml", &pod("a", "")), ("set.yaml", &text)]);
        let found = unresolved(&story.read());
        assert!(found.len() == 1 && found[0].contains(expected), "{generators}: {found:?}");
    }
}

#[test]
fn files_are_left_out_and_patterns_that_look_outside_are_refused() {
    let git = format!(
        "[{{git: {{repoURL: '{HERE}', files: [{{path: 'envs/*.json'}}, {{path: envs/old.json, \
         exclude: true}}]}}}}]"
    );
    let text = set(&git, "apps/{{env}}", "in-cluster");
    let mut story = Story::new(&[
        ("apps/eu/pod.yaml", &pod("a", "")),
        ("envs/eu.json", "{\"env\": \"eu\"}"),
        ("envs/old.json", "{\"env\": \"gone\"}"),
        ("set.yaml", &text),
    ]);
    let desired = story.read();
    assert_eq!((workloads(&desired).len(), unresolved(&desired)), (1, vec![]));
    story.renderings.home.below = "clusters/prod".to_owned();
    let found = unresolved(&story.read());
    assert!(found.len() == 1 && found[0].contains("looks outside the directory"), "{found:?}");
}

#[test]
fn a_cluster_generator_makes_for_others_what_is_theirs() {
    let settings = fleet("  delivery: {otherClusters: [staging]}\n");
    let story = Story::new(&[
        ("apps/prod/pod.yaml", &pod("a", "")),
        ("apps/staging/pod.yaml", &pod("b", "")),
        ("fleetwright.yaml", &settings),
        ("set.yaml", &set("[{clusters: {}}]", "apps/{{name}}", "{{name}}")),
    ]);
    let desired = story.read();
    assert_eq!(
        (workloads(&desired), unresolved(&desired)),
        (vec!["web/a apps/prod/pod.yaml:1".to_owned()], vec![])
    );
}

#[test]
fn sets_of_absurd_size_are_refused_before_they_take_memory() {
    let joined = |all: Vec<String>| list(&all.join(", "));
    let many = joined((0..1_500).map(|n| format!("{{at: apps/{n}}}")).collect());
    let heavy = list(&format!("{{at: apps, x: {}}}", "y".repeat(40_000)));
    for (rule, generators, path, expected) in [
        ("by all generators together", format!("[{many}, {many}]"), "{{at}}", "more than 2000"),
        (
            "by a matrix",
            format!("[{{matrix: {{generators: [{many}, {many}]}}}}]"),
            "{{at}}",
            "more than 2000",
        ),
        ("by parameters", format!("[{heavy}]"), "{{at}}", "parameters take more than 32768"),
    ] {
        let text = set(&generators, path, "in-cluster");
        let story = Story::new(&[("apps/pod.yaml", &pod("a", "")), ("set.yaml", &text)]);
        let found = unresolved(&story.read());
        assert!(found.len() == 1 && found[0].contains(expected), "{rule}: {found:?}");
    }
}
