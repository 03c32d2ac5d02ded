//! Checks the plan of a case against expectation lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::{InstanceTypeName, PoolName, ZoneName};
use fleetwright::model::market::CapacityType;
use fleetwright::model::units::{MicroUsd, Quantity};
use fleetwright::plan::wire::{DiagnosticSeverity, NodeState, Plan, ResourceChange, ResourceKind};

use super::case_input::CaseInput;
use super::case_line::{CaseLine, pairs};
use super::pod_counts;
use super::pod_rules::key;

/// A plan with its catalog.
#[derive(Debug)]
pub(crate) struct CasePlan {
    pub(crate) plan: Plan,
    pub(crate) catalog: Catalog,
}

impl CasePlan {
    /// Returns an error if the plan has an error diagnostic that no line names.
    pub(crate) fn check_errors(&self, expected: &[&CaseLine]) -> Result<(), String> {
        let named = |message: &str| {
            expected.iter().any(|line| {
                line.text.strip_prefix("problem ").is_some_and(|text| message.contains(text))
            })
        };
        let errors = self
            .plan
            .capacity
            .diagnostics
            .iter()
            .filter(|d| d.severity == DiagnosticSeverity::Error);
        let unnamed: Vec<String> =
            errors.map(|d| format!("{}: {}", d.object, d.message)).filter(|m| !named(m)).collect();
        if unnamed.is_empty() { Ok(()) } else { Err(format!("errors: {}", unnamed.join("; "))) }
    }

    /// Returns `why`, followed by the rows of the plan.
    pub(crate) fn with_details(&self, why: &str) -> String {
        let mut text = format!("{why}\n");
        for (row, actions, state) in self.rows() {
            let pods = self.pods_at(row);
            let pods: Vec<String> = pods.iter().map(|(name, n)| format!("{name} x{n}")).collect();
            let NodeState { instance_type, zone, capacity_type, .. } = state;
            let kind = instance_type.as_ref().map(ToString::to_string).unwrap_or_default();
            let zone = zone.as_ref().map(ToString::to_string).unwrap_or_default();
            let capacity = capacity_type.map(CapacityType::as_str).unwrap_or_default();
            let node = state.node.as_ref().map(ToString::to_string).unwrap_or_default();
            let hint = row.action_reason.as_deref().unwrap_or_default();
            let line = format!(
                "    {actions:9} {} {node} {kind} {zone} {capacity} [{}] {hint}\n",
                row.address,
                pods.join(", ")
            );
            text.push_str(&line);
        }
        for row in &self.plan.capacity.unschedulable {
            let reasons: Vec<String> =
                row.reasons.iter().map(|r| format!("{} ({})", r.reason, r.detail)).collect();
            writeln!(text, "    left      {} x{}: {}", row.workload, row.pods, reasons.join("; "))
                .expect("text grows");
        }
        for row in &self.plan.capacity.cluster_autoscaler {
            let pods: Vec<String> = row.pods.iter().map(|(key, n)| format!("{key} x{n}")).collect();
            writeln!(text, "    served    {} +{}: {}", row.address, row.nodes, pods.join(", "))
                .expect("text grows");
        }
        for d in
            self.plan.capacity.diagnostics.iter().filter(|d| d.severity != DiagnosticSeverity::Note)
        {
            writeln!(text, "    {:9} {}: {}", d.severity, d.object, d.message).expect("text grows");
        }
        text
    }

    fn rows(&self) -> impl Iterator<Item = (&ResourceChange, &'static str, &NodeState)> {
        let nodes = self.plan.resource_changes.iter();
        let nodes = nodes.filter(|row| row.kind != ResourceKind::AutoscalingGroup);
        nodes.filter_map(|row| {
            let (before, after) = (row.change.before.as_ref(), row.change.after.as_ref());
            let what = match (before, after) {
                (None, _) => "launch",
                (Some(_), None) => "terminate",
                (Some(b), Some(a)) if a == b => "keep",
                (Some(_), Some(_)) => "replace",
            };
            Some((row, what, after.or(before)?))
        })
    }

