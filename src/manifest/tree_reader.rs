//! Reads the files of a tree and the rendered output of its sources.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;

use super::classify::{DocumentClass, ObjectKind, classify, list_item};
use super::cluster_alternatives::{self, open_alternatives};
use super::collector::Collector;
use super::decode::{Field, FieldMap, ObjectContext, ProblemCollector, shorten};
use super::delivery::DeliveryObject;
use super::hooks;
use super::manifest_sources::{DeliverySources, SourceContext, VisitedText};
use super::manifest_text::{FileFormat, ManifestText, parse_documents, sorted_by_path};
use super::object_meta::{ObjectMeta, ObjectScope, display_name, object_meta};
use super::placeholder::{Vars, open_placeholder, unread_source};
use super::rendered_origins::RenderedOrigins;
use super::repository_layout::{RepositoryLayout, is_kustomization};
use super::settings::{is_fleet_document, normal_path};
use super::source_area::source_areas;
use super::yaml::{self, YamlDocument, YamlFault, YamlNode, YamlStream, YamlValue};
use super::{
    api_server_rules, assumed_pods, autoscaling, cluster_objects, cluster_pools, device_claims,
    eksctl, karpenter, learned_nodes, namespace_limits, reference_check, storage, workload,
};
use crate::model::code::Code;
use crate::model::desired::{
    CUSTOM_KIND, Desired, ExternalGroup, FLEET_FILE, Fleet, Generation, Identity, PoolSource,
    Problem, RenderResults, Severity, Skipped, Tree, TreeFile, Unresolved,
};
use crate::model::ids::{Origin, PoolName};

/// Reads every manifest of `tree` that the sources of `fleet` name, without running a tool.
///
/// The result contains each object once, with every problem found, and does not depend on the order
/// of files.
pub fn read(tree: &Tree, fleet: &Fleet) -> Desired {
    read_with_renderings(tree, fleet, &RenderResults::default())
}

/// Reads every manifest of `tree` that the sources of `fleet` name, with rendered output.
///
/// A source whose render request has no result in `renderings` is unresolved.
pub fn read_with_renderings(tree: &Tree, fleet: &Fleet, renderings: &RenderResults) -> Desired {
    let tree = &*without_world_file(sorted_by_path(tree), fleet);
    let report = ProblemCollector::default();
    let layout = RepositoryLayout::from_tree(tree);
    let areas = source_areas(fleet);
    let context = SourceContext::new(tree, fleet, &layout, &areas, renderings);
    let sources = DeliverySources::discover(&context);
    let mut reader = TreeReader {
        report: &report,
        layout: &layout,
        sources: &sources,
        into: Collector::new(fleet.configured_cluster()),
    };
    sources.visit_manifests(&context, &mut |visit| match visit {
        VisitedText::Manifest(manifest) => reader.read_manifest(manifest),
        VisitedText::OtherCluster(manifest, reason) => reader.skip(manifest.file, 0, reason),
        VisitedText::Excluded(file, reason) => reader.skip(file, 0, reason),
    });
    let alternatives = open_alternatives(&context, &sources);
    sources.report_unresolved(&context, &alternatives, &mut reader.into);
    sources.report_empty_sets(&report);
    if fleet.pools == PoolSource::Cluster {
        cluster_pools::read(renderings.pools.as_deref(), fleet, &report, &mut reader.into);
    }
    autoscaling::resolve_proportional_autoscalers(&mut reader.into, &report);
    autoscaling::resolve_buffers(&mut reader.into);
    let assumed = assumed_pods::resolve(fleet, &report, &mut reader.into);
    let mut desired = reader.into.into_desired();
    desired.lead_time = fleet.demand.lead_time;
    desired.rollouts = fleet.demand.rollouts;
    let (learned, unreadable) = learned_nodes::read(tree);
    desired.learned_nodes = learned;
    if let Some(problem) = unreadable {
        report.add(problem);
    }
    desired.min_values_policy = fleet.min_values_policy;
    require_instance_profiles(&mut desired, fleet, &report);
    desired.default_spread.clone_from(&fleet.default_spread);
    desired.failure_domains.clone_from(&fleet.failure_domains);
    desired.max_offering_share = fleet.max_offering_share;
    desired.retaining_namespaces.extend(sources.retaining_namespaces());
    desired.autoscaler_namespaces.clone_from(&fleet.autoscaler_namespaces);
    desired.fargate_rates = fleet.fargate;
    desired.unresolved_policy = fleet.unresolved;
    desired.assumed = assumed;
    desired.external_groups = external_groups(fleet, &desired);
    for group in desired.node_groups.values_mut() {
        group.manage = fleet.groups.get(group.name.as_str()).copied().unwrap_or(false);
    }
    check_failure_domains(&desired, &report);
    reference_check::check(&desired, &report);
    desired.problems = report.into_problems();
    cluster_alternatives::report(&alternatives, fleet, &mut desired);
    desired.problems.sort();
    desired.problems.dedup();
    desired
}

