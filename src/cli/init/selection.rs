//! The sources and destinations that the name of a cluster chooses.

use std::collections::BTreeSet;

use super::detect::Detected;
use crate::cli::error::CliError;
use crate::manifest::{Alternatives, AlternativesKind, IN_CLUSTER, KUSTOMIZATION, is_within};
use crate::model::desired::{Tree, TreeFile};
use crate::model::printable_url::printable_url;

/// A source of `spec.sources`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SelectedSource {
    pub(super) path: String,
    /// `None` for plain manifests.
    pub(super) render: Option<&'static str>,
}

/// The chosen alternatives.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    /// Sources of the cluster; empty if no overlay is chosen.
    pub(super) sources: Vec<SelectedSource>,
    /// Overlays of other clusters.
    pub(super) other_overlays: Vec<SelectedSource>,
    /// Directories of other clusters, without those inside another one.
    pub(super) left_out: BTreeSet<String>,
    /// Destinations that mean this cluster, and those that do not.
    pub(super) destinations: Option<(Vec<String>, Vec<String>)>,
    /// Alternatives without a choice.
    pub(super) open: Vec<Alternatives>,
}

impl Selection {
    /// Chooses overlays by the name of the cluster, and the destination by `destination` or by the
    /// name. `is_named` states that the user gave the name.
    ///
    /// # Errors
    /// Fails if no Argo CD object has the destination.
    pub(super) fn choose(
        tree: &Tree,
        detected: &Detected,
        name: &str,
        is_named: bool,
        destination: Option<&str>,
    ) -> Result<Self, CliError> {
        // The choices have no credentials either.
        let destination = destination.map(printable_url);
        let destination = destination.as_deref();
        let mut selection = Self::default();
        let (mut chosen, mut rejected) = (BTreeSet::new(), BTreeSet::new());
        let (mut excluded, mut renames) = (BTreeSet::new(), BTreeSet::new());
        // The template lists the directory of the cluster, and then no overlay is read by itself.
        let has_directory = detected.directory_of(name).is_some();
        for alternatives in &detected.alternatives {
            match alternatives.kind {
                AlternativesKind::Directories => continue,
                AlternativesKind::Overlays { .. } if has_directory => continue,
                AlternativesKind::Overlays { .. } | AlternativesKind::Destinations => {}
            }
            // One cluster may have all of them.
            let is_meant = is_named && alternatives.choices.contains_key(name);
            if alternatives.is_optional() && !is_meant {
                continue;
            }
            let is_destinations = alternatives.kind == AlternativesKind::Destinations;
            let wanted = destination.filter(|_| is_destinations).unwrap_or(name);
            let Some(choice) = alternatives.choice_of(wanted) else {
                if let (Some(wanted), true) = (destination, is_destinations) {
                    let names: Vec<String> = alternatives.choices.keys().cloned().collect();
                    return Err(unknown_destination(wanted, &names));
                }
                selection.open.push(alternatives.clone());
                continue;
            };
            if is_destinations {
                selection.destinations = Some(split_destinations(alternatives, choice));
                continue;
            }
            for (name, directories) in &alternatives.choices {
                let into = if name == choice { &mut chosen } else { &mut rejected };
                into.extend(directories.iter().cloned());
                let roots = directories.iter().map(|path| alternatives.own_root(name, path));
                excluded.extend(roots.filter(|_| name != choice).map(str::to_owned));
                renames.insert((name.as_str(), choice));
            }
        }
        if destination.is_some() && !detected.has_destinations() {
            let wanted = destination.unwrap_or_default();
            return Err(unknown_destination(wanted, &[]));
        }
        if !chosen.is_empty() {
            let beside = directories_beside(tree, detected, &renames);
            selection.left_out = add_left_out(beside, &chosen, &mut rejected, &mut excluded);
            selection.sources = sources(tree, detected, &chosen, &excluded);
            let all = rejected.into_iter().map(|path| overlay(detected, path));
            selection.other_overlays = all.collect();
        }
        Ok(selection)
    }
}

