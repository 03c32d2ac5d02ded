//! The cluster as its machines need to know it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aws_sdk_eks::types::ComputeConfigResponse;

use super::boot::Endpoint;
use super::client::{Aws, AwsError};
use super::fault::port_error;
use super::limiter::Api;

/// How a machine joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joining {
    /// Where the cluster is.
    pub endpoint: Endpoint,
    /// Version of Kubernetes, such as `1.33`.
    pub kubernetes: String,
    /// Names of the node pools that EKS Auto Mode has of its own; `None` where it is off.
    pub auto_mode: Option<Vec<String>>,
}

impl Joining {
    /// Returns whether EKS Auto Mode launches for whatever pods wait.
    #[must_use]
    pub fn has_auto_mode(&self) -> bool {
        self.auto_mode.as_ref().is_some_and(|pools| !pools.is_empty())
    }
}

/// The address of the cluster's DNS among those of services. Source: EKS best practices, DNS.
const DNS_NUMBER: u8 = 10;

impl Aws {
    /// Returns how machines join the cluster.
    ///
    /// # Errors
    /// When EKS does not know the cluster, or leaves out what machines need.
    pub async fn joining(&self) -> Result<Joining, AwsError> {
        self.limiter.take(Api::Other).await;
        let found = self.eks.describe_cluster().name(&self.cluster).send().await;
        let found = found.map_err(|error| port_error("read the EKS cluster", &error))?;
        let without = |what: &str| {
            AwsError::Missing(format!("EKS says nothing of its {what}: {}", self.cluster))
        };
        let cluster = found.cluster.ok_or_else(|| without("existence"))?;
        let network = cluster.kubernetes_network_config.ok_or_else(|| without("network"))?;
        let service_cidr = network.service_ipv4_cidr.or(network.service_ipv6_cidr);
        let service_cidr = service_cidr.ok_or_else(|| without("service addresses"))?;
        let dns = dns_of(&service_cidr).ok_or_else(|| {
            AwsError::Missing(format!("`{service_cidr}` is no range of addresses"))
        })?;
        let authority = cluster.certificate_authority.and_then(|authority| authority.data);
        let endpoint = Endpoint {
            cluster: self.cluster.clone(),
            url: cluster.endpoint.ok_or_else(|| without("endpoint"))?,
            authority: authority.ok_or_else(|| without("certificate authority"))?,
            dns: dns.to_string(),
            service_cidr,
        };
        Ok(Joining {
            endpoint,
            kubernetes: cluster.version.ok_or_else(|| without("version"))?,
            auto_mode: cluster.compute_config.and_then(auto_mode),
        })
    }
}

/// Returns the node pools that EKS Auto Mode has of its own; `None` where it is off.
fn auto_mode(config: ComputeConfigResponse) -> Option<Vec<String>> {
    config.enabled.unwrap_or(false).then(|| config.node_pools.unwrap_or_default())
}

/// Returns the address of the cluster's DNS in a range such as `10.100.0.0/16`.
fn dns_of(cidr: &str) -> Option<IpAddr> {
    let (base, _) = cidr.split_once('/')?;
    Some(match base.parse().ok()? {
        IpAddr::V4(base) => {
            let [a, b, c, _] = base.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, DNS_NUMBER))
        }
        IpAddr::V6(base) => {
            let mut octets = base.octets();
            octets[15] = DNS_NUMBER;
            IpAddr::V6(Ipv6Addr::from(octets))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_mode_launches_where_it_is_on_and_has_a_pool_of_its_own() {
        let endpoint = Endpoint {
            cluster: "c".to_owned(),
            url: "u".to_owned(),
            authority: "a".to_owned(),
            dns: "d".to_owned(),
            service_cidr: "s".to_owned(),
        };
        for (enabled, pools, on, launches) in [
            (None, &[][..], false, false),
            (Some(false), &["system"], false, false),
            (Some(true), &[], true, false),
            (Some(true), &["general-purpose", "system"], true, true),
        ] {
            let pools = pools.iter().map(|pool| (*pool).to_owned()).collect();
            let config = ComputeConfigResponse::builder().set_enabled(enabled);
            let auto_mode = auto_mode(config.set_node_pools(Some(pools)).build());
            let (endpoint, kubernetes) = (endpoint.clone(), "1.33".to_owned());
            let joining = Joining { endpoint, kubernetes, auto_mode };
            assert_eq!((joining.auto_mode.is_some(), joining.has_auto_mode()), (on, launches));
        }
    }

    #[test]
    fn the_dns_of_a_cluster_is_the_tenth_address_of_its_services() {
        for (cidr, expected) in [
            ("10.100.0.0/16", Some("10.100.0.10")),
            ("172.20.0.0/16", Some("172.20.0.10")),
            ("fd12:3456::/108", Some("fd12:3456::a")),
            ("10.100.0.0", None),
            ("services/16", None),
        ] {
            let found = dns_of(cidr).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{cidr}");
        }
    }
}
