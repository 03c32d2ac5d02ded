//! Delivery of manifests, and unresolved sources.

use super::*;
use crate::model::desired::{
    Desired, Fleet, Hook, HookPhase, Recipe, Release, RenderRequest, RenderResults, Rendered,
    RepositoryLocation, SetValue, Tree, Values, Workload,
};

const OWN_URL: &str = "https://github.com/acme/infra.git";

/// A repository whose renderings the test provides.
struct DeliveryScenario {
    tree: Tree,
    fleet: Fleet,
    renderings: RenderResults,
}

impl DeliveryScenario {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = tree(files);
        let (fleet, problems) = read_fleet(&tree);
        assert_eq!(problems, []);
        let home = RepositoryLocation { repository: Some(OWN_URL.to_owned()), path: String::new() };
        Self {
            tree,
            fleet,
            renderings: RenderResults { location: home, ..RenderResults::default() },
        }
    }

    /// Returns the pending render requests, as `tool path`.
    fn pending_requests(&self) -> Vec<String> {
        let requests = render_requests(&self.tree, &self.fleet, &self.renderings);
        requests.iter().map(|o| format!("{} {}", o.recipe.as_str(), o.path)).collect()
    }

    /// Answers the only request of `path` with `output`, rendered from `files`.
    fn rendered(mut self, path: &str, output: &str, files: &[&str]) -> Self {
        let requests = render_requests(&self.tree, &self.fleet, &self.renderings);
        let request =
            requests.into_iter().find(|request| request.path == path).expect("it is requested");
        let rendered = Rendered {
            output: output.as_bytes().into(),
            tool: "stand-in".to_owned(),
            inputs: String::new(),
            files: files.iter().map(|file| (*file).to_owned()).collect(),
        };
        self.renderings.results.insert(request, Ok(rendered));
        self
    }

    fn failed(mut self, path: &str, why: &str) -> Self {
        let requests = render_requests(&self.tree, &self.fleet, &self.renderings);
        let request =
            requests.into_iter().find(|request| request.path == path).expect("it is requested");
        self.renderings.results.insert(request, Err(why.to_owned()));
        self
    }

    fn read(&self) -> Desired {
        read_with_renderings(&self.tree, &self.fleet, &self.renderings)
    }
}

fn pod(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}{more}}}\n\
         spec: {{containers: [{{name: c, resources: {{requests: {{cpu: 1}}}}}}]}}\n"
    )
}

fn workloads(desired: &Desired) -> Vec<String> {
    let line = |workload: &Workload| {
        format!("{}/{} {}", workload.id.namespace, workload.id.name, workload.origin)
    };
    desired.workloads.values().map(line).collect()
}

const FLEET: &str = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nspec:\n  cluster: {name: prod}\n";

fn fleet(rest: &str) -> String {
    format!("{FLEET}{rest}")
}

#[test]
fn contradicting_objects_name_both_delivering_files() {
    let sync = |path: &str| {
        format!(
            "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\n\
             metadata: {{name: flux-system, namespace: flux-system}}\n\
             spec: {{path: {path}, sourceRef: {{kind: GitRepository, name: flux-system}}}}\n"
        )
    };
    let note = ", annotations: {config.kubernetes.io/origin: 'path: ../tree/base/pods.yaml'}";
    let (prod, staging) = (pod("a", note), pod("a", note).replace("cpu: 1", "cpu: 2"));
    let mut scenario = DeliveryScenario::new(&[
        ("base/kustomization.yaml", "resources: [pods.yaml]"),
        ("base/pods.yaml", &pod("a", "")),
        ("k8s/prod/sync.yaml", &sync("apps/prod")),
        ("k8s/staging/sync.yaml", &sync("apps/staging")),
        ("apps/prod/kustomization.yaml", "resources: [../../base]"),
        ("apps/staging/kustomization.yaml", "resources: [../../base]"),
    ]);
    for (path, output) in [("apps/prod", &prod), ("apps/staging", &staging)] {
        let files = ["base/pods.yaml", &format!("{path}/kustomization.yaml")];
        scenario = scenario.rendered(path, output, &files);
    }
    let problems = scenario.read().problems;
    let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    let expected = "as delivered by Kustomization flux-system/flux-system \
                    (k8s/staging/sync.yaml:1), is defined differently at base/pods.yaml:1, by \
                    Kustomization flux-system/flux-system (k8s/prod/sync.yaml:1)";
    assert_eq!(messages, [expected]);
}

