//! The cluster that files of eksctl declare.

use std::collections::BTreeSet;

use super::super::yaml::{self, YamlNode};
use crate::model::desired::Tree;
use crate::model::ids::Region;

/// Returns name and region of the only cluster that eksctl files declare. They count where no
/// settings name a cluster.
pub(super) fn only_eksctl_cluster(tree: &Tree) -> Option<(String, Region)> {
    let mut clusters = BTreeSet::new();
    for file in &tree.files {
        let Some(text) = file.content.as_ref().ok().and_then(|bytes| yaml::decode(bytes).ok())
        else {
            continue;
        };
        if !(text.contains("ClusterConfig") && text.contains("eksctl.io/")) {
            continue;
        }
        for document in yaml::load(&text).documents {
            clusters.extend(cluster_config(&document.root));
        }
    }
    let only = clusters.pop_first()?;
    clusters.is_empty().then_some(only)
}

/// Returns name and region of a `ClusterConfig` without placeholders.
fn cluster_config(root: &YamlNode<'_>) -> Option<(String, Region)> {
    let is_config = root.get("kind").and_then(YamlNode::text) == Some("ClusterConfig");
    let metadata = root.get("metadata").filter(|_| is_config)?;
    let literal = |key| {
        let text = metadata.get(key).and_then(YamlNode::text)?;
        (!text.is_empty() && !text.contains(['$', '{'])).then_some(text)
    };
    Some((literal("name")?.to_owned(), Region::from(literal("region")?)))
}
