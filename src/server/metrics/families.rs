//! Metric names, types, labels and help texts.

/// A metric family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricFamily {
    /// Name.
    pub name: &'static str,
    /// Type.
    pub kind: MetricKind,
    /// Help text.
    pub help: &'static str,
    /// Label names.
    pub labels: &'static [&'static str],
}

/// Metric types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A current value.
    Gauge,
    /// A value that never decreases while the process lives.
    Counter,
    /// Durations in buckets.
    Histogram,
}

impl MetricKind {
    /// Returns the type as the text format spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

const fn gauge(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> MetricFamily {
    MetricFamily { name, kind: MetricKind::Gauge, help, labels }
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> MetricFamily {
    MetricFamily { name, kind: MetricKind::Counter, help, labels }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> MetricFamily {
    MetricFamily { name, kind: MetricKind::Histogram, help, labels }
}

/// All metric families, in output order.
pub const FAMILIES: &[MetricFamily] = &[
    gauge(
        "fleetwright_build_info",
        &["version"],
        "Version of the controller, as a label. The value is 1.",
    ),
    gauge(
        "fleetwright_start_time_seconds",
        &[],
        "Start time of the process, in seconds since the Unix epoch.",
    ),
    gauge(
        "fleetwright_status_time_seconds",
        &[],
        "Time of the last controller step, in seconds since the Unix epoch.",
    ),
    gauge("fleetwright_leader", &[], "1 if this replica is the leader."),
    gauge(
        "fleetwright_lease_held_by_apply",
        &[],
        "1 while an apply holds the lease, so that no replica is the leader.",
    ),
    gauge(
        "fleetwright_mode",
        &["mode"],
        "Effective mode of the controller, as a label. The value is 1.",
    ),
    gauge("fleetwright_suspended", &[], "1 while an operator has suspended the controller."),
    gauge(
        "fleetwright_break_glass",
        &[],
        "1 while break-glass is active (approvals, windows and CI are bypassed).",
    ),
    gauge("fleetwright_breaker_latched", &["breaker"], "1 for each latched breaker."),
    gauge(
        "fleetwright_competing_autoscaler",
        &[],
        "1 while a competing autoscaler runs, so that the controller only plans.",
    ),
    gauge(
        "fleetwright_persisted_state_bytes",
        &[],
        "Size of the persisted controller state in bytes.",
    ),
    gauge(
        "fleetwright_persisted_state_bytes_max",
        &[],
        "Maximum size of the persisted controller state in bytes.",
    ),
    gauge(
        "fleetwright_persisted_state_dropped_entries",
        &[],
        "Entries that were dropped or shortened to fit the persisted controller state.",
    ),
    gauge("fleetwright_repository_info", &["commit"], "Served commit, as a label. The value is 1."),
    gauge(
        "fleetwright_repository_commit_pending",
        &[],
        "1 while a newer commit is not served yet.",
    ),
    gauge("fleetwright_repository_errors", &[], "Errors in the served commit."),
    gauge(
        "fleetwright_source_age_seconds",
        &["source"],
        "Time since the last successful read of a source, in seconds.",
    ),
    gauge("fleetwright_source_failures", &["source"], "Consecutive failed reads of a source."),
    gauge(
        "fleetwright_observation_complete",
        &["source"],
        "1 if the last observation of a source is complete.",
    ),
    gauge("fleetwright_nodes", &[], "Nodes of the cluster."),
    gauge("fleetwright_nodes_ready", &[], "Ready nodes of the cluster."),
    gauge("fleetwright_instances", &[], "Owned instances that run or start."),
    gauge("fleetwright_pods", &[], "Pods that are neither finished nor being deleted."),
    gauge("fleetwright_pods_pending", &[], "Pending pods."),
    gauge(
        "fleetwright_pods_pending_seconds",
        &[],
        "Waiting time of the oldest pending pod, in seconds.",
    ),
    gauge(
        "fleetwright_plan_age_seconds",
        &[],
        "Time since the current plan last changed, in seconds.",
    ),
    gauge("fleetwright_plan_applyable", &[], "1 if the current plan may be applied."),
    gauge("fleetwright_plan_errored", &[], "1 if the inputs of the current plan had errors."),
    gauge("fleetwright_plan_changes", &["action"], "Changed rows of the current plan, by action."),
    gauge(
        "fleetwright_plan_blocked",
        &["reason"],
        "Blocked changes of the current plan, by reason.",
    ),
    gauge("fleetwright_plan_pods", &["state"], "Pods of the current plan, by scheduling state."),
    gauge(
        "fleetwright_plan_pods_moved",
        &[],
        "Running pods that removals of the current plan move.",
    ),
    gauge(
        "fleetwright_plan_unresolved_workloads",
        &[],
        "Workloads of unknown size in the current plan.",
    ),
    gauge(
        "fleetwright_fleet_hourly_cost_usd",
        &["when"],
        "Price per hour before and after the current plan, in US dollars.",
    ),
    gauge(
        "fleetwright_lower_bound_hourly_usd",
        &[],
        "Lower bound of the price per hour of any fleet for these pods, in US dollars.",
    ),
    gauge("fleetwright_plan_unpriced", &[], "Nodes of the current plan without a price."),
    gauge(
        "fleetwright_pool_nodes",
        &["pool", "when"],
        "Nodes of a pool before and after the current plan.",
    ),
    gauge(
        "fleetwright_pool_hourly_usd",
        &["pool", "when"],
        "Price per hour of a pool before and after the current plan, in US dollars.",
    ),
    gauge(
        "fleetwright_zone_nodes",
        &["zone", "when"],
        "Nodes of a zone before and after the current plan.",
    ),
    gauge(
        "fleetwright_capacity_type_nodes",
        &["capacity_type", "when"],
        "Nodes by capacity type before and after the current plan.",
    ),
    gauge(
        "fleetwright_pool_allocatable",
        &["pool", "resource"],
        "Allocatable resources of a pool's nodes now.",
    ),
    gauge(
        "fleetwright_pool_requested",
        &["pool", "resource"],
        "Requests of the pods on a pool's nodes, DaemonSets included.",
    ),
    gauge(
        "fleetwright_pool_daemonset_requested",
        &["pool", "resource"],
        "Requests of the DaemonSet pods on a pool's nodes.",
    ),
    gauge(
        "fleetwright_pool_oldest_node_seconds",
        &["pool"],
        "Age of the oldest node of a pool, in seconds.",
    ),
    gauge(
        "fleetwright_workload_unschedulable_pods",
        &["workload"],
        "Unschedulable pods of the 50 workloads with most of them.",
    ),
    gauge("fleetwright_apply_changes_in_progress", &[], "Changes in progress."),
    gauge(
        "fleetwright_apply_in_progress_seconds",
        &[],
        "Time since the oldest apply in progress started, in seconds.",
    ),
    gauge(
        "fleetwright_last_apply_time_seconds",
        &["verdict"],
        "Time of the last apply with this verdict, in seconds since the Unix epoch.",
    ),
    gauge(
        "fleetwright_instances_interrupted",
        &["reason", "phase"],
        "Interrupted instances (interruption, retirement, failure) that are being replaced, drained or terminated.",
    ),
    gauge(
        "fleetwright_offerings_unavailable",
        &[],
        "Offerings excluded for insufficient capacity.",
    ),
    gauge(
        "fleetwright_pool_quarantined",
        &["pool"],
        "1 for each quarantined pool, which launches nothing for a while.",
    ),
    counter("fleetwright_reads_total", &["source", "result"], "Reads of a source, by result."),
    counter("fleetwright_errors_total", &["source"], "Errors of external systems."),
    counter("fleetwright_plans_total", &[], "Plans made."),
    counter(
        "fleetwright_plans_changed_total",
        &[],
        "Plans with other decisions than the previous plan.",
    ),
    counter("fleetwright_reconciles_total", &["result"], "Reconciliations, by result."),
    counter("fleetwright_launches_total", &["result"], "Launches, by result."),
    counter("fleetwright_terminations_total", &["reason"], "Terminated instances, by reason."),
    counter(
        "fleetwright_terminations_failed_total",
        &[],
        "Instances that could not be terminated.",
    ),
    counter("fleetwright_evictions_total", &["result"], "Evictions, by result."),
    counter(
        "fleetwright_interruption_messages_total",
        &["kind"],
        "Received interruption messages, by kind.",
    ),
    counter(
        "fleetwright_interruption_messages_acknowledged_total",
        &[],
        "Interruption messages deleted from the queue.",
    ),
    counter(
        "fleetwright_interruption_messages_deferred_total",
        &[],
        "Interruption messages left in the queue because too many were pending.",
    ),
    counter(
        "fleetwright_drains_abandoned_total",
        &[],
        "Drains that did not finish in time; their nodes are schedulable again.",
    ),
    counter(
        "fleetwright_nodes_uncordoned_total",
        &[],
        "Nodes that an abandoned drain left cordoned and that were uncordoned.",
    ),
    counter("fleetwright_nodes_opened_total", &[], "Launched nodes that were opened for pods."),
    counter(
        "fleetwright_nominations_total",
        &["result"],
        "Nominations of pods to nodes, by result.",
    ),
    histogram(
        "fleetwright_step_duration_seconds",
        &[],
        "Time from an event to its effects, in seconds.",
    ),
    histogram(
        "fleetwright_read_duration_seconds",
        &["source"],
        "Duration of successful reads of a source, in seconds.",
    ),
    histogram(
        "fleetwright_plan_duration_seconds",
        &["scope"],
        "Planning time of full (all) and additive plans, in seconds.",
    ),
    histogram(
        "fleetwright_apply_duration_seconds",
        &["verdict"],
        "Duration of applies, in seconds.",
    ),
    histogram(
        "fleetwright_pending_pod_reaction_seconds",
        &[],
        "Time from the first pending pod of a burst to the launch call, in seconds.",
    ),
    histogram(
        "fleetwright_pod_bound_duration_seconds",
        &[],
        "Time from the creation of an observed pending pod to its observation on a node, in seconds.",
    ),
    histogram(
        "fleetwright_node_ready_duration_seconds",
        &["pool"],
        "Time from the launch of an instance to the observation of its Ready node, in seconds.",
    ),
    histogram(
        "fleetwright_drain_duration_seconds",
        &["reason"],
        "Time from the cordon of a node or its first eviction to the terminate call, in seconds.",
    ),
    histogram(
        "fleetwright_termination_duration_seconds",
        &[],
        "Time from the terminate call to the observed end of an instance, in seconds.",
    ),
    histogram(
        "fleetwright_node_lifetime_duration_seconds",
        &["pool"],
        "Time from the launch of an instance to its end, in seconds.",
    ),
    histogram(
        "fleetwright_interruption_message_age_seconds",
        &["kind"],
        "Age of interruption messages when they are received, in seconds.",
    ),
    histogram(
        "fleetwright_aws_call_duration_seconds",
        &["service", "method", "result"],
        "Duration of AWS calls including retries, in seconds.",
    ),
];
