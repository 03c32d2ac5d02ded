//! Auto Scaling groups over time: sizes set by scheduled actions, and members counted in a
//! forecast.
//!
//! A forecast counts a managed group at its minimum size, and grows it as pods require. Any other
//! group has the size that Auto Scaling sets. Its members cost money regardless of demand, and run
//! the pods that fit.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::demand::ScheduledChange;
use crate::model::desired::{Desired, Schedule};
use crate::model::ids::{GroupName, NodeName, Origin};
use crate::model::observed::{Group, Observed, ScheduledSize};
use crate::plan::wire::Diagnostic;
use crate::solver::{live_group, observe_only_reason};

/// Maximum number of evaluated times of an action: one per minute for 69 days.
const TIMES_MAX: usize = 100_000;
/// Maximum number of counted members of a group.
const MEMBERS_MAX: u32 = 5_000;
/// Prefix of taints that report node health, in contrast to taints of the group.
const HEALTH: &str = "node.kubernetes.io/";
/// Name of the Auto Scaling process that runs scheduled actions.
const PROCESS: &str = "ScheduledActions";
/// Origin of undeclared groups.
const WORLD: &str = "world";

/// Minimum, maximum and desired size of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SizeBounds {
    min: u32,
    max: u32,
    desired: u32,
}

/// Sizes of all groups at one time.
pub(super) type GroupSizes = BTreeMap<GroupName, SizeBounds>;

/// Scheduled actions by time.
#[derive(Debug, Default)]
pub(super) struct ActionTimeline<'a> {
    at: BTreeMap<Timestamp, Vec<(&'a GroupName, &'a ScheduledSize)>>,
    /// Warnings about actions that could not be read or parsed.
    pub(super) warnings: Vec<Diagnostic>,
}

impl<'a> ActionTimeline<'a> {
    /// Collects the actions between the observation and `to` (inclusive).
    pub(super) fn new(observed: &'a Observed, to: Timestamp) -> Self {
        let mut found = Self::default();
        for group in observed.groups.values() {
            if group.suspended.iter().any(|process| process == PROCESS) {
                continue;
            }
            found.warnings.extend(
                group.schedules_unread.as_ref().map(|why| unread_schedules_warning(group, why)),
            );
            for action in &group.schedules {
                match times(action, observed.taken_at, to) {
                    Ok(times) => times.into_iter().for_each(|at| {
                        found.at.entry(at).or_default().push((&group.name, action));
                    }),
                    Err(field) => found.warnings.push(unparsed_warning(group, action, &field)),
                }
            }
        }
        found
    }

    /// Returns the actions after `from` as scheduled changes.
    pub(super) fn ticks(
        &self,
        desired: &Desired,
        observed: &Observed,
        from: Timestamp,
    ) -> BTreeMap<Timestamp, Vec<ScheduledChange>> {
        let origin = |name: &GroupName| {
            let is_group = |live: &Group| live.name == *name;
            let mut declared = desired.node_groups.values();
            let found = declared.find(|group| live_group(group, observed).is_some_and(is_group));
            found.map_or_else(|| Origin::new(WORLD, 0), |group| group.origin.clone())
        };
        let tick = |(name, action): &(&GroupName, &ScheduledSize)| ScheduledChange {
            object: format!("group {name}"),
            origin: origin(name),
            description: format!("scheduled action {} sets {}", action.name, describe(action)),
            changes_fleet: true,
        };
        let after = self.at.iter().filter(|(at, _)| **at > from);
        after.map(|(at, actions)| (*at, actions.iter().map(tick).collect())).collect()
    }

    /// Returns the sizes of the groups at each of `times`. `times` must be ascending.
    pub(super) fn sizes(&self, observed: &Observed, times: &[Timestamp]) -> Vec<GroupSizes> {
        let now = |group: &Group| {
            let Group { name, min, max, desired, .. } = group;
            (name.clone(), SizeBounds { min: *min, max: *max, desired: *desired })
        };
        let mut sizes: GroupSizes = observed.groups.values().map(now).collect();
        let mut due = self.at.iter().peekable();
        let at = |time: &Timestamp| {
            while let Some((_, actions)) = due.next_if(|(at, _)| *at <= time) {
                for (name, action) in actions {
                    if let Some(group) = sizes.get_mut(*name) {
                        group.apply(action);
                    }
                }
            }
            sizes.clone()
        };
        times.iter().map(at).collect()
    }
}

