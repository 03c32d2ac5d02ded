//! Gauges of the controller, its sources, its work and the plan.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::text_format::{SampleValue, Samples};
use crate::apply::ApplyStatus;
use crate::controller::{PublishedPlan, SourceState, Status};
use crate::model::observed::Completeness;
use crate::plan::Plan;
use crate::plan::wire::{Action, Amount, CostRow, NodeState, ResourceKind, workload_key};

/// Maximum number of workloads with their own series of unschedulable pods.
const UNSCHEDULABLE_WORKLOADS_MAX: usize = 50;

/// Adds the state of the controller.
pub(super) fn controller(samples: &mut Samples, status: &Status) {
    samples.add("fleetwright_build_info", &[("version", &status.version)], true);
    samples.add("fleetwright_start_time_seconds", &[], status.started_at);
    samples.add("fleetwright_status_time_seconds", &[], status.now);
    samples.add("fleetwright_leader", &[], status.is_leader);
    samples.add("fleetwright_lease_held_by_apply", &[], status.is_lease_held_by_apply);
    samples.add("fleetwright_mode", &[("mode", status.mode.as_str())], true);
    samples.add("fleetwright_suspended", &[], status.suspended.is_some());
    samples.add("fleetwright_break_glass", &[], status.break_glass.is_some());
    samples.add("fleetwright_competing_autoscaler", &[], status.competing_autoscaler.is_some());
    if status.persisted_state.max_bytes > 0 {
        samples.add("fleetwright_persisted_state_bytes", &[], status.persisted_state.bytes);
        samples.add("fleetwright_persisted_state_bytes_max", &[], status.persisted_state.max_bytes);
        samples.add(
            "fleetwright_persisted_state_dropped_entries",
            &[],
            status.persisted_state.dropped_entries,
        );
    }
    for breaker in &status.breakers {
        samples.add("fleetwright_breaker_latched", &[("breaker", &breaker.name)], true);
    }
}

/// Adds the state of repository and cluster.
pub(super) fn sources(samples: &mut Samples, status: &Status) {
    let repository = &status.repository;
    if let Some(commit) = &repository.commit {
        samples.add("fleetwright_repository_info", &[("commit", commit)], true);
    }
    samples.add("fleetwright_repository_commit_pending", &[], repository.waiting.is_some());
    samples.add("fleetwright_repository_errors", &[], repository.problems);
    source(samples, status, "repository", &repository.reads);
    let Some(world) = &status.world else { return };
    source(samples, status, "cluster", &world.reads);
    for (name, completeness) in &world.sources {
        let is_complete = *completeness == Completeness::Complete;
        samples.add("fleetwright_observation_complete", &[("source", name)], is_complete);
    }
    samples.add("fleetwright_nodes", &[], world.nodes);
    samples.add("fleetwright_nodes_ready", &[], world.ready);
    samples.add("fleetwright_instances", &[], world.instances);
    samples.add("fleetwright_pods", &[], world.pods);
    samples.add("fleetwright_pods_pending", &[], world.pending);
    let pending_for = world.pending_for.unwrap_or(SignedDuration::ZERO);
    samples.add("fleetwright_pods_pending_seconds", &[], pending_for);
}

fn source(samples: &mut Samples, status: &Status, name: &str, reads: &SourceState) {
    if let Some(read_at) = reads.read_at {
        let age = status.now.duration_since(read_at);
        samples.add("fleetwright_source_age_seconds", &[("source", name)], age);
    }
    samples.add("fleetwright_source_failures", &[("source", name)], reads.failures);
}

