//! `Provisioner`, v1alpha5.

use jiff::SignedDuration;

use super::super::collector::Collector;
use super::super::decode::{Field, FieldMap};
use super::super::object_meta::ObjectMeta;
use super::super::pod_spec::taints;
use super::kubelet::kubelet;
use super::node_pool::limits;
use super::requirements::{pool_labels, pool_requirements};
use super::template_annotations::{TemplateAnnotations, template_annotations};
use super::{add_pool, check_taints, finish_root, weight};
use crate::model::desired::{Consolidation, Expiry, Generation, Pool, PoolLimits, PoolRequirement};
use crate::model::ids::{Labels, NodeClassName};
use crate::model::requirement::{Operator, key};

const CATEGORY: &str = "karpenter.k8s.aws/instance-category";
const FAMILY: &str = "karpenter.k8s.aws/instance-family";
const GENERATION: &str = "karpenter.k8s.aws/instance-generation";

/// Reads a `Provisioner`.
pub(in super::super) fn provisioner(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    finish_root(root);
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let labels = pool_labels(spec.get("labels"));
    let mut requirements = pool_requirements(spec.get("requirements"), Generation::V1alpha5);
    add_defaults(&mut requirements, &labels);
    let (steady, startup) = (taints(spec.get("taints")), taints(spec.get("startupTaints")));
    check_taints(&spec.field, &steady, &startup);
    let (consolidation, consolidate_after) = consolidation(&spec);
    let expire_after = spec.get("ttlSecondsUntilExpired").and_then(|field| seconds(&field));
    let TemplateAnnotations { of_nodes, do_not_disrupt } =
        template_annotations(spec.get("annotations"));
    let pool = Pool {
        name: meta.name.into(),
        origin: meta.origin,
        generation: Generation::V1alpha5,
        node_class: node_class(&spec),
        labels,
        annotations: of_nodes,
        do_not_disrupt,
        requirements,
        taints: steady,
        startup_taints: startup,
        kubelet: spec.get("kubeletConfiguration").map(|field| kubelet(&field)),
        limits: spec.get("limits").map(|field| resource_limits(&field)).unwrap_or_default(),
        weight: weight(spec.get("weight")),
        replicas: None,
        consolidation,
        consolidate_after,
        budgets: Vec::new(),
        expire_after: expire_after.map_or(Expiry::Never, Expiry::After),
        termination_grace_period: None,
        unreadable: None,
    };
    spec.finish_with_typo_check();
    add_pool(pool, root, into);
}

fn node_class(spec: &FieldMap<'_>) -> Option<NodeClassName> {
    let (reference, inline) = (spec.get("providerRef"), spec.get("provider"));
    if let Some(inline) = &inline {
        inline.error(
            "states the provider inline, which is not supported",
            "move it to an AWSNodeTemplate, and name that under `providerRef`".to_owned(),
        );
    }
    let Some(reference) = reference else {
        if inline.is_none() {
            spec.required("providerRef");
        }
        return None;
    };
    let map = reference.map()?;
    let name = map.required("name").and_then(|name| name.non_empty_text());
    map.ignore(&["kind", "apiVersion"]);
    map.finish_with_typo_check();
    Some(NodeClassName::from(&*name?))
}

fn seconds(field: &Field<'_>) -> Option<SignedDuration> {
    field.int::<i64>(0).map(SignedDuration::from_secs)
}

/// Reads the consolidation policy. With neither setting, Karpenter of this generation removes no
/// node.
fn consolidation(spec: &FieldMap<'_>) -> (Consolidation, Option<SignedDuration>) {
    let empty = spec.get("ttlSecondsAfterEmpty");
    let setting = spec.get("consolidation");
    let enabled = setting.as_ref().and_then(Field::map).and_then(|map| {
        let enabled = map.get("enabled").and_then(|field| field.boolean());
        map.finish_with_typo_check();
        enabled
    });
    match (empty, enabled.unwrap_or(false)) {
        (Some(empty), true) => {
            let hint = "keep `consolidation`, which also removes empty nodes".to_owned();
            empty.error("excludes `consolidation.enabled`", hint);
            (Consolidation::WhenEmptyOrUnderutilized, Some(SignedDuration::ZERO))
        }
        (None, true) => (Consolidation::WhenEmptyOrUnderutilized, Some(SignedDuration::ZERO)),
        (Some(empty), false) => (Consolidation::WhenEmpty, seconds(&empty)),
        (None, false) => (Consolidation::WhenEmpty, None),
    }
}

fn resource_limits(field: &Field<'_>) -> PoolLimits {
    let Some(map) = field.map() else { return PoolLimits::default() };
    let read = map.get("resources").map(|field| limits(&field)).unwrap_or_default();
    map.finish_with_typo_check();
    read
}

/// Adds the defaults of this generation's webhook: on-demand Linux nodes on amd64, and third
/// generation or later of the c, m and r types.
///
/// Source: karpenter v0.27, `pkg/apis/v1alpha1/provisioner_defaults.go`, and the core defaults.
fn add_defaults(requirements: &mut Vec<PoolRequirement>, labels: &Labels) {
    let stated = |requirements: &[PoolRequirement], name: &str| {
        labels.contains_key(name) || requirements.iter().any(|r| r.key.as_str() == name)
    };
    let of = |name: &str, operator, values: &[&str]| PoolRequirement {
        key: name.into(),
        operator,
        values: values.iter().map(|value| (*value).into()).collect(),
        min_values: None,
    };
    let type_stated = [key::INSTANCE_TYPE, FAMILY, CATEGORY, GENERATION]
        .iter()
        .any(|name| stated(requirements, name));
    for (name, value) in
        [(key::CAPACITY_TYPE, "on-demand"), (key::OS, "linux"), (key::ARCH, "amd64")]
    {
        if !stated(requirements, name) {
            requirements.push(of(name, Operator::In, &[value]));
        }
    }
    if !type_stated {
        requirements.push(of(CATEGORY, Operator::In, &["c", "m", "r"]));
        requirements.push(of(GENERATION, Operator::Gt, &["2"]));
    }
}
