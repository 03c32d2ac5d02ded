use jiff::tz::TimeZone;

use super::*;
use crate::model::desired::{Concurrency, CronSchedule, RolloutShare, Scale, Schedule};
use crate::model::pod::VolumeSource;

const TEMPLATE: &str = "template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c}]}}";

/// The selector of that template.
const SELECTOR: &str = "selector: {matchLabels: {app: x}}";

fn scale(kind: &str, api_version: &str, spec: &str) -> Scale {
    let selector = if api_version == "apps/v1" { format!("{SELECTOR}, ") } else { String::new() };
    let text = format!(
        "apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{{selector}{spec}}}"
    );
    let desired = clean(&text);
    assert_eq!(desired.workloads.len(), 1, "{text}");
    desired.workloads.into_values().next().expect("one").scale
}

#[test]
fn pod_counts_of_every_kind_match_the_api_server() {
    for (kind, version, spec, expected) in [
        ("Deployment", "apps/v1", "", Scale::Replicas(1)),
        ("Deployment", "apps/v1", "replicas: 0, ", Scale::Replicas(0)),
        ("Deployment", "apps/v1", "replicas: 3.0, ", Scale::Replicas(3)),
        ("Deployment", "apps/v1beta1", "replicas: 5, ", Scale::Replicas(5)),
        ("Deployment", "extensions/v1beta1", "replicas: 5, ", Scale::Replicas(5)),
        ("StatefulSet", "apps/v1beta2", "replicas: 2, serviceName: s, ", Scale::Replicas(2)),
        ("ReplicaSet", "apps/v1", "replicas: 2, ", Scale::Replicas(2)),
        ("ReplicationController", "v1", "replicas: 2, ", Scale::Replicas(2)),
        ("DaemonSet", "extensions/v1beta1", "", Scale::PerNode),
        ("Job", "batch/v1", "", Scale::Job { pods: 1, completions: None, suspended: false }),
        (
            "Job",
            "batch/v1",
            "parallelism: 4, ",
            Scale::Job { pods: 4, completions: None, suspended: false },
        ),
        (
            "Job",
            "batch/v1",
            "parallelism: 4, completions: 3, suspend: true, ",
            Scale::Job { pods: 4, completions: Some(3), suspended: true },
        ),
        (
            "Job",
            "batch/v1",
            "parallelism: 0, ",
            Scale::Job { pods: 0, completions: None, suspended: false },
        ),
    ] {
        let spec = format!("{spec}{TEMPLATE}");
        assert_eq!(scale(kind, version, &spec), expected, "{kind} {version} {spec}");
    }
}

#[test]
fn a_cron_job_keeps_its_schedule() {
    let schedule = |spec: &str| {
        let spec = format!("schedule: \"0 3 * * *\", {spec}jobTemplate: {{spec: {{{TEMPLATE}}}}}");
        scale("CronJob", "batch/v1beta1", &spec)
    };
    let of = |time_zone: &str, concurrency, suspended| {
        let zone = TimeZone::get(time_zone).expect("a zone");
        let due = Schedule::parse("0 3 * * *").expect("cron").in_time_zone(zone);
        let schedule = CronSchedule { schedule: due, concurrency, deadline: None };
        Scale::CronJob { pods: 1, suspended, schedule }
    };
    assert_eq!(schedule(""), of("UTC", Concurrency::Allow, false));
    assert_eq!(
        schedule("timeZone: Europe/Berlin, concurrencyPolicy: Forbid, suspend: true, "),
        of("Europe/Berlin", Concurrency::Forbid, true)
    );
}