#[test]
fn a_rendered_source_keeps_the_origins_of_its_files() {
    let fleet = fleet("  sources: [{path: prod, render: kustomize}, {path: plain}]\n");
    let scenario = DeliveryScenario::new(&[
        ("base/kustomization.yaml", "resources: [pods.yaml]"),
        ("base/pods.yaml", &format!("{}---\n{}", pod("a", ""), pod("b", ""))),
        ("fleetwright.yaml", &fleet),
        ("plain/pod.yaml", &pod("c", "")),
        ("prod/kustomization.yaml", "resources: [../base]\nnamePrefix: x-"),
        ("prod/patch.yaml", &pod("patch", "")),
    ]);
    assert_eq!(scenario.pending_requests(), ["kustomize prod"]);
    let note = ", annotations: {config.kubernetes.io/origin: 'path: ../tree/base/pods.yaml'}";
    let output = format!("{}---\n{}---\n{}", pod("x-a", note), pod("x-b", note), pod("made", ""));
    let files = ["base/kustomization.yaml", "base/pods.yaml", "prod/kustomization.yaml"];
    let scenario = scenario.rendered("prod", &output, &files);
    assert_eq!(scenario.pending_requests(), [""; 0]);
    assert_eq!(
        workloads(&scenario.read()),
        [
            "default/c plain/pod.yaml:1",
            "default/made prod/kustomization.yaml",
            "default/x-a base/pods.yaml:1",
            "default/x-b base/pods.yaml:6",
        ]
    );
    assert_eq!(scenario.read().unresolved, []);
}

#[test]
fn a_failed_rendering_is_unresolved_with_the_reason() {
    let fleet = fleet("  sources: [{path: prod, render: kustomize}]\n");
    let scenario = DeliveryScenario::new(&[
        ("fleetwright.yaml", &fleet),
        ("prod/kustomization.yaml", "resources: [x]"),
    ]);
    let desired = scenario.failed("prod", "kustomize failed").read();
    assert_eq!(unresolved(&desired), ["fleetwright.yaml:5: source prod: kustomize failed"]);
}

#[test]
fn chart_objects_have_template_origins_and_hooks_have_a_phase() {
    let fleet = fleet("  sources: [{path: charts/shop, render: helm, namespace: web}]\n");
    let scenario = DeliveryScenario::new(&[
        ("charts/shop/Chart.yaml", "name: other"),
        ("charts/shop/templates/a.yaml", "{{ x }}"),
        ("fleetwright.yaml", &fleet),
    ]);
    let request = render_requests(&scenario.tree, &scenario.fleet, &scenario.renderings).remove(0);
    let Recipe::Helm(release) = request.recipe else { panic!("it is a chart") };
    assert_eq!((release.name.as_str(), release.namespace.as_str()), ("shop", "web"));
    let output = format!(
        "---\n# Source: other/templates/a.yaml\n{}---\n# Source: other/charts/db/templates/b.yaml\n{}\
         ---\n# Source: other/templates/a.yaml\n{}\
         ---\n# Source: other/templates/c.yaml\napiVersion: v1\nkind: ConfigMap\n\
         metadata: {{name: c, annotations: {{helm.sh/hook: test}}}}\n",
        pod("a", ""),
        pod("b", ", namespace: db"),
        pod("hook", ", annotations: {helm.sh/hook: pre-install}")
    );
    let desired = scenario.rendered("charts/shop", &output, &[]).read();
    assert_eq!(
        workloads(&desired),
        [
            "db/b charts/shop/Chart.yaml",
            "web/a charts/shop/templates/a.yaml",
            "web/hook charts/shop/templates/a.yaml",
        ]
    );
    let hooks: Vec<&Hook> = desired.hooks.values().collect();
    assert_eq!((hooks.len(), hooks[0].phase), (1, HookPhase::Before));
    assert!(reasons(&desired).iter().any(|reason| reason.ends_with("hook that does not stay")));
}

