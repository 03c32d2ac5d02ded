//! Terminal text: styled spans that form lines. This is the only way from text to a terminal.
//!
//! Every span is escaped, so that text of a repository, a cluster or a saved plan cannot move the
//! cursor, hide a line, change the reading direction or run a command of a CI system. Only this
//! module writes line ends and colors.

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
    /// Columns of a line.
    pub width: usize,
    /// Treatment of lines that are longer than `width`.
    pub breaks: LineBreaks,
    /// The amount of detail.
    pub verbosity: Verbosity,
    /// The columns of the table of nodes.
    pub columns: NodeColumns,
    /// True to list unchanged nodes.
    pub lists_unchanged: bool,
}

impl Default for TextStyle {
    fn default() -> Self {
        Self {
            color: false,
            width: DEFAULT_WIDTH,
            breaks: LineBreaks::default(),
            verbosity: Verbosity::Full,
            columns: NodeColumns::Usual,
            lists_unchanged: false,
        }
    }
}

/// The treatment of long lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LineBreaks {
    /// A sentence and a table row stay on one line each, for files, pipes and `grep`.
    #[default]
    Keep,
    /// Lines wrap at the width, for terminals.
    Wrap,
}

/// The columns of the table of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeColumns {
    /// Those that fit a terminal.
    #[default]
    Usual,
    /// Also node name, instance, vCPU and memory of the instance, and age.
    Wide,
}

/// The amount of detail of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verbosity {
    /// Everything, with each unchanged node and the notes that nearly every plan has.
    Everything,
    /// Changes with their details, and findings.
    #[default]
    Full,
    /// Header, table and errors.
    Concise,
    /// Header and errors.
    Summary,
}

impl Verbosity {
    /// Returns whether changes have their details.
    pub(super) fn has_details(self) -> bool {
        matches!(self, Self::Everything | Self::Full)
    }
}

/// Default width in columns.
pub const DEFAULT_WIDTH: usize = 120;

/// Characters kept per column of a shortened text. Combining marks take no column, so the width
/// alone would not bound the length.
const CHARS_PER_COLUMN: usize = 4;

/// Returns `text` with all characters escaped that a terminal or a CI system would act on.
///
/// These are control characters (including line ends and tabs), direction marks and overrides,
/// invisible and private characters, line and paragraph separators, and those of
/// [`escape_commands`].
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return escape_commands(text);
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
    Cow::Owned(escape_commands(&safe).into_owned())
}

/// Returns `text` without commands of CI systems. GitHub runs `##[command]` and Azure Pipelines
/// `##vso[command]` anywhere in a line of a log, and GitHub `::command::` at its beginning.
///
/// Every `#` that follows another one is escaped, and the first colon of such a beginning.
pub fn escape_commands(text: &str) -> Cow<'_, str> {
    let start = text.trim_start().strip_prefix("::").unwrap_or_default();
    let mut begins = start.starts_with(|c: char| c.is_ascii_alphabetic()) && start.contains("::");
    if !begins && text.bytes().filter(|byte| *byte == b'#').nth(1).is_none() {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    let mut follows = false;
    for c in text.chars() {
        if c == '#' && follows {
            safe.extend(c.escape_unicode());
        } else if c == ':' && begins {
            safe.extend(c.escape_unicode());
            begins = false;
        } else {
            safe.push(c);
        }
        // A reader may ignore marks without a width.
        follows = c == '#' || follows && c.width() == Some(0);
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

    /// Splits the text at spaces into lines of at most `width` columns. Only a longer word is
    /// split itself.
    fn wrapped(&self, width: usize) -> Vec<Self> {
        let line = |text: String| Self { text, tone: self.tone };
        let mut lines = vec![String::new()];
        for word in words(&self.text) {
            for part in pieces(word, width) {
                let used = lines.last().map_or(0, |line| line.width());
                if used > 0 && used + part.trim_end().width() > width {
                    lines.push(String::new());
                }
                if let Some(last) = lines.last_mut() {
                    last.push_str(part);
                }
            }
        }
        lines.into_iter().map(|text| line(text.trim_end().to_owned())).collect()
    }
}

/// Returns the words of a text, each with the spaces behind it.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}

/// Splits a word that is wider than `width` into parts of that width.
fn pieces(word: &str, width: usize) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), word);
    while rest.trim_end().width() > width.max(1) {
        let mut used = 0;
        let mut fits = |c: char| {
            used += c.width().unwrap_or(0);
            used <= width.max(2)
        };
        let end: usize = rest.chars().take_while(|c| fits(*c)).map(char::len_utf8).sum();
        let (part, after) = rest.split_at(end);
        parts.push(part);
        rest = after;
    }
    parts.push(rest);
    parts
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
    breaks: LineBreaks,
    out: String,
}

