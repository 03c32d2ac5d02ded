//! Requests of pods that a `VerticalPodAutoscaler` manages.
//!
//! A recommendation applies if the update mode is active and the container's policy allows it.
//! Limits keep their ratio to the requests.
//!
//! Without a recommendation, the autoscaler changes no pod. The first one comes within minutes of
//! the start, and is at least `minAllowed`. The plan therefore raises the requests of the template
//! to `minAllowed`, and warns of it. `maxAllowed` lowers nothing: new pods start with the template.
//! Source: `vertical-pod-autoscaler/pkg/admission-controller/resource/pod/recommendation`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::requests::admitted;
use crate::model::desired::{
    ContainerPolicy, Desired, LimitRangeItem, LimitScope, UpdateMode, VerticalScaler, Workload,
};
use crate::model::ids::WorkloadId;
use crate::model::observed::{LiveVertical, Observed, Scaling};
use crate::model::pod::{Container, ContainerResources, PodTemplate, ResourceList};
use crate::model::units::{Bytes, MilliCpu, ResourceName};

/// Container name of the policy for all containers without their own.
const ALL_CONTAINERS: &str = "*";

/// Effect of a vertical autoscaler on a template.
pub(super) struct TemplateSizing {
    /// Template to plan with.
    pub(super) template: Arc<PodTemplate>,
    /// Explanation of the decision for each container.
    pub(super) because: String,
    /// True if the requests of the template were replaced.
    pub(super) is_applied: bool,
}

/// Returns the vertical autoscalers that target a workload.
pub(super) fn scalers_for<'a>(
    verticals: &'a [VerticalScaler],
    id: &WorkloadId,
) -> impl Iterator<Item = &'a VerticalScaler> {
    let (namespace, name, kind) = (id.namespace.clone(), id.name.clone(), id.kind.as_str());
    verticals.iter().filter(move |vertical| {
        vertical.namespace == namespace
            && *vertical.target.name == *name
            && vertical.target.kind == kind
    })
}

/// Returns the template of new pods of `workload`, after a vertical autoscaler has changed them
/// during admission.
pub fn sized_template(
    desired: &Desired,
    observed: &Observed,
    workload: &Workload,
) -> Arc<PodTemplate> {
    let vertical = scalers_for(&desired.vertical_scalers, &workload.id).next();
    let sizing = vertical.map(|vertical| {
        resize_template(vertical, workload, &observed.scaling, ranges(desired, workload))
    });
    sizing.map_or_else(|| Arc::clone(&workload.template), |sizing| sizing.template)
}

/// Returns the limit range items of the workload's namespace.
pub(super) fn ranges<'a>(desired: &'a Desired, workload: &Workload) -> &'a [LimitRangeItem] {
    desired.limit_ranges.get(&workload.id.namespace).map_or(&[], Vec::as_slice)
}

/// Returns true if the updater changes none of `running` pods: the mode concerns new pods alone, or
/// the pods are too few.
/// Source: `vertical-pod-autoscaler/pkg/updater/restriction/pods_restriction_factory.go`.
pub(super) fn keeps_running_pods(vertical: &VerticalScaler, running: u32) -> bool {
    running > 0 && (vertical.mode == UpdateMode::Initial || running < vertical.min_replicas)
}

/// Returns the recommendation of `vertical`, if one was observed.
fn recommendation<'a>(vertical: &VerticalScaler, live: &'a Scaling) -> Option<&'a LiveVertical> {
    let same = |found: &&LiveVertical| {
        found.namespace == vertical.namespace && found.name == vertical.name
    };
    live.vertical.iter().find(same).filter(|found| !found.containers.is_empty())
}

/// Returns true if a recommendation of `vertical` was observed.
pub(super) fn has_recommendation(vertical: &VerticalScaler, live: &Scaling) -> bool {
    recommendation(vertical, live).is_some()
}

