//! The search for deliverers: in files, and in what other deliverers bring.

use std::collections::{BTreeMap, BTreeSet};

use super::super::classify::{Class, Deliverer, classify};
use super::super::decode::Namespaces;
use super::super::delivery::{
    Around, ConfigMap, Content, Delivery, Known, Parcel, Referred, Repository, Used, Whose,
    stated_parcel,
};
use super::super::meta::{Place, shown};
use super::super::model::TreeFile;
use super::super::read::{Unit, with_documents};
use super::super::yaml::{self, Node, Value};
use super::taken::covers;
use super::{Ground, Sources, Visit, or_root};

/// What a file may hold that matters to the search.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marks {
    /// A deliverer, or a repository.
    pub(super) delivers: bool,
    /// Values that a deliverer may take.
    config: bool,
}

impl Marks {
    fn of(bytes: &[u8]) -> Self {
        let Ok(text) = yaml::decode(bytes) else { return Self::default() };
        Self {
            delivers: text.contains("argoproj.io/") || text.contains("toolkit.fluxcd.io/"),
            config: text.contains("ConfigMap"),
        }
    }

    fn any(self) -> bool {
        self.delivers || self.config
    }
}

/// What one look at the marked texts gave.
#[derive(Default)]
struct Look {
    repositories: Known<Repository>,
    config_maps: Known<ConfigMap>,
}

impl Ground<'_> {
    fn around(&self, look: Look) -> Around<'_> {
        Around {
            tree: self.tree,
            layout: self.layout,
            fleet: self.fleet,
            home: &self.renderings.home,
            repositories: look.repositories,
            config_maps: look.config_maps,
            used: Used::default(),
        }
    }

    /// Returns what the settings ask to render.
    pub(super) fn stated(&self) -> Vec<Delivery> {
        let stated = self.fleet.sources.iter().zip(self.areas).filter_map(|(source, area)| {
            let parcel = stated_parcel(source, &area.vars)?;
            let object = format!("source {}", or_root(&source.path));
            let origin = source.origin.clone();
            Some(Delivery { origin, object, parcels: vec![Ok(parcel)], via: None })
        });
        stated.collect()
    }

    /// Returns the files that the search must look into.
    pub(super) fn marked(&self) -> BTreeMap<&str, Marks> {
        let marks = |file: &TreeFile| match &file.content {
            Ok(bytes) => Marks::of(bytes),
            Err(_) => Marks::default(),
        };
        let all = self.tree.files.iter().map(|file| (&*file.path, marks(file)));
        all.filter(|(_, marks)| marks.any()).collect()
    }

    /// Returns the deliverers in every text that is known through `sources`.
    pub(super) fn found(&self, sources: &Sources, marked: &BTreeMap<&str, Marks>) -> Vec<Delivery> {
        let mut look = Look::default();
        self.each(sources, marked, &mut |_, root, home| look.object(root, home));
        let around = self.around(look);
        let mut found: Vec<Delivery> = Vec::new();
        self.each(sources, marked, &mut |unit, root, home| {
            let Class::Delivers(deliverer, _) = classify(root) else { return };
            let parcels = around.follow(deliverer, root, home);
            found.push(Delivery {
                origin: unit.origin(root),
                object: named(deliverer, root, unit.namespaces),
                parcels,
                via: unit.by.map(str::to_owned),
            });
        });
        // What delivers itself is met twice: in its file, and among what it delivers.
        let again: BTreeSet<String> =
            found.iter().filter(|d| d.via.is_some()).map(|d| d.object.clone()).collect();
        let delivers_itself = |delivery: &Delivery| {
            let own = delivery.parcels.iter().flatten();
            let mut holds = own.map(|parcel| self.delivers(parcel, &delivery.origin.file));
            delivery.via.is_none() && again.contains(&delivery.object) && holds.any(|held| held)
        };
        found.retain(|delivery| !delivers_itself(delivery));
        found.sort_by(|a, b| (&a.origin, &a.object).cmp(&(&b.origin, &b.object)));
        found.dedup_by(|a, b| a.object == b.object && a.parcels == b.parcels);
        found
    }

    fn delivers(&self, parcel: &Parcel, path: &str) -> bool {
        match &parcel.content {
            Content::Files(files) => files.holds(path),
            Content::Rendered(order) => match self.renderings.done.get(order) {
                Some(Ok(rendered)) => rendered.files.iter().any(|file| file == path),
                Some(Err(_)) | None => covers(parcel, path),
            },
        }
    }

    /// Hands on every object of the texts that may hold a deliverer or what one needs.
    fn each(&self, sources: &Sources, marked: &BTreeMap<&str, Marks>, take: Take<'_>) {
        let mut visit = |visit: Visit<'_>| {
            let (unit, whose) = match visit {
                Visit::Unit(unit) => (unit, Whose::Ours),
                Visit::Theirs(unit) => (unit, Whose::Theirs),
                Visit::LeftOut(..) => return,
            };
            let Ok(bytes) = &unit.file.content else { return };
            let is_marked = match unit.places {
                None => marked.contains_key(&*unit.file.path),
                Some(_) => Marks::of(bytes).any(),
            };
            if !is_marked
                || (unit.places.is_none() && self.layout.excludes(&unit.file.path).is_some())
            {
                return;
            }
            let Ok(text) = yaml::decode(bytes) else { return };
            with_documents(unit.form, &text, unit.vars, |loaded| {
                let mut open: Vec<&Node<'_>> =
                    loaded.documents.iter().rev().map(|doc| &doc.root).collect();
                while let Some(root) = open.pop() {
                    if let (Class::List, Some(Value::Seq(items))) =
                        (classify(root), root.get("items").map(|items| &items.value))
                    {
                        open.extend(items);
                        continue;
                    }
                    let own = root.get("metadata").and_then(|m| m.get("namespace"));
                    let own = own.and_then(Node::text).filter(|text| !text.is_empty());
                    take(unit, root, (whose, unit.namespaces.of(own)));
                }
            });
        };
        sources.units(self, &mut visit);
    }
}

