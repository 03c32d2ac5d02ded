//! Instance profiles of node classes with a role.
//!
//! A profile that contains the role is used as it is. A profile of Karpenter is the last choice,
//! because Karpenter deletes it with its node class. Without a profile, a launch creates one, if the
//! policy permits that. Its path names the region and the cluster, because IAM is global, and its
//! name is a hash of the node class and the role. A changed role therefore gets another profile, and
//! running instances keep theirs.
//!
//! Invariants: only profiles in the path of this cluster are changed. A deleted profile belongs to
//! no node class and to no instance.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use aws_sdk_ec2::types::Filter;
use aws_sdk_iam::error::ProvideErrorMetadata as _;
use aws_sdk_iam::types::{InstanceProfile, Tag};
use sha2::{Digest as _, Sha256};

use super::client::Aws;
use super::errors::{AwsError, port_error};
use super::launch_context::LaunchContext;
use super::rate_limiter::ApiBucket;
use crate::apply::ports::PortError;
use crate::model::desired::{Identity, NodeClass};
use crate::model::observed::tag;

/// Bytes of the hash in a profile name. A name has at most 128 characters, and the name of a cluster
/// up to 100.
const NAME_BYTES: usize = 6;

/// Wait after the creation of a profile. EC2 refuses a profile that it does not see yet.
const PROPAGATION: Duration = Duration::from_secs(10);

/// Tag with the node class of a profile.
const NODE_CLASS_TAG: &str = "fleetwright.dev/node-class";

/// Path of the profiles that Karpenter creates. Older versions use the path `/`.
const KARPENTER_PATH: &str = "/karpenter/";

/// Error code of IAM for a missing permission.
const ACCESS_DENIED: &str = "AccessDenied";

/// States of instances that use their profile.
const LIVE_STATES: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

/// The result of one cleanup of instance profiles.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ProfileGcResult {
    /// Number of deleted profiles.
    pub deleted: usize,
    /// Profiles that could not be deleted, by name, with the reason.
    pub failed: BTreeMap<String, String>,
}

/// Profiles that contain a role.
struct RoleProfiles {
    /// Our own profile, else one that Karpenter did not create.
    stable: Option<String>,
    of_karpenter: Option<String>,
}

impl Aws {
    /// Returns the instance profile of a class without creating one: the named profile, or a
    /// profile that contains its role.
    ///
    /// # Errors
    /// Returns an error if IAM cannot be read, or if no profile contains the role. It names the
    /// profile that a launch would create.
    pub(super) async fn instance_profile(
        &self,
        context: &LaunchContext,
        class: &NodeClass,
    ) -> Result<Option<String>, AwsError> {
        let role = match &class.instance_settings.identity {
            Identity::Profile(name) => return Ok(Some(name.clone())),
            Identity::None => return Ok(None),
            Identity::Role(role) => role,
        };
        let RoleProfiles { stable, of_karpenter } =
            self.profiles_with_role(context, class, role).await?;
        let found = stable.or(of_karpenter);
        found.map(Some).ok_or_else(|| self.no_profile(class, role, "no launch has created one"))
    }

    /// Returns the instance profile of a class for a launch. If no profile contains its role, it
    /// creates one.
    ///
    /// # Errors
    /// Returns an error if IAM cannot be read, or refuses to create the profile.
    pub(super) async fn ensure_instance_profile(
        &self,
        context: &LaunchContext,
        class: &NodeClass,
    ) -> Result<Option<String>, AwsError> {
        let Identity::Role(role) = &class.instance_settings.identity else {
            return self.instance_profile(context, class).await;
        };
        let found = self.profiles_with_role(context, class, role).await?;
        if found.stable.is_some() {
            return Ok(found.stable);
        }
        let name = match (self.create_instance_profile(class, role).await, found.of_karpenter) {
            (Err(AwsError::Missing(_)), Some(name)) => name,
            (created, _) => created?,
        };
        context.update_lookups(|known| {
            known.profiles.insert(class.name.clone(), name.clone());
        });
        Ok(Some(name))
    }

