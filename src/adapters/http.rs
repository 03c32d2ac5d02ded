//! HTTP/1.1 primitives for servers: connections, bodies, forms.
//!
//! This module handles the protocol only. Invariants: a slow, broken or hostile client affects only
//! its own connection, and its input is bounded. A client that reads too slowly is ended.

mod connections;
mod paced_stream;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(crate) use connections::ConnectionLimits;
use connections::{BusyGuard, ConnectionGuard, Connections};
use paced_stream::PacedStream;

/// Maximum buffer of a connection. It also bounds the head of a request.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// Serves connections until the future is dropped. It must run in a `LocalSet`.
pub(crate) async fn serve<A, F>(listener: TcpListener, limits: ConnectionLimits, answer: A)
where
    A: Fn(hyper::Request<RequestBody>) -> F + 'static,
    F: Future<Output = hyper::Response<ResponseBody>> + 'static,
{
    let answer = Rc::new(answer);
    let connections = Connections::new(limits);
    loop {
        // An accept error concerns one client, or a temporary shortage. The server continues.
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // A client that is not admitted is disconnected at once, and can try again.
        let Some(guard) = connections.admit(peer.ip(), Instant::now()) else { continue };
        let set_task = guard.set_task();
        let task =
            tokio::task::spawn_local(serve_connection(stream, guard, limits, Rc::clone(&answer)));
        set_task(task.abort_handle());
    }
}

async fn serve_connection<A, F>(
    stream: TcpStream,
    guard: ConnectionGuard,
    limits: ConnectionLimits,
    answer: Rc<A>,
) where
    A: Fn(hyper::Request<RequestBody>) -> F + 'static,
    F: Future<Output = hyper::Response<ResponseBody>> + 'static,
{
    let guard = Rc::new(guard);
    let answer = service_fn(move |request: hyper::Request<Incoming>| {
        let state =
            Rc::new(RequestState { connection: Rc::clone(&guard), busy: RefCell::default() });
        if request.body().is_end_stream() {
            state.complete();
        } else {
            guard.receiving();
        }
        let answered = answer(request.map(|body| RequestBody { body, state: Rc::clone(&state) }));
        async move {
            let response = answered.await;
            // An answer may begin before the request has arrived completely.
            state.complete();
            let busy = state.busy.take();
            Ok::<_, Infallible>(response.map(|body| TrackedBody { body, _busy: busy }))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    http.header_read_timeout(limits.head_timeout).max_buf_size(BUFFER_BYTES_MAX);
    let stream = PacedStream::new(TokioIo::new(stream), limits.blocked_max);
    if let Err(error) = http.serve_connection(stream, answer).await {
        tracing::debug!(%error, "connection ended early");
    }
}

/// Returns a response with content type and date.
pub(crate) fn response(
    code: u16,
    content_type: &'static str,
    body: ResponseBody,
) -> hyper::Response<ResponseBody> {
    let mut response = hyper::Response::new(body);
    *response.status_mut() =
        hyper::StatusCode::from_u16(code).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    // Clients compare their clocks with this header.
    let now = Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    if let Ok(now) = now.parse() {
        headers.insert(DATE, now);
    }
    response
}

/// Returns all values of a header, joined with commas.
pub(crate) fn header_values(headers: &HeaderMap, name: &HeaderName) -> String {
    let all = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    all.collect::<Vec<_>>().join(",")
}

/// Returns whether a host, with or without a port, is this computer.
pub(crate) fn is_loopback_host(host: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].contains(&without_port(host))
}

/// Returns a host without its port.
pub(crate) fn without_port(host: &str) -> &str {
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    name.map_or(host, |(name, _)| name)
}

/// Parses a form or a query. The last value of a repeated field is used.
pub(crate) fn parse_form(text: &str) -> BTreeMap<String, String> {
    form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

/// Decodes percent escapes of a path.
pub(crate) fn decode_path(path: &str) -> String {
    percent_decode_str(path).decode_utf8_lossy().into_owned()
}

/// A response body.
pub(crate) enum ResponseBody {
    Full(Option<Bytes>),
    Stream(mpsc::Receiver<Bytes>),
}

impl ResponseBody {
    /// Returns a body that is sent at once.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Self::Full(Some(bytes.into()))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(events) => {
                events.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
            }
        }
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Full(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                hyper::body::SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            Self::Stream(_) => hyper::body::SizeHint::default(),
        }
    }
}

