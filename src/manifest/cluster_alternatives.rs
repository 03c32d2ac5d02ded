//! Parts of a repository that belong to different clusters. A fleet reads one of them.
//!
//! Three layouts are known: directories below `clusters`, overlays that exclude each other, and
//! destinations of Argo CD. Settings choose between them; without a choice, a problem names the
//! alternatives and the settings.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::cluster_directories::cluster_directories;
use super::delivery::IN_CLUSTER;
use super::manifest_sources::{DeliverySources, SourceContext};
use super::manifest_text::sorted_by_path;
use super::repository_layout::RepositoryLayout;
use super::settings::is_within;
use super::source_area::source_areas;
use crate::model::code::Code;
use crate::model::desired::{Desired, FLEET_FILE, Fleet, Problem, RenderResults, Tree};
use crate::model::ids::Origin;
use crate::model::shell::quote_word;

/// Alternatives named in a message.
const NAMED_MAX: usize = 5;

/// Parts of a repository that exclude each other: each cluster uses one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternatives {
    /// What they are.
    pub kind: AlternativesKind,
    /// Directories of each alternative, by its name.
    pub choices: BTreeMap<String, BTreeSet<String>>,
}

/// The layout that separates clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlternativesKind {
    /// Directories below `clusters`.
    Directories,
    /// Overlays that define the same objects.
    Overlays {
        /// One of these objects.
        object: String,
        /// The evidence that they are of different clusters.
        evidence: OverlayEvidence,
    },
    /// Destinations of Argo CD.
    Destinations,
}

/// The evidence that overlays are of different clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlayEvidence {
    /// A cluster can have each object only once.
    SameObjects,
    /// Each overlay has the same workloads in a namespace of its own, and is named after an
    /// environment.
    Environments,
    /// Each overlay has the same workloads in a namespace of its own. One cluster may have all of
    /// them, as tenants.
    Namespaces,
}

impl Alternatives {
    /// Returns the alternative that `name` means: its own name, or the only one that is a part of
    /// `name`, as `prod` is of `acme-prod`.
    pub fn choice_of(&self, name: &str) -> Option<&str> {
        let words = |text: &str| format!("-{}-", text.replace(['/', '.', '_'], "-"));
        let name_words = words(name);
        let of_server = |text: &str| {
            let host = text.split_once("://").map_or(text, |(_, rest)| rest);
            host.split(['.', ':', '/']).next().unwrap_or_default().to_owned()
        };
        let is_exact = |choice: &&str| *choice == name || words(choice) == name_words;
        let is_host = |choice: &&str| choice.contains("://") && of_server(choice) == name;
        let is_part = |choice: &&str| name_words.contains(&words(choice));
        let all = || self.choices.keys().map(String::as_str);
        let only = |is_meant: &dyn Fn(&&str) -> bool| {
            let mut meant = all().filter(|choice| is_meant(choice));
            meant.next().filter(|_| meant.next().is_none())
        };
        all().find(is_exact).or_else(|| only(&is_host)).or_else(|| only(&is_part))
    }

    /// Returns whether one cluster may have all of them. Only their exact name chooses one.
    pub fn is_optional(&self) -> bool {
        matches!(
            self.kind,
            AlternativesKind::Overlays { evidence: OverlayEvidence::Namespaces, .. }
        )
    }

    /// Returns whether an alternative has one of these names.
    pub(super) fn shares_choice(&self, choices: &BTreeMap<String, String>) -> bool {
        choices.keys().any(|name| self.choices.contains_key(name))
    }

    /// Adds a directory to each of the named alternatives.
    pub(super) fn extend(&mut self, choices: BTreeMap<String, String>) {
        for (name, directory) in choices {
            self.choices.entry(name).or_default().insert(directory);
        }
    }

    /// Returns the alternative whose directories contain the file at `path`.
    fn choice_at(&self, path: &str) -> Option<&str> {
        let is_inside = |directories: &BTreeSet<String>| {
            directories.iter().any(|directory| is_within(path, directory))
        };
        let mut all = self.choices.iter();
        all.find(|(_, directories)| is_inside(directories)).map(|(name, _)| name.as_str())
    }

    /// Returns whether they are overlays.
    pub fn is_overlays(&self) -> bool {
        matches!(self.kind, AlternativesKind::Overlays { .. })
    }

    /// Returns whether a kustomization is one of these overlays.
    pub(super) fn has_overlay(&self, directory: &str) -> bool {
        self.is_overlays()
            && self.choices.values().any(|directories| directories.contains(directory))
    }

