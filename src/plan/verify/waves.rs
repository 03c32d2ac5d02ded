//! Waves: every change is in one wave, and removals follow all launches.

use std::collections::BTreeMap;

use super::Violations;
use super::context::{CheckContext, RowAction};
use crate::model::ids::Address;
use crate::plan::wire::WaveStep;

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    let waves = &context.plan.capacity.waves;
    let mut found: BTreeMap<(&Address, WaveStep), u32> = BTreeMap::new();
    for wave in waves {
        if wave.addresses.is_empty() {
            violations.report_plan("waves/empty", "a wave does nothing");
        }
        if !wave.addresses.is_sorted() {
            violations.report_plan("waves/order", "the addresses of a wave are not in order");
        }
        for address in &wave.addresses {
            *found.entry((address, wave.step)).or_default() += 1;
        }
    }
    let retires = waves.iter().position(|wave| wave.step == WaveStep::Retire);
    let launches = waves.iter().rposition(|wave| wave.step == WaveStep::Launch);
    if let (Some(retires), Some(launches)) = (retires, launches)
        && retires < launches
    {
        violations.report_plan("waves/order", "a wave retires nodes before the last launch");
    }
    for row in &context.rows {
        for (step, expected) in
            [(WaveStep::Launch, row.action.creates()), (WaveStep::Retire, row.action.deletes())]
        {
            let times = found.remove(&(row.address, step)).unwrap_or(0);
            if times != u32::from(expected) {
                let fault = format!("occurs {times} times in waves that {}", step.as_str());
                violations.report_row("waves/rows", row.address, fault);
            }
        }
        if row.action == RowAction::Update {
            violations.report_row("waves/rows", row.address, "no wave carries out an update");
        }
    }
    for (address, step) in found.into_keys() {
        let fault = format!("a wave that {} names it, but it is not a row", step.as_str());
        violations.report_row("waves/rows", address, fault);
    }
}
