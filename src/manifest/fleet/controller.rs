//! What `fleetwright.yaml` says of the loop: what it may do, how fast, and who approves.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::super::decode::{Field, Map, shorten};
use super::super::model::Severity;
use super::file::set;
use crate::ids::PoolName;

/// What the loop may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Plan, and change nothing.
    #[default]
    Observe,
    /// Launch; remove nothing but what goes anyway.
    Additive,
    /// Keep the fleet as the repository asks for it.
    Full,
}

impl Mode {
    /// The modes by their spelling.
    pub const ALL: [(&'static str, Self); 3] =
        [("observe", Self::Observe), ("additive", Self::Additive), ("full", Self::Full)];

    /// Returns the mode as settings spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Additive => "additive",
            Self::Full => "full",
        }
    }
}

/// What approves a plan that the loop made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApprovalRule {
    /// Its commit, which is on the branch.
    #[default]
    Merge,
    /// Somebody who approved its digest.
    Digest,
    /// The policies, where none of them objects or warns; else somebody who approved its digest.
    Policy,
}

/// Who carries out what a merge changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MergedBy {
    /// The loop.
    #[default]
    Controller,
    /// CI; the loop serves the commit before until CI has, or has not within its time.
    Ci,
}

/// How many machines may come or go within a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many.
    pub most: Most,
    /// Within how long.
    pub within: SignedDuration,
}

/// A number of machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Most {
    /// So many.
    Count(u32),
    /// A share of the nodes there are, in thousandths of a percent; at least one.
    Share(u32),
}

impl Rate {
    /// The longest time that a budget looks back: the loop remembers launches and removals for as long.
    pub const WITHIN_MAX: SignedDuration = SignedDuration::from_hours(24);

    /// Returns how many machines that is in a fleet of `nodes`.
    #[must_use]
    pub fn of(&self, nodes: u32) -> u32 {
        match self.most {
            Most::Count(count) => count,
            Most::Share(milli) => {
                let part = u64::from(nodes) * u64::from(milli) / 100_000;
                u32::try_from(part).unwrap_or(u32::MAX).max(u32::from(milli > 0))
            }
        }
    }
}

/// How the loop acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerSettings {
    /// What it may do.
    pub mode: Mode,
    /// What approves its plans.
    pub approval: ApprovalRule,
    /// Who carries out what a merge changed (`spec.apply.by`).
    pub merged_by: MergedBy,
    /// How long CI has for that, from the moment the commit was read.
    pub ci_patience: SignedDuration,
    /// Between two reads of the repository.
    pub poll: SignedDuration,
    /// Between two looks at the world, where nothing calls for one sooner.
    pub refresh: SignedDuration,
    /// For how long no further pod may come before those that wait are planned for.
    pub batch_idle: SignedDuration,
    /// The longest that the first of them waits for further ones.
    pub batch_most: SignedDuration,
    /// For how long a removal must have been planned before it is begun.
    pub settle: SignedDuration,
    /// How many machines may be launched within a time.
    pub launches: Rate,
    /// How many machines may be removed within a time.
    pub removals: Rate,
    /// The most of the fleet that one plan may remove without replacing it; more latches a breaker.
    pub mass_removal: Most,
    /// How long a node may be not Ready, or say at most that something of it does not work
    /// ([`crate::fleet::Fault`]), before its machine is replaced; `None`: never.
    pub repair_after: Option<SignedDuration>,
    /// Pools of which each removal asks for a confirmation.
    pub confirm: BTreeSet<PoolName>,
    /// Whether pending pods are nominated to the nodes that the plan has them on.
    pub steer: bool,
    /// Name or URL of the queue that `EventBridge` tells of machines that go.
    pub queue: Option<String>,
}

impl Default for ControllerSettings {
    fn default() -> Self {
        Self {
            mode: Mode::Observe,
            approval: ApprovalRule::Merge,
            merged_by: MergedBy::Controller,
            ci_patience: SignedDuration::from_hours(1),
            poll: SignedDuration::from_mins(1),
            refresh: SignedDuration::from_secs(30),
            batch_idle: SignedDuration::from_millis(100),
            batch_most: SignedDuration::from_secs(1),
            settle: SignedDuration::from_mins(1),
            launches: Rate { most: Most::Count(200), within: SignedDuration::from_mins(10) },
            // A tenth, as Karpenter has it where nothing is said; but over a time, not at once.
            removals: Rate { most: Most::Share(10_000), within: SignedDuration::from_mins(5) },
            mass_removal: Most::Share(50_000),
            // As Karpenter's node repair.
            repair_after: Some(SignedDuration::from_mins(30)),
            confirm: BTreeSet::new(),
            steer: false,
            queue: None,
        }
    }
}