fn unknown_destination(wanted: &str, names: &[String]) -> CliError {
    let error = CliError::text(format!("no Argo CD object has the destination `{wanted}`"));
    if names.is_empty() {
        error.hint("leave --destination out: the directory has no choice of destinations")
    } else {
        error.hint(format!("name one of: {}", names.join(", ")))
    }
}

fn split_destinations(all: &Alternatives, choice: &str) -> (Vec<String>, Vec<String>) {
    let written = |name: &String| -> Vec<String> {
        if IN_CLUSTER.contains(&&**name) {
            IN_CLUSTER.map(str::to_owned).into()
        } else {
            vec![name.clone()]
        }
    };
    let (own, other): (Vec<&String>, Vec<&String>) =
        all.choices.keys().partition(|name| *name == choice);
    (own.into_iter().flat_map(written).collect(), other.into_iter().flat_map(written).collect())
}

/// Adds rejected overlays, and the directories `beside` chosen ones, to the excluded directories.
/// Returns those that are inside no other one.
fn add_left_out(
    beside: BTreeSet<String>,
    chosen: &BTreeSet<String>,
    rejected: &mut BTreeSet<String>,
    excluded: &mut BTreeSet<String>,
) -> BTreeSet<String> {
    // Of two groups of overlays, one may be inside the other.
    let holds_chosen = |root: &String| chosen.iter().any(|path| is_within(path, root));
    excluded.retain(|root| !holds_chosen(root));
    excluded.extend(rejected.iter().cloned());
    for path in beside {
        let is_excluded = excluded.iter().any(|root| is_within(&path, root));
        if !is_excluded && !holds_chosen(&path) {
            excluded.insert(path.clone());
            rejected.insert(path);
        }
    }
    let is_inside =
        |path: &String| excluded.iter().any(|root| root != path && is_within(path, root));
    excluded.iter().filter(|path| !is_inside(path)).cloned().collect()
}

/// Returns the directories with the name of an alternative that is not chosen, each beside a directory
/// with the name of the chosen one. `renames` has pairs of both names.
///
/// The overlays of one environment need not have the objects of another one.
fn directories_beside(
    tree: &Tree,
    detected: &Detected,
    renames: &BTreeSet<(&str, &str)>,
) -> BTreeSet<String> {
    let kustomizations = kustomization_directories(tree);
    // The overlays decide which bases the cluster gets.
    let is_base =
        |path: &str| kustomizations.contains(path) && !detected.kustomizations.contains(path);
    let read = tree.files.iter().filter(|file| is_manifest(file) || is_kustomization(&file.path));
    let directories: BTreeSet<&str> = read
        .flat_map(|file| file.path.match_indices('/').map(move |(at, _)| &file.path[..at]))
        .filter(|path| !is_base(path))
        .collect();
    let is_beside = |path: &&str| {
        renames.iter().filter(|(name, choice)| name != choice).any(|(name, choice)| {
            let parent = path.strip_suffix(*name);
            let parent = parent.filter(|parent| parent.is_empty() || parent.ends_with('/'));
            parent.is_some_and(|parent| directories.contains(&*format!("{parent}{choice}")))
        })
    };
    directories.iter().copied().filter(is_beside).map(str::to_owned).collect()
}

fn overlay(detected: &Detected, path: String) -> SelectedSource {
    let render = detected.kustomizations.contains(&path).then_some("kustomize");
    SelectedSource { path, render }
}

