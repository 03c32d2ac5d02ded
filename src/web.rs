//! HTTP/1.1 as this program serves it: connections, bodies, forms.
//!
//! This module knows the wire and nothing of what is served. Invariants: a client that is slow, broken
//! or hostile costs one connection and no more; what it sends is read up to a bound.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

/// Connections that are open at a time; a client that sends no head of a request within hyper's own
/// bound, 30 seconds, loses its place.
const CONNECTIONS_MAX: usize = 512;

/// Answers every connection, for as long as it is polled; it must be within a `LocalSet`.
pub(crate) async fn serve<A, F>(listener: TcpListener, answer: A)
where
    A: Fn(hyper::Request<Incoming>) -> F + 'static,
    F: Future<Output = hyper::Response<Chunks>> + 'static,
{
    let answer = Rc::new(answer);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Whoever comes when all are taken waits until a connection ends.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        // What fails is the connection of one client, or too many of them: others go on.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let answer = Rc::clone(&answer);
        tokio::task::spawn_local(async move {
            let answer = service_fn(move |request| {
                let answered = answer(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let mut http = http1::Builder::new();
            let connection =
                http.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        });
    }
}

/// Returns an answer with its kind and the time.
pub(crate) fn response(code: u16, kind: &'static str, body: Chunks) -> hyper::Response<Chunks> {
    let mut response = hyper::Response::new(body);
    *response.status_mut() =
        hyper::StatusCode::from_u16(code).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // Clients compare clocks by it.
    let now = Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    if let Ok(now) = now.parse() {
        headers.insert(DATE, now);
    }
    response
}

/// Returns the values of a header, with commas between them.
pub(crate) fn header(headers: &HeaderMap, name: &HeaderName) -> String {
    let all = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    all.collect::<Vec<_>>().join(",")
}

/// Reads the fields of a form or a query; of a field that is given twice the last counts.
pub(crate) fn form(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(key, value)| (unescape(key, true), unescape(value, true))).collect()
}

/// Reads percent signs, and in forms the plus that stands for a space.
pub(crate) fn unescape(text: &str, in_form: bool) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
        if let Some(decoded) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            out.push(decoded);
            at += 3;
        } else {
            out.push(if *byte == b'+' && in_form { b' ' } else { *byte });
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The body of an answer.
pub(crate) enum Chunks {
    Whole(Option<Bytes>),
    Events(mpsc::Receiver<Bytes>),
}

impl Chunks {
    /// Returns a body that is sent at once.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()))
    }
}

impl Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Events(events) => {
                events.poll_recv(context).map(|line| line.map(|line| Ok(Frame::data(line))))
            }
        }
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                hyper::body::SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            Self::Events(_) => hyper::body::SizeHint::default(),
        }
    }
}

/// Runs `work` beside the tasks that it spawns.
pub(crate) async fn locally<T>(work: impl Future<Output = T>) -> T {
    tokio::task::LocalSet::new().run_until(work).await
}

/// Listens on a port of this machine; 0: any that is free.
pub(crate) async fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind(("127.0.0.1", port)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_and_paths_are_read_with_what_is_escaped() {
        let form = form("labelSelector=app%3Dapi%2Ctier+in+%28a%29&watch=1&empty=&flag");
        assert_eq!(form["labelSelector"], "app=api,tier in (a)");
        assert_eq!((form["watch"].as_str(), form["empty"].as_str()), ("1", ""));
        assert!(form.contains_key("flag"));
        assert_eq!(unescape("/a%2Fb+c%", false), "/a/b+c%");
    }
}