    /// Returns the planned pods of a row, by workload name.
    fn pods_at(&self, row: &ResourceChange) -> BTreeMap<&str, u32> {
        let mut explain = self.plan.capacity.explain.iter();
        let found = explain.find(|explain| explain.address == row.address);
        let pods = found.into_iter().flat_map(|explain| &explain.pods);
        pods.map(|(key, n)| (key.as_str().rsplit('/').next().unwrap_or(key.as_str()), *n)).collect()
    }

    /// Returns each node with planned pods of `name`, with its state and the number of pods.
    fn placements(&self, name: &str) -> Vec<(&ResourceChange, &NodeState, u32)> {
        let after = self.rows().filter_map(|(row, _, _)| Some((row, row.change.after.as_ref()?)));
        let count = |row| self.pods_at(row).get(name).copied().unwrap_or(0);
        after.map(|(row, state)| (row, state, count(row))).filter(|(_, _, n)| *n > 0).collect()
    }

    fn unschedulable(&self, name: &str) -> u32 {
        let rows = self.plan.capacity.unschedulable.iter();
        rows.filter(|row| &*row.workload.name == name).map(|row| row.pods).sum()
    }

    /// Returns the launched nodes, including replacements.
    fn launches(&self) -> Vec<&NodeState> {
        let new = self.rows().filter(|(_, what, _)| ["launch", "replace"].contains(what));
        new.map(|(_, _, state)| state).collect()
    }

    /// Returns the names of the terminated nodes, including replaced nodes.
    fn terminated(&self) -> Vec<String> {
        let gone = self.rows().filter(|(_, what, _)| ["terminate", "replace"].contains(what));
        let mut names: Vec<String> =
            gone.filter_map(|(row, _, _)| Some(name_of(row.change.before.as_ref()?))).collect();
        names.sort();
        names
    }

    fn price(&self, kind: &str) -> Result<MicroUsd, String> {
        let found = self.catalog.get(&kind.into()).ok_or(format!("there is no type {kind}"))?;
        let on_demand =
            found.offerings.iter().filter(|o| o.capacity_type == CapacityType::OnDemand);
        on_demand.filter_map(|o| o.price).min().ok_or(format!("{kind} has no price"))
    }
}

/// Returns the name of a node, or the id of its instance if it has not joined.
fn name_of(state: &NodeState) -> String {
    let instance = || state.instance_id.as_ref().map(ToString::to_string);
    state.node.as_ref().map(ToString::to_string).or_else(instance).unwrap_or_default()
}

/// Checks the default expectations: without a line for it, no pod is unschedulable and no node is
/// terminated.
pub(crate) fn check_defaults(case_plan: &CasePlan, lines: &[&CaseLine]) -> Result<(), String> {
    let lines_of = |word: &'static str| lines.iter().filter(move |line| line.words[0] == word);
    let named = |name: &str| {
        lines_of("unschedulable").any(|line| line.words.get(1).is_some_and(|n| n == name))
    };
    for row in &case_plan.plan.capacity.unschedulable {
        if row.pods > 0 && !named(&row.workload.name) {
            return Err(format!("{} pods of {} are unschedulable", row.pods, row.workload));
        }
    }
    let gone = case_plan.terminated();
    if !gone.is_empty() && lines_of("terminate").next().is_none() {
        return Err(format!("{} are terminated", gone.join(", ")));
    }
    Ok(())
}

/// Checks a plan against one line.
pub(crate) fn check_line(
    line: &CaseLine,
    case_plan: &CasePlan,
    input: &CaseInput,
) -> Result<(), String> {
    match line.word(0)? {
        "launch" => launch(line, case_plan, input),
        "terminate" => terminate(line, case_plan),
        "place" => {
            let found = case_plan.placements(line.word(1)?).iter().map(|(_, _, n)| n).sum::<u32>();
            check_count(found, line.count(2)?, "placed")
        }
        "unschedulable" => unschedulable(line, case_plan),
        "served" => served(line, case_plan),
        "advice" => advice(line, case_plan),
        "notes" => notes(line, case_plan),
        "evict" | "displace" => evictions(line, case_plan),
        "spread" => spread(line, case_plan),
        "put" => put(line, case_plan),
        "fargate" => fargate(line, case_plan),
        "resize" => resize(line, case_plan),
        "keep" => keep(line, case_plan),
        "cost" => cost(line, case_plan),
        "problem" => problem(line, case_plan),
        "counts" => pod_counts::counts(line, case_plan),
        "next" => pod_counts::next(line, case_plan),
        "requests" => pod_counts::requests(line, case_plan),
        "decided" => pod_counts::decided(line, case_plan),
        other => Err(format!("`{other}` is not an expectation")),
    }
}

