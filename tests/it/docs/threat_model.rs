//! The threat model: each row of its tables names a listed role, and tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::{read, root};

const PAGE: &str = "docs/src/explanation/threat-model.md";

const HEAD: &str = "| role | action | what stops it | test |";

/// Returns the cells of the rows of each table with this head.
pub(super) fn rows<'a>(page: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let mut rows = Vec::new();
    let mut is_table = false;
    for line in page.lines() {
        is_table = line == head || (is_table && line.starts_with('|'));
        if is_table && line != head && !line.starts_with("|---") {
            rows.push(line.trim_matches('|').split(" | ").map(str::trim).collect());
        }
    }
    rows
}

/// Returns the names of all tests of the source.
pub(super) fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut open: Vec<PathBuf> = ["src", "tests"].iter().map(|name| root().join(name)).collect();
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("text");
                let text = text.replace("#[tokio::test]", "#[test]");
                let functions = text.split("#[test]\n").skip(1).filter_map(|rest| {
                    let (_, function) = rest.split_once("fn ")?;
                    function.split_once('(').map(|(name, _)| name.to_owned())
                });
                names.extend(functions);
            }
        }
    }
    names
}

#[test]
fn threat_model_names_existing_tests_and_roles() {
    let page = read(PAGE);
    let roles: BTreeSet<&str> = rows(&page, "| role | has |").iter().map(|row| row[0]).collect();
    let (rows, tests) = (rows(&page, HEAD), tests());
    assert!(rows.len() > 50 && roles.len() > 8, "{} rows, {roles:?}", rows.len());
    for row in &rows {
        let [role, action, stops, names] = row[..] else { panic!("four cells: {row:?}") };
        assert!(roles.contains(role), "`{role}` is not a listed role");
        assert!(action.len() > 10 && stops.len() > 10, "{row:?}");
        let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test: {action}");
        for name in names {
            assert!(tests.contains(name), "`{name}` is not a test: {action}");
        }
    }
    let acting: BTreeSet<&str> = rows.iter().map(|row| row[0]).collect();
    let idle: Vec<_> = roles.difference(&acting).collect();
    // A signer and an approver may do what the others may not.
    assert_eq!(idle, [&"approver", &"signer"], "roles without a row");
}