/// Adds work in progress and its history.
pub(super) fn activity(samples: &mut Samples, status: &Status) {
    let changes: usize = status.in_progress.values().map(|(rows, _)| rows.len()).sum();
    samples.add("fleetwright_apply_changes_in_progress", &[], changes);
    let began = status.in_progress.values().map(|(_, since)| *since).min();
    let age = began.map_or(SignedDuration::ZERO, |since| status.now.duration_since(since));
    samples.add("fleetwright_apply_in_progress_seconds", &[], age);
    let mut ended = BTreeMap::new();
    for apply in &status.history {
        let verdict = match apply.receipt.as_ref().map(|receipt| receipt.verdict) {
            None => "refused",
            Some(ApplyStatus::Applied) => "applied",
            Some(ApplyStatus::Partly) => "partly",
            Some(ApplyStatus::Interrupted) => "interrupted",
        };
        let last = ended.entry(verdict).or_insert(apply.ended_at);
        *last = apply.ended_at.max(*last);
    }
    for (verdict, at) in ended {
        samples.add("fleetwright_last_apply_time_seconds", &[("verdict", verdict)], at);
    }
    let mut terminating: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for instance in &status.interrupted {
        *terminating
            .entry((&instance.reason, crate::controller::labels::phase(instance.phase)))
            .or_insert(0) += 1;
    }
    for ((reason, phase), instances) in terminating {
        let labels = [("reason", reason), ("phase", phase)];
        samples.add("fleetwright_instances_interrupted", &labels, instances);
    }
    samples.add("fleetwright_offerings_unavailable", &[], status.unavailable_offerings.len());
    for pool in status.quarantined.keys() {
        samples.add("fleetwright_pool_quarantined", &[("pool", pool.as_str())], true);
    }
}

/// Adds the current plan.
pub(super) fn plan(samples: &mut Samples, status: &Status, current: &PublishedPlan) {
    let plan = &*current.plan;
    let age = status.now.duration_since(current.since);
    samples.add("fleetwright_plan_age_seconds", &[], age);
    samples.add("fleetwright_plan_applyable", &[], plan.applyable);
    samples.add("fleetwright_plan_errored", &[], plan.errored);
    for (action, rows) in change_counts(plan) {
        samples.add("fleetwright_plan_changes", &[("action", action)], rows);
    }
    let mut blocked: BTreeMap<String, u32> = BTreeMap::new();
    for block in current.blocked.values() {
        *blocked.entry(crate::controller::labels::blocked_reason(&block.reason)).or_insert(0) += 1;
    }
    for (reason, rows) in blocked {
        samples.add("fleetwright_plan_blocked", &[("reason", &reason)], rows);
    }
    pods(samples, plan);
    prices(samples, plan);
    pool_resources(samples, plan);
    node_ages(samples, status, plan);
}

/// Adds the age of the oldest node of each pool.
fn node_ages(samples: &mut Samples, status: &Status, plan: &Plan) {
    let before = plan.resource_changes.iter().filter_map(|row| row.change.before.as_ref());
    let mut oldest: BTreeMap<&str, Timestamp> = BTreeMap::new();
    for (state, at) in before.filter_map(|state| Some((state, state.launched_at?))) {
        let first = oldest.entry(pool_of(state)).or_insert(at);
        *first = at.min(*first);
    }
    for (pool, at) in oldest {
        let age = status.now.duration_since(at);
        samples.add("fleetwright_pool_oldest_node_seconds", &[("pool", pool)], age);
    }
}

