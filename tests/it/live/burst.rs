//! Pods that come at once and wait for a node, and how soon a launch call follows the last of them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::Client;
use serde_json::json;

use super::cluster::post;
use super::proxy::{Fault, Proxy};

/// Pods of a burst, which have room on one instance.
const PODS: usize = 3;

/// Longest wait for a launch call.
const PATIENCE: Duration = Duration::from_mins(2);

/// Launch calls, by when they reached the account.
pub(super) struct LaunchTimes(Arc<Mutex<Vec<Instant>>>);

impl LaunchTimes {
    /// Notes those that pass a proxy from now on; it does nothing else to any call.
    pub(super) fn through(aws: &Proxy) -> Self {
        let calls: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let seen = Arc::clone(&calls);
        aws.judge(move |call| {
            if call.name() == "CreateFleet" {
                seen.lock().expect("held").push(Instant::now());
            }
            Fault::None
        });
        Self(calls)
    }

    pub(super) fn made(&self) -> usize {
        self.0.lock().expect("held").len()
    }

    /// Has the pods of a burst wait for a node; returns after how many milliseconds the launch call came.
    pub(super) async fn after_burst(
        &self,
        client: &Client,
        burst: usize,
        said: impl Fn() -> String,
    ) -> u128 {
        let before = self.made();
        for n in 0..PODS {
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": format!("p-{burst}-{n}"), "namespace": "default" },
                "spec": { "nodeSelector": { "pool": "general" }, "containers": [{
                    "name": "main", "image": "main:1",
                    "resources": { "requests": { "cpu": "500m", "memory": "64Mi" } }
                }] }
            });
            post(client, "/api/v1/namespaces/default/pods", &pod).await;
        }
        let last = Instant::now();
        while self.made() == before {
            assert!(last.elapsed() < PATIENCE, "{}", said());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let called = self.0.lock().expect("held")[before];
        called.saturating_duration_since(last).as_millis()
    }
}
