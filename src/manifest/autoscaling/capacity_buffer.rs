//! `CapacityBuffer`: capacity reserved for future pods, and the `PodTemplate` objects it refers to.

use std::sync::Arc;

use super::super::collector::{Collector, Definition};
use super::super::decode::FieldMap;
use super::super::object_meta::ObjectMeta;
use super::super::pod_spec::pod_template;
use super::super::resource_list::resource_list;
use super::target;
use crate::model::desired::{BufferScaling, Scale, ScaleTarget, Severity, Workload};
use crate::model::ids::{Namespace, Origin, WorkloadId, WorkloadKind};
use crate::model::pod::PodTemplate;

/// The supported provisioning strategy.
const ACTIVE: &str = "buffer.x-k8s.io/active-capacity";

/// A buffer whose pod template is not resolved yet.
#[derive(Debug, Clone)]
pub(in super::super) struct UnresolvedBuffer {
    pub(in super::super) origin: Origin,
    pub(in super::super) object: String,
    pub(in super::super) namespace: Namespace,
    pub(in super::super) name: String,
    pub(in super::super) template: BufferTemplate,
    pub(in super::super) scaling: BufferScaling,
}

/// The source of a buffer's pod template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum BufferTemplate {
    /// A `PodTemplate` object.
    Template(String),
    /// A workload.
    Scalable(ScaleTarget),
}

/// Reads a `CapacityBuffer`.
pub(in super::super) fn capacity_buffer(
    meta: ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let template = spec.get("podTemplateRef").map(|field| {
        let map = field.map()?;
        Some(BufferTemplate::Template(map.required("name")?.non_empty_text()?.into_owned()))
    });
    let scalable = spec.get("scalableRef").map(|field| {
        let map = field.map()?;
        map.ignore(&["apiGroup"]);
        target(&field, None).map(BufferTemplate::Scalable)
    });
    let replicas = spec.get("replicas").map(|field| field.int::<u32>(0));
    let percentage = spec.get("percentage").map(|field| field.int::<u32>(0));
    let limits = spec.get("limits").map(|field| resource_list(&field)).unwrap_or_default();
    let strategy = spec.get("provisioningStrategy").and_then(|field| field.text());
    spec.finish_with_typo_check();
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
    let ((Some(of), None) | (None, Some(of))) = (template, scalable) else {
        let hint = "name the pods to reserve capacity for in one of the two ways".to_owned();
        return spec.field.error("needs one of `podTemplateRef` and `scalableRef`", hint);
    };
    let object = root.field.scope.object.clone();
    if let Some(strategy) = strategy.filter(|strategy| *strategy != ACTIVE) {
        let why = format!("its provisioning strategy is `{strategy}`");
        return into.add_unresolved(meta.origin, object, why);
    }
    if let Some(field) = root.field.scope.first_failed_field() {
        return into.add_unresolved(
            meta.origin,
            object,
            format!("its `{field}` could not be read"),
        );
    }
    let Some(of) = of else { return };
    let flat = |read: Option<Option<u32>>| read.flatten();
    let scaling = BufferScaling {
        replicas: flat(replicas),
        percentage: flat(percentage),
        limits,
        target: match &of {
            BufferTemplate::Template(_) => None,
            BufferTemplate::Scalable(target) => Some(target.clone()),
        },
    };
    let ObjectMeta { origin, namespace, name, .. } = meta;
    let key = (namespace.clone(), name.clone());
    let kind = WorkloadKind::CapacityBuffer.as_str();
    let scope = root.field.scope;
    let named =
        Definition { kind, name: format!("{namespace}/{name}"), scope, origin: origin.clone() };
    let buffer = UnresolvedBuffer { origin, object, namespace, name, template: of, scaling };
    let same = |a: &UnresolvedBuffer, b: &UnresolvedBuffer| {
        a.template == b.template && a.scaling == b.scaling
    };
    into.insert(named, |all| &mut all.buffers, key, buffer, same);
}

/// Reads a `PodTemplate` object, which has no pods of its own.
pub(in super::super) fn pod_template_object(
    meta: ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) {
    let template = root.required("template").and_then(|field| Some(pod_template(&field.map()?)));
    root.ignore(&["apiVersion", "kind", "metadata"]);
    root.finish(Severity::Warning);
    if let (Some(template), None) = (template, root.field.scope.first_failed_field()) {
        let ObjectMeta { namespace, name, origin, .. } = meta;
        let (scope, kind) = (root.field.scope, "PodTemplate");
        let named = Definition { kind, name: format!("{namespace}/{name}"), scope, origin };
        let (key, template) = ((namespace, name), Arc::new(template));
        into.insert(named, |all| &mut all.templates, key, template, PartialEq::eq);
    }
}

/// Converts the buffers to workloads, after every template has been read.
pub(in super::super) fn resolve_buffers(into: &mut Collector) {
    for buffer in std::mem::take(&mut into.buffers).into_values() {
        let UnresolvedBuffer { origin, object, namespace, name, template: of, scaling } = buffer;
        let (found, missing) = match &of {
            BufferTemplate::Template(name) => {
                let template = into.templates.get(&(namespace.clone(), name.clone())).cloned();
                (template, format!("PodTemplate {namespace}/{name}"))
            }
            BufferTemplate::Scalable(target) => {
                let workloads = into.desired.workloads.values();
                let mut found = workloads.filter(|workload| {
                    workload.id.namespace == namespace
                        && workload.id.kind.as_str() == target.kind
                        && *workload.id.name == *target.name
                });
                let template = found.next().map(|workload| workload.template.clone());
                (template, format!("{} {namespace}/{}", target.kind, target.name))
            }
        };
        let Some(template) = found else {
            into.add_unresolved(origin, object, format!("{missing} is not in the repository"));
            continue;
        };
        let kind = WorkloadKind::CapacityBuffer;
        let id = WorkloadId { namespace, name: name.into(), kind };
        let scale = Scale::Buffer(scaling);
        let template = Arc::new(without_volumes(&template));
        let workload = Workload::new(id.clone(), origin, scale, template);
        into.desired.workloads.insert(id, workload);
    }
}

/// Returns the template without volumes: the buffer reserves capacity for pods, not for disks.
fn without_volumes(template: &PodTemplate) -> PodTemplate {
    let mut template = template.clone();
    template.spec.volumes.clear();
    template
}