#[test]
fn api_server_rejections_are_errors() {
    for (spec, expected) in [
        ("replicas: -1", "`spec.replicas` is -1, below 0"),
        ("replicas: two", "`spec.replicas` is `two` (a string), not a whole number"),
        (
            "replicas: \"2\"",
            "`spec.replicas` is the string `2`, not a whole number; write 2 without quotes",
        ),
        ("replicas: 1.5", "`spec.replicas` is `1.5` (a number), not a whole number"),
        ("replicas: 99999999999", "`spec.replicas` is 99999999999, which is too large"),
        ("replicas: [1]", "`spec.replicas` is a list, not a whole number"),
        (
            "replicas: !Ref Count",
            "`spec.replicas` is tagged `!Ref`, not a whole number; write the value itself: tags are \
             not followed",
        ),
    ] {
        let text = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: x}}\nspec:\n  {TEMPLATE}\n  \
             {SELECTOR}\n  {spec}\n"
        );
        let expected = format!("error a.yaml:7: Deployment default/x: {expected}");
        assert_eq!(problem(&text), expected);
    }
    let bare = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec: {}\n";
    assert_eq!(problem(bare), "error a.yaml:4: Job default/x: `spec` has no `template`");
    let cron = format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: x}}\nspec:\n  schedule: daily\n  \
         jobTemplate: {{spec: {{{TEMPLATE}}}}}"
    );
    assert!(problem(&cron).contains("`spec.schedule` is `daily`, not a cron expression; write"));
}

#[test]
fn unreadable_limit_of_failed_pods_is_a_warning() {
    for (value, found) in [("lots", "`lots`"), ("-1", "`-1`"), ("[6]", "a list")] {
        let job = format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: x}}\nspec:\n  \
             backoffLimit: {value}\n  {TEMPLATE}\n"
        );
        let expected = format!(
            "warning a.yaml:5: Job default/x: `spec.backoffLimit` is {found}, not a whole number \
             from 0, and counts as 0; write a whole number, such as 6"
        );
        assert_eq!(problem(&job), expected);
    }
    let cron = format!(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: x}}\nspec:\n  \
         schedule: \"0 0 * * *\"\n  \
         jobTemplate: {{spec: {{backoffLimitPerIndex: some, {TEMPLATE}}}}}\n"
    );
    let expected = "`spec.jobTemplate.spec.backoffLimitPerIndex` is `some`, not a whole number";
    assert!(problem(&cron).contains(expected), "{}", problem(&cron));
}

#[test]
fn a_misspelled_field_is_an_error_and_an_unknown_one_a_warning() {
    for (spec, template, expected) in [
        (
            "replcas: 3",
            "",
            "error a.yaml:5: {}: unknown field `replcas` in `spec`; did you mean `replicas`?",
        ),
        (
            "replicas: 3",
            "nodeSelectr: {a: b}",
            "error a.yaml:6: {}: unknown field `nodeSelectr` in `spec.template.spec`; did you mean \
             `nodeSelector`?",
        ),
        (
            "flavour: 3",
            "",
            "warning a.yaml:5: {}: unknown field `flavour` in `spec`; remove it, or see which fields \
             this version of the API has",
        ),
    ] {
        let text = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: x}}\nspec:\n  {spec}\n  \
             template: {{metadata: {{labels: {{app: x}}}}, spec: {{containers: [{{name: c}}], \
             {template}}}}}\n  {SELECTOR}\n"
        );
        assert_eq!(problem(&text), expected.replace("{}", "Deployment default/x"));
        let desired = read_text(&text);
        let known = expected.starts_with("warning");
        assert_eq!(desired.workloads.len(), usize::from(known), "what is not known is not planned");
        assert_eq!(desired.unresolved.len(), usize::from(!known), "and not forgotten");
    }
    let slip = pod("").replace("{name: c}", "{name: c, resource: {requests: {cpu: 1}}}");
    assert!(problem(&slip).contains("unknown field `resource` in `spec.containers[0]`"));
}

