//! Code blocks of a Markdown page, with the notes for the tests that stand before them.

/// A code block.
#[derive(Debug, PartialEq)]
pub(super) struct Block {
    /// Number of its first line of code.
    pub line: usize,
    /// The first word after the fence. An indented block is `sh`.
    pub language: String,
    pub text: String,
    /// The notes between the previous block and this one.
    pub notes: Vec<Note>,
}

impl Block {
    /// Returns the reason why the commands of the block do not run.
    pub(super) fn not_run(&self) -> Option<&str> {
        self.notes.iter().find_map(|note| {
            let Note::NotRun(why) = note else { return None };
            Some(why.as_str())
        })
    }
}

/// A comment of the page, such as `<!-- not run: needs a cluster -->`. Readers of the book do not
/// see it.
#[derive(Debug, PartialEq)]
pub(super) enum Note {
    /// The commands of the block cannot run in a test, for this reason.
    NotRun(String),
    /// The test runs these commands in place of those of the block.
    RunAs(String),
    /// The test runs these commands before the block.
    Setup(String),
    /// The test writes the block to this file.
    File(String),
    /// A `text` block is output of these commands, which the page does not show.
    OutputOf(String),
    /// A `text` block is not output of the commands before it, for this reason.
    NotOutput(String),
    /// The commands of the block end with this code in place of 0.
    ExitsWith(i32),
}

impl Note {
    /// Reads a comment without its marks. Returns `None` for other comments.
    fn from_comment(comment: &str) -> Option<Self> {
        let (key, value) = comment.split_once(':')?;
        let value = value.trim().to_owned();
        match key.trim() {
            "not run" => Some(Self::NotRun(value)),
            "run as" => Some(Self::RunAs(value)),
            "setup" => Some(Self::Setup(value)),
            "file" => Some(Self::File(value)),
            "output of" => Some(Self::OutputOf(value)),
            "not output" => Some(Self::NotOutput(value)),
            "exits with" => value.parse().ok().map(Self::ExitsWith),
            _ => None,
        }
    }
}

/// Returns a line without its indent, of at most `columns`.
fn without_indent(line: &str, columns: usize) -> &str {
    let indent = line.len() - line.trim_start_matches(' ').len();
    &line[indent.min(columns)..]
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns the code blocks of a page, fenced or indented.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut notes = Vec::new();
    let mut lines = page.lines().enumerate().peekable();
    let mut follows_blank = true;
    while let Some((index, line)) = lines.next() {
        let trimmed = line.trim_start();
        if let Some(comment) = trimmed.strip_prefix("<!--") {
            let mut text = comment.to_owned();
            while !text.contains("-->") {
                let Some((_, next)) = lines.next() else { break };
                text.push('\n');
                text.push_str(without_indent(next, indent(line)));
            }
            notes.extend(Note::from_comment(text.split("-->").next().unwrap_or_default()));
        } else if let Some(language) = trimmed.strip_prefix("```") {
            let code = lines.by_ref().map(|(_, line)| line);
            let code = code.take_while(|line| !line.trim_start().starts_with("```"));
            let code: Vec<&str> = code.map(|code| without_indent(code, indent(line))).collect();
            blocks.push(Block {
                line: index + 2,
                language: language.split([' ', ',']).next().unwrap_or_default().to_owned(),
                text: code.join("\n"),
                notes: std::mem::take(&mut notes),
            });
        } else if follows_blank && line.starts_with("    ") && !super::is_list_item(trimmed) {
            let mut code = vec![trimmed];
            while let Some((_, next)) = lines.next_if(|(_, next)| next.starts_with("    ")) {
                code.push(without_indent(next, indent(line)));
            }
            blocks.push(Block {
                line: index + 1,
                language: "sh".to_owned(),
                text: code.join("\n"),
                notes: std::mem::take(&mut notes),
            });
        }
        follows_blank = trimmed.is_empty();
    }
    blocks
}

#[test]
fn blocks_have_language_text_and_notes() {
    let page = "\
Text.

<!-- setup: cp a b
  cd b
-->
1. Item:

   <!-- not run: needs AWS -->
   ```sh,ignored
   aws one \\
     two
   ```

   Text that is indented
   and goes on.

    fleetwright plan
    fleetwright show

```text
Plan.
```
";
    let note = |note: Note| vec![note];
    let block = |line, language: &str, text: &str, notes| Block {
        line,
        language: language.to_owned(),
        text: text.to_owned(),
        notes,
    };
    let setup = Note::Setup("cp a b\n  cd b".to_owned());
    let mut notes = note(setup);
    notes.push(Note::NotRun("needs AWS".to_owned()));
    let expected = [
        block(10, "sh", "aws one \\\n  two", notes),
        block(17, "sh", "fleetwright plan\nfleetwright show", Vec::new()),
        block(21, "text", "Plan.", Vec::new()),
    ];
    assert_eq!(blocks(page), expected);
}
