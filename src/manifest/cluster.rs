//! Objects that change what pods ask for, or how they may be moved: namespaces, priority and
//! runtime classes, disruption budgets.

use super::amounts::amounts;
use super::collect::{Collected, Named};
use super::decode::{Field, Map};
use super::labels::{Of, labels, selector};
use super::meta::Meta;
use super::model::{DisruptionBudget, PriorityClass, RuntimeClass, Severity};
use super::podspec::tolerations;
use crate::ids::Labels;

/// Returns the name of an object among its sort.
pub(super) fn named<'a>(
    sort: &'static str,
    name: &str,
    meta: &Meta,
    root: &'a Map<'a>,
) -> Named<'a> {
    let origin = meta.origin.clone();
    Named { sort, name: name.to_owned(), scope: root.field.scope, origin }
}

/// Reads a `Namespace`.
pub(super) fn namespace(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let named = named("Namespace", &meta.name, &meta, root);
    let entry = (meta.name.into(), meta.labels);
    into.insert(named, |all| &mut all.desired.namespaces, entry, Labels::eq);
}

/// Reads a `PriorityClass`.
pub(super) fn priority_class(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let value = root.need("value").and_then(|field| field.int(i64::from(i32::MIN)));
    let default = root.get("globalDefault").and_then(|f| f.boolean()).unwrap_or(false);
    let Some(value) = value else { return };
    let named = named("PriorityClass", &meta.name, &meta, root);
    let policy = root.get("preemptionPolicy").and_then(|field| Some(field.text()?.into_owned()));
    let preempts = policy.as_deref() != Some("Never");
    let entry = (meta.name, PriorityClass { value, is_default: default, preempts });
    into.insert(named, |all| &mut all.desired.priority_classes, entry, PartialEq::eq);
}

/// Reads a `RuntimeClass`; v1alpha1 keeps its fields under `spec`.
pub(super) fn runtime_class(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let spec = root.get("spec");
    let inner = spec.as_ref().and_then(Field::map);
    let class = read_runtime_class(inner.as_ref().unwrap_or(root));
    let named = named("RuntimeClass", &meta.name, &meta, root);
    into.insert(
        named,
        |all| &mut all.desired.runtime_classes,
        (meta.name, class),
        RuntimeClass::eq,
    );
}

fn read_runtime_class(map: &Map<'_>) -> RuntimeClass {
    let overhead = map.get("overhead").and_then(|field| {
        let overhead = field.map()?;
        Some(amounts(&overhead.get("podFixed")?))
    });
    let mut class = RuntimeClass { overhead: overhead.unwrap_or_default(), ..Default::default() };
    if let Some(scheduling) = map.get("scheduling").as_ref().and_then(Field::map) {
        class.node_selector =
            scheduling.get("nodeSelector").map(|f| labels(&f, Of::Node)).unwrap_or_default();
        class.tolerations = tolerations(scheduling.get("tolerations"));
    }
    class
}

/// Reads a `PodDisruptionBudget`.
pub(super) fn disruption_budget(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let Some(spec) = root.need("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let selector = spec.get("selector").and_then(|field| selector(&field));
    // An empty selector protects every pod of the namespace in policy/v1, and none before.
    let version = root.get("apiVersion").and_then(|field| field.node.text());
    let old = version == Some("policy/v1beta1");
    let selector = selector.filter(|selector| !old || !selector.0.is_empty());
    let amount = |key| Some(spec.get(key)?.word()?.into_owned());
    let (min_available, max_unavailable) = (amount("minAvailable"), amount("maxUnavailable"));
    if min_available.is_some() && max_unavailable.is_some() {
        spec.field.error("has both `minAvailable` and `maxUnavailable`", "keep one".to_owned());
    }
    spec.ignore(&["unhealthyPodEvictionPolicy"]);
    spec.finish(Severity::Warning);
    let named =
        named("PodDisruptionBudget", &format!("{}/{}", meta.namespace, meta.name), &meta, root);
    let Meta { name, namespace, origin, .. } = meta;
    let key = (namespace.clone(), name.clone());
    let budget =
        DisruptionBudget { namespace, name, origin, selector, min_available, max_unavailable };
    let same = |a: &DisruptionBudget, b: &DisruptionBudget| {
        DisruptionBudget { origin: b.origin.clone(), ..a.clone() } == *b
    };
    into.insert(named, |all| &mut all.budgets, (key, budget), same);
}
