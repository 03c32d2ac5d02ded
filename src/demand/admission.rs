//! Pods that the API server rejects, or that exceed a quota.
//!
//! A rejected pod never runs, so capacity for it is wasted, but leaving it out hides the mistake.
//! This module therefore reports an error and leaves the demand unchanged. It applies the rules of
//! the `LimitRanger` and of quotas to pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::requests::{
    admitted, aggregate, is_pod_level, own_requests, pod_level_requests, pod_limits,
};
use super::{Demand, PodGroup};
use crate::model::code::Code;
use crate::model::desired::{
    Desired, LimitRangeItem, LimitScope, Problem, QuotaScope, ResourceQuota, Workload,
};
use crate::model::ids::{Namespace, WorkloadId};
use crate::model::pod::{Container, ContainerResources, PodSpec, PodTemplate, ResourceList};
use crate::model::requirement::Operator;
use crate::model::units::{Bytes, MilliCpu, ResourceName, Resources};

/// Returns an error for each admission rule that rejects the pods of `workload`.
pub(super) fn admission_errors(workload: &Workload, desired: &Desired) -> Vec<Problem> {
    let items = desired.limit_ranges.get(&workload.id.namespace).map_or(&[][..], Vec::as_slice);
    let mut check = AdmissionCheck { items, violations: Vec::new() };
    check.check_pod(&workload.template.spec);
    let problem = |Violation { message, hint }: Violation| {
        Problem::error(
            workload.origin.clone(),
            format!("{} {}", workload.id.kind, workload.id),
            format!("the API server refuses its pods: {message}"),
        )
        .hint(hint)
        .code(Code::AdmissionRejected)
    };
    check.violations.into_iter().map(problem).collect()
}

struct Violation {
    message: String,
    hint: String,
}

/// Requests and limits of a container, or of all containers of a pod.
struct AdmittedResources<'a> {
    /// Name for messages.
    name: &'a str,
    requests: &'a ResourceList,
    limits: &'a ResourceList,
}

struct AdmissionCheck<'a> {
    items: &'a [LimitRangeItem],
    violations: Vec<Violation>,
}

