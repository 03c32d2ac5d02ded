//! The order: everything that changes has its wave, and nothing goes before what comes is there.

use std::collections::BTreeMap;

use super::Verdict;
use super::case::{Case, Deed};
use crate::ids::Address;
use crate::plan::wire::WaveStep;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    let waves = &case.plan.capacity.waves;
    let mut found: BTreeMap<(&Address, WaveStep), u32> = BTreeMap::new();
    for wave in waves {
        if wave.addresses.is_empty() {
            verdict.plan("waves/empty", "a wave does nothing");
        }
        if !wave.addresses.is_sorted() {
            verdict.plan("waves/order", "the addresses of a wave are not in order");
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
        verdict.plan("waves/order", "a wave retires nodes before the last launch");
    }
    for row in &case.rows {
        for (step, expected) in
            [(WaveStep::Launch, row.deed.creates()), (WaveStep::Retire, row.deed.deletes())]
        {
            let times = found.remove(&(row.address, step)).unwrap_or(0);
            if times != u32::from(expected) {
                let fault = format!("stands {times} times in waves that {}", verb(step));
                verdict.row("waves/rows", row.address, fault);
            }
        }
        if row.deed == Deed::Update {
            verdict.row("waves/rows", row.address, "no wave carries out an update");
        }
    }
    for (address, step) in found.into_keys() {
        let fault = format!("a wave that {} names it, but it is no row", verb(step));
        verdict.row("waves/rows", address, fault);
    }
}

fn verb(step: WaveStep) -> &'static str {
    match step {
        WaveStep::Launch => "launch",
        WaveStep::Retire => "retire",
    }
}
