//! The tables of events, conditions and blocked changes, which come from the source.

use fleetwright::controller::resources::ConditionReason;
use fleetwright::model::event_reason::EventReason;

use super::read;
use super::tables::{Tables, hold, table};

const PAGE: &str = "docs/src/reference/events.md";
const BLOCKED: &str = "src/controller/status/blocked.rs";

/// Returns the reasons of blocked changes: `/// meaning`, then the variant at the same indentation.
fn blocked_rows(source: &str) -> Vec<[String; 2]> {
    let body = source.split_once("pub enum BlockedReason {\n").expect("the reasons").1;
    let body = body.split_once("\n}\n").expect("their end").0;
    let mut lines = body.lines();
    let mut rows = Vec::new();
    while let Some(line) = lines.next() {
        let Some(meaning) = line.strip_prefix("    /// ") else { continue };
        let variant = lines.next().expect("a variant").trim_end_matches([' ', '{', ',']).trim();
        let mut kebab = String::new();
        for letter in variant.chars() {
            if letter.is_uppercase() && !kebab.is_empty() {
                kebab.push('-');
            }
            kebab.extend(letter.to_lowercase());
        }
        rows.push([format!("`{kebab}`"), meaning.to_owned()]);
    }
    assert!(rows.len() > 15, "{rows:?}");
    rows
}

#[test]
fn event_reference_comes_from_the_source() {
    let events = EventReason::ALL.iter().map(|reason| {
        let name = format!("`{reason}`");
        [
            reason.object().to_owned(),
            name,
            reason.event_type().to_owned(),
            reason.meaning().to_owned(),
        ]
    });
    let conditions = ConditionReason::ALL.iter().map(|reason| {
        let (ready, name) = (format!("`{}`", reason.ready()), format!("`{}`", reason.as_str()));
        [reason.objects().to_owned(), ready, name, reason.meaning().to_owned()]
    });
    let tables = [
        ("events", table(["object", "reason", "type", "meaning"], &events.collect::<Vec<_>>())),
        (
            "conditions",
            table(["object", "`Ready`", "reason", "meaning"], &conditions.collect::<Vec<_>>()),
        ),
        ("blocked changes", table(["reason", "meaning"], &blocked_rows(&read(BLOCKED)))),
    ];
    let tables: Tables = tables.into_iter().map(|(name, rows)| (name.to_owned(), rows)).collect();
    hold(PAGE, &tables);
}
