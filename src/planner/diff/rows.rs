//! Plan rows of nodes, with reasons, preconditions and pods.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::address::RowIdentity;
use super::existing_row::ExistingRow;
use super::node_resolver::NodeResolver;
use super::{DiffInputs, action_reason, alternatives_row};
use crate::model::code::Code;
use crate::model::ids::{Address, NodeName, WorkloadKey, workload_key};
use crate::model::reason::{KeepReason, Rejection};
use crate::plan::is_blocked;
use crate::plan::wire::{
    Action, AlternativesRow, Amount, Change, Condition, ExplainRow, PlacementRow, PodCounts,
    Precondition, Reason, ResourceChange, ResourceKind, UnschedulableRow,
};
use crate::solver::{
    ExistingNode, Launch, NewNode, NodeRef, assign_capacity_types, daemon_requests,
};

/// Numbers of rows whose price is not the listed price.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UncertainPrices {
    /// Rows with an estimated price.
    pub estimated: u32,
    /// Rows with an unknown price.
    pub unpriced: u32,
}

/// All rows of a plan, with the counts collected while they are built.
#[derive(Debug, Default)]
pub(super) struct PlanRows {
    pub changes: Vec<ResourceChange>,
    pub explain: Vec<ExplainRow>,
    pub preconditions: Vec<Precondition>,
    pub placements: Vec<PlacementRow>,
    pub alternatives: Vec<AlternativesRow>,
    /// Unschedulable rows of pods whose launch the user excluded.
    pub excluded_pods: Vec<UnschedulableRow>,
    pub blocked: u32,
    pub moved: u32,
    pub uncertain_prices: UncertainPrices,
}

impl PlanRows {
    pub(super) fn new(inputs: &DiffInputs) -> Self {
        let mut resolver = NodeResolver::new(inputs);
        let mut rows = Self::default();
        let mut addresses: BTreeMap<NodeRef, Address> = BTreeMap::new();
        let replacement_pairs = resolver.replacement_pairs();
        let launches = &inputs.solution.target.launches;
        let mut retained = Vec::new();
        for (index, launch) in launches.iter().enumerate() {
            let replaced = replacement_pairs.get(&index).copied();
            let identity = match replaced {
                Some(existing) => resolver.identity_of(existing),
                None => resolver.keys.next(&launch.node.pool),
            };
            if (inputs.is_excluded)(&identity.address) {
                rows.exclude_launch(inputs, index);
                continue;
            }
            retained.push((index, identity, replaced));
        }
        let indexes: Vec<usize> = retained.iter().map(|(index, ..)| *index).collect();
        let planned = retained_launches(inputs, &indexes);
        for ((index, identity, replaced), launch) in retained.into_iter().zip(planned.iter()) {
            addresses.insert(NodeRef::Launch(index), identity.address.clone());
            rows.add_launch(&resolver, &identity, launch, replaced);
        }
        let paired: BTreeSet<&NodeName> =
            replacement_pairs.values().map(|existing| &existing.name).collect();
        for existing in inputs.solution.existing_nodes.iter().filter(|s| !paired.contains(&s.name))
        {
            // A node without a decision gets no row, which the verification reports as an error.
            let Some(decision) = ExistingRow::new(&inputs.solution.target, &existing.name) else {
                continue;
            };
            let identity = resolver.identity_of(existing);
            addresses.insert(NodeRef::Existing(existing.name.clone()), identity.address.clone());
            rows.add_existing(&resolver, &identity, existing, decision);
        }
        rows.record_placements(inputs, &addresses);
        rows.count_blocked();
        rows.moved = moved_pods(inputs);
        rows.sort();
        rows
    }

    pub(super) fn sort(&mut self) {
        self.changes.sort_by(|a, b| a.address.cmp(&b.address));
        self.explain.sort_by(|a, b| a.address.cmp(&b.address));
        self.alternatives.sort_by(|a, b| a.address.cmp(&b.address));
        self.preconditions.sort();
        self.placements.sort();
    }

