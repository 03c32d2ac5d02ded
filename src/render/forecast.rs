//! Text of a forecast: a chart line of node counts, and a table of phases.

use jiff::{SignedDuration, Timestamp};

use super::amount::{count, dollars, hourly, list, long_span, span};
use super::text_page::{StyledText, TableColumn, TextPage, TextStyle, Tone, plain};
use crate::plan::forecast::{Forecast, ForecastEvent, Phase};

/// Characters of the chart line.
const LINE_WIDTH: i64 = 60;
/// Characters by height; zero nodes is a space.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The character of times without a forecast.
const UNKNOWN: char = '?';
/// Most phases in the table; the JSON has all of them.
const PHASES_SHOWN: usize = 40;
/// Longest repeated run of phases that is folded.
const PERIOD_MAX: usize = 6;
/// Fewest occurrences of a run that are folded.
const REPEATS_MIN: usize = 3;
/// Most events below the table.
const EVENTS_SHOWN: usize = 10;
/// Most reasons and types in one cell.
const LISTED_MAX: usize = 3;

const COLUMNS: [TableColumn; 7] = [
    TableColumn::left("from", 20),
    TableColumn::right("for"),
    TableColumn::right("pods"),
    TableColumn::right("nodes"),
    TableColumn::left("types", 28),
    TableColumn::right("price"),
    TableColumn::last("why"),
];

/// Returns the forecast as text.
pub fn forecast_text(forecast: &Forecast, style: &TextStyle) -> String {
    let mut page = TextPage::new(style);
    let Forecast { cluster, from, to, lead_seconds, phases, total, .. } = forecast;
    let lead = SignedDuration::from_secs(*lead_seconds);
    page.items(
        0,
        vec![
            StyledText::new(&format!("Cluster {cluster}"), Tone::Strong),
            plain(format!("from {from} to {to} ({})", span(to.duration_since(*from)))),
            plain(format!("nodes are launched {} before they are needed", span(lead))),
        ],
    );
    page.gap();
    let most = phases.iter().map(|phase| phase.nodes).max().unwrap_or(0);
    let least = phases.iter().map(|phase| phase.nodes).min().unwrap_or(0);
    let range = if least == most { most.to_string() } else { format!("{least} to {most}") };
    page.text(format!("  nodes {}  {range}", line(forecast, most)));
    page.gap();
    let (rows, covered) = folded_rows(phases);
    page.table(&COLUMNS, &rows);
    if phases.len() > covered {
        let more = phases.len() - covered;
        page.text(format!("  and {more} more phases: --format json has all of them"));
    }
    write_limitations(&mut page, forecast);
    page.gap();
    let phases = count(u32::try_from(phases.len()).unwrap_or(u32::MAX), "phase");
    let noun = if range == "1" { "node" } else { "nodes" };
    let until = match forecast.phases.last().filter(|_| forecast.is_cut) {
        Some(end) => format!("until {}; later phases are not known", end.to),
        None => "in total".to_owned(),
    };
    page.text(format!("Forecast: {phases}, {range} {noun}, {} {until}.", dollars(*total, 2)));
    page.finish()
}

/// Returns the rows of the table, with repeated runs of phases folded, and the number of phases
/// that they cover.
fn folded_rows(phases: &[Phase]) -> (Vec<Vec<StyledText>>, usize) {
    let mut rows = Vec::new();
    let mut at = 0;
    while at < phases.len() && rows.len() < PHASES_SHOWN {
        let rest = &phases[at..];
        let run = (1..=PERIOD_MAX).find_map(|period| {
            let times = repetitions(rest, period);
            (times >= REPEATS_MIN).then_some((period, times))
        });
        let Some((period, times)) = run else {
            rows.push(cells(&rest[0]));
            at += 1;
            continue;
        };
        rows.extend(rest[..period].iter().map(cells));
        let end = rest[period * times - 1].to;
        let which = if period == 1 { "row".to_owned() } else { format!("{period} rows") };
        let mut fold = vec![plain("…")];
        fold.extend((2..COLUMNS.len()).map(|_| plain("")));
        let again = count(u32::try_from(times - 1).unwrap_or(u32::MAX), "time");
        let verb = if period == 1 { "repeats" } else { "repeat" };
        fold.push(plain(format!("the {which} above {verb} {again}, until {end}")));
        rows.push(fold);
        at += period * times;
    }
    (rows, at)
}

/// Returns how often the first `period` phases occur in a row.
fn repetitions(phases: &[Phase], period: usize) -> usize {
    let Some(first) = phases.get(..period) else { return 0 };
    let is_same = |run: &&[Phase]| {
        run.len() == period && run.iter().zip(first).all(|(a, b)| is_repetition(a, b))
    };
    phases.chunks(period).take_while(is_same).count()
}

/// Returns the words of a text that are no times, because times differ between repetitions.
fn without_times(text: &str) -> String {
    let words = text.split(' ').filter(|word| word.parse::<Timestamp>().is_err());
    words.collect::<Vec<_>>().join(" ")
}

