//! The face of the loop over HTTP: health, metrics, page, and the news that there is a newer one.
//!
//! This module knows paths, headers and a thread of its own, so that whoever looks is answered while
//! the loop plans. It decides nothing and reads nothing but what the loop published. Invariants: every
//! path but two is read-only; what is asked on the one goes to the [door](crate::door) with the token of
//! whoever asks, and the other takes hints that are signed; nothing else asks for credentials, so
//! that nothing secret may be shown; a slow reader skips what it was too slow for.

mod answer;
mod asked;
mod hook;

pub use hook::{Hook, Secrets};

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{SocketAddr, TcpListener as Bound};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};

use crate::door::Asked;
use crate::face::page::PageKind;
use crate::plan::forecast::Forecast;
use crate::reconcile::Reader;
use crate::web;

/// Between two pieces of news to one reader: a page is large, and a person reads slowly.
const NEWS_EVERY: Duration = Duration::from_secs(1);

/// Between two signs of life where there is no news.
const SIGN_EVERY: Duration = Duration::from_secs(15);

/// Readers that may wait for news at a time; further ones are told to come again later.
const WAITING_MAX: usize = 64;

/// What is shown.
#[derive(Debug, Clone)]
pub struct Site {
    /// What the loop publishes.
    pub reader: Reader,
    /// What the clock will bring, once it was computed.
    pub forecast: watch::Receiver<Option<Arc<Forecast>>>,
    /// Whether it is the page of a loop, or a preview.
    pub serves: Serves,
    /// Further names by which it is reached, such as that of an ingress.
    pub names: Vec<String>,
    /// Where webhooks of Git are heard, if they are.
    pub hook: Option<Hook>,
    /// The namespace of the pods that serve it, where it is served by pods.
    pub namespace: Option<String>,
}

/// What is served, and what may be asked of it.
#[derive(Debug, Clone)]
pub enum Serves {
    /// A loop, and where questions to it go; without, nothing may be asked.
    Loop(Option<mpsc::Sender<Asked>>),
    /// A preview, which no loop carries out.
    Preview,
}

impl Serves {
    fn kind(&self) -> PageKind {
        match self {
            Self::Loop(asked) => PageKind::Loop { takes_requests: asked.is_some() },
            Self::Preview => PageKind::Preview,
        }
    }
}

impl Site {
    /// Returns a site that shows what `reader` reads, without a forecast and with nothing to ask.
    #[must_use]
    pub fn of(reader: Reader, serves: Serves) -> Self {
        // A reader outlives its writer, and shows what that wrote last.
        let (_, forecast) = watch::channel(None);
        Self { reader, forecast, serves, names: Vec::new(), hook: None, namespace: None }
    }
}

/// A server, until it is dropped.
#[derive(Debug)]
pub struct Listening {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    /// Returns where it is reached.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Serves `site` on `address`, on a thread of its own.
///
/// # Errors
/// When the address cannot be had.
pub fn listen(address: SocketAddr, site: Site) -> io::Result<Listening> {
    let bound = Bound::bind(address)?;
    bound.set_nonblocking(true)?;
    let address = bound.local_addr()?;
    let (stop, stopped) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = std::thread::Builder::new().name("listen".to_owned()).spawn(move || {
        runtime.block_on(web::locally(serve(bound, site, stopped)));
    })?;
    Ok(Listening { address, stop: Some(stop), thread: Some(thread) })
}

async fn serve(bound: Bound, site: Site, stopped: oneshot::Receiver<()>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(bound) else { return };
    let address = listener.local_addr();
    let is_local = address.as_ref().is_ok_and(|address| address.ip().is_loopback());
    let port = address.map_or(0, |address| address.port());
    let seen = Rc::new(Cell::new(Instant::now()));
    tokio::task::spawn_local(look(site.reader.clone(), Rc::clone(&seen)));
    let known = RefCell::default();
    let hall = Rc::new(Hall { site, is_local, port, waiting: Arc::default(), seen, known });
    let answered = web::serve(listener, move |request| answer::answer(Rc::clone(&hall), request));
    tokio::select! {
        () = answered => {}
        _ = stopped => {}
    }
}

/// What every answer is made from.
struct Hall {
    site: Site,
    /// Whether only this machine reaches it.
    is_local: bool,
    port: u16,
    waiting: Arc<AtomicUsize>,
    /// When the loop last published something.
    seen: Rc<Cell<Instant>>,
    /// Webhooks that were heard lately.
    known: RefCell<hook::Known>,
}

/// Notes when the loop publishes, for as long as it does. Its own clock may be another than the wall's.
async fn look(mut reader: Reader, seen: Rc<Cell<Instant>>) {
    while reader.changed().await.is_ok() {
        seen.set(Instant::now());
    }
}

impl Hall {
    /// Returns the news for one reader, until it has gone; `None` where too many wait.
    fn news(&self) -> Option<mpsc::Receiver<Bytes>> {
        let place = Place::take(&self.waiting)?;
        let (sender, news) = mpsc::channel(1);
        tokio::task::spawn_local(tell(self.site.reader.clone(), sender, place));
        Some(news)
    }
}

/// A place among the readers that wait.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(waiting: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(Arc::clone(waiting));
        // Dropped again where there were too many already.
        (waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells a reader when there is something newer, as server-sent events.
async fn tell(mut reader: Reader, sender: mpsc::Sender<Bytes>, _place: Place) {
    // A reader that lost its connection comes back after this many milliseconds.
    let mut line = Bytes::from_static(b"retry: 3000\n\n");
    loop {
        if sender.send(line).await.is_err() {
            return;
        }
        line = tokio::select! {
            news = reader.changed() => {
                if news.is_err() {
                    return;
                }
                tokio::time::sleep(NEWS_EVERY).await;
                let at: Timestamp = reader.borrow_and_update().now;
                format!("event: status\ndata: {at}\n\n").into()
            }
            () = tokio::time::sleep(SIGN_EVERY) => Bytes::from_static(b": still here\n\n"),
            () = sender.closed() => return,
        };
    }
}