/// Returns the groups of the settings that no file declares. They may exist in the world.
fn external_groups(fleet: &Fleet, desired: &Desired) -> BTreeMap<PoolName, ExternalGroup> {
    let origin = fleet.origin.clone().unwrap_or_else(|| Origin::new(FLEET_FILE, 0));
    let elsewhere =
        fleet.groups.iter().filter(|(name, _)| !desired.node_groups.contains_key(name.as_str()));
    let external = |(name, manage): (&String, &bool)| {
        let group = ExternalGroup { manage: *manage, origin: origin.clone() };
        (name.as_str().into(), group)
    };
    elsewhere.map(external).collect()
}

/// Reports failure-domain limits of pools that are not declared.
fn check_failure_domains(desired: &Desired, report: &ProblemCollector) {
    for (pool, limits) in &desired.failure_domains {
        if !desired.pools.contains_key(pool) && !desired.has_unread_pools {
            let message = format!("`spec.failureDomains.{pool}` names a pool that is not declared");
            report.add(
                Problem::error(limits.origin.clone(), "Fleet", message)
                    .hint("write the name of a NodePool")
                    .code(Code::ReferenceMissing),
            );
        }
    }
}

/// Sets the default instance profile of classes of the oldest generation, which have no role.
/// Without any profile, an instance cannot join the cluster.
fn require_instance_profiles(desired: &mut Desired, fleet: &Fleet, report: &ProblemCollector) {
    for class in desired.node_classes.values_mut() {
        let identity = &mut class.instance_settings.identity;
        if class.generation != Generation::V1alpha5 || *identity != Identity::None {
            continue;
        }
        if let Some(profile) = &fleet.default_instance_profile {
            *identity = Identity::Profile(profile.clone());
            continue;
        }
        let hint = "set it, or spec.karpenter.defaultInstanceProfile in fleetwright.yaml to \
                    Karpenter's aws.defaultInstanceProfile";
        let object = format!("AWSNodeTemplate {}", class.name);
        let message = "has no `instanceProfile`, so that no instance can join the cluster";
        report.add(Problem::error(class.origin.clone(), &object, message.to_owned()).hint(hint));
        class.unreadable.get_or_insert_with(|| "spec.instanceProfile".to_owned());
    }
}

/// The file of an embedded world, in its directory.
const WORLD_FILE: &str = "world.json";

/// Returns the tree without the embedded world's file. That file is not a manifest, and may exceed
/// the size limit of manifests.
pub(super) fn without_world_file<'a>(tree: Cow<'a, Tree>, fleet: &Fleet) -> Cow<'a, Tree> {
    let directory = fleet.world.strip_prefix("sim:").and_then(|path| normal_path("", path));
    let Some(directory) = directory else { return tree };
    let world = if directory.is_empty() {
        WORLD_FILE.to_owned()
    } else {
        format!("{directory}/{WORLD_FILE}")
    };
    let is_world = |file: &TreeFile| file.content.is_err() && *file.path == *world;
    if !tree.files.iter().any(is_world) {
        return tree;
    }
    let mut tree = tree.into_owned();
    tree.files.retain(|file| !is_world(file));
    Cow::Owned(tree)
}

