//! Who delivers what: sources that are rendered, and the objects of Argo CD and Flux that point
//! into the same repository.
//!
//! Turns each of them into the directories to read and how, or into the reason why that is not
//! known. It knows the fields of those objects and nothing of the tools; it never guesses: an
//! object whose source, cluster or settings lie outside the tree is unresolved, with the reason.

mod argo;
mod flux;
mod generators;
mod glob;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use super::classify::Deliverer;
use super::fleet::{Fleet, Source, is_below, normal_path};
use super::layout::{Layout, directory};
use super::model::Tree;
use super::order::{Home, Layer, Order, Recipe, Release, Values};
use super::placeholder::Vars;
use super::yaml::{Node, to_json};
use crate::ids::Origin;
use crate::manifest::Renderer;

pub(super) use glob::matches;

/// Something that delivers manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Delivery {
    /// Where it is declared.
    pub(super) origin: Origin,
    /// What it is, such as `Application argocd/shop`.
    pub(super) object: String,
    /// What it delivers, or why that is not known.
    pub(super) parcels: Vec<Result<Parcel, String>>,
    /// What delivers it; `None` for the tree itself.
    pub(super) via: Option<String>,
}

/// Manifests that are delivered together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parcel {
    /// Where they come from.
    pub(super) content: Content,
    /// The namespace of objects that name none.
    pub(super) namespace: Option<String>,
    /// The namespace of every object, whatever it names.
    pub(super) target_namespace: Option<String>,
    /// Values of placeholders.
    pub(super) vars: Vars,
    /// The cluster that they are for.
    pub(super) whose: Whose,
}

/// Which cluster something is for, or lives in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Whose {
    /// This one.
    #[default]
    Ours,
    /// Another one: what is known to be theirs is left out here.
    Theirs,
}

/// Where manifests come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Content {
    /// A tool makes them.
    Rendered(Order),
    /// They are files of the tree.
    Files(Files),
}

/// Files of one directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Files {
    /// The directory below the root.
    pub(super) path: String,
    /// Whether directories below it count.
    pub(super) recurse: bool,
    /// The names that count; empty means every manifest.
    pub(super) include: String,
    /// The names that do not count.
    pub(super) exclude: String,
    /// Directories below it that are delivered in another way.
    pub(super) but: BTreeSet<String>,
}

impl Files {
    /// Returns whether the file at `path` is one of them.
    pub(super) fn holds(&self, path: &str) -> bool {
        let above = directory(path);
        if !is_below(path, &self.path) || (!self.recurse && above != self.path) {
            return false;
        }
        if self.but.iter().any(|but| is_below(path, but)) {
            return false;
        }
        let rest = path.strip_prefix(&self.path).unwrap_or(path).trim_start_matches('/');
        let fits = |pattern: &str| matches(pattern, rest);
        (self.include.is_empty() || fits(&self.include))
            && (self.exclude.is_empty() || !fits(&self.exclude))
    }
}

/// Text values of a `ConfigMap`, by key.
pub(super) type ConfigMap = BTreeMap<String, String>;

/// A `GitRepository`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Repository {
    pub(super) url: String,
    /// The revision that it follows.
    pub(super) revision: String,
    /// Why its files are not those of the repository as it is.
    pub(super) changed: Option<&'static str>,
}

/// An object that deliverers refer to, by the cluster that it lives in, its namespace and its name.
pub(super) type Referred = (Whose, String, String);

/// Objects that deliverers refer to; `None` where two say different things.
pub(super) type Known<T> = BTreeMap<Referred, Option<T>>;

/// Bytes of text that all generators of a tree may make together; far beyond what an API server
/// holds in applications.
const MADE_BYTES_MAX: usize = 64 << 20;

/// How often generators may look through the whole tree.
const LOOKS_MAX: usize = 1_000;

/// What generators have used up of their bounds.
#[derive(Debug, Default)]
pub(super) struct Used {
    bytes: Cell<usize>,
    looks: Cell<usize>,
}

impl Used {
    /// Takes `bytes` of text.
    fn text(&self, bytes: usize) -> Result<(), String> {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        if self.bytes.get() <= MADE_BYTES_MAX {
            return Ok(());
        }
        Err(format!("generators of this tree make more than {MADE_BYTES_MAX} bytes"))
    }

