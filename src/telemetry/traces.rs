//! Exports traces to an OpenTelemetry collector, as OTLP over HTTP with JSON bodies.
//!
//! This module handles the wire format and the environment variables; callers create the spans. It
//! avoids the OpenTelemetry SDK, which adds about forty crates for one JSON request. Invariants:
//! traced code never waits for the collector. The queue is bounded, and excess spans are dropped
//! and counted. A failing collector is reported once.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Map, Value as Json, json};
use tracing::Subscriber;
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::json_lines::Fields;
use crate::model::printable_url::printable_url;

/// Maximum number of queued spans, and maximum number of spans per request.
const QUEUE_MAX: usize = 4_096;
const BATCH_MAX: usize = 512;
/// Interval between exports.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a request, and of the final flush.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// An OTLP collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Collector {
    url: String,
    headers: Vec<(String, String)>,
    service: String,
}

impl Collector {
    /// Reads the environment variables of OpenTelemetry. Returns `None` without a collector.
    pub(super) fn from_env(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return None;
        }
        let base = || {
            let base = set("OTEL_EXPORTER_OTLP_ENDPOINT")?;
            Some(format!("{}/v1/traces", base.trim_end_matches('/')))
        };
        let url = set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(base)?;
        let headers = set("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default();
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=')?;
            Some((name.trim().to_owned(), value.trim().to_owned()))
        };
        let headers = headers.split(',').filter_map(pair).collect();
        let service = set("OTEL_SERVICE_NAME").unwrap_or_else(|| "fleetwright".to_owned());
        Some(Self { url, headers, service })
    }

    fn send(&self, agent: &ureq::Agent, spans: &[Span]) -> Result<(), ureq::Error> {
        let mut request = agent.post(&self.url).header("content-type", "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request.send(body(&self.service, spans).to_string()).map(drop)
    }
}

/// A completed span.
#[derive(Debug, Clone)]
struct Span {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    name: &'static str,
    began: Timestamp,
    ended: Timestamp,
    fields: Map<String, Json>,
}

/// Returns the request body for spans.
fn body(service: &str, spans: &[Span]) -> Json {
    let text = |name: &str, value: &str| json!({ "key": name, "value": { "stringValue": value } });
    let attribute = |(name, value): (&String, &Json)| match value {
        Json::Bool(is) => json!({ "key": name, "value": { "boolValue": is } }),
        // OTLP encodes 64-bit integers as strings.
        Json::Number(n) => json!({ "key": name, "value": { "intValue": n.to_string() } }),
        Json::String(value) => text(name, value),
        Json::Null | Json::Array(_) | Json::Object(_) => text(name, &value.to_string()),
    };
    let span = |span: &Span| {
        json!({
            "traceId": format!("{:032x}", span.trace),
            "spanId": format!("{:016x}", span.id),
            "parentSpanId": span.parent.map(|id| format!("{id:016x}")).unwrap_or_default(),
            "name": span.name,
            "kind": 1,
            "startTimeUnixNano": span.began.as_nanosecond().to_string(),
            "endTimeUnixNano": span.ended.as_nanosecond().to_string(),
            "attributes": span.fields.iter().map(attribute).collect::<Vec<_>>(),
        })
    };
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            text("service.name", service),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ] },
        "scopeSpans": [{
            "scope": { "name": "fleetwright" },
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }] })
}

/// A tracing layer that queues completed spans.
pub(super) struct SpanExporter {
    ended: SyncSender<Span>,
    dropped: Arc<AtomicU64>,
    random: RandomState,
    id_count: AtomicU64,
}

/// Thread that exports queued spans. Dropping it flushes the queue.
#[derive(Debug)]
pub(super) struct ExporterThread {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ExporterThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl SpanExporter {
    /// Returns the layer, and the thread that exports to `collector`.
    pub(super) fn new(collector: Collector) -> std::io::Result<(Self, ExporterThread)> {
        let (ended, spans) = sync_channel(QUEUE_MAX);
        let (stop, stopped) = sync_channel(0);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        let thread = std::thread::Builder::new()
            .name("traces".to_owned())
            .spawn(move || export_spans(&collector, &spans, &stopped, &lost))?;
        let exporter = ExporterThread { stop: Some(stop), thread: Some(thread) };
        let (random, id_count) = (RandomState::new(), AtomicU64::new(1));
        Ok((Self { ended, dropped, random, id_count }, exporter))
    }

