//! Sources outside of the repository.

use super::*;
use crate::model::desired::{
    EXTERNAL_DIRECTORY, ExternalSource, ExternalSources, Layer, SourceKind,
};

fn source(kind: SourceKind, url: &str, name: &str, version: &str) -> ExternalSource {
    let text = |text: &str| text.to_owned();
    ExternalSource { kind, url: text(url), name: text(name), version: text(version) }
}

fn path(name: &str) -> String {
    format!("{EXTERNAL_DIRECTORY}/{name}")
}

/// Makes `source` available in the directory `name`.
fn provide(scenario: &mut DeliveryScenario, source: ExternalSource, name: &str) {
    let states = [(source, Ok(path(name)))].into();
    let ExternalSources { states: known } = &mut scenario.renderings.external;
    known.extend::<std::collections::BTreeMap<_, _>>(states);
}

fn requested(scenario: &DeliveryScenario) -> Vec<ExternalSource> {
    let all = source_requests(&scenario.tree, &scenario.fleet, &scenario.renderings);
    all.into_iter().collect()
}

fn requests(scenario: &DeliveryScenario) -> Vec<RenderRequest> {
    render_requests(&scenario.tree, &scenario.fleet, &scenario.renderings)
}

const REPOSITORIES: &str = "\
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: charts, namespace: a}
spec: {url: 'https://c.io/charts/'}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: {name: team, namespace: a}
spec: {type: oci, url: 'oci://r.io/team'}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: {name: web, namespace: a}
spec: {url: 'oci://r.io/web', ref: {semver: 1.x}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: {name: base, namespace: a}
spec: {url: 'https://h/o/base', ref: {tag: v1}}
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmChart
metadata: {name: shared, namespace: a}
spec: {chart: db, version: ~2, sourceRef: {kind: HelmRepository, name: charts}}
---
";

fn release(chart: &str) -> String {
    format!(
        "{REPOSITORIES}apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\n\
         metadata: {{name: x, namespace: a}}\nspec: {{{chart}}}\n"
    )
}

#[test]
fn flux_charts_from_elsewhere_are_requested_then_rendered() {
    let chart = |name: &str, kind: &str, from: &str| {
        format!(
            "chart: {{spec: {{chart: {name}, version: 1.x, sourceRef: {{kind: {kind}, name: {from}}}}}}}"
        )
    };
    let helm = source(SourceKind::Helm, "https://c.io/charts", "db", "1.x");
    for (chart, expected, directory) in [
        (chart("db", "HelmRepository", "charts"), helm, "db"),
        (
            chart("db", "HelmRepository", "team"),
            source(SourceKind::Oci, "oci://r.io/team/db", "", "1.x"),
            "db",
        ),
        (
            "chartRef: {kind: OCIRepository, name: web}".to_owned(),
            source(SourceKind::Oci, "oci://r.io/web", "", "1.x"),
            "db",
        ),
        (
            "chartRef: {kind: HelmChart, name: shared}".to_owned(),
            source(SourceKind::Helm, "https://c.io/charts", "db", "~2"),
            "db",
        ),
        (
            chart("db", "GitRepository", "base"),
            source(SourceKind::Git, "https://h/o/base", "", "v1"),
            "",
        ),
    ] {
        let external = path("db/Chart.yaml");
        let mut scenario =
            DeliveryScenario::new(&[(external.as_str(), "name: db"), ("a.yaml", &release(&chart))]);
        let found = unresolved(&scenario.read());
        let hint = "is not in fleetwright.lock.json; run `fleetwright sources update`";
        assert!(found.len() == 1 && found[0].ends_with(hint), "{found:?}");
        assert_eq!(requested(&scenario), std::slice::from_ref(&expected));
        provide(&mut scenario, expected, directory);
        if directory.is_empty() {
            let states = &mut scenario.renderings.external.states;
            for state in states.values_mut() {
                *state = Ok(EXTERNAL_DIRECTORY.to_owned());
            }
        }
        let [request] = &requests(&scenario)[..] else { panic!("one request: {chart}") };
        assert_eq!(request.path, path("db"));
        let scenario = scenario.rendered(&path("db"), &pod("a", ""), &[]);
        assert_eq!(workloads(&scenario.read()).len(), 1);
        assert_eq!(unresolved(&scenario.read()), [""; 0]);
    }
}

#[test]
fn argo_values_come_from_other_sources() {
    let sources = "sources:\n  - {repoURL: r.io/charts, chart: web, targetRevision: 1.x, helm: \
                   {valueFiles: [$own/v.yaml, $base/x/v.yaml, own.yaml]}}\n  \
                   - {repoURL: 'https://github.com/acme/infra', ref: own}\n  \
                   - {repoURL: 'https://h/o/base', targetRevision: v2, ref: base}";
    let external = path("web/Chart.yaml");
    let mut scenario = DeliveryScenario::new(&[
        (external.as_str(), "name: web"),
        ("a.yaml", &application(sources, OURS)),
        ("v.yaml", "{}"),
    ]);
    let chart = source(SourceKind::Oci, "oci://r.io/charts/web", "", "1.x");
    provide(&mut scenario, chart.clone(), "web");
    let base = source(SourceKind::Git, "https://h/o/base", "", "v2");
    assert_eq!(requested(&scenario), [chart, base.clone()]);
    provide(&mut scenario, base, "base");
    let [RenderRequest { path: chart, recipe: Recipe::Helm(release) }] = &requests(&scenario)[..]
    else {
        panic!("one chart")
    };
    assert_eq!(*chart, path("web"));
    let files = ["v.yaml".to_owned(), path("base/x/v.yaml"), path("web/own.yaml")];
    assert_eq!(release.values, files.map(Values::File));
}

#[test]
fn files_of_external_sources_are_only_read_if_delivered() {
    let flux = format!(
        "{REPOSITORIES}apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\n\
         metadata: {{name: x, namespace: a}}\n\
         spec: {{sourceRef: {{kind: GitRepository, name: base}}, path: ./DIRECTORY}}\n"
    );
    let (inside, beside) = (path("base/apps/pod.yaml"), path("base/other/pod.yaml"));
    let tree = |directory: &str| {
        let files = [
            (inside.as_str(), pod("in", "")),
            (beside.as_str(), pod("beside", "")),
            ("a.yaml", flux.replace("DIRECTORY", directory)),
        ];
        let files = files.each_ref().map(|(path, text)| (*path, text.as_str()));
        let mut scenario = DeliveryScenario::new(&files);
        let base = source(SourceKind::Git, "https://h/o/base", "", "v1");
        provide(&mut scenario, base, "base");
        scenario
    };
    assert_eq!(workloads(&tree("apps").read()), [format!("default/in {inside}:1")]);
    let found = unresolved(&tree("../other").read());
    assert!(found[0].contains("is outside of its source"), "{found:?}");
    let reserved = DeliveryScenario::new(&[(inside.as_str(), &pod("in", "")), ("b.yaml", "a: 1")]);
    assert_eq!(reserved.read().workloads.len(), 0, "no manifest by itself");
}

#[test]
fn flux_generates_a_kustomization_for_changes() {
    let flux = format!(
        "{REPOSITORY}---\napiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\n\
         metadata: {{name: x, namespace: flux-system}}\n\
         spec: {{sourceRef: {{kind: GitRepository, name: flux-system}}, path: ./apps, \
         namePrefix: x-}}\n"
    );
    let mut scenario = DeliveryScenario::new(&[
        ("apps/inner/pod.yaml", &pod("inner", "")),
        ("apps/pod.yaml", &pod("outer", "")),
        ("flux.yaml", &flux),
    ]);
    let [request] = &requests(&scenario)[..] else { panic!("one request") };
    let layer = Layer { name_prefix: "x-".to_owned(), is_flux: true, ..Layer::default() };
    assert_eq!((&*request.path, &request.recipe), ("apps", &Recipe::Kustomize(layer)));
    scenario.renderings.results.insert(request.clone(), Err("failed".to_owned()));
    assert!(scenario.read().workloads.is_empty(), "its manifests are not read by themselves");
    assert_eq!(unresolved(&scenario.read()).len(), 1);
}