/// Reads `spec.controller`.
pub(super) fn read_controller(map: &Map<'_>, to: &mut ControllerSettings) {
    let rules = [
        ("merge", ApprovalRule::Merge),
        ("digest", ApprovalRule::Digest),
        ("policy", ApprovalRule::Policy),
    ];
    set(&mut to.mode, map.get("mode").and_then(|f| f.choice(&Mode::ALL)));
    set(&mut to.approval, map.get("approval").and_then(|f| f.choice(&rules)));
    set(&mut to.steer, map.get("steer").and_then(|f| f.boolean()));
    to.queue = map.get("queue").and_then(|f| f.filled()).map(Into::into);
    let times = [
        ("ciPatience", &mut to.ci_patience),
        ("poll", &mut to.poll),
        ("refresh", &mut to.refresh),
        ("settle", &mut to.settle),
    ];
    for (key, time) in times {
        set(time, map.get(key).and_then(|f| some_time(&f)));
    }
    if let Some(batch) = map.get("batch").as_ref().and_then(Field::map) {
        set(&mut to.batch_idle, batch.get("idle").and_then(|f| some_time(&f)));
        set(&mut to.batch_most, batch.get("most").and_then(|f| some_time(&f)));
        batch.finish(Severity::Error);
    }
    for (key, rate) in [("launches", &mut to.launches), ("removals", &mut to.removals)] {
        let Some(given) = map.get(key) else { continue };
        let Some(given) = given.map() else { continue };
        set(&mut rate.most, given.get("most").and_then(|f| most(&f)));
        set(&mut rate.within, given.get("within").and_then(|f| span(&f)));
        given.finish(Severity::Error);
    }
    set(&mut to.mass_removal, map.get("massRemoval").and_then(|f| most(&f)));
    if let Some(repair) = map.get("repairAfter").and_then(|f| f.duration_or_never()) {
        to.repair_after = match repair {
            super::super::pool::Expiry::After(time) => Some(time),
            super::super::pool::Expiry::Never => None,
        };
    }
    if let Some(confirm) = map.get("confirm") {
        to.confirm = confirm.items().filter_map(|f| Some(PoolName::from(&*f.filled()?))).collect();
    }
    map.finish(Severity::Error);
}

/// Reads `spec.apply.by`.
pub(super) fn read_merged_by(map: &Map<'_>, to: &mut ControllerSettings) {
    let choices = [("ci", MergedBy::Ci), ("controller", MergedBy::Controller)];
    set(&mut to.merged_by, map.get("by").and_then(|f| f.choice(&choices)));
}

/// Reads a duration that is not zero.
fn some_time(field: &Field<'_>) -> Option<SignedDuration> {
    let time = field.duration()?;
    if time.is_zero() {
        field.error("is no time at all", "write at least 1ms".to_owned());
        return None;
    }
    Some(time)
}

/// Reads the time of a budget: as far back as moves are remembered at most.
fn span(field: &Field<'_>) -> Option<SignedDuration> {
    let time = some_time(field)?;
    if time > Rate::WITHIN_MAX {
        let hours = Rate::WITHIN_MAX.as_hours();
        field.error(
            format_args!("is more than {hours} hours, as far back as moves are remembered"),
            format!("write at most {hours}h, and fewer machines"),
        );
        return None;
    }
    Some(time)
}

/// Reads a number of machines: `5`, or a share such as `10%`.
fn most(field: &Field<'_>) -> Option<Most> {
    let text = field.word()?;
    let share = text.strip_suffix('%').and_then(super::super::karpenter::milli_percent);
    let read = share.map(Most::Share).or_else(|| text.parse().ok().map(Most::Count));
    if read.is_none() {
        field.error(
            format_args!("is `{}`, not a number of machines", shorten(&text)),
            "write a number such as 5, or a share such as 10%".to_owned(),
        );
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_a_small_fleet_is_one_machine_unless_it_is_nothing() {
        let within = SignedDuration::from_mins(1);
        for (most, nodes, of) in [
            (Most::Count(3), 0, 3),
            (Most::Share(10_000), 3, 1),
            (Most::Share(10_000), 50, 5),
            (Most::Share(0), 50, 0),
            (Most::Share(100_000), 7, 7),
        ] {
            assert_eq!(Rate { most, within }.of(nodes), of, "{most:?} of {nodes}");
        }
    }
}
