//! HTTP/1.1 requests, responses and watches.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use jiff::Timestamp;
use serde_json::{Value as Json, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::kube_api::{ApiResponse, KubeApi, WatchRequest};
use super::request::ApiRequest;
use super::status_error::StatusError;
use super::store::{ChangeKind, StoreWrite};
use super::{autoscaling_v1, table};
use crate::adapters::http::{
    self, ConnectionLimits, RequestBody, ResponseBody, decode_path, header_values, parse_form,
    response,
};

/// Maximum size of a request body.
const BODY_MAX: usize = 4 << 20;

/// Buffered events of a slow client.
const EVENTS_WAITING: usize = 64;

/// Maximum duration of a watch. Clients then start another.
const WATCH_MAX: Duration = Duration::from_mins(30);

/// Bookmark interval of an idle watch.
const BOOKMARK_EVERY: Duration = Duration::from_secs(30);

pub(super) trait RequestHandler {
    /// Handles a request.
    fn answer(&self, request: &ApiRequest) -> ApiResponse;
    /// Returns the API with watchable objects, if there is one.
    fn api(&self) -> Option<&RefCell<KubeApi>>;
}

/// Serves connections until the future is dropped. It must run in a `LocalSet`.
pub(super) async fn serve(listener: TcpListener, service: Rc<dyn RequestHandler>) {
    let limits = ConnectionLimits::LOCAL;
    http::serve(listener, limits, move |request| respond(Rc::clone(&service), request)).await;
}

async fn respond(
    service: Rc<dyn RequestHandler>,
    request: hyper::Request<RequestBody>,
) -> hyper::Response<ResponseBody> {
    let read = match check_origin(request.headers()) {
        Ok(()) => read(request).await,
        Err(error) => Err(error),
    };
    let answer = match read {
        Ok(request) => service.answer(&request),
        Err(error) => ApiResponse::json(error.code, &error.to_status()),
    };
    match answer {
        ApiResponse::Whole(code, bytes) => full_response(code, bytes),
        ApiResponse::Watch(watch) => {
            let (sender, events) = mpsc::channel(EVENTS_WAITING);
            tokio::task::spawn_local(stream_events(service, *watch, sender));
            response(200, "application/json", ResponseBody::Stream(events))
        }
    }
}

/// Refuses requests of web pages. A page of another site may send requests to a local port, and may
/// let its own host name point to it.
fn check_origin(headers: &HeaderMap) -> Result<(), StatusError> {
    let host = header_values(headers, &HOST);
    let origin = header_values(headers, &ORIGIN);
    let from = origin.strip_prefix("http://").unwrap_or(&origin);
    for (name, header) in [(host.as_str(), "Host"), (from, "Origin")] {
        if !name.is_empty() && !http::is_loopback_host(name) {
            return Err(StatusError::forbidden(format!(
                "the header {header} names another host than this computer"
            )));
        }
    }
    Ok(())
}

fn full_response(code: u16, bytes: Vec<u8>) -> hyper::Response<ResponseBody> {
    let kind = match bytes.first() {
        Some(b'{' | b'[') => "application/json",
        Some(b'<') => "text/xml",
        Some(_) | None => "text/plain",
    };
    response(code, kind, ResponseBody::full(bytes))
}

async fn read(request: hyper::Request<RequestBody>) -> Result<ApiRequest, StatusError> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, BODY_MAX).collect().await;
    let body = body
        .map_err(|error| StatusError::bad_request(format!("the body cannot be read: {error}")))?;
    let media = header_values(&head.headers, &CONTENT_TYPE);
    let media = media.split(';').next().unwrap_or_default().trim().to_owned();
    Ok(ApiRequest {
        method: head.method.as_str().to_owned(),
        path: decode_path(head.uri.path()),
        query: parse_form(head.uri.query().unwrap_or_default()),
        media,
        accept: header_values(&head.headers, &ACCEPT),
        target: header_values(&head.headers, &HeaderName::from_static("x-amz-target")),
        body: body.to_bytes().to_vec(),
        at: Timestamp::now(),
    })
}

/// Streams changes of watched objects to a client, until it disconnects or the time is up.
async fn stream_events(
    service: Rc<dyn RequestHandler>,
    mut watch: WatchRequest,
    sender: mpsc::Sender<Bytes>,
) {
    let Some(api) = service.api() else { return };
    let mut changes = api.borrow().store.subscribe();
    let lasts = watch.seconds.map_or(WATCH_MAX, Duration::from_secs).min(WATCH_MAX);
    let until = Instant::now() + lasts;
    let mut lines: Vec<Bytes> = Vec::new();
    for object in std::mem::take(&mut watch.initial) {
        lines.push(line("ADDED", &watch.to_representation(&object)));
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
        let Some(change) = watch.pending_events(&api.borrow()) else {
            let status = StatusError::expired("the resource version").to_status();
            // A disconnected client needs no event.
            let _ = sender.send(line("ERROR", &status)).await;
            return;
        };
        lines = change;
        if !lines.is_empty() {
            continue;
        }
        let wake = (Instant::now() + BOOKMARK_EVERY).min(until);
        tokio::select! {
            change = changes.changed() => if change.is_err() { return },
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

impl WatchRequest {
    /// Returns the events since the last call, or `None` if some are no longer in the history.
    pub(super) fn pending_events(&mut self, api: &KubeApi) -> Option<Vec<Bytes>> {
        let writes = api.store.writes_since(self.seen)?;
        let lines = writes.filter_map(|write| self.event(write)).collect();
        self.seen = api.store.version();
        Some(lines)
    }

    /// Converts a write to an event, relative to the selection of the client.
    fn event(&self, write: &StoreWrite) -> Option<Bytes> {
        let here = write.key.kind == self.resource.kind
            && self.namespace.as_ref().is_none_or(|namespace| **namespace == *write.key.namespace);
        if !here {
            return None;
        }
        let was = write.before.as_ref().is_some_and(|before| self.selection.matches(before));
        let is = write.change != ChangeKind::Deleted && self.selection.matches(&write.object);
        let kind = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(line(kind, &self.to_representation(&write.object)))
    }

    fn to_representation(&self, object: &Arc<Json>) -> Json {
        if let Some(included) = self.table {
            let one = [Arc::clone(object)];
            return table::table(self.resource, &one, included, &json!({}), Timestamp::now());
        }
        autoscaling_v1::in_version_of(self.resource, object)
    }

    /// Returns a bookmark with the current version of the client.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_pages_of_other_sites_are_refused() {
        let check = |headers: &[(HeaderName, &str)]| {
            let pair = |(name, value): &(HeaderName, &str)| {
                (name.clone(), value.parse().expect("a value"))
            };
            check_origin(&headers.iter().map(pair).collect()).map_err(|error| error.code)
        };
        let own = [(HOST, "127.0.0.1:8001")];
        assert_eq!(check(&own), Ok(()), "kubectl sends no origin");
        assert_eq!(check(&[(HOST, "localhost:8001"), (ORIGIN, "http://localhost:8080")]), Ok(()));
        for attack in [
            [(HOST, "evil.example:8001"), (ORIGIN, "http://evil.example:8001")],
            [(HOST, "127.0.0.1:8001"), (ORIGIN, "https://evil.example")],
            [(HOST, "127.0.0.1:8001"), (ORIGIN, "null")],
            [(HOST, "localhost.evil.example"), (ORIGIN, "http://127.0.0.1:8001")],
        ] {
            assert_eq!(check(&attack), Err(403), "{attack:?}");
        }
    }
}
