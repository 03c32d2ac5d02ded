//! Checks before the first write.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use thiserror::Error;

use super::ApplySettings;
use super::wave_plan::{LaunchWork, Reader, RetireWork, WaveWork};
use crate::model::ids::{Address, ChangeId, Digest, GroupName, InstanceId, PoolName, Uid};
use crate::model::observed::{ClusterIdentity, Completeness, Group, Instance, Observed, tag};
use crate::plan::wire::{Check, Condition, DiagnosticSeverity, Precondition};
use crate::plan::{Plan, RevalidatedPlan, WithdrawnOffering, expiry, has_complete_identity};

/// Maximum difference between the clocks of the computers that plan and apply.
const CLOCK_SKEW_MAX: SignedDuration = SignedDuration::from_mins(2);

/// Reason why a plan was not applied. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApplyError {
    /// The plan is for another cluster (exit code 10).
    #[error("the plan is of cluster {}, this is {}", identity(planned), identity(here))]
    OtherCluster {
        /// Cluster of the plan.
        planned: Box<ClusterIdentity>,
        /// Cluster that the ports reach.
        here: Box<ClusterIdentity>,
    },
    /// The plan is inconsistent, or needs a feature that this version lacks (exit code 9).
    #[error("the plan is invalid: {}", .0.join("; "))]
    InvalidPlan(Vec<String>),
    /// Another digest was approved (exit code 3).
    #[error("digest {approved} was approved, the plan has {found}")]
    NotApproved {
        /// Approved digest.
        approved: Digest,
        /// Digest of the plan.
        found: Digest,
    },
    /// A policy denies the plan (exit code 6).
    #[error("the plan is denied by policy: {}", .0.join("; "))]
    Denied(Vec<String>),
    /// The plan must never be applied (exit code 5).
    #[error("the plan may not be applied: {0}")]
    NotApplyable(String),
    /// The plan has expired (exit code 11).
    #[error("the plan expired at {expires_at}, it is {now}; make a new one")]
    Expired {
        /// Expiry time of the plan.
        expires_at: Timestamp,
        /// Current time.
        now: Timestamp,
    },
    /// The plan is for a later time, at which other rules may be active (exit code 3).
    #[error("the plan is stale: it is for {timestamp}, and it is {now} now")]
    Future {
        /// Time for which the plan is made.
        timestamp: Timestamp,
        /// Current time.
        now: Timestamp,
    },
    /// The live state could not be read in full (exit code 1).
    #[error("the live state is not known: {}", .0.join("; "))]
    IncompleteObservation(Vec<String>),
    /// Conditions of the plan no longer hold (exit code 3).
    #[error("the plan is stale: {}", joined_conditions(.0))]
    Stale(Vec<FailedCondition>),
    /// The current demand exceeds the approved nodes (exit code 3).
    #[error("the plan is stale: more is needed now than was approved: {}", .0.join("; "))]
    ExceedsApproval(Vec<String>),
    /// The files declare other nodes than the plan, or the catalog has no such node (exit code 3).
    #[error("the plan is stale: it launches nodes that files or catalog do not permit now: {}", .0.join("; "))]
    OtherFiles(Vec<String>),
    /// Planning again found errors in the inputs (exit code 1).
    #[error("the inputs of the plan have errors: {}", .0.join("; "))]
    InputErrors(Vec<String>),
    /// The plan removes nodes, and all removals are blocked now (exit code 3).
    #[error("the plan is stale: it removes nodes, and nothing may be removed now: {0}")]
    Frozen(String),
    /// The apply was interrupted before its first write (exit code 130).
    #[error("interrupted before the first change")]
    Interrupted,
}

/// A condition of the plan that no longer holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Error)]
#[error("{address}: expected {expected}, found {found}")]
pub struct FailedCondition {
    /// Row of the condition.
    pub address: Address,
    /// The condition.
    pub condition: Condition,
    /// Description of the expected state.
    pub expected: String,
    /// Description of the observed state.
    pub found: String,
}

fn identity(cluster: &ClusterIdentity) -> String {
    let ClusterIdentity { name, region, account, uid } = cluster;
    format!("`{name}` (region {region}, account {account}, UID {uid})")
}

fn joined_conditions(failed: &[FailedCondition]) -> String {
    failed.iter().map(FailedCondition::to_string).collect::<Vec<_>>().join("; ")
}