    /// Returns the largest directory above `directory` that holds no other alternative.
    pub fn own_root<'d>(&self, name: &str, directory: &'d str) -> &'d str {
        let others = || self.choices.iter().filter(|(other, _)| *other != name);
        let is_own = |root: &&str| {
            !others().flat_map(|(_, directories)| directories).any(|path| is_within(path, root))
        };
        let above = directory.match_indices('/').map(|(at, _)| &directory[..at]);
        above.chain([directory]).find(is_own).unwrap_or(directory)
    }

    /// Returns the names of the alternatives for a message.
    pub fn named(&self) -> String {
        named(self.choices.keys().map(String::as_str))
    }

    /// Returns the alternative that a hint names: the first that is not Argo CD's own cluster.
    pub fn example(&self) -> &str {
        let mut all = self.choices.keys().map(String::as_str);
        all.find(|name| !IN_CLUSTER.contains(name)).unwrap_or_default()
    }

    /// Returns the problem that the settings do not choose. `shared` is the name of a hint for several
    /// overlays.
    fn problem(&self, fleet: &Fleet, shared: Option<&str>) -> Problem {
        let origin = fleet.origin.clone().unwrap_or_else(|| Origin::new(FLEET_FILE, 0));
        let shared = shared.filter(|_| self.is_overlays());
        let shared = shared.and_then(|name| Some((name, self.choice_of(name)?)));
        let (name, choice) = shared.unwrap_or_else(|| {
            let own = self.choice_of(&fleet.cluster.name).unwrap_or_else(|| self.example());
            (own, own)
        });
        let directories = self.choices.get(choice);
        let path = directories.and_then(BTreeSet::first).map_or(".", String::as_str);
        let force = if fleet.origin.is_some() { " --force" } else { "" };
        let argument = quote_word(name);
        let init = format!("`fleetwright init --name {argument}{force}` chooses one");
        let (message, hint, code) = match &self.kind {
            AlternativesKind::Directories => (
                format!(
                    "{} seem to be different clusters, and are read as one",
                    named(self.choices.values().flatten().map(String::as_str))
                ),
                format!(
                    "list the directory of this cluster under spec.sources, such as `- path: {path}`"
                ),
                Code::SeveralClusters,
            ),
            AlternativesKind::Overlays { object, evidence } => {
                let all = self.named();
                let (message, several) = match evidence {
                    OverlayEvidence::SameObjects => (
                        format!(
                            "the overlays {all} exclude each other: each defines {object}, and \
                             none is chosen"
                        ),
                        "",
                    ),
                    OverlayEvidence::Environments | OverlayEvidence::Namespaces => (
                        format!(
                            "the overlays {all} seem to be of different clusters: each has \
                             {object} in a namespace of its own, and none is chosen"
                        ),
                        ". List each that this cluster has",
                    ),
                };
                let hint = format!(
                    "{init}; so does `- {{ path: {path}, render: kustomize }}` under spec.sources, \
                     next to the paths of plain manifests{several}"
                );
                (message, hint, Code::SeveralOverlays)
            }
            AlternativesKind::Destinations => (
                format!(
                    "Argo CD delivers to {}, and the settings do not say which is this cluster",
                    self.named()
                ),
                format!(
                    "`fleetwright init --destination {argument}{force}` writes spec.delivery: list \
                     this cluster under `clusters`, and the rest under `otherClusters`"
                ),
                Code::SeveralDestinations,
            ),
        };
        Problem::warning(origin, "Fleet", message).hint(hint).code(code)
    }
}

/// Returns names for a message: the first few, and how many more there are.
pub(crate) fn named<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.collect();
    let more = match names.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown: Vec<&str> = names.into_iter().take(NAMED_MAX).collect();
    format!("{}{more}", shown.join(", "))
}

/// Returns the name that chooses between most of the overlays `all`.
pub fn shared_example<'a>(all: &[&'a Alternatives]) -> Option<&'a str> {
    let fitting = |name: &str| all.iter().filter(|one| one.choice_of(name).is_some()).count();
    let names = all.iter().flat_map(|one| one.choices.keys().map(String::as_str));
    names.min_by_key(|name| Reverse(fitting(name)))
}

/// Returns the alternatives between which the settings have to choose, and do not.
pub(super) fn open_alternatives(
    context: &SourceContext<'_>,
    sources: &DeliverySources,
) -> Vec<Alternatives> {
    let mut all = all_alternatives(context, sources);
    all.retain(|alternatives| !alternatives.is_optional());
    all
}

/// Returns the alternatives between which the settings do not choose.
fn all_alternatives(context: &SourceContext<'_>, sources: &DeliverySources) -> Vec<Alternatives> {
    let SourceContext { tree, fleet, .. } = context;
    let directories = cluster_directories(tree);
    let mut all = Vec::new();
    if fleet.sources.is_empty() && !directories.is_empty() {
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut choices: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for path in directories {
            choices.entry(name(&path)).or_default().insert(path);
        }
        all.push(Alternatives { kind: AlternativesKind::Directories, choices });
    }
    all.extend(sources.exclusive_overlays(context));
    let delivery = &fleet.delivery;
    if delivery.clusters.is_empty() && delivery.other_clusters.is_empty() {
        let choices = sources.destinations();
        let is_open =
            choices.len() > 1 && choices.keys().any(|name| !IN_CLUSTER.contains(&&**name));
        let kind = AlternativesKind::Destinations;
        all.extend(is_open.then(|| Alternatives { kind, choices: choices.clone() }));
    }
    all
}