impl AdmissionCheck<'_> {
    fn add_violation(&mut self, message: String, hint: &str) {
        self.violations.push(Violation { message, hint: hint.to_owned() });
    }

    fn check_pod(&mut self, spec: &PodSpec) {
        let items = self.items;
        for container in spec.init_containers.iter().chain(&spec.containers) {
            self.check_container(container);
        }
        self.check_pod_level(spec);
        let requests = |c: &Container| admitted(&c.resources, items).requests;
        let (mut requests, limits) = (aggregate(spec, requests), pod_limits(spec, items));
        if let Some(pod_level) = &spec.resources {
            requests.extend(pod_level_requests(pod_level, spec));
        }
        let whole = AdmittedResources { name: "the pod", requests: &requests, limits: &limits };
        for item in items.iter().filter(|item| item.scope == LimitScope::Pod) {
            self.check_item(item, &whole);
        }
    }

    fn check_container(&mut self, container: &Container) {
        let items = self.items;
        let ContainerResources { requests, limits } = admitted(&container.resources, items);
        for (name, request) in &requests {
            // The reader has compared the container's own limit with the request. This limit comes
            // from the namespace.
            let given = limits.get(name).filter(|_| !container.resources.limits.contains_key(name));
            if let Some(limit) = given.filter(|limit| request > *limit) {
                let (asked, limit) = (format_amount(name, *request), format_amount(name, *limit));
                self.add_violation(
                    format!(
                        "container {} requests {asked} of {name}, more than the limit of {limit} \
                         that a LimitRange gives it",
                        container.name
                    ),
                    "give the container a limit of its own, or lower the request",
                );
            }
        }
        let name = format!("container {}", container.name);
        let part = AdmittedResources { name: &name, requests: &requests, limits: &limits };
        for item in items.iter().filter(|item| item.scope == LimitScope::Container) {
            self.check_item(item, &part);
        }
    }

    /// Checks that pod-level resources cover the containers, whose missing requests and limits the
    /// `LimitRanger` fills before. Pod-level resources have no defaults of a namespace.
    /// Source: `k8s.io/kubernetes/pkg/apis/core/validation`, `validatePodResourceConsistency`.
    fn check_pod_level(&mut self, spec: &PodSpec) {
        let Some(stated) = &spec.resources else { return };
        let items = self.items;
        let filled = |container: &Container| admitted(&container.resources, items);
        let sum = aggregate(spec, |container| filled(container).requests);
        let pod_level = pod_level_requests(stated, spec);
        let hint = "raise what the pod states as a whole, or lower its containers";
        let with_defaults = " with the defaults of a LimitRange";
        let given = |is_given: bool| if is_given { with_defaults } else { "" };
        let own = aggregate(spec, |container| own_requests(&container.resources));
        for (name, asked) in sum.iter().filter(|(name, _)| is_pod_level(name)) {
            let bounds = [("request", pod_level.get(name)), ("limit", stated.limits.get(name))];
            let mut bounds = bounds.into_iter().filter_map(|(what, most)| Some((what, most?)));
            let Some((what, amount)) = bounds.find(|(_, most)| asked > *most) else { continue };
            let given = given(own.get(name) != Some(asked));
            let (asked, amount) = (format_amount(name, *asked), format_amount(name, *amount));
            self.add_violation(
                format!(
                    "its pod-level {what} of {amount} of {name} is below the {asked} that its \
                     containers request{given}"
                ),
                hint,
            );
        }
        for container in &spec.containers {
            for (name, limit) in filled(container).limits {
                let Some(most) = stated.limits.get(&name).filter(|most| limit > **most) else {
                    continue;
                };
                let given = given(container.resources.limits.get(&name) != Some(&limit));
                let (limit, most) = (format_amount(&name, limit), format_amount(&name, *most));
                let container = &container.name;
                self.add_violation(
                    format!(
                        "its pod-level limit of {most} of {name} is below the limit of {limit} of \
                         container {container}{given}"
                    ),
                    hint,
                );
            }
        }
        for name in stated.requests.keys().chain(stated.limits.keys()).filter(|n| !is_pod_level(n))
        {
            self.add_violation(
                format!("{name} is not allowed at pod level"),
                "set it on a container; pod level allows only cpu, memory and hugepages",
            );
        }
    }

    /// Checks the minimum, the maximum and the ratio of a limit range item.
    /// Source: `k8s.io/kubernetes/plugin/pkg/admission/limitranger`, `PodValidateLimitFunc`.
    fn check_item(&mut self, item: &LimitRangeItem, part: &AdmittedResources<'_>) {
        let AdmittedResources { name: subject, requests, limits } = part;
        for (name, least) in &item.min {
            let below = |amount: Option<&i64>| amount.is_some_and(|amount| amount < least);
            let short = if !requests.contains_key(name) {
                "requests none".to_owned()
            } else if below(requests.get(name)) {
                format!("requests {}", format_amount(name, requests[name]))
            } else if below(limits.get(name)) {
                format!("is limited to {}", format_amount(name, limits[name]))
            } else {
                continue;
            };
            let least = format_amount(name, *least);
            let message = format!(
                "LimitRange {} asks for at least {least} of {name}, and {subject} {short}",
                item.range
            );
            self.add_violation(message, "raise the request, or lower the minimum");
        }
        for (name, most) in &item.max {
            let above = |amount: Option<&i64>| amount.is_some_and(|amount| amount > most);
            let excess = if !limits.contains_key(name) {
                "has no limit".to_owned()
            } else if above(limits.get(name)) {
                format!("is limited to {}", format_amount(name, limits[name]))
            } else if above(requests.get(name)) {
                format!("requests {}", format_amount(name, requests[name]))
            } else {
                continue;
            };
            let most = format_amount(name, *most);
            let message = format!(
                "LimitRange {} allows at most {most} of {name}, and {subject} {excess}",
                item.range
            );
            self.add_violation(message, "lower the limit, or raise the maximum");
        }
        self.check_ratio(item, part);
    }

    fn check_ratio(&mut self, item: &LimitRangeItem, part: &AdmittedResources<'_>) {
        let AdmittedResources { name: subject, requests, limits } = part;
        for (name, most) in &item.max_ratio {
            let amount = |of: &ResourceList| of.get(name).copied().filter(|amount| *amount != 0);
            let fault = match (amount(requests), amount(limits)) {
                (Some(request), Some(limit))
                    if i128::from(limit) * 1000 > i128::from(request) * i128::from(*most) =>
                {
                    let (limit, request) =
                        (format_amount(name, limit), format_amount(name, request));
                    format!("is limited to {limit} and requests {request}")
                }
                (Some(_), Some(_)) => continue,
                (None, _) => "requests none".to_owned(),
                (_, None) => "has no limit".to_owned(),
            };
            let most = MilliCpu(*most);
            let message = format!(
                "LimitRange {} allows a limit of at most {most} times the request of {name}, and \
                 {subject} {fault}",
                item.range
            );
            self.add_violation(message, "bring request and limit closer together");
        }
    }
}

