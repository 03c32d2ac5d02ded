//! What a directory holds, as far as it is evident from its files.

use std::collections::BTreeSet;

use crate::manifest::{
    Alternatives, AlternativesKind, KUSTOMIZATION, cluster_alternatives, cluster_directories,
    kustomization_references, normal_path, read,
};
use crate::model::desired::{Fleet, RepositoryLocation, Tree, TreeFile};

/// A value with the file that states it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Evidence {
    pub(in crate::cli) value: String,
    pub(in crate::cli) file: String,
}

/// The contents of a directory.
#[derive(Debug, Default)]
pub(in crate::cli) struct Detected {
    pub(in crate::cli) workloads: usize,
    pub(in crate::cli) pools: usize,
    pub(in crate::cli) node_groups: usize,
    /// Directories of kustomizations that no other one builds on.
    pub(in crate::cli) kustomizations: BTreeSet<String>,
    /// Directories of different clusters.
    pub(in crate::cli) cluster_directories: BTreeSet<String>,
    /// Parts of the directory that belong to different clusters.
    pub(in crate::cli) alternatives: Vec<Alternatives>,
    /// Directories of Helm charts, without subcharts.
    pub(in crate::cli) charts: BTreeSet<String>,
    /// `None` if no file or more than one cluster is named.
    pub(in crate::cli) cluster: Option<Evidence>,
    pub(in crate::cli) region: Option<Evidence>,
    /// Zones of the region that the files name.
    pub(in crate::cli) zones: BTreeSet<String>,
}

impl Detected {
    pub(in crate::cli) fn from_tree(tree: &Tree) -> Self {
        Self::from_repository(tree, &RepositoryLocation::default())
    }

    /// Detects the contents of a directory of the repository at `location`.
    pub(in crate::cli) fn from_repository(tree: &Tree, location: &RepositoryLocation) -> Self {
        let desired = read(tree, &Fleet::default());
        let configs: Vec<Evidence> = cluster_config_values(tree, "name");
        let discovered = values_of_key(tree, "karpenter.sh/discovery");
        let zones = zones(tree);
        let region = only(cluster_config_values(tree, "region")).or_else(|| region_of(&zones));
        let is_inside =
            |zone: &String| region.as_ref().is_some_and(|region| zone.starts_with(&region.value));
        Self {
            workloads: desired.workloads.len(),
            pools: desired.pools.len(),
            node_groups: desired.node_groups.len(),
            kustomizations: kustomizations(tree),
            cluster_directories: delivering_directories(tree),
            alternatives: cluster_alternatives(tree, location),
            charts: charts(tree),
            cluster: only(configs).or_else(|| only(discovered)),
            zones: zones.into_iter().map(|zone| zone.value).filter(is_inside).collect(),
            region,
        }
    }

    /// Returns whether Argo CD delivers to several clusters.
    pub(in crate::cli) fn has_destinations(&self) -> bool {
        self.alternatives.iter().any(|all| all.kind == AlternativesKind::Destinations)
    }

    /// Returns the directory of the cluster `name`.
    pub(in crate::cli) fn directory_of(&self, name: &str) -> Option<&str> {
        let mut all = self.cluster_directories.iter().map(String::as_str);
        all.find(|directory| directory.rsplit('/').next() == Some(name))
    }
}

/// Returns the directories of clusters, if each has objects that deliver manifests from elsewhere in
/// the repository.
fn delivering_directories(tree: &Tree) -> BTreeSet<String> {
    let delivers = |directory: &String| {
        let prefix = format!("{directory}/");
        let inside = tree.files.iter().filter(|file| file.path.starts_with(&prefix));
        let contents = inside.filter_map(|file| file.content.as_ref().ok());
        contents
            .map(|bytes| String::from_utf8_lossy(bytes))
            .any(|text| text.contains(".toolkit.fluxcd.io/") || text.contains("argoproj.io/"))
    };
    let all = cluster_directories(tree);
    if all.iter().all(delivers) { all } else { BTreeSet::new() }
}

/// Returns the value if all files state the same one.
fn only(found: Vec<Evidence>) -> Option<Evidence> {
    let values: BTreeSet<&str> = found.iter().map(|evidence| evidence.value.as_str()).collect();
    let is_one = values.len() == 1;
    found.into_iter().next().filter(|_| is_one)
}

fn lines(file: &TreeFile) -> Vec<String> {
    let Ok(bytes) = &file.content else { return Vec::new() };
    String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
}

/// Returns a plain value of `KEY: VALUE`; not a placeholder or a template.
fn value_of<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    let rest = line.trim_start().trim_start_matches("- ").trim_matches(['"', '\'']);
    let rest = rest.strip_prefix(key)?.trim_start_matches(['"', '\'']).strip_prefix(':')?;
    let value = rest.split(" #").next().unwrap_or_default().trim().trim_matches(['"', '\'']);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (!value.is_empty() && value.chars().all(is_plain)).then_some(value)
}

fn values_of_key(tree: &Tree, key: &str) -> Vec<Evidence> {
    let of_file = |file: &TreeFile| {
        let found: Vec<Evidence> = lines(file)
            .iter()
            .filter_map(|line| value_of(line, key))
            .map(|value| Evidence { value: value.to_owned(), file: file.path.to_string() })
            .collect();
        found
    };
    tree.files.iter().flat_map(of_file).collect()
}