/// Returns the alternatives of a tree without settings, as far as the renderings allow.
pub fn cluster_alternatives(tree: &Tree, renderings: &RenderResults) -> Vec<Alternatives> {
    let tree = &*sorted_by_path(tree);
    let fleet = Fleet::default();
    let (layout, areas) = (RepositoryLayout::from_tree(tree), source_areas(&fleet));
    let context = SourceContext::new(tree, &fleet, &layout, &areas, renderings);
    all_alternatives(&context, &DeliverySources::discover(&context))
}

/// Adds a problem for all alternatives. It is an error if an object differs between two of them, and
/// replaces the problems of these objects.
pub(super) fn report(all: &[Alternatives], fleet: &Fleet, desired: &mut Desired) {
    let overlays: Vec<&Alternatives> = all.iter().filter(|one| one.is_overlays()).collect();
    // A run of `init` takes one name.
    let own = &*fleet.cluster.name;
    let fits = overlays.iter().any(|one| one.choice_of(own).is_some());
    let shared = if fits { Some(own) } else { shared_example(&overlays) };
    for alternatives in all {
        let before = desired.problems.len();
        desired.problems.retain(|problem| !is_between(alternatives, problem));
        let mut problem = alternatives.problem(fleet, shared);
        if desired.problems.len() < before {
            problem.severity = crate::model::desired::Severity::Error;
        }
        desired.problems.push(problem);
    }
}

/// Returns whether a problem is an object that two alternatives define differently.
fn is_between(alternatives: &Alternatives, problem: &Problem) -> bool {
    if problem.code != Some(Code::DuplicateObject) {
        return false;
    }
    let here = alternatives.choice_at(&problem.origin.file);
    let there = problem.other.as_ref().and_then(|other| alternatives.choice_at(&other.file));
    here.is_some() && there.is_some() && here != there
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alternatives(names: &[&str]) -> Alternatives {
        let choice = |name: &&str| ((*name).to_owned(), BTreeSet::from([format!("o/{name}")]));
        Alternatives {
            kind: AlternativesKind::Destinations,
            choices: names.iter().map(choice).collect(),
        }
    }

    #[test]
    fn name_of_a_cluster_means_one_alternative() {
        let all = alternatives(&["dev", "prod", "prod/eu", "https://hub.example.com"]);
        assert_eq!(all.choice_of("prod"), Some("prod"));
        assert_eq!(all.choice_of("prod-eu"), Some("prod/eu"));
        assert_eq!(all.choice_of("acme-dev"), Some("dev"));
        assert_eq!(all.choice_of("hub"), Some("https://hub.example.com"));
        assert_eq!(all.choice_of("acme-prod-eu"), None, "two alternatives are parts of it");
        assert_eq!(all.choice_of("test"), None);
    }

    #[test]
    fn shared_example_chooses_between_most_alternatives() {
        let (web, db) = (alternatives(&["dev", "prod"]), alternatives(&["eu", "prod-us"]));
        let cache = alternatives(&["a", "prod"]);
        assert_eq!(shared_example(&[&web, &cache]), Some("prod"));
        assert_eq!(shared_example(&[&web, &db]), Some("prod-us"));
        assert_eq!(shared_example(&[&web]), Some("dev"));
        assert_eq!(shared_example(&[]), None);
    }

    #[test]
    fn root_of_an_alternative_holds_no_other() {
        let overlay = |names: &[&str]| {
            let choice = |path: &&str| ((*path).to_owned(), BTreeSet::from([(*path).to_owned()]));
            let choices = names.iter().map(choice).collect();
            Alternatives { kind: AlternativesKind::Destinations, choices }
        };
        let root = |paths: &[&'static str]| overlay(paths).own_root(paths[0], paths[0]);
        assert_eq!(root(&["eu/apps/web", "us/apps/web"]), "eu");
        assert_eq!(root(&["k8s/staging/web", "k8s/prod/web"]), "k8s/staging");
        assert_eq!(root(&["o/dev", "o/prod/eu"]), "o/dev");
        assert_eq!(root(&["o/prod", "o/prod/eu"]), "o/prod");
    }

    #[test]
    fn many_alternatives_are_counted() {
        let all = alternatives(&["a", "b", "c", "d", "e", "f", "g"]);
        assert_eq!(all.named(), "a, b, c, d, e and 2 more");
    }
}
