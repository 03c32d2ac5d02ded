//! The walk over the files of a tree.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use super::classify::{Class, Object, classify};
use super::collect::Collected;
use super::decode::{Field, Map, Report, Scope};
use super::fleet::{FILE, Fleet, is_below, is_fleet};
use super::layout::{Layout, directory, is_kustomization};
use super::meta::{Meta, Place, meta, shown};
use super::model::{Desired, Problem, Severity, Tree, TreeFile};
use super::placeholder::{self, Vars};
use super::yaml::{self, Document, Fault, Loaded, Node, Value};
use super::{cluster, eksctl, karpenter, limits, references, scaling, storage, workload};
use crate::ids::Origin;

/// Reads every manifest of `tree` that the sources of `fleet` name.
///
/// The result holds each object once, with everything found wrong on the way, and does not depend
/// on the order of files.
#[must_use]
pub fn read(tree: &Tree, fleet: &Fleet) -> Desired {
    let report = Report::default();
    let layout = Layout::of(tree);
    let areas = areas(fleet);
    let into = Collected::of(fleet.stated_cluster());
    let mut reader = Reader { report: &report, layout: &layout, areas: &areas, into };
    let mut files: Vec<&TreeFile> = tree.files.iter().collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    for file in files {
        reader.file(file);
    }
    reader.unrendered(fleet);
    scaling::join(&mut reader.into, &report);
    scaling::fill(&mut reader.into);
    let mut desired = reader.into.into_desired();
    desired.lead = fleet.demand.lead;
    desired.min_values_policy = fleet.min_values_policy;
    desired.fargate_rates = fleet.fargate;
    references::check(&desired, &report);
    desired.problems = report.into_problems();
    desired.problems.sort();
    desired.problems.dedup();
    desired
}

/// A part of the tree, and what placeholders in its files stand for.
struct Area {
    path: String,
    rendered: bool,
    vars: Vars,
}

