//! Checks pod counts, their source, and requests against expectation lines.

use fleetwright::model::units::Quantity;
use fleetwright::plan::wire::{Decider, DemandRow};

use super::case_line::CaseLine;
use super::expected::CasePlan;

fn row<'a>(line: &CaseLine, case_plan: &'a CasePlan) -> Result<&'a DemandRow, String> {
    let name = line.word(1)?;
    let mut rows = case_plan.plan.capacity.demand.iter();
    rows.find(|row| &*row.workload.name == name).ok_or(format!("no demand of {name}"))
}

pub(super) fn counts(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let row = row(line, case_plan)?;
    let found = (row.counts.floor, row.counts.live, row.counts.ceiling);
    let expected = (line.count(2)?, line.count(3)?, line.count(4)?);
    let why = || format!("floor, live, ceiling are {found:?}: {:?}", row.decided_by);
    if found == expected { Ok(()) } else { Err(why()) }
}

pub(super) fn next(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let row = row(line, case_plan)?;
    let Decider::Autoscaler { next, .. } = &row.decided_by else {
        return Err(format!("decided by {:?}", row.decided_by));
    };
    let expected = if line.has("none") { None } else { Some(line.count(2)?) };
    if *next == expected { Ok(()) } else { Err(format!("{:?}", row.decided_by)) }
}

pub(super) fn decided(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    let row = row(line, case_plan)?;
    let (_, text) = line.text.split_once(" by ").ok_or("write decided NAME by TEXT")?;
    let found = match &row.decided_by {
        Decider::Autoscaler { autoscaler, because, .. } => format!("{autoscaler}: {because}"),
        Decider::Schedule { because } | Decider::Buffer { because } => because.clone(),
        Decider::Git => "the repository".to_owned(),
        Decider::World => "the world".to_owned(),
        Decider::Removed => "its removal".to_owned(),
    };
    if found.contains(text) { Ok(()) } else { Err(format!("decided by {found}")) }
}

pub(super) fn requests(line: &CaseLine, case_plan: &CasePlan) -> Result<(), String> {
    line.only(&["cpu", "memory"])?;
    let row = row(line, case_plan)?;
    let amount = |key: &str| line.option(key).map(str::parse::<Quantity>).transpose();
    let wrong = |_| "write amounts".to_owned();
    let cpu = amount("cpu").map_err(wrong)?.map(Quantity::ceil_milli);
    let memory = amount("memory").map_err(wrong)?.map(Quantity::ceil_units);
    let found = (row.requests.cpu_milli, row.requests.memory_bytes);
    let is = cpu.is_none_or(|cpu| cpu == found.0) && memory.is_none_or(|bytes| bytes == found.1);
    if is { Ok(()) } else { Err(format!("requests {found:?}: {:?}", row.sized_by)) }
}
