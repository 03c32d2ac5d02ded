//! Random requests of pods, from limit ranges, runtime classes and pod-level resources. Their true
//! values are computed by a simulation of the startup of a pod.

use std::collections::BTreeMap;

use fleetwright::model::desired::{Desired, LimitRangeItem};
use fleetwright::model::ids::Namespace;
use fleetwright::model::pod::{Container, PodSpec, ResourceList};
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, Strategy, Union};

use super::proof_case::ProofCase;
use super::tree_features::{TreeFeature, any};

/// Requests from other sources than containers.
pub(super) fn amounts() -> BoxedStrategy<TreeFeature> {
    let runtime = |rest: &'static str| {
        let class = format!(
            "manifest\n  apiVersion: node.k8s.io/v1\n  kind: RuntimeClass\n  metadata: {{ name: kata \
             }}\n  handler: kata\n  overhead: {{ podFixed: {{ cpu: 250m, memory: 160Mi }} }}{rest}"
        );
        any().prop_map(move |of| {
            TreeFeature::from_lines(&[&class]).and(TreeFeature::pods(
                of,
                "",
                &["runtimeClassName: kata"],
            ))
        })
    };
    let scheduled = "\n  scheduling: { nodeSelector: { disk: ssd }, tolerations: [{ key: team, operator: Exists }] }";
    let whole = (
        any(),
        select(vec![
            "resources: { requests: { cpu: 1100m, memory: 1Gi } }",
            "resources: { requests: { cpu: 1800m }, limits: { cpu: 1800m, memory: 3Gi } }",
            "resources: { limits: { memory: 6Gi } }",
        ]),
    );
    let whole = whole.prop_map(|(of, line)| TreeFeature::pods(of, "", &[line]));
    Union::new(vec![
        runtime("").boxed(),
        runtime(scheduled).boxed(),
        whole.boxed(),
        defaults().boxed(),
    ])
    .boxed()
}

/// A LimitRange with default requests of containers.
fn defaults() -> impl Strategy<Value = TreeFeature> {
    let limits = select(vec![
        "{ type: Container, defaultRequest: { cpu: 700m } }",
        "{ type: Container, default: { cpu: 900m, memory: 3Gi }, defaultRequest: { memory: 1Gi } }",
        "{ type: Container, max: { cpu: 1200m } }",
        "{ type: Container, min: { cpu: 300m } }, { type: Pod, max: { memory: 20Gi } }",
    ]);
    let containers = select(vec![
        "containers: [{ name: app, image: i }]",
        "containers: [{ name: app, image: i, resources: { requests: { cpu: 150m } } }, { name: log, \
         image: i }]",
        "containers: [{ name: app, image: i, resources: { limits: { cpu: 1100m } } }]",
        "initContainers: [{ name: i1, image: i }, { name: i2, image: i, restartPolicy: Always }]",
    ]);
    (any(), limits, containers).prop_map(|(of, limits, containers)| {
        let range = format!(
            "manifest\n  apiVersion: v1\n  kind: LimitRange\n  metadata: {{ name: range, namespace: \
             {{ns}} }}\n  spec: {{ limits: [{limits}] }}"
        );
        TreeFeature::pods(of, "", &[containers]).with_manifest(range)
    })
}

impl ProofCase {
    /// Checks that the planned requests of a pod equal its maximum use during startup.
    pub(super) fn requests_match_startup(&self) -> Result<(), String> {
        for workload in self.desired.workloads.values() {
            let mut kinds = self.kinds.iter().filter(|kind| kind.workload == workload.id);
            let Some(kind) = kinds.next() else { continue };
            let startup = PodStartup::from_spec(
                &workload.template.spec,
                &self.desired,
                &workload.id.namespace,
            );
            let requests = &kind.shape.requests;
            for (name, counted) in [("cpu", requests.cpu.0), ("memory", requests.memory.0)] {
                let needed = startup.most(name);
                if counted != needed {
                    let id = &workload.id;
                    let why = format!("{id} needs {needed} of {name}, but {counted} are planned");
                    return Err(self.describe_failure(&why));
                }
            }
        }
        Ok(())
    }
}

/// Requests of a pod at each moment of its startup, its pod-level requests, and its overhead.
#[derive(Default)]
struct PodStartup {
    moments: Vec<ResourceList>,
    whole: ResourceList,
    overhead: ResourceList,
}

impl PodStartup {
    fn from_spec(spec: &PodSpec, desired: &Desired, namespace: &Namespace) -> Self {
        let items = desired.limit_ranges.get(namespace).map_or(&[][..], Vec::as_slice);
        let (mut held, mut moments) = (ResourceList::new(), Vec::new());
        for container in &spec.init_containers {
            let mut now = held.clone();
            add(&mut now, &container_requests(container, items));
            if container.sidecar {
                held.clone_from(&now);
            }
            moments.push(now);
        }
        spec.containers
            .iter()
            .for_each(|container| add(&mut held, &container_requests(container, items)));
        moments.push(held);
        let class =
            spec.runtime_class_name.as_ref().and_then(|name| desired.runtime_classes.get(name));
        let overhead = class.map(|class| class.overhead.clone()).unwrap_or_default();
        Self { moments, whole: whole(spec), overhead }
    }

    fn most(&self, name: &str) -> i64 {
        let of = |amounts: &ResourceList| amounts.get(name).copied();
        let most = self.moments.iter().filter_map(of).max().unwrap_or(0);
        of(&self.whole).unwrap_or(most) + of(&self.overhead).unwrap_or(0)
    }
}

/// Returns the pod-level requests. A missing request defaults to the sum of the containers if the
/// pod states any limit, else to its pod-level limit.
fn whole(spec: &PodSpec) -> ResourceList {
    let Some(stated) = &spec.resources else { return ResourceList::new() };
    let without_defaults =
        PodStartup { moments: moments_without_defaults(spec), ..PodStartup::default() };
    let mut all = stated.requests.clone();
    for name in ["cpu", "memory"] {
        let says = |amounts: &ResourceList| amounts.contains_key(name);
        let of_containers = without_defaults.moments.iter().any(says);
        if !stated.limits.is_empty() && !says(&all) && of_containers {
            all.insert(name.into(), without_defaults.most(name));
        }
        if let Some(limit) = stated.limits.get(name).filter(|_| !says(&all)) {
            all.insert(name.into(), *limit);
        }
    }
    all
}

/// Returns the moments of a pod in a namespace without a LimitRange.
fn moments_without_defaults(spec: &PodSpec) -> Vec<ResourceList> {
    let spec = PodSpec { resources: None, runtime_class_name: None, ..spec.clone() };
    PodStartup::from_spec(&spec, &Desired::default(), &"default".into()).moments
}

/// Returns the requests of a container, with the defaults of its namespace.
fn container_requests(container: &Container, items: &[LimitRangeItem]) -> ResourceList {
    let stated = &container.resources;
    let mut all = BTreeMap::new();
    let defaults = items.iter().map(|item| &item.default_request);
    // Later entries override earlier ones: requests of the container override its limits, and
    // limits override defaults.
    let defaults: Vec<&ResourceList> = defaults.collect();
    for amounts in defaults.into_iter().rev().chain([&stated.limits, &stated.requests]) {
        all.extend(amounts.iter().map(|(name, amount)| (name.clone(), *amount)));
    }
    all
}

fn add(sum: &mut ResourceList, more: &ResourceList) {
    for (name, amount) in more {
        *sum.entry(name.clone()).or_insert(0) += amount;
    }
}
