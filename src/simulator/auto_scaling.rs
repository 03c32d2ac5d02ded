//! Auto Scaling groups: launch missing members in the zone with the fewest members, and terminate
//! members by ID.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::delay;
use super::state::{NodeRegistration, OfferingOutage, ScheduledEvent, WorldState};
use crate::apply::ports::{LaunchOffering, LaunchRequest};
use crate::model::ids::{GroupName, InstanceId, InstanceTypeName, ZoneName};
use crate::model::market::CapacityType;
use crate::model::observed::{Group, Instance, InstanceState, LaunchedWith, Membership};
use crate::model::requirement::{key, label};

/// Lifecycle states of a member.
const PENDING: &str = "Pending";
const IN_SERVICE: &str = "InService";
const TERMINATING: &str = "Terminating";

/// Launch template of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaunchTemplate {
    /// Capacity type of the members.
    pub capacity_type: CapacityType,
    /// Node registrations by instance type.
    #[serde(rename = "machines")]
    pub(super) registrations: BTreeMap<InstanceTypeName, NodeRegistration>,
}

impl LaunchTemplate {
    /// Returns a launch template with the labels, taints and resources of launch requests.
    pub fn new(capacity_type: CapacityType, requests: Vec<LaunchRequest>) -> Self {
        let registrations = requests.into_iter().flat_map(|request| {
            let LaunchRequest { offerings, taints, startup_taints, .. } = request;
            offerings.into_iter().map(move |offering| {
                let LaunchOffering { instance_type, labels, capacity, allocatable, .. } = offering;
                let (taints, startup_taints) = (taints.clone(), startup_taints.clone());
                let registration =
                    NodeRegistration { labels, taints, startup_taints, capacity, allocatable };
                (instance_type, registration)
            })
        });
        Self { capacity_type, registrations: registrations.collect() }
    }
}

/// A group as eksctl creates it.
#[derive(Debug, Clone)]
pub struct DeliveredGroup {
    /// The group. An existing group with the tags `identity` stays unchanged.
    pub group: Group,
    /// Tags that identify the group.
    pub identity: BTreeMap<String, String>,
    /// Launch template of the members.
    pub template: LaunchTemplate,
}

impl DeliveredGroup {
    /// Returns true if `live` is this group.
    pub fn is(&self, live: &Group) -> bool {
        self.identity.iter().all(|(key, value)| live.tags.get(key) == Some(value))
    }
}

impl WorldState {
    /// Returns the groups that do not exist.
    pub(super) fn missing_groups(&self, groups: &[DeliveredGroup]) -> Vec<DeliveredGroup> {
        let exists = |group: &&DeliveredGroup| !self.groups.values().any(|live| group.is(live));
        groups.iter().filter(exists).cloned().collect()
    }

    /// Creates missing groups, and stores all launch templates.
    pub(super) fn deliver_groups(&mut self, groups: &[DeliveredGroup]) {
        for delivered in groups {
            let DeliveredGroup { group, template, .. } = delivered;
            let live = self.groups.values().find(|live| delivered.is(live));
            let live = live.map(|live| live.name.clone());
            let name = live.unwrap_or_else(|| group.name.clone());
            self.groups.entry(name.clone()).or_insert_with(|| group.clone());
            self.launch_templates.insert(name.clone(), template.clone());
            self.schedule_group_reconcile(name);
        }
    }

    fn schedule_group_reconcile(&mut self, group: GroupName) {
        self.after(delay::GROUP_ACTS, ScheduledEvent::GroupActs { group });
    }

    fn members<'a>(&'a self, group: &'a GroupName) -> impl Iterator<Item = &'a Instance> {
        self.instances.values().filter(move |instance| {
            instance.is_active() && instance.group.as_ref().is_some_and(|of| of.name == *group)
        })
    }

