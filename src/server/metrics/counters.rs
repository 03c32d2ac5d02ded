//! Counters of the controller as Prometheus metrics.

use super::text_format::{SampleLabel, Samples};
use crate::controller::{Counter, Counters};

/// Adds all counters.
pub(super) fn add_counters(samples: &mut Samples, counters: &Counters) {
    for (counter, count) in counters.iter() {
        let CounterMetric { family, labels } = counter_metric(counter);
        samples.add(family, &labels, count);
    }
}

/// The metric of a counter.
struct CounterMetric<'c> {
    family: &'static str,
    labels: Vec<SampleLabel<'c>>,
}

impl<'c> CounterMetric<'c> {
    fn unlabeled(family: &'static str) -> Self {
        Self { family, labels: Vec::new() }
    }

    fn labeled(family: &'static str, label: &'static str, value: &'c str) -> Self {
        Self { family, labels: vec![(label, value)] }
    }
}

/// Returns the metric of a counter. Every counter has one: the match is exhaustive.
fn counter_metric(counter: &Counter) -> CounterMetric<'_> {
    let reads = |source, result| CounterMetric {
        family: "fleetwright_reads_total",
        labels: vec![("source", source), ("result", result)],
    };
    let reconciles =
        |result| CounterMetric::labeled("fleetwright_reconciles_total", "result", result);
    let launches = |result| CounterMetric::labeled("fleetwright_launches_total", "result", result);
    let evictions =
        |result| CounterMetric::labeled("fleetwright_evictions_total", "result", result);
    let nominations =
        |result| CounterMetric::labeled("fleetwright_nominations_total", "result", result);
    match counter {
        Counter::RepositoryReadsDone => reads("repository", "done"),
        Counter::RepositoryReadsFailed => reads("repository", "failed"),
        Counter::RepositoryReadsRefMissing => reads("repository", "ref_missing"),
        Counter::ClusterReadsDone => reads("cluster", "done"),
        Counter::ClusterReadsPartial => reads("cluster", "partial"),
        Counter::ClusterReadsNoManagedNodes => reads("cluster", "no_managed_nodes"),
        Counter::PlansMade => CounterMetric::unlabeled("fleetwright_plans_total"),
        Counter::PlansChanged => CounterMetric::unlabeled("fleetwright_plans_changed_total"),
        Counter::ReconcilesNoChanges => reconciles("no_changes"),
        Counter::ReconcilesBlocked => reconciles("blocked"),
        Counter::ReconcilesApplied => reconciles("applied"),
        Counter::ReconcilesPartlyApplied => reconciles("partly"),
        Counter::ReconcilesRefused => reconciles("refused"),
        Counter::ReconcilesInterrupted => reconciles("interrupted"),
        Counter::LaunchesRequested => launches("requested"),
        Counter::LaunchesDone => launches("done"),
        Counter::LaunchesFailed => launches("failed"),
        Counter::LaunchesInsufficientCapacity => launches("insufficient_capacity"),
        Counter::TerminationsFailed => {
            CounterMetric::unlabeled("fleetwright_terminations_failed_total")
        }
        Counter::EvictionsDone => evictions("done"),
        Counter::EvictionsForced => evictions("forced"),
        Counter::EvictionsBlocked => evictions("blocked"),
        Counter::MessagesAcknowledged => {
            CounterMetric::unlabeled("fleetwright_interruption_messages_acknowledged_total")
        }
        Counter::MessagesDeferred => {
            CounterMetric::unlabeled("fleetwright_interruption_messages_deferred_total")
        }
        Counter::DrainsAbandoned => CounterMetric::unlabeled("fleetwright_drains_abandoned_total"),
        Counter::NodesUncordoned => CounterMetric::unlabeled("fleetwright_nodes_uncordoned_total"),
        Counter::NodesOpened => CounterMetric::unlabeled("fleetwright_nodes_opened_total"),
        Counter::NominationsMade => nominations("made"),
        Counter::NominationsRefused => nominations("refused"),
        Counter::NominationsHonored => nominations("honored"),
        Counter::NominationsDropped => nominations("dropped"),
        Counter::Terminations(reason) => {
            CounterMetric::labeled("fleetwright_terminations_total", "reason", reason)
        }
        Counter::Messages(kind) => {
            CounterMetric::labeled("fleetwright_interruption_messages_total", "kind", kind)
        }
        Counter::Errors(source) => {
            CounterMetric::labeled("fleetwright_errors_total", "source", source)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::families::{FAMILIES, MetricKind};
    use super::*;

    /// Counters of every kind.
    fn all() -> Vec<Counter> {
        let mut all = Counter::FIXED.to_vec();
        all.push(Counter::Terminations("empty".to_owned()));
        all.push(Counter::Messages("spot-interruption"));
        all.push(Counter::Errors("ec2".to_owned()));
        all
    }

    #[test]
    fn counters_use_families_of_counters_with_their_labels() {
        let mut used = BTreeSet::new();
        for counter in &all() {
            let CounterMetric { family, labels } = counter_metric(counter);
            let found = FAMILIES.iter().find(|one| one.name == family);
            let found = found.unwrap_or_else(|| panic!("{family} is not a metric family"));
            let names: Vec<_> = labels.iter().map(|(name, _)| *name).collect();
            assert_eq!((found.kind, found.labels), (MetricKind::Counter, &names[..]), "{family}");
            used.insert(family);
        }
        let counters = FAMILIES.iter().filter(|family| family.kind == MetricKind::Counter);
        let counters: BTreeSet<_> = counters.map(|family| family.name).collect();
        assert_eq!(used, counters, "every family has a counter");
    }

    #[test]
    fn label_values_are_the_words_of_the_counter_name() {
        let mut known = BTreeSet::new();
        for counter in &all() {
            let CounterMetric { family, labels } = counter_metric(counter);
            let values: Vec<_> = labels.iter().map(|(_, value)| *value).collect();
            let name = counter.name();
            assert!(name.ends_with(&values.join(".")), "{name} has the labels {values:?}");
            assert!(known.insert((family, values.join("."))), "{name} shares its metric");
        }
    }
}
