//! The placement group that a node class selects.

use std::fmt;

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::Filter;
use tokio::time::Instant;

use super::client::Aws;
use super::errors::{AwsError, port_error};
use super::launch_context::LaunchContext;
use super::rate_limiter::ApiBucket;
use super::resolution_cache::FRESH_FOR;
use crate::model::desired::{NodeClass, PlacementGroupSelector};

/// Error code of a name that no placement group has.
const NO_SUCH_GROUP: &str = "InvalidPlacementGroup.Unknown";

/// A placement group that accepts instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlacementGroup {
    pub(super) id: String,
    /// `cluster`, `partition` or `spread`.
    strategy: String,
}

impl fmt::Display for PlacementGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.id, self.strategy)
    }
}

impl Aws {
    /// Returns the ID of the placement group of a class for a launch; `None` if it selects none.
    ///
    /// # Errors
    /// Returns an error if the group cannot be read or does not exist.
    pub(super) async fn launch_placement_group(
        &self,
        context: &LaunchContext,
        class: &NodeClass,
    ) -> Result<Option<String>, AwsError> {
        let Some(selector) = &class.instance_settings.placement_group else { return Ok(None) };
        let now = Instant::now();
        let known = context.read_lookups(|known| known.placement_groups.get(&class.name).cloned());
        if let Some((_, id)) = known.filter(|(at, _)| now.duration_since(*at) < FRESH_FOR) {
            return Ok(Some(id));
        }
        let PlacementGroup { id, .. } = self.placement_group(selector).await?;
        context.update_lookups(|known| {
            known.placement_groups.insert(class.name.clone(), (now, id.clone()));
        });
        Ok(Some(id))
    }

    /// Returns the selected placement group.
    ///
    /// # Errors
    /// Returns an error if the group cannot be read, does not exist, or is being created or deleted.
    pub(super) async fn placement_group(
        &self,
        selector: &PlacementGroupSelector,
    ) -> Result<PlacementGroup, AwsError> {
        let available = Filter::builder().name("state").values("available").build();
        let call = self.ec2.describe_placement_groups().filters(available);
        let call = match selector {
            PlacementGroupSelector::Name(name) => call.group_names(name),
            PlacementGroupSelector::Id(id) => call.group_ids(id),
        };
        self.limiter.acquire(ApiBucket::Describe).await;
        let found = match call.send().await {
            Ok(found) => found.placement_groups.unwrap_or_default(),
            Err(error) if error.code() == Some(NO_SUCH_GROUP) => Vec::new(),
            Err(error) => return Err(port_error("read placement group", &error).into()),
        };
        let group = found.into_iter().find_map(|group| {
            let strategy = group.strategy.map(|strategy| strategy.as_str().to_owned());
            Some(PlacementGroup { id: group.group_id?, strategy: strategy.unwrap_or_default() })
        });
        group.ok_or_else(|| {
            AwsError::Missing(format!("no available placement group has the {selector}"))
        })
    }
}
