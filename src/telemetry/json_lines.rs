//! Logs as JSON, one object per line: `time`, `level`, `event`, `message`, then the fields of the
//! entry.

use std::fmt;

use jiff::Timestamp;
use serde_json::{Map, Value as Json};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

use crate::render::escape;

/// Default event name.
const EVENT: &str = "log";

/// Formatter that writes each log entry as a JSON object.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let (name, message) = (fields.take("event"), fields.take("message").unwrap_or_default());
        let name = name.unwrap_or_else(|| EVENT.to_owned());
        let target = event.metadata().target();
        fields.0.entry("target").or_insert_with(|| target.into());
        writeln!(writer, "{}", json_line(Timestamp::now(), &level, &name, &message, fields.0))
    }
}

/// Returns an entry as one line of JSON. Terminal control characters are escaped.
pub(crate) fn json_line(
    time: Timestamp,
    level: &str,
    event: &str,
    message: &str,
    fields: Map<String, Json>,
) -> String {
    let mut all = Map::new();
    all.insert("time".to_owned(), format!("{time:.3}").into());
    all.insert("level".to_owned(), level.into());
    all.insert("event".to_owned(), event.into());
    all.insert("message".to_owned(), escape(message).into());
    for (name, value) in fields {
        let value = value.as_str().map(|text| escape(text).into()).unwrap_or(value);
        all.entry(name).or_insert(value);
    }
    Json::Object(all).to_string()
}

/// Fields of a log entry or span.
#[derive(Debug, Default)]
pub(super) struct Fields(pub(super) Map<String, Json>);

impl Fields {
    fn take(&mut self, name: &str) -> Option<String> {
        let value = self.0.remove(name)?;
        Some(value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned))
    }

    fn put(&mut self, field: &Field, value: impl Into<Json>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_fields_come_first_and_cannot_be_overridden() {
        let time = "2026-11-22T02:00:00.1234Z".parse().expect("a time");
        let fields = [("plan", "sha256:ab\u{202e}"), ("time", "never")];
        let fields = fields.map(|(name, value)| (name.to_owned(), Json::from(value)));
        let text =
            json_line(time, "info", "plan", "1 to add\n\u{1b}[2J", fields.into_iter().collect());
        let read: Json = serde_json::from_str(&text).expect("an object");
        assert_eq!(read["time"], "2026-11-22T02:00:00.123Z");
        assert_eq!((&read["level"], &read["event"]), (&"info".into(), &"plan".into()));
        assert_eq!(read["plan"], "sha256:ab\\u{202e}");
        assert_eq!(read["message"], "1 to add\\n\\u{1b}[2J");
        assert!(!text.contains('\n'), "{text}");
    }
}