impl TextPage {
    pub(super) fn new(style: &TextStyle) -> Self {
        let TextStyle { color, width, breaks, verbosity: _, columns: _, lists_unchanged: _ } =
            *style;
        Self { color, width, breaks, out: String::new() }
    }

    /// Writes one line. On a terminal, a longer one continues below, further to the right.
    pub(super) fn line(&mut self, spans: impl IntoIterator<Item = StyledText>) {
        let spans: Vec<StyledText> = spans.into_iter().collect();
        let indent = spans.iter().flat_map(|span| span.text.chars());
        let indent = indent.take_while(|c| *c == ' ').count();
        self.hanging(indent + HANGING_INDENT, spans);
    }

    /// Writes one line whose continuation on a terminal starts at column `hang`.
    pub(super) fn hanging(&mut self, hang: usize, spans: Vec<StyledText>) {
        let total: usize = spans.iter().map(StyledText::width).sum();
        if self.breaks == LineBreaks::Keep || total <= self.width {
            return self.write(spans);
        }
        let hang = hang.min(self.width / 2);
        let (mut line, mut used, mut is_first) = (Vec::new(), 0, true);
        for StyledText { text, tone } in spans {
            for word in words(&text) {
                for part in pieces(word, self.width.saturating_sub(hang)) {
                    let start = if is_first { 0 } else { hang };
                    if used > start && used + part.trim_end().width() > self.width {
                        self.write(std::mem::take(&mut line));
                        line.push(plain(" ".repeat(hang)));
                        (used, is_first) = (hang, false);
                    }
                    used += part.width();
                    line.push(StyledText { text: part.to_owned(), tone });
                }
            }
        }
        self.write(line);
    }

