//! States drawn by lot, against every order in which kube-scheduler's model could reach them.

use proptest::prelude::*;

use super::*;
use crate::pod::{Taint, TaintEffect};
use crate::schedule::Scheduler;
use crate::story::Rehearsal;

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
struct Drawn {
    app: usize,
    /// Whether it lives in another namespace, and its terms look into all.
    bank: bool,
    /// Whether it is only for nodes of the team.
    team: bool,
    port: bool,
    anti: Option<(usize, usize)>,
    affinity: Option<(usize, usize)>,
    spread: Vec<DrawnSpread>,
    /// The node of each pod, and whether it comes there.
    pods: Vec<(usize, bool)>,
}

#[derive(Debug, Clone)]
struct DrawnSpread {
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
    fn drawn_spread()(
        key in 0..2_usize,
        app in 0..2_usize,
        max_skew in 1..3_i32,
        min_domains in prop::option::weighted(0.2, 1..4_i32),
        ignores_affinity in prop::bool::weighted(0.2),
        honors_taints in prop::bool::weighted(0.2),
    ) -> DrawnSpread {
        DrawnSpread { key, app, max_skew, min_domains, ignores_affinity, honors_taints }
    }
}

prop_compose! {
    fn drawn()(
        app in 0..2_usize,
        bank in prop::bool::weighted(0.1),
        team in prop::bool::weighted(0.1),
        port in prop::bool::weighted(0.1),
        anti in pair(),
        affinity in pair(),
        spread in prop::collection::vec(drawn_spread(), 0..3),
        pods in prop::collection::vec((0..NODES.len(), prop::bool::weighted(0.7)), 0..4),
    ) -> Drawn {
        Drawn { app, bank, team, port, anti, affinity, spread, pods }
    }
}

impl Drawn {
    fn dress(&self, shape: &mut PodShape) {
        let Self { app, bank, team, port: binds, anti, affinity, spread: rules, pods: _ } = self;
        shape.labels = [label("app", APPS[*app])].into();
        if *bank {
            shape.namespace = "bank".into();
        }
        if *team {
            only(shape, "team", "web");
        }
        if *binds {
            shape.host_ports = vec![port(80, "TCP", "")];
        }
        let term = |(key, app): &(usize, usize)| PodAffinityTerm {
            namespace_selector: bank.then(everything),
            ..term(KEYS[*key], APPS[*app])
        };
        shape.anti_affinity.required = anti.iter().map(term).collect();
        shape.affinity.required = affinity.iter().map(term).collect();
        shape.spread = rules.iter().map(DrawnSpread::rule).collect();
    }

    /// Returns how many pods stay on each node, and how many come; pods stay on kept nodes alone.
    fn on(&self) -> Vec<(&'static str, u32, u32)> {
        let mut on: BTreeMap<usize, (u32, u32)> = BTreeMap::new();
        for (node, comes) in &self.pods {
            let (stay, come) = on.entry(*node).or_default();
            if *comes || *node >= NODES.len() / 2 { *come += 1 } else { *stay += 1 }
        }
        on.into_iter().map(|(node, (stay, come))| (NODES[node], stay, come)).collect()
    }
}

impl DrawnSpread {
    fn rule(&self) -> TopologySpread {
        let Self { key, app, max_skew, min_domains, ignores_affinity, honors_taints } = *self;
        let policy = |honors| if honors { NodeInclusion::Honor } else { NodeInclusion::Ignore };
        TopologySpread {
            min_domains,
            node_affinity_policy: policy(!ignores_affinity),
            node_taints_policy: policy(honors_taints),
            ..spread(KEYS[key], max_skew, APPS[app])
        }
    }
}

/// A town in which `b2` has a taint, and zone c is not for the team.
fn town(daemon: Option<&Drawn>) -> Town {
    let mut town = Town::new();
    let taint = Taint { key: "gpu".into(), value: "".into(), effect: TaintEffect::NoSchedule };
    town.node("b2", |state| state.taints = vec![taint.clone()]);
    for node in ["c1", "c2"] {
        town.node(node, |state| drop(state.labels.remove("team")));
    }
    if let Some(daemon) = daemon {
        town.daemon("agent", |shape| daemon.dress(shape));
    }
    town
}

fn rehearsal(town: &Town) -> Rehearsal {
    let Inputs { desired, demand, .. } = &town.inputs;
    Rehearsal::of(&town.plan, demand, &desired.namespaces)
}

/// Lets the model place the pods that come, in the order drawn, and returns where they went; a pod
/// that finds no place is not planned.
fn placed(daemon: Option<&Drawn>, drawn: &[Drawn], order: &[prop::sample::Index]) -> Vec<Drawn> {
    let mut town = town(daemon);
    let mut stays = drawn.to_vec();
    for workload in &mut stays {
        workload.pods.retain(|(node, comes)| !comes && *node < NODES.len() / 2);
    }
    fill(&mut town, &stays);
    let (mut scheduler, nodes): (Scheduler, Vec<_>) = rehearsal(&town).stage();
    let mut queue: Vec<usize> = Vec::new();
    for (index, workload) in drawn.iter().enumerate() {
        queue.extend(vec![index; workload.pods.len() - stays[index].pods.len()]);
    }
    for (at, index) in order.iter().enumerate().take(queue.len()) {
        let other = at + index.index(queue.len() - at);
        queue.swap(at, other);
    }
    for workload in queue {
        let shape = town.inputs.demand.groups[workload].shape.clone();
        let class = scheduler.class(&shape, None);
        if let Ok(node) = scheduler.schedule(class, None) {
            let node = nodes.iter().position(|known| *known == node).unwrap();
            stays[workload].pods.push((node, true));
        }
    }
    stays
}

/// Returns the town with other rules for the pods of all workloads.
fn changed(town: &Town, edit: fn(&mut PodShape)) -> Town {
    let mut town = town.clone();
    for group in &mut town.inputs.demand.groups {
        edit(Arc::make_mut(&mut group.shape));
    }
    town
}

fn fill(town: &mut Town, drawn: &[Drawn]) {
    for (index, workload) in drawn.iter().enumerate() {
        town.put(&format!("w{index}"), |shape| workload.dress(shape), &workload.on());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_plan_made_by_placements_of_the_scheduler_breaks_a_rule(
        daemon in prop::option::weighted(0.3, drawn()),
        drawn in prop::collection::vec(drawn(), 1..5),
        order in prop::collection::vec(any::<prop::sample::Index>(), 20),
    ) {
        let mut town = town(daemon.as_ref());
        fill(&mut town, &placed(daemon.as_ref(), &drawn, &order));
        prop_assert_eq!(town.violations(&RULES), []);
    }

    #[test]
    fn a_state_is_condemned_if_one_rule_has_no_order_and_only_if_no_order_leads_to_it(
        daemon in prop::option::weighted(0.3, drawn()),
        drawn in prop::collection::vec(drawn(), 1..5),
    ) {
        let mut town = town(daemon.as_ref());
        fill(&mut town, &drawn);
        let found = town.violations(&RULES);
        if rehearsal(&town).is_reachable() == Some(true) {
            prop_assert_eq!(&found, &[]);
        }
        let without_spread = changed(&town, |shape| shape.spread.clear());
        let without_affinity = changed(&town, |shape| shape.affinity.required.clear());
        for one in [without_spread, without_affinity] {
            let rehearsal = rehearsal(&one);
            // A state that breaks no rule as it stands may be out of reach; that is not judged.
            let lost = rehearsal.is_reachable() == Some(false) && !rehearsal.holds_in_the_end();
            prop_assert!(!lost || !found.is_empty());
        }
    }
}