/// Returns the parts to read: those that the fleet names, else the whole.
fn areas(fleet: &Fleet) -> Vec<Area> {
    let cluster = &fleet.cluster;
    let of_cluster: Vars = [
        ("CLUSTER_NAME", cluster.name.as_str()),
        ("EKS_CLUSTER_NAME", cluster.name.as_str()),
        ("AWS_REGION", cluster.region.as_str()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    if fleet.sources.is_empty() {
        return vec![Area { path: String::new(), rendered: false, vars: of_cluster }];
    }
    let area = |source: &super::fleet::Source| {
        let mut vars = of_cluster.clone();
        vars.extend(source.vars.clone());
        Area { path: source.path.clone(), rendered: source.render.is_some(), vars }
    };
    fleet.sources.iter().map(area).collect()
}

/// The form of a file, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Yaml,
    Json,
}

impl Form {
    fn of(path: &str) -> Option<Self> {
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

/// A file being read.
#[derive(Clone, Copy)]
struct Source<'a> {
    file: &'a TreeFile,
    form: Form,
    vars: &'a Vars,
    /// Whether it holds `{{`.
    templated: bool,
    /// Whether it holds `${`.
    placeholders: bool,
}

/// Most directories of kustomizations that a warning names.
const OVERLAYS_SHOWN: usize = 3;

/// Returns a directory as it is shown: the root has no name of its own.
fn or_root(directory: &str) -> &str {
    if directory.is_empty() { "." } else { directory }
}

struct Reader<'a> {
    report: &'a Report,
    layout: &'a Layout,
    areas: &'a [Area],
    into: Collected,
}

impl<'a> Reader<'a> {
    /// Returns the innermost area that holds `path`: a directory may have variables of its own.
    fn area(&self, path: &str) -> Option<&'a Area> {
        let inside = self.areas.iter().filter(|area| is_below(path, &area.path));
        inside.max_by_key(|area| area.path.len())
    }

    fn file(&mut self, file: &TreeFile) {
        if &*file.path == FILE {
            return;
        }
        let Some(area) = self.area(&file.path) else { return };
        let bytes = match &file.content {
            Ok(bytes) => bytes,
            Err(why) => {
                let fault =
                    Fault { line: 0, message: format!("cannot be read: {why}"), hint: None };
                return self.fault(file, fault);
            }
        };
        let Some(form) = Form::of(&file.path) else { return };
        if area.rendered {
            return self.skip(file, 0, "part of a source that is rendered");
        }
        if let Some(reason) = self.layout.excludes(&file.path) {
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
        if form == Form::Json && !text.contains("\"apiVersion\"") {
            return self.skip(file, 0, "JSON without apiVersion");
        }
        let source = Source {
            file,
            form,
            vars: &area.vars,
            templated: text.contains("{{"),
            placeholders: text.contains("${"),
        };
        self.text(source, &text);
    }

    fn text(&mut self, source: Source<'_>, text: &str) {
        let loaded = yaml::load(text);
        if loaded.fault.is_none() {
            return self.documents(source, loaded);
        }
        // What stops the parser may be a placeholder where YAML allows none, as in `[${ZONE}]`, an
        // escape that only JSON knows, or indentation that only YAML 1.2 minds.
        let replaced = match source.form {
            Form::Json => yaml::join_surrogates(text),
            Form::Yaml => match placeholder::replace(text, source.vars).text {
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
            Some(loose) if loose.fault.is_none() => self.documents(source, loose),
            Some(_) | None => self.documents(source, loaded),
        }
    }

    fn documents(&mut self, source: Source<'_>, loaded: Loaded<'_>) {
        if let Some(mut fault) = loaded.fault {
            if source.templated {
                return self.skip(source.file, fault.line, "templated");
            }
            if source.form == Form::Json {
                fault.message = fault.message.replacen("is not YAML", "is not JSON", 1);
            }
            if fault.hint.is_none() && source.placeholders {
                let hint = "quote a ${…} inside [ ] or { }, or give it a value under `vars`";
                fault.hint = Some(hint.to_owned());
            }
            self.fault(source.file, fault);
        }
        for document in loaded.documents {
            self.document(source, &document);
        }
    }

    fn document(&mut self, source: Source<'_>, document: &Document<'_>) {
        let Document { root, faults } = document;
        if is_fleet(root) {
            return self.skip(source.file, root.line, "settings of another directory");
        }
        if is_kustomization(&source.file.path) && !root.is_null() {
            return self.skip(source.file, root.line, "kustomization");
        }
        let class = classify(root);
        if !matches!(class, Class::Skipped(_)) {
            // Also in kinds that are no input: two objects without `---` between them parse as one
            // with keys given twice, and the first of them would be gone.
            for fault in faults {
                self.fault(source.file, fault.clone());
            }
        }
        self.classified(source, root, class);
    }

    fn classified(&mut self, source: Source<'_>, root: &Node<'_>, class: Class) {
        let origin = Origin { file: source.file.path.clone(), line: root.line };
        let kind = root.get("kind").and_then(Node::text).unwrap_or_default();
        match class {
            Class::Skipped(reason) | Class::Foreign(reason) => self.into.skip(origin, reason),
            Class::Unresolved(reason) => {
                let object = shown(kind, root, Place::Namespaced);
                self.into.unresolved(origin, object, reason);
            }
            Class::Unserved { message, hint } => {
                let object = shown(kind, root, Place::Namespaced);
                let (severity, hint) = (Severity::Error, Some(hint));
                self.report.add(Problem { origin, severity, object, message, hint });
            }
            Class::List => {
                let Some(Value::Seq(items)) = root.get("items").map(|items| &items.value) else {
                    return self.into.skip(origin, "list without items");
                };
                for item in items {
                    self.classified(source, item, classify(item));
                }
            }
            Class::Object(object) => {
                let scope = Scope {
                    report: self.report,
                    file: &source.file.path,
                    object: shown(kind, root, object.place()),
                    vars: source.vars,
                    failed: RefCell::default(),
                };
                let root = Field::root(&scope, root);
                if let Some(map) = root.map()
                    && let Some(meta) = meta(&map)
                {
                    read_object(object, meta, &map, &mut self.into);
                }
            }
        }
    }

    /// Notes what plain files do not show: sources and charts that need a tool, and kustomizations.
    fn unrendered(&mut self, fleet: &Fleet) {
        for source in &fleet.sources {
            if let Some(render) = source.render {
                let reason = format!("render: {} is not built yet", render.as_str());
                let object = format!("source {}", or_root(&source.path));
                self.into.unresolved(source.origin.clone(), object, reason);
            }
        }
        for (chart, path) in self.layout.charts() {
            if self.is_plain(path) {
                let origin = Origin { file: Arc::clone(path), line: 0 };
                let object = format!("Helm chart {}", or_root(chart));
                let reason =
                    "rendering charts is not built yet; plan the output of `helm template`";
                self.into.unresolved(origin, object, reason);
            }
        }
        let mut overlays = Vec::new();
        for (path, kustomization) in &self.layout.kustomizations {
            if !self.is_plain(path) {
                continue;
            }
            if kustomization.remote {
                let origin = Origin { file: path.clone(), line: 0 };
                let object = format!("Kustomization {}", or_root(directory(path)));
                let reason = "takes charts or resources from elsewhere";
                self.into.unresolved(origin, object, reason);
            }
            if fleet.sources.is_empty() && !kustomization.changes.is_empty() {
                overlays.push(path);
            }
        }
        self.overlays(&overlays);
    }

    /// Returns whether the file at `path` is read as it is.
    fn is_plain(&self, path: &str) -> bool {
        self.area(path).is_some_and(|area| !area.rendered)
    }

    /// Warns, once for all, of kustomizations that change what plain files say.
    fn overlays(&self, paths: &[&Arc<str>]) {
        let Some(first) = paths.first() else { return };
        let shown: Vec<&str> =
            paths.iter().take(OVERLAYS_SHOWN).map(|path| or_root(directory(path))).collect();
        let more = match paths.len().saturating_sub(OVERLAYS_SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let count = match paths.len() {
            1 => "1 kustomization changes".to_owned(),
            n => format!("{n} kustomizations change"),
        };
        self.report.add(Problem {
            origin: Origin { file: Arc::clone(first), line: 0 },
            severity: Severity::Warning,
            object: String::new(),
            message: format!(
                "overlays are not rendered yet: plain files are read without what {count}, in \
                 {}{more}",
                shown.join(", ")
            ),
            hint: Some("plan the output of `kustomize build`".to_owned()),
        });
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

fn read_object(object: Object, meta: Meta, root: &Map<'_>, into: &mut Collected) {
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
