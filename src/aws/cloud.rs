//! The port, verb by verb.

use std::collections::BTreeMap;

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::{Filter, Tag};

use super::client::{Aws, AwsError};
use super::fault::port_error;
use super::group::{Groups, Members};
use super::instance::instance;
use super::limiter::Api;
use crate::fleet::{Instance, InstanceState, tag};
use crate::ids::{GroupName, InstanceId};
use crate::port::{Cloud, Fate, Holdings, LaunchOutcome, LaunchRequest, PortError, Tagger};

/// Most values of one filter. Source: EC2 API reference, `DescribeInstances`.
const FILTER_VALUES_MAX: usize = 200;

/// Code by which EC2 says that there is no such instance, or no more.
const NO_SUCH_INSTANCE: &str = "InvalidInstanceID.NotFound";

/// Returns an error that the same call will meet again.
pub(super) fn refused(verb: &str, reason: String) -> PortError {
    PortError { verb: verb.to_owned(), reason, fate: Fate::Refused }
}

impl Cloud for Aws {
    async fn holdings(&self) -> Result<Holdings, PortError> {
        let mut holdings = Holdings::default();
        // Groups first: a member that they name was launched before instances are listed.
        let Groups { groups, members } = self.list_groups().await?;
        holdings.groups = groups;
        self.list_instances(&members, &mut holdings).await?;
        if self.is_reserving() {
            self.list_reservations(&mut holdings).await?;
        }
        holdings.fargate_profiles = self.fargate_profiles().await?;
        let machines = self.machines();
        let version = machines.as_ref().map(|machines| machines.kubernetes.as_str());
        holdings.resolved = self.answers.resolved(version, tokio::time::Instant::now());
        Ok(holdings)
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        const VERB: &str = "launch instance";
        let Some(machines) = self.machines() else {
            let reason = "nothing says how its machines are set up".to_owned();
            return Err(refused(VERB, reason));
        };
        match self.launch_one(&machines, request).await {
            Ok(outcome) => Ok(outcome),
            Err(AwsError::Port(error)) => Err(error),
            Err(AwsError::Missing(reason)) => Err(refused(VERB, reason)),
        }
    }

    async fn raise_group(&self, group: &GroupName, desired: u32) -> Result<(), PortError> {
        self.raise(group, desired).await
    }

    async fn end_member(&self, id: &InstanceId) -> Result<(), PortError> {
        self.end(id).await
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        const VERB: &str = "terminate instance";
        // Looked at once more: what is not ours is left alone, whatever a plan says.
        let Some(instance) = self.look_at(id).await? else { return Ok(()) };
        if !instance.is_ours(&self.cluster) {
            let reason = format!("{id} does not carry the tags of cluster {}", self.cluster);
            return Err(refused(VERB, reason));
        }
        self.limiter.take(Api::Terminate).await;
        self.may_write(VERB)?;
        let asked = self.ec2.terminate_instances().instance_ids(id.as_str()).send().await;
        match asked {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some(NO_SUCH_INSTANCE) => Ok(()),
            Err(error) => Err(port_error(VERB, &error)),
        }
    }
}

impl Tagger for Aws {
    async fn tag(&self, id: &InstanceId, tags: &BTreeMap<String, String>) -> Result<(), PortError> {
        const VERB: &str = "tag instance";
        let Some(instance) = self.look_at(id).await? else {
            return Err(refused(VERB, format!("there is no instance {id}")));
        };
        if let Some(other) = instance.tags.get(tag::CLUSTER).filter(|name| **name != self.cluster) {
            return Err(refused(VERB, format!("{id} carries the tag of cluster {other}")));
        }
        if let Some((key, value)) = instance.disputed(tags) {
            return Err(refused(VERB, format!("{id} is ours already, with {key} = {value}")));
        }
        let tags = tags.iter().map(|(key, value)| Tag::builder().key(key).value(value).build());
        self.limiter.take(Api::Other).await;
        let call = self.ec2.create_tags().resources(id.as_str()).set_tags(Some(tags.collect()));
        call.send().await.map(|_| ()).map_err(|error| port_error(VERB, &error))
    }
}

impl Aws {
    /// Reads the instances that carry the tag of the cluster, and the `members` of its groups.
    pub(super) async fn list_instances(
        &self,
        members: &Members,
        holdings: &mut Holdings,
    ) -> Result<(), PortError> {
        let of_cluster = filter(format!("tag:{}", tag::CLUSTER), vec![self.cluster.clone()]);
        let mut filters = vec![of_cluster];
        let ids: Vec<String> = members.keys().map(ToString::to_string).collect();
        // By filter and not by id: one that is gone is then no error.
        let chunks = ids.chunks(FILTER_VALUES_MAX);
        filters.extend(chunks.map(|ids| filter("instance-id".to_owned(), ids.to_vec())));
        let mut found: BTreeMap<InstanceId, Instance> = BTreeMap::new();
        for filter in filters {
            for read in self.described(filter).await? {
                match read {
                    Ok(mut instance) => {
                        instance.group = members.get(&instance.id).cloned();
                        found.insert(instance.id.clone(), instance);
                    }
                    Err(why) => holdings.unread.push(why),
                }
            }
        }
        let lagging = members.keys().filter(|id| !found.contains_key(*id));
        holdings.unread.extend(lagging.map(|id| {
            format!("EC2 does not list instance {id}, a member of group {}", members[id].name)
        }));
        holdings.instances = found.into_values().collect();
        Ok(())
    }

    /// Reads every instance that `filter` lets through.
    async fn described(&self, filter: Filter) -> Result<Vec<Result<Instance, String>>, PortError> {
        let request = self.ec2.describe_instances().filters(filter);
        let (mut pages, mut read) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.take(Api::Describe).await;
            let Some(page) = pages.next().await else { return Ok(read) };
            let page = page.map_err(|error| port_error("list instances", &error))?;
            let found = page.reservations.unwrap_or_default().into_iter();
            read.extend(found.flat_map(|r| r.instances.unwrap_or_default()).map(instance));
        }
    }

    /// Returns an instance as EC2 shows it now; `None` where it is gone.
    pub(super) async fn look_at(&self, id: &InstanceId) -> Result<Option<Instance>, PortError> {
        let by_id = filter("instance-id".to_owned(), vec![id.to_string()]);
        let mut read = self.described(by_id).await?;
        let found = read.pop().transpose().map_err(|why| refused("look at instance", why))?;
        Ok(found.filter(|i| !matches!(i.state, InstanceState::Terminated)))
    }
}

fn filter(name: String, values: Vec<String>) -> Filter {
    Filter::builder().name(name).set_values(Some(values)).build()
}