/// Returns the policy for a container: its own, or the one for all containers.
fn policy_of<'a>(vertical: &'a VerticalScaler, container: &str) -> Cow<'a, ContainerPolicy> {
    let found = vertical.policies.get(container);
    let found = found.or_else(|| vertical.policies.get(ALL_CONTAINERS));
    found.map_or_else(|| Cow::Owned(ContainerPolicy::default()), Cow::Borrowed)
}

fn is_left_alone(policy: &ContainerPolicy) -> bool {
    !policy.controls_cpu && !policy.controls_memory
}

fn is_controlled(policy: &ContainerPolicy, name: &ResourceName) -> bool {
    match name.as_str() {
        "cpu" => policy.controls_cpu,
        "memory" => policy.controls_memory,
        _ => false,
    }
}

/// Applies `vertical` to the template of `workload`, with the limit ranges of its namespace.
pub(super) fn resize_template(
    vertical: &VerticalScaler,
    workload: &Workload,
    live: &Scaling,
    ranges: &[LimitRangeItem],
) -> TemplateSizing {
    let recommended = recommendation(vertical, live);
    let unchanged = |because: String| TemplateSizing {
        template: Arc::clone(&workload.template),
        because,
        is_applied: false,
    };
    let mut template = (*workload.template).clone();
    let mut decisions = Vec::new();
    let targets = recommended.map_or_else(
        || least_targets(vertical, &workload.template, ranges),
        |recommended| pod_targets(&workload.template, recommended, ranges),
    );
    if recommended.is_none() && (vertical.mode == UpdateMode::Off || targets.is_empty()) {
        return unchanged(
            "its recommendation is not known here: planned with the template".to_owned(),
        );
    }
    for container in &mut template.spec.containers {
        let Some(target) = targets.get(&container.name) else { continue };
        let policy = policy_of(vertical, &container.name);
        if is_left_alone(&policy) {
            decisions.push(format!("{}: left alone by its policy", container.name));
            continue;
        }
        let before = container.clone();
        resize_container(container, target, &policy, ranges);
        let (from, to) = (&before.resources.requests, &container.resources.requests);
        decisions.push(format!(
            "{}: {} -> {}",
            container.name,
            format_requests(from),
            format_requests(to)
        ));
    }
    let decisions =
        if decisions.is_empty() { "no container has one".to_owned() } else { decisions.join(", ") };
    if vertical.mode == UpdateMode::Off {
        return unchanged(format!("mode Off, it only recommends: {decisions}"));
    }
    let is_applied = template != *workload.template;
    let template = Arc::new(template);
    let mode = vertical.mode.as_str();
    let because = if recommended.is_some() {
        format!("mode {mode}: {decisions}")
    } else {
        format!(
            "mode {mode}, its recommendation is not known here: {decisions}, raised to minAllowed"
        )
    };
    TemplateSizing { template, because, is_applied }
}

/// Returns the minimums of the policies that exceed the stated requests, by container name.
fn least_targets(
    vertical: &VerticalScaler,
    template: &PodTemplate,
    ranges: &[LimitRangeItem],
) -> BTreeMap<String, ResourceList> {
    let mut targets = BTreeMap::new();
    for container in &template.spec.containers {
        let policy = policy_of(vertical, &container.name);
        let stated = admitted(&container.resources, ranges).requests;
        let mut target = policy.min.clone();
        target.retain(|name, least| {
            let stated = stated.get(name).copied().unwrap_or(0);
            is_controlled(&policy, name) && stated < *least
        });
        if !target.is_empty() {
            targets.insert(container.name.clone(), target);
        }
    }
    targets
}

