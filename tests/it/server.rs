//! The face of the loop: metrics, health and what is made of them, over statuses of every sort.

#[cfg(feature = "page")]
mod page;
mod status_objects;
mod statuses;
#[cfg(feature = "page")]
mod webhook;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use fleetwright::server::metrics::{FAMILIES, MetricKind, metrics};
use fleetwright::server::{liveness, readiness};
use jiff::SignedDuration;
use serde_json::Value as Json;

use crate::golden;
use statuses::{begun, busy, empty, failing, now};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every name of a metric of ours in a text.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let parts = text.match_indices("fleetwright_").map(|(at, _)| text[at..].chars());
    parts.map(|rest| rest.take_while(|c| is_part(*c)).collect()).collect()
}

/// Returns the family of a sample: those of a histogram end in what they tell of it.
fn family_of(name: &str) -> &str {
    let ends = ["_bucket", "_sum", "_count"].into_iter();
    let mut stems = ends.filter_map(|end| name.strip_suffix(end));
    let histogram = |stem: &&str| {
        FAMILIES.iter().any(|family| family.name == *stem && family.kind == MetricKind::Histogram)
    };
    stems.find(histogram).unwrap_or(name)
}

/// Reads the text format, strictly: name and labels → value.
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
    let first = samples(&metrics(&begun()));
    assert_eq!(first["fleetwright_leader"], "0");
    assert_eq!(first["fleetwright_lease_held_by_apply"], "0");
    let mut lent = begun();
    lent.is_lease_held_by_apply = true;
    assert_eq!(samples(&metrics(&lent))["fleetwright_lease_held_by_apply"], "1");
    for unknown in [
        "fleetwright_nodes",
        "fleetwright_plan_applyable",
        "fleetwright_hourly_usd{when=\"before\"}",
    ] {
        assert!(!first.contains_key(unknown), "{unknown} is not known yet");
    }
    let busy = samples(&metrics(&busy()));
    for (key, value) in [
        ("fleetwright_nodes_ready", "179"),
        ("fleetwright_plan_changes{action=\"launch\"}", "1"),
        ("fleetwright_plan_changes{action=\"terminate\"}", "12"),
        ("fleetwright_plan_changes{action=\"replace\"}", "0"),
        ("fleetwright_plan_blocked{reason=\"removal-budget\"}", "8"),
        ("fleetwright_applying_changes", "4"),
        ("fleetwright_applying_age_seconds", "120.000"),
        ("fleetwright_instances_terminating{reason=\"spot-interruption\",phase=\"draining\"}", "1"),
        ("fleetwright_reads_total{source=\"git\",result=\"done\"}", "340"),
        ("fleetwright_terminations_total{reason=\"spot\"}", "2"),
        ("fleetwright_planning_seconds_total", "82.345"),
        ("fleetwright_step_seconds_total", "4.200017"),
        ("fleetwright_pending_pod_reaction_seconds_total", "5.150"),
        ("fleetwright_interruption_messages_total{kind=\"spot-interruption\"}", "2"),
        ("fleetwright_interruption_messages_acknowledged_total", "2"),
    ] {
        assert_eq!(busy.get(key).map(String::as_str), Some(value), "{key}");
    }
    let failing = samples(&metrics(&failing()));
    for (key, value) in [
        ("fleetwright_breaker_latched{breaker=\"launches-not-ready\"}", "1"),
        ("fleetwright_world_complete{source=\"ec2\"}", "0"),
        ("fleetwright_source_age_seconds{source=\"world\"}", "2820.000"),
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
    golden::hold(PATH, &format!("{head}{}{table}{}{tail}", MARKS[0], MARKS[1])).expect("its table");
    for family in FAMILIES {
        let counter = family.name.ends_with("_total");
        assert_eq!(family.kind.as_str() == "counter", counter, "{}", family.name);
    }
}

#[test]
fn referenced_metrics_exist() {
    let known: BTreeSet<String> = FAMILIES.iter().map(|family| family.name.to_owned()).collect();
    for path in ["deploy/grafana/dashboard.json", "deploy/grafana/alerts.yaml", "deploy/metrics.md"]
    {
        let named = named(&read(path));
        assert!(named.len() > 10, "{path}");
        let unknown: Vec<&String> =
            named.iter().filter(|name| !known.contains(family_of(name))).collect();
        assert!(unknown.is_empty(), "{path}: {unknown:?}");
    }
}

/// Labels that Prometheus adds to everything that it reads.
const TARGET_LABELS: [&str; 2] = ["namespace", "pod"];