#[test]
fn selector_selects_the_pods_of_its_template() {
    let deployment = |selector: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: x}}\nspec:\n  selector: \
             {selector}\n  template: {{metadata: {{labels: {{app: x, tier: web}}}}, spec: \
             {{containers: [{{name: c}}]}}}}\n"
        )
    };
    for selector in [
        "{matchLabels: {app: x}}",
        "{matchExpressions: [{key: tier, operator: In, values: [web, api]}]}",
    ] {
        clean(&deployment(selector));
    }
    for selector in [
        "{matchLabels: {app: other}}",
        "{matchLabels: {app: x, team: a}}",
        "{matchExpressions: [{key: tier, operator: DoesNotExist}]}",
    ] {
        assert_eq!(
            problem(&deployment(selector)),
            "error a.yaml:5: Deployment default/x: `spec.selector` does not select the pods of \
             `spec.template`; write the labels of the template under `matchLabels`"
        );
    }
}

#[test]
fn workload_without_a_selector_is_refused() {
    let of = |kind: &str, version: &str, selector: &str| {
        read_text(&format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nspec:\n  {TEMPLATE}\n  \
             {selector}\n"
        ))
    };
    let hint = "write the labels of the template under `spec.selector.matchLabels`";
    for kind in ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"] {
        let none = of(kind, "apps/v1", "");
        let expected = format!(
            "error a.yaml:5: {kind} default/x: `spec` has no `selector`, so that the API server \
             refuses it; {hint}"
        );
        assert_eq!(lines(&none), [expected]);
        assert!(none.workloads.is_empty() && none.unresolved.len() == 1, "its pods never come");
        let empty = lines(&of(kind, "apps/v1", "selector: {}"));
        assert!(empty[0].contains("`spec.selector` selects nothing"), "{empty:?}");
    }
    // They have a default.
    clean(&format!(
        "apiVersion: v1\nkind: ReplicationController\nmetadata: {{name: x}}\nspec: {{{TEMPLATE}}}\n"
    ));
    let old = of("Deployment", "extensions/v1beta1", "");
    assert_eq!(old.workloads.len(), 1);
    assert_eq!(
        lines(&old),
        ["warning a.yaml:1: Deployment default/x: `apiVersion` is `extensions/v1beta1`, which \
          Kubernetes 1.16 and later do not serve; write apiVersion: apps/v1"]
    );
}

/// Begins the name of a Job whose selector is written by hand.
const MANUAL: &str = "manual";

#[test]
fn names_that_the_api_server_refuses_are_errors() {
    let of = |kind: &str, version: &str, metadata: &str| {
        let spec = match kind {
            "CronJob" => {
                format!("spec: {{schedule: '0 3 * * *', jobTemplate: {{spec: {{{TEMPLATE}}}}}}}")
            }
            "Namespace" => String::new(),
            "StatefulSet" => format!("spec: {{{SELECTOR}, {TEMPLATE}}}"),
            "PodDisruptionBudget" => "spec: {minAvailable: 1, selector: {}}".to_owned(),
            _ if metadata.contains(MANUAL) => format!("spec: {{manualSelector: true, {TEMPLATE}}}"),
            _ => format!("spec: {{{TEMPLATE}}}"),
        };
        let text =
            format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{{metadata}}}\n{spec}\n");
        lines(&read_text(&text))
    };
    let (short, long) = ("a".repeat(63), "a".repeat(64));
    let manual = format!("name: {MANUAL}-{long}");
    for (kind, version, metadata, is_accepted) in [
        ("Job", "batch/v1", "name: a.b-1", true),
        ("Job", "batch/v1", "name: Web", false),
        ("Job", "batch/v1", "name: my_job", false),
        ("Job", "batch/v1", "name: -a", false),
        ("Job", "batch/v1", "name: a..b", false),
        ("Job", "batch/v1", &*format!("name: {short}"), true),
        ("Job", "batch/v1", &*format!("name: {long}"), false),
        ("Job", "batch/v1", "generateName: run-", true),
        ("Job", "batch/v1", "generateName: run_", false),
        ("Job", "batch/v1", "generateName: run--", true),
        ("Job", "batch/v1", "generateName: run.", false),
        ("Job", "batch/v1", "generateName: run.-", true),
        ("Job", "batch/v1", "generateName: \"-\"", false),
        ("Job", "batch/v1", &*format!("generateName: {long}"), true),
        ("StatefulSet", "apps/v1", "name: a-b", true),
        ("StatefulSet", "apps/v1", "name: a.b", false),
        ("Job", "batch/v1", "name: a, namespace: team-a", true),
        ("Job", "batch/v1", "name: a, namespace: team.a", false),
        ("CronJob", "batch/v1", &*format!("name: {}", "a".repeat(52)), true),
        ("CronJob", "batch/v1", &*format!("name: {}", "a".repeat(53)), false),
        ("ReplicationController", "v1", &*format!("name: {long}"), true),
        ("Job", "batch/v1", &*manual, true),
        ("PodDisruptionBudget", "policy/v1", "name: My_Budget", true),
        ("Namespace", "v1", "name: a-b", true),
        ("Namespace", "v1", "name: a.b", false),
    ] {
        let found = of(kind, version, metadata);
        assert_eq!(found.is_empty(), is_accepted, "{kind} {metadata}: {found:?}");
        let is_named = |line: &String| line.contains("a name that the API server refuses");
        assert!(found.iter().all(is_named), "{found:?}");
    }
}

