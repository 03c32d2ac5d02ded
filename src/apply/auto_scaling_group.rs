//! Auto Scaling groups: raised once per group by desired size, reduced by named instance.

use std::collections::{BTreeMap, BTreeSet};

use super::Run;
use super::launch::Booting;
use super::receipt::{Outcome, Step};
use super::wave_plan::{GroupWork, LaunchWork, RetireWork};
use crate::apply::ports::{Clock, Cloud, Cluster, PortError};
use crate::model::ids::{Address, GroupName, InstanceId};
use crate::model::observed::{Instance, Observed};
use crate::model::saturating_time::later;
use crate::plan::wire::{Action, WaveStep};

/// Members of a group that the plan keeps.
pub(super) struct RemainingMembers<'p> {
    address: &'p Address,
    group: &'p GroupName,
    /// IDs of the members; `None` if they could not be read.
    members: Option<BTreeSet<InstanceId>>,
}

/// Returns true if the group is terminating a member. The instance state of EC2 may lag.
fn is_terminating(member: &Instance) -> bool {
    member.group.as_ref().is_some_and(|of| of.lifecycle.starts_with("Terminating"))
}

impl<C: Cloud, K: Cluster, T: Clock> Run<'_, C, K, T> {
    /// Raises each group with new members unless there is a `blocker`, and assigns the new
    /// instances to rows.
    pub(super) async fn raise_groups<'w, 'p>(
        &mut self,
        launches: &'w [LaunchWork<'p>],
        observed: Option<&Observed>,
        blocker: Option<&str>,
    ) -> Vec<Booting<'w, 'p>> {
        let mut groups: BTreeMap<&Address, (&GroupWork<'p>, Vec<&'w LaunchWork<'p>>)> =
            BTreeMap::new();
        for work in launches {
            let Some(group) = &work.group else { continue };
            if let Some(why) = self.exceptions.dropped.get(work.address) {
                let outcome = Outcome::Dropped { why: why.clone() };
                self.finish(work.address, WaveStep::Launch, None, outcome);
                continue;
            }
            groups.entry(group.address).or_insert_with(|| (group, Vec::new())).1.push(work);
        }
        let mut booting = Vec::new();
        for (group, works) in groups.into_values() {
            match self.raise(group, works.len(), observed, blocker).await {
                Ok(success) => {
                    booting.extend(self.assign_new_members(group, works, &success).await);
                }
                Err(outcome) => {
                    for work in works {
                        self.finish(work.address, WaveStep::Launch, None, outcome.clone());
                    }
                }
            }
        }
        booting
    }

    /// Raises a group to the planned size, unless there is a `blocker`. A group of that size was
    /// raised by an earlier run.
    async fn raise(
        &mut self,
        group: &GroupWork<'_>,
        more: usize,
        observed: Option<&Observed>,
        blocker: Option<&str>,
    ) -> Result<Outcome, Outcome> {
        if self.settings.is_interrupted() {
            return Err(Outcome::Skipped { why: "interrupted".to_owned() });
        }
        let failed = |why: String| Outcome::Failed { why };
        let observed =
            observed.ok_or_else(|| failed("the live state cannot be read".to_owned()))?;
        let live = observed.groups.get(group.name);
        let live = live.ok_or_else(|| failed(format!("there is no group {}", group.name)))?;
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        // An earlier run may have terminated members, which lowered the group. Raising it from the
        // planned size would launch too many members.
        let stays =
            |member: &&Instance| group.known.contains(&member.id) && !is_terminating(member);
        let known = observed.members(group.name).filter(stays).count();
        let from = group.from.min(u32::try_from(known).unwrap_or(u32::MAX));
        let to = from.saturating_add(more).min(group.to);
        if live.desired >= to {
            return Ok(Outcome::AlreadyDone);
        }
        if let Some(why) = blocker {
            return Err(Outcome::Skipped { why: why.to_owned() });
        }
        let mut tries = 1;
        loop {
            match self.ports.cloud.raise_group(group.name, to).await {
                Ok(()) => {
                    let step = Step::Raised { group: group.name.clone(), from: live.desired, to };
                    self.emit(Some(group.address), step);
                    return Ok(Outcome::Done);
                }
                Err(error) if error.is_transient() && tries < self.settings.bounds.tries => {
                    self.emit(Some(group.address), Step::Retrying { why: error.to_string() });
                    tries += 1;
                    self.pause().await;
                }
                Err(PortError { verb, reason, .. }) => {
                    return Err(failed(format!("{verb} failed: {reason}")));
                }
            }
        }
    }

    /// Waits for one new member per row, and assigns them to the rows in order.
    async fn assign_new_members<'w, 'p>(
        &mut self,
        group: &GroupWork<'p>,
        works: Vec<&'w LaunchWork<'p>>,
        success: &Outcome,
    ) -> Vec<Booting<'w, 'p>> {
        let found = self.new_members(group, works.len()).await;
        if found.len() > works.len() {
            // More members than approved: another client raised the group.
            let (there, planned) = (found.len(), works.len());
            let why =
                format!("group {} got {there} members, and {planned} are planned", group.name);
            self.finish(group.address, WaveStep::Launch, None, Outcome::Failed { why });
        }
        let interrupted = self.settings.is_interrupted();
        let mut booting = Vec::new();
        let mut found = found.into_iter();
        for work in works {
            if let Some(instance) = found.next() {
                self.emit(Some(work.address), Step::Joined { instance_id: instance.clone() });
                let deadline = later(self.now(), self.settings.bounds.ready);
                let success = success.clone();
                booting.push(Booting::new(work, instance, success, deadline));
            } else {
                let why = if interrupted {
                    format!("interrupted while group {} was making the member", group.name)
                } else {
                    let bound = self.settings.bounds.ready;
                    format!("group {} made no such member within {bound:#}", group.name)
                };
                self.finish(work.address, WaveStep::Launch, None, Outcome::Abandoned { why });
            }
        }
        booting
    }

    /// Waits for `wanted` members that the plan does not list. Returns them, oldest first.
    async fn new_members(&mut self, group: &GroupWork<'_>, wanted: usize) -> Vec<InstanceId> {
        let deadline = self.deadline(self.settings.bounds.ready);
        loop {
            let mut found = Vec::new();
            if let Some(observed) = self.observe_complete().await {
                let new = observed.members(group.name).filter(|i| !group.known.contains(&i.id));
                let mut new: Vec<&Instance> = new.collect();
                new.sort_by_key(|instance| (instance.launched_at, instance.id.clone()));
                found.extend(new.into_iter().map(|instance| instance.id.clone()));
            }
            let must_stop = self.settings.is_interrupted() || self.now() >= deadline;
            if found.len() >= wanted || must_stop {
                return found;
            }
            self.pause().await;
        }
    }

    /// Returns the remaining members of each group with retirements.
    pub(super) async fn remaining_members<'p>(
        &mut self,
        retires: &[RetireWork<'p>],
    ) -> Vec<RemainingMembers<'p>> {
        let groups: BTreeMap<&'p GroupName, &'p Address> = retires
            .iter()
            .filter_map(|work| Some((work.group_name?, work.group_address?)))
            .collect();
        if groups.is_empty() {
            return Vec::new();
        }
        let observed = self.observe_with_retries().await;
        // A member of a later batch may end before its removal.
        let rows = self.plan.resource_changes.iter();
        let removed = rows.filter(|row| row.change.actions.contains(&Action::Delete));
        let removed = removed.filter_map(|row| row.change.before.as_ref()?.instance_id.as_ref());
        let retiring: BTreeSet<&InstanceId> = removed.collect();
        let remaining = |(group, address): (&'p GroupName, &'p Address)| {
            let members = observed.as_ref().map(|observed| {
                let stay = observed.members(group).filter(|member| !retiring.contains(&member.id));
                stay.map(|member| member.id.clone()).collect()
            });
            RemainingMembers { address, group, members }
        };
        groups.into_iter().map(remaining).collect()
    }

    /// Reports members that disappeared without being in the plan, because another client resized
    /// the group.
    pub(super) async fn check_remaining_members(&mut self, remaining: &[RemainingMembers<'_>]) {
        if remaining.is_empty() {
            return;
        }
        let observed = self.observe_with_retries().await;
        for RemainingMembers { address, group, members: stay } in remaining {
            let (Some(stay), Some(observed)) = (stay, &observed) else {
                let why = format!(
                    "cannot verify the remaining members of group {group}: it could not be read"
                );
                self.finish(address, WaveStep::Retire, None, Outcome::Abandoned { why });
                continue;
            };
            let there: BTreeSet<&InstanceId> = observed.members(group).map(|i| &i.id).collect();
            let gone: Vec<&str> =
                stay.iter().filter(|id| !there.contains(id)).map(InstanceId::as_str).collect();
            if !gone.is_empty() {
                let why = format!("group {group} also lost {}", gone.join(", "));
                self.finish(address, WaveStep::Retire, None, Outcome::Failed { why });
            }
        }
    }
}
