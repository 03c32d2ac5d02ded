//! The walk over the files of a tree, and over what tools made of some of them.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use super::classify::{Class, Object, classify};
use super::collect::Collected;
use super::decode::{Field, Map, Namespaces, PLAIN, Report, Scope};
use super::fleet::{FILE, Fleet, is_below, is_fleet, normal_path};
use super::layout::{Layout, is_kustomization};
use super::meta::{Meta, Place, meta, shown};
use super::model::{Desired, Problem, Severity, Tree, TreeFile};
use super::order::Renderings;
use super::placeholder::{self, Vars};
use super::rendered::Places;
use super::sources::{Ground, Sources, Visit};
use super::yaml::{self, Document, Fault, Loaded, Node, Value};
use super::{cluster, eksctl, karpenter, learned, limits, references, scaling, storage, workload};
use crate::ids::Origin;

/// Reads every manifest of `tree` that the sources of `fleet` name, without any tool.
///
/// The result holds each object once, with everything found wrong on the way, and does not depend
/// on the order of files.
#[must_use]
pub fn read(tree: &Tree, fleet: &Fleet) -> Desired {
    read_rendered(tree, fleet, &Renderings::default())
}

/// Reads every manifest of `tree` that the sources of `fleet` name, with what tools made of some.
///
/// What an order stands for whose result `renderings` does not hold is unresolved.
#[must_use]
pub fn read_rendered(tree: &Tree, fleet: &Fleet, renderings: &Renderings) -> Desired {
    let tree = &*without_world(sorted(tree), fleet);
    let report = Report::default();
    let layout = Layout::of(tree);
    let areas = areas(fleet);
    let ground = Ground::new(tree, fleet, &layout, &areas, renderings);
    let sources = Sources::of(&ground);
    let mut reader = Reader {
        report: &report,
        layout: &layout,
        sources: &sources,
        into: Collected::of(fleet.stated_cluster()),
    };
    sources.units(&ground, &mut |visit| match visit {
        Visit::Unit(unit) => reader.unit(unit),
        Visit::Theirs(unit) => reader.skip(unit.file, 0, "delivered to another cluster"),
        Visit::LeftOut(file, reason) => reader.skip(file, 0, reason),
    });
    sources.report(&ground, &mut reader.into);
    scaling::join(&mut reader.into, &report);
    scaling::fill(&mut reader.into);
    let mut desired = reader.into.into_desired();
    desired.lead = fleet.demand.lead;
    let (learned, unreadable) = learned::read(tree);
    desired.learned = learned;
    if let Some(problem) = unreadable {
        report.add(problem);
    }
    desired.min_values_policy = fleet.min_values_policy;
    desired.default_spread.clone_from(&fleet.default_spread);
    desired.failure_domains.clone_from(&fleet.failure_domains);
    desired.autoscaler_namespaces.clone_from(&fleet.autoscaler_namespaces);
    desired.fargate_rates = fleet.fargate;
    let origin = fleet.origin.clone().unwrap_or_else(|| Origin::new(FILE, 0));
    let elsewhere = fleet.groups.iter().filter(|(name, _)| {
        // What no file describes may be in the world.
        !desired.node_groups.contains_key(name.as_str())
    });
    desired.groups_elsewhere =
        elsewhere.map(|(name, manage)| (name.as_str().into(), (*manage, origin.clone()))).collect();
    for (pool, limits) in &desired.failure_domains {
        if !desired.pools.contains_key(pool) {
            report.add(Problem {
                origin: limits.origin.clone(),
                severity: Severity::Error,
                object: "Fleet".to_owned(),
                message: format!("`spec.failureDomains.{pool}` names a pool that is not declared"),
                hint: Some("write the name of a NodePool".to_owned()),
            });
        }
    }
    for group in desired.node_groups.values_mut() {
        group.manage = fleet.groups.get(group.name.as_str()).copied().unwrap_or(false);
    }
    references::check(&desired, &report);
    desired.problems = report.into_problems();
    desired.problems.sort();
    desired.problems.dedup();
    desired
}

