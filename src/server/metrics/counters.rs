//! Counters of the controller as Prometheus metrics.

use std::collections::BTreeMap;

use super::text_format::{SampleValue, Samples};

/// Counters with a label in their name: prefix, metric and label.
const LABELED: [(&str, &str, &str); 6] = [
    ("reconciles.", "fleetwright_reconciles_total", "result"),
    ("launches.", "fleetwright_launches_total", "result"),
    ("evictions.", "fleetwright_evictions_total", "result"),
    ("nominations.", "fleetwright_nominations_total", "result"),
    ("errors.", "fleetwright_errors_total", "source"),
    ("messages.", "fleetwright_interruption_messages_total", "kind"),
];

/// Counters without labels: name, metric, and the number of units per exported unit.
const UNLABELED: [(&str, &str, u64); 13] = [
    ("plans.made", "fleetwright_plans_total", 1),
    ("plans.changed", "fleetwright_plans_changed_total", 1),
    ("plan_millis", "fleetwright_planning_seconds_total", 1_000),
    ("apply_millis", "fleetwright_applying_seconds_total", 1_000),
    ("terminations.failed", "fleetwright_terminations_failed_total", 1),
    ("messages.acknowledged", "fleetwright_interruption_messages_acknowledged_total", 1),
    ("messages.deferred", "fleetwright_interruption_messages_deferred_total", 1),
    ("drains.given_up", "fleetwright_drains_given_up_total", 1),
    ("nodes.uncordoned", "fleetwright_nodes_uncordoned_total", 1),
    ("steps", "fleetwright_steps_total", 1),
    ("step_micros", "fleetwright_step_seconds_total", 1_000_000),
    ("pending.reactions", "fleetwright_pending_pod_reactions_total", 1),
    ("pending.reaction_millis", "fleetwright_pending_pod_reaction_seconds_total", 1_000),
];

/// Adds all counters. A test ensures that every counter has a metric.
pub(super) fn add_counters(samples: &mut Samples, counters: &BTreeMap<String, u64>) {
    for (name, count) in counters {
        add_counter(samples, name, *count);
    }
}

fn add_counter(samples: &mut Samples, name: &str, count: u64) {
    if let Some((_, family, units)) = UNLABELED.iter().find(|(known, _, _)| *known == name) {
        let value =
            if *units == 1 { count.into() } else { SampleValue::from_fraction(count, *units) };
        return samples.add(family, &[], value);
    }
    if let Some((source, result)) = name.strip_prefix("reads.").and_then(|n| n.split_once('.')) {
        let labels = [("source", source), ("result", result)];
        return samples.add("fleetwright_reads_total", &labels, count);
    }
    if let Some(reason) = name.strip_prefix("terminations.") {
        return samples.add("fleetwright_terminations_total", &[("reason", reason)], count);
    }
    let labeled = LABELED
        .iter()
        .find_map(|(prefix, family, label)| Some((*family, *label, name.strip_prefix(prefix)?)));
    // A counter without a metric is not exported.
    if let Some((family, label, rest)) = labeled {
        samples.add(family, &[(label, rest)], count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::families::{FAMILIES, MetricKind};
    use super::*;

    #[test]
    fn every_counter_has_a_metric_family() {
        let labels = |family: &str| {
            let found = FAMILIES.iter().find(|one| one.name == family);
            let found = found.unwrap_or_else(|| panic!("{family} is not a metric family"));
            assert_eq!(found.kind, MetricKind::Counter, "{family}");
            found.labels
        };
        for (name, family, _) in UNLABELED {
            assert_eq!(labels(family), [""; 0], "{name}");
        }
        for (prefix, family, label) in LABELED {
            assert_eq!(labels(family), [label], "{prefix}");
        }
        let others = ["reads.git.done", "terminations.empty"];
        let unlabeled = UNLABELED.map(|(name, _, _)| name.to_owned());
        let labeled = LABELED.map(|(prefix, _, _)| format!("{prefix}x"));
        let names = others.map(str::to_owned).into_iter().chain(unlabeled).chain(labeled);
        let counters: BTreeMap<String, u64> = names.map(|name| (name, 1)).collect();
        let mut samples = Samples::default();
        add_counters(&mut samples, &counters);
        let text = samples.render();
        let exported = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(exported, counters.len(), "{text}");
    }
}
