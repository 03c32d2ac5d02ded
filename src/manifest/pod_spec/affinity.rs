//! Node affinity, pod affinity and anti-affinity.

use super::super::decode::{Field, FieldMap};
use super::super::labels::{
    LabelOwner, NODE_OPERATORS, expression, label_key, label_keys, selector,
};
use super::scheduling_rules::require_selector;
use crate::model::desired::Severity;
use crate::model::ids::Labels;
use crate::model::pod::{Expression, NodeAffinity, NodeTerm, PodAffinity, PodAffinityTerm};
use crate::model::requirement::{Operator, key};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Maximum weight of a preference.
const WEIGHT_MAX: i32 = 100;

/// The three kinds of affinity of a pod.
#[derive(Debug, Default)]
pub(super) struct PodAffinities {
    pub(super) node: NodeAffinity,
    pub(super) pod: PodAffinity,
    pub(super) anti: PodAffinity,
}

/// Reads `affinity`.
pub(super) fn affinity(field: &Field<'_>) -> PodAffinities {
    let Some(map) = field.map() else { return PodAffinities::default() };
    let read = PodAffinities {
        node: map.get("nodeAffinity").map(|f| node_affinity(&f)).unwrap_or_default(),
        pod: map.get("podAffinity").map(|f| pod_affinity(&f)).unwrap_or_default(),
        anti: map.get("podAntiAffinity").map(|f| pod_affinity(&f)).unwrap_or_default(),
    };
    map.finish(Severity::Warning);
    read
}

fn node_affinity(field: &Field<'_>) -> NodeAffinity {
    let Some(map) = field.map() else { return NodeAffinity::default() };
    let required = map.get(REQUIRED).map(|f| required_terms(&f));
    let preferred = map
        .get(PREFERRED)
        .map(|f| f.items().filter_map(|item| weighted(&item, "preference", node_term)).collect());
    map.finish(Severity::Warning);
    NodeAffinity { required, preferred: preferred.unwrap_or_default() }
}

fn required_terms(field: &Field<'_>) -> Vec<NodeTerm> {
    let Some(map) = field.map() else { return Vec::new() };
    let terms = map.required("nodeSelectorTerms").map(|f| node_terms(&f)).unwrap_or_default();
    map.finish(Severity::Warning);
    terms
}

/// Reads a list of node selector terms, which must not be empty.
///
/// An API server also accepts terms that the scheduler cannot evaluate, such as `Gt abc`. No node
/// matches such a term, and the other terms count.
pub(in super::super) fn node_terms(field: &Field<'_>) -> Vec<NodeTerm> {
    let live = |item: &Field<'_>| item.scope.attempt(|| node_term(item)).flatten();
    let term = |item: Field<'_>| {
        if item.scope.verbatim { Some(live(&item).unwrap_or_default()) } else { node_term(&item) }
    };
    let terms: Vec<NodeTerm> = field.items().filter_map(term).collect();
    if field.items().count() == 0 {
        field.error("lists no term, which no node satisfies", None);
    }
    terms
}

fn node_term(field: &Field<'_>) -> Option<NodeTerm> {
    let map = field.map()?;
    let expressions = map.get("matchExpressions").map(|f| {
        f.items().filter_map(|item| expression(&item, LabelOwner::Node, NODE_OPERATORS)).collect()
    });
    let fields = map
        .get("matchFields")
        .map(|f| f.items().filter_map(|item| field_expression(&item)).collect());
    map.finish(Severity::Warning);
    Some(NodeTerm {
        expressions: expressions.unwrap_or_default(),
        fields: fields.unwrap_or_default(),
    })
}

fn field_expression(field: &Field<'_>) -> Option<Expression> {
    let read = expression(field, LabelOwner::Object, &[Operator::In, Operator::NotIn])?;
    if read.key.as_str() != "metadata.name" || read.values.len() != 1 {
        field.error("must compare `metadata.name` with exactly one value", None);
        return None;
    }
    Some(read)
}

fn weighted<T>(
    field: &Field<'_>,
    key: &'static str,
    read: impl Fn(&Field<'_>) -> Option<T>,
) -> Option<(i32, T)> {
    let map = field.map()?;
    let weight = map.required("weight").and_then(|f| {
        let weight = f.int::<i32>(1)?;
        if weight > WEIGHT_MAX {
            f.error(format_args!("is {weight}, above {WEIGHT_MAX}"), None);
        }
        Some(weight.min(WEIGHT_MAX))
    });
    let term = map.required(key).and_then(|f| read(&f));
    map.finish(Severity::Warning);
    Some((weight?, term?))
}

fn pod_affinity(field: &Field<'_>) -> PodAffinity {
    let Some(map) = field.map() else { return PodAffinity::default() };
    let required =
        map.get(REQUIRED).map(|f| f.items().filter_map(|item| pod_term(&item)).collect());
    let preferred = map.get(PREFERRED).map(|f| {
        f.items().filter_map(|item| weighted(&item, "podAffinityTerm", pod_term)).collect()
    });
    map.finish(Severity::Warning);
    PodAffinity { required: required.unwrap_or_default(), preferred: preferred.unwrap_or_default() }
}

fn pod_term(field: &Field<'_>) -> Option<PodAffinityTerm> {
    let map = field.map()?;
    let term = pod_term_of(&map);
    require_selector(&map);
    map.finish(Severity::Warning);
    term
}

fn pod_term_of(map: &FieldMap<'_>) -> Option<PodAffinityTerm> {
    let selector_of = |key| map.get(key).and_then(|f| selector(&f));
    let (selector, namespace_selector) =
        (selector_of("labelSelector"), selector_of("namespaceSelector"));
    let namespaces = map.get("namespaces").map(|f| f.text_list()).unwrap_or_default();
    let match_label_keys = label_keys(map.get("matchLabelKeys"), LabelOwner::Object);
    let mismatch_label_keys = label_keys(map.get("mismatchLabelKeys"), LabelOwner::Object);
    let topology_key = map.required("topologyKey").and_then(|f| label_key(&f, LabelOwner::Node))?;
    Some(PodAffinityTerm {
        selector,
        topology_key,
        namespaces,
        namespace_selector,
        match_label_keys,
        mismatch_label_keys,
    })
}

/// Returns the node selector term of a legacy volume's zone and region labels.
pub(in super::super) fn legacy_zone_term(labels: &Labels) -> Option<NodeTerm> {
    let one_of =
        |(name, values): (&crate::model::ids::LabelKey, &crate::model::ids::LabelValue)| {
            Expression {
                key: LabelOwner::Node.key(name.as_str()),
                operator: Operator::In,
                values: values.as_str().split("__").map(Into::into).collect(),
            }
        };
    let topology =
        |name: &str| [key::ZONE, key::REGION].contains(&LabelOwner::Node.key(name).as_str());
    let expressions: Vec<Expression> =
        labels.iter().filter(|(name, _)| topology(name.as_str())).map(one_of).collect();
    (!expressions.is_empty()).then(|| NodeTerm { expressions, fields: Vec::new() })
}
