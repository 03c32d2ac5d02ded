use jiff::SignedDuration;

use super::*;
use crate::model::desired::{
    Desired, Horizontal, JobStrategy, MetricSource, MetricTarget, PauseMode, ProportionalMode,
    Scale, ScalerRule, SelectPolicy,
};

fn hpa(version: &str, spec: &str) -> String {
    format!(
        "apiVersion: autoscaling/{version}\nkind: HorizontalPodAutoscaler\nmetadata: {{name: h}}\n\
         spec: {{scaleTargetRef: {{kind: Deployment, name: api}}, maxReplicas: 10, {spec}}}"
    )
}

fn horizontal(text: &str) -> Horizontal {
    let scaler = clean(text).scalers.remove(0);
    let ScalerRule::Horizontal(rule) = scaler.rule else { panic!("another rule") };
    rule
}

#[test]
fn every_hpa_version_reads_alike() {
    for (version, spec) in [
        ("v1", "targetCPUUtilizationPercentage: 50"),
        (
            "v2beta1",
            "metrics: [{type: Resource, resource: {name: cpu, targetAverageUtilization: 50}}]",
        ),
        (
            "v2",
            "metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, \
             averageUtilization: 50}}}]",
        ),
    ] {
        let rule = horizontal(&hpa(version, spec));
        assert_eq!((rule.min, rule.max), (1, 10), "{version}");
        assert_eq!(rule.metrics[0].target, MetricTarget::Utilization(50), "{version}");
    }
    assert_eq!(horizontal(&hpa("v2", "")).metrics[0].target, MetricTarget::Utilization(80));
}

#[test]
fn every_kind_of_metric_is_read() {
    let rule = horizontal(&hpa(
        "v2",
        "minReplicas: 0, metrics: [
        {type: ContainerResource, containerResource: {name: cpu, container: app, target: {type: \
         Utilization, averageUtilization: 60}}},
        {type: Pods, pods: {metric: {name: rps}, target: {type: AverageValue, averageValue: 1k}}},
        {type: Object, object: {metric: {name: hits}, describedObject: {kind: Ingress, name: i}, \
         target: {type: Value, value: 10k}}},
        {type: External, external: {metric: {name: queue, selector: {matchLabels: {a: b}}}, \
         target: {type: AverageValue, averageValue: '30'}}}]",
    ));
    let sources: Vec<&MetricSource> = rule.metrics.iter().map(|metric| &metric.source).collect();
    let container = MetricSource::ContainerResource("app".to_owned());
    assert_eq!(
        sources,
        [&container, &MetricSource::Pods, &MetricSource::Object, &MetricSource::External]
    );
}

#[test]
fn missing_behavior_has_the_hpa_defaults() {
    let rule = horizontal(&hpa(
        "v2",
        "behavior: {scaleUp: {policies: [{type: Pods, value: 2, periodSeconds: 60}]}, scaleDown: \
         {selectPolicy: Disabled}}",
    ));
    let behavior = rule.behavior.expect("stated");
    assert_eq!(behavior.up.window, Some(SignedDuration::ZERO));
    assert_eq!(behavior.up.policies.len(), 1);
    assert_eq!((behavior.down.select, behavior.down.window), (SelectPolicy::Disabled, None));
    assert!(behavior.down.policies[0].is_percent);
}

