//! Serves the embedded world over HTTP: a Kubernetes API for `kubectl` and client libraries, and
//! the AWS calls of this program, on one port.
//!
//! This module implements API server behavior: versions, watches, patches, pages, and evictions
//! under budgets. It makes no capacity decisions and requires no credentials, because it listens on
//! the local host only.
//!
//! Invariants: the world is the source of truth for simulated objects. Every client write is
//! applied to the world before the next request is answered. A watch that misses a write reports it
//! (410).
//!
//! Not supported: protobuf, Kubernetes schemas (fields are stored as written), field-manager
//! conflicts, logs and other container access, and custom resource definitions.

mod applied_fields;
mod autoscaling_v1;
mod aws_api;
mod declared_objects;
mod deliveries;
mod events;
mod eviction;
mod http;
mod kube_api;
mod kubernetes_objects;
mod metrics;
mod node_claim;
mod object;
mod openapi;
mod patch;
mod pod_template;
mod request;
mod resource;
mod selectors;
mod server_side_apply;
mod status_error;
mod store;
mod table;
mod template_texts;
#[cfg(test)]
mod tests;
mod world_sync;
mod xml;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::net::TcpListener;

use crate::catalog::Catalog;
use crate::manifest::DeclaredObject;
use crate::model::desired::Desired;
use crate::simulator::{SimError, World};
use aws_api::AwsApi;
use http::RequestHandler;
use kube_api::{ApiResponse, KubeApi, NAMESPACES};
use request::ApiRequest;
use serde_json::json;
use store::{ObjectKey, Writer};
use world_sync::WorldSync;

/// Interval of the clock.
const TICK: Duration = Duration::from_millis(100);

/// An API server that stores objects without controllers.
struct StandaloneApi(RefCell<KubeApi>);

impl RequestHandler for StandaloneApi {
    fn answer(&self, request: &ApiRequest) -> ApiResponse {
        self.0.borrow_mut().answer(request)
    }

    fn api(&self) -> Option<&RefCell<KubeApi>> {
        Some(&self.0)
    }
}

/// A Kubernetes API on a local port.
pub struct ApiServer {
    listener: TcpListener,
    service: Rc<dyn RequestHandler>,
    world: Option<Rc<WorldSync>>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Returns a server without controllers, scheduler and kubelets. Written objects stay
    /// unchanged.
    ///
    /// # Errors
    /// Returns an error if no port is available.
    pub async fn standalone() -> io::Result<Self> {
        let mut api = KubeApi::default();
        for name in NAMESPACES {
            let uid = kubernetes_objects::uid("Namespace", "", name);
            let object = kubernetes_objects::namespace(name, &[].into(), &uid, Timestamp::now());
            api.store.upsert(ObjectKey::new("Namespace", "", name), object, Writer::World);
        }
        let listener = crate::adapters::http::listen(0).await?;
        Ok(Self { listener, service: Rc::new(StandaloneApi(RefCell::new(api))), world: None })
    }

    /// Returns a server for a world, whose clock now follows real time. Instances come from the
    /// catalog, with the settings of the repository. Its `objects` are served as they are written,
    /// as far as the world does not simulate them.
    ///
    /// # Errors
    /// Returns an error if the port is not available. Port 0 selects a free port.
    pub async fn for_world(
        world: Rc<World>,
        catalog: Catalog,
        desired: Rc<Desired>,
        objects: Vec<DeclaredObject>,
        port: u16,
    ) -> io::Result<Self> {
        let listener = crate::adapters::http::listen(port).await?;
        let aws_api = AwsApi::new(Rc::clone(&world), catalog, desired);
        let sync = Rc::new(WorldSync::new(world, aws_api, objects, Timestamp::now()));
        Ok(Self { listener, service: sync.clone(), world: Some(sync) })
    }

    /// Returns the URL of the server.
    ///
    /// # Errors
    /// Returns an error if the system does not report the address.
    pub fn url(&self) -> io::Result<String> {
        Ok(format!("http://{}", self.listener.local_addr()?))
    }

    /// Returns a function that delivers a repository as `kubectl apply` does: the desired state and
    /// the objects replace those that were delivered before. Objects of clients stay.
    pub fn deliverer(
        &self,
    ) -> impl Fn(Rc<Desired>, Vec<DeclaredObject>) -> Result<(), SimError> + 'static {
        let sync = self.world.clone();
        move |desired, objects| match &sync {
            Some(sync) => sync.deliver(desired, objects, Timestamp::now()),
            None => Ok(()),
        }
    }

    /// Serves while `work` runs, and returns its result.
    pub async fn run_while<T>(self, work: impl Future<Output = T>) -> T {
        let Self { listener, service, world } = self;
        crate::adapters::http::run_local(async move {
            tokio::task::spawn_local(http::serve(listener, service));
            if let Some(sync) = world {
                tokio::task::spawn_local(run_clock(sync));
            }
            work.await
        })
        .await
    }
}

/// Advances the world with real time.
async fn run_clock(sync: Rc<WorldSync>) {
    // A world with a later initial time continues from there.
    let ahead = sync.world.current_time().duration_since(Timestamp::now());
    let ahead = ahead.max(SignedDuration::ZERO);
    loop {
        let now = Timestamp::now();
        if sync.world.advance_to(now.checked_add(ahead).unwrap_or(now)) {
            sync.sync(now);
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Returns a kubeconfig for a server.
pub fn kubeconfig(url: &str) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "sandbox",
        "clusters": [{ "name": "sandbox", "cluster": { "server": url } }],
        "users": [{ "name": "sandbox", "user": {} }],
        "contexts": [{ "name": "sandbox", "context": { "cluster": "sandbox", "user": "sandbox" } }]
    });
    // JSON is valid YAML.
    format!("{config:#}\n")
}
