//! The names, each with its kind and what it says.

/// A family of metrics: one name, told apart by labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What may be done with it.
    pub kind: Kind,
    /// What it says, in one sentence.
    pub help: &'static str,
    /// The labels that tell its samples apart.
    pub labels: &'static [&'static str],
}

/// The kinds of family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What is now.
    Gauge,
    /// What only ever rises while the process lives.
    Counter,
    /// Durations, counted by how long they were.
    Histogram,
}

impl Kind {
    /// Returns the kind as the text format writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, help, labels }
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind: Kind::Counter, help, labels }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind: Kind::Histogram, help, labels }
}

/// Every family, in the order in which they are told.
pub const FAMILIES: &[Family] = &[
    gauge("fleetwright_build_info", &["version"], "The version that runs."),
    gauge("fleetwright_start_time_seconds", &[], "When the process began."),
    gauge("fleetwright_status_time_seconds", &[], "When the loop last stepped."),
    gauge("fleetwright_leader", &[], "Whether this replica may act."),
    gauge("fleetwright_lent", &[], "Whether an apply has the lease, so that no replica leads."),
    gauge("fleetwright_mode", &["mode"], "1 for what the loop may do."),
    gauge("fleetwright_suspended", &[], "Whether somebody keeps anything new from being begun."),
    gauge(
        "fleetwright_break_glass",
        &[],
        "Whether somebody has approval, windows and CI be passed over.",
    ),
    gauge("fleetwright_breaker_latched", &["breaker"], "1 for each breaker that latched."),
    gauge(
        "fleetwright_rival",
        &[],
        "Whether another autoscaler runs, so that the loop only plans.",
    ),
    gauge("fleetwright_kept_bytes", &[], "How long what survives a restart is."),
    gauge("fleetwright_kept_bytes_max", &[], "How long it may be."),
    gauge("fleetwright_kept_shed", &[], "Entries that were left out of it, so that it fits."),
    gauge("fleetwright_repository_info", &["commit"], "The commit that is served."),
    gauge("fleetwright_repository_waiting", &[], "Whether a newer commit is not served yet."),
    gauge("fleetwright_repository_problems", &[], "Errors among the problems of what is served."),
    gauge(
        "fleetwright_source_age_seconds",
        &["source"],
        "How long ago a source was last read well.",
    ),
    gauge("fleetwright_source_failures", &["source"], "Reads of a source that failed in a row."),
    gauge(
        "fleetwright_world_complete",
        &["source"],
        "Whether a source of the world was read whole.",
    ),
    gauge("fleetwright_nodes", &[], "Nodes of the cluster."),
    gauge("fleetwright_nodes_ready", &[], "Nodes that are Ready."),
    gauge("fleetwright_instances", &[], "Instances of ours that run or are about to."),
    gauge("fleetwright_pods", &[], "Pods that are neither finished nor on their way out."),
    gauge("fleetwright_pods_pending", &[], "Pods that wait for a node."),
    gauge("fleetwright_pods_pending_seconds", &[], "How long the first of them has waited."),
    gauge("fleetwright_plan_age_seconds", &[], "Since when the same plan is current."),
    gauge("fleetwright_plan_applyable", &[], "Whether the current plan may be carried out at all."),
    gauge("fleetwright_plan_errored", &[], "Whether the inputs of the current plan had errors."),
    gauge(
        "fleetwright_plan_changes",
        &["action"],
        "Rows of the current plan that change something.",
    ),
    gauge("fleetwright_plan_held", &["reason"], "Changes that are held back."),
    gauge("fleetwright_plan_pods", &["state"], "Planned pods, by whether they have a place."),
    gauge("fleetwright_hourly_usd", &["when"], "Price per hour before and after the current plan."),
    gauge(
        "fleetwright_lower_bound_hourly_usd",
        &[],
        "A price below that of every fleet for these pods.",
    ),
    gauge("fleetwright_plan_unpriced", &[], "Nodes of the current plan without a price."),
    gauge(
        "fleetwright_pool_nodes",
        &["pool", "when"],
        "Nodes of a pool before and after the plan.",
    ),
    gauge("fleetwright_pool_hourly_usd", &["pool", "when"], "Price per hour of a pool."),
    gauge("fleetwright_zone_nodes", &["zone", "when"], "Nodes of a zone."),
    gauge(
        "fleetwright_capacity_type_nodes",
        &["capacity_type", "when"],
        "Nodes by how they were bought.",
    ),
    gauge(
        "fleetwright_pool_allocatable",
        &["pool", "resource"],
        "What pods may use of a pool's nodes now.",
    ),
    gauge(
        "fleetwright_pool_requested",
        &["pool", "resource"],
        "What the pods there ask for, DaemonSets included.",
    ),
    gauge(
        "fleetwright_pool_daemons_requested",
        &["pool", "resource"],
        "What the pods of DaemonSets there ask for.",
    ),
    gauge(
        "fleetwright_pool_oldest_node_seconds",
        &["pool"],
        "How long ago the oldest node of a pool was launched.",
    ),
    gauge(
        "fleetwright_workload_unschedulable_pods",
        &["workload"],
        "Pods without a place, by workload; the 50 with most.",
    ),
    gauge("fleetwright_applying_changes", &[], "Changes that are carried out now."),
    gauge("fleetwright_applying_age_seconds", &[], "Since when the first of them is."),
    gauge("fleetwright_last_apply_time_seconds", &["verdict"], "When a plan last ended so."),
    gauge(
        "fleetwright_going",
        &["why", "phase"],
        "Machines that go because of something that nobody here decided.",
    ),
    gauge(
        "fleetwright_offerings_sold_out",
        &[],
        "Offerings that are left out, because there was no capacity.",
    ),
    gauge(
        "fleetwright_pool_quarantined",
        &["pool"],
        "1 for a pool that launches nothing for a while.",
    ),
    counter("fleetwright_reads_total", &["source", "result"], "Reads of a source."),
    counter("fleetwright_errors_total", &["source"], "Errors of what is outside."),
    counter("fleetwright_plans_total", &[], "Plans that were made."),
    counter(
        "fleetwright_plans_changed_total",
        &[],
        "Plans that decided something else than the one before.",
    ),
    counter("fleetwright_planning_seconds_total", &[], "Time spent on planning."),
    counter("fleetwright_reconciles_total", &["result"], "Plans by how they ended."),
    counter("fleetwright_applying_seconds_total", &[], "Time spent on carrying plans out."),
    counter("fleetwright_launches_total", &["result"], "Launches."),
    counter("fleetwright_terminations_total", &["reason"], "Machines that went, by reason."),
    counter("fleetwright_terminations_failed_total", &[], "Removals that did not come about."),
    counter("fleetwright_evictions_total", &["result"], "Pods that were asked to leave."),
    counter(
        "fleetwright_interruption_messages_total",
        &["kind"],
        "Messages about machines that go.",
    ),
    counter(
        "fleetwright_interruption_messages_acknowledged_total",
        &[],
        "Messages that were taken off the queue.",
    ),
    counter(
        "fleetwright_interruption_messages_deferred_total",
        &[],
        "Messages that were left to come again, because too many waited.",
    ),
    counter(
        "fleetwright_drains_given_up_total",
        &[],
        "Drains that did not end in time; the node takes pods again.",
    ),
    counter(
        "fleetwright_nodes_uncordoned_total",
        &[],
        "Nodes that were left cordoned by whoever died in a drain, and take pods again.",
    ),
    counter("fleetwright_nominations_total", &["result"], "Pods that were steered to their nodes."),
    counter("fleetwright_reactions_total", &[], "Bursts of pending pods that led to a launch."),
    counter(
        "fleetwright_reacting_seconds_total",
        &[],
        "From the first pod of a burst to the launch call.",
    ),
    counter("fleetwright_steps_total", &[], "Steps of the loop."),
    counter("fleetwright_stepping_seconds_total", &[], "Time that the steps took."),
    histogram(
        "fleetwright_step_duration_seconds",
        &[],
        "From an event of the loop to what is to be done.",
    ),
    histogram(
        "fleetwright_read_duration_seconds",
        &["source"],
        "From the beginning of a read of a source that went well to its end.",
    ),
    histogram(
        "fleetwright_plan_duration_seconds",
        &["scope"],
        "How long making a plan took: of all, or of what only adds.",
    ),
    histogram(
        "fleetwright_apply_duration_seconds",
        &["verdict"],
        "How long carrying a plan out took.",
    ),
    histogram(
        "fleetwright_reaction_duration_seconds",
        &[],
        "From the first pod of a burst to the launch call.",
    ),
    histogram(
        "fleetwright_pod_bound_duration_seconds",
        &[],
        "From the creation of a pod that waited for a node to a look that shows it on one.",
    ),
    histogram(
        "fleetwright_node_ready_duration_seconds",
        &["pool"],
        "From the launch of a machine to a look that shows its node Ready.",
    ),
    histogram(
        "fleetwright_drain_duration_seconds",
        &["reason"],
        "From the cordon of a node, or the first pod asked to leave, until its machine is told to end.",
    ),
    histogram(
        "fleetwright_termination_duration_seconds",
        &[],
        "From when a machine is told to end to a look that shows that it has.",
    ),
    histogram(
        "fleetwright_node_lifetime_duration_seconds",
        &["pool"],
        "From the launch of a machine to its end.",
    ),
    histogram(
        "fleetwright_interruption_message_age_seconds",
        &["kind"],
        "How old messages are when the loop hears them.",
    ),
    histogram(
        "fleetwright_cloud_duration_seconds",
        &["service", "method", "result"],
        "How long calls to AWS took, tries included.",
    ),
    counter("fleetwright_counted_total", &["what"], "Counts that have no name of their own yet."),
];
