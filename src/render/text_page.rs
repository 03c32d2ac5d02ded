//! Terminal text: styled spans that form lines. This is the only way from text to a terminal.
//!
//! Every span is escaped, so that text of a repository, a cluster or a saved plan cannot move the
//! cursor, hide a line or change the reading direction. Only this module writes line ends and
//! colors.

use std::borrow::Cow;
use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::plan::canonical::is_terminal_control;

/// The style of a text view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextStyle {
    /// True to write ANSI colors.
    pub color: bool,
    /// Columns of the terminal. Tables shorten their last column to fit; sentences are not cut.
    pub width: usize,
    /// The amount of detail.
    pub verbosity: Verbosity,
}

impl Default for TextStyle {
    fn default() -> Self {
        Self { color: false, width: DEFAULT_WIDTH, verbosity: Verbosity::Full }
    }
}

/// The amount of detail of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verbosity {
    /// Everything.
    #[default]
    Full,
    /// Header and table.
    Concise,
    /// Header only.
    Summary,
}

/// Default width in columns.
pub const DEFAULT_WIDTH: usize = 120;

/// Characters kept per column of a shortened text. Combining marks take no column, so the width
/// alone would not bound the length.
const CHARS_PER_COLUMN: usize = 4;

/// Returns `text` with all characters escaped that a terminal would act on.
///
/// These are control characters (including line ends and tabs), direction marks and overrides,
/// invisible and private characters, and line and paragraph separators.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_unsafe(c) {
            // `\n`, `\t`, `\r` and `\u{…}`; quotes are not unsafe and do not occur here.
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

fn is_unsafe(c: char) -> bool {
    c.is_control()
        || is_terminal_control(c)
        || matches!(c,
            '\u{ad}' | '\u{115f}' | '\u{1160}' | '\u{180e}'
            | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}' | '\u{e0000}'..='\u{10ffff}')
}

/// Returns `text` cut to `width` columns, with `…` for the missing part.
pub(super) fn shorten(text: &str, width: usize) -> Cow<'_, str> {
    let many = text.chars().nth(width.saturating_mul(CHARS_PER_COLUMN)).is_some();
    if !many && text.width() <= width {
        return Cow::Borrowed(text);
    }
    let room = width.saturating_sub(1);
    let (mut cut, mut used) = (String::new(), 0);
    for c in text.chars().take(width.saturating_mul(CHARS_PER_COLUMN)) {
        used += c.width().unwrap_or(0);
        if used > room {
            break;
        }
        cut.push(c);
    }
    cut.push('…');
    Cow::Owned(cut)
}

/// The meaning of a span, which determines its color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Strong,
    Faint,
    Create,
    Delete,
    Change,
    Replace,
    Warning,
}

impl Tone {
    fn style(self) -> Style {
        let color = |color: AnsiColor| Style::new().fg_color(Some(color.into()));
        match self {
            Self::Plain => Style::new(),
            Self::Strong => Style::new().bold(),
            Self::Faint => Style::new().dimmed(),
            Self::Create => color(AnsiColor::Green),
            Self::Delete => color(AnsiColor::Red),
            Self::Change => color(AnsiColor::Yellow),
            Self::Replace => color(AnsiColor::Magenta),
            Self::Warning => color(AnsiColor::Yellow).bold(),
        }
    }
}

/// Most columns of a span: more than any readable name or sentence has.
const SPAN_MAX: usize = 2_000;

/// A part of a line: escaped text and its tone.
#[derive(Debug, Clone)]
pub(super) struct StyledText {
    text: String,
    tone: Tone,
}

impl StyledText {
    pub(super) fn new(text: &str, tone: Tone) -> Self {
        Self { text: escape(&shorten(text, SPAN_MAX)).into_owned(), tone }
    }

    /// Returns the width in columns.
    pub(super) fn width(&self) -> usize {
        self.text.width()
    }

    fn shortened(&self, width: usize) -> Self {
        Self { text: shorten(&self.text, width).into_owned(), tone: self.tone }
    }
}

/// Returns a span in the plain tone.
pub(super) fn plain(text: impl AsRef<str>) -> StyledText {
    StyledText::new(text.as_ref(), Tone::Plain)
}

