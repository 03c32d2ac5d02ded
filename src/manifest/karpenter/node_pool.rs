//! `NodePool`, v1 and v1beta1.

use std::collections::BTreeMap;

use jiff::SignedDuration;

use super::super::collector::Collector;
use super::super::cron;
use super::super::decode::{Field, FieldMap, shorten};
use super::super::object_meta::ObjectMeta;
use super::super::pod_spec::taints;
use super::super::resource_list::resource_list;
use super::super::yaml::YamlNode;
use super::conversion_annotations::converted_kubelet;
use super::kubelet::kubelet;
use super::requirements::{pool_labels, pool_requirements};
use super::template_annotations::{TemplateAnnotations, template_annotations};
use super::{add_pool, check_taints, finish_root, weight};
use crate::model::desired::{
    AutoModePool, Budget, BudgetNodes, Consolidation, Expiry, Generation, Pool, PoolLimits,
};
use crate::model::fargate::{AUTO, COMPUTE_TYPE};
use crate::model::ids::NodeClassName;
use crate::model::requirement::label;
use crate::model::units::ResourceName;

/// Default `expireAfter`: 720 h.
const EXPIRE_AFTER: SignedDuration = SignedDuration::from_hours(720);

/// Default number of nodes of a budget.
const DEFAULT_BUDGET: BudgetNodes = BudgetNodes::Percent(10);

/// Maximum budgets of a pool.
const BUDGETS_MAX: usize = 50;

/// Name of the limit on the number of nodes.
const NODES: &str = "nodes";

/// API group of the node classes.
const GROUP: &str = "karpenter.k8s.aws";

/// API group of the node classes of EKS Auto Mode.
const EKS: &str = "eks.amazonaws.com";

const REASONS: [(&str, &str); 3] =
    [("Underutilized", "Underutilized"), ("Empty", "Empty"), ("Drifted", "Drifted")];

/// The settings of `spec.disruption`.
struct Disruption {
    consolidation: Consolidation,
    consolidate_after: Option<SignedDuration>,
    budgets: Vec<Budget>,
    /// Only v1beta1 has this field here.
    expire_after: Option<Expiry>,
}

/// Reads a `NodePool` of `generation`.
pub(in super::super) fn node_pool(
    generation: Generation,
    meta: &ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) {
    finish_root(root);
    let Some(spec) = root.required("spec") else { return };
    if is_eks_auto_mode(&spec) {
        let why =
            "belongs to EKS Auto Mode, which manages the nodes of this pool: the pool is ignored";
        spec.warn(why, None);
        if let Some(pool) = spec.scope.attempt(|| auto_mode_pool(&spec, generation)).flatten() {
            into.desired.auto_mode_pools.entry(meta.name.as_str().into()).or_insert(pool);
        }
        return;
    }
    let Some(spec) = spec.map() else { return };
    let template = spec.required("template");
    let disruption = spec.get("disruption");
    let disruption = disruption.as_ref().and_then(Field::map);
    let disruption = disruption_of(disruption.as_ref(), generation);
    let pool = template.and_then(|field| template_of(&field, generation, meta));
    let limits = spec.get("limits").map(|field| limits(&field)).unwrap_or_default();
    let weighted = spec.get("weight");
    let replicas = spec.get("replicas").and_then(|field| field.int(0));
    if let Some(replicas) = replicas {
        check_static(replicas, weighted.as_ref(), &limits, &spec);
    }
    let weight = weight(weighted);
    spec.finish_with_typo_check();
    let converted = if generation == Generation::V1 { converted_kubelet(root) } else { None };
    let Some(pool) = pool else { return };
    let kubelet = converted.or(pool.kubelet);
    let expire_after = disruption.expire_after.unwrap_or(pool.expire_after);
    let Disruption { consolidation, consolidate_after, budgets, .. } = disruption;
    let pool = Pool {
        kubelet,
        limits,
        weight,
        replicas,
        consolidation,
        consolidate_after,
        budgets,
        expire_after,
        ..pool
    };
    add_pool(pool, root, into);
}

