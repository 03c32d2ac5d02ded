//! A forecast as text: a line of how many nodes there are, and a table of phases.

use jiff::{SignedDuration, Timestamp};

use super::amount::{count, dollars, hourly, list, span};
use super::page::{Column, Page, Span, TextStyle, Tone, plain};
use crate::plan::forecast::{Event, Forecast, Phase};

/// Characters of the line.
const LINE_WIDTH: i64 = 60;
/// Heights of its characters; no node is a blank.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// What stands where nothing is known.
const UNKNOWN: char = '?';
/// Most phases of the table; all of them stand in the JSON.
const PHASES_SHOWN: usize = 40;
/// Most events below it.
const EVENTS_SHOWN: usize = 10;
/// Most reasons and types in one cell.
const LISTED: usize = 3;

const COLUMNS: [Column; 7] = [
    Column::left("from", 20),
    Column::right("for"),
    Column::right("pods"),
    Column::right("nodes"),
    Column::left("types", 28),
    Column::right("price"),
    Column::left("because", 60),
];

/// Returns the forecast as text.
#[must_use]
pub fn forecast_text(forecast: &Forecast, style: &TextStyle) -> String {
    let mut page = Page::new(style);
    let Forecast { cluster, from, to, lead_seconds, phases, total, .. } = forecast;
    let lead = SignedDuration::from_secs(*lead_seconds);
    page.items(
        0,
        vec![
            Span::new(&format!("Cluster {cluster}"), Tone::Strong),
            plain(format!("from {from} to {to} ({})", span(to.duration_since(*from)))),
            plain(format!("capacity is there {} before it is needed", span(lead))),
        ],
    );
    page.gap();
    let most = phases.iter().map(|phase| phase.nodes).max().unwrap_or(0);
    let least = phases.iter().map(|phase| phase.nodes).min().unwrap_or(0);
    page.text(format!("  nodes {}  {least} to {most}", line(forecast, most)));
    page.gap();
    let rows: Vec<Vec<Span>> = phases.iter().take(PHASES_SHOWN).map(cells).collect();
    page.table(&COLUMNS, &rows);
    if phases.len() > PHASES_SHOWN {
        let more = phases.len() - PHASES_SHOWN;
        page.text(format!("  and {more} phases more: --format json has all of them"));
    }
    standing(&mut page, forecast);
    page.gap();
    let phases = count(u32::try_from(phases.len()).unwrap_or(u32::MAX), "phase");
    let until = match forecast.phases.last().filter(|_| forecast.is_cut) {
        Some(end) => format!("until {}; what comes after is not known", end.to),
        None => "in all".to_owned(),
    };
    page.text(format!(
        "Forecast: {phases}, {least} to {most} nodes, {} {until}.",
        dollars(*total, 2)
    ));
    page.finish()
}

fn cells(phase: &Phase) -> Vec<Span> {
    let Phase { from, to, pods, unschedulable, nodes, types, hourly: price, because, .. } = phase;
    let types: Vec<String> = types.iter().map(|(name, n)| format!("{n} {name}")).collect();
    let mut because: Vec<String> =
        because.iter().map(|event| format!("{}: {}", event.object, event.what)).collect();
    if *unschedulable > 0 {
        because.push(format!("{unschedulable} pods have no place"));
    }
    vec![
        plain(from.to_string()),
        plain(span(to.duration_since(*from))),
        plain(pods.to_string()),
        plain(nodes.to_string()),
        plain(list(&types, LISTED)),
        plain(hourly(*price)),
        plain(list(&because, LISTED)),
    ]
}

/// Returns one character for each part of the span: the most nodes needed within it.
fn line(forecast: &Forecast, most: u32) -> String {
    let Forecast { from, to, phases, .. } = forecast;
    let length = to.duration_since(*from).as_secs().max(1);
    let at = |part: i64| -> Timestamp {
        let seconds = length.saturating_mul(part) / LINE_WIDTH;
        from.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(*to)
    };
    let part = |part: i64| {
        let (begin, end) = (at(part), at(part + 1));
        let mut within = phases.iter().filter(|p| p.from < end && p.to > begin).peekable();
        if within.peek().is_none() {
            return UNKNOWN;
        }
        height(within.map(|phase| phase.nodes).max().unwrap_or(0), most)
    };
    (0..LINE_WIDTH).map(part).collect()
}

