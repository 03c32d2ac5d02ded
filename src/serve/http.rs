//! The wire: requests of HTTP/1.1 in, answers out, and watches that go on.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName};
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
use crate::web::{self, Chunks, form, header, response, unescape};

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
    web::serve(listener, move |request| respond(Rc::clone(&service), request)).await;
}

async fn respond(
    service: Rc<dyn Service>,
    request: hyper::Request<Incoming>,
) -> hyper::Response<Chunks> {
    let answer = match read(request).await {
        Ok(request) => service.answer(&request),
        Err(refusal) => Answer::json(refusal.code, &refusal.status()),
    };
    match answer {
        Answer::Whole(code, bytes) => whole(code, bytes),
        Answer::Watch(watch) => {
            let (sender, events) = mpsc::channel(EVENTS_WAITING);
            tokio::task::spawn_local(follow(service, *watch, sender));
            response(200, "application/json", Chunks::Events(events))
        }
    }
}

fn whole(code: u16, bytes: Vec<u8>) -> hyper::Response<Chunks> {
    let kind = match bytes.first() {
        Some(b'{' | b'[') => "application/json",
        Some(b'<') => "text/xml",
        Some(_) | None => "text/plain",
    };
    response(code, kind, Chunks::whole(bytes))
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
        if let Some(included) = self.table {
            let one = [Arc::clone(object)];
            return table::table(self.resource, (&one, included), &json!({}), Timestamp::now());
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
