//! Advice to raise the limits of a pool, for all pods that they block.
//!
//! Pods of one group may use up the limits that were raised for another. Where several groups need
//! the same limits raised, the advice is the sum for all of them. They may be groups of one
//! workload: its volumes bind its pods to different zones.

use std::collections::{BTreeMap, BTreeSet};

use super::super::rescue::RescueContext;
use super::super::target_fleet::UnschedulablePods;
use super::suggested_change::{EPHEMERAL_STORAGE, UnplacedPods};
use super::{OfferObstacle, RejectedOffer, UnschedulableReport, format_amount, pod_rules};
use crate::model::ids::{InstanceTypeName, PoolName};
use crate::model::units::{Bytes, MicroUsd};

/// Maximum number of instance types in a text.
const TYPES_MAX: usize = 3;

/// Nodes that only the limits of a pool forbid, for the unschedulable pods of one group.
pub(super) struct LimitNeed {
    /// Key of the workload.
    workload: String,
    pool: PoolName,
    /// Index of the offer.
    offer: usize,
    nodes: i64,
    instance_type: InstanceTypeName,
    /// Price of the nodes per hour.
    price: MicroUsd,
    /// Changes that the pods need besides. `None` if higher limits are not the advice.
    besides: Option<Vec<String>>,
}

/// Advice for all groups that the limits of one pool block.
struct SharedRemedy {
    raised: String,
    nodes: String,
}

impl UnschedulableReport<'_> {
    /// Returns the remedy if only the limits of its pool block an offer, and the nodes that they
    /// forbid.
    pub(super) fn limit_remedy(
        &self,
        unplaced: &UnplacedPods,
        rejected: &[RejectedOffer],
        context: &mut RescueContext,
    ) -> Option<(String, Option<LimitNeed>)> {
        let for_now =
            rejected.iter().find(|r| matches!(r.obstacle, OfferObstacle::LimitUntilApplied));
        if let Some(RejectedOffer { offer, .. }) = for_now {
            let node = &offer.node;
            let remedy = format!(
                "plan again once this plan is applied: the retired nodes leave room for one {} \
                 within the limits of pool {}",
                node.instance_type, node.pool
            );
            return Some((remedy, None));
        }
        let limited = rejected.iter().filter(|r| matches!(r.obstacle, OfferObstacle::Limit));
        let price = |r: &&RejectedOffer| unplaced.nodes_price(&r.offer.room, r.offer.node.price);
        let limited = limited.min_by_key(price)?;
        let (offer, at) = (limited.offer, limited.at?);
        let node = &offer.node;
        let mut need = LimitNeed {
            workload: unplaced.workload.to_owned(),
            pool: node.pool.clone(),
            offer: at,
            nodes: unplaced.nodes_needed(&offer.room),
            instance_type: node.instance_type.clone(),
            price: unplaced.nodes_price(&offer.room, node.price),
            besides: None,
        };
        if let Some(pods) = self.occupants.names(&node.pool, unplaced.workload) {
            // A higher limit alone may be used up by the same pods.
            let pool = self.pool_text(&node.pool);
            let nominate = ", nominate pods (spec.controller.steer)";
            let nominate = if self.input.settings.steer { "" } else { nominate };
            let remedy = format!(
                "keep the pods of {pods} off {pool} by a taint or node affinity{nominate}, or \
                 raise its limits for all of them"
            );
            return Some((remedy, Some(need)));
        }
        let raised = self.raised_limit(&node.pool, &context.limit_shortfall(&[(at, need.nodes)]));
        // The limits are checked before the rules between pods, so they may hide one.
        let rule = context.refusal(unplaced.index, at).into_iter().next();
        let remedy = |reason| pod_rules::explain_rule(unplaced.shape, &node.labels, &reason).remedy;
        let besides: Vec<String> = rule.and_then(remedy).into_iter().collect();
        let nodes = unplaced.nodes_text(&offer.room, &node.instance_type, node.price);
        let remedy = format!("{}: {nodes}", with_besides(&raised, &besides));
        need.besides = Some(besides);
        Some((remedy, Some(need)))
    }

    /// Returns the advice to raise the limits of a pool by the missing amounts.
    pub(super) fn raised_limit(&self, name: &PoolName, lacking: &[(String, i64)]) -> String {
        let nodes = lacking.iter().find(|(resource, _)| resource == "nodes").map(|(_, n)| *n);
        let pool = self.pool_text(name);
        if let (Some(group), Some(by)) = (self.input.desired.node_groups.get(name), nodes) {
            let now = self.pool_limits(name).nodes.map(i64::from).unwrap_or_default();
            let least = now.saturating_add(by);
            return if i64::from(group.max) >= least {
                format!(
                    "raise the maximum of the Auto Scaling group of {pool} from {now} to {least}"
                )
            } else {
                format!("raise maxSize of {pool} from {now} to {least}")
            };
        }
        let amounts = lacking.iter().map(|(name, n)| limit_text(name, *n));
        let amounts: Vec<String> = amounts.collect();
        format!("raise the limits of {pool} by {}", amounts.join(", "))
    }

    /// Returns the explanations, where limits that block several groups are raised for all of them.
    pub(super) fn with_shared_limits(
        &self,
        explained: Vec<(UnschedulablePods, Option<LimitNeed>)>,
        context: &RescueContext,
    ) -> Vec<UnschedulablePods> {
        let mut by_pool: BTreeMap<PoolName, Vec<&LimitNeed>> = BTreeMap::new();
        for need in explained.iter().filter_map(|(_, need)| need.as_ref()) {
            by_pool.entry(need.pool.clone()).or_default().push(need);
        }
        let remedy = |(pool, needs): (PoolName, Vec<&LimitNeed>)| {
            let shared = self.shared_remedy(&pool, &needs, context)?;
            Some((pool, shared))
        };
        let remedies: BTreeMap<PoolName, SharedRemedy> =
            by_pool.into_iter().filter_map(remedy).collect();
        let with_remedy = |(mut pods, need): (UnschedulablePods, Option<LimitNeed>)| {
            let shared = need.as_ref().and_then(|need| remedies.get(&need.pool));
            let besides = need.as_ref().and_then(|need| need.besides.as_ref());
            if let Some((SharedRemedy { raised, nodes }, besides)) = shared.zip(besides) {
                pods.suggested_change = Some(format!("{}: {nodes}", with_besides(raised, besides)));
            }
            pods
        };
        explained.into_iter().map(with_remedy).collect()
    }

    /// Returns the advice for all groups that the limits of a pool block. `None` if there is one
    /// group.
    fn shared_remedy(
        &self,
        pool: &PoolName,
        needs: &[&LimitNeed],
        context: &RescueContext,
    ) -> Option<SharedRemedy> {
        if needs.len() < 2 {
            return None;
        }
        let workloads: BTreeSet<&str> = needs.iter().map(|need| need.workload.as_str()).collect();
        let further: Vec<(usize, i64)> =
            needs.iter().map(|need| (need.offer, need.nodes)).collect();
        let raised = self.raised_limit(pool, &context.limit_shortfall(&further));
        let raised = match workloads.len() {
            0 | 1 => raised,
            several => format!("{raised} for {several} workloads"),
        };
        Some(SharedRemedy { raised, nodes: nodes_of(needs) })
    }
}

