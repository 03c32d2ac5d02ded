//! Overlays that exclude each other: they define the same objects, each for another cluster.
//!
//! `overlays/dev` and `overlays/prod` of one base are the usual form, as are
//! `environments/dev/web.yaml` and `environments/prod/web.yaml`. Only overlays that no source and no
//! delivery object renders count: those others are chosen already.
//!
//! Overlays that set namespaces of their own could be of one cluster. Names of environments make them
//! alternatives; without such names, both may be meant.

use std::collections::{BTreeMap, BTreeSet};

use super::classify::{DocumentClass, ObjectKind, classify};
use super::cluster_alternatives::{Alternatives, AlternativesKind, OverlayEvidence};
use super::manifest_text::{FileFormat, parse_documents};
use super::placeholder::Vars;
use super::repository_layout::{
    KustomizationFile, RepositoryLayout, is_kustomization, parent_directory,
};
use super::settings::is_for_tests;
use super::yaml::{self, YamlNode};
use crate::model::desired::{Tree, TreeFile};

/// Names of directories that have one directory for each environment or cluster.
const PARENTS: [&str; 5] = ["overlays", "env", "envs", "environment", "environments"];

/// Words in the names of environments.
const ENVIRONMENTS: [&str; 19] = [
    "dev",
    "develop",
    "development",
    "integration",
    "live",
    "nonprod",
    "preprod",
    "preproduction",
    "prd",
    "preview",
    "prod",
    "production",
    "qa",
    "stage",
    "staging",
    "stg",
    "test",
    "testing",
    "uat",
];

/// Kind, namespace and name of an object.
type ObjectKey = (String, String, String);

/// Directories by the object that each of them defines.
type DefinedIn = BTreeMap<ObjectKey, BTreeSet<String>>;

/// Namespaces by overlay that sets one, by directory of the overlays, file, kind and name of a
/// workload of theirs.
type PlacedBy<'a> = BTreeMap<(&'a str, &'a str, String, String), BTreeMap<&'a str, String>>;

/// The path of an overlay, its kustomization, and everything that it builds on.
type Overlay<'a> = (&'a str, &'a KustomizationFile, BTreeSet<String>);

/// Returns the overlays of `tree` that exclude each other. `is_open` returns whether a file is read
/// by itself.
pub(super) fn exclusive_overlays(
    tree: &Tree,
    layout: &RepositoryLayout,
    is_open: &dyn Fn(&str) -> bool,
) -> Vec<Alternatives> {
    let is_open = |path: &str| is_open(path) && !is_for_tests(path);
    let overlays = layout.kustomizations.iter().filter(|(path, kustomization)| {
        !kustomization.is_component && !layout.is_base(path) && is_open(path)
    });
    let files_of = |path: &str| layout.transitive_bases([parent_directory(path).to_owned()]);
    let overlays: Vec<Overlay<'_>> =
        overlays.map(|(path, overlay)| (&**path, overlay, files_of(path))).collect();
    // Kustomizations stand for the files of their directories.
    let is_plain = |file: &str| is_open(file) && layout.kustomization_above(file).is_none();
    let in_overlay: BTreeSet<&String> = overlays.iter().flat_map(|(_, _, files)| files).collect();
    let objects = ObjectsByFile::new(tree, layout, &|path: &String| {
        in_overlay.contains(path) || (environment_directory(path).is_some() && is_plain(path))
    });
    let mut defined = DefinedIn::new();
    for (path, overlay, files) in &overlays {
        for key in files.iter().flat_map(|file| objects.of(file)) {
            let directory = parent_directory(path).to_owned();
            defined.entry(overlay.rename(key)).or_default().insert(directory);
        }
    }
    for (file, keys) in &objects.0 {
        let directory = environment_directory(file).filter(|_| is_plain(file));
        let Some(directory) = directory else { continue };
        for key in keys {
            defined.entry(key.clone()).or_default().insert(directory.to_owned());
        }
    }
    let mut all = into_alternatives(defined);
    add_alternative_namespaces(&overlays, &objects, &mut all);
    all
}