/// Returns the tree with its files ascending, as it is promised to be.
pub(super) fn sorted(tree: &Tree) -> Cow<'_, Tree> {
    if tree.files.is_sorted_by(|a, b| a.path <= b.path) {
        return Cow::Borrowed(tree);
    }
    let mut tree = tree.clone();
    tree.files.sort_by(|a, b| a.path.cmp(&b.path));
    Cow::Owned(tree)
}

/// The file of an embedded world, in its directory.
const WORLD: &str = "world.json";

/// Returns the tree without the embedded world that it holds: the file is no manifest, and may be larger
/// than any that is read.
fn without_world<'a>(tree: Cow<'a, Tree>, fleet: &Fleet) -> Cow<'a, Tree> {
    let directory = fleet.world.strip_prefix("sim:").and_then(|path| normal_path("", path));
    let Some(directory) = directory else { return tree };
    let world =
        if directory.is_empty() { WORLD.to_owned() } else { format!("{directory}/{WORLD}") };
    let is_world = |file: &TreeFile| file.content.is_err() && *file.path == *world;
    if !tree.files.iter().any(is_world) {
        return tree;
    }
    let mut tree = tree.into_owned();
    tree.files.retain(|file| !is_world(file));
    Cow::Owned(tree)
}

/// A part of the tree, and how its files are read.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) path: String,
    pub(super) rendered: bool,
    pub(super) vars: Vars,
    pub(super) namespace: Option<String>,
}

/// Returns the innermost area that holds `path`: a directory may have variables of its own.
pub(super) fn area<'a>(areas: &'a [Area], path: &str) -> Option<&'a Area> {
    let inside = areas.iter().filter(|area| is_below(path, &area.path));
    inside.max_by_key(|area| area.path.len())
}

/// Returns the parts to read: those that the fleet names, else the whole.
pub(super) fn areas(fleet: &Fleet) -> Vec<Area> {
    let cluster = &fleet.cluster;
    let of_cluster: Vars = [
        ("CLUSTER_NAME", cluster.name.as_str()),
        ("EKS_CLUSTER_NAME", cluster.name.as_str()),
        ("AWS_REGION", cluster.region.as_str()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    if fleet.sources.is_empty() {
        let path = String::new();
        return vec![Area { path, rendered: false, vars: of_cluster, namespace: None }];
    }
    let area = |source: &super::fleet::Source| {
        let mut vars = of_cluster.clone();
        vars.extend(source.vars.clone());
        let (path, namespace) = (source.path.clone(), source.namespace.clone());
        Area { path, rendered: source.render.is_some(), vars, namespace }
    };
    fleet.sources.iter().map(area).collect()
}

/// The form of a file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Yaml,
    Json,
}

impl Form {
    pub(super) fn of(path: &str) -> Option<Self> {
        let ends = |ending: &str| {
            let start = path.len().saturating_sub(ending.len());
            path.get(start..).is_some_and(|end| end.eq_ignore_ascii_case(ending))
        };
        if ends(".yaml") || ends(".yml") || is_kustomization(path) {
            return Some(Self::Yaml);
        }
        ends(".json").then_some(Self::Json)
    }
}

/// A text to read, and what whoever delivers it says about its objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unit<'a> {
    pub(super) file: &'a TreeFile,
    pub(super) form: Form,
    pub(super) vars: &'a Vars,
    pub(super) namespaces: Namespaces<'a>,
    /// Who delivers it, where that is more than the tree itself.
    pub(super) by: Option<&'a str>,
    /// Where its objects were written, where a tool made it.
    pub(super) places: Option<&'a Places<'a>>,
}

/// Parses a text as leniently as the tools of Kubernetes do, and hands its documents on.
pub(super) fn with_documents<R>(
    form: Form,
    text: &str,
    vars: &Vars,
    take: impl FnOnce(Loaded<'_>) -> R,
) -> R {
    let loaded = yaml::load(text);
    if loaded.fault.is_none() {
        return take(loaded);
    }
    // What stops the parser may be a placeholder where YAML allows none, as in `[${ZONE}]`, an
    // escape that only JSON knows, or indentation that only YAML 1.2 minds.
    let replaced = match form {
        Form::Json => yaml::join_surrogates(text),
        Form::Yaml => match placeholder::replace(text, vars).text {
            Cow::Owned(replaced) => Some(replaced),
            Cow::Borrowed(_) => None,
        },
    };
    let (text, loaded) = match &replaced {
        Some(replaced) => (replaced.as_str(), yaml::load(replaced)),
        None => (text, loaded),
    };
    let loose = loaded.fault.as_ref().and_then(|_| yaml::loosen(text));
    match loose.as_deref().map(yaml::load) {
        Some(loose) if loose.fault.is_none() => take(loose),
        Some(_) | None => take(loaded),
    }
}

struct Reader<'a> {
    report: &'a Report,
    layout: &'a Layout,
    sources: &'a Sources,
    into: Collected,
}

