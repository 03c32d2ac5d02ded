//! Durations of the controller as Prometheus histograms.

use super::text_format::{SampleLabel, Samples};
use crate::telemetry::histogram::{Histograms, Measurement};

/// Returns the metric of a measurement, and its labels.
fn metric(measurement: &Measurement) -> (&'static str, Vec<SampleLabel<'_>>) {
    let (name, labels): (_, &[SampleLabel<'_>]) = match measurement {
        Measurement::Step => ("fleetwright_step_duration_seconds", &[]),
        Measurement::Read { source } => {
            ("fleetwright_read_duration_seconds", &[("source", source)])
        }
        Measurement::Plan { scope } => ("fleetwright_plan_duration_seconds", &[("scope", scope)]),
        Measurement::Apply { verdict } => {
            ("fleetwright_apply_duration_seconds", &[("verdict", verdict)])
        }
        Measurement::Reaction => ("fleetwright_pending_pod_reaction_seconds", &[]),
        Measurement::PodBound => ("fleetwright_pod_bound_duration_seconds", &[]),
        Measurement::NodeReady { pool } => {
            ("fleetwright_node_ready_duration_seconds", &[("pool", pool)])
        }
        Measurement::Drain { reason } => {
            ("fleetwright_drain_duration_seconds", &[("reason", reason)])
        }
        Measurement::Termination => ("fleetwright_termination_duration_seconds", &[]),
        Measurement::NodeLifetime { pool } => {
            ("fleetwright_node_lifetime_duration_seconds", &[("pool", pool)])
        }
        Measurement::MessageAge { kind } => {
            ("fleetwright_interruption_message_age_seconds", &[("kind", kind)])
        }
        Measurement::AwsCall { service, method, result } => (
            "fleetwright_aws_call_duration_seconds",
            &[("service", service), ("method", method), ("result", result)],
        ),
    };
    (name, labels.to_vec())
}

/// Adds all histograms.
pub(super) fn add_histograms(samples: &mut Samples, measured: &Histograms) {
    for (measurement, histogram) in measured.iter() {
        let (name, labels) = metric(measurement);
        samples.add_histogram(name, &labels, histogram);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::families::{FAMILIES, MetricKind};
    use super::*;

    #[test]
    fn every_histogram_has_a_metric_family() {
        let text = || "x".to_owned();
        let all = [
            Measurement::Step,
            Measurement::Read { source: "x" },
            Measurement::Plan { scope: "x" },
            Measurement::Apply { verdict: "x" },
            Measurement::Reaction,
            Measurement::PodBound,
            Measurement::NodeReady { pool: text() },
            Measurement::Drain { reason: text() },
            Measurement::Termination,
            Measurement::NodeLifetime { pool: text() },
            Measurement::MessageAge { kind: "x" },
            Measurement::AwsCall { service: text(), method: text(), result: "x" },
        ];
        let mut names: Vec<&str> = Vec::new();
        for measurement in &all {
            let (name, labels) = metric(measurement);
            let family = FAMILIES.iter().find(|family| family.name == name);
            let family = family.unwrap_or_else(|| panic!("{name} is no family"));
            let labels: Vec<&str> = labels.iter().map(|(label, _)| *label).collect();
            assert_eq!((family.kind, family.labels), (MetricKind::Histogram, &*labels), "{name}");
            names.push(name);
        }
        names.sort_unstable();
        names.dedup();
        let families = FAMILIES.iter().filter(|family| family.kind == MetricKind::Histogram);
        assert_eq!(families.count(), names.len(), "every histogram family has a source");
    }

    #[test]
    fn histogram_uses_cumulative_buckets() {
        let mut measured = Histograms::default();
        for duration in [Duration::from_millis(7), Duration::from_secs(90), Duration::from_hours(2)]
        {
            measured.note(Measurement::NodeReady { pool: "a.b".to_owned() }, duration);
        }
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
