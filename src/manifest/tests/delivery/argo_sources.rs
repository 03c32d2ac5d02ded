//! Sources of Argo CD: the tool that renders them, their variables, patterns and overrides.

use super::*;
use crate::model::desired::{CommonLabels, Layer};

const HERE: &str = "repoURL: 'https://github.com/acme/infra', path: apps";

/// Returns an application of `apps` with more fields of its source.
fn app(rest: &str) -> String {
    application(&format!("source: {{{HERE}{rest}}}"), OURS)
}

/// Returns the recipe of the only request of a scenario with these files.
fn recipe(files: &[(&str, &str)]) -> Result<Recipe, Vec<String>> {
    let scenario = DeliveryScenario::new(files);
    let requests = render_requests(&scenario.tree, &scenario.fleet, &scenario.renderings);
    requests.into_iter().next().map(|one| one.recipe).ok_or_else(|| unresolved(&scenario.read()))
}

fn helm(files: &[(&str, &str)]) -> Result<Release, Vec<String>> {
    match recipe(files)? {
        Recipe::Helm(release) => Ok(release),
        Recipe::Kustomize(layer) => Err(vec![format!("{layer:?}")]),
    }
}

fn kustomize(files: &[(&str, &str)]) -> Result<Layer, Vec<String>> {
    match recipe(files)? {
        Recipe::Kustomize(layer) => Ok(layer),
        Recipe::Helm(release) => Err(vec![format!("{release:?}")]),
    }
}

const CHART: (&str, &str) = ("apps/Chart.yaml", "name: shop");
const KUSTOMIZATION: (&str, &str) = ("apps/kustomization.yaml", "resources: []");

#[test]
fn values_files_and_parameters_take_variables() {
    let source = ", helm: {valueFiles: ['values-$ARGOCD_APP_NAME.yaml', \
                  '$ARGOCD_APP_NAMESPACE/a.yaml'], parameters: [{name: a, value: \
                  '${ARGOCD_APP_NAME}-x,$$'}], skipSchemaValidation: true}";
    let release = helm(&[("a.yaml", &app(source)), CHART]).expect("it is a chart");
    let file = |path: &str| Values::File(path.to_owned());
    assert_eq!(release.values, [file("apps/values-shop.yaml"), file("apps/web/a.yaml")]);
    assert_eq!(release.set[0].value, "shop-x\\,$");
    assert!(release.skips_schema);
    let source = ", helm: {valueFiles: ['$ARGOCD_APP_REVISION.yaml']}";
    let found = helm(&[("a.yaml", &app(source)), CHART]).expect_err("it is unknown");
    assert!(found.concat().contains("the commit of a sync"), "{found:?}");
    let found = helm(&[("a.yaml", &app(", helm: {valueFiles: [$other/x.yaml]}")), CHART]);
    assert!(found.expect_err("it is unknown").concat().contains("names no source"));
}

#[test]
fn pattern_of_values_files_stands_for_files_not_listed() {
    let files = ["apps/env/b.yaml", "apps/env/a.yaml", "apps/env/eu/c.yaml"];
    let values = |listed: &str| {
        let source = format!(", helm: {{valueFiles: [{listed}]}}");
        let text = app(&source);
        let mut all = vec![("a.yaml", text.as_str()), CHART];
        all.extend(files.iter().map(|file| (*file, "a: 1")));
        helm(&all).map(|release| release.values)
    };
    let file = |path: &str| Values::File(format!("apps/env/{path}"));
    for (listed, expected) in [
        ("env/*.yaml", vec!["a.yaml", "b.yaml"]),
        ("env/**/*.yaml", vec!["a.yaml", "b.yaml", "eu/c.yaml"]),
        ("env/*.yaml, env/a.yaml", vec!["b.yaml", "a.yaml"]),
    ] {
        let expected: Vec<Values> = expected.into_iter().map(file).collect();
        assert_eq!(values(listed), Ok(expected), "{listed}");
    }
    let found = values("none/*.yaml").expect_err("it matches nothing");
    assert!(found.concat().contains("no values file matches its pattern"), "{found:?}");
}

