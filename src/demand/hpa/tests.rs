use super::*;
use crate::model::units::Quantity;

fn cpu(percent: u32) -> Metric {
    let target = MetricTarget::Utilization(percent);
    Metric { source: MetricSource::Resource, name: "cpu".to_owned(), target }
}

fn rule(min: u32, max: u32, metrics: Vec<Metric>) -> Horizontal {
    Horizontal { min, max, metrics, behavior: None }
}

fn at(current: u32, utilization: Option<u32>) -> LiveHorizontal {
    let metric = |now| LiveMetric {
        name: "cpu".to_owned(),
        utilization: Some(now),
        ..LiveMetric::default()
    };
    LiveHorizontal {
        namespace: "web".into(),
        name: "api".to_owned(),
        current_replicas: current,
        desired_replicas: current,
        ready_replicas: None,
        highest_recent: Some(0),
        metrics: utilization.map(metric).into_iter().collect(),
    }
}

fn step(rule: &Horizontal, live: &LiveHorizontal) -> Option<(u32, u32)> {
    next_step(rule, live).map(|step| (step.wanted, step.count))
}

#[test]
fn scale_up_steps_from_one_to_seven() {
    let rule = rule(1, 10, vec![cpu(50)]);
    assert_eq!(step(&rule, &at(1, Some(242))), Some((5, 4)));
    assert_eq!(step(&rule, &at(3, Some(242))), Some((15, 6)));
    assert_eq!(step(&rule, &at(7, Some(46))), Some((7, 7)));
}

#[test]
fn deviation_within_the_tolerance_changes_nothing() {
    let rule = rule(1, 20, vec![cpu(100)]);
    assert_eq!(step(&rule, &at(10, Some(110))), Some((10, 10)));
    assert_eq!(step(&rule, &at(10, Some(111))), Some((12, 12)));
    assert_eq!(step(&rule, &at(10, Some(90))), Some((10, 10)));
    assert_eq!(step(&rule, &at(10, Some(89))), Some((9, 9)));
}

#[test]
fn unreadable_metric_blocks_scale_down_only() {
    let other = MetricTarget::AverageValue(Quantity::from_units(1));
    let unreadable =
        Metric { source: MetricSource::Pods, name: "requests".to_owned(), target: other };
    let rule = rule(1, 20, vec![cpu(100), unreadable]);
    assert_eq!(step(&rule, &at(10, Some(20))).map(|(_, count)| count), Some(10));
    assert_eq!(step(&rule, &at(5, Some(160))).map(|(_, count)| count), Some(8));
    assert_eq!(step(&rule, &at(5, None)), None);
}

#[test]
fn bounds_apply_at_once_and_zero_replicas_disable_scaling() {
    let rule = rule(2, 6, vec![cpu(50)]);
    assert_eq!(step(&rule, &at(9, None)), Some((6, 6)));
    assert_eq!(step(&rule, &at(1, None)), Some((2, 2)));
    assert_eq!(step(&rule, &at(0, Some(100))), None);
}

#[test]
fn scale_down_uses_the_highest_count_of_the_window() {
    let rule = rule(1, 10, vec![cpu(50)]);
    let live = LiveHorizontal { highest_recent: Some(6), ..at(8, Some(10)) };
    assert_eq!(step(&rule, &live), Some((2, 6)));
    let live = LiveHorizontal { highest_recent: None, ..at(8, Some(10)) };
    assert_eq!(step(&rule, &live), Some((2, 8)), "the last decision is a lower bound");
}

#[test]
fn scale_up_uses_the_lowest_proposal_of_a_stated_window() {
    let rule_with_window = |seconds| {
        let rules = |window| ScalingRules {
            window: Some(jiff::SignedDuration::from_secs(window)),
            select: SelectPolicy::Max,
            policies: Vec::new(),
            tolerance_milli: None,
        };
        let behavior = Behavior { up: rules(seconds), down: rules(0) };
        Horizontal { behavior: Some(behavior), ..rule(1, 100, vec![cpu(50)]) }
    };
    let wanting = |desired| LiveHorizontal { desired_replicas: desired, ..at(4, Some(200)) };
    assert_eq!(step(&rule_with_window(0), &wanting(4)), Some((16, 16)), "at once");
    assert_eq!(
        step(&rule_with_window(60), &wanting(4)),
        Some((16, 4)),
        "the last decision is the lowest known"
    );
    assert_eq!(step(&rule_with_window(60), &wanting(7)), Some((16, 7)));
}

#[test]
fn policies_limit_each_direction() {
    let pods = |amount| ScalingPolicy { is_percent: false, amount };
    let percent = |amount| ScalingPolicy { is_percent: true, amount };
    let rules = |select, policies| ScalingRules {
        window: Some(jiff::SignedDuration::ZERO),
        select,
        policies,
        tolerance_milli: None,
    };
    let both = |select| Behavior {
        up: rules(select, vec![pods(2), percent(50)]),
        down: rules(select, vec![pods(1), percent(30)]),
    };
    let rule_with_policies =
        |select| Horizontal { behavior: Some(both(select)), ..rule(1, 100, vec![cpu(50)]) };
    for (select, up, down) in
        [(SelectPolicy::Max, 15, 7), (SelectPolicy::Min, 12, 9), (SelectPolicy::Disabled, 10, 10)]
    {
        let count = |live| step(&rule_with_policies(select), &live).map(|(_, count)| count);
        assert_eq!(count(at(10, Some(500))), Some(up), "{select:?}");
        assert_eq!(count(at(10, Some(1))), Some(down), "{select:?}");
    }
}

#[test]
fn external_values_count_in_total_or_per_pod() {
    let metric = |source, target| Metric { source, name: "queue".to_owned(), target };
    let live = |value| LiveHorizontal {
        metrics: vec![LiveMetric {
            name: "queue".to_owned(),
            value_milli: Some(value),
            ..LiveMetric::default()
        }],
        ..at(4, None)
    };
    let ten = Quantity::from_units(10);
    let by_pod = rule(1, 50, vec![metric(MetricSource::External, MetricTarget::AverageValue(ten))]);
    assert_eq!(step(&by_pod, &live(75_000)), Some((8, 8)));
    let whole = rule(1, 50, vec![metric(MetricSource::Object, MetricTarget::Value(ten))]);
    assert_eq!(step(&whole, &live(15_000)), Some((6, 6)));
}