impl SizeBounds {
    fn apply(&mut self, action: &ScheduledSize) {
        self.min = action.min.unwrap_or(self.min);
        self.max = action.max.unwrap_or(self.max).max(self.min);
        self.desired = action.desired.unwrap_or(self.desired).clamp(self.min, self.max);
    }
}

/// Returns the times of an action after `from` and up to `to` (inclusive).
///
/// An action runs at its start time, and then by its recurrence until its end time.
///
/// Source: `PutScheduledUpdateGroupAction` in the API reference of EC2 Auto Scaling.
fn times(action: &ScheduledSize, from: Timestamp, to: Timestamp) -> Result<Vec<Timestamp>, String> {
    let ScheduledSize { recurrence, time_zone, starts_at, ends_at, .. } = action;
    let mut times: Vec<Timestamp> =
        starts_at.iter().copied().filter(|at| *at > from && *at <= to).collect();
    let Some(text) = recurrence else { return Ok(times) };
    let schedule = Schedule::parse(text).ok_or_else(|| format!("recurrence `{text}`"))?;
    let schedule = match time_zone {
        Some(name) => {
            schedule.in_time_zone(TimeZone::get(name).map_err(|_| format!("time zone `{name}`"))?)
        }
        None => schedule,
    };
    let begin = starts_at.map_or(from, |start| start.max(from));
    let end = ends_at.map_or(to, |end| end.min(to));
    times.extend(schedule.times_between(begin, end, TIMES_MAX));
    Ok(times)
}

fn describe(action: &ScheduledSize) -> String {
    let parts = [("at least", action.min), ("at most", action.max), ("desired", action.desired)];
    let parts = parts.into_iter().filter_map(|(bound, size)| Some(format!("{bound} {}", size?)));
    parts.collect::<Vec<_>>().join(", ")
}

fn unparsed_warning(group: &Group, action: &ScheduledSize, field: &str) -> Diagnostic {
    Diagnostic::warning(
        format!("group {}", group.name),
        format!("scheduled action {} is ignored: its {field} is not understood", action.name),
    )
}

fn unread_schedules_warning(group: &Group, why: &str) -> Diagnostic {
    Diagnostic::warning(
        format!("group {}", group.name),
        format!("its scheduled actions are unknown and ignored: {why}"),
    )
    .hint("allow autoscaling:DescribeScheduledActions")
}

/// Adds the counted group members to `bare`, without pods.
///
/// If a group is larger at that time than now, its existing members are copied. Returns warnings
/// about groups without a member to copy.
pub(super) fn add_group_members(
    bare: &mut Observed,
    desired: &Desired,
    observed: &Observed,
    sizes: &GroupSizes,
) -> Vec<Diagnostic> {
    let is_resized = |group: &Group| {
        let mut declared = desired.node_groups.values();
        let is_group = |live: &Group| live.name == group.name;
        let found = declared.find(|declared| live_group(declared, observed).is_some_and(is_group));
        found.is_some_and(|declared| observe_only_reason(declared, desired, observed).is_none())
    };
    let mut found = Vec::new();
    for (name, size) in sizes {
        let Some(group) = observed.groups.get(name) else { continue };
        let size_to_count = if is_resized(group) { size.min } else { size.desired };
        let existing = members(observed, name);
        if existing.is_empty() && size_to_count > 0 {
            let why = "but has no member to model them on: they are not counted";
            found.push(member_warning(group, size_to_count, why));
        }
        let counted = if existing.is_empty() { 0 } else { size_to_count.min(MEMBERS_MAX) };
        if counted == MEMBERS_MAX {
            found.push(member_warning(
                group,
                size_to_count,
                "but a forecast does not count that many",
            ));
        }
        let copies = (0..counted).zip(existing.iter().cycle());
        for (copy, (_, node)) in copies.enumerate() {
            copy_member(bare, observed, node, copy, existing.len());
        }
        let SizeBounds { min, max, .. } = *size;
        let group = Group { min: min.min(counted), max, desired: counted, ..group.clone() };
        bare.groups.insert(name.clone(), group);
    }
    found
}

