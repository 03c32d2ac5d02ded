//! Measures the time from the last pod of a burst to its launch call.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::Client;
use serde_json::json;

use super::cluster::post;
use super::proxy::{Fault, Proxy};

/// Number of pods in a burst. They fit on one instance.
const PODS: usize = 3;

/// Timeout for a launch call.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Arrival times of the launch calls.
pub(super) struct LaunchTimes(Arc<Mutex<Vec<Instant>>>);

impl LaunchTimes {
    /// Records the launch calls through a proxy from now on. No call is changed.
    pub(super) fn record(aws: &Proxy) -> Self {
        let calls: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let recorded = Arc::clone(&calls);
        aws.set_fault_rule(move |call| {
            if call.name() == "CreateFleet" {
                recorded.lock().expect("held").push(Instant::now());
            }
            Fault::None
        });
        Self(calls)
    }

    pub(super) fn count(&self) -> usize {
        self.0.lock().expect("held").len()
    }

    /// Creates the pods of a burst. Returns the time until the launch call, in milliseconds.
    pub(super) async fn delay_after_burst(
        &self,
        client: &Client,
        burst: usize,
        log: impl Fn() -> String,
    ) -> u128 {
        let before = self.count();
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
        let burst_end = Instant::now();
        while self.count() == before {
            assert!(burst_end.elapsed() < TIMEOUT, "{}", log());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let called = self.0.lock().expect("held")[before];
        called.saturating_duration_since(burst_end).as_millis()
    }
}
