//! Failure domains: what one node or zone of a pool holds is within its limits, or the plan says that
//! it is not.

use std::collections::BTreeMap;

use super::Verdict;
use super::case::{Case, Row};
use crate::manifest::{FailureDomains, Shares};
use crate::plan::wire::{Beyond, DomainKind, workload_key};
use crate::requirement::key;

/// A whole, in thousandths of a percent.
const WHOLE: u64 = 100_000;

pub(super) fn check(case: &Case<'_>, verdict: &mut Verdict) {
    let stated = &case.plan.capacity.placement.failure_domains;
    let beyond = stated.as_ref().map(|apart| apart.beyond.as_slice()).unwrap_or_default();
    for (pool, FailureDomains { workload, pods, .. }) in &case.facts.desired.failure_domains {
        let of_pool = |row: &&Row<'_>| row.after.and_then(|a| a.pool.as_ref()) == Some(pool);
        let rows: Vec<&Row<'_>> = case.rows.iter().filter(of_pool).collect();
        let of = |beyond: &&Beyond| beyond.pool == *pool;
        for key in case.groups.keys() {
            let everywhere = case.rows.iter().map(|row| row.planned(key)).sum();
            let theirs = beyond.iter().filter(of).filter(|beyond| {
                beyond.workload.as_ref().is_some_and(|workload| workload_key(workload) == *key)
            });
            let stated: Vec<&Beyond> = theirs.collect();
            let pods = |row: &Row<'_>| row.planned(key);
            judge((key, workload), &rows, (&pods, everywhere), &stated, verdict);
        }
        let stated: Vec<&Beyond> =
            beyond.iter().filter(of).filter(|beyond| beyond.workload.is_none()).collect();
        let all = |row: &Row<'_>| row.pods().map(|(_, count)| count).sum();
        let total = rows.iter().map(|row| all(row)).sum();
        judge((pool.as_str(), pods), &rows, (&all, total), &stated, verdict);
    }
}

/// Holds the pods of some rows to shares of all of them.
fn judge(
    (name, shares): (&str, &Shares),
    rows: &[&Row<'_>],
    (pods, of): (&dyn Fn(&Row<'_>) -> u32, u32),
    stated: &[&Beyond],
    verdict: &mut Verdict,
) {
    let on_node = rows.iter().map(|row| pods(row)).max().unwrap_or(0);
    let mut zones: BTreeMap<&str, u32> = BTreeMap::new();
    for row in rows {
        if let Some(zone) = row.after.and_then(|after| after.labels.get(key::ZONE)) {
            *zones.entry(zone.as_str()).or_insert(0) += pods(row);
        }
    }
    let in_zone = zones.into_values().max().unwrap_or(0);
    for (kind, share, holds) in
        [(DomainKind::Node, shares.node, on_node), (DomainKind::Zone, shares.zone, in_zone)]
    {
        let Some(share) = share else { continue };
        let most = (u64::from(of) * u64::from(share) / WHOLE).max(1);
        let says = stated.iter().find(|beyond| beyond.domain == kind).map(|beyond| beyond.holds);
        let is = Some(holds).filter(|holds| u64::from(*holds) > most);
        if says != is {
            let fault = format!(
                "of {of} pods of {name} one {kind:?} holds {holds}, its limit is {most}, and the \
                 plan states {says:?} as beyond it"
            );
            verdict.plan("failures/share", fault.to_lowercase());
        }
    }
}
