use serde_json::{Map as JsonMap, Value as Json};

use super::super::yaml::{Scalar, YamlNode, YamlValue, load, resolve};
use super::*;
use crate::model::desired::FLEET_FILE;
use crate::model::desired::{
    DeliverySettings, DemandMode, MaxShares, Problem, Renderer, SignerKey, Tree, TreeFile,
    UnresolvedPolicy,
};
use crate::model::ids::{Origin, ZoneName};
use crate::model::units::MicroUsd;
use jiff::SignedDuration;

fn read_text(text: &str) -> (Fleet, Vec<Problem>) {
    let content = |text: &str| Ok(text.as_bytes().into());
    let files = [("apps/a.yaml", "a: 1"), (FLEET_FILE, text), ("charts/shop/Chart.yaml", "a: 1")];
    let file = |(path, text): (&str, &str)| TreeFile { path: path.into(), content: content(text) };
    read_fleet(&Tree { files: files.map(file).into() })
}

fn with_spec(spec: &str) -> String {
    format!("apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {{name: f}}\nspec:\n{spec}")
}

#[test]
fn defaults_apply_without_a_file() {
    let (fleet, problems) = read_fleet(&Tree::default());
    assert_eq!((fleet.clone(), problems.len()), (Fleet::default(), 0));
    assert_eq!(
        (fleet.cluster.name.as_str(), fleet.cluster.region.as_str()),
        ("default", "us-east-1")
    );
    assert_eq!((fleet.world.as_str(), fleet.origin), ("empty", None));
    let settings = fleet.consolidation;
    assert_eq!(settings.horizon, SignedDuration::from_hours(24));
    assert_eq!(settings.restart_cost, MicroUsd(1_000));
    assert_eq!(settings.minimum_saving_milli_percent, 5_000);
    assert_eq!(settings.minimum_fleet_saving_milli_percent, 5_000);
}

#[test]
fn only_cluster_of_eksctl_counts_without_settings() {
    let config = |name: &str| {
        format!("apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {name}\n")
    };
    let read = |files: &[(&str, String)]| {
        let file = |(path, text): &(&str, String)| TreeFile {
            path: (*path).into(),
            content: Ok(text.as_bytes().into()),
        };
        let (fleet, _) = read_fleet(&Tree { files: files.iter().map(file).collect() });
        (fleet.cluster.name, fleet.cluster.region.to_string())
    };
    let named = |name: &str, region: &str| (name.to_owned(), region.to_owned());
    let prod = ("a.yaml", config("{name: prod, region: eu-west-1}"));
    assert_eq!(read(std::slice::from_ref(&prod)), named("prod", "eu-west-1"));
    let other = ("b.yaml", config("{name: dev, region: eu-west-1}"));
    assert_eq!(read(&[prod.clone(), other]), named("default", "us-east-1"), "two clusters");
    let open = ("a.yaml", config("{name: '${NAME}', region: eu-west-1}"));
    assert_eq!(read(&[open]), named("default", "us-east-1"));
    let settings = (FLEET_FILE, with_spec("  cluster: {name: own}\n"));
    assert_eq!(read(&[prod, settings]), named("own", "us-east-1"));
}

#[test]
fn treatment_of_unread_sources_is_read() {
    let (fleet, problems) = read_text(&with_spec(
        "  unresolved: hold\n  sources:\n  - {path: charts/shop, render: helm, \
         assume: {pods: 3, cpu: 500m, memory: 1Gi}}\n",
    ));
    assert_eq!(problems, []);
    assert_eq!(fleet.unresolved, UnresolvedPolicy::Hold);
    let assumed = fleet.sources[0].assume.clone().expect("assumed pods");
    let requests = [("cpu".into(), 500), ("memory".into(), 1 << 30)];
    assert_eq!((assumed.pods, assumed.requests), (3, requests.into()));
    for (spec, part) in [
        ("  unresolved: drop\n", "unresolved"),
        ("  sources: [{path: apps, assume: {pods: -1, cpu: 1, memory: 1}}]\n", "pods"),
        ("  sources: [{path: apps, assume: {pods: 1, cpu: -1, memory: 1}}]\n", "cpu"),
        ("  sources: [{path: apps, assume: {pods: 1, cpu: 1}}]\n", "memory"),
    ] {
        let (fleet, problems) = read_text(&with_spec(spec));
        assert!(problems.iter().any(|p| p.message.contains(part)), "{spec}: {problems:?}");
        assert_eq!(fleet.unresolved, UnresolvedPolicy::Running);
    }
}

