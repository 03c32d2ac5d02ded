//! The workshop of Karpenter: scaled up and down, each plan carried out, and none after it finds anything to do.

use super::*;
use crate::demand::DemandMode;
use crate::plan::wire::{Base, BaseWorld};
use crate::simulator::{DeliveredWorkload, Delivery, WorldInit};
use crate::testing::Story;

/// Plans the story's repository over a simulated world.
fn plan_over(story: &Story, world: &World) -> Plan {
    let observed = run(observe(world, world, world, world.cluster()));
    let world = BaseWorld {
        name: "sim:world".into(),
        cluster: observed.cluster.clone(),
        taken_at: observed.taken_at,
        sources: observed.sources.clone(),
    };
    crate::planner::plan(&crate::planner::Inputs {
        desired: &story.desired,
        observed: &observed,
        catalog: &story.catalog,
        base: Base {
            path: ".".into(),
            repository: None,
            commit: None,
            tree: "0".repeat(64),
            dirty: false,
            directory: None,
            rendered: Vec::new(),
            world,
            demand: DemandMode::Live,
            preconditions: Vec::new(),
            guard: None,
            judged_by: Vec::new(),
        },
        at: observed.taken_at,
        demand: DemandMode::Live,
        is_forecast: false,
        scope: crate::planner::Scope::default(),
        settings: crate::solver::Settings::default(),
    })
}

#[test]
fn the_workshop_walk_plan_apply_plan_again_finds_nothing_to_do() {
    let mut story = Story::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], 0, 1024);
    let genesis = WorldInit {
        cluster: story.observed.cluster.clone(),
        now: story.observed.taken_at,
        seed: 1,
    };
    let world = World::in_memory(&genesis, crate::simulator::fixture::shapes());
    for replicas in [0, 5, 12, 5, 1, 0] {
        story.scale(replicas);
        let deliver = |workload: &crate::model::desired::Workload| DeliveredWorkload {
            replicas,
            first_ordinal: workload.first_ordinal,
            template: workload.template.clone(),
        };
        let workloads = story.desired.workloads.iter();
        let workloads = workloads.map(|(id, workload)| (id.clone(), deliver(workload))).collect();
        let delivery = Delivery { workloads, ..Delivery::default() };
        let plan = plan_over(&story, &world);
        assert!(plan.applyable, "{replicas}: {:?}", plan.capacity.diagnostics);
        world.deliver(&delivery).expect("kept in memory");
        let settings = ApplySettings { cluster: world.cluster(), ..settings() };
        let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{replicas}: {receipt:#?}");
        world.settle(MINUTE * 5).expect("kept in memory");
        let running = pods_of(&world);
        assert_eq!(running, usize::try_from(replicas).expect("small"), "every pod runs");
        let again = plan_over(&story, &world);
        assert_eq!((again.summary.add, again.summary.destroy), (0, 0), "{replicas}: {again:#?}");
    }
    assert!(active(&world).is_empty());
}

fn pods_of(world: &World) -> usize {
    pods(world, "inflate").iter().filter(|pod| pod.phase == PodPhase::Running).count()
}
