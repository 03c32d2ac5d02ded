//! Service quotas: how many vCPUs the account may run at once.

use super::client::Aws;
use super::fault::port_error;
use super::limiter::Api;
use crate::catalog::Quotas;
use crate::port::PortError;

/// What Service Quotas calls EC2.
const SERVICE: &str = "ec2";

impl Aws {
    /// Reads the quotas of vCPUs.
    ///
    /// # Errors
    /// When any page cannot be read.
    pub async fn quotas(&self) -> Result<Quotas, PortError> {
        let request = self.quotas.list_service_quotas().service_code(SERVICE);
        let (mut pages, mut quotas) = (request.into_paginator().send(), Quotas::default());
        loop {
            self.limiter.take(Api::Other).await;
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
