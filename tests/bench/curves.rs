//! Curves by size of the fleet: their exponents, and a picture with logarithmic axes.

use std::fmt::Write as _;

/// Most nodes of the sizes that an exponent is fitted to. Larger plans are not simulated.
pub(crate) const FITTED_NODES: f64 = 10_000.0;

/// Size of a panel, and of the area of its curves.
const PANEL: f64 = 410.0;
const WIDTH: f64 = 330.0;
const HEIGHT: f64 = 220.0;
/// Left and lower end of that area in a panel.
const LEFT: f64 = 60.0;
const BASE: f64 = 324.0;

/// Beginning of the picture. Its background is its own: a page may be dark in a light browser.
const HEAD: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 376" role="img">
<title>Time and memory of plans by nodes, on logarithmic axes</title>
<style>
.page{fill:#fff}text{fill:#333;font-family:sans-serif;font-size:12px}.grid{stroke:#ddd}
path,.swatch{fill:none;stroke-width:2}.c0{stroke:#0072b2}.c1{stroke:#b34a00}.c2{stroke:#00795a}
.c1{stroke-dasharray:7 3}.c2{stroke-dasharray:2 3}
@media (prefers-color-scheme:dark){.page{fill:#1b1f24}text{fill:#ddd}.grid{stroke:#444}
.c0{stroke:#56b4e9}.c1{stroke:#f0a050}.c2{stroke:#3fc79a}}
</style>
<rect class="page" width="830" height="376"/>
"#;

/// A value for each number of nodes.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    /// Nodes and value, in ascending order of nodes. Values are positive.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Curve {
    /// Returns the exponent of the power of nodes that the values grow with: the slope of the line
    /// with the least squares through their logarithms.
    pub(crate) fn exponent(&self) -> f64 {
        let fitted = self.points.iter().filter(|(nodes, _)| *nodes <= FITTED_NODES);
        let logs: Vec<(f64, f64)> = fitted.map(|(nodes, value)| (nodes.ln(), value.ln())).collect();
        let count: f64 = logs.iter().map(|_| 1.0).sum();
        let mean_x = logs.iter().map(|(x, _)| x).sum::<f64>() / count;
        let mean_y = logs.iter().map(|(_, y)| y).sum::<f64>() / count;
        let products: f64 = logs.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
        let squares: f64 = logs.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
        products / squares
    }
}

/// Curves that share their axes.
#[derive(Debug)]
pub(crate) struct Panel<'c> {
    pub(crate) title: &'static str,
    pub(crate) curves: &'c [Curve],
}

/// A logarithmic axis: the lowest and the highest value, where the lowest is, and the length.
#[derive(Debug)]
struct LogAxis {
    low: f64,
    high: f64,
    start: f64,
    length: f64,
}

impl LogAxis {
    fn position(&self, value: f64) -> f64 {
        self.start + self.length * (value / self.low).ln() / (self.high / self.low).ln()
    }
}

/// Returns the picture of two panels.
pub(crate) fn svg(panels: &[Panel<'_>; 2]) -> String {
    let mut out = HEAD.to_owned();
    for (panel, left) in panels.iter().zip([LEFT, LEFT + PANEL]) {
        write_panel(&mut out, panel, left);
    }
    out.push_str("</svg>\n");
    out
}

fn write_panel(out: &mut String, panel: &Panel<'_>, left: f64) {
    let points = || panel.curves.iter().flat_map(|curve| &curve.points);
    let (low, high) = range(points().map(|(_, value)| *value));
    let ticks = ticks(low, high);
    let (low, high) = range(ticks.iter().copied());
    let y_axis = LogAxis { low, high, start: BASE, length: -HEIGHT };
    let (low, high) = range(points().map(|(nodes, _)| *nodes));
    let x_axis = LogAxis { low, high, start: left, length: WIDTH };
    let right = left + WIDTH;
    let _ =
        writeln!(out, r#"<text x="{left:.1}" y="24" font-weight="bold">{}</text>"#, panel.title);
    for tick in ticks {
        let (y, label) = (y_axis.position(tick), label(tick));
        let line = format!(r#"x1="{left:.1}" x2="{right:.1}" y1="{y:.1}" y2="{y:.1}""#);
        let _ = writeln!(out, r#"<line class="grid" {line}/>"#);
        let (x, y) = (left - 8.0, y + 4.0);
        let _ = writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="end">{label}</text>"#);
    }
    let first = panel.curves.first();
    let sizes = first.map(|curve| curve.points.as_slice()).unwrap_or_default();
    for (nodes, _) in sizes {
        let (x, label) = (x_axis.position(*nodes), label(*nodes));
        let (top, y) = (BASE - HEIGHT, BASE + 18.0);
        let line = format!(r#"x1="{x:.1}" x2="{x:.1}" y1="{top:.1}" y2="{BASE:.1}""#);
        let _ = writeln!(out, r#"<line class="grid" {line}/>"#);
        let _ = writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="middle">{label}</text>"#);
    }
    let (x, y) = (left + WIDTH / 2.0, BASE + 38.0);
    let axis = "nodes, with 20 pods each";
    let _ = writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="middle">{axis}</text>"#);
    let mut y = 44.0;
    for (curve, class) in panel.curves.iter().zip(["c0", "c1", "c2"]) {
        let mut path = String::new();
        for (nodes, value) in &curve.points {
            let mark = if path.is_empty() { 'M' } else { 'L' };
            let (x, y) = (x_axis.position(*nodes), y_axis.position(*value));
            let _ = write!(path, "{mark}{x:.1} {y:.1}");
        }
        let _ = writeln!(out, r#"<path class="{class}" d="{path}"/>"#);
        let (end, x) = (left + 30.0, left + 38.0);
        let line = format!(r#"x1="{left:.1}" x2="{end:.1}" y1="{y:.1}" y2="{y:.1}""#);
        let _ = writeln!(out, r#"<line class="swatch {class}" {line}/>"#);
        let (name, exponent) = (curve.name, curve.exponent());
        let text = format!("{name}: nodes to the power {exponent:.2}");
        let _ = writeln!(out, r#"<text x="{x:.1}" y="{:.1}">{text}</text>"#, y + 4.0);
        y += 18.0;
    }
}

/// Returns the lowest and the highest value.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, 0.0), |(low, high), value| (value.min(low), value.max(high)))
}

/// Returns the powers of ten, and twice and five times them, that surround the values.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let mut all = Vec::new();
    let mut power = 10_f64.powf(low.log10().floor());
    while power < high * 10.0 {
        all.extend([power, 2.0 * power, 5.0 * power]);
        power *= 10.0;
    }
    let first = all.iter().rposition(|tick| *tick <= low).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= high).unwrap_or(first);
    all.get(first..=last).unwrap_or_default().to_vec()
}

/// Returns a number without trailing zeros, and with a comma after the thousands.
fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    match text.len().checked_sub(3) {
        Some(thousands) if value >= 1_000.0 => {
            format!("{},{}", &text[..thousands], &text[thousands..])
        }
        Some(_) | None => text.to_owned(),
    }
}
