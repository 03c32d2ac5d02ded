//! What a plan asks for, taken from its wire form and checked for being whole.

use std::collections::{BTreeMap, BTreeSet};

use super::EarlierLaunch;
use super::fallback::Offering;
use crate::model::ids::{Address, ChangeId, GroupName, InstanceId, PoolName, WorkloadId};
use crate::plan::wire::{Action, Condition, NodeState, ResourceChange, ResourceKind, WaveStep};
use crate::plan::{Plan, change_id};

/// The changes of one wave.
pub(super) enum WaveWork<'p> {
    Launch(Vec<LaunchWork<'p>>),
    Retire(Vec<RetireWork<'p>>),
}

impl WaveWork<'_> {
    pub(super) fn step(&self) -> WaveStep {
        match self {
            Self::Launch(_) => WaveStep::Launch,
            Self::Retire(_) => WaveStep::Retire,
        }
    }

    /// Has launches that were asked for before be asked for as the same changes.
    pub(super) fn reuse_change_ids(&mut self, begun: &BTreeMap<Address, EarlierLaunch>) {
        let Self::Launch(launches) = self else { return };
        for work in launches {
            if let Some(EarlierLaunch { change, offering_index }) = begun.get(work.address) {
                work.change_id = change.clone();
                work.offering_index = usize::try_from(*offering_index).unwrap_or(usize::MAX);
            }
        }
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &Address> {
        let (launches, retires) = match self {
            Self::Launch(launches) => (launches.as_slice(), [].as_slice()),
            Self::Retire(retires) => ([].as_slice(), retires.as_slice()),
        };
        launches.iter().map(|work| work.address).chain(retires.iter().map(|work| work.address))
    }
}

/// An instance to launch, everything about it decided.
pub(super) struct LaunchWork<'p> {
    pub(super) address: &'p Address,
    pub(super) change_id: ChangeId,
    pub(super) key: &'p str,
    pub(super) pool: &'p PoolName,
    pub(super) image: &'p str,
    pub(super) node: &'p NodeState,
    /// The instance that goes once this one is Ready.
    pub(super) replaces: Option<&'p InstanceId>,
    /// The planned offering, then those that may stand in; none for a member of a group.
    pub(super) offerings: Vec<Offering>,
    /// Which of them is asked for first: those before had no capacity when they were.
    pub(super) offering_index: usize,
    /// The group that makes it, where it is to be a member.
    pub(super) group: Option<GroupWork<'p>>,
}

/// A group to be raised, once for all of its members to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupWork<'p> {
    pub(super) address: &'p Address,
    /// The Auto Scaling group.
    pub(super) name: &'p GroupName,
    /// The size that it is raised from, and to.
    pub(super) from: u32,
    pub(super) to: u32,
    /// Members that the plan knows.
    pub(super) known: BTreeSet<&'p InstanceId>,
}

/// An instance to drain and terminate.
pub(super) struct RetireWork<'p> {
    pub(super) address: &'p Address,
    pub(super) instance: &'p InstanceId,
    pub(super) node: &'p NodeState,
    /// Name of the group of rows that replace each other.
    pub(super) group: Option<&'p str>,
    /// The row of the group that it is a member of, and the group's name.
    pub(super) of_group: Option<&'p Address>,
    pub(super) member_of: Option<&'p GroupName>,
    /// Most replicas that each workload may still have when the node goes.
    pub(super) at_most: Vec<(&'p WorkloadId, u32)>,
}

/// Takes a plan apart.
pub(super) struct Reader<'p> {
    plan: &'p Plan,
    rows: BTreeMap<&'p Address, &'p ResourceChange>,
    groups: BTreeMap<&'p Address, &'p str>,
    problems: Vec<String>,
}

impl<'p> Reader<'p> {
    /// Returns the waves of `plan`, in order.
    ///
    /// # Errors
    /// When a change is in no wave, or in one before its time, or lacks what it takes to carry it
    /// out; every problem is named.
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

    /// Checks that waves and rows speak of the same changes, and that terminations come last.
    fn check_order(&mut self) {
        let mut planned: BTreeSet<(WaveStep, &Address)> = BTreeSet::new();
        let mut retiring = false;
        for wave in &self.plan.capacity.waves {
            retiring |= wave.step == WaveStep::Retire;
            if retiring && wave.step == WaveStep::Launch {
                self.problems.push("a launch wave comes after a retire wave".to_owned());
            }
            for address in &wave.addresses {
                if !planned.insert((wave.step, address)) {
                    self.problems.push(format!("`{address}` is in two waves of one step"));
                }
            }
        }
        let mut wanted = BTreeSet::new();
        for row in &self.plan.resource_changes {
            let has = |action| row.change.actions.contains(&action);
            let is_resize = row.kind == ResourceKind::AutoscalingGroup && !has(Action::Create);
            let is_known = is_resize || row.kind == ResourceKind::Ec2Instance || has(Action::NoOp);
            if has(Action::Update) && !is_resize || !is_known {
                self.problems.push(format!(
                    "`{}` is a change that this version cannot carry out",
                    row.address
                ));
            }
            wanted.extend(has(Action::Create).then_some((WaveStep::Launch, &row.address)));
            wanted.extend(has(Action::Delete).then_some((WaveStep::Retire, &row.address)));
        }
        for (_, address) in wanted.difference(&planned) {
            self.problems.push(format!("`{address}` changes, but is in no wave that does it"));
        }
        for (_, address) in planned.difference(&wanted) {
            self.problems.push(format!("`{address}` is in a wave, but its row says otherwise"));
        }
        if self.rows.len() != self.plan.resource_changes.len() {
            self.problems.push("two rows have the same address".to_owned());
        }
    }