    /// Returns the profiles that contain the role.
    async fn profiles_with_role(
        &self,
        context: &LaunchContext,
        class: &NodeClass,
        role: &str,
    ) -> Result<RoleProfiles, AwsError> {
        let known = context.read_lookups(|known| known.profiles.get(&class.name).cloned());
        if known.is_some() {
            return Ok(RoleProfiles { stable: known, of_karpenter: None });
        }
        self.limiter.acquire(ApiBucket::Other).await;
        let found = self.iam.list_instance_profiles_for_role().role_name(role).send().await;
        let found =
            found.map_err(|error| port_error(&format!("read the role `{role}`"), &error))?;
        let own = self.profile_name(class, role);
        let (of_karpenter, others): (Vec<_>, Vec<_>) =
            found.instance_profiles.into_iter().partition(|found| self.is_of_karpenter(found));
        let names: BTreeSet<String> =
            others.into_iter().map(|profile| profile.instance_profile_name).collect();
        // The first by name, so that the choice is deterministic.
        let stable = names.get(&own).or_else(|| names.first()).cloned();
        if let Some(name) = &stable {
            context.update_lookups(|known| {
                known.profiles.insert(class.name.clone(), name.clone());
            });
        }
        let of_karpenter =
            of_karpenter.into_iter().map(|profile| profile.instance_profile_name).min();
        Ok(RoleProfiles { stable, of_karpenter })
    }

    /// Returns true for a profile that Karpenter created for this cluster. Older versions name it
    /// by the cluster and a number.
    fn is_of_karpenter(&self, profile: &InstanceProfile) -> bool {
        let name = &profile.instance_profile_name;
        let number = name.strip_prefix(&self.cluster).and_then(|rest| rest.strip_prefix('_'));
        profile.path.starts_with(KARPENTER_PATH)
            || number.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
    }

    /// Creates the profile of a class and adds its role. It continues where an earlier attempt
    /// ended.
    async fn create_instance_profile(
        &self,
        class: &NodeClass,
        role: &str,
    ) -> Result<String, AwsError> {
        const VERB: &str = "create instance profile";
        let name = self.profile_name(class, role);
        self.limiter.acquire(ApiBucket::Other).await;
        self.check_write_permit(VERB)?;
        let call = self
            .iam
            .create_instance_profile()
            .instance_profile_name(&name)
            .path(self.profile_path())
            .set_tags(Some(self.profile_tags(class)));
        match call.send().await {
            Ok(_) => {}
            Err(error) if error.code() == Some("EntityAlreadyExists") => {}
            Err(error) if error.code() == Some(ACCESS_DENIED) => {
                let why = error.message().unwrap_or(ACCESS_DENIED);
                return Err(self.no_profile(class, role, why));
            }
            Err(error) => return Err(port_error(VERB, &error).into()),
        }
        self.limiter.acquire(ApiBucket::Other).await;
        let call = self.iam.add_role_to_instance_profile();
        match call.instance_profile_name(&name).role_name(role).send().await {
            Ok(_) => {}
            Err(error) if error.code() == Some("LimitExceeded") => {
                self.check_profile_role(&name, role).await?;
            }
            Err(error) if error.code() == Some(ACCESS_DENIED) => {
                let why = error.message().unwrap_or(ACCESS_DENIED);
                return Err(self.no_profile(class, role, why));
            }
            Err(error) => return Err(port_error("add role to instance profile", &error).into()),
        }
        tokio::time::sleep(PROPAGATION).await;
        Ok(name)
    }

    /// Checks that a profile contains the role. A profile contains at most one.
    async fn check_profile_role(&self, name: &str, role: &str) -> Result<(), AwsError> {
        self.limiter.acquire(ApiBucket::Other).await;
        let found = self.iam.get_instance_profile().instance_profile_name(name).send().await;
        let found = found.map_err(|error| port_error("read instance profile", &error))?;
        let roles = found.instance_profile.map(|profile| profile.roles).unwrap_or_default();
        if roles.iter().any(|of| of.role_name == role) {
            return Ok(());
        }
        Err(AwsError::Missing(format!(
            "instance profile {name} contains another role than `{role}`; delete the profile, or \
             set `instanceProfile`"
        )))
    }

