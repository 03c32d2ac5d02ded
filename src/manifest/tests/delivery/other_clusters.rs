//! Manifests of another cluster, of another revision, or of a source that cannot be rendered.

use super::*;

const THEIRS: &str = "{name: staging, namespace: web}";

fn settings() -> String {
    fleet("  delivery: {otherClusters: [staging]}\n")
}

fn here(path: &str) -> String {
    format!("source: {{repoURL: '{OWN_URL}', path: {path}}}")
}

#[test]
fn manifests_of_another_cluster_are_not_planned() {
    let recursive = format!("{}\n", here("apps").replace('}', ", directory: {recurse: true}}"));
    for (rule, source, files) in [
        ("plain files", here("apps"), vec![("apps/pod.yaml", pod("a", ""))]),
        ("plain files below", recursive, vec![("apps/x/pod.yaml", pod("a", ""))]),
        (
            "a kustomization and what it is built on, by way of others too",
            here("apps"),
            vec![
                ("apps/kustomization.yaml", "resources: [../base, pod.yaml]\n".to_owned()),
                ("apps/pod.yaml", pod("a", "")),
                ("base/kustomization.yaml", "resources: [../deep, pods.yaml]\n".to_owned()),
                ("base/pods.yaml", pod("b", "")),
                ("deep/Kustomization", "resources: [x/pod.yaml]\nnamePrefix: y-\n".to_owned()),
                ("deep/x/pod.yaml", pod("c", "")),
            ],
        ),
        (
            "a chart",
            here("apps"),
            vec![
                ("apps/Chart.yaml", "name: shop\n".to_owned()),
                ("apps/templates/a.yaml", "{{ x }}".to_owned()),
                ("apps/crds/pod.yaml", pod("a", "")),
            ],
        ),
        (
            "whatever revision they follow",
            here("apps").replace("path", "targetRevision: v9, path"),
            vec![("apps/pod.yaml", pod("a", ""))],
        ),
    ] {
        let (app, settings) = (application(&source, THEIRS), settings());
        let mut all: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        all.extend([("argo.yaml", app.as_str()), ("fleetwright.yaml", settings.as_str())]);
        let scenario = DeliveryScenario::new(&all);
        assert_eq!(scenario.pending_requests(), [""; 0], "{rule}");
        let desired = scenario.read();
        assert_eq!((workloads(&desired), unresolved(&desired)), (vec![], vec![]), "{rule}");
        assert!(reasons(&desired).iter().any(|r| r.contains("another cluster")), "{rule}");
    }
}

#[test]
fn deliveries_from_another_cluster_are_followed() {
    // A hub cluster has the applications of all clusters; its own objects belong to another
    // cluster.
    let inner = application(&here("apps"), "{name: prod, namespace: web}");
    let own = application(&here("hub"), "{name: in-cluster}").replace("name: shop", "name: own");
    let flux = flux("theirs", "  path: flux\n");
    let scenario = DeliveryScenario::new(&[
        ("apps/pod.yaml", &pod("a", "")),
        ("flux/pod.yaml", &pod("flux", "")),
        ("fleetwright.yaml", &settings()),
        ("hub/pod.yaml", &pod("hub", "")),
        ("root.yaml", &application(&here("all"), THEIRS).replace("name: shop", "name: root")),
        ("all/apps.yaml", &format!("{inner}---\n{own}---\n{REPOSITORY}---\n{flux}")),
    ]);
    let desired = scenario.read();
    assert_eq!(workloads(&desired), ["web/a apps/pod.yaml:1"]);
    assert_eq!(unresolved(&desired), [""; 0]);
}

#[test]
fn a_kube_config_maps_to_the_cluster_in_the_settings() {
    let config = "  kubeConfig: {secretRef: {name: remote}}\n";
    let release = format!(
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {{name: shop, \
         namespace: flux-system}}\nspec:\n{config}  chart: {{spec: {{chart: apps, sourceRef: {{kind: \
         GitRepository, name: flux-system}}}}}}\n"
    );
    let plain = flux("apps", &format!("  path: apps\n{config}"));
    for (rule, text, listed, count, open) in [
        ("not said", &plain, "", 0, 1),
        ("ours", &plain, "  delivery: {clusters: [remote]}\n", 1, 0),
        ("theirs", &plain, "  delivery: {otherClusters: [remote]}\n", 0, 0),
        ("a release, not said", &release, "", 0, 1),
        ("their release", &release, "  delivery: {otherClusters: [remote]}\n", 0, 0),
    ] {
        let chart = [("apps/Chart.yaml", "name: shop\n")];
        let pod = pod("a", "");
        let flux = format!("{REPOSITORY}---\n{text}");
        let settings = fleet(listed);
        let mut files = vec![
            ("apps/crds/pod.yaml", pod.as_str()),
            ("fleetwright.yaml", settings.as_str()),
            ("flux.yaml", flux.as_str()),
        ];
        files.extend(chart.into_iter().filter(|_| rule.contains("release")));
        let desired = DeliveryScenario::new(&files).read();
        let found = unresolved(&desired);
        assert_eq!((workloads(&desired).len(), found.len()), (count, open), "{rule} {found:?}");
        assert!(found.iter().all(|why| why.contains("kubeConfig `remote`")), "{rule} {found:?}");
    }
}

