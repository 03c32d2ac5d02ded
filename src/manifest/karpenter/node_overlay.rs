//! `NodeOverlay` (v1alpha1): prices and extra resources that the cloud does not report.

use super::super::collector::{Collector, Definition};
use super::super::decode::{Field, FieldMap, shorten};
use super::super::object_meta::ObjectMeta;
use super::super::resource_list::resource_list;
use super::finish_root;
use super::requirements::overlay_requirements;
use crate::model::desired::{Generation, NodeOverlay, PriceChange};
use crate::model::pod::ResourceList;
use crate::model::units::MicroUsd;

/// Maximum weight of an overlay.
const WEIGHT_MAX: u32 = 10_000;

/// Resources that follow from the instance type; an overlay only adds others.
const INSTANCE_RESOURCES: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pods"];

/// Number of decimal places of a dollar amount.
const DECIMALS: usize = 6;

/// Maximum number of digits, which prevents overflow.
const DIGITS_MAX: usize = 12;

/// Reads a `NodeOverlay`.
pub(in super::super) fn node_overlay(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    finish_root(root);
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let requirements = spec.required("requirements");
    let requirements = overlay_requirements(requirements, Generation::V1);
    let (price, adjustment) = (spec.get("price"), spec.get("priceAdjustment"));
    if let (Some(_), Some(adjustment)) = (&price, &adjustment) {
        adjustment.error("conflicts with `price`", None);
    }
    let price = match (price, adjustment) {
        (Some(price), _) => absolute(&price),
        (None, Some(adjustment)) => relative(&adjustment),
        (None, None) => None,
    };
    let capacity = spec.get("capacity").map(|field| capacity(&field)).unwrap_or_default();
    let weight = spec.get("weight").map_or(0, |field| weight(&field));
    spec.finish_with_typo_check();
    // An overlay is applied as a whole or not at all.
    if root.field.scope.first_failed_field().is_some() {
        return;
    }
    let origin = meta.origin.clone();
    let overlay = NodeOverlay { name: meta.name, origin, weight, requirements, price, capacity };
    let named = Definition {
        kind: "NodeOverlay",
        name: overlay.name.clone(),
        scope: root.field.scope,
        origin: meta.origin,
    };
    let same = |a: &NodeOverlay, b: &NodeOverlay| {
        NodeOverlay { origin: b.origin.clone(), ..a.clone() } == *b
    };
    into.insert(named, |all| &mut all.desired.overlays, overlay.name.clone(), overlay, same);
}

fn weight(field: &Field<'_>) -> u32 {
    let Some(weight) = field.int::<u32>(1) else { return 0 };
    if weight > WEIGHT_MAX {
        field.error(format_args!("is {weight}, above {WEIGHT_MAX}"), None);
    }
    weight.min(WEIGHT_MAX)
}

fn capacity(field: &Field<'_>) -> ResourceList {
    let amounts = resource_list(field);
    if let Some(name) = INSTANCE_RESOURCES.iter().find(|name| amounts.contains_key(**name)) {
        let hint = "an overlay adds extended resources alone".to_owned();
        field.error(format_args!("sets `{name}`, which follows from the instance type"), hint);
    }
    amounts
}

fn absolute(field: &Field<'_>) -> Option<PriceChange> {
    let text = field.text_or_number()?;
    let parsed = scaled(&text, DECIMALS).map(|price| PriceChange::To(MicroUsd(price)));
    if parsed.is_none() {
        field.error(
            format_args!("is `{}`, not a price", shorten(&text)),
            "write US dollars per hour, such as \"0.05\"".to_owned(),
        );
    }
    parsed
}

fn relative(field: &Field<'_>) -> Option<PriceChange> {
    let text = field.text_or_number()?;
    let parsed = adjustment(&text);
    if parsed.is_none() {
        field.error(
            format_args!("is `{}`, not an adjustment", shorten(&text)),
            "write dollars or a share with a sign, such as \"-0.02\", \"+10%\" or \"-15%\""
                .to_owned(),
        );
    }
    parsed
}

/// Reads values such as `+0.5` and `-10%`. No adjustment leads to a negative price.
fn adjustment(text: &str) -> Option<PriceChange> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'+' => (1, text.get(1..)?),
        b'-' => (-1, text.get(1..)?),
        _ => return None,
    };
    let Some(share) = rest.strip_suffix('%') else {
        return scaled(rest, DECIMALS).map(|amount| PriceChange::By(MicroUsd(sign * amount)));
    };
    // Thousandths of a percent.
    let share = scaled(share, 3)?;
    (sign > 0 || share <= 100_000).then_some(PriceChange::ByMilliPercent(sign * share))
}

/// Returns `text` times ten to the power of `decimals`, further digits truncated.
fn scaled(text: &str, decimals: usize) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let empty = whole.is_empty() && fraction.is_empty();
    if empty || !plain(whole) || !plain(fraction) || whole.len() > DIGITS_MAX {
        return None;
    }
    let digits: String = fraction.chars().chain("000000".chars()).take(decimals).collect();
    format!("0{whole}{digits}").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjustments_are_signed_dollars_or_shares() {
        for (text, expected) in [
            ("+0.5", Some(PriceChange::By(MicroUsd(500_000)))),
            ("-.02", Some(PriceChange::By(MicroUsd(-20_000)))),
            ("+10%", Some(PriceChange::ByMilliPercent(10_000))),
            ("-15.5%", Some(PriceChange::ByMilliPercent(-15_500))),
            ("-100%", Some(PriceChange::ByMilliPercent(-100_000))),
            ("+250%", Some(PriceChange::ByMilliPercent(250_000))),
            ("-101%", None),
            ("10%", None),
            ("+", None),
            ("+ten", None),
            ("", None),
        ] {
            assert_eq!(adjustment(text), expected, "{text}");
        }
    }
}
