//! Changes of a plan, read from its wire form and checked for completeness.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::EarlierLaunch;
use super::fallback::{Offering, attempts_of, launched_offering};
use super::receipt::LaunchedOffering;
use crate::model::ids::{Address, ChangeId, GroupName, InstanceId, PoolName, WorkloadId};
use crate::plan::wire::{Action, Condition, NodeState, ResourceChange, ResourceKind, WaveStep};
use crate::plan::{Plan, change_id};

/// The changes of one wave.
pub(super) enum WaveWork<'p> {
    Launch(Vec<LaunchWork<'p>>),
    Retire(Vec<RetireWork<'p>>),
}

impl<'p> WaveWork<'p> {
    pub(super) fn launches(&self) -> &[LaunchWork<'p>] {
        match self {
            Self::Launch(launches) => launches,
            Self::Retire(_) => &[],
        }
    }

    pub(super) fn retires(&self) -> &[RetireWork<'p>] {
        match self {
            Self::Launch(_) => &[],
            Self::Retire(retires) => retires,
        }
    }

    pub(super) fn step(&self) -> WaveStep {
        match self {
            Self::Launch(_) => WaveStep::Launch,
            Self::Retire(_) => WaveStep::Retire,
        }
    }

    /// Reuses the change IDs and request indexes of launches that an earlier plan requested.
    pub(super) fn reuse_change_ids(&mut self, earlier: &BTreeMap<Address, EarlierLaunch>) {
        let Self::Launch(launches) = self else { return };
        for work in launches {
            if let Some(EarlierLaunch { change, attempt_index }) = earlier.get(work.address) {
                work.change_id = change.clone();
                work.attempt_index = usize::try_from(*attempt_index).unwrap_or(usize::MAX);
            }
        }
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &Address> {
        let launches = self.launches().iter().map(|work| work.address);
        launches.chain(self.retires().iter().map(|work| work.address))
    }
}

/// An instance to launch, with all its properties.
pub(super) struct LaunchWork<'p> {
    pub(super) address: &'p Address,
    pub(super) change_id: ChangeId,
    pub(super) key: &'p str,
    pub(super) pool: &'p PoolName,
    pub(super) image: &'p str,
    pub(super) node: &'p NodeState,
    /// Instance to retire once this one is Ready.
    pub(super) replaces: Option<&'p InstanceId>,
    /// Offerings of each request, the planned offering first; empty for a group member.
    pub(super) attempts: Vec<Vec<Offering>>,
    /// Index of the first request. The offerings of the requests before it had no capacity.
    pub(super) attempt_index: usize,
    /// Auto Scaling group that launches the instance, if it is a group member.
    pub(super) group: Option<GroupWork<'p>>,
}

/// A group to raise once for all its new members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupWork<'p> {
    pub(super) address: &'p Address,
    /// Name of the Auto Scaling group.
    pub(super) name: &'p GroupName,
    /// Desired size before the raise.
    pub(super) from: u32,
    /// Desired size after the raise.
    pub(super) to: u32,
    /// Existing members in the plan.
    pub(super) known: BTreeSet<&'p InstanceId>,
}

/// An instance to drain and terminate.
pub(super) struct RetireWork<'p> {
    pub(super) address: &'p Address,
    pub(super) instance: &'p InstanceId,
    pub(super) node: &'p NodeState,
    /// Name of the replacement group of the row.
    pub(super) group: Option<&'p str>,
    /// Row of the Auto Scaling group that the instance is a member of.
    pub(super) group_address: Option<&'p Address>,
    /// Name of that Auto Scaling group.
    pub(super) group_name: Option<&'p GroupName>,
    /// Time from the cordon until pods that are still on the node are deleted.
    pub(super) termination_grace: Option<SignedDuration>,
    /// Maximum replicas of each workload when the node is drained.
    pub(super) max_replicas: Vec<(&'p WorkloadId, u32)>,
}

/// Reads the changes of a plan.
pub(super) struct Reader<'p> {
    plan: &'p Plan,
    rows: BTreeMap<&'p Address, &'p ResourceChange>,
    groups: BTreeMap<&'p Address, &'p str>,
    problems: Vec<String>,
}

impl LaunchWork<'_> {
    /// Returns the record of a launched offering.
    pub(super) fn launched(&self, offering: &Offering) -> LaunchedOffering {
        launched_offering(&self.attempts, offering)
    }
}

