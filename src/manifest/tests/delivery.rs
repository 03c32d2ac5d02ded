//! Who delivers what, and what is not followed.

use super::*;

const HERE: &str = "https://github.com/acme/infra.git";

/// A repository whose tools make what the test says.
struct Story {
    tree: Tree,
    fleet: Fleet,
    renderings: Renderings,
}

impl Story {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = tree(files);
        let (fleet, problems) = read_fleet(&tree);
        assert_eq!(problems, []);
        let home = Home { repository: Some(HERE.to_owned()), below: String::new() };
        Self { tree, fleet, renderings: Renderings { home, ..Renderings::default() } }
    }

    /// Returns what is to be rendered now, as `tool path`.
    fn wanted(&self) -> Vec<String> {
        let orders = orders(&self.tree, &self.fleet, &self.renderings);
        orders.iter().map(|o| format!("{} {}", o.recipe.as_str(), o.path)).collect()
    }

    /// Lets the tool make `output` of the only order of `path`, from `files`.
    fn made(mut self, path: &str, output: &str, files: &[&str]) -> Self {
        let orders = orders(&self.tree, &self.fleet, &self.renderings);
        let order = orders.into_iter().find(|order| order.path == path).expect("it is wanted");
        let rendered = Rendered {
            output: output.as_bytes().into(),
            tool: "stand-in".to_owned(),
            inputs: String::new(),
            files: files.iter().map(|file| (*file).to_owned()).collect(),
        };
        self.renderings.done.insert(order, Ok(rendered));
        self
    }

    fn failed(mut self, path: &str, why: &str) -> Self {
        let orders = orders(&self.tree, &self.fleet, &self.renderings);
        let order = orders.into_iter().find(|order| order.path == path).expect("it is wanted");
        self.renderings.done.insert(order, Err(why.to_owned()));
        self
    }

    fn read(&self) -> Desired {
        read_rendered(&self.tree, &self.fleet, &self.renderings)
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
fn a_rendered_source_is_read_as_its_tool_makes_it_with_the_places_of_its_files() {
    let fleet = fleet("  sources: [{path: prod, render: kustomize}, {path: plain}]\n");
    let story = Story::new(&[
        ("base/kustomization.yaml", "resources: [pods.yaml]"),
        ("base/pods.yaml", &format!("{}---\n{}", pod("a", ""), pod("b", ""))),
        ("fleetwright.yaml", &fleet),
        ("plain/pod.yaml", &pod("c", "")),
        ("prod/kustomization.yaml", "resources: [../base]\nnamePrefix: x-"),
        ("prod/patch.yaml", &pod("patch", "")),
    ]);
    assert_eq!(story.wanted(), ["kustomize prod"]);
    let note = ", annotations: {config.kubernetes.io/origin: 'path: ../tree/base/pods.yaml'}";
    let output = format!("{}---\n{}---\n{}", pod("x-a", note), pod("x-b", note), pod("made", ""));
    let files = ["base/kustomization.yaml", "base/pods.yaml", "prod/kustomization.yaml"];
    let story = story.made("prod", &output, &files);
    assert_eq!(story.wanted(), [""; 0]);
    assert_eq!(
        workloads(&story.read()),
        [
            "default/c plain/pod.yaml:1",
            "default/made prod/kustomization.yaml",
            "default/x-a base/pods.yaml:1",
            "default/x-b base/pods.yaml:6",
        ]
    );
    assert_eq!(story.read().unresolved, []);
}

#[test]
fn what_cannot_be_rendered_is_unresolved_with_the_reason() {
    let fleet = fleet("  sources: [{path: prod, render: kustomize}]\n");
    let story =
        Story::new(&[("fleetwright.yaml", &fleet), ("prod/kustomization.yaml", "resources: [x]")]);
    let desired = story.failed("prod", "kustomize failed").read();
    assert_eq!(unresolved(&desired), ["fleetwright.yaml:5: source prod: kustomize failed"]);
}

#[test]
fn the_objects_of_a_chart_stand_in_its_templates_and_its_hooks_need_no_nodes() {
    let fleet = fleet("  sources: [{path: charts/shop, render: helm, namespace: web}]\n");
    let story = Story::new(&[
        ("charts/shop/Chart.yaml", "name: other"),
        ("charts/shop/templates/a.yaml", "{{ x }}"),
        ("fleetwright.yaml", &fleet),
    ]);
    let order = orders(&story.tree, &story.fleet, &story.renderings).remove(0);
    let Recipe::Helm(release) = order.recipe else { panic!("it is a chart") };
    assert_eq!((release.name.as_str(), release.namespace.as_str()), ("shop", "web"));
    let output = format!(
        "---\n# Source: other/templates/a.yaml\n{}---\n# Source: other/charts/db/templates/b.yaml\n{}\
         ---\n# Source: other/templates/a.yaml\n{}",
        pod("a", ""),
        pod("b", ", namespace: db"),
        pod("hook", ", annotations: {helm.sh/hook: pre-install}")
    );
    let desired = story.made("charts/shop", &output, &[]).read();
    assert_eq!(
        workloads(&desired),
        ["db/b charts/shop/Chart.yaml", "web/a charts/shop/templates/a.yaml"]
    );
    assert!(reasons(&desired).iter().any(|reason| reason.ends_with("hook of a Helm chart")));
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
    let story = Story::new(&[
        ("apps/pod.yaml", &pod("a", "")),
        ("apps/inner/pod.yaml", &pod("b", "")),
        ("argo/shop.yaml", &application(source, OURS)),
    ]);
    let desired = story.read();
    // Argo CD does not go into directories unless told so; the other file is no part of it.
    assert_eq!(workloads(&desired), ["default/b apps/inner/pod.yaml:1", "web/a apps/pod.yaml:1"]);
    assert_eq!(unresolved(&desired), [""; 0]);
    let chart = "source:\n    repoURL: https://github.com/acme/infra\n    path: charts/shop\n    helm:\n      \
                 releaseName: eshop\n      valueFiles: [prod.yaml, /values/eu.yaml]\n      \
                 parameters: [{name: a, value: '1', forceString: true}]\n      \
                 valuesObject: {replicas: 3}";
    let story = Story::new(&[
        ("argo/shop.yaml", &application(chart, OURS)),
        ("charts/shop/Chart.yaml", "name: shop"),
    ]);
    let order = orders(&story.tree, &story.fleet, &story.renderings).remove(0);
    let Recipe::Helm(release) = order.recipe else { panic!("it is a chart") };
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
        }
    );
}