#[test]
fn unread_source_with_a_stated_size_has_assumed_pods() {
    let entry = |assume: &str| {
        fleet(&format!(
            "  sources: [{{path: charts/shop, render: helm, namespace: web{assume}}}]\n"
        ))
    };
    let read = |assume: &str| {
        let text = entry(assume);
        let files = [("charts/shop/Chart.yaml", "name: shop"), ("fleetwright.yaml", text.as_str())];
        DeliveryScenario::new(&files).read()
    };
    let desired = read(", assume: {pods: 3, cpu: 500m, memory: 1Gi}");
    assert_eq!((desired.unresolved.len(), desired.workloads.len()), (1, 0));
    let [assumed] = desired.assumed.as_slice() else { panic!("{:?}", desired.assumed) };
    assert_eq!(assumed.id.to_string(), "web/assumed:charts-shop");
    assert_eq!(assumed.scale, crate::model::desired::Scale::Replicas(3));
    assert_eq!(read("").assumed, []);
}

/// An `Application` with this source and destination.
fn application(source: &str, destination: &str) -> String {
    format!(
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {{name: shop, \
         namespace: argocd}}\nspec:\n  destination: {destination}\n  {source}\n"
    )
}

const OURS: &str = "{server: 'https://kubernetes.default.svc', namespace: web}";

#[test]
fn an_application_of_this_repository_is_followed() {
    let source =
        "source: {repoURL: 'git@github.com:acme/infra', targetRevision: HEAD, path: ./apps}";
    let scenario = DeliveryScenario::new(&[
        ("apps/pod.yaml", &pod("a", "")),
        ("apps/inner/pod.yaml", &pod("b", "")),
        ("argo/shop.yaml", &application(source, OURS)),
    ]);
    let desired = scenario.read();
    // Argo CD does not recurse into directories by default; the other file is not included.
    assert_eq!(workloads(&desired), ["default/b apps/inner/pod.yaml:1", "web/a apps/pod.yaml:1"]);
    assert_eq!(unresolved(&desired), [""; 0]);
    let chart = "source:\n    repoURL: https://github.com/acme/infra\n    path: charts/shop\n    helm:\n      \
                 releaseName: eshop\n      valueFiles: [prod.yaml, /values/eu.yaml]\n      \
                 parameters: [{name: a, value: '1', forceString: true}]\n      \
                 valuesObject: {replicas: 3}";
    let scenario = DeliveryScenario::new(&[
        ("argo/shop.yaml", &application(chart, OURS)),
        ("charts/shop/Chart.yaml", "name: shop"),
    ]);
    let request = render_requests(&scenario.tree, &scenario.fleet, &scenario.renderings).remove(0);
    let Recipe::Helm(release) = request.recipe else { panic!("it is a chart") };
    assert_eq!(
        release,
        Release {
            name: "eshop".to_owned(),
            namespace: "web".to_owned(),
            replaces_values: false,
            values: vec![
                Values::File("charts/shop/prod.yaml".to_owned()),
                Values::File("values/eu.yaml".to_owned()),
                Values::Text("{\"replicas\":3}".to_owned()),
            ],
            set: vec![SetValue { name: "a".to_owned(), value: "1".to_owned(), is_text: true }],
            skips_schema: false,
        }
    );
}

#[test]
fn foreign_applications_are_unresolved_or_skipped() {
    let here = "repoURL: 'https://github.com/acme/infra', path: apps";
    for (source, destination, expected) in [
        ("source: {repoURL: 'https://x.y/z', path: apps}", OURS, "revision HEAD of https://x.y/z"),
        ("source: {repoURL: 'https://x.y', chart: redis}", OURS, "chart redis * of https://x.y is"),
        (&format!("source: {{{here}, targetRevision: v1.2.3}}"), OURS, "follows revision `v1.2.3`"),
        (&format!("source: {{{here}, plugin: {{}}}}"), OURS, "config management plugin"),
        (&format!("source: {{{here}/nowhere}}"), OURS, "; Jsonnet is not rendered"),
        (&format!("source: {{{}}}", here.replace("apps", "../x")), OURS, "outside the directory"),
        (&format!("source: {{{here}}}"), "{name: staging}", "destination `staging`"),
        (&format!("source: {{{here}}}"), "{}", "has no destination"),
        ("project: x", OURS, "has no source"),
    ] {
        let scenario = DeliveryScenario::new(&[
            ("a.yaml", &application(source, destination)),
            ("apps/pod.yaml", &pod("a", "")),
        ]);
        let found = unresolved(&scenario.read());
        assert_eq!(found.len(), 1, "{source}");
        assert!(found[0].starts_with("a.yaml:1: Application argocd/shop: "), "{}", found[0]);
        assert!(found[0].contains(expected), "{}", found[0]);
    }
    let settings = fleet("  delivery: {otherClusters: [staging], revisions: [release]}\n");
    let source = format!("source: {{{here}, targetRevision: release}}");
    for (destination, expected) in [
        ("{name: staging, namespace: web}", vec![]),
        ("{name: prod, namespace: web}", vec!["web/a apps/pod.yaml:1"]),
    ] {
        let scenario = DeliveryScenario::new(&[
            ("a.yaml", &application(&source, destination)),
            ("apps/pod.yaml", &pod("a", "")),
            ("fleetwright.yaml", &settings),
        ]);
        let desired = scenario.read();
        assert_eq!(unresolved(&desired), [""; 0], "{destination}");
        assert_eq!(workloads(&desired), expected, "{destination}");
    }
}