    fn write(&mut self, spans: Vec<StyledText>) {
        let start = self.out.len();
        for StyledText { text, tone } in joined(spans) {
            let style = if self.color { tone.style() } else { Style::new() };
            // Writing to a string cannot fail.
            let _ = write!(self.out, "{style}{text}{style:#}");
        }
        let end = self.out.trim_end_matches(' ').len();
        self.out.truncate(end);
        // One span may end in `#`, and the next one begin with it.
        if self.out[start.min(end)..].contains("##") {
            let line = self.out.split_off(start.min(end));
            self.out.push_str(&escape_commands(&line));
        }
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

    /// Writes a table. On a terminal, cells wrap within their columns, so that every row fits the
    /// width. If the other columns leave too little, the last one goes below its row.
    pub(super) fn table(&mut self, columns: &[TableColumn], rows: &[Vec<StyledText>]) {
        let layout = self.layout(columns, rows);
        if columns.iter().any(|column| !column.title.is_empty()) {
            let titles = columns.iter().map(|column| StyledText::new(column.title, Tone::Faint));
            self.row(columns, &layout, &titles.collect::<Vec<_>>());
        }
        for row in rows {
            self.row(columns, &layout, row);
        }
    }

    fn layout(&self, columns: &[TableColumn], rows: &[Vec<StyledText>]) -> TableLayout {
        let mut widths = natural_widths(columns, rows);
        if self.breaks == LineBreaks::Keep {
            for (width, column) in widths.iter_mut().zip(columns) {
                *width = (*width).min(column.max_width);
            }
            return TableLayout { widths, last: LastColumn::OneLine };
        }
        let last_natural = widths.pop().unwrap_or(0);
        let before = |widths: &[usize]| INDENT + widths.iter().map(|w| w + GUTTER).sum::<usize>();
        let left = self.width.saturating_sub(before(&widths));
        let last = if last_natural <= left || left >= LAST_MIN {
            LastColumn::Beside
        } else {
            LastColumn::Below
        };
        while before(&widths).saturating_sub(GUTTER) > self.width {
            let widest = widths.iter().enumerate().max_by_key(|(_, width)| **width);
            match widest {
                Some((at, width)) if *width > CELL_MIN => widths[at] -= 1,
                _ => break,
            }
        }
        widths.push(match last {
            LastColumn::Beside => left,
            LastColumn::Below | LastColumn::OneLine => {
                self.width.saturating_sub(BELOW_INDENT).max(CELL_MIN)
            }
        });
        TableLayout { widths, last }
    }

    fn row(&mut self, columns: &[TableColumn], layout: &TableLayout, cells: &[StyledText]) {
        let TableLayout { widths, last } = layout;
        let end = columns.len().saturating_sub(1);
        let lines_of = |(index, cell): (usize, &StyledText)| match last {
            LastColumn::OneLine if index == end => vec![cell.clone()],
            LastColumn::OneLine => vec![cell.shortened(widths[index])],
            LastColumn::Beside | LastColumn::Below => {
                cell.shortened(widths[index].saturating_mul(CELL_LINES_MAX)).wrapped(widths[index])
            }
        };
        let mut cells: Vec<Vec<StyledText>> = cells.iter().enumerate().map(lines_of).collect();
        let below = match last {
            LastColumn::Below => cells.pop().unwrap_or_default(),
            LastColumn::Beside | LastColumn::OneLine => Vec::new(),
        };
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..height {
            let mut spans = vec![plain(" ".repeat(INDENT))];
            for (index, cell) in cells.iter().enumerate() {
                let cell = cell.get(line).cloned().unwrap_or_else(|| plain(""));
                if index == end {
                    spans.push(cell);
                    break;
                }
                let pad = plain(" ".repeat(widths[index].saturating_sub(cell.width())));
                let gutter = plain(" ".repeat(GUTTER));
                match columns[index].alignment {
                    Alignment::Left => spans.extend([cell, pad, gutter]),
                    Alignment::Right => spans.extend([pad, cell, gutter]),
                }
            }
            self.write(spans);
        }
        for text in below.into_iter().filter(|text| !text.text.is_empty()) {
            self.write(vec![plain(" ".repeat(BELOW_INDENT)), text]);
        }
    }

    /// Returns the text.
    pub(super) fn finish(self) -> String {
        self.out
    }
}

/// Joins neighbors of the same tone, so that a line has few color codes.
fn joined(spans: Vec<StyledText>) -> Vec<StyledText> {
    let mut line: Vec<StyledText> = Vec::with_capacity(spans.len());
    for span in spans {
        match line.last_mut() {
            Some(last) if last.tone == span.tone => last.text.push_str(&span.text),
            _ => line.push(span),
        }
    }
    line
}

/// Additional spaces before the continuation of a line.
const HANGING_INDENT: usize = 4;
/// Spaces before each row of a table.
const INDENT: usize = 2;
/// Spaces between columns.
const GUTTER: usize = 2;
/// Width that the last column needs to stand beside the others.
const LAST_MIN: usize = 32;
/// Spaces before the last column if it stands below its row.
const BELOW_INDENT: usize = 7;
/// Least width of a column that shrinks.
const CELL_MIN: usize = 8;
/// Most lines of a cell; names from outside may be longer.
const CELL_LINES_MAX: usize = 8;

/// The width of each column, and the place of the last one.
struct TableLayout {
    widths: Vec<usize>,
    last: LastColumn,
}

#[derive(Debug, Clone, Copy)]
enum LastColumn {
    /// Whole, however long it is.
    OneLine,
    /// In its column, wrapped.
    Beside,
    /// On lines of its own below the row.
    Below,
}

fn natural_widths(columns: &[TableColumn], rows: &[Vec<StyledText>]) -> Vec<usize> {
    let width_of = |(index, column): (usize, &TableColumn)| {
        let cells = rows.iter().filter_map(|row| row.get(index)).map(StyledText::width);
        cells.chain([column.title.width()]).max().unwrap_or(0)
    };
    columns.iter().enumerate().map(width_of).collect()
}

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
    /// Returns a left-aligned column. Its cells are shortened to `max_width` where lines do not
    /// wrap.
    pub(super) const fn left(title: &'static str, max_width: usize) -> Self {
        Self { title, alignment: Alignment::Left, max_width }
    }

    /// Returns a last column, whose cells are never shortened.
    pub(super) const fn last(title: &'static str) -> Self {
        Self::left(title, usize::MAX)
    }

    /// Returns a right-aligned column of numbers.
    pub(super) const fn right(title: &'static str) -> Self {
        Self { title, alignment: Alignment::Right, max_width: 24 }
    }
}

#[cfg(test)]
mod tests;
