//! Tests of the watched cluster state against the API that `fleetwright sandbox` serves.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fleetwright::adapters::kube::{ClusterChange, Kubernetes, WatchedCluster};
use fleetwright::apply::ports::{Cluster, ClusterObjects, CordonOutcome};
use fleetwright::model::observed::CordonReason;
use kube::{Client, Config};
use serde_json::json;
use tokio::sync::mpsc;

use super::cluster::{runtime, send, set_cordon};
use crate::sandbox::{Sandbox, quickstart};

/// Timeout of each wait.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns all observed objects, independent of their order.
fn all_objects(objects: &ClusterObjects) -> BTreeSet<String> {
    let ClusterObjects {
        nodes,
        pods,
        templates,
        workloads,
        jobs,
        storage,
        scaling,
        unread,
        unread_objects,
        pools,
    } = objects;
    let mut all: BTreeSet<String> = nodes.iter().map(|node| format!("{node:?}")).collect();
    all.extend(pods.iter().map(|pod| format!("{pod:?}")));
    all.extend(templates.iter().map(|template| format!("{template:?}")));
    all.extend(workloads.iter().map(|workload| format!("{workload:?}")));
    all.extend(jobs.iter().map(|job| format!("{job:?}")));
    all.extend([format!("{storage:?} {scaling:?} {unread:?} {unread_objects:?} {pools:?}")]);
    all
}

/// Waits until the watched state equals the listed state.
async fn wait_until_equal(watched: &WatchedCluster, kubernetes: &Kubernetes) {
    let started = Instant::now();
    loop {
        let observed = all_objects(&watched.objects().await.expect("observed"));
        let listed = all_objects(&kubernetes.objects().await.expect("listed"));
        if observed == listed {
            return;
        }
        let difference: Vec<_> = observed.symmetric_difference(&listed).collect();
        assert!(started.elapsed() < TIMEOUT, "{difference:?}");
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
        let (changes_sender, mut changes) = mpsc::channel(8);
        let watched = WatchedCluster::start(kubernetes.clone(), changes_sender);
        // The first observation lists the objects.
        wait_until_equal(&watched, &kubernetes).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        while changes.try_recv().is_ok() {}

        let path = "/apis/apps/v1/namespaces/shop/deployments/web";
        let scale_up = json!({ "spec": { "replicas": 60 } });
        send(&client, "PATCH", path, "application/merge-patch+json", &scale_up).await;
        let change = tokio::time::timeout(TIMEOUT, changes.recv()).await.expect("in time");
        assert_eq!(change, Some(ClusterChange::PodPending));
        wait_until_equal(&watched, &kubernetes).await;

        // The watched state contains own writes at once.
        let name = watched.objects().await.expect("observed").nodes[0].name.clone();
        for reason in [Some(CordonReason::Drain), None, Some(CordonReason::Interruption)] {
            let before = watched.objects().await.expect("observed").nodes;
            let node = before.into_iter().find(|node| node.name == name).expect("the node");
            let outcome =
                set_cordon(&watched, &node, reason.map(Into::into)).await.expect("answered");
            assert_eq!(outcome, CordonOutcome::Written);
            let observed = watched.objects().await.expect("observed");
            let mut nodes = observed.nodes.iter();
            let same = nodes.find(|difference| difference.name == name).expect("the node");
            assert_eq!((same.unschedulable, same.cordon_reason()), (reason.is_some(), reason));
        }
        wait_until_equal(&watched, &kubernetes).await;

        sandbox.end();
        let started = Instant::now();
        while watched.objects().await.is_ok() {
            assert!(started.elapsed() < TIMEOUT, "an unreadable cluster is observed");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(watched.objects().await.is_err(), "and it stays so");
    });
}