#[test]
fn repository_urls_are_not_guessed() {
    let source = "source: {repoURL: 'https://github.com/acme/infra', path: apps}";
    let mut scenario = DeliveryScenario::new(&[
        ("a.yaml", &application(source, OURS)),
        ("apps/pod.yaml", &pod("a", "")),
    ]);
    scenario.renderings.location = RepositoryLocation::default();
    let found = unresolved(&scenario.read());
    assert!(found[0].contains("list its URL under `delivery.repositories`"), "{}", found[0]);
    scenario.fleet.delivery.repositories =
        vec!["ssh://git@github.com:22/acme/infra.git".to_owned()];
    assert_eq!(unresolved(&scenario.read()), [""; 0]);
    scenario.renderings.location.path = "clusters".to_owned();
    let found = unresolved(&scenario.read());
    assert!(found[0].contains("outside the directory that is read"), "{}", found[0]);
}

#[test]
fn an_application_set_generates_from_directories_and_elements() {
    let set = |generators: &str, template: &str| {
        format!(
            "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {{name: all, \
             namespace: argocd}}\nspec:\n  generators: {generators}\n  template:\n    metadata: {{name: \
             '{{{{path.basename}}}}'}}\n    spec:\n      destination: {{name: in-cluster, namespace: \
             '{template}'}}\n      source: {{repoURL: '{OWN_URL}', path: '{{{{path}}}}'}}\n"
        )
    };
    let directories = format!(
        "[{{git: {{repoURL: '{OWN_URL}', directories: [{{path: apps/*}}, {{path: apps/old, exclude: \
         true}}]}}}}]"
    );
    let list = "[{list: {elements: [{path: apps/a, 'path.basename': one}]}}]";
    for (text, expected) in [
        (set(&directories, "{{path.basename}}"), vec!["a/x", "b/z"]),
        (set(&directories, "{{ .path.basename }}"), vec!["a/x", "b/z"]),
        (set(list, "{{ path.basename }}"), vec!["default/old", "default/z", "one/x"]),
    ] {
        let scenario = DeliveryScenario::new(&[
            ("apps/a/pod.yaml", &pod("x", "")),
            ("apps/b/pod.yaml", &pod("z", "")),
            ("apps/old/pod.yaml", &pod("old", "")),
            ("set.yaml", &text),
        ]);
        let desired = scenario.read();
        assert_eq!(unresolved(&desired), [""; 0], "{text}");
        let mut names: Vec<String> =
            desired.workloads.keys().map(|id| format!("{}/{}", id.namespace, id.name)).collect();
        names.sort();
        assert_eq!(names, expected, "{text}");
    }
    for (generators, template, expected) in [
        (list, "{{ what }}", "needs `what`"),
        ("[{pullRequest: {}}]", "x", "`pullRequest` generator is not supported"),
        ("[{clusters: {selector: {matchLabels: {a: b}}}}]", "x", "selects by labels"),
    ] {
        let found =
            unresolved(&DeliveryScenario::new(&[("set.yaml", &set(generators, template))]).read());
        assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
    }
}

const REPOSITORY: &str = "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: \
                          {name: flux-system, namespace: flux-system}\nspec: {url: \
                          'ssh://git@github.com/acme/infra'}\n";