    /// Sets the desired capacity of a group. Members appear a little later.
    ///
    /// # Errors
    /// Returns an error if the group does not exist, the capacity exceeds its maximum, or the group
    /// would shrink. A shrinking group would choose the member to terminate.
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
        self.schedule_group_reconcile(name.clone());
        Ok(())
    }

    /// Terminates a member and lowers the desired capacity of its group by one. A terminating
    /// member is left alone.
    ///
    /// # Errors
    /// Returns an error if the instance is not a member or the group is at its minimum.
    pub(super) fn terminate_member(&mut self, id: &InstanceId) -> Result<(), String> {
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

    pub(super) fn mark_member_in_service(&mut self, id: &InstanceId) {
        self.set_lifecycle(id, IN_SERVICE);
    }

    /// Replaces a lost member of a group.
    pub(super) fn handle_member_loss(&mut self, id: &InstanceId) {
        let of = self.instances.get(id).and_then(|instance| instance.group.as_ref());
        if let Some(name) = of.map(|of| of.name.clone()) {
            self.schedule_group_reconcile(name);
        }
    }

    /// Launches the missing members of a group. Missing capacity is retried later.
    pub(super) fn reconcile_group(&mut self, name: &GroupName) {
        let Some(group) = self.groups.get(name).cloned() else { return };
        let there = u32::try_from(self.members(name).count()).unwrap_or(u32::MAX);
        for _ in there..group.desired {
            let Some(template) = self.launch_templates.get(name).cloned() else { return };
            let capacity_type = self.next_capacity_type(&group, &template);
            let offering = self.next_member_offering(&group, &template, capacity_type);
            let Some((kind, zone)) = offering else {
                self.after(delay::GROUP_RETRIES, ScheduledEvent::GroupActs { group: name.clone() });
                return;
            };
            self.add_member(&group, &template, kind, zone, capacity_type);
        }
    }

    /// Returns the capacity type of the next member.
    fn next_capacity_type(&self, group: &Group, template: &LaunchTemplate) -> CapacityType {
        let Some(mix) = group.mix else { return template.capacity_type };
        let members: Vec<&Instance> = self.members(&group.name).collect();
        let spots = members.iter().filter(|one| one.capacity_type == CapacityType::Spot).count();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let is_missing = count(members.len() - spots) < mix.on_demand(group.desired);
        if is_missing { CapacityType::OnDemand } else { CapacityType::Spot }
    }

    /// Returns type and zone of the next member: the zone with the fewest members, and its first
    /// available type.
    fn next_member_offering(
        &self,
        group: &Group,
        template: &LaunchTemplate,
        capacity_type: CapacityType,
    ) -> Option<(InstanceTypeName, ZoneName)> {
        let count = |zone: &&ZoneName| {
            self.members(&group.name).filter(|member| member.zone == **zone).count()
        };
        let mut zones: Vec<&ZoneName> = group.zones.iter().collect();
        zones.sort_by_key(|zone| (count(zone), (*zone).clone()));
        let pairs = zones.iter().flat_map(|zone| group.types.iter().map(move |kind| (kind, *zone)));
        let mut known = pairs.filter(|(kind, _)| template.registrations.contains_key(*kind));
        let (kind, zone) = known.find(|(kind, zone)| {
            let covers = |none: &OfferingOutage| {
                none.instance_type.as_ref().is_none_or(|of| of == *kind)
                    && none.zone.as_ref().is_none_or(|of| of == *zone)
                    && none.capacity_type.is_none_or(|of| of == capacity_type)
            };
            !self.unavailable.iter().any(covers)
        })?;
        Some((kind.clone(), zone.clone()))
    }

    fn add_member(
        &mut self,
        group: &Group,
        template: &LaunchTemplate,
        kind: InstanceTypeName,
        zone: ZoneName,
        capacity_type: CapacityType,
    ) {
        let Some(mut registration) = template.registrations.get(&kind).cloned() else { return };
        registration.labels.extend([label(key::ZONE, zone.as_str())]);
        let id = self.next_instance();
        let instance = Instance {
            id: id.clone(),
            instance_type: kind,
            zone,
            capacity_type,
            state: InstanceState::Pending,
            launched_at: self.now,
            image: String::new(),
            launched_with: LaunchedWith::default(),
            tags: group.tags.clone().into(),
            reservation: None,
            group: Some(Membership {
                name: group.name.clone(),
                lifecycle: PENDING.to_owned(),
                protected: false,
            }),
        };
        self.instances.insert(id.clone(), instance);
        self.schedule_boot(&id, registration);
    }
}

#[cfg(test)]
mod tests;