/// Returns the directory of an environment that has the file at `path`.
fn environment_directory(path: &str) -> Option<&str> {
    let mut start = 0;
    let mut is_below_parent = false;
    for part in path.split('/') {
        let end = start + part.len();
        if is_below_parent {
            return (end < path.len()).then(|| &path[..end]);
        }
        is_below_parent = PARENTS.contains(&part);
        start = end + 1;
    }
    None
}

/// Objects that need or provide capacity, by file.
struct ObjectsByFile(BTreeMap<String, Vec<ObjectKey>>);

impl ObjectsByFile {
    /// Parses the needed files only, because a repository may have thousands of them.
    fn new(tree: &Tree, layout: &RepositoryLayout, is_needed: &dyn Fn(&String) -> bool) -> Self {
        let is_object = |file: &&TreeFile| {
            !is_kustomization(&file.path) && layout.exclusion_reason(&file.path).is_none()
        };
        let named = |file: &TreeFile| {
            let path = file.path.to_string();
            let keys = if is_needed(&path) { object_keys(file) } else { Vec::new() };
            (!keys.is_empty()).then_some((path, keys))
        };
        Self(tree.files.iter().filter(is_object).filter_map(named).collect())
    }

    fn of(&self, path: &str) -> &[ObjectKey] {
        self.0.get(path).map(Vec::as_slice).unwrap_or_default()
    }
}

fn object_keys(file: &TreeFile) -> Vec<ObjectKey> {
    let (Some(format), Ok(bytes)) = (FileFormat::from_path(&file.path), &file.content) else {
        return Vec::new();
    };
    let Ok(text) = yaml::decode(bytes) else { return Vec::new() };
    parse_documents(format, &text, &Vars::new(), |loaded| {
        loaded.documents.iter().filter_map(|document| object_key(&document.root)).collect()
    })
}

fn object_key(root: &YamlNode<'_>) -> Option<ObjectKey> {
    let DocumentClass::Object(ObjectKind::Workload(_) | ObjectKind::NodePool(_)) = classify(root)
    else {
        return None;
    };
    let metadata = root.get("metadata")?;
    let text = |node: &YamlNode<'_>, key: &str| node.get(key)?.text().map(str::to_owned);
    let namespace = text(metadata, "namespace").unwrap_or_default();
    Some((text(root, "kind")?, namespace, text(metadata, "name")?))
}

impl KustomizationFile {
    /// Returns the key of an object after the kustomization has renamed it.
    fn rename(&self, (kind, namespace, name): &ObjectKey) -> ObjectKey {
        let field = |key: &str| self.renames.get(key).map(String::as_str);
        let is_namespaced = kind != "NodePool";
        let namespace = field("namespace").filter(|_| is_namespaced).unwrap_or(namespace);
        let (prefix, suffix) = (field("namePrefix"), field("nameSuffix"));
        let name = [prefix.unwrap_or_default(), name, suffix.unwrap_or_default()].concat();
        (kind.clone(), namespace.to_owned(), name)
    }
}

/// Joins the directories of all objects to alternatives.
fn into_alternatives(defined: DefinedIn) -> Vec<Alternatives> {
    let mut all: Vec<Alternatives> = Vec::new();
    for ((kind, namespace, name), directories) in defined {
        let Some(choices) = choices(&directories) else { continue };
        let slash = if namespace.is_empty() { "" } else { "/" };
        let object = format!("{kind} {namespace}{slash}{name}");
        add_choices(&mut all, object, OverlayEvidence::SameObjects, choices);
    }
    all
}

/// Adds choices to alternatives that share one of them, or as new alternatives. Alternatives that one
/// cluster may have together stay apart from those that it cannot.
fn add_choices(
    all: &mut Vec<Alternatives>,
    object: String,
    evidence: OverlayEvidence,
    choices: BTreeMap<String, String>,
) {
    let is_optional = evidence == OverlayEvidence::Namespaces;
    let known = all
        .iter_mut()
        .find(|known| known.is_optional() == is_optional && known.shares_choice(&choices));
    match known {
        Some(known) => known.extend(choices),
        None => all.push(Alternatives {
            kind: AlternativesKind::Overlays { object, evidence },
            choices: choices.into_iter().map(|(name, path)| (name, [path].into())).collect(),
        }),
    }
}

