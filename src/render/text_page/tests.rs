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
        ("fixes #1 and #2 # x", "fixes #1 and #2 # x"),
        ("x ##[set-env name=A]b", "x #\\u{23}[set-env name=A]b"),
        ("##vso[task.x]y\n", "#\\u{23}vso[task.x]y\\n"),
        (" ::stop-commands::x", " \\u{3a}:stop-commands::x"),
        ("::/0", "::/0"),
        ("####[x", "#\\u{23}\\u{23}\\u{23}[x"),
        ("#\u{301}#[x", "#\u{301}\\u{23}[x"),
        ("#\u{200b}#[x", "#\\u{200b}#[x"),
    ] {
        assert_eq!(escape(hostile), shown, "{hostile:?}");
    }
}

#[test]
fn adjacent_spans_form_no_command() {
    let mut page = TextPage::new(&TextStyle::default());
    page.line([plain("a#"), StyledText::new("#[set-env name=A]b", Tone::Faint)]);
    assert_eq!(page.finish(), "a#\\u{23}[set-env name=A]b\n");
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

const COLUMNS: [TableColumn; 3] =
    [TableColumn::left("name", 12), TableColumn::right("n"), TableColumn::last("why")];

fn table(style: TextStyle) -> String {
    let mut page = TextPage::new(&style);
    let row = |name: &str, n: &str, why: &str| vec![plain(name), plain(n), plain(why)];
    let why = "because three pods of the workload have no room";
    page.table(&COLUMNS, &[row("a-very-long-name", "7", why), row("b", "12", "short")]);
    page.finish()
}

fn terminal(width: usize) -> TextStyle {
    TextStyle { width, breaks: LineBreaks::Wrap, ..TextStyle::default() }
}

#[test]
fn rows_of_files_stay_on_one_line() {
    assert_eq!(
        table(TextStyle { width: 20, ..TextStyle::default() }),
        "  name           n  why\n  a-very-long…   7  because three pods of the workload have no room\n  b             12  short\n"
    );
}

#[test]
fn terminal_rows_wrap_their_last_cell() {
    assert_eq!(
        table(terminal(60)),
        "  name               n  why\n  a-very-long-name   7  because three pods of the workload\n                        have no room\n  b                 12  short\n"
    );
}

#[test]
fn last_cell_goes_below_if_there_is_no_room() {
    assert_eq!(
        table(terminal(40)),
        "  name               n\n       why\n  a-very-long-name   7\n       because three pods of the\n       workload have no room\n  b                 12\n       short\n"
    );
}

#[test]
fn no_terminal_line_exceeds_the_width() {
    for width in [20, 40, 80, 120, 200] {
        let mut page = TextPage::new(&terminal(width));
        let long = "x".repeat(500);
        page.table(&COLUMNS, &[vec![plain(&long), plain("1"), plain(&long)]]);
        page.text(format!("  note: {}{long}", "some words ".repeat(30)));
        let text = page.finish();
        assert!(text.lines().all(|line| line.width() <= width), "{width}: {text}");
    }
}

#[test]
fn sentences_wrap_on_terminals_only() {
    let write = |style: TextStyle| {
        let mut page = TextPage::new(&style);
        page.text("  note: seven words that need two lines");
        page.finish()
    };
    let whole = "  note: seven words that need two lines\n";
    assert_eq!(write(TextStyle { width: 24, ..TextStyle::default() }), whole);
    assert_eq!(write(terminal(24)), "  note: seven words that\n      need two lines\n");
}

#[test]
fn items_wrap_only_between_items() {
    let mut page = TextPage::new(&TextStyle { width: 20, ..TextStyle::default() });
    page.items(2, ["aaaaaaa", "bbbbbbb", "ccccccc"].map(plain).to_vec());
    assert_eq!(page.finish(), "  aaaaaaa   bbbbbbb\n  ccccccc\n");
}
