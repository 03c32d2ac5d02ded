//! Directories of different clusters in one repository, such as `clusters/prod` and
//! `clusters/staging`.
//!
//! The layout is that of Flux's monorepo: each directory below `clusters` is what one cluster
//! delivers itself from. Source: <https://fluxcd.io/flux/guides/repository-structure/>.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::code::Code;
use crate::model::desired::{FLEET_FILE, Fleet, Problem, Tree, TreeFile};
use crate::model::ids::Origin;

/// Name of the directory that has one directory for each cluster.
const CLUSTERS: &str = "clusters";

/// Directories named in a warning.
const NAMED_MAX: usize = 5;

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

/// Returns a warning if the directories of several clusters are read as one cluster.
pub(super) fn several_clusters_warning(tree: &Tree, fleet: &Fleet) -> Option<Problem> {
    let directories = cluster_directories(tree);
    if !fleet.sources.is_empty() || directories.is_empty() {
        return None;
    }
    let named: Vec<&str> = directories.iter().take(NAMED_MAX).map(String::as_str).collect();
    let more = match directories.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let origin = fleet.origin.clone().unwrap_or_else(|| Origin::new(FLEET_FILE, 0));
    let message =
        format!("{}{more} seem to be different clusters, and are read as one", named.join(", "));
    let is_own = |directory: &&str| directory.rsplit('/').next() == Some(&fleet.cluster.name);
    let own = named.iter().copied().find(is_own).unwrap_or(named[0]);
    let hint =
        format!("list the directory of this cluster under spec.sources, such as `- path: {own}`");
    Some(Problem::warning(origin, "Fleet", message).hint(hint).code(Code::SeveralClusters))
}

#[cfg(test)]
mod tests {
    use super::super::settings::read_fleet;
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

    #[test]
    fn warning_ends_with_named_sources() {
        let tree = tree(&["clusters/a/x.yaml", "clusters/b/x.yaml"]);
        let warning = several_clusters_warning(&tree, &Fleet::default()).expect("two clusters");
        assert!(warning.message.starts_with("clusters/a, clusters/b seem"), "{}", warning.message);
        let settings = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {name: a}\nspec: \
                        {cluster: {region: us-east-1}, sources: [{path: clusters/a}]}";
        let file = TreeFile { path: FLEET_FILE.into(), content: Ok(settings.as_bytes().into()) };
        let (fleet, problems) =
            read_fleet(&Tree { files: [tree.files.clone(), vec![file]].concat() });
        assert_eq!(problems, []);
        assert!(several_clusters_warning(&tree, &fleet).is_none());
    }
}
