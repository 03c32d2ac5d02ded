//! Tables of pages that come from the program and its files.
//!
//! A comment marks the place of a table: `<!-- table: NAME -->`. The rows below it are generated.
//! The test compares them with the source, and `UPDATE_GOLDEN=1` writes them anew. Text around the
//! tables is written by hand.

use std::collections::BTreeMap;

use super::read;
use crate::golden;

/// Tables by name.
pub(super) type Tables = BTreeMap<String, String>;

/// Returns a table of Markdown.
pub(super) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let rule = format!("|{}\n", "---|".repeat(N));
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | ")).replace("|  |", "| |");
    let rows = rows.iter().map(|row| line(row.iter().map(|cell| escaped(cell)).collect()));
    let head = line(head.map(str::to_owned).to_vec());
    [head, rule].into_iter().chain(rows).collect()
}

fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', " ")
}

/// Returns the page with the tables, and the names of its marks.
fn updated(page: &str, tables: &Tables) -> (String, Vec<String>) {
    let (mut text, mut marks) = (String::new(), Vec::new());
    let mut is_table = false;
    for line in page.split_inclusive('\n') {
        is_table = is_table && line.starts_with('|');
        if is_table {
            continue;
        }
        text.push_str(line);
        let mark = line.trim_end().strip_prefix("<!-- table: ");
        if let Some(name) = mark.and_then(|rest| rest.strip_suffix(" -->")) {
            text.push_str(tables.get(name).map_or("", String::as_str));
            marks.push(name.to_owned());
            is_table = true;
        }
    }
    (text, marks)
}

/// Checks that the page has exactly these tables, as they are.
pub(super) fn hold(path: &str, tables: &Tables) {
    let (text, mut marks) = updated(&read(path), tables);
    marks.sort();
    let names: Vec<&String> = tables.keys().collect();
    assert_eq!(marks.iter().collect::<Vec<_>>(), names, "tables of {path}");
    golden::hold(path, &text).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn tables_are_written_below_their_marks() {
    let tables =
        Tables::from([("a".to_owned(), table(["x", "y"], &[["1|2".to_owned(), String::new()]]))]);
    let page = "Text.\n\n<!-- table: a -->\n| old |\n\n| by hand |\n<!-- table: b -->\n";
    let (text, marks) = updated(page, &tables);
    let expected = "Text.\n\n<!-- table: a -->\n| x | y |\n|---|---|\n| 1\\|2 | |\n\n| by hand |\n\
                    <!-- table: b -->\n";
    assert_eq!(text, expected);
    assert_eq!(marks, ["a", "b"]);
}