/// Takes an object: the text that it is of, and the cluster and namespace that it lives in.
type Take<'t> = &'t mut dyn FnMut(Unit<'_>, &Node<'_>, (Whose, &str));

impl Look {
    /// Keeps what deliverers of the cluster `home` may refer to.
    fn object(&mut self, root: &Node<'_>, (home, namespace): (Whose, &str)) {
        let text = |node: Option<&Node<'_>>| node.and_then(Node::text).map(str::to_owned);
        let kind = text(root.get("kind")).unwrap_or_default();
        let Some(name) = text(root.get("metadata").and_then(|m| m.get("name"))) else { return };
        let key = (home, namespace.to_owned(), name);
        match &*kind {
            "GitRepository" => {
                if let Some(repository) = repository(root) {
                    keep(&mut self.repositories, key, repository);
                }
            }
            "ConfigMap" => {
                let Some(Value::Map(entries)) = root.get("data").map(|data| &data.value) else {
                    return;
                };
                let pair = |entry: &yaml::Entry<'_>| {
                    Some((entry.key.to_string(), entry.value.text()?.to_owned()))
                };
                keep(&mut self.config_maps, key, entries.iter().filter_map(pair).collect());
            }
            _ => {}
        }
    }
}

/// Keeps an object; of two that say different things, neither counts.
fn keep<T: PartialEq>(all: &mut Known<T>, key: Referred, object: T) {
    let known = all.entry(key);
    let object = Some(object);
    known
        .and_modify(|known| *known = known.take().filter(|known| object.as_ref() == Some(known)))
        .or_insert(object);
}

/// Reads a `GitRepository`. What names a revision most exactly counts, as for Flux itself.
fn repository(root: &Node<'_>) -> Option<Repository> {
    let spec = root.get("spec")?;
    let url = spec.get("url")?.text()?.to_owned();
    let own = |key: &str| {
        let text = spec.get("ref")?.get(key)?.text()?;
        Some(text).filter(|text| !text.is_empty())
    };
    let revision = ["commit", "name", "semver", "tag", "branch"].into_iter().find_map(own);
    // Flux follows `master` where nothing is stated, not what the host calls its default.
    let revision = revision.unwrap_or("master");
    let revision = revision.strip_prefix("refs/heads/").unwrap_or(revision);
    let is_stated = |key: &str| spec.get(key).is_some_and(|node| !node.is_null());
    let changed = match (is_stated("ignore"), is_stated("include")) {
        (true, _) => Some("leaves files out (`ignore`)"),
        (_, true) => Some("takes files of others in (`include`)"),
        (false, false) => None,
    };
    Some(Repository { url, revision: revision.to_owned(), changed })
}

/// Returns a deliverer's name for messages.
fn named(deliverer: Deliverer, root: &Node<'_>, namespaces: Namespaces<'_>) -> String {
    let kind = match deliverer {
        Deliverer::Application => "Application",
        Deliverer::ApplicationSet => "ApplicationSet",
        Deliverer::Kustomization => "Kustomization",
        Deliverer::HelmRelease => "HelmRelease",
    };
    shown(kind, root, Place::Namespaced, namespaces)
}
