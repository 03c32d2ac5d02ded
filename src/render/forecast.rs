//! A forecast as text: a line of how many nodes there are, and a table of phases.

use jiff::{SignedDuration, Timestamp};

use super::amount::{count, dollars, hourly, list, span};
use super::page::{Column, Page, Span, TextStyle, Tone, plain};
use crate::plan::forecast::{Event, Forecast, Phase};

/// Characters of the line.
const LINE_WIDTH: i64 = 60;
/// Heights of its characters; no node is a blank.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
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
    page.text(format!(
        "Forecast: {phases}, {least} to {most} nodes, {} in all.",
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
        let within = phases.iter().filter(|phase| phase.from < end && phase.to > begin);
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
        let last = phases.last().map(|phase| phase.from.to_string()).unwrap_or_default();
        warn(format!("There are too many moments: what comes after {last} is not looked at."));
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
    page.title("Windows of disruption budgets:");
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

    #[test]
    fn no_node_is_a_blank_and_the_most_is_full() {
        let drawn: String = [0, 1, 4, 5, 8].iter().map(|nodes| height(*nodes, 8)).collect();
        assert_eq!(drawn, " ▁▄▅█");
        assert_eq!(height(3, 0), ' ');
    }
}
