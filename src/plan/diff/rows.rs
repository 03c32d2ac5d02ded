//! One row for each node, with its reason, its conditions, and the pods on it.

use std::collections::{BTreeMap, BTreeSet};

use super::address::{Keys, Named};
use super::{Parts, alternatives_row};
use crate::fleet::{Instance, Node, tag};
use crate::ids::{Address, NodeName, WorkloadId, WorkloadKey};
use crate::plan::wire::{
    Action, AlternativesRow, Amount, Change, Condition, ExplainRow, NodeState, PlacementRow,
    PodCounts, Precondition, Reason, ResourceChange, ResourceKind, UnschedulableRow,
};
use crate::requirement::key;
use crate::solve::{
    KeepReason, Launch, LaunchReason, NewNode, Place, Rejection, Retire, RetireReason, Standing,
    daemon_requests, workload_key,
};

/// Everything that belongs to rows.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub changes: Vec<ResourceChange>,
    pub explain: Vec<ExplainRow>,
    pub preconditions: Vec<Precondition>,
    pub placements: Vec<PlacementRow>,
    pub alternatives: Vec<AlternativesRow>,
    /// Pods of launches that the user left out.
    pub left_out_pods: Vec<UnschedulableRow>,
    pub blocked: u32,
    pub moved: u32,
    /// Nodes after the plan whose price is estimated, and whose price is not known.
    pub estimated: (u32, u32),
}

