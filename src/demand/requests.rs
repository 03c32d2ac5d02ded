//! Total requests of a pod: containers, init containers, sidecars, overhead and defaults.
//!
//! The order follows the API server. First, the limits of a container fill its missing requests.
//! Then the pod-level requests apply, stated or derived from the containers. Finally, the
//! `LimitRanger` fills the rest. Sums are kept by name, so that "requests nothing" and "requests
//! zero" stay distinct.

use std::collections::BTreeMap;

use crate::model::desired::LimitRangeItem;
use crate::model::pod::{Container, ContainerResources, PodSpec, ResourceList};
use crate::model::units::{Bytes, MilliCpu, ResourceName, Resources};

/// Resources that the kubelet granted to a running pod, by container name.
pub(super) type AllocatedResources = BTreeMap<String, ResourceList>;

/// Inputs to a pod's requests besides its specification.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestContext<'a> {
    /// Overhead of the pod's runtime class or specification.
    pub overhead: &'a ResourceList,
    /// Limit range items of the namespace.
    pub limits: &'a [LimitRangeItem],
    /// Granted resources of a running pod, which may differ from its specification.
    pub granted: &'a AllocatedResources,
}

/// CPU that the scheduler's scores assume for a container without a CPU request, in millicores.
/// Source: `pkg/scheduler/util/pod_resources.go`.
const PRESUMED_CPU: i64 = 100;
/// Memory that the scheduler's scores assume for a container without a memory request, in bytes.
const PRESUMED_MEMORY: i64 = 200 << 20;

/// Returns the requests of one pod, with `pods` = 1.
///
/// The larger of two sums counts. The first is the sum of containers and sidecars. The second is
/// the peak during startup: each init container plus the sidecars started before it.
///
/// Pod-level requests replace the sum for the resources they name, and overhead is added. If a
/// running pod is or was resized in place, each container counts with the larger of its requested
/// and granted resources.
/// Source: `k8s.io/component-helpers/resource`, `PodRequests`.
pub(super) fn pod_requests(spec: &PodSpec, context: &RequestContext) -> Resources {
    requests_with(spec, context, |_| {})
}

/// Returns the resources that the scheduler's scores add to the requests of one pod, for each
/// container without a CPU or memory request. A request of zero counts as stated.
///
/// Source: `pkg/scheduler/framework/types.go`, `CalculateResource`.
pub(super) fn presumed_requests(spec: &PodSpec, context: &RequestContext) -> Resources {
    let counted = requests_with(spec, context, |requests| {
        requests.entry("cpu".into()).or_insert(PRESUMED_CPU);
        requests.entry("memory".into()).or_insert(PRESUMED_MEMORY);
    });
    let stated = pod_requests(spec, context);
    Resources {
        cpu: MilliCpu(counted.cpu.0.saturating_sub(stated.cpu.0)),
        memory: Bytes(counted.memory.0.saturating_sub(stated.memory.0)),
        ..Resources::default()
    }
}

/// Returns the requests of one pod, after `fill` has completed those of each container.
fn requests_with(
    spec: &PodSpec,
    context: &RequestContext,
    fill: impl Fn(&mut ResourceList),
) -> Resources {
    let of_container = |container: &Container| {
        let mut requests = admitted(&container.resources, context.limits).requests;
        if let Some(granted) = context.granted.get(&container.name) {
            combine(&mut requests, granted, i64::max);
        }
        fill(&mut requests);
        requests
    };
    let mut requests = aggregate(spec, of_container);
    if let Some(pod_level) = &spec.resources {
        requests.extend(pod_level_requests(pod_level, spec));
    }
    combine(&mut requests, context.overhead, i64::saturating_add);
    let mut total = to_resources(&requests);
    total.pods = 1;
    total
}

/// Returns the limits of one pod by name. A container without a limit adds nothing.
pub(super) fn pod_limits(spec: &PodSpec, limits: &[LimitRangeItem]) -> ResourceList {
    let mut sum = aggregate(spec, |container| admitted(&container.resources, limits).limits);
    if let Some(pod_level) = &spec.resources {
        sum.extend(pod_level.limits.clone());
    }
    sum
}

/// Largest amount of one resource of a pod or a node, far above every instance type. Sums over the
/// pods of a node stay exact, so that the removal of a pod restores the amount before it.
const AMOUNT_MAX: i64 = 1 << 48;