/// Runs the checks that need no observation, and returns the waves of the plan.
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
    if !has_complete_identity(plan) {
        let version = &plan.format_version;
        let why = format!("its identity, of format {version}, does not cover all that is done");
        return Err(ApplyError::InvalidPlan(vec![why]));
    }
    let mut waves = Reader::waves(plan).map_err(ApplyError::InvalidPlan)?;
    let found = &plan.capacity.digest;
    if let Some(approved) = settings.approved.as_ref().filter(|approved| *approved != found) {
        let (approved, found) = (approved.clone(), found.clone());
        return Err(ApplyError::NotApproved { approved, found });
    }
    check_applyable(plan)?;
    let timestamp = plan.timestamp;
    if timestamp > now.checked_add(CLOCK_SKEW_MAX).unwrap_or(now) {
        return Err(ApplyError::Future { timestamp, now });
    }
    let expires_at = expiry(plan);
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
    let why = if plan.errored { "its inputs have errors" } else { "it is marked not applyable" };
    Err(ApplyError::NotApplyable(why.to_owned()))
}

/// Parts of the approved plan that are not carried out.
#[derive(Debug, Default)]
pub(super) struct Exceptions {
    /// Changes that are no longer needed, with the reason.
    pub(super) dropped: BTreeMap<Address, String>,
    /// Offerings of launches that are not requested.
    pub(super) withdrawn: BTreeMap<Address, Vec<WithdrawnOffering>>,
}

/// Checks that the observation is complete, that the demand does not exceed the approval, and that
/// the conditions of the plan hold. Conditions of finished changes need not hold. Returns the
/// changes that are no longer needed, and the offerings that are withdrawn.
pub(super) async fn check_observation(
    plan: &Plan,
    waves: &[WaveWork<'_>],
    settings: &ApplySettings<'_>,
    observed: &Observed,
) -> Result<Exceptions, ApplyError> {
    let unread_sources: Vec<String> =
        observed.sources.iter().filter_map(incomplete_source).collect();
    if !unread_sources.is_empty() {
        return Err(ApplyError::IncompleteObservation(unread_sources));
    }
    let revalidated = settings.replan.replan(plan, observed).await;
    let RevalidatedPlan {
        dropped,
        missing,
        frozen,
        blocked_removal: _,
        undeclared,
        withdrawn,
        hourly_after: _,
        denied,
        current,
    } = revalidated;
    // A plan file states its errors itself, so its statement does not count.
    if current.errored {
        return Err(ApplyError::InputErrors(input_errors(&current)));
    }
    if !undeclared.is_empty() {
        return Err(ApplyError::OtherFiles(undeclared));
    }
    if !denied.is_empty() {
        return Err(ApplyError::Denied(denied));
    }
    let mut conditions: BTreeSet<Precondition> =
        plan.capacity.base.preconditions.iter().cloned().collect();
    // The implied conditions of launches and retirements must hold even if the plan omits them.
    conditions.extend(waves.iter().flat_map(implied_conditions));
    let failed: Vec<FailedCondition> = conditions
        .into_iter()
        .filter(|precondition| !dropped.contains_key(&precondition.address))
        .filter_map(|precondition| ConditionCheck { waves, observed }.check(precondition))
        .collect();
    // Report failed conditions first: they may be the cause of the missing nodes.
    match (failed.is_empty(), missing.is_empty(), frozen) {
        (false, _, _) => Err(ApplyError::Stale(failed)),
        (true, false, _) => Err(ApplyError::ExceedsApproval(missing)),
        // An unknown demand blocks removals.
        (true, true, Some(why)) => Err(ApplyError::Frozen(why)),
        (true, true, None) => Ok(Exceptions { dropped, withdrawn }),
    }
}

/// Returns the first errors of a plan, in words.
fn input_errors(plan: &Plan) -> Vec<String> {
    const ERRORS_MAX: usize = 5;
    let all = plan.capacity.diagnostics.iter();
    let errors = all.filter(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error);
    errors.take(ERRORS_MAX).map(|diagnostic| diagnostic.message.clone()).collect()
}

fn incomplete_source((name, completeness): (&String, &Completeness)) -> Option<String> {
    match completeness {
        Completeness::Complete => None,
        Completeness::Partial { reason } => Some(format!("{name} was read in part: {reason}")),
        Completeness::Failed { reason } => Some(format!("{name} was not read: {reason}")),
    }
}

fn implied_conditions(wave: &WaveWork<'_>) -> Vec<Precondition> {
    let launch_condition = |work: &LaunchWork<'_>| Precondition {
        address: work.address.clone(),
        condition: Condition::KeyUnused { pool: work.pool.clone(), key: work.key.to_owned() },
    };
    let retire_condition = |work: &RetireWork<'_>| Precondition {
        address: work.address.clone(),
        condition: Condition::InstanceIs {
            instance_id: work.instance.clone(),
            node_uid: work.node.node_uid.clone(),
        },
    };
    match wave {
        WaveWork::Launch(launches) => launches.iter().map(launch_condition).collect(),
        WaveWork::Retire(retires) => retires.iter().map(retire_condition).collect(),
    }
}