/// Adds overlays in one directory that have the same workloads of the same files, each in a namespace
/// of its own.
fn add_alternative_namespaces(
    overlays: &[Overlay<'_>],
    objects: &ObjectsByFile,
    all: &mut Vec<Alternatives>,
) {
    let mut placed = PlacedBy::new();
    for (path, overlay, files) in overlays {
        let Some(namespace) = overlay.renames.get("namespace") else { continue };
        let directory = parent_directory(path);
        for file in files {
            for key in objects.of(file) {
                let (kind, _, name) = overlay.rename(key);
                let place = (parent_directory(directory), file.as_str(), kind, name);
                placed.entry(place).or_default().insert(directory, namespace.clone());
            }
        }
    }
    for ((_, _, kind, name), namespaces) in placed {
        let distinct: BTreeSet<&String> = namespaces.values().collect();
        let directories = namespaces.keys().map(|path| (*path).to_owned()).collect();
        let choices = choices(&directories).filter(|_| distinct.len() > 1);
        let Some(choices) = choices else { continue };
        let evidence = if are_environments(choices.keys()) {
            OverlayEvidence::Environments
        } else {
            OverlayEvidence::Namespaces
        };
        add_choices(all, format!("{kind} {name}"), evidence, choices);
    }
}

/// Returns whether each name is that of another environment. Tenants may share one, as `acme-prod` and
/// `umbrella-prod` do.
fn are_environments<'n>(names: impl Iterator<Item = &'n String>) -> bool {
    let environment = |name: &'n String| {
        let mut words = name.split(['-', '_', '.']);
        words.find(|word| ENVIRONMENTS.contains(word))
    };
    let mut known = BTreeSet::new();
    names.map(environment).all(|found| found.is_some_and(|word| known.insert(word)))
}