impl Rows {
    pub(super) fn of(parts: &Parts) -> Self {
        let mut naming = Naming::of(parts);
        let mut rows = Self::default();
        let mut addresses: BTreeMap<Place, Address> = BTreeMap::new();
        let pairs = naming.pairs();
        for (index, launch) in parts.solution.target.launches.iter().enumerate() {
            let replaced = pairs.get(&index).copied();
            let named = match replaced {
                Some(standing) => naming.standing(standing),
                None => naming.keys.next(&launch.node.pool),
            };
            if (parts.left_out)(&named.address) {
                rows.leave_out(parts, index);
                continue;
            }
            addresses.insert(Place::Launch(index), named.address.clone());
            rows.launch(&naming, &named, launch, replaced);
        }
        let paired: BTreeSet<&NodeName> = pairs.values().map(|standing| &standing.name).collect();
        for standing in parts.solution.standing.iter().filter(|s| !paired.contains(&s.name)) {
            let named = naming.standing(standing);
            addresses.insert(Place::Node(standing.name.clone()), named.address.clone());
            rows.standing(&naming, &named, standing);
        }
        rows.place(parts, &addresses);
        rows.moved = moved(parts);
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

    fn launch(
        &mut self,
        naming: &Naming,
        named: &Named,
        launch: &Launch,
        replaced: Option<&Standing>,
    ) {
        let Launch { node, reason, batch, rejected } = launch;
        let retire = replaced.and_then(|s| naming.parts.solution.target.retires.get(&s.name));
        let actions = match replaced {
            Some(_) => vec![Action::Create, Action::Delete],
            None => vec![Action::Create],
        };
        self.changes.push(ResourceChange {
            address: named.address.clone(),
            kind: ResourceKind::Ec2Instance,
            name: named.name.clone(),
            index: named.index.clone(),
            change: Change {
                actions,
                before: replaced.map(|standing| naming.before(standing)),
                after: Some(naming.after(node)),
                after_unknown: naming.unknown(node),
            },
            action_reason: Some(launch_hint(reason, retire.map(|r| &r.reason)).to_owned()),
        });
        if let Some(standing) = replaced {
            self.removal_conditions(naming, named, standing);
        } else {
            let key = named.index.clone().unwrap_or_default();
            self.condition(named, Condition::KeyUnused { pool: node.pool.clone(), key });
        }
        self.alternatives.extend(alternatives_row(&named.address, node));
        let replaced_estimate = replaced.is_some_and(|s| s.price.is_some() && s.price_estimated);
        self.estimated.0 += u32::from(node.price_estimated || replaced_estimate);
        self.estimated.1 += u32::from(replaced.is_some_and(|standing| standing.price.is_none()));
        self.explain.push(ExplainRow {
            address: named.address.clone(),
            group: batch.map(batch_name),
            reason: Reason::Launch { because: naming.with_address(reason) },
            retire_reason: retire.map(|retire| retire.reason.clone()),
            drift: None,
            hourly_before: replaced.and_then(|standing| standing.price),
            hourly_after: Some(node.price),
            estimated: node.price_estimated,
            pods: PodCounts::default(),
            pods_before: replaced.map(|standing| naming.pods_before(standing)).unwrap_or_default(),
            daemons: daemons_of(naming, node),
            rejected: rejected.clone(),
            overlays: node.overlays.clone(),
            relaxed: node.relaxed.clone(),
        });
    }

    fn standing(&mut self, naming: &Naming, named: &Named, standing: &Standing) {
        let target = &naming.parts.solution.target;
        let before = naming.before(standing);
        let retire = target.retires.get(&standing.name);
        let (actions, after, reason, group, hint) = if let Some(Retire { reason, batch }) = retire {
            self.removal_conditions(naming, named, standing);
            let hint = retire_hint(reason);
            (Action::Delete, None, Reason::Retire { because: reason.clone() }, *batch, hint)
        } else {
            let reason = target.keeps.get(&standing.name).cloned();
            let reason = reason.unwrap_or(KeepReason::Needed { pods: 0 });
            self.blocked += u32::from(matches!(reason, KeepReason::Blocked { .. }));
            let hint = keep_hint(&reason);
            (Action::NoOp, Some(before.clone()), Reason::Keep { because: reason }, None, hint)
        };
        let stays = after.is_some();
        self.estimated.0 += u32::from(standing.price.is_some() && standing.price_estimated);
        self.estimated.1 += u32::from(standing.price.is_none());
        self.changes.push(ResourceChange {
            address: named.address.clone(),
            kind: naming.kind(standing),
            name: named.name.clone(),
            index: named.index.clone(),
            change: Change {
                actions: vec![actions],
                before: Some(before),
                after,
                after_unknown: BTreeMap::new(),
            },
            action_reason: Some(hint.to_owned()),
        });
        let daemons = naming.daemons(standing);
        self.explain.push(ExplainRow {
            address: named.address.clone(),
            group: group.map(batch_name),
            reason,
            retire_reason: None,
            drift: standing.drift.clone().filter(|_| stays),
            hourly_before: standing.price,
            hourly_after: standing.price.filter(|_| stays),
            estimated: stays && standing.price.is_some() && standing.price_estimated,
            pods: PodCounts::default(),
            pods_before: naming.pods_before(standing),
            daemons: if stays { daemons } else { Amount::default() },
            rejected: Vec::new(),
            overlays: standing.overlays.clone(),
            relaxed: Vec::new(),
        });
    }

    fn condition(&mut self, named: &Named, condition: Condition) {
        self.preconditions.push(Precondition { address: named.address.clone(), condition });
    }

    /// A removal holds for this very instance, once no workload has more pods than were planned.
    fn removal_conditions(&mut self, naming: &Naming, named: &Named, standing: &Standing) {
        if let Some(instance) = naming.instance(standing) {
            let node_uid = naming.node(standing).map(|node| node.uid.clone());
            let instance_id = instance.id.clone();
            self.condition(named, Condition::InstanceIs { instance_id, node_uid });
        }
        for (workload, replicas) in naming.affected(standing) {
            self.condition(named, Condition::ReplicasAtMost { workload, replicas });
        }
    }

    /// Notes where pods are: on every row how many, and in `placements` those that are new there.
    fn place(&mut self, parts: &Parts, addresses: &BTreeMap<Place, Address>) {
        let at: BTreeMap<Address, usize> =
            self.explain.iter().enumerate().map(|(i, row)| (row.address.clone(), i)).collect();
        for (group, places) in &parts.solution.target.placements {
            let group = &parts.demand.groups[*group];
            let workload = WorkloadKey::from(workload_key(&group.workload));
            for (place, count) in places {
                let Some(address) = addresses.get(place) else { continue };
                let pods = &mut self.explain[at[address]].pods;
                *pods.entry(workload.clone()).or_insert(0) += count;
                let running = match place {
                    Place::Node(name) => group.running.get(name).copied().unwrap_or(0),
                    Place::Launch(_) => 0,
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
                row.pods_before = row.pods.clone();
            }
        }
    }

    fn leave_out(&mut self, parts: &Parts, launch: usize) {
        let place = Place::Launch(launch);
        for (group, places) in &parts.solution.target.placements {
            let Some(pods) = places.get(&place) else { continue };
            let group = &parts.demand.groups[*group];
            let known = self.left_out_pods.iter_mut().find(|row| row.workload == group.workload);
            if let Some(row) = known {
                row.pods += pods;
                continue;
            }
            let detail = "the node they were meant for is left out of this plan".to_owned();
            self.left_out_pods.push(UnschedulableRow {
                workload: group.workload.clone(),
                origin: group.origin.clone(),
                pods: *pods,
                offerings: 0,
                reasons: vec![Rejection { reason: "left-out".to_owned(), detail, count: 0 }],
                nearest: Some("plan without --target and --exclude".to_owned()),
                eviction: None,
                displaces: BTreeMap::new(),
            });
        }
    }
}

/// Finds instances, nodes and addresses of standing nodes.
struct Naming<'a> {
    parts: &'a Parts<'a>,
    keys: Keys,
    /// Pods that run on each node.
    running: BTreeMap<&'a NodeName, PodCounts>,
}

impl<'a> Naming<'a> {
    fn of(parts: &'a Parts<'a>) -> Self {
        let mut running: BTreeMap<&NodeName, PodCounts> = BTreeMap::new();
        for group in &parts.demand.groups {
            let workload = WorkloadKey::from(workload_key(&group.workload));
            for (node, pods) in group.running.iter().filter(|(_, pods)| **pods > 0) {
                *running.entry(node).or_default().entry(workload.clone()).or_insert(0) += pods;
            }
        }
        Self { parts, keys: Keys::of(parts.observed), running }
    }

