//! Launch templates that nobody needs any more.
//!
//! A template holds the user data of a machine, its labels among them, so that a cluster that lives for long makes
//! many, and an account may have 5,000 in a region. One is of use only while something is launched from it, and
//! is made again where it is missing. Invariants: only what carries the tag of this cluster and a name as
//! we give them is deleted; nothing that launches of this process are made from, and nothing that was
//! made within a bound. That no other process launches from it meanwhile, the lease sees to; one that is gone is
//! made again by the next launch.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{Filter, LaunchTemplate};

use super::client::Aws;
use super::fault::port_error;
use super::limiter::Api;
use crate::fleet::tag;
use crate::ids::Tags;
use crate::port::PortError;

/// Most templates that one sweep deletes: the calls are few, and launches need them too.
const SWEPT_MAX: usize = 50;

/// How long nothing was launched from a template of this process that is deleted.
const UNUSED_FOR: Duration = Duration::from_hours(6);

/// Between two deletions, so that a launch finds a call left for a template of its own.
const DELETE_EVERY: Duration = Duration::from_secs(2);

/// The tag by which EC2 says of an instance which template it was launched from.
const TEMPLATE_TAG: &str = "aws:ec2launchtemplate:id";

/// Codes by which EC2 says that there is no such template, or no more.
pub(super) const NO_SUCH_TEMPLATE: [&str; 2] =
    ["InvalidLaunchTemplateId.NotFound", "InvalidLaunchTemplateName.NotFoundException"];

/// What came of a sweep.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Swept {
    /// How many templates were deleted.
    pub gone: usize,
    /// Those that could not be, by name, with the reason.
    pub left: BTreeMap<String, String>,
}

impl Aws {
    /// Deletes launch templates of this cluster that are older than `age` and that neither a launch of this
    /// process nor an instance among `tags` is made from; returns how many, and which could not be deleted. Those
    /// of which that was so `before` come last.
    ///
    /// # Errors
    /// When they cannot be listed, or nothing may be deleted any more; what is left is for the next sweep.
    pub async fn sweep_templates<'t>(
        &self,
        age: Duration,
        before: &BTreeMap<String, String>,
        tags: impl Iterator<Item = &'t Tags>,
    ) -> Result<Swept, PortError> {
        const VERB: &str = "delete launch template";
        let used: BTreeSet<&String> = tags.filter_map(|tags| tags.get(TEMPLATE_TAG)).collect();
        let oldest = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let idle = |template: &LaunchTemplate| {
            let made = template.create_time().and_then(|at| SystemTime::try_from(*at).ok());
            template.launch_template_id.as_ref().is_some_and(|id| !used.contains(id))
                && template.launch_template_name().is_some_and(|name| self.may_sweep(name))
                && made.is_some_and(|made| made <= oldest)
        };
        let mut swept = Swept::default();
        // The oldest first, but those last that could not be deleted before: they hold up no other.
        let mut templates: Vec<_> = self.templates().await?.into_iter().filter(idle).collect();
        templates.sort_by_key(|template| {
            let name = template.launch_template_name().unwrap_or_default();
            let made = template.create_time().map(aws_smithy_types::DateTime::secs);
            (before.contains_key(name), made, name.to_owned())
        });
        for template in templates.into_iter().take(SWEPT_MAX) {
            let (Some(id), Some(name)) =
                (template.launch_template_id, template.launch_template_name)
            else {
                continue;
            };
            self.limiter.take(Api::Template).await;
            // A launch may have begun from it meanwhile.
            if !self.may_sweep(&name) {
                continue;
            }
            self.may_write(VERB)?;
            let asked = self.ec2.delete_launch_template().launch_template_id(id).send().await;
            match asked {
                Ok(_) => {
                    swept.gone += 1;
                    if let Some(machines) = self.machines() {
                        machines.keep(|known| {
                            known.templates.remove(&name);
                        });
                    }
                }
                Err(error) if error.code().is_some_and(|c| NO_SUCH_TEMPLATE.contains(&c)) => {}
                Err(error) => {
                    swept.left.insert(name, port_error(VERB, &error).to_string());
                }
            }
            tokio::time::sleep(DELETE_EVERY).await;
        }
        Ok(swept)
    }

    /// Returns whether a name is one that we give, and no launch of this process is made from it.
    fn may_sweep(&self, name: &str) -> bool {
        let ours = name.strip_prefix(&format!("fleetwright-{}-", self.cluster));
        // The cluster `prod` has none of `prod-eu`.
        let ours = ours.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_hexdigit()));
        let known = self
            .machines()
            .and_then(|machines| machines.recall(|known| known.templates.get(name).copied()));
        ours && known.is_none_or(|used| used.elapsed() >= UNUSED_FOR)
    }

    /// Returns the launch templates that carry the tag of this cluster.
    async fn templates(&self) -> Result<Vec<LaunchTemplate>, PortError> {
        let ours = Filter::builder().name(format!("tag:{}", tag::CLUSTER)).values(&self.cluster);
        let request = self.ec2.describe_launch_templates().filters(ours.build());
        let (mut pages, mut all) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.take(Api::Describe).await;
            let Some(page) = pages.next().await else { return Ok(all) };
            let page = page.map_err(|error| port_error("list launch templates", &error))?;
            all.extend(page.launch_templates.unwrap_or_default());
        }
    }
}
