//! Subnets and security groups, by what a node class selects.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types::Filter;

use super::client::{Aws, AwsError};
use super::fault::port_error;
use super::limiter::Api;
use crate::ids::ZoneName;
use crate::manifest::{MachineSelector as Selector, in_words};

/// Where machines may be put: by zone, the subnets with the most free addresses first.
pub(super) type Subnets = BTreeMap<ZoneName, Vec<Subnet>>;

/// A subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subnet {
    pub(super) id: String,
    /// Addresses that were free when it was read.
    pub(super) free: i32,
}

/// Returns the filters that stand for a selector; `name` is what EC2 calls the name of such objects.
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
    /// Returns the subnets that any of `selectors` selects.
    ///
    /// # Errors
    /// When they cannot be read, or there are none.
    pub(super) async fn subnets(&self, selectors: &[Selector]) -> Result<Subnets, AwsError> {
        let mut by_id: BTreeMap<String, (ZoneName, i32)> = BTreeMap::new();
        for selector in selectors {
            let filters = filters(selector, "subnet-id", "tag:Name");
            let request = self.ec2.describe_subnets().set_filters(Some(filters));
            let mut pages = request.into_paginator().send();
            loop {
                self.limiter.take(Api::Describe).await;
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
                shown(selectors)
            )));
        }
        let mut subnets = Subnets::new();
        for (id, (zone, free)) in by_id {
            subnets.entry(zone).or_default().push(Subnet { id, free });
        }
        for of_zone in subnets.values_mut() {
            of_zone.sort_by(|a, b| (b.free, &a.id).cmp(&(a.free, &b.id)));
        }
        Ok(subnets)
    }

    /// Returns the ids of the security groups that any of `selectors` selects.
    ///
    /// # Errors
    /// When they cannot be read, or there are none.
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
                self.limiter.take(Api::Describe).await;
                let Some(page) = pages.next().await else { break };
                let page = page.map_err(|error| port_error("list security groups", &error))?;
                let found = page.security_groups.unwrap_or_default();
                ids.extend(found.into_iter().filter_map(|group| group.group_id));
            }
        }
        if ids.is_empty() {
            let selectors = shown(selectors);
            return Err(AwsError::Missing(format!("no security group is selected by {selectors}")));
        }
        Ok(ids.into_iter().collect())
    }
}

/// Returns selectors in words.
pub(super) fn shown(selectors: &[Selector]) -> String {
    match selectors {
        [] => "the node class, which selects none".to_owned(),
        some => in_words(some),
    }
}