#[test]
fn invalid_autoscalers_are_errors_with_their_line() {
    let keda = |spec: &str| {
        format!(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {{name: s}}\n\
             spec: {{scaleTargetRef: {{name: api}}, {spec}}}"
        )
    };
    let cron = |metadata: &str| keda(&format!("triggers: [{{type: cron, metadata: {metadata}}}]"));
    for (text, expected) in [
        (hpa("v2", "minReplicas: 11"), "has `minReplicas` 11, above its `maxReplicas` 10"),
        (hpa("v2", "minReplicas: 0"), "needs a metric of type Object or External"),
        (hpa("v2", "minReplica: 2"), "did you mean `minReplicas`?"),
        (hpa("v2", "metrics: [{type: Resorce}]"), "write Resource"),
        (
            cron("{timezone: Asia/Seoul, start: 3 * * * *, end: 10 * * * *, desiredReplicas: '0'}"),
            "is `0`, which is not a positive number of pods",
        ),
        (
            cron("{timezone: Asia/Seoul, start: 3 * * * *, end: 3 * * * *, desiredReplicas: '5'}"),
            "begins and ends at the same time",
        ),
        (
            cron("{timezone: Asia/Soul, start: 3 * * * *, end: 9 * * * *, desiredReplicas: '5'}"),
            "is `Asia/Soul`, which is not a time zone",
        ),
        (
            cron("{timezone: UTC, start: '@daily', end: 9 * * * *, desiredReplicas: '5'}"),
            "is a macro, which KEDA does not support",
        ),
        (
            cron("{timezone: UTC, start: 3 * * * *, end: 9 * * * *, desiredReplicas: 5}"),
            "quote it: \"5\"",
        ),
        (keda("triggers: []"), "names no trigger"),
        (
            keda("minReplicaCount: 3, idleReplicaCount: 3, triggers: [{type: x, metadata: {}}]"),
            "must be less than `minReplicaCount` 3",
        ),
    ] {
        let problems = lines(&read_text(&text));
        assert!(problems.iter().any(|p| p.contains(expected)), "{expected}\n{problems:#?}");
    }
}

#[test]
fn resource_triggers_never_scale_to_zero() {
    let read = |spec: &str| {
        let text = format!(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {{name: s}}\n\
             spec: {{scaleTargetRef: {{name: api}}, {spec}}}"
        );
        let desired = read_text(&text);
        let problems = lines(&desired);
        let Some(ScalerRule::EventDriven(rule)) =
            desired.scalers.into_iter().next().map(|scaler| scaler.rule)
        else {
            panic!("{problems:?}")
        };
        (rule.min, problems.len())
    };
    let cpu = "{type: cpu, metadata: {value: '60'}}";
    let memory = "{type: memory, metadata: {value: '60'}}";
    let queue = "{type: aws-sqs-queue, metadata: {queueURL: q}}";
    assert_eq!(read(&format!("minReplicaCount: 0, triggers: [{cpu}, {memory}]")), (1, 1));
    assert_eq!(read(&format!("triggers: [{memory}]")), (1, 1));
    assert_eq!(read(&format!("minReplicaCount: 2, triggers: [{cpu}]")), (2, 0));
    assert_eq!(read(&format!("minReplicaCount: 0, triggers: [{cpu}, {queue}]")), (0, 0));
}

