//! Limits of a namespace on its pods: `LimitRange` and `ResourceQuota`.

use super::cluster_objects::definition;
use super::collector::Collector;
use super::decode::{Field, FieldMap, shorten};
use super::object_meta::ObjectMeta;
use super::resource_list::{non_negative_quantity, resource_list};
use crate::model::desired::{LimitRangeItem, LimitScope, QuotaScope, ResourceQuota, Severity};
use crate::model::pod::ResourceList;
use crate::model::requirement::Operator;

/// Prefixes of quota keys that are amounts of a resource.
const QUOTA_PREFIXES: [&str; 2] = ["requests.", "limits."];

/// Quota keys without a prefix that are supported.
const QUOTA_PLAIN: [&str; 5] = ["cpu", "memory", "ephemeral-storage", "pods", "count/pods"];

/// Reads the items of a `LimitRange` that apply to containers and pods.
pub(super) fn limit_range(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let Some(limits) = spec.required("limits") else { return };
    let item = |item: Field<'_>| limit_range_item(&item.map()?, &meta.name);
    let items: Vec<LimitRangeItem> = limits.items().filter_map(item).collect();
    let definition =
        definition("LimitRange", &format!("{}/{}", meta.namespace, meta.name), &meta, root);
    let key = (meta.namespace, meta.name);
    into.insert(definition, |all| &mut all.limit_ranges, key, items, Vec::eq);
}

/// Reads one item, with the defaults of the API server; `None` if it applies to volumes.
///
/// Source: `k8s.io/kubernetes/pkg/apis/core/v1`, `SetDefaults_LimitRangeItem`.
fn limit_range_item(map: &FieldMap<'_>, range: &str) -> Option<LimitRangeItem> {
    let kind = map.required("type")?.text()?;
    let scope = match &*kind {
        "Container" => LimitScope::Container,
        "Pod" => LimitScope::Pod,
        _ => return None,
    };
    let read = |key| map.get(key).map(|field| resource_list(&field)).unwrap_or_default();
    let (max, min) = (read("max"), read("min"));
    let (mut limit, mut request) = (read("default"), read("defaultRequest"));
    let max_ratio = map.get("maxLimitRequestRatio").map(|field| ratios(&field));
    map.finish(Severity::Warning);
    match scope {
        LimitScope::Pod => {
            // Only containers have defaults; the API server rejects them here.
            (limit, request) = (ResourceList::new(), ResourceList::new());
        }
        LimitScope::Container => {
            for (name, amount) in &max {
                limit.entry(name.clone()).or_insert(*amount);
            }
            for (name, amount) in limit.iter().chain(&min) {
                request.entry(name.clone()).or_insert(*amount);
            }
        }
    }
    Some(LimitRangeItem {
        range: range.to_owned(),
        scope,
        default_request: request,
        default_limit: limit,
        min,
        max,
        max_ratio: max_ratio.unwrap_or_default(),
    })
}

/// Reads ratios, in thousandths.
fn ratios(field: &Field<'_>) -> ResourceList {
    let Some(map) = field.map() else { return ResourceList::new() };
    let ratio = |(name, value): (&str, Field<'_>)| {
        Some((name.into(), non_negative_quantity(&value)?.ceil_milli()))
    };
    map.entries().filter_map(ratio).collect()
}

/// Reads a `ResourceQuota`.
pub(super) fn resource_quota(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let hard = spec.get("hard").map(|field| hard(&field)).unwrap_or_default();
    let mut scopes: Vec<QuotaScope> = spec
        .get("scopes")
        .map(|f| f.text_list().iter().map(|name| scope(name, None)).collect())
        .unwrap_or_default();
    if let Some(selector) = spec.get("scopeSelector").as_ref().and_then(Field::map)
        && let Some(expressions) = selector.get("matchExpressions")
    {
        scopes.extend(expressions.items().filter_map(|item| scope_expression(&item)));
    }
    spec.finish(Severity::Warning);
    let name = format!("{}/{}", meta.namespace, meta.name);
    let definition = definition("ResourceQuota", &name, &meta, root);
    let ObjectMeta { name, namespace, origin, .. } = meta;
    let key = (namespace.clone(), name.clone());
    let quota = ResourceQuota { namespace, name, origin, hard, scopes };
    let same = |a: &ResourceQuota, b: &ResourceQuota| {
        ResourceQuota { origin: b.origin.clone(), ..a.clone() } == *b
    };
    into.insert(definition, |all| &mut all.quotas, key, quota, same);
}

/// Reads the amounts of a quota that apply to pods.
fn hard(field: &Field<'_>) -> ResourceList {
    let Some(map) = field.map() else { return ResourceList::new() };
    let about_pods = |(key, value): (&str, Field<'_>)| {
        let resource = QUOTA_PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix));
        // Claims request storage, not pods.
        let known = resource.is_some_and(|name| name != "storage")
            || QUOTA_PLAIN.contains(&key)
            || key.starts_with("hugepages-");
        let quantity = non_negative_quantity(&value).filter(|_| known)?;
        let units = match resource.unwrap_or(key) {
            "cpu" => quantity.ceil_milli(),
            _ => quantity.ceil_units(),
        };
        Some((key.into(), units))
    };
    map.entries().filter_map(about_pods).collect()
}

fn scope_expression(field: &Field<'_>) -> Option<QuotaScope> {
    let map = field.map()?;
    let operators = [
        ("In", Operator::In),
        ("NotIn", Operator::NotIn),
        ("Exists", Operator::Exists),
        ("DoesNotExist", Operator::DoesNotExist),
    ];
    let name = map.required("scopeName").and_then(|f| f.non_empty_text());
    let operator = map.required("operator").and_then(|f| f.choice(&operators));
    let values = map.get("values").map(|f| f.text_list()).unwrap_or_default();
    map.finish(Severity::Warning);
    Some(scope(&name?, Some((operator?, values))))
}

fn scope(name: &str, of_class: Option<(Operator, Vec<String>)>) -> QuotaScope {
    match name {
        "BestEffort" => QuotaScope::BestEffort,
        "NotBestEffort" => QuotaScope::NotBestEffort,
        "PriorityClass" => {
            let (operator, values) = of_class.unwrap_or((Operator::Exists, Vec::new()));
            QuotaScope::PriorityClass(operator, values)
        }
        other => QuotaScope::Unknown(shorten(other).into_owned()),
    }
}
