//! The terminal: where results and messages go, and who may be asked.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use anstyle::{AnsiColor, Style};
use clap::builder::StyledStr;
use jiff::Timestamp;

use super::error::CliError;
use crate::render::{DEFAULT_WIDTH, TextStyle, Verbosity};

/// Narrowest terminal that tables are fitted to; on a narrower one, lines wrap.
const WIDTH_MIN: usize = 60;

/// Longest answer to a question that is read.
const ANSWER_MAX: u64 = 1024;

/// What a command reads and writes beside files: stdout, stderr, stdin, and the clock.
pub struct Console {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    input: Box<dyn BufRead>,
    colors: Colors,
    width: usize,
    /// Whether somebody is there to answer.
    interactive: bool,
    real: bool,
    now: Option<Timestamp>,
    /// Whether whoever read stdout has gone.
    closed: bool,
}

/// Which streams take colours.
#[derive(Debug, Clone, Copy, Default)]
struct Colors {
    out: bool,
    err: bool,
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console").field("interactive", &self.interactive).finish_non_exhaustive()
    }
}

impl Console {
    /// Returns the console of the process.
    ///
    /// Colour follows `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE`, and whether it is a terminal.
    #[must_use]
    pub fn real() -> Self {
        let (out, err) = (io::stdout(), io::stderr());
        let colors = |choice| choice != anstream::ColorChoice::Never;
        let width = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        Self {
            colors: Colors {
                out: colors(anstream::AutoStream::choice(&out)),
                err: colors(anstream::AutoStream::choice(&err)),
            },
            width: width.unwrap_or(DEFAULT_WIDTH).max(WIDTH_MIN),
            interactive: io::stdin().is_terminal() && err.is_terminal(),
            out: Box::new(out),
            err: Box::new(err),
            input: Box::new(io::stdin().lock()),
            real: true,
            now: None,
            closed: false,
        }
    }

    /// Returns a console over other streams, without colour, at a fixed moment.
    #[must_use]
    pub fn over(
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
            real: false,
            now: Some(now),
            closed: false,
        }
    }

    pub(super) fn without_color(&mut self) {
        self.colors = Colors::default();
    }

    pub(super) fn is_real(&self) -> bool {
        self.real
    }

    /// Returns whether messages go to a terminal with somebody in front of it.
    pub(super) fn is_terminal(&self) -> bool {
        self.interactive
    }

    pub(super) fn colors_messages(&self) -> bool {
        self.colors.err
    }

    /// Returns the current moment, in whole seconds.
    pub(super) fn now(&self) -> Timestamp {
        let now = self.now.unwrap_or_else(Timestamp::now);
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }

    /// Returns how a view is written to stdout.
    pub(super) fn style(&self, verbosity: Verbosity) -> TextStyle {
        TextStyle { color: self.colors.out, width: self.width, verbosity }
    }

    /// Returns how a view is written to stderr.
    pub(super) fn message_style(&self) -> TextStyle {
        TextStyle { color: self.colors.err, width: self.width, verbosity: Verbosity::Full }
    }

    /// Writes a result to stdout.
    ///
    /// A reader that has gone (`| head`) is no error: what is left to do is done all the same.
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

    /// Writes a message to stderr; nobody can be told when that fails.
    pub(super) fn say(&mut self, text: &str) {
        self.say_raw(&format!("{}\n", crate::render::escape(text)));
    }

    pub(super) fn say_styled(&mut self, text: &StyledStr) {
        let text = if self.colors.err { text.ansi().to_string() } else { text.to_string() };
        self.say_raw(&text);
    }

    /// Writes text to stderr that is escaped already.
    pub(super) fn say_raw(&mut self, text: &str) {
        let _ = self.err.write_all(text.as_bytes()).and_then(|()| self.err.flush());
    }

    pub(super) fn error_label(&self) -> String {
        let red = AnsiColor::Red.on_default().bold();
        let style = if self.colors.err { red } else { Style::new() };
        format!("{style}error:{style:#}")
    }

    /// Reads everything that stdin holds, at most `limit` bytes and one more.
    pub(super) fn read_input(&mut self, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.input.by_ref().take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Asks a question; `None` where nobody is there to answer.
    pub(super) fn ask(&mut self, question: &str) -> Option<String> {
        if !self.interactive {
            return None;
        }
        self.say_raw(&format!("{question} "));
        let mut answer = String::new();
        let read = self.input.by_ref().take(ANSWER_MAX).read_line(&mut answer);
        Some(read.map_or_else(|_| String::new(), |_| answer.trim().to_owned()))
    }
}