/// Returns an amount in Kubernetes notation.
pub(super) fn format_amount(name: &ResourceName, amount: i64) -> String {
    match name.as_str() {
        "cpu" => MilliCpu(amount).to_string(),
        "memory" | "ephemeral-storage" => Bytes(amount).to_string(),
        other if other.starts_with("hugepages-") => Bytes(amount).to_string(),
        _ => amount.to_string(),
    }
}

/// The pods that quotas count.
#[derive(Clone, Copy)]
pub(super) struct QuotaPods<'a> {
    pub(super) demand: &'a Demand,
    pub(super) desired: &'a Desired,
    /// Templates that a vertical autoscaler changes before quotas are checked.
    pub(super) sized: &'a BTreeMap<WorkloadId, Arc<PodTemplate>>,
}

/// Returns a warning for each quota that the planned pods of its namespace exceed, and for each
/// quota that cannot be evaluated.
///
/// It is not an error: the order of creation decides which pods are rejected, and the others run.
/// Pods of DaemonSets are excluded, because their number depends on the fleet.
pub(super) fn quota_warnings(pods: &QuotaPods<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for quota in &pods.desired.quotas {
        let warning = |message: String, hint: &str| {
            Problem::warning(
                quota.origin.clone(),
                format!("ResourceQuota {}/{}", quota.namespace, quota.name),
                message,
            )
            .hint(hint)
        };
        let unknown = quota.scopes.iter().find_map(|scope| match scope {
            QuotaScope::Unknown(name) => Some(name),
            QuotaScope::BestEffort | QuotaScope::NotBestEffort | QuotaScope::PriorityClass(..) => {
                None
            }
        });
        if let Some(scope) = unknown {
            let message = format!("not checked: scope {scope} is not supported");
            problems.push(warning(message, "see that the pods it counts stay within it"));
            continue;
        }
        if let Some(message) = missing_amounts(quota, pods) {
            problems.push(warning(message, "set them, or add a LimitRange with defaults"));
        }
        let used = quota_usage(quota, pods);
        for (key, most) in &quota.hard {
            let asked = used.get(key.as_str()).copied().unwrap_or(0);
            if asked > *most {
                let resource: ResourceName = resource_of_quota_key(key.as_str()).into();
                let (asked, most) =
                    (format_amount(&resource, asked), format_amount(&resource, *most));
                let message = format!(
                    "allows {key} of {most}, and the planned pods of namespace {} need {asked}: \
                     the API server will reject some of them",
                    quota.namespace
                );
                problems.push(warning(message, "raise the quota, or plan fewer or smaller pods"));
            }
        }
    }
    problems
}

/// Returns the first workload that a quota refuses because a container lacks an amount which the
/// quota limits, and the number of further such workloads.
/// Source: `k8s.io/kubernetes/pkg/quota/v1/evaluator/core/pods.go`, `Constraints`.
fn missing_amounts(quota: &ResourceQuota, pods: &QuotaPods<'_>) -> Option<String> {
    let items = pods.desired.limit_ranges.get(&quota.namespace).map_or(&[][..], Vec::as_slice);
    let mut refused: BTreeMap<&WorkloadId, (&Container, Vec<&str>)> = BTreeMap::new();
    for (group, spec) in counted_groups(quota, pods) {
        // Resources of the whole pod replace those of containers.
        let Some(spec) = spec.filter(|spec| spec.resources.is_none()) else { continue };
        for container in spec.init_containers.iter().chain(&spec.containers) {
            let ContainerResources { requests, limits } = admitted(&container.resources, items);
            let lacks = |key: &&str| match key.strip_prefix("limits.") {
                Some(name) => !limits.contains_key(name),
                None => !requests.contains_key(resource_of_quota_key(key)),
            };
            let required = quota.hard.keys().map(ResourceName::as_str);
            let required = required.filter(|key| PER_CONTAINER.contains(key));
            let mut missing: Vec<&str> = required.filter(lacks).collect();
            // `memory` and `requests.memory` are the same.
            let prefixed: Vec<&str> =
                missing.iter().filter_map(|key| key.strip_prefix("requests.")).collect();
            missing.retain(|key| !prefixed.contains(key));
            if !missing.is_empty() {
                refused.entry(&group.workload).or_insert((container, missing));
            }
        }
    }
    let (workload, (container, missing)) = refused.first_key_value()?;
    let more = match refused.len() - 1 {
        0 => String::new(),
        1 => ", and those of 1 further workload".to_owned(),
        more => format!(", and those of {more} further workloads"),
    };
    Some(format!(
        "requires {} of each container, which container {} of {} {workload} does not state: the \
         API server will reject its pods{more}",
        missing.join(", "),
        container.name,
        workload.kind
    ))
}