    fn add_launch(
        &mut self,
        resolver: &NodeResolver,
        identity: &RowIdentity,
        launch: &Launch,
        replaced: Option<&ExistingNode>,
    ) {
        let Launch { node, reason, batch, rejected } = launch;
        let retire = replaced.and_then(|s| resolver.inputs.solution.target.retires.get(&s.name));
        let actions = match replaced {
            Some(_) => vec![Action::Create, Action::Delete],
            None => vec![Action::Create],
        };
        self.changes.push(ResourceChange {
            address: identity.address.clone(),
            kind: ResourceKind::Ec2Instance,
            name: identity.name.clone(),
            index: identity.index.clone(),
            mode: None,
            provider_name: None,
            change: Change {
                actions,
                before: replaced.map(|existing| resolver.before(existing)),
                after: Some(resolver.after(node)),
                after_unknown: resolver.unknown_fields(node),
                termination_grace_seconds: retire.and_then(|retire| {
                    resolver.termination_grace_seconds(replaced?, &retire.reason)
                }),
            },
            action_reason: Some(
                action_reason::launch(reason, retire.map(|r| &r.reason)).to_owned(),
            ),
        });
        if let Some(existing) = replaced {
            self.add_removal_conditions(resolver, identity, existing);
        } else {
            let key = identity.index.clone().unwrap_or_default();
            self.add_condition(identity, Condition::KeyUnused { pool: node.pool.clone(), key });
        }
        self.alternatives.extend(alternatives_row(&identity.address, node));
        let replaced_estimate = replaced.is_some_and(|s| s.price.is_some() && s.price_estimated);
        self.uncertain_prices.estimated += u32::from(node.price_estimated || replaced_estimate);
        self.uncertain_prices.unpriced +=
            u32::from(replaced.is_some_and(|existing| existing.price.is_none()));
        self.explain.push(ExplainRow {
            address: identity.address.clone(),
            group: batch.map(batch_name),
            reason: Reason::Launch { because: resolver.with_address(reason) },
            retire_reason: retire.map(|retire| retire.reason.clone()),
            drift: None,
            differences: replaced.map(|node| node.differences.clone()).unwrap_or_default(),
            hourly_before: replaced.and_then(|existing| existing.price),
            hourly_after: Some(node.price),
            estimated: node.price_estimated,
            pods: PodCounts::default(),
            pods_before: replaced
                .map(|existing| resolver.pods_before(existing))
                .unwrap_or_default(),
            daemons: launch_daemons(resolver, node),
            rejected: rejected.clone(),
            overlays: node.overlays.clone(),
            relaxed: node.relaxed.clone(),
        });
    }

    fn add_existing(
        &mut self,
        resolver: &NodeResolver,
        identity: &RowIdentity,
        existing: &ExistingNode,
        decision: ExistingRow,
    ) {
        let ExistingRow { action, reason, batch, action_reason } = decision;
        let stays = action == Action::NoOp;
        if !stays {
            self.add_removal_conditions(resolver, identity, existing);
        }
        let before = resolver.before(existing);
        let termination_grace_seconds = match &reason {
            Reason::Retire { because } => resolver.termination_grace_seconds(existing, because),
            Reason::Launch { .. } | Reason::Keep { .. } | Reason::Resize { .. } => None,
        };
        self.uncertain_prices.estimated +=
            u32::from(existing.price.is_some() && existing.price_estimated);
        self.uncertain_prices.unpriced += u32::from(existing.price.is_none());
        self.changes.push(ResourceChange {
            address: identity.address.clone(),
            kind: resolver.kind(existing),
            name: identity.name.clone(),
            index: identity.index.clone(),
            mode: None,
            provider_name: None,
            change: Change {
                actions: vec![action],
                after: stays.then(|| before.clone()),
                before: Some(before),
                after_unknown: BTreeMap::new(),
                termination_grace_seconds,
            },
            action_reason: Some(action_reason.to_owned()),
        });
        let daemons = resolver.daemons(existing);
        self.explain.push(ExplainRow {
            address: identity.address.clone(),
            group: batch.map(batch_name),
            reason,
            retire_reason: None,
            drift: existing.due.clone().filter(|_| stays),
            differences: existing.differences.clone(),
            hourly_before: existing.price,
            hourly_after: existing.price.filter(|_| stays),
            estimated: stays && existing.price.is_some() && existing.price_estimated,
            pods: PodCounts::default(),
            pods_before: resolver.pods_before(existing),
            daemons: if stays { daemons } else { Amount::default() },
            rejected: Vec::new(),
            overlays: existing.overlays.clone(),
            relaxed: Vec::new(),
        });
    }

    fn add_condition(&mut self, identity: &RowIdentity, condition: Condition) {
        self.preconditions.push(Precondition { address: identity.address.clone(), condition });
    }

    /// Adds the preconditions of a removal: the instance is unchanged, and workloads have at most
    /// their planned pods.
    fn add_removal_conditions(
        &mut self,
        resolver: &NodeResolver,
        identity: &RowIdentity,
        existing: &ExistingNode,
    ) {
        if let Some(instance) = resolver.instance(existing) {
            let node_uid = resolver.node(existing).map(|node| node.uid.clone());
            let instance_id = instance.id.clone();
            self.add_condition(identity, Condition::InstanceIs { instance_id, node_uid });
        }
        for (workload, replicas) in resolver.workloads_at_most(existing) {
            self.add_condition(identity, Condition::ReplicasAtMost { workload, replicas });
        }
    }

