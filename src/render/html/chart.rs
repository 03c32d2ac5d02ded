//! A step chart of a price over time, with marks of commits.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::super::amount::hourly;
use super::escape::text;
use crate::model::units::MicroUsd;

/// Units of the line: its drawing is stretched to the width of the page.
const WIDTH: i64 = 1_000;
const HEIGHT: i64 = 100;
/// Room above the highest price.
const ABOVE: i64 = 12;
/// Smallest distance between two labels, in thousandths of the width.
const LABEL_DISTANCE: i64 = 170;

/// A mark on the time axis, such as the commit of an apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChartMark {
    /// Time.
    pub at: Timestamp,
    /// Label; outside text is not escaped yet.
    pub label: String,
}

/// Renders a price over time, up to `until`. Empty with fewer than two points.
pub fn step_chart(
    title: &str,
    points: &[(Timestamp, MicroUsd)],
    marks: &[ChartMark],
    until: Timestamp,
) -> String {
    let (Some((from, _)), true) = (points.first(), points.len() > 1) else { return String::new() };
    let most = points.iter().map(|(_, price)| price.0).max().unwrap_or(0).max(1);
    let whole = i128::from(until.duration_since(*from).as_secs().max(1));
    let x = |at: Timestamp| {
        let part = i128::from(at.duration_since(*from).as_secs());
        i64::try_from(part * i128::from(WIDTH) / whole).unwrap_or(WIDTH).clamp(0, WIDTH)
    };
    let y = |price: MicroUsd| {
        let part = i128::from(price.0.max(0)) * i128::from(HEIGHT - ABOVE) / i128::from(most);
        HEIGHT - i64::try_from(part).unwrap_or(0)
    };
    let mut line = String::new();
    for (index, (at, price)) in points.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = if index == 0 {
            write!(line, "M{} {}", x(*at), y(*price))
        } else {
            write!(line, "H{}V{}", x(*at), y(*price))
        };
    }
    let _ = write!(line, "H{WIDTH}");
    let last = points.last().map_or(MicroUsd::ZERO, |(_, price)| *price);
    let says = format!("{title}: at most {}, at the end {}", hourly(MicroUsd(most)), hourly(last));
    let drawn_marks = draw_marks(marks.iter().filter(|m| m.at >= *from).map(|m| (x(m.at), m)));
    let time = |at: Timestamp| at.strftime("%m-%d %H:%M UTC");
    format!(
        "<figure class=\"steps\"><svg class=\"steps\" role=\"img\"><title>{}</title>\
         <svg class=\"plot\" width=\"100%\" height=\"100%\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\">\
         <path class=\"grid\" d=\"M0 {top}H{WIDTH}M0 {half}H{WIDTH}\"/><path class=\"area\" d=\"{line}V{HEIGHT}H0Z\"/>\
         <path class=\"line\" d=\"{line}\"/></svg>{drawn_marks}<text x=\"4\" y=\"11%\">{}</text></svg>\n\
         <figcaption class=\"dim axis\"><span>{}</span><span>from $0 to {}</span><span>{}</span></figcaption></figure>\n",
        text(&says, 200),
        hourly(MicroUsd(most)),
        time(*from),
        hourly(MicroUsd(most)),
        time(until),
        top = ABOVE,
        half = ABOVE + (HEIGHT - ABOVE) / 2,
    )
}

/// Draws marks at thousandths of the width. Labels that would overlap are left to the tooltip.
fn draw_marks<'a>(marks: impl Iterator<Item = (i64, &'a ChartMark)>) -> String {
    let mut marks: Vec<(i64, &ChartMark)> = marks.collect();
    marks.sort_by_key(|(x, mark)| (*x, mark.at));
    let mut html = String::new();
    let mut last = -LABEL_DISTANCE;
    for (x, mark) in marks {
        let at = format!("{}.{}%", x / 10, x % 10);
        let label = text(&mark.label, 80);
        let _ = write!(
            html,
            "<g class=\"mark\"><title>{label}</title><line x1=\"{at}\" x2=\"{at}\" y1=\"12%\" y2=\"100%\"/>"
        );
        if x - last >= LABEL_DISTANCE && (60..=940).contains(&x) {
            last = x;
            let short = text(mark.label.split(' ').next().unwrap_or_default(), 12);
            let _ = write!(html, "<text x=\"{at}\" y=\"97%\" dx=\"4\">{short}</text>");
        }
        html.push_str("</g>");
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(minute * 60).expect("a time")
    }

    #[test]
    fn chart_marks_commits_at_their_time() {
        let points = [(at(0), MicroUsd(1_000_000)), (at(50), MicroUsd(2_000_000))];
        let mark = |minute, label: &str| ChartMark { at: at(minute), label: label.to_owned() };
        let marks = [mark(50, "abc <b>"), mark(51, "def")];
        let chart = step_chart("price", &points, &marks, at(100));
        assert!(chart.contains("x1=\"50.0%\"") && chart.contains("x1=\"51.0%\""), "{chart}");
        assert!(chart.contains("<title>abc &lt;b&gt;</title>"), "{chart}");
        assert!(chart.contains(">abc</text>") && !chart.contains(">def</text>"), "{chart}");
        assert!(step_chart("price", &points[..1], &marks, at(100)).is_empty());
    }
}