fn check_static(
    replicas: u32,
    weight: Option<&Field<'_>>,
    limits: &PoolLimits,
    spec: &FieldMap<'_>,
) {
    if let Some(limit) = limits.nodes.filter(|limit| *limit < replicas)
        && let Some(field) = spec.get("replicas")
    {
        field.warn(
            format_args!("is {replicas}, above `limits.nodes` {limit}: the pool has {limit} nodes"),
            "raise `limits.nodes`, or lower `replicas`".to_owned(),
        );
    }
    if let Some(weight) = weight {
        let hint = "pods never choose a pool with `replicas`; remove `weight`".to_owned();
        weight.error("conflicts with `replicas`", hint);
    }
    if !limits.resources.is_empty()
        && let Some(limits) = spec.get("limits")
    {
        let hint = "keep `limits.nodes` alone".to_owned();
        limits.error("limits resources of a pool with `replicas`", hint);
    }
}

/// Reads `spec.template` into a pool with default values elsewhere.
fn template_of(field: &Field<'_>, generation: Generation, meta: &ObjectMeta) -> Option<Pool> {
    let template = field.map()?;
    let metadata = template.get("metadata");
    let metadata = metadata.as_ref().and_then(Field::map);
    let of_metadata = |key| metadata.as_ref().and_then(|map| map.get(key));
    let labels = pool_labels(of_metadata("labels"));
    let TemplateAnnotations { of_nodes, do_not_disrupt } =
        template_annotations(of_metadata("annotations"));
    if let Some(metadata) = &metadata {
        metadata.finish_with_typo_check();
    }
    let spec = template.required("spec");
    let spec = spec.as_ref().and_then(Field::map)?;
    template.finish_with_typo_check();
    let node_class =
        spec.required("nodeClassRef").and_then(|field| node_class_ref(&field, generation));
    let requirements = pool_requirements(spec.required("requirements"), generation);
    let (steady, startup) = (taints(spec.get("taints")), taints(spec.get("startupTaints")));
    check_taints(&spec.field, &steady, &startup);
    let beta = generation == Generation::V1beta1;
    let kubelet = if beta { spec.get("kubelet").map(|f| kubelet(&f)) } else { None };
    let expire_after =
        if beta { None } else { spec.get("expireAfter").and_then(|f| whole_units_or_never(&f)) };
    let grace_period = if beta { None } else { spec.get("terminationGracePeriod") };
    let termination_grace_period = grace_period.and_then(|field| whole_units(&field));
    if beta {
        spec.ignore(&["resources"]);
    }
    spec.finish_with_typo_check();
    Some(Pool {
        name: meta.name.as_str().into(),
        origin: meta.origin.clone(),
        generation,
        node_class,
        labels,
        annotations: of_nodes,
        do_not_disrupt,
        requirements,
        taints: steady,
        startup_taints: startup,
        kubelet,
        limits: PoolLimits::default(),
        weight: 0,
        replicas: None,
        consolidation: Consolidation::WhenEmptyOrUnderutilized,
        consolidate_after: None,
        budgets: Vec::new(),
        expire_after: expire_after.unwrap_or(Expiry::After(EXPIRE_AFTER)),
        termination_grace_period,
        unreadable: None,
    })
}

/// Reads a mapping of strings.
pub(super) fn string_map(field: &Field<'_>) -> BTreeMap<String, String> {
    let Some(map) = field.map() else { return BTreeMap::new() };
    let text = |(key, value): (&str, Field<'_>)| Some((key.to_owned(), value.text()?.into_owned()));
    map.entries().filter_map(text).collect()
}

/// Returns whether the pool's node class belongs to EKS Auto Mode, which launches the nodes itself.
fn is_eks_auto_mode(spec: &Field<'_>) -> bool {
    let of = |node: &YamlNode<'_>| {
        let class = node.get("template")?.get("spec")?.get("nodeClassRef")?;
        let text = |key| class.get(key).and_then(|value| value.text().map(ToOwned::to_owned));
        let version = text("apiVersion");
        let group = version.as_deref().and_then(|version| version.split_once('/'));
        let group = text("group").or_else(|| Some(group?.0.to_owned()));
        Some(group? == EKS && text("kind").is_none_or(|kind| kind == "NodeClass"))
    };
    of(spec.node).unwrap_or(false)
}

