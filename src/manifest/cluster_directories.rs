//! Directories of different clusters in one repository, such as `clusters/prod` and
//! `clusters/staging`.
//!
//! The layout is that of Flux's monorepo: each directory below `clusters` is what one cluster
//! delivers itself from. Source: <https://fluxcd.io/flux/guides/repository-structure/>.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::desired::{Tree, TreeFile};

/// Name of the directory that has one directory for each cluster.
const CLUSTERS: &str = "clusters";

/// Returns the directories of clusters, if the tree has at least two side by side. Paths are sorted.
#[must_use]
pub fn cluster_directories(tree: &Tree) -> BTreeSet<String> {
    let mut by_parent: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for file in &tree.files {
        let mut start = 0;
        for part in file.path.split('/') {
            let end = start + part.len();
            let rest = file.path.get(end + 1..).unwrap_or_default();
            if let Some((cluster, _)) = rest.split_once('/').filter(|_| part == CLUSTERS) {
                if !has_object(file) {
                    break;
                }
                let parent = &file.path[..end];
                by_parent.entry(parent).or_default().insert(format!("{parent}/{cluster}"));
                break;
            }
            start = end + 1;
        }
    }
    let several = by_parent.into_values().filter(|directories| directories.len() > 1);
    several.flatten().collect()
}

fn has_object(file: &TreeFile) -> bool {
    let Ok(bytes) = &file.content else { return false };
    std::str::from_utf8(bytes).is_ok_and(|text| text.contains("apiVersion:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> Tree {
        let file = |path: &&str| TreeFile {
            path: (*path).into(),
            content: Ok(b"apiVersion: v1".as_slice().into()),
        };
        Tree { files: paths.iter().map(file).collect() }
    }

    #[test]
    fn directories_side_by_side_are_different_clusters() {
        let found = |paths: &[&str]| Vec::from_iter(cluster_directories(&tree(paths)));
        let apps = "apps/base/x.yaml";
        assert_eq!(
            found(&[apps, "clusters/a/x.yaml", "clusters/b/flux-system/y.yaml"]),
            ["clusters/a", "clusters/b"]
        );
        assert_eq!(found(&["k8s/clusters/a/x.yaml", "k8s/clusters/b/x.yaml"]).len(), 2);
        assert_eq!(found(&[apps, "clusters/a/x.yaml", "clusters/b.yaml"]), [""; 0]);
        assert_eq!(found(&["a/clusters/x/x.yaml", "b/clusters/y/x.yaml"]), [""; 0]);
    }
}
