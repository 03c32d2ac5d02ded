//! The text format: families with their samples, labels escaped, values exact.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use super::families::FAMILIES;
use crate::measure::Histogram;
use crate::units::MicroUsd;

/// Longest value of a label; what is longer is cut, so that no text from outside bloats a store.
const VALUE_CHARS_MAX: usize = 200;

/// Samples by family.
#[derive(Debug, Default)]
pub(super) struct Samples {
    one: BTreeMap<&'static str, Vec<(String, String)>>,
    timed: BTreeMap<&'static str, Vec<(String, Histogram)>>,
}

/// A label: its name and its value.
pub(super) type Label<'a> = (&'static str, &'a str);

impl Samples {
    /// Adds a sample; of the same labels the last one counts.
    pub(super) fn add(
        &mut self,
        family: &'static str,
        labels: &[Label<'_>],
        value: impl Into<Value>,
    ) {
        let key = key(labels);
        let Value(value) = value.into();
        let rows = self.one.entry(family).or_default();
        rows.retain(|(known, _)| *known != key);
        rows.push((key, value));
    }

    /// Adds durations.
    pub(super) fn time(
        &mut self,
        family: &'static str,
        labels: &[Label<'_>],
        histogram: &Histogram,
    ) {
        self.timed.entry(family).or_default().push((key(labels), histogram.clone()));
    }

    /// Returns the text.
    pub(super) fn text(mut self) -> String {
        let mut text = String::new();
        for family in FAMILIES {
            let (rows, timed) = (self.one.remove(family.name), self.timed.remove(family.name));
            if rows.is_none() && timed.is_none() {
                continue;
            }
            let (name, kind) = (family.name, family.kind.as_str());
            let _ = write!(text, "# HELP {name} {}\n# TYPE {name} {kind}\n", family.help);
            timed.iter().flatten().for_each(|row| write_histogram(&mut text, name, row));
            let mut rows = rows.unwrap_or_default();
            rows.sort();
            for (labels, value) in rows {
                let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        }
        let (one, timed) = (self.one.keys(), self.timed.keys());
        let left: Vec<&str> = one.chain(timed).copied().collect();
        assert!(left.is_empty(), "metrics without a family: {left:?}");
        text
    }
}

/// Returns labels as they stand in the braces.
fn key(labels: &[Label<'_>]) -> String {
    let mut key = String::new();
    for (name, value) in labels {
        let between = if key.is_empty() { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(key, "{between}{name}=\"{}\"", escaped(value));
    }
    key
}

/// Writes buckets, each of which counts those below it too, with the sum and the count.
fn write_histogram(text: &mut String, name: &str, (labels, histogram): &(String, Histogram)) {
    let Histogram { bounds, counts, micros } = histogram;
    let between = if labels.is_empty() { "" } else { "," };
    let mut all = 0_u64;
    let ends = bounds.iter().map(|bound| Value::parts(*bound, 1_000).0);
    for (end, count) in ends.chain(["+Inf".to_owned()]).zip(counts) {
        all = all.saturating_add(*count);
        let _ = writeln!(text, "{name}_bucket{{{labels}{between}le=\"{end}\"}} {all}");
    }
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let Value(sum) = Value::parts(*micros, 1_000_000);
    let _ = write!(text, "{name}_sum{labels} {sum}\n{name}_count{labels} {all}\n");
}

fn escaped(value: &str) -> String {
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

/// A value as the format writes it.
#[derive(Debug)]
pub(super) struct Value(String);

impl Value {
    /// Returns `count` thousandths, or millionths, of a whole.
    pub(super) fn parts(count: u64, of: u64) -> Self {
        let digits = of.to_string().len() - 1;
        Self(format!("{}.{:0digits$}", count / of, count % of))
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self(u8::from(is).to_string())
    }
}

impl From<u32> for Value {
    fn from(n: u32) -> Self {
        Self(n.to_string())
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self(n.to_string())
    }
}

impl From<usize> for Value {
    fn from(n: usize) -> Self {
        Self(n.to_string())
    }
}

impl From<i64> for Value {
    fn from(n: i64) -> Self {
        Self(n.to_string())
    }
}

impl From<MicroUsd> for Value {
    fn from(amount: MicroUsd) -> Self {
        Self(amount.to_string())
    }
}

/// In seconds; what is before its beginning counts as nothing.
impl From<SignedDuration> for Value {
    fn from(duration: SignedDuration) -> Self {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(0);
        Self::parts(millis, 1_000)
    }
}

/// In seconds since 1970.
impl From<Timestamp> for Value {
    fn from(at: Timestamp) -> Self {
        Self(at.as_second().to_string())
    }
}
