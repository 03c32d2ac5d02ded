//! Capacity that is paid for already, and pods that need no machine: capacity reservations of EC2, and
//! Fargate profiles of EKS.

use std::sync::PoisonError;
use std::time::Duration;

use aws_sdk_ec2::types::{CapacityReservation, CapacityReservationType, InstanceMatchCriteria};
use aws_sdk_eks::error::ProvideErrorMetadata as _;
use aws_sdk_eks::types::FargateProfile;
use jiff::Timestamp;
use tokio::time::Instant;

use super::client::Aws;
use super::fault::port_error;
use super::limiter::Api;
use crate::fargate::{Profile, ProfileSelector};
use crate::fleet::{MatchCriteria, Reservation, ReservationKind, ReservationState};
use crate::port::{Holdings, PortError};

/// How long Fargate profiles count as read: they change by hand, and rarely.
const PROFILES_LAST: Duration = Duration::from_mins(10);

/// Code by which EKS says that it knows no such cluster: then it has no profiles of it either.
const NO_SUCH_CLUSTER: &str = "ResourceNotFoundException";

impl Aws {
    /// Reads the capacity reservations that the account can use, those of others that are shared with
    /// it included.
    pub(super) async fn list_reservations(&self, holdings: &mut Holdings) -> Result<(), PortError> {
        let request = self.ec2.describe_capacity_reservations();
        let mut pages = request.into_paginator().send();
        loop {
            self.limiter.take(Api::Describe).await;
            let Some(page) = pages.next().await else { return Ok(()) };
            let page = page.map_err(|error| port_error("list capacity reservations", &error))?;
            for found in page.capacity_reservations.unwrap_or_default() {
                match reservation(found) {
                    Ok(found) => holdings.reservations.extend(found),
                    Err(why) => holdings.unread.push(why),
                }
            }
        }
    }

    /// Reads the Fargate profiles of the cluster, at most once in a while.
    ///
    /// # Errors
    /// When EKS does not answer, or refuses: which pods need no node is then not known.
    pub(super) async fn fargate_profiles(&self) -> Result<Vec<Profile>, PortError> {
        let known = self.profiles.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, profiles)) = known.filter(|(read, _)| read.elapsed() < PROFILES_LAST) {
            return Ok(profiles);
        }
        let asked = Instant::now();
        let mut profiles = Vec::new();
        for name in self.names_of_profiles().await? {
            self.limiter.take(Api::Other).await;
            let request = self.eks.describe_fargate_profile().cluster_name(&self.cluster);
            let found = request.fargate_profile_name(&name).send().await;
            let verb = format!("read Fargate profile {name}");
            let found = found.map_err(|error| port_error(&verb, &error))?;
            profiles.extend(found.fargate_profile.map(|found| profile(name, found)));
        }
        let mut kept = self.profiles.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some((asked, profiles.clone()));
        Ok(profiles)
    }

    async fn names_of_profiles(&self) -> Result<Vec<String>, PortError> {
        let request = self.eks.list_fargate_profiles().cluster_name(&self.cluster);
        let (mut pages, mut names) = (request.into_paginator().send(), Vec::new());
        loop {
            self.limiter.take(Api::Other).await;
            match pages.next().await {
                None => return Ok(names),
                Some(Ok(page)) => names.extend(page.fargate_profile_names.unwrap_or_default()),
                Some(Err(error)) if error.code() == Some(NO_SUCH_CLUSTER) => return Ok(Vec::new()),
                Some(Err(error)) => return Err(port_error("list Fargate profiles", &error)),
            }
        }
    }
}

fn profile(name: String, found: FargateProfile) -> Profile {
    let selectors = found.selectors.unwrap_or_default().into_iter();
    let selectors = selectors.map(|selector| ProfileSelector {
        namespace: selector.namespace.unwrap_or_default(),
        labels: selector.labels.unwrap_or_default().into_iter().collect(),
    });
    let mut selectors: Vec<ProfileSelector> = selectors.collect();
    selectors.sort();
    Profile { name, origin: None, selectors }
}

/// Reads a reservation; `None` for one that has ended for good.
fn reservation(found: CapacityReservation) -> Result<Option<Reservation>, String> {
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
        available: available.ok_or_else(|| without("what is left of it"))?,
        state,
        kind: if block { ReservationKind::CapacityBlock } else { ReservationKind::Default },
        match_criteria: if targeted { MatchCriteria::Targeted } else { MatchCriteria::Open },
        owner: found.owner_id.unwrap_or_default(),
        interruptible: found.interruptible.unwrap_or(false),
        ends_at: ends_at.map_err(|_| without("an end that can be"))?,
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
    fn a_reservation_is_read_and_one_that_has_ended_is_none() {
        let read = reservation(found()).expect("readable").expect("one that is there");
        assert_eq!((read.available, read.match_criteria), (2, MatchCriteria::Targeted));
        assert_eq!(read.state, ReservationState::Active);
        let with = |state| {
            let mut found = found();
            found.state = Some(state);
            found
        };
        let pending = reservation(with(CapacityReservationState::Pending)).expect("readable");
        assert_eq!(pending.map(|read| read.state), Some(ReservationState::Inactive));
        assert_eq!(reservation(with(CapacityReservationState::Expired)), Ok(None));
        let mut broken = found();
        broken.available_instance_count = None;
        let error = reservation(broken).expect_err("half a reservation");
        assert_eq!(error, "EC2 lists capacity reservation `cr-1` without what is left of it");
    }
}