/// Returns the recommended requests by container name, within the limit ranges of pods.
///
/// Without such a range, only containers with a recommendation have an entry. With one, the stated
/// requests of the rest count as recommended, and share the change.
/// Source: `vertical-pod-autoscaler/pkg/utils/vpa/capping.go`, `capProportionallyToPodLimitRange`.
fn pod_targets(
    template: &PodTemplate,
    recommended: &LiveVertical,
    ranges: &[LimitRangeItem],
) -> BTreeMap<String, ResourceList> {
    let of_pods: Vec<&LimitRangeItem> =
        ranges.iter().filter(|item| item.scope == LimitScope::Pod).collect();
    let containers = &template.spec.containers;
    let mut targets = BTreeMap::new();
    for container in containers {
        let found = recommended.containers.get(&container.name).map(|found| found.target.clone());
        let stated = Some(admitted(&container.resources, ranges).requests);
        let stated = stated.filter(|stated| !of_pods.is_empty() && !stated.is_empty());
        if let Some(target) = found.or(stated) {
            targets.insert(container.name.clone(), target);
        }
    }
    for name in ["cpu", "memory"].map(ResourceName::from) {
        let amounts = |of: fn(&LimitRangeItem) -> &ResourceList| {
            of_pods.iter().filter_map(|item| of(item).get(&name).copied()).collect::<Vec<i64>>()
        };
        let least = amounts(|item| &item.min).into_iter().max().unwrap_or(0);
        let most = amounts(|item| &item.max).into_iter().min().filter(|most| *most > 0);
        let (mut limits, mut requests) = (0_i64, 0_i64);
        for container in containers {
            let ContainerResources { requests: stated, limits: bound } =
                admitted(&container.resources, ranges);
            let old = stated.get(&name).copied();
            let target = targets.get(&container.name).map_or(old, |all| all.get(&name).copied());
            let target = target.unwrap_or(0);
            let limit = bound.get(&name).copied().filter(|limit| *limit > 0 && target > 0);
            let limit = limit.map_or(0, |limit| scaled_limit(limit, old, target));
            limits = limits.saturating_add(limit);
            requests = requests.saturating_add(target);
        }
        let (total, bound, rounds_up) = if limits == 0 {
            continue;
        } else if requests < least {
            (requests, least, name.as_str() == "cpu")
        } else if let Some(most) = most.filter(|most| limits > *most) {
            (limits, most, false)
        } else if limits < least {
            (limits, least, false)
        } else {
            continue;
        };
        for request in targets.values_mut().filter_map(|all| all.get_mut(&name)) {
            *request = share(*request, bound, total, rounds_up);
        }
    }
    targets
}

/// Returns `amount * bound / total`. A `total` of 0 changes nothing.
fn share(amount: i64, bound: i64, total: i64, rounds_up: bool) -> i64 {
    let (product, total) = (i128::from(amount) * i128::from(bound), i128::from(total));
    let Some(quotient) = product.checked_div(total) else { return amount };
    let rest = i128::from(rounds_up && product % total != 0);
    i64::try_from(quotient + rest).unwrap_or(i64::MAX)
}

/// Sets the recommended requests of a container. Limit ranges bound them first; the policy of the
/// container takes precedence.
fn resize_container(
    container: &mut Container,
    target: &ResourceList,
    policy: &ContainerPolicy,
    ranges: &[LimitRangeItem],
) {
    // Defaults come first: the API server calls the webhook of the autoscaler after the LimitRanger.
    let stated = admitted(&container.resources, ranges);
    for (name, target) in target {
        if !is_controlled(policy, name) {
            continue;
        }
        let mut request = bound_by_ranges(ranges, name, &stated, *target);
        if let Some(least) = policy.min.get(name) {
            request = request.max(*least);
        }
        if let Some(most) = policy.max.get(name).filter(|most| **most > 0) {
            request = request.min(*most);
        }
        let limit = stated.limits.get(name).copied();
        if let Some(limit) = limit.filter(|_| !policy.controls_limits) {
            request = request.min(limit);
        }
        container.resources.requests.insert(name.clone(), request);
        if let Some(limit) = limit.filter(|_| policy.controls_limits) {
            let old = stated.requests.get(name).copied();
            container.resources.limits.insert(name.clone(), scaled_limit(limit, old, request));
        }
    }
}