/// Returns whether kustomize leaves out the object.
fn is_local_config(root: &YamlNode<'_>) -> bool {
    let annotations = root.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let mark = annotations.and_then(|all| all.get("config.kubernetes.io/local-config"));
    mark.and_then(YamlNode::text).is_some_and(|mark| mark != "false")
}

struct TreeReader<'a> {
    report: &'a ProblemCollector,
    layout: &'a RepositoryLayout,
    sources: &'a DeliverySources,
    into: Collector,
}

/// What to do about a template. Delivery tools refuse it, so what it declared before keeps running.
const TEMPLATE_HINT: &str = "correct it; if it is a template, render it, or name the paths to read \
                             under `spec.sources` in fleetwright.yaml";

/// Returns whether a file that cannot be parsed seems to declare an object of any kind. Each may be a
/// workload, or deliver some.
fn declares_object(text: &str) -> bool {
    let is_kind = |line: &str| {
        let line = line.trim_start().trim_start_matches("- ").trim_start_matches('{').trim_start();
        line.starts_with("kind:") || line.starts_with("\"kind\"")
    };
    text.lines().any(is_kind)
}

/// Returns whether a file that cannot be parsed has the key of an object at the start of a line. Helm
/// values and the input of other tools have none.
fn starts_object(text: &str) -> bool {
    let is_key = |line: &str| line.starts_with("kind:") || line.starts_with("apiVersion:");
    text.lines().any(is_key)
}

/// Returns whether a line begins with a directive of a template of Terraform.
fn has_directive(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with("%{"))
}

/// Returns whether a `${…}` holds more than the name of a variable, as in templates of Terraform.
fn has_expression(text: &str) -> bool {
    let inside = text.split("${").skip(1).filter_map(|rest| rest.split_once('}'));
    inside.map(|(inside, _)| inside).any(|inside| inside.contains(['"', ' ', '(', '?']))
}

/// Returns the reason why an object is unresolved if a source that is not read may give a value to one
/// of its placeholders.
pub(super) fn open_value(node: &YamlNode<'_>, vars: &Vars) -> Option<String> {
    let name = open_placeholder(node, vars)?;
    let source = unread_source(vars)?;
    let name = shorten(&name);
    Some(format!(
        "it needs `{name}`, to which {source} may give a value; list it under `delivery.vars` in \
         fleetwright.yaml"
    ))
}

/// First bytes of a file that git-crypt encrypted.
const GIT_CRYPT_HEADER: &[u8] = b"\0GITCRYPT\0";