/// Reads what decides the pods of a pool of EKS Auto Mode.
fn auto_mode_pool(spec: &Field<'_>, generation: Generation) -> Option<AutoModePool> {
    let spec = spec.map()?;
    let template = spec.required("template")?.map()?;
    let metadata = template.get("metadata");
    let metadata = metadata.as_ref().and_then(Field::map);
    let mut labels = pool_labels(metadata.as_ref().and_then(|map| map.get("labels")));
    labels.extend([label(COMPUTE_TYPE, AUTO)]);
    let spec = template.required("spec")?.map()?;
    let requirements = pool_requirements(spec.get("requirements"), generation);
    Some(AutoModePool { labels, requirements, taints: taints(spec.get("taints")) })
}

fn node_class_ref(field: &Field<'_>, generation: Generation) -> Option<NodeClassName> {
    let map = field.map()?;
    if generation == Generation::V1 {
        for key in ["group", "kind"] {
            map.required(key);
        }
    }
    let name = map.required("name").and_then(|name| name.non_empty_text());
    if let Some(kind) = map.get("kind")
        && let Some(text) = kind.text()
        && text != "EC2NodeClass"
    {
        kind.error(
            format_args!("is `{}`, a node class that is not supported", shorten(&text)),
            format!("only EC2NodeClass of {GROUP} is"),
        );
    }
    if let Some(group) = map.get("group")
        && let Some(text) = group.text()
        && text != GROUP
    {
        group.error(
            format_args!("is `{}`, whose node classes are not supported", shorten(&text)),
            format!("only EC2NodeClass of {GROUP} is"),
        );
    }
    map.ignore(&["apiVersion"]);
    map.finish_with_typo_check();
    Some(NodeClassName::from(&*name?))
}

fn disruption_of(map: Option<&FieldMap<'_>>, generation: Generation) -> Disruption {
    let mut read = Disruption {
        consolidation: Consolidation::WhenEmptyOrUnderutilized,
        consolidate_after: Some(SignedDuration::ZERO),
        budgets: vec![default_budget()],
        expire_after: None,
    };
    let Some(map) = map else { return read };
    if let Some(policy) = map.get("consolidationPolicy").and_then(|f| policy(&f, generation)) {
        read.consolidation = policy;
    }
    match map.get("consolidateAfter").and_then(|field| whole_units_or_never(&field)) {
        Some(Expiry::After(after)) => read.consolidate_after = Some(after),
        Some(Expiry::Never) => read.consolidate_after = None,
        None => {}
    }
    if let Some(budgets) = map.get("budgets") {
        read.budgets = budgets.items().filter_map(|item| budget(&item.map()?)).collect();
        let count = budgets.items().count();
        if count > BUDGETS_MAX {
            budgets.error(format_args!("lists {count} budgets, more than {BUDGETS_MAX}"), None);
        }
    }
    if generation == Generation::V1beta1 {
        read.expire_after = map.get("expireAfter").and_then(|field| whole_units_or_never(&field));
    }
    map.finish_with_typo_check();
    read
}

/// Reads a duration of whole hours, minutes and seconds, as the API server does, or `Never`.
fn whole_units_or_never(field: &Field<'_>) -> Option<Expiry> {
    let expiry = field.duration_or_never()?;
    let is_whole = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'h' | b'm' | b's');
    let text = field.text().unwrap_or_default();
    let has_millis = text.contains("ms") || text.ends_with(|last: char| last.is_ascii_digit());
    if text != "Never" && (has_millis || !text.bytes().all(is_whole)) {
        field.error(
            format_args!("is `{}`, not in whole hours, minutes and seconds", shorten(&text)),
            "write it as 30s, 5m, 1h30m or 720h".to_owned(),
        );
    }
    Some(expiry)
}