#[test]
fn every_setting_is_read() {
    let (fleet, problems) = read_text(&with_spec(
        "  cluster: {name: prod, region: eu-west-1, zones: [eu-west-1b, eu-west-1a]}
  sources:
  - path: ./apps/
  - {path: charts/shop, render: helm, values: [v.yaml, ../eu.yaml], vars: {TEAM: shop, COUNT: 3},
     release: web, namespace: shop}
  signers: [{name: ops, ssh: ssh-ed25519 AAAA ops@x}, {name: lead, gpg: '-----BEGIN PGP PUBLIC KEY BLOCK-----'}]
  delivery: {repositories: [a], revisions: [b], clusters: [c], otherClusters: [d], vars: {E: f},
    mirrors: {'https://a/': 'https://b/'}, privateHosts: [g]}
  demand: {autoscaled: ceiling, lead: 1h30m}
  world: sim:world
  policies: [apps]
  consolidation: {horizon: 12h, restartCost: 0.5, minimumSaving: 7.5%, minimumFleetSaving: 2%}
  failureDomains: {web: {workload: {node: 25%, zone: 50%}, pods: {node: 12.5%}}}
  spot: {maxOfferingShare: 34%}
",
    ));
    assert_eq!(problems, []);
    assert_eq!(fleet.origin, Some(Origin::new(FLEET_FILE, 1)));
    assert_eq!((fleet.name.as_str(), fleet.cluster.name.as_str()), ("f", "prod"));
    let zones: Vec<&str> = fleet.cluster.zones.keys().map(ZoneName::as_str).collect();
    assert_eq!(zones, ["eu-west-1a", "eu-west-1b"]);
    assert_eq!((fleet.sources[0].path.as_str(), fleet.sources[0].render), ("apps", None));
    let chart = &fleet.sources[1];
    assert_eq!(
        (chart.render, &chart.values[..]),
        (Some(Renderer::Helm), &["charts/shop/v.yaml".to_owned(), "charts/eu.yaml".to_owned()][..])
    );
    assert_eq!((chart.release.as_deref(), chart.namespace.as_deref()), (Some("web"), Some("shop")));
    assert_eq!(fleet.signers[0].key, SignerKey::Ssh("ssh-ed25519 AAAA ops@x".to_owned()));
    assert!(matches!(fleet.signers[1].key, SignerKey::Gpg(_)));
    let DeliverySettings {
        repositories,
        revisions,
        clusters,
        other_clusters,
        vars,
        mirrors,
        private_hosts,
    } = &fleet.delivery;
    assert_eq!([&repositories[0], &revisions[0], &clusters[0]], ["a", "b", "c"]);
    assert_eq!((mirrors["https://a/"].as_str(), private_hosts[0].as_str()), ("https://b/", "g"));
    assert_eq!((other_clusters[0].as_str(), vars["E"].as_str()), ("d", "f"));
    assert_eq!((chart.vars["TEAM"].as_str(), chart.vars["COUNT"].as_str()), ("shop", "3"));
    assert_eq!(chart.origin.line, 8);
    assert_eq!(fleet.demand.autoscaled, DemandMode::Ceiling);
    assert_eq!(fleet.demand.lead_time, SignedDuration::from_mins(90));
    assert_eq!(
        (fleet.world.as_str(), &fleet.policies[..]),
        ("sim:world", &["apps".to_owned()][..])
    );
    assert_eq!(fleet.consolidation.restart_cost, MicroUsd(500_000));
    assert_eq!(fleet.consolidation.minimum_saving_milli_percent, 7_500);
    assert_eq!(fleet.consolidation.minimum_fleet_saving_milli_percent, 2_000);
    let limits = &fleet.failure_domains["web"];
    assert_eq!(limits.workload, MaxShares { node: Some(25_000), zone: Some(50_000) });
    assert_eq!(limits.pods, MaxShares { node: Some(12_500), zone: None });
    assert_eq!(fleet.max_offering_share, Some(34_000));
    let (unlimited, _) = read_text(&with_spec("  spot: {maxOfferingShare: 100%}\n"));
    assert_eq!(unlimited.max_offering_share, None);
    let (fleet, _) = read_text(&with_spec("  cluster: {zones: {us-east-1a: use1-az6}}\n"));
    assert_eq!(fleet.cluster.name, "f", "the fleet's name stands in");
    assert_eq!(fleet.cluster.zones["us-east-1a"], Some("use1-az6".into()));
}

