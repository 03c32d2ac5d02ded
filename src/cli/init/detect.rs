//! What a directory holds, as far as it is evident from its files.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::manifest::{
    Alternatives, AlternativesKind, KUSTOMIZATION, cluster_directories, is_for_tests, is_object,
    is_within, json_documents, kustomization_references, normal_path, read, release_name,
};
use crate::model::desired::{Fleet, Generation, Pool, Tree, is_settings_file};

/// Key of the tag by which Karpenter finds subnets and security groups of a cluster.
const DISCOVERY: &str = "karpenter.sh/discovery";

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
    /// Parts of the directory that belong to different clusters. `from_tree` does not look for them,
    /// because they need renderers.
    pub(in crate::cli) alternatives: Vec<Alternatives>,
    /// Directories of Helm charts, without subcharts.
    pub(in crate::cli) charts: BTreeSet<String>,
    /// A name for the release of each chart, by the directory of the chart.
    pub(in crate::cli) releases: BTreeMap<String, String>,
    /// `None` if no file or more than one cluster is named.
    pub(in crate::cli) cluster: Option<Evidence>,
    pub(in crate::cli) region: Option<Evidence>,
    /// Zones of the region that the files name.
    pub(in crate::cli) zones: BTreeSet<String>,
}

impl Detected {
    /// Detects the contents of a directory.
    pub(in crate::cli) fn from_tree(tree: &Tree) -> Self {
        let desired = read(tree, &Fleet::default());
        let charts = charts(tree);
        let facts = Facts::from_tree(tree, &charts);
        let Facts { names, discovered, regions, zones, region_fields } = facts;
        // Files that contradict each other are no evidence, and neither are weaker ones then.
        let stated = [regions, regions_of(&zones), region_fields];
        let region = stated.into_iter().find(|found| !found.is_empty()).and_then(only);
        let is_inside =
            |zone: &String| region.as_ref().is_some_and(|region| zone.starts_with(&region.value));
        let is_declared_pool = |pool: &&Pool| pool.generation != Generation::Eksctl;
        Self {
            workloads: desired.workloads.len(),
            // A node group is read as a pool, too.
            pools: desired.pools.values().filter(is_declared_pool).count(),
            node_groups: desired.node_groups.len(),
            kustomizations: kustomizations(tree),
            cluster_directories: delivering_directories(tree),
            alternatives: Vec::new(),
            releases: releases(tree, &charts),
            charts,
            cluster: only(names).or_else(|| only(discovered)),
            zones: zones.into_iter().map(|zone| zone.value).filter(is_inside).collect(),
            region,
        }
    }

    /// Returns whether Argo CD delivers to several clusters.
    pub(in crate::cli) fn has_destinations(&self) -> bool {
        self.alternatives.iter().any(|all| all.kind == AlternativesKind::Destinations)
    }

    /// Returns the only directory that has a part with the name of the cluster, or else the only one
    /// with a part that is in the name, as `production` is in `acme-production`.
    pub(in crate::cli) fn directory_of(&self, name: &str) -> Option<&str> {
        let words = |text: &str| format!("-{}-", text.replace(['.', '_'], "-"));
        let name_words = words(name);
        let shared = self.shared_parts();
        let is_exact = |part: &str| part == name;
        let is_part = |part: &str| !shared.contains(part) && name_words.contains(&words(part));
        self.only_directory(&is_exact).or_else(|| self.only_directory(&is_part))
    }

    fn only_directory(&self, is_meant: &dyn Fn(&str) -> bool) -> Option<&str> {
        let all = self.cluster_directories.iter().map(String::as_str);
        let mut meant = all.filter(|directory| directory.split('/').any(is_meant));
        meant.next().filter(|_| meant.next().is_none())
    }

    /// Returns the parts of paths that every directory of a cluster has.
    fn shared_parts(&self) -> BTreeSet<&str> {
        let mut all = self.cluster_directories.iter().map(|path| path.split('/').collect());
        let first: BTreeSet<&str> = all.next().unwrap_or_default();
        all.fold(first, |shared, own: BTreeSet<&str>| &shared & &own)
    }