/// Returns the names of the nodes of a group.
fn members<'a>(observed: &'a Observed, name: &GroupName) -> Vec<&'a NodeName> {
    let is_member = |node: &&crate::model::observed::Node| {
        let instance = node.instance.as_ref().and_then(|id| observed.instances.get(id));
        let instance = instance.filter(|instance| instance.is_active());
        instance.and_then(|i| i.group.as_ref()).is_some_and(|group| group.name == *name)
    };
    observed.nodes.values().filter(is_member).map(|node| &node.name).collect()
}

/// Copies a node and its instance. Copies beyond the existing members get new names.
fn copy_member(
    bare: &mut Observed,
    observed: &Observed,
    name: &NodeName,
    copy: usize,
    existing: usize,
) {
    let Some(mut node) = observed.nodes.get(name).cloned() else { return };
    let Some(instance) = node.instance.as_ref().and_then(|id| observed.instances.get(id)) else {
        return;
    };
    let mut instance = instance.clone();
    node.unschedulable = false;
    node.ready = true;
    node.taints.retain(|taint| !taint.key.as_str().starts_with(HEALTH));
    if copy >= existing {
        let text = format!("{name}-{}", copy / existing + 1);
        node.name = text.as_str().into();
        node.uid = format!("{}-{}", node.uid, copy / existing + 1).as_str().into();
        instance.id = format!("{}-{}", instance.id, copy / existing + 1).as_str().into();
        let hostname =
            crate::model::requirement::label(crate::model::requirement::key::HOSTNAME, &text);
        node.labels.extend([hostname]);
    }
    node.instance = Some(instance.id.clone());
    bare.instances.insert(instance.id.clone(), instance);
    bare.nodes.insert(node.name.clone(), node);
}

fn member_warning(group: &Group, size_to_count: u32, why: &str) -> Diagnostic {
    Diagnostic::warning(
        format!("group {}", group.name),
        format!("will have {size_to_count} members, {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn action(recurrence: Option<&str>, starts_at: Option<&str>) -> ScheduledSize {
        ScheduledSize {
            name: "office".to_owned(),
            recurrence: recurrence.map(str::to_owned),
            time_zone: Some("Europe/Berlin".to_owned()),
            starts_at: starts_at.map(at),
            ends_at: None,
            min: Some(3),
            max: None,
            desired: Some(9),
        }
    }

    #[test]
    fn action_runs_at_start_then_by_recurrence_until_end() {
        // The first day is a Saturday. Berlin is one hour ahead of UTC.
        let (from, to) = (at("2026-11-21T00:00:00Z"), at("2026-11-25T00:00:00Z"));
        let mornings = ["2026-11-23T07:00:00Z", "2026-11-24T07:00:00Z"];
        let weekdays = Some("0 8 * * MON-FRI");
        let until_monday =
            ScheduledSize { ends_at: Some(at("2026-11-23T12:00:00Z")), ..action(weekdays, None) };
        for (rule, action, expected) in [
            ("on weekdays", action(weekdays, None), &mornings[..]),
            ("until Monday noon", until_monday, &mornings[..1]),
            ("once", action(None, Some("2026-11-22T03:04:05Z")), &["2026-11-22T03:04:05Z"][..]),
            ("once, long ago", action(None, Some("2026-11-01T00:00:00Z")), &[][..]),
            (
                "first at noon, then on weekdays",
                action(weekdays, Some("2026-11-23T12:00:00Z")),
                &["2026-11-23T12:00:00Z", "2026-11-24T07:00:00Z"][..],
            ),
        ] {
            let expected: Vec<Timestamp> = expected.iter().map(|text| at(text)).collect();
            assert_eq!(times(&action, from, to), Ok(expected), "{rule}");
        }
        let nowhere = ScheduledSize {
            time_zone: Some("Europe/Atlantis".to_owned()),
            ..action(weekdays, None)
        };
        assert_eq!(times(&nowhere, from, to), Err("time zone `Europe/Atlantis`".to_owned()));
        let never = action(Some("every morning"), None);
        assert_eq!(times(&never, from, to), Err("recurrence `every morning`".to_owned()));
    }

    #[test]
    fn action_keeps_unset_sizes_and_clamps_desired() {
        let mut sizes = SizeBounds { min: 1, max: 5, desired: 1 };
        sizes.apply(&action(None, None));
        assert_eq!(sizes, SizeBounds { min: 3, max: 5, desired: 5 });
        sizes.apply(&ScheduledSize { min: Some(0), desired: None, ..action(None, None) });
        assert_eq!(sizes, SizeBounds { min: 0, max: 5, desired: 5 });
    }
}
