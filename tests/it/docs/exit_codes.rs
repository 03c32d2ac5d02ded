//! The table of exit codes, which comes from the source.

use super::read;
use crate::golden;

const PAGE: &str = "docs/src/reference/exit-codes.md";
const SOURCE: &str = "src/cli/exit.rs";
const HEAD: &str = "| exit code | meaning |\n|---|---|\n";

/// Returns the rows of the table, in the order of the source: `/// meaning`, then
/// `Name = code, "label";`.
fn rows(source: &str) -> String {
    let body = source.split_once("exits! {\n").expect("the table").1;
    let body = body.split_once("\n}").expect("its end").0;
    let mut lines = body.lines().map(str::trim);
    let mut rows = Vec::new();
    while let (Some(meaning), Some(exit)) = (lines.next(), lines.next()) {
        let meaning = meaning.strip_prefix("/// ").expect("a description on one line");
        let code = exit.split_once(" = ").and_then(|(_, rest)| rest.split_once(','));
        rows.push(format!("| {} | {meaning} |\n", code.expect("its code").0));
    }
    assert!(rows.len() > 10, "{rows:?}");
    rows.concat()
}

#[test]
fn exit_code_page_has_the_codes_of_the_source() {
    let page = read(PAGE);
    let (before, table) = page.split_once(HEAD).expect("the table");
    let after: String =
        table.split_inclusive('\n').skip_while(|line| line.starts_with('|')).collect();
    let expected = format!("{before}{HEAD}{}{after}", rows(&read(SOURCE)));
    golden::hold(PAGE, &expected).unwrap_or_else(|why| panic!("{why}"));
}
