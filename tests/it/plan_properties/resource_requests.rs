//! What pods ask for, by lot: amounts that the namespace, a runtime class or the pod as a whole
//! decide; and what they ask for in truth, found by living through a pod's start.

use std::collections::BTreeMap;

use fleetwright::model::desired::{Desired, LimitRangeItem};
use fleetwright::model::ids::Namespace;
use fleetwright::model::pod::{Container, PodSpec, ResourceList};
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, Strategy, Union};

use super::proof_case::ProofCase;
use super::tree_features::{TreeFeature, any};

/// Amounts that stand elsewhere than in containers.
pub(super) fn amounts() -> BoxedStrategy<TreeFeature> {
    let runtime = |rest: &'static str| {
        let class = format!(
            "manifest\n  apiVersion: node.k8s.io/v1\n  kind: RuntimeClass\n  metadata: {{ name: kata \
             }}\n  handler: kata\n  overhead: {{ podFixed: {{ cpu: 250m, memory: 160Mi }} }}{rest}"
        );
        any().prop_map(move |of| {
            TreeFeature::given(&[&class]).and(TreeFeature::pods(
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

/// A namespace that says what containers ask for that say nothing.
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
    /// What a pod is planned with is the most that it takes at any moment of its life.
    pub(super) fn counts_what_pods_take(&self) -> Result<(), String> {
        for workload in self.desired.workloads.values() {
            let mut kinds = self.kinds.iter().filter(|kind| kind.workload == workload.id);
            let Some(kind) = kinds.next() else { continue };
            let life =
                PodStartup::of(&workload.template.spec, &self.desired, &workload.id.namespace);
            let asked = &kind.shape.requests;
            for (name, counted) in [("cpu", asked.cpu.0), ("memory", asked.memory.0)] {
                let taken = life.most(name);
                if counted != taken {
                    let id = &workload.id;
                    let why = format!("{id} takes {taken} of {name}, and {counted} are planned");
                    return Err(self.story(&why));
                }
            }
        }
        Ok(())
    }
}

/// What a pod holds at each moment from its start on, and what it states as a whole.
#[derive(Default)]
struct PodStartup {
    moments: Vec<ResourceList>,
    whole: ResourceList,
    overhead: ResourceList,
}

impl PodStartup {
    fn of(spec: &PodSpec, desired: &Desired, namespace: &Namespace) -> Self {
        let items = desired.limit_ranges.get(namespace).map_or(&[][..], Vec::as_slice);
        let (mut held, mut moments) = (ResourceList::new(), Vec::new());
        for container in &spec.init_containers {
            let mut now = held.clone();
            add(&mut now, &asked(container, items));
            if container.sidecar {
                held.clone_from(&now);
            }
            moments.push(now);
        }
        spec.containers.iter().for_each(|container| add(&mut held, &asked(container, items)));
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

/// Returns what the pod as a whole asks for: what it states; else, where it states a limit of
/// anything, what its containers state; else its limit.
fn whole(spec: &PodSpec) -> ResourceList {
    let Some(stated) = &spec.resources else { return ResourceList::new() };
    let bare = PodStartup { moments: bare_moments(spec), ..PodStartup::default() };
    let mut all = stated.requests.clone();
    for name in ["cpu", "memory"] {
        let says = |amounts: &ResourceList| amounts.contains_key(name);
        let of_containers = bare.moments.iter().any(says);
        if !stated.limits.is_empty() && !says(&all) && of_containers {
            all.insert(name.into(), bare.most(name));
        }
        if let Some(limit) = stated.limits.get(name).filter(|_| !says(&all)) {
            all.insert(name.into(), *limit);
        }
    }
    all
}

/// Returns the moments of a pod in a namespace that says nothing.
fn bare_moments(spec: &PodSpec) -> Vec<ResourceList> {
    let spec = PodSpec { resources: None, runtime_class_name: None, ..spec.clone() };
    PodStartup::of(&spec, &Desired::default(), &"default".into()).moments
}

/// Returns what a container asks for, with what its namespace says.
fn asked(container: &Container, items: &[LimitRangeItem]) -> ResourceList {
    let stated = &container.resources;
    let mut all = BTreeMap::new();
    let defaults = items.iter().map(|item| &item.default_request);
    // The last that is put in stays: what the container requests, before its limits, before defaults.
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