impl TreeReader<'_> {
    fn read_manifest(&mut self, manifest: ManifestText<'_>) {
        let file = manifest.file;
        // A renderer fails without a file that a sparse checkout lacks, so that nothing is lost if
        // it is skipped. But a kustomization decides about other files.
        let is_known = file.content.is_ok() || file.is_sparse() && !is_kustomization(&file.path);
        if is_known
            && manifest.origins.is_none()
            && let Some(reason) = self.layout.exclusion_reason(&file.path)
        {
            return self.skip(file, 0, reason);
        }
        let bytes = match &file.content {
            Ok(bytes) => bytes,
            Err(why) => {
                let message = format!("cannot be read: {why}");
                let fault =
                    YamlFault { line: 0, message, hint: None, code: None, loses_object: false };
                return self.report_fault(file, fault);
            }
        };
        if bytes.starts_with(GIT_CRYPT_HEADER) {
            return self.skip(file, 0, "encrypted with git-crypt");
        }
        let text = match yaml::decode(bytes) {
            Ok(text) => text,
            Err(error) => {
                let hint = Some("save it as UTF-8 text".to_owned());
                let (line, message) = (error.line(), error.to_string());
                let code = Some(Code::InvalidYaml);
                let fault = YamlFault { line, message, hint, code, loses_object: false };
                return self.report_fault(file, fault);
            }
        };
        // kubectl decides by the first character, not by the name.
        let is_object = |line: &str| line.starts_with("apiVersion:");
        let is_yaml = !text.trim_start().starts_with('{') && text.lines().any(is_object);
        let format = if is_yaml { FileFormat::Yaml } else { manifest.format };
        if format == FileFormat::Json && !text.contains("\"apiVersion\"") {
            return self.skip(file, 0, "JSON without apiVersion");
        }
        let manifest = ManifestText { format, ..manifest };
        parse_documents(format, &text, manifest.vars, |loaded| {
            self.read_documents(manifest, &text, loaded);
        });
    }

    fn read_documents(&mut self, manifest: ManifestText<'_>, text: &str, loaded: YamlStream<'_>) {
        if let Some(mut fault) = loaded.fault {
            if manifest.origins.is_none() && text.contains("{{") {
                if declares_object(text) {
                    let object = format!("template {}", manifest.file.path);
                    let origin = Origin { file: manifest.file.path.clone(), line: fault.line };
                    let reason =
                        format!("it cannot be parsed ({}); {TEMPLATE_HINT}", fault.message);
                    self.into.add_unresolved(origin, object, reason);
                }
                return self.skip(manifest.file, fault.line, "templated");
            }
            let is_template = manifest.origins.is_none() && text.contains("${");
            if is_template && manifest.format == FileFormat::Yaml && !starts_object(text) {
                return self.skip(manifest.file, fault.line, "templated");
            }
            if manifest.format == FileFormat::Json {
                fault.message = fault.message.replacen("is not YAML", "is not JSON", 1);
            }
            if fault.hint.is_none() && has_directive(text) {
                let hint = "`%{` is of a template of Terraform: render it, and plan its output";
                fault.hint = Some(hint.to_owned());
            } else if fault.hint.is_none() && text.contains("${") {
                let hint = if has_expression(text) {
                    "render the template, and plan its output; a `${…}` with an expression gets \
                     no value"
                } else {
                    "quote a ${…} inside [ ] or { }, or give it a value under `vars`"
                };
                fault.hint = Some(hint.to_owned());
            }
            self.report_fault(manifest.file, fault);
        }
        for document in loaded.documents {
            self.read_document(manifest, &document);
        }
    }

    fn read_document(&mut self, manifest: ManifestText<'_>, document: &YamlDocument<'_>) {
        let YamlDocument { root, faults } = document;
        let class = classify(root);
        if is_fleet_document(root) && !matches!(class, DocumentClass::Unserved { .. }) {
            return self.skip(manifest.file, root.line, "settings of another directory");
        }
        if manifest.origins.is_none() && is_kustomization(&manifest.file.path) && !root.is_null() {
            return self.skip(manifest.file, root.line, "kustomization");
        }
        if !matches!(class, DocumentClass::Skipped(_)) {
            for fault in faults {
                match manifest.origins {
                    Some(_) => self.report_rendered_fault(manifest.origin(root), fault),
                    None => self.report_document_fault(manifest.file, &class, fault.clone()),
                }
            }
        }
        self.read_classified(manifest, root, class);
    }

    fn read_classified(
        &mut self,
        manifest: ManifestText<'_>,
        root: &YamlNode<'_>,
        class: DocumentClass,
    ) {
        let origin = manifest.origin(root);
        let kind = root.get("kind").and_then(YamlNode::text).unwrap_or_default();
        let object = |place| display_name(kind, root, place, manifest.namespaces, manifest.vars);
        if hooks::does_not_stay(manifest, root) {
            return self.into.skip(origin, "hook that does not stay");
        }
        if manifest.delivered_by.is_some_and(DeliveryObject::is_flux_kustomization)
            && is_local_config(root)
        {
            return self.into.skip(origin, "local-config of kustomize");
        }
        match class {
            DocumentClass::Skipped(reason) | DocumentClass::OtherKind(reason) => {
                self.into.skip(origin, reason);
            }
            DocumentClass::Unresolved(reason) => {
                self.into.add_unresolved(origin, object(ObjectScope::Namespaced), reason);
            }
            DocumentClass::MakesPods(reason) => {
                let object = object(ObjectScope::Namespaced);
                self.into.custom.with_pods.push(Unresolved { origin, object, reason });
            }
            DocumentClass::UnknownKind(kind) => {
                let object = Skipped { origin: origin.clone(), reason: kind.clone() };
                self.into.custom.of_unknown_kinds.push(object);
                self.into.skip(origin, format!("{CUSTOM_KIND}{kind}"));
            }
            DocumentClass::Delivers(_, reason) => {
                let object = object(ObjectScope::Namespaced);
                if self.sources.is_followed(&object) {
                    self.into.skip(origin, format!("kind {kind}, followed"));
                } else {
                    self.into.add_unresolved(origin, object, reason);
                }
            }
            DocumentClass::Unserved { message, hint } => {
                let group = root.get("apiVersion").and_then(YamlNode::text).unwrap_or_default();
                let is_of_cluster = group.starts_with("karpenter.");
                let scope =
                    if is_of_cluster { ObjectScope::Cluster } else { ObjectScope::Namespaced };
                let problem = Problem::error(origin, object(scope), message).hint(hint);
                self.report.add(problem.code(Code::UnsupportedVersion));
            }
            DocumentClass::List => {
                let Some(YamlValue::Seq(items)) = root.get("items").map(|items| &items.value)
                else {
                    return self.into.skip(origin, "list without items");
                };
                for item in items {
                    let item = list_item(root, item);
                    self.read_classified(manifest, &item, classify(&item));
                }
            }
            DocumentClass::Object(kind) => self.read_object(kind, manifest, root, &origin),
        }
    }

    fn read_object(
        &mut self,
        object_kind: ObjectKind,
        manifest: ManifestText<'_>,
        root: &YamlNode<'_>,
        origin: &Origin,
    ) {
        let kind = root.get("kind").and_then(YamlNode::text).unwrap_or_default();
        let scope = ObjectContext {
            report: self.report,
            file: &manifest.file.path,
            object: display_name(
                kind,
                root,
                object_kind.scope(),
                manifest.namespaces,
                manifest.vars,
            ),
            vars: manifest.vars,
            rendered_origin: manifest.origins.is_some().then_some(origin),
            delivered_by: manifest.delivered_by,
            is_of_chart: manifest.origins.is_some_and(RenderedOrigins::is_of_chart),
            namespaces: manifest.namespaces,
            policy: manifest.policy,
            verbatim: false,
            failed_fields: RefCell::default(),
        };
        if self.is_open(object_kind, &scope, root, origin) {
            return;
        }
        let root = Field::root(&scope, root);
        if let Some(map) = root.map()
            && let Some(meta) = object_meta(&map)
        {
            api_server_rules::check(object_kind, &map);
            read_object(object_kind, meta, &map, &mut self.into);
        }
    }

    /// Reports an object if an unread source may decide one of its fields. Returns true if so. Many
    /// fields of a workload do not matter, so that its reader decides about those.
    fn is_open(
        &mut self,
        kind: ObjectKind,
        scope: &ObjectContext<'_>,
        root: &YamlNode<'_>,
        origin: &Origin,
    ) -> bool {
        if unread_source(scope.vars).is_none() {
            return false;
        }
        if !matches!(kind, ObjectKind::Workload(_)) {
            let Some(reason) = open_value(root, scope.vars) else { return false };
            let problem = Problem::error(origin.clone(), scope.object.clone(), reason);
            self.report.add(problem.code(Code::PlaceholderUnresolved));
            return true;
        }
        let metadata = root.get("metadata");
        let mut parts = ["name", "generateName", "namespace"].into_iter();
        let open = parts.find_map(|key| open_value(metadata?.get(key)?, scope.vars));
        let Some(reason) = open else { return false };
        self.into.add_unresolved(origin.clone(), scope.object.clone(), reason);
        true
    }

    /// Reports a fault of rendered text at the template that it comes from.
    fn report_rendered_fault(&self, origin: Origin, fault: &YamlFault) {
        // The API server takes the last of several values. Charts of others often have them.
        let severity = match fault.code {
            Some(Code::DuplicateKey) => Severity::Warning,
            _ => Severity::Error,
        };
        let message = format!("the rendered object is malformed: {}", fault.message);
        self.report.add(
            Problem::new(severity, origin, "", message)
                .maybe_hint(fault.hint.clone())
                .code(fault.code),
        );
    }

    /// Reports a fault of a document that parses. A key that a kind without capacity has twice
    /// changes no pod, so it is a warning. A lost object may be a workload.
    fn report_document_fault(&self, file: &TreeFile, class: &DocumentClass, fault: YamlFault) {
        let is_of_other_kind = matches!(
            class,
            DocumentClass::OtherKind(_)
                | DocumentClass::UnknownKind(_)
                | DocumentClass::MakesPods(_)
        );
        let is_harmless =
            is_of_other_kind && fault.code == Some(Code::DuplicateKey) && !fault.loses_object;
        let severity = if is_harmless { Severity::Warning } else { Severity::Error };
        self.report_fault_as(severity, file, fault);
    }

    fn report_fault(&self, file: &TreeFile, fault: YamlFault) {
        self.report_fault_as(Severity::Error, file, fault);
    }

    fn report_fault_as(&self, severity: Severity, file: &TreeFile, fault: YamlFault) {
        let origin = Origin { file: file.path.clone(), line: fault.line };
        self.report.add(
            Problem::new(severity, origin, "", fault.message)
                .maybe_hint(fault.hint)
                .code(fault.code),
        );
    }

    fn skip(&mut self, file: &TreeFile, line: u32, reason: impl Into<String>) {
        self.into.skip(Origin { file: file.path.clone(), line }, reason);
    }
}