#[test]
fn zones_of_a_region_that_does_not_exist_are_no_second_problem() {
    let (fleet, problems) =
        read_text(&with_spec("  cluster: {region: us-east1, zones: [us-east-1a]}\n"));
    assert_eq!((fleet.cluster.region.as_str(), problems.len()), ("us-east1", 0), "{problems:?}");
}

#[test]
fn settings_problems_have_their_line() {
    for (text, line, expected) in [
        (with_spec("  sorces: []\n"), 5, "unknown field `sorces` in `spec`"),
        (with_spec("  cluster: {nmae: x}\n"), 5, "unknown field `nmae` in `spec.cluster`"),
        (with_spec("  sources:\n  - path: ../other\n"), 6, "which leads out of the repository"),
        (with_spec("  sources:\n  - path: /etc\n"), 6, "which leads out of the repository"),
        (with_spec("  sources:\n  - path: apps/../..\n"), 6, "which leads out of the repository"),
        (with_spec("  sources:\n  - path: nowhere\n"), 6, "source `nowhere` does not exist"),
        (with_spec("  sources:\n  - path: app\n"), 6, "source `app` does not exist"),
        (with_spec("  sources:\n  - path: apps\n  - path: ./apps\n"), 7, "`apps` is named twice"),
        (with_spec("  sources:\n  - render: helm\n"), 6, "has no `path`"),
        (
            with_spec("  cluster: {zones: [us-west-2a]}\n"),
            5,
            "`us-west-2a`, which is not in us-east-1",
        ),
        (
            with_spec("  cluster: {zones: [us-east-1a, us-east-1a]}\n"),
            5,
            "the zone us-east-1a again",
        ),
        (
            with_spec("  controller: {launches: {within: 86401s}}\n"),
            5,
            "is more than 24 hours, the recorded history of moves",
        ),
        ("a: 'x".to_owned(), 1, "is not YAML"),
        (String::new(), 0, "is empty"),
        (with_spec("  world: empty\n---\na: 1\n"), 7, "holds a second document"),
        (with_spec("  world: empty\n  world: live\n"), 6, "key `world` is given twice"),
        ("- a".to_owned(), 1, "is a list, not a mapping"),
    ] {
        let (_, problems) = read_text(&text);
        assert_eq!(problems.len(), 1, "{text}\n{problems:#?}");
        assert!(problems[0].message.contains(expected), "{text}\n{:?}", problems[0]);
        assert_eq!(
            (problems[0].origin.line, &*problems[0].origin.file),
            (line, FLEET_FILE),
            "{text}"
        );
    }
}

/// Returns a document as JSON, as Kubernetes tools do.
fn json(node: &YamlNode<'_>) -> Json {
    match &node.value {
        YamlValue::Plain(text) => match resolve(text) {
            Scalar::Null => Json::Null,
            Scalar::Bool(value) => value.into(),
            Scalar::Int(int) => int.into(),
            Scalar::Number(number) => number.parse::<f64>().expect("a number").into(),
            Scalar::Text(text) => text.into(),
        },
        YamlValue::Quoted(text) => (**text).into(),
        YamlValue::Seq(items) => items.iter().map(json).collect(),
        YamlValue::Map(entries) => {
            let pairs = entries.iter().map(|entry| (entry.key.to_string(), json(&entry.value)));
            Json::Object(pairs.collect::<JsonMap<_, _>>())
        }
        YamlValue::Tagged(_, inner) => json(inner),
    }
}