    /// Returns a name that means the directory of one cluster.
    pub(in crate::cli) fn example_cluster(&self) -> Option<&str> {
        let directory = self.cluster_directories.first()?;
        let is_name = |part: &&str| self.directory_of(part).is_some();
        directory.rsplit('/').find(is_name).or(Some(directory))
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

/// What the files state about their cluster, with a value for each place.
#[derive(Debug, Default)]
struct Facts {
    /// Names in eksctl's `ClusterConfig`.
    names: Vec<Evidence>,
    /// Values of Karpenter's discovery tag.
    discovered: Vec<Evidence>,
    /// Regions in eksctl's `ClusterConfig`.
    regions: Vec<Evidence>,
    /// Zones in objects, such as `eu-west-1a`.
    zones: Vec<Evidence>,
    /// Values of fields that name a region of AWS.
    region_fields: Vec<Evidence>,
}

impl Facts {
    /// Reads objects, and settings that are no defaults of a chart.
    fn from_tree(tree: &Tree, charts: &BTreeSet<String>) -> Self {
        let mut facts = Self::default();
        let is_input = |path: &str| !is_for_tests(path) && !is_settings_file(path);
        for file in tree.files.iter().filter(|file| is_input(&file.path)) {
            let in_chart = charts.iter().any(|chart| is_within(&file.path, chart));
            for document in json_documents(file) {
                if is_object(&document) || !in_chart {
                    facts.add(&document, &file.path);
                }
            }
        }
        facts
    }

    fn add(&mut self, document: &Json, file: &str) {
        let evidence = |value: &str| Evidence { value: value.to_owned(), file: file.to_owned() };
        let is_object = is_object(document);
        let group = document["apiVersion"].as_str().and_then(|version| version.split('/').next());
        if group == Some("eksctl.io") && document["kind"] == "ClusterConfig" {
            let field = |key: &str| {
                let value = document["metadata"][key].as_str();
                value.filter(|value| is_plain(value)).map(evidence)
            };
            self.names.extend(field("name"));
            self.regions.extend(field("region"));
        }
        visit_texts(document, ["", ""], &mut |keys, text| {
            if is_object && keys[1] == DISCOVERY && is_plain(text) {
                self.discovered.push(evidence(text));
            }
            if is_object && is_zone(text) {
                self.zones.push(evidence(text));
            }
            if is_region_field(keys) && is_zone(&format!("{text}a")) {
                self.region_fields.push(evidence(text));
            }
        });
    }
}

/// Returns whether a text is not empty, no placeholder and no template.
fn is_plain(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !text.is_empty() && text.chars().all(is_plain)
}

/// Visits each text with its key and the key above. Items of a list have the keys of the list, and
/// the value of an environment variable has its name.
fn visit_texts<'j>(
    value: &'j Json,
    keys: [&'j str; 2],
    take: &mut dyn FnMut([&'j str; 2], &'j str),
) {
    match value {
        Json::String(text) => take(keys, text),
        Json::Array(items) => items.iter().for_each(|item| visit_texts(item, keys, take)),
        Json::Object(fields) => {
            let text = |key| fields.get(key).and_then(Json::as_str);
            if let (Some(name), Some(value)) = (text("name"), text("value")) {
                take([keys[1], name], value);
            }
            for (key, value) in fields {
                visit_texts(value, [keys[1], key], take);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Returns whether a field names a region of AWS: `awsRegion` in any spelling, or `region` below
/// `aws`. Other regions may be those of a bucket.
fn is_region_field([above, key]: [&str; 2]) -> bool {
    let plain = key.replace(['-', '_'], "").to_ascii_lowercase();
    plain == "awsregion" || plain == "region" && above.eq_ignore_ascii_case("aws")
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

fn regions_of(zones: &[Evidence]) -> Vec<Evidence> {
    let region = |zone: &Evidence| Evidence {
        value: zone.value[..zone.value.len() - 1].to_owned(),
        file: zone.file.clone(),
    };
    zones.iter().map(region).collect()
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

/// Names of directories that say nothing about their chart.
const CHART_DIRECTORIES: [&str; 5] = ["chart", "charts", "deploy", "helm", "k8s"];

/// Returns a name for the release of each chart. No two charts get the same name.
///
/// A chart gets the first name that no other chart wants: its own, unless it is general, or the
/// last parts of its path, one more each time.
fn releases(tree: &Tree, charts: &BTreeSet<String>) -> BTreeMap<String, String> {
    let all: Vec<(&String, Vec<String>)> =
        charts.iter().map(|chart| (chart, release_names(tree, chart))).collect();
    let mut releases: BTreeMap<String, String> = BTreeMap::new();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let most = all.iter().map(|(_, names)| names.len()).max().unwrap_or(0);
    for rank in 0..most {
        let is_open = |chart: &&String| !releases.contains_key(*chart);
        let open = all.iter().filter(|(chart, _)| is_open(chart));
        let wanted: Vec<(&String, &String)> =
            open.filter_map(|(chart, names)| Some((*chart, names.get(rank)?))).collect();
        let is_unique = |name: &String| {
            !taken.contains(name) && wanted.iter().filter(|(_, other)| *other == name).count() == 1
        };
        let unique: Vec<(String, String)> = wanted
            .iter()
            .filter(|(_, name)| is_unique(name))
            .map(|(chart, name)| ((*chart).clone(), (*name).clone()))
            .collect();
        taken.extend(unique.iter().map(|(_, name)| name.clone()));
        releases.extend(unique);
    }
    // Paths that differ only in characters that a release cannot have.
    for (chart, names) in all {
        let Some(last) = names.last().filter(|_| !releases.contains_key(chart)) else { continue };
        let start: String = last.chars().take(RELEASE_START_MAX).collect();
        let numbered = (2..).map(|number| format!("{start}-{number}"));
        let free = std::iter::once(last.clone()).chain(numbered).find(|name| !taken.contains(name));
        if let Some(name) = free {
            taken.insert(name.clone());
            releases.insert(chart.clone(), name);
        }
    }
    releases
}

/// Most characters of a release before a number: Helm permits 53 in all.
const RELEASE_START_MAX: usize = 48;

/// Returns the names that the release of a chart may have, the best one first.
fn release_names(tree: &Tree, chart: &str) -> Vec<String> {
    let mut files = tree.files.iter().filter(|file| {
        parent(&file.path) == chart && matches!(name(&file.path), "Chart.yaml" | "Chart.yml")
    });
    let stated = files.find_map(|file| {
        let document = json_documents(file).into_iter().next()?;
        document.get("name")?.as_str().map(str::to_owned)
    });
    let is_general = |part: &str| part.is_empty() || CHART_DIRECTORIES.contains(&part);
    let parts: Vec<&str> = chart.split('/').filter(|part| !is_general(part)).collect();
    let own = stated.iter().filter(|name| !is_general(name)).cloned();
    let ends = (1..=parts.len()).map(|count| parts[parts.len() - count..].join("-"));
    // The chart of the repository's root has no path.
    let whole = Some(chart.replace('/', "-")).filter(|path| !path.is_empty());
    let rest = whole.or_else(|| stated.clone());
    own.chain(ends).chain(rest).map(|name| release_name(&name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::TreeFile;

    fn detect(files: &[(&str, &str)]) -> Detected {
        let file = |(path, text): &(&str, &str)| TreeFile {
            path: (*path).into(),
            content: Ok(text.as_bytes().into()),
        };
        Detected::from_tree(&Tree { files: files.iter().map(file).collect() })
    }

    #[test]
    fn cluster_config_names_cluster_and_region() {
        let config = "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata:\n  \
                      name: prod # ours\n  region: eu-west-1\nmanagedNodeGroups:\n- name: web\n  availabilityZones: [eu-west-1b]\n";
        let found = detect(&[("cluster.yaml", config)]);
        let evidence = |value: &str| {
            Some(Evidence { value: value.to_owned(), file: "cluster.yaml".to_owned() })
        };
        assert_eq!((found.pools, found.node_groups), (0, 1));
        assert_eq!((found.cluster, found.region), (evidence("prod"), evidence("eu-west-1")));
        assert_eq!(found.zones.into_iter().collect::<Vec<_>>(), ["eu-west-1b"]);
    }

    #[test]
    fn two_names_are_no_evidence() {
        let tag = |name: &str| {
            format!(
                "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nspec:\n  tags:\n    \
                 karpenter.sh/discovery: {name}\n"
            )
        };
        let (one, two) = (tag("one"), tag("two"));
        assert!(detect(&[("a.yaml", &one), ("b.yaml", &two)]).cluster.is_none());
        assert_eq!(
            detect(&[("a.yaml", &one)]).cluster.map(|found| found.value).as_deref(),
            Some("one")
        );
        assert!(detect(&[("a.yaml", &tag("${NAME}"))]).cluster.is_none());
    }

    #[test]
    fn region_is_that_of_objects_and_region_fields() {
        let region = |files: &[(&str, &str)]| detect(files).region.map(|found| found.value);
        let of = |text: &str| region(&[("a.yaml", text)]);
        let object = "apiVersion: v1\nkind: ConfigMap\n";
        let found = Some("us-east-2".to_owned());
        assert_eq!(of(&format!("{object}zones: [us-east-2a, us-east-2b]\n")), found);
        assert_eq!(of("env: [{name: AWS_REGION, value: us-east-2}]\n"), found);
        assert_eq!(of("settings: {aws: {region: us-east-2}}\n"), found);
        // Prose, values of a chart, other regions and files of tests are none of the cluster.
        let dashboard = "{\"title\": \"queues of us-east-2a\", \"zone\": \"us-east-2a\"}";
        assert_eq!(region(&[("dashboard.json", dashboard)]), None);
        assert_eq!(of(&format!("{object}data: {{text: 'moved to us-east-2a'}}\n")), None);
        assert_eq!(of("zones: [us-east-2a]\nbucket: {region: us-east-2}\n"), None);
        let chart = ("web/Chart.yaml", "name: web\n");
        assert_eq!(region(&[chart, ("web/values.yaml", "awsRegion: us-east-2\n")]), None);
        assert_eq!(region(&[("tests/a.yaml", "awsRegion: us-east-2\n")]), None);
        let other = format!("{object}zone: eu-west-1a\n");
        let fields = "awsRegion: us-east-2\n";
        assert_eq!(region(&[("a.yaml", &other), ("b.yaml", fields)]), Some("eu-west-1".to_owned()));
        let own = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nspec: {zones: [us-east-2a]}\n";
        assert_eq!(region(&[("fleetwright.yaml", own)]), None);
    }

    #[test]
    fn values_name_no_cluster() {
        let values = "nodeClass: {tags: {karpenter.sh/discovery: in-cluster}}\n";
        assert!(detect(&[("values.yaml", values)]).cluster.is_none());
    }

    #[test]
    fn directory_of_a_cluster_is_named_by_any_part_of_its_own() {
        let sync = "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\n";
        let found = detect(&[
            ("prod/k8s/flux-system/gotk-sync.yaml", sync),
            ("staging/k8s/flux-system/gotk-sync.yaml", sync),
        ]);
        assert_eq!(found.directory_of("staging"), Some("staging/k8s"));
        assert_eq!(found.directory_of("acme-staging"), Some("staging/k8s"));
        assert_eq!((found.directory_of("acme"), found.directory_of("prod-staging")), (None, None));
        assert_eq!((found.directory_of("k8s"), found.example_cluster()), (None, Some("prod")));
    }

    #[test]
    fn releases_of_charts_are_unique_names_of_helm() {
        let chart = |name: &str| format!("name: {name}\n");
        let (general, app, web) = (chart("chart"), chart("app"), chart("web"));
        let found = detect(&[
            ("a/web/Chart.yaml", &general),
            ("b/web/chart/Chart.yaml", &general),
            ("c/My_App/Chart.yaml", &app),
            ("d/my-app/Chart.yaml", &app),
            ("e/x/Chart.yaml", &web),
            ("f/g_h/Chart.yaml", &chart("i")),
            ("f/g-h/Chart.yaml", &chart("i")),
            ("Chart.yaml", &chart("root")),
        ]);
        let releases: Vec<(&str, &str)> =
            found.releases.iter().map(|(path, name)| (path.as_str(), name.as_str())).collect();
        assert_eq!(
            releases,
            [
                ("", "root"),
                ("a/web", "a-web"),
                ("b/web/chart", "b-web"),
                ("c/My_App", "c-my-app"),
                ("d/my-app", "d-my-app"),
                ("e/x", "x"),
                ("f/g-h", "f-g-h"),
                ("f/g_h", "f-g-h-2"),
            ]
        );
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