    /// Takes a look through the tree.
    fn look(&self) -> Result<(), String> {
        self.looks.set(self.looks.get().saturating_add(1));
        if self.looks.get() <= LOOKS_MAX {
            return Ok(());
        }
        Err(format!("generators of this tree look through it more than {LOOKS_MAX} times"))
    }
}

/// What is known of the tree while deliverers are followed.
#[derive(Debug)]
pub(super) struct Around<'a> {
    pub(super) tree: &'a Tree,
    pub(super) layout: &'a Layout,
    pub(super) fleet: &'a Fleet,
    pub(super) home: &'a Home,
    /// `GitRepository` objects.
    pub(super) repositories: Known<Repository>,
    /// `ConfigMap` objects.
    pub(super) config_maps: Known<ConfigMap>,
    /// What generators have used up.
    pub(super) used: Used,
}

impl Around<'_> {
    /// Returns what the deliverer at `root`, living in `namespace` of the cluster `home`, delivers.
    pub(super) fn follow(
        &self,
        deliverer: Deliverer,
        root: &Node<'_>,
        (home, namespace): (Whose, &str),
    ) -> Vec<Result<Parcel, String>> {
        match deliverer {
            Deliverer::Application => self.application(root, home),
            Deliverer::ApplicationSet => self.application_set(root, home),
            Deliverer::Kustomization => self.kustomization(root, (home, namespace)),
            Deliverer::HelmRelease => self.helm_release(root, (home, namespace)),
        }
    }

    /// Returns what another cluster gets of the directory `path`: enough to leave it out here.
    fn theirs(&self, path: String) -> Parcel {
        let content = if self.has_chart(&path) {
            Content::Rendered(Order { path, recipe: Recipe::Helm(Release::default()) })
        } else if self.has_kustomization(&path) {
            Content::Rendered(Order { path, recipe: Recipe::Kustomize(Layer::default()) })
        } else {
            Content::Files(Files { path, ..Files::default() })
        };
        Parcel {
            content,
            namespace: None,
            target_namespace: None,
            vars: Vars::new(),
            whose: Whose::Theirs,
        }
    }

    /// Returns which cluster the settings call `name`; `None` where they do not say.
    fn listed(&self, name: &str) -> Option<Whose> {
        let delivery = &self.fleet.delivery;
        if name == self.fleet.cluster.name || holds(&delivery.clusters, name) {
            return Some(Whose::Ours);
        }
        holds(&delivery.other_clusters, name).then_some(Whose::Theirs)
    }

    /// Returns the path below the root of a values file, counted from the root of the repository.
    fn inside_file(&self, file: &str) -> Result<String, String> {
        let outside = || format!("values file {file} is outside the directory that is read");
        let normal = normal_path("", file.trim_start_matches('/')).ok_or_else(outside)?;
        let below = &self.home.below;
        let rest = normal.strip_prefix(below.as_str()).filter(|_| is_below(&normal, below));
        Ok(rest.ok_or_else(outside)?.trim_start_matches('/').to_owned())
    }

    /// Returns the path below the root that `path` is, counted from the root of the repository.
    fn inside(&self, path: &str) -> Result<String, String> {
        let outside = || format!("its path `{path}` is outside the directory that is read");
        let normal = normal_path("", path.trim_start_matches('/')).ok_or_else(outside)?;
        let below = &self.home.below;
        if below.is_empty() {
            return self.there(normal);
        }
        let rest = normal.strip_prefix(below.as_str()).filter(|_| is_below(&normal, below));
        self.there(rest.ok_or_else(outside)?.trim_start_matches('/').to_owned())
    }

    fn there(&self, path: String) -> Result<String, String> {
        if self.tree.files.iter().any(|file| is_below(&file.path, &path)) {
            return Ok(path);
        }
        Err(format!("there are no manifests at its path `{path}`"))
    }

    /// Checks that `url` is this repository.
    fn is_here(&self, url: &str) -> Result<(), String> {
        let own = self.fleet.delivery.repositories.iter().chain(&self.home.repository);
        if own.into_iter().any(|known| same_repository(known, url)) {
            return Ok(());
        }
        let url = super::decode::shorten(url);
        Err(if self.home.repository.is_none() && self.fleet.delivery.repositories.is_empty() {
            format!(
                "whether {url} is this repository is not known; list its URL under \
                 `delivery.repositories` in fleetwright.yaml"
            )
        } else {
            format!("its source {url} is another repository")
        })
    }

    /// Checks that `revision` is the one that is read.
    fn is_this_revision(&self, revision: &str) -> Result<(), String> {
        // What states no revision follows HEAD.
        let revision = if revision.is_empty() { "HEAD" } else { revision };
        let usual = ["main", "master"];
        let own = &self.fleet.delivery.revisions;
        let known = if own.is_empty() { usual.contains(&revision) } else { holds(own, revision) };
        if known || revision == "HEAD" {
            return Ok(());
        }
        Err(format!(
            "it follows revision `{}`, which need not be what is read; list it under \
             `delivery.revisions` in fleetwright.yaml where it is",
            super::decode::shorten(revision)
        ))
    }

    fn has_kustomization(&self, path: &str) -> bool {
        self.layout.kustomization_in(path).is_some()
    }

    fn has_chart(&self, path: &str) -> bool {
        self.layout.is_chart(path)
    }
}

