//! Failure domains: the pods on one node or zone of a pool stay within its limits, or the plan
//! states the excess.

use std::collections::BTreeMap;

use super::Violations;
use super::context::{CheckContext, CheckedRow};
use crate::model::desired::{DomainShares, FailureDomains};
use crate::model::requirement::key;
use crate::plan::wire::{DomainKind, ExceededLimit, workload_key};

/// 100 % in thousandths of a percent.
const WHOLE: u64 = 100_000;

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    let stated = &context.plan.capacity.placement.failure_domains;
    let beyond = stated.as_ref().map(|apart| apart.beyond.as_slice()).unwrap_or_default();
    for (pool, FailureDomains { workload, pods, .. }) in &context.facts.desired.failure_domains {
        let of_pool = |row: &&CheckedRow<'_>| row.after.and_then(|a| a.pool.as_ref()) == Some(pool);
        let rows: Vec<&CheckedRow<'_>> = context.rows.iter().filter(of_pool).collect();
        let of = |beyond: &&ExceededLimit| beyond.pool == *pool;
        for key in context.groups.keys() {
            let on_all_nodes = context.rows.iter().map(|row| row.planned(key)).sum();
            let theirs = beyond.iter().filter(of).filter(|beyond| {
                beyond.workload.as_ref().is_some_and(|workload| workload_key(workload) == *key)
            });
            let stated: Vec<&ExceededLimit> = theirs.collect();
            let pods = |row: &CheckedRow<'_>| row.planned(key);
            check_shares((key, workload), &rows, (&pods, on_all_nodes), &stated, violations);
        }
        let stated: Vec<&ExceededLimit> =
            beyond.iter().filter(of).filter(|beyond| beyond.workload.is_none()).collect();
        let all = |row: &CheckedRow<'_>| row.pods().map(|(_, count)| count).sum();
        let total = rows.iter().map(|row| all(row)).sum();
        check_shares((pool.as_str(), pods), &rows, (&all, total), &stated, violations);
    }
}

/// Checks the pods of some rows against their maximum shares per node and zone.
fn check_shares(
    (name, shares): (&str, &DomainShares),
    rows: &[&CheckedRow<'_>],
    (pods, of): (&dyn Fn(&CheckedRow<'_>) -> u32, u32),
    stated: &[&ExceededLimit],
    violations: &mut Violations,
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
            violations.report_plan("failures/share", fault.to_lowercase());
        }
    }
}