/// Returns the nodes of several groups, and their price. Groups that share a node need less.
fn nodes_of(needs: &[&LimitNeed]) -> String {
    let mut by_type: BTreeMap<&InstanceTypeName, i64> = BTreeMap::new();
    let mut price = MicroUsd::ZERO;
    for need in needs {
        let nodes = by_type.entry(&need.instance_type).or_default();
        *nodes = nodes.saturating_add(need.nodes);
        price = MicroUsd(price.0.saturating_add(need.price.0));
    }
    let nodes = if by_type.len() > TYPES_MAX {
        let sum = by_type.values().fold(0_i64, |sum, nodes| sum.saturating_add(*nodes));
        format!("{sum} nodes")
    } else {
        let list: Vec<String> =
            by_type.iter().map(|(kind, nodes)| format!("{nodes} {kind}")).collect();
        list.join(", ")
    };
    format!("at most {nodes}, ${}/h more", price.rounded(4))
}

/// Returns the advice to raise limits, with the further changes that the pods need.
fn with_besides(raised: &str, besides: &[String]) -> String {
    besides.iter().fold(raised.to_owned(), |text, change| format!("{text}, and {change}"))
}

/// Returns an amount of a limit, rounded up to whole cores and gibibytes.
pub(super) fn limit_text(name: &str, amount: i64) -> String {
    let unit = match name {
        "cpu" => 1_000,
        "memory" | EPHEMERAL_STORAGE => Bytes::GIB,
        _ => 1,
    };
    let units = amount.div_euclid(unit) + i64::from(amount.rem_euclid(unit) > 0);
    format!("{name} {}", format_amount(name, units.saturating_mul(unit)))
}