/// A request that is received and answered.
struct RequestState {
    connection: Rc<ConnectionGuard>,
    /// Set from the end of the request to the begin of its response.
    busy: RefCell<Option<BusyGuard>>,
}

impl RequestState {
    /// Marks the connection as busy, because the request has arrived completely.
    fn complete(&self) {
        self.busy.borrow_mut().get_or_insert_with(|| self.connection.busy());
    }
}

/// A request body that marks its connection as busy at its end.
pub(crate) struct RequestBody {
    body: Incoming,
    state: Rc<RequestState>,
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { body, state } = self.get_mut();
        let polled = Pin::new(&mut *body).poll_frame(context);
        if body.is_end_stream() || matches!(polled, Poll::Ready(None)) {
            state.complete();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// A response body that marks its connection as busy until it is sent.
struct TrackedBody {
    body: ResponseBody,
    _busy: Option<BusyGuard>,
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// Runs `work` in a `LocalSet`, with the tasks that it spawns.
pub(crate) async fn run_local<T>(work: impl Future<Output = T>) -> T {
    tokio::task::LocalSet::new().run_until(work).await
}

/// Listens on a local port. Port 0 selects a free port.
pub(crate) async fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind(("127.0.0.1", port)).await
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Notify;

    use super::*;

    /// Answers with the body of the request, after `finish`.
    async fn echo(
        request: hyper::Request<RequestBody>,
        arrived: Rc<Notify>,
        finish: Rc<Notify>,
    ) -> hyper::Response<ResponseBody> {
        let body = request.into_body().collect().await.expect("a body");
        arrived.notify_one();
        finish.notified().await;
        response(200, "text/plain", ResponseBody::full(body.to_bytes()))
    }

    #[test]
    fn request_that_has_arrived_is_answered_slowly_and_does_not_give_way() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(run_local(async {
            let listener = listen(0).await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let limits = ConnectionLimits { total: 1, per_peer: 1, ..ConnectionLimits::SHARED };
            let (arrived, finish) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
            let notify = (Rc::clone(&arrived), Rc::clone(&finish));
            tokio::task::spawn_local(serve(listener, limits, move |request| {
                echo(request, Rc::clone(&notify.0), Rc::clone(&notify.1))
            }));
            let mut client = TcpStream::connect(address).await.expect("connected");
            let head = b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 4\r\n\r\n";
            client.write_all(head).await.expect("sent");
            // The body comes after the head.
            tokio::time::sleep(Duration::from_millis(50)).await;
            client.write_all(b"body").await.expect("sent");
            arrived.notified().await;
            let mut other = TcpStream::connect(address).await.expect("connected");
            assert_eq!(other.read(&mut [0]).await.expect("an end"), 0, "it is not admitted");
            finish.notify_one();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("body"), "{answer}");
        }));
    }

    #[test]
    fn client_that_does_not_read_is_ended() {
        // More than the kernel buffers for both sides.
        const BODY_BYTES: usize = 32 << 20;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(run_local(async {
            let listener = listen(0).await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let blocked_max = Duration::from_millis(100);
            let limits = ConnectionLimits { blocked_max, ..ConnectionLimits::SHARED };
            let body = Bytes::from(vec![b'x'; BODY_BYTES]);
            tokio::task::spawn_local(serve(listener, limits, move |_| {
                let body = body.clone();
                async move { response(200, "text/plain", ResponseBody::full(body)) }
            }));
            let mut client = TcpStream::connect(address).await.expect("connected");
            let head = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n";
            client.write_all(head).await.expect("sent");
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut received = Vec::new();
            // The end may be a reset.
            let _ = client.read_to_end(&mut received).await;
            assert!(received.len() < BODY_BYTES, "the whole response is sent: {}", received.len());
        }));
    }

    #[test]
    fn forms_and_paths_are_decoded() {
        let form = parse_form("labelSelector=app%3Dapi%2Ctier+in+%28a%29&watch=1&empty=&flag");
        assert_eq!(form["labelSelector"], "app=api,tier in (a)");
        assert_eq!((form["watch"].as_str(), form["empty"].as_str()), ("1", ""));
        assert!(form.contains_key("flag"));
        assert_eq!(decode_path("/a%2Fb+c%"), "/a/b+c%");
    }
}