/// Data for the evaluation of conditions.
struct ConditionCheck<'a> {
    waves: &'a [WaveWork<'a>],
    observed: &'a Observed,
}

impl ConditionCheck<'_> {
    /// Returns the condition if it does not hold.
    fn check(&self, precondition: Precondition) -> Option<FailedCondition> {
        let Precondition { address, condition } = precondition;
        let (expected, found) = match &condition {
            Condition::InstanceIs { instance_id, node_uid } => {
                self.instance_is(&address, instance_id, node_uid.as_ref())
            }
            Condition::KeyUnused { pool, key } => self.key_unused(&address, pool, key),
            Condition::GroupIs { group, desired } => self.group_is(&address, group, *desired),
            // Not checked here: the retirement waits until this condition holds.
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
        if self.observed.may_run_unlisted(id) {
            return Some((expected, "a node whose instance EC2 does not list".to_owned()));
        }
        let Some(instance) = instance.filter(|instance| !instance.has_ended()) else {
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

    /// Returns the expected and the found size of a group if they differ. An earlier run of this
    /// plan may have raised or lowered the group.
    fn group_is(
        &self,
        address: &Address,
        group: &GroupName,
        desired: u32,
    ) -> Option<(String, String)> {
        let found = self.observed.groups.get(group);
        let raised = desired.saturating_add(self.launch_count(address));
        let is_planned = |live: &Group| (desired..=raised).contains(&live.desired);
        // Each retirement of a member lowers the desired size.
        let is_lowered = |live: &Group| self.retire_count(address) > 0 && live.desired <= raised;
        if found.is_some_and(|live| is_planned(live) || is_lowered(live)) {
            return None;
        }
        let found = found
            .map_or_else(|| "no such group".to_owned(), |live| format!("{} members", live.desired));
        Some((format!("group {group} of {desired} members"), found))
    }

    /// Returns the number of members that the plan launches into the group of a row.
    fn launch_count(&self, address: &Address) -> u32 {
        let count = |wave: &WaveWork<'_>| match wave {
            WaveWork::Launch(launches) => {
                let is_member = |work: &&LaunchWork<'_>| {
                    work.group.as_ref().is_some_and(|group| group.address == address)
                };
                launches.iter().filter(is_member).count()
            }
            WaveWork::Retire(_) => 0,
        };
        u32::try_from(self.waves.iter().map(count).sum::<usize>()).unwrap_or(u32::MAX)
    }

    fn retire_count(&self, address: &Address) -> usize {
        let count = |wave: &WaveWork<'_>| match wave {
            WaveWork::Launch(_) => 0,
            WaveWork::Retire(retires) => {
                retires.iter().filter(|work| work.group_address == Some(address)).count()
            }
        };
        self.waves.iter().map(count).sum()
    }

    fn key_unused(
        &self,
        address: &Address,
        pool: &PoolName,
        key: &str,
    ) -> Option<(String, String)> {
        let launch = self.launch_at(address);
        let is_own = |instance: &&Instance| {
            launch.is_some_and(|(change, replaces)| {
                replaces == Some(&instance.id) || is_launched_by(instance, change)
            })
        };
        let has = |instance: &Instance, tag: &str, value: &str| {
            instance.tags.get(tag).is_some_and(|found| found == value)
        };
        let uses_key = |instance: &&Instance| {
            !instance.has_ended()
                && instance.is_managed_by(&self.observed.cluster.name)
                && has(instance, tag::POOL, pool.as_str())
                && has(instance, tag::KEY, key)
        };
        let holder = self.observed.instances.values().filter(uses_key).find(|i| !is_own(i))?;
        let expected = format!("no instance with key `{key}` in pool `{pool}`");
        Some((expected, format!("instance {}", holder.id)))
    }

    /// Returns true if an instance is a member of the group in the row.
    fn is_member(&self, address: &Address, instance: &Instance) -> bool {
        let group = instance.group.as_ref().map(|group| &group.name);
        self.waves.iter().any(|wave| match wave {
            WaveWork::Launch(_) => false,
            WaveWork::Retire(retires) => retires
                .iter()
                .any(|work| work.address == address && group.is_some() && work.group_name == group),
        })
    }

    /// Returns true if the row retires this instance. Its absence then means that the change is
    /// done.
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

/// Returns true if the change launched the instance.
pub(super) fn is_launched_by(instance: &Instance, change: &ChangeId) -> bool {
    instance.tags.get(tag::CHANGE).is_some_and(|tag| tag == change.as_str())
}
