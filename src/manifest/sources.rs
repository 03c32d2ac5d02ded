//! Where the manifests of a tree come from: its files as they are, or by way of whoever delivers
//! them.
//!
//! Deliverers are found in files, and in what other deliverers bring; the search goes round until
//! nothing new comes. A file that somebody delivers is read in that way alone: its patches and
//! bases are no workloads of their own. Whatever is not followed to its end is unresolved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::classify::{Class, Deliverer, classify};
use super::collect::Collected;
use super::decode::{Namespaces, PLAIN};
use super::delivery::{Around, ConfigMap, Content, Delivery, Parcel, stated_parcel};
use super::fleet::{Fleet, is_below};
use super::layout::{Layout, directory};
use super::meta::{Place, shown};
use super::model::{Tree, TreeFile};
use super::order::{Order, Recipe, Rendered, Renderings};
use super::read::{Area, Form, Unit, area, areas, is_settings, sorted, with_documents};
use super::rendered::{Places, Written};
use super::yaml::{self, Node, Value};
use crate::ids::Origin;

/// How often deliverers may lead to further ones before the search ends.
const ROUNDS_MAX: usize = 12;

/// Longest text that is taken for a path.
const PATH_BYTES_MAX: usize = 1_024;

/// Returns what tools are to render before `tree` can be read as a whole, ascending; orders that
/// `renderings` answers are left out. What they give may lead to more.
#[must_use]
pub fn orders(tree: &Tree, fleet: &Fleet, renderings: &Renderings) -> Vec<Order> {
    let tree = &*sorted(tree);
    let (layout, areas) = (Layout::of(tree), areas(fleet));
    let sources = Sources::of(&Ground::new(tree, fleet, &layout, &areas, renderings));
    let orders: BTreeSet<Order> = sources.orders().cloned().collect();
    orders.into_iter().filter(|order| !renderings.done.contains_key(order)).collect()
}

