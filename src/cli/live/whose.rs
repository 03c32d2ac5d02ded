//! Whether the kubeconfig leads to the cluster that `fleetwright.yaml` names.
//!
//! Nothing that Kubernetes tells holds its name in EKS. The address does: of two addresses of EKS, each
//! begins with the id of its cluster. An address of anything else, as of a proxy, tells nothing.

use super::super::Exit;
use super::super::error::CliError;
use super::super::repository::FleetSettings;
use crate::port::Requirement;

/// Parts of names that only API servers of EKS have.
const OF_EKS: [&str; 2] = [".eks.", ".eks-cluster."];

/// Where an address leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leads {
    /// To the cluster.
    There,
    /// To another cluster of EKS.
    Elsewhere,
    /// To something that may pass it on.
    Around,
}

fn leads(server: &str, endpoint: &str) -> Leads {
    let (server, endpoint) = (host(server), host(endpoint));
    let of_eks = |host: &str| OF_EKS.iter().any(|part| host.contains(part));
    let id = |host: &str| host.split('.').next().unwrap_or_default().to_owned();
    if server == endpoint || (of_eks(&server) && of_eks(&endpoint) && id(&server) == id(&endpoint))
    {
        Leads::There
    } else if of_eks(&server) && of_eks(&endpoint) {
        Leads::Elsewhere
    } else {
        Leads::Around
    }
}

/// Returns the name in a URL, in small letters, with its port unless that is the usual one.
fn host(url: &str) -> String {
    let (_, rest) = url.split_once("://").unwrap_or(("", url));
    let host = rest.split('/').next().unwrap_or_default();
    host.strip_suffix(":443").unwrap_or(host).to_ascii_lowercase()
}

fn elsewhere(cluster: &str, (server, endpoint): (&str, &str)) -> String {
    format!("the kubeconfig leads to {server}, and EKS has cluster `{cluster}` at {endpoint}")
}

fn remedy(fleet: &FleetSettings) -> String {
    let (cluster, region) = (&fleet.cluster, &fleet.region);
    format!("run `aws eks update-kubeconfig --name {cluster} --region {region}`")
}

/// Refuses a kubeconfig of another cluster of EKS.
pub(super) fn same_cluster(
    fleet: &FleetSettings,
    server: &str,
    endpoint: &str,
) -> Result<(), CliError> {
    if leads(server, endpoint) != Leads::Elsewhere {
        return Ok(());
    }
    let why = elsewhere(&fleet.cluster, (server, endpoint));
    Err(CliError::text(why).kind(Exit::OtherCluster).hint(remedy(fleet)))
}

/// Returns the same as a requirement.
pub(super) fn requirement(fleet: &FleetSettings, server: &str, endpoint: &str) -> Requirement {
    let found = match leads(server, endpoint) {
        Leads::There => Ok(format!("that of EKS cluster {}", fleet.cluster)),
        Leads::Around => Ok(format!("{server}, which is no address of EKS and may lead anywhere")),
        Leads::Elsewhere => Err(elsewhere(&fleet.cluster, (server, endpoint))),
    };
    Requirement::of("API server", found, &remedy(fleet))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_another_cluster_is_told_from_the_own_one_and_from_a_proxy() {
        let own = "https://0A1B.gr7.eu-west-1.eks.amazonaws.com";
        for (server, expected) in [
            (own, Leads::There),
            ("https://0a1b.gr7.eu-west-1.eks.amazonaws.com:443/", Leads::There),
            ("https://0A1B.x.eks-cluster.eu-west-1.api.aws", Leads::There),
            ("https://9F9F.gr7.eu-west-1.eks.amazonaws.com", Leads::Elsewhere),
            ("https://9F9F.x.eks-cluster.eu-west-1.api.aws", Leads::Elsewhere),
            ("https://10.100.0.1:443", Leads::Around),
            ("https://teleport.example.com:443", Leads::Around),
            ("http://127.0.0.1:8001", Leads::Around),
        ] {
            assert_eq!(leads(server, own), expected, "{server}");
        }
        let local = ["http://127.0.0.1:1/", "http://127.0.0.1:2"];
        assert_eq!(
            local.map(|url| leads(url, "http://127.0.0.1:1")),
            [Leads::There, Leads::Around]
        );
    }
}
