//! Suggested changes: every obstacle is named, with the place, the amount and the price.

use crate::model::pod::{Taint, TaintEffect};
use crate::model::requirement::label;
use crate::testing::{Scenario, requirement};

/// Returns the detail of the first reason, and the suggested change.
fn advice(scenario: &Scenario) -> (String, String) {
    let target = scenario.solve().target;
    let [unplaced] = target.unschedulable.as_slice() else { panic!("one unschedulable group") };
    let detail = unplaced.rejections[0].detail.clone();
    (detail, unplaced.suggested_change.clone().unwrap_or_default())
}

fn taint(key: &str) -> Taint {
    Taint { key: key.into(), value: "x".into(), effect: TaintEffect::NoSchedule }
}

#[test]
fn larger_type_names_requirement_file_and_price() {
    let mut scenario = Scenario::new(&["m5.large"], 100, 700 * 1024);
    let family = requirement("karpenter.k8s.aws/instance-family", &["m5"]);
    scenario.pool().requirements = vec![family];
    scenario.pool().limits.resources = [("cpu".into(), 8_000)].into();
    scenario.scale(1);
    let (detail, fix) = advice(&scenario);
    assert!(detail.contains("needs 700Gi, the largest of pool default leaves 3"), "{detail}");
    assert!(!detail.contains("Mi"), "one unit: {detail}");
    let (change, price) = fix.split_once(": 1 ").expect("a change and a price");
    assert!(change.starts_with("add "), "{fix}");
    assert!(
        change.contains(" to karpenter.k8s.aws/instance-family in NodePool default (pool.yaml:1)"),
        "{fix}"
    );
    assert!(change.contains(", and raise the limits of NodePool default"), "{fix}");
    assert!(price.contains(", $") && price.ends_with("/h more on demand"), "{fix}");
}

#[test]
fn raised_limit_has_amount_and_price() {
    let mut scenario = Scenario::new(&["m5.xlarge"], 1000, 0);
    scenario.scale(13);
    scenario.pool().limits.resources = [("cpu".into(), 8_000)].into();
    let (_, fix) = advice(&scenario);
    assert_eq!(
        fix,
        "raise the limits of NodePool default (pool.yaml:1) by cpu 12: at least 3 m5.xlarge, \
         $0.5760/h more"
    );
}

#[test]
fn every_obstacle_is_in_the_suggested_change() {
    let mut scenario = Scenario::new(&["m5.xlarge"], 1000, 0);
    scenario.scale(1);
    scenario.pool().taints = vec![taint("a"), taint("b")];
    scenario.pool().limits.resources = [("cpu".into(), 2_000)].into();
    let (_, fix) = advice(&scenario);
    assert_eq!(
        fix,
        "tolerate taint a=x:NoSchedule, and tolerate taint b=x:NoSchedule, and raise the limits \
         of NodePool default (pool.yaml:1) by cpu 2: 1 m5.xlarge, $0.1920/h more"
    );
}

#[test]
fn label_that_no_node_gets_is_in_the_suggested_change() {
    let mut scenario = Scenario::new(&["m5.large"], 100, 700 * 1024);
    scenario.pool().requirements = vec![requirement("karpenter.k8s.aws/instance-family", &["m5"])];
    scenario.template().spec.node_selector.extend([label("cache", "true")]);
    scenario.scale(1);
    let (_, fix) = advice(&scenario);
    assert!(fix.contains("remove the pod's requirement cache"), "{fix}");
}

#[test]
fn pool_that_could_not_be_read_is_to_be_corrected_first() {
    let mut scenario = Scenario::new(&["m5.large"], 100, 64);
    scenario.scale(1);
    scenario.node_class().unreadable = Some("spec.role".to_owned());
    let (detail, fix) = advice(&scenario);
    assert!(detail.contains("`spec.role` of node class"), "{detail}");
    assert_eq!(fix, "correct `spec.role` of node class default");
}

#[test]
fn lower_requests_names_the_taint_too() {
    let mut scenario = Scenario::new(&["m5.xlarge"], 1_000_000, 0);
    scenario.scale(1);
    scenario.pool().taints = vec![taint("a")];
    let (_, fix) = advice(&scenario);
    assert_eq!(
        fix,
        "lower the requests: no instance type of the region is large enough; then also tolerate \
         taint a=x:NoSchedule"
    );
}
