//! EC2 and related AWS services: inventory, launches, terminations and tags.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use serde::{Deserialize, Serialize};

use super::PortError;
use crate::model::fargate::FargateProfile;
use crate::model::ids::{GroupName, InstanceId, InstanceTypeName, Labels, ReservationId, ZoneName};
use crate::model::market::CapacityType;
use crate::model::observed::{Group, Instance, Reservation, Resolved};
use crate::model::pod::Taint;
use crate::model::units::Resources;

/// A complete launch request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRequest {
    /// Client token. EC2 launches at most one instance for a token.
    pub token: String,
    /// Offerings of the same capacity type, the preferred offering first. EC2 chooses one of them. It
    /// weighs price and capacity of Spot offerings, and takes the first available offering
    /// otherwise.
    pub offerings: Vec<LaunchOffering>,
    /// Capacity type.
    pub capacity_type: CapacityType,
    /// Capacity reservation that the instance must use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// Image as stated in the node class.
    pub image: String,
    /// Tags, set by the launch call itself.
    pub tags: BTreeMap<String, String>,
    /// Permanent taints at registration.
    pub taints: Vec<Taint>,
    /// Startup taints at registration, removed once the node is initialized.
    pub startup_taints: Vec<Taint>,
}

/// An offering of a launch request, and the node that it provides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOffering {
    /// Instance type.
    pub instance_type: InstanceTypeName,
    /// Availability zone.
    pub zone: ZoneName,
    /// Labels at registration.
    pub labels: Labels,
    /// Expected capacity of the node. Simulated nodes report exactly this capacity.
    pub capacity: Resources,
    /// Expected allocatable resources of the node.
    pub allocatable: Resources,
}

/// Outcome of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchOutcome {
    /// The instance was launched by this call or by an earlier one with the same token.
    Launched(LaunchedInstance),
    /// No offering of the request has capacity now.
    InsufficientCapacity {
        /// Message of EC2.
        reason: String,
    },
}

/// A launched instance, and the offering that EC2 chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchedInstance {
    /// ID of the instance.
    pub id: InstanceId,
    /// Index of the chosen offering in the request, if EC2 names it. The preferred offering has
    /// index 0.
    pub offering: Option<usize>,
    /// Indexes of the offerings that EC2 reported without capacity.
    pub unavailable: Vec<usize>,
}

impl From<InstanceId> for LaunchedInstance {
    /// Returns an instance of the preferred offering.
    fn from(id: InstanceId) -> Self {
        Self { id, offering: Some(0), unavailable: Vec::new() }
    }
}

/// AWS resources of the cluster from one read.
#[derive(Debug, Clone, Default)]
pub struct CloudInventory {
    /// Instances that carry the cluster tag or are members of one of the groups, including
    /// terminated instances while EC2 lists them.
    pub instances: Vec<Instance>,
    /// Auto Scaling groups of the cluster.
    pub groups: Vec<Group>,
    /// Capacity reservations that the account can use.
    pub reservations: Vec<Reservation>,
    /// Fargate profiles of the cluster.
    pub fargate_profiles: Vec<FargateProfile>,
    /// Resolved selectors of node classes, as far as they were looked up.
    pub resolved: Resolved,
    /// Resources that could not be read or understood, with the reason.
    pub unread: Vec<String>,
}

/// EC2 and related AWS services.
pub trait Cloud {
    /// Reads instances, groups, reservations, Fargate profiles and resolved selectors.
    fn inventory(&self) -> impl Future<Output = Result<CloudInventory, PortError>>;
    /// Reads instances by ID, with any tags. The result lacks those that EC2 does not know.
    fn find_instances(
        &self,
        ids: &BTreeSet<InstanceId>,
    ) -> impl Future<Output = Result<Vec<Instance>, PortError>>;
    /// Launches one instance of one offering of the request, at most once for each token.
    fn launch(
        &self,
        request: &LaunchRequest,
    ) -> impl Future<Output = Result<LaunchOutcome, PortError>>;
    /// Raises the desired size of a group. It fails if the group would shrink or exceed its
    /// maximum.
    fn raise_group(
        &self,
        group: &GroupName,
        desired: u32,
    ) -> impl Future<Output = Result<(), PortError>>;
    /// Terminates one group member and lowers the desired size by one. It succeeds if the member no
    /// longer exists.
    fn terminate_member(&self, id: &InstanceId) -> impl Future<Output = Result<(), PortError>>;
    /// Terminates one instance. It succeeds if the instance no longer exists.
    fn terminate(&self, id: &InstanceId) -> impl Future<Output = Result<(), PortError>>;
}

/// Adoption of instances. It adds tags and changes nothing else.
pub trait Tagger {
    /// Adds tags to an instance, and keeps its other tags. It fails if the instance carries the tag
    /// of another cluster, or one of the tags with another value.
    fn tag(
        &self,
        id: &InstanceId,
        tags: &BTreeMap<String, String>,
    ) -> impl Future<Output = Result<(), PortError>>;
}