#[test]
fn an_application_of_elsewhere_is_unresolved_and_one_of_another_cluster_is_theirs() {
    let here = "repoURL: 'https://github.com/acme/infra', path: apps";
    for (source, destination, expected) in [
        ("source: {repoURL: 'https://x.y/z', path: apps}", OURS, "is another repository"),
        ("source: {repoURL: 'https://x.y', chart: redis}", OURS, "is not in this repository"),
        (&format!("source: {{{here}, targetRevision: v1.2.3}}"), OURS, "follows revision `v1.2.3`"),
        (&format!("source: {{{here}, plugin: {{}}}}"), OURS, "config management plugin"),
        (&format!("source: {{{here}/nowhere}}"), OURS, "no manifests at its path"),
        (&format!("source: {{{}}}", here.replace("apps", "../x")), OURS, "outside the directory"),
        (&format!("source: {{{here}}}"), "{name: staging}", "destination `staging`"),
        (&format!("source: {{{here}}}"), "{}", "has no destination"),
        ("project: x", OURS, "has no source"),
    ] {
        let story = Story::new(&[
            ("a.yaml", &application(source, destination)),
            ("apps/pod.yaml", &pod("a", "")),
        ]);
        let found = unresolved(&story.read());
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
        let story = Story::new(&[
            ("a.yaml", &application(&source, destination)),
            ("apps/pod.yaml", &pod("a", "")),
            ("fleetwright.yaml", &settings),
        ]);
        let desired = story.read();
        assert_eq!(unresolved(&desired), [""; 0], "{destination}");
        assert_eq!(workloads(&desired), expected, "{destination}");
    }
}

#[test]
fn whether_a_url_is_this_repository_is_not_guessed() {
    let source = "source: {repoURL: 'https://github.com/acme/infra', path: apps}";
    let mut story =
        Story::new(&[("a.yaml", &application(source, OURS)), ("apps/pod.yaml", &pod("a", ""))]);
    story.renderings.home = Home::default();
    let found = unresolved(&story.read());
    assert!(found[0].contains("list its URL under `delivery.repositories`"), "{}", found[0]);
    story.fleet.delivery.repositories = vec!["ssh://git@github.com:22/acme/infra.git".to_owned()];
    assert_eq!(unresolved(&story.read()), [""; 0]);
    story.renderings.home.below = "clusters".to_owned();
    let found = unresolved(&story.read());
    assert!(found[0].contains("outside the directory that is read"), "{}", found[0]);
}

