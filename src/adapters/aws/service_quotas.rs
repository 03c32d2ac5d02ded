//! Service quotas: the maximum number of running vCPUs.

use super::client::Aws;
use super::errors::port_error;
use super::rate_limiter::ApiBucket;
use crate::apply::ports::PortError;
use crate::model::market::Quotas;

/// EC2 in Service Quotas.
const SERVICE: &str = "ec2";

impl Aws {
    /// Reads the vCPU quotas.
    ///
    /// # Errors
    /// Returns an error if any page cannot be read.
    pub async fn quotas(&self) -> Result<Quotas, PortError> {
        let request = self.quotas.list_service_quotas().service_code(SERVICE);
        let (mut pages, mut quotas) = (request.into_paginator().send(), Quotas::default());
        loop {
            self.limiter.acquire(ApiBucket::Other).await;
            let Some(page) = pages.next().await else { return Ok(quotas) };
            let page = page.map_err(|error| port_error("list service quotas", &error))?;
            for quota in page.quotas() {
                let vcpus = quota.value().and_then(|value| format!("{value:.0}").parse().ok());
                let Some((code, vcpus)) = quota.quota_code().zip(vcpus) else { continue };
                quotas.set(code, vcpus);
            }
        }
    }
}
