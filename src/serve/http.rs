//! The wire: requests of HTTP/1.1 in, answers out, and watches that go on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, DATE, HeaderMap, HeaderName};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::api::{Answer, Api, Watch};
use super::refusal::Refusal;
use super::request::Request;
use super::store::{Change, Write};
use super::table;

/// Largest body of a request: what a client library sends of one object.
const BODY_MAX: usize = 4 << 20;

/// Events that wait for a slow reader before the watch waits too.
const EVENTS_WAITING: usize = 64;

/// Longest watch; clients begin another one.
const WATCH_MAX: Duration = Duration::from_mins(30);

/// Between two bookmarks of a watch on which nothing happens.
const BOOKMARK_EVERY: Duration = Duration::from_secs(30);

/// Something that answers requests.
pub(super) trait Service {
    /// Returns the answer to a request, and does what it asks for.
    fn answer(&self, request: &Request) -> Answer;
    /// Returns the objects that are watched; none where nothing is.
    fn api(&self) -> Option<&RefCell<Api>>;
}

/// Serves every connection, for as long as it is polled; it must be within a `LocalSet`.
pub(super) async fn serve(listener: TcpListener, service: Rc<dyn Service>) {
    loop {
        // What fails is the connection of one client, or too many of them: others go on.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let service = Rc::clone(&service);
        tokio::task::spawn_local(async move {
            let answer = service_fn(move |request| respond(Rc::clone(&service), request));
            let mut http = http1::Builder::new();
            let connection =
                http.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), answer);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
}

async fn respond(
    service: Rc<dyn Service>,
    request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Chunks>, Infallible> {
    let answer = match read(request).await {
        Ok(request) => service.answer(&request),
        Err(refusal) => Answer::json(refusal.code, &refusal.status()),
    };
    Ok(match answer {
        Answer::Whole(code, bytes) => whole(code, bytes),
        Answer::Watch(watch) => {
            let (sender, events) = mpsc::channel(EVENTS_WAITING);
            tokio::task::spawn_local(follow(service, *watch, sender));
            response(200, "application/json", Chunks::Events(events))
        }
    })
}

fn whole(code: u16, bytes: Vec<u8>) -> hyper::Response<Chunks> {
    let kind = match bytes.first() {
        Some(b'{' | b'[') => "application/json",
        Some(b'<') => "text/xml",
        Some(_) | None => "text/plain",
    };
    response(code, kind, Chunks::Whole(Some(bytes.into())))
}

fn response(code: u16, kind: &'static str, body: Chunks) -> hyper::Response<Chunks> {
    let mut response = hyper::Response::new(body);
    *response.status_mut() =
        hyper::StatusCode::from_u16(code).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    // Clients compare clocks by it.
    let now = Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    if let Ok(now) = now.parse() {
        headers.insert(DATE, now);
    }
    response
}

/// Reads a request to its end.
async fn read(request: hyper::Request<Incoming>) -> Result<Request, Refusal> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, BODY_MAX).collect().await;
    let body = body.map_err(|error| Refusal::bad(format!("the body cannot be read: {error}")))?;
    let media = header(&head.headers, &CONTENT_TYPE);
    let media = media.split(';').next().unwrap_or_default().trim().to_owned();
    Ok(Request {
        method: head.method.as_str().to_owned(),
        path: unescape(head.uri.path(), false),
        query: form(head.uri.query().unwrap_or_default()),
        media,
        accept: header(&head.headers, &ACCEPT),
        target: header(&head.headers, &HeaderName::from_static("x-amz-target")),
        body: body.to_bytes().to_vec(),
        at: Timestamp::now(),
    })
}

fn header(headers: &HeaderMap, name: &HeaderName) -> String {
    let all = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    all.collect::<Vec<_>>().join(",")
}

/// Reads the fields of a form or a query; of a field that is given twice the last counts.
pub(super) fn form(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(key, value)| (unescape(key, true), unescape(value, true))).collect()
}

