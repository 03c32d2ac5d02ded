//! Subnets and security groups that a node class selects.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types::Filter;

use super::client::Aws;
use super::errors::{AwsError, port_error};
use super::rate_limiter::ApiBucket;
use super::resolution_cache::{Subnet, Subnets};
use crate::model::desired::{self, Ec2Selector as Selector};
use crate::model::ids::ZoneName;

/// Converts a selector to EC2 filters. `id` and `name` are the filter names for the ID and the
/// name.
pub(super) fn filters(selector: &Selector, id: &str, name: &str) -> Vec<Filter> {
    let filter = |name: String, value: &str| Filter::builder().name(name).values(value).build();
    let mut filters = Vec::new();
    filters.extend(selector.id.iter().map(|value| filter(id.to_owned(), value)));
    filters.extend(selector.name.iter().map(|value| filter(name.to_owned(), value)));
    filters.extend(selector.tags.iter().map(|(key, value)| {
        if value == "*" {
            filter("tag-key".to_owned(), key)
        } else {
            filter(format!("tag:{key}"), value)
        }
    }));
    filters
}

impl Aws {
    /// Returns the subnets that match any of `selectors`.
    ///
    /// # Errors
    /// Returns an error if they cannot be read or none matches.
    pub(super) async fn subnets(&self, selectors: &[Selector]) -> Result<Subnets, AwsError> {
        let mut by_id: BTreeMap<String, (ZoneName, i32)> = BTreeMap::new();
        for selector in selectors {
            let filters = filters(selector, "subnet-id", "tag:Name");
            let request = self.ec2.describe_subnets().set_filters(Some(filters));
            let mut pages = request.into_paginator().send();
            loop {
                self.limiter.acquire(ApiBucket::Describe).await;
                let Some(page) = pages.next().await else { break };
                let page = page.map_err(|error| port_error("list subnets", &error))?;
                for subnet in page.subnets.unwrap_or_default() {
                    let free = subnet.available_ip_address_count.unwrap_or(0);
                    if let (Some(id), Some(zone)) = (subnet.subnet_id, subnet.availability_zone) {
                        by_id.insert(id, (zone.into(), free));
                    }
                }
            }
        }
        if by_id.is_empty() {
            return Err(AwsError::Missing(format!(
                "no subnet is selected by {}",
                describe_selectors(selectors)
            )));
        }
        let mut subnets = Subnets::new();
        for (id, (zone, free)) in by_id {
            subnets.entry(zone).or_default().push(Subnet { id, free_addresses: free });
        }
        for of_zone in subnets.values_mut() {
            of_zone.sort_by(|a, b| (b.free_addresses, &a.id).cmp(&(a.free_addresses, &b.id)));
        }
        Ok(subnets)
    }

    /// Returns the IDs of the security groups that match any of `selectors`.
    ///
    /// # Errors
    /// Returns an error if they cannot be read or none matches.
    pub(super) async fn security_groups(
        &self,
        selectors: &[Selector],
    ) -> Result<Vec<String>, AwsError> {
        let mut ids = BTreeSet::new();
        for selector in selectors {
            let filters = filters(selector, "group-id", "group-name");
            let request = self.ec2.describe_security_groups().set_filters(Some(filters));
            let mut pages = request.into_paginator().send();
            loop {
                self.limiter.acquire(ApiBucket::Describe).await;
                let Some(page) = pages.next().await else { break };
                let page = page.map_err(|error| port_error("list security groups", &error))?;
                let found = page.security_groups.unwrap_or_default();
                ids.extend(found.into_iter().filter_map(|group| group.group_id));
            }
        }
        if ids.is_empty() {
            let selectors = describe_selectors(selectors);
            return Err(AwsError::Missing(format!("no security group is selected by {selectors}")));
        }
        Ok(ids.into_iter().collect())
    }
}

pub(super) fn describe_selectors(selectors: &[Selector]) -> String {
    match selectors {
        [] => "the node class, which selects none".to_owned(),
        some => desired::describe_selectors(some),
    }
}
