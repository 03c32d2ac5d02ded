//! Objects that change the requests or the disruption of pods: namespaces, priority and runtime
//! classes, disruption budgets.

use super::collector::{Collector, Definition};
use super::decode::{Field, FieldMap};
use super::labels::{LabelOwner, labels, selector};
use super::object_meta::ObjectMeta;
use super::pod_spec::tolerations;
use super::resource_list::resource_list;
use crate::model::desired::{DisruptionBudget, PriorityClass, RuntimeClass, Severity};
use crate::model::ids::Labels;

/// Returns the definition of an object under `kind` and `name`.
pub(super) fn definition<'a>(
    kind: &'static str,
    name: &str,
    meta: &ObjectMeta,
    root: &'a FieldMap<'a>,
) -> Definition<'a> {
    let origin = meta.origin.clone();
    Definition { kind, name: name.to_owned(), scope: root.field.scope, origin }
}

/// Reads a `Namespace`.
pub(super) fn namespace(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let definition = definition("Namespace", &meta.name, &meta, root);
    let (name, labels) = (meta.name.into(), meta.labels);
    into.insert(definition, |all| &mut all.desired.namespaces, name, labels, Labels::eq);
}

/// Reads a `PriorityClass`.
pub(super) fn priority_class(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let value = root.required("value").and_then(|field| field.int(i64::from(i32::MIN)));
    let default = root.get("globalDefault").and_then(|f| f.boolean()).unwrap_or(false);
    let Some(value) = value else { return };
    let definition = definition("PriorityClass", &meta.name, &meta, root);
    let policy = root.get("preemptionPolicy").and_then(|field| Some(field.text()?.into_owned()));
    let preempts = policy.as_deref() != Some("Never");
    let class = PriorityClass { value, is_default: default, preempts };
    let classes = &into.desired.priority_classes;
    let other = classes.iter().find(|(name, one)| one.is_default && **name != meta.name);
    if let Some((other, _)) = other.filter(|_| default) {
        root.field.error(
            format_args!(
                "is the default PriorityClass beside `{other}`, so that the API server refuses it"
            ),
            "two clusters? list the directories of this cluster under `spec.sources`; otherwise \
             set `globalDefault: false` in one of the two"
                .to_owned(),
        );
    }
    into.insert(
        definition,
        |all| &mut all.desired.priority_classes,
        meta.name,
        class,
        PartialEq::eq,
    );
}

/// Reads a `RuntimeClass`. In v1alpha1 the fields are under `spec`.
pub(super) fn runtime_class(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let spec = root.get("spec");
    let inner = spec.as_ref().and_then(Field::map);
    let class = read_runtime_class(inner.as_ref().unwrap_or(root));
    let definition = definition("RuntimeClass", &meta.name, &meta, root);
    into.insert(
        definition,
        |all| &mut all.desired.runtime_classes,
        meta.name,
        class,
        RuntimeClass::eq,
    );
}

fn read_runtime_class(map: &FieldMap<'_>) -> RuntimeClass {
    let overhead = map.get("overhead").and_then(|field| {
        let overhead = field.map()?;
        Some(resource_list(&overhead.get("podFixed")?))
    });
    let mut class = RuntimeClass { overhead: overhead.unwrap_or_default(), ..Default::default() };
    if let Some(scheduling) = map.get("scheduling").as_ref().and_then(Field::map) {
        class.node_selector = scheduling
            .get("nodeSelector")
            .map(|f| labels(&f, LabelOwner::Node))
            .unwrap_or_default();
        class.tolerations = tolerations(scheduling.get("tolerations"));
    }
    class
}

/// Reads a `PodDisruptionBudget`.
pub(super) fn disruption_budget(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let selector = spec.get("selector").and_then(|field| selector(&field));
    // An empty selector protects every pod of the namespace in policy/v1, and none in v1beta1.
    let version = root.get("apiVersion").and_then(|field| field.node.text());
    let old = version == Some("policy/v1beta1");
    let selector = selector.filter(|selector| !old || !selector.0.is_empty());
    let amount = |key| Some(spec.get(key)?.text_or_number()?.into_owned());
    let (min_available, max_unavailable) = (amount("minAvailable"), amount("maxUnavailable"));
    if min_available.is_some() && max_unavailable.is_some() {
        spec.field.error("has both `minAvailable` and `maxUnavailable`", "keep one".to_owned());
    }
    spec.ignore(&["unhealthyPodEvictionPolicy"]);
    spec.finish(Severity::Warning);
    let definition = definition(
        "PodDisruptionBudget",
        &format!("{}/{}", meta.namespace, meta.name),
        &meta,
        root,
    );
    let ObjectMeta { name, namespace, origin, .. } = meta;
    let key = (namespace.clone(), name.clone());
    let budget =
        DisruptionBudget { namespace, name, origin, selector, min_available, max_unavailable };
    let same = |a: &DisruptionBudget, b: &DisruptionBudget| {
        DisruptionBudget { origin: b.origin.clone(), ..a.clone() } == *b
    };
    into.insert(definition, |all| &mut all.budgets, key, budget, same);
}