#[test]
fn claim_templates_become_claims_of_each_pod() {
    let desired = clean(
        "apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: data}
spec:
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c}], volumes: [{name: disk, emptyDir: {}}]}}
  volumeClaimTemplates:
    - {metadata: {name: disk}, spec: {storageClassName: gp3}}
    - {metadata: {name: logs}, spec: {}}",
    );
    let volumes: Vec<_> = pod_spec(&desired).volumes.iter().map(|v| &v.source).collect();
    let class = |name: Option<&str>| VolumeSource::ClaimTemplate(name.map(ToOwned::to_owned));
    assert_eq!(volumes, [&class(Some("gp3")), &class(None)]);
}

#[test]
fn a_generated_name_is_stable() {
    let text = "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: pi-, namespace: web}\n\
                spec: {template: {spec: {containers: [{name: c}]}}}";
    let desired = clean(text);
    let named = id(WorkloadKind::Job, "web", "pi-@a.yaml:1");
    assert_eq!(desired.workloads.keys().collect::<Vec<_>>(), [&named]);
    for (metadata, expected) in [
        ("metadata: {}", "`metadata` has neither `name` nor `generateName`"),
        ("metadata: {name: \"\"}", "`metadata.name` is empty"),
        ("metadata: {name: 5}", "`metadata.name` is `5` (a number), not a string; quote it: \"5\""),
    ] {
        let text = format!("apiVersion: v1\nkind: Pod\n{metadata}\nspec: {{containers: []}}");
        assert!(problem(&text).ends_with(expected), "{}", problem(&text));
    }
}

#[test]
fn lists_hold_objects_at_any_depth() {
    let pod = |name: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, \
             spec: {{containers: [{{name: c}}]}}}}"
        )
    };
    let desired = clean(&format!(
        "apiVersion: v1\nkind: List\nitems:\n- {}\n- {{apiVersion: v1, kind: PodList, items: [{}]}}\n\
         - {{apiVersion: v1, kind: Service, metadata: {{name: s}}}}\n",
        pod("a"),
        pod("b")
    ));
    let names: Vec<String> = desired.workloads.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["default/a", "default/b"]);
    assert_eq!(desired.workloads.values().next().expect("one").origin.line, 4);
    assert_eq!(reasons(&desired), ["a.yaml:6: kind Service"]);
}

#[test]
fn a_kind_in_a_version_that_is_not_served_is_an_error() {
    for (version, expected) in [
        ("apiVersion: apps/v3", "has apiVersion `apps/v3`"),
        ("apiVersion: v1", "has apiVersion `v1`"),
        ("x: 1", "has no apiVersion"),
    ] {
        let text = format!("{version}\nkind: Deployment\nmetadata: {{name: x}}");
        assert_eq!(
            problem(&text),
            format!(
                "error a.yaml:1: Deployment default/x: {expected}, in which kind Deployment is not \
                 served; write apiVersion: apps/v1"
            )
        );
    }
}