/// Reads percent signs, and in forms the plus that stands for a space.
fn unescape(text: &str, in_form: bool) -> String {
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

/// Tells a client what happens to the objects that it watches, until it has gone or time is up.
async fn follow(service: Rc<dyn Service>, mut watch: Watch, sender: mpsc::Sender<Bytes>) {
    let Some(api) = service.api() else { return };
    let mut changes = api.borrow().store.changes();
    let lasts = watch.seconds.map_or(WATCH_MAX, Duration::from_secs).min(WATCH_MAX);
    let until = Instant::now() + lasts;
    let mut lines: Vec<Bytes> = Vec::new();
    for object in std::mem::take(&mut watch.initial) {
        lines.push(line("ADDED", &watch.shown(&object)));
    }
    if watch.marks_initial {
        lines.push(watch.bookmark(true));
    }
    loop {
        for line in lines.drain(..) {
            if sender.send(line).await.is_err() {
                return;
            }
        }
        changes.mark_unchanged();
        let Some(news) = watch.news(&api.borrow()) else {
            let status = Refusal::expired("the resource version").status();
            // Whoever has gone need not be told.
            let _ = sender.send(line("ERROR", &status)).await;
            return;
        };
        lines = news;
        if !lines.is_empty() {
            continue;
        }
        let wake = (Instant::now() + BOOKMARK_EVERY).min(until);
        tokio::select! {
            news = changes.changed() => if news.is_err() { return },
            () = sender.closed() => return,
            () = tokio::time::sleep_until(wake) => {
                if Instant::now() >= until {
                    return;
                }
                if watch.bookmarks {
                    lines.push(watch.bookmark(false));
                }
            }
        }
    }
}

impl Watch {
    /// Returns the events since the client looked last; `None` where they are not all remembered.
    pub(super) fn news(&mut self, api: &Api) -> Option<Vec<Bytes>> {
        let writes = api.store.since(self.seen)?;
        let lines = writes.filter_map(|write| self.event(write)).collect();
        self.seen = api.store.version();
        Some(lines)
    }

    /// Returns what a write is to whoever sees only what is selected.
    fn event(&self, write: &Write) -> Option<Bytes> {
        let here = write.key.kind == self.resource.kind
            && self.namespace.as_ref().is_none_or(|namespace| **namespace == *write.key.namespace);
        if !here {
            return None;
        }
        let was = write.before.as_ref().is_some_and(|before| self.selection.covers(before));
        let is = write.change != Change::Deleted && self.selection.covers(&write.object);
        let kind = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(line(kind, &self.shown(&write.object)))
    }

    fn shown(&self, object: &Arc<Json>) -> Json {
        if self.table {
            let one = [Arc::clone(object)];
            return table::table(self.resource, &one, &json!({}), Timestamp::now());
        }
        (**object).clone()
    }

    /// Returns an event that tells how far the client has seen.
    fn bookmark(&self, ends_initial: bool) -> Bytes {
        let mut object = json!({
            "kind": self.resource.kind, "apiVersion": self.resource.api_version(),
            "metadata": { "resourceVersion": self.seen.to_string() }
        });
        if ends_initial {
            object["metadata"]["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        line("BOOKMARK", &object)
    }
}

fn line(kind: &str, object: &Json) -> Bytes {
    let mut text = json!({ "type": kind, "object": object }).to_string();
    text.push('\n');
    text.into()
}

/// The body of an answer.
pub(super) enum Chunks {
    Whole(Option<Bytes>),
    Events(mpsc::Receiver<Bytes>),
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
pub(super) async fn locally<T>(work: impl Future<Output = T>) -> T {
    tokio::task::LocalSet::new().run_until(work).await
}

/// Listens on a port of this machine; 0: any that is free.
pub(super) async fn listen(port: u16) -> io::Result<TcpListener> {
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
