//! Prometheus metrics: the status in text format, version 0.0.4.
//!
//! No instrumentation library is used. All values are in the status already, and separate
//! instruments would be a second source of truth. Amounts are integers or exact decimals.
//! `deploy/metrics.md` documents every metric; a test compares it with [`FAMILIES`].

mod counters;
mod families;
mod gauges;
mod histograms;
mod text_format;

pub use families::{FAMILIES, MetricFamily, MetricKind};

use crate::controller::Status;
use text_format::Samples;

/// Content type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the metrics of a status, in the order of [`FAMILIES`].
pub fn metrics(status: &Status) -> String {
    let mut samples = Samples::default();
    gauges::controller(&mut samples, status);
    gauges::sources(&mut samples, status);
    gauges::activity(&mut samples, status);
    if let Some(current) = &status.plan {
        gauges::plan(&mut samples, status, current);
    }
    counters::add_counters(&mut samples, &status.counters);
    histograms::add_histograms(&mut samples, &status.durations);
    samples.render()
}