/// Returns the chosen overlays, and everything that belongs to no overlay and is in none of the
/// directories `excluded`.
fn sources(
    tree: &Tree,
    detected: &Detected,
    chosen: &BTreeSet<String>,
    excluded: &BTreeSet<String>,
) -> Vec<SelectedSource> {
    let is_excluded = |path: &String| excluded.iter().any(|root| is_within(path, root));
    let is_overlay = |path: &String| {
        let mut all = detected.alternatives.iter().filter(|all| !all.is_optional());
        all.any(|all| all.choices.values().flatten().any(|d| d == path))
    };
    let mut found: BTreeSet<SelectedSource> =
        chosen.iter().map(|path| overlay(detected, path.clone())).collect();
    let rest = detected.kustomizations.iter();
    let rest = rest.filter(|path| !is_overlay(path) && !is_excluded(path));
    found.extend(rest.map(|path| overlay(detected, path.clone())));
    let charts = detected.charts.iter().filter(|path| !is_excluded(path));
    found.extend(charts.map(|path| SelectedSource { path: path.clone(), render: Some("helm") }));
    let mut taken = kustomization_directories(tree);
    taken.extend(chosen.iter().chain(excluded).chain(&detected.charts).cloned());
    // The source of a directory may hold further sources.
    let is_listed = |path: &str| found.iter().any(|source| is_within(path, &source.path));
    let unlisted: BTreeSet<String> =
        taken.iter().filter(|path| !is_listed(path)).cloned().collect();
    let plain = tree.files.iter().filter(|file| is_manifest(file));
    let plain = plain.filter(|file| !taken.iter().any(|path| is_within(&file.path, path)));
    let plain = plain.map(|file| plain_source(&file.path, &unlisted).to_owned());
    let plain: BTreeSet<String> = plain.collect();
    found.extend(plain.into_iter().map(|path| SelectedSource { path, render: None }));
    found.into_iter().collect()
}

fn kustomization_directories(tree: &Tree) -> BTreeSet<String> {
    let all = tree.files.iter().filter(|file| is_kustomization(&file.path));
    all.map(|file| file.path.rsplit_once('/').map_or("", |(path, _)| path).to_owned()).collect()
}

fn is_kustomization(path: &str) -> bool {
    KUSTOMIZATION.contains(&path.rsplit('/').next().unwrap_or(path))
}

fn is_manifest(file: &TreeFile) -> bool {
    let Ok(bytes) = &file.content else { return false };
    let name = &*file.path;
    [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end))
        && name != super::FILE
        && String::from_utf8_lossy(bytes).contains("apiVersion")
}

