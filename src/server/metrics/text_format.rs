//! Prometheus text format: families with samples, escaped labels and exact values.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use super::families::FAMILIES;
use crate::model::units::MicroUsd;
use crate::telemetry::histogram::Histogram;

/// Maximum length of a label value. Longer external text is truncated.
const VALUE_CHARS_MAX: usize = 200;

/// Samples by family.
#[derive(Debug, Default)]
pub(super) struct Samples {
    values: BTreeMap<&'static str, Vec<(String, String)>>,
    histograms: BTreeMap<&'static str, Vec<(String, Histogram)>>,
}

/// Name and value of a label.
pub(super) type SampleLabel<'a> = (&'static str, &'a str);

impl Samples {
    /// Adds a sample, and replaces one with equal labels.
    pub(super) fn add(
        &mut self,
        family: &'static str,
        labels: &[SampleLabel<'_>],
        value: impl Into<SampleValue>,
    ) {
        let key = key(labels);
        let SampleValue(value) = value.into();
        let rows = self.values.entry(family).or_default();
        rows.retain(|(known, _)| *known != key);
        rows.push((key, value));
    }

    /// Adds a histogram.
    pub(super) fn add_histogram(
        &mut self,
        family: &'static str,
        labels: &[SampleLabel<'_>],
        histogram: &Histogram,
    ) {
        self.histograms.entry(family).or_default().push((key(labels), histogram.clone()));
    }

    /// Renders the text.
    pub(super) fn render(mut self) -> String {
        let mut text = String::new();
        for family in FAMILIES {
            let (rows, timed) =
                (self.values.remove(family.name), self.histograms.remove(family.name));
            if rows.is_none() && timed.is_none() {
                continue;
            }
            let (name, kind) = (family.name, family.kind.as_str());
            let _ = write!(text, "# HELP {name} {}\n# TYPE {name} {kind}\n", family.help);
            for (labels, histogram) in timed.iter().flatten() {
                write_histogram(&mut text, name, labels, histogram);
            }
            let mut rows = rows.unwrap_or_default();
            rows.sort();
            for (labels, value) in rows {
                let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        }
        let (one, timed) = (self.values.keys(), self.histograms.keys());
        let left: Vec<&str> = one.chain(timed).copied().collect();
        assert!(left.is_empty(), "metrics without a family: {left:?}");
        text
    }
}

/// Returns labels as written between braces.
fn key(labels: &[SampleLabel<'_>]) -> String {
    let mut key = String::new();
    for (name, value) in labels {
        let between = if key.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(key, "{between}{name}=\"{}\"", escape_label(value));
    }
    key
}

/// Writes cumulative buckets, the sum and the count.
fn write_histogram(text: &mut String, name: &str, labels: &str, histogram: &Histogram) {
    let Histogram { bounds, counts, micros } = histogram;
    let between = if labels.is_empty() { "" } else { "," };
    let mut all = 0_u64;
    let ends = bounds.iter().map(|bound| SampleValue::from_fraction(*bound, 1_000).0);
    for (end, count) in ends.chain(["+Inf".to_owned()]).zip(counts) {
        all = all.saturating_add(*count);
        let _ = writeln!(text, "{name}_bucket{{{labels}{between}le=\"{end}\"}} {all}");
    }
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let SampleValue(sum) = SampleValue::from_fraction(*micros, 1_000_000);
    let _ = write!(text, "{name}_sum{labels} {sum}\n{name}_count{labels} {all}\n");
}

fn escape_label(value: &str) -> String {
    let short = value.chars().take(VALUE_CHARS_MAX);
    short.fold(String::new(), |mut text, c| {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
        text
    })
}

/// A formatted sample value.
#[derive(Debug)]
pub(super) struct SampleValue(String);

impl SampleValue {
    /// Returns `count / of` as an exact decimal; `of` is a power of ten.
    pub(super) fn from_fraction(count: u64, of: u64) -> Self {
        let digits = of.to_string().len() - 1;
        Self(format!("{}.{:0digits$}", count / of, count % of))
    }
}

impl From<bool> for SampleValue {
    fn from(is: bool) -> Self {
        Self(u8::from(is).to_string())
    }
}

impl From<u32> for SampleValue {
    fn from(n: u32) -> Self {
        Self(n.to_string())
    }
}

impl From<u64> for SampleValue {
    fn from(n: u64) -> Self {
        Self(n.to_string())
    }
}

impl From<usize> for SampleValue {
    fn from(n: usize) -> Self {
        Self(n.to_string())
    }
}

impl From<i64> for SampleValue {
    fn from(n: i64) -> Self {
        Self(n.to_string())
    }
}

impl From<MicroUsd> for SampleValue {
    fn from(amount: MicroUsd) -> Self {
        Self(amount.to_string())
    }
}

/// Seconds; negative durations count as zero.
impl From<SignedDuration> for SampleValue {
    fn from(duration: SignedDuration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(0);
        Self::from_fraction(millis, 1_000)
    }
}

/// Seconds since the Unix epoch.
impl From<Timestamp> for SampleValue {
    fn from(at: Timestamp) -> Self {
        Self(at.as_second().to_string())
    }
}