    fn pods_before(&self, standing: &Standing) -> PodCounts {
        self.running.get(&standing.name).cloned().unwrap_or_default()
    }

    fn node(&self, standing: &Standing) -> Option<&'a Node> {
        self.parts.observed.nodes.get(&standing.name)
    }

    /// The instance of a standing node; while no node has joined, the name is the instance's id.
    fn instance(&self, standing: &Standing) -> Option<&'a Instance> {
        let observed = self.parts.observed;
        match self.node(standing) {
            Some(node) => observed.instances.get(node.instance.as_ref()?),
            None => observed.instances.get(standing.name.as_str()),
        }
    }

    fn standing(&self, standing: &Standing) -> Named {
        match self.instance(standing) {
            Some(instance) => self.keys.existing(&instance.id).unwrap_or_else(|| {
                // A member of a group has no key: nobody but Auto Scaling made it.
                match &standing.pool {
                    Some(pool) => Named::instance(pool.as_str(), instance.id.as_str()),
                    None => Named::foreign(&instance.id),
                }
            }),
            None => Named::node(&standing.name),
        }
    }

    fn kind(&self, standing: &Standing) -> ResourceKind {
        match self.instance(standing) {
            Some(_) => ResourceKind::Ec2Instance,
            None => ResourceKind::KubernetesNode,
        }
    }

    /// One launch that takes the place of exactly one node of the same pool shares its row.
    fn pairs(&self) -> BTreeMap<usize, &'a Standing> {
        let solution = self.parts.solution;
        let mut exchanges: BTreeMap<usize, (Vec<usize>, Vec<&Standing>)> = BTreeMap::new();
        for (index, launch) in solution.target.launches.iter().enumerate() {
            if let Some(batch) = launch.batch {
                exchanges.entry(batch).or_default().0.push(index);
            }
        }
        for standing in &solution.standing {
            let retire = solution.target.retires.get(&standing.name);
            if let Some(batch) = retire.and_then(|retire| retire.batch) {
                exchanges.entry(batch).or_default().1.push(standing);
            }
        }
        let one_for_one = exchanges.into_values().filter_map(|exchange| match exchange {
            (launches, retired) if launches.len() == 1 && retired.len() == 1 => {
                Some((launches[0], retired[0]))
            }
            _ => None,
        });
        let node = |launch: usize| &solution.target.launches[launch].node;
        one_for_one.filter(|(launch, s)| self.can_hand_over(s, node(*launch))).collect()
    }

    /// A node of the same pool takes the key over, if the one that goes has a key.
    fn can_hand_over(&self, standing: &Standing, node: &NewNode) -> bool {
        standing.pool.as_ref() == Some(&node.pool)
            && self.instance(standing).is_some_and(|instance| self.keys.has_number(&instance.id))
    }

    fn before(&self, standing: &Standing) -> NodeState {
        let (node, instance) = (self.node(standing), self.instance(standing));
        let zone = instance.map(|i| i.zone.clone());
        let known = self.parts.catalog.zones.iter().find(|z| Some(&z.name) == zone.as_ref());
        NodeState {
            pool: standing.pool.clone(),
            instance_type: instance.map(|i| i.instance_type.clone()),
            zone_id: known.map(|zone| zone.id.clone()),
            zone,
            capacity_type: instance.map(|i| i.capacity_type),
            image: instance.map(|i| i.image.clone()).filter(|image| !image.is_empty()),
            labels: standing.labels.clone(),
            taints: standing.taints.clone(),
            startup_taints: standing.startup_taints.clone(),
            capacity: Amount::from(&standing.capacity),
            allocatable: Amount::from(&standing.allocatable),
            reservation: instance.and_then(|i| i.reservation.clone()),
            open_labels: Vec::new(),
            spec_digest: instance.and_then(|i| i.tags.get(tag::SPEC).cloned()),
            // What is not ours may not be listed: of its machine the node alone tells.
            instance_id: instance
                .map(|i| i.id.clone())
                .or_else(|| node.and_then(|node| node.instance.clone())),
            node: node.map(|node| node.name.clone()),
            node_uid: node.map(|node| node.uid.clone()),
            launched_at: instance.map(|i| i.launched_at),
            group: None,
        }
    }

    /// What a launch makes; where the next member of a group will be is known of one zone alone.
    fn after(&self, node: &NewNode) -> NodeState {
        let mut state = after(node);
        if self.is_open(node) {
            (state.zone, state.zone_id) = (None, None);
        }
        state
    }

    fn is_open(&self, node: &NewNode) -> bool {
        let is_member = self.parts.desired.node_groups.contains_key(&node.pool);
        is_member && !node.labels.contains_key(key::ZONE)
    }

    /// What of a launch is known only once it is there.
    fn unknown(&self, node: &NewNode) -> BTreeMap<String, bool> {
        let place = ["zone", "zone_id"].into_iter().filter(|_| self.is_open(node));
        let keys = ["instance_id", "node", "node_uid"].into_iter().chain(place);
        keys.map(|key| (key.to_owned(), true)).collect()
    }

    /// What the DaemonSets that admit a standing node take of it; nothing, where it is an instance of
    /// which nothing tells what node it becomes.
    fn daemons(&self, standing: &Standing) -> Amount {
        if standing.labels.is_empty() {
            return Amount::default();
        }
        let daemons = &self.parts.demand.daemons;
        Amount::from(&daemon_requests(daemons, &standing.labels, &standing.taints))
    }

    /// The workloads whose counts a removal relies on, with the most pods each may have: those that
    /// run on the node, and those that have more pods than are planned.
    fn affected(&self, standing: &Standing) -> Vec<(WorkloadId, u32)> {
        let demand = self.parts.demand;
        let concerns = |group: &&crate::demand::PodGroup| {
            let live: u32 = group.running.values().sum();
            group.running.contains_key(&standing.name) || live > demand.planned(group)
        };
        let groups = demand.groups.iter().filter(concerns);
        groups.map(|group| (group.workload.clone(), demand.planned(group))).collect()
    }

    /// Reasons name nodes as the solver knows them; a plan names rows.
    fn with_address(&self, reason: &LaunchReason) -> LaunchReason {
        match reason {
            LaunchReason::Replacement { of, because } => {
                let named =
                    self.parts.solution.standing.iter().find(|s| s.name.as_str() == of.as_str());
                let of =
                    named.map_or_else(|| of.clone(), |standing| self.standing(standing).address);
                LaunchReason::Replacement { of, because: because.clone() }
            }
            LaunchReason::Demand { .. }
            | LaunchReason::Consolidation { .. }
            | LaunchReason::Static { .. } => reason.clone(),
        }
    }
}

