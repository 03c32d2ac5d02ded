//! Auto Scaling: groups that launch what they lack, in the zone with the fewest members, and that give
//! a member up by its id.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::delay;
use super::state::{Due, Machine, State, Unavailable};
use crate::catalog::CapacityType;
use crate::fleet::{Group, Instance, InstanceState, MadeWith, Membership};
use crate::ids::{GroupName, InstanceId, InstanceTypeName, ZoneName};
use crate::port::LaunchRequest;
use crate::requirement::{key, label};

/// State of a member that is on its way in, serves, or is on its way out.
const PENDING: &str = "Pending";
const IN_SERVICE: &str = "InService";
const TERMINATING: &str = "Terminating";

/// What the members of a group are made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaunchTemplate {
    /// How they are bought.
    pub capacity_type: CapacityType,
    /// What the nodes register as, by type.
    pub(super) machines: BTreeMap<InstanceTypeName, Machine>,
}

impl LaunchTemplate {
    /// Returns what nodes of each type register as: labels, taints and amounts of a launch request.
    #[must_use]
    pub fn of(capacity_type: CapacityType, requests: Vec<LaunchRequest>) -> Self {
        let machine = |request: LaunchRequest| {
            let LaunchRequest {
                instance_type,
                labels,
                taints,
                startup_taints,
                capacity,
                allocatable,
                ..
            } = request;
            (instance_type, Machine { labels, taints, startup_taints, capacity, allocatable })
        };
        Self { capacity_type, machines: requests.into_iter().map(machine).collect() }
    }
}

/// A group as eksctl would make it.
#[derive(Debug, Clone)]
pub struct DeliveredGroup {
    /// The group; one of the world that has the tags `identity` stays as it is.
    pub group: Group,
    /// Tags that tell the group.
    pub identity: BTreeMap<String, String>,
    /// What its members are made from.
    pub template: LaunchTemplate,
}

impl State {
    /// Makes the groups that are missing, and learns what members are made from.
    pub(super) fn deliver_groups(&mut self, groups: &[DeliveredGroup]) {
        for delivered in groups {
            let DeliveredGroup { group, identity, template } = delivered;
            let has = |live: &&Group| identity.iter().all(|(k, v)| live.tags.get(k) == Some(v));
            let live = self.groups.values().find(has).map(|live| live.name.clone());
            let name = live.unwrap_or_else(|| group.name.clone());
            self.groups.entry(name.clone()).or_insert_with(|| group.clone());
            self.launch_templates.insert(name.clone(), template.clone());
            self.group_acts_later(name);
        }
    }

    fn group_acts_later(&mut self, group: GroupName) {
        self.after(delay::GROUP_ACTS, Due::GroupActs { group });
    }

    fn members<'a>(&'a self, group: &'a GroupName) -> impl Iterator<Item = &'a Instance> {
        self.instances.values().filter(move |instance| {
            instance.is_active() && instance.group.as_ref().is_some_and(|of| of.name == *group)
        })
    }

    /// Sets the desired size of a group; members appear a little later.
    ///
    /// # Errors
    /// When there is no such group, when it may not be as large, or when it would shrink: then Auto
    /// Scaling would choose who goes, which nobody here may ask for.
    pub(super) fn raise_group(&mut self, name: &GroupName, desired: u32) -> Result<(), String> {
        let group = self.groups.get_mut(name);
        let group = group.ok_or_else(|| format!("ValidationError: there is no group `{name}`"))?;
        if desired > group.max {
            return Err(format!(
                "ValidationError: desired capacity {desired} is above the maximum {} of `{name}`",
                group.max
            ));
        }
        if desired < group.desired {
            return Err(format!("`{name}` is to have {} members, not fewer", group.desired));
        }
        group.desired = desired;
        self.group_acts_later(name.clone());
        Ok(())
    }