/// Returns the largest directory of the file at `path` that holds none of `excluded`, else the file.
fn plain_source<'p>(path: &'p str, excluded: &BTreeSet<String>) -> &'p str {
    let is_free = |directory: &&str| !excluded.iter().any(|path| is_within(path, directory));
    let mut directories = path.match_indices('/').map(|(at, _)| &path[..at]);
    directories.find(is_free).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use crate::cli::Exit;
    use crate::cli::tests::run_command;

    const WEB: &str = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: \
                       {replicas: 2, selector: {matchLabels: {app: web}}, template: \
                       {metadata: {labels: {app: web}}, spec: {containers: [{name: c}]}}}}";

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        directory
    }

    #[test]
    fn init_writes_the_overlay_of_the_named_cluster() {
        let overlay = "resources: [../../base]\n";
        let config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}";
        let directory = directory(&[
            ("base/kustomization.yaml", "resources: [web.yaml]\n"),
            ("base/web.yaml", WEB),
            ("overlays/dev/kustomization.yaml", overlay),
            ("overlays/prod/kustomization.yaml", overlay),
            ("overlays/notes.yaml", config),
            ("platform/pools/a.yaml", config),
        ]);
        let path = directory.path().to_str().expect("UTF-8");
        let ran = run_command(&["validate", path]);
        assert!(ran.out.contains("the overlays dev, prod exclude each other"), "{}", ran.out);
        let ran = run_command(&["init", path]);
        assert!(ran.out.contains("several overlays: dev, prod\n"), "{}", ran.out);
        let ran = run_command(&["init", path, "--name", "acme-prod", "--force"]);
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        let text =
            std::fs::read_to_string(directory.path().join(super::super::FILE)).expect("read");
        let expected = "  sources:\n    - path: overlays/notes.yaml\n    - path: overlays/prod\n      \
                        render: kustomize\n    - path: platform\n  #   - path: overlays/dev\n  #     \
                        render: kustomize\n";
        assert!(text.contains(expected), "{text}");
        let ran = run_command(&["validate", path]);
        assert!(!ran.out.contains("several-overlays"), "{}", ran.out);
    }

    #[test]
    fn overlays_of_another_environment_need_no_common_object() {
        let config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}";
        let store = "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}}";
        let overlay = "resources: [../../base]\n";
        let directory = directory(&[
            ("db/overlays/dev/db.yaml", store),
            ("db/overlays/dev/kustomization.yaml", "resources: [db.yaml]\n"),
            ("db/overlays/prod/cm.yaml", config),
            ("db/overlays/prod/kustomization.yaml", "resources: [cm.yaml]\n"),
            ("jobs/dev/a.yaml", config),
            ("jobs/dev/kustomization.yaml", "resources: [a.yaml]\n"),
            ("web/base/kustomization.yaml", "resources: [web.yaml]\n"),
            ("web/base/web.yaml", WEB),
            ("web/overlays/dev/kustomization.yaml", overlay),
            ("web/overlays/prod/kustomization.yaml", overlay),
        ]);
        let path = directory.path().to_str().expect("UTF-8");
        let ran = run_command(&["init", path, "--name", "prod"]);
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        // Nothing of the chosen name is beside `jobs/dev`.
        let listed = "spec.sources lists 3 paths: db/overlays/prod, jobs/dev, web/overlays/prod\n";
        assert!(ran.out.contains(listed), "{}", ran.out);
        let left_out = "left out, for other clusters: db/overlays/dev, web/overlays/dev\n";
        assert!(ran.out.contains(left_out), "{}", ran.out);
        let text =
            std::fs::read_to_string(directory.path().join(super::super::FILE)).expect("read");
        assert!(text.contains("  #   - path: db/overlays/dev\n"), "{text}");
    }

    #[test]
    fn one_hint_chooses_between_all_overlays() {
        let job = "{apiVersion: batch/v1, kind: Job, metadata: {name: job}}";
        let overlay = "resources: [../../base]\n";
        let mut files = vec![
            ("jobs/base/job.yaml", job),
            ("jobs/base/kustomization.yaml", "resources: [job.yaml]\n"),
            ("jobs/overlays/prod-us/kustomization.yaml", overlay),
            ("jobs/overlays/test/kustomization.yaml", overlay),
            ("web/base/kustomization.yaml", "resources: [web.yaml]\n"),
            ("web/base/web.yaml", WEB),
            ("web/overlays/dev/kustomization.yaml", overlay),
            ("web/overlays/prod/kustomization.yaml", overlay),
        ];
        let init = |files: &[(&str, &str)]| {
            let directory = directory(files);
            let path = directory.path().to_str().expect("UTF-8");
            let hints = run_command(&["validate", path]).out;
            (run_command(&["init", path]).out, hints.matches("init --name prod-us`").count())
        };
        let (out, hints) = init(&files);
        let expected = "several overlays: dev, prod\n  several overlays: prod-us, test\n  \
                        choose one, such as --name prod-us --force\n";
        assert!(out.contains(expected), "{out}");
        assert_eq!(hints, 2);
        let pool = "{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: a}}";
        files.extend([("env/x/pool.yaml", pool), ("env/y/pool.yaml", pool)]);
        let (out, _) = init(&files);
        let expected = "such as --name prod-us --force, and list one of each of the rest under \
                        spec.sources\n";
        assert!(out.contains(expected), "{out}");
    }

    #[test]
    fn overlays_with_own_namespaces_are_chosen_by_name() {
        let init = |overlays: [&str; 2], name: &str| {
            let of = |overlay: &str| {
                let path = format!("overlays/{overlay}/kustomization.yaml");
                (path, format!("namespace: bank-{overlay}\nresources: [../../base]\n"))
            };
            let mut files = vec![
                ("base/kustomization.yaml".to_owned(), "resources: [web.yaml]\n".to_owned()),
                ("base/web.yaml".to_owned(), WEB.to_owned()),
            ];
            files.extend(overlays.map(of));
            let files: Vec<(&str, &str)> =
                files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            let directory = directory(&files);
            let path = directory.path().to_str().expect("UTF-8");
            let ran = run_command(&["init", path, "--name", name]);
            assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
            ran.out
        };
        let production = "spec.sources lists 1 path: overlays/production\n  \
                          left out, for other clusters: overlays/development\n";
        let out = init(["development", "production"], "acme-production");
        assert!(out.contains(production), "{out}");
        let out = init(["development", "production"], "acme");
        assert!(out.contains("several overlays: development, production\n"), "{out}");
        // One cluster may have all tenants, unless the name is that of one.
        let out = init(["hooli", "umbrella"], "umbrella");
        assert!(out.contains("lists 1 path: overlays/umbrella\n"), "{out}");
        assert!(out.contains("left out, for other clusters: overlays/hooli\n"), "{out}");
        let out = init(["hooli", "umbrella"], "umbrella-eu");
        assert!(!out.contains("spec.sources lists") && !out.contains("several overlays"), "{out}");
    }

    #[test]
    fn init_excludes_the_directories_of_other_clusters() {
        let config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}";
        let application = "{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {name: web}, \
                           spec: {source: {repoURL: https://example.com/x, path: us/apps}, \
                           destination: {server: 'https://kubernetes.default.svc'}}}";
        let mut files = vec![
            ("base/kustomization.yaml", "resources: [web.yaml]\n"),
            ("base/web.yaml", WEB),
            ("eu/apps/web/kustomization.yaml", "resources: [../../../base]\n"),
            ("eu/jobs/kustomization.yaml", "resources: [job.yaml]\n"),
            ("eu/jobs/job.yaml", config),
            ("eu/argo.yaml", config),
            ("us/apps/web/kustomization.yaml", "resources: [../../../base]\n"),
            ("us/jobs/kustomization.yaml", "resources: [job.yaml]\n"),
            ("us/jobs/job.yaml", config),
            ("us/argo/web.yaml", application),
            ("us/chart/Chart.yaml", "name: web\n"),
        ];
        let others: Vec<String> = (0..9).map(|n| format!("other{n}.yaml")).collect();
        files.extend(others.iter().map(|path| (path.as_str(), config)));
        let directory = directory(&files);
        let path = directory.path().to_str().expect("UTF-8");
        let ran = run_command(&["init", path, "--name", "eu"]);
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        let listed = "spec.sources lists 12 paths: eu, eu/apps/web, eu/jobs, other0.yaml, other1.yaml \
                      and 7 more\n";
        assert!(ran.out.contains(listed), "{}", ran.out);
        let text =
            std::fs::read_to_string(directory.path().join(super::super::FILE)).expect("read");
        let (_, sources) = text.split_once("  sources:\n").expect("sources");
        let expected = "    - path: eu\n    - path: eu/apps/web\n      render: kustomize\n    \
                        - path: eu/jobs\n      render: kustomize\n    - path: other0.yaml\n";
        assert!(sources.starts_with(expected), "{text}");
        assert!(!sources.contains("- path: us\n") && !sources.contains("    - path: us"), "{text}");
    }

    #[test]
    fn empty_name_is_refused() {
        let directory = directory(&[("web.yaml", WEB)]);
        let path = directory.path().to_str().expect("UTF-8");
        let ran = run_command(&["init", path, "--name", " "]);
        assert_eq!(ran.exit, Exit::Failed);
        assert!(ran.err.contains("--name is empty"), "{}", ran.err);
        assert!(!directory.path().join(super::super::FILE).exists());
    }

    #[test]
    fn charts_get_releases_that_differ() {
        let charts = [("services/api/chart", "api"), ("services/web/chart", "chart")];
        let named =
            charts.map(|(path, name)| (format!("{path}/Chart.yaml"), format!("name: {name}\n")));
        let files: Vec<(&str, &str)> = named.iter().map(|(p, text)| (&**p, &**text)).collect();
        let directory = directory(&files);
        let path = directory.path().to_str().expect("UTF-8");
        assert_eq!(run_command(&["init", path]).exit, Exit::Done);
        let text =
            std::fs::read_to_string(directory.path().join(super::super::FILE)).expect("read");
        for (path, name) in [("services/api/chart", "api"), ("services/web/chart", "web")] {
            let expected = format!(
                "  #   - path: {path}\n  #     render: helm\n  #     release: {name}\n  #     namespace: {name}\n"
            );
            assert!(text.contains(&expected), "{text}");
        }
    }

    #[test]
    fn directory_of_a_cluster_needs_no_overlays() {
        let sync = "{apiVersion: kustomize.toolkit.fluxcd.io/v1, kind: Kustomization}";
        let overlay = "resources: [../../../base]\n";
        let directory = directory(&[
            ("base/kustomization.yaml", "resources: [web.yaml]\n"),
            ("base/web.yaml", WEB),
            ("k8s/prod/flux-system/gotk-sync.yaml", sync),
            ("k8s/prod/web/kustomization.yaml", overlay),
            ("k8s/staging/flux-system/gotk-sync.yaml", sync),
            ("k8s/staging/web/kustomization.yaml", overlay),
        ]);
        let path = directory.path().to_str().expect("UTF-8");
        let ran = run_command(&["init", path]);
        let several = "several clusters: k8s/prod, k8s/staging\n  name one, such as --name prod";
        assert!(ran.out.contains(several), "{}", ran.out);
        let ran = run_command(&["init", path, "--name", "prod", "--force"]);
        assert!(ran.out.contains("spec.sources lists k8s/prod, the directory"), "{}", ran.out);
        let text =
            std::fs::read_to_string(directory.path().join(super::super::FILE)).expect("read");
        let expected = "  sources:\n    - path: k8s/prod\n  #   - path: k8s/staging\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn init_writes_the_destination_of_this_cluster() {
        let application = |name: &str, server: &str| {
            format!(
                "{{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {{name: {name}}}, \
                 spec: {{source: {{repoURL: https://example.com/x, path: {name}}}, destination: \
                 {{server: '{server}'}}}}}}"
            )
        };
        let own = application("hub", "https://kubernetes.default.svc");
        let eu = application("eu", "https://eu.example.com");
        let directory = directory(&[("argo/hub.yaml", &own), ("argo/eu.yaml", &eu)]);
        let path = directory.path().to_str().expect("UTF-8");
        let ran = run_command(&["validate", path]);
        let expected = "delivers to https://eu.example.com, in-cluster";
        assert!(ran.out.contains(expected), "{}", ran.out);
        let wrong = run_command(&["init", path, "--destination", "us"]);
        assert!(wrong.err.contains("name one of: https://eu.example.com, in-cluster"));
        let ran = run_command(&["init", path, "--destination", "https://eu.example.com"]);
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        let text =
            std::fs::read_to_string(directory.path().join(super::super::FILE)).expect("read");
        let expected = "  delivery:\n    clusters:\n      - \"https://eu.example.com\"\n    \
                        otherClusters:\n      - \"https://kubernetes.default.svc\"\n      - in-cluster\n";
        assert!(text.contains(expected), "{text}");
        let ran = run_command(&["validate", path]);
        assert!(!ran.out.contains("several-destinations"), "{}", ran.out);
    }
}