#[test]
fn dashboards_and_alerts_select_existing_labels() {
    let dashboard: Json =
        serde_json::from_str(&read("deploy/grafana/dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let mut expressions: Vec<String> =
        targets.map(|target| target["expr"].as_str().expect("text").to_owned()).collect();
    assert!(expressions.len() > 25);
    let rules: Json = serde_saphyr::from_str(&read("deploy/grafana/alerts.yaml")).expect("YAML");
    for rule in rules["spec"]["groups"][0]["rules"].as_array().expect("rules") {
        assert!(
            rule["annotations"]["summary"].is_string()
                && rule["annotations"]["description"].is_string()
        );
        expressions.push(rule["expr"].as_str().expect("text").to_owned());
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
    let due = begun().wakes_at.expect("a time");
    let bound = SignedDuration::from_mins(10);
    for (status, at, is_alive, is_ready) in [
        (begun(), now(), true, false),
        (begun(), due + bound, true, false),
        (begun(), due + bound + second, false, false),
        (empty(), now(), true, true),
        (busy(), now(), true, true),
        // Nothing can be read any more: what is shown says so, and a restart would not help.
        (failing(), now(), true, true),
    ] {
        assert_eq!(liveness(&status, at).is_ok, is_alive, "{at}");
        assert_eq!(readiness(&status).is_ok, is_ready);
    }
    let says = readiness(&failing()).message;
    let lines: Vec<&str> = says.lines().collect();
    assert_eq!(lines.len(), 4, "{says}");
    for (line, text) in lines.iter().zip([
        "repository and cluster were read",
        "reads of the repository fail since 2026-11-21T11:16:00Z: cannot fetch: ",
        "reads of the cluster fail since 2026-11-21T11:16:00Z: ec2: RequestLimitExceeded",
        "Persisting the state fails since 2026-11-21T11:16:00Z (19 times): write record: ",
    ]) {
        assert!(line.starts_with(text), "{line}");
    }
    assert!(!says.contains('\u{202e}'), "{says}");
    let mut never = begun();
    never.repository.reads.error = Some(("no such repository".to_owned(), now()));
    let says =
        "the repository was not read yet: no such repository\nthe cluster was not observed yet";
    assert_eq!(readiness(&never).message, says);
}

/// Returns the files below some folders.
fn sources(below: &[&str]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> = below.iter().map(|folder| root.join(folder)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// Returns the names of the counters, as their source has them; of those that are put together, one of each.
fn counted() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/controller/counters.rs");
    let text = fs::read_to_string(path).expect("text");
    let named = ["=> \"", "format!(\""].into_iter().flat_map(|call| text.split(call).skip(1));
    let names = named.filter_map(|rest| rest.split('"').next());
    let whole = |name: &str| match name.split_once('{') {
        Some((prefix, _)) => format!("{prefix}some"),
        None => name.to_owned(),
    };
    names.map(whole).collect()
}

/// Returns how the names begin under which durations are measured, as the source has them.
fn measured() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in sources(&["src/controller", "src/adapters/aws"]) {
        let text = fs::read_to_string(&path).expect("text");
        let text = text.split("#[cfg(test)]").next().expect("what is no test");
        for call in [".time_since(\"", ".note(\"", ".note(&format!(\""] {
            let ends =
                text.split(call).skip(1).filter_map(|rest| rest.split(['"', '{', '.']).next());
            names.extend(ends.filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    names
}

#[test]
fn measurements_appear_in_metrics() {
    let mut names = measured();
    assert!(names.len() >= 10 && names.contains("cloud"), "{names:?}");
    // This one the source has as a constant.
    names.insert(fleetwright::telemetry::histogram::LIFETIME.trim_end_matches('.').to_owned());
    for name in names {
        let told = ["", ".a.b.c"].into_iter().any(|rest| {
            let mut status = begun();
            status.durations.note(&format!("{name}{rest}"), std::time::Duration::from_secs(1));
            metrics(&status).contains("_bucket{")
        });
        assert!(told, "{name} is of no family");
    }
}

#[test]
fn each_controller_counter_has_its_own_metric() {
    let names = counted();
    assert!(names.len() > 30 && names.contains("messages.some"), "{names:?}");
    let mut status = begun();
    let without = samples(&metrics(&status)).len();
    for name in names {
        status.counters = BTreeMap::from([(name.clone(), 1)]);
        assert_eq!(samples(&metrics(&status)).len(), without + 1, "{name} has no metric");
    }
}