fn after(node: &NewNode) -> NodeState {
    let NewNode {
        pool,
        node_class: _, // named by the pool, and part of `spec_digest`
        instance_type,
        zone,
        zone_id,
        capacity_type,
        image,
        labels,
        taints,
        startup_taints,
        capacity,
        allocatable,
        price: _,           // stands in `explain`: a price is no decision
        price_estimated: _, // counted in `cost`
        spec_digest,
        reservation,
        open_labels,
        overlays: _, // stand in `explain`: what they change is in the amounts and prices
        relaxed: _,  // stands in `explain`
        alternatives: _, // a row of their own
    } = node;
    NodeState {
        pool: Some(pool.clone()),
        instance_type: Some(instance_type.clone()),
        zone: Some(zone.clone()),
        zone_id: Some(zone_id.clone()),
        capacity_type: Some(*capacity_type),
        image: Some(image.clone()),
        labels: labels.clone(),
        taints: taints.clone(),
        startup_taints: startup_taints.clone(),
        capacity: Amount::from(capacity),
        allocatable: Amount::from(allocatable),
        reservation: reservation.clone(),
        open_labels: open_labels.clone(),
        spec_digest: Some(spec_digest.clone()),
        instance_id: None,
        node: None,
        node_uid: None,
        launched_at: None,
        group: None,
    }
}