#[test]
fn common_labels_reach_pods() {
    let labels = |rest: &str| {
        let source = format!(", kustomize: {{commonLabels: {{tier: $ARGOCD_APP_NAME}}{rest}}}");
        kustomize(&[("a.yaml", &app(&source)), KUSTOMIZATION]).expect("it is one").labels
    };
    let pairs = [("tier".to_owned(), "shop".to_owned())];
    let found = |in_selectors| Some(CommonLabels { pairs: pairs.clone().into(), in_selectors });
    assert_eq!(labels(""), found(true));
    assert_eq!(labels(", labelWithoutSelector: true"), None);
    assert_eq!(labels(", labelWithoutSelector: true, labelIncludeTemplates: true"), found(false));
}

#[test]
fn files_beside_a_source_override_it() {
    let replicas = |count: &str| format!("kustomize: {{replicas: [{{name: a, count: {count}}}]}}");
    let layer = kustomize(&[
        ("a.yaml", &app("")),
        ("apps/.argocd-source-shop.yaml", &replicas("9")),
        ("apps/.argocd-source.yaml", &format!("path: nowhere\n{}", replicas("5"))),
        KUSTOMIZATION,
    ]);
    assert_eq!(layer.expect("it is one").replicas, [("a".to_owned(), 9)].into());
    let broken =
        kustomize(&[("a.yaml", &app("")), ("apps/.argocd-source.yaml", "[]"), KUSTOMIZATION]);
    let found = broken.expect_err("it cannot be read").concat();
    assert!(found.contains("apps/.argocd-source.yaml cannot be read"), "{found}");
}

#[test]
fn directory_with_chart_and_kustomization_is_a_kustomization() {
    assert!(kustomize(&[("a.yaml", &app("")), CHART, KUSTOMIZATION]).is_ok());
    assert!(helm(&[("a.yaml", &app(", helm: {}")), CHART, KUSTOMIZATION]).is_ok());
}

#[test]
fn release_has_the_name_of_its_application() {
    let text = app("").replace("name: shop", "name: a.b_c");
    let release = helm(&[("a.yaml", &text), CHART]).expect("it is a chart");
    assert_eq!(release.name, "a.b_c");
}

#[test]
fn last_source_of_an_application_defines_an_object() {
    let two = "sources: [{repoURL: 'https://github.com/acme/infra', path: a}, {repoURL: \
               'https://github.com/acme/infra', path: b}]";
    let scenario = DeliveryScenario::new(&[
        ("a/pod.yaml", &pod("x", "")),
        ("b/pod.yaml", &pod("x", "").replace("cpu: 1", "cpu: 2")),
        ("app.yaml", &application(two, OURS)),
    ]);
    let desired = scenario.read();
    assert_eq!(workloads(&desired), ["web/x b/pod.yaml:1"]);
    let messages: Vec<String> = desired.problems.iter().map(line).collect();
    assert!(
        messages.len() == 1 && messages[0].contains("replaces the definition at a/pod.yaml:1"),
        "{messages:?}"
    );
}

#[test]
fn chart_that_another_chart_uses_needs_no_source() {
    let dependency = "name: shop\ndependencies: [{name: sub, version: 1.0.0, repository: \
                      'file://../charts/sub'}]\n";
    let scenario = DeliveryScenario::new(&[
        ("a.yaml", &app("")),
        ("apps/Chart.yaml", dependency),
        ("charts/sub/Chart.yaml", "name: sub"),
        ("charts/other/Chart.yaml", "name: other"),
    ]);
    let found = unresolved(&scenario.rendered("apps", "", &["apps/Chart.yaml"]).read());
    assert!(found.len() == 1 && found[0].contains("Helm chart charts/other"), "{found:?}");
}

#[test]
fn labels_of_pods_need_a_renderer_if_a_file_selects_by_them() {
    let affinity = "# labelSelector: {matchLabels: {tier: gold}}\n";
    for (labels, file, expected) in [
        ("labels: [{pairs: {tier: gold}, includeTemplates: true}]", affinity, true),
        ("labels: [{pairs: {tier: gold}, includeSelectors: true}]", affinity, true),
        ("commonLabels: {tier: gold}", affinity, true),
        ("commonLabels: {team: a}", affinity, false),
        ("commonLabels: {tier: gold}", "", false),
        ("labels: [{pairs: {tier: gold}}]", affinity, false),
    ] {
        let text = format!("resources: [pod.yaml]\n{labels}\n");
        let files = read_files(&[
            ("apps/kustomization.yaml", &text),
            ("apps/pod.yaml", &format!("{file}{}", super::pod("a", ""))),
        ]);
        let found = unresolved(&files);
        assert_eq!(!found.is_empty(), expected, "{labels}: {found:?}");
    }
}