#[test]
fn trigger_metadata_that_sets_no_bound_may_be_open() {
    let keda = |kind: &str| {
        format!(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {{name: s}}\nspec:\n  \
             scaleTargetRef: {{name: api}}\n  triggers:\n  - type: {kind}\n    metadata: \
             {{queueURL: \"${{QUEUE}}\", timezone: UTC, start: 3 * * * *, end: 9 * * * *, \
             desiredReplicas: '${{SIZE}}'}}\n"
        )
    };
    let problems = |kind: &str| lines(&read_text(&keda(kind)));
    let needed = |problems: &[String]| problems.iter().any(|line| line.contains("SIZE"));
    assert!(!needed(&problems("aws-sqs-queue")), "{:#?}", problems("aws-sqs-queue"));
    assert!(needed(&problems("cron")), "{:#?}", problems("cron"));
}

#[test]
fn pauses_of_keda_are_read_from_annotations() {
    let paused = |annotation: &str| {
        let text = format!(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {{name: s, annotations: \
             {{{annotation}}}}}\nspec: {{scaleTargetRef: {{name: api}}, minReplicaCount: 1, triggers: \
             [{{type: cpu, metadata: {{value: '60'}}}}]}}"
        );
        let scaler = clean(&text).scalers.remove(0);
        let ScalerRule::EventDriven(rule) = scaler.rule else { panic!("another rule") };
        rule.paused
    };
    for (annotation, expected) in [
        ("", PauseMode::No),
        ("autoscaling.keda.sh/paused: 'false'", PauseMode::No),
        ("autoscaling.keda.sh/paused: 'yes'", PauseMode::AsIs),
        ("autoscaling.keda.sh/paused-replicas: '7'", PauseMode::At(7)),
        ("autoscaling.keda.sh/paused-scale-in: 'true'", PauseMode::ScaleIn),
    ] {
        assert_eq!(paused(annotation), expected, "{annotation}");
    }
}

const PROPORTIONAL: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: dns-autoscaler, namespace: kube-system}
spec:
  selector: {matchLabels: {app: dns-autoscaler}}
  template:
    metadata: {labels: {app: dns-autoscaler}}
    spec:
      containers:
      - name: autoscaler
        image: registry.k8s.io/cpa/cluster-proportional-autoscaler:v1.9.0
        command: [/cluster-proportional-autoscaler]
        args:
        - --namespace=kube-system
        - --configmap=dns-autoscaler
        - --target=deployment/coredns
        - --nodelabels=pool=a
";

#[test]
fn a_proportional_autoscaler_reads_its_config_map() {
    let map = |data: &str| {
        format!(
            "{PROPORTIONAL}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: dns-autoscaler, \
             namespace: kube-system}}\ndata:\n  linear: '{data}'\n"
        )
    };
    let desired = clean(&map(r#"{"coresPerReplica": 2.5, "nodesPerReplica": 1, "max": 9}"#));
    let scaler = &desired.scalers[0];
    assert_eq!(scaler.targets[0].to_string(), "Deployment coredns");
    let ScalerRule::Proportional(rule) = &scaler.rule else { panic!("{scaler:?}") };
    let ProportionalMode::Linear(linear) = &rule.mode else { panic!("{rule:?}") };
    assert_eq!(linear.cores_per_replica_milli, Some(2_500));
    assert_eq!((linear.min, linear.max, rule.nodes.iter().count()), (1, 9, 1));
    let broken = lines(&read_text(&map(r#"{"coresPerReplica": 0}"#)));
    assert!(broken[0].contains("neither `coresPerReplica` nor"), "0 is absent: {broken:?}");
    let broken = lines(&read_text(&map(r#"{"coresPerReplica": -1}"#)));
    assert!(broken[0].contains("`coresPerReplica` is -1, not a number from 0"), "{broken:?}");
    let refused = read_text(&map(r#"{"nodesPerReplica": 1, "preventSinglePointFailure": "true"}"#));
    assert!(refused.scalers.is_empty(), "it scales nothing: {refused:?}");
    let warning = &lines(&refused)[0];
    assert!(warning.contains("is \"true\", not true or false"), "{warning}");
    let lone = clean(PROPORTIONAL);
    let ScalerRule::Unknown(why) = &lone.scalers[0].rule else { panic!("{lone:?}") };
    assert!(why.contains("kube-system/dns-autoscaler"), "{why}");
}

#[test]
fn node_labels_of_a_proportional_autoscaler_are_any_selector() {
    let labels = |text: &str| {
        let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| crate::model::requirement::label(key, value)).collect()
    };
    let map = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: dns-autoscaler, namespace: \
               kube-system}\ndata:\n  linear: '{\"nodesPerReplica\": 1}'\n";
    let reads = |selector: &str| {
        let flag = format!("\"--nodelabels={selector}\"");
        read_text(&format!("{}{map}", PROPORTIONAL.replace("--nodelabels=pool=a", &flag)))
    };
    for (selector, yes, no) in [
        ("pool=a", "pool=a x=y", "pool=b"),
        ("pool==a,x!=y", "pool=a", "pool=a x=y"),
        ("pool!=a", "x=y", "pool=a"),
        ("pool in (a, b),x", "pool=b x=y", "pool=b"),
        ("pool notin (a,b)", "x=y", "pool=b"),
        ("!pool", "x=y", "pool=b"),
        ("size > 4", "size=5", "size=4"),
        ("size<4", "size=3", "x=y"),
    ] {
        let desired = reads(selector);
        let ScalerRule::Proportional(rule) = &desired.scalers[0].rule else {
            panic!("{desired:?}")
        };
        let matches = |text: &str| rule.nodes.matches_labels(&labels(text));
        assert_eq!((matches(yes), matches(no)), (true, false), "{selector}");
    }
    for broken in ["a b", "pool in a", "pool in (a", "=a"] {
        let desired = reads(broken);
        assert!(matches!(desired.scalers[0].rule, ScalerRule::Unknown(_)), "{broken}");
        assert!(lines(&desired)[0].contains("is no label requirement"), "{broken}");
    }
}

#[test]
fn bounds_and_idle_counts_follow_keda() {
    let object = |kind: &str, spec: &str| {
        read_text(&format!(
            "apiVersion: keda.sh/v1alpha1\nkind: {kind}\nmetadata: {{name: s, namespace: \
             web}}\nspec:\n  triggers: [{{type: rabbitmq, metadata: {{queueName: q}}}}]\n{spec}"
        ))
    };
    let job = "  minReplicaCount: 5\n  maxReplicaCount: 3\n  jobTargetRef:\n    template:\n      \
               spec:\n        restartPolicy: Never\n        containers: [{name: a, image: b}]\n";
    let desired = object("ScaledJob", job);
    let workload = desired.workloads.values().next().expect("one");
    let Scale::ScaledJob(scaling) = &workload.scale else { panic!("{workload:?}") };
    assert_eq!((scaling.min, scaling.max), (3, 3));
    assert!(lines(&desired)[0].contains("KEDA uses 3"), "{desired:?}");
    let idle = "  scaleTargetRef: {name: api}\n  minReplicaCount: 3\n  idleReplicaCount: ";
    for (count, expected) in [(0, Some(0)), (1, None)] {
        let desired = object("ScaledObject", &format!("{idle}{count}\n"));
        let ScalerRule::EventDriven(rule) = &desired.scalers[0].rule else { panic!("{desired:?}") };
        assert_eq!(rule.idle, expected);
        let warns = lines(&desired).iter().any(|line| line.contains("supports only 0"));
        assert_eq!(warns, count == 1);
    }
    // KEDA takes a stated minimum of 0 for 1 in this comparison.
    let stated = "  scaleTargetRef: {name: api}\n  minReplicaCount: 0\n  idleReplicaCount: 0\n";
    let desired = object("ScaledObject", stated);
    let ScalerRule::EventDriven(rule) = &desired.scalers[0].rule else { panic!("{desired:?}") };
    assert_eq!((rule.min, rule.idle, lines(&desired)), (0, None, Vec::new()));
    let unstated = "  scaleTargetRef: {name: api}\n  idleReplicaCount: 0\n";
    let problems = lines(&object("ScaledObject", unstated));
    assert!(problems[0].contains("must be less than `minReplicaCount` 0"), "{problems:?}");
}

#[test]
fn autoscalers_of_add_ons_have_their_bounds() {
    let http = |target: &str, replicas: &str| {
        let desired = clean(&format!(
            "apiVersion: http.keda.sh/v1alpha1\nkind: HTTPScaledObject\nmetadata: {{name: s}}\n\
             spec: {{hosts: [a.com], scaleTargetRef: {{{target}}}, {replicas}}}"
        ));
        let scaler = &desired.scalers[0];
        let ScalerRule::EventDriven(rule) = &scaler.rule else { panic!("{scaler:?}") };
        assert_eq!(scaler.targets[0].to_string(), "Deployment api");
        (rule.min, rule.max)
    };
    assert_eq!(http("name: api, kind: Deployment", "replicas: {min: 5, max: 10}"), (5, 10));
    assert_eq!(http("deployment: api, service: api", "scaledownPeriod: 60"), (0, 100));
    let watermark = |spec: &str| {
        clean(&format!(
            "apiVersion: datadoghq.com/v1alpha1\nkind: WatermarkPodAutoscaler\nmetadata: {{name: \
             w}}\nspec: {{scaleTargetRef: {{kind: Deployment, name: api}}, maxReplicas: 15{spec}}}"
        ))
    };
    let desired = watermark(", minReplicas: 4");
    let ScalerRule::Horizontal(rule) = &desired.scalers[0].rule else { panic!("{desired:?}") };
    assert_eq!((rule.min, rule.max), (4, 15));
    assert!(watermark(", dryRun: true").scalers.is_empty());
}

#[test]
fn buffers_use_a_pod_template_or_a_workload() {
    let buffer = |of: &str| {
        format!(
            "apiVersion: autoscaling.x-k8s.io/v1beta1\nkind: CapacityBuffer\nmetadata: {{name: b}}\n\
             spec: {{{of}, replicas: 3}}\n---\napiVersion: v1\nkind: PodTemplate\nmetadata: {{name: \
             t}}\ntemplate: {{spec: {{containers: [{{name: a}}]}}}}\n---\napiVersion: apps/v1\nkind: \
             Deployment\nmetadata: {{name: api}}\nspec: {{selector: {{matchLabels: {{app: a}}}}, \
             template: {{metadata: {{labels: {{app: a}}}}, spec: {{containers: [{{name: a}}]}}}}}}\n"
        )
    };
    for of in
        ["podTemplateRef: {name: t}", "scalableRef: {apiGroup: apps, kind: Deployment, name: api}"]
    {
        let desired = clean(&buffer(of));
        let buffers = desired.workloads.values().filter(|w| matches!(w.scale, Scale::Buffer(_)));
        assert_eq!(buffers.count(), 1, "{of}");
    }
    assert_eq!(clean(&buffer("podTemplateRef: {name: x}")).unresolved.len(), 1);
    let both = buffer("podTemplateRef: {name: t}, scalableRef: {kind: a, name: b}");
    let both = lines(&read_text(&both));
    assert!(both[0].contains("needs one of"), "{both:?}");
}

#[test]
fn scaler_references_need_one_definition() {
    let map = |data: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m, namespace: web}}\ndata:\n  \
             linear: '{{\"coresPerReplica\": {data}}}'\n"
        )
    };
    let template = |name: &str| {
        format!(
            "apiVersion: v1\nkind: PodTemplate\nmetadata: {{name: t}}\ntemplate: {{spec: \
             {{containers: [{{name: {name}}}]}}}}\n"
        )
    };
    let buffer = |replicas: &str| {
        let template = template("a");
        format!(
            "apiVersion: autoscaling.x-k8s.io/v1beta1\nkind: CapacityBuffer\nmetadata: {{name: \
             b}}\nspec: {{podTemplateRef: {{name: t}}, replicas: {replicas}}}\n---\n{template}"
        )
    };
    for (one, other) in
        [(map("1"), map("2")), (template("a"), template("b")), (buffer("1"), buffer("2"))]
    {
        assert_eq!(lines(&read_text(&format!("{one}---\n{one}"))), [""; 0], "{one}");
        let found = lines(&read_text(&format!("{one}---\n{other}")));
        assert!(found.len() == 1 && found[0].contains("is defined differently at"), "{found:?}");
    }
}

#[test]
fn a_custom_strategy_is_read_and_periods_are_validated() {
    let job = |rest: &str| {
        format!(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledJob\nmetadata: {{name: j}}\nspec:\n  \
             jobTargetRef: {{template: {{spec: {{containers: [{{name: c}}]}}}}}}\n  triggers: \
             [{{type: kafka, metadata: {{}}}}]\n  scalingStrategy: {{{rest}}}\n"
        )
    };
    let read = |rest: &str| {
        let desired = clean(&job(rest));
        let Some(Scale::ScaledJob(scaling)) = desired.workloads.values().next().map(|w| &w.scale)
        else {
            panic!("{rest}")
        };
        scaling.strategy
    };
    let share = "customScalingRunningJobPercentage: '0.5'";
    for (rest, expected) in [
        (String::new(), JobStrategy::Default),
        ("strategy: custom".to_owned(), JobStrategy::Default),
        (
            format!("strategy: custom, {share}, customScalingQueueLengthDeduction: 3"),
            JobStrategy::Custom { deduction: 3, running_milli: 500 },
        ),
        (format!("strategy: accurate, {share}"), JobStrategy::Accurate),
    ] {
        assert_eq!(read(&rest), expected, "{rest}");
    }
    let wrong = job("strategy: custom, customScalingRunningJobPercentage: half");
    assert!(lines(&read_text(&wrong))[0].contains("is `half`, which is not a share"));
    let object = "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: s}\nspec:\n  \
                  scaleTargetRef: {name: api}\n  triggers: [{type: kafka, metadata: {}}]\n  \
                  cooldownPeriod: 9223372036854775807\n";
    assert!(lines(&read_text(object))[0].contains("cooldownPeriod"));
}

#[test]
fn triggers_beyond_the_maximum_are_an_error() {
    let of = |count: usize| {
        let trigger = "{type: cron, metadata: {timezone: UTC, start: 3 * * * *, end: 9 * * * *, \
                       desiredReplicas: '2'}}";
        let triggers = vec![trigger; count].join(", ");
        read_text(&format!(
            "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {{name: s}}\n\
             spec: {{scaleTargetRef: {{name: api}}, triggers: [{triggers}]}}"
        ))
    };
    let says = |desired: &Desired| lines(desired).iter().any(|line| line.contains("above 1000"));
    assert!(!says(&of(1_000)));
    let many = of(1_001);
    assert!(says(&many), "{:#?}", lines(&many));
}
