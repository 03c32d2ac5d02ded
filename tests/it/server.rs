//! HTTP server of the controller: metrics, health, dashboards and alerts, for many statuses.

#[cfg(feature = "page")]
mod occupied;
#[cfg(feature = "page")]
mod page;
#[cfg(feature = "page")]
mod requests;
mod status_objects;
pub(crate) mod statuses;
#[cfg(feature = "page")]
mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use fleetwright::server::metrics::{FAMILIES, MetricKind, metrics};
use fleetwright::server::{liveness, readiness};
use jiff::SignedDuration;
use serde_json::Value as Json;

use crate::golden;
use statuses::{busy, empty, failing, now, starting};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names of all fleetwright metrics in a text.
fn metric_names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let parts = text.match_indices("fleetwright_").map(|(at, _)| text[at..].chars());
    parts.map(|rest| rest.take_while(|c| is_part(*c)).collect()).collect()
}

/// Returns the metric family of a sample. Samples of histograms have a suffix.
fn family_of(name: &str) -> &str {
    let ends = ["_bucket", "_sum", "_count"].into_iter();
    let mut stems = ends.filter_map(|end| name.strip_suffix(end));
    let histogram = |stem: &&str| {
        FAMILIES.iter().any(|family| family.name == *stem && family.kind == MetricKind::Histogram)
    };
    stems.find(histogram).unwrap_or(name)
}

/// Parses the Prometheus text format strictly, and returns values by name and labels.
fn samples(text: &str) -> BTreeMap<String, String> {
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help");
            assert!(!help.is_empty() && !family.starts_with(name), "{line}");
            name.clone_into(&mut family);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert_eq!(rest.split_once(' ').expect("a type").0, family);
        } else {
            let (key, value) = line.rsplit_once(' ').expect("a value");
            let name = key.split('{').next().expect("a name");
            assert_eq!(family_of(name), family, "samples follow their family");
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            assert!(known.insert(key.to_owned(), value.to_owned()).is_none(), "twice: {key}");
        }
    }
    known
}

#[test]
fn metrics_show_known_values_only() {
    let first = samples(&metrics(&starting()));
    assert_eq!(first["fleetwright_leader"], "0");
    assert_eq!(first["fleetwright_lease_held_by_apply"], "0");
    let mut held_by_apply = starting();
    held_by_apply.is_lease_held_by_apply = true;
    assert_eq!(samples(&metrics(&held_by_apply))["fleetwright_lease_held_by_apply"], "1");
    for unknown in [
        "fleetwright_nodes",
        "fleetwright_plan_applyable",
        "fleetwright_fleet_hourly_cost_usd{when=\"before\"}",
    ] {
        assert!(!first.contains_key(unknown), "{unknown} has no value yet");
    }
    let busy = samples(&metrics(&busy()));
    for (key, value) in [
        ("fleetwright_nodes_ready", "179"),
        ("fleetwright_plan_changes{action=\"launch\"}", "1"),
        ("fleetwright_plan_changes{action=\"terminate\"}", "12"),
        ("fleetwright_plan_changes{action=\"replace\"}", "0"),
        ("fleetwright_plan_blocked{reason=\"removal-budget\"}", "8"),
        ("fleetwright_apply_changes_in_progress", "4"),
        ("fleetwright_apply_in_progress_seconds", "120.000"),
        ("fleetwright_instances_interrupted{reason=\"spot-interruption\",phase=\"draining\"}", "1"),
        ("fleetwright_reads_total{source=\"repository\",result=\"done\"}", "340"),
        ("fleetwright_terminations_total{reason=\"spot\"}", "2"),
        ("fleetwright_interruption_messages_total{kind=\"spot-interruption\"}", "2"),
        ("fleetwright_interruption_messages_acknowledged_total", "2"),
    ] {
        assert_eq!(busy.get(key).map(String::as_str), Some(value), "{key}");
    }
    let totals = fleetwright::plan::wire::PodTotals {
        total: 12,
        placed: 9,
        unschedulable: 3,
        unresolved: 2,
        moved: 5,
        ..Default::default()
    };
    let mut counted = empty();
    let published = counted.plan.as_mut().expect("a plan");
    std::sync::Arc::make_mut(&mut published.plan).capacity.pods = totals;
    let counted = samples(&metrics(&counted));
    let states = counted.iter().filter(|(key, _)| key.starts_with("fleetwright_plan_pods{"));
    let sum: u32 = states.map(|(_, pods)| pods.parse::<u32>().expect("a number")).sum();
    assert_eq!(sum, totals.total, "each pod has one state");
    assert_eq!(counted["fleetwright_plan_pods_moved"], "5");
    assert_eq!(counted["fleetwright_plan_unresolved_workloads"], "2");
    let failing = samples(&metrics(&failing()));
    for (key, value) in [
        ("fleetwright_breaker_latched{breaker=\"ineffective-launches\"}", "1"),
        ("fleetwright_observation_complete{source=\"ec2\"}", "0"),
        ("fleetwright_source_age_seconds{source=\"cluster\"}", "2820.000"),
        ("fleetwright_pods_pending_seconds", "1860.000"),
    ] {
        assert_eq!(failing.get(key).map(String::as_str), Some(value), "{key}");
    }
}