fn check_count(found: u32, expected: u32, what: &str) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found} are {what}, not {expected}")) }
}

/// Checks the pods of a workload that wait for a group of Cluster Autoscaler: `served NAME COUNT by
/// GROUP nodes=N`.
fn served(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    line.only(&["nodes", "instead"])?;
    let (name, group) = (line.word(1)?, line.word(4)?);
    let rows = &case_plan.plan.capacity.cluster_autoscaler;
    let is_of = |key: &str| key.rsplit('/').next() == Some(name);
    let row = rows.iter().find(|row| row.address.as_str() == format!("autoscaling_group.{group}"));
    let pods = row.iter().flat_map(|row| &row.pods).filter(|(key, _)| is_of(key));
    check_count(pods.map(|(_, pods)| pods).sum(), line.count(2)?, "served")?;
    if let Some(nodes) = line.option("nodes") {
        let found = row.map_or(0, |row| row.nodes).to_string();
        if found != nodes {
            return Err(format!("{group} grows by {found} nodes, not {nodes}"));
        }
    }
    let instead = row.into_iter().flat_map(|row| &row.instead).map(ToString::to_string);
    let instead: Vec<String> = instead.collect();
    let instead = instead.join(",").replace("autoscaling_group.", "");
    let expected = line.option("instead").unwrap_or_default();
    if instead == expected { Ok(()) } else { Err(format!("`{instead}` may grow instead")) }
}

/// Checks the number of launches that match a line. [`check_launch_total`] checks the total.
fn launch(line: &CaseLine, case_plan: &CasePlan, input: &CaseInput) -> Result<(), String> {
    line.only(&["pool", "zone", "capacity", "labels"])?;
    let launches = case_plan.launches();
    if line.has("none") {
        return check_count(u32::try_from(launches.len()).unwrap_or(u32::MAX), 0, "launched");
    }
    if let Some(zone) = line.option("zone")
        && input.zones().iter().all(|setting| setting.name.as_str() != zone)
    {
        return Err(format!("the cluster has no zone {zone}"));
    }
    let kind = line.word(2)?;
    let is =
        |option: &str, found: Option<&str>| line.option(option).is_none_or(|v| found == Some(v));
    let has_labels = |state: &NodeState| {
        let wanted = line.option("labels").map(|text| pairs(text, '=')).unwrap_or_default();
        wanted.iter().all(|(k, v)| state.labels.get(*k).is_some_and(|found| found.as_str() == *v))
    };
    let fits = |state: &&&NodeState| {
        let found = state.instance_type.as_ref().map(InstanceTypeName::as_str);
        (kind == "*" || kind.split('|').any(|kind| found == Some(kind)))
            && is("pool", state.pool.as_ref().map(PoolName::as_str))
            && is("zone", state.zone.as_ref().map(ZoneName::as_str))
            && is("capacity", state.capacity_type.map(CapacityType::as_str))
            && has_labels(state)
    };
    let found = launches.iter().filter(fits).count();
    check_count(
        u32::try_from(found).unwrap_or(u32::MAX),
        line.count(1)?,
        "launched with these properties",
    )
}

/// Checks the number of launches against the sum of the `launch` lines.
pub(crate) fn check_launch_total(case_plan: &CasePlan, lines: &[&CaseLine]) -> Result<(), String> {
    let launches = lines.iter().filter(|line| line.words[0] == "launch");
    let counts: Vec<u32> = launches.filter_map(|line| line.count(1).ok()).collect();
    if counts.is_empty() {
        return Ok(());
    }
    let found = u32::try_from(case_plan.launches().len()).unwrap_or(u32::MAX);
    check_count(found, counts.iter().sum(), "launched")
}

