//! Plans that shrink a `StatefulSet`.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::changes;
use crate::model::desired::Scale;
use crate::model::ids::{NodeName, WorkloadId, WorkloadKind};
use crate::model::observed::PodPhase;
use crate::model::requirement::{key, label};
use crate::testing::{Scenario, pods, workload_id};

#[test]
fn ordinals_that_end_free_their_node_while_wanted_ones_are_pending() {
    let mut scenario = Scenario::new(&["m5.large"], 600, 256);
    scenario.step(4);
    for (name, node) in &mut scenario.observed.nodes {
        node.labels.insert(key::HOSTNAME.into(), name.as_str().into());
    }
    let nodes: Vec<NodeName> = scenario.observed.nodes.keys().cloned().collect();
    let [first, second] = nodes.as_slice() else { panic!("two nodes: {nodes:?}") };
    scenario.desired.workloads.clear();
    scenario.observed.pods.clear();
    // The spread sends the only pending pod that is wanted to the second node, which stays for its
    // other pod.
    let mut template = pods::template(600, 256);
    template.labels = [label("app", "db")].into();
    template.spec.topology_spread = vec![pods::topology_spread(key::HOSTNAME, 1, "db")];
    let kind = WorkloadKind::StatefulSet;
    let db = WorkloadId { name: "db".into(), kind, ..workload_id() };
    scenario.declare(db.clone(), Scale::Replicas(3), template.clone());
    let large = pods::template(1_300, 256);
    scenario.deploy("large", 1, large.clone());
    let owner = WorkloadId { name: "large".into(), ..workload_id() };
    scenario.run(&owner, second, &Arc::new(large));
    let template = Arc::new(template);
    for ordinal in 0..=10 {
        scenario.run(&db, first, &template);
        let pod = scenario.last_pod();
        pod.name = format!("db-{ordinal}").into();
        if (2..10).contains(&ordinal) {
            (pod.node, pod.phase) = (None, PodPhase::Pending);
        }
    }
    // A plan that breaks its own rules has errors.
    let plan = scenario.plan();
    assert_eq!(changes(&plan), (0, 0));
    let arriving = plan.capacity.placements.iter().map(|row| (&*row.workload.name, row.pods));
    assert_eq!(arriving.collect::<Vec<_>>(), [("db", 1)]);
    let planned =
        plan.capacity.explain.iter().filter_map(|row| row.pods.get("other/StatefulSet/db"));
    assert_eq!(planned.copied().collect::<BTreeSet<u32>>(), BTreeSet::from([1, 2]));
}