    fn launch(&self, row: &'p ResourceChange) -> Result<LaunchWork<'p>, String> {
        let lacks = |what: &str| format!("`{}` has no {what} to launch with", row.address);
        let node = row.change.after.as_ref().ok_or_else(|| lacks("`after`"))?;
        let group = self.group_of(node, row)?;
        let offerings = if group.is_some() { Vec::new() } else { self.offerings(node, row)? };
        Ok(LaunchWork {
            address: &row.address,
            change_id: change_id(&self.plan.capacity.plan_id, &row.address),
            key: row.index.as_deref().ok_or_else(|| lacks("key"))?,
            pool: node.pool.as_ref().ok_or_else(|| lacks("pool"))?,
            image: node.image.as_deref().ok_or_else(|| lacks("image"))?,
            node,
            replaces: row.change.before.as_ref().and_then(|before| before.instance_id.as_ref()),
            offerings,
            offering_index: 0,
            group,
        })
    }

    /// Returns the row of the group that a state is a member of, by its address: rows that change
    /// nothing by themselves are not in the digest, and their names could be anything.
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
                "`{}` is to be a member of group {}, which the world of the plan does not tell of",
                row.address, group.name
            ));
        };
        let of_group = |row: &&ResourceChange| {
            let state = row.change.after.as_ref().or(row.change.before.as_ref());
            let pool = state.and_then(|state| state.pool.as_ref());
            row.kind == ResourceKind::Ec2Instance && pool == node.pool.as_ref()
        };
        let rows: Vec<&'p ResourceChange> =
            self.plan.resource_changes.iter().filter(of_group).collect();
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

    /// Returns which group a row is of, and the size that its changes count from: what its
    /// precondition says, which the row only repeats. `None` where the world told of no group.
    ///
    /// # Errors
    /// When precondition and row do not say the same.
    fn size_of(&self, group: &'p ResourceChange) -> Result<Option<(&'p GroupName, u32)>, String> {
        let conditions = self.plan.capacity.base.preconditions.iter();
        let mut conditions = conditions.filter(|it| it.address == group.address).filter_map(|it| {
            match &it.condition {
                Condition::GroupIs { group, desired } => Some((group, *desired)),
                Condition::InstanceIs { .. }
                | Condition::KeyUnused { .. }
                | Condition::ReplicasAtMost { .. } => None,
            }
        });
        let said = group.change.before.as_ref().and_then(|state| state.group.as_ref());
        let said = said.and_then(|size| Some((size.name.as_ref()?, size.desired)));
        let held = conditions.next();
        if held == said && conditions.next().is_none() {
            return Ok(held);
        }
        Err(format!("`{}` does not say of its group what its precondition says", group.address))
    }

    fn offerings(&self, node: &NodeState, row: &ResourceChange) -> Result<Vec<Offering>, String> {
        let lacks = |what: &str| format!("`{}` has no {what} to launch with", row.address);
        let planned = Offering {
            instance_type: required(node.instance_type.as_ref(), || lacks("instance type"))?,
            zone: required(node.zone.as_ref(), || lacks("zone"))?,
            capacity_type: required(node.capacity_type.as_ref(), || lacks("capacity type"))?,
        };
        let alternatives = self.plan.capacity.alternatives.iter();
        let alternatives =
            alternatives.filter(|of| of.address == row.address).flat_map(|of| &of.offerings);
        let alternatives = alternatives.map(|offering| Offering {
            instance_type: offering.instance_type.clone(),
            zone: offering.zone.clone(),
            capacity_type: offering.capacity_type,
        });
        Ok(std::iter::once(planned).chain(alternatives).collect())
    }

    fn retire(&self, row: &'p ResourceChange) -> Result<RetireWork<'p>, String> {
        let lacks = |what: &str| format!("`{}` has no {what} to retire", row.address);
        let node = row.change.before.as_ref().ok_or_else(|| lacks("`before`"))?;
        let group = self.group_row(node);
        let size = group.map(|row| self.size_of(row)).transpose()?.flatten();
        let own = self.plan.capacity.base.preconditions.iter();
        let own = own.filter(|precondition| precondition.address == row.address);
        let at_most = own.filter_map(|precondition| match &precondition.condition {
            Condition::ReplicasAtMost { workload, replicas } => Some((workload, *replicas)),
            Condition::InstanceIs { .. }
            | Condition::KeyUnused { .. }
            | Condition::GroupIs { .. } => None,
        });
        Ok(RetireWork {
            address: &row.address,
            instance: node.instance_id.as_ref().ok_or_else(|| lacks("instance id"))?,
            node,
            group: self.groups.get(&row.address).copied(),
            of_group: group.map(|row| &row.address),
            member_of: size.map(|(name, _)| name),
            at_most: at_most.collect(),
        })
    }
}

/// Returns the group of rows that replace each other, by row.
pub(super) fn groups(plan: &Plan) -> BTreeMap<&Address, &str> {
    let rows = plan.capacity.explain.iter();
    rows.filter_map(|row| Some((&row.address, row.group.as_deref()?))).collect()
}

/// Returns a value that a change cannot do without.
fn required<V: Clone>(value: Option<&V>, lacking: impl Fn() -> String) -> Result<V, String> {
    value.cloned().ok_or_else(lacking)
}
