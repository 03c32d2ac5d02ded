use super::*;
use crate::model::desired::LimitScope;

fn amounts(list: &[(&str, i64)]) -> ResourceList {
    list.iter().map(|(name, amount)| (ResourceName::from(*name), *amount)).collect()
}

fn resources(requests: &[(&str, i64)], limits: &[(&str, i64)]) -> ContainerResources {
    ContainerResources { requests: amounts(requests), limits: amounts(limits) }
}

fn container(cpu: i64) -> Container {
    Container { resources: resources(&[("cpu", cpu)], &[]), ..Container::default() }
}

fn sidecar(cpu: i64) -> Container {
    Container { sidecar: true, ..container(cpu) }
}

fn with_defaults() -> [LimitRangeItem; 1] {
    [LimitRangeItem {
        default_request: amounts(&[("cpu", 50)]),
        default_limit: amounts(&[("cpu", 500), ("memory", 7)]),
        ..LimitRangeItem::default()
    }]
}

fn requests(spec: &PodSpec) -> Resources {
    without_defaults(spec, pod_requests)
}

fn without_defaults(
    spec: &PodSpec,
    requests_of: impl Fn(&PodSpec, &RequestContext) -> Resources,
) -> Resources {
    let (overhead, granted) = (ResourceList::new(), AllocatedResources::new());
    requests_of(spec, &RequestContext { overhead: &overhead, limits: &[], granted: &granted })
}

#[test]
fn larger_of_startup_peak_and_running_sum_counts() {
    for (rule, init, containers, expected) in [
        ("containers add up", vec![], vec![container(1), container(2)], 3),
        ("an init container runs before the containers", vec![container(3)], vec![container(1)], 3),
        ("init containers run one by one", vec![container(2), container(3)], vec![], 3),
        ("case 11: a sidecar before it", vec![sidecar(1), container(3)], vec![container(1)], 4),
        ("case 11: a sidecar after it", vec![container(3), sidecar(1)], vec![container(1)], 3),
        ("sidecars stay while containers run", vec![sidecar(1)], vec![container(2)], 3),
        (
            "sidecars add up as they start",
            vec![sidecar(1), container(2), sidecar(2), container(2)],
            vec![container(1)],
            5,
        ),
    ] {
        let spec = PodSpec { init_containers: init, containers, ..PodSpec::default() };
        assert_eq!(requests(&spec).cpu.0, expected, "{rule}");
    }
}

#[test]
fn scores_presume_requests_of_containers_without_any() {
    const MEMORY: i64 = 200 << 20;
    let memory = |amount: i64| Container {
        resources: resources(&[("memory", amount)], &[]),
        ..Container::default()
    };
    let both = || Container {
        resources: resources(&[("cpu", 1), ("memory", 1)], &[]),
        ..Container::default()
    };
    for (rule, init, containers, expected) in [
        ("all is stated", vec![], vec![both(), both()], (0, 0)),
        ("each container counts", vec![], vec![memory(1), memory(2)], (200, 0)),
        ("a request of zero is stated", vec![], vec![container(0), memory(0)], (100, MEMORY)),
        ("an init container below the sum", vec![memory(1)], vec![container(900)], (0, MEMORY - 1)),
        ("a sidecar", vec![sidecar(1)], vec![container(2)], (0, 2 * MEMORY)),
    ] {
        let spec = PodSpec { init_containers: init, containers, ..PodSpec::default() };
        let Resources { cpu, memory, pods, .. } = without_defaults(&spec, presumed_requests);
        assert_eq!((cpu.0, memory.0, pods), (expected.0, expected.1, 0), "{rule}");
    }
    let spec = PodSpec {
        containers: vec![memory(1)],
        resources: Some(resources(&[("cpu", 7)], &[])),
        ..PodSpec::default()
    };
    assert_eq!(
        without_defaults(&spec, presumed_requests),
        Resources::default(),
        "pod-level requests are stated"
    );
}

#[test]
fn missing_requests_come_from_limits_then_the_namespace() {
    for (rule, asks, limits, expected) in [
        ("a request is a request", &[("cpu", 10)][..], &[("cpu", 20)][..], (10, 0)),
        ("case 13: a limit alone is the request", &[], &[("cpu", 20)], (20, 0)),
        ("defaults fill the rest", &[], &[], (50, 0)),
        ("a request of zero is stated", &[("cpu", 0)], &[], (0, 0)),
        ("each resource separately", &[("memory", 3)], &[("cpu", 20)], (20, 3)),
    ] {
        let filled = admitted(&resources(asks, limits), &with_defaults());
        let request = |name: &str| filled.requests.get(name).copied().unwrap_or(0);
        assert_eq!((request("cpu"), request("memory")), expected, "{rule}");
        assert_eq!(filled.limits["memory"], 7, "{rule}: limits are filled too");
    }
}

