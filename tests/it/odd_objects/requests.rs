//! The requests of a pod, computed from the object of an API server without the code under test.

#![cfg(feature = "kubernetes")]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

/// Amounts in billionths, by resource.
type Amounts = BTreeMap<String, i128>;

const NANOS: i128 = 1_000_000_000;

/// Larger amounts count as this one.
const AMOUNT_MAX: i128 = 1 << 48;

/// Exact requests of a pod.
#[derive(Debug)]
pub(crate) struct ExactRequests {
    amounts: Amounts,
    /// Number of containers. The reader rounds the amount of each one up.
    containers: usize,
}

impl ExactRequests {
    /// Returns true if `actual` is the amount of a resource, except for rounding. The unit of `cpu`
    /// is a thousandth.
    pub(crate) fn matches(&self, name: &str, actual: i64) -> bool {
        let unit = if name == "cpu" { NANOS / 1000 } else { NANOS };
        let exact = self.amounts.get(name).copied().unwrap_or(0);
        let least = (exact + unit - 1).div_euclid(unit).min(AMOUNT_MAX);
        let rounding = i128::try_from(self.containers).expect("a small number");
        let most = (least + rounding).min(AMOUNT_MAX);
        (least..=most).contains(&i128::from(actual))
    }

    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.amounts.keys().map(String::as_str).collect()
    }
}

/// Returns the larger of the sum of containers and the peak of init containers, or the pod-level
/// requests, plus the overhead.
pub(crate) fn exact_requests(pod: &Json) -> ExactRequests {
    let spec = &pod["spec"];
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    let items = |key: &str| spec[key].as_array().cloned().unwrap_or_default();
    for init in items("initContainers") {
        let mut sum = sidecars.clone();
        add(&mut sum, &init["resources"]["requests"]);
        if init["restartPolicy"] == "Always" {
            sidecars.clone_from(&sum);
        }
        raise(&mut peak, &sum);
    }
    let mut total = sidecars;
    for container in items("containers") {
        add(&mut total, &container["resources"]["requests"]);
    }
    raise(&mut total, &peak);
    for (name, amount) in spec["resources"]["requests"].as_object().into_iter().flatten() {
        total.insert(name.clone(), nanos(amount));
    }
    add(&mut total, &spec["overhead"]);
    let containers = items("containers").len() + items("initContainers").len() + 1;
    ExactRequests { amounts: total, containers }
}

fn add(sum: &mut Amounts, amounts: &Json) {
    for (name, amount) in amounts.as_object().into_iter().flatten() {
        *sum.entry(name.clone()).or_default() += nanos(amount);
    }
}

fn raise(sum: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = sum.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}

/// Reads a quantity of an API server: a decimal number, and a suffix or an exponent. Fractions of a
/// billionth are rounded up.
fn nanos(quantity: &Json) -> i128 {
    let text = quantity.as_str().expect("an API server returns text");
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.');
    let (number, suffix) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().unwrap_or_else(|_| panic!("{text}"));
    let decimals = i32::try_from(fraction.len()).expect("a short text");
    let (factor, power) = match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1_i128 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        exponent => (1, exponent[1..].parse().unwrap_or_else(|_| panic!("{text}"))),
    };
    let most = i128::from(i64::MAX) * NANOS;
    let amount = digits.saturating_mul(factor);
    let power: i32 = power + 9 - decimals;
    let scale = 10_i128.checked_pow(power.unsigned_abs());
    let amount = match (power >= 0, scale) {
        (true, scale) => scale.and_then(|scale| amount.checked_mul(scale)).unwrap_or(most),
        (false, Some(scale)) => (amount + scale - 1).div_euclid(scale),
        (false, None) => i128::from(amount > 0),
    };
    amount.min(most)
}
