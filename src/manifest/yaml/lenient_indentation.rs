//! Lenient indentation inside quotes and brackets, as in libyaml.
//!
//! YAML 1.2 requires the continuation lines of a quoted scalar or of `[ … ]` to be indented deeper
//! than the mapping around them. libyaml, and therefore kubectl, does not, and programs that use it
//! break long texts at the column of their key. Leading blanks have no meaning in such lines, so
//! adding more changes no value and no line number. Only text that does not parse otherwise is
//! changed.

/// Maximum number of bytes added, which limits the growth of hostile text.
const ADDED_BYTES_MAX: usize = 1 << 20;

/// Returns `text` with the lines inside quotes and brackets indented deeply enough; `None` if no
/// change is needed.
pub(in super::super) fn indent_continuations(text: &str) -> Option<String> {
    let mut scan = IndentationScanner::default();
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    let mut added = 0_usize;
    for line in text.split_inclusive('\n') {
        if let Some(least) = scan.continues() {
            let own = line.bytes().take_while(|byte| *byte == b' ').count();
            let blank = line.trim().is_empty();
            let missing = if blank { 0 } else { least.saturating_sub(own) };
            added += missing;
            if added > ADDED_BYTES_MAX {
                return None;
            }
            out.extend(std::iter::repeat_n(' ', missing));
        }
        out.push_str(line);
        scan.line(line.trim_end_matches(['\n', '\r']).as_bytes());
    }
    (added > 0).then_some(out)
}

/// The construct that a line may continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LineContext {
    /// Nothing.
    #[default]
    Block,
    /// A quoted scalar, with its quote.
    Quotes(u8),
    /// A block scalar, or a plain one at the end of a line: deeper lines are its content.
    Scalar,
}

/// The state of the scan.
#[derive(Debug, Default)]
struct IndentationScanner {
    inside: LineContext,
    /// Open brackets.
    flow: usize,
    /// The column of the key or dash of the current value; `None` at the top level.
    column: Option<usize>,
    /// The column of a token that is a key if a colon follows.
    candidate: Option<usize>,
}

impl IndentationScanner {
    /// Returns the minimum column of the next line if it continues quotes or brackets.
    fn continues(&self) -> Option<usize> {
        let quoted = matches!(self.inside, LineContext::Quotes(_));
        (quoted || self.flow > 0).then(|| self.column.map_or(0, |column| column + 1))
    }

    fn line(&mut self, line: &[u8]) {
        let indent = line.iter().take_while(|byte| **byte == b' ').count();
        let marker = [&b"---"[..], b"..."].iter().any(|marker| {
            line.starts_with(marker) && line.get(3).is_none_or(u8::is_ascii_whitespace)
        });
        let deeper = self.column.is_none_or(|column| indent > column) && !marker;
        let mut at = 0;
        match self.inside {
            LineContext::Quotes(quote) => {
                let Some(end) = closing(line, 0, quote) else { return };
                at = end;
            }
            LineContext::Scalar if indent == line.len() || deeper => return,
            LineContext::Scalar | LineContext::Block if self.flow == 0 => {
                self.candidate = None;
                if marker {
                    (at, self.column) = (3, None);
                }
            }
            LineContext::Scalar | LineContext::Block => {}
        }
        self.inside = LineContext::Block;
        while let Some(next) = self.token(line, at) {
            at = next;
        }
    }

    /// Scans the token at `at`. Returns the start of the next one; `None` at the end of the line.
    fn token(&mut self, line: &[u8], at: usize) -> Option<usize> {
        let blanks = line.get(at..)?.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        let start = at + blanks;
        let first = *line.get(start)?;
        let blank_follows = line.get(start + 1).is_none_or(u8::is_ascii_whitespace);
        match first {
            b'#' if start == 0 || blanks > 0 => return None,
            b']' | b'}' | b',' if self.flow > 0 => {
                self.flow -= usize::from(first != b',');
                return Some(start + 1);
            }
            b':' if self.flow > 0 => return Some(start + 1),
            b':' if blank_follows => {
                self.column = self.candidate.take().or(self.column);
                return Some(start + 1);
            }
            b'-' | b'?' if blank_follows && self.flow == 0 => {
                self.column = Some(start);
                self.candidate = None;
                return Some(start + 1);
            }
            b'|' | b'>' if self.flow == 0 => {
                self.inside = LineContext::Scalar;
                return None;
            }
            _ => {}
        }
        if self.flow == 0 {
            self.candidate.get_or_insert(start);
        }
        match first {
            b'\'' | b'"' => {
                let end = closing(line, start + 1, first);
                if end.is_none() {
                    self.inside = LineContext::Quotes(first);
                }
                end
            }
            b'[' | b'{' => {
                self.flow += 1;
                Some(start + 1)
            }
            b'&' | b'!' | b'*' => {
                let ends = |byte: &u8| byte.is_ascii_whitespace() || self.ends_flow_word(*byte);
                Some(start + 1 + line[start + 1..].iter().take_while(|b| !ends(b)).count())
            }
            _ => self.plain(line, start),
        }
    }

    fn ends_flow_word(&self, byte: u8) -> bool {
        self.flow > 0 && b",[]{}".contains(&byte)
    }

    /// Scans a plain scalar up to its end on this line.
    fn plain(&mut self, line: &[u8], start: usize) -> Option<usize> {
        let comment = |at: usize| line[at] == b'#' && matches!(line[at - 1], b' ' | b'\t');
        let ends = |at: &usize| match line[*at] {
            b':' => line
                .get(at + 1)
                .is_none_or(|next| next.is_ascii_whitespace() || self.ends_flow_word(*next)),
            byte => comment(*at) || self.ends_flow_word(byte),
        };
        let end = (start + 1..line.len()).find(ends);
        if end.is_none() && self.flow == 0 && self.column.is_some() {
            self.inside = LineContext::Scalar;
        }
        end.filter(|at| !comment(*at))
    }
}

/// Returns the position after the closing `quote`, searching from `at`.
fn closing(line: &[u8], mut at: usize, quote: u8) -> Option<usize> {
    loop {
        let byte = *line.get(at)?;
        let twice = quote == b'\'' && line.get(at + 1) == Some(&quote);
        match byte {
            b'\\' if quote == b'"' => at += 2,
            _ if byte == quote && twice => at += 2,
            _ if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}
