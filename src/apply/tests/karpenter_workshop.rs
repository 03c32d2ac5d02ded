//! Karpenter's workshop: scales a Deployment up and down. After each apply, a new plan is empty.

use super::*;
use crate::planner::Inputs;
use crate::simulator::{DeliveredWorkload, Delivery, WorldInit};
use crate::testing::Scenario;
use crate::testing::plan::base;

/// Plans the repository of `scenario` for a simulated world.
fn plan_over(scenario: &Scenario, world: &World) -> Plan {
    let observed = run(observe(world, world, world, world.cluster()));
    let base = base(&observed);
    let at = observed.taken_at;
    crate::planner::plan(&Inputs { observed: &observed, base, at, ..scenario.inputs() })
}

#[test]
fn plan_after_each_workshop_apply_is_empty() {
    let mut scenario = Scenario::new(&["c5.large", "m5.large", "r5.large", "m5.xlarge"], 0, 1024);
    let genesis = WorldInit {
        cluster: scenario.observed.cluster.clone(),
        now: scenario.observed.taken_at,
        seed: 1,
    };
    let world = World::in_memory(&genesis, crate::testing::simulator::shapes());
    for replicas in [0, 5, 12, 5, 1, 0] {
        scenario.scale(replicas);
        let deliver = |workload: &crate::model::desired::Workload| DeliveredWorkload {
            replicas,
            first_ordinal: workload.first_ordinal,
            template: workload.template.clone(),
        };
        let workloads = scenario.desired.workloads.iter();
        let workloads = workloads.map(|(id, workload)| (id.clone(), deliver(workload))).collect();
        let delivery = Delivery { workloads, ..Delivery::default() };
        let plan = plan_over(&scenario, &world);
        assert!(plan.applyable, "{replicas}: {:?}", plan.capacity.diagnostics);
        world.deliver(&delivery).expect("kept in memory");
        let settings = ApplySettings { cluster: world.cluster(), ..settings() };
        let receipt = apply_over(&plan, &world, &settings).0.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{replicas}: {receipt:#?}");
        world.settle(MINUTE * 5).expect("kept in memory");
        let running = running_pods(&world);
        assert_eq!(running, usize::try_from(replicas).expect("small"), "every pod runs");
        let again = plan_over(&scenario, &world);
        assert_eq!((again.summary.add, again.summary.destroy), (0, 0), "{replicas}: {again:#?}");
    }
    assert!(active(&world).is_empty());
}

fn running_pods(world: &World) -> usize {
    pods(world, "inflate").iter().filter(|pod| pod.phase == PodPhase::Running).count()
}
