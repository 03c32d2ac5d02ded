//! Amounts of resources in messages.

use crate::model::units::{Bytes, MilliCpu};

/// Formats two amounts in one unit, so that a reader can compare them.
pub(super) fn format_in_one_unit(resource: &str, amounts: [i64; 2]) -> [String; 2] {
    let exact = amounts.map(|amount| format_amount(resource, amount));
    match resource {
        "cpu" if exact.iter().any(|text| text.ends_with('m')) => amounts.map(|n| format!("{n}m")),
        "memory" | "ephemeral-storage" => format_bytes_in_one_unit(amounts),
        _ if resource.starts_with("hugepages-") => format_bytes_in_one_unit(amounts),
        _ => exact,
    }
}

/// Formats amounts in the largest binary unit that tells them apart, with at most one decimal.
fn format_bytes_in_one_unit(amounts: [i64; 2]) -> [String; 2] {
    for (unit, suffix) in [(Bytes::GIB, "Gi"), (Bytes::MIB, "Mi")] {
        let texts = amounts.map(|bytes| {
            let tenths = i128::from(bytes) * 10 / i128::from(unit);
            match (tenths / 10, tenths % 10) {
                (whole, 0) => format!("{whole}{suffix}"),
                (whole, tenth) => format!("{whole}.{tenth}{suffix}"),
            }
        });
        if amounts.iter().any(|bytes| *bytes >= unit) && texts[0] != texts[1] {
            return texts;
        }
    }
    amounts.map(|bytes| bytes.to_string())
}

/// Formats an amount as Kubernetes does.
pub(in super::super) fn format_amount(resource: &str, amount: i64) -> String {
    match resource {
        "cpu" => MilliCpu(amount).to_string(),
        "memory" | "ephemeral-storage" => Bytes(amount).to_string(),
        _ if resource.starts_with("hugepages-") => Bytes(amount).to_string(),
        _ => amount.to_string(),
    }
}
