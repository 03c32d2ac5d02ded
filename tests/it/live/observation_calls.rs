//! Counts the API calls of one observation. Their number is independent of the cluster size, apart
//! from pages.

use std::collections::BTreeMap;

use fleetwright::adapters::kube::Kubernetes;
use fleetwright::apply::ports::Cluster;

use super::cluster::runtime;
use super::proxy::Proxy;

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