impl Reader<'_> {
    fn unit(&mut self, unit: Unit<'_>) {
        let file = unit.file;
        let bytes = match &file.content {
            Ok(bytes) => bytes,
            Err(why) => {
                let message = format!("cannot be read: {why}");
                return self.fault(file, Fault { line: 0, message, hint: None });
            }
        };
        if unit.places.is_none()
            && let Some(reason) = self.layout.excludes(&file.path)
        {
            return self.skip(file, 0, reason);
        }
        let text = match yaml::decode(bytes) {
            Ok(text) => text,
            Err(error) => {
                let hint = Some("save it as UTF-8 text".to_owned());
                let fault = Fault { line: error.line(), message: error.to_string(), hint };
                return self.fault(file, fault);
            }
        };
        if unit.form == Form::Json && !text.contains("\"apiVersion\"") {
            return self.skip(file, 0, "JSON without apiVersion");
        }
        with_documents(unit.form, &text, unit.vars, |loaded| self.documents(unit, &text, loaded));
    }

    fn documents(&mut self, unit: Unit<'_>, text: &str, loaded: Loaded<'_>) {
        if let Some(mut fault) = loaded.fault {
            if unit.places.is_none() && text.contains("{{") {
                return self.skip(unit.file, fault.line, "templated");
            }
            if unit.form == Form::Json {
                fault.message = fault.message.replacen("is not YAML", "is not JSON", 1);
            }
            if fault.hint.is_none() && text.contains("${") {
                let hint = "quote a ${…} inside [ ] or { }, or give it a value under `vars`";
                fault.hint = Some(hint.to_owned());
            }
            self.fault(unit.file, fault);
        }
        for document in loaded.documents {
            self.document(unit, &document);
        }
    }

    fn document(&mut self, unit: Unit<'_>, document: &Document<'_>) {
        let Document { root, faults } = document;
        if is_fleet(root) {
            return self.skip(unit.file, root.line, "settings of another directory");
        }
        if unit.places.is_none() && is_kustomization(&unit.file.path) && !root.is_null() {
            return self.skip(unit.file, root.line, "kustomization");
        }
        let class = classify(root);
        if !matches!(class, Class::Skipped(_)) {
            // Also in kinds that are no input: two objects without `---` between them parse as one
            // with keys given twice, and the first of them would be gone.
            for fault in faults {
                self.fault(unit.file, fault.clone());
            }
        }
        self.classified(unit, root, class);
    }

    fn classified(&mut self, unit: Unit<'_>, root: &Node<'_>, class: Class) {
        let origin = unit.origin(root);
        let kind = root.get("kind").and_then(Node::text).unwrap_or_default();
        let object = |place| shown(kind, root, place, unit.namespaces);
        if unit.places.is_some_and(|places| places.is_hook(root)) {
            return self.into.skip(origin, "hook of a Helm chart");
        }
        match class {
            Class::Skipped(reason) | Class::Foreign(reason) => self.into.skip(origin, reason),
            Class::Unresolved(reason) => {
                self.into.unresolved(origin, object(Place::Namespaced), reason);
            }
            Class::Delivers(_, reason) => {
                let object = object(Place::Namespaced);
                if self.sources.follows(&object) {
                    self.into.skip(origin, format!("kind {kind}, followed"));
                } else {
                    self.into.unresolved(origin, object, reason);
                }
            }
            Class::Unserved { message, hint } => {
                let object = object(Place::Namespaced);
                let (severity, hint) = (Severity::Error, Some(hint));
                self.report.add(Problem { origin, severity, object, message, hint });
            }
            Class::List => {
                let Some(Value::Seq(items)) = root.get("items").map(|items| &items.value) else {
                    return self.into.skip(origin, "list without items");
                };
                for item in items {
                    self.classified(unit, item, classify(item));
                }
            }
            Class::Object(of) => self.object(of, unit, root, &origin),
        }
    }

    fn object(&mut self, of: Object, unit: Unit<'_>, root: &Node<'_>, origin: &Origin) {
        let kind = root.get("kind").and_then(Node::text).unwrap_or_default();
        let scope = Scope {
            report: self.report,
            file: &unit.file.path,
            object: shown(kind, root, of.place(), unit.namespaces),
            vars: unit.vars,
            written: unit.places.is_some().then_some(origin),
            by: unit.by,
            namespaces: unit.namespaces,
            verbatim: false,
            failed: RefCell::default(),
        };
        let root = Field::root(&scope, root);
        if let Some(map) = root.map()
            && let Some(meta) = meta(&map)
        {
            read_object(of, meta, &map, &mut self.into);
        }
    }

    fn fault(&self, file: &TreeFile, fault: Fault) {
        self.report.add(Problem {
            origin: Origin { file: file.path.clone(), line: fault.line },
            severity: Severity::Error,
            object: String::new(),
            message: fault.message,
            hint: fault.hint,
        });
    }

    fn skip(&mut self, file: &TreeFile, line: u32, reason: impl Into<String>) {
        self.into.skip(Origin { file: file.path.clone(), line }, reason);
    }
}