/// Valid specifications.
const VALID: &[&str] = &[
    "",
    "  cost: {commitments: [{name: a, savingsPlan: {hourly: '1', discount: 20%}}]}\n",
    "  apply: {approvals: 1, windows: [{from: '08:00', to: '17:30'}],\n    keys: [{name: a, key: MCowBQYDK2VwAyEAK6r6k6xSO+Tf7GsjgOLiOP431kQtIjsjKV0hIVgox0c=}]}\n",
    "  cluster: {}\n",
    "  cluster:\n  sources:\n  demand:\n",
    "  cluster: {name: x, region: us-west-2, zones: [us-west-2a]}\n",
    "  cluster: {zones: {us-east-1a: use1-az1}}\n",
    "  sources: [{path: apps}]\n",
    "  sources: [{path: .}]\n",
    "  sources: [{path: ./apps, vars: {A: b, C: 3, D: 0.5}}]\n",
    "  sources: [{path: charts, render: helm, values: [a.yaml]}]\n",
    "  sources: [{path: apps, render: kustomize}]\n",
    "  delivery: {mirrors: {'https://a/': 'https://b/x/'}, privateHosts: ['http://c:80', d]}\n",
    "  demand: {autoscaled: floor, lead: 90s}\n",
    "  world: live\n  policies: [policies, apps/x]\n",
    "  consolidation: {horizon: 1.5h, restartCost: '0.001', minimumSaving: 0%}\n",
    "  consolidation: {restartCost: 1, minimumSaving: 12.5%, minimumFleetSaving: 0%}\n",
    "  karpenter: {minValuesPolicy: BestEffort}\n",
    "  karpenter:\n",
    "  apply: {by: ci, windows: [{from: '08:00', to: '17:30', zone: Europe/Berlin}]}\n",
    "  controller: {mode: full, approval: policy, ciTimeout: 2h, poll: 30s, refresh: 10s, settle: 2m,\n    \
     batch: {idle: 50ms, most: 2s}, launches: {most: 50, within: 5m}, removals: {most: 5%, within: 24h},\n    \
     massRemoval: 30%, repairAfter: Never, confirm: [gpu], steer: true,\n    queue: interruptions}\n",
    "  controller: {}\n",
    "  autoscalers: {namespaces: [infra, kube-system]}\n",
    "  autoscalers: {namespaces: []}\n",
    "  autoscalers: {}\n",
    "  failureDomains: {a: {workload: {zone: 34%}}, b: {pods: {node: 100%}}}\n",
    "  placement: {worstCase: contingency}\n",
    "  placement: {worstCase: capacity}\n",
    "  placement: {}\n",
    "  spot: {maxOfferingShare: 34%}\n",
    "  spot: {maxOfferingShare: 100%}\n",
    "  spot: {}\n",
];

