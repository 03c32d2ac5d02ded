//! Directories of different clusters in one repository, such as `clusters/prod` and
//! `clusters/staging`.
//!
//! The layout is that of Flux's monorepo: each directory below `clusters` is what one cluster
//! delivers itself from. Source: <https://fluxcd.io/flux/guides/repository-structure/>. So is each
//! directory that `flux bootstrap` wrote to, wherever it is. Source:
//! <https://fluxcd.io/flux/cmd/flux_bootstrap/>.

use std::collections::{BTreeMap, BTreeSet};

use super::manifest_text::{is_object, json_documents};
use super::settings::{is_for_tests, is_within};
use crate::model::desired::{Tree, TreeFile};

/// Name of the directory that has one directory for each cluster.
const CLUSTERS: &str = "clusters";

/// Names below `clusters` that hold parts of clusters.
const SHARED: [&str; 5] = ["addons", "base", "common", "components", "shared"];

/// The file that `flux bootstrap` writes, in a directory that has the name of the namespace.
const BOOTSTRAP: &str = "/gotk-sync.yaml";

/// Returns the directories of clusters, if the tree has at least two side by side, or two that
/// `flux bootstrap` wrote to. Paths are sorted.
pub fn cluster_directories(tree: &Tree) -> BTreeSet<String> {
    let mut by_parent: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut bootstrapped: BTreeSet<&str> = BTreeSet::new();
    for file in tree.files.iter().filter(|file| !is_for_tests(&file.path)) {
        let namespace = file.path.strip_suffix(BOOTSTRAP);
        bootstrapped.extend(namespace.and_then(|path| path.rsplit_once('/')).map(|(own, _)| own));
        let Some((parent, directory)) = below_clusters(&file.path) else { continue };
        let is_known = by_parent.get(parent).is_some_and(|known| known.contains(directory));
        if !is_known && has_object(file) {
            by_parent.entry(parent).or_default().insert(directory);
        }
    }
    let several = by_parent.into_values().chain([bootstrapped]).filter(|all| all.len() > 1);
    let all: BTreeSet<&str> = several.flatten().collect();
    // A directory of clusters is none itself.
    let is_outer = |path: &str| all.iter().any(|inner| *inner != path && is_within(inner, path));
    all.iter().filter(|path| !is_outer(path)).map(|path| (*path).to_owned()).collect()
}

/// Returns the directory `clusters` above the file at `path`, and the directory below it.
fn below_clusters(path: &str) -> Option<(&str, &str)> {
    let mut start = 0;
    for part in path.split('/') {
        let end = start + part.len();
        if part == CLUSTERS {
            let (cluster, _) = path.get(end + 1..)?.split_once('/')?;
            let directory = &path[..end + 1 + cluster.len()];
            return (!SHARED.contains(&cluster)).then_some((&path[..end], directory));
        }
        start = end + 1;
    }
    None
}

fn has_object(file: &TreeFile) -> bool {
    // Most files without objects need not be parsed.
    let is_likely = |text: &str| text.contains("apiVersion") && text.contains("kind");
    let text = file.content.as_ref().ok().and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.is_some_and(is_likely) && json_documents(file).iter().any(is_object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories(paths: &[&str], text: &str) -> Vec<String> {
        let file =
            |path: &&str| TreeFile { path: (*path).into(), content: Ok(text.as_bytes().into()) };
        let tree = Tree { files: paths.iter().map(file).collect() };
        cluster_directories(&tree).into_iter().collect()
    }

    fn found(paths: &[&str]) -> Vec<String> {
        directories(paths, "{apiVersion: v1, kind: Namespace}")
    }

    #[test]
    fn directories_side_by_side_are_different_clusters() {
        let apps = "apps/base/x.yaml";
        assert_eq!(
            found(&[apps, "clusters/a/x.yaml", "clusters/b/flux-system/y.yaml"]),
            ["clusters/a", "clusters/b"]
        );
        assert_eq!(found(&["k8s/clusters/a/x.yaml", "k8s/clusters/b/x.yaml"]).len(), 2);
        assert_eq!(found(&[apps, "clusters/a/x.yaml", "clusters/b.yaml"]), [""; 0]);
        assert_eq!(found(&["a/clusters/x/x.yaml", "b/clusters/y/x.yaml"]), [""; 0]);
    }

    #[test]
    fn directory_of_a_cluster_has_an_object() {
        let clusters = ["clusters/a/x.yaml", "clusters/b/x.yaml"];
        for text in [
            "values: {manifest: 'apiVersion: v1, kind: Namespace'}",
            "jobs:\n- apiVersion: v1\n  kind: Job\n",
            "apiVersion: ENC[AES256_GCM,data:JK0=]\nkind: ENC[AES256_GCM,data:Wro=]\n",
            "apiVersion: v1\n",
        ] {
            assert_eq!(directories(&clusters, text), [""; 0], "{text}");
        }
        let parts = ["clusters/addons/x.yaml", "clusters/base/x.yaml", "clusters/shared/x.yaml"];
        assert_eq!(found(&[parts.as_slice(), &clusters[..1]].concat()), [""; 0]);
        assert_eq!(found(&["tests/clusters/a/x.yaml", "tests/clusters/b/x.yaml"]), [""; 0]);
    }

    #[test]
    fn flux_bootstraps_different_clusters() {
        let sync = |path: &str| format!("{path}/flux-system/gotk-sync.yaml");
        let (prod, staging) = (sync("k8s/prod"), sync("k8s/staging"));
        assert_eq!(found(&[&prod, &staging, "k8s/base/x.yaml"]), ["k8s/prod", "k8s/staging"]);
        assert_eq!(found(&[&prod, "k8s/base/x.yaml"]), [""; 0]);
        let (eu, us) = (sync("clusters/prod/eu"), sync("clusters/prod/us"));
        assert_eq!(
            found(&[&eu, &us, "clusters/staging/x.yaml"]),
            ["clusters/prod/eu", "clusters/prod/us", "clusters/staging"]
        );
    }
}