fn terminate(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    if let Ok(count) = line.count(1) {
        return check_count(
            u32::try_from(case_plan.terminated().len()).unwrap_or(u32::MAX),
            count,
            "terminated",
        );
    }
    let mut expected: Vec<String> = line.words[1..].to_vec();
    expected.retain(|name| name != "none");
    expected.sort();
    let found = case_plan.terminated();
    if found == expected { Ok(()) } else { Err(format!("[{}] are terminated", found.join(", "))) }
}

fn unschedulable(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let name = line.word(1)?;
    check_count(case_plan.unschedulable(name), line.count(2)?, "unschedulable")?;
    let Some(reason) = line.reason() else { return Ok(()) };
    let rows =
        case_plan.plan.capacity.unschedulable.iter().filter(|row| &*row.workload.name == name);
    let mut reasons = rows.flat_map(|row| &row.reasons);
    let said = reasons.any(|r| r.reason.contains(reason) || r.detail.contains(reason));
    if said { Ok(()) } else { Err(format!("no reason contains `{reason}`")) }
}

/// Checks `notes for TEXT`: a diagnostic of the plan.
fn notes(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let text = line.reason().ok_or("write notes for TEXT")?;
    let all = case_plan.plan.capacity.diagnostics.iter().map(|row| row.message.as_str());
    let all: Vec<&str> = all.collect();
    if all.iter().any(|message| message.contains(text)) { Ok(()) } else { Err(format!("{all:?}")) }
}

/// Checks `advice NAME for TEXT`: the suggestion for the unschedulable pods of NAME.
fn advice(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let (name, text) = (line.word(1)?, line.reason().ok_or("write advice NAME for TEXT")?);
    let rows =
        case_plan.plan.capacity.unschedulable.iter().filter(|row| &*row.workload.name == name);
    let all: Vec<&str> = rows.filter_map(|row| row.nearest.as_deref()).collect();
    if all.iter().any(|advice| advice.contains(text)) {
        Ok(())
    } else {
        Err(format!("it is {all:?}"))
    }
}

/// Checks `evict NAME COUNT for OTHER` and `displace NAME COUNT for OTHER`: the pods that
/// unschedulable pods of OTHER preempt or may displace.
fn evictions(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let (name, count) = (line.word(1)?, line.count(2)?);
    let other = line.reason().ok_or("write evict NAME COUNT for OTHER")?;
    let mut rows = case_plan.plan.capacity.unschedulable.iter();
    let row = rows.find(|row| &*row.workload.name == other).ok_or("no pod is unschedulable")?;
    let pods = match (line.word(0)?, &row.eviction) {
        ("evict", Some(eviction)) => Some(&eviction.evicts),
        ("evict", None) => None,
        _ => Some(&row.displaces),
    };
    let mut pods = pods.into_iter().flatten();
    let found = pods.find(|(workload, _)| workload.ends_with(&format!("/{name}")));
    check_count(found.map_or(0, |(_, pods)| *pods), count, "preempted or displaced")
}

fn spread(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let (name, by) = (line.word(1)?, line.words.last().ok_or("write spread NAME COUNT… by KEY")?);
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for (row, state, count) in case_plan.placements(name) {
        let label = |key: &str| state.labels.get(key).map(ToString::to_string);
        let domain = match by.as_str() {
            "node" => Some(row.address.to_string()),
            "pool" => label("karpenter.sh/nodepool"),
            name => label(key(name)),
        };
        *counts.entry(domain.unwrap_or_default()).or_default() += count;
    }
    let mut found: Vec<u32> = counts.into_values().collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    let words = &line.words[2..line.words.len().saturating_sub(2)];
    let mut expected: Vec<u32> = words.iter().filter_map(|word| word.parse().ok()).collect();
    expected.sort_unstable_by(|a, b| b.cmp(a));
    if found == expected { Ok(()) } else { Err(format!("they are spread {found:?}")) }
}

