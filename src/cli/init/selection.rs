//! The sources and destinations that the name of a cluster chooses.

use std::collections::BTreeSet;

use super::detect::Detected;
use crate::cli::error::CliError;
use crate::manifest::{Alternatives, AlternativesKind, IN_CLUSTER, KUSTOMIZATION};
use crate::model::desired::{Tree, TreeFile};

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
    /// Destinations that mean this cluster, and those that do not.
    pub(super) destinations: Option<(Vec<String>, Vec<String>)>,
    /// Alternatives without a choice.
    pub(super) open: Vec<Alternatives>,
}

impl Selection {
    /// Chooses overlays by the name of the cluster, and the destination by `destination` or by the
    /// name.
    ///
    /// # Errors
    /// Fails if no Argo CD object has the destination.
    pub(super) fn choose(
        tree: &Tree,
        detected: &Detected,
        name: &str,
        destination: Option<&str>,
    ) -> Result<Self, CliError> {
        let mut selection = Self::default();
        let (mut chosen, mut rejected) = (BTreeSet::new(), BTreeSet::new());
        for alternatives in &detected.alternatives {
            // The template lists these.
            if alternatives.kind == AlternativesKind::Directories {
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
            }
        }
        if destination.is_some() && !detected.has_destinations() {
            let wanted = destination.unwrap_or_default();
            return Err(unknown_destination(wanted, &[]));
        }
        if !chosen.is_empty() {
            selection.sources = sources(tree, detected, &chosen, &rejected);
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

fn overlay(detected: &Detected, path: String) -> SelectedSource {
    let render = detected.kustomizations.contains(&path).then_some("kustomize");
    SelectedSource { path, render }
}

/// Returns the chosen overlays, and everything that belongs to no overlay.
fn sources(
    tree: &Tree,
    detected: &Detected,
    chosen: &BTreeSet<String>,
    rejected: &BTreeSet<String>,
) -> Vec<SelectedSource> {
    let mut found: BTreeSet<SelectedSource> =
        chosen.iter().map(|path| overlay(detected, path.clone())).collect();
    let is_rejected = |path: &&String| {
        detected.alternatives.iter().any(|all| all.choices.values().flatten().any(|d| d == *path))
    };
    let rest = detected.kustomizations.iter().filter(|path| !is_rejected(path));
    found.extend(rest.map(|path| overlay(detected, path.clone())));
    found.extend(
        detected
            .charts
            .iter()
            .map(|path| SelectedSource { path: path.clone(), render: Some("helm") }),
    );
    let kustomizations = tree.files.iter().filter_map(|file| {
        let (directory, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        KUSTOMIZATION.contains(&name).then(|| directory.to_owned())
    });
    let mut taken: BTreeSet<String> = kustomizations.collect();
    taken.extend(chosen.iter().chain(rejected).chain(&detected.charts).cloned());
    let plain = tree.files.iter().filter(|file| is_manifest(file));
    let plain = plain.filter_map(|file| plain_source(&file.path, &taken));
    found.extend(plain.map(|path| SelectedSource { path, render: None }));
    found.into_iter().collect()
}

fn is_manifest(file: &TreeFile) -> bool {
    let Ok(bytes) = &file.content else { return false };
    let name = &*file.path;
    [".yaml", ".yml", ".json"].iter().any(|end| name.ends_with(end))
        && name != super::FILE
        && String::from_utf8_lossy(bytes).contains("apiVersion")
}

/// Returns the largest directory of the file at `path` that holds none of `taken`, else the file.
fn plain_source(path: &str, taken: &BTreeSet<String>) -> Option<String> {
    let is_below = |path: &str, directory: &str| {
        directory.is_empty()
            || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
    };
    if taken.iter().any(|directory| is_below(path, directory)) {
        return None;
    }
    let is_free = |directory: &&str| !taken.iter().any(|taken| is_below(taken, directory));
    let mut directories = path.match_indices('/').map(|(at, _)| &path[..at]);
    Some(directories.find(is_free).unwrap_or(path).to_owned())
}

#[cfg(test)]
mod tests {
    use crate::cli::Exit;
    use crate::cli::tests::run_command;

    const WEB: &str = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: \
                       {replicas: 2, template: {spec: {containers: [{name: c}]}}}}";

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
