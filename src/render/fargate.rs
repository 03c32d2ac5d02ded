//! Text about pods and costs on Fargate.

use super::amount::{count, dollars, hourly};
use crate::plan::wire::{Cost, FargateBill, FargateCost, FargateRow, FargateSize};

/// MiB per GB of the price list.
const GB: i64 = 1024;

/// Returns the Fargate line of the header.
pub(super) fn line(cost: &Cost) -> Option<Vec<String>> {
    let FargateCost { rates: _, before, after } = cost.fargate.as_ref()?;
    let mut items = vec![
        format!("Fargate {} -> {}", before.pods, count(after.pods, "pod")),
        format!("vCPU {} -> {}", vcpu(before.cpu_milli), vcpu(after.cpu_milli)),
        format!("memory {} -> {} GB", gb(before.memory_mib), gb(after.memory_mib)),
    ];
    items.push(price(before, after));
    Some(items)
}

fn price(before: &FargateBill, after: &FargateBill) -> String {
    match (before.hourly, after.hourly) {
        (Some(before), Some(after)) => {
            format!("{} -> {}, not in the price of the nodes", dollars(before, 4), hourly(after))
        }
        (_, _) => "not priced (spec.fargate of fleetwright.yaml has no prices)".to_owned(),
    }
}

/// Returns the Fargate pods of a workload in words, without a full stop.
pub(super) fn workload_text(row: &FargateRow) -> String {
    let FargateRow { profile, pods, size } = row;
    let by = profile.as_ref().map_or_else(
        || "Fargate runs them, by an unknown profile".to_owned(),
        |profile| format!("Fargate profile {profile} selects them"),
    );
    let pods = count(*pods, "pod");
    match size {
        Some(size) => format!("{pods} on Fargate: {by}, each with {}", size_text(*size)),
        None => format!("{pods} stuck: {by} and Fargate cannot run them"),
    }
}

fn size_text(size: FargateSize) -> String {
    format!("{} vCPU and {} GB", vcpu(size.cpu_milli), gb(size.memory_mib))
}

fn vcpu(milli: i64) -> String {
    decimal(milli, 1000)
}

fn gb(mib: i64) -> String {
    decimal(mib, GB)
}

/// Returns `amount` divided by `unit`, with at most two decimals.
fn decimal(amount: i64, unit: i64) -> String {
    let hundredths = amount.saturating_mul(100) / unit;
    let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_follow_the_fargate_price_list() {
        for (milli, expected) in
            [(250, "0.25"), (500, "0.5"), (1_000, "1"), (16_000, "16"), (0, "0")]
        {
            assert_eq!(vcpu(milli), expected);
        }
        for (mib, expected) in [(512, "0.5"), (1_024, "1"), (9_216, "9"), (122_880, "120")] {
            assert_eq!(gb(mib), expected);
        }
    }
}
