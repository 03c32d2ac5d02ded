//! The table of exit codes, which comes from the source.

use super::read;
use crate::golden;

const PAGE: &str = "docs/src/reference/exit-codes.md";
const SOURCE: &str = "src/cli/exit.rs";
const HEAD: &str = "| exit code | meaning |\n|---|---|\n";

/// Returns the variants of the enum, each with its description.
fn variants(source: &str) -> Vec<(String, String)> {
    let body = source.split_once("pub enum Exit {").expect("the enum").1;
    let body = body.split_once("\n}").expect("its end").0;
    let mut variants = Vec::new();
    let mut description: Vec<&str> = Vec::new();
    for line in body.lines().map(str::trim) {
        match (line.strip_prefix("///"), line.strip_suffix(',')) {
            (Some(text), _) => description.push(text.trim()),
            (None, Some(name)) => {
                variants.push((name.to_owned(), description.join(" ")));
                description.clear();
            }
            (None, None) => {}
        }
    }
    variants
}

/// Returns a description without the code in parentheses.
fn meaning(description: &str, code: &str) -> String {
    let Some((before, rest)) = description.split_once(&format!(" ({code}")) else {
        return description.to_owned();
    };
    format!("{before}{}", rest.split_once(')').map_or(rest, |(_, after)| after))
}

/// Returns the rows of the table, in the order of the source.
fn rows(source: &str) -> String {
    let variants = variants(source);
    assert!(variants.len() > 10, "{variants:?}");
    let codes = source.split_once("fn code(self)").expect("the codes").1;
    let rows = variants.iter().map(|(name, description)| {
        let code = codes.split_once(&format!("Self::{name} => ")).expect("its code").1;
        let code = code.split_once(',').expect("the end of a number").0;
        format!("| {code} | {} |\n", meaning(description, code))
    });
    rows.collect::<Vec<_>>().concat()
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

#[test]
fn meanings_have_no_code() {
    assert_eq!(meaning("Done, or nothing to do (0).", "0"), "Done, or nothing to do.");
    assert_eq!(meaning("Interrupted (130, as in shells).", "130"), "Interrupted.");
    assert_eq!(meaning("Changes (2). Pods do not.", "2"), "Changes. Pods do not.");
}