/// Invalid specifications.
const INVALID: &[&str] = &[
    "  cost: {commitments: [{name: a}]}\n",
    "  cost: {commitments: [{savingsPlan: {hourly: '1', discount: 20%}}]}\n",
    "  apply: {windows: [{from: noon, to: '17:30'}]}\n",
    "  apply: {windows: [{days: [monday], from: '08:00', to: '17:30'}]}\n",
    "  apply: {keys: [{name: a}]}\n",
    "  unknown: 1\n",
    "  autoscalers: {namespace: infra}\n",
    "  autoscalers: {namespaces: infra}\n",
    "  cluster: [a]\n",
    "  cluster: {name: 5}\n",
    "  cluster: {name: ''}\n",
    "  cluster: {zones: us-east-1a}\n",
    "  delivery: {mirrors: {charts: 'https://b/x/'}}\n",
    "  delivery: {mirrors: {'https://a/': b}}\n",
    "  cluster: {zones: [us-east-1a, us-east-1a]}\n",
    "  sources: {path: apps}\n",
    "  sources: [{}]\n",
    "  sources: [{path: ../x}]\n",
    "  sources: [{path: /x}]\n",
    "  sources: [{path: ''}]\n",
    "  sources: [{path: apps, render: jsonnet}]\n",
    "  sources: [{path: apps, values: [a]}]\n",
    "  sources: [{path: apps, render: kustomize, values: [a]}]\n",
    "  sources: [{path: apps, vars: {1A: b}}]\n",
    "  sources: [{path: apps, vars: {Y: b}}]\n",
    "  sources: [{path: apps, vars: {A: [b]}}]\n",
    "  sources: [{path: apps, vars: {A: true}}]\n",
    "  sources: [{path: apps, extra: 1}]\n",
    "  demand: {autoscaled: most}\n",
    "  demand: {lead: 10}\n",
    "  demand: {lead: 10d}\n",
    "  demand: {lead: Never}\n",
    "  world: ''\n",
    "  world: 5\n",
    "  policies: policies\n",
    "  consolidation: {horizon: -1h}\n",
    "  consolidation: {restartCost: '-1'}\n",
    "  consolidation: {restartCost: '$1'}\n",
    "  consolidation: {restartCost: '0.0000001'}\n",
    "  sources: [{path: apps, release: x}]\n",
    "  sources: [{path: apps, render: helm, release: X}]\n",
    "  sources: [{path: apps, namespace: -x}]\n",
    "  delivery: {repos: []}\n",
    "  signers: [{name: a}]\n",
    "  signers: [{name: a, ssh: x}]\n",
    "  signers: [{name: a, ssh: 'namespaces=\"git\" ssh-ed25519 AAAA'}]\n",
    "  signers: [{name: a, gpg: x}]\n",
    "  signers: [{ssh: ssh-ed25519 AAAA}]\n",
    "  signers: [{name: a, ssh: ssh-ed25519 AAAA, gpg: '-----BEGIN PGP PUBLIC KEY BLOCK-----'}]\n",
    "  apply: {by: argo}\n",
    "  apply: {windows: [{from: '08:00', to: '17:30', zone: Berlin}]}\n",
    "  controller: {mode: careful}\n",
    "  controller: {approval: nobody}\n",
    "  controller: {poll: 0s}\n",
    "  controller: {batch: {idle: soon}}\n",
    "  controller: {launches: {most: many}}\n",
    "  controller: {removals: {most: 101%}}\n",
    "  controller: {more: 1}\n",
    "  consolidation: {minimumSaving: 5}\n",
    "  consolidation: {minimumSaving: 101%}\n",
    "  consolidation: {more: 1}\n",
    "  karpenter: {minValuesPolicy: best-effort}\n",
    "  failureDomains: {web: {workload: {node: 0%}}}\n",
    "  failureDomains: {web: {workload: {node: 3}}}\n",
    "  failureDomains: {web: {workload: {rack: 10%}}}\n",
    "  failureDomains: {web: {node: 10%}}\n",
    "  placement: {worstCase: nodes}\n",
    "  placement: {more: 1}\n",
    "  spot: {maxOfferingShare: 0%}\n",
    "  spot: {maxOfferingShare: 0.5}\n",
    "  spot: {more: 1}\n",
    "  karpenter: {more: 1}\n",
];

/// Whole files, and whether they are valid.
const DOCUMENTS: &[(&str, bool)] = &[
    ("apiVersion: fleetwright.dev/v1\nkind: Fleet\n", true),
    ("apiVersion: fleetwright.dev/v1\n", false),
    ("kind: Fleet\n", false),
    ("apiVersion: fleetwright.dev/v2\nkind: Fleet\n", false),
    ("apiVersion: fleetwright.dev/v1\nkind: Flete\n", false),
    ("apiVersion: fleetwright.dev/v1\nkind: Fleet\nextra: 1\n", false),
    ("apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {labels: {}}\n", false),
];

