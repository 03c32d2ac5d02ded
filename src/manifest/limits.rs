//! What a namespace lets its pods ask for: `LimitRange` and `ResourceQuota`.

use super::amounts::{amount, amounts};
use super::cluster::named;
use super::collect::Collected;
use super::decode::{Field, Map, shorten};
use super::meta::Meta;
use super::model::{LimitRangeItem, LimitScope, QuotaScope, ResourceQuota, Severity};
use crate::pod::Amounts;
use crate::requirement::Operator;

/// Prefixes of the keys of a quota that are amounts of a resource.
const QUOTA_PREFIXES: [&str; 2] = ["requests.", "limits."];

/// Resources whose amounts a quota may also limit without a prefix, and the number of pods.
const QUOTA_PLAIN: [&str; 5] = ["cpu", "memory", "ephemeral-storage", "pods", "count/pods"];

/// Reads the items of a `LimitRange` that are about containers and pods.
pub(super) fn limit_range(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let Some(spec) = root.need("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let Some(limits) = spec.need("limits") else { return };
    let item = |item: Field<'_>| limit_range_item(&item.map()?, &meta.name);
    let items: Vec<LimitRangeItem> = limits.items().filter_map(item).collect();
    let named = named("LimitRange", &format!("{}/{}", meta.namespace, meta.name), &meta, root);
    let entry = ((meta.namespace, meta.name), items);
    into.insert(named, |all| &mut all.limit_ranges, entry, Vec::eq);
}

/// Reads one item, with the defaults that the API server derives; `None` if it is about volumes.
///
/// Source: `k8s.io/kubernetes/pkg/apis/core/v1`, `SetDefaults_LimitRangeItem`.
fn limit_range_item(map: &Map<'_>, range: &str) -> Option<LimitRangeItem> {
    let kind = map.need("type")?.text()?;
    let scope = match &*kind {
        "Container" => LimitScope::Container,
        "Pod" => LimitScope::Pod,
        _ => return None,
    };
    let read = |key| map.get(key).map(|field| amounts(&field)).unwrap_or_default();
    let (max, min) = (read("max"), read("min"));
    let (mut limit, mut request) = (read("default"), read("defaultRequest"));
    let max_ratio = map.get("maxLimitRequestRatio").map(|field| ratios(&field));
    map.finish(Severity::Warning);
    match scope {
        LimitScope::Pod => {
            // Defaults are given to containers alone; the API server refuses them here.
            (limit, request) = (Amounts::new(), Amounts::new());
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
fn ratios(field: &Field<'_>) -> Amounts {
    let Some(map) = field.map() else { return Amounts::new() };
    let ratio =
        |(name, value): (&str, Field<'_>)| Some((name.into(), amount(&value)?.ceil_milli()));
    map.entries().filter_map(ratio).collect()
}

/// Reads a `ResourceQuota`.
pub(super) fn resource_quota(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let Some(spec) = root.need("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let hard = spec.get("hard").map(|field| hard(&field)).unwrap_or_default();
    let mut scopes: Vec<QuotaScope> = spec
        .get("scopes")
        .map(|f| f.texts().iter().map(|name| scope(name, None)).collect())
        .unwrap_or_default();
    if let Some(selector) = spec.get("scopeSelector").as_ref().and_then(Field::map)
        && let Some(expressions) = selector.get("matchExpressions")
    {
        scopes.extend(expressions.items().filter_map(|item| scope_expression(&item)));
    }
    spec.finish(Severity::Warning);
    let name = format!("{}/{}", meta.namespace, meta.name);
    let named = named("ResourceQuota", &name, &meta, root);
    let Meta { name, namespace, origin, .. } = meta;
    let key = (namespace.clone(), name.clone());
    let quota = ResourceQuota { namespace, name, origin, hard, scopes };
    let same = |a: &ResourceQuota, b: &ResourceQuota| {
        ResourceQuota { origin: b.origin.clone(), ..a.clone() } == *b
    };
    into.insert(named, |all| &mut all.quotas, (key, quota), same);
}

/// Reads the amounts of a quota that are about pods.
fn hard(field: &Field<'_>) -> Amounts {
    let Some(map) = field.map() else { return Amounts::new() };
    let about_pods = |(key, value): (&str, Field<'_>)| {
        let resource = QUOTA_PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix));
        // Storage is requested by claims, not by pods.
        let known = resource.is_some_and(|name| name != "storage")
            || QUOTA_PLAIN.contains(&key)
            || key.starts_with("hugepages-");
        let quantity = amount(&value).filter(|_| known)?;
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
    let name = map.need("scopeName").and_then(|f| f.filled());
    let operator = map.need("operator").and_then(|f| f.choice(&operators));
    let values = map.get("values").map(|f| f.texts()).unwrap_or_default();
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