#[test]
fn a_git_repository_follows_its_revision() {
    for (reference, settings, expected) in [
        ("", "", None),
        (", ref: {branch: main}", "", None),
        (", ref: {name: refs/heads/main}", "", None),
        (", ref: {branch: release}", "", Some("revision `release`")),
        (", ref: {tag: v1}", "", Some("revision `v1`")),
        (", ref: {branch: main, tag: v1}", "", Some("revision `v1`")),
        (", ref: {semver: '>=1.0'}", "", Some("revision `semver:>=1.0`")),
        (", ref: {branch: main, commit: abcdef}", "", Some("revision `abcdef`")),
        (", ref: {tag: v1}", "  delivery: {revisions: [v1]}\n", None),
        ("", "  delivery: {revisions: [v1]}\n", Some("revision `master`")),
        (", ignore: '/apps'", "", Some("leaves files out")),
        (", include: [{repository: {name: x}}]", "", Some("takes files of others in")),
    ] {
        let repository = REPOSITORY.replace("infra'}", &format!("infra'{reference}}}"));
        let scenario = DeliveryScenario::new(&[
            ("apps/pod.yaml", &pod("a", "")),
            ("fleetwright.yaml", &fleet(settings)),
            ("flux.yaml", &format!("{repository}---\n{}", flux("apps", "  path: apps\n"))),
        ]);
        let found = unresolved(&scenario.read());
        assert_eq!(found.len(), usize::from(expected.is_some()), "{reference}: {found:?}");
        assert!(found.iter().all(|why| why.contains(expected.unwrap_or("-"))), "{found:?}");
    }
}

#[test]
fn a_source_without_a_revision_follows_head() {
    let settings = fleet("  delivery: {revisions: [release]}\n");
    let scenario = DeliveryScenario::new(&[
        ("a.yaml", &application(&here("apps"), OURS)),
        ("apps/pod.yaml", &pod("a", "")),
        ("fleetwright.yaml", &settings),
    ]);
    assert_eq!(unresolved(&scenario.read()), [""; 0]);
}

#[test]
fn bases_of_an_unrendered_kustomization_are_no_workloads() {
    let fleet = fleet("  sources: [{path: prod, render: kustomize}, {path: .}]\n");
    let scenario = DeliveryScenario::new(&[
        ("base/kustomization.yaml", "resources: [pods.yaml, ../deep]\n"),
        ("base/pods.yaml", &pod("a", "")),
        ("deep/kustomization.yaml", "resources: [pod.yaml]\n"),
        ("deep/pod.yaml", &pod("b", "")),
        ("fleetwright.yaml", &fleet),
        ("other/pod.yaml", &pod("c", "")),
        ("prod/kustomization.yaml", "resources: [../base]\nnamePrefix: x-\n"),
    ]);
    let desired = scenario.failed("prod", "kustomize failed").read();
    assert_eq!(workloads(&desired), ["default/c other/pod.yaml:1"]);
    assert_eq!(unresolved(&desired).len(), 1);
}

#[test]
fn overlay_beside_a_delivered_one_is_of_another_cluster() {
    let application = format!(
        "{{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {{name: w, namespace: a}}, \
         spec: {{source: {{repoURL: {OWN_URL}, path: w/overlays/prod}}, destination: {{server: \
         'https://kubernetes.default.svc', namespace: w}}}}}}"
    );
    let overlay = "resources: [../../base]\nreplicas: [{name: w, count: 6}]\n";
    let other = "resources: [x.yaml]\npatches: [{path: p.yaml}]\n";
    let (base, extra) = (pod("w", ""), pod("extra", ""));
    let mut files = vec![
        ("apps/w.yaml", application.as_str()),
        ("w/base/kustomization.yaml", "resources: [w.yaml]\n"),
        ("w/base/w.yaml", base.as_str()),
        ("w/overlays/prod/kustomization.yaml", overlay),
        ("w/overlays/dev/kustomization.yaml", overlay),
        ("w/overlays/dev/extra.yaml", extra.as_str()),
    ];
    let read = |files: &[(&str, &str)]| {
        let scenario = DeliveryScenario::new(files);
        assert_eq!(scenario.pending_requests(), ["kustomize w/overlays/prod"]);
        let files =
            ["w/base/kustomization.yaml", "w/base/w.yaml", "w/overlays/prod/kustomization.yaml"];
        scenario.rendered("w/overlays/prod", &base, &files).read()
    };
    let found = read(&files);
    assert_eq!((unresolved(&found), lines(&found)), (vec![], vec![]));
    assert_eq!(found.workloads.len(), 1, "{:?}", workloads(&found));
    let skipped = reasons(&found);
    let other_cluster = "w/overlays/dev/extra.yaml: overlay of another cluster".to_owned();
    assert!(skipped.contains(&other_cluster), "{skipped:?}");
    // A kustomization beside it that shares no base is another application of this cluster.
    files.push(("w/overlays/jobs/kustomization.yaml", other));
    files
        .push(("w/overlays/jobs/x.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}"));
    let found = read(&files);
    assert!(unresolved(&found)[0].contains("w/overlays/jobs"), "{:?}", unresolved(&found));
}
