//! Implements the ports [`Cloud`] and [`Tagger`].

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{Filter, Tag};

use super::auto_scaling::{ClusterGroups, GroupMembers};
use super::client::Aws;
use super::errors::{AwsError, port_error, refused};
use super::instance::parse_instance;
use super::rate_limiter::ApiBucket;
use crate::apply::ports::{Cloud, CloudInventory, LaunchOutcome, LaunchRequest, PortError, Tagger};
use crate::model::ids::{GroupName, InstanceId};
use crate::model::observed::{Instance, InstanceState, tag};

/// Maximum number of values in one filter. Source: EC2 API reference, `DescribeInstances`.
const FILTER_VALUES_MAX: usize = 200;

/// Maximum number of instances in one page. EC2 refuses a page size beside instance IDs, so that
/// instances are found by filters. Source: EC2 API reference, `DescribeInstances`.
pub(super) const INSTANCES_PAGE: i32 = 1_000;

/// Error code of EC2 for an instance that does not exist, or no longer exists.
const NO_SUCH_INSTANCE: &str = "InvalidInstanceID.NotFound";

impl Cloud for Aws {
    async fn inventory(&self) -> Result<CloudInventory, PortError> {
        let mut inventory = CloudInventory::default();
        // Groups first: every member that they list was launched before the instances are listed.
        let ClusterGroups { groups, members, .. } = self.list_groups().await?;
        inventory.groups = groups;
        self.list_instances(&members, &mut inventory).await?;
        if self.reads_reservations() {
            self.list_reservations(&mut inventory).await?;
        }
        inventory.fargate_profiles = self.fargate_profiles().await?;
        let context = self.launch_context();
        let version = context.as_ref().map(|context| context.kubernetes_version.as_str());
        inventory.resolved = self.resolution.snapshot(version, tokio::time::Instant::now());
        Ok(inventory)
    }

    async fn find_instances(&self, ids: &BTreeSet<InstanceId>) -> Result<Vec<Instance>, PortError> {
        let mut found = Vec::new();
        for filter in id_filters(ids) {
            let read = self.describe_instances(filter).await?.into_iter();
            let read: Result<Vec<_>, _> = read.collect();
            found.extend(read.map_err(|why| refused("find instances", why))?);
        }
        Ok(found)
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        const VERB: &str = "launch instance";
        let Some(context) = self.launch_context() else {
            let reason = "pools and node classes are not loaded".to_owned();
            return Err(refused(VERB, reason));
        };
        match self.launch_instance(&context, request).await {
            Ok(outcome) => Ok(outcome),
            Err(AwsError::Port(error)) => Err(error),
            Err(AwsError::Missing(reason)) => Err(refused(VERB, reason)),
        }
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        self.raise_desired_capacity(group, desired).await
    }

    async fn terminate_member(&self, id: &InstanceId) -> Result<(), PortError> {
        self.terminate_member(id).await
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "terminate instance";
        // Checked again right before the call: foreign instances are never terminated, even if a
        // plan names them.
        let Some(instance) = self.describe_instance(id).await? else { return Ok(()) };
        if !instance.is_managed_by(&self.cluster) {
            let reason = format!("{id} does not carry the tags of cluster {}", self.cluster);
            return Err(refused(VERB, reason));
        }
        self.limiter.acquire(ApiBucket::Terminate).await;
        self.check_write_permit(VERB)?;
        let result = self.ec2.terminate_instances().instance_ids(id.as_str()).send().await;
        match result {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some(NO_SUCH_INSTANCE) => Ok(()),
            Err(error) => Err(port_error(VERB, &error)),
        }
    }
}

impl Tagger for Aws {
    async fn tag(&self, id: &InstanceId, tags: &BTreeMap<String, String>) -> Result<(), PortError> {
        const VERB: &str = "tag instance";
        let Some(instance) = self.describe_instance(id).await? else {
            return Err(refused(VERB, format!("instance {id} does not exist")));
        };
        if let Some(other) = instance.tags.get(tag::CLUSTER).filter(|name| **name != self.cluster) {
            return Err(refused(VERB, format!("{id} carries the tag of cluster {other}")));
        }
        if let Some((key, value)) = instance.conflicting_tag(tags) {
            return Err(refused(VERB, format!("{id} is ours already, with {key} = {value}")));
        }
        let tags = tags.iter().map(|(key, value)| Tag::builder().key(key).value(value).build());
        self.limiter.acquire(ApiBucket::Other).await;
        self.check_write_permit(VERB)?;
        let call = self.ec2.create_tags().resources(id.as_str()).set_tags(Some(tags.collect()));
        call.send().await.map(|_| ()).map_err(|error| port_error(VERB, &error))
    }
}

impl Aws {
    /// Reads the instances with the tag of the cluster, and the `members` of its groups.
    pub(super) async fn list_instances(
        &self,
        members: &GroupMembers,
        inventory: &mut CloudInventory,
    ) -> Result<(), PortError> {
        let of_cluster = filter(format!("tag:{}", tag::CLUSTER), vec![self.cluster.clone()]);
        let mut filters = vec![of_cluster];
        filters.extend(id_filters(members.keys()));
        let mut found: BTreeMap<InstanceId, Instance> = BTreeMap::new();
        for filter in filters {
            for read in self.describe_instances(filter).await? {
                match read {
                    Ok(mut instance) => {
                        instance.group = members.get(&instance.id).cloned();
                        found.insert(instance.id.clone(), instance);
                    }
                    Err(why) => inventory.unread.push(why),
                }
            }
        }
        let lagging = members.keys().filter(|id| !found.contains_key(*id));
        inventory.unread.extend(lagging.map(|id| {
            format!("EC2 does not list instance {id}, a member of group {}", members[id].name)
        }));
        inventory.instances = found.into_values().collect();
        Ok(())
    }

    /// Reads every instance that matches `filter`.
    async fn describe_instances(
        &self,
        filter: Filter,
    ) -> Result<Vec<Result<Instance, String>>, PortError> {
        let request = self.ec2.describe_instances().filters(filter).max_results(INSTANCES_PAGE);
        let (mut pages, mut read) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.acquire(ApiBucket::Describe).await;
            let Some(page) = pages.next().await else { return Ok(read) };
            let page = page.map_err(|error| port_error("list instances", &error))?;
            let found = page.reservations.unwrap_or_default().into_iter();
            read.extend(found.flat_map(|r| r.instances.unwrap_or_default()).map(parse_instance));
        }
    }

    /// Returns the current state of an instance, or `None` if it is terminated.
    pub(super) async fn describe_instance(
        &self,
        id: &InstanceId,
    ) -> Result<Option<Instance>, PortError> {
        let found = self.find_instances(&[id.clone()].into()).await?.pop();
        Ok(found.filter(|i| !matches!(i.state, InstanceState::Terminated)))
    }
}

/// Returns filters by ID. They do not fail for an instance that does not exist.
fn id_filters<'i>(ids: impl IntoIterator<Item = &'i InstanceId>) -> Vec<Filter> {
    let ids: Vec<String> = ids.into_iter().map(ToString::to_string).collect();
    let chunks = ids.chunks(FILTER_VALUES_MAX);
    chunks.map(|ids| filter("instance-id".to_owned(), ids.to_vec())).collect()
}

fn filter(name: String, values: Vec<String>) -> Filter {
    Filter::builder().name(name).set_values(Some(values)).build()
}
