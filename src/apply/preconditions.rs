//! Everything that must hold before the first write.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use thiserror::Error;

use super::ApplySettings;
use super::wave_work::{LaunchWork, Reader, RetireWork, WaveWork};
use crate::model::ids::{Address, ChangeId, Digest, GroupName, InstanceId, PoolName, Uid};
use crate::model::observed::{
    ClusterIdentity, Completeness, Group, Instance, InstanceState, Observed, tag,
};
use crate::plan::wire::{Check, Condition, Precondition};
use crate::plan::{PinnedPlan, Plan, has_complete_digest};

/// Why a plan was not applied; nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApplyError {
    /// The plan is of another cluster (exit code 10).
    #[error("the plan is of cluster {}, this is {}", identity(planned), identity(here))]
    OtherCluster {
        /// The plan's cluster.
        planned: Box<ClusterIdentity>,
        /// The cluster that the ports reach.
        here: Box<ClusterIdentity>,
    },
    /// The plan contradicts itself, or asks for what this version cannot do (exit code 9).
    #[error("the plan cannot be carried out: {}", .0.join("; "))]
    InvalidPlan(Vec<String>),
    /// Another digest was approved (exit code 3).
    #[error("digest {approved} was approved, the plan has {found}")]
    NotApproved {
        /// The approved digest.
        approved: Digest,
        /// The plan's digest.
        found: Digest,
    },
    /// A policy denies the plan (exit code 6).
    #[error("the plan is denied by policy: {}", .0.join("; "))]
    Denied(Vec<String>),
    /// The plan may never be applied (exit code 5).
    #[error("the plan may not be applied: {0}")]
    NotApplyable(String),
    /// The plan may no longer be applied (exit code 11).
    #[error("the plan expired at {expires_at}, it is {now}; make a new one")]
    Expired {
        /// When it expired.
        expires_at: Timestamp,
        /// The current moment.
        now: Timestamp,
    },
    /// The live state could not be read as a whole (exit code 1).
    #[error("the live state is not known: {}", .0.join("; "))]
    IncompleteObservation(Vec<String>),
    /// What the plan was made from no longer holds (exit code 3).
    #[error("the plan is stale: {}", lines(.0))]
    Stale(Vec<FailedCondition>),
    /// More is needed now than was approved (exit code 3).
    #[error("the plan is stale: more is needed now than was approved: {}", .0.join("; "))]
    ExceedsApproval(Vec<String>),
    /// The plan removes something, and nothing may be removed now (exit code 3).
    #[error("the plan is stale: it removes nodes, and nothing may be removed now: {0}")]
    Frozen(String),
    /// The run was interrupted before its first write (exit code 130).
    #[error("interrupted before the first change")]
    Interrupted,
}

/// A condition of the plan that no longer holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Error)]
#[error("{address}: expected {expected}, found {found}")]
pub struct FailedCondition {
    /// The row it belongs to.
    pub address: Address,
    /// The condition.
    pub condition: Condition,
    /// What the plan counts on, in words.
    pub expected: String,
    /// What was found, in words.
    pub found: String,
}

fn identity(cluster: &ClusterIdentity) -> String {
    let ClusterIdentity { name, region, account, uid } = cluster;
    format!("`{name}` (region {region}, account {account}, UID {uid})")
}

fn lines(failed: &[FailedCondition]) -> String {
    failed.iter().map(FailedCondition::to_string).collect::<Vec<_>>().join("; ")
}

/// Checks what can be checked without a look at the world, and takes the plan apart.
pub(super) fn check_plan<'p>(
    plan: &'p Plan,
    settings: &ApplySettings<'_>,
    now: Timestamp,
) -> Result<Vec<WaveWork<'p>>, ApplyError> {
    let planned = &plan.capacity.base.world.cluster;
    if *planned != settings.cluster {
        let (planned, here) = (Box::new(planned.clone()), Box::new(settings.cluster.clone()));
        return Err(ApplyError::OtherCluster { planned, here });
    }
    if !has_complete_digest(plan) {
        let version = &plan.format_version;
        let why = format!("its digest, of format {version}, does not hold all that is done");
        return Err(ApplyError::InvalidPlan(vec![why]));
    }
    let mut waves = Reader::waves(plan).map_err(ApplyError::InvalidPlan)?;
    let found = &plan.capacity.digest;
    if let Some(approved) = settings.approved.as_ref().filter(|approved| *approved != found) {
        let (approved, found) = (approved.clone(), found.clone());
        return Err(ApplyError::NotApproved { approved, found });
    }
    check_applyable(plan)?;
    let expires_at = plan.capacity.expires_at;
    if now >= expires_at {
        return Err(ApplyError::Expired { expires_at, now });
    }
    if settings.is_interrupted() {
        return Err(ApplyError::Interrupted);
    }
    for wave in &mut waves {
        match wave {
            WaveWork::Launch(work) => work.sort_by(|a, b| a.address.cmp(b.address)),
            WaveWork::Retire(work) => work.sort_by(|a, b| a.address.cmp(b.address)),
        }
    }
    Ok(waves)
}