/// Returns whether two phases differ only in their time.
fn is_repetition(a: &Phase, b: &Phase) -> bool {
    let length = |phase: &Phase| phase.to.duration_since(phase.from);
    let because = |phase: &Phase| -> Vec<String> {
        let text = |event: &ForecastEvent| format!("{}: {}", event.object, event.what);
        phase.because.iter().map(|event| without_times(&text(event))).collect()
    };
    length(a) == length(b)
        && (a.pods, a.unschedulable, a.nodes, a.hourly)
            == (b.pods, b.unschedulable, b.nodes, b.hourly)
        && a.types == b.types
        && because(a) == because(b)
}

fn cells(phase: &Phase) -> Vec<StyledText> {
    let Phase { from, to, pods, unschedulable, nodes, types, hourly: price, because, .. } = phase;
    let types: Vec<String> = types.iter().map(|(name, n)| format!("{n} {name}")).collect();
    let mut because: Vec<String> =
        because.iter().map(|event| format!("{}: {}", event.object, event.what)).collect();
    match unschedulable {
        0 => {}
        1 => because.push("1 pod is unschedulable".to_owned()),
        n => because.push(format!("{n} pods are unschedulable")),
    }
    vec![
        plain(from.to_string()),
        plain(long_span(to.duration_since(*from))),
        plain(pods.to_string()),
        plain(nodes.to_string()),
        plain(list(&types, LISTED_MAX)),
        plain(hourly(*price)),
        plain(list(&because, LISTED_MAX)),
    ]
}

/// Returns one character for each part of the span, for the maximum of needed nodes.
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

/// Writes the limits of the forecast, and scheduled windows.
fn write_limitations(page: &mut TextPage, forecast: &Forecast) {
    let Forecast { events, unresolved, is_cut, diagnostics, phases, .. } = forecast;
    let mut warn = |text: String| page.line([StyledText::new(&text, Tone::Warning)]);
    if *is_cut {
        let last = phases.last().map(|phase| phase.to.to_string()).unwrap_or_default();
        warn(format!(
            "There are too many changes: the forecast ends at {last}, and the total excludes later costs. Request a shorter span (--to)."
        ));
    }
    if !unresolved.is_empty() {
        warn(format!(
            "Not in the total, because the size is not known: {}",
            list(unresolved, LISTED_MAX)
        ));
    }
    for diagnostic in diagnostics {
        let place = diagnostic.origin.as_ref().map(|at| format!("{at}: ")).unwrap_or_default();
        warn(format!("{}: {place}{}", diagnostic.severity, diagnostic.message));
    }
    if events.is_empty() {
        return;
    }
    page.gap();
    page.title("Windows of disruption budgets, and windows for applies:");
    for ForecastEvent { at, object, origin: _, what } in events.iter().take(EVENTS_SHOWN) {
        page.text(format!("  {at}  {object}: {what}"));
    }
    if events.len() > EVENTS_SHOWN {
        page.text(format!("  and {} more", events.len() - EVENTS_SHOWN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::MicroUsd;

    #[test]
    fn chart_height_scales_from_blank_to_full() {
        let drawn: String = [0, 1, 4, 5, 8].iter().map(|nodes| height(*nodes, 8)).collect();
        assert_eq!(drawn, " ▁▄▅█");
        assert_eq!(height(3, 0), ' ');
    }

    #[test]
    fn repeated_phases_are_folded() {
        let start: Timestamp = "2026-11-01T00:00:00Z".parse().expect("a time");
        let hour =
            |n: i64| start.checked_add(SignedDuration::from_hours(n)).expect("a time in range");
        let phase = |n: i64| Phase {
            from: hour(n),
            to: hour(n + 1),
            pods: if n % 2 == 0 { 4 } else { 9 },
            unschedulable: 0,
            nodes: 2,
            types: [].into(),
            cpu_milli: 4_000,
            memory_bytes: 0,
            hourly: MicroUsd(1_000_000),
            cost: MicroUsd(1_000_000),
            because: vec![ForecastEvent {
                at: hour(n),
                object: "ScaledObject a/b".to_owned(),
                origin: crate::model::ids::Origin::new("a.yaml", 1),
                what: format!("pods are wanted from {}", hour(n)),
            }],
        };
        let mut phases: Vec<Phase> = (0..50).map(phase).collect();
        let (rows, covered) = folded_rows(&phases);
        assert_eq!((rows.len(), covered), (3, 50), "two rows and the number of repetitions");
        phases[2].pods = 1;
        assert_eq!(folded_rows(&phases[..5]).0.len(), 5, "nothing repeats three times");
    }

    #[test]
    fn cut_forecast_shows_its_end() {
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
        assert!(text.contains("the forecast ends at 2026-11-01T06:00:00Z"), "{text}");
        let end = "$6.00 until 2026-11-01T06:00:00Z; later phases are not known.\n";
        assert!(text.ends_with(end), "{text}");
        (forecast.is_cut, forecast.to) = (false, cut);
        assert!(forecast_text(&forecast, &TextStyle::default()).ends_with("$6.00 in total.\n"));
    }
}
