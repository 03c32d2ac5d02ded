//! What a pod asks for in sum: containers, init containers, sidecars, overhead, defaults.

use crate::manifest::LimitRangeItem;
use crate::pod::{Amounts, Container, ContainerResources, PodSpec};
use crate::units::{Bytes, MilliCpu, ResourceName, Resources};

/// Returns the requests of one pod, with `pods` = 1.
///
/// The larger of two sums counts: what runs together (containers and sidecars), and the highest
/// point of the start (each init container on top of the sidecars started before it). Pod-level
/// requests replace the sum for the resources they name; overhead comes on top.
/// Source: `k8s.io/component-helpers/resource`, `PodRequests`.
#[must_use]
pub(super) fn pod_requests(
    spec: &PodSpec,
    overhead: &Amounts,
    limits: &[LimitRangeItem],
) -> Resources {
    let of = |container: &Container| effective_requests(&container.resources, limits);
    let mut sidecars = Resources::default();
    let mut start_peak = Resources::default();
    for container in &spec.init_containers {
        let requests = of(container);
        if container.sidecar {
            sidecars = sidecars.plus(&requests);
            start_peak = start_peak.at_least(&sidecars);
        } else {
            start_peak = start_peak.at_least(&sidecars.plus(&requests));
        }
    }
    let together = spec.containers.iter().fold(sidecars, |sum, c| sum.plus(&of(c)));
    let mut requests = together.at_least(&start_peak);
    if let Some(pod_level) = &spec.resources {
        requests = override_with(requests, &pod_level_requests(pod_level));
    }
    let mut total = requests.plus(&to_resources(overhead));
    total.pods = 1;
    total
}

/// Converts amounts by name into a vector; `cpu` is in thousandths already.
#[must_use]
pub fn to_resources(amounts: &Amounts) -> Resources {
    override_with(Resources::default(), amounts)
}

fn override_with(mut resources: Resources, amounts: &Amounts) -> Resources {
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

/// Requests as they are once the API server and the `LimitRanger` have filled what is not stated:
/// from the container's own limit, then from the namespace's default request, then from its
/// default limit.
fn effective_requests(stated: &ContainerResources, limits: &[LimitRangeItem]) -> Resources {
    let mut requests = stated.requests.clone();
    let mut fill = |defaults: &Amounts| {
        for (name, amount) in defaults {
            requests.entry(name.clone()).or_insert(*amount);
        }
    };
    fill(&stated.limits);
    for item in limits {
        fill(&item.default_request);
        fill(&item.default_limit);
    }
    to_resources(&requests)
}

/// Pod-level requests; a limit without a request stands for it. Only CPU, memory and huge pages
/// may be stated for a pod as a whole.
fn pod_level_requests(stated: &ContainerResources) -> Amounts {
    let mut requests = stated.requests.clone();
    for (name, amount) in &stated.limits {
        requests.entry(name.clone()).or_insert(*amount);
    }
    let allowed = |name: &ResourceName| {
        matches!(name.as_str(), "cpu" | "memory") || name.as_str().starts_with("hugepages-")
    };
    requests.retain(|name, _| allowed(name));
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(cpu: i64) -> Container {
        let requests = [("cpu".into(), cpu)].into();
        Container {
            resources: ContainerResources { requests, ..ContainerResources::default() },
            ..Container::default()
        }
    }

    fn sidecar(cpu: i64) -> Container {
        Container { sidecar: true, ..container(cpu) }
    }

    fn cpu_of(init: Vec<Container>, containers: Vec<Container>) -> i64 {
        let spec = PodSpec { init_containers: init, containers, ..PodSpec::default() };
        pod_requests(&spec, &Amounts::default(), &[]).cpu.0
    }

    #[test]
    fn the_higher_of_start_and_run_counts() {
        for (rule, init, containers, expected) in [
            ("containers add up", vec![], vec![container(1), container(2)], 3),
            ("an init container runs alone", vec![container(3)], vec![container(1)], 3),
            ("init containers run one by one", vec![container(2), container(3)], vec![], 3),
            (
                "a sidecar before an init container",
                vec![sidecar(1), container(3)],
                vec![container(1)],
                4,
            ),
            ("a sidecar after it", vec![container(3), sidecar(1)], vec![container(1)], 3),
            ("sidecars stay while containers run", vec![sidecar(1)], vec![container(2)], 3),
        ] {
            assert_eq!(cpu_of(init, containers), expected, "{rule}");
        }
    }

    #[test]
    fn what_is_not_stated_comes_from_limits_then_from_the_namespace() {
        let namespace = [LimitRangeItem {
            default_request: [("cpu".into(), 50)].into(),
            default_limit: [("cpu".into(), 500), ("memory".into(), 7)].into(),
        }];
        let of = |requests: &[(&str, i64)], limits: &[(&str, i64)]| {
            let amounts = |list: &[(&str, i64)]| {
                list.iter().map(|(name, n)| (ResourceName::from(*name), *n)).collect()
            };
            let stated =
                ContainerResources { requests: amounts(requests), limits: amounts(limits) };
            let resources = effective_requests(&stated, &namespace);
            (resources.cpu.0, resources.memory.0)
        };
        assert_eq!(of(&[("cpu", 10)], &[("cpu", 20)]), (10, 7));
        assert_eq!(of(&[], &[("cpu", 20)]), (20, 7));
        assert_eq!(of(&[], &[]), (50, 7));
        assert_eq!(of(&[("cpu", 0)], &[]), (0, 7), "a stated zero is stated");
    }

    #[test]
    fn overhead_comes_on_top_and_pod_level_requests_replace_the_sum() {
        let pod_level = ContainerResources {
            requests: [("cpu".into(), 900), ("nvidia.com/gpu".into(), 4)].into(),
            ..ContainerResources::default()
        };
        let spec = PodSpec {
            containers: vec![container(100)],
            resources: Some(pod_level),
            ..PodSpec::default()
        };
        let overhead = [("cpu".into(), 25)].into();
        let requests = pod_requests(&spec, &overhead, &[]);
        assert_eq!((requests.cpu.0, requests.pods), (925, 1));
        assert!(requests.extended.is_empty(), "extended resources belong to containers");
    }
}