/// Returns what a source of `fleetwright.yaml` delivers; `None` where it holds plain manifests.
pub(super) fn stated_parcel(source: &Source, vars: &Vars) -> Option<Parcel> {
    let renderer = source.render?;
    let recipe = match renderer {
        Renderer::Kustomize => Recipe::Kustomize(Layer::default()),
        Renderer::Helm => Recipe::Helm(Release {
            name: source.release.clone().unwrap_or_else(|| release_name(&source.path)),
            namespace: source.namespace.clone().unwrap_or_else(|| "default".to_owned()),
            values: source.values.iter().cloned().map(Values::File).collect(),
            ..Release::default()
        }),
    };
    Some(Parcel {
        content: Content::Rendered(Order { path: source.path.clone(), recipe }),
        namespace: source.namespace.clone(),
        target_namespace: None,
        vars: vars.clone(),
        whose: Whose::Ours,
    })
}

fn holds(list: &[String], text: &str) -> bool {
    list.iter().any(|item| item == text)
}

/// Returns the release's name that Helm's users give a chart in `path`: the directory's name.
fn release_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let letter = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let name: String = name.to_ascii_lowercase().chars().map(letter).take(53).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "release".to_owned() } else { name.to_owned() }
}

/// Returns whether two URLs name the same repository, whatever the scheme and the user.
fn same_repository(a: &str, b: &str) -> bool {
    fn plain(url: &str) -> String {
        let rest = match url.split_once("://") {
            Some((_, rest)) => rest.to_owned(),
            // `git@host:path` is short for `ssh://git@host/path`.
            None => url.replacen(':', "/", 1),
        };
        let (host, path) = rest.split_once('/').unwrap_or((&rest, ""));
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let host = host.split(':').next().unwrap_or_default();
        let path = path.trim_matches('/');
        let path = path.strip_suffix(".git").unwrap_or(path);
        format!("{}/{path}", host.to_ascii_lowercase())
    }
    plain(a) == plain(b)
}

/// Returns the node at `path` below `node`.
fn at<'n, 't>(node: &'n Node<'t>, path: &[&str]) -> Option<&'n Node<'t>> {
    path.iter().try_fold(node, |node, key| node.get(key)).filter(|node| !node.is_null())
}

/// Returns the text at `path` below `node`, where it is not empty.
fn text<'n>(node: &'n Node<'_>, path: &[&str]) -> Option<&'n str> {
    at(node, path)?.text().filter(|text| !text.is_empty())
}

/// Returns the text that a scalar stands for where only texts are.
fn word(node: &Node<'_>) -> String {
    let json = to_json(node);
    json.as_str().map_or_else(|| json.to_string(), str::to_owned)
}

fn flag(node: &Node<'_>, path: &[&str]) -> bool {
    text(node, path) == Some("true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_generators_of_a_tree_use_up_has_an_end() {
        let used = Used::default();
        assert_eq!((used.text(MADE_BYTES_MAX), used.text(1).is_err()), (Ok(()), true));
        assert!(used.text(usize::MAX).is_err(), "it does not begin anew");
        assert!((0..LOOKS_MAX).all(|_| used.look().is_ok()) && used.look().is_err());
    }
}