#[test]
fn metric_labels_match_family_and_values_are_escaped() {
    let mut status = failing();
    status.breakers[0].name = "a\"b\\c\nd".repeat(100);
    let text = metrics(&status);
    let line = text.lines().find(|line| line.starts_with("fleetwright_breaker_latched{"));
    let line = line.expect("a breaker");
    assert!(line.contains("breaker=\"a\\\"b\\\\c\\nd") && line.len() < 400, "{line}");
    for (key, _) in samples(&metrics(&busy())) {
        let (name, labels) = key.split_once('{').unwrap_or((&key, ""));
        let of = family_of(name);
        let family = FAMILIES.iter().find(|family| family.name == of).expect("a family");
        let labels = labels.trim_end_matches('}');
        let names: Vec<&str> =
            labels.split("\",").filter_map(|label| Some(label.split_once('=')?.0)).collect();
        let bucket = name.ends_with("_bucket").then_some("le");
        let expected: Vec<&str> = family.labels.iter().copied().chain(bucket).collect();
        assert_eq!(names, expected, "{key}");
    }
}

#[test]
fn documented_metrics_equal_exported_metrics() {
    const PATH: &str = "deploy/metrics.md";
    const MARKS: [&str; 2] = ["<!-- families: begin -->\n", "<!-- families: end -->"];
    let text = read(PATH);
    let (head, rest) = text.split_once(MARKS[0]).expect("a beginning");
    let (_, tail) = rest.split_once(MARKS[1]).expect("an end");
    let mut table = "| metric | labels | |\n|---|---|---|\n".to_owned();
    for family in FAMILIES {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let row = format!("| `{}` | {} | {} |\n", family.name, labels.join(", "), family.help);
        table.push_str(&row);
    }
    golden::hold(PATH, &format!("{head}{}{table}{}{tail}", MARKS[0], MARKS[1]))
        .expect("the current table");
    for family in FAMILIES {
        let counter = family.name.ends_with("_total");
        assert_eq!(family.kind.as_str() == "counter", counter, "{}", family.name);
    }
}

#[test]
fn referenced_metrics_exist() {
    let known: BTreeSet<String> = FAMILIES.iter().map(|family| family.name.to_owned()).collect();
    let pages = ["deploy/grafana/alerts.yaml", "deploy/metrics.md"];
    for path in DASHBOARDS.into_iter().chain(pages) {
        let metric_names = metric_names(&read(path));
        assert!(metric_names.len() > 5, "{path}");
        let unknown: Vec<&String> =
            metric_names.iter().filter(|name| !known.contains(family_of(name))).collect();
        assert!(unknown.is_empty(), "{path}: {unknown:?}");
    }
}

const DASHBOARDS: [&str; 2] = ["deploy/grafana/dashboard.json", "deploy/grafana/clusters.json"];

/// Labels that Prometheus adds to all samples. The label `cluster` is set by operators.
const TARGET_LABELS: [&str; 3] = ["cluster", "namespace", "pod"];

/// Returns the expressions of the dashboards.
fn dashboard_expressions() -> Vec<String> {
    let expressions = |path| -> Vec<String> {
        let dashboard: Json = serde_json::from_str(&read(path)).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("panels").iter();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        targets.map(|target| target["expr"].as_str().expect("text").to_owned()).collect()
    };
    DASHBOARDS.into_iter().flat_map(expressions).collect()
}

