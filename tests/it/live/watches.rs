//! What watches show, against the API that `fleetwright sandbox` serves.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fleetwright::adapters::kube::{ClusterChange, Kubernetes, WatchedCluster};
use fleetwright::apply::ports::{Cluster, ClusterObjects, CordonOutcome};
use fleetwright::model::observed::CordonReason;
use kube::{Client, Config};
use serde_json::json;
use tokio::sync::mpsc;

use super::cluster::{runtime, send};
use crate::sandbox::{Sandbox, quickstart};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns everything that counts of what was read, in an order of its own.
fn all_of(objects: &ClusterObjects) -> BTreeSet<String> {
    let ClusterObjects { nodes, pods, templates, workloads, storage, scaling, unread } = objects;
    let mut all: BTreeSet<String> = nodes.iter().map(|node| format!("{node:?}")).collect();
    all.extend(pods.iter().map(|pod| format!("{pod:?}")));
    all.extend(templates.iter().map(|template| format!("{template:?}")));
    all.extend(workloads.iter().map(|workload| format!("{workload:?}")));
    all.extend([format!("{storage:?} {scaling:?} {unread:?}")]);
    all
}

/// Waits until what is shown is what is listed.
async fn until_the_same(watched: &WatchedCluster, kubernetes: &Kubernetes) {
    let begun = Instant::now();
    loop {
        let shown = all_of(&watched.objects().await.expect("shown"));
        let listed = all_of(&kubernetes.objects().await.expect("listed"));
        if shown == listed {
            return;
        }
        let other: Vec<_> = shown.symmetric_difference(&listed).collect();
        assert!(begun.elapsed() < PATIENCE, "{other:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn watches_equal_lists_and_report_a_lost_server() {
    let tree = quickstart();
    let sandbox = Sandbox::start(tree.path());
    let config = Config::new(sandbox.url().parse().expect("a URL"));
    runtime().block_on(async {
        let client = Client::try_from(config.clone()).expect("a client");
        let kubernetes = Kubernetes::from_config(config).expect("a client");
        let (newsfeed, mut news) = mpsc::channel(8);
        let watched = WatchedCluster::start(kubernetes.clone(), newsfeed);
        // Before anything is watched it is listed.
        until_the_same(&watched, &kubernetes).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        while news.try_recv().is_ok() {}

        let path = "/apis/apps/v1/namespaces/shop/deployments/web";
        let more = json!({ "spec": { "replicas": 60 } });
        send(&client, "PATCH", path, "application/merge-patch+json", &more).await;
        let told = tokio::time::timeout(PATIENCE, news.recv()).await.expect("in time");
        assert_eq!(told, Some(ClusterChange::PodPending));
        until_the_same(&watched, &kubernetes).await;

        // What was written is shown from then on.
        let name = watched.objects().await.expect("shown").nodes[0].name.clone();
        for mark in [Some(CordonReason::Drain), None, Some(CordonReason::Interruption)] {
            let before = watched.objects().await.expect("shown").nodes;
            let node = before.into_iter().find(|node| node.name == name).expect("the node");
            let outcome = watched.cordon(&node, mark).await.expect("answered");
            assert_eq!(outcome, CordonOutcome::Written);
            let shown = watched.objects().await.expect("shown");
            let mut nodes = shown.nodes.iter();
            let same = nodes.find(|other| other.name == name).expect("the node");
            assert_eq!((same.unschedulable, same.cordon_reason()), (mark.is_some(), mark));
        }
        until_the_same(&watched, &kubernetes).await;

        sandbox.end();
        let begun = Instant::now();
        while watched.objects().await.is_ok() {
            assert!(begun.elapsed() < PATIENCE, "what cannot be read is shown all the same");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(watched.objects().await.is_err(), "and it stays so");
    });
}