/// Returns the part of each path that differs from the others, with the path. `None` if the paths
/// have no common place.
fn choices(directories: &BTreeSet<String>) -> Option<BTreeMap<String, String>> {
    let paths: Vec<Vec<&str>> = directories.iter().map(|path| path.split('/').collect()).collect();
    let first = paths.first().filter(|_| paths.len() > 1)?;
    let shortest = paths.iter().map(Vec::len).min()?;
    let is_common = |at: &usize| paths.iter().all(|path| path[*at] == first[*at]);
    let start = (0..shortest).take_while(is_common).count();
    let is_common_end =
        |n: &usize| paths.iter().all(|path| path[path.len() - n] == first[first.len() - n]);
    let end = (1..=shortest - start).take_while(is_common_end).count();
    let middle = |path: &Vec<&str>| path[start..path.len() - end].join("/");
    let names: Vec<String> = paths.iter().map(middle).collect();
    let is_elsewhere = start + end == 0 && names.iter().any(|name| name.contains('/'));
    if is_elsewhere || names.iter().any(String::is_empty) {
        return None;
    }
    Some(names.into_iter().zip(directories.iter().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}";

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let all = alternatives(files).into_iter();
        all.map(|one| one.choices.into_keys().collect()).collect()
    }

    fn alternatives(files: &[(&str, &str)]) -> Vec<Alternatives> {
        let file = |(path, text): &(&str, &str)| TreeFile {
            path: (*path).into(),
            content: Ok(text.as_bytes().into()),
        };
        let tree = Tree { files: files.iter().map(file).collect() };
        let layout = RepositoryLayout::from_tree(&tree);
        exclusive_overlays(&tree, &layout, &|_| true)
    }

    #[test]
    fn overlays_of_one_base_exclude_each_other() {
        let base = [("base/kustomization.yaml", "resources: [web.yaml]"), ("base/web.yaml", WEB)];
        let overlay = "resources: [../../base]";
        let with = |more: &[(&'static str, &'static str)]| found(&[&base, more].concat());
        let (dev, prod) = ("overlays/dev/kustomization.yaml", "overlays/prod/kustomization.yaml");
        assert_eq!(with(&[(dev, overlay), (prod, overlay)]), [["dev", "prod"]]);
        assert_eq!(with(&[(dev, overlay)]), [[""; 0]; 0]);
        let fixture = ("tests/overlays/prod/kustomization.yaml", "resources: [../../../base]");
        assert_eq!(with(&[(dev, overlay), fixture]), [[""; 0]; 0]);
        let renamed = "resources: [../../base]\nnamePrefix: p-";
        assert_eq!(with(&[(dev, overlay), (prod, renamed)]), [[""; 0]; 0]);
        let component = "kind: Component\nresources: [../../base]";
        assert_eq!(with(&[(dev, overlay), (prod, component)]), [[""; 0]; 0]);
    }

    #[test]
    fn overlays_with_namespaces_of_their_own_may_be_alternatives() {
        let base = [("base/kustomization.yaml", "resources: [web.yaml]"), ("base/web.yaml", WEB)];
        let evidence = |overlays: &[(&str, &str)]| {
            let of = |(name, namespace): &(&str, &str)| {
                let text = format!("resources: [../../base]\nnamespace: {namespace}");
                (format!("overlays/{name}/kustomization.yaml"), text)
            };
            let overlays: Vec<(String, String)> = overlays.iter().map(of).collect();
            let overlays = overlays.iter().map(|(path, text)| (path.as_str(), text.as_str()));
            let mut files: Vec<(&str, &str)> = base.to_vec();
            files.extend(overlays);
            let all = alternatives(&files);
            all.first().map(|one| {
                let AlternativesKind::Overlays { object, evidence } = &one.kind else {
                    panic!("{:?}", one.kind)
                };
                (object.clone(), *evidence)
            })
        };
        let web = |evidence| Some(("Deployment web".to_owned(), evidence));
        let environments = web(OverlayEvidence::Environments);
        let found = evidence(&[("development", "bank-development"), ("prod-eu", "bank")]);
        assert_eq!(found, environments);
        let tenants = web(OverlayEvidence::Namespaces);
        assert_eq!(evidence(&[("acme", "acme"), ("umbrella", "umbrella")]), tenants);
        assert_eq!(evidence(&[("prod-acme", "acme"), ("prod-umbrella", "umbrella")]), tenants);
        assert_eq!(evidence(&[("dev", "a"), ("acme", "b")]), tenants);
        let same = Some(("Deployment a/web".to_owned(), OverlayEvidence::SameObjects));
        assert_eq!(evidence(&[("dev", "a"), ("prod", "a")]), same);
    }

    #[test]
    fn environment_is_named_wherever_it_is_in_the_path() {
        let base = [("base/kustomization.yaml", "resources: [w.yaml]"), ("base/w.yaml", WEB)];
        let overlay = "resources: [../../base]";
        let paths =
            [("eu/apps/kustomization.yaml", overlay), ("us/apps/kustomization.yaml", overlay)];
        assert_eq!(found(&[base, paths].concat()), [["eu", "us"]]);
        let deep = "resources: [../../../base]";
        let nested =
            [("o/dev/kustomization.yaml", overlay), ("o/prod/eu/kustomization.yaml", deep)];
        assert_eq!(found(&[base, nested].concat()), [["dev", "prod/eu"]]);
        // The same base in unrelated places is no choice.
        let apart = [("a/b/kustomization.yaml", overlay), ("c/d/kustomization.yaml", overlay)];
        assert_eq!(found(&[base, apart].concat()), [[""; 0]; 0]);
    }

    #[test]
    fn plain_directories_of_environments_exclude_each_other() {
        assert_eq!(found(&[("env/a/x.yaml", WEB), ("env/b/sub/y.yaml", WEB)]), [["a", "b"]]);
        let other = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: api}}";
        assert_eq!(found(&[("env/a/x.yaml", WEB), ("env/b/x.yaml", other)]), [[""; 0]; 0]);
        assert_eq!(found(&[("teams/a/x.yaml", WEB), ("teams/b/x.yaml", WEB)]), [[""; 0]; 0]);
    }
}
