//! The port, verb by verb.

use aws_sdk_ec2::error::ProvideErrorMetadata as _;
use aws_sdk_ec2::types::Filter;

use super::client::{Aws, AwsError};
use super::fault::port_error;
use super::instance::instance;
use super::limiter::Api;
use crate::fleet::{Instance, tag};
use crate::ids::InstanceId;
use crate::port::{Cloud, LaunchOutcome, LaunchRequest, PortError};

/// Returns an error that the same call will meet again.
fn refused(verb: &str, reason: String) -> PortError {
    PortError { verb: verb.to_owned(), reason, transient: false }
}

impl Cloud for Aws {
    async fn instances(&self) -> Result<Vec<Instance>, PortError> {
        const VERB: &str = "list instances";
        let of_cluster =
            Filter::builder().name(format!("tag:{}", tag::CLUSTER)).values(&self.cluster).build();
        let mut pages = self.ec2.describe_instances().filters(of_cluster).into_paginator().send();
        let mut instances = Vec::new();
        loop {
            self.limiter.take(Api::Describe).await;
            let Some(page) = pages.next().await else { return Ok(instances) };
            let page = page.map_err(|error| port_error(VERB, &error))?;
            let found = page.reservations.unwrap_or_default().into_iter();
            for found in found.flat_map(|reservation| reservation.instances.unwrap_or_default()) {
                instances.push(instance(found).map_err(|reason| refused(VERB, reason))?);
            }
        }
    }

    async fn launch(&self, request: &LaunchRequest) -> Result<LaunchOutcome, PortError> {
        const VERB: &str = "launch instance";
        let Some(machines) = &self.machines else {
            let reason = "nothing says how its machines are set up".to_owned();
            return Err(refused(VERB, reason));
        };
        match self.launch_one(machines, request).await {
            Ok(outcome) => Ok(outcome),
            Err(AwsError::Port(error)) => Err(error),
            Err(AwsError::Missing(reason)) => Err(refused(VERB, reason)),
        }
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), PortError> {
        self.limiter.take(Api::Terminate).await;
        let asked = self.ec2.terminate_instances().instance_ids(id.as_str()).send().await;
        match asked {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some("InvalidInstanceID.NotFound") => Ok(()),
            Err(error) => Err(port_error("terminate instance", &error)),
        }
    }
}