#[test]
fn an_application_set_makes_an_application_of_each_directory_or_element() {
    let set = |generators: &str, template: &str| {
        format!(
            "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {{name: all, \
             namespace: argocd}}\nspec:\n  generators: {generators}\n  template:\n    metadata: {{name: \
             '{{{{path.basename}}}}'}}\n    spec:\n      destination: {{name: in-cluster, namespace: \
             '{template}'}}\n      source: {{repoURL: '{HERE}', path: '{{{{path}}}}'}}\n"
        )
    };
    let directories = format!(
        "[{{git: {{repoURL: '{HERE}', directories: [{{path: apps/*}}, {{path: apps/old, exclude: \
         true}}]}}}}]"
    );
    let list = "[{list: {elements: [{path: apps/a, 'path.basename': one}]}}]";
    for (text, expected) in [
        (set(&directories, "{{path.basename}}"), vec!["a/x", "b/z", "default/old"]),
        (set(&directories, "{{ .path.basename }}"), vec!["a/x", "b/z", "default/old"]),
        (set(list, "{{ path.basename }}"), vec!["default/old", "default/z", "one/x"]),
    ] {
        let story = Story::new(&[
            ("apps/a/pod.yaml", &pod("x", "")),
            ("apps/b/pod.yaml", &pod("z", "")),
            ("apps/old/pod.yaml", &pod("old", "")),
            ("set.yaml", &text),
        ]);
        let desired = story.read();
        assert_eq!(unresolved(&desired), [""; 0], "{text}");
        let mut names: Vec<String> =
            desired.workloads.keys().map(|id| format!("{}/{}", id.namespace, id.name)).collect();
        names.sort();
        assert_eq!(names, expected, "{text}");
    }
    for (generators, template, expected) in [
        (list, "{{ what }}", "needs `what`"),
        ("[{pullRequest: {}}]", "x", "generator `pullRequest` is not understood"),
        ("[{clusters: {selector: {matchLabels: {a: b}}}}]", "x", "selects by labels"),
    ] {
        let found = unresolved(&Story::new(&[("set.yaml", &set(generators, template))]).read());
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
fn a_kustomization_of_flux_is_followed_with_its_namespace_and_substitutions() {
    let spec = "  path: ./apps\n  targetNamespace: web\n  postBuild:\n    substitute: {CPU: 2}\n    \
                substituteFrom: [{kind: ConfigMap, name: vars}]\n";
    let vars = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: flux-system}\n\
                data: {CPU: '9', MEMORY: 3Gi}\n";
    let workload = pod("a", ", namespace: other").replace(
        "{cpu: 1}",
        "{cpu: '${CPU}', memory: '${MEMORY:=1Gi}', ephemeral-storage: '${D:=2Gi}'}",
    );
    let story = Story::new(&[
        ("apps/inner/pod.yaml", &workload),
        ("clusters/flux.yaml", &format!("{REPOSITORY}---\n{}---\n{vars}", flux("apps", spec))),
    ]);
    assert_eq!(story.wanted(), [""; 0], "plain files need no tool");
    let desired = story.read();
    assert_eq!((lines(&desired), unresolved(&desired)), (vec![], vec![]));
    let read = desired.workloads.values().next().expect("one");
    assert_eq!(read.id.namespace, Namespace::from("web"));
    let amounts = &read.template.spec.containers[0].resources.requests;
    assert_eq!(amounts["cpu"], 2_000);
    assert_eq!((amounts["memory"], amounts["ephemeral-storage"]), (3 << 30, 2 << 30));

    let story = Story::new(&[
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
    let order = orders(&story.tree, &story.fleet, &story.renderings).remove(0);
    let Recipe::Kustomize(layer) = order.recipe else { panic!("it is a kustomization") };
    assert_eq!(layer.namespace.as_deref(), Some("web"));
    assert_eq!(layer.patches, ["{\"patch\":\"- op: add\"}"]);
}

#[test]
fn what_flux_takes_from_elsewhere_or_does_not_run_is_unresolved() {
    for (text, expected) in [
        (
            flux("apps", "  path: apps\n"),
            "GitRepository flux-system/flux-system, its source, is not",
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
            "OCIRepository flux-system is not in this repository",
        ),
    ] {
        let story = Story::new(&[("apps/pod.yaml", &pod("a", "")), ("flux.yaml", &text)]);
        let found = unresolved(&story.read());
        assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
    }
}

#[test]
fn what_delivers_itself_and_what_is_delivered_by_what_is_delivered_is_read_once() {
    let story = Story::new(&[
        ("apps/shop/kustomization.yaml", "resources: [pod.yaml]"),
        ("apps/shop/pod.yaml", &pod("a", "")),
        ("clusters/prod/apps.yaml", &flux("apps", "  path: ./apps/shop\n")),
        (
            "clusters/prod/flux-system/gotk-sync.yaml",
            &format!("{REPOSITORY}---\n{}", flux("flux-system", "  path: ./clusters/prod\n")),
        ),
    ]);
    assert_eq!(story.wanted(), ["kustomize apps/shop"]);
    let files = ["apps/shop/kustomization.yaml", "apps/shop/pod.yaml"];
    let desired = story.made("apps/shop", &pod("a", ", namespace: web"), &files).read();
    assert_eq!(workloads(&desired), ["web/a apps/shop/kustomization.yaml"]);
    assert_eq!((unresolved(&desired), lines(&desired)), (vec![], vec![]));
}

#[test]
fn circles_of_deliverers_end() {
    let one = application(&format!("source: {{repoURL: '{HERE}', path: b}}"), OURS);
    let other = application(&format!("source: {{repoURL: '{HERE}', path: a}}"), OURS)
        .replace("name: shop", "name: other");
    let story = Story::new(&[("a/app.yaml", &one), ("b/app.yaml", &other)]);
    let desired = story.read();
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
    let story = Story::new(&[
        ("charts/shop/Chart.yaml", "name: shop"),
        ("flux.yaml", &format!("{REPOSITORY}---\n{}", release(here))),
    ]);
    let order = orders(&story.tree, &story.fleet, &story.renderings).remove(0);
    let Recipe::Helm(made) = order.recipe else { panic!("it is a chart") };
    assert_eq!((made.name.as_str(), made.namespace.as_str()), ("web-shop", "web"));
    assert_eq!(made.values, [Values::Text("{\"replicas\":2}".to_owned())]);
    let elsewhere = "{chart: redis, sourceRef: {kind: HelmRepository, name: bitnami}}";
    let found = unresolved(&Story::new(&[("flux.yaml", &release(elsewhere))]).read());
    assert_eq!(
        found,
        [
            "flux.yaml:1: HelmRelease flux-system/shop: chart redis of HelmRepository bitnami is not in \
          this repository"
        ]
    );
}

#[test]
fn texts_that_may_be_paths_are_found_wherever_they_stand() {
    let text =
        b"resources: [a.yaml, ../b]\nconfigMapGenerator: [{files: [key=c.conf]}]\nx: |\n  a\n  b\n";
    assert_eq!(paths_in(text), ["../b", "a.yaml", "c.conf", "key=c.conf"]);
    assert!(paths_in(b"a: 'x").is_empty() && paths_in(b"\xff").is_empty());
}

mod elsewhere;
mod generated;
mod valued;

#[test]
fn no_more_is_rendered_than_the_most_and_what_is_left_out_is_named() {
    let fleet = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {name: f}\nspec:\n  sources:\n  \
                 - {path: a, render: kustomize}\n  - {path: b, render: kustomize}\n";
    let empty = "resources: []\n";
    let mut story = Story::new(&[
        ("fleetwright.yaml", fleet),
        ("a/kustomization.yaml", empty),
        ("b/kustomization.yaml", empty),
    ]);
    let first = orders(&story.tree, &story.fleet, &story.renderings);
    assert_eq!(first.len(), 2);
    // As though all but one of the most had been rendered before.
    for n in 0..9_999 {
        let order = Order { path: format!("earlier/{n}"), ..first[0].clone() };
        story.renderings.done.insert(order, Err("not wanted any more".to_owned()));
    }
    assert_eq!(story.wanted(), ["kustomize a"]);
    let unresolved = story.read().unresolved;
    assert_eq!(unresolved.len(), 2, "neither is taken for empty: {unresolved:#?}");
}
