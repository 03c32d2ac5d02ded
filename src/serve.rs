//! The embedded world over the wire: a Kubernetes API that `kubectl` and client libraries work with,
//! and the calls of AWS that this program makes, on one port.
//!
//! This module knows how an API server answers: versions, watches, patches, pages, evictions under
//! budgets. It decides nothing about capacity, and asks for no credentials: it listens on this machine
//! alone. Invariants: the world is the truth of what it plays, and every write of a client is told to
//! it before the next request is answered; a watch never leaves a write out without saying that it
//! does (410).
//!
//! Not served: protobuf, the schemas of Kubernetes (fields are taken as they are written), conflicts
//! between managers of fields, logs and other ways into containers, and definitions of new kinds.

mod account;
mod api;
mod apply;
mod declared;
mod evict;
mod http;
mod join;
mod object;
mod openapi;
mod patch;
mod refusal;
mod request;
mod resource;
mod select;
mod shown;
mod store;
mod table;
mod template;
#[cfg(test)]
mod tests;
mod xml;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::net::TcpListener;

use crate::catalog::Catalog;
use crate::manifest::Desired;
use crate::sim::World;
use crate::web;
use account::Account;
use api::{Answer, Api, NAMESPACES};
use http::Service;
use join::Joined;
use request::Request;
use serde_json::json;
use store::{Author, Key};

/// Between two looks at whether time brings something about.
const TICK: Duration = Duration::from_millis(100);

/// An API server by itself: it keeps what it is told, and nobody acts on it.
struct Alone(RefCell<Api>);

impl Service for Alone {
    fn answer(&self, request: &Request) -> Answer {
        self.0.borrow_mut().answer(request)
    }

    fn api(&self) -> Option<&RefCell<Api>> {
        Some(&self.0)
    }
}

/// A Kubernetes API that is served on a port of this machine.
pub struct ApiServer {
    listener: TcpListener,
    service: Rc<dyn Service>,
    world: Option<Rc<Joined>>,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl ApiServer {
    /// Returns a server without controllers, scheduler and kubelets: what is written stays as it is.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn alone() -> io::Result<Self> {
        let mut api = Api::default();
        for name in NAMESPACES {
            let uid = shown::uid("Namespace", "", name);
            let object = shown::namespace(name, &[].into(), &uid, Timestamp::now());
            api.store.put(Key::new("Namespace", "", name), object, Author::World);
        }
        let listener = web::listen(0).await?;
        Ok(Self { listener, service: Rc::new(Alone(RefCell::new(api))), world: None })
    }

    /// Returns a server over a world, whose clock goes as the one on the wall from now on. Machines
    /// are of the catalogue, and set up as the repository says.
    ///
    /// # Errors
    /// When the port cannot be had; 0 is any that is free.
    pub async fn over(
        world: Rc<World>,
        (catalog, desired): (Catalog, Rc<Desired>),
        port: u16,
    ) -> io::Result<Self> {
        let listener = web::listen(port).await?;
        let account = Account::new(Rc::clone(&world), catalog, desired);
        let joined = Rc::new(Joined::new(world, account, Timestamp::now()));
        Ok(Self { listener, service: joined.clone(), world: Some(joined) })
    }

    /// Returns where it is served.
    ///
    /// # Errors
    /// When the system cannot say.
    pub fn url(&self) -> io::Result<String> {
        Ok(format!("http://{}", self.listener.local_addr()?))
    }

    /// Returns what tells the server that the repository says something else of machines now.
    pub fn follower(&self) -> impl Fn(Rc<Desired>) + 'static {
        let joined = self.world.clone();
        move |desired| {
            if let Some(joined) = &joined {
                joined.follow(desired, Timestamp::now());
            }
        }
    }

    /// Serves while `work` goes on, and returns what came of it.
    pub async fn during<T>(self, work: impl Future<Output = T>) -> T {
        let Self { listener, service, world } = self;
        web::locally(async move {
            tokio::task::spawn_local(http::serve(listener, service));
            if let Some(joined) = world {
                tokio::task::spawn_local(live(joined));
            }
            work.await
        })
        .await
    }
}

/// Lets time pass in a world as it passes outside.
async fn live(joined: Rc<Joined>) {
    // A world that was made for a later day goes on from that day.
    let ahead = joined.world.observed_at().duration_since(Timestamp::now());
    let ahead = ahead.max(SignedDuration::ZERO);
    loop {
        let now = Timestamp::now();
        if joined.world.pass(now.checked_add(ahead).unwrap_or(now)) {
            joined.turn(now);
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Returns a kubeconfig by which clients reach a server.
#[must_use]
pub fn kubeconfig(url: &str) -> String {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "sandbox",
        "clusters": [{ "name": "sandbox", "cluster": { "server": url } }],
        "users": [{ "name": "sandbox", "user": {} }],
        "contexts": [{ "name": "sandbox", "context": { "cluster": "sandbox", "user": "sandbox" } }]
    });
    // JSON is YAML.
    format!("{config:#}\n")
}
