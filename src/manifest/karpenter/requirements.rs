//! Requirements and labels of pools.

use super::super::decode::{Field, FieldMap};
use super::super::labels::{
    LabelOwner, NODE_OPERATORS, expression_of, label_key, label_value, labels,
};
use crate::model::desired::{Generation, PoolRequirement};
use crate::model::ids::{LabelValue, Labels};
use crate::model::pod::Expression;
use crate::model::requirement::{Operator, is_restricted, key, known_values, similar_keys};

/// Operators of pool requirements in v1.
const V1_OPERATORS: &[Operator] = &[
    Operator::In,
    Operator::NotIn,
    Operator::Exists,
    Operator::DoesNotExist,
    Operator::Gt,
    Operator::Lt,
    Operator::Gte,
    Operator::Lte,
];

/// Maximum number of requirements of one pool.
const REQUIREMENTS_MAX: usize = 100;

/// Maximum of `minValues`.
const MIN_VALUES_MAX: u32 = 50;

/// Reads the labels of a pool's nodes.
pub(super) fn pool_labels(field: Option<Field<'_>>) -> Labels {
    let Some(field) = field else { return Labels::new() };
    let labels = labels(&field, LabelOwner::Node);
    for name in labels.keys() {
        check_restricted(&field, name.as_str());
    }
    labels
}

/// Reads the requirements of a pool.
pub(super) fn pool_requirements(
    field: Option<Field<'_>>,
    generation: Generation,
) -> Vec<PoolRequirement> {
    requirements(field, generation, check_restricted)
}

/// Reads the requirements of an overlay, which may name a pool.
pub(super) fn overlay_requirements(
    field: Option<Field<'_>>,
    generation: Generation,
) -> Vec<PoolRequirement> {
    requirements(field, generation, |field, name| {
        if name != key::NODEPOOL {
            check_restricted(field, name);
        }
    })
}