/// Returns the number of rows per action. Zero counts are included, so that a series falls to zero.
fn change_counts(plan: &Plan) -> [(&'static str, u32); 4] {
    let mut counts = [("launch", 0), ("replace", 0), ("terminate", 0), ("update", 0)];
    for row in &plan.resource_changes {
        let does = |action| row.change.actions.contains(&action);
        let at = match (does(Action::Create), does(Action::Delete), does(Action::Update)) {
            (true, true, _) => 1,
            (true, false, _) => 0,
            (false, true, _) => 2,
            (false, false, true) => 3,
            (false, false, false) => continue,
        };
        counts[at].1 += 1;
    }
    counts
}

fn pods(samples: &mut Samples, plan: &Plan) {
    let totals = &plan.capacity.pods;
    for (state, pods) in [
        ("placed", totals.placed),
        ("unschedulable", totals.unschedulable),
        ("served-by-cluster-autoscaler", totals.served_by_cluster_autoscaler),
        ("fargate", totals.fargate),
    ] {
        samples.add("fleetwright_plan_pods", &[("state", state)], pods);
    }
    samples.add("fleetwright_plan_pods_moved", &[], totals.moved);
    samples.add("fleetwright_plan_unresolved_workloads", &[], totals.unresolved);
    let mut without: BTreeMap<String, u32> = BTreeMap::new();
    for row in &plan.capacity.unschedulable {
        *without.entry(workload_key(&row.workload)).or_insert(0) += row.pods;
    }
    let mut without: Vec<(String, u32)> = without.into_iter().collect();
    without.sort_by_key(|(name, pods)| (std::cmp::Reverse(*pods), name.clone()));
    for (name, pods) in without.into_iter().take(UNSCHEDULABLE_WORKLOADS_MAX) {
        samples.add("fleetwright_workload_unschedulable_pods", &[("workload", &name)], pods);
    }
}

fn prices(samples: &mut Samples, plan: &Plan) {
    let cost = &plan.capacity.cost;
    samples.add("fleetwright_fleet_hourly_cost_usd", &[("when", "before")], cost.hourly_before);
    samples.add("fleetwright_fleet_hourly_cost_usd", &[("when", "after")], cost.hourly_after);
    samples.add("fleetwright_lower_bound_hourly_usd", &[], cost.lower_bound_hourly);
    samples.add("fleetwright_plan_unpriced", &[], cost.unpriced);
    let parts = &cost.breakdown;
    let mut nodes = |family, label, rows: &[CostRow]| {
        for row in rows {
            for (when, nodes) in [("before", row.nodes_before), ("after", row.nodes_after)] {
                samples.add(family, &[(label, &row.name), ("when", when)], nodes);
            }
        }
    };
    nodes("fleetwright_pool_nodes", "pool", &parts.by_pool);
    nodes("fleetwright_zone_nodes", "zone", &parts.by_zone);
    nodes("fleetwright_capacity_type_nodes", "capacity_type", &parts.by_capacity_type);
    for row in &parts.by_pool {
        for (when, price) in [("before", row.hourly_before), ("after", row.hourly_after)] {
            let labels = [("pool", row.name.as_str()), ("when", when)];
            samples.add("fleetwright_pool_hourly_usd", &labels, price);
        }
    }
}

/// Adds allocatable and requested resources per pool.
fn pool_resources(samples: &mut Samples, plan: &Plan) {
    let requests: BTreeMap<String, &Amount> = plan
        .capacity
        .demand
        .iter()
        .map(|row| (workload_key(&row.workload), &row.requests))
        .collect();
    let explain: BTreeMap<_, _> =
        plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
    let mut pools: BTreeMap<&str, [PoolAmounts; 3]> = BTreeMap::new();
    for row in &plan.resource_changes {
        let Some(before) = row.change.before.as_ref() else { continue };
        if row.kind == ResourceKind::AutoscalingGroup {
            continue;
        }
        let pool = pools.entry(pool_of(before)).or_default();
        pool[0].add(&before.allocatable, 1);
        let Some(explain) = explain.get(&row.address) else { continue };
        pool[1].add(&explain.daemons, 1);
        pool[2].add(&explain.daemons, 1);
        for (name, pods) in &explain.pods_before {
            if let Some(request) = requests.get(name.as_str()) {
                pool[1].add(request, i64::from(*pods));
            }
        }
    }
    for (pool, sums) in pools {
        let families = [
            "fleetwright_pool_allocatable",
            "fleetwright_pool_requested",
            "fleetwright_pool_daemonset_requested",
        ];
        for (family, sum) in families.into_iter().zip(sums) {
            let PoolAmounts { cpu_milli, memory_bytes } = sum;
            let cores = SampleValue::from_fraction(u64::try_from(cpu_milli).unwrap_or(0), 1_000);
            samples.add(family, &[("pool", pool), ("resource", "cpu_cores")], cores);
            samples.add(family, &[("pool", pool), ("resource", "memory_bytes")], memory_bytes);
        }
    }
}

fn pool_of(state: &NodeState) -> &str {
    state.pool.as_ref().map_or("", crate::model::ids::PoolName::as_str)
}

/// Sums over the nodes of a pool.
#[derive(Default)]
struct PoolAmounts {
    cpu_milli: i64,
    memory_bytes: i64,
}

impl PoolAmounts {
    fn add(&mut self, amount: &Amount, times: i64) {
        let Self { cpu_milli, memory_bytes } = self;
        *cpu_milli = cpu_milli.saturating_add(amount.cpu_milli.saturating_mul(times));
        *memory_bytes = memory_bytes.saturating_add(amount.memory_bytes.saturating_mul(times));
    }
}
