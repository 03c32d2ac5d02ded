//! Deletes unused launch templates.
//!
//! A template contains the user data with the node labels, so that a long-lived cluster creates
//! many of them. An account may have 5,000 in a region. A template is only needed during a launch,
//! and a missing template is created again.
//!
//! Invariants: a deleted template has the tag of this cluster and a name in our format. It is not
//! used by launches of this process and is older than a given age. The lease ensures that no other
//! process launches from it. If a deleted template is needed again, the next launch recreates it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{Filter, LaunchTemplate};

use super::client::Aws;
use super::errors::port_error;
use super::launch_context::LaunchContext;
use super::rate_limiter::ApiBucket;
use crate::apply::ports::PortError;
use crate::model::ids::Tags;
use crate::model::observed::tag;

/// Maximum deletions per run: the rate limit is low, and launches share it.
const DELETIONS_MAX: usize = 50;

/// Minimum time since the last launch of this process from a deleted template.
const UNUSED_FOR: Duration = Duration::from_hours(6);

/// Pause between two deletions, so that launches can still create templates within the rate limit.
const DELETE_EVERY: Duration = Duration::from_secs(2);

/// Tag of an instance with the ID of its launch template.
const TEMPLATE_TAG: &str = "aws:ec2launchtemplate:id";

/// Error codes of EC2 for a launch template that does not exist, or no longer exists.
pub(super) const NO_SUCH_TEMPLATE: [&str; 2] =
    ["InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException"];

/// The result of one cleanup.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct TemplateGcResult {
    /// Number of deleted templates.
    pub deleted: usize,
    /// Templates that could not be deleted, by name, with the reason.
    pub failed: BTreeMap<String, String>,
}

impl Aws {
    /// Deletes launch templates of this cluster that are older than `age` and unused. A template is
    /// used if this process launches from it or if `tags` of an instance name it. Templates that
    /// failed `before` are tried last.
    ///
    /// # Errors
    /// Returns an error if the templates cannot be listed or writes are no longer allowed. The next
    /// run handles the rest.
    pub async fn delete_unused_templates<'t>(
        &self,
        age: Duration,
        before: &BTreeMap<String, String>,
        tags: impl Iterator<Item = &'t Tags>,
    ) -> Result<TemplateGcResult, PortError> {
        const VERB: &str = "delete launch template";
        let used: BTreeSet<&String> = tags.filter_map(|tags| tags.get(TEMPLATE_TAG)).collect();
        let oldest = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let idle = |template: &LaunchTemplate| {
            let made = template.create_time().and_then(|at| SystemTime::try_from(*at).ok());
            template.launch_template_id.as_ref().is_some_and(|id| !used.contains(id))
                && template.launch_template_name().is_some_and(|name| self.is_deletable(name))
                && made.is_some_and(|made| made <= oldest)
        };
        let mut result = TemplateGcResult::default();
        // Oldest first. Templates that failed before come last, so that they do not block others.
        let mut templates: Vec<_> =
            self.cluster_templates().await?.into_iter().filter(idle).collect();
        templates.sort_by_key(|template| {
            let name = template.launch_template_name().unwrap_or_default();
            let made = template.create_time().map(aws_smithy_types::DateTime::secs);
            (before.contains_key(name), made, name.to_owned())
        });
        for template in templates.into_iter().take(DELETIONS_MAX) {
            let (Some(id), Some(name)) =
                (template.launch_template_id, template.launch_template_name)
            else {
                continue;
            };
            self.limiter.acquire(ApiBucket::Template).await;
            // A launch may have started to use it since.
            if !self.is_deletable(&name) {
                continue;
            }
            self.check_write_permit(VERB)?;
            let response = self.ec2.delete_launch_template().launch_template_id(id).send().await;
            match response {
                Ok(_) => result.deleted += 1,
                Err(error) if error.code().is_some_and(|c| NO_SUCH_TEMPLATE.contains(&c)) => {}
                Err(error) => {
                    result.failed.insert(name.clone(), port_error(VERB, &error).to_string());
                }
            }
            if !result.failed.contains_key(&name)
                && let Some(context) = self.launch_context()
            {
                context.forget_templates([name.as_str()]);
            }
            tokio::time::sleep(DELETE_EVERY).await;
        }
        Ok(result)
    }

    /// Records the existing launch templates of this cluster. After a restart, launches then do not
    /// create them once more, which EC2 limits.
    ///
    /// # Errors
    /// Returns an error if the templates cannot be listed.
    pub(super) async fn find_templates(&self, context: &LaunchContext) -> Result<(), PortError> {
        let found = self.cluster_templates().await?;
        let names = found.into_iter().filter_map(|template| template.launch_template_name);
        let names = names.filter(|name| self.is_own_name(name));
        context.update_lookups(|known| {
            for name in names {
                known.templates.entry(name).or_default();
            }
        });
        Ok(())
    }

    /// Returns whether a template with this name is ours, and no recent launch of this process used
    /// it.
    fn is_deletable(&self, name: &str) -> bool {
        let used = self.launch_context().and_then(|context| {
            context.read_lookups(|known| known.templates.get(name).copied().flatten())
        });
        self.is_own_name(name) && used.is_none_or(|used| used.elapsed() >= UNUSED_FOR)
    }

    /// Returns whether a name has our format, for this cluster.
    fn is_own_name(&self, name: &str) -> bool {
        // Templates of cluster `prod-eu` do not belong to cluster `prod`.
        let hash = name.strip_prefix(&format!("fleetwright-{}-", self.cluster));
        hash.is_some_and(|hash| hash.chars().all(|c| c.is_ascii_hexdigit()))
    }

    async fn cluster_templates(&self) -> Result<Vec<LaunchTemplate>, PortError> {
        let ours = Filter::builder().name(format!("tag:{}", tag::CLUSTER)).values(&self.cluster);
        let request = self.ec2.describe_launch_templates().filters(ours.build());
        let (mut pages, mut all) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.acquire(ApiBucket::Describe).await;
            let Some(page) = pages.next().await else { return Ok(all) };
            let page = page.map_err(|error| port_error("list launch templates", &error))?;
            all.extend(page.launch_templates.unwrap_or_default());
        }
    }
}
