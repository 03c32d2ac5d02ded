//! Compares random states with all orders in which the kube-scheduler model can reach them.

use proptest::prelude::*;

use super::*;
use crate::scheduler::Scheduler;
use crate::testing::PlacementSimulation;
use crate::testing::pods::no_schedule;

const RULES: [&str; 7] = [
    "fit/ports",
    "fit/anti-affinity",
    "fit/affinity",
    "fit/spread",
    "fit/labels",
    "fit/taints",
    "fit/resources",
];

const KEYS: [&str; 2] = [ZONE, HOST];
const APPS: [&str; 2] = ["x", "y"];

/// A workload: indices into [`KEYS`], [`APPS`] and [`NODES`].
#[derive(Debug, Clone)]
struct RandomWorkload {
    app: usize,
    /// True for a workload in another namespace whose terms select all namespaces.
    bank: bool,
    /// True for a workload that runs only on nodes of the team.
    team: bool,
    port: bool,
    anti: Option<(usize, usize)>,
    affinity: Option<(usize, usize)>,
    spread: Vec<RandomSpread>,
    /// Node of each pod, and true for an arriving pod.
    pods: Vec<(usize, bool)>,
}

#[derive(Debug, Clone)]
struct RandomSpread {
    key: usize,
    app: usize,
    max_skew: i32,
    min_domains: Option<i32>,
    ignores_affinity: bool,
    honors_taints: bool,
}

fn pair() -> impl Strategy<Value = Option<(usize, usize)>> {
    prop_oneof![3 => Just(None), 1 => (0..2_usize, 0..2_usize).prop_map(Some)]
}

prop_compose! {
    fn random_spread()(
        key in 0..2_usize,
        app in 0..2_usize,
        max_skew in 1..3_i32,
        min_domains in prop::option::weighted(0.2, 1..4_i32),
        ignores_affinity in prop::bool::weighted(0.2),
        honors_taints in prop::bool::weighted(0.2),
    ) -> RandomSpread {
        RandomSpread { key, app, max_skew, min_domains, ignores_affinity, honors_taints }
    }
}

prop_compose! {
    fn random_workload()(
        app in 0..2_usize,
        bank in prop::bool::weighted(0.1),
        team in prop::bool::weighted(0.1),
        port in prop::bool::weighted(0.1),
        anti in pair(),
        affinity in pair(),
        spread in prop::collection::vec(random_spread(), 0..3),
        pods in prop::collection::vec((0..NODES.len(), prop::bool::weighted(0.7)), 0..4),
    ) -> RandomWorkload {
        RandomWorkload { app, bank, team, port, anti, affinity, spread, pods }
    }
}

impl RandomWorkload {
    fn apply_to(&self, shape: &mut PodShape) {
        let Self { app, bank, team, port: binds, anti, affinity, spread: rules, pods: _ } = self;
        shape.labels = [label("app", APPS[*app])].into();
        if *bank {
            shape.namespace = "bank".into();
        }
        if *team {
            only(shape, "team", "web");
        }
        if *binds {
            shape.host_ports = vec![host_port(80, "TCP", "")];
        }
        let term = |(key, app): &(usize, usize)| PodAffinityTerm {
            namespace_selector: bank.then(everything),
            ..affinity_term(KEYS[*key], APPS[*app])
        };
        shape.anti_affinity.required = anti.iter().map(term).collect();
        shape.affinity.required = affinity.iter().map(term).collect();
        shape.spread = rules.iter().map(RandomSpread::rule).collect();
    }

    /// Returns the staying and arriving pods of each node. Pods stay only on retained nodes.
    fn on(&self) -> Vec<(&'static str, u32, u32)> {
        let mut on: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
        for (node, comes) in &self.pods {
            let (stay, come) = on.entry(*node).or_default();
            if *comes || *node >= NODES.len() / 2 { *come += 1 } else { *stay += 1 }
        }
        on.into_iter().map(|(node, (stay, come))| (NODES[node], stay, come)).collect()
    }
}

impl RandomSpread {
    fn rule(&self) -> TopologySpread {
        let Self { key, app, max_skew, min_domains, ignores_affinity, honors_taints } = *self;
        let policy = |honors| if honors { NodeInclusion::Honor } else { NodeInclusion::Ignore };
        TopologySpread {
            min_domains,
            node_affinity_policy: policy(!ignores_affinity),
            node_taints_policy: policy(honors_taints),
            ..topology_spread(KEYS[key], max_skew, APPS[app])
        }
    }
}

