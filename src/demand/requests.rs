//! What a pod asks for in sum: containers, init containers, sidecars, overhead, defaults.
//!
//! The order is that of the API server: a container's own limits stand for requests that it does
//! not state, then the pod as a whole gets what it states or what follows from its containers, then
//! the `LimitRanger` fills what is still open. Sums are kept by name, so that "asks for nothing"
//! and "asks for zero" stay apart.

use std::collections::BTreeMap;

use crate::model::desired::LimitRangeItem;
use crate::model::pod::{Container, ContainerResources, PodSpec, ResourceList};
use crate::model::units::{Bytes, MilliCpu, ResourceName, Resources};

/// What the kubelet granted to the containers of a running pod, by container.
pub(super) type AllocatedResources = BTreeMap<String, ResourceList>;

/// What decides a pod's requests beside its specification.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestContext<'a> {
    /// What the pod costs beyond its containers.
    pub overhead: &'a ResourceList,
    /// Items of the namespace's limit ranges.
    pub limits: &'a [LimitRangeItem],
    /// What a running pod was granted, where that may differ from what its specification says.
    pub granted: &'a AllocatedResources,
}

/// What the scheduler's scores count for a container that states no CPU, in thousandths.
/// Source: `pkg/scheduler/util/pod_resources.go`.
const PRESUMED_CPU: i64 = 100;
/// What they count for a container that states no memory, in bytes.
const PRESUMED_MEMORY: i64 = 200 << 20;

/// Returns the requests of one pod, with `pods` = 1.
///
/// The larger of two sums counts: what runs together (containers and sidecars), and the highest
/// point of the start (each init container on top of the sidecars started before it). Pod-level
/// requests replace the sum for the resources they name; overhead comes on top. Of a running pod
/// that is or was resized in place, each container counts with the larger of what it asks for and
/// what it was granted.
/// Source: `k8s.io/component-helpers/resource`, `PodRequests`.
#[must_use]
pub(super) fn pod_requests(spec: &PodSpec, around: &RequestContext) -> Resources {
    requests_with(spec, around, |_| {})
}

/// Returns what the scheduler's scores count on top of the requests of one pod, for each container
/// that states no CPU or no memory; a stated zero is stated.
///
/// Source: `pkg/scheduler/framework/types.go`, `CalculateResource`.
#[must_use]
pub(super) fn presumed_requests(spec: &PodSpec, around: &RequestContext) -> Resources {
    let counted = requests_with(spec, around, |requests| {
        requests.entry("cpu".into()).or_insert(PRESUMED_CPU);
        requests.entry("memory".into()).or_insert(PRESUMED_MEMORY);
    });
    let stated = pod_requests(spec, around);
    Resources {
        cpu: MilliCpu(counted.cpu.0.saturating_sub(stated.cpu.0)),
        memory: Bytes(counted.memory.0.saturating_sub(stated.memory.0)),
        ..Resources::default()
    }
}

/// Returns the requests of one pod, `fill` having added to those of each container.
fn requests_with(
    spec: &PodSpec,
    around: &RequestContext,
    fill: impl Fn(&mut ResourceList),
) -> Resources {
    let of_container = |container: &Container| {
        let mut requests = admitted(&container.resources, around.limits).requests;
        if let Some(granted) = around.granted.get(&container.name) {
            combine(&mut requests, granted, i64::max);
        }
        fill(&mut requests);
        requests
    };
    let mut requests = aggregate(spec, of_container);
    if let Some(pod_level) = &spec.resources {
        requests.extend(pod_level_requests(pod_level, spec));
    }
    combine(&mut requests, around.overhead, i64::saturating_add);
    let mut total = to_resources(&requests);
    total.pods = 1;
    total
}

/// Returns the limits of one pod by name; a resource that any container leaves unlimited has none.
pub(super) fn pod_limits(spec: &PodSpec, limits: &[LimitRangeItem]) -> ResourceList {
    let mut sum = aggregate(spec, |container| admitted(&container.resources, limits).limits);
    if let Some(pod_level) = &spec.resources {
        sum.extend(pod_level.limits.clone());
    }
    sum
}

/// Converts amounts by name into a vector; `cpu` is in thousandths already.
#[must_use]
pub fn to_resources(amounts: &ResourceList) -> Resources {
    let mut resources = Resources::default();
    for (name, amount) in amounts {
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

/// Returns what the pod needs at its highest point, given what each container needs.
pub(super) fn aggregate(spec: &PodSpec, of: impl Fn(&Container) -> ResourceList) -> ResourceList {
    let (mut sidecars, mut start_peak) = (ResourceList::new(), ResourceList::new());
    for container in &spec.init_containers {
        let mut at_start = sidecars.clone();
        combine(&mut at_start, &of(container), i64::saturating_add);
        if container.sidecar {
            sidecars.clone_from(&at_start);
        }
        combine(&mut start_peak, &at_start, i64::max);
    }
    let mut together = sidecars;
    for container in &spec.containers {
        combine(&mut together, &of(container), i64::saturating_add);
    }
    combine(&mut together, &start_peak, i64::max);
    together
}

/// Brings `other` into `sum`, name by name.
pub(super) fn combine(sum: &mut ResourceList, other: &ResourceList, of: fn(i64, i64) -> i64) {
    for (name, amount) in other {
        let held = sum.entry(name.clone()).or_insert(0);
        *held = of(*held, *amount);
    }
}

/// Returns requests and limits as they are once the API server and the `LimitRanger` have filled
/// what is not stated: a request from the container's own limit, then both from the defaults of the
/// namespace.
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

/// Returns a container's requests, its limits standing for those that it does not state.
pub(super) fn own_requests(stated: &ContainerResources) -> ResourceList {
    let mut requests = stated.requests.clone();
    for (name, amount) in &stated.limits {
        requests.entry(name.clone()).or_insert(*amount);
    }
    requests
}

/// Returns what the pod as a whole requests, by the names that count instead of the sum.
///
/// Where it states limits, a request that it leaves open is what its containers request; where they
/// request none of the resource, or it cannot be overcommitted, it is the limit.
/// Source: `k8s.io/kubernetes/pkg/apis/core/v1`, `defaultPodRequests`.
fn pod_level_requests(stated: &ContainerResources, spec: &PodSpec) -> ResourceList {
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

/// Returns whether a resource may be stated for a pod as a whole: CPU, memory and huge pages alone.
pub(super) fn is_pod_level(name: &ResourceName) -> bool {
    matches!(name.as_str(), "cpu" | "memory") || name.as_str().starts_with(HUGE_PAGES)
}

#[cfg(test)]
mod tests;