#[test]
fn commitments_and_guards_are_read() {
    let (fleet, problems) = read_text(&with_spec(
        "  cost:
    commitments:
    - { name: sp, savingsPlan: { hourly: '1.5', discount: 28% } }
    - { name: ri, reservedInstances: { instanceType: m5.large, count: 3, hourly: '0.06' } }
  apply:
    keys: [{ name: alice, key: MCowBQYDK2VwAyEAK6r6k6xSO+Tf7GsjgOLiOP431kQtIjsjKV0hIVgox0c= }]
    windows: [{ days: [mon], from: '22:00', to: '04:30' }]
",
    ));
    assert_eq!(problems, []);
    let hourly: Vec<i64> = fleet.commitments.iter().map(|c| c.hourly().0).collect();
    assert_eq!(hourly, [1_500_000, 180_000]);
    assert_eq!((fleet.guard.approvals, fleet.guard.keys[0].name.as_str()), (1, "alice"));
    assert_eq!((fleet.guard.windows[0].from, fleet.guard.windows[0].to), (22 * 60, 4 * 60 + 30));
}

#[test]
fn renamed_key_is_read_with_a_warning() {
    let (fleet, problems) = read_text(&with_spec("  controller: {ciPatience: 2h}\n"));
    assert_eq!(fleet.controller.ci_timeout, SignedDuration::from_hours(2));
    let [problem] = &problems[..] else { panic!("one problem: {problems:?}") };
    assert_eq!(problem.severity, crate::model::desired::Severity::Warning);
    assert!(problem.hint.as_deref().is_some_and(|hint| hint.contains("`ciTimeout`")));
    let both = with_spec("  controller: {ciTimeout: 1h, ciPatience: 2h}\n");
    let (fleet, problems) = read_text(&both);
    assert_eq!(fleet.controller.ci_timeout, SignedDuration::from_hours(1));
    assert_eq!(problems[0].severity, crate::model::desired::Severity::Error, "{problems:?}");
}

#[test]
fn editors_understand_the_schema() {
    let text = include_str!("../../../plans/fleet.schema.json");
    let schema: Json = serde_json::from_str(text).expect("the schema is JSON");
    // Editors support draft-07 best, where `$ref` hides the keys beside it.
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    assert!(!text.contains("$defs"));
    let errors = jsonschema::draft7::meta::validate(&schema);
    assert!(errors.is_ok(), "{errors:?}");
    let mut wrong = Vec::new();
    check_for_editors(&schema, "", &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Adds keys beside a `$ref`, and properties of objects without a description.
fn check_for_editors(schema: &Json, path: &str, wrong: &mut Vec<String>) {
    let Some(members) = schema.as_object() else {
        for (index, item) in schema.as_array().into_iter().flatten().enumerate() {
            check_for_editors(item, &format!("{path}/{index}"), wrong);
        }
        return;
    };
    if members.contains_key("$ref") && members.len() > 1 {
        wrong.push(format!("{path}: keys beside $ref"));
    }
    let is_object = members.contains_key("additionalProperties");
    let properties = members.get("properties").and_then(Json::as_object);
    for (name, property) in properties.into_iter().flatten().filter(|_| is_object) {
        if property.get("description").is_none() {
            wrong.push(format!("{path}/properties/{name}: no description"));
        }
    }
    for (name, member) in members {
        check_for_editors(member, &format!("{path}/{name}"), wrong);
    }
}

#[test]
fn the_schema_agrees_with_the_reader() {
    let schema: Json = serde_json::from_str(include_str!("../../../plans/fleet.schema.json"))
        .expect("the schema is JSON");
    let validator = jsonschema::validator_for(&schema).expect("the schema is a schema");
    let cases = VALID
        .iter()
        .map(|spec| (with_spec(spec), true))
        .chain(INVALID.iter().map(|spec| (with_spec(spec), false)))
        .chain(DOCUMENTS.iter().map(|(text, ok)| ((*text).to_owned(), *ok)));
    for (text, expected) in cases {
        let (_, problems) = read_text(&text);
        // Only the tree shows that a source is missing, so the schema cannot.
        let read = problems.iter().all(|problem| problem.message.contains("does not exist"));
        assert_eq!(read, expected, "reader: {text}\n{problems:#?}");
        let loaded = load(&text);
        let valid = validator.is_valid(&json(&loaded.documents[0].root));
        assert_eq!(valid, expected, "schema: {text}");
    }
}