#[test]
fn duplicate_definitions_must_be_equal() {
    let of = |replicas: u32, image: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: x}}\n\
             spec: {{replicas: {replicas}, {SELECTOR}, template: {{metadata: {{labels: {{app: x}}}}, \
             spec: {{containers: [{{name: c, image: {image}}}]}}}}}}\n"
        )
    };
    let (two, three) = (of(2, "a"), of(3, "a"));
    assert!(read_files(&[("a.yaml", &two), ("b.yaml", &of(2, "b"))]).problems.is_empty());
    let desired = read_files(&[("b.yaml", &three), ("a.yaml", &two)]);
    assert_eq!(
        lines(&desired),
        [
            "error b.yaml:1: Deployment default/x: is defined differently at a.yaml:1; two clusters? \
             list the directories of this cluster under `spec.sources`; otherwise remove one of the two"
        ]
    );
    let first = desired.workloads.values().next().expect("one");
    assert_eq!(first.scale, Scale::Replicas(2), "the first file's, whatever the order");
    let both = format!("{two}---\n{three}");
    assert_eq!(read_text(&both).problems[0].origin.line, 6);
}

#[test]
fn surge_of_an_update_follows_its_strategy() {
    let of = |kind: &str, api: &str, strategy: &str| {
        let text = format!(
            "apiVersion: {api}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{{strategy} \
             {SELECTOR}, {TEMPLATE}}}\n"
        );
        let desired = read_text(&text);
        assert_eq!(lines(&desired), [""; 0], "{text}");
        desired.workloads.values().next().expect("one").max_surge
    };
    let quarter = RolloutShare::Percent(25);
    for (strategy, expected) in [
        ("", quarter),
        ("strategy: {type: RollingUpdate},", quarter),
        ("strategy: {rollingUpdate: {maxSurge: 2}},", RolloutShare::Pods(2)),
        ("strategy: {rollingUpdate: {maxSurge: '0', maxUnavailable: 1}},", RolloutShare::NONE),
        ("strategy: {rollingUpdate: {maxSurge: 150%}},", RolloutShare::Percent(150)),
        ("strategy: {rollingUpdate: {maxSurge: a few}},", quarter),
        ("strategy: {type: Recreate},", RolloutShare::NONE),
    ] {
        assert_eq!(of("Deployment", "apps/v1", strategy), expected, "{strategy}");
    }
    for (strategy, expected) in [
        ("strategy: {canary: {maxSurge: 10%}},", RolloutShare::Percent(10)),
        ("strategy: {blueGreen: {activeService: a}},", RolloutShare::Percent(100)),
    ] {
        assert_eq!(of("Rollout", "argoproj.io/v1alpha1", strategy), expected, "{strategy}");
    }
    assert_eq!(of("StatefulSet", "apps/v1", "updateStrategy: {},"), RolloutShare::NONE);
}

#[test]
fn objects_that_a_controller_makes_are_not_planned() {
    let owned = |owner: &str| {
        format!(
            "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: x-5f, {owner}}}\n\
             spec: {{{SELECTOR}, {TEMPLATE}}}"
        )
    };
    let reference = "{apiVersion: apps/v1, kind: Deployment, name: x, uid: u, controller: true}";
    let text = owned(&format!("ownerReferences: [{reference}]"));
    assert_eq!(
        problem(&text),
        "warning a.yaml:1: ReplicaSet default/x-5f: has the controller `Deployment x` in its \
         `ownerReferences`, which makes such objects itself: it is not planned; \
         remove it from the files, or declare its owner in its place"
    );
    assert_eq!(read_text(&text).workloads.len(), 0);
    let plain = reference.replace("controller: true", "controller: false");
    assert_eq!(clean(&owned(&format!("ownerReferences: [{plain}]"))).workloads.len(), 1);
    let mirror = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, annotations: \
                  {kubernetes.io/config.mirror: a}}\nspec: {containers: [{name: c}]}";
    assert!(problem(mirror).contains("is a mirror pod"), "{}", problem(mirror));
    assert_eq!(read_text(mirror).workloads.len(), 0);
}

