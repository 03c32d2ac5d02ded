//! Where the manifests of a tree come from: its files as they are, or by way of whoever delivers
//! them.
//!
//! Deliverers are found in files, and in what other deliverers bring; the search goes round until
//! nothing new comes. A file that somebody delivers is read in that way alone: its patches and
//! bases are no workloads of their own. Whatever is not followed to its end is unresolved.

mod report;
mod search;
mod taken;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::decode::{Namespaces, PLAIN};
use super::delivery::{Content, Delivery, Parcel, Whose};
use super::fleet::Fleet;
use super::layout::Layout;
use super::model::{Tree, TreeFile};
use super::order::{Order, Rendered, Renderings};
use super::read::{Area, Form, Unit, area, areas, is_settings, sorted};
use super::rendered::{Places, Written};
use super::yaml::{self, Node, Value};
use taken::Taken;

/// How often deliverers may lead to further ones before the search ends.
const ROUNDS_MAX: usize = 12;

/// Most orders of one tree; twenty times the overlays of the largest repository known to us.
const ORDERS_MAX: usize = 10_000;

/// Longest text that is taken for a path.
const PATH_BYTES_MAX: usize = 1_024;

/// Returns what tools are to render before `tree` can be read as a whole, ascending; orders that
/// `renderings` answers are left out. What they give may lead to more.
#[must_use]
pub fn orders(tree: &Tree, fleet: &Fleet, renderings: &Renderings) -> Vec<Order> {
    let tree = &*sorted(tree);
    let (layout, areas) = (Layout::of(tree), areas(fleet));
    let sources = Sources::of(&Ground::new(tree, fleet, &layout, &areas, renderings));
    let orders: BTreeSet<&Order> = sources.orders().collect();
    let open = orders.into_iter().filter(|order| !renderings.done.contains_key(order));
    // What is left out is not run, and says so.
    open.take(ORDERS_MAX.saturating_sub(renderings.done.len())).cloned().collect()
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
    /// It is for another cluster. What it says of deliverers may matter here all the same.
    Theirs(Unit<'a>),
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
        let ours = self.parcels().filter(|(_, parcel)| parcel.whose == Whose::Ours);
        ours.filter_map(|(_, parcel)| match &parcel.content {
            Content::Rendered(order) => Some(order),
            Content::Files(_) => None,
        })
    }

    /// Hands on every text to read: files as they are, then what is delivered.
    pub(super) fn units(&self, ground: &Ground<'_>, take: &mut dyn FnMut(Visit<'_>)) {
        let Ground { tree, areas, renderings, .. } = ground;
        let taken = Taken::of(self, renderings, ground.layout);
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
            if area.rendered && file.content.is_ok() {
                take(Visit::LeftOut(file, "part of a source that is rendered"));
                continue;
            }
            let mut unit = Unit::plain(file, form, &area.vars);
            unit.namespaces.default = area.namespace.as_deref().unwrap_or(PLAIN.default);
            match taken.holds(&file.path).filter(|_| file.content.is_ok()) {
                None => take(Visit::Unit(unit)),
                Some(Whose::Ours) => {
                    take(Visit::LeftOut(file, "delivered, not read by itself"));
                }
                Some(Whose::Theirs) => take(Visit::Theirs(unit)),
            }
        }
        for (delivery, parcel) in self.parcels().filter(|(_, p)| p.whose == Whose::Ours) {
            delivered(ground, delivery, parcel, take);
        }
    }
}

/// Returns a directory as it is shown: the root has no name of its own.
fn or_root(directory: &str) -> &str {
    if directory.is_empty() { "." } else { directory }
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