/// Returns a request within the limit ranges of containers. A maximum bounds the limit, and a
/// minimum both the request and the limit. The limit keeps its ratio to the request. A container
/// without a limit has no maximum.
/// Source: `vertical-pod-autoscaler/pkg/utils/vpa/capping.go`, `applyContainerLimitRange`.
fn bound_by_ranges(
    ranges: &[LimitRangeItem],
    name: &ResourceName,
    stated: &ContainerResources,
    target: i64,
) -> i64 {
    let of_containers = || ranges.iter().filter(|item| item.scope == LimitScope::Container);
    let old = stated.requests.get(name).copied().filter(|old| *old > 0);
    // The request at which the limit reaches `bound`.
    let boundary = |bound: i64| {
        let limit = stated.limits.get(name).copied().filter(|limit| *limit > 0)?;
        Some(old.map_or(bound, |old| share(old, bound, limit, false)))
    };
    let mut request = target;
    for item in of_containers() {
        if let Some(least) = item.min.get(name).copied() {
            request = request.max(least).max(boundary(least).unwrap_or(0));
        }
    }
    for item in of_containers() {
        let most = item.max.get(name).and_then(|most| boundary(*most));
        request = request.min(most.filter(|most| *most > 0).unwrap_or(i64::MAX));
    }
    request
}

/// Returns a limit that keeps its ratio to the request. A limit without a request was equal to it.
fn scaled_limit(limit: i64, old: Option<i64>, request: i64) -> i64 {
    match old {
        Some(old) if old > 0 => {
            let scaled = i128::from(limit) * i128::from(request) / i128::from(old);
            i64::try_from(scaled).unwrap_or(i64::MAX).max(request)
        }
        Some(_) | None => request,
    }
}

