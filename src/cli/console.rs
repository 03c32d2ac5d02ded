//! The terminal: output, messages, and questions.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use anstyle::{AnsiColor, Style};
use clap::builder::StyledStr;
use jiff::Timestamp;

use super::error::CliError;
use crate::render::{DEFAULT_WIDTH, LineBreaks, TextStyle, Verbosity};

/// Minimum width of tables; narrower terminals wrap lines.
const WIDTH_MIN: usize = 60;

/// Most bytes of an answer that are read.
const ANSWER_MAX: u64 = 1024;

/// Streams and clock of a command: stdout, stderr, stdin and the time.
pub struct Console {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    input: Box<dyn BufRead>,
    colors: Colors,
    width: usize,
    breaks: StreamBreaks,
    /// The amount of detail of a full view.
    full: Verbosity,
    /// True if an operator can answer questions.
    interactive: bool,
    real: bool,
    now: Option<Timestamp>,
    /// True if the reader of stdout has closed it.
    closed: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Colors {
    out: bool,
    err: bool,
}

/// Whether lines wrap, by stream.
#[derive(Debug, Clone, Copy, Default)]
struct StreamBreaks {
    out: LineBreaks,
    err: LineBreaks,
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console").field("interactive", &self.interactive).finish_non_exhaustive()
    }
}

impl Console {
    /// Returns the console of the process.
    ///
    /// Color follows `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE`, and whether the stream is a
    /// terminal.
    pub fn from_process() -> Self {
        let (out, err) = (io::stdout(), io::stderr());
        let colors = |choice| choice != anstream::ColorChoice::Never;
        let breaks = |is_terminal| if is_terminal { LineBreaks::Wrap } else { LineBreaks::Keep };
        let width = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        Self {
            colors: Colors {
                out: colors(anstream::AutoStream::choice(&out)),
                err: colors(anstream::AutoStream::choice(&err)),
            },
            width: width.unwrap_or(DEFAULT_WIDTH).max(WIDTH_MIN),
            breaks: StreamBreaks { out: breaks(out.is_terminal()), err: breaks(err.is_terminal()) },
            full: Verbosity::Full,
            interactive: io::stdin().is_terminal() && err.is_terminal(),
            out: Box::new(out),
            err: Box::new(err),
            input: Box::new(io::stdin().lock()),
            real: true,
            now: None,
            closed: false,
        }
    }

    /// Returns a console over other streams, without color, at a fixed time.
    pub fn from_streams(
        out: Box<dyn Write>,
        err: Box<dyn Write>,
        input: Option<Box<dyn BufRead>>,
        now: Timestamp,
    ) -> Self {
        Self {
            interactive: input.is_some(),
            input: input.unwrap_or_else(|| Box::new(io::empty())),
            out,
            err,
            colors: Colors::default(),
            width: DEFAULT_WIDTH,
            breaks: StreamBreaks::default(),
            full: Verbosity::Full,
            real: false,
            now: Some(now),
            closed: false,
        }
    }

    pub(super) fn disable_color(&mut self) {
        self.colors = Colors::default();
    }

    /// Shows everything in results, as `-v` does.
    pub(super) fn show_everything(&mut self) {
        self.full = Verbosity::Everything;
    }

    pub(super) fn is_real(&self) -> bool {
        self.real
    }

    /// Returns whether stdin and stderr are a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        self.interactive
    }

    pub(super) fn colors_messages(&self) -> bool {
        self.colors.err
    }

    /// Returns the current time in whole seconds.
    pub(super) fn now(&self) -> Timestamp {
        let now = self.now.unwrap_or_else(Timestamp::now);
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }

    /// Returns the text style of stdout.
    pub(super) fn style(&self, verbosity: Verbosity) -> TextStyle {
        let verbosity = match verbosity {
            Verbosity::Full => self.full,
            Verbosity::Everything | Verbosity::Concise | Verbosity::Summary => verbosity,
        };
        let (color, breaks) = (self.colors.out, self.breaks.out);
        let lists_unchanged = self.full == Verbosity::Everything;
        let (width, columns) = (self.width, TextStyle::default().columns);
        TextStyle { color, width, breaks, verbosity, columns, lists_unchanged }
    }

    /// Returns the text style of stderr.
    pub(super) fn message_style(&self) -> TextStyle {
        let (color, breaks) = (self.colors.err, self.breaks.err);
        TextStyle { color, width: self.width, breaks, ..TextStyle::default() }
    }

    /// Writes a result to stdout.
    ///
    /// A closed reader (`| head`) is not an error: the command still finishes its work.
    pub(super) fn print(&mut self, text: &str) -> Result<(), CliError> {
        if self.closed {
            return Ok(());
        }
        match self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            Err(error) => Err(CliError::new(error).context("cannot write to stdout".to_owned())),
        }
    }

    pub(super) fn print_styled(&mut self, text: &StyledStr) -> Result<(), CliError> {
        let text = if self.colors.out { text.ansi().to_string() } else { text.to_string() };
        self.print(&text)
    }

    /// Writes a message to stderr; a failure is ignored.
    pub(super) fn report(&mut self, text: &str) {
        self.report_raw(&format!("{}\n", crate::render::escape(text)));
    }

    pub(super) fn report_styled(&mut self, text: &StyledStr) {
        let text = if self.colors.err { text.ansi().to_string() } else { text.to_string() };
        self.report_raw(&text);
    }

    /// Writes escaped text to stderr.
    pub(super) fn report_raw(&mut self, text: &str) {
        let _ = self.err.write_all(text.as_bytes()).and_then(|()| self.err.flush());
    }

    pub(super) fn error_label(&self) -> String {
        let red = AnsiColor::Red.on_default().bold();
        let style = if self.colors.err { red } else { Style::new() };
        format!("{style}error:{style:#}")
    }

    /// Reads stdin, up to `limit` bytes and one more.
    pub(super) fn read_input(&mut self, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.input.by_ref().take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Asks a question. Returns `None` without a terminal.
    pub(super) fn ask(&mut self, question: &str) -> Option<String> {
        if !self.interactive {
            return None;
        }
        self.report_raw(&format!("{question} "));
        let mut answer = String::new();
        let read = self.input.by_ref().take(ANSWER_MAX).read_line(&mut answer);
        Some(read.map_or_else(|_| String::new(), |_| answer.trim().to_owned()))
    }
}
