//! The parts of a tree that the fleet names as sources.

use super::placeholder::Vars;
use super::settings::is_within;
use crate::model::desired::Fleet;

/// A part of the tree with common settings.
#[derive(Debug)]
pub(super) struct SourceArea {
    pub(super) path: String,
    pub(super) rendered: bool,
    pub(super) vars: Vars,
    pub(super) namespace: Option<String>,
}

/// Returns the innermost area that contains `path`: a directory may have variables of its own.
pub(super) fn area_of<'a>(areas: &'a [SourceArea], path: &str) -> Option<&'a SourceArea> {
    let inside = areas.iter().filter(|area| is_within(path, &area.path));
    inside.max_by_key(|area| area.path.len())
}

/// Returns the areas that the fleet names, else the whole tree.
pub(super) fn source_areas(fleet: &Fleet) -> Vec<SourceArea> {
    let cluster = &fleet.cluster;
    let cluster_vars: Vars = [
        ("CLUSTER_NAME", cluster.name.as_str()),
        ("EKS_CLUSTER_NAME", cluster.name.as_str()),
        ("AWS_REGION", cluster.region.as_str()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    if fleet.sources.is_empty() {
        let path = String::new();
        return vec![SourceArea { path, rendered: false, vars: cluster_vars, namespace: None }];
    }
    let area = |source: &crate::model::desired::Source| {
        let mut vars = cluster_vars.clone();
        vars.extend(source.vars.clone());
        let (path, namespace) = (source.path.clone(), source.namespace.clone());
        SourceArea { path, rendered: source.render.is_some(), vars, namespace }
    };
    fleet.sources.iter().map(area).collect()
}
