//! Counts the API calls of one observation. Their number is independent of the cluster size, apart
//! from pages.

use std::collections::BTreeMap;

use fleetwright::adapters::kube::Kubernetes;
use fleetwright::apply::ports::Cluster;

use super::cluster::runtime;
use super::proxy::{Fault, Proxy};

/// Objects per page.
const PAGE: usize = 500;

/// Returns the number of calls by path, for one observation of a cluster with `nodes` nodes.
fn calls_by_path(nodes: usize, pods: usize) -> BTreeMap<String, usize> {
    let config = super::sandbox_api::fleet(nodes, pods);
    let api = Proxy::start(&config.cluster_url.to_string());
    let cluster = kube::Config::new(api.url.parse().expect("a URL"));
    let read = runtime().block_on(async {
        Kubernetes::from_config(cluster).expect("a client").objects().await.expect("read")
    });
    assert_eq!((read.nodes.len(), read.pods.len()), (nodes, nodes * pods));
    assert_eq!(read.unread, Vec::<String>::new());
    let mut calls = BTreeMap::new();
    for row in api.calls() {
        let path = row.call.path.split('?').next().unwrap_or_default().to_owned();
        *calls.entry(path).or_default() += 1;
    }
    calls
}

#[test]
fn observation_calls_grow_only_by_pages() {
    let (small, large) = (calls_by_path(10, 10), calls_by_path(600, 4));
    assert_eq!(small.len(), large.len(), "the same paths");
    for (path, times) in &large {
        let pages = match path.as_str() {
            "/api/v1/nodes" => 600_usize.div_ceil(PAGE),
            "/api/v1/pods" => 2400_usize.div_ceil(PAGE),
            _ => small[path],
        };
        assert_eq!(*times, pages, "{path}");
    }
    assert!(small.values().all(|times| *times == 1), "{small:?}");
}

/// Returns whether the priorities of Cluster Autoscaler are known, if their list has this status.
fn knows_priorities(status: Option<u16>) -> Result<bool, String> {
    let config = super::sandbox_api::fleet(3, 2);
    let api = Proxy::start(&config.cluster_url.to_string());
    api.set_fault_rule(move |call| match status {
        Some(status) if call.path.starts_with("/api/v1/configmaps") => {
            let body = format!(
                r#"{{"kind":"Status","status":"Failure","message":"not allowed","reason":"x","code":{status}}}"#
            );
            Fault::Answer(status, body)
        }
        Some(_) | None => Fault::None,
    });
    let cluster = kube::Config::new(api.url.parse().expect("a URL"));
    let read = runtime()
        .block_on(async { Kubernetes::from_config(cluster).expect("a client").objects().await });
    let read = read.map_err(|error| error.to_string())?;
    assert_eq!((read.nodes.len(), read.pods.len()), (3, 6));
    Ok(read.scaling.expander_priorities.is_some())
}

#[test]
fn cluster_is_observed_without_the_right_to_list_priorities() {
    assert_eq!(knows_priorities(None), Ok(true));
    assert_eq!(knows_priorities(Some(403)), Ok(false));
    assert!(knows_priorities(Some(500)).is_err(), "another failure is no missing right");
}
