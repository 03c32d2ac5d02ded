//! Sources and precedence of chart values.

use super::*;
use crate::model::desired::{Recipe, Release, RenderRequest, Values};

/// Returns the release of the only request of a scenario with these files.
fn release(below: &str, files: &[(&str, &str)]) -> Result<Release, Vec<String>> {
    let mut scenario = DeliveryScenario::new(files);
    scenario.renderings.location.path = below.to_owned();
    match render_requests(&scenario.tree, &scenario.fleet, &scenario.renderings).pop() {
        Some(RenderRequest { recipe: Recipe::Helm(release), .. }) => Ok(release),
        Some(_) | None => Err(unresolved(&scenario.read())),
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
fn flux_values_merge_in_order_and_the_releases_own_win() {
    let spec = "  values: {b: {c: 9}}\n  valuesFrom:\n  - {kind: ConfigMap, name: vars, valuesKey: \
                number, targetPath: b.c}\n  - {kind: ConfigMap, name: vars}\n  - {kind: ConfigMap, \
                name: vars, valuesKey: word, targetPath: d}\n  - {kind: ConfigMap, name: vars, \
                valuesKey: flag, targetPath: e}\n  - {kind: ConfigMap, name: vars, valuesKey: none, \
                optional: true}\n";
    let helm_release =
        release("", &[CHART, ("flux.yaml", &flux_release(spec))]).expect("it is a chart");
    let text = |text: &str| Values::Text(text.to_owned());
    assert_eq!(
        helm_release.values,
        [
            text("{\"b\":{\"c\":7}}"),
            text("a: 1"),
            text("{\"d\":\"7\"}"),
            text("{\"e\":true}"),
            text("{\"b\":{\"c\":9}}")
        ]
    );
    assert_eq!((helm_release.set, helm_release.replaces_values), (vec![], false));
}

#[test]
fn flux_values_files_replace_those_of_the_chart() {
    let spec = "      valuesFiles: [charts/shop/prod.yaml]\n";
    let helm_release =
        release("", &[CHART, ("flux.yaml", &flux_release(spec))]).expect("it is a chart");
    assert_eq!(helm_release.values, [Values::File("charts/shop/prod.yaml".to_owned())]);
    assert!(helm_release.replaces_values);
}

#[test]
fn missing_or_unsupported_values_are_unresolved() {
    for (item, expected) in [
        ("valuesKey: none", "has no key `none`"),
        ("valuesKey: long, targetPath: a", "targetPath `a` is not supported"),
        ("valuesKey: number, targetPath: 'a[0]'", "targetPath `a[0]` is not supported"),
        ("valuesKey: number, targetPath: a..b", "targetPath `a..b` is not supported"),
    ] {
        let spec = format!("  valuesFrom: [{{kind: ConfigMap, name: vars, {item}}}]\n");
        let found = release("", &[CHART, ("flux.yaml", &flux_release(&spec))]).expect_err("open");
        assert!(found.concat().contains(expected), "{item}: {found:?}");
    }
}

#[test]
fn contradicting_definitions_are_unresolved() {
    let vars = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: flux-system}\n\
                data: {values.yaml: 'a: 2'}\n";
    let spec = "  valuesFrom: [{kind: ConfigMap, name: vars}]\n";
    let text = flux_release(spec);
    let found = release("", &[CHART, ("flux.yaml", &text), ("vars.yaml", vars)]).expect_err("open");
    assert!(
        found.concat().contains("ConfigMap flux-system/vars has two different definitions"),
        "{found:?}"
    );
    let other = REPOSITORY.replace("infra'}", "infra', ref: {branch: main}}");
    let found = release("", &[CHART, ("flux.yaml", &text), ("z.yaml", &other)]).expect_err("open");
    assert!(
        found.concat().contains(
            "GitRepository flux-system/flux-system, its source, has two different definitions"
        ),
        "{found:?}"
    );
    let again = release("", &[CHART, ("flux.yaml", &text), ("z.yaml", REPOSITORY)]);
    assert!(again.is_ok(), "the same thing said twice is one thing");
}

fn argo(helm: &str) -> String {
    let source = format!(
        "sources:\n  - {{repoURL: '{OWN_URL}', path: clusters/prod/charts/shop, helm: {{{helm}}}}}\n  - \
         {{repoURL: '{OWN_URL}', ref: own}}"
    );
    application(&source, OURS)
}

#[test]
fn argo_values_files_are_relative_to_the_chart_or_the_root() {
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
        let helm_release = release("clusters/prod", &[CHART, ("argo.yaml", &text)]);
        match (helm_release, expected) {
            (Ok(helm_release), Ok(path)) => {
                assert_eq!(helm_release.values, [Values::File(path.to_owned())], "{file}");
            }
            (Err(found), Err(why)) => assert!(found.concat().contains(why), "{file}: {found:?}"),
            (helm_release, expected) => panic!("{file}: {helm_release:?}, not {expected:?}"),
        }
    }
}

#[test]
fn argo_parameters_are_escaped_as_in_argo() {
    for (stated, expected) in [
        ("a,b", "a\\,b"),
        ("a\\,b", "a\\,b"),
        ("{a,b}", "{a,b}"),
        (",", "\\,"),
        ("a,,b", "a\\,\\,b"),
        ("c:\\x", "c:\\x"),
    ] {
        let text = argo(&format!("parameters: [{{name: n, value: '{stated}'}}]"));
        let helm_release =
            release("clusters/prod", &[CHART, ("argo.yaml", &text)]).expect("a chart");
        assert_eq!(helm_release.set[0].value, expected, "{stated}");
    }
}

#[test]
fn argo_cluster_capabilities_for_helm_are_not_ignored() {
    for key in ["kubeVersion: 1.30.0", "apiVersions: [a/v1]", "fileParameters: [{name: a}]"] {
        let text = argo(key);
        let found = release("clusters/prod", &[CHART, ("argo.yaml", &text)]).expect_err("open");
        let (name, _) = key.split_once(':').expect("a key");
        assert!(found.concat().contains(&format!("helm.{name} is not supported")), "{found:?}");
    }
}