/// A page of text lines.
#[derive(Debug)]
pub(super) struct TextPage {
    color: bool,
    width: usize,
    out: String,
}

impl TextPage {
    pub(super) fn new(style: &TextStyle) -> Self {
        Self { color: style.color, width: style.width, out: String::new() }
    }

    /// Writes one line.
    pub(super) fn line(&mut self, spans: impl IntoIterator<Item = StyledText>) {
        for StyledText { text, tone } in spans {
            let style = if self.color { tone.style() } else { Style::new() };
            // Writing to a string cannot fail.
            let _ = write!(self.out, "{style}{text}{style:#}");
        }
        let end = self.out.trim_end_matches(' ').len();
        self.out.truncate(end);
        self.out.push('\n');
    }

    /// Writes one line of plain text.
    pub(super) fn text(&mut self, text: impl AsRef<str>) {
        self.line([plain(text)]);
    }

    /// Writes an empty line, unless one is there or nothing is above.
    pub(super) fn gap(&mut self) {
        if !self.out.is_empty() && !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
    }

    /// Writes a bold line with an empty line above it.
    pub(super) fn title(&mut self, text: impl AsRef<str>) {
        self.gap();
        self.line([StyledText::new(text.as_ref(), Tone::Strong)]);
    }

    /// Writes items separated by three spaces, wrapped to the width.
    pub(super) fn items(&mut self, indent: usize, items: Vec<StyledText>) {
        let start = || plain(" ".repeat(indent));
        let (mut line, mut used) = (vec![start()], indent);
        for item in items {
            let between = if line.len() > 1 { 3 } else { 0 };
            if between > 0 && used + between + item.width() > self.width {
                self.line(std::mem::replace(&mut line, vec![start()]));
                used = indent;
            } else if between > 0 {
                line.push(plain("   "));
                used += between;
            }
            used += item.width();
            line.push(item);
        }
        self.line(line);
    }

    /// Writes a table. The last column takes the remaining width, at least `LAST_MIN`.
    pub(super) fn table(&mut self, columns: &[TableColumn], rows: &[Vec<StyledText>]) {
        let widths = widths(columns, rows);
        let before: usize = widths.iter().rev().skip(1).map(|width| width + GUTTER).sum();
        let last = self.width.saturating_sub(INDENT + before).max(LAST_MIN);
        if columns.iter().any(|column| !column.title.is_empty()) {
            let titles = columns.iter().map(|column| StyledText::new(column.title, Tone::Faint));
            self.row(columns, &widths, last, &titles.collect::<Vec<_>>());
        }
        for row in rows {
            self.row(columns, &widths, last, row);
        }
    }

    fn row(
        &mut self,
        columns: &[TableColumn],
        widths: &[usize],
        last: usize,
        cells: &[StyledText],
    ) {
        let mut spans = vec![plain(" ".repeat(INDENT))];
        for (index, cell) in cells.iter().enumerate() {
            if index + 1 == columns.len() {
                let whole = columns[index].max_width == UNBOUNDED;
                spans.push(if whole { cell.clone() } else { cell.shortened(last) });
                break;
            }
            let cell = cell.shortened(widths[index]);
            let pad = plain(" ".repeat(widths[index] - cell.width().min(widths[index])));
            let gutter = plain(" ".repeat(GUTTER));
            match columns[index].alignment {
                Alignment::Left => spans.extend([cell, pad, gutter]),
                Alignment::Right => spans.extend([pad, cell, gutter]),
            }
        }
        self.line(spans);
    }

    /// Returns the text.
    pub(super) fn finish(self) -> String {
        self.out
    }
}

/// Spaces before each row of a table.
const INDENT: usize = 2;
/// Spaces between columns.
const GUTTER: usize = 2;
/// Minimum width of the last column.
const LAST_MIN: usize = 24;

fn widths(columns: &[TableColumn], rows: &[Vec<StyledText>]) -> Vec<usize> {
    let width_of = |(index, column): (usize, &TableColumn)| {
        let cells = rows.iter().filter_map(|row| row.get(index)).map(StyledText::width);
        cells.chain([column.title.width()]).max().unwrap_or(0).min(column.max_width)
    };
    columns.iter().enumerate().map(width_of).collect()
}