fn check_applyable(plan: &Plan) -> Result<(), ApplyError> {
    if plan.applyable && !plan.errored {
        return Ok(());
    }
    let is_fatal = |check: &&Check| check.status.is_denial();
    let failed = plan.checks.iter().filter(is_fatal);
    let denied: Vec<String> =
        failed.map(|check| format!("{}: {}", check.name, check.problems.join(", "))).collect();
    if !plan.errored && !denied.is_empty() {
        return Err(ApplyError::Denied(denied));
    }
    let why = if plan.errored { "its inputs had errors" } else { "it says so itself" };
    Err(ApplyError::NotApplyable(why.to_owned()))
}

/// Checks that the world is known, that nothing more is needed in it than was approved, and that
/// each condition of the plan holds in it or is of a change that is done. Returns the changes that
/// are no longer needed, with the reason.
pub(super) async fn check_world(
    plan: &Plan,
    waves: &[WaveWork<'_>],
    settings: &ApplySettings<'_>,
    observed: &Observed,
) -> Result<BTreeMap<Address, String>, ApplyError> {
    let unknown: Vec<String> = observed.sources.iter().filter_map(unread).collect();
    if !unknown.is_empty() {
        return Err(ApplyError::IncompleteObservation(unknown));
    }
    let pinned = settings.replan.replan(plan, observed).await;
    let PinnedPlan { dropped, missing, frozen, blocked_removal: _, current: _ } = pinned;
    let mut conditions: BTreeSet<Precondition> =
        plan.capacity.base.preconditions.iter().cloned().collect();
    // What every launch and every retirement counts on holds whether or not the plan says so.
    conditions.extend(waves.iter().flat_map(implied));
    let failed: Vec<FailedCondition> = conditions
        .into_iter()
        .filter(|precondition| !dropped.contains_key(&precondition.address))
        .filter_map(|precondition| Facts { waves, observed }.check(precondition))
        .collect();
    // What no longer holds is nearer to the cause than what would be needed because of it.
    match (failed.is_empty(), missing.is_empty(), frozen) {
        (false, _, _) => Err(ApplyError::Stale(failed)),
        (true, false, _) => Err(ApplyError::ExceedsApproval(missing)),
        // What is not known is never taken for nothing.
        (true, true, Some(why)) => Err(ApplyError::Frozen(why)),
        (true, true, None) => Ok(dropped),
    }
}

fn unread((name, completeness): (&String, &Completeness)) -> Option<String> {
    match completeness {
        Completeness::Complete => None,
        Completeness::Partial { reason } => Some(format!("{name} was read in part: {reason}")),
        Completeness::Failed { reason } => Some(format!("{name} was not read: {reason}")),
    }
}

fn implied(wave: &WaveWork<'_>) -> Vec<Precondition> {
    let of_launch = |work: &LaunchWork<'_>| Precondition {
        address: work.address.clone(),
        condition: Condition::KeyUnused { pool: work.pool.clone(), key: work.key.to_owned() },
    };
    let of_retire = |work: &RetireWork<'_>| Precondition {
        address: work.address.clone(),
        condition: Condition::InstanceIs {
            instance_id: work.instance.clone(),
            node_uid: work.node.node_uid.clone(),
        },
    };
    match wave {
        WaveWork::Launch(launches) => launches.iter().map(of_launch).collect(),
        WaveWork::Retire(retires) => retires.iter().map(of_retire).collect(),
    }
}

/// What conditions are judged by.
struct Facts<'a> {
    waves: &'a [WaveWork<'a>],
    observed: &'a Observed,
}