fn height(nodes: u32, most: u32) -> char {
    if nodes == 0 || most == 0 {
        return ' ';
    }
    let steps = u64::try_from(HEIGHTS.len()).unwrap_or(1);
    let step = (u64::from(nodes) * steps).div_ceil(u64::from(most)).clamp(1, steps) - 1;
    usize::try_from(step).map_or('█', |step| HEIGHTS[step])
}

/// Writes what limits the forecast, and what the clock does beside it.
fn standing(page: &mut Page, forecast: &Forecast) {
    let Forecast { events, unresolved, is_cut, diagnostics, phases, .. } = forecast;
    let mut warn = |text: String| page.line([Span::new(&text, Tone::Warning)]);
    if *is_cut {
        let last = phases.last().map(|phase| phase.to.to_string()).unwrap_or_default();
        warn(format!(
            "There are too many moments: what comes after {last} is not looked at, and is not in \
             the total. Ask for a shorter span (--to)."
        ));
    }
    if !unresolved.is_empty() {
        warn(format!("Their size is not known, and comes on top: {}", list(unresolved, LISTED)));
    }
    for diagnostic in diagnostics {
        let place = diagnostic.origin.as_ref().map(|at| format!("{at}: ")).unwrap_or_default();
        warn(format!("{}: {place}{}", diagnostic.severity, diagnostic.message));
    }
    if events.is_empty() {
        return;
    }
    page.gap();
    page.title("Windows of disruption budgets and of applies:");
    for Event { at, object, origin: _, what } in events.iter().take(EVENTS_SHOWN) {
        page.text(format!("  {at}  {object}: {what}"));
    }
    if events.len() > EVENTS_SHOWN {
        page.text(format!("  and {} more", events.len() - EVENTS_SHOWN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MicroUsd;

    #[test]
    fn no_node_is_a_blank_and_the_most_is_full() {
        let drawn: String = [0, 1, 4, 5, 8].iter().map(|nodes| height(*nodes, 8)).collect();
        assert_eq!(drawn, " ▁▄▅█");
        assert_eq!(height(3, 0), ' ');
    }

    #[test]
    fn a_forecast_that_is_cut_says_until_when_it_counts() {
        let at = |text: &str| -> Timestamp { text.parse().expect("a time") };
        let (from, cut) = (at("2026-11-01T00:00:00Z"), at("2026-11-01T06:00:00Z"));
        let phase = Phase {
            from,
            to: cut,
            pods: 4,
            unschedulable: 0,
            nodes: 2,
            types: [].into(),
            cpu_milli: 4_000,
            memory_bytes: 0,
            hourly: MicroUsd(1_000_000),
            cost: MicroUsd(6_000_000),
            because: Vec::new(),
        };
        let mut forecast = Forecast {
            format_version: "1.0".to_owned(),
            cluster: "c".to_owned(),
            from,
            to: at("2026-11-02T00:00:00Z"),
            lead_seconds: 0,
            is_cut: true,
            phases: vec![phase],
            events: Vec::new(),
            total: MicroUsd(6_000_000),
            unresolved: Vec::new(),
            diagnostics: Vec::new(),
        };
        let text = forecast_text(&forecast, &TextStyle::default());
        let drawn = format!("nodes {}{}", "█".repeat(15), "?".repeat(45));
        assert!(text.contains(&drawn), "{text}");
        assert!(text.contains("what comes after 2026-11-01T06:00:00Z is not looked at"), "{text}");
        let end = "$6.00 until 2026-11-01T06:00:00Z; what comes after is not known.\n";
        assert!(text.ends_with(end), "{text}");
        (forecast.is_cut, forecast.to) = (false, cut);
        assert!(forecast_text(&forecast, &TextStyle::default()).ends_with("$6.00 in all.\n"));
    }
}