/// Reads a duration of whole hours, minutes and seconds, as the API server does.
fn whole_units(field: &Field<'_>) -> Option<SignedDuration> {
    let duration = field.duration()?;
    whole_units_or_never(field);
    Some(duration)
}

/// Returns the budget of a pool without `budgets`. An empty list sets no limit.
fn default_budget() -> Budget {
    Budget { nodes: DEFAULT_BUDGET, reasons: Vec::new(), schedule: None, duration: None }
}

fn policy(field: &Field<'_>, generation: Generation) -> Option<Consolidation> {
    let policies = [
        ("WhenEmpty", Consolidation::WhenEmpty),
        ("WhenEmptyOrUnderutilized", Consolidation::WhenEmptyOrUnderutilized),
        ("WhenUnderutilized", Consolidation::WhenEmptyOrUnderutilized),
        ("Balanced", Consolidation::Balanced),
    ];
    let policy = field.choice(&policies)?;
    let old_name = field.node.text() == Some("WhenUnderutilized");
    if policy == Consolidation::WhenEmptyOrUnderutilized
        && old_name != (generation == Generation::V1beta1)
    {
        let name = if old_name { "WhenEmptyOrUnderutilized" } else { "WhenUnderutilized" };
        field.warn("is the name of another version of the API", format!("write {name}"));
    }
    Some(policy)
}

fn budget(map: &FieldMap<'_>) -> Option<Budget> {
    let nodes = match map.get("nodes") {
        Some(nodes) => budget_nodes(&nodes),
        None => Some(DEFAULT_BUDGET),
    };
    let reasons = map.get("reasons").map(|field| {
        let reason = |item: Field<'_>| item.choice(&REASONS).map(ToOwned::to_owned);
        field.items().filter_map(reason).collect::<Vec<String>>()
    });
    let (schedule, duration) = (map.get("schedule"), map.get("duration"));
    if schedule.is_some() != duration.is_some() {
        map.field.error("has one of `schedule` and `duration`; both or neither are needed", None);
    }
    let schedule = schedule.and_then(|field| cron::expression(&field));
    let duration = duration.and_then(|field| {
        let duration = field.duration()?;
        if !field.text().is_some_and(|text| is_in_hours_and_minutes(&text)) {
            field.error("is not in hours and minutes", "write it as 10m, 2h or 1h30m".to_owned());
        }
        Some(duration)
    });
    map.finish_with_typo_check();
    Some(Budget { nodes: nodes?, reasons: reasons.unwrap_or_default(), schedule, duration })
}

/// Returns true for a duration such as `10m`, `2h` or `1h30m`, with or without `0s` behind it.
fn is_in_hours_and_minutes(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_minutes = |text: &str| text.strip_suffix('m').is_some_and(is_number);
    let text = text.strip_suffix("0s").filter(|rest| rest.ends_with(['h', 'm'])).unwrap_or(text);
    match text.split_once('h') {
        Some((hours, minutes)) => is_number(hours) && (minutes.is_empty() || is_minutes(minutes)),
        None => is_minutes(text),
    }
}

fn budget_nodes(field: &Field<'_>) -> Option<BudgetNodes> {
    let text = field.text_or_number()?;
    let nodes = BudgetNodes::parse(&text);
    if nodes.is_none() {
        field.error(
            format_args!("is `{}`, neither a number of nodes nor a share", shorten(&text)),
            "write 5 or 10%".to_owned(),
        );
    }
    nodes
}

/// Reads limits: amounts of resources, and a number of nodes.
pub(super) fn limits(field: &Field<'_>) -> PoolLimits {
    let mut resources = resource_list(field);
    let nodes = resources.remove(&ResourceName::from(NODES));
    PoolLimits { resources, nodes: nodes.map(|nodes| u32::try_from(nodes).unwrap_or(u32::MAX)) }
}
