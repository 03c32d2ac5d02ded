//! The terminal of `top`: raw input and the alternate screen, restored on drop.

use std::io::{self, Stdin, Stdout, Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Alternate screen on, cursor hidden, lines cut at the right margin.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
const LEAVE: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
/// Cursor to the top left; erase to the end of the line; erase to the end of the screen.
const HOME: &str = "\u{1b}[H";
const ERASE_LINE: &str = "\u{1b}[K";
const ERASE_BELOW: &str = "\u{1b}[J";

/// Longest wait for a key, in tenths of a second.
const KEY_WAIT: u8 = 1;

/// A key with a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    /// Ctrl-C. Raw input sends no signal.
    Interrupt,
    Up,
    Down,
    PageUp,
    PageDown,
    Sort,
}

impl Key {
    /// Returns the key of the bytes that a terminal sends.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes {
            b"k" | b"\x1b[A" | b"\x1bOA" => Some(Self::Up),
            b"j" | b"\x1b[B" | b"\x1bOB" => Some(Self::Down),
            b"b" | b"\x1b[5~" => Some(Self::PageUp),
            b" " | b"f" | b"\x1b[6~" => Some(Self::PageDown),
            b"s" => Some(Self::Sort),
            // Quick typing and pasted text arrive together.
            [3, ..] | [.., 3] => Some(Self::Interrupt),
            // 4 is Ctrl-D.
            [b'q' | b'Q' | 4, ..] | [.., b'q' | b'Q' | 4] => Some(Self::Quit),
            _ => None,
        }
    }
}

/// The terminal while the view is shown.
pub(super) struct Screen {
    /// Attributes to restore.
    before: Termios,
    input: Stdin,
    out: Stdout,
    interrupted: Arc<AtomicBool>,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        let (input, out) = (stdin(), stdout());
        let before = tcgetattr(&input)?;
        let mut raw = before.clone();
        raw.local_modes -=
            LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = KEY_WAIT;
        tcsetattr(&input, OptionalActions::Now, &raw)?;
        let mut screen = Self { before, input, out, interrupted };
        screen.write(ENTER)?;
        Ok(screen)
    }

    /// Returns whether a signal asks the program to end.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Replaces the contents of the screen.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let mut text = HOME.to_owned();
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                text.push_str("\r\n");
            }
            text.push_str(line);
            text.push_str(ERASE_LINE);
        }
        text.push_str(ERASE_BELOW);
        self.write(&text)
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Waits a moment for a key. A terminal that is gone counts as [`Key::Quit`].
    pub(super) fn key(&mut self) -> Option<Key> {
        let mut bytes = [0; 64];
        match rustix::io::read(&self.input, &mut bytes) {
            Ok(count) => Key::from_bytes(&bytes[..count]),
            Err(rustix::io::Errno::INTR) => None,
            Err(_) => Some(Key::Quit),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = self.write(LEAVE);
        let _ = tcsetattr(&self.input, OptionalActions::Now, &self.before);
    }
}
