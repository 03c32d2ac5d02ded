//! Reads the cluster data that nodes need to join.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aws_sdk_eks::types::ComputeConfigResponse;

use super::client::Aws;
use super::errors::{AwsError, port_error};
use super::rate_limiter::ApiBucket;
use super::user_data::ClusterEndpoint;

/// The data that a node needs to join the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterBootstrap {
    /// API server endpoint of the cluster.
    pub endpoint: ClusterEndpoint,
    /// Kubernetes version, such as `1.33`.
    pub kubernetes_version: String,
    /// Names of the built-in node pools of EKS Auto Mode, or `None` if Auto Mode is off.
    pub auto_mode: Option<Vec<String>>,
}

impl ClusterBootstrap {
    /// Returns whether EKS Auto Mode launches nodes for pending pods.
    pub fn has_auto_mode(&self) -> bool {
        self.auto_mode.as_ref().is_some_and(|pools| !pools.is_empty())
    }
}

/// Host number of the cluster DNS in the service range. Source: EKS best practices, DNS.
const DNS_HOST_NUMBER: u8 = 10;

impl Aws {
    /// Reads the data that nodes need to join the cluster.
    ///
    /// # Errors
    /// Returns an error if EKS does not know the cluster or omits required data.
    pub async fn cluster_bootstrap(&self) -> Result<ClusterBootstrap, AwsError> {
        self.limiter.acquire(ApiBucket::Other).await;
        let found = self.eks.describe_cluster().name(&self.cluster).send().await;
        let found = found.map_err(|error| port_error("read the EKS cluster", &error))?;
        let without = |what: &str| {
            AwsError::Missing(format!("EKS returned no {what} of cluster {}", self.cluster))
        };
        let cluster = found.cluster.ok_or_else(|| without("existence"))?;
        let network = cluster.kubernetes_network_config.ok_or_else(|| without("network"))?;
        let service_cidr = network.service_ipv4_cidr.or(network.service_ipv6_cidr);
        let service_cidr = service_cidr.ok_or_else(|| without("service addresses"))?;
        let dns = cluster_dns_ip(&service_cidr).ok_or_else(|| {
            AwsError::Missing(format!("`{service_cidr}` is not an address range"))
        })?;
        let authority = cluster.certificate_authority.and_then(|authority| authority.data);
        let endpoint = ClusterEndpoint {
            cluster: self.cluster.clone(),
            url: cluster.endpoint.ok_or_else(|| without("endpoint"))?,
            authority: authority.ok_or_else(|| without("certificate authority"))?,
            dns: dns.to_string(),
            service_cidr,
        };
        Ok(ClusterBootstrap {
            endpoint,
            kubernetes_version: cluster.version.ok_or_else(|| without("version"))?,
            auto_mode: cluster.compute_config.and_then(parse_auto_mode),
        })
    }
}

/// Returns the built-in node pools of EKS Auto Mode, or `None` if Auto Mode is off.
fn parse_auto_mode(config: ComputeConfigResponse) -> Option<Vec<String>> {
    config.enabled.unwrap_or(false).then(|| config.node_pools.unwrap_or_default())
}

/// Returns the cluster DNS address in a service range such as `10.100.0.0/16`.
fn cluster_dns_ip(cidr: &str) -> Option<IpAddr> {
    let (base, _) = cidr.split_once('/')?;
    Some(match base.parse().ok()? {
        IpAddr::V4(base) => {
            let [a, b, c, _] = base.octets();
            IpAddr::V4(Ipv4Addr::new(a, b, c, DNS_HOST_NUMBER))
        }
        IpAddr::V6(base) => {
            let mut octets = base.octets();
            octets[15] = DNS_HOST_NUMBER;
            IpAddr::V6(Ipv6Addr::from(octets))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_mode_needs_a_built_in_pool() {
        let endpoint = ClusterEndpoint {
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
            let auto_mode = parse_auto_mode(config.set_node_pools(Some(pools)).build());
            let (endpoint, kubernetes_version) = (endpoint.clone(), "1.33".to_owned());
            let bootstrap = ClusterBootstrap { endpoint, kubernetes_version, auto_mode };
            assert_eq!((bootstrap.auto_mode.is_some(), bootstrap.has_auto_mode()), (on, launches));
        }
    }

    #[test]
    fn cluster_dns_is_the_tenth_service_address() {
        for (cidr, expected) in [
            ("10.100.0.0/16", Some("10.100.0.10")),
            ("172.20.0.0/16", Some("172.20.0.10")),
            ("fd12:3456::/108", Some("fd12:3456::a")),
            ("10.100.0.0", None),
            ("services/16", None),
        ] {
            let found = cluster_dns_ip(cidr).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{cidr}");
        }
    }
}