    /// Deletes the profiles of this cluster that are older than `age` and used by no node class and
    /// no instance. Without the permission to list profiles, it does nothing.
    ///
    /// # Errors
    /// Returns an error if profiles or instances cannot be listed, or writes are no longer allowed.
    pub async fn delete_unused_profiles(
        &self,
        age: Duration,
    ) -> Result<ProfileGcResult, PortError> {
        const VERB: &str = "delete instance profile";
        let mut result = ProfileGcResult::default();
        let Some(context) = self.launch_context() else { return Ok(result) };
        let named = context.node_classes().filter_map(|class| {
            let Identity::Role(role) = &class.instance_settings.identity else { return None };
            Some(self.profile_name(class, role))
        });
        let used: BTreeSet<String> = named.collect();
        let oldest = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let Some(profiles) = self.cluster_profiles().await? else { return Ok(result) };
        for profile in profiles {
            let name = profile.instance_profile_name.clone();
            let made = SystemTime::try_from(profile.create_date).ok();
            let is_old = made.is_some_and(|made| made <= oldest);
            if used.contains(&name) || !is_old || self.is_profile_in_use(&profile.arn).await? {
                continue;
            }
            self.check_write_permit(VERB)?;
            match self.delete_profile(&profile).await {
                Ok(()) => result.deleted += 1,
                Err(error) => {
                    result.failed.insert(name, error.to_string());
                }
            }
        }
        Ok(result)
    }

    /// Returns the profiles in the path of this cluster; `None` without the permission.
    async fn cluster_profiles(&self) -> Result<Option<Vec<InstanceProfile>>, PortError> {
        let request = self.iam.list_instance_profiles().path_prefix(self.profile_path());
        let (mut pages, mut all) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.acquire(ApiBucket::Other).await;
            match pages.next().await {
                None => return Ok(Some(all)),
                // Checked again here: a foreign profile is never deleted.
                Some(Ok(page)) => {
                    let profiles = page.instance_profiles.into_iter();
                    all.extend(profiles.filter(|profile| profile.path == self.profile_path()));
                }
                Some(Err(error)) if error.code() == Some(ACCESS_DENIED) => return Ok(None),
                Some(Err(error)) => return Err(port_error("list instance profiles", &error)),
            }
        }
    }

    /// Returns true if an instance uses the profile, whoever launched it.
    async fn is_profile_in_use(&self, arn: &str) -> Result<bool, PortError> {
        let filter = |name: &str, values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            Filter::builder().name(name).set_values(Some(values)).build()
        };
        self.limiter.acquire(ApiBucket::Describe).await;
        let call = self
            .ec2
            .describe_instances()
            .filters(filter("iam-instance-profile.arn", &[arn]))
            .filters(filter("instance-state-name", &LIVE_STATES));
        let found = call.send().await;
        let found = found.map_err(|error| port_error("list instances of a profile", &error))?;
        Ok(found.next_token.is_some() || found.reservations.is_some_and(|all| !all.is_empty()))
    }

    async fn delete_profile(&self, profile: &InstanceProfile) -> Result<(), PortError> {
        let name = &profile.instance_profile_name;
        for role in &profile.roles {
            self.limiter.acquire(ApiBucket::Other).await;
            let call = self.iam.remove_role_from_instance_profile().instance_profile_name(name);
            let removed = call.role_name(&role.role_name).send().await;
            removed.map_err(|error| port_error("remove role from instance profile", &error))?;
        }
        self.limiter.acquire(ApiBucket::Other).await;
        let deleted = self.iam.delete_instance_profile().instance_profile_name(name).send().await;
        deleted.map(|_| ()).map_err(|error| port_error("delete instance profile", &error))
    }

    /// Returns the path of the profiles of this cluster.
    fn profile_path(&self) -> String {
        format!("/fleetwright/{}/{}/", self.region, self.cluster)
    }

    /// Returns the name of the profile that a launch of the class creates.
    fn profile_name(&self, class: &NodeClass, role: &str) -> String {
        let parts = format!("{}\n{}\n{role}", self.region, class.name);
        let digest = Sha256::digest(parts.as_bytes());
        format!("fleetwright-{}-{}", self.cluster, hex::encode(&digest[..NAME_BYTES]))
    }

    fn profile_tags(&self, class: &NodeClass) -> Vec<Tag> {
        let tags = [
            (tag::CLUSTER, self.cluster.as_str()),
            (NODE_CLASS_TAG, class.name.as_str()),
            (self.owned_tag.as_str(), "owned"),
        ];
        let tag = |(key, value)| Tag::builder().key(key).value(value).build().ok();
        tags.into_iter().filter_map(tag).collect()
    }

    /// Returns the error for a class without a profile.
    fn no_profile(&self, class: &NodeClass, role: &str, why: &str) -> AwsError {
        let (name, class) = (self.profile_name(class, role), &class.name);
        AwsError::Missing(format!(
            "no instance profile contains the role `{role}` of node class {class} ({why}); create \
             the instance profile `{name}` with this role, set `instanceProfile`, or attach \
             instance-profiles.json, so that a launch creates it"
        ))
    }
}