/// Converts amounts by name to a vector; the unit of `cpu` is millicores. Larger amounts than
/// 2⁴⁸ count as 2⁴⁸, and negative ones as zero.
pub fn to_resources(amounts: &ResourceList) -> Resources {
    let mut resources = Resources::default();
    for (name, amount) in amounts {
        let amount = &(*amount).clamp(0, AMOUNT_MAX);
        match name.as_str() {
            "cpu" => resources.cpu = MilliCpu(*amount),
            "memory" => resources.memory = Bytes(*amount),
            "ephemeral-storage" => resources.ephemeral_storage = Bytes(*amount),
            "pods" => resources.pods = *amount,
            _ if *amount == 0 => {}
            _ => {
                resources.extended.insert(name.clone(), *amount);
            }
        }
    }
    resources
}

/// Returns the peak amounts of the pod, given the amounts of each container.
pub(super) fn aggregate(
    spec: &PodSpec,
    per_container: impl Fn(&Container) -> ResourceList,
) -> ResourceList {
    let (mut sidecars, mut start_peak) = (ResourceList::new(), ResourceList::new());
    for container in &spec.init_containers {
        let mut at_start = sidecars.clone();
        combine(&mut at_start, &per_container(container), i64::saturating_add);
        if container.sidecar {
            sidecars.clone_from(&at_start);
        }
        combine(&mut start_peak, &at_start, i64::max);
    }
    let mut running = sidecars;
    for container in &spec.containers {
        combine(&mut running, &per_container(container), i64::saturating_add);
    }
    combine(&mut running, &start_peak, i64::max);
    running
}

/// Combines each amount in `other` with the amount of the same name in `sum`.
pub(super) fn combine(
    sum: &mut ResourceList,
    other: &ResourceList,
    operation: fn(i64, i64) -> i64,
) {
    for (name, amount) in other {
        let total = sum.entry(name.clone()).or_insert(0);
        *total = operation(*total, *amount);
    }
}

/// Returns requests and limits after admission. The API server fills a missing request from the
/// container's own limit. The `LimitRanger` fills both from the defaults of the namespace.
pub(super) fn admitted(
    stated: &ContainerResources,
    limits: &[LimitRangeItem],
) -> ContainerResources {
    let mut filled = ContainerResources { requests: own_requests(stated), ..stated.clone() };
    let fill = |amounts: &mut ResourceList, defaults: &ResourceList| {
        for (name, amount) in defaults {
            amounts.entry(name.clone()).or_insert(*amount);
        }
    };
    for item in limits {
        fill(&mut filled.requests, &item.default_request);
        fill(&mut filled.limits, &item.default_limit);
    }
    filled
}

/// Returns a container's requests; its limits fill the missing ones.
pub(super) fn own_requests(stated: &ContainerResources) -> ResourceList {
    let mut requests = stated.requests.clone();
    for (name, amount) in &stated.limits {
        requests.entry(name.clone()).or_insert(*amount);
    }
    requests
}

/// Returns the pod-level requests, which replace the sum over the containers.
///
/// If the pod states limits, a missing request is the sum of the containers' requests. If the
/// containers request none of the resource, or it cannot be overcommitted, it is the limit.
/// Source: `k8s.io/kubernetes/pkg/apis/core/v1`, `defaultPodRequests`.
pub(super) fn pod_level_requests(stated: &ContainerResources, spec: &PodSpec) -> ResourceList {
    let mut requests = stated.requests.clone();
    if !stated.limits.is_empty() {
        let of_containers = aggregate(spec, |container| own_requests(&container.resources));
        for (name, amount) in of_containers {
            if !name.as_str().starts_with(HUGE_PAGES) {
                requests.entry(name).or_insert(amount);
            }
        }
        for (name, amount) in &stated.limits {
            requests.entry(name.clone()).or_insert(*amount);
        }
    }
    requests.retain(|name, _| is_pod_level(name));
    requests
}

const HUGE_PAGES: &str = "hugepages-";

/// Returns true if a resource can be stated at pod level: CPU, memory or huge pages.
pub(super) fn is_pod_level(name: &ResourceName) -> bool {
    matches!(name.as_str(), "cpu" | "memory") || name.as_str().starts_with(HUGE_PAGES)
}

#[cfg(test)]
mod tests;