    /// Returns a random non-zero ID.
    fn random_id(&self) -> u64 {
        let mut hasher = self.random.build_hasher();
        hasher.write_u64(self.id_count.fetch_add(1, Ordering::Relaxed));
        hasher.finish().max(1)
    }
}

fn export_spans(
    collector: &Collector,
    spans: &Receiver<Span>,
    stopped: &Receiver<()>,
    dropped: &AtomicU64,
) {
    let config = ureq::Agent::config_builder().timeout_global(Some(EXPORT_TIMEOUT)).build();
    let agent = ureq::Agent::new_with_config(config);
    let mut failing = false;
    let mut is_stopping = false;
    while !is_stopping {
        is_stopping = stopped.recv_timeout(FLUSH_INTERVAL) != Err(RecvTimeoutError::Timeout);
        let until = Instant::now() + EXPORT_TIMEOUT;
        loop {
            let batch: Vec<Span> = spans.try_iter().take(BATCH_MAX).collect();
            if batch.is_empty() || (is_stopping && Instant::now() >= until) {
                break;
            }
            let sent = collector.send(&agent, &batch);
            let lost = dropped.swap(0, Ordering::Relaxed);
            if let (Err(error), false) = (&sent, failing) {
                let url = printable_url(&collector.url);
                // The message would have the whole URL.
                let reason = if matches!(error, ureq::Error::BadUri(_)) {
                    "the URL is malformed".to_owned()
                } else {
                    error.to_string()
                };
                tracing::warn!(reason, url, "traces cannot be sent; they are lost");
            }
            if lost > 0 {
                tracing::warn!(lost, "spans were dropped: the collector is too slow for them");
            }
            failing = sent.is_err();
        }
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for SpanExporter {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(found) = context.span(id) else { return };
        let parent = found.parent();
        let parent = parent
            .as_ref()
            .and_then(|parent| parent.extensions().get::<Span>().map(|span| (span.trace, span.id)));
        let (trace, parent) = match parent {
            Some((trace, parent)) => (trace, Some(parent)),
            None => ((u128::from(self.random_id()) << 64) | u128::from(self.random_id()), None),
        };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let (began, name, id) = (Timestamp::now(), found.name(), self.random_id());
        let span = Span { trace, id, parent, name, began, ended: began, fields: fields.0 };
        found.extensions_mut().insert(span);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(found) = context.span(id) else { return };
        let mut fields = Fields::default();
        values.record(&mut fields);
        if let Some(span) = found.extensions_mut().get_mut::<Span>() {
            span.fields.extend(fields.0);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(mut span) =
            context.span(&id).and_then(|span| span.extensions_mut().remove::<Span>())
        else {
            return;
        };
        span.ended = Timestamp::now();
        if self.ended.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collector_is_read_from_opentelemetry_variables() {
        let read = |all: &[(&str, &str)]| {
            let all = all.to_vec();
            Collector::from_env(move |name| {
                all.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let url = |all: &[(&str, &str)]| read(all).map(|collector| collector.url);
        assert_eq!(url(&[]), None);
        assert_eq!(url(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), None);
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318/");
        assert_eq!(url(&[base]).as_deref(), Some("http://otel:4318/v1/traces"));
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces/in");
        assert_eq!(url(&[base, own]).as_deref(), Some("http://traces/in"));
        assert_eq!(url(&[base, ("OTEL_SDK_DISABLED", "TRUE")]), None);
        let more = [
            base,
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic a=, x = y"),
            ("OTEL_SERVICE_NAME", "fleet"),
        ];
        let collector = read(&more).expect("a collector");
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(collector.headers, [pair("authorization", "Basic a="), pair("x", "y")]);
        assert_eq!(collector.service, "fleet");
    }

    #[test]
    fn span_is_written_as_otlp_json() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let fields = [("event", json!("world")), ("effects", json!(2)), ("leads", json!(true))];
        let fields = fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        let (began, ended) = (at(1), at(2));
        let span = Span { trace: 1, id: 2, parent: Some(3), name: "step", began, ended, fields };
        let all = body("fleet", &[span]);
        let resource = &all["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "fleet");
        let span = &resource["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "00000000000000000000000000000001");
        assert_eq!(
            (&span["spanId"], &span["parentSpanId"]),
            (&"0000000000000002".into(), &"0000000000000003".into())
        );
        assert_eq!(span["startTimeUnixNano"], "1000000000");
        assert_eq!(
            span["attributes"][1],
            json!({ "key": "event", "value": { "stringValue": "world" } })
        );
        assert_eq!(
            span["attributes"][0],
            json!({ "key": "effects", "value": { "intValue": "2" } })
        );
        assert_eq!(
            span["attributes"][2],
            json!({ "key": "leads", "value": { "boolValue": true } })
        );
    }
}
