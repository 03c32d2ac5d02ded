//! Failure domains: the pods on one node or in one zone of a pool stay within the limits of the
//! pool, or the plan states the excess.

use std::collections::BTreeMap;

use super::Violations;
use super::context::{CheckContext, CheckedRow};
use crate::model::desired::{FailureDomains, MaxShares};
use crate::model::requirement::key;
use crate::plan::wire::{DomainKind, ExceededLimit, workload_key};

/// 100 % in thousandths of a percent.
const WHOLE: u64 = 100_000;

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    let stated = &context.plan.capacity.placement.failure_domains;
    let beyond = stated.as_ref().map(|domains| domains.beyond.as_slice()).unwrap_or_default();
    for (pool, FailureDomains { workload, pods, .. }) in &context.facts.desired.failure_domains {
        let of_pool = |row: &&CheckedRow<'_>| row.after.and_then(|a| a.pool.as_ref()) == Some(pool);
        let rows: Vec<&CheckedRow<'_>> = context.rows.iter().filter(of_pool).collect();
        let in_pool = |beyond: &&ExceededLimit| beyond.pool == *pool;
        for key in context.groups.keys() {
            let on_all_nodes = context.rows.iter().map(|row| row.planned(key)).sum();
            let theirs = beyond.iter().filter(in_pool).filter(|beyond| {
                beyond.workload.as_ref().is_some_and(|workload| workload_key(workload) == *key)
            });
            let stated: Vec<&ExceededLimit> = theirs.collect();
            let pods = |row: &CheckedRow<'_>| row.planned(key);
            check_shares(key, workload, &rows, &pods, on_all_nodes, &stated, violations);
        }
        let stated: Vec<&ExceededLimit> =
            beyond.iter().filter(in_pool).filter(|beyond| beyond.workload.is_none()).collect();
        let all = |row: &CheckedRow<'_>| row.pods().map(|(_, count)| count).sum();
        let total = rows.iter().map(|row| all(row)).sum();
        check_shares(pool.as_str(), pods, &rows, &all, total, &stated, violations);
    }
}

/// Checks the pods of some rows against their maximum shares per node and zone.
fn check_shares(
    name: &str,
    shares: &MaxShares,
    rows: &[&CheckedRow<'_>],
    pods: &dyn Fn(&CheckedRow<'_>) -> u32,
    total: u32,
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
    for (kind, share, count) in
        [(DomainKind::Node, shares.node, on_node), (DomainKind::Zone, shares.zone, in_zone)]
    {
        let Some(share) = share else { continue };
        let max_pods = (u64::from(total) * u64::from(share) / WHOLE).max(1);
        let stated_count =
            stated.iter().find(|beyond| beyond.domain == kind).map(|beyond| beyond.holds);
        let excess = Some(count).filter(|count| u64::from(*count) > max_pods);
        if stated_count != excess {
            let fault = format!(
                "of {total} pods of {name} one {kind:?} holds {count}, its limit is {max_pods}, and the \
                 plan states {stated_count:?} as beyond it"
            );
            violations.report_plan("failures/share", fault.to_lowercase());
        }
    }
}
