//! Durations of the controller as Prometheus histograms.

use super::text_format::{SampleLabel, Samples};
use crate::telemetry::histogram::Histograms;

/// Histograms: name prefix, metric, and labels. The rest of the name has one label value per dot;
/// the last label takes the remainder.
const HISTOGRAMS: [(&str, &str, &[&str]); 12] = [
    ("step", "fleetwright_step_duration_seconds", &[]),
    ("read.", "fleetwright_read_duration_seconds", &["source"]),
    ("plan.", "fleetwright_plan_duration_seconds", &["scope"]),
    ("apply.", "fleetwright_apply_duration_seconds", &["verdict"]),
    ("reaction", "fleetwright_pending_pod_reaction_seconds", &[]),
    ("bound", "fleetwright_pod_bound_duration_seconds", &[]),
    ("ready.", "fleetwright_node_ready_duration_seconds", &["pool"]),
    ("drain.", "fleetwright_drain_duration_seconds", &["reason"]),
    ("termination", "fleetwright_termination_duration_seconds", &[]),
    ("lifetime.", "fleetwright_node_lifetime_duration_seconds", &["pool"]),
    ("message.", "fleetwright_interruption_message_age_seconds", &["kind"]),
    ("cloud.", "fleetwright_aws_call_duration_seconds", &["service", "method", "result"]),
];

/// Adds all histograms that have a metric.
pub(super) fn add_histograms(samples: &mut Samples, measured: &Histograms) {
    for (name, histogram) in measured.iter() {
        let found = HISTOGRAMS.iter().find_map(|(prefix, family, labels)| {
            let rest = name.strip_prefix(prefix)?;
            // A name without labels must match completely.
            (!labels.is_empty() || rest.is_empty()).then_some((*family, *labels, rest))
        });
        let Some((family, labels, rest)) = found else { continue };
        let values = rest.splitn(labels.len().max(1), '.');
        let labels: Vec<SampleLabel<'_>> = labels.iter().copied().zip(values).collect();
        samples.add_histogram(family, &labels, histogram);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::families::{FAMILIES, MetricKind};
    use super::*;

    #[test]
    fn every_histogram_has_a_metric_family() {
        let mut measured = Histograms::default();
        for (prefix, family, labels) in HISTOGRAMS {
            let found = FAMILIES.iter().find(|one| one.name == family);
            let found = found.unwrap_or_else(|| panic!("{family} is no family"));
            assert_eq!((found.kind, found.labels), (MetricKind::Histogram, labels), "{family}");
            let values: Vec<&str> = labels.iter().map(|_| "x").collect();
            measured.note(&format!("{prefix}{}", values.join(".")), Duration::from_secs(1));
        }
        let mut samples = Samples::default();
        add_histograms(&mut samples, &measured);
        let text = samples.render();
        for (_, family, _) in HISTOGRAMS {
            assert!(text.contains(&format!("# TYPE {family} histogram\n")), "{family}");
        }
        let all = FAMILIES.iter().filter(|family| family.kind == MetricKind::Histogram).count();
        assert_eq!(all, HISTOGRAMS.len(), "every histogram family has a source");
    }

    #[test]
    fn histogram_uses_cumulative_buckets() {
        let mut measured = Histograms::default();
        measured.note("ready.a.b", Duration::from_millis(7));
        measured.note("ready.a.b", Duration::from_secs(90));
        measured.note("ready.a.b", Duration::from_hours(2));
        let mut samples = Samples::default();
        add_histograms(&mut samples, &measured);
        let text = samples.render();
        let name = "fleetwright_node_ready_duration_seconds";
        for (labels, value) in [
            ("_bucket{pool=\"a.b\",le=\"0.005\"}", "0"),
            ("_bucket{pool=\"a.b\",le=\"0.010\"}", "1"),
            ("_bucket{pool=\"a.b\",le=\"60.000\"}", "1"),
            ("_bucket{pool=\"a.b\",le=\"120.000\"}", "2"),
            ("_bucket{pool=\"a.b\",le=\"3600.000\"}", "2"),
            ("_bucket{pool=\"a.b\",le=\"+Inf\"}", "3"),
            ("_sum{pool=\"a.b\"}", "7290.007000"),
            ("_count{pool=\"a.b\"}", "3"),
        ] {
            assert!(text.contains(&format!("{name}{labels} {value}\n")), "{labels}: {text}");
        }
    }
}