#[test]
fn job_of_another_controller_is_not_planned_as_a_job() {
    let job = |manager: &str| {
        format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: x}}\n\
             spec: {{managedBy: {manager}, {TEMPLATE}}}"
        )
    };
    assert_eq!(clean(&job("batch.kubernetes.io/job-controller")).workloads.len(), 1);
    let elsewhere = job("kueue.x-k8s.io/multikueue");
    assert!(problem(&elsewhere).contains("is run in another cluster"), "{}", problem(&elsewhere));
    assert_eq!(read_text(&elsewhere).workloads.len(), 0);
    let other = read_text(&job("example.com/jobs"));
    assert_eq!((other.workloads.len(), unresolved(&other).len()), (0, 1));
}

#[test]
fn items_of_a_typed_list_have_its_kind() {
    let items = format!(
        "items:\n- metadata: {{name: x}}\n  spec: {{replicas: 2, {SELECTOR}, {TEMPLATE}}}\n"
    );
    let desired = clean(&format!("apiVersion: apps/v1\nkind: DeploymentList\n{items}"));
    let scales: Vec<&Scale> = desired.workloads.values().map(|one| &one.scale).collect();
    assert_eq!(scales, [&Scale::Replicas(2)]);
    assert_eq!(clean(&format!("apiVersion: v1\nkind: List\n{items}")).workloads.len(), 0);
}

#[test]
fn queue_of_kueue_is_read_where_kueue_looks_for_it() {
    const QUEUE: &str = "labels: { kueue.x-k8s.io/queue-name: team-a }";
    let read = |kind: &str, object: &str, spec: &str| {
        let text = format!(
            "apiVersion: batch/v1\nkind: {kind}\nmetadata: {{ name: a, namespace: ml, {object} }}\n\
             spec: {spec}\n"
        );
        let desired = read_files(&[("a.yaml", &text)]);
        let workload = desired.workloads.values().next().expect("one");
        (workload.queue.clone(), workload.scale.clone())
    };
    let pods = |labels: &str| {
        format!(
            "{{ metadata: {{ {labels} }}, spec: {{ restartPolicy: Never, containers: [{{ name: a, \
             image: a }}] }} }}"
        )
    };
    let job = |labels: &str| format!("{{ suspend: true, template: {} }}", pods(labels));
    let (queue, scale) = read("Job", QUEUE, &job(""));
    let resumed = Scale::Job { pods: 1, completions: None, suspended: false };
    assert_eq!((queue.as_deref(), scale), (Some("team-a"), resumed), "Kueue resumes it");
    assert_eq!(read("Job", "", &job(QUEUE)).0.as_deref(), Some("team-a"), "on the pods");
    let empty = "labels: { kueue.x-k8s.io/queue-name: '' }";
    assert_eq!(read("Job", empty, &job("")).0, None, "an empty name is no queue");
    assert_eq!(read("Job", empty, &job(empty)).0, None);
    let (queue, scale) = read("Job", "", &job(""));
    assert!(queue.is_none() && matches!(scale, Scale::Job { suspended: true, .. }));
    let cron = |labels: &str| {
        format!(
            "{{ schedule: '0 2 * * *', jobTemplate: {{ metadata: {{ {labels} }}, spec: {} }} }}",
            job("")
        )
    };
    assert_eq!(read("CronJob", "", &cron(QUEUE)).0.as_deref(), Some("team-a"));
    assert_eq!(read("CronJob", QUEUE, &cron("")).0, None, "Kueue ignores it there");
}
