//! Reasons of rows that share a batch, and explanations of pools.

use super::*;

/// Gives every row the pods that its workloads ran there before.
fn with_batch(pods_before: &[(&str, &str)], launched: &[(&str, u32)]) -> Plan {
    let mut plan = plan();
    for row in &mut plan.capacity.explain {
        if row.address.as_str() == "ec2_instance.batch[\"2\"]" {
            row.pods = launched.iter().map(|(pod, n)| ((*pod).into(), *n)).collect();
        }
        let ran = pods_before.iter().filter(|(address, _)| row.address.as_str() == *address);
        row.pods_before = ran.map(|(_, pod)| ((*pod).into(), 2)).collect();
    }
    plan
}

#[test]
fn new_pods_are_not_pods_of_removed_nodes() {
    let before = [("ec2_instance.batch[\"0\"]", "batch/Deployment/queue")];
    let row = |launched: &[(&str, u32)]| {
        let text = view(&with_batch(&before, launched), Verbosity::Concise);
        let line = text.lines().find(|line| line.contains("+    ec2_instance.batch[\"2\"]"));
        line.expect("the row").to_owned()
    };
    let pending = row(&[("web/Deployment/api", 3)]);
    assert!(pending.ends_with("3 pods have no room: web/Deployment/api x3"), "{pending}");
    let both = row(&[("web/Deployment/api", 3), ("batch/Deployment/queue", 2)]);
    let taken = both.contains("takes 3 new pods, and ") && both.contains(" of removed nodes");
    assert!(taken, "{both}");
    let grown = row(&[("batch/Deployment/queue", 5)]);
    assert!(grown.contains("takes 3 new pods, and "), "a workload that grows: {grown}");
    let moved = row(&[("batch/Deployment/queue", 2)]);
    assert!(moved.contains("takes the pods of more expensive nodes"), "{moved}");
}

#[test]
fn reason_of_a_plan_names_pods_without_room_and_a_further_change() {
    let reason = |plan: &Plan| crate::render::plan_reason(plan);
    assert_eq!(reason(&crate::testing::sample_plan::nothing()), None);
    let (launch, stays) = ("ec2_instance.batch[\"2\"]", "web/Deployment/api");
    let plan = with_batch(&[], &[(stays, 3)]);
    let all = reason(&plan).expect("it changes nodes");
    let (pods, further) = all.split_once("; ").expect("both");
    assert!(pods.starts_with("12 pods have no room: web/Deployment/api"), "{all}");
    assert!(further.starts_with("ec2_instance.") && further.contains(" further change"), "{all}");
    assert!(!further.starts_with(launch), "{all}");
}

#[test]
fn joint_saving_is_stated_once() {
    let text = view(&plan(), Verbosity::Concise);
    assert_eq!(text.matches("saves $0.0070/h").count(), 1, "{text}");
    assert_eq!(
        text.matches("its saving is part of ec2_instance.batch[\"0\"]").count(),
        2,
        "{text}"
    );
}

#[test]
fn minimum_of_a_group_blocks_only_a_due_change() {
    use crate::plan::wire::{BlockReason, KeepReason, Reason, RetireReason};
    let row = |pods: &[(&str, u32)], drift: Option<RetireReason>| {
        let mut plan = plan();
        let mut rows = plan.capacity.explain.iter_mut();
        let blocked = rows.find(|row| row.address.as_str() == "ec2_instance.web[\"3\"]");
        let blocked = blocked.expect("the blocked row");
        let by = BlockReason::GroupMinimum { minimum: 1 };
        blocked.reason = Reason::Keep { because: KeepReason::Blocked { by } };
        blocked.pods = pods.iter().map(|(pod, n)| ((*pod).into(), *n)).collect();
        blocked.drift = drift;
        view(&plan, Verbosity::Concise).contains("! 1 blocked")
    };
    assert!(!row(&[("web/Deployment/api", 1)], None), "nothing is due");
    assert!(row(&[], None), "an empty node would go");
    assert!(row(&[("web/Deployment/api", 1)], Some(RetireReason::Requested)), "it differs");
}

#[test]
fn explanation_of_a_blocked_node_states_the_due_change() {
    use crate::plan::wire::{DriftedField, RetireReason};
    let address = "ec2_instance.web[\"3\"]";
    let mut plan = plan();
    let mut rows = plan.capacity.explain.iter_mut();
    let blocked = rows.find(|row| row.address.as_str() == address).expect("the blocked row");
    let drifted = DriftedField {
        field: "label node.kubernetes.io/instance-type".to_owned(),
        is: "m5.large".to_owned(),
        declared: "In m6a.large".to_owned(),
    };
    blocked.drift = Some(RetireReason::from(drifted.clone()));
    blocked.differences = vec![drifted];
    let found = explain(&plan, None, address).expect("a node");
    let text = found.text(&TextStyle::default());
    let change = "label node.kubernetes.io/instance-type: m5.large, declared: In m6a.large";
    for expected in [
        "# (annotated karpenter.sh/do-not-disrupt)",
        &format!("# (a change is due: drifted: {change})"),
        &format!("differs   {change}"),
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn drift_report_lists_every_field_and_other_differences() {
    use crate::plan::wire::DriftedField;
    let field = |field: &str, is: &str| DriftedField {
        field: field.to_owned(),
        is: is.to_owned(),
        declared: "none".to_owned(),
    };
    let mut plan = plan();
    plan.errored = true;
    plan.capacity.diagnostics.push(crate::plan::wire::Diagnostic::error("", "is not YAML"));
    let node = plan.resource_changes.iter().find(|row| row.change.before.is_some());
    let address = node.expect("a node exists").address.clone();
    let row = plan.capacity.explain.iter_mut().find(|row| row.address == address);
    let differences = vec![field("taint a", "a"), field("label b\n", "b")];
    row.expect("it is explained").differences = differences;
    let text = drift_text(&crate::plan::drift(&plan), &TextStyle::default());
    for expected in [
        "Incomplete: ",
        "error: is not YAML\n",
        "Note: Objects have changed outside of Git\n",
        &format!("  ~ {address}: taint a: a, declared: none\n"),
        &format!("  ~ {address}: label b"),
        "\nDifferent from the repository: ",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn pool_explanation_has_nodes_limits_and_refused_pods() {
    let plan = plan();
    let mut desired = crate::model::desired::Desired::default();
    let mut pool = crate::testing::pool();
    pool.name = "web".into();
    pool.limits.resources = [("cpu".into(), 64_000), ("memory".into(), 512 << 30)].into();
    desired.pools.insert(pool.name.clone(), pool);
    let shown = |desired| {
        let found = explain(&plan, desired, "nodepool/web").expect("a pool");
        found.text(&TextStyle::default())
    };
    insta::assert_snapshot!(shown(Some(&desired)));
    let unread = shown(None);
    assert!(unread.contains("limits: not known, because the planned files"), "{unread}");
    let similar = explain(&plan, Some(&desired), "nodepool/wep").expect_err("misspelled").hint();
    assert_eq!(similar, "did you mean nodepool/web?");
}
