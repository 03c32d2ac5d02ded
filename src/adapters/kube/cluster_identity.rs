//! Checks that the kubeconfig names the cluster of `fleetwright.yaml`.
//!
//! The Kubernetes API of EKS does not report the cluster name. The endpoint identifies the cluster:
//! its host begins with the cluster id. Another address, such as a proxy, proves nothing.

use thiserror::Error;

use crate::apply::ports::Prerequisite;
use crate::model::ids::Region;

/// Host name parts that only EKS API servers have.
const EKS_HOST_PARTS: [&str; 2] = [".eks.", ".eks-cluster."];

/// Relation of an API server address to the expected cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndpointMatch {
    /// The expected cluster.
    SameCluster,
    /// Another EKS cluster.
    OtherCluster,
    /// An address outside EKS, which may forward to any cluster.
    NotEks,
}

fn match_endpoint(server: &str, endpoint: &str) -> EndpointMatch {
    let (server, endpoint) = (host(server), host(endpoint));
    let is_eks = |host: &str| EKS_HOST_PARTS.iter().any(|part| host.contains(part));
    let id = |host: &str| host.split('.').next().unwrap_or_default().to_owned();
    if server == endpoint || (is_eks(&server) && is_eks(&endpoint) && id(&server) == id(&endpoint))
    {
        EndpointMatch::SameCluster
    } else if is_eks(&server) && is_eks(&endpoint) {
        EndpointMatch::OtherCluster
    } else {
        EndpointMatch::NotEks
    }
}

/// Returns the host of a URL in lower case, with its port unless that is 443.
fn host(url: &str) -> String {
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.split('/').next().unwrap_or_default();
    host.strip_suffix(":443").unwrap_or(host).to_ascii_lowercase()
}

/// The EKS cluster that the kubeconfig must name.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedCluster<'c> {
    /// The name of the cluster.
    pub name: &'c str,
    /// The region of the cluster.
    pub region: &'c Region,
    /// The URL of its API server.
    pub endpoint: &'c str,
}

/// The kubeconfig names another EKS cluster.
#[derive(Debug, Error)]
#[error("the kubeconfig points to {server}, but EKS cluster `{name}` is at {endpoint}")]
pub struct OtherCluster {
    server: String,
    name: String,
    endpoint: String,
}

impl ExpectedCluster<'_> {
    /// Returns the command that corrects the kubeconfig.
    pub fn remedy(&self) -> String {
        format!("run `aws eks update-kubeconfig --name {} --region {}`", self.name, self.region)
    }

    /// Refuses a kubeconfig of another EKS cluster.
    ///
    /// # Errors
    /// Returns an error if `server` is the API server of another EKS cluster.
    pub fn check(&self, server: &str) -> Result<(), OtherCluster> {
        if match_endpoint(server, self.endpoint) != EndpointMatch::OtherCluster {
            return Ok(());
        }
        let (name, endpoint) = (self.name.to_owned(), self.endpoint.to_owned());
        Err(OtherCluster { server: server.to_owned(), name, endpoint })
    }

    /// Returns the same check as a prerequisite.
    pub fn prerequisite(&self, server: &str) -> Prerequisite {
        let found = match match_endpoint(server, self.endpoint) {
            EndpointMatch::NotEks => {
                Ok(format!("{server} is not an EKS address, so its cluster cannot be verified"))
            }
            EndpointMatch::SameCluster | EndpointMatch::OtherCluster => self
                .check(server)
                .map(|()| format!("endpoint of EKS cluster {}", self.name))
                .map_err(|error| error.to_string()),
        };
        Prerequisite::from_result("API server", found, &self.remedy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_of_another_eks_cluster_is_recognized() {
        let own = "https://0A1B.gr7.eu-west-1.eks.amazonaws.com";
        for (server, expected) in [
            (own, EndpointMatch::SameCluster),
            ("https://0a1b.gr7.eu-west-1.eks.amazonaws.com:443/", EndpointMatch::SameCluster),
            ("https://0A1B.x.eks-cluster.eu-west-1.api.aws", EndpointMatch::SameCluster),
            ("https://9F9F.gr7.eu-west-1.eks.amazonaws.com", EndpointMatch::OtherCluster),
            ("https://9F9F.x.eks-cluster.eu-west-1.api.aws", EndpointMatch::OtherCluster),
            ("https://10.100.0.1:443", EndpointMatch::NotEks),
            ("https://teleport.example.com:443", EndpointMatch::NotEks),
            ("http://127.0.0.1:8001", EndpointMatch::NotEks),
        ] {
            assert_eq!(match_endpoint(server, own), expected, "{server}");
        }
        let local = ["http://127.0.0.1:1/", "http://127.0.0.1:2"];
        assert_eq!(
            local.map(|url| match_endpoint(url, "http://127.0.0.1:1")),
            [EndpointMatch::SameCluster, EndpointMatch::NotEks]
        );
    }
}
