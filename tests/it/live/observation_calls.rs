//! Counts the API calls of one observation. Their number is independent of the cluster size, apart
//! from pages.

use std::collections::{BTreeMap, BTreeSet};

use fleetwright::adapters::aws::Aws;
use fleetwright::adapters::kube::Kubernetes;
use fleetwright::apply::ports::{Cloud, Cluster};

use super::cluster::runtime;
use super::controller_fixture::account;
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

/// Returns a page of EC2 with one instance, and with the token of the next page.
pub(super) fn page_of(instance: &str, next_token: &str) -> String {
    format!(
        "<DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
         <requestId>r</requestId><reservationSet><item><instancesSet><item>\
         <instanceId>{instance}</instanceId>\
         <instanceState><code>16</code><name>running</name></instanceState>\
         <instanceType>m5.large</instanceType><launchTime>2026-11-01T00:00:00Z</launchTime>\
         <placement><availabilityZone>us-east-1a</availabilityZone></placement>\
         </item></instancesSet></item></reservationSet><nextToken>{next_token}</nextToken>\
         </DescribeInstancesResponse>"
    )
}

#[test]
fn instances_are_read_in_the_largest_pages() {
    // The rule answers every call, so that nothing has to listen there.
    let ec2 = Proxy::start("http://127.0.0.1:1");
    ec2.set_fault_rule(|call| {
        let is_second = call.form.contains_key("NextToken");
        let page = if is_second { page_of("i-2", "") } else { page_of("i-1", "second") };
        Fault::Answer(200, page)
    });
    let aws = Aws::from_config(&account(&ec2.url), "prod");
    let ids = BTreeSet::from(["i-1".into(), "i-2".into()]);
    let found = runtime().block_on(aws.find_instances(&ids)).expect("read");
    assert_eq!(found.len(), 2);
    let calls = ec2.calls();
    assert_eq!(calls.len(), 2);
    for row in calls {
        let fields = &row.call.form;
        assert_eq!(fields.get("MaxResults").map(String::as_str), Some("1000"), "{fields:?}");
        let names_instance = fields.keys().any(|field| field.starts_with("InstanceId"));
        assert!(!names_instance, "EC2 refuses a page size beside IDs: {fields:?}");
    }
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