    /// Ends a member, and lowers its group's desired size by one; a member that is ending is left
    /// alone.
    ///
    /// # Errors
    /// When the instance is no member, or its group is at its least.
    pub(super) fn end_member(&mut self, id: &InstanceId) -> Result<(), String> {
        let instance = self.instances.get(id);
        let Some(instance) = instance.filter(|instance| instance.is_active()) else {
            return Ok(());
        };
        let of = instance.group.as_ref().map(|of| of.name.clone());
        let group = of.and_then(|name| self.groups.get_mut(&name));
        let group = group.ok_or_else(|| format!("ValidationError: {id} is in no group"))?;
        if group.desired <= group.min {
            return Err(format!(
                "ValidationError: `{}` has its minimum of {} members",
                group.name, group.min
            ));
        }
        group.desired -= 1;
        self.set_lifecycle(id, TERMINATING);
        self.terminate(id);
        Ok(())
    }

    pub(super) fn set_lifecycle(&mut self, id: &InstanceId, lifecycle: &str) {
        let group = self.instances.get_mut(id).and_then(|instance| instance.group.as_mut());
        if let Some(of) = group {
            lifecycle.clone_into(&mut of.lifecycle);
        }
    }

    pub(super) fn member_serves(&mut self, id: &InstanceId) {
        self.set_lifecycle(id, IN_SERVICE);
    }

    /// Has a group that lost a member make another one.
    pub(super) fn member_gone(&mut self, id: &InstanceId) {
        let of = self.instances.get(id).and_then(|instance| instance.group.as_ref());
        if let Some(name) = of.map(|of| of.name.clone()) {
            self.group_acts_later(name);
        }
    }

    /// Launches what a group lacks; what cannot be had is tried again later.
    pub(super) fn group_acts(&mut self, name: &GroupName) {
        let Some(group) = self.groups.get(name).cloned() else { return };
        let there = u32::try_from(self.members(name).count()).unwrap_or(u32::MAX);
        for _ in there..group.desired {
            let Some(template) = self.launch_templates.get(name).cloned() else { return };
            let Some((kind, zone)) = self.next_member(&group, &template) else {
                self.after(delay::GROUP_RETRIES, Due::GroupActs { group: name.clone() });
                return;
            };
            self.add_member(&group, &template, (kind, zone));
        }
    }

    /// Returns type and zone of the next member: the zone with the fewest, the first type to be had.
    fn next_member(
        &self,
        group: &Group,
        template: &LaunchTemplate,
    ) -> Option<(InstanceTypeName, ZoneName)> {
        let count = |zone: &&ZoneName| {
            self.members(&group.name).filter(|member| member.zone == **zone).count()
        };
        let mut zones: Vec<&ZoneName> = group.zones.iter().collect();
        zones.sort_by_key(|zone| (count(zone), (*zone).clone()));
        let pairs = zones.iter().flat_map(|zone| group.types.iter().map(move |kind| (kind, *zone)));
        let mut known = pairs.filter(|(kind, _)| template.machines.contains_key(*kind));
        let (kind, zone) = known.find(|(kind, zone)| {
            let covers = |none: &Unavailable| {
                none.instance_type.as_ref().is_none_or(|of| of == *kind)
                    && none.zone.as_ref().is_none_or(|of| of == *zone)
                    && none.capacity_type.is_none_or(|of| of == template.capacity_type)
            };
            !self.unavailable.iter().any(covers)
        })?;
        Some((kind.clone(), zone.clone()))
    }

    fn add_member(
        &mut self,
        group: &Group,
        template: &LaunchTemplate,
        (kind, zone): (InstanceTypeName, ZoneName),
    ) {
        let Some(machine) = template.machines.get(&kind).cloned() else { return };
        let id = self.next_instance();
        let instance = Instance {
            id: id.clone(),
            instance_type: kind,
            zone: zone.clone(),
            capacity_type: template.capacity_type,
            state: InstanceState::Pending,
            launched_at: self.now,
            image: String::new(),
            made_with: MadeWith::default(),
            tags: group.tags.clone().into(),
            reservation: None,
            group: Some(Membership {
                name: group.name.clone(),
                lifecycle: PENDING.to_owned(),
                protected: false,
            }),
        };
        let mut machine = machine;
        machine.labels.extend([label(key::ZONE, zone.as_str())]);
        self.instances.insert(id.clone(), instance);
        self.boot(&id, machine);
    }
}

#[cfg(test)]
mod tests;