fn put(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let (name, count) = (line.word(1)?, line.count(2)?);
    let here = |state: &NodeState| {
        let on = line.words.get(4).is_none_or(|node| name_of(state) == *node);
        let mut labels = line.options.iter();
        on && labels.all(|(name, value)| {
            state.labels.get(key(name)).is_some_and(|found| found.as_str() == value)
        })
    };
    let placements = case_plan.placements(name);
    check_count(
        placements.iter().filter(|(_, s, _)| here(s)).map(|(_, _, n)| n).sum(),
        count,
        "on these nodes",
    )
}

fn fargate(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let name = line.word(1)?;
    let rows = case_plan.plan.capacity.demand.iter().filter(|row| &*row.workload.name == name);
    let fargate_rows: Vec<_> = rows.filter_map(|row| row.fargate.as_ref()).collect();
    let run = fargate_rows.iter().filter(|fargate_rows| fargate_rows.size.is_some());
    check_count(run.map(|fargate_rows| fargate_rows.pods).sum(), line.count(2)?, "on Fargate")?;
    let Some((cpu, memory)) = line.words.get(3).zip(line.words.get(4)) else { return Ok(()) };
    let size =
        fargate_rows.iter().find_map(|fargate_rows| fargate_rows.size).ok_or("there is no size")?;
    let parse = |text: &String| text.parse::<Quantity>().map_err(|error| error.to_string());
    let found = (size.cpu_milli, size.memory_mib << 20);
    let wanted = (parse(cpu)?.ceil_milli(), parse(memory)?.ceil_units());
    if found == wanted { Ok(()) } else { Err(format!("each is {found:?}, not {wanted:?}")) }
}

fn resize(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let name = line.word(1)?;
    let mut rows = case_plan.plan.resource_changes.iter();
    let is_it =
        |row: &&ResourceChange| row.kind == ResourceKind::AutoscalingGroup && row.name == name;
    let row = rows.find(is_it).ok_or("it has no row")?;
    let size = |state: &Option<NodeState>| {
        state.as_ref().and_then(|state| state.group.as_ref()).map(|size| size.desired)
    };
    let found = (size(&row.change.before), size(&row.change.after));
    let wanted = (Some(line.count(2)?), Some(line.count(3)?));
    if found != wanted {
        return Err(format!("its size changes {found:?}"));
    }
    let mut explain = case_plan.plan.capacity.explain.iter();
    let explain = explain.find(|explain| explain.address == row.address);
    let reason = explain.and_then(|explain| serde_json::to_string(&explain.reason).ok());
    let reason = reason.unwrap_or_default();
    match line.reason() {
        Some(text) if !reason.contains(text) => Err(format!("the reason is {reason}")),
        _ => Ok(()),
    }
}

fn keep(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let name = line.word(1)?;
    let retained =
        case_plan.rows().find(|(_, what, state)| *what == "keep" && name_of(state) == name);
    let (row, _, _) = retained.ok_or("the node is not retained")?;
    let explain = case_plan.plan.capacity.explain.iter().find(|e| e.address == row.address);
    let reason = explain.and_then(|explain| serde_json::to_string(&explain.reason).ok());
    let reason = reason.unwrap_or_default();
    match line.reason() {
        Some(text) if !reason.contains(text) => Err(format!("the reason is {reason}")),
        _ => Ok(()),
    }
}

fn cost(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let (_, sum) = line.text.split_once("<= ").ok_or("write cost <= COUNT TYPE + …")?;
    let mut most = MicroUsd(0);
    for part in sum.split('+') {
        let (count, kind) = part.trim().split_once(' ').ok_or("write COUNT TYPE")?;
        let count: i64 = count.parse().map_err(|_| format!("`{count}` is not a count"))?;
        most += case_plan.price(kind)?.times(count);
    }
    let found = case_plan.plan.capacity.cost.hourly_after;
    if found <= most { Ok(()) } else { Err(format!("it costs {found}, above {most}")) }
}

fn problem(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let text = line.text.strip_prefix("problem ").unwrap_or_default();
    let mut said = case_plan.plan.capacity.diagnostics.iter();
    let said = said.any(|d| d.message.contains(text) || d.object.contains(text));
    if said { Ok(()) } else { Err("no diagnostic contains the text".to_owned()) }
}