impl<'a> Unit<'a> {
    /// Returns the unit that the file is by itself.
    pub(super) fn plain(file: &'a TreeFile, form: Form, vars: &'a Vars) -> Self {
        Self { file, form, vars, namespaces: PLAIN, by: None, places: None }
    }

    /// Returns where the object at `root` was written.
    pub(super) fn origin(&self, root: &Node<'_>) -> Origin {
        match self.places {
            Some(places) => places.written(root),
            None => Origin { file: Arc::clone(&self.file.path), line: root.line },
        }
    }
}

/// Returns whether the file at `path` is that of the settings, or stands beside it.
pub(super) fn is_settings(path: &str) -> bool {
    path == FILE || path == learned::LEARNED_FILE
}

/// Reads an object into what was collected.
pub(super) fn read_object(object: Object, meta: Meta, root: &Map<'_>, into: &mut Collected) {
    match object {
        Object::Workload(kind) => workload::read(kind, meta, root, into),
        Object::Namespace => cluster::namespace(meta, root, into),
        Object::PriorityClass => cluster::priority_class(meta, root, into),
        Object::RuntimeClass => cluster::runtime_class(meta, root, into),
        Object::LimitRange => limits::limit_range(meta, root, into),
        Object::ResourceQuota => limits::resource_quota(meta, root, into),
        Object::DisruptionBudget => cluster::disruption_budget(meta, root, into),
        Object::StorageClass => storage::storage_class(meta, root, into),
        Object::PersistentVolume => storage::volume(meta, root, into),
        Object::PersistentVolumeClaim => storage::claim(&meta, root, into),
        Object::NodePool(generation) => karpenter::node_pool(generation, &meta, root, into),
        Object::NodeClass(generation) => karpenter::node_class(generation, meta, root, into),
        Object::NodeOverlay => karpenter::node_overlay(meta, root, into),
        Object::Provisioner => karpenter::provisioner(meta, root, into),
        Object::NodeTemplate => karpenter::node_template(meta, root, into),
        Object::ClusterConfig => eksctl::cluster_config(meta, root, into),
        Object::FargateProfile => eksctl::ack_profile(&meta, root, into),
        Object::HorizontalScaler => scaling::horizontal(meta, root, into),
        Object::VerticalScaler => scaling::vertical(meta, root, into),
        Object::EventScaler => scaling::scaled_object(meta, root, into),
        Object::QueueScaler => scaling::scaled_job(meta, root, into),
        Object::Parameters => scaling::parameters(meta, root, into),
        Object::CapacityBuffer => scaling::capacity_buffer(meta, root, into),
        Object::PodTemplate => scaling::pod_template_object(meta, root, into),
    }
}