fn flux(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {{name: {name}, \
         namespace: flux-system}}\nspec:\n  sourceRef: {{kind: GitRepository, name: flux-system}}\n{spec}"
    )
}

#[test]
fn a_flux_kustomization_applies_namespace_and_substitutions() {
    let spec = "  path: ./apps\n  targetNamespace: web\n  postBuild:\n    substitute: {CPU: 2}\n    \
                substituteFrom: [{kind: ConfigMap, name: vars}]\n";
    let vars = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: flux-system}\n\
                data: {CPU: '9', MEMORY: 3Gi}\n";
    let workload = pod("a", ", namespace: other").replace(
        "{cpu: 1}",
        "{cpu: '${CPU}', memory: '${MEMORY:=1Gi}', ephemeral-storage: '${D:=2Gi}'}",
    );
    let scenario = DeliveryScenario::new(&[
        ("apps/inner/pod.yaml", &workload),
        ("clusters/flux.yaml", &format!("{REPOSITORY}---\n{}---\n{vars}", flux("apps", spec))),
    ]);
    assert_eq!(scenario.pending_requests(), [""; 0], "plain files need no tool");
    let desired = scenario.read();
    assert_eq!((lines(&desired), unresolved(&desired)), (vec![], vec![]));
    let read = desired.workloads.values().next().expect("one");
    assert_eq!(read.id.namespace, Namespace::from("web"));
    let amounts = &read.template.spec.containers[0].resources.requests;
    assert_eq!(amounts["cpu"], 2_000);
    assert_eq!((amounts["memory"], amounts["ephemeral-storage"]), (3 << 30, 2 << 30));

    let scenario = DeliveryScenario::new(&[
        ("apps/kustomization.yaml", "resources: []"),
        (
            "clusters/flux.yaml",
            &format!(
                "{REPOSITORY}---\n{}",
                flux(
                    "apps",
                    "  path: apps\n  targetNamespace: web\n  patches: [{patch: '- op: add'}]\n"
                )
            ),
        ),
    ]);
    let request = render_requests(&scenario.tree, &scenario.fleet, &scenario.renderings).remove(0);
    let Recipe::Kustomize(layer) = request.recipe else { panic!("it is a kustomization") };
    assert_eq!(layer.namespace.as_deref(), Some("web"));
    assert_eq!(layer.patches, ["{\"patch\":\"- op: add\"}"]);
}

#[test]
fn remote_or_suspended_flux_objects_are_unresolved() {
    for (text, expected) in [
        (
            flux("apps", "  path: apps\n").replace(", name: flux-system}", ", name: team}"),
            "GitRepository flux-system/team, its source, is not",
        ),
        (
            format!("{REPOSITORY}---\n{}", flux("apps", "  path: apps\n  suspend: true\n")),
            "suspended",
        ),
        (
            format!("{REPOSITORY}---\n{}", flux("apps", "  path: apps\n  kubeConfig: {a: b}\n")),
            "kubeConfig",
        ),
        (
            format!(
                "{REPOSITORY}---\n{}",
                flux(
                    "apps",
                    "  path: apps\n  postBuild: {substituteFrom: [{kind: Secret, name: s}]}\n"
                )
            ),
            "values of Secret flux-system/s are not in this tree",
        ),
        (
            format!("{REPOSITORY}---\n{}", flux("apps", "  path: apps\n"))
                .replace("GitRepository, name", "OCIRepository, name"),
            "OCIRepository flux-system/flux-system, its source, is not in this tree",
        ),
    ] {
        let scenario =
            DeliveryScenario::new(&[("apps/pod.yaml", &pod("a", "")), ("flux.yaml", &text)]);
        let found = unresolved(&scenario.read());
        assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
    }
}

