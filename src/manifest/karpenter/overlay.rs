//! `NodeOverlay` (v1alpha1): prices and extra resources that the cloud does not state.

use super::super::amounts::amounts;
use super::super::collect::{Collected, Named};
use super::super::decode::{Field, Map, shorten};
use super::super::meta::Meta;
use super::super::model::Severity;
use super::super::pool::{Generation, Overlay, PriceChange};
use super::finish_root;
use super::requirements::overlay_requirements;
use crate::pod::Amounts;
use crate::units::MicroUsd;

/// Most that an overlay may weigh.
const WEIGHT_MAX: u32 = 10_000;

/// Resources whose amounts follow from the machine; an overlay only adds others.
const OF_THE_MACHINE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pods"];

/// Digits after the point of a dollar that are kept.
const DECIMALS: usize = 6;

/// Most digits of a number, so that nothing overflows.
const DIGITS_MAX: usize = 12;

/// Reads a `NodeOverlay`.
pub(in super::super) fn node_overlay(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    finish_root(root);
    let Some(spec) = root.need("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let requirements = spec.need("requirements");
    let requirements = overlay_requirements(requirements, Generation::V1);
    let (price, adjustment) = (spec.get("price"), spec.get("priceAdjustment"));
    if let (Some(_), Some(adjustment)) = (&price, &adjustment) {
        adjustment.error("stands beside `price`, which excludes it", None);
    }
    let price = match (price, adjustment) {
        (Some(price), _) => absolute(&price),
        (None, Some(adjustment)) => relative(&adjustment),
        (None, None) => None,
    };
    let capacity = spec.get("capacity").map(|field| capacity(&field)).unwrap_or_default();
    let weight = spec.get("weight").map_or(0, |field| weight(&field));
    spec.finish(Severity::Warning);
    // Part of an overlay is another overlay: it is applied as it was meant, or not at all.
    if root.field.scope.first_failed().is_some() {
        return;
    }
    let origin = meta.origin.clone();
    let overlay = Overlay { name: meta.name, origin, weight, requirements, price, capacity };
    let named = Named {
        sort: "NodeOverlay",
        name: overlay.name.clone(),
        scope: root.field.scope,
        origin: meta.origin,
    };
    let same = |a: &Overlay, b: &Overlay| Overlay { origin: b.origin.clone(), ..a.clone() } == *b;
    into.insert(named, |all| &mut all.desired.overlays, (overlay.name.clone(), overlay), same);
}

fn weight(field: &Field<'_>) -> u32 {
    let Some(weight) = field.int::<u32>(1) else { return 0 };
    if weight > WEIGHT_MAX {
        field.error(format_args!("is {weight}, above {WEIGHT_MAX}"), None);
    }
    weight.min(WEIGHT_MAX)
}

fn capacity(field: &Field<'_>) -> Amounts {
    let amounts = amounts(field);
    if let Some(name) = OF_THE_MACHINE.iter().find(|name| amounts.contains_key(**name)) {
        let hint = "an overlay adds extended resources alone".to_owned();
        field.error(format_args!("sets `{name}`, which follows from the machine"), hint);
    }
    amounts
}

fn absolute(field: &Field<'_>) -> Option<PriceChange> {
    let text = field.word()?;
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
    let text = field.word()?;
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

/// Reads `+0.5`, `-10%` and their like; nothing costs less than nothing.
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

/// Returns the number that `text` writes times ten to the power of `decimals`, further digits cut.
fn scaled(text: &str, decimals: usize) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let empty = whole.is_empty() && fraction.is_empty();
    if empty || !plain(whole) || !plain(fraction) || whole.len() > DIGITS_MAX {
        return None;
    }
    let kept: String = fraction.chars().chain("000000".chars()).take(decimals).collect();
    format!("0{whole}{kept}").parse().ok()
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