    /// Records the pods of each row, and adds newly placed pods to `placements`.
    fn record_placements(&mut self, inputs: &DiffInputs, addresses: &BTreeMap<NodeRef, Address>) {
        let at: BTreeMap<Address, usize> =
            self.explain.iter().enumerate().map(|(i, row)| (row.address.clone(), i)).collect();
        for (group, pods_by_node) in &inputs.solution.target.placements {
            let group = &inputs.demand.groups[*group];
            let workload = WorkloadKey::from(workload_key(&group.workload));
            for (node, count) in pods_by_node {
                let Some(address) = addresses.get(node) else { continue };
                let pods = &mut self.explain[at[address]].pods;
                *pods.entry(workload.clone()).or_insert(0) += count;
                let running = match node {
                    NodeRef::Existing(name) => group.running.get(name).copied().unwrap_or(0),
                    NodeRef::Launch(_) => 0,
                };
                let pods = count.saturating_sub(running);
                if pods > 0 {
                    let (workload, address) = (group.workload.clone(), address.clone());
                    self.placements.push(PlacementRow { workload, address, pods });
                }
            }
        }
        for row in &mut self.explain {
            if row.pods_before == row.pods {
                // Equal maps share one allocation.
                row.pods_before = row.pods.clone();
            }
        }
    }

    /// Counts the blocked rows, which depend on the pods of each row. A protected row without a due
    /// change gets the word of an unchanged one.
    fn count_blocked(&mut self) {
        for (change, explain) in self.changes.iter_mut().zip(&self.explain) {
            let is_kept =
                matches!(&explain.reason, Reason::Keep { because: KeepReason::Blocked { .. } });
            if is_blocked(explain) {
                self.blocked += 1;
            } else if is_kept {
                change.action_reason = Some(action_reason::PROTECTED.to_owned());
            }
        }
    }

    fn exclude_launch(&mut self, inputs: &DiffInputs, launch: usize) {
        let node = NodeRef::Launch(launch);
        for (group, pods_by_node) in &inputs.solution.target.placements {
            let Some(pods) = pods_by_node.get(&node) else { continue };
            let group = &inputs.demand.groups[*group];
            let known = self.excluded_pods.iter_mut().find(|row| row.workload == group.workload);
            if let Some(row) = known {
                row.pods += pods;
                continue;
            }
            let detail = "the node they were planned for is excluded from this plan".to_owned();
            self.excluded_pods.push(UnschedulableRow {
                workload: group.workload.clone(),
                origin: group.origin.clone(),
                pods: *pods,
                offerings: 0,
                reasons: vec![Rejection { reason: Code::LeftOut.to_string(), detail, count: 0 }],
                nearest: Some("plan without --target and --exclude".to_owned()),
                eviction: None,
                displaces: BTreeMap::new(),
            });
        }
    }
}

/// Returns the launches that the user did not exclude. Without excluded members, a mixed group buys
/// others on demand.
fn retained_launches<'a>(inputs: &DiffInputs<'a>, indexes: &[usize]) -> Cow<'a, [Launch]> {
    let DiffInputs { desired, observed, catalog, solution, .. } = *inputs;
    let target = &solution.target;
    if indexes.len() == target.launches.len() {
        return Cow::Borrowed(&target.launches);
    }
    let mut retained: Vec<Launch> =
        indexes.iter().map(|index| target.launches[*index].clone()).collect();
    assign_capacity_types(desired, observed, catalog, &mut retained, &target.retires);
    Cow::Owned(retained)
}

fn launch_daemons(resolver: &NodeResolver, node: &NewNode) -> Amount {
    let daemons = &resolver.inputs.demand.daemons;
    Amount::from(&daemon_requests(daemons, &node.labels, &node.taints, &node.allocatable))
}

fn batch_name(batch: usize) -> String {
    format!("replacement-{}", batch + 1)
}

/// Returns the number of running and still planned pods that move because of retirements. A pod
/// counts as well if its controller may delete another one instead.
fn moved_pods(inputs: &DiffInputs) -> u32 {
    let target = &inputs.solution.target;
    let of_group = |(index, group): (usize, &crate::demand::PodGroup)| {
        let empty = BTreeMap::new();
        let planned = target.placements.get(&index).unwrap_or(&empty);
        let stays = |(node, running): (&NodeName, &u32)| {
            planned.get(&NodeRef::Existing(node.clone())).copied().unwrap_or(0).min(*running)
        };
        let live: u32 = group.running.values().sum();
        let retiring = group.running.iter().filter(|(node, _)| target.retires.contains_key(*node));
        let retiring: u32 = retiring.map(|(_, running)| running).sum();
        let remaining = group.running.iter().map(stays).sum();
        let may_stay: u32 = target.retires.keys().map(|node| group.may_stay_on(node)).sum();
        let moved = live.min(group.counts.planned).saturating_sub(remaining).min(retiring);
        (moved + may_stay).min(group.counts.planned)
    };
    inputs.demand.groups.iter().enumerate().map(of_group).sum()
}