/// Returns the rules of the alerts.
fn alert_rules() -> Vec<Json> {
    let rules: Json = serde_saphyr::from_str(&read("deploy/grafana/alerts.yaml")).expect("YAML");
    rules["spec"]["groups"][0]["rules"].as_array().expect("rules").clone()
}

fn expression_of(rule: &Json) -> String {
    rule["expr"].as_str().expect("text").to_owned()
}

/// One Prometheus may have the metrics of several clusters. Two leaders in two clusters are no alert.
#[test]
fn dashboards_and_alerts_separate_clusters() {
    for expression in dashboard_expressions() {
        let selectors: Vec<&str> = expression.split('{').skip(1).collect();
        let selects = |text: &&str| text.starts_with("cluster=~\"$cluster\"");
        assert!(!selectors.is_empty() && selectors.iter().all(selects), "{expression}");
    }
    for rule in alert_rules() {
        let expression = expression_of(&rule);
        let groupings = ["by (", "on ("].map(|word| expression.split(word).skip(1));
        let mut groupings = groupings.into_iter().flatten().peekable();
        assert!(groupings.peek().is_some(), "{expression}");
        assert!(groupings.all(|text| text.starts_with("cluster, namespace")), "{expression}");
        let summary = rule["annotations"]["summary"].as_str().expect("text");
        assert!(summary.starts_with("{{ with $labels.cluster }}{{ . }}: {{ end }}"), "{summary}");
    }
}

#[test]
fn dashboards_and_alerts_select_existing_labels() {
    let mut expressions = dashboard_expressions();
    assert!(expressions.len() > 25);
    for rule in alert_rules() {
        assert!(rule["annotations"]["description"].is_string());
        expressions.push(expression_of(&rule));
    }
    for expression in expressions {
        for (at, _) in expression.match_indices("fleetwright_") {
            let rest = &expression[at..];
            let end =
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let of = family_of(&rest[..end]);
            let family = FAMILIES.iter().find(|family| family.name == of).expect("a family");
            let Some(selector) = rest[end..].strip_prefix('{') else { continue };
            let selector = selector.split('}').next().expect("an end");
            for label in selector.split("\",") {
                let name: String = label.chars().take_while(char::is_ascii_lowercase).collect();
                let is_known = family.labels.iter().any(|known| known.starts_with(&name));
                assert!(family.kind != MetricKind::Histogram || of != &rest[..end], "{expression}");
                assert!(is_known || TARGET_LABELS.contains(&&*name), "{expression}: {name}");
            }
        }
    }
}

#[test]
fn replica_is_live_while_stepping_and_ready_after_first_read() {
    let second = SignedDuration::from_secs(1);
    let wakes_at = starting().wakes_at.expect("a time");
    let bound = SignedDuration::from_mins(10);
    for (status, at, is_alive, is_ready) in [
        (starting(), now(), true, false),
        (starting(), wakes_at + bound, true, false),
        (starting(), wakes_at + bound + second, false, false),
        (empty(), now(), true, true),
        (busy(), now(), true, true),
        // All reads fail. The replica reports it and stays live, since a restart would not help.
        (failing(), now(), true, true),
    ] {
        assert_eq!(liveness(&status, at).is_ok, is_alive, "{at}");
        assert_eq!(readiness(&status).is_ok, is_ready);
    }
    let message = readiness(&failing()).message;
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines.len(), 4, "{message}");
    for (line, text) in lines.iter().zip([
        "repository and cluster were read",
        "reads of the repository fail since 2026-11-21T11:16:00Z: cannot fetch: ",
        "reads of the cluster fail since 2026-11-21T11:16:00Z: ec2: RequestLimitExceeded",
        "Persisting the state fails since 2026-11-21T11:16:00Z (19 times): write record: ",
    ]) {
        assert!(line.starts_with(text), "{line}");
    }
    assert!(!message.contains('\u{202e}'), "{message}");
    let mut unread = starting();
    unread.repository.reads.error = Some(("no such repository".to_owned(), now()));
    let message =
        "the repository was not read yet: no such repository\nthe cluster was not observed yet";
    assert_eq!(readiness(&unread).message, message);
}