fn daemons_of(naming: &Naming, node: &NewNode) -> Amount {
    let daemons = &naming.parts.demand.daemons;
    Amount::from(&daemon_requests(daemons, &node.labels, &node.taints))
}

fn batch_name(batch: usize) -> String {
    format!("exchange-{}", batch + 1)
}

/// Running pods that a removal moves: those of nodes that go, as far as they are planned at all.
fn moved(parts: &Parts) -> u32 {
    let target = &parts.solution.target;
    let of_group = |(index, group): (usize, &crate::demand::PodGroup)| {
        let empty = BTreeMap::new();
        let places = target.placements.get(&index).unwrap_or(&empty);
        let stays = |(node, running): (&NodeName, &u32)| {
            places.get(&Place::Node(node.clone())).copied().unwrap_or(0).min(*running)
        };
        let live: u32 = group.running.values().sum();
        let going = group.running.iter().filter(|(node, _)| target.retires.contains_key(*node));
        let going: u32 = going.map(|(_, running)| running).sum();
        let staying = group.running.iter().map(stays).sum();
        live.min(group.counts.planned).saturating_sub(staying).min(going)
    };
    parts.demand.groups.iter().enumerate().map(of_group).sum()
}

fn launch_hint(reason: &LaunchReason, retire: Option<&RetireReason>) -> &'static str {
    match (reason, retire) {
        (_, Some(RetireReason::Requested)) => "replace_by_request",
        (_, Some(RetireReason::Drifted { .. })) => "replace_because_drifted",
        (_, Some(RetireReason::Expired { .. })) => "replace_because_expired",
        (_, Some(_)) => "replace_because_underutilized",
        (LaunchReason::Demand { .. }, None) => "create_for_pending_pods",
        (LaunchReason::Consolidation { .. }, None) => "create_for_consolidation",
        (LaunchReason::Replacement { .. }, None) => "create_for_replacement",
        (LaunchReason::Static { .. }, None) => "create_for_static_pool",
    }
}

fn retire_hint(reason: &RetireReason) -> &'static str {
    match reason {
        RetireReason::Empty { .. } => "delete_because_empty",
        RetireReason::Underutilized { .. } => "delete_because_underutilized",
        RetireReason::Surplus { .. } => "delete_because_surplus",
        RetireReason::PoolRemoved => "delete_because_no_resource_config",
        RetireReason::Drifted { .. } => "delete_because_drifted",
        RetireReason::Expired { .. } => "delete_because_expired",
        RetireReason::Requested => "delete_by_request",
    }
}

fn keep_hint(reason: &KeepReason) -> &'static str {
    match reason {
        KeepReason::Needed { .. } => "noop_because_needed",
        KeepReason::NotWorthMoving { .. } => "noop_because_not_worth_moving",
        KeepReason::Blocked { .. } => "noop_because_blocked",
        KeepReason::NotOurs => "noop_because_not_ours",
    }
}