/// Returns a fixture in which `b2` has a taint and zone c does not belong to the team.
fn plan_fixture(daemon: Option<&RandomWorkload>) -> PlanFixture {
    let mut fixture = PlanFixture::new();
    fixture.edit_node("b2", |state| state.taints = vec![no_schedule("gpu", "")]);
    for node in ["c1", "c2"] {
        fixture.edit_node(node, |state| drop(state.labels.remove("team")));
    }
    if let Some(daemon) = daemon {
        fixture.add_daemon_set("agent", |shape| daemon.apply_to(shape));
    }
    fixture
}

fn simulation(fixture: &PlanFixture) -> PlacementSimulation {
    let Inputs { desired, demand, .. } = &fixture.inputs;
    PlacementSimulation::new(&fixture.plan, demand, &desired.namespaces)
}

/// Places the arriving pods in the given order with the model, and returns the workloads with their
/// nodes. An unschedulable pod is dropped.
fn placed(
    daemon: Option<&RandomWorkload>,
    workloads: &[RandomWorkload],
    order: &[prop::sample::Index],
) -> Vec<RandomWorkload> {
    let mut fixture = plan_fixture(daemon);
    let mut stays = workloads.to_vec();
    for workload in &mut stays {
        workload.pods.retain(|(node, comes)| !comes && *node < NODES.len() / 2);
    }
    add_workloads(&mut fixture, &stays);
    let (mut scheduler, nodes): (Scheduler, Vec<_>) = simulation(&fixture).build();
    let mut queue: Vec<usize> = Vec::new();
    for (index, workload) in workloads.iter().enumerate() {
        queue.extend(vec![index; workload.pods.len() - stays[index].pods.len()]);
    }
    for (at, index) in order.iter().enumerate().take(queue.len()) {
        let other = at + index.index(queue.len() - at);
        queue.swap(at, other);
    }
    for workload in queue {
        let shape = fixture.inputs.demand.groups[workload].shape.clone();
        let class = scheduler.class(&shape, None);
        if let Ok(node) = scheduler.schedule(class, None) {
            let node = nodes.iter().position(|known| *known == node).unwrap();
            stays[workload].pods.push((node, true));
        }
    }
    stays
}

/// Returns the fixture with an edit of the pods of all workloads.
fn changed(fixture: &PlanFixture, edit: fn(&mut PodShape)) -> PlanFixture {
    let mut fixture = fixture.clone();
    for group in &mut fixture.inputs.demand.groups {
        edit(Arc::make_mut(&mut group.shape));
    }
    fixture
}

fn add_workloads(fixture: &mut PlanFixture, workloads: &[RandomWorkload]) {
    for (index, workload) in workloads.iter().enumerate() {
        fixture.add_workload(
            &format!("w{index}"),
            |shape| workload.apply_to(shape),
            &workload.on(),
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn scheduler_placements_break_no_rule(
        daemon in prop::option::weighted(0.3, random_workload()),
        workloads in prop::collection::vec(random_workload(), 1..5),
        order in prop::collection::vec(any::<prop::sample::Index>(), 20),
    ) {
        let mut fixture = plan_fixture(daemon.as_ref());
        add_workloads(&mut fixture, &placed(daemon.as_ref(), &workloads, &order));
        prop_assert_eq!(fixture.violations(&RULES), []);
    }

    #[test]
    fn only_unreachable_states_are_reported(
        daemon in prop::option::weighted(0.3, random_workload()),
        workloads in prop::collection::vec(random_workload(), 1..5),
    ) {
        let mut fixture = plan_fixture(daemon.as_ref());
        add_workloads(&mut fixture, &workloads);
        let found = fixture.violations(&RULES);
        if simulation(&fixture).is_reachable() == Some(true) {
            prop_assert_eq!(&found, &[]);
        }
        let without_spread = changed(&fixture, |shape| shape.spread.clear());
        let without_affinity = changed(&fixture, |shape| shape.affinity.required.clear());
        for variant in [without_spread, without_affinity] {
            let simulation = simulation(&variant);
            // An unreachable state whose final placement violates no rule is not checked.
            let is_unreachable = simulation.is_reachable() == Some(false);
            let is_violated = is_unreachable && !simulation.fits_at_end();
            prop_assert!(!is_violated || !found.is_empty());
        }
    }
}