#[test]
fn self_delivery_and_nested_delivery_are_read_once() {
    let scenario = DeliveryScenario::new(&[
        ("apps/shop/kustomization.yaml", "resources: [pod.yaml]"),
        ("apps/shop/pod.yaml", &pod("a", "")),
        ("clusters/prod/apps.yaml", &flux("apps", "  path: ./apps/shop\n")),
        (
            "clusters/prod/flux-system/gotk-sync.yaml",
            &format!("{REPOSITORY}---\n{}", flux("flux-system", "  path: ./clusters/prod\n")),
        ),
    ]);
    assert_eq!(scenario.pending_requests(), ["kustomize apps/shop"]);
    let files = ["apps/shop/kustomization.yaml", "apps/shop/pod.yaml"];
    let desired = scenario.rendered("apps/shop", &pod("a", ", namespace: web"), &files).read();
    assert_eq!(workloads(&desired), ["web/a apps/shop/kustomization.yaml"]);
    assert_eq!((unresolved(&desired), lines(&desired)), (vec![], vec![]));
}

#[test]
fn delivery_cycles_end() {
    let one = application(&format!("source: {{repoURL: '{OWN_URL}', path: b}}"), OURS);
    let other = application(&format!("source: {{repoURL: '{OWN_URL}', path: a}}"), OURS)
        .replace("name: shop", "name: other");
    let scenario = DeliveryScenario::new(&[("a/app.yaml", &one), ("b/app.yaml", &other)]);
    let desired = scenario.read();
    assert!(desired.workloads.is_empty() && unresolved(&desired).is_empty());
}

#[test]
fn a_helm_release_of_this_repository_is_followed() {
    let release = |chart: &str| {
        format!(
            "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {{name: shop, \
             namespace: flux-system}}\nspec:\n  targetNamespace: web\n  chart:\n    spec: {chart}\n  values: \
             {{replicas: 2}}\n"
        )
    };
    let here = "{chart: ./charts/shop, sourceRef: {kind: GitRepository, name: flux-system}}";
    let scenario = DeliveryScenario::new(&[
        ("charts/shop/Chart.yaml", "name: shop"),
        ("flux.yaml", &format!("{REPOSITORY}---\n{}", release(here))),
    ]);
    let request = render_requests(&scenario.tree, &scenario.fleet, &scenario.renderings).remove(0);
    let Recipe::Helm(helm_release) = request.recipe else { panic!("it is a chart") };
    assert_eq!((helm_release.name.as_str(), helm_release.namespace.as_str()), ("web-shop", "web"));
    assert_eq!(helm_release.values, [Values::Text("{\"replicas\":2}".to_owned())]);
    let elsewhere = "{chart: redis, sourceRef: {kind: HelmRepository, name: bitnami}}";
    let found = unresolved(&DeliveryScenario::new(&[("flux.yaml", &release(elsewhere))]).read());
    assert_eq!(
        found,
        ["flux.yaml:1: HelmRelease flux-system/shop: HelmRepository flux-system/bitnami, its \
             source, is not in this tree"]
    );
}

#[test]
fn candidate_paths_are_found_at_any_depth() {
    let text =
        b"resources: [a.yaml, ../b]\nconfigMapGenerator: [{files: [key=c.conf]}]\nx: |\n  a\n  b\n";
    assert_eq!(candidate_paths(text), ["../b", "a.yaml", "c.conf", "key=c.conf"]);
    assert!(candidate_paths(b"a: 'x").is_empty() && candidate_paths(b"\xff").is_empty());
}

mod application_sets;
mod argo_sources;
mod artifacts;
mod external_sources;
mod helm_values;
mod left_alone;
mod left_out;
mod other_clusters;

#[test]
fn render_requests_beyond_the_maximum_are_unresolved() {
    let fleet = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {name: f}\nspec:\n  sources:\n  \
                 - {path: a, render: kustomize}\n  - {path: b, render: kustomize}\n";
    let empty = "resources: []\n";
    let mut scenario = DeliveryScenario::new(&[
        ("fleetwright.yaml", fleet),
        ("a/kustomization.yaml", empty),
        ("b/kustomization.yaml", empty),
    ]);
    let first = render_requests(&scenario.tree, &scenario.fleet, &scenario.renderings);
    assert_eq!(first.len(), 2);
    // All but one of the maximum number of requests are answered.
    for n in 0..9_999 {
        let request = RenderRequest { path: format!("earlier/{n}"), ..first[0].clone() };
        scenario.renderings.results.insert(request, Err("no longer requested".to_owned()));
    }
    assert_eq!(scenario.pending_requests(), ["kustomize a"]);
    let unresolved = scenario.read().unresolved;
    assert_eq!(unresolved.len(), 2, "neither is taken for empty: {unresolved:#?}");
}
