//! What the loop counts, under the names that Prometheus keeps.

use std::collections::BTreeMap;

use super::samples::{Samples, Value};

/// Counters whose name ends in what they tell apart: prefix, family and label.
const SPLIT: [(&str, &str, &str); 6] = [
    ("reconciles.", "fleetwright_reconciles_total", "result"),
    ("launches.", "fleetwright_launches_total", "result"),
    ("evictions.", "fleetwright_evictions_total", "result"),
    ("nominations.", "fleetwright_nominations_total", "result"),
    ("errors.", "fleetwright_errors_total", "source"),
    ("messages.", "fleetwright_interruption_messages_total", "kind"),
];

/// Counters as they are: name, family, and the part of a whole that one of them is.
const WHOLE: [(&str, &str, u64); 13] = [
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
    ("step_micros", "fleetwright_stepping_seconds_total", 1_000_000),
    ("pending.reactions", "fleetwright_reactions_total", 1),
    ("pending.reaction_millis", "fleetwright_reacting_seconds_total", 1_000),
];

/// Adds every counter; one that has no name here is kept under its own.
pub(super) fn all(samples: &mut Samples, counters: &BTreeMap<String, u64>) {
    for (name, count) in counters {
        one(samples, name, *count);
    }
}

fn one(samples: &mut Samples, name: &str, count: u64) {
    if let Some((_, family, part)) = WHOLE.iter().find(|(known, _, _)| *known == name) {
        let value = if *part == 1 { count.into() } else { Value::parts(count, *part) };
        return samples.add(family, &[], value);
    }
    if let Some((source, result)) = name.strip_prefix("reads.").and_then(|n| n.split_once('.')) {
        let labels = [("source", source), ("result", result)];
        return samples.add("fleetwright_reads_total", &labels, count);
    }
    if let Some(reason) = name.strip_prefix("terminations.") {
        return samples.add("fleetwright_terminations_total", &[("reason", reason)], count);
    }
    let split = SPLIT
        .iter()
        .find_map(|(prefix, family, label)| Some((*family, *label, name.strip_prefix(prefix)?)));
    match split {
        Some((family, label, rest)) => samples.add(family, &[(label, rest)], count),
        None => samples.add("fleetwright_counted_total", &[("what", name)], count),
    }
}

#[cfg(test)]
mod tests {
    use super::super::families::{FAMILIES, Kind};
    use super::*;

    #[test]
    fn every_name_that_a_counter_may_have_is_one_of_a_family() {
        let labels = |family: &str| {
            let found = FAMILIES.iter().find(|one| one.name == family);
            let found = found.unwrap_or_else(|| panic!("{family} is no family"));
            assert_eq!(found.kind, Kind::Counter, "{family}");
            found.labels
        };
        for (name, family, _) in WHOLE {
            assert_eq!(labels(family), [""; 0], "{name}");
        }
        for (prefix, family, label) in SPLIT {
            assert_eq!(labels(family), [label], "{prefix}");
        }
        let others = ["reads.git.done", "terminations.empty", "what has no name"];
        let whole = WHOLE.map(|(name, _, _)| name.to_owned());
        let split = SPLIT.map(|(prefix, _, _)| format!("{prefix}x"));
        let names = others.map(str::to_owned).into_iter().chain(whole).chain(split);
        let counters: BTreeMap<String, u64> = names.map(|name| (name, 1)).collect();
        let mut samples = Samples::default();
        all(&mut samples, &counters);
        let text = samples.text();
        let told = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(told, counters.len(), "{text}");
    }
}