fn format_requests(amounts: &ResourceList) -> String {
    let amount = |name: &str| amounts.get(&ResourceName::from(name)).copied();
    match (amount("cpu"), amount("memory")) {
        (None, None) => "nothing".to_owned(),
        (Some(cpu), None) => MilliCpu(cpu).to_string(),
        (None, Some(memory)) => Bytes(memory).to_string(),
        (Some(cpu), Some(memory)) => format!("{}/{}", MilliCpu(cpu), Bytes(memory)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::observed::Recommendation;

    fn amounts(cpu: i64) -> ResourceList {
        [("cpu".into(), cpu)].into()
    }

    /// Returns the CPU request and limit of a container for a recommendation of 300m.
    fn resized(request: Option<i64>, limit: Option<i64>, policy: &ContainerPolicy) -> [i64; 2] {
        within_ranges(request, limit, policy, &[])
    }

    fn within_ranges(
        request: Option<i64>,
        limit: Option<i64>,
        policy: &ContainerPolicy,
        ranges: &[LimitRangeItem],
    ) -> [i64; 2] {
        let amount_list = |cpu: Option<i64>| cpu.map(amounts).unwrap_or_default();
        let resources =
            ContainerResources { requests: amount_list(request), limits: amount_list(limit) };
        let mut container = Container { name: "app".into(), resources, ..Container::default() };
        let mut template = PodTemplate::default();
        template.spec.containers.push(container.clone());
        let target = pod_targets(&template, &recommending(&[("app", 300)]), ranges);
        resize_container(&mut container, &target["app"], policy, ranges);
        let get = |amounts: &ResourceList| amounts.values().next().copied().unwrap_or(-1);
        [get(&container.resources.requests), get(&container.resources.limits)]
    }

    #[test]
    fn limit_ranges_bound_limits_and_the_policy_overrides_them() {
        let policy = ContainerPolicy::default();
        let least = ContainerPolicy { min: amounts(280), ..ContainerPolicy::default() };
        let range = |max: i64, min: i64, default: Option<i64>| LimitRangeItem {
            max: amounts(max),
            min: amounts(min),
            default_limit: default.map(amounts).unwrap_or_default(),
            ..LimitRangeItem::default()
        };
        let of_pods = LimitRangeItem { scope: LimitScope::Pod, ..range(100, 0, None) };
        for (rule, request, limit, policy, range, expected) in [
            ("scaled by the ratio", Some(100), Some(200), &policy, range(500, 0, None), [250, 500]),
            ("a minimum", Some(100), Some(200), &policy, range(9_000, 800, None), [800, 1_600]),
            ("a minimum alone", Some(100), None, &policy, range(9_000, 800, None), [800, -1]),
            ("no limit", Some(100), None, &policy, range(200, 0, None), [300, -1]),
            ("a default limit", Some(100), None, &policy, range(200, 0, Some(200)), [100, 200]),
            ("a limit alone", None, Some(200), &policy, range(250, 0, None), [250, 250]),
            ("the policy wins", Some(100), Some(200), &least, range(500, 0, None), [280, 560]),
            ("a range for pods", Some(100), Some(200), &policy, of_pods, [50, 100]),
        ] {
            assert_eq!(within_ranges(request, limit, policy, &[range]), expected, "{rule}");
        }
    }

    fn recommending(cpu: &[(&str, i64)]) -> LiveVertical {
        let found = |cpu| Recommendation { target: amounts(cpu), ..Recommendation::default() };
        LiveVertical {
            namespace: "a".into(),
            name: "b".to_owned(),
            containers: cpu.iter().map(|(name, cpu)| ((*name).to_owned(), found(*cpu))).collect(),
        }
    }

    #[test]
    fn range_of_pods_scales_all_containers() {
        let container = |name: &str, request: i64, limit: i64| Container {
            name: name.into(),
            resources: ContainerResources { requests: amounts(request), limits: amounts(limit) },
            ..Container::default()
        };
        let mut template = PodTemplate::default();
        template.spec.containers = vec![container("a", 100, 200), container("b", 50, 50)];
        let range = |least: i64, most: i64| LimitRangeItem {
            scope: LimitScope::Pod,
            min: amounts(least),
            max: amounts(most),
            ..LimitRangeItem::default()
        };
        for (rule, range, expected) in [
            ("within", range(0, 650), [300, 50]),
            ("the limits of 650 shrink to 325", range(0, 325), [150, 25]),
            ("the requests of 350 grow to 701, rounded up", range(701, 0), [601, 101]),
            ("the requests of 350 grow to 1300", range(1_300, 0), [1_115, 186]),
        ] {
            let targets = pod_targets(&template, &recommending(&[("a", 300)]), &[range]);
            assert_eq!([targets["a"]["cpu"], targets["b"]["cpu"]], expected, "{rule}");
        }
        let targets = pod_targets(&template, &recommending(&[("a", 300)]), &[]);
        assert_eq!(targets.len(), 1, "without a range, the rest is not changed");
    }

    #[test]
    fn limits_keep_their_ratio_or_bound_the_request() {
        let both = ContainerPolicy::default();
        let requests = ContainerPolicy { controls_limits: false, ..ContainerPolicy::default() };
        let most = ContainerPolicy { max: amounts(250), ..ContainerPolicy::default() };
        let least = ContainerPolicy { min: amounts(900), ..ContainerPolicy::default() };
        let memory = ContainerPolicy { controls_cpu: false, ..ContainerPolicy::default() };
        for (rule, request, limit, policy, expected) in [
            ("case 20: a ratio of two is kept", Some(100), Some(200), &both, [300, 600]),
            ("case 20: the limit bounds", Some(100), Some(200), &requests, [200, 200]),
            ("no limit stays none", Some(100), None, &both, [300, -1]),
            ("a limit alone is the request", None, Some(200), &both, [300, 300]),
            ("the policy maximum", Some(100), Some(200), &most, [250, 500]),
            ("the policy minimum", Some(100), None, &least, [900, -1]),
            ("an uncontrolled resource", Some(100), None, &memory, [100, -1]),
        ] {
            assert_eq!(resized(request, limit, policy), expected, "{rule}");
        }
    }
}