/// Reads an object into the collector.
pub(super) fn read_object(
    object: ObjectKind,
    meta: ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) {
    match object {
        ObjectKind::Workload(kind) => workload::read(kind, meta, root, into),
        ObjectKind::Namespace => cluster_objects::namespace(meta, root, into),
        ObjectKind::PriorityClass => cluster_objects::priority_class(meta, root, into),
        ObjectKind::RuntimeClass => cluster_objects::runtime_class(meta, root, into),
        ObjectKind::LimitRange => namespace_limits::limit_range(meta, root, into),
        ObjectKind::ResourceQuota => namespace_limits::resource_quota(meta, root, into),
        ObjectKind::DisruptionBudget => cluster_objects::disruption_budget(meta, root, into),
        ObjectKind::StorageClass => storage::storage_class(meta, root, into),
        ObjectKind::PersistentVolume => storage::volume(meta, root, into),
        ObjectKind::PersistentVolumeClaim => storage::claim(&meta, root, into),
        ObjectKind::NodePool(generation) => karpenter::node_pool(generation, &meta, root, into),
        ObjectKind::NodeClass(generation) => karpenter::node_class(generation, meta, root, into),
        ObjectKind::NodeOverlay => karpenter::node_overlay(meta, root, into),
        ObjectKind::Provisioner => karpenter::provisioner(meta, root, into),
        ObjectKind::NodeTemplate => karpenter::node_template(meta, root, into),
        ObjectKind::ClusterConfig => eksctl::cluster_config(meta, root, into),
        ObjectKind::FargateProfile => eksctl::ack_profile(&meta, root, into),
        ObjectKind::HorizontalScaler => autoscaling::horizontal(meta, root, into),
        ObjectKind::VerticalScaler => autoscaling::vertical(meta, root, into),
        ObjectKind::EventScaler => autoscaling::scaled_object(meta, root, into),
        ObjectKind::QueueScaler => autoscaling::scaled_job(meta, root, into),
        ObjectKind::HttpScaler => autoscaling::http_scaled_object(meta, root, into),
        ObjectKind::WatermarkScaler => autoscaling::watermark_autoscaler(meta, root, into),
        ObjectKind::Parameters => autoscaling::proportional_parameters(meta, root, into),
        ObjectKind::ExpanderPriorities => autoscaling::expander_priorities(meta, root, into),
        ObjectKind::CapacityBuffer => autoscaling::capacity_buffer(meta, root, into),
        ObjectKind::PodTemplate => autoscaling::pod_template_object(meta, root, into),
        ObjectKind::ClaimTemplate => device_claims::claim_template(meta, root, into),
        ObjectKind::DeviceClass => device_claims::device_class(meta, root, into),
    }
}