/// Returns a field of the metadata of each eksctl `ClusterConfig`.
fn cluster_config_values(tree: &Tree, field: &str) -> Vec<Evidence> {
    let mut found = Vec::new();
    for file in &tree.files {
        let (mut is_config, mut in_metadata, mut value) = (false, false, None);
        for line in lines(file).iter().map(String::as_str).chain(["---"]) {
            if line.starts_with("---") {
                if let (true, Some(value)) = (is_config, value.take()) {
                    found.push(Evidence { value, file: file.path.to_string() });
                }
                (is_config, in_metadata, value) = (false, false, None);
            } else if !line.starts_with([' ', '#']) && !line.is_empty() {
                is_config |= value_of(line, "kind") == Some("ClusterConfig");
                in_metadata = line.starts_with("metadata:");
            } else if in_metadata && value.is_none() {
                value = value_of(line, field).map(str::to_owned);
            }
        }
    }
    found
}

/// Returns each zone that a file names, such as `eu-west-1a`.
fn zones(tree: &Tree) -> Vec<Evidence> {
    let mut found = Vec::new();
    for file in &tree.files {
        for line in lines(file).iter().filter(|line| !line.trim_start().starts_with('#')) {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            found.extend(
                words
                    .filter(|word| is_zone(word))
                    .map(|word| Evidence { value: word.to_owned(), file: file.path.to_string() }),
            );
        }
    }
    found
}

fn is_zone(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let [area, middle @ .., last] = parts.as_slice() else { return false };
    let is_letters = |part: &&str| part.len() > 1 && part.bytes().all(|b| b.is_ascii_lowercase());
    let is_end = matches!(last.as_bytes(), [digit, letter]
        if digit.is_ascii_digit() && letter.is_ascii_lowercase());
    area.len() == 2
        && !middle.is_empty()
        && middle.iter().all(is_letters)
        && is_letters(area)
        && is_end
}

fn region_of(zones: &[Evidence]) -> Option<Evidence> {
    let regions = zones.iter().map(|zone| Evidence {
        value: zone.value[..zone.value.len() - 1].to_owned(),
        file: zone.file.clone(),
    });
    only(regions.collect())
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn kustomizations(tree: &Tree) -> BTreeSet<String> {
    let (mut all, mut bases) = (BTreeSet::new(), BTreeSet::new());
    for file in tree.files.iter().filter(|file| KUSTOMIZATION.contains(&name(&file.path))) {
        let directory = parent(&file.path);
        let references =
            file.content.as_ref().map(|bytes| kustomization_references(bytes)).unwrap_or_default();
        if !references.is_component {
            all.insert(directory.to_owned());
        }
        bases.extend(references.bases.iter().filter_map(|base| normal_path(directory, base)));
    }
    all.difference(&bases).cloned().collect()
}

fn charts(tree: &Tree) -> BTreeSet<String> {
    let files = tree.files.iter().map(|file| &*file.path);
    let all: BTreeSet<String> = files
        .filter(|path| matches!(name(path), "Chart.yaml" | "Chart.yml"))
        .map(|path| parent(path).to_owned())
        .collect();
    let is_inner = |chart: &String| {
        let inside = |outer: &String| {
            let start =
                if outer.is_empty() { "charts/".to_owned() } else { format!("{outer}/charts/") };
            chart.starts_with(&start)
        };
        all.iter().any(inside)
    };
    all.iter().filter(|chart| !is_inner(chart)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(files: &[(&str, &str)]) -> Detected {
        let file = |(path, text): &(&str, &str)| TreeFile {
            path: (*path).into(),
            content: Ok(text.as_bytes().into()),
        };
        Detected::from_tree(&Tree { files: files.iter().map(file).collect() })
    }

    #[test]
    fn cluster_config_names_cluster_and_region() {
        let config = "kind: ClusterConfig\nmetadata:\n  name: prod # ours\n  region: eu-west-1\n\
                      managedNodeGroups:\n- name: web\n  availabilityZones: [eu-west-1b]\n";
        let found = detect(&[("cluster.yaml", config)]);
        let evidence = |value: &str| {
            Some(Evidence { value: value.to_owned(), file: "cluster.yaml".to_owned() })
        };
        assert_eq!((found.cluster, found.region), (evidence("prod"), evidence("eu-west-1")));
        assert_eq!(found.zones.into_iter().collect::<Vec<_>>(), ["eu-west-1b"]);
    }

    #[test]
    fn two_names_are_no_evidence() {
        let tag = |name: &str| format!("tags:\n  karpenter.sh/discovery: {name}\n");
        let (one, two) = (tag("one"), tag("two"));
        assert!(detect(&[("a.yaml", &one), ("b.yaml", &two)]).cluster.is_none());
        assert_eq!(
            detect(&[("a.yaml", &one)]).cluster.map(|found| found.value).as_deref(),
            Some("one")
        );
        assert!(detect(&[("a.yaml", &tag("${NAME}"))]).cluster.is_none());
    }

    #[test]
    fn bases_and_subcharts_are_not_sources() {
        let found = detect(&[
            ("base/kustomization.yaml", "resources: [a.yaml]\n"),
            ("charts/shop/Chart.yaml", "name: shop\n"),
            ("charts/shop/charts/db/Chart.yaml", "name: db\n"),
            ("prod/kustomization.yaml", "resources: [../base]\n"),
        ]);
        assert_eq!(found.kustomizations.into_iter().collect::<Vec<_>>(), ["prod"]);
        assert_eq!(found.charts.into_iter().collect::<Vec<_>>(), ["charts/shop"]);
    }
}
