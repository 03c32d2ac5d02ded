//! `top`: a live view of the nodes, their requests and their planned changes.
//!
//! A thread observes and plans, and this thread owns the terminal, so keys work at any time.

mod screen;
mod view;

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Instant;

use jiff::Timestamp;

use super::error::CliError;
use super::settings::TopSettings;
use super::{Console, Exit};
use crate::render::{TextStyle, TopFrame, TopSort, TopView, Verbosity, escape, top};
use screen::{Key, Screen};
use view::TopSource;

/// Failure of the thread that observes.
const OBSERVER_ENDED: &str = "the observing thread ended unexpectedly; start `top` again";

/// Columns and lines of a terminal that does not report its size.
const SIZE_DEFAULT: Size = Size { columns: 80, lines: 24 };

pub(super) fn run(settings: &TopSettings, console: &mut Console) -> Result<Exit, CliError> {
    // The first frame is made here, so that its error is an ordinary one.
    let mut view = TopSource::new(settings.clone()).observe_first(console)?;
    view.sort(settings.sort);
    let is_live = !settings.once
        && console.is_real()
        && console.is_terminal()
        && std::io::stdout().is_terminal();
    if !is_live {
        let frame = top(&view, &console.style(Verbosity::Full));
        console.print(&frame.to_text())?;
        return Ok(Exit::Done);
    }
    let (sender, receiver) = channel();
    let settings = settings.clone();
    let (order, interval) = (settings.sort, settings.interval);
    thread::spawn(move || {
        let mut source = TopSource::new(settings);
        loop {
            thread::sleep(interval);
            if !send(&mut source, &sender) {
                return;
            }
        }
    });
    let style = console.style(Verbosity::Full);
    let mut live = LiveView { view, order, top: 0, failure: None, style };
    live.show(&receiver)
}

/// Observes once. Returns false if the view has ended.
fn send(source: &mut TopSource, views: &Sender<Result<TopView, String>>) -> bool {
    // The time advances, so each observation has a console of its own.
    let (out, err) = (Box::new(std::io::sink()), Box::new(std::io::sink()));
    let mut console = Console::from_streams(out, err, None, Timestamp::now());
    let view = source.observe(&mut console).map_err(|error| error.to_string());
    views.send(view).is_ok()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    columns: usize,
    lines: usize,
}

impl Size {
    fn of_terminal() -> Self {
        let size = terminal_size::terminal_size();
        size.map_or(SIZE_DEFAULT, |(columns, lines)| Self {
            columns: usize::from(columns.0),
            lines: usize::from(lines.0),
        })
    }
}

/// The view on the terminal.
struct LiveView {
    view: TopView,
    order: TopSort,
    /// Index of the first shown line of nodes.
    top: usize,
    /// Reason why the latest observation failed.
    failure: Option<String>,
    style: TextStyle,
}

impl LiveView {
    /// Shows views until the user or a signal ends it.
    fn show(&mut self, views: &Receiver<Result<TopView, String>>) -> Result<Exit, CliError> {
        let failed = |error: std::io::Error| {
            CliError::new(error).context("cannot use the terminal".to_owned())
        };
        let mut screen = Screen::open().map_err(failed)?;
        let (mut drawn, mut since) = (None, Instant::now());
        let mut is_observed = true;
        let exit = loop {
            if screen.is_interrupted() {
                break Exit::Interrupted;
            }
            match views.try_recv() {
                Ok(Ok(mut view)) => {
                    view.sort(self.order);
                    (self.view, self.failure, since, drawn) = (view, None, Instant::now(), None);
                }
                Ok(Err(why)) => (self.failure, drawn) = (Some(why), None),
                Err(TryRecvError::Disconnected) if is_observed => {
                    is_observed = false;
                    (self.failure, drawn) = (Some(OBSERVER_ENDED.to_owned()), None);
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
            let size = Size::of_terminal();
            let state = (size, since.elapsed().as_secs());
            if drawn != Some(state) {
                let lines = self.lines(size, since.elapsed().as_secs());
                screen.draw(&lines).map_err(failed)?;
                drawn = Some(state);
            }
            match screen.key() {
                None => continue,
                Some(Key::Quit) => break Exit::Done,
                Some(Key::Interrupt) => break Exit::Interrupted,
                Some(key) => self.press(key, size),
            }
            drawn = None;
        };
        if is_observed { Ok(exit) } else { Err(CliError::text(OBSERVER_ENDED)) }
    }

    fn press(&mut self, key: Key, size: Size) {
        let page = size.lines.saturating_sub(self.frame(size).head.len() + 1).max(1);
        match key {
            Key::Up => self.top = self.top.saturating_sub(1),
            Key::Down => self.top += 1,
            Key::PageUp => self.top = self.top.saturating_sub(page),
            Key::PageDown => self.top += page,
            Key::Sort => {
                self.order = self.order.next();
                self.view.sort(self.order);
                self.top = 0;
            }
            Key::Quit | Key::Interrupt => {}
        }
    }

    fn frame(&self, size: Size) -> TopFrame {
        top(&self.view, &TextStyle { width: size.columns, ..self.style })
    }

    /// Returns the lines that fit on the terminal: head, nodes and status.
    fn lines(&mut self, size: Size, seconds: u64) -> Vec<String> {
        let TopFrame { mut head, nodes, .. } = self.frame(size);
        if let Some(why) = &self.failure {
            let line = format!("The latest observation failed: {}", escape(why));
            head.insert(1, line.chars().take(size.columns).collect());
        }
        let room = size.lines.saturating_sub(head.len() + 1);
        self.top = self.top.min(nodes.len().saturating_sub(room));
        let hidden = nodes.len().saturating_sub(self.top + room);
        head.extend(nodes.into_iter().skip(self.top).take(room));
        head.truncate(size.lines.saturating_sub(1));
        let more = if hidden > 0 { format!("   {hidden} more lines below") } else { String::new() };
        head.push(format!(
            "q quit   ↑↓ scroll   s sort: {}   observed {seconds}s ago{more}",
            self.order.as_str()
        ));
        head
    }
}

#[cfg(test)]
mod tests;