#[test]
fn limit_range_for_pods_sets_no_defaults() {
    let item = LimitRangeItem {
        scope: LimitScope::Pod,
        max: amounts(&[("cpu", 500)]),
        ..LimitRangeItem::default()
    };
    assert_eq!(admitted(&resources(&[], &[]), &[item]), ContainerResources::default());
}

#[test]
fn pod_level_resources_replace_the_sum() {
    let gi = 1 << 30;
    for (rule, whole, expected) in [
        ("a pod-level request", resources(&[("cpu", 900)], &[]), (900, 5, 0)),
        (
            "case 12: a limit of the pod, where its containers request none",
            resources(&[], &[("memory", gi)]),
            (100, 5, 0),
        ),
        (
            "a limit of the pod does not replace container requests",
            resources(&[], &[("cpu", 2000)]),
            (100, 5, 0),
        ),
        (
            "huge pages cannot be overcommitted: the limit counts",
            resources(&[], &[("hugepages-2Mi", gi)]),
            (100, 5, gi),
        ),
        (
            "other resources belong to containers",
            resources(&[("cpu", 900), ("nvidia.com/gpu", 4)], &[]),
            (900, 5, 0),
        ),
    ] {
        let mut one = container(100);
        one.resources.requests.extend(amounts(&[("memory", 5)]));
        let spec = PodSpec { containers: vec![one], resources: Some(whole), ..PodSpec::default() };
        let Resources { cpu, memory, extended, .. } = requests(&spec);
        let huge = extended.get("hugepages-2Mi").copied().unwrap_or(0);
        assert_eq!((cpu.0, memory.0, huge), expected, "{rule}");
        assert!(!extended.contains_key("nvidia.com/gpu"), "{rule}");
    }
    let resources = Some(resources(&[], &[("memory", gi)]));
    let spec = PodSpec { containers: vec![container(1)], resources, ..PodSpec::default() };
    assert_eq!(requests(&spec).memory.0, gi, "no container requests memory");
}

#[test]
fn case_12_overhead_is_added_to_the_requests() {
    let spec = PodSpec {
        init_containers: vec![container(300)],
        containers: vec![container(100)],
        ..PodSpec::default()
    };
    let (overhead, granted) =
        (amounts(&[("cpu", 25), ("example.com/x", 1)]), AllocatedResources::new());
    let context = RequestContext { overhead: &overhead, limits: &[], granted: &granted };
    let found = pod_requests(&spec, &context);
    assert_eq!((found.cpu.0, found.pods), (325, 1));
    assert_eq!(found.extended(&"example.com/x".into()), 1);
}

#[test]
fn case_20_larger_of_requested_and_granted_counts() {
    let app = Container { name: "app".into(), ..container(500) };
    let spec = PodSpec { containers: vec![app, container(100)], ..PodSpec::default() };
    for (rule, granted, expected) in [
        ("nothing granted yet", 0, 600),
        ("scaled down, not yet released", 800, 900),
        ("scaled up, not yet granted", 300, 600),
    ] {
        let granted: AllocatedResources = [("app".to_owned(), amounts(&[("cpu", granted)]))].into();
        let overhead = ResourceList::new();
        let context = RequestContext { overhead: &overhead, limits: &[], granted: &granted };
        assert_eq!(pod_requests(&spec, &context).cpu.0, expected, "{rule}");
    }
}

#[test]
fn every_kind_of_resource_is_summed() {
    let one = resources(
        &[
            ("ephemeral-storage", 10),
            ("hugepages-2Mi", 4 << 20),
            ("nvidia.com/gpu", 1),
            ("aws.amazon.com/neuron", 2),
            ("vpc.amazonaws.com/efa", 0),
        ],
        &[],
    );
    let one = Container { resources: one, ..Container::default() };
    let spec = PodSpec { containers: vec![one.clone(), one], ..PodSpec::default() };
    let found = requests(&spec);
    assert_eq!((found.ephemeral_storage.0, found.cpu.0), (20, 0));
    let extended =
        amounts(&[("hugepages-2Mi", 8 << 20), ("nvidia.com/gpu", 2), ("aws.amazon.com/neuron", 4)]);
    assert_eq!(found.extended, extended, "an amount of zero requests nothing");
}

#[test]
fn huge_and_negative_amounts_are_bounded() {
    let found = to_resources(&amounts(&[("cpu", i64::MAX), ("memory", -1), ("a/gpu", i64::MAX)]));
    assert_eq!((found.cpu.0, found.memory.0), (1 << 48, 0));
    assert_eq!(found.extended, amounts(&[("a/gpu", 1 << 48)]));
    // Sums stay exact, so that a removed pod leaves the amount before it.
    let sum = found.times(1000);
    assert_eq!(sum.plus(&found).minus(&found), sum);
}
