//! Capacity reservations of EC2, and Fargate profiles of EKS.

use std::sync::PoisonError;
use std::time::Duration;

use aws_sdk_ec2::types::{CapacityReservation, CapacityReservationType, InstanceMatchCriteria};
use aws_sdk_eks::error::ProvideErrorMetadata as _;
use aws_sdk_eks::types::FargateProfile as EksProfile;
use jiff::Timestamp;
use tokio::time::Instant;

use super::client::Aws;
use super::errors::port_error;
use super::rate_limiter::ApiBucket;
use crate::apply::ports::{CloudInventory, PortError};
use crate::model::fargate::{FargateProfile, ProfileSelector};
use crate::model::observed::{MatchCriteria, Reservation, ReservationKind, ReservationState};

/// Lifetime of cached Fargate profiles. They rarely change.
const PROFILES_TTL: Duration = Duration::from_mins(10);

/// Error code of EKS for an unknown cluster, which has no profiles.
const NO_SUCH_CLUSTER: &str = "ResourceNotFoundException";

impl Aws {
    /// Reads the capacity reservations that the account can use, including shared reservations of
    /// other accounts.
    pub(super) async fn list_reservations(
        &self,
        inventory: &mut CloudInventory,
    ) -> Result<(), PortError> {
        let request = self.ec2.describe_capacity_reservations();
        let mut pages = request.into_paginator().send();
        loop {
            self.limiter.acquire(ApiBucket::Describe).await;
            let Some(page) = pages.next().await else { return Ok(()) };
            let page = page.map_err(|error| port_error("list capacity reservations", &error))?;
            for found in page.capacity_reservations.unwrap_or_default() {
                match parse_reservation(found) {
                    Ok(found) => inventory.reservations.extend(found),
                    Err(why) => inventory.unread.push(why),
                }
            }
        }
    }

    /// Returns the Fargate profiles of the cluster, cached for [`PROFILES_TTL`].
    ///
    /// # Errors
    /// Returns an error if EKS is unreachable or refuses the call. The pods on Fargate are then
    /// unknown.
    pub(super) async fn fargate_profiles(&self) -> Result<Vec<FargateProfile>, PortError> {
        let known = self.cached_profiles.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, profiles)) = known.filter(|(read, _)| read.elapsed() < PROFILES_TTL) {
            return Ok(profiles);
        }
        let started = Instant::now();
        let mut profiles = Vec::new();
        for name in self.fargate_profile_names().await? {
            self.limiter.acquire(ApiBucket::Other).await;
            let request = self.eks.describe_fargate_profile().cluster_name(&self.cluster);
            let found = request.fargate_profile_name(&name).send().await;
            let verb = format!("read Fargate profile {name}");
            let found = found.map_err(|error| port_error(&verb, &error))?;
            profiles.extend(found.fargate_profile.map(|found| parse_profile(name, found)));
        }
        let mut cached = self.cached_profiles.lock().unwrap_or_else(PoisonError::into_inner);
        *cached = Some((started, profiles.clone()));
        Ok(profiles)
    }

    async fn fargate_profile_names(&self) -> Result<Vec<String>, PortError> {
        let request = self.eks.list_fargate_profiles().cluster_name(&self.cluster);
        let (mut pages, mut names) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.acquire(ApiBucket::Other).await;
            match pages.next().await {
                None => return Ok(names),
                Some(Ok(page)) => names.extend(page.fargate_profile_names.unwrap_or_default()),
                Some(Err(error)) if error.code() == Some(NO_SUCH_CLUSTER) => return Ok(Vec::new()),
                Some(Err(error)) => return Err(port_error("list Fargate profiles", &error)),
            }
        }
    }
}

fn parse_profile(name: String, found: EksProfile) -> FargateProfile {
    let selectors = found.selectors.unwrap_or_default().into_iter();
    let selectors = selectors.map(|selector| ProfileSelector {
        namespace: selector.namespace.unwrap_or_default(),
        labels: selector.labels.unwrap_or_default().into_iter().collect(),
    });
    let mut selectors: Vec<ProfileSelector> = selectors.collect();
    selectors.sort();
    FargateProfile { name, origin: None, selectors }
}

/// Parses a reservation. Returns `None` if it has ended.
fn parse_reservation(found: CapacityReservation) -> Result<Option<Reservation>, String> {
    let id = found.capacity_reservation_id;
    let id = id.ok_or("EC2 lists a capacity reservation without an id")?;
    let without = |what: &str| format!("EC2 lists capacity reservation `{id}` without {what}");
    let state = match found.state.ok_or_else(|| without("a state"))?.as_str() {
        "active" => ReservationState::Active,
        "cancelled" | "expired" | "failed" | "payment-failed" | "unsupported" => return Ok(None),
        _ => ReservationState::Inactive,
    };
    let block = found.reservation_type == Some(CapacityReservationType::CapacityBlock);
    let targeted = found.instance_match_criteria == Some(InstanceMatchCriteria::Targeted);
    let available = found.available_instance_count.and_then(|n| u32::try_from(n).ok());
    let ends_at = found.end_date.map(|at| Timestamp::from_second(at.secs())).transpose();
    let tags = found.tags.unwrap_or_default().into_iter();
    Ok(Some(Reservation {
        instance_type: found.instance_type.ok_or_else(|| without("a type"))?.into(),
        zone: found.availability_zone.ok_or_else(|| without("a zone"))?.into(),
        available: available.ok_or_else(|| without("its available count"))?,
        state,
        kind: if block { ReservationKind::CapacityBlock } else { ReservationKind::Default },
        match_criteria: if targeted { MatchCriteria::Targeted } else { MatchCriteria::Open },
        owner: found.owner_id.unwrap_or_default(),
        interruptible: found.interruptible.unwrap_or(false),
        ends_at: ends_at.map_err(|_| without("a valid end"))?,
        tags: tags.filter_map(|tag| Some((tag.key?, tag.value.unwrap_or_default()))).collect(),
        id: id.into(),
    }))
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::CapacityReservationState;

    use super::*;

    fn found() -> CapacityReservation {
        CapacityReservation::builder()
            .capacity_reservation_id("cr-1")
            .instance_type("p5.48xlarge")
            .availability_zone("us-east-1a")
            .available_instance_count(2)
            .state(CapacityReservationState::Active)
            .instance_match_criteria(InstanceMatchCriteria::Targeted)
            .owner_id("123456789012")
            .build()
    }

    #[test]
    fn ended_reservation_is_skipped() {
        let read = parse_reservation(found()).expect("readable").expect("one that is there");
        assert_eq!((read.available, read.match_criteria), (2, MatchCriteria::Targeted));
        assert_eq!(read.state, ReservationState::Active);
        let with = |state| {
            let mut found = found();
            found.state = Some(state);
            found
        };
        let pending = parse_reservation(with(CapacityReservationState::Pending)).expect("readable");
        assert_eq!(pending.map(|read| read.state), Some(ReservationState::Inactive));
        assert_eq!(parse_reservation(with(CapacityReservationState::Expired)), Ok(None));
        let mut broken = found();
        broken.available_instance_count = None;
        let error = parse_reservation(broken).expect_err("half a reservation");
        assert_eq!(error, "EC2 lists capacity reservation `cr-1` without its available count");
    }
}