impl<'p> Reader<'p> {
    /// Returns the waves of `plan`, in order.
    ///
    /// # Errors
    /// If a change is in no wave, in a wave of the wrong order, or lacks required values. All
    /// problems are listed.
    pub(super) fn waves(plan: &'p Plan) -> Result<Vec<WaveWork<'p>>, Vec<String>> {
        let mut reader = Self {
            plan,
            rows: plan.resource_changes.iter().map(|row| (&row.address, row)).collect(),
            groups: groups(plan),
            problems: Vec::new(),
        };
        reader.check_order();
        let waves = plan.capacity.waves.iter();
        let waves = waves.map(|wave| match wave.step {
            WaveStep::Launch => WaveWork::Launch(reader.each(&wave.addresses, Self::launch)),
            WaveStep::Retire => WaveWork::Retire(reader.each(&wave.addresses, Self::retire)),
        });
        let waves = waves.collect();
        if reader.problems.is_empty() { Ok(waves) } else { Err(reader.problems) }
    }

    fn each<W>(
        &mut self,
        addresses: &'p [Address],
        read: impl Fn(&Self, &'p ResourceChange) -> Result<W, String>,
    ) -> Vec<W> {
        let mut work = Vec::new();
        for row in addresses.iter().filter_map(|address| self.rows.get(address).copied()) {
            match read(self, row) {
                Ok(item) => work.push(item),
                Err(problem) => self.problems.push(problem),
            }
        }
        work
    }

    /// Checks that waves and rows list the same changes, and that retirements come last.
    fn check_order(&mut self) {
        let mut planned: BTreeSet<(WaveStep, &Address)> = BTreeSet::new();
        let mut has_retired = false;
        for wave in &self.plan.capacity.waves {
            has_retired |= wave.step == WaveStep::Retire;
            if has_retired && wave.step == WaveStep::Launch {
                self.problems.push("a launch wave comes after a retire wave".to_owned());
            }
            for address in &wave.addresses {
                if !planned.insert((wave.step, address)) {
                    self.problems.push(format!("`{address}` is in two waves of one step"));
                }
            }
        }
        let mut expected = BTreeSet::new();
        for row in &self.plan.resource_changes {
            let has = |action| row.change.actions.contains(&action);
            let is_resize = row.kind == ResourceKind::AutoscalingGroup && !has(Action::Create);
            let is_supported =
                is_resize || row.kind == ResourceKind::Ec2Instance || has(Action::NoOp);
            if has(Action::Update) && !is_resize || !is_supported {
                self.problems.push(format!(
                    "`{}` is a change that this version cannot carry out",
                    row.address
                ));
            }
            expected.extend(has(Action::Create).then_some((WaveStep::Launch, &row.address)));
            expected.extend(has(Action::Delete).then_some((WaveStep::Retire, &row.address)));
        }
        for (_, address) in expected.difference(&planned) {
            self.problems.push(format!("`{address}` changes, but is in no wave that does it"));
        }
        for (_, address) in planned.difference(&expected) {
            self.problems.push(format!("`{address}` is in a wave, but its row says otherwise"));
        }
        if self.rows.len() != self.plan.resource_changes.len() {
            self.problems.push("two rows have the same address".to_owned());
        }
    }

    fn launch(&self, row: &'p ResourceChange) -> Result<LaunchWork<'p>, String> {
        let missing = |what: &str| format!("`{}` has no {what} to launch with", row.address);
        let node = row.change.after.as_ref().ok_or_else(|| missing("`after`"))?;
        let group = self.group_of(node, row)?;
        let attempts = if group.is_some() { Vec::new() } else { self.attempts(node, row)? };
        Ok(LaunchWork {
            address: &row.address,
            change_id: change_id(&self.plan.capacity.plan_id, &row.address),
            key: row.index.as_deref().ok_or_else(|| missing("key"))?,
            pool: node.pool.as_ref().ok_or_else(|| missing("pool"))?,
            image: node.image.as_deref().ok_or_else(|| missing("image"))?,
            node,
            replaces: row.change.before.as_ref().and_then(|before| before.instance_id.as_ref()),
            attempts,
            attempt_index: 0,
            group,
        })
    }

    /// Returns the row of the Auto Scaling group of a state, by its address. The digest excludes
    /// rows without changes, so their names are not trusted.
    fn group_row(&self, state: &NodeState) -> Option<&'p ResourceChange> {
        let pool = state.pool.as_ref()?;
        let address = format!("{}.{pool}", ResourceKind::AutoscalingGroup.as_str());
        self.rows.get(&Address::from(address)).copied()
    }

    fn group_of(
        &self,
        node: &NodeState,
        row: &ResourceChange,
    ) -> Result<Option<GroupWork<'p>>, String> {
        let Some(group) = self.group_row(node) else { return Ok(None) };
        let Some((name, from)) = self.size_of(group)? else {
            return Err(format!(
                "`{}`: Auto Scaling group {} is missing from the observation of the plan",
                row.address, group.name
            ));
        };
        let is_member = |row: &&ResourceChange| {
            let state = row.change.after.as_ref().or(row.change.before.as_ref());
            let pool = state.and_then(|state| state.pool.as_ref());
            row.kind == ResourceKind::Ec2Instance && pool == node.pool.as_ref()
        };
        let rows: Vec<&'p ResourceChange> =
            self.plan.resource_changes.iter().filter(is_member).collect();
        let creates = rows.iter().filter(|row| row.change.actions.contains(&Action::Create));
        let more = u32::try_from(creates.count()).unwrap_or(u32::MAX);
        let known = rows.iter().filter_map(|row| row.change.before.as_ref()?.instance_id.as_ref());
        Ok(Some(GroupWork {
            address: &group.address,
            name,
            from,
            to: from.saturating_add(more),
            known: known.collect(),
        }))
    }

    /// Returns the name and the initial size of the Auto Scaling group of a row. The precondition
    /// is authoritative and the row repeats it. `None` if the observed state had no group.
    ///
    /// # Errors
    /// If the precondition and the row differ.
    fn size_of(&self, group: &'p ResourceChange) -> Result<Option<(&'p GroupName, u32)>, String> {
        let conditions = self.plan.capacity.base.preconditions.iter();
        let mut conditions =
            conditions.filter(|row| row.address == group.address).filter_map(|row| {
                match &row.condition {
                    Condition::GroupIs { group, desired } => Some((group, *desired)),
                    Condition::InstanceIs { .. }
                    | Condition::KeyUnused { .. }
                    | Condition::ReplicasAtMost { .. } => None,
                }
            });
        let stated = group.change.before.as_ref().and_then(|state| state.group.as_ref());
        let stated = stated.and_then(|size| Some((size.name.as_ref()?, size.desired)));
        let required_size = conditions.next();
        if required_size == stated && conditions.next().is_none() {
            return Ok(required_size);
        }
        Err(format!("`{}`: the group size differs from its precondition", group.address))
    }

    /// Returns the offerings of each request.
    fn attempts(
        &self,
        node: &NodeState,
        row: &ResourceChange,
    ) -> Result<Vec<Vec<Offering>>, String> {
        let missing = |what: &str| format!("`{}` has no {what} to launch with", row.address);
        let planned = Offering {
            instance_type: required(node.instance_type.as_ref(), || missing("instance type"))?,
            zone: required(node.zone.as_ref(), || missing("zone"))?,
            capacity_type: required(node.capacity_type.as_ref(), || missing("capacity type"))?,
        };
        Ok(attempts_of(self.plan, &row.address, &planned))
    }

    fn retire(&self, row: &'p ResourceChange) -> Result<RetireWork<'p>, String> {
        let missing = |what: &str| format!("`{}` has no {what} to retire", row.address);
        let node = row.change.before.as_ref().ok_or_else(|| missing("`before`"))?;
        let group = self.group_row(node);
        let size = group.map(|row| self.size_of(row)).transpose()?.flatten();
        let own = self.plan.capacity.base.preconditions.iter();
        let own = own.filter(|precondition| precondition.address == row.address);
        let max_replicas = own.filter_map(|precondition| match &precondition.condition {
            Condition::ReplicasAtMost { workload, replicas } => Some((workload, *replicas)),
            Condition::InstanceIs { .. }
            | Condition::KeyUnused { .. }
            | Condition::GroupIs { .. } => None,
        });
        Ok(RetireWork {
            address: &row.address,
            instance: node.instance_id.as_ref().ok_or_else(|| missing("instance id"))?,
            node,
            group: self.groups.get(&row.address).copied(),
            group_address: group.map(|row| &row.address),
            group_name: size.map(|(name, _)| name),
            termination_grace: row.change.termination_grace_seconds.map(|seconds| {
                SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX))
            }),
            max_replicas: max_replicas.collect(),
        })
    }
}

/// Returns the replacement group of each row.
pub(super) fn groups(plan: &Plan) -> BTreeMap<&Address, &str> {
    let rows = plan.capacity.explain.iter();
    rows.filter_map(|row| Some((&row.address, row.group.as_deref()?))).collect()
}

/// Returns a value that a change requires.
fn required<V: Clone>(value: Option<&V>, lacking: impl Fn() -> String) -> Result<V, String> {
    value.cloned().ok_or_else(lacking)
}