/// The width of a last column that is never shortened.
const UNBOUNDED: usize = usize::MAX;

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableColumn {
    title: &'static str,
    alignment: Alignment,
    max_width: usize,
}

#[derive(Debug, Clone, Copy)]
enum Alignment {
    Left,
    Right,
}

impl TableColumn {
    /// Returns a left-aligned column of at most `max_width` columns.
    pub(super) const fn left(title: &'static str, max_width: usize) -> Self {
        Self { title, alignment: Alignment::Left, max_width }
    }

    /// Returns a last column that is never shortened, even if its lines wrap.
    pub(super) const fn whole(title: &'static str) -> Self {
        Self { title, alignment: Alignment::Left, max_width: UNBOUNDED }
    }

    /// Returns a right-aligned column of numbers.
    pub(super) const fn right(title: &'static str) -> Self {
        Self { title, alignment: Alignment::Right, max_width: 24 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_controls_are_escaped() {
        for (hostile, shown) in [
            ("plain-name_1.x/y", "plain-name_1.x/y"),
            ("größe 大 🦀", "größe 大 🦀"),
            ("a\nPlan: 0 to add", "a\\nPlan: 0 to add"),
            ("\u{1b}[2J\u{1b}]0;x\u{7}", "\\u{1b}[2J\\u{1b}]0;x\\u{7}"),
            ("a\rb\tc", "a\\rb\\tc"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("abc\u{202e}cba", "abc\\u{202e}cba"),
            ("\u{2066}x\u{2069}\u{200f}\u{61c}", "\\u{2066}x\\u{2069}\\u{200f}\\u{61c}"),
            ("a\u{200b}b\u{feff}\u{ad}", "a\\u{200b}b\\u{feff}\\u{ad}"),
            ("\u{2028}\u{2029}", "\\u{2028}\\u{2029}"),
            ("\u{e0041}\u{e000}", "\\u{e0041}\\u{e000}"),
        ] {
            assert_eq!(escape(hostile), shown, "{hostile:?}");
        }
    }

    #[test]
    fn text_is_shortened_by_columns() {
        assert_eq!(shorten("abcdef", 6), "abcdef");
        assert_eq!(shorten("abcdefg", 6), "abcde…");
        assert_eq!(shorten("大大大大", 6), "大大…");
        assert_eq!(shorten("éééé", 4), "éééé");
        let piled = format!("a{}", "\u{301}".repeat(100_000));
        assert!(shorten(&piled, 10).len() < 100, "marks without width are cut too");
    }

    #[test]
    fn color_is_optional_and_keeps_the_text() {
        let render = |color| {
            let mut page = TextPage::new(&TextStyle { color, ..TextStyle::default() });
            page.line([plain("a "), StyledText::new("b", Tone::Create), plain("  ")]);
            page.finish()
        };
        assert_eq!(render(false), "a b\n");
        assert_eq!(anstream::adapter::strip_str(&render(true)).to_string().trim_end(), "a b");
        assert!(render(true).contains("\u{1b}[32m"));
    }

    #[test]
    fn table_shortens_its_last_column() {
        let mut page = TextPage::new(&TextStyle { width: 40, ..TextStyle::default() });
        let columns =
            [TableColumn::left("name", 8), TableColumn::right("n"), TableColumn::left("why", 0)];
        let row = |name: &str, n: &str, why: &str| vec![plain(name), plain(n), plain(why)];
        page.table(
            &columns,
            &[
                row("a-very-long-name", "7", "because of the reason"),
                row("b", "12", &"x".repeat(99)),
            ],
        );
        assert_eq!(
            page.finish(),
            "  name       n  why\n  a-very-…   7  because of the reason\n  b         12  xxxxxxxxxxxxxxxxxxxxxxx…\n"
        );
    }

    #[test]
    fn items_wrap_only_between_items() {
        let mut page = TextPage::new(&TextStyle { width: 20, ..TextStyle::default() });
        page.items(2, ["aaaaaaa", "bbbbbbb", "ccccccc"].map(plain).to_vec());
        assert_eq!(page.finish(), "  aaaaaaa   bbbbbbb\n  ccccccc\n");
    }
}