/// Returns every text of a YAML file that may be a path, as written; `KEY=PATH` gives both.
#[must_use]
pub fn paths_in(bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(text) = yaml::decode(bytes) else { return found };
    let loaded = yaml::load(&text);
    let mut open: Vec<&Node<'_>> = loaded.documents.iter().map(|doc| &doc.root).collect();
    while let Some(node) = open.pop() {
        match &node.value {
            Value::Map(entries) => open.extend(entries.iter().map(|entry| &entry.value)),
            Value::Seq(items) => open.extend(items),
            Value::Tagged(_, inner) => open.push(inner),
            Value::Plain(text) | Value::Quoted(text) => {
                if text.is_empty() || text.len() > PATH_BYTES_MAX || text.contains('\n') {
                    continue;
                }
                found.push(text.to_string());
                found.extend(text.split_once('=').map(|(_, path)| path.to_owned()));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// A text of the tree, or why it is not read by itself.
pub(super) enum Visit<'a> {
    Unit(Unit<'a>),
    LeftOut(&'a TreeFile, &'static str),
}

/// Who delivers what.
#[derive(Debug, PartialEq)]
pub(super) struct Sources {
    deliveries: Vec<Delivery>,
}

/// What the search for deliverers, and the reading after it, go over.
#[derive(Debug)]
pub(super) struct Ground<'a> {
    pub(super) tree: &'a Tree,
    pub(super) fleet: &'a Fleet,
    pub(super) layout: &'a Layout,
    pub(super) areas: &'a [Area],
    pub(super) renderings: &'a Renderings,
    written: Written<'a>,
}

impl<'a> Ground<'a> {
    pub(super) fn new(
        tree: &'a Tree,
        fleet: &'a Fleet,
        layout: &'a Layout,
        areas: &'a [Area],
        renderings: &'a Renderings,
    ) -> Self {
        Self { tree, fleet, layout, areas, renderings, written: Written::of(tree) }
    }
}

/// What a file may hold that matters to the search.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    /// A deliverer, or a repository.
    delivers: bool,
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
    repositories: BTreeMap<(String, String), String>,
    config_maps: BTreeMap<(String, String), ConfigMap>,
}

impl Sources {
    /// Follows the deliverers as far as the renderings allow.
    pub(super) fn of(ground: &Ground<'_>) -> Self {
        let (stated, marked) = (ground.stated(), ground.marked());
        let mut sources = Self { deliveries: stated.clone() };
        if !marked.values().any(|marks| marks.delivers) && stated.is_empty() {
            return sources;
        }
        for _ in 0..ROUNDS_MAX {
            let found = ground.found(&sources, &marked);
            let next = Self { deliveries: stated.iter().cloned().chain(found).collect() };
            if next == sources {
                break;
            }
            sources = next;
        }
        sources
    }

    /// Returns whether the deliverer `object` is followed, or known to be unresolved.
    pub(super) fn follows(&self, object: &str) -> bool {
        self.deliveries.iter().any(|delivery| delivery.object == object)
    }

    fn parcels(&self) -> impl Iterator<Item = (&Delivery, &Parcel)> {
        self.deliveries.iter().flat_map(|delivery| {
            delivery.parcels.iter().flatten().map(move |parcel| (delivery, parcel))
        })
    }

    fn orders(&self) -> impl Iterator<Item = &Order> {
        self.parcels().filter_map(|(_, parcel)| match &parcel.content {
            Content::Rendered(order) => Some(order),
            Content::Files(_) => None,
        })
    }

    /// Hands on every text to read: files as they are, then what is delivered.
    pub(super) fn units(&self, ground: &Ground<'_>, take: &mut dyn FnMut(Visit<'_>)) {
        let Ground { tree, areas, renderings, .. } = ground;
        let taken = Taken::of(self, renderings);
        for file in &tree.files {
            let Some(area) = area(areas, &file.path) else { continue };
            // What cannot be read is an error whatever its name: it may be a directory.
            let form = match (&file.content, Form::of(&file.path)) {
                (Err(_), form) => form.unwrap_or(Form::Yaml),
                (Ok(_), Some(form)) => form,
                (Ok(_), None) => continue,
            };
            if is_settings(&file.path) {
                continue;
            }
            if file.content.is_ok() {
                if area.rendered {
                    take(Visit::LeftOut(file, "part of a source that is rendered"));
                    continue;
                }
                if taken.holds(&file.path) {
                    take(Visit::LeftOut(file, "delivered, not read by itself"));
                    continue;
                }
            }
            let mut unit = Unit::plain(file, form, &area.vars);
            unit.namespaces.default = area.namespace.as_deref().unwrap_or(PLAIN.default);
            take(Visit::Unit(unit));
        }
        for (delivery, parcel) in self.parcels() {
            delivered(ground, delivery, parcel, take);
        }
    }

    /// Notes what is not followed to its end, and what nobody asked to render.
    pub(super) fn report(&self, ground: &Ground<'_>, into: &mut Collected) {
        let Ground { fleet, layout, areas, renderings, .. } = ground;
        for Delivery { origin, object, parcels, .. } in &self.deliveries {
            for parcel in parcels {
                let reason = match parcel {
                    Err(reason) => reason,
                    Ok(Parcel { content: Content::Rendered(order), .. }) => {
                        match renderings.done.get(order) {
                            Some(Ok(_)) => continue,
                            Some(Err(reason)) => reason,
                            None => &format!("{} was not run on it", order.recipe.as_str()),
                        }
                    }
                    Ok(Parcel { content: Content::Files(_), .. }) => continue,
                };
                into.unresolved(origin.clone(), object.clone(), reason.clone());
            }
        }
        let taken = Taken::of(self, renderings);
        let is_plain =
            |path: &str| area(areas, path).is_some_and(|a| !a.rendered) && !taken.holds(path);
        for (chart, path) in layout.charts().filter(|(_, path)| is_plain(path)) {
            let object = format!("Helm chart {}", or_root(chart));
            into.unresolved(whole(path), object, ask(fleet, chart, "helm"));
        }
        for (path, kustomization) in &layout.kustomizations {
            if !is_plain(path) || layout.is_base(path) {
                continue;
            }
            let object = format!("Kustomization {}", or_root(directory(path)));
            if kustomization.remote {
                let reason = "takes charts or resources from elsewhere";
                into.unresolved(whole(path), object, reason);
            } else if !kustomization.changes.is_empty() {
                into.unresolved(whole(path), object, ask(fleet, directory(path), "kustomize"));
            }
        }
    }
}

/// Says what to add so that the directory `path` is rendered.
fn ask(fleet: &Fleet, path: &str, render: &str) -> String {
    let entry = format!("- {{ path: {}, render: {render} }}", or_root(path));
    let rest = if fleet.sources.is_empty() { ", beside the paths to read as they are" } else { "" };
    format!("no source renders it; add `{entry}` to `spec.sources` in fleetwright.yaml{rest}")
}

/// Returns a directory as it is shown: the root has no name of its own.
fn or_root(directory: &str) -> &str {
    if directory.is_empty() { "." } else { directory }
}

fn whole(path: &Arc<str>) -> Origin {
    Origin { file: Arc::clone(path), line: 0 }
}

/// Hands on the texts of one parcel.
fn delivered(
    ground: &Ground<'_>,
    delivery: &Delivery,
    parcel: &Parcel,
    take: &mut dyn FnMut(Visit<'_>),
) {
    let Ground { tree, layout, renderings, written, .. } = ground;
    let namespaces = Namespaces {
        default: parcel.namespace.as_deref().unwrap_or(PLAIN.default),
        target: parcel.target_namespace.as_deref(),
    };
    let by = Some(delivery.object.as_str());
    match &parcel.content {
        Content::Files(files) => {
            let inside = tree.files.iter().filter(|file| files.holds(&file.path));
            for file in inside.filter(|file| layout.excludes(&file.path).is_none()) {
                let Some(form) = Form::of(&file.path) else { continue };
                let plain = Unit::plain(file, form, &parcel.vars);
                take(Visit::Unit(Unit { namespaces, by, ..plain }));
            }
        }
        Content::Rendered(order) => {
            let Some(Ok(Rendered { output, .. })) = renderings.done.get(order) else { return };
            let text = String::from_utf8_lossy(output);
            let places = Places::of(order, &text, written);
            let path = format!("{} ({})", or_root(&order.path), order.recipe.as_str());
            let file = TreeFile { path: path.into(), content: Ok(Arc::clone(output)) };
            let plain = Unit::plain(&file, Form::Yaml, &parcel.vars);
            take(Visit::Unit(Unit { namespaces, by, places: Some(&places), ..plain }));
        }
    }
}

/// The files that somebody delivers.
struct Taken<'a> {
    /// Files by path, with the deliveries that take them.
    files: BTreeMap<&'a str, Vec<&'a Delivery>>,
    /// Directories and patterns.
    parcels: Vec<(&'a Delivery, &'a Parcel)>,
}

impl<'a> Taken<'a> {
    fn of(sources: &'a Sources, renderings: &'a Renderings) -> Self {
        let mut taken = Self { files: BTreeMap::new(), parcels: Vec::new() };
        for (delivery, parcel) in sources.parcels() {
            let order = match &parcel.content {
                Content::Rendered(order) => order,
                Content::Files(_) => {
                    taken.parcels.push((delivery, parcel));
                    continue;
                }
            };
            let Some(Ok(rendered)) = renderings.done.get(order) else {
                taken.parcels.push((delivery, parcel));
                continue;
            };
            for file in &rendered.files {
                taken.files.entry(file.as_str()).or_default().push(delivery);
            }
        }
        taken
    }

    /// Returns whether `path` is delivered by something that is declared elsewhere: what declares a
    /// deliverer stays known, also where that one delivers itself.
    fn holds(&self, path: &str) -> bool {
        let elsewhere = |delivery: &Delivery| *delivery.origin.file != *path;
        let listed = self.files.get(path);
        listed.is_some_and(|by| by.iter().any(|delivery| elsewhere(delivery)))
            || self.parcels.iter().any(|(by, parcel)| covers(parcel, path) && elsewhere(by))
    }
}

/// Returns whether the file at `path` is part of a parcel whose files are not known one by one.
fn covers(parcel: &Parcel, path: &str) -> bool {
    match &parcel.content {
        Content::Files(files) => files.holds(path),
        Content::Rendered(Order { path: root, recipe: Recipe::Helm(_) }) => is_below(path, root),
        Content::Rendered(Order { path: root, recipe: Recipe::Kustomize(_) }) => {
            directory(path) == root
        }
    }
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
        }
    }

    /// Returns what the settings ask to render.
    fn stated(&self) -> Vec<Delivery> {
        let stated = self.fleet.sources.iter().zip(self.areas).filter_map(|(source, area)| {
            let parcel = stated_parcel(source, &area.vars)?;
            let object = format!("source {}", or_root(&source.path));
            let origin = source.origin.clone();
            Some(Delivery { origin, object, parcels: vec![Ok(parcel)], via: None })
        });
        stated.collect()
    }

    /// Returns the files that the search must look into.
    fn marked(&self) -> BTreeMap<&str, Marks> {
        let marks = |file: &TreeFile| match &file.content {
            Ok(bytes) => Marks::of(bytes),
            Err(_) => Marks::default(),
        };
        let all = self.tree.files.iter().map(|file| (&*file.path, marks(file)));
        all.filter(|(_, marks)| marks.any()).collect()
    }

    /// Returns the deliverers in every text that is known through `sources`.
    fn found(&self, sources: &Sources, marked: &BTreeMap<&str, Marks>) -> Vec<Delivery> {
        let mut look = Look::default();
        self.each(sources, marked, &mut |_, root, namespace| look.object(root, namespace));
        let around = self.around(look);
        let mut found: Vec<Delivery> = Vec::new();
        self.each(sources, marked, &mut |unit, root, namespace| {
            let Class::Delivers(deliverer, _) = classify(root) else { return };
            let parcels = around.follow(deliverer, root, namespace);
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
    fn each(
        &self,
        sources: &Sources,
        marked: &BTreeMap<&str, Marks>,
        take: &mut dyn FnMut(Unit<'_>, &Node<'_>, &str),
    ) {
        let mut visit = |visit: Visit<'_>| {
            let Visit::Unit(unit) = visit else { return };
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
                    take(unit, root, unit.namespaces.of(own));
                }
            });
        };
        sources.units(self, &mut visit);
    }
}

impl Look {
    /// Keeps what deliverers may refer to.
    fn object(&mut self, root: &Node<'_>, namespace: &str) {
        let text = |node: Option<&Node<'_>>| node.and_then(Node::text).map(str::to_owned);
        let kind = text(root.get("kind")).unwrap_or_default();
        let Some(name) = text(root.get("metadata").and_then(|m| m.get("name"))) else { return };
        let key = (namespace.to_owned(), name);
        match &*kind {
            "GitRepository" => {
                let url = root.get("spec").and_then(|spec| spec.get("url"));
                self.repositories.extend(text(url).map(|url| (key, url)));
            }
            "ConfigMap" => {
                let Some(Value::Map(entries)) = root.get("data").map(|data| &data.value) else {
                    return;
                };
                let pair = |entry: &yaml::Entry<'_>| {
                    Some((entry.key.to_string(), entry.value.text()?.to_owned()))
                };
                self.config_maps.insert(key, entries.iter().filter_map(pair).collect());
            }
            _ => {}
        }
    }
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