/// Quota keys that each container must state.
const PER_CONTAINER: [&str; 6] =
    ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

/// Returns the resource of a quota key.
fn resource_of_quota_key(key: &str) -> &str {
    key.strip_prefix("requests.").or_else(|| key.strip_prefix("limits.")).unwrap_or(key)
}

/// Returns the total of the planned pods in the quota's namespace, by quota key.
fn quota_usage(quota: &ResourceQuota, pods: &QuotaPods<'_>) -> BTreeMap<String, i64> {
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for (group, spec) in counted_groups(quota, pods) {
        let limits = limits_of(&group.workload, spec, pods.desired);
        let mut add = |key: String, amount: i64| {
            let total = used.entry(key).or_insert(0);
            *total = total.saturating_add(amount.saturating_mul(i64::from(group.counts.planned)));
        };
        add("pods".to_owned(), 1);
        add("count/pods".to_owned(), 1);
        for (name, amount) in requests_by_name(&group.shape.requests) {
            add(format!("requests.{name}"), amount);
            add(name, amount);
        }
        for (name, amount) in limits {
            add(format!("limits.{name}"), amount);
        }
    }
    used
}

/// Returns the planned groups that a quota counts, with the specs of their pods at admission.
fn counted_groups<'a>(
    quota: &'a ResourceQuota,
    pods: &QuotaPods<'a>,
) -> impl Iterator<Item = (&'a PodGroup, Option<&'a PodSpec>)> {
    let QuotaPods { demand, desired, sized } = *pods;
    let groups = demand.groups.iter().filter(|group| group.shape.namespace == quota.namespace);
    groups.filter(|group| group.counts.planned > 0).filter_map(move |group| {
        let declared = || Some(&desired.workloads.get(&group.workload)?.template);
        let spec = sized.get(&group.workload).or_else(declared).map(|template| &template.spec);
        let limits = limits_of(&group.workload, spec, desired);
        let mut scopes = quota.scopes.iter();
        scopes
            .all(|scope| is_counted_by_scope(scope, group, spec, &limits))
            .then_some((group, spec))
    })
}

fn limits_of(workload: &WorkloadId, spec: Option<&PodSpec>, desired: &Desired) -> ResourceList {
    let items = |namespace: &Namespace| desired.limit_ranges.get(namespace);
    let items = items(&workload.namespace).map_or(&[][..], Vec::as_slice);
    spec.map(|spec| pod_limits(spec, items)).unwrap_or_default()
}

fn requests_by_name(requests: &Resources) -> BTreeMap<String, i64> {
    let Resources { cpu, memory, ephemeral_storage, pods: _, extended } = requests;
    let plain = [("cpu", cpu.0), ("memory", memory.0), ("ephemeral-storage", ephemeral_storage.0)];
    let plain = plain.into_iter().map(|(name, amount)| (name.to_owned(), amount));
    plain.chain(extended.iter().map(|(name, amount)| (name.to_string(), *amount))).collect()
}

/// Returns true if a quota with this scope counts the pods of `group`.
fn is_counted_by_scope(
    scope: &QuotaScope,
    group: &PodGroup,
    spec: Option<&PodSpec>,
    limits: &ResourceList,
) -> bool {
    let requests = &group.shape.requests;
    let best_effort = requests.cpu.0 == 0
        && requests.memory.0 == 0
        && ["cpu", "memory"].iter().all(|name| limits.get(*name).is_none_or(|limit| *limit == 0));
    match scope {
        QuotaScope::BestEffort => best_effort,
        QuotaScope::NotBestEffort => !best_effort,
        QuotaScope::PriorityClass(operator, values) => {
            let class = spec.and_then(|spec| spec.priority_class_name.as_ref());
            match operator {
                Operator::In => class.is_some_and(|class| values.contains(class)),
                Operator::NotIn => class.is_none_or(|class| !values.contains(class)),
                Operator::Exists => class.is_some(),
                Operator::DoesNotExist => class.is_none(),
                Operator::Gt | Operator::Lt | Operator::Gte | Operator::Lte => false,
            }
        }
        QuotaScope::Unknown(_) => false,
    }
}

#[cfg(test)]
mod tests;
