//! Routes and response headers.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response};

use super::bodies::BodySource;
use super::{PageSource, ServerState, request_form, webhook};
use crate::adapters::http::{
    RequestBody, ResponseBody, header_values, is_loopback_host, response, without_port,
};
use crate::controller::{LEASE_HOLDER_PREFIX, Status};
use crate::server::{ProbeResult, metrics, page};

const JSON: &str = "application/json; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Headers of every response: no type sniffing, no framing, no caching.
const HEADERS: [(&str, &str); 5] = [
    ("cache-control", "no-store"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

pub(super) async fn respond(
    state: Rc<ServerState>,
    request: Request<RequestBody>,
) -> Response<ResponseBody> {
    let mut answer = route(&state, request).await;
    let headers = answer.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    answer
}

async fn route(state: &ServerState, request: Request<RequestBody>) -> Response<ResponseBody> {
    // Protects against DNS rebinding: a foreign page may resolve its own name to this server.
    let host = header_values(request.headers(), &HOST);
    if !is_allowed_host(&host, state.is_loopback, &state.config.allowed_hosts) {
        return text(421, "unknown host name; --listen-name adds one\n");
    }
    if !state.config.routes.serves(request.uri().path()) {
        return text(404, "not found on this port; see --listen and --listen-metrics\n");
    }
    let status: Arc<Status> = Arc::clone(&state.config.status.borrow());
    if let (&Method::POST, "/requests", PageSource::Controller(Some(pending_requests))) =
        (request.method(), request.uri().path(), &state.config.source)
    {
        // A standby would lose the request.
        if !status.is_leader {
            return text(503, &leader_hint(state, status.lease_holder.as_deref()));
        }
        let (code, body) = request_form::submit(pending_requests, request).await;
        return text(code, &body);
    }
    if let (&Method::POST, "/webhook", Some(hook)) =
        (request.method(), request.uri().path(), &state.config.webhook)
    {
        let (code, body) = webhook::handle_webhook(hook, &state.recent_deliveries, request).await;
        return text(code, &body);
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return text(405, "only GET and HEAD are allowed\n");
    }
    match request.uri().path() {
        "/healthz" => {
            let since = jiff::SignedDuration::try_from(state.last_published.get().elapsed());
            let since = since.unwrap_or(jiff::SignedDuration::MAX);
            let now = status.now.checked_add(since).unwrap_or(jiff::Timestamp::MAX);
            health(&crate::server::liveness(&status, now))
        }
        "/readyz" => health(&crate::server::readiness(&status)),
        // Not shared: slow clients of large bodies must not make alerts see old values.
        "/metrics" => {
            response(200, metrics::CONTENT_TYPE, ResponseBody::full(metrics::metrics(&status)))
        }
        "/events" => match state.event_stream() {
            Some(events) => response(200, "text/event-stream", ResponseBody::Stream(events)),
            None => text(503, "too many open event streams; retry later\n"),
        },
        "/" => status_page(state, &status),
        "/plan.json" => match &status.plan {
            Some(current) => {
                let plan = Arc::downgrade(&current.plan);
                let source = BodySource { plan, ..BodySource::default() };
                let body = state.bodies.get("/plan.json", source, || current.plan.to_output_json());
                shared(JSON, body)
            }
            None => text(404, "no plan was made yet\n"),
        },
        // Browsers request it with every response that is not a page.
        "/favicon.ico" => response(204, TEXT, ResponseBody::full(String::new())),
        _ => text(404, "not found; try /, /plan.json, /metrics, /healthz, /readyz or /events\n"),
    }
}

/// Returns a hint to the replica that leads, with the command to reach it.
fn leader_hint(state: &ServerState, led_by: Option<&str>) -> String {
    let Some(leader) = led_by else {
        return "no replica is the leader now; retry in a minute\n".to_owned();
    };
    let Some(replica) = leader.strip_prefix(LEASE_HOLDER_PREFIX) else {
        return format!(
            "{leader} holds the lease, and no replica is the leader; retry once it is done\n"
        );
    };
    let port = state.port;
    match &state.config.namespace {
        Some(namespace) => format!(
            "{replica} is the leader; send the request there:\n\n  kubectl --namespace {namespace} port-forward pod/{replica} \
             {port}:{port}\n"
        ),
        None => format!("{replica} is the leader; send the request there\n"),
    }
}

fn status_page(state: &ServerState, status: &Arc<Status>) -> Response<ResponseBody> {
    let forecast = state.config.forecast.borrow().clone();
    let source = BodySource {
        status: Arc::downgrade(status),
        forecast: forecast.as_ref().map(Arc::downgrade).unwrap_or_default(),
        ..BodySource::default()
    };
    let page = page::StatusPage {
        status,
        forecast: forecast.as_deref(),
        kind: state.config.source.kind(),
    };
    let mut answer = shared(HTML, state.bodies.get("/", source, || page::page(&page)));
    if let Ok(policy) = HeaderValue::from_str(&page::policy()) {
        answer.headers_mut().insert(HeaderName::from_static("content-security-policy"), policy);
    }
    answer
}

/// Returns true if the host names this server. A foreign page can resolve its own domain to this
/// address, but it cannot use an IP address or a cluster-internal name.
fn is_allowed_host(host: &str, is_local: bool, names: &[String]) -> bool {
    let name = without_port(host);
    let of_cluster = || {
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let is_service = [".svc", ".svc.cluster.local"].iter().any(|end| name.ends_with(end));
        address.parse::<IpAddr>().is_ok() || is_service || !name.is_empty() && !name.contains('.')
    };
    is_loopback_host(name) || names.iter().any(|own| own == name) || !is_local && of_cluster()
}

/// Returns a response with a body that other responses share.
fn shared(content_type: &'static str, body: Option<Bytes>) -> Response<ResponseBody> {
    match body {
        Some(body) => response(200, content_type, ResponseBody::full(body)),
        None => text(503, "clients that read slowly hold too much memory; retry later\n"),
    }
}

fn health(health: &ProbeResult) -> Response<ResponseBody> {
    text(if health.is_ok { 200 } else { 503 }, &format!("{}\n", health.message))
}

fn text(code: u16, body: &str) -> Response<ResponseBody> {
    response(code, TEXT, ResponseBody::full(body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_and_cluster_host_names_are_allowed() {
        let names = ["fleet.example.com".to_owned()];
        for (host, here, in_cluster) in [
            ("localhost", true, true),
            ("localhost:8080", true, true),
            ("127.0.0.1:1", true, true),
            ("[::1]:8080", true, true),
            ("[::1]", true, true),
            ("10.0.3.17:8080", false, true),
            ("[fd00::17]:8080", false, true),
            ("fleetwright:8080", false, true),
            ("fleetwright.fleetwright.svc:8080", false, true),
            ("fleetwright.fleetwright.svc.cluster.local", false, true),
            ("fleet.example.com", true, true),
            ("evil.example:8080", false, false),
            ("localhost.evil.example", false, false),
            ("fleetwright.svc.evil.example", false, false),
            ("", false, false),
        ] {
            assert_eq!(is_allowed_host(host, true, &names), here, "{host}");
            assert_eq!(is_allowed_host(host, false, &names), in_cluster, "{host}");
        }
    }
}