impl Facts<'_> {
    /// Returns the condition if it does not hold.
    fn check(&self, precondition: Precondition) -> Option<FailedCondition> {
        let Precondition { address, condition } = precondition;
        let (expected, found) = match &condition {
            Condition::InstanceIs { instance_id, node_uid } => {
                self.instance_is(&address, instance_id, node_uid.as_ref())
            }
            Condition::KeyUnused { pool, key } => self.key_unused(&address, pool, key),
            Condition::GroupIs { group, desired } => self.group_is(&address, group, *desired),
            // The retirement waits for this one; it need not hold yet.
            Condition::ReplicasAtMost { .. } => None,
        }?;
        Some(FailedCondition { address, condition, expected, found })
    }

    fn instance_is(
        &self,
        address: &Address,
        id: &InstanceId,
        uid: Option<&Uid>,
    ) -> Option<(String, String)> {
        let node = self.observed.node_for_instance(id);
        let expected = match uid {
            Some(uid) => format!("instance {id} of ours with node UID {uid}"),
            None => format!("instance {id} of ours without a node"),
        };
        let instance = self.observed.instances.get(id);
        // A kubelet that answers has a machine, even one that EC2 does not list.
        if instance.is_none() && node.is_some_and(|node| node.ready) {
            return Some((expected, "a Ready node whose instance is not listed".to_owned()));
        }
        let Some(instance) = instance.filter(|instance| !has_ended(instance)) else {
            let done = self.retires(address, id);
            return (!done).then(|| (expected, "no such instance".to_owned()));
        };
        if !instance.is_managed_by(&self.observed.cluster.name)
            && !self.is_member(address, instance)
        {
            return Some((expected, format!("instance {id} without our tags")));
        }
        let found = node.map(|node| &node.uid);
        let found_text = match found {
            Some(found) => format!("instance {id} with node UID {found}"),
            None => format!("instance {id} without a node"),
        };
        (found != uid).then_some((expected, found_text))
    }

    /// Raised already by this very plan, the group is as large as the plan has it.
    fn group_is(
        &self,
        address: &Address,
        group: &GroupName,
        desired: u32,
    ) -> Option<(String, String)> {
        let found = self.observed.groups.get(group);
        let raised = desired.saturating_add(self.launches_of(address));
        let fits = |live: &Group| (desired..=raised).contains(&live.desired);
        // Members that the plan has go are counted off as they go.
        let lowered = |live: &Group| self.retires_of(address) > 0 && live.desired <= raised;
        if found.is_some_and(|live| fits(live) || lowered(live)) {
            return None;
        }
        let found = found
            .map_or_else(|| "no such group".to_owned(), |live| format!("{} members", live.desired));
        Some((format!("group {group} of {desired} members"), found))
    }

    /// Returns how many members the plan launches into the group of a row.
    fn launches_of(&self, address: &Address) -> u32 {
        let of = |wave: &WaveWork<'_>| match wave {
            WaveWork::Launch(launches) => {
                let of = |work: &&LaunchWork<'_>| {
                    work.group.as_ref().is_some_and(|group| group.address == address)
                };
                launches.iter().filter(of).count()
            }
            WaveWork::Retire(_) => 0,
        };
        u32::try_from(self.waves.iter().map(of).sum::<usize>()).unwrap_or(u32::MAX)
    }

    fn retires_of(&self, address: &Address) -> usize {
        let of = |wave: &WaveWork<'_>| match wave {
            WaveWork::Launch(_) => 0,
            WaveWork::Retire(retires) => {
                retires.iter().filter(|work| work.of_group == Some(address)).count()
            }
        };
        self.waves.iter().map(of).sum()
    }

    fn key_unused(
        &self,
        address: &Address,
        pool: &PoolName,
        key: &str,
    ) -> Option<(String, String)> {
        let launch = self.launch_at(address);
        let own = |instance: &&Instance| {
            launch.is_some_and(|(change, replaces)| {
                replaces == Some(&instance.id) || is_launched_by(instance, change)
            })
        };
        let has = |instance: &Instance, tag: &str, value: &str| {
            instance.tags.get(tag).is_some_and(|found| found == value)
        };
        let taken = |instance: &&Instance| {
            !has_ended(instance)
                && instance.is_managed_by(&self.observed.cluster.name)
                && has(instance, tag::POOL, pool.as_str())
                && has(instance, tag::KEY, key)
        };
        let holder = self.observed.instances.values().filter(taken).find(|i| !own(i))?;
        let expected = format!("no instance with key `{key}` in pool `{pool}`");
        Some((expected, format!("instance {}", holder.id)))
    }

    /// Returns whether an instance is a member of the group that the row says it is of.
    fn is_member(&self, address: &Address, instance: &Instance) -> bool {
        let of = instance.group.as_ref().map(|of| &of.name);
        self.waves.iter().any(|wave| match wave {
            WaveWork::Launch(_) => false,
            WaveWork::Retire(retires) => retires
                .iter()
                .any(|work| work.address == address && of.is_some() && work.member_of == of),
        })
    }

    /// Returns whether the row has this instance go: then its absence is the change done.
    fn retires(&self, address: &Address, id: &InstanceId) -> bool {
        self.waves.iter().any(|wave| match wave {
            WaveWork::Launch(_) => false,
            WaveWork::Retire(retires) => {
                retires.iter().any(|work| work.address == address && work.instance == id)
            }
        })
    }

    fn launch_at(&self, address: &Address) -> Option<(&ChangeId, Option<&InstanceId>)> {
        self.waves.iter().find_map(|wave| match wave {
            WaveWork::Launch(launches) => launches
                .iter()
                .find(|work| work.address == address)
                .map(|work| (&work.change_id, work.replaces)),
            WaveWork::Retire(_) => None,
        })
    }
}

/// Returns whether the instance has ended, or is ending.
pub(super) fn has_ended(instance: &Instance) -> bool {
    matches!(instance.state, InstanceState::ShuttingDown | InstanceState::Terminated)
}

/// Returns whether the change launched the instance.
pub(super) fn is_launched_by(instance: &Instance, change: &ChangeId) -> bool {
    instance.tags.get(tag::CHANGE).is_some_and(|tag| tag == change.as_str())
}