fn requirements(
    field: Option<Field<'_>>,
    generation: Generation,
    check_key: fn(&Field<'_>, &str),
) -> Vec<PoolRequirement> {
    let Some(field) = field else { return Vec::new() };
    let requirement = |item: Field<'_>| pool_requirement(&item.map()?, generation, check_key);
    let requirements: Vec<PoolRequirement> = field.items().filter_map(requirement).collect();
    if requirements.len() > REQUIREMENTS_MAX {
        let count = requirements.len();
        field.error(format_args!("lists {count} requirements, more than {REQUIREMENTS_MAX}"), None);
    }
    requirements
}

fn pool_requirement(
    map: &FieldMap<'_>,
    generation: Generation,
    check_key: fn(&Field<'_>, &str),
) -> Option<PoolRequirement> {
    let allowed = if generation == Generation::V1 { V1_OPERATORS } else { NODE_OPERATORS };
    let expression = if excludes_nothing(map) {
        any_value(map)
    } else if let Some(operator) = operator_with_unread_values(map) {
        presence(map, operator)
    } else {
        expression_of(map, LabelOwner::Node, allowed)
    };
    let min_values = map.get("minValues").and_then(|field| {
        let least = field.int::<u32>(1)?;
        if least > MIN_VALUES_MAX {
            field.error(format_args!("is {least}, above {MIN_VALUES_MAX}"), None);
        }
        Some(least)
    });
    map.finish_with_typo_check();
    let expression = expression?;
    check_key(&map.field, expression.key.as_str());
    let requirement = PoolRequirement {
        key: expression.key,
        operator: expression.operator,
        values: expression.values,
        min_values,
    };
    check_values(&map.field, &requirement);
    check_known_values(&map.field, &requirement);
    Some(requirement)
}

/// Returns the expression of `NotIn` without values, which leaves the value open.
fn any_value(map: &FieldMap<'_>) -> Option<Expression> {
    map.ignore(&["operator", "values"]);
    let key = label_key(&map.required("key")?, LabelOwner::Node)?;
    Some(Expression { key, operator: Operator::Exists, values: Vec::new() })
}

/// Returns true for `NotIn` without values, which Karpenter accepts.
fn excludes_nothing(map: &FieldMap<'_>) -> bool {
    let operator = map.get("operator").and_then(|field| field.node.text());
    operator == Some("NotIn") && map.get("values").is_none_or(|field| field.items().count() == 0)
}

/// Returns `Exists` or `DoesNotExist` if it has values. The API server accepts them, and Karpenter does
/// not read them.
///
/// Source: karpenter core, `pkg/scheduling/requirement.go`.
fn operator_with_unread_values(map: &FieldMap<'_>) -> Option<Operator> {
    let operator = map.get("operator").and_then(|field| field.node.text())?;
    let operator = Operator::from_name(operator)
        .filter(|known| matches!(known, Operator::Exists | Operator::DoesNotExist))?;
    map.get("values").is_some_and(|field| field.items().count() > 0).then_some(operator)
}

/// Returns the expression of an operator whose values have no effect.
fn presence(map: &FieldMap<'_>, operator: Operator) -> Option<Expression> {
    let values = map.get("values")?;
    values.warn("has no effect with this operator", "remove it, or write In".to_owned());
    let listed = values.items().count();
    if values.items().filter_map(|item| label_value(&item)).count() < listed {
        return None;
    }
    let key = label_key(&map.required("key")?, LabelOwner::Node)?;
    Some(Expression { key, operator, values: Vec::new() })
}

fn check_values(field: &Field<'_>, requirement: &PoolRequirement) {
    let PoolRequirement { key, operator, values, min_values } = requirement;
    let is_bound = match operator {
        Operator::Gt | Operator::Lt | Operator::Gte | Operator::Lte => true,
        Operator::In | Operator::NotIn | Operator::Exists | Operator::DoesNotExist => false,
    };
    if let Some(negative) = values.iter().find(|v| is_bound && v.as_str().starts_with('-')) {
        field.error(format_args!("for `{key}` compares with {negative}, below zero"), None);
    }
    let listed = u32::try_from(values.len()).unwrap_or(u32::MAX);
    if let Some(least) = min_values.filter(|least| *operator == Operator::In && listed < *least) {
        field.error(
            format_args!("for `{key}` asks for {least} distinct values and lists {listed}"),
            "list more values, or lower minValues".to_owned(),
        );
    }
}

/// Reports values that a well-known key never has. If no other value is listed, no node can meet
/// the requirement, and Karpenter keeps the pool not Ready.
///
/// Source: karpenter core, `pkg/apis/v1/nodeclaim_validation.go`.
fn check_known_values(field: &Field<'_>, requirement: &PoolRequirement) {
    let PoolRequirement { key, operator, values, min_values: _ } = requirement;
    let Some(known) = known_values(key.as_str()).filter(|_| *operator == Operator::In) else {
        return;
    };
    let is_known = |value: &&LabelValue| known.contains(&value.as_str());
    let (good, bad): (Vec<&LabelValue>, Vec<&LabelValue>) = values.iter().partition(is_known);
    let Some(first) = bad.first() else { return };
    let message = format!("for `{key}` lists `{first}`, which no node has");
    let hint = format!("values are {}", known.join(", "));
    if good.is_empty() {
        field.error(message, hint);
    } else {
        field.warn(message, hint);
    }
}

fn check_restricted(field: &Field<'_>, name: &str) {
    let own = [key::NODEPOOL, key::PROVISIONER].contains(&name);
    if own || is_restricted(name) {
        let mut similar = similar_keys(name);
        similar.retain(|key| *key != name);
        let hint = match similar.as_slice() {
            [] => "Karpenter reserves this label; use one of your own domain".to_owned(),
            similar => format!("did you mean `{}`?", similar.join("` or `")),
        };
        field.error(format_args!("uses the label `{name}`, which pools may not set"), hint);
    }
}
