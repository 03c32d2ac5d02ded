//! HTTP server: health, metrics, page and event stream.
//!
//! The server has its own thread, so that it answers while the controller plans. It decides nothing
//! and reads only the published status.
//!
//! Invariants:
//! - All paths except two are read-only.
//! - Operator requests go to [authorization](crate::controller::authorization) with the token of
//!   the operator, and webhooks are signed hints.
//! - Other paths need no credentials, so no secret may be shown.
//! - Slow event streams skip versions.
//! - Memory does not grow with the number of clients that read slowly.

mod bodies;
mod request_form;
mod routes;
mod webhook;

pub use webhook::{Webhook, WebhookSecrets};

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use jiff::Timestamp;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{mpsc, oneshot, watch};

use crate::adapters::http::ConnectionLimits;
use crate::controller::StatusReceiver;
use crate::controller::authorization::PendingRequest;
use crate::plan::forecast::Forecast;
use crate::server::page::PageKind;

/// Minimum time between two events of a stream: a page is large, and people read slowly.
const EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// Time between keepalive comments of an idle stream.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Maximum number of open event streams. Further clients must retry later.
const EVENT_STREAMS_MAX: usize = 64;

/// Bytes of a response that the kernel buffers for a connection. By itself it buffers up to 4 MB, and
/// counts them as memory of the container.
const SEND_BUFFER_BYTES: u32 = 64 << 10;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1_024;

/// Configuration of the server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Published status.
    pub status: StatusReceiver,
    /// Forecast, once it was computed.
    pub forecast: watch::Receiver<Option<Arc<Forecast>>>,
    /// Page of a controller or of a preview.
    pub source: PageSource,
    /// Paths that are served.
    pub routes: RouteSet,
    /// Additional host names, such as that of an ingress.
    pub allowed_hosts: Vec<String>,
    /// Webhook of the Git host, if enabled.
    pub webhook: Option<Webhook>,
    /// Namespace of the pods that serve the page, if any.
    pub namespace: Option<String>,
}

/// What the page shows.
#[derive(Debug, Clone)]
pub enum PageSource {
    /// A controller, and the channel for operator requests. Without the channel the page is
    /// read-only.
    Controller(Option<mpsc::Sender<PendingRequest>>),
    /// A preview, which no controller applies.
    Preview,
}

/// The paths that one port serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteSet {
    /// All of them.
    All,
    /// The page, requests and webhooks. Metrics and probes have a port of their own.
    Page,
    /// Metrics and probes.
    Metrics,
}

impl RouteSet {
    /// Paths of metrics and probes.
    const METRICS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

    fn serves(self, path: &str) -> bool {
        match self {
            Self::All => true,
            Self::Page => !Self::METRICS.contains(&path),
            Self::Metrics => Self::METRICS.contains(&path),
        }
    }
}

impl PageSource {
    fn kind(&self) -> PageKind {
        match self {
            Self::Controller(requests) => {
                PageKind::Controller { takes_requests: requests.is_some() }
            }
            Self::Preview => PageKind::Preview,
        }
    }
}

impl ServerConfig {
    /// Returns a read-only configuration without a forecast.
    pub fn new(reader: StatusReceiver, serves: PageSource) -> Self {
        // A receiver keeps the last value after its sender is dropped.
        let (_, forecast) = watch::channel(None);
        Self {
            status: reader,
            forecast,
            source: serves,
            routes: RouteSet::All,
            allowed_hosts: Vec::new(),
            webhook: None,
            namespace: None,
        }
    }
}

/// A running server. Dropping it stops the server.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Returns the bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread may have ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Serves `config` on `address`, on its own thread.
///
/// # Errors
/// If the address cannot be bound.
pub fn listen(address: SocketAddr, config: ServerConfig) -> io::Result<HttpServer> {
    let (stop, stopped) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bound = {
        // A socket belongs to the runtime that makes it.
        let _entered = runtime.enter();
        bind(address)?
    };
    let address = bound.local_addr()?;
    let thread = std::thread::Builder::new().name("listen".to_owned()).spawn(move || {
        runtime.block_on(crate::adapters::http::run_local(serve(bound, config, stopped)));
    })?;
    Ok(HttpServer { address, stop: Some(stop), thread: Some(thread) })
}

/// Binds an address. Its connections inherit the size of the send buffer.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart does not wait for the connections of its predecessor.
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn serve(listener: TcpListener, config: ServerConfig, stopped: oneshot::Receiver<()>) {
    let address = listener.local_addr();
    let is_local = address.as_ref().is_ok_and(|address| address.ip().is_loopback());
    let port = address.map_or(0, |address| address.port());
    let seen = Rc::new(Cell::new(Instant::now()));
    tokio::task::spawn_local(track_publications(config.status.clone(), Rc::clone(&seen)));
    let known = RefCell::default();
    let state = Rc::new(ServerState {
        config,
        is_loopback: is_local,
        port,
        event_streams: Arc::default(),
        last_published: seen,
        recent_deliveries: known,
        bodies: bodies::RenderedBodies::default(),
    });
    let limits = ConnectionLimits::SHARED;
    let answered = crate::adapters::http::serve(listener, limits, move |request| {
        routes::respond(Rc::clone(&state), request)
    });
    tokio::select! {
        () = answered => {}
        _ = stopped => {}
    }
}

/// Shared state of all requests.
struct ServerState {
    config: ServerConfig,
    /// True if only loopback clients can connect.
    is_loopback: bool,
    port: u16,
    event_streams: Arc<AtomicUsize>,
    /// When the controller last published a status.
    last_published: Rc<Cell<Instant>>,
    /// Recent webhook deliveries.
    recent_deliveries: RefCell<webhook::RecentDeliveries>,
    /// Large responses.
    bodies: bodies::RenderedBodies,
}

/// Records when the controller publishes. The controller's clock may differ from wall time.
async fn track_publications(mut reader: StatusReceiver, seen: Rc<Cell<Instant>>) {
    while reader.changed().await.is_ok() {
        seen.set(Instant::now());
    }
}

impl ServerState {
    /// Opens an event stream; returns `None` if too many are open.
    fn event_stream(&self) -> Option<mpsc::Receiver<Bytes>> {
        let place = StreamPermit::take(&self.event_streams)?;
        let (sender, events) = mpsc::channel(1);
        tokio::task::spawn_local(send_events(self.config.status.clone(), sender, place));
        Some(events)
    }
}

/// Counts an open event stream.
struct StreamPermit(Arc<AtomicUsize>);

impl StreamPermit {
    fn take(waiting: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(Arc::clone(waiting));
        // A failed acquisition drops the permit, which decrements the count again.
        (waiting.fetch_add(1, Ordering::Relaxed) < EVENT_STREAMS_MAX).then_some(place)
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends an event for each newer status, as server-sent events.
async fn send_events(
    mut reader: StatusReceiver,
    sender: mpsc::Sender<Bytes>,
    _place: StreamPermit,
) {
    // A disconnected client reconnects after this many milliseconds.
    let mut line = Bytes::from_static(b"retry: 3000\n\n");
    loop {
        if sender.send(line).await.is_err() {
            return;
        }
        line = tokio::select! {
            changed = reader.changed() => {
                if changed.is_err() {
                    return;
                }
                tokio::time::sleep(EVENT_INTERVAL).await;
                let at: Timestamp = reader.borrow_and_update().now;
                format!("event: status\ndata: {at}\n\n").into()
            }
            () = tokio::time::sleep(KEEPALIVE_INTERVAL) => Bytes::from_static(b": still here\n\n"),
            () = sender.closed() => return,
        };
    }
}
