//! Values of charts, by whom they are given and in which order.

use super::*;

/// The release that the only order of a story with these files is for.
fn release(below: &str, files: &[(&str, &str)]) -> Result<Release, Vec<String>> {
    let mut story = Story::new(files);
    story.renderings.home.below = below.to_owned();
    match orders(&story.tree, &story.fleet, &story.renderings).pop() {
        Some(Order { recipe: Recipe::Helm(release), .. }) => Ok(release),
        Some(_) | None => Err(unresolved(&story.read())),
    }
}

const CHART: (&str, &str) = ("charts/shop/Chart.yaml", "name: shop");

fn flux_release(spec: &str) -> String {
    let vars = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: flux-system}\n\
                data: {values.yaml: 'a: 1', number: '7', word: '\"7\"', long: 'a,b', flag: 'true'}\n";
    format!(
        "{REPOSITORY}---\n{vars}---\napiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\n\
         metadata: {{name: shop, namespace: flux-system}}\nspec:\n  chart:\n    spec:\n      chart: \
         charts/shop\n      sourceRef: {{kind: GitRepository, name: flux-system}}\n{spec}"
    )
}

#[test]
fn flux_merges_the_values_of_others_in_their_order_and_those_of_the_release_last() {
    let spec = "  values: {b: {c: 9}}\n  valuesFrom:\n  - {kind: ConfigMap, name: vars, valuesKey: \
                number, targetPath: b.c}\n  - {kind: ConfigMap, name: vars}\n  - {kind: ConfigMap, \
                name: vars, valuesKey: word, targetPath: d}\n  - {kind: ConfigMap, name: vars, \
                valuesKey: flag, targetPath: e}\n  - {kind: ConfigMap, name: vars, valuesKey: none, \
                optional: true}\n";
    let made = release("", &[CHART, ("flux.yaml", &flux_release(spec))]).expect("it is a chart");
    let text = |text: &str| Values::Text(text.to_owned());
    assert_eq!(
        made.values,
        [
            text("{\"b\":{\"c\":7}}"),
            text("a: 1"),
            text("{\"d\":\"7\"}"),
            text("{\"e\":true}"),
            text("{\"b\":{\"c\":9}}")
        ]
    );
    assert_eq!((made.set, made.replaces_values), (vec![], false));
}

#[test]
fn values_files_of_flux_take_the_place_of_those_of_the_chart() {
    let spec = "      valuesFiles: [charts/shop/prod.yaml]\n";
    let made = release("", &[CHART, ("flux.yaml", &flux_release(spec))]).expect("it is a chart");
    assert_eq!(made.values, [Values::File("charts/shop/prod.yaml".to_owned())]);
    assert!(made.replaces_values);
}

#[test]
fn values_that_are_not_there_or_not_understood_are_unresolved() {
    for (item, expected) in [
        ("valuesKey: none", "has no key `none`"),
        ("valuesKey: long, targetPath: a", "targetPath `a` is not understood"),
        ("valuesKey: number, targetPath: 'a[0]'", "targetPath `a[0]` is not understood"),
        ("valuesKey: number, targetPath: a..b", "targetPath `a..b` is not understood"),
    ] {
        let spec = format!("  valuesFrom: [{{kind: ConfigMap, name: vars, {item}}}]\n");
        let found = release("", &[CHART, ("flux.yaml", &flux_release(&spec))]).expect_err("open");
        assert!(found.concat().contains(expected), "{item}: {found:?}");
    }
}

#[test]
fn what_is_defined_twice_differently_is_not_chosen_from() {
    let vars = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: flux-system}\n\
                data: {values.yaml: 'a: 2'}\n";
    let spec = "  valuesFrom: [{kind: ConfigMap, name: vars}]\n";
    let text = flux_release(spec);
    let found = release("", &[CHART, ("flux.yaml", &text), ("vars.yaml", vars)]).expect_err("open");
    assert!(found.concat().contains("ConfigMap flux-system/vars is defined twice"), "{found:?}");
    let other = REPOSITORY.replace("infra'}", "infra', ref: {branch: main}}");
    let found = release("", &[CHART, ("flux.yaml", &text), ("z.yaml", &other)]).expect_err("open");
    assert!(
        found
            .concat()
            .contains("GitRepository flux-system/flux-system, its source, is defined twice"),
        "{found:?}"
    );
    let again = release("", &[CHART, ("flux.yaml", &text), ("z.yaml", REPOSITORY)]);
    assert!(again.is_ok(), "the same thing said twice is one thing");
}

fn argo(helm: &str) -> String {
    let source = format!(
        "sources:\n  - {{repoURL: '{HERE}', path: clusters/prod/charts/shop, helm: {{{helm}}}}}\n  - \
         {{repoURL: '{HERE}', ref: own}}"
    );
    application(&source, OURS)
}

#[test]
fn values_files_of_argo_count_from_the_chart_or_from_the_root_of_the_repository() {
    for (file, expected) in [
        ("prod.yaml", Ok("charts/shop/prod.yaml")),
        ("../eu.yaml", Ok("charts/eu.yaml")),
        ("/clusters/prod/eu.yaml", Ok("eu.yaml")),
        ("$own/clusters/prod/eu.yaml", Ok("eu.yaml")),
        ("/eu.yaml", Err("eu.yaml is outside the directory that is read")),
        ("$own/clusters/eu.yaml", Err("clusters/eu.yaml is outside the directory that is read")),
        ("../../../eu.yaml", Err("../../../eu.yaml is outside the directory that is read")),
    ] {
        let text = argo(&format!("valueFiles: ['{file}']"));
        let made = release("clusters/prod", &[CHART, ("argo.yaml", &text)]);
        match (made, expected) {
            (Ok(made), Ok(path)) => {
                assert_eq!(made.values, [Values::File(path.to_owned())], "{file}");
            }
            (Err(found), Err(why)) => assert!(found.concat().contains(why), "{file}: {found:?}"),
            (made, expected) => panic!("{file}: {made:?}, not {expected:?}"),
        }
    }
}

#[test]
fn parameters_of_argo_are_escaped_as_argo_does_it() {
    for (stated, expected) in [
        ("a,b", "a\\,b"),
        ("a\\,b", "a\\,b"),
        ("{a,b}", "{a,b}"),
        (",", "\\,"),
        ("a,,b", "a\\,\\,b"),
        ("c:\\x", "c:\\x"),
    ] {
        let text = argo(&format!("parameters: [{{name: n, value: '{stated}'}}]"));
        let made = release("clusters/prod", &[CHART, ("argo.yaml", &text)]).expect("a chart");
        assert_eq!(made.set[0].value, expected, "{stated}");
    }
}

#[test]
fn what_argo_tells_helm_of_the_cluster_is_not_ignored() {
    for key in ["kubeVersion: 1.30.0", "apiVersions: [a/v1]", "fileParameters: [{name: a}]"] {
        let text = argo(key);
        let found = release("clusters/prod", &[CHART, ("argo.yaml", &text)]).expect_err("open");
        let (name, _) = key.split_once(':').expect("a key");
        assert!(found.concat().contains(&format!("helm.{name} is not understood")), "{found:?}");
    }
}
