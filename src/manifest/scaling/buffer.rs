//! `CapacityBuffer`: room that is kept for pods to come, and the `PodTemplate` objects it refers
//! to.

use std::sync::Arc;

use super::super::amounts::amounts;
use super::super::collect::{Collected, Named};
use super::super::decode::Map;
use super::super::meta::Meta;
use super::super::model::{BufferScaling, Scale, Severity, Workload};
use super::super::podspec::pod_template;
use super::{ScaleTarget, target};
use crate::ids::{Namespace, Origin, WorkloadId, WorkloadKind};
use crate::pod::PodTemplate;

/// The strategy that is provided for.
const ACTIVE: &str = "buffer.x-k8s.io/active-capacity";

/// A buffer whose pods are still to be found.
#[derive(Debug, Clone)]
pub(in super::super) struct Buffer {
    pub(in super::super) origin: Origin,
    pub(in super::super) object: String,
    pub(in super::super) namespace: Namespace,
    pub(in super::super) name: String,
    pub(in super::super) of: BufferOf,
    pub(in super::super) scaling: BufferScaling,
}

/// What the pods of a buffer look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum BufferOf {
    /// A `PodTemplate` object.
    Template(String),
    /// A workload.
    Scalable(ScaleTarget),
}

/// Reads a `CapacityBuffer`.
pub(in super::super) fn capacity_buffer(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let Some(spec) = root.need("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let template = spec.get("podTemplateRef").map(|field| {
        let map = field.map()?;
        Some(BufferOf::Template(map.need("name")?.filled()?.into_owned()))
    });
    let scalable = spec.get("scalableRef").map(|field| {
        let map = field.map()?;
        map.ignore(&["apiGroup"]);
        target(&field, None).map(BufferOf::Scalable)
    });
    let replicas = spec.get("replicas").map(|field| field.int::<u32>(0));
    let percentage = spec.get("percentage").map(|field| field.int::<u32>(0));
    let limits = spec.get("limits").map(|field| amounts(&field)).unwrap_or_default();
    let strategy = spec.get("provisioningStrategy").and_then(|field| field.text());
    spec.finish_exact();
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
    let ((Some(of), None) | (None, Some(of))) = (template, scalable) else {
        let hint = "name the pods it keeps room for in one of the two ways".to_owned();
        return spec.field.error("needs one of `podTemplateRef` and `scalableRef`", hint);
    };
    let object = root.field.scope.object.clone();
    if let Some(strategy) = strategy.filter(|strategy| *strategy != ACTIVE) {
        let why = format!("its provisioning strategy is `{strategy}`");
        return into.unresolved(meta.origin, object, why);
    }
    if let Some(field) = root.field.scope.first_failed() {
        return into.unresolved(meta.origin, object, format!("its `{field}` could not be read"));
    }
    let Some(of) = of else { return };
    let flat = |read: Option<Option<u32>>| read.flatten();
    let scaling = BufferScaling {
        replicas: flat(replicas),
        percentage: flat(percentage),
        limits,
        of: match &of {
            BufferOf::Template(_) => None,
            BufferOf::Scalable(target) => Some(target.clone()),
        },
    };
    let Meta { origin, namespace, name, .. } = meta;
    let key = (namespace.clone(), name.clone());
    let sort = WorkloadKind::CapacityBuffer.as_str();
    let scope = root.field.scope;
    let named = Named { sort, name: format!("{namespace}/{name}"), scope, origin: origin.clone() };
    let buffer = Buffer { origin, object, namespace, name, of, scaling };
    let same = |a: &Buffer, b: &Buffer| a.of == b.of && a.scaling == b.scaling;
    into.insert(named, |all| &mut all.buffers, (key, buffer), same);
}

/// Reads a `PodTemplate` object, which has no pods of its own.
pub(in super::super) fn pod_template_object(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let template = root.need("template").and_then(|field| Some(pod_template(&field.map()?)));
    root.ignore(&["apiVersion", "kind", "metadata"]);
    root.finish(Severity::Warning);
    if let (Some(template), None) = (template, root.field.scope.first_failed()) {
        let Meta { namespace, name, origin, .. } = meta;
        let (scope, sort) = (root.field.scope, "PodTemplate");
        let named = Named { sort, name: format!("{namespace}/{name}"), scope, origin };
        let entry = ((namespace, name), Arc::new(template));
        into.insert(named, |all| &mut all.templates, entry, PartialEq::eq);
    }
}

/// Makes workloads of the buffers, now that every template has been read.
pub(in super::super) fn fill(into: &mut Collected) {
    for buffer in std::mem::take(&mut into.buffers).into_values() {
        let Buffer { origin, object, namespace, name, of, scaling } = buffer;
        let (found, missing) = match &of {
            BufferOf::Template(name) => {
                let template = into.templates.get(&(namespace.clone(), name.clone())).cloned();
                (template, format!("PodTemplate {namespace}/{name}"))
            }
            BufferOf::Scalable(target) => {
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
            into.unresolved(origin, object, format!("{missing} is not in the repository"));
            continue;
        };
        let kind = WorkloadKind::CapacityBuffer;
        let id = WorkloadId { namespace, name: name.into(), kind };
        let scale = Scale::Buffer(scaling);
        let template = Arc::new(without_claims(&template));
        let workload = Workload { id: id.clone(), origin, scale, template, first_ordinal: 0 };
        into.desired.workloads.insert(id, workload);
    }
}

/// Returns the template without volumes: room is kept for pods, not for their disks.
fn without_claims(template: &PodTemplate) -> PodTemplate {
    let mut template = template.clone();
    template.spec.volumes.clear();
    template
}
