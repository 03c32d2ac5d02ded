//! What Prometheus is told: the status as samples in its text format, version 0.0.4.
//!
//! Written here and not by a library of instruments, because nothing is instrumented: the values stand
//! in the status already, and instruments of our own would be a second truth beside it. Amounts are
//! integers or exact decimals. `deploy/metrics.md` documents every name; a test holds it to
//! [`FAMILIES`].

mod counted;
mod families;
mod samples;
mod shown;
mod timed;

pub use families::{FAMILIES, Family, Kind};

use crate::reconcile::Status;
use samples::Samples;

/// The media type of the text.
pub const MEDIA: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the metrics of a status, in the order of [`FAMILIES`].
#[must_use]
pub fn metrics(status: &Status) -> String {
    let mut samples = Samples::default();
    shown::itself(&mut samples, status);
    shown::sources(&mut samples, status);
    shown::work(&mut samples, status);
    if let Some(current) = &status.plan {
        shown::plan(&mut samples, status, current);
    }
    counted::all(&mut samples, &status.counters);
    timed::all(&mut samples, &status.measured);
    samples.text()
}
