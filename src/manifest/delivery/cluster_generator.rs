//! The cluster generator of an `ApplicationSet`.
//!
//! Argo CD knows clusters by Secrets with the label `argocd.argoproj.io/secret-type: cluster`. They
//! are read from the repository. This cluster and the other clusters of the settings need none.

use std::collections::BTreeMap;

use super::super::yaml::{YamlNode, YamlValue};
use super::argo::IN_CLUSTER;
use super::generators::{Params, flatten};
use super::label_selector::matches_labels;
use super::{DeliveryContext, TargetCluster, node_at, scalar_text, text_at};
use crate::model::printable_url::printable_url;

/// Label of the Secrets that describe clusters.
const TYPE_LABEL: &str = "argocd.argoproj.io/secret-type";

/// A cluster as Argo CD knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct ClusterSecret {
    name: String,
    server: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// Reads a cluster Secret; `None` for other Secrets, and for those without readable data.
pub(in super::super) fn read_cluster_secret(root: &YamlNode<'_>) -> Option<ClusterSecret> {
    if text_at(root, &["metadata", "labels", TYPE_LABEL]) != Some("cluster") {
        return None;
    }
    let scalars = |key: &str| -> BTreeMap<String, String> {
        match node_at(root, &["metadata", key]).map(|node| &node.value) {
            Some(YamlValue::Map(entries)) => {
                let pair = |entry: &super::super::yaml::YamlEntry<'_>| {
                    (entry.key.to_string(), scalar_text(&entry.value))
                };
                entries.iter().map(pair).collect()
            }
            Some(_) | None => BTreeMap::new(),
        }
    };
    let text = |key: &str| text_at(root, &["stringData", key]).map(str::to_owned);
    Some(ClusterSecret {
        name: text("name")?,
        server: text("server")?,
        labels: scalars("labels"),
        annotations: scalars("annotations"),
    })
}

impl DeliveryContext<'_> {
    /// Returns the parameters of each selected cluster.
    pub(super) fn cluster_generator(&self, clusters: &YamlNode<'_>) -> Result<Vec<Params>, String> {
        let selector = node_at(clusters, &["selector"]);
        let selector =
            selector.filter(|node| !matches!(&node.value, YamlValue::Map(e) if e.is_empty()));
        let mut generated = Vec::new();
        for cluster in &self.cluster_secrets {
            let fits = selector.map_or(Ok(true), |one| matches_labels(one, &cluster.labels))?;
            if fits {
                generated.push(cluster.params());
            }
        }
        for cluster in self.clusters_of_settings() {
            // The labels of this cluster decide about its applications. Those of other clusters are
            // not read here.
            if selector.is_some()
                && self.cluster_by_name(&cluster.name) == Some(TargetCluster::This)
            {
                return Err(format!(
                    "its cluster generator selects by labels of cluster {}, which are not in Git; \
                     add its cluster Secret with `stringData`",
                    super::super::decode::shorten(&printable_url(&cluster.name))
                ));
            }
            generated.push(cluster.params());
        }
        let values = node_at(clusters, &["values"]).map(flatten).unwrap_or_default();
        for params in &mut generated {
            for (key, value) in &values {
                let template = serde_json::Value::from(value.as_str()).to_string();
                let filled = self.render_template(&template, params)?;
                let filled = serde_json::from_str(&filled).unwrap_or(filled);
                params.insert(format!("values.{key}"), filled);
            }
        }
        Ok(generated)
    }

    /// Returns this cluster and the other clusters of the settings that have no Secret.
    fn clusters_of_settings(&self) -> Vec<ClusterSecret> {
        let is_this = |cluster: &ClusterSecret| {
            IN_CLUSTER.contains(&&*cluster.server)
                || self.cluster_by_name(&cluster.name) == Some(TargetCluster::This)
                || self.cluster_by_name(&cluster.server) == Some(TargetCluster::This)
        };
        let plain = |name: &str, server: &str| ClusterSecret {
            name: name.to_owned(),
            server: server.to_owned(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        };
        let others = self.fleet.delivery.other_clusters.iter();
        let known = |name: &&String| {
            !self.cluster_secrets.iter().any(|c| c.name == **name || c.server == **name)
        };
        let mut all: Vec<ClusterSecret> =
            others.filter(known).map(|name| plain(name, name)).collect();
        if !self.cluster_secrets.iter().any(is_this) {
            all.push(plain(&self.fleet.cluster.name, IN_CLUSTER[0]));
        }
        all
    }
}

impl ClusterSecret {
    fn params(&self) -> Params {
        let plain =
            |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c } else { '-' };
        let normal: String = self.name.to_ascii_lowercase().chars().map(plain).collect();
        let stated =
            [("name", self.name.as_str()), ("nameNormalized", &normal), ("server", &self.server)];
        let mut params: Params =
            stated.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        for (kind, values) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            params.extend(
                values.iter().map(|(key, value)| (format!("metadata.{kind}.{key}"), value.clone())),
            );
        }
        params
    }
}
